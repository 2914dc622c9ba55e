"""Drills: with --allow-faults an administrator makes a device seem lost, hanging or slow, and sees what docs/operation.md
says.  The devices are CPUs, so these tests run everywhere."""

import json
import re
import signal
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, SLOW, model_config
from test_devices import config_of

FAULTS = ["--allow-dummy", "--allow-faults"]
LOST = 70
LIMIT_S = 2 * SLOW  # watchdog_s of the device that hangs; it is given up after twice as long


class Drill:
    def __init__(self, launch, folder, config=None, args=FAULTS, watchdog_s=120):
        self.sock = folder / "admin.sock"
        config = config or {"devices": [{"kind": "cpu", "memory": "64MiB"}],
                            "models": [{"name": "m", "path": "dummy:tiny?seed=1&context=16384"}]}
        self.d = launch({**config, "admin": {"listen": f"unix:{self.sock}"}, "limits": {"watchdog_s": watchdog_s}}, args=args)

    def ctl(self, *words):
        return subprocess.run([BUILD / "inferd", "ctl", "--socket", self.sock, *map(str, words)], capture_output=True,
                              text=True, timeout=60 * SLOW)

    def state(self):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.sock)), base_url="http://localhost") as c:
            return c.get("/admin/state", timeout=60 * SLOW).json()

    def device(self, name="cpu0"):
        return next(d for d in self.state()["devices"] if d["name"] == name)

    def ask(self, n=4, **more):
        return httpx.post(self.d.url + "/v1/completions", timeout=60 * SLOW, json={
            "model": "m", "prompt": [5, 6, 7], "max_tokens": n, "ignore_eos": True, "temperature": 0, **more})

    def until(self, what):
        end = time.monotonic() + 60 * SLOW
        while not what():
            assert time.monotonic() < end, self.d.stderr()[-3000:]
            time.sleep(0.02)


class Stream(threading.Thread):
    """A client of a stream that does not end by itself: a slow device has minutes of work with it."""

    def __init__(self, w):
        super().__init__()
        self.w, self.events = w, []
        assert w.ctl("slow", "cpu0", 50).returncode == 0
        self.start()
        w.until(lambda: self.events)

    def run(self):
        try:
            with httpx.stream("POST", self.w.d.url + "/v1/completions", timeout=60 * SLOW, json={
                    "model": "m", "prompt": [5, 6, 7], "max_tokens": 16000, "ignore_eos": True, "stream": True}) as r:
                for line in r.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line[6:])
        except httpx.HTTPError as e:
            self.events.append(repr(e))

    def error(self):
        self.join(60 * SLOW)
        assert not self.is_alive()
        return json.loads(self.events[-1])["error"]["code"]


@pytest.fixture
def drill(launch, tmp_path):
    return Drill(launch, tmp_path)


def test_without_the_option_an_administrator_breaks_nothing(launch, tmp_path):
    w = Drill(launch, tmp_path, args=["--allow-dummy"])
    for words in (("lose", "cpu0"), ("slow", "cpu0", 3), ("slow", "cpu0", "hang")):
        r = w.ctl(*words)
        assert r.returncode == 1 and "--allow-faults" in r.stderr, r
    assert w.device()["drill"] is None and w.ask().status_code == 200
    assert "faults_allowed" not in w.d.stderr()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(w.sock)), base_url="http://localhost") as c:
        r = c.post("/admin/devices/cpu0/lose")
        assert (r.status_code, r.json()["error"]["code"]) == (403, "faults_not_allowed")
    assert w.d.stop() == 0


def test_an_order_that_is_wrong_is_said(drill):
    assert "event=faults_allowed" in drill.d.stderr()
    for words, status, text in ((("lose",), 2, "lose DEVICE"), (("slow", "cpu0"), 2, "slow DEVICE"),
                                (("slow", "cpu0", "0.5"), 2, "from 1 to 1000"), (("slow", "cpu0", "much"), 2, "from 1"),
                                (("lose", "gpu7"), 1, "gpu7")):
        r = drill.ctl(*words)
        assert r.returncode == status and text in r.stderr, (words, r)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(drill.sock)), base_url="http://localhost") as c:
        for body in ({}, {"times": 0.5}, {"times": 1001}, {"times": "stop"}, {"times": None}):
            r = c.post("/admin/devices/cpu0/slow", json=body)
            assert r.status_code == 400 and r.json()["error"]["param"] == "times", r.text
    assert drill.device()["drill"] is None
    assert drill.d.stop() == 0


