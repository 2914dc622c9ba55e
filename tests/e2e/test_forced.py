"""bench_forced on the emulated device: references that the CPU made pass; damaged ones, those of other
models and a wrong result do not.  The programs are looked for in INFERD_BUILD, or in build/ of the source
tree."""

import json
import os
import pathlib
import struct
import subprocess

import pytest

from conftest import skip

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("INFERD_BUILD", ROOT / "build"))
FORCED = BUILD / "bench" / "bench_forced"
MODULE = BUILD / "tests" / "cuda_emul" / "inferd_cuda_emul.so"
TINY_MODEL = BUILD / "tests" / "tiny_model"

BF16, Q4 = "dummy:tiny?layers=1", "dummy:tiny?layers=1&dtype=q4_k_m"
HEADER = struct.Struct("<8sIIQQ")  # magic, version, unused, bytes behind it, their checksum
NAMES = 2 * 128  # model, made_by; the model's identity follows


@pytest.fixture(autouse=True)
def built():
    if not FORCED.exists():
        skip("bench_forced is not built")


def forced(*options, rc=0, **environment):
    """Lines of JSON, and all other text."""
    done = subprocess.run([FORCED, "--tiny", *map(str, options)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})
    lines = done.stdout.splitlines()
    assert done.returncode == rc, done.stdout[-2000:] + done.stderr
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    parts = [row for row in rows if row["bench"] == "part"]  # that are off or absent
    assert all(row["state"] != "degraded" for row in parts)
    rows = [row for row in rows if row not in parts]
    return rows, "\n".join(line for line in lines if not line.startswith("{")) + done.stderr


def make(folder, *models, rows=65, prompt=40):
    folder.mkdir()
    forced("--make", folder, "--models", ",".join(map(str, models)), "--rows", rows, "--prompt", prompt)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("references") / "made"
    make(folder, BF16, Q4)
    return folder


def fnv1a(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def changed(reference, folder, change):
    """A copy that `change` (of what follows the header) was applied to, with a checksum that is right."""
    whole = reference.read_bytes()
    magic, version, unused, n, _ = HEADER.unpack_from(whole)
    body = bytearray(whole[HEADER.size:])
    change(body)
    folder.mkdir()
    header = HEADER.pack(magic, version, unused, n, fnv1a(body))
    (folder / reference.name).write_bytes(header + body)
    return folder


def test_the_emulated_device_computes_what_the_references_say(references):
    rows, text = forced("--reference", references, "--emulated")
    assert "WRONG" not in text
    cases = {(row["model"], row["case"], row["rows"], row["graphs"]) for row in rows}
    for model in BF16, Q4:
        for graphs in True, False:
            assert {(model, "decode", n, graphs) for n in (1, 4, 5, 65)} <= cases
            assert {(model, "prompt", 40, graphs), (model, "chunks", 40, graphs), (model, "mixed", 8, graphs)} <= cases
    for row in rows:
        assert row["ok"] and "degraded" not in row
        assert row["kl_mean"] <= row["kl_max"] <= row["limit_kl"]
        assert 1e-9 < row["kl_max"] and row["diff_max"] <= row["limit_diff"]  # 16 bits are not exact


def test_the_cpu_itself_is_as_exact_as_the_file(references):
    rows, _ = forced("--reference", references, "--device", "cpu", "--exact")
    assert all(row["diff_max"] < 1e-6 and row["kl_max"] < 1e-10 for row in rows)


def test_a_row_that_differs_is_a_wrong_result(references, tmp_path):
    """One log-probability of the last row, off by 0.5."""
    def change(body):
        at = len(body) - 4
        body[at:] = struct.pack("<f", struct.unpack_from("<f", body, at)[0] + 0.5)
    folder = changed(sorted(references.iterdir())[0], tmp_path / "other", change)
    rows, text = forced("--reference", folder, "--device", "cpu", rc=1)
    assert {row["case"]: row["ok"] for row in rows} == {"prompt": False, "chunks": False, "decode": True, "mixed": True}
    assert f"WRONG RESULT {BF16}: prompt, 40 rows, graphs off" in text


def test_damaged_references_are_told_from_wrong_results(references, tmp_path):
    good = sorted(references.iterdir())[0]
    whole = good.read_bytes()

    def says(data, sentence):
        path = tmp_path / good.name
        path.write_bytes(data)
        rows, text = forced("--reference", tmp_path, "--device", "cpu", rc=1)
        assert [row["bench"] for row in rows] == ["error"] and "WRONG" not in text
        assert sentence in text and str(path) in text

    says(whole[:-1], f"{len(whole) - 1} bytes, expected {len(whole)}: it was cut off")
    says(whole[:20], "no reference of bench_forced")
    says(b"", "no reference of bench_forced")
    says(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:], "its checksum is wrong: it is damaged")
    says(whole[:8] + struct.pack("<I", 7) + whole[12:], "version 7, expected 1: make it again")


def test_a_folder_without_references_is_an_error(tmp_path):
    rows, _ = forced("--reference", tmp_path, rc=1)
    assert "has no file *.forced" in rows[0]["text"]


def test_other_weights_are_refused(references, tmp_path):
    def change(body):
        body[NAMES] ^= 1
    folder = changed(sorted(references.iterdir())[0], tmp_path / "other", change)
    rows, _ = forced("--reference", folder, "--device", "cpu", rc=1)
    assert rows[-1]["text"] == f"the reference of {BF16} is of other made-up weights than this program's"


def test_a_file_is_known_by_its_bytes(tmp_path):
    a, b, moved = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "moved.gguf"
    for path, seed in (a, "1"), (b, "2"):
        subprocess.run([TINY_MODEL, path, seed, "--type", "q4_1"], check=True)
    folder = tmp_path / "made"
    make(folder, a)
    rows, _ = forced("--reference", folder, "--device", "cpu")
    assert rows == [{"bench": "forced", "model": "a.gguf", "not_run": "no --model"}]
    a.rename(moved)
    rows, _ = forced("--reference", folder, "--device", "cpu", "--model", moved)
    assert rows and all(row["ok"] for row in rows)
    rows, _ = forced("--reference", folder, "--device", "cpu", "--model", b, rc=1)
    assert "b.gguf is not the a.gguf that the reference was made of" in rows[-1]["text"]


def test_answers_of_both_devices_are_the_same():
    rows, text = forced("--answers", "--emulated", "--models", BF16)
    assert "WRONG" not in text and rows[0]["ok"]
    assert rows[0]["compared"] > rows[0]["requests"] and rows[0]["wrong"] == 0


@pytest.mark.parametrize("kernel, model", [("attention_decode*", BF16), ("skinny*", BF16), ("gemv*", Q4), ("norm*", BF16)])
def test_one_wrong_number_of_a_kernel_is_found(tmp_path, kernel, model):
    folder = tmp_path / "made"
    make(folder, model, rows=4, prompt=20)
    rows, text = forced("--reference", folder, rc=1, INFERD_CUDA_MODULE=str(MODULE), INFERD_FAKE=f"wrong={kernel}",
                        INFERD_CUDA_OFF="graphs")
    assert "WRONG RESULT" in text
    assert not all(row["ok"] for row in rows)
