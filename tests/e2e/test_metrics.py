"""GET /metrics as Prometheus reads it: promtool has nothing to say about the page, no series is there twice, and the
times of requests add up."""

import os
import re
import shutil
import subprocess

import httpx
import pytest

from conftest import skip

KEYS = {"one": "sk-tenant-metrics-one", "two": "sk-tenant-metrics-two"}
ADMIN = "sk-admin-metrics-0001"


def model(name, seed):
    return {"name": name, "path": f"dummy:tiny?seed={seed}", "max_context": 512, "aliases": [name + "-too"]}


@pytest.fixture(scope="module")
def daemon(launch, tmp_path_factory):
    """Two models, two tenants, and every part that has figures; requests have been answered, refused and cancelled."""
    folder = tmp_path_factory.mktemp("kv")
    folder.chmod(0o700)
    d = launch({"devices": [{"kind": "cpu", "memory": "256MiB"}],
                "models": [{**model("a", 1), "slo": {"ttft_ms": 1000, "tpot_ms": 100}}, model("b", 2)],
                "state_dir": str(folder), "kv_disk": "64MiB",
                "tenants": [{"name": name, "keys": [key], "share": {"percent": 20}, "limits": {"requests_per_min": 20}}
                            for name, key in KEYS.items()],
                "admin": {"keys": [ADMIN]}}, args=["--allow-dummy"])
    for key in KEYS.values():
        for name in ("a", "b-too"):
            for stream in (False, True):
                answer = ask(d, key, model=name, n=2, max_tokens=40, ignore_eos=True, stream=stream)
                assert answer.status_code == 200, answer.text
            assert ask(d, key, model=name, max_tokens=0).status_code == 400
            assert ask(d, key, model=name, temprature=1).headers["x-inferd-ignored"] == "temprature"
    assert ask(d, KEYS["one"], model="none").status_code == 404
    while ask(d, KEYS["one"], model="a", max_tokens=1).status_code == 200:
        pass  # up to the limit of its tenant
    for method in ("GET", "PUT", "POST"):  # two routes of one path, and one that is not there
        httpx.request(method, d.url + "/admin/config")
    return d


def ask(d, key, **body):
    return d.http.post("/v1/chat/completions", headers={"Authorization": "Bearer " + key},
                       json={"messages": [{"role": "user", "content": "hello"}], **body})


def page(d, key=ADMIN):
    return d.http.get("/metrics", headers={"Authorization": "Bearer " + key}).text


def samples(text):
    return [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]


def promtool(text):
    """What `promtool check metrics` says about a page, and its status."""
    program = shutil.which("promtool")
    if program is None:
        why = "promtool is not installed: scripts/deps --dev"
        pytest.fail(why) if os.environ.get("CI") == "true" else skip(why)
    done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr, done.returncode


@pytest.mark.parametrize("key", [ADMIN, *KEYS.values()], ids=["admin", *KEYS])
def test_promtool_has_nothing_to_say(daemon, key):
    """Except that vLLM's names have a colon, which is why they are vLLM's: so it gets them without it, too."""
    text = page(daemon, key)
    assert promtool(re.sub("^(# [A-Z]+ )?vllm:", r"\1vllm_", text, flags=re.M)) == ("", 0)
    said, _ = promtool(text)
    assert [line for line in said.splitlines() if not re.fullmatch(r"vllm:\w+ metric names should not contain ':'", line)] == []


@pytest.mark.parametrize("more,said", [
    ("# HELP inferd_x_total X.\n# TYPE inferd_x_total gauge\ninferd_x_total 1\n", "non-counter metrics should not have"),
    ("# TYPE inferd_x gauge\ninferd_x 1\n", "no help text"),
    ("inferd_x{a=\"1\" 1\n", "error"),
])
def test_promtool_says_what_is_wrong(daemon, more, said):
    text, status = promtool(page(daemon).replace("vllm:", "vllm_") + more)
    assert status != 0 and said in text


def test_no_series_is_there_twice(daemon):
    names = [name for name, _ in samples(page(daemon))]
    assert len(names) > 500 and sorted({n for n in names if names.count(n) > 1}) == []


def test_queue_prefill_and_decode_are_the_time_of_a_request(daemon):
    """Of a sequence; requests of one choice have the same, and the time to write the answer."""
    figures = dict(samples(page(daemon)))

    def of(name, what, labels='{model="b"}'):
        return float(figures[f"{name}_{what}{labels}"])

    before = {n: (of(n, "sum"), of(n, "count")) for n in TIMES}
    n = 4
    for _ in range(n):
        assert ask(daemon, KEYS["two"], model="b", max_tokens=300, ignore_eos=True).status_code == 200
    figures = dict(samples(page(daemon)))
    queue, prefill, decode, first, whole = (of(x, "sum") - before[x][0] for x in TIMES)
    assert [of(x, "count") - before[x][1] for x in TIMES] == [n] * 5
    assert queue >= 0 and prefill > 0
    assert decode > prefill  # 299 steps, and one
    assert queue + prefill == pytest.approx(first, abs=1e-4)
    assert first + decode <= whole + 1e-4
    for ours, theirs in (("inferd_prefill_seconds", "vllm:request_prefill_time_seconds"),
                         ("inferd_decode_seconds", "vllm:request_decode_time_seconds")):
        for what in ("sum", "count"):
            assert of(ours, what) == of(theirs, what, '{model_name="b",engine="0"}')


TIMES = ("inferd_queue_seconds", "inferd_prefill_seconds", "inferd_decode_seconds", "inferd_time_to_first_token_seconds",
         "inferd_request_seconds")
