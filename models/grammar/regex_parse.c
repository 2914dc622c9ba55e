/* regex_parse.c - from a pattern to a tree.
 *
 * The syntax is that of ECMA-262 with the u flag, and lenient where ECMA-262 without it and Python
 * agree on a meaning: escaped punctuation, a brace or bracket that stands for itself, a "-" beside
 * a class in brackets.  Python's (?P<name>...), \A, \Z and {,n}, which are errors in ECMA-262, have
 * the meaning of Python.  What the two understand differently is refused.
 *
 * A group that is open is a frame on a stack. */
#include "regex_reader.h"

typedef struct frame {
    uint32_t alt; // the alternatives before this one; DFA_DEAD: none
    uint32_t seq; // this alternative
    size_t at;    // where the group begins
} frame;

typedef struct parser {
    reader in;
    bool wide; // what one of the languages accepts, not both
    const dfa_limits *limits;
    regex_tree *tree;
    frame *frames; // [n_frames] owned; the last one is open
    uint32_t n_frames, frames_capacity;
} parser;

/* ---- nodes ---- */

void regex_tree_deinit(regex_tree *t) {
    free(t->nodes);
    dfa_keys_deinit(&t->sets);
    *t = (regex_tree){0};
}

bool regex_add_node(regex_tree *t, regex_node node, uint32_t *out) {
    regex_node *p = dfa_grow(t->nodes, &t->capacity, (size_t)t->n + 1, sizeof *p);
    if (p == NULL) return false;
    t->nodes = p;
    t->nodes[t->n] = node;
    *out = t->n++;
    return true;
}

bool regex_add_seq(regex_tree *t, uint32_t a, uint32_t b, uint32_t *out) {
    *out = a == 0 ? b : a;
    if (a == 0 || b == 0) return true;
    return regex_add_node(t, (regex_node){.kind = REGEX_SEQ, .a = a, .b = b}, out);
}

static inferd_status add_node(parser *w, regex_node node, uint32_t *out) {
    return regex_add_node(w->tree, node, out) ? INFERD_OK : dfa_no_memory(w->in.err);
}

uint32_t regex_put_set(regex_tree *t, code_set *set) {
    bool added;
    code_set_normalize(set);
    return set->failed ? DFA_DEAD
                       : dfa_keys_put(&t->sets, (const uint32_t *)set->ranges, 2 * set->n, &added);
}

static inferd_status add_set(parser *w, code_set *set, uint32_t *out) {
    uint32_t number = regex_put_set(w->tree, set);
    if (number == DFA_DEAD) return dfa_no_memory(w->in.err);
    return add_node(w, (regex_node){.kind = REGEX_SET, .a = number}, out);
}

/* The frame's alternatives as one node. */
static inferd_status close_frame(parser *w, const frame *f, uint32_t *out) {
    *out = f->seq;
    if (f->alt == DFA_DEAD) return INFERD_OK;
    return add_node(w, (regex_node){.kind = REGEX_ALT, .a = f->alt, .b = f->seq}, out);
}

/* ---- classes in brackets ---- */

/* One member: a code point, or DFA_DEAD when it is a class, which is in the sets by now. */
static inferd_status read_member(parser *w, code_set *both, code_set *either, uint32_t *code) {
    size_t begin = w->in.at;
    uint32_t c = next_code(&w->in);
    *code = c;
    if (c != '\\') return INFERD_OK;
    if (skip(&w->in, "b")) {
        *code = '\b';
        return INFERD_OK;
    }
    return regex_read_escape(&w->in, begin, both, either, code);
}

static void add_code(code_set *both, code_set *either, uint32_t first, uint32_t last) {
    code_set_add(both, first, last);
    code_set_add(either, first, last);
}

