#!/usr/bin/env python3
"""cpu_models - the files that CPU peers are measured with, all of one model.

    cpu_models.py SOURCE.gguf FOLDER QUANTIZE
    cpu_models.py --about FILE.gguf      its sizes as JSON, for roofs
    cpu_models.py --own SOURCE.gguf FOLDER KIND...

SOURCE is a llama file with a tied head and a byte-level vocabulary (the default model).  Its weights
are dequantised once; from them come, in FOLDER:

    NAME.Q4_0.gguf, NAME.Q8_0.gguf, NAME.Q4_K_M.gguf   by QUANTIZE, llama.cpp's llama-quantize
    NAME.BF16.gguf                                     matrices rounded to nearest
    NAME-hf/                                           the same bf16 numbers as safetensors, with
                                                       config.json and the tokenizer, for vLLM

and with --own, without llama.cpp, NAME.own-KIND.gguf of each KIND (Q4_0, Q5_0, Q8_0, ...): all matrices,
the embedding too, by the package gguf.

A BF16 server and another differ in arithmetic alone.  What is there already is kept.  A checkpoint
has the two halves of a rotary pair half a head apart where the GGUF has them side by side.

Needs numpy and gguf (scripts/venv)."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

QUANTISED = ("Q4_0", "Q8_0", "Q4_K_M")
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def floats(tensor):
    """float32 [rows, cols], or [n]."""
    x = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.ascontiguousarray(x.reshape(tuple(int(n) for n in reversed(tensor.shape))), np.float32)


def bf16(x):
    """Bits, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Source:
    """A llama file: its metadata by name and its tensors as floats."""

    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in self.reader.fields.items()
                     if not name.startswith("GGUF.")}
        if self.meta["general.architecture"] != "llama" or self.meta["tokenizer.ggml.model"] != "gpt2":
            sys.exit(f"{path}: not a llama with a byte-level vocabulary")
        self.tensors = self.reader.tensors
        if any(t.name == "output.weight" for t in self.tensors):
            sys.exit(f"{path}: the head is not tied, which is not written here")

    def __getitem__(self, name):
        return self.meta["llama." + name]


def write_gguf(source, path, kind):
    """All matrices as `kind`, vectors as float32, metadata as it was."""
    out = gguf.GGUFWriter(path, "llama")
    for name, field in source.reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        out.add_key_value(name, field.contents(), field.types[0],
                          field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None)
    out.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "F32" else getattr(gguf.LlamaFileType, f"MOSTLY_{kind}"))
    for t in source.tensors:
        x = floats(t)
        if kind == "BF16" and x.ndim == 2:
            out.add_tensor(t.name, bf16(x).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        elif kind != "F32" and x.ndim == 2:
            as_type = gguf.GGMLQuantizationType[kind]
            out.add_tensor(t.name, gguf.quants.quantize(x, as_type), raw_dtype=as_type)
        else:
            out.add_tensor(t.name, x)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


# ---- a Hugging Face folder ----


def halves_apart(x, n_heads):
    """Rows of each head: pairs -> first half, second half."""
    return x.reshape(n_heads, -1, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def checkpoint(source):
    """(name, bf16 bits) of every tensor, as a checkpoint has them."""
    for t in source.tensors:
        x = floats(t)
        if t.name in TOP:
            yield TOP[t.name], bf16(x)
            continue
        _, layer, part, kind = t.name.split(".")
        if part == "attn_q":
            x = halves_apart(x, source["attention.head_count"])
        elif part == "attn_k":
            x = halves_apart(x, source["attention.head_count_kv"])
        yield f"model.layers.{layer}.{PARTS[part]}.{kind}", bf16(x)


def write_safetensors(path, tensors):
    header, at, data = {}, 0, []
    for name, bits in tensors:
        raw = bits.astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for raw in data:
            out.write(raw)


def config_of(source):
    base = source["rope.freq_base"]
    ids = {f"{name}_token_id": source.meta[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": source["embedding_length"], "intermediate_size": source["feed_forward_length"],
        "num_hidden_layers": source["block_count"], "num_attention_heads": source["attention.head_count"],
        "num_key_value_heads": source["attention.head_count_kv"], "head_dim": source["rope.dimension_count"],
        "rms_norm_eps": source["attention.layer_norm_rms_epsilon"], "vocab_size": source["vocab_size"],
        "max_position_embeddings": source["context_length"], "rope_theta": base,
        "rope_parameters": {"rope_type": "default", "rope_theta": base}, "hidden_act": "silu",
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, **ids}


def tokenizer_of(source):
    """tokenizer.json: digits one by one, then GPT-2's words, then byte-level BPE (the pre-tokenizer
    `smollm`)."""
    if source.meta["tokenizer.ggml.pre"] != "smollm":
        sys.exit(f"the pre-tokenizer is {source.meta['tokenizer.ggml.pre']}, only smollm is written here")
    tokens = source.meta["tokenizer.ggml.tokens"]
    types = source.meta["tokenizer.ggml.token_type"]
    special = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True}
               for i in range(len(tokens)) if types[i] == gguf.TokenType.CONTROL]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, level]},
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split(" ") for merge in source.meta["tokenizer.ggml.merges"]]}}


