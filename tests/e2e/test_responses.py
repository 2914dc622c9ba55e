"""POST /v1/responses: the types of the openai package say what is right, a script says what the model writes."""

import copy
import dataclasses
import json
import shutil
import socket
import time
import typing

import openai
import pydantic
import pytest
import scripted
from openai.types import responses as types

from conftest import ROOT, SLOW

WEATHER = {"type": "function", "name": "get_weather", "description": "of a place", "strict": False,
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
PATCH = {"type": "custom", "name": "apply_patch", "description": "changes files",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "files", "tools": [
    {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    {"type": "function", "name": "list", "parameters": {"type": "object", "properties": {}}}]}
# Members of answers that the package's class does not name.
ALSO = {"store"}


@pytest.fixture(scope="module")
def s(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("responses"), scripted.HERMES)


# ---- strictly the package's types ----

def check_members(model, path="answer"):
    """The package's classes accept members that they do not name; here there are none."""
    extra = set(model.model_extra or {}) - (ALSO if isinstance(model, types.Response) else set())
    assert not extra, (path, extra)
    for name in type(model).model_fields:
        value = getattr(model, name)
        for i, one in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(one, pydantic.BaseModel):
                check_members(one, f"{path}.{name}[{i}]")


def validated(kind, value):
    model = pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    check_members(model)
    return model


EVENTS = {kind.model_fields["type"].annotation.__args__[0]: kind
          for kind in typing.get_args(typing.get_args(types.ResponseStreamEvent)[0])}


def events_of(answer):
    assert answer.headers["content-type"] == "text/event-stream"
    return parse(answer.text)


def parse(text):
    blocks = [b for b in text.split("\n\n") if b and not b.startswith(":")]
    assert text.endswith("\n\n") and "[DONE]" not in text
    out = []
    for i, block in enumerate(blocks):
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: ")
        value = json.loads(data[len("data: "):])
        event = validated(EVENTS[value["type"]], value)
        assert event.type == name[len("event: "):] and event.sequence_number == i
        out.append(event)
    return out


ORDER = {"message": (["response.output_item.added", "response.content_part.added"], "response.output_text.delta",
                     ["response.output_text.done", "response.content_part.done", "response.output_item.done"]),
         "reasoning": (["response.output_item.added"], "response.reasoning_text.delta",
                       ["response.reasoning_text.done", "response.output_item.done"]),
         "function_call": (["response.output_item.added"], "response.function_call_arguments.delta",
                           ["response.function_call_arguments.done", "response.output_item.done"]),
         "custom_tool_call": (["response.output_item.added"], "response.custom_tool_call_input.delta",
                              ["response.custom_tool_call_input.done", "response.output_item.done"])}


def text_of(item):
    if item.type in ("message", "reasoning"):
        return item.content[0].text if item.content else ""
    return item.arguments if item.type == "function_call" else item.input


def check_order(events):
    """First and last events, and between them those of one item after the other; its deltas are its text."""
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    last, at = events[-1], 2
    for idx, item in enumerate(last.response.output):
        before, delta, after = ORDER[item.type]
        n = len(before)
        assert [e.type for e in events[at:at + n]] == before
        assert text_of(events[at].item) == "" and events[at].item.id == item.id
        if item.type in ("function_call", "custom_tool_call"):
            assert events[at].item.name == item.name and events[at].item.call_id == item.call_id
        text, at = "", at + n
        while events[at].type == delta:
            text, at = text + events[at].delta, at + 1
        assert text == text_of(item)
        n = len(after)
        assert [e.type for e in events[at:at + n]] == after
        assert events[at + n - 1].item == item
        for e in events[at - 1:at + n]:
            assert getattr(e, "name", None) in (None, getattr(item, "name", None))  # also of a namespace's tool
            assert e.output_index == idx and getattr(e, "item_id", item.id) == item.id
        at += n
    assert at == len(events) - 1 and last.type == "response." + last.response.status
    assert len({e.response.id for e in events if hasattr(e, "response")}) == 1


def shape(response):
    """What is the same whole and in a stream."""
    return [(i.type, getattr(i, "name", None), getattr(i, "namespace", None), text_of(i), getattr(i, "status", None))
            for i in response.output], response.status, response.incomplete_details, response.usage and response.usage.total_tokens


def post(s, **body):
    return s.http.post("/v1/responses", json={"model": "m", **body})


def both(s, **body):
    answer = post(s, **body)
    assert answer.status_code == 200, answer.text
    whole = validated(types.Response, answer.json())
    streamed = post(s, stream=True, **body)
    assert streamed.status_code == 200, streamed.text
    events = events_of(streamed)
    check_order(events)
    assert shape(events[-1].response) == shape(whole)
    assert answer.json()["store"] is False and whole.id.startswith("resp_")
    assert len({i.id for i in whole.output}) == len(whole.output)
    return whole


def call(name, **arguments):
    return '<tool_call>\n' + json.dumps({"name": name, "arguments": arguments}) + '\n</tool_call>'


# ---- text ----

def test_text(s):
    s.say("say it", "Three files,\nnämlich a and b \U0001f600.")
    r = both(s, input="say it", instructions="be brief", metadata={"a": "b"}, temperature=0.5, max_output_tokens=99)
    assert r.output_text == "Three files,\nnämlich a and b \U0001f600." and r.status == "completed"
    assert (r.instructions, r.metadata, r.temperature, r.top_p, r.max_output_tokens) == ("be brief", {"a": "b"}, 0.5, None, 99)
    assert r.usage.input_tokens > 0 and r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert r.output[0].id.startswith("msg_") and r.tools == [] and r.tool_choice == "auto" and r.parallel_tool_calls
    client = s.openai()
    assert client.responses.create(model="m", input="say it").output_text == r.output_text
    with client.responses.stream(model="m", input="say it") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == r.output_text


def test_it_is_the_prompt_of_a_chat(s):
    """The same conversation has as many tokens in both protocols."""
    s.say("count", "1")
    items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
             {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
             {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
              "content": [{"type": "output_text", "text": "c", "annotations": []}]},
             {"role": "developer", "content": "later"}, {"role": "user", "content": "count"}]
    chat = [{"role": "system", "content": "i\n\nd"}, {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "c"}, {"role": "user", "content": "later\n\ncount"}]
    n = s.http.post("/v1/chat/completions", json={"model": "m", "messages": chat}).json()["usage"]["prompt_tokens"]
    assert both(s, instructions="i", input=items).usage.input_tokens == n


def test_long_fields_are_repeated(s):
    """Above 32 KiB the answer said that there were none."""
    s.say("long fields", '{"a": "value 1"}')
    schema = {"type": "object", "properties": {"a": {"enum": [f"value {i}" for i in range(4000)]}}, "required": ["a"]}
    ask = {"instructions": "do it. " * 6000, "metadata": {chr(0x4e00 + i) * 64: "\u4e00" * 512 for i in range(16)},
           "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}}
    r = post(s, input="long fields", **ask)
    assert r.status_code == 200, r.text
    assert {name: r.json()[name] for name in ask} == ask


def test_a_limit_makes_it_incomplete(s):
    s.say("go on", "word " * 50)
    r = both(s, input="go on", max_output_tokens=5)
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.error is None
    assert r.output[0].status == "incomplete" and r.usage.output_tokens == 5
    s.say("cut a call", call("get_weather", city="a place with a long name " * 9))
    r = both(s, input="cut a call", tools=[WEATHER], max_output_tokens=30)
    assert r.status == "incomplete" and r.output[-1].status == "incomplete"
    s.say("cut custom", call("apply_patch", input="a long patch " * 20))
    assert both(s, input="cut custom", tools=[PATCH], max_output_tokens=40).status == "incomplete"


def test_an_empty_answer_is_an_empty_message(s):
    s.say("nothing?", "")
    r = both(s, input="nothing?")
    assert r.output_text == "" and [i.type for i in r.output] == ["message"]


THINKS = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace(
    "{{ m.content or '' }}", "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"))


def test_reasoning_is_an_item_and_comes_back(launch, tmp_path):
    s = scripted.start(launch, tmp_path, THINKS)
    s.say(["hm, well", "Done.", "and again"], "I remember.")
    s.say("and again", "Again.")
    s.say("think first", "<think>\nhm, well\n</think>\n\nDone.")
    r = both(s, input="think first", include=["reasoning.encrypted_content"])
    assert [i.type for i in r.output] == ["reasoning", "message"] and r.output_text == "Done."
    thought = r.output[0]
    assert "hm, well" in thought.content[0].text and thought.summary == [] and thought.id.startswith("rs_")
    assert 0 < r.usage.output_tokens_details.reasoning_tokens < r.usage.output_tokens
    turns = [{"role": "user", "content": "think first"}, *(i.model_dump(exclude_none=True) for i in r.output),
             {"role": "user", "content": "and again"}]
    sealed = copy.deepcopy(turns)
    del sealed[1]["content"]
    foreign = copy.deepcopy(sealed)
    foreign[1]["encrypted_content"] = "gAAAAABx"
    summed = copy.deepcopy(foreign)
    summed[1]["summary"] = [{"type": "summary_text", "text": "hm, well"}]
    for items, said in ((turns, "I remember."), (sealed, "I remember."), (foreign, "Again."), (summed, "I remember.")):
        assert both(s, input=items).output_text == said


# ---- tools ----

def test_a_call_its_result_and_the_answer(s):
    s.say(["<tool_response>", "sunny"], "It is sunny.")
    s.say("weather?", "Let me see.\n" + call("get_weather", city="Rome"))
    ask = [{"role": "user", "content": "weather?"}]
    r = both(s, input=ask, tools=[WEATHER, {"type": "web_search"}])
    text, made = r.output
    assert text.type == "message" and made.type == "function_call" and made.id.startswith("fc_")
    assert (made.name, json.loads(made.arguments), made.namespace) == ("get_weather", {"city": "Rome"}, None)
    assert r.status == "completed" and [t.type for t in r.tools] == ["function"]
    for output in ("sunny", [{"type": "input_text", "text": "sunny"}]):
        items = [*ask, *(i.model_dump(exclude_none=True) for i in r.output),
                 {"type": "function_call_output", "call_id": made.call_id, "output": output}]
        assert both(s, input=items, tools=[WEATHER]).output_text == "It is sunny."


def test_two_calls(s):
    s.say("both towns", call("get_weather", city="Rome") + "\n" + call("get_weather", city="Oslo"))
    r = both(s, input="both towns", tools=[WEATHER])
    assert [json.loads(i.arguments)["city"] for i in r.output] == ["Rome", "Oslo"]
    assert len({i.call_id for i in r.output}) == 2


def test_a_custom_tool_has_a_string_as_input(s):
    said = "*** Begin\n\"quoted\" \\ ä\n*** End"
    s.say(["<tool_response>", "patched"], "Done.")
    s.say("patch it", call("apply_patch", input=said))
    r = both(s, input="patch it", tools=[PATCH])
    made = r.output[0]
    assert (made.type, made.name, made.input) == ("custom_tool_call", "apply_patch", said) and made.id.startswith("ctc_")
    items = [{"role": "user", "content": "patch it"}, made.model_dump(exclude_none=True),
             {"type": "custom_tool_call_output", "call_id": made.call_id, "output": "patched"}]
    assert both(s, input=items, tools=[PATCH]).output_text == "Done."


def test_a_namespace(s):
    s.say(["<tool_call>", "mcp__files__read", "<tool_response>", "milk"], "Milk.")
    s.say("read it", call("mcp__files__read", path="a"))
    r = both(s, input="read it", tools=[SPACE])
    made = r.output[0]
    assert (made.name, made.namespace, json.loads(made.arguments)) == ("read", "mcp__files", {"path": "a"})
    items = [{"role": "user", "content": "read it"}, made.model_dump(exclude_none=True),
             {"type": "function_call_output", "call_id": made.call_id, "output": "milk"}]
    assert both(s, input=items, tools=[SPACE]).output_text == "Milk."


@pytest.mark.parametrize("choice", [
    "required", {"type": "function", "name": "get_weather"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}, {"type": "web_search_preview"}]}])
