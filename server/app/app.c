/* app.c - see app.h. */
#include "app.h"

#include <sys/random.h>
#include <time.h>

#include "app_tell.h"
#include "app_usage.h"
#include "admission.h"
#include "inferd/clock.h"
#include "inferd/hash.h"
#include "log.h"
#include "request_trace.h"
#include "scheduler/queue_slots.h"
#include "unknown.h"

/* ---- configuration ---- */

app_config *app_config_take(app *a) {
    a->config->n_refs++;
    return a->config;
}

static void free_lists(app_config *config) {
    if (config == NULL) return;
    free(config->slots);
    free(config->names);
    free(config->numbers);
    free(config->tenant_at);
    free(config);
}

static void drop_shared(inferd_config *c, uint32_t *n_sharing) {
    if (n_sharing == NULL || --*n_sharing > 0) return;
    config_destroy(c);
    free(n_sharing);
}

void app_config_drop(app_config *config) {
    if (config == NULL || --config->n_refs > 0) return;
    if (config->slots != NULL)
        registry_drop(&config->app->models, config->slots, config->c->n_models);
    drop_shared(config->c, config->n_sharing);
    free_lists(config);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const app_name *)a)->name, ((const app_name *)b)->name);
}

/* Sorted: there may be very many tenants with a list of names each. */
static bool list_names(app_config *config, const inferd_config *c) {
    uint32_t n = c->n_models;
    for (uint32_t i = 0; i < c->n_models; i++) n += c->models[i].n_aliases;
    config->names = calloc(size_max(n, 1), sizeof *config->names);
    if (config->names == NULL) return false;
    for (uint32_t i = 0; i < c->n_models; i++) {
        const config_model *m = &c->models[i];
        config->names[config->n_names++] = (app_name){m->name, i};
        for (uint32_t k = 0; k < m->n_aliases; k++)
            config->names[config->n_names++] = (app_name){m->aliases[k], i};
    }
    if (n > 1) qsort(config->names, n, sizeof *config->names, by_name);
    return true;
}

/* n_sharing is not set yet. */
static app_config *create_config(app *a, const inferd_config *c) {
    app_config *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) return NULL;
    fresh->n_refs = 1;
    fresh->app = a;
    fresh->slots = calloc(size_max(c->n_models, 1), sizeof *fresh->slots);
    if (fresh->slots != NULL && list_names(fresh, c)) return fresh;
    free_lists(fresh);
    return NULL;
}

/* ---- tenants ---- */

typedef struct app_told {
    tenant_policy policy;
    uint64_t devices;
    bool any;
} app_told;

/* The entry of a name in the index of numbers, or the empty entry for it. */
static uint32_t *entry_of(const app *a, const char *name) {
    uint64_t h = hash_bytes(HASH_BEGIN, name, strlen(name));
    for (uint32_t i = (uint32_t)hash_fold(h) & (a->n_tenant_entries - 1);;
         i = (i + 1) & (a->n_tenant_entries - 1)) {
        uint32_t *entry = &a->tenant_entries[i];
        if (*entry == 0 || strcmp(a->tenants[*entry - 1], name) == 0) return entry;
    }
}

/* Room for n more names, with at least half of the index empty; false: no memory. */
static bool grow_tenants(app *a, uint32_t n) {
    uint64_t n_all = (uint64_t)a->n_tenants + n, n_entries = 16;
    char **names = realloc(a->tenants, n_all * sizeof *names);
    if (names == NULL) return false;
    a->tenants = names;
    app_told *told = realloc(a->told, n_all * sizeof *told);
    if (told == NULL) return false;
    a->told = told;
    if (!queue_slots_grow(admission_queue_slots(a->admission), (uint32_t)n_all, 0)) return false;
    while (n_entries < 2 * n_all) n_entries *= 2;
    if (n_entries <= a->n_tenant_entries) return true;
    uint32_t *entries = calloc(n_entries, sizeof *entries);
    if (entries == NULL) return false;
    free(a->tenant_entries);
    a->tenant_entries = entries;
    a->n_tenant_entries = (uint32_t)n_entries;
    for (uint32_t i = 0; i < a->n_tenants; i++) *entry_of(a, a->tenants[i]) = i + 1;
    return true;
}

