/* test_admission.c - what a request reserves, what it costs, what retries get, and the file.
 */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "admission.h"
#include "inferd/clock.h"
#include "inferd/siphash.h"
#include "quota_file.h"
#include "tenant_limits.h"

enum { N_SLOTS = 64, QUEUE_SLOTS = 4096, N_NAMES = 4, CONTEXT = 1000, DAY_S = 86400 };
static const int64_t noon_s = (int64_t)20000 * DAY_S + DAY_S / 2;
static char *names[] = {"a", "b", "c", "d", "e", "f"};

/* In the limits of these tests 0 is what was not given; this is a limit of 0. */
#define ZERO (CONFIG_NO_LIMIT - 1)

static uint64_t as_configured(uint64_t limit) {
    return limit == 0 ? CONFIG_NO_LIMIT : limit == ZERO ? 0 : limit;
}

/* Names in the order of their numbers; the configuration has its own. */
static bool update(admission *g, uint32_t n_names, const config_tenant_limits *quotas,
                   const int *order, uint32_t n) {
    config_tenant tenants[INFERD_COUNT(names)] = {0};
    inferd_config c = {.tenants = tenants, .n_tenants = n};
    inferd_err err = {0};
    for (uint32_t i = 0; i < n; i++) {
        tenants[i].name = names[order[i]];
        tenants[i].limits =
            (config_tenant_limits){.requests_per_min = as_configured(quotas[i].requests_per_min),
                                   .tokens_per_min = as_configured(quotas[i].tokens_per_min),
                                   .concurrent = as_configured(quotas[i].concurrent),
                                   .tokens_per_day = as_configured(quotas[i].tokens_per_day),
                                   .tokens_per_month = as_configured(quotas[i].tokens_per_month)};
    }
    return admission_update(g, names, n_names, &c, &err);
}

