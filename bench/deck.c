/* deck.c - see deck.h. */
#include "deck.h"

#include <string.h>

/* The path may be written in several ways, and a file may have copies. */
static bool is_same(const dataset *a, const dataset *b) {
    return a->is_text == b->is_text && a->n == b->n && a->n_turns == b->n_turns &&
           a->text.n == b->text.n && memcmp(a->text.p, b->text.p, a->text.n) == 0 &&
           memcmp(a->entries, b->entries, a->n * sizeof *a->entries) == 0 &&
           memcmp(a->turns, b->turns, a->n_turns * sizeof *a->turns) == 0;
}

static uint32_t first_with(const bench_spec *spec, uint32_t class_idx) {
    uint32_t i = 0;
    while (i < class_idx && !is_same(&spec->classes[i].data, &spec->classes[class_idx].data)) i++;
    return i;
}

void decks_init(decks *d, const bench_spec *spec) {
    *d = (decks){.spec = spec, .seed = spec->seed};
    for (uint32_t i = 0; i < spec->n_classes; i++) {
        deck_part *p = &d->parts[i];
        p->first_class = i;
        if (spec->classes[i].data.n == 0) continue;
        p->first_class = first_with(spec, i);
        p->rank = d->parts[p->first_class].n_parts++;
    }
}

static void begin_round(decks *d, uint32_t first_class) {
    deck_part *first = &d->parts[first_class];
    first->n_rounds++;
    first->n_left = d->spec->classes[first_class].data.n;
    for (uint32_t i = first_class; i < d->spec->n_classes; i++) {
        deck_part *p = &d->parts[i];
        if (p->first_class != first_class) continue;
        p->next = 0;
        p->end = (first->n_left + first->n_parts - 1 - p->rank) / first->n_parts;
    }
}

static deck_part *fullest(decks *d, uint32_t first_class) {
    deck_part *best = &d->parts[first_class];
    for (uint32_t i = first_class + 1; i < d->spec->n_classes; i++) {
        deck_part *p = &d->parts[i];
        if (p->first_class == first_class && p->end - p->next > best->end - best->next) best = p;
    }
    return best;
}

deck_card decks_take(decks *d, uint32_t class_idx) {
    const dataset *data = &d->spec->classes[class_idx].data;
    if (data->n == 0) return (deck_card){0};
    deck_part *own = &d->parts[class_idx], *first = &d->parts[own->first_class];
    if (first->n_left == 0) begin_round(d, own->first_class);
    first->n_left--;
    size_t at;
    if (own->next < own->end) {
        at = own->rank + own->next++ * first->n_parts;
    } else {
        deck_part *other = fullest(d, own->first_class);
        at = other->rank + --other->end * first->n_parts;
    }
    return (deck_card){(uint32_t)dataset_draw(data, d->seed, at), first->n_rounds > 1};
}
