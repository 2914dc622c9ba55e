"""scripts/gpu-check before there is a GPU: its rules with programs that are small scripts, and its three commands on
the emulated device with failures of every kind (INFERD_FAKE, tests/cuda_emul/fake_api.h)."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from types import SimpleNamespace

import pytest

from conftest import BUILD, ROOT, skip

CHECK = ROOT / "scripts" / "gpu-check"
EMULATED = BUILD / "tests" / "cuda_emul" / "inferd_cuda_emul.so"
TESTS = re.search(r"^gpu_tests=\((.*)\)$", (ROOT / "scripts" / "gpu-pack").read_text(), re.M).group(1).split()
OK, FAILED, NOTHING, WEAK = 0, 1, 3, 4


def check(*parts, out, build=BUILD, mode="--rehearse", env=None, args=(), program=CHECK):
    """What was run: exit status, what it printed, each step's last row, and all rows of each part."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("INFERD_FAKE")}
    done = subprocess.run([program, *parts, *([mode] if mode else []), "--build", build, "--out", out, *map(str, args)],
                          capture_output=True, text=True, timeout=300, env={**clean, **(env or {})})
    rows = {f.stem: [json.loads(line) for line in f.read_text().splitlines()] for f in out.glob("*.jsonl")}
    steps = {row["step"]: row for part in rows.values() for row in part if "status" in row}
    return SimpleNamespace(rc=done.returncode, text=done.stdout + done.stderr, rows=rows, steps=steps, out=out)


def statuses(done, *names):
    return [done.steps[name]["status"] for name in names]


# -- its rules, with programs that are scripts --

SCRIPT = """#!/usr/bin/env bash
name=${0##*/}
off() { [[ ,${INFERD_CUDA_OFF:-}, == *,$1,* ]]; }
first() { [ ! -e "$STATE.$1" ] && : >"$STATE.$1"; }
[ "$1" = version ] && echo "inferd 0" && exit 0
. "$PLAN"
[[ $name == test_cuda_* ]] && echo '{"bench":"gpu_calls","n":5}'
exit 0
"""


@pytest.fixture
def programs(tmp_path):
    """A function that runs gpu-check on programs that do what a piece of bash says of `name` and "$*"."""
    build = tmp_path / "build"
    for f in ("inferd", "inferd-bench", "bench/bench_cuda", "bench/bench_engine",
              "bench/bench_forced", *(f"tests/test_cuda_{t}" for t in TESTS)):
        (build / f).parent.mkdir(parents=True, exist_ok=True)
        (build / f).write_text(SCRIPT)
        (build / f).chmod(0o755)
    (build / "tests" / "cuda_emul").mkdir()
    (build / "tests" / "cuda_emul" / "inferd_cuda_emul.so").touch()
    (build / "inferd_cuda.so").touch()

    def go(plan, *parts, env=None, **more):  # go.build: where they are
        (tmp_path / "plan").write_text(plan)
        return check(*(parts or ("smoke",)), build=build, out=tmp_path / "out",
                     env={"PLAN": str(tmp_path / "plan"), "STATE": str(tmp_path / "state"), **(env or {})}, **more)
    go.build = build
    return go


def test_all_is_well(programs):
    done = programs("")
    assert done.rc == NOTHING and set(statuses(done, *done.steps)) == {"ok"}  # of a rehearsal nothing is measured


def test_a_failed_step_names_its_suspect_and_the_rest_runs(programs):
    done = programs("""
[[ $* == *"limits vmm"* ]] && ! off vmm && { echo 'vmm_create: result 4: refused' >&2; exit 1; }""")
    row = done.steps["opens"]
    assert (row["status"], row["off"], row["tried"], done.rc) == ("degraded", "vmm", "no-vmm again", WEAK)
    assert statuses(done, "devices", "kernels", "step", "engine") == ["ok"] * 4
    assert [r["status"] for r in done.rows["smoke"] if r.get("step") == "opens" and "status" in r] == ["failed", "degraded"]


def test_without_a_name_the_switches_are_tried_in_order(programs):
    done = programs('[[ $* == *matmul* ]] && ! off carveout && { echo "something else" >&2; exit 5; }')
    row = done.steps["kernels"]
    assert (row["status"], row["off"]) == ("degraded", "carveout")
    assert row["tried"] == "again no-pdl no-graphs no-lt no-vmm no-carveout"


