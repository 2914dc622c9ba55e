/* options.c - see options.h. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* REAL and COUNT are members of an experiment; the others have their own function. */
typedef enum option_kind { IS_SWITCH, IS_REAL, IS_COUNT, IS_OTHER } option_kind;

typedef struct option_row {
    const char *name;
    uint32_t bit;
    option_kind kind;
    size_t offset;
    double min, max;
} option_row;

#define REAL(name, bit, member, min, max)                                                          \
    { name, bit, IS_REAL, offsetof(experiment, member), min, max }
#define COUNT(name, bit, member, min, max)                                                         \
    { name, bit, IS_COUNT, offsetof(experiment, member), min, max }

enum { TARGET_MS_MAX = 3600000, RUNNING_MAX = 1024, QUEUE_MAX = 1 << 16, STEP_TOKENS_MAX = 8192 };
#define SECONDS_MIN 0.001
#define SECONDS_MAX ((double)WORKLOAD_DURATION_US_MAX / 1e6)
#define HOST_GB_MAX 1e6

static const option_row OPTIONS[] = {
    {"--device", OPTION_DEVICE, IS_OTHER, 0, 0, 0},
    COUNT("--devices", OPTION_DEVICES, n_devices, 1, WORLD_DEVICES_MAX),
    {"--shape", OPTION_SHAPE, IS_OTHER, 0, 0, 0},
    COUNT("--models", OPTION_MODELS, n_models, 1, WORKLOAD_MODELS_MAX),
    {"--mix", OPTION_MIX, IS_OTHER, 0, 0, 0},
    REAL("--zipf", OPTION_ZIPF, zipf, 0, WORKLOAD_ZIPF_MAX),
    REAL("--cv", OPTION_CV, cv, WORKLOAD_CV_MIN, WORKLOAD_CV_MAX),
    {"--attacks", OPTION_ATTACKS, IS_OTHER, 0, 0, 0},
    REAL("--lambda", OPTION_LAMBDA, lambda, WORKLOAD_RATE_MIN, WORKLOAD_RATE_MAX),
    REAL("--rate", OPTION_RATE, rate_factor, WORKLOAD_RATE_MIN, WORKLOAD_RATE_MAX),
    REAL("--load", OPTION_LOAD, load_percent, 1, 100),
    {"--lengths", OPTION_LENGTHS, IS_OTHER, 0, 0, 0},
    {"--trace", OPTION_TRACE, IS_OTHER, 0, 0, 0},
    REAL("--slo-scale", OPTION_SLO_SCALE, slo_scale, SLO_SCALE_MIN, SLO_SCALE_MAX),
    COUNT("--slo-ttft-ms", OPTION_SLO_TTFT, slo_ttft_ms, 1, TARGET_MS_MAX),
    COUNT("--slo-tpot-ms", OPTION_SLO_TPOT, slo_tpot_ms, 1, TARGET_MS_MAX),
    REAL("--host-gb", OPTION_HOST, host_gb, 0, HOST_GB_MAX),
    COUNT("--running", OPTION_RUNNING, running_max, 1, RUNNING_MAX),
    COUNT("--queue", OPTION_QUEUE, queue_len, 1, QUEUE_MAX),
    COUNT("--step-tokens", OPTION_STEP_TOKENS, step_tokens, 1, STEP_TOKENS_MAX),
    {"--cache-all", OPTION_CACHE_ALL, IS_SWITCH, 0, 0, 0},
    {"--verify", OPTION_VERIFY, IS_SWITCH, 0, 0, 0},
    REAL("--seconds", OPTION_SECONDS, seconds, SECONDS_MIN, SECONDS_MAX),
    COUNT("--requests", OPTION_REQUESTS, n_requests, 1, WORLD_RECORDS_MAX),
    COUNT("--seeds", OPTION_SEEDS, n_seeds, FIGURES_SEEDS_MIN, FIGURES_SEEDS_MAX),
    {"--seed0", OPTION_SEED0, IS_OTHER, 0, 0, 0},
    {"--json", OPTION_JSON, IS_OTHER, 0, 0, 0},
    {"--svg", OPTION_SVG, IS_OTHER, 0, 0, 0},
};

