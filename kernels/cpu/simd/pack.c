/* pack.c - panel_pack with vectors: the same bytes as the plain loops in panel.c, faster.
 *
 * A vector is 2 or 4 pieces of 16 bytes, each from a row of its own.  Inside the pieces bytes are
 * turned into the words that panel.h describes, four words to a piece; then four vectors are
 * transposed:
 *
 *     vector i, piece l:  row 4 l + i, words 0 1 2 3         word w of rows 0 .. ROWS - 1,
 *                                                     ->     one vector for each w
 *
 * A unit of a panel (32 columns, or 256) is built in the nearest cache and then written past
 * the caches: weights are not read soon, and lines that are written whole need not be fetched.
 *
 * Each unit is checked for numbers that are not finite (dtype_are_finite) while its vectors are in
 * registers: all numbers of the types without blocks, else the scales d and minima m.
 *
 * For whole panels; the last one of a matrix may have fewer rows and is left to panel_pack.
 *
 * Thread: any. */
#include "cpu/panel.h"
#include "cpu/simd/simd.h"

#if defined(CPU_LEVEL_AVX512) || defined(CPU_LEVEL_AVX2)

enum {
    LANES = VW / 4,                              // pieces of a vector
    ROWS = VW,                                   // that are transposed together
    UNIT_BYTES_MAX = (2 + 16 * 13) * PANEL_ROWS, // of Q6_K
    VALUE_COLS = 32                              // a unit of the types without blocks
};

/* ---- the instructions ---- */

