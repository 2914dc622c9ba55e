// selftest.cu - the primitives of gpu.cuh, one kind per kernel: see selftest.h.
//
// Words of 32 bits are written unchanged and floats as their bits, so that the host compares
// integers.  Nothing here is fast.
//
// Compiles for sm_80 to sm_90 and passes emulation; not yet run on a GPU.
#include "cuda/gpu.cuh"

extern "C" {
#include "cuda/selftest.h"
}

namespace {

typedef selftest_params P;

GPU_FN uint32_t *out_words(const P &p) {
    return static_cast<uint32_t *>(p.out);
}
GPU_FN const uint32_t *in_words(const P &p) {
    return static_cast<const uint32_t *>(p.in);
}
GPU_FN uint32_t global_idx() {
    return block_x() * n_threads() + thread_idx();
}

// ---- 16-bit numbers ----

template <class T> GPU_FN uint32_t fma2(uint32_t a, uint32_t b, uint32_t c);
template <> GPU_FN uint32_t fma2<f16>(uint32_t a, uint32_t b, uint32_t c) {
    return fma2_f16(a, b, c);
}
template <> GPU_FN uint32_t fma2<bf16>(uint32_t a, uint32_t b, uint32_t c) {
    return fma2_bf16(a, b, c);
}

// in: n floats; more: n patterns of 16 bits, one per word; most: n times a, b, c.
// out: [6][n] from_f32, pack2 with the float from the other end, to_f32, unpack2 (low and high of
// two patterns), fma2.
template <class T> GPU_FN void numbers(const P &p) {
    uint32_t i = global_idx(), n = p.n, *out = out_words(p);
    if (i >= n) return;
    const float *f = static_cast<const float *>(p.in);
    const uint32_t *bits = static_cast<const uint32_t *>(p.more);
    const uint32_t *abc = static_cast<const uint32_t *>(p.most);
    float low, high;
    out[i] = from_f32<T>(f[i]).bits;
    out[n + i] = pack2<T>(f[i], f[n - 1 - i]);
    out[2 * n + i] = f32_to_bits(to_f32(T{(uint16_t)bits[i]}));
    unpack2<T>(bits[i] | bits[n - 1 - i] << 16, &low, &high);
    out[3 * n + i] = f32_to_bits(low);
    out[4 * n + i] = f32_to_bits(high);
    out[5 * n + i] = fma2<T>(abc[3 * i], abc[3 * i + 1], abc[3 * i + 2]);
}

// ---- mma ----

// in: a[16][16], then b[16][8], 16 bits each, row by row; more: c[16][8] float.
// out: c + n * (a b), float.  Fragments come straight from memory, lane 4g + t as in gpu.cuh.
template <class T> GPU_FN void mma(const P &p) {
    uint32_t lane = lane_idx(), g = lane / 4, t = lane % 4;
    const uint32_t *a = in_words(p);
    const uint16_t *b = static_cast<const uint16_t *>(p.in) + 256;
    const float *c = static_cast<const float *>(p.more) + g * 8 + 2 * t;
    uint32_t fa[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    uint32_t fb[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint16_t *at = b + (2 * t + 8 * i) * 8 + g;
        fb[i] = at[0] | (uint32_t)at[8] << 16;
    }
    float d[4] = {c[0], c[1], c[64], c[65]};
    for (uint32_t i = 0; i < p.n; i++) mma_16816<T>(d, fa, fb);
    float *out = static_cast<float *>(p.out) + g * 8 + 2 * t;
    out[0] = d[0], out[1] = d[1], out[64] = d[2], out[65] = d[3];
}

// in: a[16][8], then b[8][8], float; more and out as above.
GPU_FN void mma_tf32(const P &p) {
    uint32_t lane = lane_idx(), g = lane / 4, t = lane % 4;
    const float *a = static_cast<const float *>(p.in), *b = a + 128;
    const float *c = static_cast<const float *>(p.more) + g * 8 + 2 * t;
    float fa[4] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4]};
    float fb[2] = {b[t * 8 + g], b[(t + 4) * 8 + g]};
    float d[4] = {c[0], c[1], c[64], c[65]};
    for (uint32_t i = 0; i < p.n; i++) mma_1688_tf32(d, fa, fb);
    float *out = static_cast<float *>(p.out) + g * 8 + 2 * t;
    out[0] = d[0], out[1] = d[1], out[64] = d[2], out[65] = d[3];
}

} // namespace

