/* test_engine.c - the engine as a front sees it: a thread, two rings, and a device that computes a
 * pure function of the tokens. */
#include "test.h"

#include "engine_private.h"
#include "fake_device.h"
#include "sched_state.h"
#include "inferd/clock.h"

enum { REQUESTS_MAX = 512 };

typedef struct outcome {
    tok_id tokens[512];
    uint32_t n_tokens, n_done;
    gen_event done;
} outcome;

/* A front: an engine, the wake it is called by, and what came out so far. */
typedef struct front {
    fake_device device;
    engine *e;
    atomic_uint n_wakes;
    outcome *outcomes; // [REQUESTS_MAX] by id
    uint32_t n_done;
} front;

static const model_policy plain = {
    .prio = GEN_NORMAL, .weight = 1, .keep_alive_us = POLICY_NEVER, .replicas_min = 1};

static void on_wake(void *ctx) {
    atomic_fetch_add(&((front *)ctx)->n_wakes, 1);
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void front_init(front *f, uint32_t depth, uint32_t n_pages) {
    *f = (front){.device = {.n_pages = n_pages,
                            .depth = depth,
                            .context = 512,
                            .weight_pages = 3,
                            .kv = fake_layout(4, 2, 6),
                            .late = true,
                            .a_us = 100,
                            .b_us = 10}};
    f->outcomes = calloc(REQUESTS_MAX, sizeof *f->outcomes);
}

static void front_start(front *f, const engine_limits *limits) {
    inferd_err err = {0};
    EXPECT_EQ(engine_start_device(limits, fake_as_device(&f->device), 4, on_wake, f, &f->e, &err),
              INFERD_OK);
    EXPECT(engine_model_add(f->e, 0, NULL, UINT32_MAX, &plain));
    for (int i = 0; i < 5000 && engine_model_state(f->e, 0) != MODEL_HOT &&
                    engine_model_state(f->e, 0) != MODEL_FAILED;
         i++)
        nap();
}

static void front_read(front *f) {
    gen_event e;
    while (engine_next_event(f->e, &e)) {
        outcome *o = &f->outcomes[e.id];
        EXPECT_EQ(o->n_done, 0);
        if (e.kind == GEN_EV_TOKEN) o->tokens[o->n_tokens++] = e.token.r.id;
        if (e.kind != GEN_EV_DONE) continue;
        o->n_done++;
        o->done = e;
        f->n_done++;
    }
}

/* Read until n requests ended; false after ten seconds. */
static bool front_wait(front *f, uint32_t n) {
    uint64_t until_us = clock_now_us() + 10000000;
    while (f->n_done < n && clock_now_us() < until_us) {
        front_read(f);
        nap();
    }
    return f->n_done >= n;
}

static void front_stop(front *f) {
    engine_stop(f->e);
    EXPECT_EQ(f->device.n_faults, 0);
    EXPECT_EQ(f->device.n_attached, 0);
    EXPECT(f->device.memory == NULL);
    free(f->outcomes);
}

static gen_request *request(uint64_t id, uint32_t n_prompt, uint32_t max_tokens) {
    gen_request *q = calloc(1, sizeof *q);
    q->id = id;
    q->prio = GEN_NORMAL;
    q->prompt = malloc(n_prompt * sizeof *q->prompt);
    q->n_prompt = n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        q->prompt[i] = (tok_id)((id / 4 * 13 + i * 7) % FAKE_VOCAB); // four share a prompt
    q->max_tokens = max_tokens;
    q->ignore_eos = true;
    q->n_logprobs = q->n_prompt_logprobs = -1;
    q->arrival_us = clock_now_us();
    return q;
}

/* Does what came out continue this prompt? */
static bool continues(const outcome *o, uint64_t id, uint32_t n_prompt) {
    tok_id all[1024];
    gen_request *q = request(id, n_prompt, 0);
    memcpy(all, q->prompt, n_prompt * sizeof *all);
    gen_request_destroy(q);
    for (uint32_t i = 0; i < o->n_tokens; i++) {
        if (fake_next(all, n_prompt + i, NULL, 0) != o->tokens[i]) return false;
        all[n_prompt + i] = o->tokens[i];
    }
    return true;
}

static void a_request_comes_back_as_events(void) {
    front f;
    engine_limits limits = {0};
    front_init(&f, 1, 40);
    front_start(&f, &limits);
    EXPECT_EQ(engine_model_state(f.e, 0), MODEL_HOT);
    EXPECT_STR(engine_device_name(f.e), "fake");
    engine_model_info about;
    engine_model_get(f.e, 0, &about);
    EXPECT(about.bytes_done == 100 && about.bytes_total == 100 && about.n_loads == 1);
    EXPECT(about.state == MODEL_HOT && about.pages_weight == 3 && about.context == 512);
    EXPECT(engine_submit(f.e, request(1, 30, 20)));
    EXPECT(front_wait(&f, 1));
    EXPECT_EQ(f.outcomes[1].n_tokens, 20);
    EXPECT(continues(&f.outcomes[1], 1, 30));
    EXPECT_EQ(f.outcomes[1].done.done.finish, GEN_LENGTH);
    EXPECT_EQ(f.outcomes[1].done.done.n_prompt, 30);
    engine_stats s;
    engine_get_stats(f.e, &s);
    EXPECT_EQ(s.pages_total, 40);
    EXPECT_EQ(s.pages_weight, 3);
    EXPECT_EQ(s.pages_free + s.pages_weight + s.pages_kv + s.pages_cached + s.pages_quarantine, 40);
    EXPECT_EQ(about.bytes_used, 3 * FAKE_PAGE_BYTES - FAKE_PAGE_BYTES / 2);
    EXPECT_EQ(about.bytes_held, 3 * FAKE_PAGE_BYTES);
    EXPECT_EQ(s.n_prefill_rows, 30);
    EXPECT_EQ(s.n_decode_rows, 19);
    EXPECT_EQ(s.n_rows, 49);
    EXPECT_EQ(s.n_steps, 20);
    EXPECT_EQ(s.device_us_sum, 20 * 100 + 49 * 10);
    EXPECT_EQ(s.n_submitted, 1);
    EXPECT_EQ(s.n_finished[GEN_LENGTH], 1);
    uint64_t in_buckets = 0;
    for (int i = 0; i < ENGINE_STEP_BUCKETS; i++) in_buckets += s.step_us_hist[i];
    EXPECT_EQ(in_buckets, 20);
    EXPECT(atomic_load(&f.n_wakes) > 0 && atomic_load(&f.n_wakes) <= 2 + 6 + 21);
    front_stop(&f);
}

/* Each page of the pool is told in one place, whatever happens; where host memory is apart, that of
 * the host's ledger. */
static bool adds_up(const engine_stats *s) {
    uint32_t here = s->pages_free + s->pages_weight + s->pages_kv + s->pages_cached +
                    s->pages_quarantine + s->pages_absent;
    uint32_t host = s->pages_warm + s->pages_swapped;
    bool fine = s->pages_total == here + (s->one_memory ? host : 0) &&
                host + s->pages_host_free == s->pages_host;
    if (!fine) printf("%u pages: %u here, %u on the host\n", s->pages_total, here, host);
    return fine;
}

/* Parked pages were told nowhere, and those with cached blocks twice. */
static void the_pages_that_are_told_add_up_under_load(void) {
    for (int apart = 0; apart < 2; apart++) {
        front f;
        engine_limits limits = {.running_max = 8, .step_tokens_max = 64};
        front_init(&f, 1, 24);
        f.device.kv.slot_bytes = FAKE_PAGE_BYTES / 6; // as many fit
        f.device.apart = apart == 1;
        f.device.n_host_pages = 32;
        f.device.swap_extent_pages = 4;
        f.device.b_us = 500;     // copying takes less than computing again
        f.device.sleep_us = 100; // it lasts for some views of the model
        front_start(&f, &limits);
        bool in_use = false, cached = false, swapped = false;
        uint32_t n_sent = 0;
        while (f.n_done < 200) {
            engine_stats s;
            engine_model_info m;
            if (n_sent < 200 && n_sent < f.n_done + 40) {
                uint32_t id = ++n_sent;
                gen_request *q = request(id, 5 + id % 40, 10 + id % 50);
                q->prio = id % 3 == 0 ? GEN_BATCH : GEN_NORMAL;
                EXPECT(engine_submit(f.e, q));
            }
            front_read(&f);
            engine_get_stats(f.e, &s);
            if (s.pages_total == 0) continue;
            EXPECT(adds_up(&s));
            engine_model_get(f.e, 0, &m);
            EXPECT(m.bytes_used <= m.bytes_held && m.bytes_cached == m.pages_cached * s.page_bytes);
            EXPECT_EQ(m.bytes_held, (uint64_t)(m.pages_weight + m.pages_kv) * s.page_bytes);
            in_use |= m.pages_kv > 0;
            cached |= s.pages_cached > 0;
            swapped |= s.pages_swapped > 0;
        }
        EXPECT(in_use);
        EXPECT(cached);
        EXPECT(swapped);
        engine_model_info m;
        for (int i = 0; i < 5000; i++) { // views are told now and then
            engine_model_get(f.e, 0, &m);
            if (m.pages_kv == 0) break;
            nap();
        }
        /* What nobody needs any more is told apart from what is held. */
        EXPECT(m.pages_kv == 0 && m.pages_cached > 0);
        EXPECT_EQ(m.bytes_held, (uint64_t)m.pages_weight * FAKE_PAGE_BYTES);
        front_stop(&f);
    }
}

static void the_bytes_of_a_tenant_are_told(void) {
    front f;
    engine_limits limits = {0};
    tenant_policy policy = {.weight = 1};
    front_init(&f, 1, 40);
    f.device.kv.slot_bytes = 1000;
    f.device.sleep_us = 300;
    front_start(&f, &limits);
    EXPECT(engine_set_tenant(f.e, 5, &policy));
    gen_request *q = request(1, 30, 400);
    q->tenant_idx = 5;
    EXPECT(engine_submit(f.e, q));
    while (f.outcomes[1].n_tokens < 3) front_read(&f);
    uint64_t block = f.device.kv.slot_bytes * f.device.kv.n_groups;
    uint64_t n_bytes = engine_tenant_bytes(f.e, 5);
    EXPECT(n_bytes >= 30 / f.device.kv.block_tokens * block && n_bytes % block == 0);
    EXPECT_EQ(engine_tenant_bytes(f.e, 4), 0);
    EXPECT_EQ(engine_tenant_bytes(f.e, UINT32_MAX), 0);
    engine_cancel(f.e, 1);
    EXPECT(front_wait(&f, 1));
    for (int i = 0; i < 5000 && engine_tenant_bytes(f.e, 5) > 0; i++) nap();
    EXPECT_EQ(engine_tenant_bytes(f.e, 5), 0);
    front_stop(&f);
}

/* It was "could not be loaded, try again in a second", for good. */
static void a_ceiling_below_the_weights_is_told_as_one(void) {
    front f;
    engine_limits limits = {.lazy = true};
    inferd_err err = {0};
    model_policy low = plain;
    low.max_bytes = 2 * FAKE_PAGE_BYTES; // the weights take 3
    front_init(&f, 1, 40);
    EXPECT_EQ(engine_start_device(&limits, fake_as_device(&f.device), 4, on_wake, &f, &f.e, &err),
              INFERD_OK);
    EXPECT(engine_model_add(f.e, 0, NULL, UINT32_MAX, &low));
    EXPECT(engine_submit(f.e, request(1, 30, 5)));
    EXPECT(front_wait(&f, 1));
    EXPECT_EQ(f.outcomes[1].done.done.status, INFERD_EQUOTA);
    EXPECT(strstr(f.outcomes[1].done.done.text, "max leaves room for 0") != NULL);
    engine_model_do(f.e, 0, ENGINE_LOAD); // by hand, as at the start
    for (int i = 0; i < 5000 && engine_model_state(f.e, 0) != MODEL_FAILED; i++) nap();
    EXPECT_EQ(engine_admit(f.e, 0, 30, 5, NULL, &err), INFERD_EQUOTA);
    EXPECT(strstr(err.text, "the model's max is 4 MiB and must be 8 MiB or more") != NULL);
    EXPECT(engine_submit(f.e, request(2, 30, 5)));
    EXPECT(front_wait(&f, 2));
    EXPECT_EQ(f.outcomes[2].done.done.status, INFERD_EQUOTA);
    EXPECT(engine_model_set_policy(f.e, 0, &plain)); // and it is not waited for
    for (int i = 0; i < 2000 && engine_model_state(f.e, 0) == MODEL_FAILED; i++) nap();
    EXPECT(engine_submit(f.e, request(3, 30, 5)));
    EXPECT(front_wait(&f, 3));
    EXPECT_EQ(f.outcomes[3].done.done.finish, GEN_LENGTH);
    front_stop(&f);
}

/* The request behind a change was judged by the views before it: with a ceiling that was gone. */
static void a_request_behind_a_change_is_judged_by_it(void) {
    front f;
    engine_limits limits = {0};
    inferd_err err = {0};
    model_policy low = plain;
    low.max_bytes = 4 * FAKE_PAGE_BYTES; // one page for keys and values
    front_init(&f, 1, 40);
    front_start(&f, &limits);
    for (int i = 0; i < 20; i++) {
        EXPECT(engine_model_set_policy(f.e, 0, &low));
        for (int k = 0; k < 5000 && engine_admit(f.e, 0, 300, 100, NULL, &err) == INFERD_OK; k++)
            nap();
        EXPECT_EQ(engine_admit(f.e, 0, 300, 100, NULL, &err), INFERD_EQUOTA);
        EXPECT(engine_model_set_policy(f.e, 0, &plain));
        EXPECT_EQ(engine_admit(f.e, 0, 300, 100, NULL, &err), INFERD_OK);
    }
    front_stop(&f);
}

/* Only a restart changed them, though they were said to change at once. */
static void a_policy_changes_between_two_steps(void) {
    front f;
    engine_limits limits = {0}, other = {.tpot_ms = 9, .slice_ms = 7};
    front_init(&f, 1, 40);
    front_start(&f, &limits);
    EXPECT(engine_set_policy(f.e, &other));
    for (int i = 0; i < 5000 && f.e->n_changes_seen != f.e->n_changes_sent; i++) nap();
    engine_halt(f.e);
    EXPECT_EQ(f.e->core.sched->limits.pace_us, 9000);
    EXPECT_EQ(f.e->core.models.limits.slice_us, 500000); // as at the start, like all else
    front_stop(&f);
}

static void an_idle_engine_sleeps(void) {
    front f;
    engine_limits limits = {0};
    front_init(&f, 1, 40);
    front_start(&f, &limits);
    EXPECT(engine_submit(f.e, request(1, 30, 5)));
    EXPECT(front_wait(&f, 1));
    struct timespec before, after;
    clockid_t clock;
    EXPECT_EQ(pthread_getcpuclockid(f.e->thread, &clock), 0);
    clock_gettime(clock, &before);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    clock_gettime(clock, &after);
    double cpu_ms = (double)(after.tv_sec - before.tv_sec) * 1e3 +
                    (double)(after.tv_nsec - before.tv_nsec) / 1e6;
    EXPECT(cpu_ms < 20);
    front_stop(&f);
}

static void audit_is(front *f, const char *text) {
    inferd_err err = {0};
    buf json;
    buf_init(&json, 0);
    EXPECT_EQ(engine_audit(f->e, 2000, &json, &err), INFERD_OK);
    if (strstr(buf_cstr(&json), text) == NULL) printf("%s\n", buf_cstr(&json));
    EXPECT(strstr(buf_cstr(&json), text) != NULL);
    buf_deinit(&json);
}

static void many_requests_and_cancels(uint32_t depth) {
    front f;
    engine_limits limits = {.running_max = 8, .step_tokens_max = 64};
    front_init(&f, depth, 24); // few pages: preemption happens
    front_start(&f, &limits);
    for (uint32_t id = 1; id <= 200; id++) {
        EXPECT(engine_submit(f.e, request(id, 5 + id % 40, 10 + id % 50)));
        if (id % 7 == 0) engine_cancel(f.e, id - id % 5);
        if (id % 11 == 0) engine_pause(f.e, id);
        if (id % 3 == 0) front_read(&f);
    }
    for (uint32_t id = 11; id <= 200; id += 11) engine_resume(f.e, id);
    engine_cancel(f.e, 9999);
    EXPECT(front_wait(&f, 200));
    uint32_t n_cancelled = 0;
    for (uint32_t id = 1; id <= 200; id++) {
        const outcome *o = &f.outcomes[id];
        EXPECT_EQ(o->n_done, 1);
        EXPECT(continues(o, id, 5 + id % 40));
        EXPECT_EQ(o->done.done.n_output, o->n_tokens);
        if (o->done.done.finish == GEN_CANCELLED)
            n_cancelled++;
        else
            EXPECT(o->done.done.finish == GEN_LENGTH && o->n_tokens == 10 + id % 50);
    }
    EXPECT(n_cancelled <= 28);
    audit_is(&f, "{\"ok\":true,\"problems\":[],\"pages\":{\"total\":24,");
    audit_is(&f, "\"weight\":3,\"kv\":0,");
    audit_is(&f, "\"quarantine\":0,");
    audit_is(&f, "\"blocks_referenced\":0,\"sequences\":{\"running\":0,"
                 "\"waiting\":0,\"paused\":0,\"ended\":0}");
    audit_is(&f, "\"models\":[{\"slot\":0,\"state\":\"hot\",");
    audit_is(&f, "\"backend\":{\"kv_driver_calls\":0,\"kv_page_faults\":0}}");
    front_stop(&f);
}

static void two_hundred_requests_end_once_each(void) {
    many_requests_and_cancels(1);
}
static void two_hundred_requests_end_once_each_at_depth_two(void) {
    many_requests_and_cancels(2);
}

static void stopping_ends_what_still_runs(void) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        front f;
        engine_limits limits = {.running_max = 8};
        front_init(&f, depth, 60);
        f.device.sleep_us = 300;
        front_start(&f, &limits);
        for (uint32_t id = 1; id <= 200; id++) EXPECT(engine_submit(f.e, request(id, 20, 100)));
        while (f.outcomes[1].n_tokens < 3) front_read(&f);
        engine_halt(f.e);
        EXPECT(front_wait(&f, 200));
        for (uint32_t id = 1; id <= 200; id++) {
            EXPECT_EQ(f.outcomes[id].n_done, 1);
            EXPECT(continues(&f.outcomes[id], id, 20));
        }
        EXPECT_EQ(f.outcomes[200].done.done.finish, GEN_CANCELLED);
        front_stop(&f);
    }
}

