"""POST /v1/messages and /v1/messages/count_tokens: every body and event is one of the `anthropic` package's own types,
and conversations give the prompt that the same conversation gives as a chat."""

import dataclasses
import http.client
import json
import socket
import threading

import anthropic
import httpx
import pydantic
import pytest
import scripted
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from conftest import SLOW

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
THINKS = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace(
    "{{ m.content or '' }}",
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}").replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"))
WEATHER = {"name": "get_weather", "description": "of a place", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}
LIST = {"name": "ls", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
LS = '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def hermes(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("messages"), THINKS)


@pytest.fixture(scope="module")
def silent(launch, tmp_path_factory):
    """It says only what `same` has it say."""
    return scripted.start(launch, tmp_path_factory.mktemp("silent"), THINKS)


def user(*content):
    return {"role": "user", "content": list(content) if isinstance(content[0], dict) else content[0]}


def text(s, **more):
    return {"type": "text", "text": s, **more}


# ---- the contract ----

def extras(value, at=""):
    """Members that the package's types do not declare."""
    if isinstance(value, list):
        return [x for i, one in enumerate(value) for x in extras(one, f"{at}[{i}]")]
    if not isinstance(value, pydantic.BaseModel):
        return []
    return [f"{at}.{name}" for name in value.model_extra or {}] + [
        x for name in type(value).model_fields for x in extras(getattr(value, name), f"{at}.{name}")]


def strict(kind, value):
    model = pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    assert not extras(model), (extras(model), value)
    return model


def sdk(s, key="none", **more):
    return anthropic.Anthropic(base_url=s.url, api_key=key, max_retries=0, timeout=120 * SLOW, **more)


def events_of(answer):
    """(name, data) of each; names and types agree."""
    out = []
    for part in answer.split("\n\n"):
        lines = [line for line in part.split("\n") if line and not line.startswith(":")]
        if lines:
            assert [line.split(": ")[0] for line in lines] == ["event", "data"], part
            data = json.loads(lines[1][len("data: "):])
            assert data["type"] == lines[0][len("event: "):]
            out.append(data)
    return out


def check_order(events):
    """message_start, blocks one behind the other, message_delta, message_stop."""
    kinds = [e["type"] for e in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    open_at, n = None, 0
    for e in events[1:-2]:
        if e["type"] == "content_block_start":
            assert open_at is None and e["index"] == n
            open_at, n = e["index"], n + 1
        else:
            assert e["type"] in ("content_block_delta", "content_block_stop") and e["index"] == open_at
            open_at = None if e["type"] == "content_block_stop" else open_at
    assert open_at is None


def blocks_of(message):
    return [b.model_dump(exclude={"id"}, exclude_none=True) for b in message.content]


def ask(s, messages, same=True, **more):
    """The answer, whole; a stream, checked event by event and put together by the package, says the same."""
    body = {"model": "m", "max_tokens": 200, "messages": messages, **more}
    answer = s.http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    whole = strict(Message, answer.json())
    streamed = s.http.post(PATH, json={**body, "stream": True})
    assert streamed.status_code == 200, streamed.text
    events = events_of(streamed.text)
    for e in events:
        strict(RawMessageStreamEvent, e)
    check_order(events)
    told = [(u["input_tokens"], u["cache_read_input_tokens"]) for u in (events[0]["message"]["usage"], events[-2]["usage"])]
    assert told[0] == told[1] and sum(told[0]) == count(s, messages, **more)
    with sdk(s).messages.stream(**body) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens
    total = lambda u: u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens
    assert total(final.usage) == total(whole.usage) == count(s, messages, **more)
    assert not same or blocks_of(final) == blocks_of(whole)
    return whole


def count(s, messages, **more):
    left_out = ("max_tokens", "temperature", "stop_sequences")
    body = {"model": "m", "messages": messages, **{k: v for k, v in more.items() if k not in left_out}}
    answer = s.http.post(COUNT, json=body)
    assert answer.status_code == 200, answer.text
    return strict(MessageTokensCount, answer.json()).input_tokens


def same(s, chat, messages, of_chat=None, **body):
    """The messages give exactly the prompt of this chat, which is returned."""
    ids = s.http.post("/tokenize", json={"model": "m", "messages": chat, **(of_chat or {})}).json()["tokens"]
    prompt = s.http.post("/detokenize", json={"model": "m", "tokens": ids}).json()["prompt"]
    s.say(prompt, "Same.", once=True)
    answer = s.http.post(PATH, json={"model": "m", "max_tokens": 5, "messages": messages, **body})
    assert answer.status_code == 200, (answer.text, prompt)
    m = strict(Message, answer.json())
    assert blocks_of(m) == [text("Same.")] and m.usage.input_tokens + m.usage.cache_read_input_tokens == len(ids), prompt
    assert count(s, messages, **body) == len(ids)
    return prompt


# ---- conversations ----

def test_text(hermes):
    hermes.say("hello", "Hi there.")
    m = ask(hermes, [user("hello")])
    assert blocks_of(m) == [text("Hi there.")] and m.stop_reason == "end_turn" and m.stop_sequence is None
    assert m.id.startswith("msg_") and m.model == "m" and m.usage.cache_creation_input_tokens == 0
    hermes.say("say nothing", "")
    assert ask(hermes, [user("say nothing")]).content == []


def test_a_call_its_result_and_the_answer(hermes):
    hermes.say(["<tool_response>", "sunny"], "It is sunny.")
    hermes.say("weather?", "Let me see.\n" + CALL)
    first = ask(hermes, [user("weather?")], tools=[WEATHER])
    assert first.stop_reason == "tool_use"
    said, call = first.content
    assert said.text == "Let me see." and call.id.startswith("toolu_")
    assert (call.name, call.input) == ("get_weather", {"city": "Rome", "days": 2})
    turns = [user("weather?"), {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]},
             user({"type": "tool_result", "tool_use_id": call.id, "content": [text("sunny")]}, text("well?"))]
    turns[-1]["content"].reverse()  # results go first in any case
    assert blocks_of(ask(hermes, turns, tools=[WEATHER])) == [text("It is sunny.")]
    # The prompt is what the model wrote: all but the last turn is in the cache.
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 9, "messages": turns, "tools": [WEATHER]}).json()
    assert answer["usage"]["cache_read_input_tokens"] > answer["usage"]["input_tokens"]


