/* fuzz_schema.c - JSON Schemas from strangers.  The first byte picks limits and kind.  Compiling
 * ends soon, with a sentence if it fails; what compiles allows texts, all of them JSON. */
#include "models/grammar.h"

#include <string.h>

#include "inferd/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static grammar_vocab *vocab_of_bytes(void) {
    static char all[256];
    bytes pieces[257] = {{0}};
    for (int b = 0; b < 256; b++) {
        all[b] = (char)b;
        pieces[b] = (bytes){&all[b], 1};
    }
    tok_id end = 256;
    grammar_vocab *v = NULL;
    inferd_err err = {0};
    INFERD_CHECK(grammar_vocab_of_pieces(pieces, 257, &end, 1, &v, &err) == INFERD_OK);
    return v;
}

static void expect_json(const buf *text) {
    json_error_t problem;
    json_t *value = json_loadb(
        text->p, text->n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &problem);
    INFERD_CHECK(value != NULL || strstr(problem.text, "overflow") != NULL ||
                 strstr(problem.text, "depth") != NULL || strstr(problem.text, "NUL") != NULL);
    json_decref(value);
}

/* Writes what the grammar allows, with the input's bytes as choices: what the mask has is accepted,
 * and where the text may end it is JSON. */
static void write_text(grammar *g, const uint8_t *choices, size_t n) {
    grammar_vocab *v = vocab_of_bytes();
    grammar_machine *m = NULL;
    inferd_err err = {0};
    INFERD_CHECK(grammar_machine_create(g, v, &m, &err) == INFERD_OK);
    grammar_pos p = grammar_start(m);
    buf text;
    buf_init(&text, 0);
    for (size_t i = 0; i < 200; i++) {
        grammar_mask *mask = grammar_mask_get(m, p, &err);
        if (mask == NULL) break; // a limit
        uint8_t allowed[256];
        size_t n_allowed = 0;
        for (int b = 0; b < 256; b++)
            if (grammar_mask_has(mask, b)) allowed[n_allowed++] = (uint8_t)b;
        bool may_end = grammar_mask_has(mask, 256);
        grammar_mask_release(mask);
        INFERD_CHECK(may_end == grammar_may_end(m, p));
        INFERD_CHECK(may_end || n_allowed > 0);
        if (may_end) expect_json(&text);
        if (n_allowed == 0) break;
        char next = (char)allowed[(choices[i % n] * 31u + i) % n_allowed];
        INFERD_CHECK(grammar_accept_bytes(m, p, (bytes){&next, 1}, &err));
        buf_add_char(&text, next);
    }
    buf_deinit(&text);
    grammar_drop(m, p);
    grammar_machine_release(m);
    grammar_vocab_release(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 1) return 0;
    grammar_limits limits = grammar_limits_default;
    if ((data[0] & 4) != 0) {
        limits.nodes_max = 50;
        limits.dfa_states_max = 64;
        limits.refs_max = 8;
    }
    limits.compile_ms_max = 500;
    limits.dfa_states_max = u32_min(limits.dfa_states_max, 1024);
    json_t *weakened = (data[0] & 8) != 0 ? json_array() : NULL;
    grammar_schema_kind kind = {
        .strict = (data[0] & 1) != 0, .compact = (data[0] & 2) != 0, .weakened = weakened};
    grammar_options options = {.limits = &limits};
    json_error_t problem;
    json_t *schema = json_loadb((const char *)data + 1, n - 1, JSON_DECODE_ANY, &problem);
    if (schema == NULL) {
        json_decref(weakened);
        return 0;
    }
    grammar *g = NULL;
    inferd_err err = {0};
    inferd_status s = grammar_of_schema(schema, &kind, &options, &g, &err);
    INFERD_CHECK((s == INFERD_OK) == (g != NULL));
    if (s != INFERD_OK)
        INFERD_CHECK(err.text[0] != 0 && err.status == s);
    else
        write_text(g, data, n);
    /* What remains is a limit that even any object meets, or a text without an end. */
    if (s == INFERD_EUNSUPPORTED) INFERD_CHECK(weakened == NULL || kind.strict);
    grammar_release(g);
    json_decref(schema);
    json_decref(weakened);
    return 0;
}
