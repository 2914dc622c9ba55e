/* file_look.c - see file_look.h. */
#include "file_look.h"

#include <string.h>
#include <uv.h>

#include "inferd/clock.h"
#include "log.h"
#include "scheduler/pulse.h"

/* The state of one slot's file between two checks. */
typedef struct known {
    const model *m;        // the model it belongs to: the slot may have another one by now
    model_file_id last;    // as last seen
    model_file_id refused; // failed to open ...
    uint64_t refused_us;   // ... at this time
    model_file_id alike;   // another file with the same bytes
} known;

/* One model of the configuration in one check. */
typedef struct glance {
    int slot;
    model *served; // borrowed: kept by the configuration of the check
    model_file file;
    model_file_id id;
    bool chosen;      // to be opened
    bool alike;       // it has the same bytes as the served file
    model *m;         // opened; owned until a slot takes it
    int same_as;      // slot with the same content, or REGISTRY_NONE
    int64_t same_new; // the same among those of this check, an index below its own, or -1
    inferd_err err;
} glance;

struct file_look {
    app *app;
    uv_loop_t *loop;
    uv_work_t work;
    bool allow_dummy, busy, closed;
    uint64_t due_us;
    app_config *config; // referenced while busy
    glance *glances;    // [config->c->n_models] owned while busy
    known *known;       // [REGISTRY_SLOTS] owned
};

