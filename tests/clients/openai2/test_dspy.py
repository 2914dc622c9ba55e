"""DSPy: signatures; chat completions."""

import dspy
import pytest
from dspy import lm15
from talk import call

PACKAGES = ["dspy"]


@pytest.fixture
def lm(s):
    """DSPy uses tools and schemas of a model only if its provider says that it has them."""
    access = lm15.AccessPolicy(provider="inferd", env_keys=("INFERD_KEY",), base_url=s.v1)
    lm15.register_provider(lm15.ProviderDefinition.chat(access, compat=lm15.OpenAIChatCompat()), replace=True,
                           supports=lm15.ModelSupport(function_calling=True, response_schema=True))
    model = dspy.LM("inferd/m", api_key="none", cache=False, num_retries=0)
    with dspy.context(lm=model):
        yield model


@pytest.fixture
def unknown(s):
    """As a server of OpenAI's protocol that DSPy knows nothing about."""
    model = dspy.LM("openai/m", api_base=s.v1, api_key="none", cache=False, num_retries=0)
    with dspy.context(lm=model):
        yield model


@pytest.mark.parametrize("kind", ["lm", "unknown"])
def test_predict_chat_adapter(s, kind, request):
    """`Predict` with ChatAdapter"""
    request.getfixturevalue(kind)
    s.say("capital of Peru", "[[ ## answer ## ]]\nLima\n\n[[ ## completed ## ]]")
    with dspy.context(adapter=dspy.ChatAdapter()):
        assert dspy.Predict("question -> answer")(question="capital of Peru").answer == "Lima"


def test_predict_json_adapter(s, lm):
    """`Predict` with JSONAdapter"""
    s.say("people in Lima", '{"answer": 10}')
    with dspy.context(adapter=dspy.JSONAdapter()):
        assert dspy.Predict("question -> answer: int")(question="people in Lima").answer == 10


def test_native_tools(s, lm):
    """`Predict` with native function calling"""
    def get_weather(city: str) -> str:
        """The weather of a place."""
        return "hail in " + city

    class Ask(dspy.Signature):
        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    s.say("Weather in Kiel?", call("get_weather", city="Kiel"))
    with dspy.context(adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        said = dspy.Predict(Ask)(question="Weather in Kiel?", tools=[dspy.Tool(get_weather)])
    assert [(c.name, c.args) for c in said.calls.tool_calls] == [("get_weather", {"city": "Kiel"})]


def test_react(s, lm):
    """`ReAct`: a tool, then the answer"""
    def get_weather(city: str) -> str:
        """The weather of a place."""
        return "hail in " + city

    react = dspy.ReAct("question -> answer", tools=[get_weather])
    step = ("[[ ## next_thought ## ]]\n{}\n\n[[ ## next_tool_name ## ]]\n{}\n\n[[ ## next_tool_args ## ]]\n{}\n\n"
            "[[ ## completed ## ]]")
    s.say(["Weather in Mainz?", "hail in Mainz", "`reasoning`"],
          "[[ ## reasoning ## ]]\nI know.\n\n[[ ## answer ## ]]\nIt hails.\n\n[[ ## completed ## ]]", tail=1500)
    s.say(["Weather in Mainz?", "hail in Mainz"], step.format("Enough.", "finish", "{}"))
    s.say("Weather in Mainz?", step.format("I ask.", "get_weather", '{"city": "Mainz"}'))
    assert react(question="Weather in Mainz?").answer == "It hails."
