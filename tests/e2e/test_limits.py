"""Limits and quotas of tenants, what clients are told of them, and the fields that share the machine."""

import concurrent.futures
import datetime
import json
import random
import re
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from conftest import SLOW, Daemon

MODEL = "dummy:tiny?dtype=q4_k_m&layers=2&context=8192"
SLOW_MODEL = "dummy:tiny?dtype=q4_k_m&layers=24&context=8192"  # so that requests meet
KEY = {name: f"sk-{name}".ljust(20, "0") for name in "abcdefgh"}


def config(tenants, model=MODEL, **more):
    """Tenants by name: their limits, and with "also" what else they have."""
    listed = []
    for name, limits in tenants.items():
        limits = dict(limits)
        also = limits.pop("also", {})
        listed.append({"name": name, "keys": [KEY[name]], "limits": limits, **also})
    return {"devices": [{"kind": "cpu", "memory": "512MiB"}], "models": [{"name": "m", "path": model}],
            "tenants": listed, **more}


@pytest.fixture
def serve(launch):
    def start(tenants, **more):
        return launch(config(tenants, **more), args=["--allow-dummy"], wait="line")
    return start


# `Daemon.wait_ready` and `.http` know no keys; these tests always have some.
@pytest.fixture(autouse=True)
def keyed(monkeypatch):
    def wait_ready(self, timeout=60 * SLOW):
        line = self.process.stdout.readline().decode()
        assert "http://" in line, (line, self.stderr()[-3000:])
        self.port = int(line.split("http://")[1].split("/")[0].rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"
    monkeypatch.setattr(Daemon, "wait_ready", wait_ready)


def ask(d, who="a", headers=(), client=None, **more):
    body = {"model": "m", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True, **more}
    return (client or httpx).post(d.url + "/v1/completions", json=body, timeout=120 * SLOW,
                                  headers={"Authorization": "Bearer " + KEY[who], **dict(headers)})


def get(d, path, who="a"):
    return httpx.get(d.url + path, headers={"Authorization": "Bearer " + KEY[who]}, timeout=60 * SLOW)


class Stream:
    """A stream that is held open until it is left."""

    def __init__(self, d, who="a", **more):
        body = json.dumps({"model": "m", "prompt": [5, 6, 7], "max_tokens": 8000, "ignore_eos": True,
                           "stream": True, **more}).encode()
        self.s = socket.create_connection(("127.0.0.1", d.port))
        self.s.settimeout(60 * SLOW)
        self.s.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        f"Authorization: Bearer {KEY[who]}\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body)
        self.head = b""
        while b"\r\n\r\n" not in self.head:
            piece = self.s.recv(4096)
            assert piece, self.head
            self.head += piece

    @property
    def status(self):
        return int(self.head.split()[1])

    def leave(self):
        self.s.close()


def error(answer, status, kind, code):
    assert answer.status_code == status, answer.text[:1000]
    e = answer.json()["error"]
    assert set(e) == {"message", "type", "param", "code"}
    assert (e["type"], e["code"], e["param"]) == (kind, code, None), e
    return e["message"]


def tokens_left(d, who="a"):
    return int(get(d, "/v1/models", who).headers["x-ratelimit-remaining-tokens"])


def when(true, timeout=10 * SLOW):
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


# ---- each limit ----

def test_requests_per_minute_count_choices(serve):
    d = serve({"a": {"requests_per_min": 6}, "b": {}})
    good = ask(d)
    assert good.status_code == 200
    h = good.headers
    assert h["x-ratelimit-limit-requests"] == "6" and h["x-ratelimit-remaining-requests"] == "5"
    assert h["x-ratelimit-reset-requests"] in ("10s", "9s")
    assert "x-ratelimit-limit-tokens" not in h
    assert ask(d, n=2).headers["x-ratelimit-remaining-requests"] == "3"
    assert ask(d, prompt=[[1], [2, 3]]).headers["x-ratelimit-remaining-requests"] == "1"
    refused = ask(d, prompt=[[1], [2, 3]])
    message = error(refused, 429, "requests", "rate_limit_exceeded")
    assert "6 requests per minute" in message
    wait = int(refused.headers["retry-after"])
    assert 1 <= wait <= 20 and refused.headers["retry-after-ms"] == str(wait * 1000)
    assert "x-should-retry" not in refused.headers
    assert refused.headers["x-ratelimit-limit-requests"] == "6"
    # Never possible, so it is not something to try again.
    never = ask(d, n=7)
    assert "6 requests per minute" in error(never, 400, "invalid_request_error", "request_exceeds_limit")
    assert "retry-after" not in never.headers
    other = ask(d, "b", n=8)
    assert other.status_code == 200 and not any(k.startswith("x-ratelimit") for k in other.headers)
    assert d.stop() == 0


def test_tokens_per_minute_are_reserved_and_settled(serve):
    d = serve({"a": {"tokens_per_min": 600}})
    used = ask(d, max_tokens=97)  # 3 + 97
    assert used.json()["usage"]["total_tokens"] == 100
    left = int(used.headers["x-ratelimit-remaining-tokens"])
    assert 500 <= left <= 505, left  # what comes back is 10 in a second
    # A prompt counts once, whatever n is; outputs each.
    before = tokens_left(d)
    assert ask(d, n=3, max_tokens=20).status_code == 200
    assert before - 63 <= tokens_left(d) <= before - 63 + 20
    refused = ask(d, max_tokens=550)
    assert "600 tokens per minute" in error(refused, 429, "tokens", "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    error(ask(d, max_tokens=598), 400, "invalid_request_error", "request_exceeds_limit")
    # Without max_tokens the output is a guess, which alone makes nothing too large.
    d2 = serve({"a": {"tokens_per_min": 100}})
    chat = httpx.post(d2.url + "/v1/chat/completions", timeout=60 * SLOW,
                      headers={"Authorization": "Bearer " + KEY["a"]},
                      json={"model": "m", "messages": [{"role": "user", "content": "x"}],
                            "stop_token_ids": list(range(1, 200))})
    assert chat.status_code == 200, chat.text
    assert d.stop() == 0 and d2.stop() == 0


def test_what_was_not_used_comes_back(serve):
    d = serve({"a": {"tokens_per_min": 2000}})
    answer = ask(d, max_tokens=1500, ignore_eos=False, stop_token_ids=list(range(0, 250)))
    assert answer.status_code == 200
    n = answer.json()["usage"]["total_tokens"]
    assert n < 1000
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 2000 - n
    assert d.stop() == 0


def test_requests_at_once_are_bounded_for_one_and_free_for_others(serve):
    d = serve({"a": {"concurrent": 2}, "b": {}}, model=SLOW_MODEL)
    held = [Stream(d), Stream(d)]
    assert [s.status for s in held] == [200, 200]
    refused = ask(d)
    assert "2 requests at once" in error(refused, 429, "requests", "concurrency_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert Stream(d, n=2).status == 429  # also as a stream
    error(ask(d, n=3), 400, "invalid_request_error", "request_exceeds_limit")
    assert ask(d, "b").status_code == 200
    for s in held:
        s.leave()
    when(lambda: ask(d).status_code == 200)
    assert d.stop() == 0


def test_what_waits_in_the_queue_is_bounded_too(serve):
    """One sequence runs at a time; a tenant at its limit leaves the rest of the queue to others."""
    d = serve({"a": {"concurrent": 3}, "b": {}}, model=SLOW_MODEL, limits={"running_max": 1, "queue_len_max": 8})
    got = []

    def one(who, n):
        got.append((who, ask(d, who, max_tokens=300, prompt=[5, 6, n]).status_code))

    threads = [threading.Thread(target=one, args=("a", i)) for i in range(12)]
    for t in threads:
        t.start()
    when(lambda: sum(status == 429 for _, status in got) == 9)
    one("b", 100)
    for t in threads:
        t.join()
    assert sorted(s for w, s in got if w == "a") == [200] * 3 + [429] * 9
    assert ("b", 200) in got and not any(s == 503 for _, s in got)
    assert d.stop() == 0


def test_a_share_and_urgent_requests_have_places_in_a_queue_that_others_fill(serve):
    """Of 32 places 3 are kept for a share of 40 %, and 2 for the class high."""
    high = {"max_class": "high"}
    d = serve({"a": {"also": {"share": {"policy": "fixed", "percent": 40}}}, "b": {}, "c": {"also": high}},
              model=SLOW_MODEL, limits={"running_max": 2, "queue_len_max": 30, "client_timeout_ms": 2000})

    def together(n, who, **more):
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            return list(pool.map(lambda i: Stream(d, who, prompt=[5, 6, i], **more), range(n)))

    flood = together(40, "b")
    held = [s for s in flood if s.status == 200]
    assert len(held) == 27 and all(s.status in (200, 503) for s in flood)
    refused = ask(d, "b")
    message = error(refused, 503, "overloaded_error", "server_overloaded")
    assert "27 of 32 sequences" in message and "reserved" in message, message
    assert int(refused.headers["retry-after"]) >= 1
    assert ask(d, "a").status_code == 200  # and its part of what runs, though two long ones of b do
    gold = together(5, "a")
    assert sorted(s.status for s in gold) == [200] * 3 + [503] * 2
    urgent = together(4, "c", service_tier="priority")
    assert sorted(s.status for s in urgent) == [200] * 2 + [503] * 2
    assert Stream(d, "c").status == 503  # at its usual class
    assert "28 choices are more than the 27 queue slots" in error_of_n(ask(d, "b", n=28))
    gold[[s.status for s in gold].index(200)].leave()
    when(lambda: Stream(d, "a").status == 200)
    for s in flood + gold + urgent:
        s.leave()
    when(lambda: ask(d, "b").status_code == 200)
    assert d.stop() == 0


def error_of_n(answer):
    e = answer.json()["error"]
    assert answer.status_code == 400 and e["param"] == "n", e
    return e["message"]


def test_a_day_and_a_month_tell_how_long_they_last(serve, tmp_path):
    d = serve({"a": {"tokens_per_day": 100}, "b": {"tokens_per_month": 100}}, state_dir=str(tmp_path / "s"))
    now = datetime.datetime.now(datetime.timezone.utc)
    midnight = (now + datetime.timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    month = (now.replace(day=1) + datetime.timedelta(days=32)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for who, what, end in (("a", "day", midnight), ("b", "month", month)):
        assert ask(d, who, max_tokens=50).status_code == 200
        refused = ask(d, who, max_tokens=50)
        message = error(refused, 429, "insufficient_quota", "insufficient_quota")
        assert f"of 100 tokens per {what} (UTC) 53 are used" in message
        left = (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
        wait = int(refused.headers["retry-after"])
        assert abs(wait - left) <= 5 or what == "day" and wait <= 5
        if wait > 60:
            assert refused.headers["x-should-retry"] == "false"
        assert ask(d, who, max_tokens=10).status_code == 200  # what is left may be used
        error(ask(d, who, max_tokens=98), 400, "invalid_request_error", "request_exceeds_limit")
    assert d.stop() == 0


LIMITS = ("requests_per_min", "tokens_per_min", "concurrent", "tokens_per_day", "tokens_per_month")


def test_null_is_no_limit_and_a_tenant_without_limits_has_no_headers(serve):
    d = serve({"a": dict.fromkeys(LIMITS, None), "b": {"also": {"weight": 1, "max_class": "batch"}}})
    for who in "ab":
        for _ in range(20):
            r = ask(d, who)
            assert r.status_code == 200 and not any(k.startswith("x-ratelimit") for k in r.headers)
    assert d.stop() == 0


def test_a_limit_of_zero_lets_nothing_in(serve):
    """Nobody knows when it is lifted, so no time is told; openai's clients then try once only."""
    d = serve({**{w: {name: 0} for w, name in zip("abcde", LIMITS)}, "f": {}})  # no state_dir: nothing is counted
    for who, name in zip("abcde", LIMITS):
        for more in ({}, {"stream": True}):
            r = ask(d, who, **more)
            message = error(r, 429, "insufficient_quota", "insufficient_quota")
            assert message == f"limits.{name} of tenant {who} is 0: nothing is admitted"
            assert "retry-after" not in r.headers and "retry-after-ms" not in r.headers
            assert r.headers["x-should-retry"] == "false"
        told = {k: v for k, v in r.headers.items() if k.startswith("x-ratelimit")}
        what = {"requests_per_min": "requests", "tokens_per_min": "tokens"}.get(name)
        assert told == ({f"x-ratelimit-limit-{what}": "0", f"x-ratelimit-remaining-{what}": "0"} if what else {})
        assert get(d, "/v1/models", who).status_code == 200  # its key is good
        client = openai.OpenAI(api_key=KEY[who], base_url=d.url + "/v1")
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model="m", prompt="x")
    assert ask(d, "f").status_code == 200
    metrics = get(d, "/metrics", "a").text
    assert re.search(r'inferd_refusals_total\{tenant="a",model="m",reason="quota"\} 3\n', metrics), metrics
    assert d.stop() == 0


def test_headers_are_on_every_answer(serve):
    d = serve({"a": {"requests_per_min": 50, "tokens_per_min": 50000}})
    names = {f"x-ratelimit-{a}-{b}" for a in ("limit", "remaining", "reset") for b in ("requests", "tokens")}
    answers = [ask(d), ask(d, stream=True), ask(d, temperature=9), ask(d, model="none"), get(d, "/v1/models"),
               get(d, "/metrics"), ask(d, stream=True, n=2, stream_options={"include_usage": True}),
               httpx.post(d.url + "/tokenize", json={"model": "m", "prompt": "x"},
                          headers={"Authorization": "Bearer " + KEY["a"]})]
    for r in answers:
        assert names <= set(r.headers), (r.status_code, r.headers)
        assert all(len(r.headers.get_list(name)) == 1 for name in names)
    assert [r.status_code for r in answers] == [200, 200, 400, 404, 200, 200, 200, 200]
    stranger = httpx.get(d.url + "/v1/models", headers={"Authorization": "Bearer sk-nobody"})
    assert stranger.status_code == 401 and not names & set(stranger.headers)
    assert not names & set(httpx.get(d.url + "/health").headers)
    assert int(answers[0].headers["x-ratelimit-remaining-requests"]) == 49
    assert int(answers[1].headers["x-ratelimit-remaining-requests"]) == 48
    assert int(answers[2].headers["x-ratelimit-remaining-requests"]) == 48  # refused before: costs nothing
    assert d.stop() == 0


@pytest.mark.parametrize("stop", [{"stop_token_ids": list(range(256))}, {"stop": ["w", "a", "e", "o"]}],
                         ids=["end tokens", "stop strings"])
def test_an_output_is_guessed_from_those_before(serve, stop):
    """Without max_tokens: 512 at first, then what outputs of the model became, whoever asked for them."""
    d = serve({"a": {}, "b": {"tokens_per_min": 600}})

    def about(who):
        return {"url": d.url + "/v1/chat/completions", "timeout": 60 * SLOW, "headers": {"Authorization": "Bearer " + KEY[who]}}

    def body(**more):
        return {"model": "m", "messages": [{"role": "user", "content": "x"}], **stop, **more}

    def needed():  # what is missing when a stream begins; ten come back in a second
        when(lambda: tokens_left(d, "b") == 600, 60 * SLOW)
        with httpx.stream("POST", json=body(stream=True, min_tokens=50), **about("b")) as answer:
            return 600 - int(answer.headers["x-ratelimit-remaining-tokens"])

    first = needed()
    outputs = []
    for _ in range(25):
        usage = httpx.post(json=body(), **about("a")).json()["usage"]
        outputs.append(usage["completion_tokens"])
    assert usage["prompt_tokens"] + 512 - 20 <= first <= usage["prompt_tokens"] + 512
    expected = sorted(outputs)[22]  # the 23rd of 25 is the first that 90 of 100 do not exceed
    guess = needed() - usage["prompt_tokens"]
    assert expected - 20 <= guess < 256, (guess, outputs)  # some are computed behind a stop string before it is seen
    assert d.stop() == 0


# ---- ends ----

def quotas(folder):
    return json.loads((folder / "quotas.json").read_text())["tenants"]


def test_cancelled_work_is_counted_to_the_token(serve, tmp_path):
    folder = tmp_path / "state"
    d = serve({"a": {"concurrent": 1}}, model=SLOW_MODEL, state_dir=str(folder))
    s = Stream(d, prompt=[7] * 500, max_tokens=7000)
    while b"data:" not in s.head:
        s.head += s.s.recv(4096)
    s.leave()
    when(lambda: ask(d, max_tokens=2, prompt=[9]).status_code == 200)
    assert d.stop() == 0
    used = quotas(folder)["a"]["day_tokens"]
    assert 504 <= used < 2000, used  # the prompt, what was computed until it was noticed, and the other request


def test_what_waited_and_was_never_computed_costs_nothing(serve, tmp_path):
    folder = tmp_path / "state"
    d = serve({"a": {}, "b": {}}, model=SLOW_MODEL, state_dir=str(folder), limits={"running_max": 1})
    long = Stream(d, "b")
    with pytest.raises(httpx.TimeoutException):
        httpx.post(d.url + "/v1/completions", timeout=0.5, headers={"Authorization": "Bearer " + KEY["a"]},
                   json={"model": "m", "prompt": [4] * 900, "max_tokens": 5})
    time.sleep(0.3)
    long.leave()
    assert ask(d, "b", max_tokens=1).status_code == 200
    assert d.stop() == 0
    assert "a" not in quotas(folder)


@pytest.mark.real  # mostly waits: half a minute with a sanitizer
def test_quotas_survive_being_killed(launch, tmp_path):
    folder = tmp_path / "state"
    c = config({"a": {"tokens_per_day": 96500}, "b": {"tokens_per_month": 96500}}, state_dir=str(folder))
    d = launch(c, args=["--allow-dummy"])
    seed = 20261122
    print("seed", seed)
    rng, used = random.Random(seed), {"a": 0, "b": 0}
    for round_no in range(3):
        for _ in range(10):
            who = rng.choice("ab")
            used[who] += ask(d, who, max_tokens=rng.randrange(1, 200)).json()["usage"]["total_tokens"]
        time.sleep(1.5 * SLOW)  # at most a second is lost
        lost = ask(d, "a", max_tokens=10).json()["usage"]["total_tokens"]
        d.process.kill()
        d.process.wait()
        kept = quotas(folder)
        assert used["a"] <= kept["a"]["day_tokens"] <= used["a"] + lost
        used["a"] = kept["a"]["day_tokens"]
        for who in "ab":
            assert used[who] == kept[who]["month_tokens"]
        d = launch(c, args=["--allow-dummy"])

    # A good end loses nothing at all.
    used["a"] += ask(d, "a").json()["usage"]["total_tokens"]
    assert d.stop() == 0
    assert quotas(folder)["a"]["day_tokens"] == used["a"]
    d = launch(c, args=["--allow-dummy"])
    refused = ask(d, "a", max_tokens=8000, n=12)
    assert f"{used['a']} are used" in error(refused, 429, "insufficient_quota", "insufficient_quota")
    assert d.stop() == 0


def test_what_runs_when_it_is_killed_counts_as_used(launch, tmp_path):
    folder = tmp_path / "state"
    c = config({"a": {"tokens_per_day": 100000}}, model=SLOW_MODEL, state_dir=str(folder))
    d = launch(c, args=["--allow-dummy"])
    s = Stream(d, max_tokens=7000)
    when(lambda: (folder / "quotas.json").exists())
    d.process.kill()
    d.process.wait()
    s.leave()
    assert quotas(folder)["a"]["day_tokens"] == 7003
    d.stop = lambda *a: 0


@pytest.mark.parametrize("text,words", [("{", "quotas.json"), ('{"version":9,"tenants":{}}', "quotas.json"),
                                        ('{"version":1,"tenants":{"a":{"day":"x"}}}', "quotas.json")])
def test_a_file_that_cannot_be_used_ends_the_start(launch, tmp_path, text, words):
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "quotas.json").write_text(text)
    d = launch(config({"a": {}}, state_dir=str(folder)), args=["--allow-dummy"], wait=None)
    assert d.process.wait(60 * SLOW) == 1
    assert words in d.stderr() and str(folder) in d.stderr(), d.stderr()
    assert (folder / "quotas.json").read_text() == text


def test_a_write_that_fails_is_told_and_tried_again(launch, tmp_path):
    folder = tmp_path / "state"
    d = launch(config({"a": {}}, state_dir=str(folder)), args=["--allow-dummy"])
    (folder / "quotas.json.new").mkdir()  # nothing can be written there, by root either
    assert ask(d).status_code == 200
    when(lambda: "quota_write_failed" in d.stderr())
    assert ask(d).status_code == 200
    time.sleep(2.5)
    assert d.stderr().count("quota_write_failed") == 1 and str(folder) in d.stderr()
    (folder / "quotas.json.new").rmdir()
    when(lambda: (folder / "quotas.json").exists())
    assert quotas(folder)["a"]["day_tokens"] == 14
    assert d.stop() == 0


# ---- reload ----

def reload(d, c):
    n = d.stderr().count("event=reload ")
    d.config_path.write_text(json.dumps({"listen": "127.0.0.1:0", **c}))
    d.process.send_signal(signal.SIGHUP)
    when(lambda: d.stderr().count("event=reload ") > n or "reload_refused" in d.stderr())


def test_a_reload_changes_limits_while_requests_run(launch, tmp_path):
    folder = str(tmp_path / "state")
    d = launch(config({"a": {"concurrent": 4, "tokens_per_day": 50000}, "b": {}}, model=SLOW_MODEL, state_dir=folder),
               args=["--allow-dummy"])
    held = [Stream(d, max_tokens=500) for _ in range(3)]
    reload(d, config({"a": {"concurrent": 1, "tokens_per_day": 3000, "requests_per_min": 100}, "b": {},
                      "c": {"requests_per_min": 2}}, model=SLOW_MODEL, state_dir=folder))
    refused = ask(d)
    assert "of at most 1 requests at once" in error(refused, 429, "requests", "concurrency_limit_exceeded")
    assert refused.headers["x-ratelimit-limit-requests"] == "100"
    for s in held:  # what runs goes on to its end
        text = s.head
        while b"[DONE]" not in text:
            piece = s.s.recv(1 << 16)
            assert piece, text[-500:]
            text += piece
        s.leave()
    when(lambda: ask(d, max_tokens=1).status_code == 200)
    assert "are used" in error(ask(d, max_tokens=2000), 429, "insufficient_quota", "insufficient_quota")
    assert [ask(d, "c").status_code for _ in range(3)] == [200, 200, 429]  # a tenant that is new
    reload(d, config({"a": {}, "c": {}}, model=SLOW_MODEL, state_dir=folder))
    assert ask(d, max_tokens=2000).status_code == 200
    assert ask(d, "c", n=5).status_code == 200
    assert ask(d, "b").status_code == 401
    assert d.stop() == 0


# ---- which limit, and targets ----

def test_the_limit_that_is_waited_for_is_told(serve):
    """places that are all free were once told as the reason, with a minute, when requests_per_min was used up"""
    d = serve({"a": {"requests_per_min": 30, "concurrent": 4}})
    while ask(d, max_tokens=1, n=4).status_code == 200:
        pass
    when(lambda: ask(d, max_tokens=1).status_code == 429)
    due = []
    for _ in range(4):
        answer = ask(d, max_tokens=1)
        error(answer, 429, "requests", "rate_limit_exceeded")
        due.append(time.monotonic() + int(answer.headers["Retry-After"]))
    assert all(a < b for a, b in zip(due, due[1:])) and due[-1] < time.monotonic() + 30
    assert d.stop() == 0


def test_a_day_that_is_only_reserved_comes_back(serve, tmp_path):
    d = serve({"a": {"tokens_per_day": 9000}}, model=SLOW_MODEL, state_dir=str(tmp_path / "s"))
    assert ask(d).status_code == 200
    stream = Stream(d)
    answer = ask(d, max_tokens=2000)
    assert "reserved by 1 running requests" in error(answer, 429, "insufficient_quota", "insufficient_quota")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60 and "x-should-retry" not in answer.headers
    stream.leave()
    when(lambda: ask(d, max_tokens=2000).status_code == 200)
    assert d.stop() == 0


def test_a_guess_is_cut_to_what_is_left_of_the_day(serve, tmp_path):
    """a chat without max_tokens counts as 512 tokens at first, and was refused with 97 left"""
    d = serve({"a": {"tokens_per_day": 1000}}, state_dir=str(tmp_path / "s"))
    assert ask(d, max_tokens=900).status_code == 200
    answer = httpx.post(d.url + "/v1/chat/completions", timeout=60 * SLOW, headers={"Authorization": "Bearer " + KEY["a"]},
                        json={"model": "m", "messages": [{"role": "user", "content": "x"}], "stop": ["w", "a", "e", "o"]})
    assert answer.status_code == 200, answer.text
    assert d.stop() == 0


def test_a_target_that_cannot_be_kept_is_refused_for_a_configuration(launch):
    """a request with such a target is served, as well as it can be; a configuration could promise anything"""
    key = "sk-admin-0123456789"
    slow = "dummy:tiny?dtype=q4_k_m&layers=400&context=512"  # a step takes more than a millisecond
    d = launch(config({"a": {}}, model=slow, admin={"keys": [key]}),
               args=["--allow-dummy"], wait="line")
    admin = httpx.Client(base_url=d.url, headers={"Authorization": "Bearer " + key}, timeout=60 * SLOW)
    assert ask(d, max_tokens=30).status_code == 200
    assert ask(d, headers={"x-llm-d-slo-tpot-ms": "1"}).status_code == 200
    assert 'inferd_slo_requests_total{model="m",target="tpot",kept="false"} 1' in admin.get("/metrics").text

    answer = admin.patch("/admin/models/m", json={"slo": {"tpot_ms": 1}})
    assert answer.status_code == 409, answer.text
    assert "slo.tpot_ms" in answer.text and "> 1" in answer.text
    assert admin.get("/admin/models/m").json()["slo"]["tpot_ms"] == 0
    asked = {"name": "m", "path": slow, "slo": {"tpot_ms": 1}}
    plan = admin.post("/admin/plan", json={"model": asked}).json()
    check = next(c for c in plan["checks"] if c["name"] == "targets")
    assert not check["kept"] and check["need_percent"] > check["have_percent"] == 100 and not plan["fits"]
    assert admin.patch("/admin/models/m", json={"slo": {"tpot_ms": 10000}}).status_code == 200
    use = admin.get("/admin/tenants/a").json()["use"]
    assert use["running"] == 0 and use["tokens_reserved"] == 0
    assert d.stop() == 0


# ---- the openai package ----

def test_the_openai_package_waits_as_it_is_told(serve):
    d = serve({"a": {"requests_per_min": 60}})
    client = d.openai(KEY["a"], max_retries=1)
    client.models.list()  # what it loads when it is first used
    assert ask(d, n=60).status_code == 200
    begun = time.monotonic()
    answer = client.completions.create(model="m", prompt=[1, 2], max_tokens=2, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 4 and 0.9 <= time.monotonic() - begun < 5 * SLOW
    # What can never pass is raised at once, also with retries.
    begun = time.monotonic()
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model="m", prompt=[1, 2], max_tokens=2, n=61)
    assert e.value.code == "request_exceeds_limit" and time.monotonic() - begun < 1
    assert d.stop() == 0


def test_a_quota_that_lasts_is_not_tried_again(serve, tmp_path):
    d = serve({"a": {"tokens_per_month": 100}}, state_dir=str(tmp_path / "s"))
    client = d.openai(KEY["a"], max_retries=3)
    client.completions.create(model="m", prompt=[1, 2], max_tokens=90, extra_body={"ignore_eos": True})
    begun = time.monotonic()
    with pytest.raises(openai.RateLimitError) as e:
        client.completions.create(model="m", prompt=[1, 2], max_tokens=90)
    assert e.value.code == "insufficient_quota" and e.value.type == "insufficient_quota"
    assert time.monotonic() - begun < 1
    assert d.stop() == 0


@pytest.mark.real  # 10 s of waiting each at full speed, minutes with a sanitizer
@pytest.mark.parametrize("limits,same", [({"requests_per_min": 600}, False), ({"requests_per_min": 600}, True),
                                         ({"tokens_per_min": 16000}, False)], ids=str)
def test_thirty_clients_succeed_at_their_first_retry(serve, limits, same):
    """Everybody asks at once, again and again; who is refused comes back when told.  Also when all send one body."""
    d = serve({"a": limits})
    tries = []  # of each request
    lock = threading.Lock()

    def client_of(i):
        count = {"n": 0}

        def on_request(_):
            count["n"] += 1

        http = httpx.Client(timeout=120 * SLOW, event_hooks={"request": [on_request]})
        client = d.openai(KEY["a"], max_retries=8, http_client=http)
        for k in range(23):
            count["n"] = 0
            answer = client.completions.create(model="m", prompt=[5] if same else [5, i, k], max_tokens=24,
                                               extra_body={"ignore_eos": True})
            assert answer.usage.completion_tokens == 24
            with lock:
                tries.append(count["n"])
        http.close()

    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        list(pool.map(client_of, range(30)))
    retried = [t for t in tries if t > 1]
    second = sum(t == 2 for t in retried)
    print(f"{len(tries)} requests, {len(retried)} were refused, {second} succeeded at the first retry")
    assert len(retried) >= 20
    assert second >= 0.9 * len(retried)
    assert d.stop() == 0


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o755, None])
def test_state_dir_must_be_ours(launch, tmp_path, mode):
    """A folder that could not be written started the daemon all the same, and use of the day was lost at its end."""
    folder = tmp_path / "s" if mode is not None else Path("/sys/kernel")  # which root cannot write, either
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    good = mode in (0o775, 0o755)
    d = launch(config({"a": {}}, state_dir=str(folder)), args=["--allow-dummy"], wait="ready" if good else None)
    if not good:
        assert d.process.wait(60 * SLOW) == 1
        why = "cannot be written: " if mode is None else f"all users may write it (mode {mode:04o})"
        assert f"state_dir {folder}" in d.stderr() and why in d.stderr(), d.stderr()
    assert ("event=state_dir" in d.stderr()) == (mode == 0o775)
    if mode is not None:
        assert not [p for p in folder.iterdir() if p.name.startswith(".try")]
    assert d.stop() == (0 if good else 1)


# ---- fields and headers ----

def test_keep_alive_is_checked_and_applied(launch):
    d = launch(config({"a": {}}), args=["--allow-dummy"])

    def state():
        for line in get(d, "/metrics").text.splitlines():
            if line.startswith("inferd_model_state{") and line.rsplit(" ", 1)[1] == "1":
                return line.split('state="')[1].split('"')[0]

    for bad in ("soon", "", [], {}, True, "1s2h", "-3", -3, 1e300):
        r = ask(d, keep_alive=bad)
        assert r.status_code == 400 and r.json()["error"]["param"] == "keep_alive", (bad, r.text)
        assert "number of seconds" in r.json()["error"]["message"]
    for good in ("5m", 300, "1.5", "never", -1, "-1", None):
        assert ask(d, keep_alive=good).status_code == 200, good
    assert state() == "hot"
    assert ask(d, keep_alive="0").status_code == 200
    when(lambda: state() != "hot")
    assert ask(d).status_code == 200  # it comes back, and leaves again
    when(lambda: state() != "hot")
    assert ask(d, keep_alive="never").status_code == 200
    time.sleep(0.5)
    assert state() == "hot"
    assert d.stop() == 0


def test_a_tenant_sends_no_model_away_that_others_use(launch):
    """`"keep_alive": 0` of one tenant unloaded the model for everybody."""
    c = config({"a": {}, "b": {"also": {"models": ["m"]}}})
    c["models"] = [{"name": "m", "path": MODEL, "keep_alive": "10m"},
                   {"name": "own", "path": MODEL + "&seed=2", "keep_alive": "10m"}]
    c["admin"] = {"keys": ["admin-key-0123456789"]}
    d = launch(c, args=["--allow-dummy"])

    def kept(model):
        r = httpx.get(f"{d.url}/admin/models/{model}", headers={"Authorization": "Bearer admin-key-0123456789"})
        return r.json()["keep_alive_s"]

    for who, asked, seconds in (("a", 0, 600), ("b", "30s", 600), ("a", "1h", 3600), ("b", "20m", 1200), ("a", 0, 600),
                                ("b", "never", "never"), ("a", 0, 600)):
        assert ask(d, who, keep_alive=asked).status_code == 200
        when(lambda: kept("m") == seconds)
    assert ask(d, "a", model="own", keep_alive=5).status_code == 200  # nobody else may use it
    when(lambda: kept("own") == 5)
    assert d.stop() == 0


def test_a_request_without_a_class_gets_that_of_its_model(launch):
    c = config({"a": {"also": {"max_class": "high"}}, "b": {"also": {"max_class": "batch"}}})
    c["models"] = [{"name": "m", "path": MODEL, "class": "batch"},
                   {"name": "fast", "path": MODEL + "&seed=2", "class": "high"}]
    d = launch(c, args=["--allow-dummy"])

    def tier(who, headers=(), **more):
        r = ask(d, who, headers, **more)
        assert r.status_code == 200, r.text
        return r.json()["service_tier"]

    assert [tier("a"), tier("a", model="fast"), tier("b", model="fast")] == ["flex", "priority", "flex"]
    assert tier("a", service_tier="default") == "default" and tier("a", service_tier="auto") == "flex"
    header = {"x-inferd-class": "high"}
    assert tier("a", header) == "priority" and tier("b", header) == "flex"
    assert tier("a", header, service_tier="default") == "default"
    assert tier("a", header, priority="batch") == "flex"
    assert tier("a", {"x-inferd-class": "system"}) == "priority"
    assert d.stop() == 0


# ---- memory of a tenant ----

def finished(d, who, prompt, begun=None, **more):
    """A stream read to its end: its tokens, and what it says of its way."""
    body = {"model": "m", "prompt": prompt, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
            "stream": True, "stream_options": {"include_usage": True}, "usage_details": True, **more}
    tokens, usage, events = [], None, 0
    with httpx.stream("POST", d.url + "/v1/completions", json=body, timeout=120 * SLOW,
                      headers={"Authorization": "Bearer " + KEY[who]}) as r:
        assert r.status_code == 200, r.read()
        for line in r.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            for c in event["choices"]:
                tokens += c.get("token_ids") or []
            usage = event.get("usage") or usage
            events += 1
            if begun and tokens:
                begun.set()
    return tokens, usage["inferd"]


@pytest.mark.real  # mostly waits: half a minute with a sanitizer
def test_over_its_memory_a_tenant_waits_for_itself(serve, tmp_path):
    """More than `max` for one request is told before it is begun, with the number.  What runs and comes to need more
    pushes out the newest of its tenant, nobody else's, and that one goes on where it was."""
    admin = tmp_path / "admin.sock"
    d = serve({"a": {}, "b": {}}, model=SLOW_MODEL, admin={"listen": f"unix:{admin}"})
    length = 1500
    first, second, third = ([7 + i] * 40 for i in range(3))
    wanted = {p[0]: finished(d, "b", p, max_tokens=length)[0] for p in (first, second, third)}
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(admin)), base_url="http://localhost", timeout=60) as c:
        def allow(size):
            r = c.patch("/admin/tenants/a", json={"max": size})
            assert r.status_code == 200, r.text

        allow("64KiB")
        r = ask(d, max_tokens=length)
        assert r.status_code == 429 and r.json()["error"]["code"] == "insufficient_quota", r.text
        needed, most = map(int, re.fullmatch(r"the request needs (\d+) KiB for keys and values, the tenant may have "
                                             r"(\d+)", r.json()["error"]["message"]).groups())
        assert most == 64 and needed > 64
        assert r.headers["x-should-retry"] == "false" and "retry-after" not in r.headers
        allow(0)  # no ceiling
        begun = [threading.Event() for _ in range(3)]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(finished, d, who, p, e, max_tokens=length)
                    for (who, p, e) in (("b", third, begun[2]), ("a", first, begun[0]))]
            assert begun[0].wait(60 * SLOW)
            runs.append(pool.submit(finished, d, "a", second, begun[1], max_tokens=length))
            assert begun[1].wait(60 * SLOW)
            allow(f"{needed + needed // 10}KiB")  # one of them to its end, and no second beside it
            (others, other), (olds, old), (news, new) = (r.result() for r in runs)
    assert olds == wanted[first[0]] and news == wanted[second[0]] and others == wanted[third[0]]
    assert old["preempted"] == 0 and other["preempted"] == 0, (old, other)
    assert new["preempted"] >= 1 and sum(new["preemptions"].values()) >= 1, new
    assert d.stop() == 0


