// emul_numbers.h - 16-bit floats on the host, by integers: IEEE binary16 and bfloat16.
//
// To 16 bits everything rounds to nearest even, subnormal results included; what is not a number
// becomes 0x7fff, as the GPU's conversions give.  To float is exact.
//
// Thread: any.
#ifndef INFERD_EMUL_NUMBERS_H
#define INFERD_EMUL_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EMUL_INLINE inline __attribute__((always_inline))

EMUL_INLINE float emul_bits_f32(uint32_t bits) {
    float v;
    memcpy(&v, &bits, 4);
    return v;
}
EMUL_INLINE uint32_t emul_f32_bits(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return bits;
}

EMUL_INLINE float emul_bf16_to_f32(uint16_t bits) {
    return emul_bits_f32((uint32_t)bits << 16);
}

EMUL_INLINE uint16_t emul_f32_to_bf16(float v) {
    uint32_t bits = emul_f32_bits(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16); // may carry into infinity: right
}

EMUL_INLINE float emul_f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) return emul_bits_f32(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    // As float bits the exponent is too small by 112; the product also normalizes subnormals.
    float v = emul_bits_f32(rest << 13) * emul_bits_f32((127u + 112u) << 23);
    return emul_bits_f32(sign | emul_f32_bits(v));
}

EMUL_INLINE uint16_t emul_f32_to_f16(float v) {
    uint32_t bits = emul_f32_bits(v), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7fff;
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // 65520 and more round to infinity
    uint32_t shift = 13, kept, half;
    if (rest >= 0x38800000u) { // normal: exponent 127 becomes 15
        rest -= 112u << 23;
    } else { // a multiple of 2^-24
        uint32_t exponent = rest >> 23;
        if (exponent < 102u) return (uint16_t)sign; // below 2^-25
        rest = (rest & 0x7fffffu) | 0x800000u;
        shift = 126u - exponent;
    }
    kept = rest >> shift;
    half = 1u << (shift - 1);
    rest &= (half << 1) - 1u;
    if (rest > half || (rest == half && (kept & 1u))) kept++;
    return (uint16_t)(sign | kept);
}

#endif
