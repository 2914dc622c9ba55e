"""report - from results of engines to counts, percentiles, goals and Markdown.  Nothing here measures."""

import collections
import json
import re
from importlib import metadata

STATUSES = ("passed", "refused", "false_accept", "false_reject", "timeout", "crashed")
TIMES = ("cold", "warm", "accept")
REFUSALS_SHOWN, DIFFERENCES_SHOWN, SLOWEST_SHOWN = 40, 60, 8

# (what, the most): of the masks of inferd, in us
COLD_US = {"p50": 10, "p99": 100, "max": 2000}
WARM_P99_US = 50
PEER_PART = 0.5  # of llguidance's, at each of these
FALSE_REJECTS_MAX = 20
ORDERED, ANY_ORDER = "inferd", "inferd, any order"  # of properties: the schema's, or any
COMPILE_P50_US, COMPILE_MAX_US = 5000, 100_000


class Results:
    """Of one engine; times are arrays, a Python list would take gigabytes."""

    def __init__(self, n):
        self.rows = [None] * n

    def put(self, i, row):
        import numpy

        for name in TIMES:
            row[name] = numpy.array(row.get(name, ()), dtype=numpy.uint32)
        self.rows[i] = row

    def asked(self):
        return [r for r in self.rows if r is not None]


def versions():
    found = {}
    for name in ("llguidance", "xgrammar", "tokenizers", "jsonschema"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def spread(arrays):
    """Percentiles in us."""
    import numpy

    values = numpy.concatenate([a for a in arrays if len(a)] or [numpy.zeros(0)]) / 1000
    if not len(values):
        return None
    ranks = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9, "max": 100}
    return {name: round(float(v), 2) for name, v in zip(ranks, numpy.percentile(values, list(ranks.values())))} | {
        "mean": round(float(values.mean()), 2), "n": len(values)}


def reason(error):
    """What a refusal is about: the keyword, or the text without what differs from schema to schema."""
    found = re.match(r'"([^"]+)" at #', error) or re.search(r"Unimplemented keys: \[(.*?)\]", error)
    if found:
        return found.group(1).replace('"', "")
    text = re.sub(r"#\S*", "#…", error.split("\n")[0])
    return re.sub(r"\d+", "N", re.sub(r'"[^"]*"|\'[^\']*\'|/.*/', "…", text))[:100]


def opinion(case, test):
    """What jsonschema says of an instance, formats checked: another judge, which decides nothing here."""
    import jsonschema

    try:
        schema = json.loads(case["schema"])
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        checker = kind(schema, format_checker=kind.FORMAT_CHECKER)
        error = next(checker.iter_errors(json.loads(test["text"])), None)
        return "valid" if error is None else f"invalid: {error.validator}"
    except Exception as e:
        return f"fails: {type(e).__name__}"


def differences(rows, found):
    """Where results and labels differ."""
    told = []
    for row, case in zip(rows, found):
        if row is None or row["status"] not in ("false_accept", "false_reject"):
            continue
        at = row.get("test")
        told.append({k: row[k] for k in ("id", "status", "test", "at", "error") if k in row} |
                    ({"jsonschema": opinion(case, case["tests"][at])} if at is not None else {}))
    return told


def figures(rows):
    counts = collections.Counter(r["status"] for r in rows)
    compiled = [r for r in rows if r["status"] in ("passed", "false_accept", "false_reject")]
    import numpy

    return {"schemas": len(rows), **{s: counts[s] for s in STATUSES},
            "refused_by": dict(collections.Counter(reason(r.get("error", "")) for r in rows
                                                   if r["status"] == "refused").most_common()),
            **{name: spread([r[name] for r in compiled]) for name in TIMES},
            "first": spread([r["cold"][:1] for r in compiled]),
            "compile": spread([numpy.array([r["compile_ns"]]) for r in compiled]),
            "refusal": spread([numpy.array([r["compile_ns"]]) for r in rows if r["status"] == "refused"])}


def slowest(rows, kind):
    """The schemas with the slowest masks: (us, schema, number of the mask)."""
    told = [(round(int(r[kind].max()) / 1000, 1), r["id"], int(r[kind].argmax())) for r in rows if len(r[kind])]
    return sorted(told, reverse=True)[:SLOWEST_SHOWN]


