/* test_queue_book.c - a client that comes back when it was told to is let in. */
#include "test.h"

#include "scheduler/queue_slots.h"

enum { SECOND_US = 1000000, CLIENTS_MAX = 400, SLOTS_MAX = 256 };
static queue_book b;
static uint32_t n_tried_last;
static uint32_t after_s, other_s;

/* All of n_max places are held, for 10 s each on average: one end per 10 / n_max seconds; the time
 * then. */
static uint64_t run_full(uint32_t n_max) {
    uint64_t now_us = SECOND_US;
    b = (queue_book){0};
    queue_note(&b, n_max, 0, now_us);
    for (int i = 0; i < 100; i++) queue_note(&b, n_max, 1, now_us += 10 * SECOND_US / n_max);
    return now_us;
}

static void a_free_queue_lets_everybody_in(void) {
    b = (queue_book){0};
    EXPECT(queue_admit(&b, 1, false, 3, 3, 0, SECOND_US, &after_s));
    EXPECT(!queue_admit(&b, 1, false, 4, 3, 0, SECOND_US, &after_s));
    EXPECT(after_s >= QUEUE_MIN_S && after_s <= QUEUE_MAX_S);
}

static void how_long_a_slot_is_held_is_measured(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(queue_held_us(&b, now_us), 10 * SECOND_US);
    queue_note(&b, 2, 0, now_us); // most are left empty: each is held as long
    for (int i = 0; i < 100; i++) queue_note(&b, 2, 1, now_us += 5 * SECOND_US);
    EXPECT_EQ(queue_held_us(&b, now_us), 10 * SECOND_US);
    b = (queue_book){0};
    queue_note(&b, 4, 0, SECOND_US);
    EXPECT_EQ(queue_held_us(&b, SECOND_US), 4 * SECOND_US); // a guess
    EXPECT_EQ(queue_held_us(&b, 4 * SECOND_US), 6 * SECOND_US);
}

static void the_time_is_that_of_the_missing_slots(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(queue_refuse(&b, 0, 1, 20, now_us), 7);   // 1.1 + 5
    EXPECT_EQ(queue_refuse(&b, 0, 20, 20, now_us), 27); // 22 + 5
    EXPECT_EQ(queue_refuse(&b, 1, 20, 20, now_us), 27);
    EXPECT_EQ(queue_refuse(&b, 2, 20, 20, now_us), 49); // behind the one before
    EXPECT_EQ(b.n_reservations, 2);
    EXPECT_EQ(queue_refuse(&b, 3, 200, 20, now_us), 269); // the truth, and no promise
    EXPECT_EQ(queue_refuse(&b, 3, 20000, 20, now_us), QUEUE_FAR_S);
    EXPECT_EQ(b.n_reservations, 2);
}

/* So many of n_max places are free from now on. */
static void set_free(uint32_t n_free, uint32_t n_max, uint64_t now_us) {
    queue_note(&b, n_max - n_free, n_free, now_us);
}

static void a_reservation_is_kept_from_new_requests(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!queue_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    uint64_t due_us = now_us + after_s * (uint64_t)SECOND_US;
    set_free(1, 20, due_us);
    EXPECT(!queue_admit(&b, 8, false, 1, 20, 0, due_us, &other_s)); // the one place is promised
    EXPECT(!queue_admit(&b, 7, true, 1, 20, 0, due_us, &other_s));  // it says that it is new
    EXPECT(queue_admit(&b, 7, false, 1, 20, 0, due_us, &other_s));
    set_free(9, 20, due_us);
    EXPECT(queue_admit(&b, 9, false, 1, 20, 0, due_us, &other_s)); // enough for all
}

static void an_early_client_keeps_its_reservation(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!queue_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    EXPECT(after_s > 2);
    EXPECT(!queue_admit(&b, 7, false, 1, 20, 0, now_us + 2 * SECOND_US, &other_s));
    EXPECT_EQ(other_s, after_s - 2);
    EXPECT_EQ(b.n_reservations, 1);
    now_us += after_s * (uint64_t)SECOND_US;
    set_free(1, 20, now_us);
    EXPECT(queue_admit(&b, 7, false, 1, 20, 0, now_us, &other_s));
    EXPECT_EQ(b.n_reservations, 0);
}

