/* specials.h - matching special tokens at a position of a text.
 *
 * A trie over the texts of the control and user-defined tokens.  Tokens are found leftmost first,
 * the longest of those that start at the same position.  Control tokens, and the unknown token with
 * them, count only inside text that may contain them; user-defined ones are ordinary words of the
 * vocabulary and always count.
 *
 * The cost of a position is at most the length of the longest special, which depends on the file
 * and not on the text.
 *
 * Thread: any once it is filled. */
#ifndef INFERD_TOKENIZER_SPECIALS_H
#define INFERD_TOKENIZER_SPECIALS_H

#include "inferd/base.h"

typedef struct special_node {
    tok_id id;            // of the token that ends here; -1: none
    uint32_t first_child; // 0: none (node 0 is the root)
    uint32_t next_sibling;
    unsigned char byte;
    bool control;
} special_node;

typedef struct special_trie {
    special_node *nodes; // [n_nodes] owned; the root first
    uint32_t n_nodes, capacity;
    uint32_t start[256]; // children of the root by byte; 0: no special starts so
} special_trie;

bool specials_init(special_trie *t); // false: no memory
void specials_deinit(special_trie *t);
/* The first id of a text stays.  False: no memory. */
bool specials_add(special_trie *t, bytes text, tok_id id, bool control);

/* Length of the special token at `p`, and its id; 0: none.  Control tokens must end within the
 * first `n_trusted` bytes, user-defined ones within `n`. */
size_t specials_match(const special_trie *t, const unsigned char *p, size_t n, size_t n_trusted,
                      tok_id *id);

#endif
