/* report_json.c - the report as JSON.  Times are milliseconds; a missing figure is null, so that it
 * cannot be mistaken for zero. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "report.h"

static json_t *rounded(double value) {
    return json_real((double)(long long)(value * 1e6 + 0.5) / 1e6);
}

static json_t *hist_json(const hist *h) {
    if (h->n == 0) return json_null();
    return json_pack("{s:I,s:o,s:o,s:o,s:o,s:o,s:o}", "n", (json_int_t)h->n, //
                     "mean", rounded(hist_mean(h) / 1e6),                    //
                     "min", rounded((double)h->min / 1e6),                   //
                     "p50", rounded((double)hist_at(h, 0.5) / 1e6),          //
                     "p90", rounded((double)hist_at(h, 0.9) / 1e6),          //
                     "p99", rounded((double)hist_at(h, 0.99) / 1e6),         //
                     "max", rounded((double)h->max / 1e6));
}

json_t *report_tally(const tally *t) {
    json_t *object = json_object();
    for (uint32_t i = 0; i < t->n; i++)
        json_object_set_new(object, t->entries[i].name, json_integer((json_int_t)t->entries[i].n));
    return object;
}

/* The first text of each error. */
static json_t *texts_json(const tally *t) {
    json_t *object = json_object();
    for (uint32_t i = 0; i < t->n; i++)
        json_object_set_new(object, t->entries[i].name, json_string(t->entries[i].text));
    return object;
}

static json_t *rate(double n, double over_s) {
    return over_s > 0 ? rounded(n / over_s) : json_null();
}

static json_t *tokens_json(const group *g) {
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}",                          //
                     "prompt_asked", (json_int_t)g->n_prompt_asked,                    //
                     "prompt_asked_where_told", (json_int_t)g->n_prompt_asked_of_told, //
                     "prompt_told", (json_int_t)g->n_prompt,                           //
                     "prompt_cached", (json_int_t)g->n_cached,                         //
                     "output_asked", (json_int_t)g->n_output_asked,                    //
                     "output", (json_int_t)g->n_output,                                //
                     "requests_counted_by_usage", (json_int_t)g->n_by_usage,           //
                     "requests_counted_by_chunks", (json_int_t)g->n_by_chunks,         //
                     "requests_short", (json_int_t)g->n_short);
}

static json_t *goodput_json(const group *g, double wall_s) {
    if (g->n_slo == 0) return json_null();
    return json_pack("{s:I,s:I,s:o,s:o,s:o}", "requests", (json_int_t)g->n_slo, //
                     "met", (json_int_t)g->n_slo_met,                           //
                     "attainment", rounded((double)g->n_slo_met / (double)g->n_slo),
                     "requests_per_s", rate((double)g->n_slo_met, wall_s), //
                     "output_tokens_per_s", rate((double)g->n_slo_output, wall_s));
}

static json_t *group_json(const stats *s, const group *g) {
    double wall_s = stats_wall_s(s), steady_s = stats_steady_s(s);
    json_t *requests = json_pack("{s:I,s:I,s:I,s:I,s:I}", "offered", (json_int_t)g->n_offered, //
                                 "ok", (json_int_t)g->n_ok,                                    //
                                 "failed", (json_int_t)g->n_failed,                            //
                                 "cut", (json_int_t)g->n_cut,                                  //
                                 "textless", (json_int_t)g->n_textless);
    json_t *per_s =
        json_pack("{s:o,s:o,s:o,s:o}", "requests", rate((double)g->n_ok, wall_s), "prompt_tokens",
                  rate((double)g->n_prompt, g->n_by_usage > 0 ? wall_s : 0), "output_tokens",
                  rate((double)g->n_output, wall_s), //
                  "output_tokens_steady", rate(g->n_output_steady, steady_s));
    json_t *ms = json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "ttft", hist_json(&g->ttft), //
                           "itl", hist_json(&g->itl),                                //
                           "tpot", hist_json(&g->tpot),                              //
                           "e2e", hist_json(&g->e2e),                                //
                           "longest_gap", hist_json(&g->longest),                    //
                           "sent_late", hist_json(&g->late));
    return json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "by", g->by, "name", g->name, //
                     "requests", requests,                                                      //
                     "ms", ms,                                                                  //
                     "per_s", per_s,                                                            //
                     "tokens", tokens_json(g),                                                  //
                     "goodput", goodput_json(g, wall_s),                                        //
                     "finish", report_tally(&g->finishes),                                      //
                     "errors", report_tally(&g->errors),                                        //
                     "error_texts", texts_json(&g->errors));
}

