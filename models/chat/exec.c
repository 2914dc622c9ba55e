/* Statements, scopes, loops and macros. */
#include "chat/interp.h"

typedef enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } flow;

static flow exec(jrender *r, const jnode *node);

void jnest_enter(jrender *r, const jnode *node) {
    j_charge(&r->c, 1);
    r->c.line = node->line;
    if (++r->nest > JNEST_MAX) j_limit(&r->c, "evaluation nested deeper than %d", JNEST_MAX);
}

static void enter_call(jrender *r) {
    if (++r->calls > r->calls_max) j_limit(&r->c, "more than %zu calls deep", r->calls_max);
}

/* ---- scopes ---- */

static jscope *make_scope(jrender *r, jscope *outer) {
    jscope *s = j_take(&r->c, sizeof *s);
    *s = (jscope){.outer = outer};
    return s;
}

/* An empty scope for the next iteration; a new one when a macro keeps the old. */
static jscope *reuse_scope(jrender *r, jscope *s) {
    if (s->kept) return make_scope(r, s->outer);
    s->n = 0;
    return s;
}

static void keep_scopes(jscope *s) {
    for (; s != NULL && !s->kept; s = s->outer) s->kept = true;
}

static jval *find_in(jrender *r, const jscope *s, uint32_t id) {
    j_charge(&r->c, s->n / 8);
    for (size_t i = s->n; i-- > 0;)
        if (s->vars[i].id == id) return &s->vars[i].value;
    return NULL;
}

static void scope_set(jrender *r, jscope *s, uint32_t id, jval v) {
    if (s == NULL) {
        r->globals[id] = v;
        return;
    }
    jval *old = find_in(r, s, id);
    if (old != NULL) {
        *old = v;
        return;
    }
    s->vars = j_grow_array(&r->c, s->vars, s->n, &s->capacity, sizeof *s->vars);
    s->vars[s->n++] = (jbinding){id, v};
}

/* A name at its first use: from the request, the special tokens, the interpreter, or undefined. */
static jval find_global(jrender *r, uint32_t id) {
    const jstr *name = r->ast->symbols[id];
    if (r->ast->hidden[id]) return jv_undefined(&r->c, jv_missing(), jv_str(name));
    json_t *json = json_object_getn(r->vars, name->p, name->n);
    if (json != NULL && jstr_is(name, "messages")) return jv_from_messages(&r->c, json);
    if (json != NULL) return jv_from_json(&r->c, json, JMARK_REQUEST, false);
    json = json_object_getn(r->trusted, name->p, name->n);
    if (json != NULL) return jv_from_json(&r->c, json, JMARK_TEMPLATE, false);
    const jfunction *fn = jfunction_find(name);
    if (fn != NULL) return (jval){.kind = JV_FUNCTION, .u.fn = fn};
    return jv_undefined(&r->c, jv_missing(), jv_str(name));
}

jval jscope_get(jrender *r, uint32_t id) {
    for (const jscope *s = r->scope; s != NULL; s = s->outer) {
        const jval *v = find_in(r, s, id);
        if (v != NULL) return *v;
    }
    if (r->globals[id].kind == JV_MISSING) r->globals[id] = find_global(r, id);
    return r->globals[id];
}

static void assign_tuple(jrender *r, const jnode *target, jval v) {
    jiter it;
    jval item;
    size_t n = 0;
    if (v.kind == JV_UNDEFINED && target->n_kids > 0) jv_fail_undefined(&r->c, v);
    if (!jv_iterable(v)) j_fail(&r->c, "cannot unpack non-iterable %s object", jv_type_name(v));
    jiter_init(&r->c, &it, v);
    for (; jiter_next(&r->c, &it, &item); n++) {
        if (n == target->n_kids)
            j_fail(&r->c, "too many values to unpack (expected %u)", target->n_kids);
        jassign(r, target->kids[n], item);
    }
    if (n < target->n_kids)
        j_fail(&r->c, "not enough values to unpack (expected %u, got %zu)", target->n_kids, n);
}

