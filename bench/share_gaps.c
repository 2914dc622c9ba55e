/* share_gaps.c - rows of `share`: delays of a stream or a request caused by other work.
 *
 *     gap       one stream while another model is loaded by an admin command: no request uses that
 *               model, so it computes no steps.  The stream's longest gap that overlaps the load
 *               is compared with the longest one in as long a time after it
 *     urgent    streams of the class batch on two models; requests of the class high are sent one
 *               by one
 *
 * The number of iterations that an urgent request waited for, including the one in progress on its
 * arrival, is reported by the daemon.  It is compared with the number seen from outside: a stream
 * gets a token in each step of its model, so all tokens that arrive between the urgent request and
 * its own first token belong to steps that it waited for.
 */
#include <string.h>

#include "result.h"
#include "share.h"
#include "share_load.h"

enum {
    LOADS = 24,
    LOADS_QUICK = 6,
    GAP_PROMPT = 32,
    GAP_OUTPUT = 1500, // of one answer; then the next request is sent
    SETTLE_MS = 450,   // after a model was dropped, and after it was loaded
    URGENT_ASKS = 300,
    URGENT_ASKS_QUICK = 60,
    URGENT_PAUSE_MS = 60, // at least; at most twice as long
    WARM_UP_MS = 1500,
    ARRIVAL_NS = 1000 * 1000, // assumed delay of a request to the daemon and of a token back
    URGENT_MAX_MS = 100       // of the row `urgent`
};
static const double GAP_GOAL = 1.15;

/* ---- gap ---- */

typedef struct window {
    uint64_t from_ns, to_ns;
} window;

/* The longest gap of the stream that overlaps the window, in ms; 0: none does. */
static double longest_gap(const share_stream *stream, window w) {
    double longest = 0;
    for (uint32_t i = 1; i < stream->n_tokens; i++) {
        const share_token *a = &stream->tokens[i - 1], *b = &stream->tokens[i];
        if (a->answer_idx != b->answer_idx || b->at_ns <= w.from_ns || a->at_ns >= w.to_ns)
            continue;
        double ms = (double)since_ns(a->at_ns, b->at_ns) / 1e6;
        if (ms > longest) longest = ms;
    }
    return longest;
}

static bool touches(const window *windows, uint32_t n, uint64_t from_ns, uint64_t to_ns) {
    for (uint32_t i = 0; i < n; i++)
        if (to_ns > windows[i].from_ns && from_ns < windows[i].to_ns) return true;
    return false;
}

/* Gaps that do not overlap any load. */
static void quiet_gaps(const share_stream *stream, const window *loads, uint32_t n, samples *out) {
    for (uint32_t i = 1; i < stream->n_tokens; i++) {
        const share_token *a = &stream->tokens[i - 1], *b = &stream->tokens[i];
        if (a->answer_idx == b->answer_idx && !touches(loads, n, a->at_ns, b->at_ns))
            samples_add(out, (double)since_ns(a->at_ns, b->at_ns) / 1e6);
    }
}

static inferd_status load_once(share *s, const char *model, window *out, inferd_err *err) {
    static const char wait[] = "{\"wait\":true}";
    inferd_status status =
        share_client_object(&s->admin, "POST", "models", model, "drop", wait, err);
    if (status != INFERD_OK) return status;
    share_sleep_ms(SETTLE_MS);
    out->from_ns = bench_now_ns();
    status = share_client_object(&s->admin, "POST", "models", model, "load", wait, err);
    out->to_ns = bench_now_ns();
    share_sleep_ms(SETTLE_MS + (double)since_ns(out->from_ns, out->to_ns) / 1e6); // the control
    return status;
}

/* A window after the load, exactly as long as the load took. */
static window control_of(window load) {
    uint64_t from_ns = load.to_ns + (uint64_t)SETTLE_MS * 1000000;
    return (window){from_ns, from_ns + since_ns(load.from_ns, load.to_ns)};
}

