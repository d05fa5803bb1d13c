"""A layout as a script of llama-cpp-python, of a form that it runs in without workbench."""

from collections.abc import Sequence

from workbench.domain.layout import Layout
from workbench.domain.split import Virtual

_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30}
"""ggml's numbers for the types of a KV cache."""
RPC_PREFIX = "rpc://"

HEAD = '''\
"""Chat with {name}: python THIS_FILE [PROMPT]. Needs llama-cpp-python{needs}."""

{imports}

{environment}
import llama_cpp
{cards}
llm = llama_cpp.Llama(
    model_path={model!r},
{arguments}
)
prompt = " ".join(sys.argv[1:]) or "Write one sentence on rivers."
messages = [{{"role": "user", "content": prompt}}]
for piece in llm.create_chat_completion(messages, stream=True, max_tokens={max_tokens}):
    print(piece["choices"][0]["delta"].get("content", ""), end="", flush=True)
print()
llm.close()
'''

DEVICES = '''
# The class takes no cards, so they are put where it takes its defaults from.
native = llama_cpp.llama_cpp
lib = native._lib
for function in (lib.ggml_backend_dev_by_name, lib.ggml_backend_reg_dev_get):
    function.restype = ctypes.c_void_p
{rpc}
handles = [{names}]
if None in handles:
    sys.exit("a card is missing; these were asked for: {shown}")
handles = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
defaults = native.llama_model_default_params


def with_cards():
    params = defaults()
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    return params


native.llama_model_default_params = with_cards
'''

RPC = '''\
lib.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
remote = []
for endpoint in {endpoints}:
    registry = lib.ggml_backend_rpc_add_server(endpoint.encode())
    if not registry:
        sys.exit(f"no RPC server answers at {{endpoint}}")
    lib.ggml_backend_register(ctypes.c_void_p(registry))
    remote.append(lib.ggml_backend_reg_dev_get(ctypes.c_void_p(registry), ctypes.c_size_t(0)))'''

VIRTUAL = '''

def card(port):
    """A virtual card: an RPC server on this machine, which ends with the one that started it."""
    lib = llama_cpp.llama_cpp._lib
    lib.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    cpu = ctypes.c_void_p(lib.ggml_backend_dev_by_type(0))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    os.dup2(2, 1)
    one = ctypes.c_size_t(1)
    lib.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), None, ctypes.c_size_t(THREADS), one,
                                      ctypes.byref(cpu))


def start():
    """Start a card; its endpoint once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--card", str(port)], stdin=subprocess.PIPE)
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return f"127.0.0.1:{port}", process
        except OSError:
            time.sleep(0.05)
    sys.exit("a virtual card did not start; is llama-cpp-python built with -DGGML_RPC=ON?")


if sys.argv[1:2] == ["--card"]:
    card(int(sys.argv[2]))
    sys.exit(1)
'''


def script(layout: Layout, model_path: str, cores: int) -> str:
    """The script. Where the layout names cards it sets them by llama.cpp's own functions."""
    cards = layout.split.cards
    virtual = len(cards.virtual) if isinstance(cards, Virtual) else 0
    named = () if cards is None or isinstance(cards, Virtual) or cards == ("CPU",) else cards
    imports = ["import os", "import sys", *(["import ctypes"] if virtual or named else [])]
    setup = ""
    if virtual:
        imports += ["import socket", "import subprocess", "import threading", "import time"]
        setup = VIRTUAL.replace("THREADS", str(max(1, cores // virtual)))
        setup += f"\ncards = [start() for _ in range({virtual})]"
    if virtual or named:
        setup += _devices(virtual, named)
    remote = virtual or any(card.startswith(RPC_PREFIX) for card in named)
    return HEAD.format(
        name=layout.name.replace("\\", "").replace('"', ""),
        needs=", built with -DGGML_RPC=ON" if remote else "",
        imports="\n".join(sorted(imports)),
        environment=_environment(layout, bool(virtual)),
        cards=setup,
        model=model_path,
        arguments="\n".join(f"    {name}={value}," for name, value in _arguments(layout)),
        max_tokens=256,
    )


def _devices(virtual: int, named: Sequence[str]) -> str:
    endpoints = [card.removeprefix(RPC_PREFIX) for card in named if card.startswith(RPC_PREFIX)]
    names, at = [], 0
    for card in named:
        if card.startswith(RPC_PREFIX):
            names.append(f"remote[{at}]")
            at += 1
        else:
            names.append(f'lib.ggml_backend_dev_by_name(b"{card}")')
    if virtual:
        names = [f"remote[{number}]" for number in range(virtual)]
    rpc = ""
    if virtual or endpoints:
        rpc = RPC.format(endpoints="[endpoint for endpoint, _ in cards]" if virtual else repr(endpoints))
    shown = ", ".join(named) or f"{virtual} virtual"
    return DEVICES.format(rpc=rpc, names=", ".join(names), shown=shown)


def _environment(layout: Layout, virtual: bool) -> str:
    lines = ['os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")']
    if virtual:
        lines.append('os.environ.setdefault("OMP_WAIT_POLICY", "passive")')
    for name, value in layout.env.items():
        lines.append(f"os.environ.pop({name!r}, None)" if value is None else f"os.environ[{name!r}] = {value!r}")
    return "\n".join(lines) + "\n"


def _arguments(layout: Layout) -> list[tuple[str, str]]:
    split, context = layout.split, layout.context
    on_cards = -1 if split.n_gpu_layers == "all" else split.n_gpu_layers
    if split.layers is not None and split.split_mode != "none":
        on_cards = sum(split.layers)
    if split.cards == ("CPU",):
        on_cards = 0
    mode = f"llama_cpp.LLAMA_SPLIT_MODE_{split.split_mode.upper()}"
    arguments = [("n_gpu_layers", str(on_cards)), ("split_mode", mode)]
    shares: Sequence[float] = split.layers or (() if isinstance(split.tensor_split, str) else split.tensor_split)
    if split.split_mode == "none":
        arguments.append(("main_gpu", str(split.main_gpu)))
    elif shares:
        arguments.append(("tensor_split", repr([float(share) for share in shares])))
    arguments += [
        ("n_ctx", str(context.n_ctx)),
        ("n_batch", str(context.n_batch)),
        ("n_ubatch", str(context.n_ubatch)),
        ("type_k", str(_TYPES[context.type_k])),
        ("type_v", str(_TYPES[context.type_v])),
        ("flash_attn", str(context.flash_attn is not False)),
    ]
    if context.n_threads != "auto":
        arguments += [("n_threads", str(context.n_threads)), ("n_threads_batch", str(context.n_threads))]
    return arguments
