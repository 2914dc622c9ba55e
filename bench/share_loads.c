/* share_loads.c - rows of `share` that count how often models are loaded.
 *
 *     inversion  streams of the class batch on the first model; their keys and values want all of
 *                the device; requests of the class high to the second and the third alternately:
 *                their first token, against 2 x that of the idle daemon from cold and a step, and
 *                loads of the two models
 *     roundrobin requests to three models in turn that fit together with nothing else, then one to
 *                a fourth of the class high: loads and tokens per second in the minute after
 *
 * Loads are counted by the daemon.
 *
 * Thread: the run's. */
#include <string.h>

#include "result.h"
#include "share.h"
#include "share_load.h"

enum {
    BATCH_STREAMS = 14,
    BATCH_PROMPT = 32,
    BATCH_OUTPUT = 700,
    BATCH_WARM_UP_MS = 10000, // until keys and values fill the device
    BATCH_WARM_UP_MS_QUICK = 2000,
    URGENT_MODELS = 2,
    URGENT_PROMPT = 10,
    URGENT_ASKS = 80,
    URGENT_ASKS_QUICK = 14,
    URGENT_PAUSE_MS = 300, // at least; at most twice as long
    IDLE_ASKS = 16,
    IDLE_ASKS_QUICK = 6,
    SETTLE_MS = 300, // after a model was dropped
    ROUND_MODELS = 3,
    ROUND_PROMPT = 24,
    ROUND_OUTPUT = 24,
    ROUND_BEFORE_MS = 10000,
    ROUND_BEFORE_MS_QUICK = 3000,
    ROUND_SLICES = 6,
    ROUND_SLICE_MS = 10000, // a minute in all
    ROUND_SLICE_MS_QUICK = 2000
};
static const double INVERSION_GOAL = 2, LOADS_GOAL = 1;

/* Loads of models [from, to) since the start of the daemon. */
static inferd_status count_loads(share *s, uint32_t from, uint32_t to, double *out,
                                 inferd_err *err) {
    json_t *state = NULL;
    inferd_status status = share_state(s, &state, err);
    *out = 0;
    for (uint32_t i = from; status == INFERD_OK && i < to; i++) {
        double loads = 0;
        status = share_number(share_state_model(state, s->models[i]), "loads", &loads, err);
        *out += loads;
    }
    json_decref(state);
    return status;
}

/* ---- inversion ---- */

typedef struct inversion {
    samples idle, hot, urgent, step; // first tokens; gaps of the streams; ms
    double n_urgent_loads, n_batch_loads, batch_tokens_per_s;
} inversion;

/* First tokens of the idle daemon from cold, and of the model that is on the device then. */
static inferd_status measure_idle(share *s, inversion *v, inferd_err *err) {
    inferd_status status = INFERD_OK;
    uint32_t n = s->o->is_quick ? IDLE_ASKS_QUICK : IDLE_ASKS;
    for (uint32_t i = 0; status == INFERD_OK && i < n; i++) {
        share_answer a;
        double cold_ms = 0, hot_ms = 0;
        const char *model = s->models[1 + i % URGENT_MODELS];
        status =
            share_client_object(&s->admin, "POST", "models", model, "drop", "{\"wait\":true}", err);
        share_sleep_ms(SETTLE_MS);
        if (status == INFERD_OK)
            status = share_first_token(s, model, "priority", URGENT_PROMPT, &a, &cold_ms, err);
        if (status == INFERD_OK)
            status = share_first_token(s, model, "priority", URGENT_PROMPT, &a, &hot_ms, err);
        if (status != INFERD_OK) break;
        samples_add(&v->idle, cold_ms);
        samples_add(&v->hot, hot_ms);
    }
    return status;
}

/* Requests to the urgent models in turn, which are cold at first. */
static inferd_status ask_in_turn(share *s, inversion *v, inferd_err *err) {
    inferd_status status = INFERD_OK;
    uint32_t n = s->o->is_quick ? URGENT_ASKS_QUICK : URGENT_ASKS;
    for (uint32_t i = 0; status == INFERD_OK && i < n; i++) {
        share_answer a;
        double ms = 0;
        status = share_first_token(s, s->models[1 + i % URGENT_MODELS], "priority", URGENT_PROMPT,
                                   &a, &ms, err);
        if (status == INFERD_OK) samples_add(&v->urgent, ms);
        share_sleep_ms(URGENT_PAUSE_MS + (double)(share_seed(s) % 7) * URGENT_PAUSE_MS / 6);
    }
    return status;
}

