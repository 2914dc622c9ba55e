"""Models in several files: the answers of one file, bit for bit, whatever part is named; and what is missing, cut or of
another model is refused with its name.

The parts are written by `cut` below, which moves bytes of a file, or by the `gguf` package, which converters use."""

import functools
import json
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import gguf
import pytest

from conftest import BUILD, SLOW, model_config
from test_models import Shape, ids_of, write

PROMPT = [10, 11, 12, 13, 14, 15, 16, 17]


def part(folder, name, i, n):
    return folder / f"{name}-{i + 1:05d}-of-{n:05d}.gguf"


def parts_of(folder, name, n):
    return [part(folder, name, i, n) for i in range(n)]


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def keys_of_part(i, n, n_tensors):
    return [text("split.no") + struct.pack("<IH", 2, i), text("split.count") + struct.pack("<IH", 2, n),
            text("split.tensors.count") + struct.pack("<Ii", 5, n_tensors)]


def cut(path, folder, name, n):
    """The tensors of a file in n parts of about as many each; the metadata is copied as it is."""
    reader, whole = gguf.GGUFReader(path), Path(path).read_bytes()
    fields = [f for f in reader.fields.values() if not f.name.startswith("GGUF.")]
    begin = min(f.offset for f in fields)
    metadata = whole[begin:min(t.field.offset for t in reader.tensors)]
    tensors, step = reader.tensors, -(-len(reader.tensors) // n)
    for i in range(n):
        mine, infos, data = tensors[i * step:(i + 1) * step], b"", b""
        for t in mine:
            dims = [int(d) for d in t.shape]
            infos += text(t.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.tensor_type, len(data))
            data += whole[t.data_offset:t.data_offset + t.n_bytes]
            data += bytes(-len(data) % 32)
        keys = keys_of_part(i, n, len(tensors))
        head = b"GGUF" + struct.pack("<IQQ", 3, len(mine), len(keys) + (len(fields) if i == 0 else 0))
        head += (metadata if i == 0 else b"") + b"".join(keys) + infos
        part(folder, name, i, n).write_bytes(head + bytes(-len(head) % 32) + data)
    return parts_of(folder, name, n)


def choices(d, model, **more):
    """Tokens and log-probabilities of a prompt and its answer."""
    r = d.http.post("/v1/completions", json={
        "model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 4,
        "echo": True, "return_token_ids": True, **more})
    assert r.status_code == 200, r.text
    return r.json()["choices"]


def several(paths, **more):
    """A configuration of models m0, m1, ..."""
    return {"devices": [{"kind": "cpu", "memory": "256MiB", "threads": 2}],
            "models": [{"name": f"m{i}", "path": str(p)} for i, p in enumerate(paths)], **more}


def inferd(*args, **more):
    return subprocess.run([BUILD / "inferd", *map(str, args)], capture_output=True, text=True, timeout=60 * SLOW,
                          stdin=subprocess.DEVNULL, **more)


# ---- the same model ----

def test_any_part_is_the_whole_model(launch, tmp_path, tiny_model):
    paths = cut(tiny_model, tmp_path, "tiny", 3)
    d = launch(several([tiny_model, *paths]))
    wanted = choices(d, "m0")
    for i in range(3):
        assert choices(d, f"m{i + 1}") == wanted
    chat = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 8, "logprobs": True}
    answers = [d.http.post("/v1/chat/completions", json={"model": f"m{i}", **chat}).json()["choices"] for i in range(4)]
    assert all(a == answers[0] for a in answers)
    d.settled()
    assert d.stop() == 0


@pytest.mark.parametrize("first_empty", [False, True])
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_K], ids=lambda k: k.name)
def test_parts_that_a_converter_writes_are_one_model(kind, first_empty, launch, tmp_path, monkeypatch):
    """The gguf package's writer: up to four tensors in each part, or none in the first."""
    whole, prefix = tmp_path / "whole.gguf", tmp_path / "parts.gguf"
    write(whole, Shape(type=kind, layers=3))
    monkeypatch.setattr(gguf, "GGUFWriter", functools.partial(
        gguf.GGUFWriter, split_max_tensors=4, small_first_shard=first_empty))
    write(prefix, Shape(type=kind, layers=3))
    paths = sorted(tmp_path.glob("parts-*.gguf"))
    assert len(paths) > 4
    d = launch(several([whole, paths[0], paths[-1]]))
    wanted = choices(d, "m0", prompt=ids_of(Shape(), 30))
    assert choices(d, "m1", prompt=ids_of(Shape(), 30)) == wanted
    assert choices(d, "m2", prompt=ids_of(Shape(), 30)) == wanted
    assert d.stop() == 0