static admission *open_with(const char *folder, config_tenant_limits quota) {
    static const int first[] = {0};
    admission *g = NULL;
    inferd_err err = {0};
    if (admission_create(folder, N_SLOTS, N_NAMES, &g, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT(g != NULL && update(g, 1, &quota, first, 1));
    queue_slots_init(admission_queue_slots(g), QUEUE_SLOTS);
    return g;
}

static gen_request requests[8];
static gen_request *request_list[8];

/* n_prompts prompts of 10, 20, ... tokens with n choices each. */
static admission_request ask_for(uint32_t n_prompts, uint32_t n, uint32_t max_tokens) {
    for (uint32_t i = 0; i < n_prompts * n; i++) {
        requests[i] = (gen_request){.n_prompt = 10 * (i / n + 1), .max_tokens = max_tokens};
        request_list[i] = &requests[i];
    }
    return (admission_request){.context = CONTEXT,
                               .requests = request_list,
                               .n_requests = n_prompts * n,
                               .n_per_prompt = n,
                               .arrival_us = 1000};
}

#define GRANT(t) (&(admission_grant){.ticket = (t)})

/* With as many open queue slots as it has choices. */
static bool ask_limits(admission *g, const admission_request *ask, uint64_t now_us, int64_t unix_s,
                       admission_ticket **out, api_error *e) {
    if (!admission_ask_limits(g, ask, now_us, unix_s, out, e)) return false;
    queue_ask slots = {{QUEUE_NO_TENANT, 0, GEN_NORMAL}, ask->n_requests, true};
    queue_slot at;
    uint32_t after_s;
    return queue_slots_ask(admission_queue_slots(g), &slots, now_us, &at, &after_s) ==
           QUEUE_HAS_SLOTS;
}

static limits_usage usage_of(admission *g, uint32_t tenant) {
    limits_usage u;
    limits_get_usage(admission_limits(g), tenant, noon_s, &u);
    return u;
}

/* At 5,000 us; a request of ask_for arrived at 1,000. */
static gen_event done(gen_finish finish, uint32_t n_output, uint64_t queued_us) {
    gen_event ev = {.kind = GEN_EV_DONE, .at_us = 5000};
    ev.done.finish = finish;
    ev.done.n_output = n_output;
    ev.done.queued_us = queued_us;
    return ev;
}

static void hash_is_siphash(void) {
    /* The published vectors of SipHash-2-4: key 00..0f, texts "", 00, 00 01, ... */
    static const uint64_t expected[] = {
        0x726fdb47dd0e0e31u, 0x74f839c593dc67fdu, 0x0d6c8009d9a94f5au,
        0x85676696d7fb7e2du, 0xcf2794e0277187b7u, 0x18765564cd99a68du,
        0xcbc9466e58fee3ceu, 0xab0200f58b01d137u, 0x93f5f5799a932462u};
    unsigned char k[16];
    char text[16];
    for (int i = 0; i < 16; i++) k[i] = (unsigned char)i, text[i] = (char)i;
    for (size_t n = 0; n < INFERD_COUNT(expected); n++) EXPECT(siphash(k, text, n) == expected[n]);
}

static void an_estimate_makes_nothing_too_large(void) {
    limits_spec none = {0}, minute = {.tokens_per_min = 100};
    limits_spec all = {.tokens_per_min = 100, .tokens_per_day = 60, .tokens_per_month = 80};
    EXPECT_EQ(admission_count_tokens(&none, 10, 512, 2, true), 1034);
    EXPECT_EQ(admission_count_tokens(&minute, 10, 30, 3, true), 100);
    EXPECT_EQ(admission_count_tokens(&minute, 10, 31, 3, true), 100);
    EXPECT_EQ(admission_count_tokens(&minute, 10, 31, 3, false), 103);
    EXPECT_EQ(admission_count_tokens(&all, 10, 31, 3, true), 60);
    EXPECT_EQ(admission_count_tokens(&minute, 99, 31, 3, true), 102); // a token each is no estimate
}

static void prompts_count_once_and_outputs_each(void) {
    admission *g = open_with(NULL, (config_tenant_limits){0});
    api_error e = {0};
    admission_ticket *t;
    admission_request ask = ask_for(2, 3, 5);
    EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
    EXPECT_EQ(usage_of(g, 0).running, 6);
    EXPECT_EQ(usage_of(g, 0).reserved, 10 + 20 + 6 * 5);
    for (uint32_t i = 0; i < 6; i++) admission_hold(g, GRANT(t), 10 + i, i);
    for (uint32_t i = 0; i < 6; i++) {
        gen_event ev = done(GEN_LENGTH, i, 10);
        EXPECT_EQ(usage_of(g, 0).running, 6); // until the last has ended
        admission_on_done(g, 10 + i, &ev, 6000, noon_s);
        admission_on_done(g, 10 + i, &ev, 6000, noon_s); // its slot is free: nothing
    }
    EXPECT_EQ(usage_of(g, 0).running, 0);
    EXPECT_EQ(usage_of(g, 0).reserved, 0);
    EXPECT_EQ(usage_of(g, 0).used_day, 10 + 20 + 0 + 1 + 2 + 3 + 4 + 5);
    admission_destroy(g);
}

static void what_was_computed_is_charged(void) {
    static const struct {
        uint64_t used;
        gen_finish finish;
        uint32_t n_output;
        uint64_t queued_us;
    } rows[] = {
        {.finish = GEN_STOP, .n_output = 3, .queued_us = 10, .used = 13},
        {.finish = GEN_LENGTH, .n_output = 0, .queued_us = 10, .used = 10},     // scored
        {.finish = GEN_LENGTH, .n_output = 0, .queued_us = 4000, .used = 10},   // in no time
        {.finish = GEN_CANCELLED, .n_output = 2, .queued_us = 10, .used = 12},  // left
        {.finish = GEN_CANCELLED, .n_output = 0, .queued_us = 10, .used = 10},  // in its prompt
        {.finish = GEN_CANCELLED, .n_output = 0, .queued_us = 4000, .used = 0}, // never begun
        {.finish = GEN_TIMEOUT, .n_output = 0, .queued_us = 4000, .used = 0},
        {.finish = GEN_TIMEOUT, .n_output = 4, .queued_us = 10, .used = 14},
        {.finish = GEN_ERROR, .n_output = 0, .queued_us = 0, .used = 0}, // refused by the engine
        {.finish = GEN_ERROR, .n_output = 1, .queued_us = 3999, .used = 11},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        admission *g = open_with(NULL, (config_tenant_limits){.tokens_per_min = 6000});
        api_error e = {0};
        admission_ticket *t;
        admission_request ask = ask_for(1, 1, 5);
        gen_event ev = done(rows[i].finish, rows[i].n_output, rows[i].queued_us);
        EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
        admission_hold(g, GRANT(t), 0, 0);
        admission_on_done(g, 0, &ev, 1000, noon_s);
        EXPECT_EQ(usage_of(g, 0).used_day, rows[i].used);
        EXPECT_EQ(usage_of(g, 0).running, 0);
        EXPECT(limits_verify(admission_limits(g), 0));
        admission_destroy(g);
    }
}

/* The engine's inbox was full after some of its choices. */
static void choices_that_were_never_submitted_end_with_the_others(void) {
    admission *g = open_with(NULL, (config_tenant_limits){0});
    api_error e = {0};
    admission_ticket *t;
    admission_request ask = ask_for(1, 3, 5);
    EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
    admission_hold(g, GRANT(t), 0, 0);
    admission_drop(g, GRANT(t), 2, 1000, noon_s);
    EXPECT_EQ(usage_of(g, 0).running, 3);
    gen_event ev = done(GEN_CANCELLED, 1, 10);
    admission_on_done(g, 0, &ev, 5000, noon_s);
    EXPECT_EQ(usage_of(g, 0).running, 0);
    EXPECT_EQ(usage_of(g, 0).used_day, 11);
    EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
    admission_drop(g, GRANT(t), 3, 1000, noon_s);
    EXPECT_EQ(usage_of(g, 0).running, 0);
    EXPECT_EQ(usage_of(g, 0).used_day, 11);
    admission_destroy(g);
}

static void an_output_is_guessed_from_those_before(void) {
    admission *g = open_with(NULL, (config_tenant_limits){0});
    api_error e = {0};
    admission_ticket *t;
    const uint64_t expected[] = {512, 12};
    for (int round = 0; round < 2; round++) {
        admission_request ask = ask_for(1, 2, GEN_NO_MAX);
        EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
        EXPECT_EQ(usage_of(g, 0).reserved, 10 + 2 * expected[round]);
        admission_drop(g, GRANT(t), 2, 1000, noon_s);
        for (int i = 0; i < 30; i++) admission_note_output(g, 0, 12);
    }
    admission_request two = ask_for(2, 2, GEN_NO_MAX);
    EXPECT(ask_limits(g, &two, 1000, noon_s, &t, &e));
    EXPECT_EQ(usage_of(g, 0).reserved, 10 + 20 + 4 * 12);
    admission_drop(g, GRANT(t), 4, 1000, noon_s);
    admission_request ask = ask_for(1, 1, GEN_NO_MAX);
    ask.name_idx = 1; // another model
    ask.context = 100;
    EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
    EXPECT_EQ(usage_of(g, 0).reserved, 100); // what its context leaves
    admission_drop(g, GRANT(t), 1, 1000, noon_s);
    admission_destroy(g);
}

/* The guess of 512 alone refused a chat that wanted ten tokens of the last hundred. */
static void a_guess_is_cut_to_what_is_left_of_the_day(void) {
    admission *g = open_with(NULL, (config_tenant_limits){.tokens_per_day = 1000});
    uint64_t now_us = clock_now_us();
    admission_ticket *first, *second;
    api_error e = {0};
    admission_request ask = ask_for(1, 1, 900);
    EXPECT(ask_limits(g, &ask, now_us, noon_s, &first, &e));
    uint64_t taken = usage_of(g, 0).reserved;
    EXPECT(taken >= 900 && taken < 1000);
    admission_request guess = ask_for(1, 1, GEN_NO_MAX);
    EXPECT(ask_limits(g, &guess, now_us, noon_s, &second, &e));
    EXPECT_EQ(usage_of(g, 0).reserved, 1000); // all that was left
    admission_ticket *third;
    EXPECT(!ask_limits(g, &guess, now_us, noon_s, &third, &e));
    EXPECT_EQ(e.fault, API_QUOTA);
    EXPECT(e.retry_after_s >= 1 && e.retry_after_s <= LIMITS_RETRY_MAX_S); // until one has ended
    admission_drop(g, GRANT(first), 1, now_us, noon_s);
    admission_drop(g, GRANT(second), 1, now_us, noon_s);
    admission_destroy(g);
}

static void each_refusal_has_its_code(void) {
    static const struct {
        config_tenant_limits quota;
        int status;
        const char *type, *code;
        unsigned least_s, most_s;
    } rows[] = {
        {{.requests_per_min = 1}, 429, "requests", "rate_limit_exceeded", 59, 60},
        {{.tokens_per_min = 15}, 429, "tokens", "rate_limit_exceeded", 59, 60},
        {{.concurrent = 1}, 429, "requests", "concurrency_limit_exceeded", 1, 60},
        /* all of it is reserved, and none used */
        {{.tokens_per_day = 15}, 429, "insufficient_quota", "insufficient_quota", 1, 60},
        {{.tokens_per_month = 15}, 429, "insufficient_quota", "insufficient_quota", 1, 60},
        {{.tokens_per_day = 14}, 400, "invalid_request_error", "request_exceeds_limit", 0, 0},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        admission *g = open_with(NULL, rows[i].quota);
        api_error first = {0}, second = {0};
        admission_ticket *t = NULL, *u = NULL;
        admission_request ask = ask_for(1, 1, 5);
        uint64_t now_us = clock_now_us();
        bool good = ask_limits(g, &ask, now_us, noon_s, &t, &first);
        EXPECT_EQ(good, rows[i].status == 429);
        EXPECT(!ask_limits(g, &ask, now_us, noon_s, &u, &second));
        EXPECT_EQ(second.status, rows[i].status);
        EXPECT_STR(second.type, rows[i].type);
        EXPECT_STR(second.code, rows[i].code);
        EXPECT(second.retry_after_s >= rows[i].least_s && second.retry_after_s <= rows[i].most_s);
        EXPECT(second.param[0] == 0 && second.message[0] != 0);
        if (good) admission_drop(g, GRANT(t), 1, now_us, noon_s);
        admission_destroy(g);
    }
}

/* Its client leaves at once: that costs a request, and no tokens. */
static void leave(admission *g, admission_ticket *t, uint64_t now_us, int64_t unix_s) {
    gen_event ev = done(GEN_CANCELLED, 0, 0);
    admission_hold(g, GRANT(t), N_SLOTS - 1, 0);
    admission_on_done(g, N_SLOTS - 1, &ev, now_us, unix_s);
}

/* What the engine refuses, or never got, costs neither a request nor tokens; what waits until its
 * time is over, or is left, costs a request. */
static void what_the_engine_refuses_costs_nothing(void) {
    static const struct {
        gen_finish finish;
        uint32_t n_output, n_refused; // how many of three are refused then
    } rows[] = {{GEN_ERROR, 0, 0}, {GEN_ERROR, 1, 1}, {GEN_TIMEOUT, 0, 1}, {GEN_CANCELLED, 0, 1}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        admission *g = open_with(NULL, (config_tenant_limits){.requests_per_min = 2});
        admission_request ask = ask_for(1, 1, 5);
        uint32_t n_refused = 0;
        for (int k = 0; k < 3; k++) {
            admission_ticket *t;
            api_error e = {0};
            gen_event ev = done(rows[i].finish, rows[i].n_output, 0);
            if (!ask_limits(g, &ask, 1000, noon_s, &t, &e)) {
                n_refused++;
                continue;
            }
            admission_hold(g, GRANT(t), 0, 0);
            admission_on_done(g, 0, &ev, 1000, noon_s);
        }
        EXPECT_EQ(n_refused, rows[i].n_refused);
        admission_destroy(g);
    }
    admission *g = open_with(NULL, (config_tenant_limits){.requests_per_min = 2});
    admission_request ask = ask_for(1, 2, 5);
    admission_ticket *t;
    api_error e = {0};
    for (int k = 0; k < 3; k++) {
        EXPECT(ask_limits(g, &ask, 1000, noon_s, &t, &e));
        admission_drop(g, GRANT(t), 2, 1000, noon_s); // there was no device
    }
    admission_destroy(g);
}

/* -- retries -- */

/* Twenty clients: each comes when it was told and says so, and all are let in then; first tries at
 * the same moment are not. */
static void clients_that_say_that_they_retry_are_let_in(void) {
    enum { N = 20, PER_MIN = 60 };
    admission *g = open_with(NULL, (config_tenant_limits){.requests_per_min = PER_MIN});
    uint64_t now_us = clock_now_us(), due_us[N];
    admission_ticket *t;
    admission_request ask = ask_for(1, 1, 5);
    for (int i = 0; i < PER_MIN; i++) {
        api_error e = {0};
        EXPECT(ask_limits(g, &ask, now_us, noon_s, &t, &e));
        leave(g, t, now_us, noon_s);
    }
    for (int i = 0; i < N; i++) {
        api_error e = {0};
        EXPECT(!ask_limits(g, &ask, now_us, noon_s, &t, &e));
        due_us[i] = now_us + (uint64_t)e.retry_after_s * 1000000;
        EXPECT_EQ(due_us[i], now_us + (uint64_t)(i + 1) * 1000000);
    }
    for (int i = 0; i + 1 < N; i++) {
        api_error e = {0}, other = {0};
        ask.again = false;
        EXPECT(!ask_limits(g, &ask, due_us[i], noon_s, &t, &other));
        ask.again = true;
        EXPECT(ask_limits(g, &ask, due_us[i], noon_s, &t, &e));
        leave(g, t, due_us[i], noon_s);
    }
    admission_destroy(g);
}

/* The queue is full and its line longer than a minute: no body is read, except for a kept slot. */
static void an_overload_is_known_before_the_body(void) {
    enum { N_ALL = 32, N_OPEN = 30 };
    admission *g = open_with(NULL, (config_tenant_limits){0});
    queue_slots *p = admission_queue_slots(g);
    uint64_t now_us = clock_now_us();
    queue_slots_init(p, N_ALL);
    queue_ask one = {{QUEUE_NO_TENANT, 0, GEN_NORMAL}, 1, true};
    queue_slot at;
    uint32_t after_s = 0;
    EXPECT_EQ(admission_is_overloaded(g, -1, GEN_NORMAL, now_us), 0);
    for (int i = 0; i < N_OPEN; i++)
        EXPECT_EQ(queue_slots_ask(p, &one, now_us, &at, &after_s), QUEUE_HAS_SLOTS);
    EXPECT_EQ(admission_is_overloaded(g, -1, GEN_NORMAL, now_us), 0); // a minute is not full
    while (admission_refuse(g, 1, now_us) <= QUEUE_MAX_S) continue;
    EXPECT_EQ(admission_is_overloaded(g, -1, GEN_NORMAL, now_us), QUEUE_MAX_S + 1);
    EXPECT_EQ(admission_is_overloaded(g, -1, GEN_HIGH, now_us), 0);
    EXPECT_EQ(admission_is_overloaded(g, -1, GEN_NORMAL, now_us + 30 * 1000000), 0);
    admission_destroy(g);
}

/* -- headers, configuration -- */

static void headers_are_lines(void) {
    admission *g = open_with(NULL, (config_tenant_limits){.requests_per_min = 6});
    char lines[ADMISSION_LINES_BYTES];
    admission_write_headers(g, 0, clock_now_us(), lines);
    EXPECT_STR(lines, "x-ratelimit-limit-requests: 6\nx-ratelimit-remaining-requests: 6\n"
                      "x-ratelimit-reset-requests: 0s\n");
    admission_write_headers(g, 99, clock_now_us(), lines); // no such tenant
    EXPECT_STR(lines, "");
    admission_destroy(g);
    g = open_with(
        NULL, (config_tenant_limits){.requests_per_min = UINT32_MAX, .tokens_per_min = UINT32_MAX});
    admission_write_headers(g, 0, clock_now_us(), lines);
    EXPECT(strstr(lines, "x-ratelimit-remaining-tokens: 4294967295\n") != NULL);
    admission_destroy(g);
    g = open_with(NULL, (config_tenant_limits){.concurrent = 1, .tokens_per_day = 1});
    admission_write_headers(g, 0, clock_now_us(), lines);
    EXPECT_STR(lines, "");
    admission_destroy(g);
}

/* An operator stops a tenant while it works: what runs ends as ever and is charged, and nobody is
 * told a time. */
static void a_limit_of_zero_lets_nothing_new_in(void) {
    static const struct {
        config_tenant_limits quota;
        const char *name, *header;
    } rows[] = {
        {{.requests_per_min = ZERO}, "requests_per_min", "-requests: 0\n"},
        {{.tokens_per_min = ZERO}, "tokens_per_min", "-tokens: 0\n"},
        {{.concurrent = ZERO}, "concurrent", NULL},
        {{.tokens_per_day = ZERO}, "tokens_per_day", NULL},
        {{.tokens_per_month = ZERO}, "tokens_per_month", NULL},
        {{.concurrent = 9, .tokens_per_day = 1, .tokens_per_month = ZERO},
         "tokens_per_month",
         NULL},
    };
    static const int first[] = {0};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        admission *g = open_with(NULL, (config_tenant_limits){.tokens_per_day = 1000});
        admission_request ask = ask_for(1, 1, 5);
        admission_ticket *t = NULL, *u = NULL;
        char lines[ADMISSION_LINES_BYTES], sentence[128], limit[64], remaining[64];
        uint64_t now_us = clock_now_us();
        api_error error = {0};
        EXPECT(ask_limits(g, &ask, now_us, noon_s, &t, &error));
        EXPECT(update(g, 1, &rows[i].quota, first, 1));
        EXPECT(!ask_limits(g, &ask, now_us, noon_s, &u, &error));
        EXPECT_EQ(error.status, 429);
        EXPECT_STR(error.type, "insufficient_quota");
        EXPECT_STR(error.code, "insufficient_quota");
        EXPECT_EQ(error.retry_after_s, 0);
        snprintf(sentence, sizeof sentence, "limits.%s of tenant a is 0: nothing is admitted",
                 rows[i].name);
        EXPECT_STR(error.message, sentence);
        EXPECT_EQ(usage_of(g, 0).refused[LIMITS_CLOSED], 1);
        admission_write_headers(g, 0, now_us, lines);
        if (rows[i].header == NULL) {
            EXPECT_STR(lines, "");
        } else {
            snprintf(limit, sizeof limit, "limit%s", rows[i].header);
            snprintf(remaining, sizeof remaining, "remaining%s", rows[i].header);
            EXPECT(strstr(lines, limit) != NULL && strstr(lines, remaining) != NULL);
            EXPECT(strstr(lines, "reset") == NULL);
        }
        gen_event ev = done(GEN_LENGTH, 5, 10);
        admission_hold(g, GRANT(t), 3, 0);
        admission_on_done(g, 3, &ev, now_us, noon_s);
        EXPECT_EQ(usage_of(g, 0).used_day, 15);
        EXPECT_EQ(usage_of(g, 0).reserved, 0);
        EXPECT(!ask_limits(g, &ask, now_us, noon_s, &u, &error));
        /* At once, with a number or without. */
        config_tenant_limits open = {0};
        if (i % 2 == 0)
            open = (config_tenant_limits){
                .requests_per_min = 5, .tokens_per_min = 20, .concurrent = 1, .tokens_per_day = 30};
        EXPECT(update(g, 1, &open, first, 1));
        EXPECT(ask_limits(g, &ask, now_us, noon_s, &u, &error));
        leave(g, u, now_us, noon_s);
        admission_destroy(g);
    }
}

static void tenants_have_the_limits_of_their_names(void) {
    admission *g = open_with(NULL, (config_tenant_limits){.concurrent = 1});
    static const int order[] = {2, 0, 1};
    const config_tenant_limits quotas[] = {
        {.concurrent = 30}, {.concurrent = 10}, {.concurrent = 20}};
    EXPECT(update(g, 3, quotas, order, 3));
    for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(usage_of(g, i).spec.concurrent, 10 * (i + 1));
    static const int left[] = {1};
    const config_tenant_limits fewer[] = {{.requests_per_min = 5}};
    EXPECT(update(g, 3, fewer, left, 1)); // a and c are in it no more
    EXPECT_EQ(usage_of(g, 0).spec.concurrent, 10);
    EXPECT_EQ(usage_of(g, 1).spec.concurrent, 0);
    EXPECT_EQ(usage_of(g, 1).spec.requests_per_min, 5);
    EXPECT(update(NULL, 3, fewer, left, 1));
    admission_destroy(g);
}

/* -- the file -- */

static char folder[64], path[128];

static void make_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/inferd-gate-XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/" ADMISSION_QUOTA_FILE, folder);
}

