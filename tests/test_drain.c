/* test_drain.c - a client that comes back when it was told to is let in. */
#include "test.h"

#include "drain.h"

enum { SECOND_US = 1000000, CLIENTS_MAX = 200 };
static drain_book b;
static uint32_t after_s, other_s;

/* All of n_max places are held, for 10 s each on average: one end per 10 / n_max seconds; the time
 * then. */
static uint64_t run_full(uint32_t n_max) {
    uint64_t now_us = SECOND_US;
    b = (drain_book){0};
    drain_note(&b, n_max, 0, now_us);
    for (int i = 0; i < 100; i++) drain_note(&b, n_max, 1, now_us += 10 * SECOND_US / n_max);
    return now_us;
}

static void a_free_queue_lets_everybody_in(void) {
    b = (drain_book){0};
    EXPECT(drain_admit(&b, 1, false, 3, 3, 0, SECOND_US, &after_s));
    EXPECT(!drain_admit(&b, 1, false, 4, 3, 0, SECOND_US, &after_s));
    EXPECT(after_s >= DRAIN_MIN_S && after_s <= DRAIN_MAX_S);
}

static void how_long_a_place_is_held_is_measured(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(drain_held_us(&b, now_us), 10 * SECOND_US);
    drain_note(&b, 2, 0, now_us); // most are left empty: each is held as long
    for (int i = 0; i < 100; i++) drain_note(&b, 2, 1, now_us += 5 * SECOND_US);
    EXPECT_EQ(drain_held_us(&b, now_us), 10 * SECOND_US);
    b = (drain_book){0};
    drain_note(&b, 4, 0, SECOND_US);
    EXPECT_EQ(drain_held_us(&b, SECOND_US), 4 * SECOND_US); // a guess
    EXPECT_EQ(drain_held_us(&b, 4 * SECOND_US), 6 * SECOND_US);
}

static void the_time_is_that_of_the_places_that_are_missing(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(drain_refuse(&b, 0, 1, 20, now_us), 6);   // 0.75 + 5
    EXPECT_EQ(drain_refuse(&b, 0, 20, 20, now_us), 20); // 15 + 5
    EXPECT_EQ(drain_refuse(&b, 1, 20, 20, now_us), 20);
    EXPECT_EQ(drain_refuse(&b, 2, 20, 20, now_us), 35); // behind the one before
    EXPECT_EQ(drain_refuse(&b, 3, 200, 20, now_us), DRAIN_MAX_S);
}

/* So many of n_max places are free from now on. */
static void set_free(uint32_t n_free, uint32_t n_max, uint64_t now_us) {
    drain_note(&b, n_max - n_free, n_free, now_us);
}

static void a_promise_is_kept_from_newcomers(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!drain_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    uint64_t due_us = now_us + after_s * (uint64_t)SECOND_US;
    set_free(1, 20, due_us);
    EXPECT(!drain_admit(&b, 8, false, 1, 20, 0, due_us, &other_s)); // the one place is promised
    EXPECT(!drain_admit(&b, 7, true, 1, 20, 0, due_us, &other_s));  // it says that it is new
    EXPECT(drain_admit(&b, 7, false, 1, 20, 0, due_us, &other_s));
    set_free(9, 20, due_us);
    EXPECT(drain_admit(&b, 9, false, 1, 20, 0, due_us, &other_s)); // enough for all
}

static void who_comes_early_keeps_its_promise(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!drain_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    EXPECT(after_s > 2);
    EXPECT(!drain_admit(&b, 7, false, 1, 20, 0, now_us + 2 * SECOND_US, &other_s));
    EXPECT_EQ(other_s, after_s - 2);
    EXPECT_EQ(b.n_promises, 1);
    now_us += after_s * (uint64_t)SECOND_US;
    set_free(1, 20, now_us);
    EXPECT(drain_admit(&b, 7, false, 1, 20, 0, now_us, &other_s));
    EXPECT_EQ(b.n_promises, 0);
}

