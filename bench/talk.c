/* talk.c - see talk.h. */
#include "talk.h"

talk *talk_create(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx,
                  uint64_t first_line) {
    talk *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->idx = idx;
    t->class_idx = class_idx;
    t->first_line = first_line;
    t->n_turns = plan_turns(c, seed, class_idx, idx);
    buf_init(&t->history, TALK_BYTES_MAX);
    return t;
}

void talk_destroy(talk *t) {
    if (t == NULL) return;
    buf_deinit(&t->history);
    free(t);
}

bool talk_answer(talk *t, const request_plan *plan, const bench_class *c, const char *answer,
                 uint64_t n_output) {
    if (++t->turn >= t->n_turns) return false;
    buf_add_str(&t->history, "{\"role\":\"user\",\"content\":");
    plan_message(plan, c, &t->history);
    buf_add_str(&t->history, "},{\"role\":\"assistant\",\"content\":");
    plan_string(&t->history, answer);
    buf_add_str(&t->history, "},");
    t->n_tokens += plan->n_prompt + n_output;
    return !t->history.failed;
}

request_plan talk_plan(const talk *t, const bench_class *c, uint64_t seed, uint32_t class_idx,
                       uint64_t idx) {
    if (t == NULL) return plan_draw(c, seed, class_idx, idx, 0);
    request_plan plan = plan_draw_line(c, seed, class_idx, idx, t->turn, t->first_line);
    plan.n_before += t->n_tokens;
    return plan;
}

double talk_think_s(const talk *t, const bench_class *c, uint64_t seed) {
    rng random = rng_make(seed ^ 0x7468696e6b, t->class_idx, t->idx * TURNS_MAX + t->turn);
    return c->think_lo_s + (1 - rng_unit(&random)) * (c->think_hi_s - c->think_lo_s);
}