static inferd_status bad(inferd_err *err, const char *option, const char *value,
                         const char *expected) {
    return inferd_fail(err, INFERD_EINVAL, "%s is \"%s\", expected %s", option, value, expected);
}

/* ---- values ---- */

static inferd_status read_count(const char *option, const char *value, uint64_t min, uint64_t max,
                                uint64_t *out, inferd_err *err) {
    char *end;
    errno = 0;
    *out = strtoull(value, &end, 10);
    if (errno == 0 && end != value && *end == 0 && value[0] != '-' && *out >= min && *out <= max)
        return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "%s is \"%s\", expected a number from %llu to %llu",
                       option, value, (unsigned long long)min, (unsigned long long)max);
}

static inferd_status read_real(const option_row *o, const char *value, double *out,
                               inferd_err *err) {
    char *end;
    *out = strtod(value, &end);
    if (end != value && *end == 0 && isfinite(*out) && *out >= o->min && *out <= o->max)
        return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "%s is \"%s\", expected a number from %.10g to %.10g",
                       o->name, value, o->min, o->max);
}

static inferd_status read_mix(const char *value, workload_kind *out, inferd_err *err) {
    static const char *const PREFIXES[] = {"", "mix-"};
    char name[32];
    for (size_t i = 0; i < INFERD_COUNT(PREFIXES); i++) {
        snprintf(name, sizeof name, "%s%s", PREFIXES[i], value);
        if (workload_kind_parse(name, out)) return INFERD_OK;
    }
    return bad(err, "--mix", value, "z, m, b, g, adv, pre or trace");
}

static inferd_status read_attacks(const char *value, uint32_t *out, inferd_err *err) {
    const char *p = value;
    *out = 0;
    while (*p != 0) {
        size_t n = strcspn(p, ","), k = 0;
        while (k < EXPERIMENT_ATTACKS && (strlen(experiment_attack_names[k]) != n ||
                                          memcmp(p, experiment_attack_names[k], n) != 0))
            k++;
        if (k == EXPERIMENT_ATTACKS || (*out & 1u << k) != 0 || (p[n] == ',' && p[n + 1] == 0))
            break;
        *out |= 1u << k;
        p += n + (p[n] == ',');
    }
    if (*p == 0 && *out != 0) return INFERD_OK;
    return bad(err, "--attacks", value, "some of flood,short,long,storm, each once");
}

static inferd_status read_trace(experiment *e, const char *path, inferd_err *err) {
    if (e->n_traces == WORKLOAD_TRACES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "--trace: more than %d", WORKLOAD_TRACES_MAX);
    inferd_status st = trace_read(&e->traces[e->n_traces], path, err);
    if (st == INFERD_OK)
        e->n_traces++;
    else
        inferd_context(err, "--trace");
    return st;
}

static inferd_status read_other(experiment *e, const option_row *o, const char *value,
                                inferd_err *err) {
    switch (o->bit) {
    case OPTION_MIX:
        return read_mix(value, &e->mix, err);
    case OPTION_ATTACKS:
        return read_attacks(value, &e->attacks, err);
    case OPTION_TRACE:
        return read_trace(e, value, err);
    case OPTION_SEED0:
        return read_count(o->name, value, 0, UINT32_MAX, &e->seed0, err);
    case OPTION_DEVICE:
        e->preset = sim_preset_find(value);
        return e->preset != NULL ? INFERD_OK : bad(err, o->name, value, sim_preset_names());
    case OPTION_SHAPE:
        e->shape = sim_shape_find(value);
        return e->shape != NULL ? INFERD_OK : bad(err, o->name, value, sim_shape_names());
    case OPTION_LENGTHS:
        if (strcmp(value, "conv") != 0 && strcmp(value, "code") != 0)
            return bad(err, o->name, value, "conv or code");
        e->lengths = strcmp(value, "conv") == 0 ? LENGTHS_CONV : LENGTHS_CODE;
        return INFERD_OK;
    case OPTION_JSON:
        e->json_path = value;
        return INFERD_OK;
    default:
        INFERD_CHECK(o->bit == OPTION_SVG);
        e->svg_path = value;
        return INFERD_OK;
    }
}

