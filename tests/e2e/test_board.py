"""The board for Grafana and the alerts of deploy/grafana: every metric, label and value that they name is on the page of a
daemon under load, and a real Prometheus runs every query of them and has an answer."""

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time

import httpx
import pytest

from conftest import BUILD, ROOT, SLOW, skip

BOARD = ROOT / "deploy" / "grafana" / "inferd.json"
RULES = ROOT / "deploy" / "grafana" / "inferd.rules.yml"
RULES_TEST = ROOT / "tests" / "prometheus" / "inferd_test.yml"
ADMIN = "sk-admin-board-0001"
KEYS = {"shop": "sk-shop-board-0001", "lab": "sk-lab-board-0001", "poor": "sk-poor-board-0001",
        "slow": "sk-slow-board-0001"}
OF_PROMETHEUS = {"ALERTS": {"alertname", "alertstate", "severity"}, "up": set()}  # not of the daemon
OF_SCRAPES = {"job", "instance"}
TWIN = "twin:8080"
# What a query needs the load for: the families (with labels) that must have grown.
MOVED = ['inferd_model_evictions_total{.*', 'inferd_preemptions_total{.*', 'inferd_tenant_preempted_seconds_total{.*',
         'inferd_refusals_total{.*reason="quota".*', 'inferd_refusals_total{.*reason="request_rate".*', 'inferd_cached_tokens_total{.*',
         'inferd_prompt_prefixes_total{.*end="grown".*', 'inferd_grammar_masks_total', 'inferd_draft_tokens_total',
         'inferd_preemption_relief_seconds_count{.*', 'inferd_kv_disk_blocks_total{op="written".*']


def program(name):
    found = shutil.which(name)
    if found is None:
        why = f"{name} is not installed: scripts/deps --dev"
        pytest.fail(why) if os.environ.get("CI") == "true" else skip(why)
    return found


# ---- the files ----

def panels(board):
    for p in board["panels"]:
        yield p
        yield from p.get("panels", [])


def targets():
    """(title of the panel, query) of the board."""
    board = json.loads(BOARD.read_text())
    for p in panels(board):
        for t in p.get("targets", []):
            yield p["title"], t["expr"]
    for a in board["annotations"]["list"]:
        yield a["name"], a["expr"]


def alerts():
    """(name, query) of the rules: `expr` on one line, or folded lines below it."""
    for text in re.split(r"(?m)^ +- alert: ", RULES.read_text())[1:]:
        found = re.search(r"^ +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", text, re.M)
        yield text.split("\n", 1)[0], " ".join((found.group(1) or found.group(2)).split())


def test_the_board_is_what_its_script_writes():
    subprocess.run([ROOT / "scripts" / "board", "--check"], check=True)


def test_panels_have_ids_and_places_of_their_own():
    board = json.loads(BOARD.read_text())
    ids = [p["id"] for p in panels(board)]
    assert len(ids) > 60 and len(set(ids)) == len(ids)
    assert board["schemaVersion"] >= 39 and board["uid"] == "inferd"
    names = {v["name"] for v in board["templating"]["list"]}
    assert names == {"datasource", "instance", "device", "model", "tenant"}
    for beside in (board["panels"], *(p["panels"] for p in board["panels"] if p["type"] == "row")):
        places = set()
        for p in beside:
            g = p["gridPos"]
            assert g["x"] >= 0 and g["w"] > 0 and g["x"] + g["w"] <= 24, p["title"]
            cells = set(itertools.product(range(g["x"], g["x"] + g["w"]), range(g["y"], g["y"] + g["h"])))
            assert not places & cells, p["title"]
            places |= cells
    for p in panels(board):
        if p["type"] == "row":
            continue
        assert p["description"].endswith(".") and p["datasource"]["uid"] == "${datasource}", p["title"]
        assert p["targets"] and all(t["datasource"]["uid"] == "${datasource}" for t in p["targets"]), p["title"]
        for t in p["targets"]:
            assert set(re.findall(r"\$(?!__)(\w+)", t["expr"])) <= names, t["expr"]


