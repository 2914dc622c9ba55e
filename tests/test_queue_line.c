/* test_queue_line.c - a client that comes back when it was told to is let in, as a rule. */
#include "test.h"

#include "scheduler/queue_slots.h"

enum { SECOND_US = 1000000, CLIENTS_MAX = 400, SLOTS_MAX = 256 };
static queue_line line;
static uint32_t n_tried_last;

/* All of n_max slots are held, for 10 s each on average: one end per 10 / n_max seconds; the time
 * then. */
static uint64_t run_full(uint32_t n_max) {
    uint64_t now_us = SECOND_US;
    line = (queue_line){0};
    queue_line_note(&line, n_max, 0, now_us);
    for (int i = 0; i < 100; i++)
        queue_line_note(&line, n_max, 1, now_us += 10 * SECOND_US / n_max);
    return now_us;
}

static void how_long_a_slot_is_held_is_measured(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(queue_line_held_us(&line, now_us), 10 * SECOND_US);
    queue_line_note(&line, 2, 0, now_us); // most are left empty: each is held as long
    for (int i = 0; i < 100; i++) queue_line_note(&line, 2, 1, now_us += 5 * SECOND_US);
    EXPECT_EQ(queue_line_held_us(&line, now_us), 10 * SECOND_US);
    line = (queue_line){0};
    queue_line_note(&line, 4, 0, SECOND_US);
    EXPECT_EQ(queue_line_held_us(&line, SECOND_US), 4 * SECOND_US); // a guess
    EXPECT_EQ(queue_line_held_us(&line, 4 * SECOND_US), 6 * SECOND_US);
}

/* 10 s for each of 20 slots, and a quarter: 0.625 s. */
static void the_time_is_that_of_the_line(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(queue_line_join(&line, 1, 20, now_us), 2);   // 3 * 0.625 = 1.875
    EXPECT_EQ(queue_line_join(&line, 20, 20, now_us), 15); // 14.375
    EXPECT_EQ(queue_line_join(&line, 20, 20, now_us), 27); // 26.875: behind the one before
    now_us += 20 * SECOND_US;
    EXPECT_EQ(queue_line_join(&line, 20, 20, now_us), 20);   // it is 20 s shorter: 19.375
    EXPECT_EQ(queue_line_join(&line, 200, 20, now_us), 145); // longer than a minute: the truth
    EXPECT_EQ(queue_line_join(&line, 20000, 20, now_us), QUEUE_FAR_S);
    EXPECT_EQ(queue_line_join(&line, 1, 20, now_us), 20); // and neither is in the line
    now_us += 1000 * (uint64_t)SECOND_US;
    EXPECT_EQ(queue_line_join(&line, 1, 20, now_us), 2);
}

static void each_gets_a_later_time_up_to_a_minute(void) {
    uint64_t now_us = run_full(20);
    uint32_t last_s = 0, n_in_line = 0;
    for (int i = 0; i < 200; i++) {
        uint32_t after_s = queue_line_join(&line, 1, 20, now_us);
        EXPECT(after_s >= last_s && after_s <= QUEUE_MAX_S + 1);
        n_in_line += after_s <= QUEUE_MAX_S;
        last_s = after_s;
    }
    EXPECT_EQ(n_in_line, 94); // (94 + 2) * 0.625 = 60
    EXPECT_EQ(last_s, 61);
}

/* Two seconds of 0.625 s are four slots, rounded up, of 160; the line has less at its end.  Of a
 * few slots a quarter is left, rounded up, and none of one. */
static void first_tries_stay_behind_the_line(void) {
    uint64_t now_us = run_full(20);
    line.sum_us *= 8; // each is held for 80 s
    EXPECT_EQ(queue_line_due(&line, 1, 160, now_us), 0);
    queue_line_join(&line, 16, 160, now_us); // 11.25 s
    EXPECT_EQ(queue_line_due(&line, 1, 160, now_us), 4);
    EXPECT_EQ(queue_line_due(&line, 1, 160, now_us + 11 * SECOND_US), 1);
    EXPECT_EQ(queue_line_due(&line, 1, 160, now_us + 12 * SECOND_US), 0);
    EXPECT_EQ(queue_line_late_us(&line, now_us), 0);
    EXPECT_EQ(queue_line_late_us(&line, now_us + SECOND_US / 2), SECOND_US / 2);
    EXPECT_EQ(queue_line_late_us(&line, now_us + 12 * SECOND_US), SECOND_US / 4); // ended at 11.25
    EXPECT_EQ(queue_line_late_us(&line, now_us + 13 * SECOND_US), 0);
    line.sum_us /= 1000;
    EXPECT_EQ(queue_line_due(&line, 1, 160, now_us), 40);
    EXPECT_EQ(queue_line_due(&line, 1, 2, now_us), 1);
    EXPECT_EQ(queue_line_due(&line, 1, 1, now_us), 0);
}

