"""Tool calls and reasoning in chats: what a script says as each family of models writes it, what clients get."""

import copy
import dataclasses
import json
import re

import openai
import pydantic
import pytest
import scripted
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from conftest import model_config

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "of a place",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"], "additionalProperties": False}}}
LIST = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
ASKED = [{"role": "user", "content": "weather?"}]


@pytest.fixture(scope="module")
def hermes(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("hermes"), scripted.HERMES)


def both(s, **body):
    """The message whole, and put together from a stream; they must say the same."""
    client = s.openai()
    whole = client.chat.completions.create(model="m", **body).choices[0]
    with client.chat.completions.stream(model="m", **body) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0]
    calls = lambda c: [(t.function.name, t.function.arguments) for t in c.message.tool_calls or []]
    assert (whole.message.content or "") == (streamed.message.content or "")
    assert calls(whole) == calls(streamed)
    assert whole.finish_reason == streamed.finish_reason
    return whole


def test_a_call_and_its_answer(hermes):
    hermes.say(["<tool_response>", "sunny"], "It is sunny.")
    hermes.say("weather?", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>')
    choice = both(hermes, messages=ASKED, tools=[WEATHER])
    call = choice.message.tool_calls[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome", "days": 2})
    answer = both(hermes, tools=[WEATHER], messages=[
        *ASKED, choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"}])
    assert answer.message.content == "It is sunny." and answer.finish_reason == "stop"


def test_text_around_calls_is_kept(hermes):
    hermes.say("around", 'Let me see.\n<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>\n'
                         '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>')
    choice = both(hermes, messages=[{"role": "user", "content": "around"}], tools=[LIST])
    assert choice.message.content == "Let me see." and len(choice.message.tool_calls) == 2
    assert len({c.id for c in choice.message.tool_calls}) == 2


def test_tool_choice(hermes):
    hermes.say("force", "anything")  # not a call
    with pytest.raises(openai.BadRequestError):
        hermes.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "force"}],
                                                tools=[LIST], tool_choice="required")
    hermes.say("named", '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>')
    choice = both(hermes, messages=[{"role": "user", "content": "named"}], tools=[WEATHER, LIST],
                  tool_choice={"type": "function", "function": {"name": "ls"}})
    assert choice.message.tool_calls[0].function.name == "ls"


def test_arguments_follow_the_schema(hermes):
    hermes.say("wrong", '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Rome"}}\n</tool_call>')
    with pytest.raises(openai.BadRequestError, match="not allowed|outside|mask"):
        hermes.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "wrong"}],
                                                tools=[WEATHER])


