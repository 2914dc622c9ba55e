/* sched_cost.c - what a step of a model costs on this device, predicted from measured steps. */
#include "sched_state.h"

uint32_t sched_decode_us(const sched *s, uint32_t model_idx) {
    rate_work w = {.draws = 1};
    rate_add_rows(&w, 0, 1);
    uint64_t us = rate_us(&s->models[model_idx].rate, &w);
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}
