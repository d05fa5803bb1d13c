"""Tiny GGUFs for tests: a llama that recites, one of random weights, and files that are broken."""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

BYTES_FROM = 3
"""Token of byte 0; before it come <unk>, <s> and </s>."""
EOS = 2
WIDTH, HEADS, FEED_FORWARD = 320, 5, 64
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

Matrix = npt.NDArray[np.float32]


def write_reciter(
    path: Path, text: str | Sequence[str | bytes], *, after: str = ":", words: Sequence[str] = (), loop: bool = False,
    template: str | None = TEMPLATE,
) -> Path:
    """A model that says `text` after a prompt that ends with `after`, a byte a token, then ends (or begins anew).

    No token may come twice. `text` may be given as pieces, of which those in `words` are one
    token each. The model looks at the last token alone, so any split of it says the same.
    """
    tokens = [token for piece in ([text] if isinstance(text, str) else text) for token in _tokens(piece, words)]
    path_of = [BYTES_FROM + ord(after), *tokens]
    if len(set(path_of)) != len(path_of):
        raise ValueError("a token comes twice")
    follows = np.zeros((_n_vocab(words), WIDTH), np.float32)
    for token, following in zip(path_of, [*tokens, tokens[0] if loop else EOS], strict=True):
        follows[following, token] = 1.0
    embedding = np.eye(_n_vocab(words), WIDTH, dtype=np.float32)
    return write_model(path, words=words, embedding=embedding, output=follows, template=template)


def write_model(
    path: Path,
    *,
    arch: str = "llama",
    n_layer: int = 7,
    template: str | None = TEMPLATE,
    words: Sequence[str] = (),
    embedding: Matrix | None = None,
    output: Matrix | None = None,
    seed: int | None = None,
    n_ctx_train: int = 4096,
    tensors_a_part: int = 0,
) -> Path:
    """A llama-shaped model with byte tokens. Returns its file, or the first of its parts.

    Layers do nothing unless `seed` makes them random. `tensors_a_part` splits the file.
    """
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Matrix:
        if seed is None:
            return np.zeros((rows, columns), np.float32)
        return (random.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_a_part)
    writer.add_name(path.stem)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    names = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256)), *(word.encode() for word in words)]
    writer.add_token_list(names)
    writer.add_token_scores([0.0] * len(names))
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_add_space_prefix(False)
    if template is not None:
        writer.add_chat_template(template)
    n_vocab = _n_vocab(words)
    writer.add_tensor("token_embd.weight", matrix(n_vocab, WIDTH) if embedding is None else embedding)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output.weight", matrix(n_vocab, WIDTH) if output is None else output)
    for i in range(n_layer):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{i}.{name}.weight", matrix(WIDTH, WIDTH))
        writer.add_tensor(f"blk.{i}.ffn_gate.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"blk.{i}.ffn_up.weight", matrix(FEED_FORWARD, WIDTH))
        writer.add_tensor(f"blk.{i}.ffn_down.weight", matrix(WIDTH, FEED_FORWARD))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if not tensors_a_part else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def _n_vocab(words: Sequence[str]) -> int:
    return BYTES_FROM + 256 + len(words)


def _tokens(piece: str | bytes, words: Sequence[str]) -> list[int]:
    if isinstance(piece, str) and piece in words:
        return [BYTES_FROM + 256 + words.index(piece)]
    return [BYTES_FROM + byte for byte in (piece.encode() if isinstance(piece, str) else piece)]
