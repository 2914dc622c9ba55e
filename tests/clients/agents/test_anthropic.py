"""anthropic (Python): Messages."""

import anthropic
import pydantic
import pytest
from talk import call

PACKAGES = ["anthropic"]

WEATHER = {"name": "get_weather", "description": "of a place", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


class Town(pydantic.BaseModel):
    name: str
    people: int


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(s):
    with anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0) as client:
        yield client


def test_messages_loop(s, client):
    """a call, its result, the answer"""
    s.loop("Weather in Turin?", "Let me look.\n" + call("get_weather", city="Turin"), "cloudy", "It is cloudy.")
    ask = {"model": "m", "max_tokens": 500, "tools": [WEATHER], "system": "Be brief."}
    messages = user("Weather in Turin?")
    said = client.messages.create(messages=messages, **ask)
    assert said.stop_reason == "tool_use" and [b.type for b in said.content] == ["text", "tool_use"]
    made = said.content[1]
    assert (made.name, made.input) == ("get_weather", {"city": "Turin"})
    messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": made.id, "content": "cloudy"}]}]
    said = client.messages.create(messages=messages, **ask)
    assert (said.content[0].text, said.stop_reason) == ("It is cloudy.", "end_turn")


def test_messages_stream(s, client):
    """`.stream`: text and a call, piece by piece"""
    s.say("Weather in Genoa?", "Let me look.\n" + call("get_weather", city="Genoa"))
    with client.messages.stream(model="m", max_tokens=500, messages=user("Weather in Genoa?"), tools=[WEATHER]) as stream:
        kinds = [e.type for e in stream]
        said = stream.get_final_message()
    assert kinds.count("text") > 1 and kinds.count("input_json") > 1
    assert said.content[0].text.strip() == "Let me look." and said.content[1].input == {"city": "Genoa"}
    assert said.usage.output_tokens > 5


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Weather of a place.

    Args:
        city: its name
    """
    return "stormy in " + city


def run_tools(s, client, ask, **more):
    s.loop(ask, call("get_weather", city="Pisa"), "stormy in Pisa", "It is stormy.")
    runner = client.beta.messages.tool_runner(model="m", max_tokens=500, tools=[get_weather], messages=user(ask), **more)
    assert runner.until_done().content[0].text == "It is stormy."


def test_tool_runner(s, client):
    """the tool runner calls Python functions until the model answers"""
    run_tools(s, client, "Weather in Pisa?", thread=False)


def test_tool_runner_with_a_thread(s, client):
    """the tool runner finds that the server keeps no threads, and sends the whole conversation"""
    run_tools(s, client, "Weather in Pisa now?")


def test_messages_parse(s, client):
    """`.parse`: the answer becomes an object of a class"""
    s.say("Which town?", '{"name": "Ulm", "people": 126949}')
    said = client.messages.parse(model="m", max_tokens=500, messages=user("Which town?"), output_format=Town)
    assert said.parsed_output == Town(name="Ulm", people=126949)


def test_tool_choice(s, client):
    """`tool_choice` with a name: the call is the answer"""
    s.say("Weather in Bari?", call("get_weather", city="Bari"))
    said = client.messages.create(model="m", max_tokens=500, messages=user("Weather in Bari?"), tools=[WEATHER],
                                  tool_choice={"type": "tool", "name": "get_weather"})
    assert said.content[0].input == {"city": "Bari"}


def test_count_tokens(client):
    """`count_tokens`"""
    assert client.messages.count_tokens(model="m", messages=user("Weather?"), tools=[WEATHER]).input_tokens > 20
