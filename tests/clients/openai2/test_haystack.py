"""Haystack: chat completions, the Responses API."""

import pydantic
import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from talk import call

PACKAGES = ["haystack-ai"]


class Town(pydantic.BaseModel):
    name: str
    people: int


def get_weather(city: str) -> str:
    """The weather of a place."""
    return "hail in " + city


def generator(s, kind=OpenAIChatGenerator, **more):
    return kind(model="m", api_base_url=s.v1, api_key=Secret.from_token("none"), max_retries=0, **more)


@pytest.mark.parametrize("kind", [OpenAIChatGenerator, OpenAIResponsesChatGenerator], ids=["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_agent(s, kind, stream):
    """`Agent` calls a tool until the model answers; with and without a stream"""
    ask = f"Weather in Kiel, {'streamed' if stream else 'whole'}?"
    s.loop(ask, call("get_weather", city="Kiel"), "hail in Kiel", "There is hail.")
    pieces = []
    agent = Agent(chat_generator=generator(s, kind), tools=[create_tool_from_function(get_weather)],
                  streaming_callback=pieces.append if stream else None)
    assert agent.run(messages=[ChatMessage.from_user(ask)])["messages"][-1].text == "There is hail."
    assert len(pieces) > 4 if stream else not pieces


def test_structured_output(s):
    """`response_format` of a class"""
    s.say("Which town?", '{"name": "Ulm", "people": 126949}')
    said = generator(s, generation_kwargs={"response_format": Town}).run([ChatMessage.from_user("Which town?")])["replies"][0]
    assert Town.model_validate_json(said.text).name == "Ulm"
