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

/* IS_REAL and IS_COUNT are members of an experiment with a range; the others have a function. */
typedef enum option_kind { IS_REAL, IS_COUNT, IS_VERIFY, IS_OTHER } option_kind;

typedef inferd_status read_f(experiment *e, const char *option, const char *value, inferd_err *err);

typedef struct option_row {
    const char *name, *value, *help;
    uint32_t commands;
    option_kind kind;
    size_t offset;
    double min, max;
    read_f *read;
} option_row;

static inferd_status bad(inferd_err *err, const char *option, const char *value,
                         const char *expected) {
    return inferd_fail(err, INFERD_EINVAL, "%s is \"%s\", expected %s", option, value, expected);
}

/* ---- values ---- */

static inferd_status read_number(const char *option, const char *value, double min, double max,
                                 bool whole, double *out, inferd_err *err) {
    char *end;
    *out = strtod(value, &end);
    if (end != value && *end == 0 && *out >= min && *out <= max && (!whole || floor(*out) == *out))
        return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "%s is \"%s\", expected a %snumber from %.10g to %.10g",
                       option, value, whole ? "whole " : "", min, max);
}

static inferd_status read_mix(experiment *e, const char *option, const char *value,
                              inferd_err *err) {
    char name[32];
    snprintf(name, sizeof name, "mix-%s", value);
    if (workload_kind_parse(value, &e->mix) || workload_kind_parse(name, &e->mix)) return INFERD_OK;
    return bad(err, option, value, "z, m, b, g, adv, pre or trace");
}

static inferd_status read_trace(experiment *e, const char *option, const char *value,
                                inferd_err *err) {
    trace_deinit(&e->rows);
    inferd_status st = trace_read(&e->rows, value, err);
    if (st != INFERD_OK) inferd_context(err, "%s", option);
    return st;
}

static inferd_status read_device(experiment *e, const char *option, const char *value,
                                 inferd_err *err) {
    e->preset = sim_preset_find(value);
    if (e->preset != NULL) e->shape = sim_shape_find(e->preset->model);
    return e->preset != NULL ? INFERD_OK : bad(err, option, value, sim_preset_names());
}

static inferd_status read_lengths(experiment *e, const char *option, const char *value,
                                  inferd_err *err) {
    e->lengths = strcmp(value, "code") == 0 ? LENGTHS_CODE : LENGTHS_CONV;
    bool good = e->lengths == LENGTHS_CODE || strcmp(value, "conv") == 0;
    return good ? INFERD_OK : bad(err, option, value, "conv or code");
}

static inferd_status read_seed0(experiment *e, const char *option, const char *value,
                                inferd_err *err) {
    double x = 0;
    inferd_status st = read_number(option, value, 0, UINT32_MAX, true, &x, err);
    e->seed0 = (uint64_t)x;
    return st;
}

/* Opens the file once, so that hours of work do not end with a write error; a file that did not
 * exist is removed again. */
static inferd_status read_json(experiment *e, const char *option, const char *value,
                               inferd_err *err) {
    bool is_new = access(value, F_OK) != 0;
    FILE *f = fopen(value, "ab");
    if (f == NULL) return inferd_fail(err, INFERD_EIO, "%s %s: %s", option, value, strerror(errno));
    fclose(f);
    if (is_new) unlink(value);
    e->json_path = value;
    return INFERD_OK;
}

/* ---- the table ---- */

enum { TARGET_MS_MAX = 3600000, RUNNING_MAX = 1024, QUEUE_MAX = 1 << 16, STEP_TOKENS_MAX = 8192 };
#define SECONDS_MAX             ((double)WORKLOAD_DURATION_US_MAX / 1e6)
#define REAL(member, min, max)  IS_REAL, offsetof(experiment, member), min, max, NULL
#define COUNT(member, min, max) IS_COUNT, offsetof(experiment, member), min, max, NULL
#define OTHER(function)         IS_OTHER, 0, 0, 0, function

static const option_row OPTIONS[] = {
    {"--device", "NAME", "h100-80 (default), h200-141, cpu-small", ALL, OTHER(read_device)},
    {"--models", "N", "how many; `models`: no more are tried (default 128)",
     ALL & ~(SHARES | EVICT), COUNT(n_models, 1, WORKLOAD_MODELS_MAX)},
    {"--mix", "NAME", "z, m (default), b, g, adv, pre, trace", MIXED, OTHER(read_mix)},
    {"--lambda", "X", "requests a second, of what the mix counts", MIXED,
     REAL(lambda, WORKLOAD_RATE_MIN, WORKLOAD_RATE_MAX)},
    {"--rate", "X", "factor on all rates (default 1)", ALL & ~SHARES,
     REAL(rate_factor, WORKLOAD_RATE_MIN, WORKLOAD_RATE_MAX)},
    {"--load", "X", "the rate at which devices compute X % of the time", MIX,
     REAL(load_percent, 1, 100)},
    {"--lengths", "NAME", "conv (default), code", ALL, OTHER(read_lengths)},
    {"--trace", "FILE", "mix trace: arrivals and lengths", MIXED, OTHER(read_trace)},
    {"--slo-ttft-ms", "N", "targets; default: 5 times a dedicated device", TARGETED,
     COUNT(slo_ttft_ms, 1, TARGET_MS_MAX)},
    {"--slo-tpot-ms", "N", "", TARGETED, COUNT(slo_tpot_ms, 1, TARGET_MS_MAX)},
    {"--host-gb", "X", "host memory for warm weights", ALL, REAL(host_gb, 0, 1e6)},
    {"--running", "N", "sequences in a batch", ALL, COUNT(running_max, 1, RUNNING_MAX)},
    {"--queue", "N", "requests that may wait on a device", ALL & ~SHARES,
     COUNT(queue_len, 1, QUEUE_MAX)},
    {"--step-tokens", "N", "rows of a step at most", ALL, COUNT(step_tokens, 1, STEP_TOKENS_MAX)},
    {"--verify", NULL, "check the counters after every iteration", ALL, IS_VERIFY, 0, 0, 0, NULL},
    {"--seconds", "X", "of arrivals (default 600)", ALL, REAL(seconds, 0.001, SECONDS_MAX)},
    {"--seeds", "N", "at least 5 (default 5)", ALL,
     COUNT(n_seeds, FIGURES_SEEDS_MIN, FIGURES_SEEDS_MAX)},
    {"--seed0", "N", "the first of them (default 1)", ALL, OTHER(read_seed0)},
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
            if ((o->commands >> k & 1) != 0) fprintf(out, " [%s]", experiment_names[k]);
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

static inferd_status read_one(experiment *e, const option_row *o, const char *value,
                              inferd_err *err) {
    void *member = (char *)e + o->offset;
    double x = 0;
    if (o->kind == IS_OTHER) return o->read(e, o->name, value, err);
    if (o->kind == IS_VERIFY) {
        e->world.verify_iterations = 1;
        return INFERD_OK;
    }
    inferd_status st = read_number(o->name, value, o->min, o->max, o->kind == IS_COUNT, &x, err);
    if (st == INFERD_OK && o->kind == IS_REAL) *(double *)member = x;
    if (st == INFERD_OK && o->kind == IS_COUNT) *(uint32_t *)member = (uint32_t)x;
    return st;
}

inferd_status options_read(experiment *e, int argc, char **argv, inferd_err *err) {
    buf line;
    inferd_status st = INFERD_OK;
    buf_init(&line, 0);
    buf_add_format(&line, "inferd-sim %s", experiment_names[e->kind]);
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
            st = read_one(e, o, value, err);
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
