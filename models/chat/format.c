/* '%s of %d' % (a, b) and '{} of {:>4}'.format(a, b).
 *
 * The text between fields keeps its provenance, a field has that of its value, and padding that of
 * the format. */
#include <math.h>

#include "chat/interp.h"
#include "chat/letters.h"

/* One field, of either syntax. */
typedef struct spec {
    bool minus, plus, space, zero, alternate;
    int64_t width, precision; // precision -1: none
    char type;                // 0: none
    char align;               // 0: the default of the type
    const jstr *fill;
    char grouping; // ',' '_' or 0
    jmark mark;    // of the padding
} spec;

static void check_width(jrender *r, int64_t width) {
    if (width > JWIDTH_MAX) j_limit(&r->c, "a format wider than %d", JWIDTH_MAX);
}

static void add_padded(jrender *r, jbuf *out, const jstr *s, const spec *f, char align) {
    int64_t pad = f->width - (int64_t)jstr_length(&r->c, s);
    int64_t left = pad <= 0 || align == '<' ? 0 : align == '>' ? pad : pad / 2;
    j_charge(&r->c, pad > 0 ? (size_t)pad / 8 : 0);
    for (int64_t i = 0; i < left; i++) jbuf_add_str(out, f->fill);
    jbuf_add_str(out, s);
    for (int64_t i = left; i < pad; i++) jbuf_add_str(out, f->fill);
}

static void add_text(jrender *r, jbuf *out, const jstr *s, const spec *f) {
    if (f->precision >= 0 && (uint64_t)f->precision < s->n)
        s = jstr_slice(&r->c, s, 0, jstr_offset(&r->c, s, (size_t)f->precision));
    add_padded(r, out, s, f, f->align != 0 ? f->align : '<');
}

/* The digits with separators every `every` of them, counted from the right. */
static const char *group_digits(jrender *r, const char *digits, char grouping, int every) {
    size_t n = strspn(digits, "0123456789abcdefABCDEF"), k = 0;
    char *out = j_take(&r->c, strlen(digits) + n + 1);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && (n - i) % (size_t)every == 0) out[k++] = grouping;
        out[k++] = digits[i];
    }
    strcpy(out + k, digits + n);
    return out;
}

/* sign, prefix ("0x") and digits, padded: with zeros behind the sign, or like text. */
static void add_number(jrender *r, jbuf *out, jval v, bool negative, const char *prefix,
                       const char *digits, const spec *f) {
    const char *sign = negative ? "-" : f->plus ? "+" : f->space ? " " : "";
    jbuf b;
    if (f->grouping != 0)
        digits =
            group_digits(r, digits, f->grouping, strchr("box", f->type | 0x20) && f->type ? 4 : 3);
    jmark mark = jv_mark(v);
    int64_t n = (int64_t)(strlen(sign) + strlen(prefix) + strlen(digits));
    char align = f->align != 0 ? f->align : f->zero ? '=' : '>';
    jbuf_init(&b, &r->c, 0);
    jbuf_add_text(&b, sign, mark);
    jbuf_add_text(&b, prefix, mark);
    for (int64_t i = n; align == '=' && i < f->width; i++) {
        if (f->zero)
            jbuf_add(&b, "0", 1, mark);
        else
            jbuf_add_str(&b, f->fill);
    }
    jbuf_add_text(&b, digits, mark);
    add_padded(r, out, jbuf_str(&b, false), f, align);
}

static void add_integer(jrender *r, jbuf *out, jval v, int64_t i, const spec *f) {
    static const char small[] = "0123456789abcdef", large[] = "0123456789ABCDEF";
    char lower = (char)(f->type | 0x20), text[80];
    unsigned base = lower == 'x' ? 16 : lower == 'o' ? 8 : lower == 'b' ? 2 : 10;
    uint64_t rest = i < 0 ? -(uint64_t)i : (uint64_t)i;
    size_t at = sizeof text;
    text[--at] = 0;
    do text[--at] = (f->type == 'X' ? large : small)[rest % base];
    while ((rest /= base) != 0);
    const char *prefix = !f->alternate    ? ""
                         : f->type == 'X' ? "0X"
                         : base == 16     ? "0x"
                         : base == 8      ? "0o"
                         : base == 2      ? "0b"
                                          : "";
    const char *digits = text + at;
    int64_t n = (int64_t)strlen(digits);
    if (f->precision > n) { // at least so many digits
        char *longer = j_take(&r->c, (size_t)f->precision + 1);
        memset(longer, '0', (size_t)(f->precision - n));
        strcpy(longer + f->precision - n, digits);
        digits = longer;
    }
    add_number(r, out, v, i < 0, prefix, digits, f);
}

