// unpack.cuh - reading quantised tiles in kernels: words, codes, scales, mma fragments.
//
// A tile is 16 rows x 64 columns (layout.h).  Lane 4g + t holds rows g and g + 8 of it and, in step
// s (0..3, 16 columns each), columns 16s + 2t, + 1, + 8, + 9.  Use, for tile number i of the matrix
// (row tile * n_col_tiles + column tile), F a cu_format of the quantised ones:
//
//     tile_words<F> w;
//     tile_stream<F>(w, low, high, scales, i, lane);   all of a tile's words, read past L1
//     uint32_t a[4];
//     tile_fragment<F, T>(w, s, a);                    A fragment of step s: code - offset as T
//     tile_scale<F>(w, r, s), tile_min<F>(w, r, s)     float, of row g (r 0) or g + 8 (r 1)
//     value = scale * (code - offset) [+ min]
//
// The fragment is exact in both 16-bit types (integers of at most 8 bits and a sign), so a kernel
// that multiplies fragments by x, keeps a float accumulator per group of columns, and applies scale
// and min to it afterwards has rounded nothing but float sums:
//
//     total(row, n) += scale * d(row, n) + min * (sum of x[n] over the group)
//
// A group is two steps (32 columns), one for Q6 (STEPS).  All indices of words are resolved at
// compile time, so s, r and m should be constants after unrolling, else the words land in local
// memory.
//
// Formats with minima have a shorter way, without an fma per pair of codes and per minimum:
//
//     tile_raw_fragment<F, T>(w, s, a)      A fragment of step s: 2^BITS + code as T, exact
//     tile_rest_fragment(w, t, a)           A side of one mma_1688_tf32 for the whole tile
//
// The second subtracts 2^BITS scale (sum of x) and adds min (sum of x), for both groups at once:
// scale and min are f16, hence exact in tf32, and the sum of x comes as two tf32 (rest_sum), 22
// bits of it.  The cost of the short way is the cancelled 2^BITS: sums of terms at most three times
// as large.
//
// Conversion: a code is or-ed into the mantissa of 2^p (f16: 1024, bf16: 128, where one unit of the
// last place is 1), and one fma subtracts 2^p + offset.  bf16 has 7 bits of mantissa: 8-bit codes
// come as two nibbles, 16 * high - 256, then + low + 128, each step exact.
#ifndef INFERD_UNPACK_CUH
#define INFERD_UNPACK_CUH

#include "cuda/gpu.cuh"

extern "C" {
#include "cuda/layout.h"
}

template <uint32_t F> struct quant {
    static constexpr uint32_t BITS = F == CU_FMT_Q4 || F == CU_FMT_Q4M   ? 4
                                     : F == CU_FMT_Q5 || F == CU_FMT_Q5M ? 5
                                     : F == CU_FMT_Q6                    ? 6
                                                                         : 8;
    static constexpr bool MINIMA = F == CU_FMT_Q4M || F == CU_FMT_Q5M;
    static constexpr uint32_t OFFSET = MINIMA ? 0 : 1u << (BITS - 1);
    static constexpr uint32_t GROUP = F == CU_FMT_Q6 ? 16 : 32; // columns of one scale
    static constexpr uint32_t STEPS = GROUP / 16;               // fragments of one scale
    // per lane and tile
    static constexpr uint32_t LOW_WORDS = BITS == 8 ? 8 : 4;
    static constexpr uint32_t HIGH_WORDS = BITS == 5 ? 1 : BITS == 6 ? 2 : 0;
    static constexpr uint32_t SCALE_WORDS = MINIMA || F == CU_FMT_Q6 ? 4 : 2;
    // per tile
    static constexpr uint32_t LOW_BYTES = LOW_WORDS * 4 * 32;
    static constexpr uint32_t HIGH_BYTES = HIGH_WORDS * 4 * 32;
    static constexpr uint32_t SCALE_BYTES = SCALE_WORDS * 4 * 8;
};

// A lane's part of one tile.
template <uint32_t F> struct tile_words {
    uint32_t low[quant<F>::LOW_WORDS]; // word s: step s; 8-bit: word 4 + s: its high nibbles
    uint32_t high[quant<F>::HIGH_WORDS > 0 ? quant<F>::HIGH_WORDS : 1];
    uint32_t scales[quant<F>::SCALE_WORDS];
};

