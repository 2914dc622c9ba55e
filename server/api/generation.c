/* generation.c - see generation.h. */
#include "generation.h"

#include <time.h>

#include "app_tell.h"
#include "app_usage.h"
#include "inferd/clock.h"
#include "log.h"

enum { SLOT_BITS = 21 }; // of an id; the other bits count, so that no id is used twice

/* ---- slots ---- */

static app_slot *take_slot(app *a, generation *f, uint32_t choice_idx) {
    INFERD_CHECK(a->first_free < a->n_slots && a->n_slots <= 1u << SLOT_BITS);
    uint32_t i = a->first_free;
    app_slot *slot = &a->slots[i];
    a->first_free = slot->next_free;
    slot->id = ++a->n_ids << SLOT_BITS | i;
    slot->generation = f;
    slot->choice_idx = choice_idx;
    slot->model_idx = f->model_idx;
    return slot;
}

static app_slot *find_slot(const app *a, uint64_t id) {
    uint32_t i = (uint32_t)(id & ((1u << SLOT_BITS) - 1));
    return i < a->n_slots && a->slots[i].id == id ? &a->slots[i] : NULL;
}

const generation *generation_of(const app *a, uint64_t id) {
    const app_slot *slot = find_slot(a, id);
    return slot == NULL ? NULL : slot->generation;
}

static void free_slot(app *a, app_slot *slot) {
    slot->id = 0;
    slot->generation = NULL;
    slot->trace = NULL;
    slot->next_free = a->first_free;
    a->first_free = (uint32_t)(slot - a->slots);
}

/* ---- the end ---- */

/* The index of its name in metrics. */
static uint32_t name_of(const generation *f) {
    return app_model(f->app, f->model_idx)->name_idx;
}

static void write_log(const generation *f, int status, const char *finish) {
    if (!log_wants(LOG_LEVEL_INFO)) return;
    answer_usage u = stream_usage(f->stream);
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "done");
    log_str(&line, "id", f->rq_id);
    if (f->tenant >= 0) log_str(&line, "tenant", f->app->tenants[f->tenant]);
    log_str(&line, "model", app_model(f->app, f->model_idx)->name);
    if (fleet_n_devices(f->app->fleet) > 1 && f->n_sent > 0) // several prompts: of the first
        log_str(&line, "device", fleet_device_name(f->app->fleet, f->devices[0]));
    log_i64(&line, "status", status);
    log_u64(&line, "prompt_tokens", u.n_prompt);
    log_u64(&line, "cached_tokens", u.n_cached);
    log_u64(&line, "new_tokens", u.n_output);
    if (f->first_token_us != 0)
        log_u64(&line, "ttft_ms", (f->first_token_us - f->arrival_us) / 1000);
    log_u64(&line, "queue_ms", f->queue_us / 1000);
    log_u64(&line, "queue_steps", u.queued_steps);
    log_u64(&line, "total_ms", (clock_now_us() - f->arrival_us) / 1000);
    log_u64(&line, "preempted", u.n_preempted);
    if (u.n_preempted > 0) {
        for (int r = 0; r < GEN_PREEMPTS; r++)
            if (u.n_preempts[r] > 0)
                log_u64(&line, gen_preempt_name((gen_preempt)r), u.n_preempts[r]);
        log_u64(&line, "away_ms", u.away_us / 1000);
        log_u64(&line, "recomputed_tokens", u.n_recomputed);
        log_u64(&line, "preempt_cost_us", u.waste_us + u.swap_in_us);
    }
    if (f->app->config->c->log.explain && f->explanation.known && f->first_token_us != 0)
        explain_log(&f->explanation, &line);
    log_str(&line, "finish", finish);
    log_end(&line);
}

static const char *const outcome_words[OUTCOMES] = {"stop",    "length", "cancelled",
                                                    "timeout", "error",  "refused"};

static void keep_answer(const generation *f, uint32_t choice_idx) {
    if (f->drawn == NULL || f->drawn[choice_idx].n == 0) return;
    transcript_answer(f->transcript, f->drawn[choice_idx].ids, f->drawn[choice_idx].n);
}

