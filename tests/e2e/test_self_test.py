"""`inferd devices --self-test` on the emulated module: what it says of a right GPU and of broken ones."""

import json

import pytest

from test_cuda import environment, inferd


def rows(r):
    return [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]


def broken(script, *args, **more):
    return inferd("devices", "--self-test", "--json", *args, env=environment(INFERD_FAKE=script, **more))


def test_a_right_gpu_passes_every_check():
    r = inferd("devices", "--self-test", "--json", env=environment())
    *checks, last = rows(r)
    assert r.returncode == 0, (r.stdout[-500:], r.stderr)
    assert r.stderr == "" and "fake:" not in r.stdout
    assert all(c["ok"] is True and c["device"] == 0 for c in checks)
    assert {"self_test": "mma_bf16", "kernel": "selftest_mma_bf16", "device": 0, "ok": True} in checks
    assert last == {"self_test": "all", "device": 0, "name": "Fake H200", "uuid": last["uuid"], "ok": True,
                    "checks": len(checks), "wrong": 0, "failed": 0, "skipped": 0, "stopped": False}


@pytest.mark.parametrize("kernel", ["selftest_copies", "gemv_q4m_bf16", "attention_decode_bf16_128"])
def test_a_wrong_result_names_its_kernel_and_element(kernel):
    r = broken(f"wrong={kernel}")
    *checks, last = rows(r)
    wrong = [c for c in checks if not c["ok"]]
    assert r.returncode == 1 and wrong, (r.stdout[-500:], r.stderr)
    assert {c["kernel"] for c in wrong} == {kernel}
    assert all(c["element"].endswith("]") and c["got"] != c["expected"] for c in wrong)
    assert last["ok"] is False and last["wrong"] == len(wrong) and last["failed"] == 0


def test_a_lost_gpu_stops_it_with_the_kernels_name():
    r = broken("fail=event_query:40:ELOST", INFERD_FAKE_DEVICES=2)
    *checks, last = rows(r)
    assert r.returncode == 1 and len(checks) < 40
    assert checks[-1]["ok"] is False and checks[-1]["kernel"].startswith("selftest_")
    assert last["stopped"] is True and last["failed"] == 1
    first, second = r.stderr.splitlines()
    assert f"the self-test stopped at {checks[-1]['self_test']} ({checks[-1]['kernel']}): " in first
    assert second == "inferd: the GPUs after cuda:0 were not tested"


def test_a_kernel_that_does_not_end_is_named():
    r = broken("hang=50")
    *checks, last = rows(r)
    assert r.returncode == 1 and last["stopped"] is True
    assert checks[-1]["error"] == "it did not end within 5 s" and checks[-1]["kernel"] != ""
    assert all(c["ok"] for c in checks[:-1])


def test_one_gpu_is_chosen_by_index_or_uuid():
    for device in ("cuda:1", "GPU-8f6a0001"):
        r = inferd("devices", "--self-test", "--device", device, env=environment(INFERD_FAKE_DEVICES=2))
        assert r.returncode == 0, (r.stdout[-500:], r.stderr)
        assert all(line.startswith("cuda:1 ") for line in r.stdout.splitlines())
        assert r.stdout.splitlines()[-1].endswith(" 0 wrong, 0 failed, 0 skipped")


@pytest.mark.parametrize("args, env, status, words", [
    ([], {"INFERD_FAKE_NO_DRIVER": "1"}, 3, "no NVIDIA driver is installed"),
    ([], {"INFERD_FAKE_DEVICES": "0"}, 3, "no GPU: "),
    (["--device", "cuda:3"], {}, 3, "--device matches none of the 1 GPUs"),
    (["--device", "cpu"], {}, 2, "--self-test tests GPUs only"),
    (["--device", "gpu7"], {}, 2, "--device is \"gpu7\""),
])
def test_without_a_gpu_it_says_why(args, env, status, words):
    r = inferd("devices", "--self-test", *args, env=environment(**env))
    assert r.returncode == status and words in r.stderr, (r.stdout, r.stderr)
    assert r.stdout == ""


def test_a_device_without_the_test_is_refused():
    r = inferd("devices", "--device", "cuda:0", env=environment())
    assert r.returncode == 2 and r.stderr == "inferd: --device goes with --self-test\n"


def test_parts_that_fell_back_or_are_switched_off_are_told_behind_the_checks():
    r = broken("fail=vmm_create:1:EUNSUPPORTED:always", INFERD_CUDA_OFF="pdl")
    parts = {row["name"]: row for row in rows(r) if row.get("bench") == "part"}
    assert r.returncode == 0, r.stderr
    assert set(parts) == {"vmm", "pdl"} and all(row["device"] == 0 for row in parts.values())
    assert parts["vmm"]["state"] == "degraded" and "vmm_create" in parts["vmm"]["why"]
    assert parts["pdl"] == {"bench": "part", "device": 0, "name": "pdl", "state": "off",
                            "why": "switched off by INFERD_CUDA_OFF"}


def test_a_gpu_that_cannot_be_opened_for_serving_is_told():
    r = broken("fail=host_alloc:1:ENOMEM:always")
    assert r.returncode == 1 and "cuda:0 cannot be opened for serving: " in r.stderr
