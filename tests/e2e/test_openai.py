"""The OpenAI contract, by the real openai package: every body and chunk is validated strictly by the
package's own types."""

import concurrent.futures
import json

import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk


def strictly(kind, body):
    """Validate a raw JSON body with the package's own pydantic type."""
    return kind.model_validate(body, strict=True)


def sse(d, path, body):
    """Post with stream=true; the events as JSON, and whether [DONE] came last."""
    events, done = [], False
    with d.http.stream("POST", path, json={**body, "stream": True}) as r:
        assert r.status_code == 200, r.read()
        assert r.headers["content-type"].startswith("text/event-stream")
        assert r.headers["cache-control"] == "no-cache"
        assert r.headers["x-request-id"]
        for line in r.iter_lines():
            if not line or line.startswith(":"):
                continue
            assert line.startswith("data: "), line
            assert not done
            if line == "data: [DONE]":
                done = True
            else:
                events.append(json.loads(line[6:]))
    return events, done


CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 12,
        "temperature": 0}


def test_models(tiny):
    client = tiny.openai()
    assert [m.id for m in client.models.list()] == ["tiny", "small"]
    assert client.models.retrieve("tiny").object == "model"
    strictly(Model, tiny.http.get("/v1/models/tiny").json())
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("absent")
    assert e.value.code == "model_not_found"


def test_chat_body_is_strictly_valid(tiny):
    body = tiny.http.post("/v1/chat/completions", json=CHAT).json()
    answer = strictly(ChatCompletion, body)
    assert answer.object == "chat.completion" and answer.model == "tiny"
    choice = body["choices"][0]
    assert choice["finish_reason"] in ("stop", "length")
    for key in ("index", "message", "finish_reason", "logprobs"):
        assert key in choice
    assert choice["message"]["role"] == "assistant" and choice["message"]["refusal"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 1 <= usage["completion_tokens"] <= 12


def test_chat_stream_has_the_order_of_the_contract(tiny):
    events, done = sse(tiny, "/v1/chat/completions", CHAT)
    assert done
    for e in events:
        strictly(ChatCompletionChunk, e)
        assert "usage" not in e
        assert (e["id"], e["created"], e["model"]) == (events[0]["id"], events[0]["created"], "tiny")
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"][0]["delta"] == {}
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    whole = tiny.http.post("/v1/chat/completions", json=CHAT).json()
    assert text == whole["choices"][0]["message"]["content"]


def test_include_usage_adds_one_chunk_and_nulls(tiny):
    events, done = sse(tiny, "/v1/chat/completions", {**CHAT, "n": 2, "stream_options": {"include_usage": True}})
    assert done
    assert all(e["usage"] is None for e in events[:-1])
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] >= 2
    for i in (0, 1):
        mine = [e["choices"][0] for e in events[:-1] if e["choices"][0]["index"] == i]
        assert mine[0]["delta"]["role"] == "assistant" and mine[-1]["finish_reason"]


def test_openai_package_streams_a_chat(tiny):
    client = tiny.openai()
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    assert chunks[-1].choices[0].finish_reason
    try:
        with client.chat.completions.stream(**CHAT) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
    except openai.LengthFinishReasonError as e:  # the helper's way to say finish_reason "length"
        final = e.completion
    assert final.choices[0].message.content == "".join(c.choices[0].delta.content or "" for c in chunks)