def test_a_conversation_gives_the_prompt_of_the_chat(silent):
    call = {"type": "tool_use", "id": "toolu_abcdefgh1", "name": "f", "input": {"n": 0.1, "s": "\u00e4\"", "o": {"k": [1, None]}}}
    chat = [{"role": "system", "content": "Rules.\nMore."}, user("go"),
            {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [
                {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": json.dumps(call["input"])}}]},
            {"role": "tool", "tool_call_id": "abcdefgh1", "content": "42"}, user("and?")]
    prompt = same(silent, chat, [
        user("go"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                                      {"type": "redacted_thinking", "data": "x"}, text("ok"), call]},
        user(text("and?"), {"type": "tool_result", "tool_use_id": "toolu_abcdefgh1", "content": [text("42")]})],
        system=[text("Rules."), text("More.")])
    assert '"n": 0.1' in prompt and '"k": [1, null]' in prompt and "<think>\nhm\n</think>" in prompt
    schema = {"type": "function", "function": {"name": "ls", "description": "list", "parameters": LIST["input_schema"]}}
    same(silent, [user("tools")], [user("tools")], of_chat={"tools": [schema]},
         tools=[{**LIST, "description": "list", "cache_control": {"type": "ephemeral"}}])
    same(silent, [user("tools")], [user("tools")], tools=[LIST], tool_choice={"type": "none"})


def test_two_calls(hermes):
    hermes.say("both", LS + "\n" + CALL)
    m = ask(hermes, [user("both")], tools=[WEATHER, LIST])
    assert [(c.name, c.input) for c in m.content] == [("ls", {}), ("get_weather", {"city": "Rome", "days": 2})]
    assert len({c.id for c in m.content}) == 2


def test_results_are_in_the_order_of_the_calls(silent):
    turns = [user("both"), {"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_" + i, "name": "f", "input": {}} for i in ("aaaaaaaa1", "aaaaaaaa2")]}]
    a, b = ({"type": "tool_result", "tool_use_id": "toolu_aaaaaaaa" + i, "content": s} for i, s in (("1", "one"), ("2", "two")))
    chat = lambda one, two: [user("both"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ("aaaaaaaa1", "aaaaaaaa2")]},
        {"role": "tool", "tool_call_id": "aaaaaaaa1", "content": one}, {"role": "tool", "tool_call_id": "aaaaaaaa2", "content": two}]
    for ends in ([user(a, b)], [user(b, a)], [user(b), user(a)]):
        same(silent, chat("one", "two"), turns + ends)
    same(silent, chat("Error: one", "Error"), [*turns, user({**a, "is_error": True}, {**b, "is_error": True, "content": None})])
    same(silent, chat("error 7", "two"), [*turns, user({**a, "is_error": True, "content": "error 7"}, b)])


