"""cpu_serve - the servers that are compared: started, stopped for a while, weighed, ended.

A server is a process with children; it is paused, continued and weighed as a whole.  One works at a
time: whoever is not measured is paused, because threads that poll would take time from the other."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

READY_S = 900  # vLLM compiles its model


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tree(pid):
    """pid and its descendants."""
    children = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for p in found:
        found += children.get(p, [])
    return found


def state(pid):
    """One letter, as /proc tells it; X: gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "X"


def cpu_s(pid):
    """CPU time of one process, with that of children that ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(int(n) for n in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0


def machine_s():
    """(time, time that was not idle, the host's among it) of all CPUs together."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return tuple(n / os.sysconf("SC_CLK_TCK") for n in (sum(ticks), sum(ticks) - ticks[3] - ticks[4]))


def pss_bytes(pid):
    """Memory of one process, pages that others map too divided among them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


class Server:
    """A command that serves on `port`.  `model` is what requests name; `files` are read first, so that
    they are in the page cache when it starts.  `key`: of a tenant, where the server wants one."""

    def __init__(self, name, argv, port, model, files, log, env=None, key=None):
        self.name, self.argv, self.port, self.model = name, [str(a) for a in argv], port, model
        self.files, self.log, self.env, self.key = files, log, env or {}, key
        self.url = f"http://127.0.0.1:{port}"
        self.process = None

    def start(self):
        """Milliseconds from here to the first token of an answer."""
        for path in self.files:
            with open(path, "rb") as f:
                while f.read(1 << 24):
                    pass
        with open(self.log, "ab") as log:
            begin = time.monotonic()
            self.process = subprocess.Popen(self.argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                            start_new_session=True, env={**os.environ, **self.env})
        while not self.first_token():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with status {self.process.returncode}: {self.last_words()}")
            if time.monotonic() - begin > READY_S:
                raise RuntimeError(f"{self.name} is not ready after {READY_S} s: {self.last_words()}")
            time.sleep(0.002)
        return (time.monotonic() - begin) * 1e3

    def cpu_s(self):
        return sum(cpu_s(pid) for pid in tree(self.process.pid))

    def first_token(self):
        """Ask for one token of a short prompt; false: not listening, or not ready."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_S)
        try:
            body = {"model": self.model, "prompt": list(range(300, 310)), "max_tokens": 1, "temperature": 0,
                    "stream": True}
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status in (404, 503):  # no model yet
                return False
            if answer.status != 200:
                raise RuntimeError(f"{self.name} answered {answer.status}: {answer.read(500)!r}")
            return answer.readline().startswith(b"data:")
        except (ConnectionError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def signal(self, number):
        for pid in tree(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def pause(self):
        """Stopped when this returns, not a little later."""
        self.signal(signal.SIGSTOP)
        end = time.monotonic() + 5
        while any(state(pid) not in "TXZ" for pid in tree(self.process.pid)):
            if time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not stop")
            time.sleep(0.001)

    def resume(self):
        self.signal(signal.SIGCONT)

    def pss(self):
        return sum(pss_bytes(pid) for pid in tree(self.process.pid))

    @contextlib.contextmanager
    def weighed(self):
        """The greatest pss seen in the block, as the one item of a list."""
        most, done = [self.pss()], threading.Event()

        def look():
            while not done.wait(0.25):
                most[0] = max(most[0], self.pss())

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield most
        finally:
            done.set()
            thread.join()
            most[0] = max(most[0], self.pss())

    def last_words(self):
        return self.log.read_text(errors="replace")[-2000:]

    def end(self):
        """Nothing of it is left when this returns: its session is a process group of its own."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.resume()
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            for _ in range(500):
                os.killpg(self.process.pid, 0)
                time.sleep(0.01)


@contextlib.contextmanager
def started(*servers):
    """Started one after the other, each alone and then paused; ended in any case.  Yields the
    milliseconds to each one's first token."""
    try:
        times = []
        for server in servers:
            times.append(server.start())
            server.pause()
        yield times
    finally:
        for server in servers:
            server.end()