def test_over_its_memory_a_model_says_so(serve, tmp_path):
    """What a model's own `max` could never hold is told with both numbers, and is no fault of the request: with another
    ceiling it is answered."""
    admin = tmp_path / "admin.sock"
    d = serve({"a": {}}, model=SLOW_MODEL, admin={"listen": f"unix:{admin}"})
    assert ask(d).status_code == 200
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(admin)), base_url="http://localhost", timeout=60) as c:
        def allow(n_bytes):
            r = c.patch("/admin/models/m", json={"max": n_bytes})
            assert r.status_code == 200, r.text

        weights = c.get("/admin/state").json()["models"][0]["pages"]["weight"]
        allow((weights + 1) << 21)
        until = time.monotonic() + 10 * SLOW  # the engine hears of it between two steps
        while (r := ask(d, max_tokens=8000)).status_code == 200 and time.monotonic() < until:
            pass
        assert r.status_code == 429 and r.json()["error"]["code"] == "insufficient_quota", r.text
        assert r.headers["x-should-retry"] == "false" and "retry-after" not in r.headers
        needed, most = map(int, re.fullmatch(r"the request needs keys and values of (\d+) tokens, the model's max leaves "
                                             r"room for (\d+)", r.json()["error"]["message"]).groups())
        assert needed == 3 + 8000 - 1 and 0 < most < needed
        assert ask(d, max_tokens=most - 2).status_code == 200  # the last one drawn is not stored
        # Below its weights nothing ever fits: once it was 503 and "again in a second" unless the model was there.
        assert c.post("/admin/models/m/drop", json={"wait": True}).status_code == 200
        allow((weights - 1) << 21)
        for _ in range(3):
            r = ask(d)
            assert r.status_code == 429 and r.json()["error"]["code"] == "insufficient_quota", r.text
            assert re.search(r"max", r.json()["error"]["message"]) and "retry-after" not in r.headers
            c.post("/admin/models/m/load", json={"wait": True})  # it fails, and that is no reason for another answer
        allow(0)
        until = time.monotonic() + 10 * SLOW
        while (r := ask(d, max_tokens=most)).status_code != 200 and time.monotonic() < until:
            pass
        assert r.status_code == 200, r.text
    assert d.stop() == 0


