"""Structured output of a model that writes random bytes (thing.py): instructor."""

import instructor
import pytest
from thing import ENOUGH, SAY, Anything, Thing

PACKAGES = ["instructor"]


@pytest.mark.parametrize("mode", ["JSON_SCHEMA", "JSON"])
def test_instructor(tiny, asked, closing, mode):
    """JSON_SCHEMA and JSON of a model that writes random bytes"""
    client = instructor.from_openai(tiny.openai(), mode=instructor.Mode[mode])
    said = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": SAY}], max_tokens=ENOUGH, seed=7, max_retries=0,
        response_model=Thing if mode == "JSON_SCHEMA" else Anything,
        **({} if mode == "JSON_SCHEMA" else {"logit_bias": closing}))
    assert isinstance(said, Thing if mode == "JSON_SCHEMA" else Anything)
