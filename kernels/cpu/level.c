/* level.c - the list of levels, and the choice of one for this machine. */
#include "cpu/level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* A level: for each file of simd/ the level it is compiled for, and the pack function. */
#define TABLE(level, bf16, matmul_of, qmatmul_of, quant_of, rows_of, attention_of, pack_fn)        \
    {                                                                                              \
        .name = #level, .has_bf16 = bf16, .matmul = matmul_##matmul_of,                            \
        .qmatmul = qmatmul_##qmatmul_of, .qglu = qglu_##qmatmul_of,                                \
        .quantize = quantize_##quant_of, .rmsnorm = rmsnorm_##quant_of, .rope = rope_##rows_of,    \
        .silu_mul = silu_mul_##rows_of, .gelu_mul = gelu_mul_##rows_of,                            \
        .clamped_mul = clamped_mul_##rows_of, .add = add_##rows_of, .combine = combine_##rows_of,  \
        .kv_store = kv_store_##attention_of, .attend = attend_##attention_of,                      \
        .attend_merge = attend_merge_##attention_of, .pack = pack_fn                               \
    }

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
/* __builtin_cpu_supports also checks that the system saves the registers; bits of cpuid that it
 * has no name for are checked together with one that it has. */
static bool has_avx2(void) {
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
/* Bit `bit` of EAX of leaf 7, subleaf 1. */
static bool has_leaf_7_1(int bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> bit & 1) != 0;
}
static bool has_avxvnni(void) {
    return has_avx2() && has_leaf_7_1(4);
}
static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static bool has_avx512vnni(void) {
    return has_avx512() && __builtin_cpu_supports("avx512vnni");
}
static bool has_avx512bf16(void) {
    return has_avx512vnni() && has_leaf_7_1(5);
}
/* AMX-INT8 and AMX-TILE.  The system saves tiles only for a process that has asked, once for all
 * its threads (Linux: Documentation/arch/x86/xstate.rst). */
static bool has_avx512amx(void) {
#if defined(__linux__)
    enum { REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d;
    return has_avx512bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3 &&
           syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}
#endif

static const struct {
    cpu_level level;
    bool (*has)(void);
} levels[] = {
    // clang-format off
    // the best last  bf16   matmul  qmatmul     quant       rows    attention   pack
    {TABLE(define,    false, define, define,     define,     define, define,     panel_pack), always},
    {TABLE(base,      false, base,   base,       base,       base,   base,       panel_pack), always},
#if defined(__x86_64__)
    {TABLE(avx2,      false, avx2,   avx2,       avx2,       avx2,   avx2,       panel_pack_avx2),
     has_avx2},
    {TABLE(avxvnni,   false, avx2,   avxvnni,    avx2,       avx2,   avx2,       panel_pack_avx2),
     has_avxvnni},
    {TABLE(avx512,    false, avx512, avx512,     avx512,     avx512, avx512,     panel_pack_avx512),
     has_avx512},
    {TABLE(avx512vnni, false, avx512, avx512vnni, avx512,    avx512, avx512,     panel_pack_avx512),
     has_avx512vnni},
    {TABLE(avx512bf16, true, avx512, avx512bf16, avx512bf16, avx512, avx512bf16, panel_pack_avx512),
     has_avx512bf16},
    {TABLE(avx512amx, true,  avx512, avx512amx,  avx512amx,  avx512, avx512bf16, panel_pack_avx512),
     has_avx512amx},
#endif
    // clang-format on
};

const cpu_level *level_choose(const char *wanted, inferd_err *err) {
    for (size_t i = INFERD_COUNT(levels); i-- > 0;) {
        const cpu_level *level = &levels[i].level;
        if (wanted == NULL || wanted[0] == 0) {
            if (levels[i].has()) return level; // base at the latest
        } else if (strcmp(wanted, level->name) == 0) {
            if (levels[i].has()) return level;
            inferd_fail(err, INFERD_EUNSUPPORTED,
                        "INFERD_CPU=%s: this machine cannot do that, its best is %s", wanted,
                        level_choose(NULL, NULL)->name);
            return NULL;
        }
    }
    inferd_fail(err, INFERD_EINVAL,
                "INFERD_CPU=%s: expected base, avx2, avxvnni, avx512, avx512vnni, avx512bf16, "
                "avx512amx or define, or nothing",
                wanted);
    return NULL;
}
