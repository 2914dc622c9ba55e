"""llm: the command line, with a model of extra-openai-models.yaml; chat completions."""

import json
import sys
from pathlib import Path

import pytest
from talk import call

PACKAGES = ["llm"]

LLM = Path(sys.executable).with_name("llm")
WEATHER = """
def get_weather(city: str) -> str:
    "The weather of a place."
    return "hail in " + city
"""


@pytest.fixture
def llm(s, program, tmp_path):
    """A function that runs `llm -m m`."""
    (program.home / "extra-openai-models.yaml").write_text(
        f"- model_id: m\n  model_name: m\n  api_base: {s.v1}\n  supports_tools: true\n  supports_schema: true\n")

    def run(*words):
        return program([LLM, *words], cwd=tmp_path, LLM_USER_PATH=str(program.home)).strip()

    return run


@pytest.mark.parametrize("stream", [[], ["--no-stream"]], ids=["stream", "whole"])
def test_prompt(s, llm, stream):
    """`llm PROMPT`; with and without a stream"""
    s.say("Say hello.", "Hello there.")
    assert llm("-m", "m", *stream, "Say hello.") == "Hello there."


def test_tools(s, llm):
    """`llm --functions`: a Python function is called"""
    s.loop("Weather in Kiel?", call("get_weather", city="Kiel"), "hail in Kiel", "There is hail.")
    assert llm("-m", "m", "--functions", WEATHER, "Weather in Kiel?").splitlines()[-1] == "There is hail."


def test_schema(s, llm):
    """`llm --schema`: the answer follows it"""
    s.say("Which town?", '{"name": "Ulm", "people": 126949}')
    assert json.loads(llm("-m", "m", "--schema", "name, people int", "Which town?")) == {"name": "Ulm", "people": 126949}
