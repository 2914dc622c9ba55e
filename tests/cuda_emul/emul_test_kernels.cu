// emul_test_kernels.cu - kernels that keep the rules of gpu.cuh, and kernels that break one each.
//
// Written for test_cuda_emul.c; never launched on a device, but compiled by nvcc too, so that both
// branches of gpu.cuh have every word.  `in` and `out` are words unless a kernel says otherwise.
//
// Thread: fibers.
#include "cuda/gpu.cuh"
#include "cuda_emul/emul_test.h"

typedef emul_test_params P;

GPU_FN const uint32_t *in_words(const P &p) {
    return static_cast<const uint32_t *>(p.in);
}
GPU_FN uint32_t *out_words(const P &p) {
    return static_cast<uint32_t *>(p.out);
}
GPU_FN uint32_t *scratch_words(const P &p) {
    return static_cast<uint32_t *>(p.scratch);
}

// Where in its grid and block a thread is: out[global thread] = all of it in one word.
GPU_KERNEL(where, P, 1024, 1) {
    uint32_t block = block_x() + grid_x() * (block_y() + grid_y() * block_z());
    uint32_t i = block * n_threads() + thread_idx();
    out_words(p)[i] =
        block_x() | block_y() << 4 | block_z() << 8 | lane_idx() << 12 | warp_idx() << 20;
    if (i == 0) scratch_words(p)[0] = grid_x() | grid_y() << 8 | grid_z() << 16;
}

// out[k]: the thread that came k-th; with n > 0, there are n barriers before.
GPU_KERNEL(order, P, 1024, 1) {
    for (uint32_t i = 0; i < p.n; i++) sync_threads();
    uint32_t k = atomic_add(p.counter, 1);
    out_words(p)[k] = block_x() * n_threads() + thread_idx();
}

GPU_KERNEL(meet, P, 128, 1) {
    uint32_t t = thread_idx(), *out = out_words(p);
    uint32_t v = t;
    switch (p.what) {
    case MEET_OK: // what every thread wrote is seen by all
        shared<uint32_t>()[t] = t;
        sync_threads();
        out[t] = shared<uint32_t>()[n_threads() - 1 - t];
        break;
    case MEET_OR:
        out[t] = sync_threads_or(t == 77) && !sync_threads_or(false) ? 1 : 0;
        break;
    case MEET_EARLY_RETURN:
        if (t == 5) return;
        if (t == 127) return;
        sync_threads();
        out[t] = 1;
        break;
    case MEET_OTHER_LINE:
        if (warp_idx() == 1)
            sync_threads();
        else
            sync_threads();
        break;
    case MEET_OTHER_KIND:
        if (warp_idx() == 1)
            sync_threads_or(false);
        else
            sync_threads();
        break;
    case MEET_LANE_AT_SHUFFLE:
        if (lane_idx() < 16) v = shfl(v, 0);
        sync_threads();
        break;
    case MEET_SHUFFLE_LATE:
        if (lane_idx() < 16) sync_threads();
        v = shfl(v, 0);
        break;
    case MEET_SHUFFLES_DIFFER:
        if (lane_idx() < 16)
            v = shfl(v, 0);
        else
            v = shfl(v, 1);
        break;
    case MEET_SUMS_DIFFER:
        if (lane_idx() < 16)
            v = warp_sum(v);
        else
            v = warp_sum(v + 1);
        break;
    case MEET_LANE_RETURNED:
        if (lane_idx() == 3) return;
        sync_warp();
        break;
    case MEET_LANE_RETURNS:
        if (lane_idx() == 3) return;
        v = ballot(true);
        break;
    case MEET_DEADLOCK:
        if (warp_idx() == 2)
            sync_named(3, 64);
        else
            sync_threads();
        break;
    case MEET_NAMED_ID:
        sync_named(16, 64);
        break;
    case MEET_NAMED_THREADS:
        sync_named(1, 48);
        break;
    case MEET_NAMED_DISAGREE:
        if (warp_idx() < 2) sync_named(1, warp_idx() == 0 ? 64 : 96);
        break;
    case MEET_LANES_DISAGREE:
        sync_named(lane_idx() == 3 ? 2 : 1, 32);
        break;
    case MEET_SHUFFLE_LANE:
        v = shfl(v, lane_idx() + 1);
        break;
    }
    if (p.what >= MEET_OTHER_LINE) out[t] = v;
}