def test_a_tool_that_was_found_is_named(silent):
    """Claude Code's search for tools answers with references to them."""
    chat = lambda content: [user("find"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": "aaaaaaaa1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "aaaaaaaa1", "content": content}]
    call = {"type": "tool_use", "id": "toolu_aaaaaaaa1", "name": "f", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "read_file"}, text("and"), {"type": "tool_reference", "tool_name": "ls"}]
    same(silent, chat("Tool read_file is available.\nand\nTool ls is available."), [
        user("find"), {"role": "assistant", "content": [call]},
        user({"type": "tool_result", "tool_use_id": "toolu_aaaaaaaa1", "content": found})])


def test_ids_reach_the_template_as_the_model_wrote_them(launch, tmp_path):
    s = scripted.start(launch, tmp_path, scripted.MISTRAL)
    s.say("weather?", '[TOOL_CALLS][{"name": "ls", "arguments": {}, "id": "abcdefgh1"}]')
    call = ask(s, [user("weather?")], tools=[LIST]).content[0]
    assert call.id.startswith("toolu_") and len(call.id) == 15 and call.id[6:].isalnum()
    turns = [user("?"), {"role": "assistant", "content": [call.model_dump(exclude_none=True)]},
             user({"type": "tool_result", "tool_use_id": call.id})]
    chat = [user("?"), {"role": "assistant", "content": None, "tool_calls": [
        {"id": call.id[6:], "type": "function", "function": {"name": "ls", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": call.id[6:], "content": ""}]
    assert f'"id": "{call.id[6:]}"' in same(s, chat, turns)


def test_thinking(hermes):
    hermes.say(["</think>", "once more"], "Seven again.")
    hermes.say("think", "<think>\nThree and four.\n</think>\n\nSeven.")
    m = ask(hermes, [user("think")], thinking={"type": "adaptive"})
    assert blocks_of(m) == [{"type": "thinking", "thinking": "Three and four.", "signature": ""}, text("Seven.")]
    turns = [user("think"), {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in m.content]}, user("once more")]
    assert blocks_of(ask(hermes, turns)) == [text("Seven again.")]
    hermes.say("ponder", ["<think>", "\nI", " go", " on", " and", " on"])
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 50, "messages": [user("ponder")],
                                          "thinking": {"type": "enabled", "budget_tokens": 2}})
    assert answer.status_code == 400 and "mask" in answer.json()["error"]["message"]  # it had to close


def test_the_switch_of_thinking_reaches_the_template(silent):
    for thinking, on in (({"type": "disabled"}, False), ({"type": "enabled", "budget_tokens": 1024}, True),
                         ({"type": "adaptive", "display": "omitted"}, True)):
        prompt = same(silent, [user("?")], [user("?")], of_chat={"chat_template_kwargs": {"enable_thinking": on}}, thinking=thinking)
        assert ("<think>" in prompt) != on


def test_ends(hermes):
    hermes.say("count", "one two three four five six seven eight")
    m = ask(hermes, [user("count")], stop_sequences=["nine", " four"])
    assert (m.stop_reason, m.stop_sequence, m.content[0].text) == ("stop_sequence", " four", "one two three")
    m = ask(hermes, [user("count")], max_tokens=3)
    assert m.stop_reason == "max_tokens" and m.usage.output_tokens == 3
    hermes.say("cut", CALL)
    m = ask(hermes, [user("cut")], same=False, max_tokens=20, tools=[WEATHER])
    assert m.stop_reason == "max_tokens" and m.content[0].input == {}  # its arguments are not complete
    hermes.say("<|im_start|>assistant\nThe word is", " yes.")
    m = ask(hermes, [user("?"), {"role": "assistant", "content": "The word is"}])
    assert m.content[0].text == " yes."


def test_tool_choice_and_form(hermes):
    hermes.say("force", "anything")
    for choice in ({"type": "any"}, {"type": "tool", "name": "ls"}):
        answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 9, "messages": [user("force")], "tools": [LIST],
                                              "tool_choice": choice})
        assert answer.status_code == 400 and "mask" in answer.text
    hermes.say("twice", LS + "\n" + LS)
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 99, "messages": [user("twice")], "tools": [LIST],
                                          "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}})
    assert answer.status_code == 400 and "outside the mask" in answer.text, answer.text  # of the second call
    hermes.say("form", '{"n": 1}')
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    m = ask(hermes, [user("form")], output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}})
    assert json.loads(m.content[0].text) == {"n": 1}
    hermes.say("loose", "words")
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 9, "messages": [user("loose")],
                                          "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert answer.status_code == 400


