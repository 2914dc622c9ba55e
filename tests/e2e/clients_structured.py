"""Structured output as clients ask for it: LangChain, instructor, pydantic-ai, LiteLLM, and vLLM's fields through the
package openai.  scripts/client-check runs this; the packages are too many for every run of the tests.

The tiny model writes random bytes: a client gets an object of its class only if the server held the model to what the
client asked for.  Every field is bounded, so an answer ends."""

import json
import os
import re
from typing import Literal, Optional

import pydantic
import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network for prices
SAY = "Describe something."
ENOUGH = 1500  # tokens, white space among them


class Part(pydantic.BaseModel, extra="forbid"):
    kind: Literal["x", "y"]
    size: Optional[float] = pydantic.Field(ge=0, le=10)


class Thing(pydantic.BaseModel, extra="forbid"):
    name: str = pydantic.Field(max_length=8)
    color: Literal["red", "green", "blue"]
    amount: int = pydantic.Field(ge=0, le=1000)
    parts: list[Part] = pydantic.Field(max_length=3)


class Anything(pydantic.BaseModel, extra="allow"):
    """What a client asks for when the server promises an object, and no more."""


@pytest.fixture(scope="module")
def closing(tiny):
    """A bias that lets an object of any content end."""
    ids = lambda text: tiny.http.post("/tokenize", json={"model": "tiny", "prompt": text,
                                                         "add_special_tokens": False}).json()["tokens"]
    return {str(i): 12 for text in ('"', "}", "]") for i in ids(text)}


@pytest.fixture
def asked(tiny):
    """What the daemon counted as answered, and that it was all."""
    before = tiny.metric("inferd_requests_total")
    yield
    assert tiny.metric("inferd_requests_total") > before


# ---- openai ----

def test_openai_parses_an_answer(tiny, asked):
    done = tiny.openai().chat.completions.parse(model="tiny", messages=[{"role": "user", "content": SAY}],
                                                response_format=Thing, max_tokens=ENOUGH, seed=1)
    assert isinstance(done.choices[0].message.parsed, Thing)


def test_openai_parses_a_stream(tiny, asked):
    with tiny.openai().chat.completions.stream(model="tiny", messages=[{"role": "user", "content": SAY}],
                                               response_format=Thing, max_tokens=ENOUGH, seed=2) as events:
        for event in events:
            last = event
        done = events.get_final_completion()
    assert last is not None and isinstance(done.choices[0].message.parsed, Thing)


@pytest.mark.parametrize("body,form", [
    ({"guided_regex": r"\d{3}-[a-f]+"}, r"\d{3}-[a-f]+"),
    ({"structured_outputs": {"regex": r"(yes|no)[.!]"}}, r"(yes|no)[.!]"),
    ({"guided_choice": ["north", "south", "southeast"]}, "north|south|southeast"),
    ({"structured_outputs": {"choice": ["a", "ab"]}}, "ab?"),
    ({"guided_grammar": 'root ::= "<" [a-z]{2,5} ">"'}, "<[a-z]{2,5}>"),
    ({"structured_outputs": {"grammar": 'root ::= [0-9]+ ("," [0-9]+){1,2}'}}, r"[0-9]+(,[0-9]+){1,2}"),
], ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_fields_of_vllm(tiny, body, form):
    """As a choice of a chat, and of a completion."""
    client = tiny.openai()
    for seed in range(3):
        chat = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": SAY}], seed=seed,
                                              max_tokens=ENOUGH, extra_body=body).choices[0]
        text = client.completions.create(model="tiny", prompt=SAY, seed=seed, max_tokens=ENOUGH,
                                         extra_body=body).choices[0]
        for said, why in ((chat.message.content, chat.finish_reason), (text.text, text.finish_reason)):
            assert why == "stop" and re.fullmatch(form, said), said


@pytest.mark.parametrize("field", ["guided_json", "structured_outputs"])
def test_a_schema_in_fields_of_vllm(tiny, field):
    schema = Thing.model_json_schema()
    done = tiny.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": SAY}], max_tokens=ENOUGH, seed=3,
        extra_body={field: schema if field == "guided_json" else {"json": schema}})
    assert Thing.model_validate_json(done.choices[0].message.content)


# ---- LangChain ----

def langchain(tiny, **more):
    import langchain_openai

    return langchain_openai.ChatOpenAI(model="tiny", base_url=tiny.url + "/v1", api_key="none", max_tokens=ENOUGH,
                                       max_retries=0, **more)


@pytest.mark.parametrize("strict", [True, False, None])
def test_langchain_json_schema(tiny, asked, strict):
    model = langchain(tiny, seed=4).with_structured_output(Thing, method="json_schema", strict=strict)
    assert isinstance(model.invoke(SAY), Thing)


def test_langchain_json_schema_of_a_dict(tiny, asked):
    model = langchain(tiny, seed=5).with_structured_output(Thing.model_json_schema(), method="json_schema")
    assert Thing.model_validate(model.invoke(SAY))


def test_langchain_json_mode(tiny, asked, closing):
    model = langchain(tiny, seed=6, extra_body={"logit_bias": closing})
    assert isinstance(model.with_structured_output(Anything, method="json_mode").invoke(SAY + " In JSON."), Anything)


# ---- instructor ----

@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "JSON"])
def test_instructor(tiny, asked, closing, mode):
    import instructor

    client = instructor.from_openai(tiny.openai(), mode=instructor.Mode[mode])
    said = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": SAY}], max_tokens=ENOUGH, seed=7, max_retries=0,
        response_model=Thing if mode == "JSON_SCHEMA" else Anything,
        **({} if mode == "JSON_SCHEMA" else {"logit_bias": closing}))
    assert isinstance(said, Thing if mode == "JSON_SCHEMA" else Anything)


# ---- pydantic-ai ----

@pytest.mark.parametrize("how", ["NativeOutput", "PromptedOutput"])
def test_pydantic_ai(tiny, asked, closing, how):
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=tiny.url + "/v1", api_key="none"))
    wanted = Thing if how == "NativeOutput" else Anything
    agent = pydantic_ai.Agent(model, output_type=getattr(pydantic_ai, how)(wanted), retries=0)
    settings = {"max_tokens": ENOUGH, "seed": 8} | ({} if wanted is Thing else {"logit_bias": closing})
    assert isinstance(agent.run_sync(SAY, model_settings=settings).output, wanted)


# ---- LiteLLM ----

@pytest.mark.parametrize("as_class", [True, False])
def test_litellm(tiny, asked, as_class):
    import litellm

    form = Thing if as_class else {"type": "json_schema", "json_schema": {
        "name": "thing", "schema": Thing.model_json_schema()}}
    done = litellm.completion(model="openai/tiny", api_base=tiny.url + "/v1", api_key="none", max_tokens=ENOUGH, seed=9,
                              messages=[{"role": "user", "content": SAY}], response_format=form)
    assert Thing.model_validate_json(done.choices[0].message.content)


def test_litellm_json_object(tiny, asked, closing):
    import litellm

    done = litellm.completion(model="openai/tiny", api_base=tiny.url + "/v1", api_key="none", max_tokens=ENOUGH, seed=10,
                              messages=[{"role": "user", "content": SAY}], response_format={"type": "json_object"},
                              extra_body={"logit_bias": closing})
    assert isinstance(json.loads(done.choices[0].message.content), dict)
