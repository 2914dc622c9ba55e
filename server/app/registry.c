/* registry.c - see registry.h. */
#include "registry.h"

#include <string.h>

#include "log.h"
#include "model_plan.h"

inferd_status registry_init(registry *r, inferd_err *err) {
    *r = (registry){0};
    r->slots = calloc(REGISTRY_SLOTS, sizeof *r->slots);
    r->names = calloc(REGISTRY_NAMES_MAX, sizeof *r->names);
    r->grammars = grammars_create(GRAMMARS_USED_BYTES_MAX);
    r->transcripts = transcripts_create(0);
    if (r->slots != NULL && r->names != NULL && r->grammars != NULL && r->transcripts != NULL)
        return INFERD_OK;
    registry_deinit(r);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the list of models");
}

static void close_slot(registry *r, registry_slot *s) {
    if (s->m != NULL) { // they read its vocabulary
        grammars_forget(r->grammars, s->m);
        transcripts_forget(r->transcripts, s->m);
    }
    model_close(s->m);
    free(s->name);
    free(s->path);
    free(s->chat_template);
    free(s->tool_format);
    *s = (registry_slot){0};
}

void registry_deinit(registry *r) {
    for (uint32_t i = 0; r->slots != NULL && i < REGISTRY_SLOTS; i++) close_slot(r, &r->slots[i]);
    for (uint32_t i = 0; r->names != NULL && i < r->n_names; i++) free(r->names[i]);
    grammars_destroy(r->grammars);
    transcripts_destroy(r->transcripts);
    free(r->slots);
    free(r->names);
    *r = (registry){0};
}

/* ---- lookup ---- */

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

int registry_match(const registry *r, const config_model *m) {
    for (uint32_t i = 0; i < r->n_used; i++) {
        const registry_slot *s = &r->slots[i];
        if (s->m != NULL && !s->leaving && !s->stale && strcmp(s->name, m->name) == 0 &&
            strcmp(s->path, m->path) == 0 && same_text(s->chat_template, m->chat_template) &&
            same_text(s->tool_format, m->tool_format) && s->max_context == m->max_context)
            return (int)i;
    }
    return REGISTRY_NONE;
}

/* ---- opening ---- */

bool registry_same_content(const model *a, const model *b) {
    bool same = false;
    inferd_err err;
    return model_same_content(a, b, &same, &err) == INFERD_OK &&
           same; // otherwise it has weights of its own
}

static void find_same(registry_plan *p, uint32_t idx) {
    registry_opened *o = &p->opened[idx];
    for (uint32_t i = 0; i < p->n_known && o->same_as == REGISTRY_NONE; i++)
        if (registry_same_content(p->known[i], o->m)) o->same_as = p->known_slots[i];
    for (uint32_t i = 0; i < idx && o->same_as == REGISTRY_NONE && o->same_new == REGISTRY_NONE;
         i++)
        if (p->opened[i].m != NULL && registry_same_content(p->opened[i].m, o->m))
            o->same_new = (int32_t)i;
}

bool registry_plan_init(registry_plan *p, registry *r, const inferd_config *c, const int *slots,
                        uint32_t n_slots) {
    *p = (registry_plan){.c = c, .r = r};
    p->opened = calloc(size_max(c->n_models, 1), sizeof *p->opened);
    p->known = calloc(size_max(n_slots, 1), sizeof *p->known);
    p->known_slots = calloc(size_max(n_slots, 1), sizeof *p->known_slots);
    if (p->opened == NULL || p->known == NULL || p->known_slots == NULL) {
        registry_plan_deinit(p);
        return false;
    }
    for (uint32_t i = 0; i < c->n_models; i++) {
        int slot = registry_match(r, &c->models[i]);
        p->opened[i] = (registry_opened){.wanted = slot == REGISTRY_NONE,
                                         .counted = slot != REGISTRY_NONE,
                                         .slot = slot,
                                         .same_as = REGISTRY_NONE,
                                         .same_new = REGISTRY_NONE};
        if (slot != REGISTRY_NONE) r->slots[slot].n_configs++;
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        if (r->slots[slots[i]].stale) continue;
        p->known[p->n_known] = r->slots[slots[i]].m;
        p->known_slots[p->n_known++] = slots[i];
    }
    return true;
}

static void close_opened(registry_plan *p) {
    for (uint32_t i = 0; p->opened != NULL && i < p->c->n_models; i++) {
        model_close(p->opened[i].m);
        p->opened[i].m = NULL;
    }
}