GPU_FN void words4(uint32_t *out, word4 v) {
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}
GPU_FN void words2(uint32_t *out, word2 v) {
    out[0] = v.x;
    out[1] = v.y;
}

// ---- words ----
// A lane's words of the `tile`-th tile after the one at these addresses (tile_low, tile_high,
// tile_scales of this lane): a constant `tile` costs no address arithmetic.
template <uint32_t F>
GPU_FN void tile_stream_lane(tile_words<F> &w, const unsigned char *low, const unsigned char *high,
                             const unsigned char *scales, uint32_t tile) {
    using q = quant<F>;
    words4(w.low, load_stream16(low + tile * q::LOW_BYTES));
    if constexpr (q::LOW_WORDS == 8)
        words4(w.low + 4, load_stream16(low + tile * q::LOW_BYTES + 512));
    if constexpr (q::HIGH_WORDS == 1) w.high[0] = load_stream4(high + tile * q::HIGH_BYTES);
    if constexpr (q::HIGH_WORDS == 2) words2(w.high, load_stream8(high + tile * q::HIGH_BYTES));
    if constexpr (q::SCALE_WORDS == 4)
        words4(w.scales, load_stream16(scales + tile * q::SCALE_BYTES));
    else
        words2(w.scales, load_stream8(scales + tile * q::SCALE_BYTES));
}
// The address of the lane's words of tile `tile` of a matrix in device memory; planes as in
// cu_matrix.  A tile number times its bytes can exceed 4 GiB, hence size_t.
template <uint32_t F>
GPU_FN const unsigned char *tile_low(const void *low, size_t tile, uint32_t lane) {
    return (const unsigned char *)low + tile * quant<F>::LOW_BYTES + lane * 16;
}
template <uint32_t F>
GPU_FN const unsigned char *tile_high(const void *high, size_t tile, uint32_t lane) {
    return (const unsigned char *)high + tile * quant<F>::HIGH_BYTES +
           lane * quant<F>::HIGH_WORDS * 4;
}
template <uint32_t F>
GPU_FN const unsigned char *tile_scales(const void *scales, size_t tile, uint32_t lane) {
    return (const unsigned char *)scales + tile * quant<F>::SCALE_BYTES +
           lane / 4 * quant<F>::SCALE_WORDS * 4;
}
template <uint32_t F>
GPU_FN void tile_stream(tile_words<F> &w, const void *low, const void *high, const void *scales,
                        size_t tile, uint32_t lane) {
    tile_stream_lane<F>(w, tile_low<F>(low, tile, lane), tile_high<F>(high, tile, lane),
                        tile_scales<F>(scales, tile, lane), 0);
}

// ---- scales ----
GPU_FN float half_of(uint32_t word, uint32_t i) { // half i (0 low, 1 high) of a word as float
    return to_f32(f16{(uint16_t)(word >> (16 * i))});
}
// Of row g (r 0) or g + 8 (r 1), for the group that step s is in.
template <uint32_t F> GPU_FN float tile_scale(const tile_words<F> &w, uint32_t r, uint32_t s) {
    using q = quant<F>;
    uint32_t group = s / q::STEPS;
    if constexpr (q::MINIMA) return half_of(w.scales[r * 2 + group], 0);
    uint32_t i = r * (4 / q::STEPS) + group;
    return half_of(w.scales[i / 2], i % 2);
}
// 0 where the format has no minima.
template <uint32_t F> GPU_FN float tile_min(const tile_words<F> &w, uint32_t r, uint32_t s) {
    if constexpr (quant<F>::MINIMA) return half_of(w.scales[r * 2 + s / quant<F>::STEPS], 1);
    return 0;
}

// ---- codes ----
GPU_FN uint32_t shifted(uint32_t v, int right) {
    return right >= 0 ? v >> right : v << -right;
}

