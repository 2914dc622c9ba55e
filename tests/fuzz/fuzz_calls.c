/* fuzz_calls.c - any text as a message with tool calls, in each known format and in some that are
 * learned from templates.  However it is cut, the message is the same, every call that begins ends,
 * and no byte of a control token's mark gets out.
 *
 *     byte 0   the format          byte 1   1: the tools are known, 2: in reasoning, 4: no calls
 *     0x7f     the mark of a control token; a text that is not UTF-8 is read without its highest
 * bits */
#include <string.h>

#include "models/calls.h"
#include "tokenizer/utf8.h"

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

static seen read_pieces(const call_format *f, const call_parser_options *o, bytes text,
                        size_t piece) {
    seen s = {0};
    call_parser *p = call_parser_create(f, o);
    INFERD_CHECK(p != NULL);
    for (size_t at = 0; at < text.n;) { // pieces are whole code points
        size_t end = size_min(text.n, at + piece);
        while (end < text.n && ((unsigned char)text.p[end] & 0xc0) == 0x80) end++;
        INFERD_CHECK(call_parser_push(p, (bytes){text.p + at, end - at}, on_event, &s));
        at = end;
    }
    INFERD_CHECK(call_parser_finish(p, on_event, &s) && !s.in_call);
    call_parser_destroy(p);
    return s;
}

#define TURNS(call)                                                                                \
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls %}"            \
    "{% set f = c.function %}" call "{% endfor %}<|end|>{% endfor %}"

/* Marks that depend on the type, names as keys, texts that are wrapped, a call in the prompt. */
static const char *const templates[] = {
    TURNS(
        "<call n=\"{{ f.name }}\">{% for k, v in f.arguments.items() %}<p k=\"{{ k }}\" text=\"{{ "
        "'y' if v is string else 'n' }}\">{{ v if v is string else v|tojson }}</p>{% endfor %}"
        "</call>"),
    TURNS("<calls>[{\"{{ f.name }}\": {{ f.arguments|tojson }}}]</calls>"),
    TURNS("<f name=\"{{ f.name }}\">{% for k, v in f.arguments.items() %}<q name=\"{{ k }}\">"
          "{% if v is string and '<' in v %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}</q>"
          "{% endfor %}</f>"),
};

static size_t open_learned(call_format **out, size_t n, size_t n_max) {
    for (size_t i = 0; i < INFERD_COUNT(templates) && n < n_max; i++, n++) {
        bytes text = {templates[i], strlen(templates[i])};
        chat_template *t = NULL;
        INFERD_CHECK(chat_template_open(text, NULL, &t, NULL) == INFERD_OK);
        INFERD_CHECK(call_format_open(t, text, NULL, NULL, &out[n], NULL) == INFERD_OK);
        INFERD_CHECK(call_format_style(out[n]) != CALL_NONE);
        chat_template_close(t);
    }
    return n;
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
    return open_learned(out, n, n_max);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum { FORMATS_MAX = 64, TEXT_MAX = 4096 };
    static call_format *formats[FORMATS_MAX];
    static size_t n_formats;
    static const char tool[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"string\"}"
        ","
        "\"b\":{\"type\":[\"integer\",\"null\"]},\"c\":{\"$ref\":\"#/$defs/x\"},\"d\":{\"type\":"
        "\"array\",\"items\":{\"type\":\"object\"}}},\"$defs\":{\"x\":{\"type\":\"object\","
        "\"properties\":{\"c\":{\"$ref\":\"#/$defs/x\"},\"e\":{\"type\":\"array\"}}}}}}}]";
    static json_t *tools;
    if (n_formats == 0) n_formats = open_formats(formats, FORMATS_MAX);
    if (tools == NULL) tools = json_loads(tool, 0, NULL);
    if (n < 3 || n > TEXT_MAX) return 0;
    call_parser_options o = {.tools = (data[1] & 1) != 0 ? tools : NULL,
                             .in_reasoning = (data[1] & 2) != 0,
                             .no_calls = (data[1] & 4) != 0};
    const call_format *f = formats[data[0] % n_formats];
    static char letters[TEXT_MAX];
    bool whole_letters = utf8_valid_bytes(data + 2, n - 2) == n - 2;
    for (size_t i = 2; i < n; i++) {
        uint8_t byte = whole_letters ? data[i] : data[i] & 0x7f;
        letters[i - 2] = byte == 0x7f ? '\xff' : (char)byte;
    }
    bytes text = {letters, n - 2};
    seen whole = read_pieces(f, &o, text, text.n);
    INFERD_CHECK(whole.all.n == 0 || memchr(whole.all.p, '\xff', whole.all.n) == NULL);
    for (size_t piece = 1; piece <= 7; piece += 3) {
        seen cut = read_pieces(f, &o, text, piece);
        INFERD_CHECK(cut.all.n == whole.all.n &&
                     (cut.all.n == 0 || memcmp(cut.all.p, whole.all.p, cut.all.n) == 0));
        buf_deinit(&cut.all);
    }
    buf_deinit(&whole.all);
    return 0;
}
