/* inspect_chat.c - how a model's text is read and written: tokenizer, chat template, sampling.
 *
 * What a template refuses is found by trying: conversations that clients send are rendered, and
 * each one that fails is told with the template's words. */
#include <string.h>

#include "inspect_report.h"
#include "calls/format.h"

/* ---- tokenizer ---- */

static json_t *token(report *r, tok_id id) {
    if (id < 0) return json_null();
    json_t *o = json_object();
    report_put(r, o, "id", json_integer(id));
    report_put(r, o, "text", report_text(tok_name(r->m->tok, id)));
    return o;
}

static json_t *text_of_key(const report *r, const char *key) {
    bytes text = {0};
    inferd_err ignored;
    if (gguf_str_opt(r->m->file, key, &text, &ignored) != INFERD_OK) return json_null();
    return report_text(text);
}

void report_tokenizer(report *r) {
    enum { ENDS_MAX = 32 };
    const tokenizer *tok = r->m->tok;
    json_t *o = json_object(), *ends = json_array();
    gguf_array_view tokens = {0};
    inferd_err ignored;
    if (gguf_array_opt(r->m->file, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, &ignored) !=
        INFERD_OK)
        tokens.n = 0;
    const gguf_tensor *rows = gguf_find_tensor(r->m->file, "token_embd.weight");
    report_put(r, o, "model", text_of_key(r, "tokenizer.ggml.model"));
    report_put(r, o, "pre", text_of_key(r, "tokenizer.ggml.pre"));
    report_put(r, o, "tokens", report_number(tokens.n));
    report_put(r, o, "rows", rows == NULL ? json_null() : report_number(rows->dims[1]));
    report_put(r, o, "bos", tok == NULL ? json_null() : token(r, tok_bos(tok)));
    report_put(r, o, "eos", tok == NULL ? json_null() : token(r, tok_eos(tok)));
    for (size_t i = 0; tok != NULL && i < tok_n_vocab(tok); i++)
        if (tok_is_end(tok, (tok_id)i) && json_array_size(ends) < ENDS_MAX)
            report_add(r, ends, token(r, (tok_id)i));
    report_put(r, o, "ends", ends);
    report_put(r, r->root, "tokenizer", o);
}

/* ---- chat template ---- */

#define USER      "{\"role\":\"user\",\"content\":\"a\"}"
#define ASSISTANT "{\"role\":\"assistant\",\"content\":\"b\"}"

static const struct {
    const char *what, *messages;
} trials[] = {
    {"a message of the user", "[" USER "]"},
    {"a system message", "[{\"role\":\"system\",\"content\":\"a\"}," USER "]"},
    {"a system message behind others",
     "[" USER "," ASSISTANT ",{\"role\":\"system\",\"content\":\"a\"}," USER "]"},
    {"two messages of the user in a row", "[" USER "," USER "]"},
    {"an assistant's message at the begin", "[" ASSISTANT "," USER "]"},
};

static void try_messages(report *r, const char *what, const char *text, json_t *refused) {
    chat_text rendered = {0};
    inferd_err err = {0};
    struct tm now = {.tm_mday = 1, .tm_year = 126};
    json_t *messages = json_loads(text, 0, NULL);
    if (messages == NULL) {
        r->no_memory = true;
        return;
    }
    chat_input in = {.messages = messages, .add_generation_prompt = true};
    inferd_status st = chat_render(r->m->chat, r->m->tok, &in, &now, &rendered, &err);
    if (st == INFERD_ENOMEM) r->no_memory = true;
    if (st != INFERD_OK && st != INFERD_ENOMEM) {
        json_t *o = json_object();
        report_put(r, o, "what", json_string(what));
        report_put(r, o, "why", report_text((bytes){err.text, strlen(err.text)}));
        report_add(r, refused, o);
    }
    chat_text_deinit(&rendered);
    json_decref(messages);
}

static void put_text(report *r, json_t *o, const char *key, const char *text) {
    report_put(r, o, key, report_text((bytes){text, strlen(text)}));
}

