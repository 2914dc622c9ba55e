/* test_fleet.c - several engines as one: where models go, who serves a request, what becomes of a
 * lost device.  The devices compute a pure function of the tokens. */
#include "test.h"

#include "fake_device.h"
#include "fleet_private.h"
#include "inferd/clock.h"

#include "engine_private.h"

enum {
    DEVICES = 3,
    PAGE_BYTES = 2 << 20, // of the fake
    PAGES = 64,           // of each device
    WEIGHT_PAGES = 3,
    SLOTS = 8
};
#define GIB     (UINT64_C(1) << 30)
#define WAIT_US 10000000

typedef struct rig {
    fake_device devices[DEVICES];
    atomic_bool break_step[DEVICES]; // the next step says that the device is gone
    atomic_bool hold_stage[DEVICES]; // nothing is brought up
    atomic_bool break_stage;         // the next load says that the device is gone
    atomic_uint stage_ms;            // of each piece
    device_ops ops;
    engine *engines[DEVICES];
    fleet *f;
    uint64_t now_us;
    uint32_t n_ended, n_fine;
    gen_event last;
    uint32_t sent_to[1024], tenants[1024]; // by id
} rig;

static rig *the_rig;

/* Finishes as the fake does; a device that is to break is gone for ever. */
static inferd_status finish(void *self, step *st, uint64_t *device_us, inferd_err *err) {
    fake_device *d = self;
    inferd_status s = fake_finish(self, st, device_us, err);
    if (atomic_load(&the_rig->break_step[d - the_rig->devices]))
        return inferd_fail(err, INFERD_ELOST, "fell off the bus");
    return s;
}

static inferd_status stage_step(void *self, uint32_t idx, uint64_t budget_us, device_progress *out,
                                inferd_err *err) {
    fake_device *d = self;
    while (atomic_load(&the_rig->hold_stage[d - the_rig->devices]))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 1000000L * atomic_load(&the_rig->stage_ms)}, NULL);
    if (atomic_load(&the_rig->break_stage))
        return inferd_fail(err, INFERD_ELOST, "fell off the bus");
    return fake_stage_step(self, idx, budget_us, out, err);
}

static uint32_t steps_ahead = 1, weight_pages = WEIGHT_PAGES, step_us = 100; // of the next rig
static uint32_t pages_of_x1 = PAGES;

static void begin(rig *r, uint32_t n_devices) {
    *r = (rig){.now_us = 1000000};
    the_rig = r;
    fleet_device about[DEVICES];
    static const char *const names[DEVICES] = {"x0", "x1", "x2"};
    fleet_options o = {.devices = about, .n_devices = n_devices, .n_slots = SLOTS};
    inferd_err err = {0};
    for (uint32_t i = 0; i < n_devices; i++) {
        r->devices[i] = (fake_device){.n_pages = i == 1 ? pages_of_x1 : PAGES,
                                      .depth = steps_ahead,
                                      .context = 512,
                                      .weight_pages = weight_pages,
                                      .kv = fake_layout(4, 2, 6),
                                      .a_us = step_us,
                                      .b_us = 10};
        device dev = fake_as_device(&r->devices[i]);
        if (i == 0) { // all have the same, and the first engine uses them from now on
            r->ops = *dev.ops;
            r->ops.finish = finish;
            r->ops.stage_step = stage_step;
        }
        dev.ops = &r->ops;
        about[i] = (fleet_device){.name = names[i], .memory_bytes = (uint64_t)PAGES * PAGE_BYTES};
        EXPECT_EQ(engine_start_device(&o.limits, dev, SLOTS, NULL, NULL, &r->engines[i], &err),
                  INFERD_OK);
    }
    EXPECT_EQ(fleet_of_engines(&o, r->engines, &r->f, &err), INFERD_OK);
}

static void end(rig *r, uint32_t n_devices) {
    fleet_stop(r->f);
    for (uint32_t i = 0; i < n_devices; i++) {
        EXPECT_EQ(r->devices[i].n_faults, 0);
        EXPECT(r->devices[i].memory == NULL);
    }
}

static fleet_model_about about_of(uint32_t n_replicas) {
    return (fleet_model_about){.weight_bytes = (uint64_t)weight_pages * PAGE_BYTES,
                               .same_as = UINT32_MAX,
                               .policy = {.prio = GEN_NORMAL,
                                          .weight = 1,
                                          .keep_alive_us = POLICY_NEVER,
                                          .replicas_min = n_replicas,
                                          .replicas_max = n_replicas}};
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static uint32_t count_bits(uint64_t bits) {
    return (uint32_t)__builtin_popcountll(bits);
}

/* Until the model is so on this device; false after ten seconds. */
static bool comes_to(rig *r, uint32_t slot, uint32_t d, model_state state) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    while (engine_model_state(r->engines[d], slot) != state) {
        if (clock_now_us() > until_us) return false;
        nap();
    }
    return true;
}

static bool all_hot(rig *r, uint32_t slot) {
    uint64_t bits = fleet_model_devices(r->f, slot);
    for (uint32_t d = 0; d < fleet_n_devices(r->f); d++)
        if ((bits >> d & 1) != 0 && !comes_to(r, slot, d, MODEL_HOT)) return false;
    return bits != 0;
}

/* Its last events come before it says so. */
static bool is_lost(rig *r, uint32_t d) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    while (!engine_is_lost(r->engines[d]) && clock_now_us() < until_us) nap();
    return engine_is_lost(r->engines[d]);
}

static gen_request *request(uint64_t id, uint32_t slot, uint32_t n_prompt, uint32_t seed) {
    gen_request *q = calloc(1, sizeof *q);
    q->id = id;
    q->model_idx = slot;
    q->prio = GEN_NORMAL;
    q->prompt = malloc(n_prompt * sizeof *q->prompt);
    q->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++) q->prompt[i] = (tok_id)((i * 7 + seed) % FAKE_VOCAB);
    q->max_tokens = 4;
    q->ignore_eos = true;
    q->n_logprobs = q->n_prompt_logprobs = -1;
    q->arrival_us = clock_now_us();
    return q;
}

static uint64_t fits(const fleet *f, gen_request *q) {
    uint64_t devices;
    inferd_err err = {0};
    fleet_admit(f, q, &devices, &err);
    return devices;
}

/* FLEET_NOWHERE: nobody took it. */
static uint32_t send(rig *r, uint64_t id, uint32_t slot, uint32_t n_prompt, uint32_t seed) {
    gen_request *q = request(id, slot, n_prompt, seed);
    uint32_t d = fleet_choose(r->f, q, fits(r->f, q));
    r->tenants[id] = q->tenant_idx;
    if (d == FLEET_NOWHERE || !fleet_submit(r->f, d, q)) {
        gen_request_destroy(q);
        return FLEET_NOWHERE;
    }
    r->sent_to[id] = d;
    return d;
}

/* Until n requests ended; false after ten seconds. */
static bool read_until(rig *r, uint32_t slot, uint32_t n) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    gen_event e;
    while (r->n_ended < n && clock_now_us() < until_us) {
        while (fleet_next_event(r->f, &e)) {
            if (e.kind != GEN_EV_DONE) continue;
            fleet_note_done(r->f, r->sent_to[e.id], slot, r->tenants[e.id]);
            r->last = e;
            r->n_ended++;
            r->n_fine += e.done.finish == GEN_LENGTH;
        }
        nap();
    }
    return r->n_ended >= n;
}

static void tick(rig *r, uint64_t us) {
    r->now_us += us;
    fleet_tick(r->f, r->now_us);
}

/* When the slot is empty everywhere; after ten seconds: as it is. */
static uint32_t departures_of(rig *r, uint32_t slot) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    while (fleet_model_departures(r->f, slot) == 0 && clock_now_us() < until_us) {
        tick(r, 1000);
        nap();
    }
    return fleet_model_departures(r->f, slot);
}

/* Where a request of this length would go; target 0: none. */
static uint32_t choice_for(rig *r, uint32_t slot, uint32_t n_prompt, uint32_t seed,
                           uint32_t target_ms) {
    gen_request *q = request(900, slot, n_prompt, seed);
    q->ttft_target_ms = target_ms;
    uint32_t d = fleet_choose(r->f, q, fits(r->f, q));
    gen_request_destroy(q);
    return d;
}

/* ---- parts ---- */

