"""Turns of several parts, and marks around content, in a scripted daemon whose marks are control tokens: the ways of
gpt-oss, Kimi K3, Muse, Cohere and GLM."""

import json

import pytest

import scripted
from test_calls import chat, events

CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "run", "description": "d", "strict": True, "parameters": CODE}}
FORM = {"type": "json_schema", "json_schema": {"name": "p", "schema": CODE}}
FORMS = [FORM, {"type": "json_object"}]
ARGUMENTS = '{"code": "x"}'

NESTED = scripted.Family("""\
{%- for m in messages %}<|open|>message {{ m.role }}<|sep|>
{%- if m.role == 'assistant' %}<|open|>think<|sep|>{{ m.reasoning_content or '' }}<|close|>think<|sep|><|open|>response<|sep|>
{{- m.content }}<|close|>response<|sep|>
{%- if m.tool_calls %}<|open|>tools<|sep|>
{%- for c in m.tool_calls %}<|open|>call {{ c.function.name }}<|sep|>{{ c.function.arguments | tojson }}<|close|>call<|sep|>{% endfor -%}
<|close|>tools<|sep|>{% endif %}
{%- else %}{{ m.content }}{% endif %}<|close|>message<|sep|><|end_of_msg|>
{%- endfor %}
{%- if add_generation_prompt %}<|open|>message assistant<|sep|><|open|>think<|sep|>{% endif %}""",
                         ("<|endoftext|>", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"), "<|end_of_msg|>")

RECIPIENTS = scripted.Family("""\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}
{%- if m.tool_calls %}
{%- for c in m.tool_calls %}<|start|>assistant to={{ c.function.name }}<|message|><call name="{{ c.function.name }}">
{{- c.function.arguments | tojson }}</call>{{ '<|eot|>' if loop.last else '<|eom|>' }}{% endfor %}
{%- else %}<|start|>assistant to=user<|message|>{{ m.content }}<|eot|>{% endif %}
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|eot|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""",
                             ("<|endoftext|>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>"), "<|eot|>")

CLOSED = scripted.Family("""\
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<|THINK|>{{ m.reasoning_content }}<|/THINK|>{% endif %}
{%- if m.tool_calls %}<|CALLS|>[
{%- for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
{%- if not loop.last %}, {% endif %}{% endfor %}]<|/CALLS|>
{%- else %}<|TEXT|>{{ m.content }}<|/TEXT|>{% endif %}<|END|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
                         ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|THINK|>", "<|/THINK|>", "<|TEXT|>", "<|/TEXT|>", "<|CALLS|>",
                          "<|/CALLS|>", "<|END|>"), "<|END|>")

TAGGED = scripted.Family("""\
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}
{%- for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v | tojson }}</arg_value>
{%- endfor %}</tool_call>{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
                         ("<|endoftext|>", "<|user|>", "<|assistant|>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                          "<arg_value>", "</arg_value>", "<|end|>"), "<|end|>")

# The ways of Nemotron and of MiniMax M3.
LINES = scripted.Family("""\
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% elif m.role == 'assistant' %}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</call>
{{- '\\n' }}{% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
                        ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>", "<call>", "</call>"), "<|end|>")


@pytest.fixture(scope="module")
def harmony(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("harmony"), scripted.HARMONY)


@pytest.fixture(scope="module")
def nested(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("nested"), NESTED)


@pytest.fixture(scope="module")
def recipients(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("recipients"), RECIPIENTS)


@pytest.fixture(scope="module")
def closed(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("closed"), CLOSED)


@pytest.fixture(scope="module")
def tagged(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("tagged"), TAGGED)


@pytest.fixture(scope="module")
def lines(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("lines"), LINES)


asked = iter(range(10**6))


def ask(s, text, stream, **more):
    """What a chat gives for a text of the model: (reasoning, content, calls, finish reason); None: it is not allowed."""
    question = f"question {next(asked)}."
    s.say(question, text)
    said = chat(s, question, stream, **more)
    if said is None:
        return None
    answer = s.chat(question, stream=stream, **more)
    if stream:
        deltas = [c["delta"] for e in events(answer) for c in e["choices"]]
    else:
        deltas = [answer.json()["choices"][0]["message"]]
    return "".join(d.get("reasoning_content") or "" for d in deltas), *said


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
CALLED = [("run", ARGUMENTS)]
THOUGHT = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
HEADS = ["<|channel|>commentary to=functions.run <|constrain|>json<|message|>", "<|channel|>commentary to=functions.run<|message|>",
         " to=functions.run<|channel|>commentary <|constrain|>json<|message|>", " to=functions.run<|channel|>commentary json<|message|>"]


@both
@pytest.mark.parametrize("head", HEADS)
def test_harmony_calls_in_both_ways(harmony, head, stream):
    for before, reasoning, content in [("", "", ""), (THOUGHT, "hm", ""), (PREAMBLE, "", "I look."), (THOUGHT + PREAMBLE, "hm", "I look."),
                                       (THOUGHT + PREAMBLE + THOUGHT, "hmhm", "I look.")]:
        text = before + head + ARGUMENTS + "<|call|>"
        assert ask(harmony, text, stream, tools=[TOOL]) == (reasoning, content, CALLED, "tool_calls")
        required = ask(harmony, text, stream, tools=[TOOL], tool_choice="required")
        assert required == (None if content else (reasoning, "", CALLED, "tool_calls"))
        assert ask(harmony, before + head + '{"code": 5}<|call|>', stream, tools=[TOOL]) is None


@both
@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}, {"thinking_token_budget": 50}], ids=["free", "tools", "budget"])
def test_a_preamble_of_harmony_is_content(harmony, more, stream):
    assert ask(harmony, THOUGHT + PREAMBLE + FINAL + "Hi.", stream, **more) == ("hm", "I look.Hi.", [], "stop")
    assert ask(harmony, FINAL + "Hi.", stream, **more) == ("", "Hi.", [], "stop")


@both
@pytest.mark.parametrize("text, more", [(THOUGHT + FINAL + "Hi.", {}), (THOUGHT + FINAL + "Hi.", {"tools": [TOOL]})] +
                         [(head + ARGUMENTS + "<|call|>", {"tools": [TOOL]}) for head in HEADS])
def test_no_part_of_a_header_is_content(harmony, text, more, stream):
    for n in range(1, 30):
        reasoning, content, calls, finish = ask(harmony, text, stream, max_tokens=n, **more)
        assert "Hi.".startswith(content) and "hm".startswith(reasoning)
        assert all(ARGUMENTS.startswith(arguments) for _, arguments in calls)
        if finish != "length":
            return
    assert False, "it has more tokens"


@both
@pytest.mark.parametrize("form", FORMS, ids=["schema", "object"])
@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}], ids=["free", "tools"])
def test_marks_stand_around_constrained_content(harmony, nested, recipients, closed, form, more, stream):
    think = "<|close|>think<|sep|><|open|>response<|sep|>"
    for s, before, behind in [(harmony, THOUGHT + FINAL, ""), (harmony, FINAL, ""),
                              (nested, "hm" + think, ""), (nested, "hm" + think, "<|close|>response<|sep|>"),
                              (nested, "hm" + think, "<|close|>response<|sep|><|close|>message<|sep|>"),
                              (recipients, " to=user<|message|>", ""),
                              (closed, "<|THINK|>hm<|/THINK|><|TEXT|>", "<|/TEXT|>"), (closed, "<|TEXT|>", "")]:
        _, content, calls, finish = ask(s, before + ARGUMENTS + behind, stream, response_format=form, **more)
        assert (content, calls, finish) == (ARGUMENTS, [], "stop")
        assert ask(s, before + "[1]" + behind, stream, response_format=form, **more) is None


@both
def test_the_end_of_a_turn_is_learned(nested, stream):
    before, end = "hm<|close|>think<|sep|><|open|>response<|sep|>", "<|close|>response<|sep|>"
    call = "<|open|>tools<|sep|><|open|>call run<|sep|>" + ARGUMENTS + "<|close|>call<|sep|><|close|>tools<|sep|>"
    for last in "", "<|close|>message<|sep|>":
        for more in {}, {"tools": [TOOL]}, {"thinking_token_budget": 50}:
            assert ask(nested, before + "Hello." + end + last, stream, **more) == ("hm", "Hello.", [], "stop")
        assert ask(nested, before + "So." + end + call + last, stream, tools=[TOOL]) == ("hm", "So.", CALLED, "tool_calls")
        for choice in "auto", "required":
            assert ask(nested, before + end + call + last, stream, tools=[TOOL], tool_choice=choice) == ("hm", "", CALLED, "tool_calls")
    assert ask(nested, before + "Hello.", stream, tools=[TOOL]) == ("hm", "Hello.", [], "stop")


@both
def test_reasoning_may_stand_before_each_call(recipients, stream):
    thought, again = " to=self<|message|>hm<|eom|><|start|>assistant", "<|eom|><|start|>assistant"
    call = ' to=run<|message|><call name="run">' + ARGUMENTS + "</call>"
    hello = " to=user<|message|>Hello."
    for choice in "auto", "required":
        more = {"tools": [TOOL], "tool_choice": choice}
        assert ask(recipients, thought + call, stream, **more) == ("hm", "", CALLED, "tool_calls")
        assert ask(recipients, thought + call + again + thought + call, stream, **more) == ("hmhm", "", CALLED * 2, "tool_calls")
        assert ask(recipients, call + again + call, stream, parallel_tool_calls=False, **more) is None
    for more in {"tools": [TOOL]}, {"thinking_token_budget": 50}:
        assert ask(recipients, thought + hello, stream, **more) == ("hm", "Hello.", [], "stop")
    assert ask(recipients, hello + again + call, stream, tools=[TOOL]) == ("", "Hello.", CALLED, "tool_calls")


@both
def test_closed_content_beside_tools(closed, stream):
    call = '<|CALLS|>[{"name": "run", "arguments": %s}]<|/CALLS|>' % ARGUMENTS
    for text in "<|TEXT|>Hi.", "<|TEXT|>Hi.<|/TEXT|>":
        for more in {}, {"tools": [TOOL]}, {"thinking_token_budget": 50}:
            assert ask(closed, text, stream, **more) == ("", "Hi.", [], "stop")
    assert ask(closed, "<|TEXT|>Hi.<|/TEXT|>" + call, stream, tools=[TOOL]) == ("", "Hi.", CALLED, "tool_calls")
    assert json.loads(CALLED[0][1]) == {"code": "x"}


# The whole call is one text, which ends with a control token.
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "now"}}])
@pytest.mark.parametrize("parameters", [None, {"type": "object", "properties": {}}])
def test_a_tool_without_arguments_is_called(tagged, parameters, choice, stream):
    function = {"name": "now"} if parameters is None else {"name": "now", "parameters": parameters}
    tagged.say("what time is it", "<tool_call>now</tool_call>", once=True)
    got = chat(tagged, "what time is it", stream, tools=[{"type": "function", "function": function}, TOOL], tool_choice=choice)
    assert got == ("", [("now", "{}")], "tool_calls")


# Behind the line break one more call was forced.
@both
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "run"}}])
@pytest.mark.parametrize("white", ["", "\n", "\n\n"])
def test_white_space_stands_behind_the_last_call(lines, white, choice, parallel, stream):
    said = '<call>{"name": "run", "arguments": ' + ARGUMENTS + "}</call>" + white
    more = dict(tools=[TOOL], tool_choice=choice, parallel_tool_calls=parallel)
    assert ask(lines, said, stream, **more) == ("", "", CALLED, "tool_calls")


# White space led to reasoning and to calls, but not to the content.
@both
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}], ids=["plain", "tools"])
@pytest.mark.parametrize("before", ["\n", " ", "\n\n", "</think>", "<think>hm</think>\n"])
def test_white_space_leads_to_constrained_content(lines, before, more, form, stream):
    # In tokens of their own: what leads nowhere must not be hidden by what comes next.
    question = f"question {next(asked)}."
    lines.say(question, [before, ARGUMENTS])
    content, calls, finish = chat(lines, question, stream, response_format=form, **more)
    assert (json.loads(content), calls, finish) == (json.loads(ARGUMENTS), [], "stop")
