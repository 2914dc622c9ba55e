/* vocab.h - the tokens of a vocabulary as a trie over their bytes, and masks that are ready.
 *
 * The trie lies flat, in depth-first order: a node's subtree is the nodes behind it up to `next`,
 * so a walk is one pass over an array that jumps over subtrees.  Tokens of the same bytes are
 * chained.
 *
 * A token is *plain* if it is whole plain code points, at most VOCAB_PLAIN_MAX of them: all but
 * controls, quote, backslash, and white space other than the blank, which `.` and \S of patterns
 * exclude; 9 of 10 tokens.  Where any plain text may follow, inside a JSON string, all of them are
 * allowed at once: plain[n] is the mask of plain tokens of at most n code points,
 * and only `others`, a trie without plain tokens, is walked.
 *
 * Symbols of control tokens begin with a byte that free text never takes, so a walk passes by all
 * of them at once.
 *
 * Thread: any; immutable. */
#ifndef INFERD_GRAMMAR_VOCAB_H
#define INFERD_GRAMMAR_VOCAB_H

#include <stdatomic.h>

#include "models/grammar.h"

enum {
    VOCAB_PLAIN_MAX = 32,        // code points of a plain token
    VOCAB_PIECE_BYTES_MAX = 255, // longer tokens are never allowed
    VOCAB_NODES_MAX = (1 << 24) - 1,
    VOCAB_TOKENS_MAX = (1 << 24) - 128
};

/* Plain code points as bytes of UTF-8: n bytes, byte i from low[i] to high[i]. */
typedef struct plain_form {
    unsigned char n, low[4], high[4];
} plain_form;
enum { PLAIN_FORMS = 21 };
extern const plain_form plain_forms[PLAIN_FORMS];

/* A node without a token has the id n_words * 64, so that its bit falls behind the mask. */
typedef struct vocab_node {
    uint32_t token : 24, byte : 8;
    uint32_t next : 24, depth : 8; // behind the subtree; 1 for a first byte
} vocab_node;

typedef struct vocab_trie {
    vocab_node *nodes; // [n_nodes] the root is not among them
    uint32_t n_nodes;
    uint32_t of_byte[256]; // the node of this first byte, or n_nodes
    uint32_t depth;        // of the longest token of text
} vocab_trie;

struct grammar_vocab {
    atomic_uint n_refs;
    uint32_t n_vocab, n_words;
    uint32_t *piece_at; // [n_vocab + 1] in piece_bytes
    char *piece_bytes;
    uint32_t *doubles; // [2 * n_doubles] a token of the trie, another of the same bytes
    uint32_t n_doubles;
    uint64_t *end_mask;                   // [n_words]
    uint64_t *plain[VOCAB_PLAIN_MAX + 1]; // [n_words] each
    vocab_trie all, others;
};

#endif
