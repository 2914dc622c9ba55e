"""Tool calls at their edges, in a scripted daemon: what is a call in formats without a mark before it, and how calls
end that something cut off."""

import json
import zlib

import pytest

import scripted

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
W = {"type": "function", "function": {"name": "w", "strict": True, "parameters": CITY}}


def start(launch, folder, tool_format):
    models = lambda path: [{"name": "m", "path": str(path), "tool_format": tool_format}]
    return scripted.start(launch, folder, scripted.HERMES, lambda path: scripted.config_of(path, models=models(path)))


@pytest.fixture(scope="module")
def llama(launch, tmp_path_factory):
    return start(launch, tmp_path_factory.mktemp("llama"), "llama3_json")


@pytest.fixture(scope="module")
def pythonic(launch, tmp_path_factory):
    return start(launch, tmp_path_factory.mktemp("pythonic"), "pythonic")


def events(response):
    """The data of a stream, without [DONE]."""
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(s, text, stream, **more):
    """(content, calls as (name, arguments), finish reason); None: the grammar did not allow it."""
    response = s.chat(text, stream=stream, **more)
    if response.status_code != 200:
        return None
    if not stream:
        choice = response.json()["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        if "function_call" in message:
            calls = [{"function": message["function_call"]}]
        made = [(c.get("function") or c["custom"]) for c in calls]
        return (message["content"] or "", [(c["name"], c.get("arguments", c.get("input"))) for c in made],
                choice["finish_reason"])
    content, calls, finish = "", [], None
    for event in events(response):
        if "error" in event:
            return None
        choice = event["choices"][0]
        content += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        deltas = choice["delta"].get("tool_calls") or []
        if "function_call" in choice["delta"]:
            deltas = [{"function": choice["delta"]["function_call"]}]
        for delta in deltas:
            of = delta.get("function") or delta["custom"]
            if "name" in of:
                calls.append([of["name"], ""])
            calls[-1][1] += of.get("arguments", of.get("input")) or ""
    return content, [tuple(c) for c in calls], finish


# ---- without a mark ----

TEXT, CALL, REFUSED = "text", "call", "refused"


def check(s, what, text, stream, more):
    asked = f"case {zlib.crc32(text.encode())}?"
    s.say(asked, text)
    said = chat(s, asked, stream, tools=[W], parallel_tool_calls=False, **more)
    if what == REFUSED:
        assert said is None
    elif what == CALL:
        assert said[0].strip() == "" and said[2] == "tool_calls"
        assert [(n, json.loads(a)) for n, a in said[1]] == [("w", {"city": "Rome"})]
    else:
        assert said == (text, [], "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("what, text", [
    (CALL, '{"name": "w", "parameters": {"city": "Rome"}}'),
    (CALL, '{"name":"w","parameters":{"city":"Rome"}}'),
    (CALL, ' {"type": "function", "name": "w", "parameters": {"city": "Rome"}}'),
    (REFUSED, '{"name":"w","parameters":{"city":5}}'),
    (REFUSED, ' {"name": "w", "parameters": {"city": 5}}'),
    (REFUSED, '\t{"name": "w", "parameters": {"city": 5}}'),
    (REFUSED, '{"name": "nope", "parameters": {"city": "Rome"}}'),
    (REFUSED, '{"name": "w", "parameters": {"city": "Rome"}}; {"name": "w", "parameters": {"city": "Rome"}}'),
    (TEXT, '{"parameters": {"town": 5}, "name": "nope"}'),
    (TEXT, '{"city": 5, "name": "w"}'),
    (TEXT, '[{"name": "w", "parameters": {"city": 5}}]'),
])
def test_an_object_is_a_call_only_if_the_grammar_wrote_it_as_one(llama, what, text, stream):
    check(llama, what, text, stream, {})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("what, text", [
    (CALL, "[w(city='Rome')]"),
    (CALL, " [w(city='Rome')]"),
    (REFUSED, "[w(city=5)]"),
    (REFUSED, " [w(city=5)]"),
    (REFUSED, "\n\n[nope(a=1), w()]"),
    (REFUSED, "[w(city='Rome'), w(city='Rome')]"),
    (TEXT, "[1, 2]"),
    (TEXT, "[a link](http://example.org)"),
])
def test_a_list_is_of_calls_only_if_the_grammar_wrote_it_so(pythonic, what, text, stream):
    check(pythonic, what, text, stream, {})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_content_of_a_schema_beside_tools_is_no_call(llama, pythonic, stream):
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    for i, form in enumerate([{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "p", "schema": person}}]):
        for s in (llama, pythonic):
            s.say(f"who {i}?", '{"name": "Ann", "age": 5}')
            assert chat(s, f"who {i}?", stream, tools=[W], response_format=form) == ('{"name": "Ann", "age": 5}', [], "stop")
        llama.say(f"call {i}?", '{"name": "w", "parameters": {"city": 5}}')
        assert chat(llama, f"call {i}?", stream, tools=[W], response_format=form) is None
        pythonic.say(f"call {i}?", "[w(city='Rome')]")
        assert chat(pythonic, f"call {i}?", stream, tools=[W], response_format=form) == ("", [("w", '{"city":"Rome"}')], "tool_calls")
