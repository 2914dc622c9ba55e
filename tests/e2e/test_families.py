"""Every family in the daemon: what transformers says, and the same bits however a request is computed: in chunks, beside
others, from cached keys and values, preempted, drafted, after the model left, beside another model."""

import concurrent.futures
import functools
import re
import time
from collections import Counter

import httpx
import numpy as np
import pytest

import families
from conftest import SANITIZE, SLOW

NAMES = families.names()
# layers, experts, experts that a row uses
SHAPES = {"qwen3moe": (3, 8, 3), "mixtral": (3, 6, 2), "granitemoe": (3, 6, 3), "gpt-oss": (4, 6, 3), "gpt-oss-mxfp4": (4, 6, 3)}
MIXTURES = [n for n in NAMES if n in SHAPES]
KEYS = {"x": "key-of-tenant-x-0123456789", "y": "key-of-tenant-y-0123456789"}
LENGTHS = [5, 230, 17, 61, 130, 33, 99, 180]  # of requests side by side
DECODED = 24
PAGE = 2 << 20
WHOLE = [n for n in NAMES if families.golden(n).context == 0]  # with their whole context
preempted = {"0": Counter(), "32MiB": Counter()}  # by host memory: preemptions of all families, by kind


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def serve(launch, folder):
    """A function that starts a daemon with all families, or some."""

    def start(names=NAMES, math="fast", memory="256MiB", models=None, env=None, **config):
        return launch({"devices": [{"kind": "cpu", "memory": memory, "threads": 2, "cpu_math": math}],
                       "models": [families.model(n, folder, **(models or {})) for n in names], **config}, env=env)

    return start


@pytest.fixture(scope="module")
def plain(serve, folder):
    """All families, each also under a control that can unload it."""
    d = serve(admin={"listen": f"unix:{folder}/admin.sock"})
    with httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/admin.sock"), base_url="http://localhost",
                      timeout=60 * SLOW) as d.admin:
        until = time.monotonic() + 20 * SLOW  # memory is made while nothing is computed; before, cached pages are taken again
        while re.search(r'inferd_pages\{.*state="absent".*\} [1-9]', d.http.get("/metrics").text):
            assert time.monotonic() < until
            time.sleep(0.02)
        yield d
    assert d.stop() == 0


