/* dfa_rig.h - automata for tests: made from patterns, asked with texts. */
#ifndef INFERD_DFA_RIG_H
#define INFERD_DFA_RIG_H

#include <string.h>

#include "grammar/dfa.h"
#include "test.h"

static inline bytes rig_text(const char *text) {
    return (bytes){text, strlen(text)};
}

/* Empty when the pattern is refused. */
static inline dfa rig_pattern(const char *pattern, regex_use use) {
    dfa d = {0};
    inferd_err err = {0};
    if (regex_compile(rig_text(pattern), use, &dfa_limits_default, &d, &err) != INFERD_OK)
        printf("%s: %s\n", pattern, err.text), test_failures++;
    return d;
}

static inline bool rig_match(const dfa *d, const char *text) {
    return dfa_match(d, rig_text(text)) != 0;
}

/* Each state can be reached and can accept, and classes are all told apart. */
static inline bool rig_is_trim(const dfa *d) {
    uint32_t n = d->n_states, n_left = 0;
    if (n == 0) return true;
    bool *reached = calloc(n, sizeof *reached), *live = calloc(n, sizeof *live);
    reached[0] = true;
    for (uint32_t s = 0; s < n; s++) live[s] = d->tags[s] != 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = 0; s < n; s++)
            for (uint32_t i = 0; i < dfa_n_ways(d, s); i++) {
                uint32_t to = dfa_way(d, s, i);
                if (to == DFA_DEAD) continue;
                if (reached[s] && !reached[to]) reached[to] = changed = true;
                if (live[to] && !live[s]) live[s] = changed = true;
            }
    }
    for (uint32_t s = 0; s < n; s++) n_left += !reached[s] || !live[s];
    free(reached);
    free(live);
    return n_left == 0;
}

/* "+text" is accepted, "-text" is not. */
static inline void rig_expect(const dfa *d, const char *what, const char *const *texts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool wanted = texts[i][0] == '+';
        if (rig_match(d, texts[i] + 1) == wanted) continue;
        printf("%s: \"%s\" is %s\n", what, texts[i] + 1, wanted ? "refused" : "accepted");
        test_failures++;
    }
}
#define RIG_TEXTS(...)                                                                             \
    (const char *const[]){__VA_ARGS__},                                                            \
        sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

#endif