def test_the_switch_that_helped_one_step_is_the_first_for_the_next(programs):
    done = programs("""
case "$*" in
*"limits vmm"*) off graphs || { echo "the capture was broken" >&2; exit 1; } ;;
*matmul*) off graphs || exit 1 ;;
esac""")
    assert done.steps["opens"]["tried"] == done.steps["kernels"]["tried"] == "no-graphs again"
    assert done.steps["kernels"]["off"] == "graphs"


def test_a_step_that_passes_unchanged_is_flaky(programs):
    done = programs('[[ $* == *matmul* ]] && first m && { echo "capture refused" >&2; exit 1; }')
    assert (done.steps["kernels"]["status"], done.rc) == ("flaky", WEAK)


def test_a_step_that_nothing_helps_failed(programs):
    done = programs('[[ $* == *matmul* ]] && exit 1')
    assert (done.steps["kernels"]["status"], done.rc) == ("failed", FAILED)
    assert done.steps["kernels"]["tried"].split()[-1] == "no-blocking"
    assert statuses(done, "step", "engine") == ["ok"] * 2


def test_what_falls_back_by_itself_is_degraded(programs):
    done = programs("""[[ $* == *matmul* ]] && echo '{"bench":"part","name":"vmm","state":"degraded","why":"refused"}'
[[ $* == *limits* ]] && echo '{"bench":"part","name":"lt","state":"absent"}'""")
    assert (done.steps["kernels"]["status"], done.steps["kernels"]["fell_back"], done.rc) == ("degraded", "vmm", WEAK)
    assert statuses(done, "opens", "step") == ["ok"] * 2


@pytest.mark.parametrize("say", ["echo 'WRONG RESULT in gemv'", """echo '{"self_test":"mma_bf16","ok":false}'"""])
def test_a_wrong_result_stays_a_failure_whatever_hides_it(programs, say):
    done = programs(f"[[ $* == *matmul* ]] && ! off pdl && {{ {say}; exit 1; }}")
    row = done.steps["kernels"]
    assert (row["status"], row["wrong"], row["hidden_by"], done.rc) == ("failed", True, "pdl", FAILED)
    assert "off" not in row and "a wrong result" in row["why"]
    done = programs(f"[[ $* == *matmul* ]] && first x && {{ {say}; exit 0; }}")  # whatever its status was
    assert (done.steps["kernels"]["status"], done.steps["kernels"]["at_times"], done.rc) == ("failed", True, FAILED)


def test_a_comparison_that_fails_is_a_wrong_result(programs):
    done = programs("""
[[ $* == *--reference* ]] && { echo 'WRONG RESULT: dummy:tiny decode'; exit 1; }
[[ $* == *--answers* ]] && { echo '{"bench":"error","text":"no memory"}'; exit 1; }""", "correct",
                    args=["--only", "forced,same-tiny,test-kv", "--tries", 1])
    assert [done.steps[s].get("wrong") for s in ("forced", "same-tiny")] == [True, None]
    assert statuses(done, "forced", "same-tiny", "test-kv") == ["failed", "failed", "ok"] and done.rc == FAILED


def test_a_unit_test_that_expects_something_else_is_a_wrong_result(programs):
    plan = """[ $name = test_cuda_%s ] && ! off lt && { echo '%s'; exit 1; }"""
    only = ["--only", "test-gemv,test-rows"]
    done = programs(plan % ("gemv", "x.c:3: got is 1, expected 2"), "correct", args=only)
    assert (done.steps["test-gemv"]["status"], done.steps["test-gemv"]["hidden_by"]) == ("failed", "lt")
    done = programs(plan % ("gemv", "launch: result 6: refused"), "correct", args=only)
    assert (done.steps["test-gemv"]["status"], done.steps["test-gemv"]["off"]) == ("degraded", "lt")
    assert statuses(done, "test-rows") == ["ok"]


def test_a_test_without_a_call_to_the_device_did_not_run(programs):
    for say in ("", """echo '{"bench":"gpu_calls","n":0}'; """):
        done = programs(f"[ $name = test_cuda_lt ] && {{ {say}exit 0; }}", "correct", args=["--only", "test-lt,test-kv"])
        assert statuses(done, "test-lt", "test-kv") == ["not run", "ok"]
        assert done.steps["test-lt"]["why"] == "it passed without a call to the device"


def test_a_hang_costs_its_limit_and_no_more(programs):
    begin = time.monotonic()
    done = programs('[[ $* == *"limits vmm"* ]] && sleep 100', args=["--limit", 12])
    assert time.monotonic() - begin < 25
    assert done.steps["opens"]["status"] == "timeout" and done.rc == FAILED
    assert done.steps["engine"]["status"] == "not run"  # the time was over


