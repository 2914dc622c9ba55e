#!/usr/bin/env python3
"""Hugging Face directory with a small llama -> one F32 GGUF file.

    make_tiny.py SRC_DIR OUT.gguf

SRC_DIR holds config.json and model.safetensors.  It is for comparing logits with a reference, so
everything stays F32 and the tokens are dummies: 256 bytes, one merge, then fillers.  Needs numpy
and gguf.

A checkpoint keeps the two halves of a rotary pair half a head apart; llama files have them side by
side, so the rows of q and k are put in that order (weights and biases alike).
"""

import json
import math
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

LAYER_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_PARTS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read_safetensors(path):
    """{name: float32 array}.  The file: u64 length, JSON header, data."""
    raw = path.read_bytes()
    (n_header,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + n_header])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        data = raw[8 + n_header + begin : 8 + n_header + end]
        if info["dtype"] == "BF16":
            x = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif info["dtype"] == "F16":
            x = np.frombuffer(data, "<f2").astype(np.float32)
        elif info["dtype"] == "F32":
            x = np.frombuffer(data, "<f4").astype(np.float32)
        else:
            sys.exit(f"{path}: tensor {name} is {info['dtype']}, expected BF16, F16 or F32")
        tensors[name] = x.reshape(info["shape"])
    return tensors


def interleave_heads(x, n_heads):
    """Rows (or elements) of each head: first half, second half -> pairs."""
    return x.reshape(n_heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem in TOP_PARTS:
        return f"{TOP_PARTS[stem]}.{kind}"
    model, layers, layer, part = stem.split(".", 3)
    if (model, layers) != ("model", "layers") or part not in LAYER_PARTS:
        sys.exit(f"tensor {name}: not one of a llama")
    return f"blk.{layer}.{LAYER_PARTS[part]}.{kind}"


def rope_of(config):
    """(kind, parameters) from either spelling of config.json."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope.get("rope_type", rope.get("type", "default")), rope


def llama3_divisors(rope, head_dim):
    """What each base frequency is divided by: 1 for short waves, `factor` for waves longer than the
    original context, and in between a blend of the two frequencies."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    divisors = []
    for i in range(0, head_dim, 2):
        frequency = rope["rope_theta"] ** (-i / head_dim)
        wave = 2 * math.pi / frequency
        if wave < context / high:
            divisors.append(1.0)
        elif wave > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wave - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def byte_names():
    """Byte -> the printable character that byte-level vocabularies spell it with."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)]


def add_metadata(out, config, head_dim):
    heads = config["num_attention_heads"]
    out.add_type("model")
    out.add_name(f"tiny {config['model_type']}")
    out.add_vocab_size(config["vocab_size"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(heads)
    out.add_head_count_kv(config.get("num_key_value_heads") or heads)
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_dimension_count(head_dim)

    kind, rope = rope_of(config)
    out.add_rope_freq_base(rope["rope_theta"])
    if kind == "linear":
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(rope["factor"])
    elif kind == "llama3":
        out.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    elif kind != "default":
        sys.exit(f"config.json: rope type {kind} is not handled, expected default, linear, llama3")


def add_dummy_tokens(out, config):
    n = config["vocab_size"]
    if n < 257:
        sys.exit(f"config.json: vocab_size is {n}, 256 bytes and a merge do not fit")
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(byte_names() + ["ab"] + [f"<filler-{i}>" for i in range(257, n)])
    out.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.UNUSED] * (n - 257))
    out.add_token_merges(["a b"])  # one, because an empty list cannot be written
    if isinstance(config.get("bos_token_id"), int):
        out.add_bos_token_id(config["bos_token_id"])
    if isinstance(config.get("eos_token_id"), int):
        out.add_eos_token_id(config["eos_token_id"])
    out.add_add_bos_token(False)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source = Path(sys.argv[1])
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "llama":
        sys.exit(f"{source}: model_type is {config['model_type']}, expected llama")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads

    out = gguf.GGUFWriter(sys.argv[2], "llama")
    add_metadata(out, config, head_dim)
    add_dummy_tokens(out, config)
    for name, x in read_safetensors(source / "model.safetensors").items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue  # the embedding again
        if ".q_proj." in name:
            x = interleave_heads(x, heads)
        elif ".k_proj." in name:
            x = interleave_heads(x, kv_heads)
        out.add_tensor(gguf_name(name), np.ascontiguousarray(x, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
