"""GET /admin/watch: the state as a stream, and the page's files; docs/page.md."""

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, SANITIZE, SLOW

ADMIN, TENANT = "admin-key-0123456789", "tenant-key-0123456789"


class Watch:
    """A viewer: a thread reads the stream, and `state` is what a page would have."""

    def __init__(self, sock):
        self.state, self.pages, self.n_deltas, self.n_bytes, self.ended = None, {}, 0, 0, False
        self.changed = threading.Condition()
        self.connection = http.client.HTTPConnection("localhost")
        self.connection.sock = self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(sock))
        self.connection.request("GET", "/admin/watch")
        response = self.connection.getresponse()
        assert response.status == 200 and response.headers["content-type"].startswith("text/event-stream")
        self.thread = threading.Thread(target=self.read, args=(response,), daemon=True)
        self.thread.start()

    def read(self, response):
        kind = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := response.readline().decode():
                self.n_bytes += len(line)
                if line.startswith("event: "):
                    kind = line[7:].strip()
                elif line.startswith("data: "):
                    with self.changed:
                        self.take(kind, json.loads(line[6:]))
                        self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(20)
        self.socket.close()

    def take(self, kind, d):
        if kind == "all":
            self.pages = {}
            self.state = {**d, **{k: {r["id"]: r for r in d[k]} for k in ("devices", "models", "tenants", "events")}}
        else:
            assert kind == "delta" and len(d) > 1, "a delta without a change"
            self.n_deltas += 1
            for k in ("devices", "models", "tenants", "events"):
                self.state[k].update({r["id"]: r for r in d.get(k, [])})
            for k, ids in d.get("gone", {}).items():
                for i in ids:
                    del self.state[k][i]
            for k in ("daemon", "queue"):
                self.state[k] = d.get(k, self.state[k])
            self.state["history"]["rows"] += d.get("history", {}).get("rows", [])
        for m in d.get("pages", []):
            page = self.pages.setdefault(m["device"], [7] * m["n"])
            for at in range(0, len(m["runs"]), 3):
                first, n, code = m["runs"][at:at + 3]
                page[first:first + n] = [code] * n
                assert len(page) == m["n"]

    def until(self, what, timeout=30 * SLOW):
        with self.changed:
            assert self.changed.wait_for(lambda: self.state is not None and what(self.state), timeout), self.state

    def model(self, name):
        return next(m for m in self.state["models"].values() if m["name"] == name)

    def texts(self, kind):
        return [e["text"] for e in self.state["events"].values() if e["kind"] == kind]


@pytest.fixture(scope="module")
def served(launch, tiny_model, tmp_path_factory):
    """Two models of different files on a device with room for one of them and its KV."""
    folder = tmp_path_factory.mktemp("watch")
    other = folder / "other.gguf"
    subprocess.run([BUILD / "tests" / "tiny_model", other, "8"], check=True)
    sock = folder / "admin.sock"
    d = launch({"devices": [{"kind": "cpu", "memory": "4MiB", "threads": 1}], "host_arena": "8MiB",
                "admin": {"listen": f"unix:{sock}", "key": ADMIN, "page": True},
                "models": [{"name": "a", "path": tiny_model}, {"name": "b<i>", "path": str(other)}],
                "tenants": [{"name": "t\"<script>", "key": TENANT, "share": 50}]}, args=["--allow-faults"])
    d.sock = sock
    d.socket = httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://localhost",
                            timeout=60 * SLOW)
    return d


@pytest.fixture
def watch(served):
    """A function that begins to watch; the viewers leave at the end."""
    viewers = []

    def begin():
        viewers.append(Watch(served.sock))
        return viewers[-1]
    yield begin
    for w in viewers:
        w.close()


def ask(d, model, n=8, **more):
    return d.http.post("/v1/chat/completions", headers={"Authorization": f"Bearer {TENANT}"}, json={
        "model": model, "max_tokens": n, "messages": [{"role": "user", "content": "x"}], **more})


