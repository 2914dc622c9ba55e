"""cpu_table - from measured values to shares of roofs, verdicts and Markdown.  Nothing here measures.

A roof is what the machine allows at most, by bench_ceilings in the same session:

    a step of n streams   reads all weights once (memory) and multiplies n rows with them (arithmetic);
                          the roof is the lower of the two rates
    a prompt              arithmetic without the head

Attention is in neither.  Arithmetic is 8-bit dot products for quantised files (also for a server that
chooses 16 bits, which has half of it), and bf16 ones for BF16 files."""

import statistics

LOADS = {"load8": "closed loop of 8, 512 in, 128 out", "load16": "closed loop of 16, 256 in, 64 out",
         "load1": "one stream, 512 in, 128 out",
         "poisson": "Poisson at 70 % of the other's closed loop of 8, 512 in, 128 out"}
PARTS = {"tokens": "tokens/s", "ttft": "TTFT P50, ms", "ttft99": "TTFT P99, ms", "itl99": "ITL P99, ms",
         "e2e": "end to end P50, ms", "others": "CPU time of others, %", "rate": "CPUs, % of their fastest"}

TITLES = {f"{case}_{part}": f"{load}: {what}" for case, load in LOADS.items() for part, what in PARTS.items()} | {
    "s1": "1 stream, tokens/s",
    "s8": "8 streams, tokens/s",
    "s32": "32 streams, tokens/s",
    "prefill512": "prompt of 512, tokens/s",
    "ttft128": "TTFT, prompt of 128, idle, ms",
    "gap_longest": "longest gap of 4 streams while a prompt of 512 arrives, ms",
    "gap_median": "their median gap, ms",
    "cold": "start of the process to first token, ms",
    "pss_idle": "memory (Pss), idle, MB",
    "pss_full": "memory (Pss), most during {kv}, MB",
}
STREAMS = {"s1": 1, "s8": 8, "s32": 32}

# type -> (must, aim): inferd's median divided by the peer's.
RATIOS = {
    "s1": {"Q4_1": (2.5, None), "Q4_0": (1.8, None), "Q8_0": (1.7, None), "Q4_K_M": (1.7, None)},
    "s8": {"Q4_1": (4.5, 7), "Q4_0": (2.8, 4.5), "Q8_0": (3, 5), "Q4_K_M": (2.6, 4.5)},
    "s32": {"Q4_1": (4.5, 7), "Q4_0": (2.4, 4), "Q8_0": (3, 5), "Q4_K_M": (2.8, 4.5), "BF16": (1.3, 1.8)},
    "prefill512": {"Q4_1": (5.5, 8), "Q4_0": (2.2, 3.5), "Q8_0": (2.8, 4.5), "Q4_K_M": (2.6, 4), "BF16": (1.0, 1.2)},
}
# row -> must: tokens/s at least, times at most, of the peer's.
LOAD_RATIOS = {
    "load8_tokens": 1.9, "load8_ttft": 0.45, "load8_ttft99": 1.0, "load16_tokens": 1.9, "load16_ttft": 0.7,
    "load16_ttft99": 1.0, "load1_tokens": 2.0, "load1_ttft": 0.6, "load1_ttft99": 1.0,
    "poisson_ttft": 0.4, "poisson_ttft99": 0.5, "poisson_e2e": 0.6,
}
LOAD_ITL99_MS = 60
ROOF_MUST, ROOF_AIM = 0.70, 0.80  # of one stream, instead of the ratio
TTFT_RATIO = {"Q4_1": (0.2, 0.13)}
COLD_MS = (600, 300)
GAP_MS = (50, 40)  # policy.tpot_ms is 40: prompts get the time that streams do not need for a comfortable pace
PSS_IDLE_RATIO = 0.2
PSS_EXTRA_MB = (60, 40)  # over weights and KV
ACCURACY = (0.035, 0.015)
PERPLEXITY = 0.005
KV_BYTES = 2  # of one value, in both servers


def median(values):
    return statistics.median(values) if values else None


def peak(ceilings, names):
    """The best rate of the first of these that the machine has, all threads."""
    for name in names:
        rows = [r for r in ceilings if r.get("what") == name]
        if rows:
            return max(rows, key=lambda r: r["threads"])["best"]
    return None


def roofs(ceilings, about, kind):
    """Tokens per second at most, by case."""
    dram = peak(ceilings, ["dram read"])
    dots = peak(ceilings, ["vdpbf16ps zmm", "vfmadd231ps zmm", "vfmadd231ps ymm"] if kind == "BF16" else
                ["vpdpbusd zmm", "vpdpbusd ymm", "vpmaddubsw+.. ymm"])
    if dram is None or dots is None:
        return {}
    found = {case: min(n * dram * 1e9 / about["weight_bytes"], dots * 1e9 / (2 * about["factors"]))
             for case, n in STREAMS.items()}
    found["prefill512"] = dots * 1e9 / (2 * (about["factors"] - about["head_factors"]))
    return found


def judge(value, must, aim, less=False):
    good = (lambda limit: value <= limit) if less else (lambda limit: value >= limit)
    if aim is not None and good(aim):
        return "aim"
    return "must" if good(must) else "missed"