def test_a_slow_device_is_late_and_right(drill):
    def step_s():
        before = [drill.d.metric(f"inferd_step_seconds_{x}") for x in ("sum", "count")]
        answer = drill.ask(40, return_token_ids=True)
        assert answer.status_code == 200, answer.text
        after = [drill.d.metric(f"inferd_step_seconds_{x}") for x in ("sum", "count")]
        return (after[0] - before[0]) / (after[1] - before[1]), answer.json()["choices"][0]["token_ids"]

    drill.ask(40)
    usual, ids = step_s()
    times = 50
    r = drill.ctl("slow", "cpu0", times)
    assert r.returncode == 0 and r.stdout == "cpu0: drill slow 50\n", r
    assert drill.device()["drill"] == times
    assert "drill slow 50: " in drill.ctl("state").stdout
    slow, slow_ids = step_s()
    assert slow > 5 * usual, (slow, usual)
    assert slow_ids == ids
    assert drill.ctl("slow", "cpu0", 1).stdout == "cpu0: no drill\n"
    again, _ = step_s()
    assert again < slow / 2, (again, slow)
    told = drill.d.stderr()
    assert "event=drill device=cpu0 is=50" in told and "event=drill device=cpu0 is=over" in told, told
    assert drill.d.stop() == 0


def test_a_lost_device_ends_the_process_as_a_real_one(drill):
    stream = Stream(drill)
    assert drill.ctl("lose", "cpu0").stdout == "cpu0: drill lose\n"
    assert stream.error() == "device_lost"
    assert drill.d.process.wait(60 * SLOW) == LOST
    told = drill.d.stderr()
    assert "event=device_gone device=cpu0" in told and "event=device_lost" in told and "a drill" in told, told
    assert drill.d.stop() == LOST


def test_an_idle_device_is_lost_with_its_next_step(drill):
    drill.ctl("lose", "cpu0")
    time.sleep(0.5)
    assert drill.d.alive() and drill.device()["lost"] is False
    r = drill.ask()
    assert (r.status_code, r.json()["error"]["code"]) == (503, "device_lost") and "retry-after" in r.headers
    assert drill.d.process.wait(60 * SLOW) == LOST
    assert drill.d.stop() == LOST


def test_the_other_device_serves_on(launch, tmp_path):
    models = [{"name": "m", "path": "dummy:tiny?seed=1", "replicas": {"min": 2, "max": 2}}]
    w = Drill(launch, tmp_path, config_of(2, models))
    w.until(lambda: len(w.state()["models"][0]["placed"]) == 2)
    want = w.ask(return_token_ids=True).json()["choices"][0]["token_ids"]
    first = w.state()["devices"][0]["name"]
    assert w.ctl("lose", first).returncode == 0
    # requests go to both; those on the lost one get an error, and the next ones are served
    w.until(lambda: w.ask().status_code != 200 or w.device(first)["lost"])
    w.until(lambda: w.device(first)["lost"])
    w.until(lambda: all(w.ask().status_code == 200 for _ in range(4)))
    assert w.ask(return_token_ids=True).json()["choices"][0]["token_ids"] == want
    assert w.d.stderr().count("event=device_gone") == 1
    assert w.d.metric("inferd_device_lost") == 1
    assert w.d.alive()
    w.d.stop()


def test_a_hanging_device_is_given_up(launch, tmp_path):
    drill = Drill(launch, tmp_path, watchdog_s=LIMIT_S)
    stream = Stream(drill)
    began = time.monotonic()
    assert drill.ctl("slow", "cpu0", "hang").stdout == "cpu0: drill hang\n"
    assert drill.device()["drill"] == "hang"
    assert stream.error() == "device_lost"
    assert drill.d.process.wait(60 * SLOW) == LOST
    assert time.monotonic() - began >= 2 * LIMIT_S - 0.5
    assert re.search(r"event=device_lost .*cpu0: no step or piece of a load was finished", drill.d.stderr())
    assert drill.d.stop() == LOST


