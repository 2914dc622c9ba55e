/* test_queue_slots.c - a share has places of its own in a queue that others fill. */
#include "test.h"

#include "../bench/rng.h"
#include "scheduler/queue_slots.h"

enum { ALL = 1600, TENANTS = 4, MODELS = 3 };

static const share_spec none = {SHARE_BESTEFFORT, 0, 1}, forty = {SHARE_FIXED, 40, 1},
                        half = {SHARE_BURST, 50, 1};

static bool begin(queue_slots *p) {
    *p = (queue_slots){0};
    queue_slots_init(p, ALL);
    return queue_slots_grow(p, TENANTS, MODELS);
}

static queue_asker asker(uint32_t tenant, uint32_t model, gen_class prio) {
    return (queue_asker){tenant, model, prio};
}

static bool take(queue_slots *p, queue_asker caller, uint32_t n, queue_slot *at) {
    uint32_t after_s;
    queue_ask ask = {.asker = caller, .n = n, .again = true};
    return queue_slots_ask(p, &ask, 0, at, &after_s) == QUEUE_HAS_SLOTS;
}

static void give(queue_slots *p, queue_slot at, uint32_t n) {
    queue_slots_give(p, at, n, true, 0);
}

/* Takes slots of one each while that kind is where they are; how many. */
static uint32_t take_all(queue_slots *p, queue_asker caller, queue_kind kind) {
    queue_slot at;
    uint32_t n = 0;
    while (queue_slots_choose(p, &caller, 1).kind == kind && take(p, caller, 1, &at)) n++;
    return n;
}

static void without_shares_only_urgent_requests_have_some(void) {
    queue_slots p;
    EXPECT(begin(&p));
    EXPECT_EQ(queue_slots_open(&p), ALL - ALL / 16);
    EXPECT_EQ(take_all(&p, asker(QUEUE_NO_TENANT, 0, GEN_NORMAL), QUEUE_OPEN), 1500);
    EXPECT_EQ(take_all(&p, asker(QUEUE_NO_TENANT, 0, GEN_HIGH), QUEUE_URGENT), 100);
    EXPECT_EQ(p.n_used, ALL);
    queue_slots_deinit(&p);
}

/* 40 percent of a quarter of 1,600, and half of that on two devices. */
static void a_share_keeps_its_part(void) {
    queue_slots p;
    EXPECT(begin(&p));
    queue_slots_keep(&p, QUEUE_TENANT, 1, &forty, 1);
    queue_slots_keep(&p, QUEUE_MODEL, 2, &half, 1);
    EXPECT_EQ(queue_slots_open(&p), 1600 - 100 - 160 - 200);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_BATCH), QUEUE_OPEN), 1140); // the flood
    EXPECT_EQ(take_all(&p, asker(0, 1, GEN_BATCH), QUEUE_OPEN), 0);
    EXPECT_EQ(take_all(&p, asker(1, 0, GEN_NORMAL), QUEUE_TENANT), 160);
    EXPECT_EQ(take_all(&p, asker(1, 2, GEN_NORMAL), QUEUE_MODEL), 0); // it has one of its own
    EXPECT_EQ(take_all(&p, asker(0, 2, GEN_NORMAL), QUEUE_MODEL), 200);
    EXPECT_EQ(take_all(&p, asker(1, 0, GEN_HIGH), QUEUE_URGENT), 100);
    EXPECT_EQ(p.n_used, ALL);
    queue_slots_keep(&p, QUEUE_TENANT, 1, &forty, 2);
    EXPECT_EQ(p.tenants[1].kept, 80);
    queue_slots_keep(&p, QUEUE_TENANT, 1, &none, 1);
    EXPECT_EQ(p.tenants[1].kept, 0);
    queue_slots_deinit(&p);
}

static void all_choices_of_a_request_use_one_kind_of_slot(void) {
    queue_slots p;
    EXPECT(begin(&p));
    queue_slots_keep(&p, QUEUE_TENANT, 0, &forty, 1); // 160
    queue_asker caller = asker(0, 0, GEN_HIGH), other = asker(2, 0, GEN_NORMAL);
    EXPECT_EQ(queue_slots_choose(&p, &caller, 160).kind, QUEUE_TENANT);
    EXPECT_EQ(queue_slots_choose(&p, &caller, 161).kind, QUEUE_OPEN);
    EXPECT_EQ(queue_slots_choose(&p, &other, 1).kind, QUEUE_OPEN);
    queue_slot at;
    EXPECT(take(&p, asker(0, 0, GEN_NORMAL), 70, &at) && at.kind == QUEUE_TENANT);
    EXPECT_EQ(queue_slots_choose(&p, &caller, 90).kind, QUEUE_TENANT);
    EXPECT_EQ(queue_slots_choose(&p, &caller, 91).kind, QUEUE_URGENT);
    EXPECT_EQ(queue_slots_most(&p, &caller), 1340);
    EXPECT_EQ(queue_slots_most(&p, &other), 1340);
    queue_slots_deinit(&p);
}