// v with the bits above the fourth of pair m of step s or-ed in, from bit 4 up in both halves.
template <uint32_t F>
GPU_FN uint32_t tile_with_high(const tile_words<F> &w, uint32_t s, uint32_t m, uint32_t v) {
    using q = quant<F>;
    if constexpr (q::BITS == 5)
        return and_or(shifted(w.high[0], (int)(4 * s + m) - 4), 0x00100010u, v);
    if constexpr (q::BITS == 6)
        return and_or(shifted(w.high[s / 2], (int)(8 * (s % 2) + 2 * m) - 4), 0x00300030u, v);
    if constexpr (q::BITS == 8)
        return and_or(shifted(w.low[4 + s], (int)(4 * m) - 4), 0x00f000f0u, v);
    return v;
}
// Codes of pair m of step s, unsigned, over `base`: e_2m in the low half, e_2m+1 in the high half.
template <uint32_t F>
GPU_FN uint32_t tile_codes(const tile_words<F> &w, uint32_t s, uint32_t m, uint32_t base = 0) {
    return tile_with_high<F>(w, s, m, and_or(w.low[s] >> (4 * m), 0x000f000fu, base));
}

// A small whole number, exact, as 16-bit pattern twice.
GPU_FN constexpr uint32_t twice_f16(int v) {
    uint32_t sign = v < 0 ? 0x8000u : 0, n = (uint32_t)(v < 0 ? -v : v), e = 0;
    if (n == 0) return 0;
    while (n >> (e + 1) != 0) e++;
    uint32_t bits = sign | (e + 15) << 10 | ((n << 10 >> e) & 0x3ffu);
    return bits | bits << 16;
}
GPU_FN constexpr uint32_t twice_bf16(int v) {
    uint32_t sign = v < 0 ? 0x8000u : 0, n = (uint32_t)(v < 0 ? -v : v), e = 0;
    if (n == 0) return 0;
    while (n >> (e + 1) != 0) e++;
    uint32_t bits = sign | (e + 127) << 7 | ((n << 7 >> e) & 0x7fu);
    return bits | bits << 16;
}

// code - offset of pair m of step s as two T, exact.
template <uint32_t F, class T> struct tile_convert;
template <uint32_t F> struct tile_convert<F, f16> {
    static GPU_FN uint32_t pair(const tile_words<F> &w, uint32_t s, uint32_t m) {
        constexpr int offset = (int)quant<F>::OFFSET;
        constexpr uint32_t base = twice_f16(1024);
        if constexpr (quant<F>::BITS == 4) { // ten bits of mantissa take two nibbles unshifted
            constexpr uint32_t sixteenth = 0x2c002c00u;
            uint32_t both = w.low[s] >> (m / 2 * 8);
            uint32_t even = and_or(both, 0x000f000fu, base); // 1024 + code
            uint32_t odd = and_or(both, 0x00f000f0u, base);  // 1024 + 16 code
            if (m % 2 != 0) return fma2_f16(odd, sixteenth, twice_f16(-64 - offset));
            return fma2_f16(even, twice_f16(1), twice_f16(-1024 - offset));
        }
        return fma2_f16(tile_codes<F>(w, s, m, base), twice_f16(1), twice_f16(-1024 - offset));
    }
};
template <uint32_t F> struct tile_convert<F, bf16> {
    static GPU_FN uint32_t pair(const tile_words<F> &w, uint32_t s, uint32_t m) {
        constexpr int offset = (int)quant<F>::OFFSET;
        constexpr uint32_t base = twice_bf16(128);
        if constexpr (quant<F>::BITS == 8) {
            uint32_t low = and_or(w.low[s] >> (4 * m), 0x000f000fu, base);
            uint32_t high = and_or(w.low[4 + s] >> (4 * m), 0x000f000fu, base);
            constexpr int base16 = 16 * 128 + 128 + offset; // the excess of both
            high = fma2_bf16(high, twice_bf16(16), twice_bf16(-base16));
            return fma2_bf16(low, twice_bf16(1), high);
        }
        return fma2_bf16(tile_codes<F>(w, s, m, base), twice_bf16(1), twice_bf16(-128 - offset));
    }
};
// A fragment of step s for mma_16816<T>.
template <uint32_t F, class T>
GPU_FN void tile_fragment(const tile_words<F> &w, uint32_t s, uint32_t a[4]) {
    a[0] = tile_convert<F, T>::pair(w, s, 0);
    a[1] = tile_convert<F, T>::pair(w, s, 1);
    a[2] = tile_convert<F, T>::pair(w, s, 2);
    a[3] = tile_convert<F, T>::pair(w, s, 3);
}

