"""What real clients send, and what they read in the answer: each test is one defect that a client of
the OpenAI interface ran into."""

import concurrent.futures
import re
import time

import openai
import pytest

from conftest import model_config


def texts(d, **body):
    r = d.http.post("/v1/completions", json={"model": d.model, "max_tokens": 24, "temperature": 1,
                                             "ignore_eos": True, **body})
    assert r.status_code == 200, r.text
    choices = r.json()["choices"]
    assert [c["index"] for c in choices] == list(range(len(choices)))
    return [c["text"] for c in choices]


# ---- a list of prompts ----

def test_prompts_of_a_list_draw_independently_without_a_seed(tiny):
    """Four times the same prompt gave four identical texts: all prompts of a list had the same noise."""
    four = texts(tiny, prompt=["Once upon a time"] * 4)
    assert len(set(four)) == 4
    assert texts(tiny, prompt=["Once upon a time"] * 4) != four  # another request, another seed


def test_first_tokens_of_a_list_are_as_independent_as_single_requests(tiny):
    """With one noise for all prompts, flat distributions chose the same first token again and again."""
    prompts = [[i, i + 1, i + 2] for i in range(32)]
    body = {"prompt": prompts, "max_tokens": 1, "temperature": 2, "return_token_ids": True}
    ids = [c["token_ids"][0] for c in tiny.http.post(
        "/v1/completions", json={"model": "tiny", **body}).json()["choices"]]
    assert len(set(ids)) >= 16  # one noise for all: 1 to 5 of some 300 tokens


def test_a_seed_counts_choices_over_all_prompts(tiny):
    """Choice i of prompt p has the noise of choice p * n + i, as docs/api.md says."""
    a, b = "Once upon a time", "In the beginning"
    assert texts(tiny, prompt=[a] * 4, seed=7) == texts(tiny, prompt=a, n=4, seed=7)
    both = texts(tiny, prompt=[a, b], n=2, seed=7)
    assert both[:2] == texts(tiny, prompt=a, n=2, seed=7)
    assert both[0] == texts(tiny, prompt=a, seed=7)[0]
    assert both[2:] == texts(tiny, prompt=b, n=4, seed=7)[2:]
    assert len(set(texts(tiny, prompt=[a] * 4, seed=7))) == 4
    assert texts(tiny, prompt=[a, b], n=2, seed=7) == both
    client = tiny.openai()
    parsed = client.completions.create(model="tiny", prompt=[a, b], n=2, seed=7, max_tokens=24, temperature=1,
                                       extra_body={"ignore_eos": True})
    assert [c.text for c in parsed.choices] == both


def test_a_list_streamed_is_the_list_in_one_body(tiny):
    ask = {"model": "tiny", "prompt": ["one", "two", "one"], "n": 2, "seed": 3, "max_tokens": 16, "temperature": 1,
           "ignore_eos": True}
    whole = [c.text for c in tiny.openai().completions.create(
        **{k: v for k, v in ask.items() if k != "ignore_eos"}, extra_body={"ignore_eos": True}).choices]
    parts = [""] * 6
    for chunk in tiny.openai().completions.create(**{k: v for k, v in ask.items() if k != "ignore_eos"},
                                                  stream=True, extra_body={"ignore_eos": True}):
        for c in chunk.choices:
            parts[c.index] += c.text
    assert parts == whole


def test_a_list_is_the_same_alone_preempted_and_behind_a_cached_prefix(launch, tiny_model, tiny):
    """24 choices of 600 tokens in a pool for 5,400: they preempt each other, and the draws stay."""
    prompts = [[(i * 37 + j * (i + 11)) % 250 for j in range(40)] for i in (0, 0, 1, 1, 2, 2)]
    ask = {"prompt": prompts, "n": 4, "seed": 5, "max_tokens": 600, "top_p": 0.95}
    wanted = texts(tiny, **ask, cache_prompt=False)
    assert len(set(wanted)) == 24
    d = launch(model_config(tiny_model, "tiny", memory="4MiB"))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda _: texts(d, **ask), range(2)))
    assert got == [wanted] * 2
    assert d.metric("inferd_preemptions_total") > 0
    d.settled()
    assert d.stop() == 0
    short = {"prompt": prompts, "seed": 5, "max_tokens": 20, "cache_salt": "list"}
    first = texts(tiny, **short)
    before = tiny.metric("inferd_prefix_hit_tokens_total")
    assert texts(tiny, **short) == first
    assert tiny.metric("inferd_prefix_hit_tokens_total") >= before + 6 * 16