def test_a_call_is_forced(s, choice):
    s.say("force it", "not a call")
    s.say("obey", call("get_weather", city="Rome"))
    assert both(s, input="obey", tools=[WEATHER, PATCH], tool_choice=choice).output[0].type == "function_call"
    assert post(s, input="force it", tools=[WEATHER], tool_choice=choice).status_code == 400


@pytest.mark.parametrize("choice, tools", [
    ("none", [WEATHER]), ("auto", [WEATHER]), ({"type": "web_search_preview"}, [WEATHER]), ("required", [{"type": "web_search"}]),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search_preview"}]}, [WEATHER])])
def test_no_call_is_forced(s, choice, tools):
    s.say("just talk", "Talk.")
    assert both(s, input="just talk", tools=tools, tool_choice=choice).output_text == "Talk."


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}, {"type": "allowed_tools", "mode": "required", "tools": [
    {"type": "web_search"}]}])
def test_a_choice_of_tools_that_are_left_out_has_no_effect(s, choice):
    s.say("just talk", "Talk.")
    r = post(s, input="just talk", tools=[{"type": "web_search"}], tool_choice=choice)
    assert r.status_code == 200, r.text
    kind = choice if isinstance(choice, str) else choice["type"]
    assert r.headers["x-inferd-ignored"] == f"tools.web_search, tool_choice.{kind}"


