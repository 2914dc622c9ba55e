"""Structured output: an answer that ends has the form that was asked for, whatever the model would rather write.  The
tiny model writes random bytes, so nothing but the constraint makes them valid."""

import concurrent.futures
import json
import re
import signal
import subprocess
import time
from typing import Literal

import httpx
import jsonschema_rs
import openai
import pydantic
import pytest

from conftest import BUILD, SLOW, model_config

SAY = [{"role": "user", "content": "Say something."}]
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"], "properties": {
    "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["red", "green", None]}, "maxItems": 2}}}
LOOSE = {"type": "object", "maxProperties": 3, "properties": {"kind": {"const": "x"}, "n": {"type": "number", "maximum": 5}},
         "additionalProperties": {"type": "boolean"}, "required": ["kind"]}


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def chat(d, **body):
    """The first choice of a chat that is not refused."""
    return answer(d, "/v1/chat/completions", messages=SAY, **body)[0]


def answer(d, path, **body):
    r = d.http.post(path, json={"model": d.model, "temperature": 1, "max_tokens": 400, **body})
    assert r.status_code == 200, r.text
    choices = r.json()["choices"]
    return [((c["text"] if "text" in c else c["message"]["content"]), c["finish_reason"]) for c in choices]


def thought_and_answer(d, **body):
    """Reasoning, content, how it ended."""
    r = d.http.post("/v1/chat/completions", json={"model": d.model, "messages": SAY, **body})
    assert r.status_code == 200, r.text
    choice = r.json()["choices"][0]
    return choice["message"].get("reasoning_content", ""), choice["message"]["content"], choice["finish_reason"]


def refused(d, path="/v1/chat/completions", **body):
    ask = {"model": d.model, "max_tokens": 8, **body}
    ask.setdefault("messages" if "chat" in path else "prompt", SAY if "chat" in path else "a")
    r = d.http.post(path, json=ask)
    assert r.status_code == 400, r.text
    e = r.json()["error"]
    assert e["type"] == "invalid_request_error"
    return e["code"], e["param"], e["message"]


def is_value(text, schema):
    jsonschema_rs.Draft202012Validator(schema).validate(json.loads(text))


def is_incomplete(text):
    with pytest.raises(ValueError):
        json.loads(text)


# ---- every form ----

@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("seed", range(4))
def test_a_schema(tiny, strict, seed):
    text, finish = chat(tiny, response_format=schema_format(PERSON, strict=strict), seed=seed)
    assert finish == "stop"
    is_value(text, PERSON)
    assert list(json.loads(text)) == ["name", "age", "tags"]  # the order of the schema


@pytest.mark.parametrize("more", [
    {"response_format": schema_format(LOOSE)}, {"response_format": {"type": "json_schema", "schema": LOOSE}},
    {"response_format": {"type": "json_object", "schema": LOOSE}}, {"structured_outputs": {"json": LOOSE}},
    {"structured_outputs": {"json": json.dumps(LOOSE)}}, {"guided_json": LOOSE}, {"guided_json": json.dumps(LOOSE)},
    {"json_schema": LOOSE}], ids=lambda m: next(iter(m)))
def test_a_schema_in_every_field(tiny, more):
    for path, prompt in (("/v1/chat/completions", {"messages": SAY}), ("/v1/completions", {"prompt": "a"})):
        for text, finish in answer(tiny, path, n=4, seed=1, **prompt, **more):
            assert finish in ("stop", "length")
            if finish == "stop":
                is_value(text, LOOSE)


def test_any_object(tiny):
    for more in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
        for text, finish in answer(tiny, "/v1/completions", prompt="a", n=8, seed=3, **more):
            assert text.lstrip(" \t\r\n").startswith("{") or not text.strip(" \t\r\n")
            if finish == "stop":
                assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("field", ["guided_regex", "regex", "structured_outputs"])
