"""Traces: what a collector receives over OTLP, decoded by OpenTelemetry's own messages; and that a collector which is slow, down
or hostile changes nothing for clients."""

import contextlib
import http.server
import json
import re
import socket
import threading
import time

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from conftest import SLOW

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEYS = {"shop": "sk-shop-traces-0001", "lab": "sk-lab-traces-0001"}
ADMIN = "sk-admin-traces-0001"
SECRET = "the prompt that no span may have"
FLUSH_S = 2  # TRACER_FLUSH_MS


class Collector:
    """Takes OTLP on a port of its own: `status` and `answer` are its answer, None: it never answers."""

    def __init__(self, status=200, answer=b""):
        self.status, self.answer, self.bodies, self.heads, self.faults = status, answer, [], [], []
        self.ended, self.held = threading.Event(), threading.Event()  # `held` cleared: no answer yet
        self.held.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.heads.append((self.path, dict(self.headers)))
                collector.bodies.append(body)
                if collector.status is None:
                    collector.ended.wait()
                    return
                collector.held.wait()
                with contextlib.suppress(OSError):
                    self.send_response(collector.status)
                    self.send_header("Content-Length", str(len(collector.answer)))
                    self.end_headers()
                    self.wfile.write(collector.answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.ended.set()
        self.held.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def spans(self):
        """Of all requests so far, each of which decodes and has our resource."""
        out = []
        for body in list(self.bodies):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                of = values(resource.resource.attributes)
                assert of["service.name"] == "inferd-test" and of["service.version"] and of["service.instance.id"]
                for scope in resource.scope_spans:
                    assert scope.scope.name == "inferd"
                    out += scope.spans
        return out

    def trace(self, n=1, of=lambda span: True):
        """The spans of the n-th trace with a request that `of` selects, when all of them are there."""
        end = time.monotonic() + 30 * SLOW
        while True:
            roots = [s for s in self.spans() if s.kind == Span.SPAN_KIND_SERVER and of(s)]
            if len(roots) >= n:
                return Trace([s for s in self.spans() if s.trace_id == roots[n - 1].trace_id])
            assert time.monotonic() < end, [s.name for s in self.spans()]
            time.sleep(0.02)


def values(attributes):
    def value(v):
        kind = v.WhichOneof("value")
        return [value(x) for x in v.array_value.values] if kind == "array_value" else getattr(v, kind)
    return {a.key: value(a.value) for a in attributes}


class Trace:
    """The spans of one request: each id once, each parent there and around its children in time."""

    def __init__(self, spans):
        self.root = next(s for s in spans if s.kind == Span.SPAN_KIND_SERVER)
        self.by_id = {s.span_id: s for s in spans}
        self.spans = sorted((s for s in spans if s is not self.root), key=lambda s: s.start_time_unix_nano)
        assert len(self.by_id) == len(spans)
        for s in spans:
            assert len(s.trace_id) == 16 and len(s.span_id) == 8 and any(s.span_id)
            assert s.start_time_unix_nano <= s.end_time_unix_nano
        for s in self.spans:
            parent = self.by_id[s.parent_span_id]
            assert s.kind == Span.SPAN_KIND_INTERNAL
            assert parent.start_time_unix_nano <= s.start_time_unix_nano, s.name
            assert s.end_time_unix_nano <= parent.end_time_unix_nano, s.name

    def names(self):
        """Each with its parent's name."""
        return [(s.name, self.by_id[s.parent_span_id].name) for s in self.spans]

    def get(self, name):
        found = [s for s in self.spans if s.name == name]
        assert len(found) == 1, self.names()
        return found[0]

    def attributes(self):
        return values(self.root.attributes)


@pytest.fixture
def collector():
    c = Collector()
    yield c
    c.close()


def dummy(seed, **more):
    options = "&".join(f"{k}={v}" for k, v in {"dtype": "f32", "layers": 8, "context": 2048, "seed": seed, **more}.items())
    return f"dummy:tiny?{options}"


def config_of(collector, *models, memory="128MiB", **more):
    return {"devices": [{"kind": "cpu", "memory": memory, "threads": 2}], "host_arena": 0,
            "models": [{"name": m, "path": dummy(i + 1)} for i, m in enumerate(models or ("m",))],
            "tracing": {"endpoint": getattr(collector, "url", collector), "service_name": "inferd-test", **more.pop("tracing", {})},
            **more}


@pytest.fixture
def serve(launch):
    def start(collector, *models, **more):
        return launch(config_of(collector, *models, **more), args=["--allow-dummy"])
    return start


def ask(d, model="m", n=8, headers=None, **more):
    return httpx.post(d.url + "/v1/completions", timeout=60 * SLOW, headers=headers or {}, json={
        "model": model, "prompt": [5, 6, 7], "max_tokens": n, "ignore_eos": True, **more})


def metric(d, name, **labels):
    text = httpx.get(d.url + "/metrics", headers={"Authorization": "Bearer " + ADMIN}).text
    found = [line for line in text.splitlines() if re.match(rf"{name}(\{{| )", line) and all(f'{k}="{v}"' in line for k, v in labels.items())]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else None


def wait_for(what):
    end = time.monotonic() + 60 * SLOW
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_request_is_a_tree_of_spans(launch, tiny_model, collector):
    """Taken over from its caller, with OpenTelemetry's names, and without key and text."""
    d = launch({**config_of(collector), "models": [{"name": "chat", "path": tiny_model}], "admin": {"keys": [ADMIN]},
                "tenants": [{"name": "shop", "keys": [KEYS["shop"]], "max_class": "high"}]})
    answer = httpx.post(d.url + "/v1/chat/completions", timeout=60 * SLOW, json={
        "model": "chat", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "ignore_eos": True, "priority": "high"},
        headers={"Authorization": "Bearer " + KEYS["shop"], "traceparent": f"00-{TRACE}-{CALLER}-01",
                 "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"})
    usage = answer.json()["usage"]
    t = collector.trace()
    assert t.names() == [("admission", t.root.name), ("queue", t.root.name), ("prefill", t.root.name), ("decode", t.root.name)]
    assert t.root.name == "POST /v1/chat/completions"
    assert t.root.trace_id.hex() == TRACE and t.root.parent_span_id.hex() == CALLER
    assert all(s.trace_state == "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE" for s in (t.root, *t.spans))
    assert t.root.flags == 0x301 and {s.flags for s in t.spans} == {0x101}
    assert t.root.status.code == Status.STATUS_CODE_UNSET
    assert t.attributes() == {
        "http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": 200,
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "inferd", "gen_ai.request.model": "chat",
        "gen_ai.response.model": "chat", "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"], "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0, "inferd.request.id": answer.headers["x-request-id"],
        "inferd.tenant": "shop", "inferd.class": "high"}
    assert values(t.get("prefill").attributes) == {"inferd.device": "cpu0", "inferd.prompt_tokens": usage["prompt_tokens"],
                                                   "inferd.cached_tokens": 0}
    assert values(t.get("decode").attributes)["inferd.output_tokens"] == 5
    order = [t.get(name) for name in ("admission", "queue", "prefill", "decode")]
    for before, after in zip(order, order[1:]):
        assert before.end_time_unix_nano <= after.start_time_unix_nano or before.name == "admission"
    now = time.time_ns()
    assert now - 60 * SLOW * 10**9 < t.root.start_time_unix_nano < t.root.end_time_unix_nano < now
    path, head = collector.heads[0]
    assert path == "/v1/traces" and head["Content-Type"] == "application/x-protobuf"
    for body in collector.bodies:
        assert SECRET.encode() not in body and KEYS["shop"].encode() not in body and ADMIN.encode() not in body
    assert metric(d, "inferd_spans_sent_total") == 5 and metric(d, "inferd_spans_dropped_total") == 0
    assert d.stop() == 0