def test_promtool_takes_the_rules_and_their_cases():
    promtool = program("promtool")
    for words in (("check", "rules", RULES), ("test", "rules", RULES_TEST)):
        done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    cases = RULES_TEST.read_text()
    for name, _ in alerts():
        assert cases.count(f'ALERTS{{alertname="{name}"') >= 3, name  # silent, asked, firing
    for text in re.split(r"(?m)^ +- alert: ", RULES.read_text())[1:]:
        assert all(word in text for word in ("labels: {severity: ", "summary: ", "description: ")), text


# ---- PromQL: the selectors and labels of a query ----

TOKEN = re.compile(r'\s*(?:("(?:\\.|[^"\\])*")|([A-Za-z_:][\w:]*)|(\d[\w.]*)|(=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],]))')
WORDS = {"and", "or", "unless", "bool", "offset"}
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


def tokens(query):
    query = re.sub(r"\[[^\]]*\]", "", query)  # ranges
    at, out = 0, []
    while query[at:].strip():
        m = TOKEN.match(query, at)
        assert m, (query, at)
        out.append(m.group(0).strip())
        at = m.end()
    return out


def selectors(query):
    """([(metric, [(label, operator, value)])], labels of by, on ...) of a query."""
    t, found, labels, i = tokens(query), [], set(), 0
    while i < len(t):
        word, after = t[i], t[i + 1] if i + 1 < len(t) else ""
        i += 1
        if not re.match(r"[A-Za-z_:]", word) or word in WORDS:
            continue
        if word in LISTS:
            if after == "(":
                end = t.index(")", i)
                labels |= {x for x in t[i + 1:end] if x != ","}
                i = end + 1
        elif after == "{":
            end = t.index("}", i)
            parts = [x for x in t[i + 1:end] if x != ","]
            found.append((word, [(*parts[k:k + 2], json.loads(parts[k + 2])) for k in range(0, len(parts), 3)]))
            i = end + 1
        elif after not in ("(", "by", "without"):
            found.append((word, []))
    return found, labels


@pytest.mark.parametrize("query,want", [
    ('sum by (a, b) (rate(x_total{c="d,}", e=~"f|g"}[5m])) / on (a) group_left () y > 0.5',
     ([("x_total", [("c", "=", "d,}"), ("e", "=~", "f|g")]), ("y", [])], {"a", "b"})),
    ("time() - max(x) unless y == 1", ([("x", []), ("y", [])], set())),
    ('histogram_quantile(0.9, sum by (le) (x_bucket{a!="b"}))', ([("x_bucket", [("a", "!=", "b")])], {"le"})),
])
def test_selectors_of_a_query_are_found(query, want):
    assert selectors(query) == want


def outcomes(query):
    """The matchers of outcome in a query, in order."""
    return [(operator, value) for metric, matchers in selectors(query.replace("$__rate_interval", "1m").replace("$", ""))[0]
            if metric == "inferd_requests_total" for label, operator, value in matchers if label == "outcome"]


def test_the_board_and_the_alert_count_the_same_failures():
    """The panel once divided by refused and cancelled requests, too."""
    panel = outcomes(dict(targets())["Failed requests"])
    assert panel == [("=~", "error|timeout"), ("!~", "refused|cancelled")]
    assert outcomes(dict(alerts())["InferdErrorRate"])[:2] == panel


TIME_OF = {"inferd_device_account_seconds_total", "inferd_class_device_seconds_total", "inferd_device_seconds_total",
           "inferd_model_switch_seconds_total"}  # whose rate is a part of a device's time


def test_the_unit_of_a_panel_is_that_of_its_queries():
    """Numbers of blocks were once drawn as bytes, and numbers of sequences as percent."""
    n = 0
    for p in panels(json.loads(BOARD.read_text())):
        unit = p.get("fieldConfig", {}).get("defaults", {}).get("unit")
        for t in p.get("targets", []):
            metrics = [m for m, _ in selectors(t["expr"].replace("$__rate_interval", "1m").replace("$", ""))[0]]
            if unit == "bytes":
                assert metrics[0].endswith("_bytes") or ("_pages" in metrics[0] and metrics[1:] == ["inferd_page_bytes"]), t["expr"]
            elif unit == "percentunit":
                assert metrics[0].endswith("_ratio") or " / " in t["expr"] or metrics[0] in TIME_OF, t["expr"]
            n += unit in ("bytes", "percentunit")
    assert n > 20