/* An answer that has begun has its status, whatever came later. */
static void close_trace(const generation *f, metric_outcome outcome, int status) {
    answer_usage u = stream_usage(f->stream);
    bool good = outcome == OUTCOME_STOP || outcome == OUTCOME_LENGTH;
    request_trace_end end = {.status = f->begun ? 200 : status,
                             .n_prompt = u.n_prompt,
                             .n_cached = u.n_cached,
                             .n_output = u.n_output};
    if (good) {
        end.finish = stream_finish_reason(f->stream);
    } else if (outcome == OUTCOME_CANCELLED) {
        end.status = f->begun ? 200 : 0;
        end.code = "client_left";
    } else {
        end.code = outcome == OUTCOME_REFUSED ? "server_overloaded" : stream_error(f->stream)->code;
        end.failed = true;
    }
    request_trace_close(f->trace, &end);
}

/* The exchange is gone or answered: cancels the generation's running sequences and frees it.  Their
 * slots stay in use until the sequences have ended. */
static void close_generation(generation *f, metric_outcome outcome, int status) {
    app *a = f->app;
    write_log(f, status, outcome_words[outcome]);
    if (f->trace != NULL) close_trace(f, outcome, status);
    metrics_request(a->metrics, name_of(f), outcome);
    if (outcome == OUTCOME_STOP || outcome == OUTCOME_LENGTH)
        metrics_observe(a->metrics, name_of(f), HIST_E2E,
                        (double)(clock_now_us() - f->arrival_us) / 1e6);
    for (uint32_t i = 0; i < f->n_choices; i++) {
        if (f->ids[i] == 0) continue;
        keep_answer(f, i); // what a client saw before it left may be in its next prompt
        find_slot(a, f->ids[i])->generation = NULL;
        fleet_cancel(a->fleet, f->devices[i], f->ids[i]);
    }
    list_remove(&f->link);
    list_remove(&f->dirty);
    a->n_generations--;
    a->models.slots[f->model_idx].n_generations--;
    for (uint32_t i = 0; f->drawn != NULL && i < f->n_choices; i++) tok_ids_deinit(&f->drawn[i]);
    free(f->drawn);
    transcript_release(f->transcript);
    stream_destroy(f->stream);
    buf_deinit(&f->out);
    free(f->devices);
    free(f->ids);
    free(f->first_us);
    free(f->last_us);
    free(f);
}

/* After this the transport does not call back for the request. */
static http_request *let_go(generation *f) {
    http_request *rq = f->rq;
    rq->user = NULL;
    rq->on_gone = NULL;
    rq->on_reader = NULL;
    f->rq = NULL;
    return rq;
}

static void on_gone(http_request *rq) {
    generation *f = rq->user;
    let_go(f);
    close_generation(f, OUTCOME_CANCELLED, 499);
}

static void on_reader(http_request *rq, bool paused) {
    generation *f = rq->user;
    for (uint32_t i = 0; i < f->n_choices; i++) {
        if (f->ids[i] == 0) continue;
        if (paused)
            fleet_pause(f->app->fleet, f->devices[i], f->ids[i]);
        else
            fleet_resume(f->app->fleet, f->devices[i], f->ids[i]);
    }
}

/* ---- the start ---- */

