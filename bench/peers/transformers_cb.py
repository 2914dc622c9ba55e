#!/usr/bin/env python3
"""transformers_cb - continuous batching of the transformers library on the shapes and lengths of our own
serving benches.

    transformers_cb.py --shape 8b|1b [--streams 8,32] [--prompt 1024] [--output 128] [--rounds 2]

The model is made from its configuration with random bf16 weights on the GPU; prompts are random ids, answers
greedy, ends of text are ignored.  All requests are given at once, as many as `streams` run at a time: the
library's own batch mode, without HTTP.  Attention is paged|sdpa, which is what a machine without
flash-attn has.

Prints JSON, one object per line.  Needs torch with CUDA and transformers; status 77 without.
"""
import argparse
import inspect
import json
import random
import sys
import time

SHAPES = {
    "8b": dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
               intermediate_size=14336, vocab_size=128256, tie_word_embeddings=False),
    "1b": dict(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
               intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True),
}
MODELS = {"8b": "dummy:llama-3.1-8b?dtype=bf16", "1b": "dummy:llama-3.2-1b?dtype=bf16"}


def tell(**row):
    print(json.dumps(row, separators=(",", ":")), flush=True)


def accepted(function, wanted):
    """Those of the arguments that this version knows."""
    known = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return wanted
    return {key: value for key, value in wanted.items() if key in known}


def batching_config(transformers, streams):
    """None where this version has no such class."""
    make = getattr(transformers, "ContinuousBatchingConfig", None)
    if make is None:
        try:
            from transformers.generation import ContinuousBatchingConfig as make
        except ImportError:
            return None
    return make(**accepted(make, dict(use_cuda_graph=True, use_async_batching=True,
                                      max_batch_tokens=max(2048, streams))))


def generated(outputs):
    """How many tokens came out; the library returns a dict by request, or a list."""
    many = outputs.values() if hasattr(outputs, "values") else outputs
    return sum(len(o.generated_tokens) for o in many)


def measure(torch, transformers, model, options, streams):
    generation = transformers.GenerationConfig(max_new_tokens=options.output, do_sample=False, eos_token_id=-1,
                                               pad_token_id=0, use_cuda_graph=True)
    more = {}
    config = batching_config(transformers, streams)
    if config is not None:
        more["continuous_batching_config"] = config
    generator = random.Random(streams)

    def prompts(n, length):
        return [[generator.randrange(1000, 100000) for _ in range(length)] for _ in range(n)]

    def go(inputs):
        call = dict(inputs=inputs, generation_config=generation, progress_bar=False, **more)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        outputs = model.generate_batch(**accepted(model.generate_batch, call))
        torch.cuda.synchronize()
        return time.perf_counter() - begin, generated(outputs)

    go(prompts(streams, 64))  # warms up: graphs, kernels
    seconds, n_tokens = 0.0, 0
    for _ in range(options.rounds):
        more_seconds, more_tokens = go(prompts(streams, options.prompt))
        seconds, n_tokens = seconds + more_seconds, n_tokens + more_tokens
    asked = streams * options.rounds * options.output
    if n_tokens != asked:
        print(f"{streams} streams: {n_tokens} tokens came, {asked} were asked for", file=sys.stderr)
    tell(bench="peer", peer="transformers_cb", model=MODELS[options.shape], streams=streams,
         prompt=options.prompt, output=options.output, tokens=n_tokens, short=n_tokens != asked, seconds=seconds,
         tokens_s=n_tokens / seconds)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--streams", default="8,32")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"not there: {error}", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 77
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SHAPES[options.shape], max_position_embeddings=8192, rope_theta=500000.0)
    config._attn_implementation = "paged|sdpa"
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="paged|sdpa")
        torch.set_default_dtype(torch.float32)
    model.eval()
    tell(bench="peer_about", peer="transformers_cb", torch=torch.__version__,
         transformers=transformers.__version__, device=torch.cuda.get_device_name(0))
    with torch.no_grad():
        for streams in map(int, options.streams.split(",")):
            measure(torch, transformers, model, options, streams)
    return 0


if __name__ == "__main__":
    sys.exit(main())
