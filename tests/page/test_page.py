"""The page in Chromium, beside a daemon that is made up (fake_daemon.py): what it shows, each button, each state of a
model, disconnects, keys, the chat, and names that are markup.  e2e/test_page.py does the same with the real daemon."""

import os
import re
import threading

import pytest

import browser as chrome
from fake_daemon import CACHED, EVIL, FREE, KV, PAGE, WEIGHT, Fake, code, error

WHY_NOT = chrome.why_not()
if WHY_NOT:
    if os.environ.get("CI") == "true" or os.environ.get("INFERD_TEST_NO_SKIP") == "1":
        pytest.fail(WHY_NOT, pytrace=False)
    pytest.skip(WHY_NOT, allow_module_level=True)
from playwright.sync_api import expect  # noqa: E402

expect.set_options(timeout=15000)


@pytest.fixture(scope="session")
def chromium():
    with chrome.chromium() as b:
        yield b


AFTER_FRAMES = """async () => { for (let i = 0; i < 5; i++) await new Promise(requestAnimationFrame); }"""


@pytest.fixture
def open_page(chromium):
    """A function that starts a daemon with a scene and opens the page on it."""
    opened = []

    def start(scene="small", path="/ui", live=True, init=None, fake=None, width=1366, height=768, scheme="dark", **more):
        f = fake or Fake(scene, **more)
        tab = chrome.Tab(chromium, width, height, scheme)
        opened.append((f, tab))
        if init:
            tab.page.add_init_script(init)
        tab.page.goto(f.url + path)
        if live:
            expect(tab.page.locator("#link")).to_have_attribute("data-state", "live")
            tab.page.evaluate(AFTER_FRAMES)  # the first drawing, which is spread over a few
        return f, tab.page

    yield start
    problems = [p for _, tab in opened for p in tab.close()]
    for f, _ in opened:
        f.close()
    assert problems == []


def row(page, name):
    return page.locator("#models tbody tr").filter(has=page.locator(".open", has_text=re.compile(f"^{re.escape(name)}$")))


def press(page, name, text):
    row(page, name).get_by_role("button", name=re.compile(f"^{text}\\b")).click()


def confirm(page):
    page.locator("#ask-yes").click()
    expect(page.locator("#ask")).to_be_hidden()


def shot(page):
    """The picture of the first map, when it has its size: width, height, pixels."""
    page.wait_for_function("""() => { const c = document.querySelector(".map"), key = [c.width, c.height, innerWidth].join();
        window.calm = window.calm?.key === key ? {key, n: window.calm.n + 1} : {key, n: 0};
        return window.calm.n > 5; }""")
    return page.evaluate("""() => {
        const c = document.querySelector(".map");
        return [c.width, c.height, Array.from(new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer))];
    }""")


# -- the files -------------------------------------------------------------------------------------


def test_the_files_have_no_way_to_make_markup_of_text():
    files = sorted(PAGE.iterdir())
    assert {f.suffix for f in files} == {".html", ".css", ".js"}
    assert sum(f.stat().st_size for f in files) <= 180_000
    for f in files:
        text = f.read_text()
        for bad in (r"innerHTML", r"outerHTML", r"insertAdjacentHTML", r"document\.write", r"\beval\(", r"new Function", r"DOMParser",
                    r"createContextualFragment", r"setHTML", r"\.on[a-z]+ *=[^=]", r"<[^>]*\son\w+ *=", r"<[^>]*\sstyle *=", r"<style",
                    r"<script(?! type=\"module\" src=\"/ui/page\.js\"></script>)", r"javascript:", r"document\.cookie"):
            assert not re.search(bad, text), (f.name, bad)
        links = [u for u in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text) if "www.w3.org/2000/svg" not in u]
        assert f.suffix == ".js" or links == [], (f.name, links)


# -- what the board shows --------------------------------------------------------------------------


def test_the_board_shows_devices_models_tenants_queue_step_time_charts_and_events(open_page):
    f, page = open_page()
    expect(page.locator("#models tbody tr")).to_have_count(3)
    expect(row(page, "chat").locator(".share")).to_have_text("61 / 60 %")
    expect(row(page, "chat").locator(".mem")).to_have_text("752 MiB")
    expect(row(page, "chat").locator(".badge")).to_have_text("pin")
    expect(row(page, "night").locator(".last")).to_have_text(re.compile(r"^4\d s$"))
    shop = page.locator("#tenants tbody tr", has_text="shop")
    expect(shop.locator(".entitled")).to_have_text("58 / 60 %")
    expect(shop.locator(".today")).to_have_text("1.2M / 5.0M")
    expect(page.locator("#tenants tbody tr", has_text="lab").locator(".refused")).to_have_text("14")
    expect(page.locator("#q-running")).to_have_text("9")
    expect(page.locator("#q-places")).to_have_text("12 / 256")
    step = f.world.devices[0]["step"]
    expect(page.locator("#steps .model")).to_have_text(f.world.models[step["model"]]["name"])
    expect(page.locator("#steps .seqs li:visible")).to_have_count(len(step["seqs"]))
    expect(page.locator("#times .keys")).to_contain_text("requests70 %")
    expect(page.locator(".device .keys").first).to_contain_text("weights340")
    expect(page.locator(".chart")).to_have_count(5)
    expect(page.locator(".chart .keys").first).to_have_text(re.compile(r"P50\d+ ms.*P95\d+ ms"))
    expect(page.locator("#events li").first).to_contain_text("the configuration was read again")
    expect(page.locator("#events li", has_text="refused a request of lab")).to_contain_text("×14")


def test_a_delta_changes_the_rows_that_it_names_and_no_other_element(open_page):
    f, page = open_page()
    expect(page.locator("#models tbody tr")).to_have_count(len(f.world.models))  # drawn in the next frame
    page.evaluate("""() => {
        window.seen = [];
        new MutationObserver(l => l.forEach(m => window.seen.push([m.type, m.target.textContent, m.addedNodes.length])))
            .observe(document.querySelector("#models tbody"), {subtree: true, childList: true, characterData: true, attributes: true});
    }""")
    model = {**f.world.models[1], "out": 4321, "state": "draining"}
    f.send({"models": [model]})
    expect(row(page, "code").locator(".rate")).to_have_text("4,321")
    expect(row(page, "code").locator(".pill")).to_have_text("draining")
    assert page.evaluate("window.seen.filter(s => s[0] === 'childList')") == []
    assert {t for _, t, _ in page.evaluate("window.seen")} <= {"4,321", "draining", "hot"} | {"now"} | \
        {t for _, t, _ in page.evaluate("window.seen") if re.fullmatch(r"\d+ s", t)}


def test_a_row_out_of_sight_is_brought_up_to_date_when_it_comes_into_sight_or_after_five_seconds(open_page):
    f = Fake("large")
    _, page = open_page(fake=f, live=False)
    page.clock.install()
    page.reload()
    for _ in range(20):
        page.clock.run_for(50)
    expect(page.locator("#models tbody tr")).to_have_count(64)
    last = page.locator("#models tbody tr").last
    was = last.locator(".rate").text_content()
    for i, text in ((1, "111"), (2, "222")):
        f.send({"models": [{**f.world.models[63], "out": int(text)}], "queue": {**f.world.queue, "running": i}})
        page.clock.run_for(200)
        expect(page.locator("#q-running")).to_have_text(str(i))
        if i == 1:
            assert last.locator(".rate").text_content() == was
            page.clock.run_for(6000)
            page.clock.run_for(200)
        else:
            last.scroll_into_view_if_needed()
            for _ in range(40):  # two seconds of its clock: no five
                page.clock.run_for(50)
                if last.locator(".rate").text_content() == text:
                    break
        assert last.locator(".rate").text_content() == text


