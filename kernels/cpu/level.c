/* level.c - which levels there are, and which one this machine gets. */
#include "cpu/level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define TABLE(level)                                                                               \
    {                                                                                              \
        .name = #level, .matmul = matmul_##level, .rmsnorm = rmsnorm_##level,                      \
        .rope = rope_##level, .silu_mul = silu_mul_##level, .gelu_mul = gelu_mul_##level,          \
        .add = add_##level, .kv_store = kv_store_##level, .attend = attend_##level                 \
    }

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
/* __builtin_cpu_supports also asks whether the system saves the registers. */
static bool has_avx2(void) {
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static const struct {
    cpu_level level;
    bool (*has)(void);
} levels[] = {
    // the best last
    {TABLE(define), always},
    {TABLE(base), always},
#if defined(__x86_64__)
    {TABLE(avx2), has_avx2},
    {TABLE(avx512), has_avx512},
#endif
};

const cpu_level *level_choose(const char *wanted, inferd_err *err) {
    for (size_t i = INFERD_COUNT(levels); i-- > 0;) {
        const cpu_level *level = &levels[i].level;
        if (wanted == NULL || wanted[0] == 0) {
            if (levels[i].has()) return level; // base at the latest
        } else if (strcmp(wanted, level->name) == 0) {
            if (levels[i].has()) return level;
            inferd_fail(err, INFERD_EUNSUPPORTED, "INFERD_CPU=%s: this machine cannot do that",
                        wanted);
            return NULL;
        }
    }
    inferd_fail(err, INFERD_EINVAL,
                "INFERD_CPU=%s: expected base, avx2, avx512 or define, or nothing", wanted);
    return NULL;
}
