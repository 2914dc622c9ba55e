/* Expressions, by precedence, loosest first; each level is a function:
 *
 *     a if b else c   or   and   not   == != < <= > >= in   + -   ~   * / // %   **
 *     unary - +       then postfix .x [x] (x), then |filter and `is test` */
#include "chat/interp.h"
#include "chat/parse.h"

static jnode *parse_or(jparser *p);
static jnode *parse_primary(jparser *p, bool namespaces);
static jnode *parse_postfix(jparser *p, jnode *node);

const jstr *jparse_name(jparser *p) {
    if (p->now.kind != JT_NAME) jparse_unexpected(p);
    const jstr *name = jstr_copy(p->c, p->now.p, p->now.n, JMARK_TEMPLATE);
    jparse_step(p);
    return name;
}

static jnode *make_1(jparser *p, jnode_kind kind, uint32_t line, jnode *kid) {
    jnode_list kids = {0};
    jparse_push(p, &kids, kid);
    return jparse_finish(p, jparse_node(p, kind, line), &kids);
}

/* `first` and further operands by `parse`, while there is an operator: one node with many kids. */
typedef int (*op_reader)(jparser *p); // the operator, skipped; -1: none

static jnode *parse_chain(jparser *p, jnode_kind kind, jnode *(*parse)(jparser *p),
                          op_reader read_op) {
    uint32_t line = p->now.line;
    jnode *first = parse(p);
    int op = read_op(p);
    if (op < 0) return first;
    jnode_list kids = {0};
    uint8_t *ops = NULL;
    size_t n_ops = 0, capacity = 0;
    jparse_push(p, &kids, first);
    for (; op >= 0; op = read_op(p)) {
        ops = j_grow_array(p->c, ops, n_ops, &capacity, 1);
        ops[n_ops++] = (uint8_t)op;
        jparse_push(p, &kids, parse(p));
    }
    jnode *node = jparse_node(p, kind, line);
    node->ops = ops;
    return jparse_finish(p, node, &kids);
}

static int read_or(jparser *p) {
    return jparse_skip_name(p, "or") ? 0 : -1;
}
static int read_and(jparser *p) {
    return jparse_skip_name(p, "and") ? 0 : -1;
}
static int read_tilde(jparser *p) {
    return jparse_skip(p, JT_TILDE) ? 0 : -1;
}
static int read_pow(jparser *p) {
    return jparse_skip(p, JT_POW) ? JOP_POW : -1;
}
static int read_add(jparser *p) {
    if (jparse_skip(p, JT_ADD)) return JOP_ADD;
    return jparse_skip(p, JT_SUB) ? JOP_SUB : -1;
}
static int read_mul(jparser *p) {
    if (jparse_skip(p, JT_MUL)) return JOP_MUL;
    if (jparse_skip(p, JT_DIV)) return JOP_DIV;
    if (jparse_skip(p, JT_FLOORDIV)) return JOP_FLOORDIV;
    return jparse_skip(p, JT_MOD) ? JOP_MOD : -1;
}

static int read_compare(jparser *p) {
    static const struct {
        jtok_kind kind;
        int op;
    } ops[] = {{JT_EQ, JOP_EQ}, {JT_NE, JOP_NE}, {JT_LT, JOP_LT},
               {JT_LE, JOP_LE}, {JT_GT, JOP_GT}, {JT_GE, JOP_GE}};
    for (size_t i = 0; i < INFERD_COUNT(ops); i++)
        if (jparse_skip(p, ops[i].kind)) return ops[i].op;
    if (jparse_skip_name(p, "in")) return JOP_IN;
    if (!jparse_at_name(p, "not") || p->next.kind != JT_NAME || p->next.n != 2 ||
        memcmp(p->next.p, "in", 2) != 0)
        return -1;
    jparse_step(p);
    jparse_step(p);
    return JOP_NOT_IN;
}

