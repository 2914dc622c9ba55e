"""Semantic Kernel: ChatCompletionAgent; chat completions."""

import asyncio
import typing

import openai
import pydantic
import pytest
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments, kernel_function
from talk import call

PACKAGES = ["semantic-kernel"]


class Weather:
    @kernel_function(description="The weather of a place")
    def get(self, city: typing.Annotated[str, "its name"]) -> str:
        return "hail in " + city


class Town(pydantic.BaseModel):
    name: str
    people: int


@pytest.fixture
def service(s):
    return OpenAIChatCompletion(ai_model_id="m", async_client=openai.AsyncOpenAI(base_url=s.v1, api_key="none", max_retries=0))


def test_agent(s, service):
    """an agent calls a plugin until the model answers"""
    s.loop("Weather in Kiel?", call("Weather-get", city="Kiel"), "hail in Kiel", "There is hail.")
    agent = ChatCompletionAgent(service=service, name="weather", plugins=[Weather()])
    assert str(asyncio.run(agent.get_response(messages="Weather in Kiel?"))) == "There is hail."


def test_agent_stream(s, service):
    """the same in a stream"""
    async def run():
        agent = ChatCompletionAgent(service=service, name="weather", plugins=[Weather()])
        return [str(piece.message) async for piece in agent.invoke_stream(messages="Weather in Mainz?")]

    s.loop("Weather in Mainz?", call("Weather-get", city="Mainz"), "hail in Mainz", "There is hail again.")
    pieces = asyncio.run(run())
    assert "".join(pieces) == "There is hail again." and len(pieces) > 2


def test_structured_output(s, service):
    """`response_format` of a class"""
    s.say("Which town?", '{"name": "Ulm", "people": 126949}')
    arguments = KernelArguments(settings=OpenAIChatPromptExecutionSettings(response_format=Town))
    agent = ChatCompletionAgent(service=service, name="towns", arguments=arguments)
    assert Town.model_validate_json(str(asyncio.run(agent.get_response(messages="Which town?")))).name == "Ulm"
