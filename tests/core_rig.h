/* core_rig.h - a whole core with a fake device, turned by hand: its clock is what the device took.
 */
#ifndef INFERD_CORE_RIG_H
#define INFERD_CORE_RIG_H

#include "sched_rig.h"

#include "core.h"

typedef struct core_rig {
    core core;
    fake_device device;
    outcome *outcomes; // [REQUESTS_MAX] by id
    uint64_t idle_us;  // added to the device's clock
    gen_request *copies[REQUESTS_MAX];
    bool verify; // the books after each turn
    bool zero_on_tenant_change;
    const kv_disk_ops *disk_ops; // NULL: no disk
    kv_disk *disk;
    const device_ops *ops; // NULL: those of the fake device
    uint64_t pace_us;      // of the limits; 0: the usual one
    uint32_t draft_tokens; // of the limits
} core_rig;

static inline uint64_t core_rig_now(void *ctx) {
    const core_rig *r = ctx;
    return r->device.clock_us + r->idle_us;
}

static inline uint32_t core_rig_room(void *ctx) {
    (void)ctx;
    return UINT32_MAX;
}

static inline void core_rig_event(void *ctx, const gen_event *e) {
    core_rig *r = ctx;
    rig fake = {.outcomes = r->outcomes};
    on_event(&fake, e);
}

static inline model_policy plain_policy(void) {
    return (model_policy){
        .prio = GEN_NORMAL, .weight = 1, .keep_alive_us = POLICY_NEVER, .replicas_min = 1};
}

/* Change `r->device` before core_rig_open where the defaults do not fit. */
static inline void core_rig_init(core_rig *r, uint32_t n_pages, uint32_t n_host_pages,
                                 uint32_t weight_pages) {
    *r = (core_rig){.verify = true};
    r->device = (fake_device){.n_pages = n_pages,
                              .n_host_pages = n_host_pages,
                              .weight_pages = weight_pages,
                              .depth = 1,
                              .context = 512,
                              .kv = fake_layout(4, 2, 6),
                              .late = true,
                              .a_us = 1000,
                              .b_us = 100,
                              .stage_pieces = 4,
                              .stage_us = 500};
    r->outcomes = calloc(REQUESTS_MAX, sizeof *r->outcomes);
    r->idle_us = 1000000;
}

static inline void core_rig_open(core_rig *r, bool eager) {
    inferd_err err = {0};
    device fake = fake_as_device(&r->device);
    core_options o = {.device = r->ops != NULL ? (device){r->ops, fake.self} : fake,
                      .limits = default_limits(),
                      .residency = {.slice_us = 100000,
                                    .retry_us = 1000000,
                                    .retry_max_us = 60000000,
                                    .eager = eager},
                      .disk_ops = r->disk_ops,
                      .disk = r->disk,
                      .n_slots = 16,
                      .clock = core_rig_now,
                      .room = core_rig_room,
                      .emit = core_rig_event,
                      .ctx = r};
    o.limits.depth = CORE_DEPTH_MAX;
    if (r->pace_us != 0) o.limits.pace_us = r->pace_us;
    if (r->draft_tokens != 0) o.limits.logits_max = 64;
    o.limits.draft_tokens = r->draft_tokens;
    o.limits.zero_on_tenant_change = r->zero_on_tenant_change;
    EXPECT_EQ(core_init(&r->core, &o, &err), INFERD_OK);
    EXPECT_EQ(core_open(&r->core, &err), INFERD_OK);
}

static inline void core_rig_verify(core_rig *r) {
    inferd_err err = {0};
    if (core_verify(&r->core, &err) == INFERD_OK) return;
    printf("%s\n", err.text);
    EXPECT(!"the books balance");
}

/* One turn as the engine does it; where there is nothing to do, time goes on for as much. */
static inline bool core_rig_iterate(core_rig *r, uint64_t else_us) {
    bool any = core_iterate(&r->core);
    sched_flush(r->core.sched, UINT32_MAX);
    if (r->verify) core_rig_verify(r);
    if (any) return true;
    uint64_t from_us = core_rig_now(r);
    r->idle_us += else_us;
    core_idle(&r->core, from_us, core_rig_now(r));
    return false;
}

static inline void core_rig_run(core_rig *r, uint64_t for_us) {
    uint64_t until_us = core_rig_now(r) + for_us;
    for (int i = 0; i < 1000000 && core_rig_now(r) < until_us; i++) core_rig_iterate(r, 1000);
}

static inline uint32_t core_rig_n_alive(const core_rig *r) {
    sched_counters c;
    sched_count(r->core.sched, &c);
    return c.n_running + c.n_waiting;
}

/* Until nobody runs or waits. */
static inline void core_rig_finish(core_rig *r) {
    for (int i = 0; i < 20000 && core_rig_n_alive(r) > 0; i++) core_rig_iterate(r, 1000);
    EXPECT_EQ(core_rig_n_alive(r), 0);
    while (core_rig_iterate(r, 0)) {
    }
}

static inline void core_rig_submit(core_rig *r, uint32_t model_idx, gen_request *q) {
    q->model_idx = model_idx;
    q->arrival_us = core_rig_now(r);
    r->copies[q->id] = copy_request(q);
    sched_submit(r->core.sched, q, core_rig_now(r));
}

static inline bool core_rig_gives(const core_rig *r, uint64_t id) {
    rig fake = {.outcomes = r->outcomes, .device = {.context = r->device.context}};
    return gives(&fake, r->copies[id]);
}

static inline resident *core_rig_model(core_rig *r, uint32_t idx) {
    return &r->core.models.slots[idx];
}

static inline void core_rig_attach(core_rig *r, uint32_t idx, const model_policy *policy) {
    residency_attach(&r->core.models, idx, NULL, DEVICE_OWN, policy, core_rig_now(r));
}

static inline void core_rig_deinit(core_rig *r) {
    core_end(&r->core);
    EXPECT_EQ(r->device.n_faults, 0);
    EXPECT_EQ(r->device.n_attached, 0);
    core_deinit(&r->core);
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        free(r->outcomes[i].tokens);
        gen_request_destroy(r->copies[i]);
    }
    free(r->outcomes);
}

#endif
