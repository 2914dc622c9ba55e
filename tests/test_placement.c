/* test_placement.c - models on devices: each inequality just kept and just broken, the scores by
 * hand, plans of moves checked step by step, and an hour of models that come and go. */
#include "test.h"

#include "scheduler/placement.h"

static char text[FEASIBLE_TEXT_BYTES];
static const uint64_t page_bytes = 2 << 20;

static uint64_t random_state;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static placement_device device_of(uint32_t n_pages) {
    return (placement_device){
        .page_bytes = page_bytes, .capacity_pages = n_pages, .free_pages = n_pages};
}

static placement_wanted model_of(uint32_t weight_pages) {
    placement_wanted w = {.n_replicas = 1, .distinct = true};
    for (int i = 0; i < PLACEMENT_KINDS_MAX; i++) w.need[i].weight_pages = weight_pages;
    return w;
}

static placement_wanted with_share(placement_wanted w, uint32_t percent) {
    w.share_percent = percent;
    return w;
}

static placement_wanted with_target(placement_wanted w, uint32_t cost_us, uint32_t period_us) {
    for (int i = 0; i < PLACEMENT_KINDS_MAX; i++) w.need[i].cost_us = cost_us;
    w.period_us = period_us;
    return w;
}

static void expect_why(const placement_device *d, const placement_wanted *w,
                       placement_reason reason, const char *sentence) {
    placement_why why;
    EXPECT_EQ(placement_check(d, w, 0, &why), reason == PLACEMENT_OK);
    EXPECT_EQ(why.reason, reason);
    placement_say(&why, text, sizeof text);
    EXPECT_STR(text, sentence);
    EXPECT_EQ(placement_check(d, w, 0, NULL), reason == PLACEMENT_OK);
}

/* ---- may it go there ---- */

static void memory_is_weights_and_least_kv(void) {
    placement_device d = device_of(100);
    d.free_pages = 60;
    placement_wanted w = model_of(50);
    w.need[0].kv_pages = 10;
    expect_why(&d, &w, PLACEMENT_OK, "it fits");
    w.need[0].kv_pages = 11;
    expect_why(&d, &w, PLACEMENT_MEMORY,
               "memory: weights and least keys and values 122 MiB > 120 MiB available");
    w.need[0].weight_pages = UINT32_MAX - 1; // sums do not wrap
    EXPECT(!placement_check(&d, &w, 0, NULL));
}

static void guarantees_are_at_most_the_capacity(void) {
    placement_device d = device_of(100);
    d.guaranteed_pages = 60;
    placement_wanted w = model_of(1);
    w.need[0].min_pages = 40;
    expect_why(&d, &w, PLACEMENT_OK, "it fits");
    w.need[0].min_pages = 41;
    expect_why(&d, &w, PLACEMENT_GUARANTEE,
               "guarantees: 202 MiB including its own > 200 MiB capacity");
}

static void shares_are_at_most_one_device(void) {
    placement_device d = device_of(100);
    d.share_percent = 70;
    placement_wanted w = with_share(model_of(1), 30);
    expect_why(&d, &w, PLACEMENT_OK, "it fits");
    w = with_share(w, 31);
    expect_why(&d, &w, PLACEMENT_SHARE, "shares: 101 % including its own > 100 %");
    /* A whole device: nobody else with a guaranteed share, but its memory is not taken. */
    d.share_percent = 100;
    w = with_share(w, 1);
    EXPECT(!placement_check(&d, &w, 0, NULL));
    w = with_share(model_of(100), 0);
    expect_why(&d, &w, PLACEMENT_OK, "it fits");
    d.share_percent = 130; // the operator has changed them: who wants none may come all the same
    expect_why(&d, &w, PLACEMENT_OK, "it fits");
}

static void a_share_too_small_for_the_target_is_refused(void) {
    placement_device d = device_of(100);
    placement_wanted w = with_share(with_target(model_of(1), 6000, 40000), 15);
    expect_why(&d, &w, PLACEMENT_OK, "it fits");
    w.share_percent = 10;
    expect_why(&d, &w, PLACEMENT_SLOW,
               "a step of 6.0 ms at a share of 10 % takes 60.0 ms > 40.0 ms per token; 15 % is "
               "enough");
}