/* Members up to the bracket that closes the class at `begin`. */
static inferd_status read_members(parser *w, size_t begin, code_set *both, code_set *either) {
    for (;;) {
        uint32_t first, last;
        if (w->in.at >= w->in.n)
            return refuse(&w->in, INFERD_EINVAL, begin, "a class that does not end,");
        if (skip(&w->in, "]")) return INFERD_OK;
        size_t at = w->in.at;
        inferd_status s = read_member(w, both, either, &first);
        if (s != INFERD_OK) return s;
        bool is_range =
            looking_at(&w->in, "-") && w->in.at + 1 < w->in.n && w->in.p[w->in.at + 1] != ']';
        if (!is_range || first == DFA_DEAD) { // "-" after a class stands for itself
            if (first != DFA_DEAD) add_code(both, either, first, first);
            continue;
        }
        w->in.at++;
        s = read_member(w, both, either, &last);
        if (s != INFERD_OK) return s;
        if (last == DFA_DEAD) { // and so before a class
            add_code(both, either, first, first);
            add_code(both, either, '-', '-');
            continue;
        }
        if (first > last) return refuse(&w->in, INFERD_EINVAL, at, "a range out of order");
        add_code(both, either, first, last);
    }
}

/* After "[". */
static inferd_status read_class(parser *w, uint32_t *node) {
    size_t begin = w->in.at - 1;
    bool negated = skip(&w->in, "^");
    if (looking_at(&w->in, "]"))
        return refuse(&w->in, INFERD_EUNSUPPORTED, begin,
                      "a class that begins with \"]\", on which languages differ,");
    code_set both = {0}, either = {0};
    inferd_status s = read_members(w, begin, &both, &either);
    if (s == INFERD_OK) {
        code_set *set = negated != w->wide ? &either : &both;
        if (negated) code_set_complement(set);
        s = add_set(w, set, node);
    }
    code_set_deinit(&both);
    code_set_deinit(&either);
    return s;
}

/* ---- quantifiers ---- */

static uint32_t read_count(parser *w) {
    uint64_t value = 0;
    for (; w->in.at < w->in.n && w->in.p[w->in.at] >= '0' && w->in.p[w->in.at] <= '9'; w->in.at++)
        value = u64_min(value * 10 + (uint64_t)(w->in.p[w->in.at] - '0'), REGEX_NO_MAX - 1);
    return (uint32_t)value;
}

/* {m} {m,} {m,n} {,n}; false: the brace stands for itself, and the place is as it was. */
static bool read_braces(parser *w, uint32_t *min, uint32_t *max) {
    size_t begin = w->in.at++;
    *min = read_count(w);
    bool any = w->in.at > begin + 1;
    *max = *min;
    if (skip(&w->in, ",")) {
        size_t second = w->in.at;
        *max = read_count(w);
        if (w->in.at == second) *max = REGEX_NO_MAX;
        any |= w->in.at > second;
    }
    if (any && skip(&w->in, "}")) return true;
    w->in.at = begin;
    return false;
}

static bool read_quantifier(parser *w, uint32_t *min, uint32_t *max) {
    *min = 0;
    *max = REGEX_NO_MAX;
    if (w->in.at >= w->in.n) return false;
    switch (w->in.p[w->in.at]) {
    case '*':
        break;
    case '+':
        *min = 1;
        break;
    case '?':
        *max = 1;
        break;
    case '{':
        return read_braces(w, min, max);
    default:
        return false;
    }
    w->in.at++;
    return true;
}

/* The quantifier behind an atom, if there is one. */
static inferd_status repeat(parser *w, uint32_t *node) {
    uint32_t min, max, other_min, other_max;
    size_t begin = w->in.at;
    if (!read_quantifier(w, &min, &max)) return INFERD_OK;
    if (min > max) return refuse(&w->in, INFERD_EINVAL, begin, "a count out of order");
    uint32_t count = max == REGEX_NO_MAX ? min : max;
    if (count > w->limits->repeat_max)
        return inferd_fail(w->in.err, INFERD_ETOOLONG,
                           "pattern: a count of %u at byte %zu; the limit is %u", count, begin,
                           w->limits->repeat_max);
    skip(&w->in, "?"); // fewest first: the same texts
    size_t second = w->in.at;
    if (looking_at(&w->in, "+"))
        return refuse(&w->in, INFERD_EUNSUPPORTED, second,
                      "a possessive quantifier, not enforceable,");
    if (read_quantifier(w, &other_min, &other_max))
        return refuse(&w->in, INFERD_EINVAL, second, "a quantifier behind a quantifier");
    if (max == 0) *node = 0;
    if (*node == 0 || (min == 1 && max == 1)) return INFERD_OK;
    return add_node(w, (regex_node){.kind = REGEX_REPEAT, .a = *node, .min = min, .max = max},
                    node);
}

