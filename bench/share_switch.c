/* share_switch.c - rows of `share`: requests to an idle server, for one model after another.
 *
 *     request m (swapped in) -- request m, m, m (on the device) -- the next model
 *         first token                median of three
 *
 * The difference is the cost of the switch.  Prompts are short and new each time.  The warm and the
 * cold row check the daemon's own counts: if a model was already on the device, or was read from
 * its file although it should have been kept in host memory, the row fails. */
#include <string.h>
#include <sys/stat.h>

#include "share.h"

enum {
    PROMPT = 10,
    HOT_ASKS = 3,
    VISITS_SWITCH = 24, // of all models together; the first visit of each is not counted
    VISITS_WARM = 100,
    VISITS_COLD = 60,
    QUICK_DIVISOR = 5,
    COPY_EVERY = 12, // cold visits, with a measurement of the copy rate: it changes with the host
    IDLE_MS = 40
};
static const double WARM_GOAL_MS = 10, COLD_GOAL_MS = 150, PREPARE_GOAL_SHARE = 0.6;

/* The parts of a switch as reported by the daemon; empty for another server. */
typedef struct switch_parts {
    samples queue, reclaim, stage, load, rate; // ms; bytes per second of preparation
} switch_parts;

typedef struct visits {
    samples cost, hot; // ms
    samples copy;      // is_cold: bytes per second
    switch_parts parts;
    bool uses_admin, is_cold;
    double n_loads[SHARE_MODELS_MAX], n_stages[SHARE_MODELS_MAX];
} visits;

static void visits_free(visits *v) {
    samples *all[] = {&v->cost,          &v->hot,         &v->copy,       &v->parts.queue,
                      &v->parts.reclaim, &v->parts.stage, &v->parts.load, &v->parts.rate};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) samples_free(all[i]);
}

/* Bytes read from the file and written to pages by the preparation, per second. */
static inferd_status add_rate(visits *v, json_t *state, json_t *m, double stage_s,
                              inferd_err *err) {
    double n_pages = 0, page_bytes = 0;
    struct stat file;
    const char *path = json_string_value(json_object_get(m, "path"));
    inferd_status s = share_number(m, "pages.weight", &n_pages, err);
    if (s == INFERD_OK) s = share_number(share_state_device(state), "page_bytes", &page_bytes, err);
    if (s != INFERD_OK) return s;
    if (path == NULL || stat(path, &file) != 0) return INFERD_OK; // made up, or on another machine
    if (stage_s > 0)
        samples_add(&v->parts.rate, ((double)file.st_size + n_pages * page_bytes) / stage_s);
    return INFERD_OK;
}

/* Reads counts and times of model `i` since the last call; `counts`: this visit is counted. */
static inferd_status look(share *s, visits *v, uint32_t i, bool counts, inferd_err *err) {
    double loads = 0, stages = 0, part[4] = {0};
    static const char *const paths[] = {"switch.last.queue_s", "switch.last.reclaim_s",
                                        "switch.last.stage_s", "switch.last.load_s"};
    samples *into[] = {&v->parts.queue, &v->parts.reclaim, &v->parts.stage, &v->parts.load};
    json_t *state = NULL;
    inferd_status status = share_state(s, &state, err);
    json_t *m = status == INFERD_OK ? share_state_model(state, s->models[i]) : NULL;
    if (status == INFERD_OK && m == NULL)
        status = inferd_fail(err, INFERD_ENOTFOUND, "the state has no model %s", s->models[i]);
    if (status == INFERD_OK) status = share_number(m, "loads", &loads, err);
    if (status == INFERD_OK) status = share_number(m, "stages", &stages, err);
    for (int k = 0; status == INFERD_OK && k < 4; k++)
        status = share_number(m, paths[k], &part[k], err);
    double loaded = loads - v->n_loads[i], staged = stages - v->n_stages[i];
    v->n_loads[i] = loads;
    v->n_stages[i] = stages;
    if (status == INFERD_OK && counts && loaded < 1)
        status = inferd_fail(err, INFERD_EINVAL,
                             "%s was still there: the device has room for more than one model",
                             s->models[i]);
    if (status == INFERD_OK && counts && (staged > 0) != v->is_cold)
        status =
            inferd_fail(err, INFERD_EINVAL,
                        "%s was read %.0f times, expected %s: the host_arena is %s", s->models[i],
                        staged, v->is_cold ? "once" : "never", v->is_cold ? "not 0" : "too small");
    if (status == INFERD_OK && counts) {
        for (int k = 0; k < 4; k++) samples_add(into[k], part[k] * 1e3);
        if (v->is_cold) status = add_rate(v, state, m, part[2], err);
    }
    json_decref(state);
    return status;
}

static inferd_status visit(share *s, visits *v, uint32_t i, bool counts, inferd_err *err) {
    share_answer answer;
    samples hot = {0};
    double first_ms = 0, ms = 0;
    inferd_status status =
        share_first_token(s, s->models[i], NULL, PROMPT, &answer, &first_ms, err);
    if (status == INFERD_OK && v->uses_admin) status = look(s, v, i, counts, err);
    for (int k = 0; status == INFERD_OK && k < HOT_ASKS; k++) {
        status = share_first_token(s, s->models[i], NULL, PROMPT, &answer, &ms, err);
        samples_add(&hot, ms);
    }
    if (status == INFERD_OK && counts) {
        samples_add(&v->cost, first_ms - samples_at(&hot, .5));
        samples_add(&v->hot, samples_at(&hot, .5));
    }
    samples_free(&hot);
    share_sleep_ms(IDLE_MS);
    return status;
}