static void stopping_without_reading_leaks_nothing(void) {
    front f;
    engine_limits limits = {0};
    front_init(&f, 2, 60);
    front_start(&f, &limits);
    for (uint32_t id = 1; id <= 100; id++) EXPECT(engine_submit(f.e, request(id, 20, 100)));
    front_stop(&f); // the leak checker is the judge
}

static void a_front_that_reads_late_loses_nothing(void) {
    front f;
    engine_limits limits = {.running_max = 32};
    front_init(&f, 2, 400);
    front_start(&f, &limits);
    for (uint32_t id = 1; id <= 60; id++) EXPECT(engine_submit(f.e, request(id, 8, 300)));
    engine_stats s;
    uint32_t capacity = f.e->outbox.capacity;
    EXPECT(capacity < 60 * 300); // more events than the outbox holds
    uint64_t last = UINT64_MAX;
    for (int i = 0; i < 100; i++) { // until it stands still
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        engine_get_stats(f.e, &s);
        if (s.n_steps == last && s.n_steps > 0) break;
        last = s.n_steps;
    }
    EXPECT(ring_fill(&f.e->outbox) > capacity / 2);
    EXPECT(front_wait(&f, 60));
    for (uint32_t id = 1; id <= 60; id++) {
        EXPECT_EQ(f.outcomes[id].n_tokens, 300);
        EXPECT(continues(&f.outcomes[id], id, 8));
    }
    front_stop(&f);
}

