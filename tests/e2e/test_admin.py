"""The admin API and `inferd ctl`: who may, what each command does, what a change of the configuration
changes, and what a plan says.  Models are made up; memory is for some of them."""

import concurrent.futures
import json
import os
import random
import re
import signal
import stat
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, ROOT, SLOW, flooding

ADMIN, TENANT, OTHER = "adm-key-0123456789", "ten-key-0123456789", "ten-key-9876543210"
NAMES = ["a", "org/b", "c", "d"]


def models(names=NAMES, **more):
    return [{"name": n, "path": f"dummy:tiny?seed={i + 1}", **more.get(n, {})} for i, n in enumerate(names)]


def config(sock, memory="64MiB", **more):
    c = {"devices": [{"kind": "cpu", "memory": memory}], "models": models(),
         "admin": {"listen": f"unix:{sock}", "keys": [ADMIN]},
         "tenants": [{"name": "t", "keys": [TENANT]}, {"name": "u", "keys": [OTHER], "models": ["a"]}], **more}
    return {k: v for k, v in c.items() if v is not None}


class Served:
    """A daemon with its admin socket."""

    def __init__(self, launch, folder, memory="64MiB", args=(), **more):
        self.sock = folder / "admin.sock"
        self.d = launch(config(self.sock, memory, **more), args=["--allow-dummy", *args])
        self.admin = httpx.Client(transport=httpx.HTTPTransport(uds=str(self.sock)), base_url="http://localhost",
                                  timeout=60 * SLOW)

    @property
    def file(self):
        return self.d.config_path

    def state(self):
        r = self.admin.get("/admin/state")
        assert r.status_code == 200, r.text
        return r.json()

    def model(self, name):
        return next(m for m in self.state()["models"] if m["name"] == name)

    def tenant(self, name):
        return next(t for t in self.state()["tenants"] if t["name"] == name)

    def do(self, name, command, wait=True, **body):
        return self.admin.post(f"/admin/models/{name.replace('/', '%2F')}/{command}",
                               json={**({"wait": True} if wait else {}), **body})

    def ask(self, model, n=1, key=TENANT, **more):
        return httpx.post(self.d.url + "/v1/completions", timeout=60 * SLOW,
                          headers={"Authorization": f"Bearer {key}"},
                          json={"model": model, "prompt": "x", "max_tokens": n, "ignore_eos": True, **more})

    def until(self, what, timeout=20 * SLOW):
        end = time.monotonic() + timeout
        while not what():
            assert time.monotonic() < end, self.state()
            time.sleep(0.02)

    def ctl(self, *words, url=False, env=None, **kw):
        to = ["--url", self.d.url] if url else ["--socket", str(self.sock)]
        return subprocess.run([BUILD / "inferd", "ctl", *to, *words], capture_output=True, text=True,
                              timeout=60 * SLOW, env={**os.environ, **(env or {})}, **kw)


@pytest.fixture(scope="module")
def served(launch, tmp_path_factory):
    """Room for all.  Tests leave every model HOT, and the configuration as it was."""
    s = Served(launch, tmp_path_factory.mktemp("admin"))
    s.text = s.file.read_text()
    return s


@pytest.fixture
def fresh(served):
    """As at the start, whatever the test before did."""
    served.file.write_text(served.text)
    r = served.admin.put("/admin/config", content=served.text, headers={"content-type": "application/json"})
    assert r.status_code == 200, r.text
    for n in NAMES:
        assert served.do(n, "load").status_code == 200
    return served


# -- who may ----------------------------------------------------------------------------------------

ROUTES = [("GET", "/admin/state"), ("GET", "/admin/config"), ("PUT", "/admin/config"), ("POST", "/admin/plan"),
          ("GET", "/admin/tenants/t"), ("PATCH", "/admin/tenants/t"), ("GET", "/admin/models/a"),
          ("PATCH", "/admin/models/a"), ("GET", "/running"), ("GET", "/unload"), ("POST", "/unload"),
          ("POST", "/api/models/unload"), ("POST", "/api/models/unload/a"),
          *[("POST", f"/admin/models/a/{c}") for c in
            ("load", "unload", "drop", "prefetch", "pin", "unpin", "drain", "undrain")]]


@pytest.mark.parametrize("method,path", ROUTES, ids=[f"{m} {p}" for m, p in ROUTES])
def test_a_route_answers_only_to_a_key_of_admin(served, method, path):
    def status(key):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        r = httpx.request(method, served.d.url + path, headers=headers)
        return r.status_code, r.json()["error"]["code"]
    assert status(None) == (401, "invalid_api_key")
    assert status("adm-key-012345678") == (401, "invalid_api_key")
    assert status(TENANT) == (403, "admin_only")


def test_a_key_of_admin_is_good_on_tcp_and_only_there_for_that(served):
    headers = {"Authorization": f"Bearer {ADMIN}"}
    assert httpx.get(served.d.url + "/admin/state", headers=headers).status_code == 200
    assert httpx.get(served.d.url + "/v1/models", headers=headers).status_code == 401


def test_a_tenant_sees_its_own_figures_and_an_administrator_all(served):
    """The page showed every tenant's names, device time and refusals to each of them."""
    for key, model in ((TENANT, "c"), (OTHER, "a")):
        body = {"model": model, "prompt": [1, 2], "max_tokens": 4, "ignore_eos": True}
        r = httpx.post(served.d.url + "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"},
                       timeout=60 * SLOW)
        assert r.status_code == 200, r.text

    def page(key):
        r = httpx.get(served.d.url + "/metrics", headers={"Authorization": f"Bearer {key}"})
        assert r.status_code == 200
        return r.text

    def names(text, label):
        return set(re.findall(rf'[{{,]{label}="([^"]*)"', text))

    def shares(text):
        return set(re.findall(r'inferd_share_entitled_ratio{of="(\w+)",name="([^"]*)"}', text))

    all_models = {("model", n) for n in NAMES}
    for text in (page(ADMIN), served.admin.get("/metrics").text):
        assert names(text, "tenant") >= {"t", "u"} and names(text, "model") >= set(NAMES)
        assert shares(text) >= {("tenant", "t"), ("tenant", "u")} | all_models
    t, u = page(TENANT), page(OTHER)
    counted, end = 'inferd_tokens_total{tenant="u",model="a",kind="output"} 4\n', time.monotonic() + 10 * SLOW
    while counted not in u and time.monotonic() < end:  # the engine publishes its counters a little later
        time.sleep(0.05)
        u = page(OTHER)
    assert names(t, "tenant") == {"t"} and names(t, "model") >= set(NAMES)
    assert shares(t) >= {("tenant", "t")} | all_models and ("tenant", "u") not in shares(t)
    assert names(u, "tenant") == {"u"} and names(u, "model") == names(u, "model_name") == {"a"}
    assert shares(u) == {("tenant", "u"), ("model", "a")}
    assert counted in u
    for text in (t, u):  # what is of nobody in particular
        assert "inferd_sequences_running" in text and 'inferd_steps' not in names(text, "tenant")


def test_the_socket_is_its_owners_and_needs_no_key(served):
    st = os.stat(served.sock)
    assert stat.S_ISSOCK(st.st_mode) and stat.S_IMODE(st.st_mode) == 0o600
    assert served.admin.get("/admin/state").status_code == 200
    for path in ("/health", "/ready", "/version", "/openapi.json", "/metrics", "/debug/audit"):
        assert served.admin.get(path).status_code == 200
    assert served.admin.get("/v1/completions").status_code == 404
    assert served.admin.get("/v1/models").status_code == 401  # for the page's chats, with the key of a tenant
    # a web page reaches the socket only where it is forwarded to a port (test_watch.py)
    assert served.admin.get("/admin/state", headers={"Host": "x"}).status_code == 200
    assert served.admin.get("/admin/state", headers={"Host": "x", "Origin": "http://evil.example"}).status_code == 403
    for key, status in ((TENANT, 403), (OTHER, 403), (ADMIN, 200), ("nobodys-key-0123", 200)):
        r = served.admin.get("/admin/state", headers={"Authorization": f"Bearer {key}"})
        assert r.status_code == status, (key, r.text)
    r = served.admin.post("/admin/models/a/unload", headers={"Authorization": f"Bearer {TENANT}"})
    assert r.status_code == 403 and r.json()["error"]["code"] == "admin_only" and served.model("a")["state"] == "hot"


def test_every_route_is_in_the_manual():
    text = (ROOT / "docs/admin.md").read_text()
    routes = re.findall(r'\{"(/[^"]*)", ([A-Z_| ]+), HTTP_ADMIN', (ROOT / "server/cli/routes.c").read_text())
    assert len(routes) > 15
    for path, methods in routes:
        for method in re.findall(r"HTTP_([A-Z]+)", methods):
            named = path.replace("/*", "/{name}").replace("/**", "/{name}").replace("{name}*", "{name}")
            assert f"`{method} {named}`" in text, (method, named)


def test_without_keys_only_the_socket_answers(launch, tmp_path):
    s = Served(launch, tmp_path, tenants=None, admin={"listen": f"unix:{tmp_path}/admin.sock"}, models=models(["a"]))
    r = httpx.get(s.d.url + "/admin/state")
    assert r.status_code == 403 and r.json()["error"]["code"] == "admin_not_configured"
    assert "admin.key_file" in r.json()["error"]["message"] and "admin.listen" in r.json()["error"]["message"]
    assert s.admin.get("/admin/state").status_code == 200
    assert s.d.stop() == 0
    assert not s.sock.exists()


def test_a_keyless_daemon_with_an_admin_key_asks_for_it(launch, tmp_path):
    d = launch(config(None, tenants=None, admin={"keys": [ADMIN]}, models=models(["a"])), args=["--allow-dummy"])
    assert d.http.get("/v1/models").status_code == 200
    assert d.http.get("/admin/state").status_code == 401
    assert d.http.get("/admin/state", headers={"Authorization": f"Bearer {ADMIN}"}).status_code == 200
    assert d.stop() == 0


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(launch, tmp_path):
    s = Served(launch, tmp_path, models=models(["a"]))
    f = tmp_path / "second.json"
    f.write_text(json.dumps({"listen": "127.0.0.1:0", **config(s.sock, models=models(["a"]))}))
    r = subprocess.run([BUILD / "inferd", "serve", "--allow-dummy", "--config", f], capture_output=True, text=True,
                       timeout=60 * SLOW)
    assert r.returncode == 1 and "in use" in r.stderr and s.admin.get("/health").status_code == 200
    s.d.process.send_signal(signal.SIGKILL)
    s.d.process.wait()
    assert s.sock.exists()
    again = Served(launch, tmp_path, models=models(["a"]))
    assert again.state()["models"][0]["name"] == "a"
    assert again.d.stop() == 0


