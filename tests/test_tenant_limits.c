/* test_tenant_limits.c - what tenants may ask for: by hand, against an exact model, and with two
 * hundred clients that obey Retry-After. */
#include <time.h>

#include "tenant_limits.h"
#include "test.h"

enum { S = 1000000, DAY_S = 86400 };
#define T0 ((uint64_t)1000 * S)         // some uptime
static const int64_t noon = 1767268800; // 2026-01-01T12:00:00Z

static uint64_t random_state;
static uint64_t draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}
static uint64_t draw_in(uint64_t low, uint64_t high) { // both included
    return low + draw() % (high - low + 1);
}
static double draw_part(void) { // 0 ... 1, without 1
    return (double)(draw() >> 11) / (double)((uint64_t)1 << 53);
}
static void seed(uint64_t n) {
    random_state = n * 0x9e3779b97f4a7c15u + 1;
}

static limits_answer answer;

static limits *open_limits(limits_spec spec) {
    limits *l = limits_create();
    EXPECT_EQ(limits_set_tenant(l, 0, "alice", &spec, T0, NULL), INFERD_OK);
    return l;
}
static void set(limits *l, limits_spec spec, uint64_t now_us) {
    EXPECT_EQ(limits_set_tenant(l, 0, "alice", &spec, now_us, NULL), INFERD_OK);
}
static bool ask_at(limits *l, uint64_t now_us, int64_t unix_s, bool again, uint32_t n,
                   uint64_t tokens) {
    bool admitted = limits_admit(l, 0, now_us, unix_s, &(limits_ask){n, tokens, again}, &answer);
    EXPECT_EQ(admitted, answer.reason == LIMITS_ADMITTED);
    EXPECT_EQ(admitted, answer.text[0] == 0);
    bool in_vain = answer.reason == LIMITS_TOO_LARGE || answer.reason == LIMITS_CLOSED;
    EXPECT(admitted || in_vain || answer.retry_after_s > 0);
    EXPECT(limits_verify(l, 0));
    return admitted;
}
static bool ask(limits *l, uint64_t now_us, bool again, uint32_t n, uint64_t tokens) {
    return ask_at(l, now_us, noon, again, n, tokens);
}
static void settle_at(limits *l, uint64_t now_us, int64_t unix_s, uint32_t n, uint64_t tokens,
                      uint64_t used) {
    limits_settle(l, 0, now_us, unix_s, &(limits_ask){n, tokens, false}, used);
    EXPECT(limits_verify(l, 0));
}
static void settle(limits *l, uint64_t now_us, uint32_t n, uint64_t tokens, uint64_t used) {
    settle_at(l, now_us, noon, n, tokens, used);
}
static limits_headers headers(limits *l, uint64_t now_us) {
    limits_headers h;
    limits_get_headers(l, 0, now_us, &h);
    return h;
}
static limits_usage usage(const limits *l, int64_t unix_s) {
    limits_usage u;
    limits_get_usage(l, 0, unix_s, &u);
    return u;
}
static uint64_t number(const char *text) {
    return strtoull(text, NULL, 10);
}

/* ---- by hand ---- */

static void no_limits_refuse_nothing(void) {
    limits *l = open_limits((limits_spec){0});
    for (int i = 0; i < 1000; i++) EXPECT(ask(l, T0, false, 128, 1000000));
    limits_headers h = headers(l, T0);
    EXPECT_STR(h.limit_requests, "");
    EXPECT_STR(h.remaining_tokens, "");
    EXPECT_STR(h.reset_tokens, "");
    EXPECT_EQ(usage(l, noon).running, 128000);
    EXPECT_EQ(usage(l, noon).reserved, 1000000000);
    limits_destroy(l);
    limits_destroy(NULL);
}

static void requests_refill_one_by_one(void) {
    limits *l = open_limits((limits_spec){.requests_per_min = 60});
    for (int i = 0; i < 58; i++) EXPECT(ask(l, T0, false, 1, 5));
    EXPECT(!ask(l, T0, false, 3, 5)); // all or nothing
    EXPECT_STR(answer.text, "of 60 requests per minute 2 are left now, this request counts as 3; "
                            "try again in 1 s");
    EXPECT_EQ(usage(l, noon).running, 58);
    EXPECT(!ask(l, T0 + S - 1, false, 3, 6)); // behind the one that comes at T0 + 1 s
    EXPECT_EQ(answer.retry_after_s, 4);
    EXPECT(!ask(l, T0 + S, false, 2, 5)); // three are there, two are due in two seconds
    EXPECT(ask(l, T0 + S, true, 3, 5));
    EXPECT(!ask(l, T0 + S, false, 1, 5));
    EXPECT_EQ(answer.reason, LIMITS_REQUESTS);
    settle(l, T0 + S, 58, 58 * 5, 0); // requests are not given back
    limits_headers h = headers(l, T0 + S);
    EXPECT_STR(h.limit_requests, "60");
    EXPECT_STR(h.remaining_requests, "0");
    EXPECT_STR(h.reset_requests, "1m0s");
    h = headers(l, T0 + 62 * (uint64_t)S);
    EXPECT_STR(h.remaining_requests, "60");
    EXPECT_STR(h.reset_requests, "0s");
    limits_destroy(l);
}

static void tokens_are_given_back_and_charged(void) {
    limits *l = open_limits((limits_spec){.tokens_per_min = 6000}); // 100 per second
    EXPECT(ask(l, T0, false, 1, 4000));
    EXPECT_STR(headers(l, T0).remaining_tokens, "2000");
    settle(l, T0, 1, 4000, 1000); // cancelled after a quarter
    EXPECT_STR(headers(l, T0).remaining_tokens, "5000");
    EXPECT(ask(l, T0, false, 1, 5000));
    settle(l, T0, 1, 5000, 6200); // 1,200 over
    EXPECT_STR(headers(l, T0).remaining_tokens, "0");
    EXPECT_STR(headers(l, T0).reset_tokens, "1m12s");
    EXPECT(!ask(l, T0, false, 1, 50));
    EXPECT_STR(answer.text, "of 6000 tokens per minute 0 are left now, this request needs 50 "
                            "(prompt and output); try again in 13 s");
    EXPECT_EQ(answer.reason, LIMITS_TOKENS);
    EXPECT(!ask(l, T0 + 12 * (uint64_t)S, false, 1, 1)); // repaid, to the last token
    EXPECT(ask(l, T0 + 13 * (uint64_t)S, false, 1, 50));
    settle(l, T0 + 13 * (uint64_t)S, 1, 50, 0);
    EXPECT_EQ(usage(l, noon).used_day, 7200);
    /* More than the bucket lacks is not put in. */
    EXPECT(ask(l, T0 + 200 * (uint64_t)S, false, 1, 100));
    settle(l, T0 + 300 * (uint64_t)S, 1, 100, 0);
    EXPECT_STR(headers(l, T0 + 300 * (uint64_t)S).remaining_tokens, "6000");
    limits_destroy(l);
}

