/* The tests of `is`. */
#include "chat/interp.h"
#include "chat/letters.h"

static bool is_defined(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind != JV_UNDEFINED;
}
static bool is_undefined(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_UNDEFINED;
}
static bool is_none(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_NONE;
}
static bool is_boolean(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_BOOL;
}
static bool is_true(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_BOOL && v.u.b;
}
static bool is_false(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_BOOL && !v.u.b;
}
static bool is_integer(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_INT || v.kind == JV_WIDE;
}
static bool is_float(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_FLOAT;
}
static bool is_number(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return jv_is_number(v) || v.kind == JV_WIDE;
}
static bool is_string(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_STR;
}
static bool is_mapping(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_DICT;
}
static bool is_sequence(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call; // has a length and subscripts: views have none
    return jv_has_length(v) && v.kind != JV_VIEW;
}
static bool is_iterable(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return jv_iterable(v) || v.kind == JV_LOOP;
}
static bool is_callable(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_MACRO || v.kind == JV_METHOD || v.kind == JV_FUNCTION ||
           v.kind == JV_LOOP || v.kind == JV_UNDEFINED;
}
static bool is_escaped(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_STR && v.u.s->markup;
}

/* All letters with a case have this one, and there is at least one. */
static bool has_case(jrender *r, jval v, bool upper) {
    const jstr *s = jv_to_str(&r->c, v);
    bool any = false;
    size_t n;
    j_charge(&r->c, s->n / 8);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        if (upper ? letter_is_lower(cp) : letter_is_upper(cp)) return false;
        any |= upper ? letter_is_upper(cp) : letter_is_lower(cp);
    }
    return any;
}
static bool is_upper(jrender *r, jval v, const jcall *call) {
    (void)call;
    return has_case(r, v, true);
}
static bool is_lower(jrender *r, jval v, const jcall *call) {
    (void)call;
    return has_case(r, v, false);
}

static bool rest_is(jrender *r, jval v, int64_t by, int64_t rest) {
    return jv_equal(&r->c, jop_arith(r, JOP_MOD, v, jv_int(by)), jv_int(rest));
}
static bool is_odd(jrender *r, jval v, const jcall *call) {
    (void)call;
    return rest_is(r, v, 2, 1);
}
static bool is_even(jrender *r, jval v, const jcall *call) {
    (void)call;
    return rest_is(r, v, 2, 0);
}
static bool is_divisibleby(jrender *r, jval v, const jcall *call) {
    jval num;
    jcall_bind(r, call, "divisibleby", "num", &num);
    return jv_equal(&r->c, jop_arith(r, JOP_MOD, v, num), jv_int(0));
}

static bool is_sameas(jrender *r, jval v, const jcall *call) {
    jval other;
    jcall_bind(r, call, "sameas", "other", &other);
    if (v.kind != other.kind) return false;
    if (v.kind <= JV_STR) return jv_equal(&r->c, v, other);
    return v.u.dict == other.u.dict; // any pointer of the union works
}

static bool is_filter(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_STR && jfilter_find(v.u.s) != NULL;
}
static bool is_test(jrender *r, jval v, const jcall *call) {
    (void)r, (void)call;
    return v.kind == JV_STR && jtest_find(v.u.s) != NULL;
}

static bool compare(jrender *r, jval v, const jcall *call, int op, const char *what) {
    jval other;
    jcall_bind(r, call, what, "other", &other);
    return jop_compare(r, op, v, other);
}
static bool is_eq(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_EQ, "eq");
}
static bool is_ne(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_NE, "ne");
}
static bool is_lt(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_LT, "lt");
}
static bool is_le(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_LE, "le");
}
static bool is_gt(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_GT, "gt");
}
static bool is_ge(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_GE, "ge");
}
static bool is_in(jrender *r, jval v, const jcall *call) {
    return compare(r, v, call, JOP_IN, "in");
}

static const jtest tests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"integer", is_integer},
    {"float", is_float},
    {"number", is_number},
    {"string", is_string},
    {"mapping", is_mapping},
    {"sequence", is_sequence},
    {"iterable", is_iterable},
    {"callable", is_callable},
    {"escaped", is_escaped},
    {"upper", is_upper},
    {"lower", is_lower},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisibleby},
    {"sameas", is_sameas},
    {"filter", is_filter},
    {"test", is_test},
    {"in", is_in},
    {"eq", is_eq},
    {"==", is_eq},
    {"equalto", is_eq},
    {"ne", is_ne},
    {"!=", is_ne},
    {"lt", is_lt},
    {"<", is_lt},
    {"lessthan", is_lt},
    {"le", is_le},
    {"<=", is_le},
    {"gt", is_gt},
    {">", is_gt},
    {"greaterthan", is_gt},
    {"ge", is_ge},
    {">=", is_ge},
};

const jtest *jtest_find(const jstr *name) {
    for (size_t i = 0; i < INFERD_COUNT(tests); i++)
        if (jstr_is(name, tests[i].name)) return &tests[i];
    return NULL;
}

bool jtest_run(jrender *r, const jstr *name, jval v, const jcall *call) {
    const jtest *test = jtest_find(name);
    if (test == NULL) j_fail(&r->c, "no test named '%.*s'", (int)size_min(name->n, 100), name->p);
    return test->run(r, v, call);
}
