"""instructor: objects of a class, through tools and through schemas; chat completions, the Responses API."""

import json
from typing import Iterable

import instructor
import pydantic
import pytest
from talk import call

PACKAGES = ["instructor"]


class Town(pydantic.BaseModel):
    """A town."""

    name: str
    people: int


ULM = {"name": "Ulm", "people": 126949}


def ask(s, mode, text, **more):
    client = instructor.from_openai(s.openai(), mode=instructor.Mode[mode])
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **{
        "response_model": Town, "max_retries": 0, **more})


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT"])
def test_tools(s, mode):
    """the modes TOOLS and TOOLS_STRICT"""
    s.say(f"Which town, {mode}?", call("Town", **ULM))
    assert ask(s, mode, f"Which town, {mode}?").model_dump() == ULM


def test_responses(s):
    """the mode RESPONSES_TOOLS"""
    s.say("Which town, by a response?", call("Town", **ULM))
    client = instructor.from_openai(s.openai(), mode=instructor.Mode.RESPONSES_TOOLS)
    said = client.responses.create(model="m", input="Which town, by a response?", response_model=Town, max_retries=0)
    assert said.model_dump() == ULM


def test_parallel_tools(s):
    """the mode PARALLEL_TOOLS: several objects"""
    s.say("Which towns?", call("Town", **ULM) * 2)
    assert [t.model_dump() for t in ask(s, "PARALLEL_TOOLS", "Which towns?", response_model=Iterable[Town])] == [ULM, ULM]


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "JSON", "MD_JSON"])
def test_json(s, mode):
    """the modes JSON_SCHEMA, JSON and MD_JSON"""
    text = json.dumps(ULM)
    s.say(f"Which town, {mode}?", f"```json\n{text}\n```" if mode == "MD_JSON" else text)
    assert ask(s, mode, f"Which town, {mode}?").model_dump() == ULM


def test_partial_objects(s):
    """`create_partial`: an object that grows"""
    s.say("Which town grows?", call("PartialTown", **ULM))
    client = instructor.from_openai(s.openai(), mode=instructor.Mode.TOOLS)
    parts = list(client.chat.completions.create_partial(
        model="m", messages=[{"role": "user", "content": "Which town grows?"}], response_model=Town, max_retries=0))
    assert len(parts) > 2 and (parts[-1].name, parts[-1].people) == ("Ulm", 126949)


def test_the_answer_is_asked_for_again(s):
    """an object that a validator refuses is asked for again"""
    class Large(Town):
        @pydantic.field_validator("people")
        @classmethod
        def large(cls, n):
            assert n > 1000, "too small"
            return n

    s.say(["Which large town?", "too small"], call("Large", **ULM))
    s.say("Which large town?", call("Large", name="Au", people=3))
    assert ask(s, "TOOLS", "Which large town?", response_model=Large, max_retries=1).people == 126949