def test_tenants_without_a_row_are_counted_and_are_others(open_page):
    f, page = open_page()
    n = len(f.world.tenants)
    expect(page.locator("#tenants-sum")).to_have_text(re.compile(f"^{n} · "))
    step = {**f.world.devices[0]["step"], "seqs": [["req-1", 999, 1, 0]], "n": 1}
    f.send({"daemon": {**f.world.daemon, "tenants": n + 8}, "devices": [{**f.world.devices[0], "step": step}]})
    expect(page.locator("#tenants-sum")).to_have_text(re.compile(f"^{n} of {n + 8} · "))
    expect(page.locator("#steps .seqs li:visible")).to_contain_text(["another tenant"])


def test_rows_come_and_go(open_page):
    f, page = open_page()
    f.send({"models": [{**f.world.models[0], "id": 7, "name": "new"}], "gone": {"models": [1], "tenants": [0, 1, 2]}})
    expect(page.locator("#models .open")).to_have_text(["chat", "night", "new"])
    expect(page.locator("#no-tenants")).to_be_visible()
    f.send({"daemon": {**f.world.daemon, "draining": True, "unsaved": 2}, "queue": {**f.world.queue, "waiting": 77}})
    expect(page.locator("#d-flags")).to_have_text("draining, 2 unsaved")
    expect(page.locator("#q-waiting")).to_have_text("77")


def test_an_event_that_happens_again_counts_on(open_page):
    f, page = open_page("empty")
    expect(page.locator("#no-events")).to_be_visible()
    e = {"id": 5, "change": 5, "at": 1790000000000, "kind": "refuse", "text": "refused a request of lab", "n": 1}
    f.send({"events": [e]})
    expect(page.locator("#events li")).to_have_count(1)
    f.send({"events": [{**e, "change": 6, "n": 12}, {**e, "id": 6, "change": 7, "kind": "device", "text": "cuda1 is lost"}]})
    expect(page.locator("#events li")).to_have_count(2)
    expect(page.locator("#events li").nth(1)).to_contain_text("×12")
    f.send({"events": [{**e, "id": 4, "change": 4, "text": "an older one, told late"}]})
    expect(page.locator("#events li").nth(2)).to_contain_text("an older one")
    f.send({"events": [{**e, "change": 8, "n": 13, "at": e["at"] + 9}]})
    expect(page.locator("#events li").first).to_contain_text("×13")
    expect(page.locator("#events li")).to_have_count(3)
    expect(page.locator("#alerts")).to_have_text("cuda1 is lost")  # for screen readers; refusals are quiet


def test_refusals_and_failures_push_no_other_event_off_the_page(open_page):
    f, page = open_page("empty")
    f.world.event("load", "chat is on cpu0")
    for i in range(300):
        f.world.event("refuse", f"refused request {i}")
        if i % 3 == 0:
            f.world.event("fail", f"failed request {i}")
        if i % 20 == 0:
            f.flush()
    f.flush()
    expect(page.locator("#events li").first).to_contain_text("refused request 299")
    expect(page.locator("#events li[data-kind=refuse]")).to_have_count(64)
    expect(page.locator("#events li[data-kind=fail]")).to_have_count(64)
    expect(page.locator("#events li").last).to_contain_text("chat is on cpu0")
    for i in range(300):
        f.world.event("admin", f"drain {i}")
    f.flush()
    expect(page.locator("#events li")).to_have_count(256)


