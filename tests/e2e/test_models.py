"""Model files of every kind that can be served, written here and compared with a forward pass in
float64: tensor types, shapes of heads, biases, rotary scaling, tokenizers, missing parts.

Weights are random.  What a file means is defined by the `gguf` package: the reference computes with
its dequantisation of the very bytes in the file.  Keys and values are kept in f32 here, so that only
the rounding of float arithmetic is between the two."""

import concurrent.futures
import json
import re
import subprocess
import time

import gguf
import numpy as np
import pytest

from conftest import BUILD, SLOW, model_config
from test_exactness import greedy, score

Q = gguf.GGMLQuantizationType
TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K,
         Q.IQ4_NL, Q.IQ4_XS, Q.MXFP4]
# Offsets of the f16 scales in a block of a type that the package can read but not write, and their size.
SCALES_AT = {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,), Q.IQ4_NL: (0,),
             Q.IQ4_XS: (0,)}
SCALES = {Q.Q2_K: 4e-3, Q.Q3_K: 1e-3, Q.IQ4_NL: 1e-3, Q.IQ4_XS: 5e-5}


class Shape:
    """A small llama; what a test changes is given by name."""

    def __init__(self, **changes):
        self.dim, self.ffn, self.layers, self.heads, self.kv_heads, self.head = 256, 512, 2, 4, 2, 64
        self.vocab, self.context, self.type, self.tied, self.bias = 263, 512, Q.F32, False, False
        self.rope_base, self.rope_factor, self.rope_divisors = 10000.0, None, None
        self.eps, self.seed, self.template, self.padding, self.spm = 1e-5, 1, None, 0, False
        self.without, self.extra, self.tensors, self.pre, self.merges, self.pair = (), {}, (), "smollm", ["a b"], "ab"
        self.factors = {}  # of a matrix's numbers, by name
        self.__dict__.update(changes)


def random_blocks(rng, kind, rows, cols):
    """Random bytes with sensible scales: any bits are a valid block."""
    elems, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // elems, n_bytes), dtype=np.uint8)
    for at in SCALES_AT[kind]:
        scales = (rng.uniform(0.1, 1, len(blocks)) * SCALES.get(kind, 2e-4)).astype("<f2")
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def matrix(rng, kind, rows, cols):
    """Bytes for the file, and what they mean."""
    if kind in SCALES_AT:
        data = random_blocks(rng, kind, rows, cols)
    else:
        data = gguf.quants.quantize((rng.standard_normal((rows, cols)) / cols**0.5).astype(np.float32), kind)
    return data, gguf.quants.dequantize(data, kind).astype(np.float64)


def byte_names():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) if b in shown else chr(256 + hidden.index(b)) for b in range(256)]


def add_tokens(out, s):
    n, kinds = s.vocab, gguf.TokenType
    if s.spm:  # Llama 2, Mistral: <unk> <s> </s>, 256 bytes, then pieces
        pieces = ["▁", "▁t", "he", "▁the"]
        names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
        types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * 4
        assert n == len(names)
        out.add_tokenizer_model("llama")
        out.add_token_scores([0.0] * 259 + [-1.0, -2.0, -3.0, -4.0])
        out.add_bos_token_id(1)
        out.add_eos_token_id(2)
        out.add_add_bos_token(True)
    else:
        names = byte_names() + [s.pair] + [f"<filler-{i}>" for i in range(257, n)]
        types = [kinds.NORMAL] * 257 + [kinds.UNUSED] * (n - 257)
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre(s.pre)
        out.add_token_merges(s.merges)
        out.add_eos_token_id(n - 1)
        out.add_add_bos_token(False)
    out.add_token_list(names)
    out.add_token_types(types)