/* New names get numbers; the configuration stores the numbers of its own tenants. */
static bool add_tenants(app *a, app_config *config, const inferd_config *c) {
    if (c->n_tenants > 0 && !grow_tenants(a, c->n_tenants)) return false;
    config->numbers = calloc(size_max(c->n_tenants, 1), sizeof *config->numbers);
    if (config->numbers == NULL) return false;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        uint32_t *entry = entry_of(a, c->tenants[i].name);
        if (*entry == 0) {
            char *name = strdup(c->tenants[i].name);
            if (name == NULL) return false;
            a->told[a->n_tenants] = (app_told){.any = false};
            a->tenants[a->n_tenants++] = name;
            *entry = a->n_tenants;
        }
        config->numbers[i] = *entry - 1;
    }
    config->n_numbers = a->n_tenants;
    config->tenant_at = calloc(size_max(a->n_tenants, 1), sizeof *config->tenant_at);
    if (config->tenant_at == NULL) return false;
    for (uint32_t i = 0; i < a->n_tenants; i++) config->tenant_at[i] = APP_TENANT_GONE;
    for (uint32_t i = 0; i < c->n_tenants; i++) config->tenant_at[config->numbers[i]] = (int)i;
    return true;
}

int app_tenant(const app_config *config, int number) {
    if (number < 0) return APP_NO_TENANT;
    return (uint32_t)number < config->n_numbers ? config->tenant_at[number] : APP_TENANT_GONE;
}

/* ---- another configuration ---- */

/* Daemons with one fingerprint serve the same files, in any order, with the same program. */
static void set_fingerprint(const app *a, app_config *config) {
    uint64_t sum = hash_bytes(HASH_BEGIN, INFERD_VERSION, strlen(INFERD_VERSION));
    for (uint32_t i = 0; i < config->c->n_models; i++) {
        const registry_slot *s = &a->models.slots[config->slots[i]];
        uint64_t content[2];
        model_content(s->m, content);
        uint64_t h = hash_bytes(HASH_BEGIN, s->name, strlen(s->name) + 1);
        sum += hash_bytes(h, content, sizeof content);
    }
    snprintf(config->fingerprint, sizeof config->fingerprint, "fp_%016llx",
             (unsigned long long)sum);
}

static void keep_queue_slots(app *a);
static void tell_tenants(app *a); // defined below, with access to models

bool app_swap_config(app *a, inferd_config *c, registry_plan *plan, inferd_err *problem) {
    if (a->config != NULL && (a->config->c->n_tenants == 0) != (c->n_tenants == 0)) {
        /* Running requests may have no tenant, or one that is gone. */
        inferd_fail(problem, INFERD_EINVAL,
                    "tenants: a change from none to some, or back, needs a restart");
        return false;
    }
    app_config *fresh = create_config(a, c);
    if (fresh != NULL) fresh->n_sharing = calloc(1, sizeof *fresh->n_sharing);
    bool fine = fresh != NULL && fresh->n_sharing != NULL && add_tenants(a, fresh, c);
    if (!fine) inferd_fail(problem, INFERD_ENOMEM, "no memory for the new configuration");
    fine = fine && admission_update(a->admission, a->tenants, a->n_tenants, c, problem);
    if (!fine || !registry_apply(&a->models, plan, fresh->slots, problem)) {
        inferd_err ignored = {0}; // the old limits fit: there was room for them before
        if (a->config != NULL)
            admission_update(a->admission, a->tenants, a->n_tenants, a->config->c, &ignored);
        if (fresh != NULL) free(fresh->n_sharing);
        free_lists(fresh);
        return false;
    }
    fresh->c = c;
    set_fingerprint(a, fresh);
    *fresh->n_sharing = 1;
    bool first = a->config == NULL; // the devices were started with this policy
    app_config_drop(a->config);
    a->config = fresh;
    engine_limits limits = config_engine_limits(c);
    if (!first && !fleet_set_policy(a->fleet, &limits))
        log_text(LOG_LEVEL_ERROR, "policy", "error", "no memory to pass the policy to the devices");
    tell_tenants(a);
    transcripts_set_bytes_max(a->models.transcripts, c->limits.transcript_bytes_max);
    return true;
}

bool app_swap_slots(app *a, const int *slots) {
    app_config *was = a->config;
    app_config *fresh = create_config(a, was->c);
    if (fresh == NULL || !add_tenants(a, fresh, was->c)) {
        free_lists(fresh);
        return false;
    }
    fresh->c = was->c;
    fresh->n_sharing = was->n_sharing;
    ++*fresh->n_sharing;
    memcpy(fresh->slots, slots, was->c->n_models * sizeof *slots);
    registry_count(&a->models, slots, was->c->n_models);
    set_fingerprint(a, fresh);
    a->config = fresh;
    keep_queue_slots(a); // models keep queue slots by registry slot
    app_config_drop(was);
    return true;
}

