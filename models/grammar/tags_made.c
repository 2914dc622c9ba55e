/* tags_made.c - see tags_made.h.  Nodes are found by the whole of what they were made of, because
 * hashes of chosen inputs may collide. */
#include "tags_made.h"

#include <string.h>

#include "inferd/hash.h"

typedef struct tags_made_node {
    struct tags_made_node *next;
    ir_node node;
    json_t *left_out; // owned
    size_t n;
    char key[]; // [n]
} made_node;

static made_node **bucket_of(tags_made *m, bytes key) {
    return &m->buckets[hash_fold(hash_bytes(HASH_BEGIN, key.p, key.n)) % TAGS_MADE_BUCKETS];
}

bool tags_made_find(tags_made *m, const buf *key, ir_node *out, const json_t **left_out) {
    if (key->failed || key->n == 0) return false;
    for (made_node *e = *bucket_of(m, (bytes){key->p, key->n}); e != NULL; e = e->next) {
        if (e->n != key->n || memcmp(e->key, key->p, key->n) != 0) continue;
        *out = e->node;
        *left_out = e->left_out;
        return true;
    }
    return false;
}

void tags_made_keep(tags_made *m, const buf *key, ir_node node, json_t *left_out) {
    if (key->failed || key->n == 0 || key->n > TAGS_MADE_BYTES_MAX) return;
    made_node *e = malloc(sizeof *e + key->n);
    if (e == NULL) return; // it is made again
    made_node **bucket = bucket_of(m, (bytes){key->p, key->n});
    *e = (made_node){.next = *bucket, .node = node, .left_out = json_incref(left_out), .n = key->n};
    memcpy(e->key, key->p, key->n);
    *bucket = e;
}

void tags_made_deinit(tags_made *m) {
    for (size_t i = 0; i < TAGS_MADE_BUCKETS; i++)
        for (made_node *e = m->buckets[i], *next; e != NULL; e = next) {
            next = e->next;
            json_decref(e->left_out);
            free(e);
        }
}

void tags_made_key(buf *key, char kind, bytes text) {
    buf_add_char(key, kind);
    buf_add(key, text.p, text.n);
}

void tags_made_key_schema(buf *key, const json_t *schema) {
    json_t *copy = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : NULL;
    size_t n = 0;
    if (copy != NULL) json_object_del(copy, "$comment");
    if (copy != NULL) n = json_dumpb(copy, NULL, 0, JSON_COMPACT);
    if (n == 0 || n > TAGS_MADE_BYTES_MAX || !buf_reserve(key, n)) { // it is not kept then
        key->n = 0;
    } else {
        json_dumpb(copy, key->p + key->n, n, JSON_COMPACT);
        key->n += n;
    }
    json_decref(copy);
}
