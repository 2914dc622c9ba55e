/* admission.c - see admission.h.
 *
 * admission_ask checks, in this order, and the first no is the answer:
 *
 *   1 closed   the daemon shuts down, or a device hangs              503
 *   2 model    no device serves it: lost, out of service, failed     503
 *   3 fit      it can never fit, on any device (engine_admit)        400
 *   4 queue    as many queue slots as it has choices                 503 with Retry-After, or 400
 *   5 limits   rates, requests at once, day and month of its tenant  429 with Retry-After, or 400
 *
 * After that only the engine's own checks are left (sched_admit.c), which know what has changed
 * since.  What needs no state (the fields, the context of the model) was checked on the worker:
 * api_prepare.c. */
#include "admission.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "log.h"
#include "quota_file.h"
#include "scheduler/queue_slots.h"
#include "scheduler/output_estimate.h"
#include "tenant_limits.h"

#define SECOND_US   ((uint64_t)1000000)
#define COMPLAIN_US (60 * SECOND_US) // time between two log lines about failed writes

struct admission_ticket {
    uint32_t tenant, n_open; // choices that have not ended
    uint32_t n_per_prompt;
    limits_ask ask;
    bool costs;                // the engine accepted a choice, at least
    uint64_t arrival_us, used; // tokens so far
    uint64_t *prompts;         // [n_prompts] tokens not counted yet; stored after this struct
};

/* A sequence that was sent to a device. */
typedef struct sent {
    bool used;
    admission_grant grant;
    uint32_t choice_idx;
} sent;

/* The thread that writes the file. */
typedef struct writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool running, stops;
    bool asked, done; // a text to write; written, and not collected yet
    buf text;         // owned by the thread while asked
    inferd_err err;   // of the last write
} writer;

struct admission {
    limits *limits;
    quota_file *quota; // NULL: in memory only
    int folder;        // its folder, locked; -1: none
    char *path;        // of the file
    sent *slots;       // [n_slots]
    uint32_t n_slots;
    output_estimate **outputs; // [n_names] NULL until the model produced an output
    uint32_t n_names;
    queue_slots queue;
    uint64_t complained_us;
    writer w;
};

/* ---- queue slots ---- */

queue_slots *admission_queue_slots(admission *g) {
    return &g->queue;
}

unsigned admission_refuse(admission *g, uint32_t n, uint64_t now_us) {
    return queue_line_join(&g->queue.line, n, queue_slots_open(&g->queue), now_us);
}

unsigned admission_is_overloaded(const admission *g, int tenant, gen_class best, uint64_t now_us) {
    const queue_slots *p = &g->queue;
    if (queue_slots_open_used(p) < queue_slots_open(p)) return 0;
    uint64_t us = queue_line_wait_us(&p->line, 1, queue_slots_open(p), now_us);
    if (us <= QUEUE_MAX_S * SECOND_US) return 0;
    uint32_t idx = tenant >= 0 ? (uint32_t)tenant : QUEUE_NO_TENANT;
    return queue_slots_none_kept(p, idx, best) ? QUEUE_MAX_S + 1 : 0;
}

/* ---- limits of the tenant ---- */

uint64_t admission_count_tokens(const limits_spec *spec, uint64_t prompt_tokens,
                                uint64_t output_tokens, uint32_t n_outputs, bool estimated) {
    uint64_t all = prompt_tokens + output_tokens * n_outputs;
    const uint64_t windows[] = {spec->tokens_per_min, spec->tokens_per_day, spec->tokens_per_month};
    uint64_t least = prompt_tokens + n_outputs; // each output has at least one token
    for (size_t i = 0; i < INFERD_COUNT(windows) && estimated; i++)
        if (windows[i] != 0 && all > windows[i]) all = windows[i] > least ? windows[i] : least;
    return all;
}

static uint64_t expected_output(const admission *g, const admission_request *ask,
                                const gen_request *r) {
    static const output_estimate nothing = {0};
    const output_estimate *e = ask->name_idx < g->n_names ? g->outputs[ask->name_idx] : NULL;
    uint32_t room = ask->context > r->n_prompt ? ask->context - r->n_prompt : 0;
    if (r->max_tokens != GEN_NO_MAX) return u32_min(r->max_tokens, room);
    return output_for_request(e == NULL ? &nothing : e, false, 0, room);
}

