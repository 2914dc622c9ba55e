/* compare.c - the command and its table; see compare.h. */
#include "compare.h"

#include <math.h>
#include <string.h>

#include "interval.h"
#include "options.h"
#include "report.h"
#include "spec_value.h"
#include "trail.h"
#include "utf8.h"

enum { TAIL_VALUES_MIN = 5, COMPARE_SEED = 1 };
static const json_int_t COUNT_MAX = (json_int_t)1 << 50; // of requests or tokens in a file
static const double CACHED_APART_MAX = 5;                // percent of the prompt tokens

typedef struct side {
    json_t *files[BOOT_FILES_MAX]; // owned
    size_t n;
} side;

typedef struct comparison {
    const char *json_path;
    bool is_forced;
    double margin; // part
    uint64_t seed;
    side sides[2];
    json_t *rows; // owned
    size_t n_worse;
} comparison;

/* One line of the table. */
typedef struct figure {
    const char *name;
    compare_column column; // COMPARE_COLUMNS: tokens per second
    boot_stat stat;
    bool more_is_better;
} figure;

static const figure FIGURES[] = {
    {"ttft p50", COLUMN_TTFT, BOOT_P50, false},
    {"ttft p90", COLUMN_TTFT, BOOT_P90, false},
    {"ttft p99", COLUMN_TTFT, BOOT_P99, false},
    {"tpot p50", COLUMN_TPOT, BOOT_P50, false},
    {"tpot p90", COLUMN_TPOT, BOOT_P90, false},
    {"tpot p99", COLUMN_TPOT, BOOT_P99, false},
    {"e2e p50", COLUMN_E2E, BOOT_P50, false},
    {"e2e p90", COLUMN_E2E, BOOT_P90, false},
    {"e2e p99", COLUMN_E2E, BOOT_P99, false},
    {"longest gap p50", COLUMN_LONGEST, BOOT_P50, false},
    {"longest gap p99", COLUMN_LONGEST, BOOT_P99, false},
    {"tokens/s", COMPARE_COLUMNS, BOOT_MEAN, true},
    {"met targets", COLUMN_MET, BOOT_MEAN, true},
};

static const figure FAILED = {"failed %", COMPARE_COLUMNS, BOOT_MEAN, false};

/* Values that a statistic needs to have TAIL_VALUES_MIN of them beyond it. */
static size_t values_needed(boot_stat stat) {
    static const size_t TIMES[BOOT_STATS] = {1, 2, 10, 100};
    return TAIL_VALUES_MIN * TIMES[stat];
}

/* ---- files ---- */

static inferd_status side_read(side *to, const char *paths, inferd_err *err) {
    for (const char *p = paths;;) {
        size_t n = strcspn(p, ",");
        char path[4096];
        if (n == 0 || n >= sizeof path)
            return inferd_fail(err, INFERD_EINVAL, "\"%s\" is no list of files", paths);
        if (to->n == BOOT_FILES_MAX)
            return inferd_fail(err, INFERD_ETOOLONG, "more than %d files", BOOT_FILES_MAX);
        memcpy(path, p, n);
        path[n] = 0;
        inferd_status s = result_read(&to->files[to->n], path, err);
        if (s != INFERD_OK) return s;
        to->n++;
        if (p[n] == 0) return INFERD_OK;
        p += n + 1;
    }
}

static inferd_status loads_check(const comparison *c, inferd_err *err) {
    const json_t *first = c->sides[0].files[0];
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < c->sides[k].n; i++) {
            inferd_status s = result_same_load(first, c->sides[k].files[i], err);
            if (s == INFERD_OK) continue;
            if (!c->is_forced) {
                inferd_context(err, "the results have different loads (--force compares them)");
                return s;
            }
            fprintf(stderr, "! different loads: %s\n", err->text);
        }
    }
    return INFERD_OK;
}

/* ---- values ---- */

/* The counts of all requests of a file, or of a class (class_idx >= 0); NULL: it has none. */
static const json_t *counts_of(const json_t *file, int class_idx) {
    const json_t *groups = json_object_get(file, "groups");
    const json_t *classes = json_object_get(json_object_get(file, "load"), "classes");
    if (class_idx < 0) return json_array_get(groups, 0);
    const json_t *name = json_object_get(json_array_get(classes, (size_t)class_idx), "name");
    for (size_t i = 0; i < json_array_size(groups); i++) {
        const json_t *one = json_array_get(groups, i);
        const char *by = json_string_value(json_object_get(one, "by"));
        if (by != NULL && strcmp(by, "class") == 0 &&
            json_equal(json_object_get(one, "name"), name))
            return one;
    }
    return NULL;
}