static void targets_of_all_are_kept(void) {
    placement_device d = device_of(100);
    placement_wanted w = with_target(model_of(1), 6000, 30000);
    for (int i = 0; i < 4; i++) {
        expect_why(&d, &w, PLACEMENT_OK, "it fits"); // the fourth: 0.8 + 0.2
        placement_add(&d, &w);
    }
    expect_why(&d, &w, PLACEMENT_DEADLINES,
               "targets per token: 1.000000 + 0.200000 = 1.200000 > 1");
    placement_wanted calm = with_target(model_of(1), 6000, 0); // waits itself, and is waited for
    EXPECT(placement_check(&d, &calm, 0, NULL));
    calm = with_target(model_of(1), 6001, 0);
    EXPECT(!placement_check(&d, &calm, 0, NULL));
    /* The same numbers as feasible_tasks_check. */
    feasible_task tasks[] = {
        {6000, 30000, 0}, {6000, 30000, 0}, {6000, 30000, 0}, {6000, 30000, 0}, {6001, 0, 0}};
    feasible_tasks f;
    EXPECT(!feasible_tasks_check(tasks, 5, &f));
    placement_why why;
    placement_check(&d, &calm, 0, &why);
    EXPECT_EQ(why.need, f.total_ppm);
    EXPECT_EQ(why.sum_ppm, f.sum_ppm);
    d.load = (feasible_load){600000001, 1, 30000, 6000, 0}; // over by a billionth
    expect_why(&d, &w, PLACEMENT_DEADLINES,
               "targets per token: 0.800001 + 0.200000 = 1.000001 > 1");
}

static void some_devices_take_nothing(void) {
    placement_device d = device_of(100);
    placement_wanted w = model_of(1);
    d.drained = true;
    expect_why(&d, &w, PLACEMENT_DRAINED, "the device is drained");
    d.drained = false, d.kind = 1;
    w.need[1].weight_pages = PLACEMENT_NO_WEIGHTS;
    expect_why(&d, &w, PLACEMENT_KIND, "the model does not run on this kind of device");
    d.kind = 2;
    placement_why why;
    EXPECT(!placement_check(&d, &w, 1, &why));
    EXPECT_EQ(why.reason, PLACEMENT_TAKEN);
    placement_say(&why, text, sizeof text);
    EXPECT_STR(text, "the device already has a replica of it");
    w.distinct = false;
    EXPECT(placement_check(&d, &w, 1, &why));
}

static void placing_is_counted(void) {
    placement_device d = device_of(100);
    placement_wanted w = with_share(with_target(model_of(30), 6000, 40000), 25);
    w.need[0].kv_pages = 10, w.need[0].min_pages = 35, w.pressure = 7;
    placement_add(&d, &w);
    EXPECT_EQ(d.free_pages, 60);
    EXPECT_EQ(d.guaranteed_pages, 35);
    EXPECT_EQ(d.share_percent, 25);
    EXPECT_EQ(d.pressure, 7);
    EXPECT_EQ(d.load.sum_ppb, 150000000);
    EXPECT_EQ(d.load.n_tasks, 1);
    w.need[0].weight_pages = UINT32_MAX - 1, w.pressure = UINT64_MAX; // overcommitted stays full
    placement_add(&d, &w);
    EXPECT_EQ(d.free_pages, 0);
    EXPECT(d.pressure == UINT64_MAX);
}

/* ---- scores ---- */

static void what_is_equal_goes_to_the_first(void) {
    placement_device d[3] = {device_of(100), device_of(100), device_of(100)};
    placement_wanted w = model_of(10);
    uint32_t chosen[PLACEMENT_REPLICAS_MAX];
    EXPECT_EQ(placement_choose(d, 3, &w, chosen, NULL), 1);
    EXPECT_EQ(chosen[0], 0);
}

static void pressure_is_demand_over_patience(void) {
    /* 100 tokens/s of 128 KiB at 50 ms: 12.5 MiB/s per 0.05 s */
    EXPECT_EQ(placement_pressure(100000, 131072, 50000), 131072 * 100 * 20);
    EXPECT_EQ(placement_pressure(100000, 131072, 0), 131072 * 100); // calm: as if 1 s
    EXPECT_EQ(placement_pressure(1, 1000, 1000000), 1);             // a token in 1000 s
    EXPECT(placement_pressure(UINT64_MAX, 2, 1) == UINT64_MAX);
}

