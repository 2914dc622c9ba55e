"""What a new user would try that the other files do not: tenants and classes, conversations with tool
messages, client timeouts, a full queue, exact metrics, memory over thousands of requests."""

import json
import re
import socket
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, SANITIZE, SLOW, model_config

HELLO = [{"role": "user", "content": "hi"}]
KEYS = {name: f"sk-{name * 16}" for name in "abcd"}


@pytest.fixture(scope="module")
def tenants(launch, tiny_model, tmp_path_factory):
    """a: batch, the model by its name; b: high, by its alias; c: system; d: as the defaults say."""
    key_file = tmp_path_factory.mktemp("keys") / "b.keys"
    key_file.write_text(f"# of b\n{KEYS['b']}\n")
    key_file.chmod(0o600)
    return launch(
        {**model_config(tiny_model, "tiny", model={"aliases": ["small"]}),
         "tenants": [
             {"name": "a", "keys": [KEYS["a"]], "models": ["tiny"], "max_class": "batch"},
             {"name": "b", "key_file": str(key_file), "models": ["small"], "max_class": "high"},
             {"name": "c", "key_env": "INFERD_TEST_KEY_C", "max_class": "system"},
             {"name": "d", "keys": [KEYS["d"]]}]},
        env={"INFERD_TEST_KEY_C": KEYS["c"]})


def ask(d, key, **more):
    return httpx.post(d.url + "/v1/chat/completions", timeout=60 * SLOW,
                      headers={"Authorization": "Bearer " + key} if key else {},
                      json={"model": "tiny", "messages": HELLO, "max_tokens": 1, **more})


@pytest.mark.parametrize("name", KEYS)
def test_a_tenant_uses_a_model_by_every_name_when_its_list_has_one(tenants, name):
    client = tenants.openai(KEYS[name])
    assert [m.id for m in client.models.list()] == ["tiny", "small"]
    assert client.models.retrieve("small").id == "small"
    for model in ("tiny", "small"):
        assert ask(tenants, KEYS[name], model=model).status_code == 200


CLASSES = [  # asked for, then the tier that a, b, c and d get
    ({"service_tier": "priority"}, ["flex", "priority", "priority", "default"]),
    ({"service_tier": "flex"}, ["flex"] * 4),
    ({"priority": "system"}, ["flex", "priority", "priority", "default"]),
    ({"priority": "high"}, ["flex", "priority", "priority", "default"]),
    ({"priority": "normal"}, ["flex", "default", "default", "default"]),
    ({"priority": "batch"}, ["flex"] * 4),
    ({"priority": "batch", "service_tier": "priority"}, ["flex"] * 4),
    ({"priority": -5}, ["flex", "default", "default", "default"]),
    ({}, ["flex", "default", "default", "default"]),
]


@pytest.mark.parametrize("more,tiers", CLASSES, ids=[json.dumps(c[0]) for c in CLASSES])
def test_the_class_asked_for_is_capped_by_the_tenant(tenants, more, tiers):
    got = [ask(tenants, KEYS[name], **more).json()["service_tier"] for name in "abcd"]
    assert got == tiers


def test_a_tenant_with_an_empty_list_of_models_is_refused(tmp_path, tiny_model):
    """It must not be read as "all of them"."""
    f = tmp_path / "c.json"
    f.write_text(json.dumps({**model_config(tiny_model), "tenants": [
        {"name": "a", "keys": [KEYS["a"]], "models": []}]}, indent=1))
    r = subprocess.run([BUILD / "inferd", "check", "--config", f], capture_output=True, text=True)
    line = next(i + 1 for i, x in enumerate(f.read_text().splitlines()) if '"models": []' in x)
    assert r.returncode == 2 and f"c.json:{line}: tenants[0].models" in r.stdout + r.stderr


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_a_history_with_tool_calls_renders_as_with_empty_content(tiny, content):
    def tokens(**filled):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        r = tiny.http.post("/tokenize", json={"model": "tiny", "messages": HELLO + [
            {"role": "assistant", "tool_calls": [call], **filled},
            {"role": "tool", "tool_call_id": "c", "content": "42"}]})
        assert r.status_code == 200, r.text
        return r.json()["tokens"]

    assert tokens(**content) == tokens(content="")


@pytest.mark.parametrize("more", [{}, {"tool_calls": []}, {"tool_calls": None, "reasoning_content": "hm"}],
                         ids=["alone", "no calls", "reasoning"])
