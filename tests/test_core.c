/* test_core.c - a core whose device changes under it: pages that never come, a device that is lost,
 * a reader who makes no room. */
#include "core_rig.h"
#include "engine_limits.h"

/* ---- pages that are still being made ---- */

enum { PAGES = 30, READY = 22, WEIGHTS = 12 };

static device_pages pages_now;

static inferd_status half_open(void *self, device_about *out, inferd_err *err) {
    inferd_status st = fake_open(self, out, err);
    out->n_ready = READY;
    return st;
}

static void get_pages(void *self, device_pages *out) {
    (void)self;
    *out = pages_now;
}

/* Who was let in while the pool was to be larger had to wait for good. */
static void a_pool_that_stays_smaller_ends_what_cannot_fit(void) {
    static core_rig r;
    static device_ops ops;
    model_policy p = plain_policy();
    core_rig_init(&r, PAGES, 0, WEIGHTS);
    ops = *fake_as_device(&r.device).ops;
    ops.open = half_open;
    ops.pages = get_pages;
    r.ops = &ops;
    pages_now = (device_pages){.n_ready = READY, .n_pages = PAGES};
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    core_rig_submit(&r, 0, request(1, 100, 80)); // 15 pages of 12 tokens; 10 are there, 8 to come
    core_rig_submit(&r, 0, request(2, 60, 20));  // 7 pages
    core_rig_run(&r, 30000);
    EXPECT(r.outcomes[1].n_done == 0);
    pages_now.n_pages = READY; // the device has no more
    core_rig_run(&r, 2000000);
    EXPECT_EQ(r.core.pool.n_pages, READY);
    EXPECT_EQ(r.outcomes[1].n_done, 1);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_ERROR);
    EXPECT(strstr(r.outcomes[1].done.done.text, "179 tokens") != NULL);
    EXPECT(strstr(r.outcomes[1].done.done.text, "holds 120") != NULL);
    EXPECT(core_rig_gives(&r, 2));
    core_rig_deinit(&r);
}

/* ---- rows of a step ---- */

static device_about said;

static inferd_status open_with_rows(void *self, device_about *out, inferd_err *err) {
    inferd_status st = fake_open(self, out, err);
    out->rows_best = said.rows_best;
    out->rows_default = said.rows_default;
    return st;
}

/* Rows of a step, and with logits, of a core whose configuration says `given` (0: nothing). */
static void expect_rows(uint32_t running_max, uint32_t given, uint32_t rows_best,
                        uint32_t rows_default, uint32_t rows) {
    static core_rig r;
    static device_ops ops;
    inferd_err err = {0};
    core_rig_init(&r, PAGES, 0, WEIGHTS);
    ops = *fake_as_device(&r.device).ops;
    ops.open = open_with_rows;
    said = (device_about){.rows_best = rows_best, .rows_default = rows_default};
    engine_limits l = {.running_max = running_max, .step_tokens_max = given};
    l = limits_fill(&l);
    core_options o = {.device = {&ops, &r.device},
                      .limits = limits_of_sched(&l),
                      .n_slots = 1,
                      .clock = core_rig_now,
                      .room = core_rig_room,
                      .emit = core_rig_event,
                      .ctx = &r};
    EXPECT_EQ(core_init(&r.core, &o, &err), INFERD_OK);
    EXPECT_EQ(core_open(&r.core, &err), INFERD_OK);
    EXPECT_EQ(r.core.sched->limits.step_tokens_max, rows);
    EXPECT_EQ(r.core.models.limits.device.rows_max, rows);
    EXPECT_EQ(r.core.models.limits.device.logits_max, u32_min(l.running_max + 32, rows));
    core_rig_deinit(&r);
}

static void a_step_has_the_rows_that_are_good_for_the_device(void) {
    expect_rows(0, 0, 0, 2048, 2048); // a GPU
    expect_rows(0, 0, 0, 640, 640);   // with a small workspace
    expect_rows(0, 256, 0, 2048, 256);
    expect_rows(0, 4096, 0, 2048, 4096);
    expect_rows(0, 0, 128, 0, 128); // a CPU
    expect_rows(200, 0, 128, 0, 400);
    expect_rows(300, 0, 128, 0, 512);
    expect_rows(600, 0, 128, 0, 600); // a row for each that decodes
    expect_rows(0, 64, 128, 0, 64);
    expect_rows(0, 0, 0, 0, 512); // one that says nothing
    expect_rows(3000, 0, 0, 2048, 3000);
}

/* ---- when the next turn is due ---- */

static void open_plain(core_rig *r) {
    model_policy p = plain_policy();
    core_rig_init(r, PAGES, 0, WEIGHTS);
    core_rig_open(r, false);
    core_rig_attach(r, 0, &p);
}