void registry_plan_deinit(registry_plan *p) {
    close_opened(p);
    for (uint32_t i = 0; p->opened != NULL && i < p->c->n_models; i++)
        if (p->opened[i].counted) registry_drop(p->r, &p->opened[i].slot, 1);
    free(p->opened);
    free(p->known);
    free(p->known_slots);
    *p = (registry_plan){0};
}

/* A vocabulary whose merges name missing tokens gives other ids than the model was trained with, if
 * the tokens are not missing on purpose. */
static void tell_merges(const char *name, const model *m) {
    size_t n = tok_n_merges_dropped(model_tokenizer(m));
    log_line line;
    if (n == 0) return;
    log_begin(&line, LOG_LEVEL_INFO, "merges_left_out");
    log_str(&line, "model", name);
    log_str(&line, "path", model_about(m)->path);
    log_u64(&line, "merges", n);
    log_end(&line);
}

inferd_status registry_open_model(const config_model *m, bool allow_dummy, model **out,
                                  inferd_err *err) {
    model_options options = {.path = m->path,
                             .template_path = m->chat_template,
                             .tool_format = m->tool_format,
                             .context_max = m->max_context,
                             .allow_dummy = allow_dummy};
    inferd_status s = model_open(&options, out, err);
    if (s == INFERD_OK) tell_merges(m->name != NULL ? m->name : "", *out);
    return s;
}

bool registry_plan_open(registry_plan *p, bool allow_dummy, buf *problems) {
    bool fine = true;
    for (uint32_t i = 0; i < p->c->n_models; i++) {
        const config_model *m = &p->c->models[i];
        inferd_err err = {0};
        if (!p->opened[i].wanted) continue;
        if (registry_open_model(m, allow_dummy, &p->opened[i].m, &err) == INFERD_OK) {
            find_same(p, i);
            continue;
        }
        p->opened[i].m = NULL;
        if (p->c->source != NULL)
            buf_add_format(problems, "%s: models[%u]: %s\n", p->c->source, i, err.text);
        else
            buf_add_format(problems, "inferd: %s\n", err.text);
        fine = false;
    }
    if (!fine) close_opened(p);
    return fine;
}

/* ---- applying ---- */

static int number_of_name(const registry *r, const char *name) {
    for (uint32_t i = 0; i < r->n_names; i++)
        if (strcmp(r->names[i], name) == 0) return (int)i;
    return -1;
}

static bool add_names(registry *r, const inferd_config *c, inferd_err *problem) {
    for (uint32_t i = 0; i < c->n_models; i++) {
        if (number_of_name(r, c->models[i].name) >= 0) continue;
        char *name = r->n_names < REGISTRY_NAMES_MAX ? strdup(c->models[i].name) : NULL;
        if (name == NULL) {
            if (r->n_names < REGISTRY_NAMES_MAX)
                inferd_fail(problem, INFERD_ENOMEM, "no memory for the list of models");
            else
                inferd_fail(problem, INFERD_EBUSY,
                            "more than %d different model names since the start: restart",
                            REGISTRY_NAMES_MAX);
            return false;
        }
        r->names[r->n_names++] = name;
    }
    return true;
}

static int find_empty(registry *r, int from) {
    for (int i = from; i < REGISTRY_SLOTS; i++) {
        if (r->slots[i].m != NULL) continue;
        r->n_used = u32_max(r->n_used, (uint32_t)i + 1);
        return i;
    }
    return REGISTRY_NONE;
}

static bool fill_texts(registry_slot *s, const config_model *m) {
    s->name = strdup(m->name);
    s->path = strdup(m->path);
    s->chat_template = m->chat_template != NULL ? strdup(m->chat_template) : NULL;
    s->tool_format = m->tool_format != NULL ? strdup(m->tool_format) : NULL;
    return s->name != NULL && s->path != NULL &&
           (m->chat_template == NULL || s->chat_template != NULL) &&
           (m->tool_format == NULL || s->tool_format != NULL);
}

/* False: no memory, and registry_sweep tries again. */
static bool tell_fleet(registry *r, int slot) {
    registry_slot *s = &r->slots[slot];
    if (r->fleet == NULL) return true;
    s->departures = fleet_model_departures(r->fleet, (uint32_t)slot);
    fleet_model_about about = {.m = s->m,
                               .weight_bytes = plan_prepared_bytes(model_about(s->m)->file_bytes),
                               .same_as =
                                   s->same_as == REGISTRY_NONE ? UINT32_MAX : (uint32_t)s->same_as,
                               .policy = s->policy,
                               .held = s->held};
    s->untold = !fleet_model_add(r->fleet, (uint32_t)slot, &about);
    return !s->untold;
}

