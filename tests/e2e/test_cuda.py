"""The daemon on the CUDA backend, whose device is emulated: kernels as C++ on emulated threads, NVIDIA's
libraries as a fake that keeps their rules (tests/cuda_emul/emul_shared.c says how it is steered).

What a GPU computes is compared with the CPU by log-probabilities; tokens only where the choice is clear.
The fake tells broken rules and leaks on standard output, which Daemon.stop reads."""

import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, SLOW, model_config, skip
from test_life import request_bytes

MODULE = BUILD / "tests" / "cuda_emul" / "inferd_cuda_emul.so"
UUID = "GPU-8f6a0000-fake-4a3e-9c00-000000000000"
CLEAR = 0.1  # a gap of log-probabilities that bf16 does not close


def environment(**more):
    if not MODULE.is_file():
        skip("the emulated CUDA module was not built")
    return {"INFERD_CUDA_MODULE": str(MODULE), **{k: str(v) for k, v in more.items()}}


def cuda_config(path, limits=None, **device):
    return {**model_config(path, "tiny"), "limits": {"running_max": 8, "step_tokens_max": 64, **(limits or {})},
            "devices": [{"kind": "cuda", "memory": "128MiB", **device}]}


def inferd(*args, env=None):
    return subprocess.run([BUILD / "inferd", *map(str, args)], capture_output=True, text=True,
                          timeout=60 * SLOW, env={**os.environ, **(env or {})})


def events(response):
    return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


@pytest.fixture(scope="module")
def gpu(launch, tiny_model):
    return launch(cuda_config(tiny_model), env=environment())


def complete(d, **body):
    r = d.http.post("/v1/completions", json={"model": "tiny", "prompt": "Hello", "max_tokens": 8,
                                             "ignore_eos": True, "temperature": 0, **body})
    assert r.status_code == 200, r.text
    return r.json()


# -- what it says --

def same_as_on_the_cpu(got, want):
    """Steps whose log-probabilities agree, until the choice was close and may differ."""
    n = 0
    for a, b in zip(got, want):
        best = sorted(b["top"].values(), reverse=True)
        clear = best[0] - best[1] > CLEAR
        assert a["token"] == b["token"] or not clear, (n, a, b)
        if a["token"] != b["token"]:
            break
        assert abs(a["logprob"] - b["logprob"]) < 0.1, (n, a, b)
        n += 1
    return n


def steps_of_completion(answer):
    p = answer["choices"][0]["logprobs"]
    return [{"token": t, "logprob": l, "top": top}
            for t, l, top in zip(p["tokens"], p["token_logprobs"], p["top_logprobs"])]


def steps_of_chat(answer):
    return [{"token": x["token"], "logprob": x["logprob"], "top": {y["token"]: y["logprob"] for y in x["top_logprobs"]}}
            for x in answer["choices"][0]["logprobs"]["content"]]


def test_completions_are_those_of_the_cpu(gpu, tiny):
    n = 0
    for prompt in ("Hello", "The quick brown fox", "1, 2, 3,"):
        answers = [complete(d, prompt=prompt, logprobs=5) for d in (gpu, tiny)]
        assert answers[0]["usage"]["completion_tokens"] == 8
        n += same_as_on_the_cpu(*map(steps_of_completion, answers))
    assert n >= 6


def test_chats_are_those_of_the_cpu(gpu, tiny):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 6,
            "temperature": 0, "logprobs": True, "top_logprobs": 5, "ignore_eos": True}
    answers = [d.http.post("/v1/chat/completions", json=body).json() for d in (gpu, tiny)]
    assert same_as_on_the_cpu(*map(steps_of_chat, answers)) >= 1
    assert answers[0]["choices"][0]["message"]["role"] == "assistant"