// All shuffles, of 4 and 8 bytes: out[what][thread].
GPU_KERNEL(shuffles, P, 128, 1) {
    uint32_t t = thread_idx(), n = n_threads(), *out = out_words(p);
    uint64_t big = (uint64_t)t << 32 | (1000 + t);
    double d = (double)t + 0.25;
    out[0 * n + t] = shfl(t, (lane_idx() * 7) & 31);
    out[1 * n + t] = shfl_xor(t, 5);
    out[2 * n + t] = shfl_down(t, 3);
    out[3 * n + t] = shfl_up(t, 3);
    out[4 * n + t] = ballot(t % 3 == 0);
    big = shfl_xor(big, 16);
    out[5 * n + t] = (uint32_t)(big >> 32) == (t ^ 16) ? (uint32_t)big : 0;
    out[6 * n + t] = (uint32_t)(4.0 * shfl_down(d, 1));
    out[7 * n + t] = (uint32_t)warp_sum((float)t);
    out[8 * n + t] = (uint32_t)warp_max((float)((t * 11) & 31));
    out[9 * n + t] = (uint32_t)shfl_up(-(int32_t)t, 1);
}

GPU_KERNEL(race, P, 128, 1) {
    uint32_t t = thread_idx(), *out = out_words(p), *s = shared<uint32_t>(), v = 0;
    uint8_t *s8 = shared<uint8_t>();
    switch (p.what) {
    case RACE_BARRIER:
        s[t] = t;
        sync_threads();
        v = s[127 - t];
        sync_threads();
        s[t] = v;
        break;
    case RACE_NONE:
        s[t] = t;
        v = s[127 - t];
        break;
    case RACE_WARP_SYNC:
        s[t] = t;
        sync_warp();
        v = s[t ^ 1];
        sync_warp();
        s[t ^ 2] = v;
        break;
    case RACE_WARP_SHUFFLE: // which orders no memory
        s[t] = t;
        v = shfl(t, 3);
        v += s[t ^ 1];
        break;
    case RACE_WARP_NONE:
        s[t] = t;
        v = s[t ^ 1];
        break;
    case RACE_WARP_SYNC_ACROSS:
        s[t] = t;
        sync_warp();
        v = s[t ^ 32];
        break;
    case RACE_NAMED:
        s[t] = t;
        sync_named(1 + t / 64, 64);
        v = s[t ^ 32];
        break;
    case RACE_NAMED_OUTSIDER:
        s[t] = t;
        sync_named(1 + t / 64, 64);
        v = s[t ^ 64];
        break;
    case RACE_WRITE_AFTER_READ:
        s[t] = t;
        sync_threads();
        v = s[127 - t];
        s[t] = v;
        break;
    case RACE_WRITE_AFTER_WARP_READ: // all warps read, the first writes after its own warp met
        if (t == 0) s[0] = 7;
        sync_threads();
        v = s[0];
        sync_warp();
        if (t == 0) s[0] = 8;
        break;
    case RACE_ATOMICS:
        if (t == 0) s[0] = s[1] = s[2] = 0;
        sync_threads();
        atomic_add(&s[0], t);
        atomic_max(&s[1], t);
        atomic_or(&s[2], 1u << lane_idx());
        sync_threads();
        v = s[0] + s[1] + s[2];
        break;
    case RACE_ATOMIC_AND_PLAIN:
        if (t == 0) s[0] = 0;
        sync_threads();
        atomic_add(&s[0], t);
        v = s[0];
        break;
    case RACE_GLOBAL:
        out[t] = t;
        v = out[127 - t];
        break;
    case RACE_GLOBAL_BARRIER:
        out[t] = t;
        sync_threads();
        v = out[127 - t];
        sync_threads();
        break;
    case RACE_SAME_VALUE:
        s[0] = 1;
        break;
    case RACE_LAST_READER_WRITES: // neither was the only one who read
    case RACE_FIRST_READER_WRITES:
        if (t == 0) s[0] = 7;
        sync_threads();
        if (t < 32) v = s[0];
        v = shfl(v, 0); // all have read, but nothing is ordered
        if (t == (p.what == RACE_LAST_READER_WRITES ? 31u : 0u)) s[0] = 8;
        break;
    case RACE_NEIGHBOUR_BYTES:
        s8[t] = (uint8_t)t;
        v = s8[t];
        break;
    }
    out[t] = v;
}