static void eighteen_gib_and_240_percent_on_three_are_six_and_eighty_each(void) {
    model_policy whole = {
        .min_bytes = 18 * GIB, .max_bytes = 18 * GIB, .share = {SHARE_FIXED, 240, 3}, .weight = 1};
    EXPECT_EQ(fleet_n_parts(&whole), 3);
    for (uint32_t k = 0; k < 3; k++) {
        model_policy part = fleet_part_of(&whole, k);
        EXPECT_EQ(part.min_bytes, 6 * GIB);
        EXPECT_EQ(part.max_bytes, 6 * GIB);
        EXPECT_EQ(part.share.percent, 80);
        EXPECT_EQ(part.share.n_devices, 1);
        EXPECT_EQ(part.share.policy, SHARE_FIXED);
    }
    model_policy more = fleet_part_of(&whole, 3); // promised nothing
    EXPECT_EQ(more.min_bytes, 0);
    EXPECT_EQ(more.max_bytes, 6 * GIB);
    EXPECT_EQ(more.share.policy, SHARE_BESTEFFORT);
    whole.weight = 0; // it runs inside its share only: a part without one would never run
    EXPECT_EQ(fleet_part_of(&whole, 2).weight, 0);
    EXPECT_EQ(fleet_part_of(&whole, 3).weight, 1);
    whole.share.policy = SHARE_BESTEFFORT;
    EXPECT_EQ(fleet_part_of(&whole, 3).weight, 0); // paused
}

static void parts_that_do_not_divide_add_up(void) {
    model_policy whole = {.min_bytes = 10 * (uint64_t)PAGE_BYTES + 5,
                          .max_bytes = 0,
                          .share = {SHARE_BURST, 100, 1},
                          .replicas_min = 3};
    uint64_t n_bytes = 0, percent = 0;
    for (uint32_t k = 0; k < 3; k++) {
        model_policy part = fleet_part_of(&whole, k);
        n_bytes += part.min_bytes;
        percent += part.share.percent;
        EXPECT_EQ(part.max_bytes, 0); // none is none
    }
    EXPECT_EQ(n_bytes, whole.min_bytes);
    EXPECT_EQ(percent, 100);
    EXPECT_EQ(fleet_part_of(&whole, 0).min_bytes, 4 * (uint64_t)PAGE_BYTES + 5);
    EXPECT_EQ(fleet_part_of(&whole, 2).share.percent, 33);
}

static void a_share_over_three_devices_becomes_three_replicas(void) {
    rig r;
    begin(&r, 3);
    fleet_model_about m = about_of(1);
    m.policy.min_bytes = m.policy.max_bytes = 36 * (uint64_t)PAGE_BYTES;
    m.policy.share = (share_spec){SHARE_FIXED, 240, 3};
    m.policy.replicas_max = 3;
    EXPECT(fleet_model_add(r.f, 2, &m));
    EXPECT_EQ(fleet_model_devices(r.f, 2), 7);
    EXPECT(all_hot(&r, 2));
    bool parts[3] = {0};
    for (uint32_t d = 0; d < 3; d++) {
        engine_model_info i;
        fleet_replica at;
        engine_model_get(r.engines[d], 2, &i);
        fleet_get_replica(r.f, 2, d, &at);
        EXPECT_EQ(i.pages_min, 12);
        EXPECT_EQ(i.pages_max, 12);
        EXPECT_EQ(at.policy.share.percent, 80);
        EXPECT(at.part < 3 && !parts[at.part]);
        if (at.part < 3) parts[at.part] = true;
    }
    engine_model_info all;
    fleet_model_get(r.f, 2, &all);
    EXPECT_EQ(all.pages_min, 36);
    EXPECT_EQ(all.pages_weight, 3 * WEIGHT_PAGES);
    EXPECT_EQ(all.n_loads, 3);
    end(&r, 3);
}

/* ---- where models go ---- */

static void models_spread(void) {
    rig r;
    uint64_t bits = 0;
    begin(&r, 3);
    for (uint32_t slot = 0; slot < 3; slot++) {
        fleet_model_about m = about_of(1);
        EXPECT(fleet_model_add(r.f, slot, &m));
        EXPECT_EQ(count_bits(fleet_model_devices(r.f, slot)), 1);
        bits |= fleet_model_devices(r.f, slot);
    }
    EXPECT_EQ(count_bits(bits), 3);
    end(&r, 3);
}

static void a_full_device_is_not_chosen(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    m.policy.min_bytes = 60 * (uint64_t)PAGE_BYTES;
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(fleet_model_add(r.f, 1, &m));
    EXPECT_EQ(fleet_model_devices(r.f, 0) | fleet_model_devices(r.f, 1), 3);
    EXPECT_STR(fleet_placement_problem(r.f, 1), "");
    EXPECT(fleet_model_add(r.f, 2, &m)); // nowhere: said, and tried where most is
    EXPECT(strstr(fleet_placement_problem(r.f, 2), "x0: ") != NULL);
    EXPECT(strstr(fleet_placement_problem(r.f, 2), "MiB") != NULL);
    end(&r, 2);
}

static void shares_of_more_than_a_device_do_not_meet_on_one(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    m.policy.share = (share_spec){SHARE_BURST, 60, 1};
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(fleet_model_add(r.f, 1, &m));
    EXPECT_EQ(fleet_model_devices(r.f, 0) | fleet_model_devices(r.f, 1), 3);
    end(&r, 2);
}

static void the_same_content_goes_where_its_weights_are(void) {
    rig r;
    begin(&r, 3);
    fleet_model_about m = about_of(1);
    EXPECT(fleet_model_add(r.f, 0, &m));
    m.same_as = 0;
    EXPECT(fleet_model_add(r.f, 1, &m));
    EXPECT_EQ(fleet_model_devices(r.f, 0), fleet_model_devices(r.f, 1));
    EXPECT(all_hot(&r, 1));
    engine_model_info i;
    fleet_model_get(r.f, 1, &i);
    EXPECT_EQ(i.weights_of, 0);
    end(&r, 3);
}

static void a_slot_is_empty_when_it_left_everywhere(void) {
    rig r;
    begin(&r, 3);
    fleet_model_about m = about_of(3);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    fleet_model_remove(r.f, 0);
    EXPECT_EQ(fleet_model_devices(r.f, 0), 0);
    EXPECT_EQ(departures_of(&r, 0), 1);
    EXPECT(fleet_model_add(r.f, 0, &m)); // and can be used again
    EXPECT(all_hot(&r, 0));
    end(&r, 3);
}

/* ---- requests ---- */

static void requests_go_where_least_waits_and_prefixes_stay_together(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    uint32_t n_to[2] = {0};
    for (uint64_t id = 1; id <= 8; id++) n_to[send(&r, id, 0, 8, (uint32_t)id * 31)]++;
    EXPECT_EQ(n_to[0], 4); // short prompts have no prefix worth a queue
    EXPECT(read_until(&r, 0, 8));
    EXPECT_EQ(r.n_fine, 8);
    /* With a target that both meet, the fuller one would be taken, if it were not for the prefix.
     */
    uint32_t first = send(&r, 9, 0, 200, 5);
    EXPECT(read_until(&r, 0, 9));
    EXPECT(fleet_submit(r.f, 1 - first, request(10, 0, 8, 3)));
    r.sent_to[10] = 1 - first;
    EXPECT_EQ(choice_for(&r, 0, 210, 5, 600000), first);
    EXPECT_EQ(choice_for(&r, 0, 210, 6, 600000), 1 - first); // begins otherwise
    EXPECT(read_until(&r, 0, 10));
    EXPECT_EQ(r.n_fine, 10);
    end(&r, 2);
}

/* The story: a long prompt was sent to the smaller device when that had less to do, which refused
 * it; so its answer depended on the load. */
static void a_prompt_goes_where_it_fits(void) {
    rig r;
    pages_of_x1 = 8; // 5 beside the weights: 60 tokens
    begin(&r, 2);
    pages_of_x1 = PAGES;
    fleet_model_about m = about_of(2);
    inferd_err err = {0};
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    EXPECT_EQ(engine_admit(r.engines[1], 0, 200, 4, NULL, &err), INFERD_ETOOLONG);
    gen_request *long_one = request(49, 0, 200, 4);
    EXPECT_EQ(fits(r.f, long_one), 1); // on the first device alone
    gen_request_destroy(long_one);
    for (uint64_t id = 1; id <= 4; id++) { // so that x0 is the busy one
        EXPECT(fleet_submit(r.f, 0, request(id, 0, 8, (uint32_t)id)));
        r.sent_to[id] = 0;
    }
    EXPECT_EQ(choice_for(&r, 0, 8, 50, 0), 1);
    EXPECT_EQ(choice_for(&r, 0, 200, 51, 0), 0);
    EXPECT_EQ(send(&r, 5, 0, 200, 52), 0);
    EXPECT(read_until(&r, 0, 5));
    EXPECT_EQ(r.n_fine, 5);
    end(&r, 2);
}