void jassign(jrender *r, const jnode *target, jval v) {
    r->c.line = target->line;
    if (target->kind == JN_NAME) {
        scope_set(r, r->scope, target->id, v);
    } else if (target->kind == JN_NS_ATTR) {
        jval ns = jscope_get(r, target->id);
        if (ns.kind != JV_NAMESPACE)
            j_fail(&r->c, "cannot assign attribute on non-namespace object");
        jdict_set(&r->c, ns.u.dict, target->value, v);
    } else {
        assign_tuple(r, target, v);
    }
}

/* ---- capturing text ---- */

typedef struct capture {
    jbuf text;
    jbuf *out;     // the previous output
    jscope *scope; // likewise
} capture;

static void capture_begin(jrender *r, capture *c, jscope *scope) {
    c->out = r->out;
    c->scope = r->scope;
    jbuf_init(&c->text, &r->c, 0);
    r->out = &c->text;
    r->scope = scope;
}

static const jstr *capture_end(jrender *r, capture *c) {
    r->out = c->out;
    r->scope = c->scope;
    return jbuf_str(&c->text, false);
}

/* ---- loops ---- */

/* The next element that passes the test of the loop. */
static bool pull(jrender *r, jloop *loop, jval *v) {
    const jnode *test = loop->node->kids[JFOR_TEST];
    jscope *scope = r->scope;
    bool found;
    while ((found = jiter_next(&r->c, &loop->it, v)) && test != NULL && !loop->drained) {
        r->scope = make_scope(r, loop->outer);
        jassign(r, loop->node->kids[JFOR_TARGET], *v);
        bool passes = jv_truth(jeval(r, test));
        r->scope = scope;
        if (passes) break;
    }
    return found;
}

bool jloop_peek(jrender *r, jloop *loop) {
    if (!loop->peeked && !pull(r, loop, &loop->after)) loop->after = jv_missing();
    loop->peeked = true;
    return loop->after.kind != JV_MISSING;
}

size_t jloop_length(jrender *r, jloop *loop) {
    if (loop->length_known) return loop->length;
    if (loop->node->kids[JFOR_TEST] == NULL && jv_has_length(loop->it.of)) {
        loop->length = jv_length(&r->c, loop->it.of);
    } else { // the length needs counting; the rest is kept in a list
        jlist *rest = jlist_new(&r->c, 0);
        jval v;
        while (pull(r, loop, &v)) jlist_add(&r->c, rest, v);
        loop->length =
            loop->index0 + 1 + rest->n + (loop->peeked && loop->after.kind != JV_MISSING);
        loop->drained = true;
        jiter_init(&r->c, &loop->it, jv_list(rest));
    }
    loop->length_known = true;
    return loop->length;
}

static bool advance(jrender *r, jloop *loop, bool first) {
    jval v = loop->after;
    if (loop->peeked ? v.kind == JV_MISSING : !pull(r, loop, &v)) return false;
    loop->peeked = false;
    if (!first) {
        loop->index0++;
        loop->before = loop->current;
    }
    loop->current = v;
    return true;
}

static void run_loop(jrender *r, const jnode *node, jval over, size_t depth0) {
    jscope *outer = r->scope, *inner = make_scope(r, outer);
    jloop *loop = j_take(&r->c, sizeof *loop);
    bool first = true;
    *loop = (jloop){.node = node, .outer = outer, .depth0 = depth0};
    r->c.line = node->line;
    jiter_init(&r->c, &loop->it, over);
    for (; advance(r, loop, first); first = false) {
        if (!first) inner = reuse_scope(r, inner);
        r->scope = inner;
        scope_set(r, inner, JSYM_LOOP, (jval){.kind = JV_LOOP, .u.loop = loop});
        jassign(r, node->kids[JFOR_TARGET], loop->current);
        flow f = exec(r, node->kids[JFOR_BODY]);
        r->scope = outer;
        if (f == FLOW_BREAK) return;
    }
    if (first && node->kids[JFOR_ELSE] != NULL) {
        r->scope = make_scope(r, outer);
        exec(r, node->kids[JFOR_ELSE]);
        r->scope = outer;
    }
}

const jstr *jloop_recurse(jrender *r, jloop *loop, jval over) {
    capture c;
    if (!loop->node->flag)
        j_fail(&r->c, "the loop must have the 'recursive' marker to be called recursively");
    enter_call(r);
    capture_begin(r, &c, loop->outer);
    run_loop(r, loop->node, over, loop->depth0 + 1);
    r->calls--;
    return capture_end(r, &c);
}

