/* share_time.c - rows of `share` about device time.
 *
 *     shares    models with fixed shares, in some sets with one model without a share that gets the
 *               rest, all with more work than they can do: device seconds of each in a window of
 *               ten seconds, from the usage published by the daemon, divided by the seconds of the
 *               same usage
 *     guarantee a tenant with a fixed share, alternately alone and together with a flooding tenant
 *
 * Each snapshot at the ends of a window is consistent, so a window may be a little longer than ten
 * seconds and the quotient is still exact. */
#include <math.h>
#include <string.h>

#include "result.h"
#include "share.h"
#include "share_load.h"

enum {
    SHARED_MODELS = 3,
    SHARED_STREAMS = 4, // of each model
    SHARED_PROMPT = 24,
    WARM_UP_MS = 2000,
    ROUNDS = 4,
    ROUNDS_QUICK = 1,
    PHASE_SKIP_MS = 1500 // skipped until a phase is steady; a phase is as long as a window
};
static const double SHARE_GOAL_POINTS = 1, TWO_SHARES_GOAL_POINTS = .5, GUARANTEE_GOAL = 1.1;

/* Percent of each model; 0: no share is guaranteed, it gets the rest. */
static const uint32_t sets[][SHARED_MODELS] = {{5, 20, 70}, {10, 85, 0},  {100, 0, 0}, {15, 35, 50},
                                               {5, 0, 0},   {25, 40, 30}, {60, 40, 0}};
enum { SETS_QUICK = 2 };

/* ---- shares ---- */

static inferd_status set_share(share *s, const char *model, uint32_t percent, inferd_err *err) {
    char body[96] = "{\"share\":null}";
    if (percent > 0)
        snprintf(body, sizeof body, "{\"share\":{\"policy\":\"fixed\",\"percent\":%u}}", percent);
    return share_patch(s, "models", model, body, err);
}

/* Sets all shares to zero first, so that no intermediate sum is over 100. */
static inferd_status set_shares(share *s, const uint32_t *percents, inferd_err *err) {
    inferd_status status = INFERD_OK;
    for (uint32_t i = 0; status == INFERD_OK && i < SHARED_MODELS; i++)
        status = set_share(s, s->models[i], 0, err);
    for (uint32_t i = 0; status == INFERD_OK && i < SHARED_MODELS; i++)
        if (percents[i] > 0) status = set_share(s, s->models[i], percents[i], err);
    return status;
}

typedef struct meter {
    double device_s[SHARED_MODELS], wall_s, idle_s, step_s, load_s;
} meter;

static inferd_status meter_read(share *s, meter *out, inferd_err *err) {
    json_t *state = NULL;
    inferd_status status = share_state(s, &state, err);
    json_t *usage = status == INFERD_OK ? json_object_get(state, "account") : NULL;
    json_t *device = json_array_get(json_object_get(usage, "devices"), 0);
    if (status == INFERD_OK) status = share_number(device, "wall_s", &out->wall_s, err);
    if (status == INFERD_OK) status = share_number(device, "idle_s", &out->idle_s, err);
    if (status == INFERD_OK) status = share_number(device, "principals_s", &out->step_s, err);
    if (status == INFERD_OK) status = share_number(device, "load_s", &out->load_s, err);
    for (uint32_t i = 0; status == INFERD_OK && i < SHARED_MODELS; i++)
        status = share_charged(usage, "model", s->models[i], "device_s", &out->device_s[i], err);
    json_decref(state);
    return status;
}

/* Errors of shares, in percentage points. */
typedef struct share_errors {
    samples two, others; // of sets with exactly two shares, and of all other sets
} share_errors;