void app_note_change(app *a, bool reload, bool ok) {
    journal_add(a->journal, JOURNAL_CONFIG, 1, app_unix_ms(), "%s %s",
                reload ? "a reload of the configuration" : "a change of the configuration",
                ok ? "took effect" : "was refused");
    if (reload)
        metrics_reload(a->metrics, ok);
    else
        metrics_change(a->metrics, ok);
}

/* A tenant's list may name the model or an alias; either admits all names.  NULL: unknown name. */
static const app_name *find_name(const app_config *config, const char *name) {
    app_name key = {.name = name};
    if (config->n_names == 0) return NULL;
    return bsearch(&key, config->names, config->n_names, sizeof key, by_name);
}

bool app_may_use(const app_config *config, int tenant, uint32_t config_idx) {
    if (tenant < 0) return tenant == APP_NO_TENANT;
    const config_tenant *t = &config->c->tenants[tenant];
    for (uint32_t i = 0; i < t->n_models; i++) {
        const app_name *n = find_name(config, t->models[i]);
        if (n != NULL && n->idx == config_idx) return true;
    }
    return t->n_models == 0;
}

/* Devices that have a model that the tenant may use, as bits; `all`: devices with any model. */
static uint64_t devices_of_tenant(const app *a, uint32_t tenant, uint64_t all) {
    const app_config *config = a->config;
    const config_tenant *t = &config->c->tenants[tenant];
    uint64_t bits = 0;
    if (t->n_models == 0) return all;
    for (uint32_t i = 0; i < t->n_models; i++) {
        const app_name *n = find_name(config, t->models[i]);
        if (n != NULL) bits |= fleet_model_devices(a->fleet, (uint32_t)config->slots[n->idx]);
    }
    return bits;
}

/* Ends the guarantees of tenants that the configuration no longer names: their running requests
 * keep their ceiling and share the unguaranteed rest. */
static void release_tenants(app *a) {
    for (uint32_t number = 0; number < a->n_tenants; number++) {
        app_told *was = &a->told[number];
        if (!was->any || app_tenant(a->config, (int)number) >= 0) continue;
        tenant_policy rest = was->policy;
        rest.min_bytes = 0;
        rest.share = (share_spec){.policy = SHARE_BESTEFFORT};
        if (was->policy.share.policy != SHARE_BESTEFFORT)
            rest.weight = u32_max(rest.weight, 1); // a weight of 0 is only valid beside a share
        was->any = !fleet_set_tenant(a->fleet, number, &rest, was->devices);
    }
}

/* Keeps queue slots for all shares of the configuration. */
static void keep_queue_slots(app *a) {
    const app_config *config = a->config;
    uint32_t n_devices = fleet_n_devices(a->fleet);
    queue_slots *p = admission_queue_slots(a->admission); // models by their slots in the registry
    queue_slots_clear(p);
    for (uint32_t i = 0; i < config->c->n_tenants; i++)
        queue_slots_keep(p, QUEUE_TENANT, config->numbers[i], &config->c->tenants[i].policy.share,
                         n_devices);
    for (uint32_t i = 0; i < config->c->n_models; i++)
        queue_slots_keep(p, QUEUE_MODEL, (uint32_t)config->slots[i],
                         &config->c->models[i].policy.share, n_devices);
}

/* Sends the tenants' shares, which apply from the next step on, to the devices with their models.
 * Removed tenants go first, to make room.  Unchanged policies are skipped: there may be many. */
static void tell_tenants(app *a) {
    const app_config *config = a->config;
    uint64_t all = 0;
    release_tenants(a);
    for (uint32_t i = 0; i < config->c->n_models; i++)
        all |= fleet_model_devices(a->fleet, (uint32_t)config->slots[i]);
    for (uint32_t i = 0; i < config->c->n_tenants; i++) {
        uint32_t number = config->numbers[i];
        app_told *was = &a->told[number];
        const tenant_policy *policy = &config->c->tenants[i].policy;
        uint64_t devices = devices_of_tenant(a, i, all);
        if (was->any && was->devices == devices &&
            memcmp(&was->policy, policy, sizeof *policy) == 0)
            continue;
        was->policy = *policy;
        was->devices = devices;
        was->any = fleet_set_tenant(a->fleet, number, policy, devices);
    }
    a->fleet_changes = fleet_n_changes(a->fleet);
    keep_queue_slots(a);
}

