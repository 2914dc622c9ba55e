/* options.c - see experiment.h: the command line. */
#include "experiment.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* Commands in which an option has an effect. */
enum {
    MIX = 1 << EXPERIMENT_MIX,
    SHARES = 1 << EXPERIMENT_SHARES,
    MODELS = 1 << EXPERIMENT_MODELS,
    LOAD = 1 << EXPERIMENT_LOAD,
    EVICT = 1 << EXPERIMENT_EVICT,
    RETRY = 1 << EXPERIMENT_RETRY,
    ALL = (1 << EXPERIMENTS) - 1,
    MIXED = MIX | MODELS,
    TARGETED = MIX | MODELS | LOAD
};

/* Members of an experiment: a number in a range, whole or not, or one of some names; the others
 * have a function. */
typedef enum option_kind { IS_REAL, IS_COUNT, IS_CHOICE, IS_OTHER } option_kind;

/* Its error says what was expected, without the option. */
typedef inferd_status read_f(experiment *e, const char *value, inferd_err *err);

typedef struct option_row {
    const char *name, *value, *help;
    uint32_t commands;
    option_kind kind;
    size_t offset;
    double min, max;
    const char *const *names; // of the values of an enum, NULL behind the last
    read_f *read;
} option_row;

/* ---- values ---- */

static inferd_status read_member(const option_row *o, void *member, const char *value,
                                 inferd_err *err) {
    char *end;
    double x = strtod(value, &end);
    bool whole = o->kind == IS_COUNT;
    if (o->kind == IS_CHOICE) {
        for (int i = 0; o->names[i] != NULL; i++)
            if (strcmp(o->names[i], value) == 0) {
                *(int *)member = i;
                return INFERD_OK;
            }
        return inferd_fail(err, INFERD_EINVAL, "expected %s", o->help);
    }
    if (end == value || *end != 0 || !(x >= o->min && x <= o->max) || (whole && floor(x) != x))
        return inferd_fail(err, INFERD_EINVAL, "expected a %snumber from %.10g to %.10g",
                           whole ? "whole " : "", o->min, o->max);
    if (whole)
        *(uint32_t *)member = (uint32_t)x;
    else
        *(double *)member = x;
    return INFERD_OK;
}

static inferd_status read_trace(experiment *e, const char *value, inferd_err *err) {
    trace_deinit(&e->rows);
    return trace_read(&e->rows, value, err);
}

static inferd_status read_verify(experiment *e, const char *value, inferd_err *err) {
    (void)value, (void)err;
    e->world.verify_iterations = 1;
    return INFERD_OK;
}

/* Opens the file once, so that hours of work do not end with a write error; a file that did not
 * exist is removed again. */
static inferd_status read_json(experiment *e, const char *value, inferd_err *err) {
    bool is_new = access(value, F_OK) != 0;
    FILE *f = fopen(value, "ab");
    if (f == NULL) return inferd_fail(err, INFERD_EIO, "%s", strerror(errno));
    fclose(f);
    if (is_new) unlink(value);
    e->json_path = value;
    return INFERD_OK;
}

/* ---- the table ---- */

enum { TARGET_MS_MAX = 3600000, RUNNING_MAX = 1024, QUEUE_MAX = 1 << 16, STEP_TOKENS_MAX = 8192 };
#define SECONDS_MAX             ((double)WORKLOAD_DURATION_US_MAX / 1e6)
#define REAL(member, min, max)  IS_REAL, offsetof(experiment, member), min, max, NULL, NULL
#define COUNT(member, min, max) IS_COUNT, offsetof(experiment, member), min, max, NULL, NULL
#define CHOICE(member, names)   IS_CHOICE, offsetof(experiment, member), 0, 0, names, NULL
#define OTHER(function)         IS_OTHER, 0, 0, 0, NULL, function

static const char *const MIXES[] = {"z", "m", "b", "g", "adv", "pre", "trace", NULL};
static const char *const LENGTHS[] = {"conv", "code", NULL};

static const option_row OPTIONS[] = {
    {"--models", "N", "how many; `models`: no more are tried (default 128)",
     ALL & ~(SHARES | EVICT), COUNT(n_models, 1, WORKLOAD_MODELS_MAX)},
    {"--mix", "NAME", "z, m (default), b, g, adv, pre, trace", MIXED, CHOICE(mix, MIXES)},
    {"--lambda", "X", "requests a second, of what the mix counts", MIXED,
     REAL(lambda, WORKLOAD_RATE_MIN, WORKLOAD_RATE_MAX)},
    {"--rate", "X", "factor on all rates (default 1)", ALL & ~SHARES,
     REAL(rate_factor, WORKLOAD_RATE_MIN, WORKLOAD_RATE_MAX)},
    {"--load", "X", "the rate at which devices compute X % of the time", MIX,
     REAL(load_percent, 1, 100)},
    {"--lengths", "NAME", "conv (default), code", ALL, CHOICE(lengths, LENGTHS)},
    {"--trace", "FILE", "mix trace: arrivals and lengths", MIXED, OTHER(read_trace)},
    {"--slo-ttft-ms", "N", "targets; default: 5 times a dedicated device", TARGETED,
     COUNT(slo_ttft_ms, 1, TARGET_MS_MAX)},
    {"--slo-tpot-ms", "N", "", TARGETED, COUNT(slo_tpot_ms, 1, TARGET_MS_MAX)},
    {"--host-gb", "X", "host memory for warm weights", ALL, REAL(host_gb, 0, 1e6)},
    {"--running", "N", "sequences in a batch", ALL, COUNT(running_max, 1, RUNNING_MAX)},
    {"--queue", "N", "requests that may wait on a device", ALL & ~SHARES,
     COUNT(queue_len, 1, QUEUE_MAX)},
    {"--step-tokens", "N", "rows of a step at most", ALL, COUNT(step_tokens, 1, STEP_TOKENS_MAX)},
    {"--verify", NULL, "check the counters after every iteration", ALL, OTHER(read_verify)},
    {"--seconds", "X", "of arrivals (default 600)", ALL, REAL(seconds, 0.001, SECONDS_MAX)},
    {"--seeds", "N", "at least 5 (default 5)", ALL,
     COUNT(n_seeds, FIGURES_SEEDS_MIN, FIGURES_SEEDS_MAX)},
    {"--seed0", "N", "the first of them (default 1)", ALL, COUNT(seed0, 0, UINT32_MAX)},
    {"--json", "FILE", "the figures of all seeds, and what was simulated", ALL, OTHER(read_json)},
};

