"""`inferd inspect`: what a model's file has, for people and as JSON, and every reason why it cannot be served."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

import test_gemma3

from conftest import BUILD, SLOW, model_config
from test_models import Shape, write
from test_split import cut

PAGE = Path(__file__).parents[2] / "docs/inspect.md"


def inspect(*args, status=0):
    r = subprocess.run([BUILD / "inferd", "inspect", *map(str, args)], capture_output=True, text=True,
                       timeout=60 * SLOW)
    assert r.returncode == status, (r.stdout, r.stderr)
    return r


def told(*args, status=0):
    return json.loads(inspect(*args, "--json", status=status).stdout)


def test_help_and_wrong_options(tiny_model):
    assert "usage: inferd inspect" in inspect("--help").stdout
    for args in ((), (tiny_model, tiny_model), (tiny_model, "--nonsense"), (tiny_model, "--context", "0"),
                 (tiny_model, "--context", "many")):
        assert not inspect(*args, status=2).stdout


def test_a_real_model(real_model):
    t = told(real_model)
    assert t["servable"] is True and t["reasons"] == [] and t["architecture"] == "llama" and t["path"] == str(real_model)
    assert (t["layers"], t["dim"], t["heads"], t["kv_heads"], t["head_dim"]) == (30, 576, 9, 3, 64)
    assert t["file_bytes"] == os.path.getsize(real_model) == sum(f["bytes"] for f in t["files"])
    assert t["parameters"] == t["parameters_active"] == 134515008 and t["experts"] == 0
    assert t["tokenizer"]["pre"] == "smollm" and t["tokenizer"]["eos"] == {"id": 2, "text": "<|im_end|>"}
    assert t["template"]["source"] == "tokenizer.chat_template" and t["template"]["refuses"] == []
    types = {x["type"]: x["tensors"] for x in t["types"]}
    reader = gguf.GGUFReader(real_model)
    wanted = {}
    for x in reader.tensors:
        wanted[x.tensor_type.name] = wanted.get(x.tensor_type.name, 0) + 1
    assert types == wanted and sum(x["bytes"] for x in t["types"]) == sum(int(x.n_bytes) for x in reader.tensors)
    kv = {x["type"]: x["bytes_per_token"] for x in t["memory"]["kv"]}
    assert kv["f16"] == kv["bf16"] == 30 * 2 * 3 * 64 * 2 and kv["f32"] == 2 * kv["f16"]
    assert kv["int8"] < kv["f16"] < kv["int16"] < kv["f32"]  # with a scale for each head
    text = inspect(real_model).stdout
    assert "can be served  yes" in text and len(text.splitlines()) <= 30, text
    assert not inspect(real_model).stderr


def test_the_tensors(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, Shape(layers=2))
    wanted = [(x.name, x.tensor_type.name, [int(d) for d in reversed(x.shape)], int(x.n_bytes), 0, int(x.data_offset))
              for x in gguf.GGUFReader(path).tensors]
    got = told(path, "--tensors")["tensors"]
    assert [(x["name"], x["type"], x["shape"], x["bytes"], x["part"], x["offset"]) for x in got] == wanted
    assert "tensors" not in told(path)
    lines = inspect(path, "--tensors").stdout
    assert all(name in lines for name, *_ in wanted)


def test_any_part_of_a_split_model(tmp_path, tiny_model):
    paths = cut(tiny_model, tmp_path, "tiny", 3)
    whole, all_told = told(tiny_model), [told(p) for p in paths]
    for t in all_told:
        assert [f["path"] for f in t["files"]] == [str(p) for p in paths] and t["servable"]
        assert t["file_bytes"] == sum(os.path.getsize(p) for p in paths)
        assert {k: t[k] for k in ("layers", "parameters", "types", "memory", "template")} == \
            {k: whole[k] for k in ("layers", "parameters", "types", "memory", "template")}
    assert inspect(paths[1]).stdout.count("-of-00003.gguf, ") == 4
    paths[2].unlink()
    r = inspect(paths[0], status=2)
    assert str(paths[2]) in r.stderr and not r.stdout


def test_a_dummy():
    r = inspect("dummy:gpt-oss-20b", status=2)
    assert "--allow-dummy" in r.stderr
    t = told("dummy:gpt-oss-20b?layers=4", "--allow-dummy", "--context", "8192")
    assert t["made_up"] and t["layers"] == 4 and t["windows"] == {"layers": 2, "tokens": 128, "kv_kept": "whole"}
    assert t["rotary"]["scaling"] == "yarn" and t["experts"] == 32 and t["context"] == 8192
    assert t["parameters_active"] < t["parameters"]
    assert "see the last 128 tokens" in inspect("dummy:gpt-oss-20b?layers=4", "--allow-dummy").stdout


def test_every_reason(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, Shape(layers=2, pre="unheard-of", extra={"llama.curl": 3, "llama.twirl": True, "llama.logit_scale": 2.0},
                      without=("blk.0.attn_q.weight", "blk.1.ffn_down.weight")))
    t = told(path, status=1)
    words = ["llama.curl (3) is not known", "llama.twirl (true) is not known", "llama.logit_scale is 2", "unheard-of",
             "blk.0.attn_q.weight is missing", "blk.1.ffn_down.weight is missing"]
    assert not t["servable"] and t["layers"] == 2
    assert all(any(w in r for r in t["reasons"]) for w in words), t["reasons"]
    assert len(t["reasons"]) == len(words)
    text = inspect(path, status=1).stdout
    assert "can be served  no:" in text and all(w in text for w in words)
    config = tmp_path / "c.json"  # a server meets the first of them
    config.write_text(json.dumps({"listen": f"unix:{tmp_path}/s", "models": [{"name": "m", "path": str(path)}]}))
    r = subprocess.run([BUILD / "inferd", "check", config], capture_output=True, text=True, timeout=60 * SLOW)
    assert r.returncode == 2 and t["reasons"][0] in r.stderr


def test_what_cannot_be_read(tmp_path):
    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"\0" * 100)
    for path, words in ((garbage, "is not a GGUF file"), (tmp_path / "none.gguf", "no such file"), (tmp_path, "a directory")):
        for more in ((), ("--json",)):
            r = inspect(path, *more, status=2)
            assert words in r.stderr and not r.stdout


def test_a_large_file_is_not_read(tmp_path):
    """One of 16 GiB, all holes behind the header: done at once."""
    path, n = tmp_path / "m.gguf", 1 << 32
    write(path, Shape(layers=1))
    last = gguf.GGUFReader(path).tensors[-1]
    name, offset = last.name.encode(), int(last.data_offset)
    del last
    data = bytearray(path.read_bytes())
    at = data.index(name) + len(name) + 4  # behind the number of dimensions
    data[at:at + 8] = n.to_bytes(8, "little")
    path.write_bytes(data)
    os.truncate(path, offset + 4 * n)
    began = time.monotonic()
    t = told(path, status=1)
    assert time.monotonic() - began < 5 * SLOW
    assert t["file_bytes"] > 16 << 30 and f"{name.decode()} is [{n}], expected [256]" in t["reasons"][0]


def test_the_page_lists_the_members(tiny_model):
    """docs/inspect.md has a row for each member, and no other."""
    def names(value, prefix=""):
        for key, v in value.items():
            yield prefix + key
            inner = v[0] if isinstance(v, list) and v and isinstance(v[0], dict) else v
            if isinstance(inner, dict):
                yield from names(inner, f"{prefix}{key}{'[]' if isinstance(v, list) else ''}.")
    shown = set(re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.M))
    seen = set()
    for args in ((tiny_model, "--tensors"), ("dummy:tiny-gpt-oss", "--allow-dummy")):
        seen |= set(names(told(*args)))
    assert seen <= shown, seen - shown
    # these are in no small file
    assert shown - seen <= {n for n in shown if re.match(r"(not_served|template\.(refuses|reasoning|others))", n)}, shown - seen


@pytest.mark.parametrize("route, body", [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
    ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]})])
def test_an_image_is_refused_with_the_models_name(route, body, tiny, tiny_model):
    r = tiny.http.post(route, json={"model": "tiny", **body})
    assert r.status_code == 400
    assert f'the model "tiny" takes no image: its file {Path(tiny_model).name} has no image encoder' in \
        r.json()["error"]["message"]


def test_a_sound_is_refused_with_the_models_name(tiny, tiny_model):
    content = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
    r = tiny.http.post("/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": content}]})
    assert r.status_code == 400 and r.json()["error"]["code"] == "unsupported_parameter"
    assert f"takes no audio: its file {Path(tiny_model).name} has no audio encoder" in r.json()["error"]["message"]
    r = tiny.http.post("/v1/chat/completions", json={"model": "absent", "messages": [{"role": "user", "content": content}]})
    assert r.status_code == 400 and "takes no audio" not in r.json()["error"]["message"]


def test_an_image_for_a_file_with_an_encoder(launch, tmp_path):
    """A Gemma 3 with the tensors of its image encoder: served as text, and the error names the encoder."""
    path = tmp_path / "g.gguf"
    weights = test_gemma3.weights_of(1)
    weights |= {name: np.zeros(64, np.float32) for name in ("v.position_embd.weight", "mm.soft_emb_norm.weight")}
    test_gemma3.write(path, weights)
    t = told(path)
    assert t["not_served"] == [{"part": "image", "tensors": 2, "bytes": 512}] and t["servable"]
    assert "image encoder: not served, 2 tensors" in inspect(path).stdout
    d = launch(model_config(path))
    r = d.http.post("/v1/chat/completions", json={"model": "m", "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]})
    assert r.status_code == 400
    assert "the image encoder in its file g.gguf (2 tensors) is not served" in r.json()["error"]["message"]
    assert d.stop() == 0
