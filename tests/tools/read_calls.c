/* read_calls.c - what call_parser makes of texts, for scripts/parsers-beside.
 *
 *     line in:   {"template": PATH, "messages": [...], "tools": [...], "kwargs": {...},
 *                 "marks": [...], "ends": [...], "texts": [{"text": "...", "piece": N}, ...]}
 *     line out:  {"format", "style", "why", "prompt", "in_reasoning", "before",
 *                 "read": [{"reasoning", "content", "calls": [{"name", "id", "arguments"}]}, ...]}
 *
 * The prompt is that of `messages`; the texts are answers to it, given to the parser in pieces of N
 * bytes, or a few more where a code point would be cut; 0: whole.  "refused": the sentence, if the
 * template does not render them.  `marks` are control tokens of the vocabulary, of which `ends` end
 * a generation; without any there is no vocabulary. */
#include <string.h>

#include "calls/format.h"
#include "chat/json_text.h"
#include "tok_tiny.h"

/* ---- the vocabulary ---- */

/* NULL: none. */
static tokenizer *open_vocabulary(const json_t *marks, const json_t *ends) {
    static const char *const no_merges[] = {NULL};
    tiny_words w;
    size_t i;
    json_t *v;
    if (json_array_size(marks) == 0) return NULL;
    words_bpe(&w, "gpt-2", no_merges);
    tiny_kv_u32(&w.g, "tokenizer.ggml.bos_token_id",
                (uint32_t)words_add(&w, "<bos>", WORD_CONTROL));
    words_add(&w, "<eos>", WORD_CONTROL);
    uint32_t eos = BPE_FIRST + 1;
    json_array_foreach((json_t *)(uintptr_t)marks, i, v) {
        tok_id id = words_add(&w, json_string_value(v), WORD_CONTROL);
        const char *end = json_string_value(json_array_get(ends, 0));
        if (end != NULL && strcmp(end, json_string_value(v)) == 0) eos = (uint32_t)id;
    }
    tiny_kv_u32(&w.g, "tokenizer.ggml.eos_token_id", eos);
    return words_open(&w);
}

/* The text with control tokens as a stream gives them to the parser. */
static void add_marked(buf *out, bytes text, const json_t *marks) {
    for (size_t i = 0; i < text.n;) {
        size_t n = 0, k;
        json_t *v;
        json_array_foreach((json_t *)(uintptr_t)marks, k, v) {
            bytes mark = {json_string_value(v), json_string_length(v)};
            if (mark.n > n && bytes_start(bytes_from(text, i), mark)) n = mark.n;
        }
        if (n > 0) buf_add_char(out, CALL_TOKEN);
        buf_add(out, text.p + i, size_max(n, 1));
        if (n > 0) buf_add_char(out, CALL_TOKEN);
        i += size_max(n, 1);
    }
}

/* ---- messages ---- */

static void add_text(json_t *to, const char *key, bytes text) {
    json_t *old = json_object_get(to, key);
    buf b = {0};
    buf_add(&b, json_string_value(old), json_string_length(old));
    buf_add(&b, text.p, text.n);
    json_object_set_new(to, key, json_stringn_nocheck(b.n > 0 ? b.p : "", b.n));
    buf_deinit(&b);
}

static void on_event(void *ctx, const call_event *ev) {
    json_t *message = ctx, *calls = json_object_get(message, "calls");
    json_t *last = json_array_get(calls, json_array_size(calls) - 1);
    switch (ev->kind) {
    case CALL_EVENT_REASONING:
        add_text(message, "reasoning", ev->text);
        break;
    case CALL_EVENT_CONTENT:
        add_text(message, "content", ev->text);
        break;
    case CALL_EVENT_BEGIN:
        last = json_pack("{ss,ss,ss}", "name", "", "id", "", "arguments", "");
        add_text(last, "name", ev->name);
        add_text(last, "id", ev->id);
        json_array_append_new(calls, last);
        break;
    case CALL_EVENT_ARGUMENTS:
        add_text(last, "arguments", ev->text);
        break;
    case CALL_EVENT_END:
        break;
    }
}

/* The end of a piece: at least `n` bytes behind `at`, between two code points. */
static size_t next_cut(bytes text, size_t at, size_t n) {
    size_t end = n == 0 ? text.n : size_min(text.n, at + n);
    while (end < text.n && ((unsigned char)text.p[end] & 0xc0) == 0x80) end++;
    return end;
}

