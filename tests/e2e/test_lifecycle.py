"""What happens to a model while it is served: its file is replaced, cut or taken away; it is sent away, drained or
removed while it answers; its load fails half-way.  Every request gets exactly one answer, what runs ends with the
weights it began with, and every page, descriptor and byte comes back."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, KEEP_ALL, SANITIZE, SLOW, flooding

PROMPT = [10, 11, 12]
LOOK_MS = 2000  # FILE_LOOK_US
LONG = 500 if SANITIZE else 2500  # tokens of an answer that lasts for a few looks at files


def make_model(path, seed, *options):
    subprocess.run([BUILD / "tests" / "tiny_model", path, str(seed), "--layers", "6", "--ctx", "16384", *options],
                   check=True)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models of their own content: `one` and `two` have files of the same size, `tall` and `short` do not;
    `large` takes some time to read."""
    f = tmp_path_factory.mktemp("models")
    for i, (name, options) in enumerate({"one": [], "two": [], "other": [], "short": ["--layers", "2"],
                                         "tall": ["--ffn", "512"], "large": ["--ffn", "16384"]}.items()):
        make_model(f / name, i + 1, *options)
    assert (f / "one").stat().st_size == (f / "two").stat().st_size
    return f


class Stream(threading.Thread):
    """A streamed answer: what it said, and how it ended."""

    def __init__(self, url, model, n, prompt=PROMPT, headers=()):
        super().__init__()
        self.url, self.n, self.tokens, self.status, self.error, self.done = url, n, [], None, None, False
        self.body = {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                     "stream": True, "return_token_ids": True}
        self.headers = dict(headers)
        self.begun = threading.Event()
        self.start()

    def run(self):
        try:
            with httpx.stream("POST", self.url + "/v1/completions", json=self.body, timeout=120 * SLOW,
                              headers=self.headers, verify=False) as r:
                self.status = r.status_code
                if r.status_code != 200:
                    self.error = json.loads(r.read())["error"]
                for line in r.iter_lines():
                    if line == "data: [DONE]":
                        self.done = True
                    elif line.startswith("data: "):
                        self.take(json.loads(line[6:]))
        except Exception as e:  # noqa: BLE001
            self.error = repr(e)
        self.begun.set()

    def take(self, event):
        if "error" in event:
            self.error = event["error"]
        for c in event.get("choices", ()):
            self.tokens += c.get("token_ids") or []
        if self.tokens:
            self.begun.set()

    def wait_begun(self):
        assert self.begun.wait(60 * SLOW) and self.tokens, (self.status, self.error)
        return self

    def said(self):
        self.join(120 * SLOW)
        assert not self.is_alive() and self.done and self.error is None, (self.status, self.error, len(self.tokens))
        assert len(self.tokens) == self.n
        return self.tokens


