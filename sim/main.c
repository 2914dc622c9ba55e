/* main.c - the command line of inferd-sim. */
#include <string.h>

#include "check.h"
#include "experiment.h"

enum { EXIT_ALL_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static void print_usage(FILE *out) {
    fputs("inferd-sim - the daemon's policy in virtual time\n\n  inferd-sim ", out);
    for (int i = 0; i < EXPERIMENTS; i++)
        fprintf(out, "%s%s", i > 0 ? "|" : "", experiment_name(i));
    fputs(" [options]\n"
          "  inferd-sim check [--seeds N] [--seed0 N] [--trace SEED] [--quiet] [--keep-going]\n\n",
          out);
    options_help(out);
    fputs("\nAn option that would change nothing is refused; some have [commands].\n", out);
}

static int run(experiment_kind kind, int argc, char **argv) {
    experiment e;
    inferd_err err = {0};
    experiment_init(&e, kind);
    int status = EXIT_USAGE;
    inferd_status st = options_read(&e, argc, argv, &err);
    if (st == INFERD_OK) {
        st = experiment_do(&e, &err);
        status = EXIT_FAILED;
    }
    experiment_deinit(&e);
    if (st == INFERD_OK) return EXIT_ALL_OK;
    fprintf(stderr, "inferd-sim %s: %s\n", experiment_name(kind), err.text);
    return status;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            print_usage(stdout);
            return EXIT_ALL_OK;
        }
    if (argc >= 2 && strcmp(argv[1], "check") == 0) return check_main(argc - 2, argv + 2);
    for (int i = 0; argc >= 2 && i < EXPERIMENTS; i++)
        if (strcmp(argv[1], experiment_name(i)) == 0)
            return run((experiment_kind)i, argc - 2, argv + 2);
    if (argc >= 2) fprintf(stderr, "inferd-sim: there is no command %s\n\n", argv[1]);
    print_usage(stderr);
    return EXIT_USAGE;
}
