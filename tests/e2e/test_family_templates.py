"""Chats with the small model of a family and the public template of that family.

The vocabularies have no tokens for the marks of the templates: there they are the bytes of their text, as with any
vocabulary that lacks one.  What a random model says is noise, so what is checked is what the daemon does with it."""

import json

import pytest

import families
from conftest import skip

# family: template, tool_format, reasoning, what stands before and behind the user's "Hail in Kiel?"
TEMPLATES = {
    "qwen2": ("Qwen-Qwen2.5-7B-Instruct", "hermes", False, "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    "qwen3": ("Qwen-Qwen3-0.6B", "hermes", True, "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    "qwen3moe": ("Qwen3-Coder", "qwen_xml", False, "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    "nemo": ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", False, "[INST]", "[/INST]"),
    "gpt-oss": ("openai-gpt-oss-120b", "harmony", True, "<|start|>user<|message|>", "<|end|><|start|>assistant"),
    "phi3": ("microsoft-Phi-3.5-mini-instruct", "hermes", False, "<|user|>\n", "<|end|>\n<|assistant|>\n"),
    "ministral3": ("mistralai-Ministral-3-14B-Reasoning-2512", "mistral_v13", True, "[INST]", "[/INST]"),
    "smollm3": ("HuggingFaceTB-SmolLM3-3B", "hermes", True, "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
    "granite": ("ibm-granite-granite-3.3-2B-Instruct", "granite", True, "<|start_of_role|>user<|end_of_role|>",
                "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"),
}
NAMES = [n for n in TEMPLATES if n in families.names()]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a place.", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Kiel", "Rome"]}, "days": {"type": "integer", "enum": [1, 7]}},
    "required": ["city", "days"], "additionalProperties": False}}}


@pytest.fixture(scope="module")
def d(launch, tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("templates")
    files = {n: shared / "templates" / f"{TEMPLATES[n][0]}.jinja" for n in NAMES}
    missing = [f.name for f in files.values() if not f.exists()]
    if missing:
        skip(f"not there: {', '.join(missing)}")
    d = launch({"devices": [{"kind": "cpu", "memory": "256MiB", "threads": 2}],
                "models": [families.model(n, folder, chat_template=str(files[n])) for n in NAMES]})
    yield d
    assert d.stop() == 0


def user(text):
    return {"role": "user", "content": text}


def chat(d, name, messages, **more):
    r = d.http.post("/v1/chat/completions", json={"model": name, "messages": messages, "temperature": 0, "max_tokens": 200, **more})
    assert r.status_code == 200, r.text
    return r.json()["choices"][0]


def written(d, name, messages, **more):
    """The prompt as text."""
    r = d.http.post("/tokenize", json={"model": name, "messages": messages, **more})
    assert r.status_code == 200, r.text
    r = d.http.post("/detokenize", json={"model": name, "tokens": r.json()["tokens"]})
    assert r.status_code == 200, r.text
    return r.json()["prompt"]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_daemon_learns_of_the_template(d, name):
    about = next(m for m in d.http.get("/v1/models").json()["data"] if m["id"] == name)
    _, tool_format, reasons, *_ = TEMPLATES[name]
    assert (about["tool_format"], about["reasoning"]) == (tool_format, reasons), about
    assert "tool_format_refused" not in about


@pytest.mark.parametrize("name", NAMES)
def test_a_chat_is_rendered_and_answered(d, name):
    *_, before, behind = TEMPLATES[name]
    assert written(d, name, [user("Hail in Kiel?")]).endswith(before + "Hail in Kiel?" + behind)
    turns = [user("Hail in Rome?"), {"role": "assistant", "content": "No."}, user("Hail in Kiel?")]
    text = written(d, name, turns)
    assert text.endswith(before + "Hail in Kiel?" + behind) and before + "Hail in Rome?" in text and "No." in text
    choice = chat(d, name, [user("Hail in Kiel?")], max_tokens=20)
    assert choice["finish_reason"] in ("length", "stop")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_required(d, name):
    """Models that reason do so first, and a budget ends it: noise has no end."""
    budget = {"thinking_token_budget": 5} if TEMPLATES[name][2] else {}
    for seed in range(5):  # it may also begin to reason again and again
        choice = chat(d, name, [user("Hail in Kiel?")], tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
                      temperature=1, seed=seed, max_tokens=500, **budget)
        if choice["finish_reason"] != "length":
            break
    assert choice["finish_reason"] == "tool_calls", choice
    assert budget or not choice["message"].get("reasoning_content"), choice
    call, = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"city", "days"} and arguments["city"] in ("Kiel", "Rome") and arguments["days"] in (1, 7)
