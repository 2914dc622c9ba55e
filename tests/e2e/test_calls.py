"""Tool calls at their edges, in a scripted daemon: what is a call in formats without a mark before it, and how calls
end that something cut off."""

import dataclasses
import json
import re
import zlib

import pytest

import scripted

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
W = {"type": "function", "function": {"name": "w", "strict": True, "parameters": CITY}}


def start(launch, folder, tool_format):
    models = lambda path: [{"name": "m", "path": str(path), "tool_format": tool_format}]
    return scripted.start(launch, folder, scripted.HERMES, lambda path: scripted.config_of(path, models=models(path)))


@pytest.fixture(scope="module")
def llama(launch, tmp_path_factory):
    return start(launch, tmp_path_factory.mktemp("llama"), "llama3_json")


@pytest.fixture(scope="module")
def hermes(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("hermes"), scripted.HERMES)


@pytest.fixture(scope="module")
def pythonic(launch, tmp_path_factory):
    return start(launch, tmp_path_factory.mktemp("pythonic"), "pythonic")


def events(response):
    """The data of a stream, without [DONE]."""
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(s, text, stream, **more):
    """(content, calls as (name, arguments), finish reason); None: the grammar did not allow it."""
    response = s.chat(text, stream=stream, **more)
    if response.status_code != 200:
        return None
    if not stream:
        choice = response.json()["choices"][0]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        if "function_call" in message:
            calls = [{"function": message["function_call"]}]
        made = [(c.get("function") or c["custom"]) for c in calls]
        return (message["content"] or "", [(c["name"], c.get("arguments", c.get("input"))) for c in made],
                choice["finish_reason"])
    content, calls, finish = "", [], None
    for event in events(response):
        if "error" in event:
            return None
        choice = event["choices"][0]
        content += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        deltas = choice["delta"].get("tool_calls") or []
        if "function_call" in choice["delta"]:
            deltas = [{"function": choice["delta"]["function_call"]}]
        for delta in deltas:
            of = delta.get("function") or delta["custom"]
            if "name" in of:
                calls.append([of["name"], ""])
            calls[-1][1] += of.get("arguments", of.get("input")) or ""
    return content, [tuple(c) for c in calls], finish


# ---- without a mark ----

TEXT, CALL, REFUSED = "text", "call", "refused"


