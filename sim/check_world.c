/* check_world.c - see check_yard.h: the parts of a world that are drawn before its first event. */
#include "check_yard.h"

/* ---- models ---- */

void yard_draw_shape(yard *y, slot *s, uint32_t pages_max) {
    static const uint32_t GROUPS[] = {1, 2, 1, 2}, TOKENS[] = {4, 4, 6, 3};
    uint32_t kind = below(y, 4);
    s->kv = fake_layout(TOKENS[kind], GROUPS[kind], PAGE_CELLS / TOKENS[kind]);
    s->kv.slot_bytes = s->kv.block_tokens * sizeof(tok_id);
    uint32_t n = 1 + below(y, pages_max);
    s->weight_pages = (n + y->extent_pages - 1) / y->extent_pages * y->extent_pages;
}

/* It shares its weights with another slot. */
bool yard_is_shared(const yard *y, uint32_t idx) {
    for (uint32_t i = 0; i < y->n_models; i++)
        if (i != idx && y->slots[i].used && y->slots[i].same_as == idx) return true;
    return y->slots[idx].same_as != idx;
}

model_policy yard_draw_policy(yard *y, uint32_t idx) {
    model_policy p = {.prio = (gen_class)below(y, GEN_CLASSES),
                      .weight = 1 + below(y, 5),
                      .keep_alive_us = chance(y, 20) ? 5000 + below(y, 40000) : POLICY_NEVER,
                      .replicas_min = 1,
                      .replicas_max = 1};
    if (chance(y, 20)) p.share = (share_spec){(share_policy)below(y, 3), 5 + below(y, 30), 1};
    if (chance(y, 10)) p.slo_ttft_ms = 5 + below(y, 50), p.slo_tpot_ms = 2 + below(y, 20);
    if (chance(y, 8)) p.pin = chance(y, 50) ? PIN_HOT : PIN_WARM;
    if (y->slots[idx].used && yard_is_shared(y, idx)) p.pin = PIN_NONE;
    uint32_t n_min = chance(y, 15) ? 1 + below(y, 10) : 0;
    if (p.pin == PIN_HOT && chance(y, 50)) n_min += y->slots[idx].weight_pages;
    p.min_bytes = (uint64_t)n_min * PAGE_BYTES;
    if (chance(y, 10))
        p.max_bytes = (uint64_t)(y->slots[idx].weight_pages + 5 + below(y, 20)) * PAGE_BYTES;
    if (p.max_bytes != 0 && p.max_bytes < p.min_bytes) p.max_bytes = p.min_bytes;
    return p;
}

void yard_add_model(yard *y, uint32_t idx, const model_policy *policy, uint32_t same_as) {
    slot *s = &y->slots[idx];
    slot fresh = {.used = true,
                  .policy = *policy,
                  .kv = s->kv,
                  .weight_pages = s->weight_pages,
                  .stamp = y->next_stamp--,
                  .failed_us = s->failed_us,
                  .same_as = same_as == DEVICE_OWN ? idx : same_as};
    if (same_as != DEVICE_OWN) fresh.weight_pages = y->slots[same_as].weight_pages;
    *s = fresh;
    yard_say(y, "attach %u: %u pages, class %d, pin %d", idx, s->weight_pages, (int)policy->prio,
             (int)policy->pin);
    residency_attach(&y->core.models, idx, NULL, same_as, policy, now(y));
    if (y->core.models.slots[idx].state == MODEL_FAILED) // it has no guarantee, and needs none
        s->policy.min_bytes = s->policy.max_bytes = 0;
}

/* An admitted request that can never fit under the new policy ends with an error. */
void yard_set_policy(yard *y, uint32_t idx, const model_policy *policy) {
    inferd_err err = {0};
    residency *m = &y->core.models;
    if (residency_set_policy(m, idx, policy, now(y), &err) != INFERD_OK) return;
    yard_say(y, "policy of %u: class %d, pin %d", idx, (int)policy->prio, (int)policy->pin);
    y->slots[idx].policy = *policy;
}

/* ---- a world ---- */

static uint64_t read_clock(void *ctx) {
    return now(ctx);
}
/* Nothing to do: check.c sleeps until the next read is done. */
static void wake(void *ctx) {
    (void)ctx;
}
static uint32_t read_room(void *ctx) {
    return ((yard *)ctx)->room;
}

