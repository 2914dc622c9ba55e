/* admin_ask.c - POST /admin/plan: asks model_plan.h with a snapshot and a wanted model.
 *
 * The arithmetic runs for every device; the answer is that of the best one: where the model is,
 * where it fits now with the fewest victims, where it would get a time slice, where it fits at all.
 * A model of several parts (fleet.h) fits when as many devices take one as it has parts: it would
 * use those that have one and the best of the others, and the victims of all of these are named.
 *
 * A model or tenant that does not exist yet is handled like a change that is not applied: it is put
 * into the configuration's text, which is read and checked, and the model's file is opened. */
#include <string.h>

#include "admin.h"
#include "api.h"
#include "inferd/json_whole.h"
#include "json_out.h"
#include "model_plan.h"

typedef enum weight_source {
    WEIGHTS_HELD,    // it has them on the device
    WEIGHTS_SHARED,  // another model has the same content
    WEIGHTS_COUNTED, // by the file's header, as the loader counts them
    WEIGHTS_FILE     // the file's size times a factor: no device has reported it
} weight_source;

static const char *const source_names[] = {"held", "shared", "counted", "file"};

/* A snapshot of one device, and the memory it uses. */
typedef struct snapshot {
    const engine *e;
    plan_device d;
    plan_model *models;          // [REGISTRY_SLOTS] owned, like the others
    plan_member *members;        // [REGISTRY_SLOTS]
    uint32_t *idx_of;            // [REGISTRY_SLOTS] of a slot's weights in models, or UINT32_MAX
    uint32_t *member_of;         // [REGISTRY_SLOTS] of a slot in members, or UINT32_MAX
    feasible_task *tasks;        // [REGISTRY_SLOTS]
    const char **names;          // [REGISTRY_SLOTS] of models, for tasks; borrowed
    engine_bring_ups file, host; // of all models; n is bytes
} snapshot;

static void snapshot_deinit(snapshot *s) {
    free(s->models);
    free(s->members);
    free(s->idx_of);
    free(s->member_of);
    free(s->tasks);
    free(s->names);
}

static void add_bytes(engine_bring_ups *sum, const engine_bring_ups *b, uint64_t n_bytes) {
    sum->n += b->n * n_bytes;
    sum->us += b->us;
}

/* `leaves`: it is being replaced, so its guarantees end. */
static void add_member(snapshot *s, const app *a, uint32_t slot, const engine_model_info *i,
                       bool leaves) {
    const model_policy *p = &app_model(a, slot)->policy;
    model_pin pin = leaves ? PIN_NONE : p->pin;
    uint32_t root = i->weights_of < REGISTRY_SLOTS ? i->weights_of : slot;
    bool first = s->idx_of[root] == UINT32_MAX;
    if (first) s->idx_of[root] = s->d.n_models++;
    plan_model *m = &s->models[s->idx_of[root]];
    s->idx_of[slot] = s->idx_of[root];
    if (first || slot == root) m->name = app_model(a, slot)->name;
    m->prio = first || p->prio < m->prio ? p->prio : m->prio;
    m->weight += p->weight;
    /* A draining model leaves anyway. */
    m->hot = m->hot || i->state == MODEL_HOT || i->state == MODEL_DRAINING;
    m->pinned = m->pinned || pin == PIN_HOT;
    if (pin == PIN_HOT && i->state != MODEL_FAILED) m->pinned_pages = i->weight_pages;
    m->weight_pages += i->pages_weight;
    m->kv_pages += i->pages_kv + i->pages_cached;
    m->cached_pages += i->pages_cached;
    m->n_work += i->n_running + i->n_waiting;
    if (first || i->idle_us < m->idle_us) m->idle_us = i->idle_us;
    m->reload_us = i->reload_us; // of the weights, like the pauses: equal for every member
    m->pauses = i->pauses;
    s->member_of[slot] = s->d.n_members;
    s->members[s->d.n_members++] =
        (plan_member){.name = app_model(a, slot)->name,
                      .weights_idx = s->idx_of[slot],
                      .owns = slot == root,
                      .min_pages = leaves ? 0 : i->pages_min,
                      .held_pages = i->pages_weight + i->pages_kv + i->pages_cached,
                      .cached_pages = i->pages_cached};
}

