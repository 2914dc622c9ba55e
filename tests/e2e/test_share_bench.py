"""`inferd-bench share` on small daemons: every row is measured, what it says follows from its figures, and
a row that cannot be measured says why.  No figure is judged here: the machine may be busy."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from conftest import BUILD, ROOT, skip

BENCH = pathlib.Path(os.environ.get("INFERD_BUILD", ROOT / "build")) / "inferd-bench"
ADMIN, GOLD, FLOOD, DESK = "admin-key-of-tests", "gold-key-of-tests", "flood-key-of-tests", "desk-key-of-tests"
MODELS = ["a", "b", "c"]

sys.path.insert(0, str(ROOT / "bench" / "peers"))
import share_table  # noqa: E402


def load_bench_share():
    loader = importlib.machinery.SourceFileLoader("bench_share", str(ROOT / "scripts/bench-share"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_share", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def built():
    if not BENCH.exists():
        skip("inferd-bench is not built")


def config_of(device, host, tenants=None, shape="tiny?dtype=f32&layers=8", models=MODELS, high=()):
    """Models of about 10 pages of 2 MiB each."""
    return {"devices": [{"kind": "cpu", "memory": device, "threads": 2}], "host_arena": host,
            "admin": {"keys": [ADMIN]},
            "models": [{"name": name, "path": f"dummy:{shape}&context=1024&seed={i + 1}",
                        **({"class": "high"} if name in high else {})} for i, name in enumerate(models)],
            **({"tenants": tenants} if tenants else {})}


def share(daemon, rows, *options, models=MODELS, admin=ADMIN):
    """(status, rows by name, standard error)."""
    done = subprocess.run(
        [BENCH, "share", "--url", daemon.url, "--models", ",".join(models), "--rows", rows, "--quick", "--json", "-",
         "--prompt-token-ids", "10-250", *(["--admin-key", admin] if admin else []), *map(str, options)],
        capture_output=True, text=True, timeout=240)
    told = {row["id"]: row for row in json.loads(done.stdout)["rows"]} if done.stdout else {}
    return done.returncode, told, done.stderr


@pytest.fixture(scope="module")
def one(launch):
    """Room for one model on the device, for all in host memory."""
    return launch(config_of("32MiB", "128MiB"), args=["--allow-dummy"])


@pytest.fixture(scope="module")
def all_of_them(launch):
    return launch(config_of("128MiB", "0"), args=["--allow-dummy"])


def test_a_switch_is_first_token_less_hot_ttft(one):
    rc, rows, table = share(one, "switch,warm")
    assert set(rows) == {"switch", "warm"}
    warm = rows["warm"]
    assert warm["verdict"] in ("met", "missed"), warm
    cost = warm["values"]["cost_ms"]
    assert cost["n"] == 20 and cost["min"] <= cost["p50"] <= cost["p90"] <= cost["max"]
    assert (warm["verdict"] == "met") == (cost["p50"] <= 10)
    assert warm["values"]["parts_ms"]["stage"]["max"] == 0  # nothing was read
    assert rows["switch"]["verdict"] == "" and rc == (0 if warm["verdict"] == "met" else 1)
    assert "| idle, switch to a warm model" in table and "<= 10 ms" in table


def test_rows_refuse_daemons_on_which_they_would_mean_nothing(one, all_of_them):
    rc, rows, _ = share(all_of_them, "warm")
    assert rc == 1 and rows["warm"]["verdict"] == "not measured"
    assert "room for more than one model" in rows["warm"]["measured"]
    rc, rows, _ = share(one, "cold,guarantee,weights,beside,roundrobin,burst")
    assert rc == 1 and "host_arena" in rows["cold"]["measured"]
    assert "tenants" in rows["weights"]["measured"] and "tenants" in rows["beside"]["measured"]
    assert "needs 4" in rows["roundrobin"]["measured"]
    assert "flood-key" in rows["guarantee"]["measured"] and "kv-bytes" in rows["burst"]["measured"]
    rc, rows, _ = share(one, "warm", admin=None)
    assert rc == 1 and rows["warm"]["verdict"] == "not measured" and "status 4" in rows["warm"]["measured"]


def test_wrong_usage_is_told(one):
    for options, word in ((("--rows", "warm,hot"), '"hot"'), (("--models", "a,b"), "at least 3"),
                          (("--window-s", "x"), "window-s"), (("--frob", "1"), "--frob")):
        done = subprocess.run([BENCH, "share", "--url", one.url, "--models", "a,b,c", *options], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 2 and word in done.stderr, done.stderr


def test_cold_switches_are_read_each_time(launch):
    d = launch(config_of("32MiB", "0"), args=["--allow-dummy"])
    _, rows, _ = share(d, "cold")
    assert rows["cold"]["verdict"] in ("met", "missed"), rows
    parts = rows["cold"]["values"]["parts_ms"]
    assert parts["stage"]["n"] == 12 and parts["stage"]["min"] > 0
    assert "prepare" not in rows  # made-up models have no file
    assert d.stop() == 0


def test_gaps_and_urgent_arrivals_are_seen(launch):
    # Steps long enough that each token is read alone.
    d = launch(config_of("256MiB", "0", shape="tiny?dtype=q8_0&layers=64"), args=["--allow-dummy"])
    _, rows, _ = share(d, "gap,urgent")
    gap, urgent = rows["gap"], rows["urgent"]
    assert gap["verdict"] in ("met", "missed") and urgent["verdict"] in ("met", "missed"), rows
    longest, control = gap["values"]["longest_ms"], gap["values"]["control_ms"]
    assert longest["n"] == control["n"] == gap["values"]["load_ms"]["n"] == 6
    assert (gap["verdict"] == "met") == (longest["p50"] <= 1.15 * control["p50"])
    assert urgent["values"]["queued_ms"]["n"] == 60 and urgent["values"]["batch_gap_ms"]["n"] > 60
    for iterations in (urgent["values"]["iterations"], urgent["values"]["iterations_seen"]):
        assert iterations["n"] == 60 and 0 <= iterations["min"] <= iterations["p50"] < 10
    assert d.stop() == 0


def test_shares_are_compared_with_the_account(all_of_them):
    _, rows, _ = share(all_of_them, "shares,kv", "--window-s", 2)
    windows = rows["shares"]["values"]["windows"]
    assert len(windows) == 2 and [m["share"] for m in windows[0]["models"]] == [5, 20, 70]
    for w in windows:
        assert w["wall_s"] > 1.5
        assert sum(m["got"] for m in w["models"]) <= 101
        assert sum(m["got"] for m in w["models"]) == pytest.approx(w["charged_percent"], abs=3)
    worst = [max(abs(m["got"] - m["share"]) for m in w["models"] if m["share"] > 0) for w in windows]
    assert [m["share"] for m in windows[1]["models"]] == [10, 85, 0]
    assert rows["shares"]["values"]["error_points"]["max"] == pytest.approx(worst[0], abs=1e-6)
    assert rows["shares"]["values"]["error_points_two"]["max"] == pytest.approx(worst[1], abs=1e-6)
    assert (rows["shares"]["verdict"] == "met") == (worst[0] <= 1 and worst[1] <= 0.5)
    for m in all_of_them.http.get("/admin/state", headers={"Authorization": f"Bearer {ADMIN}"}).json()["models"]:
        assert m["share"]["policy"] == "besteffort"  # left as it was
    assert rows["kv"]["values"]["calls"] == 0 and rows["kv"]["verdict"] == "met"


def test_pages_after_a_burst_are_counted_against_tokens(all_of_them):
    # Keys and values of one token of the tiny shape: 8 layers, 2 heads of 64 values, both, two bytes each.
    _, rows, _ = share(all_of_them, "burst", "--kv-bytes", 8 * 2 * 64 * 2 * 2)
    values = rows["burst"]["values"]
    assert values["held_over_used"]["n"] == 10
    assert values["used_pages"]["min"] > 0 and values["held_pages"]["min"] > 0


def test_a_guaranteed_tenant_is_measured_alone_and_flooded(launch):
    d = launch(config_of("128MiB", "0", [
        {"name": "gold", "keys": [GOLD], "share": {"policy": "fixed", "percent": 50}},
        {"name": "flood", "keys": [FLOOD], "share": {"policy": "burst", "percent": 30}}]), args=["--allow-dummy"])
    _, rows, _ = share(d, "guarantee", "--key", GOLD, "--flood-key", FLOOD, "--window-s", 3)
    row = rows["guarantee"]
    assert row["verdict"] in ("met", "missed"), row
    values = row["values"]
    ratio = values["flooded_tpot_ms"]["p99"] / values["alone_tpot_ms"]["p99"]
    assert (row["verdict"] == "met") == (ratio <= 1.1)
    assert d.stop() == 0


def test_weights_and_urgent_requests_beside_shares_are_measured(launch):
    d = launch(config_of("256MiB", "0", [{"name": "gold", "keys": [GOLD]}, {"name": "flood", "keys": [FLOOD]},
                                         {"name": "desk", "keys": [DESK], "max_class": "high"}],
                         shape="tiny?dtype=f32&layers=20"), args=["--allow-dummy"])
    keys = ("--key", GOLD, "--flood-key", FLOOD, "--urgent-key", DESK)
    _, rows, _ = share(d, "weights,beside", *keys, "--tenants", "gold,flood", "--window-s", 3)
    weights, rate, beside = (rows[name]["values"] for name in ("weights", "weights-rate", "beside"))
    assert weights["error_points"]["n"] == 1 and 0 < weights["percent"]["p50"] < weights["percent_equal"]["p50"] < 100
    assert weights["error_points"]["max"] == pytest.approx(abs(weights["percent"]["p50"] - 25), abs=1e-6)
    assert (rows["weights"]["verdict"] == "met") == (weights["error_points"]["max"] <= 2)
    ratio = rate["tokens_per_s"]["p50"] / rate["tokens_per_s_equal"]["p50"]
    assert rate["ratio"]["p50"] == pytest.approx(ratio) and (rows["weights-rate"]["verdict"] == "met") == (ratio >= 0.85)
    assert beside["ttft_ms"]["n"] == beside["alone_ttft_ms"]["n"] == 8 and beside["device_ms"] > 0
    assert beside["pause_ms"] >= min(3000, beside["device_ms"] / 0.05)
    assert (rows["beside"]["verdict"] == "met") == (beside["ttft_ms"]["max"] <= 5 * beside["alone_ttft_ms"]["p50"])
    for t in d.http.get("/admin/state", headers={"Authorization": f"Bearer {ADMIN}"}).json()["tenants"]:
        assert t["weight"] == 1 and t["share"]["policy"] == "besteffort"  # left as they were
    _, rows, _ = share(d, "weights", *keys, "--tenants", "gold")
    assert rows["weights"]["verdict"] == "not measured" and "expected two names" in rows["weights"]["measured"]
    assert d.stop() == 0


def test_urgent_models_beside_batch_work_are_timed_and_their_loads_counted(launch):
    # The weights of the three take about 30 pages, keys and values of 14 streams of 732 tokens 20.
    d = launch(config_of("90MiB", "0"), args=["--allow-dummy"])
    _, rows, _ = share(d, "inversion")
    urgent, loads = rows["inversion"]["values"], rows["inversion-loads"]["values"]
    assert urgent["ttft_ms"]["n"] == loads["requests"] == 14 and urgent["idle_cold_ttft_ms"]["n"] == 6
    limit = 2 * urgent["idle_cold_ttft_ms"]["p50"] + urgent["batch_gap_ms"]["p50"]
    assert urgent["limit_ms"] == pytest.approx(limit) and urgent["batch_tokens_per_s"] > 0
    assert (rows["inversion"]["verdict"] == "met") == (urgent["ttft_ms"]["p90"] <= limit)
    assert loads["loads"] >= 2  # both were dropped before
    assert (rows["inversion-loads"]["verdict"] == "met") == (loads["loads"] <= 2)
    assert d.stop() == 0


def test_loads_after_a_request_to_a_fourth_model_are_counted(launch):
    models = [*MODELS, "d"]
    d = launch(config_of("72MiB", "0", models=models, high=("d",)), args=["--allow-dummy"])
    _, rows, _ = share(d, "roundrobin", models=models)
    row = rows["roundrobin"]
    slices = row["values"]["slices"]
    assert len(slices) == 6 and all(s["requests"] > 0 and s["tokens_per_s"] > 0 for s in slices), row
    assert sum(s["loads"] for s in slices) == row["values"]["loads"] >= 1  # one had to leave, and came back
    assert (row["verdict"] == "met") == (slices[-1]["loads"] == 0)
    _, rows, _ = share(d, "roundrobin", models=["d", *MODELS])
    assert rows["roundrobin"]["verdict"] == "not measured" and "needs high" in rows["roundrobin"]["measured"]
    assert d.stop() == 0


def test_rows_that_need_a_size_of_memory_get_it():
    script = load_bench_share()
    session = types.SimpleNamespace(kv_bytes=23040)
    assert script.memory_for_one([50, 40, 60, 70]) == f"{2 * 76}MiB"
    assert script.memory_for_three([50, 40, 60, 70]) == f"{2 * 156}MiB"
    assert script.memory_for_batch(session, [50, 40, 60, 70]) == f"{2 * (150 + 84)}MiB"  # 0.75 x 112.6 pages
    with pytest.raises(RuntimeError, match="fit where one"):
        script.memory_for_one([3, 4, 5, 7])
    with pytest.raises(RuntimeError, match="fit where three"):
        script.memory_for_three([50, 40, 60, 6])


def test_the_table_is_made_of_rows_and_pairs():
    pairs = {"s1": [(100, 101), (99, 100), (100, 100)], "ttft": [(11, 10), (11, 10), (11, 10)]}
    s1, ttft = share_table.alone_rows(pairs)
    assert s1["verdict"] == "met" and "1.0% slower" in s1["measured"]
    assert ttft["verdict"] == "missed" and "10.0% slower" in ttft["measured"]
    each = {"p50": 30, "p99": 60}
    pool = share_table.pool_row([{"what": "x", "take_ns": each, "give_ns": each, "finish_ns": {"p50": 80, "p99": 90}}])
    assert pool["verdict"] == "missed" and pool["measured"] == "110 ns"
    peer = share_table.row("switch", "", "", "", "", "", {"cost_ms": {"p50": 450, "min": 400, "max": 500}})
    warm = share_table.row("warm", "warm switch", "<= 10 ms", "1 ms", "", "met")
    lines = share_table.table([s1, warm], peer).splitlines()
    assert "450 ms (400 to 500)" in lines[2] and lines[3].startswith("| one model alone")


def test_a_peer_that_failed_is_a_cell_too():
    failed = {"id": "switch", "figure": "", "goal": "", "measured": "it ended", "spread": "", "verdict": "not measured"}
    warm = share_table.row("warm", "warm switch", "<= 10 ms", "1 ms", "", "met")
    assert "| it ended |" in share_table.table([warm], failed)


def test_a_row_that_fails_has_values_too(one):
    _, rows, _ = share(one, "burst")
    assert rows["burst"]["verdict"] == "not measured" and rows["burst"]["values"] == {}


DECISION = "decide 1 2 3\nplan 1 2 3\nboth 90.0 150.0 200.0\nboth, by the clock 95.0 160.0 300.0\n"


def test_a_program_without_figures_is_a_row_that_says_why(tmp_path):
    """One that prints something else, fails, hangs or is not there; then the next row is measured."""
    script = load_bench_share()
    (tmp_path / "bench").mkdir()
    told = []
    session = types.SimpleNamespace(build=tmp_path, note=told.append, left=lambda: 2, o=types.SimpleNamespace(quick=True))

    def row_of(text):
        program = tmp_path / "bench" / "bench_decision"
        program.write_text("#!/bin/sh\n" + text)
        program.chmod(0o755)
        (row,) = script.measure_decision(session)
        return row

    (absent,) = script.measure_decision(session)
    assert absent["verdict"] == "not measured" and "not built" in absent["measured"]
    for text, why in (("echo nothing", "`both`"), ("echo 'both 1 2 3'", "`both, by the clock`"), ("exit 3", "status 3"),
                      ("exec sleep 60", "not done after 2 s"), ("echo 'both 1..2 3'", "ValueError")):
        row = row_of(text)
        assert row["verdict"] == "not measured" and why in row["measured"], (text, row)
    assert row_of(f"printf '{DECISION}'")["measured"] == "150 us"
    session.left = lambda: 0
    assert script.measure_decision(session)[0]["measured"] == script.NO_TIME
    pool = tmp_path / "bench" / "bench_pool"
    pool.write_text("#!/bin/sh\necho '{}'\n")
    pool.chmod(0o755)
    session.left = lambda: 2
    assert "KeyError" in script.measure_pool(session)[0]["measured"]


def test_a_row_that_is_cut_leaves_no_shares(all_of_them):
    """`shares` is ended while its shares hold; what comes after it on that daemon has none."""
    script = load_bench_share()
    script.ADMIN_KEY = ADMIN
    server = types.SimpleNamespace(url=all_of_them.url)
    script.admin(server, "/admin/models/b", "PATCH", {"share": {"policy": "fixed", "percent": 70}})
    policies = lambda: [m["share"]["policy"] for m in script.admin(server, "/admin/state")["models"]]
    assert policies() == ["besteffort", "fixed", "besteffort"]
    script.drop_shares(server, MODELS)
    assert policies() == ["besteffort"] * 3


def test_the_script_tells_what_it_needs():
    done = subprocess.run([sys.executable, ROOT / "scripts/bench-share", "--rows", "frob"], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and "frob" in done.stderr
