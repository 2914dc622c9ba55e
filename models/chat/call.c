#include "chat/interp.h"

jval jcall_value(jrender *r, jval callee, const jcall *call) {
    switch ((jkind)callee.kind) {
    case JV_MACRO:
        return jv_str(jmacro_call(r, callee.u.macro, call));
    case JV_FUNCTION:
        return callee.u.fn->run(r, call);
    case JV_METHOD:
        return callee.u.bound->method->run(r, callee.u.bound->self, call);
    case JV_LOOP: {
        jval over;
        jcall_bind(r, call, "loop", "iterable", &over);
        return jv_str(jloop_recurse(r, callee.u.loop, over));
    }
    case JV_UNDEFINED:
        jv_fail_undefined(&r->c, callee);
    default:
        j_fail(&r->c, "'%s' object is not callable", jv_type_name(callee));
    }
}

/* One name of `params`; its length and whether a question mark follows. */
static const char *read_param(const char *params, size_t *n, bool *optional) {
    while (*params == ' ') params++;
    *n = strcspn(params, " ?");
    *optional = params[*n] == '?';
    return *n == 0 ? NULL : params;
}

void jcall_bind(jrender *r, const jcall *call, const char *what, const char *params, jval *slots) {
    size_t i = 0, n, n_kw = 0;
    bool optional;
    for (const char *p = params; (p = read_param(p, &n, &optional)) != NULL; i++) {
        slots[i] = i < call->n ? call->pos[i] : jv_missing();
        for (size_t k = 0; k < call->n_kw; k++) {
            if (call->kw[k].name->n != n || memcmp(call->kw[k].name->p, p, n) != 0) continue;
            if (slots[i].kind != JV_MISSING)
                j_fail(&r->c, "%s() got multiple values for argument '%.*s'", what, (int)n, p);
            slots[i] = call->kw[k].value;
            n_kw++;
        }
        if (slots[i].kind == JV_MISSING && !optional)
            j_fail(&r->c, "%s() misses its argument '%.*s'", what, (int)n, p);
        p += n + optional;
    }
    if (call->n > i) j_fail(&r->c, "%s() takes %zu arguments but %zu were given", what, i, call->n);
    if (call->n_kw > n_kw) j_fail(&r->c, "%s() got an unexpected keyword argument", what);
}

const jstr *jarg_str(jrender *r, jval v, const char *what) {
    if (v.kind == JV_STR) return v.u.s;
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    j_fail(&r->c, "%s: expected a string, got '%s'", what, jv_type_name(v));
}

const jstr *jarg_str_or(jrender *r, jval v, const char *what, const char *otherwise) {
    if (v.kind == JV_MISSING || v.kind == JV_NONE)
        return otherwise == NULL ? NULL : jstr_lit(&r->c, otherwise);
    return jarg_str(r, v, what);
}

int64_t jarg_int(jrender *r, jval v, const char *what) {
    if (jv_is_integer(v)) return jv_integer(v);
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    j_fail(&r->c, "%s: expected an integer, got '%s'", what, jv_type_name(v));
}

int64_t jarg_int_or(jrender *r, jval v, const char *what, int64_t otherwise) {
    return v.kind == JV_MISSING || v.kind == JV_NONE ? otherwise : jarg_int(r, v, what);
}

bool jarg_true(jval v) {
    return jv_truth(v);
}
