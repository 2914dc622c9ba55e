"""`inferd ctl top` on a terminal: tmux is the terminal, and its screen is what a person sees."""

import contextlib
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time

import httpx
import pytest

from conftest import BUILD, SLOW, skip

ADMIN = "admin-key-0123456789"
NAMES = ["chat", "code世界", "night"]


class Terminal:
    """A shell command in tmux."""

    def __init__(self, folder, command, width=100, height=30, **env):
        self.socket = folder / f"tmux-{time.monotonic_ns()}"
        base = {k: v for k, v in os.environ.items() if k not in ("TMUX", "NO_COLOR", "LANG", "LC_CTYPE")}
        self.env = {**base, "LC_ALL": "C.UTF-8"}
        words = " ".join(f"{k}={shlex.quote(v)}" for k, v in env.items())
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height),
                  f"before=$(stty -g); {words} {command}; echo EXIT $?; [ \"$before\" = \"$(stty -g)\" ] && echo SAME; cat")

    def tmux(self, *args):
        return subprocess.run(["tmux", "-S", self.socket, *args], check=True, env=self.env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    def screen(self):
        return self.tmux("capture-pane", "-p")

    def until(self, *patterns, absent=None, timeout=20 * SLOW):
        """The screen, once it has all the patterns, and not `absent`."""
        end = time.monotonic() + timeout
        while True:
            screen = self.screen()
            missing = [p for p in patterns if not re.search(p, screen, re.M)]
            if not missing and (absent is None or not re.search(absent, screen, re.M)):
                return screen
            assert time.monotonic() < end, f"no {missing}, or there is {absent!r}:\n{screen}"
            time.sleep(0.02)

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def ended(self):
        """Its exit status; the terminal has its own mode, screen and cursor."""
        screen = self.until(r"EXIT \d", "^SAME")
        assert self.tmux("display", "-p", "#{alternate_on} #{cursor_flag}") == "0 1\n"
        return int(re.search(r"EXIT (\d+)", screen).group(1))

    def close(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")


@pytest.fixture
def terminal(tmp_path):
    """A function that runs `inferd ctl ...` on a terminal."""
    if shutil.which("tmux") is None:
        skip("tmux is not installed")
    opened = []

    def begin(*args, **kw):
        opened.append(Terminal(tmp_path, shlex.join([str(BUILD / "inferd"), "ctl", *map(str, args)]), **kw))
        return opened[-1]
    yield begin
    for t in opened:
        t.close()


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """Three models on a device with room for one of them and its KV."""
    folder = tmp_path_factory.mktemp("top")
    for i, name in enumerate(NAMES):
        subprocess.run([BUILD / "tests" / "tiny_model", folder / f"{i}.gguf", str(i + 20)], check=True)
    return {"devices": [{"kind": "cpu", "memory": "4MiB", "threads": 1}], "host_arena": 0,
            "admin": {"listen": f"unix:{folder}/admin.sock", "key": ADMIN},
            "models": [{"name": n, "path": str(folder / f"{i}.gguf")} for i, n in enumerate(NAMES)],
            "tenants": [{"name": "shop", "key": "tenant-key-0123456789", "share": 50}]}


class Served:
    def __init__(self, daemon, path):
        self.daemon, self.path = daemon, path
        self.admin = httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost",
                                  timeout=60 * SLOW)

    def model(self, name):
        return self.admin.get(f"/admin/models/{name}").json()

    def until(self, name, what, timeout=20 * SLOW):
        end = time.monotonic() + timeout
        while not what(m := self.model(name)):
            assert time.monotonic() < end, m
            time.sleep(0.02)

    def load(self, name):
        assert self.admin.post(f"/admin/models/{name}/load", json={"wait": True}).status_code == 200


@pytest.fixture(scope="module")
def served(launch, configured):
    return Served(launch(configured), configured["admin"]["listen"].removeprefix("unix:"))


def order(screen):
    return re.findall(r"^[> ] (chat|code世界|night) ", screen, re.M)


def test_the_screen_shows_the_state_and_sorts_it(terminal, served):
    t = terminal("--socket", served.path, "top")
    screen = t.until("^inferd [0-9]", "^tokens/s ", r"^cpu0 +steps ", r"^\[W+", "^ free .*Weights", "^shop ", "^EVENTS")
    assert set(order(screen)) == set(NAMES)
    assert re.search("\033\\[3[0-7]", t.tmux("capture-pane", "-p", "-e"))  # colours
    t.keys("1")
    assert order(t.until("sorted by name$")) == ["chat", "code世界", "night"]
    t.keys("S")
    assert order(t.until("sorted by name, reversed$")) == ["night", "code世界", "chat"]
    t.keys("Home")
    t.until("^> night ")
    t.keys("Down")
    t.until("^> code世界 ")
    t.keys("End")
    t.until("^> chat ")
    t.keys("?")
    t.until("^KEYS", "PgUp")
    t.keys("Escape")
    t.until("^EVENTS", absent="^KEYS")
    t.keys("Enter")
    t.until("^MODEL chat$", "context .* tokens")
    t.keys("Enter")
    t.until("^EVENTS")
    rows = [line for line in t.screen().splitlines() if " normal " in line]
    assert len({line.index(" normal ") + line.count("世") + line.count("界") for line in rows}) == 1  # in columns
    t.tmux("resize-window", "-x", "80", "-y", "24")
    screen = t.until("^> chat .*", absent=".{81}")
    assert screen.rstrip("\n").splitlines()[23].startswith("q quit")
    t.keys("q")
    assert t.ended() == 0


def confirm(t, command, sentence=""):
    t.until(f"^{command}: {sentence}", "y/n$", "^y yes")
    t.keys("y")
    t.until(f"^{command}: accepted; its state is ")


def test_commands_are_confirmed_and_have_their_effect(terminal, served):
    served.load("chat")
    t = terminal("--socket", served.path, "top")
    t.until("^> ")
    t.keys("1", "End")
    t.until("^> night ")
    t.keys("l")
    t.until(r"^load night: evicts chat \(.* idle .*\), about .*y/n", "^y yes  n no")
    t.keys("P")
    t.until("^PLAN OF night", "evicts +chat ", r"^load night: evicts chat \(.*y/n", "^y yes  n no")
    t.keys("n")
    t.until("^nothing was sent")
    assert served.model("night")["state"] == "cold"
    t.keys("l")
    confirm(t, "load night")
    served.until("night", lambda m: m["state"] == "hot")
    t.until("^> night +hot ", "loaded night from its file", "evicted chat")

    t.keys("p")
    t.until("^pin night, which is pinned none: h hot")
    t.keys("h")
    confirm(t, "pin hot night")
    served.until("night", lambda m: m["pin"] == "hot")
    t.until("^> night +hot +hot ")
    t.keys("p")
    t.until("^pin night, which is pinned hot: h hot")
    t.keys("u")
    confirm(t, "unpin night")
    served.until("night", lambda m: m["pin"] == "none")

    t.keys("d")
    confirm(t, "drain night", "it has no requests; new ones are refused with 503")
    served.until("night", lambda m: m["held"] and m["state"] == "cold")
    t.until("^> night +drained ")
    t.keys("D")
    confirm(t, "undrain night")
    served.until("night", lambda m: not m["held"] and m["state"] == "hot")
    t.keys("u")
    confirm(t, "unload night", "it has no requests; then it leaves the device")
    served.until("night", lambda m: m["state"] == "cold")
    t.keys("P")
    t.until("^PLAN OF night", "^night fits", "ok  device")


def test_a_refusal_is_shown(terminal, served):
    t = terminal("--socket", served.path, "top", width=80, height=24)
    t.until("^> ")
    t.keys("1", "Home", "p")
    t.until("^pin chat, ")
    t.keys("w")
    t.until("^pin warm chat: .*y/n")
    t.keys("y")
    t.until("^pin warm chat: refused: .*host")
    assert served.model("chat")["pin"] == "none"


def test_it_goes_on_when_the_daemon_comes_back(terminal, launch, configured, tmp_path):
    path = tmp_path / "a.sock"
    config = {**configured, "admin": {"listen": f"unix:{path}"}}
    d = launch(config)
    t = terminal("--socket", path, "top")
    t.until("^> ")
    d.process.send_signal(signal.SIGKILL)
    d.process.wait()
    t.until(r"^no answer since \d\d:\d\d:\d\d: ", "^> ")  # the last state stays
    t.keys("u")
    t.until("^unload ", "y/n$")
    t.keys("y")
    t.until("^unload [^:]*: /", "^refused$|No such file| refused$")
    path.unlink(missing_ok=True)
    d = launch(config)
    t.until(r"^inferd \S+  up [0-9.]+ m?s|^inferd \S+  up 0", absent="no answer since")
    t.keys("j")
    t.keys("q")
    assert t.ended() == 0
    assert d.stop() == 0


@pytest.mark.parametrize("end", ["C-c", signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(terminal, served, end):
    t = terminal("--socket", served.path, "top")
    t.until("^> ")
    if end == "C-c":
        t.keys(end)
    else:
        shell = t.tmux("display", "-p", "#{pane_pid}").strip()
        children = subprocess.run(["ps", "--ppid", shell, "-o", "pid=,comm="], check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
        os.kill(int(re.search(r"(\d+) inferd", children).group(1)), end)
    assert t.ended() == 0


def test_over_tcp_with_a_key_and_what_is_refused(terminal, served):
    url = served.daemon.url
    t = terminal("--url", url, "top", INFERD_ADMIN_KEY=ADMIN, NO_COLOR="1")
    t.until("^> ", "^shop ")
    assert not re.search("\033\\[3[0-7]", t.tmux("capture-pane", "-p", "-e"))  # no colour
    t.keys("q")
    assert t.ended() == 0
    t = terminal("--url", url, "top", INFERD_ADMIN_KEY="wrong-key-0123456789")
    assert t.ended() == 1
    assert "GET /admin/watch has status 401" in t.screen() and "--every" not in t.screen()
    t = terminal("--socket", served.path + "-not", "top")
    assert t.ended() == 3


def test_without_a_place_among_the_viewers_it_says_so(terminal, served):
    viewers = []
    for _ in range(16):
        s = socket.socket(socket.AF_UNIX)
        s.connect(served.path)
        s.sendall(b"GET /admin/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        viewers.append(s)
    for s in viewers:
        assert s.recv(1000).startswith(b"HTTP/1.1 200 ")
    t = terminal("--socket", served.path, "top")
    assert t.ended() == 1
    assert "GET /admin/watch has status 503: 16 viewers are connected" in t.screen() and "top --every 1" in t.screen()
    for s in viewers:
        s.close()


def test_tables_remain_where_there_is_no_screen(terminal, served):
    command = [BUILD / "inferd", "ctl", "--socket", served.path, "top"]
    out = subprocess.run([*command, "--count", "1"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "REPLICAS" in out and "\033" not in out
    piped = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert piped.stdout.readline().startswith("DEVICE ")
    piped.send_signal(signal.SIGINT)
    rest = piped.communicate()[0]
    assert piped.returncode == 0 and "\033" not in rest
    for args, env in [((), {"TERM": "dumb"}), ((), {"TERM": "no-such-terminal"}), (("--every", "60"), {})]:
        t = terminal("--socket", served.path, "top", *args, **env)
        t.until("^DEVICE ", "^MODEL +STATE", absent="^> ")
        t.keys("C-c")
        assert t.ended() == 0


def test_an_interrupt_ends_the_wait_for_an_answer(tmp_path):
    """It was taken as a flag that nothing looked at before the answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "silent.sock"))
        listener.listen()
        top = subprocess.Popen([BUILD / "inferd", "ctl", "--socket", tmp_path / "silent.sock", "top", "--every", "1"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = listener.accept()
        assert connection.recv(4) == b"GET "
        top.send_signal(signal.SIGINT)
        assert top.communicate(timeout=30) == ("", "") and top.returncode == 0
        connection.close()


@pytest.mark.parametrize("words", [["state"], ["models"], ["--json", "tenants"], ["config", "get"], ["plan", "--load", "chat"],
                                   ["load", "chat"], ["set", "model", "chat", "weight=1"], ["top", "--every", "0.1"],
                                   ["top", "--count", "1"]])
def test_output_that_cannot_be_written_is_a_failure(served, words):
    command = [BUILD / "inferd", "ctl", "--socket", served.path, *words]
    with open("/dev/full", "w") as full:
        r = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
    assert (r.returncode, r.stderr) == (1, "inferd: standard output: No space left on device\n")


def test_a_closed_pipe_ends_the_tables_without_a_message(served):
    """Also where SIGPIPE is ignored, as in a service or under `trap '' PIPE`."""
    reader, writer = os.pipe()
    top = subprocess.Popen([BUILD / "inferd", "ctl", "--socket", served.path, "top", "--every", "0.1"], stdout=writer,
                           stderr=subprocess.PIPE, text=True, restore_signals=False)  # Python ignores SIGPIPE
    os.close(writer)
    assert os.read(reader, 7) == b"DEVICE "
    os.close(reader)
    assert top.communicate(timeout=60 * SLOW)[1] == "" and top.returncode == 1


@pytest.mark.parametrize("term", [None, "", "dumb", "xterm"])
def test_tables_have_escape_sequences_only_for_a_terminal_with_a_name(served, term):
    env = {k: v for k, v in os.environ.items() if k != "TERM"} | ({} if term is None else {"TERM": term})
    ours, theirs = pty.openpty()
    top = subprocess.Popen([BUILD / "inferd", "ctl", "--socket", served.path, "top", "--count", "2", "--every", "0.1"],
                           stdin=theirs, stdout=theirs, env=env)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(ours, 65536):
            said += piece
    os.close(ours)
    assert top.wait() == 0 and said.count(b"DEVICE  ") >= 2
    assert said.count(b"\033") == (4 if term == "xterm" else 0)