static void one_device_is_a_fleet_of_one(void) {
    rig r;
    begin(&r, 1);
    fleet_model_about m = about_of(1);
    EXPECT(fleet_model_add(r.f, 3, &m));
    EXPECT(all_hot(&r, 3));
    for (uint64_t id = 1; id <= 4; id++) EXPECT_EQ(send(&r, id, 3, 40, 1), 0);
    EXPECT(read_until(&r, 3, 4));
    EXPECT_EQ(r.n_fine, 4);
    EXPECT_EQ(send(&r, 5, 4, 40, 1), FLEET_NOWHERE); // nobody has slot 4
    tick(&r, 2000000);
    EXPECT_EQ(fleet_model_devices(r.f, 3), 1);
    end(&r, 1);
}

/* ---- as many as needed ---- */

static void one_more_is_loaded_before_it_serves(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    m.policy.replicas_max = 2;
    m.policy.slo_ttft_ms = 100;
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    uint64_t before = fleet_model_devices(r.f, 0);
    uint32_t fresh = before == 1 ? 1 : 0;
    atomic_store(&r.hold_stage[fresh], true);
    for (int i = 0; i < 4; i++) { // over the target for some periods
        fleet_note_ttft(r.f, 0, 300000, r.now_us);
        tick(&r, 1000001);
    }
    EXPECT_EQ(fleet_model_devices(r.f, 0), 3);
    fleet_replica at;
    fleet_get_replica(r.f, 0, fresh, &at);
    EXPECT_EQ(at.state, FLEET_JOINING);
    EXPECT_EQ(at.part, 1);
    fleet_scale scale;
    EXPECT(fleet_next_scale(r.f, &scale));
    EXPECT(scale.more && scale.slot == 0 && scale.device_idx == fresh && scale.n_replicas == 2);
    EXPECT(!fleet_next_scale(r.f, &scale));
    for (uint64_t id = 1; id <= 6; id++) EXPECT_EQ(send(&r, id, 0, 8, (uint32_t)id), 1 - fresh);
    atomic_store(&r.hold_stage[fresh], false);
    EXPECT(comes_to(&r, 0, fresh, MODEL_HOT));
    tick(&r, 1000);
    fleet_get_replica(r.f, 0, fresh, &at);
    EXPECT_EQ(at.state, FLEET_SERVING);
    EXPECT(read_until(&r, 0, 6));
    /* Calm for long enough: one goes again, and it is the one that promises nothing. */
    for (int i = 0; i < 90; i++) tick(&r, 1000001);
    EXPECT_EQ(fleet_model_devices(r.f, 0), before);
    EXPECT_EQ(fleet_desired_replicas(r.f, 0), 1);
    EXPECT(fleet_next_scale(r.f, &scale));
    EXPECT(!scale.more && scale.device_idx == fresh && scale.n_replicas == 1);
    end(&r, 2);
}

static fleet_replica_state replica_at(rig *r, uint32_t slot, uint32_t d) {
    fleet_replica at;
    fleet_get_replica(r->f, slot, d, &at);
    return at.state;
}

/* With ticks that take no time. */
static bool is_replica(rig *r, uint32_t slot, uint32_t d, fleet_replica_state state) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    while (replica_at(r, slot, d) != state) {
        if (clock_now_us() > until_us) return false;
        tick(r, 1);
        nap();
    }
    return true;
}

/* One on x0, and one more that the next tick brings to x1. */
static void begin_joining(rig *r) {
    begin(r, 2);
    fleet_model_about m = about_of(1);
    m.policy.replicas_max = 2;
    EXPECT(fleet_model_add(r->f, 0, &m));
    EXPECT_EQ(fleet_model_devices(r->f, 0), 1);
    EXPECT(all_hot(r, 0));
    m.policy.replicas_min = 2;
    EXPECT(fleet_model_set_policy(r->f, 0, &m.policy));
    atomic_store(&r->hold_stage[1], true);
    for (int i = 0; i < 4 && replica_at(r, 0, 1) == FLEET_ABSENT; i++) tick(r, 1000001);
    EXPECT_EQ(replica_at(r, 0, 1), FLEET_JOINING);
}

/* It was up, and had to make room again before anybody looked. */
static void one_that_was_up_between_two_looks_serves(void) {
    rig r;
    begin_joining(&r);
    atomic_store(&r.hold_stage[1], false);
    EXPECT(comes_to(&r, 0, 1, MODEL_HOT));
    engine_model_do(r.engines[1], 0, ENGINE_UNLOAD);
    EXPECT(comes_to(&r, 0, 1, MODEL_COLD));
    tick(&r, 1);
    EXPECT_EQ(replica_at(&r, 0, 1), FLEET_SERVING);
    end(&r, 2);
}

static void one_that_does_not_come_in_time_goes_and_comes_again(void) {
    rig r;
    begin_joining(&r);
    tick(&r, 1);
    tick(&r, 119999999);
    EXPECT_EQ(replica_at(&r, 0, 1), FLEET_JOINING);
    tick(&r, 1);
    EXPECT_EQ(replica_at(&r, 0, 1), FLEET_LEAVING);
    EXPECT_EQ(fleet_model_devices(r.f, 0), 1);
    atomic_store(&r.hold_stage[1], false);
    EXPECT(is_replica(&r, 0, 1, FLEET_ABSENT));
    for (int i = 0; i < 4 && replica_at(&r, 0, 1) == FLEET_ABSENT; i++) tick(&r, 1000001);
    EXPECT(is_replica(&r, 0, 1, FLEET_SERVING));
    end(&r, 2);
}

/* Counters are told as such: a replica that leaves takes nothing of them along. */
static void what_was_counted_stays_when_a_replica_leaves(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    engine_model_info before, now;
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    for (uint32_t d = 0; d < 2; d++) {
        EXPECT(fleet_submit(r.f, d, request(d + 1, 0, 8, d)));
        r.sent_to[d + 1] = d;
    }
    EXPECT(read_until(&r, 0, 2));
    engine_model_do(r.engines[1], 0, ENGINE_UNLOAD);
    EXPECT(comes_to(&r, 0, 1, MODEL_COLD));
    fleet_model_tally(r.f, 0, &before);
    EXPECT_EQ(before.n_loads, 2);
    EXPECT_EQ(before.n_evictions[ENGINE_EVICT_ASKED], 1);
    EXPECT(before.device_us > 0 && before.pages_min == 0);
    m.policy.replicas_min = m.policy.replicas_max = 1;
    EXPECT(fleet_model_set_policy(r.f, 0, &m.policy));
    fleet_remove_replica(r.f, 0, 1);
    uint64_t until_us = clock_now_us() + WAIT_US;
    do { // at each moment on its way, and after it
        fleet_model_tally(r.f, 0, &now);
        EXPECT_EQ(now.n_loads, 2);
        EXPECT_EQ(now.n_stages, before.n_stages);
        EXPECT_EQ(now.n_evictions[ENGINE_EVICT_ASKED], 1);
        EXPECT(now.device_us >= before.device_us && now.hot_us >= before.hot_us);
        EXPECT(now.sum.stage_us >= before.sum.stage_us);
        if (replica_at(&r, 0, 1) == FLEET_ABSENT) break;
        tick(&r, 1);
        nap();
    } while (clock_now_us() < until_us);
    EXPECT_EQ(replica_at(&r, 0, 1), FLEET_ABSENT);
    EXPECT_EQ(now.pages_weight, WEIGHT_PAGES); // what is held is that of who is there
    fleet_model_get(r.f, 0, &now);
    EXPECT_EQ(now.n_loads, 1);
    end(&r, 2);
}