# ---- names of tokens ----

def check_logprobs(lp, k, text=None):
    """What holds for each position, and what lm-eval reads there: whether the token is the greedy one."""
    n = len(lp["tokens"])
    assert len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"]) == n
    offset = 0
    for i in range(n):
        assert lp["text_offset"][i] >= offset
        offset = lp["text_offset"][i]
        top, own = lp["top_logprobs"][i], lp["token_logprobs"][i]
        if top is None:
            assert own is None and i == 0
            continue
        rank = sorted(top.values(), reverse=True).index(own)
        assert len(top) == max(k, rank + 1) and top[lp["tokens"][i]] == own
        best = max(top, key=top.get)
        assert (lp["tokens"][i] == best) == (own == max(top.values()))  # lm-eval up to 0.4.7, and since
        if text is not None and not lp["tokens"][i].startswith(("bytes:", "token_id:")):
            assert text[offset:].startswith(lp["tokens"][i])


@pytest.mark.parametrize("streamed", [False, True])
def test_20_alternatives_are_20(tiny, streamed):
    """They were keyed by text, and bytes that are no whole character collided: 15 to 18 came."""
    ask = {"model": "tiny", "prompt": "Hello wörld ☃", "max_tokens": 12, "logprobs": 20, "temperature": 1, "seed": 1}
    client = tiny.openai()
    if streamed:
        chunks = [c.choices[0] for c in client.completions.create(**ask, stream=True)]
        parts = [c.logprobs.model_dump() for c in chunks if c.logprobs]
        lp = {name: sum((p[name] for p in parts), []) for name in parts[0]}
        text = "".join(c.text for c in chunks)
    else:
        choice = client.completions.create(**ask, extra_body={"ignore_eos": True}).choices[0]
        lp, text = choice.logprobs.model_dump(), choice.text
        assert len(lp["tokens"]) == 12
    check_logprobs(lp, 20, text)
    assert any(name.startswith("bytes:\\x") for top in lp["top_logprobs"] for name in top)


