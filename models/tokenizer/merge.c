/* merge.c - the pair table, and its two ways to run. */
#include "tokenizer/merge.h"

#include <string.h>

#define MERGE_NONE UINT32_MAX

enum { CANCEL_STEPS = 65536 }; // heap steps between two checks of `cancel`

static bool is_empty(const merge_slot *s) {
    return s->left == UINT32_MAX && s->right == UINT32_MAX;
}

static inline size_t slot_of(const merge_table *t, uint32_t left, uint32_t right) {
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (size_t)(key >> 32 ^ key >> 15) & t->mask;
}

static merge_slot *make_slots(size_t n_slots) {
    size_t n_bytes;
    if (!size_mul(n_slots, sizeof(merge_slot), &n_bytes)) return NULL;
    merge_slot *slots = malloc(n_bytes);
    if (slots != NULL) memset(slots, 0xFF, n_bytes);
    return slots;
}

bool merge_table_init(merge_table *t, size_t n) {
    size_t n_slots = 16;
    while (n_slots / 2 < n) n_slots *= 2;
    *t = (merge_table){.slots = make_slots(n_slots), .mask = n_slots - 1};
    return t->slots != NULL;
}

void merge_table_deinit(merge_table *t) {
    free(t->slots);
    *t = (merge_table){0};
}

static bool grow(merge_table *t) {
    size_t n_slots = (t->mask + 1) * 2;
    merge_table bigger = {.slots = make_slots(n_slots), .mask = n_slots - 1, .n = t->n};
    if (bigger.slots == NULL) return false;
    for (size_t i = 0; i <= t->mask; i++) {
        if (is_empty(&t->slots[i])) continue;
        size_t at = slot_of(&bigger, t->slots[i].left, t->slots[i].right);
        while (!is_empty(&bigger.slots[at])) at = (at + 1) & bigger.mask;
        bigger.slots[at] = t->slots[i];
    }
    free(t->slots);
    *t = bigger;
    return true;
}

bool merge_add(merge_table *t, tok_id left, tok_id right, uint32_t rank, tok_id id) {
    if (t->n >= (t->mask + 1) / 2 && !grow(t)) return false;
    uint32_t l = (uint32_t)left, r = (uint32_t)right;
    size_t at = slot_of(t, l, r);
    for (; !is_empty(&t->slots[at]); at = (at + 1) & t->mask)
        if (t->slots[at].left == l && t->slots[at].right == r) return true;
    t->slots[at] = (merge_slot){l, r, rank, id};
    t->n++;
    return true;
}

/* The rank of a pair and its merged symbol; MERGE_NONE: it does not merge. */
static inline uint32_t find(const merge_table *t, tok_id left, tok_id right, tok_id *id) {
    uint32_t l = (uint32_t)left, r = (uint32_t)right;
    for (size_t at = slot_of(t, l, r);; at = (at + 1) & t->mask) {
        const merge_slot *s = &t->slots[at];
        if (s->left == l && s->right == r) {
            *id = s->id;
            return s->rank;
        }
        if (is_empty(s)) return MERGE_NONE;
    }
}

/* ---- short words ---- */

static size_t run_small(const merge_table *t, tok_id *symbols, size_t n) {
    uint32_t ranks[MERGE_SMALL_MAX]; // of the pair (i, i + 1), i < n - 1
    tok_id merged[MERGE_SMALL_MAX];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = find(t, symbols[i], symbols[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == MERGE_NONE) break;
        symbols[best] = merged[best];
        size_t n_after = n - best - 2; // symbols behind the pair
        memmove(symbols + best + 1, symbols + best + 2, n_after * sizeof *symbols);
        if (n_after > 0) { // pairs best and best + 1 are gone; the one at best is new
            memmove(ranks + best + 1, ranks + best + 2, (n_after - 1) * sizeof *ranks);
            memmove(merged + best + 1, merged + best + 2, (n_after - 1) * sizeof *merged);
            ranks[best] = find(t, symbols[best], symbols[best + 1], &merged[best]);
        }
        if (best > 0)
            ranks[best - 1] = find(t, symbols[best - 1], symbols[best], &merged[best - 1]);
        n--;
    }
    return n;
}

/* ---- long words ---- */

/* The heap starts with less than n entries, and each of less than n merges takes one out and puts
 * at most two in. */