// out[global thread]: block, lane and warp; then one word: the grid.
GPU_KERNEL(selftest_places, P, SELFTEST_THREADS, 1) {
    uint32_t block = block_x() + grid_x() * (block_y() + grid_y() * block_z());
    uint32_t i = block * n_threads() + thread_idx();
    out_words(p)[i] =
        block_x() | block_y() << 4 | block_z() << 8 | lane_idx() << 12 | warp_idx() << 20;
    if (i == 0)
        out_words(p)[grid_x() * grid_y() * grid_z() * n_threads()] =
            grid_x() | grid_y() << 8 | grid_z() << 16 | n_threads() << 24;
}

// out[10][thread]
GPU_KERNEL(selftest_lanes, P, SELFTEST_THREADS, 1) {
    uint32_t t = thread_idx(), n = n_threads(), *out = out_words(p);
    uint32_t v = in_words(p)[t];
    uint64_t big = (uint64_t)v << 32 | ~v;
    out[t] = shfl(v, (lane_idx() * 7) & 31);
    out[n + t] = shfl_xor(v, 5);
    out[2 * n + t] = shfl_down(v, 3);
    out[3 * n + t] = shfl_up(v, 3);
    out[4 * n + t] = ballot((v & 1) != 0);
    big = shfl_xor(big, 16);
    out[5 * n + t] = (uint32_t)(big >> 32) ^ 3u * (uint32_t)big;
    out[6 * n + t] = warp_sum(v);
    out[7 * n + t] = f32_to_bits(warp_sum((float)(v & 1023)));
    out[8 * n + t] = f32_to_bits(warp_max((float)(v & 1023)));
    out[9 * n + t] = f32_to_bits(shfl((float)t, 9));
}

// out[4][thread]: the word that another thread wrote to shared memory, after each kind of barrier;
// the second is sync_threads_or.
GPU_KERNEL(selftest_barriers, P, SELFTEST_THREADS, 1) {
    uint32_t t = thread_idx(), n = n_threads(), *out = out_words(p), *s = shared<uint32_t>();
    uint32_t v = in_words(p)[t];
    s[t] = v;
    sync_threads();
    out[t] = s[n - 1 - t];
    bool one = sync_threads_or(t == 77), none = sync_threads_or(false);
    out[n + t] = (one ? 1u : 0u) | (none ? 2u : 0u);
    s[n + t] = v + 1;
    sync_named(1 + t / 64, 64);
    out[2 * n + t] = s[n + (t ^ 32)];
    s[2 * n + t] = v + 2;
    sync_warp();
    out[3 * n + t] = s[2 * n + (t ^ 1)];
}

// Blocks of 64.  out: sum, largest, or of all inputs; sum and largest of 64 bits; the sum of the
// blocks' words in scratch, read by the last one, and which blocks were last; from 16 on sum,
// largest, or of each block by shared atomics.  All zero before.
GPU_KERNEL(selftest_atomics, P, 64, 1) {
    uint32_t t = thread_idx(), *out = out_words(p), *s = shared<uint32_t>();
    uint32_t v = in_words(p)[global_idx()];
    uint64_t big = (uint64_t)v << 20 | t;
    if (t < 3) s[t] = 0;
    sync_threads();
    atomic_add(&s[0], v);
    atomic_max(&s[1], v);
    atomic_or(&s[2], v);
    sync_threads();
    if (t < 3) out[16 + 4 * block_x() + t] = s[t];
    atomic_add(&out[0], v);
    atomic_max(&out[1], v);
    atomic_or(&out[2], v);
    atomic_add(reinterpret_cast<uint64_t *>(out + 4), big);
    atomic_max(reinterpret_cast<uint64_t *>(out + 6), big);
    if (t != 0) return;
    p.scratch[1 + block_x()] = s[0];
    fence();
    uint32_t n_before = atomic_add(&p.scratch[0], 1u);
    fence();
    if (n_before + 1 != grid_x()) return;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < grid_x(); i++) sum += load_fresh(&p.scratch[1 + i]);
    out[8] = sum;
    out[9]++;
}

