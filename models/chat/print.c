#include "chat/print.h"

#include <math.h>

#include "chat/interp.h"
#include "chat/letters.h"

static void check_depth(jctx *c, int depth) {
    if (depth > JVALUE_DEPTH_MAX) j_limit(c, "data nested deeper than %d", JVALUE_DEPTH_MAX);
}

/* The shortest decimal digits that give `f` back, and the exponent of the first one. */
static int find_digits(double f, char digits[20], int *exponent) {
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (precision == 16 || strtod(text, NULL) == f) break;
    }
    int n = 0;
    const char *p = text;
    for (; *p != 0 && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p; // skips the decimal point of any locale
    *exponent = atoi(p + 1);
    while (n > 1 && digits[n - 1] == '0') n--;
    return n;
}

size_t jfloat_print(double f, char out[JFLOAT_BYTES]) {
    char digits[20] = "0";
    int exponent;
    if (isnan(f)) return (size_t)snprintf(out, JFLOAT_BYTES, "nan");
    if (isinf(f)) return (size_t)snprintf(out, JFLOAT_BYTES, "%s", f < 0 ? "-inf" : "inf");
    char *p = out;
    if (signbit(f)) *p++ = '-';
    if (f == 0) return (size_t)(p - out) + (size_t)snprintf(p, 8, "0.0");
    int n = find_digits(fabs(f), digits, &exponent);
    if (exponent < -4 || exponent >= 16) {
        *p++ = digits[0];
        if (n > 1) *p++ = '.';
        for (int i = 1; i < n; i++) *p++ = digits[i];
        p += snprintf(p, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        *p++ = '0';
        *p++ = '.';
        for (int i = -1; i > exponent; i--) *p++ = '0';
        for (int i = 0; i < n; i++) *p++ = digits[i];
    } else {
        for (int i = 0; i <= exponent; i++) *p++ = i < n ? digits[i] : '0';
        *p++ = '.';
        for (int i = exponent + 1; i < n; i++) *p++ = digits[i];
        if (exponent + 1 >= n) *p++ = '0';
    }
    *p = 0;
    return (size_t)(p - out);
}

static void print_scalar(jbuf *b, jval v) {
    char text[JFLOAT_BYTES];
    switch ((jkind)v.kind) {
    case JV_NONE:
        jbuf_add_text(b, "None", jv_mark(v));
        break;
    case JV_BOOL:
        jbuf_add_text(b, v.u.b ? "True" : "False", jv_mark(v));
        break;
    case JV_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        jbuf_add_text(b, text, jv_mark(v));
        break;
    case JV_WIDE:
        jbuf_add(b, v.u.s->p, v.u.s->n, jv_mark(v));
        break;
    default:
        jbuf_add(b, text, jfloat_print(v.u.f, text), jv_mark(v));
        break;
    }
}

/* Of the quotes around a text: never JMARK_TEMPLATE. */
static jmark quote_mark(const jstr *s) {
    jmark mark = s->n > 0 ? jstr_mark_at(s, 0) : s->mark;
    return mark != JMARK_TEMPLATE ? mark : JMARK_REQUEST;
}

static void repr_str(jctx *c, jbuf *b, const jstr *s) {
    char escaped[16];
    jmark mark = quote_mark(s);
    bool single = memchr(s->p, '\'', s->n) != NULL, twice = memchr(s->p, '"', s->n) != NULL;
    char quote = single && !twice ? '"' : '\'';
    j_charge_bytes(c, s->n);
    if (s->markup) jbuf_add_text(b, "Markup(", mark);
    jbuf_add(b, &quote, 1, mark);
    size_t done = 0, n;
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        if (cp == '\n')
            strcpy(escaped, "\\n");
        else if (cp == '\r')
            strcpy(escaped, "\\r");
        else if (cp == '\t')
            strcpy(escaped, "\\t");
        else if (cp == '\\' || cp == (unsigned char)quote)
            snprintf(escaped, sizeof escaped, "\\%c", (char)cp);
        else if (letter_is_shown(cp))
            continue;
        else if (cp < 0x100)
            snprintf(escaped, sizeof escaped, "\\x%02x", cp);
        else if (cp < 0x10000)
            snprintf(escaped, sizeof escaped, "\\u%04x", cp);
        else
            snprintf(escaped, sizeof escaped, "\\U%08x", cp);
        jbuf_add_slice(b, s, done, i);
        jbuf_add_text(b, escaped, jstr_mark_at(s, i));
        done = i + n;
    }
    jbuf_add_slice(b, s, done, s->n);
    jbuf_add(b, &quote, 1, mark);
    if (s->markup) jbuf_add_text(b, ")", mark);
}

static void repr(jctx *c, jbuf *b, jval v, int depth);

