"""A service manager passes listening sockets (LISTEN_FDS): the daemon uses them, and a restart loses no request."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from conftest import BUILD, SLOW, model_config

# What systemd does before it executes a service: the sockets from descriptor 3 on, and three variables.
PASS = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(f), fcntl.F_DUPFD, 50) for f in sys.argv[1].split(",")]
for at, fd in enumerate(fds):
    os.dup2(fd, 3 + at)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=sys.argv[2])
os.environ.update(dict(v.split("=", 1) for v in sys.argv[3].split()))
os.execv(sys.argv[4], sys.argv[4:])
"""


def listening(address=("127.0.0.1", 0), family=socket.AF_INET):
    s = socket.socket(family)
    s.bind(address)
    s.listen(4096)
    return s


class Service:
    """Starts daemons with the same sockets, one after the other."""

    def __init__(self, folder, tiny_model, sockets, names, **config):
        self.sockets, self.names, self.env = sockets, names, ""
        self.path, self.log = folder / "inferd.json", folder / "log"
        config = {"admin": {"listen": f"unix:{folder}/own-admin.sock"}, **config}
        self.path.write_text(json.dumps({**model_config(tiny_model, "tiny"), **config}))

    def start(self, ready=True):
        fds = [s.fileno() for s in self.sockets]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PASS, ",".join(map(str, fds)), self.names, self.env, BUILD / "inferd", "serve", self.path],
                pass_fds=fds, stdout=subprocess.PIPE, stderr=log)
        if ready:
            line = self.process.stdout.readline()
            assert b"inferd serves" in line, self.said()
        return self

    def said(self):
        return self.log.read_text()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self):
        with self.process.stdout:
            return self.process.wait(60 * SLOW)


@pytest.fixture
def service(tmp_path, tiny_model):
    made = []

    def make(sockets, names="inferd.socket", **config):
        made.append(Service(tmp_path, tiny_model, sockets, names, **config))
        return made[-1]

    yield make
    for s in made:
        if s.process.poll() is None:
            s.process.kill()
            s.process.wait()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def ask(connection, method="GET", path="/ready", body=None):
    connection.request(method, path, body=body and json.dumps(body), headers={"Content-Type": "application/json"})
    r = connection.getresponse()
    return r.status, r.read(), r.getheader("Connection")


WORK = {"model": "tiny", "prompt": "a b c", "max_tokens": 12, "ignore_eos": True}


def test_a_restart_loses_no_request(service):
    """Clients with a connection for each request, and clients that keep theirs, go on through three restarts: each request
    is answered with 200.  A process that drains without a passed socket refuses new work with 503."""
    with listening() as s:
        address = s.getsockname()
        d = service([s]).start()
        done, statuses = threading.Event(), []

        def fresh():
            while not done.is_set():
                with contextlib.closing(http.client.HTTPConnection(*address, timeout=60 * SLOW)) as c:
                    statuses.append(ask(c, "POST", "/v1/completions", WORK)[0])

        def kept():
            c = http.client.HTTPConnection(*address, timeout=60 * SLOW)
            while not done.is_set():
                status, _, connection = ask(c, "POST", "/v1/completions", WORK)
                statuses.append(status)
                if connection == "close":  # said by a daemon that drains
                    c.close()
            c.close()

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            clients = [pool.submit(f) for f in (fresh, fresh, fresh, kept, kept, kept)]
            try:
                for _ in range(3):
                    before = len(statuses)
                    while len(statuses) < before + 10 and not any(c.done() for c in clients):
                        done.wait(0.01)
                    assert d.stop() == 0, d.said()
                    d.start()
            finally:
                done.set()
        for c in clients:
            c.result()  # raises what the client met: a refused, reset or half answered request
        assert set(statuses) == {200}
        assert d.stop() == 0
        assert d.said().count("event=socket_passed for=requests") == 4


def test_new_connections_wait_for_the_next_process(service):
    with listening() as s:
        d = service([s]).start()
        idle = http.client.HTTPConnection(*s.getsockname(), timeout=60 * SLOW)
        assert ask(idle)[0] == 200
        stream = http.client.HTTPConnection(*s.getsockname(), timeout=60 * SLOW)
        stream.request("POST", "/v1/completions", json.dumps({**WORK, "max_tokens": 400, "stream": True}),
                       {"Content-Type": "application/json"})
        answer = stream.getresponse()
        answer.read(10)
        d.process.send_signal(signal.SIGTERM)
        while "event=drain" not in d.said():
            assert d.process.poll() is None
        status, body, connection = ask(idle, "POST", "/v1/completions", WORK)  # accepted before: answered, once
        assert (status, connection) == (200, "close"), body
        late = http.client.HTTPConnection(*s.getsockname(), timeout=60 * SLOW)
        late.request("POST", "/v1/completions", json.dumps(WORK), {"Content-Type": "application/json"})
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert d.end() == 0
        d.start()
        assert late.getresponse().status == 200
        assert d.stop() == 0


