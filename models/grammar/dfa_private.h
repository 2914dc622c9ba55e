/* dfa_private.h - tables of automata while they are built: rows are added, columns are any symbols.
 *
 * A finished table is trimmed, perhaps minimized, and becomes a dfa when each byte has a column.
 *
 * Thread: any; a table belongs to its builder. */
#ifndef INFERD_DFA_PRIVATE_H
#define INFERD_DFA_PRIVATE_H

#include "dfa.h"

typedef struct dfa_table {
    uint32_t n_columns, n_states, capacity; // capacity: of rows
    uint32_t *next;                         // [n_states, n_columns] owned; DFA_DEAD
    uint32_t *tags;                         // [n_states] owned; as in dfa
} dfa_table;

void dfa_table_deinit(dfa_table *t);
/* Adds a state with no way on that does not accept.  False: no memory. */
bool dfa_table_add(dfa_table *t, uint32_t *state);
static inline uint32_t *dfa_table_row(const dfa_table *t, uint32_t state) {
    return t->next + (size_t)state * t->n_columns;
}
/* Keeps the states that can be reached and can reach an accepting one.  False: no memory. */
bool dfa_table_trim(dfa_table *t);
/* Fewest states; the table is trimmed.  False: no memory. */
bool dfa_table_minimize(dfa_table *t);
/* Takes the trimmed table: `*t` is zeroed in any case.  column_of[byte] >= n_columns: no way on. */
inferd_status dfa_of_table(dfa_table *t, const uint32_t column_of[256], dfa *out, inferd_err *err);
inferd_status dfa_no_memory(inferd_err *err);

/* `p` with room for `n` items of item_bytes; *capacity is updated.  NULL: no memory, and `p` is as
 * it was.  n > 0. */
void *dfa_grow(void *p, uint32_t *capacity, size_t n, size_t item_bytes);

/* A set of keys, each a run of words, numbered in the order of their arrival. */
typedef struct dfa_keys {
    uint32_t *words; // [n_words] owned
    uint32_t *at;    // [n + 1] owned: key i is [at[i], at[i + 1])
    uint32_t *slots; // [n_slots] owned; 0: free, else 1 + a number
    uint32_t n, n_words, n_slots, words_capacity, at_capacity;
} dfa_keys;
void dfa_keys_deinit(dfa_keys *k);
/* The number of the key; *added: it is new.  DFA_DEAD: no memory. */
uint32_t dfa_keys_put(dfa_keys *k, const uint32_t *words, uint32_t n_words, bool *added);

#endif