#if defined(CPU_LEVEL_AVX512)
typedef __m512i v;
#define V(op)          _mm512_##op
#define V_STREAM(p, x) _mm512_stream_si512((__m512i *)(void *)(p), x)
#define V_AND          _mm512_and_si512
#define V_OR           _mm512_or_si512
#define V_LOAD(p)      _mm512_loadu_si512(p)
#define V_STORE(p, x)  _mm512_storeu_si512(p, x)
INLINE v spread(__m128i x) {
    return _mm512_broadcast_i32x4(x);
}
/* 16 bytes each from p, p + step ... */
INLINE v gather(const unsigned char *p, size_t step) {
    v x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)p));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(p + step)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(p + 2 * step)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(const void *)(p + 3 * step)), 3);
}
/* The low halves of words of 2 * ROWS rows, in order. */
INLINE v narrow_16(v a, v b) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                    _mm512_packus_epi32(a, b));
}
INLINE void put_low_bytes(unsigned char *out, v x) {
    _mm_storeu_si128((__m128i *)(void *)out, _mm512_cvtepi32_epi8(x));
}
#else
typedef __m256i v;
#define V(op)          _mm256_##op
#define V_STREAM(p, x) _mm256_stream_si256((__m256i *)(void *)(p), x)
#define V_AND          _mm256_and_si256
#define V_OR           _mm256_or_si256
#define V_LOAD(p)      _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define V_STORE(p, x)  _mm256_storeu_si256((__m256i *)(void *)(p), x)
INLINE v spread(__m128i x) {
    return _mm256_broadcastsi128_si256(x);
}
INLINE v gather(const unsigned char *p, size_t step) {
    v x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(const void *)(p + step)),
                                   1);
}
INLINE v narrow_16(v a, v b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}
INLINE void put_low_bytes(unsigned char *out, v x) {
    v low = _mm256_shuffle_epi8(
        x, spread(_mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
    uint32_t words[2] = {(uint32_t)_mm256_extract_epi32(low, 0),
                         (uint32_t)_mm256_extract_epi32(low, 4)};
    memcpy(out, words, sizeof words);
}
#endif

INLINE v v_all8(int x) {
    return V(set1_epi8)((char)x);
}
INLINE v v_all16(int x) {
    return V(set1_epi16)((short)x);
}
INLINE v v_all32(uint32_t x) {
    return V(set1_epi32)((int)x);
}
/* Neighbours a b become a + by b: first bytes, then their sums. */
INLINE v pair_bytes(v x, int by) {
    return V(maddubs_epi16)(x, v_all16(by << 8 | 1));
}
INLINE v pair_sums(v x, int by) {
    return V(madd_epi16)(x, v_all32((uint32_t)by << 16 | 1));
}

/* ---- rows to lanes ---- */

typedef struct four {
    v of[4];
} four;

/* 16 bytes of ROWS rows from `p` on: piece l of vector i is of row 4 l + i. */
INLINE four load_rows(const unsigned char *p, size_t row_bytes) {
    four x;
    UNROLL for (int i = 0; i < 4; i++) x.of[i] = gather(p + (size_t)i * row_bytes, 4 * row_bytes);
    return x;
}

INLINE four transpose(four x) {
    v a = V(unpacklo_epi32)(x.of[0], x.of[1]), b = V(unpackhi_epi32)(x.of[0], x.of[1]);
    v c = V(unpacklo_epi32)(x.of[2], x.of[3]), d = V(unpackhi_epi32)(x.of[2], x.of[3]);
    return (four){{V(unpacklo_epi64)(a, c), V(unpackhi_epi64)(a, c), V(unpacklo_epi64)(b, d),
                   V(unpackhi_epi64)(b, d)}};
}

/* Words 0..3 of these rows to where rows of words are `step` bytes apart. */
INLINE void put_words(unsigned char *out, size_t step, four x) {
    UNROLL for (size_t w = 0; w < 4; w++) V_STORE(out + w * step, x.of[w]);
}

enum { WORD_STEP = 4 * PANEL_ROWS };

/* Columns, a byte each with four bits, to nibble words: of `a` words 0 1, of `b` words 2 3. */
INLINE v nibble_words(v a, v b) {
    return V(packus_epi16)(pair_bytes(a, 16), pair_bytes(b, 16));
}

INLINE v low_nibbles(v x) {
    return V_AND(x, v_all8(15));
}
INLINE v high_nibbles(v x) {
    return V_AND(V(srli_epi16)(x, 4), v_all8(15));
}

/* ---- blocks of 32 columns ---- */

INLINE void put_halves(unsigned char *q, const unsigned char *from, size_t row_bytes) {
    four x = load_rows(from, row_bytes);
    UNROLL for (int i = 0; i < 4; i++) x.of[i] =
        nibble_words(low_nibbles(x.of[i]), high_nibbles(x.of[i]));
    put_words(q, WORD_STEP, transpose(x));
}

INLINE void put_bytes(unsigned char *q, const unsigned char *from, size_t row_bytes) {
    v order = spread(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    UNROLL for (size_t half = 0; half < 2; half++) {
        four x = load_rows(from + half * 16, row_bytes);
        UNROLL for (int i = 0; i < 4; i++) x.of[i] = V(shuffle_epi8)(x.of[i], order);
        put_words(q + half * 4 * WORD_STEP, WORD_STEP, transpose(x));
    }
}

enum { WORD_VECTORS = PANEL_ROWS / ROWS };

/* Words 0 and 1 of each row's block.  They are transposed like the others: a vector that is loaded
 * from single words stored just before would wait for all of them to reach the cache. */
INLINE void read_words(const unsigned char *from, size_t row_bytes, v first[WORD_VECTORS],
                       v second[WORD_VECTORS]) {
    UNROLL for (size_t i = 0; i < WORD_VECTORS; i++) {
        four x = transpose(load_rows(from + i * ROWS * row_bytes, row_bytes));
        first[i] = x.of[0];
        second[i] = x.of[1];
    }
}

/* The low or, shifted by 16, the high halves of words. */
INLINE void put_16(const uint16_t *out, const v words[WORD_VECTORS], int shift) {
    unsigned char *to = (unsigned char *)(uintptr_t)out;
    UNROLL for (size_t i = 0; i < WORD_VECTORS; i += 2) {
        v a = V(srli_epi32)(words[i], (unsigned)shift);
        v b = V(srli_epi32)(words[i + 1], (unsigned)shift);
        V_STORE(to + i * ROWS * 2, narrow_16(V_AND(a, v_all32(0xffff)), V_AND(b, v_all32(0xffff))));
    }
}

/* Byte k of each row's word to out[lane]. */
INLINE void put_byte_of(const void *out, size_t lane, v words, unsigned k) {
    v x = V_AND(V(srli_epi32)(words, 8 * k), v_all32(255));
    put_low_bytes((unsigned char *)(uintptr_t)out + lane, x);
}

INLINE v even_nibbles(v x) {
    x = V_AND(x, v_all32(0x0f0f0f0f));
    x = V_AND(V_OR(x, V(srli_epi32)(x, 4)), v_all32(0x00ff00ff));
    return V_AND(V_OR(x, V(srli_epi32)(x, 8)), v_all32(0xffff));
}

/* Fifth bits, column by column, to where panel.h has them. */
INLINE void put_high(const uint32_t *out, const v words[WORD_VECTORS]) {
    unsigned char *to = (unsigned char *)(uintptr_t)out;
    UNROLL for (size_t i = 0; i < WORD_VECTORS; i++) {
        v x = words[i], odd = even_nibbles(V(srli_epi32)(x, 4));
        V_STORE(to + i * ROWS * 4, V_OR(even_nibbles(x), V(slli_epi32)(odd, 16)));
    }
}

INLINE void pack_block(dtype type, const unsigned char *from, size_t row_bytes,
                       unsigned char *unit) {
    v words[WORD_VECTORS], next[WORD_VECTORS];
    panel_group to = panel_group_at(type, unit, 0);
    unsigned char *q = (unsigned char *)(uintptr_t)to.q;
    size_t at = type == DTYPE_MXFP4 ? 1 : to.m != NULL ? 4 : 2; // in the row's block
    read_words(from, row_bytes, words, next);
    if (type == DTYPE_MXFP4)
        UNROLL for (size_t i = 0; i < WORD_VECTORS; i++)
            put_byte_of(to.exponent, i * ROWS, words[i], 0);
    else
        put_16(to.d, words, 0);
    if (to.m != NULL) put_16(to.m, words, 16);
    if (to.high != NULL) {
        UNROLL for (size_t i = 0; i < WORD_VECTORS; i++) if (to.m == NULL) next[i] =
            V_OR(V(srli_epi32)(words[i], 16), V(slli_epi32)(next[i], 16));
        put_high(to.high, next);
        at += 4;
    }
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        const unsigned char *rows = from + lane * row_bytes + at;
        if (type == DTYPE_Q8_0)
            put_bytes(q + lane * 4, rows, row_bytes);
        else
            put_halves(q + lane * 4, rows, row_bytes);
    }
}

/* ---- blocks of 256 columns ---- */

/* Scales and mins of 8 groups from the 12 bytes behind d and m; d and m to words. */
INLINE void put_scales(dtype type, const unsigned char *from, size_t row_bytes, unsigned char *unit,
                       size_t lane, v words[WORD_VECTORS]) {
    v six = v_all32(0x3f3f3f3f), low = v_all32(0x0f0f0f0f), top = v_all32(0x30303030);
    four x = transpose(load_rows(from + lane * row_bytes, row_bytes));
    v a = x.of[1], b = x.of[2], c = x.of[3];
    v scales[2] = {V_AND(a, six), V_OR(V_AND(c, low), V_AND(V(srli_epi32)(a, 2), top))};
    v mins[2] = {V_AND(b, six),
                 V_OR(V_AND(V(srli_epi32)(c, 4), low), V_AND(V(srli_epi32)(b, 2), top))};
    words[lane / ROWS] = x.of[0];
    UNROLL for (uint32_t g = 0; g < 8; g++) {
        panel_group to = panel_group_at(type, unit, g);
        put_byte_of(to.scale_u8, lane, scales[g / 4], g % 4);
        put_byte_of(to.min_u8, lane, mins[g / 4], g % 4);
    }
}

/* 64 columns: the low nibbles of 32 bytes are one group, the high ones the next. */
INLINE void put_streams(dtype type, const unsigned char *from, size_t row_bytes,
                        unsigned char *unit, size_t lane, uint32_t g) {
    panel_group even = panel_group_at(type, unit, g), odd = panel_group_at(type, unit, g + 1);
    four a = load_rows(from, row_bytes), b = load_rows(from + 16, row_bytes), low, high;
    UNROLL for (int i = 0; i < 4; i++) {
        low.of[i] = nibble_words(low_nibbles(a.of[i]), low_nibbles(b.of[i]));
        high.of[i] = nibble_words(high_nibbles(a.of[i]), high_nibbles(b.of[i]));
    }
    put_words((unsigned char *)(uintptr_t)even.q + lane * 4, WORD_STEP, transpose(low));
    put_words((unsigned char *)(uintptr_t)odd.q + lane * 4, WORD_STEP, transpose(high));
}

/* Bit g of the bytes of x, and of y at bit 4; then the bits of four neighbours side by side. */
INLINE v four_bits(v x, v y, unsigned g) {
    v one = v_all8(1);
    v low = V_AND(V(srli_epi32)(x, g), one), high = V_AND(V(srli_epi32)(y, g), one);
    return pair_sums(pair_bytes(V_OR(low, V(slli_epi32)(high, 4)), 2), 4);
}

/* Fifth bits of all groups: byte j of 32 has those of column j, bit g that of group g. */
INLINE void put_fifth_bits(const unsigned char *from, size_t row_bytes, unsigned char *unit,
                           size_t lane) {
    four a = transpose(load_rows(from, row_bytes)), b = transpose(load_rows(from + 16, row_bytes));
    for (uint32_t g = 0; g < 8; g++) {
        panel_group to = panel_group_at(DTYPE_Q5_K, unit, g);
        v x = four_bits(a.of[0], a.of[2], g);
        x = V_OR(x, V(slli_epi32)(four_bits(b.of[0], b.of[2], g), 8));
        x = V_OR(x, V(slli_epi32)(four_bits(a.of[1], a.of[3], g), 16));
        x = V_OR(x, V(slli_epi32)(four_bits(b.of[1], b.of[3], g), 24));
        V_STORE((unsigned char *)(uintptr_t)to.high + lane * 4, x);
    }
}

INLINE void pack_k(dtype type, const unsigned char *from, size_t row_bytes, unsigned char *unit) {
    v words[WORD_VECTORS];
    panel_group first = panel_group_at(type, unit, 0);
    size_t at = type == DTYPE_Q5_K ? 48 : 16;
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        const unsigned char *rows = from + lane * row_bytes;
        put_scales(type, from, row_bytes, unit, lane, words);
        if (type == DTYPE_Q5_K) put_fifth_bits(rows + 16, row_bytes, unit, lane);
        for (uint32_t g = 0; g < 8; g += 2)
            put_streams(type, rows + at + g * 16, row_bytes, unit, lane, g);
    }
    put_16(first.d, words, 0);
    put_16(first.m, words, 16);
}

/* Two bits of each of 16 bytes, from bit 2p on: words of 16 columns, lane by lane (panel.h). */
INLINE four two_bits(const unsigned char *from, size_t row_bytes) {
    v three = v_all8(3);
    v order = spread(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    four x = load_rows(from, row_bytes);
    UNROLL for (int i = 0; i < 4; i++) {
        v parts[4];
        UNROLL for (int p = 0; p < 4; p++) {
            v bits = V_AND(V(srli_epi16)(x.of[i], 2 * (unsigned)p), three);
            parts[p] = pair_sums(pair_bytes(bits, 4), 16);
        }
        v all = V(packus_epi16)(V(packus_epi32)(parts[0], parts[1]),
                                V(packus_epi32)(parts[2], parts[3]));
        x.of[i] = V(shuffle_epi8)(all, order);
    }
    return transpose(x);
}

/* Upper bits of four groups of 16 columns: two bits of each byte for each. */
INLINE void put_upper_bits(const unsigned char *from, size_t row_bytes, unsigned char *unit,
                           size_t lane, uint32_t g) {
    four x = two_bits(from, row_bytes);
    UNROLL for (uint32_t p = 0; p < 4; p++) {
        panel_group to = panel_group_at(DTYPE_Q6_K, unit, g + 2 * p);
        V_STORE((unsigned char *)(uintptr_t)to.high + lane * 4, x.of[p]);
    }
}

/* Low nibbles of 16 bytes are 16 columns of group g, the high ones of group g + 4. */
INLINE void put_sixteens(const unsigned char *from, size_t row_bytes, unsigned char *unit,
                         size_t lane, uint32_t g) {
    panel_group low = panel_group_at(DTYPE_Q6_K, unit, g);
    panel_group high = panel_group_at(DTYPE_Q6_K, unit, g + 4);
    four x = load_rows(from, row_bytes);
    UNROLL for (int i = 0; i < 4; i++) x.of[i] =
        nibble_words(low_nibbles(x.of[i]), high_nibbles(x.of[i]));
    x = transpose(x);
    UNROLL for (size_t w = 0; w < 2; w++) {
        size_t to = lane * 4 + w * WORD_STEP;
        V_STORE((unsigned char *)(uintptr_t)low.q + to, x.of[w]);
        V_STORE((unsigned char *)(uintptr_t)high.q + to, x.of[w + 2]);
    }
}

INLINE void pack_q6_k(const unsigned char *from, size_t row_bytes, unsigned char *unit) {
    uint16_t *d = (uint16_t *)(uintptr_t)panel_group_at(DTYPE_Q6_K, unit, 0).d;
    for (size_t lane = 0; lane < PANEL_ROWS; lane++)
        memcpy(d + lane, from + lane * row_bytes + 208, sizeof *d);
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        const unsigned char *rows = from + lane * row_bytes;
        for (uint32_t half = 0; half < 2; half++) {
            for (uint32_t at = 0; at < 2; at++) { // of 32 columns the first 16, the others
                uint32_t g = half * 8 + at;
                const unsigned char *low = rows + half * 64 + at * 16;
                put_upper_bits(rows + 128 + half * 32 + at * 16, row_bytes, unit, lane, g);
                put_sixteens(low, row_bytes, unit, lane, g);
                put_sixteens(low + 32, row_bytes, unit, lane, g + 2);
            }
        }
        four scales = transpose(load_rows(rows + 192, row_bytes));
        UNROLL for (uint32_t g = 0; g < 16; g++) {
            panel_group to = panel_group_at(DTYPE_Q6_K, unit, g);
            put_byte_of(to.scale_i8, lane, scales.of[g / 4], g % 4);
        }
    }
}

/* ---- Q2_K, Q3_K, IQ4_XS ---- */

/* The scales of both halves of 8 groups, a byte each in words of four. */
INLINE void put_scales_of_halves(dtype type, const v scales[4], unsigned char *unit, size_t lane) {
    UNROLL for (uint32_t i = 0; i < 16; i++) {
        panel_group to = panel_group_at(type, unit, i / 2);
        const void *out = type == DTYPE_Q2_K ? (const void *)to.both_u4 : (const void *)to.scale_i8;
        put_byte_of(out, i % 2 * PANEL_ROWS + lane, scales[i / 4], i % 4);
    }
}

INLINE void pack_q2_k(const unsigned char *from, size_t row_bytes, unsigned char *unit) {
    v words[WORD_VECTORS];
    panel_group first = panel_group_at(DTYPE_Q2_K, unit, 0);
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        const unsigned char *rows = from + lane * row_bytes;
        four scales = transpose(load_rows(rows, row_bytes));
        put_scales_of_halves(DTYPE_Q2_K, scales.of, unit, lane);
        for (uint32_t i = 0; i < 4; i++) { // 16 bytes have half of the columns of four groups
            four x = two_bits(rows + 16 + i * 16, row_bytes);
            UNROLL for (uint32_t p = 0; p < 4; p++) {
                panel_group to = panel_group_at(DTYPE_Q2_K, unit, i / 2 * 4 + p);
                unsigned char *q = (unsigned char *)(uintptr_t)to.q;
                V_STORE(q + i % 2 * WORD_STEP + lane * 4, x.of[p]);
            }
        }
        words[lane / ROWS] = transpose(load_rows(rows + 84 - 16, row_bytes)).of[3];
    }
    put_16(first.d, words, 0);
    put_16(first.m, words, 16);
}

