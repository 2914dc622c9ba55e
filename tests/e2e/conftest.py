"""Fixtures: a daemon under test, driven from outside as a user would."""

import atexit
import concurrent.futures
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("INFERD_BUILD", ROOT / "build"))
SANITIZE = os.environ.get("INFERD_SANITIZE", "")
SHARED = Path(os.environ.get("INFERD_SHARED", ROOT.parent / "shared"))
# A client that many threads share closes no idle connection: another thread may just have taken it.
KEEP_ALL = httpx.Limits(max_connections=None, max_keepalive_connections=None)
SLOW = 10 if SANITIZE else 1  # how much longer things may take
# Daemons without admin.listen put their socket there, not where one of this machine may have it.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="inferd-runtime-")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)


def skip(why):
    """Skip, or fail where skips are not allowed."""
    if os.environ.get("INFERD_TEST_NO_SKIP") == "1":
        pytest.fail("skip not allowed: " + why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def shared():
    if not SHARED.is_dir():
        skip("the folder with reference data is not there")
    return SHARED


@pytest.fixture(scope="session")
def real_model():
    path = os.environ.get("INFERD_TEST_MODEL", "")
    if not path or not Path(path).is_file():
        skip("INFERD_TEST_MODEL does not name the real model")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A tiny random model with a byte-level BPE vocabulary and a ChatML template."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    subprocess.run([BUILD / "tests" / "tiny_model", path, "7"], check=True)
    return str(path)


@contextlib.contextmanager
def flooding(n, what):
    """While the block runs, n threads call what(i) again and again.  They end with it, also when it fails; what they
    raise fails the test."""
    stop = threading.Event()

    def again(i):
        while not stop.is_set():
            what(i)

    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        works = [pool.submit(again, i) for i in range(n)]
        try:
            yield
        finally:
            stop.set()
    for w in works:
        w.result()


def merge_books(a, b):
    if isinstance(a, bool) or isinstance(b, str):
        return a
    if isinstance(a, dict):
        return {k: merge_books(v, b[k]) for k, v in a.items()}
    return a + b


class Daemon:
    """`inferd serve` on a free port, and what a test wants to know about its process."""

    def __init__(self, config, folder, args=(), wait="ready", env=None, program=BUILD / "inferd"):
        self.config_path = folder / f"config-{time.monotonic_ns()}.json"
        self.log_path = self.config_path.with_suffix(".log")
        config = {"listen": "127.0.0.1:0", **config}
        self.config_path.write_text(json.dumps(config))
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [program, "serve", "--config", self.config_path, *args],
            stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, **(env or {})})
        self.url = None
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout=60 * SLOW):
        line = self.process.stdout.readline().decode()
        found = re.search(r"https?://\S+?:(\d+)", line)
        assert found, f"no ready line: {line!r} {self.stderr()[-3000:]}"
        self.ready_line = line
        self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self.http.get("/ready").status_code == 200:
                return
            time.sleep(0.02)
        raise AssertionError("not ready: " + self.stderr()[-3000:])

    @property
    def http(self):
        if not hasattr(self, "_http"):
            self._http = httpx.Client(base_url=self.url, timeout=120 * SLOW, limits=KEEP_ALL)
        return self._http

    def openai(self, key="none", **kw):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key,
                             **{"max_retries": 0, "timeout": 120 * SLOW, **kw})

    @property
    def model(self):
        return self.http.get("/v1/models").json()["data"][0]["id"]

    def stderr(self):
        return self.log_path.read_text(errors="replace")

    def books(self):
        """The books of every device, checked."""
        answer = self.http.get("/debug/audit")
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["ok"] and all(d["ok"] for d in body["devices"]), body
        return body["devices"]

    def audit(self):
        """The books of the only device, or of all together: numbers are sums, lists one behind the other."""
        return functools.reduce(merge_books, self.books())

    def settled(self, timeout=10 * SLOW):
        """Wait until nothing runs and no block is referenced; the audit then."""
        end = time.monotonic() + timeout
        while True:
            body = self.audit()
            s = body["sequences"]
            if s["running"] == 0 and s["waiting"] == 0 and body["blocks_referenced"] == 0:
                return body
            assert time.monotonic() < end, body
            time.sleep(0.02)

    def metric(self, name):
        """Sum of all samples of a metric."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            if line.split("{")[0].split(" ")[0] == name:
                total += float(line.rsplit(" ", 1)[1])
        return total

    def memory(self, name):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no " + name)

    def rss(self):
        return self.memory("VmRSS")

    def peak_rss(self):
        return self.memory("VmHWM")  # since its start

    def rss_at_rest(self):
        """RSS when the pages ahead of use have been touched, which is done while nothing is computed."""
        rss = 0
        while self.rss() > rss + (1 << 18):
            rss = self.rss()
            time.sleep(0.5)
        return self.rss()

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def alive(self):
        return self.process.poll() is None

    def stop(self, sig=signal.SIGTERM, timeout=60 * SLOW):
        """Stop it and return its exit status; a sanitizer report fails the test."""
        if hasattr(self, "_http"):
            self._http.close()
        if self.alive():
            self.process.send_signal(sig)
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("does not stop: " + self.stderr()[-3000:])
        self.log.close()
        said = "" if self.process.stdout.closed else self.process.stdout.read().decode(errors="replace")
        self.process.stdout.close()
        for text in (self.stderr(), said):  # on stdout: the emulated device
            for report in ("Sanitizer", "runtime error:", "check failed:", "fake: "):
                assert report not in text, text[-6000:]
        return status


@pytest.fixture(scope="session")
def launch(tmp_path_factory):
    """A function that starts daemons; what still runs at the end is stopped and must exit 0."""
    folder = tmp_path_factory.mktemp("daemon")
    started = []

    def start(config, **kw):
        d = Daemon(config, folder, **kw)
        started.append(d)
        return d

    yield start
    for d in started:
        if d.alive():
            assert d.stop() == 0, d.stderr()[-3000:]


def model_config(path, name="m", **more):
    return {"devices": [{"kind": "cpu", "memory": more.pop("memory", "256MiB"),
                         "cpu_math": more.pop("cpu_math", "fast")}],
            "models": [{"name": name, "path": str(path), **more.pop("model", {})}],
            **more}


@pytest.fixture(scope="session")
def tiny(launch, tiny_model):
    """One tiny daemon shared by tests that leave it as it was."""
    return launch(model_config(tiny_model, "tiny", model={"aliases": ["small"]}))


@pytest.fixture(scope="session")
def real(launch, real_model):
    return launch(model_config(real_model, "smollm2", memory="1GiB"))
