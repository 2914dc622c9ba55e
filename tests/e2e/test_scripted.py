"""Conversations in which a script says what the model writes (scripted.py): what a client gets is the script, whatever
happens on the way, and a script that does what the model could not do fails."""

import concurrent.futures
import json
import time

import pytest

import scripted
from conftest import BUILD, ROOT, SLOW

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
          "required": ["city", "people"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA}}
LONG = " ".join(f"line {i} of {i * i}," for i in range(250))  # an answer of some thousand tokens


@pytest.fixture(scope="module")
def s(launch, tmp_path_factory):
    return scripted.start(launch, tmp_path_factory.mktemp("scripted"))


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def fault_of(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["message"]


def document(n_bytes):
    return (ROOT / "docs/api.md").read_text()[:n_bytes]


def test_the_answer_is_what_the_script_says(s):
    said = "Three files,\nnämlich a, b and c \U0001f600."
    s.say("count them", said)
    answer = s.chat("count them", logprobs=True, top_logprobs=1)
    assert text_of(answer) == said
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    # The token is the script's, its log-probability the model's.
    assert all(t["logprob"] <= t["top_logprobs"][0]["logprob"] < 0 for t in choice["logprobs"]["content"])
    with s.openai() as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "count them"}]}
        chunks = list(client.chat.completions.create(stream=True, **ask))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == said and len(chunks) > 10
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert client.completions.create(model="m", prompt="count them", max_tokens=99).choices[0].text == said
        cut = client.chat.completions.create(max_tokens=3, **ask).choices[0]
        assert cut.finish_reason == "length" and said.startswith(cut.message.content)


def test_tokens_are_chosen_by_text_or_by_id(s):
    family = scripted.HERMES
    byte_0 = len(family.controls) + len(family.marks)
    s.say("which tokens", ["the", byte_0 + ord("r"), "e", family.controls.index("<|im_end|>"), "never said"])
    answer = s.chat("which tokens", logprobs=True)
    assert text_of(answer) == "there"
    assert [t["token"] for t in answer.json()["choices"][0]["logprobs"]["content"]] == ["the", "r", "e"]


CALL = {"id": "abcdefgh1", "type": "function",
        "function": {"name": "read", "arguments": '{"path": "notes.txt"}'}}


@pytest.mark.parametrize("family, first, when", [
    (scripted.HERMES, '<tool_call>\n{"name": "read", "arguments": {"path": "notes.txt"}}\n</tool_call>',
     ["<tool_call>", "<tool_response>\nbuy milk"]),
    (scripted.MISTRAL, '[TOOL_CALLS][{"name": "read", "arguments": {"path": "notes.txt"}}]',
     ["[TOOL_CALLS]", '[TOOL_RESULTS]{"content": "buy milk"']),
    (scripted.HARMONY, ' to=functions.read<|channel|>commentary json<|message|>{"path": "notes.txt"}<|call|>',
     ["<|call|>", '<|start|>functions.read to=assistant<|channel|>commentary<|message|>"buy milk"<|end|>'])],
    ids=["hermes", "mistral", "harmony"])
def test_a_second_turn_has_a_line_of_its_own(launch, tmp_path, family, first, when):
    s = scripted.start(launch, tmp_path, family)
    s.say(when, "Milk is wanted.")
    s.say("my notes", first)
    messages = [{"role": "user", "content": "what is in my notes?"}]
    answer = s.http.post("/v1/chat/completions", json={
        "model": "m", "messages": messages, "skip_special_tokens": False})
    assert text_of(answer).removesuffix(family.end) == first.removesuffix("<|call|>")
    messages += [{"role": "assistant", "content": None, "tool_calls": [CALL]},
                 {"role": "tool", "tool_call_id": CALL["id"], "content": "buy milk"}]
    answer = s.http.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert text_of(answer) == "Milk is wanted."
    assert s.stop() == 0


def test_a_prompt_without_a_line_fails(s):
    message = fault_of(s.chat("something else"))
    assert message.startswith("no line of the script matches the prompt, which ends with ")
    assert "something else" in message and "<|im_start|>assistant" in message
    s.say("only once", "now", once=True)
    assert text_of(s.chat("only once")) == "now"
    assert "no line of the script" in fault_of(s.chat("only once"))
    s.say("near the end", "near", tail=80)
    assert text_of(s.chat("near the end")) == "near"
    assert "no line of the script" in fault_of(s.chat("near the end" + 80 * "."))


def test_a_wrong_line_fails(launch, tmp_path):
    s = scripted.start(launch, tmp_path)
    s.say("first", "fine")
    with open(s.path, "a") as f:
        f.write('{"when": "second", "said": "wrong"}\n')
    for _ in range(2):
        assert "script line 2: it has a key besides when, say, once and tail" in fault_of(s.chat("first"))
    assert s.stop() == 0


def test_the_script_keeps_to_a_schema(s):
    towns = ['{"city":"Ulm","people":126949}', '{ "city": "caf\\u00e9",\n "people": -1 }']
    for i, text in enumerate(towns):
        s.say(f"town {i}", text)
        assert text_of(s.chat(f"town {i}", response_format=FORMAT)) == text
    assert text_of(s.chat("town 0", response_format=FORMAT, stream=False, temperature=1.5, seed=3)) == towns[0]


