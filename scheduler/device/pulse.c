/* pulse.c - see pulse.h. */
#include "scheduler/pulse.h"

#include <stddef.h>

static _Thread_local pulse *mine;

void pulse_join(pulse *p) {
    mine = p;
}

/* The count changes before the kind: a watchdog that reads the new kind then also reads the new
 * count, and does not take the end of a long step for new work of that length. */
static void beat(pulse_kind kind, const char *where, const char *object, uint32_t model_idx) {
    pulse *p = mine;
    if (p == NULL) return;
    atomic_fetch_add_explicit(&p->n_beats, 1, memory_order_relaxed);
    atomic_store_explicit(&p->kind, kind, memory_order_release);
    atomic_store_explicit(&p->where, where, memory_order_relaxed);
    atomic_store_explicit(&p->object, object, memory_order_relaxed);
    atomic_store_explicit(&p->model_idx, model_idx, memory_order_relaxed);
}

void pulse_at(pulse_kind kind, const char *where) {
    beat(kind, where, NULL, PULSE_NO_MODEL);
}

void pulse_at_object(pulse_kind kind, const char *where, const char *object) {
    beat(kind, where, object, PULSE_NO_MODEL);
}

void pulse_at_model(pulse_kind kind, const char *where, uint32_t model_idx) {
    beat(kind, where, NULL, model_idx);
}
