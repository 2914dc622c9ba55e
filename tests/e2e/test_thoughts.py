"""Reasoning and its tokens, in a scripted daemon: budgets, usage, and reasoning that is left out of the answer."""

import dataclasses
import json

import pytest

import scripted

THINKS = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace(
    "{{ m.content or '' }}",
    "{% if m.reasoning_content %}\n<think>{{ m.reasoning_content }}</think>\n{% endif %}{{ m.content or '' }}").replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if mode == 'open' %}<think>\n{% elif mode == 'closed' %}<think>\n\n</think>\n\n{% endif %}{% endif %}"))
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
W = {"type": "function", "function": {"name": "w", "strict": True, "parameters": CITY}}
CALL = '<tool_call>\n{"name": "w", "arguments": {"city": "Rome"}}\n</tool_call>'
FORM = {"type": "json_schema", "json_schema": {"name": "p", "schema": CITY}}
MODES = {"may": {}, "open": {"chat_template_kwargs": {"mode": "open"}}, "closed": {"chat_template_kwargs": {"mode": "closed"}}}


@pytest.fixture(scope="module")
def thinker(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("thinker"), THINKS)


n_said = 0


def ask(s, said, stream, **more):
    """(reasoning, content, names of calls, tokens of reasoning, ids, tokens with log-probabilities); None: the grammar did not
    allow it."""
    global n_said
    n_said += 1
    s.say(f"case {n_said}?", said)
    response = s.chat(f"case {n_said}?", stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}), **more)
    if response.status_code != 200:
        assert "mask" in response.text
        return None
    if not stream:
        body = response.json()
        choice = body["choices"][0]
        message = choice["message"]
        return (message.get("reasoning_content") or "", message["content"] or "",
                [c["function"]["name"] for c in message.get("tool_calls") or []],
                body["usage"]["completion_tokens_details"]["reasoning_tokens"], choice.get("token_ids"),
                [t["token"] for t in (choice.get("logprobs") or {}).get("content") or []])
    thought, content, calls, count, ids, tokens = "", "", [], None, [], []
    for line in response.text.split("\n"):
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            assert "mask" in event["error"]["message"]
            return None
        if event.get("usage"):
            count = event["usage"]["completion_tokens_details"]["reasoning_tokens"]
        for choice in event["choices"]:
            thought += choice["delta"].get("reasoning_content") or ""
            content += choice["delta"].get("content") or ""
            calls += [c["function"]["name"] for c in choice["delta"].get("tool_calls") or [] if "name" in c["function"]]
            ids += choice.get("token_ids") or []
            tokens += [t["token"] for t in (choice.get("logprobs") or {}).get("content") or []]
    return thought, content, calls, count, ids, tokens


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
BLOCK = ["<think>", "one", " two", " three", "</think>"]


@STREAM
@pytest.mark.parametrize("before", [[], ["\n"], [" "], ["\n \n", "\t"]], ids=["", "line", "blank", "white"])
@pytest.mark.parametrize("tools", [{}, {"tools": [W]}, {"tools": [W], "tool_choice": "required"}, {"response_format": FORM}],
                         ids=["free", "auto", "required", "form"])
def test_white_space_in_front_of_reasoning_escapes_no_budget(thinker, stream, before, tools):
    """A template may write a line break there, and the model learned it."""
    rest = {"required": [CALL], "form": ['{"city": "Rome"}']}.get("required" if "tool_choice" in tools else
                                                                  "form" if "response_format" in tools else "", ["Hi"])
    said = ask(thinker, before + BLOCK + ["\n"] + rest, stream, **tools)
    assert said[0] == "one two three" and said[3] == 3
    for budget in (0, 2, 3):
        said = ask(thinker, before + BLOCK + rest, stream, thinking_token_budget=budget, **tools)
        assert (said is not None) == (budget == 3)
    said = ask(thinker, [*before, "<think>", "one", "</think>", *rest], stream, thinking_token_budget=1, **tools)
    assert (said[0], said[3]) == ("one", 1)
    assert ask(thinker, [*before, "<think>", "</think>", *rest], stream, thinking_token_budget=0, **tools)[3] == 0


@STREAM
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tools", [{}, {"tools": [W]}], ids=["free", "auto"])
def test_a_budget_is_one_of_all_reasoning(thinker, stream, mode, tools):
    """A model that reasons again in front of its answer, or where the prompt has closed it."""
    first = {"may": ["<think>", "a", "</think>"], "open": ["a", "</think>"], "closed": []}[mode]
    more = {**MODES[mode], **tools}
    said = ask(thinker, [*first, "\n", *BLOCK, "Hi"], stream, **more)
    assert (said[1], said[3]) == ("Hi", 3 + bool(first))
    assert ask(thinker, [*first, "\n", *BLOCK, "Hi"], stream, thinking_token_budget=3, **more) == (None if first else said)
    assert ask(thinker, [*first, "\n", *BLOCK, "Hi"], stream, thinking_token_budget=5, **more) == said
    assert ask(thinker, [*first, "<think>", "</think>", "Hi"], stream, thinking_token_budget=1, **more)[1] == "Hi"
    assert ask(thinker, [*first, "Hi <think> so"], stream, thinking_token_budget=1, **more)[1] == "Hi <think> so"


@STREAM
def test_the_marks_are_no_tokens_of_reasoning(thinker, stream):
    assert ask(thinker, ["<think>", "</think>", "Hi"], stream)[3] == 0
    assert ask(thinker, ["<think>", "one", "</think>", "Hi"], stream)[3] == 1
    assert ask(thinker, ["<think>", "one", "\n", "</think>", "Hi"], stream)[3] == 2
    assert ask(thinker, ["<", "thi", "nk", ">", "one", "<", "/th", "ink", ">", "Hi"], stream)[3] == 1
    assert ask(thinker, ["<think>", "one", " two", "<"], stream)[3] == 3
    assert ask(thinker, ["one", "</think>", "Hi"], stream, **MODES["open"])[3] == 1
    assert ask(thinker, ["Hi", " there"], stream)[3] == 0


@STREAM
@pytest.mark.parametrize("tools", [{}, {"tools": [W]}], ids=["free", "auto"])
def test_reasoning_that_is_left_out_is_in_no_log_probabilities(thinker, stream, tools):
    more = {"logprobs": True, "return_token_ids": True, **tools}
    for said in (["\n", *BLOCK, "\n", "Hi", " you"], ["<", "think", ">", "one", " <", "/think", ">", "Hi"],
                 ["<think>", "on", "e", "</think>", "<think>", " two", "</think>", CALL if tools else "Hi"]):
        shown = ask(thinker, said, stream, **more)
        hidden = ask(thinker, said, stream, include_reasoning=False, **more)
        left = "".join(hidden[5])
        assert hidden[0] == "" and hidden[1:4] == shown[1:4]
        assert not any(word in left for word in ("on", "two", "three"))
        n_kept = len(shown[5]) - shown[3]
        assert len(hidden[5]) == n_kept and len(hidden[4]) == len(shown[4]) - shown[3]
        it = iter(shown[4])
        assert all(i in it for i in hidden[4])  # in their order
    assert ask(thinker, ["<think>", "one", " two"], stream, include_reasoning=False, **more)[5] == ["<think>"]