static inferd_status tell_gap(share *s, const share_stream *stream, const window *loads, uint32_t n,
                              inferd_err *err) {
    samples usual = {0}, longest = {0}, control = {0}, took = {0};
    quiet_gaps(stream, loads, n, &usual);
    for (uint32_t i = 0; i < n; i++) {
        samples_add(&longest, longest_gap(stream, loads[i]));
        samples_add(&control, longest_gap(stream, control_of(loads[i])));
        samples_add(&took, (double)since_ns(loads[i].from_ns, loads[i].to_ns) / 1e6);
    }
    double median = samples_at(&usual, .5), beside = samples_at(&longest, .5);
    double without = samples_at(&control, .5);
    inferd_status status = INFERD_OK;
    if (median <= 0 || without <= 0)
        status = inferd_fail(err, INFERD_EINVAL,
                             "the median of %zu gaps is %.3f ms, and of the longest ones of "
                             "windows without a load %.3f ms: tokens of %s come several at once, "
                             "so gaps cannot be seen",
                             usual.n, median, without, s->models[0]);
    if (status == INFERD_OK) {
        share_row *r = share_table_add(&s->table, "gap",
                                       "another model's longest gap during a load, against the "
                                       "longest in as long a time without",
                                       "<= 1.15 x");
        snprintf(r->measured, sizeof r->measured, "%.2f x: %.1f against %.1f ms", beside / without,
                 beside, without);
        snprintf(r->spread, sizeof r->spread,
                 "medians of %u loads of %.0f ms and of as many windows without; p90 %.1f against "
                 "%.1f, most %.1f against %.1f ms; median gap %.2f ms",
                 n, samples_at(&took, .5), samples_at(&longest, .9), samples_at(&control, .9),
                 samples_at(&longest, 1), samples_at(&control, 1), median);
        r->verdict = beside <= GAP_GOAL * without ? SHARE_MET : SHARE_MISSED;
        r->values = json_pack("{s:o,s:o,s:o,s:o}", "longest_ms", samples_json(&longest),
                              "control_ms", samples_json(&control), "usual_ms",
                              samples_json(&usual), "load_ms", samples_json(&took));
    }
    samples *all[] = {&usual, &longest, &control, &took};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) samples_free(all[i]);
    return status;
}

inferd_status share_measure_gap(share *s, inferd_err *err) {
    share_stream_kind kind = {
        .model = s->models[0], .key = s->o->key, .n = 1, .n_prompt = GAP_PROMPT};
    window loads[LOADS];
    uint32_t n = s->o->is_quick ? LOADS_QUICK : LOADS;
    share_load load = {0};
    inferd_status status =
        share_output_fitting(s, kind.model, GAP_PROMPT, GAP_OUTPUT, &kind.n_output, err);
    if (status == INFERD_OK) status = share_load_start(&load, s->to, &kind, 1, share_seed(s), err);
    share_sleep_ms(WARM_UP_MS);
    for (uint32_t i = 0; status == INFERD_OK && i < n; i++)
        status = load_once(s, s->models[1 + i % (s->n_models - 1)], &loads[i], err);
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    if (status == INFERD_OK) status = tell_gap(s, &load.streams[0], loads, n, err);
    share_load_free(&load);
    return status;
}

/* ---- urgent ---- */

/* Number of tokens of one stream in a time interval. */
static uint32_t tokens_between(const share_stream *stream, uint64_t from_ns, uint64_t to_ns) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < stream->n_tokens; i++)
        count += stream->tokens[i].at_ns > from_ns && stream->tokens[i].at_ns < to_ns;
    return count;
}

/* Number of iterations of the load that ended in a time interval: for each kind (a model) the
 * number of tokens of the stream that got most tokens in it. */
static uint32_t iterations_between(const share_load *l, uint64_t from_ns, uint64_t to_ns) {
    uint32_t sum = 0;
    for (uint32_t k = 0; k < l->n_kinds; k++) {
        uint32_t most = 0;
        for (uint32_t i = 0; i < l->n_streams; i++)
            if (l->streams[i].kind == k)
                most = u32_max(most, tokens_between(&l->streams[i], from_ns, to_ns));
        sum += most;
    }
    return sum;
}

