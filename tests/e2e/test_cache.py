"""The cache explains itself: where a prompt leaves what was computed before, and why; what can be avoided is avoided."""

import concurrent.futures
import copy
import dataclasses
import json
import random
import re
import signal
import time

import pytest
import scripted
import sessions
from sessions import explanation_of

# As many templates do: reasoning of earlier turns is left out.
THINKS = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace(
    "{{ m.content or '' }}", "{{ (m.content or '').split('</think>')[-1].lstrip('\\n') }}"))
HEAD = {"x-inferd-explain": "1"}


@pytest.fixture(scope="module")
def s(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("cache"), THINKS,
                          lambda m: scripted.config_of(m, log={"explain": True}))


def ask(s, messages, **body):
    r = s.http.post("/v1/chat/completions", json={"model": "m", "messages": messages, **body}, headers=HEAD)
    assert r.status_code == 200, r.text
    return r.json(), explanation_of(r.headers["x-inferd-explain"])


def say(s, when, what):
    """To a prompt whose last message has this text."""
    s.say(when, what, tail=len(when) + 70)


def user(text):
    return {"role": "user", "content": text}


def answered(answer):
    return {k: v for k, v in answer["choices"][0]["message"].items() if k in ("role", "content", "tool_calls")}


def prompts(s, end):
    found = re.search(rf'inferd_prompt_prefixes_total{{model="m",end="{end}"}} (\d+)', s.http.get("/metrics").text)
    return int(found.group(1))


LONG = "Tell me a long story about the sea and the wind and the rain. " * 8


def test_a_conversation_grows(s):
    say(s, "the first of two", "It is a fine day, and the sea is calm.")
    say(s, "the second of two", "It still is.")
    turns = [user(LONG + "the first of two")]
    before = prompts(s, "grown")
    answer, why = ask(s, turns)
    assert why["cause"] in ("first", "changed") and why["prompt"] == answer["usage"]["prompt_tokens"]
    turns += [answered(answer), user("the second of two")]
    again, why = ask(s, turns)
    assert why["cause"] == "grown" and why["in"] == "messages[2]"
    known = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert why["known"] == known and why["cached"] == again["usage"]["prompt_tokens_details"]["cached_tokens"] >= known - 17
    tokens = s.http.post("/tokenize", json={"model": "m", "messages": turns}).json()["tokens"]
    prompt = s.http.post("/detokenize", json={"model": "m", "tokens": tokens}).json()["prompt"]
    assert prompt.encode()[:why["byte"]].decode().endswith("the sea is calm.<|im_end|>")
    assert prompts(s, "grown") == before + 1
    line = next(l for l in reversed(s.stderr().splitlines()) if "done" in l)
    assert "prefix_end=grown" in line and f"prefix_tokens={known}" in line and 'prefix_in="messages[2]"' in line


def test_streams_say_it_too(s):
    say(s, "stream one", "One.")
    say(s, "stream two", "Two.")
    turns = [user(LONG + "stream one")]
    answer, _ = ask(s, turns)
    turns += [answered(answer), user("stream two")]
    with s.http.stream("POST", "/v1/chat/completions", json={"model": "m", "messages": turns, "stream": True}, headers=HEAD) as r:
        why = explanation_of(r.headers["x-inferd-explain"])
        assert '"T' in r.read().decode()
    assert why["cause"] == "grown" and why["in"] == "messages[2]"