def test_admin_keys_change_with_a_reload(launch, tmp_path):
    s = Served(launch, tmp_path, models=models(["a"]))
    fresh_key = "adm-key-another-one"
    c = json.loads(s.file.read_text())
    c["admin"]["keys"] = [fresh_key]
    s.file.write_text(json.dumps(c))
    s.d.process.send_signal(signal.SIGHUP)
    get = lambda key: httpx.get(s.d.url + "/admin/state", headers={"Authorization": f"Bearer {key}"}).status_code
    s.until(lambda: get(fresh_key) == 200)
    assert get(ADMIN) == 401
    assert s.state()["config"]["reloads"] == {"ok": 1, "refused": 0}
    assert s.d.stop() == 0


# -- state ------------------------------------------------------------------------------------------

def adds_up(device):
    """Each page is in one state, and told once."""
    assert device["one_memory"], device
    states = ("free", "weight", "kv", "cached", "warm", "parked", "quarantine", "absent")
    p = device["pages"]
    assert sum(p[s] for s in states) == p["total"] and p["warm"] + p["parked"] + p["host_free"] == p["host"], p


def test_state_says_what_is_there(fresh):
    s = fresh.state()
    device = s["devices"][0]
    pages = device["pages"]
    assert device["name"] == "cpu0" and device["kind"] == "cpu" and device["page_bytes"] > 0
    assert set(pages) == {"total", "device", "host", "free", "device_free", "host_free", "weight", "kv", "cached", "warm", "parked",
                          "quarantine", "absent"}
    assert pages["weight"] == sum(m["pages"]["weight"] for m in s["models"]) > 0
    adds_up(device)
    assert device["thrash"] == {"now": False, "reload_s": 0, "window_s": 10, "attainment": 0}
    account = device["account"]
    assert account["step_s"] + account["load_s"] + account["idle_s"] <= account["wall_s"] + 0.01
    assert [m["name"] for m in s["models"]] == NAMES
    for m in s["models"]:
        assert m["state"] == "hot" and m["error"] is None and not m["held"] and m["loads"] >= 1
        assert m["class"] == "normal" and m["weight"] == 1 and m["pin"] == "none" and m["keep_alive_s"] == "never"
        assert m["bytes"]["loaded"] == m["bytes"]["total"] > 0
    assert [t["name"] for t in s["tenants"]] == ["t", "u"] and s["tenants"][1]["models"] == ["a"]
    assert s["queues"] == {"running": 0, "waiting": 0, "paused": 0}
    assert s["config"]["path"] == str(fresh.file) and s["config"]["loaded_at"] > 1.7e9
    text = json.dumps(s)
    assert TENANT not in text and ADMIN not in text


def test_state_follows_work(fresh):
    before = fresh.model("a")
    r = {}
    thread = threading.Thread(target=lambda: r.update(a=fresh.ask("a", 1900)))
    thread.start()
    fresh.until(lambda: fresh.model("a")["running"] > 0)
    assert fresh.state()["queues"]["running"] == 1 and fresh.model("a")["pages"]["kv"] > 0
    thread.join()
    assert r["a"].status_code == 200
    fresh.until(lambda: fresh.model("a")["device_s"] > before["device_s"])
    fresh.until(lambda: fresh.state()["devices"][0]["steps"] > 1000)


def metric(text, name):
    """Samples of one family by their labels."""
    return {tuple(re.findall(r'="([^"]*)"', labels)): float(value)
            for labels, value in re.findall(rf"^{name}{{(.*)}} (.*)$", text, re.M)}


def test_memory_is_told_by_tenant_and_model(fresh):
    """What is used, what is held for it, and what is only kept; each page once, also under load."""
    r = fresh.admin.patch("/admin/tenants/t", json={"max": "8MiB"})
    assert r.status_code == 200 and r.json()["tenant"]["used_bytes"] == 0, r.text
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asks = [pool.submit(fresh.ask, n, 600, prompt=f"{n} {i}") for n in ("a", "c") for i in range(3)]
        fresh.until(lambda: fresh.tenant("t")["used_bytes"] > 0)
        page = fresh.state()["devices"][0]["page_bytes"]
        told = fresh.admin.get("/metrics").text
        while not all(a.done() for a in asks):
            s = fresh.state()
            adds_up(s["devices"][0])
            for m in s["models"]:
                assert m["used_bytes"] <= m["held_bytes"] == (m["pages"]["weight"] + m["pages"]["kv"]) * page, m
                assert m["cached_bytes"] == m["pages"]["cached"] * page, m
        assert all(a.result().status_code == 200 for a in asks)
    tenants = metric(told, "inferd_tenant_bytes")
    assert 0 < tenants["t", "used"] <= 8 << 20 and tenants["t", "max"] == 8 << 20 and tenants["t", "min"] == 0
    assert tenants["u", "used"] == 0 and tenants["u", "max"] == float("inf")
    own = httpx.get(fresh.d.url + "/metrics", headers={"Authorization": f"Bearer {OTHER}"}).text
    assert {of for of, _ in metric(own, "inferd_tenant_bytes")} == {"u"}
    fresh.until(lambda: fresh.tenant("t")["used_bytes"] == 0)
    fresh.until(lambda: fresh.model("a")["pages"]["kv"] == 0)
    m = fresh.model("a")  # idle: its weights, of which the last page is partly used, and what is cached
    assert m["pages"]["cached"] > 0 and m["held_bytes"] == m["pages"]["weight"] * page
    assert m["held_bytes"] - page < m["used_bytes"] < m["held_bytes"]
    assert metric(fresh.admin.get("/metrics").text, "inferd_model_bytes")["a", "held"] == m["held_bytes"]
    assert columns(fresh.ctl("tenants").stdout, "t")["KV"] == "0"


def test_a_model_that_leaves_is_told_until_it_has_left(fresh):
    """It was said to be nowhere while it was computing."""
    rest = json.loads(fresh.text)
    rest["models"] = [m for m in rest["models"] if m["name"] != "c"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = [pool.submit(fresh.ask, "c", 1900) for _ in range(8)]  # a second, in which all of it is asked
        fresh.until(lambda: fresh.model("c")["running"] > 0)
        assert fresh.admin.put("/admin/config", json=rest).status_code == 200
        leaving, running = fresh.state()["leaving"], fresh.admin.get("/running").json()["running"]
        assert not all(a.done() for a in asked)
        assert [m["name"] for m in leaving] == ["c"] and leaving[0]["state"] in ("hot", "draining")
        assert 1 <= leaving[0]["answers"] <= 8
        assert {"model": "c", "state": "stopping", "ttl": 0} in running and len(running) == 4, running
        assert {200} <= {a.result().status_code for a in asked} <= {200, 404}  # 404: it came when the model had left
    fresh.until(lambda: fresh.state()["leaving"] == [])
    assert "c" not in [m["model"] for m in fresh.admin.get("/running").json()["running"]]


def test_one_model_and_one_tenant(fresh):
    assert fresh.admin.get("/admin/models/org%2Fb").json()["name"] == "org/b"
    assert fresh.admin.get("/admin/tenants/u").json()["models"] == ["a"]
    for path in ("/admin/models/zz", "/admin/models/org/b", "/admin/tenants/zz", "/admin/models/", "/admin/models/%"):
        assert fresh.admin.get(path).status_code == 404, path


# -- commands ---------------------------------------------------------------------------------------

def test_unload_load_drop_prefetch(fresh):
    assert fresh.do("a", "unload").json()["state"] in ("warm", "cold")
    assert fresh.model("a")["pages"]["weight"] == 0 and fresh.model("a")["evictions"]["asked"] >= 1
    assert fresh.do("a", "load").json() == {"model": "a", "state": "hot"}
    assert fresh.do("org/b", "drop").json() == {"model": "org/b", "state": "cold"}
    assert fresh.model("org/b")["pages"]["warm"] == 0
    assert fresh.do("org/b", "prefetch").json()["state"] in ("warm", "hot")
    assert fresh.do("org/b", "load").json() == {"model": "org/b", "state": "hot"}
    r = fresh.do("a", "unload", wait=False)
    assert r.status_code == 202 and r.json()["model"] == "a"
    fresh.until(lambda: fresh.model("a")["state"] != "hot")
    assert fresh.ask("a").status_code == 200  # who asks brings it back
    assert fresh.model("a")["state"] == "hot"


def test_unload_is_over_when_the_work_is(fresh):
    """It was answered at once, "draining", while an answer was still written."""
    for _ in range(2):  # also when it left before
        r = {}
        thread = threading.Thread(target=lambda: r.update(a=fresh.ask("a", 1500)))
        thread.start()
        fresh.until(lambda: fresh.model("a")["running"] > 0)
        left = fresh.do("a", "unload")
        assert left.status_code == 200 and left.json()["state"] in ("warm", "cold"), left.text
        assert fresh.model("a")["running"] == 0
        thread.join()
        assert r["a"].status_code == 200 and r["a"].json()["usage"]["completion_tokens"] == 1500


def test_drop_is_over_when_it_was_cold(fresh):
    """It ended with the time limit when somebody asked for the model meanwhile: it was back before anybody looked."""
    done = threading.Event()

    def go_on():
        while not done.is_set():
            fresh.ask("a", 20)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            dropped = fresh.do("a", "drop")
            assert dropped.status_code == 200, dropped.text
    finally:
        done.set()
        for t in threads:
            t.join()


def test_drain_lets_nobody_in_until_undrain(fresh):
    r = {}
    thread = threading.Thread(target=lambda: r.update(a=fresh.ask("a", 1500)))
    thread.start()
    fresh.until(lambda: fresh.model("a")["running"] > 0)
    assert fresh.do("a", "drain", wait=False).status_code == 202
    fresh.until(lambda: fresh.model("a")["held"])
    m = fresh.model("a")
    assert m["running"] == 0 or m["state"] == "draining", m  # it said hot until its work had ended
    running = {m["model"]: m["state"] for m in fresh.admin.get("/running").json()["running"]}
    assert running.get("a", "stopping") == "stopping", running
    refused = fresh.ask("a")
    assert "retry-after" not in refused.headers and refused.headers["x-should-retry"] == "false"
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_unavailable"
    assert fresh.do("a", "drain").status_code == 200
    thread.join()
    assert r["a"].status_code == 200 and r["a"].json()["usage"]["completion_tokens"] == 1500
    m = fresh.model("a")
    assert m["held"] and m["running"] == 0 and m["state"] != "hot"
    assert fresh.ask("a").status_code == 503
    assert fresh.do("a", "undrain").json()["state"] == "hot"
    assert fresh.ask("a").status_code == 200


def test_pin_and_unpin_hold_until_the_file_says_otherwise(fresh):
    assert fresh.do("a", "pin").json()["state"] == "hot" and fresh.model("a")["pin"] == "hot"
    assert fresh.do("a", "pin", level="warm").status_code == 200 and fresh.model("a")["pin"] == "warm"
    assert fresh.do("a", "unpin").status_code == 202 and fresh.model("a")["pin"] == "none"
    fresh.do("a", "pin", level="hot")
    n = fresh.state()["config"]["reloads"]["ok"]
    fresh.d.process.send_signal(signal.SIGHUP)
    fresh.until(lambda: fresh.state()["config"]["reloads"]["ok"] == n + 1)
    assert fresh.model("a")["pin"] == "hot"  # the file says nothing new
    assert fresh.admin.patch("/admin/models/a", json={"weight": 2}).status_code == 200
    assert fresh.model("a")["pin"] == "hot"
    assert fresh.admin.patch("/admin/models/a", json={"pin": None, "weight": None}).status_code == 200
    assert fresh.model("a")["pin"] == "none"


def test_a_wait_ends_at_its_time_and_the_command_goes_on(fresh):
    thread = threading.Thread(target=lambda: fresh.ask("a", 1900, prompt=["x"] * 16))
    thread.start()
    fresh.until(lambda: fresh.model("a")["running"] > 0)
    r = fresh.do("a", "drain", timeout_ms=1)
    assert r.status_code == 504 and r.json()["error"]["param"] == "timeout_ms", r.text
    thread.join()
    fresh.until(lambda: fresh.model("a")["state"] != "hot")
    assert fresh.do("a", "undrain").status_code == 200


def test_a_client_that_leaves_while_it_waits_does_no_harm(fresh):
    thread = threading.Thread(target=lambda: fresh.ask("a", 1900, prompt=["x"] * 16))
    thread.start()
    fresh.until(lambda: fresh.model("a")["running"] > 0)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(fresh.sock)), base_url="http://localhost", timeout=0.05) as c:
        with pytest.raises(httpx.HTTPError):
            c.post("/admin/models/a/drain", json={"wait": True})
    thread.join()
    assert fresh.do("a", "undrain").status_code == 200
    assert fresh.d.alive()


