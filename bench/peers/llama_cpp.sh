#!/usr/bin/env bash
# llama_cpp.sh - llama.cpp on the same shapes, when its CUDA binaries are there.
#
#   llama_cpp.sh FOLDER [PYTHON]     FOLDER has llama-bench and llama-batched-bench, and their libraries
#
# The model is a file of true shape with random blocks (make_gguf.py), written beside TMPDIR's other files
# and removed at the end.  Prints JSON, one object per line; status 77 when there is nothing to run.
set -uo pipefail
folder=${1:-llama.cpp} python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
for tool in llama-bench llama-batched-bench; do
    if [ ! -x "$folder/$tool" ]; then
        echo "$folder/$tool is not there" >&2
        exit 77
    fi
done
export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
status=0
quoted() { tr -cd '\40-\176' | sed 's/\\/\\\\/g; s/"/\\"/g'; }

run() { # model's name, shape, type
    local name=$1 file=$work/$2-$3.gguf
    "$python" "$here/make_gguf.py" --shape "$2" --type "$3" "$file" || return 1
    # One stream and prompts: a line per test.
    "$folder/llama-bench" -m "$file" -p 512,2048 -n 128 -fa 1 -ngl 99 -r 5 -o jsonl 2>"$work/err" |
        "$python" -c '
import json, sys
name, n = sys.argv[1], 0
for line in sys.stdin:
    if not line.startswith("{"): continue
    r = json.loads(line)
    n += 1
    row = {"bench": "peer", "peer": "llama_cpp", "model": name, "streams": 1, "prompt": 0, "output": r["n_gen"],
           "us": r["avg_ns"] * 1e-3, "tokens_s": r["avg_ts"], "commit": r.get("build_commit", "")}
    if r["n_gen"] == 0:
        row["bench"], row["prompt"] = "peer_prefill", r["n_prompt"]
    print(json.dumps(row, separators=(",", ":")), flush=True)
sys.exit(n == 0)' "$name" || { tail -n 5 "$work/err" >&2; return 1; }
    # Many streams: 1,024 tokens in, 128 out.
    "$folder/llama-batched-bench" -m "$file" -c 150000 -b 2048 -ub 512 -npp 1024 -ntg 128 -npl 8,32,128 \
        -fa on -ngl 99 --output-format jsonl 2>"$work/err" |
        "$python" -c '
import json, sys
name, n = sys.argv[1], 0
for line in sys.stdin:
    if not line.startswith("{"): continue
    r = json.loads(line)
    n += 1
    print(json.dumps({"bench": "peer", "peer": "llama_cpp", "model": name, "streams": r["pl"], "prompt": r["pp"],
                      "output": r["tg"], "seconds": r["t"], "decode_tokens_s": r["speed_tg"],
                      "prefill_tokens_s": r["speed_pp"], "tokens_s": r["pl"] * r["tg"] / r["t"]},
                     separators=(",", ":")), flush=True)
sys.exit(n == 0)' "$name" || { tail -n 5 "$work/err" >&2; return 1; }
    rm -f "$file"
}

printf '{"bench":"peer_about","peer":"llama_cpp","version":"%s"}\n' \
    "$("$folder/llama-bench" --version 2>&1 | head -n 1 | quoted)"
run 'dummy:llama-3.1-8b?dtype=q4_k_m' 8b q4_k_m || status=1
run 'dummy:llama-3.1-8b?dtype=bf16' 8b bf16 || status=1
exit $status