@pytest.mark.parametrize("case, text, words", [
    ("first", "Sure: {}", 'token 0 "S": outside the mask, allowed:'),
    ("value", [*'{"city":5,"people":1}'], 'token 8 "5": outside the mask, allowed:'),
    ("early end", '{"city":"Ulm"', ', the end "<|im_end|>": outside the mask, allowed:'),
    ("late end", '{"city":"Ulm","people":1}Done', '"}": the grammar has ended, but not the script'),
    ("control", '{"city":"<|im_start|>', '"<|im_start|>": outside the mask, allowed:')])
def test_a_token_outside_the_mask_fails(s, case, text, words):
    s.say(f"the {case} is wrong", text)
    message = fault_of(s.chat(f"the {case} is wrong", response_format=FORMAT))
    assert message.startswith("script line ") and words in message
    assert message in s.stderr()
    # In a stream, what was allowed may have been sent already.
    answer = s.chat(f"the {case} is wrong", response_format=FORMAT, stream=True).text
    last = answer.rstrip().split("data: ")[-1]
    assert words in json.loads(last)["error"]["message"], answer


def test_an_end_token_may_be_written_behind_a_grammar(s):
    s.say("which colour", "blue<|im_end|>")
    choice = {"structured_outputs": {"choice": ["red", "blue"]}}
    assert text_of(s.chat("which colour", **choice)) == "blue"


def test_a_token_that_is_banned_fails(s):
    s.say("be brief", "yes")
    assert text_of(s.chat("be brief", min_tokens=1)) == "yes"
    assert "banned before min_tokens" in fault_of(s.chat("be brief", min_tokens=40))


def test_requests_at_once_have_their_own_lines(s):
    said = {f"number {i}": f"This is answer {i}: " + " ".join(str(k * i) for k in range(40)) for i in range(12)}
    for when, what in said.items():
        s.say(when + "<|im_end|>", what)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        for when, answer in zip(said, pool.map(s.chat, said)):
            assert text_of(answer) == said[when]
    for what in ("red", "green", "blue"):
        s.say("a colour", what, once=True)
    answer = s.chat("a colour", n=3, temperature=1)
    assert sorted(c["message"]["content"] for c in answer.json()["choices"]) == ["blue", "green", "red"]
    s.settled()


def test_a_client_that_leaves_ends_its_script(s):
    s.say("a long story", LONG)
    with s.http.stream("POST", "/v1/chat/completions", json={
            "model": "m", "messages": [{"role": "user", "content": "a long story"}], "stream": True}) as answer:
        next(answer.iter_lines())
    s.settled()
    assert text_of(s.chat("a long story")) == LONG


def test_guessed_tokens_change_nothing(launch, tmp_path):
    s = scripted.start(launch, tmp_path, config=lambda model: scripted.config_of(model, limits={"draft_tokens": 4}))
    lines = "".join(f"the same line again and again, number {i}\n" for i in range(30))
    s.say("repeat", lines)
    assert text_of(s.chat("repeat")) == lines
    town = '{"city":"Llanfairpwllgwyngyll","people":3107}'
    s.say("a town", town)
    assert text_of(s.chat("a town", response_format=FORMAT)) == town
    s.say("no town", '{"city":"Llanfairpwllgwyngyll","houses":3107}')
    assert "outside the mask" in fault_of(s.chat("no town", response_format=FORMAT))
    assert s.metric("inferd_draft_tokens_right_total") > 20
    assert s.stop() == 0


# Two pages for keys and values; a page has those of about 15,000 tokens.
def crowded(model, host):
    return {"devices": [{"kind": "cpu", "memory": "6MiB"}], "host_arena": host,
            "models": [{"name": "m", "path": str(model)}, {"name": "urgent", "path": str(model), "class": "high"}]}


@pytest.mark.parametrize("host", ["0", "16MiB"], ids=["recompute", "swap"])
def test_a_preempted_sequence_goes_on_where_it_was(launch, tmp_path, host):
    s = scripted.start(launch, tmp_path, config=lambda model: crowded(model, host))
    s.say("now!", "Here.")
    s.say("take your time", LONG)
    text, urgent = "", None
    body = {"model": "m", "messages": [{"role": "user", "content": document(30000) + " take your time"}],
            "max_tokens": 6000, "stream": True}
    with s.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
            if text and urgent is None:
                urgent = s.chat(document(30000)[::-1] + " now!", model="urgent", max_tokens=10)
    assert text == LONG and text_of(urgent) == "Here."
    # It gave up its pages; with a host arena a part of them is computed again where that is faster.
    rungs = ['rung="recompute"', 'rung="park"'] if host != "0" else ['rung="recompute"']
    lines = s.http.get("/metrics").text.splitlines()
    assert any(line.startswith("inferd_preemptions_total{") and not line.endswith(" 0") and any(r in line for r in rungs)
               for line in lines), [line for line in lines if "preempt" in line]
    assert s.stop() == 0


def test_a_prompt_of_many_thousand_tokens_takes_seconds(s):
    s.say("sum it up", "It is long.")
    begin = time.monotonic()
    answer = s.chat(document(30000) + "\nsum it up")
    assert text_of(answer) == "It is long." and answer.json()["usage"]["prompt_tokens"] > 8000
    assert time.monotonic() - begin < 10 * SLOW
    assert s.http.get("/v1/models").json()["data"][0]["max_model_len"] >= 65536


def test_the_product_has_nothing_of_it():
    for word in (b"INFERD_SCRIPT", b"scripted: ", b"__wrap_", b"script_find"):
        assert word in scripted.PROGRAM.read_bytes()
        assert word not in (BUILD / "inferd").read_bytes()
