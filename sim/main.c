/* main.c - the command line of inferd-sim. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "check.h"
#include "experiment.h"

enum { EXIT_ALL_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static const char USAGE[] =
    "inferd-sim - the daemon's policy in virtual time\n"
    "\n"
    "  inferd-sim mix|rate|models|shares|evict|objectives|churn|retry|speed [options]\n"
    "  inferd-sim check [--seeds N] [--seed0 N] [--trace SEED] [--quiet] [--keep-going]\n"
    "\n"
    "  --device NAME      h100-80 (default), h200-141, cpu-small\n"
    "  --devices N        how many of them (default 1)\n"
    "  --shape NAME       of every model: 135m, 1b, 3b, 8b, 14b, 32b (default: the device's)\n"
    "  --models N         how many; `models`: no more are tried (default 128)\n"
    "  --mix NAME         z, m (default), b, g, adv, pre, trace\n"
    "  --lambda X         requests a second, of what the mix counts\n"
    "  --rate X           factor on all rates (default 1)\n"
    "  --load X           mix: the rate at which devices compute X % of the time\n"
    "  --lengths NAME     conv (default), code\n"
    "  --trace FILE       arrivals and lengths; may be repeated\n"
    "  --slo-scale X      targets are the figures of a dedicated device times this (default 5)\n"
    "  --slo-ttft-ms N    the targets themselves\n"
    "  --slo-tpot-ms N\n"
    "  --host-gb X        host memory for warm weights\n"
    "  --running N        sequences in a batch\n"
    "  --queue N          requests that may wait on a device\n"
    "  --step-tokens N    rows of a step at most\n"
    "  --cache-all        requests that share no prefix leave cached blocks, too\n"
    "  --verify           the books after every turn\n"
    "  --seconds X        of arrivals (default 600)\n"
    "  --requests N       speed: so many (default 200000)\n"
    "  --seeds N          at least 5 (default 5)\n"
    "  --seed0 N          the first of them (default 1)\n"
    "  --json FILE        the figures of all seeds\n"
    "  --svg FILE         a plot of it; not of speed\n";

typedef struct command {
    const char *name;
    inferd_status (*run)(const experiment *e, inferd_err *err);
} command;

static const command COMMANDS[] = {
    {"mix", experiment_mix},       {"rate", experiment_rate},
    {"models", experiment_models}, {"shares", experiment_shares},
    {"evict", experiment_evict},   {"objectives", experiment_objectives},
    {"churn", experiment_churn},   {"retry", experiment_retry},
    {"speed", experiment_speed}};

static inferd_status bad(inferd_err *err, const char *option, const char *value,
                         const char *expected) {
    return inferd_fail(err, INFERD_EINVAL, "%s is \"%s\", expected %s", option, value, expected);
}

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

static inferd_status read_real(const char *option, const char *value, double *out,
                               inferd_err *err) {
    enum { REAL_MAX = 1000000000 };
    char *end;
    *out = strtod(value, &end);
    if (end != value && *end == 0 && isfinite(*out) && *out >= 0 && *out <= REAL_MAX)
        return INFERD_OK;
    return bad(err, option, value, "a number from 0 to 1e9");
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

static inferd_status read_trace(experiment *e, const char *path, inferd_err *err) {
    if (e->n_traces == WORKLOAD_TRACES_MAX)
        return inferd_fail(err, INFERD_EINVAL, "more than %d traces", WORKLOAD_TRACES_MAX);
    inferd_status st = trace_read(&e->traces[e->n_traces], path, err);
    if (st == INFERD_OK) e->n_traces++;
    return st;
}

/* False: it is none. */
static bool read_switch(experiment *e, const char *option) {
    if (strcmp(option, "--cache-all") == 0)
        e->cache_all = true;
    else if (strcmp(option, "--verify") == 0)
        e->verify = true;
    else
        return false;
    return true;
}

typedef struct real_option {
    const char *name;
    double *to;
} real_option;
typedef struct count_option {
    const char *name;
    uint32_t *to;
    uint64_t min, max;
} count_option;