static void add_float(jrender *r, jbuf *out, jval v, double d, const spec *f) {
    char pattern[16], shortest[JFLOAT_BYTES];
    double magnitude = fabs(d);
    bool negative = signbit(d) && !isnan(d);
    if (f->type == 0 && f->precision < 0) {
        jfloat_print(magnitude, shortest);
        add_number(r, out, v, negative, "", shortest, f);
        return;
    }
    char type = f->type == '%' ? 'f' : f->type == 0 || f->type == 'n' ? 'g' : f->type;
    if (f->type == '%') magnitude *= 100;
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    size_t room = (size_t)precision + 400;
    char *text = j_take(&r->c, room);
    snprintf(pattern, sizeof pattern, "%%%s.*%c", f->alternate ? "#" : "", type);
    // the pattern is one of a dozen made here, never text of the template
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(text, room - 1, pattern, precision, magnitude);
#pragma GCC diagnostic pop
    if (f->type == '%' && n > 0) strcpy(text + n, "%");
    add_number(r, out, v, negative, "", text, f);
}

/* ---- percent ---- */

typedef struct percent {
    jrender *r;
    const jstr *s;
    size_t at;
    jval args;
    size_t used; // of a tuple, or 1 when the single value was
    jbuf out;
} percent;

static jval next_arg(percent *p) {
    size_t i = p->used++;
    bool none_left = p->args.kind == JV_TUPLE ? i >= p->args.u.list->n : i > 0;
    if (none_left) j_fail(&p->r->c, "not enough arguments for format string");
    return p->args.kind == JV_TUPLE ? p->args.u.list->items[i] : p->args;
}

static char peek(const percent *p) {
    return p->at < p->s->n ? p->s->p[p->at] : 0;
}

/* A number, or '*' for an argument; -1: none there. */
static int64_t read_count(percent *p) {
    int64_t n = 0;
    if (peek(p) == '*') {
        p->at++;
        n = jarg_int(p->r, next_arg(p), "*");
    } else if (peek(p) < '0' || peek(p) > '9') {
        return -1;
    } else {
        for (; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
            n = n * 10 + (peek(p) - '0');
            check_width(p->r, n);
        }
    }
    check_width(p->r, n < -JWIDTH_MAX ? JWIDTH_MAX + 1 : n);
    return n;
}

static spec read_percent_spec(percent *p) {
    spec f = {.precision = -1, .mark = jstr_mark_at(p->s, p->at - 1)};
    for (;; p->at++) {
        char c = peek(p);
        if (c == '-')
            f.minus = true;
        else if (c == '+')
            f.plus = true;
        else if (c == ' ')
            f.space = true;
        else if (c == '0')
            f.zero = true;
        else if (c == '#')
            f.alternate = true;
        else
            break;
    }
    f.width = read_count(p);
    if (f.width < -1) {
        f.minus = true;
        f.width = -f.width;
    }
    if (peek(p) == '.') {
        p->at++;
        f.precision = read_count(p);
        if (f.precision < 0) f.precision = 0;
    }
    while (peek(p) == 'h' || peek(p) == 'l' || peek(p) == 'L') p->at++;
    f.type = peek(p);
    p->at++;
    f.fill = jstr_new(&p->r->c, " ", 1, f.mark);
    f.align = f.minus ? '<' : 0;
    if (f.minus) f.zero = false;
    return f;
}

