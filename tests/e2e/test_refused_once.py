"""What a review of models found refused, or loaded and silently wrong, thing by thing: it runs, or it is refused by what it is.

That it computes the right numbers is tested in test_families.py and test_models.py; here the list is whole."""

import json
import re
import struct
import subprocess

import gguf
import numpy as np
import pytest

import families
import test_models
from conftest import BUILD, SLOW
from test_models import Q, Shape, write
from test_split import cut, text

SHAPE = dict(layers=1, ffn=256)


def inferd(*args):
    return subprocess.run([BUILD / "inferd", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW,
                          stdin=subprocess.DEVNULL)


def inspect(path):
    r = inferd("inspect", path, "--json")
    assert r.returncode < 2, r.stderr
    return json.loads(r.stdout)


def config_of(paths, folder):
    path = folder / "config.json"
    path.write_text(json.dumps({"listen": f"unix:{folder}/s", "models": [
        {"name": f"m{i}", "path": str(p)} for i, p in enumerate(paths)]}))
    return path


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """The small models of all families by the names of their heads: path, what inspect tells."""
    folder = tmp_path_factory.mktemp("heads")
    paths = {families.write(f.stem, folder) for f in families.FOLDER.glob("*.golden")}
    return {p.stem: (p, inspect(p)) for p in sorted(paths)}


# ---- what runs ----

ARCHITECTURES = ["qwen2", "qwen3moe", "mistral3", "phi3", "gpt-oss", "granite", "granitemoe", "smollm3", "olmo2"]
# Others: the small model that has it, and what inspect tells of such a model.
PROPERTIES = {
    "Mixtral": ("mixtral", lambda t: t["architecture"] == "llama" and t["experts_used"] == 2),
    "YaRN": ("qwen2-yarn", lambda t: t["rotary"]["scaling"] == "yarn"),
    "longrope": ("phi4-mini", lambda t: t["rotary"]["scaling"] == "longrope"),
    "partial rotary": ("phi4-mini", lambda t: t["rotary"]["dims"] < t["head_dim"]),
    "MXFP4": ("gpt-oss-mxfp4", lambda t: "MXFP4" in [x["type"] for x in t["types"]]),
}
PROPERTIES |= {a: (a, lambda t, a=a: t["architecture"] == a) for a in ARCHITECTURES}
TYPES = [Q.Q2_K, Q.Q3_K, Q.IQ4_NL, Q.IQ4_XS]
PRES = {"tekken": False, "llama4": True, "gpt-4o": True, "deepseek-v3": True, "deepseek-r1-qwen": False, "qwen35": False,
        "glm4": True, "smaug-bpe": True, "hunyuan": False, "default": True}  # true: two digits are one word


@pytest.fixture(scope="module")
def d(launch, heads, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    shapes = {t.name: Shape(type=t, **SHAPE) for t in TYPES}
    shapes |= {pre: Shape(pre=pre, pair="12", merges=["1 2"], **SHAPE) for pre in PRES}
    shapes |= {"two": Shape(), "three": Shape(layers=3), "two and mtp": Shape(
        layers=3, extra={"llama.nextn_predict_layers": 1}, tensors=("blk.2.nextn.enorm.weight", "blk.2.nextn.hnorm.weight"))}
    paths = {name: heads[name][0] for name, _ in PROPERTIES.values()}
    for name, shape in shapes.items():
        paths[name] = folder / f"{name}.gguf"
        write(paths[name], shape)
    paths["split"] = cut(paths["two"], folder, "split", 3)[1]
    d = launch({"devices": [{"kind": "cpu", "memory": "256MiB", "threads": 2}],
                "models": [{"name": name, "path": str(path)} for name, path in paths.items()]})
    yield d
    assert d.stop() == 0


def answer(d, name, prompt=(1, 2, 3)):
    r = d.http.post("/v1/completions", json={"model": name, "prompt": list(prompt), "max_tokens": 8, "temperature": 0,
                                             "ignore_eos": True, "return_token_ids": True, "logprobs": 1})
    assert r.status_code == 200, (name, r.text)
    choice = r.json()["choices"][0]
    assert len(choice["token_ids"]) == 8
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("what", PROPERTIES)
def test_a_family_answers(d, heads, what):
    name, has_it = PROPERTIES[what]
    assert has_it(heads[name][1]) and heads[name][1]["servable"]
    answer(d, name)


@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_a_type_answers(d, kind):
    answer(d, kind.name)


@pytest.mark.parametrize("pre", PRES)
def test_a_pre_tokenizer_cuts_words(d, pre):
    tokens = d.http.post("/tokenize", json={"model": pre, "prompt": "12"}).json()["tokens"]
    assert tokens == ([256] if PRES[pre] else [ord("1"), ord("2")])
    answer(d, pre, tokens)


def test_a_split_file_answers(d):
    assert answer(d, "split") == answer(d, "two")


def test_an_mtp_block_is_not_computed(d):
    """block_count includes it."""
    assert answer(d, "two and mtp") == answer(d, "two") != answer(d, "three")


# ---- what is refused ----

NOT_SERVED = ["qwen3next", "qwen35", "qwen35moe", "llama4", "gemma2", "gemma3n", "gemma4", "deepseek2", "glm4", "glm4moe", "lfm2"]
NOT_COMPUTED = [Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.TQ1_0, Q.TQ2_0]
ENCODER = "an encoder of images or sounds, which is not served; expected a language model"
OTHERS = {  # architecture, general.type: the words of the error
    ("llama", "adapter"): 'general.type is "adapter": a LoRA adapter, which is not served; expected a language model',
    ("clip", "mmproj"): f'general.type is "mmproj": {ENCODER}',
    ("clip", "model"): f'general.architecture is "clip": {ENCODER}',
    ("clip", None): f'general.architecture is "clip": {ENCODER}',
    ("", "imatrix"): 'general.type is "imatrix": an importance matrix, which is not served; expected a language model',
    ("llama", "tomorrow"): 'general.type is "tomorrow", expected "model"',
}
JSON = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
FORMATS = {
    "model.safetensors": (struct.pack("<Q", len(JSON)) + JSON + bytes(4), "is a safetensors file, expected a GGUF file"),
    "pytorch_model.bin": (b"PK\3\4" + bytes(60), "is a zip archive, as PyTorch writes checkpoints, expected a GGUF file"),
    "old.pth": (b"\x80\2" + bytes(60), "is a pickle, as PyTorch wrote checkpoints, expected a GGUF file"),
}


def write_header(path, architecture, kind):
    out = gguf.GGUFWriter(path, architecture)
    if kind:
        out.add_type(kind)
    out.add_block_count(2)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """Files, and words of the error of each: what it is, and what is supported."""
    folder, all_words = tmp_path_factory.mktemp("refused"), {}
    for name in NOT_SERVED:
        write_header(folder / f"{name}.gguf", name, "model")
        all_words[f"{name}.gguf"] = [f'general.architecture is "{name}"; known architectures: llama, ']
    for kind in NOT_COMPUTED:
        with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
            patch.setitem(test_models.SCALES_AT, kind, ())  # any bytes will do
            write(folder / f"{kind.name}.gguf", Shape(type=kind, **SHAPE))
        all_words[f"{kind.name}.gguf"] = [f"type {kind.name}, which cannot be computed with", "types that can: F32, "]
    for i, ((architecture, kind), words) in enumerate(OTHERS.items()):
        write_header(folder / f"other{i}.gguf", architecture, kind)
        all_words[f"other{i}.gguf"] = [words]
    for name, (data, words) in FORMATS.items():
        (folder / name).write_bytes(data)
        all_words[name] = [words]
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint/model.safetensors").write_bytes(FORMATS["model.safetensors"][0])
    all_words["checkpoint"] = ["it is a directory, expected a GGUF file"]
    return {folder / name: [f"{name}: ", *words] for name, words in all_words.items()}


def test_check_says_what_each_is(refused, tmp_path):
    r = inferd("check", config_of(refused, tmp_path))
    lines = r.stderr.splitlines()
    assert r.returncode == 2 and len(lines) == len(refused)
    for line, words in zip(lines, refused.values()):
        assert all(w in line for w in words), (line, words)


def test_inspect_says_what_each_is(refused):
    for path, words in refused.items():
        r = inferd("inspect", path, "--json")
        assert r.returncode == (1 if path.suffix == ".gguf" else 2), (path, r.stderr)
        said = json.loads(r.stdout)["reasons"][0] if r.returncode == 1 else r.stderr
        assert all(w in said for w in words), (said, words)


def test_a_daemon_says_what_each_is(refused, tmp_path):
    for path, words in refused.items():
        r = inferd("serve", "--config", config_of([path], tmp_path))
        assert r.returncode == 2 and not r.stdout, (path, r.stderr)
        assert all(w in r.stderr for w in words), (r.stderr, words)


def test_what_an_error_offers_is_what_is_tested(refused, heads, tmp_path):
    """Each architecture and each type that is said to be supported is compared with a reference, and no other is."""
    said = inferd("check", config_of(refused, tmp_path)).stderr
    architectures = set(re.findall("known architectures: (.*)", said))
    assert [sorted(a.split(", ")) for a in architectures] == [sorted({told["architecture"] for _, told in heads.values()})]
    types = set(re.findall("types that can: (.*)", said))
    assert [sorted(t.split(", ")) for t in types] == [sorted(t.name for t in test_models.TYPES)]


# ---- numbers that are not finite ----

@pytest.mark.parametrize("name, tensor, row, column, words", [
    ("llama", "blk.1.ffn_down.weight", 5, 7, ": row 5, column 7"),
    ("qwen3moe", "blk.1.ffn_down_exps.weight", 261, 7, ", in its rows from 256 on: row 5, column 7"),  # of the fifth expert
    ("phi3", "blk.1.attn_qkv.weight", 69, 7, ", in its rows from 64 on: row 5, column 7"),  # of k, behind q
    ("qwen2-fused", "blk.1.attn_qkv.bias", 0, 71, "[71]"),
], ids=["matrix", "expert", "part", "bias"])
def test_a_number_that_is_not_finite_is_named(name, tensor, row, column, words, heads, tmp_path):
    t = next(t for t in gguf.GGUFReader(heads[name][0]).tensors if t.name == tensor)
    at = int(t.data_offset) + 4 * (row * int(t.shape[0]) + column)
    data = bytearray(heads[name][0].read_bytes())
    data[at:at + 4] = struct.pack("<f", float("nan"))
    (tmp_path / "m.gguf").write_bytes(data)
    r = inferd("run", tmp_path / "m.gguf", "--raw", "--memory", "64MiB", "--max-tokens", "1", "hi")
    assert r.returncode == 1 and f"m.gguf: tensor {tensor}{words} is " in r.stderr, r.stderr


# ---- what was ignored ----

FLOAT, BOOL, UINT, TEXT = 6, 7, 4, 8
# Each with a value that no family computes.
IGNORED = {"logit_scale": (FLOAT, 0.3), "attention.scale": (FLOAT, 0.3), "embedding_scale": (FLOAT, 12.5),
           "rope.scaling.attn_factor": (FLOAT, 1.5), "attention.causal": (BOOL, False), "attention.clamp_kqv": (FLOAT, 8.0),
           "use_parallel_residual": (BOOL, True), "attention.tomorrow": (UINT, 3)}


def add_keys(path, out, keys):
    """A copy of the file with keys in front; a text makes them so long that all behind them stays aligned."""
    data = path.read_bytes()
    more = b"".join(text(name) + struct.pack({FLOAT: "<If", BOOL: "<I?", UINT: "<II"}[kind], kind, value)
                    for name, (kind, value) in keys.items())
    more += text("general.note") + struct.pack("<I", TEXT)
    more += text(" " * (-(len(more) + 8) % 32))
    n_keys, = struct.unpack("<Q", data[16:24])
    out.write_bytes(data[:16] + struct.pack("<Q", n_keys + len(keys) + 1) + more + data[24:])
    return out


def is_honoured(told, key):
    """By the family; that it changes the answer is tested in tests/test_families.c."""
    if key == "rope.scaling.attn_factor":
        return told["rotary"]["scaling"] in ("yarn", "longrope")
    return told["architecture"].startswith("granite") and key.endswith("scale")


@pytest.mark.parametrize("key", IGNORED)
def test_no_family_ignores_a_key(key, heads, tmp_path):
    files = {n: f"{told['architecture']}.{key}" for n, (_, told) in heads.items() if not is_honoured(told, key)}
    paths = [add_keys(heads[n][0], tmp_path / f"{n}.gguf", {name: IGNORED[key]}) for n, name in files.items()]
    lines = inferd("check", config_of(paths, tmp_path)).stderr.splitlines()
    assert len(lines) == len(files) >= 12
    for line, (n, name) in zip(lines, files.items()):
        assert f"{n}.gguf: key {name} " in line, line


def test_every_family_leaves_mtp_blocks_out(heads, tmp_path):
    paths = {n: add_keys(path, tmp_path / f"{n}.gguf", {f"{told['architecture']}.nextn_predict_layers": (UINT, 1)})
             for n, (path, told) in heads.items()}
    r = inferd("check", config_of(paths.values(), tmp_path))
    assert r.returncode == 0, r.stderr
    for name in ("qwen3", "olmo3", "qwen3moe"):  # olmo3 lists for each block whether it has a window
        now, told = inspect(paths[name]), heads[name][1]
        assert (now["layers"], now["mtp_layers"]) == (told["layers"] - 1, 1)
        assert [part["part"] for part in now["not_served"]] == ["mtp"]
        assert now["parameters"] == told["parameters"] and now["parameters_active"] < told["parameters_active"]