static bool take_snapshot(snapshot *s, const app *a, uint32_t device_idx, int replaced) {
    engine_stats stats;
    *s = (snapshot){.e = fleet_engine(a->fleet, device_idx),
                    .models = calloc(REGISTRY_SLOTS, sizeof *s->models),
                    .members = calloc(REGISTRY_SLOTS, sizeof *s->members),
                    .idx_of = calloc(REGISTRY_SLOTS, sizeof *s->idx_of),
                    .member_of = calloc(REGISTRY_SLOTS, sizeof *s->member_of),
                    .tasks = calloc(REGISTRY_SLOTS, sizeof *s->tasks),
                    .names = calloc(REGISTRY_SLOTS, sizeof *s->names)};
    if (s->models == NULL || s->members == NULL || s->idx_of == NULL || s->member_of == NULL ||
        s->tasks == NULL || s->names == NULL) {
        snapshot_deinit(s);
        return false;
    }
    engine_get_stats(s->e, &stats);
    for (uint32_t i = 0; i < REGISTRY_SLOTS; i++) s->idx_of[i] = s->member_of[i] = UINT32_MAX;
    for (uint32_t i = 0; i < REGISTRY_SLOTS; i++) {
        engine_model_info info;
        if (app_model(a, i)->m == NULL) continue;
        engine_model_get(s->e, i, &info);
        if (info.state == MODEL_NONE) continue;
        add_member(s, a, i, &info, (int)i == replaced);
        if (info.weights_of != i) continue;
        add_bytes(&s->file, &info.from_file, (uint64_t)info.weight_pages * stats.page_bytes);
        add_bytes(&s->host, &info.from_host, (uint64_t)info.weight_pages * stats.page_bytes);
    }
    s->d.n_pages = stats.pages_device;
    s->d.n_free = stats.pages_device_free;
    s->d.page_bytes = stats.page_bytes;
    s->d.tenants_min_pages = stats.pages_tenants_min;
    s->d.reserved_pages = stats.pages_reserved;
    s->d.models = s->models;
    s->d.members = s->members;
    return true;
}

/* ---- the wanted model ---- */

typedef struct question {
    plan_wanted w;
    weight_source source;
    uint64_t file_bytes, weight_bytes;
    engine_bring_ups from_file, from_host; // its own
    bool there;                            // its weights are on the device
    bool warm;                             // they are in host memory
    model_state state;                     // MODEL_NONE: it is not served there
} question;

static void ask_of_file(question *q, const snapshot *s, const model *m) {
    q->source = WEIGHTS_COUNTED;
    q->file_bytes = model_about(m)->file_bytes;
    if (engine_weigh(s->e, m, &q->w.weight_pages, &q->weight_bytes)) return;
    q->source = WEIGHTS_FILE;
    q->weight_bytes = plan_prepared_bytes(q->file_bytes);
    q->w.weight_pages = plan_pages(q->weight_bytes, s->d.page_bytes);
}

/* A model that is served there, or would be placed there. */
static void ask_of_slot(question *q, const snapshot *s, const app *a, uint32_t slot) {
    engine_model_info info;
    engine_model_get(s->e, slot, &info);
    q->state = info.state;
    q->w.idx = s->idx_of[slot];
    q->w.member_idx = s->member_of[slot];
    /* The drain of an operator ends without a load; a victim that drains leaves. */
    q->there = info.state == MODEL_HOT || (info.state == MODEL_DRAINING && info.held);
    q->warm = info.state == MODEL_WARM || info.state == MODEL_LOADING;
    q->from_file = info.from_file;
    q->from_host = info.from_host;
    ask_of_file(q, s, app_model(a, slot)->m);
    if (info.weight_pages > 0) q->w.weight_pages = info.weight_pages;
    bool held = q->w.idx != UINT32_MAX && s->models[q->w.idx].weight_pages > 0;
    if (held || info.state == MODEL_WARM) q->source = WEIGHTS_HELD;
}

/* The policy of one replica: the first part is the largest. */
static void ask_policy(question *q, const snapshot *s, const char *name,
                       const model_policy *whole) {
    model_policy part = fleet_part_of(whole, 0), *p = &part;
    q->w.name = name;
    q->w.prio = p->prio;
    q->w.share_percent = p->share.policy == SHARE_BESTEFFORT ? 0 : p->share.percent;
    q->w.min_pages = plan_pages(p->min_bytes, s->d.page_bytes);
    q->w.max_pages =
        p->max_bytes == 0 ? FEASIBLE_UNLIMITED : (uint32_t)(p->max_bytes / s->d.page_bytes);
}