static void balanced_keeps_the_largest_ratio_small(void) {
    placement_device d[3] = {device_of(100), device_of(100), device_of(100)};
    d[0].pressure = 900, d[0].free_pages = 90;
    d[1].pressure = 100, d[1].free_pages = 20;
    d[2].pressure = 400, d[2].free_pages = 60;
    placement_wanted w = model_of(10);
    w.pressure = 200;
    /* Afterwards 1100/80 = 13.75 | 300/10 = 30 | 600/50 = 12, and 10 on the first otherwise. */
    uint32_t chosen[PLACEMENT_REPLICAS_MAX];
    EXPECT_EQ(placement_choose(d, 3, &w, chosen, NULL), 1);
    EXPECT_EQ(chosen[0], 2);
    d[2].free_pages = 40; // 20 there now
    EXPECT_EQ(placement_choose(d, 3, &w, chosen, NULL), 1);
    EXPECT_EQ(chosen[0], 0);
    /* The worst device is made worse by nobody: 300/60 against 700/30. */
    d[0] = device_of(100), d[0].pressure = 4000, d[0].free_pages = 30;
    w = model_of(20), w.pressure = 200;
    d[1].pressure = 500, d[1].free_pages = 50;
    d[2].pressure = 100, d[2].free_pages = 80;
    EXPECT_EQ(placement_choose(d, 3, &w, chosen, NULL), 1);
    EXPECT_EQ(chosen[0], 2);
    /* No room for keys and values at all is worse than any number. */
    d[2].free_pages = 20;
    EXPECT_EQ(placement_choose(d, 3, &w, chosen, NULL), 1);
    EXPECT_EQ(chosen[0], 1);
    w.pressure = d[2].pressure = 0; // unless nobody wants any
    EXPECT_EQ(placement_choose(d, 3, &w, chosen, NULL), 1);
    EXPECT_EQ(chosen[0], 2);
}

/* What placement.h says of balanced: whatever else could be chosen, the largest ratio is no
 * smaller. */
static void balanced_is_best_for_the_worst_device(void) {
    random_state = 2;
    for (int k = 0; k < 500; k++) {
        placement_device d[5];
        for (int i = 0; i < 5; i++) {
            d[i] = device_of(100);
            d[i].free_pages = 20 + random_below(80), d[i].pressure = random_below(5000);
        }
        placement_wanted w = model_of(1 + random_below(19));
        w.pressure = random_below(3000);
        uint32_t chosen[PLACEMENT_REPLICAS_MAX];
        EXPECT_EQ(placement_choose(d, 5, &w, chosen, NULL), 1);
        double best = HUGE_VAL, of_chosen = 0;
        for (uint32_t g = 0; g < 5; g++) {
            double largest = 0;
            for (uint32_t i = 0; i < 5; i++) {
                double pressure = (double)(d[i].pressure + (i == g ? w.pressure : 0));
                double ratio = pressure / (d[i].free_pages - (i == g ? w.need[0].weight_pages : 0));
                if (ratio > largest) largest = ratio;
            }
            if (largest < best) best = largest;
            if (g == chosen[0]) of_chosen = largest;
        }
        EXPECT_NEAR(of_chosen, best, 1e-9);
    }
}

static void replicas_go_to_distinct_devices_and_stay(void) {
    placement_device d[4] = {device_of(100), device_of(100), device_of(100), device_of(100)};
    d[1].drained = true;
    placement_wanted w = model_of(10);
    w.n_replicas = 3, w.here[2] = 1;
    uint32_t chosen[PLACEMENT_REPLICAS_MAX];
    placement_why whys[4];
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, whys), 2);
    EXPECT_EQ(chosen[0], 0);
    EXPECT_EQ(chosen[1], 3);
    w.n_replicas = 4; // one too many: as many as fit, and why not
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, whys), 2);
    EXPECT_EQ(whys[0].reason, PLACEMENT_TAKEN);
    EXPECT_EQ(whys[1].reason, PLACEMENT_DRAINED);
    EXPECT_EQ(whys[2].reason, PLACEMENT_TAKEN);
    w.all = true;
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, whys), 0);
    w.distinct = false, w.here[2] = 0, w.n_replicas = 12; // ten fill the fullest first
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, whys), 12);
    EXPECT_EQ(chosen[9], 0);
    EXPECT_EQ(chosen[10], 2);
    w.n_replicas = 0;
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, whys), 0);
}

/* ---- shares over several devices ---- */

static const uint64_t gib = (uint64_t)1 << 30;