static void add_percent_field(percent *p, jval v, spec *f) {
    jrender *r = p->r;
    jbuf b;
    switch (f->type) {
    case 's':
    case 'r':
    case 'a':
        jbuf_init(&b, &r->c, 0);
        if (f->type == 's')
            jv_print(&r->c, &b, v);
        else
            jv_print_repr(&r->c, &b, v);
        if (f->align == 0) f->align = '>';
        add_text(r, &p->out,
                 p->s->markup && !(v.kind == JV_STR && v.u.s->markup)
                     ? jstr_escape(&r->c, jbuf_str(&b, false))
                     : jbuf_str(&b, false),
                 f);
        return;
    case 'c':
        if (v.kind == JV_STR && jstr_length(&r->c, v.u.s) == 1) {
            f->align = f->align == 0 ? '>' : f->align;
            f->precision = -1;
            add_text(r, &p->out, v.u.s, f);
            return;
        }
        j_fail(&r->c, "%%c requires a single character");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.kind == JV_FLOAT && f->type != 'x' && f->type != 'X' && f->type != 'o') {
            if (!(fabs(v.u.f) < 9e18)) j_fail(&r->c, "cannot convert float to integer");
            add_integer(r, &p->out, v, (int64_t)v.u.f, f);
            return;
        }
        if (!jv_is_integer(v))
            j_fail(&r->c, "%%%c format: a number is required, not %s", f->type, jv_type_name(v));
        add_integer(r, &p->out, v, jv_integer(v), f);
        return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!jv_is_number(v)) j_fail(&r->c, "must be real number, not %s", jv_type_name(v));
        add_float(r, &p->out, v, jv_double(v), f);
        return;
    default:
        j_fail(&r->c, "unsupported format character");
    }
}

static jval named_arg(percent *p) {
    const jstr *s = p->s;
    size_t from = ++p->at;
    int depth = 1;
    for (; p->at < s->n; p->at++) {
        if (s->p[p->at] == '(') depth++;
        if (s->p[p->at] == ')' && --depth == 0) break;
    }
    if (p->at >= s->n) j_fail(&p->r->c, "incomplete format key");
    if (p->args.kind != JV_DICT) j_fail(&p->r->c, "format requires a mapping");
    jval key = jv_str(jstr_slice(&p->r->c, s, from, p->at++));
    const jval *v = jdict_find(&p->r->c, p->args.u.dict, key);
    if (v == NULL) j_fail(&p->r->c, "format: a key is missing");
    return *v;
}

const jstr *jformat_percent(jrender *r, const jstr *format, jval args) {
    percent p = {.r = r, .s = format, .args = args};
    jbuf_init(&p.out, &r->c, 0);
    j_charge_bytes(&r->c, format->n);
    while (p.at < format->n) {
        const char *sign = memchr(format->p + p.at, '%', format->n - p.at);
        size_t to = sign == NULL ? format->n : (size_t)(sign - format->p);
        jbuf_add_slice(&p.out, format, p.at, to);
        if (sign == NULL) break;
        p.at = to + 1;
        if (p.at >= format->n) j_fail(&r->c, "incomplete format");
        if (peek(&p) == '%') {
            jbuf_add_slice(&p.out, format, p.at, p.at + 1);
            p.at++;
            continue;
        }
        j_charge(&r->c, 1);
        bool named = peek(&p) == '(';
        jval v = named ? named_arg(&p) : jv_none();
        spec f = read_percent_spec(&p);
        add_percent_field(&p, named ? v : next_arg(&p), &f);
    }
    size_t n_args = args.kind == JV_TUPLE ? args.u.list->n : 1;
    bool subscripted = args.kind == JV_DICT || args.kind == JV_LIST || args.kind == JV_UNDEFINED;
    if (p.used < n_args && !subscripted) // Python treats any value with subscripts as a mapping
        j_fail(&r->c, "not all arguments converted during string formatting");
    return jbuf_str(&p.out, format->markup);
}

/* ---- braces ---- */

typedef struct braces {
    jrender *r;
    const jcall *call;
    size_t next; // automatic numbering
    bool automatic, manual;
    bool markup; // of the format: inserted values are escaped
} braces;

static void add_braces(braces *b, const jstr *s, jbuf *out, int depth);

static bool read_index(const jstr *s, int64_t *i) {
    *i = 0;
    for (size_t k = 0; k < s->n; k++) {
        if (s->p[k] < '0' || s->p[k] > '9' || *i > INT32_MAX) return false;
        *i = *i * 10 + (s->p[k] - '0');
    }
    return s->n > 0;
}