/* ---- groups ---- */

/* The name of a group, up to ">". */
static inferd_status skip_name(parser *w, size_t begin) {
    const char *end =
        w->in.at < w->in.n ? memchr(w->in.p + w->in.at, '>', w->in.n - w->in.at) : NULL;
    if (end == NULL || end == w->in.p + w->in.at)
        return refuse(&w->in, INFERD_EINVAL, begin, "a group without a name");
    w->in.at = (size_t)(end - w->in.p) + 1;
    return INFERD_OK;
}

/* After "(?". */
static inferd_status read_group_kind(parser *w, size_t begin) {
    static const struct {
        const char *text, *what;
    } others[] = {
        {"=", "a look-ahead, not enforceable,"},
        {"!", "a negative look-ahead, not enforceable,"},
        {"<=", "a look-behind, not enforceable,"},
        {"<!", "a negative look-behind, not enforceable,"},
        {"P=", "a back-reference, not enforceable,"},
        {">", "an atomic group, not enforceable,"},
        {"(", "a conditional, not enforceable,"},
        {"#", "a comment, on which languages differ,"},
    };
    if (skip(&w->in, ":")) return INFERD_OK;
    for (size_t i = 0; i < INFERD_COUNT(others); i++)
        if (looking_at(&w->in, others[i].text))
            return refuse(&w->in, INFERD_EUNSUPPORTED, begin, others[i].what);
    if (skip(&w->in, "<") || skip(&w->in, "P<")) return skip_name(w, begin);
    if (w->in.at < w->in.n && strchr("aiLmsuxU-", w->in.p[w->in.at]) != NULL)
        return refuse(&w->in, INFERD_EUNSUPPORTED, begin, "flags, not enforceable,");
    return refuse(&w->in, INFERD_EINVAL, begin, "an unknown group");
}

/* After "(", or at the beginning. */
static inferd_status open_group(parser *w, size_t begin) {
    if (w->n_frames > w->limits->nesting_max)
        return inferd_fail(w->in.err, INFERD_ETOOLONG,
                           "pattern: groups nested deeper than %u at byte %zu",
                           w->limits->nesting_max, begin);
    frame *p = dfa_grow(w->frames, &w->frames_capacity, (size_t)w->n_frames + 1, sizeof *p);
    if (p == NULL) return dfa_no_memory(w->in.err);
    w->frames = p;
    w->frames[w->n_frames++] = (frame){.alt = DFA_DEAD, .at = begin};
    return INFERD_OK;
}

/* ---- atoms ---- */

static inferd_status read_atom_escape(parser *w, size_t begin, uint32_t *node) {
    if (skip(&w->in, "b") || skip(&w->in, "B"))
        return refuse(&w->in, INFERD_EUNSUPPORTED, begin, "a word boundary, not enforceable,");
    if (skip(&w->in, "A")) return add_node(w, (regex_node){.kind = REGEX_BEGIN}, node);
    if (skip(&w->in, "Z") || skip(&w->in, "z"))
        return add_node(w, (regex_node){.kind = REGEX_END}, node);
    code_set both = {0}, either = {0};
    uint32_t code;
    inferd_status s = regex_read_escape(&w->in, begin, &both, &either, &code);
    if (s == INFERD_OK) {
        code_set *set = w->wide ? &either : &both;
        if (code != DFA_DEAD) code_set_add(set, code, code);
        s = add_set(w, set, node);
    }
    code_set_deinit(&both);
    code_set_deinit(&either);
    return s;
}