def test_generated_tokens_are_kept(s):
    say(s, "odd tokens", ["It i", "s a fi", "ne da", "y, and th", "e sea is ca", "lm tod", "ay."])
    say(s, "even tokens", "So it is.")
    resent, odd = s.metric("inferd_answers_resent_total"), s.metric("inferd_answers_retokenised_total")
    turns = [user(LONG + "odd tokens")]
    answer, _ = ask(s, turns)
    turns += [answered(answer), user("even tokens")]
    canonical = s.http.post("/tokenize", json={"model": "m", "messages": turns}).json()["count"]
    again, why = ask(s, turns)
    assert why["cause"] == "grown" and why["known"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    assert again["usage"]["prompt_tokens"] > canonical
    assert s.metric("inferd_answers_resent_total") == resent + 1
    assert s.metric("inferd_answers_retokenised_total") == odd + 1
    # With a seed the tokens depend on the body alone.
    seeded, why = ask(s, turns, seed=7)
    assert seeded["usage"]["prompt_tokens"] == canonical
    assert why["cause"] == "retokenised" and why["in"] == "messages[1]"


def test_count_tokens_counts_the_tokens_that_are_kept(s):
    say(s, "odd count", ["It i", "s a fi", "ne da", "y, and th", "e sea is ca", "lm tod", "ay."])
    say(s, "even count", "So it is.")
    body = {"model": "m", "messages": [user(LONG + "odd count")]}
    answer = s.http.post("/v1/messages", json={**body, "max_tokens": 50}).json()
    body["messages"] += [{"role": "assistant", "content": answer["content"]}, user("even count")]
    resent = s.metric("inferd_answers_resent_total")
    counted = s.http.post("/v1/messages/count_tokens", json=body, headers=HEAD)
    assert "x-inferd-explain" not in counted.headers and s.metric("inferd_answers_resent_total") == resent
    parts = s.metric("inferd_transcript_bytes")
    s.http.post("/v1/messages/count_tokens", json={**body, "messages": [user("new " + LONG)]})
    assert s.metric("inferd_transcript_bytes") == parts
    usage = s.http.post("/v1/messages", json={**body, "max_tokens": 50}).json()["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_dropped_reasoning_is_named(s):
    say(s, "think of it", "<think>\nThe sea is large, and the wind is strong.\n</think>\n\nIt is large.")
    say(s, "think again", "Yes.")
    turns = [user(LONG + "think of it")]
    answer, _ = ask(s, turns)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"].startswith("The sea")
    before = prompts(s, "reasoning_dropped")
    _, why = ask(s, turns + [answered(answer), user("think again")])
    assert why["cause"] == "reasoning_dropped" and why["in"] == "messages[1]"
    assert prompts(s, "reasoning_dropped") == before + 1


def ask_messages(s, messages, **body):
    r = s.http.post("/v1/messages", json={"model": "m", "max_tokens": 100, "messages": messages, **body}, headers=HEAD)
    assert r.status_code == 200, r.text
    return r.json(), explanation_of(r.headers["x-inferd-explain"])


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
TOOL = {"type": "object", "properties": {"a": {"type": "string"}}}


# What stands behind the reasoning begins as the mark of the reasoning does.
@pytest.mark.parametrize("said", [CALL, "<table>x</table>", "Hello."])
def test_dropped_reasoning_is_named_whatever_follows_it(s, said):
    asked = f"whatever follows {len(said)}"
    say(s, asked, f"<think>\nThe sea is large.\n</think>\n\n{said}")
    say(s, "tool_response>", "Yes.")
    say(s, "more of it", "Yes.")
    tools = [{"name": "f", "input_schema": TOOL}]
    turns = [user(LONG + asked)]
    answer, _ = ask_messages(s, turns, tools=tools)
    assert answer["content"][0]["type"] == "thinking"
    turns.append({"role": "assistant", "content": answer["content"]})
    call = answer["content"][-1]
    turns.append(user([{"type": "tool_result", "tool_use_id": call["id"], "content": "c"}] if call["type"] == "tool_use" else "more of it"))
    _, why = ask_messages(s, turns, tools=tools)
    assert why["cause"] == "reasoning_dropped" and why["in"] == "messages[1]", why


def test_dropped_reasoning_of_harmony_is_named(launch, tmp_path):
    """Its marks are several control tokens, with words between them."""
    s = scripted.start(launch, tmp_path, scripted.HARMONY)
    say(s, "think of it", "<|channel|>analysis<|message|>The sea is large.<|end|><|start|>assistant"
          "<|channel|>final<|message|>It is large.<|return|>")
    say(s, "and ", "<|channel|>final<|message|>Fine.<|return|>")
    turns = [user(LONG + "think of it")]
    answer, _ = ask_messages(s, turns)
    turns += [{"role": "assistant", "content": answer["content"]}, user("and then")]
    answer, why = ask_messages(s, turns)
    assert why["cause"] == "reasoning_dropped" and why["in"] == "messages[1]", why
    # An answer without reasoning is all there; the template ends it with another token.
    turns += [{"role": "assistant", "content": answer["content"]}, user("and more")]
    _, why = ask_messages(s, turns)
    assert why["cause"] == "grown" and why["in"] == "messages[4]", why


WIDE = '{"n": 18446744073709551615, "m": [-12345678901234567890123, 1e+20]}'


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_integers_beyond_64_bits_come_back_as_they_are(s, protocol):
    asked = f"a large number over {protocol}"
    say(s, asked, '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>' % WIDE)
    say(s, "tool_response>", "Fine.")
    asked = user(LONG + asked)
    if protocol == "chat":
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        answer, _ = ask(s, [asked], tools=tools)
        call = answer["choices"][0]["message"]["tool_calls"][0]
        arguments = json.loads(call["function"]["arguments"])
        _, why = ask(s, [asked, answered(answer), {"role": "tool", "tool_call_id": call["id"], "content": "so"}], tools=tools)
    elif protocol == "responses":
        body = {"model": "m", "store": False, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]}
        output = s.http.post("/v1/responses", json={**body, "input": [asked]}).json()["output"]
        arguments = json.loads(output[-1]["arguments"])
        result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "so"}
        r = s.http.post("/v1/responses", json={**body, "input": [asked, *output, result]}, headers=HEAD)
        why = explanation_of(r.headers["x-inferd-explain"])
    else:
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        answer, _ = ask_messages(s, [asked], tools=tools)
        call = answer["content"][-1]
        arguments = call["input"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "so"}
        _, why = ask_messages(s, [asked, {"role": "assistant", "content": answer["content"]}, user([result])], tools=tools)
    assert arguments == json.loads(WIDE)
    assert why["cause"] == "grown", why