static inferd_status measure_inversion(share *s, const share_stream_kind *kind, inversion *v,
                                       inferd_err *err) {
    double urgent[2] = {0}, batch[2] = {0};
    share_load load = {0};
    inferd_status status = INFERD_OK;
    for (uint32_t i = 1; status == INFERD_OK && i <= URGENT_MODELS; i++)
        status = share_client_object(&s->admin, "POST", "models", s->models[i], "drop",
                                     "{\"wait\":true}", err);
    if (status == INFERD_OK) status = share_load_start(&load, s->to, kind, 1, share_seed(s), err);
    uint64_t from_ns = bench_now_ns();
    share_sleep_ms(s->o->is_quick ? BATCH_WARM_UP_MS_QUICK : BATCH_WARM_UP_MS);
    if (status == INFERD_OK) status = count_loads(s, 1, 1 + URGENT_MODELS, &urgent[0], err);
    if (status == INFERD_OK) status = count_loads(s, 0, 1, &batch[0], err);
    if (status == INFERD_OK) status = ask_in_turn(s, v, err);
    if (status == INFERD_OK) status = count_loads(s, 1, 1 + URGENT_MODELS, &urgent[1], err);
    if (status == INFERD_OK) status = count_loads(s, 0, 1, &batch[1], err);
    uint64_t to_ns = bench_now_ns();
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    if (status == INFERD_OK) {
        uint32_t n = 0;
        share_load_gaps(&load, &v->step);
        for (uint32_t i = 0; i < load.n_streams; i++) n += load.streams[i].n_tokens;
        v->n_urgent_loads = urgent[1] - urgent[0];
        v->n_batch_loads = batch[1] - batch[0];
        v->batch_tokens_per_s = n / ((double)since_ns(from_ns, to_ns) / 1e9);
    }
    share_load_free(&load);
    return status;
}

static void tell_inversion(share *s, inversion *v) {
    double p90 = samples_at(&v->urgent, .9), cold = samples_at(&v->idle, .5);
    double step = samples_at(&v->step, .5), most = INVERSION_GOAL * cold + step;
    double each = v->n_urgent_loads / URGENT_MODELS;
    share_row *r = share_table_add(&s->table, "inversion",
                                   "first token of urgent requests to two models in turn, not in "
                                   "memory at first, beside batch work that fills the device",
                                   "p90 <= 2 x idle from cold + 1 step");
    snprintf(r->measured, sizeof r->measured, "p90 %.0f ms, at most %.0f expected", p90, most);
    snprintf(r->spread, sizeof r->spread,
             "%zu requests: least %.0f, median %.0f, most %.0f ms; idle: from cold median %.0f, "
             "most %.0f ms, on the device %.0f ms; %d streams of the batch: a step of %.1f ms, "
             "%.1f tokens/s",
             v->urgent.n, samples_at(&v->urgent, 0), samples_at(&v->urgent, .5),
             samples_at(&v->urgent, 1), cold, samples_at(&v->idle, 1), samples_at(&v->hot, .5),
             BATCH_STREAMS, step, v->batch_tokens_per_s);
    r->verdict = p90 <= most ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:o,s:o,s:o,s:o,s:f,s:f}", "ttft_ms", samples_json(&v->urgent),
                          "idle_cold_ttft_ms", samples_json(&v->idle), "idle_hot_ttft_ms",
                          samples_json(&v->hot), "batch_gap_ms", samples_json(&v->step), "limit_ms",
                          most, "batch_tokens_per_s", v->batch_tokens_per_s);
    r = share_table_add(&s->table, "inversion-loads",
                        "the same: loads of the two urgent models, for each first use",
                        "<= 1 where both fit without the batch's keys and values");
    snprintf(r->measured, sizeof r->measured, "%.1f", each);
    snprintf(r->spread, sizeof r->spread,
             "%.0f loads of the two in %zu requests; %.0f loads of the model of the batch",
             v->n_urgent_loads, v->urgent.n, v->n_batch_loads);
    r->verdict = each <= LOADS_GOAL ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:f,s:f,s:I}", "loads", v->n_urgent_loads, "batch_loads",
                          v->n_batch_loads, "requests", (json_int_t)v->urgent.n);
}

inferd_status share_measure_inversion(share *s, inferd_err *err) {
    share_stream_kind kind = {.model = s->models[0],
                              .key = s->o->key,
                              .tier = "flex",
                              .n = BATCH_STREAMS,
                              .n_prompt = BATCH_PROMPT};
    inversion v = {0};
    inferd_status status =
        share_output_fitting(s, kind.model, BATCH_PROMPT, BATCH_OUTPUT, &kind.n_output, err);
    if (status == INFERD_OK) status = measure_idle(s, &v, err);
    if (status == INFERD_OK) status = measure_inversion(s, &kind, &v, err);
    if (status == INFERD_OK) tell_inversion(s, &v);
    samples *all[] = {&v.idle, &v.hot, &v.urgent, &v.step};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) samples_free(all[i]);
    return status;
}

/* ---- roundrobin ---- */

typedef struct slice {
    double n_asks, n_tokens, n_loads, seconds;
} slice;

/* Requests to the models in turn, one after another, for so long. */
static inferd_status go_round(share *s, double ms, uint32_t *turn, slice *out, inferd_err *err) {
    double from_loads = 0, to_loads = 0;
    *out = (slice){0};
    inferd_status status = count_loads(s, 0, ROUND_MODELS, &from_loads, err);
    uint64_t from_ns = bench_now_ns();
    do {
        share_answer a = {0};
        share_ask ask = {.model = s->models[(*turn)++ % ROUND_MODELS],
                         .n_prompt = ROUND_PROMPT,
                         .n_output = ROUND_OUTPUT,
                         .seed = share_seed(s)};
        if (status == INFERD_OK) status = share_client_ask(&s->user, &ask, &a, err);
        out->n_asks++;
        out->n_tokens += ROUND_OUTPUT;
        out->seconds = (double)since_ns(from_ns, bench_now_ns()) / 1e9;
    } while (status == INFERD_OK && 1e3 * out->seconds < ms);
    if (status == INFERD_OK) status = count_loads(s, 0, ROUND_MODELS, &to_loads, err);
    out->n_loads = to_loads - from_loads;
    return status;
}