static bool reserve(merge_work *w, size_t n) {
    if (n <= w->capacity) return true;
    size_t node_bytes, heap_bytes;
    if (!size_mul(n, sizeof *w->nodes, &node_bytes) ||
        !size_mul(n, 2 * sizeof *w->heap, &heap_bytes))
        return false;
    merge_work_deinit(w); // its contents are not needed any more
    w->nodes = malloc(node_bytes);
    w->heap = malloc(heap_bytes);
    if (w->nodes == NULL || w->heap == NULL) {
        merge_work_deinit(w);
        return false;
    }
    w->capacity = n;
    return true;
}

static void sift_down(uint64_t *heap, size_t n, size_t at) {
    uint64_t entry = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= entry) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = entry;
}

static void push(merge_work *w, uint32_t rank, size_t position) {
    if (rank == MERGE_NONE) return;
    uint64_t entry = (uint64_t)rank << 32 | position;
    size_t at = w->n_heap++;
    while (at > 0 && w->heap[(at - 1) / 2] > entry) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = entry;
}

static uint64_t pop(merge_work *w) {
    uint64_t top = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap > 0) sift_down(w->heap, w->n_heap, 0);
    return top;
}

/* A list over positions, with every mergeable pair in the heap.  Position 0 never goes away, and
 * `next` of the last is n. */
static void start(const merge_table *t, merge_work *w, const tok_id *symbols, size_t n) {
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        merge_node *node = &w->nodes[i];
        *node = (merge_node){MERGE_NONE, -1, (uint32_t)i - 1, (uint32_t)i + 1};
        if (i + 1 < n) node->rank = find(t, symbols[i], symbols[i + 1], &node->id);
        if (node->rank != MERGE_NONE) w->heap[w->n_heap++] = (uint64_t)node->rank << 32 | i;
    }
    for (size_t i = w->n_heap / 2; i > 0; i--) sift_down(w->heap, w->n_heap, i - 1);
}

/* Merge the pair at `position`: its right half leaves the list, both new pairs are looked up. */
static void merge_at(const merge_table *t, merge_work *w, tok_id *symbols, size_t n,
                     uint32_t position) {
    merge_node *node = &w->nodes[position], *right = &w->nodes[node->next];
    symbols[position] = node->id;
    right->rank = MERGE_NONE; // makes its heap entry stale
    node->next = right->next;
    node->rank = MERGE_NONE;
    if (node->next < n) {
        w->nodes[node->next].prev = position;
        node->rank = find(t, symbols[position], symbols[node->next], &node->id);
        push(w, node->rank, position);
    }
    if (position > 0) {
        merge_node *left = &w->nodes[node->prev];
        left->rank = find(t, symbols[node->prev], symbols[position], &left->id);
        push(w, left->rank, node->prev);
    }
}

inferd_status merge_run(const merge_table *t, merge_work *w, tok_id *symbols, size_t *n,
                        const atomic_bool *cancel, inferd_err *err) {
    if (*n <= MERGE_SMALL_MAX) {
        *n = run_small(t, symbols, *n);
        return INFERD_OK;
    }
    if (*n >= UINT32_MAX / 2)
        return inferd_fail(err, INFERD_ETOOLONG, "a word of %zu symbols is too long", *n);
    if (!reserve(w, *n))
        return inferd_fail(err, INFERD_ENOMEM, "no memory to merge a word of %zu symbols", *n);
    start(t, w, symbols, *n);
    for (size_t steps = 1; w->n_heap > 0; steps++) {
        uint64_t entry = pop(w);
        uint32_t position = (uint32_t)entry;
        // An entry counts only if its pair still exists; a changed pair has another rank, or the
        // same rank and then the same position in the order.
        if (w->nodes[position].rank == entry >> 32) merge_at(t, w, symbols, *n, position);
        if (steps % CANCEL_STEPS == 0 && cancel != NULL && atomic_load(cancel))
            return inferd_fail(err, INFERD_ECANCELED, "canceled");
    }
    size_t n_left = 0;
    for (size_t i = 0; i < *n; i = w->nodes[i].next) symbols[n_left++] = symbols[i];
    *n = n_left;
    return INFERD_OK;
}

void merge_work_deinit(merge_work *w) {
    free(w->nodes);
    free(w->heap);
    *w = (merge_work){0};
}
