"""Conversations that chat templates refuse, or write wrongly, and that other servers accept."""

import dataclasses

import pytest
import scripted
from conftest import skip
from sessions import explanation_of

# Refuses what templates of Mistral, Llama 3, Qwen 3.5, gpt-oss and Hy3 refuse.
GUARD = """\
{%- set ns = namespace(n=0) %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('a late system message') }}{% endif %}
{%- if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('an id') }}{% endif %}
{%- for call in m.tool_calls or [] %}{% if call.id | length != 9 %}{{ raise_exception('an id') }}{% endif %}{% endfor %}
{%- if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('single calls only') }}{% endif %}
{%- if m.role in ['user', 'assistant'] and not m.tool_calls %}
{%- if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- set ns.n = ns.n + 1 %}
{%- endif %}
{%- endfor %}
{%- for m in messages %}{% for call in m.tool_calls or [] %}{% for k, v in call.function.arguments.items() %}{% endfor %}{% endfor %}{% endfor %}
{%- for t in tools or [] %}{% set described = t.function.description + '' %}{% set n = t.function.parameters.properties | length %}{% endfor %}
{%- if reasoning_effort is defined and reasoning_effort not in ['low', 'high'] %}{{ raise_exception('an effort') }}{% endif %}
"""
STRICT = dataclasses.replace(scripted.HERMES, template=GUARD + scripted.HERMES.template)
# Writes a null content as a word.
WORDY = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace("{{ m.content or '' }}", "{{ m.content }}"))
SWITCH = "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}"
EXPLAIN = {"x-inferd-explain": "1"}
BARE = {"type": "function", "function": {"name": "f"}}
FULL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}
ID_A, ID_B = "aaaaaaaa1", "aaaaaaaa2"


@pytest.fixture(scope="module")
def strict(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("strict"), STRICT)


@pytest.fixture(scope="module")
def wordy(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("wordy"), dataclasses.replace(WORDY, template=WORDY.template + SWITCH))


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def called(*ids, arguments='{"a": 1}', **more):
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(id, text):
    return {"role": "tool", "tool_call_id": id, "content": text}


def prompt(s, messages, **more):
    r = s.http.post("/tokenize", json={"model": "m", "messages": messages, **more})
    assert r.status_code == 200, r.text
    return s.http.post("/detokenize", json={"model": "m", "tokens": r.json()["tokens"]}).json()["prompt"]


def answers(s, path, prompt_is, **body):
    """The request has this prompt; its headers."""
    s.say(prompt_is, "Same.", once=True)
    r = s.http.post(path, json={"model": "m", **body})
    assert r.status_code == 200 and "Same." in r.text, r.text
    return r.headers


# ---- what is written wrongly ----

@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
def test_a_content_without_text_is_no_word(wordy, content):
    turns = lambda c: [user("go"), {**{k: v for k, v in called(ID_A).items() if k != "content"}, **c}, result(ID_A, "r")]
    written = prompt(wordy, turns({"content": ""}), tools=[FULL])
    assert "None" not in written and prompt(wordy, turns(content), tools=[FULL]) == written


