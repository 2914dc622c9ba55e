// emul_math.h - what tensor cores and packed arithmetic compute.  A part of emul.cc.
//
// Products of 16-bit floats are exact in float; their sums are floats in the order of k.  A GPU
// adds in another order and with other roundings in between, so results are compared with a
// tolerance.
//
// Thread: the launching host thread, under emul.cc's mutex.
#ifndef INFERD_EMUL_MATH_H
#define INFERD_EMUL_MATH_H

#include "emul_touch.h"

namespace {

// To a 16-bit format of `digits` binary digits whose smallest normal exponent is exponent_min.
double round_to(double v, int digits, int exponent_min) {
    int e;
    if (v == 0.0 || isnan(v) || isinf(v)) return v;
    frexp(v, &e);
    e = std::max(e, exponent_min + 1) - digits;
    return ldexp(nearbyint(ldexp(v, -e)), e);
}

// a * b + c rounded once.  The product is exact; the sum is rounded to odd, which keeps for the
// second rounding on which side of a tie it was.
double fma_odd(double a, double b, double c) {
    double product = a * b, sum = product + c;
    if (isnan(sum) || isinf(sum)) return sum;
    double part = sum - product, error = (product - (sum - part)) + (c - part);
    uint64_t bits;
    memcpy(&bits, &sum, 8);
    if (error == 0.0 || (bits & 1)) return sum;
    bits += (error > 0.0) == (sum > 0.0) ? 1 : -1;
    memcpy(&sum, &bits, 8);
    return sum;
}

void mma_run(emul_mma_kind kind, fiber *lanes) {
    typedef float row4 __attribute__((vector_size(16)));
    float a[16][16], d[16][8];
    row4 b[16][2];
    auto number = [kind](uint32_t word, uint32_t half) {
        uint16_t bits = (uint16_t)(word >> 16 * half);
        return kind == EMUL_MMA_BF16 ? emul_bf16_to_f32(bits) : emul_f16_to_f32(bits);
    };
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t g = lane / 4, t = lane % 4;
        const uint32_t *fa = (const uint32_t *)lanes[lane].a, *fb = (const uint32_t *)lanes[lane].b;
        const float *fd = (const float *)lanes[lane].out;
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t h = 0; h < 2; h++)
                a[g + 8 * (i & 1)][2 * t + 8 * (i >> 1) + h] = number(fa[i], h);
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t h = 0; h < 2; h++) b[2 * t + 8 * i + h][g / 4][g % 4] = number(fb[i], h);
        for (uint32_t i = 0; i < 4; i++) d[g + 8 * (i >> 1)][2 * t + (i & 1)] = fd[i];
    }
    for (uint32_t row = 0; row < 16; row++) {
        row4 left = b[0][0] * a[row][0], right = b[0][1] * a[row][0];
        for (uint32_t k = 1; k < 16; k++) {
            left += b[k][0] * a[row][k];
            right += b[k][1] * a[row][k];
        }
        for (uint32_t n = 0; n < 4; n++) {
            d[row][n] += left[n];
            d[row][4 + n] += right[n];
        }
    }
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++)
            ((float *)lanes[lane].out)[i] = d[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)];
}

// d[16][8] += a[16][8] b[8][8], whose 13 low bits a GPU does not define: they must be 0.
void mma_tf32_run(fiber *lanes, const char *file, uint32_t line) {
    float a[16][8], b[8][8], d[16][8];
    place at = {file, line};
    for (uint32_t lane = 0; lane < 32; lane++) {
        uint32_t g = lane / 4, t = lane % 4;
        const uint32_t *fa = (const uint32_t *)lanes[lane].a, *fb = (const uint32_t *)lanes[lane].b;
        const float *fd = (const float *)lanes[lane].out;
        for (uint32_t i = 0; i < 6; i++)
            if (uint32_t word = i < 4 ? fa[i] : fb[i - 4]; (word & 0x1fffu) != 0)
                fail(&lanes[lane], &at, "mma_1688_tf32() of 0x%08x, its low 13 bits must be 0",
                     word);
        for (uint32_t i = 0; i < 4; i++)
            a[g + 8 * (i & 1)][t + 4 * (i >> 1)] = emul_bits_f32(fa[i]);
        for (uint32_t i = 0; i < 2; i++) b[t + 4 * i][g] = emul_bits_f32(fb[i]);
        for (uint32_t i = 0; i < 4; i++) d[g + 8 * (i >> 1)][2 * t + (i & 1)] = fd[i];
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t n = 0; n < 8; n++) {
            float sum = a[row][0] * b[0][n];
            for (uint32_t k = 1; k < 8; k++) sum += a[row][k] * b[k][n];
            d[row][n] += sum;
        }
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++)
            ((float *)lanes[lane].out)[i] = d[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)];
}

void ldmatrix_run(fiber *lanes, uint32_t n, bool transposed) {
    for (uint32_t lane = 0; lane < 8 * n; lane++)
        touch_word(&lanes[lane], lanes[lane].a, 16, watch::READ | TOUCH_SHARED);
    for (uint32_t m = 0; m < n; m++) {
        uint16_t rows[8][8];
        uint32_t used[8] = {0}, passes = 0; // of the eight groups of four banks
        for (uint32_t row = 0; row < 8; row++) {
            const void *at = lanes[8 * m + row].a;
            uint32_t group = (uint32_t)((uintptr_t)at / 16 % 8);
            bool again = false; // the same row: one read for both
            for (uint32_t i = 0; i < row; i++) again |= lanes[8 * m + i].a == at;
            if (!again) passes = std::max(passes, ++used[group]);
            memcpy(rows[row], at, 16);
        }
        run.counts.n_ldmatrix++;
        run.counts.n_ldmatrix_conflicts += passes - 1;
        for (uint32_t lane = 0; lane < 32; lane++) {
            uint32_t i = lane / 4, j = 2 * (lane % 4);
            uint16_t low = transposed ? rows[j][i] : rows[i][j];
            uint16_t high = transposed ? rows[j + 1][i] : rows[i][j + 1];
            ((uint32_t *)lanes[lane].out)[m] = low | (uint32_t)high << 16;
        }
    }
}

} // namespace

#endif
