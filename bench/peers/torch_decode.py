#!/usr/bin/env python3
"""torch_decode - the decode step of a Llama by PyTorch alone, as fast as a page of PyTorch gets: static
keys and values, torch.compile(mode="max-autotune", fullgraph), which captures CUDA graphs.

    torch_decode.py --shape 8b|1b [--batches 1,8,32] [--context 1024] [--steps 64] [--tiny]

Weights are random (normal, 0.02), as bench_cuda's; a step feeds the token that the step before drew
(greedy, on the device).  Contexts are all --context long at the middle of the run.  Timed by events around
all steps after warming up.  Where the compiler does not work (Triton needs one for C), the graphs are captured
without it, and `mode` says so.  There is no server, no scheduling and no prompt: compare with the rows `step` of
bench_cuda.

Prints JSON, one object per line.  Needs torch with CUDA; status 77 without.
"""
import argparse
import json
import sys

SHAPES = {  # hidden, layers, heads, kv heads, head dim, ffn, vocabulary, tied head
    "8b": (4096, 32, 32, 8, 128, 14336, 128256, False),
    "1b": (2048, 16, 32, 8, 64, 8192, 128256, True),
    "tiny": (64, 2, 4, 2, 16, 96, 128, False),
}
MODELS = {"8b": "dummy:llama-3.1-8b?dtype=bf16", "1b": "dummy:llama-3.2-1b?dtype=bf16", "tiny": "tiny"}


def tell(**row):
    print(json.dumps(row, separators=(",", ":")), flush=True)


def build(torch, shape, batch, length, device):
    hidden, n_layers, heads, kv_heads, dim, ffn, vocab, tied = SHAPES[shape]
    functional = torch.nn.functional

    def normal(*size):
        return torch.nn.Parameter(torch.randn(*size, device=device, dtype=torch.bfloat16) * 0.02,
                                  requires_grad=False)

    def norm(x, weight):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.to(x.dtype) * weight

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = normal((heads + 2 * kv_heads) * dim, hidden)
            self.o = normal(hidden, heads * dim)
            self.gate_up = normal(2 * ffn, hidden)
            self.down = normal(hidden, ffn)
            ones = torch.ones(hidden, device=device, dtype=torch.bfloat16)
            self.norm1 = torch.nn.Parameter(ones.clone(), requires_grad=False)
            self.norm2 = torch.nn.Parameter(ones.clone(), requires_grad=False)
            size = (batch, kv_heads, length, dim)
            self.register_buffer("k", torch.randn(size, device=device, dtype=torch.bfloat16))
            self.register_buffer("v", torch.randn(size, device=device, dtype=torch.bfloat16))

        def forward(self, x, position, cos, sin, mask):
            h = functional.linear(norm(x, self.norm1), self.qkv).view(batch, heads + 2 * kv_heads, dim)
            q, k, v = h.split((heads, kv_heads, kv_heads), 1)
            q, k = turn(q, cos, sin), turn(k, cos, sin)
            self.k.index_copy_(2, position, k.unsqueeze(2))
            self.v.index_copy_(2, position, v.unsqueeze(2))
            out = functional.scaled_dot_product_attention(q.unsqueeze(2), self.k, self.v, attn_mask=mask,
                                                          enable_gqa=True)
            x = x + functional.linear(out.reshape(batch, heads * dim), self.o)
            gate, up = functional.linear(norm(x, self.norm2), self.gate_up).chunk(2, -1)
            return x + functional.linear(functional.silu(gate) * up, self.down)

    def turn(x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = normal(vocab, hidden)
            self.head = self.embed if tied else normal(vocab, hidden)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(n_layers))
            self.norm = torch.nn.Parameter(torch.ones(hidden, device=device, dtype=torch.bfloat16),
                                           requires_grad=False)
            freq = 500000.0 ** (-torch.arange(0, dim, 2, device=device).float() / dim)
            self.register_buffer("freq", freq)
            self.register_buffer("places", torch.arange(length, device=device))

        def forward(self, tokens, position):
            angle = position.float() * self.freq
            cos, sin, mask = angle.cos(), angle.sin(), (self.places <= position).view(1, 1, 1, length)
            x = self.embed[tokens]
            for layer in self.layers:
                x = layer(x, position, cos, sin, mask)
            return functional.linear(norm(x, self.norm), self.head).argmax(-1)

    return Model()


def measure(torch, options, batch):
    length = options.context + options.steps
    length = (length + 127) // 128 * 128
    model = build(torch, options.shape, batch, length, options.device)
    step, mode = model, "eager"
    if not options.eager:
        step, mode = torch.compile(model, mode="max-autotune", fullgraph=True), "max-autotune"
    tokens = torch.arange(batch, device=options.device) % 100
    first = options.context - options.steps // 2
    places = torch.arange(first, first + options.steps, device=options.device).view(-1, 1)

    def go(n):  # with the step of the moment
        now = tokens
        for i in range(n):
            if options.device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            now = step(now, places[i]).clone()  # a graph's output is written again by the next step
        return now

    with torch.no_grad():
        try:
            go(min(4, options.steps))
        except Exception as error:
            if options.eager or "out of memory" in str(error):
                raise
            print(f"max-autotune does not work here: {error}", file=sys.stderr)
            torch._dynamo.reset()
            step, mode = torch.compile(model, backend="cudagraphs", fullgraph=True), "cudagraphs"
            go(min(4, options.steps))
        if options.device != "cuda":
            go(options.steps)
            return
        times = []
        for _ in range(3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            go(options.steps)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / options.steps)
    us = sorted(times)[1]
    tell(bench="peer", peer="torch_decode", model=MODELS[options.shape], streams=batch, context=options.context,
         mode=mode, us=us, low_us=min(times), high_us=max(times), tokens_s=batch / us * 1e6)
    del model, step
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, uncompiled: shows that this works")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"torch is not there: {error}", file=sys.stderr)
        return 77
    options.device, options.eager = "cuda", False
    if options.tiny:
        options.shape, options.device, options.eager = "tiny", "cpu", True
        options.context, options.steps, options.batches = 16, 4, "2"
    elif not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 77
    torch.manual_seed(1)
    if not options.tiny:
        tell(bench="peer_about", peer="torch_decode", torch=torch.__version__, cuda=torch.version.cuda or "",
             device=torch.cuda.get_device_name(0))
    for batch in map(int, options.batches.split(",")):
        measure(torch, options, batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
