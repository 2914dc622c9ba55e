/* share_tenants.c - rows of `share` about tenants that use one model.
 *
 *     weights   two tenants with as many streams each, fewer in all than batch slots, in windows
 *               with the weights 1 : 3 and 1 : 1 alternately: the part of the device time of each,
 *               and output tokens per second of both, from the usage published by the daemon
 *     beside    the same two tenants with shares of 100 % in all, busy with requests of the class
 *               batch; requests of the class high of a tenant without a share, one by one, against
 *               the same requests without the busy tenants
 *
 * Both rows set weights and shares of the two tenants and take them back.  Requests of `beside` are
 * as far apart as the urgent allowance takes to pay for one, so none of them finds it used up.
 *
 * Thread: the run's. */
#include <math.h>
#include <string.h>

#include "result.h"
#include "share.h"
#include "share_load.h"

enum {
    TENANTS = 2,
    TENANT_BYTES = 128,
    WEIGHTED_STREAMS = 4, // of each tenant; the daemon's default has 32 batch slots
    WEIGHTED_PROMPT = 24,
    WEIGHTED_OUTPUT = 64,
    WEIGHT = 3, // of the second tenant, in every other window
    WARM_UP_MS = 1500,
    ROUNDS = 3, // windows of each pair of weights
    ROUNDS_QUICK = 1,
    BUSY_STREAMS = 6, // of each tenant
    BUSY_OUTPUT = 200,
    URGENT_ASKS = 20,
    URGENT_ASKS_QUICK = 8,
    URGENT_PROMPT = 8,
    ALONE_PAUSE_MS = 50,
    PAUSE_MS_MIN = 100,
    PAUSE_MS_MAX = 3000
};
static const double PART_GOAL_POINTS = 2, RATE_GOAL = .85, BESIDE_GOAL = 5;
/* Of the device time, the daemon's default of policy.urgent_percent; and how much longer than the
 * allowance needs a request is waited with. */
static const double URGENT_PART = .05, PAUSE_MARGIN = 1.5;
static const uint32_t busy_shares[TENANTS] = {60, 40}; // percent

/* ---- two tenants ---- */

typedef struct tenant_pair {
    char names[TENANTS][TENANT_BYTES]; // of --key and of --flood-key
} tenant_pair;

static inferd_status pair_read(const share *s, tenant_pair *out, inferd_err *err) {
    if (s->o->key == NULL || s->o->flood_key == NULL || s->o->tenants == NULL)
        return inferd_fail(err, INFERD_EINVAL,
                           "this row needs key, flood-key and tenants: the keys and the names of "
                           "two tenants");
    size_t n = strcspn(s->o->tenants, ",");
    const char *second = s->o->tenants + n + (s->o->tenants[n] == ',');
    if (n == 0 || n >= TENANT_BYTES || *second == 0 || strchr(second, ',') != NULL ||
        strlen(second) >= TENANT_BYTES)
        return inferd_fail(err, INFERD_EINVAL, "tenants is \"%s\", expected two names: a,b",
                           s->o->tenants);
    snprintf(out->names[0], TENANT_BYTES, "%.*s", (int)n, s->o->tenants);
    snprintf(out->names[1], TENANT_BYTES, "%s", second);
    return INFERD_OK;
}

/* Percent 0: no share. */
static inferd_status tenant_set(share *s, const char *name, uint32_t weight, uint32_t percent,
                                inferd_err *err) {
    char body[128];
    int n = snprintf(body, sizeof body, "{\"weight\":%u,\"share\":", weight);
    snprintf(body + n, sizeof body - (size_t)n,
             percent > 0 ? "{\"policy\":\"burst\",\"percent\":%u}}" : "null}", percent);
    return share_patch(s, "tenants", name, body, err);
}

/* Weights of 1 and no shares, as other rows expect them. */
static inferd_status pair_reset(share *s, const tenant_pair *pair, inferd_err *err) {
    inferd_status status = tenant_set(s, pair->names[0], 1, 0, err);
    return status == INFERD_OK ? tenant_set(s, pair->names[1], 1, 0, err) : status;
}

/* Resets the pair also after a failure, which stays the reported one. */
static inferd_status pair_end(share *s, const tenant_pair *pair, inferd_status status,
                              inferd_err *err) {
    inferd_err ignored;
    inferd_status back = pair_reset(s, pair, status == INFERD_OK ? err : &ignored);
    return status == INFERD_OK ? back : status;
}

