/* fuzz_gbnf.c - any bytes as a grammar.  Whatever they are, compiling ends soon, a refusal has a
 * sentence, and a text that completes the grammar is accepted by it. */
#include "models/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { END_ID = 256, TEXT_MAX = 256 };

static const grammar_limits *small_limits(void) {
    static grammar_limits limits;
    limits = grammar_limits_default;
    limits.source_bytes_max = 4096;
    limits.nodes_max = 5000;
    limits.dfa_states_max = 512;
    limits.stack_max = 32;
    limits.configs_max = 64;
    limits.machine_bytes_max = 1 << 16;
    limits.mask_bytes_max = 1 << 16;
    limits.compile_ms_max = 500;
    return &limits;
}

static grammar_machine *machine_of(grammar *g) {
    static char all[256];
    bytes pieces[257] = {{0}};
    for (int b = 0; b < 256; b++) {
        all[b] = (char)b;
        pieces[b] = (bytes){&all[b], 1};
    }
    tok_id end = END_ID;
    grammar_vocab *v = NULL;
    grammar_machine *m = NULL;
    INFERD_CHECK(grammar_vocab_of_pieces(pieces, 257, &end, 1, &v, NULL) == INFERD_OK);
    if (grammar_machine_create(g, v, &m, NULL) != INFERD_OK) m = NULL;
    grammar_vocab_release(v);
    return m;
}

static void check_complete(grammar_machine *m) {
    buf text = {0};
    grammar_pos p = grammar_start(m);
    if (p != 0 && grammar_complete(m, p, TEXT_MAX, &text)) {
        grammar_drop(m, p);
        p = grammar_start(m);
        inferd_err err = {0};
        bytes all = {buf_cstr(&text), text.n};
        bool accepted = p != 0 && (text.n == 0 || grammar_accept_bytes(m, p, all, &err));
        INFERD_CHECK(accepted || p == 0 || err.status == INFERD_ETOOLONG);
        INFERD_CHECK(!accepted || grammar_may_end(m, p));
    }
    if (p != 0) grammar_drop(m, p);
    buf_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    grammar_options options = {.limits = small_limits()};
    grammar *g = NULL;
    inferd_err err = {0};
    if (grammar_of_gbnf((bytes){(const char *)data, n}, &options, &g, &err) != INFERD_OK) {
        INFERD_CHECK(g == NULL && err.status != INFERD_OK && err.text[0] != 0);
        return 0;
    }
    INFERD_CHECK(err.status == INFERD_OK);
    grammar_machine *m = machine_of(g);
    grammar_release(g);
    if (m == NULL) return 0;
    check_complete(m);
    grammar_machine_release(m);
    return 0;
}