/* Codes of three bits of 16 columns, a byte each: four of them in every 32 bits. */
INLINE v twelve_bits(v x) {
    return pair_sums(pair_bytes(x, 8), 64);
}

/* 32 columns of group g: two bits of the bytes of q, the third of those of high. */
INLINE void put_three_bits(const four q[2], const four high[2], unsigned char *unit, size_t lane,
                           uint32_t g) {
    four x;
    panel_group to = panel_group_at(DTYPE_Q3_K, unit, g);
    UNROLL for (int i = 0; i < 4; i++) {
        v codes[2];
        UNROLL for (int half = 0; half < 2; half++) {
            v low = V_AND(V(srli_epi16)(q[half].of[i], g % 4 * 2), v_all8(3));
            v third = V_AND(V(srli_epi16)(high[half].of[i], g), v_all8(1));
            codes[half] = V_OR(low, V(slli_epi16)(third, 2));
        }
        x.of[i] = V(packus_epi32)(twelve_bits(codes[0]), twelve_bits(codes[1]));
    }
    x = transpose(x);
    UNROLL for (uint32_t w = 0; w < 3; w++) { // each has a third of word 3
        v rest = V_AND(V(srli_epi32)(x.of[3], 4 * w), v_all32(0x000f000f));
        V_STORE((unsigned char *)(uintptr_t)to.q + w * WORD_STEP + lane * 4,
                V_OR(x.of[w], V(slli_epi32)(rest, 12)));
    }
}