static void eighteen_gib_and_240_percent_on_three_devices(void) {
    for (uint32_t k = 0; k < 3; k++) {
        EXPECT_EQ(placement_part(18 * gib, page_bytes, 3, k), 6 * gib);
        EXPECT_EQ(placement_part(240, 1, 3, k), 80);
    }

    /* And so it is placed: three devices with 80 % and 6 GiB left, or none. */
    placement_device d[4];
    for (int i = 0; i < 4; i++) d[i] = device_of(5000), d[i].share_percent = 20;
    placement_wanted w = with_share(model_of(1000), 80);
    w.need[0].min_pages = (uint32_t)(6 * gib / page_bytes);
    w.n_replicas = 3, w.all = true;
    uint32_t chosen[PLACEMENT_REPLICAS_MAX];
    d[1].share_percent = 21;
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, NULL), 3);
    EXPECT(chosen[0] == 0 && chosen[1] == 2 && chosen[2] == 3);
    d[3].guaranteed_pages = 5000 - 3072 + 1;
    EXPECT_EQ(placement_choose(d, 4, &w, chosen, NULL), 0);
}

static void parts_add_up_and_the_first_is_the_largest(void) {
    random_state = 9;
    for (int i = 0; i < 1000; i++) {
        uint32_t n = 1 + random_below(8);
        uint64_t total = ((uint64_t)random_below(1000) << 24) + random_below(1 << 24), sum = 0;
        uint64_t first = placement_part(total, page_bytes, n, 0);
        for (uint32_t k = 0; k < n; k++) {
            uint64_t part = placement_part(total, page_bytes, n, k);
            sum += part;
            EXPECT(part <= first && first - part < 2 * page_bytes);
            if (k > 0) EXPECT_EQ(part % page_bytes, 0);
        }
        EXPECT_EQ(sum, total);
    }
    EXPECT_EQ(placement_part(10, 1, 4, 1), 3); // 3, 3, 2, 2
    EXPECT_EQ(placement_part(10, 1, 4, 2), 2);
}

/* ---- moves ---- */

enum { MODELS_MAX = 200 };
static placement_device empty[8];
static uint32_t n_devices;
static placement_wanted models[MODELS_MAX + 1]; // copy i is of model i
static placement_copy copies[MODELS_MAX];
static uint32_t n_copies;

static void set_devices(uint32_t n, uint32_t n_pages) {
    n_devices = n, n_copies = 0;
    for (uint32_t g = 0; g < n; g++) empty[g] = device_of(n_pages);
}

static void put(placement_wanted w, uint32_t device_idx) {
    models[n_copies] = w;
    copies[n_copies] = (placement_copy){n_copies, device_idx, false};
    n_copies++;
}

static void fill(placement_device *d) {
    placement_fill(empty, n_devices, models, copies, n_copies, d);
}

static uint32_t copies_of(uint32_t model_idx, uint32_t device_idx) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_copies; i++)
        n += copies[i].model_idx == model_idx && copies[i].device_idx == device_idx;
    return n;
}

/* Carry the plan out as an executor would: target first, both copies counted. */
static void carry_out(const placement_plan *plan, uint32_t model_idx) {
    placement_device d[8];
    EXPECT(plan->n_moves <= PLACEMENT_MOVES_MAX);
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < plan->n_moves; i++) {
        placement_move m = plan->moves[i];
        placement_copy *c = &copies[m.copy_idx];
        EXPECT_EQ(c->device_idx, m.from);
        EXPECT(!c->pinned && m.to != m.from);
        fill(d);
        placement_why why;
        bool ok =
            placement_check(&d[m.to], &models[c->model_idx], copies_of(c->model_idx, m.to), &why);
        EXPECT(ok);
        c->device_idx = m.to;
        n_bytes += models[c->model_idx].need[empty[m.to].kind].weight_pages * page_bytes;
    }
    EXPECT_EQ(plan->moved_bytes, n_bytes);
    fill(d);
    EXPECT(placement_check(&d[plan->device_idx], &models[model_idx],
                           copies_of(model_idx, plan->device_idx), NULL));
}

static bool plan_moves(placement_plan *plan) { // for the model behind those placed
    return placement_plan_moves(empty, n_devices, models, copies, n_copies, n_copies,
                                PLACEMENT_TRIES_MAX, plan);
}

static void one_move_makes_room(void) {
    set_devices(2, 100);
    put(model_of(60), 0);
    put(model_of(20), 0);
    put(model_of(70), 1);
    models[n_copies] = model_of(40); // 20 and 30 are free
    placement_plan plan;
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, 1);
    EXPECT_EQ(plan.moves[0].copy_idx, 1);
    EXPECT_EQ(plan.moves[0].to, 1);
    EXPECT_EQ(plan.device_idx, 0);
    EXPECT_EQ(plan.moved_bytes, 20 * page_bytes);
    placement_plan none; // with fewer tries than it takes
    EXPECT(!placement_plan_moves(empty, 2, models, copies, n_copies, n_copies, 0, &none));
    carry_out(&plan, n_copies);
}