static uint64_t count_of(const json_t *counts, const char *object, const char *member) {
    json_int_t n = json_integer_value(json_object_get(json_object_get(counts, object), member));
    return n > 0 && n < COUNT_MAX ? (uint64_t)n : 0;
}

/* Sums a member of an object of a group over the files. */
static uint64_t sum_of(const side *s, int class_idx, const char *object, const char *member) {
    uint64_t sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += count_of(counts_of(s->files[i], class_idx), object, member);
    return sum;
}

static bool pool_of(boot_pool *out, const side *of, compare_column column, int class_idx,
                    const char *name) {
    size_t from[BOOT_FILES_MAX + 1] = {0};
    double *values = malloc(of->n * TRAIL_MAX * sizeof *values);
    *out = (boot_pool){0};
    for (size_t i = 0; values != NULL && i < of->n; i++) {
        double *to = values + from[i];
        from[i + 1] = from[i] + (column == COMPARE_COLUMNS
                                     ? result_rates(of->files[i], name, to)
                                     : result_values(of->files[i], column, class_idx, to));
    }
    bool good = values != NULL && boot_pool_init(out, values, from, of->n);
    if (column != COMPARE_COLUMNS) out->block = 0; // slices are long already
    free(values);
    return good;
}

/* ---- the table ---- */

static void verdict(comparison *c, const figure *f, const boot_ratio *r, char out[64]) {
    double percent = 100 * (r->ratio - 1);
    bool is_more = r->lo > 1, is_less = r->hi < 1,
         is_better = f->more_is_better ? is_more : is_less;
    if (!is_more && !is_less) {
        snprintf(out, 64, "no difference seen");
        return;
    }
    bool is_worse = f->more_is_better ? r->hi < 1 - c->margin : r->lo > 1 + c->margin;
    if (is_worse) c->n_worse++;
    const char *what = is_better ? "better" : is_worse ? "worse" : "worse, within the margin";
    if (isfinite(percent))
        snprintf(out, 64, "%.1f %% %s: %s", fabs(percent), is_more ? "more" : "less", what);
    else
        snprintf(out, 64, "A is 0: %s", what);
}

/* A ratio to 0 has no number in JSON. */
static json_t *number_json(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* False: no memory. */
static bool row_tell(comparison *c, FILE *to, const char *name, const figure *f, const double of[2],
                     const boot_ratio *r) {
    char text[64];
    verdict(c, f, r, text);
    fprintf(to, "  %-16s %10.2f %10.2f %8.3f   %6.3f to %6.3f   %s\n", f->name, of[0], of[1],
            r->ratio, r->lo, r->hi, text);
    json_t *row = json_pack("{s:s,s:s,s:f,s:f,s:o,s:o,s:o,s:s}", "group", name, "figure", f->name,
                            "a", of[0], "b", of[1], "ratio", number_json(r->ratio), "low",
                            number_json(r->lo), "high", number_json(r->hi), "verdict", text);
    return json_array_append_new(c->rows, row) == 0; // also if `row` is NULL
}

/* With several runs of a side the spread between them makes the interval wider. */
static void runs_take(const boot_pool *a, const boot_pool *b, boot_stat stat, double of[2],
                      boot_ratio *r) {
    const boot_pool *pools[] = {a, b};
    double runs[2][BOOT_FILES_MAX];
    if (a->n_files + b->n_files <= 2) return;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < pools[k]->n_files; i++) {
            double figures[BOOT_STATS];
            boot_tell_file(pools[k], i, figures);
            runs[k][i] = figures[stat];
        }
    *r = interval_hull(interval_of_runs(runs[0], a->n_files, runs[1], b->n_files, of), *r);
}

