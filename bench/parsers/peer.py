"""peer - vLLM's parsers on texts.  A line of JSON in, a line out, after "ready":

    {"tool": NAME or null, "reasoning": NAME or null, "marks": [...], "messages", "tools", "kwargs", "prompt", "text"}
    {"whole": {"reasoning", "content", "calls"}, "streamed": {"1": {...}, "3": {...}, "7": {...}}}

or {"failed": WORDS} in place of a message.  A vocabulary of bytes stands for the model's, with the marks as special
tokens: a mark comes in one piece, as vLLM's parsers expect it.  (gpt-oss is read by its own vocabulary, which the
environment's TIKTOKEN_ENCODINGS_BASE has.)  Streamed texts come in deltas of 1, 3 and 7 tokens."""

import json
import logging
import os
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.stdout, replies = sys.stderr, sys.stdout
logging.disable(logging.CRITICAL)

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.parser.parser_manager import ParserManager  # noqa: E402

DELTAS = (1, 3, 7)
tokenizers = {}


class Harmony:
    """gpt-oss's own vocabulary, by which vLLM reads its texts."""

    def __init__(self):
        from openai_harmony import HarmonyEncodingName, load_harmony_encoding

        self.encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)

    def encode(self, text, add_special_tokens=False):
        return self.encoding.encode(text, allowed_special="all")

    def decode(self, ids):
        return self.encoding.decode(ids)

    def get_vocab(self):
        return {}


def tokenizer_of(marks, tool):
    key = tool if tool == "openai" else tuple(marks)
    if tool == "openai" and key not in tokenizers:
        tokenizers[key] = Harmony()
    if key not in tokenizers:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        t.decoder = decoders.ByteLevel()
        t.add_special_tokens([AddedToken(m, normalized=False, special=True) for m in marks])
        tokenizers[key] = PreTrainedTokenizerFast(tokenizer_object=t, clean_up_tokenization_spaces=False)
        suffix = next((m[len("<tool_calls"):-1] for m in marks if m.startswith("<tool_calls:")), "")
        tokenizers[key].init_kwargs["token_suffix"] = suffix  # of Hunyuan's marks
    return tokenizers[key]


def message_of(reasoning, content, calls):
    return {"reasoning": reasoning or "", "content": content or "",
            "calls": [{"name": n or "", "arguments": a or ""} for n, a in calls]}


def make(case, tokenizer):
    cls = ParserManager.get_parser(case["tool"], case["reasoning"], enable_auto_tools=True,
                                   is_harmony=case["tool"] == "openai")
    request = ChatCompletionRequest(model="m", messages=case["messages"], tools=case["tools"] or None,
                                    tool_choice="auto" if case["tools"] else None)
    return cls(tokenizer, request.tools, chat_template_kwargs=case["kwargs"]), request


def whole(case, tokenizer, ids):
    parser, request = make(case, tokenizer)
    reasoning, content, calls = parser.parse(case["text"], request, enable_auto_tools=True, model_output_token_ids=ids)
    return message_of(reasoning, content, [(c.name, c.arguments) for c in calls or []])


def deltas(tokenizer, ids, n):
    """Texts of whole code points, and their tokens."""
    held = []
    for k, token in enumerate(ids):
        held.append(token)
        text = tokenizer.decode(held)
        last = k == len(ids) - 1
        if (len(held) >= n and not text.endswith("�")) or last:
            yield text, held, last
            held = []


def streamed(case, tokenizer, ids, n):
    parser, request = make(case, tokenizer)
    prompt = tokenizer.encode(case["prompt"], add_special_tokens=False)
    reasoning, content, calls = "", "", {}
    for text, tokens, last in deltas(tokenizer, ids, n):
        delta = parser.parse_delta(text, tokens, request, prompt, finished=last)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for c in delta.tool_calls or []:
            name, arguments = calls.get(c.index, ("", ""))
            if c.function:
                calls[c.index] = (name + (c.function.name or ""), arguments + (c.function.arguments or ""))
    return message_of(reasoning, content, [calls[i] for i in sorted(calls)])


def guarded(run, *args):
    try:
        return run(*args)
    except Exception as e:
        return {"failed": f"{type(e).__name__}: {e}"[:200]}


def answer(case):
    tokenizer = tokenizer_of(case["marks"], case["tool"])
    ids = tokenizer.encode(case["text"], add_special_tokens=False)
    return {"whole": guarded(whole, case, tokenizer, ids),
            "streamed": {str(n): guarded(streamed, case, tokenizer, ids, n) for n in DELTAS}}


print("ready", file=replies, flush=True)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), file=replies, flush=True)