// Each block adds its part; the one that arrives last adds the parts: out[0] = sum of n words per
// block.
GPU_KERNEL(blocks, P, 64, 1) {
    uint32_t t = thread_idx(), *parts = scratch_words(p), *out = out_words(p),
             *s = shared<uint32_t>();
    uint32_t sum = 0;
    for (uint32_t i = t; i < p.n; i += n_threads()) sum += in_words(p)[block_x() * p.n + i];
    if (t == 0) sum += in_words(p)[grid_x() * p.n - 1] >> 31; // 0
    switch (p.what) {
    case BLOCKS_NO_ORDER: // reads the neighbour's part, which may not be there
        if (t == 0) parts[block_x()] = sum;
        if (t == 0) out[block_x()] = load_fresh(&parts[(block_x() + 1) % grid_x()]);
        return;
    case BLOCKS_SAME_BYTE:
        if (t == 0) out[0] = sum;
        return;
    case BLOCKS_WRITE_READ_BYTE: // all read in[0], the middle block writes it
        if (t == 0 && block_x() == grid_x() / 2) const_cast<uint32_t *>(in_words(p))[0] = 1;
        if (t == 0) out[block_x()] = in_words(p)[0];
        return;
    case BLOCKS_STREAM_WRITTEN:
        parts[block_x() * 64 + t] = t;
        sync_threads();
        out[block_x() * 64 + t] = load_stream4(&parts[block_x() * 64 + t]);
        return;
    }
    bool overwrites = p.what == BLOCKS_LAST_OVERWRITES || p.what == BLOCKS_OVERWRITES_NO_FENCE;
    if (overwrites) { // nobody writes before the last block has come; all have read in[0]
        sync_threads();
        if (t == 0) {
            if (p.what == BLOCKS_LAST_OVERWRITES) fence();
            uint32_t n_before = atomic_add(p.counter, 1);
            fence();
            if (n_before + 1 == grid_x())
                const_cast<uint32_t *>(in_words(p))[grid_x() * p.n - 1] = 0;
        }
        return;
    }
    sum = warp_sum(sum);
    if (p.what == BLOCKS_FENCE_TOO_EARLY && t == 0) fence();
    if (lane_idx() == 0) parts[block_x() * 2 + warp_idx()] = sum;
    if (p.what == BLOCKS_ALL_FENCE) fence();
    sync_threads();
    if (t == 0) {
        if (p.what != BLOCKS_NO_FENCE && p.what != BLOCKS_FENCE_TOO_EARLY &&
            p.what != BLOCKS_ALL_FENCE)
            fence();
        uint32_t n_before;
        if (p.what == BLOCKS_TWO_COUNTERS) { // pairs of blocks meet first, then the pairs
            n_before = 0;
            if (atomic_add(&p.counter[1 + block_x() / 2], 1) == 1) {
                fence();
                n_before = 2 * atomic_add(&p.counter[0], 1) + 1;
            }
        } else {
            n_before = atomic_add(p.counter, 1);
        }
        if (p.what != BLOCKS_NO_ACQUIRE) fence();
        s[0] = n_before + 1 == grid_x();
    }
    sync_threads();
    if (!s[0] || t >= 32) return;
    uint32_t total = 0;
    for (uint32_t i = t; i < 2 * grid_x(); i += 32) total += load_fresh(&parts[i]);
    total = warp_sum(total);
    if (t == 0) {
        out[0] = total;
        *p.counter = 0; // for the next launch
    }
}

