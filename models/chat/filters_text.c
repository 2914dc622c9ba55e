/* Filters that give text or a number. */
#include <math.h>

#include "chat/interp.h"
#include "chat/letters.h"

static jval run_upper(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "upper", "", NULL);
    return jv_str(jtext_upper(&r->c, jv_soft_str(&r->c, v)));
}

static jval run_lower(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "lower", "", NULL);
    return jv_str(jtext_lower(&r->c, jv_soft_str(&r->c, v)));
}

static jval run_capitalize(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "capitalize", "", NULL);
    return jv_str(jtext_capitalize(&r->c, jv_soft_str(&r->c, v)));
}

/* A word begins behind white space, '-' and opening brackets; its first letter is put in upper
 * case, the rest in lower. */
static jval run_title(jrender *r, jval v, const jcall *call) {
    jbuf b;
    size_t n;
    bool in_word = false;
    jcall_bind(r, call, "title", "", NULL);
    const jstr *s = jv_soft_str(&r->c, v);
    jbuf_init(&b, &r->c, 0);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        const jstr *letter = jstr_slice(&r->c, s, i, i + n);
        bool gap = letter_is_space(cp) || (cp < 0x80 && cp != 0 && strchr("-({[<", (int)cp));
        jbuf_add_str(&b, gap       ? letter
                         : in_word ? jtext_lower(&r->c, letter)
                                   : jtext_upper(&r->c, letter));
        in_word = !gap;
        j_charge(&r->c, 1);
    }
    return jv_str(jbuf_str(&b, false));
}

static jval run_trim(jrender *r, jval v, const jcall *call) {
    jval chars;
    jcall_bind(r, call, "trim", "chars?", &chars);
    return jv_str(
        jstr_strip(&r->c, jv_soft_str(&r->c, v), jarg_str_or(r, chars, "trim", NULL), JSTRIP_BOTH));
}

static jval run_replace(jrender *r, jval v, const jcall *call) {
    jval a[3];
    jcall_bind(r, call, "replace", "old new count?", a);
    int64_t max = jarg_int_or(r, a[2], "replace", -1);
    return jv_str(jstr_with_markup(&r->c,
                                   jstr_replace(&r->c, jv_to_str(&r->c, v), jv_to_str(&r->c, a[0]),
                                                jv_to_str(&r->c, a[1]), max),
                                   false));
}

static jval run_string(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "string", "", NULL);
    return jv_str(jv_soft_str(&r->c, v));
}

static jval run_safe(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "safe", "", NULL);
    return jv_str(jstr_with_markup(&r->c, jv_soft_str(&r->c, v), true));
}

static jval run_escape(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "escape", "", NULL);
    return jv_str(jstr_escape(&r->c, jv_soft_str(&r->c, v)));
}

static jval run_forceescape(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "forceescape", "", NULL);
    return jv_str(jstr_escape(&r->c, jv_to_str(&r->c, v)));
}

static jval run_format(jrender *r, jval v, const jcall *call) {
    if (call->n > 0 && call->n_kw > 0)
        j_fail(&r->c, "format: can't handle positional and keyword arguments at the same time");
    if (call->n_kw == 0) {
        jlist args = {.items = call->pos, .n = call->n};
        return jv_str(jformat_percent(r, jv_soft_str(&r->c, v), jv_tuple(&args)));
    }
    jdict *d = jdict_new(&r->c, call->n_kw);
    for (size_t i = 0; i < call->n_kw; i++)
        jdict_set(&r->c, d, jv_str(call->kw[i].name), call->kw[i].value);
    return jv_str(jformat_percent(r, jv_soft_str(&r->c, v), jv_dict(d)));
}

static jval run_center(jrender *r, jval v, const jcall *call) {
    jval width;
    jcall_bind(r, call, "center", "width?", &width);
    return jv_str(jtext_pad(r, jv_soft_str(&r->c, v), jarg_int_or(r, width, "center", 80), '^',
                            jstr_lit(&r->c, " ")));
}

static jval run_indent(jrender *r, jval v, const jcall *call) {
    jval a[3];
    jbuf b;
    jcall_bind(r, call, "indent", "width? first? blank?", a);
    const jstr *s = jarg_str(r, v, "indent"), *space = jstr_lit(&r->c, " ");
    const jstr *indent = a[0].kind == JV_STR
                             ? a[0].u.s
                             : jstr_repeat(&r->c, space, jarg_int_or(r, a[0], "indent", 4));
    jlist *lines =
        jtext_lines(&r->c, jstr_concat(&r->c, s, jstr_lit(&r->c, "\n"), s->markup), false);
    jbuf_init(&b, &r->c, 0);
    for (size_t i = 0; i < lines->n; i++) {
        const jstr *line = lines->items[i].u.s;
        bool wanted = i == 0 ? jarg_true(a[1]) : jarg_true(a[2]) || line->n > 0;
        if (i > 0) jbuf_add_text(&b, "\n", JMARK_TEMPLATE);
        if (wanted) jbuf_add_str(&b, indent);
        jbuf_add_str(&b, line);
    }
    return jv_str(jbuf_str(&b, s->markup));
}