static void a_paused_request_stands_still(void) {
    front f;
    engine_limits limits = {0};
    front_init(&f, 1, 60);
    f.device.sleep_us = 1000;
    front_start(&f, &limits);
    EXPECT(engine_submit(f.e, request(1, 8, 200)));
    while (f.outcomes[1].n_tokens < 2) front_read(&f);
    engine_pause(f.e, 1);
    engine_stats s = {0};
    while (s.n_paused == 0) engine_get_stats(f.e, &s);
    front_read(&f);
    uint32_t n = f.outcomes[1].n_tokens;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    front_read(&f);
    EXPECT_EQ(f.outcomes[1].n_tokens, n);
    engine_resume(f.e, 1);
    EXPECT(front_wait(&f, 1));
    EXPECT_EQ(f.outcomes[1].n_tokens, 200);
    front_stop(&f);
}

static void a_deadline_ends_a_paused_request_of_a_sleeping_engine(void) {
    front f;
    engine_limits limits = {0};
    front_init(&f, 1, 60);
    front_start(&f, &limits);
    engine_pause(f.e, 1);
    gen_request *q = request(1, 8, 400);
    q->deadline_us = clock_now_us() + 60000;
    EXPECT(engine_submit(f.e, q));
    engine_pause(f.e, 1);
    uint64_t began_us = clock_now_us();
    EXPECT(front_wait(&f, 1));
    if (f.outcomes[1].n_tokens < 400) {
        EXPECT_EQ(f.outcomes[1].done.done.finish, GEN_TIMEOUT);
        EXPECT(clock_now_us() - began_us < 3000000);
    }
    front_stop(&f);
}