def test_commands_take_any_part(tmp_path, tiny_model):
    paths = cut(tiny_model, tmp_path, "tiny", 3)
    said = [inferd("run", p, "--max-tokens", "8", "--temperature", "0", "--memory", "64MiB", "hello")
            for p in [tiny_model, *paths]]
    assert all(r.returncode == 0 and r.stdout == said[0].stdout for r in said), said
    config = tmp_path / "c.json"
    config.write_text(json.dumps(several(paths, listen=f"unix:{tmp_path}/s")))
    r = inferd("check", "--config", config)
    assert r.returncode == 0, r.stderr
    with open(tmp_path / "log", "wb") as log:
        p = subprocess.Popen([BUILD / "inferd", "serve", paths[1], "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                             stderr=log)
        line = p.stdout.readline().decode()
        p.terminate()
        assert p.wait(60 * SLOW) == 0 and "http" in line, (line, (tmp_path / "log").read_text())
    assert "model=tiny " in (tmp_path / "log").read_text()  # without the number of the part


# ---- what is refused ----

def refused(path, words, folder):
    """By every command that opens a model, at once and with status 2."""
    config = folder / "refused.json"
    config.write_text(json.dumps({"listen": f"unix:{folder}/s", "models": [{"name": "m", "path": str(path)}]}))
    for command in (("run", path, "--raw", "--memory", "64MiB", "hi"), ("check", "--config", config),
                    ("serve", "--config", config), ("pack", path), ("tokenize", path)):
        r = inferd(*command)
        assert r.returncode == 2 and words in r.stderr, (command, r.returncode, r.stderr)


def test_a_missing_part_is_named(tmp_path, tiny_model):
    paths = cut(tiny_model, tmp_path, "tiny", 3)
    for i in range(3):
        aside = tmp_path / "aside"
        os.replace(paths[i], aside)
        refused(paths[(i + 1) % 3], f"part {i + 1} of 3 of a split model: {paths[i]}: no such file", tmp_path)
        refused(paths[i], f"{paths[i]}: no such file", tmp_path)
        os.replace(aside, paths[i])


def test_a_part_that_is_cut_or_of_another_split_is_named(tmp_path, tiny_model):
    paths = cut(tiny_model, tmp_path, "tiny", 3)
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:-4096])
    refused(paths[0], f"part 3 of 3 of a split model: {paths[2]}: tensor ", tmp_path)
    refused(paths[0], "it may be truncated", tmp_path)
    paths[2].write_bytes(whole)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(cut(tiny_model, other, "tiny", 4)[2], paths[2])
    refused(paths[0], f"part 3 of 3 of a split model: {paths[2]}: split.count is 4, expected 3", tmp_path)
    shutil.copy(paths[1], paths[2])
    refused(paths[0], f"part 3 of 3 of a split model: {paths[2]}: split.no is 1, expected 2", tmp_path)
    paths[2].write_bytes(whole)
    lone = tmp_path / "model.gguf"
    shutil.copy(paths[0], lone)
    refused(lone, f"{lone}: is part 1 of 3 of a split model (split.no, split.count); its name must end in "
                  "-00001-of-00003.gguf, because the others are found by it", tmp_path)


# ---- packed ----

def test_one_packed_file_is_for_all_parts(launch, tmp_path, tiny_model):
    paths = cut(tiny_model, tmp_path, "tiny", 3)
    r = inferd("pack", paths[1])
    assert r.returncode == 0 and r.stdout.startswith(f"{paths[0]}.inferd-"), (r.stdout, r.stderr)
    packed = r.stdout.split(": ")[0]

    def serve(path):
        d = launch(model_config(path))
        said = choices(d, "m")
        assert d.stop() == 0
        return said, next(l for l in d.stderr().splitlines() if "event=model " in l and "state=hot" in l)

    wanted, line = serve(tiny_model)
    assert "weights=" not in line
    said, line = serve(paths[2])
    assert said == wanted and f'weights="read from {packed}' in line, line
    os.utime(paths[2], (1, 1))
    said, line = serve(paths[0])
    assert said == wanted and 'weights="the packed file is not used: ' in line and "time of the model" in line, line


# ---- files that change ----

def until(what, d, timeout=30):
    end = time.monotonic() + timeout * SLOW
    while not what():
        assert time.monotonic() < end, d.stderr()[-2000:]
        time.sleep(0.05)


def test_a_replaced_part_is_another_model(launch, tmp_path, tiny_model):
    """The parts of another model take the names of all; then one part takes its old place, which has the same shapes."""
    second = tmp_path / "second.gguf"
    subprocess.run([BUILD / "tests" / "tiny_model", second, "8"], check=True)
    paths = cut(tiny_model, tmp_path, "m", 3)
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    news, olds = cut(second, tmp_path / "new", "m", 3), cut(tiny_model, tmp_path / "old", "m", 3)
    d = launch(several([paths[1], tiny_model, second]))
    wanted, then = choices(d, "m1"), choices(d, "m2")
    assert choices(d, "m0") == wanted != then
    for new, path in zip(news, paths):
        os.replace(new, path)
    until(lambda: choices(d, "m0") == then, d)
    assert "event=model_file model=m0" in d.stderr() and "file=opened" in d.stderr()
    os.replace(olds[2], paths[2])
    until(lambda: choices(d, "m0") not in (then, wanted), d)
    for old, path in zip(olds[:2], paths):
        os.replace(old, path)
    until(lambda: choices(d, "m0") == wanted, d)
    d.settled()
    assert d.stop() == 0


def test_a_part_that_is_missing_is_named_in_the_log(launch, tmp_path, tiny_model):
    """It is served from memory meanwhile, and does not count as replaced when the part is back."""
    paths = cut(tiny_model, tmp_path, "m", 3)
    d = launch(model_config(paths[0]))
    wanted = choices(d, "m")
    os.replace(paths[1], tmp_path / "aside")
    until(lambda: "file=missing" in d.stderr(), d)
    line = next(l for l in d.stderr().splitlines() if "file=missing" in l)
    assert "still served from memory" in line and str(paths[1]) in line, line
    assert choices(d, "m") == wanted
    os.replace(tmp_path / "aside", paths[1])
    until(lambda: "file=same" in d.stderr(), d)
    assert choices(d, "m") == wanted and "file=opened" not in d.stderr()
    assert d.stop() == 0