def test_a_pattern(tiny, field):
    pattern = r"[A-Z][a-z]{2,5}, (yes|no)!"
    ask = {field: pattern} if field != "structured_outputs" else {field: {"regex": pattern}}
    for text, finish in answer(tiny, "/v1/completions", prompt="a", n=8, **ask):
        assert finish == "stop" and re.fullmatch(pattern, text), text


@pytest.mark.parametrize("ask", [{"guided_choice": ["yes", "no", "perhaps not"]},
                                 {"structured_outputs": {"choice": ["yes", "no", "perhaps not"]}}])
def test_a_choice(tiny, ask):
    got = {t for t, f in answer(tiny, "/v1/completions", prompt="a", n=32, temperature=2, **ask) if f == "stop"}
    assert got <= {"yes", "no", "perhaps not"} and len(got) >= 2


@pytest.mark.parametrize("field", ["grammar", "guided_grammar", "ebnf"])
def test_a_grammar(tiny, field):
    gbnf = 'root ::= term ("+" term){1,3}\nterm ::= [0-9]{1,2} | "(" [a-c] ")"\n'
    for text, finish in answer(tiny, "/v1/completions", prompt="a", n=8, **{field: gbnf}):
        assert finish == "stop" and re.fullmatch(r"(\d{1,2}|\([abc]\))(\+(\d{1,2}|\([abc]\))){1,3}", text), text


def test_a_structural_tag(tiny):
    call = {"begin": "<f=go>", "schema": {"type": "object", "properties": {"to": {"enum": ["left", "right"]}},
                                          "required": ["to"], "additionalProperties": False}, "end": "</f>"}
    form = {"type": "structural_tag", "structures": [call], "triggers": ["<f="]}
    forced = {"format": {"type": "triggered_tags", "triggers": ["<f="], "at_least_one": True, "stop_after_first": True,
                         "tags": [{"begin": "<f=go>", "end": "</f>",
                                   "content": {"type": "json_schema", "json_schema": call["schema"]}}]}}
    for ask in ({"response_format": form}, {"structured_outputs": {"structural_tag": json.dumps(form)}}):
        for text, _ in answer(tiny, "/v1/completions", prompt="a", n=8, **ask):
            for part in text.split("<f=")[1:-1]:
                assert re.match(r'go>\s*\{\s*"to"\s*:\s*"(left|right)"\s*\}</f>', part), text
    start = {"type": "structural_tag", "format": {"type": "tag", "begin": "<f=go>", "end": "</f>", "content": {
        "type": "json_schema", "json_schema": call["schema"]}}}
    text, finish = chat(tiny, response_format=start)
    assert finish == "stop" and re.fullmatch(r'<f=go>\s*\{\s*"to"\s*:\s*"(left|right)"\s*\}</f>', text), text
    assert refused(tiny, response_format={**form, "triggers": ["<g="]})[0] == "invalid_schema"
    assert chat(tiny, structural_tag=forced)[1] in ("stop", "length")


def test_no_white_space_when_asked(tiny):
    for text, finish in answer(tiny, "/v1/completions", prompt="a", n=8,
                               structured_outputs={"json": PERSON, "disable_any_whitespace": True}):
        assert finish == "stop"
        assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False) == text or "\\" in text
    spaced = answer(tiny, "/v1/completions", prompt="a", n=16, structured_outputs={"json": PERSON})
    assert any(re.search(r'[:,\[{]\s', t) for t, _ in spaced)


def test_properties_in_any_order_when_asked(tiny):
    schema = {"type": "object", "properties": {k: {"type": "null"} for k in "abc"}, "required": list("abc"),
              "additionalProperties": False}
    orders = {}
    for waived in (False, True):
        texts = answer(tiny, "/v1/completions", prompt="a", n=16, temperature=1.5,
                       structured_outputs={"json": schema, "any_order": waived})
        assert all(finish == "stop" and json.loads(text) == {k: None for k in "abc"} for text, finish in texts)
        orders[waived] = {"".join(json.loads(text)) for text, _ in texts}
    assert orders[False] == {"abc"} and len(orders[True]) > 2