// ---- formats with minima: the short way ----
// 2^BITS + code of pair m of step s as two T: the code lies right below the mantissa's leading one.
template <class T> inline constexpr uint32_t MANTISSA_BITS = 0;
template <> inline constexpr uint32_t MANTISSA_BITS<bf16> = 7;
template <> inline constexpr uint32_t MANTISSA_BITS<f16> = 10;

template <uint32_t F, class T>
GPU_FN uint32_t tile_raw_pair(const tile_words<F> &w, uint32_t s, uint32_t m) {
    using q = quant<F>;
    static_assert(q::MINIMA, "formats with an offset subtract it while they are converted");
    constexpr uint32_t at = MANTISSA_BITS<T> - q::BITS; // of the code's lowest bit
    constexpr uint32_t one = 1u << at | 1u << (at + 16);
    constexpr uint32_t base =
        MANTISSA_BITS<T> == 7 ? twice_bf16(1 << q::BITS) : twice_f16(1 << q::BITS);
    uint32_t v = and_or(shifted(w.low[s], (int)(4 * m) - (int)at), one * 15, base);
    if constexpr (q::BITS == 5)
        v = and_or(shifted(w.high[0], (int)(4 * s + m) - (int)(at + 4)), one * 16, v);
    return v;
}
template <uint32_t F, class T>
GPU_FN void tile_raw_fragment(const tile_words<F> &w, uint32_t s, uint32_t a[4]) {
    for (uint32_t m = 0; m < 4; m++) a[m] = tile_raw_pair<F, T>(w, s, m);
}

// Of lane 4g + t, for mma_1688_tf32: columns 0..3 minima, 4..7 scales, of groups 0, 0, 1, 1.
// words: of group t / 2 of rows g and g + 8, scale and minimum.
GPU_FN void rest_fragment(const uint32_t words[2], float a[4]) {
    for (uint32_t r = 0; r < 2; r++) {
        a[r] = half_of(words[r], 1);
        a[2 + r] = half_of(words[r], 0);
    }
}
template <uint32_t F>
GPU_FN void tile_rest_fragment(const tile_words<F> &w, uint32_t t, float a[4]) {
    uint32_t words[2];
    for (uint32_t r = 0; r < 2; r++) words[r] = t < 2 ? w.scales[2 * r] : w.scales[2 * r + 1];
    rest_fragment(words, a);
}
// Its B side of lane 4g + t, from number t of the tile's {upper, lower} sums of groups 0 and 1.
template <uint32_t F> GPU_FN void rest_sums(float sum, float b[2]) {
    b[0] = sum;
    b[1] = sum * -(float)(1u << quant<F>::BITS);
}
// Part 0 or 1 of a sum of x: tf32 that add up to it.
GPU_FN float rest_part(float sum, uint32_t part) {
    float upper = tf32_of(sum); // rounded, so the rest is half as large; the rest is truncated
    return part == 0 ? upper : bits_to_f32(f32_to_bits(sum - upper) & 0xffffe000u);
}

// ---- values ----
// The eight values of step s: v[0..3] row g, columns 16s + 2t, + 1, + 8, + 9; v[4..7] row g + 8.
template <uint32_t F> GPU_FN void tile_values(const tile_words<F> &w, uint32_t s, float v[8]) {
    constexpr int offset = (int)quant<F>::OFFSET;
    for (uint32_t m = 0; m < 4; m++) {
        uint32_t r = m % 2, codes = tile_codes<F>(w, s, m);
        float scale = tile_scale<F>(w, r, s), min = tile_min<F>(w, r, s);
        float *at = v + 4 * r + m / 2 * 2;
        at[0] = scale * (float)((int)(codes & 0xffffu) - offset) + min;
        at[1] = scale * (float)((int)(codes >> 16) - offset) + min;
    }
}

#endif