/* ---- the answer ---- */

static void add_checks(buf *out, const plan_answer *p, uint64_t page_bytes) {
    buf_add_str(out, ",\"checks\":[");
    for (uint32_t i = 0; i < p->n_checks; i++) {
        const plan_check *c = &p->checks[i];
        unsigned long long need = c->need_pages, have = c->have_pages;
        buf_add_format(out, "%s{\"name\":\"%s\",\"kept\":%s", i > 0 ? "," : "", c->name,
                       c->kept ? "true" : "false");
        if (c->percent)
            buf_add_format(out, ",\"need_percent\":%llu,\"have_percent\":%llu", need, have);
        else
            buf_add_format(out,
                           ",\"need_pages\":%llu,\"have_pages\":%llu,\"need_bytes\":%llu,"
                           "\"have_bytes\":%llu",
                           need, have, need * page_bytes, have * page_bytes);
        buf_add_str(out, ",\"text\":");
        json_add_string(out, c->text, strlen(c->text));
        buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
}

static void add_victims(buf *out, const plan_answer *p, const snapshot *s, gen_class prio,
                        const char *device, bool *first) {
    for (uint32_t i = 0; i < p->n_victims; i++) {
        const plan_model *m = &s->models[p->victims[i]];
        buf_add_str(out, *first ? "{\"name\":" : ",{\"name\":");
        json_add_string(out, m->name, strlen(m->name));
        buf_add_str(out, ",\"device\":");
        json_add_string(out, device, strlen(device));
        buf_add_format(
            out,
            ",\"when\":\"%s\",\"why\":\"%s\",\"class\":\"%s\",\"bytes\":%llu,\"idle_s\":%.3f,"
            "\"back_s\":%.3f}",
            i < p->n_for_load ? "load" : "min",
            m->n_work == 0   ? "idle"
            : m->prio > prio ? "lower class"
                             : "beyond its own min",
            admin_class_name(m->prio),
            (unsigned long long)((m->weight_pages + m->kv_pages) * s->d.page_bytes),
            (double)m->idle_us / 1e6, (double)m->reload_us / 1e6);
        *first = false;
    }
}

/* Its own bring-ups of one kind. */
static void add_own(buf *out, const char *name, const engine_bring_ups *b) {
    buf_add_format(out, ",\"%s\":{\"n\":%llu,\"s\":", name, (unsigned long long)b->n);
    if (b->n > 0)
        buf_add_format(out, "%.6f}", (double)b->us / (double)b->n / 1e6);
    else
        buf_add_str(out, "null}");
}

/* The time from where its weights are now; bring-ups of the other kind say nothing about it. */
typedef struct bring_up {
    bool own, measured;    // its own bring-ups were measured; those of some model were
    double seconds, per_s; // per_s: bytes
} bring_up;

static bring_up time_bring_up(const question *q, const snapshot *s) {
    const engine_bring_ups *own = q->warm ? &q->from_host : &q->from_file,
                           *all = q->warm ? &s->host : &s->file;
    bring_up b = {.own = own->n > 0, .measured = all->n > 0 && all->us > 0};
    b.per_s = b.measured ? (double)all->n / ((double)all->us / 1e6) : (double)PLAN_BYTES_PER_S;
    b.seconds = q->there ? 0.0
                : b.own  ? (double)own->us / (double)own->n / 1e6
                         : (double)q->weight_bytes / b.per_s;
    return b;
}

static void add_bring_up(buf *out, const question *q, const snapshot *s) {
    bring_up b = time_bring_up(q, s);
    const char *basis = q->there     ? "it is there"
                        : b.own      ? "its earlier loads"
                        : b.measured ? "loads of other models"
                                     : "not measured yet, 500 MB/s are assumed";
    buf_add_format(out,
                   ",\"bring_up\":{\"s\":%.6f,\"from\":\"%s\",\"measured\":%s,"
                   "\"bytes_per_s\":%.0f,\"basis\":\"%s\"",
                   b.seconds,
                   q->there  ? "device"
                   : q->warm ? "host"
                             : "file",
                   q->there || b.own ? "true" : "false", b.per_s, basis);
    add_own(out, "file", &q->from_file);
    add_own(out, "host", &q->from_host);
    buf_add_char(out, '}');
}

/* The subject of a question: a served model (slot), or one that was opened for the question. */
typedef struct asked {
    const char *name;
    const model_policy *policy;
    int slot; // REGISTRY_NONE: it is not served
    const model *m;
    int replaces; // slot of the model that it replaces (its guarantees end), or REGISTRY_NONE
    int same_as;  // slot with the same content, or REGISTRY_NONE
} asked;

/* One device's answer. */
typedef struct device_plan {
    snapshot s;
    question q;
    plan_answer p;
    bool done; // s and p are valid
    bool used; // one part is there, or would be
} device_plan;

static void device_plan_deinit(device_plan *d) {
    if (!d->done) return;
    plan_answer_deinit(&d->p);
    snapshot_deinit(&d->s);
}

static question question_of(const asked *k, const snapshot *s, const app *a) {
    question q = {.w.idx = UINT32_MAX, .w.member_idx = UINT32_MAX};
    ask_policy(&q, s, k->name, k->policy);
    if (k->slot != REGISTRY_NONE) {
        ask_of_slot(&q, s, a, (uint32_t)k->slot);
        return q;
    }
    ask_of_file(&q, s, k->m);
    if (k->same_as == REGISTRY_NONE || s->idx_of[k->same_as] == UINT32_MAX) return q;
    ask_of_slot(&q, s, a, (uint32_t)k->same_as);
    q.state = MODEL_NONE;
    q.w.member_idx = UINT32_MAX;
    q.source = WEIGHTS_SHARED;
    return q;
}

/* All models with targets, the wanted one with its new one; none if its step was never measured. */
static void take_tasks(snapshot *s, const app *a, const asked *k, uint32_t device_idx) {
    const app_config *c = a->config;
    fleet_guarantee all[REGISTRY_SLOTS];
    uint32_t wanted = UINT32_MAX;
    for (uint32_t i = 0; i < c->c->n_models; i++) {
        uint32_t slot = (uint32_t)c->slots[i];
        bool its = c->slots[i] == k->slot;
        s->names[i] = c->c->models[i].name;
        all[i] =
            (fleet_guarantee){slot, s->names[i], its ? k->policy : &app_model(a, slot)->policy};
        if (its) wanted = i;
    }
    uint32_t n = fleet_list_tasks(a->fleet, device_idx, all, c->c->n_models, s->tasks);
    for (uint32_t i = 0; i < n; i++)
        if (s->tasks[i].name_idx == wanted) s->d.n_tasks = n;
    s->d.tasks = s->tasks;
    s->d.task_names = s->names;
}

/* False: no memory. */
static bool plan_on(const app *a, const asked *k, uint32_t device_idx, device_plan *out) {
    *out = (device_plan){0};
    if (!take_snapshot(&out->s, a, device_idx, k->replaces)) return false;
    int but = k->slot != REGISTRY_NONE ? k->slot : k->replaces;
    out->s.d.share_percent =
        fleet_share_percent(a->fleet, device_idx, but >= 0 ? (uint32_t)but : UINT32_MAX);
    out->q = question_of(k, &out->s, a);
    take_tasks(&out->s, a, k, device_idx);
    out->done = plan_model_check(&out->s.d, &out->q.w, &out->p);
    if (!out->done) snapshot_deinit(&out->s);
    return out->done;
}

/* The result for all parts: each goes to a device of its own. */
typedef struct verdict {
    uint32_t n_parts, n_fit;
    bool fits, now, slices;
} verdict;

static verdict verdict_of(const app *a, const asked *k, const device_plan *all,
                          const char *problems) {
    enum { FIT, NOW, SLICES, ANSWERS };
    verdict v = {.n_parts = fleet_n_parts(k->policy)};
    uint32_t n_there = 0, there[ANSWERS] = {0}, elsewhere[ANSWERS] = {0};
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        const plan_answer *p = &all[d].p;
        bool is_there = all[d].q.state != MODEL_NONE;
        uint32_t *n = is_there ? there : elsewhere;
        if (!all[d].done) continue; // lost
        n_there += is_there;
        n[FIT] += p->fits;
        n[NOW] += p->fits && p->now;
        n[SLICES] += p->fits && (p->now || p->slices);
    }
    /* Placed parts stay on their devices; other devices count for parts that are not placed. */
    uint32_t n_free = v.n_parts > n_there ? v.n_parts - n_there : 0;
    v.n_fit = there[FIT] + (n_free > 0 ? elsewhere[FIT] : 0);
    for (int i = 0; i < ANSWERS; i++) there[i] += u32_min(elsewhere[i], n_free);
    v.fits = there[FIT] >= v.n_parts && problems[0] == 0;
    v.now = v.fits && there[NOW] >= v.n_parts;
    v.slices = v.fits && !v.now && there[SLICES] >= v.n_parts;
    return v;
}

