"""Keys and values that leave the device: to host memory, to a disk, and back, also after a restart.  What is said
is what an undisturbed daemon says, and only `cached_tokens` shows the way it came."""

import os
import random
import re
import signal
import stat
import threading
import time

import pytest

from conftest import SLOW

SHAPE = "dummy:tiny?dtype=f32&layers=8&context=1024"
MODELS = {"a": f"{SHAPE}&seed=1", "b": f"{SHAPE}&seed=2"}


def config_of(names="a", device="64MiB", host="0", disk=None, **more):
    config = {"devices": [{"kind": "cpu", "memory": device, "threads": 2}], "host_arena": host,
              "models": [{"name": n, "path": MODELS[n], **more.pop(n, {})} for n in names], **more}
    if disk is not None:
        config |= {"state_dir": str(disk.parent), "kv_disk": "64MiB"}
    return config


def prompt_of(seed, n=400):
    r = random.Random(seed)
    return [r.randrange(10, 250) for _ in range(n)]


def ask(d, prompt, model="a", n=12, key=None, **more):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = d.http.post("/v1/completions", headers=headers, json={
        "model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "logprobs": 1, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(body):
    choice = body["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def cached(body):
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def start(launch, config):
    return launch(config, args=["--allow-dummy"])


def files(disk):
    return sorted(disk.glob("*.kv"))


@pytest.fixture(scope="module")
def alone(launch):
    """What a model says to a prompt when nothing else ever happened."""
    daemon = start(launch, config_of("ab", device="256MiB"))
    known = {}

    def of(prompt, model="a", n=12):
        key = (tuple(prompt), model, n)
        if key not in known:
            known[key] = said(ask(daemon, prompt, model, n, cache_salt=str(len(known)) + "."))
        return known[key]

    yield of
    assert daemon.stop() == 0


@pytest.fixture
def disk(tmp_path):
    return tmp_path / "kv"


def filled(launch, disk, prompts, config=None):
    """A daemon that answered these prompts and stopped."""
    d = start(launch, config or config_of(disk=disk))
    for prompt in prompts:
        ask(d, prompt)
    d.settled()
    assert d.stop() == 0
    assert files(disk)


def test_a_prompt_is_found_again_after_a_restart(launch, alone, disk):
    prompts = [prompt_of(1), prompt_of(2)]
    filled(launch, disk, prompts)
    assert stat.S_IMODE(disk.stat().st_mode) == 0o700
    for file in disk.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    d = start(launch, config_of(disk=disk))
    for prompt in prompts:
        body = ask(d, prompt)
        assert said(body) == alone(prompt)
        assert cached(body) >= 256
    d.settled()
    assert d.stop() == 0


def test_damaged_files_are_removed_and_never_used(launch, alone, disk):
    prompt = prompt_of(3)
    filled(launch, disk, [prompt])
    rnd, damaged = random.Random(3), files(disk)
    for i, file in enumerate(damaged):
        content = bytearray(file.read_bytes())
        if i % 3 == 0:
            content[rnd.randrange(len(content))] ^= 1 << rnd.randrange(8)
        elif i % 3 == 1:
            del content[rnd.randrange(len(content)):]
        else:
            content = bytearray(rnd.randbytes(len(content)))
        file.write_bytes(content)
    before = {f.name: f.stat().st_ino for f in damaged}
    d = start(launch, config_of(disk=disk))
    body = ask(d, prompt)
    assert said(body) == alone(prompt)
    assert cached(body) == 0
    d.settled()
    assert len([f for f in files(disk) if f.stat().st_ino == before.get(f.name)]) < len(damaged)
    page = d.http.get("/metrics").text
    n_bad = int(re.search(r'^inferd_kv_disk_problems_total{what="bad"} (\d+)$', page, re.M)[1])
    assert n_bad >= 1
    told = re.compile(r"kv_disk writing=on .*bad=[1-9]")
    until = time.monotonic() + 5 * SLOW  # it is told at the next tick
    while not told.search(d.stderr()) and time.monotonic() < until:
        time.sleep(0.05)
    assert told.search(d.stderr())
    assert d.stop() == 0


def test_another_model_and_another_tenant_find_nothing(launch, alone, disk):
    tenants = [{"name": "x", "keys": ["key-of-tenant-x-0123456789"]},
               {"name": "y", "keys": ["key-of-tenant-y-0123456789"]}]
    prompt = prompt_of(4)
    config = config_of("ab", device="128MiB", disk=disk, tenants=tenants)
    d = start(launch, config)
    ask(d, prompt, key="key-of-tenant-x-0123456789")
    assert d.stop() == 0
    d = start(launch, config)
    other = ask(d, prompt, key="key-of-tenant-y-0123456789")
    model = ask(d, prompt, "b", key="key-of-tenant-x-0123456789")
    same = ask(d, prompt, key="key-of-tenant-x-0123456789")
    assert cached(other) == 0 and cached(model) == 0 and cached(same) >= 256
    assert said(other) == said(same) == alone(prompt)
    assert said(model) == alone(prompt, "b")
    assert d.stop() == 0
    names = "".join(f.name for f in disk.iterdir())
    assert "tenant" not in names


def test_a_killed_daemon_leaves_a_folder_that_can_be_used(launch, alone, disk):
    prompt = prompt_of(5)
    filled(launch, disk, [prompt])
    d = start(launch, config_of(disk=disk))
    ask(d, prompt_of(6))
    d.process.send_signal(signal.SIGKILL)
    d.process.wait()
    (disk / ("0" * 32 + ".tmp")).write_bytes(b"half")
    d = start(launch, config_of(disk=disk))
    body = ask(d, prompt)
    assert said(body) == alone(prompt) and cached(body) >= 256
    assert not list(disk.glob("*.tmp"))
    assert d.stop() == 0


def test_a_folder_that_others_can_read_is_refused(launch, disk):
    disk.mkdir(mode=0o755)
    os.chmod(disk, 0o755)
    d = launch(config_of(disk=disk), args=["--allow-dummy"], wait=None)
    assert d.process.wait(20) not in (0, 70)
    assert "kv_disk: " in d.stderr() and "755" in d.stderr() and "700" in d.stderr()


@pytest.mark.parametrize("host", ["0", "24MiB", "128MiB"])
def test_preempted_evicted_and_restarted_it_says_the_same(launch, alone, disk, host):
    """A batch request whose device is taken by urgent work again and again; its model leaves, comes back, and the
    daemon starts anew."""
    config = config_of("ab", device="40MiB", host=host, disk=disk, a={"class": "batch"}, b={"class": "high"})
    prompt, n = prompt_of(7, 300), 300
    d = start(launch, config)
    got = {}
    batch = threading.Thread(target=lambda: got.update(body=ask(d, prompt, n=n)))
    batch.start()
    urgent = 0
    while batch.is_alive() and urgent < 12:
        time.sleep(0.05)
        q = prompt_of(20 + urgent, 200)
        assert said(ask(d, q, "b")) == alone(q, "b")
        urgent += 1
    batch.join()
    assert said(got["body"]) == alone(prompt, "a", n)
    assert d.metric("inferd_preemptions_total") > 0
    again = ask(d, prompt)
    assert said(again) == alone(prompt)
    if host != "0":
        assert cached(again) >= 128
    d.settled()
    assert d.stop() == 0
    d = start(launch, config)
    body = ask(d, prompt)
    assert said(body) == alone(prompt) and cached(body) >= 128
    d.settled()
    assert d.stop() == 0


def test_keys_and_values_of_another_type_are_never_used(launch, disk):
    """A file's name said nothing of `kv_type`: f16 and bf16 are of one size, and a daemon that was started with the
    other type took the file for a damaged one, and removed it."""
    prompt = prompt_of(21)
    with_type = lambda kind, **more: config_of(limits={"kv_type": kind, **more}, disk=disk)
    said_by, kinds = {}, ("f16", "bf16", "int16", "int8", "f32")
    for kind in kinds:
        d = start(launch, with_type(kind))
        body = ask(d, prompt)
        assert cached(body) == 0, kind
        said_by[kind] = said(body)
        d.settled()
        page = d.http.get("/metrics").text
        assert int(re.search(r'^inferd_kv_disk_problems_total{what="bad"} (\d+)$', page, re.M)[1]) == 0, kind
        while d.metric("inferd_kv_disk_queued_blocks") > 0:  # the disk may be slow
            time.sleep(0.02)
        assert d.stop() == 0
    found = {}
    for kind in kinds:  # each still finds its own, unless computing is faster than reading, as it may be for f32
        d = start(launch, with_type(kind))
        body = ask(d, prompt)
        found[kind] = cached(body)
        assert said(body) == said_by[kind]
        page = d.http.get("/metrics").text
        assert int(re.search(r'^inferd_kv_disk_problems_total{what="bad"} (\d+)$', page, re.M)[1]) == 0, kind
        d.settled()
        assert d.stop() == 0
    assert sum(n >= 256 for n in found.values()) >= 3, found
    assert len({str(s) for s in said_by.values()}) == len(kinds)