# ---- a daemon under load ----

def dummy(seed):
    return f"dummy:tiny?dtype=f32&layers=8&context=2048&seed={seed}"


@pytest.fixture(scope="module")
def daemons(launch, tmp_path_factory, tiny_model):
    """A CPU with more models than fit, tenants, classes and a disk; and an emulated GPU, where it was built."""
    folder = tmp_path_factory.mktemp("state")
    folder.chmod(0o700)
    cpu = launch({"devices": [{"kind": "cpu", "memory": "64MiB", "threads": 2}], "host_arena": "64MiB",
                  "state_dir": str(folder), "kv_disk": "64MiB",
                  "models": [{"name": "chat", "path": tiny_model, "class": "high", "slo": {"ttft_ms": 1000, "tpot_ms": 100}},
                             {"name": "code", "path": dummy(1), "share": {"percent": 30}},
                             {"name": "night", "path": dummy(2), "class": "batch"}, {"name": "more", "path": dummy(3)}],
                  "tenants": [{"name": "shop", "keys": [KEYS["shop"]], "max_class": "high", "share": {"percent": 40}},
                              {"name": "lab", "keys": [KEYS["lab"]], "min": "2MiB", "max": "48MiB",
                               "limits": {"tokens_per_day": 10_000_000, "tokens_per_month": 100_000_000}},
                              {"name": "poor", "keys": [KEYS["poor"]], "limits": {"tokens_per_day": 200}},
                              {"name": "slow", "keys": [KEYS["slow"]], "limits": {"requests_per_min": 1}}],
                  "limits": {"running_max": 4, "draft_tokens": 2},
                  "tracing": {"endpoint": "http://127.0.0.1:1/v1/traces"},  # nothing is there
                  "admin": {"keys": [ADMIN]}}, args=["--allow-dummy"])
    out = [cpu]
    module = BUILD / "tests" / "cuda_emul" / "inferd_cuda_emul.so"
    if module.is_file():
        out.append(launch({"devices": [{"kind": "cuda", "memory": "128MiB"}], "models": [{"name": "chat", "path": tiny_model}],
                           "limits": {"running_max": 4, "step_tokens_max": 64},
                           "admin": {"keys": [ADMIN]}, "tenants": [{"name": "shop", "keys": [KEYS["shop"]]}]},
                          env={"INFERD_CUDA_MODULE": str(module)}))
    return out


def ask(d, tenant, model, n=24, **more):
    body = {"model": model, "max_tokens": n, "ignore_eos": True, "seed": 1, **more}
    path = "/v1/chat/completions" if "messages" in more else "/v1/completions"
    return httpx.post(d.url + path, headers={"Authorization": "Bearer " + KEYS[tenant]}, json=body, timeout=120 * SLOW)


def page(d):
    return d.http.get("/metrics", headers={"Authorization": "Bearer " + ADMIN}).text


def work_of(cpu):
    """Each is called again and again, on a thread of its own."""
    def converse(i):
        messages = [{"role": "user", "content": f"hello {i} " * 8}]
        for _ in range(2):
            r = ask(cpu, "shop", "chat", messages=messages).json()
            messages += [r["choices"][0]["message"], {"role": "user", "content": "and now?"}]

    def constrain(i):
        ask(cpu, "shop", "chat", n=8, ignore_eos=False, messages=[{"role": "user", "content": "a number"}],
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}})

    def night(i):  # fills the device with work that others preempt
        ask(cpu, "lab", "night", n=700, prompt=[5 + i % 50, 6, 7] * 40, priority="batch")

    def turns(i):
        ask(cpu, "lab", ("code", "more", "night")[i % 3], prompt=[9, 8, i % 200] * 20)

    def poor(i):
        for tenant in ("poor", "slow"):
            ask(cpu, tenant, "code", n=100, prompt=[3, 4, 5])

    return converse, constrain, night, night, turns, poor