static void tell_urgent(share *s, const share_load *load, const share_answer *urgent, uint32_t n) {
    samples waited = {0}, seen = {0}, queued = {0}, ttft = {0}, step = {0};
    share_load_gaps(load, &step);
    for (uint32_t i = 0; i < n; i++) {
        samples_add(&waited, (double)urgent[i].queued_steps);
        samples_add(&seen,
                    iterations_between(load, urgent[i].sent_ns + ARRIVAL_NS, urgent[i].first_ns));
        samples_add(&queued, (double)urgent[i].queued_ms);
        samples_add(&ttft, (double)since_ns(urgent[i].sent_ns, urgent[i].first_ns) / 1e6);
    }
    double p99 = samples_at(&waited, .99), p99_ms = samples_at(&queued, .99);
    share_row *r = share_table_add(
        &s->table, "urgent",
        "urgent arrival to its first iteration, device saturated by the batch class",
        "p99 <= 1 iteration and <= 100 ms");
    snprintf(r->measured, sizeof r->measured, "p99 %.0f iterations, %.0f ms", p99, p99_ms);
    snprintf(
        r->spread, sizeof r->spread,
        "%u arrivals: median %.0f, most %.0f iterations (seen by the client: p99 %.0f, most %.0f); "
        "median %.0f, most %.0f ms; TTFT median %.1f, p99 %.1f ms; gaps of the batch median %.1f, "
        "p99 %.1f ms",
        n, samples_at(&waited, .5), samples_at(&waited, 1), samples_at(&seen, .99),
        samples_at(&seen, 1), samples_at(&queued, .5), samples_at(&queued, 1),
        samples_at(&ttft, .5), samples_at(&ttft, .99), samples_at(&step, .5),
        samples_at(&step, .99));
    r->verdict = p99 <= 1 && p99_ms <= URGENT_MAX_MS ? SHARE_MET : SHARE_MISSED;
    r->values =
        json_pack("{s:o,s:o,s:o,s:o,s:o}", "iterations", samples_json(&waited), "iterations_seen",
                  samples_json(&seen), "queued_ms", samples_json(&queued), "ttft_ms",
                  samples_json(&ttft), "batch_gap_ms", samples_json(&step));
    samples *all[] = {&waited, &seen, &queued, &ttft, &step};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) samples_free(all[i]);
}

static inferd_status ask_urgent(share *s, share_answer *out, inferd_err *err) {
    double ms;
    inferd_status status = share_first_token(s, s->models[2], "priority", 16, out, &ms, err);
    if (status == INFERD_OK && (out->queued_ms < 0 || out->queued_steps < 0))
        status = inferd_fail(err, INFERD_EFORMAT,
                             "usage does not report queued_ms and queued_steps (usage_details)");
    share_sleep_ms(URGENT_PAUSE_MS + (double)(share_seed(s) % 7) * URGENT_PAUSE_MS / 6);
    return status;
}

inferd_status share_measure_urgent(share *s, inferd_err *err) {
    const share_stream_kind kinds[] = {
        {s->models[0], s->o->key, "flex", .n = 8, .n_prompt = 64, .n_output = 128},
        {s->models[1], s->o->key, "flex", .n = 4, .n_prompt = 400, .n_output = 32},
    };
    static share_answer urgent[URGENT_ASKS]; // 20 KB
    uint32_t n = s->o->is_quick ? URGENT_ASKS_QUICK : URGENT_ASKS;
    share_load load = {0};
    share_answer first;
    inferd_status status = ask_urgent(s, &first, err); // loads the model
    if (status == INFERD_OK)
        status = share_load_start(&load, s->to, kinds, INFERD_COUNT(kinds), share_seed(s), err);
    share_sleep_ms(WARM_UP_MS);
    for (uint32_t i = 0; status == INFERD_OK && i < n; i++) status = ask_urgent(s, &urgent[i], err);
    if (status == INFERD_OK) status = share_load_stop(&load, err);
    if (status == INFERD_OK) tell_urgent(s, &load, urgent, n);
    share_load_free(&load);
    return status;
}