# ---- structured output ----

class Town(pydantic.BaseModel):
    city: str
    people: int


def test_a_schema(s):
    s.say("a town", '{"city": "Rome", "people": 3}')
    s.say("no town", "Rome")
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
              "required": ["city", "people"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "town", "schema": schema, "strict": True}}
    assert json.loads(both(s, input="a town", text=form).output_text) == {"city": "Rome", "people": 3}
    assert both(s, input="a town", text={"format": {"type": "json_object"}, "verbosity": "low"}).output_text
    assert post(s, input="no town", text=form).status_code == 400
    client = s.openai()
    assert client.responses.parse(model="m", input="a town", text_format=Town).output_parsed == Town(city="Rome", people=3)
    with client.responses.stream(model="m", input="a town", text_format=Town) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == Town(city="Rome", people=3)


# ---- what agents send, and what is wrong ----

CODEX = {
    "instructions": "You are a coding agent. " * 900, "tool_choice": "auto", "parallel_tool_calls": True, "store": False,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "client_metadata": {"x": "y"},
    "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"}, "service_tier": "auto",
    "tools": [
        {"type": "function", "name": "shell", "description": "runs " * 900, "strict": False, "parameters": {
            "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}},
                                             "timeout_ms": {"type": "number"}},
            "required": ["command"], "additionalProperties": False}},
        PATCH, SPACE, {"type": "web_search", "external_web_access": False}, {"type": "local_shell"},
        {"type": "image_generation", "output_format": "png"}, {"type": "something_new"}],
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list them"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAA"},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": [
            {"type": "input_text", "text": "a.txt"}, {"type": "input_image", "image_url": "data:"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "compaction", "encrypted_content": "x"}, {"type": "ghost_snapshot"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<changed>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "codex?"}]}]}