@pytest.fixture(scope="module")
def loaded(daemons, tmp_path_factory):
    """Pages of metrics, the URL of a Prometheus that scraped the daemons while they worked, and the time they ended."""
    stop = threading.Event()

    def again(what):
        for i in itertools.count():
            if stop.is_set():
                return
            what(i)

    def gpu(i):
        for d in daemons[1:]:
            ask(d, "shop", "chat", n=4, prompt="hello")

    with scraping(daemons, tmp_path_factory.mktemp("prometheus")) as prometheus:
        threads = [threading.Thread(target=again, args=(w,)) for w in (*work_of(daemons[0]), gpu)]
        for t in threads:
            t.start()
        try:
            wait_for(lambda: sorted(set(MOVED) - moved(page(daemons[0]))) == [], lambda: set(MOVED) - moved(page(daemons[0])))
            if prometheus:
                wait_for_scrapes(prometheus, len(daemons) + 1, 4)
            pages, ended = [page(d) for d in daemons], time.time()
        finally:
            stop.set()
            for t in threads:
                t.join()
        yield pages, prometheus, ended


def wait_for(what, why):
    end = time.monotonic() + 60 * SLOW
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


def moved(text):
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {p for p in MOVED if any(float(v) > 0 and re.fullmatch(p, name) for name, v in lines)}


# ---- names ----