/* The larger, the better. */
static uint64_t rank_of(const device_plan *d) {
    enum { VICTIMS_MAX = REGISTRY_SLOTS + 1, THERE = 8, NOW = 4, SLICES = 2, FITS = 1 };
    uint64_t worth = d->q.state != MODEL_NONE ? THERE : 0;
    worth += d->p.now ? NOW : d->p.slices ? SLICES : d->p.fits ? FITS : 0;
    return worth * VICTIMS_MAX + (VICTIMS_MAX - 1 - d->p.n_victims);
}

/* Parts that are not placed go to the best of the other devices. */
static void choose_devices(const app *a, const asked *k, device_plan *all) {
    uint32_t n_devices = fleet_n_devices(a->fleet), n_used = 0;
    for (uint32_t d = 0; d < n_devices; d++) {
        all[d].used = all[d].done && all[d].q.state != MODEL_NONE;
        n_used += all[d].used;
    }
    for (uint32_t n = fleet_n_parts(k->policy); n_used < n; n_used++) {
        device_plan *best = NULL;
        for (uint32_t d = 0; d < n_devices; d++) {
            if (!all[d].done || all[d].used) continue; // lost, or chosen
            if (best == NULL || rank_of(&all[d]) > rank_of(best)) best = &all[d];
        }
        if (best == NULL) return;
        best->used = true;
    }
}

