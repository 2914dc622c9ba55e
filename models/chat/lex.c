#include "chat/lex.h"

#include "chat/letters.h"

/* Jinja splits template source at \n, \r\n and \r, joins it with \n, and drops one at the end. */
void jlex_init(jlex *l, jctx *c, bytes source) {
    memset(l, 0, sizeof *l);
    char *p = j_take(c, source.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < source.n; i++) {
        if (source.p[i] == '\r' && i + 1 < source.n && source.p[i + 1] == '\n') continue;
        p[n++] = source.p[i] == '\r' ? '\n' : source.p[i];
    }
    if (n > 0 && p[n - 1] == '\n') n--;
    p[n] = 0;
    l->c = c;
    l->p = p;
    l->n = n;
    l->line = 1;
    l->begin = JT_EOF;
}

static jtok make(jlex *l, jtok_kind kind, size_t from, size_t to) {
    if (++l->n_tokens > JLEX_TOKENS_MAX) j_limit(l->c, "more than %d tokens", JLEX_TOKENS_MAX);
    return (jtok){.kind = kind, .line = l->line, .p = l->p + from, .n = to - from};
}

/* Go on at `to`, counting the lines in between. */
static void move_to(jlex *l, size_t to) {
    for (size_t i = l->at; i < to; i++) l->line += l->p[i] == '\n';
    l->at = to;
    l->c->line = l->line;
}

static bool looking_at(const jlex *l, size_t at, const char *text) {
    size_t n = strlen(text);
    return n <= l->n - at && memcmp(l->p + at, text, n) == 0;
}

static bool space_at(const jlex *l, size_t at, size_t *n) {
    return at < l->n && letter_is_space(letter_read(l->p + at, n));
}

static size_t skip_spaces(const jlex *l, size_t at) {
    size_t n;
    while (space_at(l, at, &n)) at += n;
    return at;
}

/* The end of the text [from, to) after trimming by the tag behind it. */
static size_t trim_text(const jlex *l, size_t from, size_t to, char sign, bool is_variable) {
    size_t start = to, n;
    if (sign == '-') {
        while (to > from) {
            size_t at = to - 1;
            while (!letter_starts(l->p[at])) at--;
            if (!letter_is_space(letter_read(l->p + at, &n))) break;
            to = at;
        }
        return to;
    }
    if (sign == '+' || is_variable) return to;
    while (start > from && l->p[start - 1] != '\n') start--;
    bool line_starts = start > from || start == 0 || l->p[start - 1] == '\n';
    return line_starts && skip_spaces(l, start) >= to ? start : to;
}

static char sign_at(const jlex *l, size_t at) {
    return at < l->n && (l->p[at] == '-' || l->p[at] == '+') ? l->p[at] : 0;
}

/* The position behind the end of a block tag or comment: `close` ends at `at`, with `sign` before
 * it.
 */
static size_t skip_after(const jlex *l, size_t at, char sign) {
    if (sign == '-') return skip_spaces(l, at);
    if (sign != '+' && at < l->n && l->p[at] == '\n') return at + 1;
    return at;
}

static void skip_comment(jlex *l) {
    size_t from = l->at + 2;
    if (sign_at(l, from) != 0) from++;
    for (size_t i = from; i + 1 < l->n; i++) {
        if (l->p[i] != '#' || l->p[i + 1] != '}') continue;
        char sign = i > from ? sign_at(l, i - 1) : 0;
        move_to(l, skip_after(l, i + 2, sign));
        return;
    }
    if (from < l->n) j_syntax(l->c, "missing end of comment tag");
    move_to(l, l->n); // nothing follows: Jinja does not miss the end then
}

/* Is there `{% word %}` at `at`?  Then its end (before trimming) and its signs. */
static bool word_tag_at(const jlex *l, size_t at, const char *word, size_t *end, char *first,
                        char *last) {
    if (!looking_at(l, at, "{%")) return false;
    at += 2;
    *first = sign_at(l, at);
    if (*first != 0) at++;
    at = skip_spaces(l, at);
    if (!looking_at(l, at, word)) return false;
    at = skip_spaces(l, at + strlen(word));
    *last = sign_at(l, at);
    if (*last != 0) at++;
    if (!looking_at(l, at, "%}")) return false;
    *end = at + 2;
    return true;
}

static bool raw_at(const jlex *l, size_t at, size_t *end, char *last) {
    char first;
    return word_tag_at(l, at, "raw", end, &first, last) && *last != '+';
}

