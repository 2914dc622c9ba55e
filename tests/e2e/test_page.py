"""The page in Chromium, served by the daemon: each button's effect in the daemon, states of models, what a plan says and
what then happens, the end of the daemon and its return, keys, the socket of administrators behind a forwarder, the chat,
and names and answers that are markup.  tests/page has what needs no daemon."""

import contextlib
import os
import re
import socket
import sys
import threading

import httpx
import pytest

import scripted
from conftest import ROOT, SLOW
from test_admin import ADMIN, TENANT, Served, models

sys.path.append(str(ROOT / "tests" / "page"))
import browser as chrome  # noqa: E402

WHY_NOT = chrome.why_not()
if WHY_NOT:
    if os.environ.get("CI") == "true" or os.environ.get("INFERD_TEST_NO_SKIP") == "1":
        pytest.fail(WHY_NOT, pytrace=False)
    pytest.skip(WHY_NOT, allow_module_level=True)
from playwright.sync_api import expect  # noqa: E402

expect.set_options(timeout=20000 * SLOW)
EVIL = "<script>window.hacked = 1</script>"


class Forward:
    """What `ssh -L PORT:SOCKET` does: TCP on loopback to a Unix socket."""

    def __init__(self, path):
        self.path, self.all = path, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                a, _ = self.listener.accept()
                b = socket.socket(socket.AF_UNIX)
                try:
                    b.connect(str(self.path))
                except OSError:
                    a.close()
                    continue
                self.all += [a, b]
                for x, y in ((a, b), (b, a)):
                    threading.Thread(target=self.copy, args=(x, y), daemon=True).start()

    @staticmethod
    def copy(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(1 << 16):
                b.sendall(data)
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        for s in [self.listener, *self.all]:
            s.close()


@pytest.fixture(scope="module")
def chromium():
    with chrome.chromium() as b:
        yield b


@pytest.fixture
def visit(chromium):
    """A function that opens an address; what went wrong in the page fails the test."""
    tabs = []

    def go(url, live=True, **more):
        tab = chrome.Tab(chromium, **more)
        tabs.append(tab)
        tab.page.goto(url)
        if live:
            expect(tab.page.locator("#link")).to_have_attribute("data-state", "live")
        return tab.page

    yield go
    assert [p for t in tabs for p in t.close()] == []


@pytest.fixture(scope="module")
def served(launch, tmp_path_factory):
    """Room for two of four models; the page is on the main listener."""
    folder = tmp_path_factory.mktemp("page")
    return Served(launch, folder, memory="12MiB", models=models(a={"class": "high"}, d={"class": "batch"}),
                  admin={"listen": f"unix:{folder}/admin.sock", "keys": [ADMIN], "page": True})


def page_of(s):
    return s.d.url + "/ui#key=" + ADMIN


def row(page, name):
    return page.locator("#models tbody tr").filter(has=page.locator(".open", has_text=re.compile(f"^{re.escape(name)}$")))


def shows(page, name, state):
    expect(row(page, name).locator(".pill")).to_have_text(state)


def press(page, name, text):
    row(page, name).get_by_role("button", name=re.compile(f"^{text}\\b")).click()


def confirm(page):
    expect(page.locator("#ask")).to_be_visible()
    page.locator("#ask-yes").click()
    expect(page.locator("#ask")).to_be_hidden()


# -- the board -------------------------------------------------------------------------------------


def test_each_button_has_its_effect_in_the_daemon(served, visit):
    s, page = served, visit(page_of(served))
    expect(page.locator("#models tbody tr")).to_have_count(4)
    state = lambda name: s.model(name)["state"]
    if state("a") != "hot":
        press(page, "a", "Load")
        confirm(page)
    shows(page, "a", "hot")
    assert state("a") == "hot"

    press(page, "a", "Pin")
    expect(row(page, "a").locator(".badge")).to_have_text("pin")
    assert s.model("a")["pin"] == "hot"
    press(page, "a", "Unpin")
    expect(row(page, "a").locator(".badge")).to_have_text("")
    assert s.model("a")["pin"] == "none"

    press(page, "a", "Unload")
    expect(row(page, "a").get_by_role("button", name="Load a", exact=True)).to_be_visible()
    s.until(lambda: state("a") != "hot")
    press(page, "a", "Drain")
    expect(row(page, "a").locator(".badge")).to_have_text("held")
    assert s.model("a")["held"] and s.ask("a").status_code == 503
    press(page, "a", "Undrain")
    confirm(page)
    expect(row(page, "a").locator(".badge")).to_have_text("")
    shows(page, "a", "hot")
    assert not s.model("a")["held"] and s.ask("a").status_code == 200

    row(page, "a").locator(".open").click()
    details = page.locator("#details")
    details.get_by_role("button", name="Drop").click()
    expect(details).to_contain_text(re.compile("State(cold|none)"))
    s.until(lambda: state("a") in ("cold", "none"))
    details.get_by_role("button", name="Prefetch").click()
    expect(details).to_contain_text("Statewarm")
    assert state("a") == "warm"
    details.get_by_role("button", name="Pin in host memory").click()
    expect(details).to_contain_text("Pinwarm")
    assert s.model("a")["pin"] == "warm"
    details.get_by_role("button", name="Unpin").click()
    expect(details).to_contain_text("Pinnone")
    assert s.model("a")["pin"] == "none"


def test_a_plan_names_the_models_that_a_load_then_evicts(served, visit):
    s, page = served, visit(page_of(served))
    for name in ("a", "d"):
        assert s.ask(name).status_code == 200
    s.until(lambda: s.state()["queues"]["running"] == 0)
    hot = {m["name"] for m in s.state()["models"] if m["state"] == "hot"}
    wanted = next(n for n in ("c", "org/b") if n not in hot)
    s.until(lambda: (p := s.admin.post("/admin/plan", json={"load": wanted}).json())["now"] and p["victims"])
    press(page, wanted, "Load")
    expect(page.locator("#ask-text")).to_contain_text("It would evict")
    said = page.locator("#ask-text").inner_text()
    victims = {n for n in hot if re.search(rf"\b{re.escape(n)} \(", said.split("evict", 1)[1])}
    assert victims, said
    confirm(page)
    shows(page, wanted, "hot")
    gone = hot - {m["name"] for m in s.state()["models"] if m["state"] == "hot"}
    assert gone == victims
    for name in victims:
        expect(page.locator("#events")).to_contain_text(re.compile(rf"evicted {re.escape(name)}: .*for {re.escape(wanted)}"))
        expect(row(page, name).locator(".pill")).not_to_have_text("hot")


def test_the_map_shows_the_pages_of_the_models(served, visit):
    s, page = served, visit(page_of(served))
    assert s.ask("a").status_code == 200
    shows(page, "a", "hot")
    page.get_by_role("button", name="Table").click()
    line = page.locator(".pages tbody tr").filter(has_text=re.compile(r"^a\s*weights"))
    expect(line.locator(".n").first).to_have_text(str(s.model("a")["pages"]["weight"]))
    page.get_by_role("button", name="Table").click()
    page.wait_for_function("() => { const c = document.querySelector('.map'); return c.width > 50 &&"
                           " c.getContext('2d').getImageData(0, 0, 1, 1).data[3] === 255; }")


def test_a_running_request_is_seen_and_draining_waits_for_it(launch, tmp_path, visit):
    s = Served(launch, tmp_path, models=[{"name": "slow", "path": "dummy:tiny?layers=120&seed=1"}], memory="768MiB",
               tenants=[{"name": "t", "keys": [TENANT]}],
               admin={"listen": f"unix:{tmp_path}/admin.sock", "keys": [ADMIN], "page": True})
    page = visit(page_of(s))
    body = {"model": "slow", "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", s.d.url + "/v1/completions", json=body, timeout=60 * SLOW,
                      headers={"Authorization": f"Bearer {TENANT}"}) as r:
        assert r.status_code == 200, r.read()
        expect(row(page, "slow").locator(".work")).to_have_text("1 / 0")
        expect(page.locator("#tenants tbody tr", has_text="t").first.locator(".work")).to_have_text("1 / 0")
        expect(page.locator("#steps .model").first).to_have_text("slow")
        expect(page.locator("#steps .seqs li:visible").first).to_contain_text("t")
        press(page, "slow", "Drain")
        expect(page.locator("#ask-text")).to_contain_text("slow has 1 running request.")
        confirm(page)
        shows(page, "slow", "draining")
        expect(row(page, "slow").locator(".badge")).to_have_text("held")
        assert s.model("slow")["state"] == "draining"
    expect(row(page, "slow").locator(".pill")).not_to_have_text("draining")  # the client left
    expect(row(page, "slow").locator(".work")).to_have_text("0 / 0")
    expect(page.locator(".chart .keys").nth(2)).to_contain_text("out")


def test_weights_that_are_being_read_are_shown_beside_the_work_of_others(launch, tmp_path, visit):
    """A slow device: pieces of the load run between its steps, so the load lasts for some of them."""
    s = Served(launch, tmp_path, memory="768MiB", args=["--allow-faults"],
               models=[{"name": "slow", "path": "dummy:tiny?layers=120&seed=1"},
                       {"name": "comes", "path": "dummy:tiny?layers=40&seed=2"}],
               tenants=[{"name": "t", "keys": [TENANT]}],
               admin={"listen": f"unix:{tmp_path}/admin.sock", "keys": [ADMIN], "page": True})
    page = visit(page_of(s))
    assert s.do("comes", "drop").status_code == 200
    shows(page, "comes", "cold")
    device = s.state()["devices"][0]["name"]
    slow = lambda times: s.admin.post(f"/admin/devices/{device}/slow", json={"times": times}).status_code
    body = {"model": "slow", "prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", s.d.url + "/v1/completions", json=body, timeout=60 * SLOW,
                      headers={"Authorization": f"Bearer {TENANT}"}) as r:
        assert r.status_code == 200, r.read()
        assert slow(20) == 200
        press(page, "comes", "Load")
        confirm(page)
        shows(page, "comes", "staging")
        expect(row(page, "comes").get_by_role("button", name=re.compile("^Load"))).to_be_visible()
        shows(page, "comes", "hot")
        expect(row(page, "comes").get_by_role("button", name=re.compile("^Unload"))).to_be_visible()
        assert slow(1) == 200


def test_a_model_whose_file_is_gone_is_shown_as_failed_with_its_reason(launch, tmp_path, tiny_model, visit):
    file = tmp_path / "m.gguf"
    file.write_bytes(open(tiny_model, "rb").read())
    s = Served(launch, tmp_path, models=[*models(["a"]), {"name": "m", "path": str(file)}],
               admin={"listen": f"unix:{tmp_path}/admin.sock", "keys": [ADMIN], "page": True})
    page = visit(page_of(s))
    assert s.do("m", "drop").status_code == 200
    with open(file, "r+b") as f:
        f.truncate(4096)
    press(page, "m", "Load")
    page.locator("#ask-yes").click()
    s.until(lambda: s.model("m")["state"] == "failed")
    shows(page, "m", "failed")
    page.keyboard.press("Escape")  # the question, if the daemon refused it at once
    row(page, "m").locator(".open").click()
    expect(page.locator("#details-error")).to_have_text(s.model("m")["error"])
    expect(page.locator("#details-error")).not_to_be_empty()


# -- connections and keys --------------------------------------------------------------------------


def test_the_page_outlives_the_daemon(launch, tmp_path, visit):
    config = dict(models=models(["a"]), admin={"listen": f"unix:{tmp_path}/admin.sock", "keys": [ADMIN], "page": True})
    s = Served(launch, tmp_path, **config)
    page = visit(page_of(s))
    expect(page.locator("#models tbody tr")).to_have_count(1)
    port = s.d.port
    assert s.d.stop() == 0
    expect(page.locator("#link")).to_have_attribute("data-state", "away")
    expect(page.locator("#banner-text")).to_contain_text("no answer since")
    config["models"] = models(["a", "z"])
    Served(launch, tmp_path, listen=f"127.0.0.1:{port}", **config)
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    expect(page.locator("#models tbody tr")).to_have_count(2)
    expect(page.locator("#banner")).to_be_hidden()


def test_the_main_listener_wants_a_key_of_admin(served, visit):
    page = visit(served.d.url + "/ui", live=False)
    expect(page.locator("#key")).to_be_visible()
    page.fill("#key-input", "no-such-key-0123456789")
    page.keyboard.press("Enter")
    expect(page.locator("#key-text")).not_to_be_empty()
    page.fill("#key-input", ADMIN)
    page.keyboard.press("Enter")
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    page.evaluate("sessionStorage.setItem('inferd.admin_key', %r)" % TENANT)
    page.reload()
    expect(page.locator("#link")).to_have_attribute("data-state", "refused")
    expect(page.locator("#banner-text")).not_to_be_empty()


def test_the_socket_of_administrators_wants_none(served, visit):
    forward = Forward(served.sock)
    try:
        page = visit(f"http://localhost:{forward.port}/ui")
        expect(page.locator("#models tbody tr")).to_have_count(4)
        press(page, "a", "Pin")
        if page.locator("#ask").is_visible():
            confirm(page)
        served.until(lambda: served.model("a")["pin"] == "hot" or (page.locator("#ask").is_visible() and confirm(page)))
        press(page, "a", "Unpin")
        served.until(lambda: served.model("a")["pin"] == "none")
    finally:
        forward.close()


# -- the chat --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script(launch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")

    def config(model):
        return scripted.config_of(model, admin={"listen": f"unix:{folder}/admin.sock", "keys": [ADMIN], "page": True})
    return scripted.start(launch, folder, config=config)


def say(page, text):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def test_a_chat_streams_markup_as_text_with_its_figures(script, visit):
    page = visit(script.url + f"/ui#key={ADMIN}&chat")
    page.goto(script.url + "/ui#chat=m")
    bad = EVIL + " and <img src=x onerror='window.hacked = 1'> **bold**"
    script.say("write markup", bad)
    say(page, f"{EVIL} write markup")
    answer = page.locator(".assistant > .text")
    expect(page.locator(".stats")).to_contain_text("stop")
    expect(answer).to_have_text(bad.replace("**", ""))
    expect(answer.locator("strong")).to_have_text("bold")
    expect(page.locator(".stats")).to_have_text(re.compile(r"tokens/s · TTFT .* · \d+ tokens · prompt \d+.* · stop"))
    assert page.evaluate("[document.scripts.length, document.querySelectorAll('.log img').length, window.hacked]") == [1, 0, None]
    say(page, f"{EVIL} write markup")
    expect(page.locator(".stats")).to_contain_text("cached")


def test_tools_reasoning_and_log_probabilities_of_the_daemon_are_shown(script, visit):
    page = visit(script.url + "/ui#key=" + ADMIN)
    page.goto(script.url + "/ui#chat=m")
    script.say("the weather?", '<tool_call>\n{"name": "weather", "arguments": {"city": "Kiel"}}\n</tool_call>', once=True)
    script.say(["<tool_response>", "hail"], "There is hail in Kiel.")
    page.locator("summary", has_text="Tools").click()
    page.fill("#s-tools", '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",'
                          ' "properties": {"city": {"type": "string"}}}}}]')
    say(page, "the weather?")
    expect(page.locator(".call b")).to_have_text("weather")
    expect(page.locator(".call code")).to_have_text(re.compile(r'{"city": ?"Kiel"}'))
    expect(page.locator("#send")).to_have_text("Send")
    page.locator(".call textarea").fill("hail")
    page.locator("#send").click()
    expect(page.locator(".assistant > .text").last).to_have_text("There is hail in Kiel.")

    page.locator("#chat-new").click()
    page.fill("#s-tools", "")
    page.check("#s-logprobs")
    script.say("count them", "Three files.")
    say(page, "count them")
    expect(page.locator(".stats")).to_contain_text("stop")
    expect(page.locator(".assistant > .text")).to_have_text("Three files.")
    page.locator(".token").first.hover()
    expect(page.locator(".token-tip tr").first).to_be_visible()
    assert page.locator(".token").count() >= 3


def test_stop_ends_the_answer_in_the_daemon(script, visit):
    page = visit(script.url + "/ui#key=" + ADMIN)
    page.goto(script.url + "/ui#chat=m")
    script.say("go on", "on and on " * 20000)
    say(page, "go on")
    expect(page.locator(".assistant > .text")).to_contain_text("on and on on and on")
    page.keyboard.press("Escape")
    expect(page.locator(".stats")).to_contain_text("stopped")
    script.settled()
    assert script.http.get("/ready").status_code == 200


def test_names_of_models_and_tenants_that_are_markup_are_text(launch, tmp_path, visit):
    names = [EVIL, "a\"b' \u202e<img src=x onerror=\"window.hacked = 1\">"]
    s = Served(launch, tmp_path, models=models(names), tenants=[{"name": EVIL, "keys": [TENANT]}],
               admin={"listen": f"unix:{tmp_path}/admin.sock", "keys": [ADMIN], "page": True})
    page = visit(page_of(s))
    expect(page.locator("#models tbody tr")).to_have_count(2)
    expect(page.locator("#tenants tbody tr")).to_contain_text([EVIL])
    assert s.ask(EVIL).status_code == 200
    press(page, EVIL, "Unload")
    s.until(lambda: s.model(EVIL)["state"] != "hot")
    expect(page.locator("#events")).to_contain_text(EVIL)
    press(page, EVIL, "Load")
    expect(page.locator("#ask-text")).to_contain_text(EVIL)
    confirm(page)
    s.until(lambda: s.model(EVIL)["state"] == "hot")
    page.goto(s.d.url + "/ui#chat")
    page.fill("#tenant-key", TENANT)
    page.press("#tenant-key", "Enter")
    expect(page.locator("#chat-names label").first).to_contain_text(EVIL)
    assert page.evaluate("[document.scripts.length, document.querySelectorAll('img').length, window.hacked]") == [1, 0, None]