@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_without_tool_calls_no_content_is_an_empty_one(tiny, content, more):
    """Our own answer has content null when it is cut in its reasoning, and clients send it back."""
    def tokens(**said):
        r = tiny.http.post("/tokenize", json={"model": "tiny", "messages": HELLO + [{"role": "assistant", **said}] + HELLO})
        assert r.status_code == 200, r.text
        return r.json()["tokens"]

    assert tokens(**content, **more) == tokens(content="")


@pytest.mark.parametrize("role", ["user", "system"])
def test_others_need_content(tiny, role):
    r = ask(tiny, None, messages=HELLO + [{"role": role, "content": None}])
    assert r.status_code == 400 and r.json()["error"]["param"] == "messages[1].content"


def test_nothing_is_no_tokens_and_no_tokens_are_nothing(tiny):
    assert tiny.http.post("/tokenize", json={"model": "tiny", "prompt": ""}).json()["tokens"] == []
    assert tiny.http.post("/detokenize", json={"model": "tiny", "tokens": []}).json() == {"prompt": ""}


@pytest.fixture(scope="module")
def narrow(launch, tiny_model):
    """Room for two sequences that run and two that wait."""
    return launch({**model_config(tiny_model, "tiny"), "limits": {"running_max": 2, "queue_len_max": 2}})


def test_a_request_that_fits_the_limits_is_never_refused_by_an_idle_server(narrow):
    body = {"model": "tiny", "max_tokens": 3, "ignore_eos": True}
    for more in ({"prompt": "x", "n": 4}, {"prompt": ["a", "b"], "n": 2}, {"prompt": list("abcd")}):
        r = narrow.http.post("/v1/completions", json={**body, **more})
        assert r.status_code == 200, r.text
        assert len(r.json()["choices"]) == 4
    r = narrow.http.post("/v1/completions", json={**body, "prompt": "x", "n": 5})
    assert r.status_code == 400 and r.json()["error"]["param"] == "n"


def long_answer(d, hint, stream, n_tokens):
    return httpx.post(d.url + "/v1/completions", timeout=60 * SLOW, headers=hint, json={
        "model": "tiny", "prompt": "x", "max_tokens": n_tokens, "ignore_eos": True, "stream": stream, "n": 32})


@pytest.mark.parametrize("name", ["x-stainless-timeout", "x-stainless-read-timeout"])
def test_a_timeout_of_the_client_ends_a_whole_answer_but_not_a_stream(tiny, name):
    whole = long_answer(tiny, {name: "0.05"}, False, 2000)
    assert whole.status_code == 504
    assert whole.json()["error"] == {**whole.json()["error"], "type": "timeout_error", "param": None,
                                     "code": "deadline_exceeded"}
    streamed = long_answer(tiny, {name: "0.5" if not SANITIZE else "5"}, True, 1500)
    assert streamed.status_code == 200 and streamed.text.endswith("data: [DONE]\n\n"), streamed.text[-300:]
    tiny.settled()


def test_a_stream_that_waits_longer_than_its_client_ends_with_504(launch, tiny_model):
    d = launch({**model_config(tiny_model, "tiny"), "limits": {"running_max": 1}})
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    threads = [threading.Thread(target=lambda: httpx.post(d.url + "/v1/completions", json=body, timeout=100 * SLOW))
               for _ in range(4)]
    for t in threads:
        t.start()
    while d.metric("inferd_sequences_waiting") < 3:
        time.sleep(0.002)
    r = httpx.post(d.url + "/v1/completions", json=body, headers={"x-stainless-timeout": "0.01"}, timeout=100 * SLOW)
    assert r.status_code == 504 and r.json()["error"]["code"] == "deadline_exceeded", r.text[:500]
    for t in threads:
        t.join()
    d.settled()
    assert d.stop() == 0


def test_the_openai_package_waits_and_tries_again_when_the_queue_is_full(narrow):
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1500, "ignore_eos": True}
    threads = [threading.Thread(target=lambda: httpx.post(narrow.url + "/v1/completions", json=body,
                                                          timeout=100 * SLOW)) for _ in range(8)]
    for t in threads:
        t.start()
    answer = narrow.openai(max_retries=8).completions.create(model="tiny", prompt="x", max_tokens=2)
    assert answer.usage.completion_tokens <= 2
    for t in threads:
        t.join()
    narrow.settled()


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="[^"]*"(?:,[a-zA-Z_]\w*="[^"]*")*\})? (\S+)')