static jval run_truncate(jrender *r, jval v, const jcall *call) {
    jval a[4];
    jcall_bind(r, call, "truncate", "length? killwords? end? leeway?", a);
    const jstr *end = jarg_str_or(r, a[2], "truncate", "...");
    int64_t length = jarg_int_or(r, a[0], "truncate", 255);
    int64_t leeway = jarg_int_or(r, a[3], "truncate", 5);
    int64_t n_end = (int64_t)jstr_length(&r->c, end);
    if (length < n_end)
        j_fail(&r->c, "truncate: expected a length of at least %lld", (long long)n_end);
    if (leeway < 0 || leeway > INT32_MAX) j_fail(&r->c, "truncate: bad leeway");
    if (length > INT32_MAX || (int64_t)jv_length(&r->c, v) <= length + leeway) return v;
    const jstr *s = jarg_str(r, v, "truncate");
    size_t to = jstr_offset(&r->c, s, (size_t)(length - n_end));
    if (!jarg_true(a[1])) {
        size_t space = jstr_rfind(&r->c, s, jstr_lit(&r->c, " "), 0, to);
        if (space != SIZE_MAX) to = space;
    }
    return jv_str(jstr_concat(&r->c, jstr_slice(&r->c, s, 0, to), end, s->markup));
}

static jval run_wordcount(jrender *r, jval v, const jcall *call) {
    int64_t count = 0;
    size_t n;
    bool in_word = false;
    jcall_bind(r, call, "wordcount", "", NULL);
    const jstr *s = jv_soft_str(&r->c, v);
    j_charge(&r->c, s->n / 8);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        bool word = cp == '_' || letter_is_alnum(cp);
        count += word && !in_word;
        in_word = word;
    }
    return jv_int(count);
}

static jval run_default(jrender *r, jval v, const jcall *call) {
    jval a[2];
    jcall_bind(r, call, "default", "default_value? boolean?", a);
    bool missing = v.kind == JV_UNDEFINED || (jarg_true(a[1]) && !jv_truth(v));
    if (!missing) return v;
    return a[0].kind == JV_MISSING ? jv_str(&jstr_empty) : a[0];
}

static bool float_to_int(double f, int64_t *out) {
    if (!(f > -9223372036854775808.0 && f < 9223372036854775808.0)) return false;
    *out = (int64_t)f;
    return true;
}

static jval run_int(jrender *r, jval v, const jcall *call) {
    jval a[2], result = jv_int(0);
    double f = 0;
    jcall_bind(r, call, "int", "default? base?", a);
    int64_t base = jarg_int_or(r, a[1], "int", 10);
    if (base != 0 && (base < 2 || base > 36)) j_fail(&r->c, "int: bad base");
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    bool done = false;
    if (v.kind == JV_WIDE) return v;
    if (jv_is_integer(v))
        result.u.i = jv_integer(v), done = true;
    else if (v.kind == JV_FLOAT)
        done = float_to_int(v.u.f, &result.u.i);
    else if (v.kind == JV_STR)
        done = jtext_to_int(v.u.s, (int)base, &result.u.i) ||
               (jtext_to_float(v.u.s, &f) && float_to_int(f, &result.u.i));
    if (!done) return a[0].kind == JV_MISSING ? jv_int(0) : a[0];
    return jv_with_mark(result, jv_mark(v));
}

static jval run_float(jrender *r, jval v, const jcall *call) {
    jval otherwise, result = jv_float(0);
    jcall_bind(r, call, "float", "default?", &otherwise);
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    bool done = jv_is_number(v);
    if (done)
        result.u.f = jv_double(v);
    else if (v.kind == JV_STR || v.kind == JV_WIDE)
        done = jtext_to_float(v.u.s, &result.u.f);
    if (!done) return otherwise.kind == JV_MISSING ? jv_float(0) : otherwise;
    return jv_with_mark(result, jv_mark(v));
}

static jval run_abs(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "abs", "", NULL);
    if (!jv_is_number(v)) {
        if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
        j_fail(&r->c, "bad operand type for abs(): '%s'", jv_type_name(v));
    }
    if (v.kind == JV_FLOAT) {
        v.u.f = fabs(v.u.f);
        return v;
    }
    return jv_integer(v) < 0 ? jop_negate(r, v) : jop_plus(r, v);
}