/* Half of the queue may be kept, and one share may be more than the open slots. */
static void a_whole_share_is_a_quarter(void) {
    queue_slots p;
    EXPECT(begin(&p));
    const share_spec whole = {SHARE_FIXED, 300, 3};
    queue_slots_keep(&p, QUEUE_TENANT, 0, &whole, 3);
    queue_slots_keep(&p, QUEUE_MODEL, 0, &whole, 3);
    EXPECT_EQ(queue_slots_open(&p), 700);
    EXPECT_EQ(p.tenants[0].kept, 400);
    queue_slots_deinit(&p);
}

/* The rest of what somebody has counts as everybody's, and comes free there. */
static void admitted_requests_stay_when_shares_change(void) {
    queue_slots p;
    EXPECT(begin(&p));
    queue_asker caller = asker(1, 0, GEN_NORMAL);
    queue_slots_keep(&p, QUEUE_TENANT, 1, &forty, 1);
    EXPECT_EQ(take_all(&p, caller, QUEUE_TENANT), 160);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_NORMAL), QUEUE_OPEN), 1340);
    queue_slots_clear(&p);
    queue_slots_keep(&p, QUEUE_TENANT, 1, &(share_spec){SHARE_FIXED, 10, 1}, 1);
    EXPECT_EQ(queue_slots_open(&p), 1460);
    EXPECT_EQ(queue_slots_open_used(&p), 1460);
    give(&p, (queue_slot){QUEUE_TENANT, 1}, 120);
    EXPECT_EQ(queue_slots_open_used(&p), 1340);
    give(&p, (queue_slot){QUEUE_TENANT, 1}, 1);
    EXPECT_EQ(queue_slots_open_used(&p), 1340);
    queue_slots_deinit(&p);
}

/* Everybody's places are full of requests from before there was a share. */
static void a_new_share_waits_for_slots(void) {
    queue_slots p;
    EXPECT(begin(&p));
    queue_asker caller = asker(1, 0, GEN_NORMAL);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_NORMAL), QUEUE_OPEN), 1500);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_HIGH), QUEUE_URGENT), 100);
    queue_slots_keep(&p, QUEUE_TENANT, 1, &forty, 1);
    EXPECT_EQ(take_all(&p, caller, QUEUE_TENANT), 0); // no slots beyond those
    EXPECT_EQ(queue_slots_choose(&p, &caller, 1).kind, QUEUE_OPEN);
    give(&p, (queue_slot){QUEUE_OPEN, 0}, 1);
    EXPECT_EQ(take_all(&p, caller, QUEUE_TENANT), 1);
    queue_slots_deinit(&p);
}

static void a_tenant_without_kept_slots_is_known_before_the_body(void) {
    queue_slots p;
    EXPECT(begin(&p));
    EXPECT(queue_slots_none_kept(&p, QUEUE_NO_TENANT, GEN_NORMAL));
    EXPECT(!queue_slots_none_kept(&p, QUEUE_NO_TENANT, GEN_HIGH));
    queue_slots_keep(&p, QUEUE_MODEL, 1, &half, 1);
    EXPECT(!queue_slots_none_kept(&p, 0, GEN_NORMAL)); // it may be of that model
    EXPECT_EQ(take_all(&p, asker(0, 1, GEN_NORMAL), QUEUE_MODEL), 200);
    EXPECT(queue_slots_none_kept(&p, 0, GEN_NORMAL));
    queue_slots_keep(&p, QUEUE_TENANT, 2, &forty, 1);
    EXPECT(queue_slots_none_kept(&p, 0, GEN_NORMAL));
    EXPECT(!queue_slots_none_kept(&p, 2, GEN_NORMAL));
    queue_slots_deinit(&p);
}

static void small_queues_keep_what_is_whole(void) {
    queue_slots p = {0};
    queue_slots_init(&p, 6);
    EXPECT(queue_slots_grow(&p, 1, 1));
    EXPECT_EQ(queue_slots_open(&p), 6);
    queue_slots_keep(&p, QUEUE_TENANT, 0, &(share_spec){SHARE_FIXED, 100, 1}, 1);
    EXPECT_EQ(queue_slots_open(&p), 5);
    queue_slots_deinit(&p);
}

/* Retries take any open slot; first tries leave those that the line needs, and nothing of it
 * concerns the slots of a share. */