static bool same_id(const model_file_id *a, const model_file_id *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* ---- worker ---- */

static void see(uv_work_t *work) {
    file_look *f = work->data;
    for (uint32_t i = 0; i < f->config->c->n_models; i++) {
        glance *g = &f->glances[i];
        g->file = model_look_at_file(g->served, &g->id, &g->err);
    }
}

/* Two names of one file, and files with the same content, still share their weights. */
static void find_same(file_look *f, uint32_t idx) {
    glance *g = &f->glances[idx];
    for (uint32_t i = 0; i < f->config->c->n_models; i++) {
        const glance *other = &f->glances[i];
        if (i < idx && other->m != NULL && registry_same_content(other->m, g->m)) {
            g->same_new = i;
            return;
        }
        if (other->file != MODEL_FILE_SAME || !registry_same_content(other->served, g->m)) continue;
        g->same_as = other->slot;
        return;
    }
}

static void open_chosen(uv_work_t *work) {
    file_look *f = work->data;
    for (uint32_t i = 0; i < f->config->c->n_models; i++) {
        glance *g = &f->glances[i];
        if (!g->chosen || registry_open_model(&f->config->c->models[i], f->allow_dummy, &g->m,
                                              &g->err) != INFERD_OK)
            continue;
        g->alike = registry_same_content(g->served, g->m);
        if (!g->alike) find_same(f, i);
    }
}

/* ---- front ---- */

static void end_look(file_look *f) {
    for (uint32_t i = 0; i < f->config->c->n_models; i++) model_close(f->glances[i].m);
    free(f->glances);
    f->glances = NULL;
    app_config_drop(f->config);
    f->config = NULL;
    f->busy = false;
}

/* The configuration has changed since, or the daemon stops: the result is not needed. */
static bool is_in_vain(const file_look *f) {
    return f->closed || f->app->config != f->config || f->app->draining;
}

static void tell(const registry_slot *s, const char *what, const char *error) {
    log_line line;
    log_begin(&line, error != NULL ? LOG_LEVEL_ERROR : LOG_LEVEL_INFO, "model_file");
    log_str(&line, "model", s->name);
    log_str(&line, "path", s->path);
    log_str(&line, "file", what);
    if (error != NULL) log_str(&line, "error", error);
    log_end(&line);
}

static void note(file_look *f, glance *g) {
    registry_slot *s = &f->app->models.slots[g->slot];
    known *k = &f->known[g->slot];
    if (k->m != g->served) *k = (known){.m = g->served};
    if (g->file == MODEL_FILE_REPLACED && same_id(&g->id, &k->alike)) g->file = MODEL_FILE_SAME;
    if (g->file == MODEL_FILE_SAME && s->file == MODEL_FILE_MISSING)
        registry_try_again(&f->app->models, g->slot);
    bool missing = g->file == MODEL_FILE_MISSING;
    if (missing) inferd_context(&g->err, "still served from memory; the file cannot be read again");
    if (g->file != s->file) tell(s, model_file_name(g->file), missing ? g->err.text : NULL);
    s->file = g->file;
}

/* Selects files that are different and did not change between two checks. */
static bool choose(file_look *f, uint64_t now_us) {
    bool any = false;
    for (uint32_t i = 0; i < f->config->c->n_models; i++) {
        glance *g = &f->glances[i];
        note(f, g);
        known *k = &f->known[g->slot];
        bool still = same_id(&g->id, &k->last);
        bool refused = same_id(&g->id, &k->refused) &&
                       now_us < k->refused_us + FILE_LOOK_US * FILE_LOOKS_AGAIN;
        k->last = g->id;
        if (!still && g->file == MODEL_FILE_REPLACED)
            f->due_us = now_us + FILE_LOOK_US * FILE_LOOK_STILL_PERCENT / 100;
        g->chosen = g->file == MODEL_FILE_REPLACED && still && !refused;
        any = any || g->chosen;
    }
    return any;
}

/* Adds slots for new files; false: there is none, or no memory. */
static bool replace(file_look *f, int *slots) {
    uint32_t n_models = f->config->c->n_models;
    bool any = false;
    memcpy(slots, f->config->slots, n_models * sizeof *slots);
    for (uint32_t i = 0; i < n_models; i++) {
        glance *g = &f->glances[i];
        inferd_err err = {0};
        if (g->m == NULL || g->alike) continue;
        const glance *first = g->same_new >= 0 ? &f->glances[g->same_new] : NULL;
        int same_as = first == NULL      ? g->same_as
                      : first->m == NULL ? slots[g->same_new] // a slot took it
                                         : REGISTRY_NONE;
        int slot = registry_replace(&f->app->models, g->slot, g->m, same_as, &err);
        if (err.status != INFERD_OK)
            tell(app_model(f->app, (uint32_t)g->slot), "replaced", err.text);
        if (slot == REGISTRY_NONE) continue;
        f->known[slot] = (known){.m = g->m};
        g->m = NULL;
        slots[i] = slot;
        any = true;
    }
    return any;
}

static void judge(file_look *f, glance *g, uint64_t now_us) {
    registry_slot *s = &f->app->models.slots[g->slot];
    known *k = &f->known[g->slot];
    if (!g->chosen) return;
    if (g->m == NULL) {
        k->refused = g->id;
        k->refused_us = now_us;
        tell(s, "replaced", g->err.text);
    } else if (g->alike) {
        k->alike = g->id;
        s->file = MODEL_FILE_SAME;
        tell(s, "same", NULL);
    } else {
        tell(s, "opened", NULL);
    }
}

static void take(uv_work_t *work, int status) {
    file_look *f = work->data;
    pulse_at(PULSE_WORK, "take replaced files");
    uint32_t n_models = f->config->c->n_models;
    int *slots = calloc(size_max(n_models, 1), sizeof *slots);
    if (status != 0 || is_in_vain(f) || slots == NULL) {
        f->due_us = 0;
        free(slots);
        end_look(f);
        return;
    }
    uint64_t now_us = clock_now_us();
    for (uint32_t i = 0; i < n_models; i++) judge(f, &f->glances[i], now_us);
    if (replace(f, slots) && !app_swap_slots(f->app, slots)) {
        log_text(LOG_LEVEL_ERROR, "model_file", "error", "no memory to serve the replaced file");
        registry_count(&f->app->models, slots, n_models); // the new slots leave at once
        registry_drop(&f->app->models, slots, n_models);
    }
    free(slots);
    end_look(f);
}

static void seen(uv_work_t *work, int status) {
    file_look *f = work->data;
    bool in_vain = status != 0 || is_in_vain(f);
    if (in_vain) f->due_us = 0;
    if (in_vain || !choose(f, clock_now_us()) ||
        uv_queue_work(f->loop, &f->work, open_chosen, take) != 0)
        end_look(f);
}

static bool begin(file_look *f) {
    f->config = app_config_take(f->app);
    uint32_t n_models = f->config->c->n_models;
    f->busy = true;
    f->glances = calloc(size_max(n_models, 1), sizeof *f->glances);
    for (uint32_t i = 0; f->glances != NULL && i < n_models; i++)
        f->glances[i] = (glance){.slot = f->config->slots[i],
                                 .served = f->app->models.slots[f->config->slots[i]].m,
                                 .same_as = REGISTRY_NONE,
                                 .same_new = -1};
    return f->glances != NULL && uv_queue_work(f->loop, &f->work, see, seen) == 0;
}

/* ---- interface ---- */

file_look *file_look_create(app *a, void *loop, bool allow_dummy) {
    file_look *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->app = a;
    f->loop = loop;
    f->allow_dummy = allow_dummy;
    f->work.data = f;
    f->due_us = clock_now_us() + FILE_LOOK_US;
    f->known = calloc(REGISTRY_SLOTS, sizeof *f->known);
    if (f->known != NULL) return f;
    free(f);
    return NULL;
}

void file_look_destroy(file_look *f) {
    if (f == NULL) return;
    f->closed = true;
    while (f->busy) uv_run(f->loop, UV_RUN_ONCE);
    free(f->known);
    free(f);
}

void file_look_tick(file_look *f, uint64_t now_us) {
    if (f->busy || f->app->draining || now_us < f->due_us) return;
    f->due_us = now_us + FILE_LOOK_US;
    if (begin(f)) return;
    if (f->glances != NULL) {
        end_look(f);
        return;
    }
    app_config_drop(f->config);
    f->config = NULL;
    f->busy = false;
}

void file_look_soon(file_look *f) {
    f->due_us = 0;
}