def write(path, s):
    """Write the file; returns what its tensors mean."""
    rng = np.random.default_rng(s.seed)
    out = gguf.GGUFWriter(path, "llama")
    out.add_type("model")
    out.add_context_length(s.context)
    out.add_embedding_length(s.dim)
    out.add_block_count(s.layers)
    out.add_feed_forward_length(s.ffn)
    out.add_head_count(s.heads)
    out.add_head_count_kv(s.kv_heads)
    out.add_layer_norm_rms_eps(s.eps)
    out.add_rope_freq_base(s.rope_base)
    if s.head != s.dim // s.heads:
        out.add_key_length(s.head)
        out.add_value_length(s.head)
        out.add_rope_dimension_count(s.head)
    if s.rope_factor:
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(s.rope_factor)
    if s.template:
        out.add_chat_template(s.template)
    for key, value in s.extra.items():
        {bool: out.add_bool, int: out.add_uint32, float: out.add_float32}[type(value)](key, value)
    add_tokens(out, s)
    w = {}

    def add_matrix(name, rows, cols):
        data, w[name] = matrix(rng, s.type, rows, cols)
        if name in s.factors:  # F32
            data, w[name] = (data * np.float32(s.factors[name])).astype(np.float32), w[name] * s.factors[name]
        if name not in s.without:
            out.add_tensor(name, data, raw_dtype=s.type)

    def add_vector(name, n, about):
        w[name] = (about + 0.1 * rng.standard_normal(n)).astype(np.float32)
        out.add_tensor(name, w[name])

    q, kv = s.heads * s.head, s.kv_heads * s.head
    add_matrix("token_embd.weight", s.vocab + s.padding, s.dim)
    add_vector("output_norm.weight", s.dim, 1)
    if not s.tied:
        add_matrix("output.weight", s.vocab + s.padding, s.dim)
    for i in range(s.layers):
        for part, rows, cols in (("attn_q", q, s.dim), ("attn_k", kv, s.dim), ("attn_v", kv, s.dim),
                                 ("attn_output", s.dim, q), ("ffn_gate", s.ffn, s.dim),
                                 ("ffn_up", s.ffn, s.dim), ("ffn_down", s.dim, s.ffn)):
            add_matrix(f"blk.{i}.{part}.weight", rows, cols)
            if s.bias:
                add_vector(f"blk.{i}.{part}.bias", rows, 0)
        add_vector(f"blk.{i}.attn_norm.weight", s.dim, 1)
        add_vector(f"blk.{i}.ffn_norm.weight", s.dim, 1)
    for name in s.tensors:
        add_vector(name, s.dim, 1)
    if s.rope_divisors is not None:
        out.add_tensor("rope_freqs.weight", s.rope_divisors.astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return w


def rotate(x, s):
    """Pairs (2i, 2i + 1) of each head, as llama files have them."""
    positions, pairs = np.arange(len(x)), np.arange(s.head // 2)
    frequency = s.rope_base ** (-2 * pairs / s.head) / (s.rope_factor or 1)
    if s.rope_divisors is not None:
        frequency = frequency / s.rope_divisors
    angle = (positions[:, None] * frequency)[:, None, :]
    a, b, out = x[..., 0::2], x[..., 1::2], np.empty_like(x)
    out[..., 0::2] = a * np.cos(angle) - b * np.sin(angle)
    out[..., 1::2] = a * np.sin(angle) + b * np.cos(angle)
    return out


def forward(w, s, ids):
    """Log-probability of each id after the first, in float64."""
    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + s.eps) * w[name + ".weight"]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if s.bias else y

    n = len(ids)
    x = w["token_embd.weight"][ids]
    future = np.triu(np.full((n, n), -np.inf), 1)
    window = s.extra.get("llama.attention.sliding_window", 0)
    if window:  # position i sees i - window + 1 ... i
        future += np.tril(np.full((n, n), -np.inf), -window)
    for i in range(s.layers):
        p = f"blk.{i}."
        h = norm(x, p + "attn_norm")
        q = rotate(linear(h, p + "attn_q").reshape(n, s.heads, s.head), s)
        k = rotate(linear(h, p + "attn_k").reshape(n, s.kv_heads, s.head), s)
        v = linear(h, p + "attn_v").reshape(n, s.kv_heads, s.head)
        k, v = (np.repeat(t, s.heads // s.kv_heads, 1) for t in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / s.head**0.5 + future
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hij,jhd->ihd", scores, v).reshape(n, -1), p + "attn_output")
        h = norm(x, p + "ffn_norm")
        gate = linear(h, p + "ffn_gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, p + "ffn_up"), p + "ffn_down")
    head = w["token_embd.weight" if s.tied else "output.weight"][:s.vocab]
    logits = norm(x, "output_norm") @ head.T
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(n - 1), ids[1:]]


def ids_of(s, n=70):
    return [(i * i * 7 + 3 * i + 1) % 256 for i in range(n)]


def serve(launch, path, math="exact", **more):
    limits = {"kv_type": "f32", **more.pop("limits", {})}
    return launch(model_config(path, memory="64MiB", limits=limits, cpu_math=math), **more)


def check_equals_float64(launch, path, s):
    w = write(path, s)
    d = serve(launch, path)
    ids = ids_of(s)
    got, wanted = np.array(score(d, ids)), forward(w, s, ids)
    worst = np.abs((got - wanted) / wanted).max()
    print(f"largest relative error {worst:.1e}")
    assert worst <= 1e-3
    d.settled()
    assert d.stop() == 0


@pytest.mark.parametrize("kind", TYPES, ids=lambda k: k.name)
def test_each_tensor_type_computes_what_its_bytes_mean(kind, launch, tmp_path):
    check_equals_float64(launch, tmp_path / "m.gguf", Shape(type=kind))


def test_bf16_weights_are_close_to_float64_in_fast_math_too(launch, tmp_path):
    """Activations that are rounded to bf16 once would be off by hundreds of times as much."""
    s = Shape(type=Q.BF16, layers=6)
    w = write(tmp_path / "m.gguf", s)
    d = serve(launch, tmp_path / "m.gguf", math="fast")
    ids = ids_of(s)
    difference = np.abs(np.array(score(d, ids)) - forward(w, s, ids))
    print(f"mean {difference.mean():.1e}, largest {difference.max():.1e}")
    assert difference.mean() <= 1e-4 and difference.max() <= 1e-3
    assert d.stop() == 0


@pytest.mark.parametrize("changes", [
    dict(tied=True),
    dict(bias=True),
    dict(kv_heads=1),
    dict(kv_heads=4),
    dict(heads=12, kv_heads=2, head=32),       # six query heads share one; 384 = 12 * 32, not 256
    dict(heads=3, kv_heads=3, head=22),  # lengths that are no multiple of anything
    dict(dim=136, ffn=200, heads=4, head=34),
    dict(heads=1, kv_heads=1, head=256),
    dict(rope_base=500000.0),
    dict(rope_factor=4.0),
    dict(rope_factor=8.0, rope_base=1e6, tied=True),
    dict(rope_divisors=np.linspace(1, 8, 32)),
    dict(layers=5, eps=1e-6),
    dict(padding=57),
    dict(spm=True),
    dict(extra={"llama.attention.sliding_window": 20}),
], ids=lambda c: ",".join(c))
def test_each_shape_equals_float64(changes, launch, tmp_path):
    check_equals_float64(launch, tmp_path / "m.gguf", Shape(**changes))


def test_padding_rows_are_never_drawn(launch, tmp_path):
    """Rows of the head past the vocabulary have no text: no draw and no prompt may name them."""
    s = Shape(padding=200, seed=3)
    write(tmp_path / "m.gguf", s)
    d = serve(launch, tmp_path / "m.gguf")
    for seed in range(8):
        answer = d.http.post("/v1/completions", json={
            "model": "m", "prompt": [1, 2], "max_tokens": 64, "temperature": 2, "seed": seed,
            "ignore_eos": True, "return_token_ids": True, "logprobs": 5})
        assert answer.status_code == 200, answer.text
        assert max(answer.json()["choices"][0]["token_ids"]) < s.vocab
    for bad in (s.vocab, s.vocab + 199, s.vocab + 200, 2**31):
        answer = d.http.post("/v1/completions", json={"model": "m", "prompt": [1, bad], "max_tokens": 1})
        assert answer.status_code == 400, answer.text
    assert d.stop() == 0


def test_a_model_without_a_chat_template_completes_and_refuses_chats(launch, tmp_path):
    write(tmp_path / "m.gguf", Shape())
    d = serve(launch, tmp_path / "m.gguf")
    answer = d.http.post("/v1/chat/completions", json={
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})
    assert answer.status_code == 400, answer.text
    assert "template" in answer.json()["error"]["message"]
    answer = d.http.post("/v1/completions", json={"model": "m", "prompt": "hi", "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert d.stop() == 0


def test_sentencepiece_model_completes_and_chats(launch, tmp_path):
    """Llama 2 and Mistral: a BOS token in front, a space before the first word, bytes as fallback."""
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    s = Shape(spm=True, template=template)
    write(tmp_path / "m.gguf", s)
    d = serve(launch, tmp_path / "m.gguf")
    tokens = d.http.post("/tokenize", json={"model": "m", "prompt": "the é"}).json()["tokens"]
    assert tokens == [1, 262, 259, 3 + 0xC3, 3 + 0xA9]
    text = d.http.post("/detokenize", json={"model": "m", "tokens": tokens[1:]}).json()["prompt"]
    assert text.strip() == "the é"
    answer = d.http.post("/v1/completions", json={
        "model": "m", "prompt": "the", "max_tokens": 8, "ignore_eos": True})
    assert answer.json()["usage"] | {"prompt_tokens": 2, "completion_tokens": 8} == answer.json()["usage"]
    answer = d.http.post("/v1/chat/completions", json={
        "model": "m", "messages": [{"role": "user", "content": "</s>"}], "max_tokens": 4})
    assert answer.status_code == 200, answer.text
    assert d.stop() == 0


def test_merges_without_their_tokens_are_left_out_and_counted(launch, tmp_path):
    write(tmp_path / "m.gguf", Shape(merges=["a c", "a b", "zz a", "ab a"], pre="gpt-4o"))
    d = serve(launch, tmp_path / "m.gguf")
    tokens = d.http.post("/tokenize", json={"model": "m", "prompt": "aba"}).json()["tokens"]
    assert tokens == [256, ord("a")]
    assert re.search(r"event=merges_left_out model=m path=\S*m.gguf merges=3", d.stderr()), d.stderr()
    assert d.stop() == 0


def test_context_ends_where_it_says(launch, tmp_path):
    """The last position is used, one more is refused, and an open end stops there with `length`."""
    s = Shape(context=64)
    write(tmp_path / "m.gguf", s)
    d = serve(launch, tmp_path / "m.gguf")
    ask = lambda n, **more: d.http.post("/v1/completions", json={
        "model": "m", "prompt": ids_of(s, n), "temperature": 0, "ignore_eos": True, **more})
    answer = ask(63, max_tokens=1)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 1
    assert ask(64, max_tokens=1).status_code == 400
    assert ask(65, max_tokens=0, echo=True, logprobs=0).status_code == 400
    assert len(score(d, ids_of(s, 64))) == 63
    answer = d.http.post("/v1/completions", json={
        "model": "m", "prompt": ids_of(s, 60), "temperature": 0, "ignore_eos": True, "max_tokens": 4})
    assert answer.json()["usage"]["completion_tokens"] == 4
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert d.stop() == 0


def test_threads_and_chunks_change_no_bit(launch, tmp_path):
    """One and two threads, steps of 16 rows and of 512, for all kinds of keys and values, exact or not."""
    s = Shape(type=Q.Q4_K, heads=8, kv_heads=2, head=64, context=1024)
    write(tmp_path / "m.gguf", s)
    prompts = [ids_of(s, n) for n in (5, 63, 300)]

    def answers(math, kv, threads, rows):
        config = model_config(tmp_path / "m.gguf", memory="64MiB", cpu_math=math,
                              limits={"kv_type": kv, "step_tokens_max": rows, "running_max": 8})
        config["devices"][0]["threads"] = threads
        d = launch(config)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            got = list(pool.map(lambda p: greedy(d, p, 24, ignore_eos=True)[:2], prompts))
        got.append(score(d, prompts[2]))
        assert d.stop() == 0
        return got

    kinds = {}
    for kind in [("exact", "f16"), ("exact", "f32"), ("fast", "f16"), ("fast", "bf16"), ("fast", "f32"),
                 ("fast", "int8")]:
        kinds[kind] = answers(*kind, 1, 512)
        assert answers(*kind, 2, 16) == kinds[kind], kind
    values = list(kinds.values())
    assert all(a != b for i, a in enumerate(values) for b in values[:i])  # the options do something


@pytest.mark.parametrize("changes, words", [
    (dict(without=("blk.1.ffn_up.weight",)), "blk.1.ffn_up.weight is missing"),
    (dict(without=("token_embd.weight",)), "token_embd.weight is missing"),
    (dict(extra={"llama.expert_count": 8}), "key llama.expert_used_count is missing"),
    (dict(heads=4, kv_heads=3), "multiple"),
    (dict(heads=1, kv_heads=1, head=768), "768"),
    (dict(rope_divisors=np.zeros(32)), "rope_freqs.weight[0]"),
    # Each of these was served as if it were not there.
    (dict(extra={"llama.logit_scale": 0.5}), "key llama.logit_scale is 0.5"),
    (dict(extra={"llama.attention.scale": 0.5}), "key llama.attention.scale is 0.5"),
    (dict(extra={"llama.embedding_scale": 12.0}), "key llama.embedding_scale is 12"),
    (dict(extra={"llama.rope.scaling.attn_factor": 1.5}), "key llama.rope.scaling.attn_factor is 1.5"),
    (dict(extra={"llama.attention.causal": False}), "key llama.attention.causal is false"),
    (dict(extra={"llama.attention.clamp_kqv": 8.0}), "key llama.attention.clamp_kqv is 8"),
    (dict(extra={"llama.use_parallel_residual": True}), "key llama.use_parallel_residual is true"),
    (dict(tensors=("blk.0.attn_q_norm.weight",)), "tensor blk.0.attn_q_norm.weight"),
    (dict(tensors=("output_norm.bias",)), "tensor output_norm.bias"),
    # In a configuration of several models nothing said which file has it, nor what would work.
    (dict(pre="afmoe"), 'tokenizer.ggml.pre is "afmoe"; known are llama-bpe, qwen2, qwen35, gpt-4o'),
    (dict(type=Q.TQ2_0), "has type TQ2_0, which cannot be computed with; types that can: F32, F16, Q4_0"),
], ids=lambda c: ",".join(c) if isinstance(c, dict) else "")
def test_a_file_that_cannot_be_served_says_why(changes, words, tmp_path):
    """Every command that opens a model refuses it with the same words, and names the file."""
    path, config = tmp_path / "m.gguf", tmp_path / "c.json"
    write(path, Shape(**changes))
    config.write_text(json.dumps({"listen": f"unix:{tmp_path}/s", "models": [{"name": "m", "path": str(path)}]}))
    for command in (("run", path, "--raw", "--memory", "64MiB", "--max-tokens", "2", "hi"),
                    ("check", "--config", config), ("serve", "--config", config), ("pack", path), ("tokenize", path)):
        r = subprocess.run([BUILD / "inferd", *command], capture_output=True, text=True, timeout=60 * SLOW,
                           stdin=subprocess.DEVNULL)
        assert r.returncode == 2, (command, r.returncode, r.stderr)
        assert words in r.stderr and "m.gguf" in r.stderr, command


def saturated(d):
    page = d.http.get("/metrics").text
    return int(re.search(r'^inferd_model_kv_saturated_total{model="[^"]*"} (\d+)$', page, re.M)[1])


def test_keys_and_values_too_large_for_f16_do_not_end_in_an_error(launch, tmp_path):
    """|K| and |V| beyond 65,504 became infinite in f16, which was the default below avx512bf16 and in exact mode,
    and every request ended in a 500 with nothing in the log but finish=error.  The model is finite: its values go
    through a small matrix afterwards, its queries are small."""
    s = Shape(factors={"blk.0.attn_v.weight": 1e6, "blk.0.attn_output.weight": 1e-6,
                       "blk.1.attn_k.weight": 1e6, "blk.1.attn_q.weight": 1e-6})
    w, ids = write(tmp_path / "m.gguf", s), ids_of(s)
    wanted = forward(w, s, ids)
    off = {}
    for kind in ("auto", "int16", "bf16", "f32", "int8", "f16"):
        d = serve(launch, tmp_path / "m.gguf", limits={"kv_type": kind})
        got = np.array(score(d, ids))
        assert np.isfinite(got).all()
        off[kind] = np.abs(got - wanted).max()
        if kind == "f16":
            score(d, ids)
            assert saturated(d) > 0
            until = time.monotonic() + 10
            while "event=kv_saturated" not in d.stderr() and "kv_saturated model=" not in d.stderr():
                assert time.monotonic() < until, d.stderr()
                time.sleep(0.05)
            time.sleep(0.5)
            lines = [line for line in d.stderr().splitlines() if "kv_saturated" in line]
            assert len(lines) == 1 and "limits.kv_type" in lines[0] and "int16" in lines[0], lines
        else:
            assert saturated(d) == 0
        d.settled()
        assert d.stop() == 0
    print(off)
    assert off["auto"] <= 1e-2 and off["int16"] <= 1e-2 and off["f32"] <= 1e-2
    assert off["f16"] > 10 * off["int16"]  # answers, and not those of the model: that is what the log says


@pytest.mark.parametrize("kind", ["int16", "f16", "bf16"])
def test_what_is_not_finite_in_a_model_stays_an_error(kind, launch, tmp_path):
    """Saturating is for numbers that the model has and the type has not."""
    s = Shape(factors={"blk.0.attn_v.weight": 1e38, "blk.0.attn_norm.weight": 1})
    write(tmp_path / "m.gguf", s)
    d = serve(launch, tmp_path / "m.gguf", limits={"kv_type": kind})
    answer = d.http.post("/v1/completions", json={"model": d.model, "prompt": ids_of(s), "max_tokens": 4,
                                                  "temperature": 0})
    assert answer.status_code == 500, answer.text
    assert d.stop() == 0
