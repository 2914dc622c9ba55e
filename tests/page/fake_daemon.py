"""A daemon for the page alone: it serves server/admin/page/ with the headers of the real one and speaks the stream,
the commands and the chat of docs/page.md, from made-up scenes.  Standard library only.

    python3 tests/page/fake_daemon.py [--scene small|gpu|large|storm|hostile|states|lost|empty] [--port 8090] [--key KEY]

Scenes: `small` three models on a CPU; `gpu` a device with memory of its own beside that of the host; `large` 72,000 pages, 64 models, 100 tenants, deltas at the full rate that is
allowed (100 KB/s); `storm` the same with every page and row changed in each delta; `hostile` markup, quotes and marks
of writing direction in every text; `states` one model in each state; `lost` two devices, of which one is lost.

A test drives it from the same process: tick() makes one delta, send() sends one that the test wrote, drop() closes all
streams, down() and up() are the end and the start of the process.  Without auto nothing changes by itself.
"""

import argparse
import contextlib
import json
import queue
import random
import socket
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "server" / "admin" / "page"
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
FREE, WEIGHT, KV, CACHED, WARM, PARKED, QUARANTINE, ABSENT = range(8)
USES = ["free", "weight", "kv", "cached", "warm", "parked", "quarantine", "absent"]
MIB = 1 << 20
PAGE_BYTES = 2 * MIB
RATE = 100_000  # bytes of deltas a second that the daemon allows itself for one viewer
EVIL = "<script>window.hacked = 1</script>"


def code(use, owner=None):
    return use + (16 * (owner + 1) if owner is not None else 0)


def runs_of(codes, first=0, last=None):
    """[first, n, code, ...] of a range of pages."""
    out, at = [], first
    last = len(codes) if last is None else last
    while at < last:
        end = at + 1
        while end < last and codes[end] == codes[at]:
            end += 1
        out += [at, end - at, codes[at]]
        at = end
    return out


