/* bench_decision.c - the time that the policy of one device needs between two steps.
 *
 * A core without a device: MODELS models of which a quarter fit at once, SEQUENCES sequences, about
 * half of them waiting, of several tenants and classes, some with targets and shares.  Sequences
 * that end are replaced immediately, so the load stays constant.  In each iteration
 *
 *     decide    residency_decide: which models are swapped in and out
 *     plan      sched_plan: which sequences compute what in the next step
 *
 * are timed separately, by the CPU time of this thread, which excludes other processes on a busy
 * machine, and by the wall clock, which is the delay that users see.
 *
 *     bench_decision [models] [sequences] [turns] */
#include <time.h>

#include "core.h"

enum {
    MODELS = 64,
    SEQUENCES = 1024,
    ITERATIONS = 20000,
    WARM_UP = 2000,    // iterations that are not counted
    HOT_PARTS = 4,     // one of this many models fits
    WEIGHT_PAGES = 40, // of one model
    TENANTS = 8,
    BLOCK_TOKENS = 16,
    BLOCKS_PER_PAGE = 2,
    CONTEXT = 4096,
    STEP_US = 5000, // time of a step of the simulated device
    VOCAB = 1000
};

typedef struct world {
    core core;
    uint64_t clock_us;
    uint32_t n_models, n_seqs, n_alive;
    uint64_t next_id, random;
    const step *launched[CORE_DEPTH_MAX];
    uint32_t n_launched;
} world;

static uint32_t below(world *w, uint32_t n) {
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->random >> 33) % n);
}

/* ---- a device that only takes time and computes nothing ---- */

static inferd_status open_device(void *self, device_about *out, inferd_err *err) {
    world *w = self;
    (void)err;
    uint32_t n_hot = u32_max(w->n_models / HOT_PARTS, 1);
    uint32_t n_kv = w->n_seqs * CONTEXT / BLOCK_TOKENS / BLOCKS_PER_PAGE / 64;
    uint32_t n_pages = n_hot * WEIGHT_PAGES + n_kv;
    *out = (device_about){.n_pages = n_pages,
                          .n_ready = n_pages,
                          .n_host_pages = w->n_models * WEIGHT_PAGES,
                          .page_bytes = 2 << 20,
                          .extent_pages = 1,
                          .depth = 2};
    snprintf(out->name, sizeof out->name, "none");
    return INFERD_OK;
}

static void close_device(void *self) {
    (void)self;
}

static inferd_status attach_model(void *self, uint32_t idx, struct model *m, uint32_t same_as,
                                  const device_limits *limits, device_model *out, inferd_err *err) {
    (void)self, (void)idx, (void)m, (void)same_as, (void)limits, (void)err;
    *out = (device_model){.spec = {.kv = {.n_layers = 1,
                                          .block_tokens = BLOCK_TOKENS,
                                          .group_layers = 1,
                                          .n_groups = 1,
                                          .slots_per_page = BLOCKS_PER_PAGE,
                                          .slot_bytes = (2 << 20) / BLOCKS_PER_PAGE},
                                   .context = CONTEXT,
                                   .n_vocab = VOCAB},
                          .weight_pages = WEIGHT_PAGES,
                          .host_pages = WEIGHT_PAGES,
                          .stage_bytes = 100};
    return INFERD_OK;
}

static void drop_model(void *self, uint32_t idx) {
    (void)self, (void)idx;
}

static inferd_status begin_stage(void *self, uint32_t idx, const uint32_t *pages,
                                 void (*wake)(void *), void *wake_ctx, inferd_err *err) {
    (void)self, (void)idx, (void)pages, (void)wake, (void)wake_ctx, (void)err;
    return INFERD_OK;
}

static inferd_status begin_load(void *self, uint32_t idx, const uint32_t *pages, inferd_err *err) {
    (void)self, (void)idx, (void)pages, (void)err;
    return INFERD_OK;
}

static inferd_status bring(void *self, uint32_t idx, uint64_t budget_us, device_progress *out,
                           inferd_err *err) {
    world *w = self;
    (void)idx, (void)budget_us, (void)err;
    w->clock_us += 1000;
    *out = (device_progress){.done = 100, .total = 100, .device_us = 1000, .finished = true};
    return INFERD_OK;
}

static void launch(void *self, const step *st) {
    world *w = self;
    w->launched[w->n_launched++] = st;
}