def test_a_hang_shows_in_the_metrics_before_its_end(drill):
    """What the alerts InferdWatchdog and InferdClassStarves look at rises, and falls when the device goes on."""
    def value(name):
        page = drill.d.http.get("/metrics").text
        return float(re.search(rf"^{re.escape(name)} (\S+)$", page, re.M).group(1))

    silent = 'inferd_loop_silent_seconds{loop="engine cpu0"}'
    waits = 'inferd_class_wait_seconds{device="cpu0",class="normal"}'
    assert value(silent) == 0 and value(waits) == 0 and value("inferd_watchdog_limit_seconds") == 120
    stream = Stream(drill)
    assert value('inferd_class_sequences{device="cpu0",class="normal",state="running"}') == 1
    drill.ctl("slow", "cpu0", "hang")
    drill.until(lambda: value(silent) > 0.5 and value(waits) > 0.5)
    drill.ctl("slow", "cpu0", 1)
    drill.until(lambda: value(silent) < 0.5 and value(waits) < 0.5)
    stream.join(60 * SLOW)
    assert stream.events[-1] == "[DONE]"
    drill.until(lambda: value(waits) == 0)


def test_a_hang_that_ends_in_time_loses_nothing(drill):
    want = drill.ask(60, return_token_ids=True).json()["choices"][0]["token_ids"]
    got = []
    drill.ctl("slow", "cpu0", "hang")
    asking = threading.Thread(target=lambda: got.append(drill.ask(60, return_token_ids=True)))
    asking.start()
    time.sleep(0.5)
    assert not got and drill.d.alive()
    assert drill.ctl("slow", "cpu0", 1).returncode == 0
    asking.join(60 * SLOW)
    assert got[0].status_code == 200 and got[0].json()["choices"][0]["token_ids"] == want
    assert drill.d.stop() == 0


def test_a_slow_daemon_ends_when_it_is_told(drill):
    drill.ask()
    drill.ctl("slow", "cpu0", 50)
    asking = threading.Thread(target=lambda: drill.ask(40))
    asking.start()
    drill.until(lambda: drill.d.metric("inferd_sequences_running") + drill.d.metric("inferd_sequences_waiting") > 0)
    drill.d.process.send_signal(signal.SIGTERM)
    assert drill.d.process.wait(60 * SLOW) == 0
    asking.join(60 * SLOW)
    assert drill.d.stop() == 0


# ---- settings of earlier versions ----

def test_a_file_with_removed_settings_changes_nothing(launch, tiny_model):
    """Each is refused with what replaces it, by `check`, by the start and by a reload."""
    config = model_config(tiny_model, "tiny")
    d = launch(config)
    old = {**config, "listen": "127.0.0.1:0", "models": [{**config["models"][0], "name": "other"}],
           "policy": {"placement": "spread"}, "limits": {"json_depth_max": 9, "running_max": 3}}
    old["devices"] = [{**config.get("devices", [{"kind": "cpu"}])[0], "uuid": "GPU-1"}]
    d.config_path.write_text(json.dumps(old, indent=1))
    sentences = ('policy.placement: was removed in 0.1.0: it is "balanced"',
                 "limits.json_depth_max: was removed in 0.1.0: it is 64",
                 'devices[0].uuid: was removed in 0.1.0: use "gpu": "GPU-..."')
    for command in ("check", "serve"):
        r = subprocess.run([BUILD / "inferd", command, "--config", d.config_path], capture_output=True, text=True,
                           timeout=60 * SLOW)
        assert r.returncode == 2, r
        for sentence in sentences:
            assert re.search(rf"{re.escape(str(d.config_path))}:\d+: {re.escape(sentence)}", r.stdout + r.stderr), r
    d.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 60 * SLOW
    while "event=reload_refused" not in d.stderr():
        assert time.monotonic() < end, d.stderr()
        time.sleep(0.02)
    told = d.stderr()
    assert all(json.dumps(s)[1:-1] in told for s in sentences), told
    assert d.http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 2}).status_code == 200
    assert d.http.post("/v1/completions", json={"model": "other", "prompt": "x"}).status_code == 404
    assert 'inferd_config_reloads_total{result="refused"} 1' in d.http.get("/metrics").text
    assert d.stop() == 0
