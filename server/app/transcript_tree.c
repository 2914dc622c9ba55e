/* transcript_tree.c - see transcript_tree.h. */
#include "transcript_tree.h"

#include <string.h>
#include <sys/random.h>

#include "inferd/siphash.h"
#include "transcript_order.h"

enum { BUCKETS_LEAST = 1024, ALLOCATION_BYTES = 16 }; // what malloc adds, about

bool transcript_tree_init(transcript_tree *t, uint64_t bytes_max) {
    *t = (transcript_tree){.bytes_max = bytes_max, .n_buckets = BUCKETS_LEAST};
    list_node_init(&t->ends);
    t->buckets = calloc(t->n_buckets, sizeof(transcript_part *));
    return t->buckets != NULL &&
           getrandom(t->secret, sizeof t->secret, 0) == (ssize_t)sizeof t->secret;
}

void transcript_tree_deinit(transcript_tree *t) {
    if (t->buckets != NULL) transcript_tree_forget(t, NULL);
    free(t->buckets);
}

/* ---- finding ---- */

static uint64_t hash_of(const transcript_tree *t, const transcript_part *parent, bytes text,
                        tok_id special) {
    uint64_t h = special < 0 ? siphash(t->secret, text.p, text.n) : (uint64_t)special;
    h += (uint64_t)(uintptr_t)parent * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

transcript_part *transcript_tree_find(const transcript_tree *t, const transcript_part *parent,
                                      const model *m, bytes text, tok_id special) {
    uint64_t h = hash_of(t, parent, text, special);
    for (transcript_part *p = t->buckets[h & (t->n_buckets - 1)]; p != NULL; p = p->next)
        if (p->hash == h && p->parent == parent && p->m == m && p->special == special &&
            p->n_bytes == text.n && memcmp(p->text, text.p, text.n) == 0)
            return p;
    return NULL;
}

/* More buckets are a matter of speed: without memory for them it stays as it is. */
static void grow_buckets(transcript_tree *t) {
    size_t n = t->n_buckets * 2;
    transcript_part **buckets = calloc(n, sizeof(transcript_part *));
    if (buckets == NULL) return;
    for (size_t i = 0; i < t->n_buckets; i++)
        for (transcript_part *p = t->buckets[i], *next; p != NULL; p = next) {
            next = p->next;
            p->next = buckets[p->hash & (n - 1)];
            buckets[p->hash & (n - 1)] = p;
        }
    free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n;
}

/* ---- adding ---- */

static uint64_t bytes_of(size_t n_bytes, size_t n_ids) {
    return sizeof(transcript_part) + n_bytes + n_ids * sizeof(tok_id) + 3 * ALLOCATION_BYTES;
}

static transcript_part *create(bytes text, const tok_id *ids, size_t n_ids) {
    transcript_part *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->text = malloc(size_max(text.n, 1));
    p->ids = malloc(size_max(n_ids, 1) * sizeof *p->ids);
    if (p->text == NULL || p->ids == NULL) {
        free(p->text);
        free(p->ids);
        free(p);
        return NULL;
    }
    memcpy(p->text, text.p, text.n);
    if (n_ids > 0) memcpy(p->ids, ids, n_ids * sizeof *p->ids);
    p->n_bytes = text.n;
    p->n_ids = n_ids;
    return p;
}

transcript_part *transcript_tree_add(transcript_tree *t, transcript_part *parent, const model *m,
                                     bytes text, tok_id special, const tok_id *ids, size_t n_ids) {
    uint64_t n_bytes = bytes_of(text.n, n_ids);
    if (parent != NULL) parent->n_pins++; // making room does not take it
    bool room = transcript_tree_make_room(t, n_bytes);
    if (parent != NULL) parent->n_pins--;
    transcript_part *p = room ? create(text, ids, n_ids) : NULL;
    if (p == NULL) return NULL;
    p->parent = parent;
    p->m = m;
    p->special = special;
    p->hash = hash_of(t, parent, text, special);
    list_node_init(&p->children);
    list_node_init(&p->sibling);
    if (parent != NULL) {
        list_push_front(&parent->children, &p->sibling);
        list_remove(&parent->used);
    }
    list_push_front(&t->ends, &p->used);
    if (t->n_parts > t->n_buckets) grow_buckets(t);
    transcript_part **bucket = &t->buckets[p->hash & (t->n_buckets - 1)];
    p->next = *bucket;
    *bucket = p;
    t->n_parts++;
    t->n_bytes += n_bytes;
    return p;
}

void transcript_tree_compute(transcript_part *p) {
    if (p->computed) return;
    p->computed = true;
    if (p->parent != NULL) transcript_order_add(p->parent, p);
}

void transcript_tree_touch(transcript_tree *t, transcript_part *end) {
    if (list_empty(&end->children)) {
        list_remove(&end->used);
        list_push_front(&t->ends, &end->used);
    }
    for (transcript_part *p = end; p->parent != NULL; p = p->parent) {
        list_node *siblings = &p->parent->children;
        if (siblings->next == &p->sibling) continue;
        list_remove(&p->sibling);
        list_push_front(siblings, &p->sibling);
    }
}

/* ---- forgetting ---- */

void transcript_tree_drop(transcript_tree *t, transcript_part *p) {
    INFERD_CHECK(list_empty(&p->children) && p->n_pins == 0);
    transcript_part **at = &t->buckets[p->hash & (t->n_buckets - 1)];
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    list_remove(&p->used);
    list_remove(&p->sibling);
    if (p->parent != NULL && p->computed) transcript_order_remove(p->parent, p);
    if (p->parent != NULL && list_empty(&p->parent->children))
        list_push_back(&t->ends, &p->parent->used);
    t->n_parts--;
    t->n_bytes -= bytes_of(p->n_bytes, p->n_ids);
    free(p->text);
    free(p->ids);
    free(p);
}

static bool is_free(const transcript_part *p) {
    return list_empty(&p->children) && p->n_pins == 0;
}

void transcript_tree_forget(transcript_tree *t, const model *m) {
    LIST_EACH_SAFE(node, next, &t->ends) {
        transcript_part *p = LIST_ENTRY(node, transcript_part, used), *parent;
        for (; p != NULL && list_empty(&p->children) && (m == NULL || p->m == m); p = parent) {
            parent = p->parent;
            transcript_tree_drop(t, p);
        }
    }
}

void transcript_tree_trim(transcript_tree *t, transcript_part *end) {
    for (transcript_part *p = end, *parent; p != NULL && is_free(p) && !p->computed; p = parent) {
        parent = p->parent;
        transcript_tree_drop(t, p);
    }
}

bool transcript_tree_make_room(transcript_tree *t, uint64_t n_bytes) {
    if (n_bytes > t->bytes_max) return false;
    for (size_t n = 2 * t->n_parts; t->n_bytes > t->bytes_max - n_bytes; n--) {
        if (n == 0 || list_empty(&t->ends)) return false;
        transcript_part *last = LIST_ENTRY(t->ends.prev, transcript_part, used);
        if (is_free(last)) {
            transcript_tree_drop(t, last);
        } else {
            list_remove(&last->used);
            list_push_front(&t->ends, &last->used);
        }
    }
    return true;
}

/* ---- checks ---- */

static const char *flaw_of(const transcript_part *p) {
    if (p->computed && p->parent != NULL && !p->parent->computed)
        return "is computed, its parent not";
    if (p->parent != NULL && p->computed != transcript_order_has(p->parent, p))
        return "is computed, and not in the order of its siblings";
    if (list_empty(&p->children) != list_linked(&p->used)) return "and the list of ends disagree";
    LIST_EACH(node, &p->children)
        if (LIST_ENTRY(node, transcript_part, sibling)->parent != p)
            return "has a child of another";
    return NULL;
}

inferd_status transcript_tree_verify(const transcript_tree *t, inferd_err *err) {
    size_t n = 0, n_ends = 0, n_listed = 0;
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < t->n_buckets; i++)
        for (const transcript_part *p = t->buckets[i]; p != NULL && n <= t->n_parts; p = p->next) {
            const char *flaw = flaw_of(p);
            if (flaw != NULL)
                return inferd_fail(err, INFERD_EINVAL, "transcripts: part %zu %s", n, flaw);
            n++;
            n_ends += list_empty(&p->children);
            n_bytes += bytes_of(p->n_bytes, p->n_ids);
        }
    LIST_EACH(node, &t->ends) n_listed++;
    if (n == t->n_parts && n_bytes == t->n_bytes && n_ends == n_listed) return INFERD_OK;
    return inferd_fail(
        err, INFERD_EINVAL,
        "transcripts: %zu parts of %llu bytes, counted %zu of %llu; %zu ends, %zu listed", n,
        (unsigned long long)n_bytes, t->n_parts, (unsigned long long)t->n_bytes, n_ends, n_listed);
}