/* Measures one window of one set; adds the errors of its shares. */
static inferd_status window_measure(share *s, const uint32_t *percents, share_errors *errors,
                                    json_t *windows, inferd_err *err) {
    meter from, to;
    uint32_t n_shares = 0;
    for (uint32_t i = 0; i < SHARED_MODELS; i++) n_shares += percents[i] > 0;
    samples *into = n_shares == 2 ? &errors->two : &errors->others;
    inferd_status status = set_shares(s, percents, err);
    share_sleep_ms(WARM_UP_MS);
    if (status == INFERD_OK) status = meter_read(s, &from, err);
    share_sleep_ms(1e3 * share_window_s(s));
    if (status == INFERD_OK) status = meter_read(s, &to, err);
    if (status != INFERD_OK) return status;
    double wall_s = to.wall_s - from.wall_s;
    if (wall_s <= 0)
        return inferd_fail(err, INFERD_EFORMAT, "account.wall_s did not change in %u s",
                           share_window_s(s));
    json_t *got = json_array();
    for (uint32_t i = 0; i < SHARED_MODELS; i++) {
        double percent = 100 * (to.device_s[i] - from.device_s[i]) / wall_s;
        if (percents[i] > 0) samples_add(into, fabs(percent - percents[i]));
        json_array_append_new(got,
                              json_pack("{s:i,s:f}", "share", (int)percents[i], "got", percent));
    }
    json_array_append_new(windows,
                          json_pack("{s:f,s:f,s:f,s:f,s:o}", "wall_s", wall_s, "idle_percent",
                                    100 * (to.idle_s - from.idle_s) / wall_s, "load_percent",
                                    100 * (to.load_s - from.load_s) / wall_s, "charged_percent",
                                    100 * (to.step_s - from.step_s) / wall_s, "models", got));
    return INFERD_OK;
}

/* "5: 5.1, 20: 19.8 | ..." */
static void windows_show(const json_t *windows, char *out, size_t n_out) {
    size_t n = strlen(out);
    for (size_t w = 0; w < json_array_size(windows); w++) {
        const json_t *models = json_object_get(json_array_get(windows, w), "models");
        for (size_t i = 0; i < json_array_size(models) && n + 1 < n_out; i++) {
            json_t *m = json_array_get(models, i);
            long long percent = json_integer_value(json_object_get(m, "share"));
            if (percent == 0) continue;
            int more = snprintf(out + n, n_out - n, "%s%lld got %.1f",
                                i > 0   ? ", "
                                : w > 0 ? "; "
                                        : "",
                                percent, json_number_value(json_object_get(m, "got")));
            n = size_min(n + (size_t)(more > 0 ? more : 0), n_out - 1);
        }
    }
}

/* Loads all models to the device, so that no load takes time of a window. */
static inferd_status bring_up(share *s, inferd_err *err) {
    inferd_status status = INFERD_OK;
    share_answer answer;
    double ms;
    for (uint32_t i = 0; status == INFERD_OK && i < s->n_models; i++)
        status = share_first_token(s, s->models[i], NULL, SHARED_PROMPT, &answer, &ms, err);
    return status;
}

static void tell_shares(share *s, share_errors *errors, json_t *windows) {
    share_row *r = share_table_add(&s->table, "shares", "share error at 10 s, shares 5 to 100 %",
                                   "<= 0.5 points with two shares, <= 1 otherwise");
    double two = samples_at(&errors->two, 1), others = samples_at(&errors->others, 1);
    snprintf(r->measured, sizeof r->measured, "%.2f points at most with two, %.2f otherwise", two,
             others);
    snprintf(r->spread, sizeof r->spread,
             "medians %.2f of %zu and %.2f of %zu: ", samples_at(&errors->two, .5), errors->two.n,
             samples_at(&errors->others, .5), errors->others.n);
    windows_show(windows, r->spread, sizeof r->spread);
    bool is_met = two <= TWO_SHARES_GOAL_POINTS && others <= SHARE_GOAL_POINTS;
    r->verdict = is_met ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:o,s:o,s:O}", "error_points_two", samples_json(&errors->two),
                          "error_points", samples_json(&errors->others), "windows", windows);
}

inferd_status share_measure_shares(share *s, inferd_err *err) {
    share_stream_kind kinds[SHARED_MODELS];
    share_errors errors = {0};
    share_load load = {0};
    json_t *windows = json_array();
    size_t n = s->o->is_quick ? SETS_QUICK : INFERD_COUNT(sets);
    static const uint32_t nothing[SHARED_MODELS] = {0};
    for (uint32_t i = 0; i < SHARED_MODELS; i++)
        kinds[i] = (share_stream_kind){
            s->models[i],  s->o->key, NULL, .n = SHARED_STREAMS, .n_prompt = SHARED_PROMPT,
            .n_output = 64};
    inferd_status status = bring_up(s, err);
    if (status == INFERD_OK)
        status = share_load_start(&load, s->to, kinds, SHARED_MODELS, share_seed(s), err);
    for (size_t i = 0; status == INFERD_OK && i < n; i++)
        status = window_measure(s, sets[i], &errors, windows, err);
    inferd_err ignored; // the reported error is the reason why the row failed
    inferd_status back = set_shares(s, nothing, status == INFERD_OK ? err : &ignored);
    if (status == INFERD_OK) status = back;
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    share_load_free(&load);
    if (status == INFERD_OK) tell_shares(s, &errors, windows);
    json_decref(windows);
    samples_free(&errors.two);
    samples_free(&errors.others);
    return status;
}

