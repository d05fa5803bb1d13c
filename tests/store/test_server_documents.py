"""Layouts of servers: what is right reads and is saved again; what is wrong names line, key, and what would do it."""

from pathlib import Path

import pytest

from workbench.domain.layout import OLLAMA_URL, Context, Layout, Timeouts
from workbench.domain.servers import url_fault
from workbench.domain.split import Split
from workbench.store.documents import DocumentError, check_document, read_layout
from workbench.store.writing import save_layout

OLLAMA = "name: a\nengine: ollama\nmodel: llama3.3:70b\n"
OPENAI = "name: a\nengine: openai\nmodel: llama\nurl: http://127.0.0.1:8080/v1\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "layout.yaml"
    path.write_text(text)
    return path


def test_all_that_ollama_can_be_asked(tmp_path: Path) -> None:
    layout = read_layout(write(tmp_path, OLLAMA + """\
url: http://gpu-box:11434
keep_alive: 10m
options: {repeat_penalty: 1.1, think: low, stop: [END, "###"], use_mmap: false}
timeouts: {connect_s: 2, first_token_s: 1200}
split: {split_mode: none, main_gpu: 1, n_gpu_layers: 60}
context: {n_ctx: 8192, n_batch: 512, n_threads: 8}
"""))
    assert layout == Layout(
        name="a", engine="ollama", model="llama3.3:70b", url="http://gpu-box:11434", keep_alive="10m",
        options={"repeat_penalty": 1.1, "think": "low", "stop": ["END", "###"], "use_mmap": False},
        timeouts=Timeouts(connect_s=2.0, first_token_s=1200.0),
        split=Split(split_mode="none", main_gpu=1, n_gpu_layers=60),
        context=Context(n_ctx=8192, n_batch=512, n_threads=8),
    )  # fmt: skip
    assert layout.label() == "ollama, none on card 1, 60 on cards"


def test_the_least_of_each(tmp_path: Path) -> None:
    ollama = read_layout(write(tmp_path, OLLAMA))
    assert (ollama.served_by, ollama.label(), ollama.n_ctx_asked) == (OLLAMA_URL, "ollama", 4096)
    openai = read_layout(write(tmp_path, OPENAI + "api_key_env: MY_KEY\noptions: {reasoning_effort: low}\n"))
    assert (openai.served_by, openai.label(), openai.n_ctx_asked) == ("http://127.0.0.1:8080/v1", "openai", 0)


@pytest.mark.parametrize("text", [OLLAMA, OPENAI + "api_key_env: K\noptions: {a: {b: [1, x]}}\n", OLLAMA + """\
keep_alive: -1
split: {n_gpu_layers: 3}
context: {n_ctx: 0}
timeouts: {silence_s: 7.5}
"""])  # fmt: skip
def test_what_is_saved_reads_the_same(tmp_path: Path, text: str) -> None:
    layout = read_layout(write(tmp_path, text))
    assert read_layout(save_layout(layout, tmp_path / "again.yaml")) == layout


