/* prefix.c - see prefix.h.  The hash is SipHash-2-4 with 128 bits of output: strong enough that a
 * tenant cannot choose tokens to hit another tenant's blocks, and 16 tokens take about 100 ns. */
#include "prefix.h"

#include <string.h>
#include <sys/random.h>

#include "inferd/siphash.h"

/* ---- names ---- */

/* n_words were hashed before. */
static prefix_name name_of(sip *s, uint64_t n_words) {
    prefix_name name;
    sip_end128(s, (n_words * 8) << 56, name.h);
    return name;
}

prefix_name prefix_hash(const uint64_t key[2], const uint64_t *words, size_t n_words) {
    sip v = sip_begin(key, true);
    for (size_t i = 0; i < n_words; i++) sip_word(&v, words[i]);
    return name_of(&v, n_words);
}

prefix_name prefix_root(const prefix *p, const uint64_t scope[2]) {
    sip v = sip_begin(p->key, true);
    sip_word(&v, scope[0]);
    sip_word(&v, scope[1]);
    return name_of(&v, 2);
}

prefix_name prefix_extend(const prefix *p, prefix_name parent, const tok_id *tokens) {
    uint32_t n = p->kv->layout.block_tokens;
    sip v = sip_begin(p->key, true);
    sip_word(&v, parent.h[0]);
    sip_word(&v, parent.h[1]);
    for (uint32_t i = 0; i + 1 < n; i += 2)
        sip_word(&v, (uint32_t)tokens[i] | (uint64_t)(uint32_t)tokens[i + 1] << 32);
    if (n % 2 != 0) sip_word(&v, (uint32_t)tokens[n - 1]);
    return name_of(&v, 2 + (n + 1) / 2);
}

/* ---- the table ---- */

static inferd_status draw_key(uint64_t key[2], inferd_err *err) {
    if (getrandom(key, 2 * sizeof *key, 0) != 2 * (ssize_t)sizeof *key)
        return inferd_fail(err, INFERD_EIO, "the system gives no random bytes");
    return INFERD_OK;
}

inferd_status prefix_init(prefix *p, kv *k, const uint64_t key[2], inferd_err *err) {
    *p = (prefix){.kv = k};
    list_node_init(&p->lru);
    if (key != NULL) {
        memcpy(p->key, key, sizeof p->key);
    } else {
        inferd_status s = draw_key(p->key, err);
        if (s != INFERD_OK) return s;
    }
    p->n_buckets = 16;
    while (p->n_buckets < k->n_blocks && p->n_buckets < 1u << 30) p->n_buckets *= 2;
    size_t n = size_max(k->n_blocks, 1);
    p->entries = calloc(n, sizeof *p->entries);
    p->tokens = calloc(n * k->layout.block_tokens, sizeof *p->tokens);
    p->buckets = malloc(p->n_buckets * sizeof *p->buckets);
    if (p->entries == NULL || p->tokens == NULL || p->buckets == NULL) {
        prefix_deinit(p);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a prefix cache of %zu blocks", n);
    }
    for (uint32_t i = 0; i < k->n_blocks; i++) list_node_init(&p->entries[i].lru);
    memset(p->buckets, 0xff, p->n_buckets * sizeof *p->buckets); // BLOCK_NONE
    return INFERD_OK;
}

void prefix_deinit(prefix *p) {
    free(p->entries);
    free(p->tokens);
    free(p->buckets);
    *p = (prefix){0};
}

static uint32_t *bucket_of(const prefix *p, const prefix_name *name) {
    return &p->buckets[name->h[0] & (p->n_buckets - 1)];
}

static uint32_t find(const prefix *p, const prefix_name *name, const uint64_t scope[2],
                     uint32_t depth, const tok_id *tokens) {
    size_t n = p->kv->layout.block_tokens;
    for (uint32_t b = *bucket_of(p, name); b != BLOCK_NONE; b = p->entries[b].next) {
        const prefix_entry *e = &p->entries[b];
        if (e->name.h[0] == name->h[0] && e->name.h[1] == name->h[1] && e->depth == depth &&
            e->scope[0] == scope[0] && e->scope[1] == scope[1] &&
            memcmp(p->tokens + b * n, tokens, n * sizeof *tokens) == 0)
            return b;
    }
    return BLOCK_NONE;
}

uint32_t prefix_find(const prefix *p, const uint64_t scope[2], const tok_id *tokens,
                     uint32_t blocks_max, uint32_t *n_uncounted) {
    prefix_name name = prefix_root(p, scope);
    uint32_t n = 0;
    *n_uncounted = 0;
    for (; n < blocks_max; n++) {
        const tok_id *block_tokens = tokens + (size_t)n * p->kv->layout.block_tokens;
        name = prefix_extend(p, name, block_tokens);
        uint32_t b = find(p, &name, scope, n, block_tokens);
        if (b == BLOCK_NONE) break;
        *n_uncounted += p->kv->blocks[b].refs == 0;
    }
    return n;
}

uint32_t prefix_take(prefix *p, const uint64_t scope[2], const tok_id *tokens, uint32_t blocks_max,
                     kv_table *t, prefix_name *name) {
    INFERD_CHECK(t->n_blocks == 0);
    *name = prefix_root(p, scope);
    uint32_t n = 0;
    for (; n < blocks_max; n++) {
        const tok_id *block_tokens = tokens + (size_t)n * p->kv->layout.block_tokens;
        prefix_name next = prefix_extend(p, *name, block_tokens);
        uint32_t b = find(p, &next, scope, n, block_tokens);
        if (b == BLOCK_NONE) break;
        if (list_linked(&p->entries[b].lru)) {
            list_remove(&p->entries[b].lru);
            p->n_evictable--;
        }
        kv_append_shared(p->kv, t, b);
        *name = next;
    }
    kv_continue_page(p->kv, t);
    return n;
}