def test_nor_in_other_protocols(wordy):
    written = prompt(wordy, [user("go"), called(ID_A, content=""), result(ID_A, "r")])
    answers(wordy, "/v1/messages", written, max_tokens=5, messages=[
        user("go"), {"role": "assistant", "content": [{"type": "tool_use", "id": ID_A, "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ID_A, "content": "r"}]}])
    answers(wordy, "/v1/responses", written, input=[
        user("go"), {"type": "function_call", "call_id": ID_A, "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": ID_A, "output": "r"}])


def test_the_switch_of_thinking_may_stand_beside_the_kwargs(wordy):
    for more, shown in [({}, ""), ({"enable_thinking": None}, ""), ({"enable_thinking": False}, "[False]"),
                        ({"enable_thinking": True, "reasoning_effort": "none"}, "[True]"), ({"reasoning_effort": "none"}, "[False]"),
                        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "[False]")]:
        wordy.say("<|im_start|>assistant\n" + shown, f"It is {shown}.", once=True)
        r = wordy.chat("?", **more)
        assert r.json()["choices"][0]["message"]["content"] == f"It is {shown}."
        assert "x-inferd-ignored" not in r.headers
    r = wordy.chat("?", enable_thinking="yes")
    assert r.status_code == 400 and r.json()["error"]["param"] == "enable_thinking"


FIRST = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace(
    "for call in m.tool_calls or [] %}", "for call in (m.tool_calls or [])[:1] %}"))


def test_calls_behind_the_first_are_not_lost(launch, tmp_path):
    assert FIRST.template != scripted.HERMES.template
    s = scripted.start(launch, tmp_path, FIRST)
    plain = prompt(s, [user("a"), called(ID_A), result(ID_A, "1"), called(ID_B), result(ID_B, "2")], tools=[FULL])
    together = [user("a"), called(ID_A, ID_B), result(ID_B, "2"), result(ID_A, "1")]
    assert prompt(s, together, tools=[FULL]) == plain and plain.count('"a": 1') == 2
    s.say("now?", "Yes.", tail=60)
    turns = [user("Tell me. " * 60), called(ID_A, ID_B), result(ID_A, "one " * 40), result(ID_B, "two " * 40), user("now?")]
    for _ in range(2):
        r = s.http.post("/v1/chat/completions", json={"model": "m", "messages": turns, "tools": [FULL]}, headers=EXPLAIN)
        assert r.status_code == 200, r.text
        turns += [{"role": "assistant", "content": "Yes."}, user("And now?")]
    why = explanation_of(r.headers["x-inferd-explain"])
    assert why["cause"] == "grown" and why["in"] == "messages[6]"
    assert s.stop() == 0


# ---- what is refused ----

MENDED = {
    "a tool without a description": ([user("a")], [user("a")]),
    "text behind a result": ([user("a"), called(ID_A), result(ID_A, "r"), user("b"), system("c")],
                             [user("a"), called(ID_A), result(ID_A, "r\n\nb\n\nc")]),
    "a late system message": ([system("s"), user("a"), system("b")], [system("s"), user("a\n\nb")]),
    "two user messages": ([user("a"), user("b")], [user("a\n\nb")]),
    "an interrupted call": ([user("a"), called(ID_A), user("b")], [user("a"), called(ID_A), result(ID_A, "b")]),
    "parallel calls": ([user("a"), called(ID_A, ID_B), result(ID_B, "2"), result(ID_A, "1")],
                       [user("a"), called(ID_A), result(ID_A, "1"), called(ID_B), result(ID_B, "2")]),
    "cut arguments": ([user("a"), called(ID_A, arguments='{"a": "b c'), result(ID_A, "r")],
                      [user("a"), called(ID_A, arguments='{"a": "b c"}'), result(ID_A, "r")]),
    "arguments that are no JSON": ([user("a"), called(ID_A, arguments="b c"), result(ID_A, "r")],
                                   [user("a"), called(ID_A, arguments='{"arguments": "b c"}'), result(ID_A, "r")]),
    "a greeting": ([{"role": "assistant", "content": "hello"}, user("a")],
                   [user(""), {"role": "assistant", "content": "hello"}, user("a")]),
}


@pytest.mark.parametrize("name", MENDED)
def test_it_is_mended(strict, name):
    given, by_hand = MENDED[name]
    assert prompt(strict, given, tools=[BARE]) == prompt(strict, by_hand, tools=[FULL])


def test_ids_become_short_and_stay_the_same(strict):
    turns = [user("a"), called("call_of_another_server"), result("call_of_another_server", "r")]
    first = prompt(strict, turns, add_generation_prompt=False)
    longer = prompt(strict, [*turns, called("call_2"), result("call_2", "r")])
    assert longer.startswith(first)


def test_an_effort_that_the_template_refuses_is_named(strict):
    plain = prompt(strict, [user("effort?")])
    assert "x-inferd-ignored" not in answers(strict, "/v1/chat/completions", plain, messages=[user("effort?")], reasoning_effort="high")
    for path, name, body in [
            ("/v1/chat/completions", "reasoning_effort", {"messages": [user("effort?")], "reasoning_effort": "medium"}),
            ("/v1/chat/completions", "chat_template_kwargs.reasoning_effort",
             {"messages": [user("effort?")], "chat_template_kwargs": {"reasoning_effort": "medium"}}),
            ("/v1/responses", "reasoning.effort", {"input": "effort?", "reasoning": {"effort": "medium"}}),
            ("/v1/messages", "output_config.effort",
             {"messages": [user("effort?")], "output_config": {"effort": "medium"}, "max_tokens": 5})]:
        assert answers(strict, path, plain, **body)["x-inferd-ignored"] == name
    r = strict.http.post("/v1/messages/count_tokens", json={
        "model": "m", "messages": [user("effort?")], "output_config": {"effort": "medium"}})
    assert r.status_code == 200 and r.headers["x-inferd-ignored"] == "output_config.effort"


def test_an_answer_that_was_cut_comes_back(strict):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "Kiel am Meer und so weiter", "b": 1}}\n</tool_call>'
    tools = [{"type": "function", "function": {**FULL["function"], "parameters": {
        "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}}}]
    turns, n_cut = [user("cut?")], 0
    strict.say("cut?", call)
    first = prompt(strict, turns, tools=tools, add_generation_prompt=False)
    for n in range(1, 60):
        r = strict.chat("", messages=turns, tools=tools, max_tokens=n).json()["choices"][0]
        if r["finish_reason"] != "length":
            break
        for call in r["message"].get("tool_calls") or []:
            n_cut += 1
            sent = [*turns, r["message"], result(call["id"], "cut")]
            assert prompt(strict, sent, tools=tools).startswith(first)
    assert n_cut > 3


def test_what_no_mend_helps_has_the_first_error(launch, tmp_path):
    never = dataclasses.replace(scripted.HERMES, template="{{ raise_exception('with ' ~ messages | length) }}")
    s = scripted.start(launch, tmp_path, never)
    r = s.chat("a", messages=[system("s"), user("a"), user("b")])
    assert r.status_code == 400 and r.json()["error"]["message"] == "the chat template refused: with 3"


def test_a_mended_conversation_grows(strict):
    """Its next turn begins with the prompt before it, and places are those of the client's messages."""
    story = "Tell me a long story about the sea and the wind. " * 8
    ids = ["call_a", "call_b"]
    turns = [system("Be kind."), user(story), user("Please."), called(*ids), result(ids[0], "one " * 40), result(ids[1], "two " * 40)]
    cached = 0
    for n, words in enumerate(["And then?", "And after that?", "Why?"]):
        turns.append(user(words))
        strict.say(words, f"Answer {n}.", tail=120)
        r = strict.http.post("/v1/chat/completions", json={"model": "m", "messages": turns, "tools": [BARE]}, headers=EXPLAIN)
        assert r.status_code == 200, r.text
        why, usage = explanation_of(r.headers["x-inferd-explain"]), r.json()["usage"]
        if n > 0:
            assert why["cause"] == "grown" and why["in"] == f"messages[{len(turns) - 1}]", why
            assert usage["prompt_tokens_details"]["cached_tokens"] > cached
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        turns.append({"role": "assistant", "content": f"Answer {n}."})


def test_places_where_tools_are_in_the_prompt(launch, tmp_path):
    """Results that follow each other are one message of the template, and the tools one in front."""
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\n' }}"
    s = scripted.start(launch, tmp_path, dataclasses.replace(scripted.HERMES, template=plain))
    s.say("now?", "Yes.", tail=60)
    s.say("then?", "No.", tail=60)
    turns = [user("Tell me. " * 60), called(ID_A, ID_B), result(ID_A, "one " * 40), result(ID_B, "two " * 40), user("now?")]
    for _ in range(2):
        r = s.http.post("/v1/chat/completions", json={"model": "m", "messages": turns, "tools": [FULL]}, headers=EXPLAIN)
        assert r.status_code == 200, r.text
        turns += [{"role": "assistant", "content": "Yes."}, user("then?")]
    why = explanation_of(r.headers["x-inferd-explain"])
    assert why["cause"] == "grown" and why["in"] == "messages[6]"
    assert s.stop() == 0


# ---- templates of models ----

CONVERSATIONS = [
    [system("s"), user("a"), called("call_1", "call_2"), result("call_1", "x"), result("call_2", "y"), user("b"), system("c")],
    [user("a"), called("call_1"), user("b")],
    [user("a"), {"role": "assistant", "content": None}, user("b"), user("c")],
    [user("a"), called("call_1", arguments='{"place": "Kiel am'), result("call_1", "x")],
]


@pytest.mark.parametrize("name", [
    "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Ministral-3-14B-Reasoning-2512",
    "meta-llama-Llama-3.1-8B-Instruct", "google-gemma-2-2b-it", "openai-gpt-oss-120b", "Apertus-8B-Instruct", "Qwen3.5-4B",
    "ByteDance-Seed-OSS", "tencent-Hy3", "MiniMax-M2", "GLM-4.6", "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B"])
def test_templates_of_models(launch, tmp_path, shared, name):
    file = shared / "templates" / f"{name}.jinja"
    if not file.exists():
        skip(f"{file.name} is not there")
    s = scripted.start(launch, tmp_path, dataclasses.replace(scripted.HERMES, template=file.read_text()))
    calls = [{**called(id)["tool_calls"][0], "function": {"name": "f", "arguments": f'{{"a": "{word}"}}'}}
             for id, word in [("call_1", "Kielo"), ("call_2", "Badenx")]]
    together = prompt(s, [user("a"), {**called(), "tool_calls": calls}, result("call_1", "x"), result("call_2", "y")], tools=[BARE])
    assert "Kielo" in together and "Badenx" in together
    for messages in CONVERSATIONS:
        written = prompt(s, messages, tools=[BARE])
        assert written == prompt(s, messages, tools=[BARE]) and "None" not in written
    assert s.stop() == 0
