"""bench_masks and scripts/bench-masks on schemas of our own: what they say of a schema is true."""

import json
import os
import struct
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, skip

sys.path.insert(0, str(ROOT / "bench" / "masks"))
import cases  # noqa: E402
import report  # noqa: E402

BENCH = BUILD / "bench/bench_masks"
ROWS = json.loads((ROOT / "tests/data/schemas.json").read_text())


@pytest.fixture(autouse=True)
def built():
    if not BENCH.exists():
        skip("bench_masks is not built")


def case_of(row):
    tests = [{"valid": valid, "text": json.dumps(data, ensure_ascii=False)}
             for valid in (True, False) for data in row.get("valid" if valid else "invalid", [])]
    return {"id": row["id"], "schema": json.dumps(row["schema"]), "tests": tests}


def run(lines, *argv):
    done = subprocess.run([BENCH, *argv], input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line != "ready"]


def check(rows):
    for row, said in zip(ROWS, rows, strict=True):
        assert said["id"] == row["id"]
        if "refused" in row:
            assert said["status"] == "refused" and f'"{row["refused"]}" at #' in said["error"], said
        else:
            assert said["status"] == "passed", {k: said[k] for k in said if k not in report.TIMES}


def test_schemas_accept_valid_instances_and_no_others():
    check(run(map(case_of, ROWS), "--bytes"))


# Tokens across terminals, of parts of code points, and of white space.
PIECES = [b"", b"", *(bytes([b]) for b in range(256)), b'"', b'":', b'": ', b'", "', b'"}', b'"]', b"}]", b"{\"", b'[{"',
          b", ", b"},", b"true", b"null", b"12", b"123", b"\n    ", b"        ", b"name", b"ab", "é€".encode(),
          "€".encode()[:2], b'": "', b'"a": ', b"-", b"0.", b"]]", b"[[", b"e-07", b"\\u00"]
ENDS = [1]


def write_pieces(path):
    with open(path, "wb") as f:
        f.write(b"IFPIECES" + struct.pack(f"=II{len(ENDS)}I", len(PIECES), len(ENDS), *ENDS))
        for p in PIECES:
            f.write(struct.pack("=I", len(p)) + p)


def tokens_of(text):
    """The longest piece at each place."""
    ids, at, data = [], 0, text.encode()
    while at < len(data):
        i = max((i for i, p in enumerate(PIECES) if p and data.startswith(p, at)), key=lambda i: len(PIECES[i]))
        ids.append(i)
        at += len(PIECES[i])
    return ids


def cases_in_tokens():
    found = [case_of(row) for row in ROWS]
    for c in found:
        for t in c["tests"]:
            t["tokens"] = tokens_of(t["text"])
    return found


def test_the_same_by_masks_and_every_one_is_timed(tmp_path):
    write_pieces(tmp_path / "pieces")
    found = cases_in_tokens()
    rows = run(found, "--repeat", "2", tmp_path / "pieces")
    check(rows)
    for c, said in zip(found, rows):
        if said["status"] == "passed":
            n = sum(len(t["tokens"]) for t in c["tests"] if t["valid"])
            assert n <= len(said["cold"]) == len(said["warm"]) <= sum(len(t["tokens"]) for t in c["tests"])
            assert all(ns > 0 for ns in said["cold"])


def test_a_wrong_label_is_seen():
    row = {"id": "x", "schema": {"type": "integer"}, "valid": [1, "a"], "invalid": ["b"]}
    said = run([case_of(row)], "--bytes")[0]
    assert (said["status"], said["test"], said["at"]) == ("false_reject", 1, 0)
    row = {"id": "x", "schema": {"type": "integer"}, "valid": ["a"], "invalid": ["b", 12]}
    said = run([case_of(row)], "--bytes")[0]
    assert (said["status"], said["test"], said["at"]) == ("false_accept", 2, -1)


def test_a_cut_text_is_completed():
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
                         "required": ["a"], "additionalProperties": False})
    texts = [("", '{"a":[]}'), ('{"a', '{"a":[]}'), ('{ "a": [1, 2', '{ "a": [1, 2]}'), ('{"a":[]}', '{"a":[]}')]
    said = run([{"schema": schema, "text": start} for start, _ in texts], "--complete")
    assert [s["text"] for s in said] == [whole for _, whole in texts]
    (said,) = run([{"schema": schema, "text": '{"b'}], "--complete")
    assert not said["done"] and said["error"]


def test_a_repository_that_lacks_a_file_is_read(tmp_path):
    git = lambda *argv: subprocess.run(["git", "-C", tmp_path, *argv], check=True, capture_output=True, env={
        **os.environ, "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e", "GIT_COMMITTER_NAME": "n",
        "GIT_COMMITTER_EMAIL": "e"}).stdout.decode().strip()
    folder = tmp_path / cases.FOLDER
    folder.mkdir(parents=True)
    for name, data in (("a", {"x": "é"}), ("b", 1), ("c", None)):
        (folder / f"{name}.json").write_text(json.dumps({
            "schema": {"type": "object"}, "tests": [{"valid": name == "a", "data": data}]}))
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    blob = git("rev-parse", f"HEAD:{cases.FOLDER}/b.json")
    (tmp_path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    found, about = cases.read(tmp_path)
    assert [c["id"] for c in found] == ["a", "c"] and found[0]["tests"][0]["text"] == '{"x": "é"}'
    assert (about["listed"], about["schemas"], about["instances"], about["valid"]) == (3, 2, 2, 1)
    assert [r["status"] for r in run(found, "--bytes")] == ["passed", "passed"]
    said = subprocess.run([sys.executable, "-B", ROOT / "scripts/bench-masks", tmp_path, "--bytes", "--build", BUILD],
                          env={**os.environ, "BENCH_MASKS_PYTHON": sys.executable}, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "3 files listed, 2 readable, 2 instances, 1 of them valid" in said.stdout


def test_a_report_says_what_was_measured(tmp_path):
    write_pieces(tmp_path / "pieces")
    found = cases_in_tokens()
    results = report.Results(len(found))
    for i, row in enumerate(run(found, tmp_path / "pieces")):
        results.put(i, row)
    n_refused = sum("refused" in row for row in ROWS)
    run_ = {"vocabulary": "own", "n_vocab": len(PIECES),
            "results": dict.fromkeys((report.ORDERED, report.ANY_ORDER, "llguidance"), results)}
    told = report.summary(run_, found)
    ours = told["engines"]["inferd"]
    assert (ours["passed"], ours["refused"]) == (len(ROWS) - n_refused, n_refused)
    assert ours["refused_by"] == {"pattern": 1, "$ref": 1}
    assert told["both"]["inferd"]["cold"] == told["both"]["llguidance"]["cold"]
    result = {"date": "2026-01-01", "commit": "c", "machine": {"cpu": "x", "cpus": 1, "load_before": 0, "load_after": 0},
              "data": {"commit": None, "listed": 1, "schemas": 1, "instances": 1, "valid": 1, "chosen": 1},
              "versions": {}, "repeat": 1, "seed": 1, "runs": [told]}
    result["goals"] = report.goals(result)
    half = [g for g in result["goals"] if "part of" in g["what"]]
    assert len(half) == 8 and not any(g["met"] for g in half)  # as fast as itself
    assert "| own: false accepts | 0 | ≤ 0 | met |" in report.markdown(result)


def test_reasons_are_keywords():
    assert report.reason('"not" at #/properties/a cannot be enforced') == "not"
    assert report.reason('Unimplemented keys: ["if", "then"]') == "if, then"
    assert report.reason("an enum of 30000 values, enum_max is 20000") == "an enum of N values, enum_max is N"
