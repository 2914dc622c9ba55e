/* sample_math.h - the arithmetic of sampling, the same on every backend.
 *
 * Everything is single IEEE operations in a fixed order: no fused multiply-add, no libm, no sum of
 * floats.  So a host compiler (with -ffp-contract=off), another host and a GPU give equal bits, and
 * a request samples the same tokens on all of them.
 *
 * Noise: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), key
 * = seed, counter = (token / 4, position, choice, 0), word token % 4.  Gumbel-max: argmax(z_i -
 * log(-log(u_i))) samples i with probability softmax(z)_i.
 *
 * Thread: any. */
#ifndef INFERD_SAMPLE_MATH_H
#define INFERD_SAMPLE_MATH_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define SAMPLE_FN __host__ __device__ static inline
#else
#define SAMPLE_FN static inline
#endif

#ifdef __CUDA_ARCH__
SAMPLE_FN float sm_mul(float a, float b) {
    return __fmul_rn(a, b);
}
SAMPLE_FN float sm_add(float a, float b) {
    return __fadd_rn(a, b);
}
SAMPLE_FN float sm_div(float a, float b) {
    return __fdiv_rn(a, b);
}
#else
SAMPLE_FN float sm_mul(float a, float b) {
    return a * b;
}
SAMPLE_FN float sm_add(float a, float b) {
    return a + b;
}
SAMPLE_FN float sm_div(float a, float b) {
    return a / b;
}
#endif

typedef struct sample_noise {
    uint32_t word[4];
} sample_noise;

/* The noise of tokens 4 * group ... 4 * group + 3. */
SAMPLE_FN sample_noise sample_philox(uint64_t seed, uint32_t group, uint32_t position,
                                     uint32_t choice) {
    uint32_t c0 = group, c1 = position, c2 = choice, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    sample_noise out = {{c0, c1, c2, c3}};
    return out;
}

/* 2 * atanh(s) = log((1 + s) / (1 - s)) for |s| <= 1/3; relative error below 3e-7. */
SAMPLE_FN float sample_atanh2(float s) {
    float t = sm_mul(s, s);
    float p = 0.13333334f; // 2/15
    p = sm_add(sm_mul(p, t), 0.15384616f);
    p = sm_add(sm_mul(p, t), 0.18181819f);
    p = sm_add(sm_mul(p, t), 0.22222222f);
    p = sm_add(sm_mul(p, t), 0.28571430f);
    p = sm_add(sm_mul(p, t), 0.40000001f);
    p = sm_add(sm_mul(p, t), 0.66666669f);
    p = sm_add(sm_mul(p, t), 2.0f);
    return sm_mul(p, s);
}

/* Natural logarithm of a positive normal float. */
SAMPLE_FN float sample_log(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    /* x = m * 2^e with m in [2/3, 4/3): 0x3F2AAAAB is 2/3 */
    int32_t e = (int32_t)(bits - 0x3F2AAAABu) >> 23;
    bits -= (uint32_t)e << 23;
    float m;
    memcpy(&m, &bits, 4);
    float log_m = sample_atanh2(sm_div(sm_add(m, -1.0f), sm_add(m, 1.0f)));
    return sm_add(sm_mul((float)e, 0.69314718f), log_m);
}

/* e^x for x <= 0; 0 below -87. Relative error below 3e-7. */
SAMPLE_FN float sample_exp(float x) {
    if (!(x > -87.0f)) return 0.0f;
    float n = (float)(int32_t)sm_add(sm_mul(x, 1.44269504f), -0.5f); // round half away, x <= 0
    float r = sm_add(x, sm_mul(n, -0.693359375f));                   // ln 2 in two parts
    r = sm_add(r, sm_mul(n, 2.12194440e-4f));
    float p = 1.9841270e-4f; // 1/7!
    p = sm_add(sm_mul(p, r), 1.3888889e-3f);
    p = sm_add(sm_mul(p, r), 8.3333333e-3f);
    p = sm_add(sm_mul(p, r), 4.1666668e-2f);
    p = sm_add(sm_mul(p, r), 1.6666667e-1f);
    p = sm_add(sm_mul(p, r), 0.5f);
    p = sm_add(sm_mul(p, r), 1.0f);
    p = sm_add(sm_mul(p, r), 1.0f);
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return sm_mul(p, scale);
}

/* Gumbel noise -log(-log(u)), u = (word + 1/2) / 2^32.  Near u = 1, the source of large values,
 * -log(u) is computed from v = 1 - u, which is exact. */
SAMPLE_FN float sample_gumbel(uint32_t word) {
    float e;
    if (word >= 0x80000000u) {
        float v = sm_mul(sm_add((float)(0xFFFFFFFFu - word), 0.5f), 2.3283064e-10f);
        e = sample_atanh2(sm_div(v, sm_add(2.0f, -v))); // -log(1 - v)
    } else {
        e = -sample_log(sm_mul(sm_add((float)word, 0.5f), 2.3283064e-10f));
    }
    return -sample_log(e);
}

/* A cheap upper bound of sample_gumbel(word): with c leading ones, 1 - u >= 2^-(c+2), and -log(u)
 * >= 1 - u. */
SAMPLE_FN float sample_gumbel_bound(uint32_t word) {
    uint32_t inverted = ~word, c = 0;
    if (word >= 0x80000000u) {
#ifdef __CUDA_ARCH__
        c = inverted == 0 ? 32u : (uint32_t)__clz((int)inverted);
#else
        c = inverted == 0 ? 32u : (uint32_t)__builtin_clz(inverted);
#endif
    }
    return sm_mul((float)(c + 2u), 0.6931473f);
}

/* Probabilities are summed as integers of 2^-40: exact, in any order, for up to 2^23 tokens. */
#define SAMPLE_ONE 1099511627776.0f
SAMPLE_FN uint64_t sample_fixed(float p) {
    return (uint64_t)sm_mul(p, SAMPLE_ONE);
}
/* log(sum / 2^40) for a sum of at least 2^16. */
SAMPLE_FN float sample_log_fixed(uint64_t sum) {
    return sample_log(sm_mul((float)sum, 9.0949470e-13f));
}

#endif
