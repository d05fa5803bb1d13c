"""A GGUF of random Q4_0 weights in the shape of a small Llama 3: grouped heads, a large vocabulary, 33 MB."""

from pathlib import Path

import gguf
import numpy as np

N_LAYER, WIDTH, FEED_FORWARD, HEADS, KV_HEADS, VOCABULARY = 8, 512, 1536, 8, 4, 32000


def write_random(path: Path) -> Path:
    """Write it and return its path."""
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(32768)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"w{i}" for i in range(VOCABULARY - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    kinds = {"<unk>": gguf.TokenType.UNKNOWN, "<s>": gguf.TokenType.CONTROL, "</s>": gguf.TokenType.CONTROL}
    writer.add_token_types(
        [kinds.get(token, gguf.TokenType.BYTE if token[0] == "<" else gguf.TokenType.NORMAL) for token in tokens]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name: str, rows: int, columns: int) -> None:
        weights = random.standard_normal((rows, columns), np.float32) * 0.02
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    ones = np.ones(WIDTH, np.float32)
    add("token_embd.weight", VOCABULARY, WIDTH)
    add("output.weight", VOCABULARY, WIDTH)
    writer.add_tensor("output_norm.weight", ones)
    kv_width = WIDTH // HEADS * KV_HEADS
    for layer in range(N_LAYER):
        block = f"blk.{layer}."
        writer.add_tensor(block + "attn_norm.weight", ones)
        writer.add_tensor(block + "ffn_norm.weight", ones)
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", kv_width, WIDTH),
            ("attn_v", kv_width, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FEED_FORWARD, WIDTH),
            ("ffn_up", FEED_FORWARD, WIDTH),
            ("ffn_down", WIDTH, FEED_FORWARD),
        ):
            add(f"{block}{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
