#!/usr/bin/env python3
"""make_gguf - a GGUF file of a true shape with weights that mean nothing, for measuring other programs.

    make_gguf.py --shape 8b|1b|tiny --type q4_k_m|bf16 FILE

The matrices repeat one piece of random blocks whose scales are small finite numbers: time does not depend on
them.  The vocabulary has words without text ("no_vocab").  Only Python's standard library is needed.
"""
import argparse
import random
import struct

SHAPES = {  # hidden, layers, heads, kv heads, head dim, ffn, vocabulary, tied head
    "8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
    "1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "tiny": (256, 2, 4, 2, 64, 512, 512, False),
}
F32, BF16, Q4_K, Q6_K = 0, 30, 12, 14  # ggml's numbers
BLOCKS = {F32: (1, 4), BF16: (1, 2), Q4_K: (256, 144), Q6_K: (256, 210)}
FILE_TYPES = {"q4_k_m": 15, "bf16": 32}
ALIGN, PIECE_BLOCKS = 32, 4096


def half(value):
    return struct.pack("<e", value)


def piece(kind, generator):
    """Random blocks, one after the other."""
    if kind == F32:
        return struct.pack("<f", 1.0) * PIECE_BLOCKS  # norms
    if kind == BF16:
        return b"".join(struct.pack("<f", generator.gauss(0, 0.02))[2:] for _ in range(16 * PIECE_BLOCKS))
    blocks = []
    for _ in range(PIECE_BLOCKS):
        if kind == Q4_K:
            blocks.append(half(2e-4) + half(1e-3) + generator.randbytes(12 + 128))
        else:
            blocks.append(generator.randbytes(128 + 64 + 16) + half(1e-5))
    return b"".join(blocks)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def tensors(shape, kind):
    """(name, columns, rows, type); 1 row: a vector."""
    hidden, n_layers, heads, kv_heads, dim, ffn, vocab, tied = SHAPES[shape]
    main = {"q4_k_m": Q4_K, "bf16": BF16}[kind]
    better = Q6_K if kind == "q4_k_m" else main
    found = [("token_embd.weight", hidden, vocab, better if tied else main), ("output_norm.weight", hidden, 1, F32)]
    if not tied:
        found.append(("output.weight", hidden, vocab, better))
    for i in range(n_layers):
        # As the usual mix: the first and last eighth, and of the others every third.
        some = better if i < n_layers // 8 or i >= 7 * n_layers // 8 or (i - n_layers // 8) % 3 == 2 else main
        name = f"blk.{i}."
        found += [(name + "attn_norm.weight", hidden, 1, F32), (name + "attn_q.weight", hidden, heads * dim, main),
                  (name + "attn_k.weight", hidden, kv_heads * dim, main),
                  (name + "attn_v.weight", hidden, kv_heads * dim, some),
                  (name + "attn_output.weight", heads * dim, hidden, main), (name + "ffn_norm.weight", hidden, 1, F32),
                  (name + "ffn_gate.weight", hidden, ffn, main), (name + "ffn_up.weight", hidden, ffn, main),
                  (name + "ffn_down.weight", ffn, hidden, some)]
    return found


def n_bytes(tensor):
    _, columns, rows, kind = tensor
    per_block, block_bytes = BLOCKS[kind]
    assert columns % per_block == 0
    return columns // per_block * rows * block_bytes


def write(path, shape, kind):
    hidden, n_layers, heads, kv_heads, dim, ffn, vocab, _ = SHAPES[shape]
    generator = random.Random(1)
    pieces = {t: piece(t, generator) for t in BLOCKS}
    metadata = {"general.architecture": "llama", "general.name": f"made up, {shape}",
                "general.file_type": FILE_TYPES[kind], "general.alignment": ALIGN, "llama.block_count": n_layers,
                "llama.context_length": 131072, "llama.embedding_length": hidden,
                "llama.feed_forward_length": ffn, "llama.attention.head_count": heads,
                "llama.attention.head_count_kv": kv_heads, "llama.attention.key_length": dim,
                "llama.attention.value_length": dim, "llama.attention.layer_norm_rms_epsilon": 1e-5,
                "llama.rope.dimension_count": dim, "llama.rope.freq_base": 500000.0, "llama.vocab_size": vocab,
                "tokenizer.ggml.model": "no_vocab"}
    found = tensors(shape, kind)
    head = struct.pack("<IIQQ", 0x46554747, 3, len(found), len(metadata))
    head += b"".join(pair(key, value) for key, value in metadata.items())
    at = 0
    for tensor in found:
        name, columns, rows, t = tensor
        sizes = (columns,) if rows == 1 else (columns, rows)
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, t, at)
        at += -(-n_bytes(tensor) // ALIGN) * ALIGN
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % ALIGN))
        for tensor in found:
            data, left = pieces[tensor[3]], n_bytes(tensor)
            padding = -left % ALIGN
            while left > 0:
                left -= out.write(data[:left])
            out.write(bytes(padding))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--type", choices=FILE_TYPES, default="q4_k_m")
    parser.add_argument("file")
    options = parser.parse_args()
    write(options.file, options.shape, options.type)