def summary(run, found):
    engines = {}
    ours = {name: run["results"][name].rows for name in (ORDERED, ANY_ORDER)}
    for name, results in run["results"].items():
        engines[name] = figures(results.asked())
    told = {"vocabulary": run["vocabulary"], "n_vocab": run["n_vocab"], "engines": engines,
            "differences": differences(ours[ANY_ORDER], found),
            "slowest": {f"{name}, {kind}": slowest([r for r in rows if r is not None], kind)
                        for name, rows in ours.items() for kind in ("cold", "warm")}}
    sets = {"both": (ORDERED, ANY_ORDER, "llguidance"), "sample": (ORDERED, ANY_ORDER, "llguidance", "xgrammar")}
    for name, members in sets.items():  # on what all of them were asked; times where all compiled it
        if not set(members) <= set(run["results"]):
            continue
        rows = {m: run["results"][m].rows for m in members}
        asked = [i for i in range(len(found)) if all(rows[m][i] is not None for m in members)]
        good = [i for i in asked if all(rows[m][i]["status"] == "passed" for m in members)]
        told[name] = {m: {s: sum(rows[m][i]["status"] == s for i in asked) for s in STATUSES} |
                      {t: spread([rows[m][i][t] for i in good]) for t in TIMES} |
                      {"compile": spread(_array([rows[m][i]["compile_ns"] for i in good])), "passed_by_all": len(good)}
                      for m in members}
    return told


def _array(values):
    import numpy

    return [numpy.array(values)]


def write_statuses(run, file):
    for engine, results in run["results"].items():
        for r in results.asked():
            kept = {k: r[k] for k in ("id", "status", "test", "at", "error", "compile_ns") if k in r}
            file.write(json.dumps({"vocabulary": run["vocabulary"], "engine": engine, **kept}) + "\n")


def goals(result):
    told = []

    def add(what, value, most=None, least=None):
        if value is not None:
            met = (most is None or value <= most) and (least is None or value >= least)
            told.append({"what": what, "value": value, "most": most, "least": least, "met": bool(met)})

    for run in result["runs"]:
        both = {ORDERED: run["vocabulary"], ANY_ORDER: f"{run['vocabulary']}, any order"}
        add(f"{both[ANY_ORDER]}: false rejects", run["engines"][ANY_ORDER]["false_reject"], FALSE_REJECTS_MAX)
        for engine, name in both.items():
            goals_of(engine, name, run, add)
    return told


def goals_of(engine, name, run, add):
    ours = run["engines"][engine]
    add(f"{name}: sum of the statuses", sum(ours[s] for s in STATUSES), ours["schemas"], ours["schemas"])
    add(f"{name}: false accepts", ours["false_accept"], 0)
    add(f"{name}: crashed, timeout", ours["crashed"] + ours["timeout"], 0)
    if "llguidance" in run["engines"]:
        add(f"{name}: passed, at least llguidance's", ours["passed"], least=run["engines"]["llguidance"]["passed"])
    if ours["cold"] is None:
        return
    for part, most in COLD_US.items():
        add(f"{name}: cold {part}, us", ours["cold"][part], most)
    if ours["warm"]:
        add(f"{name}: warm p99, us", ours["warm"]["p99"], WARM_P99_US)
    add(f"{name}: compile p50, us", ours["compile"]["p50"], COMPILE_P50_US)
    add(f"{name}: compile max, us", ours["compile"]["max"], COMPILE_MAX_US)
    for kind, part in (("cold", "p50"), ("cold", "p99"), ("cold", "max"), ("warm", "p99")):
        both = run.get("both", {})
        if both and both[engine][kind] and both["llguidance"][kind]:
            add(f"{name}: {kind} {part}, part of llguidance's",
                round(both[engine][kind][part] / both["llguidance"][kind][part], 3), PEER_PART)


# ---- Markdown ----


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


def show(value):
    return "–" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def times_table(engines, kinds):
    titles = {"cold": "mask, cold", "warm": "mask, warm", "accept": "accept", "first": "first mask",
              "compile": "compile", "refusal": "refusal"}
    rows = [[titles[kind], name, *(show(f[kind][p]) for p in ("p50", "p90", "p99", "p99.9", "max", "mean")),
             show(f[kind]["n"])] for kind in kinds for name, f in engines.items() if f.get(kind)]
    return table(["us", "", "P50", "P90", "P99", "P99.9", "max", "mean", "n"], rows)


