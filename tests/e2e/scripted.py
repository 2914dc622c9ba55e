"""A daemon in which a script says what the model writes, so that whole conversations run: a tool call, its result, the
next call, the answer.  HTTP, chat template, tokenizer, scheduler, grammars and streams are the daemon's own.

    s = scripted.start(launch, tmp_path, scripted.HERMES)
    s.say("list the files", '<tool_call>\\n{"name": "ls", "arguments": {}}\\n</tool_call>', once=True)
    s.say(["<tool_response>", "main.c"], "There is one file.")
    s.openai().chat.completions.create(model="m", messages=[...])

The program is build/tests/inferd_scripted (tests/tools/scripted.c; script.h has the lines of a script).  Its model has a
context of 131072 tokens, made-up weights, one small layer, and words learned from the documents of this tree, so that
a long prompt has about as many tokens as with a real model, and 10,000 of them take about a second."""

import collections
import dataclasses
import functools
import heapq
import json
import re
from pathlib import Path

import gguf
import numpy as np

from conftest import BUILD, ROOT
from test_models import byte_names

PROGRAM = BUILD / "tests" / "inferd_scripted"
CONTEXT = 131072
MERGES = 1500
DIM, FFN, HEADS, KV_HEADS, HEAD = 64, 64, 2, 1, 32
WORD = re.compile(r" ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|[0-9]|\s+")


@dataclasses.dataclass(frozen=True)
class Family:
    """How a kind of models writes conversations.  With the template of a file:
    dataclasses.replace(HERMES, template=path.read_text())"""

    template: str
    controls: tuple  # tokens, in the order of their ids from 0 on; byte b has the id len(controls) + len(marks) + b
    end: str  # one of the controls
    marks: tuple = ()  # tokens that are shown in the text


