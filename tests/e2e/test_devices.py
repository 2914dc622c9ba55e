"""Several devices in one daemon: CPU devices with CPUs of their own."""

import json
import os
import subprocess
import threading
import time

import httpx
import pytest
from conftest import BUILD, SANITIZE, SLOW, skip

ADMIN = {"Authorization": "Bearer an-admin-key-of-tests"}
CPUS = sorted(os.sched_getaffinity(0))
MIB = 1 << 20


def dummy(seed, **more):
    return f"dummy:tiny?seed={seed}" + "".join(f"&{k}={v}" for k, v in more.items())


def config_of(n, models, memory="64MiB", **more):
    if len(CPUS) < n:
        skip(f"{n} devices need as many CPUs, and there are {len(CPUS)}")
    return {"devices": [{"kind": "cpu", "memory": memory, "cores": str(CPUS[i])} for i in range(n)],
            "admin": {"keys": ["an-admin-key-of-tests"]}, "models": models, **more}


def start(launch, *args, **more):
    return launch(config_of(*args, **more), args=["--allow-dummy"])


def state(d):
    r = d.http.get("/admin/state", headers=ADMIN)
    assert r.status_code == 200, r.text
    return r.json()


def model_of(d, name):
    return next(m for m in state(d)["models"] if m["name"] == name)


def ask(d, model, prompt, max_tokens=8, **more):
    return httpx.post(d.url + "/v1/completions", timeout=60 * SLOW, json={
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, **more})


def said(answer):
    assert answer.status_code == 200, answer.text
    return [c["token_ids"] for c in answer.json()["choices"]]


