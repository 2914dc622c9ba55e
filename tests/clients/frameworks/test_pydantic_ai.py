"""pydantic-ai: chat completions, the Responses API, Messages."""

import asyncio

import pydantic
import pydantic_ai
import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from talk import call

PACKAGES = ["pydantic-ai-slim"]


class Town(pydantic.BaseModel):
    """A town."""

    name: str
    people: int


TOWN = Town(name="Ulm", people=126949)


@pytest.fixture(params=["chat", "responses", "messages"])
def model(s, request):
    if request.param == "messages":
        # It takes NativeOutput for models that it knows, or whose profile says so.
        return AnthropicModel("m", provider=AnthropicProvider(base_url=s.url, api_key="none"),
                              profile={"supports_json_schema_output": True})
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind("m", provider=OpenAIProvider(base_url=s.v1, api_key="none"))


def get_weather(city: str) -> str:
    """The weather of a place."""
    return "hail in " + city


def test_loop(s, model):
    """a tool is called until the model answers"""
    s.loop("Weather in Kiel?", call("get_weather", city="Kiel"), "hail in Kiel", "There is hail.")
    assert pydantic_ai.Agent(model, tools=[get_weather]).run_sync("Weather in Kiel?").output == "There is hail."


def test_stream(s, model):
    """`run_stream` with a tool call"""
    async def run():
        async with pydantic_ai.Agent(model, tools=[get_weather]).run_stream("Weather in Mainz?") as result:
            return [text async for text in result.stream_text(delta=True, debounce_by=None)]

    s.loop("Weather in Mainz?", call("get_weather", city="Mainz"), "hail in Mainz", "There is hail again.")
    pieces = asyncio.run(run())
    assert "".join(pieces) == "There is hail again." and len(pieces) > 2


@pytest.mark.parametrize("mode", ["ToolOutput", "NativeOutput", "PromptedOutput"])
def test_output(s, model, mode):
    """structured output: ToolOutput, NativeOutput, PromptedOutput"""
    s.say(f"Which town, {mode}?", call("final_result", **TOWN.model_dump()) if mode == "ToolOutput" else TOWN.model_dump_json())
    agent = pydantic_ai.Agent(model, output_type=getattr(pydantic_ai, mode)(Town), retries=0)
    assert agent.run_sync(f"Which town, {mode}?").output == TOWN


def test_output_behind_a_tool(s, model):
    """ToolOutput behind a call of a tool"""
    s.loop("Which town has hail?", call("get_weather", city="Ulm"), "hail in Ulm", call("final_result", **TOWN.model_dump()))
    agent = pydantic_ai.Agent(model, output_type=Town, tools=[get_weather])
    assert agent.run_sync("Which town has hail?").output == TOWN