/* Figures of all requests under the names that vLLM's `vllm bench serve` writes. */
static void add_times(json_t *to, const char *name, const hist *h) {
    static const char *const KINDS[] = {"mean", "median", "std", "p99"};
    const double VALUES[] = {hist_mean(h), (double)hist_at(h, .5), hist_deviation(h),
                             (double)hist_at(h, .99)};
    for (size_t i = 0; i < INFERD_COUNT(KINDS); i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s_ms", KINDS[i], name);
        json_object_set_new(to, key, h->n == 0 ? json_null() : rounded(VALUES[i] / 1e6));
    }
}

static void add_common_names(json_t *to, const stats *s) {
    const group *all = s->groups[0];
    double wall_s = stats_wall_s(s);
    const choices *models = &s->spec->classes[0].models;
    if (s->spec->n_classes == 1 && models->n == 1)
        json_object_set_new(to, "model_id", json_string(models->items[0].text));
    json_object_set_new(to, "num_prompts", json_integer((json_int_t)all->n_offered));
    json_object_set_new(to, "completed", json_integer((json_int_t)all->n_ok));
    json_object_set_new(to, "failed", json_integer((json_int_t)all->n_failed));
    json_object_set_new(to, "duration", rounded(wall_s));
    json_object_set_new(to, "total_input_tokens", json_integer((json_int_t)all->n_prompt));
    json_object_set_new(to, "total_output_tokens", json_integer((json_int_t)all->n_output));
    json_object_set_new(to, "request_throughput", rate((double)all->n_ok, wall_s));
    json_object_set_new(to, "output_throughput", rate((double)all->n_output, wall_s));
    json_object_set_new(to, "total_token_throughput",
                        rate((double)(all->n_prompt + all->n_output), wall_s));
    if (all->n_slo > 0)
        json_object_set_new(to, "request_goodput", rate((double)all->n_slo_met, wall_s));
    add_times(to, "ttft", &all->ttft);
    add_times(to, "tpot", &all->tpot);
    add_times(to, "itl", &all->itl);
}

/* ---- details ---- */

static json_t *milliseconds(bool exists, double ms) {
    return exists ? json_real(round(ms * 1e3) / 1e3) : json_null();
}

static json_t *samples_json(const stats *s) {
    static const char *const COLUMNS[] = {"class",  "start_s",        "ttft_ms", "tpot_ms",
                                          "e2e_ms", "longest_gap_ms", "met",     "output_tokens"};
    enum { N = INFERD_COUNT(COLUMNS) };
    json_t *columns[N], *root = json_object();
    for (size_t k = 0; k < N; k++) columns[k] = json_array();
    for (size_t i = 0; i < s->kept.n; i++) {
        const trail_row *r = &s->kept.rows[i];
        bool is_ok = r->outcome == OUTCOME_OK, is_whole = r->outcome != OUTCOME_FAILED;
        json_t *const VALUES[N] = {
            json_integer(r->class_idx),
            milliseconds(true, r->sched_s),
            milliseconds(is_whole && r->first_ms >= 0, r->first_ms),
            milliseconds(r->tpot_ms >= 0, r->tpot_ms),
            milliseconds(is_ok, r->end_ms),
            milliseconds(is_whole && r->longest_ms >= 0, r->longest_ms),
            r->slo == SLO_NONE ? json_null() : json_integer(r->slo == SLO_MET),
            json_integer((json_int_t)r->n_output),
        };
        for (size_t k = 0; k < N; k++) json_array_append_new(columns[k], VALUES[k]);
    }
    json_object_set_new(root, "n", json_integer((json_int_t)s->kept.n));
    json_object_set_new(root, "of", json_integer((json_int_t)s->kept.n_seen));
    for (size_t k = 0; k < N; k++) json_object_set_new(root, COLUMNS[k], columns[k]);
    return root;
}

