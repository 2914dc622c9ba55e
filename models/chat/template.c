#include "chat/template.h"

#include "chat/interp.h"

/* The setjmp of a compile.  All changing data is in *t, not in this frame. */
static inferd_status parse(chat_template *t, bytes source) {
    if (setjmp(t->c.exit) != 0) return t->c.status;
    if (source.n > t->limits.source_bytes_max)
        j_limit(&t->c, "a template of %zu bytes, at most %zu are allowed", source.n,
                t->limits.source_bytes_max);
    jast_parse(&t->c, source, &t->ast);
    return INFERD_OK;
}

inferd_status chat_template_open(bytes source, const chat_limits *limits, chat_template **out,
                                 inferd_err *err) {
    chat_template *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a chat template");
    t->limits = limits != NULL ? *limits : chat_limits_default;
    t->reasoning = reasoning_of_source(source);
    jctx_init(&t->c, &t->limits, err);
    inferd_status s = parse(t, source);
    t->c.err = NULL; // the caller's, gone when this returns
    if (s == INFERD_OK) s = chat_probe(t, err);
    if (s != INFERD_OK) {
        chat_template_close(t);
        return s;
    }
    *out = t;
    return INFERD_OK;
}

void chat_template_close(chat_template *t) {
    if (t == NULL) return;
    jctx_deinit(&t->c);
    free(t);
}

void chat_text_deinit(chat_text *t) {
    free(t->text);
    free(t->spans);
    free(t->messages);
    *t = (chat_text){0};
}

/* The setjmp of a render; likewise. */
static inferd_status run(jrender *r, jbuf *out, size_t output_bytes_max) {
    if (setjmp(r->c.exit) != 0) return r->c.status;
    r->globals = j_take_array(&r->c, r->ast->n_symbols, sizeof *r->globals);
    for (size_t i = 0; i < r->ast->n_symbols; i++) r->globals[i] = jv_missing();
    jbuf_init(out, &r->c, output_bytes_max);
    r->out = out;
    jexec_template(r);
    return INFERD_OK;
}

/* ---- spans ---- */

_Static_assert((int)CHAT_MESSAGES_EXACT == (int)JMARK_CYCLE, "the header states the cycle");

/* A run of bytes with the same mark. */
static size_t run_end(const jbuf *b, size_t from) {
    size_t to = from + 1;
    if (b->marks == NULL) return b->n;
    while (to < b->n && b->marks[to] == b->marks[from]) to++;
    return to;
}

static jmark mark_at(const jbuf *b, size_t i) {
    return b->marks != NULL ? b->marks[i] : b->mark;
}

/* The index of a message: of those below `n_messages` that have this mark, the one nearest to the
 * index before it in the text; of two equally near, the later one. */
static uint32_t find_message(jmark mark, uint32_t before, uint32_t n_messages) {
    const uint32_t cycle = JMARK_CYCLE, half = cycle / 2;
    uint32_t i = before - before % cycle + mark - JMARK_MESSAGE; // at most a cycle away
    bool later = i < before && before - i >= half;
    bool earlier = i >= n_messages || (i > before && i - before > half && i >= cycle);
    if (earlier) return i - cycle;
    return later && n_messages - i > cycle ? i + cycle : i;
}

static void fill_spans(const jbuf *b, uint32_t n_messages, chat_text *out) {
    uint32_t before = 0;
    for (size_t i = 0, end; i < b->n; i = end) {
        jmark mark = mark_at(b, i);
        end = run_end(b, i);
        if (mark >= JMARK_MESSAGE) before = find_message(mark, before, n_messages);
        out->messages[out->n_spans] = mark >= JMARK_MESSAGE ? before : CHAT_NO_MESSAGE;
        out->spans[out->n_spans++] = (tok_span){.n = end - i, .specials = mark == JMARK_TEMPLATE};
    }
}

/* Copy the text from the arena into memory that the caller owns. */
static inferd_status hand_over(const jbuf *b, uint32_t n_messages, chat_text *out,
                               inferd_err *err) {
    size_t n_spans = 0;
    for (size_t i = 0; i < b->n; i = run_end(b, i)) n_spans++;
    out->text = malloc(b->n + 1);
    out->spans = malloc(size_max(n_spans, 1) * sizeof *out->spans);
    out->messages = malloc(size_max(n_spans, 1) * sizeof *out->messages);
    if (out->text == NULL || out->spans == NULL || out->messages == NULL) {
        chat_text_deinit(out);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt of %zu bytes", b->n);
    }
    if (b->n > 0) memcpy(out->text, b->p, b->n);
    out->text[b->n] = 0;
    out->n = b->n;
    fill_spans(b, n_messages, out);
    return INFERD_OK;
}

uint32_t chat_text_message_at(const chat_text *t, size_t byte) {
    size_t end = 0, i = 0;
    while (i < t->n_spans && (end += t->spans[i].n) <= byte) i++;
    if (i < t->n_spans && !t->spans[i].specials) return t->messages[i];
    while (i < t->n_spans && t->messages[i] == CHAT_NO_MESSAGE) i++;
    return i < t->n_spans ? t->messages[i] : CHAT_NO_MESSAGE;
}

/* ---- a render ---- */

inferd_status template_render(const chat_template *t, const chat_limits *limits, json_t *trusted,
                              json_t *vars, const struct tm *now, chat_text *out, inferd_err *err) {
    jrender r;
    jbuf text = {0};
    memset(&r, 0, sizeof r);
    *out = (chat_text){0};
    jctx_init(&r.c, limits, err);
    r.ast = &t->ast;
    r.trusted = trusted;
    r.vars = vars;
    r.now = now;
    r.calls_max = limits->depth_max;
    inferd_status s = run(&r, &text, limits->output_bytes_max);
    uint32_t n_messages = (uint32_t)json_array_size(json_object_get(vars, "messages"));
    if (s == INFERD_OK) s = hand_over(&text, n_messages, out, err);
    json_decref(r.parsed);
    jctx_deinit(&r.c);
    return s;
}

inferd_status chat_template_render(const chat_template *t, json_t *trusted, json_t *vars,
                                   const struct tm *now, chat_text *out, inferd_err *err) {
    return template_render(t, &t->limits, trusted, vars, now, out, err);
}
