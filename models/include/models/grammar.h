/* grammar.h - structured output: which tokens may come next, so that a text follows a JSON Schema,
 * a regular expression, a list of choices or a GBNF grammar.
 *
 *     source --compile--> grammar (ir.h) --+
 *     tokenizer --------> grammar_vocab ---+--> grammar_machine: states, masks --> grammar_pos
 *
 * A grammar is immutable.  A grammar_vocab holds the bytes of all tokens as a flat trie, with ready
 * masks for tokens that are plain text inside a JSON string (vocab.h).  A machine (machine.h) is a
 * grammar on a vocabulary: a pushdown automaton whose states are made as they are met, and the
 * masks of states, cached.  A position is a place in a text: the machine's state after it.
 *
 * A control token is a symbol: a text of its own, its name between two marks that are no bytes of
 * UTF-8.  So the text of a grammar can demand a control token, and no free text, string or pattern
 * can contain one.
 *
 * Promises, for every position: a token is in the mask exactly if the position accepts its bytes;
 * the tokens of the end are in it exactly if the text may end there.  Where the text may not end,
 * some byte may follow, and so on to an end: no way is a dead one, if the vocabulary has each token
 * that a symbol names.  What cannot be enforced is refused when the grammar is compiled: nothing is
 * ignored in silence.
 *
 * Nothing here recurses on its input.  Thread: any; a machine has a lock of its own. */
#ifndef INFERD_GRAMMAR_H
#define INFERD_GRAMMAR_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "models/tokenizer.h"

typedef struct grammar_limits {
    size_t source_bytes_max;      // of a schema, pattern, grammar        default 1 MiB
    uint32_t schema_depth_max;    // of nested schemas                    default 64
    uint32_t nodes_max;           // of the graph                         default 200,000
    uint32_t refs_max;            // $ref looked up                       default 10,000
    uint32_t properties_max;      // of one object                        default 5,000
    uint32_t enum_max;            // values of one enum, or choices       default 20,000
    uint32_t enum_bytes_max;      // of them                              default 1 MiB
    uint32_t pattern_bytes_max;   // of a pattern                         default 4 KiB
    uint32_t pattern_nesting_max; // of groups                            default 50
    uint32_t dfa_states_max;      // of one terminal                      default 16,384
    uint32_t repeat_max;          // a count                              default 1,000,000
    uint32_t stack_max;           // frames: nesting of what is written   default 512
    uint32_t configs_max;         // ways to read the text, at once       default 1,024
    uint32_t steps_max;           // of closures, for one mask or text    default 500,000
    uint32_t white_bytes_max;     // of white space between JSON tokens   default 20
                                  // (GRAMMAR_WHITE_SPACED: see grammar_schema_kind.spaced)
    size_t machine_bytes_max;     // states of a machine                  default 8 MiB
    size_t mask_bytes_max;        // cached masks of a machine            default 32 MiB
    uint32_t compile_ms_max;      // of a CPU, until compiling gives up   default 80
} grammar_limits;
extern const grammar_limits grammar_limits_default;
#define GRAMMAR_WHITE_SPACED UINT32_MAX

/* The symbol of a control token, which is not one of the tokens of the end: mark, name, mark. */
#define GRAMMAR_TOKEN_MARK '\xff'
static inline void grammar_add_token(buf *out, bytes name) {
    buf_add_char(out, GRAMMAR_TOKEN_MARK);
    buf_add(out, name.p, name.n);
    buf_add_char(out, GRAMMAR_TOKEN_MARK);
}
/* The same in JSON, which cannot hold the mark: U+FDD0 name U+FDD1, which no text uses
 * (grammar_schema_kind.tokens). */
#define GRAMMAR_TOKEN_OPEN  "\xef\xb7\x90"
#define GRAMMAR_TOKEN_CLOSE "\xef\xb7\x91"

enum { GRAMMAR_REASONING_WHITE_MAX = 20 }; // bytes of white space in front of a mark, or behind it

