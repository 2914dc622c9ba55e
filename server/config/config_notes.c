/* config_notes.c - warnings: valid settings with less effect than they seem to have.
 *
 * One rule, one function; each warns at the first setting that the rule is about, and names the
 * models or tenants that it concerns.  A rule warns only where the configuration alone shows it,
 * and says of the rest under which condition the setting matters. */
#include <stdlib.h>
#include <string.h>

#include "config_options.h"
#include "devices.h"
#include "fleet.h"
#include "model_plan.h"

typedef unsigned long long ull;

enum { DEVICE_PERCENT = 100, NAMES_SHOWN = 3 };

static const char *const class_names[] = {"system", "high", "normal", "batch"};
_Static_assert(INFERD_COUNT(class_names) == GEN_CLASSES, "each class has a name");

/* -- names, and which tenant may use which model -- */

/* "a", "b", "c" and 7 more */
typedef struct name_list {
    char text[160];
    uint32_t n;
} name_list;

static void add_name(name_list *l, const char *name) {
    size_t used = strlen(l->text);
    if (l->n++ < NAMES_SHOWN)
        snprintf(l->text + used, sizeof l->text - used, "%s\"%.32s\"", used > 0 ? ", " : "", name);
}

static void end_names(name_list *l) {
    size_t used = strlen(l->text);
    if (l->n > NAMES_SHOWN)
        snprintf(l->text + used, sizeof l->text - used, " and %u more", l->n - NAMES_SHOWN);
}

static bool is_called(const config_model *m, const char *name) {
    bool is = strcmp(m->name, name) == 0;
    for (uint32_t i = 0; i < m->n_aliases && !is; i++) is = strcmp(m->aliases[i], name) == 0;
    return is;
}

static bool may_use(const config_tenant *t, const config_model *m) {
    bool may = t->n_models == 0;
    for (uint32_t i = 0; i < t->n_models && !may; i++) may = is_called(m, t->models[i]);
    return may;
}

/* -- classes -- */

/* Models of the default class, or of a lower one, are not meant to be urgent. */
static void note_capped_class(const inferd_config *c, uint32_t i, config_report *r) {
    const config_model *m = &c->models[i];
    config_location models = {.name = "models"}, one = {.parent = &models, .index = i};
    config_location at = {.parent = &one, .name = "class"};
    name_list all = {0}, silent = {0};
    uint32_t n_users = 0;
    gen_class best = GEN_BATCH;
    if (m->policy.prio >= GEN_NORMAL) return;
    for (uint32_t k = 0; k < c->n_tenants; k++) {
        const config_tenant *t = &c->tenants[k];
        if (!may_use(t, m)) continue;
        n_users++;
        if (t->max_class < best) best = t->max_class;
        if (t->max_class <= m->policy.prio) continue;
        add_name(&all, t->name);
        if (!t->max_class_given) add_name(&silent, t->name);
    }
    end_names(&all);
    end_names(&silent);
    const char *name = class_names[m->policy.prio];
    if (c->n_tenants == 0 && m->policy.prio < GEN_HIGH)
        config_problem(r, &at, "\"%s\" runs as \"high\", the most urgent class without tenants",
                       name);
    else if (n_users > 0 && all.n == n_users)
        config_problem(r, &at,
                       "\"%s\" runs as \"%s\" at most: by their max_class, no tenant that may use "
                       "the model may ask for more (%s)",
                       name, class_names[best], all.text);
    else if (silent.n > 0)
        config_problem(r, &at, "\"%s\" runs as \"normal\" for the tenants without a max_class: %s",
                       name, silent.text);
}

/* -- weights -- */

/* Models and tenants have shares and weights of the same kind. */
typedef struct owners {
    const char *name, *one; // "models", "model"
    uint32_t n;
} owners;

static const share_spec *share_of(const inferd_config *c, const owners *o, uint32_t i) {
    return o->one[0] == 'm' ? &c->models[i].policy.share : &c->tenants[i].policy.share;
}

static uint32_t weight_of(const inferd_config *c, const owners *o, uint32_t i) {
    return o->one[0] == 'm' ? c->models[i].policy.weight : c->tenants[i].policy.weight;
}

