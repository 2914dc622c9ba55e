/* regex.c - patterns and lengths become automata: the parts of regex_private.h in their order. */
#include "regex_private.h"

static uint32_t put_any(regex_tree *t) {
    code_set any = {0};
    code_set_add(&any, 0, CODE_POINT_MAX);
    uint32_t set = regex_put_set(t, &any);
    code_set_deinit(&any);
    return set;
}

/* How a pattern, or a part of it, is read. */
typedef struct language {
    bool json;     // in a JSON string
    bool search;   // anything may follow and, but for at_begin, come before
    bool at_begin; // as behind ^
    bool wide;     // as regex_parse has it
} language;

/* The tree is the pattern's from now on. */
static inferd_status compile_tree(regex_tree *tree, language l, const dfa_limits *limits, dfa *out,
                                  inferd_err *err) {
    uint32_t any = DFA_DEAD;
    symbols sym = {0};
    nfa n = {0};
    dfa_table table = {0};
    inferd_status s = INFERD_OK;
    if (l.search) {
        any = put_any(tree);
        if (any == DFA_DEAD) s = dfa_no_memory(err);
    }
    if (s == INFERD_OK && !symbols_of_sets(&tree->sets, &sym)) s = dfa_no_memory(err);
    if (s == INFERD_OK) s = nfa_of_tree(tree, any, limits, &n, err);
    if (s == INFERD_OK) s = nfa_determinize(&n, &sym, limits, &table, err);
    if (s == INFERD_OK) s = regex_bytes(&table, &sym, l.json, limits, out, err);
    dfa_table_deinit(&table);
    free(n.states);
    symbols_deinit(&sym);
    regex_tree_deinit(tree);
    return s;
}

static inferd_status compile_part(bytes pattern, size_t begin, size_t end, language l,
                                  const dfa_limits *limits, dfa *out, inferd_err *err) {
    regex_tree tree;
    uint32_t first;
    *out = (dfa){0};
    inferd_status s = regex_parse(pattern, begin, end, l.wide, limits, &tree, err);
    if (s != INFERD_OK) return s;
    if (l.at_begin && !(regex_add_node(&tree, (regex_node){.kind = REGEX_BEGIN}, &first) &&
                        regex_add_seq(&tree, first, tree.root, &tree.root))) {
        regex_tree_deinit(&tree);
        return dfa_no_memory(err);
    }
    return compile_tree(&tree, l, limits, out, err);
}

/* ---- look-aheads at the beginning: "^(?=x)(?!y)rest" is rest, and what begins with x, and not
 * what begins with y ---- */

enum { LOOKS_MAX = 8 };

typedef struct look {
    size_t begin, end; // of what is in it
    bool negative;
} look;

/* Where the group that is open at `at` ends, or for depth 0 where "|" stands; pattern.n: nowhere.
 * A pattern that is wrong is found by the parser. */
static size_t scan(bytes pattern, size_t at, unsigned depth, char wanted) {
    bool in_class = false;
    for (; at < pattern.n; at++) {
        char c = pattern.p[at];
        if (c == '\\')
            at++;
        else if (in_class)
            in_class = c != ']';
        else if (c == '[')
            in_class = true;
        else if (depth == 0 && c == wanted)
            return at;
        else if (c == '(')
            depth++;
        else if (c == ')' && depth > 0)
            depth--;
    }
    return pattern.n;
}

/* Returns how many there are, *rest where they end; 0 when what is there is no such beginning. */
static size_t find_looks(bytes pattern, bool search, look looks[LOOKS_MAX], size_t *rest) {
    size_t n = 0, at = pattern.n > 0 && pattern.p[0] == '^' ? 1 : 0;
    if (search && at == 0) return 0;
    while (n < LOOKS_MAX && pattern.n - at > 3 && memcmp(pattern.p + at, "(?", 2) == 0 &&
           (pattern.p[at + 2] == '=' || pattern.p[at + 2] == '!')) {
        size_t end = scan(pattern, at + 3, 0, ')');
        if (end >= pattern.n) return 0;
        looks[n++] = (look){at + 3, end, pattern.p[at + 2] == '!'};
        at = end + 1;
    }
    *rest = at;
    if (at < pattern.n && strchr("*+?{", pattern.p[at]) != NULL) return 0;
    return scan(pattern, at, 0, '|') < pattern.n ? 0 : n;
}

static inferd_status keep_looked_at(bytes pattern, look a, language l, const dfa_limits *limits,
                                    dfa *d, inferd_err *err) {
    dfa seen, kept;
    l.search = l.at_begin = true;
    l.wide = l.wide != a.negative;
    inferd_status s = compile_part(pattern, a.begin, a.end, l, limits, &seen, err);
    if (s != INFERD_OK) return s;
    s = a.negative ? dfa_and_not(d, &seen, limits, &kept, err)
                   : dfa_and(d, &seen, limits, &kept, err);
    dfa_deinit(&seen);
    if (s != INFERD_OK) return s;
    dfa_deinit(d);
    *d = kept;
    return dfa_minimize(d, err);
}

inferd_status regex_compile(bytes pattern, regex_use use, const dfa_limits *limits, dfa *out,
                            inferd_err *err) {
    look looks[LOOKS_MAX];
    size_t rest = 0;
    language l = {
        .json = use != REGEX_TEXT,
        .search = use == REGEX_JSON_SEARCH || use == REGEX_JSON_SEARCH_WIDE,
        .wide = use == REGEX_JSON_SEARCH_WIDE,
    };
    size_t n = find_looks(pattern, l.search, looks, &rest);
    if (n == 0) return compile_part(pattern, 0, pattern.n, l, limits, out, err);
    l.at_begin = true;
    inferd_status s = compile_part(pattern, rest, pattern.n, l, limits, out, err);
    for (size_t i = 0; s == INFERD_OK && i < n; i++)
        s = keep_looked_at(pattern, looks[i], l, limits, out, err);
    if (s != INFERD_OK) dfa_deinit(out);
    return s;
}

inferd_status dfa_of_json_lengths(uint32_t min, uint32_t max, const dfa_limits *limits, dfa *out,
                                  inferd_err *err) {
    *out = (dfa){0};
    if (min > max) return INFERD_OK; // no text
    uint32_t n = max == UINT32_MAX ? min : max, state;
    if (n >= limits->states_max)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "a length of %u characters needs more than %u states", n,
                           limits->states_max);
    regex_tree tree = {0};
    symbols sym = {0};
    dfa_table table = {0};
    inferd_status s = INFERD_OK;
    if (put_any(&tree) == DFA_DEAD || !symbols_of_sets(&tree.sets, &sym)) s = dfa_no_memory(err);
    table.n_columns = sym.n;
    for (uint32_t i = 0; s == INFERD_OK && i <= n; i++) { // state i: i characters were read
        if (!dfa_table_add(&table, &state)) s = dfa_no_memory(err);
        if (s == INFERD_OK && i > 0) dfa_table_row(&table, i - 1)[0] = i;
        if (s == INFERD_OK) table.tags[i] = i >= min;
    }
    if (s == INFERD_OK && max == UINT32_MAX) dfa_table_row(&table, n)[0] = n;
    if (s == INFERD_OK) s = regex_bytes(&table, &sym, true, limits, out, err);
    dfa_table_deinit(&table);
    symbols_deinit(&sym);
    regex_tree_deinit(&tree);
    return s;
}
