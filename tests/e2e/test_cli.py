"""The command line."""

import json
import lzma
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD, SLOW, model_config


def inferd(*args, stdin=None):
    return subprocess.run([BUILD / "inferd", *args], input=stdin, capture_output=True, text=True,
                          timeout=120 * SLOW)


def test_every_command_has_help():
    assert inferd("--help").returncode == 0
    for command in ("serve", "check", "doctor", "run", "devices", "tokenize", "render", "inspect", "version"):
        r = inferd(command, "--help")
        assert r.returncode == 0 and "usage" in r.stdout, command
    assert inferd("version").stdout.startswith("inferd ")
    assert inferd("nonsense").returncode == 2
    assert inferd().returncode == 2


def test_tokenize(tiny_model):
    r = inferd("tokenize", tiny_model, stdin='"hello"\n"<|im_end|>"\n17\n"\\u0000"\n')
    lines = [json.loads(x) for x in r.stdout.splitlines()]
    assert isinstance(lines[0], list) and len(lines[1]) == 1 and "error" in lines[2] and len(lines[3]) == 1
    assert r.returncode == 1
    assert inferd("tokenize", "/nonexistent.gguf").returncode == 2


def test_render(tmp_path):
    t = tmp_path / "t.jinja"
    t.write_text("{{ strftime_now('%d %b %Y') }} {{ x }}{% if bad %}{{ raise_exception('no') }}{% endif %}")
    r = inferd("render", t, "--now", "2026-01-15T09:30:00", stdin='{"x": [1, "a"]}\n{"bad": true}\n')
    lines = [json.loads(x) for x in r.stdout.splitlines()]
    assert lines[0] == "15 Jan 2026 [1, 'a']"
    assert "no" in lines[1]["error"]


def test_render_says_why_it_cannot_read(tmp_path):
    """A file that is not there was "cannot read nope.jinja (at most 262144 bytes)"."""
    large = tmp_path / "large.jinja"
    large.write_bytes(b"x" * 262145)
    for path, why in ((tmp_path / "nope.jinja", "no such file"), (tmp_path, "it is a directory, expected a file"),
                      (large, "it is longer than the limit of 262144 bytes")):
        r = inferd("render", path, stdin="")
        assert r.returncode == 2 and r.stderr == f"inferd: {path}: {why}\n" and not r.stdout


def test_render_equals_the_reference(shared):
    by_template = {}
    with lzma.open(shared / "templates/vectors.jsonl.xz", "rt") as f:
        for line in f:
            v = json.loads(line)
            by_template.setdefault(v["template"], []).append(v)
    good = total = n_more = 0
    for template, vectors in by_template.items():
        r = inferd("render", shared / "templates" / template, "--now", "2026-01-15T09:30:00",
                   stdin="".join(json.dumps(v["context"]) + "\n" for v in vectors))
        for v, line in zip(vectors, r.stdout.splitlines()):
            got = json.loads(line)
            total += 1
            # Jinja2 refuses these: lists that a template fills, tojson of what map() gives.
            more = re.search("'append' of 'list'|generator is not JSON", v.get("error", "")) and "error" not in got
            good += bool(more) or (("error" in got) if "error" in v else got == v["output"])
            n_more += bool(more)
    print(f"{good} of {total}, {n_more} of them render here only")
    assert good == total == 350 and n_more == 4


@pytest.mark.real
def test_tokenize_equals_the_reference(shared, real_model):
    with lzma.open(shared / "tokenizers/smollm2.vectors.jsonl.xz", "rt") as f:
        vectors = [json.loads(line) for line in f]
    text = [v.get("text", v.get("s", v.get("input"))) for v in vectors]
    r = inferd("tokenize", real_model, stdin="".join(json.dumps(t) + "\n" for t in text))
    got = [json.loads(x) for x in r.stdout.splitlines()]
    good = sum(a == v["ids"] for a, v in zip(got, vectors))
    print(f"{good} of {len(vectors)}")
    assert good == len(vectors) == 4000