/* Logs a move between devices that began or ended. */
static void tell_move(app *a) {
    fleet_moves all;
    log_line line;
    fleet_get_moves(a->fleet, &all);
    if (all.n_notes == a->n_move_notes) return;
    a->n_move_notes = all.n_notes;
    const char *name = app_model(a, all.last.slot)->name;
    log_begin(&line, LOG_LEVEL_INFO, "replica_move");
    log_str(&line, "model", name != NULL ? name : "");
    log_str(&line, "state", fleet_move_state_name(all.last.state));
    log_str(&line, "why", fleet_move_why_name(all.last.why));
    log_str(&line, "from", fleet_device_name(a->fleet, all.last.from));
    log_str(&line, "to", fleet_device_name(a->fleet, all.last.to));
    log_end(&line);
}

static void tell_scales(app *a) {
    fleet_scale scale;
    log_line line;
    while (fleet_next_scale(a->fleet, &scale)) {
        const char *name = app_model(a, scale.slot)->name;
        log_begin(&line, LOG_LEVEL_INFO, "replica_scale");
        log_str(&line, "model", name != NULL ? name : "");
        log_str(&line, "step", scale.more ? "more" : "less");
        log_str(&line, "device", fleet_device_name(a->fleet, scale.device_idx));
        log_u64(&line, "replicas", scale.n_replicas);
        log_end(&line);
    }
}

void app_look_at_fleet(app *a, uint64_t now_us) {
    fleet_tick(a->fleet, now_us);
    tell_move(a);
    tell_scales(a);
    if (fleet_n_devices(a->fleet) > 1 && fleet_n_changes(a->fleet) != a->fleet_changes)
        tell_tenants(a);
}

int app_find_model(const app_config *config, int tenant, const char *name, size_t n,
                   uint32_t *config_idx) {
    int found = config_find_model(config->c, name, n);
    if (found < 0 || !app_may_use(config, tenant, (uint32_t)found)) return -1;
    if (config_idx != NULL) *config_idx = (uint32_t)found;
    return config->slots[found];
}

const char *app_only_model(const app_config *config, int tenant) {
    const char *only = NULL;
    for (uint32_t i = 0; i < config->c->n_models; i++) {
        if (!app_may_use(config, tenant, i)) continue;
        if (only != NULL) return NULL;
        only = config->c->models[i].name;
    }
    return only;
}

void app_list_models(const app_config *config, int tenant, char *text, size_t text_bytes) {
    enum { SHOWN = 6 };
    const inferd_config *c = config->c;
    uint32_t n = 0;
    size_t used = 0;
    for (uint32_t i = 0; i < c->n_models; i++) {
        if (!app_may_use(config, tenant, i) || ++n > SHOWN || used >= text_bytes) continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%.60s", n > 1 ? ", " : "",
                                 c->models[i].name);
    }
    if (n > SHOWN && used < text_bytes)
        snprintf(text + used, text_bytes - used, " and %u more", n - SHOWN);
    if (n == 0) snprintf(text, text_bytes, "none for this key");
}

/* ---- parts ---- */

void app_set_http(app *a, http_server *http) {
    a->http = http;
}

void app_set_http_admin(app *a, http_server *http) {
    a->http_admin = http;
}

void app_set_watchdog(app *a, const struct watchdog *watchdog) {
    a->watchdog = watchdog;
}

void app_set_admin(app *a, struct admin *ad) {
    a->admin = ad;
}

/* ---- life ---- */

uint32_t app_n_slots(const engine_limits *l) {
    return l->running_max + l->queue_len_max;
}

static bool create_slots(app *a, const engine_limits *l) {
    a->n_slots = app_n_slots(l);
    a->slots = calloc(a->n_slots, sizeof *a->slots);
    for (uint32_t i = 0; a->slots != NULL && i < a->n_slots; i++) a->slots[i].next_free = i + 1;
    return a->slots != NULL;
}

static bool create_queue(app *a, const engine_limits *l) {
    queue_slots_init(admission_queue_slots(a->admission), app_n_slots(l));
    return queue_slots_grow(admission_queue_slots(a->admission), 0, REGISTRY_SLOTS);
}

/* Guarantees that were accepted but that no device keeps: placement has the reason. */
static void tell_unplaced(const app *a) {
    for (uint32_t i = 0; i < a->config->c->n_models; i++) {
        const char *problem = fleet_placement_problem(a->fleet, (uint32_t)a->config->slots[i]);
        log_line line;
        if (problem[0] == 0) continue;
        log_begin(&line, LOG_LEVEL_ERROR, "no_place");
        log_str(&line, "model", a->config->c->models[i].name);
        log_str(&line, "problem", problem);
        log_end(&line);
    }
}