static void no_move_when_it_fits_and_none_when_nothing_helps(void) {
    set_devices(2, 100);
    put(model_of(60), 0);
    put(model_of(70), 1);
    placement_plan plan;
    models[n_copies] = model_of(40);
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, 0);
    EXPECT_EQ(plan.device_idx, 0);
    models[n_copies] = model_of(41);
    EXPECT(!plan_moves(&plan));
    EXPECT_EQ(plan.device_idx, PLACEMENT_NOWHERE);
    models[n_copies] = model_of(101);
    EXPECT(!plan_moves(&plan));
}

static void two_models_swap_placements(void) {
    set_devices(2, 100);
    put(model_of(40), 0);
    put(model_of(30), 0); // 30 free
    put(model_of(25), 1);
    put(model_of(57), 1);            // 18 free
    models[n_copies] = model_of(45); // 40 against 25: 45 free, and 3
    placement_plan plan;
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, 2);
    copies[2].pinned = true; // neither of them moves
    placement_plan none;
    EXPECT(!plan_moves(&none));
    copies[2].pinned = false;
    carry_out(&plan, n_copies);
}

static void one_leaves_for_a_third_device(void) {
    set_devices(3, 100);
    put(model_of(60), 0);
    copies[0].pinned = true;
    put(model_of(40), 0);
    put(model_of(75), 1);
    copies[2].pinned = true;
    put(model_of(20), 1);
    put(model_of(79), 2);
    copies[4].pinned = true;
    models[n_copies] = model_of(25); // 0 5 21 free: 20 leaves for the third, 25 are free
    placement_plan plan;
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, 1);
    carry_out(&plan, n_copies);
    copies[3].device_idx = 1;
    put(model_of(1), 2);
    models[1] = model_of(24);        // 16 5 20 free: 20 leaves for the third ...
    models[n_copies] = model_of(40); // ... and 24 takes its place
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, 2);
    EXPECT_EQ(plan.moves[0].copy_idx, 3);
    EXPECT_EQ(plan.moves[0].to, 2);
    EXPECT_EQ(plan.moves[1].copy_idx, 1);
    EXPECT_EQ(plan.moves[1].to, 1);
    EXPECT_EQ(plan.device_idx, 0);
    carry_out(&plan, n_copies);
}

static void a_plan_has_so_many_moves_and_no_more(void) {
    set_devices(2, 100);
    for (int i = 0; i < PLACEMENT_MOVES_MAX; i++) put(model_of(2), 0);
    put(model_of(76), 1);
    copies[n_copies - 1].pinned = true;
    models[n_copies] = model_of(100);
    placement_plan plan;
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, PLACEMENT_MOVES_MAX);
    carry_out(&plan, n_copies);
    set_devices(2, 100);
    for (int i = 0; i < PLACEMENT_MOVES_MAX + 1; i++) put(model_of(1), 0);
    put(model_of(76), 1);
    copies[n_copies - 1].pinned = true;
    models[n_copies] = model_of(100);
    EXPECT(!plan_moves(&plan));
}

static void pinned_ones_and_drained_devices_are_left_alone(void) {
    set_devices(2, 100);
    put(model_of(60), 0);
    put(model_of(20), 0);
    put(model_of(70), 1);
    models[n_copies] = model_of(40);
    placement_plan plan;
    copies[1].pinned = true;
    EXPECT(!plan_moves(&plan));
    copies[1].pinned = false;
    empty[1].drained = true; // takes nothing
    EXPECT(!plan_moves(&plan));
    empty[1].drained = false, empty[0].drained = true; // is not made room on
    EXPECT(!plan_moves(&plan));
}