// One warp.  in: 128 words.  out: the same by 16 bytes: load16, load_stream16, load_fresh16, then
// through shared memory (each thread its neighbour's); 64 words by 8 bytes: load8, load_stream8,
// through shared memory; 32 by 4: load_stream4, load_fresh of words and of floats.
GPU_KERNEL(selftest_loads, P, SELFTEST_WARP, 1) {
    uint32_t t = thread_idx(), *out = out_words(p), *s = shared<uint32_t>();
    const uint32_t *in = in_words(p);
    store16(out + 4 * t, load16(in + 4 * t));
    store16(out + 128 + 4 * t, load_stream16(in + 4 * t));
    store16(out + 256 + 4 * t, load_fresh16(in + 4 * t));
    store16(s + 4 * t, load16(in + 4 * t));
    sync_warp();
    store16(out + 384 + 4 * t, load16(s + 4 * (t ^ 1)));
    store8(out + 512 + 2 * t, load8(in + 2 * t));
    store8(out + 576 + 2 * t, load_stream8(in + 2 * t));
    store8(s + 128 + 2 * t, load8(in + 2 * t));
    sync_warp();
    store8(out + 640 + 2 * t, load8(s + 128 + 2 * (t ^ 1)));
    out[704 + t] = load_stream4(in + t);
    out[736 + t] = load_fresh(in + t);
    out[768 + t] = f32_to_bits(load_fresh(static_cast<const float *>(p.in) + t));
    out[800 + t] = shared_address(s + t) - shared_address(s);
}

// A ring of two stages, one copy in flight while the other is read: out[stage][thread] is the data
// that the thread from the other end copied, 16 bytes each.  Then a stage in which odd threads copy
// zeros.
GPU_KERNEL(selftest_copies, P, SELFTEST_THREADS, 1) {
    uint32_t t = thread_idx(), n = n_threads();
    const word4 *in = static_cast<const word4 *>(p.in);
    word4 *out = static_cast<word4 *>(p.out), *s = shared<word4>();
    cp_async16(&s[t], &in[t]);
    cp_async_commit();
    for (uint32_t i = 0; i < SELFTEST_COPY_STAGES; i++) {
        if (i + 1 < SELFTEST_COPY_STAGES) cp_async16(&s[(i + 1) % 2 * n + t], &in[(i + 1) * n + t]);
        cp_async_commit();
        cp_async_wait<1>();
        sync_threads();
        store16(&out[i * n + t], load16(&s[i % 2 * n + (n - 1 - t)]));
        sync_threads();
    }
    cp_async_wait<0>();
    cp_async16_or_zero(&s[t], &in[t], t % 2 == 0);
    cp_async_commit();
    cp_async_wait<0>();
    sync_threads();
    store16(&out[SELFTEST_COPY_STAGES * n + t], load16(&s[n - 1 - t]));
}

// out[i]: in[i] after n steps of a congruential generator.  The dependents are released at once and
// the result comes late: a dependent that does not wait for it reads other data.
GPU_KERNEL(selftest_dependents, P, SELFTEST_THREADS, 1) {
    release_dependents();
    wait_predecessor();
    uint32_t i = global_idx(), v = in_words(p)[i];
    for (uint32_t k = 0; k < p.n; k++) v = v * 1664525u + 1013904223u;
    out_words(p)[i] = v;
}

GPU_KERNEL(selftest_numbers_bf16, P, SELFTEST_THREADS, 1) {
    numbers<bf16>(p);
}
GPU_KERNEL(selftest_numbers_f16, P, SELFTEST_THREADS, 1) {
    numbers<f16>(p);
}