/* The text of the raw block that begins at l->at. */
static jtok lex_raw(jlex *l, size_t from, char last) {
    size_t end;
    char first;
    if (last == '-') from = skip_spaces(l, from);
    for (size_t i = from; i < l->n; i++) {
        if (l->p[i] != '{' || !word_tag_at(l, i, "endraw", &end, &first, &last)) continue;
        move_to(l, from);
        jtok text = make(l, JT_TEXT, from, trim_text(l, from, i, first, false));
        move_to(l, skip_after(l, end, last));
        return text;
    }
    if (from < l->n) j_syntax(l->c, "missing end of raw directive");
    move_to(l, l->n); // nothing follows: Jinja does not miss the end then
    return make(l, JT_TEXT, l->n, l->n);
}

static size_t find_tag(const jlex *l) {
    size_t at = l->at;
    while (at < l->n) {
        const char *brace = memchr(l->p + at, '{', l->n - at);
        if (brace == NULL) break;
        at = (size_t)(brace - l->p);
        if (at + 1 < l->n && strchr("{%#", l->p[at + 1]) != NULL && l->p[at + 1] != 0) return at;
        at++;
    }
    return l->n;
}

static jtok begin_tag(jlex *l) {
    size_t from = l->at, to = from + 2 + (sign_at(l, from + 2) != 0);
    jtok_kind kind = l->begin;
    l->begin = JT_EOF;
    l->state = kind == JT_BLOCK_BEGIN ? JLEX_BLOCK : JLEX_VARIABLE;
    l->n_open = 0;
    jtok t = make(l, kind, from, to);
    move_to(l, to);
    return t;
}

static jtok lex_text(jlex *l) {
    for (;;) {
        if (l->begin != JT_EOF) return begin_tag(l);
        if (l->at >= l->n) return make(l, JT_EOF, l->n, l->n);
        size_t from = l->at, tag = find_tag(l);
        if (tag == l->n) {
            jtok rest = make(l, JT_TEXT, from, l->n);
            move_to(l, l->n);
            return rest;
        }
        char kind = l->p[tag + 1];
        jtok text =
            make(l, JT_TEXT, from, trim_text(l, from, tag, sign_at(l, tag + 2), kind == '{'));
        move_to(l, tag);
        size_t end;
        char last;
        if (kind == '#')
            skip_comment(l);
        else if (kind == '{')
            l->begin = JT_VARIABLE_BEGIN;
        else if (!raw_at(l, tag, &end, &last))
            l->begin = JT_BLOCK_BEGIN;
        else if (text.n == 0)
            return lex_raw(l, end, last); // else in the next call
        if (text.n > 0) return text;
    }
}

