/* talk.c - see talk.h. */
#include "talk.h"

talk *talk_create(const bench_class *c, uint64_t seed, uint32_t class_idx, uint64_t idx, decks *d) {
    talk *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->idx = idx;
    t->class_idx = class_idx;
    t->card = decks_take(d, class_idx);
    t->n_turns = plan_turns(c, seed, class_idx, idx, t->card);
    buf_init(&t->history, TALK_BYTES_MAX);
    if (!c->data.is_text || t->n_turns < 2) return t;
    t->lines = calloc(t->n_turns - 1, sizeof *t->lines);
    if (t->lines == NULL) {
        talk_destroy(t);
        return NULL;
    }
    for (uint32_t i = 0; i + 1 < t->n_turns; i++) t->lines[i] = decks_take(d, class_idx);
    return t;
}

void talk_destroy(talk *t) {
    if (t == NULL) return;
    buf_deinit(&t->history);
    free(t->lines);
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
                       uint64_t idx, deck_card card) {
    if (t == NULL) return plan_draw_card(c, seed, class_idx, idx, 0, card);
    card = t->lines != NULL && t->turn > 0 ? t->lines[t->turn - 1] : t->card;
    request_plan plan = plan_draw_card(c, seed, class_idx, idx, t->turn, card);
    plan.n_before += t->n_tokens;
    return plan;
}

double talk_think_s(const talk *t, const bench_class *c, uint64_t seed) {
    rng random = rng_make(seed ^ 0x7468696e6b, t->class_idx, t->idx * TURNS_MAX + t->turn);
    return c->think_lo_s + (1 - rng_unit(&random)) * (c->think_hi_s - c->think_lo_s);
}