def test_without_an_endpoint_nothing_is_loaded_and_counted(launch):
    d = launch({"devices": [{"kind": "cpu", "memory": "64MiB"}], "models": [{"name": "m", "path": dummy(1)}]}, args=["--allow-dummy"])
    assert ask(d, headers={"traceparent": f"00-{TRACE}-{CALLER}-01"}).status_code == 200
    assert metric(d, "inferd_spans_sent_total") is None
    with open(f"/proc/{d.process.pid}/maps") as maps:
        assert "libcurl" not in maps.read()


def test_the_caller_decides_what_is_sampled(serve, collector):
    """Without one the ratio does, which a reload changes; a header that is not valid begins a trace."""
    d = serve(collector, tracing={"sample_ratio": 0})
    for header in (None, f"00-{TRACE}-{CALLER}-00", f"00-{TRACE.upper()}-{CALLER}-01", "nonsense"):
        assert ask(d, headers={"traceparent": header} if header else {}).status_code == 200
    assert ask(d, headers={"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "not a list"}).status_code == 200
    t = collector.trace()
    assert t.root.trace_id.hex() == TRACE and t.root.trace_state == ""
    config = json.loads(d.config_path.read_text())
    config["tracing"]["sample_ratio"] = 1
    d.config_path.write_text(json.dumps({**config, "listen": f"127.0.0.1:{d.port}"}))
    d.process.send_signal(1)
    wait_for(lambda: metric(d, "inferd_config_reloads_total", result="ok") == 1)
    assert ask(d, headers={"traceparent": "nonsense", "tracestate": "a=1"}).status_code == 200
    t = collector.trace(2)
    assert t.root.trace_id.hex() != TRACE and t.root.parent_span_id == b"" and t.root.trace_state == ""
    assert d.stop() == 0
    assert len([s for s in collector.spans() if s.kind == Span.SPAN_KIND_SERVER]) == 2


def test_headers_that_come_twice(serve, collector):
    """Two tracestate are one list, of which the second half was once lost; two traceparent begin a trace, once the first was taken."""
    d = serve(collector)
    parent, other = f"00-{TRACE}-{CALLER}-01", f"00-{'a' * 32}-{'b' * 16}-01"
    assert ask(d, headers=[("traceparent", parent), ("tracestate", "a=1"), ("TraceState", "c=3, b=2")]).status_code == 200
    t = collector.trace()
    assert t.root.trace_id.hex() == TRACE and t.root.trace_state == "a=1,c=3, b=2"
    assert ask(d, headers=[("traceparent", parent), ("Traceparent", other), ("tracestate", "a=1")]).status_code == 200
    t = collector.trace(2)
    assert t.root.trace_id.hex() not in (TRACE, "a" * 32) and t.root.parent_span_id == b"" and t.root.trace_state == ""


def test_a_refused_and_a_failed_request_say_why(serve, collector):
    d = serve(collector, limits={"queue_timeout_ms": 50, "total_timeout_ms": 50})
    assert ask(d, model="none").status_code == 404
    t = collector.trace()
    assert t.names() == [("admission", "POST /v1/completions")]
    assert t.attributes()["http.response.status_code"] == 404 and t.attributes()["error.type"] == "model_not_found"
    assert t.root.status.code == Status.STATUS_CODE_UNSET  # a fault of the client
    r = ask(d, n=2000)
    assert r.status_code == 504
    t = collector.trace(2)
    assert t.root.status.code == Status.STATUS_CODE_ERROR
    assert t.attributes()["http.response.status_code"] == 504
    assert t.attributes()["error.type"] == t.root.status.message == r.json()["error"]["code"]


def test_a_client_that_leaves_ends_its_trace(serve, collector):
    d = serve(collector)
    with httpx.stream("POST", d.url + "/v1/completions", timeout=60 * SLOW, json={
            "model": "m", "prompt": [5], "max_tokens": 2000, "ignore_eos": True, "stream": True}) as r:
        next(r.iter_lines())
    t = collector.trace()
    assert t.root.status.code == Status.STATUS_CODE_UNSET
    assert t.attributes()["error.type"] == "client_left" and t.attributes()["gen_ai.usage.output_tokens"] > 0
    assert [name for name, _ in t.names()] == ["admission", "queue", "prefill", "decode"]


def test_a_model_that_has_to_come_is_a_load(serve, collector):
    d = serve(collector, "a", "b", "c", memory="48MiB")  # one fits
    for i, model in enumerate(("a", "b", "a", "c")):
        assert ask(d, model).status_code == 200
    t = collector.trace(4)
    assert t.attributes()["gen_ai.request.model"] == "c"
    assert ("load", "queue") in t.names()
    load, queue = t.get("load"), t.get("queue")
    assert load.start_time_unix_nano == queue.start_time_unix_nano and load.end_time_unix_nano > load.start_time_unix_nano
    assert values(load.attributes) == {"gen_ai.request.model": "c", "inferd.device": "cpu0"}
    assert ask(d, "c").status_code == 200
    assert "load" not in dict(collector.trace(5).names())  # it is there


def test_a_preempted_sequence_shows_when(serve, collector):
    d = serve(collector, limits={"running_max": 1})
    threads = [threading.Thread(target=ask, args=(d,), kwargs={"n": 1500, "priority": "batch"})]
    threads[0].start()
    wait_for(lambda: metric(d, "inferd_sequences_running") == 1)
    for _ in range(3):
        assert ask(d, n=40, priority="normal").status_code == 200
    threads[0].join()
    t = collector.trace(of=lambda s: values(s.attributes)["inferd.class"] == "batch")
    aways = [s for s in t.spans if s.name == "preemption"]
    assert 1 <= len(aways) <= 8
    assert {t.by_id[s.parent_span_id].name for s in aways} <= {"prefill", "decode"}
    assert {values(s.attributes)["inferd.preemption.kind"] for s in aways} <= {"pause", "park", "recompute", "model_out"}
    for before, after in zip(aways, aways[1:]):
        assert before.end_time_unix_nano <= after.start_time_unix_nano
    assert sum(s.end_time_unix_nano - s.start_time_unix_nano for s in aways) > 0
    decode = values(t.get("decode").attributes)
    assert decode["inferd.preemptions"] >= len(aways) and decode["inferd.preempted_us"] > 0


def test_a_preemption_that_no_token_follows_is_shown_and_counted(launch, collector):
    """Its client left: the trace had a decode that ended with the last token, and nothing behind it."""
    d = launch(config_of(collector, limits={"running_max": 1}, admin={"keys": [ADMIN]}), args=["--allow-dummy", "--allow-faults"])
    assert httpx.post(d.url + "/admin/devices/cpu0/slow", json={"times": 20}, headers={"Authorization": "Bearer " + ADMIN}).status_code == 200
    with httpx.stream("POST", d.url + "/v1/completions", timeout=60 * SLOW, json={
            "model": "m", "prompt": [5, 6, 7], "max_tokens": 1900, "ignore_eos": True, "stream": True, "priority": "batch"}) as r:
        lines = r.iter_lines()  # kept: its end would be that of the stream
        next(lines)
        urgent = threading.Thread(target=ask, args=(d,), kwargs={"n": 100, "priority": "high"})
        urgent.start()
        wait_for(lambda: metric(d, "inferd_sequences_running") == 2)  # the urgent one has all rows
    urgent.join()
    t = collector.trace(of=lambda s: values(s.attributes)["inferd.class"] == "batch")
    decode, last = t.get("decode"), [s for s in t.spans if s.name == "preemption"][-1]
    assert last.parent_span_id == decode.span_id and last.end_time_unix_nano == decode.end_time_unix_nano
    assert values(decode.attributes)["inferd.preemptions"] >= 1
    assert metric(d, "inferd_preemptions_total", rung="pause") >= 1


def test_each_choice_has_its_spans(serve, collector):
    d = serve(collector)
    answer = httpx.post(d.url + "/v1/completions", timeout=60 * SLOW, json={
        "model": "m", "prompt": [5, 6, 7], "max_tokens": 4, "n": 20, "ignore_eos": True})
    assert answer.status_code == 200
    t = collector.trace()
    assert t.attributes()["gen_ai.request.choice.count"] == 20
    for name in ("queue", "prefill", "decode"):  # of the first 16
        choices = [values(s.attributes)["inferd.choice"] for s in t.spans if s.name == name]
        assert sorted(choices) == list(range(16))


def test_headers_of_a_file_are_sent(launch, tmp_path, collector):
    file = tmp_path / "headers"
    file.write_text("# for the collector\nAuthorization: Bearer collector-secret-1\nX-Scope-OrgID: inferd\n")
    d = launch(config_of(collector, tracing={"headers_file": str(file)}), args=["--allow-dummy"])
    assert ask(d).status_code == 200
    collector.trace()
    head = collector.heads[0][1]
    assert head["Authorization"] == "Bearer collector-secret-1" and head["X-Scope-OrgID"] == "inferd"
    assert d.stop() == 0
    assert "collector-secret-1" not in d.stderr()


# ---- collectors as they should not be ----

def flood(d, n):
    """Answers stay right, whatever becomes of the spans."""
    first = ask(d, temperature=0).json()["choices"][0]["text"]
    for _ in range(n):
        r = ask(d, temperature=0)
        assert r.status_code == 200 and r.json()["choices"][0]["text"] == first


def test_a_collector_that_is_down_costs_spans_only(serve):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    d = serve(f"http://127.0.0.1:{port}/v1/traces", tracing={"queue_spans_max": 256})
    flood(d, 60)  # 5 spans each
    wait_for(lambda: metric(d, "inferd_spans_dropped_total", why="failed") and metric(d, "inferd_spans_dropped_total", why="queue_full"))
    wait_for(lambda: "event=spans_dropped" in d.stderr())
    assert metric(d, "inferd_spans_sent_total") == 0
    assert metric(d, "inferd_spans_dropped_total") + metric(d, "inferd_spans_queued") == 61 * 5
    assert d.stop() == 0
    assert d.stderr().count("event=spans_dropped") == 1  # not one for each batch
    assert 'error=""' not in d.stderr() and "slower than spans come" not in d.stderr()


def test_a_slow_collector_is_told_as_that(serve, collector):
    """The line had error="", or an answer of long before."""
    d = serve(collector, tracing={"queue_spans_max": 256})
    collector.held.clear()
    flood(d, 60)
    wait_for(lambda: metric(d, "inferd_spans_dropped_total", why="queue_full"))
    collector.held.set()
    wait_for(lambda: "event=spans_dropped" in d.stderr())
    assert re.search('event=spans_dropped .*error="the collector is slower than spans come" queue_full=', d.stderr())


@pytest.mark.parametrize("status,why", [(400, "refused"), (302, "refused")])
def test_a_collector_that_refuses_is_not_asked_again(serve, status, why):
    c = Collector(status)
    try:
        d = serve(c)
        flood(d, 3)
        wait_for(lambda: metric(d, "inferd_spans_dropped_total", why=why) == 20)
        assert sum(len(ExportTraceServiceRequest.FromString(b).resource_spans[0].scope_spans[0].spans) for b in c.bodies) == 20
    finally:
        c.close()


def test_spans_that_a_collector_rejects_are_not_sent(serve):
    """With status 200: a partial success, in OpenTelemetry's own encoding."""
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 3
    partial.partial_success.error_message = "over \x1b[31mquota"
    c = Collector(answer=partial.SerializeToString())
    try:
        d = serve(c)
        assert ask(d).status_code == 200
        wait_for(lambda: metric(d, "inferd_spans_dropped_total", why="refused") == 3)
        assert metric(d, "inferd_spans_sent_total") == 2 and len(c.bodies) == 1
        wait_for(lambda: "event=spans_dropped" in d.stderr())
        assert 'error="the collector rejected 3 of 5 spans: over  [31mquota"' in d.stderr()
    finally:
        c.close()


def test_a_collector_that_never_answers_ends_with_the_daemon(serve):
    c = Collector(None)
    try:
        d = serve(c, tracing={"queue_spans_max": 256, "timeout_ms": 600000})
        flood(d, 60)
        assert metric(d, "inferd_spans_dropped_total", why="queue_full") > 0
        assert metric(d, "inferd_spans_queued") > 0
        assert d.stop(timeout=(FLUSH_S + 20) * SLOW) == 0  # not the ten minutes of a request
        assert re.search(r"event=spans_dropped .*ended=", d.stderr())
    finally:
        c.close()


def test_the_last_spans_are_sent_at_the_end(serve, collector):
    d = serve(collector)
    assert ask(d).status_code == 200
    assert d.stop() == 0
    assert [s.name for s in collector.trace().spans] == ["admission", "queue", "prefill", "decode"]