static generation *create_generation(api_job *job) {
    generation *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->ids = calloc(job->n_requests, sizeof *f->ids);
    f->first_us = calloc(job->n_requests, sizeof *f->first_us);
    f->last_us = calloc(job->n_requests, sizeof *f->last_us);
    f->devices = calloc(job->n_requests, sizeof *f->devices);
    if (f->ids == NULL || f->first_us == NULL || f->last_us == NULL || f->devices == NULL) {
        free(f->devices);
        free(f->ids);
        free(f->first_us);
        free(f->last_us);
        free(f);
        return NULL;
    }
    f->app = job->app;
    f->rq = job->rq;
    memcpy(f->rq_id, job->rq->id, sizeof f->rq_id);
    f->n_choices = job->n_requests;
    f->model_idx = (uint32_t)job->model_idx;
    f->arrival_us = job->rq->arrival_us;
    f->deadline_us = job->requests[0]->deadline_us;
    f->heartbeat_us = (uint64_t)job->config->c->limits.http.heartbeat_ms * 1000;
    const gen_request *first = job->requests[0];
    const model_policy *wishes = &f->app->models.slots[f->model_idx].policy;
    uint32_t ttft_ms = first->ttft_target_ms, tpot_ms = first->tpot_target_ms;
    f->ttft_target_us = (uint64_t)(ttft_ms != 0 ? ttft_ms : wishes->slo_ttft_ms) * 1000;
    f->tpot_target_us = (uint64_t)(tpot_ms != 0 ? tpot_ms : wishes->slo_tpot_ms) * 1000;
    f->tenant = job->rq->tenant;
    f->stream = job->stream;
    job->stream = NULL;
    f->explanation = job->explanation;
    f->transcript = job->transcript;
    job->transcript = NULL;
    f->trace = job->trace;
    job->trace = NULL;
    if (f->trace != NULL)
        request_trace_admit(f->trace, f->app->models.names[name_of(f)], first->prio, f->n_choices);
    if (f->transcript != NULL) f->drawn = calloc(job->n_requests, sizeof *f->drawn);
    list_node_init(&f->dirty);
    list_push_back(&f->app->generations, &f->link);
    f->app->n_generations++;
    f->app->models.slots[f->model_idx].n_generations++;
    return f;
}

/* False: the device's inbox is full, or the model has left it; the rest was not sent. */
static bool submit_all(generation *f, api_job *job, const admission_grant *grant) {
    app *a = f->app;
    uint64_t devices = 0;
    for (uint32_t i = 0; i < f->n_choices; i++) {
        app_slot *slot = take_slot(a, f, i);
        gen_request *r = job->requests[i];
        uint32_t tenant_idx = r->tenant_idx; // the engine owns r after the submission
        r->id = slot->id;
        /* Choices of one prompt share it, so they go to the device of the first one. */
        if (i % job->n_per_prompt == 0) devices = job->devices[i / job->n_per_prompt];
        uint32_t device_idx = fleet_send(a->fleet, r, devices);
        if (device_idx == FLEET_NOWHERE) {
            free_slot(a, slot);
            admission_drop(a->admission, grant, f->n_choices - i, clock_now_us(), time(NULL));
            return false;
        }
        devices = UINT64_C(1) << device_idx;
        slot->device_idx = f->devices[i] = device_idx;
        slot->tenant_idx = tenant_idx;
        slot->trace = f->trace;
        if (f->trace != NULL)
            request_trace_send(f->trace, i, fleet_device_name(a->fleet, device_idx));
        f->ids[i] = slot->id;
        f->n_sent++;
        job->requests[i] = NULL;
        admission_hold(a->admission, grant, (uint32_t)(slot - a->slots), i);
    }
    return true;
}

/* May another tenant use the model, too? */
static bool is_shared(const api_job *job) {
    const app_config *config = job->config;
    uint32_t idx = 0;
    if (job->tenant < 0) return false;
    while (idx < config->c->n_models && config->slots[idx] != job->model_idx) idx++;
    for (uint32_t i = 0; i < config->c->n_tenants; i++)
        if (i != (uint32_t)job->tenant && app_may_use(config, (int)i, idx)) return true;
    return false;
}

/* How long the model is to stay without requests, for all tenants, once the job has started.  If
 * other tenants may use the model, a tenant cannot set less than the configuration's time. */
static uint64_t keep_alive_after(const api_job *job) {
    const registry_slot *slot = &job->app->models.slots[job->model_idx];
    uint64_t set_us = slot->policy.keep_alive_us;
    if (!job->has_keep_alive || job->keep_alive_us == set_us) return set_us;
    if (job->keep_alive_us < slot->told.keep_alive_us && is_shared(job))
        return slot->told.keep_alive_us;
    return job->keep_alive_us;
}