static void replicas_stay_apart_when_moved(void) {
    set_devices(2, 100);
    put(model_of(60), 0);
    put(model_of(20), 0);
    put(model_of(50), 1);
    copies[n_copies] = (placement_copy){1, 1, false}; // a second replica of model 1
    n_copies++;
    models[n_copies] = model_of(40);
    placement_plan plan;
    EXPECT(!plan_moves(&plan));
    models[1].distinct = false;
    EXPECT(plan_moves(&plan));
    carry_out(&plan, n_copies);
    /* One more of a model that is there already does not go beside it. */
    set_devices(2, 100);
    put(model_of(30), 0);
    put(model_of(80), 1);
    EXPECT(
        !placement_plan_moves(empty, 2, models, copies, n_copies, 0, PLACEMENT_TRIES_MAX, &plan));
    models[1] = model_of(70);
    EXPECT(placement_plan_moves(empty, 2, models, copies, n_copies, 0, PLACEMENT_TRIES_MAX, &plan));
    EXPECT_EQ(plan.device_idx, 1);
}

static void room_is_made_for_shares_and_targets_too(void) {
    set_devices(2, 100);
    put(with_share(model_of(1), 60), 0);
    put(with_share(model_of(1), 20), 0);
    put(with_share(model_of(1), 70), 1);
    models[n_copies] = with_share(model_of(1), 40);
    placement_plan plan;
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.moves[0].copy_idx, 1);
    carry_out(&plan, n_copies);

    set_devices(2, 100);
    put(with_target(model_of(5), 10000, 40000), 0); // 0.25 each
    put(with_target(model_of(4), 10000, 40000), 0);
    put(with_target(model_of(4), 10000, 40000), 1);
    models[n_copies] = with_target(model_of(1), 15000, 40000);
    placement_device d[8];
    fill(d);
    EXPECT(!placement_check(&d[0], &models[n_copies], 0, NULL)); // 0.875 + 0.375
    EXPECT(placement_check(&d[1], &models[n_copies], 0, NULL));  // 0.625 + 0.375
    put(with_target(model_of(3), 2000, 40000), 1);
    models[n_copies] = with_target(model_of(1), 15000, 40000);
    EXPECT(plan_moves(&plan)); // the little one leaves
    EXPECT_EQ(plan.n_moves, 1);
    EXPECT_EQ(plan.moves[0].copy_idx, 3);
    carry_out(&plan, n_copies);
}

static void the_cheapest_plan_wins(void) {
    set_devices(3, 100);
    put(model_of(50), 0);
    put(model_of(30), 0); // 20 free
    put(model_of(75), 1);
    put(model_of(10), 1); // 15 free
    put(model_of(60), 2); // 40 free
    models[n_copies] = model_of(25);
    placement_plan plan;
    EXPECT(plan_moves(&plan)); // fits on the third as it is
    EXPECT_EQ(plan.n_moves, 0);
    EXPECT_EQ(plan.device_idx, 2);
    empty[2].free_pages = 84; // 24 free
    EXPECT(plan_moves(&plan));
    EXPECT_EQ(plan.n_moves, 1);
    EXPECT_EQ(plan.moves[0].copy_idx, 3);
    EXPECT_EQ(plan.device_idx, 1);
}

static void a_search_is_bounded(void) {
    set_devices(8, 1000);
    for (uint32_t i = 0; i < MODELS_MAX; i++) put(model_of(30 + i % 21), i % 8);
    models[n_copies] = model_of(900);
    placement_plan plan;
    plan_moves(&plan);
    EXPECT(plan.n_tries > 0 && plan.n_tries < 2 * PLACEMENT_TRIES_MAX);
}

/* ---- an hour of churn ---- */

static const uint32_t gib_pages = 512;
static const uint32_t sizes_gib[] = {1, 3, 8, 16, 28, 64};

static void arrive(uint32_t n_sizes, uint32_t *used_pages, uint32_t *n_moves) {
    uint32_t pages = sizes_gib[random_below(n_sizes)] * gib_pages;
    pages += pages / 32 * random_below(4);
    placement_wanted w = model_of(pages);
    placement_device d[8];
    fill(d);
    uint32_t chosen = PLACEMENT_NOWHERE;
    if (placement_choose(d, n_devices, &w, &chosen, NULL) == 0) {
        placement_plan plan;
        models[n_copies] = w;
        if (!plan_moves(&plan)) return; // refused
        carry_out(&plan, n_copies);
        *n_moves += plan.n_moves;
        chosen = plan.device_idx;
    }
    put(w, chosen);
    *used_pages += pages;
}

static void leave(uint32_t *used_pages) {
    uint32_t i = random_below(n_copies);
    *used_pages -= models[i].need[0].weight_pages;
    n_copies--;
    models[i] = models[n_copies];
    copies[i] = copies[n_copies];
    copies[i].model_idx = i;
}

