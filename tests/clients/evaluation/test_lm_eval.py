"""lm-evaluation-harness: local-completions, local-chat-completions."""

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

PACKAGES = ["lm_eval"]


@pytest.fixture
def completions(tiny, tokenizer):
    return LocalCompletionsAPI(base_url=tiny.url + "/v1/completions", model="tiny", tokenizer=tokenizer, max_length=2048)


def instance(kind, *of):
    return Instance(request_type=kind, doc={}, arguments=of, idx=0)


def scored(tiny, text, n):
    """The log-probability of all tokens behind the first n."""
    body = {"model": "tiny", "prompt": text, "max_tokens": 0, "logprobs": 1, "echo": True}
    return sum(tiny.http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["token_logprobs"][n:])


def test_loglikelihood(tiny, completions):
    """local-completions: `loglikelihood`"""
    n = tiny.http.post("/tokenize", json={"model": "tiny", "prompt": "abc d"}).json()["count"]
    (found, greedy), = completions.loglikelihood([instance("loglikelihood", "abc d", " ef g")])
    assert found == pytest.approx(scored(tiny, "abc d ef g", n), abs=1e-3) and greedy in (True, False)


def test_loglikelihood_rolling(completions):
    """local-completions: `loglikelihood_rolling`, for perplexities"""
    found, = completions.loglikelihood_rolling([instance("loglikelihood_rolling", "a text of some words")])
    assert found < 0


def test_generate(tiny, completions):
    """local-completions: `generate_until`"""
    found, = completions.generate_until([instance("generate_until", "abc", {"max_gen_toks": 5, "until": ["\n\n"]})])
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 5, "temperature": 0, "stop": ["\n\n"]}
    assert found == tiny.http.post("/v1/completions", json=body).json()["choices"][0]["text"]


def test_chat(s):
    """local-chat-completions: `generate_until`"""
    s.say("capital of Peru", "Lima")
    chat = LocalChatCompletion(base_url=s.v1 + "/chat/completions", model="m")
    ask = chat.apply_chat_template([{"role": "user", "content": "capital of Peru"}])
    assert chat.generate_until([instance("generate_until", ask, {"max_gen_toks": 9, "until": ["\n"]})]) == ["Lima"]
