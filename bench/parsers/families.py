"""families - which parsers of vLLM read what a template writes, and which of its marks are special tokens."""

import base64
import json
import lzma
import re

# The beginning of a template's name, the tool parser, the reasoning parser.  The first that fits counts.  Where vLLM has
# a family's tool parser and none for its reasoning, it gets no texts with reasoning.
PARSERS = [
    ("Apertus", "apertus", None),
    ("Bielik", "hermes", None),
    ("ByteDance-Seed", "seed_oss", "seed_oss"),
    ("Cohere2MoE", "cohere_command4", "cohere_command4"),
    ("CohereForAI-c4ai-command-r7b", "cohere_command3", "cohere_command3"),
    ("GLM-4.6", "glm45", "glm45"),
    ("GLM-4.7", "glm47", "glm47"),
    ("GigaChat3", "gigachat3", None),
    ("Kimi-K3", "kimi_k3", "kimi_k3"),
    ("Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
    ("Kimi-K2", "kimi_k2", None),
    ("moonshotai-Kimi-K2", "kimi_k2", None),
    ("LFM2.5-8B", "lfm2", None),
    ("MiMo-VL", "hermes", None),
    ("MiniMax-M2", "minimax_m2", "minimax_m2"),
    ("MiniMax-M3", "minimax_m3", "minimax_m3"),
    ("Mistral-Small", "mistral", None),
    ("mistralai-Ministral", "mistral", "mistral"),
    ("mistralai-Mistral-Nemo", "mistral", None),
    ("unsloth-mistral-Devstral", "mistral", None),
    ("NVIDIA-Nemotron-3", "qwen3_coder", "nemotron_v3"),
    ("NousResearch-Hermes", "hermes", None),
    ("Qwen-QwQ", "hermes", None),
    ("Qwen-Qwen2.5", "hermes", None),
    ("Qwen-Qwen3-0.6B", "hermes", "qwen3"),
    ("Qwen3-Coder", "qwen3_coder", None),
    ("Qwen3.5", "qwen3_coder", "qwen3"),
    ("Reka-Edge", "hermes", None),
    ("Spark2.5", "glm47", "glm47"),
    ("StepFun3.5", "step3p5", "step3p5"),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama", "deepseek_v3", "deepseek_r1"),
    ("deepseek-ai-DeepSeek-R1", "deepseek_v3", None),
    ("llama-cpp-deepseek-r1", "deepseek_v3", "deepseek_r1"),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek_v31", "deepseek_v3"),
    ("deepseek-ai-DeepSeek-V3.2", "deepseek_v32", "deepseek_v3"),
    ("deepseek-ai-DeepSeek-V4", "deepseek_v4", "deepseek_v4"),
    ("fireworks-ai-llama-3-firefunction", "phi4_mini_json", None),
    ("google-gemma-4", "gemma4", "gemma4"),
    ("ibm-granite-granite-3", "granite", "granite"),
    ("ibm-granite-granite-4", "granite4", None),
    ("inclusionai-ling-3", "ling3", "ling3"),
    ("meta-llama-Llama", "llama3_json", None),
    ("muse-glimmer", "muse_glimmer", "muse_glimmer"),
    ("openai-gpt-oss", "openai", "openai_gptoss"),
    ("openbmb-MiniCPM5", "minicpm5", None),
    ("poolside-Laguna", "poolside_v1", "poolside_v1"),
    ("tencent-Hy3", "hy_v3", "hy_v3"),
]

MARK = re.compile(r"<SPECIAL_\d+>|<\|[^<>|\s'\"{}]{1,60}\|>|<\|[a-z_\"/]{1,40}>|<[a-z_]{1,40}\|>|<｜[^<>｜\s]{1,60}｜>|</?(?:seed:|minimax:|mm:)?"
                  r"(?:think|tool_call|tool_calls|tool_sep|tool_response|arg_key|arg_value)(?::\w+)?>|</?TOOLCALL>|"
                  r"</?longcat_tool_call>|</?dots_function_call>|</?ifm\|\w+>|<function_call>|</?function_calls>|"
                  r"</?tool_calls>|<(?:start|end)_function_call>|<escape>|"
                  r"\[/?(?:TOOL_CALLS|CALL_ID|ARGS|THINK|INST|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT)\]|\]<\]minimax\[>\[")


# What some of vLLM's parsers want besides.
PACKAGES = ["cohere-melody==0.15.3"]


def of(name):
    """(tool parser, reasoning parser); None: vLLM has none for this family."""
    if name.startswith("own-"):
        return name.removeprefix("own-").removesuffix(".jinja"), None
    return next((p[1:] for p in PARSERS if name.startswith(p[0])), None)


def marks(*texts):
    """Of the model, as far as its template and what it writes tell."""
    return sorted({m for text in texts for m in MARK.findall(text)} | {"<think>", "</think>"})


def more_marks(tool):
    """What a parser of vLLM wants to find in the vocabulary and the template does not have."""
    return {"llama3_json": ["<|python_tag|>"], "poolside_v1": ["<assistant>", "</assistant>", "<user>", "</user>"]}.get(tool, [])


def write_tiktoken(tokenizer, out):
    """The vocabulary of a byte-level tokenizer.json in tiktoken's form: the bytes of a token and its number."""
    data = tokenizer.read_bytes()
    vocab = json.loads(lzma.decompress(data) if tokenizer.suffix == ".xz" else data)["model"]["vocab"]
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}
    with open(out, "wb") as f:
        for token, number in sorted(vocab.items(), key=lambda item: item[1]):
            f.write(base64.b64encode(bytes(byte_of[c] for c in token)) + b" %d\n" % number)
