/* open.c - a format for a model: its template, its vocabulary, or a name. */
#include <string.h>

#include "calls/learn.h"

enum { TOKEN_NAME_BYTES_MAX = 80 };

/* ---- control tokens ---- */

/* The longest control token with a name that begins here; 0: none. */
static size_t token_at(const tokenizer *tok, bytes text, bool *ends) {
    size_t found = 0;
    if (strchr("<[]", text.p[0]) == NULL || text.p[0] == 0) return 0; // ]<]minimax[>[
    for (size_t n = 2; n <= text.n && n <= TOKEN_NAME_BYTES_MAX; n++) {
        if (strchr(">][", text.p[n - 1]) == NULL || text.p[n - 1] == 0) continue;
        tok_id id = tok_find(tok, (bytes){text.p, n});
        if (id < 0 || !(tok_is_control(tok, id) || tok_is_end(tok, id))) continue;
        found = n;
        *ends = tok_is_end(tok, id);
    }
    return found;
}

static bool bind_mark(call_format *f, const tokenizer *tok, bytes *mark) {
    buf out = {0};
    bool ends = false;
    for (size_t i = 0; i < mark->n && !ends;) {
        size_t n = token_at(tok, bytes_from(*mark, i), &ends);
        if (n > 0 && !ends) {
            buf_add_char(&out, CALL_TOKEN);
            buf_add(&out, mark->p + i, n);
            buf_add_char(&out, CALL_TOKEN);
        } else if (n == 0) {
            buf_add_char(&out, mark->p[i]);
            n = 1;
        }
        i += n;
    }
    bool same = out.n == mark->n;
    bool ok = !out.failed && (same || call_format_set(f, mark, (bytes){out.p, out.n}));
    buf_deinit(&out);
    return ok;
}

bool call_format_bind(call_format *f, const tokenizer *tok) {
    bytes *marks[] = {
        &f->reasoning_open, &f->reasoning_close, &f->content_open, &f->content_close,
        &f->section_open,   &f->call_open,       &f->name_close,   &f->call_close,
        &f->separator,      &f->section_close,   &f->other_open,   &f->other_name_close,
        &f->quote,          &f->key_open,        &f->wrap_open,    &f->wrap_close,
        &f->prompt_end,     &f->preamble_open,   &f->turn_close};
    for (size_t i = 0; i < INFERD_COUNT(marks); i++)
        if (!bind_mark(f, tok, marks[i])) return false;
    for (int i = 0; i < CALL_HEADERS; i++)
        if (!bind_mark(f, tok, &f->headers[i])) return false;
    for (int t = 0; t < CALL_TYPES; t++)
        if (!bind_mark(f, tok, &f->key_close[t]) || !bind_mark(f, tok, &f->value_close[t]))
            return false;
    return true;
}

/* ---- reasoning ---- */

static void copy_mark(char out[CALL_MARK_BYTES], bytes mark) {
    bytes s = bytes_trim(mark);
    bool fits = s.n > 0 && s.n < CALL_MARK_BYTES && memchr(s.p, 0, s.n) == NULL;
    if (fits) memcpy(out, s.p, s.n);
    out[fits ? s.n : 0] = 0;
}

/* As it is written, behind what the prompt ends with. */
static void copy_content_mark(char out[CALL_MARK_BYTES], bytes mark, bytes prompt_end) {
    bool begun = prompt_end.n > 0 && bytes_start(mark, prompt_end);
    if (begun) mark = bytes_from(mark, prompt_end.n);
    bool fits =
        mark.n < CALL_MARK_BYTES && bytes_trim(mark).n > 0 && memchr(mark.p, 0, mark.n) == NULL;
    if (fits) memcpy(out, mark.p, mark.n);
    out[fits ? mark.n : 0] = 0;
}

call_around call_format_around(const call_format *f) {
    return (call_around){{f->content_symbols[0], f->content_symbols[1], f->content_symbols[2]}};
}

reasoning call_format_before(const call_format *f, const chat_input *input,
                             const chat_text *prompt) {
    reasoning marks = {.begin = f->plain_open, .end = f->plain_close};
    if (f->plain_close[0] == 0 || f->symbol_close[0] == 0)
        return (reasoning){.begin = NULL, .end = NULL};
    reasoning found = reasoning_in_prompt(marks, input, prompt);
    bool fresh = found.end == NULL && f->closes_turn && !input->continue_final_message;
    if (fresh) found = marks;
    if (found.begin != NULL) found.begin = f->symbol_open;
    if (found.end != NULL) found.end = f->symbol_close;
    return found;
}

reasoning call_format_reasoning(const call_format *f) {
    bool none = f->symbol_open[0] == 0 || f->symbol_close[0] == 0;
    bool anywhere = f->closes_turn || bytes_trim(f->content_open).n > 0;
    if (none || anywhere) return (reasoning){.begin = NULL, .end = NULL};
    return (reasoning){.begin = f->symbol_open, .end = f->symbol_close, .again = f->symbol_open};
}