def test_whole_logs_come_back_in_few_small_files(programs):
    done = programs("""
[[ $* == *matmul* ]] && { for i in $(seq 3000); do echo "line $i"; done; exit 77; }
[[ $* == *"limits vmm"* ]] && { head -c 30000000 /dev/urandom; echo; echo the end >&2; }""", "smoke+correct", args=["--only", "kernels,opens,test-rows"])
    files = sorted(f.name for f in done.out.iterdir())
    assert files == ["correct-logs.tar.gz", "correct.jsonl", "smoke-logs.tar.gz", "smoke.jsonl"]
    assert all(f.stat().st_size <= 16 << 20 for f in done.out.iterdir())
    with tarfile.open(done.out / "smoke-logs.tar.gz") as tar:
        names = tar.getnames()
        assert {"smoke/kernels.out", "smoke/opens.err", "smoke/report.md"} <= set(names)
        assert tar.extractfile("smoke/kernels.out").read().decode().splitlines() == [f"line {i}" for i in range(1, 3001)]
        assert tar.extractfile("smoke/opens.err").read() == b"the end\n"


def test_the_machine_keeps_its_libraries_and_its_card(programs, tmp_path):
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidia0").touch()
    done = programs("""
echo "$name: $LD_LIBRARY_PATH" >>"$STATE.paths"
[[ $* == *matmul* ]] && ls -l /proc/$$/fd/ | grep -o 'dev/nvidia0$' >&2 && exit 77""", mode=None,
                    env={"LD_LIBRARY_PATH": "/where/the/driver/is", "GPU_CHECK_DEV": str(dev)})
    paths = (tmp_path / "state.paths").read_text().splitlines()
    assert len(paths) >= 6 and all(p.endswith("/where/the/driver/is") and ": :" not in p for p in paths)
    assert done.rows["smoke"][0]["held"] == "nvidia0"
    assert (done.steps["kernels"]["status"], done.steps["kernels"]["why"]) == ("not run", "dev/nvidia0")


def test_limits_fit_the_parts(programs):
    def limits(*parts):
        text = subprocess.run([CHECK, *parts, "--list"], capture_output=True, text=True, check=True).stdout
        return [int(line.split("\t")[1]) for line in text.splitlines()]
    assert sum(limits("smoke")) <= 180 and sum(limits("correct")) <= 530
    assert len(limits("smoke correct")) == len(limits("smoke+correct")) == len(limits("smoke", "correct"))
    names = subprocess.run([CHECK, "correct", "--list"], capture_output=True, text=True).stdout.split()
    assert names[0] == "forced" and "same-tiny" in names and "same-real" in names
    assert names.index("sanitizer-memcheck") < names.index("test-rows") and names[-2] != "sanitizer-synccheck"


def test_a_pack_without_what_a_step_needs_fails(programs, tmp_path):
    def pack():
        done = subprocess.run([CHECK, "--pack", tmp_path / "bundle", "--build", programs.build, "--references", tmp_path],
                              capture_output=True, text=True, env={**os.environ, "PLAN": "/dev/null", "STATE": "x"})
        return done.returncode, done.stderr
    assert pack() == (1, "gpu-pack: inferd has no self-test\n")
    (programs.build / "inferd").write_text("#!/bin/sh\necho '  --self-test'\n")
    assert pack() == (1, f"gpu-pack: no reference in {tmp_path}\n")
    (programs.build / "bench" / "bench_forced").unlink()
    assert pack() == (1, f"gpu-pack: {programs.build}/bench/bench_forced is not built\n")


