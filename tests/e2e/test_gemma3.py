"""Gemma 3 as its files say it, compared with a forward pass in float64: windows in some layers and not
in others, by the family's pattern or by the file's own, each kind with a rotary base of its own.

A file with sliding_window_pattern = 2 was served with the family's pattern of 6, and nothing said so.
The float64 pass below agrees with Hugging Face's model on the same weights to 2e-6."""

import gguf
import numpy as np
import pytest

from test_models import byte_names, serve
from test_exactness import score

LAYERS, DIM, FFN, HEADS, KV_HEADS, HEAD, WINDOW, VOCAB = 7, 64, 96, 4, 2, 32, 8, 259
GLOBAL_BASE, LOCAL_BASE, EPS = 1e6, 1e4, 1e-6


def weights_of(seed):
    """By the names of the file; norms have their + 1, as converters write them."""
    rng = np.random.default_rng(seed)
    w = {"token_embd.weight": rng.standard_normal((VOCAB, DIM)) / DIM**0.5,
         "output_norm.weight": 1 + 0.2 * rng.standard_normal(DIM)}
    for i in range(LAYERS):
        for part, rows, cols in (("attn_q", HEADS * HEAD, DIM), ("attn_k", KV_HEADS * HEAD, DIM),
                                 ("attn_v", KV_HEADS * HEAD, DIM), ("attn_output", DIM, HEADS * HEAD),
                                 ("ffn_gate", FFN, DIM), ("ffn_up", FFN, DIM), ("ffn_down", DIM, FFN)):
            w[f"blk.{i}.{part}.weight"] = rng.standard_normal((rows, cols)) * 1.5 / cols**0.5
        for part, n in (("attn_norm", DIM), ("ffn_norm", DIM), ("post_attention_norm", DIM),
                        ("post_ffw_norm", DIM), ("attn_q_norm", HEAD), ("attn_k_norm", HEAD)):
            w[f"blk.{i}.{part}.weight"] = 1 + 0.2 * rng.standard_normal(n)
    return {name: x.astype(np.float32) for name, x in w.items()}


def write(path, w, pattern=None, window=WINDOW, factor=None):
    out = gguf.GGUFWriter(path, "gemma3")
    out.add_type("model")
    out.add_context_length(256)
    out.add_embedding_length(DIM)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FFN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_layer_norm_rms_eps(EPS)
    out.add_rope_freq_base(GLOBAL_BASE)
    if factor:
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(factor)
    if window:
        out.add_sliding_window(window)
    if isinstance(pattern, list):
        out.add_array("gemma3.attention.sliding_window_pattern", pattern)
    elif pattern is not None:
        out.add_uint32("gemma3.attention.sliding_window_pattern", pattern)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(byte_names() + ["ab", "<filler>", "<end>"])
    out.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.UNUSED] * 2)
    out.add_token_merges(["a b"])
    out.add_eos_token_id(VOCAB - 1)
    out.add_add_bos_token(False)
    for name, x in w.items():
        out.add_tensor(name, x)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def forward(w, ids, windowed, window=WINDOW, factor=None):
    """Log-probability of each id after the first; windowed: a bool for each layer."""
    w = {name: x.astype(np.float64) for name, x in w.items()}

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name + ".weight"]

    def rotate(x, base, divisor):
        angle = np.arange(len(x))[:, None] * base ** (-2 * np.arange(HEAD // 2) / HEAD) / divisor
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :HEAD // 2], x[..., HEAD // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    n = len(ids)
    x = w["token_embd.weight"][ids] * DIM**0.5
    future = np.triu(np.full((n, n), -np.inf), 1)
    past = np.tril(np.full((n, n), -np.inf), -window) if window else 0
    for i in range(LAYERS):
        p, linear = f"blk.{i}.", lambda x, name: x @ w[f"blk.{i}.{name}.weight"].T
        rope = (LOCAL_BASE, 1) if windowed[i] else (GLOBAL_BASE, factor or 1)
        h = norm(x, p + "attn_norm")
        q = rotate(norm(linear(h, "attn_q").reshape(n, HEADS, HEAD), p + "attn_q_norm"), *rope)
        k = rotate(norm(linear(h, "attn_k").reshape(n, KV_HEADS, HEAD), p + "attn_k_norm"), *rope)
        v = linear(h, "attn_v").reshape(n, KV_HEADS, HEAD)
        k, v = (np.repeat(t, HEADS // KV_HEADS, 1) for t in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / HEAD**0.5 + future + (past if windowed[i] else 0)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        att = np.einsum("hij,jhd->ihd", scores, v).reshape(n, -1)
        x = x + norm(linear(att, "attn_output"), p + "post_attention_norm")
        h = norm(x, p + "ffn_norm")
        g = linear(h, "ffn_gate")
        g = g / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (g + 0.044715 * g**3)))
        x = x + norm(linear(g * linear(h, "ffn_up"), "ffn_down"), p + "post_ffw_norm")
    logits = norm(x, "output_norm") @ w["token_embd.weight"].T
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(n - 1), ids[1:]]


def period(n):
    return [(i + 1) % n != 0 for i in range(LAYERS)]


OWN = [False, True, True, False, True, False, True]


@pytest.mark.parametrize("pattern, windowed", [
    (None, period(6)), (6, period(6)), (2, period(2)), (3, period(3)), (1, [False] * LAYERS),
    (OWN, OWN), ([int(x) for x in OWN], OWN)], ids=["none", "6", "2", "3", "1", "bools", "numbers"])
def test_windows_are_where_the_file_says(pattern, windowed, launch, tmp_path):
    w, ids = weights_of(5), [(i * i * 7 + 3 * i + 1) % 256 for i in range(60)]
    write(tmp_path / "m.gguf", w, pattern)
    d = serve(launch, tmp_path / "m.gguf")
    got = np.array(score(d, ids))
    assert d.stop() == 0
    worst = np.abs(got - forward(w, ids, windowed)).max()
    print(f"largest error {worst:.1e}")
    assert worst <= 1e-4
    others = [p for p in (period(6), period(2), period(3), [False] * LAYERS, OWN) if p != windowed]
    for other in others:  # the pattern does something
        assert np.abs(got - forward(w, ids, other)).max() > 1e-2


def test_without_a_window_all_layers_see_everything(launch, tmp_path):
    w, ids = weights_of(6), [(i * i * 7 + 3 * i + 1) % 256 for i in range(60)]
    write(tmp_path / "m.gguf", w, window=None, factor=8.0)
    d = serve(launch, tmp_path / "m.gguf")
    got = np.array(score(d, ids))
    assert d.stop() == 0
    assert np.abs(got - forward(w, ids, [False] * LAYERS, window=None, factor=8.0)).max() <= 1e-4