typedef struct grammar_options {
    const grammar_limits *limits; // NULL: the defaults
    /* Reasoning before the text of the grammar: UTF-8 that ends with this; NULL: none.  `begin`:
     * the text may start with it, and white space in front of it, or not reason at all; JSON may
     * then have white space in front, too.  NULL: reasoning has begun already.  `again`: more
     * reasoning may follow, which begins so; NULL: none does.  All may have symbols of control
     * tokens; reasoning itself has none. */
    const char *reasoning_begin, *reasoning_end, *reasoning_again;
    /* Marks which the text may have or not: before it, behind it, and behind that; NULL, "": none.
     */
    const char *around[3];
} grammar_options;

typedef struct grammar grammar; // counted
void grammar_hold(grammar *g);
void grammar_release(grammar *g); // accepts NULL

typedef struct grammar_schema_kind {
    /* OpenAI's strict profile: every object lists all its properties as required and allows no
     * others, and more; what violates it is refused. */
    bool strict;
    bool compact; // no white space between JSON tokens; else up to limits.white_bytes_max
    bool spaced;  // one blank behind each comma and colon, as Python's json.dumps writes them
    /* The properties of an object of up to 64 come in any order; else in the schema's, where it has
     * one (docs/structured-output.md). */
    bool any_order;
    /* Of grammar_of_tags, but for its schemas and patterns: in its texts U+FDD0 name U+FDD1 is the
     * control token of this name.  Texts of a request must not get there with these characters. */
    bool tokens;
    /* NULL: what cannot be enforced is refused.  Else an array (of the caller): what cannot be
     * enforced, or is malformed, is left out, so that the grammar accepts more, and its JSON
     * pointer is appended: "#/properties/a/not".  "#": the whole schema, now any object.  A
     * root of which nothing is left, or nothing that says its type any more, is an object, too.  In
     * structural tags the pointers are those of the whole document.  Not with `strict`. */
    json_t *weakened;
} grammar_schema_kind;

/* Errors: INFERD_EINVAL (not a schema, or none can match), INFERD_EUNSUPPORTED (a keyword that
 * cannot be enforced), INFERD_ETOOLONG (a limit, with its name).  The text names keyword and JSON
 * pointer:
 * "\"not\" at #/properties/a cannot be enforced".  options NULL: the defaults. */
inferd_status grammar_of_schema(const json_t *schema, const grammar_schema_kind *kind,
                                const grammar_options *options, grammar **out, inferd_err *err);
inferd_status grammar_of_json(const grammar_options *options, bool object_only, grammar **out,
                              inferd_err *err); // any JSON value, or any object
inferd_status grammar_of_regex(bytes pattern, const grammar_options *options, grammar **out,
                               inferd_err *err); // matches the whole text
inferd_status grammar_of_choices(const bytes *texts, size_t n, const grammar_options *options,
                                 grammar **out, inferd_err *err);
/* GBNF, llama.cpp's grammar format; the rule `root`.  Left recursion is refused. */
inferd_status grammar_of_gbnf(bytes source, const grammar_options *options, grammar **out,
                              inferd_err *err);
/* Free text with parts that follow schemas: vLLM's structural tags (tags.c). */
inferd_status grammar_of_tags(const json_t *tags, const grammar_schema_kind *kind,
                              const grammar_options *options, grammar **out, inferd_err *err);

/* ---- vocabulary ---- */

typedef struct grammar_vocab grammar_vocab; // counted
/* For a model with n_vocab logits: masks have a bit for each.  A control token has its symbol as
 * piece.  Tokens of text with a byte 0xFF, and ids that the tokenizer does not have, are never
 * allowed.  The tokenizer is not kept. */
inferd_status grammar_vocab_create(const tokenizer *t, uint32_t n_vocab, grammar_vocab **out,
                                   inferd_err *err);
/* The same from pieces, for tests and benches: pieces[i].n 0: token i is never allowed;
 * end_ids: allowed where the text may end. */