# Hermes, Qwen 2.5 and 3.
HERMES = Family("""\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools

<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role != 'system' %}<|im_start|>{{ m.role }}
{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>",
                ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"))

MISTRAL = Family("""\
{{- '<s>' }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif m.tool_calls %}[TOOL_CALLS][
{%- for call in m.tool_calls %}{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}
{%- if not loop.last %}, {% endif %}{% endfor %}]</s>
{%- else %}{{ m.content }}</s>
{%- endif %}
{%- endfor %}""", ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
                   "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]"), "</s>")

HARMONY = Family("""\
{{- '<|start|>system<|message|>You are a helpful assistant.\\n\\nReasoning: medium\\n\\n' }}
{{- '# Valid channels: analysis, commentary, final.<|end|>' }}
{%- set first = messages[0] %}
{%- if tools or first.role in ['system', 'developer'] %}<|start|>developer<|message|>
{%- if first.role in ['system', 'developer'] %}# Instructions

{{ first.content }}

{% endif %}
{%- if tools %}# Tools

## functions

namespace functions {

{% for tool in tools %}// {{ tool.function.description }}
type {{ tool.function.name }} = (_: {{ tool.function.parameters | tojson }}) => any;

{% endfor %}} // namespace functions{% endif %}<|end|>
{%- endif %}
{%- set names = namespace(last='') %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>
{%- elif m.role == 'tool' %}<|start|>functions.{{ names.last }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- elif m.tool_calls %}
{%- for call in m.tool_calls %}{% set names.last = call.function.name %}<|start|>assistant to=functions.{{ names.last }}
{{- '<|channel|>commentary json<|message|>' }}{{ call.function.arguments | tojson }}<|call|>
{%- endfor %}
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}""", (
    "<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"), "<|return|>")


# ---- the model ----

def learn_merges(text, n):
    """Byte pair encoding: the n pairs of names that are joined, most frequent first."""
    name_of = byte_names()
    words = [[[name_of[b] for b in word.encode()], count]
             for word, count in sorted(collections.Counter(WORD.findall(text)).items())]
    counts, where = collections.Counter(), collections.defaultdict(set)
    for i, (names, count) in enumerate(words):
        for pair in zip(names, names[1:]):
            counts[pair] += count
            where[pair].add(i)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    merges = []
    while heap and len(merges) < n:
        count, pair = heapq.heappop(heap)
        if -count != counts[pair]:
            continue  # an older entry
        merges.append(pair)
        changed = set()
        for i in where.pop(pair):
            names, count = words[i]
            joined, at = [], 0
            while at < len(names):
                whole = tuple(names[at:at + 2]) == pair
                joined.append("".join(pair) if whole else names[at])
                at += 2 if whole else 1
            for old in zip(names, names[1:]):
                counts[old] -= count
                changed.add(old)
            for new in zip(joined, joined[1:]):
                counts[new] += count
                where[new].add(i)
                changed.add(new)
            words[i][0] = joined
        for p in changed - {pair}:
            if counts[p] > 0:
                heapq.heappush(heap, (-counts[p], p))
        del counts[pair]
    return merges


@functools.lru_cache
def words_of_documents():
    files = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "tests/data/schemas.json"]
    return learn_merges("\n".join(f.read_text() for f in files), MERGES)


def write_model(path, family, context=CONTEXT):
    """A llama of one layer with the family's control tokens and template."""
    merges, names, kinds = words_of_documents(), list(family.controls), gguf.TokenType
    types = [kinds.UNKNOWN if name == "<unk>" else kinds.CONTROL for name in names]
    names += family.marks
    types += [kinds.USER_DEFINED] * len(family.marks)
    words = byte_names() + ["".join(pair) for pair in merges]
    names += words
    types += [kinds.NORMAL] * len(words)
    out = gguf.GGUFWriter(path, "llama")
    out.add_type("model")
    out.add_context_length(context)
    out.add_embedding_length(DIM)
    out.add_block_count(1)
    out.add_feed_forward_length(FFN)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_rope_dimension_count(HEAD)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(1e6)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(names)
    out.add_token_types(types)
    out.add_token_merges([" ".join(pair) for pair in merges])
    out.add_eos_token_id(family.controls.index(family.end))
    out.add_add_bos_token(False)
    out.add_chat_template(family.template)
    rng = np.random.default_rng(1)
    shapes = {"token_embd": (len(names), DIM), "output": (len(names), DIM), "output_norm": (DIM,),
              "blk.0.attn_norm": (DIM,), "blk.0.ffn_norm": (DIM,),
              "blk.0.attn_q": (HEADS * HEAD, DIM), "blk.0.attn_k": (KV_HEADS * HEAD, DIM),
              "blk.0.attn_v": (KV_HEADS * HEAD, DIM), "blk.0.attn_output": (DIM, HEADS * HEAD),
              "blk.0.ffn_gate": (FFN, DIM), "blk.0.ffn_up": (FFN, DIM), "blk.0.ffn_down": (DIM, FFN)}
    for name, shape in shapes.items():
        x = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) / shape[1]**0.5
        out.add_tensor(name + ".weight", x.astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


# ---- the daemon ----

class Scripted:
    """A daemon and its script.  What this has not, the daemon has: s.http, s.openai(), s.metric(name) ..."""

    def __init__(self, daemon, path):
        self.daemon, self.path = daemon, path

    def __getattr__(self, name):
        return getattr(self.daemon, name)

    def say(self, when, what, once=False, **more):
        """From now on sequences whose prompt ends with all texts of `when` say this; the first line that fits counts."""
        with open(self.path, "a") as f:
            f.write(json.dumps({"when": when, "say": what, "once": once, **more}) + "\n")

    def chat(self, text, **more):
        """One user message; the whole answer."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        return self.http.post("/v1/chat/completions", json=body)


def config_of(model, **more):
    """The model m, with memory for a context of it."""
    return {"devices": [{"kind": "cpu", "memory": "128MiB"}], "models": [{"name": "m", "path": str(model)}], **more}


def start(launch, folder, family=HERMES, config=None, context=CONTEXT):
    """`launch`: the fixture; `folder`: for model and script.  config(path of the model): another configuration."""
    model, script = Path(folder) / "scripted.gguf", Path(folder) / "script.jsonl"
    write_model(model, family, context)
    script.touch()
    daemon = launch((config or config_of)(model), program=PROGRAM, env={"INFERD_SCRIPT": str(script)})
    return Scripted(daemon, script)
