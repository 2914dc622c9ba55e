"""Structured output of a model that writes random bytes (thing.py): pydantic-ai."""

import pydantic_ai
import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from thing import ENOUGH, SAY, Anything, Thing

PACKAGES = ["pydantic-ai-slim"]


@pytest.mark.parametrize("how", ["NativeOutput", "PromptedOutput"])
def test_pydantic_ai(tiny, asked, closing, how):
    """NativeOutput and PromptedOutput of a model that writes random bytes"""
    model = OpenAIChatModel("tiny", provider=OpenAIProvider(base_url=tiny.url + "/v1", api_key="none"))
    wanted = Thing if how == "NativeOutput" else Anything
    agent = pydantic_ai.Agent(model, output_type=getattr(pydantic_ai, how)(wanted), retries=0)
    settings = {"max_tokens": ENOUGH, "seed": 8} | ({} if wanted is Thing else {"logit_bias": closing})
    assert isinstance(agent.run_sync(SAY, model_settings=settings).output, wanted)