def test_nothing_that_codex_sends_is_refused(s):
    s.say("codex?", "Yes.")
    r = post(s, stream=True, **CODEX)
    assert r.status_code == 200, r.text
    events = events_of(r)
    check_order(events)
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "Yes."
    ignored = r.headers["x-inferd-ignored"]
    assert "tools.web_search" in ignored and "input" in ignored
    assert len(r.text) < 300_000  # long tools are not repeated three times


def test_an_effort_of_a_later_version_is_the_highest(launch, tmp_path):
    """`codex exec -c model_reasoning_effort="persistent"` ended in 400."""
    tells = dataclasses.replace(scripted.HERMES, template="{{ reasoning_effort }} " + scripted.HERMES.template)
    s = scripted.start(launch, tmp_path, tells)
    s.say(["low<", "how hard?"], "Little.")
    s.say(["max<", "how hard?"], "Very.")
    for effort, said in (("low", "Little."), ("max", "Very."), ("persistent", "Very."), ("", "Very.")):
        r = both(s, input="how hard?", reasoning={"effort": effort})
        assert (r.output_text, r.reasoning.effort) == (said, "low" if effort == "low" else "max")
    assert s.stop() == 0


def test_members_without_effect_are_named_and_not_repeated(s):
    s.say("many members", '{"a": 1}')
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": False, "more": 1}
    body = {"input": "many members", "reasoning": {"effort": "low", "summary": "of tomorrow", "context": "of tomorrow", "mode": 5},
            "text": {"format": form, "verbosity": "low", "tone": "dry"}, "stream_options": {"include_obfuscation": False, "x": 1}}
    r = both(s, **body)
    assert (r.reasoning.effort, r.text.verbosity, r.text.format.name) == ("low", "low", "x")
    assert post(s, **body).headers["x-inferd-ignored"].split(", ") == [
        "reasoning.context", "reasoning.mode", "text.tone", "text.format.more", "stream_options.x"]
    s.say("as text", "Text.")
    assert both(s, input="as text", text={"format": {"type": "text", "x": 1}}, reasoning={}).text.format.type == "text"
    assert both(s, input="many members", text={"format": {**form, "name": None}}).text.format.name


