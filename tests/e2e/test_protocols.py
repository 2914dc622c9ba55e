"""What must be the same in every protocol, tried in each: chat completions, Responses and Messages.  A protocol here is
how a body is written and how its answer is read; the tests know no more of it."""

import concurrent.futures
import dataclasses
import json
import re
import signal
import socket
import threading
import time
import urllib.parse

import httpx
import pytest

import scripted
from conftest import SLOW
from test_scripted import LONG, crowded, document

JSON = {"content-type": "application/json"}


class Protocol:
    """Chat completions; the others say what they have otherwise."""

    name, path, field = "chat", "/v1/chat/completions", "messages"
    limit, stop, max_is_bound = "max_tokens", "stop", False

    def ask(self, text, n=None, **more):
        return {"model": "m", self.field: [{"role": "user", "content": text}],
                **({} if n is None else {self.limit: n}), **more}

    def tool(self, name="f"):
        return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}

    def text(self, answer):
        return answer["choices"][0]["message"]["content"]

    def ended(self, answer):
        return answer["choices"][0]["finish_reason"]

    def delta(self, event):
        """(its text, the stream has ended, its failure)"""
        if "error" in event:
            return "", True, event["error"]["message"]
        choice = event["choices"][0]
        return choice["delta"].get("content") or "", choice["finish_reason"] is not None, None

    def failed(self, answer):
        """The message and the field of an error in the protocol's form."""
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}, body
        return body["error"]["message"], body["error"]["param"] or ""

    status_of_overload = 503


class Responses(Protocol):
    name, path, field = "responses", "/v1/responses", "input"
    limit = "max_output_tokens"

    def tool(self, name="f"):
        return {"type": "function", "name": name, "parameters": {"type": "object"}}

    def text(self, answer):
        return answer["output"][0]["content"][0]["text"]

    def ended(self, answer):
        return {"completed": "stop", "incomplete": "length"}[answer["status"]]

    def delta(self, event):
        kind = event["type"]
        failure = event["response"]["error"]["message"] if kind == "response.failed" else None
        done = kind in ("response.completed", "response.incomplete", "response.failed")
        return event["delta"] if kind == "response.output_text.delta" else "", done, failure


class Messages(Protocol):
    name, path = "messages", "/v1/messages"
    stop, max_is_bound, status_of_overload = "stop_sequences", True, 529

    def ask(self, text, n=None, **more):
        return super().ask(text, 100_000 if n is None else n, **more)

    def tool(self, name="f"):
        return {"name": name, "input_schema": {"type": "object"}}

    def text(self, answer):
        return answer["content"][0]["text"]

    def ended(self, answer):
        return {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}[answer["stop_reason"]]

    def delta(self, event):
        failure = event["error"]["message"] if event["type"] == "error" else None
        text = event["delta"].get("text", "") if event["type"] == "content_block_delta" else ""
        return text, event["type"] in ("message_stop", "error"), failure

    def failed(self, answer):
        assert answer.headers["content-type"] == "application/json"
        body = answer.json()
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}, body
        assert body["request_id"] == answer.headers["x-request-id"]
        message = body["error"]["message"]
        return message, message  # it has no member for the field


PROTOCOLS = [Protocol(), Responses(), Messages()]


@pytest.fixture(params=PROTOCOLS, ids=lambda p: p.name)
def p(request):
    return request.param


@pytest.fixture(scope="module")
def s(launch, tmp_path_factory):
    s = scripted.start(launch, tmp_path_factory.mktemp("protocols"),
                       config=lambda model: scripted.config_of(model, limits={"body_bytes_max": "1MiB"}))
    s.say("canary", "It sings.")
    s.say("talk on", "word " * 20_000)
    s.say("count", "one two three four five six")
    return s


def settled(s):
    """With a sanitizer a step of a long prompt takes longer than an audit waits for it."""
    end = time.monotonic() + 20 * SLOW
    while s.http.get("/debug/audit").status_code == 504:
        assert time.monotonic() < end
    s.settled()


