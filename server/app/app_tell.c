/* app_tell.c - see app_tell.h. */
#include "app_tell.h"

#include <stdio.h>
#include <time.h>

#include "inferd/clock.h"
#include "scheduler/watch.h"

int64_t app_unix_ms(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

const char *app_size(char out[APP_SIZE_BYTES], uint64_t n_bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)n_bytes;
    size_t unit = 0;
    for (; v >= 1024 && unit + 1 < INFERD_COUNT(units); unit++) v /= 1024;
    snprintf(out, APP_SIZE_BYTES, v < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", v, units[unit]);
    return out;
}

/* ---- models that come and leave ---- */

enum { TOLD_US = 100 }; // a shorter time is no news

/* "40 ms", "2.5 s". */
static const char *time_of(char out[APP_SIZE_BYTES], uint64_t us) {
    if (us < 10000)
        snprintf(out, APP_SIZE_BYTES, "%.1f ms", (double)us / 1e3);
    else if (us < 1000000)
        snprintf(out, APP_SIZE_BYTES, "%.0f ms", (double)us / 1e3);
    else
        snprintf(out, APP_SIZE_BYTES, "%.1f s", (double)us / 1e6);
    return out;
}

static const char *name_of(const app *a, uint32_t slot) {
    const char *name = slot < REGISTRY_SLOTS ? app_model(a, slot)->name : NULL;
    return name != NULL ? name : "a model that left";
}

static void tell_evicted(app *a, const engine_note *n, int64_t at_ms) {
    char size[APP_SIZE_BYTES], wait[APP_SIZE_BYTES];
    const char *name = name_of(a, n->model_idx);
    app_size(size, n->n_bytes);
    if (n->cause == ENGINE_EVICT_ASKED || n->cause == ENGINE_EVICT_IDLE ||
        n->for_idx == ENGINE_NOTE_NO_MODEL) {
        journal_add(a->journal, JOURNAL_EVICT, 1, at_ms, "%s %s%s: %s are free",
                    n->cause == ENGINE_EVICT_ASKED ? "unloaded" : "evicted", name,
                    n->cause == ENGINE_EVICT_IDLE ? ", idle for its keep_alive" : "", size);
        return;
    }
    bool urgent = n->cause == ENGINE_EVICT_CLASS, waited = n->wait_us >= TOLD_US;
    journal_add(a->journal, JOURNAL_EVICT, 1, at_ms, "evicted %s%s: %s for %s%s%s%s", name,
                n->cause == ENGINE_EVICT_SLICE ? " at the end of its time slice" : "", size,
                name_of(a, n->for_idx), urgent ? ", which is more urgent" : "",
                !waited  ? ""
                : urgent ? " and waited "
                         : ", which waited ",
                waited ? time_of(wait, n->wait_us) : "");
}

static void tell_loaded(app *a, const engine_note *n, int64_t at_ms) {
    char size[APP_SIZE_BYTES], took[APP_SIZE_BYTES], wait[APP_SIZE_BYTES];
    a->totals.switches++;
    app_size(size, n->n_bytes);
    const char *in = n->bring_us >= TOLD_US ? " in " : "";
    if (*in != 0)
        time_of(took, n->bring_us);
    else
        took[0] = 0; // its pages changed hands
    const char *from = n->from_file ? "its file" : "host memory";
    const char *name = name_of(a, n->model_idx);
    if (n->wait_us < TOLD_US)
        journal_add(a->journal, JOURNAL_LOAD, 1, at_ms, "loaded %s from %s: %s%s%s", name, from,
                    size, in, took);
    else
        journal_add(a->journal, JOURNAL_LOAD, 1, at_ms,
                    "loaded %s from %s: %s%s%s; its first request waited %s", name, from, size, in,
                    took, time_of(wait, n->wait_us));
}

static void tell_failed(app *a, const engine_note *n, const engine *e, int64_t at_ms) {
    inferd_err why = {0};
    engine_model_error(e, n->model_idx, &why);
    journal_add(a->journal, JOURNAL_FAIL, 1, at_ms, "%s could not be loaded%s%s",
                name_of(a, n->model_idx), why.text[0] != 0 ? ": " : "", why.text);
}

static void tell_notes(app *a, uint32_t device_idx, uint64_t now_us, int64_t now_ms) {
    enum { AT_ONCE = 32 };
    engine_note notes[AT_ONCE];
    uint64_t n_lost = 0;
    engine *e = fleet_engine_to_watch(a->fleet, device_idx);
    for (uint32_t n; (n = engine_notes_take(e, notes, AT_ONCE, &n_lost)) > 0;) {
        for (uint32_t i = 0; i < n; i++) {
            int64_t at_ms = now_ms - (int64_t)(u64_less(now_us, notes[i].at_us) / 1000);
            if (notes[i].kind == ENGINE_NOTE_EVICTED)
                tell_evicted(a, &notes[i], at_ms);
            else if (notes[i].kind == ENGINE_NOTE_LOADED)
                tell_loaded(a, &notes[i], at_ms);
            else
                tell_failed(a, &notes[i], e, at_ms);
        }
    }
    if (n_lost > 0)
        journal_add(a->journal, JOURNAL_LOAD, (uint32_t)n_lost, now_ms,
                    "models came and left too often to tell each time");
}

/* ---- preemptions ---- */

static void tell_preempts(app *a, int64_t now_ms) {
    /* They are counted when they are over, and told in the past tense.  A pause is a step or two
     * without rows and happens all the time: it is no event. */
    static const char *const what[GEN_PREEMPTS] = {
        [GEN_PREEMPT_SWAP] = "swapped a sequence of %s out and in: other work needed its pages",
        [GEN_PREEMPT_RECOMPUTE] =
            "computed the KV cache of a sequence of %s again: other work needed its pages",
        [GEN_PREEMPT_MODEL_OUT] = "a sequence of %s waited while its model was away"};
    for (uint32_t i = 0; i < a->models.n_used; i++) {
        uint64_t *told = &a->told_preempts[(size_t)i * GEN_PREEMPTS];
        engine_model_info info;
        if (app_model(a, i)->m == NULL) {
            for (int k = 0; k < GEN_PREEMPTS; k++) told[k] = 0;
            continue;
        }
        fleet_model_tally(a->fleet, i, &info);
        for (int k = 0; k < GEN_PREEMPTS; k++) {
            uint64_t n = info.n_preempts[k];
            char text[JOURNAL_TEXT_BYTES];
            if (n > told[k] && what[k] != NULL) {
                snprintf(text, sizeof text, what[k], name_of(a, i));
                journal_add(a->journal, JOURNAL_PREEMPT, (uint32_t)(n - told[k]), now_ms, "%s",
                            text);
            }
            told[k] = n;
        }
    }
}

/* ---- refusals ---- */

void app_tell_refusal(app *a, int64_t tenant, int64_t name_idx, const api_error *e) {
    if (e->status != 429 && e->status != 503) return;
    a->totals.refused++;
    const char *by = tenant >= 0 && tenant < (int64_t)a->n_tenants ? a->tenants[tenant] : NULL;
    const char *of = name_idx >= 0 ? a->models.names[name_idx] : NULL;
    const char *code = e->code != NULL ? e->code : "an error";
    char text[JOURNAL_TEXT_BYTES], several[JOURNAL_TEXT_BYTES];
    snprintf(text, sizeof text, "refused a request%s%s%s%s: %s", by != NULL ? " of tenant " : "",
             by != NULL ? by : "", of != NULL ? " for " : "", of != NULL ? of : "", code);
    snprintf(several, sizeof several, "refused requests%s%s for several models: %s",
             by != NULL ? " of tenant " : "", by != NULL ? by : "", code);
    uint64_t group = ((uint64_t)(tenant + 2) << 8) | (uint64_t)e->fault;
    journal_add_in(a->journal, group, JOURNAL_REFUSE, app_unix_ms(), text, several);
}

void app_tell_failure(app *a, uint32_t name_idx, const api_error *e) {
    journal_add(a->journal, JOURNAL_FAIL, 1, app_unix_ms(), "a request for %s failed: %s",
                a->models.names[name_idx], e->code != NULL ? e->code : "an error");
}

/* ---- all of it ---- */

static void close_second(app *a, uint64_t now_us, int64_t now_ms) {
    history_totals *t = &a->totals;
    if (!history_is_due(a->history, now_us)) return;
    t->prompt_tokens = t->preemptions = t->step_us = t->wall_us = 0;
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        engine_stats s;
        engine_get_stats(fleet_engine(a->fleet, d), &s);
        t->prompt_tokens += s.n_prefill_rows;
        t->preemptions += s.n_preemptions;
        t->step_us += s.usage_step_us;
        t->wall_us += s.usage_until_us;
    }
    history_close(a->history, t, now_us, now_ms / 1000);
}

void app_tell(app *a, uint64_t now_us) {
    int64_t now_ms = app_unix_ms();
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) tell_notes(a, d, now_us, now_ms);
    if (history_is_due(a->history, now_us)) tell_preempts(a, now_ms);
    close_second(a, now_us, now_ms);
}