/* The rest of a limit: at least 1, because 0 means no limit. */
static uint64_t left_of(uint64_t limit, uint64_t used, uint64_t reserved) {
    if (limit == 0) return 0;
    uint64_t taken = used < UINT64_MAX - reserved ? used + reserved : UINT64_MAX;
    return taken < limit ? limit - taken : 1;
}

static bool is_estimated(const admission_request *ask) {
    return ask->requests[0]->max_tokens == GEN_NO_MAX;
}

/* An estimate is cut to what is left of the day and month: it may be too high, and a request
 * without max_tokens must not be refused for it. */
static uint64_t count_tokens(const admission *g, const admission_request *ask, int64_t unix_s) {
    uint64_t n_prompt = 0, n_output = 0;
    for (uint32_t i = 0; i < ask->n_requests; i += ask->n_per_prompt) {
        n_prompt += ask->requests[i]->n_prompt;
        n_output += expected_output(g, ask, ask->requests[i]);
    }
    if (!is_estimated(ask)) return n_prompt + n_output * ask->n_per_prompt;
    limits_usage usage;
    limits_get_usage(g->limits, (uint32_t)ask->tenant, unix_s, &usage);
    limits_spec left = usage.spec;
    left.tokens_per_day = left_of(left.tokens_per_day, usage.used_day, usage.reserved);
    left.tokens_per_month = left_of(left.tokens_per_month, usage.used_month, usage.reserved);
    uint32_t n_prompts = ask->n_requests / ask->n_per_prompt;
    uint64_t mean = (n_output + n_prompts - 1) / n_prompts;
    return admission_count_tokens(&left, n_prompt, mean, ask->n_requests, true);
}

static admission_ticket *create_ticket(const admission_request *ask, const limits_ask *taken) {
    uint32_t n_prompts = ask->n_requests / ask->n_per_prompt;
    admission_ticket *t = calloc(1, sizeof *t + n_prompts * sizeof *t->prompts);
    if (t == NULL) return NULL;
    *t = (admission_ticket){.tenant = (uint32_t)ask->tenant,
                            .n_open = ask->n_requests,
                            .n_per_prompt = ask->n_per_prompt,
                            .ask = *taken,
                            .arrival_us = ask->arrival_us,
                            .prompts = (uint64_t *)(void *)(t + 1)};
    for (uint32_t i = 0; i < n_prompts; i++)
        t->prompts[i] = ask->requests[i * ask->n_per_prompt]->n_prompt;
    return t;
}

static bool refuse(const limits_answer *why, api_error *error) {
    static const api_fault faults[LIMITS_REASONS] = {
        [LIMITS_REQUESTS] = API_REQUEST_RATE,
        [LIMITS_TOKENS] = API_TOKEN_RATE,
        [LIMITS_CONCURRENT] = API_CONCURRENCY,
        [LIMITS_DAY] = API_QUOTA,
        [LIMITS_MONTH] = API_QUOTA,
        [LIMITS_TOO_LARGE] = API_OVER_LIMIT,
        [LIMITS_CLOSED] = API_QUOTA,
    };
    api_fail(error, faults[why->reason], NULL, "%s", why->text);
    error->retry_after_s = why->retry_after_s;
    return false;
}

bool admission_ask_limits(admission *g, const admission_request *ask, uint64_t now_us,
                          int64_t unix_s, admission_ticket **out, api_error *error) {
    INFERD_CHECK(ask->n_requests > 0 && ask->n_requests % ask->n_per_prompt == 0);
    limits_ask taken = {
        .n_requests = ask->n_requests, .tokens = count_tokens(g, ask, unix_s), .again = ask->again};
    admission_ticket *t = create_ticket(ask, &taken);
    if (t == NULL) return api_fail(error, API_INTERNAL, NULL, "the server is short of memory");
    limits_answer why;
    if (!limits_admit(g->limits, (uint32_t)ask->tenant, now_us, unix_s, &taken, &why)) {
        free(t);
        return refuse(&why, error);
    }
    *out = t;
    return true;
}

/* ---- the model and the fit ---- */

