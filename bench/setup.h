/* setup.h - a specification from the command line, for the commands that run a load.  Thread: main.
 */
#ifndef BENCH_SETUP_H
#define BENCH_SETUP_H

#include "options.h"
#include "spec.h"

enum { SETUP_FDS_RESERVED = 64 }; // descriptors that are not connections

/* Raises the limit of descriptors as far as the system allows; returns the limit. */
uint64_t setup_raise_fds(void);

/* Chooses --inflight-max where it was not given, and checks it against the limit of descriptors. */
inferd_status setup_inflight(bench_spec *spec, uint64_t n_fds, inferd_err *err);

/* For options_read; `ctx` is a bench_spec.  Scenario files are read in a first pass with
 * setup_take_scenario, before all other options, so that the command line takes precedence. */
option_kind setup_kind(const char *key);
inferd_status setup_take_scenario(void *ctx, const char *key, const char *value, inferd_err *err);
inferd_status setup_take(void *ctx, const char *key, const char *value, inferd_err *err);

#endif
