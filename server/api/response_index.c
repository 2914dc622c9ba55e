/* response_index.c - see response_index.h. */
#include "response_index.h"

#include <string.h>

#include "inferd/hash.h"

enum { HOLDERS_MIN = 16 };

void response_text_drop(response_text *t) {
    if (t == NULL || --t->n_refs > 0) return;
    buf_deinit(&t->text);
    free(t);
}

/* ---- the heaps of tenants ---- */

static void put_at(response_index *x, response_bound by, uint32_t at, response_holder *h) {
    x->heaps[by][at] = h;
    h->at[by] = at;
}

/* Moves it to where its number belongs. */
static void sift(response_index *x, response_bound by, response_holder *h) {
    response_holder **heap = x->heaps[by];
    uint32_t at = h->at[by];
    for (; at > 0 && heap[(at - 1) / 2]->has[by] < h->has[by]; at = (at - 1) / 2)
        put_at(x, by, at, heap[(at - 1) / 2]);
    for (uint32_t child; (child = 2 * at + 1) < x->n_holders; at = child) {
        if (child + 1 < x->n_holders && heap[child + 1]->has[by] > heap[child]->has[by]) child++;
        if (heap[child]->has[by] <= h->has[by]) break;
        put_at(x, by, at, heap[child]);
    }
    put_at(x, by, at, h);
}

static bool grow_heaps(response_index *x) {
    uint32_t wanted = x->holders_max == 0 ? HOLDERS_MIN : 2 * x->holders_max;
    for (int by = 0; by < RESPONSE_BOUNDS; by++) {
        response_holder **more = realloc(x->heaps[by], (size_t)wanted * sizeof *more);
        if (more == NULL) return false;
        x->heaps[by] = more;
    }
    x->holders_max = wanted;
    return true;
}

/* ---- tenants ---- */

static response_holder **bucket_of(const response_index *x, uint64_t tenant) {
    return &x->holders[hash_fold(tenant) & x->mask];
}

/* NULL: no memory. */
static response_holder *holder_of(response_index *x, uint64_t tenant) {
    response_holder **bucket = bucket_of(x, tenant);
    for (response_holder *h = *bucket; h != NULL; h = h->next_same)
        if (h->tenant == tenant) return h;
    if (x->n_holders == x->holders_max && !grow_heaps(x)) return NULL;
    response_holder *h = calloc(1, sizeof *h);
    if (h == NULL) return NULL;
    *h = (response_holder){.next_same = *bucket, .tenant = tenant};
    list_node_init(&h->entries);
    *bucket = h;
    for (response_bound by = 0; by < RESPONSE_BOUNDS; by++) put_at(x, by, x->n_holders, h);
    x->n_holders++;
    return h;
}

static void drop_holder(response_index *x, response_holder *h) {
    response_holder **link = bucket_of(x, h->tenant);
    while (*link != h) link = &(*link)->next_same;
    *link = h->next_same;
    x->n_holders--;
    for (response_bound by = 0; by < RESPONSE_BOUNDS; by++) {
        response_holder *last = x->heaps[by][x->n_holders];
        if (last == h) continue;
        put_at(x, by, h->at[by], last);
        sift(x, by, last);
    }
    free(h);
}

static void join_holder(response_index *x, response_holder *h, response_entry *e) {
    list_push_back(&h->entries, &e->of_holder);
    e->holder = h;
    h->has[RESPONSE_BY_NUMBER]++;
    h->has[RESPONSE_BY_BYTES] += e->n_bytes;
    for (response_bound by = 0; by < RESPONSE_BOUNDS; by++) sift(x, by, h);
}

static void leave_holder(response_index *x, response_entry *e) {
    response_holder *h = e->holder;
    list_remove(&e->of_holder);
    h->has[RESPONSE_BY_NUMBER]--;
    h->has[RESPONSE_BY_BYTES] -= e->n_bytes;
    for (response_bound by = 0; by < RESPONSE_BOUNDS; by++) sift(x, by, h);
    if (list_empty(&h->entries)) drop_holder(x, h);
}

/* ---- entries ---- */

static response_entry **place_of(const response_index *x, const char *id) {
    uint64_t h = hash_bytes(HASH_BEGIN, id, strlen(id));
    response_entry **link = &x->entries[hash_fold(h) & x->mask];
    while (*link != NULL && strcmp((*link)->id, id) != 0) link = &(*link)->next_same;
    return link;
}

response_entry *response_index_find(const response_index *x, const char *id) {
    return *place_of(x, id);
}

response_entry *response_index_add(response_index *x, const char *id, uint64_t tenant,
                                   uint64_t n_bytes, response_text *queued) {
    response_entry **link = place_of(x, id);
    response_entry *e = *link == NULL ? calloc(1, sizeof *e) : NULL; // an id is given once
    response_holder *h = e != NULL ? holder_of(x, tenant) : NULL;
    if (h == NULL) {
        free(e);
        return NULL;
    }
    *e = (response_entry){.n_bytes = n_bytes, .queued = queued};
    snprintf(e->id, sizeof e->id, "%s", id);
    list_node_init(&e->in_queue);
    if (queued != NULL) list_push_back(&x->queue, &e->in_queue);
    if (queued != NULL) x->n_queued_bytes += n_bytes;
    *link = e;
    x->n++;
    x->n_bytes += n_bytes;
    join_holder(x, h, e);
    return e;
}

void response_index_note_written(response_index *x, response_entry *e) {
    if (e->queued == NULL) return;
    x->n_queued_bytes -= e->n_bytes;
    list_remove(&e->in_queue);
    response_text_drop(e->queued);
    e->queued = NULL;
}

void response_index_remove(response_index *x, response_entry *e) {
    response_entry **link = place_of(x, e->id);
    response_index_note_written(x, e);
    *link = e->next_same;
    x->n--;
    x->n_bytes -= e->n_bytes;
    leave_holder(x, e);
    free(e);
}

bool response_index_learn(response_index *x, response_entry *e, uint64_t tenant) {
    response_holder *h = holder_of(x, tenant);
    if (h == NULL) return false;
    if (h != e->holder) {
        leave_holder(x, e);
        join_holder(x, h, e);
    }
    e->unread = false;
    return true;
}

response_entry *response_index_queued(const response_index *x) {
    return list_empty(&x->queue) ? NULL : LIST_ENTRY(x->queue.next, response_entry, in_queue);
}

response_entry *response_index_victim(const response_index *x, response_bound by) {
    if (x->n_holders == 0) return NULL;
    return LIST_ENTRY(x->heaps[by][0]->entries.next, response_entry, of_holder);
}

/* ---- the whole ---- */

bool response_index_init(response_index *x, uint32_t n_max) {
    *x = (response_index){0};
    while (x->mask < n_max) x->mask = 2 * x->mask + 1;
    list_node_init(&x->queue);
    x->entries = calloc((size_t)x->mask + 1, sizeof *x->entries);
    x->holders = calloc((size_t)x->mask + 1, sizeof *x->holders);
    if (x->entries != NULL && x->holders != NULL) return true;
    response_index_deinit(x);
    return false;
}

void response_index_deinit(response_index *x) {
    while (x->n_holders > 0) response_index_remove(x, response_index_victim(x, RESPONSE_BY_NUMBER));
    free(x->entries);
    free(x->holders);
    for (int by = 0; by < RESPONSE_BOUNDS; by++) free(x->heaps[by]);
    *x = (response_index){0};
}