/* Clients (LiteLLM, and software built on it) recognise a full context by these words of OpenAI and
 * vLLM: they cut the conversation, or use a model with a longer context. */
static bool refuse_size(const admission_request *ask, const inferd_err *why, api_error *error) {
    if (why->status != INFERD_ETOOLONG) return api_fail_status(error, why, ask->input);
    return api_fail(error, API_TOO_LONG, ask->input,
                    "This model's maximum context length is %u tokens, and its memory holds fewer: "
                    "%s. Please reduce the length of the %s or completion.",
                    ask->context, why->text, ask->input);
}

/* Why no device serves it.  A request brings up a model that is not HOT; if that is impossible, it
 * is refused at once. */
static bool refuse_model(const admission_request *ask, const inferd_err *why, api_error *error) {
    uint32_t model_idx = ask->requests[0]->model_idx;
    engine_model_info info;
    inferd_err lost = {.status = INFERD_ELOST};
    if (fleet_model_is_lost(ask->fleet, model_idx)) return api_fail_status(error, &lost, NULL);
    fleet_model_get(ask->fleet, model_idx, &info);
    if (info.held) {
        api_fail(error, API_UNLOADED, "model",
                 "the model was taken out of service by the operator");
        error->retry_after_s = 0; // only the operator can end it
        return false;
    }
    if (info.state == MODEL_FAILED && info.why.status == INFERD_EQUOTA)
        return api_fail_status(error, &info.why, "model"); // its ceiling is below its weights
    if (info.state == MODEL_FAILED) {
        api_fail(error, API_UNLOADED, "model", "the model could not be loaded");
        api_retry_after(error, info.retry_after_ms);
        return false;
    }
    if (why->status != INFERD_OK) return refuse_size(ask, why, error);
    return api_fail(error, API_UNLOADED, "model",
                    "no device has the model at the moment; ask again");
}

static bool ask_fleet(const admission_request *ask, uint64_t *devices, api_error *error) {
    for (uint32_t i = 0; i < ask->n_requests; i += ask->n_per_prompt) {
        inferd_err why = {0};
        uint64_t *here = &devices[i / ask->n_per_prompt];
        fleet_admit(ask->fleet, ask->requests[i], here, &why);
        if (*here == 0) return refuse_model(ask, &why, error);
        for (uint32_t k = 1; k < ask->n_per_prompt; k++)
            ask->requests[i + k]->fit_tokens = ask->requests[i]->fit_tokens;
    }
    return true;
}

/* ---- the whole request ---- */

static bool refuse_closed(api_fault closed, api_error *error) {
    if (closed == API_DEVICE_LOST)
        return api_fail(error, closed, NULL,
                        "the device does not answer and the server restarts; ask again");
    return api_fail(error, closed, NULL, "the server is shutting down");
}

static bool ask_queue(admission *g, const admission_request *ask, uint64_t now_us, queue_slot *out,
                      api_error *error) {
    const queue_slots *p = &g->queue;
    queue_ask wanted = {
        .asker = {.tenant_idx = ask->tenant < 0 ? QUEUE_NO_TENANT : (uint32_t)ask->tenant,
                  .model_idx = ask->requests[0]->model_idx,
                  .prio = ask->requests[0]->prio},
        .n = ask->n_requests,
        .again = ask->again};
    uint32_t after_s = 0;
    switch (queue_slots_ask(&g->queue, &wanted, now_us, out, &after_s)) {
    case QUEUE_HAS_SLOTS:
        return true;
    case QUEUE_NEVER: // waiting would not help
        return api_fail(error, API_BAD_VALUE, "n",
                        "%u choices are more than the %u queue slots that one request can have",
                        wanted.n, queue_slots_most(p, &wanted.asker));
    case QUEUE_FULL:
        break;
    }
    api_fail(error, API_OVERLOADED, NULL,
             "the queue is full: %u of %u sequences are running or waiting%s", p->n_used, p->n_all,
             p->n_used + wanted.n > p->n_all
                 ? ""
                 : ", the others are reserved for shares or left to retries");
    error->retry_after_s = after_s;
    return false;
}