static jval first_arg(braces *b, const jstr *name) {
    int64_t i = (int64_t)b->next;
    if (name->n > 0 && !read_index(name, &i)) {
        for (size_t k = 0; k < b->call->n_kw; k++)
            if (jstr_equal(b->call->kw[k].name, name)) return b->call->kw[k].value;
        j_fail(&b->r->c, "format: no argument '%.*s'", (int)size_min(name->n, 100), name->p);
    }
    if (name->n == 0) b->next++;
    *(name->n == 0 ? &b->automatic : &b->manual) = true;
    if (b->automatic && b->manual)
        j_fail(&b->r->c, "cannot switch between automatic and manual field numbering");
    if ((uint64_t)i >= b->call->n)
        j_fail(&b->r->c, "replacement index %lld out of range", (long long)i);
    return b->call->pos[i];
}

/* "0.name[key]" */
static jval read_field(braces *b, const jstr *field) {
    jctx *c = &b->r->c;
    size_t at = 0;
    int64_t i;
    while (at < field->n && field->p[at] != '.' && field->p[at] != '[') at++;
    jval v = first_arg(b, jstr_slice(c, field, 0, at));
    while (at < field->n) {
        bool item = field->p[at] == '[';
        size_t from = at + 1, to = from;
        while (to < field->n &&
               (item ? field->p[to] != ']' : field->p[to] != '.' && field->p[to] != '['))
            to++;
        if (to == from || (item && to == field->n)) j_fail(c, "format: bad field name");
        const jstr *name = jstr_slice(c, field, from, to);
        if (!item)
            v = jattr_get(b->r, v, name);
        else
            v = jattr_item(b->r, v, read_index(name, &i) ? jv_int(i) : jv_str(name));
        at = to + (item ? 1 : 0);
        if (item && at < field->n && field->p[at] != '.' && field->p[at] != '[')
            j_fail(c, "format: only '.' or '[' may follow ']'");
    }
    return v;
}

static bool is_align(const jstr *s, size_t at) {
    return at < s->n && s->p[at] != 0 && strchr("<>=^", s->p[at]) != NULL;
}

static int64_t read_digits(braces *b, const jstr *s, size_t *at) {
    int64_t n = 0;
    for (; *at < s->n && s->p[*at] >= '0' && s->p[*at] <= '9'; ++*at) {
        n = n * 10 + (s->p[*at] - '0');
        check_width(b->r, n);
    }
    return n;
}

static bool skip_char(const jstr *s, size_t *at, char c) {
    if (*at >= s->n || s->p[*at] != c) return false;
    ++*at;
    return true;
}

/* [[fill]align][sign][#][0][width][grouping][.precision][type] */
static spec read_spec(braces *b, const jstr *s) {
    spec f = {.precision = -1, .fill = jstr_new(&b->r->c, " ", 1, jstr_mark(s))};
    size_t at = 0, n = letter_bytes(s->p[0]);
    bool filled = is_align(s, n);
    if (filled) {
        f.fill = jstr_slice(&b->r->c, s, 0, n);
        f.align = s->p[n];
        at = n + 1;
    } else if (is_align(s, 0))
        f.align = s->p[at++];
    f.plus = skip_char(s, &at, '+');
    f.space = !f.plus && skip_char(s, &at, ' ');
    if (!f.plus && !f.space) f.minus = skip_char(s, &at, '-');
    f.alternate = skip_char(s, &at, '#');
    if (skip_char(s, &at, '0')) {
        f.zero = f.align == 0;
        if (!filled) f.fill = jstr_new(&b->r->c, "0", 1, jstr_mark(s));
    }
    f.width = read_digits(b, s, &at);
    if (skip_char(s, &at, ','))
        f.grouping = ',';
    else if (skip_char(s, &at, '_'))
        f.grouping = '_';
    if (skip_char(s, &at, '.')) f.precision = read_digits(b, s, &at);
    if (at < s->n) f.type = s->p[at++];
    if (at < s->n) j_fail(&b->r->c, "invalid format specifier");
    return f;
}

