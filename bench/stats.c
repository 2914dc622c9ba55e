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
    if (s->groups[0] != NULL) s->n_groups = 1;
    if (s->n_groups == 1 && trail_init(&s->kept)) return INFERD_OK;
    return inferd_fail(err, INFERD_ENOMEM, "no memory for figures");
}

void stats_deinit(stats *s) {
    for (uint32_t i = 0; i < s->n_groups; i++) {
        free(s->groups[i]->name);
        free(s->groups[i]);
    }
    s->n_groups = 0;
    trail_deinit(&s->kept);
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

static const char *const KINDS[] = {"class", "model", "priority", "tier", "key", "turn"};

/* The choices of a kind, and which of them a request has. */
static size_t offset_of(const char *by) {
    if (strcmp(by, "model") == 0) return offsetof(bench_class, models);
    if (strcmp(by, "priority") == 0) return offsetof(bench_class, priorities);
    if (strcmp(by, "tier") == 0) return offsetof(bench_class, tiers);
    return offsetof(bench_class, keys);
}
static uint32_t choice_of(const char *by, const request_plan *plan) {
    if (strcmp(by, "model") == 0) return plan->model;
    if (strcmp(by, "priority") == 0) return plan->priority;
    if (strcmp(by, "tier") == 0) return plan->tier;
    return plan->key;
}

static bool has_turns(const stats *s) {
    for (size_t i = 0; i < s->spec->n_classes; i++)
        if (s->spec->classes[i].turns.hi > 1) return true;
    return false;
}

bool stats_group_name(const stats *s, const char *by, const request_plan *plan,
                      char out[GROUP_NAME_BYTES]) {
    const bench_class *c = &s->spec->classes[plan->class_idx];
    bool many = s->spec->n_classes > 1;
    if (strcmp(by, "class") == 0) {
        snprintf(out, GROUP_NAME_BYTES, "%s", c->name);
        return many;
    }
    if (strcmp(by, "turn") == 0) {
        bool is_last = plan->turn >= TURNS_TOLD_MAX;
        snprintf(out, GROUP_NAME_BYTES, "%u%s", is_last ? TURNS_TOLD_MAX + 1 : plan->turn + 1,
                 is_last ? "+" : "");
        return has_turns(s);
    }
    size_t offset = offset_of(by);
    const choices *list = (const choices *)(const void *)((const char *)c + offset);
    uint32_t idx = choice_of(by, plan);
    if (list->n == 0 || !varies(s, offset)) return false;
    if (strcmp(by, "key") == 0) // the key itself is a secret
        snprintf(out, GROUP_NAME_BYTES, "%s%skey%u", many ? c->name : "", many ? "/" : "", idx + 1);
    else
        snprintf(out, GROUP_NAME_BYTES, "%s", list->items[idx].text);
    return true;
}

void stats_groups(stats *s, const request_plan *plan, group *out[GROUPS_PER_REQUEST]) {
    size_t n = 0;
    out[n++] = s->groups[0];
    for (size_t i = 0; i < INFERD_COUNT(KINDS); i++) {
        char name[GROUP_NAME_BYTES];
        if (!stats_group_name(s, KINDS[i], plan, name)) continue;
        out[n] = group_of(s, KINDS[i], name);
        n += out[n] != NULL;
    }
    for (size_t i = 0; i < n; i++) out[i]->n_offered++;
    for (size_t i = n; i < GROUPS_PER_REQUEST; i++) out[i] = NULL;
}

static timeline_bin *bin_of(const stats *s, group *g, uint64_t now_ns) {
    return timeline_at(&g->times, since_ns(s->clock_ns, now_ns));
}

void stats_chunk(const stats *s, group *const groups[GROUPS_PER_REQUEST], uint64_t now_ns) {
    for (size_t i = 0; i < GROUPS_PER_REQUEST && groups[i] != NULL; i++)
        bin_of(s, groups[i], now_ns)->n_chunks++;
}

void stats_gap(const stats *s, group *const groups[GROUPS_PER_REQUEST], uint64_t now_ns,
               uint64_t gap_ns) {
    for (size_t i = 0; i < GROUPS_PER_REQUEST && groups[i] != NULL; i++) {
        hist_add(&groups[i]->itl, gap_ns);
        timeline_bin *bin = bin_of(s, groups[i], now_ns);
        if (gap_ns > bin->gap_max_ns) bin->gap_max_ns = gap_ns;
    }
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

static slo_outcome slo_of(const bench_class *c, const result *r) {
    if (r->outcome == OUTCOME_CUT || (c->slo_ttft_ms <= 0 && c->slo_tpot_ms <= 0)) return SLO_NONE;
    return meets_slo(c, r) ? SLO_MET : SLO_MISSED;
}

static void add_ok(group *g, const bench_class *c, const result *r) {
    uint64_t tpot_ns, n_output = result_n_output(r);
    g->n_ok++;
    if (result_tpot_ns(r, &tpot_ns)) hist_add(&g->tpot, tpot_ns);
    hist_add(&g->e2e, since_ns(r->sched_ns, r->end_ns));
    g->n_prompt_asked += plan_prompt_tokens(&r->plan);
    g->n_output_asked += r->plan.n_output;
    g->n_output += n_output;
    g->n_chunks += r->n_chunks;
    if (r->has_usage) {
        g->n_by_usage++;
        g->n_prompt += (uint64_t)(r->n_prompt > 0 ? r->n_prompt : 0);
        g->n_prompt_asked_of_told += plan_prompt_tokens(&r->plan);
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
    slo_outcome slo = slo_of(c, r);
    if (slo == SLO_NONE) return;
    g->n_slo++;
    if (slo == SLO_MISSED) return;
    g->n_slo_met++;
    g->n_slo_output += result_n_output(r);
}

void stats_finish(stats *s, group *const groups[GROUPS_PER_REQUEST], const result *r) {
    const bench_class *c = &s->spec->classes[r->plan.class_idx];
    double steady = 0;
    if (r->n_chunks > 0) steady = (double)result_n_output(r) * r->n_chunks_steady / r->n_chunks;
    for (size_t i = 0; i < GROUPS_PER_REQUEST && groups[i] != NULL; i++) {
        groups[i]->n_output_steady += steady;
        bin_of(s, groups[i], r->sched_ns)->n_started++;
        bin_of(s, groups[i], r->end_ns)->n_ended++;
        if (r->is_counted)
            add_result(groups[i], c, r);
        else
            groups[i]->n_offered--; // it was in the skipped time
    }
    if (r->is_counted && r->sent_ns != 0 && r->plan.card.is_again) s->n_again++;
    if (r->is_counted && r->end_ns > s->end_ns) s->end_ns = r->end_ns;
    bool has_target = c->slo_ttft_ms > 0 || c->slo_tpot_ms > 0;
    if (r->is_counted && has_target && r->outcome == OUTCOME_CUT) s->n_cut_with_target++;
    if (r->is_counted) trail_add(&s->kept, r, slo_of(c, r), s->clock_ns);
}

bool stats_missed_too_many(const stats *s) {
    const group *all = s->groups[0];
    if (all->n_ok == 0 && all->n_failed < FAILURES_SURE) return false;
    return s->n_missed_max > 0 && all->n_slo - all->n_slo_met >= s->n_missed_max;
}

double stats_wall_s(const stats *s) {
    return (double)since_ns(s->start_ns, s->end_ns) / 1e9;
}

double stats_steady_s(const stats *s) {
    return (double)since_ns(s->steady_from_ns, s->steady_until_ns) / 1e9;
}
