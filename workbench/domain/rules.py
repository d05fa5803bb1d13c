"""What makes a split, a layout or a prompt set valid beyond its types.

Each function returns faults; no fault, and the engine can be asked. The same rules hold for a
document, for an option on the command line and for a draft on the screen.
"""

import math
import re
from collections.abc import Mapping, Sequence

from workbench.domain.card import parse_mib, pci_key
from workbench.domain.conversation import Message, Sampling
from workbench.domain.env import ALLOWED, READ_BY_PRESENCE, means_off
from workbench.domain.faults import Fault, is_unprintable, nearest
from workbench.domain.layout import Context, Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.servers import check_no_server, check_server
from workbench.domain.split import Split, Virtual

MAX_CARDS = 16
"""llama.cpp's own limit."""
MAX_COUNT = 2**31 - 1
MAX_SHARE = 1e6
LONGEST_NAME = 200
_QUANTISED_V = ("q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


def n_cards_of(split: Split) -> int | None:
    """How many cards the split names; None if it takes whatever the machine has."""
    if isinstance(split.cards, Virtual):
        return len(split.cards.virtual)
    return None if split.cards is None else len(split.cards)


def check_split(split: Split, n_cards: int | None = None) -> list[Fault]:
    """Faults of a split, keys without `split.`; `n_cards` is used where the split names no cards."""
    faults = _check_cards(split)
    named = n_cards_of(split)
    cards = named if named is not None else n_cards
    if split.layers is not None:
        faults += _check_layers(split, split.layers, cards)
    elif not isinstance(split.tensor_split, str):
        faults += _check_shares(split.tensor_split, cards)
    if split.layers is not None and not isinstance(split.tensor_split, str):
        faults.append(Fault("layers", "stands beside tensor_split; keep one: layers for exact counts, "
                            "tensor_split for proportions"))
    if split.n_gpu_layers != "all":
        faults += _check_count("n_gpu_layers", split.n_gpu_layers, 0, "all, or a count from 0 up")
    if split.main_gpu < 0:
        faults.append(Fault("main_gpu", f"{split.main_gpu} is no card; cards count from 0"))
    elif cards is not None and cards > 0 and split.main_gpu >= cards:
        faults.append(Fault("main_gpu", f"{split.main_gpu} is out of range; {_cards(cards)}, so write {_upto(cards)}"))
    return faults


def _check_layers(split: Split, layers: Sequence[int], cards: int | None) -> list[Fault]:
    faults = _check_length("layers", layers, cards, "counts")
    for at, count in enumerate(layers):
        faults += _check_count(f"layers[{at}]", count, 0, "a whole number of layers, 0 for none")
    if faults:
        return faults
    total = sum(layers)
    if total == 0:
        faults.append(Fault("layers", "puts no layer on any card; give one card at least one, "
                            "or leave layers out and write n_gpu_layers: 0"))
    elif split.n_gpu_layers not in ("all", total):
        faults.append(Fault("n_gpu_layers", f"{split.n_gpu_layers} contradicts layers, which add up to {total}; "
                            "leave n_gpu_layers out"))
    return faults


def check_positions(split: Split, n_layer: int) -> Fault | None:
    """More counted layers than a model of `n_layer` layers has positions."""
    layers, positions = split.layers or (), n_layer + 1
    if sum(layers) <= positions:
        return None
    return Fault("layers", f"{' + '.join(map(str, layers))} = {sum(layers)} layers are asked for, the model has "
                 f"{positions} positions ({n_layer} layers and the output)")


def _check_shares(shares: Sequence[float], cards: int | None) -> list[Fault]:
    faults = _check_length("tensor_split", shares, cards, "shares")
    for at, share in enumerate(shares):
        if not (math.isfinite(share) and 0 <= share <= MAX_SHARE):
            faults.append(Fault(f"tensor_split[{at}]", f"{share:g} is not a share; write a number from 0 to "
                                f"{MAX_SHARE:.0f}, 0 for nothing on that card"))
    if not faults and sum(shares) < 1e-6:
        faults.append(Fault("tensor_split", "gives nothing to any card; make one share larger than 0, "
                            "or write auto"))
    return faults


def _check_length(key: str, values: Sequence[float], cards: int | None, noun: str) -> list[Fault]:
    if not values:
        return [Fault(key, f"is empty; give {noun} in the order of the cards, for example [3, 1]")]
    if cards is not None and len(values) > cards:
        return [Fault(key, f"has {len(values)} {noun}, but {_cards(cards)}; give at most {cards}, one a card")]
    if len(values) > MAX_CARDS:
        return [Fault(key, f"has {len(values)} {noun}; llama.cpp takes {MAX_CARDS} cards at most")]
    return []


def _cards(count: int) -> str:
    return "there is one card" if count == 1 else f"there are {count} cards"


def _upto(cards: int) -> str:
    return "0" if cards == 1 else f"0 to {cards - 1}"


def _check_count(key: str, value: int, least: int, right: str) -> list[Fault]:
    return [] if least <= value <= MAX_COUNT else [Fault(key, f"{value} cannot be; write {right}")]


def _check_cards(split: Split) -> list[Fault]:
    key = "cards"
    if split.cards is None:
        return []
    if isinstance(split.cards, Virtual):
        key = "cards.virtual"
        names: Sequence[str] = split.cards.virtual
        right = "give one size a card, for example [600MiB, 300MiB]"
    else:
        names = split.cards
        right = "name the cards, for example [CUDA0, CUDA1], or leave cards out to use every GPU"
    if not names:
        return [Fault(key, f"is empty; {right}")]
    if len(names) > MAX_CARDS:
        return [Fault(key, f"names {len(names)} cards; llama.cpp takes {MAX_CARDS} at most")]
    if isinstance(split.cards, Virtual):
        return [fault for at, size in enumerate(names) for fault in _check_size(f"{key}[{at}]", size)]
    return _check_names(names)


def _check_size(key: str, size: str) -> list[Fault]:
    try:
        mib = parse_mib(size)
    except ValueError as error:
        return [Fault(key, str(error))]
    return [] if mib <= 2**30 else [Fault(key, f"`{size}` is more than any machine has; write for example 600MiB")]


def _check_names(names: Sequence[str]) -> list[Fault]:
    faults = []
    seen: dict[object, int] = {}
    for at, name in enumerate(names):
        key = f"cards[{at}]"
        identity = pci_key(name) or name.strip().lower()
        if not name.strip():
            faults.append(Fault(key, "is empty; write a name such as CUDA0, a PCI bus id, a UUID or rpc://host:port"))
        elif is_unprintable(name):
            faults.append(Fault(key, "has a control character; write a name such as CUDA0"))
        elif name.lower().startswith("rpc:") and not (name.startswith("rpc://") and is_endpoint(name[6:])):
            faults.append(Fault(key, f"`{name}` is no endpoint; write rpc://host:port, for example "
                                "rpc://127.0.0.1:50052"))
        elif identity in seen:
            faults.append(Fault(key, f"`{name}` is the same card as the one at {seen[identity]}; name each card once"))
        seen.setdefault(identity, at)
    return faults


def is_endpoint(text: str) -> bool:
    """Whether it is `host:port`."""
    match = re.fullmatch(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", text)
    return match is not None and 1 <= int(match[1]) <= 65535


def check_context(context: Context) -> list[Fault]:
    """Faults of context settings, keys without `context.`."""
    faults = _check_count("n_ctx", context.n_ctx, 0, "a number of tokens, or 0 for what the model was trained with")
    faults += _check_count("n_batch", context.n_batch, 1, "a number of tokens from 1 up, for example 2048")
    faults += _check_count("n_ubatch", context.n_ubatch, 1, "a number of tokens from 1 up, for example 512")
    if context.n_threads != "auto" and not 1 <= context.n_threads <= 512:
        faults.append(Fault("n_threads", f"{context.n_threads} cannot be; write auto, or 1 to 512"))
    if context.flash_attn is False and context.type_v in _QUANTISED_V:
        faults.append(Fault("type_v", f"{context.type_v} needs flash attention; write flash_attn: auto, "
                            "or type_v: f16"))
    return faults


def check_env(env: Mapping[str, str | None]) -> list[Fault]:
    """Faults of the variables a layout sets, keyed by name."""
    faults = []
    for name, value in env.items():
        if name not in ALLOWED:
            hint = nearest(name, ALLOWED) or "; leave it out"
            faults.append(Fault(name, f"is not one of the engine's variables that a layout may set{hint}"))
        elif value is not None and is_unprintable(value):
            faults.append(Fault(name, "has a control character in its value; write one line of plain text"))
        elif value is not None and name in READ_BY_PRESENCE and means_off(value):
            faults.append(Fault(name, f'is read by presence, so "{value}" switches it on; write null to unset it'))
    return faults


def check_layout(layout: Layout, n_cards: int | None = None) -> list[Fault]:
    """Faults of a whole layout; `n_cards` as for check_split."""
    right = "a path, a glob or demo:smollm2" if layout.engine == "llama.cpp" else "the model's name on the server"
    faults = _check_text("name", layout.name, "a short name") + _check_text("model", layout.model, right)
    faults += check_no_server(layout) if layout.engine == "llama.cpp" else check_server(layout)
    faults += [Fault(f"split.{key}", message) for key, message in check_split(layout.split, n_cards)]
    faults += [Fault(f"context.{key}", message) for key, message in check_context(layout.context)]
    if layout.split.split_mode == "tensor" and layout.context.flash_attn is False:
        faults.append(Fault("context.flash_attn", "is off, but split_mode tensor needs it; write auto or true"))
    if layout.engine == "llama.cpp":
        faults += [Fault(f"env.{key}", message) for key, message in check_env(layout.env)]
    return faults


def _check_text(key: str, text: str, right: str) -> list[Fault]:
    if not text.strip():
        return [Fault(key, f"is empty; write {right}")]
    if is_unprintable(text):
        return [Fault(key, "has a control character or is not UTF-8; write one line of plain text")]
    if len(text) > LONGEST_NAME and key != "model":
        return [Fault(key, f"is longer than {LONGEST_NAME} characters; write {right}")]
    return []


def check_sampling(sampling: Sampling | Prompt) -> list[Fault]:
    """Faults of sampling settings; those that are None are not looked at."""
    rules = (
        ("max_tokens", 0, MAX_COUNT, "a count, or 0 for until the end"),
        ("temperature", 0, 100, "a number from 0 (greedy) up"),
        ("top_k", 0, MAX_COUNT, "a count, or 0 for all"),
        ("top_p", 0, 1, "a number from 0 to 1"),
        ("min_p", 0, 1, "a number from 0 to 1"),
        ("seed", 0, 2**32 - 1, "a whole number from 0 to 4294967295"),
    )
    faults = []
    for key, least, most, right in rules:
        value: float | None = getattr(sampling, key)
        if value is not None and not least <= value <= most:
            faults.append(Fault(key, f"{value:g} cannot be; write {right}"))
    return faults


def check_prompt_set(prompts: PromptSet) -> list[Fault]:
    """Faults of a prompt set."""
    faults = _check_text("name", prompts.name, "a short name")
    faults += [Fault(f"defaults.{key}", message) for key, message in check_sampling(prompts.defaults)]
    if not prompts.prompts:
        faults.append(Fault("prompts", "is empty; give at least one, for example {id: hello, text: Say hello.}"))
    seen: dict[str, int] = {}
    for at, prompt in enumerate(prompts.prompts):
        where = f"prompts[{at}]"
        faults += [Fault(f"{where}.{key}" if key else where, message) for key, message in check_prompt(prompt)]
        if prompt.id in seen:
            faults.append(Fault(f"{where}.id", f"`{prompt.id}` is the id of prompt {seen[prompt.id] + 1} too; "
                                "give each its own"))
        seen.setdefault(prompt.id, at)
    return faults


def check_prompt(prompt: Prompt) -> list[Fault]:
    """Faults of one prompt, keys from the prompt on."""
    faults = _check_text("id", prompt.id, "a short name") + check_sampling(prompt)
    forms = [form for form in ("text", "messages", "synthetic") if getattr(prompt, form) is not None]
    if not forms:
        faults.append(Fault("", "has nothing to ask; give text, messages or synthetic"))
    elif len(forms) > 1:
        faults.append(Fault(forms[1], f"stands beside {forms[0]}; keep one of them"))
    if prompt.text is not None and not prompt.text.strip():
        faults.append(Fault("text", "is empty; write what to ask"))
    if prompt.messages is not None:
        faults += _check_messages(prompt.messages, prompt.system is not None)
    if prompt.synthetic is not None:
        faults += _check_count("synthetic.prompt_tokens", prompt.synthetic.prompt_tokens, 1, "a count from 1 up")
        if prompt.synthetic.max_tokens is not None:
            faults += _check_count("synthetic.max_tokens", prompt.synthetic.max_tokens, 1, "a count from 1 up")
        if prompt.system is not None:
            faults.append(Fault("system", "stands beside synthetic, which is the whole prompt; leave system out"))
        if prompt.max_tokens is not None:
            faults.append(Fault("max_tokens", "stands beside synthetic; write it as synthetic.max_tokens"))
    faults += _check_count("depth", prompt.depth, 0, "the tokens already in the context, from 0 up")
    if not 1 <= prompt.repeat <= 10_000:
        faults.append(Fault("repeat", f"{prompt.repeat} cannot be; write 1 to 10000"))
    return faults


def _check_messages(messages: Sequence[Message], has_system: bool) -> list[Fault]:
    if not messages:
        return [Fault("messages", "is empty; give at least one, for example {role: user, content: Hello}")]
    faults = []
    for at, message in enumerate(messages):
        if not message.content.strip():
            faults.append(Fault(f"messages[{at}].content", "is empty; write what was said"))
        faults += [
            Fault(f"messages[{at}].images[{number}]", "leads out of the current folder, from where a prompt set of "
                  "anyone's may send nothing; write a name such as chart.png")
            for number, image in enumerate(message.images)
            if image.startswith(("/", "~")) or ".." in image.split("/")
        ]  # fmt: skip
        if message.role == "system" and at > 0:
            faults.append(Fault(f"messages[{at}].role", "is system, which may only come first; use user or assistant"))
        elif message.role == "system" and has_system:
            faults.append(Fault(f"messages[{at}].role", "is system, and the prompt has a system text; keep one"))
    if messages[-1].role != "user":
        faults.append(Fault(f"messages[{len(messages) - 1}].role", f"is {messages[-1].role}, but the last message "
                            "is the one to answer; end with role: user"))
    return faults