def test_the_pack_of_this_build_is_complete(tmp_path):
    """Its programs need no newer C library than allowed: the emulated module once did.  Each starts in an empty root."""
    if not (BUILD / "inferd_cuda.so").is_file() or not EMULATED.is_file():
        skip("the CUDA modules were not built")
    (tmp_path / "a.forced").touch()
    bundle = tmp_path / "bundle"
    done = subprocess.run([CHECK, "--pack", bundle, "--build", BUILD, "--references", tmp_path], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = dict(line.split(" ", 1) for line in (bundle / "manifest").read_text().splitlines())
    assert manifest["module"] == "yes" and tuple(map(int, manifest["glibc"].split("."))) <= (2, 35)
    if os.geteuid() != 0:
        skip("only root may change its root")
    done = subprocess.run([CHECK, "--chroot", bundle], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "every program starts" in done.stdout, done.stdout + done.stderr


def test_a_model_beside_the_script_is_run_on_both(tiny_model, tmp_path):
    if not EMULATED.is_file():
        skip("the emulated CUDA module was not built")
    for name in ("gpu-check", "gpu-step", "gpu-serve", "gpu-table"):
        shutil.copy(CHECK.parent / name, tmp_path)
    shutil.copy(tiny_model, tmp_path / "tiny.gguf")
    steps = ("real-cpu", "real-gpu", "real-streams")  # same-real asks for a model that is surer of its answers

    def go(name):
        return check("correct", out=tmp_path / name, program=tmp_path / "gpu-check", args=["--only", ",".join(steps)])
    done = go("small")
    assert done.rc == NOTHING and set(statuses(done, *steps)) == {"ok"}, done.text
    with (tmp_path / "tiny.gguf").open("ab") as f:
        f.truncate(5 << 20)
    done = go("large")
    assert set(statuses(done, *steps)) == {"not run"} and "too large for the emulated" in done.text


# -- the table --

def test_cards_of_one_kind_make_one_table(tmp_path):
    def table(*heads):
        files = []
        for i, more in enumerate(heads):
            head = {"gpu_check": 1, "part": "bench", "measured": True, "commit": "c" * 40, "gpu": "NVIDIA H200",
                    "uuid": f"GPU-{i}", "driver": "580.1", "date": "2026-11-24T00:00:00Z", **more}
            rows = [{"bench": "device", "uuid": head["uuid"]}, {"bench": "memory", "us": 1},
                    {"step": "s", "off": "lt" if i else None, "bench": "serve", "way": "http", "model": "m", "streams": 8,
                     "prompt": 9, "output": 3, "tokens_s": 100 + i}]
            files.append(tmp_path / f"{i}.jsonl")
            files[-1].write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)))
        return subprocess.run([ROOT / "scripts" / "gpu-table", *files], capture_output=True, text=True)
    done = table({}, {})
    assert done.returncode == 0 and "NVIDIA H200 (2 cards), driver 580.1" in done.stdout
    assert "| m | 8 |" in done.stdout and "| m, without lt | 8 |" in done.stdout
    for other in ({"gpu": "NVIDIA H100"}, {"driver": "581"}, {"commit": "d" * 40}):
        assert table({}, other).returncode == 1


# -- peers --

def test_a_peer_that_is_missing_fails_or_hangs_stops_no_other(tmp_path):
    if not EMULATED.is_file():
        skip("the emulated CUDA module was not built")
    peers = tmp_path / "peers"
    (peers / "llama.cpp").mkdir(parents=True)
    (peers / "torch_decode.py").write_text("""
import sys
if "8" in sys.argv: print("torch is not there: No module named 'torch'", file=sys.stderr); sys.exit(77)
if "1" in sys.argv: sys.exit("CUDA error: out of memory")
import time; time.sleep(100)
""")
    (peers / "transformers_cb.py").write_text("""
print('{"bench":"peer","peer":"transformers_cb","tokens_s":1}')
raise SystemExit("the second batch failed")
""")
    (peers / "llama_cpp.sh").write_text("""[ -d "$1" ] && echo '{"bench":"peer","peer":"llama_cpp","tokens_s":2}'""")
    done = check("peers", out=tmp_path / "out", args=["--peers", peers, "--limit", "12"])
    assert statuses(done, "torch-8b", "transformers-8b", "llama-cpp", "torch-1b", "torch-8b-1", "torch-8b-32") == [
        "not run", "failed", "ok", "not run", "failed", "timeout"]
    assert done.steps["torch-8b"]["why"] == "torch is not there: No module named 'torch'"
    assert "out of memory" in done.steps["torch-8b-1"]["log"] and done.rc == FAILED
    assert [r["peer"] for r in done.rows["peers"] if r.get("bench") == "peer"] == ["transformers_cb", "llama_cpp"]


# -- the emulated device --

def rehearse(tmp_path, part, fake="", only="", memory=256, args=()):
    if not EMULATED.is_file():
        skip("the emulated CUDA module was not built")
    return check(part, out=tmp_path / "out", env={"INFERD_FAKE": fake, "INFERD_FAKE_MEMORY": str(memory)},
                 args=[*(["--only", only] if only else []), *args])


def test_smoke_on_a_good_device(tmp_path):
    done = rehearse(tmp_path, "smoke")
    assert done.rc == NOTHING and set(statuses(done, *done.steps)) == {"ok"}, done.text
    assert list(done.steps)[0] == "self-test"


