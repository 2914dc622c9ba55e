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

static size_t span_end(const jbuf *b, size_t from) {
    size_t to = from + 1;
    if (b->marks == NULL) return b->n;
    while (to < b->n && b->marks[to] == b->marks[from]) to++;
    return to;
}

/* Copy the text from the arena into memory that the caller owns. */
static inferd_status hand_over(const jbuf *b, chat_text *out, inferd_err *err) {
    size_t n_spans = 0;
    for (size_t i = 0; i < b->n; i = span_end(b, i)) n_spans++;
    out->text = malloc(b->n + 1);
    out->spans = malloc(size_max(n_spans, 1) * sizeof *out->spans);
    if (out->text == NULL || out->spans == NULL) {
        chat_text_deinit(out);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a prompt of %zu bytes", b->n);
    }
    if (b->n > 0) memcpy(out->text, b->p, b->n);
    out->text[b->n] = 0;
    out->n = b->n;
    for (size_t i = 0; i < b->n; i = span_end(b, i))
        out->spans[out->n_spans++] = (tok_span){
            .n = span_end(b, i) - i, .specials = b->marks != NULL ? b->marks[i] : b->trusted};
    return INFERD_OK;
}

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
    if (s == INFERD_OK) s = hand_over(&text, out, err);
    json_decref(r.parsed);
    jctx_deinit(&r.c);
    return s;
}

inferd_status chat_template_render(const chat_template *t, json_t *trusted, json_t *vars,
                                   const struct tm *now, chat_text *out, inferd_err *err) {
    return template_render(t, &t->limits, trusted, vars, now, out, err);
}