# ---- what agents send ----

def test_a_late_system_message_is_text_of_its_turn(silent, hermes):
    rules = {"role": "system", "content": "Rules."}
    late = lambda content: [user("start"), {"role": "system", "content": content}]
    for content in ("Be brief.", [text("Be brief.", cache_control={"type": "ephemeral"})]):
        same(silent, [rules, user("start\nBe brief.")], late(content), system="Rules.")
    same(silent, [rules, user("?")], [{"role": "system", "content": [text("Rules.")]}, user("?")])
    # Its place in the prompt is the same in the next turn: the prefix is found.
    long = " ".join(f"rule {i} of many" for i in range(60))
    hermes.say("and then", "Then that.")
    hermes.say("begin now", "Begun.")
    first = [user("begin now"), {"role": "system", "content": [text("Be brief.")]}]
    one = ask(hermes, first, system=long)
    later = [user("begin now"), {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": one.content[0].text},
             user("and then")]
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 9, "messages": later, "system": long})
    used = answer.json()["usage"]
    assert used["input_tokens"] < 32 < used["cache_read_input_tokens"]


def test_the_billing_block_is_left_out(silent):
    chat = [{"role": "system", "content": "Rules.\nNo x-anthropic-billing-header: here"}, user("?")]
    for n in (1, 2):
        same(silent, chat, [user("?")], system=[text(f"x-anthropic-billing-header: cc_version={n}"), text("Rules."),
                                                text("No x-anthropic-billing-header: here")])
    same(silent, [user("?")], [user("?")], system=[text("x-anthropic-billing-header: 1")])