def test_a_tiny_step_leaves_most_of_a_large_card_alone(tmp_path):
    done = rehearse(tmp_path, "smoke", "", "step", memory=3072)
    assert [r["pages_bytes"] for r in done.rows["smoke"] if r.get("bench") == "model"] <= [2 << 30], done.text


def test_a_wrong_kernel_is_found_and_named_first(tmp_path):
    done = rehearse(tmp_path, "smoke", "wrong=gemv_bf16_f16", "self-test,opens,kernels", args=["--tries", 2])
    row = done.steps["self-test"]
    assert (row["status"], row["wrong"], done.rc) == ("failed", True, FAILED)
    assert row["why"].startswith("a wrong result in gemv_bf16_f16; tried: again no-pdl")
    assert statuses(done, "opens", "kernels") == ["ok", "ok"]  # they measure, and compare nothing


def test_without_vmm_the_rest_runs(tmp_path):
    done = rehearse(tmp_path, "smoke", "fail=vmm_create:1:EUNSUPPORTED:always", "self-test,opens,step")
    assert statuses(done, "self-test", "opens", "step") == ["degraded"] * 3 and done.rc == WEAK
    assert done.steps["opens"]["off"] == done.steps["step"]["fell_back"] == done.steps["self-test"]["fell_back"] == "vmm"


def test_refused_captures(tmp_path):
    done = rehearse(tmp_path, "smoke", "fail=capture_begin:1:EUNSUPPORTED:always", "opens,kernels,step")
    assert statuses(done, "opens", "kernels", "step") == ["degraded"] * 3 and done.rc == WEAK
    assert [done.steps[s].get("off") for s in ("opens", "kernels")] == ["graphs"] * 2
    assert done.steps["step"]["fell_back"] == "graphs"


def test_refused_products_and_no_library_for_them(tmp_path):
    done = rehearse(tmp_path, "smoke", "fail=lt_matmul:1:EFAILED:always", "opens,kernels,step")
    assert (done.steps["opens"]["status"], done.steps["opens"]["off"], done.rc) == ("degraded", "lt", WEAK)
    assert statuses(done, "kernels", "step") == ["degraded"] * 2 and done.steps["step"]["fell_back"] == "lt"
    done = rehearse(tmp_path, "smoke", "no=lt", "opens,kernels,step")
    assert done.rc == NOTHING and statuses(done, "opens", "kernels", "step") == ["ok"] * 3
    assert [r["state"] for r in done.rows["smoke"] if r.get("bench") == "part" and r["name"] == "lt"] == ["absent"]
    assert any("libcublasLt" in r.get("left_out", "") for r in done.rows["smoke"] if r.get("bench") == "product")


def test_out_of_memory_is_no_switch_s_fault(tmp_path):
    done = rehearse(tmp_path, "bench", "fail=alloc:8:ENOMEM:always", "attention,vmm,draw", args=["--tries", 4])
    assert statuses(done, "attention", "vmm", "draw") == ["failed", "ok", "failed"] and done.rc == FAILED
    assert done.steps["draw"]["tried"] == done.steps["attention"]["tried"] == "again no-pdl no-graphs no-lt"
    assert "alloc failed" in next(r["log"] for r in done.rows["bench"] if r.get("step") == "attention" and "log" in r)


def test_a_device_that_hangs_stops_its_step_only(tmp_path):
    done = rehearse(tmp_path, "bench", "hang=20", "attention,vmm", args=["--step-limit", 5, "--limit", 17])
    assert statuses(done, "attention", "vmm") == ["timeout", "ok"] and done.rc == FAILED


def test_unit_tests_reach_the_device_and_find_a_wrong_product(tmp_path):
    done = rehearse(tmp_path, "correct", "", "test-lt,test-kv", memory=512)
    assert statuses(done, "test-lt", "test-kv") == ["ok", "ok"] and done.rc == NOTHING, done.text
    done = rehearse(tmp_path, "correct", "wrong=lt_matmul", "test-lt,test-kv", memory=512, args=["--tries", 1])
    assert (done.steps["test-lt"]["status"], done.steps["test-lt"]["wrong"]) == ("failed", True)
    assert statuses(done, "test-kv") == ["ok"] and done.rc == FAILED


def test_serving_in_a_full_pool(tmp_path):
    done = rehearse(tmp_path, "correct", "", "serve-tiny,serve-full")
    assert statuses(done, "serve-tiny", "serve-full") == ["ok", "ok"], done.text
    rows = [r for r in done.rows["correct"] if r.get("bench") == "serve"]
    assert [(r["streams"], r["answers"], r["failed"]) for r in rows] == [(2, 2, 0), (160, 160, 0)]
