"""A session of an agent, replayed: every turn sends all turns before it.

    play(s, "messages", turns=200, tokens=65536)    s: a scripted daemon (scripted.py), which plays the model

Each turn is a tool call and its result, every tenth an answer and the next question.  The model writes its calls in
tokens that their text alone would not have, as models do.  What a turn can find in the cache is what the turn before
sent or generated, by its own usage."""

import dataclasses
import json
import random
import re
import time

WORDS = "the file has a line of code that we read and change, so that each test of the daemon is run again here".split()
TOOL = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}, "required": ["path", "line"]}


@dataclasses.dataclass
class Turn:
    prompt: int  # tokens of the prompt, from the cache, generated
    cached: int
    output: int
    ttft: float  # seconds to the first event with output
    explained: dict  # of x-inferd-explain


def explanation_of(header):
    """byte=1, in="messages[2]", cause=grown, ... as a dictionary."""
    return {k: v.strip('"') if v.startswith('"') else int(v) if v.isdigit() else v
            for k, v in re.findall(r'(\w+)=("[^"]*"|[^, ]+)', header)}


def events_of(response):
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


class Chat:
    path = "/v1/chat/completions"

    def __init__(self):
        self.messages = [{"role": "system", "content": "You change code. " * 40}]

    def body(self):
        return {"model": "m", "stream": True, "stream_options": {"include_usage": True}, "messages": self.messages, "tools": [
            {"type": "function", "function": {"name": "read_line", "description": "of a file", "parameters": TOOL}}]}

    def user(self, text):
        self.messages.append({"role": "user", "content": text})

    def result(self, text):
        self.messages.append({"role": "tool", "tool_call_id": self.messages[-1]["tool_calls"][0]["id"], "content": text})

    def take(self, events):
        """Appends the answer; when its first part came, and the usage."""
        text, calls, at, usage = "", [], None, None
        for e in events:
            usage = e.get("usage") or usage
            for choice in e["choices"]:
                delta = choice["delta"]
                at = at or (time.perf_counter() if delta.get("content") or delta.get("tool_calls") else None)
                text += delta.get("content") or ""
                for c in delta.get("tool_calls") or []:
                    if c.get("id"):
                        calls.append({"id": c["id"], "type": "function", "function": {"name": c["function"]["name"], "arguments": ""}})
                    calls[-1]["function"]["arguments"] += c["function"].get("arguments") or ""
        self.messages.append({"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})})
        return at, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


class Responses:
    path = "/v1/responses"

    def __init__(self):
        self.items = []

    def body(self):
        return {"model": "m", "stream": True, "store": False, "instructions": "You change code. " * 40, "input": self.items, "tools": [
            {"type": "function", "name": "read_line", "description": "of a file", "parameters": TOOL, "strict": False}]}

    def user(self, text):
        self.items.append({"role": "user", "content": [{"type": "input_text", "text": text}]})

    def result(self, text):
        self.items.append({"type": "function_call_output", "call_id": self.items[-1]["call_id"], "output": text})

    def take(self, events):
        at, usage = None, None
        for e in events:
            at = at or (time.perf_counter() if e["type"].endswith(".delta") else None)
            if e["type"] == "response.output_item.done":
                self.items.append(e["item"])
            if e["type"] == "response.completed":
                usage = e["response"]["usage"]
        return at, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


class Messages:
    path = "/v1/messages"

    def __init__(self):
        self.messages = []

    def body(self):
        # The billing block differs from turn to turn; it is no part of the prompt.
        billing = f"x-anthropic-billing-header: cc_version=2.1.330.{random.randrange(1 << 20):x};"
        return {"model": "m", "stream": True, "max_tokens": 1000, "messages": self.messages,
                "system": [{"type": "text", "text": billing}, {"type": "text", "text": "You change code. " * 40}],
                "tools": [{"name": "read_line", "description": "of a file", "input_schema": TOOL}]}

    def user(self, text):
        self.messages.append({"role": "user", "content": text})

    def result(self, text):
        call = self.messages[-1]["content"][-1]
        self.messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": text}]})

    def take(self, events):
        at, blocks, usage = None, [], {}
        for e in events:
            usage.update(e.get("usage") or e.get("message", {}).get("usage") or {})
            if e["type"] == "content_block_start":
                blocks.append({**e["content_block"], "json": ""})
            if e["type"] == "content_block_delta":
                at = at or time.perf_counter()
                if e["delta"]["type"] == "text_delta":
                    blocks[-1]["text"] += e["delta"]["text"]
                else:
                    blocks[-1]["json"] += e["delta"]["partial_json"]
        for b in blocks:
            arguments = b.pop("json")
            if b["type"] == "tool_use":
                b["input"] = json.loads(arguments)
        self.messages.append({"role": "assistant", "content": blocks})
        cached = usage.get("cache_read_input_tokens") or 0
        return at, usage["input_tokens"] + cached, cached, usage["output_tokens"]


PROTOCOLS = {"chat": Chat, "responses": Responses, "messages": Messages}


def split(text, rng):
    """In parts that become tokens by themselves: not those that the whole text has."""
    parts = []
    while text:
        n = rng.randint(1, 12)
        parts.append(text[:n])
        text = text[n:]
    return parts


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def sizes(turns, tokens, steady):
    """Words of each turn's input.  As agents do, the session reads much in its first turns (seven eighths of the
    tokens in the first 16), unless it is `steady`.  A word has about 1.35 tokens, an answer about 65."""
    words = (tokens - 65 * turns) / 1.35
    early = 0 if steady or turns < 64 else 16
    return [int(words * 7 / 8 / early) if i < early else int(words * (1 / 8 if early else 1) / (turns - early)) for i in range(turns)]


def play(s, protocol, turns, tokens, seed=1, steady=False, on_turn=None):
    """The turns of a session that grows to about so many tokens."""
    rng, session, played = random.Random(seed), PROTOCOLS[protocol](), []
    n_words = sizes(turns, tokens, steady)
    session.user(f"Session {protocol} {seed}: change the code.")
    for i in range(turns):
        name = f"{protocol}-{seed}-{i}"
        if i % 10 == 9:
            say = split(f"Done with {name}: {words(rng, 20)}.", rng)
        else:
            say = ["<tool_call>", *split(f'\n{{"name": "read_line", "arguments": {{"path": "{name} {words(rng, 10)}", "line": {i}}}}}\n',
                                         rng), "</tool_call>"]
        s.say("", say, once=True)
        body = json.dumps(session.body()).encode()
        start = time.perf_counter()
        with s.http.stream("POST", session.path, content=body,
                           headers={"x-inferd-explain": "1", "content-type": "application/json"}) as r:
            assert r.status_code == 200, r.read()
            at, prompt, cached, output = session.take(events_of(r))
            turn = Turn(prompt, cached, output, at - start, explanation_of(r.headers["x-inferd-explain"]))
        played.append(turn)
        if on_turn:
            on_turn(i, turn)
        if i % 10 == 9:
            session.user(f"Next, please: {words(rng, n_words[i])}")
        else:
            session.result(words(rng, n_words[i]))
    return played


def reuse(played):
    """The part of the tokens that earlier turns sent or generated that came from the cache."""
    known = sum(a.prompt + a.output for a in played[:-1])
    return sum(b.cached for b in played[1:]) / known