def write_hf(source, folder):
    tokens = source.meta["tokenizer.ggml.tokens"]
    name = lambda which: tokens[source.meta[f"tokenizer.ggml.{which}_token_id"]]
    config = config_of(source)
    files = {
        "config.json": config,
        "generation_config.json": {key: config[key] for key in ("bos_token_id", "eos_token_id")},
        "tokenizer.json": tokenizer_of(source),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
            "model_max_length": source["context_length"], "bos_token": name("bos"), "eos_token": name("eos"),
            "pad_token": name("padding"), "chat_template": source.meta["tokenizer.chat_template"]}}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content, ensure_ascii=False))
    write_safetensors(folder / "model.safetensors", checkpoint(source))


def about(path):
    """Bytes and factors that a token costs; the head is the embedding again."""
    source = Source(path)
    head = source["embedding_length"] * source["vocab_size"]
    width = source["attention.head_count_kv"] * (source["embedding_length"] // source["attention.head_count"])
    return {"weight_bytes": sum(int(t.n_bytes) for t in source.tensors),
            "factors": sum(int(t.n_elements) for t in source.tensors if len(t.shape) == 2),
            "head_factors": head, "kv_values_per_token": 2 * source["block_count"] * width}


def make(path, write):
    """path, written under another name first: what has the name is whole."""
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)
    print(f"writing {path}", file=sys.stderr)
    write(part)
    part.rename(path)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--about":
        print(json.dumps(about(sys.argv[2])))
        return
    if len(sys.argv) >= 5 and sys.argv[1] == "--own":
        source, folder = Source(sys.argv[2]), Path(sys.argv[3])
        folder.mkdir(parents=True, exist_ok=True)
        name = Path(sys.argv[2]).name.split(".")[0]
        for kind in sys.argv[4:]:
            make(folder / f"{name}.own-{kind}.gguf", lambda part, kind=kind: write_gguf(source, part, kind))
        return
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source_path, folder, quantize = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    source = Source(source_path)
    name = source_path.name.split(".")[0]

    def write_folder(part):
        part.mkdir()
        write_hf(source, part)

    def write_quantised(kind):
        def write(part):
            make(f32, lambda at: write_gguf(source, at, "F32"))
            run = subprocess.run([quantize, f32, part, kind], capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"{quantize} {f32} {part} {kind} failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return write

    f32 = folder / f"{name}.F32.gguf"
    make(folder / f"{name}.BF16.gguf", lambda part: write_gguf(source, part, "BF16"))
    make(folder / f"{name}-hf", write_folder)
    for kind in QUANTISED:
        make(folder / f"{name}.{kind}.gguf", write_quantised(kind))
    f32.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