static gen_request *due_in(const core_rig *r, uint64_t id, uint64_t us) {
    gen_request *q = request(id, 20, 100);
    q->deadline_us = core_rig_now((void *)(uintptr_t)r) + us;
    return q;
}

/* Its thread found a deadline in the past, and turned without end. */
static void a_device_that_is_lost_has_no_next_moment(void) {
    static core_rig r;
    inferd_err why;
    open_plain(&r);
    core_rig_submit(&r, 0, due_in(&r, 1, 50000));
    core_rig_run(&r, 20000);
    EXPECT(core_next_us(&r.core) != UINT64_MAX);
    inferd_fail(&why, INFERD_ELOST, "the device fell off");
    core_lose(&r.core, &why);
    core_rig_run(&r, 100000);
    EXPECT_EQ(r.outcomes[1].done.done.status, INFERD_ELOST);
    EXPECT_EQ(core_next_us(&r.core), UINT64_MAX);
    r.verify = false; // a pool that serves nobody
    core_rig_deinit(&r);
}

static uint32_t n_room;

static uint32_t little_room(void *ctx) {
    (void)ctx;
    return n_room;
}

/* Nothing is planned while events find no room: a deadline that passes then is for later. */
static void without_room_for_events_no_deadline_is_due(void) {
    static core_rig r;
    open_plain(&r);
    r.core.options.room = little_room;
    n_room = UINT32_MAX;
    core_rig_submit(&r, 0, due_in(&r, 1, 50000));
    core_rig_run(&r, 20000);
    EXPECT(core_next_us(&r.core) <= core_rig_now(&r) + 50000);
    n_room = 1;
    core_rig_run(&r, 100000);
    EXPECT_EQ(r.outcomes[1].n_done, 0);
    EXPECT_EQ(core_next_us(&r.core), UINT64_MAX);
    n_room = UINT32_MAX;
    EXPECT(core_next_us(&r.core) <= core_rig_now(&r));
    core_rig_run(&r, 1000);
    EXPECT_EQ(r.outcomes[1].done.done.finish, GEN_TIMEOUT);
    core_rig_deinit(&r);
}

/* ---- a step that fails ---- */

enum { FAILS_AT = 6 };
static uint32_t n_finished;

/* The step fails, and the one that is queued behind it fails because it waits for its draws, as the
 * CUDA backend tells it. */
static inferd_status finish_badly(void *self, step *st, uint64_t *device_us, inferd_err *err) {
    inferd_status s = fake_finish(self, st, device_us, err);
    n_finished++;
    if (n_finished == FAILS_AT) return inferd_fail(err, INFERD_EUNSUPPORTED, "the device broke");
    if (n_finished == FAILS_AT + 1)
        return inferd_fail(err, INFERD_EINVAL, "row 0 waits for draw 0 of a step that had 0");
    return s;
}

/* Requests 1 and 2 decode; 3 arrives while the step that fails is on its way, and its prompt is
 * computed by the step behind it.  It was told "row 0 waits for draw 0", as its own fault. */
static void a_step_behind_a_failed_one_is_computed_again(void) {
    static core_rig r;
    static device_ops ops;
    model_policy p = plain_policy();
    core_rig_init(&r, PAGES, 0, WEIGHTS);
    ops = *fake_as_device(&r.device).ops;
    ops.finish = finish_badly;
    r.ops = &ops;
    r.device.depth = 2;
    n_finished = 0;
    core_rig_open(&r, false);
    core_rig_attach(&r, 0, &p);
    core_rig_submit(&r, 0, request(1, 9, 30));
    core_rig_submit(&r, 0, request(2, 5, 30));
    while (n_finished < FAILS_AT - 1) core_rig_iterate(&r, 1000);
    EXPECT_EQ(r.core.n_flight, 1);
    core_rig_submit(&r, 0, request(3, 14, 20));
    core_rig_iterate(&r, 1000);
    EXPECT_EQ(n_finished, FAILS_AT + 1);
    EXPECT_EQ(r.core.n_flight, 0);
    for (uint32_t id = 1; id <= 2; id++) {
        EXPECT_EQ(r.outcomes[id].done.done.finish, GEN_ERROR);
        EXPECT_EQ(r.outcomes[id].done.done.status, INFERD_EDEVICE);
        EXPECT_STR(r.outcomes[id].done.done.text, "the device broke");
    }
    EXPECT_EQ(r.outcomes[3].n_done, 0);
    core_rig_finish(&r);
    EXPECT(core_rig_gives(&r, 3));
    core_rig_deinit(&r);
}

static const test_case cases[] = {
    TEST(a_step_has_the_rows_that_are_good_for_the_device),
    TEST(a_pool_that_stays_smaller_ends_what_cannot_fit),
    TEST(a_device_that_is_lost_has_no_next_moment),
    TEST(a_step_behind_a_failed_one_is_computed_again),
    TEST(without_room_for_events_no_deadline_is_due),
};
TEST_MAIN(cases)