// Two stages of 16 bytes per thread: out = in.
GPU_KERNEL(copy, P, 128, 1) {
    uint32_t t = thread_idx(), n = n_threads();
    const word4 *in = static_cast<const word4 *>(p.in);
    word4 *out = static_cast<word4 *>(p.out), *s = shared<word4>();
    unsigned char *s8 = shared<unsigned char>();
    switch (p.what) {
    case COPY_OK: // two on their way, one being read
        cp_async16(&s[t], &in[t]);
        cp_async_commit();
        for (uint32_t i = 0; i < p.n; i++) {
            if (i + 1 < p.n) cp_async16(&s[(i + 1) % 2 * n + t], &in[(i + 1) * n + t]);
            cp_async_commit();
            cp_async_wait<1>();
            sync_threads();
            store16(&out[i * n + t], load16(&s[i % 2 * n + (n - 1 - t)]));
            sync_threads();
        }
        cp_async_wait<0>();
        return;
    case COPY_NOT_WAITED:
        cp_async16(&s[t], &in[t]);
        cp_async_commit();
        return;
    case COPY_NOT_COMMITTED:
        cp_async16(&s[t], &in[t]);
        cp_async_wait<0>();
        return;
    case COPY_READ_EARLY:
        cp_async16(&s[t], &in[t]);
        cp_async_commit();
        sync_threads();
        store16(&out[t], load16(&s[n - 1 - t]));
        cp_async_wait<0>();
        return;
    case COPY_READ_NEWEST:
        cp_async16(&s[t], &in[t]);
        cp_async_commit();
        cp_async16(&s[n + t], &in[n + t]);
        cp_async_commit();
        cp_async_wait<1>();
        store16(&out[t], load16(&s[t]));
        store16(&out[t], load16(&s[n + t]));
        cp_async_wait<0>();
        return;
    case COPY_NO_BARRIER:
        cp_async16(&s[t], &in[t]);
        cp_async_commit();
        cp_async_wait<0>();
        store16(&out[t], load16(&s[n - 1 - t]));
        return;
    case COPY_TWICE:
        cp_async16(&s[t], &in[t]);
        cp_async16(&s[t], &in[n + t]);
        break;
    case COPY_DST_MISALIGNED:
        cp_async16(s8 + 16 * t + 8, &in[t]);
        break;
    case COPY_SRC_MISALIGNED:
        cp_async16(&s[t], static_cast<const char *>(p.in) + 16 * t + 4);
        break;
    case COPY_DST_GLOBAL:
        cp_async16(&out[t], &in[t]);
        break;
    case COPY_SRC_SHARED:
        cp_async16(&s[t], &s[n + t]);
        break;
    case COPY_PAST_END:
        cp_async16(&s[2 * n + t], &in[t]);
        break;
    case COPY_OR_ZERO: // a source that does not exist is not read
        cp_async16_or_zero(&s[t], t % 2 == 0 ? &in[t] : nullptr, t % 2 == 0);
        break;
    case COPY_SRC_CHANGES: // the same thread writes the source before it waits
        cp_async16(&s[t], &out[t]);
        cp_async_commit();
        store16(&out[t], word4{1, 1, 1, 1});
        cp_async_wait<0>();
        store16(&out[n + t], load16(&s[t]));
        return;
    }
    cp_async_commit();
    cp_async_wait<0>();
    store16(&out[t], load16(&s[t]));
}