def test_an_echoed_prompt_has_20_alternatives(tiny):
    """A prompt of token ids with echo and max_tokens 1 or 0: how lm-eval scores."""
    ids = tiny.http.post("/tokenize", json={"model": "tiny", "prompt": "naïve ☃☃ text"}).json()["tokens"]
    body = {"model": "tiny", "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 20, "temperature": 0}
    choice = tiny.http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == "naïve ☃☃ text" and len(choice["logprobs"]["tokens"]) == len(ids)
    check_logprobs(choice["logprobs"], 20, choice["text"])


def test_tokens_are_named_by_their_ids_when_asked(tiny):
    """vLLM's `return_tokens_as_token_ids`, on both routes; it was refused."""
    more = {"return_tokens_as_token_ids": True, "return_token_ids": True, "ignore_eos": True}
    ask = {"model": "tiny", "max_tokens": 8, "temperature": 0, **more}
    choice = tiny.http.post("/v1/completions", json={**ask, "prompt": "x", "logprobs": 20}).json()["choices"][0]
    lp = choice["logprobs"]
    assert lp["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
    check_logprobs(lp, 20)
    assert all(name.startswith("token_id:") for top in lp["top_logprobs"] for name in top)
    chat = {**ask, "messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20}
    choice = tiny.http.post("/v1/chat/completions", json=chat).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [e["token"] for e in entries] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert all(len({t["token"] for t in e["top_logprobs"]}) == 20 for e in entries)
    plain = tiny.http.post("/v1/chat/completions", json={**chat, "return_tokens_as_token_ids": False}).json()
    assert [e["bytes"] for e in plain["choices"][0]["logprobs"]["content"]] == [e["bytes"] for e in entries]


@pytest.mark.real
def test_20_alternatives_of_a_real_model_are_20(real):
    for prompt in ("The capital of France is", "日本語のテキスト", "🙂🙃 emoji:"):
        choice = real.openai().completions.create(
            model="smollm2", prompt=prompt, max_tokens=16, logprobs=20, temperature=0).choices[0]
        check_logprobs(choice.logprobs.model_dump(), 20, choice.text)


# ---- fields that ask for nothing ----

HI = [{"role": "user", "content": "Hello there"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("more", [
    {"tools": []}, {"functions": []}, {"tool_choice": "none"}, {"tool_choice": "none", "tools": TOOLS},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
    {"function_call": "none", "functions": [{"name": "f"}]}, {"response_format": {"type": "text"}},
    {"user": 123}, {"user": None}, {"user": {"id": 1}}, {"metadata": "a"}, {"store": "yes"}, {"store": True},
    {"safety_identifier": 5}, {"prompt_cache_key": ["k"]}, {"prompt_cache_retention": 24}, {"request_id": 7},
    {"service_tier": "auto"}, {"prediction": "x"}, {"top_logprobs": 0}, {"modalities": ["text"]}, {"documents": []},
], ids=str)
def test_fields_that_ask_for_nothing_change_nothing(tiny, more):
    """Frameworks send them with every request; several were 400."""
    ask = {"model": "tiny", "messages": HI, "max_tokens": 8, "temperature": 0}
    wanted = tiny.http.post("/v1/chat/completions", json=ask).json()["choices"]
    r = tiny.http.post("/v1/chat/completions", json={**ask, **more})
    assert r.status_code == 200, r.text
    assert r.json()["choices"] == wanted


# ---- a full context ----

def overflow(d, path, **body):
    r = d.http.post(path, json={"model": d.model, "max_tokens": 100, **body})
    e = r.json()["error"]
    assert r.status_code == 400, r.text
    assert (e["type"], e["code"]) == ("invalid_request_error", "context_length_exceeded")
    return e


def test_a_full_context_is_said_in_openai_s_words(tiny):
    """LiteLLM looks for these words; with ours its fallbacks to longer contexts could not work."""
    said = "This model's maximum context length is 2048 tokens. However, you requested {} tokens ({} in the {}, {} in " \
           "the completion). Please reduce the length of the {} or completion."
    e = overflow(tiny, "/v1/completions", prompt=[5] * 2000)
    assert e["message"] == said.format(2100, 2000, "prompt", 100, "prompt") and e["param"] == "prompt"
    e = overflow(tiny, "/v1/completions", prompt=[[5], [5] * 2048], max_tokens=1)
    assert e["message"] == said.format(2049, 2048, "prompt", 1, "prompt")
    chat = [{"role": "user", "content": "a b " * 1500}]
    n = tiny.http.post("/tokenize", json={"model": "tiny", "messages": chat}).json()["count"]
    e = overflow(tiny, "/v1/chat/completions", messages=chat)
    assert e["message"] == said.format(n + 100, n, "messages", 100, "messages") and e["param"] == "messages"
    e = overflow(tiny, "/v1/chat/completions", messages=chat, max_tokens=None)
    assert e["message"] == said.format(n + 1, n, "messages", "at least 1", "messages")
    with pytest.raises(openai.BadRequestError) as raised:
        tiny.openai().chat.completions.create(model="tiny", messages=chat, stream=True)
    assert raised.value.code == "context_length_exceeded"


@pytest.mark.real
def test_a_request_for_more_than_the_memory_is_a_full_context(launch, real_model, real):
    """A pool with room for some 1,000 tokens of a model with 8,192: the same code, the same first words."""
    weights = real.audit()["pages"]["weight"]
    d = launch(model_config(real_model, "smollm2", memory=f"{2 * (weights + 12)}MiB"))
    for path, body in (("/v1/completions", {"prompt": [5] * 6000}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "one two " * 2500}]})):
        e = overflow(d, path, **body, max_tokens=1)
        assert e["message"].startswith(
            "This model's maximum context length is 8192 tokens, and its memory holds fewer: the prompt has "), e
        assert e["param"] == next(iter(body))
    assert d.stop() == 0


# ---- fields that nobody knows ----

IGNORED = "x-inferd-ignored"


def test_a_misspelt_field_is_told(launch, tiny_model):
    """`"temprature": 0` sampled at 1.0: no log line, no header."""
    d = launch(model_config(tiny_model, "tiny"))
    ask = {"model": "tiny", "messages": HI, "max_tokens": 4}
    raw = d.openai().chat.completions.with_raw_response.create(**ask, extra_body={"temprature": 0, "top_kk": 1})
    assert raw.headers[IGNORED] == "temprature, top_kk" and raw.parse().choices[0].message.content is not None
    assert IGNORED not in d.http.post("/v1/chat/completions", json=ask).headers
    with d.http.stream("POST", "/v1/completions", json={
            "model": "tiny", "prompt": "x", "stream": True, "temprature": 0, "suffx": ""}) as r:
        assert r.headers[IGNORED] == "temprature, suffx"
        r.read()
    r = d.http.post("/v1/completions", json={
        "model": "tiny", "prompt": "x", "stream": True, "stream_options": {"include_usge": True}})
    assert r.status_code == 200 and r.headers[IGNORED] == "stream_options.include_usge"
    r = d.http.post("/v1/completions", json={"model": "tiny", "promt": "x"})  # an error has it, too
    assert r.status_code == 400 and r.headers[IGNORED] == "promt"
    r = d.http.post("/tokenize", json={"model": "tiny", "prompt": "x", "temperature": 1})
    assert r.status_code == 200 and r.headers[IGNORED] == "temperature"
    assert d.metric("inferd_unknown_fields_total") == 7
    assert d.stop() == 0
    lines = [x for x in d.stderr().splitlines() if "event=unknown_field " in x]
    assert len(lines) == 6, lines  # each name once
    assert "route=/v1/chat/completions field=temprature did_you_mean=temperature" in lines[0]
    assert any("field=suffx did_you_mean=suffix" in x for x in lines)
    assert any("field=promt did_you_mean=prompt" in x for x in lines)
    assert any("field=stream_options.include_usge did_you_mean=stream_options.include_usage" in x for x in lines)


def test_hostile_field_names_make_no_header_and_no_line(launch, tiny_model):
    d = launch(model_config(tiny_model, "tiny"))
    ask = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    r = d.http.post("/v1/completions", json={**ask, "a\r\nSet-Cookie: s=1\r\n\r\nbody": 1, "\x1b[2J": 2, "": 3})
    assert r.status_code == 200 and "set-cookie" not in r.headers
    assert r.headers[IGNORED] == "a%0D%0ASet-Cookie%3A%20s%3D1%0D%0A%0D%0Abody, %1B%5B2J, %"
    for i in range(60):  # 480 names: the log is told 256 of them, the header 8 of each request
        r = d.http.post("/v1/completions", json={**ask, **{f"field_{i}_{k}": 0 for k in range(20)}})
        assert r.headers[IGNORED].endswith(", +12") and r.headers[IGNORED].startswith(f"field_{i}_0, field_{i}_1, ")
    assert d.stop() == 0
    log = d.stderr()
    assert "\x1b" not in log and log.count("event=unknown_field ") == 256
    assert log.count("event=unknown_fields_no_longer_told ") == 1


# ---- metrics ----

def test_the_endpoint_picker_finds_its_metrics(tiny):
    """The Kubernetes gateway's picker asks for these besides the three gauges; two were not there."""
    page = tiny.http.get("/metrics").text
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert re.search(rf"^vllm:{name}{{.*}} [0-9.]+$", page, re.M), name
    info = re.search(r'^vllm:cache_config_info{model_name="tiny",engine="0",block_size="(\d+)",num_gpu_blocks="(\d+)"} 1$',
                     page, re.M)
    audit = tiny.audit()
    assert int(info[1]) > 0 and int(info[2]) == audit["models"][0]["kv_tokens_max"] // int(info[1])
    lora = re.search(r'^vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} (\d+)$',
                     page, re.M)
    assert abs(int(lora[1]) - time.time()) < 60
    assert re.search(r'^inferd_pool_pages{device=".*"} [1-9]', page, re.M) and "inferd_pages_total" not in page