static void what_fits_no_window_is_told_so(void) {
    static const struct {
        limits_spec spec;
        const char *sentence;
    } rows[] = {
        {{.requests_per_min = 4}, "5 requests, the limit is 4 requests per minute"},
        {{.concurrent = 4}, "5 requests, the limit is 4 requests at once"},
        {{.tokens_per_min = 99}, "100 tokens (prompt and output), the limit is 99 tokens per min"},
        {{.tokens_per_day = 99}, "100 tokens (prompt and output), the limit is 99 tokens per day"},
        {{.tokens_per_month = 99}, "the limit is 99 tokens per month"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        limits *l = open_limits(rows[i].spec);
        EXPECT(!ask(l, T0, false, 5, 100));
        EXPECT_EQ(answer.reason, LIMITS_TOO_LARGE);
        EXPECT_EQ(answer.retry_after_s, 0);
        EXPECT(strstr(answer.text, rows[i].sentence) != NULL);
        EXPECT(ask(l, T0, false, 4, 99)); // all of the window
        EXPECT_EQ(usage(l, noon).refused[LIMITS_TOO_LARGE], 1);
        limits_destroy(l);
    }
    limits *l = open_limits((limits_spec){0});
    EXPECT(!ask(l, T0, false, 1, LIMITS_ASK_TOKENS_MAX + 1));
    EXPECT(ask(l, T0, false, 1, LIMITS_ASK_TOKENS_MAX));
    limits_destroy(l);
}

static void slots_are_given_back(void) {
    limits *l = open_limits((limits_spec){.concurrent = 3});
    EXPECT(ask(l, T0, false, 2, 10));
    EXPECT(!ask(l, T0, false, 2, 10));
    EXPECT_EQ(answer.reason, LIMITS_CONCURRENT);
    EXPECT(strstr(answer.text,
                  "2 of at most 3 requests at once are running, this request counts as "
                  "2; try again in") != NULL);
    settle(l, T0 + S, 2, 10, 0);
    EXPECT(ask(l, T0 + S, true, 2, 10));
    settle(l, T0 + 2 * S, 2, 10, 0);
    EXPECT_EQ(usage(l, noon).running, 0);
    limits_destroy(l);
}

static void waiting_for_a_slot_follows_how_long_requests_take(void) {
    for (uint64_t duration_s = 1; duration_s <= 9; duration_s += 4) {
        limits *l = open_limits((limits_spec){.concurrent = 10});
        uint64_t now_us = T0;
        for (int round = 0; round < 40; round++, now_us += duration_s * S)
            for (int i = 0; i < 10; i++) {
                if (round > 0) settle(l, now_us, 1, 5, 5);
                EXPECT(ask(l, now_us, false, 1, 5));
            }
        uint32_t told = 0;
        for (uint64_t k = 1; k <= 20; k++) { // two rounds of them
            EXPECT(!ask(l, now_us - S / 2, false, 1, 5));
            EXPECT(answer.retry_after_s >= told);
            told = answer.retry_after_s;
        }
        EXPECT(told >= 2 * duration_s && told <= 4 * duration_s + 1);
        limits_destroy(l);
    }
}

static void headers_spell_times_like_clients_read_them(void) {
    limits *l = open_limits((limits_spec){.requests_per_min = 60000, .tokens_per_min = 60});
    EXPECT(ask(l, T0, false, 120, 1));
    EXPECT_STR(headers(l, T0).reset_requests, "120ms");
    EXPECT_STR(headers(l, T0).reset_tokens, "1s");
    EXPECT_STR(headers(l, T0 + 1).reset_requests, "120ms"); // rounded up
    EXPECT_STR(headers(l, T0 + 500).reset_tokens, "1s");
    EXPECT_STR(headers(l, T0 + 1000).reset_tokens, "999ms");
    EXPECT_STR(headers(l, T0 + 1001).reset_requests, "119ms");
    settle(l, T0, 120, 1, 360);
    EXPECT_STR(headers(l, T0).reset_tokens, "6m0s");
    EXPECT(ask(l, T0, false, 1, 0)); // no tokens, none missing
    settle(l, T0, 1, 0, 3661 - 360);
    EXPECT_STR(headers(l, T0).reset_tokens, "1h1m1s");
    limits_destroy(l);
}

/* ---- the line of refused requests ---- */

static void refused_clients_are_told_different_times(void) {
    limits *l = open_limits((limits_spec){.requests_per_min = 30}); // one in two seconds
    for (int i = 0; i < 30; i++) EXPECT(ask(l, T0, false, 1, 1));
    for (uint32_t k = 1; k <= 30; k++) {
        EXPECT(!ask(l, T0, false, 1, 1));
        EXPECT_EQ(answer.retry_after_s, 2 * k);
        EXPECT(strstr(answer.text, "or later") == NULL);
    }
    EXPECT(!ask(l, T0, false, 1, 1)); // the line is a minute long
    EXPECT_EQ(answer.retry_after_s, LIMITS_RETRY_MAX_S);
    EXPECT(strstr(answer.text, "try again in 60 s, or later") != NULL);
    for (uint64_t k = 1; k <= 30; k++) {
        uint64_t due_us = T0 + 2 * k * S;
        EXPECT(k == 30 || !ask(l, due_us, false, 1, 1)); // a first try is behind the line
        EXPECT(ask(l, due_us + 150000, true, 1, 1));
    }
    EXPECT_EQ(usage(l, noon).refused[LIMITS_REQUESTS], 60);
    limits_destroy(l);
}

/* Nothing is known of a client that does not come back: the line ends at its time all the same. */
static void the_line_gets_shorter_without_its_clients(void) {
    limits *l = open_limits((limits_spec){.requests_per_min = 60});
    EXPECT(ask(l, T0, false, 60, 1));
    EXPECT(!ask(l, T0, false, 5, 1));
    EXPECT_EQ(answer.retry_after_s, 5);
    EXPECT_STR(headers(l, T0 + 3 * S).remaining_requests, "1"); // three, and two are due
    EXPECT_STR(headers(l, T0 + 4 * S).remaining_requests, "3");
    EXPECT_STR(headers(l, T0 + 5 * S).remaining_requests, "5");
    EXPECT(ask(l, T0 + 5 * S, false, 5, 1));
    limits_destroy(l);
}

/* Ten places a second, told in whole seconds: nine clients come at once, up to 0.9 s after their
 * places.  First tries once took them between the last place and that second. */
static void a_place_that_has_passed_is_left_for_a_second(void) {
    limits *l = open_limits((limits_spec){.requests_per_min = 600});
    EXPECT(ask(l, T0, false, 600, 1));
    for (int k = 0; k < 9; k++) EXPECT(!ask(l, T0, false, 1, 1) && answer.retry_after_s == 1);
    EXPECT(ask(l, T0 + 950000, false, 1, 1));  // 9.5 are there, eight are due beside its own
    EXPECT(!ask(l, T0 + 950000, false, 1, 1)); // 8.5
    for (int k = 0; k < 9; k++) EXPECT(ask(l, T0 + S, true, 1, 1));
    EXPECT(!ask(l, T0 + S, false, 1, 1));
    limits_destroy(l);
}

static void a_first_try_leaves_what_the_line_needs(void) {
    limits *l = open_limits((limits_spec){.concurrent = 4, .tokens_per_min = 60});
    EXPECT(ask(l, T0, false, 1, 60));
    EXPECT(!ask(l, T0, false, 1, 60));
    EXPECT_EQ(answer.retry_after_s, 60);
    EXPECT(!ask(l, T0 + 31 * S, false, 1, 30)); // 31 are there, 2 are due
    EXPECT(ask(l, T0 + 31 * S, false, 1, 29));
    EXPECT(ask(l, T0 + 31 * S, true, 1, 2)); // a retry leaves none
    limits_destroy(l);
}

static void a_client_that_comes_early_gets_a_later_time(void) {
    limits *l = open_limits((limits_spec){.requests_per_min = 60});
    EXPECT(ask(l, T0, false, 60, 1));
    for (uint32_t k = 1; k <= 10; k++) EXPECT(!ask(l, T0, false, 1, 1));
    EXPECT_EQ(answer.retry_after_s, 10);
    EXPECT(!ask(l, T0 + S / 2, true, 1, 1));
    EXPECT_EQ(answer.retry_after_s, 11); // 10.5 s
    limits_destroy(l);
}

/* A debt is repaid while the line is waited for, and what is left of it after that. */
static void a_debt_comes_before_the_line(void) {
    limits *l = open_limits((limits_spec){.tokens_per_min = 6000}); // 100 per second
    EXPECT(ask(l, T0, false, 1, 6000));
    EXPECT(!ask(l, T0, false, 1, 200)); // the line ends in 2 s
    settle(l, T0, 1, 6000, 6500);
    EXPECT(!ask(l, T0, false, 1, 100));
    EXPECT_EQ(answer.retry_after_s, 6); // 500 and 100
    EXPECT(!ask(l, T0, false, 1, 300));
    EXPECT_EQ(answer.retry_after_s, 9);
    limits_destroy(l);
}

/* ---- an exact model ---- */

/* The token bucket of a limit per minute, in sixty-millionths of a token, as wide as it takes. */
typedef struct model {
    __int128 level, limit;
    uint64_t at_us;
} model;

static void model_refill(model *m, uint64_t now_us) {
    m->level += m->limit * (__int128)(now_us - m->at_us);
    if (m->level > m->limit * 60 * S) m->level = m->limit * 60 * S;
    m->at_us = now_us;
}
static uint64_t model_whole(const model *m) {
    return m->level <= 0 ? 0 : (uint64_t)(m->level / (60 * S));
}
/* "6m0s" and the like, in whole milliseconds below a second and seconds above. */
static bool is_reset(const model *m, const char *text) {
    __int128 missing = m->limit * 60 * S - m->level;
    uint64_t us = (uint64_t)((missing + m->limit - 1) / m->limit), told = 0;
    uint64_t unit_us = us <= 999000 && us > 0 ? 1000 : S, value = 0;
    for (const char *p = text; *p != 0; p++) {
        if (*p >= '0' && *p <= '9') {
            value = 10 * value + (uint64_t)(*p - '0');
            continue;
        }
        if (p[0] == 'm' && p[1] == 's')
            told += value * 1000, p++;
        else
            told += value * S * (*p == 'h' ? 3600 : *p == 'm' ? 60 : 1);
        value = 0;
    }
    return told == (us + unit_us - 1) / unit_us * unit_us;
}

static void no_drift_however_small_the_steps(void) {
    static const uint32_t rates[] = {1, 7, 59, 60, 61, 999983, UINT32_MAX};
    for (size_t i = 0; i < INFERD_COUNT(rates); i++) {
        limits *l = open_limits((limits_spec){.tokens_per_min = rates[i]});
        model m = {(__int128)rates[i] * 60 * S, rates[i], T0};
        seed(i + 1);
        EXPECT(ask(l, T0, false, 1, rates[i]));
        m.level = 0;
        for (uint64_t now_us = T0; now_us < T0 + 30 * (uint64_t)S;) {
            now_us += draw_in(1, 50000);
            model_refill(&m, now_us);
            limits_headers h = headers(l, now_us);
            EXPECT_EQ(number(h.remaining_tokens), model_whole(&m));
            EXPECT(is_reset(&m, h.reset_tokens));
        }
        EXPECT(number(headers(l, T0 + 60 * (uint64_t)S - 1).remaining_tokens) < rates[i]);
        EXPECT_EQ(number(headers(l, T0 + 60 * (uint64_t)S).remaining_tokens), rates[i]);
        uint64_t century_us = (uint64_t)100 * 366 * DAY_S * S;
        EXPECT_EQ(number(headers(l, T0 + century_us).remaining_tokens), rates[i]);
        EXPECT(ask(l, T0 + century_us, false, 1, rates[i]));
        EXPECT(!ask(l, T0 + century_us, false, 1, 1));
        EXPECT_STR(headers(l, T0).remaining_tokens, "0");                // time does not go back
        settle(l, T0 + century_us, 1, rates[i], (uint64_t)2 * rates[i]); // a debt of a minute
        EXPECT_STR(headers(l, T0 + century_us).reset_tokens, "2m0s");
        EXPECT_STR(headers(l, T0 + century_us + 60 * (uint64_t)S).remaining_tokens, "0");
        EXPECT_EQ(number(headers(l, T0 + 2 * century_us).remaining_tokens), rates[i]);
        for (int k = 0; k < 100; k++) { // as deep as it goes
            EXPECT(ask(l, T0 + 2 * century_us, false, 0, 0));
            settle(l, T0 + 2 * century_us, 0, 0, UINT64_MAX);
        }
        EXPECT(!ask(l, T0 + 2 * century_us + 60 * (uint64_t)S, false, 1, 1));
        EXPECT_EQ(usage(l, noon).used_day, INT64_MAX);
        limits_destroy(l);
    }
}

static void the_last_part_is_waited_for(void) {
    limits *l = open_limits((limits_spec){.tokens_per_min = 7}); // one in 8,571,428.57 us
    EXPECT(ask(l, T0, false, 1, 1));
    EXPECT_STR(headers(l, T0 + 8571428).remaining_tokens, "6");
    EXPECT_STR(headers(l, T0 + 8571429).remaining_tokens, "7");
    EXPECT(limits_verify(l, 0));
    limits_destroy(l);
    l = open_limits((limits_spec){.tokens_per_min = 1});
    EXPECT(ask(l, T0, false, 1, 1));
    EXPECT_STR(headers(l, T0 + 60 * (uint64_t)S + 1).remaining_tokens, "1");
    EXPECT(limits_verify(l, 0)); // not a part more than full
    limits_destroy(l);
}

typedef struct running {
    uint32_t n;
    uint64_t tokens;
} running;

/* What is in the buckets, reserved and used is what was granted, whatever happens in which order.
 */
static void random_sequences_conserve(uint64_t n_seed, bool frozen) {
    enum { RUNNING_MAX = 64, STEPS = 4000 };
    running list[RUNNING_MAX];
    uint32_t n_list = 0;
    seed(n_seed);
    uint32_t rpm = (uint32_t)draw_in(1, 500), tpm = (uint32_t)draw_in(50, 50000);
    uint32_t at_once = (uint32_t)draw_in(1, 40);
    uint64_t month = 3000000 + draw() % 100000000, n_admitted = 0, n_refused = 0;
    limits *l = open_limits((limits_spec){rpm, tpm, at_once, 0, month, 0});
    model requests = {(__int128)rpm * 60 * S, rpm, T0}, tokens = {(__int128)tpm * 60 * S, tpm, T0};
    uint64_t now_us = T0, reserved = 0, used = 0, n_running = 0;
    for (int step = 0; step < STEPS; step++) {
        if (!frozen) now_us += draw() % 4 == 0 ? draw_in(0, 20 * S) : draw_in(0, S / 4);
        model_refill(&requests, now_us);
        model_refill(&tokens, now_us);
        if (n_list > 0 && (n_list == RUNNING_MAX || draw() % 2 == 0)) {
            uint32_t i = (uint32_t)(draw() % n_list);
            uint64_t more = draw() % 8 == 0 ? draw_in(0, 200) : 0; // beyond what was reserved
            uint64_t n_used = draw_in(0, list[i].tokens) + more;
            settle(l, now_us, list[i].n, list[i].tokens, n_used);
            tokens.level += ((__int128)list[i].tokens - (__int128)n_used) * 60 * S;
            if (!frozen) model_refill(&tokens, now_us); // no more than the limit
            reserved -= list[i].tokens, used += n_used, n_running -= list[i].n;
            list[i] = list[--n_list];
        } else {
            running r = {(uint32_t)draw_in(1, u32_min(4, u32_min(rpm, at_once))),
                         draw_in(0, tpm / 4)};
            bool fits = requests.level >= (__int128)r.n * 60 * S && n_running + r.n <= at_once &&
                        (r.tokens == 0 || tokens.level >= (__int128)r.tokens * 60 * S) &&
                        used + reserved + r.tokens <= month;
            bool again = draw() % 3 > 0, admitted = ask(l, now_us, again, r.n, r.tokens);
            if (admitted) {
                EXPECT(fits);
                requests.level -= (__int128)r.n * 60 * S;
                tokens.level -= (__int128)r.tokens * 60 * S;
                reserved += r.tokens, n_running += r.n;
                list[n_list++] = r;
                n_admitted++;
            } else {
                EXPECT(!again || !fits); // nothing is kept back from a retry
                n_refused++;
            }
        }
        limits_headers h = headers(l, now_us);
        limits_usage u = usage(l, noon);
        EXPECT(number(h.remaining_tokens) <= model_whole(&tokens));
        EXPECT(number(h.remaining_requests) <= model_whole(&requests));
        EXPECT(is_reset(&tokens, h.reset_tokens));
        EXPECT(is_reset(&requests, h.reset_requests));
        EXPECT_EQ(u.reserved, reserved);
        EXPECT_EQ(u.running, n_running);
        EXPECT_EQ(u.used_month, used);
        EXPECT(u.running <= at_once);
        if (frozen) EXPECT(tokens.level / (60 * S) + reserved + used == tpm);
    }
    EXPECT(n_admitted > 0 && n_refused > 0);
    printf("seed %llu: %llu admitted, %llu refused\n", (unsigned long long)n_seed,
           (unsigned long long)n_admitted, (unsigned long long)n_refused);
    limits_destroy(l);
}

static void nothing_is_lost_or_made(void) {
    for (uint64_t n = 1; n <= 12; n++) random_sequences_conserve(n, n % 3 == 0);
}

/* ---- days and months ---- */

static void the_calendar_is_the_systems(void) {
    for (int64_t day = 0; day < 2932897; day += day < 200000 ? 1 : 97) {
        time_t t = (time_t)(day * DAY_S + day % DAY_S);
        struct tm tm;
        gmtime_r(&t, &tm);
        limits_date d = limits_date_of(t);
        bool same = d.year == tm.tm_year + 1900 && d.month == tm.tm_mon + 1 && d.day == tm.tm_mday;
        EXPECT(same && limits_date_valid(d) && limits_date_begins_s(d) == day * DAY_S);
        if (!same) break;
    }
    static const limits_date wrong[] = {{1969, 12, 31}, {10000, 1, 1}, {2026, 0, 1},
                                        {2026, 13, 1},  {2026, 1, 0},  {2026, 4, 31},
                                        {2026, 2, 29},  {2100, 2, 29}};
    for (size_t i = 0; i < INFERD_COUNT(wrong); i++) EXPECT(!limits_date_valid(wrong[i]));
    EXPECT(limits_date_valid((limits_date){2028, 2, 29}));
    EXPECT(limits_date_valid((limits_date){2000, 2, 29}));
    limits_date first = limits_date_of(INT64_MIN), last = limits_date_of(INT64_MAX);
    EXPECT(first.year == 1970 && first.month == 1 && first.day == 1);
    EXPECT(last.year == 9999 && last.month == 12 && last.day == 31);
}

static int64_t at_date(int year, int month, int day, int second) {
    return limits_date_begins_s((limits_date){year, month, day}) + second;
}

static void a_day_ends_at_midnight(void) {
    limits *l = open_limits((limits_spec){.tokens_per_day = 1000});
    int64_t evening = at_date(2026, 1, 1, DAY_S - 100);
    EXPECT(ask_at(l, T0, evening, false, 1, 600));
    EXPECT(!ask_at(l, T0, evening, false, 1, 401)); // what is reserved counts
    EXPECT_EQ(answer.reason, LIMITS_DAY);
    EXPECT_EQ(answer.retry_after_s, 4); // none has ended yet
    EXPECT_STR(answer.text,
               "of 1000 tokens per day (UTC) 0 are used and 600 reserved by 1 running requests; "
               "this request needs 401, and fits when they use less than that; try again in 4 s");
    settle_at(l, T0, evening, 1, 600, 500);
    EXPECT(!ask_at(l, T0, evening, false, 1, 501));
    EXPECT_EQ(answer.retry_after_s, 100);
    EXPECT_STR(answer.text,
               "of 1000 tokens per day (UTC) 500 are used and 0 reserved by running requests; this "
               "request needs 501; the next day begins in 100 s");
    EXPECT(ask_at(l, T0, evening + 1, false, 1, 500));
    EXPECT(!ask_at(l, T0, evening + 99, false, 1, 1));
    EXPECT_EQ(answer.retry_after_s, 1);
    EXPECT(!ask_at(l, T0, evening + 100, false, 1, 501)); // it runs across, and counts here now
    EXPECT_EQ(answer.reason, LIMITS_DAY);
    EXPECT_EQ(answer.retry_after_s, 1);
    EXPECT_EQ(usage(l, evening + 100).used_day, 0);
    EXPECT(ask_at(l, T0, evening + 100, false, 1, 500));
    settle_at(l, T0, evening + 110, 1, 500, 450); // charged where it ends
    EXPECT_EQ(usage(l, evening + 110).used_day, 450);
    EXPECT_EQ(usage(l, evening + 110).used_month, 950);
    EXPECT_EQ(usage(l, evening + DAY_S + 110).used_day, 0);
    EXPECT_EQ(usage(l, evening + DAY_S + 110).used_month, 950);
    EXPECT(!ask_at(l, T0, evening + 110, false, 1, 551));
    EXPECT_EQ(answer.retry_after_s, DAY_S - 10);
    EXPECT(ask_at(l, T0, evening + 110, false, 1, 50));
    limits_destroy(l);
}

static void a_month_is_as_long_as_it_is(void) {
    static const struct {
        int year, month, days;
    } rows[] = {{2026, 1, 31}, {2026, 2, 28}, {2028, 2, 29},
                {2100, 2, 28}, {2026, 4, 30}, {2026, 12, 31}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        limits *l = open_limits((limits_spec){.tokens_per_day = 900, .tokens_per_month = 1000});
        int64_t begin = at_date(rows[i].year, rows[i].month, 1, 0);
        int64_t end = begin + (int64_t)rows[i].days * DAY_S;
        EXPECT(ask_at(l, T0, begin, false, 1, 900));
        settle_at(l, T0, begin, 1, 900, 900);
        EXPECT(!ask_at(l, T0, begin, false, 1, 100));
        EXPECT_EQ(answer.reason, LIMITS_DAY);
        EXPECT(!ask_at(l, T0, begin, false, 1, 101)); // both: the one that lasts longer is told
        EXPECT_EQ(answer.reason, LIMITS_MONTH);
        EXPECT_EQ(answer.retry_after_s, end - begin);
        EXPECT(!ask_at(l, T0, end - 1, false, 1, 101)); // a new day, not a new month
        EXPECT_EQ(answer.reason, LIMITS_MONTH);
        EXPECT_EQ(answer.retry_after_s, 1);
        EXPECT(ask_at(l, T0, end, false, 1, 900));
        EXPECT_EQ(usage(l, end).refused[LIMITS_MONTH], 2);
        limits_destroy(l);
    }
}

static void the_last_second_of_time_is_survived(void) {
    limits *l = open_limits((limits_spec){.tokens_per_day = 10, .tokens_per_month = 10});
    static const int64_t times[] = {INT64_MIN,    -1,           0,        2147483647, 2147483648,
                                    253402300799, 253402300800, INT64_MAX};
    for (size_t i = 0; i < INFERD_COUNT(times); i++) {
        ask_at(l, T0, times[i], false, 1, 10);
        EXPECT(!ask_at(l, T0, times[i], false, 1, 1));
        if (usage(l, times[i]).running > 0) settle_at(l, T0, times[i], 1, 10, 10);
    }
    limits_destroy(l);
}

/* However the clock is set, within what counts as a correction, there is one quota per day. */
static void a_clock_set_back_gives_nothing_twice(void) {
    for (uint64_t n_seed = 1; n_seed <= 8; n_seed++) {
        seed(n_seed);
        limits *l = open_limits((limits_spec){.tokens_per_day = 1000, .tokens_per_month = 20000});
        int64_t begin = at_date(2028, 2, 20, 0), unix_s = begin, latest = begin;
        uint64_t granted = 0, waiting = 0;
        for (int i = 0; i < 3000; i++) {
            unix_s +=
                (int64_t)draw_in(0, 7200) - (draw() % 8 == 0 ? (int64_t)draw_in(0, 30000) : 0);
            if (latest - unix_s > LIMITS_CLOCK_BACK_S - DAY_S) unix_s = latest;
            if (unix_s < begin) unix_s = begin;
            if (unix_s > latest) latest = unix_s;
            uint64_t wanted = draw_in(1, 400);
            if (waiting != 0) {
                uint64_t used = draw_in(0, waiting);
                settle_at(l, T0, unix_s, 1, waiting, used);
                granted += used, waiting = 0;
            } else if (ask_at(l, T0, unix_s, false, 1, wanted)) {
                waiting = wanted;
            }
            uint64_t n_days = (uint64_t)(latest / DAY_S - begin / DAY_S + 1);
            limits_date a = limits_date_of(begin), b = limits_date_of(latest);
            uint64_t n_months = (uint64_t)((b.year - a.year) * 12 + b.month - a.month + 1);
            EXPECT(granted + waiting <= n_days * 1000);
            EXPECT(granted + waiting <= n_months * 20000);
            limits_usage u = usage(l, unix_s);
            EXPECT(u.used_day + u.reserved <= 1000 && u.used_month + u.reserved <= 20000);
        }
        printf("seed %llu: %llu tokens in %lld days\n", (unsigned long long)n_seed,
               (unsigned long long)granted, (long long)((latest - begin) / DAY_S + 1));
        EXPECT(granted > (uint64_t)((latest - begin) / DAY_S) * 500); // neither frozen
        limits_destroy(l);
    }
}

static void a_clock_that_was_plainly_wrong_freezes_nothing(void) {
    limits *l = open_limits((limits_spec){.tokens_per_day = 1000, .tokens_per_month = 5000});
    int64_t now = at_date(2026, 1, 10, 0), wrong = at_date(2106, 2, 7, 0);
    EXPECT(ask_at(l, T0, now, false, 1, 1000));
    settle_at(l, T0, now, 1, 1000, 1000);
    EXPECT(ask_at(l, T0, wrong, false, 1, 700));
    settle_at(l, T0, wrong, 1, 700, 700);
    EXPECT(!ask_at(l, T0, now + 60, false, 1, 301)); // what was used then is not forgotten
    EXPECT_EQ(answer.retry_after_s, DAY_S - 60);
    EXPECT(ask_at(l, T0, now + DAY_S, false, 1, 1000)); // and the next day is a day
    settle_at(l, T0, now + DAY_S, 1, 1000, 1000);
    EXPECT_EQ(usage(l, now + DAY_S).used_month, 1700);
    /* An hour back over midnight: the new day stands, and its end is told by the clock of now. */
    EXPECT(!ask_at(l, T0, now + DAY_S - 3600, false, 1, 1));
    EXPECT_EQ(answer.retry_after_s, DAY_S + 3600);
    limits_destroy(l);
}

/* ---- the table, changes ---- */

static void limits_change_while_requests_run(void) {
    limits *l = open_limits(
        (limits_spec){.requests_per_min = 100, .tokens_per_min = 1000, .concurrent = 10});
    for (int i = 0; i < 8; i++) EXPECT(ask(l, T0, false, 1, 50));
    set(l, (limits_spec){.requests_per_min = 50, .tokens_per_min = 2000, .concurrent = 4}, T0);
    EXPECT_STR(headers(l, T0).remaining_requests, "42"); // 8 are gone
    EXPECT_STR(headers(l, T0).remaining_tokens, "1600"); // 400 are gone
    EXPECT(!ask(l, T0, false, 1, 1));                    // twice as many run as may
    EXPECT_EQ(answer.reason, LIMITS_CONCURRENT);
    for (int i = 0; i < 4; i++) {
        settle(l, T0, 1, 50, 0);
        EXPECT(!ask(l, T0, true, 1, 1));
    }
    EXPECT_STR(headers(l, T0).remaining_requests, "40"); // 42, and the line needs 1.7
    set(l, (limits_spec){.requests_per_min = 50, .tokens_per_min = 2000, .concurrent = 4}, T0);
    EXPECT_STR(headers(l, T0).remaining_requests, "40"); // nothing was changed
    settle(l, T0, 1, 50, 0);
    EXPECT(ask(l, T0, true, 1, 1));
    set(l, (limits_spec){.tokens_per_min = 100}, T0); // lacks 151: empty, but no debt
    EXPECT_STR(headers(l, T0).remaining_tokens, "0");
    EXPECT_STR(headers(l, T0).reset_tokens, "1m0s");
    EXPECT_STR(headers(l, T0).limit_requests, "");
    EXPECT(!ask(l, T0, false, 1, 1));
    set(l, (limits_spec){0}, T0);
    EXPECT(ask(l, T0, false, 1, 200));
    set(l, (limits_spec){.tokens_per_min = 1000}, T0); // what runs counts: 151 and 200
    EXPECT_STR(headers(l, T0).remaining_tokens, "649");
    settle(l, T0, 1, 200, 3000); // a debt of 2,151
    EXPECT_STR(headers(l, T0).reset_tokens, "3m10s");
    set(l, (limits_spec){.tokens_per_min = 10000}, T0);
    EXPECT_STR(headers(l, T0).remaining_tokens, "6849"); // 3,151 are missing still
    limits_destroy(l);
}

static void a_quota_lowered_below_its_use_is_used_up(void) {
    limits *l = open_limits((limits_spec){.tokens_per_day = 1000});
    EXPECT(ask(l, T0, false, 1, 500));
    settle(l, T0, 1, 500, 300);
    EXPECT(ask(l, T0, false, 1, 100)); // runs
    set(l, (limits_spec){.tokens_per_day = 350}, T0);
    EXPECT(!ask(l, T0, false, 1, 1));
    EXPECT_EQ(answer.reason, LIMITS_DAY);
    settle(l, T0, 1, 100, 1);
    EXPECT(ask(l, T0, false, 1, 49));
    limits_destroy(l);
}

static void a_closed_limit_lets_nothing_in_until_it_is_opened(void) {
    static const limits_spec open = {
        .requests_per_min = 10, .tokens_per_min = 1000, .concurrent = 4, .tokens_per_day = 1000};
    for (int reason = LIMITS_REQUESTS; reason <= LIMITS_MONTH; reason++) {
        limits *l = open_limits(open);
        limits_spec closed = open;
        EXPECT(ask(l, T0, false, 1, 300)); // runs
        EXPECT(ask(l, T0, false, 3, 100)); // runs
        EXPECT(!ask(l, T0, false, 1, 10)); // is told a time
        if (reason == LIMITS_REQUESTS) closed.requests_per_min = 0;
        if (reason == LIMITS_TOKENS) closed.tokens_per_min = 0;
        closed.closed = 1u << reason;
        set(l, closed, T0);
        EXPECT(!ask(l, T0, true, 1, 10));
        EXPECT_EQ(answer.reason, LIMITS_CLOSED);
        EXPECT_EQ(answer.retry_after_s, 0);
        EXPECT(strstr(answer.text, "of tenant alice is 0") != NULL);
        EXPECT(!ask(l, T0, false, 100, 1 << 20)); // nothing is too large for what is shut
        EXPECT_EQ(answer.reason, LIMITS_CLOSED);
        EXPECT_STR(headers(l, T0).remaining_requests, reason == LIMITS_REQUESTS ? "0" : "6");
        EXPECT_STR(headers(l, T0).remaining_tokens, reason == LIMITS_TOKENS ? "0" : "600");
        EXPECT_STR(headers(l, T0).limit_tokens, reason == LIMITS_TOKENS ? "0" : "1000");
        EXPECT_EQ(headers(l, T0).reset_requests[0] == 0, reason == LIMITS_REQUESTS);
        EXPECT_EQ(headers(l, T0).reset_tokens[0] == 0, reason == LIMITS_TOKENS);
        EXPECT(!ask_at(l, T0 + (uint64_t)40 * DAY_S * S, noon + 40 * DAY_S, false, 1, 10));
        EXPECT_EQ(answer.reason, LIMITS_CLOSED); // time does not help
        settle_at(l, T0, noon, 1, 300, 250);
        EXPECT_EQ(usage(l, noon).running, 3);
        set(l, open, T0);
        EXPECT(ask_at(l, T0, noon + 40 * DAY_S, false, 1, 10));
        settle_at(l, T0, noon + 40 * DAY_S, 3, 100, 90);
        EXPECT_EQ(usage(l, noon + 40 * DAY_S).reserved, 10);
        EXPECT_EQ(usage(l, noon + 40 * DAY_S).refused[LIMITS_CLOSED], 3);
        limits_destroy(l);
    }
}

static void a_change_counts_from_its_moment(void) {
    limits *l = open_limits((limits_spec){.tokens_per_min = 6000});
    EXPECT(ask(l, T0, false, 1, 6000));
    set(l, (limits_spec){.tokens_per_min = 60000}, T0 + 10 * S); // 1,000 came in until then
    EXPECT_STR(headers(l, T0 + 10 * S).remaining_tokens, "55000");
    EXPECT_STR(headers(l, T0 + 11 * S).remaining_tokens, "56000");
    limits_destroy(l);
}

static void numbers_keep_their_names(void) {
    limits *l = limits_create();
    inferd_err err = {0};
    limits_spec spec = {.requests_per_min = 1}, other = {.requests_per_min = 2};
    char name[LIMITS_NAME_BYTES_MAX + 2];
    EXPECT_EQ(limits_set_tenant(l, 40, "bob", &spec, T0, &err), INFERD_OK);
    EXPECT_EQ(limits_n_tenants(l), 41);
    EXPECT_EQ(limits_set_tenant(l, 40, "eve", &other, T0, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "tenant number 40 is \"bob\", not \"eve\"");
    EXPECT_EQ(limits_set_tenant(l, LIMITS_TENANTS_MAX, "x", &spec, T0, &err), INFERD_EINVAL);
    EXPECT_STR(err.text, "tenant number 200000, at most 200000 tenants are possible");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    EXPECT_EQ(limits_set_tenant(l, 41, name, &spec, T0, &err), INFERD_EINVAL);
    name[LIMITS_NAME_BYTES_MAX] = 0;
    EXPECT_EQ(limits_set_tenant(l, 41, name, &spec, T0, &err), INFERD_OK);
    EXPECT_EQ(limits_set_tenant(l, 3, "carol", &other, T0, &err), INFERD_OK);
    limits_usage u;
    limits_get_usage(l, 40, noon, &u);
    EXPECT_STR(u.name, "bob");
    EXPECT_EQ(u.spec.requests_per_min, 1);
    limits_get_usage(l, 2, noon, &u); // in between: no name, no limits
    EXPECT_STR(u.name, "");
    /* One tenant's refusals are none of another's business. */
    EXPECT(limits_admit(l, 40, T0, noon, &(limits_ask){1, 1, false}, &answer));
    EXPECT(!limits_admit(l, 40, T0, noon, &(limits_ask){1, 1, false}, &answer));
    EXPECT(limits_admit(l, 3, T0, noon, &(limits_ask){0, 2, 1}, &answer));
    EXPECT(limits_admit(l, 2, T0, noon, &(limits_ask){0, 2, 1}, &answer));
    EXPECT_STR(limits_reason_name(LIMITS_TOO_LARGE), "too_large");
    EXPECT_STR(limits_reason_name(LIMITS_CLOSED), "closed");
    EXPECT_STR(limits_reason_name(LIMITS_REQUESTS), "requests");
    limits_destroy(l);
}

static void use_is_kept_and_restored(void) {
    limits *l = open_limits((limits_spec){.tokens_per_day = 1000, .tokens_per_month = 3000});
    limits_kept kept;
    uint64_t changes = limits_n_changes(l);
    EXPECT(!limits_keep(l, 0, noon, &kept));
    EXPECT(ask(l, T0, false, 1, 300));
    EXPECT(limits_n_changes(l) != changes);
    EXPECT(limits_keep(l, 0, noon, &kept));
    EXPECT_EQ(kept.day_tokens, 300); // reserved: might be used by now
    changes = limits_n_changes(l);
    settle(l, T0, 1, 300, 200);
    EXPECT(limits_n_changes(l) != changes);
    changes = limits_n_changes(l);
    EXPECT(!ask(l, T0, false, 1, 900));
    EXPECT(limits_n_changes(l) == changes); // a refusal changes nothing worth a write
    EXPECT(limits_keep(l, 0, noon + 5 * DAY_S, &kept));
    EXPECT_EQ(kept.day_begins_s, at_date(2026, 1, 1, 0)); // as it was left
    EXPECT_EQ(kept.day_tokens, 200);
    EXPECT_EQ(kept.month_tokens, 200);
    EXPECT(ask(l, T0, false, 1, 100));
    EXPECT(limits_keep(l, 0, noon + DAY_S, &kept)); // runs over midnight
    EXPECT_EQ(kept.day_begins_s, at_date(2026, 1, 2, 0));
    EXPECT_EQ(kept.day_tokens, 100);
    EXPECT_EQ(kept.month_tokens, 300);
    limits_destroy(l);
    l = open_limits((limits_spec){.tokens_per_day = 1000, .tokens_per_month = 3000});
    limits_restore(l, 0, &kept);
    EXPECT(!ask_at(l, T0, noon + DAY_S, false, 1, 901));
    EXPECT(ask_at(l, T0, noon + DAY_S, false, 1, 900));
    EXPECT_EQ(usage(l, noon + DAY_S).used_month, 300);
    EXPECT_EQ(usage(l, noon + 2 * DAY_S).used_day, 0);
    limits_destroy(l);
}

/* ---- which limit, and how long ---- */

/* Places that are all free are not what a request waits for. */
static void the_limit_that_stands_in_the_way_is_named(void) {
    static const uint32_t slots[] = {1, 2, 4, 64};
    for (size_t i = 0; i < INFERD_COUNT(slots); i++) {
        limits *l = open_limits(
            (limits_spec){.requests_per_min = 30, .tokens_per_min = 60, .concurrent = slots[i]});
        uint64_t now_us = T0;
        for (uint64_t k = 0; k < 30; k++) { // each ends before the next
            EXPECT(ask(l, now_us, false, 1, 1));
            settle(l, now_us += 1000, 1, 1, 1);
        }
        for (uint32_t k = 0; k < 5; k++) {
            EXPECT(!ask(l, now_us, false, 1, 1));
            EXPECT_EQ(answer.reason, LIMITS_REQUESTS);
            EXPECT_EQ(answer.retry_after_s, 2 + 2 * k); // one comes back in two seconds
        }
        limits_destroy(l);

        l = open_limits((limits_spec){.tokens_per_min = 6000, .concurrent = slots[i]});
        EXPECT(ask(l, T0, false, 1, 6000));
        settle(l, T0 + 1000, 1, 6000, 6000);
        EXPECT(!ask(l, T0 + 1000, false, 1, 1000));
        EXPECT_EQ(answer.reason, LIMITS_TOKENS);
        EXPECT_EQ(answer.retry_after_s, 10);
        limits_destroy(l);
    }

    /* Both are short: the one that is waited for the longest. */
    limits *l = open_limits((limits_spec){.tokens_per_min = 60, .concurrent = 1});
    EXPECT(ask(l, T0, false, 1, 60));
    EXPECT(!ask(l, T0, false, 1, 1)); // a token comes back in a second
    EXPECT_EQ(answer.reason, LIMITS_CONCURRENT);
    EXPECT(answer.retry_after_s > 10);
    limits_destroy(l);
}

/* A day of which only reservations are left comes back when they end; midnight may be far. */
static void what_running_requests_reserved_comes_back_before_midnight(void) {
    limits *l = open_limits((limits_spec){.tokens_per_day = 1000, .tokens_per_month = 4000});
    EXPECT(ask(l, T0, false, 1, 900));
    EXPECT(!ask(l, T0, false, 1, 200));
    EXPECT_EQ(answer.reason, LIMITS_DAY);
    EXPECT(answer.retry_after_s >= 1 && answer.retry_after_s <= LIMITS_RETRY_MAX_S);
    EXPECT(strstr(answer.text, "900 reserved by 1 running requests") != NULL);
    settle(l, T0 + 3 * S, 1, 900, 100);
    EXPECT(ask(l, T0 + 4 * S, false, 1, 200));
    EXPECT(!ask(l, T0 + 4 * S, false, 1, 800)); // 100 used, 200 reserved: as long as requests take
    EXPECT_EQ(answer.retry_after_s, 3);
    settle(l, T0 + 4 * S, 1, 200, 200);
    EXPECT(!ask(l, T0 + 5 * S, false, 1, 800)); // and now it is used
    EXPECT_EQ(answer.reason, LIMITS_DAY);
    EXPECT_EQ(answer.retry_after_s, DAY_S / 2);

    /* The month has room but for what runs, the day has none at all: the day is told. */
    set(l, (limits_spec){.tokens_per_day = 1000, .tokens_per_month = 1400}, T0 + 5 * S);
    EXPECT(ask(l, T0 + 5 * S, false, 1, 700));
    EXPECT(!ask(l, T0 + 5 * S, false, 1, 710));
    EXPECT_EQ(answer.reason, LIMITS_DAY);
    EXPECT_EQ(answer.retry_after_s, DAY_S / 2);
    limits_destroy(l);
}

/* ---- two hundred clients ---- */

enum { CLIENTS = 200, WARM_S = 60, RUN_S = 420, LATE_US = 200000 };

typedef struct load {
    const char *name;
    limits_spec spec;
    double per_s;       // what the limit lets pass on average, of requests as below
    uint32_t leave_pct; // of the refused never come back
    uint32_t n_hammer;  // clients that ask again after 100 ms, whatever they were told
} load;

typedef enum client_state { THINKING, REFUSED, RUNNING } client_state;

typedef struct client {
    client_state state;
    uint64_t at_us; // of its next event
    limits_ask ask;
    uint64_t used, duration_us;
    uint32_t n_refused;
} client;

typedef struct outcome {
    uint32_t n_first, n_first_good; // returns when told to, for the first time
    uint64_t n_requests, n_tokens;  // admitted and used after the warm-up
    double busy_s;
} outcome;

static uint64_t thinks_until(const load *d, uint64_t now_us) {
    double mean_s = CLIENTS / (1.3 * d->per_s); // 1.3 times what is possible
    return now_us + 1 + (uint64_t)(-log(1 - draw_part()) * mean_s * S);
}

static void ask_again(limits *l, const load *d, client *c, bool obeys, outcome *out) {
    bool late = c->at_us > T0 + WARM_S * (uint64_t)S;
    bool admitted = limits_admit(l, 0, c->at_us, noon, &c->ask, &answer);
    if (c->n_refused == 1 && obeys) out->n_first++, out->n_first_good += admitted;
    if (admitted) {
        c->state = RUNNING;
        out->n_requests += late ? c->ask.n_requests : 0;
        c->at_us += c->duration_us;
        return;
    }
    EXPECT(answer.retry_after_s >= 1 && answer.retry_after_s <= 60);
    c->state = REFUSED;
    c->n_refused++;
    c->ask.again = true;
    if (!obeys) {
        c->at_us += 100000;
    } else if (c->n_refused == 1 && draw_in(1, 100) <= d->leave_pct) {
        c->state = THINKING;
        c->at_us = thinks_until(d, c->at_us);
    } else {
        c->at_us += answer.retry_after_s * (uint64_t)S + draw_in(0, LATE_US);
    }
}

static void step_client(limits *l, const load *d, client *c, bool obeys, outcome *out) {
    if (c->state == RUNNING) {
        limits_settle(l, 0, c->at_us, noon, &c->ask, c->used);
        if (c->at_us > T0 + WARM_S * (uint64_t)S) {
            out->n_tokens += c->used;
            out->busy_s += (double)c->duration_us / S;
        }
        c->state = THINKING;
        c->at_us = thinks_until(d, c->at_us);
        return;
    }
    if (c->state == THINKING) { // 525 tokens and 6 s on average, of which 3/4 are used
        c->ask = (limits_ask){1, draw_in(50, 1000), false};
        c->used = c->ask.tokens - draw_in(0, c->ask.tokens / 2);
        c->duration_us = draw_in(2 * S, 10 * S);
        c->n_refused = 0;
    }
    ask_again(l, d, c, obeys, out);
}

static outcome run_load(const load *d, uint64_t n_seed) {
    client clients[CLIENTS] = {0};
    outcome out = {0};
    seed(n_seed);
    limits *l = open_limits(d->spec);
    limits_ask all = {d->spec.requests_per_min, d->spec.tokens_per_min,
                      false}; // no full bucket to begin
    EXPECT(limits_admit(l, 0, T0, noon, &all, &answer));
    limits_settle(l, 0, T0, noon, &all, all.tokens);
    for (int i = 0; i < CLIENTS; i++) clients[i].at_us = T0 + draw_in(0, S); // all at once
    for (;;) {
        client *c = clients;
        for (int i = 1; i < CLIENTS; i++)
            if (clients[i].at_us < c->at_us) c = &clients[i];
        if (c->at_us >= T0 + RUN_S * (uint64_t)S) break;
        step_client(l, d, c, c >= clients + d->n_hammer, &out);
    }
    EXPECT(limits_verify(l, 0));
    limits_destroy(l);
    return out;
}

static void expect_truthful(const load *d) {
    for (uint64_t n_seed = 1; n_seed <= 4; n_seed++) {
        outcome out = run_load(d, n_seed);
        double s = RUN_S - WARM_S, good = (double)out.n_first_good / out.n_first, used = 0;
        if (d->spec.requests_per_min > 0)
            used = (double)out.n_requests / s * 60 / d->spec.requests_per_min;
        else if (d->spec.tokens_per_min > 0)
            used = (double)out.n_tokens / s * 60 / d->spec.tokens_per_min;
        else
            used = out.busy_s / s / d->spec.concurrent;
        printf(
            "%s, seed %llu: %u of %u first retries admitted (%.1f %%), %.1f %% of the limit used\n",
            d->name, (unsigned long long)n_seed, out.n_first_good, out.n_first, 100 * good,
            100 * used);
        EXPECT(out.n_first >= 200);
        EXPECT(good >= 0.85);
        EXPECT(used >= 0.85 && used <= 1.1);
    }
}

static void retry_after_is_true_for_requests(void) {
    expect_truthful(&(load){"requests", {.requests_per_min = 240}, 4, 0, 0});
    expect_truthful(&(load){"requests, 30 % leave", {.requests_per_min = 240}, 4, 30, 0});
}
static void retry_after_is_true_for_tokens(void) {
    limits_spec spec = {.tokens_per_min = 120000};
    expect_truthful(&(load){"tokens", spec, 2000 / (525 * 0.75), 0, 0});
    expect_truthful(&(load){"tokens, 30 % leave", spec, 2000 / (525 * 0.75), 30, 0});
}
static void retry_after_is_true_for_slots(void) {
    expect_truthful(&(load){"at once", {.concurrent = 40}, 40 / 6.0, 0, 0});
    expect_truthful(&(load){"at once, 30 % leave", {.concurrent = 40}, 40 / 6.0, 30, 0});
}
/* Twenty of the clients ask ten times a second; the promises to the others hold. */
static void a_disobedient_client_harms_no_other(void) {
    expect_truthful(&(load){"requests, 20 hammer", {.requests_per_min = 240}, 4, 0, 20});
    expect_truthful(&(load){"at once, 20 hammer", {.concurrent = 40}, 40 / 6.0, 0, 20});
}

/* ---- few places, and requests of all lengths ---- */

typedef struct few {
    uint32_t concurrent, n_clients, mean_ms, think_ms;
    bool even; // all requests take the same time
} few;

static uint64_t wait_of(double mean_us) {
    return 1 + (uint64_t)(-log(1 - draw_part()) * mean_us);
}

/* Each thinks, asks, comes back when told to and runs, on and on. */
static void run_few(const few *d, uint64_t n_seed, uint32_t *n_first, uint32_t *n_good,
                    uint32_t *n_refused, uint32_t *n_minute) {
    enum { FEW_CLIENTS = 200, LEARN_S = 200, ALL_S = 3000, FIRST_MAX = 1500 };
    client clients[FEW_CLIENTS] = {0};
    seed(n_seed);
    limits *l = open_limits((limits_spec){.concurrent = d->concurrent});
    for (uint32_t i = 0; i < d->n_clients; i++) clients[i].at_us = T0 + draw_in(0, S);
    for (;;) {
        client *c = clients;
        for (uint32_t i = 1; i < d->n_clients; i++)
            if (clients[i].at_us < c->at_us) c = &clients[i];
        bool late = c->at_us > T0 + LEARN_S * (uint64_t)S;
        if (c->at_us > T0 + ALL_S * (uint64_t)S || *n_first >= FIRST_MAX) break;
        if (c->state == RUNNING) {
            limits_settle(l, 0, c->at_us, noon, &c->ask, 10);
            *c = (client){THINKING, .at_us = c->at_us + wait_of(d->think_ms * 1000.0)};
            continue;
        }
        if (c->state == THINKING) c->ask = (limits_ask){1, 10, false};
        bool in = limits_admit(l, 0, c->at_us, noon, &c->ask, &answer);
        if (c->n_refused == 1 && late) *n_first += 1, *n_good += in;
        c->state = in ? RUNNING : REFUSED;
        c->n_refused += !in;
        c->ask.again = !in;
        *n_refused += !in && late;
        *n_minute += answer.retry_after_s == LIMITS_RETRY_MAX_S && late;
        c->at_us += in ? (d->even ? d->mean_ms * 1000 : wait_of(d->mean_ms * 1000.0))
                       : answer.retry_after_s * (uint64_t)S + draw_in(0, 2000);
    }
    EXPECT(limits_verify(l, 0));
    limits_destroy(l);
}

/* Short requests were once told a minute each time, because the uncertainty of the very many that
 * end in a second was taken from the few places that can be free. */
static void retry_after_is_true_for_few_slots_and_short_requests(void) {
    static const few loads[] = {
        {1, 3, 50, 200, false},   {1, 3, 50, 200, true},     {1, 2, 5000, 5000, true},
        {2, 6, 50, 200, false},   {2, 6, 5000, 5000, true},  {4, 12, 50, 200, false},
        {4, 30, 300, 2000, true}, {4, 8, 5000, 5000, false}, {64, 150, 300, 300, false},
    };
    for (size_t i = 0; i < INFERD_COUNT(loads); i++) {
        uint32_t n_first = 0, n_good = 0, n_refused = 0, n_minute = 0;
        for (uint64_t n_seed = 1; n_seed <= 3; n_seed++)
            run_few(&loads[i], n_seed, &n_first, &n_good, &n_refused, &n_minute);
        printf("at most %u, %u clients, %u ms: %u of %u first retries admitted, %u of %u told a "
               "minute\n",
               loads[i].concurrent, loads[i].n_clients, loads[i].mean_ms, n_good, n_first, n_minute,
               n_refused);
        EXPECT(n_first >= 100);
        /* Of one slot nothing can be left for retries. */
        EXPECT(n_good * 10 >= n_first * (loads[i].concurrent > 1 ? 7 : 4));
        EXPECT(n_minute * 20 <= n_refused);
    }
}

static const test_case cases[] = {
    TEST(no_limits_refuse_nothing),
    TEST(requests_refill_one_by_one),
    TEST(tokens_are_given_back_and_charged),
    TEST(what_fits_no_window_is_told_so),
    TEST(slots_are_given_back),
    TEST(waiting_for_a_slot_follows_how_long_requests_take),
    TEST(headers_spell_times_like_clients_read_them),
    TEST(refused_clients_are_told_different_times),
    TEST(the_line_gets_shorter_without_its_clients),
    TEST(a_place_that_has_passed_is_left_for_a_second),
    TEST(a_first_try_leaves_what_the_line_needs),
    TEST(a_client_that_comes_early_gets_a_later_time),
    TEST(a_debt_comes_before_the_line),
    TEST(no_drift_however_small_the_steps),
    TEST(the_last_part_is_waited_for),
    TEST(nothing_is_lost_or_made),
    TEST(the_calendar_is_the_systems),
    TEST(a_day_ends_at_midnight),
    TEST(a_month_is_as_long_as_it_is),
    TEST(the_last_second_of_time_is_survived),
    TEST(a_clock_set_back_gives_nothing_twice),
    TEST(a_clock_that_was_plainly_wrong_freezes_nothing),
    TEST(limits_change_while_requests_run),
    TEST(a_quota_lowered_below_its_use_is_used_up),
    TEST(a_closed_limit_lets_nothing_in_until_it_is_opened),
    TEST(a_change_counts_from_its_moment),
    TEST(numbers_keep_their_names),
    TEST(use_is_kept_and_restored),
    TEST(retry_after_is_true_for_requests),
    TEST(retry_after_is_true_for_tokens),
    TEST(retry_after_is_true_for_slots),
    TEST(a_disobedient_client_harms_no_other),
    TEST(retry_after_is_true_for_few_slots_and_short_requests),
    TEST(the_limit_that_stands_in_the_way_is_named),
    TEST(what_running_requests_reserved_comes_back_before_midnight),
};
TEST_MAIN(cases)