# ---- finish reasons ----

def test_a_cut_answer_says_so(tiny):
    whole = {"type": "object", "properties": {k: {"type": "integer", "minimum": 1000} for k in "abcdef"},
             "required": list("abcdef"), "additionalProperties": False}
    for n_max in (1, 2, 5, 9):
        text, finish = chat(tiny, response_format=schema_format(whole), max_tokens=n_max, seed=n_max)
        assert finish == "length"
        is_incomplete(text)


def test_an_answer_that_is_complete_at_max_tokens_is_not_cut(tiny):
    """The last token may be the last brace: the answer is whole, and says so."""
    ask = {"guided_regex": "abcdefgh{3}", "return_token_ids": True, "temperature": 0}
    body = tiny.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 50, **ask}).json()
    assert body["choices"][0]["text"] == "abcdefghhh" and body["choices"][0]["finish_reason"] == "stop"
    piece = tiny.http.post("/detokenize", json={"model": "tiny", "tokens": body["choices"][0]["token_ids"]}).json()
    n = len(body["choices"][0]["token_ids"]) - (piece["prompt"] != "abcdefghhh")  # without the end token
    again = tiny.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": n, **ask}).json()
    assert again["choices"][0]["text"] == "abcdefghhh" and again["choices"][0]["finish_reason"] == "stop"


def test_what_asks_for_more_tokens_yields(tiny):
    for more in ({"ignore_eos": True}, {"min_tokens": 50}, {"ignore_eos": True, "min_tokens": 50}):
        for skip in (True, False):
            text, finish = chat(tiny, guided_choice=["yes"], skip_special_tokens=skip, **more)
            assert (text, finish) == ("yes", "stop")


# ---- with the rest of a request ----

def test_three_choices_streamed(tiny):
    parts, finish = [""] * 3, [None] * 3
    for chunk in tiny.openai().chat.completions.create(
            model="tiny", messages=SAY, n=3, stream=True, seed=5, temperature=1, max_tokens=400,
            response_format=schema_format(PERSON, strict=True), stream_options={"include_usage": True}):
        for c in chunk.choices:
            parts[c.index] += c.delta.content or ""
            finish[c.index] = c.finish_reason or finish[c.index]
    assert finish == ["stop"] * 3 and len(set(parts)) == 3
    for text in parts:
        is_value(text, PERSON)
    whole = answer(tiny, "/v1/chat/completions", messages=SAY, n=3, seed=5, response_format=schema_format(PERSON, strict=True))
    assert [t for t, _ in whole] == parts


def test_logprobs_and_bias(tiny):
    r = tiny.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "guided_regex": "[ab]{8}", "logprobs": 5,
                                                "max_tokens": 20, "temperature": 1, "seed": 2}).json()["choices"][0]
    assert re.fullmatch("[ab]{8}", r["text"])
    assert "".join(r["logprobs"]["tokens"]) == r["text"]
    ids = tiny.http.post("/tokenize", json={"model": "tiny", "prompt": "a"}).json()["tokens"]
    text, finish = chat(tiny, guided_regex="[ab]{8}", logit_bias={str(ids[0]): 100}, temperature=0)
    assert finish == "stop" and re.fullmatch("[ab]{8}", text)


def test_an_echo_comes_before_it(tiny):
    text, finish = answer(tiny, "/v1/completions", prompt="once ", echo=True, guided_choice=["upon", "again"])[0]
    assert finish == "stop" and text in ("once upon", "once again")


class Reply(pydantic.BaseModel):
    color: Literal["red", "green", "blue"]
    amount: int = pydantic.Field(ge=0, le=1000)
    parts: list[Literal["x", "y"]] = pydantic.Field(max_length=3)