static void repr_items(jctx *c, jbuf *b, const jlist *list, const char *open, const char *close,
                       jmark mark, int depth) {
    jbuf_add_text(b, open, mark);
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) jbuf_add_text(b, ", ", mark);
        repr(c, b, list->items[i], depth + 1);
    }
    jbuf_add_text(b, close, mark);
}

static void repr_dict(jctx *c, jbuf *b, const jdict *d, jmark mark, int depth) {
    jbuf_add_text(b, "{", mark);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) jbuf_add_text(b, ", ", mark);
        repr(c, b, d->pairs[i].key, depth + 1);
        jbuf_add_text(b, ": ", mark);
        repr(c, b, d->pairs[i].value, depth + 1);
    }
    jbuf_add_text(b, "}", mark);
}

static void repr_range(jbuf *b, const jrange *r) {
    char text[96];
    int64_t stop = r->start + (int64_t)r->n * r->step;
    if (r->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)stop,
                 (long long)r->step);
    jbuf_add_text(b, text, JMARK_REQUEST);
}

static void repr(jctx *c, jbuf *b, jval v, int depth) {
    check_depth(c, depth);
    j_charge(c, 1);
    switch ((jkind)v.kind) {
    case JV_NONE:
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
    case JV_WIDE:
        print_scalar(b, v);
        break;
    case JV_STR:
        repr_str(c, b, v.u.s);
        break;
    case JV_UNDEFINED:
        jbuf_add_text(b, "Undefined", JMARK_REQUEST);
        break;
    case JV_LIST:
        repr_items(c, b, v.u.list, "[", "]", v.mark, depth);
        break;
    case JV_TUPLE:
        repr_items(c, b, v.u.list, "(", v.u.list->n == 1 ? ",)" : ")", v.mark, depth);
        break;
    case JV_DICT:
        repr_dict(c, b, v.u.dict, v.mark, depth);
        break;
    case JV_RANGE:
        repr_range(b, v.u.range);
        break;
    case JV_VIEW:
        jbuf_add_text(b, jv_type_name(v), JMARK_REQUEST);
        repr_items(c, b, jv_to_list(c, v), "([", "])", v.mark, depth);
        break;
    case JV_NAMESPACE:
        jbuf_add_text(b, "<Namespace ", JMARK_REQUEST);
        repr_dict(c, b, v.u.dict, v.mark, depth);
        jbuf_add_text(b, ">", JMARK_REQUEST);
        break;
    case JV_GENERATOR:
        jbuf_add_text(b, "<generator object ", JMARK_REQUEST);
        jbuf_add_text(b, v.u.gen->name, JMARK_REQUEST);
        jbuf_add_text(b, ">", JMARK_REQUEST);
        break;
    case JV_MACRO:
        jbuf_add_text(b, "<Macro ", JMARK_REQUEST);
        repr_str(c, b, v.u.macro->def->name);
        jbuf_add_text(b, ">", JMARK_REQUEST);
        break;
    default:
        jbuf_add_text(b, "<", JMARK_REQUEST);
        jbuf_add_text(b, jv_type_name(v), JMARK_REQUEST);
        jbuf_add_text(b, ">", JMARK_REQUEST);
        break;
    }
}

void jv_print_repr(jctx *c, jbuf *b, jval v) {
    repr(c, b, v, 0);
}

void jv_print(jctx *c, jbuf *b, jval v) {
    if (v.kind == JV_STR) {
        j_charge_bytes(c, v.u.s->n);
        jbuf_add_str(b, v.u.s);
    } else if (v.kind != JV_UNDEFINED)
        repr(c, b, v, 0);
}

const jstr *jv_soft_str(jctx *c, jval v) {
    jbuf b;
    if (v.kind == JV_STR) return v.u.s;
    jbuf_init(&b, c, 0);
    jv_print(c, &b, v);
    return jbuf_str(&b, false);
}

const jstr *jv_to_str(jctx *c, jval v) {
    return jstr_with_markup(c, jv_soft_str(c, v), false);
}

