/* stats.c - see stats.h. */
#include "stats.h"

#include <string.h>

static group *group_create(const char *by, const char *name) {
    group *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    g->by = by;
    g->name = strdup(name);
    if (g->name != NULL) return g;
    free(g);
    return NULL;
}

inferd_status stats_init(stats *s, const bench_spec *spec, inferd_err *err) {
    *s = (stats){.spec = spec};
    s->groups[0] = group_create("all", "all");
    if (s->groups[0] == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for figures");
    s->n_groups = 1;
    return INFERD_OK;
}

void stats_deinit(stats *s) {
    for (uint32_t i = 0; i < s->n_groups; i++) {
        free(s->groups[i]->name);
        free(s->groups[i]);
    }
    s->n_groups = 0;
}

/* Finds or makes a group; NULL when there are too many or memory is short, which is reported. */
static group *group_of(stats *s, const char *by, const char *name) {
    for (uint32_t i = 0; i < s->n_groups; i++)
        if (strcmp(s->groups[i]->by, by) == 0 && strcmp(s->groups[i]->name, name) == 0)
            return s->groups[i];
    group *g = s->n_groups < GROUPS_MAX ? group_create(by, name) : NULL;
    if (g == NULL)
        s->groups_dropped = true;
    else
        s->groups[s->n_groups++] = g;
    return g;
}

/* True if the run has more than one name of this kind.  Otherwise the group would equal another. */
static bool varies(const stats *s, size_t member_offset) {
    const char *only = NULL;
    for (size_t i = 0; i < s->spec->n_classes; i++) {
        const bench_class *c = &s->spec->classes[i];
        const choices *list = (const choices *)(const void *)((const char *)c + member_offset);
        if (list->n > 1) return true;
        const char *name = list->n == 0 ? "" : list->items[0].text;
        if (only != NULL && strcmp(only, name) != 0) return true;
        only = name;
    }
    return false;
}

void stats_groups(stats *s, const request_plan *plan, group *out[GROUPS_PER_REQUEST]) {
    const bench_class *c = &s->spec->classes[plan->class_idx];
    const struct {
        const char *by;
        size_t offset;
        uint32_t idx;
    } KINDS[] = {
        {"model", offsetof(bench_class, models), plan->model},
        {"priority", offsetof(bench_class, priorities), plan->priority},
        {"tier", offsetof(bench_class, tiers), plan->tier},
        {"key", offsetof(bench_class, keys), plan->key},
    };
    size_t n = 0;
    out[n++] = s->groups[0];
    if (s->spec->n_classes > 1) out[n] = group_of(s, "class", c->name), n += out[n] != NULL;
    for (size_t i = 0; i < INFERD_COUNT(KINDS); i++) {
        const choices *list = (const choices *)(const void *)((const char *)c + KINDS[i].offset);
        char key_name[96];
        if (list->n == 0 || !varies(s, KINDS[i].offset)) continue;
        const char *name = list->items[KINDS[i].idx].text;
        if (strcmp(KINDS[i].by, "key") == 0) { // the key itself is a secret
            bool many = s->spec->n_classes > 1;
            snprintf(key_name, sizeof key_name, "%s%skey%u", many ? c->name : "", many ? "/" : "",
                     KINDS[i].idx + 1);
            name = key_name;
        }
        out[n] = group_of(s, KINDS[i].by, name);
        n += out[n] != NULL;
    }
    for (size_t i = 0; i < n; i++) out[i]->n_offered++;
    for (size_t i = n; i < GROUPS_PER_REQUEST; i++) out[i] = NULL;
}

void stats_gap(group *const groups[GROUPS_PER_REQUEST], uint64_t gap_ns) {
    for (size_t i = 0; i < GROUPS_PER_REQUEST && groups[i] != NULL; i++)
        hist_add(&groups[i]->itl, gap_ns);
}

static void tally_add(tally *t, const char *name, const char *text) {
    uint32_t i = 0;
    while (i < t->n && strcmp(t->entries[i].name, name) != 0) i++;
    if (i == TALLY_MAX) {
        i = TALLY_MAX - 1;
        snprintf(t->entries[i].name, sizeof t->entries[i].name, "other");
    } else if (i == t->n) {
        t->n++;
        snprintf(t->entries[i].name, sizeof t->entries[i].name, "%s", name);
        snprintf(t->entries[i].text, sizeof t->entries[i].text, "%s", text);
    }
    t->entries[i].n++;
}

/* A request with one output token has no TPOT and cannot miss that target. */
static bool meets_slo(const bench_class *c, const result *r) {
    uint64_t tpot_ns;
    if (r->outcome != OUTCOME_OK || r->first_ns == 0) return false;
    if (c->slo_ttft_ms > 0 && (double)since_ns(r->sched_ns, r->first_ns) > c->slo_ttft_ms * 1e6)
        return false;
    return c->slo_tpot_ms <= 0 || !result_tpot_ns(r, &tpot_ns) ||
           (double)tpot_ns <= c->slo_tpot_ms * 1e6;
}

static void add_ok(group *g, const bench_class *c, const result *r) {
    uint64_t tpot_ns, n_output = result_n_output(r);
    g->n_ok++;
    if (result_tpot_ns(r, &tpot_ns)) hist_add(&g->tpot, tpot_ns);
    hist_add(&g->e2e, since_ns(r->sched_ns, r->end_ns));
    g->n_prompt_asked += r->plan.n_prompt;
    g->n_output_asked += r->plan.n_output;
    g->n_output += n_output;
    if (r->has_usage) {
        g->n_by_usage++;
        g->n_prompt += (uint64_t)(r->n_prompt > 0 ? r->n_prompt : 0);
        g->n_prompt_asked_of_told += r->plan.n_prompt;
        if (r->n_cached > 0) g->n_cached += (uint64_t)r->n_cached;
    } else {
        g->n_by_chunks++;
    }
    if (c->ignore_eos && n_output < r->plan.n_output) g->n_short++;
    if (r->is_textless) g->n_textless++;
    tally_add(&g->finishes, r->finish[0] == 0 ? "none" : r->finish, "");
}

static void add_result(group *g, const bench_class *c, const result *r) {
    if (r->sent_ns != 0) hist_add(&g->late, since_ns(r->sched_ns, r->sent_ns));
    if (r->outcome == OUTCOME_OK) add_ok(g, c, r);
    if (r->outcome != OUTCOME_FAILED) { // times seen before a stream was cut are valid
        if (r->first_ns != 0) hist_add(&g->ttft, since_ns(r->sched_ns, r->first_ns));
        if (r->n_chunks > 1) hist_add(&g->longest, r->gap_max_ns);
    }
    if (r->outcome == OUTCOME_CUT) g->n_cut++;
    if (r->outcome == OUTCOME_FAILED) {
        g->n_failed++;
        tally_add(&g->errors, r->error_code, r->error_text);
    }
    if (r->outcome == OUTCOME_CUT || (c->slo_ttft_ms <= 0 && c->slo_tpot_ms <= 0)) return;
    g->n_slo++;
    if (!meets_slo(c, r)) return;
    g->n_slo_met++;
    g->n_slo_output += result_n_output(r);
}

void stats_finish(stats *s, group *const groups[GROUPS_PER_REQUEST], const result *r) {
    const bench_class *c = &s->spec->classes[r->plan.class_idx];
    double steady = 0;
    if (r->n_chunks > 0) steady = (double)result_n_output(r) * r->n_chunks_steady / r->n_chunks;
    for (size_t i = 0; i < GROUPS_PER_REQUEST && groups[i] != NULL; i++) {
        groups[i]->n_output_steady += steady;
        if (r->is_counted)
            add_result(groups[i], c, r);
        else
            groups[i]->n_offered--; // it was in the skipped time
    }
    if (r->is_counted && r->end_ns > s->end_ns) s->end_ns = r->end_ns;
}

double stats_wall_s(const stats *s) {
    return (double)since_ns(s->start_ns, s->end_ns) / 1e9;
}

double stats_steady_s(const stats *s) {
    return (double)since_ns(s->steady_from_ns, s->steady_until_ns) / 1e9;
}