bool admission_ask(admission *g, const admission_request *ask, uint64_t now_us, int64_t unix_s,
                   admission_grant *out, uint64_t *devices, api_error *error) {
    *out = (admission_grant){0};
    if (ask->closed != API_OK) return refuse_closed(ask->closed, error);
    if (!ask_fleet(ask, devices, error)) return false;
    if (!ask_queue(g, ask, now_us, &out->qslot, error)) return false;
    if (ask->tenant < 0 || admission_ask_limits(g, ask, now_us, unix_s, &out->ticket, error))
        return true;
    queue_slots_give(&g->queue, out->qslot, ask->n_requests, false, now_us);
    return false;
}

/* ---- ending ---- */

static void end_some(admission *g, admission_ticket *t, uint32_t n, uint64_t now_us,
                     int64_t unix_s) {
    INFERD_CHECK(n <= t->n_open);
    t->n_open -= n;
    if (t->n_open > 0) return;
    if (t->costs)
        limits_settle(g->limits, t->tenant, now_us, unix_s, &t->ask, t->used);
    else
        limits_return(g->limits, t->tenant, now_us, unix_s, &t->ask);
    free(t);
}

void admission_drop(admission *g, const admission_grant *grant, uint32_t n, uint64_t now_us,
                    int64_t unix_s) {
    if (n == 0) return;
    queue_slots_give(&g->queue, grant->qslot, n, false, now_us);
    if (grant->ticket != NULL) end_some(g, grant->ticket, n, now_us, unix_s);
}

void admission_hold(admission *g, const admission_grant *grant, uint32_t slot,
                    uint32_t choice_idx) {
    INFERD_CHECK(slot < g->n_slots && !g->slots[slot].used);
    g->slots[slot] = (sent){true, *grant, choice_idx};
}

/* Was a step with it ever planned?  If not, it waited until its end. */
static bool was_computed(const admission_ticket *t, const gen_event *ev) {
    if (ev->done.n_output > 0 || ev->done.finish == GEN_STOP || ev->done.finish == GEN_LENGTH)
        return true;
    return ev->done.queued_us > 0 && t->arrival_us + ev->done.queued_us < ev->at_us;
}

void admission_on_done(admission *g, uint32_t slot, const gen_event *ev, uint64_t now_us,
                       int64_t unix_s) {
    INFERD_CHECK(slot < g->n_slots);
    sent was = g->slots[slot];
    admission_ticket *t = was.grant.ticket;
    if (!was.used) return;
    g->slots[slot] = (sent){0};
    queue_slots_give(&g->queue, was.grant.qslot, 1, true, now_us);
    if (t == NULL) return;
    uint64_t *prompt = &t->prompts[was.choice_idx / t->n_per_prompt];
    if (was_computed(t, ev)) {
        t->used += *prompt + ev->done.n_output;
        *prompt = 0; // its other choices share the prompt
        t->costs = true;
    }
    /* GEN_ERROR: the engine refused it; a deadline or a client that left costs a request. */
    t->costs = t->costs || ev->done.finish != GEN_ERROR;
    end_some(g, t, 1, now_us, unix_s);
}

void admission_note_output(admission *g, uint32_t name_idx, uint32_t n_tokens) {
    INFERD_CHECK(name_idx < g->n_names);
    if (g->outputs[name_idx] == NULL) g->outputs[name_idx] = calloc(1, sizeof **g->outputs);
    if (g->outputs[name_idx] != NULL) output_add(g->outputs[name_idx], n_tokens);
}

/* ---- headers ---- */

static size_t add_header(char out[ADMISSION_LINES_BYTES], size_t n, const char *name,
                         const char *value) {
    if (value[0] == 0) return n;
    int more = snprintf(out + n, ADMISSION_LINES_BYTES - n, "x-ratelimit-%s: %s\n", name, value);
    INFERD_CHECK(more > 0 && n + (size_t)more < ADMISSION_LINES_BYTES);
    return n + (size_t)more;
}