/* Variables of requests by which templates are told to reason, or not. */
static json_t *list_switches(report *r, bytes source) {
    static const char *const names[] = {"enable_thinking", "thinking", "reasoning_effort",
                                        "thinking_budget"};
    json_t *list = json_array();
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        size_t n = strlen(names[i]);
        for (size_t at = bytes_find(source, bytes_of(names[i]), 0); at != SIZE_MAX;
             at = bytes_find(source, bytes_of(names[i]), at + n)) {
            char before = at > 0 ? source.p[at - 1] : ' ';
            char behind = at + n < source.n ? source.p[at + n] : ' ';
            bool part = before == '_' || before == '<' || before == '/' || before == '.' ||
                        before == '\'' || before == '"' || behind == '_' || behind == '>' ||
                        (before >= 'a' && before <= 'z') || (behind >= 'a' && behind <= 'z');
            if (part) continue;
            report_add(r, list, json_string(names[i]));
            break;
        }
    }
    return list;
}

static json_t *tell_reasoning(report *r, bytes source) {
    const call_format *f = r->m->calls;
    if (f == NULL || !call_format_reasons(f)) return json_null();
    json_t *o = json_object();
    put_text(r, o, "open", call_format_reasoning_open(f));
    put_text(r, o, "close", call_format_reasoning_close(f));
    report_put(r, o, "switches", list_switches(r, source));
    return o;
}

static void put_format(report *r, json_t *o, bytes source) {
    const call_format *f = r->m->calls;
    report_put(r, o, "tool_format", json_null());
    report_put(r, o, "tools", json_null());
    report_put(r, o, "tools_why", json_null());
    if (f != NULL) {
        put_text(r, o, "tool_format", call_format_name(f));
        put_text(r, o, "tools", call_format_is_prompted(f) ? "as text" : "by the template");
        if (call_format_why(f)[0] != 0) put_text(r, o, "tools_why", call_format_why(f));
    }
    report_put(r, o, "reasoning", tell_reasoning(r, source));
}

/* "tokenizer.chat_template.NAME": other templates, which are not used. */
static json_t *list_others(report *r) {
    static const char prefix[] = "tokenizer.chat_template.";
    json_t *list = json_array();
    for (size_t i = 0; i < gguf_n_keys(r->m->file); i++) {
        bytes key = gguf_key_at(r->m->file, i), begin = {prefix, sizeof prefix - 1};
        if (bytes_start(key, begin)) report_add(r, list, report_text(bytes_from(key, begin.n)));
    }
    return list;
}

void report_template(report *r) {
    bytes source = {0};
    inferd_err ignored;
    json_t *o = json_object(), *refused = json_array();
    if (gguf_str_opt(r->m->file, "tokenizer.chat_template", &source, &ignored) != INFERD_OK)
        source = (bytes){0};
    report_put(r, o, "source",
               source.p == NULL ? json_null() : json_string("tokenizer.chat_template"));
    report_put(r, o, "bytes", report_number(source.n));
    report_put(r, o, "others", list_others(r));
    put_format(r, o, source);
    for (size_t i = 0; r->m->chat != NULL && i < INFERD_COUNT(trials); i++)
        try_messages(r, trials[i].what, trials[i].messages, refused);
    report_put(r, o, "refuses", refused);
    report_put(r, r->root, "template", o);
}

/* ---- sampling ---- */

void report_sampling(report *r) {
    const sampling_defaults *d = &r->m->info.sampling;
    json_t *list = json_array();
    char *side = NULL;
    inferd_err ignored;
    if (!r->m->dummy && sampling_find_side(r->m->path, &side, &ignored) != INFERD_OK)
        r->no_memory = true;
    for (sampling_param p = 0; p < SAMPLING_PARAMS; p++) {
        sampling_source from = d->from[p];
        const char *key = sampling_key(p, from);
        const char *file = from == SAMPLING_GGUF        ? gguf_path(r->m->file)
                           : from == SAMPLING_SIDE_FILE ? side
                                                        : NULL;
        json_t *o = json_object();
        report_put(r, o, "name", json_string(sampling_about(p)->name));
        report_put(r, o, "value", json_real(d->values[p]));
        report_put(r, o, "source", json_string(sampling_source_name(from)));
        report_put(r, o, "file", file == NULL ? json_null() : report_text(bytes_of(file)));
        report_put(r, o, "key", key == NULL ? json_null() : json_string(key));
        report_add(r, list, o);
    }
    free(side);
    report_put(r, r->root, "sampling", list);
}