/* Scales of six bits: low nibbles of two words of bytes, then the high ones; upper bits of a third
 * word, two for each word of scales; less 32. */
INLINE void six_bits(const v words[3], v scales[4]) {
    UNROLL for (unsigned i = 0; i < 4; i++) {
        v low = V_AND(V(srli_epi32)(words[i % 2], i / 2 * 4), v_all8(15));
        v upper = V_AND(V(srli_epi32)(words[2], 2 * i), v_all8(3));
        scales[i] = V(sub_epi8)(V_OR(low, V(slli_epi32)(upper, 4)), v_all8(32));
    }
}

INLINE void pack_q3_k(const unsigned char *from, size_t row_bytes, unsigned char *unit) {
    v words[WORD_VECTORS], scales[4];
    v order = spread(_mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -1, -1));
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        const unsigned char *rows = from + lane * row_bytes;
        four high[2] = {load_rows(rows, row_bytes), load_rows(rows + 16, row_bytes)};
        for (uint32_t half = 0; half < 2; half++) {
            const unsigned char *at = rows + 32 + half * 32;
            four q[2] = {load_rows(at, row_bytes), load_rows(at + 16, row_bytes)};
            for (uint32_t g = 0; g < 4; g++) put_three_bits(q, high, unit, lane, half * 4 + g);
        }
        four x = load_rows(rows + 110 - 16, row_bytes); // scales[12] and d end it
        UNROLL for (int i = 0; i < 4; i++) x.of[i] = V(shuffle_epi8)(x.of[i], order);
        x = transpose(x);
        six_bits(x.of, scales);
        put_scales_of_halves(DTYPE_Q3_K, scales, unit, lane);
        words[lane / ROWS] = x.of[3];
    }
    put_16(panel_group_at(DTYPE_Q3_K, unit, 0).d, words, 0);
}

