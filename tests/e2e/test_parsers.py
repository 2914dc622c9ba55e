"""scripts/parsers-beside as far as it goes without vLLM, on templates of our own, and what it calls a difference."""

import re
import subprocess
import sys

from conftest import BUILD, ROOT, skip

sys.path.insert(0, str(ROOT / "bench" / "parsers"))
import own  # noqa: E402
import report  # noqa: E402
import texts  # noqa: E402

import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def built():
    if not (BUILD / "tests/read_calls").exists():
        skip("read_calls is not built")


def beside(folder, *argv):
    return subprocess.run([sys.executable, "-B", ROOT / "scripts/parsers-beside", folder, "--build", BUILD, *argv],
                          capture_output=True, text=True, timeout=300)


def test_inferd_reads_what_our_templates_write(tmp_path):
    done = beside(tmp_path, "--no-vllm", "--rounds", "3", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    right, n = map(int, re.search(r"inferd is right on (\d+) of (\d+) texts", done.stdout).groups())
    assert right == n >= 15 * len(own.TEMPLATES)
    assert [p.read_text() for p in tmp_path.glob("*-parsers.md")] == [done.stdout.removesuffix("\n")]


def test_formats_are_listed(tmp_path):
    (tmp_path / "odd.jinja").write_text("{{ raise_exception('no') }}")
    done = beside(tmp_path, "--formats")
    assert done.returncode == 0, done.stderr
    lines = {line.split(" | ")[0].strip("| "): line for line in done.stdout.splitlines()}
    assert "| refused: no |" in lines["odd"] and "| functiongemma | braces |" in lines["own-functiongemma"]


def message(calls=(), content="", reasoning=""):
    return {"reasoning": reasoning, "content": content, "calls": [{"name": n, "arguments": a} for n, a in calls]}


@pytest.mark.parametrize("got, what", [
    (message([("f", '{"a": 1, "b": [true]}')], "so"), None),
    (message([("f", '{"b":[true],"a":1.0}')], " so\n"), None),
    (message([("f", '{"a": "1", "b": [true]}')], "so"), "type of an argument: number read as text"),
    (message([("f", '{"a": 1, "b": ["true"]}')], "so"), "value inside of an argument"),
    (message([("f", '{"a": 1}')], "so"), "arguments lost"),
    (message([("f", '{"a": 1, "a": 1, "b": [true]}')], "so"), "arguments are no JSON"),
    (message([("f", '{"a": 1')], "so"), "arguments are no JSON"),
    (message([("g", '{"a": 1, "b": [true]}')], "so"), "name of a call"),
    (message((), "so"), "no call read"),
    (message([("f", '{"a": 1, "b": [true]}')]), "content lost"),
    (message([("f", '{"a": 1, "b": [true]}')], "so", "hm"), "more reasoning"),
    ({"failed": "ValueError: x"}, "fails: ValueError"),
])
def test_differences(got, what):
    wanted = {"reasoning": "", "content": "so", "calls": [{"name": "f", "arguments": {"a": 1, "b": [True]}}]}
    assert report.difference(wanted, got) == what


def test_a_text_is_what_follows_the_prompt():
    template = "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>" \
               "{% endif %}{{ m.content }}{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}<end>{% endfor %}" \
               "{% if add_generation_prompt %}<assistant><think>{% endif %}"
    found = {t.kind: t.text for turn in texts.turns(template, 1, 1) for t in turn.texts}
    assert found["content"] == "</think>\n\n" + texts.SAID
    assert found["content, call"] == "</think>\n\n" + texts.SAID + "[get_weather]"
    assert found["reasoning, call"] == texts.THOUGHT + "</think>[get_weather]"