def test_what_has_no_effect_is_accepted_and_named(hermes):
    hermes.say("lots", "Fine.")
    body = {"model": "m", "max_tokens": 20, "messages": [user(text("lots", cache_control={"type": "ephemeral"}),
                                                              {"type": "search_result", "content": []})],
            "metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []}, "betas": ["x"],
            "thinking": {"type": "adaptive", "display": "omitted"}, "container": "c", "system": [],
            "output_config": {"effort": "xhigh", "task_budget": {"type": "tokens", "total": 9}},
            "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                      {"type": "bash_20250124", "name": "bash"}, {**LIST, "type": "custom", "defer_loading": True}]}
    answer = hermes.http.post(PATH + "?beta=true", json=body, headers={
        "anthropic-version": "2023-06-01", "anthropic-beta": "of-tomorrow-2027-01-01,claude-code-20250219"})
    assert answer.status_code == 200, answer.text
    strict(Message, answer.json())
    assert answer.headers["x-inferd-ignored"].split(", ") == [
        "container", "thinking.display", "output_config.task_budget", "tools.web_search_20250305", "tools.bash_20250124", "messages.content.search_result"]
    body["tools"] = body["tools"][:2]
    assert hermes.http.post(PATH, json=body).status_code == 200
    sdk(hermes).beta.messages.create(model="m", max_tokens=5, messages=[user("lots")], betas=["a-b"])


@pytest.mark.parametrize("choice, more", [({"type": "any"}, []), ({"type": "tool", "name": "bash"}, []), ({"type": "tool", "name": "bash"}, [LIST])])
def test_a_choice_of_tools_that_are_left_out_has_no_effect(hermes, choice, more):
    hermes.say("just talk", "Fine.")
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 20, "messages": [user("just talk")], "tool_choice": choice,
                                          "tools": [{"type": "bash_20250124", "name": "bash"}, *more]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-inferd-ignored"] == f"tools.bash_20250124, tool_choice.{choice['type']}"
    assert answer.json()["content"][0]["text"] == "Fine."


# ---- errors ----

def failed(answer, status, kind):
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body["error"]["type"] == kind, body
    if kind != "request_too_large":  # the package has no class for it
        strict(ErrorResponse, body)
    assert body["request_id"] == answer.headers["x-request-id"]
    return body["error"]["message"]


TURN = [user("?")]
BAD = [
    ({"messages": TURN}, "max_tokens"), ({"max_tokens": 5}, "messages"), ({"max_tokens": 0, "messages": TURN}, "max_tokens"),
    ({"messages": []}, "messages"), ({"messages": "x"}, "messages"), ({"messages": [7]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "role"), ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [user(7)]}, "content"), ({"messages": [user({"type": "text"}, text("x"))]}, "text"),
    ({"messages": [user({}, {})]}, "type"), ({"messages": [user({"type": "image", "source": {}}, text("x"))]}, "image"),
    ({"messages": [user({"type": "document"}, text("x"))]}, "document"),
    ({"messages": [user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}, text("x"))]}, "image"),
    ({"messages": [user({"type": "tool_result"}, text("x"))]}, "tool_use_id"),
    ({"messages": [user({"type": "tool_result", "tool_use_id": "a"}, text("x"))]}, "must be the id of a call before it"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                   user(*[{"type": "tool_result", "tool_use_id": "a"}] * 2)]}, "already"),
    ({"messages": [user({"type": "tool_use", "id": "a", "name": "f", "input": {}}, text("x"))]}, "role"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}]}, "input"),
    ({"messages": TURN, "system": 7}, "system"), ({"messages": TURN, "tools": {}}, "tools"),
    ({"messages": TURN, "tools": [{"name": "f"}]}, "input_schema"), ({"messages": TURN, "tools": [{**LIST, "name": "a b"}]}, "name"),
    ({"messages": TURN, "tools": [{"type": "bash_20250124", "name": "bash"}, LIST, WEATHER, LIST]},
     '"tools[3].name" is the name of tools[1], too'),
    ({"messages": TURN, "tool_choice": "auto"}, "tool_choice"), ({"messages": TURN, "tool_choice": {"type": "any"}}, "tools"),
    ({"messages": TURN, "tool_choice": {"type": "tool"}, "tools": [LIST]}, "name"),
    ({"messages": TURN, "tool_choice": {"type": "tool", "name": "g"}, "tools": [LIST]}, "g"),
    ({"messages": TURN, "thinking": {}}, "thinking"), ({"messages": TURN, "thinking": {"type": "enabled", "budget_tokens": -1}}, "budget"),
    ({"messages": TURN, "output_config": []}, "output_config"), ({"messages": TURN, "output_config": {"format": {"type": "x"}}}, "format"),
    ({"messages": TURN, "temperature": 9}, "temperature"), ({"messages": TURN, "stop_sequences": [""]}, "stop"),
]


NO_SCHEMA = {"type": "nothing"}
# Errors of the chat that the body becomes: in the words of the client.
PLACES = [
    ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [LIST]}, "tool_choice.name"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}, {**LIST, "input_schema": NO_SCHEMA, "strict": True}]}, "tools[1].input_schema"),
    ({"tools": [LIST, {"name": "f", "input_schema": {"properties": {"\ufdd0": {}}}}]}, "tools[1].input_schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": NO_SCHEMA}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": 5}}}, "output_config.format.schema"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "stop_sequences": ["x"]},
     '"stop_sequences" could cut an answer that "output_config.format" wants whole'),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "max_tokens": 0}, "max_tokens"),
]


@pytest.mark.parametrize("body, place", PLACES, ids=range(len(PLACES)))
def test_an_error_names_the_fields_of_the_client(hermes, body, place):
    message = failed(hermes.http.post(PATH, json={"model": "m", "max_tokens": 5, "messages": TURN, **body}), 400, "invalid_request_error")
    assert place in message and not any(chat in message for chat in ("function", "parameters", "response_format", "thinking_token"))


@pytest.mark.parametrize("body,names", BAD, ids=range(len(BAD)))
def test_bad_bodies(hermes, body, names):
    whole = body if body.get("messages") is TURN and len(body) == 1 or "max_tokens" in body else {"max_tokens": 5, **body}
    assert names in failed(hermes.http.post(PATH, json={"model": "m", **whole}), 400, "invalid_request_error")