static void a_failed_step_costs_its_requests_only(void) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        front f;
        engine_limits limits = {.running_max = 2};
        front_init(&f, depth, 60);
        f.device.fail_at = 4;
        front_start(&f, &limits);
        for (uint32_t id = 1; id <= 6; id++) EXPECT(engine_submit(f.e, request(id, 8, 20)));
        EXPECT(front_wait(&f, 6));
        uint32_t n_failed = 0;
        for (uint32_t id = 1; id <= 6; id++) {
            const outcome *o = &f.outcomes[id];
            EXPECT(continues(o, id, 8));
            if (o->done.done.finish == GEN_LENGTH) continue;
            n_failed++;
            EXPECT_EQ(o->done.done.finish, GEN_ERROR);
            EXPECT_EQ(o->done.done.status, INFERD_EDEVICE);
            EXPECT_STR(o->done.done.text, "the device broke");
        }
        EXPECT(n_failed >= 1 && n_failed <= 2);
        audit_is(&f, "\"ok\":true");
        audit_is(&f, "\"blocks_referenced\":0");
        front_stop(&f);
    }
}

static void what_never_fits_is_known_before_it_is_submitted(void) {
    front f;
    engine_limits limits = {0};
    inferd_err err = {0};
    front_init(&f, 1, 7); // 3 of weights, 4 of 12 tokens each
    front_start(&f, &limits);
    EXPECT_EQ(engine_admit(f.e, 0, 48, 1, NULL, &err), INFERD_OK);
    EXPECT_EQ(engine_admit(f.e, 0, 48, GEN_NO_MAX, NULL, &err), INFERD_OK);
    EXPECT_EQ(engine_admit(f.e, 0, 40, 100, NULL, &err), INFERD_ETOOLONG);
    EXPECT(strstr(err.text, "holds 48") != NULL);
    EXPECT_EQ(engine_admit(f.e, 4, 4, 1, NULL, &err), INFERD_ENOTFOUND);
    EXPECT(engine_submit(f.e, request(1, 40, 100)));
    EXPECT(front_wait(&f, 1));
    EXPECT_EQ(f.outcomes[1].done.done.status, INFERD_ETOOLONG);
    front_stop(&f);
}