/* "A drain until load", also where another command comes between. */
static void a_drain_lasts_until_load(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    fleet_model_do(r.f, 0, ENGINE_DRAIN);
    static const engine_command others[] = {ENGINE_PREFETCH, ENGINE_UNLOAD, ENGINE_DROP};
    for (size_t i = 0; i < INFERD_COUNT(others); i++) {
        fleet_model_do(r.f, 0, others[i]);
        EXPECT(r.f->models[0].held);
    }
    uint32_t to = 1 - (uint32_t)__builtin_ctzll(fleet_model_devices(r.f, 0));
    EXPECT(fleet_add_replica(r.f, 0, to, 1, true)); // one that comes is held, too
    EXPECT_EQ(replica_at(&r, 0, to), FLEET_SERVING);
    engine_model_info i;
    uint64_t until_us = clock_now_us() + WAIT_US;
    do {
        nap();
        engine_model_get(r.engines[to], 0, &i);
    } while (i.state == MODEL_NONE && clock_now_us() < until_us);
    EXPECT(i.held);
    fleet_model_do(r.f, 0, ENGINE_LOAD);
    EXPECT(!r.f->models[0].held);
    EXPECT(all_hot(&r, 0));
    end(&r, 2);
}

/* ---- a lost device ---- */

static void what_a_lost_device_had_comes_up_elsewhere(void) {
    rig r;
    begin(&r, 3);
    for (uint32_t slot = 0; slot < 3; slot++) {
        fleet_model_about m = about_of(1);
        EXPECT(fleet_model_add(r.f, slot, &m));
        EXPECT(all_hot(&r, slot));
    }
    uint64_t was = fleet_model_devices(r.f, 1);
    uint32_t d = (uint32_t)__builtin_ctzll(was);
    atomic_store(&r.break_step[d], true);
    EXPECT_EQ(send(&r, 1, 1, 8, 1), d);
    EXPECT(read_until(&r, 1, 1));
    EXPECT_EQ(r.last.done.finish, GEN_ERROR);
    EXPECT_EQ(r.last.done.status, INFERD_ELOST);
    uint64_t until_us = clock_now_us() + WAIT_US;
    while (!engine_is_lost(r.engines[d]) && clock_now_us() < until_us) nap();
    EXPECT(!fleet_is_lost(r.f));
    tick(&r, 1000);
    EXPECT(fleet_model_devices(r.f, 1) != 0 && (fleet_model_devices(r.f, 1) & was) == 0);
    EXPECT(all_hot(&r, 1));
    for (uint32_t slot = 0; slot < 3; slot++) { // all are served
        uint32_t to = send(&r, 2 + slot, slot, 8, slot);
        EXPECT(to != FLEET_NOWHERE && to != d);
        EXPECT(read_until(&r, slot, 2 + slot));
    }
    EXPECT_EQ(r.n_fine, 3);
    EXPECT(!fleet_model_is_lost(r.f, 1));
    end(&r, 3);
}

static void one_of_two_replicas_is_lost_and_the_other_serves(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    atomic_store(&r.break_step[0], true);
    uint64_t id = 1;
    while (!engine_is_lost(r.engines[0]) && id < 64) {
        send(&r, id, 0, 8, (uint32_t)id);
        EXPECT(read_until(&r, 0, (uint32_t)id));
        id++;
    }
    EXPECT(engine_is_lost(r.engines[0]));
    tick(&r, 1000);
    EXPECT_EQ(fleet_model_devices(r.f, 0), 2);
    uint32_t fine = r.n_fine;
    for (int i = 0; i < 4; i++, id++) {
        EXPECT_EQ(send(&r, id, 0, 8, (uint32_t)id), 1);
        EXPECT(read_until(&r, 0, (uint32_t)id));
    }
    EXPECT_EQ(r.n_fine, fine + 4);
    EXPECT(!fleet_is_lost(r.f));
    end(&r, 2);
}

/* The story: its slot stayed taken until the process ended, because a dead engine let nothing go;
 * and what was in a second step at that time never ended. */
static void a_lost_device_lets_its_models_go(void) {
    rig r;
    steps_ahead = 2;
    begin(&r, 2);
    steps_ahead = 1;
    fleet_model_about m = about_of(2), twin = about_of(2);
    twin.same_as = 0;
    EXPECT(fleet_model_add(r.f, 0, &m) && fleet_model_add(r.f, 1, &twin));
    EXPECT(all_hot(&r, 0) && all_hot(&r, 1));
    uint32_t n = 0;
    atomic_store(&r.break_step[0], true);
    for (uint64_t id = 1; id <= 8; id++) n += send(&r, id, 0, 60, (uint32_t)id) != FLEET_NOWHERE;
    EXPECT(read_until(&r, 0, n));
    EXPECT(is_lost(&r, 0));
    EXPECT_EQ(engine_stuck_us(r.engines[0]), 0);
    tick(&r, 1000);
    EXPECT_EQ(fleet_model_devices(r.f, 0), 2); // the other one serves
    fleet_model_remove(r.f, 0);
    fleet_model_remove(r.f, 1);
    EXPECT_EQ(departures_of(&r, 0), 1);
    EXPECT_EQ(departures_of(&r, 1), 1);
    EXPECT_EQ(engine_model_state(r.engines[0], 0), MODEL_NONE);
    EXPECT_EQ(r.devices[0].n_attached, 0); // nothing there names the models any more
    m.policy.replicas_min = m.policy.replicas_max = 1;
    EXPECT(fleet_model_add(r.f, 0, &m)); // and the slot is as good as new
    EXPECT_EQ(fleet_model_devices(r.f, 0), 2);
    EXPECT(all_hot(&r, 0));
    EXPECT_EQ(send(&r, 100, 0, 8, 1), 1);
    EXPECT(read_until(&r, 0, n + 1));
    EXPECT_EQ(r.last.done.finish, GEN_LENGTH);
    end(&r, 2);
}

/* NVML said that the GPU is lost, and an idle daemon stayed ready: no step was there to fail. */
static void a_device_that_is_said_to_be_lost_is_lost(void) {
    for (uint32_t n_running = 0; n_running < 3; n_running += 2) {
        rig r;
        steps_ahead = 2;
        begin(&r, 2);
        steps_ahead = 1;
        fleet_model_about m = about_of(2);
        inferd_err why, told;
        EXPECT(fleet_model_add(r.f, 0, &m));
        EXPECT(all_hot(&r, 0));
        for (uint32_t id = 1; id <= n_running; id++) {
            EXPECT(fleet_submit(r.f, 1, request(id, 0, 8, id)));
            r.sent_to[id] = 1;
        }
        inferd_fail(&why, INFERD_ELOST, "NVML: the GPU is lost");
        EXPECT(fleet_lose(r.f, 1, &why));
        EXPECT(is_lost(&r, 1));
        EXPECT(read_until(&r, 0, n_running)); // each ends, before or by it
        fleet_lost_why(r.f, 1, &told);
        EXPECT_STR(told.text, "NVML: the GPU is lost");
        fleet_lost_why(r.f, 0, &told);
        EXPECT_STR(told.text, "");
        EXPECT(!fleet_is_lost(r.f));
        tick(&r, 1000);
        EXPECT_EQ(fleet_model_devices(r.f, 0), 1);
        EXPECT(fleet_lose(r.f, 0, &why) && is_lost(&r, 0));
        EXPECT(fleet_is_lost(r.f));
        end(&r, 2);
    }
}

/* A load that found the device gone failed its model for ever, and the device counted as good. */
static void a_device_that_is_found_lost_by_a_load_is_lost(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    atomic_store(&r.break_stage, true);
    EXPECT(fleet_model_add(r.f, 0, &m));
    uint64_t first = fleet_model_devices(r.f, 0);
    EXPECT(is_lost(&r, (uint32_t)__builtin_ctzll(first)));
    end(&r, 2);
}

static void no_request_goes_to_a_lost_device(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    for (uint32_t d = 0; d < 2; d++) {
        EXPECT(!fleet_is_lost(r.f) && !fleet_model_is_lost(r.f, 0));
        atomic_store(&r.break_step[d], true);
        gen_request *q = request(d + 1, 0, 8, d);
        EXPECT(fleet_submit(r.f, d, q));
        r.sent_to[d + 1] = d;
        EXPECT(read_until(&r, 0, d + 1));
        EXPECT(is_lost(&r, d));
        EXPECT(fleet_is_settled(r.f));
        if (d > 0) break;
        for (uint32_t i = 0; i < 4; i++) { // before anybody looked
            q = request(9, 0, 8, i);
            EXPECT_EQ(fleet_choose(r.f, q, fits(r.f, q)), 1);
            gen_request_destroy(q);
        }
    }
    EXPECT(fleet_model_is_lost(r.f, 0));
    EXPECT(fleet_is_lost(r.f));
    end(&r, 2);
}

