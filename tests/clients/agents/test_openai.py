"""openai (Python): chat completions, the Responses API."""

import json
from typing import Literal

import openai
import pydantic
import pytest
from talk import call

PACKAGES = ["openai"]


class GetWeather(pydantic.BaseModel):
    """The weather of a place."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


class Town(pydantic.BaseModel):
    name: str
    people: int


ULM = '{"name": "Ulm", "people": 126949}'


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(s):
    with openai.OpenAI(base_url=s.v1, api_key="none", max_retries=0) as client:
        yield client


# ---- chat completions ----

def test_chat_loop(s, client):
    """a call, its result, the answer"""
    s.loop("Weather in Rome?", call("GetWeather", city="Rome", unit="celsius"), "sunny, 30", "It is sunny.")
    messages, tools = user("Weather in Rome?"), [openai.pydantic_function_tool(GetWeather)]
    said = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0]
    assert said.finish_reason == "tool_calls"
    made = said.message.tool_calls[0]
    assert json.loads(made.function.arguments) == {"city": "Rome", "unit": "celsius"}
    messages += [said.message, {"role": "tool", "tool_call_id": made.id, "content": "sunny, 30"}]
    said = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0]
    assert (said.message.content, said.finish_reason) == ("It is sunny.", "stop")


def test_chat_parses_calls(s, client):
    """`.parse`: the arguments of a call become an object of a class"""
    s.say("Weather in Oslo?", call("GetWeather", city="Oslo", unit="celsius") * 2)
    said = client.chat.completions.parse(model="m", messages=user("Weather in Oslo?"),
                                         tools=[openai.pydantic_function_tool(GetWeather)]).choices[0].message
    assert [c.function.parsed_arguments for c in said.tool_calls] == 2 * [GetWeather(city="Oslo", unit="celsius")]


def test_chat_parses_an_answer(s, client):
    """`.parse`: the answer becomes an object of a class"""
    s.say("Which town?", ULM)
    said = client.chat.completions.parse(model="m", messages=user("Which town?"), response_format=Town)
    assert said.choices[0].message.parsed == Town(name="Ulm", people=126949)


def test_chat_stream_of_a_call(s, client):
    """`.stream`: events of a call, its arguments piece by piece"""
    s.say("Weather in Bonn?", "Let me look.\n" + call("GetWeather", city="Bonn", unit="celsius"))
    with client.chat.completions.stream(model="m", messages=user("Weather in Bonn?"),
                                        tools=[openai.pydantic_function_tool(GetWeather)]) as stream:
        events = list(stream)
    pieces = [e for e in events if e.type == "tool_calls.function.arguments.delta"]
    done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
    assert len(pieces) > 2 and [e.parsed_arguments for e in done] == [GetWeather(city="Bonn", unit="celsius")]
    assert "".join(e.arguments_delta for e in pieces) == done[0].arguments
    assert stream.get_final_completion().choices[0].message.content == "Let me look."


def test_chat_stream_of_an_answer(s, client):
    """`.stream`: an answer becomes an object of a class"""
    s.say("Which town now?", ULM)
    with client.chat.completions.stream(model="m", messages=user("Which town now?"), response_format=Town) as stream:
        parsed = [e.parsed for e in stream if e.type == "content.delta"]
    assert {"name": "Ulm"} in parsed and stream.get_final_completion().choices[0].message.parsed.name == "Ulm"


def test_async_chat(s):
    """AsyncOpenAI: a stream with usage"""
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(base_url=s.v1, api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=user("Say hello."), stream=True,
                                                          stream_options={"include_usage": True})
            return [chunk async for chunk in stream]

    s.say("Say hello.", "Hello there.")
    chunks = asyncio.run(ask())
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there."
    assert chunks[-1].usage.completion_tokens > 1


def test_json_object(s, client):
    """`response_format` of type json_object"""
    s.say("Any object?", '{"a": [1, 2]}')
    said = client.chat.completions.create(model="m", messages=user("Any object?"), response_format={"type": "json_object"})
    assert json.loads(said.choices[0].message.content) == {"a": [1, 2]}


def test_custom_tool(s, client):
    """a custom tool: its input is a text"""
    s.loop("Run it.", call("shell", input="ls -l\n"), "total 0", "Nothing is there.")
    tools = [{"type": "custom", "custom": {"name": "shell", "description": "runs a command"}}]
    messages = user("Run it.")
    said = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
    assert (said.tool_calls[0].type, said.tool_calls[0].custom.input) == ("custom", "ls -l\n")
    messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "total 0"}]
    assert client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message.content \
        == "Nothing is there."


CUSTOM = [{"type": "custom", "custom": {"name": "shell"}}]


def test_custom_tool_in_a_stream(s, client):
    """a custom tool in a stream, by `create`"""
    s.say("Run it in pieces.", call("shell", input="ls"))
    chunks = client.chat.completions.create(model="m", messages=user("Run it in pieces."), tools=CUSTOM, stream=True)
    parts = [p for c in chunks for p in c.choices[0].delta.tool_calls or []]
    assert parts[0].type == "custom" and "".join(p.custom["input"] for p in parts) == "ls"


@pytest.mark.xfail(reason="the helper of openai 3.57.0 knows no custom tools in chunks: AttributeError", strict=True,
                   raises=AttributeError)
def test_custom_tool_in_the_stream_helper(s, client):
    """a custom tool by `.stream`"""
    s.say("Run it with help.", call("shell", input="ls"))
    with client.chat.completions.stream(model="m", messages=user("Run it with help."), tools=CUSTOM) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.tool_calls[0].custom.input == "ls"


def test_functions(s, client):
    """`functions` and `function_call`, the fields of 2023, in a stream, too"""
    s.loop("Old weather in Rome?", call("GetWeather", city="Rome", unit="celsius"), "sunny", "It was sunny.")
    functions, messages = [openai.pydantic_function_tool(GetWeather)["function"]], user("Old weather in Rome?")
    ask = {"model": "m", "functions": functions}
    said = client.chat.completions.create(messages=messages, **ask).choices[0]
    assert said.finish_reason == "function_call" and json.loads(said.message.function_call.arguments)["city"] == "Rome"
    chunks = client.chat.completions.create(messages=messages, stream=True, **ask)
    deltas = [c.choices[0].delta.function_call for c in chunks if c.choices[0].delta.function_call]
    assert "".join(d.arguments for d in deltas) == said.message.function_call.arguments
    messages += [said.message, {"role": "function", "name": "GetWeather", "content": "sunny"}]
    assert client.chat.completions.create(messages=messages, **ask).choices[0].message.content == "It was sunny."


# ---- responses ----

def test_responses_loop(s, client):
    """responses: a call, its result, the answer"""
    s.loop("Weather in Lyon?", call("GetWeather", city="Lyon", unit="celsius"), "foggy", "It is foggy.")
    tools = [openai.pydantic_function_tool(GetWeather)["function"] | {"type": "function"}]
    asked = user("Weather in Lyon?")
    said = client.responses.create(model="m", input=asked, tools=tools, store=False)
    made = next(item for item in said.output if item.type == "function_call")
    asked += [*said.output, {"type": "function_call_output", "call_id": made.call_id, "output": "foggy"}]
    assert client.responses.create(model="m", input=asked, tools=tools, store=False).output_text == "It is foggy."


def test_responses_custom_tool(s, client):
    """responses: a custom tool, in a stream"""
    s.say("Run it, please.", call("shell", input="ls"))
    with client.responses.stream(model="m", input="Run it, please.", tools=[{"type": "custom", "name": "shell"}]) as stream:
        kinds = [e.type for e in stream]
        made = stream.get_final_response().output[0]
    assert "response.custom_tool_call_input.done" in kinds and (made.type, made.input) == ("custom_tool_call", "ls")


def test_responses_parse(s, client):
    """responses: `.parse` of answers and calls"""
    s.say("Which town, then?", ULM)
    said = client.responses.parse(model="m", input="Which town, then?", text_format=Town)
    assert said.output_parsed == Town(name="Ulm", people=126949)
    s.say("Weather in Graz?", call("GetWeather", city="Graz", unit="celsius"))
    said = client.responses.parse(model="m", input="Weather in Graz?", tools=[openai.pydantic_function_tool(GetWeather)])
    assert said.output[0].parsed_arguments == GetWeather(city="Graz", unit="celsius")


def test_responses_stream(s, client):
    """responses: `.stream` of answers and calls"""
    s.say("Which town at last?", ULM)
    with client.responses.stream(model="m", input="Which town at last?", text_format=Town) as stream:
        kinds = [e.type for e in stream]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert kinds.count("response.output_text.delta") > 2
        assert stream.get_final_response().output_parsed.name == "Ulm"
    s.say("Weather in Linz?", call("GetWeather", city="Linz", unit="celsius"))
    with client.responses.stream(model="m", input="Weather in Linz?",
                                 tools=[openai.pydantic_function_tool(GetWeather)]) as stream:
        kinds = [e.type for e in stream]
        assert kinds.count("response.function_call_arguments.delta") > 2
        assert stream.get_final_response().output[0].parsed_arguments.city == "Linz"


def test_responses_that_are_kept(kept):
    """responses: `previous_response_id`, `retrieve`, `delete`, where the daemon has a `state_dir`"""
    kept.say(["The code is 7.", "Which code?"], "Seven.", tail=1000)
    kept.say("The code is 7.", "Noted.")
    with openai.OpenAI(base_url=kept.v1, api_key="none", max_retries=0) as client:
        first = client.responses.create(model="m", input="The code is 7.")
        assert client.responses.create(model="m", input="Which code?", previous_response_id=first.id).output_text == "Seven."
        assert client.responses.retrieve(first.id).output_text == "Noted."
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)


# ---- the list of models ----

def test_models(client):
    """the list of models, with their aliases"""
    assert [m.id for m in client.models.list()] == ["m", "gpt-5.5"]