/* Of all devices that are used, the best one first. */
static void add_all_victims(buf *out, const app *a, const device_plan *all, uint32_t best) {
    uint32_t n = fleet_n_devices(a->fleet);
    bool first = true;
    buf_add_str(out, ",\"victims\":[");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = i == 0 ? best : i <= best ? i - 1 : i;
        const device_plan *on = &all[d];
        if (on->used)
            add_victims(out, &on->p, &on->s, on->q.w.prio, fleet_device_name(a->fleet, d), &first);
    }
    buf_add_char(out, ']');
}

/* The device that is used and takes the longest to have its part. */
static const device_plan *find_slowest(const app *a, const device_plan *all, uint32_t best) {
    const device_plan *slowest = &all[best];
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        if (!all[d].used || all[d].q.there) continue;
        if (slowest->q.there || time_bring_up(&all[d].q, &all[d].s).seconds >
                                    time_bring_up(&slowest->q, &slowest->s).seconds)
            slowest = &all[d];
    }
    return slowest;
}

static void add_devices(buf *out, const app *a, const device_plan *all, const char *problems) {
    buf_add_str(out, ",\"devices\":[");
    bool first = true;
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++) {
        const plan_answer *p = &all[d].p;
        const char *name = fleet_device_name(a->fleet, d);
        bool fits = p->fits && problems[0] == 0;
        if (!all[d].done) continue; // lost
        buf_add_str(out, first ? "{\"name\":" : ",{\"name\":");
        json_add_string(out, name, strlen(name));
        buf_add_format(out, ",\"used\":%s,\"fits\":%s,\"now\":%s,\"turns\":%s,\"victims\":%u}",
                       all[d].used ? "true" : "false", fits ? "true" : "false",
                       fits && p->now ? "true" : "false", fits && p->slices ? "true" : "false",
                       p->n_victims);
        first = false;
    }
    buf_add_char(out, ']');
}

