"""Structured output of a model that writes random bytes (thing.py): LiteLLM."""

import json

import litellm
import pytest
from thing import ENOUGH, SAY, Thing

PACKAGES = ["litellm"]


@pytest.mark.parametrize("as_class", [True, False])
def test_litellm(tiny, asked, as_class):
    """`response_format` of a model that writes random bytes: a class, a schema"""
    form = Thing if as_class else {"type": "json_schema", "json_schema": {
        "name": "thing", "schema": Thing.model_json_schema()}}
    done = litellm.completion(model="openai/tiny", api_base=tiny.url + "/v1", api_key="none", max_tokens=ENOUGH, seed=9,
                              messages=[{"role": "user", "content": SAY}], response_format=form)
    assert Thing.model_validate_json(done.choices[0].message.content)


def test_litellm_json_object(tiny, asked, closing):
    """json_object of such a model"""
    done = litellm.completion(model="openai/tiny", api_base=tiny.url + "/v1", api_key="none", max_tokens=ENOUGH, seed=10,
                              messages=[{"role": "user", "content": SAY}], response_format={"type": "json_object"},
                              extra_body={"logit_bias": closing})
    assert isinstance(json.loads(done.choices[0].message.content), dict)
