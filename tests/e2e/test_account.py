"""The account of device time on the running daemon: conserved, by tenant and model, and truthful
refusals of a full queue."""

import threading
import time

import httpx
import pytest

from conftest import SLOW, model_config

ADMIN_KEY = "sk-admin-0123456789"
KEYS = {"red": "sk-red-0123456789", "blue": "sk-blue-0123456789"}
ERROR_PPM_MAX = 5000  # half a percent


def tenant(name, **more):
    return {"name": name, "keys": [KEYS[name]], **more}


@pytest.fixture
def serve(launch, tiny_model):
    started = []

    def start(**more):
        config = model_config(tiny_model, "one", **more)
        config["models"].append({"name": "two", "path": tiny_model})
        config["admin"] = {"keys": [ADMIN_KEY]}
        d = launch(config)
        started.append(d)
        return d

    yield start
    for d in started:
        if d.alive():
            assert d.stop() == 0


def headers(name):
    return {"Authorization": "Bearer " + KEYS[name]}


def ask(url, name, model, n=16, **more):
    body = {"model": model, "prompt": f"{name} {model} {more.pop('salt', '')}" * 8, "max_tokens": n, "seed": 1,
            "ignore_eos": True, **more}
    return httpx.post(url + "/v1/completions", json=body, headers=headers(name), timeout=60 * SLOW)


def state(d):
    answer = httpx.get(d.url + "/admin/state", headers={"Authorization": "Bearer " + ADMIN_KEY},
                       timeout=60 * SLOW)
    assert answer.status_code == 200, answer.text
    return answer.json()


def metrics(d):
    out = {}
    for line in httpx.get(d.url + "/metrics", headers=headers("red"), timeout=60 * SLOW).text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            out[name] = float(value)
    return out


def test_each_microsecond_is_somebodys(serve):
    d = serve(tenants=[tenant("red"), tenant("blue")], policy={"cost_per_device_hour": 3.6})
    n_output = {("red", "one"): 0, ("blue", "two"): 0}

    def work(name, model):
        for i in range(8):
            answer = ask(d.url, name, model, 24, salt=i)
            assert answer.status_code == 200, answer.text
            n_output[name, model] += answer.json()["usage"]["completion_tokens"]

    threads = [threading.Thread(target=work, args=who) for who in n_output]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    time.sleep(1.5)  # idle time is counted as it passes
    audit = httpx.get(d.url + "/debug/audit", headers=headers("red"), timeout=60 * SLOW).json()
    account = audit["devices"][0]["account"]
    assert account["error_ppm"] <= ERROR_PPM_MAX, account
    assert account["principals_us"] > 0 and account["idle_us"] >= 1_000_000
    assert account["host_us"] < account["wall_us"] * 0.05, account
    s = state(d)
    rows = {(p["tenant"], p["model"]): p for p in s["account"]["principals"]}
    assert set(rows) == set(n_output)
    for who, n in n_output.items():
        p = rows[who]
        assert p["output_tokens"] == n and p["prompt_tokens"] > 0 and p["device_s"] > 0
        assert p["cost"] == pytest.approx(p["device_s"] * 0.001, abs=2e-6)
    device = s["account"]["devices"][0]
    assert device["error_ppm"] <= ERROR_PPM_MAX
    assert sum(p["device_s"] for p in rows.values()) == pytest.approx(device["principals_s"], abs=1e-4)
    m = metrics(d)
    for (name, model), n in n_output.items():
        label = f'tenant="{name}",model="{model}"'
        assert m[f'inferd_device_seconds_total{{{label}}}'] == pytest.approx(rows[name, model]["device_s"], abs=1e-5)
        assert m[f'inferd_tokens_total{{{label},kind="output"}}'] == n
    parts = sum(v for k, v in m.items() if k.startswith("inferd_device_account_seconds_total"))
    wall = sum(v for k, v in m.items() if k.startswith("inferd_device_wall_seconds_total"))
    assert parts == pytest.approx(wall, rel=ERROR_PPM_MAX / 1e6)


def test_the_state_is_fresh_when_nothing_runs(serve):
    d = serve(tenants=[tenant("red")])
    for i in range(5):
        assert ask(d.url, "red", "one", 4, salt=i).status_code == 200
        time.sleep(0.02)
        assert all(m["running"] == 0 and m["waiting"] == 0 for m in state(d)["models"])


def test_who_obeys_retry_after_of_a_full_queue_is_let_in(serve):
    d = serve(tenants=[tenant("red")], limits={"running_max": 2, "queue_len_max": 6})
    results, lock = {"refused": 0, "passed": 0}, threading.Lock()
    end = time.monotonic() + 15  # as long as it asks, not a bound

    def client(i):
        while time.monotonic() < end:
            answer = ask(d.url, "red", "one", 200, salt=i)
            if answer.status_code == 200:
                continue
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "server_overloaded"
            after = int(answer.headers["Retry-After"])
            if after > 60:  # no promise
                assert answer.headers["x-should-retry"] == "false"
                time.sleep(1)
                continue
            assert after >= 1 and "x-should-retry" not in answer.headers
            if time.monotonic() + after > end:
                return
            time.sleep(after)
            again = ask(d.url, "red", "one", 200, salt=i)
            with lock:
                results["refused"] += 1
                results["passed"] += again.status_code == 200

    threads = [threading.Thread(target=client, args=(i,)) for i in range(60)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results["refused"] >= 10, results
    assert results["passed"] >= 0.9 * results["refused"], results
    assert metrics(d)['inferd_refusals_total{tenant="red",model="one",reason="queue_full"}'] >= results["refused"]
