/* regex.c - patterns and lengths become automata: the parts of regex_private.h in their order. */
#include "regex_private.h"

static uint32_t put_any(regex_tree *t) {
    code_set any = {0};
    code_set_add(&any, 0, CODE_POINT_MAX);
    uint32_t set = regex_put_set(t, &any);
    code_set_deinit(&any);
    return set;
}

/* The tree is the pattern's from now on. */
static inferd_status compile_tree(regex_tree *tree, regex_use use, const dfa_limits *limits,
                                  dfa *out, inferd_err *err) {
    uint32_t any = DFA_DEAD;
    symbols sym = {0};
    nfa n = {0};
    dfa_table table = {0};
    inferd_status s = INFERD_OK;
    if (use == REGEX_JSON_SEARCH) {
        any = put_any(tree);
        if (any == DFA_DEAD) s = dfa_no_memory(err);
    }
    if (s == INFERD_OK && !symbols_of_sets(&tree->sets, &sym)) s = dfa_no_memory(err);
    if (s == INFERD_OK) s = nfa_of_tree(tree, any, limits, &n, err);
    if (s == INFERD_OK) s = nfa_determinize(&n, &sym, limits, &table, err);
    if (s == INFERD_OK) s = regex_bytes(&table, &sym, use != REGEX_TEXT, limits, out, err);
    dfa_table_deinit(&table);
    free(n.states);
    symbols_deinit(&sym);
    regex_tree_deinit(tree);
    return s;
}

inferd_status regex_compile(bytes pattern, regex_use use, const dfa_limits *limits, dfa *out,
                            inferd_err *err) {
    regex_tree tree;
    *out = (dfa){0};
    inferd_status s = regex_parse(pattern, limits, &tree, err);
    return s == INFERD_OK ? compile_tree(&tree, use, limits, out, err) : s;
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