BAD = [("a/load", {"wait": 1}, "wait"), ("a/load", {"timeout_ms": -1}, "timeout_ms"),
       ("a/load", {"timeout_ms": 1.5}, "timeout_ms"), ("a/load", {"timeout_ms": 10**12}, "timeout_ms"),
       ("a/load", {"level": "hot"}, "body"), ("a/pin", {"level": "cold"}, "level"), ("a/pin", {"level": 1}, "level"),
       ("a/unpin", {"level": "hot"}, "body"), ("a/unload", {"what": 1}, "body")]


@pytest.mark.parametrize("path,body,param", BAD, ids=[f"{p} {json.dumps(b)}" for p, b, _ in BAD])
def test_bad_bodies_of_commands(served, path, body, param):
    r = served.admin.post("/admin/models/" + path, json=body)
    assert r.status_code == 400 and r.json()["error"]["param"] == param, r.text


def test_bodies_that_are_no_objects(served):
    post = lambda text, **h: served.admin.post("/admin/models/a/load", content=text,
                                               headers={"content-type": "application/json", **h}).status_code
    assert [post(t) for t in ("[", "[]", "1", '{"wait":true,"wait":true}', "{" * 1000, "\xff")] == [400] * 6
    assert post(json.dumps({"x": "y" * 70000})) == 413
    assert served.admin.post("/admin/models/a/load", content="wait=1",
                             headers={"content-type": "application/x-www-form-urlencoded"}).status_code == 415
    assert served.admin.post("/admin/models/a/load").status_code == 202
    assert served.admin.post("/admin/models/zz/load").status_code == 404
    assert served.admin.post("/admin/models/a/explode").status_code == 404
    assert served.admin.delete("/admin/models/a").status_code == 405


def test_as_llama_swap_has_it(fresh):
    running = fresh.admin.get("/running").json()["running"]
    assert [(m["model"], m["state"]) for m in running] == [(n, "ready") for n in NAMES]
    assert fresh.admin.head("/unload").status_code == 200
    assert len(fresh.admin.get("/running").json()["running"]) == 4  # looking changes nothing
    thread = threading.Thread(target=lambda: fresh.ask("a", 1900))
    thread.start()
    fresh.until(lambda: fresh.model("a")["running"] > 0)
    assert fresh.admin.get("/unload").status_code == 405  # without a key, a picture of a web page could do it
    assert httpx.get(fresh.d.url + "/unload", headers={"Authorization": f"Bearer {ADMIN}"}).text == "OK"
    fresh.until(lambda: [m["model"] for m in fresh.admin.get("/running").json()["running"]] == ["a"])
    thread.join()
    assert fresh.admin.post("/api/models/unload").json() == {"msg": "ok"}
    fresh.until(lambda: fresh.admin.get("/running").json()["running"] == [])
    fresh.do("org/b", "load")
    assert fresh.admin.post("/api/models/unload/org/b").json() == {"msg": "ok"}
    fresh.until(lambda: fresh.admin.get("/running").json()["running"] == [])
    assert fresh.admin.post("/api/models/unload/zz").status_code == 404


# -- a few fit ----------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def narrow(launch, tmp_path_factory):
    """Room for two models and some keys and values."""
    return Served(launch, tmp_path_factory.mktemp("narrow"), memory="12MiB",
                  models=models(a={"class": "high"}, d={"class": "batch"}))


def test_loading_by_hand_evicts_whom_the_plan_said(narrow):
    for name in ("a", "d"):
        assert narrow.ask(name).status_code == 200
    narrow.until(lambda: narrow.state()["queues"]["running"] == 0)
    hot = {m["name"] for m in narrow.state()["models"] if m["state"] == "hot"}
    wanted = next(n for n in NAMES if n not in hot)
    ask = lambda: narrow.admin.post("/admin/plan", json={"load": wanted}).json()
    narrow.until(lambda: ask()["now"])  # a model that came just now stays for a while
    plan = ask()
    assert plan["fits"] and plan["now"], plan
    victims = [v["name"] for v in plan["victims"]]
    assert set(victims) <= hot
    if "d" in hot and victims:
        assert victims[0] == "d"  # two classes lower: 64 times as slow to bring back, it would stay
    assert narrow.ask(wanted).status_code == 200
    gone = hot - {m["name"] for m in narrow.state()["models"] if m["state"] == "hot"}
    assert gone == set(victims), (plan, narrow.state())


def test_plan_and_reality_agree_whatever_the_pauses_were(narrow):
    """Models with pauses of different lengths behind them: the plan counts them as the daemon does."""
    draw, compared = random.Random(7), 0
    print("seed 7")
    for _ in range(8):
        for _ in range(draw.randrange(1, 4)):
            hot = [m["name"] for m in narrow.state()["models"] if m["state"] == "hot"]
            assert narrow.ask(draw.choice(hot or NAMES)).status_code == 200
            time.sleep(draw.choice((0.01, 0.05, 0.2)))
        narrow.until(lambda: narrow.state()["queues"]["running"] == 0)
        hot = {m["name"] for m in narrow.state()["models"] if m["state"] == "hot"}
        wanted = draw.choice([n for n in NAMES if n not in hot])
        time.sleep(0.3 * SLOW)
        plans = [narrow.admin.post("/admin/plan", json={"load": wanted}).json()]
        time.sleep(0.05)  # what is worth most changes with time: two that are close may change places
        plans.append(narrow.admin.post("/admin/plan", json={"load": wanted}).json())
        victims = [{v["name"] for v in plan["victims"]} for plan in plans]
        if not all(plan["now"] for plan in plans) or victims[0] != victims[1]:
            continue
        assert narrow.ask(wanted).status_code == 200
        gone = hot - {m["name"] for m in narrow.state()["models"] if m["state"] == "hot"}
        assert gone == victims[1], (plans[1], narrow.state())
        compared += len(gone) > 0
    assert compared >= 4


def test_a_load_that_can_never_be_fails_with_its_reason(launch, tmp_path):
    """Somebody pinned everything."""
    s = Served(launch, tmp_path, memory="6MiB", models=models(["a", "b"], a={"pin": "hot"}))
    assert s.do("a", "load").status_code == 200
    r = s.do("b", "load", timeout_ms=5000 * SLOW)
    assert r.status_code == 503 and r.json()["error"]["code"] == "model_unavailable", r.text
    assert "is 6 MiB and must be 10 MiB or more" in r.json()["error"]["message"]
    m = s.model("b")
    assert m["state"] == "failed" and m["error"] == r.json()["error"]["message"] and m["failures"] >= 1
    plan = s.admin.post("/admin/plan", json={"load": "b"}).json()
    assert not plan["fits"]
    assert [c["name"] for c in plan["checks"] if not c["kept"]] == ["device", "memory"]
    assert s.d.stop() == 0


def test_commands_from_everywhere_at_once(narrow):
    """Whatever is asked in whatever order: the daemon answers, and its books are right."""
    def one(i):
        name, command = NAMES[i % 4], ("load", "unload", "drop", "prefetch", "drain", "undrain", "pin", "unpin")[i % 8]
        narrow.do(name, command, wait=i % 3 == 0, timeout_ms=50)
        return narrow.ask(name, 5, key=TENANT).status_code if i % 5 == 0 else 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(one, range(120)))
    assert seen <= {0, 200, 503}, seen
    for n in NAMES:
        narrow.do(n, "unpin")
        assert narrow.do(n, "undrain", timeout_ms=20000 * SLOW).status_code == 200
        assert narrow.ask(n).status_code == 200
    assert narrow.admin.get("/debug/audit").json()["ok"]


# -- changes in memory --------------------------------------------------------------------------------

def patch(s, path, **body):
    return s.admin.patch("/admin/" + path, json=body)