static void make_models(yard *y) {
    for (uint32_t i = 0; i < y->n_models; i++) {
        slot *s = &y->slots[i];
        yard_draw_shape(y, s, y->fake.n_pages * 2 / 3);
        model_policy p = yard_draw_policy(y, i);
        uint32_t same_as = DEVICE_OWN;
        if (y->theme == THEME_STORM) {
            if (p.pin == PIN_NONE && i > 1 && chance(y, 15) && y->slots[i - 1].same_as == i - 1)
                same_as = i - 1;
        } else {
            p = (model_policy){.prio = GEN_NORMAL,
                               .weight = y->theme == THEME_IDLE ? 1 + below(y, 3) : 1,
                               .keep_alive_us = POLICY_NEVER,
                               .replicas_min = 1,
                               .replicas_max = 1};
            /* Two models do not fit together; one fits with its keys and values. */
            uint32_t n = y->fake.n_pages * 5 / 9, x = y->extent_pages;
            if (y->theme == THEME_FLOOD) n = 2;
            if (y->theme == THEME_IDLE) {
                n = y->fake.n_pages * 2 / 9 + below(y, 2) * 2;
                p.prio = (gen_class)(GEN_NORMAL + below(y, 2));
            }
            s->weight_pages = (n + x - 1) / x * x;
            if (y->theme == THEME_GUARANTEED && i == 1)
                p.min_bytes = (uint64_t)12 * PAGE_BYTES, s->weight_pages = x;
            if (y->theme == THEME_GUARANTEED && i == 0) s->weight_pages = x;
            if (y->theme == THEME_URGENT) p.prio = i == 0 ? GEN_BATCH : GEN_HIGH;
        }
        yard_add_model(y, i, &p, same_as);
    }
}

static void make_limits(yard *y, sched_limits *l, residency_limits *m) {
    *l = (sched_limits){.depth = CORE_DEPTH_MAX,
                        .running_max = 2 + below(y, 6),
                        .queue_len_max = 40,
                        .pace_us = 40000,
                        .starvation_us = STARVATION_US};
    l->logits_max = l->running_max + below(y, 12);
    l->step_tokens_max = l->logits_max + 16 + below(y, 100);
    if (y->fake.depth == 1 && chance(y, 60)) l->draft_tokens = below(y, 7);
    if (y->theme != THEME_STORM) l->running_max = 6, l->logits_max = 8;
    *m = (residency_limits){.slice_us = 20000 + below(y, 40000),
                            .retry_us = RETRY_US,
                            .retry_max_us = RETRY_US_MAX,
                            .eager = chance(y, 50)};
    if (chance(y, 50)) l->starvation_percent = 1 + below(y, 10);
    if (y->theme == THEME_FLOOD) l->starvation_percent = u32_max(l->starvation_percent, 2);
    if (chance(y, 30)) l->urgent_percent = 1 + below(y, 10);
    if (y->theme != THEME_STORM) return;
    l->zero_on_tenant_change = chance(y, 40);
}

bool yard_make(yard *y) {
    sched_limits limits;
    residency_limits models;
    inferd_err err = {0};
    y->ranks = chance(y, 50);
    y->extent_pages = 1;
    y->fake = (fake_device){.n_pages = 20 + below(y, 41),
                            .depth = 1 + below(y, 2),
                            .context = CONTEXT,
                            .kv = fake_layout(4, 2, 6),
                            .late = chance(y, 70),
                            .apart = chance(y, 50),
                            .a_us = 500 + below(y, 1000),
                            .b_us = 10 + below(y, 100),
                            .c_per_us = chance(y, 50) ? 10 : 0,
                            .stage_us = 100 + below(y, 500),
                            .load_us = below(y, 2) * 200};
    y->fake.n_host_pages = chance(y, 20) ? 0 : below(y, 2 * y->fake.n_pages);
    if (y->fake.apart) {
        y->extent_pages = 1u << below(y, 3);
        y->fake.n_pages = y->fake.n_pages / y->extent_pages * y->extent_pages;
    }
    if (y->theme != THEME_STORM) y->fake.n_host_pages = 4 * y->fake.n_pages;
    y->n_models = 3 + below(y, 8);
    if (y->theme != THEME_STORM && y->theme != THEME_IDLE) y->n_models = 2;
    if (y->theme == THEME_SLICES) y->n_models = 2 + below(y, 2);
    y->requests_max = y->theme == THEME_STORM ? 150 : REQUESTS_MAX;
    y->trouble_percent = y->theme == THEME_STORM && chance(y, 60) ? 5 + below(y, 15) : 0;
    y->step_trouble_permille = y->theme == THEME_STORM && chance(y, 30) ? 1 + below(y, 10) : 0;
    y->may_lose = chance(y, 10);
    make_limits(y, &limits, &models);
    yard_set_texts(chance(y, 50), 0); // 1: texts repeat themselves, draft tokens are right
    y->jumped_us = 1000000;
    core_options o = {.device = yard_device(y, chance(y, 50)),
                      .limits = limits,
                      .residency = models,
                      .n_slots = MODELS_MAX,
                      .clock = read_clock,
                      .room = read_room,
                      .emit = yard_on_event,
                      .wake = wake,
                      .on_step = yard_on_step,
                      .ctx = y};
    if (chance(y, 40)) o.disk_ops = &yard_disk_ops, o.disk = &y->disk;
    y->disk.y = y;
    bool opens =
        core_init(&y->core, &o, &err) == INFERD_OK && core_open(&y->core, &err) == INFERD_OK;
    if (yard_fail_if(y, !opens, CHECK_BOOKS, "opening: %s", err.text)) return false;
    yard_say(y, "theme %d: %u pages, %u of the host %s, depth %u, %u models", (int)y->theme,
             y->fake.n_pages, y->fake.n_host_pages, y->fake.apart ? "apart" : "in one memory",
             y->fake.depth, y->n_models);
    make_models(y);
    return true;
}
