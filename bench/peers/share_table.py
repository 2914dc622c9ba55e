"""share_table - the rows of bench-share as Markdown.  Nothing here measures.

A row is {"id", "figure", "goal", "measured", "spread", "verdict", "values"}, as `inferd-bench share --json`
writes it."""

import re
import statistics

ORDER = ("warm", "cold", "prepare", "prepare-kernel", "gap", "urgent", "pool", "kv", "decision", "shares", "guarantee", "weights",
         "weights-rate", "beside", "inversion", "inversion-loads", "roundrobin", "alone-s1", "alone-s8", "alone-s32",
         "alone-ttft", "burst")
SLOWER_GOAL = 0.02  # one model alone, against the binary before sharing
POOL_GOAL_NS = 100
DECISION_GOAL_US = 200
ALONE = {"s1": "1 stream", "s8": "8 streams", "s32": "32 streams", "ttft": "TTFT of 128 tokens"}


def row(name, figure, goal, measured, spread, verdict, values=None):
    return {"id": name, "figure": figure, "goal": goal, "measured": measured, "spread": spread, "verdict": verdict,
            "values": values or {}}


def missing(name, figure, why):
    return row(name, figure, "", why, "", "not measured")


def alone_rows(pairs):
    """pairs: {case: [(now, before)]}, tokens per second or, for ttft, milliseconds."""
    rows = []
    for case, values in pairs.items():
        slower = [now / before - 1 if case == "ttft" else before / now - 1 for now, before in values]
        middle = statistics.median(slower)
        unit = "ms" if case == "ttft" else "tokens/s"
        now, before = (statistics.median(v) for v in zip(*values))
        # How far the median of so few pairs may be off: their spread by quartiles, over the root of their number.
        low, _, high = statistics.quantiles(slower, n=4) if len(slower) > 1 else (middle,) * 3
        off = 0.93 * (high - low) / len(slower) ** 0.5
        rows.append(row(
            f"alone-{case}", f"one model alone, against the binary before sharing: {ALONE[case]}", "<= 2 % slower",
            f"{abs(middle):.1%} {'slower' if middle > 0 else 'faster'}: {now:,.1f} against {before:,.1f} {unit}",
            f"median of {len(values)} pairs, ± {off:.1%}; quartiles {low:+.1%} to {high:+.1%}",
            "met" if middle <= SLOWER_GOAL else "missed", {"slower": slower, "pairs": values}))
    return rows


def pool_row(results):
    """results: objects of `bench_pool --json`."""
    worst = max(max(r["take_ns"]["p50"], r["give_ns"]["p50"] + r["finish_ns"]["p50"]) for r in results)
    return row("pool", "pool allocate / free", "<= 100 ns median", f"{worst:.0f} ns", "; ".join(
        f"{r['what']}: take {r['take_ns']['p50']:.0f} (p99 {r['take_ns']['p99']:.0f}), give "
        f"{r['give_ns']['p50']:.0f} ({r['give_ns']['p99']:.0f}), out of quarantine {r['finish_ns']['p50']:.0f} "
        f"({r['finish_ns']['p99']:.0f})" for r in results),
        "met" if worst <= POOL_GOAL_NS else "missed", {"results": results})


def kernel_row(text, threads):
    """text: what bench_stage printed."""
    found = {name: (float(cold), float(copy), int(share)) for name, copy, cold, share in re.findall(
        rf"^(\S+) +{threads} +([\d.]+) +([\d.]+) .* (\d+)%$", text, re.M)}
    if not found:
        raise ValueError("bench_stage printed no shares")
    return row("prepare-kernel", "the same without reading: rows in memory to panels", "",
               ", ".join(f"{name} {share} %" for name, (_, _, share) in found.items()) + " of memcpy",
               ", ".join(f"{name} {cold:.1f} of {copy:.1f}" for name, (cold, copy, _) in found.items()) +
               " GB/s, memcpy in the same run", "", {"gb_per_s": found})


def decision_row(runs):
    """runs: what bench_decision printed, each time."""
    found = [{what: [float(v) for v in values.split()] for what, values in
              re.findall(r"^(decide|plan|both|both, by the clock) +([\d. ]+)$", text, re.M)} for text in runs]
    for lines in found:
        for what in ("both", "both, by the clock"):
            if len(lines.get(what, ())) < 2:
                raise ValueError(f"bench_decision printed no median and p99 of `{what}`")
    p50, p99, by_clock = (statistics.median(f[what][i] for f in found)
                          for what, i in (("both", 0), ("both", 1), ("both, by the clock", 1)))
    return row("decision", "decision time, 64 models, 1,024 sequences", "<= 200 us p99", f"{p99:.0f} us",
               f"median {p50:.0f} us; of the thread's processor time, median of {len(found)} runs "
               f"({min(f['both'][1] for f in found):.0f} to {max(f['both'][1] for f in found):.0f}); "
               f"by the clock p99 {by_clock:.0f} us",
               "met" if p99 <= DECISION_GOAL_US else "missed", {"runs": found})


def peer_cell(name, peer):
    if peer is None or name not in ("warm", "cold"):
        return "–"
    cost = peer.get("values", {}).get("cost_ms")
    return f"{cost['p50']:.0f} ms ({cost['min']:.0f} to {cost['max']:.0f})" if cost else peer["measured"]


def table(rows, peer):
    """peer: the row `switch` of llama-server's router, or None."""
    place = {name: i for i, name in enumerate(ORDER)}
    lines = ["| figure | llama-server's router | goal | measured | spread | |", "|---|---|---|---|---|---|"]
    for r in sorted(rows, key=lambda r: place.get(r["id"], len(ORDER))):
        lines.append(f"| {r['figure']} | {peer_cell(r['id'], peer)} | {r['goal']} | {r['measured']} | {r['spread']} "
                     f"| {r['verdict']} |")
    return "\n".join(lines)


def markdown(result):
    machine = result["machine"]
    out = [f"# {result['date']}, sharing a CPU", "",
           f"{machine['threads']} threads on {machine['cpus']} CPUs, {machine['cpu']}, {machine['memory_gb']} GB, "
           f"{machine['system']}; load when it began {machine['load_before']}, when it ended "
           f"{machine.get('load_after', '?')}; {result.get('took_s', 0):.0f} s.", "",
           "; ".join([f"inferd {result['commit']}", *(f"{k} {v}" for k, v in result["versions"].items())]) + ".", "",
           "Models: " + ", ".join(f"{m['name']} ({m['bytes'] / 1e6:.0f} MB)" for m in result["models"])
           + ".  Written by `scripts/bench-share`; what each row is: [../README.md](../README.md#sharing-one-device).", ""]
    if result["quick"]:
        out += ["**A quick run, which shows that the script works: its figures are not results.**", ""]
    out += [table(result["rows"], result.get("peer")), "",
            "Models at 90 % attainment and reload seconds against clairvoyant are simulated: `inferd-sim`, "
            "[docs/sharing.md](../../docs/sharing.md).", ""]
    out += ["## Commands", "", "```sh", *result["commands"], "```", ""]
    return "\n".join(out)