def test_a_patch_changes_the_running_model_and_not_the_file(fresh):
    r = patch(fresh, "models/org%2Fb", weight=7, share={"percent": 20}, max="8MiB", min="4MiB", keep_alive="30s",
              slo={"ttft_ms": 500}, pin="warm", **{"class": "high"})
    assert r.status_code == 200, r.text
    assert r.json()["applied"] and not r.json()["persisted"] and r.json()["needs_restart"] == []
    m = fresh.model("org/b")
    assert r.json()["model"]["weight"] == m["weight"] == 7 and m["class"] == "high" and m["pin"] == "warm"
    assert m["share"] == {"policy": "burst", "percent": 20, "devices": 1}
    assert (m["min_bytes"], m["max_bytes"], m["keep_alive_s"]) == (4 << 20, 8 << 20, 30)
    assert m["slo"] == {"ttft_ms": 500, "tpot_ms": 0}
    page = fresh.state()["devices"][0]["page_bytes"]
    # an engine without work tells its numbers when it has some again
    fresh.until(lambda: fresh.ask("a", 20) and fresh.model("org/b")["pages"]["max"] == (8 << 20) // page)
    assert fresh.file.read_text() == fresh.text and fresh.state()["config"]["unsaved"] == 1
    # a second one stands on the first, another model's beside it; null is the default again
    assert patch(fresh, "models/a", weight=2).status_code == 200
    assert patch(fresh, "models/org%2Fb", share={"policy": "fixed"}, max=None, slo=None).status_code == 200
    m = fresh.model("org/b")
    assert m["weight"] == 7 and m["share"] == {"policy": "fixed", "percent": 20, "devices": 1}
    assert m["max_bytes"] == 0 and m["slo"]["ttft_ms"] == 0 and fresh.model("a")["weight"] == 2
    assert patch(fresh, "models/org%2Fb", share=None).status_code == 200
    assert patch(fresh, "models/org%2Fb", share={"percent": 5}).status_code == 200
    assert fresh.model("org/b")["share"] == {"policy": "burst", "percent": 5, "devices": 1}
    # a reload brings what the file says
    n = fresh.state()["config"]["reloads"]["ok"]
    fresh.d.process.send_signal(signal.SIGHUP)
    fresh.until(lambda: fresh.state()["config"]["reloads"]["ok"] == n + 1)
    assert fresh.model("org/b")["weight"] == fresh.model("a")["weight"] == 1
    assert fresh.state()["config"]["unsaved"] == 0


def test_a_change_tells_the_warnings_that_it_brings(fresh):
    first = patch(fresh, "models/a", max="5MiB").json()
    assert first["warning"] == "models[0].max: 5MiB is rounded down to 4MiB, to whole pages of 2MiB"
    assert 'note="models[0].max: 5MiB' in fresh.d.stderr()
    assert "warning" not in patch(fresh, "models/a", weight=2).json()  # it was told
    assert patch(fresh, "models/c", max="7MiB").json()["warning"].startswith("models[2].max: 7MiB")
    assert "warning" not in patch(fresh, "models/a", max=None).json()


def test_shorthands_in_a_patch_and_in_the_file(fresh):
    assert patch(fresh, "models/a", share={"policy": "fixed", "percent": 20}, pin=True).status_code == 200
    m = fresh.model("a")
    assert m["share"] == {"policy": "fixed", "percent": 20, "devices": 1} and m["pin"] == "hot"
    assert patch(fresh, "models/a", share=30, max="64MB", pin=False).status_code == 200  # it stays fixed
    m = fresh.model("a")
    assert m["share"] == {"policy": "fixed", "percent": 30, "devices": 1} and m["pin"] == "none"
    assert m["max_bytes"] == 64000000
    # of two patches the first may be the short one
    assert patch(fresh, "models/c", share=10).status_code == 200
    assert patch(fresh, "models/c", share={"policy": "fixed"}).status_code == 200
    assert fresh.model("c")["share"] == {"policy": "fixed", "percent": 10, "devices": 1}
    c = json.loads(fresh.text)
    c["models"][0].update(share=40, pin=True)
    c["tenants"][0]["key"] = c["tenants"][0].pop("keys")[0]
    assert put(fresh, c).status_code == 200 and fresh.ask("a").status_code == 200
    shown = fresh.admin.get("/admin/config").json()
    assert shown["tenants"][0]["key"] == "****" and shown["models"][0]["share"] == 40
    assert put(fresh, shown).status_code == 200 and fresh.ask("a").status_code == 200
    assert json.loads(fresh.file.read_text())["tenants"][0]["key"] == TENANT
    r = patch(fresh, "tenants/t", priority="high")
    assert r.status_code == 400 and 'did you mean "max_class"' in r.text.replace("\\", ""), r.text


def test_a_patch_of_a_tenant(fresh):
    r = patch(fresh, "tenants/t", limits={"concurrent": 3, "requests_per_min": 100}, max_class="high", weight=4)
    assert r.status_code == 200 and r.json()["tenant"]["limits"]["concurrent"] == 3, r.text
    t = fresh.tenant("t")
    assert t["class"] == "high" and t["weight"] == 4 and t["limits"]["requests_per_min"] == 100
    assert fresh.ask("a").status_code == 200  # its key is still good


@pytest.mark.parametrize("how", ["query", "body"])
def test_persist_writes_the_file_too(fresh, how):
    path = "/admin/models/a" + ("?persist=true" if how == "query" else "")
    os.chmod(fresh.file, 0o640)
    assert patch(fresh, "models/c", weight=9).status_code == 200
    r = fresh.admin.patch(path, json={"weight": 3, **({"persist": True} if how == "body" else {})})
    assert r.status_code == 200 and r.json()["persisted"], r.text
    c = json.loads(fresh.file.read_text())
    assert [m.get("weight") for m in c["models"]] == [3, None, None, None]  # c's is in memory only
    assert c["tenants"][0]["keys"] == [TENANT] and stat.S_IMODE(os.stat(fresh.file).st_mode) == 0o640
    assert fresh.model("a")["weight"] == 3 and fresh.model("c")["weight"] == 9
    assert fresh.state()["config"]["unsaved"] == 1
    n = fresh.state()["config"]["reloads"]["ok"]
    fresh.d.process.send_signal(signal.SIGHUP)
    fresh.until(lambda: fresh.state()["config"]["reloads"]["ok"] == n + 1)
    assert fresh.model("a")["weight"] == 3 and fresh.model("c")["weight"] == 1


def test_copies_of_a_killed_daemon_are_swept_at_the_start(launch, tmp_path):
    s = Served(launch, tmp_path, models=models(["a"]))
    s.d.process.kill()
    s.d.process.wait()
    left, other = (s.file.with_name(f".{s.file.name}.inferd-{end}") for end in (f"{s.d.process.pid}-0", "1-0.bak"))
    for f in (left, other):
        f.write_text(s.file.read_text())
    again = subprocess.Popen([BUILD / "inferd", "serve", "--config", s.file, "--allow-dummy"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "http://" in again.stdout.readline()
    assert not left.exists() and other.exists()
    assert s.admin.patch("/admin/models/a?persist=1", json={"weight": 2}).status_code == 200
    again.terminate()
    assert "event=config_leftovers" in again.communicate(timeout=60)[1] and again.returncode == 0
    assert [f for f in s.file.parent.iterdir() if f.name.startswith(f".{s.file.name}.")] == [other]


def test_a_patch_that_breaks_a_rule_changes_nothing_and_says_every_problem(fresh):
    before = fresh.state()["config"]
    r = patch(fresh, "models/a", weight=-1, share={"percent": 7000}, pin="cold", min="1GiB", max="1MiB")
    assert r.status_code == 409, r.text
    problems = r.json()["error"]["problems"]
    for word in ("weight", "percent", "pin"):
        assert any(word in p for p in problems), (word, problems)
    assert r.json()["error"]["code"] == "config_refused" and fresh.model("a")["weight"] == 1
    r = patch(fresh, "models/a", min="1GiB")  # more than the device has
    assert r.status_code == 409 and "min" in r.json()["error"]["problems"][0]
    r = patch(fresh, "tenants/t", limits={"tokens_per_day": 5})
    assert r.status_code == 409 and "state_dir" in r.json()["error"]["problems"][0]
    # a refused change says nothing about the file: an alarm on refused reloads stays silent
    config = fresh.state()["config"]
    refused = before["changes"]["refused"] + 3
    assert config["unsaved"] == 0 and config["reloads"] == before["reloads"]
    assert config["changes"] == {"ok": before["changes"]["ok"], "refused": refused}
    lines = fresh.admin.get("/metrics").text.splitlines()
    assert f'inferd_config_changes_total{{result="refused"}} {refused}' in lines
    assert f'inferd_config_reloads_total{{result="refused"}} {before["reloads"]["refused"]}' in lines
    assert "event=change_refused" in fresh.d.stderr()
    assert f"changes: {config['changes']['ok']} applied, {refused} refused" in fresh.ctl("state").stdout


@pytest.mark.parametrize("path,body", [
    ("models/a", {}), ("models/a", {"path": "x"}), ("models/a", {"name": "z"}), ("models/a", {"limits": {}}),
    ("tenants/t", {"keys": ["k" * 10]}), ("tenants/t", {"pin": "hot"}), ("models/a", {"persist": 1, "weight": 1})])
def test_what_cannot_be_patched(served, path, body):
    assert served.admin.patch("/admin/" + path, json=body).status_code == 400


def test_persist_is_yes_or_no(fresh):
    for word, status in (("maybe", 400), ("True", 400), ("true", 200), ("0", 200), ("", 200)):
        r = fresh.admin.patch(f"/admin/models/a?persist={word}", json={"weight": 2})
        assert r.status_code == status, r.text
        if status == 400:
            assert r.json()["error"]["param"] == "persist" and fresh.model("a")["weight"] == 1
        else:
            assert r.json()["persisted"] == (word != "0")


def test_patches_of_nobody(served):
    assert patch(served, "models/zz", weight=1).status_code == 404
    assert patch(served, "tenants/zz", weight=1).status_code == 404


def test_requests_go_on_while_promises_change(fresh):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(fresh.ask, NAMES[i % 4], 300) for i in range(24)]
        for i in range(20):
            assert patch(fresh, "models/a", weight=i % 5 + 1).status_code in (200, 409)
        assert [a.result().status_code for a in answers] == [200] * 24


# -- the whole configuration --------------------------------------------------------------------------

def put(s, c):
    return s.admin.put("/admin/config", content=c if isinstance(c, str) else json.dumps(c),
                       headers={"content-type": "application/json"})


def test_config_is_shown_without_keys_and_taken_back_with_them(fresh):
    patch(fresh, "models/a", weight=6)
    r = fresh.admin.get("/admin/config")
    assert TENANT not in r.text and ADMIN not in r.text and r.text.count('"****"') == 3
    c = r.json()
    assert c["models"][0]["weight"] == 6 and c["listen"] == "127.0.0.1:0"
    c["models"][1]["weight"] = 8
    assert put(fresh, c).status_code == 200
    written = json.loads(fresh.file.read_text())
    assert written["tenants"][0]["keys"] == [TENANT] and written["admin"]["keys"] == [ADMIN]
    assert written["models"][0]["weight"] == 6 and written["models"][1]["weight"] == 8
    assert fresh.ask("a").status_code == 200 and fresh.model("org/b")["weight"] == 8
    c["tenants"].append({"name": "v", "keys": ["****"]})
    r = put(fresh, c)
    assert r.status_code == 409 and "keys[0] of v" in r.json()["error"]["problems"][0]


def test_a_whole_configuration_brings_and_takes_models(fresh):
    c = json.loads(fresh.text)
    c["models"] = c["models"][:2] + [{"name": "new", "path": "dummy:tiny?seed=77", "aliases": ["n"]}]
    text = json.dumps(c, indent=7)
    r = put(fresh, text)
    assert r.status_code == 200 and r.json() == {"applied": True, "persisted": True, "needs_restart": []}, r.text
    assert fresh.file.read_text() == text  # byte for byte
    assert fresh.do("new", "load").status_code == 200 and fresh.ask("n").status_code == 200
    assert fresh.ask("c").status_code == 404
    fresh.until(lambda: fresh.state()["leaving"] == [])


def test_what_needs_a_restart_is_named(fresh):
    c = json.loads(fresh.text)
    c["devices"][0]["memory"] = "80MiB"
    c["limits"] = {"running_max": 8}
    r = put(fresh, c)
    waits = {"devices[0].memory", "limits.running_max"}
    assert r.status_code == 200 and set(r.json()["needs_restart"]) == waits
    c["models"][0]["weight"] = 3  # against what runs, not against the file before
    assert set(put(fresh, c).json()["needs_restart"]) == waits
    assert put(fresh, fresh.text).json()["needs_restart"] == []


def test_promises_are_checked_against_the_devices_that_run(fresh):
    """Those of a larger device, which takes a restart, were in force at once, and took others' memory."""
    c = json.loads(fresh.text)
    c["devices"][0]["memory"] = "2GiB"
    c["tenants"][0]["min"] = "1GiB"
    r = put(fresh, c)
    problem = r.json()["error"]["problems"][0]
    assert r.status_code == 409 and "tenants" in problem and "1024 MiB > 64 MiB" in problem, r.text
    c["tenants"][0].update(min="0", share={"percent": 100})
    c["tenants"][1]["share"] = {"percent": 50}
    c["devices"] = [{"kind": "cpu", "name": "x", "cores": "0", "memory": "64MiB"},
                    {"kind": "cpu", "name": "y", "cores": "1", "memory": "64MiB"}]
    r = put(fresh, c)
    assert r.status_code == 409 and "150 percent > 100 percent" in r.json()["error"]["problems"][0], r.text
    assert fresh.file.read_text() == fresh.text
    assert all(fresh.ask(n).status_code == 200 for n in NAMES)


def test_a_guarantee_that_leaves_no_room_for_weights_is_refused(fresh):
    assert fresh.ask("a").status_code == 200
    r = patch(fresh, "tenants/t", min="62MiB")
    assert r.status_code == 409 and "the weights of a with a page of keys and values need 6 MiB" in r.text, r.text
    assert "62 MiB guaranteed (min) to others" in r.text and "the device's 64 MiB" in r.text
    p = plan(fresh, tenant={"name": "t", "min": "62MiB"})
    assert not p["fits"] and p["problems"] == r.json()["error"]["problems"], p
    assert plan(fresh, tenant={"name": "t", "min": "40MiB"})["fits"]
    assert patch(fresh, "tenants/t", min="40MiB").status_code == 200
    r = patch(fresh, "models/c", min="62MiB")
    assert r.status_code == 409 and "the weights of a " in r.text, r.text
    assert patch(fresh, "tenants/t", min=None).status_code == 200
    c = json.loads(fresh.text)
    c["models"].append({"name": "new", "path": "dummy:tiny?seed=78", "min": "62MiB"})
    r = put(fresh, c)
    assert r.status_code == 409 and "the weights of a " in r.text, r.text
    c["models"] = c["models"][-1:]  # those that leave need none
    del c["tenants"][1]["models"]
    r = put(fresh, c)
    assert r.status_code == 200, r.text
    assert patch(fresh, "models/new", weight=2).status_code == 200
    assert put(fresh, fresh.text).status_code == 200
    assert all(fresh.ask(n).status_code == 200 for n in NAMES)


def test_whether_there_are_tenants_takes_a_restart(fresh, launch, tmp_path):
    """Requests without a tenant were those of the first one, and without tenants every key was wrong."""
    c = json.loads(fresh.text)
    del c["tenants"]
    r = put(fresh, c)
    assert r.status_code == 409 and "tenants" in r.text and "restart" in r.text, r.text
    assert fresh.ask("a").status_code == 200
    none = Served(launch, tmp_path, tenants=None)
    c = json.loads(none.file.read_text())
    c["tenants"] = [{"name": "paused", "keys": [TENANT], "weight": 0}]
    r = put(none, c)
    assert r.status_code == 409 and "tenants" in r.text and "restart" in r.text, r.text
    body = {"model": "a", "prompt": [1], "max_tokens": 2}
    assert httpx.post(none.d.url + "/v1/completions", json=body, timeout=60 * SLOW).status_code == 200
    assert none.d.stop() == 0


def test_a_removed_tenant_gives_its_guarantee_back(launch, tmp_path):
    """Each of three in turn had 24 of 64 MiB: with the third the model found no room."""
    def tenants(*names):
        return [{"name": n, "keys": [TENANT if n == "u" else f"key-of-{n}-01"], **({"min": "24MiB"} if n != "u" else {})}
                for n in names]
    s = Served(launch, tmp_path, models=models(["a"]), tenants=tenants("t", "u"), host_arena="16MiB")
    for who in (("v", "u"), ("w", "u"), ("u",)):
        c = json.loads(s.file.read_text())
        c["tenants"] = tenants(*who)
        assert put(s, c).status_code == 200
        assert s.do("a", "drop").status_code == 200
        assert s.ask("a").status_code == 200, who
    p = plan(s, load="a")
    assert p["fits"], p
    assert s.d.stop() == 0


def test_a_share_too_small_for_a_measured_step_is_refused(launch, tmp_path):
    """It was applied, with a warning, also when the time of a step was known."""
    s = Served(launch, tmp_path, models=models(["a"], a={"share": {"percent": 1}}))
    assert patch(s, "models/a", slo={"tpot_ms": 1}).status_code == 200  # nothing is known yet
    assert patch(s, "models/a", slo=None).status_code == 200
    assert s.ask("a", 20).status_code == 200

    def is_refused():  # once the time of a step has been published
        r = patch(s, "models/a", slo={"tpot_ms": 1})
        if r.status_code == 200:
            return patch(s, "models/a", slo=None).status_code != 200
        assert r.status_code == 409 and "models[0].slo.tpot_ms: on cpu0" in r.text, r.text
        return True

    s.until(is_refused)
    assert s.model("a")["slo"]["tpot_ms"] == 0
    c = json.loads(s.file.read_text())
    c["models"][0]["slo"] = {"tpot_ms": 1}
    s.file.write_text(json.dumps(c))
    s.d.process.send_signal(signal.SIGHUP)
    s.until(lambda: s.state()["config"]["reloads"]["refused"] == 1)
    assert s.state()["config"]["changes"]["refused"] == 1
    assert s.model("a")["slo"]["tpot_ms"] == 0
    assert patch(s, "models/a", slo={"tpot_ms": 60000}).status_code == 200
    assert s.d.stop() == 0


def test_a_raised_ceiling_counts_for_the_next_request(fresh):
    for _ in range(5):
        assert patch(fresh, "models/a", max="4MiB").status_code == 200
        fresh.until(lambda: fresh.ask("a").status_code == 429)
        assert patch(fresh, "models/a", max=None).status_code == 200
        assert fresh.ask("a").status_code == 200


def test_the_whole_shape_runs(launch, tmp_path):
    """Every member the documents name, on one device, with more replicas than that as the bound."""
    s = Served(launch, tmp_path, devices=[{"name": "cpu0", "kind": "cpu", "memory": "62MiB"}],
               host_arena="16MiB", policy={"tpot_ms": 10},
               models=[{"name": "a", "path": "dummy:tiny", "min": "0", "max": "24MiB", "class": "normal", "weight": 1,
                        "share": {"policy": "burst", "percent": 40, "devices": 1},
                        "slo": {"ttft_ms": 500, "tpot_ms": 40}, "pin": "warm", "keep_alive": "never",
                        "replicas": {"min": 1, "max": 2}}],
               tenants=[{"name": "t", "keys": [TENANT], "weight": 2, "max_class": "high", "models": ["a"],
                         "max": "8MiB", "share": {"policy": "fixed", "percent": 25},
                         "limits": {"requests_per_min": 600, "tokens_per_min": 200000, "concurrent": 64}}])
    r = s.ask("a", 4)
    assert r.status_code == 200 and r.headers["x-ratelimit-limit-requests"] == "600", r.headers
    m, t = s.model("a"), s.tenant("t")
    assert (m["max_bytes"], m["pin"], m["replicas"]) == (24 << 20, "warm", {"min": 1, "max": 2}), m
    assert m["share"]["percent"] == 40 and m["slo"] == {"ttft_ms": 500, "tpot_ms": 40}, m
    assert t["share"]["percent"] == 25 and t["max_bytes"] == 8 << 20, t
    note = "models[0].replicas.max: 2, and there is 1 device: at most 1 replica"
    assert s.d.stderr().count(note) == 1
    assert patch(s, "models/a", weight=2).status_code == 200
    assert s.d.stderr().count(note) == 1
    checked = subprocess.run([BUILD / "inferd", "check", "--allow-dummy", "--config", s.file], capture_output=True,
                             text=True)
    assert checked.returncode == 0 and note in checked.stdout, checked
    assert s.d.stop() == 0


def test_guarantees_are_counted_in_pages_by_everybody(launch, tmp_path):
    """Three of 1 MiB are three pages of 2: `check` said that they fit 4 MiB, and a model failed."""
    s = Served(launch, tmp_path, memory="12MiB", models=models(["a", "b", "c"], a={"min": "5MiB"}, b={"min": "5MiB"}))
    sentence = "the models' min together are 14MiB in pages of 2MiB, the devices have 12MiB"
    r = patch(s, "models/c", min="1MiB")
    assert r.status_code == 409 and sentence in r.text, r.text
    c = json.loads(s.file.read_text())
    c["models"][2]["min"] = "1MiB"
    r = put(s, c)
    assert r.status_code == 409 and sentence in r.text, r.text
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(c))
    for what in ("check", "serve"):
        done = subprocess.run([BUILD / "inferd", what, "--allow-dummy", "--config", bad], capture_output=True,
                              text=True, timeout=60 * SLOW)
        assert done.returncode == 2 and sentence in done.stderr, (what, done)
    s.file.write_text(json.dumps(c))
    s.d.process.send_signal(signal.SIGHUP)
    s.until(lambda: sentence in s.d.stderr())
    assert s.d.stop() == 0


@pytest.mark.parametrize("change,word", [
    (lambda c: c.update(models=[]), "models"), (lambda c: c.update(modles=[]), "modles"),
    (lambda c: c["models"].append({"name": "a", "path": "dummy:tiny?seed=5"}), "a"),
    (lambda c: c["models"].append({"name": "z", "path": "/nowhere.gguf"}), "nowhere"),
    (lambda c: c["models"][0].update(min="1GiB"), "min"),
    (lambda c: c["admin"].update(keys=[TENANT]), "admin")])
def test_a_bad_configuration_changes_nothing(fresh, change, word):
    c = json.loads(fresh.text)
    change(c)
    before = fresh.file.stat().st_mtime_ns, fresh.state()["config"]["changes"]["refused"]
    r = put(fresh, c)
    assert r.status_code == 409, r.text
    assert any(word in p for p in r.json()["error"]["problems"]), r.text
    assert TENANT not in r.text
    assert fresh.file.read_text() == fresh.text and fresh.file.stat().st_mtime_ns == before[0]
    assert fresh.state()["config"]["changes"]["refused"] == before[1] + 1
    assert [m["name"] for m in fresh.state()["models"]] == NAMES and fresh.ask("a").status_code == 200


def test_bodies_that_are_no_configuration(fresh):
    assert put(fresh, "").status_code == 400
    for text in ("{", "[]", "nonsense", '"x"'):
        r = put(fresh, text)
        assert r.status_code == 409 and r.json()["error"]["problems"], text
    assert put(fresh, '{"x":"' + "y" * (5 << 20) + '"}').status_code == 413


def test_one_change_at_a_time(fresh):
    """Of many that come at once each is applied or refused as a whole, and the file is one of them."""
    texts = []
    for i in range(12):
        c = json.loads(fresh.text)
        c["models"][0]["weight"] = i + 1
        texts.append(json.dumps(c))
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda t: put(fresh, t), texts))
    codes = [a.status_code for a in answers]
    assert set(codes) <= {200, 409} and 200 in codes
    for a in answers:
        if a.status_code == 409:
            assert a.json()["error"]["code"] == "change_under_way"
            assert a.json()["error"]["message"] == "another change is under way"
    fine = [t for t, code in zip(texts, codes) if code == 200]
    assert fresh.file.read_text() in fine
    assert fresh.model("a")["weight"] == json.loads(fresh.file.read_text())["models"][0]["weight"]