static const char *name_of(const inferd_config *c, const owners *o, uint32_t i) {
    return o->one[0] == 'm' ? c->models[i].name : c->tenants[i].name;
}

/* A weight divides what shares leave, which a fixed share gets nothing of, and which one owner
 * alone gets in any case.  Weight 0 of another policy is a pause.  Of a model, it also counts when
 * an idle one is chosen for eviction. */
static void note_idle_weights(const inferd_config *c, const owners *o, config_report *r) {
    config_location all = {.name = o->name};
    uint32_t n_dividing = 0;
    for (uint32_t i = 0; i < o->n; i++) n_dividing += share_of(c, o, i)->policy != SHARE_FIXED;
    for (uint32_t i = 0; i < o->n; i++) {
        config_location one = {.parent = &all, .index = i};
        config_location at = {.parent = &one, .name = "weight"};
        uint32_t its = weight_of(c, o, i);
        const char *but = o->one[0] == 'm' && o->n > 1 ? ", except on the order of eviction" : "";
        if (its == 1) continue;
        if (share_of(c, o, i)->policy == SHARE_FIXED)
            config_problem(r, &at,
                           "%u has no effect%s: a fixed share gets nothing of the time that shares "
                           "leave",
                           its, but);
        else if (n_dividing == 1 && its != 0)
            config_problem(r, &at,
                           "%u has no effect%s: no other %s gets a part of the time that shares "
                           "leave",
                           its, but, o->one);
    }
}

/* -- shares -- */

/* A request is entitled by the share of its tenant or of its model: of the besteffort owners only
 * those count that have requests without either. */
static bool has_plain_requests(const inferd_config *c, const owners *o, uint32_t i) {
    bool of_models = o->one[0] == 'm';
    if (of_models && c->n_tenants == 0) return true;
    uint32_t n = of_models ? c->n_tenants : c->n_models;
    for (uint32_t k = 0; k < n; k++) {
        const config_tenant *t = &c->tenants[of_models ? k : i];
        const config_model *m = &c->models[of_models ? i : k];
        const share_spec *s = of_models ? &t->policy.share : &m->policy.share;
        if (s->policy == SHARE_BESTEFFORT && may_use(t, m)) return true;
    }
    return false;
}

static void note_full_shares(const inferd_config *c, const owners *o, config_report *r) {
    uint64_t sum = 0, whole = (uint64_t)DEVICE_PERCENT * c->n_devices;
    uint32_t first = UINT32_MAX;
    name_list without = {0};
    for (uint32_t i = 0; i < o->n; i++) sum += share_of(c, o, i)->percent;
    for (uint32_t i = 0; i < o->n && sum >= whole; i++) {
        if (share_of(c, o, i)->policy != SHARE_BESTEFFORT || !has_plain_requests(c, o, i)) continue;
        if (first == UINT32_MAX) first = i;
        add_name(&without, name_of(c, o, i));
    }
    if (first == UINT32_MAX) return;
    end_names(&without);
    config_location all = {.name = o->name}, one = {.parent = &all, .index = first};
    config_location at = {.parent = &one, .name = "share"};
    config_problem(
        r, &at,
        "the shares of the other %s are %llu of %llu percent and leave nothing: while they "
        "are busy, requests of %s wait, except urgent ones within policy.urgent_percent (%u)",
        o->name, (ull)sum, (ull)whole, without.text, c->policy.urgent_percent);
}

/* A percent of devices, and what it is beside urgent work without an end: U percent less. */
typedef struct percent_text {
    char text[64];
} percent_text;

static percent_text say_percent(const inferd_config *c, uint64_t percent) {
    percent_text p;
    uint64_t beside = percent * (DEVICE_PERCENT - c->policy.urgent_percent);
    snprintf(p.text, sizeof p.text, "%llu %%, beside urgent requests %llu.%02llu %%", (ull)percent,
             (ull)beside / DEVICE_PERCENT, (ull)beside % DEVICE_PERCENT);
    return p;
}

