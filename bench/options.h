/* options.h - words of a command line: "--key value", "--key=value", and switches.  Thread: any. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "inferd/base.h"
#include "inferd/status.h"

/* Exit statuses of all commands. */
enum { EXIT_ALL_OK = 0, EXIT_SOME_FAILED = 1, EXIT_USAGE = 2 };

typedef enum option_kind { OPTION_UNKNOWN, OPTION_SWITCH, OPTION_VALUE } option_kind;

typedef struct option_reader {
    option_kind (*kind)(const char *key);
    inferd_status (*take)(void *ctx, const char *key, const char *value, inferd_err *err);
    void *ctx;
} option_reader;

/* Calls `take` for each option; a switch without a value has the value "on". */
inferd_status options_read(int argc, char **argv, option_reader r, inferd_err *err);

/* Prints the failure and returns EXIT_USAGE. */
int usage_error(const inferd_err *err);

#endif