def test_a_file_that_cannot_be_written_changes_nothing(launch, tmp_path):
    """One that everybody may write is not touched; one that was moved away is written anew."""
    s = Served(launch, tmp_path, models=models(["a"]))
    text = s.file.read_text()
    c = json.loads(text)
    c["models"][0]["weight"] = 5
    away = s.file.with_suffix(".away")
    s.file.rename(away)
    r = patch(s, "models/a", weight=5)
    assert r.status_code == 409 and s.file.name in r.json()["error"]["problems"][0], r.text
    c["models"][0]["path"] = "/nowhere.gguf"
    assert put(s, c).status_code == 409 and not s.file.exists()
    c["models"][0].update(path="dummy:tiny?seed=1", weight=6)
    assert put(s, c).status_code == 200 and s.model("a")["weight"] == 6
    assert json.loads(s.file.read_text()) == c and stat.S_IMODE(s.file.stat().st_mode) == 0o600
    c["models"][0]["weight"] = 1
    assert put(s, c).status_code == 200
    away.unlink()
    c["models"][0]["weight"] = 5
    os.chmod(s.file, 0o666)  # writable by all users
    assert put(s, c).status_code == 409 and s.model("a")["weight"] == 1
    os.chmod(s.file, 0o600)
    assert put(s, c).status_code == 200 and s.model("a")["weight"] == 5
    assert s.d.stop() == 0