static void a_model_that_fails_to_load_says_why_and_gives_its_pages_back(void) {
    for (int which = 0; which < 3; which++) {
        static const char *const words[] = {"the file is wrong", "opening the device: no such",
                                            "6 MiB for the weights"};
        front f;
        engine_limits limits = {0};
        inferd_err err = {0};
        front_init(&f, 1, which == 2 ? 3 : 20);
        f.device.fail_load = which == 0;
        f.device.fail_open = which == 1;
        front_start(&f, &limits);
        EXPECT_EQ(engine_model_state(f.e, 0), MODEL_FAILED);
        engine_model_error(f.e, 0, &err);
        EXPECT(strstr(err.text, words[which]) != NULL);
        EXPECT(engine_admit(f.e, 0, 4, 4, NULL, &err) != INFERD_OK);
        EXPECT(engine_submit(f.e, request(1, 8, 20)));
        EXPECT(front_wait(&f, 1));
        EXPECT_EQ(f.outcomes[1].done.done.finish, GEN_ERROR);
        EXPECT(strstr(f.outcomes[1].done.done.text, words[which]) != NULL);
        audit_is(&f, "\"weight\":0");
        audit_is(&f, "\"state\":\"failed\"");
        front_stop(&f);
    }
}

static void guesses_change_the_steps_and_not_the_tokens(void) {
    front f;
    engine_limits limits = {.draft_tokens = 4};
    front_init(&f, 1, 200);
    fake_memory = 1; // a text that repeats itself
    front_start(&f, &limits);
    for (uint64_t id = 1; id <= 5; id++) EXPECT(engine_submit(f.e, request(id, 20, 300)));
    EXPECT(front_wait(&f, 5));
    for (uint64_t id = 1; id <= 5; id++) {
        EXPECT_EQ(f.outcomes[id].n_tokens, 300);
        EXPECT_EQ(f.outcomes[id].done.done.n_output, 300);
        EXPECT(continues(&f.outcomes[id], id, 20));
    }
    engine_stats s;
    engine_get_stats(f.e, &s);
    EXPECT(s.n_drafts_right > 300);
    EXPECT(s.n_drafted >= s.n_drafts_right);
    EXPECT_EQ(s.n_decode_rows, 5 * 299 + s.n_drafted - s.n_drafts_right);
    audit_is(&f, "\"ok\":true");
    fake_memory = 0;
    front_stop(&f);
}