class World:
    """The state of a made-up daemon.  Every change goes through change(), which collects the next delta."""

    def __init__(self, scene="small", seed=1):
        self.scene = scene
        self.rng = random.Random(seed)
        self.boot = f"boot-{time.monotonic_ns()}"
        self.lock = threading.RLock()
        self.started = time.time() - 7384
        self.devices, self.models, self.tenants, self.maps, self.host_pages = {}, {}, {}, {}, {}
        self.events, self.rows, self.done = [], [], []
        self.pending = {}
        self.ticks = 0
        self.next_event = 1
        self.load_ticks = 3  # so many ticks a load takes
        self.daemon = {"version": "0.22.0", "boot": self.boot, "started_at": int(self.started), "draining": False,
                       "config": "/etc/inferd/inferd.json", "unsaved": 0, "faults": False}
        self.queue = {"running": 0, "waiting": 0, "paused": 0, "places": 256, "places_used": 0}
        getattr(self, "make_" + scene)()
        self.make_history()
        self.count_pages()

    # -- scenes ----------------------------------------------------------------------------------

    def device(self, pages, name="cpu0", kind="cpu", about="cpu avx512, 2 threads", host=None, **more):
        i = len(self.devices)
        self.host_pages[i] = host or pages // 2
        self.devices[i] = {
            "id": i, "name": name, "kind": kind, "about": about, "page_bytes": PAGE_BYTES, "pages": {},
            "one_memory": kind == "cpu", "recent": {"step": 0.91, "load": 0.03, "idle": 0.06},
            "account": {"requests": 5120.5, "load": 310.2, "recompute": 41.7, "move": 22.9, "idle": 1850.4, "host": 12.6},
            "lost": False, "drill": "none", "thrashing": False, "step": None, **more}
        self.maps[i] = [FREE] * pages
        return i

    def model(self, name, state="hot", weight=0, kv=0, cached=0, warm=0, device=0, **more):
        """A model and its pages on a device, behind the pages that are taken."""
        i = len(self.models)
        pages = self.maps.get(device, [])
        at = next((p for p in range(len(pages)) if pages[p] == FREE), len(pages))
        on_host = device in self.devices and not self.devices[device]["one_memory"]
        for use, n in ((WEIGHT, weight), (KV, kv), (CACHED, cached), (WARM, 0 if on_host else warm)):
            for p in range(at, min(at + n, len(pages))):
                pages[p] = code(use, i)
            at += n
        self.models[i] = {
            "id": i, "name": name, "leaving": False, "aliases": [], "state": state, "held": False, "class": "normal", "pin": "none",
            "weight": 1, "share": None, "context": 4096, "running": 0, "waiting": 0,
            "bytes": {"weight": weight * PAGE_BYTES, "kv": kv * PAGE_BYTES, "cached": cached * PAGE_BYTES,
                      "warm": warm * PAGE_BYTES, "parked": 0, "file": max(weight, warm, 40) * PAGE_BYTES, "min": 0, "max": None},
            "progress": None, "in": 0, "out": 0, "used": 0.0, "wanted_at": int((time.time() - 42) * 1000), "loads": 1,
            "evictions": 0, "last_switch_ms": 14, "error": None, "devices": [device] if state == "hot" else [], **more}
        return i

    def tenant(self, name, **more):
        i = len(self.tenants)
        self.tenants[i] = {"id": i, "name": name, "class": "normal", "weight": 1, "used": 0.1, "entitled": None, "today": 0,
                           "limit_today": None, "running": 0, "waiting": 0, "refused": 0, "in": 0, "out": 0, "kv": 0, **more}
        return i

    def make_small(self):
        self.device(1024)
        self.model("chat", weight=68, kv=212, cached=96, pin="hot", running=6, waiting=2, out=412, used=0.61,
                   wanted_at=None, share={"percent": 60, "policy": "fixed"}, context=8192, aliases=["small"],
                   **{"class": "high", "in": 890})
        self.model("code", weight=272, kv=148, cached=60, running=3, out=96, used=0.28, wanted_at=None, evictions=2,
                   share={"percent": 20, "policy": "burst"}, **{"in": 240})
        self.model("night", "warm", warm=120, evictions=9, loads=10, **{"class": "batch"})
        self.tenant("shop", used=0.58, entitled=0.6, today=1_204_551, limit_today=5_000_000, running=5, waiting=2,
                    out=380, kv=412 * MIB, **{"class": "high", "in": 900})
        self.tenant("lab", used=0.21, entitled=0.2, today=842_113, running=3, refused=14, out=92, kv=210 * MIB, **{"in": 210})
        self.tenant("cron", used=0.04, today=40_112, running=1, out=36, kv=18 * MIB, **{"class": "batch", "in": 20})
        self.queue = {"running": 9, "waiting": 2, "paused": 1, "places": 256, "places_used": 12}
        self.step()
        for kind, text in (("admin", "chat is pinned on the device, asked by an administrator"),
                           ("load", "code is on cpu0: 544 MiB from the file in 312 ms"),
                           ("evict", "evicted night: 240 MiB for code, which waited 40 ms"),
                           ("preempt", "paused a request of cron on night: chat has more urgent work"),
                           ("refuse", "refused a request of lab: 60 requests a minute are its limit"),
                           ("config", "the configuration was read again: 3 models, 3 tenants")):
            self.event(kind, text, n=14 if kind == "refuse" else 1)

    def make_empty(self):
        self.device(512)

    def make_gpu(self):
        """80 GiB with 40 GiB of weights; in host memory three times as much."""
        self.device(40_960, "cuda0", "cuda", "NVIDIA H100, 80 GiB", host=81_920)
        self.model("chat", weight=20_480)
        for i in range(3):
            self.model(f"night-{i}", "warm", warm=20_480)

    def make_large(self):
        self.device(72_000, "cuda0", "cuda", "NVIDIA H200, 139 GiB, compute capability 9.0", one_memory=False)
        classes = ["system", "high", "normal", "batch"]
        for i in range(64):
            r = self.rng
            hot = i % 4 != 3
            self.model(f"model-{i:02d}-{r.choice(['chat', 'code', 'vision', 'embed', 'instruct'])}",
                       "hot" if hot else r.choice(["cold", "warm"]), weight=r.randrange(300, 1100) if hot else 0,
                       kv=r.randrange(60, 380) if hot else 0, cached=r.randrange(20, 120) if hot else 0,
                       pin="hot" if i % 9 == 0 else "none",
                       share={"percent": 1 + i % 5, "policy": "fixed"} if i % 3 == 0 else None,
                       running=r.randrange(12) if hot else 0, waiting=r.randrange(4) if hot else 0, out=r.randrange(900) if hot else 0,
                       wanted_at=None if hot else int((time.time() - r.randrange(9000)) * 1000), **{"class": classes[i % 4]})
        for i in range(100):
            self.tenant(f"tenant-{i:03d}", used=self.rng.random() / 50, entitled=0.01 if i % 2 else None,
                        today=self.rng.randrange(9_000_000),
                        limit_today=10_000_000 if i % 3 == 0 else None, running=i % 5, waiting=i % 3, refused=i * 7 % 40)
        self.queue = {"running": 311, "waiting": 96, "paused": 12, "places": 1024, "places_used": 419}
        self.step()
        for i in range(200):
            self.event(self.rng.choice(["evict", "load", "preempt", "refuse"]),
                f"evicted model-{i % 64:02d}: {i + 40} MiB for another model, which waited {i} ms")

    make_storm = make_large

    def make_hostile(self):
        bad = [EVIL, '"><img src=x onerror="window.hacked = 1">', "\u202egnp.exe\u202c\u200f", "a' b\" c&amp;<b>d</b>", "M" * 300,
               "javascript:window.hacked=1//", "../../admin/config?x=1#y", "naïve 模型 \U0001F600 \x07\x1b[31m"]
        self.device(1024, name=EVIL, about='"><svg onload="window.hacked = 1">' + "x" * 200)
        for i, name in enumerate(bad):
            self.model(name, "failed" if i == 1 else "hot", weight=30, kv=20, cached=5, aliases=[EVIL], running=1,
                       error=EVIL + " cannot be opened" if i == 1 else None)
        for name in bad:
            self.tenant(name)
        self.step([["req-" + EVIL, 0, 4, 0], ["\u202ereq", 1, 9, 1]])
        for text in bad:
            self.event("fail", "could not load " + text)
        self.daemon["config"] = EVIL
        self.daemon["version"] = EVIL

    def make_states(self):
        self.device(1024)
        for state in ("none", "cold", "staging", "warm", "loading", "hot", "draining", "failed"):
            self.model("is-" + state, state, weight=20 if state in ("hot", "draining", "loading") else 0, kv=8 if state == "hot" else 0,
                       warm=12 if state == "warm" else 0, progress=0.4 if state in ("staging", "loading") else None,
                       running=3 if state == "draining" else 0,
                       error="k_proj is [512, 4096], expected [1024, 4096]" if state == "failed" else None)
        self.model("is-held", "cold", held=True)
        self.model("is-pinned", "hot", weight=20, pin="hot")
        self.model("is-pinned-warm", "warm", warm=20, pin="warm")

    def make_lost(self):
        self.device(2048, "cuda0", "cuda", "NVIDIA H100, 78 GiB")
        self.device(2048, "cuda1", "cuda", "NVIDIA H100, 78 GiB", lost=True)
        self.model("chat", weight=200, kv=100, running=2)
        self.model("code", weight=300, kv=80, device=1, state="failed", error="cuda1 is lost")
        self.tenant("shop", running=2)
        self.event("device", "cuda1 is lost: 2 requests ended with an error that clients may try again")

    def make_history(self):
        now = int(time.time())
        for i in range(600):
            if self.scene == "empty":
                self.rows.append([now - 599 + i, None, None, None, None, 0, 0, 0, 0, 0, 0])
            else:
                self.rows.append(self.history_row(now - 599 + i))

    def history_row(self, at):
        r, wave = self.rng, 1 + 0.6 * (at // 40 % 5 == 0)
        busy = 0.97 if at % 240 < 200 else 0.35
        return [at, round(30 * wave + r.random() * 12, 1), round(90 * wave + r.random() * 60, 1), round(9 + r.random() * 3, 1),
                round(18 * wave + r.random() * 8, 1), round(900 * busy + r.random() * 300), round(420 * busy + r.random() * 90),
                1 if r.random() < 0.06 * wave else 0, 1 if r.random() < 0.03 else 0, 1 if r.random() < 0.02 else 0,
                round(min(1, busy + (r.random() - 0.5) * 0.05), 3)]

    # -- changes ---------------------------------------------------------------------------------

    def event(self, kind, text, n=1):
        e = {"id": self.next_event, "change": self.next_event, "at": int(time.time() * 1000) - (200 - min(self.next_event, 200)) * 2100, "kind": kind,
             "text": text, "n": n}
        self.next_event += 1
        self.events = (self.events + [e])[-256:]
        self.pending.setdefault("events", []).append(e)
        return e

    def step(self, seqs=None, device=0):
        hot = [m for m in self.models.values() if m["state"] == "hot"]
        if not hot:
            return
        m = self.rng.choice(hot[:2])
        n = min(32, 3 + self.rng.randrange(12))
        seqs = seqs or [[f"req-{self.rng.randrange(16**6):06x}", self.rng.randrange(len(self.tenants)) if self.tenants else None,
                         self.rng.randrange(64, 512) if j < 2 else 1, 1 if j < 2 else 0] for j in range(n)]
        self.devices[device]["step"] = {
            "model": m["id"], "began": int(time.time() * 1000) - self.rng.randrange(30), "us": self.rng.randrange(9000, 42000),
            "prefill": sum(s[2] for s in seqs if s[3]), "decode": sum(s[2] for s in seqs if not s[3]), "seqs": seqs}

    def count_pages(self):
        for i, d in self.devices.items():
            n = [0] * 9
            for c in self.maps[i]:
                n[c & 15] += 1
            if not d["one_memory"]:  # no pages of the map
                n[WARM], n[PARKED] = (sum(m["bytes"][u] for m in self.models.values()) // PAGE_BYTES for u in ("warm", "parked"))
            total, host = len(self.maps[i]), self.host_pages[i]
            d["pages"] = {"total": total, "device": total, "host": host, "host_free": host - n[WARM] - n[PARKED],
                          "device_free": n[FREE], **{u: n[k] for k, u in enumerate(USES)}}

    def touch(self, what, *ids):
        """Rows that the next delta has."""
        self.pending.setdefault(what, set()).update(ids)

    def pages_set(self, device, first, n, to):
        codes = self.maps[device]
        n = min(n, len(codes) - first)
        codes[first:first + n] = [to] * n
        self.pending.setdefault("pages", {}).setdefault(device, []).extend([first, n, to])

    def all(self):
        with self.lock:
            return {"now": int(time.time() * 1000), "daemon": self.daemon, "devices": list(self.devices.values()),
                    "models": list(self.models.values()), "tenants": list(self.tenants.values()), "queue": self.queue,
                    "history": {"every_ms": 1000, "rows": self.rows[-600:]}, "events": self.events,
                    "pages": [{"device": i, "n": len(c), "runs": runs_of(c)} for i, c in self.maps.items()]}

    def delta(self):
        """What changed since the last delta, or None."""
        with self.lock:
            out, p = {}, self.pending
            self.pending = {}
            for what, table in (("devices", self.devices), ("models", self.models), ("tenants", self.tenants)):
                if p.get(what):
                    out[what] = [table[i] for i in sorted(p[what]) if i in table]
            if p.get("gone"):
                out["gone"] = p["gone"]
            for what in ("daemon", "queue"):
                if p.get(what):
                    out[what] = getattr(self, what)
            if p.get("events"):
                out["events"] = p["events"]
            if p.get("history"):
                out["history"] = {"rows": p["history"]}
            if p.get("pages"):
                out["pages"] = [{"device": d, "n": len(self.maps[d]), "runs": r} for d, r in p["pages"].items()]
            return {"now": int(time.time() * 1000), **out} if out else None

    # -- time ------------------------------------------------------------------------------------

    def tick(self):
        with self.lock:
            self.ticks += 1
            self.advance_loads()
            if self.scene in ("small", "hostile", "lost"):
                self.small_changes()
            elif self.scene in ("large", "storm"):
                self.large_changes(storm=self.scene == "storm")
            if self.ticks % 2 == 0:
                row = self.history_row(int(time.time()))
                self.rows = (self.rows + [row])[-600:]
                self.pending.setdefault("history", []).append(row)
            return self.delta()

    def advance_loads(self):
        for m in self.models.values():
            if m["state"] in ("loading", "staging") and not m["name"].startswith("is-"):
                m["progress"] = round((m["progress"] or 0) + 1 / self.load_ticks, 3)
                if m["progress"] >= 0.999:
                    m.update(state="hot", progress=None, devices=[0], loads=m["loads"] + 1)
                    m["bytes"]["weight"] = m["bytes"]["file"]
                    self.event("load",
                        f"{m['name']} is on {self.devices[0]['name']}: {m['bytes']['file'] // MIB} MiB from the file in 312 ms")
                self.touch("models", m["id"])

    def small_changes(self):
        r = self.rng
        for i, m in self.models.items():
            if m["state"] == "hot":
                m.update({"in": max(0, m["in"] + r.randrange(-20, 21)), "out": max(0, m["out"] + r.randrange(-9, 10))})
                self.touch("models", i)
        for i, t in self.tenants.items():
            t.update(today=t["today"] + r.randrange(300), used=round(max(0.01, min(0.9, t["used"] + (r.random() - 0.5) / 100)), 4))
            self.touch("tenants", i)
        for _ in range(6):
            at = r.randrange(len(self.maps[0]))
            owner = r.choice(list(self.models)) if self.models else 0
            self.pages_set(0, at, r.randrange(1, 9), code(r.choice([KV, KV, CACHED]), owner) if r.random() < 0.7 else FREE)
        for d in self.devices.values():
            if not d["lost"]:
                for k, per in (("requests", 0.45), ("load", 0.02), ("idle", 0.03)):
                    d["account"][k] = round(d["account"][k] + per, 2)
        self.step()
        self.count_pages()
        self.touch("devices", *self.devices)
        if self.ticks % 8 == 0:
            self.event("evict", f"evicted night: {96 + self.ticks} MiB for code, which waited {40 + self.ticks % 7} ms")

    def large_changes(self, storm):
        r, n = self.rng, len(self.maps[0])
        if storm:
            self.storm_pages(n)
        else:
            for _ in range(900):
                at = r.randrange(n - 40)
                now, size = self.maps[0][at], r.randrange(1, 24)
                owner = now // 16 - 1 if now // 16 else r.randrange(64)
                if now & 15 != WEIGHT:
                    size = next((i for i in range(size) if self.maps[0][at + i] & 15 == WEIGHT), size)
                    self.pages_set(0, at, size, code(r.choice([KV, CACHED, KV]), owner) if r.random() < 0.8 else FREE)
        some = list(self.models) if storm else r.sample(list(self.models), 40)
        for i in some:
            self.models[i].update({"in": r.randrange(2000), "out": r.randrange(900), "running": r.randrange(20), "waiting": r.randrange(9),
                                   "used": round(r.random() / 20, 4)})
            self.models[i]["bytes"] = {**self.models[i]["bytes"], "kv": r.randrange(400) * PAGE_BYTES}
        self.touch("models", *some)
        some = list(self.tenants) if storm else r.sample(list(self.tenants), 25)
        for i in some:
            t = self.tenants[i]
            t.update({"in": r.randrange(500), "out": r.randrange(200), "today": t["today"] + r.randrange(900),
                "used": round(r.random() / 20, 4)})
        self.touch("tenants", *some)
        self.queue = {**self.queue, "running": 300 + r.randrange(20), "waiting": r.randrange(120)}
        self.pending["queue"] = True
        self.step()
        self.count_pages()
        self.touch("devices", 0)
        out, came = r.randrange(64), r.randrange(64)
        self.event("evict", f"evicted model-{out:02d}: {r.randrange(900)} MiB for model-{came:02d}, which waited {r.randrange(90)} ms")

    def storm_pages(self, n):
        """Every page gets another code."""
        at, r = 0, self.rng
        while at < n:
            size = r.randrange(1, 40)
            self.pages_set(0, at, size, code(r.choice([WEIGHT, KV, CACHED]), r.randrange(64)) if r.random() < 0.9 else FREE)
            at += size

    # -- commands --------------------------------------------------------------------------------

    def named(self, name):
        return next((m for m in self.models.values() if m["name"] == name or name in m["aliases"]), None)

    def command(self, name, what, body):
        """(status, body) of POST /admin/models/NAME/WHAT."""
        with self.lock:
            m = self.named(name)
            self.done.append((name, what, body))
            if m is None:
                return 404, error(f"no model is named {name}", "model_not_found")
            if what in ("load", "undrain"):
                if m["state"] == "failed":
                    return 409, error(f"{name} cannot be loaded: {m['error']}", "model_failed")
                m["held"] = False
                if m["state"] != "hot":
                    m.update(state="loading", progress=0.0)
            elif what == "prefetch":
                m.update(state="warm")
            elif what in ("unload", "drop"):
                m.update(state="warm" if what == "unload" else "cold", running=0, devices=[])
                m["bytes"].update(weight=0, kv=0, cached=0)
            elif what == "drain":
                m.update(state="draining" if m["running"] else "cold", held=True)
            elif what == "pin":
                m["pin"] = body.get("level", "hot")
            elif what == "unpin":
                m["pin"] = "none"
            else:
                return 404, error("no such command", "not_found")
            self.touch("models", m["id"])
            self.event("admin", f"{what} {name}, asked by an administrator")
            return 202, {"model": m["name"], "state": m["state"]}

    def plan(self, body):
        m = self.named(body.get("load", ""))
        if m is None:
            return 404, error(f"no model is named {body.get('load')}", "model_not_found")
        if m["name"] == "is-none":
            return 200, {"model": m["name"], "state": m["state"], "fits": False, "now": False, "turns": False, "device": "cpu0",
                         "victims": [], "checks": [{"name": "device", "kept": False,
                                                    "text": "its weights need 3,072 MiB, cpu0 has 2,048 MiB"}], "problems": [],
                         "bring_up": None, "weights": {"bytes": 3072 * MIB}}
        victims = [v for v in self.models.values() if v["state"] == "hot" and v is not m and v["pin"] == "none"][:2]
        return 200, {"model": m["name"], "state": m["state"], "fits": True, "now": True, "turns": False, "device": self.devices[0]["name"],
                     "weights": {"bytes": m["bytes"]["file"]}, "checks": [], "problems": [],
                     "victims": [{"name": v["name"], "when": "load", "why": "idle", "class": v["class"], "bytes": 96 * MIB, "idle_s": 40.0,
                                  "back_s": 0.12} for v in victims if m["state"] != "hot"],
                     "bring_up": {"s": 0, "from": "device", "measured": True} if m["state"] in ("hot", "draining") else
                     {"s": 0.31, "from": "file", "measured": True}}


def error(message, code):
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


class Chat:
    """What a model writes: pieces of a message, as the fields of deltas."""

    def __init__(self, body):
        self.body = body
        self.prompt = next((m["content"] for m in reversed(body["messages"]) if m["role"] == "user"), "")

    def pieces(self):
        if self.body.get("tools") and self.body["messages"][-1]["role"] != "tool":
            name = self.body["tools"][0]["function"]["name"]
            yield {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}]}
            for part in ('{"city": ', '"Kiel"', "}"):
                yield {"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
            return
        if self.body.get("response_format"):
            for part in ('{"name": ', '"Ada", ', '"age": ', "36}"):
                yield {"content": part}
            return
        if "think" in self.prompt:
            for part in ("The user ", "wants ", "an answer."):
                yield {"reasoning_content": part, "reasoning": part}
        if self.body["messages"][-1]["role"] == "tool":
            yield {"content": "The tool said: " + self.body["messages"][-1]["content"]}
            return
        text = self.answer()
        for word in text.split(" "):
            yield {"content": word + " "}

    def answer(self):
        if "long" in self.prompt:
            return "word " * 2000
        if "capital" in self.prompt:
            return ("The capital of France is **Paris**.\n\nIt lies on the Seine and has about 2.1 million people.  Some facts:\n\n"
                    "- it has been the capital since 987\n- its mayor is chosen for six years\n- `48.8566, 2.3522` are its coordinates\n\n"
                    "```python\ndef capital(country):\n    return {\"France\": \"Paris\"}[country]\n```")
        return "You said: " + self.prompt

    @property
    def why(self):
        return "tool_calls" if self.body.get("tools") and self.body["messages"][-1]["role"] != "tool" else "stop"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def fake(self):
        return self.server.fake

    def answer(self, status, body, kind="application/json", headers=()):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in (("Content-Type", kind), ("Content-Length", str(len(data))), ("Cache-Control", "no-store"), *headers):
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(data)

    def allowed(self):
        if self.fake.refuse:
            self.answer(*self.fake.refuse)
            return False
        if self.fake.key and self.headers.get("Authorization") != "Bearer " + self.fake.key:
            self.answer(401, error("an API key of admin is needed", "invalid_api_key"))
            return False
        return True

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        if path == "/ui" or path.startswith("/ui/"):
            return self.static(path[4:] or "index.html")
        if path == "/admin/watch":
            return self.watch() if self.allowed() else None
        if path == "/v1/models":
            return self.names() if self.tenant_allowed() else None
        return self.answer(404, error("no such route", "not_found"))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = urllib.parse.urlsplit(self.path).path
        if path == "/v1/chat/completions":
            return self.chat(body) if self.tenant_allowed() else None
        if not self.allowed():
            return None
        parts = path.split("/")
        if path == "/admin/plan":
            return self.answer(*self.fake.world.plan(body))
        if len(parts) == 5 and parts[:3] == ["", "admin", "models"]:
            result = self.fake.world.command(urllib.parse.unquote(parts[3]), parts[4], body)
            self.fake.flush()
            return self.answer(*result)
        return self.answer(404, error("no such route", "not_found"))

    def static(self, name):
        file = PAGE / name
        if "/" in name or not file.is_file():
            return self.answer(404, b"not found", "text/plain")
        return self.answer(200, file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"),
                           [("Content-Security-Policy", CSP), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer")])

    def begin_stream(self, *more):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        for name, value in more:
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def watch(self):
        q = queue.Queue()
        self.begin_stream(("Transfer-Encoding", "chunked"))

        def write(data):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        with self.fake.opening:
            write(sse("all", self.fake.world.all()))
            self.fake.viewers[q] = self.connection
        try:
            while (item := q.get()) is not None:
                write(item)
        except OSError:
            pass
        finally:
            self.fake.viewers.pop(q, None)

    def tenant_allowed(self):
        if self.fake.tenant_key and self.headers.get("Authorization") != "Bearer " + self.fake.tenant_key:
            self.answer(401, error("an API key is needed", "invalid_api_key"))
            return False
        return True

    def names(self):
        self.answer(200, {"object": "list", "data": [{"id": m["name"], "object": "model", "max_model_len": m["context"]}
                                                     for m in self.fake.world.models.values() if not m["leaving"]]})

    def chat(self, body):
        self.fake.chats.append(body)
        if self.fake.world.named(body["model"]) is None:
            return self.answer(404, error("no such model", "model_not_found"))
        self.begin_stream()
        chat, n = Chat(body), 0
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        try:
            for piece in chat.pieces():
                n += 1
                choice = {"index": 0, "delta": piece, "finish_reason": None}
                if body.get("logprobs") and piece.get("content"):
                    token = piece["content"]
                    top = [{"token": token, "logprob": -0.105, "bytes": None}, {"token": EVIL, "logprob": -2.4, "bytes": None}]
                    choice["logprobs"] = {"content": [{"token": token, "logprob": -0.105, "bytes": None, "top_logprobs": top}]}
                self.wfile.write(data_line({**head, "choices": [choice]}))
                if self.fake.gate is not None:
                    self.fake.gate.acquire(timeout=20)
                elif self.fake.token_s:
                    time.sleep(self.fake.token_s)
            self.wfile.write(data_line({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": chat.why}]}))
            usage = {"prompt_tokens": 52, "completion_tokens": n, "total_tokens": 52 + n,
                     "prompt_tokens_details": {"cached_tokens": 48}}
            self.wfile.write(data_line({**head, "choices": [], "usage": usage}))
            self.wfile.write(b"data: [DONE]\n\n")
            self.fake.ended.append("end")
        except OSError:
            self.fake.ended.append("cut")


def sse(event, data):
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def data_line(data):
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass  # a viewer that left


class Fake:
    """The server around a world."""

    def __init__(self, scene="small", key=None, tenant_key=None, port=0, auto=False, seed=1):
        self.world = World(scene, seed)
        self.key, self.tenant_key, self.port = key, tenant_key, port
        self.refuse = None  # (status, body) that every admin route answers
        self.token_s, self.gate = 0.0, None  # of chats: seconds between pieces, or a semaphore, one for each piece
        self.chats, self.ended, self.viewers = [], [], {}
        self.opening = threading.Lock()
        self.sent = 0  # bytes of deltas
        self.auto = auto
        self.server = None
        self.up()
        if auto:
            threading.Thread(target=self.run, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def up(self):
        self.server = Server(("127.0.0.1", self.port), Handler)
        self.server.fake = self
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def down(self):
        """The end of the process: connections close, the port refuses."""
        self.server.shutdown()
        self.server.server_close()
        self.drop()

    def drop(self):
        """Closes all streams."""
        for q, connection in list(self.viewers.items()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            q.put(None)

    def end(self):
        """Ends all streams as a daemon does whose configuration changed; drop() breaks them."""
        self.send_bytes(b"")
        for q in list(self.viewers):
            q.put(None)

    def close(self):
        self.auto = False
        self.down()

    def send_bytes(self, data):
        for q in list(self.viewers):
            q.put(data)

    def send(self, delta):
        """A delta that the caller wrote."""
        data = sse("delta", delta)
        self.sent += len(data)
        with self.opening:
            self.send_bytes(data)

    def flush(self):
        with self.opening:
            delta = self.world.delta()
            if delta:
                self.send_bytes(sse("delta", delta))

    def tick(self):
        with self.opening:
            delta = self.world.tick()
            if delta:
                data = sse("delta", delta)
                self.sent += len(data)
                self.send_bytes(data)

    def run(self):
        began = time.monotonic()
        while self.auto:
            time.sleep(0.5)
            if self.world.scene == "storm" or self.sent < RATE * (time.monotonic() - began):
                self.tick()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--scene", default="small", choices=["small", "gpu", "large", "storm", "hostile", "states", "lost", "empty"])
    p.add_argument("--port", type=int, default=8090)
    p.add_argument("--key")
    p.add_argument("--tenant-key")
    a = p.parse_args()
    fake = Fake(a.scene, a.key, a.tenant_key, a.port, auto=True)
    fake.token_s = 0.02
    print(f"{fake.url}/ui", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