static void the_furthest_replica_says_the_state(void) {
    for (uint32_t late = 0; late < 2; late++) {
        rig r;
        begin(&r, 2);
        atomic_store(&r.hold_stage[late], true);
        fleet_model_about m = about_of(2);
        m.policy.pin = PIN_HOT;
        EXPECT(fleet_model_add(r.f, 0, &m));
        EXPECT(comes_to(&r, 0, 1 - late, MODEL_HOT));
        EXPECT(engine_model_state(r.engines[late], 0) != MODEL_HOT);
        engine_model_info i;
        fleet_model_get(r.f, 0, &i);
        EXPECT_EQ(i.state, MODEL_HOT);
        EXPECT_EQ(i.n_loads, 1);
        EXPECT_EQ(fleet_model_state(r.f, 0), MODEL_HOT);
        atomic_store(&r.hold_stage[late], false);
        EXPECT(all_hot(&r, 0));
        end(&r, 2);
    }
}

static void one_that_failed_does_not_hide_one_that_serves(void) {
    for (uint32_t bad = 0; bad < 2; bad++) {
        rig r;
        begin(&r, 2);
        r.devices[bad].fail_load = true;
        fleet_model_about m = about_of(2);
        m.policy.pin = PIN_HOT;
        EXPECT(fleet_model_add(r.f, 0, &m));
        EXPECT(comes_to(&r, 0, 1 - bad, MODEL_HOT));
        EXPECT(comes_to(&r, 0, bad, MODEL_FAILED));
        inferd_err err;
        EXPECT_EQ(fleet_model_state(r.f, 0), MODEL_HOT);
        fleet_model_error(r.f, 0, &err);
        EXPECT_EQ(err.status, INFERD_OK);
        end(&r, 2);
    }
}

static void events_of_devices_alternate(void) {
    enum { TOKENS = 40 };
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    for (uint32_t d = 0; d < 2; d++) {
        gen_request *q = request(d + 1, 0, 8, d);
        q->max_tokens = TOKENS;
        EXPECT(fleet_submit(r.f, d, q));
    }
    uint64_t until_us = clock_now_us() + WAIT_US;
    uint64_t n_finished = 0;
    while (n_finished < 2 && clock_now_us() < until_us) { // nobody has read one event
        nap();
        n_finished = 0;
        for (uint32_t d = 0; d < 2; d++) {
            engine_stats s;
            engine_get_stats(r.engines[d], &s);
            n_finished += s.n_finished[GEN_LENGTH];
        }
    }
    EXPECT_EQ(n_finished, 2);
    uint32_t n[2] = {0};
    gen_event e;
    for (uint32_t i = 0; i < TOKENS && fleet_next_event(r.f, &e); i++) n[e.id - 1]++;
    EXPECT_EQ(n[0], TOKENS / 2);
    EXPECT_EQ(n[1], TOKENS / 2);
    while (fleet_next_event(r.f, &e)) {
    }
    end(&r, 2);
}

/* ---- moves ---- */

static void weights_that_may_leave_make_room_and_pinned_ones_do_not(void) {
    for (int pinned = 0; pinned <= 1; pinned++) {
        rig r;
        weight_pages = 40;
        begin(&r, 2);
        fleet_model_about m = about_of(1);
        m.policy.pin = pinned == 1 ? PIN_HOT : PIN_NONE;
        EXPECT(fleet_model_add(r.f, 0, &m) && fleet_model_add(r.f, 1, &m));
        EXPECT_EQ(fleet_model_devices(r.f, 0) | fleet_model_devices(r.f, 1), 3);
        EXPECT(fleet_model_add(r.f, 2, &m));
        EXPECT_EQ(fleet_placement_problem(r.f, 2)[0] != 0, pinned == 1);
        weight_pages = WEIGHT_PAGES;
        end(&r, 2);
    }
}

/* A device that is not open yet is no place for anything. */
static bool is_open(rig *r, uint32_t d) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    engine_stats s = {0};
    while (s.pages_device == 0 && clock_now_us() < until_us) {
        nap();
        engine_get_stats(r->engines[d], &s);
    }
    return s.pages_device != 0;
}

/* Two models on x0, nothing on x1; each request of theirs is four steps of a second there. */
static void begin_unbalanced(rig *r) {
    step_us = 1000000;
    begin(r, 2);
    step_us = 100;
    fleet_model_about m = about_of(1), full = about_of(1); // x1 is full while they are placed
    full.policy.min_bytes = 60 * (uint64_t)PAGE_BYTES;
    EXPECT(fleet_model_add(r->f, 2, &full) && fleet_model_add(r->f, 3, &full));
    fleet_model_remove(r->f, 2);
    EXPECT(is_replica(r, 2, 0, FLEET_ABSENT));
    EXPECT(fleet_model_add(r->f, 0, &m) && fleet_model_add(r->f, 1, &m));
    fleet_model_remove(r->f, 3);
    EXPECT(is_replica(r, 3, 1, FLEET_ABSENT));
    EXPECT_EQ(fleet_model_devices(r->f, 0) | fleet_model_devices(r->f, 1), 1);
    EXPECT(all_hot(r, 0) && all_hot(r, 1) && is_open(r, 1));
    tick(r, 10000000); // from now on it measures
}

static uint64_t device_us_of(rig *r, uint32_t slot) {
    engine_model_info i;
    engine_model_get(r->engines[0], slot, &i);
    return i.device_us;
}

/* An engine tells what it computed somewhat later than that it ended. */
static void work(rig *r, uint32_t slot, uint32_t n) {
    uint64_t until_us = clock_now_us() + WAIT_US;
    uint64_t wanted_us = device_us_of(r, slot) + n * UINT64_C(4000000);
    for (uint32_t i = 0; i < n; i++) {
        EXPECT_EQ(send(r, r->n_ended + 1, slot, 8, i), 0);
        EXPECT(read_until(r, slot, r->n_ended + 1));
    }
    while (device_us_of(r, slot) < wanted_us && clock_now_us() < until_us) nap();
    EXPECT(device_us_of(r, slot) >= wanted_us);
}

static fleet_moves moves_of(const rig *r) {
    fleet_moves all;
    fleet_get_moves(r->f, &all);
    return all;
}

static void a_busy_device_gives_one_away_target_first(void) {
    rig r;
    begin_unbalanced(&r);
    work(&r, 0, 1);
    work(&r, 1, 1);
    atomic_store(&r.hold_stage[1], true);
    tick(&r, 9999999);
    EXPECT_EQ(moves_of(&r).n_notes, 0); // not yet
    tick(&r, 1);
    fleet_moves v = moves_of(&r);
    EXPECT_EQ(v.n_notes, 1);
    EXPECT_EQ(v.last.state, FLEET_MOVE_BEGUN);
    EXPECT_EQ(v.last.why, FLEET_MOVE_LOAD);
    uint32_t slot = v.last.slot;
    EXPECT_EQ(replica_at(&r, slot, 1), FLEET_JOINING);
    EXPECT_EQ(replica_at(&r, slot, 0), FLEET_SERVING);
    for (int i = 0; i < 50; i++) tick(&r, 1000000); // the number of replicas is left alone
    work(&r, slot, 1);                              // the source serves
    EXPECT_EQ(fleet_model_devices(r.f, slot), 3);
    gen_request *q = request(900, slot, 8, 3); // it is still at work when the target comes
    q->max_tokens = 400;
    r.sent_to[900] = 0;
    EXPECT(fleet_submit(r.f, 0, q));
    atomic_store(&r.hold_stage[1], false);
    EXPECT(is_replica(&r, slot, 1, FLEET_SERVING));
    EXPECT_EQ(fleet_model_devices(r.f, slot), 2);
    EXPECT_EQ(moves_of(&r).n_done[FLEET_MOVE_LOAD], 1);
    EXPECT_EQ(moves_of(&r).last.state, FLEET_MOVE_DONE);
    EXPECT_EQ(send(&r, 901, slot, 8, 4), 1);
    uint32_t fine = r.n_fine;
    EXPECT(read_until(&r, slot, r.n_ended + 2));
    EXPECT_EQ(r.n_fine, fine + 2); // what ran on the source ended as it should
    EXPECT(is_replica(&r, slot, 0, FLEET_ABSENT));
    EXPECT_EQ(moves_of(&r).n_notes, 2);
    end(&r, 2);
}