/* Pages of the largest model that can be placed, with moves, to a GiB. */
static uint32_t find_largest(uint32_t low, uint32_t high) {
    while (high - low > gib_pages) {
        uint32_t middle = low + (high - low) / 2;
        placement_plan plan;
        models[n_copies] = model_of(middle);
        if (plan_moves(&plan))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Could the models, the largest first, and one of x pages be packed anew?  Every way is tried, but
 * 100000 steps without an answer count as yes. */
static uint32_t to_pack[MODELS_MAX + 1], n_to_pack, left[8], n_pack_steps;

static bool pack_from(uint32_t i) {
    if (i == n_to_pack || ++n_pack_steps > 100000) return true;
    for (uint32_t g = 0; g < n_devices; g++) {
        bool tried = false;
        for (uint32_t k = 0; k < g; k++) tried |= left[k] == left[g];
        if (tried || left[g] < to_pack[i]) continue;
        left[g] -= to_pack[i];
        bool packed = pack_from(i + 1);
        left[g] += to_pack[i];
        if (packed) return true;
    }
    return false;
}

static int descending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? 1 : -(x > y);
}

static bool could_be_packed(uint32_t x) {
    n_to_pack = 0, n_pack_steps = 0;
    for (uint32_t i = 0; i < n_copies; i++) to_pack[n_to_pack++] = models[i].need[0].weight_pages;
    to_pack[n_to_pack++] = x;
    qsort(to_pack, n_to_pack, sizeof to_pack[0], descending);
    for (uint32_t g = 0; g < n_devices; g++) left[g] = empty[g].capacity_pages;
    return pack_from(0);
}

/* The largest that any arrangement of the models leaves room for: at most all that is free. */
static uint32_t find_theory(uint32_t low, uint32_t high) {
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;
        if (could_be_packed(middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Ten events a minute around an occupancy.  In theory the free pages of all devices could be on
 * one: nothing can be larger than that, or than a device. */
static void churn(uint32_t seed, uint32_t occupancy_percent, uint32_t n_sizes, double *without) {
    random_state = seed;
    set_devices(4 + random_below(5), 141 * gib_pages);
    uint32_t total = n_devices * 141 * gib_pages, used = 0, n_moves = 0;
    for (int i = 0; i < 600; i++) {
        uint64_t percent = (uint64_t)used * 100 / total;
        bool more = percent < occupancy_percent - 5 ||
                    (percent < occupancy_percent + 5 && random_below(2) == 0);
        if (more && n_copies < MODELS_MAX)
            arrive(n_sizes, &used, &n_moves);
        else if (n_copies > 0)
            leave(&used);
    }
    placement_device d[8];
    fill(d);
    uint32_t largest_free = 0, all_free = 0;
    for (uint32_t g = 0; g < n_devices; g++) {
        all_free += d[g].free_pages;
        largest_free = u32_max(largest_free, d[g].free_pages);
    }
    EXPECT_EQ(all_free, total - used);
    uint32_t theory = find_theory(largest_free, u32_min(all_free, 141 * gib_pages));
    uint32_t largest = find_largest(largest_free, theory);
    *without += (double)largest_free / theory;
    if (largest < theory / 10 * 9)
        printf("seed %u: %u models on %u devices, %u moves, largest %u of %u pages, %u before\n",
               seed, n_copies, n_devices, n_moves, largest, theory, largest_free);
    EXPECT(largest >= theory / 10 * 9);
}

static void after_an_hour_of_churn_a_large_model_still_fits(void) {
    double without = 0;
    printf("seeds 1 to 20\n");
    for (uint32_t seed = 1; seed <= 10; seed++) churn(seed, 80, 5, &without);
    for (uint32_t seed = 11; seed <= 20; seed++) churn(seed, 70, 6, &without);
    printf("without moves at the end: %.2f of the theory, mean\n", without / 20);
    EXPECT(without / 20 < 0.9); // else the moves were not what is tested
}

/* ---- routing ---- */

static void the_longest_prefix_in_time_wins(void) {
    placement_replica r[] = {{0, 0, 10000, 50000, true, false},
                             {1, 512, 100000, 30000, true, false},
                             {2, 1024, 190000, 20000, true, false}};
    EXPECT_EQ(placement_route(r, 3, 210000), 2); // 210 ms is in time
    EXPECT_EQ(placement_route(r, 3, 209999), 1);
    EXPECT_EQ(placement_route(r, 3, 129999), 0);
    EXPECT_EQ(placement_route(r, 3, 1000), 0); // no replica is in time: the least TTFT
    EXPECT_EQ(placement_route(r, 3, 0), 0);    // no target
    r[0].queue_us = 200000;
    EXPECT_EQ(placement_route(r, 3, 1000), 1);
}

static void the_fullest_is_filled_first(void) {
    placement_replica r[] = {{0, 64, 10000, 10000, true, false},
                             {1, 64, 60000, 10000, true, false},
                             {2, 64, 95000, 10000, true, false}};
    EXPECT_EQ(placement_route(r, 3, 200000), 1); // the third is over half
    EXPECT_EQ(placement_route(r, 3, 210000), 2); // 105 ms of 210
    EXPECT_EQ(placement_route(r, 3, 40000), 0);
    EXPECT_EQ(placement_route(r, 3, 38000), 0); // no replica is below half: the least
    r[1].passes_admission = false;
    EXPECT_EQ(placement_route(r, 3, 200000), 0);
    r[1].passes_admission = true, r[1].draining = true;
    EXPECT_EQ(placement_route(r, 3, 200000), 0);
    r[0].draining = r[2].draining = true;
    EXPECT_EQ(placement_route(r, 3, 200000), PLACEMENT_NOWHERE);
    EXPECT_EQ(placement_route(r, 0, 200000), PLACEMENT_NOWHERE);
    placement_replica same[] = {{3, 0, 5, 5, true, false}, {2, 0, 5, 5, true, false}};
    EXPECT_EQ(placement_route(same, 2, 0), 1); // the first device, not the first in the list
    EXPECT_EQ(placement_route(same, 2, 100), 1);
    same[1].queue_us = same[1].prompt_us = UINT64_MAX; // no sum wraps
    EXPECT_EQ(placement_route(same, 2, 0), 0);
}

/* Requests that one replica of three can serve: the others get nothing and become empty. */
static void the_last_replica_empties(void) {
    uint64_t busy_until[3] = {400000, 300000, 350000};
    uint32_t n_served[3] = {0}, n_late = 0;
    random_state = 1;
    for (uint64_t now = 0; now < 20000000; now += 20000 + random_below(20000)) {
        placement_replica r[3];
        for (uint32_t i = 0; i < 3; i++) {
            uint64_t queue_us = busy_until[i] > now ? busy_until[i] - now : 0;
            r[i] = (placement_replica){i, 0, queue_us, 20000, true, false};
        }
        uint32_t k = placement_route(r, 3, 1000000);
        n_late += r[k].queue_us + r[k].prompt_us > 1000000;
        busy_until[k] = (busy_until[k] > now ? busy_until[k] : now) + 20000;
        if (now > 10000000) n_served[k]++;
    }
    EXPECT_EQ(n_late, 0);
    EXPECT(n_served[0] > 300);
    EXPECT_EQ(n_served[1], 0);
    EXPECT_EQ(n_served[2], 0);
}

static const test_case cases[] = {
    TEST(memory_is_weights_and_least_kv),
    TEST(guarantees_are_at_most_the_capacity),
    TEST(shares_are_at_most_one_device),
    TEST(a_share_too_small_for_the_target_is_refused),
    TEST(targets_of_all_are_kept),
    TEST(some_devices_take_nothing),
    TEST(placing_is_counted),
    TEST(what_is_equal_goes_to_the_first),
    TEST(pressure_is_demand_over_patience),
    TEST(balanced_keeps_the_largest_ratio_small),
    TEST(balanced_is_best_for_the_worst_device),
    TEST(replicas_go_to_distinct_devices_and_stay),
    TEST(eighteen_gib_and_240_percent_on_three_devices),
    TEST(parts_add_up_and_the_first_is_the_largest),
    TEST(one_move_makes_room),
    TEST(no_move_when_it_fits_and_none_when_nothing_helps),
    TEST(two_models_swap_placements),
    TEST(one_leaves_for_a_third_device),
    TEST(a_plan_has_so_many_moves_and_no_more),
    TEST(pinned_ones_and_drained_devices_are_left_alone),
    TEST(replicas_stay_apart_when_moved),
    TEST(room_is_made_for_shares_and_targets_too),
    TEST(the_cheapest_plan_wins),
    TEST(a_search_is_bounded),
    TEST(after_an_hour_of_churn_a_large_model_still_fits),
    TEST(the_longest_prefix_in_time_wins),
    TEST(the_fullest_is_filled_first),
    TEST(the_last_replica_empties),
};
TEST_MAIN(cases)