/* ---- macros ---- */

static jval *find_keyword(const jcall *call, const jstr *name) {
    for (size_t i = 0; i < call->n_kw; i++)
        if (jstr_equal(call->kw[i].name, name)) return &call->kw[i].value;
    return NULL;
}

static bool is_param(jrender *r, const jmacro_def *def, const jstr *name) {
    for (size_t i = 0; i < def->n_params; i++)
        if (jstr_equal(r->ast->symbols[def->params[i]], name)) return true;
    return false;
}

/* Given arguments first, then the defaults in order: they may use other parameters. */
static void bind_params(jrender *r, const jmacro_def *def, const jcall *call) {
    size_t first_default = def->n_params - def->n_defaults;
    for (size_t i = 0; i < def->n_params; i++) {
        const jstr *name = r->ast->symbols[def->params[i]];
        const jval *keyword = find_keyword(call, name);
        jval v = jv_undefined_because(&r->c, "a parameter was not provided");
        if (keyword != NULL && i < call->n)
            j_fail(&r->c, "macro '%.*s' got multiple values for argument '%.*s'",
                   (int)size_min(def->name->n, 100), def->name->p, (int)size_min(name->n, 100),
                   name->p);
        if (i < call->n)
            v = call->pos[i];
        else if (keyword != NULL)
            v = *keyword;
        scope_set(r, r->scope, def->params[i], v);
    }
    for (size_t i = size_max(call->n, first_default); i < def->n_params; i++)
        if (find_keyword(call, r->ast->symbols[def->params[i]]) == NULL)
            scope_set(r, r->scope, def->params[i], jeval(r, def->defaults[i - first_default]));
}

/* The remaining arguments go to varargs, kwargs and caller, if the macro names them. */
static void bind_rest(jrender *r, const jmacro_def *def, const jcall *call) {
    jlist *varargs = jlist_new(&r->c, 0);
    jdict *kwargs = jdict_new(&r->c, 0);
    jval caller = jv_undefined_because(&r->c, "No caller defined");
    int n_name = (int)size_min(def->name->n, 100);
    for (size_t i = def->n_params; i < call->n; i++) jlist_add(&r->c, varargs, call->pos[i]);
    for (size_t i = 0; i < call->n_kw; i++) {
        const jstr *name = call->kw[i].name;
        if (is_param(r, def, name)) continue;
        if (jstr_is(name, "caller") && def->uses_caller)
            caller = call->kw[i].value;
        else if (def->uses_kwargs)
            jdict_set(&r->c, kwargs, jv_str(name), call->kw[i].value);
        else
            j_fail(&r->c, "macro '%.*s' takes no keyword argument '%.*s'", n_name, def->name->p,
                   (int)size_min(name->n, 100), name->p);
    }
    if (varargs->n > 0 && !def->uses_varargs)
        j_fail(&r->c, "macro '%.*s' takes not more than %zu argument(s)", n_name, def->name->p,
               def->n_params);
    if (def->uses_varargs) scope_set(r, r->scope, JSYM_VARARGS, jv_tuple(varargs));
    if (def->uses_kwargs) scope_set(r, r->scope, JSYM_KWARGS, jv_dict(kwargs));
    if (def->uses_caller && !is_param(r, def, r->ast->symbols[JSYM_CALLER]))
        scope_set(r, r->scope, JSYM_CALLER, caller);
}

const jstr *jmacro_call(jrender *r, const jmacro *macro, const jcall *call) {
    capture c;
    enter_call(r);
    capture_begin(r, &c, make_scope(r, macro->scope));
    bind_rest(r, macro->def, call);
    bind_params(r, macro->def, call);
    exec(r, macro->def->body);
    r->calls--;
    return capture_end(r, &c);
}

static jval make_macro(jrender *r, const jmacro_def *def) {
    jmacro *macro = j_take(&r->c, sizeof *macro);
    *macro = (jmacro){.def = def, .scope = r->scope};
    keep_scopes(r->scope);
    return (jval){.kind = JV_MACRO, .u.macro = macro};
}