static void a_device_that_works_ahead_refuses_guesses(void) {
    front f;
    engine_limits limits = {.draft_tokens = 4};
    inferd_err err = {0};
    front_init(&f, 2, 20);
    front_start(&f, &limits);
    EXPECT_EQ(engine_model_state(f.e, 0), MODEL_FAILED);
    engine_model_error(f.e, 0, &err);
    EXPECT(strstr(err.text, "limits.draft_tokens is 4") != NULL);
    front_stop(&f);
}

static void limits_that_make_no_sense_are_refused(void) {
    fake_device d = {.depth = 1, .kv = fake_layout(4, 1, 1)};
    engine *e = NULL;
    inferd_err err = {0};
    engine_limits limits = {.running_max = 100, .step_tokens_max = 50};
    EXPECT_EQ(engine_start_device(&limits, fake_as_device(&d), 1, NULL, NULL, &e, &err),
              INFERD_EINVAL);
    EXPECT(strstr(err.text, "100") != NULL);
    engine_stop(NULL);
}

static uint64_t sum_of(const engine_stats *s) {
    return s->charged_us + s->waste_us + s->usage_load_us + s->usage_idle_us + s->usage_move_us +
           s->usage_host_us;
}

/* The views of an engine that waits are those of its last turn, and its idle time goes on. */
static void an_idle_engine_tells_where_its_time_went(void) {
    static front f;
    front_init(&f, 1, 200);
    f.device.sleep_us = 300;
    front_start(&f, &(engine_limits){.lazy = false});
    for (uint64_t id = 1; id <= 6; id++) {
        gen_request *q = request(id, 20, 8);
        q->tenant_idx = (uint32_t)id % 2;
        EXPECT(engine_submit(f.e, q));
    }
    EXPECT(front_wait(&f, 6));
    for (int i = 0; i < 50; i++) nap(); // it waits by now
    engine_model_info info;
    engine_stats one, two;
    engine_model_get(f.e, 0, &info);
    EXPECT_EQ(info.n_running + info.n_waiting, 0);
    engine_get_stats(f.e, &one);
    for (int i = 0; i < 50; i++) nap();
    engine_get_stats(f.e, &two);
    EXPECT(two.usage_idle_us >= one.usage_idle_us + 5000);
    EXPECT_EQ(sum_of(&two), two.usage_until_us - two.opened_us);
    uint64_t hot_us = info.hot_us;
    engine_model_get(f.e, 0, &info);
    EXPECT(info.hot_us >= hot_us + 5000);
    engine_flow list[8];
    uint32_t n = engine_get_flows(f.e, list, 8);
    uint64_t us = 0, output = 0;
    EXPECT_EQ(n, 2);
    for (uint32_t i = 0; i < n; i++) {
        us += list[i].device_us;
        output += list[i].output_tokens;
        EXPECT_EQ(list[i].model, 0);
        EXPECT(list[i].serial != 0);
    }
    EXPECT_EQ(us, two.charged_us);
    EXPECT_EQ(output, 48);
    EXPECT_EQ(engine_get_flows(f.e, list, 1), 1);
    audit_is(&f, "\"error_ppm\":");
    front_stop(&f);
}

