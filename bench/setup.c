/* setup.c - see setup.h. */
#include "setup.h"

#include <string.h>
#include <sys/resource.h>

enum { INFLIGHT_DEFAULT = 4096 };

option_kind setup_kind(const char *key) {
    bool is_switch;
    if (strcmp(key, "scenario") == 0 || strcmp(key, "class") == 0) return OPTION_VALUE;
    if (!bench_setting_known(key, &is_switch)) return OPTION_UNKNOWN;
    return is_switch ? OPTION_SWITCH : OPTION_VALUE;
}

inferd_status setup_take_scenario(void *ctx, const char *key, const char *value, inferd_err *err) {
    return strcmp(key, "scenario") == 0 ? bench_spec_read(ctx, value, err) : INFERD_OK;
}

inferd_status setup_take(void *ctx, const char *key, const char *value, inferd_err *err) {
    if (strcmp(key, "scenario") == 0) return INFERD_OK;
    if (strcmp(key, "class") == 0) return bench_spec_class_text(ctx, value, err);
    return bench_spec_set(ctx, -1, key, value, err);
}

uint64_t setup_raise_fds(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

inferd_status setup_inflight(bench_spec *spec, uint64_t n_fds, inferd_err *err) {
    uint64_t n_closed = 0;
    for (size_t i = 0; i < spec->n_classes; i++) n_closed += spec->classes[i].arrivals.n_streams;
    if (spec->inflight_max == 0) {
        spec->inflight_max = (uint32_t)size_max(INFLIGHT_DEFAULT, n_closed);
        if (spec->inflight_max + SETUP_FDS_RESERVED > n_fds &&
            n_closed + SETUP_FDS_RESERVED < n_fds)
            spec->inflight_max = (uint32_t)(n_fds - SETUP_FDS_RESERVED);
    }
    if ((uint64_t)spec->inflight_max + SETUP_FDS_RESERVED <= n_fds) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL,
                       "%u requests at once need %u descriptors, the limit is %llu (ulimit -n)",
                       spec->inflight_max, spec->inflight_max + SETUP_FDS_RESERVED,
                       (unsigned long long)n_fds);
}