void admission_write_headers(admission *g, uint32_t tenant, uint64_t now_us,
                             char out[ADMISSION_LINES_BYTES]) {
    limits_headers h;
    size_t n = 0;
    out[0] = 0;
    if (tenant >= limits_n_tenants(g->limits)) return;
    limits_get_headers(g->limits, tenant, now_us, &h);
    n = add_header(out, n, "limit-requests", h.limit_requests);
    n = add_header(out, n, "remaining-requests", h.remaining_requests);
    n = add_header(out, n, "reset-requests", h.reset_requests);
    n = add_header(out, n, "limit-tokens", h.limit_tokens);
    n = add_header(out, n, "remaining-tokens", h.remaining_tokens);
    add_header(out, n, "reset-tokens", h.reset_tokens);
}

limits *admission_limits(admission *g) {
    return g->limits;
}

/* ---- the configuration ---- */

static int compare_tenants(const void *a, const void *b) {
    const config_tenant *x = *(const config_tenant *const *)a,
                        *y = *(const config_tenant *const *)b;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *name, const void *tenant) {
    return strcmp(name, (*(const config_tenant *const *)tenant)->name);
}

/* Sorted for binary search: the table of tenants may be long. */
static const config_tenant **sort_tenants(const inferd_config *c) {
    const config_tenant **sorted = malloc(size_max(c->n_tenants, 1) * sizeof *sorted);
    if (sorted == NULL) return NULL;
    for (uint32_t i = 0; i < c->n_tenants; i++) sorted[i] = &c->tenants[i];
    qsort(sorted, c->n_tenants, sizeof *sorted, compare_tenants);
    return sorted;
}

/* Adds every number, without limits: after this no change of limits needs memory. */
static bool make_room(admission *g, char *const *names, uint32_t n_names, uint64_t now_us,
                      inferd_err *problem) {
    static const limits_spec none = {0};
    for (uint32_t i = limits_n_tenants(g->limits); i < n_names; i++) {
        if (limits_set_tenant(g->limits, i, names[i], &none, now_us, problem) != INFERD_OK)
            return false;
        if (g->quota != NULL) quota_file_restore(g->quota, g->limits, i);
    }
    return true;
}

/* A limit of 0 is a bit, so that there are no buckets of size 0. */
static uint32_t take_limit(uint64_t limit, limits_reason which, limits_spec *spec) {
    if (limit == 0) spec->closed |= 1u << which;
    return limit == CONFIG_NO_LIMIT ? 0 : (uint32_t)limit;
}
static uint64_t take_quota(uint64_t limit, limits_reason which, limits_spec *spec) {
    if (limit == 0) spec->closed |= 1u << which;
    return limit == CONFIG_NO_LIMIT ? 0 : limit;
}

static limits_spec spec_of(const config_tenant_limits *l) {
    limits_spec spec = {0};
    spec.requests_per_min = take_limit(l->requests_per_min, LIMITS_REQUESTS, &spec);
    spec.tokens_per_min = take_limit(l->tokens_per_min, LIMITS_TOKENS, &spec);
    spec.concurrent = take_limit(l->concurrent, LIMITS_CONCURRENT, &spec);
    spec.tokens_per_day = take_quota(l->tokens_per_day, LIMITS_DAY, &spec);
    spec.tokens_per_month = take_quota(l->tokens_per_month, LIMITS_MONTH, &spec);
    return spec;
}

bool admission_update(admission *g, char *const *names, uint32_t n_names, const inferd_config *c,
                      inferd_err *problem) {
    if (g == NULL) return true;
    uint64_t now_us = clock_now_us();
    const config_tenant **sorted = sort_tenants(c);
    if (sorted == NULL || !make_room(g, names, n_names, now_us, problem)) {
        if (sorted == NULL) inferd_fail(problem, INFERD_ENOMEM, "no memory for limits of tenants");
        free(sorted);
        return false;
    }
    for (uint32_t i = 0; i < n_names; i++) {
        const config_tenant *const *found =
            bsearch(names[i], sorted, c->n_tenants, sizeof *sorted, compare_name);
        if (found == NULL) continue;
        limits_spec spec = spec_of(&(*found)->limits);
        inferd_err err = {0};
        inferd_status s = limits_set_tenant(g->limits, i, names[i], &spec, now_us, &err);
        INFERD_CHECK(s == INFERD_OK); // numbers keep their names, and there is room
    }
    free(sorted);
    return true;
}

/* ---- the file ---- */

