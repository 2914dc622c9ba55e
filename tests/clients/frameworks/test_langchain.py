"""LangChain: langchain-openai over chat completions and the Responses API, langchain-anthropic over Messages."""

import langchain.agents
import langchain_anthropic
import langchain_core.tools
import langchain_openai
import pydantic
import pytest
from talk import call

PACKAGES = ["langchain", "langchain-openai", "langchain-anthropic"]


class Town(pydantic.BaseModel):
    """A town."""

    name: str
    people: int


TOWN = Town(name="Ulm", people=126949)


@langchain_core.tools.tool
def get_weather(city: str) -> str:
    """The weather of a place."""
    return "hail in " + city


@pytest.fixture(params=["chat", "responses", "messages"])
def model(s, request):
    if request.param == "messages":
        return langchain_anthropic.ChatAnthropic(model_name="m", base_url=s.url, api_key="none", max_retries=0, timeout=100)
    return langchain_openai.ChatOpenAI(model="m", base_url=s.v1, api_key="none", max_retries=0,
                                       use_responses_api=request.param == "responses")


def test_plain(s, model):
    """`invoke`, `batch` and `stream`"""
    s.say("Say one.", "One.")
    s.say("Say two.", "Two and a half.")
    assert model.invoke("Say one.").text == "One."
    assert [m.text for m in model.batch(["Say one.", "Say two."])] == ["One.", "Two and a half."]
    pieces = [c.text for c in model.stream("Say two.")]
    assert "".join(pieces) == "Two and a half." and sum(p != "" for p in pieces) > 2


def test_logprobs(s):
    """`logprobs`, over chat completions"""
    s.say("Say three.", "Three.")
    model = langchain_openai.ChatOpenAI(model="m", base_url=s.v1, api_key="none", max_retries=0)
    tokens = model.bind(logprobs=True, top_logprobs=2).invoke("Say three.").response_metadata["logprobs"]["content"]
    assert "".join(t["token"] for t in tokens) == "Three." and all(t["logprob"] <= 0 for t in tokens)


def test_bind_tools(s, model):
    """`bind_tools`: a call, its result, the answer"""
    s.loop("Weather in Kiel?", call("get_weather", city="Kiel"), "hail in Kiel", "There is hail.")
    bound = model.bind_tools([get_weather])
    messages = [("user", "Weather in Kiel?")]
    said = bound.invoke(messages)
    assert said.tool_calls[0]["args"] == {"city": "Kiel"}
    messages += [said, get_weather.invoke(said.tool_calls[0])]
    assert bound.invoke(messages).text == "There is hail."


def test_stream_of_a_call(s, model):
    """`stream`: a call in pieces"""
    s.say("Weather in Mainz?", call("get_weather", city="Mainz"))
    whole = None
    for chunk in model.bind_tools([get_weather]).stream("Weather in Mainz?"):
        whole = chunk if whole is None else whole + chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [("get_weather", {"city": "Mainz"})]


def test_agent(s, model):
    """`create_agent` calls tools until the model answers"""
    s.loop("Weather in Bonn?", call("get_weather", city="Bonn") * 2, "hail in Bonn", "It hails.")
    agent = langchain.agents.create_agent(model, [get_weather], system_prompt="Be brief.")
    messages = agent.invoke({"messages": [("user", "Weather in Bonn?")]})["messages"]
    assert messages[-1].text == "It hails." and [m.type for m in messages] == ["human", "ai", "tool", "tool", "ai"]


def test_structured_output_through_a_tool(s, model):
    """`with_structured_output`, function_calling"""
    s.say("Which town?", call("Town", **TOWN.model_dump()))
    assert model.with_structured_output(Town, method="function_calling").invoke("Which town?") == TOWN


def test_structured_output_json_schema(s, model):
    """`with_structured_output`, json_schema"""
    s.say("Which town now?", TOWN.model_dump_json())
    assert model.with_structured_output(Town, method="json_schema").invoke("Which town now?") == TOWN


def test_structured_output_json_mode(s):
    """`with_structured_output`, json_mode, over chat completions"""
    s.say("in JSON?", TOWN.model_dump_json())
    model = langchain_openai.ChatOpenAI(model="m", base_url=s.v1, api_key="none", max_retries=0)
    assert model.with_structured_output(Town, method="json_mode").invoke("Which town, in JSON?") == TOWN