/* Escapes as in a Python string. */
static size_t read_escape(jparser *p, const char *s, size_t n, jbuf *out) {
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = n > 1 && s[1] != 0 ? strchr(letters, s[1]) : NULL;
    uint32_t cp = 0;
    size_t digits = 0, i = 2;
    if (n > 1 && s[1] == '\n') return 2;
    if (known != NULL) {
        jbuf_add(out, &values[known - letters], 1, JMARK_TEMPLATE);
        return 2;
    }
    if (n > 1 && s[1] >= '0' && s[1] <= '7') {
        for (i = 1; i < n && i < 4 && s[i] >= '0' && s[i] <= '7'; i++)
            cp = cp * 8 + (uint32_t)(s[i] - '0');
        jbuf_add_cp(out, cp, JMARK_TEMPLATE);
        return i;
    }
    if (n > 1) digits = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
    if (n > 1 && s[1] == 'N') j_syntax(p->c, "character names (\\N) are not available");
    if (digits == 0) { // not an escape: the backslash stays
        jbuf_add(out, s, 1, JMARK_TEMPLATE);
        return 1;
    }
    for (; i < n && i < 2 + digits; i++) {
        char c = s[i], lower = (char)(c | 0x20);
        bool number = c >= '0' && c <= '9';
        if (!number && (lower < 'a' || lower > 'f')) break;
        cp = cp * 16 + (uint32_t)(number ? c - '0' : lower - 'a' + 10);
    }
    if (i < 2 + digits) j_syntax(p->c, "truncated \\%c escape", s[1]);
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        j_syntax(p->c, "\\%c escape of no character", s[1]);
    jbuf_add_cp(out, cp, JMARK_TEMPLATE);
    return i;
}

/* String literals next to each other are one. */
static jnode *parse_string(jparser *p) {
    jnode *node = jparse_node(p, JN_CONST, p->now.line);
    jbuf text;
    jbuf_init(&text, p->c, 0);
    for (; p->now.kind == JT_STRING; jparse_step(p)) {
        const char *s = p->now.p;
        for (size_t i = 0; i < p->now.n;) {
            const char *slash = memchr(s + i, '\\', p->now.n - i);
            size_t plain = slash == NULL ? p->now.n - i : (size_t)(slash - s) - i;
            jbuf_add(&text, s + i, plain, JMARK_TEMPLATE);
            i += plain;
            if (i < p->now.n) i += read_escape(p, s + i, p->now.n - i, &text);
        }
    }
    node->value = jv_str(jbuf_str(&text, false));
    return node;
}

static jnode *parse_number(jparser *p) {
    jnode *node = jparse_node(p, JN_CONST, p->now.line);
    char text[64];
    size_t n = 0;
    for (size_t i = 0; i < p->now.n; i++) {
        if (p->now.p[i] == '_') continue;
        if (n + 1 >= sizeof text) j_syntax(p->c, "a number too long");
        text[n++] = p->now.p[i];
    }
    text[n] = 0;
    if (p->now.kind == JT_FLOAT) {
        node->value = jv_float(strtod(text, NULL));
    } else {
        char letter = (char)(text[1] | 0x20);
        int base = text[0] != '0'  ? 10
                   : letter == 'x' ? 16
                   : letter == 'o' ? 8
                   : letter == 'b' ? 2
                                   : 10;
        int64_t value = 0;
        for (const char *d = base == 10 ? text : text + 2; *d != 0; d++) {
            int digit = *d <= '9' ? *d - '0' : (*d | 0x20) - 'a' + 10;
            if (__builtin_mul_overflow(value, base, &value) ||
                __builtin_add_overflow(value, digit, &value))
                j_syntax(p->c, "an integer of more than 64 bits");
        }
        node->value = jv_int(value);
    }
    jparse_step(p);
    return node;
}

static void note_macro_use(jparser *p, uint32_t id) {
    for (jmacro_scope *m = p->macros; m != NULL; m = m->outer) {
        m->def->uses_caller |= id == JSYM_CALLER;
        m->def->uses_kwargs |= id == JSYM_KWARGS;
        m->def->uses_varargs |= id == JSYM_VARARGS;
    }
}

static jnode *parse_name(jparser *p, bool namespaces) {
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    jnode *node = jparse_node(p, JN_CONST, p->now.line);
    for (size_t i = 0; i < INFERD_COUNT(words); i++) {
        if (!jparse_skip_name(p, words[i])) continue;
        node->value = i < 4 ? jv_bool(i < 2) : jv_none();
        return node;
    }
    node->id = jparse_symbol(p, (bytes){p->now.p, p->now.n});
    jparse_step(p);
    if (namespaces && jparse_skip(p, JT_DOT)) {
        node->kind = JN_NS_ATTR;
        node->value = jv_str(jparse_name(p));
        return node;
    }
    node->kind = JN_NAME;
    note_macro_use(p, node->id);
    return node;
}