def together(calls):
    out = [None] * len(calls)

    def run(i):
        out[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


@pytest.fixture(scope="module")
def two(launch):
    """Two devices; `both` is on each, a and b are on one."""
    return start(launch, 2, [{"name": "both", "path": dummy(1), "replicas": {"min": 2, "max": 2}},
                             {"name": "a", "path": dummy(2)}, {"name": "b", "path": dummy(3)}])


def test_each_device_has_its_engine_and_name(two):
    s = state(two)
    assert [d["name"] for d in s["devices"]] == ["cpu0", "cpu1"]
    assert all(d["kind"] == "cpu" and "1 threads" in d["about"] and not d["lost"] for d in s["devices"])
    assert [b["device"] for b in two.books()] == ["cpu0", "cpu1"]
    assert "cpu0: " in two.ready_line and "cpu1: " in two.ready_line


def test_a_model_with_two_replicas_computes_on_both(two):
    end = time.monotonic() + 20 * SLOW
    while [r["state"] for r in model_of(two, "both")["placed"] if r["replica"] == "serving"] != ["hot", "hot"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    prompts = [[i + 1] * 4 for i in range(12)]
    alone = [said(ask(two, "both", p)) for p in prompts]
    before = [b["steps"] for b in state(two)["devices"]]
    calls = [lambda p=p: said(ask(two, "both", p, 64)) for p in prompts]
    assert [t[0][:8] for t in together(calls)] == [t[0] for t in alone]
    time.sleep(0.1)
    after = [b["steps"] for b in state(two)["devices"]]
    assert all(x > y for x, y in zip(after, before)), (before, after)
    two.settled()


def test_choices_and_prefixes_stay_together(two):
    long = [(i * 7) % 200 + 1 for i in range(300)]
    first = ask(two, "both", long, 4, n=4)
    assert len(said(first)) == 4
    two.settled()
    again = ask(two, "both", long + [5], 4)
    assert said(again)
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
    two.settled()


def test_models_are_spread_and_shown_where_they_are(two):
    for name in ("a", "b"):
        assert said(ask(two, name, [1, 2, 3]))
    s = state(two)
    where = {m["name"]: [p["device"] for p in m["placed"]] for m in s["models"]}
    assert where["both"] == ["cpu0", "cpu1"] and where["a"] != where["b"], where
    both = next(m for m in s["models"] if m["name"] == "both")
    assert both["desired_replicas"] == 2 and both["placement_problem"] is None
    assert sum(p["pages"]["weight"] for p in both["placed"]) == both["pages"]["weight"]


def with_maps(d):
    """The devices when each had a moment between two steps to look."""
    end = time.monotonic() + 20 * SLOW
    while True:
        devices = state(d)["devices"]
        if all(x["map"] is not None for x in devices):
            return devices
        assert time.monotonic() < end, devices


def test_the_page_map_adds_up(two):
    two.settled()
    for d in with_maps(two):
        runs = d["map"]["runs"]
        assert len(runs) <= 256 and runs[0][0] == 0
        assert all(a[0] + a[1] == b[0] for a, b in zip(runs, runs[1:]))
        assert sum(r[1] for r in runs) == d["pages"]["total"]
        if d["map"]["cell_pages"] == 1:
            assert sum(r[1] for r in runs if r[2] == "weight") == d["pages"]["weight"]
        assert all(len(r) == 4 for r in runs if r[2] in ("weight", "kv", "warm"))


def test_metrics_have_a_label_per_device(two):
    page = two.http.get("/metrics").text
    for name in ("cpu0", "cpu1"):
        assert f'device="{name}"' in page
    assert 'inferd_model_desired_replicas{model="both"} 2' in page


def test_a_plan_looks_at_every_device(two):
    plan = two.http.post("/admin/plan", headers=ADMIN, json={"load": "a"}).json()
    assert plan["fits"] and plan["device"] == model_of(two, "a")["placed"][0]["device"]
    assert [d["name"] for d in plan["devices"]] == ["cpu0", "cpu1"]
    big = {"name": "new", "path": dummy(9), "min": "60MiB"}
    plan = two.http.post("/admin/plan", headers=ADMIN, json={"model": big}).json()
    assert plan["fits"] is True and len(plan["devices"]) == 2, plan


@pytest.mark.parametrize("memory,fit", [("24MiB", 2), ("4MiB", 1)])
def test_a_plan_needs_a_device_for_each_part(launch, memory, fit):
    """Two replicas of what fits on one of the two devices only were said to fit."""
    c = config_of(2, [{"name": "a", "path": dummy(1)}])
    c["devices"][1]["memory"] = memory
    d = launch(c, args=["--allow-dummy"])
    two = {"replicas": {"min": 2, "max": 2}}
    for more, wanted in (({}, 1), (two, 2), ({"share": {"percent": 20, "devices": 2}}, 2)):
        r = d.http.post("/admin/plan", headers=ADMIN, json={"model": {"name": "new", "path": dummy(9), **more}})
        assert r.status_code == 200, r.text
        p = r.json()
        assert p["problems"] == [] and p["parts"] == {"wanted": wanted, "fit": fit}, (more, p)
        assert p["fits"] is p["now"] is (fit >= wanted), (more, p)
        assert [x["fits"] for x in p["devices"]] == [True, fit > 1]
    assert d.stop() == 0


def test_a_plan_names_the_victims_on_every_device_of_the_model(launch):
    """It named those of one device, and the load then evicted a model of the other, too."""
    d = start(launch, 2, [{"name": "a", "path": dummy(1)}, {"name": "b", "path": dummy(2)},
                          {"name": "two", "path": dummy(3), "replicas": {"min": 2, "max": 2}, "pin": "warm"}],
              memory="8MiB", host_arena="64MiB")  # a device has room for one of them
    post = lambda path, body: d.http.post(path, headers=ADMIN, json=body)
    for name in ("a", "b"):
        assert post(f"/admin/models/{name}/load", {"wait": True}).status_code == 200
    hot = {p["device"]: n for n in ("a", "b", "two") for p in model_of(d, n)["placed"] if p["state"] == "hot"}
    assert sorted(hot.values()) == ["a", "b"], hot
    plan = post("/admin/plan", {"load": "two"}).json()
    assert {v["device"]: v["name"] for v in plan["victims"]} == hot and len(plan["victims"]) == 2, plan
    assert [x["used"] for x in plan["devices"]] == [True, True] and plan["bring_up"]["from"] == "host"
    plan = post("/admin/plan", {"load": "a"}).json()
    assert plan["victims"] == [] and [x["name"] for x in plan["devices"] if x["used"]] == [plan["device"]], plan
    assert post("/admin/models/two/load", {"wait": True}).status_code == 200
    assert all(model_of(d, n)["state"] != "hot" for n in ("a", "b"))
    assert d.stop() == 0


def test_unload_waits_for_every_replica(launch):
    """It was answered as soon as the first one had left."""
    d = start(launch, 2, [{"name": "m", "path": dummy(1), "replicas": {"min": 2, "max": 2}, "pin": "none"}])
    for _ in range(10):
        r = d.http.post("/admin/models/m/load", headers=ADMIN, json={"wait": True})
        assert r.status_code == 200
        end = time.monotonic() + 20 * SLOW
        while any(p["state"] != "hot" for p in model_of(d, "m")["placed"]):
            assert time.monotonic() < end
            time.sleep(0.005)
        r = d.http.post("/admin/models/m/unload", headers=ADMIN, json={"wait": True})
        assert r.status_code == 200, r.text
        placed = model_of(d, "m")["placed"]
        assert len(placed) == 2 and all(p["state"] not in ("hot", "draining", "loading") for p in placed), placed
    assert d.stop() == 0


def test_a_share_over_all_devices_is_divided(launch):
    n = min(len(CPUS), 3)
    d = start(launch, n, [{"name": "m", "path": dummy(4), "min": 12 * n * MIB, "max": 24 * n * MIB,
                           "share": {"policy": "fixed", "percent": 80 * n, "devices": n},
                           "replicas": {"min": 1, "max": n}}])
    m = model_of(d, "m")
    assert [p["part"] for p in m["placed"]] == list(range(n))
    for p in m["placed"]:
        assert p["share"] == {"policy": "fixed", "percent": 80, "devices": 1}
        assert (p["min_bytes"], p["max_bytes"]) == (12 * MIB, 24 * MIB)
    assert m["pages"]["min"] == 12 * n * MIB // state(d)["devices"][0]["page_bytes"]
    assert said(ask(d, "m", [1, 2]))
    d.settled()
    assert d.stop() == 0


def test_a_model_leaves_all_devices_and_its_requests_end(launch):
    d = start(launch, 2, [{"name": "stays", "path": dummy(5)},
                          {"name": "goes", "path": dummy(6), "replicas": {"min": 2, "max": 2}}])
    expected = said(ask(d, "goes", [3, 1], 400))
    answers = [None] * 6

    def run(i):
        answers[i] = ask(d, "goes", [3, 1], 400)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    text = json.loads(d.config_path.read_text())
    text["models"] = text["models"][:1]
    d.config_path.write_text(json.dumps(text))
    r = d.http.put("/admin/config", headers=ADMIN, content=json.dumps(text))
    assert r.status_code == 200, r.text
    for t in threads:
        t.join()
    assert all(a.status_code in (200, 404) for a in answers), [a.text for a in answers]
    assert all(said(a) == expected for a in answers if a.status_code == 200)
    end = time.monotonic() + 20 * SLOW
    while state(d)["leaving"]:
        assert time.monotonic() < end, state(d)["leaving"]
        time.sleep(0.05)
    assert all(len(b["models"]) <= 1 for b in d.books())
    d.settled()
    assert d.stop() == 0


FIXED = {"Authorization": "Bearer key-of-a-tenant"}


def with_tenant(launch, models, **terms):
    tenant = {"name": "t", "keys": ["key-of-a-tenant"], **terms}
    d = start(launch, 2, models, tenants=[tenant])
    d.http.headers.update(ADMIN)
    return d


def test_streams_of_a_fixed_share_end_where_their_model_leaves(launch):
    """They stood still for good: the device that was left had no part of the share any more."""
    d = with_tenant(launch, [{"name": "m", "path": dummy(1), "replicas": {"min": 2, "max": 2}}],
                    share={"policy": "fixed", "percent": 30})
    n_tokens = 400 if SANITIZE else 1500  # both are seen to run
    body = {"model": "m", "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    answers = [None] * 6

    def run(i):
        answers[i] = httpx.post(d.url + "/v1/completions", headers=FIXED, timeout=60 * SLOW,
                                json={**body, "prompt": [i + 1, 2]})

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    end = time.monotonic() + 20 * SLOW
    while any(p["running"] == 0 for p in model_of(d, "m")["placed"]):
        assert time.monotonic() < end, d.stderr()
        time.sleep(0.01)
    r = d.http.patch("/admin/models/m", headers=ADMIN, json={"replicas": {"min": 1, "max": 1}})
    assert r.status_code == 200, r.text
    for t in threads:
        t.join()
    assert [a.status_code for a in answers] == [200] * 6, [a.text for a in answers]
    assert all(a.json()["usage"]["completion_tokens"] == n_tokens for a in answers)
    d.settled()
    assert "device=cpu0" in d.stderr() and "device=cpu1" in d.stderr()
    assert d.stop() == 0


def test_a_tenants_max_is_the_whole_on_each_device(launch):
    """A request was refused above the half of it, with nothing else running."""
    d = with_tenant(launch, [{"name": "m", "path": dummy(1), "replicas": {"min": 2, "max": 2}}], max=MIB // 2)
    body = {"model": "m", "prompt": [1, 2, 3], "temperature": 0, "ignore_eos": True}

    def status(n):
        r = httpx.post(d.url + "/v1/completions", headers=FIXED, timeout=60 * SLOW, json={**body, "max_tokens": n})
        return r.status_code, r.text

    code, text = status(2000)
    assert code == 429 and "the tenant may have 512" in text, text
    needed = int(text.split("needs ")[1].split(" KiB")[0])
    for n in (2000 * 450 // needed, 2000 * 300 // needed):  # KiB of 512
        code, text = status(n)
        assert code == 200, text
    d.settled()
    assert d.stop() == 0


def test_a_cpu_device_tells_what_it_has(two):
    page = two.http.get("/metrics").text
    for i in range(2):
        assert f'inferd_device_units{{device="cpu{i}"}} 1\n' in page
        assert f'inferd_device_memory_bytes{{device="cpu{i}"}} {64 * MIB}\n' in page


def test_guarantees_that_do_not_fit_are_refused_with_numbers(launch):
    d = start(launch, 2, [{"name": "a", "path": dummy(7)}, {"name": "b", "path": dummy(8)}])
    r = d.http.patch("/admin/models/a", headers=ADMIN, json={"min": "200MiB"})
    assert r.status_code == 409 and "128MiB" in r.text, r.text  # of both devices
    r = d.http.patch("/admin/models/a", headers=ADMIN, json={"min": "100MiB"})
    assert r.status_code == 409 and "100MiB" in r.text and "64MiB" in r.text, r.text  # of one
    assert model_of(d, "a")["min_bytes"] == 0
    r = d.http.patch("/admin/models/a", headers=ADMIN, json={"min": "48MiB"})
    assert r.status_code == 200, r.text
    assert said(ask(d, "a", [1])) and said(ask(d, "b", [1]))
    d.settled()
    assert d.stop() == 0


def refused(folder, config):
    path = folder / "bad.json"
    path.write_text(json.dumps({"listen": "127.0.0.1:0", **config}))
    r = subprocess.run([BUILD / "inferd", "serve", "--config", path, "--allow-dummy"],
                       capture_output=True, text=True, timeout=60 * SLOW)
    return r.returncode, r.stderr


def test_devices_that_cannot_be_are_said(tmp_path):
    models = [{"name": "m", "path": dummy(1)}]
    cpu = {"kind": "cpu", "memory": "64MiB"}
    status, text = refused(tmp_path, {"devices": [cpu, cpu], "models": models})
    assert status == 2 and "devices[1].cores" in text, text
    status, text = refused(tmp_path, {"devices": [{**cpu, "cores": "0"}, {**cpu, "cores": "0"}], "models": models})
    assert status == 2 and "CPU 0 is also in devices[0].cores" in text, text
    status, text = refused(tmp_path, {"devices": [{**cpu, "name": "x", "cores": "0"},
                                                  {**cpu, "name": "x", "cores": "1"}], "models": models})
    assert status == 2 and '"x"' in text, text