class World:
    """A daemon, its socket for administrators, and a folder of models that may be harmed."""

    def __init__(self, launch, folder, files, names=("m", "other"), **more):
        self.folder, self.files, self.sock, self.mine = folder, files, folder / "admin.sock", threading.local()
        for name in names:
            shutil.copy(files / ("other" if name == "other" else "one"), self.path(name))
        self.config = {"devices": [{"kind": "cpu", "memory": "96MiB", "threads": 2, **more.pop("device", {})}],
                       "host_arena": "64MiB",
                       "models": [{"name": n, "path": str(self.path(n)), **more.pop(n, {})} for n in names],
                       "admin": {"listen": f"unix:{self.sock}"}, **more}
        self.d = launch(self.config)
        if "tenants" in more:
            self.d._http = httpx.Client(base_url=self.d.url, timeout=120 * SLOW, limits=KEEP_ALL, headers={
                "Authorization": f"Bearer {more['tenants'][-1]['keys'][0]}"})
        self.admin = httpx.Client(transport=httpx.HTTPTransport(uds=str(self.sock)), base_url="http://localhost",
                                  timeout=60 * SLOW)
        self.until(lambda: all(self.state(n) in ("hot", "warm") for n in names if n != "large"))

    def path(self, name):
        return self.folder / f"{name}.gguf"

    # -- asking
    def ask(self, model="m", n=8, prompt=PROMPT, key=None, timeout=120 * SLOW, **more):
        if not hasattr(self.mine, "client"):  # one for each thread: making one takes longer than asking
            self.mine.client = httpx.Client(timeout=120 * SLOW, verify=False)
        return self.mine.client.post(self.d.url + "/v1/completions", timeout=timeout,
                          headers={"Authorization": f"Bearer {key}"} if key else {},
                          json={"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0,
                                "ignore_eos": True, "return_token_ids": True, **more})

    def said(self, model="m", n=8, **more):
        r = self.ask(model, n, **more)
        assert r.status_code == 200, r.text
        return r.json()["choices"][0]["token_ids"]

    def serves(self, words, model="m", n=8):
        """After a while."""
        def now():
            r = self.ask(model, n)
            return r.status_code == 200 and r.json()["choices"][0]["token_ids"] == words
        self.until(now)

    def stream(self, model="m", n=LONG, **more):
        return Stream(self.d.url, model, n, **more)

    # -- looking
    def about(self, name):
        r = self.admin.get(f"/admin/models/{name}")
        assert r.status_code == 200, r.text
        return r.json()

    def state(self, name="m"):
        return self.about(name)["state"]

    def whole_state(self):
        return self.admin.get("/admin/state").json()

    def until(self, what, timeout=30 * SLOW):
        end = time.monotonic() + timeout
        while not what():
            assert time.monotonic() < end, (self.whole_state()["models"], self.d.stderr()[-2000:])
            time.sleep(0.03)

    def file_is(self, word, name="m"):
        self.until(lambda: self.about(name)["file"] == word)

    # -- doing
    def do(self, command, name="m", status=200, **body):
        r = self.admin.post(f"/admin/models/{name}/{command}", json={"wait": True, **body})
        assert r.status_code == status, r.text
        return r

    def reload(self, config=None):
        """What the file holds now, and a look at the models' files."""
        text = json.dumps({"listen": f"127.0.0.1:{self.d.port}", **(config or self.config)})
        before = self.d.metric("inferd_config_reloads_total")
        self.d.config_path.write_text(text)
        self.d.process.send_signal(signal.SIGHUP)
        self.until(lambda: self.d.metric("inferd_config_reloads_total") > before)

    def put(self, name, source):
        """As it should be done: another file takes the name."""
        aside = self.folder / "aside"
        shutil.copy(self.files / source, aside)
        os.replace(aside, self.path(name))

    def check(self, fds=None):
        """Nothing runs, nothing is lost, everything adds up."""
        self.until(lambda: self.whole_state()["leaving"] == [])
        body = self.d.settled()
        pages = body["pages"]
        assert pages["quarantine"] == 0
        if fds is not None:
            self.until(lambda: self.d.n_fds() <= fds)
        return body

    def fds(self):
        """Descriptors when nobody asks: connections of this file come and go."""
        least = self.d.n_fds()
        for _ in range(10):
            time.sleep(0.02)
            least = min(least, self.d.n_fds())
        return least

    def stop(self):
        self.admin.close()
        assert self.d.stop() == 0, self.d.stderr()[-3000:]


@pytest.fixture
def world(launch, tmp_path, files):
    made = []

    def make(**more):
        w = World(launch, tmp_path, files, **more)
        made.append(w)
        return w

    yield make
    for w in made:
        if w.d.alive():
            w.check()
            w.stop()


@pytest.fixture(scope="module")
def alone(launch, files, tmp_path_factory):
    """What each model says when nothing happens to it."""
    names = ["one", "two", "other", "short", "tall", "large"]
    d = launch({"devices": [{"kind": "cpu", "memory": "512MiB", "threads": 2}],
                "models": [{"name": n, "path": str(files / n)} for n in names]})
    known = {}

    def of(name, n=8, prompt=tuple(PROMPT)):
        key = (name, n, tuple(prompt))
        if key not in known:
            r = d.http.post("/v1/completions", json={
                "model": name, "prompt": list(prompt), "max_tokens": n, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True})
            assert r.status_code == 200, r.text
            known[key] = r.json()["choices"][0]["token_ids"]
        return known[key]

    yield of
    assert d.stop() == 0


def unavailable(w, r, *words, name="m"):
    """A refusal that says when to come again; the reason, with the path, is the operator's to know."""
    assert r.status_code == 503, r.text
    e = r.json()["error"]
    assert e["code"] == "model_unavailable" and str(w.folder) not in e["message"], e
    assert 1 <= int(r.headers["retry-after"]) <= 60
    for word in words or (w.path(name),):
        assert str(word) in w.about(name)["error"], (word, w.about(name))
    assert str(w.path(name)) in w.d.stderr()


