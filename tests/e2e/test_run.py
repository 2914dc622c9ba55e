"""`inferd run`: a chat on a terminal, a pipe, one prompt, and exit statuses."""

import fcntl
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import termios
import time

import pytest

from conftest import BUILD, SLOW, model_config

SMALL = ("--memory", "64MiB", "--temperature", "0", "--seed", "1")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>78]|[\x07\x0f]")
LEFT, RIGHT, UP, DOWN, HOME, END, DELETE = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B", "\x1b[H", "\x1b[F", "\x1b[3~"
WELCOME = r"type a message; /help, /clear, /stats, /quit; Ctrl-C stops an answer, Ctrl-D ends\r\n"
PROMPT = r"(^|\r|\n)> $"


class Chat:
    """The program on a pseudo terminal, as its controlling terminal."""

    def __init__(self, model, *args, home=None, env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        self.mode = termios.tcgetattr(slave)
        base = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_STATE_HOME", "LANG", "LC_ALL", "LC_CTYPE")}
        base.update({"TERM": "xterm"}, **({"HOME": str(home)} if home else {}), **(env or {}))
        self.process = subprocess.Popen(
            [BUILD / "inferd", "run", model, *SMALL, *args], stdin=slave, stdout=slave, stderr=slave, env=base,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.slave = slave
        self.raw = b""
        self.seen = 0

    def text(self):
        return CONTROL.sub("", self.raw.decode(errors="replace"))

    def until(self, pattern, timeout=20 * SLOW):
        """What was printed since the last call, up to the end of the match."""
        end = time.monotonic() + timeout
        while True:
            new = self.text()[self.seen:]
            found = re.search(pattern, new)
            if found:
                self.seen += found.end()
                return new[:found.end()]
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {new!r}"
            if select.select([self.master], [], [], min(left, 0.5))[0]:
                try:
                    self.raw += os.read(self.master, 65536)
                except OSError:
                    pass
            elif self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}: no {pattern!r} in {new!r}")

    def keys(self, text):
        os.write(self.master, text.encode())

    def say(self, text, then=PROMPT):
        """Enters a line, and returns what follows its echo."""
        self.keys(text + "\r")
        self.until(r"\n")
        return self.until(then).rsplit("> ", 1)[0].replace("\r", "")

    def end(self, keys="\x04"):
        """Ends the chat, and returns its exit status; the terminal is as it was."""
        if keys:
            self.keys(keys)
        end = time.monotonic() + 60 * SLOW
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text()
            if select.select([self.master], [], [], 0.05)[0]:
                self.raw += os.read(self.master, 65536)
        assert termios.tcgetattr(self.slave) == self.mode
        while select.select([self.master], [], [], 0)[0]:
            self.raw += os.read(self.master, 65536)
        os.close(self.slave)
        os.close(self.master)
        assert "Sanitizer" not in self.text() and "runtime error" not in self.text(), self.text()
        return self.process.returncode


@pytest.fixture
def chat(tiny_model):
    chats = []

    def start(*args, model=tiny_model, **kw):
        c = Chat(model, *args, **kw)
        chats.append(c)
        c.until(WELCOME)
        c.until(PROMPT)
        return c

    yield start
    for c in chats:
        if c.process.poll() is None:
            c.process.kill()
            c.process.wait()


def pipe(model, *args, text="", merged=False, **kw):
    return subprocess.run([BUILD / "inferd", "run", model, *SMALL, *args], input=text.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT if merged else subprocess.PIPE, timeout=120 * SLOW, **kw)


# ---- a terminal ----

def test_a_chat_begins_with_one_line_and_ends_with_ctrl_d(tiny_model):
    c = Chat(tiny_model)
    first = c.until(WELCOME)
    assert re.search(r"^tiny \(F32, context \d+\): type a message", first), first
    assert first.count("\n") == 1
    c.until(PROMPT)
    assert c.end() == 0


def test_commands(chat):
    c = chat("--max-tokens", "4")
    told = c.say("/help")
    for word in ("/help", "/clear", "/stats", "/quit", "//text", "Ctrl-C"):
        assert word in told
    assert "no answer yet" in c.say("/stats")
    assert "context: 0 of" in c.say("/stats")
    assert c.say("/stast") == "/stast is not a command; did you mean /stats?; /help lists them, and //text sends a " \
                              "message that starts with a slash\n"
    assert "did you mean" not in c.say("/etc/passwd") and "/clear takes no text behind it" in c.say("/clear all")
    assert "no answer yet" in c.say("/stats")  # nothing of this reached the model
    c.say("one")
    once = c.say("/stats")
    c.say("two")
    twice = c.say("/stats")
    for told, n in ((once, 1), (twice, 2)):
        assert re.search(r"^last answer: prompt: \d+ tokens.*; answer: 4 tokens, [0-9.]+ tokens/s\n", told), told
        assert re.search(rf"\nin all \(answers: {n}\): prompt: \d+ tokens.*; answer: {4 * n} tokens", told), told
    used = [int(re.search(r"\ncontext: (\d+) of \d+ tokens\n$", told).group(1)) for told in (once, twice)]
    assert used[0] < used[1]
    assert c.say("/clear") == "new conversation\n"
    assert "context: 0 of" in c.say("/stats")
    c.say("one")
    assert f"context: {used[0]} of" in c.say("/stats")
    assert c.end("/quit\r") == 0


def without_note(text):
    return text.removesuffix("(stopped at --max-tokens)\n")


def test_clear_keeps_the_system_message(chat, tiny_model):
    c = chat("--max-tokens", "4", "--system", "Be brief.")
    first, second = c.say("one"), c.say("two")
    c.say("/clear")
    assert (c.say("one"), c.say("two")) == (first, second)
    assert without_note(first) == pipe(tiny_model, "--max-tokens", "4", "--system", "Be brief.", "one").stdout.decode()
    assert c.end() == 0


def test_a_message_may_have_slashes_lines_and_letters_of_all_kinds(chat, tiny_model):
    """What the model gets is what a pipe gives it, where nothing is a command."""
    c = chat("--max-tokens", "8")
    for typed, sent in (("//help", "/help"), ("grüße, 世界 🎉", "grüße, 世界 🎉")):
        answer = without_note(c.say(typed))
        assert answer == pipe(tiny_model, "--max-tokens", "8", text=sent + "\n").stdout.decode(), typed
        c.say("/clear")
    c.keys("first \\\r")
    c.until(r"\n\r?\. $")
    lines = without_note(c.say("second"))
    assert lines == pipe(tiny_model, "--max-tokens", "8", "first \nsecond").stdout.decode()
    assert c.end() == 0


def test_line_editing(chat):
    """An unknown command names the line as it was edited."""
    c = chat()
    for keys, line in (("/abd" + LEFT + "c", "/abcd"), ("bc" + HOME + "/a" + END + "d", "/abcd"),
                       ("/axb" + LEFT + LEFT + DELETE, "/ab"), ("/äöü\x7fx", "/äöx"), ("/世界" + LEFT + LEFT + "x" + RIGHT + "y", "/x世y界"),
                       ("garbage\x15/u", "/u")):
        assert c.say(keys).startswith(line + " is not a command"), keys
    assert c.say("") == "" and c.say("   ") == ""  # an empty line is no end
    c.say("/second")
    assert c.say(UP + UP + UP).startswith("/u is")
    assert c.say(UP + UP + DOWN).startswith("/u is")  # the newest two are equal and count once
    c.keys("/sec\x12ond")
    assert "/second is" in c.say("")
    assert c.end() == 0


def test_lines_are_kept_in_a_file(chat, tmp_path):
    c = chat(home=tmp_path)
    c.say("/one ä")
    c.say("/two")
    assert c.end("/quit\r") == 0
    path = tmp_path / ".local/state/inferd/history"
    assert path.read_text() == "/one ä\n/two\n/quit\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    c = chat(home=tmp_path)
    assert c.say(UP + UP).startswith("/two is")
    assert c.end() == 0 and stat.S_IMODE(path.stat().st_mode) == 0o600
    c = chat("--no-history", home=tmp_path)
    assert c.say(UP + "/three").startswith("/three is")
    assert c.end() == 0 and path.read_text() == "/one ä\n/two\n/quit\n/two\n"
    other = tmp_path / "state"
    c = chat(home=tmp_path, env={"XDG_STATE_HOME": str(other)})
    c.say("/four")
    assert c.end() == 0 and (other / "inferd/history").read_text() == "/four\n"
    c = chat()  # no home, no file
    assert c.say("/five").startswith("/five is") and c.end() == 0


def test_the_history_is_bounded_and_its_file_may_be_unusable(chat, tmp_path):
    path = tmp_path / "inferd/history"
    path.parent.mkdir()
    path.write_text("".join(f"/line{i}\n" for i in range(1500)))
    env = {"XDG_STATE_HOME": str(tmp_path)}
    c = chat(env=env)
    assert path.read_text().splitlines() == [f"/line{i}" for i in range(500, 1500)]
    assert c.say(UP).startswith("/line1499 is")
    c.say("/" + "x" * 5000)
    assert c.end() == 0 and path.read_text().splitlines()[-1] == "/line1499"
    for text in ("x" * (3 << 20), "a\0b\n", "\xff\xfe\n\x1b[31m\n"):
        path.write_bytes(text.encode("latin-1"))
        c = chat(env=env)
        assert c.say("/last").startswith("/last is") and c.end() == 0
    path.unlink()
    path.mkdir()
    c = Chat(c.process.args[2], env=env)
    assert re.search(r"inferd: \S+/history: .*; this history is not kept\r\n", c.until(WELCOME))
    c.until(PROMPT)
    assert c.say("/last").startswith("/last is") and c.say(UP).startswith("/last is") and c.end() == 0


def test_ctrl_c_drops_a_line_and_stops_an_answer(chat):
    c = chat()
    c.keys("/garbage")
    c.until("/garbage")
    c.keys("\x03")
    assert "^C" in c.until(PROMPT)
    assert c.say("/kept").startswith("/kept is")
    c.keys("first \\\r")
    c.until(r"\. $")
    c.keys("\x03")
    c.until(PROMPT)  # of a new message
    c.keys("Hello\r")
    c.until(r"\n[^\n]*\w")  # an answer of random words has no end
    c.keys("\x03")
    c.until(r"\n\(stopped\)\r\n")
    c.until(PROMPT)
    assert "in all (answers: 1)" in c.say("/stats") and c.end() == 0


def test_ctrl_z_gives_the_terminal_back(chat):
    c = chat()
    c.keys("/ab")
    c.until("/ab")
    c.keys("\x1a")
    end = time.monotonic() + 20 * SLOW
    while "T" not in open(f"/proc/{c.process.pid}/stat").read().rsplit(")", 1)[1].split()[0]:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert termios.tcgetattr(c.slave) == c.mode
    c.process.send_signal(signal.SIGCONT)
    c.until("/ab")
    c.say("c", "/abc is")
    c.until(PROMPT)
    assert c.end() == 0


def test_the_end_of_the_context_is_not_the_end_of_the_chat(chat):
    c = chat("--context", "64", "--max-tokens", "8")
    long = "word " * 80
    assert "inferd: the prompt has" in (told := c.say(long)) and "send a shorter message" in told
    told = c.say("one")
    for _ in range(10):
        if "/clear starts a new conversation" in told:
            break
        told = c.say("one two three")
    assert "/clear starts a new conversation" in told
    again = c.say("one two three")
    assert again.split(",")[0] == told.split(",")[0], "the failed message stays in the conversation"
    c.say("/clear")
    assert "inferd:" not in c.say("one")
    assert c.end() == 0


# ---- pipes ----

def test_a_pipe_has_the_texts_alone(tiny_model):
    for more in ((), ("--raw",)):
        one = pipe(tiny_model, "--max-tokens", "8", *more, "Hello")
        assert one.returncode == 0 and re.fullmatch(rb"prompt: \d+ tokens.*; answer: 8 tokens, [0-9.]+ tokens/s\n",
                                                    one.stderr), one.stderr
        assert one.stdout.endswith(b"\n") and not one.stdout.endswith(b"\n\n") and b"prompt:" not in one.stdout
        both = pipe(tiny_model, "--max-tokens", "8", *more, "Hello", merged=True)
        text, rates = both.stdout.rsplit(b"\nprompt: ", 1)
        assert text + b"\n" == one.stdout


def test_lines_of_a_pipe_are_one_conversation(tiny_model):
    """Empty lines ended it; nothing in a pipe is a command."""
    lines = pipe(tiny_model, "--max-tokens", "4", text="one\n\n/quit\nthree", merged=False)
    assert lines.returncode == 0 and b"answer: 12 tokens" in lines.stderr
    assert lines.stdout.startswith(pipe(tiny_model, "--max-tokens", "4", "one").stdout)
    assert b"> " not in lines.stdout and not lines.stdout.endswith(b"\n\n")
    assert pipe(tiny_model).returncode == 0 and pipe(tiny_model).stderr == b""


@pytest.mark.real
def test_an_answer_is_that_of_the_daemon(real, real_model):
    ask = {"model": "smollm2", "temperature": 0, "max_tokens": 60,
           "messages": [{"role": "user", "content": "Name three colours."}]}
    text = real.http.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"]
    r = pipe(real_model, "--max-tokens", "60", "--memory", "1GiB", "Name three colours.")
    assert r.stdout.decode() == text.rstrip("\n") + "\n"


# ---- exit statuses ----

def test_exit_statuses_are_those_of_serve(tiny_model, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\0" * 40)
    for args in ((str(bad),), (str(tmp_path / "gone.gguf"),), (tiny_model, "--device", "cuda:63"), ("dummy:tiny-llama",),
                 (tiny_model, "--memory", "1"), (tiny_model, "--threads", "0"), (tiny_model, "--nonsense"), ()):
        run = subprocess.run([BUILD / "inferd", "run", *args, *(["x"] if args else [])], capture_output=True, text=True,
                             timeout=60 * SLOW)
        serve = subprocess.run([BUILD / "inferd", "serve", "--listen", "0", *args], capture_output=True, text=True,
                               timeout=60 * SLOW)
        assert run.returncode == serve.returncode != 0, (args, run.stderr, serve.stderr)
        assert run.stderr.startswith(("inferd: ", "usage: ")) or "option" in run.stderr
    assert pipe(tiny_model, b"\xff").returncode == 2
    assert pipe(tiny_model, "--system", b"\xff", "x").returncode == 2
    too_long = pipe(tiny_model, "--context", "16", text="word " * 40 + "\nHello\n")
    assert too_long.returncode == 1 and b"the context holds 16" in too_long.stderr and too_long.stdout == b""


def test_an_answer_that_cannot_be_written_is_a_failure(tiny_model):
    with open("/dev/full", "wb") as full:
        r = subprocess.run([BUILD / "inferd", "run", tiny_model, *SMALL, "Hello"], stdout=full, stderr=subprocess.PIPE,
                           timeout=60 * SLOW)
    assert r.returncode == 1 and b"cannot be written to standard output" in r.stderr


def test_an_interrupted_answer_has_a_status_of_its_own(tiny_model):
    p = subprocess.Popen([BUILD / "inferd", "run", tiny_model, *SMALL, "Hello"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    assert os.read(p.stdout.fileno(), 1)
    p.send_signal(signal.SIGINT)
    text, told = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 130 and text.endswith(b"\n") and b"answer: " in told