static void set_keep_alive(const api_job *job, uint64_t us) {
    registry_slot *slot = &job->app->models.slots[job->model_idx];
    if (slot->policy.keep_alive_us == us) return;
    model_policy changed = slot->policy;
    changed.keep_alive_us = us;
    if (fleet_model_set_policy(job->app->fleet, (uint32_t)job->model_idx, &changed))
        slot->policy = changed;
    else
        log_text(LOG_LEVEL_ERROR, "keep_alive_not_set", "model", slot->name);
}

static bool ask(api_job *job, admission_grant *grant) {
    const app *a = job->app;
    const registry_slot *slot = &a->models.slots[job->model_idx];
    admission_request asked = {.closed = a->device_hangs   ? API_DEVICE_LOST
                                         : a->refuses_work ? API_DRAINING
                                                           : API_OK,
                               .fleet = a->fleet,
                               .tenant = job->rq->tenant,
                               .input = job->input,
                               .name_idx = slot->name_idx,
                               .context = job->context,
                               .again = job->hints.again,
                               .requests = job->requests,
                               .n_requests = job->n_requests,
                               .n_per_prompt = job->n_per_prompt,
                               .arrival_us = job->rq->arrival_us};
    return admission_ask(a->admission, &asked, clock_now_us(), time(NULL), grant, job->devices,
                         &job->error);
}

/* Takes the job's requests and stream.  False: job->error has the reason, and nothing runs. */
static bool start(api_job *job) {
    app *a = job->app;
    admission_grant grant;
    if (!ask(job, &grant)) return false;
    generation *f = create_generation(job);
    if (f == NULL) {
        admission_drop(a->admission, &grant, job->n_requests, clock_now_us(), time(NULL));
        return api_fail(&job->error, API_INTERNAL, NULL, "the server is short of memory");
    }
    /* A longer time is set before the requests can end, a shorter one while they are there: the
     * model does not leave in between. */
    uint64_t before_us = a->models.slots[job->model_idx].policy.keep_alive_us;
    uint64_t after_us = keep_alive_after(job);
    if (after_us > before_us) set_keep_alive(job, after_us);
    if (!submit_all(f, job, &grant)) {
        set_keep_alive(job, before_us);
        bool nowhere = fleet_model_devices(a->fleet, (uint32_t)job->model_idx) == 0;
        f->rq = NULL;
        close_generation(f, OUTCOME_REFUSED, 503);
        job->model_idx = -1; // it was counted and logged
        if (nowhere)         // it left after admission
            return api_fail(&job->error, API_UNLOADED, "model",
                            "no device has the model at the moment; ask again");
        return api_fail(&job->error, API_OVERLOADED, NULL, "the queue is full");
    }
    set_keep_alive(job, after_us);
    metrics_observe(a->metrics, name_of(f), HIST_N, job->n_per_prompt);
    f->rq->user = f;
    f->rq->on_gone = on_gone;
    f->rq->on_reader = on_reader;
    return true;
}

void generation_launch(void *ctx, bool rq_gone) {
    api_job *job = ctx;
    bool started = job->error.fault == API_OK && !rq_gone && start(job);
    api_tell_unknown(job);
    if (!started && (job->error.fault != API_OK || !rq_gone)) api_refuse(job, rq_gone);
    api_job_destroy(job);
}

/* ---- events ---- */

static void mark_dirty(generation *f) {
    if (!list_linked(&f->dirty)) list_push_back(&f->app->dirty, &f->dirty);
}

/* The first token of all: the prompt was computed. */
static void note_prompt(generation *f, uint32_t n_cached) {
    if (f->transcript != NULL) transcript_computed(f->transcript);
    if (!f->explanation.known) return;
    explain_cached(&f->explanation, n_cached);
    metrics_prefix(f->app->metrics, name_of(f), f->explanation.cause);
}

/* Without memory the answer is not kept, which costs time only. */
static void note_drawn(generation *f, uint32_t choice_idx, tok_id id) {
    if (f->drawn == NULL || tok_ids_push(&f->drawn[choice_idx], id)) return;
    for (uint32_t i = 0; i < f->n_choices; i++) tok_ids_deinit(&f->drawn[i]);
    free(f->drawn);
    f->drawn = NULL;
}