def test_openai_parse(tiny):
    client = tiny.openai()
    parse = getattr(client.chat.completions, "parse", None) or client.beta.chat.completions.parse
    done = parse(model="tiny", messages=SAY, response_format=Reply, max_tokens=300, seed=1)
    assert isinstance(done.choices[0].message.parsed, Reply)
    with pytest.raises(openai.LengthFinishReasonError):
        parse(model="tiny", messages=SAY, response_format=Reply, max_tokens=2)


# ---- refusals ----

@pytest.mark.parametrize("ask,param", [
    (lambda s: {"response_format": schema_format(s)}, "response_format.json_schema.schema"),
    (lambda s: {"response_format": {"type": "json_schema", "schema": s}}, "response_format.schema"),
    (lambda s: {"structured_outputs": {"json": s}}, "structured_outputs.json"),
    (lambda s: {"guided_json": json.dumps(s)}, "guided_json"), (lambda s: {"json_schema": s}, "json_schema")])
def test_a_keyword_that_cannot_be_enforced_is_named_with_its_path(tiny, ask, param):
    for schema, word, path in (
            ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems", "/properties/a"),
            ({"type": "object", "properties": {"b": {"type": "string", "format": "zip-code"}}}, "zip-code", "/properties/b")):
        code, where, message = refused(tiny, **ask(schema))
        assert (code, where) == ("unsupported_schema", param)
        assert word in message and path in message


def test_what_is_wrong_is_named(tiny):
    assert refused(tiny, guided_regex="a(b")[:2] == ("invalid_schema", "guided_regex")
    assert refused(tiny, guided_grammar="root := x")[:2] == ("invalid_schema", "guided_grammar")
    assert refused(tiny, guided_json="{")[:2] == ("invalid_schema", "guided_json")
    assert refused(tiny, guided_json="[1]")[:2] == ("invalid_schema", "guided_json")
    assert refused(tiny, guided_json={"type": "object", "properties": 5})[:2] == ("invalid_schema", "guided_json")
    assert refused(tiny, regex=r"(a)\1")[:2] == ("unsupported_schema", "regex")


def test_the_strict_profile_is_for_strict_schemas(tiny):
    open_object = {"type": "object", "properties": {"a": {"enum": [1]}}}
    code, param, _ = refused(tiny, response_format=schema_format(open_object, strict=True))
    assert param == "response_format.json_schema.schema" and code in ("invalid_schema", "unsupported_schema")
    assert chat(tiny, response_format=schema_format(open_object))[1] in ("stop", "length")


def test_one_constraint_and_nothing_that_cuts_it(tiny):
    code, param, message = refused(tiny, response_format={"type": "json_object"}, guided_regex="a")
    assert (code, param) == ("invalid_value", "guided_regex") and "response_format" in message
    assert refused(tiny, guided_regex="a", stop=["b"])[1] == "stop"
    assert refused(tiny, guided_regex="a", stop_token_ids=[1])[1] == "stop_token_ids"
    assert refused(tiny, "/v1/completions", guided_regex="a", echo=True, max_tokens=0)[1] == "max_tokens"


# ---- reasoning ----

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"


