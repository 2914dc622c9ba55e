/* report_json.c - the report as JSON.  Times are milliseconds; a missing figure is null, so that it
 * cannot be mistaken for zero. */
#include <errno.h>
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

static json_t *tally_json(const tally *t) {
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
                     "finish", tally_json(&g->finishes),                                        //
                     "errors", tally_json(&g->errors),                                          //
                     "error_texts", texts_json(&g->errors));
}

json_t *report_json(const stats *s) {
    json_t *groups = json_array();
    for (uint32_t i = 0; i < s->n_groups; i++)
        json_array_append_new(groups, group_json(s, s->groups[i]));
    return json_pack("{s:s,s:i,s:s,s:I,s:o,s:o,s:o,s:b,s:I,s:b,s:f,s:o}", "tool", "inferd-bench",
                     "format", 1,                            //
                     "url", s->spec->url,                    //
                     "seed", (json_int_t)s->spec->seed,      //
                     "wall_s", rounded(stats_wall_s(s)),     //
                     "steady_s", rounded(stats_steady_s(s)), //
                     "generator_busy",
                     s->cpu_wall_s > 0 ? rounded(s->cpu_s / s->cpu_wall_s) : json_null(), //
                     "interrupted", s->is_interrupted,                                    //
                     "warmup_failed", (json_int_t)s->n_warmup_failed,                     //
                     "groups_dropped", s->groups_dropped,                                 //
                     "histogram_error_max", 0.0039,                                       //
                     "groups", groups);
}

inferd_status report_write(const json_t *root, const char *path, inferd_err *err) {
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *to = to_stdout ? stdout : fopen(path, "we");
    if (to == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    bool good = json_dumpf(root, to, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0;
    good = fputc('\n', to) != EOF && good;
    good = fflush(to) == 0 && good;
    if (!to_stdout) good = fclose(to) == 0 && good;
    return good ? INFERD_OK : inferd_fail(err, INFERD_EIO, "writing %s failed", path);
}