static inferd_status create_parts(app *a, const app_options *o, inferd_err *err) {
    inferd_status st = registry_init(&a->models, err);
    if (st != INFERD_OK) return st;
    a->disk = o->disk;
    if (o->scope_secret != NULL)
        memcpy(a->scope_secret, o->scope_secret, sizeof a->scope_secret);
    else if (getrandom(a->scope_secret, sizeof a->scope_secret, 0) !=
             (ssize_t)sizeof a->scope_secret)
        return inferd_fail(err, INFERD_EIO, "getrandom failed");
    a->routes = o->routes;
    a->n_routes = o->n_routes;
    a->metrics = metrics_create(REGISTRY_NAMES_MAX, o->routes, o->n_routes);
    a->device_recent = device_recent_create(fleet_n_devices(o->fleet));
    a->unknown_names = unknown_names_create();
    a->history = history_create();
    a->journal = journal_create();
    a->told_preempts = calloc((size_t)REGISTRY_SLOTS * GEN_PREEMPTS, sizeof *a->told_preempts);
    if (a->history == NULL || a->journal == NULL || a->told_preempts == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the front thread");
    if (a->metrics == NULL || a->device_recent == NULL || a->unknown_names == NULL ||
        !create_slots(a, &o->config->limits.engine))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the front thread");
    st = admission_create(o->config->state_dir, a->n_slots, REGISTRY_NAMES_MAX, &a->admission, err);
    if (st != INFERD_OK) return st;
    if (!create_queue(a, &o->config->limits.engine))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the front thread");
    if (!app_swap_config(a, o->config, o->plan, err)) return err->status;
    bool fine = registry_start(&a->models, a->fleet);
    tell_unplaced(a);
    tell_tenants(a); // after the placement of their models
    a->started = a->config->c;
    a->started_sharing = a->config->n_sharing;
    ++*a->started_sharing;
    if (fine) return INFERD_OK;
    return inferd_fail(err, INFERD_ENOMEM, "no memory to pass the models to the engine");
}

inferd_status app_create(const app_options *options, app **out, inferd_err *err) {
    app *a = calloc(1, sizeof *a);
    *out = NULL;
    if (a == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the front thread");
    a->fleet = options->fleet;
    a->tracer = options->tracer;
    for (uint32_t d = 0; d < fleet_n_devices(a->fleet); d++)
        snprintf(a->kinds[d], sizeof a->kinds[d], "%s", options->devices[d].backend.kind);
    a->started_unix_s = (int64_t)time(NULL);
    list_node_init(&a->generations);
    list_node_init(&a->dirty);
    inferd_status s = create_parts(a, options, err);
    if (s != INFERD_OK && a->config != NULL) { // the caller keeps what it passed
        free(a->config->n_sharing);
        free_lists(a->config);
        a->config = NULL;
        a->started_sharing = NULL;
    }
    *out = a;
    return s;
}

void app_destroy(app *a) {
    if (a == NULL) return;
    INFERD_CHECK(list_empty(&a->generations));
    for (uint32_t i = 0; a->slots != NULL && i < a->n_slots; i++)
        request_trace_forget(a->slots[i].trace);
    for (uint32_t i = 0; i < a->n_tenants; i++) free(a->tenants[i]);
    free(a->tenants);
    free(a->tenant_entries);
    free(a->told);
    free(a->slots);
    metrics_destroy(a->metrics);
    device_recent_destroy(a->device_recent);
    history_destroy(a->history);
    journal_destroy(a->journal);
    free(a->told_preempts);
    unknown_names_destroy(a->unknown_names);
    admission_destroy(a->admission);
    a->models.fleet = NULL; // it may be freed already
    app_config_drop(a->config);
    drop_shared(a->started, a->started_sharing);
    registry_deinit(&a->models);
    free(a);
}

void app_drain(app *a) {
    a->draining = true;
    journal_add(a->journal, JOURNAL_DRAIN, 1, app_unix_ms(),
                "the daemon drains: it accepts no new requests and ends");
    a->refuses_work = a->http == NULL || !http_is_passed(a->http);
    if (a->http != NULL) http_drain(a->http);
    if (a->http_admin != NULL) http_drain(a->http_admin);
}

uint32_t app_n_running(const app *a) {
    return a->n_generations;
}