def test_chat_logprobs(tiny):
    body = tiny.http.post("/v1/chat/completions", json={**CHAT, "logprobs": True, "top_logprobs": 5}).json()
    strictly(ChatCompletion, body)
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) >= body["usage"]["completion_tokens"] - 1
    for entry in content:
        assert len(entry["top_logprobs"]) == 5
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-6)  # greedy
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    events, _ = sse(tiny, "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2})
    streamed = [x for e in events for x in ((e["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert [x["logprob"] for x in streamed] == [x["logprob"] for x in content]


def test_completions_prompts_in_all_forms(tiny):
    for prompt, n in (("abc", 1), (["abc", "def"], 2), ([5, 6, 7], 1), ([[5, 6, 7], [8, 9]], 2)):
        body = tiny.http.post("/v1/completions", json={
            "model": "tiny", "prompt": prompt, "max_tokens": 4, "n": 2, "temperature": 1, "seed": 3}).json()
        strictly(Completion, body)
        assert [c["index"] for c in body["choices"]] == list(range(2 * n))


def test_completion_echo_and_logprobs(tiny):
    body = tiny.http.post("/v1/completions", json={
        "model": "tiny", "prompt": "hello world", "max_tokens": 3, "echo": True, "logprobs": 2,
        "temperature": 0, "ignore_eos": True}).json()
    choice = body["choices"][0]
    lp = choice["logprobs"]
    assert choice["text"].startswith("hello world")
    n = body["usage"]["prompt_tokens"] + 3
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"]) == n
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None  # as OpenAI and vLLM answer
    lp["token_logprobs"][0], lp["top_logprobs"][0] = 0.0, {}
    strictly(Completion, body)  # whose types know no null there
    assert "".join(lp["tokens"]) == choice["text"]
    assert lp["text_offset"][0] == 0


def test_seed_repeats_and_choices_differ(tiny):
    ask = {"model": "tiny", "prompt": "once", "max_tokens": 24, "temperature": 1, "n": 3, "seed": 11}
    a = [c["text"] for c in tiny.http.post("/v1/completions", json=ask).json()["choices"]]
    b = [c["text"] for c in tiny.http.post("/v1/completions", json=ask).json()["choices"]]
    assert a == b and len(set(a)) == 3


def test_stop_strings_over_token_borders(tiny):
    ask = {"model": "tiny", "prompt": "stop here", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    whole = tiny.http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    for at in (3, 7, 11, 20):
        stop = whole[at:at + 5]
        if not stop:
            continue
        cut = whole[:whole.index(stop)]
        body = tiny.http.post("/v1/completions", json={**ask, "stop": ["never this", stop]}).json()
        assert body["choices"][0]["text"] == cut and body["choices"][0]["finish_reason"] == "stop"
        events, done = sse(tiny, "/v1/completions", {**ask, "stop": stop})
        assert done and "".join(e["choices"][0]["text"] for e in events) == cut
        assert stop not in cut


def test_stop_token_ids_min_tokens_and_ignore_eos(tiny):
    ask = {"model": "tiny", "prompt": [9, 8, 7], "max_tokens": 20, "temperature": 0, "return_token_ids": True,
           "ignore_eos": True}
    ids = tiny.http.post("/v1/completions", json=ask).json()["choices"][0]["token_ids"]
    assert len(ids) == 20
    body = tiny.http.post("/v1/completions", json={**ask, "stop_token_ids": [ids[4]]}).json()
    first = ids.index(ids[4])
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["token_ids"][:first] == ids[:first]
    body = tiny.http.post("/v1/completions", json={**ask, "stop_token_ids": [ids[4]], "min_tokens": 10}).json()
    assert len(body["choices"][0]["token_ids"]) >= 10


def test_logit_bias_forces_a_token(tiny):
    body = tiny.http.post("/v1/completions", json={
        "model": "tiny", "prompt": "x", "max_tokens": 5, "temperature": 0, "logit_bias": {"65": 100},
        "return_token_ids": True}).json()
    assert body["choices"][0]["token_ids"] == [65] * 5


def test_tokenize_and_detokenize(tiny):
    body = tiny.http.post("/tokenize", json={"model": "tiny", "prompt": "héllo <|im_end|> ☃"}).json()
    assert body["count"] == len(body["tokens"]) and body["max_model_len"] == 2048
    back = tiny.http.post("/detokenize", json={"model": "tiny", "tokens": body["tokens"]}).json()
    assert back["prompt"] == "héllo <|im_end|> ☃"
    chat = tiny.http.post("/tokenize", json={"model": "tiny", "messages": CHAT["messages"]}).json()
    forged = tiny.http.post("/tokenize", json={"model": "tiny", "messages": [
        {"role": "user", "content": "<|im_end|>"}]}).json()
    special = tiny.http.post("/tokenize", json={"model": "tiny", "prompt": "<|im_end|>"}).json()["tokens"]
    assert len(special) == 1
    assert forged["tokens"].count(special[0]) == chat["tokens"].count(special[0])


def test_continue_final_message(tiny):
    messages = CHAT["messages"] + [{"role": "assistant", "content": "Sure, I"}]
    opened = tiny.http.post("/tokenize", json={
        "model": "tiny", "messages": messages, "add_generation_prompt": False,
        "continue_final_message": True}).json()["tokens"]
    closed = tiny.http.post("/tokenize", json={
        "model": "tiny", "messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert len(opened) < len(closed)
    r = tiny.http.post("/v1/chat/completions", json={
        **CHAT, "messages": messages, "add_generation_prompt": True, "continue_final_message": True})
    assert r.status_code == 400


def test_cached_tokens_are_reported(tiny):
    messages = [{"role": "user", "content": "a long shared beginning " * 12}]
    ask = {**CHAT, "messages": messages, "cache_salt": "cached"}
    first = tiny.openai().chat.completions.create(**{k: v for k, v in ask.items() if k != "cache_salt"},
                                                  extra_body={"cache_salt": "cached"})
    again = tiny.http.post("/v1/chat/completions", json=ask).json()
    other = tiny.http.post("/v1/chat/completions", json={**ask, "cache_salt": "other"}).json()
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_content_parts_of_text(tiny):
    plain = tiny.http.post("/tokenize", json={"model": "tiny", "messages": [{"role": "user", "content": "ab\ncd"}]})
    parts = tiny.http.post("/tokenize", json={"model": "tiny", "messages": [{"role": "user", "content": [
        {"type": "text", "text": "ab\ncd"}]}]})
    assert plain.json()["tokens"] == parts.json()["tokens"]


REFUSED = {
    "prompt_logprobs": 1,
    "web_search_options": {},
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_there_is_refused_by_name(tiny, field):
    with pytest.raises(openai.BadRequestError) as e:
        tiny.openai().chat.completions.create(**CHAT, extra_body={field: REFUSED[field]})
    assert e.value.code == "unsupported_parameter" and e.value.param == field
    assert e.value.type == "invalid_request_error"


def test_images_are_refused(tiny):
    for url in ("http://169.254.169.254/", "file:///etc/passwd", "data:image/png;base64,AAAA"):
        with pytest.raises(openai.BadRequestError) as e:
            tiny.openai().chat.completions.create(model="tiny", messages=[{"role": "user", "content": [
                {"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]}])
        assert e.value.code in ("unsupported_parameter", "unsupported_content")


def test_other_errors_have_all_four_keys_and_a_request_id(tiny):
    for path, body, status in (("/v1/chat/completions", {"model": "absent", "messages": CHAT["messages"]}, 404),
                               ("/v1/chat/completions", {"model": "tiny"}, 400),
                               ("/v1/completions", {"model": "tiny", "prompt": [0] * 5000}, 400),
                               ("/nowhere", {}, 404)):
        r = tiny.http.post(path, json=body)
        assert r.status_code == status, r.text
        assert set(r.json()["error"]) == {"message", "type", "param", "code"}
        assert r.headers["x-request-id"]


def test_32_clients_share_one_batch(tiny):
    before = tiny.metric("inferd_step_seconds_count")
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        texts = list(pool.map(lambda i: tiny.http.post("/v1/completions", json={
            "model": "tiny", "prompt": f"client {i}", "max_tokens": 64, "ignore_eos": True,
            "temperature": 0}).json()["usage"]["completion_tokens"], range(32)))
    assert texts == [64] * 32
    assert tiny.metric("inferd_step_seconds_count") - before < 32 * 64
    tiny.settled()


@pytest.mark.real
def test_real_model_answers(real):
    answer = real.openai().chat.completions.create(
        model="smollm2", temperature=0, max_tokens=16,
        messages=[{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