void prefix_publish(prefix *p, const kv_table *t, uint32_t depth, prefix_name name,
                    const uint64_t scope[2], const tok_id *tokens) {
    INFERD_CHECK(depth < t->n_blocks);
    uint32_t b = t->blocks[depth];
    prefix_entry *e = &p->entries[b];
    if (e->published || find(p, &name, scope, depth, tokens) != BLOCK_NONE) return;
    size_t n = p->kv->layout.block_tokens;
    memcpy(p->tokens + b * n, tokens, n * sizeof *tokens);
    uint32_t *bucket = bucket_of(p, &name);
    e->name = name;
    memcpy(e->scope, scope, sizeof e->scope);
    e->depth = depth;
    e->next = *bucket;
    e->published = true;
    *bucket = b;
    p->n_published++;
}

void prefix_adopt(prefix *p, kv_table *t, const prefix *of, uint32_t b) {
    const prefix_entry *e = &of->entries[b];
    uint32_t own = t->blocks[0];
    size_t n = p->kv->layout.block_tokens;
    INFERD_CHECK(t->n_blocks == 1 && !p->entries[own].published);
    memcpy(p->tokens + own * n, prefix_tokens(of, b), n * sizeof *p->tokens);
    uint32_t *bucket = bucket_of(p, &e->name);
    prefix_entry *mine = &p->entries[own];
    mine->name = e->name;
    memcpy(mine->scope, e->scope, sizeof mine->scope);
    mine->depth = e->depth;
    mine->next = *bucket;
    mine->published = true;
    *bucket = own;
    p->n_published++;
    prefix_release(p, t, 0);
}

static void unpublish(prefix *p, uint32_t b) {
    prefix_entry *e = &p->entries[b];
    uint32_t *at = bucket_of(p, &e->name);
    while (*at != b) at = &p->entries[*at].next;
    *at = e->next;
    e->published = false;
    p->n_published--;
}

void prefix_release(prefix *p, kv_table *t, uint64_t fence) {
    while (t->n_blocks > 0) {
        uint32_t b = kv_drop_last(p->kv, t, fence);
        if (b == BLOCK_NONE) continue;
        if (p->entries[b].published) {
            list_push_back(&p->lru, &p->entries[b].lru);
            p->n_evictable++;
        } else {
            kv_block_free(p->kv, b);
        }
    }
}

uint32_t prefix_oldest(const prefix *p) {
    if (list_empty(&p->lru)) return BLOCK_NONE;
    uint32_t b = (uint32_t)(LIST_ENTRY(p->lru.next, prefix_entry, lru) - p->entries);
    return p->kv->blocks[b].fence > p->kv->pool->finished ? BLOCK_NONE : b;
}

uint32_t prefix_lookup(const prefix *p, prefix_name name, const uint64_t scope[2], uint32_t depth,
                       const tok_id *tokens) {
    return find(p, &name, scope, depth, tokens);
}

const tok_id *prefix_tokens(const prefix *p, uint32_t b) {
    return p->tokens + (size_t)b * p->kv->layout.block_tokens;
}

void prefix_touch(prefix *p, uint32_t b) {
    prefix_entry *e = &p->entries[b];
    if (!list_linked(&e->lru)) return;
    list_remove(&e->lru);
    list_push_back(&p->lru, &e->lru);
}

bool prefix_evict(prefix *p) {
    uint32_t b = prefix_oldest(p);
    if (b == BLOCK_NONE) return false;
    prefix_entry *e = &p->entries[b];
    list_remove(&e->lru);
    p->n_evictable--;
    unpublish(p, b);
    kv_block_free(p->kv, b);
    return true;
}

inferd_status prefix_verify(const prefix *p, inferd_err *err) {
    uint32_t n_published = 0, n_evictable = 0, n_listed = 0, n_found = 0;
    for (uint32_t b = 0; b < p->kv->n_blocks; b++) {
        const kv_block *block = &p->kv->blocks[b];
        const prefix_entry *e = &p->entries[b];
        bool cached = block->taken && block->refs == 0;
        if (e->published && !block->taken)
            return inferd_fail(err, INFERD_EINVAL, "prefix: block %u is published and free", b);
        if (cached && !e->published)
            return inferd_fail(err, INFERD_EINVAL, "prefix: block %u is cached, but not published",
                               b);
        if (cached != list_linked(&e->lru))
            return inferd_fail(err, INFERD_EINVAL, "prefix: block %u and the LRU list disagree", b);
        n_published += e->published;
        n_evictable += cached;
    }
    LIST_EACH(node, &p->lru) n_listed++;
    for (uint32_t i = 0; i < p->n_buckets; i++)
        for (uint32_t b = p->buckets[i]; b != BLOCK_NONE; b = p->entries[b].next)
            if (++n_found > p->kv->n_blocks || !p->entries[b].published)
                return inferd_fail(err, INFERD_EINVAL, "prefix: bucket %u is inconsistent", i);
    if (n_published != p->n_published || n_found != n_published || n_evictable != p->n_evictable ||
        n_listed != n_evictable)
        return inferd_fail(
            err, INFERD_EINVAL,
            "prefix: %u published, %u found, %u cached, %u listed; the counters say %u, %u",
            n_published, n_found, n_evictable, n_listed, p->n_published, p->n_evictable);
    return INFERD_OK;
}