def test_after_the_clock_was_set_back_new_events_and_figures_are_the_newest(open_page):
    f, page = open_page()
    hour = 3600
    e = {**f.world.event("load", "told before"), "at": f.world.events[-1]["at"] - hour * 1000}
    f.flush()
    f.send({"events": [{**e, "id": e["id"] + 1, "change": e["change"] + 1, "text": "told after"}]})
    expect(page.locator("#events li").first).to_contain_text("told after")
    last = f.world.rows[-1]
    f.send({"history": {"rows": [[last[0] - hour, 77.0, *last[2:]]]}})
    chart = page.locator(".chart canvas").first
    chart.focus()
    for key in ("End", "Home"):  # no row of later is left
        page.keyboard.press(key)
        expect(page.locator("#said")).to_contain_text("TTFT: P50 77 ms")
    expect(page.locator("#charts-when")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_each_state_of_a_model_has_its_words_and_its_buttons(open_page, scheme):
    _, page = open_page("states", scheme=scheme)
    expected = {"none": "Load", "cold": "Load", "staging": "Load", "warm": "Load", "loading": "Unload", "hot": "Unload",
                "draining": "Unload", "failed": "Load"}
    for state, text in expected.items():
        r = row(page, "is-" + state)
        expect(r.locator(".pill")).to_have_text(state)
        expect(r.locator(".pill")).to_have_attribute("data-state", state)
        expect(r.locator(".acts button").first).to_have_text(text)
    expect(row(page, "is-failed").locator(".pill")).to_have_attribute("title", re.compile("expected \\[1024, 4096\\]"))
    expect(row(page, "is-held").locator(".badge")).to_have_text("held")
    expect(row(page, "is-held").locator(".acts button").nth(2)).to_have_text("Undrain")
    expect(row(page, "is-pinned").locator(".acts button").nth(1)).to_have_text("Unpin")
    row(page, "is-failed").locator(".open").click()
    expect(page.locator("#details-error")).to_have_text("k_proj is [512, 4096], expected [1024, 4096]")


def test_a_lost_device_is_shown_as_lost(open_page):
    _, page = open_page("lost")
    expect(page.locator(".device").nth(1)).to_have_class(re.compile("lost"))
    expect(page.locator(".device").nth(1).locator(".flags")).to_have_text("lost")
    expect(page.locator("#steps .model").nth(1)).to_have_text("lost")


def test_memory_of_the_host_is_no_part_of_a_gpu(open_page):
    """The bar of 80 GiB with 40 GiB of weights showed 60 % warm, and 20 % of each other use."""
    f, page = open_page("gpu")
    bar = page.locator(".device .bar")
    expect(bar).to_have_attribute("aria-label", "cuda0: weights 50 %, warm 120 GiB in host memory, free 50 %")
    assert bar.evaluate("b => [...b.children].map(s => Number(s.style.flexGrow))") == [0.5, 0, 0, 0, 0, 0, 0, 0.5]
    keys = page.locator(".device .keys").first.locator("li:visible")
    expect(keys.filter(has_text="warm")).to_have_text("warm120 GiB in host memory")
    expect(keys.filter(has_text="weights")).to_have_attribute("title", "weights: 40 GiB, 50 %")


# -- pages -----------------------------------------------------------------------------------------


def test_a_changed_run_changes_its_cells_and_no_other_pixel(open_page):
    f, page = open_page()
    w, _, before = shot(page)
    f.world.pages_set(0, 700, 3, code(KV, 2))
    f.flush()
    page.wait_for_function("before => { const c = document.querySelector('.map'); const d = new Uint32Array(c.getContext('2d')"
                           ".getImageData(0, 0, c.width, c.height).data.buffer); return d.some((p, i) => p !== before[i]); }", arg=before)
    _, _, after = shot(page)
    changed = [i for i in range(len(before)) if before[i] != after[i]]
    box = page.locator(".map").bounding_box()
    page.locator(".map").focus()
    for x, y in {(min(i % w for i in changed), min(i // w for i in changed)), (max(i % w for i in changed), max(i // w for i in changed))}:
        page.mouse.move(box["x"] + x + 0.5, box["y"] + y + 0.5)
        expect(page.locator(".tip b").first).to_have_text(re.compile("^page 70[0-2]$"))
        expect(page.locator(".tip bdi").first).to_have_text("night, KV")


def test_a_map_that_comes_after_the_first_event_is_drawn(open_page):
    """The daemon sends it later when its engine was busy: the first version of the page left the canvas blank."""
    f = Fake("empty")
    maps, f.world.maps = f.world.maps, {}
    _, page = open_page(fake=f)
    f.send({"pages": [{"device": 0, "n": len(maps[0]), "runs": [0, 100, code(KV, 0), 100, 200, FREE]}]})
    page.wait_for_function("() => { const c = document.querySelector('.map'); return c.width > 200 &&"
                           " c.getContext('2d').getImageData(0, 0, 1, 1).data[3] === 255; }")
    page.keyboard.press("m")
    said = page.locator("#said")
    expect(said).to_have_text("page 0, a model that left, KV, run of 100, 0 to 99")
    page.keyboard.press("Control+End")
    expect(said).to_have_text("page 511, absent, run of 212, 300 to 511")  # no run named these
    f.send({"pages": [{"device": 0, "n": 600, "runs": [100, 10, code(KV, 0)]}], "queue": {**f.world.queue, "running": 7}})
    expect(page.locator("#q-running")).to_have_text("7")
    page.keyboard.press("Control+Home")
    expect(said).to_have_text("page 0, a model that left, KV, run of 110, 0 to 109")


def test_the_pointer_and_the_keyboard_tell_page_owner_use_and_run(open_page):
    f, page = open_page()
    said = page.locator("#said")
    page.keyboard.press("m")
    expect(said).to_have_text("page 0, chat, weights, run of 68, 0 to 67")
    page.keyboard.press("n")
    expect(said).to_have_text("page 68, chat, KV, run of 212, 68 to 279")
    page.keyboard.press("ArrowRight")
    expect(said).to_have_text("page 69, chat, KV, run of 212, 68 to 279")
    page.keyboard.press("p")
    expect(said).to_have_text(re.compile("^page 0,"))
    page.keyboard.press("ArrowDown")
    down = int(re.match(r"page (\d+)", said.inner_text())[1])
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    expect(said).to_have_text(re.compile(f"^page {down},"))
    page.keyboard.press("Control+End")
    expect(said).to_have_text(re.compile("^page 1,023, free"))
    page.keyboard.press("Escape")
    expect(page.locator(".tip").first).to_be_hidden()


def test_72000_pages_are_on_one_canvas_and_each_is_hit(open_page):
    f, page = open_page("large")
    expect(page.locator("#models tbody tr")).to_have_count(64)
    for at, (owner, use) in {0: (0, CACHED), 36_017: (5, KV), 71_999: (63, KV)}.items():
        f.world.pages_set(0, at, 1, code(use, owner))
    f.world.queue["running"] = 4242
    f.world.pending["queue"] = True
    f.flush()
    expect(page.locator("#q-running")).to_have_text("4,242")  # the delta is here
    page.keyboard.press("m")
    page.keyboard.press("Control+End")
    expect(page.locator("#said")).to_have_text(re.compile("^page 71,999, model-63-\\w+, KV, alone$"))
    mark = page.locator(".mark").bounding_box()
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    expect(page.locator(".tip b").first).to_have_text("page 71,999")


def test_the_pool_is_also_a_table(open_page):
    f, page = open_page()
    page.get_by_role("button", name="Table").click()
    rows = page.locator(".pages tbody tr")
    expect(rows.filter(has_text="chat").filter(has_text="weights")).to_have_text(re.compile(r"chat\s*weights\s*68\s*136 MiB\s*1$"))
    f.world.pages_set(0, 900, 10, FREE)
    f.world.pages_set(0, 1000, 2, code(CACHED, 1))
    f.flush()
    expect(rows.filter(has_text="code").filter(has_text="cached")).to_have_text(re.compile(r"code\s*cached\s*62\s*124 MiB\s*2$"))


def test_the_table_and_the_owners_are_new_after_a_reconnection(open_page):
    f, page = open_page()
    page.get_by_role("button", name="Table").click()
    page.get_by_role("button", name="Enlarge").click()
    rows = page.locator(".pages tbody tr")
    expect(rows.filter(has_text="code")).not_to_have_count(0)
    f.down()
    f.world.maps[0] = [code(WEIGHT, 2)] * 100
    f.up()
    expect(rows).to_have_text([re.compile(r"night\s*weights\s*100\s*200 MiB\s*1$")])
    expect(page.locator(".owners li")).to_have_text(["night200 MiB"])


def test_the_pool_can_have_the_whole_window_and_then_names_the_owners(open_page):
    _, page = open_page()
    small = page.locator(".map").bounding_box()
    page.get_by_role("button", name="Enlarge").click()
    expect(page.locator(".owners li")).to_have_text(["chat752 MiB", "code960 MiB", "night240 MiB"])
    expect(page.locator("#models")).to_be_hidden()
    page.wait_for_function("w => document.querySelector('.map').getBoundingClientRect().width > 2 * w", arg=small["width"])
    page.keyboard.press("Escape")
    expect(page.locator("#models")).to_be_visible()


def test_the_pages_of_the_model_under_the_pointer_stand_out(open_page):
    _, page = open_page()
    before = shot(page)
    row(page, "code").hover()
    page.wait_for_function("before => { const c = document.querySelector('.map'); return new Uint32Array(c.getContext('2d')"
                           ".getImageData(0, 0, 1, 1).data.buffer)[0] !== before; }", arg=before[2][0])
    page.mouse.move(5, 5)
    page.wait_for_function("before => { const c = document.querySelector('.map'); return new Uint32Array(c.getContext('2d')"
                           ".getImageData(0, 0, 1, 1).data.buffer)[0] === before; }", arg=before[2][0])


# -- commands --------------------------------------------------------------------------------------


def test_load_shows_its_plan_first_and_loads_when_it_is_confirmed(open_page):
    f, page = open_page()
    press(page, "night", "Load")
    expect(page.locator("#ask-text")).to_have_text(re.compile("240 MiB.*cpu0 from its file, in about 310 ms.*"
                                                              "would evict code \\(96 MiB, idle 40 s, back in 120 ms\\)"))
    page.locator("#ask-no").click()
    assert f.world.done == []
    press(page, "night", "Load")
    confirm(page)
    expect(row(page, "night").locator(".pill")).to_have_text("loading")
    assert f.world.done == [("night", "load", {})]
    for _ in range(4):
        f.tick()
    expect(row(page, "night").locator(".pill")).to_have_text("hot")


def test_a_plan_for_a_drain_that_ends_loads_nothing(open_page):
    _, page = open_page()
    press(page, "chat", "Drain")
    confirm(page)
    press(page, "chat", "Undrain")
    expect(page.locator("#ask-text")).to_have_text("chat is on cpu0; nothing is loaded.")


def test_a_plan_that_does_not_fit_says_why(open_page):
    _, page = open_page("states")
    press(page, "is-none", "Load")
    expect(page.locator("#ask-text")).to_contain_text("is-none does not fit on cpu0.")
    expect(page.locator("#ask-text")).to_contain_text("its weights need 3,072 MiB, cpu0 has 2,048 MiB.")
    expect(page.locator("#ask-yes")).to_have_text("Load anyway")


PLAN = {"fits": True, "now": True, "turns": False, "device": "d0", "weights": {"bytes": 4 << 20}, "problems": [], "checks": [],
        "bring_up": {"s": 0.4, "from": "host"}, "parts": {"wanted": 2, "fit": 2},
        "victims": [{"name": "a", "device": "d0", "bytes": 2 << 20, "idle_s": 40, "back_s": 0.1},
                    {"name": "b", "device": "d1", "bytes": 6 << 20, "idle_s": 0, "back_s": 0.2}],
        "devices": [{"name": "d0", "used": True}, {"name": "d1", "used": True}, {"name": "d2", "used": False}]}


def plan_text(page, **more):
    return page.evaluate("""async plan => (await import("/ui/commands.js")).planSentences(plan, "two")""", {**PLAN, **more})


def test_a_plan_of_several_parts_names_all_their_devices_and_victims(open_page):
    _, page = open_page("empty")
    assert plan_text(page) == [
        "two (4 MiB each) would be loaded on d0 and d1 from host memory, in about 400 ms.",
        "It would evict a (2 MiB on d0, idle 40 s, back in 100 ms) and b (6 MiB on d1, back in 200 ms)."]
    assert plan_text(page, fits=False, victims=[], parts={"wanted": 2, "fit": 1}) == [
        "two does not fit on d0 and d1.", "Devices have room for 1 of its 2 parts."]


def test_a_plan_for_turns_says_what_is_evicted_when(open_page):
    """It said that no model would be evicted, and how long that takes."""
    _, page = open_page("empty")
    turns = "Models of its class that are at work would be evicted in turns, when requests for two come."
    one = [PLAN["devices"][0]]
    assert plan_text(page, turns=True, now=False, victims=[], devices=one) == [
        "two (4 MiB) would be loaded on d0 from host memory.", turns]
    assert plan_text(page, turns=True, now=False)[1:] == [plan_text(page)[1], turns]


@pytest.mark.parametrize("name,text,what,body", [
    ("chat", "Unload", "unload", {}), ("chat", "Drain", "drain", {}), ("chat", "Unpin", "unpin", {}),
    ("code", "Pin", "pin", {"level": "hot"})])
def test_a_button_of_a_row_sends_its_command(open_page, name, text, what, body):
    f, page = open_page()
    press(page, name, text)
    if what in ("unload", "drain"):  # with requests that run it asks
        expect(page.locator("#ask-text")).to_contain_text("chat has 6 running requests.")
        confirm(page)
    expect(page.locator("#events li").first).to_contain_text(f"{what} {name}")
    assert f.world.done == [(name, what, body)]


def test_the_unload_of_a_pinned_model_is_asked_about(open_page):
    f, page = open_page("states")
    press(page, "is-pinned", "Unload")
    expect(page.locator("#ask-text")).to_have_text("It is pinned and comes back at once; unpin it first.")
    assert f.world.done == []
    confirm(page)
    assert f.world.done == [("is-pinned", "unload", {})]
    press(page, "is-hot", "Unload")
    expect(row(page, "is-hot").locator(".pill")).to_have_text("warm")


def test_the_dialog_of_a_model_has_the_other_commands(open_page):
    f, page = open_page("states")
    row(page, "is-cold").locator(".open").click()
    details = page.locator("#details")
    details.get_by_role("button", name="Prefetch").click()
    expect(page.locator("#details-list")).to_contain_text("Statewarm")
    details.get_by_role("button", name="Pin in host memory").click()
    expect(page.locator("#details-list")).to_contain_text("Pinwarm")
    details.get_by_role("button", name="Unpin").click()
    expect(page.locator("#details-list")).to_contain_text("Pinnone")
    details.get_by_role("button", name="Drop").click()
    expect(page.locator("#details-list")).to_contain_text("Statecold")
    details.get_by_role("button", name="Drain", exact=True).click()
    details.get_by_role("button", name="End drain").click()
    confirm(page)
    assert [(n, w, b) for n, w, b in f.world.done] == [
        ("is-cold", "prefetch", {}), ("is-cold", "pin", {"level": "warm"}), ("is-cold", "unpin", {}), ("is-cold", "drop", {}),
        ("is-cold", "drain", {}), ("is-cold", "undrain", {})]


def test_the_error_of_a_command_stands_beside_its_button(open_page):
    f, page = open_page("states")
    press(page, "is-failed", "Load")
    page.locator("#ask-yes").click()
    expect(page.locator("#ask-error")).to_have_text(re.compile("^is-failed cannot be loaded: k_proj"))
    page.keyboard.press("Escape")
    del f.world.models[5]  # the stream has not told the page yet
    press(page, "is-hot", "Unload")
    note = page.locator(".note")
    expect(note).to_contain_text("is-hot: no model is named is-hot")
    a, b = note.bounding_box(), row(page, "is-hot").locator(".acts button").first.bounding_box()
    assert abs(a["y"] - b["y"] - b["height"]) < 12
    page.keyboard.press("Escape")
    expect(note).to_be_hidden()


def frames(page):
    """After two frames, what came before is handled."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_of_two_plans_only_the_newer_one_is_asked_about(open_page):
    f, page = open_page("states")
    held = []
    page.route("**/admin/plan", lambda r: held.append(r))
    press(page, "is-cold", "Load")
    press(page, "is-warm", "Load")
    expect(row(page, "is-warm").locator(".acts button").first).to_have_attribute("aria-busy", "true")
    held[1].continue_()
    expect(page.locator("#ask-title")).to_have_text("Load is-warm?")
    with page.expect_response("**/admin/plan"):
        held[0].continue_()
    expect(row(page, "is-cold").locator(".acts button").first).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#ask-title")).to_have_text("Load is-warm?")
    confirm(page)
    assert f.world.done == [("is-warm", "load", {})]


def test_a_plan_that_comes_late_does_not_open_over_another_dialog(open_page):
    _, page = open_page("states")
    held = []
    page.route("**/admin/plan", lambda r: held.append(r))
    press(page, "is-cold", "Load")
    row(page, "is-warm").locator(".open").click()
    expect(page.locator("#details")).to_be_visible()
    held[0].continue_()
    expect(row(page, "is-cold").locator(".acts button").first).not_to_have_attribute("aria-busy", "true")
    expect(page.locator("#ask")).to_be_hidden()
    expect(page.locator("#details-title")).to_have_text("is-warm")


@pytest.mark.parametrize("status", [202, 409])
def test_an_answer_for_a_dialog_that_was_cancelled_leaves_the_next_one_alone(open_page, status):
    f, page = open_page("states")
    held = []
    page.route("**/admin/models/is-cold/load", lambda r: held.append(r))
    press(page, "is-cold", "Load")
    for _ in range(2):
        page.locator("#ask-yes").click()
    expect(page.locator("#ask-yes")).to_have_attribute("aria-busy", "true")
    page.locator("#ask-no").click()
    press(page, "is-warm", "Load")
    expect(page.locator("#ask-title")).to_have_text("Load is-warm?")
    expect(page.locator("#ask-yes")).not_to_have_attribute("aria-busy", "true")
    assert len(held) == 1  # of a double click
    with page.expect_response("**/is-cold/load"):
        held[0].fulfill(status=status, json=error("is-cold has no room", "no_room"))
    if status == 409:
        expect(page.locator(".note")).to_contain_text("is-cold: is-cold has no room")
    frames(page)
    expect(page.locator("#ask")).to_be_visible()
    expect(page.locator("#ask-error")).to_be_hidden()
    confirm(page)
    assert f.world.done == [("is-warm", "load", {})]


@pytest.mark.parametrize("scene", ["small", "empty"])
def test_the_dialog_of_a_model_closes_when_its_id_is_of_another_model_or_of_none(open_page, scene):
    f, page = open_page("states")
    row(page, "is-cold").locator(".open").click()
    expect(page.locator("#details-title")).to_have_text("is-cold")
    f.drop()
    expect(page.locator("#link")).to_have_attribute("data-state", "away")
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    expect(page.locator("#details")).to_be_visible()  # the same model
    f.down()
    f.world.__init__(scene)
    f.up()
    expect(page.locator("#models tbody tr")).to_have_count(len(f.world.models))
    expect(page.locator("#details")).to_be_hidden()


# -- the connection --------------------------------------------------------------------------------


def test_a_daemon_that_ends_is_shown_as_such_and_the_page_comes_back_by_itself(open_page):
    f, page = open_page()
    f.down()
    expect(page.locator("#link")).to_have_attribute("data-state", "away")
    expect(page.locator("#banner-text")).to_have_text(re.compile(r"no answer since \d\d:\d\d:\d\d"))
    expect(page.locator("body")).to_have_class("stale")
    expect(page).to_have_title("no answer – inferd")
    expect(page.locator("#models tbody tr")).to_have_count(3)  # the last state stays readable
    f.world.__init__("states")  # another process
    f.up()
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("body")).not_to_have_class("stale")
    expect(page.locator("#models tbody tr")).to_have_count(11)
    expect(row(page, "chat")).to_have_count(0)


def test_a_stream_that_breaks_is_opened_again(open_page):
    f, page = open_page()
    for _ in range(2):
        f.drop()
        expect(page.locator("#link")).to_have_attribute("data-state", "away")
        expect(page.locator("#link")).to_have_attribute("data-state", "live")
    f.send({"queue": {**f.world.queue, "running": 123}})
    expect(page.locator("#q-running")).to_have_text("123")
    expect(page.locator("#events li")).to_have_count(6)  # none of them twice


def test_a_stream_that_the_daemon_ends_is_opened_again_at_once(open_page):
    f, page = open_page()
    page.evaluate("""() => { window.states = [];
        new MutationObserver(() => window.states.push(document.querySelector("#link").dataset.state))
            .observe(document.querySelector("#link"), { attributes: true }); }""")
    f.send({"queue": {**f.world.queue, "running": 123}})
    expect(page.locator("#q-running")).to_have_text("123")
    f.world.queue["running"] = 7
    f.end()
    expect(page.locator("#q-running")).to_have_text("7")
    assert page.evaluate("window.states") == []
    f.send({"queue": {**f.world.queue, "running": 124}})
    expect(page.locator("#q-running")).to_have_text("124")
    f.refuse = (503, {})
    f.end()
    expect(page.locator("#link")).to_have_attribute("data-state", "away")


def test_a_stream_that_is_silent_for_15_seconds_is_a_daemon_that_is_away(open_page):
    f = Fake()
    f_, page = open_page(fake=f, live=False)
    page.clock.install()
    page.reload()
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    f.refuse = (503, {})
    page.clock.run_for(12_000)
    f.send_bytes(b": ping\n\n")
    f.send({"queue": {**f.world.queue, "running": 5}})
    expect(page.locator("#q-running")).to_have_text("5")
    page.clock.run_for(12_000)
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    page.clock.run_for(5_000)
    expect(page.locator("#link")).to_have_attribute("data-state", "away")


def test_a_key_is_asked_for_and_stays_out_of_the_address(open_page):
    f, page = open_page(key="adm-1", live=False)
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("#key-text")).to_have_text("an API key of admin is needed")
    page.fill("#key-input", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key")).to_be_visible()
    page.fill("#key-input", "adm-1")
    page.keyboard.press("Enter")
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    press(page, "chat", "Unpin")  # a command has the key, too
    expect(row(page, "chat").locator(".badge")).to_have_text("")
    page.reload()
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    assert "adm-1" not in page.url and page.context.cookies() == []


def test_a_key_in_the_address_is_taken_out_of_it(open_page):
    f, page = open_page(key="adm-1/?&=", path="/ui#key=adm-1%2F%3F%26%3D")
    assert page.url == f.url + "/ui"
    assert page.evaluate("sessionStorage.getItem('inferd.admin_key')") == "adm-1/?&="
    page.goto(f.url + "/ui#key=adm-2&chat=code")
    expect(page.locator("#chat")).to_be_visible()
    assert page.url == f.url + "/ui#chat=code"


def test_another_key_in_the_address_is_tried(open_page):
    f, page = open_page(key="adm-1", path="/ui#key=adm-0", live=False)
    expect(page.locator("#link")).to_have_attribute("data-state", "key")
    page.goto(f.url + "/ui#key=adm-1")  # the page stays
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    assert page.url == f.url + "/ui"


def test_a_refusal_is_said_in_the_words_of_the_daemon(open_page):
    f = Fake()
    f.refuse = (403, {"error": {"message": "admin has no keys in the configuration", "code": "admin_not_configured"}})
    _, page = open_page(fake=f, live=False)
    expect(page.locator("#banner-text")).to_have_text("admin has no keys in the configuration")
    expect(page.locator("#link")).to_have_attribute("data-state", "refused")
    f.refuse = None
    page.locator("#banner-retry").click()
    expect(page.locator("#link")).to_have_attribute("data-state", "live")


@pytest.mark.parametrize("status,code", [(503, "too_many_viewers"), (404, "not_found")])
def test_an_answer_without_a_stream_is_said_in_its_words_and_tried_again_also_after_a_key(open_page, status, code):
    f, page = open_page(key="adm-1", live=False)
    expect(page.locator("#key")).to_be_visible()
    f.refuse = (status, error("16 viewers are connected, at most 16", code))
    page.fill("#key-input", "adm-1")
    page.keyboard.press("Enter")
    expect(page.locator("#link")).to_have_attribute("data-state", "away")
    expect(page.locator("#link")).to_have_text("no stream")
    expect(page.locator("#banner-text")).to_have_text("16 viewers are connected, at most 16. Trying again.")
    f.refuse = None
    expect(page.locator("#link")).to_have_attribute("data-state", "live")
    expect(page.locator("#banner")).to_be_hidden()


def test_a_daemon_that_does_not_answer_after_a_key_is_tried_again(open_page):
    _, page = open_page(key="adm-1", live=False)
    expect(page.locator("#key")).to_be_visible()
    page.route("**/admin/watch", lambda r: r.abort(), times=1)
    page.fill("#key-input", "adm-1")
    page.keyboard.press("Enter")
    expect(page.locator("#banner-text")).to_have_text("The daemon does not answer. Trying again.")
    expect(page.locator("#link")).to_have_attribute("data-state", "live")


# -- markup in names -------------------------------------------------------------------------------


def test_markup_in_names_events_and_errors_is_text(open_page):
    f, page = open_page("hostile")
    shapes = "[document.scripts.length, document.querySelectorAll('img, iframe, object, b > b, svg').length]"
    expect(page.locator("#models tbody tr")).to_have_count(8)
    for _ in range(3):
        f.tick()
    press(page, "M" * 300, "Pin")
    expect(page.locator("#events li").first).to_contain_text("pin " + "M" * 300)
    page.locator("#models .open").first.click()
    expect(page.locator("#details-title")).to_have_text(EVIL)
    page.keyboard.press("Escape")
    press(page, "../../admin/config?x=1#y", "Drain")
    confirm(page)
    assert f.world.done[-1][:2] == ("../../admin/config?x=1#y", "drain")
    page.locator(".map").focus()
    page.keyboard.press("m")
    page.get_by_role("button", name="Table").click()
    expect(page.locator(".pages tbody tr").filter(has_text=EVIL).first).to_be_visible()
    assert page.evaluate(shapes) == [1, 0] and page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "\u202e" not in page.locator("body").inner_text()  # a name cannot turn the text beside it


def test_markup_in_prompts_and_answers_is_text(open_page):
    f, page = open_page("hostile", path="/ui#chat")
    bad = (EVIL + ' <img src=x onerror="window.hacked = 1"> **<b>x</b>** `<i>y</i>`\n\n```js\n' + EVIL +
           "\n```\n[a](javascript:window.hacked=1)")
    page.fill("#s-system", EVIL)
    page.fill("#prompt", bad)
    page.keyboard.press("Enter")
    expect(page.locator(".stats")).to_contain_text("stop")
    answer = page.locator(".assistant .text")
    expect(answer).to_contain_text(EVIL)
    expect(answer.locator("strong")).to_have_text("<b>x</b>")
    expect(answer.locator("pre")).to_have_text(EVIL)
    assert page.evaluate("[document.scripts.length, document.querySelectorAll('img, .log a, i i').length, window.hacked]") == [1, 0, None]
    assert f.chats[-1]["messages"] == [{"role": "system", "content": EVIL}, {"role": "user", "content": bad}]
    assert f.chats[-1]["model"] == EVIL


# -- the chat --------------------------------------------------------------------------------------


def say(page, text):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def test_an_answer_comes_as_it_is_written_and_stop_ends_it_in_the_daemon(open_page):
    f = Fake()
    f.gate = threading.Semaphore(3)
    _, page = open_page(fake=f, path="/ui#chat=code")
    say(page, "one two three four five six seven eight")
    expect(page.locator(".assistant .text")).to_have_text("You said: one two ")
    expect(page.locator("#send")).to_have_text("Stop")
    f.gate.release()
    expect(page.locator(".assistant .text")).to_have_text("You said: one two three ")
    page.locator(".column").get_by_role("button", name="Stop code").click()
    expect(page.locator(".stats")).to_contain_text("stopped")
    f.gate.release(100)
    f.gate = None
    say(page, "again")
    expect(page.locator(".assistant .text").nth(1)).to_have_text("You said: again ")
    assert f.ended[0] == "cut" or f.ended[1] == "cut"
    assert [m["role"] for m in f.chats[1]["messages"]] == ["user", "assistant", "user"]
    expect(page.locator(".stats")).to_have_text(re.compile(r"tokens/s · TTFT \d+ ms · 3 tokens · prompt 52, 48 cached · stop"))


def test_the_settings_are_fields_of_the_request(open_page):
    f, page = open_page(path="/ui#chat=chat")
    for name, value in {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "seed": "7", "max_tokens": "64"}.items():
        page.fill("#s-" + name, value)
    page.fill("#s-stop", "END\n###")
    page.fill("#s-system", "Be short.")
    page.locator("summary", has_text="JSON schema").click()
    page.fill("#s-schema", '{"type": "object"}')
    say(page, "Who?")
    expect(page.locator(".assistant .text")).to_have_text('{"name": "Ada", "age": 36}')
    body = f.chats[0]
    expected = {"model": "chat", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "max_tokens": 64,
                "stop": ["END", "###"], "stream": True, "stream_options": {"include_usage": True}}
    assert {k: body[k] for k in expected} == expected
    assert body["response_format"] == {
        "type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}
    page.fill("#s-schema", "{")
    say(page, "Again?")
    expect(page.locator("#s-error")).to_contain_text("the JSON schema is no JSON")
    page.fill("#s-schema", "")
    page.fill("#s-top_k", "1.5")
    page.press("#prompt", "Enter")
    expect(page.locator("#s-error")).to_have_text('top_k is "1.5", expected a whole number')
    assert len(f.chats) == 1 and page.locator("#prompt").input_value() == "Again?"


def test_reasoning_and_tool_calls_are_shown_and_results_go_back(open_page):
    f, page = open_page(path="/ui#chat=chat")
    say(page, "think first")
    expect(page.locator(".thoughts")).to_contain_text("The user wants an answer.")
    expect(page.locator(".assistant > .text")).to_have_text("You said: think first ")
    page.locator("summary", has_text="Tools").click()
    page.fill("#s-tools", '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]')
    say(page, "weather?")
    call = page.locator(".call")
    expect(call.locator("b")).to_have_text("weather")
    expect(call.locator("code")).to_have_text('{"city": "Kiel"}')
    call.locator("textarea").fill("hail")
    page.locator("#send").click()
    expect(page.locator(".assistant .text").last).to_have_text("The tool said: hail")
    assert f.chats[-1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "hail"}
    assert f.chats[-1]["messages"][-2]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Kiel"}'}


def test_the_result_of_a_call_goes_to_its_column_alone(open_page):
    f, page = open_page(path="/ui#chat=chat,code")
    page.locator("summary", has_text="Tools").click()
    page.fill("#s-tools", '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]')
    say(page, "weather?")
    expect(page.locator(".call textarea")).to_have_count(2)
    expect(page.locator("#send")).to_have_text("Send")
    page.locator(".column").nth(0).locator(".call textarea").fill("hail")
    page.locator("#send").click()
    expect(page.locator(".column").nth(0).locator(".assistant .text").last).to_have_text("The tool said: hail")
    expect(page.locator("#send")).to_have_text("Send")
    assert [c["model"] for c in f.chats][2:] == ["chat"]
    expect(page.locator(".column").nth(1).locator(".assistant")).to_have_count(1)


def test_results_of_tool_calls_can_be_sent_again_when_the_request_failed(open_page):
    f, page = open_page(path="/ui#chat=chat")
    page.locator("summary", has_text="Tools").click()
    page.fill("#s-tools", '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]')
    say(page, "weather?")
    page.locator(".call textarea").fill("hail")
    page.route("**/v1/chat/completions", lambda r: r.fulfill(status=503, json=error("the queue is full", "queue_full")), times=1)
    page.locator("#send").click()
    expect(page.locator(".assistant .error:visible")).to_have_text("the queue is full")
    expect(page.locator("#send")).to_have_text("Send")
    page.locator("#send").click()
    expect(page.locator(".assistant .text").last).to_have_text("The tool said: hail")
    assert [m["role"] for m in f.chats[-1]["messages"]] == ["user", "assistant", "tool"]


def test_columns_of_models_that_another_daemon_does_not_have_close(open_page):
    f, page = open_page(path="/ui#chat=chat,code,night")
    expect(page.locator(".column")).to_have_count(3)
    f.down()
    f.world.__init__("states")
    f.world.models[1]["name"] = "code"
    f.up()
    expect(page.locator(".column h2")).to_have_text(["code"])
    assert page.url.endswith("#chat=code")
    say(page, "hello")
    expect(page.locator(".assistant .text")).to_have_text("You said: hello ")
    assert [c["model"] for c in f.chats] == ["code"]


def test_the_list_of_the_chat_follows_the_models_of_the_daemon(open_page):
    f, page = open_page(path="/ui#chat=code")
    names = page.locator("#chat-names bdi")
    expect(names).to_have_text(["chat", "code", "night"])
    page.fill("#prompt", "for code")
    gone, new = f.world.models.pop(1), {**f.world.models[0], "id": 7, "name": "new", "aliases": []}
    f.world.models[7] = new
    f.send({"models": [new], "gone": {"models": [gone["id"]]}})
    expect(names).to_have_text(["chat", "night", "new"])
    expect(page.locator(".column")).to_have_count(0)
    page.press("#prompt", "Enter")  # the model that it was written for left
    expect(page.locator("#no-columns")).to_be_visible()
    f.world.models[8] = {**new, "id": 8, "name": "late"}  # the page has not heard of it
    page.goto(f.url + "/ui#chat=late")
    expect(page.locator(".column h2")).to_have_text(["late"])
    page.goto(f.url + "/ui#chat=nowhere")
    expect(page.locator("#chat-problem")).to_have_text("There is no model nowhere.")
    expect(page.locator(".column")).to_have_count(0)
    assert f.chats == []


def test_a_model_that_leaves_keeps_its_name_its_pages_and_its_answer_and_takes_no_commands(open_page):
    f = Fake()
    f.gate = threading.Semaphore(3)
    _, page = open_page(fake=f, path="/ui#chat=chat,code")
    say(page, "one two three")
    expect(page.locator(".column").nth(1).locator(".assistant .text")).to_contain_text("You")
    page.locator(".column").get_by_role("button", name="Stop chat").click()
    f.world.models[0].update(leaving=True, state="draining")
    f.world.models[1].update(leaving=True, state="draining")
    step = {**f.world.devices[0]["step"], "model": 1}
    f.send({"models": [f.world.models[0], f.world.models[1]], "devices": [{**f.world.devices[0], "step": step}]})
    expect(page.locator(".column h2")).to_have_text(["code"])  # the other one is not busy
    f.gate.release(100)
    expect(page.locator(".column .assistant .text")).to_have_text("You said: one two three ")
    page.keyboard.press("Escape")
    page.goto(f.url + "/ui#board")
    expect(page.locator("#steps .model")).to_have_text("code")
    expect(row(page, "code").locator(".pill")).to_have_text("draining")
    expect(row(page, "code").locator(".acts button:visible")).to_have_count(0)
    expect(row(page, "night").locator(".acts button:visible")).to_have_count(3)
    row(page, "code").locator(".open").click()
    expect(page.locator("#details-acts button:visible")).to_have_count(0)
    page.keyboard.press("Escape")
    row(page, "night").locator(".open").click()
    expect(page.locator("#details-acts").get_by_role("button", name="Chat")).to_be_visible()


def test_escape_closes_the_tip_of_a_token_and_then_stops_the_answer(open_page):
    f = Fake()
    f.gate = threading.Semaphore(3)
    _, page = open_page(fake=f, path="/ui#chat=code")
    page.check("#s-logprobs")
    say(page, "one two three four")
    expect(page.locator(".token")).to_have_count(4)
    page.locator(".assistant .text").focus()
    page.keyboard.press("End")
    expect(page.locator(".token-tip")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".token-tip")).to_be_hidden()
    expect(page.locator("#send")).to_have_text("Stop")
    page.keyboard.press("Escape")
    expect(page.locator(".stats")).to_contain_text("stopped")
    f.gate.release(100)


def test_copy_selects_the_code_where_the_browser_has_no_clipboard(open_page):
    _, page = open_page(path="/ui#chat=code", init="Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined });")
    page.evaluate("""async () => {
        const { block } = await import("/ui/markdown.js");
        document.querySelector(".log").append(block("```\\nx = 1\\n```"));
    }""")
    page.get_by_role("button", name="Copy").click()
    assert page.evaluate("getSelection().toString()").strip() == "x = 1"


def test_strong_text_and_code_end_at_the_next_mark(open_page):
    """So their time grows with the length of the text, not with its square."""
    _, page = open_page("empty")
    made = page.evaluate("""async texts => {
        const { block } = await import("/ui/markdown.js");
        return texts.map(t => [...block(t).querySelectorAll("strong, code")].map(e => e.textContent));
    }""", ["a **b c\nd** *e* **f*g**", "**a ** b**", "x ````a `b` ``c```d``", "**a " * 10_000, "x " + "`" * 10_000 + "a" * 10_000])
    assert made == [["b c\nd", "f*g"], [], ["b", "c```d"], [], []]


def test_log_probabilities_are_told_of_the_token_under_the_pointer_or_the_cursor(open_page):
    f, page = open_page(path="/ui#chat=chat")
    page.check("#s-logprobs")
    say(page, "a b")
    expect(page.locator(".token")).to_have_count(4)
    page.locator(".token").nth(1).hover()
    tip = page.locator(".token-tip")
    expect(tip.locator("tr")).to_have_count(2)
    expect(tip.locator("tr.chosen")).to_have_text(re.compile("said:␣.*90.0 %.*-0.105"))
    expect(tip.locator("tr").nth(1)).to_contain_text(EVIL.replace(" ", "␣"))
    page.locator(".assistant .text").focus()
    page.keyboard.press("End")
    expect(page.locator("#said")).to_have_text("b␣: 90.0 percent")
    assert f.chats[0]["logprobs"] is True and f.chats[0]["top_logprobs"] == 5
    assert page.evaluate("window.hacked") is None


def test_several_models_answer_one_prompt_side_by_side(open_page):
    f, page = open_page(path="/ui#chat=chat,code")
    page.locator("#chat-names label", has_text="night").click()
    expect(page.locator(".column")).to_have_count(3)
    say(page, "What is the capital of France?")
    for i in range(3):
        expect(page.locator(".column").nth(i).locator(".assistant strong")).to_have_text("Paris")
        expect(page.locator(".column").nth(i).locator(".assistant li")).to_have_count(3)
    assert sorted(c["model"] for c in f.chats) == ["chat", "code", "night"]
    boxes = [page.locator(".column").nth(i).bounding_box() for i in range(3)]
    assert len({b["y"] for b in boxes}) == 1 and len({b["x"] for b in boxes}) == 3
    assert page.url.endswith("#chat=chat,code,night")
    page.locator("#chat-new").click()
    expect(page.locator(".message")).to_have_count(0)


def test_the_chat_asks_for_the_key_of_a_tenant(open_page):
    f, page = open_page(tenant_key="ten-1", path="/ui#chat")
    expect(page.locator("#chat-problem")).to_have_text("an API key is needed")
    page.fill("#tenant-key", "ten-1")
    page.press("#tenant-key", "Enter")
    expect(page.locator("#chat-names label")).to_have_count(3)
    say(page, "hello")
    expect(page.locator(".assistant .text")).to_have_text("You said: hello ")


def test_an_answer_that_fails_says_why(open_page):
    f = Fake()
    f.gate = threading.Semaphore(2)
    _, page = open_page(fake=f, path="/ui#chat=chat")
    bodies = []

    def refuse(route):
        bodies.append(route.request.post_data_json)
        route.fulfill(status=404, json=error("no such model", "model_not_found"))

    page.route("**/v1/chat/completions", refuse, times=2)
    say(page, "hello")
    expect(page.locator(".assistant .error")).to_have_text("no such model")
    say(page, "hello again")
    expect(page.locator(".assistant .error")).to_have_count(2)
    assert bodies[1]["messages"] == [{"role": "user", "content": "hello again"}]  # what failed is no part of the conversation
    page.locator("#chat-names label", has_text="code").click()
    page.locator("#chat-names label", has_text="chat").click()
    say(page, "hello there, daemon that ends")
    expect(page.locator(".assistant .text").first).to_contain_text("You")
    f.down()
    f.gate.release(100)
    expect(page.locator("#link")).to_have_attribute("data-state", "away")


# -- widths, keyboard, readers ---------------------------------------------------------------------


@pytest.mark.parametrize("width,height", [(375, 812), (800, 900), (1366, 768), (1366, 640), (1920, 1080)])
def test_nothing_is_cut_or_scrolls_sideways(open_page, width, height):
    f, page = open_page("large" if width > 400 else "small", width=width, height=height)
    f.tick()
    wide = "() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    w, h = page.evaluate(wide)
    assert w <= width
    if width >= 1366:
        assert h <= height, "the board scrolls"
        out = page.evaluate("""() => [...document.querySelectorAll(".panel, .device, .chart, .step, .time")].filter(e => {
            const r = e.getBoundingClientRect();
            return r.width && (r.right > innerWidth + 1 || r.bottom > innerHeight + 1 || r.height < 40);
        }).map(e => e.className)""")
        assert out == []
    cut = page.evaluate("""() => [...document.querySelectorAll("td.num, td.class, td.state, td.acts, th, .keys li, button")].filter(e =>
        e.offsetParent && e.clientWidth > 1 && e.scrollWidth > e.clientWidth + 1 && !e.matches(".open, .sr, .sr *") &&
        getComputedStyle(e.closest("thead") || e).position !== "absolute").map(e => e.className + ": " + e.textContent)""")
    assert cut == []
    assert page.evaluate("[...document.querySelectorAll('header dt, header a')].filter(e => e.offsetHeight > 28).length") == 0  # one line
    page.goto(f.url + "/ui#chat")
    expect(page.locator(".column")).to_have_count(1)
    assert page.evaluate(wide)[0] <= width


def test_numbers_that_change_move_nothing(open_page):
    f, page = open_page()
    boxes = """() => [...document.querySelectorAll("header *, .panel, th, td, .chart *, .device-head *")].map(e => {
        const r = e.getBoundingClientRect(); return e.tagName + e.className + [r.x, r.y, r.height].map(Math.round); })"""
    expect(page.locator("#d-uptime")).to_have_text(re.compile("^up "))
    expect(page.locator("#f-in")).to_have_text(re.compile("[0-9]"))
    few = page.evaluate(boxes)
    models = [{**m, "out": 98765, "in": 98765, "running": 99, "waiting": 88, "used": 0.99} for m in f.world.models.values()]
    f.send({"models": models, "queue": {"running": 999, "waiting": 888, "paused": 77, "places": 256, "places_used": 250},
            "history": {"rows": [[f.world.rows[-1][0] + 1, 45.0, 180.0, 14.0, 25.0, 12345, 9876, 0, 0, 0, 1.0]]}})
    expect(row(page, "chat").locator(".work")).to_have_text("99 / 88")
    expect(page.locator("#f-in")).to_have_text("12.3k")
    now = page.evaluate(boxes)
    assert [b for b in zip(few, now) if b[0] != b[1] and "B" != b[0][0] and "LI" != b[0][:2] and "I" != b[0][0]] == []


def test_the_keyboard_reaches_everything(open_page):
    f, page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("night")
    expect(page.locator("#models tbody tr:visible")).to_have_count(1)
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == "Load night":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("#ask")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#ask")).to_be_hidden()
    assert f.world.done == [("night", "load", {})]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") in ("Load night", "Unload night")
    page.keyboard.press("c")
    expect(page.locator("#chat")).to_be_visible()
    page.keyboard.press("b")
    expect(page.locator("#board")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(".chart canvas").first.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#said")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d, TTFT: P50 \d+ ms, P95 \d+ ms$"))
    expect(page.locator("#charts-when")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))


def test_tables_are_sorted_and_filtered(open_page):
    _, page = open_page()
    page.get_by_role("button", name="Memory").click()
    expect(page.locator("#models .open")).to_have_text(["code", "chat", "night"])
    page.get_by_role("button", name="Memory").click()
    expect(page.locator("#models .open")).to_have_text(["night", "chat", "code"])
    expect(page.locator("th.mem").first).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="Model", exact=True).click()
    expect(page.locator("#models .open")).to_have_text(["chat", "code", "night"])
    expect(page.locator("#models th.name")).to_have_attribute("aria-sort", "ascending")
    page.fill("#tenants-filter", "LAB")
    expect(page.locator("#tenants tbody tr:visible")).to_have_count(1)


CONTRAST = r"""() => {
    const lum = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const parse = s => {
        const m = s.match(/[\d.]+/g).map(Number), rgb = m.slice(0, 3).map(v => s.startsWith("color(") ? v * 255 : v);
        return [...rgb, m[3] ?? 1];
    };
    const bad = [];
    for (const e of document.querySelectorAll("body *")) {
        const text = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        const s = getComputedStyle(e);
        if (!text || !e.offsetParent || s.visibility === "hidden" || e.closest(".sr, :disabled")) continue;
        const layers = [];
        for (let p = e; p && layers.at(-1)?.[3] !== 1; p = p.parentElement) layers.push(parse(getComputedStyle(p).backgroundColor));
        const back = layers.reverse().reduce((b, c) => b.map((v, i) => c[i] * c[3] + v * (1 - c[3])), [255, 255, 255]);
        const [a, b] = [lum(parse(s.color).slice(0, 3)), lum(back)].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) bad.push([e.className, e.textContent.slice(0, 30), ratio.toFixed(2)]);
    }
    return bad;
}"""


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_text_has_the_contrast_of_AA(open_page, scheme):
    f, page = open_page("states", scheme=scheme)
    f.send({"events": [{"id": i, "change": i, "at": 1, "kind": k, "text": "x", "n": 2} for i, k in
                       enumerate(["evict", "load", "fail", "preempt", "refuse", "config", "device", "drain", "admin"], 900)],
            "daemon": {**f.world.daemon, "draining": True}})
    expect(page.locator("#events li")).to_have_count(9)
    assert page.evaluate(CONTRAST) == []
    press(page, "is-hot", "Drain")
    expect(row(page, "is-hot").locator(".badge")).to_have_text("held")
    page.locator("#models .open").nth(7).click()
    assert page.evaluate(CONTRAST) == []
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.check("#s-logprobs")
    say(page, "think of the capital")
    expect(page.locator(".stats")).to_contain_text("stop")
    assert page.evaluate(CONTRAST) == []


def test_every_control_has_a_name_and_every_part_a_heading(open_page):
    _, page = open_page("states")
    nameless = """() => [...document.querySelectorAll("button, input, textarea, canvas, [role=group], [role=img], dialog")]
        .filter(e => !e.closest("[hidden], dialog:not([open])") && e.type !== "checkbox" && !e.textContent.trim() &&
                     !e.matches("[aria-label], [aria-hidden], [aria-labelledby]") && !e.labels?.length)
        .map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(nameless) == []
    page.keyboard.press("c")
    expect(page.locator("#chat-names label")).to_have_count(11)
    assert page.evaluate(nameless) == []


def test_the_theme_is_chosen_and_kept(open_page):
    _, page = open_page(scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    was, pixel = page.evaluate(back), shot(page)[2]
    page.locator("#theme").click()
    assert page.evaluate(back) == was
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_text("Light")
    assert page.evaluate(back) != was
    page.wait_for_function("n => { const c = document.querySelector('.map'); return new Uint32Array(c.getContext('2d')"
                           ".getImageData(0, 0, 1, 1).data.buffer)[0] !== n; }", arg=pixel[0])
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_a_storm_of_deltas_makes_no_elements(open_page):
    f, page = open_page("storm")
    expect(page.locator("#models tbody tr")).to_have_count(64)
    expect(page.locator("#tenants tbody tr")).to_have_count(100)
    count = "document.querySelectorAll('#models *, #tenants *, #devices *, #charts *').length"
    before = page.evaluate(count)
    page.evaluate("""() => { window.came = 0; for (const id of ["models", "tenants", "devices", "charts"])
        new MutationObserver(l => l.forEach(m => window.came += m.addedNodes.length))
            .observe(document.getElementById(id), {subtree: true, childList: true}); }""")
    for i in range(6):
        f.tick()
    last = f.world.models[0]
    expect(page.locator("#models tbody tr").first.locator(".work")).to_have_text(f"{last['running']} / {last['waiting']}")
    assert page.evaluate(count) == before and page.evaluate("window.came") == 0