static void write_plan(buf *out, const app *a, const verdict *v, const device_plan *all,
                       uint32_t best, const char *problems) {
    const device_plan *d = &all[best], *slowest = find_slowest(a, all, best);
    const plan_answer *p = &d->p;
    const question *q = &d->q;
    const char *name = fleet_device_name(a->fleet, best);
    bool none = q->source == WEIGHTS_SHARED && q->there; // none of its own
    unsigned long long n_bytes = none ? 0 : q->weight_bytes;
    buf_add_str(out, "{\"model\":");
    json_add_string(out, q->w.name, strlen(q->w.name));
    buf_add_str(out, ",\"device\":");
    json_add_string(out, name, strlen(name));
    buf_add_format(out,
                   ",\"state\":\"%s\",\"fits\":%s,\"now\":%s,\"turns\":%s,\"parts\":{\"wanted\":%u,"
                   "\"fit\":%u},\"weights\":{\"bytes\":%llu,\"pages\":%u,\"from\":\"%s\",\"file_"
                   "bytes\":%llu,\"factor\":%.2f}",
                   model_state_name(q->state), v->fits ? "true" : "false",
                   v->now ? "true" : "false", v->slices ? "true" : "false", v->n_parts, v->n_fit,
                   n_bytes, n_bytes > 0 ? q->w.weight_pages : 0, source_names[q->source],
                   (unsigned long long)q->file_bytes,
                   q->file_bytes > 0 ? (double)n_bytes / (double)q->file_bytes : 0.0);
    add_checks(out, p, d->s.d.page_bytes);
    add_all_victims(out, a, all, best);
    add_bring_up(out, &slowest->q, &slowest->s);
    add_devices(out, a, all, problems);
    buf_add_str(out, ",\"problems\":");
    admin_add_lines(out, problems, '\n');
    buf_add_char(out, '}');
}

static void answer_plan(http_request *rq, const app *a, const asked *k, const char *problems) {
    uint32_t n = fleet_n_devices(a->fleet), best = UINT32_MAX;
    device_plan *all = calloc(n, sizeof *all);
    buf out = {0};
    bool fine = all != NULL;
    for (uint32_t d = 0; d < n && fine; d++) {
        if (engine_is_lost(fleet_engine(a->fleet, d))) continue;
        fine = plan_on(a, k, d, &all[d]);
        if (fine && (best == UINT32_MAX || rank_of(&all[d]) > rank_of(&all[best]))) best = d;
    }
    if (fine && best != UINT32_MAX) {
        verdict v = verdict_of(a, k, all, problems);
        choose_devices(a, k, all);
        write_plan(&out, a, &v, all, best, problems);
    }
    for (uint32_t d = 0; d < n && all != NULL; d++) device_plan_deinit(&all[d]);
    free(all);
    if (!fine)
        admin_refuse(rq, 503, "server_overloaded", NULL, "no memory for the plan");
    else if (best == UINT32_MAX)
        admin_refuse(rq, 503, "device_lost", NULL, "all devices are lost");
    else
        api_answer_json(rq, 200, &out);
}

static void plan_load(app *a, http_request *rq, const char *name) {
    int idx = config_find_model(a->config->c, name, strlen(name));
    if (idx < 0) {
        char quoted[API_QUOTE_BYTES];
        admin_refuse(rq, 404, "model_not_found", "load", "the model \"%s\" does not exist",
                     api_quote(quoted, name, strlen(name)));
        return;
    }
    int slot = a->config->slots[idx];
    asked k = {.name = a->config->c->models[idx].name,
               .policy = &app_model(a, (uint32_t)slot)->policy,
               .slot = slot,
               .m = app_model(a, (uint32_t)slot)->m,
               .replaces = REGISTRY_NONE,
               .same_as = REGISTRY_NONE};
    answer_plan(rq, a, &k, "");
}

/* ---- models and tenants that do not exist yet ---- */

typedef struct thought {
    app *app;
    http_request *rq; // NULL: its client left
    edit_section section;
    char *name; // owned
} thought;

static void on_gone(http_request *rq) {
    thought *t = rq->user;
    t->rq = NULL;
}

/* For an invalid configuration the answer holds only its problems. */
static void answer_problems(http_request *rq, const thought *t, const char *problems) {
    buf out = {0};
    buf_add_format(&out, "{\"%s\":", t->section == EDIT_MODELS ? "model" : "tenant");
    json_add_string(&out, t->name, strlen(t->name));
    buf_add_format(&out, ",\"fits\":%s,\"problems\":", problems[0] == 0 ? "true" : "false");
    admin_add_lines(&out, problems, '\n');
    buf_add_char(&out, '}');
    api_answer_json(rq, 200, &out);
}

