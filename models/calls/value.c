/* value.c - see value.h. */
#include "calls/value.h"

#include <string.h>

static bool is_white(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

void value_add_escaped(buf *out, bytes text) {
    for (size_t i = 0; i < text.n; i++) {
        unsigned char c = (unsigned char)text.p[i];
        static const char short_names[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                           ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
        if (c < sizeof short_names && short_names[c] != 0)
            buf_add(out, (char[]){'\\', short_names[c]}, 2);
        else if (c < ' ')
            buf_add_format(out, "\\u%04x", c);
        else
            buf_add_char(out, (char)c);
    }
}

/* ---- escapes ---- */

static void add_unicode(buf *out, uint32_t code) {
    if (code > 0xffff) {
        code -= 0x10000;
        buf_add_format(out, "\\u%04x", 0xd800 + (code >> 10));
        code = 0xdc00 + (code & 0x3ff);
    }
    buf_add_format(out, "\\u%04x", code);
}

/* Bytes of an escape that begins with \c; 0: c escapes nothing but itself. */
static size_t escape_length(const value_reader *r, char c) {
    switch (c) {
    case 'u':
        return 6;
    case 'x':
        return r->notation == VALUE_LOOSE ? 4 : 0;
    case 'U':
        return r->notation == VALUE_LOOSE ? 10 : 0;
    default:
        return 2;
    }
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* A whole escape.  False: it is none. */
static bool add_escape(value_reader *r, buf *out) {
    char name = r->escape[1];
    size_t n = r->n_escape;
    r->n_escape = 0;
    for (size_t i = 2; i < n; i++)
        if (!is_hex(r->escape[i])) return false;
    if (n > 2) {
        char digits[9] = {0};
        memcpy(digits, r->escape + 2, n - 2);
        unsigned long code = strtoul(digits, NULL, 16);
        if (name == 'u')
            buf_add(out, r->escape, n);
        else if (code <= 0x10ffff)
            add_unicode(out, (uint32_t)code);
        return code <= 0x10ffff;
    }
    if (strchr("\"\\/bfnrt", name) != NULL && name != 0) {
        buf_add(out, r->escape, 2);
        return true;
    }
    if (r->notation == VALUE_JSON) return false;
    if (name == '\n') return true; // a line that goes on
    if (name == 'v' || name == 'a' || name == '0') {
        buf_add_str(out, name == 'v' ? "\\u000b" : name == 'a' ? "\\u0007" : "\\u0000");
        return true;
    }
    if (name != '\'') value_add_escaped(out, (bytes){"\\", 1}); // stands for itself in Python
    value_add_escaped(out, (bytes){&name, 1});
    return true;
}

/* ---- words ---- */

/* A number as JSON writes it. */
static bool is_number(bytes w) {
    size_t i = 0, from;
    if (i < w.n && w.p[i] == '-') i++;
    from = i;
    while (i < w.n && w.p[i] >= '0' && w.p[i] <= '9') i++;
    if (i == from || (w.p[from] == '0' && i > from + 1)) return false;
    if (i < w.n && w.p[i] == '.') {
        from = ++i;
        while (i < w.n && w.p[i] >= '0' && w.p[i] <= '9') i++;
        if (i == from) return false;
    }
    if (i < w.n && (w.p[i] == 'e' || w.p[i] == 'E')) {
        i++;
        if (i < w.n && (w.p[i] == '-' || w.p[i] == '+')) i++;
        from = i;
        while (i < w.n && w.p[i] >= '0' && w.p[i] <= '9') i++;
        if (i == from) return false;
    }
    return i == w.n;
}

static bool is_word(bytes w, const char *text) {
    return w.n == strlen(text) && memcmp(w.p, text, w.n) == 0;
}

/* The JSON of a word; NULL: it is a text without quotes. */
static const char *constant_of(const value_reader *r, bytes w) {
    static const char *const constants[] = {"true", "false", "null"};
    static const char *const loose[] = {"True", "False", "None"};
    for (size_t i = 0; i < INFERD_COUNT(constants); i++)
        if (is_word(w, constants[i]) || (r->notation == VALUE_LOOSE && is_word(w, loose[i])))
            return constants[i];
    return NULL;
}

static bool end_word(value_reader *r, buf *out) {
    bytes w = {r->word.p, r->word.n};
    const char *constant = constant_of(r, w);
    bool ok = !r->word.failed;
    if (r->word.failed) out->failed = true;
    if (!r->is_key && constant != NULL) {
        buf_add_str(out, constant);
    } else if (!r->is_key && is_number(w)) {
        buf_add(out, w.p, w.n);
    } else if (r->notation == VALUE_LOOSE && r->is_key) {
        buf_add_char(out, '"');
        value_add_escaped(out, w);
        buf_add_char(out, '"');
    } else {
        ok = false;
    }
    buf_clear(&r->word);
    return ok;
}

/* ---- structure ---- */

static void after_value(value_reader *r) {
    r->state = r->depth == 0 ? VALUE_IS_OVER : VALUE_WANTS_COMMA;
}

static char innermost(const value_reader *r) {
    return r->depth > 0 ? r->open[r->depth - 1] : 0;
}

static bool is_object(char open) {
    return open == '{' || open == '(';
}

static value_step open_container(value_reader *r, char c, buf *out) {
    if (r->depth == VALUE_DEPTH_MAX) return VALUE_IS_NO_VALUE;
    r->open[r->depth++] = c == '{' ? '{' : c == '(' ? 't' : '['; // t: a tuple
    buf_add_char(out, c == '{' ? '{' : '[');
    r->state = c == '{' ? VALUE_WANTS_FIRST_KEY : VALUE_WANTS_FIRST;
    return VALUE_MORE;
}

static value_step close_container(value_reader *r, char c, buf *out) {
    char open = innermost(r);
    char wanted = open == '{' ? '}' : open == '[' ? ']' : open == 0 ? 0 : ')';
    if (wanted == 0 || c != wanted) return VALUE_IS_NO_VALUE;
    buf_add_char(out, is_object(open) ? '}' : ']');
    r->depth--;
    after_value(r);
    return r->depth == 0 ? VALUE_ENDS : VALUE_MORE;
}

static value_step open_string(value_reader *r, char quote, buf *out) {
    r->state = VALUE_IN_STRING;
    r->quote = quote;
    r->in_mark = false;
    buf_add_char(out, '"');
    return VALUE_MORE;
}

static value_step end_string(value_reader *r, buf *out) {
    buf_add_char(out, '"');
    if (r->is_key) {
        r->state = VALUE_WANTS_COLON;
        return VALUE_MORE;
    }
    after_value(r);
    return r->depth == 0 ? VALUE_ENDS : VALUE_MORE;
}

/* ---- the states ---- */

static value_step in_string(value_reader *r, char c, buf *out) {
    bool loose = r->notation == VALUE_LOOSE;
    if (r->in_mark) {
        if (c == r->mark.p[r->n_mark]) {
            if (++r->n_mark < r->mark.n) return VALUE_MORE;
            r->n_mark = 0;
            return end_string(r, out);
        }
        if (r->n_mark > 0) { // marks do not begin in themselves
            value_add_escaped(out, (bytes){r->mark.p, r->n_mark});
            r->n_mark = 0;
            return in_string(r, c, out);
        }
        value_add_escaped(out, (bytes){&c, 1});
        return VALUE_MORE;
    }
    if (r->n_escape > 0) {
        r->escape[r->n_escape++] = c;
        size_t n = escape_length(r, r->escape[1]);
        if (n == 0) return VALUE_IS_NO_VALUE;
        if (r->n_escape < n) return VALUE_MORE;
        return add_escape(r, out) ? VALUE_MORE : VALUE_IS_NO_VALUE;
    }
    if (r->at_quote) {
        r->at_quote = false;
        if (is_white(c) || strchr(",:]})=", c) != NULL) {
            value_step step = end_string(r, out);
            return step == VALUE_ENDS ? VALUE_ENDED : value_push(r, c, out);
        }
        value_add_escaped(out, (bytes){&r->quote, 1});
    }
    if (c == r->quote && loose) {
        r->at_quote = true;
        return VALUE_MORE;
    }
    if (c == r->quote) return end_string(r, out);
    if (c == '\\' && !(r->raw && r->depth == 1)) {
        r->escape[0] = c;
        r->n_escape = 1;
    } else if (loose) {
        value_add_escaped(out, (bytes){&c, 1});
    } else if ((unsigned char)c < ' ') {
        return VALUE_IS_NO_VALUE;
    } else {
        buf_add_char(out, c);
    }
    return VALUE_MORE;
}

/* Does the byte end a word? */
static bool ends_word(const value_reader *r, char c) {
    if (is_white(c) || strchr(",:]})=", c) != NULL) return true;
    return r->mark.n > 0 && c == r->mark.p[0];
}

static value_step begin_word(value_reader *r, char c) {
    bool loose = r->notation == VALUE_LOOSE;
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' ||
                 (loose && ((c >= 'A' && c <= 'Z') || c == '_' || c == '$' || (c & 0x80) != 0));
    if (!plain || (r->is_key && !loose)) return VALUE_IS_NO_VALUE;
    r->state = VALUE_IN_WORD;
    buf_add_char(&r->word, c);
    return VALUE_MORE;
}

static value_step begin(value_reader *r, char c, bool is_key, buf *out) {
    bool loose = r->notation == VALUE_LOOSE;
    r->is_key = is_key;
    if (r->n_mark > 0 || (r->mark.n > 0 && c == r->mark.p[0])) {
        if (c != r->mark.p[r->n_mark]) return VALUE_IS_NO_VALUE;
        if (++r->n_mark < r->mark.n) return VALUE_MORE;
        r->n_mark = 0;
        open_string(r, 0, out);
        r->in_mark = true;
        return VALUE_MORE;
    }
    if (c == '"' || (loose && c == '\'')) return open_string(r, c, out);
    if (is_key) return begin_word(r, c);
    if (c == '{' || c == '[' || (loose && c == '(')) return open_container(r, c, out);
    return begin_word(r, c);
}

static value_step push_structure(value_reader *r, char c, buf *out) {
    char open = innermost(r);
    bool first = r->state == VALUE_WANTS_FIRST || r->state == VALUE_WANTS_FIRST_KEY;
    bool closes = c == '}' || c == ']' || c == ')';
    bool loose = r->notation == VALUE_LOOSE;
    switch (r->state) {
    case VALUE_WANTS_COLON:
        if (c != (open == '(' ? '=' : ':')) return VALUE_IS_NO_VALUE;
        buf_add_char(out, ':');
        r->state = VALUE_WANTS_VALUE;
        return VALUE_MORE;
    case VALUE_WANTS_COMMA:
        if (closes) return close_container(r, c, out);
        if (c != ',') return VALUE_IS_NO_VALUE;
        /* In Python a comma may be the last: it is written with what follows. */
        r->state = is_object(open) ? VALUE_WANTS_KEY : VALUE_WANTS_VALUE;
        if (!loose) buf_add_char(out, ',');
        return VALUE_MORE;
    default:
        break;
    }
    bool key = r->state == VALUE_WANTS_KEY || r->state == VALUE_WANTS_FIRST_KEY;
    bool in_list = r->depth > 0 && !is_object(open);
    bool may_close = first || (loose && (r->state == VALUE_WANTS_KEY || in_list));
    if (closes && r->n_mark == 0 && may_close && r->depth > 0) return close_container(r, c, out);
    bool follows = loose && !first && r->n_mark == 0 && (key || in_list);
    size_t n_before = out->n;
    if (follows) buf_add_char(out, ',');
    value_step step = begin(r, c, key, out);
    if (follows && step == VALUE_IS_NO_VALUE) out->n = n_before;
    return step;
}

value_step value_push(value_reader *r, char c, buf *out) {
    switch (r->state) {
    case VALUE_IN_STRING:
        return in_string(r, c, out);
    case VALUE_IN_WORD:
        if (!ends_word(r, c)) {
            buf_add_char(&r->word, c);
            return VALUE_MORE;
        }
        if (!end_word(r, out)) return VALUE_IS_NO_VALUE;
        if (r->is_key)
            r->state = VALUE_WANTS_COLON;
        else
            after_value(r);
        if (r->state == VALUE_IS_OVER) return VALUE_ENDED;
        return value_push(r, c, out); // once: the state is not a word's any more
    case VALUE_IS_OVER:
        return VALUE_ENDED;
    default:
        if (is_white(c) && r->n_mark == 0) {
            if (r->notation == VALUE_JSON && r->depth > 0) buf_add_char(out, c);
            return VALUE_MORE;
        }
        return push_structure(r, c, out);
    }
}

bool value_finish(value_reader *r, buf *out) {
    if (r->at_quote) {
        r->at_quote = false;
        end_string(r, out);
    }
    if (r->state == VALUE_IN_WORD && r->depth == 0 && !r->is_key) {
        if (!end_word(r, out)) return false;
        r->state = VALUE_IS_OVER;
    }
    return r->state == VALUE_IS_OVER;
}

void value_init(value_reader *r, value_notation notation, bytes mark) {
    *r = (value_reader){.notation = notation, .mark = mark, .state = VALUE_WANTS_VALUE};
}

void value_init_arguments(value_reader *r, bytes mark, buf *out) {
    value_init(r, VALUE_LOOSE, mark);
    r->open[r->depth++] = '(';
    r->state = VALUE_WANTS_FIRST_KEY;
    buf_add_char(out, '{');
}

void value_deinit(value_reader *r) {
    buf_deinit(&r->word);
}

bool value_read_all(value_notation notation, bytes mark, bytes text, buf *out) {
    value_reader r;
    size_t i = 0, from = out->n;
    value_step step = VALUE_MORE;
    value_init(&r, notation, mark);
    while (i < text.n && step == VALUE_MORE) {
        step = value_push(&r, text.p[i], out);
        if (step == VALUE_MORE || step == VALUE_ENDS) i++;
    }
    bool ok = step != VALUE_IS_NO_VALUE && value_finish(&r, out);
    while (ok && i < text.n) ok = is_white(text.p[i++]);
    value_deinit(&r);
    if (!ok) out->n = from;
    return ok && !out->failed;
}
