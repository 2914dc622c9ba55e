"""Structured output of a model that writes random bytes (thing.py): LangChain."""

import langchain_openai
import pytest
from thing import ENOUGH, SAY, Anything, Thing

PACKAGES = ["langchain", "langchain-openai", "langchain-anthropic"]


def langchain(tiny, **more):
    return langchain_openai.ChatOpenAI(model="tiny", base_url=tiny.url + "/v1", api_key="none", max_tokens=ENOUGH,
                                       max_retries=0, **more)


@pytest.mark.parametrize("strict", [True, False, None])
def test_langchain_json_schema(tiny, asked, strict):
    """`with_structured_output`, json_schema, of a model that writes random bytes; strict or not"""
    model = langchain(tiny, seed=4).with_structured_output(Thing, method="json_schema", strict=strict)
    assert isinstance(model.invoke(SAY), Thing)


def test_langchain_json_schema_of_a_dict(tiny, asked):
    """the schema as a dict"""
    model = langchain(tiny, seed=5).with_structured_output(Thing.model_json_schema(), method="json_schema")
    assert Thing.model_validate(model.invoke(SAY))


def test_langchain_json_mode(tiny, asked, closing):
    """json_mode of such a model"""
    model = langchain(tiny, seed=6, extra_body={"logit_bias": closing})
    assert isinstance(model.with_structured_output(Anything, method="json_mode").invoke(SAY + " In JSON."), Anything)