/* The figures of one column, which share their draws. */
static bool column_tell(comparison *c, FILE *to, const char *name, int class_idx,
                        compare_column column) {
    boot_pool a, b;
    bool has_a = pool_of(&a, &c->sides[0], column, class_idx, name);
    bool has_b = pool_of(&b, &c->sides[1], column, class_idx, name), good = true;
    boot_ratio ratios[BOOT_STATS];
    if ((a.n > 0 && !has_a) || (b.n > 0 && !has_b)) good = false; // no memory
    if (has_a && has_b) good = boot_ratios(&a, &b, c->seed, ratios);
    for (size_t i = 0; good && i < INFERD_COUNT(FIGURES); i++) {
        const figure *f = &FIGURES[i];
        double of_a[BOOT_STATS], of_b[BOOT_STATS];
        if (f->column != column || (a.n == 0 && b.n == 0)) continue;
        size_t needed = values_needed(f->stat);
        if (!has_a || !has_b || a.n < needed || b.n < needed) {
            fprintf(to, "  %-16s too few values: %zu and %zu, %zu are needed\n", f->name, a.n, b.n,
                    needed);
            continue;
        }
        boot_tell(&a, of_a);
        boot_tell(&b, of_b);
        double of[2] = {of_a[f->stat], of_b[f->stat]};
        runs_take(&a, &b, f->stat, of, &ratios[f->stat]);
        good = row_tell(c, to, name, f, of, &ratios[f->stat]);
    }
    boot_pool_deinit(&a);
    boot_pool_deinit(&b);
    return good;
}

/* The spread of the part between runs, where both sides have failures: a side without one shows no
 * spread.  Half a request is added, as a part of 0 has no logarithm. */
static void failed_runs_take(const comparison *c, int class_idx, boot_ratio *r) {
    double runs[2][BOOT_FILES_MAX], means[2];
    size_t n[2] = {0};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < c->sides[k].n; i++) {
            const json_t *counts = counts_of(c->sides[k].files[i], class_idx);
            double failed = (double)count_of(counts, "requests", "failed"),
                   ended = failed + (double)count_of(counts, "requests", "ok");
            if (ended > 0) runs[k][n[k]++] = (failed + .5) / (ended + .5);
        }
    if (n[0] == 0 || n[1] == 0 || n[0] + n[1] <= 2) return;
    *r = interval_hull(*r, interval_of_runs(runs[0], n[0], runs[1], n[1], means));
}

/* The part of the ended requests that failed; no row if none did.  A server that refuses requests
 * is not better for those that it answers. */
static bool failed_tell(comparison *c, FILE *to, const char *name, int class_idx) {
    uint64_t failed[2], ended[2];
    for (int k = 0; k < 2; k++) {
        failed[k] = sum_of(&c->sides[k], class_idx, "requests", "failed");
        ended[k] = failed[k] + sum_of(&c->sides[k], class_idx, "requests", "ok");
    }
    if (ended[0] == 0 || ended[1] == 0 || failed[0] + failed[1] == 0) return true;
    boot_ratio r = interval_of_parts(failed[0], ended[0], failed[1], ended[1]);
    if (failed[0] > 0 && failed[1] > 0) failed_runs_take(c, class_idx, &r);
    double of[2];
    for (int k = 0; k < 2; k++) of[k] = 100 * (double)failed[k] / (double)ended[k];
    return row_tell(c, to, name, &FAILED, of, &r);
}

static bool group_tell(comparison *c, FILE *to, const char *name, int class_idx) {
    bool good = true;
    char plain[GROUP_NAME_BYTES + 8]; // the name is of a file
    snprintf(plain, sizeof plain, "%s", name);
    inferd_blank_controls(plain);
    fprintf(to, "\n%s\n  %-16s %10s %10s %8s   %s\n", plain, "", "A", "B", "B / A",
            "95 % interval");
    for (int column = 0; good && column <= COMPARE_COLUMNS; column++)
        good = column_tell(c, to, name, class_idx, (compare_column)column);
    return good && failed_tell(c, to, name, class_idx);
}

static double cached_percent(const side *s) {
    double n_prompt = (double)sum_of(s, -1, "tokens", "prompt_told");
    return n_prompt > 0 ? 100 * (double)sum_of(s, -1, "tokens", "prompt_cached") / n_prompt : 0;
}

static void side_tell(FILE *to, const char *name, const side *s) {
    fprintf(
        to,
        "%s: %zu run%s, %llu requests ok, %llu failed, %llu cut off, %.0f %% of prompts cached\n",
        name, s->n, s->n == 1 ? "" : "s", (unsigned long long)sum_of(s, -1, "requests", "ok"),
        (unsigned long long)sum_of(s, -1, "requests", "failed"),
        (unsigned long long)sum_of(s, -1, "requests", "cut"), cached_percent(s));
}

/* The second run of a seed finds the prompts of the first one in a prefix cache. */
static void caches_tell(FILE *to, const comparison *c) {
    double apart = fabs(cached_percent(&c->sides[0]) - cached_percent(&c->sides[1]));
    if (apart <= CACHED_APART_MAX) return;
    fprintf(to, "! the prefix cache had other parts of the prompts: the same seed sent twice to a "
                "server compares its cache\n");
}

