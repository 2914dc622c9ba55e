"""LiteLLM: the providers openai, hosted_vllm, lm_studio, llamafile and anthropic; chat completions, the Responses API, Messages."""

import asyncio
import json

import litellm
import pydantic
import pytest
from talk import call

PACKAGES = ["litellm"]

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "of a place", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class Town(pydantic.BaseModel):
    name: str
    people: int


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture(params=["openai/m", "hosted_vllm/m", "lm_studio/m", "llamafile/m", "anthropic/m"])
def ask(s, request):
    """The function litellm.completion for this daemon."""
    def completion(messages, **more):
        base = s.url if request.param.startswith("anthropic") else s.v1
        return litellm.completion(model=request.param, api_base=base, api_key="none", messages=messages, num_retries=0, **more)

    completion.by_tool = request.param.startswith("anthropic")
    return completion


def test_loop(s, ask):
    """a call, its result, the answer"""
    s.loop("Weather in Kiel?", call("get_weather", city="Kiel"), "hail", "There is hail.")
    messages = user("Weather in Kiel?")
    said = ask(messages, tools=[WEATHER]).choices[0]
    assert said.finish_reason == "tool_calls" and json.loads(said.message.tool_calls[0].function.arguments) == {"city": "Kiel"}
    messages += [said.message, {"role": "tool", "tool_call_id": said.message.tool_calls[0].id, "content": "hail"}]
    assert ask(messages, tools=[WEATHER]).choices[0].message.content == "There is hail."


def test_stream_of_a_call(s, ask):
    """a stream, put together by LiteLLM"""
    s.say("Weather in Mainz?", "Let me look.\n" + call("get_weather", city="Mainz"))
    chunks = list(ask(user("Weather in Mainz?"), tools=[WEATHER], stream=True))
    whole = litellm.stream_chunk_builder(chunks).choices[0].message
    assert whole.content.strip() == "Let me look." and json.loads(whole.tool_calls[0].function.arguments) == {"city": "Mainz"}


def test_structured_output(s, ask):
    """`response_format` of a class"""
    town = {"name": "Ulm", "people": 126949}  # through a tool, where LiteLLM does not know the model
    question = "Which town, by a tool?" if ask.by_tool else "Which town?"
    s.say(question, call("json_tool_call", **town) if ask.by_tool else json.dumps(town))
    said = ask(user(question), response_format=Town).choices[0].message.content
    assert Town.model_validate_json(said).people == 126949


def test_context_overflow(ask):
    """a full context is a ContextWindowExceededError, which fallbacks wait for"""
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(user("word " * 140000), max_tokens=10)


def test_responses(s):
    """`litellm.responses`"""
    s.say("Say hello.", "Hello there.")
    said = litellm.responses(model="openai/m", api_base=s.v1, api_key="none", input="Say hello.")
    assert said.output[0].content[0].text == "Hello there."


def test_messages(s):
    """`litellm.anthropic_messages`: Messages over chat completions"""
    s.say("Say goodbye.", "Goodbye.")
    said = asyncio.run(litellm.anthropic_messages(model="hosted_vllm/m", api_base=s.v1, api_key="none", max_tokens=100,
                                                  messages=user("Say goodbye.")))
    assert said["content"][0]["text"] == "Goodbye."