def run_text(run):
    engines = run["engines"]
    out = [f"## {run['vocabulary']}, {run['n_vocab']:,} tokens", "",
           table(["schemas", *engines], [[s.replace("_", " "), *(show(f[s]) for f in engines.values())]
                                         for s in ("schemas", *STATUSES)]), "",
           "Engines demand, inferd by default, that properties come in the order of the schema.  MaskBench has the instances "
           "in that order, except those of schemas that llguidance refuses; `inferd, any order` takes them in any.", ""]
    if engines[ORDERED]["cold"] is not None:
        out += ["All that each compiles:", "", times_table(engines, (*TIMES, "first", "compile", "refusal")), ""]
    for kind, rows in run["slowest"].items():
        out += [f"The slowest of {kind}: "
                + ", ".join(f"{us:,} us in {name} (mask {at})" for us, name, at in rows) + ".", ""] if rows else []
    if "both" in run:
        n = run["both"][ORDERED]["passed_by_all"]
        out += [f"The {n:,} schemas that all pass:", "",
                times_table(run["both"], (*TIMES, "compile")), ""]
    if "sample" in run:
        members = run["sample"]
        out += ["The sample that xgrammar was asked, 10 s each; times of the "
                f"{members[ORDERED]['passed_by_all']:,} that all pass:", "",
                table(["schemas", *members], [[s.replace("_", " "), *(show(f[s]) for f in members.values())]
                                              for s in STATUSES]), "", times_table(members, ("cold", "compile")), ""]
    refused = engines[ANY_ORDER]["refused_by"]
    out += ["What inferd refuses, by keyword:", "",
            table(["", "schemas"], [(k or "(no text)", n) for k, n in list(refused.items())[:REFUSALS_SHOWN]]), ""]
    rest = sum(list(refused.values())[REFUSALS_SHOWN:])
    out += [f"and {rest} others.", ""] if rest else []
    if run["differences"]:
        out += ["Where inferd, properties in any order, and the label differ, and what jsonschema with its FormatChecker "
                "says:", "",
                table(["schema", "status", "test", "at", "jsonschema", "error"],
                      [[d["id"], d["status"].replace("_", " "), d.get("test", ""), d.get("at", ""),
                        d.get("jsonschema", ""), d.get("error", "")[:100].replace("|", "\\|").replace("\n", " ")]
                       for d in run["differences"][:DIFFERENCES_SHOWN]]), ""]
        rest = len(run["differences"]) - DIFFERENCES_SHOWN
        out += [f"and {rest} others.", ""] if rest > 0 else []
    return out


def markdown(result):
    machine, data = result["machine"], result["data"]
    cold = "the first pass over the instances of a schema" + (
        f", the fastest of {result['repeat']} at each token" if result["repeat"] > 1 else "")
    cold += "; times are CPU time of the thread, not of the clock" if result.get("cpu_time") else ""
    out = [f"# {result['date']}, masks of structured output", "",
           f"One thread of {machine['cpus']} CPUs, {machine['cpu']}; load when it began {machine['load_before']}, when "
           f"it ended {machine['load_after']}.", "",
           f"inferd {result['commit']}; " + "; ".join(f"{k} {v}" for k, v in result["versions"].items()) + ".", "",
           f"MaskBench {data['commit'] or '(a folder)'}: {data['listed']:,} files listed, {data['schemas']:,} readable, "
           f"{data['instances']:,} instances, {data['valid']:,} of them valid; {data['chosen']:,} schemas asked.  Cold: "
           f"{cold}, all caches empty before it; warm: the second pass.  Written by `scripts/bench-masks`; how: "
           "[../README.md](../README.md).", ""]
    if result["goals"]:
        bound = lambda g: " ".join(f"{sign} {g[k]:,}" for k, sign in (("most", "≤"), ("least", "≥")) if g[k] is not None)
        out += [table(["goal", "measured", "must", ""], [[g["what"], show(g["value"]) if g["value"] >= 10 else g["value"],
                                                          bound(g), "met" if g["met"] else "**missed**"]
                                                         for g in result["goals"]]), ""]
    for run in result["runs"]:
        out += run_text(run)
    return "\n".join(out)
