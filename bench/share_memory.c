/* share_memory.c - rows of `share` about memory.
 *
 *     burst     a few long streams, many short ones for a while, and ten seconds later: the pages
 *               of keys and values that requests need, compared with the minimum for the tokens of
 *               the streams
 *     kv        calls and page faults of memory for keys and values, since the daemon started
 *
 * The number of tokens of a stream at a given time is counted here, from the chunks received until
 * then.  Pages that no request needs (the prefix cache) are not counted as held: they are freed
 * when memory is needed. */
#include <string.h>

#include "result.h"
#include "share.h"
#include "share_load.h"

enum {
    LONG_STREAMS = 4,
    LONG_PROMPT = 200,
    LONG_OUTPUT = 6000, // or until the context is full
    SHORT_STREAMS = 24,
    BEFORE_MS = 2000,
    BURST_MS = 4000,
    AFTER_MS = 10000,
    LOOKS = 10,
    LOOK_MS = 100
};
static const double BURST_GOAL = 1.1;

/* The pages of keys and values that requests need, of all models; and the bytes of a page. */
static inferd_status held_pages(share *s, double *out_held, double *out_page_bytes,
                                inferd_err *err) {
    json_t *state = NULL;
    inferd_status status = share_state(s, &state, err);
    json_t *device = status == INFERD_OK ? share_state_device(state) : NULL;
    if (status == INFERD_OK) status = share_number(device, "pages.kv", out_held, err);
    if (status == INFERD_OK) status = share_number(device, "page_bytes", out_page_bytes, err);
    json_decref(state);
    return status;
}

/* Number of tokens of the long streams at a given time. */
static double tokens_at(const share_load *l, uint64_t at_ns) {
    double n = 0;
    for (uint32_t i = 0; i < l->n_streams; i++) {
        const share_stream *stream = &l->streams[i];
        uint32_t end = 0;
        while (end < stream->n_tokens && stream->tokens[end].at_ns <= at_ns) end++;
        uint32_t begin = end;
        while (begin > 0 &&
               stream->tokens[begin - 1].answer_idx == stream->tokens[end - 1].answer_idx)
            begin--;
        n += LONG_PROMPT + (double)(end - begin);
    }
    return n;
}

static inferd_status short_burst(share *s, inferd_err *err) {
    const share_stream_kind kind = {s->models[0],       s->o->key,       NULL,
                                    .n = SHORT_STREAMS, .n_prompt = 128, .n_output = 64};
    share_load load = {0};
    inferd_status status = share_load_start(&load, s->to, &kind, 1, share_seed(s), err);
    share_sleep_ms(BURST_MS);
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    share_load_free(&load);
    return status;
}

typedef struct look {
    uint64_t at_ns;
    double held;
} look;

static inferd_status looks_take(share *s, look looks[LOOKS], double *page_bytes, inferd_err *err) {
    inferd_status status = INFERD_OK;
    for (int i = 0; status == INFERD_OK && i < LOOKS; i++) {
        status = held_pages(s, &looks[i].held, page_bytes, err);
        looks[i].at_ns = bench_now_ns();
        share_sleep_ms(LOOK_MS);
    }
    return status;
}

inferd_status share_measure_burst(share *s, inferd_err *err) {
    if (s->o->kv_bytes == 0)
        return inferd_fail(err, INFERD_EINVAL, "this row needs kv-bytes: of one token");
    share_stream_kind kind = {
        .model = s->models[0], .key = s->o->key, .n = LONG_STREAMS, .n_prompt = LONG_PROMPT};
    share_load load = {0};
    look looks[LOOKS];
    double page_bytes = 0, in_burst = 0;
    inferd_status status =
        share_output_fitting(s, kind.model, LONG_PROMPT, LONG_OUTPUT, &kind.n_output, err);
    if (status == INFERD_OK) status = share_load_start(&load, s->to, &kind, 1, share_seed(s), err);
    share_sleep_ms(BEFORE_MS);
    if (status == INFERD_OK) status = short_burst(s, err);
    if (status == INFERD_OK) status = held_pages(s, &in_burst, &page_bytes, err);
    share_sleep_ms(AFTER_MS);
    if (status == INFERD_OK) status = looks_take(s, looks, &page_bytes, err);
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    if (status == INFERD_OK) {
        samples ratio = {0}, held = {0}, used = {0};
        for (int i = 0; i < LOOKS; i++) {
            double pages = tokens_at(&load, looks[i].at_ns) * s->o->kv_bytes / page_bytes;
            samples_add(&held, looks[i].held);
            samples_add(&used, pages);
            samples_add(&ratio, looks[i].held / pages);
        }
        share_row *r =
            share_table_add(&s->table, "burst", "held / used pages 10 s after a burst", "<= 1.1");
        snprintf(r->measured, sizeof r->measured, "%.2f", samples_at(&ratio, .5));
        snprintf(r->spread, sizeof r->spread,
                 "%d looks: %.2f to %.2f; held %.0f pages, used %.1f; %.0f at the end of the burst",
                 LOOKS, samples_at(&ratio, 0), samples_at(&ratio, 1), samples_at(&held, .5),
                 samples_at(&used, .5), in_burst);
        r->verdict = samples_at(&ratio, .5) <= BURST_GOAL ? SHARE_MET : SHARE_MISSED;
        r->values = json_pack("{s:o,s:o,s:o}", "held_over_used", samples_json(&ratio), "held_pages",
                              samples_json(&held), "used_pages", samples_json(&used));
        samples_free(&ratio);
        samples_free(&held);
        samples_free(&used);
    }
    share_load_free(&load);
    return status;
}

/* ---- kv ---- */

/* The sum of all members of this name at any depth: the audit has one per device. */
static double sum_named(json_t *value, const char *name, int *n_found) {
    double sum = 0;
    const char *key;
    json_t *member;
    json_object_foreach(value, key, member) {
        if (strcmp(key, name) == 0 && json_is_number(member)) {
            sum += json_number_value(member);
            ++*n_found;
        }
        sum += sum_named(member, name, n_found);
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        sum += sum_named(json_array_get(value, i), name, n_found);
    return sum;
}

inferd_status share_measure_kv(share *s, inferd_err *err) {
    json_t *audit = NULL;
    inferd_status status = share_client_json(&s->admin, "GET", "/debug/audit", NULL, &audit, err);
    if (status != INFERD_OK) return status;
    int n_found = 0;
    double calls = sum_named(audit, "kv_driver_calls", &n_found);
    double faults = sum_named(audit, "kv_page_faults", &n_found);
    json_decref(audit);
    if (n_found < 2)
        return inferd_fail(err, INFERD_EFORMAT,
                           "the audit has no kv_driver_calls and kv_page_faults");
    share_row *r = share_table_add(&s->table, "kv", "system calls on the KV path", "0");
    snprintf(r->measured, sizeof r->measured, "%.0f", calls);
    snprintf(r->spread, sizeof r->spread,
             "counted by the daemon since it began; pages first used inside a step: %.0f", faults);
    r->verdict = calls == 0 ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:f,s:f}", "calls", calls, "faults", faults);
    return INFERD_OK;
}