/* ---- weights ---- */

typedef struct meter {
    double device_s[TENANTS], tokens[TENANTS], wall_s;
} meter;

static inferd_status meter_read(share *s, const tenant_pair *pair, meter *out, inferd_err *err) {
    json_t *state = NULL;
    inferd_status status = share_state(s, &state, err);
    json_t *account = status == INFERD_OK ? json_object_get(state, "account") : NULL;
    if (status == INFERD_OK)
        status = share_number(json_array_get(json_object_get(account, "devices"), 0), "wall_s",
                              &out->wall_s, err);
    for (int i = 0; status == INFERD_OK && i < TENANTS; i++) {
        status =
            share_charged(account, "tenant", pair->names[i], "device_s", &out->device_s[i], err);
        if (status == INFERD_OK)
            status = share_charged(account, "tenant", pair->names[i], "output_tokens",
                                   &out->tokens[i], err);
    }
    json_decref(state);
    return status;
}

/* The first tenant's percent of the time of both, and tokens per second of both. */
static inferd_status window_measure(share *s, const tenant_pair *pair, uint32_t weight,
                                    double *out_percent, double *out_rate, inferd_err *err) {
    meter from, to;
    uint32_t window_s = share_window_s(s);
    inferd_status status = tenant_set(s, pair->names[1], weight, 0, err);
    share_sleep_ms(WARM_UP_MS);
    if (status == INFERD_OK) status = meter_read(s, pair, &from, err);
    share_sleep_ms(1e3 * window_s);
    if (status == INFERD_OK) status = meter_read(s, pair, &to, err);
    if (status != INFERD_OK) return status;
    double own_s = to.device_s[0] - from.device_s[0];
    double both_s = own_s + to.device_s[1] - from.device_s[1], wall_s = to.wall_s - from.wall_s;
    if (both_s <= 0 || wall_s <= 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "tenants %s were charged %.3f s in %u s, expected more than 0",
                           s->o->tenants, both_s, window_s);
    *out_percent = 100 * own_s / both_s;
    *out_rate = (to.tokens[0] + to.tokens[1] - from.tokens[0] - from.tokens[1]) / wall_s;
    return INFERD_OK;
}

/* Of all rounds: parts and rates by weights, [0] 1 : 3 and [1] 1 : 1. */
typedef struct weighted {
    samples percent[2], rate[2], error, ratio; // error in points; ratio of the rates of a round
} weighted;

static void tell_weights(share *s, weighted *w) {
    double worst = samples_at(&w->error, 1), ratio = samples_at(&w->ratio, .5);
    double part = samples_at(&w->percent[0], .5);
    share_row *r = share_table_add(&s->table, "weights",
                                   "device time of two tenants of one model with weights 1 : 3, "
                                   "as many streams each, fewer than batch slots",
                                   "25 / 75 % +- 2 points");
    snprintf(r->measured, sizeof r->measured, "%.1f / %.1f %%", part, 100 - part);
    snprintf(r->spread, sizeof r->spread,
             "median of %zu windows, at most %.2f points off; %.1f / %.1f %% with weights 1 : 1",
             w->error.n, worst, samples_at(&w->percent[1], .5),
             100 - samples_at(&w->percent[1], .5));
    r->verdict = worst <= PART_GOAL_POINTS ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:o,s:o,s:o}", "percent", samples_json(&w->percent[0]), "percent_equal",
                          samples_json(&w->percent[1]), "error_points", samples_json(&w->error));
    r = share_table_add(&s->table, "weights-rate",
                        "tokens/s of both with weights 1 : 3, against 1 : 1", ">= 0.85 x");
    snprintf(r->measured, sizeof r->measured, "%.2f x: %.1f against %.1f tokens/s", ratio,
             samples_at(&w->rate[0], .5), samples_at(&w->rate[1], .5));
    snprintf(r->spread, sizeof r->spread, "median of %zu pairs of windows, %.2f to %.2f x",
             w->ratio.n, samples_at(&w->ratio, 0), samples_at(&w->ratio, 1));
    r->verdict = ratio >= RATE_GOAL ? SHARE_MET : SHARE_MISSED;
    r->values =
        json_pack("{s:o,s:o,s:o}", "tokens_per_s", samples_json(&w->rate[0]), "tokens_per_s_equal",
                  samples_json(&w->rate[1]), "ratio", samples_json(&w->ratio));
}

