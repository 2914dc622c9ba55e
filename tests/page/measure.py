"""How long the page's frames take in Chromium, and what a viewer costs it.

    python tests/page/measure.py [--scene storm] [--seconds 20] [--url http://127.0.0.1:8080/ui#key=...]

One line for each scene: `storm` changes all 72,000 pages, 64 models and 100 tenants twice a second; `large` keeps to the
100 KB/s that the daemon allows itself.  `apply` is the time from an event's text to the changed state, `frame` the
script of a frame (both by the page's own measures); `task` is a task of the page's main thread, with style,
layout and paint, in time of its thread, from Chromium's trace; `long` counts long tasks (50 ms).  `core` is the part of one core that the
main thread uses.  With --url it is the page of a daemon that runs.
"""

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from browser import ARGS, CHROMIUM  # noqa: E402
from fake_daemon import Fake  # noqa: E402

WATCH = """
window.times = {frame: [], apply: [], long: 0};
new PerformanceObserver(l => l.getEntries().forEach(e => {
    const kind = e.name.replace("inferd-", "");
    if (window.times[kind]) window.times[kind].push(e.duration);
})).observe({type: "measure"});
new PerformanceObserver(l => window.times.long += l.getEntries().length).observe({type: "longtask"});
"""


def stat(values):
    v = sorted(values)
    return {"n": len(v), "p50": v[len(v) // 2], "p99": v[min(len(v) - 1, len(v) * 99 // 100)], "max": v[-1]} if v else {"n": 0}


def main_thread_tasks(trace):
    """Durations in ms of the tasks of the renderer's main thread."""
    main = {(e["pid"], e["tid"]) for e in trace if e.get("name") == "thread_name" and e["args"].get("name") == "CrRendererMain"}
    busy = {}
    for e in trace:
        if e.get("name") == "FunctionCall" and (e["pid"], e["tid"]) in main:
            busy[(e["pid"], e["tid"])] = busy.get((e["pid"], e["tid"]), 0) + 1
    page = max(busy, key=busy.get)
    return [e["tdur"] / 1000 for e in trace
            if e.get("name") in ("RunTask", "ThreadControllerImpl::RunTask") and (e["pid"], e["tid"]) == page and "tdur" in e]


def measure(browser, scene, seconds, url=None):
    fake = Fake(scene)
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    page = context.new_page()
    page.goto(url or fake.url + "/ui")
    page.wait_for_selector("[data-state=live]")
    time.sleep(1)
    page.evaluate(WATCH)
    cdp = browser.new_browser_cdp_session()
    trace = []
    cdp.on("Tracing.dataCollected", lambda e: trace.extend(e["value"]))
    done = []
    cdp.on("Tracing.tracingComplete", lambda e: done.append(1))
    cdp.send("Tracing.start", {"transferMode": "ReportEvents", "traceConfig": {
        "includedCategories": ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]}})
    fake.auto = True
    sent, began = fake.sent, time.monotonic()
    threading.Thread(target=fake.run, daemon=True).start()
    page.wait_for_timeout(seconds * 1000)
    fake.auto = False
    took = time.monotonic() - began
    rate = (fake.sent - sent) / took
    cdp.send("Tracing.end")
    while not done:
        page.wait_for_timeout(50)
    times = page.evaluate("window.times")
    tasks = main_thread_tasks(trace)
    out = {"scene": url or scene, "kB/s": round(rate / 1000, 1), "frame": stat(times["frame"]), "apply": stat(times["apply"]),
           "task": stat([t for t in tasks if t > 1]), "long": times["long"], "core": round(sum(tasks) / 1000 / took, 4)}
    context.close()
    fake.close()
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--scene", action="append")
    p.add_argument("--seconds", type=float, default=15)
    p.add_argument("--url")
    a = p.parse_args()
    with sync_playwright() as pw:
        browser = pw.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        for scene in ["empty"] if a.url else a.scene or ["small", "large", "storm"]:
            r = measure(browser, scene, a.seconds, a.url)
            print(json.dumps(r, default=float))
        browser.close()


if __name__ == "__main__":
    main()