def ask(d, name, prompt, n=DECODED, key=None, **more):
    r = d.http.post("/v1/completions", headers={"Authorization": f"Bearer {key}"} if key else {}, json={
        "model": name, "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        "logprobs": 1, **more})
    assert r.status_code == 200, r.text
    return r.json()


def said(body):
    choice = body["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def cached(body):
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def together(works):
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        return [w.result() for w in [pool.submit(w) for w in works]]


def prompt_of(name, n, begin=0):
    tokens = families.golden(name).tokens
    return (tokens + tokens)[begin:begin + n]


@pytest.fixture(scope="module")
def alone(plain):
    """What a family says to a prompt when nothing else runs and nothing is cached."""
    known = {}

    def of(name, prompt, n=DECODED, **more):
        key = (name, tuple(prompt), n, str(more))
        if key not in known:
            body = ask(plain, name, prompt, n, cache_salt=f"alone {len(known)}", **more)
            assert cached(body) == 0
            known[key] = said(body)
        return known[key]

    return of


def at_rest(d):
    """Wait until nothing runs."""
    until = time.monotonic() + 20 * SLOW
    while d.metric("inferd_sequences_running") + d.metric("inferd_sequences_waiting") > 0:
        assert time.monotonic() < until
        time.sleep(0.01)


# ---- the reference ----

def expect_golden(d, name, length, off_max, greedy):
    """The log-probabilities of the 20 best tokens behind a prompt of the golden, and the tokens that follow."""
    g = families.golden(name)
    choice = ask(d, name, g.tokens[:length], 16, logprobs=20, return_tokens_as_token_ids=True)["choices"][0]
    logits = g.logits[length].astype(np.float64)
    wanted = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    got = {int(token.removeprefix("token_id:")): value for token, value in choice["logprobs"]["top_logprobs"][0].items()}
    assert len(got) == 20
    off = max(abs(value - wanted[token]) for token, value in got.items())
    off = max(off, abs(min(got.values()) - np.sort(wanted)[-20]))  # they are the 20 best
    print(f"{name} {length}: log-probabilities are off by {off:.2g} at most")
    assert off <= off_max, (name, length, off)
    if greedy:
        sure = next((i for i, (_, gap) in enumerate(g.greedy[length]) if gap <= families.SURE), 16)
        assert choice["token_ids"][:sure] == [token for token, _ in g.greedy[length][:sure]]


@pytest.fixture(scope="module")
def exact(serve):
    d = serve(math="exact", limits={"kv_type": "f32"})
    yield d
    assert d.stop() == 0


@pytest.mark.parametrize("name", NAMES)
def test_exact_math_says_what_transformers_says(exact, name):
    for length in (1, 17, *(n for n in families.golden(name).logits if 100 < n < 1000)):
        expect_golden(exact, name, length, 1e-4, True)


@pytest.mark.parametrize("name", NAMES)
def test_usual_math_is_close_to_it(plain, name):
    expect_golden(plain, name, 17, 0.05, False)


# ---- one answer, many ways ----

def expect_cached(d, alone, name, prompt):
    """While pages were never touched, the oldest prefixes leave the cache first (docs/cpu.md#memory): then the
    prompt is computed again, with the same bits, and found the next time."""
    for _ in range(3):
        again = ask(d, name, prompt, cache_salt="1")
        assert said(again) == alone(name, prompt)
        if cached(again) >= 192:
            return
    assert False, cached(again)


@pytest.mark.parametrize("name", NAMES)
def test_beside_others_and_from_the_cache(plain, alone, name):
    prompts = [prompt_of(name, n, 7 * i) for i, n in enumerate(LENGTHS)]
    bodies = together([lambda p=p, i=i: ask(plain, name, p, cache_salt=f"{i}") for i, p in enumerate(prompts)])
    assert [said(b) for b in bodies] == [alone(name, p) for p in prompts]
    expect_cached(plain, alone, name, prompts[1])
    expect_cached(plain, alone, name, prompts[1][:200] + prompt_of(name, 30, 900))


@pytest.fixture(scope="module", params=[16, 50])
def chunked(request, serve):
    d = serve(limits={"step_tokens_max": request.param, "running_max": 8})
    yield d
    assert d.stop() == 0


@pytest.mark.parametrize("name", NAMES)
def test_in_chunks(chunked, alone, name):
    prompts = [prompt_of(name, n, 7 * i) for i, n in enumerate(LENGTHS)]
    assert said(ask(chunked, name, prompts[1], cache_salt="first")) == alone(name, prompts[1])
    bodies = together([lambda p=p, i=i: ask(chunked, name, p, cache_salt=f"{i}") for i, p in enumerate(prompts[:4])])
    assert [said(b) for b in bodies] == [alone(name, p) for p in prompts[:4]]


@pytest.fixture(scope="module")
def drafting(serve):
    d = serve(limits={"draft_tokens": 4})
    yield d
    assert d.stop() == 0


@pytest.mark.parametrize("name", NAMES)
def test_drafted(drafting, alone, name):
    """The bias makes the text of a random model repeat itself, so that drafts are right."""
    prompt, n = prompt_of(name, 12) * 4, 100
    more = {"logit_bias": {str(t): 4 for t in prompt[:3]}}
    metrics = ("inferd_draft_tokens_total", "inferd_draft_tokens_right_total")
    before = [drafting.metric(m) for m in metrics]
    got = said(ask(drafting, name, prompt, n, **more))
    drafted, right = (drafting.metric(m) - b for m, b in zip(metrics, before))
    print(f"{name}: {right:.0f} of {drafted:.0f} drafts accepted")
    assert got == alone(name, prompt, n, **more)
    assert 0 < right <= drafted


@pytest.mark.parametrize("name", NAMES)
def test_after_the_model_left(plain, alone, name):
    prompt = prompt_of(name, 100, 50)
    wanted = alone(name, prompt)
    r = plain.admin.post(f"/admin/models/{name}/unload", json={"wait": True})
    assert r.status_code == 200, r.text
    state = plain.admin.get(f"/admin/models/{name}").json()
    assert state["state"] != "resident", state
    assert said(ask(plain, name, prompt)) == wanted


def test_all_families_at_once_for_two_tenants(serve, alone):
    """Dense ones and mixtures take turns on the device."""
    d = serve(tenants=[{"name": t, "keys": [k]} for t, k in KEYS.items()])
    works = [(n, t, i) for i in (0, 1) for n in NAMES for t in KEYS]
    prompt = lambda n, i: prompt_of(n, 120 + i, 11 * i)
    bodies = together([lambda w=w: ask(d, w[0], prompt(w[0], w[2]), key=KEYS[w[1]]) for w in works])
    for (n, t, i), body in zip(works, bodies):
        assert said(body) == alone(n, prompt(n, i)), (n, t)
        assert cached(body) == 0, (n, t)
    assert d.stop() == 0


# ---- preempted ----

def rungs(d):
    """Preemptions by kind."""
    counts = {}
    for line in d.http.get("/metrics").text.splitlines():
        found = re.match(r'inferd_preemptions_total\{.*rung="(\w+)".*\} (\d+)', line)
        if found:
            counts[found[1]] = counts.get(found[1], 0) + int(found[2])
    return counts


@pytest.fixture(scope="module")
def roomy(serve):
    d = serve(limits={"kv_type": "f32"})
    yield d
    assert d.stop() == 0


def crowd(d, name, n):
    """Half of the requests may be preempted by the others."""
    works = [lambda i=i: ask(d, name, prompt_of(name, 250 - i, 9 * i), 120, cache_salt=str(i),
                             priority=("normal", "batch")[i % 2]) for i in range(n)]
    return [said(body) for body in together(works)]


@pytest.fixture(scope="module")
def in_room(roomy):
    """What a crowd is told where there is room for all."""
    return functools.cache(lambda name, n: crowd(roomy, name, n))


@pytest.mark.parametrize("host", ["0", "32MiB"])
@pytest.mark.parametrize("name", WHOLE)
def test_preempted(serve, in_room, folder, name, host):
    """Requests that grow beyond the page or two for keys and values push each other out: without host memory they are
    computed again, with it they are copied out and back where that is faster."""
    n_pages = -(-families.write(name, folder).stat().st_size * 5 // (4 * PAGE)) + 1
    d = serve([name], memory=f"{n_pages * PAGE >> 20}MiB", host_arena=host, limits={"kv_type": "f32"})
    for n in (16, 32):  # families with small heads have room for more
        assert crowd(d, name, n) == in_room(name, n)
        counts = rungs(d)
        if counts["recompute"] + counts["park"] > 0:
            break
    print(f"{name}: {n} requests, {counts}")
    preempted[host] += Counter(counts)
    assert counts["recompute"] + counts["park"] > 0
    if host == "0":
        assert counts["park"] == 0
    assert d.stop() == 0


@pytest.mark.skipif(SANITIZE != "", reason="times choose, and there is one family")
def test_both_kinds_of_preemption_were_seen():
    assert preempted["0"]["recompute"] >= len(WHOLE) and preempted["32MiB"]["park"] > 0


# ---- on disk ----

def test_found_again_after_a_restart(serve, tmp_path):
    """With the formulas as plain loops, so that reading takes less time than computing.  `phi4-mini-short` is the
    file of `phi4-mini` for a context that has other rotary factors: keys of the one are no keys of the other."""
    def start(names):
        return serve(names, env={"INFERD_CPU": "define"}, state_dir=str(tmp_path), kv_disk="64MiB")

    def answers(d, names):
        bodies = {n: ask(d, n, prompt_of(n, 200), 4) for n in names}
        d.settled()
        return bodies

    first = [n for n in NAMES if n != "phi4-mini-short"]
    d = start(first)
    wanted = answers(d, first)
    assert d.stop() == 0
    d = start(NAMES)
    again = answers(d, NAMES)
    assert d.stop() == 0
    for n in first:
        assert said(again[n]) == said(wanted[n]) and cached(again[n]) >= 176, (n, cached(again[n]))
    for n in set(NAMES) - set(first):
        assert cached(again[n]) == 0 and said(again[n]) != said(again["phi4-mini"])


# ---- errors and ends ----

@pytest.mark.parametrize("name", NAMES)
def test_cancelled_and_too_long(plain, alone, name):
    prompt, context = prompt_of(name, 40, 3), families.golden(name).context or 4096
    with plain.http.stream("POST", "/v1/completions", json={"model": name, "prompt": prompt, "stream": True,
                                                            "max_tokens": context - 40, "temperature": 0,
                                                            "ignore_eos": True}) as r:
        assert r.status_code == 200
        lines = r.iter_lines()
        for _ in range(6):
            next(lines)
    at_rest(plain)
    assert said(ask(plain, name, prompt)) == alone(name, prompt)
    r = plain.http.post("/v1/completions", json={"model": name, "prompt": prompt_of(name, 2000) * 3, "max_tokens": 1})
    assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded", r.text
    assert str(context) in r.json()["error"]["message"]
    body = ask(plain, name, prompt_of(name, context - 3) if context < 1000 else prompt, 2)
    assert len(said(body)[0]) == 2


# ---- experts ----

def expert_counts(d, name):
    page = d.http.get("/metrics").text
    rows = re.findall(rf'^inferd_model_expert_rows_total{{model="{name}",expert="(\d+)"}} (\d+)$', page, re.M)
    reads = re.search(rf'^inferd_model_expert_reads_total{{model="{name}"}} (\d+)$', page, re.M)
    return {int(e): int(n) for e, n in rows}, int(reads[1]) if reads else None


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_counted(plain, name):
    """The last layer computes only the rows whose logits are asked for; a step reads an expert's weights once."""
    n_layers, n_experts, n_used = SHAPES[name]
    at_rest(plain)
    before, reads_before = expert_counts(plain, name)
    rows_before = plain.metric("inferd_rows_total")
    ask(plain, name, prompt_of(name, 17, 400), 4)
    at_rest(plain)
    after, reads = expert_counts(plain, name)
    assert plain.metric("inferd_rows_total") - rows_before == 17 + 3
    assert sorted(after) == list(range(n_experts))
    assert sum(after.values()) - sum(before.values()) == ((17 + 3) * (n_layers - 1) + 4) * n_used
    of_prompt = reads - reads_before - n_used - 3 * n_layers * n_used  # without the last layer's, and those of three steps
    assert (n_layers - 1) * n_used < of_prompt <= (n_layers - 1) * n_experts


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SHAPES][:1])
def test_a_dense_model_has_no_experts(plain, name):
    assert expert_counts(plain, name) == ({}, None)