/* The configuration's policy, except values set by a command that it has not changed since. */
static model_policy policy_of(const registry_slot *s, const config_model *m) {
    model_policy p = m->policy;
    if (m->policy.pin == s->told.pin && !s->heed_pin) p.pin = s->policy.pin;
    if (m->policy.keep_alive_us == s->told.keep_alive_us && !s->heed_keep_alive)
        p.keep_alive_us = s->policy.keep_alive_us;
    return p;
}

static bool same_guarantees(const model_policy *a, const model_policy *b) {
    return a->slo_tpot_ms == b->slo_tpot_ms && a->share.policy == b->share.policy &&
           a->share.percent == b->share.percent && a->share.n_devices == b->share.n_devices &&
           a->replicas_min == b->replicas_min;
}

/* A share under which a step is known to take longer than slo.tpot_ms.  A share that was set before
 * the step was measured is no reason to refuse another change. */
static bool check_time(const registry *r, int slot, const model_policy *wanted,
                       inferd_err *problem) {
    char text[FEASIBLE_TEXT_BYTES];
    if (same_guarantees(wanted, &r->slots[slot].policy) ||
        !fleet_is_too_slow(r->fleet, (uint32_t)slot, wanted, text, sizeof text))
        return true;
    inferd_fail(problem, INFERD_EINVAL, "%s", text);
    return false;
}

/* For new models no step is measured. */
static bool check_together(const registry *r, const inferd_config *c, const int *stay,
                           inferd_err *problem) {
    fleet_guarantee all[REGISTRY_SLOTS];
    uint32_t n = 0;
    uint64_t tenants_min = 0, new_min = 0;
    for (uint32_t i = 0; i < c->n_models; i++)
        if (stay[i] != REGISTRY_NONE)
            all[n++] =
                (fleet_guarantee){(uint32_t)stay[i], c->models[i].name, &c->models[i].policy};
        else
            new_min += c->models[i].policy.min_bytes;
    for (uint32_t i = 0; i < c->n_tenants; i++) tenants_min += c->tenants[i].policy.min_bytes;
    return fleet_check_weights(r->fleet, all, n, new_min, tenants_min, problem) == INFERD_OK &&
           fleet_check_targets(r->fleet, all, n, problem) == INFERD_OK;
}

static bool check_tenants(const registry *r, const inferd_config *c, inferd_err *problem) {
    uint64_t min = 0, percent = 0;
    for (uint32_t i = 0; i < c->n_tenants; i++) {
        const tenant_policy *p = &c->tenants[i].policy;
        min += p->min_bytes;
        percent += p->share.policy == SHARE_BESTEFFORT ? 0 : p->share.percent;
    }
    if (fleet_check_tenants(r->fleet, min, percent, problem) == INFERD_OK) return true;
    inferd_context(problem, "tenants");
    return false;
}

/* Could the devices keep all of it? stay: [c->n_models] slots; new models (REGISTRY_NONE) are
 * placed where there is room. */
static bool check_policies(const registry *r, const inferd_config *c, const int *stay,
                           inferd_err *problem) {
    uint64_t sums[FLEET_DEVICES_MAX] = {0}, grew = 0;
    uint32_t shares[FLEET_DEVICES_MAX] = {0};
    if (r->fleet == NULL) return true;
    if (!check_tenants(r, c, problem)) return false;
    for (uint32_t i = 0; i < c->n_models; i++) {
        const model_policy *p = &c->models[i].policy;
        if (stay[i] == REGISTRY_NONE) continue;
        fleet_add_shares(r->fleet, (uint32_t)stay[i], p, shares, &grew);
        if (fleet_check_min(r->fleet, (uint32_t)stay[i], p, sums, problem) != INFERD_OK) {
            inferd_context(problem, "models[%u].min", i);
            return false;
        }
        if (!check_time(r, stay[i], p, problem)) {
            inferd_context(problem, "models[%u].slo.tpot_ms", i);
            return false;
        }
    }
    if (fleet_check_shares(r->fleet, shares, grew, problem) == INFERD_OK &&
        check_together(r, c, stay, problem))
        return true;
    inferd_context(problem, "models");
    return false;
}

bool registry_check(const registry *r, const inferd_config *c, inferd_err *problem) {
    int stay[REGISTRY_SLOTS];
    for (uint32_t i = 0; i < c->n_models; i++) stay[i] = registry_match(r, &c->models[i]);
    return check_policies(r, c, stay, problem);
}