def post(s, p, body, **more):
    return httpx.post(s.url + p.path, json=body, timeout=120 * SLOW, **more)


def said(p, answer):
    assert answer.status_code == 200, answer.text
    return p.text(answer.json())


@pytest.fixture(autouse=True)
def all_is_well_behind_it(request):
    """The daemon serves as before, and nothing is left of what was tried."""
    yield
    if "s" not in request.fixturenames:
        return
    s = request.getfixturevalue("s")
    for p in PROTOCOLS:
        assert said(p, post(s, p, p.ask("canary"))) == "It sings."
    settled(s)
    assert s.http.get("/debug/audit").json()["front"]["generations"] == 0


class Stream:
    """What came of a stream; `meanwhile` runs once, after its first text."""

    def __init__(self, s, p, body, meanwhile=None, headers=None):
        self.text, self.ended, self.failure, self.n_texts = "", False, None, 0
        with httpx.stream("POST", s.url + p.path, json={**body, "stream": True}, headers=headers, timeout=120 * SLOW) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                text, ended, failure = p.delta(json.loads(line[len("data: "):]))
                assert not self.ended or not text, "text behind the end"
                self.text += text
                self.n_texts += bool(text)
                self.ended = self.ended or ended
                self.failure = self.failure or failure
                if self.text and meanwhile is not None:
                    meanwhile()
                    meanwhile = None


# ---- a client that goes away ----

def cancelled(s):
    return sum(float(line.rsplit(" ", 1)[1]) for line in s.http.get("/metrics").text.splitlines()
               if re.match(r"inferd_requests_total\{.*cancelled", line))