def check(s, what, text, stream, more):
    asked = f"case {zlib.crc32(text.encode())}?"
    s.say(asked, text)
    said = chat(s, asked, stream, tools=[W], parallel_tool_calls=False, **more)
    if what == REFUSED:
        assert said is None
    elif what == CALL:
        assert said[0].strip() == "" and said[2] == "tool_calls"
        assert [(n, json.loads(a)) for n, a in said[1]] == [("w", {"city": "Rome"})]
    else:
        assert said == (text, [], "stop")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("what, text", [
    (CALL, '{"name": "w", "parameters": {"city": "Rome"}}'),
    (CALL, '{"name":"w","parameters":{"city":"Rome"}}'),
    (CALL, ' {"type": "function", "name": "w", "parameters": {"city": "Rome"}}'),
    (REFUSED, '{"name":"w","parameters":{"city":5}}'),
    (REFUSED, ' {"name": "w", "parameters": {"city": 5}}'),
    (REFUSED, '\t{"name": "w", "parameters": {"city": 5}}'),
    (REFUSED, '{"name": "nope", "parameters": {"city": "Rome"}}'),
    (REFUSED, '{"name": "w", "parameters": {"city": "Rome"}}; {"name": "w", "parameters": {"city": "Rome"}}'),
    (TEXT, '{"parameters": {"town": 5}, "name": "nope"}'),
    (TEXT, '{"city": 5, "name": "w"}'),
    (TEXT, '[{"name": "w", "parameters": {"city": 5}}]'),
])
def test_an_object_is_a_call_only_if_the_grammar_wrote_it_as_one(llama, what, text, stream):
    check(llama, what, text, stream, {})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("what, text", [
    (CALL, "[w(city='Rome')]"),
    (CALL, " [w(city='Rome')]"),
    (REFUSED, "[w(city=5)]"),
    (REFUSED, " [w(city=5)]"),
    (REFUSED, "\n\n[nope(a=1), w()]"),
    (REFUSED, "[w(city='Rome'), w(city='Rome')]"),
    (TEXT, "[1, 2]"),
    (TEXT, "[a link](http://example.org)"),
])
def test_a_list_is_of_calls_only_if_the_grammar_wrote_it_so(pythonic, what, text, stream):
    check(pythonic, what, text, stream, {})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_content_of_a_schema_beside_tools_is_no_call(llama, pythonic, stream):
    person = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
    for i, form in enumerate([{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "p", "schema": person}}]):
        for s in (llama, pythonic):
            s.say(f"who {i}?", '{"name": "Ann", "age": 5}')
            assert chat(s, f"who {i}?", stream, tools=[W], response_format=form) == ('{"name": "Ann", "age": 5}', [], "stop")
        llama.say(f"call {i}?", '{"name": "w", "parameters": {"city": 5}}')
        assert chat(llama, f"call {i}?", stream, tools=[W], response_format=form) is None
        pythonic.say(f"call {i}?", "[w(city='Rome')]")
        assert chat(pythonic, f"call {i}?", stream, tools=[W], response_format=form) == ("", [("w", '{"city":"Rome"}')], "tool_calls")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_schema_of_content_stays_as_narrow_beside_tools(llama, stream):
    """That content may not look like a call gives it no member that it did not have."""
    def form(**more):
        return {"type": "json_schema", "json_schema": {"name": "p", "schema": {
            "type": "object", "properties": {"city": {"type": "string"}}, **more}}}
    llama.say("narrow city", '{"city": "Rome"}')
    llama.say("narrow name", '{"name": "Ann"}')
    llama.say("narrow number", '{"name": 5}')
    closed, numbers = form(additionalProperties=False), form(additionalProperties={"type": "integer"})
    assert chat(llama, "narrow city", stream, tools=[W], response_format=closed)[0] == '{"city": "Rome"}'
    assert chat(llama, "narrow name", stream, tools=[W], response_format=closed) is None
    assert chat(llama, "narrow name", stream, tools=[W], response_format=numbers) is None
    assert chat(llama, "narrow number", stream, tools=[W], response_format=numbers)[0] == '{"name": 5}'


# ---- in the other protocols ----

def responses(s, text, stream, tool, **more):
    """(the response, its items of calls); streamed, the events must say the same."""
    answer = s.http.post("/v1/responses", json={"model": "m", "input": text, "tools": [tool], "stream": stream, **more})
    assert answer.status_code == 200, answer.text
    whole = events(answer)[-1]["response"] if stream else answer.json()
    calls = [i for i in whole["output"] if i["type"] in ("function_call", "custom_tool_call")]
    if stream:
        done = [e for e in events(answer) if e["type"] == "response.output_item.done"]
        assert [e["item"] for e in done] == whole["output"]
    return whole, calls


def messages(s, text, stream, schema, **more):
    """(stop_reason, the texts of the calls' inputs as the wire has them)"""
    answer = s.http.post("/v1/messages", json={
        "model": "m", "max_tokens": 5000, "stream": stream, "messages": [{"role": "user", "content": text}],
        "tools": [{"name": "w", "input_schema": schema}], **more})
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["stop_reason"], re.findall(r'"type":"tool_use",.*?"input":(.*?)\}(?=,\{"type"|\],)', answer.text)
    said = {}
    for e in events(answer):
        if e["type"] == "content_block_delta" and e["delta"]["type"] == "input_json_delta":
            said[e["index"]] = said.get(e["index"], "") + e["delta"]["partial_json"]
    stop = [e["delta"]["stop_reason"] for e in events(answer) if e["type"] == "message_delta"]
    return stop[0], list(said.values())