/* In Python "$" stands before a newline at the end, too. */
static inferd_status add_end(parser *w, uint32_t *node) {
    uint32_t end, newline;
    code_set set = {0};
    inferd_status s = add_node(w, (regex_node){.kind = REGEX_END}, &end);
    *node = end;
    if (s != INFERD_OK || !w->wide) return s;
    code_set_add(&set, '\n', '\n');
    s = add_set(w, &set, &newline);
    code_set_deinit(&set);
    if (s == INFERD_OK && !regex_add_seq(w->tree, newline, end, &newline))
        s = dfa_no_memory(w->in.err);
    if (s != INFERD_OK) return s;
    return add_node(w, (regex_node){.kind = REGEX_ALT, .a = end, .b = newline}, node);
}

/* What a quantifier may follow, but for a group. */
static inferd_status read_atom(parser *w, uint32_t *node) {
    size_t begin = w->in.at;
    uint32_t c = next_code(&w->in);
    code_set set = {0};
    switch (c) {
    case '^':
        return add_node(w, (regex_node){.kind = REGEX_BEGIN}, node);
    case '$':
        return add_end(w, node);
    case '[':
        return read_class(w, node);
    case '\\':
        return read_atom_escape(w, begin, node);
    case '*':
    case '+':
    case '?':
        return refuse(&w->in, INFERD_EINVAL, begin, "a quantifier with nothing before it");
    case '.':
        code_set_add_dot(&set, w->wide);
        break;
    default:
        code_set_add(&set, c, c);
        break;
    }
    inferd_status s = add_set(w, &set, node);
    code_set_deinit(&set);
    return s;
}

/* One step: a bar, a bracket of a group, or an atom with its quantifier. */
static inferd_status read_step(parser *w) {
    frame *top = &w->frames[w->n_frames - 1];
    uint32_t node;
    inferd_status s;
    size_t begin = w->in.at;
    if (skip(&w->in, "|")) {
        s = close_frame(w, top, &node);
        top->alt = node;
        top->seq = 0;
        return s;
    }
    if (skip(&w->in, "(")) {
        s = skip(&w->in, "?") ? read_group_kind(w, begin) : INFERD_OK;
        return s == INFERD_OK ? open_group(w, begin) : s;
    }
    if (skip(&w->in, ")")) {
        if (w->n_frames == 1) return refuse(&w->in, INFERD_EINVAL, begin, "\")\" without \"(\"");
        s = close_frame(w, top, &node);
        w->n_frames--;
        top = &w->frames[w->n_frames - 1];
    } else {
        uint32_t min, max;
        if (looking_at(&w->in, "{") && read_braces(w, &min, &max))
            return refuse(&w->in, INFERD_EINVAL, begin, "a quantifier with nothing before it");
        s = read_atom(w, &node);
    }
    if (s == INFERD_OK) s = repeat(w, &node);
    if (s == INFERD_OK && !regex_add_seq(w->tree, top->seq, node, &top->seq))
        s = dfa_no_memory(w->in.err);
    return s;
}

inferd_status regex_parse(bytes pattern, size_t begin, size_t end, bool wide,
                          const dfa_limits *limits, regex_tree *out, inferd_err *err) {
    *out = (regex_tree){0};
    parser w = {
        .in = {.p = pattern.p, .n = end, .at = begin, .err = err},
        .wide = wide,
        .limits = limits,
        .tree = out,
    };
    if (pattern.n > limits->pattern_bytes_max)
        return inferd_fail(err, INFERD_ETOOLONG, "pattern: %zu bytes; the limit is %u", pattern.n,
                           limits->pattern_bytes_max);
    size_t n_valid = utf8_valid_bytes((const unsigned char *)pattern.p, pattern.n);
    if (n_valid < pattern.n) return refuse(&w.in, INFERD_EINVAL, n_valid, "no UTF-8");
    uint32_t empty;
    inferd_status s = add_node(&w, (regex_node){.kind = REGEX_EMPTY}, &empty);
    if (s == INFERD_OK) s = open_group(&w, begin);
    while (s == INFERD_OK && w.in.at < w.in.n) s = read_step(&w);
    if (s == INFERD_OK && w.n_frames > 1)
        s = refuse(&w.in, INFERD_EINVAL, w.frames[w.n_frames - 1].at, "a group that does not end,");
    if (s == INFERD_OK) s = close_frame(&w, &w.frames[0], &out->root);
    free(w.frames);
    if (s != INFERD_OK) regex_tree_deinit(out);
    return s;
}