static void *run_writer(void *ctx) {
    admission *g = ctx;
    writer *w = &g->w;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->asked && !w->stops) pthread_cond_wait(&w->changed, &w->mutex);
        if (!w->asked) break;
        pthread_mutex_unlock(&w->mutex);
        inferd_err err = {0};
        quota_file_write(g->path, w->text.p, w->text.n, &err);
        pthread_mutex_lock(&w->mutex);
        w->err = err;
        w->asked = false;
        w->done = true;
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static void complain(admission *g, const inferd_err *err, uint64_t now_us) {
    if (g->complained_us != 0 && now_us < g->complained_us + COMPLAIN_US) return;
    g->complained_us = now_us;
    log_text(LOG_LEVEL_ERROR, "quota_write_failed", "error", err->text);
}

/* Handles the result of a finished write. */
static void collect(admission *g, uint64_t now_us) {
    pthread_mutex_lock(&g->w.mutex);
    bool done = g->w.done;
    inferd_err err = g->w.err;
    g->w.done = false;
    pthread_mutex_unlock(&g->w.mutex);
    if (!done) return;
    quota_file_written(g->quota, err.status == INFERD_OK);
    buf_deinit(&g->w.text);
    if (err.status != INFERD_OK) complain(g, &err, now_us);
}

static bool snapshot(admission *g, uint64_t now_us) {
    inferd_err err = {0};
    buf_init(&g->w.text, QUOTA_FILE_BYTES_MAX);
    if (quota_file_snapshot(g->quota, g->limits, now_us, (int64_t)time(NULL), &g->w.text, &err) ==
        INFERD_OK)
        return true;
    buf_deinit(&g->w.text);
    complain(g, &err, now_us);
    return false;
}

void admission_tick(admission *g, uint64_t now_us) {
    if (g == NULL || g->quota == NULL) return;
    collect(g, now_us);
    if (!quota_file_due(g->quota, g->limits, now_us) || !snapshot(g, now_us)) return;
    pthread_mutex_lock(&g->w.mutex);
    g->w.asked = true;
    pthread_cond_signal(&g->w.changed);
    pthread_mutex_unlock(&g->w.mutex);
}

/* At the end the front writes by itself: it no longer serves requests. */
static void write_last(admission *g) {
    uint64_t now_us = clock_now_us();
    inferd_err err = {0};
    collect(g, now_us);
    if (!quota_file_due(g->quota, g->limits, now_us + QUOTA_FILE_PERIOD_US) || !snapshot(g, now_us))
        return;
    inferd_status s = quota_file_write(g->path, g->w.text.p, g->w.text.n, &err);
    quota_file_written(g->quota, s == INFERD_OK);
    if (s != INFERD_OK) log_text(LOG_LEVEL_ERROR, "quota_write_failed", "error", err.text);
    buf_deinit(&g->w.text);
}

/* ---- life ---- */

/* Without a writable folder the use of the day and the month would be lost at the end without
 * notice. */
static inferd_status check_writable(const char *state_dir, inferd_err *err) {
    size_t n = strlen(state_dir) + sizeof "/.try-XXXXXX";
    char *path = malloc(n);
    if (path == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for quotas");
    snprintf(path, n, "%s/.try-XXXXXX", state_dir);
    int fd = mkostemp(path, O_CLOEXEC);
    inferd_status s = INFERD_OK;
    if (fd < 0)
        s = inferd_fail(err, INFERD_EIO, "state_dir %s cannot be written: %s", state_dir,
                        strerror(errno));
    else
        unlink(path), close(fd);
    free(path);
    return s;
}

/* In a folder that others may write, quotas.json can be replaced by a file without use. */
static inferd_status check_mode(int folder, const char *state_dir, inferd_err *err) {
    struct stat st;
    char mode[8];
    if (fstat(folder, &st) != 0)
        return inferd_fail(err, INFERD_EIO, "state_dir %s: %s", state_dir, strerror(errno));
    snprintf(mode, sizeof mode, "%04o", (unsigned)st.st_mode & 07777);
    if ((st.st_mode & S_IWOTH) != 0)
        return inferd_fail(err, INFERD_EINVAL,
                           "state_dir %s: all users may write it (mode %s): chmod o-w", state_dir,
                           mode);
    if ((st.st_mode & S_IWGRP) == 0) return INFERD_OK;
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "state_dir");
    log_str(&line, "path", state_dir);
    log_str(&line, "mode", mode);
    log_str(&line, "problem", "its group may write it, and so change the used quotas");
    log_end(&line);
    return INFERD_OK;
}

