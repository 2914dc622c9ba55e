"""inferd-bench against its own null server, whose pace and faults are known, and against small
Python servers that say what the null server cannot.  The program is looked for in INFERD_BUILD, or
in build/ of the source tree.

Times have exact lower bounds, because the server sends nothing before its time, and generous upper
ones, because the machine may be busy."""

import csv
import html.parser
import http.server
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import threading
import time
import xml.etree.ElementTree

import pytest

from conftest import skip

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = pathlib.Path(os.environ.get("INFERD_BUILD", ROOT / "build")) / "inferd-bench"


@pytest.fixture(autouse=True)
def built():
    if not BENCH.exists():
        skip("inferd-bench is not built")


class NullServer:
    def __init__(self, *options):
        self.process = subprocess.Popen(
            [BENCH, "null-server", "--listen", "127.0.0.1:0", *map(str, options)],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.url = "http://127.0.0.1:" + re.search(r":(\d+)$", line.strip()).group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(10) == 0


def bench(url, *options, rc=0, tmp_path=None):
    """Runs a load; returns the JSON report, the CSV lines and the table."""
    command = [BENCH, "--url", url, "--json", "-", *map(str, options)]
    if tmp_path is not None:
        command += ["--csv", tmp_path / "requests.csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == rc, done.stderr
    lines = []
    if tmp_path is not None:
        with open(tmp_path / "requests.csv", newline="") as file:
            lines = list(csv.DictReader(file))
    return json.loads(done.stdout) if done.stdout else None, lines, done.stderr


def group(report, by="all", name="all"):
    return next(g for g in report["groups"] if (g["by"], g["name"]) == (by, name))


def test_figures_are_those_of_the_server(tmp_path):
    with NullServer("--ttft-ms", 60, "--tokens-per-s", 50) as server:
        report, lines, table = bench(
            server.url, "--arrivals", "closed:4", "--requests", 12, "--prompt", 100, "--output", 26,
            "--ignore-eos", "--seed", 5, tmp_path=tmp_path)
    g = group(report)
    assert report["seed"] == 5
    assert g["requests"] == {"offered": 12, "ok": 12, "failed": 0, "cut": 0, "textless": 0}
    assert g["ms"]["ttft"]["min"] >= 60 and g["ms"]["ttft"]["p50"] < 150
    assert 12 < g["ms"]["tpot"]["p50"] < 40
    assert g["ms"]["itl"]["n"] == 12 * 25
    assert 12 < g["ms"]["itl"]["mean"] < 40
    assert g["ms"]["e2e"]["min"] >= 560
    assert g["tokens"]["prompt_told"] == g["tokens"]["prompt_asked"] == 1200
    assert g["tokens"]["output"] == 12 * 26
    assert g["tokens"]["requests_counted_by_usage"] == 12
    assert g["finish"] == {"length": 12}
    assert len(lines) == 12
    assert all(line["outcome"] == "ok" and line["chunks"] == "26" for line in lines)
    assert sorted(int(line["index"]) for line in lines) == list(range(12))
    slowest = max(float(line["ttft_ms"]) for line in lines)
    assert g["ms"]["ttft"]["max"] == pytest.approx(slowest, abs=0.01)
    assert "counted by usage" in table and "p99" in table


def test_time_counts_from_the_schedule():
    # One place at the server, 100 ms a request, 30 requests a second: the tenth waits for nine.
    # Counted from when it was sent each would look like 100 ms.
    with NullServer("--ttft-ms", 100) as server:
        report, _, _ = bench(server.url, "--arrivals", "constant:30", "--requests", 10,
                             "--inflight-max", 1, "--output", 1)
    ttft = group(report)["ms"]["ttft"]
    assert ttft["min"] < 250
    assert ttft["max"] > 10 * 100 - 9 * 1000 / 30 - 1
    assert group(report)["ms"]["sent_late"]["max"] > 500


def test_longest_gap_of_running_streams_is_found():
    with NullServer("--tokens-per-s", 100, "--stall-at", 20, "--stall-ms", 400) as server:
        report, _, _ = bench(
            server.url, "--duration", "1.5s",
            "--class", "name=chat arrivals=closed:4 prompt=16 output=50 endpoint=chat",
            "--class", "name=probe arrivals=every:500ms start=250ms prompt=512 output=1 "
                       "prompt-token-ids=100-900")
    chat, probe = group(report, "class", "chat"), group(report, "class", "probe")
    assert 300 <= chat["ms"]["longest_gap"]["p50"] < 600  # shorter than 400 where its first chunk was read late
    assert chat["ms"]["itl"]["p50"] < 40
    assert probe["requests"]["ok"] == 3
    assert probe["tokens"]["prompt_told"] == 3 * 512  # ids are exact
    assert probe["ms"]["longest_gap"] is None
    total = chat["requests"]["ok"] + probe["requests"]["ok"]
    assert group(report)["requests"]["ok"] == total


def test_classes_models_and_priorities_are_drawn_by_weight(tmp_path):
    with NullServer() as server:
        report, lines, _ = bench(
            server.url, "--arrivals", "closed:8", "--requests", 400, "--output", "1-3",
            "--prompt", "5-9", "--model", "small=3,large=1", "--priority", "0=1,5=1",
            "--service-tier", "default,flex", "--key", "secret-a=1,secret-b=4", "--seed", 1,
            tmp_path=tmp_path)
    small = group(report, "model", "small")["requests"]["ok"]
    assert small + group(report, "model", "large")["requests"]["ok"] == 400
    assert 250 < small < 350
    assert 150 < group(report, "priority", "5")["requests"]["ok"] < 250
    assert 150 < group(report, "tier", "flex")["requests"]["ok"] < 250
    assert 280 < group(report, "key", "key2")["requests"]["ok"] < 360
    assert "secret" not in json.dumps(report)
    assert "secret" not in (tmp_path / "requests.csv").read_text()
    assert {int(line["prompt_tokens"]) for line in lines} == {5, 6, 7, 8, 9}
    assert {int(line["output_tokens"]) for line in lines} == {1, 2, 3}


def test_the_seed_decides_the_requests(tmp_path):
    def columns(seed):
        with NullServer() as server:
            _, lines, _ = bench(server.url, "--arrivals", "poisson:400", "--requests", 50,
                                "--prompt", "1-500", "--output", "1-5", "--seed", seed,
                                tmp_path=tmp_path)
        lines.sort(key=lambda line: int(line["index"]))
        return [(x["scheduled_s"], x["prompt_tokens"], x["output_asked"]) for x in lines]

    first, again, other = columns(11), columns(11), columns(12)
    assert first == again
    assert first != other


def test_trace_gives_times_and_lengths(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                     "2023-11-16 18:17:03.9799600,48,10\r\n"
                     "2023-11-16 18:17:04.9799600,3180,8\r\n"
                     "2023-11-16 18:17:06.9799600,110,27\r\n")
    with NullServer() as server:
        _, lines, _ = bench(server.url, "--trace", trace, "--arrivals", "trace", "--trace-speed",
                            10, "--prompt", "trace", "--output", "trace", "--output-max", 20,
                            "--prompt-max", 1000, tmp_path=tmp_path)
    lines.sort(key=lambda line: int(line["index"]))
    assert [float(x["scheduled_s"]) for x in lines] == pytest.approx([0, 0.1, 0.3], abs=1e-5)
    assert [x["prompt_tokens"] for x in lines] == ["48", "1000", "110"]
    assert [x["output_tokens"] for x in lines] == ["10", "8", "20"]


def test_scenario_file_and_command_line(tmp_path):
    scenario = tmp_path / "scenario.json"
    scenario.write_text(json.dumps({
        "duration": "5s", "requests": 3, "output": 4,
        "classes": [
            {"name": "a", "arrivals": "closed:2", "model": {"x": 1, "y": 1}, "extra": {"top_k": 4}},
            {"name": "b", "arrivals": "constant:100", "output": 2, "ignore-eos": True},
        ]}))
    with NullServer() as server:
        report, _, _ = bench(server.url, "--scenario", scenario, "--requests", 5)
    assert group(report, "class", "a")["tokens"]["output"] == 5 * 4
    assert group(report, "class", "b")["tokens"]["output"] == 5 * 2
    assert report["wall_s"] < 4


def test_failures_are_counted_by_code(tmp_path):
    with NullServer("--fail-every", 5, "--fail-status", 429, "--cut-every", 7) as server:
        report, lines, table = bench(server.url, "--arrivals", "constant:400", "--requests", 35,
                                     "--output", 8, "--slo-ttft-ms", 9000, rc=1, tmp_path=tmp_path)
    g = group(report)
    # 5, 10, ..., 35 are refused; 7, 14, 21, 28 are cut; 35 is refused before it could be cut.
    assert g["errors"] == {"http_429": 7, "cut": 4}
    assert g["requests"]["ok"] == 24 and g["requests"]["failed"] == 11
    assert "null_refusal" in g["error_texts"]["http_429"]
    assert g["goodput"]["requests"] == 35 and g["goodput"]["met"] == 24
    assert g["goodput"]["attainment"] == pytest.approx(24 / 35, abs=1e-5)
    assert sum(line["http_status"] == "429" for line in lines) == 7
    assert "http_429 7" in table


def test_goodput_needs_both_targets():
    with NullServer("--ttft-ms", 50, "--tokens-per-s", 100) as server:
        run = ["--arrivals", "closed:2", "--requests", 4, "--output", 11]
        for ttft_ms, tpot_ms, met in [(5000, 500, 4), (20, 500, 0), (5000, 5, 0)]:
            report, _, _ = bench(server.url, *run, "--slo-ttft-ms", ttft_ms,
                                 "--slo-tpot-ms", tpot_ms)
            assert group(report)["goodput"]["met"] == met


def test_output_without_usage_is_counted_by_chunks():
    with NullServer("--no-usage") as server:
        report, _, table = bench(server.url, "--requests", 3, "--output", 9)
    tokens = group(report)["tokens"]
    assert tokens["output"] == 27 and tokens["requests_counted_by_chunks"] == 3
    assert group(report)["per_s"]["prompt_tokens"] is None
    assert "CHUNKS" in table


def test_short_outputs_are_told():
    with NullServer("--eos-at", 4) as server:
        report, _, table = bench(server.url, "--requests", 3, "--output", 9, "--ignore-eos")
    assert group(report)["tokens"]["requests_short"] == 3
    assert "shorter than asked" in table


def test_warmup_and_skipped_time_are_not_counted(tmp_path):
    with NullServer() as server:
        report, lines, _ = bench(server.url, "--warmup", 10, "--arrivals", "constant:50",
                                 "--requests", 50, "--skip-s", "0.5s", "--output", 2,
                                 tmp_path=tmp_path)
    assert len(lines) == 60
    counted = [line for line in lines if line["counted"] == "1"]
    assert len(counted) == group(report)["requests"]["offered"] == 25
    assert min(float(line["scheduled_s"]) for line in counted) >= 0.5
    assert group(report)["ms"]["itl"]["n"] == 25


def test_the_first_requests_are_not_counted(tmp_path):
    with NullServer("--tokens-per-s", 100) as server:
        report, lines, _ = bench(server.url, "--arrivals", "closed:4", "--requests", 20, "--skip", 8, "--output", 5,
                                 tmp_path=tmp_path)
    assert len(lines) == 20
    assert len([line for line in lines if line["counted"] == "1"]) == group(report)["requests"]["offered"] == 12
    assert group(report)["ms"]["ttft"]["n"] == 12


def test_duration_ends_and_drain_cuts():
    with NullServer("--tokens-per-s", 20) as server:
        began = time.monotonic()
        report, _, _ = bench(server.url, "--arrivals", "closed:3", "--duration", "1s",
                             "--drain-s", "0.2s", "--output", 1000, rc=1)
        assert time.monotonic() - began < 4
    requests = group(report)["requests"]
    assert requests["cut"] == 3 and requests["failed"] == 0  # nothing ended: status 1
    assert 30 < group(report)["per_s"]["output_tokens_steady"] < 90


def test_interrupt_prints_what_there_is():
    with NullServer("--tokens-per-s", 50) as server:
        process = subprocess.Popen(
            [BENCH, "--url", server.url, "--duration", "60s", "--arrivals", "closed:2", "--output",
             "10"], stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        table, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "interrupted" in table
    assert int(re.search(r"(\d+) ok", table).group(1)) >= 4
    assert int(re.search(r"(\d+) cut off", table).group(1)) >= 1


def test_a_thousand_streams_are_held():
    with NullServer("--ttft-ms", 300, "--tokens-per-s", 10) as server:
        report, _, _ = bench(server.url, "--arrivals", "closed:1000", "--requests", 1000,
                             "--prompt", 8, "--output", 6)
    g = group(report)
    assert g["requests"]["ok"] == 1000
    assert report["wall_s"] < 40  # one after another would take 800 s
    assert g["ms"]["e2e"]["min"] >= 800  # the server sends no token before its time


def test_timeout_is_a_failure():
    with NullServer("--ttft-ms", 5000) as server:
        report, _, _ = bench(server.url, "--requests", 1, "--timeout-s", "0.3", rc=1)
    assert group(report)["errors"] == {"timeout": 1}, group(report)["error_texts"]


def test_nobody_listening_is_a_failure():
    report, _, _ = bench("http://127.0.0.1:1", "--requests", 2, "--model", "x", rc=1)
    assert group(report)["errors"] == {"connect": 2}, group(report)["error_texts"]


class OddServer:
    """Answers each POST with bytes that a test chose, and keeps what was asked."""

    def __init__(self, body, status=200, kind="text/event-stream"):
        asked = self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet: the second of two would wait 40 ms

            def do_POST(self):
                asked.append((self.path, dict(self.headers),
                              json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


TEXT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}'


@pytest.mark.parametrize("body, status, kind, error", [
    (TEXT + b"\n\n", 200, "text/event-stream", "cut"),
    (TEXT + b'\n\ndata: {"error":{"message":"m","code":"device_lost"}}\n\n', 200,
     "text/event-stream", "stream_device_lost"),
    (TEXT + b"\n\ndata: {nonsense\n\n", 200, "text/event-stream", "bad_event"),
    (b'{"choices":[]}', 200, "application/json", "not_sse"),
    (b'{"error":"Unauthorized"}', 401, "application/json", "http_401"),
    (b"<html>gateway</html>", 502, "text/html", "http_502"),
    (b"", 503, "text/plain", "http_503"),
])
def test_bad_answers_have_names(body, status, kind, error):
    with OddServer(body, status, kind) as server:
        report, _, _ = bench(server.url, "--requests", 1, "--model", "m", "--endpoint", "chat",
                             rc=1)
    assert group(report)["errors"] == {error: 1}, group(report)["error_texts"]


def test_other_servers_forms_are_read_and_requests_are_well_formed():
    body = (b": ping\r\n\r\n"
            b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\r\n\r\n'
            + TEXT + b"\r\n\r\n" + TEXT + b"\r\n\r\n"
            b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n'
            b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,'
            b'"prompt_tokens_details":{"cached_tokens":3}}}\r\n\r\ndata: [DONE]\r\n\r\n')
    with OddServer(body) as server:
        report, _, _ = bench(
            server.url, "--requests", 2, "--model", 'm"1\\', "--endpoint", "chat", "--prompt", 6,
            "--key", "sk-1", "--priority", "-3", "--service-tier", "flex", "--header",
            "X-Test: yes", "--extra", '{"top_k": 5}', "--ignore-eos", "--output", 5,
            "--temperature", "0.5")
    tokens = group(report)["tokens"]
    assert tokens["prompt_told"] == 14 and tokens["prompt_cached"] == 6 and tokens["output"] == 10
    assert group(report)["ms"]["itl"]["n"] == 2  # two chunks with text each
    path, headers, asked = server.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer sk-1" and headers["X-Test"] == "yes"
    assert headers["Content-Type"] == "application/json" and "Expect" not in headers
    prompts = [request["messages"][0]["content"] for _, _, request in server.asked]
    assert len(prompts[0].split()) == 6 and prompts[0] != prompts[1]
    del asked["messages"]
    assert asked == {"model": 'm"1\\', "max_tokens": 5, "stream": True,
                     "stream_options": {"include_usage": True}, "temperature": 0.5,
                     "ignore_eos": True, "priority": -3, "service_tier": "flex", "top_k": 5}


def test_an_answer_without_text_is_told():
    body = (b'data: {"choices":[{"text":"","finish_reason":"stop"}]}\n\n'
            b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
            b"data: [DONE]\n\n")
    with OddServer(body) as server:
        report, _, _ = bench(server.url, "--requests", 1, "--model", "m")
    assert group(report)["requests"]["textless"] == 1
    assert group(report)["ms"]["ttft"]["n"] == 1


class Page(html.parser.HTMLParser):
    """The tags and the text of a page; fails where a tag is not closed by its own end."""

    VOID = {"meta"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.attrs = [], [], "", []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attrs += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_picture_is_one_file_with_escaped_names(tmp_path):
    at = tmp_path / "run.html"
    with NullServer("--tokens-per-s", 200, "--stall-at", 8, "--stall-ms", 150, "--fail-every", 9) as server:
        report, _, _ = bench(
            server.url, "--html", at, "--seed", 1, "--gap-ms", 100, "--model", "<i>m&",
            "--class", "name=<b>a&\"' arrivals=closed:3 requests=20 output=16 key=sk-secret,sk-other",
            "--class", "name=b arrivals=constant:20 requests=10 output=4", rc=1)
    text = at.read_text()
    page = Page(text)
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert not re.search(r"""[ ](src|href)=|url\(""", text)
    assert "<b>a&\"'" in page.text and "<i>m&" in page.text and "sk-secret" not in text
    assert "prefers-color-scheme:dark" in text
    assert page.tags.count("svg") == 1 + 2 * 6  # streams, and six plots by class and by key
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        xml.etree.ElementTree.fromstring(svg)
    gaps = text.count('class="gap"')
    assert gaps >= 15  # each answer of 16 tokens stalls once
    assert "30 of 30 requests are drawn" in page.text
    assert "http_503" in page.text and f"{group(report)['requests']['ok']}requests ok" in page.text


def compare(*words):
    return subprocess.run([BENCH, "compare", *map(str, words)], capture_output=True, text=True, timeout=60)


def test_results_are_compared(tmp_path):
    def result(name, ttft_ms, seed, prompt=8):
        with NullServer("--ttft-ms", ttft_ms, "--tokens-per-s", 400) as server:
            report, _, _ = bench(server.url, "--arrivals", "closed:8", "--requests", 120, "--output", 12,
                                 "--prompt", prompt, "--seed", seed, "--slo-ttft-ms", 30000)
        (tmp_path / name).write_text(json.dumps(report))
        return tmp_path / name, report

    (a, report), (a2, _) = result("a.json", 20, 1), result("a2.json", 20, 2)
    (b, _), (other, _) = result("b.json", 60, 1), result("other.json", 20, 1, prompt=9)
    assert report["samples"]["n"] == report["completed"] == 120 and report["failed"] == 0
    assert report["mean_ttft_ms"] == group(report)["ms"]["ttft"]["mean"]
    assert report["median_tpot_ms"] == group(report)["ms"]["tpot"]["p50"]
    assert report["load"]["classes"][0]["settings"]["arrivals"] == "closed:8"

    done = compare(f"{a},{a2}", b, "--json", "-", "--seed", 5)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    ttft = next(row for row in told["rows"] if row["figure"] == "ttft p50")
    assert ttft["low"] <= ttft["ratio"] <= ttft["high"] and told["seed"] == 5
    assert (told["worse"] > 0) == (done.returncode == 1)
    assert "A: 2 runs, 240 requests ok" in done.stderr and "seed 5" in done.stderr

    report["samples"]["ttft_ms"] = [20 + i % 10 for i in range(120)]  # known values: of a busy machine they vary
    a.write_text(json.dumps(report))
    report["samples"]["ttft_ms"] = [1.5 * ms for ms in report["samples"]["ttft_ms"]]
    (tmp_path / "slower.json").write_text(json.dumps(report))
    done = compare(a, tmp_path / "slower.json")
    assert done.returncode == 1 and done.stdout.count("50.0 % more: worse") == 2  # ttft p50 and p90, nothing else
    assert done.stdout.count("worse") == 2
    done = compare(a, tmp_path / "slower.json", "--margin", 60)
    assert done.returncode == 0 and done.stdout.count("worse, within the margin") == 2

    done = compare(a, a)  # the same values: no figure differs
    assert done.returncode == 0
    assert "better" not in done.stdout and "worse" not in done.stdout
    assert done.stdout.count("no difference seen") >= 8 and "too few values: 120 and 120" in done.stdout

    done = compare(a, other)
    assert done.returncode == 2 and 'prompt is "8" in one and "9" in the other' in done.stderr
    done = compare(a, other, "--force")
    assert done.returncode in (0, 1) and "different loads" in done.stderr


@pytest.mark.parametrize("words", [[], ["/nowhere", "/nowhere"], ["/dev/null", "/dev/null"],
                                   ["/dev/zero", "/dev/zero"], ["a.json"], ["a,", "b"]])
def test_what_is_no_result_is_refused(words):
    done = compare(*words)
    assert done.returncode == 2 and done.stderr.startswith("inferd-bench: ") and not done.stdout


def slo(*words, rc=0):
    done = subprocess.run([BENCH, "slo", *map(str, words), "--json", "-"], capture_output=True, text=True, timeout=100)
    assert done.returncode == rc, done.stderr
    return json.loads(done.stdout) if done.stdout else None, done.stderr


def test_slo_finds_the_rate_that_a_server_can_hold():
    # Two places of 100 ms each: 20 requests a second at most.  At 32 each request waits longer than the one before.
    with NullServer("--ttft-ms", 100) as server:
        run = ["--url", server.url, "--output", 1, "--inflight-max", 2, "--arrivals", "constant:3", "--seed", 4,
               "--probe-s", 1, "--probe-requests", 12, "--precision", 1]
        told, table = slo(*run, "--slo-ttft-ms", 400, "--rate", 8, "--attainment", 0.7)
        assert 2 <= told["rate"] < 32 and told["rate_not_held"] <= 64
        assert [p["seed"] for p in told["probes"]] == [4 + i for i in range(len(told["probes"]))]
        rates = [p["rate"] for p in told["probes"]]
        assert rates[0] == 8 and rates[1] in (4, 16)
        assert all(p["held"] == (not p["stopped_early"] and p["met"] >= 0.7 * p["requests"]) for p in told["probes"])
        assert table.count("probe ") == len(rates) and "did not" in table
        told, _ = slo(*run, "--slo-ttft-ms", 1, "--rate", 4, "--rate-min", 3, rc=1)
        assert told["rate"] is None and told["reason"] == "not held at --rate-min"
        assert all(p["stopped_early"] for p in told["probes"])
        told, _ = slo(*run, "--slo-ttft-ms", 400, "--total-s", 2, rc=1)
        assert told["reason"] == "--total-s is used up" and told["probes"] == []


def test_slo_says_what_the_drain_cut():
    with NullServer("--tokens-per-s", 20) as server:  # answers of 2 s, and a probe waits for none of them
        told, table = slo("--url", server.url, "--output", 40, "--arrivals", "constant:20", "--rate", 20, "--rate-min", 20,
                          "--probe-s", "0.3", "--probe-requests", 1, "--warmup", 1, "--slo-tpot-ms", 500, "--drain-s", 0,
                          "--attainment", 0.01, rc=1)
        probe, = told["probes"]
        assert probe["drain_s"] == 0 and probe["cut"] == probe["requests"] > 3 and not probe["stopped_early"]
        assert f"{probe['cut']} cut off (see --drain-s)" in table and probe["tpot_p99_ms"] is None
        # the drain would wait for them, but the search has no time left
        told, table = slo("--url", server.url, "--output", 40, "--prompt", 4, "--arrivals", "constant:9", "--rate", 9, "--probe-s",
                          1, "--probe-requests", 1, "--slo-tpot-ms", 500, "--drain-s", 60, "--total-s", "1.5", rc=1)
        assert told["reason"] == "--total-s is used up" and told["rate_not_held"] is None
        assert [p["held"] for p in told["probes"]] == [None] and told["probes"][0]["cut"] > 0
        assert "cut off (see --total-s)" in table and "not known" in table
    with NullServer("--fail-every", 1) as server:  # no first token at all
        told, table = slo("--url", server.url, "--rate", 20, "--rate-min", 20, "--probe-s", "0.2", "--probe-requests", 1,
                          "--slo-ttft-ms", 500, rc=1)
        assert told["probes"][0]["ttft_p99_ms"] is None and "p99" not in table and told["unit"] == "requests/s"
        told, table = slo("--url", server.url, "--rate", 20, "--rate-min", 20, "--probe-s", "0.2", "--probe-requests", 1,
                          "--slo-ttft-ms", 500, "--endpoint", "chat", "--turns", "1-3", rc=1)
        assert told["unit"] == "conversations/s" and "20.000 conversations/s: 0 of" in table and "requests/s" not in table


@pytest.mark.parametrize("options, words", [
    ([], "slo-ttft-ms"), (["--slo-ttft-ms", "9", "--arrivals", "closed:2"], "constant, poisson"),
    (["--slo-ttft-ms", "9", "--arrivals", "onoff:2/1/1"], "constant, poisson"), (["--duration", "9"], "--duration"),
    (["--slo-ttft-ms", "9", "--rate", "9", "--rate-max", "5"], "rate-max"), (["--attainment", "1.5"], "attainment")])
def test_wrong_usage_of_slo_is_refused(options, words):
    _, told = slo("--url", "http://127.0.0.1:1", "--model", "m", *options, rc=2)
    assert words in told


def test_slo_tells_failures_and_ends_when_all_requests_are_refused():
    run = ["--slo-ttft-ms", 500, "--rate", 8, "--rate-min", 2, "--rate-max", 8, "--probe-s", 1, "--probe-requests", 1,
           "--output", 1, "--seed", 1]
    words = ["--model", "m", *run]
    with NullServer("--fail-every", 1, "--fail-status", 401) as server:
        told, table = slo("--url", server.url, *words, rc=2)
    probe, = told["probes"]  # no lower rate is tried
    assert probe["failed"] == probe["errors"]["http_401"] > 0 and probe["warmup_failed"] == 1 and probe["held"] is None
    assert told["reason"] == "every request of a probe failed" and told["rate"] is None
    assert f", {probe['failed']} failed (http_401: {probe['failed']})" in table and "not known" in table
    assert "inferd-bench: every request of probe 1 failed, and not of overload" in table
    told, table = slo("--url", server.url, *words, rc=2)  # the server is down
    assert told["probes"][0]["errors"] == {"connect": told["probes"][0]["failed"]} and "connect: " in table
    with NullServer("--fail-every", 1, "--fail-status", 429) as server:  # overload: a lower rate may do
        told, table = slo("--url", server.url, *words, rc=1)
    assert [p["rate"] for p in told["probes"]] == [8, 4, 2] and told["reason"] == "not held at --rate-min"
    assert all(p["errors"] == {"http_429": p["failed"]} for p in told["probes"]) and table.count("failed (http_429: ") == 3
    with NullServer("--fail-every", 3, "--fail-status", 401) as server:  # not all of them
        told, table = slo("--url", server.url, *words, "--attainment", "0.4", rc=0)
    probe, = told["probes"]
    assert probe["held"] and 0 < probe["failed"] < probe["requests"] and "failed (http_401: " in table
    with NullServer() as server:
        told, table = slo("--url", server.url, *words)
    assert told["probes"][0]["failed"] == 0 and told["probes"][0]["errors"] == {} and "failed" not in table


def test_slo_refuses_a_class_whose_requests_end_before_the_probe(tmp_path):
    words = "class a: requests 5 cannot be used with slo"
    (tmp_path / "scenario.json").write_text(json.dumps(
        {"slo-ttft-ms": 500, "classes": [{"name": "a", "arrivals": "poisson:1", "requests": 5}]}))
    with NullServer() as server:
        _, told = slo("--url", server.url, "--class", "name=a arrivals=poisson:1 requests=5 slo-ttft-ms=500", rc=2)
        assert words in told
        _, told = slo("--url", server.url, "--scenario", tmp_path / "scenario.json", rc=2)
        assert words in told
        told, _ = slo("--url", server.url, "--rate", 50, "--rate-max", 50, "--probe-s", "0.2", "--probe-requests", 1,
                      "--output", 1, "--slo-ttft-ms", 5000,
                      "--class", "name=a arrivals=constant:1", "--class", "name=b arrivals=closed:1 requests=3")
        assert told["reason"] == "held at --rate-max"  # a closed loop beside the rate may end


CHATS = [{"conversations": [{"from": "human", "value": "one two"}, {"from": "gpt", "value": "x y z"},
                            {"from": "human", "value": "three"}, {"from": "gpt", "value": "w"}]},
         {"conversations": [{"from": "gpt", "value": "to nothing"}]},
         {"conversations": [{"from": "human", "value": "alone"}]}]


def test_conversations_send_what_the_model_said(tmp_path):
    (tmp_path / "chats.json").write_text(json.dumps(CHATS))
    said = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[{"delta":{"content":"\xc3\xa4"}}]}\n\n'
    with OddServer(said + b"data: [DONE]\n\n") as server:
        report, lines, table = bench(server.url, "--model", "m", "--endpoint", "chat", "--dataset", tmp_path / "chats.json",
                                 "--turns", "1-9", "--output", "dataset", "--requests", 40, "--seed", 2, "--arrivals", "closed:4", "--system", 3,
                                 "--think-time", "1ms-3ms", tmp_path=tmp_path)
    assert "1 of 3 conversations of the data set have no human turn" in table
    asked = [request for _, _, request in server.asked]
    assert len(asked) == group(report)["requests"]["ok"] == len(lines)
    seen = set()
    for request in asked:
        system, *messages = request["messages"]
        assert system["role"] == "system" and len(system["content"].split()) == 3
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"]
        assert all(m["content"] == "aä" for m in messages if m["role"] == "assistant")
        seen.add((request["max_tokens"], *(m["content"] for m in messages if m["role"] == "user")))
    assert seen == {(3, "one two"), (1, "one two", "three"), (128, "alone")}  # no answer: the default
    first, second = (group(report, "turn", turn)["requests"]["ok"] for turn in "12")
    assert first == 40 and 0 < second < 20 and first + second == len(asked)
    assert {line["turn"] for line in lines} == {"1", "2"}


def test_turns_wait_think_and_end_with_a_failure(tmp_path):
    with NullServer("--fail-every", 10) as server:
        report, lines, _ = bench(server.url, "--endpoint", "chat", "--turns", 4, "--think-time", "50ms", "--requests", 8,
                                 "--arrivals", "constant:200", "--output", 2, "--prompt", 6, rc=1,
                                 tmp_path=tmp_path)
    n = {turn: sum(line["turn"] == turn for line in lines) for turn in "1234"}
    assert n["1"] == 8 and n["1"] >= n["2"] >= n["3"] >= n["4"] and n["4"] < 8
    failed = [line for line in lines if line["outcome"] == "failed"]
    assert failed and len(lines) == group(report)["requests"]["offered"]
    for line in failed:  # nothing follows a turn that failed
        assert not [x for x in lines if x["index"] == line["index"] and int(x["turn"]) > int(line["turn"])]
    for line in lines:
        after = [x for x in lines if x["index"] == line["index"] and int(x["turn"]) == int(line["turn"]) + 1]
        if after:
            waited = float(after[0]["scheduled_s"]) - float(line["scheduled_s"]) - float(line["e2e_ms"]) / 1000
            assert waited == pytest.approx(0.05, abs=1e-4)


def test_lines_of_a_file_are_prompts(tmp_path):
    (tmp_path / "prompts").write_text("".join(f"prompt {i}\n\n" for i in range(20)))
    with OddServer(TEXT + b"\n\ndata: [DONE]\n\n") as server:
        bench(server.url, "--model", "m", "--dataset", tmp_path / "prompts", "--requests", 20, "--arrivals", "closed:4")
        assert {request["prompt"] for _, _, request in server.asked} == {f"prompt {i}" for i in range(20)}
        del server.asked[:]  # 20 lines for conversations of 1 to 4 turns: the first 20 messages are all of them
        bench(server.url, "--model", "m", "--dataset", tmp_path / "prompts", "--requests", 20, "--endpoint", "chat", "--turns", "1-4")
        sent = [request["messages"][-1]["content"] for _, _, request in server.asked]
        assert len(sent) > 20 and len(set(sent[:20])) == 20 and set(sent) == set(sent[:20])
        report, _, _ = bench(server.url, "--model", "m", "--dataset", tmp_path / "prompts", "--requests", 1, "--seed", 3)
        bench(server.url, "--model", "m", "--dataset", tmp_path / "prompts", "--requests", 1, "--seed", 3)
        assert server.asked[-1][2] == server.asked[-2][2]


def prompts_of(server):
    prompts = [request["prompt"] if "prompt" in request else request["messages"][-1]["content"]
               for _, _, request in server.asked]
    del server.asked[:]
    return prompts


def test_no_prompt_of_a_data_set_comes_twice_before_all_came_once(tmp_path):
    data = tmp_path / "prompts"
    data.write_text("".join(f"prompt {i}\n" for i in range(100)))
    (tmp_path / "copy").write_text(data.read_text())
    run = ["--model", "m", "--dataset", data, "--seed", 1]
    with OddServer(TEXT + b"\n\ndata: [DONE]\n\n") as server:
        report, _, table = bench(server.url, *run, "--warmup", 40, "--requests", 60, "--arrivals", "closed:4")
        assert len(set(prompts_of(server))) == 100  # the warm-up had the first ones
        assert report["prompts_again"] == 0 and "sent before" not in table
        # two spellings of one file, and a class that takes four times as many as the other
        report, _, _ = bench(server.url, *run[:2], "--seed", 1, "--warmup", 10,
                             "--class", f"name=a arrivals=closed:2 requests=72 dataset={data}",
                             "--class", f"name=b arrivals=closed:1 requests=18 dataset=text:{tmp_path}/copy endpoint=chat")
        assert len(set(prompts_of(server))) == 100 and report["prompts_again"] == 0
        report, _, table = bench(server.url, *run, "--warmup", 90, "--requests", 30, "--html", tmp_path / "h.html")
        assert len(set(prompts_of(server)[:100])) == 100 and report["prompts_again"] == 20
        assert "20 of 30 requests had one that was sent before" in table
        assert "20 requests had a prompt of the data set that was sent before" in (tmp_path / "h.html").read_text()


def test_probes_of_slo_go_on_in_the_data_set(tmp_path):
    (tmp_path / "prompts").write_text("".join(f"prompt {i}\n" for i in range(100)))
    run = ["--model", "m", "--dataset", tmp_path / "prompts", "--arrivals", "constant:1", "--rate", 20, "--rate-max", 40,
           "--probe-s", 1, "--probe-requests", 1, "--output", 1, "--slo-ttft-ms", 60000]
    with OddServer(TEXT + b"\n\ndata: [DONE]\n\n") as server:
        told, table = slo("--url", server.url, *run)
        sent = prompts_of(server)
        assert [p["rate"] for p in told["probes"]] == [20, 40] and 50 < len(sent) <= 65
        assert len(set(sent)) == len(sent)  # those of the second probe, and of the warm-up, are new
        assert told["prompts_again"] == 0 and "sent before" not in table
        told, table = slo("--url", server.url, *run, "--warmup", 50)
        sent = prompts_of(server)
        # of eight warm-up requests at once the last may be read first
        assert len(set(sent[:92])) == 92 and told["prompts_again"] == told["probes"][1]["prompts_again"] > 10
        assert told["probes"][0]["prompts_again"] == 0
        assert f"{told['prompts_again']} requests had one that was sent before" in table


@pytest.mark.parametrize("options, words", [
    (["--dataset", "BAD.json"], "entry 0: conversations[0].from"), (["--turns", "3"], "only with endpoint chat"),
    (["--output", "dataset"], "output dataset"), (["--dataset", "BAD.json.gone"], "No such file"),
    (["--think-time", "3s-1s"], "think-time")])
def test_wrong_data_sets_are_refused(tmp_path, options, words):
    (tmp_path / "BAD.json").write_text('[{"conversations": [{"from": "cat", "value": "x"}]}]')
    done = subprocess.run([BENCH, "--url", "http://h", "--model", "m", "--requests", "1", *options], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_progress_is_one_line_on_a_terminal_and_rare_elsewhere():
    with NullServer("--tokens-per-s", 20) as server:
        run = [BENCH, "--url", server.url, "--requests", "2", "--output", "27"]  # 2 x 1.3 s
        master, slave = pty.openpty()
        with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=slave, env={**os.environ, "TERM": "xterm"}) as process:
            os.close(slave)
            told = b""
            try:
                while block := os.read(master, 4096):
                    told += block
            except OSError:  # the other end is closed
                pass
            os.close(master)
        assert process.returncode == 0
        lines = told.split(b"\r\x1b[K")
        assert len(lines) >= 4 and b"\n" not in told and lines[-1] == b""  # cleared at the end
        assert any(b"1 of 2 ok" in line and b"left" in line for line in lines)
        done = subprocess.run([*run, "--progress"], capture_output=True, text=True, timeout=60, check=True)
        assert len(re.findall(r"^\d+ s", done.stderr, re.M)) >= 2 and "\r" not in done.stderr
        done = subprocess.run([*run, "--output", "1"], capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr == ""


@pytest.mark.parametrize("options", [
    [], ["--url", "http://h"], ["--url", "ftp://h", "--requests", "1"], ["--nonsense"], ["word"],
    ["--url", "http://h", "--requests"], ["--url", "http://h", "--requests", "x"],
    ["--url", "http://127.0.0.1:1", "--requests", "1"],  # no model, and nobody to ask
    ["--url", "http://h", "--requests", "1", "--class", "prompt"],
    ["--url", "http://h", "--requests", "1", "--model", "m", "--scenario", "/nowhere"],
    ["null-server", "--listen", "nonsense"], ["self-test", "--streams", "0"],
])
def test_wrong_usage_has_status_2_and_a_sentence(options):
    done = subprocess.run([BENCH, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("inferd-bench: ") and not done.stdout


def test_help_and_readme_name_every_option():
    text = subprocess.run([BENCH, "--help"], capture_output=True, text=True, check=True).stdout
    readme = (ROOT / "bench" / "README.md").read_text()
    options = set(re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)) - {"help"}
    assert {"url", "arrivals", "slo-ttft-ms", "listen", "stall-ms", "seconds", "class"} <= options
    missing = {name for name in options if f"`--{name}" not in readme}
    assert not missing


def test_self_test_finds_the_truth():
    done = subprocess.run([BENCH, "self-test", "--seconds", "1", "--streams", "100", "--json", "-"],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert group(reports["requests"])["per_s"]["requests"] > 100
    assert group(reports["tokens"])["per_s"]["output_tokens_steady"] > 1000
    assert group(reports["bundles"])["per_s"]["output_tokens_steady"] > 1000
    assert 25 < group(reports["pace"])["ms"]["itl"]["mean"] < 100
    assert 99 < group(reports["pace"])["ms"]["ttft"]["p50"] < 1000