# ---- another file under the same name ----

def test_a_replaced_file_is_found_without_being_told(world, alone):
    w = world()
    assert w.said() == alone("one")
    w.put("m", "two")
    began = time.monotonic()
    w.until(lambda: w.said() == alone("two"))  # said() is always an answer: nobody is refused on the way
    assert time.monotonic() - began < 10 * SLOW
    assert w.said("other") == alone("other")
    assert "event=model_file model=m" in w.d.stderr() and "file=opened" in w.d.stderr()


def test_the_fingerprint_follows_what_is_served(world, alone):
    """It was made once, at the start: answers of another file carried the old one."""
    w = world()

    def fingerprint():
        return w.ask("other").json()["system_fingerprint"]

    first = fingerprint()
    w.put("m", "two")
    w.until(lambda: w.said() == alone("two"))
    second = fingerprint()
    assert second != first
    w.reload({**w.config, "models": w.config["models"][1:]})
    assert fingerprint() not in (first, second)
    w.reload({**w.config, "models": w.config["models"][::-1]})  # the order says nothing
    assert fingerprint() == second


def by_rename(w):
    w.put("m", "two")
    return "two"


def by_link(w):
    """The name is a link, and the link is turned."""
    os.symlink(w.files / "two", w.folder / "link")
    os.replace(w.folder / "link", w.path("m"))
    return "two"


def in_place(w):
    shutil.copyfile(w.files / "two", w.path("m"))  # same size, other bytes, same inode
    return "two"


def longer(w):
    shutil.copyfile(w.files / "tall", w.path("m"))
    return "tall"


def shorter(w):
    shutil.copyfile(w.files / "short", w.path("m"))
    return "short"


def away_and_another(w):
    w.path("m").unlink()
    w.file_is("missing")
    assert w.said() in (alone_of["one"],)
    shutil.copy(w.files / "two", w.path("m"))
    return "two"


alone_of = {}


@pytest.mark.parametrize("how", [by_rename, by_link, in_place, longer, shorter, away_and_another])
def test_what_runs_ends_with_the_weights_it_began_with(world, alone, how):
    w = world()
    alone_of["one"] = alone("one")
    old, beside = w.stream(), w.stream("other")
    old.wait_begun()
    slot = w.about("m")["slot"]
    now = how(w)
    w.reload()
    w.until(lambda: w.said() == alone(now))
    assert w.about("m")["slot"] != slot and w.about("m")["file"] == "same"
    assert old.is_alive() or len(old.tokens) == LONG
    assert old.said() == alone("one", LONG)
    assert beside.said() == alone("other", LONG)
    w.check()


def test_the_same_bytes_change_nothing(world, alone):
    w = world()
    prompt = list(range(10, 140))
    first = w.said(prompt=prompt)
    slot = w.about("m")["slot"]
    w.put("m", "one")
    w.until(lambda: "file=same" in w.d.stderr())
    r = w.ask(prompt=prompt)
    assert r.json()["choices"][0]["token_ids"] == first
    assert r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0  # its prefixes are still there
    assert w.about("m")["slot"] == slot and w.about("m")["file"] == "same"
    w.do("drop")
    assert w.said() == alone("one")  # it is read from the file that is open
    w.put("m", "two")
    w.until(lambda: w.said() == alone("two"))


