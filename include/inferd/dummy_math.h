/* dummy_math.h - weights generated from a seed, the same on every backend.
 *
 * A model without a file gets matrices with elements like draws from normal(0, scale), for
 * tests and for measurements with real shapes.  An element depends on (seed, row, column, file
 * type) alone, and is computed from integers, one rounded product, and the rounding to the type: so
 * a host that writes rows in the file's format (kernels/dummy.h) and a kernel that writes its own
 * layout agree in every bit.
 *
 *   dense      unit * (sum of four 16-bit uniforms - their mean): within 3.5 scale
 *   quantised  codes: the upper `bits` of uniform bytes; without minima a code of 0 becomes the
 *              offset, which makes the values symmetric around 0
 *              step of a group: unit * factor, factor one of 16 ... 31
 *              min of a group: -(middle of the codes) * step
 *   K types    d of a block of 256 columns: unit * factor, dmin: middle of the codes * d
 *              the scale of a group (6 bits; Q6_K: 8), and its min too: another factor
 *              Q2_K, whose scales have 4 bits: half of it, rounded down
 *   IQ4        any code of the codebook; code 1 becomes 7, which makes the mean 0
 *   MXFP4      any code; the scale of a group is one of two neighbouring powers of two, so often
 *              the larger that the deviation is the requested one
 *
 * Slots of the hash, 64 bits each: `col` (dense) or `col / 8` (codes, a byte each); DUMMY_GROUP +
 * index of the group in the row; DUMMY_BLOCK + index of the block in the row.
 *
 * Thread: any. */
#ifndef INFERD_DUMMY_MATH_H
#define INFERD_DUMMY_MATH_H

#include <stdbool.h>
#include <stdint.h>

#include "inferd/hash.h"
#include "inferd/sample_math.h"

#define DUMMY_FN SAMPLE_FN

/* The parameters of a file type; dummy_form_of (kernels/dummy.h) sets them. */
typedef struct dummy_form {
    float unit;                // includes the requested scale
    uint32_t bits;             // of a code; 0: dense
    uint32_t group;            // columns that share a step
    bool minima;               // value = step * code + min, else step * (code - offset)
    bool blocks;               // a step is d of the block times the group's factor
    bool book;                 // codes stand for the values of a codebook
    uint32_t half;             // 1: scales are half of a factor
    uint32_t exponent, larger; // MXFP4: the smaller scale; of 2^32 groups so many have the larger
} dummy_form;

enum { DUMMY_BLOCK_COLS = 256 };
#define DUMMY_GROUP 0x80000000u
#define DUMMY_BLOCK 0xC0000000u

/* 64 bits without visible relation to neighbouring slots: a sequence with the golden ratio as
 * increment, then the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
 * number generators", OOPSLA 2014).  One-to-one in (row, slot). */
DUMMY_FN uint64_t dummy_mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}
DUMMY_FN uint64_t dummy_hash(uint64_t seed, uint32_t row, uint32_t slot) {
    return dummy_mix(seed + 0x9E3779B97F4A7C15u * ((uint64_t)row << 32 | slot));
}

/* Four uniforms of 16 bits, minus their mean of 4 * 65535 / 2; DUMMY_SUM_DEVIATION is the root of 4
 * * (65536^2 - 1) / 12. */
#define DUMMY_SUM_DEVIATION 37837.227
DUMMY_FN int32_t dummy_sum(uint64_t hash) {
    uint32_t sum = (uint32_t)(hash & 0xffffu) + (uint32_t)(hash >> 16 & 0xffffu) +
                   (uint32_t)(hash >> 32 & 0xffffu) + (uint32_t)(hash >> 48);
    return (int32_t)sum - 131070;
}
/* A dense element, before it is rounded to the type. */
DUMMY_FN float dummy_value(float unit, uint64_t seed, uint32_t row, uint32_t col) {
    return sm_mul(unit, (float)dummy_sum(dummy_hash(seed, row, col)));
}

/* The code of column `col` (any with the same col / 8 as the hash's slot). */
DUMMY_FN uint32_t dummy_code(uint64_t hash, uint32_t col, uint32_t bits, bool minima) {
    uint32_t code = (uint32_t)(hash >> (8 * (col & 7u)) & 0xffu) >> (8 - bits);
    return code == 0 && !minima ? 1u << (bits - 1) : code;
}
/* 16 ... 31 */
DUMMY_FN uint32_t dummy_factor(uint64_t seed, uint32_t row, uint32_t slot) {
    return 16u + (uint32_t)(dummy_hash(seed, row, slot) >> 60);
}
/* A code of IQ4_NL or IQ4_XS. */
DUMMY_FN uint32_t dummy_book_code(uint32_t code) {
    return code == 1 ? 7u : code;
}
/* The scale of a group of MXFP4. */
DUMMY_FN uint32_t dummy_exponent(const dummy_form *f, uint64_t seed, uint32_t row, uint32_t slot) {
    return f->exponent + ((uint32_t)(dummy_hash(seed, row, slot) >> 32) < f->larger ? 1u : 0u);
}
/* The mean of the codes of a type with minima: 1.5, 7.5, 15.5. */
DUMMY_FN float dummy_middle(uint32_t bits) {
    return (float)((1u << bits) - 1u) * 0.5f;
}

/* The seed of one tensor: FNV-1a over its name, starting from the model's seed.  Both are mixed: a
 * small seed would cancel with the first letter, and FNV leaves the last letter in the low bits. */
DUMMY_FN uint64_t dummy_seed(const char *tensor_name, uint64_t model_seed) {
    uint64_t h = HASH_BEGIN ^ dummy_mix(model_seed);
    for (; *tensor_name != 0; tensor_name++) h = hash_step(h, (uint8_t)*tensor_name);
    return dummy_mix(h);
}

#endif