static void a_first_try_leaves_slots_for_the_line(void) {
    enum { NOW_US = 1000000, HELD_US = 10 * NOW_US };
    queue_slots p = {0};
    queue_slots_init(&p, 10);
    EXPECT(queue_slots_grow(&p, 2, 1));
    queue_slots_keep(&p, QUEUE_TENANT, 1, &(share_spec){SHARE_FIXED, 100, 1}, 1); // 2 of 10
    queue_ask first = {asker(0, 0, GEN_NORMAL), 1, false}, again = {first.asker, 1, true};
    queue_ask share = {asker(1, 0, GEN_NORMAL), 1, false}, all = {first.asker, 8, false};
    queue_slot at;
    uint32_t after_s = 0;
    EXPECT_EQ(queue_slots_ask(&p, &all, NOW_US, &at, &after_s), QUEUE_HAS_SLOTS);
    queue_slots_give(&p, at, 1, true, NOW_US + HELD_US / 8); // held for 10 s: 1.25 s * 8 slots
    EXPECT_EQ(queue_line_held_us(&p.line, NOW_US + HELD_US / 8), HELD_US);
    EXPECT_EQ(queue_slots_ask(&p, &(queue_ask){first.asker, 3, false}, NOW_US + HELD_US / 8, &at,
                              &after_s),
              QUEUE_FULL);
    EXPECT_EQ(after_s, 8); // (3 + 2) * 12.5 s / 8
    EXPECT_EQ(queue_slots_ask(&p, &first, NOW_US + HELD_US / 8, &at, &after_s), QUEUE_FULL);
    EXPECT_EQ(after_s, 10); // a slot is free, and due
    EXPECT_EQ(queue_slots_ask(&p, &share, NOW_US + HELD_US / 8, &at, &after_s), QUEUE_HAS_SLOTS);
    EXPECT_EQ(queue_slots_ask(&p, &again, NOW_US + HELD_US / 8, &at, &after_s), QUEUE_HAS_SLOTS);
    queue_slots_give(&p, at, 1, true, NOW_US + 2 * HELD_US); // the line is over
    EXPECT_EQ(queue_slots_ask(&p, &first, NOW_US + 2 * HELD_US, &at, &after_s), QUEUE_HAS_SLOTS);
    EXPECT_EQ(queue_slots_ask(&p, &(queue_ask){first.asker, 9, true}, NOW_US, &at, &after_s),
              QUEUE_NEVER);
    queue_slots_deinit(&p);
}

/* The sums are those of the parts, whatever comes. */
static void sums_hold(void) {
    enum { STEPS = 20000 };
    queue_slots p;
    EXPECT(begin(&p));
    queue_slot in[ALL];
    uint32_t n_in = 0;
    rng g = rng_make(7, 0, 0);
    for (int i = 0; i < STEPS; i++) {
        uint32_t what = (uint32_t)rng_below(&g, 100);
        if (what == 0) {
            queue_slots_clear(&p);
            uint32_t left[2] = {100, 100};
            for (uint32_t k = 0; k < TENANTS + MODELS; k++) {
                bool model = k >= TENANTS;
                share_spec s = {(share_policy)rng_below(&g, 3),
                                (uint32_t)rng_below(&g, left[model] + 1), 1};
                queue_slots_keep(&p, model ? QUEUE_MODEL : QUEUE_TENANT, model ? k - TENANTS : k,
                                 &s, 1);
                left[model] -= s.percent;
            }
        } else if (what < 45 && n_in > 0) {
            uint32_t k = (uint32_t)rng_below(&g, n_in);
            give(&p, in[k], 1);
            in[k] = in[--n_in];
        } else {
            queue_asker caller =
                asker((uint32_t)rng_below(&g, TENANTS), (uint32_t)rng_below(&g, MODELS),
                      (gen_class)(1 + rng_below(&g, 3)));
            uint32_t n = 1 + (uint32_t)rng_below(&g, 40);
            queue_slot at;
            if (!take(&p, caller, n, &at)) continue;
            for (uint32_t k = 0; k < n; k++) in[n_in++] = at;
        }
        uint32_t kept = p.urgent.kept, used_kept = u32_min(p.urgent.used, p.urgent.kept);
        for (uint32_t k = 0; k < TENANTS + MODELS; k++) {
            const queue_owner *o = k < TENANTS ? &p.tenants[k] : &p.models[k - TENANTS];
            kept += o->kept;
            used_kept += u32_min(o->used, o->kept);
        }
        EXPECT_EQ(p.n_used, n_in);
        EXPECT_EQ(p.n_kept, kept);
        EXPECT_EQ(p.n_used_kept, used_kept);
        EXPECT(n_in <= ALL && queue_slots_open(&p) >= ALL * 7 / 16);
    }
    queue_slots_deinit(&p);
}

static const test_case tests[] = {
    TEST(without_shares_only_urgent_requests_have_some),
    TEST(a_share_keeps_its_part),
    TEST(all_choices_of_a_request_use_one_kind_of_slot),
    TEST(a_whole_share_is_a_quarter),
    TEST(admitted_requests_stay_when_shares_change),
    TEST(a_new_share_waits_for_slots),
    TEST(a_tenant_without_kept_slots_is_known_before_the_body),
    TEST(small_queues_keep_what_is_whole),
    TEST(a_first_try_leaves_slots_for_the_line),
    TEST(sums_hold),
};

TEST_MAIN(tests)