static bool is_name_start(char c) {
    return c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (unsigned char)c >= 0x80;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them; `at` when there are none. */
static size_t skip_digits(const jlex *l, size_t at) {
    if (at >= l->n || !is_digit(l->p[at])) return at;
    at++;
    while (at < l->n) {
        if (is_digit(l->p[at]))
            at++;
        else if (l->p[at] == '_' && at + 1 < l->n && is_digit(l->p[at + 1]))
            at += 2;
        else
            break;
    }
    return at;
}

static size_t skip_radix(const jlex *l, size_t at) {
    static const char hex[] = "0123456789abcdefABCDEF", binary[] = "01", octal[] = "01234567";
    if (at + 2 >= l->n || l->p[at] != '0') return at;
    char letter = (char)(l->p[at + 1] | 0x20);
    const char *set = letter == 'x' ? hex : letter == 'b' ? binary : letter == 'o' ? octal : NULL;
    if (set == NULL) return at;
    size_t to = at + 2;
    while (to < l->n) {
        size_t digit = to + (l->p[to] == '_');
        if (digit >= l->n || l->p[digit] == 0 || strchr(set, l->p[digit]) == NULL) break;
        to = digit + 1;
    }
    return to == at + 2 ? at : to;
}

static jtok lex_number(jlex *l) {
    size_t from = l->at, whole = skip_digits(l, from), to = whole;
    bool behind_dot = from > 0 && l->p[from - 1] == '.'; // x.0.1 are two subscripts
    if (!behind_dot) {
        if (to + 1 < l->n && l->p[to] == '.' && is_digit(l->p[to + 1])) to = skip_digits(l, to + 1);
        if (to < l->n && (l->p[to] | 0x20) == 'e') {
            size_t digits = to + 1 + (sign_at(l, to + 1) != 0);
            if (skip_digits(l, digits) > digits) to = skip_digits(l, digits);
        }
    }
    jtok_kind kind = JT_FLOAT;
    if (to == whole) {
        kind = JT_INTEGER;
        size_t radix = skip_radix(l, from);
        if (radix > from)
            to = radix;
        else if (l->p[from] == '0')
            for (size_t i = from; i < to; i++)
                if (l->p[i] != '0' && l->p[i] != '_')
                    j_syntax(l->c, "a number may not begin with 0");
    }
    jtok t = make(l, kind, from, to);
    l->at = to;
    return t;
}

static jtok lex_string(jlex *l) {
    char quote = l->p[l->at];
    size_t to = l->at + 1;
    while (to < l->n && l->p[to] != quote) to += l->p[to] == '\\' ? 2 : 1;
    if (to >= l->n) j_syntax(l->c, "a string without an end");
    jtok t = make(l, JT_STRING, l->at + 1, to);
    move_to(l, to + 1);
    return t;
}

static jtok lex_name(jlex *l) {
    size_t to = l->at;
    while (to < l->n && (is_name_start(l->p[to]) || is_digit(l->p[to]))) to++;
    jtok t = make(l, JT_NAME, l->at, to);
    l->at = to;
    return t;
}

static void balance(jlex *l, char c) {
    char closing = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (closing != 0) {
        if (l->n_open == JLEX_OPEN_MAX) j_limit(l->c, "more than %d brackets", JLEX_OPEN_MAX);
        l->open[l->n_open++] = closing;
        return;
    }
    if (c != ')' && c != ']' && c != '}') return;
    if (l->n_open == 0) j_syntax(l->c, "unexpected '%c'", c);
    char wanted = l->open[--l->n_open];
    if (wanted != c) j_syntax(l->c, "unexpected '%c', expected '%c'", c, wanted);
}

static jtok lex_operator(jlex *l) {
    static const struct {
        const char *text;
        jtok_kind kind;
    } operators[] = {
        {"**", JT_POW},   {"//", JT_FLOORDIV}, {"==", JT_EQ},      {"!=", JT_NE},
        {"<=", JT_LE},    {">=", JT_GE},       {"+", JT_ADD},      {"-", JT_SUB},
        {"*", JT_MUL},    {"/", JT_DIV},       {"%", JT_MOD},      {"~", JT_TILDE},
        {"<", JT_LT},     {">", JT_GT},        {"=", JT_ASSIGN},   {".", JT_DOT},
        {",", JT_COMMA},  {":", JT_COLON},     {"|", JT_PIPE},     {";", JT_SEMICOLON},
        {"(", JT_LPAREN}, {")", JT_RPAREN},    {"[", JT_LBRACKET}, {"]", JT_RBRACKET},
        {"{", JT_LBRACE}, {"}", JT_RBRACE},
    };
    for (size_t i = 0; i < INFERD_COUNT(operators); i++) {
        if (!looking_at(l, l->at, operators[i].text)) continue;
        balance(l, l->p[l->at]);
        jtok t = make(l, operators[i].kind, l->at, l->at + strlen(operators[i].text));
        l->at += t.n;
        return t;
    }
    j_syntax(l->c, "unexpected character '%c'", l->p[l->at]);
}

/* Does the tag end here?  Only outside of brackets: `}}` may close two dicts. */
static bool end_tag(jlex *l, jtok *out) {
    if (l->n_open > 0) return false;
    bool block = l->state == JLEX_BLOCK;
    char sign = sign_at(l, l->at);
    if (!block && sign == '+') sign = 0;
    size_t at = l->at + (sign != 0);
    if (!looking_at(l, at, block ? "%}" : "}}")) return false;
    *out = make(l, block ? JT_BLOCK_END : JT_VARIABLE_END, l->at, at + 2);
    at += 2;
    if (block)
        at = skip_after(l, at, sign);
    else if (sign == '-')
        at = skip_spaces(l, at);
    move_to(l, at);
    l->state = JLEX_TEXT;
    return true;
}

jtok jlex_next(jlex *l) {
    jtok t;
    if (l->state == JLEX_TEXT) return lex_text(l);
    move_to(l, skip_spaces(l, l->at));
    if (l->at >= l->n) return make(l, JT_EOF, l->n, l->n);
    if (end_tag(l, &t)) return t;
    char c = l->p[l->at];
    if (is_digit(c)) return lex_number(l);
    if (is_name_start(c)) return lex_name(l);
    if (c == '"' || c == '\'') return lex_string(l);
    return lex_operator(l);
}