static void add_formatted(braces *b, jval v, const jstr *spec_text, jbuf *out) {
    jrender *r = b->r;
    if (spec_text->n == 0) {
        if (b->markup) v = jv_str(jstr_escape(&r->c, jv_soft_str(&r->c, v)));
        jv_print(&r->c, out, v);
        return;
    }
    spec f = read_spec(b, spec_text);
    bool integral = f.type != 0 && strchr("bcdoxXn", f.type) != NULL;
    bool floating = f.type != 0 && strchr("eEfFgG%", f.type) != NULL;
    if (v.kind == JV_STR && (f.type == 0 || f.type == 's')) {
        if (b->markup) v = jv_str(jstr_escape(&r->c, v.u.s));
        if (f.align == '=') j_fail(&r->c, "'=' alignment not allowed in string format specifier");
        add_text(r, out, v.u.s, &f);
    } else if (jv_is_integer(v) && (f.type == 0 || integral) && f.type != 'c') {
        if (f.precision >= 0) j_fail(&r->c, "precision not allowed in integer format specifier");
        if (f.type == 'n') f.type = 'd';
        add_integer(r, out, v, jv_integer(v), &f);
    } else if (jv_is_number(v) && (floating || (v.kind == JV_FLOAT && !integral && f.type == 0))) {
        add_float(r, out, v, jv_double(v), &f);
    } else {
        j_fail(&r->c, "unsupported format specifier for '%s'", jv_type_name(v));
    }
}

/* One replacement field from behind its '{'; returns the offset behind its '}'. */
static size_t add_field(braces *b, const jstr *s, size_t at, jbuf *out, int depth) {
    jctx *c = &b->r->c;
    size_t from = at, name_end, nested = 0;
    char conversion = 0;
    jbuf spec_text;
    bool in_brackets = false;
    for (; at < s->n && (in_brackets || (s->p[at] != '}' && s->p[at] != ':' && s->p[at] != '!'));
         at++) {
        if (s->p[at] == '{') j_fail(c, "unexpected '{' in field name");
        in_brackets = s->p[at] == '[' || (in_brackets && s->p[at] != ']');
    }
    name_end = at;
    if (at < s->n && s->p[at] == '!') {
        conversion = at + 1 < s->n ? s->p[at + 1] : 0;
        at += 2;
    }
    jbuf_init(&spec_text, c, 0);
    jval v = read_field(b, jstr_slice(c, s, from, name_end));
    if (at < s->n && s->p[at] == ':') {
        from = ++at;
        for (; at < s->n && (nested > 0 || s->p[at] != '}'); at++) {
            if (s->p[at] == '{') nested++;
            if (s->p[at] == '}') nested--;
        }
        add_braces(b, jstr_slice(c, s, from, at), &spec_text, depth + 1);
    }
    if (at >= s->n || s->p[at] != '}') j_fail(c, "expected '}' before end of string");
    if (conversion != 0 && conversion != 's' && conversion != 'r' && conversion != 'a')
        j_fail(c, "unknown conversion specifier");
    if (conversion == 's') v = jv_str(jv_to_str(c, v));
    if (conversion == 'r' || conversion == 'a') {
        jbuf text;
        jbuf_init(&text, c, 0);
        jv_print_repr(c, &text, v);
        v = jv_str(jbuf_str(&text, false));
    }
    add_formatted(b, v, jbuf_str(&spec_text, false), out);
    return at + 1;
}

static void add_braces(braces *b, const jstr *s, jbuf *out, int depth) {
    jctx *c = &b->r->c;
    size_t at = 0;
    if (depth > 2) j_fail(c, "max string recursion exceeded");
    j_charge_bytes(c, s->n);
    while (at < s->n) {
        size_t to = at;
        while (to < s->n && s->p[to] != '{' && s->p[to] != '}') to++;
        jbuf_add_slice(out, s, at, to);
        if (to == s->n) return;
        bool twice = to + 1 < s->n && s->p[to + 1] == s->p[to];
        j_charge(c, 1);
        if (twice) {
            jbuf_add_slice(out, s, to, to + 1);
            at = to + 2;
        } else if (s->p[to] == '}') {
            j_fail(c, "single '}' encountered in format string");
        } else
            at = add_field(b, s, to + 1, out, depth);
    }
}

const jstr *jformat_braces(jrender *r, const jstr *format, const jcall *call) {
    braces b = {.r = r, .call = call, .markup = format->markup};
    jbuf out;
    jbuf_init(&out, &r->c, 0);
    add_braces(&b, format, &out, 1);
    return jbuf_str(&out, format->markup);
}
