/* options.h - the command line of inferd-sim, as an experiment.
 *
 * One table has all options, and each command lists those that have an effect on it.  Other options
 * are refused: if one were ignored, its user would take the figures for the answer to another
 * question.  Every error that can be detected early is reported before anything runs, including
 * output files that cannot be written.
 *
 * Thread: that of main. */
#ifndef SIM_OPTIONS_H
#define SIM_OPTIONS_H

#include "experiment.h"

/* Sets of options. */
enum {
    OPTION_DEVICE = 1 << 0,
    OPTION_DEVICES = 1 << 1,
    OPTION_SHAPE = 1 << 2,
    OPTION_MODELS = 1 << 3,
    OPTION_MIX = 1 << 4,
    OPTION_ZIPF = 1 << 5,
    OPTION_CV = 1 << 6,
    OPTION_ATTACKS = 1 << 7,
    OPTION_LAMBDA = 1 << 8,
    OPTION_RATE = 1 << 9,
    OPTION_LOAD = 1 << 10,
    OPTION_LENGTHS = 1 << 11,
    OPTION_TRACE = 1 << 12,
    OPTION_SLO_SCALE = 1 << 13,
    OPTION_SLO_TTFT = 1 << 14,
    OPTION_SLO_TPOT = 1 << 15,
    OPTION_HOST = 1 << 16,
    OPTION_RUNNING = 1 << 17,
    OPTION_QUEUE = 1 << 18,
    OPTION_STEP_TOKENS = 1 << 19,
    OPTION_CACHE_ALL = 1 << 20,
    OPTION_VERIFY = 1 << 21,
    OPTION_SECONDS = 1 << 22,
    OPTION_REQUESTS = 1 << 23,
    OPTION_SEEDS = 1 << 24,
    OPTION_SEED0 = 1 << 25,
    OPTION_JSON = 1 << 26,
    OPTION_SVG = 1 << 27,
    OPTIONS_TOLD = OPTION_SEEDS | OPTION_SEED0 | OPTION_JSON,
    OPTIONS_WORLD = OPTION_DEVICE | OPTION_SHAPE | OPTION_HOST | OPTION_RUNNING |
                    OPTION_STEP_TOKENS | OPTION_CACHE_ALL | OPTION_VERIFY | OPTIONS_TOLD,
    OPTIONS_DRAWN = OPTION_LENGTHS | OPTION_TRACE | OPTION_SECONDS | OPTION_SVG,
    OPTIONS_TARGETS = OPTION_SLO_SCALE | OPTION_SLO_TTFT | OPTION_SLO_TPOT,
    OPTIONS_MIX = OPTION_MIX | OPTION_ZIPF | OPTION_CV | OPTION_ATTACKS | OPTION_LAMBDA
};

/* Reads argv of `command`, which takes `taken`, into an initialised experiment.  EINVAL, EIO: the
 * text names the option and what was expected. */
inferd_status options_read(experiment *e, const char *command, uint32_t taken, int argc,
                           char **argv, inferd_err *err);
/* Notes the command line that gives the same figures, and the numbers left at their defaults. */
inferd_status options_note(const experiment *e, figures *f, inferd_err *err);

#endif
