"""Structured output of a model that writes random bytes (thing.py): `.parse`, `.stream`, and the fields of vLLM."""

import re

import pytest
from thing import ENOUGH, SAY, Thing

PACKAGES = ["openai"]


def test_openai_parses_an_answer(tiny, asked):
    """`.parse` of a model that writes random bytes"""
    done = tiny.openai().chat.completions.parse(model="tiny", messages=[{"role": "user", "content": SAY}],
                                                response_format=Thing, max_tokens=ENOUGH, seed=1)
    assert isinstance(done.choices[0].message.parsed, Thing)


def test_openai_parses_a_stream(tiny, asked):
    """`.stream` with a `response_format`, of such a model"""
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
    """the fields of vLLM: `guided_*`, `structured_outputs`; in chats and completions"""
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
    """a schema in them"""
    schema = Thing.model_json_schema()
    done = tiny.openai().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": SAY}], max_tokens=ENOUGH, seed=3,
        extra_body={field: schema if field == "guided_json" else {"json": schema}})
    assert Thing.model_validate_json(done.choices[0].message.content)