@pytest.fixture(scope="module")
def reasons(launch, tiny_model, tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "think.jinja"
    template.write_text(TURNS + "{% if mode == 'open' %}<think>\n{% elif mode == 'closed' %}<think>\n\n</think>\n\n{% endif %}")
    return launch(model_config(tiny_model, "tiny", model={"chat_template": str(template)}))


def test_the_constraint_begins_behind_reasoning(reasons):
    ask = {"guided_choice": ["yes"], "max_tokens": 40, "seed": 1}
    assert chat(reasons, chat_template_kwargs={"mode": "closed"}, **ask) == ("yes", "stop")
    thought, text, finish = thought_and_answer(reasons, chat_template_kwargs={"mode": "open"}, **ask)
    assert finish == "length" and thought and text == ""  # it reasons at random, and finds no end
    for seed in range(8):
        thought, text, finish = thought_and_answer(reasons, chat_template_kwargs={"mode": "free"}, **{**ask, "seed": seed})
        assert (thought, text, finish) == ("", "yes", "stop") or (finish == "length" and thought and text == "")
    text, finish = answer(reasons, "/v1/completions", prompt="a", **ask)[0]
    assert (text, finish) == ("yes", "stop")


def test_a_real_model_reasons_and_then_answers_in_the_form(launch, real_model, tmp_path):
    """Earlier turns show it how: it copies their reasoning, and ends it by itself."""
    template = tmp_path / "think.jinja"
    template.write_text("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                        "<|im_start|>assistant\n<think>\n")
    d = launch(model_config(real_model, "smollm2", memory="1GiB", model={"chat_template": str(template)}))
    turns = []
    for question, said in (("Is fire hot?", "yes"), ("Is ice warm?", "no"), ("Is the sun bright?", "yes")):
        turns += [{"role": "user", "content": question},
                  {"role": "assistant", "content": f"<think>\nThis is easy.\n</think>\n{said}"}]
    ask = {"messages": turns + [{"role": "user", "content": "Is water wet?"}], "temperature": 0, "max_tokens": 60}
    thought, text, finish = thought_and_answer(d, guided_choice=["yes", "no"], **ask)
    assert finish == "stop" and "easy" in thought and text in ("yes", "no"), (thought, text)
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"], "additionalProperties": False}
    thought, text, finish = thought_and_answer(d, response_format=schema_format(schema, strict=True), **ask)
    assert finish == "stop" and "easy" in thought
    is_value(text, schema)
    assert d.stop() == 0


# ---- many at once ----

def test_preempted_answers_are_the_same(launch, tiny_model, tiny):
    """24 choices of 300 letters in a pool that has room for a part of them."""
    ask = {"prompt": ["one", "two", "three"], "n": 8, "seed": 5, "guided_regex": "([a-f]{4} ){60}", "max_tokens": 600}
    wanted = answer(tiny, "/v1/completions", **ask, cache_prompt=False)
    assert all(re.fullmatch("([a-f]{4} ){60}", t) and f == "stop" for t, f in wanted)
    d = launch(model_config(tiny_model, "tiny", memory="4MiB"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda _: answer(d, "/v1/completions", **ask), range(2)))
    assert got == [wanted] * 2
    assert d.metric("inferd_preemptions_total") > 0
    d.settled()
    assert d.stop() == 0


def test_many_schemas_at_once(tiny):
    def one(i):
        schema = {"type": "object", "properties": {f"k{i % 5}": {"enum": [i % 7, f"v{i}"]}}, "required": [f"k{i % 5}"],
                  "additionalProperties": False}
        text, finish = chat(tiny, response_format=schema_format(schema), seed=i)
        assert finish == "stop"
        is_value(text, schema)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(64)))
    tiny.settled()


def test_clients_that_leave_leave_nothing(tiny):
    for seed in range(8):
        with tiny.http.stream("POST", "/v1/completions", json={
                "model": "tiny", "prompt": "a", "guided_regex": "[a-z]{1500}", "max_tokens": 1600, "stream": True, "seed": seed}) as r:
            next(r.iter_lines())
    tiny.settled()


def test_a_model_leaves_while_its_grammars_are_used(launch, tiny_model):
    """The configuration loses the model, and gets it back, while constrained answers of it run."""
    both = model_config(tiny_model, "tiny")
    both["models"].append({"name": "other", "path": tiny_model})
    d = launch(both)
    ask = {"model": "other", "prompt": "a", "temperature": 1, "max_tokens": 900, "guided_regex": "[a-z]{800}"}
    one = {**json.loads(d.config_path.read_text()), "models": both["models"][:1]}
    all_of_it = d.config_path.read_text()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(d.http.post, "/v1/completions", json={**ask, "seed": i}) for i in range(4)]
        for text, known in ((json.dumps(one), False), (all_of_it, True)):
            d.config_path.write_text(text)
            d.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + 20
            while ("other" in [m["id"] for m in d.http.get("/v1/models").json()["data"]]) != known:
                assert time.monotonic() < end
                time.sleep(0.02)
        for r in running:
            r = r.result()
            assert r.status_code in (200, 404), r.text  # 404: it came too late
            if r.status_code == 200:
                assert re.fullmatch("[a-z]{800}", r.json()["choices"][0]["text"])
    assert d.http.post("/v1/completions", json=ask).status_code == 200
    d.settled()
    assert d.stop() == 0