def test_a_viewer_sees_everything_and_then_what_changes(served, watch):
    w = watch()
    w.until(lambda s: True)
    assert set(w.state) >= {"now", "daemon", "devices", "models", "tenants", "queue", "history", "events", "pages"}
    assert [m["name"] for m in w.state["models"].values()] == ["a", "b<i>"]
    assert w.state["tenants"][0]["name"] == "t\"<script>" and w.state["tenants"][0]["entitled"] == 0.5
    before = w.state["tenants"][0]["today"]
    assert ask(served, "a").status_code == 200
    w.until(lambda s: s["tenants"][0]["today"] > before)
    w.until(lambda s: w.model("a")["wanted_at"])  # the moment of the request
    w.until(lambda s: any(r[1] is not None and r[6] > 0 for r in s["history"]["rows"]))
    device = w.state["devices"][0]
    w.until(lambda s: sum(c % 16 == 1 for c in w.pages[0]) == s["devices"][0]["pages"]["weight"])
    assert len(w.pages[0]) == device["pages"]["total"]
    owners = {c // 16 - 1 for c in w.pages[0] if c >= 16}
    assert owners <= set(w.state["models"])


def test_an_eviction_is_told_as_a_sentence_with_the_model_that_needed_the_room(served, watch):
    w = watch()
    w.until(lambda s: True)
    for i in range(4):
        assert ask(served, ["a", "b<i>"][i % 2]).status_code == 200
    w.until(lambda s: any(re.fullmatch(r"evicted a: [0-9.]+ MiB for b<i>(, which waited .*)?", t) for t in w.texts("evict")))
    w.until(lambda s: any(re.match(r"loaded b<i> from (its file|host memory): [0-9.]+ KiB", t) for t in w.texts("load")))


def test_a_running_step_names_its_sequences(served, watch):
    w = watch()
    w.until(lambda s: True)
    slow = "/admin/devices/cpu0/slow"  # a step of this model is too short to be seen
    assert served.socket.post(slow, json={"times": 500}).status_code == 200
    done = threading.Event()

    def load():
        while not done.is_set():
            ask(served, "a", 20)
    threads = [threading.Thread(target=load) for _ in range(3)]
    for t in threads:
        t.start()
    try:
        w.until(lambda s: s["devices"][0]["step"] is not None and
                any(q[0].startswith("req-") and q[1] == 0 for q in s["devices"][0]["step"]["seqs"]))
        step = w.state["devices"][0]["step"]
        assert step["model"] == w.model("a")["id"] and step["prefill"] + step["decode"] >= 1
    finally:
        done.set()
        assert served.socket.post(slow, json={"times": 1}).status_code == 200
        for t in threads:
            t.join()


def test_a_command_and_its_end_are_seen(served, watch):
    w = watch()
    w.until(lambda s: True)
    assert served.socket.post("/admin/models/a/load", json={"wait": True}).status_code == 200
    w.until(lambda s: w.model("a")["state"] == "hot")
    assert served.socket.post("/admin/models/a/drain", json={"wait": True}).status_code == 200
    w.until(lambda s: w.model("a")["held"] and w.model("a")["state"] != "hot")
    assert "an administrator asked to drain a" in w.texts("admin")
    assert ask(served, "a").status_code == 503
    w.until(lambda s: any("refused a request of tenant" in t and "model_unavailable" in t for t in w.texts("refuse")))
    assert served.socket.post("/admin/models/a/load", json={"wait": True}).status_code == 200
    w.until(lambda s: not w.model("a")["held"])


def test_a_model_that_leaves_the_configuration_is_gone(served, watch):
    w = watch()
    w.until(lambda s: len(s["models"]) == 2)
    text = served.config_path.read_text()
    config = json.loads(text)
    config["models"].pop()
    assert served.socket.put("/admin/config", json=config).status_code == 200
    w.until(lambda s: [m["name"] for m in s["models"].values()] == ["a"])
    r = served.socket.put("/admin/config", content=text, headers={"content-type": "application/json"})
    assert r.status_code == 200
    w.until(lambda s: len(s["models"]) == 2)
    assert "a change of the configuration took effect" in w.texts("config")


def test_a_model_that_leaves_and_still_answers_has_a_row(served, watch):
    """Its step and its pages were those of "a model that left"."""
    w = watch()
    w.until(lambda s: len(s["models"]) == 2)
    old, text = w.model("b<i>")["id"], served.config_path.read_text()
    config, slow = json.loads(text), "/admin/devices/cpu0/slow"
    config["models"].pop()
    assert served.socket.post(slow, json={"times": 500}).status_code == 200
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask(served, "b<i>", 200, ignore_eos=True)))
    thread.start()
    try:
        w.until(lambda s: s["models"][old]["running"] == 1 and s["models"][old]["leaving"] is False)
        assert served.socket.put("/admin/config", json=config).status_code == 200
        w.until(lambda s: s["models"][old]["leaving"] and s["models"][old]["running"] == 1 and s["models"][old]["bytes"]["weight"] > 0)
        row = w.state["models"][old]
        assert row["name"] == "b<i>" and row["state"] == "draining" and row["aliases"] == [] and row["devices"] == [0]
        assert {c // 16 - 1 for c in w.pages[0] if c >= 16} <= set(w.state["models"])
        late = watch()  # it is told to one that comes now, too
        late.until(lambda s: s["models"][old]["leaving"])
    finally:
        assert served.socket.post(slow, json={"times": 1}).status_code == 200
        thread.join()
    assert answers[0].status_code == 200
    w.until(lambda s: [m["name"] for m in s["models"].values()] == ["a"])
    r = served.socket.put("/admin/config", content=text, headers={"content-type": "application/json"})
    assert r.status_code == 200
    w.until(lambda s: len(s["models"]) == 2 and not any(m["leaving"] for m in s["models"].values()))


def test_viewers_have_a_bound_and_leave_nothing_behind(served, watch):
    many = [watch() for _ in range(16)]
    for w in many:
        w.until(lambda s: True)
    r = served.socket.get("/admin/watch")
    assert r.status_code == 503 and r.json()["error"]["code"] == "too_many_viewers"
    for w in many:
        w.close()
    end = time.monotonic() + 20 * SLOW
    while True:  # the daemon sees that they left
        with served.socket.stream("GET", "/admin/watch") as r:
            if r.status_code == 200:
                break
        assert time.monotonic() < end
    assert served.http.get("/health").status_code == 200


def test_HEAD_has_the_type_of_the_stream_and_no_body(served):
    """The end of a chunked body came behind the head, as the begin of the next answer."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(30 * SLOW)
        s.connect(str(served.sock))
        s.sendall(b"HEAD /admin/watch HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20 + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        text = b""
        while b'"ok"' not in text:
            assert (more := s.recv(65536)), text
            text += more
    *heads, health, body = text.split(b"\r\n\r\n")
    assert len(heads) == 20 and body.startswith(b"{")  # 20 viewers are too many
    for head in heads:
        assert head.startswith(b"HTTP/1.1 200 ") and b"\r\nContent-Type: text/event-stream\r\n" in head, head
    assert health.startswith(b"HTTP/1.1 200 ")


def test_who_may_watch(served):
    def status(**headers):
        with served.http.stream("GET", "/admin/watch", headers=headers) as r:
            return r.status_code
    assert status() == 401
    assert status(Authorization=f"Bearer {TENANT}") == 403
    assert status(Authorization=f"Bearer {ADMIN}") == 200


@pytest.mark.parametrize("headers,expected", [
    ({}, 200), ({"Host": "localhost:8081"}, 200), ({"Host": "box"}, 200), ({"Host": "10.0.0.7:8081"}, 200),
    ({"Host": "localhost:8081", "Origin": "http://localhost:8081"}, 200),
    ({"Host": "localhost:8081", "Origin": "http://localhost:3000"}, 403),
    ({"Host": "localhost:8081", "Origin": "http://evil.example"}, 403),
    ({"Host": "localhost:8081", "Origin": "null"}, 403),
    ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
    ({"Host": "evil.example:8081"}, 403),
    ({"Host": "localhost:8081", "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Host": "localhost:8081", "Sec-Fetch-Site": "same-origin"}, 200)])
def test_no_other_web_page_reaches_a_forwarded_socket(served, headers, expected):
    assert served.socket.get("/admin/state", headers=headers).status_code == expected
    r = served.socket.post("/admin/plan", json={"load": "a"}, headers=headers)
    assert r.status_code == expected, r.text


def test_the_socket_serves_chats_with_the_key_of_a_tenant(served):
    body = {"model": "a", "max_tokens": 4, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    assert served.socket.post("/v1/chat/completions", json=body).status_code == 401
    r = served.socket.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {TENANT}"})
    assert r.status_code == 200 and r.text.rstrip().endswith("data: [DONE]")
    r = served.socket.get("/v1/models", headers={"Authorization": f"Bearer {TENANT}"})
    assert [m["id"] for m in r.json()["data"]] == ["a", "b<i>"]
    assert served.socket.get("/metrics").status_code == 200  # as before, without a key


def test_files_of_the_page_come_with_a_strict_policy(served):
    for client in (served.http, served.socket):
        r = client.get("/ui")
        assert r.status_code == 200 and r.headers["content-type"] == "text/html; charset=utf-8"
        policy = r.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert r.headers["x-content-type-options"] == "nosniff"
        assert client.get("/ui/nothing.js").status_code == 404
        assert client.get("/ui/..%2Findex.html").status_code == 404


def test_a_stream_ends_with_the_key_that_it_was_opened_with(served, watch):
    w = watch()
    w.until(lambda s: True)
    text = served.config_path.read_text()
    config = json.loads(text)
    config["admin"]["key"] = "another-key-0123456789"
    with served.http.stream("GET", "/admin/watch", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30 * SLOW) as r:
        lines = r.iter_lines()
        assert next(lines) == "event: all"
        assert served.socket.put("/admin/config", json=config).status_code == 200
        for _ in lines:  # to its end, or the timeout
            pass
    assert served.http.get("/admin/watch", headers={"Authorization": f"Bearer {ADMIN}"}).status_code == 401
    r = served.socket.put("/admin/config", content=text, headers={"content-type": "application/json"})
    assert r.status_code == 200
    w.until(lambda s: w.texts("config"))  # the socket needs no key: its stream goes on
    assert not w.ended


def test_a_viewer_that_fell_behind_ends_with_its_key_too(launch, tmp_path):
    sock = tmp_path / "admin.sock"
    d = launch({"devices": [{"kind": "cpu", "memory": "64MiB"}], "admin": {"listen": f"unix:{sock}", "key": ADMIN, "page": True},
                "models": [{"name": f"m{i}" + "x" * 100, "path": f"dummy:tiny?seed={i}"} for i in range(1, 65)],
                "tenants": [{"name": f"t{i}" + "y" * 60, "key": f"{TENANT}-{i}"} for i in range(500)]}, args=["--allow-dummy"])
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # "all" does not fit: it stays behind from the start
    slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    slow.settimeout(30 * SLOW)
    slow.connect(("127.0.0.1", d.http.base_url.port))
    slow.sendall(f"GET /admin/watch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode())
    assert slow.recv(9, socket.MSG_PEEK | socket.MSG_WAITALL) == b"HTTP/1.1 "
    w = Watch(sock)
    w.until(lambda s: w.n_deltas >= 8)  # it misses more of them than wait for it
    config = json.loads(d.config_path.read_text())
    config["admin"]["key"] = "another-key-0123456789"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://localhost") as client:
        assert client.put("/admin/config", json=config, timeout=30 * SLOW).status_code == 200
    n = w.n_deltas
    w.until(lambda s: w.n_deltas > n + 1)
    text, told = b"", b"a change of the configuration took effect"
    while not text.endswith(b"\r\n0\r\n\r\n") and told not in text:
        text += slow.recv(1 << 20)
    assert told not in text  # that is news of after the change
    slow.close()
    w.close()


@pytest.mark.skipif(bool(SANITIZE), reason="a sanitizer has the first place among preloaded libraries")
def test_a_clock_that_is_set_back_leaves_events_in_order_and_the_uptime(launch, tiny_model, tmp_path):
    sock, shift = tmp_path / "admin.sock", tmp_path / "shift"
    shift.write_text("0")
    d = launch({"devices": [{"kind": "cpu", "memory": "64MiB", "threads": 1}], "admin": {"listen": f"unix:{sock}"},
                "models": [{"name": "a", "path": tiny_model}]},
               env={"LD_PRELOAD": str(BUILD / "tests" / "clock_shift.so"), "CLOCK_SHIFT": str(shift)})
    client = httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://localhost", timeout=60 * SLOW)
    told = lambda: [e for e in w.state["events"].values() if e["text"] == "an administrator asked to drain a"]
    w = Watch(sock)
    try:
        assert client.post("/admin/models/a/drain").status_code in (200, 202)
        w.until(lambda s: len(told()) == 1)
        started = w.state["daemon"]["started_at"]
        assert 0 <= time.time() - started < 600
        shift.write_text("-7200")
        w.until(lambda s: abs(s["daemon"]["started_at"] - (started - 7200)) <= 1)
        assert client.post("/admin/models/a/drain").status_code in (200, 202)
        w.until(lambda s: len(told()) == 2)  # it was counted to the one of two hours later
        before, after = told()
        assert before["at"] > after["at"] and before["id"] < after["id"] and before["change"] < after["change"]
        assert before["n"] == 1
    finally:
        w.close()
    assert d.stop() == 0


def test_a_lost_device_is_an_event(launch, tiny_model, tmp_path):
    sock = tmp_path / "admin.sock"
    d = launch({"devices": [{"kind": "cpu", "name": n, "memory": "64MiB", "cores": c} for n, c in (("one", "0"), ("two", "1"))],
                "admin": {"listen": f"unix:{sock}"}, "models": [{"name": "a", "path": tiny_model}]}, args=["--allow-faults"])
    client = httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://localhost")
    w = Watch(sock)
    w.until(lambda s: len(s["devices"]) == 2)
    assert client.post("/admin/models/a/load", json={"wait": True}).status_code == 200
    w.until(lambda s: w.model("a")["state"] == "hot")
    assert w.model("a")["wanted_at"] == 0  # a load is no use
    on = w.state["devices"][w.model("a")["devices"][0]]["name"]
    assert client.post(f"/admin/devices/{on}/lose").status_code == 200
    d.http.post("/v1/completions", json={"model": "a", "prompt": "x", "max_tokens": 1})
    w.until(lambda s: any(t.startswith(f"the device {on} is lost") for t in w.texts("device")))
    w.until(lambda s: any(x["lost"] for x in s["devices"].values()))
    w.until(lambda s: "a request for a failed: device_lost" in w.texts("fail"))
    assert w.texts("refuse") == []
    w.close()


def test_viewers_see_why_a_daemon_with_a_hanging_device_ends(launch, tiny_model, tmp_path):
    sock = tmp_path / "admin.sock"
    d = launch({"devices": [{"kind": "cpu", "name": "one", "memory": "64MiB"}], "admin": {"listen": f"unix:{sock}"},
                "limits": {"watchdog_s": 1}, "models": [{"name": "a", "path": tiny_model}]}, args=["--allow-faults"])
    w = Watch(sock)
    w.until(lambda s: True)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(sock)), base_url="http://localhost") as client:
        assert client.post("/admin/devices/one/slow", json={"times": "hang"}).status_code == 200
    assert d.http.post("/v1/completions", json={"model": "a", "prompt": "x"}, timeout=60 * SLOW).status_code == 503
    assert d.process.wait(60 * SLOW) != 0
    with w.changed:
        assert w.changed.wait_for(lambda: w.ended, 10 * SLOW)
    assert [t[:42] for t in w.texts("device")] == ["the device one: no step or piece of a load"]
    w.close()


def test_the_page_is_off_on_the_main_listener_by_default(launch, tiny_model):
    d = launch({"admin": {"listen": "none", "key": ADMIN}, "models": [{"name": "a", "path": tiny_model}]})
    r = d.http.get("/ui")
    assert r.status_code == 404 and r.json()["error"]["code"] == "page_is_off"
    assert "/ui" not in d.http.get("/").text


def test_a_drain_ends_the_streams(launch, tiny_model, tmp_path):
    sock = tmp_path / "admin.sock"
    d = launch({"admin": {"listen": f"unix:{sock}"}, "models": [{"name": "a", "path": tiny_model}]})
    w = Watch(sock)
    w.until(lambda s: True)
    d.process.terminate()
    assert d.process.wait(20 * SLOW) == 0
    with w.changed:
        assert w.changed.wait_for(lambda: w.ended, 10 * SLOW)


def test_the_option_page_makes_a_key_and_prints_the_address(tiny_model, tmp_path):
    """A newcomer has no configuration, and so no key."""
    process = subprocess.Popen([BUILD / "inferd", "serve", tiny_model, "--page", "--listen", "127.0.0.1:0"], text=True,
                               env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, stdout=subprocess.PIPE)
    try:
        assert "base_url" in process.stdout.readline()
        found = re.fullmatch(r"page: (http://127\.0\.0\.1:\d+)/ui#key=(page-[0-9a-f]{32})\n", process.stdout.readline())
        url, key = found.groups()
        assert httpx.get(url + "/ui").status_code == 200
        assert httpx.get(url + "/admin/state").status_code == 401
        assert httpx.get(url + "/admin/state", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert httpx.get(url + "/v1/models").status_code == 200  # clients need no key, as without the option
    finally:
        process.terminate()
        assert process.wait(20 * SLOW) == 0