static void exec_call_block(jrender *r, const jnode *node) {
    const jnode *call_node = node->kids[0];
    jval callee = jeval(r, call_node->kids[0]);
    jcall call = jeval_args(r, call_node->args);
    jkwarg *kw = j_take_array(&r->c, call.n_kw + 1, sizeof *kw);
    if (call.n_kw > 0) memcpy(kw, call.kw, call.n_kw * sizeof *kw);
    kw[call.n_kw++] = (jkwarg){r->ast->symbols[JSYM_CALLER], make_macro(r, node->macro)};
    call.kw = kw;
    jv_print(&r->c, r->out, jcall_value(r, callee, &call));
}

/* ---- the rest ---- */

static flow exec_if(jrender *r, const jnode *node) {
    for (size_t i = 0; i + 1 < node->n_kids; i += 2)
        if (jv_truth(jeval(r, node->kids[i]))) return exec(r, node->kids[i + 1]);
    return node->n_kids % 2 == 1 ? exec(r, node->kids[node->n_kids - 1]) : FLOW_NEXT;
}

static const jstr *exec_captured(jrender *r, const jnode *body) {
    capture c;
    capture_begin(r, &c, make_scope(r, r->scope));
    exec(r, body);
    return capture_end(r, &c);
}

static void exec_set_block(jrender *r, const jnode *node) {
    jval v = jv_str(exec_captured(r, node->kids[1]));
    if (node->kids[2] != NULL) v = jeval_filters(r, node->kids[2], v);
    jassign(r, node->kids[0], v);
}

static void exec_filter_block(jrender *r, const jnode *node) {
    jval v = jv_str(exec_captured(r, node->kids[1]));
    jv_print(&r->c, r->out, jeval_filters(r, node->kids[0], v));
}

static flow exec_with(jrender *r, const jnode *node) {
    jscope *outer = r->scope, *inner = make_scope(r, outer);
    for (size_t i = 1; i + 1 < node->n_kids; i += 2) {
        r->scope = outer; // the values are evaluated in the outer scope
        jval v = jeval(r, node->kids[i + 1]);
        r->scope = inner;
        jassign(r, node->kids[i], v);
    }
    r->scope = inner;
    flow f = exec(r, node->kids[0]);
    r->scope = outer;
    return f;
}

static void exec_generation(jrender *r, const jnode *node) {
    jscope *outer = r->scope;
    r->scope = make_scope(r, outer);
    exec(r, node->kids[0]);
    r->scope = outer;
}

static void exec_print(jrender *r, const jnode *node) {
    for (size_t i = 0; i < node->n_kids; i++) jv_print(&r->c, r->out, jeval(r, node->kids[i]));
}

static flow exec_body(jrender *r, const jnode *node) {
    flow f = FLOW_NEXT;
    for (size_t i = 0; i < node->n_kids && f == FLOW_NEXT; i++) f = exec(r, node->kids[i]);
    return f;
}

static flow exec(jrender *r, const jnode *node) {
    flow f = FLOW_NEXT;
    jnest_enter(r, node);
    switch ((jnode_kind)node->kind) {
    case JN_BODY:
        f = exec_body(r, node);
        break;
    case JN_TEXT:
        jv_print(&r->c, r->out, node->value);
        break;
    case JN_PRINT:
        exec_print(r, node);
        break;
    case JN_IF:
        f = exec_if(r, node);
        break;
    case JN_FOR:
        run_loop(r, node, jeval(r, node->kids[JFOR_OVER]), 0);
        break;
    case JN_SET:
        jassign(r, node->kids[0], jeval(r, node->kids[1]));
        break;
    case JN_SET_BLOCK:
        exec_set_block(r, node);
        break;
    case JN_MACRO:
        scope_set(r, r->scope, node->id, make_macro(r, node->macro));
        break;
    case JN_CALL_BLOCK:
        exec_call_block(r, node);
        break;
    case JN_FILTER_BLOCK:
        exec_filter_block(r, node);
        break;
    case JN_WITH:
        f = exec_with(r, node);
        break;
    case JN_GENERATION:
        exec_generation(r, node);
        break;
    case JN_BREAK:
        f = FLOW_BREAK;
        break;
    case JN_CONTINUE:
        f = FLOW_CONTINUE;
        break;
    default:
        INFERD_CHECK(!"a statement");
    }
    r->nest--;
    return f;
}

void jexec_template(jrender *r) {
    exec(r, r->ast->root);
}