/* ---- opening ---- */

/* gpt-oss writes the name of a call in the header of the turn, or behind the channel; then it may
 * say that JSON follows.  Content that calls follow is in the channel of calls.  Whatever else
 * stands in the header of a message is no content: a format of it, a tool that the request does not
 * have. */
static bool set_harmony(call_format *f) {
#define MAYBE(text) "\x05" text "\x05"
#define WORD        "\x03"
#define FORMAT      MAYBE("<|constrain|>") MAYBE("json") MAYBE("code") "<|message|>"
#define OF_JSON     MAYBE(" ") MAYBE("<|constrain|>") MAYBE("json") "<|message|>"
    const struct {
        bytes *mark;
        const char *text;
    } marks[] = {{&f->name_close, "<|channel|>commentary" OF_JSON},
                 {&f->other_open, "<|channel|>commentary to=functions."},
                 {&f->other_name_close, OF_JSON},
                 {&f->preamble_open, "<|channel|>commentary<|message|>"},
                 {&f->content_open, "<|channel|>final<|message|>"},
                 {&f->headers[0], "<|channel|>" WORD FORMAT},
                 {&f->headers[1], "<|channel|>" WORD " to=" WORD FORMAT},
                 {&f->headers[2], " to=" WORD "<|channel|>" WORD FORMAT},
                 {&f->reasoning_open, "<|channel|>analysis<|message|>"},
                 {&f->reasoning_close, "<|end|><|start|>assistant"}};
    bool written = bytes_start(bytes_trim(f->content_open), bytes_of("<|channel|>final"));
    bool harmony = strcmp(f->name, "harmony") == 0 || (written && strcmp(f->name, "template") == 0);
    if (f->style != CALL_JSON || !harmony) return true;
    bool ok = call_format_set_known(f, "harmony");
    for (size_t i = 0; i < INFERD_COUNT(marks) && ok; i++)
        ok = call_format_set(f, marks[i].mark, bytes_of(marks[i].text));
    f->closes_turn = true;
    return ok;
#undef OF_JSON
#undef FORMAT
#undef WORD
#undef MAYBE
}

/* The calls that the template writes, else those that it mentions. */
static bool find_calls(prober *p, bytes source, call_format *f) {
    if (!learn_calls_of(p, f)) return false;
    if (f->why[0] != 0) return true; // written, but in no way that can be read
    if (!learn_prompted(p, f)) return false;
    const char *name = f->style == CALL_NONE ? call_format_mentioned(source) : call_format_like(f);
    if (f->style == CALL_NONE) {
        f->spaced = true; // prompted.c writes JSON so
        return call_format_set_known(f, name != NULL ? name : "hermes");
    }
    if (name != NULL) f->name = name;
    return true;
}

inferd_status call_format_open(const chat_template *t, bytes source, const tokenizer *tok,
                               const char *name, call_format **out, inferd_err *err) {
    call_format *f = calloc(1, sizeof *f);
    prober p = {0};
    *out = NULL;
    bool ok = f != NULL;
    if (ok) f->name = "template";
    if (ok && prober_init(&p, t, tok, NULL))
        ok = learn_reasoning(&p, source, f) && learn_reasoning_name(&p, source, f) &&
             (name != NULL ? learn_prompted(&p, f) : find_calls(&p, source, f));
    ok = ok && !p.no_memory;
    prober_deinit(&p);
    if (ok && name != NULL && strcmp(name, "none") == 0)
        f->prompted = f->loses_calls = f->loses_calls_beside_text = false;
    if (ok && name != NULL && strcmp(name, "none") != 0 && !call_format_set_known(f, name)) {
        call_format_close(f);
        return inferd_fail(err, INFERD_EINVAL, "no format of tool calls has the name \"%.64s\"",
                           name);
    }
    ok = ok && set_harmony(f);
    if (ok) {
        copy_mark(f->plain_open, f->reasoning_open);
        copy_mark(f->plain_close, f->reasoning_close);
        ok = tok == NULL || call_format_bind(f, tok);
        copy_mark(f->symbol_open, f->reasoning_open);
        copy_mark(f->symbol_close, f->reasoning_close);
        /* A message without reasoning may begin with the mark behind it. */
        bool closes = f->closes_first && bytes_trim(f->content_open).n == 0;
        const bytes around[] = {closes ? f->reasoning_close : f->content_open, f->content_close,
                                f->turn_close};
        for (int i = 0; i < 3; i++)
            copy_content_mark(f->content_symbols[i], around[i], f->prompt_end);
    }
    if (ok) {
        *out = f;
        return INFERD_OK;
    }
    call_format_close(f);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the format of tool calls");
}