static void json_escape(jbuf *b, uint32_t cp, jmark mark) {
    char text[16];
    const char *known = cp == '"'    ? "\\\""
                        : cp == '\\' ? "\\\\"
                        : cp == '\n' ? "\\n"
                        : cp == '\r' ? "\\r"
                        : cp == '\t' ? "\\t"
                        : cp == '\f' ? "\\f"
                        : cp == '\b' ? "\\b"
                                     : NULL;
    if (known != NULL) {
        jbuf_add_text(b, known, mark);
        return;
    }
    if (cp >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
    else
        snprintf(text, sizeof text, "\\u%04x", cp);
    jbuf_add_text(b, text, mark);
}

static void json_str(jctx *c, jbuf *b, const jstr *s, bool ascii) {
    size_t done = 0, n;
    jmark mark = quote_mark(s);
    j_charge_bytes(c, s->n);
    jbuf_add_text(b, "\"", mark);
    for (size_t i = 0; i < s->n; i += n) {
        uint32_t cp = letter_read(s->p + i, &n);
        if (cp >= 0x20 && cp != '"' && cp != '\\' && (cp < 0x7F || !ascii)) continue;
        jbuf_add_slice(b, s, done, i);
        json_escape(b, cp, jstr_mark_at(s, i));
        done = i + n;
    }
    jbuf_add_slice(b, s, done, s->n);
    jbuf_add_text(b, "\"", mark);
}

static void json_scalar(jbuf *b, jval v) {
    switch ((jkind)v.kind) {
    case JV_NONE:
        jbuf_add_text(b, "null", v.mark);
        break;
    case JV_BOOL:
        jbuf_add_text(b, v.u.b ? "true" : "false", v.mark);
        break;
    case JV_FLOAT:
        if (isfinite(v.u.f))
            print_scalar(b, v);
        else
            jbuf_add_text(b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity", v.mark);
        break;
    default:
        print_scalar(b, v);
        break;
    }
}

/* A separator or indent: if it is the interpreter's own, it belongs to the data around. */
static void json_gap(jbuf *b, const jstr *s, jmark mark) {
    if (s->marks == NULL && s->mark == JMARK_REQUEST)
        jbuf_add(b, s->p, s->n, mark);
    else
        jbuf_add_str(b, s);
}

static void json_break(jbuf *b, const jjson_style *style, jmark mark, int depth) {
    if (style->indent == NULL) return;
    jbuf_add_text(b, "\n", mark);
    for (int i = 0; i < depth; i++) json_gap(b, style->indent, mark);
}

static void json(jctx *c, jbuf *b, jval v, const jjson_style *style, int depth);

static void json_list(jctx *c, jbuf *b, jval v, const jjson_style *style, int depth) {
    const jlist *list = v.u.list;
    jbuf_add_text(b, "[", v.mark);
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) json_gap(b, style->item_separator, v.mark);
        json_break(b, style, v.mark, depth + 1);
        json(c, b, list->items[i], style, depth + 1);
    }
    if (list->n > 0) json_break(b, style, v.mark, depth);
    jbuf_add_text(b, "]", v.mark);
}

static void json_key(jctx *c, jbuf *b, jval key, bool ascii) {
    switch ((jkind)key.kind) {
    case JV_STR:
        json_str(c, b, key.u.s, ascii);
        break;
    case JV_NONE:
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
    case JV_WIDE:
        jbuf_add_text(b, "\"", key.mark);
        json_scalar(b, key);
        jbuf_add_text(b, "\"", key.mark);
        break;
    default:
        j_fail(c, "keys must be str, int, float, bool or None, not %s", jv_type_name(key));
    }
}

/* The pairs by key, without changing the dict.  Insertion into a sorted array, by binary search. */
static const jdict *sort_pairs(jctx *c, const jdict *d) {
    jdict *sorted = jdict_new(c, d->n);
    for (size_t i = 0; i < d->n; i++) {
        size_t low = 0, high = sorted->n;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (jv_compare(c, d->pairs[i].key, sorted->pairs[middle].key, "<") < 0)
                high = middle;
            else
                low = middle + 1;
        }
        j_charge(c, (sorted->n - low) / 8);
        memmove(sorted->pairs + low + 1, sorted->pairs + low,
                (sorted->n - low) * sizeof *sorted->pairs);
        sorted->pairs[low] = d->pairs[i];
        sorted->n++;
    }
    return sorted;
}

static void json_dict(jctx *c, jbuf *b, jval v, const jjson_style *style, int depth) {
    const jdict *d = style->sort_keys ? sort_pairs(c, v.u.dict) : v.u.dict;
    jbuf_add_text(b, "{", v.mark);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) json_gap(b, style->item_separator, v.mark);
        json_break(b, style, v.mark, depth + 1);
        json_key(c, b, d->pairs[i].key, style->ascii);
        json_gap(b, style->key_separator, v.mark);
        json(c, b, d->pairs[i].value, style, depth + 1);
    }
    if (d->n > 0) json_break(b, style, v.mark, depth);
    jbuf_add_text(b, "}", v.mark);
}

static void json(jctx *c, jbuf *b, jval v, const jjson_style *style, int depth) {
    check_depth(c, depth);
    j_charge(c, 1);
    switch ((jkind)v.kind) {
    case JV_NONE:
    case JV_BOOL:
    case JV_INT:
    case JV_FLOAT:
    case JV_WIDE:
        json_scalar(b, v);
        break;
    case JV_STR:
        json_str(c, b, v.u.s, style->ascii);
        break;
    case JV_LIST:
    case JV_TUPLE:
        json_list(c, b, v, style, depth);
        break;
    case JV_DICT:
        json_dict(c, b, v, style, depth);
        break;
    default:
        j_fail(c, "Object of type %s is not JSON serializable", jv_type_name(v));
    }
}

void jv_print_json(jctx *c, jbuf *b, jval v, const jjson_style *style) {
    json(c, b, v, style, 0);
}
