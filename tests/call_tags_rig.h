/* call_tags_rig.h - in tests: which texts a message may be, by the grammar of call_tags, byte by
 * byte. */
#ifndef INFERD_CALL_TAGS_RIG_H
#define INFERD_CALL_TAGS_RIG_H

#include "calls_rig.h"
#include "models/grammar.h"

static inline grammar_vocab *byte_vocab(void) {
    static char all[256];
    static bytes pieces[257];
    static const tok_id end = 256;
    grammar_vocab *v = NULL;
    inferd_err err = {0};
    for (int i = 0; i < 256; i++) {
        all[i] = (char)i;
        pieces[i] = (bytes){all + i, 1};
    }
    EXPECT_EQ(grammar_vocab_of_pieces(pieces, 257, &end, 1, &v, &err), INFERD_OK);
    return v;
}

/* The machine of the texts that a message may be; NULL: it does not compile, which is a failure. */
static inline grammar_machine *machine_of(const call_format *f, const call_tags_options *o) {
    json_t *tags = call_tags(f, o);
    grammar *g = NULL;
    grammar_machine *m = NULL;
    inferd_err err = {0};
    json_t *left_out = json_array();
    grammar_limits limits = grammar_limits_default;
    grammar_options options = {.limits = &limits};
    limits.compile_ms_max = 20000; // sanitizers are slow
    grammar_schema_kind kind = {.any_order = true,
                                .tokens = true,
                                .spaced = f->spaced,
                                .compact = f->compact,
                                .weakened = left_out};
    grammar_vocab *v = byte_vocab();
    if (tags == NULL || grammar_of_tags(tags, &kind, &options, &g, &err) != INFERD_OK ||
        grammar_machine_create(g, v, &m, &err) != INFERD_OK) {
        char *text = tags == NULL ? NULL : json_dumps(tags, JSON_INDENT(1));
        printf("%s\n%s\n", err.text, text == NULL ? "" : text);
        free(text);
        test_failures++;
    }
    json_decref(tags);
    json_decref(left_out);
    grammar_release(g);
    grammar_vocab_release(v);
    return m;
}

/* Is the text one that the grammar allows?  If not, says where it stops. */
static inline bool allows(grammar_machine *m, const char *what, bytes text) {
    grammar_pos p = grammar_start(m);
    size_t i = 0;
    while (i < text.n && grammar_accept_bytes(m, p, (bytes){text.p + i, 1}, NULL)) i++;
    bool ok = i == text.n && grammar_may_end(m, p);
    if (!ok)
        printf("%s: %.*s >>HERE<< %.*s\n", what, (int)i, text.p, (int)(text.n - i), text.p + i);
    grammar_drop(m, p);
    return ok;
}

/* Only what may come behind the marks of calls counts: with CALL_AUTO the text before is free. */
static inline bool is_allowed(grammar_machine *m, bytes text) {
    grammar_pos p = grammar_start(m);
    size_t i = 0;
    while (i < text.n && grammar_accept_bytes(m, p, (bytes){text.p + i, 1}, NULL)) i++;
    bool ok = i == text.n && grammar_may_end(m, p);
    grammar_drop(m, p);
    return ok;
}

#endif
