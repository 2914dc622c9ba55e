/* test_queue_places.c - a share has places of its own in a queue that others fill. */
#include "test.h"

#include "../bench/rng.h"
#include "scheduler/queue_places.h"

enum { ALL = 1600, SPARE = 40, TENANTS = 4, MODELS = 3 };

static const share_spec none = {SHARE_BESTEFFORT, 0, 1}, forty = {SHARE_FIXED, 40, 1},
                        half = {SHARE_BURST, 50, 1};

static bool begin(queue_places *p) {
    *p = (queue_places){0};
    queue_places_init(p, ALL, SPARE);
    return queue_places_grow(p, TENANTS, MODELS);
}

static queue_asker asker(uint32_t tenant, uint32_t model, gen_class prio) {
    return (queue_asker){tenant, model, prio};
}

/* Takes places of one each while that kind is where they are; how many. */
static uint32_t take_all(queue_places *p, queue_asker who, queue_kind kind) {
    uint32_t n = 0;
    for (;; n++) {
        queue_place at = queue_places_choose(p, &who, 1);
        bool open = at.kind == QUEUE_OPEN;
        if (at.kind != kind || (open && queue_places_open_used(p) == queue_places_open(p))) break;
        queue_places_take(p, at);
    }
    return n;
}

static void without_shares_only_urgent_requests_have_some(void) {
    queue_places p;
    EXPECT(begin(&p));
    EXPECT_EQ(queue_places_open(&p), ALL - ALL / 16);
    EXPECT_EQ(take_all(&p, asker(QUEUE_NOBODY, 0, GEN_NORMAL), QUEUE_OPEN), 1500);
    EXPECT_EQ(take_all(&p, asker(QUEUE_NOBODY, 0, GEN_HIGH), QUEUE_URGENT), 100);
    EXPECT_EQ(p.n_used, ALL);
    queue_places_deinit(&p);
}

/* 40 percent of a quarter of 1,600, and half of that on two devices. */
static void a_share_keeps_its_part(void) {
    queue_places p;
    EXPECT(begin(&p));
    queue_places_keep(&p, QUEUE_TENANT, 1, &forty, 1);
    queue_places_keep(&p, QUEUE_MODEL, 2, &half, 1);
    EXPECT_EQ(queue_places_open(&p), 1600 - 100 - 160 - 200);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_BATCH), QUEUE_OPEN), 1140); // the flood
    EXPECT_EQ(take_all(&p, asker(0, 1, GEN_BATCH), QUEUE_OPEN), 0);
    EXPECT_EQ(take_all(&p, asker(1, 0, GEN_NORMAL), QUEUE_TENANT), 160);
    EXPECT_EQ(take_all(&p, asker(1, 2, GEN_NORMAL), QUEUE_MODEL), 0); // it has one of its own
    EXPECT_EQ(take_all(&p, asker(0, 2, GEN_NORMAL), QUEUE_MODEL), 200);
    EXPECT_EQ(take_all(&p, asker(1, 0, GEN_HIGH), QUEUE_URGENT), 100);
    EXPECT_EQ(p.n_used, ALL);
    queue_places_keep(&p, QUEUE_TENANT, 1, &forty, 2);
    EXPECT_EQ(p.tenants[1].kept, 80);
    queue_places_keep(&p, QUEUE_TENANT, 1, &none, 1);
    EXPECT_EQ(p.tenants[1].kept, 0);
    queue_places_deinit(&p);
}

static void all_choices_of_a_request_are_at_one_place(void) {
    queue_places p;
    EXPECT(begin(&p));
    queue_places_keep(&p, QUEUE_TENANT, 0, &forty, 1); // 160
    queue_asker who = asker(0, 0, GEN_HIGH), other = asker(2, 0, GEN_NORMAL);
    EXPECT_EQ(queue_places_choose(&p, &who, 160).kind, QUEUE_TENANT);
    EXPECT_EQ(queue_places_choose(&p, &who, 161).kind, QUEUE_OPEN);
    EXPECT_EQ(queue_places_choose(&p, &other, 1).kind, QUEUE_OPEN);
    for (int i = 0; i < 70; i++) queue_places_take(&p, (queue_place){QUEUE_TENANT, 0});
    EXPECT_EQ(queue_places_choose(&p, &who, 90).kind, QUEUE_TENANT);
    EXPECT_EQ(queue_places_choose(&p, &who, 91).kind, QUEUE_URGENT);
    EXPECT_EQ(queue_places_most(&p, &who), 1340);
    EXPECT_EQ(queue_places_most(&p, &other), 1340);
    queue_places_deinit(&p);
}

/* Half of the queue may be kept, and one share may be more than everybody's part. */
static void a_whole_share_is_a_quarter(void) {
    queue_places p;
    EXPECT(begin(&p));
    const share_spec whole = {SHARE_FIXED, 300, 3};
    queue_places_keep(&p, QUEUE_TENANT, 0, &whole, 3);
    queue_places_keep(&p, QUEUE_MODEL, 0, &whole, 3);
    EXPECT_EQ(queue_places_open(&p), 700);
    EXPECT_EQ(p.tenants[0].kept, 400);
    queue_places_deinit(&p);
}

