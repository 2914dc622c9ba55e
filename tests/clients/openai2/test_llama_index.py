"""LlamaIndex: OpenAILike, OpenAILikeResponses; chat completions, the Responses API."""

import asyncio

import pydantic
import pytest
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from talk import call

PACKAGES = ["llama-index-core", "llama-index-llms-openai-like"]


class Town(pydantic.BaseModel):
    """A town."""

    name: str
    people: int


TOWN = Town(name="Ulm", people=126949)


def get_weather(city: str) -> str:
    """The weather of a place."""
    return "hail in " + city


@pytest.fixture(params=[OpenAILike, OpenAILikeResponses], ids=["chat", "responses"])
def llm(s, request):
    return request.param(model="m", api_base=s.v1, api_key="none", is_chat_model=True, is_function_calling_model=True,
                      context_window=100000, max_retries=0)


def test_agent(s, llm):
    """`FunctionAgent` calls a tool until the model answers, streamed"""
    async def run():
        handler = FunctionAgent(tools=[get_weather], llm=llm).run("Weather in Kiel?")
        pieces = [e.delta async for e in handler.stream_events() if isinstance(e, AgentStream) and e.delta]
        return str(await handler), pieces

    s.loop("Weather in Kiel?", call("get_weather", city="Kiel"), "hail in Kiel", "There is hail.")
    said, pieces = asyncio.run(run())
    assert said == "There is hail." and len(pieces) > 2


def test_predict_and_call(s, llm):
    """`predict_and_call`"""
    s.say("Weather in Mainz?", call("get_weather", city="Mainz"))
    said = llm.predict_and_call([FunctionTool.from_defaults(get_weather)], "Weather in Mainz?")
    assert str(said) == "hail in Mainz"


def test_structured_output(s, llm):
    """`structured_predict`: through a tool in chat completions, through a schema in the Responses API"""
    by_schema = isinstance(llm, OpenAILikeResponses)
    question = f"Which town, by a {'schema' if by_schema else 'tool'}?"
    s.say(question, TOWN.model_dump_json() if by_schema else call("Town", **TOWN.model_dump()))
    assert llm.structured_predict(Town, PromptTemplate(question)) == TOWN
