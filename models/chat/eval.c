/* Expressions.  One small function per kind of node keeps the C frames of the recursion small. */
#include "chat/interp.h"

static jval eval_items(jrender *r, const jnode *node) {
    jlist *list = jlist_new(&r->c, node->n_kids);
    for (size_t i = 0; i < node->n_kids; i++) jlist_add(&r->c, list, jeval(r, node->kids[i]));
    list->open = node->kind == JN_LIST;
    return list->open ? jv_list(list) : jv_tuple(list);
}

static jval eval_dict(jrender *r, const jnode *node) {
    jdict *d = jdict_new(&r->c, node->n_kids / 2);
    for (size_t i = 0; i + 1 < node->n_kids; i += 2) {
        jval key = jeval(r, node->kids[i]);
        if (!jv_hashable(key)) j_fail(&r->c, "unhashable type: '%s'", jv_type_name(key));
        jdict_set(&r->c, d, key, jeval(r, node->kids[i + 1]));
    }
    return jv_dict(d);
}

static jval eval_slice(jrender *r, const jnode *node) {
    jslice *slice = j_take(&r->c, sizeof *slice);
    for (int i = 0; i < 3; i++)
        slice->part[i] = node->kids[i] == NULL ? jv_none() : jeval(r, node->kids[i]);
    return (jval){.kind = JV_SLICE, .u.slice = slice};
}

static jval eval_item(jrender *r, const jnode *node) {
    jval owner = jeval(r, node->kids[0]);
    jval key = jeval(r, node->kids[1]);
    r->c.line = node->line;
    return jattr_item(r, owner, key);
}

static void add_star(jrender *r, jcall *call, jval list) {
    jlist *more = jv_to_list(&r->c, list);
    jval *pos = j_take_array(&r->c, call->n + more->n, sizeof *pos);
    if (call->n > 0) memcpy(pos, call->pos, call->n * sizeof *pos);
    if (more->n > 0) memcpy(pos + call->n, more->items, more->n * sizeof *pos);
    call->pos = pos;
    call->n += more->n;
}

static void add_star_star(jrender *r, jcall *call, jval dict) {
    if (dict.kind != JV_DICT)
        j_fail(&r->c, "argument after ** must be a mapping, not %s", jv_type_name(dict));
    const jdict *d = dict.u.dict;
    jkwarg *kw = j_take_array(&r->c, call->n_kw + d->n, sizeof *kw);
    if (call->n_kw > 0) memcpy(kw, call->kw, call->n_kw * sizeof *kw);
    for (size_t i = 0; i < d->n; i++) {
        if (d->pairs[i].key.kind != JV_STR) j_fail(&r->c, "keywords must be strings");
        kw[call->n_kw++] = (jkwarg){d->pairs[i].key.u.s, d->pairs[i].value};
    }
    call->kw = kw;
}

jcall jeval_args(jrender *r, const jargs *args) {
    jcall call = {.n = args->n_pos, .n_kw = args->n_kw};
    if (call.n > 0) call.pos = j_take_array(&r->c, call.n, sizeof *call.pos);
    if (call.n_kw > 0) call.kw = j_take_array(&r->c, call.n_kw, sizeof *call.kw);
    for (size_t i = 0; i < args->n_pos; i++) call.pos[i] = jeval(r, args->pos[i]);
    for (size_t i = 0; i < args->n_kw; i++)
        call.kw[i] = (jkwarg){args->kw_names[i], jeval(r, args->kw[i])};
    if (args->star != NULL) add_star(r, &call, jeval(r, args->star));
    if (args->star_star != NULL) add_star_star(r, &call, jeval(r, args->star_star));
    return call;
}

static jval eval_call(jrender *r, const jnode *node) {
    jval callee = jeval(r, node->kids[0]);
    jcall call = jeval_args(r, node->args);
    r->c.line = node->line;
    return jcall_value(r, callee, &call);
}

static jval run_filter(jrender *r, const jnode *node, jval v) {
    const jfilter *filter = node->fn;
    const jstr *name = node->value.u.s;
    if (filter == NULL)
        j_fail(&r->c, "no filter named '%.*s'", (int)size_min(name->n, 100), name->p);
    jcall call = jeval_args(r, node->args);
    r->c.line = node->line;
    return filter->run(r, v, &call);
}