/* Windows with both pairs of weights; the pair that comes first changes from round to round. */
static inferd_status round_measure(share *s, const tenant_pair *pair, uint32_t round, weighted *w,
                                   inferd_err *err) {
    double percent[2], rate[2];
    inferd_status status = INFERD_OK;
    for (uint32_t k = 0; status == INFERD_OK && k < 2; k++) {
        uint32_t i = (round + k) % 2;
        status = window_measure(s, pair, i == 0 ? WEIGHT : 1, &percent[i], &rate[i], err);
    }
    if (status == INFERD_OK && rate[1] <= 0)
        status =
            inferd_fail(err, INFERD_EFORMAT, "tenants %s got no token in a window", s->o->tenants);
    if (status != INFERD_OK) return status;
    for (int i = 0; i < 2; i++) {
        samples_add(&w->percent[i], percent[i]);
        samples_add(&w->rate[i], rate[i]);
    }
    samples_add(&w->error, fabs(percent[0] - 100.0 / (1 + WEIGHT)));
    samples_add(&w->ratio, rate[0] / rate[1]);
    return INFERD_OK;
}

inferd_status share_measure_weights(share *s, inferd_err *err) {
    const share_stream_kind kinds[TENANTS] = {
        {s->models[0], s->o->key, NULL, WEIGHTED_STREAMS, WEIGHTED_PROMPT, WEIGHTED_OUTPUT},
        {s->models[0], s->o->flood_key, NULL, WEIGHTED_STREAMS, WEIGHTED_PROMPT, WEIGHTED_OUTPUT},
    };
    tenant_pair pair;
    weighted w = {0};
    share_load load = {0};
    share_answer answer;
    double ms;
    inferd_status status = pair_read(s, &pair, err);
    if (status != INFERD_OK) return status;
    status = pair_reset(s, &pair, err);
    if (status == INFERD_OK) // loads the model
        status = share_first_token(s, s->models[0], NULL, WEIGHTED_PROMPT, &answer, &ms, err);
    if (status == INFERD_OK)
        status = share_load_start(&load, s->to, kinds, TENANTS, share_seed(s), err);
    uint32_t n = s->o->is_quick ? ROUNDS_QUICK : ROUNDS;
    for (uint32_t i = 0; status == INFERD_OK && i < n; i++)
        status = round_measure(s, &pair, i, &w, err);
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    share_load_free(&load);
    status = pair_end(s, &pair, status, err);
    if (status == INFERD_OK) tell_weights(s, &w);
    samples *all[] = {&w.percent[0], &w.percent[1], &w.rate[0], &w.rate[1], &w.error, &w.ratio};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) samples_free(all[i]);
    return status;
}

/* ---- beside ---- */

typedef struct beside {
    share_client urgent; // of the tenant without a share
    samples alone, waits, batch_gap;
    uint32_t n_asks;
    double cost_ms, pause_ms; // device time of one request; pause between two beside the others
} beside;

/* Requests one token after the other with a pause; adds milliseconds to the first token. */
static inferd_status ask_urgent(share *s, beside *b, double pause_ms, samples *out,
                                inferd_err *err) {
    inferd_status status = INFERD_OK;
    for (uint32_t i = 0; status == INFERD_OK && i < b->n_asks; i++) {
        share_ask ask = {.model = s->models[0],
                         .tier = "priority",
                         .n_prompt = URGENT_PROMPT,
                         .n_output = 1,
                         .seed = share_seed(s)};
        share_answer a;
        status = share_client_ask(&b->urgent, &ask, &a, err);
        if (status == INFERD_OK) samples_add(out, (double)since_ns(a.sent_ns, a.first_ns) / 1e6);
        share_sleep_ms(pause_ms);
    }
    return status;
}

/* Device time of all requests so far. */
static inferd_status charged_ms(share *s, double *out, inferd_err *err) {
    json_t *state = NULL;
    double seconds = 0;
    inferd_status status = share_state(s, &state, err);
    json_t *devices = json_object_get(json_object_get(state, "account"), "devices");
    if (status == INFERD_OK)
        status = share_number(json_array_get(devices, 0), "principals_s", &seconds, err);
    json_decref(state);
    *out = 1e3 * seconds;
    return status;
}