def test_a_configuration_changes_while_a_model_is_being_loaded(fresh):
    fresh.do("d", "drop")
    fresh.do("d", "load", wait=False)
    c = json.loads(fresh.text)
    c["models"] = c["models"][:3]
    assert put(fresh, c).status_code == 200
    assert fresh.admin.get("/admin/models/d").status_code == 404
    assert fresh.admin.get("/debug/audit").json()["ok"]


def test_a_wait_for_a_model_that_is_taken_away_ends(fresh):
    thread = threading.Thread(target=lambda: fresh.ask("d", 1900))
    thread.start()
    fresh.until(lambda: fresh.model("d")["running"] > 0)
    r = {}
    waiting = threading.Thread(target=lambda: r.update(a=fresh.do("d", "drain")))
    waiting.start()
    fresh.until(lambda: fresh.model("d")["held"])
    c = json.loads(fresh.text)
    c["models"] = c["models"][:3]
    assert put(fresh, c).status_code == 200
    waiting.join()
    thread.join()
    assert r["a"].status_code in (200, 409), r["a"].text


def test_without_a_file_nothing_can_be_changed(launch, tmp_path):
    port_file = tmp_path / "out"
    with open(port_file, "wb") as out:
        p = subprocess.Popen([BUILD / "inferd", "serve", "--model", "dummy:tiny?seed=1", "--allow-dummy", "--listen",
                              "127.0.0.1:0"], stdout=out, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30 * SLOW
        while b"base_url" not in port_file.read_bytes():
            assert time.monotonic() < end and p.poll() is None
            time.sleep(0.02)
        url = re.search(rb"http://[^/]+", port_file.read_bytes()).group().decode()
        assert httpx.get(url + "/admin/state").status_code == 403
    finally:
        p.terminate()
        assert p.wait(30 * SLOW) == 0


def test_the_end_comes_while_changes_are_under_way(launch, tmp_path):
    for _ in range(3):
        s = Served(launch, tmp_path)
        text = s.file.read_text()
        threads = [threading.Thread(target=lambda: _quietly(lambda: put(s, text))) for _ in range(4)]
        for t in threads:
            t.start()
        s.d.process.send_signal(signal.SIGHUP)
        assert s.d.stop() == 0, s.d.stderr()[-2000:]
        for t in threads:
            t.join()


def _quietly(what):
    try:
        what()
    except httpx.HTTPError:
        pass


# -- plans ----------------------------------------------------------------------------------------------

def plan(s, **body):
    r = s.admin.post("/admin/plan", json=body)
    assert r.status_code == 200, r.text
    return r.json()


def test_plans_change_nothing(fresh):
    before = fresh.admin.get("/admin/config").text, fresh.file.read_text()
    p = plan(fresh, model={"name": "n", "path": "dummy:tiny?seed=50", "weight": 3})
    assert p["fits"] and p["now"] and p["victims"] == [] and p["problems"] == [] and p["state"] == "none"
    w = p["weights"]
    assert w["from"] == "counted" and abs(w["bytes"] - w["file_bytes"] * w["factor"]) < w["file_bytes"] * 0.01
    hot = fresh.model("a")  # of the same shape
    assert w["pages"] == hot["pages"]["weight"]
    assert p["bring_up"]["s"] > 0 and p["bring_up"]["basis"] == "loads of other models"
    assert before == (fresh.admin.get("/admin/config").text, fresh.file.read_text())
    assert [m["name"] for m in fresh.state()["models"]] == NAMES and fresh.state()["config"]["reloads"]["refused"] >= 0


def test_plans_say_which_inequality_fails(fresh):
    p = plan(fresh, model={"name": "n", "path": "dummy:llama-3.2-1b"})
    assert not p["fits"] and not p["now"] and p["victims"] == []
    bad = [c for c in p["checks"] if not c["kept"]]
    assert [c["name"] for c in bad] == ["device", "memory"]
    for c in bad:
        assert c["need_pages"] > c["have_pages"] and " > " in c["text"]
    p = plan(fresh, model={"name": "n", "path": "dummy:tiny?seed=50", "max": "4MiB"})
    assert [c["name"] for c in p["checks"] if not c["kept"]] == ["ceiling", "memory"]
    p = plan(fresh, model={"name": "n", "path": "dummy:tiny?seed=50", "min": "1GiB"})
    assert not p["fits"] and "min" in p["problems"][0]
    p = plan(fresh, model={"name": "n", "path": "/nowhere.gguf"})
    assert not p["fits"] and "nowhere" in p["problems"][0]
    p = plan(fresh, model={"name": "n", "path": "dummy:tiny?seed=50", "share": {"percent": 101}})
    assert not p["fits"] and "percent" in p["problems"][0]
    p = plan(fresh, tenant={"name": "w", "min": "1GiB"})
    assert not p["fits"] and "min" in p["problems"][0]
    assert plan(fresh, tenant={"name": "w", "min": "16MiB"})["fits"]


def test_a_plan_counts_cached_pages_once(launch, tmp_path):
    """They were free and held at a time, so a plan said `now` for what did not fit."""
    s = Served(launch, tmp_path, memory="24MiB", models=models(["a"], a={"pin": "hot"}))
    assert s.do("a", "load").status_code == 200
    for i in range(8):
        assert s.ask("a", prompt=[i + 1] * 1500).status_code == 200
    s.until(lambda: s.model("a")["pages"]["cached"] >= 3)

    def agrees():  # the last request's pages may become cached between two questions
        d, a = s.state()["devices"][0], s.model("a")["pages"]
        checks = plan(s, model={"name": "n", "path": "dummy:tiny?seed=50"})["checks"]
        memory = next(c for c in checks if c["name"] == "memory")
        return memory["have_pages"] == d["pages"]["device"] - a["weight"] - a["kv"]
    s.until(agrees)
    assert s.d.stop() == 0


def test_a_plan_of_one_who_shares_weights_keeps_others_guarantees(launch, tmp_path):
    twins = [{"name": n, "path": "dummy:tiny?seed=1", "min": m} for n, m in (("a", "8MiB"), ("b", "12MiB"))]
    s = Served(launch, tmp_path, devices=[{"kind": "cpu", "memory": "60MiB"}], models=twins)
    for name in ("a", "b"):
        assert s.do(name, "load").status_code == 200
        check = next(c for c in plan(s, load=name)["checks"] if c["name"] == "guarantees")
        assert check["need_bytes"] == 20 << 20 and check["have_bytes"] == 60 << 20, check
        assert "a 8 MiB" in check["text"] and "b 12 MiB" in check["text"], check
        assert "<= capacity 60 MiB" in check["text"], check
    assert s.d.stop() == 0


def test_shares_fit_each_device_or_are_refused(launch, tmp_path):
    """60 % and 60 % on two devices leave no place for 60 % more, although the sum does."""
    s = Served(launch, tmp_path, devices=[{"kind": "cpu", "memory": "32MiB", "cores": c} for c in ("0", "1")],
               models=models(["a", "b", "c"], a={"share": {"percent": 60}}, b={"share": {"percent": 60}},
                             c={"share": {"percent": 20}}))
    p = plan(s, model={"name": "n", "path": "dummy:tiny?seed=50", "share": {"percent": 60}})
    assert not p["fits"] and "60 percent of it" in p["problems"][0] and "40 percent" in p["problems"][0], p
    p = plan(s, model={"name": "n", "path": "dummy:tiny?seed=50", "share": {"percent": 40}})
    assert p["fits"] and p["parts"] == {"wanted": 1, "fit": 1}, p
    check = next(c for c in p["checks"] if c["name"] == "shares")
    assert (check["need_percent"], check["have_percent"]) == (100, 100), check
    at = {m["name"]: m["placed"][0]["device"] for m in s.state()["models"]}
    beside = next(n for n in ("a", "b") if at[n] == at["c"])
    r = s.admin.patch(f"/admin/models/{beside}", json={"share": {"percent": 81}})
    assert r.status_code == 409 and f"{at['c']} together are 101 percent" in r.text, r.text
    assert s.admin.patch(f"/admin/models/{beside}", json={"share": {"percent": 80}}).status_code == 200
    assert s.admin.patch("/admin/models/c", json={"weight": 2}).status_code == 200
    assert s.d.stop() == 0


def test_a_model_that_host_memory_never_takes_is_told_at_once(launch, tmp_path):
    s = Served(launch, tmp_path, memory="16MiB", host_arena="2MiB", models=models(["a", "b"], b={"pin": "warm"}))
    s.until(lambda: all(m["state"] == "hot" for m in s.state()["models"]))  # b was in the way of the others
    assert s.do("a", "prefetch").status_code == 200  # it is on the device
    s.do("a", "drop")
    for command, body in (("prefetch", {}), ("pin", {"level": "warm"})):
        r = s.do("a", command, **body)
        assert r.status_code == 409 and r.json()["error"]["code"] == "host_arena_too_small", r.text
        assert "4 MiB" in r.json()["error"]["message"] and "2 MiB" in r.json()["error"]["message"], r.text
    assert s.model("a")["pin"] == "none" and s.model("a")["state"] == "cold"
    assert s.d.stop() == 0


def test_a_small_ceiling_does_not_keep_a_model_away_at_the_start(launch, tmp_path):
    s = Served(launch, tmp_path, memory="64MiB", models=models(["a", "b"], b={"max": "8MiB"}))
    s.until(lambda: s.model("b")["state"] == "hot")
    assert s.d.stop() == 0


def test_a_plan_for_a_model_that_is_there(fresh):
    p = plan(fresh, load="a")
    assert p["state"] == "hot" and p["weights"]["from"] == "held" and p["bring_up"]["s"] == 0 and p["now"]
    fresh.do("a", "drop")
    p = plan(fresh, load="a")
    assert p["state"] == "cold" and p["weights"]["from"] == "counted" and p["bring_up"]["basis"] == "its earlier loads"
    p = plan(fresh, model={"name": "copy", "path": "dummy:tiny?seed=2"})
    assert p["weights"]["from"] == "shared" and p["weights"]["pages"] == 0


def test_questions_that_are_none(served):
    for body in ({}, {"load": "a", "tenant": {}}, {"model": 1}, {"model": {"path": "x"}}, {"tenant": {}}, {"load": 1},
                 {"x": 1}):
        assert served.admin.post("/admin/plan", json=body).status_code == 400, body
    assert served.admin.post("/admin/plan", json={"load": "zz"}).status_code == 404


# -- inferd ctl -------------------------------------------------------------------------------------------

def columns(text, name):
    """The cells of a table's row by the heads above it."""
    lines = text.splitlines()
    row = next(i for i, l in enumerate(lines) if l.split(" ")[0] == name)
    head = max(i for i, l in enumerate(lines[:row]) if l.isupper() or re.match(r"[A-Z]+  ", l))
    return dict(zip(re.split(r"\s{2,}", lines[head].strip()), re.split(r"\s{2,}", lines[row].strip())))


def test_ctl_shows_tables(fresh):
    r = fresh.ctl("state")
    assert r.returncode == 0 and r.stderr == "", r.stderr
    for name in NAMES:
        row = columns(r.stdout, name)
        assert row["STATE"] == "hot" and row["REPLICAS"] == "1" and row["WAIT"] == "0", r.stdout
        assert re.fullmatch(r"\d+(\.\d)? [KM]iB", row["WEIGHTS"])
    assert columns(r.stdout, "t")["ENTITLED%"] == "-"
    use, settings = fresh.ctl("models").stdout.split("\n\n")
    lines = use.splitlines()
    assert len({l.index("hot") for l in lines[1:]} | {lines[0].index("STATE")}) == 1  # aligned
    lines = settings.splitlines()
    assert {l[lines[0].index("ON"):] for l in lines[1:]} == {"cpu0"}  # nothing behind the last column
    assert columns(settings, "a")["CLASS"] == "normal" and columns(settings, "a")["MEMORY"] == "0 to all"
    settings = fresh.ctl("tenants").stdout.split("\n\n")[1]
    assert columns(settings, "u")["UP TO"] == "normal" and columns(settings, "t")["KEYS"] == "1"
    assert json.loads(fresh.ctl("--json", "state").stdout)["models"][0]["name"] == "a"
    top = fresh.ctl("top", "--count", "2", "--every", "0.1").stdout
    assert top.count("DEVICE ") == 2 * 2 and max(map(len, top.splitlines())) <= 100


def test_state_has_the_rates_of_the_last_seconds(fresh):
    """Averages since the start said 3 % of a device that was busy."""
    with flooding(3, lambda i: fresh.ask("a", 100, prompt=f"{time.monotonic()}")):
        time.sleep(2.5)
        s = fresh.state()
        table = fresh.ctl("state").stdout
    d, m, t, u = s["devices"][0], s["models"][0], s["tenants"][0], s["tenants"][1]
    busy = d["recent"]
    assert 0 < busy["window_s"] <= 12 and 0 < s["recent"]["window_s"] <= 12
    assert busy["step"] > 0 and abs(busy["step"] + busy["load"] + busy["idle"] - 1) < 0.1, busy
    for of in (m, t):
        assert 0 < of["recent"]["share"] <= 1.05 and of["recent"]["output_tokens_per_s"] > 10, of["recent"]
        assert of["recent"]["prompt_tokens_per_s"] > 0
    assert u["recent"] == {"share": 0, "prompt_tokens_per_s": 0, "output_tokens_per_s": 0}
    assert s["models"][1]["recent"]["share"] < m["recent"]["share"] / 2
    row = columns(table, "t")
    assert float(row["USED%"]) > 0 and row["OUT/S"] != "0" and row["TODAY"] != "0", table
    assert float(columns(table, "a")["USED%"]) > 0 and float(columns(table, "cpu0")["FREE"].split()[0]) >= 0
    assert "rates and percents: of the last" in table and max(map(len, table.splitlines())) <= 100

    def calm():  # the window has passed
        of = fresh.state()
        return of["devices"][0]["recent"]["step"] < 0.01 and of["models"][0]["recent"]["output_tokens_per_s"] == 0
    fresh.until(calm, 30)
    assert columns(fresh.ctl("state").stdout, "t")["USED%"] == "0.0"


def test_state_counts_sequences_and_refusals_of_tenants(fresh):
    r = fresh.admin.patch("/admin/tenants/u", json={"limits": {"concurrent": 0}})
    assert r.status_code == 200, r.text
    before = {n: fresh.tenant(n)["refused"] for n in ("t", "u")}
    for _ in range(3):
        assert fresh.ask("a", key=OTHER).status_code == 429
    assert fresh.ask("a", key=OTHER, temperature=-1).status_code == 400  # no refusal: it is wrong
    assert {n: fresh.tenant(n)["refused"] for n in ("t", "u")} == {"t": before["t"], "u": before["u"] + 3}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asks = [pool.submit(fresh.ask, m, 800, prompt=["x"] * 20) for m in ("a", "c")]
        most = {"running": 0, "waiting": 0}
        while not all(a.done() for a in asks):
            queue = fresh.tenant("t")["queue"]
            most = {k: max(v, queue[k]) for k, v in most.items()}
            assert fresh.tenant("u")["queue"] == {"running": 0, "waiting": 0}
        assert [a.result().status_code for a in asks] == [200, 200]
    assert 20 <= most["running"] <= 40 and most["waiting"] <= 40, most
    fresh.until(lambda: fresh.tenant("t")["queue"] == {"running": 0, "waiting": 0})


def test_device_and_host_memory_are_apart(fresh):
    """They had one FREE together."""
    assert fresh.do("c", "unload").status_code == 200
    d = fresh.state()["devices"][0]
    p, size = d["pages"], d["page_bytes"]
    assert p["device_free"] == p["device"] - p["weight"] - p["kv"] - p["cached"] - p["quarantine"]
    assert p["host_free"] == p["host"] - p["warm"] - p["parked"]
    device, host = fresh.ctl("state").stdout.split("\n\n")[:2]

    def mib(text):
        return float(text.split()[0]) * {"MiB": 1, "KiB": 1 / 1024}[text.split()[1]] if text != "0" else 0
    assert mib(columns(device, "cpu0")["MEMORY"]) == p["device"] * size >> 20
    assert mib(columns(device, "cpu0")["FREE"]) == p["device_free"] * size >> 20
    assert mib(columns(host, "cpu0")["HOST ARENA"]) == p["host"] * size >> 20
    assert mib(columns(host, "cpu0")["FREE"]) == p["host_free"] * size >> 20
    assert mib(columns(host, "cpu0")["WARM"]) == p["warm"] * size >> 20 > 0


def test_a_plan_with_a_min_names_the_models_that_it_takes_pages_of(launch, tmp_path):
    """It named none, because a min is given in any case; then a model was evicted."""
    # The weight outweighs what loads took, and idle times, when the plan is made and at the eviction.
    s = Served(launch, tmp_path, memory="16MiB", models=models(["a", "b", "c"], c={"weight": 1000}))
    for name in ("a", "b", "c"):
        assert s.do(name, "load").status_code == 200
    for name in ("b", "c", "a"):
        assert s.ask(name).status_code == 200
    s.until(lambda: s.state()["queues"]["running"] == 0)
    hot = {"a", "b", "c"}
    p = plan(s, model={"name": "a", "path": "dummy:tiny?seed=1", "min": "10MiB"})
    assert p["fits"] and p["now"] and [v["when"] for v in p["victims"]] == ["min"], p
    told = s.ctl("plan", "model", "a", "min=10MiB")
    assert told.returncode == 0 and "evicts      " + p["victims"][0]["name"] + ", once it uses its min" in told.stdout
    found = subprocess.run([BUILD / "inferd", "ctl", "plan", "model", "a", "min=10MiB"], capture_output=True, text=True,
                           env={**os.environ, "INFERD_ADMIN_SOCKET": str(s.sock)})  # neither --socket nor --url: it crashed
    assert found.returncode == 0 and re.sub("idle [0-9.]+ m?s", "", found.stdout) == re.sub("idle [0-9.]+ m?s", "", told.stdout)
    refused = s.ctl("plan", "model", "a", "min=10MiB", url=True)  # without a key it was "no model a"
    assert refused.returncode == 1 and "admin key is needed" in refused.stderr
    assert s.ctl("plan", "model", "zz", "min=10MiB").returncode == 1
    assert s.ctl("plan", "model", "a", "min").returncode == 2
    assert s.ctl("set", "model", "a", "min=10MiB").returncode == 0
    assert all(s.model(n)["state"] == "hot" for n in hot)
    with concurrent.futures.ThreadPoolExecutor() as pool:  # keys and values of three pages
        asked = pool.submit(s.ask, "a", 300, prompt=[[i + 1] * 1300 for i in range(3)])
        s.until(lambda: s.model("a")["pages"]["kv"] == 3)
        assert asked.result().status_code == 200
    gone = {n for n in hot if s.model(n)["state"] != "hot"}
    assert gone == {v["name"] for v in p["victims"]}, (p, s.state())
    # Its load alone, where the min covers it: that was told as if there was room.
    assert s.ctl("set", "model", "a", "min=null").returncode == 0
    assert s.do("a", "drop").status_code == 200
    for name in ("b", "c"):
        assert s.do(name, "load").status_code == 200
    for i in range(4):  # keys and values take the rest
        assert s.ask("b", prompt=[i + 1] * 1500).status_code == 200
    assert s.ctl("set", "model", "a", "min=6MiB").returncode == 0
    time.sleep(0.2)
    p = plan(s, load="a")
    victims = {v["name"] for v in p["victims"] if v["when"] == "load"}
    assert s.do("a", "load").status_code == 200
    assert {n for n in ("b", "c") if s.model(n)["state"] != "hot"} == victims, p
    assert s.d.stop() == 0


def test_a_plan_tells_warm_from_cold(fresh):
    """One mean of both: 0.06 s were told, and 2.8 s it took."""
    assert fresh.do("a", "drop").status_code == 200
    cold = plan(fresh, load="a")["bring_up"]
    assert cold["from"] == "file" and cold["measured"] and cold["s"] == cold["file"]["s"] and cold["file"]["n"] >= 1
    assert fresh.do("a", "load").status_code == 200
    n = cold["file"]["n"]
    there = plan(fresh, load="a")["bring_up"]
    assert there["from"] == "device" and there["s"] == 0 and there["file"]["n"] == n + 1
    host = there["host"]["n"]
    assert fresh.do("a", "unload").status_code == 200 and fresh.model("a")["state"] == "warm"
    warm = plan(fresh, load="a")["bring_up"]
    assert warm["from"] == "host" and warm["measured"] == (host > 0)
    assert fresh.do("a", "load").status_code == 200
    assert fresh.do("a", "unload").status_code == 200
    warm = plan(fresh, load="a")["bring_up"]
    assert warm["measured"] and warm["s"] == warm["host"]["s"] and warm["host"]["n"] == host + 1
    assert warm["file"]["n"] == n + 1 and warm["s"] < warm["file"]["s"]
    told = fresh.ctl("plan", "--load", "a").stdout
    assert ", from host memory (its earlier loads)" in told and "from its file: " in told
    new = plan(fresh, model={"name": "n", "path": "dummy:tiny?seed=50"})["bring_up"]
    assert new["from"] == "file" and not new["measured"] and new["basis"] == "loads of other models"
    assert new["file"] == new["host"] == {"n": 0, "s": None}


def test_ctl_does_each_command(fresh):
    for words, state in ((["unload", "a", "--wait"], ("warm", "cold")), (["prefetch", "a", "--wait"], ("warm", "hot")),
                         (["drop", "a", "--wait"], ("cold",)), (["load", "a", "--wait"], ("hot",)),
                         (["drain", "org/b", "--wait"], ("warm", "cold")), (["undrain", "org/b", "--wait"], ("hot",)),
                         (["pin", "c", "--level", "warm", "--wait"], ("hot",)), (["unpin", "c"], ("hot",))):
        r = fresh.ctl(*words)
        assert r.returncode == 0, (words, r.stderr)
        assert r.stdout.strip() in [f"{words[1]}: {s}" for s in state], (words, r.stdout)


def test_ctl_sets_and_plans(fresh, tmp_path):
    r = fresh.ctl("set", "model", "org/b", "weight=4", "share.percent=30", "share.policy=fixed", "max=8MiB")
    assert r.returncode == 0 and "until the next reload" in r.stdout, r.stderr
    m = fresh.model("org/b")
    assert m["weight"] == 4 and m["share"]["policy"] == "fixed" and m["max_bytes"] == 8 << 20
    r = fresh.ctl("set", "tenant", "t", "limits.concurrent=4", "--persist")
    assert r.returncode == 0 and "and written to the file" in r.stdout
    assert json.loads(fresh.file.read_text())["tenants"][0]["limits"] == {"concurrent": 4}
    columns = lambda: fresh.ctl("tenants").stdout.split("\n\n")[1].splitlines()[1].split()[-6:-1]
    assert columns() == ["-", "-", "4", "-", "-"]
    assert fresh.ctl("set", "tenant", "t", "limits.concurrent=null", "limits.tokens_per_day=0").returncode == 0
    assert fresh.tenant("t")["limits"] == {"requests_per_min": None, "tokens_per_min": None, "concurrent": None,
                                           "tokens_per_day": 0, "tokens_per_month": None}
    assert columns() == ["-", "-", "-", "0", "-"] and fresh.ask("a").status_code == 429
    assert fresh.ctl("set", "tenant", "t", "limits.tokens_per_day=null").returncode == 0
    assert fresh.ask("a").status_code == 200
    r = fresh.ctl("set", "model", "a", "weight=heavy", "pin=cold")
    assert r.returncode == 1 and r.stdout == "" and "weight" in r.stderr and "pin" in r.stderr
    f = tmp_path / "model.json"
    f.write_text(json.dumps({"name": "n", "path": "dummy:tiny?seed=60"}))
    r = fresh.ctl("plan", str(f))
    assert r.returncode == 0 and r.stdout.startswith("n fits\n") and "brought up in" in r.stdout, r.stderr
    f.write_text(json.dumps({"tenant": {"name": "w", "min": "1GiB"}}))
    r = fresh.ctl("plan", str(f))
    assert r.stdout.startswith("w does not fit\n") and r.returncode == 1
    assert fresh.ctl("--json", "plan", str(f)).returncode == 1
    assert fresh.ctl("plan", "--load", "a").stdout.startswith("a fits\n")


def test_ctl_gets_and_puts_the_configuration(fresh, tmp_path):
    r = fresh.ctl("config", "get")
    assert r.returncode == 0 and TENANT not in r.stdout
    c = json.loads(r.stdout)
    c["models"][0]["weight"] = 3
    f = tmp_path / "c.json"
    f.write_text(json.dumps(c))
    assert fresh.ctl("config", "put", str(f)).returncode == 0 and fresh.model("a")["weight"] == 3
    r = fresh.ctl("config", "put", "-", input=fresh.text)
    assert r.returncode == 0 and fresh.model("a")["weight"] == 1, r.stderr
    f.write_text(json.dumps({**c, "modles": []}))
    r = fresh.ctl("config", "put", str(f))
    assert r.returncode == 1 and "modles" in r.stderr


def test_ctl_exit_statuses(fresh, tmp_path):
    assert fresh.ctl("load", "zz").returncode == 1
    assert fresh.ctl("load", "zz").stderr == 'inferd: the model "zz" does not exist\n'
    for words in (["explode"], ["load"], ["load", "a", "b"], ["set", "model", "a"], ["set", "disk", "a", "b=1"],
                  ["set", "model", "a", "weight"], ["plan"], ["config"], ["config", "put"], ["--what"], [],
                  ["load", "a", "--level", "hot"], ["pin", "a", "--level", "cold"], ["plan", str(tmp_path / "none")],
                  ["--key-env", "X", "state"], ["state", "a"]):
        assert fresh.ctl(*words).returncode == 2, words
    run = lambda *w, **env: subprocess.run([BUILD / "inferd", "ctl", *w], capture_output=True, text=True,
                                           env={**os.environ, **env}, timeout=60)
    assert run("--socket", str(tmp_path / "none"), "state").returncode == 3
    assert run("--url", "http://127.0.0.1:1", "state").returncode == 3
    assert run("--url", "https://127.0.0.1:1", "state").returncode == 2
    assert run("state", INFERD_ADMIN_SOCKET=str(fresh.sock)).returncode == 0
    assert run("--help").returncode == 0


def test_ctl_over_tcp_sends_its_key(fresh):
    assert fresh.ctl("models", url=True, env={"INFERD_ADMIN_KEY": ADMIN}).returncode == 0
    assert fresh.ctl("--key-env", "MY_KEY", "models", url=True, env={"MY_KEY": ADMIN}).returncode == 0
    for key in (TENANT, "wrong-key-123"):
        r = fresh.ctl("models", url=True, env={"INFERD_ADMIN_KEY": key})
        assert r.returncode == 1 and "admin" in r.stderr and key not in r.stderr
    assert fresh.ctl("--key-env", "NOT_THERE", "models", url=True).returncode == 2


def test_ctl_waits_are_told_when_they_are_over(fresh):
    thread = threading.Thread(target=lambda: fresh.ask("a", 1900, prompt=["x"] * 16))
    thread.start()
    fresh.until(lambda: fresh.model("a")["running"] > 0)
    r = fresh.ctl("drain", "a", "--wait", "--timeout", "0.01")
    assert r.returncode == 1 and "goes on" in r.stderr
    thread.join()
    assert fresh.ctl("undrain", "a", "--wait").returncode == 0


def test_keys_are_not_in_the_log(served):
    text = served.d.stderr()
    assert TENANT not in text and ADMIN not in text and OTHER not in text