static void answer_model(const thought *t, const change_result *r, const char *problems) {
    const app *a = t->app;
    int idx = config_find_model(r->wanted, t->name, strlen(t->name));
    const registry_opened *o = idx >= 0 ? &r->plan->opened[idx] : NULL;
    if (o == NULL || (o->wanted && o->m == NULL)) {
        answer_problems(t->rq, t, problems);
        return;
    }
    const config_model *m = &r->wanted->models[idx];
    asked k = {.name = m->name,
               .policy = &m->policy,
               .slot = o->wanted ? REGISTRY_NONE : registry_match(&a->models, m),
               .m = o->m,
               .same_as = o->same_as};
    int was = config_find_model(a->config->c, t->name, strlen(t->name));
    k.replaces = k.slot == REGISTRY_NONE && was >= 0 ? a->config->slots[was] : REGISTRY_NONE;
    if (k.slot != REGISTRY_NONE) k.m = app_model(a, (uint32_t)k.slot)->m;
    if (k.m == NULL) { // its file was replaced since then
        answer_problems(t->rq, t, problems);
        return;
    }
    answer_plan(t->rq, a, &k, problems);
}

static void on_thought(void *ctx, const change_result *r) {
    thought *t = ctx;
    inferd_err err = {0};
    buf problems = {0};
    buf_add_str(&problems, r->problems);
    /* Problems for which the running devices would refuse a change. */
    if (r->wanted != NULL && r->problems[0] == 0 &&
        !registry_check(&t->app->models, r->wanted, &err))
        buf_add_format(&problems, "%s\n", err.text);
    if (t->rq != NULL && t->section == EDIT_MODELS && r->wanted != NULL && r->plan != NULL)
        answer_model(t, r, buf_cstr(&problems));
    else if (t->rq != NULL)
        answer_problems(t->rq, t, buf_cstr(&problems));
    buf_deinit(&problems);
    free(t->name);
    free(t);
}

static void plan_element(app *a, http_request *rq, edit_section section, const json_t *element) {
    inferd_err err = {0};
    const char *name = json_string_value(json_object_get(element, "name"));
    const char *member = section == EDIT_MODELS ? "model" : "tenant";
    if (!json_is_object(element) || name == NULL) {
        admin_refuse(rq, 400, "invalid_value", member,
                     "%s: expected an object as in the configuration, with a name", member);
        return;
    }
    thought *t = calloc(1, sizeof *t);
    char *text = json_dumps_whole(element, JSON_COMPACT);
    bool fine = t != NULL && text != NULL && (t->name = strdup(name)) != NULL;
    if (!fine) inferd_fail(&err, INFERD_ENOMEM, "no memory for the plan");
    if (fine) {
        t->app = a;
        t->rq = rq;
        t->section = section;
        change_request change = {.kind = CHANGE_ASK,
                                 .section = section,
                                 .name = name,
                                 .text = {text, strlen(text)},
                                 .done = on_thought,
                                 .ctx = t};
        fine = changer_begin(admin_changer(a->admin), &change, &err) == INFERD_OK;
    }
    free(text);
    if (fine) {
        rq->user = t;
        rq->on_gone = on_gone;
        return;
    }
    if (t != NULL) free(t->name);
    free(t);
    admin_busy(rq, &err);
}

/* Lost devices have no memory to plan with. */
static bool is_open(const fleet *f) {
    for (uint32_t d = 0; d < fleet_n_devices(f); d++)
        if (engine_device_name(fleet_engine(f, d))[0] == 0 && !engine_is_lost(fleet_engine(f, d)))
            return false;
    return true;
}

void admin_plan(void *ctx, http_request *rq) {
    app *a = ctx;
    json_t *body;
    if (!admin_read_body(a, rq, &body)) return;
    const json_t *wanted = json_object_get(body, "model"),
                 *tenant = json_object_get(body, "tenant");
    const json_t *load = json_object_get(body, "load");
    if (!is_open(a->fleet))
        admin_refuse(rq, 503, "device_not_open", NULL,
                     "the device is not open yet, so its memory is not known; ask again");
    else if (json_object_size(body) != 1 || (wanted == NULL && tenant == NULL && load == NULL))
        admin_refuse(rq, 400, "invalid_value", NULL,
                     "the body must have exactly one of model, tenant and load");
    else if (load != NULL && !json_is_string(load))
        admin_refuse(rq, 400, "invalid_value", "load", "load: expected the name of a model");
    else if (load != NULL)
        plan_load(a, rq, json_string_value(load));
    else
        plan_element(a, rq, wanted != NULL ? EDIT_MODELS : EDIT_TENANTS,
                     wanted != NULL ? wanted : tenant);
    json_decref(body);
}