static inferd_status read_number(experiment *e, const char *option, const char *value,
                                 bool *out_is_one, inferd_err *err) {
    const real_option reals[] = {{"--lambda", &e->lambda},       {"--rate", &e->rate_factor},
                                 {"--slo-scale", &e->slo_scale}, {"--host-gb", &e->host_gb},
                                 {"--seconds", &e->seconds},     {"--load", &e->load_percent}};
    const count_option counts[] = {{"--devices", &e->n_devices, 1, WORLD_DEVICES_MAX},
                                   {"--models", &e->n_models, 1, WORKLOAD_MODELS_MAX},
                                   {"--slo-ttft-ms", &e->slo_ttft_ms, 1, 3600000},
                                   {"--slo-tpot-ms", &e->slo_tpot_ms, 1, 3600000},
                                   {"--running", &e->running_max, 1, 1024},
                                   {"--queue", &e->queue_len, 1, 1 << 16},
                                   {"--step-tokens", &e->step_tokens, 1, 8192},
                                   {"--requests", &e->n_requests, 1, WORLD_RECORDS_MAX},
                                   {"--seeds", &e->n_seeds, FIGURES_SEEDS_MIN, FIGURES_SEEDS_MAX}};
    *out_is_one = true;
    for (size_t i = 0; i < INFERD_COUNT(reals); i++)
        if (strcmp(option, reals[i].name) == 0) return read_real(option, value, reals[i].to, err);
    for (size_t i = 0; i < INFERD_COUNT(counts); i++) {
        uint64_t n;
        if (strcmp(option, counts[i].name) != 0) continue;
        inferd_status st = read_count(option, value, counts[i].min, counts[i].max, &n, err);
        if (st == INFERD_OK) *counts[i].to = (uint32_t)n;
        return st;
    }
    if (strcmp(option, "--seed0") == 0)
        return read_count(option, value, 0, UINT32_MAX, &e->seed0, err);
    *out_is_one = false;
    return INFERD_OK;
}

static inferd_status read_option(experiment *e, const char *option, const char *value,
                                 inferd_err *err) {
    bool is_one;
    inferd_status st = read_number(e, option, value, &is_one, err);
    if (is_one) return st;
    if (strcmp(option, "--mix") == 0) return read_mix(value, &e->mix, err);
    if (strcmp(option, "--trace") == 0) return read_trace(e, value, err);
    if (strcmp(option, "--json") == 0) {
        e->json_path = value;
    } else if (strcmp(option, "--svg") == 0) {
        e->svg_path = value;
    } else if (strcmp(option, "--device") == 0) {
        if ((e->preset = sim_preset_find(value)) == NULL)
            return bad(err, option, value, sim_preset_names());
    } else if (strcmp(option, "--shape") == 0) {
        if ((e->shape = sim_shape_find(value)) == NULL)
            return bad(err, option, value, sim_shape_names());
    } else if (strcmp(option, "--lengths") == 0) {
        if (strcmp(value, "conv") != 0 && strcmp(value, "code") != 0)
            return bad(err, option, value, "conv or code");
        e->lengths = strcmp(value, "conv") == 0 ? LENGTHS_CONV : LENGTHS_CODE;
    } else {
        return inferd_fail(err, INFERD_EINVAL, "there is no option %s", option);
    }
    return INFERD_OK;
}

static inferd_status read_options(experiment *e, int argc, char **argv, inferd_err *err) {
    for (int i = 0; i < argc; i++) {
        if (read_switch(e, argv[i])) continue;
        if (i + 1 == argc) return inferd_fail(err, INFERD_EINVAL, "%s without a value", argv[i]);
        inferd_status st = read_option(e, argv[i], argv[i + 1], err);
        if (st != INFERD_OK) return st;
        i++;
    }
    if (e->shape == NULL) e->shape = sim_shape_find(e->preset->model);
    return INFERD_OK;
}

static int run(const command *c, int argc, char **argv) {
    experiment e;
    inferd_err err = {0};
    experiment_init(&e);
    inferd_status st = read_options(&e, argc, argv, &err);
    int status = EXIT_USAGE;
    if (st == INFERD_OK) {
        if (c->run == experiment_models && e.n_models > 0) e.models_max = e.n_models;
        st = c->run(&e, &err);
        status = EXIT_FAILED;
    }
    experiment_deinit(&e);
    if (st == INFERD_OK) return EXIT_ALL_OK;
    fprintf(stderr, "inferd-sim %s: %s\n", c->name, err.text);
    return status;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc >= 2 && strcmp(argv[1], "check") == 0) return check_main(argc - 2, argv + 2);
    for (size_t i = 0; argc >= 2 && i < INFERD_COUNT(COMMANDS); i++)
        if (strcmp(argv[1], COMMANDS[i].name) == 0) return run(&COMMANDS[i], argc - 2, argv + 2);
    bool help = argc >= 2 && strcmp(argv[1], "--help") == 0;
    fputs(USAGE, help ? stdout : stderr);
    return help ? EXIT_ALL_OK : EXIT_USAGE;
}