/* Two daemons would overwrite each other's counts. */
static inferd_status lock_folder(admission *g, const char *state_dir, inferd_err *err) {
    g->folder = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (g->folder < 0)
        return inferd_fail(err, INFERD_EIO, "state_dir %s: %s", state_dir, strerror(errno));
    if (flock(g->folder, LOCK_EX | LOCK_NB) != 0)
        return inferd_fail(err, INFERD_EIO, "state_dir %s is in use by another process", state_dir);
    return INFERD_OK;
}

static inferd_status open_quota(admission *g, const char *state_dir, inferd_err *err) {
    size_t n = strlen(state_dir) + sizeof "/" ADMISSION_QUOTA_FILE;
    g->path = malloc(n);
    if (g->path == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for quotas");
    snprintf(g->path, n, "%s/%s", state_dir, ADMISSION_QUOTA_FILE);
    if (mkdir(state_dir, 0700) != 0 && errno != EEXIST)
        return inferd_fail(err, INFERD_EIO, "state_dir %s cannot be created: %s", state_dir,
                           strerror(errno));
    inferd_status s = lock_folder(g, state_dir, err);
    if (s == INFERD_OK) s = check_mode(g->folder, state_dir, err);
    if (s == INFERD_OK) s = check_writable(state_dir, err);
    if (s == INFERD_OK) s = quota_file_read(g->path, &g->quota, err);
    if (s != INFERD_OK) return s;
    int rc = pthread_create(&g->w.thread, NULL, run_writer, g);
    if (rc != 0)
        return inferd_fail(err, INFERD_EIO, "starting the thread that writes %s: %s", g->path,
                           strerror(rc));
    g->w.running = true;
    return INFERD_OK;
}

inferd_status admission_create(const char *state_dir, uint32_t n_slots, uint32_t n_names,
                               admission **out, inferd_err *err) {
    admission *g = calloc(1, sizeof *g);
    if (g == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for limits of tenants");
    pthread_mutex_init(&g->w.mutex, NULL);
    pthread_cond_init(&g->w.changed, NULL);
    g->folder = -1;
    g->limits = limits_create();
    g->slots = calloc(size_max(n_slots, 1), sizeof *g->slots);
    g->outputs = calloc(size_max(n_names, 1), sizeof(output_estimate *));
    g->n_slots = n_slots;
    g->n_names = n_names;
    inferd_status s = INFERD_OK;
    if (g->limits == NULL || g->slots == NULL || g->outputs == NULL)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for limits of tenants");
    else if (state_dir != NULL)
        s = open_quota(g, state_dir, err);
    if (s != INFERD_OK) {
        admission_destroy(g);
        return s;
    }
    *out = g;
    return INFERD_OK;
}

static void stop_writer(writer *w) {
    pthread_mutex_lock(&w->mutex);
    w->stops = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
}

/* Choices of one request share a ticket: it is freed with the last of them. */
static void free_tickets(admission *g) {
    for (uint32_t i = 0; g->slots != NULL && i < g->n_slots; i++) {
        admission_ticket *t = g->slots[i].grant.ticket;
        if (t != NULL && --t->n_open == 0) free(t);
    }
}

void admission_destroy(admission *g) {
    if (g == NULL) return;
    if (g->w.running) {
        stop_writer(&g->w);
        write_last(g);
    }
    free_tickets(g);
    queue_slots_deinit(&g->queue);
    for (uint32_t i = 0; g->outputs != NULL && i < g->n_names; i++) free(g->outputs[i]);
    free(g->outputs);
    free(g->slots);
    quota_file_destroy(g->quota);
    if (g->folder >= 0) close(g->folder);
    limits_destroy(g->limits);
    pthread_cond_destroy(&g->w.changed);
    pthread_mutex_destroy(&g->w.mutex);
    buf_deinit(&g->w.text);
    free(g->path);
    free(g);
}