def test_scores_of_a_text_are_close_to_the_cpu(gpu, tiny):
    text = "One day a fox met a crow that held a piece of cheese, and asked it to sing. " * 2
    a, b = (complete(d, prompt=text, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
            for d in (gpu, tiny))
    gaps = [abs(x - y) for x, y in zip(a[1:], b[1:])]
    print(f"{len(gaps)} tokens, mean {sum(gaps) / len(gaps):.4f}, largest {max(gaps):.4f}")
    assert len(a) == len(b) and len(gaps) > 40
    assert sum(gaps) / len(gaps) < 0.02 and max(gaps) < 0.15


def test_a_full_batch_finds_its_workspace(launch):
    """The workspace was a sixteenth of the memory, whatever running_max was: the first large batch failed for
    lack of it (500), and the step behind it told other clients that row 0 waits for a draw (400)."""
    d = launch({**model_config("dummy:tiny?layers=1", "tiny"),
                "limits": {"running_max": 256, "step_tokens_max": 512},
                "devices": [{"kind": "cuda", "memory": "256MiB"}]}, args=["--allow-dummy"], env=environment())

    def ask(i):
        return d.http.post("/v1/completions", json={"model": "tiny", "prompt": f"{i}", "max_tokens": 3,
                                                    "ignore_eos": True, "temperature": 0}).status_code
    with concurrent.futures.ThreadPoolExecutor(160) as pool:
        answers = list(pool.map(ask, range(160)))
    assert {n: answers.count(n) for n in answers} == {200: 160}
    d.stop()


@pytest.mark.parametrize("arena", ["0", "64MiB"])
def test_models_need_no_copy_in_host_memory(launch, tiny_model, gpu, arena):
    """Without host memory a model is read through to the device, again after each eviction, and says the same."""
    d = launch({"limits": {"running_max": 8, "step_tokens_max": 64}, "host_arena": arena,
                "models": [{"name": "tiny", "path": str(tiny_model), "keep_alive": "50ms"}],
                "devices": [{"kind": "cuda", "memory": "128MiB"}]}, env=environment())
    want = complete(gpu, max_tokens=6)["choices"][0]["text"]
    for _ in range(3):
        assert complete(d, max_tokens=6)["choices"][0]["text"] == want
        end = time.monotonic() + 30 * SLOW
        while {m["state"] for m in d.audit()["models"]} - {"cold", "warm"}:
            assert time.monotonic() < end, d.audit()
            time.sleep(0.02)
        assert {m["state"] for m in d.audit()["models"]} == {"cold" if arena == "0" else "warm"}
    d.settled()
    assert d.stop() == 0


def test_a_stream_is_the_answer_in_pieces(gpu):
    whole = complete(gpu, max_tokens=6)
    with gpu.http.stream("POST", "/v1/completions", json={
            "model": "tiny", "prompt": "Hello", "max_tokens": 6, "ignore_eos": True, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}) as r:
        got = events(r)
    assert got[-1] == "[DONE]"
    chunks = [json.loads(x) for x in got[:-1]]
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == whole["choices"][0]["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def test_the_client_library_works(gpu):
    answer = gpu.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, temperature=0.8, seed=5)
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_stop_strings_and_choices(gpu):
    text = complete(gpu)["choices"][0]["text"]
    stop = next(c for c in text[1:] if c.isalpha())
    cut = complete(gpu, stop=[stop])["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["text"] == text[:text.index(stop)]
    two = [complete(gpu, n=2, temperature=1, seed=3, max_tokens=5)["choices"] for _ in range(2)]
    assert [c["index"] for c in two[0]] == [0, 1] and two[0][0]["text"] != two[0][1]["text"]
    assert [c["finish_reason"] for c in two[0]] == ["length"] * 2


# -- many, and those that leave --

def test_several_at_once_and_clients_that_leave(gpu):
    seed = 20261121
    print("seed", seed)
    rng = random.Random(seed)

    def leave(wait):
        with socket.create_connection(("127.0.0.1", gpu.port)) as s:
            s.sendall(request_bytes({"model": "tiny", "prompt": "leaving", "max_tokens": 200, "ignore_eos": True,
                                     "stream": True}))
            s.settimeout(wait)
            try:
                s.recv(4000)
            except TimeoutError:
                pass

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        left = [pool.submit(leave, rng.random() * SLOW) for _ in range(6)]
        answers = list(pool.map(lambda i: complete(gpu, prompt=f"request {i}", max_tokens=3 + i % 4), range(10)))
        for f in left:
            f.result()
    assert [a["usage"]["completion_tokens"] for a in answers] == [3 + i % 4 for i in range(10)]
    body = gpu.settled(timeout=20 * SLOW)
    assert body["pages"]["quarantine"] == 0


def test_metrics_tell_the_device(gpu):
    complete(gpu, max_tokens=4)
    end = time.monotonic() + 10 * SLOW
    while "inferd_device_info" not in gpu.http.get("/metrics").text and time.monotonic() < end:
        time.sleep(0.05)
    page = gpu.http.get("/metrics").text
    assert f'kind="cuda",name="Fake H200",uuid="{UUID}",mig="false"}} 1' in page
    assert gpu.metric("inferd_device_units") == 132
    assert gpu.metric("inferd_device_memory_bytes") == 256 << 20
    assert gpu.metric("inferd_gpu_health_known") == 1 and gpu.metric("inferd_gpu_temperature_celsius") == 41
    assert gpu.metric("inferd_gpu_graphs_total") > 0 and gpu.metric("inferd_gpu_graph_launches_total") > 0
    assert gpu.metric("inferd_gpu_load_bytes_total") > 0 and gpu.metric("inferd_gpu_matmuls_total") > 0
    assert gpu.metric("inferd_kv_driver_calls_total") == 0
    assert gpu.metric("inferd_device_lost") == 0
    assert "cuda 0 Fake H200" in gpu.ready_line


# -- which device --

def test_devices_are_listed():
    env = environment(INFERD_FAKE_DEVICES=2)
    r = inferd("devices", env=env)
    assert r.returncode == 0 and r.stderr == ""
    assert r.stdout.splitlines()[0].startswith("cpu ")
    assert f"cuda:0   Fake H200 {UUID}, sm_90, 132 SMs" in r.stdout and "cuda:1 " in r.stdout
    rows = [json.loads(x) for x in inferd("devices", "--json", env=env).stdout.splitlines()]
    assert [x["kind"] for x in rows] == ["cpu", "cuda", "cuda"]
    assert rows[1]["uuid"] == UUID and rows[1]["temperature_c"] == 41 and rows[2]["index"] == 1
    unknown = inferd("devices", "--json", env=environment(INFERD_FAKE_NO_NVML=1))
    assert not {"temperature_c", "free_bytes"} & set(json.loads(unknown.stdout.splitlines()[1]))
    unknown = inferd("devices", env=environment(INFERD_FAKE_NO_NVML=1)).stdout
    assert "0.2 GiB (without NVML it is not known how much is free)" in unknown
    bad = inferd("devices", env=environment(INFERD_FAKE_DEVICES=2, INFERD_FAKE_BAD=0))
    assert bad.returncode == 0 and "cuda:0   cannot be used: device 0: CUDA: " in bad.stdout
    assert "cuda:1   Fake H200 GPU-8f6a0001-" in bad.stdout
    bad = inferd("devices", "--json", env=environment(INFERD_FAKE_DEVICES=2, INFERD_FAKE_BAD=1))
    assert "does not answer" in json.loads(bad.stdout.splitlines()[2])["error"]
    none = inferd("devices", "--module", "/nonexistent.so")
    assert none.returncode == 0 and none.stderr == "inferd: no GPU: the CUDA module /nonexistent.so: no such file\n"
    assert inferd("devices", "--nonsense").returncode == 2 and inferd("devices", "x").returncode == 2


@pytest.mark.parametrize("device,env,status,words", [
    ({"gpu": 5}, {}, 3, ("devices[0].gpu is 5", "1 GPU: 0 Fake H200 " + UUID)),
    ({"gpu": "GPU-12"}, {}, 3, ('devices[0].gpu is "GPU-12"', UUID)),
    ({"kind": "auto", "gpu": 1}, {}, 3, ("devices[0].gpu is 1", UUID)),
    ({"memory": "1TiB"}, {}, 1, ("memory of 1048576 MiB", "256 MiB free")),
    ({}, {"INFERD_FAKE_DEVICES": "2", "INFERD_FAKE_BAD": "0"}, 3, ("devices[0].gpu is 0: device 0: ", "not answer")),
    ({}, {"INFERD_FAKE_NO_DRIVER": "1"}, 3, ("no NVIDIA driver",)),
    ({}, {"INFERD_FAKE_NO_DRIVER": "old"}, 3, ("too old",)),
    ({}, {"INFERD_FAKE_DEVICES": "0"}, 3, ("no device",)),
    ({}, {"INFERD_CUDA_MODULE": "/nonexistent.so"}, 3, ("/nonexistent.so: no such file",)),
    ({}, {"INFERD_CUDA_MODULE": "/etc/passwd"}, 3, ("cannot be loaded",)),
    ({}, {"INFERD_CUDA_MODULE": "/dev/null"}, 3, ("may be written by every user",)),
])
def test_a_device_that_is_not_there_is_said(tmp_path, tiny_model, device, env, status, words):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**cuda_config(tiny_model, **device), "listen": "127.0.0.1:0"}))
    r = inferd("serve", "--config", path, env=environment(**env))
    assert r.returncode == status, r.stderr
    told = [line for line in r.stderr.splitlines() if line.startswith("inferd: ")]
    assert len(told) == 1 and all(w in told[0] for w in words), r.stderr
    assert "base_url" not in r.stdout


