/* fuzz_calls.c - any text as a message with tool calls, in each known format.  However it is cut,
 * the message is the same, and every call that begins ends. */
#include <string.h>

#include "models/calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct seen {
    buf all; // events as text; texts of one kind that follow each other are joined
    call_event_kind last;
    bool in_call;
} seen;

static void on_event(void *ctx, const call_event *ev) {
    seen *s = ctx;
    bool begins = ev->kind == CALL_EVENT_BEGIN, ends = ev->kind == CALL_EVENT_END;
    bool inside = ev->kind == CALL_EVENT_ARGUMENTS || ends;
    INFERD_CHECK(inside == s->in_call);
    if (s->all.n == 0 || ev->kind != s->last || begins || ends)
        buf_add_format(&s->all, "[%d]", (int)ev->kind);
    s->last = ev->kind;
    s->in_call = (s->in_call || begins) && !ends;
    buf_add(&s->all, ev->text.p, ev->text.n);
    buf_add(&s->all, ev->name.p, ev->name.n);
    buf_add(&s->all, ev->id.p, ev->id.n);
}

static seen read_pieces(const call_format *f, bytes text, size_t piece) {
    seen s = {0};
    call_parser *p = call_parser_create(f, &(call_parser_options){0});
    INFERD_CHECK(p != NULL);
    for (size_t at = 0; at < text.n; at += piece) {
        bytes next = {text.p + at, size_min(piece, text.n - at)};
        INFERD_CHECK(call_parser_push(p, next, on_event, &s));
    }
    INFERD_CHECK(call_parser_finish(p, on_event, &s) && !s.in_call);
    call_parser_destroy(p);
    return s;
}

static size_t open_formats(call_format **out, size_t n_max) {
    static const char source[] = "{% for m in messages %}{{ m.content }}{% endfor %}<think>";
    bytes text = {source, strlen(source)};
    chat_template *t = NULL;
    size_t n = 0;
    INFERD_CHECK(chat_template_open(text, NULL, &t, NULL) == INFERD_OK);
    for (const char *name; n < n_max && (name = call_format_named(n)) != NULL; n++)
        INFERD_CHECK(call_format_open(t, text, NULL, name, &out[n], NULL) == INFERD_OK);
    chat_template_close(t);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum { FORMATS_MAX = 64, TEXT_MAX = 4096 };
    static call_format *formats[FORMATS_MAX];
    static size_t n_formats;
    if (n_formats == 0) n_formats = open_formats(formats, FORMATS_MAX);
    if (n < 2 || n > TEXT_MAX) return 0;
    const call_format *f = formats[data[0] % n_formats];
    static char letters[TEXT_MAX]; // pieces are whole code points
    for (size_t i = 1; i < n; i++) letters[i - 1] = (char)(data[i] & 0x7f);
    bytes text = {letters, n - 1};
    seen whole = read_pieces(f, text, text.n);
    for (size_t piece = 1; piece <= 7; piece += 3) {
        seen cut = read_pieces(f, text, piece);
        INFERD_CHECK(cut.all.n == whole.all.n &&
                     (cut.all.n == 0 || memcmp(cut.all.p, whole.all.p, cut.all.n) == 0));
        buf_deinit(&cut.all);
    }
    buf_deinit(&whole.all);
    return 0;
}