def test_the_passed_socket_wins_and_its_file_stays(service, tmp_path):
    path = str(tmp_path / "web.sock")
    with listening(path, socket.AF_UNIX) as s:
        d = service([s], listen="127.0.0.1:1").start()
        assert f'for=requests address=unix:{path} instead_of=127.0.0.1:1' in d.said()
        with contextlib.closing(UnixConnection(path)) as c:
            assert ask(c)[0] == 200
        assert d.stop() == 0
        assert os.path.exists(path)


def test_a_socket_for_administrators_has_that_name(service, tmp_path):
    path = str(tmp_path / "admin.sock")
    with listening() as s, listening(path, socket.AF_UNIX) as admin:
        d = service([s, admin], "web:admin", admin={}).start()
        with contextlib.closing(UnixConnection(path)) as c:
            assert ask(c, path="/admin/state")[0] == 200
        assert d.stop() == 0
        assert os.path.exists(path)
        d = service([s, admin], "web:admin", admin={"listen": "none"}).start(ready=False)
        assert d.end() == 1 and "admin.listen is none, and the service manager passes a socket" in d.said()


def test_what_was_meant_for_another_process_is_left(service, tmp_path):
    with listening() as s:
        d = service([s], listen=f"unix:{tmp_path}/own.sock")
        d.env = "LISTEN_PID=1"
        d.start()
        assert os.path.exists(tmp_path / "own.sock") and "socket_passed" not in d.said()
        assert d.stop() == 0


def not_listening():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    return s


BAD = [
    (lambda: [not_listening()], "web", "", "descriptor 3 (web): it is not a listening stream socket"),
    (lambda: [socket.socket(type=socket.SOCK_DGRAM)], "web", "", "it is not a listening stream socket"),
    (lambda: [open(os.devnull)], "", "", "it is not a socket"),
    (lambda: [listening(), listening()], "web:more", "", "descriptor 4 (more): there is one socket for requests already: descriptor 3"),
    (lambda: [listening()], "admin", "", "the socket of administrators must be a socket file"),
    (lambda: [listening()], "web", "LISTEN_FDS=x", 'LISTEN_FDS "x": expected 1 to 16'),
    (lambda: [listening()], "web", "LISTEN_FDS=17", 'LISTEN_FDS "17": expected 1 to 16'),
    (lambda: [listening()], "web", "LISTEN_PID=-1", 'LISTEN_PID "-1": expected a process id'),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_cannot_be_used_is_an_error(service, case):
    make, names, env, said = BAD[case]
    with contextlib.ExitStack() as stack:
        d = service([stack.enter_context(s) for s in make()], names)
        d.env = env
        d.start(ready=False)
        assert d.end() == 2 and said in d.said(), d.said()


def test_a_keyless_daemon_takes_no_socket_that_others_reach(service):
    with listening(("0.0.0.0", 0)) as s:
        d = service([s]).start(ready=False)
        assert d.end() == 1 and "the passed socket: 0.0.0.0:" in d.said() and "needs keys" in d.said()


def test_a_daemon_without_models_waits_for_a_reload(service, tiny_model):
    """The configuration of a fresh installation."""
    with listening() as s:
        d = service([s], models=[]).start()
        c = http.client.HTTPConnection(*s.getsockname(), timeout=60 * SLOW)
        assert ask(c, path="/health")[0] == 200
        status, body, _ = ask(c)
        assert (status, json.loads(body)["status"]) == (503, "no_models")
        assert ask(c, "POST", "/v1/completions", WORK)[0] == 404
        d.path.write_text(json.dumps({**json.loads(d.path.read_text()), **model_config(tiny_model, "tiny")}))
        d.process.send_signal(signal.SIGHUP)
        while ask(c)[0] != 200:
            assert d.process.poll() is None
        assert ask(c, "POST", "/v1/completions", WORK)[0] == 200
        c.close()
        assert d.stop() == 0