/* The row needs a fourth model of the class high, and room for the other three. */
static inferd_status check_high(share *s, inferd_err *err) {
    json_t *state = NULL;
    if (s->n_models <= ROUND_MODELS)
        return inferd_fail(err, INFERD_EINVAL, "models names %u models, this row needs %d",
                           s->n_models, ROUND_MODELS + 1);
    inferd_status status = share_state(s, &state, err);
    if (status != INFERD_OK) return status;
    const char *class = json_string_value(
        json_object_get(share_state_model(state, s->models[ROUND_MODELS]), "class"));
    if (class == NULL || strcmp(class, "high") != 0)
        status = inferd_fail(err, INFERD_EINVAL, "the class of %s is %s, this row needs high",
                             s->models[ROUND_MODELS], class == NULL ? "not in the state" : class);
    json_decref(state);
    return status;
}

static void tell_roundrobin(share *s, const slice *before, const slice *slices, double slice_s,
                            double high_ms) {
    const slice *last = &slices[ROUND_SLICES - 1];
    slice all = {0};
    json_t *list = json_array();
    for (int i = 0; i < ROUND_SLICES; i++) {
        all.n_asks += slices[i].n_asks, all.n_tokens += slices[i].n_tokens;
        all.n_loads += slices[i].n_loads, all.seconds += slices[i].seconds;
        json_array_append_new(list, json_pack("{s:f,s:f,s:f}", "loads", slices[i].n_loads,
                                              "requests", slices[i].n_asks, "tokens_per_s",
                                              slices[i].n_tokens / slices[i].seconds));
    }
    share_row *r = share_table_add(&s->table, "roundrobin",
                                   "three models in turn that fit, after one request to a fourth "
                                   "of the class high: loads per request",
                                   "0 within a minute");
    snprintf(r->measured, sizeof r->measured, "%.2f in the last %.0f of %.0f s",
             last->n_loads / last->n_asks, slice_s, slice_s * ROUND_SLICES);
    int n = snprintf(r->spread, sizeof r->spread,
                     "%.0f loads in %.0f requests, by %.0f s:", all.n_loads, all.n_asks, slice_s);
    for (int i = 0; i < ROUND_SLICES; i++)
        n += snprintf(r->spread + n, sizeof r->spread - (size_t)n, " %.2f",
                      slices[i].n_loads / slices[i].n_asks);
    snprintf(r->spread + n, sizeof r->spread - (size_t)n,
             "; %.1f tokens/s before, %.1f in all of it, %.1f at its end; first token of the "
             "request %.0f ms",
             before->n_tokens / before->seconds, all.n_tokens / all.seconds,
             last->n_tokens / last->seconds, high_ms);
    r->verdict = last->n_loads <= 0 ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:f,s:o,s:f,s:f,s:f}", "tokens_per_s_before",
                          before->n_tokens / before->seconds, "slices", list, "tokens_per_s",
                          all.n_tokens / all.seconds, "loads", all.n_loads, "requests", all.n_asks);
}

inferd_status share_measure_roundrobin(share *s, inferd_err *err) {
    slice before, slices[ROUND_SLICES];
    share_answer answer;
    uint32_t turn = 0;
    double high_ms = 0, slice_ms = s->o->is_quick ? ROUND_SLICE_MS_QUICK : ROUND_SLICE_MS;
    inferd_status status = check_high(s, err);
    if (status == INFERD_OK) // the fourth leaves, if it was there
        status = share_client_object(&s->admin, "POST", "models", s->models[ROUND_MODELS], "drop",
                                     "{\"wait\":true}", err);
    for (int i = 0; status == INFERD_OK && i < 2; i++) // the first time loads them
        status = go_round(s, s->o->is_quick ? ROUND_BEFORE_MS_QUICK : ROUND_BEFORE_MS, &turn,
                          &before, err);
    if (status == INFERD_OK && before.n_loads > 0)
        status = inferd_fail(err, INFERD_EINVAL,
                             "%s, %s and %s were loaded %.0f times before the request to %s: the "
                             "device has no room for the three",
                             s->models[0], s->models[1], s->models[2], before.n_loads,
                             s->models[ROUND_MODELS]);
    if (status == INFERD_OK)
        status = share_first_token(s, s->models[ROUND_MODELS], NULL, ROUND_PROMPT, &answer,
                                   &high_ms, err);
    for (int i = 0; status == INFERD_OK && i < ROUND_SLICES; i++)
        status = go_round(s, slice_ms, &turn, &slices[i], err);
    if (status == INFERD_OK) tell_roundrobin(s, &before, slices, slice_ms / 1e3, high_ms);
    return status;
}