/* Correctly rounded, halves to even, like Python's round() and printf. */
static double round_decimal(double f, int64_t precision) {
    char text[400];
    if (!isfinite(f) || precision > 300) return f;
    if (precision < 0) {
        double scale = pow(10, (double)-precision);
        return isfinite(scale) ? rint(f / scale) * scale : copysign(0, f);
    }
    int n = snprintf(text, sizeof text, "%.*f", (int)precision, f);
    return n > 0 && (size_t)n < sizeof text ? strtod(text, NULL) : f; // too long: nothing to round
}

static jval run_round(jrender *r, jval v, const jcall *call) {
    jval a[2], result;
    jcall_bind(r, call, "round", "precision? method?", a);
    int64_t precision = jarg_int_or(r, a[0], "round", 0);
    const jstr *method = jarg_str_or(r, a[1], "round", "common");
    if (v.kind == JV_UNDEFINED) jv_fail_undefined(&r->c, v);
    if (!jv_is_number(v)) j_fail(&r->c, "round: expected a number, got '%s'", jv_type_name(v));
    if (jstr_is(method, "common")) {
        if (v.kind != JV_FLOAT && precision >= 0) return jop_plus(r, v);
        result = jv_float(round_decimal(jv_double(v), precision));
        if (v.kind != JV_FLOAT) result = jv_int((int64_t)result.u.f);
    } else {
        bool up = jstr_is(method, "ceil");
        if (!up && !jstr_is(method, "floor"))
            j_fail(&r->c, "round: method must be common, ceil or floor");
        double scale = pow(10, (double)precision), scaled = jv_double(v) * scale;
        if (!isfinite(scaled)) j_fail(&r->c, "round: cannot convert float to integer");
        result = jv_float((up ? ceil(scaled) : floor(scaled)) / scale);
    }
    return jv_with_mark(result, jv_mark(v));
}

static jval run_length(jrender *r, jval v, const jcall *call) {
    jcall_bind(r, call, "length", "", NULL);
    return jv_int((int64_t)jv_length(&r->c, v));
}

static const jstr *indent_of(jrender *r, jval v) {
    if (v.kind == JV_MISSING || v.kind == JV_NONE) return NULL;
    if (v.kind == JV_STR) return v.u.s;
    return jstr_repeat(&r->c, jstr_new(&r->c, " ", 1, JMARK_REQUEST), jarg_int(r, v, "tojson"));
}

static jval run_tojson(jrender *r, jval v, const jcall *call) {
    jval a[4];
    jbuf b;
    jcall_bind(r, call, "tojson", "ensure_ascii? indent? separators? sort_keys?", a);
    /* Python refuses to, but templates written for other Jinjas do so, whose map() gives lists. */
    if (v.kind == JV_GENERATOR) v = jv_list(jv_to_list(&r->c, v));
    jjson_style style = {.ascii = jarg_true(a[0]), .sort_keys = jarg_true(a[3])};
    style.indent = indent_of(r, a[1]);
    // punctuation is data too: it never completes a special token
    style.item_separator = jstr_new(&r->c, ", ", style.indent != NULL ? 1 : 2, JMARK_REQUEST);
    style.key_separator = jstr_new(&r->c, ": ", 2, JMARK_REQUEST);
    if (a[2].kind == JV_TUPLE || a[2].kind == JV_LIST) {
        if (a[2].u.list->n != 2) j_fail(&r->c, "tojson: expected two separators");
        style.item_separator = jarg_str(r, a[2].u.list->items[0], "tojson");
        style.key_separator = jarg_str(r, a[2].u.list->items[1], "tojson");
    } else if (a[2].kind != JV_MISSING && a[2].kind != JV_NONE) {
        j_fail(&r->c, "tojson: expected a tuple of separators");
    }
    jbuf_init(&b, &r->c, 0);
    jv_print_json(&r->c, &b, v, &style);
    return jv_str(jbuf_str(&b, false));
}

const jfilter jfilters_text[] = {
    {"upper", run_upper},
    {"lower", run_lower},
    {"capitalize", run_capitalize},
    {"title", run_title},
    {"trim", run_trim},
    {"replace", run_replace},
    {"string", run_string},
    {"safe", run_safe},
    {"escape", run_escape},
    {"e", run_escape},
    {"forceescape", run_forceescape},
    {"format", run_format},
    {"center", run_center},
    {"indent", run_indent},
    {"truncate", run_truncate},
    {"wordcount", run_wordcount},
    {"default", run_default},
    {"d", run_default},
    {"int", run_int},
    {"float", run_float},
    {"abs", run_abs},
    {"round", run_round},
    {"length", run_length},
    {"count", run_length},
    {"tojson", run_tojson},
};
const size_t jfilters_text_n = INFERD_COUNT(jfilters_text);
