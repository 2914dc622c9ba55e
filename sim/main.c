/* main.c - the command line of inferd-sim. */
#include <string.h>

#include "check.h"
#include "options.h"

enum { EXIT_ALL_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static const char USAGE[] =
    "inferd-sim - the daemon's policy in virtual time\n"
    "\n"
    "  inferd-sim mix|rate|models|shares|evict|objectives|churn|retry|speed [options]\n"
    "  inferd-sim check [--seeds N] [--seed0 N] [--trace SEED] [--quiet] [--keep-going]\n"
    "\n"
    "  --device NAME      h100-80 (default), h200-141, cpu-small\n"
    "  --devices N        how many of them (default 1; churn: 2 to 16, default 8)\n"
    "  --shape NAME       of every model: 135m, 1b, 3b, 8b, 14b, 32b (default: the device's)\n"
    "  --models N         how many; `models`: no more are tried (default 128)\n"
    "  --mix NAME         z, m (default), b, g, adv, pre, trace\n"
    "  --zipf X           mix z, trace: popularity of models falls with rank^X (default 1)\n"
    "  --cv X             mix g: coefficient of variation of the gaps (default 4)\n"
    "  --attacks LIST     mix adv: of flood,short,long,storm (default: flood, and all of them)\n"
    "  --lambda X         requests a second, of what the mix counts\n"
    "  --rate X           factor on all rates (default 1)\n"
    "  --load X           mix: the rate at which devices compute X % of the time\n"
    "  --lengths NAME     conv (default), code\n"
    "  --trace FILE       arrivals and lengths; may be repeated, but with mix trace\n"
    "  --slo-scale X      targets are the figures of a dedicated device times this (default 5)\n"
    "  --slo-ttft-ms N    the targets themselves\n"
    "  --slo-tpot-ms N\n"
    "  --host-gb X        host memory for warm weights\n"
    "  --running N        sequences in a batch\n"
    "  --queue N          requests that may wait on a device\n"
    "  --step-tokens N    rows of a step at most\n"
    "  --cache-all        requests that share no prefix leave cached blocks, too\n"
    "  --verify           check the counters after every iteration\n"
    "  --seconds X        of arrivals (default 600); not of speed\n"
    "  --requests N       speed: so many (default 200000)\n"
    "  --seeds N          at least 5 (default 5)\n"
    "  --seed0 N          the first of them (default 1)\n"
    "  --json FILE        the figures of all seeds, and what was simulated\n"
    "  --svg FILE         a plot of it; not of speed\n"
    "\n"
    "An option that would change nothing is refused.\n";

typedef struct command {
    const char *name;
    inferd_status (*run)(const experiment *e, inferd_err *err);
    uint32_t options; // that have an effect
} command;

static const command COMMANDS[] = {
    {"mix", experiment_mix,
     OPTIONS_WORLD | OPTIONS_DRAWN | OPTIONS_TARGETS | OPTIONS_MIX | OPTION_QUEUE | OPTION_RATE |
         OPTION_MODELS | OPTION_DEVICES | OPTION_LOAD},
    {"rate", experiment_rate,
     OPTIONS_WORLD | OPTIONS_DRAWN | OPTIONS_TARGETS | OPTIONS_MIX | OPTION_QUEUE | OPTION_RATE |
         OPTION_MODELS | OPTION_DEVICES},
    {"models", experiment_models,
     OPTIONS_WORLD | OPTIONS_DRAWN | OPTIONS_TARGETS | OPTIONS_MIX | OPTION_QUEUE | OPTION_RATE |
         OPTION_MODELS | OPTION_DEVICES},
    {"shares", experiment_shares, OPTIONS_WORLD | OPTIONS_DRAWN},
    {"evict", experiment_evict,
     OPTIONS_WORLD | OPTIONS_DRAWN | OPTION_QUEUE | OPTION_RATE | OPTION_DEVICES},
    {"objectives", experiment_objectives,
     OPTIONS_WORLD | OPTIONS_DRAWN | OPTIONS_TARGETS | OPTION_QUEUE | OPTION_RATE | OPTION_MODELS |
         OPTION_DEVICES},
    {"churn", experiment_churn, OPTION_DEVICE | OPTION_DEVICES | OPTIONS_TOLD | OPTION_SVG},
    {"retry", experiment_retry,
     OPTIONS_WORLD | OPTIONS_DRAWN | OPTION_QUEUE | OPTION_RATE | OPTION_MODELS | OPTION_DEVICES},
    {"speed", experiment_speed,
     OPTIONS_WORLD | OPTION_QUEUE | OPTION_RATE | OPTION_MODELS | OPTION_DEVICES | OPTION_LAMBDA |
         OPTION_TRACE | OPTION_REQUESTS}};

static bool wants_help(int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) return true;
    return false;
}

static int run(const command *c, int argc, char **argv) {
    experiment e;
    inferd_err err = {0};
    experiment_init(&e);
    inferd_status st = options_read(&e, c->name, c->options, argc, argv, &err);
    int status = EXIT_USAGE;
    if (st == INFERD_OK && c->run == experiment_models) {
        if (e.n_models > 0) e.models_max = e.n_models;
        experiment one = e;
        one.n_models = 1; // bisection begins with one model
        st = experiment_check_load(&one, &err);
        if (st != INFERD_OK && one.mix != WORKLOAD_TRACE)
            inferd_context(&err, "the search begins with one model, which this mix does not allow");
    }
    if (st == INFERD_OK) {
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
    if (wants_help(argc - 1, argv + 1)) {
        fputs(USAGE, stdout);
        return EXIT_ALL_OK;
    }
    if (argc >= 2 && strcmp(argv[1], "check") == 0) return check_main(argc - 2, argv + 2);
    for (size_t i = 0; argc >= 2 && i < INFERD_COUNT(COMMANDS); i++)
        if (strcmp(argv[1], COMMANDS[i].name) == 0) return run(&COMMANDS[i], argc - 2, argv + 2);
    if (argc >= 2) fprintf(stderr, "inferd-sim: there is no command %s\n\n", argv[1]);
    fputs(USAGE, stderr);
    return EXIT_USAGE;
}