/* ---- what people see ---- */

/* Pages of each use, once the engine has answered; false: it did not in ten seconds. */
static bool count_pages(engine *e, uint32_t **codes, uint32_t *n, uint32_t by_use[PAGE_USES]) {
    bool answered = false;
    engine_pages_ask(e);
    for (int i = 0; i < 50000 && !(answered = engine_pages_take(e, codes, n)); i++) nap();
    memset(by_use, 0, PAGE_USES * sizeof *by_use);
    for (uint32_t i = 0; i < *n; i++) by_use[(*codes)[i] % PAGE_CODE_USES]++;
    return answered;
}

static void a_viewer_gets_the_use_of_each_page(void) {
    front f;
    uint32_t *codes = NULL, n = 0, by_use[PAGE_USES];
    front_init(&f, 1, 64);
    front_start(&f, &(engine_limits){.running_max = 4});
    EXPECT(!engine_pages_take(f.e, &codes, &n)); // it was not asked
    EXPECT(engine_submit(f.e, request(1, 40, 20)));
    EXPECT(front_wait(&f, 1));
    EXPECT(count_pages(f.e, &codes, &n, by_use));
    EXPECT_EQ(n, 64);
    EXPECT_EQ(by_use[PAGE_USE_WEIGHT], 3);
    EXPECT(by_use[PAGE_USE_CACHED] > 0); // of the request that ended
    EXPECT_EQ(by_use[PAGE_USE_KV], 0);
    EXPECT_EQ(by_use[PAGE_USE_FREE], 64 - 3 - by_use[PAGE_USE_CACHED]);
    for (uint32_t i = 0; i < n; i++) // slot 0 is the only owner
        EXPECT(codes[i] == PAGE_USE_FREE || codes[i] / PAGE_CODE_USES == 1);
    EXPECT(count_pages(f.e, &codes, &n, by_use)); // the array goes back and comes again
    EXPECT_EQ(n, 64);
    free(codes);
    front_stop(&f);
}

