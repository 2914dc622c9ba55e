"""Work that is saved without changing an answer: tokens guessed ahead, and beginnings that arrive together."""

import concurrent.futures
import json
import subprocess
import sys

import pytest

from conftest import BUILD, model_config


@pytest.fixture(scope="module")
def guessing(launch, tiny_model):
    return launch({**model_config(tiny_model, "tiny"), "limits": {"draft_tokens": 4}})


def ask(d, prompt, n_tokens, **more):
    answer = d.http.post("/v1/completions", json={
        "model": "tiny", "prompt": prompt, "max_tokens": n_tokens, "return_token_ids": True, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def without_times(answer):
    return {k: v for k, v in answer.items() if k not in ("id", "created")}


def guesses(d):
    return d.metric("inferd_draft_tokens_total"), d.metric("inferd_draft_tokens_right_total")


# A text that quotes itself, and one that does not.
QUOTING = [(i % 9) * 7 + 3 for i in range(60)]
PLAIN = [(i * 37 + 11) % 250 for i in range(40)]

OPTIONS = [
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0.8, "seed": 7, "top_p": 0.9, "logprobs": 1},
    {"temperature": 0.3, "seed": 3, "top_k": 2, "min_p": 0.05},
    {"temperature": 0, "presence_penalty": 0.2, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    {"temperature": 0, "n": 3, "min_tokens": 20},
]


@pytest.mark.parametrize("options", OPTIONS, ids=[json.dumps(o) for o in OPTIONS])
@pytest.mark.parametrize("prompt", [QUOTING, PLAIN], ids=["quoting", "plain"])
def test_guesses_change_no_bit_of_an_answer(tiny, guessing, prompt, options):
    more = {"ignore_eos": True, "cache_salt": "guess" + json.dumps(options), **options}
    wanted = ask(tiny, prompt, 150, **more)
    assert without_times(ask(guessing, prompt, 150, **more)) == without_times(wanted)


def test_guesses_are_right_where_a_text_repeats_itself(tiny, guessing):
    """A random model in its greedy rut: most tokens come without a step of their own."""
    more = {"temperature": 0, "ignore_eos": True, "cache_salt": "rut"}
    drafted, right = guesses(guessing)
    steps = guessing.metric("inferd_step_seconds_count")
    answer = ask(guessing, QUOTING, 300, **more)
    drafted, right = guesses(guessing)[0] - drafted, guesses(guessing)[1] - right
    steps = guessing.metric("inferd_step_seconds_count") - steps
    print(f"{right:.0f} of {drafted:.0f} guesses right, {steps:.0f} steps for 300 tokens")
    assert answer["usage"]["completion_tokens"] == 300
    assert 50 < right <= drafted
    assert steps + right <= 302
    assert answer["choices"][0]["token_ids"] == ask(tiny, QUOTING, 300, **more)["choices"][0]["token_ids"]
    assert guesses(tiny) == (0, 0)


def test_ends_are_where_they_were(tiny, guessing):
    """A stop string, a stop id and the length inside of a guess: nothing behind them is told or counted."""
    more = {"temperature": 0, "ignore_eos": True}
    whole = ask(tiny, QUOTING, 120, **more)["choices"][0]
    for n in range(60, 72):
        stop_id = {"stop_token_ids": [whole["token_ids"][n]]}
        for limit, end in ((n, {}), (120, stop_id), (120, {**stop_id, "min_tokens": 50}),
                           (120, {"stop": [whole["text"][n:n + 3]]})):
            salt = f"ends {n} {limit} {end}"
            a, b = (without_times(ask(d, QUOTING, limit, cache_salt=salt, **more, **end)) for d in (tiny, guessing))
            assert a == b
    guessing.settled()


def test_a_stream_tells_every_token_once(tiny, guessing):
    def stream(d):
        text, n = "", 0
        for chunk in d.openai().completions.create(
                model="tiny", prompt=QUOTING, max_tokens=100, temperature=0, stream=True,
                stream_options={"include_usage": True}, extra_body={"ignore_eos": True}):
            text += "".join(c.text for c in chunk.choices)
            n = chunk.usage.completion_tokens if chunk.usage else n
        return text, n
    assert stream(guessing) == stream(tiny)


def page_of(d, *names):
    """The values of these metrics at one moment."""
    values = dict.fromkeys(names, 0.0)
    for line in d.http.get("/metrics").text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name in values:
            values[name] += float(line.rsplit(" ", 1)[1])
    return tuple(values[n] for n in names)


def test_with_eight_streams_nothing_is_guessed(tiny, guessing):
    prompts = [[(i * 5 + j % 6) % 250 for j in range(30)] for i in range(8)]
    more = {"temperature": 0, "ignore_eos": True, "cache_salt": "eight"}
    ids = lambda answer: [c["token_ids"] for c in answer["choices"]]
    wanted = ids(ask(tiny, prompts, 1500, **more))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, guessing, prompts, 1500, **more)
        pages = []
        while not answer.done():
            pages.append(page_of(guessing, "inferd_sequences_running", "inferd_draft_tokens_total",
                                 "inferd_step_seconds_count"))
        assert ids(answer.result()) == wanted
    full = [p for p in pages if p[0] == 8]
    print(f"{full[-1][2] - full[0][2]:.0f} steps with eight")
    assert full[-1][2] - full[0][2] > 100 and full[-1][1] == full[0][1]
    drafted = guesses(guessing)[0]
    ask(guessing, prompts[0], 400, **more)
    assert guesses(guessing)[0] > drafted + 100  # alone it is worth it


def check_config(tmp_path, config):
    f = tmp_path / "c.json"
    f.write_text(json.dumps(config))
    r = subprocess.run([BUILD / "inferd", "check", "--config", f], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def test_what_cannot_guess_says_so(tmp_path, tiny_model):
    config = {**model_config(tiny_model), "limits": {"draft_tokens": 17}}
    status, text = check_config(tmp_path, config)
    assert status == 2 and "limits.draft_tokens" in text and "16" in text
    config["limits"]["draft_tokens"] = 4
    assert check_config(tmp_path, config)[0] == 0
    config["devices"] = [{"kind": "cuda"}]
    status, text = check_config(tmp_path, config)
    assert status == 2 and "limits.draft_tokens: draft tokens exist on a CPU only" in text


# ---- beginnings that arrive together ----


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_sixteen_at_once_compute_their_beginning_once(launch, tiny_model):
    """512 tokens are the same, 9 behind them are not."""
    d = launch(model_config(tiny_model, "tiny"))
    prefix = [(i * 31 + i // 7) % 250 for i in range(512)]
    prompts = [prefix + [(i * 13 + j) % 250 for j in range(9)] for i in range(16)]
    more = {"temperature": 0, "ignore_eos": True, "logprobs": 0}
    wanted = [ask(d, p, 8, cache_salt=f"alone{i}", **more)["choices"] for i, p in enumerate(prompts)]
    rows = d.metric("inferd_rows_total")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = list(pool.map(lambda p: ask(d, p, 8, cache_salt="together", **more), prompts))
    rows = d.metric("inferd_rows_total") - rows
    assert [g["choices"] for g in got] == wanted
    assert sorted(cached(g) for g in got) == [0] + 15 * [512]
    assert rows == 512 + 16 * (9 + 7)
    d.settled()
    assert d.stop() == 0


def test_choices_of_a_request_compute_their_prompt_once(tiny):
    prompt = [(i * 29) % 250 for i in range(330)]
    rows = tiny.metric("inferd_rows_total")
    answer = ask(tiny, prompt, 4, n=8, temperature=1, seed=1, ignore_eos=True, cache_salt="choices")
    rows = tiny.metric("inferd_rows_total") - rows
    assert len(answer["choices"]) == 8
    assert rows <= 330 + 7 * 16 + 8 * 3  # at most a block each again, for its logits


def test_when_the_first_leaves_the_others_go_on(launch, tiny_model):
    """A long beginning in small steps; whoever computes it is cut off while it does."""
    d = launch({**model_config(tiny_model, "tiny"), "limits": {"step_tokens_max": 8, "running_max": 8}})
    prompt = [(i * 3 + i // 5) % 250 for i in range(1500)]
    code = ("import httpx, sys, json\n"
            "httpx.post(sys.argv[1], json=json.loads(sys.argv[2]), timeout=60)\n")
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
    first = subprocess.Popen([sys.executable, "-c", code, d.url + "/v1/completions", json.dumps(body)])
    while d.metric("inferd_rows_total") == 0:
        pass
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        rest = [pool.submit(ask, d, prompt, 4, temperature=0) for _ in range(4)]
        first.kill()
        first.wait()
        got = [r.result() for r in rest]
    assert all(g["choices"][0]["token_ids"] == got[0]["choices"][0]["token_ids"] for g in got)
    assert d.metric("inferd_rows_total") < 2 * 1500
    d.settled()
    assert d.stop() == 0