# ---- while the daemon changes ----

RGB = {"type": "object", "properties": {"c": {"enum": ["red", "green", "blue"]}, "n": {"type": "integer", "minimum": 0}},
       "required": ["c", "n"], "additionalProperties": False}


def test_models_of_two_vocabularies_share_a_schema(launch, tiny_model):
    config = model_config(tiny_model, "tiny")
    config["models"].append({"name": "other", "path": "dummy:tiny?seed=3"})
    d = launch(config, args=["--allow-dummy"])

    def one(i):
        for text, finish in answer(d, "/v1/completions", model=("tiny", "other")[i % 2], prompt=[5, 6], seed=i, n=2,
                                   guided_json=RGB, max_tokens=80):
            if finish == "stop":
                is_value(text, RGB)
            else:
                is_incomplete(text)
            return finish

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(32))).count("stop") > 16
    assert d.stop() == 0


def test_a_model_gets_another_vocabulary_while_its_grammars_are_used(launch, tiny_model):
    """The same name has another file after each reload.  Answers are of the file that was there when they began."""
    d = launch(model_config(tiny_model, "m"), args=["--allow-dummy"])
    texts = [json.dumps({**json.loads(d.config_path.read_text()), "models": [{"name": "m", "path": p}]})
             for p in ("dummy:tiny?seed=3", tiny_model)]
    ask = {"model": "m", "prompt": [5, 6], "temperature": 1, "max_tokens": 500, "guided_regex": "([0-9a-f]{4}-){60}"}
    stop = []

    def again(i):
        n = 0
        while not stop:
            r = d.http.post("/v1/completions", json={**ask, "seed": i})
            assert r.status_code in (200, 404, 503), r.text
            if r.status_code == 200:
                n += 1
                assert re.fullmatch("([0-9a-f]{4}-){60}", r.json()["choices"][0]["text"])
        return n

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(again, i) for i in range(4)]
        for i in range(6):
            d.config_path.write_text(texts[i % 2])
            d.process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
        stop.append(True)
        assert all(r.result() > 0 for r in running)
    d.settled()
    assert d.stop() == 0


def test_streams_end_whole_when_the_daemon_is_told_to_end(launch, tiny_model):
    d = launch(model_config(tiny_model, "tiny"))
    begun, ends = [], []

    def one(i):
        parts, finish = [], None
        for chunk in d.openai().completions.create(model="tiny", prompt="a", max_tokens=900, stream=True, seed=i,
                                                   extra_body={"guided_regex": "[a-z]{800}"}):
            parts.append(chunk.choices[0].text)
            finish = chunk.choices[0].finish_reason or finish
            if len(parts) == 1:
                begun.append(i)
        ends.append(("".join(parts), finish))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(one, i) for i in range(4)]
        while len(begun) < 4:
            time.sleep(0.005)
        d.process.send_signal(signal.SIGTERM)
        for r in running:
            r.result()
    assert len(ends) == 4 and all(re.fullmatch("[a-z]{800}", t) and f == "stop" for t, f in ends), ends
    assert d.stop() == 0


ENDLESS = {"type": "array", "minItems": 100000, "items": {"enum": [1, 2]}}


