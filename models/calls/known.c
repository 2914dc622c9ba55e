/* known.c - formats by name: for templates that mention calls and do not write them, and for models
 * with a template that is not to be believed.
 *
 * Sources: the model cards and chat templates of the families. */
#include <string.h>

#include "calls/format.h"

typedef struct known_format {
    const char *name;
    const char *mention[2]; // all of these in a template: it is of this format; NULL: never
    call_style style;
    bool single, at_start;
    const char *section_open, *call_open, *name_close, *call_close, *separator, *section_close;
    const char *name_key, *arguments_key;
    const char *quote;
    const char *key_open, *key_close, *value_close;
    const char *item; // of a tree
} known_format;

/* In the order in which mentions are looked for: the special ones first. */
static const known_format known[] = {
    {.name = "kimi_k2",
     .mention = {"<|tool_calls_section_begin|>"},
     .style = CALL_JSON,
     .section_open = "<|tool_calls_section_begin|>",
     .call_open = "<|tool_call_begin|>functions.",
     .name_close = ":\x02<|tool_call_argument_begin|>",
     .call_close = "<|tool_call_end|>",
     .section_close = "<|tool_calls_section_end|>"},
    {.name = "deepseek_v3",
     .mention = {"<｜tool▁calls▁begin｜>", "```json"},
     .style = CALL_JSON,
     .section_open = "<｜tool▁calls▁begin｜>",
     .call_open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
     .name_close = "\n```json\n",
     .call_close = "\n```<｜tool▁call▁end｜>",
     .separator = "\n",
     .section_close = "<｜tool▁calls▁end｜>"},
    {.name = "deepseek_v31",
     .mention = {"<｜tool▁calls▁begin｜>"},
     .style = CALL_JSON,
     .section_open = "<｜tool▁calls▁begin｜>",
     .call_open = "<｜tool▁call▁begin｜>",
     .name_close = "<｜tool▁sep｜>",
     .call_close = "<｜tool▁call▁end｜>",
     .section_close = "<｜tool▁calls▁end｜>"},
    {.name = "lfm2",
     .mention = {"<|tool_call_start|>"},
     .style = CALL_PYTHON,
     .section_open = "<|tool_call_start|>[",
     .separator = ", ",
     .section_close = "]<|tool_call_end|>"},
    {.name = "mistral_v11",
     .mention = {"[CALL_ID]", "[ARGS]"},
     .style = CALL_JSON,
     .call_open = "[TOOL_CALLS]",
     .name_close = "[CALL_ID]\x01[ARGS]"},
    {.name = "mistral_v13",
     .mention = {"[TOOL_CALLS]", "[ARGS]"},
     .style = CALL_JSON,
     .call_open = "[TOOL_CALLS]",
     .name_close = "[ARGS]"},
    {.name = "mistral",
     .mention = {"[TOOL_CALLS]"},
     .style = CALL_OBJECT,
     .section_open = "[TOOL_CALLS][",
     .separator = ", ",
     .section_close = "]",
     .name_key = "name",
     .arguments_key = "arguments"},
    {.name = "minimax_m3",
     .mention = {"]<]minimax[>["},
     .style = CALL_TAGS,
     .section_open = "]<]minimax[>[<tool_call>\n",
     .call_open = "]<]minimax[>[<invoke name=\"",
     .name_close = "\">",
     .call_close = "]<]minimax[>[</invoke>",
     .separator = "\n",
     .section_close = "\n]<]minimax[>[</tool_call>",
     .key_open = "]<]minimax[>[<",
     .key_close = ">",
     .value_close = "]<]minimax[>[</\x04>",
     .item = "item"},
    {.name = "minimax_m2",
     .mention = {"<minimax:tool_call>"},
     .style = CALL_TAGS,
     .section_open = "<minimax:tool_call>\n",
     .call_open = "<invoke name=\"",
     .name_close = "\">",
     .call_close = "\n</invoke>",
     .separator = "\n",
     .section_close = "\n</minimax:tool_call>",
     .key_open = "\n<parameter name=\"",
     .key_close = "\">",
     .value_close = "</parameter>"},
    {.name = "seed_oss",
     .mention = {"<seed:tool_call>"},
     .style = CALL_TAGS,
     .call_open = "<seed:tool_call>\n<function=",
     .name_close = ">",
     .call_close = "\n</function>\n</seed:tool_call>",
     .separator = "\n",
     .key_open = "\n<parameter=",
     .key_close = ">",
     .value_close = "</parameter>"},
    {.name = "qwen_xml",
     .mention = {"<function=", "<parameter="},
     .style = CALL_TAGS,
     .call_open = "<tool_call>\n<function=",
     .name_close = ">",
     .call_close = "\n</function>\n</tool_call>",
     .separator = "\n",
     .key_open = "\n<parameter=",
     .key_close = ">\n",
     .value_close = "\n</parameter>"},
    {.name = "glm",
     .mention = {"<tool_call>", "<arg_key>"},
     .style = CALL_TAGS,
     .call_open = "<tool_call>",
     .name_close = "\n",
     .call_close = "</tool_call>",
     .separator = "\n",
     .key_open = "<arg_key>",
     .key_close = "</arg_key>\n<arg_value>",
     .value_close = "</arg_value>\n"},
    {.name = "hermes",
     .mention = {"<tool_call>"},
     .style = CALL_OBJECT,
     .call_open = "<tool_call>\n",
     .call_close = "\n</tool_call>",
     .separator = "\n",
     .name_key = "name",
     .arguments_key = "arguments"},
    {.name = "phi4",
     .mention = {"<|tool_call|>", "<|/tool_call|>"},
     .style = CALL_OBJECT,
     .section_open = "<|tool_call|>[",
     .separator = ", ",
     .section_close = "]<|/tool_call|>",
     .name_key = "name",
     .arguments_key = "arguments"},
    {.name = "granite",
     .mention = {"<|tool_call|>"},
     .style = CALL_OBJECT,
     .section_open = "<|tool_call|>[",
     .separator = ", ",
     .section_close = "]",
     .name_key = "name",
     .arguments_key = "arguments"},
    {.name = "functools",
     .mention = {"functools["},
     .style = CALL_OBJECT,
     .section_open = "functools[",
     .separator = ", ",
     .section_close = "]",
     .name_key = "name",
     .arguments_key = "arguments"},
    {.name = "gemma4",
     .mention = {"<|tool_call>"},
     .style = CALL_BRACES,
     .call_open = "<|tool_call>call:",
     .call_close = "<tool_call|>",
     .quote = "<|\"|>"},
    {.name = "functiongemma",
     .mention = {"<start_function_call>"},
     .style = CALL_BRACES,
     .call_open = "<start_function_call>call:",
     .call_close = "<end_function_call>",
     .quote = "<escape>"},
    {.name = "harmony",
     .mention = {"<|channel|>", "to=functions."},
     .style = CALL_JSON,
     .single = true,
     .call_open = " to=functions.",
     .name_close = "<|channel|>commentary json<|message|>",
     .call_close = "<|call|>"},
    {.name = "llama3_json",
     .mention = {"<|python_tag|>"},
     .style = CALL_OBJECT,
     .single = true,
     .at_start = true,
     .separator = "; ",
     .name_key = "name",
     .arguments_key = "parameters"},
    {.name = "pythonic",
     .mention = {NULL},
     .style = CALL_PYTHON,
     .at_start = true,
     .separator = ", ",
     .section_close = "]"},
};

