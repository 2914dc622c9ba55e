/* Arithmetic and comparison as in Python.  Integers have 64 bits; larger ones are an error. */
#include <math.h>

#include "chat/interp.h"

static const char *op_text(int op) {
    static const char *const texts[] = {
        [JOP_EQ] = "==",       [JOP_NE] = "!=", [JOP_LT] = "<",   [JOP_LE] = "<=",
        [JOP_GT] = ">",        [JOP_GE] = ">=", [JOP_IN] = "in",  [JOP_NOT_IN] = "not in",
        [JOP_ADD] = "+",       [JOP_SUB] = "-", [JOP_MUL] = "*",  [JOP_DIV] = "/",
        [JOP_FLOORDIV] = "//", [JOP_MOD] = "%", [JOP_POW] = "**",
    };
    return texts[op];
}

static _Noreturn void unsupported(jrender *r, int op, jval a, jval b) {
    if (op == JOP_ADD && a.kind == JV_STR)
        j_fail(&r->c, "can only concatenate str (not \"%s\") to str", jv_type_name(b));
    j_fail(&r->c, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op), jv_type_name(a),
           jv_type_name(b));
}

static _Noreturn void overflow(jrender *r) {
    j_fail(&r->c, "an integer of more than 64 bits");
}

static int64_t floor_div(jrender *r, int64_t a, int64_t b) {
    if (b == 0) j_fail(&r->c, "integer division or modulo by zero");
    if (a == INT64_MIN && b == -1) overflow(r);
    int64_t q = a / b;
    return a % b != 0 && (a % b < 0) != (b < 0) ? q - 1 : q;
}

static int64_t power(jrender *r, int64_t base, int64_t exponent) {
    int64_t result = 1;
    if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    for (; exponent > 0; exponent--) // at most 63 times: |base| > 1
        if (__builtin_mul_overflow(result, base, &result)) overflow(r);
    return result;
}

static double float_mod(double a, double b) {
    double rest = fmod(a, b);
    if (rest == 0) return copysign(0.0, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
}

static jval float_arith(jrender *r, int op, double a, double b) {
    if (b == 0 && (op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD))
        j_fail(&r->c, "%s by zero", op == JOP_MOD ? "float modulo" : "float division");
    switch (op) {
    case JOP_ADD:
        return jv_float(a + b);
    case JOP_SUB:
        return jv_float(a - b);
    case JOP_MUL:
        return jv_float(a * b);
    case JOP_DIV:
        return jv_float(a / b);
    case JOP_FLOORDIV: {
        double rest = float_mod(a, b), whole = (a - rest) / b, down = floor(whole);
        return jv_float(whole - down > 0.5 ? down + 1 : down);
    }
    case JOP_MOD:
        return jv_float(float_mod(a, b));
    default:
        if (a == 0 && b < 0) j_fail(&r->c, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b)) j_fail(&r->c, "a complex number");
        return jv_float(pow(a, b));
    }
}

static jval int_arith(jrender *r, int op, int64_t a, int64_t b) {
    int64_t result = 0;
    switch (op) {
    case JOP_ADD:
        if (__builtin_add_overflow(a, b, &result)) overflow(r);
        return jv_int(result);
    case JOP_SUB:
        if (__builtin_sub_overflow(a, b, &result)) overflow(r);
        return jv_int(result);
    case JOP_MUL:
        if (__builtin_mul_overflow(a, b, &result)) overflow(r);
        return jv_int(result);
    case JOP_DIV:
        if (b == 0) j_fail(&r->c, "division by zero");
        return jv_float((double)a / (double)b);
    case JOP_FLOORDIV:
        return jv_int(floor_div(r, a, b));
    case JOP_MOD:
        if (b == -1) return jv_int(0); // INT64_MIN % -1 traps
        return jv_int(a - floor_div(r, a, b) * b);
    default:
        if (b < 0) return float_arith(r, op, (double)a, (double)b);
        return jv_int(power(r, a, b));
    }
}