def test_a_file_that_is_being_copied_is_waited_for(world, alone, files):
    w = world()
    whole = (files / "two").read_bytes()
    with open(w.folder / "aside", "wb") as f:
        f.write(whole[:len(whole) // 2])
        f.flush()
        os.replace(w.folder / "aside", w.path("m"))  # as some tools do it: the name first
        w.reload()
        w.file_is("replaced")
        w.until(lambda: w.d.stderr().count("level=error event=model_file") == 1)
        assert w.said() == alone("one")
        w.do("drop")
        assert w.said() == alone("one")  # read again, from the file that is open
        time.sleep(2 * LOOK_MS / 1000)
        assert w.d.stderr().count("level=error event=model_file") == 1  # told once
        for at in range(len(whole) // 2, len(whole), len(whole) // 8 + 1):
            f.write(whole[at:at + len(whole) // 8 + 1])
            f.flush()
            time.sleep(0.1)
    w.until(lambda: w.said() == alone("two"))
    assert w.about("m")["file"] == "same"


def test_what_is_no_model_does_not_take_the_place_of_one(world, alone):
    w = world()
    (w.folder / "aside").write_bytes(b"GGUF" + bytes(5000))
    os.replace(w.folder / "aside", w.path("m"))
    w.reload()
    w.until(lambda: "level=error event=model_file" in w.d.stderr())
    assert w.said() == alone("one")
    w.path("m").unlink()
    w.path("m").mkdir()
    w.until(lambda: "it is a directory" in w.d.stderr())
    assert w.said() == alone("one")
    w.path("m").rmdir()
    w.put("m", "two")
    w.until(lambda: w.said() == alone("two"))


def test_two_names_of_one_file_go_on_sharing_their_weights(world, alone):
    w = world(names=("m", "n", "other"))
    w.path("n").unlink()
    os.link(w.path("m"), w.path("n"))
    w.reload()
    w.put("m", "two")
    os.link(w.path("m"), w.folder / "l")
    os.replace(w.folder / "l", w.path("n"))
    w.until(lambda: w.said("m") == alone("two") and w.said("n") == alone("two"))
    w.check()
    held = [w.about(n)["pages"]["weight"] for n in ("m", "n")]
    assert sorted(held)[0] == 0 and sorted(held)[1] > 0, held


def test_what_happens_to_one_name_does_not_touch_the_other(world, alone):
    """Of two names of one content: a drain of the first took both out of service, harm to its file killed both,
    and both went on under what the first had promised when it was gone."""
    w = world(names=("m", "n", "other"))
    w.do("drain")
    assert w.ask("m").status_code == 503 and w.said("n") == alone("one")
    w.do("undrain")
    assert w.said("m") == alone("one")
    in_place(w)  # another model, in m's file
    w.do("drop", "n")
    assert w.said("n") == alone("one")
    w.serves(alone("two"))
    w.put("m", "one")
    w.serves(alone("one"))
    w.path("m").unlink()
    w.do("drop", "n")
    assert w.said("n") == alone("one")
    running = w.stream("m")
    running.wait_begun()
    w.reload({**w.config, "models": [m for m in w.config["models"] if m["name"] != "m"]})
    assert w.said("n") == alone("one")
    assert running.said() == alone("one", LONG)
    w.check()
    about = w.about("n")
    assert about["weights_of"] is None and about["pages"]["weight"] > 0, about


def test_a_model_is_in_service_when_undrain_says_so(world, alone):
    """The weights stay hot for another name, so the wait for a hot model was over before the engine had read the
    command: a request that came at once was refused with 503."""
    w = world(names=("m", "n", "other"))
    busy = w.stream("n").wait_begun()  # commands are read between steps
    for _ in range(30):
        w.do("drain")
        assert w.ask("m").status_code == 503
        w.do("undrain")
        assert w.said("m", 1) == alone("one", 1)
    busy.said()


def test_a_renamed_model_keeps_what_was_promised_to_it(world, alone):
    """Twice as much as there is while both names have it; the daemon ended when the old one was gone."""
    w = world(m={"min": "60MiB"})
    models = [{**m, "name": "new"} if m["name"] == "m" else m for m in w.config["models"]]
    w.reload({**w.config, "models": models})
    w.serves(alone("one"), "new")
    w.check()
    assert w.about("new")["pages"]["min"] == 30
    w.reload()
    w.serves(alone("one"))
    w.check()


def test_replaced_again_and_again_nothing_grows(world, alone):
    w = world()
    rss = fds = None
    for i in range(8):
        now = ("two", "one")[i % 2]
        w.put("m", now)
        w.reload()
        w.until(lambda: w.said() == alone(now))
        w.check()
        if i == 3:
            rss, fds = w.d.rss_at_rest(), w.fds()
    assert w.fds() <= fds
    if not SANITIZE:
        assert w.d.rss_at_rest() - rss <= 4 << 20  # the allocator keeps some; a model is 20 times that
    assert len(w.d.audit()["models"]) == 2


# ---- no file, or half of one ----

def test_a_deleted_file_is_needed_only_to_read_it_again(world, alone):
    w = world()
    w.path("m").rename(w.folder / "away")
    w.file_is("missing")
    assert w.said() == alone("one") and w.state() == "hot"
    w.do("unload")
    assert w.said() == alone("one")  # from host memory
    w.do("drop")
    unavailable(w, w.ask())
    assert w.state() == "failed"
    assert w.said("other") == alone("other")
    (w.folder / "away").rename(w.path("m"))  # it is back
    w.file_is("same")
    w.until(lambda: w.ask().status_code == 200, 5 * SLOW)
    assert w.said() == alone("one")
    w.path("m").unlink()
    w.file_is("missing")
    w.do("drop")
    unavailable(w, w.ask())
    shutil.copy(w.files / "two", w.path("m"))  # another one
    w.serves(alone("two"))


def test_a_file_that_is_back_is_read_when_clients_were_told_to_come(world, alone):
    """They came in vain until the daemon had looked at the file again."""
    w = world()
    w.path("m").unlink()
    w.do("drop")
    e = w.ask()
    assert e.status_code == 503, e.text
    w.put("m", "one")
    time.sleep(int(e.headers["retry-after"]))
    assert w.said() == alone("one")


@pytest.mark.parametrize("state", ["hot", "warm", "cold"])
@pytest.mark.parametrize("left", [0, 100, 0.5, 0.99])
def test_a_file_that_is_cut_is_an_error_and_not_a_signal(world, alone, state, left):
    w = world()
    whole = w.path("m").read_bytes()
    if state != "hot":
        w.do({"warm": "unload", "cold": "drop"}[state])
    os.truncate(w.path("m"), int(len(whole) * left) if left < 1 else left)
    if state == "cold":
        unavailable(w, w.ask())
    else:
        assert w.said() == alone("one")
        w.do("drop")
        unavailable(w, w.ask())
    assert w.said("other") == alone("other")
    w.path("m").write_bytes(whole)
    w.serves(alone("one"))


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("mode", ["r+b", "wb"])
def test_a_file_that_is_written_over_for_long(world, alone, state, mode):
    """Over itself instead of beside it, as cp does: a review saw a request without an answer for 10 s.  Each is told at
    once what there is, and the file counts once it stands still."""
    w = world(limits={"queue_timeout_ms": 600000})
    whole = w.path("m").read_bytes()
    with open(w.path("m"), mode) as f:
        for i in range(10):
            f.write(whole[len(whole) * i // 10:len(whole) * (i + 1) // 10])
            f.flush()
            if state == "cold":
                w.do("drop")
            e = w.ask(timeout=10 * SLOW)  # no answer is an error
            if e.status_code == 200:
                assert e.json()["choices"][0]["token_ids"] == alone("one")
            else:
                assert (state, e.status_code) == ("cold", 503), e.text
                assert e.json()["error"]["code"] == "model_unavailable" and int(e.headers["retry-after"]) >= 1
            time.sleep(0.05)
    w.serves(alone("one"))


def test_a_file_whose_permissions_go_is_still_open(world, alone):
    w = world()
    w.path("m").chmod(0)
    w.do("drop")
    assert w.said() == alone("one")


@pytest.mark.parametrize("harm", ["cut", "deleted", "replaced"])
def test_a_file_that_is_harmed_while_it_is_read(world, alone, files, harm):
    w = world(names=("m", "large", "other"), device={"memory": "256MiB"}, host_arena="0")
    seen = set()
    for attempt in range(80):
        # harmed before, while and after it was read; one that is replaced is whole, for who has it open
        if attempt >= 6 and (503 in seen or harm == "replaced"):
            break
        shutil.copy(files / "large", w.folder / "aside")
        os.replace(w.folder / "aside", w.path("large"))
        w.reload()
        w.serves(alone("large"), "large")
        w.do("drop", "large")
        shutil.copy(files / "two", w.folder / "aside")
        beside = w.stream("other", 500)
        waiters = [w.stream("large", 6) for _ in range(3)]
        time.sleep(0.004 * (attempt % 6))
        if harm == "cut":
            os.truncate(w.path("large"), 1 << 20)
        elif harm == "deleted":
            w.path("large").unlink()
        else:
            os.replace(w.folder / "aside", w.path("large"))
        for s in waiters:
            s.join(60 * SLOW)
            seen.add(s.status)
            if s.status == 200:
                assert s.done and s.tokens in (alone("large", 6), alone("two", 6)), s.tokens
            else:
                assert s.status == 503 and s.error["code"] == "model_unavailable", s.error
        assert beside.said() == alone("other", 500)
    assert 503 in seen or harm == "replaced", seen
    w.put("large", "two")
    w.serves(alone("two"), "large")
    w.check()


def nan_at_the_end(path):
    """The last bytes of the file are of a vector, or of a matrix: set a value of the last vector to no number."""
    import gguf
    r = gguf.GGUFReader(str(path))
    last = max((t for t in r.tensors if len(t.shape) == 1), key=lambda t: t.data_offset)
    with open(path, "r+b") as f:
        f.seek(int(last.data_offset))
        f.write(struct.pack("<f", float("nan")))


def test_a_load_that_fails_half_way(world, alone, files):
    pytest.importorskip("gguf")
    w = world(names=("m", "other"))
    first = w.check()["pages"]
    shutil.copy(files / "large", w.folder / "aside")
    nan_at_the_end(w.folder / "aside")
    os.replace(w.folder / "aside", w.path("m"))  # opens well, and is no good
    w.reload()
    w.until(lambda: "file=opened" in w.d.stderr())
    beside = w.stream("other")
    beside.wait_begun()
    waiters = [w.stream(n=4) for _ in range(5)]
    for s in waiters:
        s.join(60 * SLOW)
        assert s.status == 503 and s.error["code"] == "model_unavailable", (s.status, s.error)
    unavailable(w, w.ask(), "not a finite number")
    assert beside.said() == alone("other", LONG)
    pages = w.check()["pages"]
    assert pages["weight"] + pages["warm"] < first["weight"] + first["warm"]  # nothing of it is left
    assert pages["total"] == first["total"]
    w.put("m", "two")
    w.serves(alone("two"))


# ---- configurations ----

def test_a_bad_file_under_load_changes_nothing(world, alone):
    w = world()
    answers = []
    running = w.stream()
    c = w.config
    bad = ["{ not json", "", json.dumps({**c, "models": None}), json.dumps({**c, "listen": 5}),
           json.dumps({**c, "models": c["models"] + [{"name": "x", "path": "/nowhere.gguf"}]}),
           json.dumps({**c, "models": [{**c["models"][0], "min": "10GiB"}, c["models"][1]]})]

    def reload_is_refused():
        refused = w.d.stderr().count("event=reload_refused")
        w.d.process.send_signal(signal.SIGHUP)
        w.until(lambda: w.d.stderr().count("event=reload_refused") > refused)

    with flooding(3, lambda i: answers.append((w.ask().status_code, w.ask("other").status_code))):
        for text in bad:
            w.d.config_path.write_text(text)
            reload_is_refused()
        w.d.config_path.unlink()
        reload_is_refused()
    assert answers and set(answers) == {(200, 200)}
    assert running.said() == alone("one", LONG)
    w.reload()
    assert w.said() == alone("one")


def test_a_removed_model_ends_its_answers(world, alone):
    w = world()
    running = [w.stream(), w.stream(prompt=[20, 21])]
    for s in running:
        s.wait_begun()
    w.reload({**w.config, "models": w.config["models"][1:]})
    assert w.ask().status_code == 404
    w.path("m").unlink()  # its file is nobody's any more
    assert running[0].said() == alone("one", LONG)
    assert running[1].said() == alone("one", LONG, (20, 21))
    body = w.check()
    assert len(body["models"]) == 1


def test_a_reload_takes_the_model_that_is_being_loaded(world, alone):
    w = world(names=("m", "large", "other"), device={"memory": "256MiB"}, host_arena="0")
    w.until(lambda: w.ask("large", 2).status_code == 200)
    for i in range(4):
        w.do("drop", "large")
        waiters = [w.stream("large", 6) for _ in range(3)]
        time.sleep(0.003 * i)
        w.reload({**w.config, "models": [m for m in w.config["models"] if m["name"] != "large"]})
        for s in waiters:  # before the reload, or after it
            s.join(60 * SLOW)
            assert s.status in (200, 404), (s.status, s.error)
            if s.status == 200:
                assert s.done and s.tokens == alone("one", 6)
        w.check()
        w.reload()
        assert w.ask("large", 2).status_code == 200


def test_two_reloads_at_once(world, alone):
    w = world()
    running = w.stream()
    before = w.d.metric("inferd_config_reloads_total")
    w.put("m", "two")
    with_more = {**w.config, "models": w.config["models"] + [{"name": "more", "path": str(w.files / "short")}]}
    for i in range(12):
        c = (with_more, w.config)[i % 2]
        w.d.config_path.write_text(json.dumps({"listen": f"127.0.0.1:{w.d.port}", **c}))
        w.d.process.send_signal(signal.SIGHUP)
        time.sleep(random.Random(i).random() * 0.02)
    w.until(lambda: w.d.metric("inferd_config_reloads_total") > before)
    w.until(lambda: not w.whole_state()["config"]["busy"])
    names = {m["name"] for m in w.whole_state()["models"]}
    assert names in ({"m", "other"}, {"m", "other", "more"})
    w.reload()
    assert {m["name"] for m in w.whole_state()["models"]} == {"m", "other"}
    w.until(lambda: w.said() == alone("two"))
    assert running.said() == alone("one", LONG)
    w.check()


TENANTS = [{"name": "a", "keys": ["key-of-a-0123456789"], "limits": {"requests_per_min": 1000, "concurrent": 8}},
           {"name": "b", "keys": ["key-of-b-0123456789"]}]


def test_a_quota_that_is_used_up_while_its_work_runs(world, alone, tmp_path):
    """What is left of less than what was used is nothing; 0 lets nothing in, null is no limit."""
    w = world(tenants=TENANTS, state_dir=str(tmp_path / "state"))
    key, other = TENANTS[0]["keys"][0], TENANTS[1]["keys"][0]
    running = [w.stream(prompt=[50, i], headers={"Authorization": f"Bearer {key}"}) for i in range(3)]
    for s in running:
        s.wait_begun()

    def patch(**limits):
        r = w.admin.patch("/admin/tenants/a", json={"limits": limits})
        assert r.status_code == 200, r.text
        return r.json()["tenant"]["limits"]

    for name in ("tokens_per_day", "tokens_per_month", "tokens_per_min", "requests_per_min", "concurrent"):
        assert patch(**{name: 0})[name] == 0
        for _ in range(3):
            r = w.ask(key=key)
            assert r.status_code == 429 and r.json()["error"]["code"] == "insufficient_quota", r.text
            assert r.json()["error"]["message"] == f"limits.{name} of tenant a is 0: nothing is admitted"
            assert r.headers["x-should-retry"] == "false" and "retry-after" not in r.headers
        assert w.said(key=other) == alone("one")
        assert patch(**{name: None})[name] is None
        assert w.said(key=key) == alone("one")  # at once
    for limits, status, code in (({"tokens_per_day": 20}, 429, "insufficient_quota"),
                                 ({"tokens_per_day": 1}, 400, "request_exceeds_limit"),
                                 ({"tokens_per_day": None, "concurrent": 1}, 429, "concurrency_limit_exceeded")):
        patch(**limits)
        r = w.ask(key=key)
        assert r.status_code == status and r.json()["error"]["code"] == code, r.text
        assert status != 429 or "retry-after" in r.headers
        assert w.said(key=other) == alone("one")
    patch(concurrent=None, tokens_per_day=0)
    assert [s.said() for s in running] == [alone("one", LONG, (50, i)) for i in range(3)]  # nothing was lost
    assert w.ask(key=key).status_code == 429
    used, limit = 3 * (LONG + 2) + 5 * (8 + len(PROMPT)), 4 * LONG  # what ran is charged
    patch(tokens_per_day=limit)
    w.until(lambda: f"of {limit} tokens per day (UTC) {used} are used" in w.ask(n=2 * LONG, key=key).text)
    patch(tokens_per_day=None)
    assert w.said(key=key) == alone("one")
    r = w.admin.patch("/admin/tenants/a", json={"share": {"policy": "fixed", "percent": 0}})
    assert r.status_code in (400, 409), r.text  # a share of nothing would be work that never ends
    w.check()


# ---- by hand ----

@pytest.mark.parametrize("command", [pytest.param("unload", marks=pytest.mark.quick), "drop"])
def test_sent_away_while_it_answers(world, alone, command):
    w = world()
    running = w.stream()
    running.wait_begun()
    r = w.admin.post(f"/admin/models/m/{command}", json={})
    assert r.status_code == 202, r.text
    late = [w.stream(n=5, prompt=[30, i]) for i in range(3)]  # they bring it back
    assert running.said() == alone("one", LONG)
    for i, s in enumerate(late):
        assert s.said() == alone("one", 5, (30, i))
    w.check()


def test_drained_while_it_answers(world, alone):
    w = world()
    running = w.stream()
    running.wait_begun()
    r = w.admin.post("/admin/models/m/drain", json={})
    assert r.status_code == 202, r.text
    w.until(lambda: w.about("m")["held"])
    e = w.ask()
    assert e.status_code == 503 and e.json()["error"]["code"] == "model_unavailable", e.text
    assert "retry-after" not in e.headers and e.headers["x-should-retry"] == "false"  # until an operator says so
    assert w.said("other") == alone("other")
    assert running.said() == alone("one", LONG)
    w.until(lambda: w.state() in ("warm", "cold"))
    w.do("undrain")
    assert w.said() == alone("one")


def test_a_drain_outlives_the_file(world, alone):
    """The usual maintenance: out of service, another file, and back when the operator says so."""
    w = world()
    slot = w.about("m")["slot"]
    w.do("drain")
    w.put("m", "two")
    w.until(lambda: w.about("m")["slot"] != slot)
    w.until(lambda: w.about("m")["held"])
    for _ in range(10):
        assert w.ask().status_code == 503
        time.sleep(0.02)
    slot = w.about("m")["slot"]
    w.config["models"][0]["max_context"] = 64
    w.d.config_path.write_text(json.dumps({"listen": f"127.0.0.1:{w.d.port}", **w.config}))
    w.d.process.send_signal(signal.SIGHUP)
    w.until(lambda: w.about("m")["slot"] != slot and w.about("m")["held"])
    assert w.ask().status_code == 503
    w.do("undrain")
    assert w.said() == alone("two")


def test_clients_leave_while_their_model_comes(world, alone):
    w = world(names=("m", "large", "other"), device={"memory": "256MiB"}, host_arena="0")
    w.until(lambda: w.ask("large", 2).status_code == 200)
    fds = None
    body = json.dumps({"model": "large", "prompt": PROMPT, "max_tokens": 50, "stream": True, "ignore_eos": True})
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n")
    for i in range(12):
        w.do("drop", "large")
        beside = w.stream("other", 200)
        clients = [socket.create_connection(("127.0.0.1", w.d.port)) for _ in range(4)]
        for c in clients:
            c.sendall((head + body).encode())
        time.sleep(0.004 * (i % 6))
        for c in clients:
            c.close()
        assert beside.said() == alone("other", 200)
        w.d.settled()
        if i == 3:
            fds = w.fds()
    w.check(fds)
    assert w.said("large") == alone("one")


@pytest.mark.quick
def test_commands_in_a_storm(world, alone):
    w = world(names=("m", "large", "other"), device={"memory": "128MiB"}, host_arena="32MiB")
    seed = 20261122
    print("seed", seed)
    answers, problems = [], []
    wanted = {"m": alone("one", 6), "large": alone("one", 6), "other": alone("other", 6)}
    dice = [random.Random(seed + k) for k in range(4)]
    operators = [random.Random(seed + 100 + k) for k in range(3)]

    def client(k):
        name = dice[k].choice(list(wanted))
        a = w.ask(name, 6)
        answers.append(a.status_code)
        if a.status_code != 200:
            if a.status_code != 503 or a.json()["error"]["code"] != "model_unavailable":
                problems.append(a.text)
        elif a.json()["choices"][0]["token_ids"] != wanted[name]:
            problems.append("wrong words")

    def operator(k):
        r = operators[k]
        c = r.choice(["load", "unload", "drop", "prefetch", "pin", "unpin", "drain", "undrain"])
        a = w.admin.post(f"/admin/models/{r.choice(list(wanted))}/{c}", json={})
        if a.status_code != 202:
            problems.append(a.text)
        time.sleep(r.random() * 0.01)

    with flooding(4, client), flooding(3, operator):
        end = time.monotonic() + 5
        rnd = random.Random(seed)
        while time.monotonic() < end:
            time.sleep(rnd.random() * 0.2)
            w.d.process.send_signal(signal.SIGHUP)
    assert not problems, problems[:3]
    assert answers.count(200) > 20
    for name in wanted:
        w.do("unpin", name, wait=False, status=202)
        w.do("undrain", name, wait=False, status=202)
    for name, words in wanted.items():
        w.until(lambda: w.ask(name, 6).status_code == 200)
        assert w.said(name, 6) == words
    w.check()