TOOLS = [{**WEATHER, "of_tomorrow": 1}, {**PATCH, "format": {**PATCH["format"], "x": 1}, "cache": {}},
         {"type": "custom", "name": "other", "format": {"type": "grammar", "syntax": "of tomorrow", "definition": "x"}},
         {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "x": 1}, {"type": "web_search"}]}]
CHOICES = [({"type": "web_search"}, "auto"), ({"type": "mcp", "server_label": "x"}, "auto"), ("none", "none"),
           ({"type": "function", "name": "f", "namespace": "n", "x": 1}, {"type": "function", "name": "f"}),
           ({"type": "allowed_tools", "mode": "auto", "x": 1, "tools": [{"type": "custom", "name": "other"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "other"}]}),
           ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "none")]


@pytest.mark.parametrize("choice, repeated", CHOICES)
def test_tools_are_repeated_in_the_members_of_their_types(s, choice, repeated):
    """`both` checks each answer and event; what was sent was repeated as it was."""
    s.say("which tools", "None.")
    s.say("which tool", call("n__f"))
    forced = isinstance(repeated, dict) and repeated["type"] == "function"
    r = both(s, input="which tool" if forced else "which tools", tools=TOOLS, tool_choice=choice).model_dump(exclude_none=True)
    assert r["tools"] == [WEATHER, PATCH, {"type": "custom", "name": "other"}, {
        "type": "namespace", "name": "n", "description": "", "tools": [{"type": "function", "name": "f"}]}]
    assert r["tool_choice"] == repeated


MESSAGE = {"role": "user", "content": "hi"}
WRONG = [
    ({}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": ["hi"]}, "input[0]"),
    ({"input": [{}]}, "input[0].type"), ({"input": [{"type": 5}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"), ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
    ({"input": [MESSAGE, {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[1].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"type": "compaction"}]}, "input"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
    ({"instructions": 5}, "instructions"), ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"), ({"background": True}, "background"), ({"prompt": {"id": "p"}}, "prompt"),
    ({"tools": {}}, "tools"), ({"tools": [5]}, "tools[0]"), ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}, {"type": "function"}]}, "tools[1].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a b"}]}]}, "tools[0].tools[0].name"),
    ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"), ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
    ({"tools": [{"type": "web_search"}, {**WEATHER, "parameters": 5}]}, "tools[1].parameters"),
    ({"tools": [{"type": "web_search"}, {**WEATHER, "strict": True, "parameters": {"type": "array", "uniqueItems": True}}]}, "tools[1].parameters"),
    ({"tool_choice": "maybe"}, "tool_choice"), ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}, "tools": [WEATHER]}, "tool_choice.name"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [WEATHER]}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, "tools": [WEATHER]},
     "tool_choice.tools[0]"),
    ({"text": 5}, "text"), ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"text": {"format": "text"}}, "text.format"),
    ({"text": {"format": {}}}, "text.format.type"), ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_object"}}, "stop": "x"}, "stop"), ({"max_output_tokens": 5, "min_tokens": 9}, "min_tokens"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}, "text.format.schema"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"), ({"reasoning": 5}, "reasoning"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"), ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"), ({"stream": "yes"}, "stream"), ({"include": "x"}, "include"), ({"include": [5]}, "include"),
    ({"metadata": {"a": 5}}, "metadata"), ({"metadata": {"a": "x" * 513}}, "metadata"), ({"metadata": {"k" * 65: "x"}}, "metadata"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"), ({"service_tier": "best"}, "service_tier"), ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
]