INLINE void pack_iq4_xs(const unsigned char *from, size_t row_bytes, unsigned char *unit) {
    v words[WORD_VECTORS];
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        const unsigned char *rows = from + lane * row_bytes;
        four x = transpose(load_rows(rows, row_bytes));
        words[lane / ROWS] = x.of[0];
        for (uint32_t g = 0; g < 8; g++) {
            panel_group to = panel_group_at(DTYPE_IQ4_XS, unit, g);
            v low = V_AND(V(srli_epi32)(x.of[1], 4 * g), v_all32(15));
            v upper = V_AND(V(srli_epi32)(x.of[0], 16 + 2 * g), v_all32(3));
            v scale = V(sub_epi32)(V_OR(low, V(slli_epi32)(upper, 4)), v_all32(32));
            put_byte_of(to.scale_i8, lane, scale, 0);
            put_halves((unsigned char *)(uintptr_t)to.q + lane * 4, rows + 8 + g * 16, row_bytes);
        }
    }
    put_16(panel_group_at(DTYPE_IQ4_XS, unit, 0).d, words, 0);
}

/* ---- values ---- */

/* n_cols (multiples of PANEL_WORD) of all rows. */
INLINE void pack_f32(const unsigned char *from, size_t row_bytes, uint32_t n_cols,
                     unsigned char *unit) {
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS)
        for (size_t k = 0; k < n_cols; k += 4)
            put_words(unit + k * WORD_STEP + lane * 4, WORD_STEP,
                      transpose(load_rows(from + lane * row_bytes + k * 4, row_bytes)));
}

