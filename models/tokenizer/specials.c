/* specials.c - the trie: children are a list, because almost every node has one. */
#include "tokenizer/specials.h"

static uint32_t new_node(special_trie *t, unsigned char byte) {
    if (t->n_nodes == t->capacity) {
        uint32_t capacity = t->capacity == 0 ? 256 : t->capacity * 2;
        special_node *nodes = realloc(t->nodes, (size_t)capacity * sizeof *nodes);
        if (nodes == NULL) return 0;
        t->nodes = nodes;
        t->capacity = capacity;
    }
    t->nodes[t->n_nodes] = (special_node){.id = -1, .byte = byte};
    return t->n_nodes++;
}

bool specials_init(special_trie *t) {
    *t = (special_trie){0};
    new_node(t, 0);
    return t->nodes != NULL;
}

void specials_deinit(special_trie *t) {
    free(t->nodes);
    *t = (special_trie){0};
}

static uint32_t find_child(const special_trie *t, uint32_t parent, unsigned char byte) {
    if (parent == 0) return t->start[byte];
    uint32_t child = t->nodes[parent].first_child;
    while (child != 0 && t->nodes[child].byte != byte) child = t->nodes[child].next_sibling;
    return child;
}

bool specials_add(special_trie *t, bytes text, tok_id id, bool control) {
    uint32_t at = 0;
    for (size_t i = 0; i < text.n; i++) {
        unsigned char byte = (unsigned char)text.p[i];
        uint32_t child = find_child(t, at, byte);
        if (child == 0) {
            child = new_node(t, byte);
            if (child == 0) return false;
            if (at == 0) {
                t->start[byte] = child;
            } else {
                t->nodes[child].next_sibling = t->nodes[at].first_child;
                t->nodes[at].first_child = child;
            }
        }
        at = child;
    }
    if (at != 0 && t->nodes[at].id < 0) {
        t->nodes[at].id = id;
        t->nodes[at].control = control;
    }
    return true;
}

size_t specials_match(const special_trie *t, const unsigned char *p, size_t n, size_t n_trusted,
                      tok_id *id) {
    size_t longest = 0;
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        at = find_child(t, at, p[i]);
        if (at == 0) break;
        const special_node *node = &t->nodes[at];
        if (node->id >= 0 && (!node->control || i < n_trusted)) {
            longest = i + 1;
            *id = node->id;
        }
    }
    return longest;
}