def scrape(d):
    """All samples by name and labels; fails on what is not the text format."""
    samples, types = {}, {}
    for line in d.http.get("/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, line
            types[name] = kind
        elif not line.startswith("# HELP "):
            m = SAMPLE.fullmatch(line)
            assert m, line
            assert m[1] + (m[2] or "") not in samples, line
            samples[m[1] + (m[2] or "")] = float(m[3])
            base = re.sub(r"_(bucket|sum|count)$", "", m[1])
            assert m[1] in types or types.get(base) == "histogram", line
    return samples


def test_metrics_count_exactly_what_was_asked(launch, tiny_model):
    d = launch({**model_config(tiny_model, "tiny"), "log": {"level": "debug"}})
    n_prompt = n_output = 0
    secret = "a-very-private-prompt"
    for i in range(6):
        u = d.http.post("/v1/completions", json={"model": "tiny", "prompt": f"{secret} {i}", "max_tokens": 4 + i,
                                                 "ignore_eos": True, "stream": False, "user": secret}).json()["usage"]
        n_prompt, n_output = n_prompt + u["prompt_tokens"], n_output + u["completion_tokens"]
    d.http.post("/v1/completions", json={"model": "tiny", "prompt": secret, "max_tokens": 10 ** 6})
    d.http.post("/v1/completions", content=b"{" + secret.encode(), headers={"content-type": "application/json"})
    d.http.post("/v1/completions", json={"model": secret, "prompt": secret})
    d.http.get("/" + secret)
    d.settled()
    s = scrape(d)
    want = {
        'inferd_requests_total{model="tiny",outcome="length"}': 6,
        'inferd_requests_total{model="tiny",outcome="refused"}': 1,
        'inferd_prompt_tokens_total{model="tiny"}': n_prompt,
        'inferd_output_tokens_total{model="tiny"}': n_output,
        'vllm:generation_tokens_total{model_name="tiny",engine="0"}': n_output,
        'inferd_time_to_first_token_seconds_count{model="tiny"}': 6,
        'inferd_time_to_first_token_seconds_bucket{model="tiny",le="+Inf"}': 6,
        'inferd_inter_token_seconds_count{model="tiny"}': n_output - 6,
        'inferd_queue_seconds_count{model="tiny"}': 6,
        'inferd_http_responses_total{route="/v1/completions",status="200"}': 6,
        'inferd_http_responses_total{route="/v1/completions",status="400"}': 2,
        'inferd_http_responses_total{route="/v1/completions",status="404"}': 1,
        'inferd_sequences_running': 0, 'inferd_sequences_waiting': 0,
    }
    assert {k: s.get(k) for k in want} == want
    assert secret not in d.http.get("/metrics").text and secret not in d.stderr()
    assert d.stop() == 0


def test_pipelined_requests_are_answered_in_order_behind_a_stream(tiny):
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 3, "stream": True}).encode()
    post = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)) + body
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    got = b""
    with socket.create_connection(("127.0.0.1", tiny.port)) as s:
        s.settimeout(20 * SLOW)
        s.sendall(health * 5 + post + health * 3 + post + last)
        while part := s.recv(65536):
            got += part
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200"] * 10 + [b"404"]
    assert got.count(b"data: [DONE]") == 2


def test_memory_stays_the_same_over_2000_requests(launch, tiny_model):
    # Conversations that are kept fill their memory in the first round; later ones displace them.
    d = launch(model_config(tiny_model, "tiny", memory="16MiB", limits={"transcript_bytes_max": "256KiB"}))

    def many(n):
        for i in range(n):
            r = d.http.post("/v1/chat/completions", json={
                "model": "tiny", "messages": [{"role": "user", "content": f"hello {i}"}], "max_tokens": 3,
                "stream": i % 2 == 0, "logprobs": i % 3 == 0, "stop": ["zzz"],
                "temperature": 3 if i % 5 == 0 else 1})
            assert r.status_code == (400 if i % 5 == 0 else 200)

    # First what is touched once: the pages of the pool, and tables of fixed size that fill up.
    many(50 if SANITIZE else 2500)
    before = d.rss_at_rest()
    many(200 if SANITIZE else 2000)
    grown = d.rss_at_rest() - before
    print(f"RSS grew {grown} bytes")
    assert SANITIZE or grown < 256 << 10  # 128 bytes each; sanitizers keep freed memory for a while
    d.settled()
    assert d.stop() == 0
