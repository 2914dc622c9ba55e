#!/usr/bin/env python3
"""float_reference - what a llama file answers in float32, computed in a way nobody is measured by.

    float_reference.py MODEL.gguf GOLDENS.jsonl TEXT.ids OUT.json

The weights of MODEL are dequantised and the formulas are written down with numpy: one matrix after the
other, no kernels.  OUT has

    goldens     for each prompt of GOLDENS (its `ids`): name, ids, the 8 best tokens after the last with
                their log-probabilities, and the greedy ids, as many as the golden has
    perplexity  of TEXT (ids, one per line) in windows of WINDOW tokens of which the second half is
                told: llama-perplexity's definition, so the same text gives the same figure there

The goldens of GOLDENS itself belong to one file; OUT's belong to MODEL, whatever its type.

Needs numpy and gguf (scripts/venv)."""

import json
import math
import sys

import numpy as np
from cpu_models import Source, floats

WINDOW = 512


class Model:
    def __init__(self, path):
        self.meta = Source(path)
        self.w = {t.name: floats(t) for t in self.meta.tensors}
        self.heads = self.meta["attention.head_count"]
        self.kv_heads = self.meta["attention.head_count_kv"]
        self.dim = self.meta["embedding_length"] // self.heads
        self.eps = np.float32(self.meta["attention.layer_norm_rms_epsilon"])
        self.layers = range(self.meta["block_count"])
        self.frequency = self.meta["rope.freq_base"] ** (-np.arange(0, self.dim, 2) / self.dim)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.w[name]

    def rotate(self, x, positions):
        """x [n, heads, dim]; neighbours are a pair."""
        angle = positions[:, None, None] * self.frequency
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def forward(self, ids, past):
        """Hidden states after the last layer [n, hidden]; `past` is a list of (k, v), grown."""
        begin = past[0][0].shape[0] if past else 0
        positions = np.arange(begin, begin + len(ids))
        x = self.w["token_embd.weight"][ids]
        for i in self.layers:
            w = lambda name: self.w[f"blk.{i}.{name}.weight"]
            h = self.norm(x, f"blk.{i}.attn_norm.weight")
            q, k, v = ((h @ w(name).T).reshape(len(ids), -1, self.dim) for name in ("attn_q", "attn_k", "attn_v"))
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            if begin:
                k, v = np.concatenate([past[i][0], k]), np.concatenate([past[i][1], v])
                past[i] = (k, v)
            else:
                past.append((k, v))
            group = self.heads // self.kv_heads
            k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
            scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.float32(math.sqrt(self.dim))
            scores[:, np.arange(k.shape[0])[None, :] > positions[:, None]] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            attended = np.einsum("hqk,khd->qhd", scores, v, optimize=True).reshape(len(ids), -1)
            x = x + attended @ w("attn_output").T
            h = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x, "output_norm.weight")

    def logprobs(self, hidden):
        logits = (hidden @ self.w["token_embd.weight"].T).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def answer(model, golden):
    ids, past = golden["ids"], []
    table = model.logprobs(model.forward(np.array(ids), past))
    last, greedy = table[-1], []
    best = np.argsort(-last)[:8]
    while len(greedy) < len(golden["greedy"]):
        token = int(np.argmax(table[-1]))
        greedy.append(token)
        table = model.logprobs(model.forward(np.array([token]), past))
    return {"name": golden["name"], "ids": ids, "greedy": greedy,
            "last_top": [[int(i), float(last[i])] for i in best]}


def perplexity(model, ids):
    total = n = 0
    for begin in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = np.array(ids[begin:begin + WINDOW])
        hidden = model.forward(window, [])
        told = range(WINDOW // 2 + 1, WINDOW)
        table = model.logprobs(hidden[told.start - 1:WINDOW - 1])
        total -= table[np.arange(len(told)), window[told.start:]].sum()
        n += len(told)
    return {"perplexity": math.exp(total / n), "tokens": n}


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    model = Model(sys.argv[1])
    with open(sys.argv[2]) as f:
        goldens = [json.loads(line) for line in f]
    with open(sys.argv[3]) as f:
        ids = [int(line) for line in f]
    with np.errstate(over="ignore"):  # exp(-gate) of a very negative gate: the quotient is 0, as it should be
        out = {"goldens": [answer(model, g) for g in goldens], **perplexity(model, ids),
               "eos": model.meta.meta["tokenizer.ggml.eos_token_id"]}
    with open(sys.argv[4], "w") as f:
        json.dump(out, f)


if __name__ == "__main__":
    main()