def until(is_so):
    """The daemon sees a request, and that its client has left, when it comes to it."""
    end = time.monotonic() + 20 * SLOW
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def leave(s, p, text, stream):
    before = cancelled(s)
    with httpx.Client(timeout=120 * SLOW) as client:
        body = p.ask(text, stream=stream)
        if stream:
            with client.stream("POST", s.url + p.path, json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {") and p.delta(json.loads(line[len("data: "):]))[0]:
                        break
        else:
            url = urllib.parse.urlsplit(s.url)
            with socket.create_connection((url.hostname, url.port)) as c:
                text = json.dumps(body)
                c.sendall(f"POST {p.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
                          f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
                until(lambda: s.metric("inferd_generations") > 0)
    until(lambda: cancelled(s) > before)
    settled(s)
    assert cancelled(s) == before + 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_its_slot_and_pages(s, p, stream):
    leave(s, p, "talk on", stream)


def test_a_client_that_leaves_during_its_prompt(s, p):
    leave(s, p, "word " * 60_000, False)


# ---- preemption ----

@pytest.mark.parametrize("host", ["0", "16MiB"], ids=["recompute", "swap"])
def test_preempted_it_says_the_same(launch, tmp_path, p, host):
    s = scripted.start(launch, tmp_path, config=lambda model: crowded(model, host))
    s.say("now!", "Here.")
    s.say("take your time", LONG)
    body, urgent = p.ask(document(30000) + " take your time", 6000), []
    ask = p.ask(document(30000)[::-1] + " now!", 10)
    got = Stream(s, p, body, lambda: urgent.append(post(s, p, {**ask, "model": "urgent"})))
    assert got.text == LONG and got.ended and got.failure is None
    assert said(p, urgent[0]) == "Here."
    assert s.metric("inferd_preemptions_total") > 0
    settled(s)
    assert s.stop() == 0


# ---- limits ----

def test_more_tokens_than_the_context(s, p):
    answer = post(s, p, p.ask("canary", 1_000_000))
    if p.max_is_bound:
        assert said(p, answer) == "It sings."
        return
    message, _ = p.failed(answer)
    assert answer.status_code == 400 and "maximum context length is 131072" in message


def test_a_prompt_longer_than_the_context(s, p):
    answer = post(s, p, p.ask("word " * 150_000))
    message, field = p.failed(answer)
    assert answer.status_code == 400 and "maximum context length is 131072" in message and p.field in field


def test_a_body_that_is_too_large(s, p):
    answer = post(s, p, p.ask("x" * (1 << 20)))
    assert answer.status_code == 413 and p.failed(answer)[0]


def test_too_many_tools(s, p):
    assert said(p, post(s, p, p.ask("canary", tools=[p.tool(f"f{i}") for i in range(512)]))) == "It sings."
    answer = post(s, p, p.ask("canary", tools=[p.tool(f"f{i}") for i in range(513)]))
    message, field = p.failed(answer)
    assert answer.status_code == 400 and "tools" in field and "512" in message


def test_ends(s, p):
    for stops, text in (([" four"], "one two three"), (["never"], "one two three four five six")):
        answer = post(s, p, p.ask("count", **{p.stop: stops}))
        assert said(p, answer) == text and p.ended(answer.json()) == "stop"
        assert Stream(s, p, p.ask("count", **{p.stop: stops})).text == text
    answer = post(s, p, p.ask("count", 2))
    assert said(p, answer) in "one two three" and p.ended(answer.json()) == "length"
    for stops in ([""], ["a"] * 17, ["a" * 1025]):
        answer = post(s, p, p.ask("count", **{p.stop: stops}))
        assert answer.status_code == 400 and p.stop in p.failed(answer)[1]


KEYS = {name: {"Authorization": f"Bearer sk-of-tenant-{name}-01"} for name in "ab"}


def tenants(model, limits=None, **more):
    listed = [{"name": name, "keys": [KEYS[name]["Authorization"].split()[1]]} for name in "ab"]
    listed[0]["limits"] = limits or {}
    return scripted.config_of(model, tenants=listed, **more)


def test_a_tenant_over_its_limit(launch, tmp_path, p):
    s = scripted.start(launch, tmp_path, config=lambda model: tenants(model, {"requests_per_min": 1}))
    s.say("canary", "It sings.")
    assert said(p, post(s, p, p.ask("canary"), headers=KEYS["a"])) == "It sings."
    refused = post(s, p, p.ask("canary"), headers=KEYS["a"])
    assert refused.status_code == 429 and "requests per minute" in p.failed(refused)[0]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    for wrong in ({}, {"Authorization": "Bearer wrong"}):
        refused = post(s, p, p.ask("canary"), headers=wrong)
        assert refused.status_code == 401 and p.failed(refused)[0]
    assert said(p, post(s, p, p.ask("canary"), headers=KEYS["b"])) == "It sings."
    assert s.stop() == 0


def test_overload(launch, tmp_path, p):
    s = scripted.start(launch, tmp_path, config=lambda model: scripted.config_of(
        model, limits={"running_max": 1, "queue_len_max": 1}))
    s.say("talk on", "word " * 3000)
    answers = []

    def crowd():
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers.extend(pool.map(lambda _: post(s, p, p.ask("talk on", 3)), range(6)))

    got = Stream(s, p, p.ask("talk on"), crowd)
    assert got.text == "word " * 3000
    refused = [a for a in answers if a.status_code != 200]
    assert refused
    for a in refused:
        assert a.status_code == p.status_of_overload and p.failed(a)[0]
        assert 1 <= int(a.headers["retry-after"]) <= 60
    settled(s)
    assert s.stop() == 0


# ---- bad input ----

NESTED = "[" * 100 + "]" * 100
# Of all protocols: the body, and what its error names.  A function makes it for a protocol.
BAD = {
    "not JSON": (lambda p: b"{", "line 1"),
    "no object": (lambda p: b"[]", "object"),
    "empty": (lambda p: b"", ""),
    "twice a field": (lambda p: b'{"model": "m", "model": "m"}', "line 1"),
    "invalid UTF-8": (lambda p: json.dumps(p.ask("XX")).encode().replace(b"XX", b"\xff\xfe"), "line 1"),
    "a NUL": (lambda p: json.dumps(p.ask("a\0b")).encode(), "line 1"),
    "a raw NUL": (lambda p: json.dumps(p.ask("XX")).encode().replace(b"XX", b"\0"), "line 1"),
    "a lone surrogate": (lambda p: json.dumps(p.ask("XX")).encode().replace(b"XX", b"\\ud800"), "line 1"),
    "deep": (lambda p: json.dumps(p.ask("x", metadata=0)).replace('"metadata": 0', f'"metadata": {NESTED}').encode(), "line 1"),
    "a deep schema": (lambda p: json.dumps(p.ask("x", tools=[])).replace('"tools": []', f'"tools": {NESTED}').encode(), "line 1"),
    "no conversation": (lambda p: {"model": "m", p.limit: 5}, "{field}"),
    "a number": (lambda p: {**p.ask("x"), p.field: 5}, "{field}"),
    "an object": (lambda p: {**p.ask("x"), p.field: {}}, "{field}"),
    "nothing": (lambda p: {**p.ask("x"), p.field: []}, "{field}"),
    "an item that is none": (lambda p: {**p.ask("x"), p.field: [7]}, "{field}[0]"),
    "an unknown role": (lambda p: {**p.ask("x"), p.field: [{"role": "king", "content": "x"}]}, "{field}[0].role"),
    "a role of another type": (lambda p: {**p.ask("x"), p.field: [{"role": 5, "content": "x"}]}, "{field}[0].role"),
    "no content": (lambda p: {**p.ask("x"), p.field: [{"role": "user"}]}, "{field}[0].content"),
    "content of another type": (lambda p: {**p.ask("x"), p.field: [{"role": "user", "content": 5}]}, "{field}[0].content"),
    "a part of another type": (lambda p: {**p.ask("x"), p.field: [{"role": "user", "content": [5]}]}, "{field}[0].content[0]"),
    "a part without a type": (lambda p: {**p.ask("x"), p.field: [{"role": "user", "content": [{"text": "x"}]}]}, "{field}[0].content[0]"),
    "an unknown model": (lambda p: {**p.ask("x"), "model": "other"}, "other"),
    "a model of another type": (lambda p: {**p.ask("x"), "model": 5}, "model"),
    "stream": (lambda p: p.ask("x", stream="yes"), "stream"),
    "no tokens": (lambda p: p.ask("x", 0), "{limit}"),
    "tokens in words": (lambda p: {**p.ask("x"), p.limit: "many"}, "{limit}"),
    "temperature": (lambda p: p.ask("x", temperature=9), "temperature"),
    "top_p": (lambda p: p.ask("x", top_p=0), "top_p"),
    "tools": (lambda p: p.ask("x", tools={}), "tools"),
    "a tool that is none": (lambda p: p.ask("x", tools=[5]), "tools[0]"),
    "the name of a tool": (lambda p: p.ask("x", tools=[p.tool("a b")]), "tools[0]"),
    "tool_choice": (lambda p: p.ask("x", tools=[p.tool()], tool_choice=5), "tool_choice"),
    "a stop of another type": (lambda p: p.ask("x", **{p.stop: [5]}), "{stop}"),
}
# Of one protocol.
ITEM = {"type": "function_call_output", "call_id": "nowhere", "output": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_nowhere", "content": "x"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
OWN_BAD = {
    ("chat", "a result without an id"): ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ("chat", "a call without arguments"): ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
                                           "messages[0].tool_calls[0].function"),
    ("responses", "an unpaired result"): ({"input": [{"role": "user", "content": "x"}, ITEM]}, "input[1].call_id"),
    ("responses", "a result before its call"): ({"input": [{**ITEM, "call_id": "1"}, CALL]}, "input[0].call_id"),
    ("responses", "a second result"): ({"input": [CALL, {**ITEM, "call_id": "1"}, {**ITEM, "call_id": "1"}]}, "input[2].call_id"),
    ("responses", "an item without a type"): ({"input": [{}]}, "input[0].type"),
    ("messages", "an unpaired result"): ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].tool_use_id"),
    ("messages", "a second result"): ({"messages": [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [
        {**RESULT, "tool_use_id": "toolu_1"}] * 2}]}, "messages[1].content[1].tool_use_id"),
    ("messages", "a call of the user"): ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0].type"),
    ("messages", "a call without input"): ({"messages": [{"role": "assistant", "content": [
        {**USE, "input": "{}"}]}]}, "messages[0].content[0].input"),
}