static void nothing_moves_that_would_not_gain(void) {
    for (int k = 0; k < 4; k++) {
        rig r;
        begin_unbalanced(&r);
        if (k == 3) { // 75 percent, and 67 without the one that does little
            work(&r, 0, 2);
            gen_request *q = request(90, 1, 8, 1);
            q->max_tokens = 1;
            EXPECT(fleet_submit(r.f, 0, q));
            r.sent_to[90] = 0;
            EXPECT(read_until(&r, 1, r.n_ended + 1));
            tick(&r, 12000000);
            EXPECT_EQ(moves_of(&r).n_notes, 0);
            end(&r, 2);
            break;
        }
        work(&r, 0, k == 1 ? 2 : 1); // all of the load of one model: it would only change places
        work(&r, 1, k == 1 ? 0 : 1);
        if (k == 2) { // pinned
            fleet_model_about m = about_of(1);
            m.policy.pin = PIN_HOT;
            EXPECT(fleet_model_set_policy(r.f, 0, &m.policy));
            EXPECT(fleet_model_set_policy(r.f, 1, &m.policy));
        }
        tick(&r, k == 0 ? 14000000 : 10000000); // 0: busy for less than 70 percent
        EXPECT_EQ(moves_of(&r).n_notes, 0);
        end(&r, 2);
    }
}

static void a_move_that_fails_leaves_everything_as_it_was(void) {
    for (int k = 0; k < 3; k++) {
        rig r;
        begin_unbalanced(&r);
        work(&r, 0, 1);
        work(&r, 1, 1);
        if (k == 0)
            r.devices[1].fail_load = true;
        else
            atomic_store(&r.hold_stage[1], true);
        tick(&r, 10000000);
        uint32_t slot = moves_of(&r).last.slot;
        EXPECT_EQ(moves_of(&r).last.state, FLEET_MOVE_BEGUN);
        if (k == 0) EXPECT(comes_to(&r, slot, 1, MODEL_FAILED));
        if (k == 1) tick(&r, 120000000); // too late
        if (k == 2) fleet_model_remove(r.f, slot);
        tick(&r, 1);
        EXPECT_EQ(moves_of(&r).last.state, FLEET_MOVE_FAILED);
        EXPECT_EQ(moves_of(&r).n_failed, 1);
        EXPECT_EQ(fleet_model_devices(r.f, slot), k == 2 ? 0 : 1);
        atomic_store(&r.hold_stage[1], false);
        if (k < 2) {
            work(&r, slot, 2);
            work(&r, 1 - slot, 2);
            EXPECT(is_replica(&r, slot, 1, FLEET_ABSENT));
            tick(&r, 20000000);
            EXPECT_EQ(moves_of(&r).n_notes, 2); // it is not tried again at once
        }
        end(&r, 2);
    }
}

static void a_device_lost_during_a_move_ends_it(void) {
    for (uint32_t lost = 0; lost < 2; lost++) {
        rig r;
        begin_unbalanced(&r);
        work(&r, 0, 1);
        work(&r, 1, 1);
        if (lost == 0) atomic_store(&r.hold_stage[1], true);
        tick(&r, 10000000);
        uint32_t slot = moves_of(&r).last.slot;
        EXPECT_EQ(moves_of(&r).last.state, FLEET_MOVE_BEGUN);
        if (lost == 1) EXPECT(comes_to(&r, slot, 1, MODEL_HOT));
        atomic_store(&r.break_step[lost], true);
        EXPECT(fleet_submit(r.f, lost, request(50, slot, 8, 1)));
        r.sent_to[50] = lost;
        EXPECT(read_until(&r, slot, r.n_ended + 1));
        EXPECT(is_lost(&r, lost));
        tick(&r, 1);
        EXPECT_EQ(moves_of(&r).last.state, FLEET_MOVE_FAILED);
        EXPECT_EQ(fleet_model_devices(r.f, slot), 2u >> lost);
        atomic_store(&r.hold_stage[1], false);
        EXPECT(comes_to(&r, slot, 1 - lost, MODEL_HOT));
        tick(&r, 1);
        EXPECT_EQ(send(&r, 51, slot, 8, 2), 1 - lost);
        EXPECT(read_until(&r, slot, r.n_ended + 1));
        EXPECT_EQ(r.last.done.finish, GEN_LENGTH);
        end(&r, 2);
    }
}

/* Two that do not fit together wait for each other, while the other device became empty. */
static void models_that_wait_for_each_other_part(void) {
    rig r;
    weight_pages = 40;
    begin(&r, 2);
    fleet_model_about m = about_of(1), other = about_of(1);
    other.policy.min_bytes = 60 * (uint64_t)PAGE_BYTES;
    EXPECT(fleet_model_add(r.f, 2, &other) && fleet_model_add(r.f, 0, &m));
    EXPECT(fleet_model_add(r.f, 1, &m));
    weight_pages = WEIGHT_PAGES;
    EXPECT_EQ(fleet_model_devices(r.f, 2), 1);
    EXPECT_EQ(fleet_model_devices(r.f, 0) & fleet_model_devices(r.f, 1), 2);
    fleet_model_remove(r.f, 2);
    EXPECT(is_replica(&r, 2, 0, FLEET_ABSENT));
    atomic_store(&r.stage_ms, 2);
    tick(&r, 10000000);
    for (uint32_t i = 0; i < 10; i++) {
        EXPECT_EQ(send(&r, i + 1, i % 2, 8, i), 1);
        EXPECT(read_until(&r, i % 2, i + 1));
        if (i != 3) continue;
        tick(&r, UINT64_C(60000000000)); // so seldom that it does not pay
        EXPECT_EQ(moves_of(&r).n_notes, 0);
    }
    tick(&r, 10000000);
    fleet_moves v = moves_of(&r);
    EXPECT_EQ(v.last.state, FLEET_MOVE_BEGUN);
    EXPECT_EQ(v.last.why, FLEET_MOVE_SWITCHES);
    EXPECT_EQ(v.last.to, 0);
    EXPECT(is_replica(&r, v.last.slot, 1, FLEET_ABSENT));
    EXPECT_EQ(fleet_model_devices(r.f, 0) | fleet_model_devices(r.f, 1), 3);
    EXPECT_EQ(moves_of(&r).n_done[FLEET_MOVE_SWITCHES], 1);
    end(&r, 2);
}

/* A model that was sent away by hand and comes back has room where it is. */
static void one_that_has_room_stays(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    atomic_store(&r.stage_ms, 2);
    tick(&r, 10000000);
    for (uint32_t i = 0; i < 3; i++) {
        fleet_model_do(r.f, 0, ENGINE_DROP);
        EXPECT(comes_to(&r, 0, 0, MODEL_COLD));
        EXPECT_EQ(send(&r, i + 1, 0, 8, i), 0);
        EXPECT(read_until(&r, 0, i + 1));
    }
    tick(&r, 10000000);
    EXPECT_EQ(moves_of(&r).n_notes, 0);
    end(&r, 2);
}

/* 30 of 64 pages are guaranteed on each; 50 more fit only when both are on one. */
static void what_fits_nowhere_gets_room_by_a_move(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1), big = about_of(1);
    m.policy.min_bytes = 30 * (uint64_t)PAGE_BYTES;
    big.policy.min_bytes = 50 * (uint64_t)PAGE_BYTES;
    EXPECT(fleet_model_add(r.f, 0, &m) && fleet_model_add(r.f, 1, &m));
    EXPECT(all_hot(&r, 0) && all_hot(&r, 1));
    EXPECT(fleet_model_add(r.f, 2, &big));
    EXPECT(fleet_placement_problem(r.f, 2)[0] != 0);
    EXPECT(comes_to(&r, 2, (uint32_t)__builtin_ctzll(fleet_model_devices(r.f, 2)), MODEL_FAILED));
    tick(&r, 10000000);
    for (int i = 0; i < 2000 && (moves_of(&r).n_done[FLEET_MOVE_ROOM] == 0 ||
                                 fleet_model_state(r.f, 2) != MODEL_HOT);
         i++) {
        tick(&r, 1000000);
        nap();
    }
    EXPECT_EQ(moves_of(&r).n_done[FLEET_MOVE_ROOM], 1);
    EXPECT_EQ(moves_of(&r).n_failed, 0);
    EXPECT_EQ(fleet_model_state(r.f, 2), MODEL_HOT);
    tick(&r, 1000001); // it may have come up where it was
    EXPECT_STR(fleet_placement_problem(r.f, 2), "");
    EXPECT_EQ(fleet_model_devices(r.f, 0), fleet_model_devices(r.f, 1));
    EXPECT_EQ(fleet_model_devices(r.f, 0) | fleet_model_devices(r.f, 2), 3);
    uint32_t to = send(&r, 1, 2, 8, 1);
    EXPECT(to != FLEET_NOWHERE);
    if (to != FLEET_NOWHERE) EXPECT(read_until(&r, 2, 1));
    end(&r, 2);
}