def verdict(pair, case, roof):
    """(the goal in words, how it went); empty words where there is no goal."""
    kind, values = pair["type"], pair["values"]
    ours, theirs = (median(values.get(case, {}).get(who)) for who in ("inferd", pair["peer"]))
    if ours is None:
        return "", ""
    if case in RATIOS and kind in RATIOS[case] and theirs:
        must, aim = RATIOS[case][kind]
        ratio = ours / theirs
        if case != "s1":
            return f"{must} ×; {aim} ×", judge(ratio, must, aim)
        share = ours / roof if roof else 0
        how = "aim" if share >= ROOF_AIM else "must" if ratio >= must or share >= ROOF_MUST else "missed"
        return f"{must} × or {ROOF_MUST:.0%} of the roof; {ROOF_AIM:.0%}", how
    if case == "ttft128" and kind in TTFT_RATIO and theirs:
        must, aim = TTFT_RATIO[kind]
        return f"{must} ×; {aim} ×", judge(ours / theirs, must, aim, True)
    if case in LOAD_RATIOS and theirs:
        must = LOAD_RATIOS[case]
        return f"{must} ×", judge(ours / theirs, must, None, not case.endswith("tokens"))
    if case.endswith("_itl99"):
        return f"{LOAD_ITL99_MS}", judge(ours, LOAD_ITL99_MS, None, True)
    if case == "gap_longest":
        return "{}; {}".format(*GAP_MS), judge(ours, *GAP_MS, True)
    if case == "cold":
        return "{}; {}".format(*COLD_MS), judge(ours, *COLD_MS, True)
    if case == "pss_idle" and theirs and pair["peer"] == "llama-server":
        return f"{PSS_IDLE_RATIO} ×", judge(ours / theirs, PSS_IDLE_RATIO, None, True)
    if case == "pss_full":
        about = pair["about"]
        kv = pair["kv_tokens"] * about["kv_values_per_token"] * KV_BYTES
        must, aim = ((about["weight_bytes"] + kv) / 1e6 + extra for extra in PSS_EXTRA_MB)
        return f"{must:.0f}; {aim:.0f}", judge(ours, must, aim, True)
    return "", ""


def accuracy_verdicts(pair):
    """Sentences about the accuracy gate."""
    rows = {row["name"]: row for row in pair["accuracy"]["rows"]}
    ours, theirs = rows.get("inferd"), rows.get(pair["peer"])
    if ours is None:
        return []
    mean = ours["logprob"]["mean"]
    said = [f"mean difference {mean:.4f}: {judge(mean, *ACCURACY, True)} ({ACCURACY[0]}; {ACCURACY[1]})"]
    if theirs is not None and mean > 0:
        said.append(f"{theirs['logprob']['mean'] / mean:.1f} times as close as {pair['peer']} (2)")
    if ours.get("perplexity") is not None:
        off = abs(ours["perplexity"] / pair["accuracy"]["perplexity"] - 1)
        said.append(f"perplexity within {off:.3%}: {judge(off, PERPLEXITY, None, True)} ({PERPLEXITY:.1%})")
    return said


def show(values):
    if not values:
        return "–"
    digits = 1 if median(values) < 1000 else 0
    text = f"{median(values):,.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f}–{max(values):,.{digits}f})"
    return text


def pair_table(pair, ceilings):
    peer, limits = pair["peer"], roofs(ceilings, pair["about"], pair["type"])
    kv = f"32 × {pair['kv_tokens'] // 32:,} tokens"
    lines = [f"| | inferd, median (range) | of its roof | {peer}, median (range) | of its roof | ratio | must; aim | |",
             "|---|---|---|---|---|---|---|---|"]
    for case, title in TITLES.items():
        if case not in pair["values"]:
            continue
        ours, theirs = (pair["values"][case].get(who, []) for who in ("inferd", peer))
        share = lambda values: f"{median(values) / limits[case]:.0%}" if case in limits and values else ""
        ratio = f"{median(ours) / median(theirs):.2f}" if ours and theirs and median(theirs) else ""
        goal, how = verdict(pair, case, limits.get(case))
        lines.append(f"| {title.format(kv=kv)} | {show(ours)} | {share(ours)} | {show(theirs)} | {share(theirs)} "
                     f"| {ratio} | {goal} | {how} |")
    return "\n".join(lines)


def ceilings_table(ceilings):
    lines = ["| | threads | best | median | |", "|---|---|---|---|---|"]
    for r in ceilings:
        if r["bench"] == "ceiling":
            lines.append(f"| {r['what']} | {r['threads']} | {r['best']:g} | {r['median']:g} | {r['unit']} |")
    return "\n".join(lines)


def markdown(result):
    machine = result["machine"]
    out = [f"# {result['date']}, CPU, beside its peers", "",
           f"{machine['threads']} threads on {machine['cpus']} CPUs, {machine['cpu']}, {machine['memory_gb']} GB, "
           f"{machine['system']}; load when it began {machine['load_before']}"
           + (f", when it ended {machine['load_after']}" if "load_after" in machine else "") + ".",
           "", f"inferd {result['commit']}; " + "; ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".",
           "", f"{result['rounds']} rounds; in each, every case runs on one server and then on the other, the idle one "
           "stopped.  Greedy, unique prompts of random ids, 128 tokens out after 10 in where nothing else is said.  Written by "
           "`scripts/bench-peers`; how: [../README.md](../README.md).", ""]
    if result["quick"]:
        out += ["**A quick run, which shows that the script works: its figures are not results.**", ""]
    for pair in result["pairs"]:
        out += [f"## {pair['type']} beside {pair['peer']}", "", pair_table(pair, pair["ceilings"]), ""]
        if "accuracy" in pair:
            out += [pair["accuracy"]["table"], "", "; ".join(accuracy_verdicts(pair)) + ".", ""]
    if result["pairs"]:
        out += ["## What the machine can do", "", "`bench_ceilings`, before the first table:", "",
                ceilings_table(result["pairs"][0]["ceilings"]), ""]
    out += ["## Commands", "", "```sh"]
    out += [line for pair in result["pairs"] for line in pair["commands"]]
    return "\n".join([*out, "```", ""])