// out[SELFTEST_MATH_OUTPUTS][n], floats of the n floats of `in`; selftest_words.c has the list.
GPU_KERNEL(selftest_math, P, SELFTEST_THREADS, 1) {
    uint32_t i = global_idx(), n = p.n;
    if (i >= n) return;
    float x = to_f32(from_f32<float>(static_cast<const float *>(p.in)[i]));
    float *out = static_cast<float *>(p.out) + i;
    uint32_t bits = f32_to_bits(x);
    out[0] = exp2_fast(x);
    out[n] = exp_f32(x);
    out[2 * n] = tanh_f32(x);
    out[3 * n] = rsqrt_f32(max_f32(x, 0.5f));
    out[4 * n] = min_f32(x, 0.5f);
    out[5 * n] = max_f32(x, -GPU_INFINITY);
    out[6 * n] = fma_f32(x, x, -x * x); // the rounding error of x * x
    out[7 * n] = bits_to_f32(bits ^ 0x80000000u);
    out[8 * n] = (float)popcount(bits);
    out[9 * n] = (float)leading_zeros(bits >> 8);
    out[10 * n] = exp2_fast(min_f32(x, -GPU_INFINITY));
    out[11 * n] = within_f16(x * 65536.0f);
    out[12 * n] = (float)(and_or(bits, 0x00ff0000u, 0x5au) >> 8);
    out[13 * n] = (float)div_up(i, 3);
    out[14 * n] = within_f16(GPU_INFINITY);
    out[15 * n] = exp2_fast(0.0f);
}

// One warp.  in: 16 x 16 numbers of 16 bits.  out: [12][lane] registers of ldmatrix4, ldmatrix2,
// ldmatrix4_t, ldmatrix2_t.  Matrices 0 and 1 lie below each other, 2 and 3 to the right of them.
GPU_KERNEL(selftest_ldmatrix, P, SELFTEST_WARP, 1) {
    uint32_t t = thread_idx(), r[4], *out = out_words(p);
    unsigned char *s = shared<unsigned char>();
    store16(s + t / 2 * SELFTEST_ROW_BYTES + t % 2 * 16,
            load16(static_cast<const unsigned char *>(p.in) + 16 * t));
    sync_warp();
    const unsigned char *row = s + t % 16 * SELFTEST_ROW_BYTES + t / 16 * 16;
    const unsigned char *left = s + t % 16 * SELFTEST_ROW_BYTES;
    ldmatrix4(r, row);
    for (uint32_t i = 0; i < 4; i++) out[i * 32 + t] = r[i];
    ldmatrix2(r, left);
    for (uint32_t i = 0; i < 2; i++) out[(4 + i) * 32 + t] = r[i];
    ldmatrix4_t(r, row);
    for (uint32_t i = 0; i < 4; i++) out[(6 + i) * 32 + t] = r[i];
    ldmatrix2_t(r, left);
    for (uint32_t i = 0; i < 2; i++) out[(10 + i) * 32 + t] = r[i];
}

GPU_KERNEL(selftest_mma_bf16, P, SELFTEST_WARP, 1) {
    mma<bf16>(p);
}
GPU_KERNEL(selftest_mma_f16, P, SELFTEST_WARP, 1) {
    mma<f16>(p);
}
GPU_KERNEL(selftest_mma_tf32, P, SELFTEST_WARP, 1) {
    mma_tf32(p);
}

// clang-format off
GPU_TABLE(selftest) {
    GPU_ENTRY(selftest_places, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_lanes, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_barriers, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_atomics, P, 64, 80),
    GPU_ENTRY(selftest_loads, P, SELFTEST_WARP, 80),
    GPU_ENTRY(selftest_copies, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_dependents, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_numbers_bf16, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_numbers_f16, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_math, P, SELFTEST_THREADS, 80),
    GPU_ENTRY(selftest_ldmatrix, P, SELFTEST_WARP, 80),
    GPU_ENTRY(selftest_mma_bf16, P, SELFTEST_WARP, 80),
    GPU_ENTRY(selftest_mma_f16, P, SELFTEST_WARP, 80),
    GPU_ENTRY(selftest_mma_tf32, P, SELFTEST_WARP, 80),
} GPU_TABLE_END(selftest)
    // clang-format on