GPU_KERNEL(access, P, 32, 1) {
    uint32_t t = thread_idx(), n = p.n; // n words of shared memory
    uint32_t *s = shared<uint32_t>(), *out = out_words(p), local[4] = {t, 1, 2, 3};
    switch (p.what) {
    case ACCESS_OK:
        store16(&s[4 * t], word4{t, 1, 2, 3});
        store8(&s[4 * t], word2{t + 1, 2});
        out[t] = load8(&s[4 * t]).x + load16(&s[4 * t]).w + load_stream4(p.in) +
                 load_stream8(p.in).y + load_stream16(p.in).z + load_fresh16(p.in).w +
                 load_fresh(in_words(p));
        break;
    case ACCESS_PAST_SHARED:
        if (t == 9) store16(&s[n], word4{0, 0, 0, 0});
        break;
    case ACCESS_BEFORE_SHARED:
        if (t == 9) out[t] = load8(s - 2).x;
        break;
    case ACCESS_PLAIN_PAST_SHARED:
        if (t == 9) s[n] = 1;
        break;
    case ACCESS_LOAD_MISALIGNED:
        out[t] = load16(in_words(p) + (t == 9)).x;
        break;
    case ACCESS_STORE_MISALIGNED:
        store8(&out[2 * t + (t == 9)], word2{0, 0});
        break;
    case ACCESS_PLAIN_MISALIGNED:
        if (t == 9)
            out[t] = *reinterpret_cast<const uint32_t *>(static_cast<const char *>(p.in) + p.n);
        break;
    case ACCESS_STREAM_SHARED:
        s[t] = t;
        out[t] = load_stream4(&s[t]);
        break;
    case ACCESS_FRESH_LOCAL:
        out[t] = load_fresh(&local[p.n % 4]);
        break;
#ifndef __CUDACC__ // which sees it at compile time
    case ACCESS_ATOMIC_LOCAL:
        out[t] = atomic_add(&local[p.n % 4], 1);
        break;
#endif
    case ACCESS_ATOMIC_MISALIGNED:
        out[t] = (uint32_t)atomic_max(reinterpret_cast<uint64_t *>(p.counter + 1), (uint64_t)t);
        break;
    case ACCESS_OTHERS_LOCAL: {
        uint32_t **where = shared<uint32_t *>();
        if (t == 0) *where = &local[p.n % 4];
        sync_threads();
        if (t == 9) store8(*where, word2{0, 0});
        sync_threads();
        out[t] = local[0];
        break;
    }
    case ACCESS_WRITE_PARAMS:
        if (t == 9) const_cast<P &>(p).n = 1;
        break;
    case ACCESS_FORBIDDEN:
        out[t] = load_stream4(p.scratch);
        break;
    case ACCESS_FORBIDDEN_WRITE:
        if (t == 9) store8(const_cast<void *>(p.in), word2{0, 0});
        break;
    case ACCESS_FORBIDDEN_PLAIN:
        if (t == 9) out[t] = scratch_words(p)[1];
        break;
    case ACCESS_CONSTANTS: {
        static constexpr uint32_t table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
        const uint32_t *at = &table[(t + p.n) % 8];
        out[t] = *at;
        break;
    }
    case ACCESS_UNWRITTEN:
        out[block_x() * 32 + t] = s[t];
        s[t] = 0;
        break;
    case ACCESS_WAITS_IN_LOOP: // for a thread that comes later
        while (t == 0 && load_fresh(p.counter) == 0) {
        }
        if (t == 31) atomic_add(p.counter, 1);
        break;
    case ACCESS_SHARED_ADDRESS:
        out[t] = shared_address(&s[t]) - shared_address(s);
        break;
    }
}

// out[i] = in[i] + 1 by a launch that may begin before its predecessor has ended.
GPU_KERNEL(pdl, P, 32, 1) {
    uint32_t i = block_x() * n_threads() + thread_idx(), v = 0;
    const uint32_t *in = in_words(p);
    if (p.what == PDL_WRITES_EARLY) scratch_words(p)[i] = 1;
    if (p.what == PDL_READS_EARLY) v = load8(&in[i & ~1u]).x;
    if (p.what == PDL_READS_OWN_INPUT_EARLY) v = load8(&scratch_words(p)[i & ~1u]).x;
    if (p.what != PDL_ONE_BLOCK_WAITS || block_x() == 0) wait_predecessor();
    release_dependents();
    out_words(p)[i] = in[i] + 1 + 0 * v;
}