static inferd_status finish(void *self, step *st, uint64_t *device_us, inferd_err *err) {
    world *w = self;
    (void)err;
    INFERD_CHECK(w->n_launched > 0 && w->launched[0] == st);
    w->launched[0] = w->launched[1];
    w->n_launched--;
    *device_us = STEP_US;
    w->clock_us += STEP_US;
    for (uint32_t i = 0; i < st->b.n_logits; i++)
        st->results[i] = (sample_result){.id = (tok_id)below(w, VOCAB)};
    return INFERD_OK;
}

static void no_stats(void *self, backend_stats *out) {
    (void)self;
    *out = (backend_stats){0};
}

static const device_ops OPS = {.open = open_device,
                               .close = close_device,
                               .attach = attach_model,
                               .detach = drop_model,
                               .stage_begin = begin_stage,
                               .stage_step = bring,
                               .unstage = drop_model,
                               .load_begin = begin_load,
                               .load_step = bring,
                               .unload = drop_model,
                               .launch = launch,
                               .finish = finish,
                               .get_stats = no_stats};

/* ---- the work ---- */

static uint64_t read_clock(void *ctx) {
    return ((world *)ctx)->clock_us;
}

static uint32_t read_room(void *ctx) {
    (void)ctx;
    return UINT32_MAX;
}

static void on_event(void *ctx, const gen_event *e) {
    world *w = ctx;
    if (e->kind == GEN_EV_DONE) w->n_alive--;
}

static void submit(world *w) {
    gen_request *q = calloc(1, sizeof *q);
    INFERD_CHECK(q != NULL);
    q->id = ++w->next_id;
    q->model_idx = below(w, w->n_models);
    q->tenant_idx = below(w, TENANTS);
    q->prio = (gen_class)(GEN_HIGH + below(w, GEN_CLASSES - GEN_HIGH));
    q->n_prompt = 20 + below(w, 60);
    q->prompt = malloc(q->n_prompt * sizeof *q->prompt);
    INFERD_CHECK(q->prompt != NULL);
    for (uint32_t i = 0; i < q->n_prompt; i++) q->prompt[i] = (tok_id)below(w, VOCAB);
    q->max_tokens = 20 + below(w, 100);
    q->n_logprobs = q->n_prompt_logprobs = -1;
    q->cache_scope[0] = q->tenant_idx;
    if (below(w, 3) == 0) q->tpot_target_ms = 50 + below(w, 200);
    q->arrival_us = w->clock_us;
    w->n_alive++;
    sched_submit(w->core.sched, q, w->clock_us);
}

static void open_world(world *w) {
    inferd_err err = {0};
    core_options o = {.device = {&OPS, w},
                      .limits = {.depth = CORE_DEPTH_MAX,
                                 .running_max = 32,
                                 .step_tokens_max = 512,
                                 .logits_max = 64,
                                 .queue_len_max = w->n_seqs + 64,
                                 .pace_us = 40000,
                                 .starvation_us = 2000000,
                                 .starvation_percent = 2},
                      .residency = {.slice_us = 500000,
                                    .retry_us = 1000000,
                                    .retry_max_us = 60000000,
                                    .eager = true},
                      .n_slots = w->n_models,
                      .clock = read_clock,
                      .room = read_room,
                      .emit = on_event,
                      .ctx = w};
    w->clock_us = 1000000;
    w->random = 1;
    INFERD_CHECK(core_init(&w->core, &o, &err) == INFERD_OK);
    INFERD_CHECK(core_open(&w->core, &err) == INFERD_OK);
    for (uint32_t i = 0; i < w->n_models; i++) {
        model_policy p = {.prio = (gen_class)(GEN_HIGH + i % (GEN_CLASSES - GEN_HIGH)),
                          .weight = 1 + i % 3,
                          .keep_alive_us = POLICY_NEVER,
                          .replicas_min = 1,
                          .replicas_max = 1};
        if (i % 8 == 0) p.share = (share_spec){SHARE_BURST, 2, 1};
        residency_attach(&w->core.models, i, NULL, DEVICE_OWN, &p, w->clock_us);
    }
    for (uint32_t i = 0; i < TENANTS; i++) {
        tenant_policy p = {.weight = 1 + i % 2, .max_class = GEN_SYSTEM};
        if (i == 0) p.share = (share_spec){SHARE_BURST, 20, 1}, p.min_bytes = 64 << 20;
        INFERD_CHECK(sched_set_tenant(w->core.sched, i, &p, w->clock_us, &err) == INFERD_OK);
    }
}

/* ---- time ---- */