HUGE = ["{\"n\": 123456789012345678901234567890}", '{"s": "a\\u0000b"}', '{"n": 1, "n": 2}',
        '{"%s": 1}' % ("k" * 2000), '{"a": %s}' % ("[" * 70 + "]" * 70)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("i", range(len(HUGE)))
def test_arguments_are_copied_as_they_are(hermes, i, stream):
    """JSON that a reader of ours would refuse."""
    hermes.say(f"huge {i}?", '<tool_call>\n{"name": "w", "arguments": %s}\n</tool_call>' % HUGE[i])
    free = {"type": "function", "function": {"name": "w"}}
    assert chat(hermes, f"huge {i}?", stream, tools=[free]) == ("", [("w", HUGE[i])], "tool_calls")
    whole, calls = responses(hermes, f"huge {i}?", stream, {"type": "function", "name": "w"})
    assert (whole["status"], calls[0]["status"], calls[0]["arguments"]) == ("completed", "completed", HUGE[i])
    assert messages(hermes, f"huge {i}?", stream, {"type": "object"}) == ("tool_use", [HUGE[i]])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_max_tokens_cuts_says_so(hermes, stream):
    hermes.say("cut?", '<tool_call>\n{"name": "w", "arguments": {"city": "Rome"}}\n</tool_call>')
    for n in range(8, 30):
        _, calls, finish = chat(hermes, "cut?", stream, tools=[W], max_tokens=n)
        if not calls or finish != "length":
            continue
        whole, items = responses(hermes, "cut?", stream, {"type": "function", "name": "w", "parameters": CITY}, max_output_tokens=n)
        complete = calls[0][1] == '{"city": "Rome"}'
        assert whole["status"] == "incomplete" and items[0]["arguments"] == calls[0][1]
        assert items[0]["status"] == ("completed" if complete else "incomplete")
        reason, inputs = messages(hermes, "cut?", stream, CITY, max_tokens=n)
        assert reason == "max_tokens"
        if not stream:
            assert inputs == [calls[0][1] if complete else "{}"]


SH = {"type": "object", "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}, "required": ["cmd", "n"],
      "additionalProperties": False}
CUT = {
    "qwen_xml": "<tool_call>\n<function=sh>\n<parameter=cmd>\nrm -rf /tmp/ü😀/x\n</parameter>\n<parameter=n>\n-105\n"
                "</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>sh\n<arg_key>cmd</arg_key>\n<arg_value>rm -rf /tmp/ü😀/x</arg_value>\n<arg_key>n</arg_key>\n"
           "<arg_value>-105</arg_value>\n</tool_call>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sh<｜tool▁sep｜>" + '{"cmd":"rm -rf /tmp/ü😀/x","n":-105}'
                    + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.fixture(scope="module", params=CUT)
def to_cut(launch, tmp_path_factory, request):
    s = start(launch, tmp_path_factory.mktemp(request.param), request.param)
    s.say("cut?", CUT[request.param])
    return s


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_max_tokens_cuts_is_its_beginning(to_cut, stream):
    """It must not look complete: a client would run `rm -rf /tmp`.  Characters of several bytes are cut, too."""
    complete = '{"cmd":"rm -rf /tmp/ü😀/x","n":-105}'
    tool = {"type": "function", "function": {"name": "sh", "strict": True, "parameters": SH}}
    ends = set()
    for n in range(5, 150):
        content, calls, finish = chat(to_cut, "cut?", stream, tools=[tool], max_tokens=n)
        if finish != "length":
            assert (content, calls) == ("", [("sh", complete)])
            break
        if not calls:
            continue
        arguments = calls[0][1]
        assert content == "" and complete.startswith(arguments), (n, content, arguments)
        ends.add(arguments)
        form = {"type": "function", "name": "sh", "parameters": SH}
        whole, items = responses(to_cut, "cut?", stream, form, max_output_tokens=n)
        assert whole["status"] == "incomplete" and items[0]["arguments"] == arguments
        assert items[0]["status"] == ("completed" if arguments == complete else "incomplete")
        answer = to_cut.http.post("/v1/messages", json={
            "model": "m", "max_tokens": n, "messages": [{"role": "user", "content": "cut?"}],
            "tools": [{"name": "sh", "input_schema": SH}]}).json()
        block = answer["content"][0]
        assert (answer["stop_reason"], block["type"]) == ("max_tokens", "tool_use")
        assert block["input"] == (json.loads(complete) if arguments == complete else {})
    assert len(ends) > 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_input_of_a_custom_tool_that_max_tokens_cuts_is_its_beginning(hermes, stream):
    inside = 'rm -rf / "now"\n'
    hermes.say("custom?", '<tool_call>\n{"name": "run", "arguments": {"input": %s}}\n</tool_call>' % json.dumps(inside))
    seen = set()
    for n in range(8, 40):
        _, calls, finish = chat(hermes, "custom?", stream, tools=[{"type": "custom", "custom": {"name": "run"}}], max_tokens=n)
        if not calls:
            continue
        _, items = responses(hermes, "custom?", stream, {"type": "custom", "name": "run"}, max_output_tokens=n)
        assert items[0]["input"] == calls[0][1]
        assert (calls[0][1] == inside if finish == "tool_calls" else inside.startswith(calls[0][1])), (n, calls, finish)
        seen.add(calls[0][1])
    assert len(seen) > 4 and inside in seen


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("stop", ["STOP", "</tool_call>", "_call", "tool", '"', "name", "\n"])
def test_a_stop_string_is_none_inside_of_a_call(hermes, stop, stream):
    wanted = '{"city": "Rome STOP x"}'
    hermes.say("stop?", '<tool_call>\n{"name": "w", "arguments": %s}\n</tool_call>' % wanted)
    assert chat(hermes, "stop?", stream, tools=[W], stop=[stop]) == ("", [("w", wanted)], "tool_calls")
    tool = {"type": "function", "name": "w", "parameters": CITY}
    whole, items = responses(hermes, "stop?", stream, tool, stop=[stop])
    assert (whole["status"], items[0]["status"], items[0]["arguments"]) == ("completed", "completed", wanted)
    assert messages(hermes, "stop?", stream, CITY, stop_sequences=[stop]) == ("tool_use", [wanted])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_stop_string_counts_before_a_call_and_behind_it(hermes, llama, stream):
    call = '<tool_call>\n{"name": "w", "arguments": {"city": "END"}}\n</tool_call>'
    hermes.say("before?", "It is the END now. " + call)
    assert chat(hermes, "before?", stream, tools=[W], stop=["END"]) == ("It is the ", [], "stop")
    hermes.say("behind?", call + "\nIt is the END now.")
    for stop in (["END"], ["END now", "ND no"], ["x", "the END"]):
        said = chat(hermes, "behind?", stream, tools=[W], stop=stop)
        assert said[1:] == ([("w", '{"city": "END"}')], "tool_calls") and "It is" in said[0] and "now" not in said[0]
    hermes.say("at once?", call + "END now.")
    assert chat(hermes, "at once?", stream, tools=[W], stop=["END"]) == ("", [("w", '{"city": "END"}')], "tool_calls")
    llama.say("object?", '{"city": "Rome", "END": 5}')
    assert chat(llama, "object?", stream, tools=[W], stop=["END"]) == ('{"city": "Rome", "', [], "stop")


# ---- templates that leave tools or calls out ----

DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")
# Shows no tools, and calls only in messages without a content: like DeepSeek-R1-Distill-Llama-8B.
NO_TOOLS = scripted.Family("""\
{%- for m in messages %}
{%- if m.role == 'assistant' and m.content is none %}<|assistant|>
{%- for c in m.tool_calls %}<｜tool▁calls▁begin｜>{{ c.function.name }}
```json
{{ c.function.arguments }}{% endfor %}<|end|>
{%- elif m.role == 'assistant' %}<|assistant|>{{ m.content }}<|end|>
{%- elif m.role == 'user' %}<|user|>{{ m.content }}<|end|>
{%- elif m.role == 'system' %}<|system|>{{ m.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""", ("<|unused|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", *DEEPSEEK), "<|end|>")
NO_CALLS = scripted.Family("""\
{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}<|assistant|>{% elif m.role == 'tool' %}<|tool|>{% else %}<|user|>{% endif %}{{ m.content }}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}{# <|tool_call_start|> #}""", (
    "<|unused|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|tool_call_start|>", "<|tool_call_end|>"), "<|end|>")
OF_DEEPSEEK = ('<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>w\n```json\n{"city": "Rome"}\n```'
               "<｜tool▁call▁end｜><｜tool▁calls▁end｜>")


@pytest.mark.parametrize("family, call, result", [
    (NO_TOOLS, OF_DEEPSEEK, "<|user|><tool_response>\nhail\n</tool_response><|end|><|assistant|>"),
    (NO_CALLS, '<|tool_call_start|>[w(city="Rome")]<|tool_call_end|>', "<|tool|>hail<|end|><|assistant|>")], ids=["tools", "calls"])
def test_prompt_grammar_and_parser_have_one_notation(launch, tmp_path, family, call, result):
    """The prompt taught another notation than was read, and a result had no call before it."""
    s = scripted.start(launch, tmp_path, family)
    s.say("and?<|end|><|assistant|>", "Still hail.")
    s.say(call + "<|end|>" + result, "Hail.")
    s.say("weather?<|end|><|assistant|>", call)
    turns = [{"role": "user", "content": "weather?"}]
    ask = {"model": "m", "tools": [W], "messages": turns}
    for choice in ("auto", "required"):
        r = s.http.post("/v1/chat/completions", json={**ask, "tool_choice": choice})
        assert r.status_code == 200, r.text
        message = r.json()["choices"][0]["message"]
        made = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"]]
        assert made == [("w", {"city": "Rome"})], message
    turns += [{k: message[k] for k in ("role", "content", "tool_calls")},
              {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "hail"}]
    r = s.http.post("/v1/chat/completions", json=ask, headers={"x-inferd-explain": "1"})
    assert r.json()["choices"][0]["message"]["content"] == "Hail.", r.text
    # The call has the tokens that were drawn.
    assert "cause=grown" in r.headers["x-inferd-explain"] and 'in="messages[2]"' in r.headers["x-inferd-explain"]
    turns += [{"role": "assistant", "content": "Hail."}, {"role": "user", "content": "and?"}]
    r = s.http.post("/v1/chat/completions", json=ask, headers={"x-inferd-explain": "1"})
    assert "cause=grown" in r.headers["x-inferd-explain"] and 'in="messages[4]"' in r.headers["x-inferd-explain"]
    if family is NO_TOOLS:
        prompt = s.http.post("/tokenize", json={**ask, "messages": turns[:1]}).json()
        text = s.http.post("/detokenize", json={"model": "m", "tokens": prompt["tokens"]}).json()["prompt"]
        assert OF_DEEPSEEK.replace("w\n", "the name\n").replace('"city": "Rome"', '"key": "value"') in text


READS_THINKING = dataclasses.replace(scripted.HERMES, template=scripted.HERMES.template.replace(
    "{{ m.content or '' }}", "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}{{ m.content or '' }}"))


def test_reasoning_comes_back_under_the_name_that_the_template_reads(launch, tmp_path):
    s = scripted.start(launch, tmp_path, READS_THINKING)
    s.say("<think>It is day 7.</think>", "I remember.")
    s.say("", "I forgot.")
    user, call = {"role": "user", "content": "which?"}, {"name": "w", "arguments": "{}"}
    for name in ("reasoning_content", "reasoning", "thinking"):
        turns = [user, {"role": "assistant", "content": None, name: "It is day 7.", "tool_calls": [
            {"id": "a", "type": "function", "function": call}]}, {"role": "tool", "tool_call_id": "a", "content": "r"}]
        r = s.http.post("/v1/chat/completions", json={"model": "m", "messages": turns, "tools": [W]})
        assert r.json()["choices"][0]["message"]["content"] == "I remember.", (name, r.text)
    r = s.http.post("/v1/messages", json={"model": "m", "max_tokens": 20, "messages": [
        user, {"role": "assistant", "content": [{"type": "thinking", "thinking": "It is day 7.", "signature": ""},
                                                {"type": "tool_use", "id": "toolu_a", "name": "w", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "r"}]}]})
    assert r.json()["content"] == [{"type": "text", "text": "I remember."}], r.text
    r = s.http.post("/v1/responses", json={"model": "m", "store": False, "input": [
        user, {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "It is day 7."}]},
        {"type": "function_call", "call_id": "a", **call}, {"type": "function_call_output", "call_id": "a", "output": "r"}]})
    assert r.json()["output"][0]["content"][0]["text"] == "I remember.", r.text