static jval repeat_list(jrender *r, jval list, int64_t times) {
    const jlist *items = list.u.list;
    size_t n = 0;
    if (times > 0 && !size_mul(items->n, (size_t)times, &n)) n = SIZE_MAX / sizeof(jval);
    j_charge(&r->c, n / 8);
    jlist *out = jlist_new(&r->c, n);
    while (out->n < n)
        for (size_t i = 0; i < items->n; i++) out->items[out->n++] = items->items[i];
    return (jval){.kind = list.kind, .u.list = out};
}

static jval join_lists(jrender *r, jval a, jval b) {
    jlist *out = jlist_new(&r->c, a.u.list->n + b.u.list->n);
    j_charge(&r->c, out->capacity / 8);
    for (size_t i = 0; i < a.u.list->n; i++) out->items[out->n++] = a.u.list->items[i];
    for (size_t i = 0; i < b.u.list->n; i++) out->items[out->n++] = b.u.list->items[i];
    return (jval){.kind = a.kind, .u.list = out};
}

static jval add_text(jrender *r, const jstr *a, const jstr *b) {
    bool markup = a->markup || b->markup;
    if (markup && !a->markup) a = jstr_escape(&r->c, a);
    if (markup && !b->markup) b = jstr_escape(&r->c, b);
    j_charge_bytes(&r->c, b->n);
    return jv_str(jstr_concat(&r->c, a, b, markup));
}

static bool is_sequence(jval v) {
    return v.kind == JV_STR || v.kind == JV_LIST || v.kind == JV_TUPLE;
}

static jval repeat(jrender *r, jval what, int64_t times) {
    if (what.kind == JV_STR) return jv_str(jstr_repeat(&r->c, what.u.s, times));
    return repeat_list(r, what, times);
}

jval jop_arith(jrender *r, int op, jval a, jval b) {
    if (op == JOP_MOD && a.kind == JV_STR) return jv_str(jformat_percent(r, a.u.s, b));
    if (a.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, a);
    if (b.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, b);
    if (jv_is_number(a) && jv_is_number(b)) {
        bool whole = a.kind != JV_FLOAT && b.kind != JV_FLOAT;
        jval result = whole ? int_arith(r, op, jv_integer(a), jv_integer(b))
                            : float_arith(r, op, jv_double(a), jv_double(b));
        return jv_with_mark(result, jv_mark(a.foreign ? a : b));
    }
    if (op == JOP_ADD && a.kind == JV_STR && b.kind == JV_STR) return add_text(r, a.u.s, b.u.s);
    if (op == JOP_ADD && a.kind == b.kind && is_sequence(a)) return join_lists(r, a, b);
    if (op == JOP_MUL && is_sequence(a) && jv_is_integer(b)) return repeat(r, a, jv_integer(b));
    if (op == JOP_MUL && is_sequence(b) && jv_is_integer(a)) return repeat(r, b, jv_integer(a));
    unsupported(r, op, a, b);
}

bool jop_compare(jrender *r, int op, jval a, jval b) {
    if (op == JOP_EQ) return jv_equal(&r->c, a, b);
    if (op == JOP_NE) return !jv_equal(&r->c, a, b);
    if (op == JOP_IN) return jv_contains(&r->c, b, a);
    if (op == JOP_NOT_IN) return !jv_contains(&r->c, b, a);
    int order = jv_compare(&r->c, a, b, op_text(op));
    if (order == 2) return false;
    return op == JOP_LT   ? order < 0
           : op == JOP_LE ? order <= 0
           : op == JOP_GT ? order > 0
                          : order >= 0;
}

jval jop_negate(jrender *r, jval v) {
    jval result = jv_float(-v.u.f);
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    if (!jv_is_number(v)) j_fail(&r->c, "bad operand type for unary -: '%s'", jv_type_name(v));
    if (v.kind != JV_FLOAT) result = int_arith(r, JOP_SUB, 0, jv_integer(v));
    return jv_with_mark(result, jv_mark(v));
}

jval jop_plus(jrender *r, jval v) {
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    if (!jv_is_number(v)) j_fail(&r->c, "bad operand type for unary +: '%s'", jv_type_name(v));
    if (v.kind == JV_BOOL) return jv_with_mark(jv_int(v.u.b), jv_mark(v));
    return v;
}