static void note_token(generation *f, uint32_t choice_idx, uint64_t at_us) {
    metrics *m = f->app->metrics;
    if (f->first_token_us == 0) {
        f->first_token_us = at_us > f->arrival_us ? at_us : f->arrival_us;
        metrics_observe(m, name_of(f), HIST_TTFT,
                        (double)(f->first_token_us - f->arrival_us) / 1e6);
        if (f->ttft_target_us != 0)
            metrics_target(m, name_of(f), TARGET_TTFT,
                           f->first_token_us - f->arrival_us <= f->ttft_target_us);
        history_note(f->app->history, HISTORY_TTFT, f->first_token_us - f->arrival_us);
        fleet_note_ttft(f->app->fleet, f->model_idx, f->first_token_us - f->arrival_us, at_us);
    }
    if (f->last_us[choice_idx] != 0 && at_us >= f->last_us[choice_idx]) {
        metrics_observe(m, name_of(f), HIST_ITL, (double)(at_us - f->last_us[choice_idx]) / 1e6);
        history_note(f->app->history, HISTORY_ITL, at_us - f->last_us[choice_idx]);
    }
    if (f->first_us[choice_idx] == 0) f->first_us[choice_idx] = at_us;
    f->last_us[choice_idx] = at_us;
}

/* The mean time between its tokens, from its own first one: other choices may have begun long
 * before. */
static void note_pace(generation *f, uint32_t choice_idx, const gen_event *ev) {
    uint64_t first_us = f->first_us[choice_idx], last_us = f->last_us[choice_idx];
    bool ended = ev->done.finish == GEN_STOP || ev->done.finish == GEN_LENGTH;
    if (f->tpot_target_us == 0 || !ended || ev->done.n_output < 2 || last_us < first_us) return;
    uint64_t us = (last_us - first_us) / (ev->done.n_output - 1);
    metrics_target(f->app->metrics, name_of(f), TARGET_TPOT, us <= f->tpot_target_us);
}

void generation_on_event(generation *f, uint32_t choice_idx, const gen_event *ev) {
    if (ev->kind == GEN_EV_TOKEN) {
        if (f->first_token_us == 0) note_prompt(f, ev->token.n_cached);
        note_token(f, choice_idx, ev->at_us);
        note_drawn(f, choice_idx, ev->token.r.id);
    }
    if (ev->kind == GEN_EV_DONE) {
        keep_answer(f, choice_idx);
        f->ids[choice_idx] = 0;
        if (choice_idx == 0) f->queue_us = ev->done.queued_us;
        note_pace(f, choice_idx, ev);
    }
    if (stream_on_event(f->stream, choice_idx, ev, &f->out))
        fleet_cancel(f->app->fleet, f->devices[choice_idx], f->ids[choice_idx]);
    mark_dirty(f);
}

void generation_fail(generation *f, api_fault fault, const char *message) {
    stream_fail(f->stream, fault, message);
    mark_dirty(f);
}

/* ---- writing ---- */

/* Before the answer begins: adds the header that says where its prompt was known to. */
static void tell_explanation(const generation *f) {
    if (!f->explanation.wanted || f->first_token_us == 0) return;
    buf lines = {0};
    if (f->rq->headers != NULL) buf_add_str(&lines, f->rq->headers);
    explain_add_header(&f->explanation, &lines);
    if (buf_cstr(&lines) != lines.p || lines.failed) {
        buf_deinit(&lines); // no memory: the log still has it
        return;
    }
    free(f->rq->headers);
    f->rq->headers = lines.p;
}

/* False: the client is gone, or cannot be answered; the generation is freed. */
static bool send_out(generation *f) {
    if (!f->begun) {
        tell_explanation(f);
        if (!http_stream_begin(f->rq)) {
            api_error e = {0};
            api_fail(&e, API_INTERNAL, NULL, "the server is short of memory");
            api_answer_error(let_go(f), &e); // does nothing if the client is gone
            close_generation(f, OUTCOME_ERROR, e.status);
            return false;
        }
        f->begun = true;
    }
    bool ok = f->out.n == 0 || http_stream_write(f->rq, f->out.p, f->out.n);
    buf_clear(&f->out);
    if (ok) return true;
    let_go(f);
    close_generation(f, OUTCOME_CANCELLED, 499);
    return false;
}