BARE = dataclasses.replace(scripted.HERMES, template="{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                           "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
WIDE_CALLS = {
    "glm": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>18446744073709551617</arg_value>\n</tool_call>",
    "pythonic": "[f(n=18446744073709551617)]",
}


@pytest.mark.parametrize("notation", WIDE_CALLS)
def test_such_integers_keep_their_digits_where_the_daemon_writes_the_calls(launch, tmp_path, notation):
    """The template writes none."""
    def config(model):
        made = scripted.config_of(model)
        made["models"][0]["tool_format"] = notation
        return made
    s = scripted.start(launch, tmp_path, BARE, config)
    say(s, "a large number", WIDE_CALLS[notation])
    say(s, "tool_response>", "Fine.")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}]
    asked = user(LONG + "a large number")
    answer, _ = ask(s, [asked], tools=tools)
    call = answer["choices"][0]["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"n": 18446744073709551617}
    _, why = ask(s, [asked, answered(answer), {"role": "tool", "tool_call_id": call["id"], "content": "so"}], tools=tools)
    assert why["cause"] == "grown", why


def test_an_earlier_conversation_is_known_behind_many_others(s):
    say(s, "is one of many.", "Fine.")
    system = {"role": "system", "content": "You are many."}
    ask(s, [system, user(LONG + "The wind is one of many.")])
    for i in range(80):
        ask(s, [system, user(f"{i} is one of many.")])
    _, why = ask(s, [system, user(LONG + "The rain is one of many.")])
    assert why["cause"] == "changed" and why["in"] == "messages[1]" and why["byte"] > len(LONG), why
    assert why["known"] >= why["cached"] >= why["known"] - 17


def test_more_is_cached_than_is_kept(s):
    """A prompt with a seed and other tokens than those of the answers is no kept conversation."""
    say(s, "a seed", ["It i", "s a fi", "ne da", "y, and th", "e sea is ca", "lm tod", "ay."])
    say(s, "a seed too", "So it is.")
    turns = [user(LONG + "a seed")]
    answer, _ = ask(s, turns)
    turns += [answered(answer), user(LONG + "a seed too")]
    _, why = ask(s, turns, seed=7)
    assert why["cause"] == "retokenised"
    before, known = prompts(s, "not_kept"), why["known"]
    again, why = ask(s, turns, seed=7)
    assert why["cause"] == "not_kept" and why["known"] == why["cached"] > known, why
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == why["cached"]
    assert prompts(s, "not_kept") == before + 1


def test_what_a_client_saw_before_it_left_is_known(s):
    say(s, "a story", ["It was ", "a dark and ", "stormy night. "] + ["And the rain fell, "] * 400)
    say(s, "go on", "It fell.")
    turns = [user(LONG + "a story")]
    seen = ""
    with s.http.stream("POST", "/v1/chat/completions", json={"model": "m", "messages": turns, "stream": True}) as r:
        for e in sessions.events_of(r):
            seen += e["choices"][0]["delta"].get("content") or ""
            if len(seen) > 60:
                break
    s.settled()
    _, why = ask(s, turns + [{"role": "assistant", "content": seen}, user("go on")])
    # Usually it went on for some tokens, and is cut there now.
    assert why["cause"] in ("answer_changed", "grown") and why["in"] == "messages[2]"
    assert why["known"] > s.http.post("/tokenize", json={"model": "m", "messages": turns}).json()["count"]


def test_what_changed_is_named(s):
    say(s, "how is the weather", "Good, I think.")
    say(s, "and tomorrow", "The same.")
    turns = [{"role": "system", "content": "You are at sea. " * 30}, user(LONG + "how is the weather")]
    answer, _ = ask(s, turns)
    changed = [{"role": "system", "content": "You are at sea. " * 29 + "You are at home."}, *turns[1:]]
    _, why = ask(s, changed)
    assert why["cause"] == "changed" and why["in"] == "messages[0]"
    edited = {**answered(answer), "content": "Good, I hope."}
    _, why = ask(s, [*turns, edited, user("and tomorrow")])
    assert why["cause"] == "answer_changed" and why["in"] == "messages[2]"


def test_responses_and_messages_name_their_own(s):
    say(s, "in their words", "Certainly.")
    say(s, "in other words", "As you like.")
    body = {"model": "m", "store": False, "instructions": "Be brief.", "input": [user(LONG + "in their words")]}
    r = s.http.post("/v1/responses", json=body)
    body["input"] += [*r.json()["output"], user("in other words")]
    why = explanation_of(s.http.post("/v1/responses", json=body, headers=HEAD).headers["x-inferd-explain"])
    assert why["cause"] == "grown" and why["in"] == "input[2]"
    body = {"model": "m", "max_tokens": 50, "system": "Be brief!", "messages": [user(LONG + "in their words")]}
    r = s.http.post("/v1/messages", json=body)
    body["messages"] += [{"role": "assistant", "content": r.json()["content"]}, user("in other words")]
    why = explanation_of(s.http.post("/v1/messages", json=body, headers=HEAD).headers["x-inferd-explain"])
    assert why["cause"] == "grown" and why["in"] == "messages[2]"


def words(seed):
    return " ".join(f"w{random.Random(f'{seed} {i}').randrange(10**6)}" for i in range(40))


def changed(body, path):
    """A copy in which one letter in the middle of this text is another one."""
    body = copy.deepcopy(body)
    where = body
    for key in path[:-1]:
        where = where[key]
    text = where[path[-1]]
    where[path[-1]] = text[:len(text) // 2] + "Z" + text[len(text) // 2 + 1:]
    return body


def test_items_that_share_a_turn_have_their_own_names(s):
    """Neighbours of one side are one turn, and some of them one message of the prompt."""
    s.say("<|im_start|>assistant\n", "Fine.", tail=30)
    count = iter(range(1000))

    def expect(path, make, at, where):
        body = make([words(next(count)) for _ in range(12)])
        assert s.http.post(path, json=body).status_code == 200
        r = s.http.post(path, json=changed(body, at), headers=HEAD)
        assert explanation_of(r.headers["x-inferd-explain"])["in"] == where, (path, at)

    def use(i, w):
        return {"type": "tool_use", "id": f"toolu_{i}", "name": "read", "input": {"x": w, "y": "read it"}}

    def result(i, w):
        return {"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": w}

    def messages(w):
        return {"model": "m", "max_tokens": 10, "system": w[0], "messages": [
            user(w[1]), {"role": "system", "content": w[2]},
            {"role": "assistant", "content": [{"type": "text", "text": w[3]}, use(1, w[4])]},
            {"role": "assistant", "content": [use(2, w[5]), use(3, w[6])]},
            user([result(1, w[7]), result(3, w[8])]), user([result(2, w[9])]), {"role": "system", "content": w[10]},
            user(w[11])]}

    for at in ((0, "content"), (1, "content"), (2, "content", 0, "text"), (2, "content", 1, "input", "x"),
               (3, "content", 0, "input", "x"), (3, "content", 1, "input", "x"), (4, "content", 0, "content"),
               (4, "content", 1, "content"), (5, "content", 0, "content"), (6, "content"), (7, "content")):
        expect("/v1/messages", messages, ("messages", *at), f"messages[{at[0]}]")
    expect("/v1/messages", messages, ("system",), "system")

    def call(i, w):
        return {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": json.dumps({"x": w})}

    def output(i, w):
        return {"type": "function_call_output", "call_id": f"c{i}", "output": w}

    def responses(w):
        return {"model": "m", "max_output_tokens": 10, "store": False, "instructions": w[0], "input": [
            {"role": "developer", "content": w[1]}, user(w[2]), user(w[3]), {"role": "assistant", "content": w[4]},
            call(1, w[5]), call(2, w[6]), output(1, w[7]), output(2, w[8]), user(w[9]),
            {"role": "developer", "content": w[10]}]}

    expect("/v1/responses", responses, ("instructions",), "instructions")
    for i, member in enumerate(("content",) * 4 + ("arguments",) * 2 + ("output",) * 2 + ("content",) * 2):
        expect("/v1/responses", responses, ("input", i, member), f"input[{i}]")

    # An item more at the end of a turn.
    body = responses([words(next(count)) for _ in range(12)])
    for n in range(4, 10):
        s.http.post("/v1/responses", json={**body, "input": body["input"][:n]})
        more = s.http.post("/v1/responses", json={**body, "input": body["input"][:n + 1]}, headers=HEAD)
        assert explanation_of(more.headers["x-inferd-explain"])["in"] == f"input[{n}]"


# As those of Llama 3.
SINGLE = dataclasses.replace(scripted.HERMES, template="{% for m in messages if m.tool_calls and m.tool_calls | length > 1 %}"
                             "{{ raise_exception('one call') }}{% endfor %}" + scripted.HERMES.template)


def item_named(s, items, i, member, text):
    """The place of a letter that changes in item i."""
    body = {"model": "m", "max_output_tokens": 10, "store": False, "input": items}
    assert s.http.post("/v1/responses", json=body).status_code == 200
    edited = copy.deepcopy(items)
    edited[i][member] = edited[i][member].replace(text, text[:-1] + "Z")
    assert edited != items
    r = s.http.post("/v1/responses", json={**body, "input": edited}, headers=HEAD)
    return explanation_of(r.headers["x-inferd-explain"])["in"]


def function_call(i, name, arguments):
    return {"type": "function_call", "call_id": f"c{i}", "name": name, "arguments": json.dumps(arguments)}


def function_output(i, text):
    return {"type": "function_call_output", "call_id": f"c{i}", "output": text}


@pytest.mark.parametrize("content", ["a", "o", "words of it"])
def test_calls_of_one_message_each_have_their_names(launch, tmp_path, content):
    s = scripted.start(launch, tmp_path, SINGLE)
    s.say("<|im_start|>assistant\n", "Fine.", tail=30)
    items = [user(words(content)), {"role": "assistant", "content": content}, function_call(1, "a", {"x": words(1)}),
             function_call(2, "b", {"x": words(2)}), function_call(3, "a", {"x": words(3)}),
             function_output(3, words(4)), function_output(1, "o"), function_output(2, words(6)), user(words(7))]
    for i, member in [(2, "arguments"), (3, "arguments"), (4, "arguments"), (5, "output"), (7, "output"), (8, "content")]:
        text = items[i][member].rstrip('"}').split(" ")[-1]
        assert item_named(s, items, i, member, text) == f"input[{i}]"
    assert item_named(s, items, 6, "output", "o") == "input[6]"
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": f, "arguments": json.dumps({"x": words(n)})}} for n, f in enumerate("ab")]
    turns = [user("go"), {"role": "assistant", "content": content, "tool_calls": calls}] + [
        {"role": "tool", "tool_call_id": c["id"], "content": content} for c in calls] + [user("more")]
    ask(s, turns)
    for at in [(1, "tool_calls", n, "function", "arguments") for n in (1, 0)] + [(2, "content"), (3, "content")]:
        _, why = ask(s, changed({"messages": turns}, ("messages", *at))["messages"])
        assert why["in"] == f"messages[{at[0]}]", at


# The second writes the notation as data of the message.
@pytest.mark.parametrize("written", ['{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
                                     "{{ call.function | tojson }}"])
def test_names_that_are_words_of_the_notation(launch, tmp_path, written):
    family = dataclasses.replace(scripted.HERMES, template=re.sub(r'\{"name": .*', lambda _: written, scripted.HERMES.template))
    s = scripted.start(launch, tmp_path, family)
    s.say("<|im_start|>assistant\n", "Fine.", tail=30)
    for name in ["call", "name", "tool", "arguments", "a", "get_weather"]:
        items = [user(f"go {name}"), function_call(1, "f", {"a": "two words"}), function_call(2, name, {"a": "one"}),
                 function_call(3, name, {"a": "last"}), function_output(1, "r1"), function_output(2, "r2"),
                 function_output(3, "r3"), user("more")]
        for i, text in [(1, "two"), (1, "words"), (2, "one"), (3, "last")]:
            assert item_named(s, items, i, "arguments", text) == f"input[{i}]", (name, text)


def test_what_is_not_kept_is_off(s):
    say(s, "off", "Off.")
    body = {"model": "m", "messages": [user("off")]}
    r = s.http.post("/v1/chat/completions", json={**body, "cache_prompt": False}, headers=HEAD)
    assert r.headers.get("x-inferd-explain") == "off", r.text
    assert "x-inferd-explain" not in s.http.post("/v1/chat/completions", json=body).headers
    r = s.http.post("/v1/chat/completions", json=body, headers={"x-inferd-explain": "yes"})
    assert r.status_code == 400 and r.json()["error"]["param"] == "x-inferd-explain"


def test_an_eviction_is_named(launch, tmp_path):
    s = scripted.start(launch, tmp_path, THINKS, lambda m: {
        "devices": [{"kind": "cpu", "memory": "8MiB"}], "models": [{"name": "m", "path": str(m), "max_context": 16384}]})
    s.say("", "Fine.")
    turns = [user("keep this: " + LONG * 4)]
    answer, _ = ask(s, turns)
    turns += [answered(answer), user("again")]
    for i in range(12):
        ask(s, [user(f"{i} other: " + LONG * 30)])
    again, why = ask(s, turns)
    assert why["cause"] == "evicted" and why["cached"] < why["known"] - 64, why
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == why["cached"]
    assert ask(s, turns)[1]["cause"] == "grown"  # it is back


def test_tenants_are_apart(launch, tmp_path):
    keys = ["a" * 16, "b" * 16]
    s = scripted.start(launch, tmp_path, THINKS, lambda m: scripted.config_of(
        m, tenants=[{"name": n, "key": k} for n, k in zip("ab", keys)]))
    s.say("", "Fine.")

    def explained(key):
        r = s.http.post("/v1/chat/completions", json={"model": "m", "messages": [user(LONG)]},
                        headers={**HEAD, "authorization": f"Bearer {key}"})
        return explanation_of(r.headers["x-inferd-explain"])
    assert explained(keys[0])["cause"] == "first"
    assert explained(keys[0])["cause"] == "grown"
    assert explained(keys[1])["cause"] == "first" and explained(keys[1])["known"] > 0


def test_nothing_is_kept_without_memory(launch, tmp_path):
    s = scripted.start(launch, tmp_path, THINKS, lambda m: scripted.config_of(m, limits={"transcript_bytes_max": 0}))
    s.say("", "Fine.")
    r = [s.http.post("/v1/chat/completions", json={"model": "m", "messages": [user(LONG)]}, headers=HEAD) for _ in range(2)][1]
    assert r.headers["x-inferd-explain"] == "off" and r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert s.metric("inferd_transcript_bytes") == 0


@pytest.mark.parametrize("protocol", list(sessions.PROTOCOLS))
def test_a_session_is_cached(launch, tmp_path, protocol):
    s = scripted.start(launch, tmp_path)
    played = sessions.play(s, protocol, turns=24, tokens=8000)
    assert played[-1].prompt > 6500 and sessions.reuse(played) > 0.97
    assert all(t.explained["cause"] == "grown" for t in played[1:]), [t.explained for t in played]
    assert s.metric("inferd_answers_retokenised_total") > 15


def test_a_reload_changes_the_memory(launch, tmp_path):
    s = scripted.start(launch, tmp_path, THINKS)
    s.say("", "Fine.")

    def again():
        return s.http.post("/v1/chat/completions", json={"model": "m", "messages": [user(LONG)]}, headers=HEAD).headers["x-inferd-explain"]

    again()
    assert explanation_of(again())["cause"] == "grown" and s.metric("inferd_transcript_bytes") > 0
    config = json.loads(s.config_path.read_text())
    for limit, kept in ((0, False), (1 << 20, True)):
        config["limits"] = {"transcript_bytes_max": limit}
        s.config_path.write_text(json.dumps(config))
        before = s.metric("inferd_config_reloads_total")
        s.process.send_signal(signal.SIGHUP)
        while s.metric("inferd_config_reloads_total") == before:
            time.sleep(0.02)
        again()
        assert (again() != "off") == kept and (s.metric("inferd_transcript_bytes") > 0) == kept


def test_a_preempted_conversation_is_known(launch, tmp_path):
    """Swapped or computed again: what was drawn is drawn once."""
    s = scripted.start(launch, tmp_path, THINKS, lambda m: scripted.config_of(m, limits={"running_max": 1}))
    s.say("urgent", "Now.")
    say(s, "a slow one", ["It ", "was "] * 300)
    say(s, "and then", "It ended.")
    turns = [user(LONG + "a slow one")]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, s, turns)
        while s.metric("inferd_output_tokens_total") < 20:
            time.sleep(0.005)
        for _ in range(5):
            s.http.post("/v1/chat/completions", json={"model": "m", "messages": [user("urgent")]}, headers={"x-inferd-class": "high"})
        answer, _ = slow.result()
    assert s.metric("inferd_preemptions_total") > 0
    _, why = ask(s, turns + [answered(answer), user("and then")])
    assert why["cause"] == "grown" and why["known"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