const char *call_format_named(size_t i) {
    return i < INFERD_COUNT(known) ? known[i].name : NULL;
}

static bool set(call_format *f, bytes *mark, const char *text) {
    *mark = (bytes){NULL, 0};
    return text == NULL || call_format_set(f, mark, bytes_of(text));
}

bool call_format_set_known(call_format *f, const char *name) {
    size_t i = 0;
    while (i < INFERD_COUNT(known) && strcmp(known[i].name, name) != 0) i++;
    if (i == INFERD_COUNT(known)) return false;
    const known_format *k = &known[i];
    f->name = k->name;
    f->style = k->style;
    f->single = k->single;
    f->at_start = k->at_start;
    f->tree = k->item != NULL;
    f->index_from_one = false;
    f->why[0] = 0;
    bool ok = set(f, &f->section_open, k->section_open) && set(f, &f->call_open, k->call_open) &&
              set(f, &f->name_close, k->name_close) && set(f, &f->call_close, k->call_close) &&
              set(f, &f->separator, k->separator) && set(f, &f->section_close, k->section_close) &&
              set(f, &f->name_key, k->name_key) && set(f, &f->arguments_key, k->arguments_key) &&
              set(f, &f->quote, k->quote) && set(f, &f->key_open, k->key_open) &&
              set(f, &f->item, k->item);
    for (int t = 0; ok && t < CALL_TYPES; t++)
        ok = set(f, &f->key_close[t], k->key_close) && set(f, &f->value_close[t], k->value_close);
    return ok;
}

static bool mentions(bytes source, const known_format *k) {
    if (k->mention[0] == NULL) return false;
    for (int i = 0; i < 2 && k->mention[i] != NULL; i++)
        if (bytes_find(source, bytes_of(k->mention[i]), 0) == SIZE_MAX) return false;
    return true;
}

const char *call_format_mentioned(bytes source) {
    for (size_t i = 0; i < INFERD_COUNT(known); i++)
        if (mentions(source, &known[i])) return known[i].name;
    return NULL;
}

/* The same but for white space. */
static bool is_like(bytes mark, const char *text) {
    bytes other = text == NULL ? (bytes){NULL, 0} : bytes_of(text);
    match m = call_match(other, mark);
    return m.result == MATCH_YES && bytes_trim(bytes_from(mark, m.n)).n == 0;
}

const char *call_format_like(const call_format *f) {
    for (size_t i = 0; i < INFERD_COUNT(known); i++) {
        const known_format *k = &known[i];
        if (k->style == f->style && k->at_start == f->at_start &&
            is_like(f->section_open, k->section_open) && is_like(f->call_open, k->call_open) &&
            is_like(f->key_open, k->key_open) && is_like(f->name_key, k->name_key) &&
            (f->style != CALL_JSON ||
             bytes_equal(f->name_close,
                         k->name_close == NULL ? (bytes){NULL, 0} : bytes_of(k->name_close))))
            return k->name;
    }
    return NULL;
}