// d[16][8] (float, at scratch) += a[16][16] b[16][8]: `in` holds a, then b, 16-bit, row by row; n
// bytes from one row of a in shared memory to the next.  The fragments go to `out` as words
// [6][32].
template <class T> GPU_FN void matrix(const P &p) {
    uint32_t t = thread_idx(), fa[4], fb[2], stride = p.n;
    unsigned char *s = shared<unsigned char>(), *sb = s + 16 * stride;
    const uint16_t *a = static_cast<const uint16_t *>(p.in), *b = a + 256;
    bool row_b = p.what == MATRIX_LD4 || p.what == MATRIX_LD2; // shared memory holds b transposed
    for (uint32_t i = t; i < 256; i += 32) {
        uint32_t row = i / 16, col = i % 16;
        if (p.what == MATRIX_LD4_T) row = i % 16, col = i / 16;
        reinterpret_cast<uint16_t *>(s + row * stride)[col] = a[i];
    }
    for (uint32_t i = t; i < 128; i += 32)
        reinterpret_cast<uint16_t *>(sb)[row_b ? i % 8 * 16 + i / 8 : i] = b[i];
    if (p.what != MATRIX_RACE) sync_warp();
    if (p.what ==
        MATRIX_LD4_T) // the transpose of a: its 8x8 parts in the order that fragments want
        ldmatrix4_t(fa, s + ((t & 7) + (t >> 4 & 1) * 8) * stride + (t >> 3 & 1) * 16);
    else if (p.what == MATRIX_MISALIGNED)
        ldmatrix4(fa, s + (t & 15) * stride + (t >> 4) * 16 + (t == 17 ? 8 : 0));
    else if (p.what == MATRIX_GLOBAL_ROW)
        ldmatrix4(fa, t == 17 ? static_cast<const void *>(p.in) : s);
    else if (p.what == MATRIX_PAST_END)
        ldmatrix4(fa, s + (t & 15) * stride + (t == 17 ? 16 * stride + 256 : 0));
    else
        ldmatrix4(fa, s + (t & 15) * stride + (t >> 4) * 16);
    if (row_b)
        ldmatrix2(fb, t < 16 ? sb + (t & 7) * 32 + (t >> 3) * 16 : nullptr);
    else
        ldmatrix2_t(fb, sb + (t & 15) * 16);
    if (p.what == MATRIX_DIVERGENT && t == 3) return;
    float d[4], *pd = static_cast<float *>(p.scratch) + t / 4 * 8 + t % 4 * 2;
    d[0] = pd[0], d[1] = pd[1], d[2] = pd[64], d[3] = pd[65];
    mma_16816<T>(d, fa, fb);
    pd[0] = d[0], pd[1] = d[1], pd[64] = d[2], pd[65] = d[3];
    for (uint32_t i = 0; i < 4; i++) out_words(p)[i * 32 + t] = fa[i];
    for (uint32_t i = 0; i < 2; i++) out_words(p)[(4 + i) * 32 + t] = fb[i];
}
GPU_KERNEL(matrix_bf16, P, 32, 1) {
    matrix<bf16>(p);
}
GPU_KERNEL(matrix_f16, P, 32, 1) {
    matrix<f16>(p);
}

// The same with tf32: d[16][8] += a[16][8] b[8][8], `in` holds a, then b, as floats.
GPU_KERNEL(matrix_tf32, P, 32, 1) {
    uint32_t g = thread_idx() / 4, t = thread_idx() % 4;
    const float *a = static_cast<const float *>(p.in), *b = a + 128;
    float fa[4], fb[2], d[4], *pd = static_cast<float *>(p.scratch) + g * 8 + t * 2;
    for (uint32_t i = 0; i < 4; i++) fa[i] = a[(g + 8 * (i % 2)) * 8 + t + 4 * (i / 2)];
    for (uint32_t i = 0; i < 2; i++) fb[i] = b[(t + 4 * i) * 8 + g];
    d[0] = pd[0], d[1] = pd[1], d[2] = pd[64], d[3] = pd[65];
    mma_1688_tf32(d, fa, fb);
    pd[0] = d[0], pd[1] = d[1], pd[64] = d[2], pd[65] = d[3];
}