/* Output tokens per second in each bin. */
static json_t *rates_json(const group *g, uint64_t bin_ns) {
    timeline t = g->times;
    double per_chunk = g->n_chunks > 0 ? (double)g->n_output / (double)g->n_chunks : 1;
    json_t *list = json_array();
    timeline_widen(&t, TIMELINE_BINS, bin_ns);
    for (uint32_t i = 0; i < t.n; i++)
        json_array_append_new(list, milliseconds(true, (double)t.bins[i].n_chunks * per_chunk /
                                                           ((double)t.bin_ns / 1e9)));
    return list;
}

static json_t *timeline_json(const stats *s) {
    json_t *tokens = json_object();
    uint64_t bin_ns = u64_max(s->groups[0]->times.bin_ns, TIMELINE_BIN_NS);
    for (uint32_t i = 0; i < s->n_groups; i++) {
        const group *g = s->groups[i];
        char name[GROUP_NAME_BYTES + 8];
        snprintf(name, sizeof name, "class %.*s", GROUP_NAME_BYTES, g->name);
        if (i == 0 || strcmp(g->by, "class") == 0)
            json_object_set_new(tokens, i == 0 ? "all" : name, rates_json(g, bin_ns));
    }
    return json_pack(
        "{s:o,s:o,s:o,s:o}", "bin_s", rounded((double)bin_ns / 1e9), "steady_from_s",
        rounded((double)since_ns(s->clock_ns, s->steady_from_ns) / 1e9), "steady_until_s",
        rounded((double)since_ns(s->clock_ns, s->steady_until_ns) / 1e9), "tokens", tokens);
}

json_t *report_details(const stats *s) {
    return json_pack("{s:o,s:o}", "timeline", timeline_json(s), "samples", samples_json(s));
}

/* ---- all ---- */

json_t *report_json(const stats *s) {
    json_t *groups = json_array();
    for (uint32_t i = 0; i < s->n_groups; i++)
        json_array_append_new(groups, group_json(s, s->groups[i]));
    json_t *root = json_pack("{s:s,s:i,s:s,s:I,s:o,s:o,s:o,s:b,s:I,s:I,s:b,s:f,s:o,s:o}", "tool",
                             "inferd-bench", "format", 1,            //
                             "url", s->spec->url,                    //
                             "seed", (json_int_t)s->spec->seed,      //
                             "wall_s", rounded(stats_wall_s(s)),     //
                             "steady_s", rounded(stats_steady_s(s)), //
                             "generator_busy",
                             s->cpu_wall_s > 0 ? rounded(s->cpu_s / s->cpu_wall_s) : json_null(), //
                             "interrupted", s->is_interrupted,                                    //
                             "warmup_failed", (json_int_t)s->n_warmup_failed,                     //
                             "prompts_again", (json_int_t)s->n_again,                             //
                             "groups_dropped", s->groups_dropped,                                 //
                             "histogram_error_max", 0.0039,                                       //
                             "load", bench_spec_json(s->spec), "groups", groups);
    if (root != NULL) add_common_names(root, s);
    return root;
}

/* The text of `details` without its first brace, behind the members of `root`. */
static bool write_joined(FILE *to, const json_t *root, const json_t *details) {
    const size_t FLAGS = JSON_REAL_PRECISION(12);
    if (details == NULL) return json_dumpf(root, to, FLAGS | JSON_INDENT(2)) == 0;
    char *text = json_dumps(root, FLAGS | JSON_INDENT(2));
    char *more = json_dumps(details, FLAGS | JSON_COMPACT);
    bool good = text != NULL && more != NULL;
    if (good) good = fprintf(to, "%.*s,\n  %s", (int)(strlen(text) - 2), text, more + 1) > 0;
    free(text);
    free(more);
    return good;
}

inferd_status report_write(const json_t *root, const json_t *details, const char *path,
                           inferd_err *err) {
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *to = to_stdout ? stdout : fopen(path, "we");
    if (to == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    bool good = write_joined(to, root, details);
    good = fputc('\n', to) != EOF && good;
    good = fflush(to) == 0 && good;
    if (!to_stdout) good = fclose(to) == 0 && good;
    return good ? INFERD_OK : inferd_fail(err, INFERD_EIO, "writing %s failed", path);
}
