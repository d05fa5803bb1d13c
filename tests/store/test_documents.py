"""Documents: what is right reads; what is wrong names file, line and key, and what would be right."""

from pathlib import Path

import msgspec
import pytest

from workbench.domain.conversation import Message, Sampling
from workbench.domain.layout import Context, Layout
from workbench.domain.prompts import Prompt, PromptSet, Synthetic
from workbench.domain.split import Split, Virtual
from workbench.store.documents import (
    MAX_YAML_BYTES,
    DocumentError,
    check_document,
    locate,
    read_layout,
    read_prompt_set,
)
from workbench.store.fit import RIGHT

HEAD = "name: a\nmodel: m.gguf\n"


def write(folder: Path, text: str | bytes, name: str = "doc.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_layout_of_the_design_reads(tmp_path: Path) -> None:
    path = write(tmp_path, """\
# a comment
name: two-cards-3-1
engine: llama.cpp            # llama.cpp | ollama | openai
model: ~/models/llama.gguf
split:
  split_mode: layer
  tensor_split: [3, 1]
  main_gpu: 0
  n_gpu_layers: all
  cards: [CUDA0, CUDA1]
context: {n_ctx: 8192, n_batch: 2048, n_ubatch: 512, n_threads: auto, type_k: f16, type_v: q8_0, flash_attn: auto}
env: {GGML_CUDA_P2P: "1", CUDA_VISIBLE_DEVICES: null}
""")
    assert read_layout(path) == Layout(
        name="two-cards-3-1",
        model="~/models/llama.gguf",
        split=Split(tensor_split=(3.0, 1.0), cards=("CUDA0", "CUDA1")),
        context=Context(n_ctx=8192, type_v="q8_0"),
        env={"GGML_CUDA_P2P": "1", "CUDA_VISIBLE_DEVICES": None},
    )


def test_virtual_cards_and_layer_counts_read(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "split: {layers: [20, 11], cards: {virtual: [600MiB, 1.5 GiB]}}\n")
    assert read_layout(path).split == Split(layers=(20, 11), cards=Virtual(("600MiB", "1.5 GiB")))


def test_a_prompt_set_reads(tmp_path: Path) -> None:
    path = write(tmp_path, """\
name: short
defaults: {max_tokens: 128, temperature: 0, seed: 1}
prompts:
  - {id: rivers, text: Write three sentences on rivers., max_tokens: 9, repeat: 2, depth: 512}
  - {id: no, system: You are terse., messages: [{role: user, content: Hello}]}
  - {id: fixed, synthetic: {prompt_tokens: 2048, max_tokens: 64}}
  - {id: as-long, synthetic: {prompt_tokens: 2048}}
""")
    prompts = read_prompt_set(path)
    assert prompts.defaults == Sampling(max_tokens=128, temperature=0, seed=1)
    rivers, short, fixed, as_long = prompts.prompts
    assert (rivers.repeat, rivers.depth) == (2, 512)
    assert rivers.sampling(prompts.defaults).max_tokens == 9
    assert short.id == "no"
    assert short.conversation() == (Message("system", "You are terse."), Message("user", "Hello"))
    assert fixed.synthetic == Synthetic(prompt_tokens=2048, max_tokens=64)
    assert fixed.sampling(prompts.defaults).ignore_eos
    assert (as_long.sampling(prompts.defaults).max_tokens, as_long.sampling(prompts.defaults).ignore_eos) == (128, True)


def test_json_lines_read(tmp_path: Path) -> None:
    path = write(tmp_path, """\
{"prompt": "Hello", "temperature": 0}

{"id": "two", "messages": [{"role": "user", "content": "Hi"}]}
""", "mine.jsonl")
    assert read_prompt_set(path) == PromptSet(
        name="mine",
        prompts=(
            Prompt(id="line-1", text="Hello", temperature=0),
            Prompt(id="two", messages=(Message("user", "Hi"),)),
        ),
    )


@pytest.mark.parametrize(("line", "value"), [("on", True), ("Off", False), ("yes", True), ("true", True),
                                             ("auto", "auto")])
def test_a_switch_may_be_written_as_on_and_off(tmp_path: Path, line: str, value: object) -> None:
    assert read_layout(write(tmp_path, HEAD + f"context: {{flash_attn: {line}}}")).context.flash_attn == value


def test_words_that_older_yaml_turns_into_something_else_stay_words(tmp_path: Path) -> None:
    text = "name: no\nmodel: 2026-01-01\nsplit: {split_mode: none, cards: [0000:41:00.0, 0000:42:00.0]}"
    path = write(tmp_path, text)
    layout = read_layout(path)
    assert (layout.name, layout.model) == ("no", "2026-01-01")
    assert layout.split.cards == ("0000:41:00.0", "0000:42:00.0")


FAULTS = [
    # what is wrong, line, key, words of the message
    ("", 1, None, ["is empty", "name:"]),
    ("- 1\n", 1, None, ["a list", "key: value"]),
    ("just text", 1, None, ["`just text`", "key: value"]),
    ("name: [a\n", 2, None, ["not valid YAML"]),
    ("name: a\n\tmodel: b\n", 2, None, ["a tab", "spaces"]),
    ("name: a: b\n", 1, None, ["not valid YAML", "quotes"]),
    ("name: 'a\n\n\n", 4, None, ["begun on line 1", "close the quote"]),
    ("name: a\n---\nname: b\n", 2, None, ["second document"]),
    ("name: a\x07\n", 1, None, ["not printable"]),
    (b"name: a\nmodel: \xff\n", 2, None, ["UTF-8", "0xff"]),
    ("name: a\nmodel: b\nname: c\n", 3, "name", ["twice", "line 1"]),
    ("x: &a [1]\ny: *a\n", 2, "y", ["alias", "write the value out"]),
    ("name: !!python/name:os.system x\n", 1, "name", ["tag", "plain value"]),
    ("? [a]\n: b\n", 1, None, ["a key is a list"]),
    ("[" * 30 + "]" * 30, 1, None, ["nested"]),
    ("name: a\n", 1, "model", ["is missing", "demo:smollm2"]),
    (HEAD + "splits: {}\n", 3, "splits", ["no key", "did you mean `split`?"]),
    (HEAD + "split:\n  tensor_splt: [1]\n", 4, "split.tensor_splt", ["no key of `split`", "`tensor_split`"]),
    (HEAD + "colour: red\n", 3, "colour", ["the keys here are name, engine, model"]),
    (HEAD + "mode: no\n", 3, "mode", ["no key"]),
    (HEAD + "split: {split_mode: no}\n", 3, "split.split_mode", ["none, layer, tensor or row"]),
    (HEAD + "split: {split_mode: layers}\n", 3, "split.split_mode", ["did you mean `layer`?"]),
    (HEAD + "split:\n", 3, "split", ["has no value", "a mapping"]),
    (HEAD + "split: [1]\n", 3, "split", ["a list does not fit", "a mapping"]),
    (HEAD + "engine: lama.cpp\n", 3, "engine", ["did you mean `llama.cpp`?"]),
    ("name: 12\nmodel: m\n", 1, "name", ["`12` is not text", 'quotes: "12"']),
    (HEAD + "split: {tensor_split: 3:1}\n", 3, "split.tensor_split", ["`3:1`", "[3, 1]"]),
    (HEAD + "split:\n  tensor_split: [3,\n    x]\n", 5, "split.tensor_split[1]", ["`x`", "[3, 1]"]),
    (HEAD + "split: {tensor_split: []}\n", 3, "split.tensor_split", ["is empty"]),
    (HEAD + "split: {tensor_split: [-1, 1]}\n", 3, "split.tensor_split[0]", ["-1", "from 0"]),
    (HEAD + "split: {tensor_split: [1, .nan]}\n", 3, "split.tensor_split[1]", ["nan"]),
    (HEAD + "split: {tensor_split: [1, .inf]}\n", 3, "split.tensor_split[1]", ["inf"]),
    (HEAD + "split: {tensor_split: [1e39]}\n", 3, "split.tensor_split[0]", ["1e+39"]),
    (HEAD + "split: {tensor_split: [0, 0.0]}\n", 3, "split.tensor_split", ["nothing to any card", "larger than 0"]),
    (HEAD + "split: {tensor_split: [1, 2, 3], cards: [CUDA0, CUDA1]}\n", 3, "split.tensor_split",
     ["3 shares", "2 cards", "at most 2"]),
    (HEAD + "split: {layers: [1, 2, 3], cards: {virtual: [1GiB]}}\n", 3, "split.layers", ["3 counts", "one card"]),
    (HEAD + "split: {layers: [1.5, 2]}\n", 3, "split.layers[0]", ["`1.5`", "whole layer counts"]),
    (HEAD + "split: {layers: [0, 0]}\n", 3, "split.layers", ["no layer on any card"]),
    (HEAD + "split: {layers: [-1, 4]}\n", 3, "split.layers[0]", ["-1"]),
    (HEAD + "split:\n  layers: [1, 2]\n  tensor_split: [1, 2]\n", 4, "split.layers", ["tensor_split", "keep one"]),
    (HEAD + "split:\n  layers: [1, 2]\n  n_gpu_layers: 5\n", 5, "split.n_gpu_layers", ["contradicts", "add up to 3"]),
    (HEAD + "split: {n_gpu_layers: -1}\n", 3, "split.n_gpu_layers", ["all"]),
    (HEAD + "split: {n_gpu_layers: true}\n", 3, "split.n_gpu_layers", ["`true`", "all, or a count"]),
    (HEAD + "split: {main_gpu: 2, cards: [CUDA0, CUDA1]}\n", 3, "split.main_gpu", ["out of range", "0 to 1"]),
    (HEAD + "split: {main_gpu: -1}\n", 3, "split.main_gpu", ["from 0"]),
    (HEAD + "split: {cards: []}\n", 3, "split.cards", ["is empty", "[CUDA0, CUDA1]"]),
    (HEAD + "split: {cards: [CUDA0, cuda0]}\n", 3, "split.cards[1]", ["same card"]),
    (HEAD + "split: {cards: ['00000000:C1:00.0', '0000:c1:00.0']}\n", 3, "split.cards[1]", ["same card"]),
    (HEAD + "split: {cards: [0, 1]}\n", 3, "split.cards[0]", ["`0`", "[CUDA0, CUDA1]"]),
    (HEAD + "split: {cards: ['']}\n", 3, "split.cards[0]", ["is empty"]),
    (HEAD + "split: {cards: ['rpc://host']}\n", 3, "split.cards[0]", ["rpc://host:port"]),
    (HEAD + "split: {cards: ['rpc://host:70000']}\n", 3, "split.cards[0]", ["rpc://host:port"]),
    (HEAD + "split: {cards: {virtual: []}}\n", 3, "split.cards.virtual", ["is empty", "600MiB"]),
    (HEAD + "split: {cards: {virtual: [600]}}\n", 3, "split.cards.virtual[0]", ["`600`", "600MiB"]),
    (HEAD + "split: {cards: {virtual: [lots]}}\n", 3, "split.cards.virtual[0]", ["`lots`", "600MiB"]),
    (HEAD + "split: {cards: {virtual: [0MiB]}}\n", 3, "split.cards.virtual[0]", ["0MiB"]),
    (HEAD + "split: {cards: {virtual: [999999999999GiB]}}\n", 3, "split.cards.virtual[0]", ["any machine"]),
    (HEAD + f"split: {{cards: [{', '.join(f'CUDA{i}' for i in range(17))}]}}\n", 3, "split.cards", ["17", "16"]),
    (HEAD + "context: {n_ctx: -1}\n", 3, "context.n_ctx", ["-1", "tokens"]),
    (HEAD + "context: {n_ctx: 99999999999999999999999}\n", 3, "context.n_ctx", ["8192"]),
    (HEAD + "context: {n_ctx: 4294967296}\n", 3, "context.n_ctx", ["4294967296"]),
    (HEAD + "context: {n_batch: 0}\n", 3, "context.n_batch", ["from 1"]),
    (HEAD + "context: {n_ubatch: 0}\n", 3, "context.n_ubatch", ["from 1"]),
    (HEAD + "context: {n_threads: 0}\n", 3, "context.n_threads", ["auto"]),
    (HEAD + "context: {type_k: f17}\n", 3, "context.type_k", ["f16"]),
    (HEAD + "context: {type_v: q8_0, flash_attn: off}\n", 3, "context.type_v", ["flash_attn: auto"]),
    (HEAD + "split: {split_mode: tensor}\ncontext: {flash_attn: no}\n", 4, "context.flash_attn", ["tensor"]),
    (HEAD + "env: {LD_PRELOAD: /x.so}\n", 3, "env.LD_PRELOAD", ["not one of the engine's variables"]),
    (HEAD + "env: {GGML_BACKEND_PATH: /x.so}\n", 3, "env.GGML_BACKEND_PATH", ["not one"]),
    (HEAD + "env: {NCCL_NET_PLUGIN: x}\n", 3, "env.NCCL_NET_PLUGIN", ["not one"]),
    (HEAD + "env: {PYTHONPATH: x}\n", 3, "env.PYTHONPATH", ["not one"]),
    (HEAD + "env: {GGML_CUDA_P2: x}\n", 3, "env.GGML_CUDA_P2", ["did you mean `GGML_CUDA_P2P`?"]),
    (HEAD + "env: {NCCL_DEBUG: 1}\n", 3, "env.NCCL_DEBUG", ["not text", 'quotes: "1"']),
    (HEAD + "env: {NCCL_DEBUG: [a]}\n", 3, "env.NCCL_DEBUG", ["a list"]),
    (HEAD + "env: {GGML_CUDA_P2P: 0}\n", 3, "env.GGML_CUDA_P2P", ["by presence", "null"]),
    *((HEAD + f"env: {{GGML_CUDA_NO_PINNED: {off}}}\n", 3, "env.GGML_CUDA_NO_PINNED", ["by presence", "null"])
      for off in ('"0"', "false", "'False'", "no", "off", "''")),
]


@pytest.mark.parametrize(("text", "line", "key", "words"), FAULTS)
def test_a_faulty_layout_is_refused_in_one_clear_line(
    tmp_path: Path, text: str | bytes, line: int, key: str | None, words: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        read_layout(path)
    error = caught.value
    assert (error.line, error.key) == (line, key), str(error)
    assert str(error).startswith(f"{path}:{line}: " + (f"{key}: " if key else ""))
    assert "\n" not in str(error)
    for word in words:
        assert word in error.message


SET = "name: s\nprompts:\n"


@pytest.mark.parametrize(("text", "line", "key", "words"), [
    ("name: s\nprompts: []\n", 2, "prompts", ["is empty"]),
    ("name: s\n", 1, "prompts", ["is missing"]),
    (SET + "- {id: a, text: x}\n- {id: a, text: y}\n", 4, "prompts[1].id", ["`a`", "prompt 1"]),
    (SET + "- {id: a, text: Which of 21, 23 and 25?}\n", 3, "prompts[0].23 and 25?", ["comma", "in quotes"]),
    (SET + "- Hello\n", 3, "prompts[0]", ["`Hello`", "a mapping with the keys id, text"]),
    (SET + "- {id: a, messages: [Hello]}\n", 3, "prompts[0].messages[0]", ["a mapping with the keys role, content"]),
    (SET + "- {id: a}\n", 3, "prompts[0]", ["text, messages or synthetic"]),
    (SET + "- {text: a}\n", 3, "prompts[0].id", ["is missing"]),
    (SET + "- {id: a, text: x, messages: []}\n", 3, "prompts[0].messages", ["beside text"]),
    (SET + "- {id: a, text: ' '}\n", 3, "prompts[0].text", ["is empty"]),
    (SET + "- {id: a, messages: [{role: bot, content: x}]}\n", 3, "prompts[0].messages[0].role",
     ["system, user or assistant"]),
    (SET + "- {id: a, messages: [{role: assistant, content: x}]}\n", 3, "prompts[0].messages[0].role",
     ["end with role: user"]),
    (SET + "- {id: a, messages: [{role: user}]}\n", 3, "prompts[0].messages[0].content", ["is missing"]),
    (SET + "- {id: a, text: x, top_p: 2}\n", 3, "prompts[0].top_p", ["0 to 1"]),
    (SET + "- {id: a, text: x, temperature: .nan}\n", 3, "prompts[0].temperature", ["nan"]),
    (SET + "- {id: a, text: x, repeat: 0}\n", 3, "prompts[0].repeat", ["1 to 10000"]),
    (SET + "- {id: a, text: x, depth: -1}\n", 3, "prompts[0].depth", ["from 0"]),
    (SET + "- {id: a, synthetic: {prompt_tokens: 0, max_tokens: 1}}\n", 3, "prompts[0].synthetic.prompt_tokens",
     ["from 1"]),
    (SET + "- {id: a, synthetic: {prompt_tokens: 5, max_tokens: 1}, max_tokens: 3}\n", 3, "prompts[0].max_tokens",
     ["synthetic.max_tokens"]),
    ("name: s\ndefaults: {max_token: 3}\nprompts: [{id: a, text: x}]\n", 2, "defaults.max_token", ["`max_tokens`"]),
    ("name: s\ndefaults: {seed: -3}\nprompts: [{id: a, text: x}]\n", 2, "defaults.seed", ["-3"]),
])
def test_a_faulty_prompt_set_is_refused(tmp_path: Path, text: str, line: int, key: str, words: list[str]) -> None:
    with pytest.raises(DocumentError) as caught:
        read_prompt_set(write(tmp_path, text))
    assert (caught.value.line, caught.value.key) == (line, key), str(caught.value)
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(("text", "line", "key", "words"), [
    ('{"prompt": "a"}\n{"prompt": \n', 2, None, ["not valid JSON", "one object a line"]),
    ('\n\n{"promt": "a"}\n', 3, "prompts[0].promt", ["is no key", "did you mean `prompt`?"]),
    ('{"seed": 1}\n', 1, "prompts[0]", ["nothing to ask", "prompt"]),
    ('{"prompt": "a", "sed": 1}\n', 1, "prompts[0].sed", ["did you mean `seed`?"]),
    ('{"prompt": "a", "prompt": "b"}\n', 1, "prompts[0]", ["`prompt` is given twice"]),
    ('{"prompt": "a"}\n[1]\n', 2, "prompts[1]", ["a list"]),
    ('{"prompt": "a", "text": "b"}\n', 1, "prompts[0].text", ["beside prompt"]),
    ('{"prompt": 3}\n', 1, "prompts[0].prompt", ["not text"]),
    ('{"prompt": "\\ud800"}\n', 1, "prompts[0].text", ["surrogate"]),
    ('{"prompt": ' + "[" * 100_000 + "\n", 1, None, ["not valid JSON"]),
    ('{"prompt": "a", "seed": ' + "9" * 5000 + "}\n", 1, None, ["not valid JSON"]),
    ("", 1, "prompts", ["is empty"]),
])
def test_a_faulty_line_of_json_is_refused(
    tmp_path: Path, text: str, line: int, key: str | None, words: list[str]
) -> None:
    with pytest.raises(DocumentError) as caught:
        read_prompt_set(write(tmp_path, text, "p.jsonl"))
    assert caught.value.line == line, str(caught.value)
    assert key is None or caught.value.key == key
    for word in words:
        assert word in caught.value.message


def test_files_that_are_no_documents(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="is a folder"):
        read_layout(tmp_path)
    with pytest.raises(DocumentError, match="does not exist"):
        read_layout(tmp_path / "none.yaml")
    with pytest.raises(DocumentError, match="larger than 1 MiB"):
        read_layout(write(tmp_path, "#" * (MAX_YAML_BYTES + 1)))
    with pytest.raises(DocumentError, match="no plain file"):
        read_layout("/dev/null")
    with pytest.raises(DocumentError, match="cannot be read"):
        read_layout(tmp_path / "a\0b")


def test_an_alias_bomb_is_refused_at_its_first_alias(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 60)]
    with pytest.raises(DocumentError) as caught:
        read_layout(write(tmp_path, "\n".join(rows)))
    assert caught.value.line == 2


def test_check_document_lists_every_fault(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "splot: 1\ncontext:\n  n_ctx: many\n  type_k: f1\n")
    assert [(error.line, error.key) for error in check_document(path)] == [
        (3, "splot"), (5, "context.n_ctx"), (6, "context.type_k")]
    path = write(tmp_path, SET + "- {id: a, text: '', depth: -1}\n")
    assert [error.key for error in check_document(path)] == ["prompts[0].text", "prompts[0].depth"]
    assert check_document(write(tmp_path, HEAD)) == []
    assert len(check_document(tmp_path / "none.yaml")) == 1


def test_cards_of_the_machine_bound_what_a_layout_without_cards_may_ask(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "split: {tensor_split: [1, 1], main_gpu: 1}\n")
    assert read_layout(path).split.main_gpu == 1
    with pytest.raises(DocumentError, match="there is one card"):
        read_layout(path, n_cards=1)


def test_a_key_is_located_for_an_error_that_arises_later(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "split:\n  split_mode: layer\n  layers:\n  - 20\n  - 11\n")
    assert locate(path, "split.layers") == 5
    assert locate(path, "split.layers[1]") == 7
    assert locate(path, "split.cards") == 3
    assert locate(path, "context.n_ctx") == 1
    assert locate(tmp_path / "none.yaml", "split") is None
    error = DocumentError.at(path, "split.layers", "the model has 31 positions; write counts that add up to 31")
    assert str(error) == f"{path}:5: split.layers: the model has 31 positions; write counts that add up to 31"


def test_every_key_of_every_document_says_what_is_right() -> None:
    for kind, keys in RIGHT.items():
        assert set(keys) == {field.name for field in msgspec.structs.fields(kind)}, kind