def test_a_gpu_that_mps_shares_says_so():
    mps = environment(INFERD_FAKE_MPS=1)
    text = inferd("devices", env=mps).stdout
    assert "shared by MPS (a fault of another client ends inferd, status 70)" in text and "of its threads" not in text
    mps["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "40"
    assert "40 % of its threads" in inferd("devices", env=mps).stdout
    row = json.loads(inferd("devices", "--json", env=mps).stdout.splitlines()[1])
    assert row["mps"] is True and row["mps_thread_percentage"] == 40
    mps["INFERD_FAKE_MPS"] = "0"
    assert "MPS" not in inferd("devices", env=mps).stdout and "threads\"" not in inferd("devices", env=mps).stdout


def test_a_mig_instance_that_is_not_the_first_is_served(launch, tmp_path, tiny_model):
    """CUDA shows a process one instance: the second was "not there"."""
    uuid = "MIG-8f6a0001-fake-4a3e-9c00-000000000001"
    mig = {"INFERD_FAKE_DEVICES": "2", "INFERD_FAKE_MIG": "1"}
    env = {k: v for k, v in environment(**mig).items()}
    d = launch(cuda_config(tiny_model, gpu=uuid), env=env)
    assert "Fake H200 MIG 1g.18gb" in d.ready_line
    assert complete(d, max_tokens=2)["usage"]["completion_tokens"] == 2
    assert f'uuid="{uuid}",mig="true"' in d.http.get("/metrics").text
    assert d.stop() == 0
    listed = inferd("devices", env=env).stdout
    assert "cuda:0   Fake H200 MIG 1g.18gb MIG-8f6a0000" in listed and f"{uuid}, for another process: --device" in listed
    r = inferd("run", tiny_model, "Hi", "--device", "MIG-77", env=env)
    assert r.returncode == 3 and "MIG instances: MIG-8f6a0000" in r.stderr and uuid in r.stderr, r.stderr
    path = tmp_path / "c.json"
    two = cuda_config(tiny_model)
    for other, words in ((uuid, "of which CUDA shows one to a process"), ("GPU-8f", "only one of the two")):
        two["devices"] = [{"kind": "cuda", "gpu": "MIG-8f6a0000"}, {"kind": "cuda", "gpu": other}]
        path.write_text(json.dumps({**two, "listen": "127.0.0.1:0"}))
        r = inferd("serve", "--config", path, env=env)
        assert r.returncode == 2 and words in r.stderr and "devices[1]" in r.stderr, r.stderr


def test_a_gpu_whose_services_still_start_is_waited_for(launch, tmp_path, tiny_model):
    """Error 802: the fabric manager of an HGX board.  Status 3 was final for systemd."""
    d = launch(cuda_config(tiny_model, kind="auto"), env=environment(INFERD_FAKE_STARTING=2))
    assert "cuda 0 Fake H200" in d.ready_line
    assert d.stderr().count("event=device_starting") == 1 and "802" in d.stderr()
    assert d.stop() == 0
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**cuda_config(tiny_model), "listen": "127.0.0.1:0"}))
    r = inferd("serve", "--config", path, env=environment(INFERD_FAKE_STARTING=1000, INFERD_DEVICE_WAIT_S=1))
    assert r.returncode == 75 and "802" in r.stderr, r.stderr
    r = inferd("serve", "--config", path, env=environment(INFERD_FAKE_STARTING=1000, INFERD_DEVICE_WAIT_S="soon"))
    assert r.returncode == 2 and "INFERD_DEVICE_WAIT_S is \"soon\"" in r.stderr, r.stderr
    unit = (BUILD.parent / "deploy" / "inferd.service").read_text()
    never = next(x for x in unit.splitlines() if x.startswith("RestartPreventExitStatus=")).split("=")[1].split()
    assert never == ["1", "2", "3"] and "Restart=on-failure" in unit
    r = inferd("run", tiny_model, "Hi", "--device", "cuda", env=environment(INFERD_FAKE_STARTING=1000))
    assert r.returncode == 75, r.stderr