// One number in, one out; two-operand kinds take in[3 i ...].
GPU_KERNEL(numbers, P, 128, 1) {
    uint32_t i = block_x() * n_threads() + thread_idx(), *out = out_words(p);
    if (i >= p.n) return;
    const uint32_t *in = in_words(p);
    const float *floats = static_cast<const float *>(p.in);
    float low, high;
    switch (p.what) {
    case NUMBERS_F16_TO_F32:
        out[i] = f32_to_bits(to_f32(f16{(uint16_t)in[i]}));
        break;
    case NUMBERS_BF16_TO_F32:
        out[i] = f32_to_bits(to_f32(bf16{(uint16_t)in[i]}));
        break;
    case NUMBERS_F32_TO_F16:
        out[i] = from_f32<f16>(floats[i]).bits;
        break;
    case NUMBERS_F32_TO_BF16:
        out[i] = from_f32<bf16>(floats[i]).bits;
        break;
    case NUMBERS_PACK_F16:
        out[i] = pack2<f16>(floats[i], -floats[i]);
        break;
    case NUMBERS_PACK_BF16:
        out[i] = pack2<bf16>(floats[i], -floats[i]);
        break;
    case NUMBERS_UNPACK_F16:
        unpack2<f16>(in[i] | (in[i] ^ 0x8000u) << 16, &low, &high);
        out[i] = f32_to_bits(low) == (f32_to_bits(high) ^ 0x80000000u) ? f32_to_bits(low) : 1;
        break;
    case NUMBERS_UNPACK_BF16:
        unpack2<bf16>(in[i] | (in[i] ^ 0x8000u) << 16, &low, &high);
        out[i] = f32_to_bits(low) == (f32_to_bits(high) ^ 0x80000000u) ? f32_to_bits(low) : 1;
        break;
    case NUMBERS_FMA2_F16:
        out[i] = fma2_f16(in[3 * i], in[3 * i + 1], in[3 * i + 2]);
        break;
    case NUMBERS_FMA2_BF16:
        out[i] = fma2_bf16(in[3 * i], in[3 * i + 1], in[3 * i + 2]);
        break;
    case NUMBERS_OTHERS: {
        float x = to_f32(from_f32<float>(floats[i])), *f = static_cast<float *>(p.out) + 10 * i;
        f[0] = exp2_fast(x);
        f[1] = exp_f32(x);
        f[2] = tanh_f32(x);
        f[3] = rsqrt_f32(max_f32(x, 0.5f));
        f[4] = min_f32(x, 0.5f);
        f[5] = max_f32(x, -GPU_INFINITY);
        f[6] = fma_f32(x, x, -x);
        f[7] = bits_to_f32(f32_to_bits(x));
        f[8] = (float)popcount((uint32_t)i);
        f[9] = (float)leading_zeros((uint32_t)i);
        break;
    }
    }
}

// Barriers, shuffles and shared memory as real kernels have them, many times: for storms and speed.
// out[block] = n * sum of 0 .. threads - 1
GPU_KERNEL(storm, P, 1024, 1) {
    uint32_t t = thread_idx(), *s = shared<uint32_t>(), total = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t v = warp_sum(t);
        if (lane_idx() == 0) s[warp_idx()] = v;
        sync_threads();
        if (t == 0)
            for (uint32_t w = 0; w < n_threads() / 32; w++) total += s[w];
        sync_threads();
    }
    if (t == 0) out_words(p)[block_x()] = total;
}

// 64 KiB and more on the stack of a thread is a local array too large; this much is not.
GPU_KERNEL(local_array, P, 32, 1) {
    uint32_t many[2048];
    for (uint32_t i = 0; i < 2048; i++) many[i] = i ^ p.n;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 2048; i++) sum += many[(i * 7 + thread_idx()) % 2048];
    out_words(p)[thread_idx()] = sum;
}

GPU_TABLE(emul_test){
    GPU_ENTRY(where, P, 1024, 80),     GPU_ENTRY(order, P, 1024, 80),
    GPU_ENTRY(meet, P, 128, 80),       GPU_ENTRY(shuffles, P, 128, 80),
    GPU_ENTRY(race, P, 128, 80),       GPU_ENTRY(blocks, P, 64, 80),
    GPU_ENTRY(copy, P, 128, 80),       GPU_ENTRY(access, P, 32, 80),
    GPU_ENTRY(pdl, P, 32, 90),         GPU_ENTRY(matrix_bf16, P, 32, 80),
    GPU_ENTRY(matrix_tf32, P, 32, 80), GPU_ENTRY(matrix_f16, P, 32, 80),
    GPU_ENTRY(numbers, P, 128, 80),    GPU_ENTRY(storm, P, 1024, 80),
    GPU_ENTRY(local_array, P, 32, 80),
} GPU_TABLE_END(emul_test)