static jnode *parse_list(jparser *p) {
    jnode *node = jparse_node(p, JN_LIST, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    while (p->now.kind != JT_RBRACKET) {
        if (kids.n > 0) jparse_expect(p, JT_COMMA, "','");
        if (p->now.kind == JT_RBRACKET) break;
        jparse_push(p, &kids, jparse_expression(p));
    }
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_dict(jparser *p) {
    jnode *node = jparse_node(p, JN_DICT, p->now.line);
    jnode_list kids = {0};
    jparse_step(p);
    while (p->now.kind != JT_RBRACE) {
        if (kids.n > 0) jparse_expect(p, JT_COMMA, "','");
        if (p->now.kind == JT_RBRACE) break;
        jparse_push(p, &kids, jparse_expression(p));
        jparse_expect(p, JT_COLON, "':'");
        jparse_push(p, &kids, jparse_expression(p));
    }
    jparse_step(p);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_primary(jparser *p, bool namespaces) {
    jnode *node;
    switch (p->now.kind) {
    case JT_NAME:
        node = parse_name(p, namespaces);
        break;
    case JT_STRING:
        node = parse_string(p);
        break;
    case JT_INTEGER:
    case JT_FLOAT:
        node = parse_number(p);
        break;
    case JT_LPAREN:
        jparse_step(p);
        node = jparse_tuple(p, JTUPLE_PARENS, NULL);
        jparse_expect(p, JT_RPAREN, "')'");
        break;
    case JT_LBRACKET:
        node = parse_list(p);
        break;
    case JT_LBRACE:
        node = parse_dict(p);
        break;
    default:
        jparse_unexpected(p);
    }
    return node;
}

static bool at_subscript_end(const jparser *p) {
    return p->now.kind == JT_RBRACKET || p->now.kind == JT_COMMA;
}

static jnode *parse_subscript(jparser *p) {
    uint32_t line = p->now.line;
    jnode *start = p->now.kind == JT_COLON ? NULL : jparse_expression(p);
    if (!jparse_skip(p, JT_COLON)) return start;
    jnode_list kids = {0};
    jparse_push(p, &kids, start);
    bool stop = p->now.kind != JT_COLON && !at_subscript_end(p);
    jparse_push(p, &kids, stop ? jparse_expression(p) : NULL);
    bool step = jparse_skip(p, JT_COLON) && !at_subscript_end(p);
    jparse_push(p, &kids, step ? jparse_expression(p) : NULL);
    return jparse_finish(p, jparse_node(p, JN_SLICE, line), &kids);
}

static jnode *parse_item(jparser *p, jnode *owner) {
    uint32_t line = p->now.line;
    jnode_list subscripts = {0}, kids = {0};
    jparse_step(p);
    while (p->now.kind != JT_RBRACKET) {
        if (subscripts.n > 0) jparse_expect(p, JT_COMMA, "','");
        jparse_push(p, &subscripts, parse_subscript(p));
    }
    jparse_step(p);
    jparse_push(p, &kids, owner);
    jparse_push(p, &kids,
                subscripts.n == 1 ? subscripts.v[0]
                                  : jparse_finish(p, jparse_node(p, JN_TUPLE, line), &subscripts));
    return jparse_finish(p, jparse_node(p, JN_ITEM, line), &kids);
}

static jnode *parse_attr(jparser *p, jnode *owner) {
    uint32_t line = p->now.line;
    jnode_list kids = {0};
    jparse_step(p);
    jparse_push(p, &kids, owner);
    if (p->now.kind == JT_INTEGER) { // x.0 is x[0]
        jparse_push(p, &kids, parse_number(p));
        return jparse_finish(p, jparse_node(p, JN_ITEM, line), &kids);
    }
    jnode *node = jparse_node(p, JN_ATTR, line);
    node->value = jv_str(jparse_name(p));
    return jparse_finish(p, node, &kids);
}

static void deepen(uint16_t *depth, const jnode *kid) {
    if (kid->depth >= *depth) *depth = (uint16_t)(kid->depth + 1);
}

static void parse_keyword(jparser *p, jargs *args, jnode_list *kw, size_t *capacity) {
    args->kw_names = j_grow_array(p->c, args->kw_names, kw->n, capacity, sizeof *args->kw_names);
    args->kw_names[kw->n] = jparse_name(p);
    jparse_step(p);
    jparse_push(p, kw, jparse_expression(p));
}

/* From '(' to behind ')'. */
jargs *jparse_args(jparser *p, uint16_t *depth) {
    jargs *args = j_take(p->c, sizeof *args);
    jnode_list pos = {0}, kw = {0};
    size_t capacity = 0;
    *args = (jargs){0};
    jparse_expect(p, JT_LPAREN, "'('");
    for (bool first = true; p->now.kind != JT_RPAREN; first = false) {
        if (!first) jparse_expect(p, JT_COMMA, "','");
        if (p->now.kind == JT_RPAREN) break;
        bool last = args->star_star != NULL;
        if (p->now.kind == JT_MUL && args->star == NULL && !last) {
            jparse_step(p);
            args->star = jparse_expression(p);
            deepen(depth, args->star);
        } else if (p->now.kind == JT_POW && !last) {
            jparse_step(p);
            args->star_star = jparse_expression(p);
            deepen(depth, args->star_star);
        } else if (p->now.kind == JT_NAME && p->next.kind == JT_ASSIGN && !last) {
            parse_keyword(p, args, &kw, &capacity);
            deepen(depth, kw.v[kw.n - 1]);
        } else if (args->star == NULL && kw.n == 0 && !last) {
            jparse_push(p, &pos, jparse_expression(p));
            deepen(depth, pos.v[pos.n - 1]);
        } else
            j_syntax(p->c, "invalid syntax for function call expression");
    }
    jparse_step(p);
    args->pos = pos.v;
    args->n_pos = pos.n;
    args->kw = kw.v;
    args->n_kw = kw.n;
    return args;
}

static jnode *parse_call(jparser *p, jnode *callee) {
    jnode_list kids = {0};
    jnode *node = jparse_node(p, JN_CALL, p->now.line);
    jparse_push(p, &kids, callee);
    node->args = jparse_args(p, &node->depth);
    return jparse_finish(p, node, &kids);
}

static jnode *parse_postfix(jparser *p, jnode *node) {
    for (;;) {
        if (p->now.kind == JT_DOT)
            node = parse_attr(p, node);
        else if (p->now.kind == JT_LBRACKET)
            node = parse_item(p, node);
        else if (p->now.kind == JT_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

static const jargs no_args;

jnode *jparse_filters(jparser *p, jnode *value, bool begun) {
    while (begun || jparse_skip(p, JT_PIPE)) {
        jnode_list kids = {0};
        jnode *node = jparse_node(p, JN_FILTER, p->now.line);
        begun = false;
        node->value = jv_str(jparse_name(p));
        node->fn = jfilter_find(node->value.u.s);
        node->args = p->now.kind == JT_LPAREN ? jparse_args(p, &node->depth) : &no_args;
        jparse_push(p, &kids, value);
        value = jparse_finish(p, node, &kids);
    }
    return value;
}

/* The test after `is`.  One argument may have no brackets: `x is divisibleby 3`. */
static jnode *parse_test(jparser *p, jnode *value) {
    jnode_list kids = {0};
    jnode *node = jparse_node(p, JN_TEST, p->now.line);
    jparse_step(p);
    bool negated = jparse_skip_name(p, "not");
    node->value = jv_str(jparse_name(p));
    node->fn = jtest_find(node->value.u.s);
    node->args = &no_args;
    jtok_kind kind = p->now.kind;
    bool word = kind == JT_NAME && !jparse_at_name(p, "else") && !jparse_at_name(p, "or") &&
                !jparse_at_name(p, "and");
    if (kind == JT_LPAREN) {
        node->args = jparse_args(p, &node->depth);
    } else if (word || kind == JT_STRING || kind == JT_INTEGER || kind == JT_FLOAT ||
               kind == JT_LBRACKET || kind == JT_LBRACE) {
        if (jparse_at_name(p, "is")) j_syntax(p->c, "you cannot chain multiple tests with is");
        jnode_list pos = {0};
        jargs *args = j_take(p->c, sizeof *args);
        jparse_push(p, &pos, parse_postfix(p, parse_primary(p, false)));
        *args = (jargs){.pos = pos.v, .n_pos = 1};
        deepen(&node->depth, pos.v[0]);
        node->args = args;
    }
    jparse_push(p, &kids, value);
    node = jparse_finish(p, node, &kids);
    return negated ? make_1(p, JN_NOT, node->line, node) : node;
}

static jnode *parse_unary_with(jparser *p, bool filters) {
    uint32_t line = p->now.line;
    jnode *node;
    jnode_kind sign = p->now.kind == JT_SUB ? JN_NEGATE : JN_PLUS;
    if (jparse_skip(p, JT_SUB) || jparse_skip(p, JT_ADD)) {
        jparse_enter(p);
        node = make_1(p, sign, line, parse_unary_with(p, false));
        jparse_leave(p);
    } else
        node = parse_primary(p, false);
    node = parse_postfix(p, node);
    while (filters) {
        if (p->now.kind == JT_PIPE)
            node = jparse_filters(p, node, false);
        else if (jparse_at_name(p, "is"))
            node = parse_test(p, node);
        else if (p->now.kind == JT_LPAREN)
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

static jnode *parse_unary(jparser *p) {
    return parse_unary_with(p, true);
}
static jnode *parse_power(jparser *p) {
    return parse_chain(p, JN_ARITH, parse_unary, read_pow);
}
static jnode *parse_product(jparser *p) {
    return parse_chain(p, JN_ARITH, parse_power, read_mul);
}
static jnode *parse_concat(jparser *p) {
    return parse_chain(p, JN_CONCAT, parse_product, read_tilde);
}
static jnode *parse_sum(jparser *p) {
    return parse_chain(p, JN_ARITH, parse_concat, read_add);
}
static jnode *parse_compare(jparser *p) {
    return parse_chain(p, JN_COMPARE, parse_sum, read_compare);
}

static jnode *parse_not(jparser *p) {
    uint32_t line = p->now.line;
    if (!jparse_skip_name(p, "not")) return parse_compare(p);
    jparse_enter(p);
    jnode *node = make_1(p, JN_NOT, line, parse_not(p));
    jparse_leave(p);
    return node;
}

static jnode *parse_and(jparser *p) {
    return parse_chain(p, JN_AND, parse_not, read_and);
}
static jnode *parse_or(jparser *p) {
    return parse_chain(p, JN_OR, parse_and, read_or);
}

jnode *jparse_expression(jparser *p) {
    uint32_t line = p->now.line;
    jparse_enter(p);
    jnode *value = parse_or(p);
    while (jparse_skip_name(p, "if")) {
        jnode_list kids = {0};
        jparse_push(p, &kids, parse_or(p));
        jparse_push(p, &kids, value);
        jparse_push(p, &kids, jparse_skip_name(p, "else") ? jparse_expression(p) : NULL);
        value = jparse_finish(p, jparse_node(p, JN_IF_ELSE, line), &kids);
    }
    jparse_leave(p);
    return value;
}

static jnode *parse_element(jparser *p, int mode) {
    if (mode & JTUPLE_SIMPLE) return parse_primary(p, mode & JTUPLE_NAMESPACE);
    return mode & JTUPLE_NO_IF ? parse_or(p) : jparse_expression(p);
}

jnode *jparse_tuple(jparser *p, int mode, const char *end) {
    uint32_t line = p->now.line;
    jnode_list kids = {0};
    bool is_tuple = false;
    for (;;) {
        if (kids.n > 0) jparse_expect(p, JT_COMMA, "','");
        jtok_kind kind = p->now.kind;
        if (kind == JT_VARIABLE_END || kind == JT_BLOCK_END || kind == JT_RPAREN ||
            (end != NULL && jparse_at_name(p, end)))
            break;
        jparse_push(p, &kids, parse_element(p, mode));
        if (p->now.kind != JT_COMMA) break;
        is_tuple = true;
    }
    if (!is_tuple && kids.n > 0) return kids.v[0];
    if (!is_tuple && !(mode & JTUPLE_PARENS)) jparse_unexpected(p);
    return jparse_finish(p, jparse_node(p, JN_TUPLE, line), &kids);
}

static void check_target(jparser *p, const jnode *node) {
    if (node->kind == JN_TUPLE)
        for (size_t i = 0; i < node->n_kids; i++) check_target(p, node->kids[i]);
    else if (node->kind != JN_NAME && node->kind != JN_NS_ATTR)
        j_syntax(p->c, "cannot assign to this");
}

/* JTUPLE_SIMPLE: a single one, without commas. */
jnode *jparse_target(jparser *p, int mode, const char *end) {
    jnode *node = mode & JTUPLE_SIMPLE ? parse_primary(p, mode & JTUPLE_NAMESPACE)
                                       : jparse_tuple(p, mode | JTUPLE_SIMPLE, end);
    check_target(p, node);
    return node;
}