static inferd_status read_value(experiment *e, const option_row *o, const char *value,
                                inferd_err *err) {
    char *base = (char *)e;
    if (o->kind == IS_OTHER) return read_other(e, o, value, err);
    if (o->kind == IS_REAL) return read_real(o, value, (double *)(void *)(base + o->offset), err);
    uint64_t n = 0;
    inferd_status st = read_count(o->name, value, (uint64_t)o->min, (uint64_t)o->max, &n, err);
    *(uint32_t *)(void *)(base + o->offset) = (uint32_t)n;
    return st;
}

/* ---- combinations ---- */

/* Fails if the command or another option has decided a given option already. */
static inferd_status check_pairs(const experiment *e, uint32_t taken, uint32_t given,
                                 inferd_err *err) {
    bool mixes = (taken & OPTION_MIX) != 0, traced = e->n_traces > 0;
    bool zipf = e->mix == WORKLOAD_MIX_Z || e->mix == WORKLOAD_TRACE;
    bool timed = mixes ? zipf && traced : traced && (taken & OPTION_REQUESTS) != 0;
    uint32_t targets = OPTION_SLO_TTFT | OPTION_SLO_TPOT;
    if ((taken & OPTION_SHAPE) == 0 && (given & OPTION_DEVICES) != 0 && // churn: no steps
        (e->n_devices < CHURN_DEVICES_MIN || e->n_devices > CHURN_DEVICES_MAX))
        return inferd_fail(err, INFERD_EINVAL, "--devices is %u, expected %d to %d", e->n_devices,
                           CHURN_DEVICES_MIN, CHURN_DEVICES_MAX);
    const struct {
        uint32_t bit;
        bool is_wrong;
        const char *text;
    } rows[] = {
        {OPTION_ZIPF, mixes && !zipf, "--zipf is of --mix z and trace"},
        {OPTION_CV, mixes && e->mix != WORKLOAD_MIX_G, "--cv is of --mix g"},
        {OPTION_ATTACKS, mixes && e->mix != WORKLOAD_ADV, "--attacks is of --mix adv"},
        {OPTION_LAMBDA, timed, "--lambda: the arrivals are those of --trace"},
        {OPTION_LAMBDA, mixes && e->mix == WORKLOAD_ADV, "--lambda: ADV has rates of its own"},
        {OPTION_RATE, (given & OPTION_LOAD) != 0, "--rate: --load finds the rate"},
        {OPTION_LENGTHS, traced, "--lengths: the lengths are those of --trace"},
        {OPTION_SLO_SCALE, (given & targets) == targets,
         "--slo-scale: --slo-ttft-ms and --slo-tpot-ms are the targets"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        if ((given & rows[i].bit) != 0 && rows[i].is_wrong)
            return inferd_fail(err, INFERD_EINVAL, "%s", rows[i].text);
    return mixes ? experiment_check_load(e, err) : INFERD_OK;
}

/* Opens the file once, so that hours of work do not end with a write error; a file that did not
 * exist is removed again.  `out` is its status. */
static inferd_status try_file(const char *option, const char *path, bool *out_new, struct stat *out,
                              inferd_err *err) {
    *out_new = access(path, F_OK) != 0;
    FILE *f = fopen(path, "ab");
    if (f == NULL || fstat(fileno(f), out) != 0) {
        inferd_fail(err, INFERD_EIO, "%s %s: %s", option, path, strerror(errno));
        if (f != NULL) fclose(f);
        *out_new = false;
        return err->status;
    }
    fclose(f);
    return INFERD_OK;
}

static inferd_status check_files(const experiment *e, inferd_err *err) {
    bool new_json = false, new_svg = false;
    struct stat json, svg;
    inferd_status st = INFERD_OK;
    if (e->json_path != NULL) st = try_file("--json", e->json_path, &new_json, &json, err);
    if (st == INFERD_OK && e->svg_path != NULL)
        st = try_file("--svg", e->svg_path, &new_svg, &svg, err);
    if (st == INFERD_OK && e->json_path != NULL && e->svg_path != NULL && S_ISREG(json.st_mode) &&
        json.st_dev == svg.st_dev && json.st_ino == svg.st_ino)
        st =
            inferd_fail(err, INFERD_EINVAL, "--json and --svg are the same file, %s", e->json_path);
    if (new_json) unlink(e->json_path);
    if (new_svg) unlink(e->svg_path);
    return st;
}

/* ---- the command line ---- */

static const option_row *find(const char *name) {
    for (size_t i = 0; i < INFERD_COUNT(OPTIONS); i++)
        if (strcmp(OPTIONS[i].name, name) == 0) return &OPTIONS[i];
    return NULL;
}

/* Output paths do not belong to the line. */
static void add_to_line(buf *line, const option_row *o, const char *value) {
    if (o->bit == OPTION_JSON || o->bit == OPTION_SVG) return;
    buf_add_format(line, " %s", o->name);
    if (value != NULL) buf_add_format(line, " %s", value);
}

static inferd_status read_one(experiment *e, uint32_t taken, int argc, char **argv, int *i,
                              buf *line, uint32_t *given, inferd_err *err) {
    const option_row *o = find(argv[*i]);
    if (o == NULL) return inferd_fail(err, INFERD_EINVAL, "there is no option %s", argv[*i]);
    if ((o->bit & taken) == 0)
        return inferd_fail(err, INFERD_EINVAL, "%s changes nothing here", o->name);
    *given |= o->bit;
    if (o->bit == OPTION_CACHE_ALL) e->cache_all = true;
    if (o->bit == OPTION_VERIFY) e->verify_iterations = 1;
    if (o->kind != IS_SWITCH && *i + 1 == argc)
        return inferd_fail(err, INFERD_EINVAL, "%s without a value", o->name);
    const char *value = o->kind == IS_SWITCH ? NULL : argv[++*i];
    add_to_line(line, o, value);
    return value != NULL ? read_value(e, o, value, err) : INFERD_OK;
}

inferd_status options_read(experiment *e, const char *command, uint32_t taken, int argc,
                           char **argv, inferd_err *err) {
    buf line;
    uint32_t given = 0;
    inferd_status st = INFERD_OK;
    buf_init(&line, 0);
    buf_add_format(&line, "inferd-sim %s", command);
    for (int i = 0; i < argc && st == INFERD_OK; i++)
        st = read_one(e, taken, argc, argv, &i, &line, &given, err);
    if (st == INFERD_OK && e->shape == NULL) e->shape = sim_shape_find(e->preset->model);
    if (st == INFERD_OK) st = check_pairs(e, taken, given, err);
    if (st == INFERD_OK) st = check_files(e, err);
    e->taken = taken;
    free(e->line);
    e->line = st == INFERD_OK ? strdup(buf_cstr(&line)) : NULL;
    if (st == INFERD_OK && (line.failed || e->line == NULL))
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for the command line");
    buf_deinit(&line);
    return st;
}

/* "--slo-ttft-ms" is slo_ttft_ms.  A number that is not given and has no default here (the workload
 * or the daemon has one) is null. */
static inferd_status note_number(const experiment *e, const option_row *o, figures *f,
                                 inferd_err *err) {
    const char *at = (const char *)e + o->offset;
    char name[FIGURES_TEXT_BYTES];
    snprintf(name, sizeof name, "%s", o->name + 2);
    for (char *p = name; *p != 0; p++)
        if (*p == '-') *p = '_';
    double value = o->kind == IS_REAL ? *(const double *)(const void *)at
                                      : (double)*(const uint32_t *)(const void *)at;
    bool is_own = value < o->min; // -1, or 0
    return figures_note(f, "options", name, is_own ? (double)NAN : value, err);
}

inferd_status options_note(const experiment *e, figures *f, inferd_err *err) {
    inferd_status st = INFERD_OK;
    if (e->line != NULL) st = figures_note_text(f, "options", "command", e->line, err);
    if (st == INFERD_OK && (e->taken & OPTION_MIX) != 0)
        st = figures_note_text(f, "options", "mix", workload_kind_name(e->mix), err);
    for (size_t i = 0; i < INFERD_COUNT(OPTIONS) && st == INFERD_OK; i++)
        if ((OPTIONS[i].bit & e->taken) != 0 &&
            (OPTIONS[i].kind == IS_REAL || OPTIONS[i].kind == IS_COUNT))
            st = note_number(e, &OPTIONS[i], f, err);
    return st;
}
