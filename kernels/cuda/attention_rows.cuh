// attention_rows.cuh - shared by decode and prefill: rows in shared memory, mma operands, softmax.
//
// Products are mma.m16n8k16: 16 query rows times 8 keys in steps of 16 dimensions, and 16 query
// rows times 8 dimensions in steps of 16 keys.  Two tiles of mma scores together, rounded, are the
// left operand of the second product, so weights never leave registers.
//
//     q . K        A: queries [16, 16 dims]        B: keys, rows as stored
//     weights . V  A: weights [16, 16 keys]        B: values, transposed by ldmatrix
//
// Online softmax.  A row processes its scores a few keys at a time and keeps three things: the
// largest score so far, the sum of 2^(score - largest), and the sum of values with these weights.
// Scores are in units of log 2, because exp2 is one instruction.  A larger score scales the other
// two down; when no row of the warp has one, nothing is scaled: the factor would be exactly 1.
//
// Rows in shared memory lie an odd number of 16-byte units apart, so a unit of any 8 neighbours is
// in 8 different parts of 128 bytes and there are no bank conflicts.
#ifndef INFERD_ATTENTION_ROWS_CUH
#define INFERD_ATTENTION_ROWS_CUH

#include "cuda/gpu.cuh"

extern "C" {
#include "cuda/attention_params.h"
}

template <class T> struct other_type;
template <> struct other_type<f16> {
    using type = bf16;
    static constexpr uint32_t INNER = CU_F16;
};
template <> struct other_type<bf16> {
    using type = f16;
    static constexpr uint32_t INNER = CU_BF16;
};

GPU_FN uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

// ---- rows in shared memory ----
// Index of 16-byte unit `unit` of row `row`, in units.
template <uint32_t D> GPU_FN uint32_t place(uint32_t row, uint32_t unit) {
    return row * attention_row_units(D) + unit;
}