def test_run_answers_through_the_engine(tiny_model):
    r = inferd("run", tiny_model, "--max-tokens", "8", "--temperature", "0", "Hello", "--memory", "64MiB")
    assert r.returncode == 0, r.stderr
    assert "answer:" in r.stderr and "tokens/s" in r.stderr
    again = inferd("run", tiny_model, "--max-tokens", "8", "--temperature", "0", "Hello", "--memory", "64MiB")
    assert again.stdout == r.stdout
    chat = inferd("run", tiny_model, "--max-tokens", "4", "--seed", "1", "--memory", "64MiB", stdin="one\ntwo\n")
    assert chat.returncode == 0, chat.stderr


def test_run_prints_nothing_of_half_a_character(tiny_model):
    """A first token that is the beginning of a character gives no text yet: 0 was added to NULL, which a sanitizer sees."""
    empty = 0
    for seed in range(12):
        r = inferd("run", tiny_model, "--max-tokens", "1", "--temperature", "2", "--seed", str(seed), "--memory", "64MiB",
                   "Hello")
        assert r.returncode == 0 and "runtime error" not in r.stderr, r.stderr
        empty += r.stdout.strip("\n\ufffd") == ""
    assert empty > 0


def test_packed_weights_are_read_or_the_log_says_why_not(tmp_path, tiny_model, launch):
    """A damaged file was left aside without a word."""
    model = tmp_path / "m.gguf"
    shutil.copy(tiny_model, model)
    assert inferd("pack", model, "--folder", tmp_path).returncode == 2  # where nobody would look for it
    r = inferd("pack", model)
    assert r.returncode == 0 and r.stdout.startswith(f"{model}.inferd-"), (r.stdout, r.stderr)
    packed = Path(r.stdout.split(": ")[0])
    whole = packed.read_bytes()

    def serve():
        d = launch(model_config(model))
        ask = {"model": "m", "prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        text = d.http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
        assert d.stop() == 0
        return text, next(l for l in d.stderr().splitlines() if "event=model " in l and "state=hot" in l)

    text, line = serve()
    assert f'weights="read from {packed}' in line
    for damaged in (whole[:-4096], whole[:len(whole) // 2] + b"no" + whole[len(whole) // 2 + 2:]):
        packed.write_bytes(damaged)
        again, line = serve()
        assert again == text and 'weights="the packed file is not used: ' in line, line
    packed.unlink()
    again, line = serve()
    assert again == text and "weights=" not in line


def test_run_says_what_is_wrong(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\0" * 40)
    r = inferd("run", str(bad), "Hello")
    assert r.returncode == 2 and "bad.gguf" in r.stderr


def test_a_missing_file_has_one_status_in_all_commands(tmp_path):
    """It was 2 in `serve` and `check`, and 1 in `run`, `tokenize`, `pack` and `render`."""
    gone = str(tmp_path / "gone.gguf")
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"models": [{"name": "m", "path": gone}]}))
    for command in (("serve", "--model", gone), ("serve", "--config", gone), ("serve", "--config", config),
                    ("check", "--config", config), ("check", "--config", gone), ("run", gone, "Hello"),
                    ("tokenize", gone), ("pack", gone), ("render", gone), ("ctl", "config", "put", gone)):
        r = inferd(*command, stdin="")
        assert r.returncode == 2 and "gone.gguf" in r.stderr, (command, r.returncode, r.stderr)


def test_a_device_that_is_not_there_has_one_status_in_all_commands(tiny_model):
    for command in (("serve", "--model", tiny_model, "--device", "cuda:63"), ("run", tiny_model, "--device", "cuda:63", "x"),
                    ("pack", tiny_model, "--device", "cuda:63")):
        r = inferd(*command)
        assert r.returncode == 3 and r.stderr.startswith("inferd: "), (command, r.returncode, r.stderr)


def test_run_ends_its_text_before_its_rates(tiny_model):
    """In a pipe the newline came behind the rates: `run ... 2>&1 | cat` had text and rates on one line."""
    for more in ((), ("--raw",)):
        r = subprocess.run([BUILD / "inferd", "run", tiny_model, "--memory", "64MiB", "--max-tokens", "8",
                            "--temperature", "0", *more, "Hello"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=120 * SLOW)
        text, rates = r.stdout.rsplit(b"\nprompt: ", 1)
        assert r.returncode == 0 and text and b"prompt: " not in text
        assert rates.endswith(b" tokens/s\n") and b"; answer: " in rates, r.stdout
        alone = inferd("run", tiny_model, "--memory", "64MiB", "--max-tokens", "8", "--temperature", "0", *more, "Hello")
        assert alone.stdout.endswith("\n") and not alone.stdout.endswith("\n\n")
        assert "prompt: " not in alone.stdout and alone.stderr.startswith("prompt: ")


def test_an_address_is_named_once(tmp_path, tiny_model):
    """`listen: listen 0.0.0.0:8111: ...`"""
    config = tmp_path / "c.json"
    for listen, words in (("0.0.0.0:8111", "0.0.0.0:8111: reachable from other machines, which needs keys"),
                          ("no-port", '"no-port": expected PORT, ADDRESS:PORT'), ("unix:", "unix: needs a path"),
                          ("unix:" + "x" * 120, "the socket path has 120 bytes")):
        config.write_text(json.dumps({"listen": listen, "models": [{"name": "m", "path": tiny_model}]}))
        for command in ("serve", "check"):
            r = inferd(command, "--config", config)
            assert r.returncode == 2 and f"c.json:1: listen: {words}" in r.stderr, r.stderr
            assert r.stderr.count("listen") == 1


def test_check(tmp_path, tiny_model):
    good = tmp_path / "good.json"
    good.write_text(json.dumps({"models": [{"name": "m", "path": tiny_model}]}))
    assert inferd("check", "--config", good).returncode == 0
    bad = tmp_path / "bad.json"
    bad.write_text('{\n "listen": "0.0.0.0:80",\n "modles": [],\n "limits": {"running_max": -1}\n}\n')
    r = inferd("check", "--config", bad)
    assert r.returncode == 2
    text = r.stdout + r.stderr
    assert "bad.json:3" in text and "models" in text and "running_max" in text


def test_check_warns_of_settings_with_less_effect_than_they_seem_to_have(tmp_path, tiny_model):
    f = tmp_path / "c.json"
    f.write_text(json.dumps({
        "devices": [{"kind": "cpu", "memory": "64MiB"}],
        "models": [{"name": "m", "path": tiny_model, "class": "high", "weight": 3, "max": "5MiB"}],
        "tenants": [{"name": "a", "key": "sk-aaaaaaaa", "share": 60}, {"name": "b", "key": "sk-bbbbbbbb", "share": 40},
                    {"name": "c", "key": "sk-cccccccc", "max_class": "high"}]}, indent=1))
    r = inferd("check", "--config", f)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    first, *warnings = r.stdout.splitlines()
    warnings, shares = warnings[:4], warnings[4:]
    assert first == f"{f}: 1 model, 3 tenants: fine, 4 warnings"
    assert shares == ["shares of tenants, percent of a device (policy.urgent_percent is 5):",
                      "  a: at least 60 %, beside urgent requests 57.00 %", "  b: at least 40 %, beside urgent requests 38.00 %",
                      "  left for tenants without a share: at least 0 %, beside urgent requests 0.00 %"]
    lines = f.read_text().splitlines()
    for warning, setting, line in zip(warnings, ("models[0].class", "models[0].max", "models[0].weight", "tenants[2].share"),
                                      ('"class"', '"max"', '"weight"', "{")):
        number = int(re.match(re.escape(str(f)) + r":(\d+): warning: " + re.escape(setting) + ": ", warning).group(1))
        assert line in lines[number - 1], (warning, lines[number - 1])


def test_documentation_lists_the_settings_as_they_are():
    from conftest import ROOT
    tables = inferd("check", "--describe").stdout
    assert len(tables) > 2000 and (ROOT / "docs/configuration.md").read_text().endswith(tables)