/* One model is looked at each time: one that never fits does not take the turns of another. */
static void models_without_room_get_time_slices(void) {
    rig r;
    begin(&r, 3);
    fleet_model_about m = about_of(1), big = about_of(1), huge = about_of(1);
    m.policy.min_bytes = 30 * (uint64_t)PAGE_BYTES;
    big.policy.min_bytes = 50 * (uint64_t)PAGE_BYTES;
    huge.policy.min_bytes = (PAGES + 1) * (uint64_t)PAGE_BYTES;
    EXPECT(fleet_model_add(r.f, 1, &m) && fleet_model_add(r.f, 2, &m));
    EXPECT(all_hot(&r, 1) && all_hot(&r, 2));
    EXPECT(fleet_model_add(r.f, 0, &huge) && fleet_model_add(r.f, 3, &big));
    EXPECT_EQ(fleet_model_devices(r.f, 0), 4); // it blocks no other model there
    for (uint32_t slot = 0; slot <= 3; slot += 3)
        EXPECT(comes_to(&r, slot, (uint32_t)__builtin_ctzll(fleet_model_devices(r.f, slot)),
                        MODEL_FAILED));
    tick(&r, 10000000); // measures
    tick(&r, 10000000);
    EXPECT_EQ(moves_of(&r).n_notes, 0); // the turn of the one that never fits
    tick(&r, 10000000);
    EXPECT_EQ(moves_of(&r).n_notes, 1);
    EXPECT_EQ(moves_of(&r).last.why, FLEET_MOVE_ROOM);
    end(&r, 3);
}

/* The story: a daemon with more devices than models was never ready. */
static void a_device_without_models_delays_no_request(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    m.policy.pin = PIN_HOT;
    atomic_store(&r.hold_stage[0], true);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT_EQ(fleet_model_devices(r.f, 0), 1);
    EXPECT(!fleet_is_settled(r.f));
    atomic_store(&r.hold_stage[0], false);
    EXPECT(all_hot(&r, 0));
    uint64_t until_us = clock_now_us() + WAIT_US;
    while (!fleet_is_settled(r.f) && clock_now_us() < until_us) nap();
    EXPECT(fleet_is_settled(r.f));
    tick(&r, 1);
    atomic_store(&r.hold_stage[1], true); // a model comes later: the others are served as before
    EXPECT(fleet_model_add(r.f, 1, &m));
    EXPECT_EQ(fleet_model_devices(r.f, 1), 2);
    EXPECT(fleet_is_settled(r.f));
    atomic_store(&r.hold_stage[1], false);
    end(&r, 2);
}

static void a_fleet_that_cannot_start_is_none(void) {
    fleet_options o = {.n_devices = FLEET_DEVICES_MAX + 1, .n_slots = SLOTS};
    fleet *f = (fleet *)&o; // whatever was there
    inferd_err err = {0};
    EXPECT_EQ(fleet_start(&o, &f, &err), INFERD_EINVAL);
    EXPECT(f == NULL);
}