// A operand: rows row..row+15, dimensions 16k..16k+15.
template <uint32_t D>
GPU_FN void load_a(uint32_t a[4], const word4 *rows, uint32_t row, uint32_t k, uint32_t lane) {
    ldmatrix4(a, rows + place<D>(row + lane % 16, 2 * k + lane / 16));
}
// B operands of q.K: keys row..row+7 in b[0..1], row+8..row+15 in b[2..3], dimensions 16k..16k+15.
template <uint32_t D>
GPU_FN void load_keys(uint32_t b[4], const word4 *rows, uint32_t row, uint32_t k, uint32_t lane) {
    ldmatrix4(b, rows + place<D>(row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
// B operands of weights.V: tokens row..row+15; dimensions 16j..16j+7 in b[0..1], 16j+8.. in
// b[2..3].
template <uint32_t D>
GPU_FN void load_values(uint32_t b[4], const word4 *rows, uint32_t row, uint32_t j, uint32_t lane) {
    ldmatrix4_t(b, rows + place<D>(row + lane % 16, 2 * j + lane / 16));
}

// Eight numbers of q as T.
template <class T> GPU_FN word4 load_q(const attention_params &p, size_t at) {
    word4 v = load16(static_cast<const uint16_t *>(p.q) + at);
    if (p.inner == other_type<T>::INNER) return v;
    uint32_t *w[4] = {&v.x, &v.y, &v.z, &v.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float low, high;
        unpack2<typename other_type<T>::type>(*w[i], &low, &high);
        if (p.kv.type == CU_F16) {
            low = within_f16(low);
            high = within_f16(high);
        }
        *w[i] = pack2<T>(low, high);
    }
    return v;
}
GPU_FN uint32_t pack_inner(const attention_params &p, float low, float high) {
    return p.inner == CU_BF16 ? pack2<bf16>(low, high) : pack2<f16>(low, high);
}

// Bytes from the arena's begin to the keys of (token, kv head); `table` is where the sequence's
// block table begins.
GPU_FN uint64_t chunk_offset(const attention_params &p, uint32_t table, uint32_t token,
                             uint32_t kv_head) {
    const kv_view &kv = p.kv;
    uint32_t block = token / kv.block_tokens;
    uint32_t slot = (uint32_t)p.view.tables[table + (size_t)block * kv.n_groups + p.layer_group];
    uint32_t page = slot / kv.slots_per_page;
    uint32_t row = kv_head * kv.block_tokens + token % kv.block_tokens;
    return page * kv.page_bytes + (uint64_t)(slot - page * kv.slots_per_page) * kv.slot_bytes +
           p.layer_offset + (uint64_t)row * kv.head_dim * 2;
}

// ---- softmax, a few keys at a time ----
// tanh by exp2: off by some 2^-22 of the cap, which is negligible in an exponent.
GPU_FN float capped(float x) {
    float r = rsqrt_f32(1.0f + exp2_fast(x * 2.8853900817779268f)); // (1 + e^2x)^-1/2
    return 1.0f - 2.0f * r * r;
}
// Products q.K of mma to scores, without score_scale.
template <uint32_t N> GPU_FN void cap_scores(const attention_params &p, float (&s)[N][4]) {
    if (p.cap_scale == 0) return;
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) s[n][e] = capped(s[n][e] * p.cap_scale);
}

// 16 rows; this lane has parts of two of them, g and g + 8.
template <uint32_t D> struct softmax_rows {
    float o[D / 8][4];
    float max[2], sum[2]; // max: before score_scale; sum: of this lane's columns
};
template <uint32_t D> GPU_FN void clear(softmax_rows<D> &r) {
#pragma unroll
    for (uint32_t j = 0; j < D / 8; j++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) r.o[j][e] = 0;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        r.max[h] = -GPU_INFINITY;
        r.sum[h] = 0;
    }
}

// Scores, times scale, become weights; the sums so far are scaled to the new maximum.
template <uint32_t D, uint32_t N>
GPU_FN void meet(softmax_rows<D> &r, float (&s)[N][4], float scale) {
    float keep[2];
    bool grew = false;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float max = max_f32(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
        for (uint32_t n = 1; n < N; n++) max = max_f32(max, max_f32(s[n][2 * h], s[n][2 * h + 1]));
        max = max_f32(max, shfl_xor(max, 1));
        max = max_f32(r.max[h], max_f32(max, shfl_xor(max, 2)));
        grew = grew || max != r.max[h];
        float base = max == -GPU_INFINITY ? 0.0f : -max * scale; // nothing seen yet: no inf - inf
        // Exactly 1 for the same maximum: then a tile that a row does not see changes no bit.
        keep[h] = max == r.max[h] ? 1.0f : exp2_fast((r.max[h] - max) * scale);
        r.max[h] = max;
        float sum = 0;
#pragma unroll
        for (uint32_t n = 0; n < N; n++) {
            s[n][2 * h] = exp2_fast(fma_f32(s[n][2 * h], scale, base));
            s[n][2 * h + 1] = exp2_fast(fma_f32(s[n][2 * h + 1], scale, base));
            sum += s[n][2 * h] + s[n][2 * h + 1];
        }
        r.sum[h] = fma_f32(r.sum[h], keep[h], sum);
    }
    if (ballot(grew) == 0) return; // the factor is 1, or the sums are zero
#pragma unroll
    for (uint32_t j = 0; j < D / 8; j++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) r.o[j][e] *= keep[e / 2];
}

// A sink is one more score, of no value: only the sum of weights grows.  Far above the row's
// maximum (in units of log 2) it makes that sum infinite, and the output 0, as it should be.
GPU_FN float sink_weight(const attention_params &p, uint32_t head, float max) {
    return p.sinks != nullptr ? exp2_fast(p.sinks[head] * 1.4426950408889634f - max) : 0.0f;
}

// A operand from the weights of 16 keys.
template <class T> GPU_FN void pack_weights(uint32_t a[4], const float s0[4], const float s1[4]) {
    a[0] = pack2<T>(s0[0], s0[1]);
    a[1] = pack2<T>(s0[2], s0[3]);
    a[2] = pack2<T>(s1[0], s1[1]);
    a[3] = pack2<T>(s1[2], s1[3]);
}

#endif