static void steps_are_shown_while_they_are_watched(void) {
    front f;
    engine_step_view v;
    front_init(&f, 1, 64);
    front_start(&f, &(engine_limits){.running_max = 4});
    EXPECT(engine_submit(f.e, request(1, 40, 20)));
    EXPECT(front_wait(&f, 1));
    engine_step_get(f.e, &v);
    EXPECT_EQ(v.began_us, 0); // no viewer, nothing written
    engine_watch_steps(f.e, clock_now_us() + 60000000);
    EXPECT(engine_submit(f.e, request(2, 40, 20)));
    EXPECT(front_wait(&f, 2));
    engine_step_get(f.e, &v); // none runs now: the newest one
    EXPECT(v.began_us > 0 && v.ended_us >= v.began_us);
    EXPECT_EQ(v.model_idx, 0);
    EXPECT_EQ(v.n_seqs, 1);
    EXPECT_EQ(v.seqs[0].id, 2);
    EXPECT_EQ(v.n_decode_rows, 1);
    EXPECT(!v.seqs[0].prefill);
    front_stop(&f);
}

static void models_that_come_and_leave_are_noted(void) {
    front f;
    engine_note notes[ENGINE_NOTES_MAX];
    uint64_t n_lost = 0;
    front_init(&f, 1, 64);
    front_start(&f, &(engine_limits){.running_max = 4});
    EXPECT_EQ(engine_notes_take(f.e, notes, ENGINE_NOTES_MAX, &n_lost), 1);
    EXPECT_EQ(notes[0].kind, ENGINE_NOTE_LOADED);
    EXPECT_EQ(notes[0].model_idx, 0);
    EXPECT(notes[0].from_file);
    engine_model_do(f.e, 0, ENGINE_UNLOAD);
    for (int i = 0; i < 50000 && engine_model_state(f.e, 0) == MODEL_HOT; i++) nap();
    EXPECT_EQ(engine_notes_take(f.e, notes, 1, &n_lost), 1);
    EXPECT_EQ(notes[0].kind, ENGINE_NOTE_EVICTED);
    EXPECT_EQ(notes[0].cause, ENGINE_EVICT_ASKED);
    EXPECT_EQ(notes[0].for_idx, ENGINE_NOTE_NO_MODEL);
    EXPECT(notes[0].n_bytes > 0);
    EXPECT_EQ(n_lost, 0);
    front_stop(&f);
}

static const test_case cases[] = {
    TEST(a_request_comes_back_as_events),
    TEST(an_idle_engine_sleeps),
    TEST(a_request_behind_a_change_is_judged_by_it),
    TEST(a_policy_changes_between_two_steps),
    TEST(two_hundred_requests_end_once_each),
    TEST(two_hundred_requests_end_once_each_at_depth_two),
    TEST(the_pages_that_are_told_add_up_under_load),
    TEST(the_bytes_of_a_tenant_are_told),
    TEST(a_ceiling_below_the_weights_is_told_as_one),
    TEST(stopping_ends_what_still_runs),
    TEST(stopping_without_reading_leaks_nothing),
    TEST(a_front_that_reads_late_loses_nothing),
    TEST(a_paused_request_stands_still),
    TEST(a_deadline_ends_a_paused_request_of_a_sleeping_engine),
    TEST(a_failed_step_costs_its_requests_only),
    TEST(what_never_fits_is_known_before_it_is_submitted),
    TEST(a_model_that_fails_to_load_says_why_and_gives_its_pages_back),
    TEST(guesses_change_the_steps_and_not_the_tokens),
    TEST(a_device_that_works_ahead_refuses_guesses),
    TEST(limits_that_make_no_sense_are_refused),
    TEST(an_idle_engine_tells_where_its_time_went),
    TEST(a_viewer_gets_the_use_of_each_page),
    TEST(steps_are_shown_while_they_are_watched),
    TEST(models_that_come_and_leave_are_noted),
};
TEST_MAIN(cases)
