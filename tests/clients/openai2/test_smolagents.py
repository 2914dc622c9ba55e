"""smolagents: OpenAIServerModel; chat completions."""

import pytest
import smolagents
from talk import call

PACKAGES = ["smolagents"]


@smolagents.tool
def get_weather(city: str) -> str:
    """The weather of a place.

    Args:
        city: its name
    """
    return "hail in " + city


@pytest.fixture
def model(s):
    return smolagents.OpenAIServerModel("m", api_base=s.v1, api_key="none")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_tool_calling_agent(s, model, stream):
    """`ToolCallingAgent` calls a tool, then `final_answer`; with and without a stream"""
    ask = f"Weather in Kiel, {'streamed' if stream else 'whole'}?"
    s.say([ask, "hail in Kiel"], call("final_answer", answer="There is hail."))
    s.say(ask, call("get_weather", city="Kiel"))
    agent = smolagents.ToolCallingAgent(tools=[get_weather], model=model, stream_outputs=stream, max_steps=3)
    assert agent.run(ask) == "There is hail."


def test_code_agent(s, model):
    """`CodeAgent` writes Python"""
    s.say("Weather in Mainz?", "I ask.\n<code>\nfinal_answer(get_weather(city='Mainz'))\n</code>")
    agent = smolagents.CodeAgent(tools=[get_weather], model=model, max_steps=2)
    assert agent.run("Weather in Mainz?") == "hail in Mainz"