/* ---- guarantee ---- */

/* Milliseconds per token of the answers of kind 0 that began after `from_ns` and ended. */
static void tpot_of(const share_load *l, uint64_t from_ns, samples *out) {
    for (uint32_t i = 0; i < l->n_streams; i++) {
        const share_stream *stream = &l->streams[i];
        if (stream->kind != 0) continue;
        for (uint32_t k = 0; k < stream->n_answers; k++) {
            const share_answer *a = &stream->answers[k];
            if (a->was_cut || a->first_ns < from_ns || a->n_chunks < 2 || a->n_output < 2) continue;
            samples_add(out, (double)(a->last_ns - a->first_ns) / 1e6 / (double)(a->n_output - 1));
        }
    }
}

static inferd_status phase(share *s, const share_stream_kind *kinds, uint32_t n_kinds, samples *all,
                           double *out_p99, inferd_err *err) {
    share_load load = {0};
    samples own = {0};
    uint64_t from_ns = bench_now_ns() + (uint64_t)PHASE_SKIP_MS * 1000000;
    inferd_status status = share_load_start(&load, s->to, kinds, n_kinds, share_seed(s), err);
    share_sleep_ms(1e3 * share_window_s(s));
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    if (status == INFERD_OK) {
        tpot_of(&load, from_ns, &own);
        for (size_t i = 0; i < own.n; i++) samples_add(all, own.v[i]);
        *out_p99 = samples_at(&own, .99);
        if (own.n == 0)
            status =
                inferd_fail(err, INFERD_ETIMEOUT, "no answer ended within %u s", share_window_s(s));
    }
    samples_free(&own);
    share_load_free(&load);
    return status;
}

inferd_status share_measure_guarantee(share *s, inferd_err *err) {
    if (s->o->key == NULL || s->o->flood_key == NULL)
        return inferd_fail(err, INFERD_EINVAL, "this row needs key and flood-key: two tenants");
    const share_stream_kind kinds[] = {
        {s->models[0], s->o->key, NULL, .n = 2, .n_prompt = 16, .n_output = 24},
        {s->models[0], s->o->flood_key, NULL, .n = 6, .n_prompt = 512, .n_output = 32},
        {s->models[1], s->o->flood_key, NULL, .n = 6, .n_prompt = 512, .n_output = 32},
    };
    samples alone = {0}, flooded = {0}, ratio = {0};
    inferd_status status = INFERD_OK;
    uint32_t n = s->o->is_quick ? ROUNDS_QUICK : ROUNDS;
    for (uint32_t i = 0; status == INFERD_OK && i < n; i++) {
        double p99_alone = 0, p99_flooded = 0;
        status = phase(s, kinds, 1, &alone, &p99_alone, err);
        if (status == INFERD_OK)
            status = phase(s, kinds, INFERD_COUNT(kinds), &flooded, &p99_flooded, err);
        if (status == INFERD_OK) samples_add(&ratio, p99_flooded / p99_alone);
    }
    if (status == INFERD_OK) {
        double whole = samples_at(&flooded, .99) / samples_at(&alone, .99);
        share_row *r = share_table_add(&s->table, "guarantee",
                                       "guaranteed tenant's P99 TPOT with a flooding neighbour, "
                                       "against alone under the same fixed share",
                                       "<= 1.10 x");
        snprintf(r->measured, sizeof r->measured, "%.2f x: %.1f against %.1f ms", whole,
                 samples_at(&flooded, .99), samples_at(&alone, .99));
        snprintf(
            r->spread, sizeof r->spread,
            "%zu rounds of both: %.2f to %.2f x; medians %.1f against %.1f ms; %zu and %zu answers",
            ratio.n, samples_at(&ratio, 0), samples_at(&ratio, 1), samples_at(&flooded, .5),
            samples_at(&alone, .5), flooded.n, alone.n);
        r->verdict = whole <= GUARANTEE_GOAL ? SHARE_MET : SHARE_MISSED;
        r->values =
            json_pack("{s:o,s:o,s:o}", "flooded_tpot_ms", samples_json(&flooded), "alone_tpot_ms",
                      samples_json(&alone), "p99_ratio_by_round", samples_json(&ratio));
    }
    samples_free(&alone);
    samples_free(&flooded);
    samples_free(&ratio);
    return status;
}