/* Within a hundredth: an odd number of ends is halved. */
static bool is_about(uint64_t us, uint64_t wanted_us) {
    return us * 100 >= wanted_us * 99 && us * 100 <= wanted_us * 101;
}

static void a_new_pace_is_followed(void) {
    uint64_t now_us = run_full(20);
    for (int i = 0; i < 200; i++) queue_line_note(&line, 20, 1, now_us += SECOND_US / 20);
    EXPECT(is_about(queue_line_held_us(&line, now_us), SECOND_US));
    EXPECT_EQ(queue_line_join(&line, 20, 20, now_us), 2); // 22 * 0.0625 = 1.375
}

/* A batch with answers of equal length: 100 slots come free every 10 s, all at once. */
static void ends_that_come_all_at_once_are_one_measurement(void) {
    uint64_t now_us = SECOND_US;
    line = (queue_line){0};
    for (int k = 0; k < 4; k++) {
        queue_line_note(&line, 100, 0, now_us);
        now_us += 10 * SECOND_US;
        for (uint32_t i = 100; i-- > 0;) queue_line_note(&line, i, 1, now_us);
        EXPECT(is_about(queue_line_held_us(&line, now_us), 10 * SECOND_US));
    }
}

/* Slots are held so shortly that all of a herd would have its turn within the next second; but
 * clients that are told the same second come at the same moment. */
static void a_herd_is_told_different_seconds(void) {
    enum { SLOTS = 4, HERD = 70, HELD_US = 50000 };
    uint64_t now_us = SECOND_US;
    uint32_t n_due[QUEUE_MAX_S + 1] = {0};
    line = (queue_line){0};
    queue_line_note(&line, SLOTS, 0, now_us);
    for (int i = 0; i < 100; i++) queue_line_note(&line, SLOTS, 1, now_us += HELD_US / SLOTS);
    for (uint32_t i = 0; i < HERD; i++) n_due[queue_line_join(&line, 1, SLOTS, now_us)]++;
    for (uint32_t s = 0; s <= QUEUE_MAX_S; s++) EXPECT(n_due[s] <= SLOTS);
}

/* ---- a crowd ---- */

typedef struct client {
    uint64_t at_us; // asks then
    bool told;      // comes back, and says so
} client;

typedef struct crowd {
    uint64_t seed;
    uint32_t n_clients, n_slots;
    uint64_t serve_us;
    bool bursts; // places come free at multiples of serve_us
    bool memoryless;
} crowd;

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static uint64_t end_of(crowd *c, uint64_t now_us) {
    if (c->bursts) return now_us + 2 * c->serve_us - now_us % c->serve_us;
    if (c->memoryless) {
        double u = ((double)(draw(&c->seed) % SECOND_US) + 1) / (SECOND_US + 1);
        return now_us + (uint64_t)(-log(u) * (double)c->serve_us) + 1;
    }
    return now_us + c->serve_us / 2 + draw(&c->seed) % c->serve_us;
}

/* Clients that ask, obey, and some time after an answer ask again; of 1,000 first retries, those
 * that pass. */