static inferd_status tell(comparison *c, inferd_err *err) {
    bool to_stdout = c->json_path != NULL && strcmp(c->json_path, "-") == 0;
    FILE *to = to_stdout ? stderr : stdout;
    const json_t *classes =
        json_object_get(json_object_get(c->sides[0].files[0], "load"), "classes");
    c->rows = json_array();
    side_tell(to, "A", &c->sides[0]);
    side_tell(to, "B", &c->sides[1]);
    caches_tell(to, c);
    fprintf(to, "bootstrap: seed %llu, %d rounds%s\n", (unsigned long long)c->seed, BOOT_ROUNDS,
            c->sides[0].n > 1 || c->sides[1].n > 1 ? "; t interval over the runs" : "");
    bool good = group_tell(c, to, "all", -1);
    for (size_t i = 0; good && json_array_size(classes) > 1 && i < json_array_size(classes); i++) {
        const json_t *one = json_array_get(classes, i);
        char name[GROUP_NAME_BYTES + 8];
        snprintf(name, sizeof name, "class %.*s", GROUP_NAME_BYTES,
                 json_string_value(json_object_get(one, "name")));
        while (!utf8_valid(name)) name[strlen(name) - 1] = 0; // a character that was cut
        good = group_tell(c, to, name, (int)i);
    }
    fprintf(to, "\nTimes are milliseconds.  %s\n",
            c->sides[0].n > 1 && c->sides[1].n > 1
                ? "Of twenty figures without a difference, about one is outside of its interval by "
                  "chance."
                : "One run of a side does not tell how its runs differ: take several of each.");
    if (!good) return inferd_fail(err, INFERD_ENOMEM, "no memory for the figures");
    if (c->json_path == NULL) return INFERD_OK;
    json_t *root = json_pack("{s:s,s:i,s:I,s:i,s:f,s:I,s:O}", "tool", "inferd-bench compare",
                             "format", 1, "seed", (json_int_t)c->seed, "rounds", BOOT_ROUNDS,
                             "margin", c->margin, "worse", (json_int_t)c->n_worse, "rows", c->rows);
    if (root == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for JSON");
    inferd_status s = report_write(root, NULL, c->json_path, err);
    json_decref(root);
    return s;
}

/* ---- the command ---- */

static option_kind compare_kind(const char *key) {
    static const char *const VALUES[] = {"seed", "margin", "json"};
    for (size_t i = 0; i < INFERD_COUNT(VALUES); i++)
        if (strcmp(key, VALUES[i]) == 0) return OPTION_VALUE;
    return strcmp(key, "force") == 0 ? OPTION_SWITCH : OPTION_UNKNOWN;
}

static inferd_status take_compare(void *ctx, const char *key, const char *value, inferd_err *err) {
    comparison *c = ctx;
    inferd_status s = INFERD_OK;
    if (strcmp(key, "force") == 0) s = value_bool(&c->is_forced, value, err);
    if (strcmp(key, "seed") == 0) s = value_u64(&c->seed, value, err);
    if (strcmp(key, "json") == 0) c->json_path = value;
    if (strcmp(key, "margin") == 0) {
        s = value_number(&c->margin, value, 0, 99, err);
        c->margin /= 100;
    }
    if (s != INFERD_OK) inferd_context(err, "%s", key);
    return s;
}

int compare_command(int argc, char **argv) {
    inferd_err err = {0};
    comparison c = {.seed = COMPARE_SEED};
    inferd_status s = INFERD_OK;
    if (argc < 2 || argv[0][0] == '-' || argv[1][0] == '-')
        s = inferd_fail(&err, INFERD_EINVAL, "compare needs two results, A.json and B.json");
    if (s == INFERD_OK)
        s = options_read(argc - 2, argv + 2, (option_reader){compare_kind, take_compare, &c}, &err);
    for (int k = 0; s == INFERD_OK && k < 2; k++) s = side_read(&c.sides[k], argv[k], &err);
    if (s == INFERD_OK) s = loads_check(&c, &err);
    if (s == INFERD_OK) s = tell(&c, &err);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < c.sides[k].n; i++) json_decref(c.sides[k].files[i]);
    json_decref(c.rows);
    if (s != INFERD_OK) return usage_error(&err);
    return c.n_worse == 0 ? EXIT_ALL_OK : EXIT_SOME_FAILED;
}