def test_errors_before_the_handler(launch, tmp_path):
    keys = {"tenants": [{"name": "t", "keys": ["sk-tenant-messages-01"]}], "admin": {"keys": ["sk-admin-messages-0001"]}}
    s = scripted.start(launch, tmp_path, config=lambda model: scripted.config_of(model, limits={"body_bytes_max": "64KiB"}, **keys))
    s.say("?", "Yes.")
    body = {"model": "m", "max_tokens": 5, "messages": TURN}
    good = {"x-api-key": "sk-tenant-messages-01"}
    post = lambda headers=good, path=PATH, **kw: httpx.post(s.url + path, headers=headers, **(kw or {"json": body}))
    assert post().status_code == 200 and post(path=COUNT).status_code == 200
    assert post({"Authorization": "Bearer sk-tenant-messages-01"}).status_code == 200
    assert post({"Authorization": "Bearer sk-tenant-messages-01", "x-api-key": "wrong"}).status_code == 200
    assert sdk(s, "sk-tenant-messages-01").messages.create(**body).content[0].text == "Yes."
    assert s.http.get("/v1/models", headers=good).status_code == 200  # every route of tenants
    for wrong in ({}, {"x-api-key": "wrong"}, {**good, "Authorization": "Bearer wrong"}, {"x-api-key": "sk-admin-messages-0001"}):
        for path in (PATH, COUNT):
            failed(post(wrong, path), 401, "authentication_error")
    assert s.http.get("/admin/state", headers={"x-api-key": "sk-admin-messages-0001"}).status_code == 401
    failed(post(json={**body, "model": "other"}), 404, "not_found_error")
    failed(post(path=COUNT, json={**body, "model": "other"}), 404, "not_found_error")
    failed(post(json={**body, "system": "x" * 70000}), 413, "request_too_large")
    failed(post(content=(b" " * 1000 for _ in range(70)), headers={**good, "content-type": "application/json"}), 413, "request_too_large")
    failed(post(content="<a>", headers={**good, "content-type": "text/xml"}), 415, "invalid_request_error")
    failed(post(content="{", headers={**good, "content-type": "application/json"}), 400, "invalid_request_error")
    with pytest.raises(anthropic.AuthenticationError):
        sdk(s, "wrong").messages.create(**body)
    with pytest.raises(anthropic.NotFoundError):
        sdk(s, "sk-tenant-messages-01").messages.create(**{**body, "model": "other"})
    assert "sk-tenant-messages-01" not in s.stderr()
    assert s.stop() == 0


def raw(s, data):
    """Status, headers and body of the first answer to these bytes."""
    with socket.create_connection((httpx.URL(s.url).host, httpx.URL(s.url).port), timeout=20 * SLOW) as c:
        c.sendall(data)
        answer = http.client.HTTPResponse(c)
        answer.begin()
        return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())


HEAD = b"POST /v1/messages HTTP/1.1\r\nContent-Type: application/json\r\n"
HOME = HEAD + b"Host: localhost\r\n"
UNROUTED = {
    "a method": (405, HOME.replace(b"POST", b"GET")), "a method of the count": (405, HOME.replace(b"POST /v1/messages", b"GET /v1/messages/count_tokens")),
    "a path": (404, HOME.replace(b"messages", b"messages/batches")), "a host": (403, HEAD + b"Host: evil.example\r\n"),
    "an origin": (403, HOME + b"Origin: https://evil.example\r\n"), "arguments": (414, HOME.replace(b" HTTP", b"?" + b"a=1&" * 99 + b" HTTP")),
    "an expectation": (417, HOME + b"Expect: foo\r\n"), "headers": (431, HOME + b"X: " + b"a" * 90000 + b"\r\n"),
    "many headers": (431, HOME + b"X: a\r\n" * 120), "a version": (505, HOME.replace(b"HTTP/1.1", b"HTTP/3.0")),
    "a length": (400, HOME + b"Content-Length: x\r\n"), "a line": (400, HOME + b": x\r\n")}