def refuse(s, p, body, names):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(s.url + p.path, content=content, headers=JSON, timeout=60 * SLOW)
    assert answer.status_code in (400, 404), answer.text
    message, field = p.failed(answer)
    wanted = names.format(field=p.field, limit=p.limit, stop=p.stop)
    assert wanted in message or wanted in field, (message, field)
    assert len(answer.text) < 1500, "an error echoes too much"


@pytest.mark.parametrize("case", BAD)
def test_bad_input(s, p, case):
    make, names = BAD[case]
    refuse(s, p, make(p), names)


@pytest.mark.parametrize("name, case", OWN_BAD, ids=[f"{name}-{case}" for name, case in OWN_BAD])
def test_bad_input_of_one_protocol(s, name, case):
    p = next(p for p in PROTOCOLS if p.name == name)
    body, names = OWN_BAD[name, case]
    refuse(s, p, {**p.ask("x"), **body}, names)


# ---- the end of the daemon ----

@pytest.mark.parametrize("drain_s", [60, 0], ids=["drained", "cut"])
def test_the_daemon_shuts_down_in_a_stream(launch, tmp_path, p, drain_s):
    s = scripted.start(launch, tmp_path, config=lambda model: scripted.config_of(model, limits={"drain_timeout_s": drain_s}))
    text = "word " * (2000 if drain_s else 60_000)
    s.say("talk on", text)
    refused = []

    def shut_down():
        s.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 20 * SLOW
        while drain_s and time.monotonic() < end and not refused:
            answer = post(s, p, p.ask("talk on", 3))
            if answer.status_code == 503:
                refused.append(p.failed(answer)[0])

    got = Stream(s, p, p.ask("talk on"), shut_down)
    if drain_s:
        assert got.text == text and got.failure is None and got.ended
        assert "shut" in refused[0]
    else:
        assert got.failure and "shutting down" in got.failure and got.ended and text.startswith(got.text)
    assert s.stop() == 0