static void guarantees_that_a_device_cannot_keep_are_told(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(fleet_model_add(r.f, 1, &m));
    EXPECT(all_hot(&r, 0) && all_hot(&r, 1));
    uint64_t sums[FLEET_DEVICES_MAX] = {0};
    inferd_err err = {0};
    model_policy p = m.policy;
    p.min_bytes = 64 * (uint64_t)PAGE_BYTES; // 32 on each
    EXPECT_EQ(fleet_check_min(r.f, 0, &p, sums, &err), INFERD_OK);
    EXPECT_EQ(fleet_check_min(r.f, 1, &p, sums, &err), INFERD_OK);
    uint64_t again[FLEET_DEVICES_MAX] = {0};
    EXPECT_EQ(fleet_check_min(r.f, 0, &p, again, &err), INFERD_OK);
    p.min_bytes += PAGE_BYTES;
    EXPECT_EQ(fleet_check_min(r.f, 1, &p, again, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "the guarantees (min) on x0 together are 130 MiB > 128 MiB that it has");
    end(&r, 2);
}

static void tenants_get_even_parts_where_their_models_are(void) {
    rig r;
    begin(&r, 3);
    tenant_policy t = {.min_bytes = 0,
                       .max_bytes = 9 * (uint64_t)PAGE_BYTES,
                       .weight = 1,
                       .share = {SHARE_FIXED, 25, 1}};
    EXPECT(fleet_set_tenant(r.f, 0, &t, 5));
    EXPECT(fleet_set_tenant(r.f, 0, &t, 0)); // nowhere is everywhere
    end(&r, 3);
}

enum { ROTATION_US = 5000000 }; // of the device that is first

static const fleet_tenant_at *told(const rig *r, uint32_t tenant, uint32_t d) {
    return &r->f->tenants[tenant].at[d];
}

/* Split evenly over devices that had nothing to do, a share of 60 percent was 30. */
static void a_share_is_divided_over_the_devices_with_work(void) {
    rig r;
    begin(&r, 3);
    tenant_policy t = {.weight = 1, .share = {SHARE_FIXED, 60, 1}};
    EXPECT(fleet_set_tenant(r.f, 1, &t, 7));
    EXPECT(fleet_tenant_begins(r.f, 1, 0));
    EXPECT_EQ(told(&r, 1, 0)->percent, 60); // at once, not at the next tick
    EXPECT(fleet_tenant_begins(r.f, 1, 2));
    EXPECT(fleet_tenant_begins(r.f, 1, 2));
    EXPECT_EQ(told(&r, 1, 0)->percent, 30);
    EXPECT_EQ(told(&r, 1, 2)->percent, 30);
    fleet_tenant_ends(r.f, 1, 0);
    fleet_tenant_ends(r.f, 1, 2); // one of two there
    tick(&r, 1000);
    EXPECT_EQ(told(&r, 1, 2)->percent, 60);
    EXPECT_EQ(told(&r, 1, 2)->policy, SHARE_FIXED);
    /* Its models are elsewhere by now: what runs there keeps its share. */
    EXPECT(fleet_set_tenant(r.f, 1, &t, 1));
    EXPECT_EQ(told(&r, 1, 2)->percent, 60);
    fleet_tenant_ends(r.f, 1, 2);
    tick(&r, 1000);
    EXPECT_EQ(r.f->n_busy, 0);
    end(&r, 3);
}

/* Of one percent on two devices the second had nothing, and its requests never ran. */
static void a_percent_less_than_the_devices_goes_around(void) {
    rig r;
    bool had[3] = {0};
    begin(&r, 3);
    tenant_policy t = {.weight = 1, .share = {SHARE_FIXED, 2, 1}};
    EXPECT(fleet_set_tenant(r.f, 0, &t, 7));
    for (uint32_t d = 0; d < 3; d++) EXPECT(fleet_tenant_begins(r.f, 0, d));
    for (int i = 0; i < 3; i++) {
        uint32_t sum = 0;
        tick(&r, ROTATION_US);
        for (uint32_t d = 0; d < 3; d++) {
            EXPECT_EQ(told(&r, 0, d)->policy, SHARE_FIXED);
            sum += told(&r, 0, d)->percent;
            if (told(&r, 0, d)->percent == 0) had[d] = true;
        }
        EXPECT_EQ(sum, 2);
    }
    EXPECT(had[0] && had[1] && had[2]); // each waited once
    end(&r, 3);
}

static void what_one_device_takes_of_a_max_is_not_the_others(void) {
    rig r;
    begin(&r, 2);
    tenant_policy t = {.weight = 1, .max_bytes = 10 << 20};
    EXPECT(fleet_set_tenant(r.f, 0, &t, 3));
    EXPECT(fleet_tenant_begins(r.f, 0, 1));
    atomic_store(&r.engines[0]->tenant_bytes[0], 6 << 20);
    atomic_store(&r.engines[1]->tenant_bytes[0], 3 << 20);
    tick(&r, 1000);
    EXPECT_EQ(told(&r, 0, 1)->here_bytes, 0); // all of it: it is the only one
    EXPECT(fleet_tenant_begins(r.f, 0, 0));
    uint64_t first = told(&r, 0, 0)->here_bytes == 0 ? 0 : 1;
    EXPECT_EQ(told(&r, 0, (uint32_t)first)->here_bytes, 0);
    EXPECT_EQ(told(&r, 0, (uint32_t)!first)->here_bytes, (first == 0 ? 4u : 7u) << 20);
    tick(&r, ROTATION_US);
    EXPECT_EQ(told(&r, 0, (uint32_t)!first)->here_bytes, 0);
    EXPECT_EQ(told(&r, 0, (uint32_t)first)->here_bytes, (first == 0 ? 7u : 4u) << 20);
    atomic_store(&r.engines[!first]->tenant_bytes[0], 11 << 20);
    tick(&r, 1000);
    EXPECT_EQ(told(&r, 0, (uint32_t)first)->here_bytes, 1); // nothing is left, which is not "all"
    end(&r, 2);
}

/* Streams of a tenant with a fixed share stood still when their model left the device. */
static void a_fixed_share_ends_what_runs_where_its_model_leaves(void) {
    enum { REQUESTS = 3, TOKENS = 120 };
    rig r;
    step_us = 1000; // so that what a full bucket pays for is not enough
    begin(&r, 2);
    fleet_model_about m = about_of(2);
    tenant_policy t = {.weight = 1, .share = {SHARE_FIXED, 90, 1}};
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    EXPECT(fleet_set_tenant(r.f, 3, &t, 3));
    for (uint64_t id = 1; id <= REQUESTS; id++) {
        gen_request *q = request(id, 0, 8, (uint32_t)id);
        q->tenant_idx = r.tenants[id] = 3;
        q->max_tokens = TOKENS;
        r.sent_to[id] = 1;
        EXPECT(fleet_submit(r.f, 1, q));
    }
    fleet_remove_replica(r.f, 0, 1);
    tick(&r, 1000);
    EXPECT(fleet_set_tenant(r.f, 3, &t, fleet_model_devices(r.f, 0))); // what the front says then
    EXPECT(read_until(&r, 0, REQUESTS));
    EXPECT_EQ(r.n_fine, REQUESTS);
    EXPECT_EQ(r.f->tenants[3].work, 0);
    end(&r, 2);
    step_us = 100;
}

/* A replica beyond the parts had no share at all, which made a fixed one no ceiling. */
static void a_fixed_share_is_divided_over_all_replicas(void) {
    rig r;
    begin_joining(&r);
    model_policy p = r.f->models[0].about.policy;
    p.share = (share_spec){SHARE_FIXED, 21, 1};
    p.replicas_min = 1; // the one on x1 is beyond the parts
    EXPECT(fleet_model_set_policy(r.f, 0, &p));
    fleet_replica at;
    fleet_get_replica(r.f, 0, 0, &at);
    EXPECT_EQ(at.policy.share.percent, 21);
    tick(&r, 1000001);
    EXPECT_EQ(replica_at(&r, 0, 1), FLEET_JOINING);
    fleet_get_replica(r.f, 0, 0, &at);
    EXPECT_EQ(at.policy.share.percent, 21); // the other one does not compute yet
    atomic_store(&r.hold_stage[1], false);
    EXPECT(comes_to(&r, 0, 1, MODEL_HOT));
    EXPECT(is_replica(&r, 0, 1, FLEET_SERVING));
    for (uint32_t d = 0; d < 2; d++) {
        fleet_get_replica(r.f, 0, d, &at);
        EXPECT_EQ(at.policy.share.policy, SHARE_FIXED);
        EXPECT_EQ(at.policy.share.percent, d == 0 ? 11 : 10);
    }
    /* One that leaves has its part for as long as it has work. */
    r.f->models[0].at[1].n_open = 1;
    fleet_remove_replica(r.f, 0, 1);
    fleet_divide_fixed(r.f);
    fleet_get_replica(r.f, 0, 0, &at);
    EXPECT_EQ(at.policy.share.percent, 11);
    r.f->models[0].at[1].n_open = 0;
    fleet_divide_fixed(r.f);
    fleet_get_replica(r.f, 0, 0, &at);
    EXPECT_EQ(at.policy.share.percent, 21);
    end(&r, 2);
}

static void the_books_are_an_object_per_device(void) {
    rig r;
    begin(&r, 2);
    fleet_model_about m = about_of(1);
    buf json = {0};
    inferd_err err = {0};
    EXPECT(fleet_model_add(r.f, 0, &m));
    EXPECT(all_hot(&r, 0));
    EXPECT_EQ(fleet_audit(r.f, 5000, &json, &err), INFERD_OK);
    const char start[] = "{\"ok\":true,\"devices\":[{\"device\":\"x0\",\"ok\":true,";
    EXPECT(strncmp(buf_cstr(&json), start, sizeof start - 1) == 0);
    EXPECT(strstr(buf_cstr(&json), ",{\"device\":\"x1\",\"ok\":true,") != NULL);
    buf_deinit(&json);
    end(&r, 2);
}

static const test_case cases[] = {
    TEST(eighteen_gib_and_240_percent_on_three_are_six_and_eighty_each),
    TEST(parts_that_do_not_divide_add_up),
    TEST(a_share_over_three_devices_becomes_three_replicas),
    TEST(models_spread),
    TEST(a_full_device_is_not_chosen),
    TEST(shares_of_more_than_a_device_do_not_meet_on_one),
    TEST(the_same_content_goes_where_its_weights_are),
    TEST(a_slot_is_empty_when_it_left_everywhere),
    TEST(requests_go_where_least_waits_and_prefixes_stay_together),
    TEST(a_prompt_goes_where_it_fits),
    TEST(one_device_is_a_fleet_of_one),
    TEST(one_more_is_loaded_before_it_serves),
    TEST(one_that_was_up_between_two_looks_serves),
    TEST(one_that_does_not_come_in_time_goes_and_comes_again),
    TEST(what_was_counted_stays_when_a_replica_leaves),
    TEST(a_drain_lasts_until_load),
    TEST(what_a_lost_device_had_comes_up_elsewhere),
    TEST(one_of_two_replicas_is_lost_and_the_other_serves),
    TEST(a_lost_device_lets_its_models_go),
    TEST(a_device_that_is_said_to_be_lost_is_lost),
    TEST(a_device_that_is_found_lost_by_a_load_is_lost),
    TEST(no_request_goes_to_a_lost_device),
    TEST(the_furthest_replica_says_the_state),
    TEST(one_that_failed_does_not_hide_one_that_serves),
    TEST(events_of_devices_alternate),
    TEST(weights_that_may_leave_make_room_and_pinned_ones_do_not),
    TEST(a_busy_device_gives_one_away_target_first),
    TEST(nothing_moves_that_would_not_gain),
    TEST(a_move_that_fails_leaves_everything_as_it_was),
    TEST(a_device_lost_during_a_move_ends_it),
    TEST(models_that_wait_for_each_other_part),
    TEST(one_that_has_room_stays),
    TEST(what_fits_nowhere_gets_room_by_a_move),
    TEST(models_without_room_get_time_slices),
    TEST(a_device_without_models_delays_no_request),
    TEST(a_fleet_that_cannot_start_is_none),
    TEST(guarantees_that_a_device_cannot_keep_are_told),
    TEST(tenants_get_even_parts_where_their_models_are),
    TEST(a_share_is_divided_over_the_devices_with_work),
    TEST(a_percent_less_than_the_devices_goes_around),
    TEST(what_one_device_takes_of_a_max_is_not_the_others),
    TEST(a_fixed_share_ends_what_runs_where_its_model_leaves),
    TEST(a_fixed_share_is_divided_over_all_replicas),
    TEST(the_books_are_an_object_per_device),
};
TEST_MAIN(cases)