static uint64_t ns_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double us_at(uint32_t *ns, uint32_t n, uint32_t permille) {
    qsort(ns, n, sizeof *ns, by_size);
    uint32_t i = (uint32_t)((uint64_t)n * permille / 1000);
    return ns[i < n ? i : n - 1] / 1000.0;
}

static void print(const char *what, uint32_t *ns, uint32_t n) {
    printf("%-22s %10.1f %10.1f %10.1f\n", what, us_at(ns, n, 500), us_at(ns, n, 990),
           us_at(ns, n, 1000));
}

static uint32_t number(int argc, char **argv, int i, uint32_t otherwise) {
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    static world w;
    enum { DECIDE, PLAN, BOTH, BOTH_WALL, KINDS };
    static const char *const NAMES[KINDS] = {"decide", "plan", "both", "both, by the clock"};
    w.n_models = u32_max(number(argc, argv, 1, MODELS), 1);
    w.n_seqs = u32_max(number(argc, argv, 2, SEQUENCES), 1);
    uint32_t n_iterations = u32_max(number(argc, argv, 3, ITERATIONS), 1), *ns[KINDS], n = 0;
    uint64_t n_waiting = 0, n_running = 0, n_steps = 0;
    for (int k = 0; k < KINDS; k++) {
        ns[k] = calloc(n_iterations, sizeof *ns[k]);
        INFERD_CHECK(ns[k] != NULL);
    }
    open_world(&w);
    core *c = &w.core;
    for (uint32_t iteration = 0; n < n_iterations; iteration++) {
        while (w.n_alive < w.n_seqs) submit(&w);
        /* The same calls as in core_iterate, with the times taken. */
        uint64_t wall = ns_of(CLOCK_MONOTONIC), cpu = ns_of(CLOCK_THREAD_CPUTIME_ID);
        sched_reserve(c->sched);
        residency_decide(&c->models, w.clock_us);
        uint64_t decided = ns_of(CLOCK_THREAD_CPUTIME_ID);
        uint32_t idx = (c->oldest + c->n_flight) % CORE_DEPTH_MAX;
        bool any = sched_plan(c->sched, w.clock_us, &c->steps[idx]);
        uint64_t planned = ns_of(CLOCK_THREAD_CPUTIME_ID), wall_end = ns_of(CLOCK_MONOTONIC);
        if (any) {
            launch(&w, &c->steps[idx]);
            c->n_flight++;
        }
        if (c->n_flight == CORE_DEPTH_MAX || (!any && c->n_flight > 0)) {
            inferd_err err = {0};
            uint64_t device_us;
            step *st = &c->steps[c->oldest];
            sched_refresh(c->sched, st);
            finish(&w, st, &device_us, &err);
            st->charge_us = device_us;
            sched_commit(c->sched, st, device_us, w.clock_us);
            c->oldest = (c->oldest + 1) % CORE_DEPTH_MAX;
            c->n_flight--;
        }
        if (residency_has_work(&c->models))
            residency_work(&c->models, STEP_US / 2, read_clock, &w);
        else if (!any)
            w.clock_us += 1000;
        sched_flush(c->sched, UINT32_MAX);
        if (iteration < WARM_UP) continue;
        sched_counters k;
        sched_count(c->sched, &k);
        n_waiting += k.n_waiting;
        n_running += k.n_running;
        n_steps += any;
        ns[DECIDE][n] = (uint32_t)(decided - cpu);
        ns[PLAN][n] = (uint32_t)(planned - decided);
        ns[BOTH][n] = (uint32_t)(planned - cpu);
        ns[BOTH_WALL][n++] = (uint32_t)(wall_end - wall);
    }
    uint64_t n_loads = 0;
    for (uint32_t i = 0; i < w.n_models; i++) n_loads += c->models.slots[i].n_loads;
    printf("%u models, %u sequences: %llu running and %llu waiting on average, %llu steps in %u "
           "iterations, %llu loads, %llu time slices\n",
           w.n_models, w.n_seqs, (unsigned long long)(n_running / n),
           (unsigned long long)(n_waiting / n), (unsigned long long)n_steps, n,
           (unsigned long long)n_loads, (unsigned long long)w.core.models.n_slices);
    printf("%-22s %10s %10s %10s\n", "us of processor time", "p50", "p99", "max");
    for (int k = 0; k < KINDS; k++) print(NAMES[k], ns[k], n);
    core_end(c);
    core_deinit(c);
    for (int k = 0; k < KINDS; k++) free(ns[k]);
    return 0;
}