def test_what_cannot_be_enforced_is_named(hermes):
    schema = {"type": "object", "properties": {
        "n": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "when": {"type": "string", "format": "lunar"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    hermes.say("weaken", '<tool_call>\n{"name": "f", "arguments": {"n": [7, 7], "when": "full"}}\n</tool_call>')
    ask = {"model": "m", "messages": [{"role": "user", "content": "weaken"}], "tools": [tool]}
    for _ in range(2):  # compiled, and kept
        r = hermes.http.post("/v1/chat/completions", json=ask)
        assert r.status_code == 200, r.text
        assert sorted(r.headers["x-inferd-weakened"].split(", ")) == ["f#/properties/n/uniqueItems", "f#/properties/when/format"]
    tool["function"]["strict"] = True
    r = hermes.http.post("/v1/chat/completions", json=ask)
    assert r.status_code == 400 and r.json()["error"]["param"] == "tools[0].function.parameters", r.text


@pytest.mark.parametrize("form", ["gemma4", "pythonic", "minimax_m3"])
def test_what_a_notation_cannot_say_may_be_any_arguments(launch, tmp_path, form):
    """It was 500 "the server is short of memory", or 400 for the time that compiling took."""
    models = lambda path: [{"name": "m", "path": str(path), "tool_format": form}]
    s = scripted.start(launch, tmp_path, config=lambda path: scripted.config_of(path, models=models(path)))
    s.say("hello", "Hi.")

    def ask(tools, **k):
        tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": p, **k}} for i, p in enumerate(tools)]
        return s.http.post("/v1/chat/completions",
                           json={"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "tools": tools})

    itself = {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/properties/a"}]}}}
    small = {"type": "object", "properties": {c: {"type": "string"} for c in "abcd"}}
    usual = {"type": "object", "properties": {f"p{i}": small if i % 4 == 0 else {"type": "string"} for i in range(8)}, "required": ["p0"]}
    optional = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(60)}}
    for tools in ([itself], [usual] * 40, [optional]):
        r = ask(tools)
        told = r.headers.get("x-inferd-weakened")
        assert r.status_code == 200 and told == ("f0#/properties/a/anyOf/1/$ref" if tools == [itself] else None), (r.text, told)
    names = [f"p{i}" for i in range(1100)]
    many = {"type": "object", "properties": {n: {"type": "null"} for n in names}, "required": names, "additionalProperties": False}
    r = ask([usual, many])
    assert r.status_code == 200 and r.headers["x-inferd-weakened"] == "f1#", r.text
    r = ask([many], strict=True)
    assert r.status_code == 400, r.text
    error = r.json()["error"]
    assert error["code"] == "unsupported_schema" and error["param"] == "tools[0].function.parameters", error


def test_limits_beyond_64_bits(launch, tmp_path):
    """As Rust writes the range of a u64.  A limit is the nearest double; a value that is not known exactly is no limit."""
    s = scripted.start(launch, tmp_path)
    s.say("", "Fine.")

    def asked(path, schema, strict):
        schema = {"type": "object", "properties": {"n": schema}, "required": ["n"], "additionalProperties": False}
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        tool = {"name": "f", "strict": strict}
        if path == "messages":
            body["tools"] = [{**tool, "input_schema": schema}]
        elif path == "responses":
            body = {"model": "m", "input": "x", "store": False, "tools": [{"type": "function", **tool, "parameters": schema}]}
        else:
            body["tools"] = [{"type": "function", "function": {**tool, "parameters": schema}}]
        return s.http.post(f"/v1/{path}", json=body)

    for path in ("chat/completions", "responses", "messages"):
        for strict in (False, True):
            r = asked(path, {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, strict)
            assert r.status_code == 200 and "x-inferd-weakened" not in r.headers, r.text
        r = asked(path, {"type": "integer", "enum": [1, 2**64 - 1]}, False)
        assert r.status_code == 200 and r.headers["x-inferd-weakened"] == "f#/properties/n/enum", r.text
        r = asked(path, {"type": "integer", "const": 10**30}, True)
        assert r.status_code == 400 and '"const" at #/properties/n cannot be enforced' in r.json()["error"]["message"], r.text


def test_texts_between_tags_follow_their_schema(launch, tmp_path):
    models = lambda path: [{"name": "m", "path": str(path), "tool_format": "qwen_xml"}]
    s = scripted.start(launch, tmp_path, config=lambda path: scripted.config_of(path, models=models(path)))
    schema = {"type": "object", "properties": {
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"}, "when": {"type": "string", "format": "lunar"},
        "at": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$defs": {"n": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    call = "<tool_call>\n<function=f>\n<parameter=code>\n%s\n</parameter>\n<parameter=at>\n%s\n</parameter>\n</function>\n</tool_call>"
    s.say("fits", call % ("ROM", "[1, 2]"))
    s.say("long", call % ("ROMA", "[1, 2]"))
    s.say("inside", call % ("ROM", '[1, "2"]'))
    choice = both(s, messages=[{"role": "user", "content": "fits"}], tools=[tool])
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"code": "ROM", "at": [1, 2]}
    r = s.http.post("/v1/chat/completions",
                    json={"model": "m", "messages": [{"role": "user", "content": "fits"}], "tools": [tool]})
    assert r.headers["x-inferd-weakened"] == "f#/properties/when/format"
    for word in ("long", "inside"):
        with pytest.raises(openai.BadRequestError, match="not allowed|outside|mask"):
            s.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": word}], tools=[tool])
    # JSON could enforce it, a text between tags cannot.
    tool["function"]["parameters"] = {"type": "object", "properties": {"code": {"anyOf": [{"type": "string", "pattern": "^R"}, {"type": "string", "maxLength": 2}]}},
                                      "required": ["code"], "additionalProperties": False}
    ask = {"model": "m", "messages": [{"role": "user", "content": "fits"}], "tools": [tool], "max_tokens": 1}
    for strict in (True, False, True):
        tool["function"]["strict"] = strict
        r = s.http.post("/v1/chat/completions", json=ask)
        if strict:
            assert r.status_code == 400 and r.json()["error"]["param"] == "tools[0].function.parameters", r.text
            assert "properties/code" in r.json()["error"]["message"]
        else:
            assert r.status_code == 200 and "f#/properties/code" in r.headers["x-inferd-weakened"]
    # A name may be as long as its list.
    tool["function"]["parameters"] = {"type": "object", "properties": {f"{k}" * 200: {"type": "string", "format": "lunar"} for k in "abcdefgh"}}
    r = s.http.post("/v1/chat/completions", json=ask)
    assert r.status_code == 400 and tool["function"]["strict"]
    tool["function"]["strict"] = False
    header = s.http.post("/v1/chat/completions", json=ask).headers["x-inferd-weakened"]
    assert len(header) < 500 and header.endswith("+6"), header


FAMILIES = {
    "mistral": (scripted.MISTRAL, 'Wait. [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}, "id": "abcdefgh1"}, '
                                  '{"name": "ls", "arguments": {}, "id": "abcdefgh2"}]', "Wait.", None, 2),
    "harmony": (scripted.HARMONY, '<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.get_weather'
                                  '<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>', None, "hm", 1),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_marks_that_are_control_tokens(launch, tmp_path, name):
    family, said, content, thought, n_calls = FAMILIES[name]
    s = scripted.start(launch, tmp_path, family)
    s.say("weather?", said)
    model = s.http.get("/v1/models").json()["data"][0]
    assert model["tool_format"] == name and "tool_format_refused" not in model
    choice = both(s, messages=ASKED, tools=[WEATHER, LIST])
    assert choice.finish_reason == "tool_calls" and choice.message.content == content
    assert getattr(choice.message, "reasoning_content", None) == thought
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
    assert calls == [("get_weather", {"city": "Rome"}), ("ls", {})][:n_calls]


def test_a_model_that_cannot_call_tools_refuses_them(launch, tiny_model):
    d = launch(model_config(tiny_model, "tiny", model={"tool_format": "none"}))
    for more in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError) as e:
            d.openai().chat.completions.create(model="tiny", messages=ASKED, tools=[LIST], max_tokens=3, **more)
        assert (e.value.code, e.value.param) == ("unsupported_parameter", "tools")
    d.openai().chat.completions.create(model="tiny", messages=ASKED, tools=[LIST], max_tokens=3, tool_choice="none")


def test_a_real_model_whose_template_knows_no_tools(launch, real_model):
    """Its answers are those of a model of 135 million parameters; their form is right."""
    d = launch(model_config(real_model, "smollm2", memory="1GiB"))
    client = openai.OpenAI(base_url=d.url + "/v1", api_key="-", max_retries=0)
    ask = {"model": "smollm2", "temperature": 0, "max_tokens": 200, "tools": [WEATHER, LIST]}
    messages = [{"role": "user", "content": "What is the weather in Rome?"}]
    choice = client.chat.completions.create(messages=messages, tool_choice="required", parallel_tool_calls=False,
                                            **ask).choices[0]
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        assert call.function.name in ("get_weather", "ls")
        assert "city" in arguments if call.function.name == "get_weather" else isinstance(arguments, dict)
    messages += [choice.message.model_dump(exclude_none=True),
                 *({"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in choice.message.tool_calls)]
    answer = client.chat.completions.create(messages=messages, **ask)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls
    assert answer.usage.prompt_tokens_details.cached_tokens > 0


# ---- custom tools: one text as input ----

SHELL = {"type": "custom", "custom": {"name": "shell", "description": "runs a command"}}
RUN = 'cat <<X\n"quoted" \\ ä\nX'


def hermes_call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def test_a_custom_tool_is_called_with_a_text(hermes):
    hermes.say(["<tool_response>", "a file"], "There is a file.")
    hermes.say("run it", "I run it.\n" + hermes_call("shell", input=RUN))
    client, messages = hermes.openai(), [{"role": "user", "content": "run it"}]
    choice = client.chat.completions.create(model="m", messages=messages, tools=[SHELL, LIST]).choices[0]
    made = choice.message.tool_calls[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I run it.")
    assert (made.type, made.custom.name, made.custom.input) == ("custom", "shell", RUN)
    messages += [choice.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": made.id, "content": "a file"}]
    answer = client.chat.completions.create(model="m", messages=messages, tools=[SHELL, LIST])
    assert answer.choices[0].message.content == "There is a file."
    assert answer.usage.prompt_tokens_details.cached_tokens > 16  # the call is written as the model wrote it


def strictly(kind, value):
    """It is what the package declares."""
    return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)


def chunks_of(s, **body):
    body = {"model": "m", **body}
    strictly(ChatCompletion, s.http.post("/v1/chat/completions", json=body).json())
    with s.http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as r:
        events = [json.loads(line[6:]) for line in r.iter_lines() if line.startswith("data: {")]
    assert all(len(e["choices"]) == 1 for e in events)
    for event in events:
        plain = copy.deepcopy(event)  # the package declares no custom tools in chunks
        for part in plain["choices"][0]["delta"].get("tool_calls", []):
            assert part.get("type", "function") == "function" or part.pop("type") == "custom"
        strictly(ChatCompletionChunk, plain)
    return [e["choices"][0] for e in events]


def test_a_custom_tool_in_a_stream(hermes):
    hermes.say("run both", hermes_call("ls") + "\n" + hermes_call("shell", input=RUN))
    choices = chunks_of(hermes, messages=[{"role": "user", "content": "run both"}], tools=[SHELL, LIST])
    calls = [c["delta"]["tool_calls"][0] for c in choices if "tool_calls" in c["delta"]]
    begun = [c for c in calls if "id" in c]
    assert [(c["index"], c["type"]) for c in begun] == [(0, "function"), (1, "custom")]
    assert begun[1]["custom"] == {"name": "shell", "input": ""}
    assert [c["custom"]["input"] for c in calls if c["index"] == 1] == ["", RUN]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_custom_tool_can_be_chosen(hermes):
    hermes.say("choose it", hermes_call("shell", input="ls"))
    choice = hermes.openai().chat.completions.create(
        model="m", messages=[{"role": "user", "content": "choose it"}], tools=[SHELL, LIST],
        tool_choice={"type": "custom", "custom": {"name": "shell"}}).choices[0]
    assert choice.message.tool_calls[0].custom.input == "ls"


def test_the_input_of_a_custom_tool_follows_a_regular_expression(hermes):
    """One in another syntax is shown to the model, not enforced, and named."""
    form = lambda syntax, text: {"type": "grammar", "grammar": {"syntax": syntax, "definition": text}}
    ask = lambda text, format: hermes.http.post("/v1/chat/completions", json={
        "model": "m", "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "custom", "custom": {"name": "pick", "format": format}}]})
    hermes.say("a number", hermes_call("pick", input="42"))
    r = ask("a number", form("regex", "[0-9]+"))
    assert r.json()["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == "42"
    assert "x-inferd-ignored" not in r.headers and "x-inferd-weakened" not in r.headers
    assert ask("a number", form("regex", "[a-z]+")).status_code == 400  # the script says what is not allowed
    r = ask("a number", form("lark", "start: /[a-z]+/"))
    assert r.status_code == 200 and r.headers["x-inferd-ignored"] == "tools.custom.format"
    assert ask("a number", {"type": "text"}).status_code == 200


def test_a_call_of_a_custom_tool_that_is_cut(hermes):
    hermes.say("cut it", hermes_call("shell", input="a long text " * 20))
    choice = hermes.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "cut it"}],
                                                     tools=[SHELL], max_tokens=40).choices[0]
    assert choice.finish_reason == "length"
    assert re.fullmatch("(a long text ?)+[a-z ]*", choice.message.tool_calls[0].custom.input)


# ---- functions and function_call, the fields of 2023 ----

def test_functions_and_function_call(hermes):
    hermes.say(["<tool_response>", "hail"], "It hails.")
    hermes.say("rain of 2023?", "Let me see.\n" + hermes_call("get_weather", city="Rome"))
    client, functions = hermes.openai(), [WEATHER["function"], LIST["function"]]
    messages = [{"role": "user", "content": "rain of 2023?"}]
    choice = client.chat.completions.create(model="m", messages=messages, functions=functions).choices[0]
    made = choice.message.function_call
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
    assert (choice.message.content, made.name, json.loads(made.arguments)) == ("Let me see.", "get_weather", {"city": "Rome"})
    messages += [choice.message.model_dump(exclude_none=True), {"role": "function", "name": made.name, "content": "hail"}]
    answer = client.chat.completions.create(model="m", messages=messages, functions=functions).choices[0]
    assert (answer.message.content, answer.message.function_call, answer.finish_reason) == ("It hails.", None, "stop")
    choice = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "rain of 2023?"}],
                                            functions=functions, function_call="none").choices[0]
    assert choice.finish_reason == "stop" and "<tool_call>" in choice.message.content


def test_function_call_in_a_stream(hermes):
    hermes.say("old stream?", hermes_call("get_weather", city="Rome"))
    choices = chunks_of(hermes, messages=[{"role": "user", "content": "old stream?"}], functions=[WEATHER["function"]],
                        function_call={"name": "get_weather"})
    calls = [c["delta"]["function_call"] for c in choices if "function_call" in c["delta"]]
    assert calls[0] == {"name": "get_weather", "arguments": ""} and not any("name" in c for c in calls[1:])
    assert json.loads("".join(c["arguments"] for c in calls)) == {"city": "Rome"} and len(calls) > 2
    assert choices[-1]["finish_reason"] == "function_call"
    assert not any("tool_calls" in c["delta"] for c in choices)


def test_functions_allow_one_call(hermes):
    hermes.say("old twice", hermes_call("ls") + "\n" + hermes_call("ls"))
    with pytest.raises(openai.BadRequestError):  # the script says what is not allowed
        hermes.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "old twice"}],
                                                functions=[LIST["function"]])


def test_a_function_that_is_not_there_cannot_be_called(hermes):
    ask = lambda **more: hermes.http.post("/v1/chat/completions", json={"model": "m", "messages": ASKED, **more}).json()["error"]
    assert ask(functions=[LIST["function"]], function_call={"name": "f"})["param"] == "function_call.name"
    assert ask(function_call={"name": "f"})["param"] == "function_call"
    assert ask(functions=[LIST["function"]], tools=[LIST])["param"] == "functions"