def test_a_device_that_fails_does_not_keep_the_others(launch, tiny_model):
    d = launch(cuda_config(tiny_model, gpu=1), env=environment(INFERD_FAKE_DEVICES=2, INFERD_FAKE_BAD=0))
    assert "cuda 1 Fake H200" in d.ready_line
    assert complete(d, max_tokens=2)["usage"]["completion_tokens"] == 2
    assert d.stop() == 0


def test_keys_of_32_bits_are_refused(tmp_path, tiny_model):
    path = tmp_path / "c.json"
    for kind, status in (("cuda", 2), ("auto", 1)):
        path.write_text(json.dumps({**cuda_config(tiny_model, {"kv_type": "f32"}, kind=kind), "listen": "127.0.0.1:0"}))
        r = inferd("serve", "--config", path, env=environment())
        assert r.returncode == status and "f32" in r.stderr and "bf16" in r.stderr, r.stderr


def test_auto_takes_the_cpu_and_says_so(launch, tiny_model):
    config = cuda_config(tiny_model, kind="auto")
    config["log"] = {"level": "debug"}  # at info only where the machine has a GPU
    d = launch(config, env=environment(INFERD_FAKE_NO_DRIVER=1))
    assert "(cpu " in d.ready_line
    assert "serving_on_cpu" in d.stderr() and "no NVIDIA driver" in d.stderr()
    assert complete(d, max_tokens=2)["usage"]["completion_tokens"] == 2
    assert d.stop() == 0
    d = launch(config, env=environment(INFERD_FAKE_DEVICES=2), args=["--device", "cuda:1"])
    assert "cuda 1 Fake H200" in d.ready_line and "serving_on_cpu" not in d.stderr()
    assert d.stop() == 0