@pytest.mark.parametrize("why", UNROUTED)
def test_errors_that_reach_no_route(hermes, why):
    """They had OpenAI's form, of which the package finds no message."""
    status, head = UNROUTED[why]
    failed(raw(hermes, head + b"\r\n"), status, {403: "permission_error", 404: "not_found_error"}.get(status, "invalid_request_error"))
    other = raw(hermes, (head + b"\r\n").replace(b"/v1/messages", b"/v1/messagesx"))
    assert set(other.json()) == {"error"} and other.json()["error"]["code"]


def test_overload_is_529(launch, tmp_path):
    s = scripted.start(launch, tmp_path, config=lambda model: scripted.config_of(
        model, limits={"running_max": 1, "queue_len_max": 1}))
    s.say("long", "word " * 3000)
    body = {"model": "m", "max_tokens": 3000, "messages": [user("long")], "stream": True}
    with s.http.stream("POST", PATH, json=body) as first:
        next(first.iter_lines())
        answers = []
        waiting = [threading.Thread(target=lambda: answers.append(httpx.post(s.url + PATH, json=body, timeout=100 * SLOW)))
                   for _ in range(6)]
        for w in waiting:
            w.start()
        for w in waiting[:]:
            w.join(0.5)
    for w in waiting:
        w.join()
    refused = [a for a in answers if a.status_code != 200]
    assert refused
    for a in refused:
        failed(a, 529, "overloaded_error")
        assert 1 <= int(a.headers["retry-after"]) <= 60
    s.settled()
    assert s.stop() == 0


# ---- the engine ----

def test_a_stream_says_from_its_start_what_was_cached(hermes):
    """message_start had all of the prompt in input_tokens, and nothing cached: clients show and sum up these numbers."""
    hermes.say("remember", "Yes.")
    for turn in range(2):
        answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 9, "messages": [user("word " * 500 + "remember")], "stream": True})
        usage = strict(RawMessageStreamEvent, events_of(answer.text)[0]).message.usage
        assert (usage.cache_read_input_tokens > 0) == (turn == 1) and usage.input_tokens > 0

def test_a_client_that_leaves_frees_its_blocks(hermes):
    hermes.say("endless", "word " * 5000)
    with hermes.http.stream("POST", PATH, json={"model": "m", "max_tokens": 5000, "messages": [user("endless")], "stream": True}) as answer:
        for line in answer.iter_lines():
            if "text_delta" in line:
                break
    hermes.settled()


def test_a_failure_in_a_stream_is_an_event(hermes):
    hermes.say("breaks", '{"a": "' + "word " * 300 + '", "b": 2}')
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False, "required": ["a"]}
    answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 5000, "messages": [user("breaks")], "stream": True,
                                          "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert answer.status_code == 200
    events = events_of(answer.text)
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "error"
    assert strict(ErrorResponse, events[-1]).request_id == answer.headers["x-request-id"]
    assert events[-1]["error"]["message"].startswith("messages: ")


def test_preempted_it_says_the_same(launch, tmp_path):
    from test_scripted import LONG, crowded, document

    s = scripted.start(launch, tmp_path, config=lambda model: crowded(model, "0"))
    s.say("now!", "Here.")
    s.say("take your time", LONG)
    said, urgent = "", None
    body = {"model": "m", "messages": [user(document(30000) + " take your time")], "max_tokens": 6000, "stream": True}
    with s.http.stream("POST", PATH, json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = strict(RawMessageStreamEvent, json.loads(line[6:]))
            said += event.delta.text if event.type == "content_block_delta" else ""
            if said and urgent is None:
                urgent = s.http.post(PATH, json={"model": "urgent", "max_tokens": 10, "messages": [user(document(30000)[::-1] + " now!")]})
    assert said == LONG and urgent.json()["content"] == [text("Here.")]
    assert s.metric("inferd_preemptions_total") > 0
    assert s.stop() == 0


def test_max_tokens_is_a_bound(hermes):
    """Clients must give one, and set it without a look at the context."""
    hermes.say("bounded", "Yes.")
    assert ask(hermes, [user("bounded")], max_tokens=2**30).content[0].text == "Yes."


def test_a_thread_is_refused_in_the_words_that_its_client_knows(hermes):
    """Else the tool runner of the package sends its second request without the first turn."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        answer = hermes.http.post(PATH, json={"model": "m", "max_tokens": 9, "messages": [user("hi")], "thread": thread})
        assert answer.status_code == 400
        assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
