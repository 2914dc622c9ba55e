/* fuzz_regex.c - any bytes as a pattern and a text: "pattern NUL text".
 *
 * Checked: a refusal has a sentence; automata of texts are minimal; a text that is accepted as it
 * is, is accepted inside of a JSON string, and is found by a search; an automaton without itself is
 * empty; each state can reach an accepting one. */
#include "grammar/dfa.h"
#include "tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const dfa_limits limits = {
    .nfa_states_max = 4096,
    .states_max = 2048,
    .pattern_bytes_max = 1024,
    .nesting_max = 16,
    .repeat_max = 256,
};

static bool compile(bytes pattern, regex_use use, dfa *out) {
    inferd_err err = {0};
    inferd_status s = regex_compile(pattern, use, &limits, out, &err);
    INFERD_CHECK((s == INFERD_OK) == (err.status == INFERD_OK) && s == err.status);
    INFERD_CHECK(s == INFERD_OK || (err.text[0] != 0 && dfa_is_empty(out)));
    return s == INFERD_OK;
}

/* Each state can reach an accepting one. */
static void check_trim(const dfa *d) {
    bool *live = calloc(d->n_states + 1, sizeof *live);
    uint32_t n_live = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            bool now = d->tags[s] != 0;
            for (uint32_t i = 0; i < dfa_n_ways(d, s) && !now; i++)
                now = dfa_way(d, s, i) != DFA_DEAD && live[dfa_way(d, s, i)];
            if (!now || live[s]) continue;
            live[s] = changed = true;
            n_live++;
        }
    }
    INFERD_CHECK(n_live == d->n_states);
    free(live);
}

static void check_automaton(const dfa *d, bool minimal) {
    dfa small, none;
    INFERD_CHECK(dfa_copy(d, &small, NULL) == INFERD_OK);
    INFERD_CHECK(dfa_minimize(&small, NULL) == INFERD_OK);
    INFERD_CHECK(!minimal || small.n_states == d->n_states);
    INFERD_CHECK(dfa_and_not(d, &small, &limits, &none, NULL) == INFERD_OK);
    INFERD_CHECK(dfa_is_empty(&none));
    check_trim(d);
    dfa_deinit(&small);
    dfa_deinit(&none);
}

/* What both languages find, one finds. */
static void check_wide(bytes pattern, const dfa *search) {
    dfa wide, none;
    if (!compile(pattern, REGEX_JSON_SEARCH_WIDE, &wide)) return;
    if (dfa_and_not(search, &wide, &limits, &none, NULL) == INFERD_OK)
        INFERD_CHECK(dfa_is_empty(&none));
    dfa_deinit(&none);
    dfa_deinit(&wide);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const uint8_t *nul = n == 0 ? NULL : memchr(data, 0, n);
    size_t n_pattern = nul == NULL ? n : (size_t)(nul - data);
    bytes pattern = {(const char *)data, n_pattern}, text = {"", 0};
    if (nul != NULL) text = (bytes){(const char *)nul + 1, n - n_pattern - 1};
    bool valid = utf8_valid_bytes((const unsigned char *)text.p, text.n) == text.n;
    dfa plain, whole, search;
    if (!compile(pattern, REGEX_TEXT, &plain)) return 0;
    check_automaton(&plain, true);
    bool accepted = dfa_match(&plain, text) != 0;
    INFERD_CHECK(valid || !accepted);
    buf json = {0};
    json_canonical(&json, text);
    bytes content = {buf_cstr(&json), json.n};
    if (valid && compile(pattern, REGEX_JSON_WHOLE, &whole)) {
        INFERD_CHECK((dfa_match(&whole, content) != 0) == accepted);
        check_automaton(&whole, false);
        dfa_deinit(&whole);
    }
    if (valid && compile(pattern, REGEX_JSON_SEARCH, &search)) {
        INFERD_CHECK(dfa_match(&search, content) != 0 || !accepted);
        check_automaton(&search, false);
        check_wide(pattern, &search);
        dfa_deinit(&search);
    }
    buf_deinit(&json);
    dfa_deinit(&plain);
    return 0;
}