@pytest.mark.parametrize("body, param", WRONG, ids=[f"{i}-{p}" for i, (_, p) in enumerate(WRONG)])
def test_what_is_wrong_is_named(s, body, param):
    ask = {"input": "hi", **body} if body and "input" not in body else body
    r = post(s, **ask)
    assert r.status_code == 400, r.text
    error = r.json()["error"]
    assert error["param"] == param and error["type"] == "invalid_request_error" and error["code"] and error["message"]
    for chats in ('"max_tokens', "reasoning_effort", "messages", "response_format"):
        assert chats not in error["message"]


def test_other_errors(s):
    assert s.http.post("/v1/responses", json={"model": "x", "input": "hi"}).status_code == 404
    assert s.http.post("/v1/responses", content="{", headers={"content-type": "application/json"}).status_code == 400
    r = post(s, input="word " * 200_000)
    error = r.json()["error"]
    assert r.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == "input"
    assert "maximum context length" in error["message"]
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        s.openai().responses.create(model="m", input="hi", max_output_tokens=200_000)
    assert post(s, input="not in the script").json()["error"]["param"] == "input"  # found by the engine
    s.say("bye", "Bye.")
    r = post(s, input="bye", temprature=1, max_output_tokens=1)
    assert r.headers["x-inferd-ignored"] == "temprature"


# ---- in the middle of a stream ----

def test_a_client_that_leaves_frees_its_pages(s):
    s.say("talk on", "word " * 20_000)
    with s.http.stream("POST", "/v1/responses", json={"model": "m", "input": "talk on", "stream": True}) as r:
        for i, _ in enumerate(r.iter_lines()):
            if i > 40:
                break
    s.settled()


def check_failed(events, n_events, code):
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"] and len(events) >= n_events
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed"
    assert events[-1].response.error.code == code and events[-1].response.error.message


def test_a_failure_ends_the_stream(s):
    """The script has a call that the grammar does not allow, behind some text."""
    s.say("talk, then fail", "word " * 100 + '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>')
    check_failed(events_of(post(s, input="talk, then fail", tools=[WEATHER], stream=True)), 100, "invalid_prompt")
    s.settled()


def test_a_failure_ends_a_stream_that_has_had_only_heartbeats(launch, tmp_path):
    """A prompt that takes longer than the request may."""
    def config(model):
        ms = int(1500 * SLOW)
        return scripted.config_of(model, limits={"client_timeout_ms": int(600 * SLOW), "queue_timeout_ms": ms, "total_timeout_ms": ms})
    s = scripted.start(launch, tmp_path, config=config)
    check_failed(events_of(post(s, input="word " * 50_000, stream=True)), 3, "server_error")
    s.settled()


def test_preempted_it_says_the_same(launch, tmp_path):
    """An urgent request for another model takes the pages of a stream that has begun (two pages in all)."""
    def config(model):
        return {"devices": [{"kind": "cpu", "memory": "6MiB"}], "host_arena": "0",
                "models": [{"name": "m", "path": str(model)}, {"name": "urgent", "path": str(model), "class": "high"}]}
    s = scripted.start(launch, tmp_path, config=config)
    page = (ROOT / "docs/api.md").read_text()[:30000]
    said = " ".join(f"line {i}," for i in range(400))
    s.say("tell all", said + "\n" + call("get_weather", city="Rome"))
    s.say("now!", "Here.")
    lines, urgent = [], None
    body = {"model": "m", "input": page + " tell all", "tools": [WEATHER], "stream": True}
    with s.http.stream("POST", "/v1/responses", json=body) as r:
        for line in r.iter_lines():
            lines.append(line)
            if urgent is None and "output_text.delta" in line:
                urgent = post(s, model="urgent", input=page[::-1] + " now!").json()
    assert urgent["output"][0]["content"][0]["text"] == "Here."
    assert s.metric("inferd_preemptions_total") > 0
    events = parse("\n".join(lines) + "\n")
    check_order(events)
    message, made = events[-1].response.output
    assert message.content[0].text == said and json.loads(made.arguments) == {"city": "Rome"}
    s.settled()


# ---- a long answer ----