static const option_row *find(const char *name) {
    for (size_t i = 0; i < INFERD_COUNT(OPTIONS); i++)
        if (strcmp(OPTIONS[i].name, name) == 0) return &OPTIONS[i];
    return NULL;
}

void options_help(FILE *out) {
    for (size_t i = 0; i < INFERD_COUNT(OPTIONS); i++) {
        const option_row *o = &OPTIONS[i];
        fprintf(out, "  %-14s%-6s%s", o->name, o->value != NULL ? o->value : "", o->help);
        for (int k = 0; k < EXPERIMENTS && o->commands != ALL; k++)
            if ((o->commands >> k & 1) != 0) fprintf(out, " [%s]", experiment_name(k));
        fputc('\n', out);
    }
}

/* ---- the command line ---- */

static bool has(int argc, char **argv, const char *option) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], option) == 0) return true;
    return false;
}

/* Fails if the command or another option has decided a given option already. */
static inferd_status check_pairs(const experiment *e, int argc, char **argv, inferd_err *err) {
    bool mixes = (MIXED >> e->kind & 1) != 0, traced = e->mix == WORKLOAD_TRACE;
    const struct {
        const char *option;
        bool is_wrong;
        const char *text;
    } rows[] = {
        {"--lambda", traced, "the arrivals are those of --trace"},
        {"--lambda", e->mix == WORKLOAD_ADV, "ADV has rates of its own"},
        {"--rate", has(argc, argv, "--load"), "--load finds the rate"},
        {"--lengths", traced, "the lengths are those of --trace"},
        {"--trace", !traced, "is of --mix trace"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        if (rows[i].is_wrong && has(argc, argv, rows[i].option))
            return inferd_fail(err, INFERD_EINVAL, "%s: %s", rows[i].option, rows[i].text);
    experiment one = *e;
    if (e->kind == EXPERIMENT_MODELS) one.n_models = 1; // the first that is tried
    inferd_status st = mixes ? experiment_check_load(&one, err) : INFERD_OK;
    if (st != INFERD_OK && e->kind == EXPERIMENT_MODELS)
        inferd_context(err, "the search begins with one model");
    return st;
}

inferd_status options_read(experiment *e, int argc, char **argv, inferd_err *err) {
    buf line;
    inferd_status st = INFERD_OK;
    buf_init(&line, 0);
    buf_add_format(&line, "inferd-sim %s", experiment_name(e->kind));
    for (int i = 0; i < argc && st == INFERD_OK; i++) {
        const option_row *o = find(argv[i]);
        if (o == NULL) {
            st = inferd_fail(err, INFERD_EINVAL, "there is no option %s", argv[i]);
        } else if ((o->commands >> e->kind & 1) == 0) {
            st = inferd_fail(err, INFERD_EINVAL, "%s changes nothing here", o->name);
        } else if (o->value != NULL && i + 1 == argc) {
            st = inferd_fail(err, INFERD_EINVAL, "%s without a value", o->name);
        } else {
            const char *value = o->value != NULL ? argv[++i] : "";
            st = o->kind == IS_OTHER ? o->read(e, value, err)
                                     : read_member(o, (char *)e + o->offset, value, err);
            if (st != INFERD_OK) inferd_context(err, "%s is \"%s\"", o->name, value);
            if (o->read != read_json) // where the figures go does not change them
                buf_add_format(&line, o->value != NULL ? " %s %s" : " %s", o->name, value);
        }
    }
    if (st == INFERD_OK) st = check_pairs(e, argc, argv, err);
    free(e->line);
    e->line = line.failed ? NULL : strdup(buf_cstr(&line));
    buf_deinit(&line);
    if (st != INFERD_OK || e->line != NULL) return st;
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the command line");
}

/* "--slo-ttft-ms" is slo_ttft_ms.  A number that is not given and has no default here (the workload
 * or the daemon has one) is null. */
void options_note(const experiment *e, figures *f) {
    if (e->line != NULL) figures_note(f, "options", "command", json_string(e->line));
    if ((MIXED >> e->kind & 1) != 0)
        figures_note(f, "options", "mix", json_string(workload_kind_name(e->mix)));
    for (size_t i = 0; i < INFERD_COUNT(OPTIONS); i++) {
        const option_row *o = &OPTIONS[i];
        const void *at = (const char *)e + o->offset;
        char name[FIGURES_TEXT_BYTES];
        if ((o->commands >> e->kind & 1) == 0 || (o->kind != IS_REAL && o->kind != IS_COUNT))
            continue;
        snprintf(name, sizeof name, "%s", o->name + 2);
        for (char *p = name; *p != 0; p++)
            if (*p == '-') *p = '_';
        double x = o->kind == IS_REAL ? *(const double *)at : *(const uint32_t *)at;
        figures_note(f, "options", name, figures_number(x < o->min ? NAN : x)); // -1, or 0
    }
}