static json_t *read_text(const call_format *f, const json_t *tools, bool in_reasoning,
                         const json_t *marks, const json_t *of) {
    json_t *message = json_pack("{ss,ss,s[]}", "reasoning", "", "content", "", "calls");
    json_t *v = json_object_get(of, "text");
    buf marked = {0};
    add_marked(&marked, (bytes){json_string_value(v), json_string_length(v)}, marks);
    bytes text = {marked.p, marked.n};
    size_t piece = (size_t)json_integer_value(json_object_get(of, "piece"));
    call_parser_options o = {.tools = tools, .in_reasoning = in_reasoning};
    call_parser *p = call_parser_create(f, &o);
    bool ok = p != NULL;
    for (size_t at = 0; ok && at < text.n;) {
        size_t end = next_cut(text, at, piece);
        ok = call_parser_push(p, (bytes){text.p + at, end - at}, on_event, message);
        at = end;
    }
    ok = ok && call_parser_finish(p, on_event, message);
    call_parser_destroy(p);
    buf_deinit(&marked);
    if (!ok) json_object_set_new(message, "failed", json_true());
    return message;
}

/* False: refused. */
static bool render_prompt(const chat_template *t, const tokenizer *tok, const call_format *f,
                          const json_t *in, json_t *out, inferd_err *err) {
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    json_t *messages = json_object_get(in, "messages"), *tools = json_object_get(in, "tools");
    bool prompted = call_format_is_prompted(f);
    json_t *origins = NULL, *rewritten = NULL;
    if (prompted || call_format_loses_calls(f))
        rewritten = call_format_messages(f, messages, tools, &origins);
    chat_input input = {.messages = rewritten != NULL ? rewritten : messages,
                        .tools = prompted ? NULL : tools,
                        .kwargs = json_object_get(in, "kwargs"),
                        .add_generation_prompt = true};
    chat_text prompt = {0};
    bool ok = chat_render(t, tok, &input, &now, &prompt, err) == INFERD_OK;
    if (ok) {
        reasoning before = call_format_before(f, &input, &prompt);
        json_object_set_new(out, "prompt", json_stringn_nocheck(prompt.text, prompt.n));
        json_object_set_new(out, "in_reasoning",
                            json_boolean(before.end != NULL && before.begin == NULL));
    }
    chat_text_deinit(&prompt);
    json_decref(rewritten);
    json_decref(origins);
    return ok;
}

static bool open_file(const char *path, const tokenizer *tok, chat_template **t, call_format **f,
                      inferd_err *err) {
    static char source[1 << 20];
    FILE *file = fopen(path, "rb");
    size_t n = file == NULL ? 0 : fread(source, 1, sizeof source - 1, file);
    if (file != NULL) fclose(file);
    bytes text = {source, n};
    return chat_template_open(text, NULL, t, err) == INFERD_OK &&
           call_format_open(*t, text, tok, NULL, f, err) == INFERD_OK;
}

static void answer(const char *line) {
    static const char *const styles[CALL_STYLES] = {"none", "object", "keyed", "json",
                                                    "tags", "python", "braces"};
    json_t *in = NULL, *out = json_object(), *read = json_array(), *of;
    chat_template *t = NULL;
    tokenizer *tok = NULL;
    call_format *f = NULL;
    inferd_err err = {0};
    size_t i;
    bool ok = json_text_read((bytes){line, strlen(line)}, &in, &err) == INFERD_OK;
    const json_t *marks = json_object_get(in, "marks");
    if (ok) tok = open_vocabulary(marks, json_object_get(in, "ends"));
    ok = ok && open_file(json_string_value(json_object_get(in, "template")), tok, &t, &f, &err) &&
         render_prompt(t, tok, f, in, out, &err);
    if (f != NULL) {
        json_object_set_new(out, "format", json_string(call_format_name(f)));
        json_object_set_new(out, "style", json_string(styles[call_format_style(f)]));
        json_object_set_new(out, "why", json_string(call_format_why(f)));
        bool rewritten = call_format_is_prompted(f) || call_format_loses_calls(f);
        json_object_set_new(out, "prompted", json_boolean(rewritten));
        json_object_set_new(out, "single", json_boolean(call_format_is_single(f)));
    }
    if (!ok) json_object_set_new(out, "refused", json_string(err.text));
    bool in_reasoning = json_is_true(json_object_get(out, "in_reasoning"));
    if (ok)
        json_array_foreach(json_object_get(in, "texts"), i, of) json_array_append_new(
            read, read_text(f, json_object_get(in, "tools"), in_reasoning, marks, of));
    json_object_set_new(out, "read", read);
    char *text = json_dumps(out, JSON_COMPACT);
    printf("%s\n", text);
    fflush(stdout);
    free(text);
    json_decref(out);
    json_decref(in);
    call_format_close(f);
    chat_template_close(t);
    tok_close(tok);
}

int main(void) {
    char *line = NULL;
    size_t n_room = 0;
    while (getline(&line, &n_room, stdin) > 0) answer(line);
    free(line);
    return 0;
}
