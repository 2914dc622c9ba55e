/* merge.h - byte-pair merging on ids, the engine of both kinds of BPE.
 *
 * A table has the pairs of neighbours that become one symbol, with a rank each.  The pair of lowest
 * rank merges first, the leftmost of equals; this goes on until no pair is in the table.  Short
 * words scan their few ranks; long ones keep a heap over a linked list, so that a megabyte without
 * a break costs n log n and not n squared.
 *
 * Byte-level BPE takes ranks from the order of its merges, SentencePiece from its scores.
 *
 * Thread: the table any once it is filled; a merge_work belongs to one call. */
#ifndef INFERD_TOKENIZER_MERGE_H
#define INFERD_TOKENIZER_MERGE_H

#include <stdatomic.h>

#include "inferd/base.h"
#include "inferd/status.h"

enum { MERGE_SMALL_MAX = 48 }; // symbols; above this the heap is faster

typedef struct merge_slot {
    uint32_t left, right; // symbols; both all ones: empty
    uint32_t rank;
    tok_id id; // of the merged symbol
} merge_slot;

typedef struct merge_table {
    merge_slot *slots; // [mask + 1]; owned
    size_t mask;
    size_t n; // used; at most half
} merge_table;

typedef struct merge_node {
    uint32_t rank; // of the pair (this, next); MERGE_NONE: no such merge
    tok_id id;     // of the merged pair
    uint32_t prev, next;
} merge_node;

/* Scratch memory of the long words of a call. */
typedef struct merge_work {
    merge_node *nodes; // [capacity]; owned
    uint64_t *heap;    // [2 * capacity] rank << 32 | position; owned
    size_t capacity, n_heap;
} merge_work;

bool merge_table_init(merge_table *t, size_t n); // room for `n` pairs to begin with
void merge_table_deinit(merge_table *t);
/* The first rank of a pair stays.  False: no memory. */
bool merge_add(merge_table *t, tok_id left, tok_id right, uint32_t rank, tok_id id);

/* Merge `symbols` in place; *n becomes the number of remaining ones.  Fails with ENOMEM, and with
 * ECANCELED when `cancel` (may be NULL) becomes true. */
inferd_status merge_run(const merge_table *t, merge_work *w, tok_id *symbols, size_t *n,
                        const atomic_bool *cancel, inferd_err *err);
void merge_work_deinit(merge_work *w);

#endif