def test_the_end_of_a_long_answer_reaches_a_slow_client(launch, tmp_path):
    """The text comes four times at the end, and the client has not read all that came before."""
    s = scripted.start(launch, tmp_path)
    text = "".join(f"{i} \"quoted\"\n" for i in range(3000))
    s.say("be long", text + call("get_weather", city="Rome"))
    body = json.dumps({"model": "m", "input": "be long", "stream": True, "tools": [WEATHER]}).encode()
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.settimeout(120 * SLOW)
        c.sendall(b"POST /v1/responses HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        got = []
        while piece := c.recv(65536):
            got.append(piece)
    head, _, stream = b"".join(got).partition(b"\r\n\r\n")
    assert b" 200 " in head and stream.endswith(b"\n\n"), s.stderr()[-1000:]
    events = parse(stream.decode())
    check_order(events)
    assert events[-1].response.output_text == text.removesuffix("\n") and len(text) > 38_000
    s.settled()
    assert s.stop() == 0


# ---- what is kept ----

KEY = {name: {"Authorization": f"Bearer sk-kept-{name}-0123456789"} for name in "ab"}


def keeping(launch, tmp_path, tenants=False, **limits):
    def config(model):
        more = {"tenants": [{"name": name, "keys": [h["Authorization"].split()[1]]} for name, h in KEY.items()]} if tenants else {}
        return scripted.config_of(model, state_dir=str(tmp_path / "state"), limits=limits, **more)
    s = scripted.start(launch, tmp_path, config=config)
    s.say(["the code is seven", "what is the code?"], "Seven.")
    s.say("what is the code?", "Unknown.")
    s.say("the code is seven", "Noted.")
    s.say(["<tool_call>", "<tool_response>", "sunny"], "It is sunny.")
    s.say("weather?", call("get_weather", city="Rome"))
    return s


def kept(s, id, key=None, method="GET"):
    return s.http.request(method, f"/v1/responses/{id}", headers=key)


def missing(answer):
    assert answer.status_code == 404, answer.text
    error = answer.json()["error"]
    assert error["code"] == "response_not_found" and error["type"] == "invalid_request_error" and "not found" in error["message"]
    return True


def no_previous(answer):
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "previous_response_id" and "not found" in error["message"], error
    assert error["code"] == "previous_response_not_found"
    return True


def test_a_conversation_goes_on_from_what_was_kept(launch, tmp_path):
    s = keeping(launch, tmp_path)
    for stream in (False, True):
        first = post(s, input="the code is seven", instructions="only for this one", stream=stream)
        first = events_of(first)[-1].response if stream else validated(types.Response, first.json())
        assert first.store is True and first.previous_response_id is None
        assert kept(s, first.id).json() == json.loads(first.model_dump_json(exclude_unset=True))
        second = post(s, input="what is the code?", previous_response_id=first.id).json()
        assert second["previous_response_id"] == first.id and second["output"][0]["content"][0]["text"] == "Seven."
        assert second["instructions"] is None
        # What is before the second one does not need the first.
        assert kept(s, first.id, method="DELETE").json() == {"id": first.id, "object": "response", "deleted": True}
        assert missing(kept(s, first.id)) and missing(kept(s, first.id, method="DELETE"))
        assert no_previous(post(s, input="what is the code?", previous_response_id=first.id))
        third = post(s, input=[{"role": "user", "content": "what is the code?"}], previous_response_id=second["id"], store=False)
        assert third.json()["output"][0]["content"][0]["text"] == "Seven." and third.json()["store"] is False
        assert missing(kept(s, third.json()["id"]))
    # The prompt is that of the whole conversation, without the instructions of before.
    whole = [{"role": "user", "content": "the code is seven"}, {"role": "assistant", "content": "Noted."},
             {"role": "user", "content": "what is the code?"}]
    n = post(s, input=whole).json()["usage"]["input_tokens"]
    assert second["usage"]["input_tokens"] == n
    assert s.stop() == 0


def test_a_call_that_was_kept_gets_its_result(launch, tmp_path):
    s = keeping(launch, tmp_path)
    client = s.openai()
    tools = [WEATHER]
    first = client.responses.create(model="m", input="weather?", tools=tools)
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
    second = client.responses.create(model="m", input=[output], tools=tools, previous_response_id=first.id)
    assert second.output_text == "It is sunny."
    assert client.responses.retrieve(second.id).output_text == "It is sunny."
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    assert s.stop() == 0


def test_what_is_kept_survives_a_restart(launch, tmp_path):
    s = keeping(launch, tmp_path)
    first = post(s, input="the code is seven").json()
    assert s.stop() == 0
    (file,) = (tmp_path / "state/responses").glob("*.json")
    assert file.name == first["id"] + ".json" and file.stat().st_mode & 0o077 == 0
    s = keeping(launch, tmp_path)
    assert kept(s, first["id"]).json() == first
    assert post(s, input="what is the code?", previous_response_id=first["id"]).json()["output"][0]["content"][0]["text"] == "Seven."
    # A file that was damaged is none.
    file.write_bytes(file.read_bytes().replace(b"Noted.", b"Hated."))
    assert missing(kept(s, first["id"])) and no_previous(post(s, input="x", previous_response_id=first["id"]))
    assert "damaged" in s.stderr() and not file.exists()
    assert s.stop() == 0


def test_a_tenant_has_only_its_own(launch, tmp_path):
    s = keeping(launch, tmp_path, tenants=True)
    ask = lambda who, **body: s.http.post("/v1/responses", json={"model": "m", **body}, headers=KEY[who])
    first = ask("a", input="the code is seven").json()
    assert missing(kept(s, first["id"], KEY["b"])) and missing(kept(s, first["id"], KEY["b"], "DELETE"))
    assert no_previous(ask("b", input="what is the code?", previous_response_id=first["id"]))
    assert kept(s, first["id"]).status_code == 401
    assert kept(s, first["id"], KEY["a"]).json() == first
    assert s.stop() == 0


def test_ids_of_clients_are_no_paths(launch, tmp_path):
    s = keeping(launch, tmp_path)
    (tmp_path / "state/responses/x.json").write_text("secret")
    for id in ("x", "..%2fquotas", "resp_..", "resp_" + "0" * 32, "resp_" + "0" * 31 + "%2f", "%00", "a" * 250):
        answer = kept(s, id)
        assert answer.status_code == 404 and "secret" not in answer.text
        assert kept(s, id, method="DELETE").status_code == 404
    for id in ("../x", "x", "", "resp_", "a\nb"):
        assert no_previous(post(s, input="x", previous_response_id=id))
    assert (tmp_path / "state/responses/x.json").exists()
    for wrong in (5, ["resp_1"], True):
        assert post(s, input="x", previous_response_id=wrong).json()["error"]["param"] == "previous_response_id"
    assert post(s, input="x", store="yes").json()["error"]["param"] == "store"
    assert s.stop() == 0


def test_the_oldest_go_first(launch, tmp_path):
    s = keeping(launch, tmp_path, responses_max=3)
    ids = [post(s, input="the code is seven").json()["id"] for _ in range(5)]
    end = time.monotonic() + 20 * SLOW
    while len(list((tmp_path / "state/responses").glob("*.json"))) > 3 or kept(s, ids[1]).status_code != 404:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert [kept(s, id).status_code for id in ids] == [404, 404, 200, 200, 200]
    assert s.stop() == 0


def test_an_answer_does_not_need_the_disk(launch, tmp_path):
    """The folder is gone, as a full disk is: answers come, and the log says what was not kept."""
    s = keeping(launch, tmp_path)
    shutil.rmtree(tmp_path / "state/responses")
    for stream in (False, True):
        answer = post(s, input="the code is seven", stream=stream)
        assert answer.status_code == 200 and "Noted." in answer.text
    end = time.monotonic() + 20 * SLOW
    while "response_not_kept" not in s.stderr():
        assert time.monotonic() < end
        time.sleep(0.02)
    id = post(s, input="the code is seven").json()["id"]
    while kept(s, id).status_code != 404:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert s.stop() == 0


def test_an_operator_may_keep_none(launch, tmp_path):
    s = keeping(launch, tmp_path, responses_max=0)
    first = post(s, input="the code is seven").json()
    assert first["store"] is False and missing(kept(s, first["id"])) and not (tmp_path / "state/responses").exists()
    assert s.stop() == 0


def test_without_a_folder_nothing_is_kept(s):
    s.say("keep me", "No.")
    answer = post(s, input="keep me", store=True).json()
    assert answer["store"] is False and missing(kept(s, answer["id"])) and missing(kept(s, answer["id"], method="DELETE"))
    error = post(s, input="x", previous_response_id=answer["id"]).json()["error"]
    assert error["param"] == "previous_response_id" and "state_dir" in error["message"]
