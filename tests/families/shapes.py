"""shapes - the small models that test_families compares, a table.

Every one makes its family's traps visible: heads whose total is not the model's width, fewer heads
for keys than for queries, windows that end inside each prompt, biases, sinks, several experts.

    config     class of transformers and its arguments, beside COMMON
    pre        the pre-tokenizer of the family's files, which the converter knows only for real ones
    tokenizer  "bytes" (byte-level BPE) or "pieces" (SentencePiece), as the family's files have it
    convert    further arguments of the converter
    mxfp4      experts in MXFP4, as in published files
    peer_config  arguments that llama.cpp takes for granted: it is compared with them
    peer_max   NMSE of llama.cpp against the reference that has a known reason; 1e-9 otherwise
    architecture  the name in config.json, where the converter knows the model inside another
    contexts   served contexts, where they choose between two sets of rotary factors: {suffix of the name: (context, lengths)}
"""

COMMON = dict(vocab_size=280, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=0, eos_token_id=1, pad_token_id=None)
LENGTHS = (1, 17, 300, 2000)
WINDOW_5 = ["sliding_attention"] * 5 + ["full_attention"]

YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=64)
MINISTRAL_YARN = dict(rope_type="yarn", rope_theta=1e6, factor=16.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
                      mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, original_max_position_embeddings=256,
                short_factor=[1.0, 1.05, 1.1, 1.2, 1.35, 1.5], long_factor=[1.1, 1.6, 2.5, 5.0, 11.0, 24.0])
GRANITE = dict(embedding_multiplier=4.0, logits_scaling=8.0, residual_multiplier=0.5, attention_multiplier=0.2,
               rope_theta=10000.0, tie_word_embeddings=True)
GPT_OSS_YARN = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                    original_max_position_embeddings=512)

SHAPES = {
    "llama": dict(config=("LlamaConfig", dict(rope_theta=10000.0)), pre="llama-bpe"),
    "llama3-rope": dict(
        config=("LlamaConfig", dict(head_dim=32, hidden_size=96, tie_word_embeddings=True, rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64))), pre="llama-bpe"),
    "llama-bias": dict(
        config=("LlamaConfig", dict(attention_bias=True, mlp_bias=True, rope_theta=10000.0)), pre="llama-bpe"),
    "qwen3": dict(
        config=("Qwen3Config", dict(head_dim=32, rope_theta=1e6)), pre="qwen2"),
    "gemma3": dict(
        config=("Gemma3TextConfig", dict(
            head_dim=32, num_hidden_layers=7, query_pre_attn_scalar=32, sliding_window=12,
            layer_types=WINDOW_5 + ["sliding_attention"], tie_word_embeddings=True, rms_norm_eps=1e-6,
            rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                 sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
        tokenizer="pieces", peer_max=1e-5),
    "qwen2": dict(config=("Qwen2Config", dict(rope_theta=1e6, tie_word_embeddings=True)), pre="qwen2"),
    "qwen2-yarn": dict(config=("Qwen2Config", dict(
        hidden_size=96, tie_word_embeddings=False, rope_parameters=dict(YARN, rope_theta=1e6))), pre="qwen2"),
    "qwen3moe": dict(
        config=("Qwen3MoeConfig", dict(
            head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=80, norm_topk_prob=True,
            rope_theta=1e6)), pre="qwen2"),
    "mixtral": dict(
        config=("MixtralConfig", dict(num_local_experts=6, num_experts_per_tok=2, rope_theta=1e6, sliding_window=None)),
        tokenizer="pieces"),
    "nemo": dict(
        config=("MistralConfig", dict(hidden_size=96, head_dim=32, rope_theta=1e6, sliding_window=None)), pre="tekken"),
    "gpt-oss": dict(
        config=("GptOssConfig", dict(
            head_dim=32, num_hidden_layers=4, num_local_experts=6, num_experts_per_tok=3, sliding_window=12,
            intermediate_size=96, rope_parameters=GPT_OSS_YARN)),
        pre="gpt-4o", peer_config=dict(rope_parameters=dict(GPT_OSS_YARN, truncate=True))),
    "phi3": dict(config=("Phi3Config", dict(rope_theta=10000.0, sliding_window=None)), pre="dbrx", tokenizer_class="GPT2Tokenizer"),
    "phi4-mini": dict(
        config=("Phi3Config", dict(original_max_position_embeddings=256, tie_word_embeddings=True, sliding_window=None,
                                   rope_parameters=LONGROPE)),
        pre="gpt-4o", tokenizer_class="GPT2Tokenizer", contexts={"": (0, LENGTHS), "-short": (256, (1, 17, 200))}),
    "mistral3": dict(
        config=("MistralConfig", dict(hidden_size=96, head_dim=32, rope_theta=1e6, sliding_window=None)),
        architecture="Mistral3ForConditionalGeneration", pre="tekken"),
    "ministral3": dict(
        config=("Ministral3Config", dict(hidden_size=96, head_dim=32, tie_word_embeddings=True, rope_parameters=MINISTRAL_YARN)),
        pre="tekken"),
    "smollm3": dict(
        config=("SmolLM3Config", dict(num_hidden_layers=5, rope_theta=5e6, tie_word_embeddings=True)), pre="smaug-bpe"),
    "olmo2": dict(config=("Olmo2Config", dict(rope_theta=5e5)), pre="dbrx"),
    "olmo3": dict(
        config=("Olmo3Config", dict(num_hidden_layers=5, sliding_window=12, rope_parameters=dict(
            full_attention=dict(rope_type="yarn", rope_theta=5e5, factor=8.0, original_max_position_embeddings=128,
                                attention_factor=1.2079441541679836, beta_fast=32, beta_slow=1),
            sliding_attention=dict(rope_type="default", rope_theta=5e5)))),
        pre="dbrx"),
    "granite": dict(config=("GraniteConfig", GRANITE), pre="refact"),
    "granitemoe": dict(
        config=("GraniteMoeConfig", dict(GRANITE, num_local_experts=6, num_experts_per_tok=3)), pre="refact"),
}
SHAPES["gpt-oss-mxfp4"] = dict(SHAPES["gpt-oss"], mxfp4=True)
SHAPES["qwen2-fused"] = dict(SHAPES["qwen2"], convert=["--fuse-qkv"])