static void remove_folder(void) {
    unlink(path);
    EXPECT_EQ(rmdir(folder), 0);
}

static void use_some(admission *g, uint32_t n_output) {
    api_error e = {0};
    admission_ticket *t;
    admission_request ask = ask_for(1, 1, n_output);
    EXPECT(ask_limits(g, &ask, clock_now_us(), time(NULL), &t, &e));
    admission_hold(g, GRANT(t), 0, 0);
    gen_event ev = done(GEN_LENGTH, n_output, 10);
    admission_on_done(g, 0, &ev, clock_now_us(), time(NULL));
}

static uint64_t used_now(admission *g, uint32_t tenant) {
    limits_usage u;
    limits_get_usage(admission_limits(g), tenant, time(NULL), &u);
    return u.used_month;
}

static void use_comes_back_after_a_restart(void) {
    make_folder();
    EXPECT_EQ(rmdir(folder), 0); // it is made
    admission *g = open_with(folder, (config_tenant_limits){.tokens_per_day = 1000});
    use_some(g, 40);
    EXPECT(access(path, F_OK) != 0);
    admission_destroy(g);
    struct stat st;
    EXPECT(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    EXPECT(stat(folder, &st) == 0 && (st.st_mode & 0777) == 0700);
    g = open_with(folder, (config_tenant_limits){.tokens_per_day = 1000});
    EXPECT_EQ(used_now(g, 0), 50);
    use_some(g, 1);
    admission_destroy(g);
    g = open_with(folder, (config_tenant_limits){0});
    EXPECT_EQ(used_now(g, 0), 61);
    admission_destroy(g);
    remove_folder();
}

static void a_folder_has_one_daemon(void) {
    inferd_err err = {0};
    admission *second = NULL;
    make_folder();
    admission *g = open_with(folder, (config_tenant_limits){0});
    EXPECT_EQ(admission_create(folder, 4, 4, &second, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "in use by another process") != NULL);
    admission_destroy(g);
    g = open_with(folder, (config_tenant_limits){0});
    admission_destroy(g);
    remove_folder();
}

static uint64_t written(void) {
    inferd_err err = {0};
    quota_file *q = NULL;
    limits *l = limits_create();
    limits_kept kept = {0};
    EXPECT_EQ(quota_file_read(path, &q, &err), INFERD_OK);
    EXPECT_EQ(limits_set_tenant(l, 0, "a", &(limits_spec){0}, 0, &err), INFERD_OK);
    if (quota_file_restore(q, l, 0)) limits_keep(l, 0, time(NULL), &kept);
    limits_destroy(l);
    quota_file_destroy(q);
    return kept.month_tokens;
}

static void wait_for(uint64_t tokens) {
    for (int i = 0; i < 500 && written() != tokens; i++) usleep(2000);
    EXPECT_EQ(written(), tokens);
}

/* Ticks write it, and not the end: the thread needs a moment. */
static void ticks_write_the_file(void) {
    make_folder();
    admission *g = open_with(folder, (config_tenant_limits){.tokens_per_day = 1000});
    use_some(g, 40);
    uint64_t now_us = clock_now_us() - QUOTA_FILE_PERIOD_US;
    admission_tick(g, now_us);
    wait_for(50);
    use_some(g, 1);
    usleep(20000); // the thread is done with the first
    admission_tick(g, now_us + 1000);
    admission_tick(g, now_us + QUOTA_FILE_PERIOD_US);
    wait_for(61);
    use_some(g, 2);
    admission_destroy(g); // too soon for a tick, and written all the same
    EXPECT_EQ(written(), 73);
    admission_tick(NULL, 0);
    remove_folder();
}

/* What runs at the end counts with what it reserved, as if it had been killed. */
static void what_runs_at_the_end_counts_in_full(void) {
    make_folder();
    admission *g = open_with(folder, (config_tenant_limits){.tokens_per_day = 1000});
    api_error e = {0};
    admission_ticket *t;
    admission_request ask = ask_for(1, 2, 100);
    EXPECT(ask_limits(g, &ask, clock_now_us(), time(NULL), &t, &e));
    admission_hold(g, GRANT(t), 3, 0);
    admission_hold(g, GRANT(t), 4, 1);
    admission_destroy(g); // frees the ticket too
    g = open_with(folder, (config_tenant_limits){.tokens_per_day = 1000});
    EXPECT_EQ(used_now(g, 0), 210);
    admission_destroy(g);
    remove_folder();
}

/* A tenant that a reload brings finds its use. */
static void tenants_that_come_later_find_their_use(void) {
    static const int both[] = {0, 1};
    const config_tenant_limits quotas[2] = {{.tokens_per_day = 1000}, {.tokens_per_day = 1000}};
    make_folder();
    admission *g = open_with(folder, quotas[0]);
    EXPECT(update(g, 2, quotas, both, 2));
    api_error e = {0};
    admission_ticket *t;
    admission_request ask = ask_for(1, 1, 5);
    ask.tenant = 1;
    EXPECT(ask_limits(g, &ask, clock_now_us(), time(NULL), &t, &e));
    admission_hold(g, GRANT(t), 0, 0);
    gen_event ev = done(GEN_LENGTH, 5, 10);
    admission_on_done(g, 0, &ev, clock_now_us(), time(NULL));
    admission_destroy(g);
    g = open_with(folder, quotas[0]);
    EXPECT_EQ(used_now(g, 0), 0);
    EXPECT(update(g, 2, quotas, both, 2));
    EXPECT_EQ(used_now(g, 1), 15);
    EXPECT(update(g, 2, quotas, both, 2)); // and not twice
    EXPECT_EQ(used_now(g, 1), 15);
    admission_destroy(g);
    remove_folder();
}

static void a_file_that_cannot_be_used_is_an_error(void) {
    make_folder();
    FILE *file = fopen(path, "w");
    fputs("{\"version\":1,\"tenants\":[]}", file);
    fclose(file);
    admission *g = NULL;
    inferd_err err = {0};
    EXPECT_EQ(admission_create(folder, N_SLOTS, N_NAMES, &g, &err), INFERD_EFORMAT);
    EXPECT(g == NULL && strstr(err.text, path) != NULL);
    remove_folder();
    make_folder();
    EXPECT_EQ(rmdir(folder), 0);
    err = (inferd_err){0};
    snprintf(path, sizeof path, "%s/deeper", folder);
    EXPECT_EQ(admission_create(path, N_SLOTS, N_NAMES, &g, &err), INFERD_EIO);
    EXPECT(g == NULL && strstr(err.text, path) != NULL);
    admission_destroy(NULL);
}

static const test_case cases[] = {
    TEST(hash_is_siphash),
    TEST(an_estimate_makes_nothing_too_large),
    TEST(prompts_count_once_and_outputs_each),
    TEST(what_was_computed_is_charged),
    TEST(choices_that_were_never_submitted_end_with_the_others),
    TEST(an_output_is_guessed_from_those_before),
    TEST(a_guess_is_cut_to_what_is_left_of_the_day),
    TEST(each_refusal_has_its_code),
    TEST(what_the_engine_refuses_costs_nothing),
    TEST(clients_that_say_that_they_retry_are_let_in),
    TEST(an_overload_is_known_before_the_body),
    TEST(headers_are_lines),
    TEST(a_limit_of_zero_lets_nothing_new_in),
    TEST(tenants_have_the_limits_of_their_names),
    TEST(use_comes_back_after_a_restart),
    TEST(a_folder_has_one_daemon),
    TEST(ticks_write_the_file),
    TEST(what_runs_at_the_end_counts_in_full),
    TEST(tenants_that_come_later_find_their_use),
    TEST(a_file_that_cannot_be_used_is_an_error),
};
TEST_MAIN(cases)