static void an_early_client_takes_no_others_slot(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!queue_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    EXPECT(!queue_admit(&b, 8, false, 1, 20, 0, now_us, &other_s));
    now_us += after_s * (uint64_t)SECOND_US;
    set_free(1, 20, now_us);
    if (other_s > after_s) EXPECT(!queue_admit(&b, 8, false, 1, 20, 0, now_us, &other_s));
    EXPECT(other_s >= 1);
    EXPECT(queue_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
}

static void unclaimed_reservations_are_forgotten(void) {
    uint64_t now_us = run_full(20);
    EXPECT(!queue_admit(&b, 7, false, 1, 20, 0, now_us, &after_s));
    uint64_t late_us = now_us + after_s * (uint64_t)SECOND_US + QUEUE_GRACE_US;
    set_free(1, 20, late_us);
    EXPECT(!queue_admit(&b, 0, true, 1, 20, 0, late_us, &after_s));
    EXPECT(queue_admit(&b, 0, true, 1, 20, 0, late_us + 1, &after_s));
}

static void a_full_book_reserves_nothing(void) {
    const uint32_t n = 1000;
    uint64_t now_us = run_full(n);
    for (uint64_t i = 1; i <= QUEUE_RESERVATIONS_MAX; i++)
        EXPECT(!queue_admit(&b, i, false, 1, n, 0, now_us, &after_s) && after_s <= QUEUE_MAX_S);
    EXPECT_EQ(b.n_reservations, QUEUE_RESERVATIONS_MAX);
    EXPECT(!queue_admit(&b, QUEUE_RESERVATIONS_MAX + 1, false, 1, n, 0, now_us, &after_s));
    EXPECT_EQ(after_s, QUEUE_MAX_S + 1);
    EXPECT_EQ(b.n_reservations, QUEUE_RESERVATIONS_MAX);
}

static void each_gets_a_later_time(void) {
    uint64_t now_us = run_full(20);
    uint32_t last_s = 0;
    for (uint64_t i = 1; i <= 100; i++) {
        EXPECT(!queue_admit(&b, i, false, 1, 20, 0, now_us, &after_s));
        EXPECT(after_s >= last_s);
        last_s = after_s;
    }
    EXPECT_EQ(b.n_reservations,
              50);         // k * 1.1 + 5 is up to a minute; the others were promised nothing,
    EXPECT_EQ(last_s, 62); // and delay no other client
}

static void a_new_pace_is_followed_and_a_pause_drops_reservations(void) {
    uint64_t now_us = run_full(20);
    for (int i = 0; i < 100; i++) queue_note(&b, 20, 1, now_us += SECOND_US / 20);
    EXPECT_EQ(queue_held_us(&b, now_us), SECOND_US);
    EXPECT_EQ(queue_refuse(&b, 1, 20, 20, now_us), 3); // 2.2 + 0.5
    now_us += (uint64_t)100000 * SECOND_US;
    queue_note(&b, 0, 20, now_us);
    EXPECT(queue_admit(&b, 2, false, 20, 20, 0, now_us, &after_s));
    EXPECT_EQ(b.n_reservations, 0);
}

/* A batch whose answers are equally long: 100 places come free every 10 s, all at once.  Those in
 * use between are waited for, whatever their average says, and newcomers do not count on them. */
static void ends_that_come_all_at_once_are_waited_for(void) {
    uint64_t now_us = SECOND_US;
    b = (queue_book){0};
    for (int k = 0; k < 4; k++) {
        queue_note(&b, 100, 0, now_us);
        now_us += 10 * SECOND_US;
        for (uint32_t i = 100; i-- > 0;) queue_note(&b, i, 1, now_us);
    }
    EXPECT_EQ(queue_held_us(&b, now_us), 10 * SECOND_US);
    queue_note(&b, 95, 0, now_us);
    for (uint64_t i = 1; i <= 10; i++) queue_refuse(&b, i, 1, 100, now_us);
    EXPECT(b.reservations[0].due_us >= now_us + 10 * SECOND_US);
    EXPECT(!queue_admit(&b, 11, false, 1, 100, 0, now_us, &after_s));
}

/* Ten spare places are in use beside all twenty: those have to come free before any other does. */
static void spare_slots_in_use_delay_reservations(void) {
    uint64_t now_us = run_full(20);
    EXPECT_EQ(queue_refuse(&b, 0, 1, 20, now_us), 7); // 1.1 + 5
    queue_note(&b, 30, 0, now_us);
    EXPECT_EQ(queue_refuse(&b, 0, 1, 20, now_us), 18); // 11 * 1.1 + 5, rounded up
    EXPECT_EQ(queue_refuse(&b, 1, 1, 20, now_us), 18);
    EXPECT_EQ(queue_refuse(&b, 2, 1, 20, now_us), 19);
}

/* Places are held so shortly that all of a herd would have its turn within the next second; but who
 * is told the same second comes at the same moment.  Four places for a twentieth of a second, and
 * seventy clients. */
static void a_herd_is_told_different_seconds(void) {
    enum { SLOTS = 4, SPARE = 1, HERD = 70, HELD_US = 50000, MS = 1000 };
    uint64_t now_us = SECOND_US, due_us[HERD] = {0};
    uint32_t n_due[QUEUE_MAX_S + 1] = {0}, n_good = 0, n_told = 0;
    b = (queue_book){0};
    queue_note(&b, SLOTS, 0, now_us);
    for (int i = 0; i < 100; i++) queue_note(&b, SLOTS, 1, now_us += HELD_US / SLOTS);
    for (uint32_t i = 0; i < HERD; i++) {
        EXPECT(!queue_admit(&b, i + 1, false, 1, SLOTS, SPARE, now_us, &after_s));
        EXPECT(after_s <= QUEUE_MAX_S);
        due_us[i] = now_us + after_s * (uint64_t)SECOND_US;
        n_due[after_s]++;
    }
    for (uint32_t s = 0; s <= QUEUE_MAX_S; s++) EXPECT(n_due[s] <= SLOTS);
    queue_note(&b, 0, SLOTS, now_us += HELD_US);
    for (uint32_t s = 1; s <= QUEUE_MAX_S; s++) {
        uint32_t n_used = 0;
        now_us = due_us[0] + (s - 1) * (uint64_t)SECOND_US; // the first was told one second
        for (uint32_t i = 0; i < HERD; i++) {
            if (due_us[i] != now_us) continue;
            n_told++;
            if (!queue_admit(&b, i + 1, false, 1, SLOTS, SPARE, now_us + MS, &after_s)) continue;
            n_good++;
            queue_note(&b, ++n_used, 0, now_us + MS);
        }
        queue_note(&b, 0, n_used, now_us + HELD_US);
    }
    EXPECT_EQ(n_told, HERD);
    EXPECT_EQ(n_good, HERD);
}

/* ---- a crowd ---- */

typedef struct client {
    uint64_t at_us; // asks then
    bool told;      // comes back
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
    static uint64_t ends_us[2 * SLOTS_MAX]; // as many are to spare
    uint32_t n_used = 0, n_tried = 0, n_passed = 0;
    b = (queue_book){0};
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
            queue_note(&b, n_used, 1, now_us);
        }
        for (uint32_t i = 0; i < c.n_clients; i++) {
            client *one = &clients[i];
            if (one->at_us > now_us) continue;
            bool in = queue_admit(&b, i + 1, false, 1, c.n_slots, c.n_slots, now_us, &after_s);
            n_tried += one->told;
            n_passed += one->told && in;
            /* After its first retry it begins anew, and without a promise. */
            one->told = !in && !one->told && after_s <= QUEUE_MAX_S;
            uint64_t us = in ? 2 * SECOND_US + draw(&c.seed) % (4 * SECOND_US)
                             : after_s * (uint64_t)SECOND_US + draw(&c.seed) % 20000;
            one->at_us = now_us + us;
            if (!in) continue;
            ends_us[n_used++] = end_of(&c, now_us);
            queue_note(&b, n_used, 0, now_us);
        }
    }
    n_tried_last = n_tried;
    return n_tried == 0 ? 1000 : (uint32_t)((uint64_t)n_passed * 1000 / n_tried);
}