inferd_status grammar_vocab_of_pieces(const bytes *pieces, uint32_t n_vocab, const tok_id *end_ids,
                                      uint32_t n_end_ids, grammar_vocab **out, inferd_err *err);
void grammar_vocab_hold(grammar_vocab *v);
void grammar_vocab_release(grammar_vocab *v);                 // accepts NULL
uint32_t grammar_vocab_words(const grammar_vocab *v);         // 64-bit words of a mask
bytes grammar_vocab_piece(const grammar_vocab *v, tok_id id); // .n 0: it has none

/* ---- positions ---- */

typedef struct grammar_machine grammar_machine; // counted
inferd_status grammar_machine_create(grammar *g, grammar_vocab *v, grammar_machine **out,
                                     inferd_err *err); // holds both
void grammar_machine_hold(grammar_machine *m);
void grammar_machine_release(grammar_machine *m); // accepts NULL

/* A place in a text.  0: none.  Each belongs to its owner, who drops it; copies are independent. */
typedef uint32_t grammar_pos;
grammar_pos grammar_start(grammar_machine *m); // 0: no memory
grammar_pos grammar_copy(grammar_machine *m, grammar_pos p);
void grammar_drop(grammar_machine *m, grammar_pos p); // accepts 0

/* Move on by a token, or by bytes.  False: not accepted, the position is unchanged; err (may be
 * NULL) says whether that, or memory or a limit, is the reason. */
bool grammar_accept(grammar_machine *m, grammar_pos p, tok_id id, inferd_err *err);
bool grammar_accept_bytes(grammar_machine *m, grammar_pos p, bytes text, inferd_err *err);
bool grammar_may_end(grammar_machine *m, grammar_pos p);  // the text may end here
bool grammar_must_end(grammar_machine *m, grammar_pos p); // and nothing may follow

/* Reasoning before the text (grammar_options): behind its opening mark, if it has one, and before
 * the end of its closing mark. */
bool grammar_in_reasoning(grammar_machine *m, grammar_pos p);
/* From here on nothing but the closing mark may come, then the text: first the rest of a character,
 * if that is incomplete; of a mark that has begun, its rest.  Elsewhere, and the second time, it
 * changes nothing.  False: no memory or a limit (err), the position is unchanged. */
bool grammar_close_reasoning(grammar_machine *m, grammar_pos p, inferd_err *err);

/* Allowed tokens: bit id % 64 of word id / 64.  Counted: equal masks of one machine are usually the
 * same object. */
typedef struct grammar_mask {
    uint32_t n_refs; // private
    uint32_t n_words;
    uint64_t n_serial; // unique in the process
    uint64_t bits[];   // [n_words]
} grammar_mask;
/* NULL: no memory or a limit (err).  The caller owns a count. */
grammar_mask *grammar_mask_get(grammar_machine *m, grammar_pos p, inferd_err *err);
void grammar_mask_release(grammar_mask *mask); // any thread; accepts NULL
static inline bool grammar_mask_has(const grammar_mask *mask, tok_id id) {
    return (mask->bits[(uint32_t)id / 64] >> ((uint32_t)id % 64) & 1) != 0;
}
/* Appends the bytes that must come next, while there is only one way on; at most n_max. */
void grammar_forced(grammar_machine *m, grammar_pos p, size_t n_max, buf *out);
/* Appends a shortest text that ends the grammar from here, for tests.  False: a limit. */
bool grammar_complete(grammar_machine *m, grammar_pos p, size_t n_max, buf *out);

typedef struct grammar_stats {
    uint64_t n_masks_made, n_masks_cached, n_flushes;
    uint32_t n_states, n_frames;
    size_t n_bytes; // of the machine, its cached masks and its grammar
} grammar_stats;
void grammar_machine_stats(grammar_machine *m, grammar_stats *out);
/* n_bytes of the statistics.  False: a mask is being made, and this would wait for it. */
bool grammar_machine_bytes(grammar_machine *m, size_t *out);
/* Is there another count than the caller's? */
bool grammar_machine_is_shared(const grammar_machine *m);

#endif