jval jeval_filters(jrender *r, const jnode *node, jval v) {
    jnest_enter(r, node);
    if (node->kids[0] != NULL) v = jeval_filters(r, node->kids[0], v);
    v = run_filter(r, node, v);
    r->nest--;
    return v;
}

static jval eval_test(jrender *r, const jnode *node) {
    const jtest *test = node->fn;
    const jstr *name = node->value.u.s;
    jval v = jeval(r, node->kids[0]);
    if (test == NULL) j_fail(&r->c, "no test named '%.*s'", (int)size_min(name->n, 100), name->p);
    jcall call = jeval_args(r, node->args);
    r->c.line = node->line;
    return jv_bool(test->run(r, v, &call));
}

static jval eval_if_else(jrender *r, const jnode *node) {
    if (jv_truth(jeval(r, node->kids[0]))) return jeval(r, node->kids[1]);
    if (node->kids[2] != NULL) return jeval(r, node->kids[2]);
    return jv_undefined_because(&r->c, "the inline if-expression evaluated to false and no else "
                                       "section was defined");
}

static jval eval_logic(jrender *r, const jnode *node) {
    jval v = jeval(r, node->kids[0]);
    for (size_t i = 1; i < node->n_kids && jv_truth(v) == (node->kind == JN_AND); i++)
        v = jeval(r, node->kids[i]);
    return v;
}

static jval eval_compare(jrender *r, const jnode *node) {
    jval left = jeval(r, node->kids[0]);
    for (size_t i = 1; i < node->n_kids; i++) {
        jval right = jeval(r, node->kids[i]);
        r->c.line = node->line;
        if (!jop_compare(r, node->ops[i - 1], left, right)) return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

static jval eval_arith(jrender *r, const jnode *node) {
    jval v = jeval(r, node->kids[0]);
    for (size_t i = 1; i < node->n_kids; i++) {
        jval right = jeval(r, node->kids[i]);
        r->c.line = node->line;
        v = jop_arith(r, node->ops[i - 1], v, right);
    }
    return v;
}

static jval eval_concat(jrender *r, const jnode *node) {
    const jstr *text = jv_to_str(&r->c, jeval(r, node->kids[0]));
    for (size_t i = 1; i < node->n_kids; i++) {
        const jstr *more = jv_to_str(&r->c, jeval(r, node->kids[i]));
        j_charge_bytes(&r->c, more->n);
        text = jstr_concat(&r->c, text, more, false);
    }
    return jv_str(text);
}

jval jeval(jrender *r, const jnode *node) {
    jval v;
    jnest_enter(r, node);
    switch ((jnode_kind)node->kind) {
    case JN_CONST:
        v = node->value;
        break;
    case JN_NAME:
        v = jscope_get(r, node->id);
        break;
    case JN_LIST:
    case JN_TUPLE:
        v = eval_items(r, node);
        break;
    case JN_DICT:
        v = eval_dict(r, node);
        break;
    case JN_ATTR:
        v = jeval(r, node->kids[0]);
        r->c.line = node->line;
        v = jattr_get(r, v, node->value.u.s);
        break;
    case JN_ITEM:
        v = eval_item(r, node);
        break;
    case JN_SLICE:
        v = eval_slice(r, node);
        break;
    case JN_CALL:
        v = eval_call(r, node);
        break;
    case JN_FILTER:
        v = run_filter(r, node, jeval(r, node->kids[0]));
        break;
    case JN_TEST:
        v = eval_test(r, node);
        break;
    case JN_IF_ELSE:
        v = eval_if_else(r, node);
        break;
    case JN_OR:
    case JN_AND:
        v = eval_logic(r, node);
        break;
    case JN_NOT:
        v = jv_bool(!jv_truth(jeval(r, node->kids[0])));
        break;
    case JN_NEGATE:
        v = jop_negate(r, jeval(r, node->kids[0]));
        break;
    case JN_PLUS:
        v = jop_plus(r, jeval(r, node->kids[0]));
        break;
    case JN_COMPARE:
        v = eval_compare(r, node);
        break;
    case JN_ARITH:
        v = eval_arith(r, node);
        break;
    case JN_CONCAT:
        v = eval_concat(r, node);
        break;
    default:
        INFERD_CHECK(!"an expression");
    }
    r->nest--;
    return v;
}
