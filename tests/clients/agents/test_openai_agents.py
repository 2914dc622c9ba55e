"""openai-agents: chat completions, the Responses API."""

import asyncio

import agents
import openai
import pydantic
import pytest
from talk import call

PACKAGES = ["openai-agents"]


class Town(pydantic.BaseModel):
    name: str
    people: int


@agents.function_tool
def get_weather(city: str) -> str:
    """The weather of a place."""
    return "hail in " + city


@pytest.fixture(params=["chat", "responses"])
def model(s, request):
    kind = agents.OpenAIChatCompletionsModel if request.param == "chat" else agents.OpenAIResponsesModel
    return kind(model="m", openai_client=openai.AsyncOpenAI(base_url=s.v1, api_key="none", max_retries=0))


@pytest.fixture(autouse=True)
def no_tracing():
    agents.set_tracing_disabled(True)


def test_agents_loop(s, model):
    """a tool is called until the model answers"""
    s.loop("Weather in Kiel?", call("get_weather", city="Kiel"), "hail in Kiel", "There is hail.")
    agent = agents.Agent(name="weather", instructions="Be brief.", model=model, tools=[get_weather])
    assert agents.Runner.run_sync(agent, "Weather in Kiel?").final_output == "There is hail."


def test_agents_stream(s, model):
    """a stream with a tool call"""
    async def run():
        agent = agents.Agent(name="weather", model=model, tools=[get_weather])
        result = agents.Runner.run_streamed(agent, "Weather in Mainz?")
        kinds = [e.data.type for e in [e async for e in result.stream_events()] if e.type == "raw_response_event"]
        return result.final_output, kinds

    s.loop("Weather in Mainz?", call("get_weather", city="Mainz"), "hail in Mainz", "There is hail again.")
    said, kinds = asyncio.run(run())
    assert said == "There is hail again." and kinds.count("response.output_text.delta") > 2


def test_agents_output_type(s, model):
    """`output_type`: the answer becomes an object of a class"""
    s.say("Which town?", '{"name": "Ulm", "people": 126949}')
    agent = agents.Agent(name="towns", model=model, output_type=Town)
    assert agents.Runner.run_sync(agent, "Which town?").final_output == Town(name="Ulm", people=126949)


def test_agents_hand_off(s, model):
    """one agent hands over to another"""
    poet = agents.Agent(name="poet", model=model)
    first = agents.Agent(name="first", model=model, handoffs=[poet])
    s.loop("Write a poem.", call("transfer_to_poet"), "poet", "Roses are red.")
    result = agents.Runner.run_sync(first, "Write a poem.")
    assert result.final_output == "Roses are red." and result.last_agent.name == "poet"


def test_agents_go_on_from_a_response(kept):
    """`previous_response_id`, where the daemon keeps responses"""
    kept.say(["The code is 8.", "Which code?"], "Eight.", tail=1000)
    kept.say("The code is 8.", "Noted.")
    model = agents.OpenAIResponsesModel(model="m", openai_client=openai.AsyncOpenAI(base_url=kept.v1, api_key="none"))
    agent = agents.Agent(name="clerk", model=model)
    first = agents.Runner.run_sync(agent, "The code is 8.")
    said = agents.Runner.run_sync(agent, "Which code?", previous_response_id=first.last_response_id)
    assert said.final_output == "Eight."
