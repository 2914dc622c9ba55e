/* The global functions of templates. */
#include "chat/interp.h"

static jval run_range(jrender *r, const jcall *call) {
    jval a[3];
    jcall_bind(r, call, "range", "start stop? step?", a);
    int64_t start = 0, stop = jarg_int(r, a[0], "range"), step = 1, span;
    if (a[1].kind != JV_MISSING) {
        start = stop;
        stop = jarg_int(r, a[1], "range");
    }
    if (a[2].kind != JV_MISSING) step = jarg_int(r, a[2], "range");
    if (step == 0) j_fail(&r->c, "range() arg 3 must not be zero");
    bool empty = step > 0 ? stop <= start : stop >= start;
    if (!empty && (__builtin_sub_overflow(stop, start, &span) || step == INT64_MIN ||
                   span == INT64_MIN || (llabs(span) - 1) / llabs(step) >= JRANGE_MAX))
        j_limit(&r->c, "a range of more than %d", JRANGE_MAX);
    jrange *range = j_take(&r->c, sizeof *range);
    *range = (jrange){.start = start,
                      .step = step,
                      .n = empty ? 0 : (size_t)((llabs(span) - 1) / llabs(step) + 1)};
    return (jval){.kind = JV_RANGE, .u.range = range};
}

/* dict(pairs or a dict, name=value, ..) */
static jdict *make_dict(jrender *r, const jcall *call, const char *what) {
    jdict *d = jdict_new(&r->c, call->n_kw);
    jiter it;
    jval pair;
    if (call->n > 1) j_fail(&r->c, "%s expected at most 1 argument, got %zu", what, call->n);
    if (call->n == 1 && call->pos[0].kind == JV_DICT) {
        const jdict *from = call->pos[0].u.dict;
        for (size_t i = 0; i < from->n; i++)
            jdict_add(&r->c, d, from->pairs[i].key, from->pairs[i].value);
    } else if (call->n == 1) {
        jiter_init(&r->c, &it, call->pos[0]);
        while (jiter_next(&r->c, &it, &pair)) {
            jlist *two = jv_to_list(&r->c, pair);
            if (two->n != 2 || !jv_hashable(two->items[0]))
                j_fail(&r->c, "%s: expected pairs of a key and a value", what);
            jdict_set(&r->c, d, two->items[0], two->items[1]);
        }
    }
    for (size_t i = 0; i < call->n_kw; i++)
        jdict_set(&r->c, d, jv_str(call->kw[i].name), call->kw[i].value);
    return d;
}

static jval run_dict(jrender *r, const jcall *call) {
    return jv_dict(make_dict(r, call, "dict"));
}

static jval run_namespace(jrender *r, const jcall *call) {
    return (jval){.kind = JV_NAMESPACE, .u.dict = make_dict(r, call, "namespace")};
}

static jval run_raise_exception(jrender *r, const jcall *call) {
    jval message;
    jcall_bind(r, call, "raise_exception", "message", &message);
    const jstr *words = jv_to_str(&r->c, message);
    j_raise(&r->c, (bytes){words->p, words->n});
}

enum { STRFTIME_BYTES_MAX = 4096 };

/* Codes that only Python has, for a time without a zone: %f is "000000", %z and %Z are empty. */
static void expand_python_codes(jrender *r, const jstr *format, jbuf *out) {
    for (size_t i = 0; i < format->n; i++) {
        char code = i + 1 < format->n && format->p[i] == '%' ? format->p[i + 1] : 0;
        if (format->p[i] == 0) j_fail(&r->c, "strftime_now: embedded null character");
        if (code == 'f')
            jbuf_add_text(out, "000000", JMARK_TEMPLATE);
        else if (code != 'z' && code != 'Z')
            jbuf_add(out, format->p + i, 1 + (code != 0), JMARK_TEMPLATE);
        i += code != 0;
    }
    jbuf_add(out, "", 1, JMARK_TEMPLATE);
}

static jval run_strftime_now(jrender *r, const jcall *call) {
    jval a;
    jbuf expanded;
    char text[STRFTIME_BYTES_MAX];
    jcall_bind(r, call, "strftime_now", "format", &a);
    const jstr *format = jarg_str(r, a, "strftime_now");
    jbuf_init(&expanded, &r->c, 0);
    jbuf_add_text(&expanded, " ",
                  JMARK_TEMPLATE); // so that a length of 0 only means "does not fit"
    expand_python_codes(r, format, &expanded);
    if (r->now == NULL) j_fail(&r->c, "strftime_now: there is no clock");
    size_t n = strftime(text, sizeof text, expanded.p, r->now);
    if (n == 0) j_limit(&r->c, "strftime_now of more than %d bytes", STRFTIME_BYTES_MAX);
    return jv_str(jstr_copy(&r->c, text + 1, n - 1, jstr_mark(format)));
}

static const jfunction functions[] = {
    {"range", run_range},
    {"dict", run_dict},
    {"namespace", run_namespace},
    {"raise_exception", run_raise_exception},
    {"strftime_now", run_strftime_now},
};

const jfunction *jfunction_find(const jstr *name) {
    for (size_t i = 0; i < INFERD_COUNT(functions); i++)
        if (jstr_is(name, functions[i].name)) return &functions[i];
    return NULL;
}