static void write_shares_of(const inferd_config *c, const owners *o, buf *out) {
    uint64_t sum = 0, whole = (uint64_t)DEVICE_PERCENT * c->n_devices;
    for (uint32_t i = 0; i < o->n; i++) sum += share_of(c, o, i)->percent;
    if (sum == 0) return;
    buf_add_format(out, "shares of %s, percent of a device (policy.urgent_percent is %u):\n",
                   o->name, c->policy.urgent_percent);
    for (uint32_t i = 0; i < o->n; i++) {
        const share_spec *s = share_of(c, o, i);
        if (s->percent == 0) continue;
        buf_add_format(out, "  %.40s: %s %s\n", name_of(c, o, i),
                       s->policy == SHARE_FIXED ? "exactly" : "at least",
                       say_percent(c, s->percent).text);
    }
    buf_add_format(out, "  left for %s without a share: at least %s\n", o->name,
                   say_percent(c, whole - sum).text);
}

void config_write_shares(const inferd_config *c, buf *out) {
    write_shares_of(c, &(owners){"models", "model", c->n_models}, out);
    write_shares_of(c, &(owners){"tenants", "tenant", c->n_tenants}, out);
}

/* -- memory -- */

static uint64_t pages_up(uint64_t n_bytes) {
    return (n_bytes + FLEET_PAGE_BYTES - 1) / FLEET_PAGE_BYTES * FLEET_PAGE_BYTES;
}

static bool differs(uint64_t given, uint64_t used) {
    enum { PARTS = 100 }; // less than a hundredth does not matter
    uint64_t by = given > used ? given - used : used - given;
    return by > given / PARTS;
}

/* As residency.c counts: a guarantee is rounded up to whole pages and a ceiling down, but not below
 * the guarantee, each part of a model for itself. */
static void note_rounding(const inferd_config *c, uint32_t i, config_report *r) {
    const model_policy *whole = &c->models[i].policy;
    config_location models = {.name = "models"}, one = {.parent = &models, .index = i};
    config_location min = {.parent = &one, .name = "min"}, max = {.parent = &one, .name = "max"};
    uint64_t min_used = 0, max_used = 0;
    for (uint32_t k = 0; k < fleet_n_parts(whole); k++) {
        model_policy p = fleet_part_of(whole, k);
        uint64_t least = pages_up(p.min_bytes), most = p.max_bytes - p.max_bytes % FLEET_PAGE_BYTES;
        min_used += least;
        max_used += most > least ? most : least;
    }
    _Static_assert(FLEET_PAGE_BYTES == 2 << 20, "the texts below say 2MiB");
    if (differs(whole->min_bytes, min_used))
        config_problem(r, &min, "%s is rounded up to %s, to whole pages of 2MiB",
                       config_write_size(whole->min_bytes).text, config_write_size(min_used).text);
    if (whole->max_bytes != 0 && differs(whole->max_bytes, max_used))
        config_problem(r, &max, "%s is rounded %s to %s, to whole pages of 2MiB",
                       config_write_size(whole->max_bytes).text,
                       max_used < whole->max_bytes ? "down" : "up",
                       config_write_size(max_used).text);
}

/* `max` is a bound: above the number of devices it counts as that number. */
static void note_replicas(const inferd_config *c, uint32_t i, config_report *r) {
    uint32_t max = c->models[i].policy.replicas_max;
    config_location models = {.name = "models"}, one = {.parent = &models, .index = i};
    config_location replicas = {.parent = &one, .name = "replicas"};
    config_location at = {.parent = &replicas, .name = "max"};
    if (max > c->n_devices)
        config_problem(r, &at, "%u, and there %s %u device%s: at most %u replica%s", max,
                       c->n_devices == 1 ? "is" : "are", c->n_devices, c->n_devices == 1 ? "" : "s",
                       c->n_devices, c->n_devices == 1 ? "" : "s");
}

/* The largest device; 0: the memory of one is not known before it is open. */
static uint64_t memory_most(const inferd_config *c) {
    uint64_t most = 0;
    for (uint32_t d = 0; d < c->n_devices; d++) {
        bool cpu = c->devices[d].kind != NULL && strcmp(c->devices[d].kind, "cpu") == 0;
        uint64_t its = c->devices[d].memory_bytes;
        if (its == 0 && !cpu) return 0;
        most = u64_max(most, its == 0 ? CPU_MEMORY_BYTES : its);
    }
    return most;
}

