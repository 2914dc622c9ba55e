"""2,000 answers in forms that were asked for, from models that know nothing, preempted all the time: none is invalid.
scripts/soak-grammar without limits, with schemas of others."""

import importlib.machinery
import importlib.util
import json

from conftest import BUILD, ROOT, SANITIZE, skip


def load_soak_grammar():
    loader = importlib.machinery.SourceFileLoader("soak_grammar", str(ROOT / "scripts/soak-grammar"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("soak_grammar", loader))
    loader.exec_module(module)
    return module


def test_an_answer_has_its_form_whatever_happens_on_the_way(tmp_path):
    if not (BUILD / "bench/bench_masks").exists():
        skip("bench_masks is not built")
    out = tmp_path / "report.json"
    n = 100 if SANITIZE else 2000
    status = load_soak_grammar().main(["--answers", str(n), "--seed", "7", "--build", str(BUILD), "--out", str(out)])
    report = json.loads(out.read_text())
    assert status == 0, report["problems"][:5]
    assert report["counts"].get("invalid", 0) == 0
    assert report["counts"]["length"] > 0  # some were cut, and completed