/* Guarantees that shrink are set first, to make room for those that grow. */
static void set_policies(registry *r, const inferd_config *c, const registry_opened *opened,
                         const int *slots, bool growing) {
    for (uint32_t i = 0; i < c->n_models; i++) {
        registry_slot *s = &r->slots[slots[i]];
        if (opened[i].wanted) continue;
        model_policy p = policy_of(s, &c->models[i]);
        if ((p.min_bytes > s->policy.min_bytes) != growing) continue;
        bool same = memcmp(&s->policy, &p, sizeof p) == 0;
        s->told = c->models[i].policy;
        s->heed_pin = s->heed_keep_alive = false;
        s->policy = p;
        if (!same && r->fleet != NULL) fleet_model_set_policy(r->fleet, (uint32_t)slots[i], &p);
    }
}

/* Finds slots for all models; slots in use stay.  False: too few, or no memory; all is undone. */
static bool find_slots(registry *r, const inferd_config *c, const registry_opened *opened,
                       int *slots, inferd_err *problem) {
    int empty = 0;
    for (uint32_t i = 0; i < c->n_models; i++) {
        slots[i] = opened[i].m == NULL ? registry_match(r, &c->models[i]) : find_empty(r, empty);
        bool fine = slots[i] != REGISTRY_NONE;
        if (!fine)
            inferd_fail(problem, INFERD_EBUSY,
                        "all %d slots for models are in use: some still finish requests",
                        REGISTRY_SLOTS);
        if (fine && opened[i].m != NULL) {
            empty = slots[i] + 1;
            fine = fill_texts(&r->slots[slots[i]], &c->models[i]);
            if (!fine) inferd_fail(problem, INFERD_ENOMEM, "no memory for the list of models");
        }
        if (fine) continue;
        for (uint32_t k = 0; k <= i; k++)
            if (opened[k].m != NULL && slots[k] != REGISTRY_NONE)
                close_slot(r, &r->slots[slots[k]]);
        return false;
    }
    return true;
}

/* Ends its guarantees; its running work continues. */
static void guarantee_nothing(registry *r, int slot) {
    registry_slot *s = &r->slots[slot];
    model_policy none = s->policy;
    none.min_bytes = 0;
    none.pin = s->told.pin = PIN_NONE;
    none.share.policy = SHARE_BESTEFFORT; // n_devices stays: it sets the number of parts
    none.share.percent = 0;
    if (s->policy.share.policy != SHARE_BESTEFFORT)
        none.weight = u32_max(none.weight, 1); // a weight of 0 is only valid beside a share
    if (memcmp(&none, &s->policy, sizeof none) == 0) return;
    if (r->fleet == NULL || fleet_model_set_policy(r->fleet, (uint32_t)slot, &none))
        s->policy = none;
}

/* Before new models are added: ends the guarantees of those that leave. */
static void release_departing(registry *r, const int *slots, uint32_t n) {
    bool stays[REGISTRY_SLOTS] = {false};
    for (uint32_t i = 0; i < n; i++) stays[slots[i]] = true;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].m != NULL && !r->slots[i].leaving && !stays[i])
            guarantee_nothing(r, (int)i);
}

static bool is_held(const registry *r, int slot) {
    return r->fleet != NULL && fleet_model_is_held(r->fleet, (uint32_t)slot);
}

/* Is another slot of the same name held by an operator?  A hold applies to the name. */
static bool is_name_held(const registry *r, int slot) {
    for (int i = 0; i < (int)r->n_used; i++) {
        const registry_slot *s = &r->slots[i];
        if (i != slot && s->m != NULL && !s->leaving && !s->stale && is_held(r, i) &&
            strcmp(s->name, r->slots[slot].name) == 0)
            return true;
    }
    return false;
}