/* Prepared weights have about the size of the file: such a model fails when it is brought up. */
static void note_too_large(const inferd_config *c, uint32_t i, uint64_t file_bytes,
                           config_report *r) {
    config_location models = {.name = "models"}, one = {.parent = &models, .index = i};
    config_location at = {.parent = &one, .name = "path"};
    uint64_t most = memory_most(c);
    if (most == 0 || file_bytes <= most) return;
    config_problem(r, &at,
                   "the file has %lluMiB, and %s %lluMiB of memory: the model fails when it is "
                   "brought up; set devices[].memory higher",
                   (ull)(file_bytes >> 20),
                   c->n_devices == 1 ? "the device has" : "the largest device has",
                   (ull)(most >> 20));
}

/* A device with memory of its own keeps evicted weights in its part of the host arena, and reads
 * their file again without room there.  They have about the size of the file. */
static void note_host_arena(const inferd_config *c, const uint64_t *file_bytes, config_report *r) {
    config_location at = {.name = "host_arena"};
    uint32_t largest = 0, n_large = 0, gpu = UINT32_MAX;
    if (file_bytes == NULL || c->host_arena_bytes == CONFIG_HOST_ARENA_AUTO) return;
    for (uint32_t d = c->n_devices; d-- > 0;)
        if (c->devices[d].kind != NULL && strcmp(c->devices[d].kind, "cuda") == 0) gpu = d;
    if (gpu == UINT32_MAX || c->n_models == 0) return;
    uint64_t part = c->host_arena_bytes / c->n_devices;
    for (uint32_t i = 0; i < c->n_models; i++) {
        if (file_bytes[i] > file_bytes[largest]) largest = i;
        n_large += file_bytes[i] > part;
    }
    if (part >= file_bytes[largest]) return;
    double seconds = (double)file_bytes[largest] / (double)PLAN_BYTES_PER_S;
    config_problem(r, &at,
                   "%lluMiB%s hold no copy of models[%u] (%.40s), about %lluMiB, and of %u of %u "
                   "models: evicted from devices[%u], a GPU, such a model is read from its file "
                   "when it comes back, at the file's speed (the largest: %.1f s at %llu MB/s) "
                   "instead of the bus's",
                   (ull)(part >> 20), c->n_devices > 1 ? " for each device" : "", largest,
                   c->models[largest].name, (ull)(file_bytes[largest] >> 20), n_large, c->n_models,
                   gpu, seconds, (ull)(PLAN_BYTES_PER_S / 1000000));
}

/* A daemon that was just installed has none yet. */
static void note_no_models(const inferd_config *c, config_report *r) {
    config_location at = {.name = "models"};
    if (c->n_models > 0) return;
    config_problem(r, &at,
                   "the list is empty: the daemon starts, and /ready is 503 until a reload or a "
                   "restart brings a model");
}

/* -- all -- */

static void note_all(const inferd_config *c, const uint64_t *file_bytes, config_report *r) {
    const owners models = {"models", "model", c->n_models};
    const owners tenants = {"tenants", "tenant", c->n_tenants};
    for (uint32_t i = 0; i < c->n_models; i++) {
        note_replicas(c, i, r);
        note_capped_class(c, i, r);
        note_rounding(c, i, r);
        if (file_bytes != NULL) note_too_large(c, i, file_bytes[i], r);
    }
    note_no_models(c, r);
    note_idle_weights(c, &models, r);
    note_idle_weights(c, &tenants, r);
    note_full_shares(c, &models, r);
    note_full_shares(c, &tenants, r);
    note_host_arena(c, file_bytes, r);
}

void config_write_notes(const inferd_config *c, buf *notes) {
    config_report r = {.problems = notes};
    note_all(c, NULL, &r);
}

uint32_t config_write_warnings(const inferd_config *c, const uint64_t *file_bytes, buf *out) {
    config_report r = {.problems = out, .source = c->source, .warnings = true};
    buf text;
    inferd_err unread;
    buf_init(&text, 0);
    json_lines *lines = NULL;
    if (c->source != NULL && config_read_file(c->source, &text, &unread) == INFERD_OK)
        r.lines = lines = json_lines_create((bytes){text.p, text.n});
    note_all(c, file_bytes, &r);
    json_lines_destroy(lines);
    if (text.p != NULL) explicit_bzero(text.p, text.capacity); // it held keys
    buf_deinit(&text);
    return r.n;
}
