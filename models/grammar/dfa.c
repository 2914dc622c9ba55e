/* dfa.c - automata as values, and the tables they are built in. */
#include "dfa_private.h"

const dfa_limits dfa_limits_default = {
    .nfa_states_max = 65536,
    .states_max = 16384,
    .pattern_bytes_max = 4096,
    .nesting_max = 50,
    .repeat_max = 4096,
};

void dfa_deinit(dfa *d) {
    free(d->tags);
    free(d->next);
    free(d->edges_at);
    free(d->edge_class);
    free(d->edge_to);
    *d = (dfa){0};
}

bool dfa_is_empty(const dfa *d) {
    return d->n_states == 0;
}

size_t dfa_bytes(const dfa *d) {
    size_t n = d->n_states * sizeof *d->tags;
    if (d->next != NULL) return n + (size_t)d->n_states * d->n_classes * sizeof *d->next;
    if (d->edges_at == NULL) return n;
    return n + ((size_t)d->n_states + 1) * sizeof *d->edges_at +
           d->edges_at[d->n_states] * (sizeof *d->edge_class + sizeof *d->edge_to);
}

uint32_t dfa_match(const dfa *d, bytes text) {
    if (d->n_states == 0) return 0;
    uint32_t state = 0;
    for (size_t i = 0; i < text.n && state != DFA_DEAD; i++)
        state = dfa_step(d, state, (unsigned char)text.p[i]);
    return state == DFA_DEAD ? 0 : d->tags[state];
}

inferd_status dfa_no_memory(inferd_err *err) {
    return inferd_fail(err, INFERD_ENOMEM, "no memory for an automaton");
}

/* A copy of n items; NULL stays NULL.  False: no memory. */
static bool copy_items(void **out, const void *from, size_t n, size_t item_bytes) {
    size_t n_bytes;
    *out = NULL;
    if (from == NULL) return true;
    if (!size_mul(n, item_bytes, &n_bytes)) return false;
    *out = malloc(size_max(n_bytes, 1));
    if (*out == NULL) return false;
    memcpy(*out, from, n_bytes);
    return true;
}

inferd_status dfa_copy(const dfa *d, dfa *out, inferd_err *err) {
    void *tags, *next = NULL, *at = NULL, *edge_class = NULL, *to = NULL;
    size_t n_edges = d->edges_at == NULL ? 0 : d->edges_at[d->n_states];
    size_t n_states = d->n_states;
    bool ok = copy_items(&tags, d->tags, n_states, sizeof *d->tags) &&
              copy_items(&next, d->next, n_states * d->n_classes, sizeof *d->next) &&
              copy_items(&at, d->edges_at, n_states + 1, sizeof *d->edges_at) &&
              copy_items(&edge_class, d->edge_class, n_edges, sizeof *d->edge_class) &&
              copy_items(&to, d->edge_to, n_edges, sizeof *d->edge_to);
    *out = *d;
    out->tags = tags;
    out->next = next;
    out->edges_at = at;
    out->edge_class = edge_class;
    out->edge_to = to;
    if (ok) return INFERD_OK;
    dfa_deinit(out);
    return dfa_no_memory(err);
}

/* ---- growing ---- */

void *dfa_grow(void *p, uint32_t *capacity, size_t n, size_t item_bytes) {
    if (n <= *capacity) return p;
    size_t wanted = size_max(n, 16), n_bytes;
    if (*capacity <= UINT32_MAX / 2) wanted = size_max(wanted, (size_t)*capacity * 2);
    if (wanted > UINT32_MAX || !size_mul(wanted, item_bytes, &n_bytes)) return NULL;
    void *q = realloc(p, n_bytes);
    if (q != NULL) *capacity = (uint32_t)wanted;
    return q;
}

void dfa_table_deinit(dfa_table *t) {
    free(t->next);
    free(t->tags);
    *t = (dfa_table){.n_columns = t->n_columns};
}

bool dfa_table_add(dfa_table *t, uint32_t *state) {
    size_t row_bytes;
    if (!size_mul(size_max(t->n_columns, 1), sizeof *t->next, &row_bytes)) return false;
    if (t->n_states == t->capacity) { // both arrays have the same capacity
        uint32_t capacity = t->capacity;
        uint32_t *next = dfa_grow(t->next, &capacity, (size_t)t->n_states + 1, row_bytes);
        if (next == NULL) return false;
        t->next = next;
        capacity = t->capacity;
        uint32_t *tags = dfa_grow(t->tags, &capacity, (size_t)t->n_states + 1, sizeof *tags);
        if (tags == NULL) return false;
        t->tags = tags;
        t->capacity = capacity;
    }
    *state = t->n_states++;
    memset(dfa_table_row(t, *state), 0xFF, t->n_columns * sizeof *t->next); // DFA_DEAD
    t->tags[*state] = 0;
    return true;
}

/* ---- keys ---- */

void dfa_keys_deinit(dfa_keys *k) {
    free(k->words);
    free(k->at);
    free(k->slots);
    *k = (dfa_keys){0};
}

static uint32_t hash_words(const uint32_t *words, uint32_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    return (uint32_t)(h ^ h >> 29);
}

static bool keys_equal(const dfa_keys *k, uint32_t number, const uint32_t *words, uint32_t n) {
    uint32_t at = k->at[number];
    return k->at[number + 1] - at == n &&
           (n == 0 || memcmp(k->words + at, words, n * sizeof *words) == 0);
}

/* Twice the slots, at most half full. */
static bool keys_rehash(dfa_keys *k) {
    uint32_t n_slots = k->n_slots == 0 ? 64 : k->n_slots * 2;
    uint32_t *slots = n_slots < k->n_slots ? NULL : calloc(n_slots, sizeof *slots);
    if (slots == NULL) return false;
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t at = hash_words(k->words + k->at[i], k->at[i + 1] - k->at[i]) & (n_slots - 1);
        while (slots[at] != 0) at = (at + 1) & (n_slots - 1);
        slots[at] = i + 1;
    }
    free(k->slots);
    k->slots = slots;
    k->n_slots = n_slots;
    return true;
}

uint32_t dfa_keys_put(dfa_keys *k, const uint32_t *words, uint32_t n_words, bool *added) {
    *added = false;
    if (k->n >= k->n_slots / 2 && !keys_rehash(k)) return DFA_DEAD;
    uint32_t slot = hash_words(words, n_words) & (k->n_slots - 1);
    for (; k->slots[slot] != 0; slot = (slot + 1) & (k->n_slots - 1))
        if (keys_equal(k, k->slots[slot] - 1, words, n_words)) return k->slots[slot] - 1;

    uint32_t *p = dfa_grow(k->words, &k->words_capacity, (size_t)k->n_words + n_words + 1, 4);
    if (p == NULL) return DFA_DEAD;
    k->words = p;
    p = dfa_grow(k->at, &k->at_capacity, (size_t)k->n + 2, sizeof *p);
    if (p == NULL) return DFA_DEAD;
    k->at = p;
    if (k->n == 0) k->at[0] = 0;
    if (n_words > 0) memcpy(k->words + k->n_words, words, n_words * sizeof *words);
    k->n_words += n_words;
    k->slots[slot] = k->n + 1;
    k->at[k->n + 1] = k->n_words;
    *added = true;
    return k->n++;
}