WRONG: list[tuple[str, int, str, list[str]]] = [
    # the address
    ("name: a\nengine: openai\nmodel: m\n", 1, "url", ["is missing", "http://127.0.0.1:8080/v1"]),
    (OLLAMA + "url: ftp://host/\n", 4, "url", ["begins with ftp:", "only http and https"]),
    (OLLAMA + "url: localhost:11434\n", 4, "url", ["only http and https"]),
    (OLLAMA + "url: file:///etc/passwd\n", 4, "url", ["only http and https"]),
    (OLLAMA + "url: 'http://'\n", 4, "url", ["names no host"]),
    (OLLAMA + "url: 'http://h:99999'\n", 4, "url", ["is no address"]),
    (OLLAMA + "url: 'http://h/?key=1'\n", 4, "url", ["has a ? or # part"]),
    (OLLAMA + "url: 'http://h /'\n", 4, "url", ["space"]),
    (OLLAMA + "url: http://xn--zzzzzzz--.invalid/\n", 4, "url", ["names a host that cannot be (A-label must not end"]),
    (OLLAMA + "url: http://b☃☃☃.invalid/\n", 4, "url", ["names a host that cannot be"]),
    # the key
    (OLLAMA + "api_key: sk-secret\n", 4, "api_key", ["did you mean `api_key_env`?"]),
    (OLLAMA + "api_key_env: sk-secret-0123\n", 4, "api_key_env", ["never the key", "OPENAI_API_KEY"]),
    (OPENAI + "options: {api_key: sk-secret}\n", 5, "options.api_key", ["never stands in a file"]),
    (OLLAMA + "url: 'http://me:sk-secret@h/'\n", 4, "url", ["a name or a password"]),
    # time
    (OLLAMA + "timeouts: {connect_s: 0}\n", 4, "timeouts.connect_s", ["0 cannot be", "more than 0"]),
    (OLLAMA + "timeouts: {conect_s: 1}\n", 4, "timeouts.conect_s", ["did you mean `connect_s`?"]),
    (OLLAMA + "timeouts: {silence_s: soon}\n", 4, "timeouts.silence_s", ["a number of seconds"]),
    (OLLAMA + "keep_alive: long\n", 4, "keep_alive", ["`long` is no time", "10m"]),
    (OPENAI + "keep_alive: 10m\n", 5, "keep_alive", ["Ollama only"]),
    # options
    (OLLAMA + "options: {num_ctx: 8192}\n", 4, "options.num_ctx", ["context: {n_ctx: …}"]),
    (OLLAMA + "options: {num_gpu: 60}\n", 4, "options.num_gpu", ["split: {n_gpu_layers: …}"]),
    (OLLAMA + "options: {main_gpu: 0}\n", 4, "options.main_gpu", ["split_mode: none", "pins"]),
    (OLLAMA + "options: {temperature: 0}\n", 4, "options.temperature", ["--temperature"]),
    (OLLAMA + "options: {tensor_split: [3, 1]}\n", 4, "options.tensor_split", ["LLAMA_ARG_TENSOR_SPLIT"]),
    (OLLAMA + "options: {repeat_penaltee: 1}\n", 4, "options.repeat_penaltee",
     ["would ignore it without a word", "did you mean `repeat_penalty`?"]),
    (OLLAMA + "options: {use_mmap: 1}\n", 4, "options.use_mmap", ["true or false"]),
    (OLLAMA + "options: {repeat_penalty: x}\n", 4, "options.repeat_penalty", ["a number"]),
    (OLLAMA + "options: {num_keep: true}\n", 4, "options.num_keep", ["a whole number"]),
    (OLLAMA + "options: {think: much}\n", 4, "options.think", ["low, medium or high"]),
    (OLLAMA + "options: {stop: [1]}\n", 4, "options.stop", ["a list of texts"]),
    (OLLAMA + "options: [a]\n", 4, "options", ["a mapping"]),
    (OPENAI + "options: {max_tokens: 5}\n", 5, "options.max_tokens", ["--max-tokens"]),
    (OPENAI + "options: {stream: false}\n", 5, "options.stream", ["is set by workbench"]),
    # splits that a request cannot ask for, with the one line of server environment that does it
    (OLLAMA + "split: {tensor_split: [3, 1]}\n", 4, "split.tensor_split",
     ["`LLAMA_ARG_TENSOR_SPLIT=3,1 ollama serve`"]),
    (OLLAMA + "split: {layers: [61, 20]}\n", 4, "split.layers",
     ["`LLAMA_ARG_TENSOR_SPLIT=61,20 ollama serve`", "n_gpu_layers: 81"]),
    (OLLAMA + "split: {split_mode: tensor}\n", 4, "split.split_mode", ["`LLAMA_ARG_SPLIT_MODE=tensor ollama serve`"]),
    (OLLAMA + "split: {cards: [CUDA0, CUDA2]}\n", 4, "split.cards", ["`CUDA_VISIBLE_DEVICES=0,2 ollama serve`"]),
    (OLLAMA + "split: {cards: {virtual: [600MiB]}}\n", 4, "split.cards.virtual", ["no virtual cards"]),
    (OLLAMA + "split: {main_gpu: 1}\n", 4, "split.main_gpu", ["write split_mode: none"]),
    (OPENAI + "split: {n_gpu_layers: 3}\n", 5, "split.n_gpu_layers", ["where it is started", "--as llama-server"]),
    (OPENAI + "split: {tensor_split: [3, 1]}\n", 5, "split.tensor_split", ["where it is started"]),
    # contexts
    (OLLAMA + "context: {type_k: q8_0}\n", 4, "context.type_k", ["`OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve`"]),
    (OLLAMA + "context: {flash_attn: true}\n", 4, "context.flash_attn", ["`OLLAMA_FLASH_ATTENTION=1 ollama serve`"]),
    (OLLAMA + "context: {n_ubatch: 1024}\n", 4, "context.n_ubatch", ["`LLAMA_ARG_UBATCH=1024 ollama serve`"]),
    (OPENAI + "context: {n_ctx: 8192}\n", 5, "context.n_ctx", ["where the server is started"]),
    # environment, and keys of servers in a layout of ours
    (OLLAMA + "env: {NCCL_DEBUG: INFO}\n", 4, "env.NCCL_DEBUG", ["start the server with NCCL_DEBUG=INFO"]),
    ("name: a\nmodel: m.gguf\nurl: http://h\n", 3, "url", ["for the engines ollama and openai"]),
    ("name: a\nmodel: m.gguf\noptions: {num_keep: 1}\n", 3, "options", ["for the engines ollama and openai"]),
]


@pytest.mark.parametrize(("text", "line", "key", "says"), WRONG)
def test_what_is_wrong(tmp_path: Path, text: str, line: int, key: str, says: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DocumentError) as caught:
        read_layout(path)
    assert str(caught.value).startswith(f"{path}:{line}: {key}: ")
    for part in says:
        assert part in caught.value.message
    assert "sk-secret" not in str(check_document(path))


@pytest.mark.parametrize(
    "url",
    ["http://h", "https://h:443/v1", "http://[::1]:11434", "HTTP://h", "http://h/a/b", "http://bücher.example",
     "http://xn--bcher-kva.example"],
)  # fmt: skip
def test_addresses_that_are_right(url: str) -> None:
    assert url_fault(url) is None