static void end_failed(generation *f) {
    api_error e = *stream_error(f->stream);
    metric_outcome outcome = e.fault == API_DEADLINE ? OUTCOME_TIMEOUT : OUTCOME_ERROR;
    app *a = f->app;
    bool lost = e.fault == API_DEVICE_LOST || e.fault == API_INTERNAL;
    bool failed = lost || (f->begun && e.fault != API_DEADLINE); // it was taken, not refused
    if (failed) app_tell_failure(a, name_of(f), &e);
    if (!f->begun && e.fault == API_OVERLOADED)
        e.retry_after_s = admission_refuse(a->admission, f->n_choices, clock_now_us());
    if (!f->begun) {
        metrics_refused(a->metrics, f->tenant, name_of(f), e.fault);
        if (!failed) app_tell_refusal(a, f->tenant, name_of(f), &e);
        api_answer_error(let_go(f), &e);
        close_generation(f, outcome, e.status);
        return;
    }
    if (f->out.failed) buf_clear(&f->out); // it may end in the middle of an event
    stream_write_error(f->stream, &e, &f->out);
    if (f->out.failed) {
        http_stream_abort(let_go(f));
    } else {
        if (!send_out(f)) return;
        http_stream_end(let_go(f));
    }
    close_generation(f, outcome, e.status);
}

/* Is its output whole, and a stream's not longer than the transport takes at once? */
static bool is_writable(const generation *f) {
    bool long_stream = f->out.n > HTTP_STREAM_LONG_BYTES_MAX && stream_about(f->stream)->streaming;
    return !f->out.failed && !long_stream;
}

/* Drops the output: it may end in the middle of an event. */
static void fail_output(generation *f) {
    buf_clear(&f->out);
    stream_fail(f->stream, API_INTERNAL,
                "the server is short of memory, or the answer is too long for a stream");
}

static void end_well(generation *f) {
    if (!stream_finish(f->stream, &f->out) || !is_writable(f)) {
        fail_output(f);
        end_failed(f);
        return;
    }
    bool stopped = strcmp(stream_finish_reason(f->stream), "length") != 0;
    if (stream_about(f->stream)->streaming) {
        if (!send_out(f)) return;
        http_stream_end(let_go(f));
    } else {
        tell_explanation(f);
        api_answer_json(let_go(f), 200, &f->out);
    }
    close_generation(f, stopped ? OUTCOME_STOP : OUTCOME_LENGTH, 200);
}

void generation_flush(generation *f) {
    list_remove(&f->dirty);
    if (!is_writable(f)) fail_output(f);
    if (stream_error(f->stream)->fault != API_OK)
        end_failed(f);
    else if (stream_is_done(f->stream))
        end_well(f);
    else if (f->out.n > 0)
        send_out(f);
}

/* ---- iterations ---- */

/* It ended by itself, or by a stop string, for which the generation cancels it. */
static bool ended_well(const generation *f, const gen_event *ev) {
    if (ev->done.finish == GEN_STOP) return true;
    return ev->done.finish == GEN_CANCELLED && f != NULL &&
           stream_error(f->stream)->fault == API_OK && ev->done.n_output > 0;
}

static void settle(app *a, const app_slot *slot, uint32_t name_idx, const gen_event *ev) {
    if (ended_well(slot->generation, ev))
        admission_note_output(a->admission, name_idx, ev->done.n_output);
    admission_on_done(a->admission, (uint32_t)(slot - a->slots), ev, clock_now_us(), time(NULL));
}

/* A sequence without output (scored, or ended before its first token) has no prefill and decode. */
static void note_times(metrics *m, uint32_t name_idx, const gen_event *ev) {
    metrics_observe(m, name_idx, HIST_QUEUE, (double)ev->done.queued_us / 1e6);
    if (ev->done.n_output == 0) return;
    metrics_observe(m, name_idx, HIST_PREFILL, (double)ev->done.prefill_us / 1e6);
    metrics_observe(m, name_idx, HIST_DECODE, (double)ev->done.decode_us / 1e6);
}

