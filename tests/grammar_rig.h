/* grammar_rig.h - grammars on a vocabulary of single bytes, for tests that read texts. */
#ifndef INFERD_GRAMMAR_RIG_H
#define INFERD_GRAMMAR_RIG_H

#include <string.h>

#include "models/grammar.h"
#include "test.h"

enum { RIG_END_ID = 256 };

/* Token b is the byte b, token 256 ends. */
static grammar_vocab *rig_bytes(void) {
    static char all[256];
    bytes pieces[257] = {{0}};
    for (int b = 0; b < 256; b++) {
        all[b] = (char)b;
        pieces[b] = (bytes){&all[b], 1};
    }
    tok_id end = RIG_END_ID;
    grammar_vocab *v = NULL;
    EXPECT(grammar_vocab_of_pieces(pieces, 257, &end, 1, &v, NULL) == INFERD_OK);
    return v;
}

/* Bytes of the text that are accepted; -1: all, and the text may end there. */
static inline int rig_read(grammar_machine *m, const char *text) {
    grammar_pos p = grammar_start(m);
    int n = 0, end = (int)strlen(text);
    while (n < end && grammar_accept_bytes(m, p, (bytes){text + n, 1}, NULL)) n++;
    bool whole = n == end && grammar_may_end(m, p);
    grammar_drop(m, p);
    return whole ? -1 : n;
}

static inline bool rig_accepts(grammar_machine *m, const char *text) {
    return rig_read(m, text) == -1;
}

/* Consumes the grammar. */
static grammar_machine *rig_machine(grammar *g) {
    grammar_vocab *v = rig_bytes();
    grammar_machine *m = NULL;
    if (g != NULL) EXPECT(grammar_machine_create(g, v, &m, NULL) == INFERD_OK);
    grammar_vocab_release(v);
    grammar_release(g);
    return m;
}

#endif