static inferd_status measure_alone(share *s, beside *b, inferd_err *err) {
    double from_ms = 0, to_ms = 0;
    inferd_status status = ask_urgent(s, b, 0, &b->alone, err); // loads the model
    b->alone.n = 0;                                             // not counted
    share_sleep_ms(WARM_UP_MS); // the usage is published several times a second
    if (status == INFERD_OK) status = charged_ms(s, &from_ms, err);
    if (status == INFERD_OK) status = ask_urgent(s, b, ALONE_PAUSE_MS, &b->alone, err);
    share_sleep_ms(WARM_UP_MS);
    if (status == INFERD_OK) status = charged_ms(s, &to_ms, err);
    b->cost_ms = (to_ms - from_ms) / b->n_asks;
    b->pause_ms = fmin(fmax(PAUSE_MARGIN * b->cost_ms / URGENT_PART, PAUSE_MS_MIN), PAUSE_MS_MAX);
    return status;
}

static inferd_status measure_waits(share *s, beside *b, inferd_err *err) {
    const share_stream_kind kinds[TENANTS] = {
        {s->models[0], s->o->key, "flex", BUSY_STREAMS, WEIGHTED_PROMPT, BUSY_OUTPUT},
        {s->models[0], s->o->flood_key, "flex", BUSY_STREAMS, WEIGHTED_PROMPT, BUSY_OUTPUT},
    };
    share_load load = {0};
    inferd_status status = share_load_start(&load, s->to, kinds, TENANTS, share_seed(s), err);
    share_sleep_ms(WARM_UP_MS);
    if (status == INFERD_OK) status = ask_urgent(s, b, b->pause_ms, &b->waits, err);
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    if (status == INFERD_OK) share_load_gaps(&load, &b->batch_gap);
    share_load_free(&load);
    return status;
}

static void tell_beside(share *s, beside *b) {
    double alone = samples_at(&b->alone, .5), worst = samples_at(&b->waits, 1);
    share_row *r = share_table_add(&s->table, "beside",
                                   "first token of an urgent request of a tenant without a share, "
                                   "beside shares of 100 % busy with batch work",
                                   "worst of 20 <= 5 x the median alone");
    snprintf(r->measured, sizeof r->measured, "%.1f x: %.1f against %.1f ms", worst / alone, worst,
             alone);
    snprintf(r->spread, sizeof r->spread,
             "%u requests, median beside them %.1f ms; alone at most %.1f ms; %.1f ms of device "
             "time each, %.0f ms apart; %d streams with gaps of %.1f ms",
             b->n_asks, samples_at(&b->waits, .5), samples_at(&b->alone, 1), b->cost_ms,
             b->pause_ms, TENANTS * BUSY_STREAMS, samples_at(&b->batch_gap, .5));
    r->verdict = worst <= BESIDE_GOAL * alone ? SHARE_MET : SHARE_MISSED;
    r->values =
        json_pack("{s:o,s:o,s:o,s:f,s:f}", "ttft_ms", samples_json(&b->waits), "alone_ttft_ms",
                  samples_json(&b->alone), "batch_gap_ms", samples_json(&b->batch_gap), "device_ms",
                  b->cost_ms, "pause_ms", b->pause_ms);
}

inferd_status share_measure_beside(share *s, inferd_err *err) {
    tenant_pair pair;
    beside b = {.n_asks = s->o->is_quick ? URGENT_ASKS_QUICK : URGENT_ASKS};
    inferd_status status = pair_read(s, &pair, err);
    if (status == INFERD_OK && s->o->urgent_key == NULL)
        status = inferd_fail(err, INFERD_EINVAL,
                             "this row needs urgent-key, of a tenant with max_class high");
    if (status != INFERD_OK) return status;
    share_server to = s->to;
    to.key = s->o->urgent_key;
    status = share_client_init(&b.urgent, to, err);
    if (status == INFERD_OK) status = pair_reset(s, &pair, err);
    for (int i = 0; status == INFERD_OK && i < TENANTS; i++)
        status = tenant_set(s, pair.names[i], 1, busy_shares[i], err);
    if (status == INFERD_OK) status = measure_alone(s, &b, err);
    if (status == INFERD_OK) status = measure_waits(s, &b, err);
    status = pair_end(s, &pair, status, err);
    if (status == INFERD_OK) tell_beside(s, &b);
    share_client_deinit(&b.urgent);
    samples *all[] = {&b.alone, &b.waits, &b.batch_gap};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) samples_free(all[i]);
    return status;
}