# -- the end --

class Streams:
    """Streams that run until something happens to them; `ends` has the last event of each."""

    def __init__(self, d, n):
        self.ends, self.begun = [], 0
        self.threads = [threading.Thread(target=self.run, args=(d, i)) for i in range(n)]
        for t in self.threads:
            t.start()
        end = time.monotonic() + 30 * SLOW
        while self.begun < n:
            assert time.monotonic() < end
            time.sleep(0.01)

    def run(self, d, i):
        last, first = None, True
        with httpx.stream("POST", d.url + "/v1/completions", timeout=60 * SLOW, json={
                "model": "tiny", "prompt": f"stream {i}", "max_tokens": 2000, "ignore_eos": True,
                "stream": True}) as r:
            for line in r.iter_lines():
                if line.startswith("data: "):
                    last = line[6:]
                    self.begun += first
                    first = False
        self.ends.append(last)

    def join(self):
        for t in self.threads:
            t.join()
        return self.ends


def break_device(launch, tiny_model, tmp_path, order, **limits):
    """Streams run, the device breaks: every stream is told, nothing is healthy, and the process ends."""
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    d = launch(cuda_config(tiny_model, limits), env=environment(INFERD_FAKE_ORDERS=orders))
    assert d.http.get("/health").status_code == 200
    streams = Streams(d, 3)
    waiting = concurrent.futures.ThreadPoolExecutor(1).submit(
        httpx.post, d.url + "/v1/completions", timeout=60 * SLOW,
        json={"model": "tiny", "prompt": "whole", "max_tokens": 2000, "ignore_eos": True})
    while d.metric("inferd_generations") < 4:
        time.sleep(0.01)
    orders.write_text(order + "\n")
    told = [json.loads(x)["error"] for x in streams.join()]
    began = time.monotonic()
    assert [e["code"] for e in told] == ["device_lost"] * 3, told
    whole = waiting.result()
    assert whole.status_code == 503 and whole.json()["error"]["code"] == "device_lost"
    assert int(whole.headers["retry-after"]) >= 1
    for route in ("/health", "/ready"):
        try:
            assert httpx.get(d.url + route, timeout=5).status_code == 503
        except httpx.TransportError:
            pass  # the server is gone
    assert d.process.wait(60 * SLOW) == 70
    assert time.monotonic() - began < 5 * SLOW
    assert "event=device_lost" in d.stderr()
    assert d.stop() == 70


