/* words.c - making the table. */
#include "tokenizer/words.h"

bool word_table_init(word_table *t, const bytes *texts, size_t n) {
    size_t n_slots = 16;
    while (n_slots / 2 < n) n_slots *= 2;
    *t = (word_table){.slots = malloc(n_slots * sizeof *t->slots), .mask = n_slots - 1};
    if (t->slots == NULL) return false;
    t->texts = texts;
    for (size_t i = 0; i < n_slots; i++) t->slots[i] = (word_slot){.id = -1};
    return true;
}

void word_table_deinit(word_table *t) {
    free(t->slots);
    *t = (word_table){0};
}

void word_add(word_table *t, tok_id id) {
    bytes text = t->texts[id];
    const unsigned char *p = (const unsigned char *)text.p;
    if (word_find(t, p, text.n) >= 0) return;
    uint32_t hash = word_hash(p, text.n);
    size_t i = hash & t->mask;
    while (t->slots[i].id >= 0) i = (i + 1) & t->mask;
    t->slots[i] = (word_slot){hash, id};
    t->bytes_max = size_max(t->bytes_max, text.n);
}