def series_of(pages):
    """metric -> list of its labels."""
    out = {}
    for line in "".join(pages).splitlines():
        if line.startswith("#"):
            continue
        name, labels = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? \S+", line).groups()
        out.setdefault(name, []).append(dict(re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', labels or "")))
    return out


def is_documented(metric, label, value):
    """Values of closed lists that come only when they happen: statuses, reasons, states."""
    row = next((x for x in (ROOT / "docs" / "metrics.md").read_text().splitlines() if x.startswith(f"| `{metric}`")), "")
    return label in row.split("|")[3] and re.search(rf"\b{re.escape(value)}\b", row) is not None


def faults_of(query, series):
    """Names of a query that no page has."""
    found, lists = selectors(query.replace("$__rate_interval", "1m").replace("$", ""))
    seen, out = set(OF_SCRAPES), []
    for metric, matchers in found:
        if metric in OF_PROMETHEUS:
            seen |= OF_PROMETHEUS[metric]
            continue
        rows = series.get(metric, [])
        if not rows:
            out.append(metric)
            continue
        labels = set().union(*rows)
        seen |= labels
        for label, _, value in matchers:
            if label in OF_SCRAPES:
                continue
            if label not in labels:
                out.append(f"{metric}{{{label}}}")
            elif value not in ("device", "model", "tenant"):  # variables
                out += [f'{metric}{{{label}="{v}"}}' for v in value.split("|")
                        if all(r.get(label) != v for r in rows) and not is_documented(metric, label, v)]
    return out + sorted(lists - seen)


def test_every_name_is_on_the_page(loaded, daemons):
    pages = loaded[0]
    series = series_of(pages)
    without_gpu = len(daemons) == 1
    faults = [(title, f) for title, query in [*targets(), *alerts()] for f in faults_of(query, series)
              if not (without_gpu and "gpu" in f or f == "inferd_device_part")]
    if not without_gpu:
        assert "inferd_device_part" in series
    assert faults == []
    board = json.loads(BOARD.read_text())
    for p in panels(board):
        for t in p.get("targets", []):
            of = [series.get(m, []) for m, _ in selectors(t["expr"].replace("$__rate_interval", "1m").replace("$", ""))[0]]
            known = OF_SCRAPES.union(*(r for rows in of for r in rows))
            assert set(re.findall(r"{{(\w+)}}", t["legendFormat"])) <= known or without_gpu, t
    for v in board["templating"]["list"]:
        for metric, label in re.findall(r"^label_values\((\w+).*, (\w+)\)$", v.get("definition", "")):
            assert label in OF_SCRAPES or any(label in r for r in series[metric]), v["definition"]


def test_a_name_that_is_not_there_is_a_fault(loaded):
    series = series_of(loaded[0])
    for query, fault in (("inferd_nothing > 0", "inferd_nothing"), ('sum(inferd_pages{nolabel="x"})', "inferd_pages{nolabel}"),
                         ('inferd_pages{state="fre"}', 'inferd_pages{state="fre"}'), ("sum by (modell) (inferd_pages)", "modell")):
        assert faults_of(query, series) == [fault]


# ---- a real Prometheus ----

@contextlib.contextmanager
def scraping(daemons, folder):
    """The URL of a Prometheus that scrapes the daemons and runs the rules; None: it is not installed.  It scrapes the first one
    a second time, as TWIN: two instances whose devices, models and tenants have the same names."""
    found = shutil.which("prometheus")
    if found is None:
        yield None
        return
    targets = ", ".join(f"'127.0.0.1:{d.port}'" for d in daemons)
    (folder / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}}\n"
        f"rule_files: ['{RULES}']\n"
        f"scrape_configs:\n  - job_name: inferd\n    authorization: {{credentials: {ADMIN}}}\n"
        f"    static_configs: [{{targets: [{targets}]}}, "
        f"{{targets: ['127.0.0.1:{daemons[0].port}'], labels: {{instance: '{TWIN}'}}}}]\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([found, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def run(prometheus, query, at=None):
    r = httpx.post(prometheus + "/api/v1/query", data={"query": query, **({"time": at} if at else {})}, timeout=30)
    assert r.status_code == 200, (query, r.text)
    return r.json()["data"]["result"]


def wait_for_scrapes(prometheus, n_instances, n):
    """n of each, while the daemons work."""
    def done():
        with contextlib.suppress(httpx.HTTPError, AssertionError):
            return len(run(prometheus, f"sum_over_time(up[10s]) >= {n}")) == n_instances
        return False
    wait_for(done, lambda: "Prometheus does not scrape")


def filled(query, interval="10s"):
    query = query.replace("$__rate_interval", interval)
    return re.sub(r'=(~?)"\$\w+"', '=~".*"', query)


def test_a_real_prometheus_has_an_answer_to_every_query(loaded, daemons):
    _, prometheus, ended = loaded
    if prometheus is None:
        program("prometheus")
    empty = [(title, query) for title, query in targets() if not run(prometheus, filled(query), ended)]
    may = {"Alerts that fire", "Starts", "GPU temperature and power", "GPU utilization and memory", "GPU health"}
    if len(daemons) > 1:
        may -= {"GPU temperature and power", "GPU utilization and memory", "GPU health"}
    assert [e for e in empty if e[0] not in may] == []
    for _, query in alerts():
        run(prometheus, query, ended)
    rules = httpx.get(prometheus + "/api/v1/rules", timeout=30).json()["data"]["groups"]
    assert {(r["name"], r["health"]) for g in rules for r in g["rules"]} == {(name, "ok") for name, _ in alerts()}
    firing = {r["metric"]["alertname"] for r in run(prometheus, 'ALERTS{alertstate="firing"}', ended)}
    assert firing <= {"InferdQuotaNearlyUsed", "InferdSpansDropped"}, firing  # a small quota; no collector


def test_instances_with_the_same_names_are_told_apart(loaded):
    """With $instance on All, cpu0 of two daemons was one line, or two lines with one legend."""
    _, prometheus, ended = loaded
    if prometheus is None:
        program("prometheus")
    faults, n_twins = [], 0
    for p in panels(json.loads(BOARD.read_text())):
        for t in p.get("targets", []) if p["type"] not in ("stat", "table") else []:
            series = [r["metric"] for r in run(prometheus, filled(t["expr"]), ended)]
            n_twins += any(m.get("instance") == TWIN for m in series)
            repeated = ("device",) if 'device="$device"' in t["expr"] else ()  # a panel for each
            lines = [(re.sub(r"{{(\w+)}}", lambda x, m=m: m.get(x.group(1), ""), t["legendFormat"]), *(m.get(r) for r in repeated))
                     for m in series]
            if len(set(lines)) < len(lines) or any("device" in m and "instance" not in m for m in series):
                faults.append((p["title"], t["expr"]))
    assert faults == []
    assert n_twins > 20