/* The rest of what somebody has counts as everybody's, and comes free there. */
static void who_is_in_stays_when_shares_change(void) {
    queue_places p;
    EXPECT(begin(&p));
    queue_asker who = asker(1, 0, GEN_NORMAL);
    queue_places_keep(&p, QUEUE_TENANT, 1, &forty, 1);
    EXPECT_EQ(take_all(&p, who, QUEUE_TENANT), 160);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_NORMAL), QUEUE_OPEN), 1340);
    queue_places_clear(&p);
    queue_places_keep(&p, QUEUE_TENANT, 1, &(share_spec){SHARE_FIXED, 10, 1}, 1);
    EXPECT_EQ(queue_places_open(&p), 1460);
    EXPECT_EQ(queue_places_open_used(&p), 1460);
    for (int i = 0; i < 120; i++) queue_places_give(&p, (queue_place){QUEUE_TENANT, 1});
    EXPECT_EQ(queue_places_open_used(&p), 1340);
    queue_places_give(&p, (queue_place){QUEUE_TENANT, 1});
    EXPECT_EQ(queue_places_open_used(&p), 1340);
    queue_places_deinit(&p);
}

/* Everybody's places are full of requests from before there was a share. */
static void a_new_share_waits_for_places(void) {
    queue_places p;
    EXPECT(begin(&p));
    queue_asker who = asker(1, 0, GEN_NORMAL);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_NORMAL), QUEUE_OPEN), 1500);
    EXPECT_EQ(take_all(&p, asker(0, 0, GEN_HIGH), QUEUE_URGENT), 100);
    queue_places_keep(&p, QUEUE_TENANT, 1, &forty, 1);
    EXPECT_EQ(take_all(&p, who, QUEUE_TENANT), SPARE); // no slots beyond those
    EXPECT_EQ(queue_places_choose(&p, &who, 1).kind, QUEUE_OPEN);
    queue_places_give(&p, (queue_place){QUEUE_OPEN, 0});
    EXPECT_EQ(take_all(&p, who, QUEUE_TENANT), 1);
    queue_places_deinit(&p);
}

static void who_has_none_kept_is_known_before_the_body(void) {
    queue_places p;
    EXPECT(begin(&p));
    EXPECT(queue_places_none_kept(&p, QUEUE_NOBODY, GEN_NORMAL));
    EXPECT(!queue_places_none_kept(&p, QUEUE_NOBODY, GEN_HIGH));
    queue_places_keep(&p, QUEUE_MODEL, 1, &half, 1);
    EXPECT(!queue_places_none_kept(&p, 0, GEN_NORMAL)); // it may be of that model
    EXPECT_EQ(take_all(&p, asker(0, 1, GEN_NORMAL), QUEUE_MODEL), 200);
    EXPECT(queue_places_none_kept(&p, 0, GEN_NORMAL));
    queue_places_keep(&p, QUEUE_TENANT, 2, &forty, 1);
    EXPECT(queue_places_none_kept(&p, 0, GEN_NORMAL));
    EXPECT(!queue_places_none_kept(&p, 2, GEN_NORMAL));
    queue_places_deinit(&p);
}

static void small_queues_keep_what_is_whole(void) {
    queue_places p = {0};
    queue_places_init(&p, 6, 1);
    EXPECT(queue_places_grow(&p, 1, 1));
    EXPECT_EQ(queue_places_open(&p), 6);
    queue_places_keep(&p, QUEUE_TENANT, 0, &(share_spec){SHARE_FIXED, 100, 1}, 1);
    EXPECT_EQ(queue_places_open(&p), 5);
    queue_places_deinit(&p);
}

/* The sums are those of the parts, whatever comes. */
static void sums_hold(void) {
    enum { STEPS = 20000 };
    queue_places p;
    EXPECT(begin(&p));
    queue_place in[ALL + SPARE];
    uint32_t n_in = 0;
    rng g = rng_make(7, 0, 0);
    for (int i = 0; i < STEPS; i++) {
        uint32_t what = (uint32_t)rng_below(&g, 100);
        if (what == 0) {
            queue_places_clear(&p);
            uint32_t left[2] = {100, 100};
            for (uint32_t k = 0; k < TENANTS + MODELS; k++) {
                bool model = k >= TENANTS;
                share_spec s = {(share_policy)rng_below(&g, 3),
                                (uint32_t)rng_below(&g, left[model] + 1), 1};
                queue_places_keep(&p, model ? QUEUE_MODEL : QUEUE_TENANT, model ? k - TENANTS : k,
                                  &s, 1);
                left[model] -= s.percent;
            }
        } else if (what < 45 && n_in > 0) {
            uint32_t k = (uint32_t)rng_below(&g, n_in);
            queue_places_give(&p, in[k]);
            in[k] = in[--n_in];
        } else {
            queue_asker who =
                asker((uint32_t)rng_below(&g, TENANTS), (uint32_t)rng_below(&g, MODELS),
                      (gen_class)(1 + rng_below(&g, 3)));
            uint32_t n = 1 + (uint32_t)rng_below(&g, 40);
            queue_place at = queue_places_choose(&p, &who, n);
            if (at.kind == QUEUE_OPEN && queue_places_open_used(&p) + n > queue_places_open(&p))
                continue;
            for (uint32_t k = 0; k < n; k++) queue_places_take(&p, in[n_in++] = at);
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
        EXPECT(n_in <= ALL + SPARE && queue_places_open(&p) >= ALL * 7 / 16);
    }
    queue_places_deinit(&p);
}

static const test_case tests[] = {
    TEST(without_shares_only_urgent_requests_have_some),
    TEST(a_share_keeps_its_part),
    TEST(all_choices_of_a_request_are_at_one_place),
    TEST(a_whole_share_is_a_quarter),
    TEST(who_is_in_stays_when_shares_change),
    TEST(a_new_share_waits_for_places),
    TEST(who_has_none_kept_is_known_before_the_body),
    TEST(small_queues_keep_what_is_whole),
    TEST(sums_hold),
};

TEST_MAIN(tests)