bool registry_apply(registry *r, registry_plan *p, int *slots, inferd_err *problem) {
    const inferd_config *c = p->c;
    registry_opened *opened = p->opened;
    if (!add_names(r, c, problem) || !find_slots(r, c, opened, slots, problem)) return false;
    int stay[REGISTRY_SLOTS];
    for (uint32_t i = 0; i < c->n_models; i++)
        stay[i] = opened[i].m == NULL ? slots[i] : REGISTRY_NONE;
    if (!check_policies(r, c, stay, problem)) {
        for (uint32_t i = 0; i < c->n_models; i++)
            if (opened[i].m != NULL) close_slot(r, &r->slots[slots[i]]);
        return false;
    }
    release_departing(r, slots, c->n_models);
    set_policies(r, c, opened, slots, false);
    set_policies(r, c, opened, slots, true);
    for (uint32_t i = 0; i < c->n_models; i++) {
        const config_model *m = &c->models[i];
        registry_slot *s = &r->slots[slots[i]];
        s->n_configs++;
        if (opened[i].m == NULL) continue;
        s->m = opened[i].m;
        opened[i].m = NULL;
        s->max_context = m->max_context;
        s->name_idx = (uint32_t)number_of_name(r, m->name);
        s->policy = s->told = m->policy;
        s->held = is_name_held(r, slots[i]);
        s->same_as = opened[i].same_as != REGISTRY_NONE    ? opened[i].same_as
                     : opened[i].same_new != REGISTRY_NONE ? slots[opened[i].same_new]
                                                           : REGISTRY_NONE;
        tell_fleet(r, slots[i]);
    }
    return true;
}

static void make_stale(registry *r, int slot) {
    r->slots[slot].stale = true;
    model_hold_file(r->slots[slot].m, true);
    guarantee_nothing(r, slot);
}

int registry_replace(registry *r, int old, model *m, int same_as, inferd_err *problem) {
    const registry_slot *was = &r->slots[old];
    int slot = find_empty(r, 0);
    if (slot == REGISTRY_NONE) {
        inferd_fail(problem, INFERD_EBUSY,
                    "all %d slots for models are in use: some still finish requests",
                    REGISTRY_SLOTS);
        return REGISTRY_NONE;
    }
    registry_slot *s = &r->slots[slot];
    config_model like = {.name = was->name,
                         .path = was->path,
                         .chat_template = was->chat_template,
                         .tool_format = was->tool_format};
    if (!fill_texts(s, &like)) {
        inferd_fail(problem, INFERD_ENOMEM, "no memory for the list of models");
        close_slot(r, s);
        return REGISTRY_NONE;
    }
    s->m = m;
    s->max_context = was->max_context;
    s->name_idx = was->name_idx;
    s->policy = was->policy;
    s->told = was->told;
    s->same_as = same_as;
    s->held = is_held(r, old);
    make_stale(r, old);
    if (!tell_fleet(r, slot))
        inferd_fail(problem, INFERD_ENOMEM, "no memory to pass the models to the devices");
    return slot; // as after registry_apply: until it is added it answers that it has no device
}

void registry_heed(registry *r, const char *name, bool pin, bool keep_alive) {
    for (uint32_t i = 0; i < r->n_used; i++) {
        registry_slot *s = &r->slots[i];
        if (s->m == NULL || s->leaving || s->stale || strcmp(s->name, name) != 0) continue;
        s->heed_pin = pin;
        s->heed_keep_alive = keep_alive;
    }
}

void registry_try_again(registry *r, int slot) {
    engine_model_info info;
    if (r->fleet == NULL) return;
    fleet_model_get(r->fleet, (uint32_t)slot, &info);
    if (info.state == MODEL_FAILED && !info.held) // the command would end a hold
        fleet_model_do(r->fleet, (uint32_t)slot, ENGINE_RETRY);
}

void registry_count(registry *r, const int *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) r->slots[slots[i]].n_configs++;
}

bool registry_start(registry *r, fleet *f) {
    bool fine = true;
    r->fleet = f;
    for (uint32_t i = 0; i < r->n_used; i++)
        if (r->slots[i].m != NULL) fine = tell_fleet(r, (int)i) && fine;
    return fine;
}

/* ---- leaving ---- */

void registry_drop(registry *r, const int *slots, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        registry_slot *s = &r->slots[slots[i]];
        if (--s->n_configs > 0) continue;
        s->leaving = true;
        model_hold_file(s->m, true); // its running work no longer depends on the path
        if (r->fleet != NULL && !s->untold) fleet_model_remove(r->fleet, (uint32_t)slots[i]);
    }
}

void registry_sweep(registry *r) {
    grammars_trim(r->grammars);
    for (uint32_t i = 0; i < r->n_used; i++) {
        registry_slot *s = &r->slots[i];
        if (s->m != NULL && s->untold && !s->leaving) tell_fleet(r, (int)i);
        if (s->m == NULL || !s->leaving || s->n_generations > 0) continue;
        if (r->fleet != NULL && !s->untold && fleet_model_departures(r->fleet, i) == s->departures)
            continue;
        close_slot(r, s);
    }
}
