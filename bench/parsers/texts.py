"""texts - what chat templates write for messages with reasoning, content and tool calls.

A text is what follows the prompt for the next turn in the conversation that ends with the message, without the mark
that ends the turn.  So the template defines which message a text is."""

import datetime
import json
import random
import re
from dataclasses import dataclass, field

import jinja2
import jinja2.ext
import jinja2.sandbox

SAID, THOUGHT = "It is so", "Let me see"
# The marks of reasoning that a prompt may end with, and those that close it.
REASONING = {"<think>": "</think>", "[THINK]": "[/THINK]", "<mm:think>": "</mm:think>", "<seed:think>": "</seed:think>",
             "<|START_THINKING|>": "<|END_THINKING|>", "<|inner_prefix|>": "<|inner_suffix|>",
             "Here are my reasoning steps:": "[BEGIN FINAL RESPONSE]"}
# Marks that end a turn with calls and no other one.
ENDS = r"(<SPECIAL_12>|<｜hy_eos:\w+｜>|<｜end▁of▁sentence｜>|<｜Assistant｜>|<\|calls\|>|<\|eom_id\|>|<\|tool_response>)+"
THINKING = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "thinking_mode": "enabled"}
NOT_THINKING = {"enable_thinking": False, "thinking": False}
PARTS = ["a", "Rome", " ", '"', "\n", "\\", "<b>", "{", "}", "[1]", "ü", "世界", "🚀", "3", ", x", ":", "=", "&", "/", "%"]


@dataclass
class Text:
    kind: str
    text: str
    message: dict  # reasoning, content, calls: [{name, arguments}]


@dataclass
class Turn:
    """A prompt, and texts that answer it."""
    messages: list
    tools: list
    kwargs: dict
    prompt: str
    whole: str = ""  # the conversation with the message
    texts: list = field(default_factory=list)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(words):
    raise jinja2.exceptions.TemplateError(words)


class Template:
    """As transformers renders it, but a template may change its own lists."""

    def __init__(self, source):
        env = jinja2.sandbox.SandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                  extensions=[Generation, jinja2.ext.loopcontrols])
        def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
            x = x if isinstance(x, (dict, list, tuple, str, int, float, type(None))) else list(x)
            return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        env.filters["tojson"] = tojson
        env.filters["from_json"] = json.loads
        env.globals["raise_exception"] = raise_exception
        env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 1, 1).strftime(f)
        self.template = env.from_string(source)
        self.lossy = "]<]minimax[>[" in source
        self.as_text = self._wants_text()

    def _wants_text(self):
        """Are arguments to be JSON text?  So it is where objects come out as Python's, or raise."""
        call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {"inferd_probe": "b"}}}
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            return "{'inferd_probe'" in self._render(messages, None, False)
        except Exception:
            return True

    def _render(self, messages, tools, prompt, kwargs=None):
        functions = json.dumps([t["function"] for t in tools or []], indent=4)
        return self.template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt,
                                    bos_token="", eos_token="", functions=functions, datetime="2026-01-01",
                                    **(kwargs or {}))

    def render(self, messages, tools, prompt, kwargs=None):
        shaped = []
        for m in messages:
            m = json.loads(json.dumps(m))
            for c in m.get("tool_calls", []):
                if self.as_text:
                    c["function"]["arguments"] = json.dumps(c["function"]["arguments"], ensure_ascii=False)
            shaped.append(m)
        return self._render(shaped, tools, prompt, kwargs)


# ---- messages


def draw_text(rng):
    return "".join(rng.choice(PARTS) for _ in range(rng.randrange(8)))


