/* prefix.h - the prefix cache: full blocks of one model, found again by their content.
 *
 * The keys and values of a block depend on all tokens up to its end, so a block is named by a keyed
 * 128-bit hash chained over the blocks before it, starting from the scope of the request (tenant
 * and salt): two scopes never share, and because the key is drawn at start, no client can compute a
 * name or a collision.  On a hit the scope, the depth and the tokens are compared as well.
 *
 * A block is published when it is full and the step that computed it has finished.  While it has a
 * reference count, sequences use it; after that it is in the LRU list until its slots are needed.
 * Sequences drop their last block first, so a block is always evicted before the one it builds on.
 *
 * Always true (prefix_verify checks it): a published block is taken; it is in the LRU list exactly
 * when its count is zero; a taken block with count zero is published.
 * Thread: engine.  Lookup is O(blocks found), the rest O(n_groups). */
#ifndef INFERD_PREFIX_H
#define INFERD_PREFIX_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "kv.h"

/* Name of a chain of full blocks, passed along by publishing and lookup. */
typedef struct prefix_name {
    uint64_t h[2];
} prefix_name;

typedef struct prefix_entry {
    list_node lru; // linked while its count is zero
    prefix_name name;
    uint64_t scope[2];
    uint32_t depth; // index of the block in its chain
    uint32_t next;  // in its bucket
    bool published;
} prefix_entry;

typedef struct prefix {
    kv *kv;                // borrowed
    uint64_t key[2];       // secret of this process
    prefix_entry *entries; // [kv.n_blocks] by block number; owned
    tok_id *tokens;        // [kv.n_blocks, block_tokens] owned
    uint32_t *buckets;     // [n_buckets, a power of two] first entry; owned
    uint32_t n_buckets;
    list_node lru; // oldest first
    uint32_t n_published, n_evictable;
} prefix;

/* 128 bits that depend on the key and on n_words words (SipHash-2-4). */
prefix_name prefix_hash(const uint64_t key[2], const uint64_t *words, size_t n_words);

/* `key` NULL: drawn from the system. */
inferd_status prefix_init(prefix *p, kv *k, const uint64_t key[2], inferd_err *err);
void prefix_deinit(prefix *p); // accepts a zeroed prefix

prefix_name prefix_root(const prefix *p, const uint64_t scope[2]);
prefix_name prefix_extend(const prefix *p, prefix_name parent, const tok_id *tokens);

/* How many of the first blocks_max blocks of these tokens are cached or shared here, and how many
 * of those have a count of zero now.  Changes nothing. */
uint32_t prefix_find(const prefix *p, const uint64_t scope[2], const tok_id *tokens,
                     uint32_t blocks_max, uint32_t *n_uncounted);
/* Append these blocks to an empty table; *name becomes the name of the last one. */
uint32_t prefix_take(prefix *p, const uint64_t scope[2], const tok_id *tokens, uint32_t blocks_max,
                     kv_table *t, prefix_name *name);

/* Names block `depth` of the table, which has these tokens, unless that content is published. */
void prefix_publish(prefix *p, const kv_table *t, uint32_t depth, prefix_name name,
                    const uint64_t scope[2], const tok_id *tokens);

/* Drop all blocks of the table: published ones stay cached, the others become free slots. */
void prefix_release(prefix *p, kv_table *t, uint64_t fence);
/* Free the slots of the least recently used block; false: none, or a step may still touch it. */
bool prefix_evict(prefix *p);
/* The block that prefix_evict would take, or BLOCK_NONE; its entry identifies it. */
uint32_t prefix_oldest(const prefix *p);

/* Find this block here by the name and key of another cache of the same model (device or host);
 * BLOCK_NONE: not here.  Both caches have the same key. */
uint32_t prefix_lookup(const prefix *p, prefix_name name, const uint64_t scope[2], uint32_t depth,
                       const tok_id *tokens);
/* Block 0 of the table has a count of one and the content of block b of `of`: it becomes a cached
 * block with that identity, and the table is empty then. */
void prefix_adopt(prefix *p, kv_table *t, const prefix *of, uint32_t b);
/* Mark as used: it is evicted last. */
void prefix_touch(prefix *p, uint32_t b);
const tok_id *prefix_tokens(const prefix *p, uint32_t b); // [block_tokens]

inferd_status prefix_verify(const prefix *p, inferd_err *err);

#endif
