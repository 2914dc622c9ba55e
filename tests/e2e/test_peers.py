"""scripts/bench-peers as far as it goes without peers: roofs, verdicts, the report, pausing, and what it
refuses."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "bench" / "peers"))
import cpu_serve  # noqa: E402
import cpu_table  # noqa: E402

# 100 MB of weights, of 50 million factors 10 million in the head.
ABOUT = {"weight_bytes": 100_000_000, "factors": 50_000_000, "head_factors": 10_000_000, "kv_values_per_token": 1000}
CEILINGS = [{"bench": "machine", "cpu": "x"}] + [
    {"bench": "ceiling", "what": what, "threads": threads, "best": best, "median": best, "unit": "-"}
    for what, threads, best in (("dram read", 1, 40), ("dram read", 2, 50), ("vpdpbusd zmm", 2, 1000),
                                ("vdpbf16ps zmm", 2, 500))]


def pair(kind="Q4_1", peer="llama-server", **values):
    """values: case=(inferd's, the peer's)"""
    return {"type": kind, "peer": peer, "about": ABOUT, "kv_tokens": 65536, "ceilings": CEILINGS, "commands": ["x"],
            "values": {case: {"inferd": [ours], peer: [theirs]} for case, (ours, theirs) in values.items()}}


def test_roof_is_the_lower_of_memory_and_arithmetic():
    roofs = cpu_table.roofs(CEILINGS, ABOUT, "Q4_1")
    assert roofs["s1"] == 500  # 50 GB/s by 100 MB; all threads, not one
    assert roofs["s8"] == 4000  # eight rows for one reading
    assert roofs["s32"] == 10_000  # 1,000 GOP/s by two operations for each factor, less than 16,000
    assert roofs["prefill512"] == 12_500  # without the head
    assert cpu_table.roofs(CEILINGS, ABOUT, "BF16")["s32"] == 5000
    assert cpu_table.roofs([], ABOUT, "Q4_1") == {}


@pytest.mark.parametrize("case, ours, theirs, how", [
    ("s1", 250, 100, "must"),  # 2.5 times
    ("s1", 350, 300, "must"),  # 70 % of the roof of 500
    ("s1", 400, 300, "aim"),
    ("s1", 249, 100, "missed"),
    ("s8", 449, 100, "missed"), ("s8", 450, 100, "must"), ("s8", 700, 100, "aim"),
    ("ttft128", 21, 100, "missed"), ("ttft128", 20, 100, "must"), ("ttft128", 13, 100, "aim"),
    ("cold", 601, 1, "missed"), ("cold", 600, 1, "must"), ("cold", 300, 1, "aim"),
    ("pss_idle", 200, 1000, "must"), ("pss_idle", 201, 1000, "missed"),
    ("pss_full", 291, 1000, "must"),  # 100 + 65,536 x 1,000 x 2 bytes = 231.07 MB, and 60
    ("pss_full", 292, 1000, "missed"), ("pss_full", 271, 1000, "aim"),
])
def test_verdicts(case, ours, theirs, how):
    p = pair(**{case: (ours, theirs)})
    assert cpu_table.verdict(p, case, cpu_table.roofs(CEILINGS, ABOUT, "Q4_1").get(case))[1] == how


@pytest.mark.parametrize("longest, how", [(50, "must"), (51, "missed"), (40, "aim")])
def test_a_gap_is_judged_by_the_pace_of_decoding(longest, how):
    p = pair(gap_longest=(longest, 1600), gap_median=(3, 23))
    assert cpu_table.verdict(p, "gap_longest", None)[1] == how


@pytest.mark.parametrize("case, ours, theirs, how", [
    ("load8_tokens", 190, 100, "must"), ("load8_tokens", 189, 100, "missed"),
    ("load8_ttft", 45, 100, "must"), ("load8_ttft", 46, 100, "missed"),
    ("load16_ttft99", 100, 100, "must"), ("load16_ttft99", 101, 100, "missed"),
    ("load1_itl99", 60, 10, "must"), ("load1_itl99", 61, 100, "missed"),
    ("poisson_e2e", 60, 100, "must"), ("poisson_e2e", 61, 100, "missed"),
])
def test_loads_are_judged(case, ours, theirs, how):
    assert cpu_table.verdict(pair(**{case: (ours, theirs)}), case, None)[1] == how
    assert case in cpu_table.TITLES


def test_cpu_time_of_others_is_seen():
    all_s, busy_s = cpu_serve.machine_s()
    before = cpu_serve.cpu_s(os.getpid())
    while cpu_serve.cpu_s(os.getpid()) < before + 0.1:
        pass
    assert cpu_serve.machine_s()[1] >= busy_s + 0.05 and cpu_serve.machine_s()[0] > all_s


def test_bf16_has_goals_beside_vllm_only_where_the_issue_has_them():
    p = pair("BF16", "vllm", s32=(130, 100), s8=(1, 100))
    assert cpu_table.verdict(p, "s32", 5000)[1] == "must"
    assert cpu_table.verdict(p, "s8", 4000) == ("", "")


def test_markdown_has_every_figure():
    p = pair(s1=(250, 100), gap_longest=(12, 1600), gap_median=(3, 23))
    p["accuracy"] = {"table": "| the table |", "perplexity": 10.0, "rows": [
        {"name": "inferd", "logprob": {"mean": 0.02, "max": 0.1}, "perplexity": 10.02},
        {"name": "llama-server", "logprob": {"mean": 0.07, "max": 0.2}, "perplexity": 10.1}]}
    text = cpu_table.markdown({
        "date": "2026-01-01", "commit": "abc", "rounds": 1, "quick": True, "versions": {"llama.cpp": "1"}, "pairs": [p],
        "machine": {"cpu": "x", "cpus": 2, "threads": 2, "memory_gb": 8, "system": "s", "load_before": 0.0}})
    for word in ("250.0", "50%", "2.50", "1,600", "| the table |", "not results", "3.5 times as close",
                 "mean difference 0.0200: must", "perplexity within 0.200%: must"):
        assert word in text, word


def test_bench_peers_refuses_what_it_does_not_know():
    for argv in (["--types", "Q9"], ["--only", "s2"], ["--only", "poisson"], ["--build", "/nowhere"]):
        run = subprocess.run([sys.executable, ROOT / "scripts/bench-peers", *argv], capture_output=True, text=True)
        assert run.returncode != 0
        assert argv[1] in run.stderr


def test_a_server_is_paused_with_its_children():
    """The child that computes must stop, too."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    server = cpu_serve.Server("x", ["x"], 0, "m", [], None)
    server.process = process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        while len(cpu_serve.tree(process.pid)) < 2:
            pass
        family = cpu_serve.tree(process.pid)
        server.pause()
        assert [cpu_serve.state(pid) for pid in family] == ["T", "T"]
        server.resume()
        assert all(cpu_serve.state(pid) != "T" for pid in family)
        assert server.pss() > cpu_serve.pss_bytes(process.pid) > 0
        server.end()
        assert all(cpu_serve.state(pid) in "XZ" for pid in family)
    finally:
        server.end()