def test_a_lost_device_ends_streams_and_process(launch, tiny_model, tmp_path):
    break_device(launch, tiny_model, tmp_path, "lose 0")


def test_run_ends_with_the_status_of_a_lost_device(tiny_model, tmp_path):
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    p = subprocess.Popen([BUILD / "inferd", "run", tiny_model, "--device", "cuda", "--memory", "128MiB", "--temperature",
                          "0", "Hello"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env={**os.environ, **environment(INFERD_FAKE_ORDERS=orders)})
    text = os.read(p.stdout.fileno(), 1)
    orders.write_text("lose 0\n")
    more, told = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 70 and told.startswith(b"prompt: ") and b"\ninferd: " in told, (p.returncode, told)
    assert (text + more).endswith(b"\n")


def test_an_idle_device_that_nvml_calls_lost_ends_the_process(launch, tiny_model, tmp_path):
    """Nothing computes, so that no step can fail: the daemon stayed ready."""
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    d = launch(cuda_config(tiny_model), env=environment(INFERD_FAKE_ORDERS=orders))
    assert d.http.get("/ready").status_code == 200
    orders.write_text("gone 0\n")
    assert d.process.wait(60 * SLOW) == 70  # it looks each ten seconds
    assert "event=device_lost" in d.stderr() and "NVML: the GPU is lost" in d.stderr()
    assert d.stop() == 70


@pytest.mark.parametrize("loss", ["device", "process"])
def test_one_of_two_devices_is_lost(launch, tiny_model, tmp_path, loss):
    """CUDA may end the work of the whole process with the context of one device, and need not."""
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    config = cuda_config(tiny_model)
    config["devices"] = [{"kind": "cuda", "memory": "128MiB", "gpu": i} for i in (0, 1)]
    config["models"][0]["replicas"] = {"min": 2, "max": 2}
    d = launch(config, env=environment(INFERD_FAKE_DEVICES=2, INFERD_FAKE_ORDERS=orders, INFERD_FAKE_LOSS=loss))
    stop, answers = threading.Event(), []

    def ask():  # one after the other, on whichever device
        while not stop.is_set():
            try:
                r = httpx.post(d.url + "/v1/completions", timeout=30 * SLOW, json={
                    "model": "tiny", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True})
            except httpx.TransportError:
                break  # the server is gone
            answers.append((r.status_code, r.json().get("error", {}).get("code"), r.headers.get("retry-after")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    while len(answers) < 24:
        time.sleep(0.01)
    # The one that most requests go to: the other may be left idle, and an idle one is not missed.
    used = statistics.mode(re.findall(r"event=done .*device=gpu(\d)", d.stderr())[-12:])
    orders.write_text(f"lose {used}\n")
    if loss == "process":
        assert d.process.wait(60 * SLOW) == 70
    else:
        end = time.monotonic() + 60 * SLOW
        while f"event=device_gone device=gpu{used}" not in d.stderr():
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(0.5)  # a second look at the other one
        n = len(answers)
        while len(answers) < n + 8:
            assert time.monotonic() < end
            time.sleep(0.02)
    stop.set()
    for t in threads:
        t.join()
    wrong = {a for a in answers if a[0] != 200}
    assert all(status == 503 and code in ("device_lost", "shutting_down") and int(after) >= 1
               for status, code, after in wrong), wrong
    told = d.stderr()
    assert told.count("event=device_gone") == (2 if loss == "process" else 1), told
    if loss == "device":
        assert d.http.get("/ready").status_code == 200 and d.process.poll() is None
        assert all(a[0] == 200 for a in answers[-8:])
        d.stop()
    else:
        assert "event=device_lost" in told
        assert d.stop() == 70


def test_an_idle_device_is_asked_when_another_one_was_lost(launch, tiny_model, tmp_path):
    """The model is on one of two devices; the error is sticky for the process, and no request goes to the other."""
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    config = cuda_config(tiny_model)
    config["devices"] = [{"kind": "cuda", "memory": "128MiB", "gpu": i} for i in (0, 1)]
    d = launch(config, env=environment(INFERD_FAKE_DEVICES=2, INFERD_FAKE_ORDERS=orders))
    orders.write_text("lose 0\n")
    with contextlib.suppress(httpx.TransportError):  # a look at the device may have ended the process before
        r = httpx.post(d.url + "/v1/completions", json={"model": "tiny", "prompt": "Hello", "max_tokens": 4})
        assert r.status_code == 503 and r.json()["error"]["code"] == "device_lost" and "retry-after" in r.headers
    assert d.process.wait(20 * SLOW) == 70
    assert d.stderr().count("event=device_gone") == 2
    assert d.stop() == 70


def test_a_device_that_hangs_is_given_up(launch, tiny_model, tmp_path):
    break_device(launch, tiny_model, tmp_path, "hang", watchdog_s=SLOW)


@pytest.mark.parametrize("call", ["vmm_create", "copy_to_device", "kernel_load"])
def test_a_device_lost_at_the_start_asks_for_another_process(tmp_path, tiny_model, call):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**cuda_config(tiny_model), "listen": "127.0.0.1:0"}))
    r = inferd("serve", "--config", path, env=environment(INFERD_FAKE_LOSE_CALL=call))
    assert r.returncode == 70 and "the device is lost" in r.stderr, r.stderr