static uint32_t first_retries(crowd c) {
    static client clients[CLIENTS_MAX];
    static uint64_t ends_us[SLOTS_MAX];
    uint32_t n_used = 0, n_tried = 0, n_passed = 0;
    queue_slots p = {.n_all = c.n_slots}; // all are open
    for (uint32_t i = 0; i < c.n_clients; i++)
        clients[i] = (client){.at_us = SECOND_US + draw(&c.seed) % SECOND_US};
    for (uint64_t now_us = SECOND_US; n_tried < 2000 && now_us < (uint64_t)4000 * SECOND_US;
         now_us += 10000) {
        for (uint32_t i = 0; i < n_used;) {
            if (ends_us[i] > now_us) {
                i++;
                continue;
            }
            ends_us[i] = ends_us[--n_used];
            queue_slots_give(&p, (queue_slot){QUEUE_OPEN, 0}, 1, true, now_us);
        }
        for (uint32_t i = 0; i < c.n_clients; i++) {
            client *one = &clients[i];
            if (one->at_us > now_us) continue;
            queue_ask ask = {{QUEUE_NO_TENANT, 0, GEN_NORMAL}, 1, one->told};
            queue_slot at;
            uint32_t after_s = 0;
            bool in = queue_slots_ask(&p, &ask, now_us, &at, &after_s) == QUEUE_HAS_SLOTS;
            n_tried += one->told;
            n_passed += one->told && in;
            /* After its first retry it begins anew, and without a promise. */
            one->told = !in && !one->told && after_s <= QUEUE_MAX_S;
            uint64_t us = in ? 2 * SECOND_US + draw(&c.seed) % (4 * SECOND_US)
                             : after_s * (uint64_t)SECOND_US + draw(&c.seed) % 20000;
            one->at_us = now_us + us;
            if (!in) continue;
            ends_us[n_used++] = end_of(&c, now_us);
        }
    }
    n_tried_last = n_tried;
    return n_tried == 0 ? 1000 : (uint32_t)((uint64_t)n_passed * 1000 / n_tried);
}

/* Slots that come free at the same moment are not foreseen: an estimate is of the mean pace. */
static void most_first_retries_pass(void) {
    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint32_t steady = first_retries((crowd){seed, 200, 20, 2 * SECOND_US, false, false});
        uint32_t slow = first_retries((crowd){seed, 100, 20, 8 * SECOND_US, false, false});
        uint32_t bursts = first_retries((crowd){seed, 100, 20, 3 * SECOND_US, true, false});
        printf("seed %llu: of 1000 first retries pass %u, slow %u, in bursts %u\n",
               (unsigned long long)seed, steady, slow, bursts);
        EXPECT(steady >= 900);
        EXPECT(slow >= 900);
        EXPECT(bursts >= 800);
    }
}

/* On these seeds nothing was tuned. */
static void so_do_those_of_other_crowds(void) {
    enum { N_CROWDS = 40, TRIED_LEAST = 50 };
    uint32_t n = 0, worst = 1000;
    uint64_t sum = 0, seed = 20000;
    for (int i = 0; i < N_CROWDS; i++) {
        uint64_t s = ++seed * 7919;
        crowd c = {.seed = s, .n_clients = 50 + (uint32_t)(draw(&s) % 351)};
        c.n_slots = (uint32_t)(4 * pow(SLOTS_MAX / 4, (double)(draw(&s) % 1000) / 999));
        c.serve_us = (uint64_t)(50000 * pow(400, (double)(draw(&s) % 1000) / 999));
        c.memoryless = draw(&s) % 2 == 1;
        uint32_t pass = first_retries(c);
        if (n_tried_last < TRIED_LEAST) continue;
        if (pass < 850)
            printf("seed %llu: %u clients, %u slots for %.2f s%s: %u of 1000 pass\n",
                   (unsigned long long)c.seed, c.n_clients, c.n_slots, (double)c.serve_us / 1e6,
                   c.memoryless ? ", memoryless" : "", pass);
        n++;
        sum += pass;
        if (pass < worst) worst = pass;
    }
    printf("%u crowds: mean %llu, least %u\n", n, (unsigned long long)(sum / n), worst);
    EXPECT(n >= 20 && sum >= 800 * (uint64_t)n && worst >= 600);
}

static const test_case cases[] = {
    TEST(how_long_a_slot_is_held_is_measured),
    TEST(the_time_is_that_of_the_line),
    TEST(each_gets_a_later_time_up_to_a_minute),
    TEST(first_tries_stay_behind_the_line),
    TEST(a_new_pace_is_followed),
    TEST(ends_that_come_all_at_once_are_one_measurement),
    TEST(a_herd_is_told_different_seconds),
    TEST(most_first_retries_pass),
    TEST(so_do_those_of_other_crowds),
};
TEST_MAIN(cases)
