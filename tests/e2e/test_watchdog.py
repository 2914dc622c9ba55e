"""A loop that hangs ends the process with a status of its own; a service manager is told how it is.

A thread is made to hang by ptrace: its parent, the test, stops that one thread wherever it is."""

import contextlib
import ctypes
import os
import re
import signal
import shutil
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from conftest import BUILD, ROOT, SLOW, model_config, skip

STUCK = 71
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000  # wait for threads, too
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
WORK = {"model": "tiny", "prompt": "x", "max_tokens": 1500, "ignore_eos": True, "n": 8}


def ptrace(what, tid):
    if libc.ptrace(what, tid, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def wait_for(d, tid):
    """The next status of a traced thread: that it is stopped, or has ended with its process."""
    end = time.monotonic() + 60 * SLOW
    while time.monotonic() < end:
        if os.waitpid(tid, WALL | os.WNOHANG)[0] == tid:
            return
        time.sleep(0.01)
    d.process.kill()
    raise AssertionError(f"thread {tid} goes on: " + d.stderr()[-3000:])


def hang(d, tid):
    """Stop this thread, and only this one, until its process ends."""
    ptrace(PTRACE_SEIZE, tid)
    ptrace(PTRACE_INTERRUPT, tid)
    wait_for(d, tid)


def threads(pid, name):
    return [int(t.name) for t in Path(f"/proc/{pid}/task").iterdir() if (t / "comm").read_text().strip() == name]


def status_of(d, tid):
    """How it ends; a traced thread other than the first is waited for by itself."""
    if tid != d.process.pid:
        wait_for(d, tid)
    return d.process.wait(60 * SLOW)


def watchdog_lines(d):
    return [line for line in d.stderr().splitlines() if " event=watchdog " in line]


def limits(**more):
    return {"limits": {"watchdog_s": 1, **more}}


ROOMY = limits(watchdog_s=3)  # where it must not come, on a machine that is busy


def test_a_front_that_hangs_ends_the_process(launch, tiny_model):
    d = launch({**model_config(tiny_model, "tiny"), **limits()})
    hang(d, d.process.pid)
    assert status_of(d, d.process.pid) == STUCK
    line, = watchdog_lines(d)
    assert " level=error " in line and " loop=front " in line and " exit_status=71" in line
    assert " where=" in line and " silent_ms=1" in line
    d.stop()


@pytest.mark.parametrize("which", ["inferd-engine", "inferd-compute"])
def test_an_engine_that_hangs_ends_the_process(launch, tiny_model, which):
    """By itself, or because a thread that computes for it does not come back: then it is in a step."""
    d = launch({**model_config(tiny_model, "tiny"), **limits()})
    tid, *_ = threads(d.process.pid, which)
    with contextlib.suppress(httpx.HTTPError), d.http.stream("POST", "/v1/completions", json={**WORK, "stream": True}) as r:
        lines = r.iter_lines()
        next(lines)
        hang(d, tid)
        assert status_of(d, tid) == STUCK
    line, = watchdog_lines(d)
    assert ' loop="engine ' in line and " where=" in line, line
    if which == "inferd-compute":
        assert re.search(' where="(model_forward|sample_batch|step_finish) tiny" ', line), line
    d.stop()


def test_a_stopped_process_goes_on(launch, tiny_model):
    """SIGSTOP, a debugger, a laptop that slept: no loop has beaten for longer than the limit, and none hangs."""
    d = launch({**model_config(tiny_model, "tiny"), **ROOMY})
    with d.http.stream("POST", "/v1/completions", json={**WORK, "stream": True}) as r:
        lines = r.iter_lines()
        next(lines)
        d.process.send_signal(signal.SIGSTOP)
        time.sleep(5)  # of a limit of 3 s
        d.process.send_signal(signal.SIGCONT)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert not watchdog_lines(d)
    assert d.stop() == 0


def test_a_load_that_takes_longer_than_the_limit_goes_on(launch, tmp_path):
    """Weights of gigabytes come in pieces, and each piece beats."""
    d = launch({**model_config("dummy:qwen3-0.6b", "tiny", memory="2GiB"), **ROOMY}, args=("--allow-dummy",))
    for _ in range(3):
        assert d.http.post("/v1/completions", json={**WORK, "max_tokens": 8, "n": 1}).status_code == 200
    assert not watchdog_lines(d)
    assert d.stop() == 0


def test_0_watches_nothing(launch, tiny_model):
    d = launch({**model_config(tiny_model, "tiny"), **limits(watchdog_s=0)})
    hang(d, d.process.pid)
    time.sleep(2)
    assert d.alive()
    d.process.kill()
    status_of(d, d.process.pid)
    assert not watchdog_lines(d)


# ---- the service manager ----

class Manager:
    """What systemd is for a service of Type=notify."""

    def __init__(self, name):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(name.replace("@", "\0", 1))
        self.env = {"NOTIFY_SOCKET": name}

    def next(self):
        self.s.settimeout(60 * SLOW)
        return self.s.recv(4096).decode().split("\n")

    def next_but(self, unwanted):
        end = time.monotonic() + 60 * SLOW
        while (lines := self.next()) == [unwanted]:
            assert time.monotonic() < end, f"nothing but {unwanted}"
        return lines

    def fill(self):
        """Until there is no room for more."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.connect(self.s.getsockname())
            with contextlib.suppress(BlockingIOError):
                while True:
                    s.send(b"X=1")

    def all_for(self, seconds):
        got, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.s.settimeout(left)
            with contextlib.suppress(TimeoutError):
                got.append(self.s.recv(4096).decode())
        return got


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    return Manager(str(tmp_path / "notify") if request.param == "path" else f"@inferd-test-{os.getpid()}")


def test_a_manager_is_told(launch, tiny_model, manager):
    d = launch(model_config(tiny_model, "tiny"), env={**manager.env, "WATCHDOG_USEC": "400000"})
    assert manager.next_but("WATCHDOG=1") == ["READY=1"]
    assert d.http.get("/ready").status_code == 200
    assert manager.all_for(2).count("WATCHDOG=1") >= 2
    d.process.send_signal(signal.SIGHUP)
    reloading, at = manager.next_but("WATCHDOG=1")
    assert reloading == "RELOADING=1" and at.startswith("MONOTONIC_USEC=")
    assert abs(int(at.split("=")[1]) - time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000) < 100e6 * SLOW
    assert manager.next_but("WATCHDOG=1") == ["READY=1"]
    d.process.send_signal(signal.SIGTERM)
    assert manager.next_but("WATCHDOG=1") == ["STOPPING=1"]
    assert manager.next_but("WATCHDOG=1") == ["EXTEND_TIMEOUT_USEC=45000000"]  # drain_timeout_s, and what is left
    assert d.stop() == 0


def test_what_a_busy_manager_is_told_is_not_lost(launch, tiny_model, manager):
    """A manager that had not read for a while never heard READY, because sending it was given up after a second,
    for which the front waited."""
    manager.fill()
    d = launch(model_config(tiny_model, "tiny"), env={**manager.env, "WATCHDOG_USEC": "400000"})
    d.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 60 * SLOW
    while d.metric("inferd_config_reloads_total") == 0:
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(1.5)
    states = []
    while len(states) < 3:
        lines = manager.next_but("X=1")
        states += [] if lines == ["WATCHDOG=1"] else lines[:1]
    assert states == ["READY=1", "RELOADING=1", "READY=1"]
    manager.fill()
    d.process.send_signal(signal.SIGTERM)
    assert d.stop() == 0


@pytest.mark.parametrize("manager", ["path"], indirect=True)
def test_a_manager_is_not_told_of_a_loop_that_hangs(launch, tiny_model, manager):
    """With a limit of ours the process would end by itself; without one the manager's counts."""
    d = launch({**model_config(tiny_model, "tiny"), **limits(watchdog_s=0)},
               env={**manager.env, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "0"})
    assert manager.next() == ["READY=1"]
    assert manager.all_for(1.5) == []  # it is meant for another process
    assert d.stop() == 0
    assert manager.next() == ["STOPPING=1"]
    assert manager.next() == ["EXTEND_TIMEOUT_USEC=45000000"]
    d = launch({**model_config(tiny_model, "tiny"), **limits(watchdog_s=0)},
               env={**manager.env, "WATCHDOG_USEC": "1000000"})
    assert manager.next_but("WATCHDOG=1") == ["READY=1"]
    hang(d, d.process.pid)
    time.sleep(2)
    manager.all_for(0.1)
    assert manager.all_for(2) == []
    assert d.alive()
    d.process.kill()
    status_of(d, d.process.pid)


def test_a_manager_that_is_not_there_is_no_reason_not_to_serve(launch, tiny_model, tmp_path):
    for name in (str(tmp_path / "nobody"), "relative", "@" + "x" * 200, ""):
        d = launch(model_config(tiny_model, "tiny"), env={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
        assert ("event=sd_notify" in d.stderr()) == (name != ""), d.stderr()
        assert d.stop() == 0


def test_the_sample_unit_is_sound(tmp_path):
    if shutil.which("systemd-analyze") is None:
        skip("systemd-analyze is not there")
    text = (ROOT / "deploy" / "inferd.service").read_text()
    unit = tmp_path / "inferd.service"
    unit.write_text(text.replace("/usr/bin/inferd", str(BUILD / "inferd")))
    r = subprocess.run(["systemd-analyze", "--man=no", "verify", unit], capture_output=True, text=True)
    assert (r.returncode, r.stdout + r.stderr) == (0, "")
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", unit], capture_output=True,
                       text=True)
    assert r.returncode == 0, r.stdout[-300:]  # above 2.0
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert settings["Type"] == "notify" and int(settings["WatchdogSec"]) > 30  # limits.watchdog_s
    assert int(settings["LimitNOFILE"]) >= 10240 + 384  # limits.connections_max
    assert set(settings["RestartPreventExitStatus"].split()) == {"1", "2", "3"}