def draw_value(rng, depth):
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [draw_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return {k: draw_value(rng, depth - 1) for k in ["key", "other"][:rng.randrange(3)]}
    return [rng.randrange(-1000, 1000), rng.randrange(1000) / 8 - 60, rng.random() < 0.5, None, draw_text(rng)][kind]


def type_of(v):
    return {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array",
            dict: "object"}[type(v)]


def draw_calls(rng, n):
    tools, calls = [], []
    for name in ["get_weather", "read_file", "a"][:n]:
        arguments = {k: draw_value(rng, 2) for k in ["path", "n_lines", "x", "deep_value"][:rng.randrange(5)]}
        properties = {k: {"type": type_of(v), "description": "d"} for k, v in arguments.items()}
        tools.append({"type": "function", "function": {
            "name": name, "description": "d",
            "parameters": {"type": "object", "properties": properties, "required": []}}})
        calls.append({"name": name, "arguments": arguments})
    return tools, calls


def said(reasoning, content, calls, field_name="reasoning_content"):
    m = {"role": "assistant", "content": content}
    if reasoning:
        m[field_name] = reasoning
    if calls:
        m["tool_calls"] = [{"id": f"callid00{i}", "type": "function", "function": c} for i, c in enumerate(calls)]
    return m


def is_kept(v):
    """Does a tree of tags tell all of the value?  It says nothing of nulls, of what is empty, and of types inside."""
    parts = list(v.values()) if isinstance(v, dict) else v if isinstance(v, list) else None
    if parts is None:
        return v is not None
    return all(p is not None and p != {} and p != [] and is_kept(p) and
               not (isinstance(p, str) and (not p.strip() or p.strip().isdigit())) for p in parts)


# ---- texts


def shared(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def before_mark(text, n):
    """Where the mark begins that is open at n."""
    for i in range(n - 1, max(-1, n - 80), -1):
        if text[i] in ">]\"\n":
            return n
        if text[i] in "<[" and re.match(r"[<\[](/?[A-Za-z]|[|｜])", text[i:]):
            return i
    return n


def answer(prompt, whole):
    if whole.startswith(prompt):
        rest = whole[len(prompt):]
    else:
        rest = whole[before_mark(whole, shared(prompt, whole)):]
        last = re.search(r"<[^<>]*>\s*$", prompt)  # a prompt may have more before its last mark than an earlier turn
        if last and rest.startswith(last[0].rstrip()):
            rest = rest[len(last[0].rstrip()):]
    opens = prompt.rstrip()
    for mark, close in REASONING.items():
        if opens.endswith(mark) and close not in rest:
            rest = close + "\n\n" + rest.lstrip("\n")
    return rest


def end_of_turn(template, messages, tools):
    whole = template.render(messages + [said(None, SAID, None)], tools, False)
    return whole[whole.rindex(SAID) + len(SAID):]


def without(text, end):
    n = 0
    while n < min(len(text), len(end)) and text[-1 - n] == end[-1 - n]:
        n += 1
    cut = len(text) - n
    open_at = before_mark(text, cut)
    if open_at < cut:  # in the middle of a mark
        cut = next((i + 1 for i in range(cut, len(text)) if text[i] in ">]"), len(text))
    if re.search(r"<\|close\|>\w+$", text[:cut]):  # the mark goes on
        cut += len("<|sep|>")
    return re.sub(ENDS + "$", "", text[:cut].rstrip()).rstrip()


def reasoning_field(template):
    for name in ("reasoning_content", "reasoning", "thinking"):
        try:
            if THOUGHT in template.render([{"role": "user", "content": "hi"}, said(THOUGHT, SAID, None, name)], None, False):
                return name
        except Exception:
            pass
    return None


KINDS = [("content", 0, 1, 0), ("call", 0, 0, 1), ("calls", 0, 0, 3), ("content, call", 0, 1, 1),
         ("reasoning, content", 1, 1, 0), ("reasoning, call", 1, 0, 1), ("reasoning, content, calls", 1, 1, 2)]


def make_turn(template, rng, kind, reasons, speaks, n_calls, name, quiet=False):
    """A turn with one text; None: the template does not write it."""
    tools, calls = draw_calls(rng, max(n_calls, 1))
    calls = calls[:n_calls]
    if template.lossy and not all(is_kept(c["arguments"]) for c in calls):
        for c in calls:
            c["arguments"] = {k: v for k, v in c["arguments"].items() if is_kept(v)}
    messages = [{"role": "user", "content": "hi"}]
    kwargs = THINKING if reasons else NOT_THINKING if quiet else {}
    try:
        prompt = template.render(messages, tools, True, kwargs)
        end = end_of_turn(template, messages, tools)
        message = said(THOUGHT if reasons else None, SAID if speaks else "", calls, name or "")
        whole = template.render(messages + [message], tools, False, kwargs)
    except Exception:
        return None
    if (reasons and THOUGHT not in whole) or (speaks and SAID not in whole):
        return None
    if any(c["name"] not in whole[shared(prompt, whole):] for c in calls):
        return None
    wanted = {"reasoning": THOUGHT if reasons else "", "content": SAID if speaks else "", "calls": calls}
    text = without(answer(prompt, whole), end)
    if re.search(ENDS, text):
        return None  # of two turns
    if "<|channel|>analysis<|message|>" + SAID in text:  # content beside a call is reasoning here
        wanted = {**wanted, "reasoning": SAID, "content": ""}
    if reasons and text.startswith(THOUGHT) and prompt.rstrip().endswith(">") and "/" in prompt[prompt.rindex("<"):]:
        return None  # the prompt closes the reasoning
    return Turn(messages, tools, kwargs, prompt, whole, [Text(kind, text, wanted)])


def more_texts(turn, follows):
    """Texts that no template writes, and the message that they are since all text must arrive: what follows a call
    (where something can), and a mark that was begun only."""
    base = turn.texts[0]
    if base.kind == "call" and follows:
        yield Text("call, content", base.text + "\n" + SAID, {**base.message, "content": SAID})
    if base.kind == "content, call" and base.message["content"]:
        at = base.text.find(SAID)
        lead = base.text[at + len(SAID):].lstrip()
        mark = re.match(r"<[^>]*>|\[[A-Z_]+\]", lead)
        if at >= 0 and mark and len(mark[0]) > 3:
            half = base.text[:at + len(SAID)] + " " + mark[0][:-2]
            yield Text("half a mark", half, {**base.message, "calls": [], "content": SAID + " " + mark[0][:-2]})


def turns(source, seed, rounds):
    """The turns of a template; each text is of one kind."""
    template = Template(source)
    name = reasoning_field(template)
    bare = make_turn(template, random.Random(seed), "content", 0, 1, 0, name)
    follows = bare is not None and re.fullmatch(r"\s*(<think>)?\s*(</\S*think>)?\s*" + SAID, bare.texts[0].text) and \
        make_turn(template, random.Random(seed), "calls", 0, 0, 2, name) is not None
    for kind, reasons, speaks, n_calls in KINDS:
        rng = random.Random(f"{seed} {kind}")
        for i in range(rounds if n_calls else 2):
            turn = make_turn(template, rng, kind, reasons, speaks, n_calls, name, i % 2 == 1)
            if turn:
                turn.texts += more_texts(turn, follows)
                yield turn
