"""guidellm: synthetic prompts over streamed chats."""

import json
import sys
from pathlib import Path

PACKAGES = ["guidellm"]


def test_run(tiny, tokenizer, program, tmp_path):
    """`guidellm run`: one after the other, all answers complete"""
    program([Path(sys.executable).with_name("guidellm"), "run", "--backend", f"kind=openai_http,target={tiny.url}",
             "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=3",
             "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
             "--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--output", "kind=json,path=report.json",
             "--disable-progress"], cwd=tmp_path)
    requests = json.loads((tmp_path / "report.json").read_text())["benchmarks"][0]["requests"]
    assert [len(requests[kind]) for kind in ("successful", "errored")] == [3, 0]
    assert all(r["output_metrics"]["text_tokens"] == 8 for r in requests["successful"])