def test_a_drain_ends_although_the_device_hangs(launch, tiny_model, tmp_path):
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    d = launch(cuda_config(tiny_model, {"drain_timeout_s": 1}), env=environment(INFERD_FAKE_ORDERS=orders))
    streams = Streams(d, 1)
    orders.write_text("hang\n")
    began = time.monotonic()
    assert d.stop() == 0
    assert time.monotonic() - began < 8 * SLOW
    assert json.loads(streams.join()[0])["error"]["code"] == "shutting_down"


def test_reload_and_drain_while_it_serves(launch, tiny_model):
    config = cuda_config(tiny_model)
    d = launch(config, env=environment())
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(complete, d, prompt=f"r{i}", max_tokens=30) for i in range(3)]
        while d.metric("inferd_sequences_running") < 3:
            time.sleep(0.005)
        config["limits"]["watchdog_s"] = 45
        d.config_path.write_text(json.dumps({**config, "listen": "127.0.0.1:0"}))
        d.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 10 * SLOW
        while d.metric("inferd_config_reloads_total") < 1:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert "reload_needs_restart" not in d.stderr() and "result=applied" in d.stderr()
        d.process.send_signal(signal.SIGTERM)
        answers = [f.result() for f in futures]
    assert [a["usage"]["completion_tokens"] for a in answers] == [30] * 3
    assert d.stop() == 0