static inferd_status add_copy_rate(share *s, visits *v, inferd_err *err) {
    double rate = 0;
    inferd_status status = share_copy_rate(s->o->threads, &rate, err);
    if (status == INFERD_OK) samples_add(&v->copy, rate);
    return status;
}

static inferd_status visit_all(share *s, visits *v, uint32_t n, inferd_err *err) {
    inferd_status status = INFERD_OK;
    if (s->o->is_quick) n = u32_max(n / QUICK_DIVISOR, s->n_models);
    for (uint32_t k = 0; status == INFERD_OK && k < n + s->n_models; k++) {
        if (v->is_cold && k % COPY_EVERY == 0) status = add_copy_rate(s, v, err);
        if (status == INFERD_OK) status = visit(s, v, k % s->n_models, k >= s->n_models, err);
    }
    return status;
}

static json_t *visits_json(visits *v) {
    json_t *all = json_pack("{s:o,s:o}", "cost_ms", samples_json(&v->cost), "hot_ttft_ms",
                            samples_json(&v->hot));
    if (all != NULL && v->uses_admin)
        json_object_set_new(all, "parts_ms",
                            json_pack("{s:o,s:o,s:o,s:o}", "queue", samples_json(&v->parts.queue),
                                      "reclaim", samples_json(&v->parts.reclaim), "stage",
                                      samples_json(&v->parts.stage), "load",
                                      samples_json(&v->parts.load)));
    return all;
}

static void tell_cost(share *s, visits *v, const char *id, const char *figure, const char *goal,
                      double goal_ms) {
    share_row *r = share_table_add(&s->table, id, figure, goal);
    snprintf(r->measured, sizeof r->measured, "%.1f ms", samples_at(&v->cost, .5));
    int n = snprintf(r->spread, sizeof r->spread,
                     "%zu switches: least %.1f, p90 %.1f, most %.1f ms; hot TTFT %.1f ms",
                     v->cost.n, samples_at(&v->cost, 0), samples_at(&v->cost, .9),
                     samples_at(&v->cost, 1), samples_at(&v->hot, .5));
    if (v->uses_admin)
        snprintf(r->spread + n, sizeof r->spread - (size_t)n,
                 "; of the daemon's own: reclaim %.2f, read and prepare %.1f, load %.2f ms",
                 samples_at(&v->parts.reclaim, .5), samples_at(&v->parts.stage, .5),
                 samples_at(&v->parts.load, .5));
    if (goal_ms > 0) r->verdict = samples_at(&v->cost, .5) <= goal_ms ? SHARE_MET : SHARE_MISSED;
    r->values = visits_json(v);
}

static void tell_rate(share *s, visits *v) {
    share_row *r = share_table_add(&s->table, "prepare", "preparation, bytes read and written",
                                   ">= 60 % of memory bandwidth (memcpy)");
    double copy_rate = samples_at(&v->copy, .5), part = samples_at(&v->parts.rate, .5) / copy_rate;
    snprintf(r->measured, sizeof r->measured, "%.0f %%: %.1f of %.1f GB/s", 100 * part,
             samples_at(&v->parts.rate, .5) / 1e9, copy_rate / 1e9);
    snprintf(r->spread, sizeof r->spread,
             "%.1f to %.1f GB/s over %zu switches; memcpy %.1f to %.1f in %zu measurements",
             samples_at(&v->parts.rate, 0) / 1e9, samples_at(&v->parts.rate, 1) / 1e9,
             v->parts.rate.n, samples_at(&v->copy, 0) / 1e9, samples_at(&v->copy, 1) / 1e9,
             v->copy.n);
    r->verdict = part >= PREPARE_GOAL_SHARE ? SHARE_MET : SHARE_MISSED;
    r->values = json_pack("{s:f,s:o}", "copy_bytes_per_s", copy_rate, "bytes_per_s",
                          samples_json(&v->parts.rate));
}

inferd_status share_measure_switch(share *s, inferd_err *err) {
    visits v = {0};
    inferd_status status = visit_all(s, &v, VISITS_SWITCH, err);
    if (status == INFERD_OK)
        tell_cost(s, &v, "switch", "switch to another model: first token less hot TTFT", "", 0);
    visits_free(&v);
    return status;
}

inferd_status share_measure_warm(share *s, inferd_err *err) {
    visits v = {.uses_admin = true};
    inferd_status status = visit_all(s, &v, VISITS_WARM, err);
    if (status == INFERD_OK)
        tell_cost(s, &v, "warm", "idle, switch to a warm model: first token less its hot TTFT",
                  "<= 10 ms", WARM_GOAL_MS);
    visits_free(&v);
    return status;
}

inferd_status share_measure_cold(share *s, inferd_err *err) {
    visits v = {.uses_admin = true, .is_cold = true};
    inferd_status status = visit_all(s, &v, VISITS_COLD, err);
    if (status == INFERD_OK)
        tell_cost(s, &v, "cold", "the same from cold, file in the page cache", "<= 150 ms",
                  COLD_GOAL_MS);
    if (status == INFERD_OK && v.parts.rate.n > 0) tell_rate(s, &v);
    visits_free(&v);
    return status;
}