def test_the_first_no_is_the_answer_and_takes_nothing(serve, tmp_path):
    """The order of admission.c: what can never fit is said also when the queue is full and the tenant over its limit,
    a full queue comes before the limit, and a refusal takes neither a queue slot nor a request of the minute."""
    admin = tmp_path / "admin.sock"
    d = serve({"a": {"requests_per_min": 2}, "b": {}}, model=SLOW_MODEL, admin={"listen": f"unix:{admin}"},
              limits={"running_max": 2, "queue_len_max": 14, "client_timeout_ms": 2000})
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(admin)), base_url="http://localhost", timeout=60) as c:
        def state():
            return c.get("/admin/state").json()

        def used():
            return state()["places"]["used"]

        def room_with(n_pages):
            assert c.patch("/admin/models/m", json={"max": (weights + n_pages) << 21}).status_code == 200
            when(lambda: "the model's max" in ask(d, "b", max_tokens=8000).text)
            return int(re.search(r"leaves room for (\d+)", ask(d, "b", max_tokens=8000).text).group(1))

        weights = state()["models"][0]["pages"]["weight"]
        room_with(7000 // room_with(1))
        when(lambda: used() == 0)
        for _ in range(3):
            r = ask(d, max_tokens=8000)
            assert (r.status_code, r.json()["error"]["code"]) == (429, "insufficient_quota"), r.text
            assert r.headers["x-ratelimit-remaining-requests"] == "2"
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            flood = list(pool.map(lambda i: Stream(d, "b", prompt=[5, 6, i], max_tokens=4000), range(16)))
        held = [s for s in flood if s.status == 200]
        assert len(held) == 15 and used() == 15  # one slot is kept for the class high
        error(ask(d), 503, "overloaded_error", "server_overloaded")
        assert "the model's max leaves room for" in ask(d, max_tokens=8000).json()["error"]["message"]
        for s in flood:
            s.leave()
        when(lambda: used() == 0)
        assert [ask(d).status_code for _ in range(3)] == [200, 200, 429]
        assert "the model's max leaves room for" in ask(d, max_tokens=8000).json()["error"]["message"]
        assert used() == 0
    assert d.stop() == 0


def test_headers_of_gateways_are_checked(serve):
    d = serve({"a": {}})
    for good in ({"x-slo-ttft-ms": "200", "x-llm-d-slo-tpot-ms": "50"}, {"x-llm-d-slo-ttft-ms": "200"},
                 {"x-slo-ttft-ms": "7", "x-llm-d-slo-ttft-ms": "7"}, {"x-llm-d-inference-fairness-id": "who cares"},
                 {"x-slo-ttft-ms": "86400000"}):
        assert ask(d, headers=good).status_code == 200, good
    for bad in ({"x-slo-ttft-ms": "0"}, {"x-slo-ttft-ms": "fast"}, {"x-llm-d-slo-tpot-ms": "-5"},
                {"x-llm-d-slo-ttft-ms": "1.5"}, {"x-inferd-class": "urgent"}, {"x-slo-ttft-ms": "86400001"},
                {"x-slo-ttft-ms": "99999999999999999999"}, {"x-slo-ttft-ms": "7", "x-llm-d-slo-ttft-ms": "8"}):
        r = ask(d, headers=bad)
        assert r.status_code == 400 and r.json()["error"]["code"] == "invalid_value", (bad, r.text)
        assert r.json()["error"]["param"] == next(iter(bad))
    assert d.stop() == 0


def test_usage_details_are_told_when_asked_for(serve):
    d = serve({"a": {}})
    plain = ask(d).json()["usage"]
    assert "inferd" not in plain
    more = ask(d, usage_details=True, n=2, service_tier="flex").json()["usage"]
    inferd = more.pop("inferd")
    assert set(inferd) == {"queued_ms", "queued_steps", "preempted", "class", "preemptions", "away_us", "recomputed_tokens",
                           "preempt_cost_us", "device_us"} and inferd["class"] == "batch"
    assert inferd["preempted"] == 0 and 0 <= inferd["queued_ms"] < 10000 * SLOW
    assert set(more) == set(plain)
    text = ask(d, usage_details=True, stream=True, stream_options={"include_usage": True}).text
    last = json.loads(text.split("data: ")[-2])
    assert last["usage"]["inferd"]["class"] == "normal"
    assert "inferd" not in ask(d, stream=True, stream_options={"include_usage": True}).text.split("data: ")[-2].replace(
        "inferd_", "")
    when(lambda: d.stderr().count("event=done") >= 4)
    assert all("preempted=0" in line for line in d.stderr().splitlines() if "event=done" in line)
    assert ask(d, usage_details=1).status_code == 400
    assert d.stop() == 0


# ---- waiting streams ----

@pytest.mark.real  # mostly waits: half a minute with a sanitizer
def test_a_stream_that_waits_shows_that_it_lives(launch):
    """Behind a long one, with one sequence at a time: headers and a comment line before the first token."""
    d = launch(config({"a": {"requests_per_min": 100}}, model=SLOW_MODEL,
                      limits={"running_max": 1, "client_timeout_ms": 2000, "queue_timeout_ms": 4000 * min(SLOW, 3)}),
               args=["--allow-dummy"])
    first = Stream(d)
    begun = time.monotonic()
    second = Stream(d, max_tokens=5, prompt=[1])
    waited = time.monotonic() - begun
    assert second.status == 200 and 0.95 <= waited < 3 * SLOW, waited
    assert b"x-ratelimit-limit-requests: 100" in second.head.lower()
    while b": waiting\n\n" not in second.head:
        second.head += second.s.recv(4096)
    assert b"data:" not in second.head
    # Nobody lets it in: the failure is an event, and the stream ends.
    text = second.head
    while True:
        piece = second.s.recv(4096)
        text += piece
        if not piece or b"0\r\n\r\n" in text:
            break
    assert b'"code":"deadline_exceeded"' in text and b"[DONE]" not in text
    assert text.count(b": ping") >= 1  # and the transport goes on beating
    # What is not streamed keeps its status.
    assert ask(d, max_tokens=5).status_code == 504
    first.leave()
    assert ask(d, stream=True).text.startswith("data: ")  # quick ones have no comment
    assert d.stop() == 0


def test_a_quick_refusal_of_a_stream_keeps_its_status(launch):
    d = launch(config({"a": {}}, model=SLOW_MODEL, limits={"running_max": 1, "queue_timeout_ms": 500}), args=["--allow-dummy"])
    first = Stream(d)
    assert Stream(d).status == 504
    first.leave()
    assert d.stop() == 0