static void who_comes_early_takes_nobodys_place(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!drain_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    EXPECT(!drain_admit(&b, 8, false, 1, 20, 0, now_us, &other_s));
    now_us += after_s * (uint64_t)SECOND_US;
    set_free(1, 20, now_us);
    if (other_s > after_s) EXPECT(!drain_admit(&b, 8, false, 1, 20, 0, now_us, &other_s));
    EXPECT(other_s >= 1);
    EXPECT(drain_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
}

static void what_nobody_comes_for_is_forgotten(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!drain_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    uint64_t late_us = now_us + after_s * (uint64_t)SECOND_US + DRAIN_GRACE_US;
    set_free(1, 20, late_us);
    EXPECT(!drain_admit(&b, 0, true, 1, 20, 0, late_us, &after_s));
    EXPECT(drain_admit(&b, 0, true, 1, 20, 0, late_us + 1, &after_s));
}

static void a_full_book_promises_nothing(void) {
    uint64_t now_us = run_full(20);
    for (uint64_t i = 1; i <= DRAIN_PROMISES_MAX; i++)
        EXPECT(!drain_admit(&b, i, false, 1, 20, 0, now_us, &after_s));
    EXPECT_EQ(b.n_promises, DRAIN_PROMISES_MAX);
    EXPECT(!drain_admit(&b, DRAIN_PROMISES_MAX + 1, false, 1, 20, 0, now_us, &after_s));
    EXPECT_EQ(after_s, DRAIN_MAX_S);
    EXPECT_EQ(b.n_promises, DRAIN_PROMISES_MAX);
}

/* ---- a crowd ---- */

typedef struct client {
    uint64_t at_us; // asks then
    bool told;      // comes back
} client;

typedef struct crowd {
    uint64_t seed;
    uint32_t n_clients, n_places;
    uint64_t serve_us;
    bool bursts; // places come free at multiples of serve_us
} crowd;

static uint64_t draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static uint64_t end_of(crowd *c, uint64_t now_us) {
    if (c->bursts) return now_us + 2 * c->serve_us - now_us % c->serve_us;
    return now_us + c->serve_us / 2 + draw(&c->seed) % c->serve_us;
}

/* Clients that ask, obey, and some time after an answer ask again; of 1,000 first retries, those
 * that pass. */
static uint32_t first_retries(crowd c) {
    static client clients[CLIENTS_MAX];
    static uint64_t ends_us[CLIENTS_MAX];
    uint32_t n_used = 0, n_tried = 0, n_passed = 0;
    b = (drain_book){0};
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
            drain_note(&b, n_used, 1, now_us);
        }
        for (uint32_t i = 0; i < c.n_clients; i++) {
            client *one = &clients[i];
            if (one->at_us > now_us) continue;
            bool in =
                drain_admit(&b, i + 1, false, 1, c.n_places, c.n_places / 4, now_us, &after_s);
            n_tried += one->told;
            n_passed += one->told && in;
            one->told = !in && !one->told; // after its first retry it begins anew
            uint64_t us = in ? 2 * SECOND_US + draw(&c.seed) % (4 * SECOND_US)
                             : after_s * (uint64_t)SECOND_US + draw(&c.seed) % 20000;
            one->at_us = now_us + us;
            if (!in) continue;
            ends_us[n_used++] = end_of(&c, now_us);
            drain_note(&b, n_used, 0, now_us);
        }
    }
    return n_tried == 0 ? 1000 : (uint32_t)((uint64_t)n_passed * 1000 / n_tried);
}

static void nine_of_ten_first_retries_pass(void) {
    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint32_t steady = first_retries((crowd){seed, 200, 20, 2 * SECOND_US, false});
        uint32_t slow = first_retries((crowd){seed, 100, 20, 8 * SECOND_US, false});
        uint32_t bursts = first_retries((crowd){seed, 100, 20, 3 * SECOND_US, true});
        printf("seed %llu: of 1000 first retries pass %u, slow %u, in bursts %u\n",
               (unsigned long long)seed, steady, slow, bursts);
        EXPECT(steady >= 900);
        EXPECT(slow >= 900);
        EXPECT(bursts >= 900);
    }
}

static const test_case cases[] = {
    TEST(a_free_queue_lets_everybody_in),
    TEST(how_long_a_place_is_held_is_measured),
    TEST(the_time_is_that_of_the_places_that_are_missing),
    TEST(a_promise_is_kept_from_newcomers),
    TEST(who_comes_early_keeps_its_promise),
    TEST(who_comes_early_takes_nobodys_place),
    TEST(what_nobody_comes_for_is_forgotten),
    TEST(a_full_book_promises_nothing),
    TEST(nine_of_ten_first_retries_pass),
};
TEST_MAIN(cases)