# ---- models and tenants ----

def test_two_models_and_two_tenants(launch, tmp_path, p):
    def config(model):
        c = tenants(model)
        c["models"].append({"name": "n", "path": str(model)})
        c["tenants"][0]["models"], c["tenants"][1]["models"] = ["m"], ["m", "n"]
        return c
    s = scripted.start(launch, tmp_path, config=config)
    said_of = {name: f"This is for {name}: " + " ".join(f"{name}{i}" for i in range(200)) for name in ("am", "bm", "bn")}
    for name, text in said_of.items():
        s.say(f"I am {name}", text)
    got, threads = {}, []
    for name in said_of:
        def run(name=name):
            got[name] = Stream(s, p, {**p.ask(f"I am {name}"), "model": name[1]}, headers=KEYS[name[0]])
        threads += [threading.Thread(target=run)]
        threads[-1].start()
    for t in threads:
        t.join()
    assert {name: one.text for name, one in got.items()} == said_of
    refused = post(s, p, {**p.ask("I am an"), "model": "n"}, headers=KEYS["a"])
    assert refused.status_code == 404 and '"n" does not exist' in p.failed(refused)[0]
    page = s.http.get("/metrics", headers=KEYS["a"]).text
    assert 'tenant="b"' not in page
    assert s.stop() == 0