INLINE void pack_bf16(const unsigned char *from, size_t row_bytes, uint32_t n_cols,
                      unsigned char *unit) {
    v order = spread(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    for (size_t lane = 0; lane < PANEL_ROWS; lane += ROWS) {
        for (size_t k = 0; k < n_cols; k += PANEL_WORD) {
            four x = load_rows(from + lane * row_bytes + k * 2, row_bytes);
            UNROLL for (int i = 0; i < 4; i++) x.of[i] = V(shuffle_epi8)(x.of[i], order);
            put_words(unit + k * PANEL_ROWS * 2 + lane * 4, WORD_STEP, transpose(x));
        }
    }
}

INLINE void pack_f16(const unsigned char *from, size_t row_bytes, uint32_t n_cols,
                     unsigned char *unit) {
    enum { COL_STEP = 2 * PANEL_ROWS };
    v mask = v_all32(0xffff);
    for (size_t lane = 0; lane < PANEL_ROWS; lane += 2 * ROWS) {
        for (size_t k = 0; k < n_cols; k += PANEL_WORD) {
            const unsigned char *rows = from + lane * row_bytes + k * 2;
            four a = transpose(load_rows(rows, row_bytes));
            four b = transpose(load_rows(rows + ROWS * row_bytes, row_bytes));
            unsigned char *out = unit + k * COL_STEP + lane * 2;
            UNROLL for (size_t w = 0; w < 4; w++) {
                V_STORE(out + 2 * w * COL_STEP,
                        narrow_16(V_AND(a.of[w], mask), V_AND(b.of[w], mask)));
                V_STORE(out + (2 * w + 1) * COL_STEP,
                        narrow_16(V(srli_epi32)(a.of[w], 16), V(srli_epi32)(b.of[w], 16)));
            }
        }
    }
}

/* ---- a panel ---- */

/* Sets the sign of each lane with all exponent bits set, a number that is not finite. */
INLINE v carries(dtype type, v x) {
    if (type == DTYPE_F32) return V(add_epi32)(V_AND(x, v_all32(0x7f800000)), v_all32(0x00800000));
    if (type == DTYPE_BF16) return V(add_epi16)(V_AND(x, v_all16(0x7f80)), v_all16(0x0080));
    return V(add_epi16)(V_AND(x, v_all16(0x7c00)), v_all16(0x0400));
}

INLINE bool none_set(v signs) {
    uint64_t words[sizeof(v) / 8], all = 0;
    V_STORE(words, signs);
    for (size_t i = 0; i < sizeof(v) / 8; i++) all |= words[i];
    return (all & 0x8000800080008000u) == 0; // of a word of 32 bits the lower half is zero there
}

INLINE bool has_blocks(dtype type) {
    return type != DTYPE_F32 && type != DTYPE_F16 && type != DTYPE_BF16;
}

/* Signs of scales of MXFP4 that are not finite with every code. */
INLINE v exponents_carry(const unsigned char *exponent, v signs) {
    for (size_t i = 0; i < PANEL_ROWS; i += sizeof(v)) {
        v beyond = V(subs_epu8)(V_LOAD(exponent + i), v_all8(MXFP4_SCALE_FINITE));
        signs = V_OR(signs, V(add_epi16)(beyond, v_all16(0x7fff)));
    }
    return signs;
}

/* d, and m where there is one, which follows it. */
INLINE v halves_carry(dtype type, const unsigned char *unit, v signs) {
    panel_group at = panel_group_at(type, unit, 0);
    if (type == DTYPE_MXFP4) return exponents_carry(at.exponent, signs);
    size_t n_bytes = (at.m != NULL ? 2 : 1) * PANEL_ROWS * sizeof *at.d;
    const unsigned char *d = (const unsigned char *)at.d;
    for (size_t i = 0; i < n_bytes; i += sizeof(v))
        signs = V_OR(signs, carries(DTYPE_F16, V_LOAD(d + i)));
    return signs;
}

/* Both begin at lines and are whole lines.  Returns `signs`, with those of non-finite numbers. */
INLINE v send(dtype type, unsigned char *out, const unsigned char *unit, size_t n_bytes, v signs) {
    if (has_blocks(type)) signs = halves_carry(type, unit, signs);
    for (size_t i = 0; i < n_bytes; i += sizeof(v)) {
        v x = V_LOAD(unit + i);
        if (!has_blocks(type)) signs = V_OR(signs, carries(type, x));
        V_STREAM(out + i, x);
    }
    return signs;
}

/* Columns of a unit, and their bytes in a row of the file. */
INLINE uint32_t unit_cols(dtype type) {
    switch ((int)type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        return VALUE_COLS;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K:
    case DTYPE_Q2_K:
    case DTYPE_Q3_K:
    case DTYPE_IQ4_XS:
        return PANEL_BLOCK;
    default:
        return 32;
    }
}

INLINE void pack_unit(dtype type, const unsigned char *from, size_t row_bytes, uint32_t n_cols,
                      unsigned char *unit) {
    switch ((int)type) {
    case DTYPE_F32:
        pack_f32(from, row_bytes, n_cols, unit);
        break;
    case DTYPE_F16:
        pack_f16(from, row_bytes, n_cols, unit);
        break;
    case DTYPE_BF16:
        pack_bf16(from, row_bytes, n_cols, unit);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        pack_k(type, from, row_bytes, unit);
        break;
    case DTYPE_Q6_K:
        pack_q6_k(from, row_bytes, unit);
        break;
    case DTYPE_Q2_K:
        pack_q2_k(from, row_bytes, unit);
        break;
    case DTYPE_Q3_K:
        pack_q3_k(from, row_bytes, unit);
        break;
    case DTYPE_IQ4_XS:
        pack_iq4_xs(from, row_bytes, unit);
        break;
    default:
        pack_block(type, from, row_bytes, unit);
        break;
    }
}

INLINE bool pack_type(dtype type, uint32_t cols, const unsigned char *rows, unsigned char *panel) {
    _Alignas(64) unsigned char unit[UNIT_BYTES_MAX];
    dtype_info info = dtype_about(type);
    size_t row_bytes = (size_t)cols / info.block_elems * info.block_bytes;
    v signs = v_all32(0);
    for (uint32_t k = 0; k < cols; k += unit_cols(type)) {
        uint32_t n_cols = u32_min(unit_cols(type), cols - k);
        size_t n_bytes = panel_bytes(type, n_cols);
        pack_unit(type, rows + (size_t)k / info.block_elems * info.block_bytes, row_bytes, n_cols,
                  unit);
        signs = send(type, panel, unit, n_bytes, signs);
        panel += n_bytes;
    }
    return none_set(signs);
}

bool LEVEL(panel_pack)(dtype type, uint32_t cols, const unsigned char *rows, uint32_t n_rows,
                       unsigned char *panel) {
    if (n_rows < PANEL_ROWS || cols % PANEL_WORD != 0 || (uintptr_t)panel % PANEL_ALIGN != 0) {
        return panel_pack(type, cols, rows, n_rows, panel);
    }
    bool finite = false;
    switch ((int)type) {
#define TYPE(t)                                                                                    \
    case t:                                                                                        \
        finite = pack_type(t, cols, rows, panel);                                                  \
        break;
        TYPE(DTYPE_F32)
        TYPE(DTYPE_F16)
        TYPE(DTYPE_BF16)
        TYPE(DTYPE_Q4_0)
        TYPE(DTYPE_Q4_1)
        TYPE(DTYPE_Q5_0)
        TYPE(DTYPE_Q5_1)
        TYPE(DTYPE_Q8_0)
        TYPE(DTYPE_Q4_K)
        TYPE(DTYPE_Q5_K)
        TYPE(DTYPE_Q6_K)
        TYPE(DTYPE_Q2_K)
        TYPE(DTYPE_Q3_K)
        TYPE(DTYPE_IQ4_NL)
        TYPE(DTYPE_IQ4_XS)
        TYPE(DTYPE_MXFP4)
#undef TYPE
    default:
        INFERD_CHECK(!"a type that panels hold");
    }
    if (type == DTYPE_MXFP4 && !finite) finite = panel_is_finite(type, cols, panel);
    _mm_sfence(); // other threads see it when they learn that it is complete
    return finite;
}

#endif