static void nine_of_ten_first_retries_pass(void) {
    for (uint64_t seed = 1; seed <= 5; seed++) {
        uint32_t steady = first_retries((crowd){seed, 200, 20, 2 * SECOND_US, false, false});
        uint32_t slow = first_retries((crowd){seed, 100, 20, 8 * SECOND_US, false, false});
        uint32_t bursts = first_retries((crowd){seed, 100, 20, 3 * SECOND_US, true, false});
        printf("seed %llu: of 1000 first retries pass %u, slow %u, in bursts %u\n",
               (unsigned long long)seed, steady, slow, bursts);
        EXPECT(steady >= 900);
        EXPECT(slow >= 900);
        EXPECT(bursts >= 900);
    }
}

/* On these seeds nothing was tuned.  Of 1,128 crowds of other seeds two stay below nine of ten:
 * four and six places that are held for ten seconds and more, some much longer than others. */
static void so_do_those_of_other_crowds(void) {
    enum { N_CROWDS = 40, TRIED_LEAST = 50 };
    uint32_t n = 0, n_good = 0, worst = 1000;
    uint64_t sum = 0, seed = 20000;
    for (int i = 0; i < N_CROWDS; i++) {
        uint64_t s = ++seed * 7919;
        crowd c = {.seed = s, .n_clients = 50 + (uint32_t)(draw(&s) % 351)};
        c.n_slots = (uint32_t)(4 * pow(SLOTS_MAX / 4, (double)(draw(&s) % 1000) / 999));
        c.serve_us = (uint64_t)(50000 * pow(400, (double)(draw(&s) % 1000) / 999));
        uint64_t kind = draw(&s) % 3;
        c.bursts = kind == 1;
        c.memoryless = kind == 2;
        uint32_t pass = first_retries(c);
        if (n_tried_last < TRIED_LEAST) continue;
        if (pass < 900)
            printf("seed %llu: %u clients, %u places for %.2f s%s: %u of 1000 pass\n",
                   (unsigned long long)c.seed, c.n_clients, c.n_slots, (double)c.serve_us / 1e6,
                   c.bursts       ? ", in bursts"
                   : c.memoryless ? ", memoryless"
                                  : "",
                   pass);
        n++;
        n_good += pass >= 900;
        sum += pass;
        if (pass < worst) worst = pass;
    }
    printf("%u crowds: mean %llu, least %u, %u with 900 and more\n", n,
           (unsigned long long)(sum / n), worst, n_good);
    EXPECT(n >= 20 && n_good == n);
}

static const test_case cases[] = {
    TEST(a_free_queue_lets_everybody_in),
    TEST(how_long_a_slot_is_held_is_measured),
    TEST(the_time_is_that_of_the_missing_slots),
    TEST(a_reservation_is_kept_from_new_requests),
    TEST(an_early_client_keeps_its_reservation),
    TEST(an_early_client_takes_no_others_slot),
    TEST(unclaimed_reservations_are_forgotten),
    TEST(a_full_book_reserves_nothing),
    TEST(each_gets_a_later_time),
    TEST(a_new_pace_is_followed_and_a_pause_drops_reservations),
    TEST(ends_that_come_all_at_once_are_waited_for),
    TEST(spare_slots_in_use_delay_reservations),
    TEST(a_herd_is_told_different_seconds),
    TEST(nine_of_ten_first_retries_pass),
    TEST(so_do_those_of_other_crowds),
};
TEST_MAIN(cases)