def test_a_device_that_is_lost_ends_constrained_streams(launch, tmp_path):
    sock = tmp_path / "admin.sock"
    d = launch({**model_config("dummy:tiny?seed=1&context=16384", "m", memory="64MiB"), "admin": {"listen": f"unix:{sock}"}},
               args=["--allow-dummy", "--allow-faults"])
    ctl = [BUILD / "inferd", "ctl", "--socket", sock]
    subprocess.run([*ctl, "slow", "cpu0", "20"], check=True)
    with d.http.stream("POST", "/v1/completions", json={"model": "m", "prompt": [5, 6], "max_tokens": 15000, "stream": True,
                                                        "guided_json": ENDLESS}, timeout=60) as r:
        lines = (line[6:] for line in r.iter_lines() if line.startswith("data: "))
        next(lines)
        subprocess.run([*ctl, "lose", "cpu0"], check=True)
        last = list(lines)[-1]
    assert json.loads(last)["error"]["code"] == "device_lost"
    assert d.process.wait(60) == 70
    assert "check failed" not in d.stderr()


def test_late_requests_of_a_slow_schema(launch, tiny_model):
    """One request runs at a time; those behind it wait with compiled grammars until they are late, or leave."""
    d = launch(model_config(tiny_model, "tiny", limits={"queue_timeout_ms": 300, "running_max": 1}))
    big = [{"type": "array", "minItems": 200, "items": {"enum": [f"{j * 7919 % 20000:05d}{i}" for j in range(5000)]}}
           for i in range(12)]

    def one(i):
        if i % 3 == 2:
            with pytest.raises(httpx.ReadTimeout):
                d.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1900, "guided_json": big[i]},
                            timeout=0.05)
            return 0
        return d.http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1900,
                                                    "guided_json": big[i]}).status_code

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        got = list(pool.map(one, range(12)))
    assert got.count(0) == 4 and set(got) <= {0, 200, 408, 429, 503, 504}, got
    d.settled()
    assert d.stop() == 0


# ---- the real model ----

def test_the_real_model_answers_in_the_form(real):
    ask = [{"role": "user", "content": "Describe a red apple as JSON with its color, its weight in grams and whether it is edible."}]
    schema = {"type": "object", "additionalProperties": False, "required": ["color", "grams", "edible"], "properties": {
        "color": {"type": "string", "maxLength": 20}, "grams": {"type": "integer", "minimum": 1, "maximum": 1000},
        "edible": {"type": "boolean"}}}
    for more in ({"temperature": 0}, {"temperature": 1, "seed": 1, "n": 4}):
        for text, finish in answer(real, "/v1/chat/completions", **{
                "messages": ask, "response_format": schema_format(schema, strict=True), "max_tokens": 200, **more}):
            assert finish == "stop", text
            is_value(text, schema)
    text, finish = answer(real, "/v1/chat/completions", temperature=0, guided_choice=["Paris", "Rome", "Berlin"],
                          messages=[{"role": "user", "content": "What is the capital of France?"}])[0]
    assert finish == "stop" and text in ("Paris", "Rome", "Berlin")


def test_a_slow_grammar_stops_no_other_stream(real):
    """Its masks are refused after a second or two each; meanwhile quick masks are made by another thread."""
    rules = "".join(f'r{j} ::= [a-z]{{1,{j + 2}}} ("{chr(97 + j % 26)}" | "(" root ")") [^\\n]{{0,{j + 3}}}\n' for j in range(60))
    root = "root ::= (" + " | ".join(f"r{j}" for j in range(60)) + ")*\n"
    stop = []

    def slow(i):
        n = 0
        while not stop:
            n += 1
            code, _, message = refused(real, "/v1/completions", guided_grammar=root + rules + f'last ::= "{i} {n}"\n')
            assert code == "unsupported_schema" and "steps_max" in message
        return n

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(slow, i) for i in range(4)]
        time.sleep(1)
        begin = time.monotonic()
        try:
            text, _ = answer(real, "/v1/completions", prompt="a", guided_regex="[a-z ]{300}", max_tokens=60)[0]
        finally:
            stop.append(True)
        took_s = time.monotonic() - begin
        assert all(r.result() > 0 for r in running)
    assert re.fullmatch("[a-z ]+", text)
    assert took_s < 30 * SLOW