static void take_event(app *a, const gen_event *ev) {
    app_slot *slot = find_slot(a, ev->id);
    if (slot == NULL) return; // its submission was taken back
    uint32_t name_idx = app_model(a, slot->model_idx)->name_idx;
    if (ev->kind == GEN_EV_TOKEN) {
        metrics_token(a->metrics, name_idx);
        a->totals.output_tokens++;
    }
    if (ev->kind == GEN_EV_DONE) {
        metrics_sequence(a->metrics, name_idx, ev->done.n_prompt, ev->done.n_cached,
                         ev->done.n_output);
        note_times(a->metrics, name_idx, ev);
    }
    if (ev->kind == GEN_EV_DONE) settle(a, slot, name_idx, ev);
    if (ev->kind == GEN_EV_DONE)
        fleet_note_done(a->fleet, slot->device_idx, slot->model_idx, slot->tenant_idx);
    generation *f = slot->generation;
    uint32_t choice_idx = slot->choice_idx;
    if (ev->kind == GEN_EV_DONE) {
        request_trace_done(slot->trace, choice_idx, ev);
        free_slot(a, slot);
    }
    if (f != NULL) generation_on_event(f, choice_idx, ev);
}

static void flush_dirty(app *a) {
    if (list_empty(&a->dirty)) return;
    while (!list_empty(&a->dirty)) generation_flush(LIST_ENTRY(a->dirty.next, generation, dirty));
    http_flush(a->http);
    if (a->http_admin != NULL) http_flush(a->http_admin);
}

void app_on_engine_wake(app *a) {
    gen_event ev;
    while (fleet_next_event(a->fleet, &ev)) take_event(a, &ev);
    flush_dirty(a);
}

/* Begins a stream that still waits for its model or in the queue.  Not before heartbeat_ms: a quick
 * refusal keeps its HTTP status. */
static void beat(generation *f, uint64_t now_us) {
    static const char line[] = ": waiting\n\n";
    if (f->begun || f->out.n > 0 || !stream_about(f->stream)->streaming ||
        stream_error(f->stream)->fault != API_OK || now_us < f->arrival_us + f->heartbeat_us)
        return;
    buf_add(&f->out, line, sizeof line - 1); // after this the transport sends heartbeats
    mark_dirty(f);
}

/* The engine ends late requests by itself; this is for an engine that no longer ends any. */
void app_tick(app *a, uint64_t late_us) {
    enum { GRACE_US = 2000000 };
    uint64_t now = clock_now_us();
    metrics_loop_lag(a->metrics, (double)late_us / 1e6);
    app_look_at_fleet(a, now);
    app_watch_usage(a, now);
    app_tell(a, now);
    registry_sweep(&a->models);
    LIST_EACH(node, &a->generations) {
        generation *f = LIST_ENTRY(node, generation, link);
        if (f->deadline_us != 0 && now > f->deadline_us + GRACE_US)
            generation_fail(f, API_DEADLINE, "the request did not finish before its deadline");
        beat(f, now);
    }
    flush_dirty(a);
    admission_tick(a->admission, now);
}

void app_cut(app *a) {
    api_fault fault = a->device_hangs ? API_DEVICE_LOST : API_DRAINING;
    const char *why = a->device_hangs
                          ? "the device does not answer and the server restarts; ask again"
                          : "the server is shutting down";
    LIST_EACH(node, &a->generations)
        generation_fail(LIST_ENTRY(node, generation, link), fault, why);
    flush_dirty(a);
}

/* ---- routes: the worker reads (api_prepare), the front submits, events do the rest ---- */

void api_chat(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_CHAT, api_prepare, generation_launch);
}

void api_completions(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_COMPLETION, api_prepare, generation_launch);
}

void api_messages(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_MESSAGES, api_prepare, generation_launch);
}

void api_responses(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_RESPONSES, api_prepare, generation_launch);
}
