// attention_decode.cuh - one query row of a sequence: its keys and values are read once.
//
//     grid     (kv heads, blocks per row, rows); a block takes splits block_y, block_y + grid_y
//              ... of its row.  A split is a run of 128 or more tokens (attention_split_chunks)
//     block    4 warps.  The rows of mma are the query heads of the group, up to 16 (more: another
//              pass).  Warp w takes chunks w, w + 4, ... of the split, keeps its own maximum, sum
//              and output, and joins the other warps at the end of the split: no barrier of the
//              block while it streams
//     bytes    each key and value once, 4 * head_dim per token and kv head.  Partials, written and
//              read again: 4 * (head_dim + 2) per split and query head, 1.6 % of 256 tokens with a
//              group of 4
//     shared   per warp a ring of chunks; the space of keys, then that of values, is filled again
//              as soon as it was read.  Two chunks deep (64 KiB for the block at 128), so three
//              blocks have up to 192 KiB in flight in a multiprocessor; its share of 4.8 TB/s is
//              36 KiB per microsecond.  At 256 a chunk is twice as large and one is enough
//
// Tensor cores, although a group of 4 fills a quarter of the 16 rows: 16 tokens are 32 mma at 128,
// for 8 KiB of keys and values, a small part of the cores' rate while memory delivers them.  The
// same products in plain floats would not keep up with large groups.  The sums of 16 rows are 64
// registers per lane at 128.
//
// A row of one split writes its output at once.  Otherwise splits write partials, and the last
// block of the (row, kv head) to arrive adds them in the order of the splits and sets the counter
// back to zero.  The sums depend neither on which block computes a split nor on the number of
// blocks.
#ifndef INFERD_ATTENTION_DECODE_CUH
#define INFERD_ATTENTION_DECODE_CUH

#include "cuda/attention_rows.cuh"

// One row: positions [first, end) of a sequence.
struct decode_row {
    uint32_t row, table, first, end;
    uint32_t chunk_begin, chunk_end, split_chunks, n_splits;
};

GPU_FN decode_row find_row(const attention_params &p, uint32_t row) {
    const step_seq &seq = p.view.seqs[p.view.row_seq[row]];
    decode_row r;
    r.row = row;
    r.table = seq.table_begin;
    r.end = seq.pos_begin + (row - seq.row_begin) + 1;
    r.first = p.window != 0 && r.end > p.window ? r.end - p.window : 0;
    r.chunk_begin = r.first / ATTENTION_CHUNK;
    r.chunk_end = div_up(r.end, ATTENTION_CHUNK);
    r.split_chunks = attention_split_chunks(r.chunk_end - r.chunk_begin);
    r.n_splits = attention_n_splits(r.chunk_end - r.chunk_begin);
    return r;
}

// The chunks of one warp in flight: number n is chunk begin + 4n of the row.
struct chunk_feed {
    uint32_t begin, n;
    uint64_t offsets; // lane l: of the chunk with number 32k + l, for the newest k
};

GPU_FN uint32_t token_of(const chunk_feed &f, uint32_t n) {
    return (f.begin + n * ATTENTION_WARPS) * ATTENTION_CHUNK;
}
// Look up the offsets of numbers n .. n + 31.
GPU_FN void find_numbers(chunk_feed &f, const attention_params &p, const decode_row &r, uint32_t n,
                         uint32_t lane) {
    f.offsets = n + lane < f.n ? chunk_offset(p, r.table, token_of(f, n + lane), block_x()) : 0;
}
GPU_FN chunk_feed feed_of(const attention_params &p, const decode_row &r, uint32_t split,
                          uint32_t warp, uint32_t lane) {
    uint32_t begin = r.chunk_begin + split * r.split_chunks;
    uint32_t end = smaller(begin + r.split_chunks, r.chunk_end);
    chunk_feed f = {begin + warp,
                    begin + warp < end ? div_up(end - begin - warp, ATTENTION_WARPS) : 0, 0};
    find_numbers(f, p, r, 0, lane);
    return f;
}

template <uint32_t D>
GPU_FN void fetch_chunk(word4 *to, const attention_params &p, const decode_row &r, uint64_t offset,
                        uint32_t token, uint32_t lane) {
    const unsigned char *from = p.kv.arena + offset;
    if (token >= r.first && token + ATTENTION_CHUNK <= r.end && p.head_dim == D) { // one run
#pragma unroll
        for (uint32_t i = 0; i < D / 16; i++) {
            uint32_t u = lane + 32 * i;
            cp_async16(to + place<D>(u / (D / 8), u % (D / 8)), from + u * 16);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < D / 16; i++) {
        uint32_t u = lane + 32 * i, row = u / (D / 8), unit = u % (D / 8);
        bool valid = token + row >= r.first && token + row < r.end && unit * 8 < p.head_dim;
        cp_async16_or_zero(to + place<D>(row, unit), from + (row * p.head_dim + unit * 8) * 2,
                           valid);
    }
}
// Fetch keys, then values of number n; an empty group when there are fewer.
template <uint32_t D>
GPU_FN void ask_keys(word4 *ring, chunk_feed &f, const attention_params &p, const decode_row &r,
                     uint32_t n, uint32_t lane) {
    constexpr uint32_t chunk = ATTENTION_CHUNK * attention_row_units(D);
    if (n < f.n) {
        if (n % 32 == 0 && n != 0) find_numbers(f, p, r, n, lane);
        fetch_chunk<D>(ring + n % attention_stages(D) * 2 * chunk, p, r, shfl(f.offsets, n % 32),
                       token_of(f, n), lane);
    }
    cp_async_commit();
}
template <uint32_t D>
GPU_FN void ask_values(word4 *ring, const chunk_feed &f, const attention_params &p,
                       const decode_row &r, uint32_t n, uint32_t lane) {
    constexpr uint32_t chunk = ATTENTION_CHUNK * attention_row_units(D);
    if (n < f.n)
        fetch_chunk<D>(ring + (n % attention_stages(D) * 2 + 1) * chunk, p, r,
                       shfl(f.offsets, n % 32) + p.kv.layer_bytes / 2, token_of(f, n), lane);
    cp_async_commit();
}

// Query heads head..head+15 of the group (the rest zeros) to shared memory.
template <class T, uint32_t D>
GPU_FN void fetch_heads(word4 *to, const attention_params &p, uint32_t row, uint32_t head,
                        uint32_t n_heads) {
    for (uint32_t u = thread_idx(); u < ATTENTION_HEADS * (D / 8); u += ATTENTION_THREADS) {
        uint32_t h = u / (D / 8), unit = u % (D / 8);
        word4 v = {0, 0, 0, 0};
        if (h < n_heads && unit * 8 < p.head_dim)
            v = load_q<T>(p, (size_t)row * p.q_stride + (head + h) * p.head_dim + unit * 8);
        store16(to + place<D>(h, unit), v);
    }
}

// This warp's chunks of the split.
template <class T, uint32_t D>
GPU_FN void attend_chunks(softmax_rows<D> &acc, word4 *ring, chunk_feed &f,
                          const attention_params &p, const decode_row &r, const word4 *q,
                          uint32_t lane) {
    constexpr uint32_t stages = attention_stages(D),
                       chunk = ATTENTION_CHUNK * attention_row_units(D);
    constexpr bool keep_q = D <= 128; // in registers; at 256 the sums need them
    uint32_t qa[keep_q ? D / 16 : 1][4];
    if (keep_q)
#pragma unroll
        for (uint32_t k = 0; k < D / 16; k++) load_a<D>(qa[keep_q ? k : 0], q, 0, k, lane);
#pragma unroll 1
    for (uint32_t n = 0; n < f.n; n++) {
        const word4 *keys = ring + n % stages * 2 * chunk, *values = keys + chunk;
        uint32_t token = token_of(f, n);
        float s[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        cp_async_wait<2 * (int)stages - 1>();
        sync_warp();
#pragma unroll
        for (uint32_t k = 0; k < D / 16; k++) {
            uint32_t b[4];
            if (!keep_q) load_a<D>(qa[0], q, 0, k, lane);
            load_keys<D>(b, keys, 0, k, lane);
            mma_16816<T>(s[0], qa[keep_q ? k : 0], b);
            mma_16816<T>(s[1], qa[keep_q ? k : 0], b + 2);
        }
        sync_warp();
        ask_keys<D>(ring, f, p, r, n + stages, lane);

        cap_scores(p, s);
        if (token < r.first || token + ATTENTION_CHUNK > r.end) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
#pragma unroll
                for (uint32_t e = 0; e < 4; e++) {
                    uint32_t at = token + i * 8 + lane % 4 * 2 + e % 2;
                    if (at < r.first || at >= r.end) s[i][e] = -GPU_INFINITY;
                }
        }
        meet(acc, s, p.score_scale);
        uint32_t w[4];
        pack_weights<T>(w, s[0], s[1]);
        cp_async_wait<2 * (int)stages - 1>();
        sync_warp();
#pragma unroll
        for (uint32_t j = 0; j < D / 16; j++) {
            uint32_t b[4];
            load_values<D>(b, values, 0, j, lane);
            mma_16816<T>(acc.o[2 * j], w, b);
            mma_16816<T>(acc.o[2 * j + 1], w, b + 2);
        }
        sync_warp();
        ask_values<D>(ring, f, p, r, n + stages, lane);
    }
    cp_async_wait<0>();
}

// Write the warps' sums for adding: floats [warp][head][D + 8], over the ring and the queries.
template <uint32_t D>
GPU_FN void share_sums(const softmax_rows<D> &acc, float scale, float *sums, float *stats,
                       uint32_t n_heads, uint32_t warp, uint32_t lane) {
    float sum[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        sum[h] = acc.sum[h] + shfl_xor(acc.sum[h], 1);
        sum[h] += shfl_xor(sum[h], 2);
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t head = lane / 4 + 8 * h;
        if (head >= n_heads) continue;
        if (lane % 4 == 0) {
            stats[(warp * ATTENTION_HEADS + head) * 2] = acc.max[h] * scale;
            stats[(warp * ATTENTION_HEADS + head) * 2 + 1] = sum[h];
        }
        float *to = sums + (warp * ATTENTION_HEADS + head) * (D + 8) + lane % 4 * 2;
#pragma unroll
        for (uint32_t j = 0; j < D / 8; j++)
            store8(to + j * 8, {f32_to_bits(acc.o[j][2 * h]), f32_to_bits(acc.o[j][2 * h + 1])});
    }
}

GPU_FN void add_scaled(float out[4], float scale, word4 v) {
    out[0] = fma_f32(scale, bits_to_f32(v.x), out[0]);
    out[1] = fma_f32(scale, bits_to_f32(v.y), out[1]);
    out[2] = fma_f32(scale, bits_to_f32(v.z), out[2]);
    out[3] = fma_f32(scale, bits_to_f32(v.w), out[3]);
}
GPU_FN void write_out(const attention_params &p, uint32_t row, uint32_t head, uint32_t dim,
                      const float v[4], float scale) {
    size_t at = (size_t)row * p.out_stride + head * p.head_dim + dim;
    store8(static_cast<uint16_t *>(p.out) + at,
           {pack_inner(p, v[0] * scale, v[1] * scale), pack_inner(p, v[2] * scale, v[3] * scale)});
}

// The index, in heads, of the first partial of the block's (row, kv head).
GPU_FN size_t partials_begin(const attention_params &p) {
    return ((size_t)block_z() * p.n_kv_heads + block_x()) * p.splits_max * p.group;
}

// Sums of the four warps, in order, to the output (the only split) or to the partials.
template <uint32_t D>
GPU_FN void add_warps(const attention_params &p, const decode_row &r, const float *sums,
                      const float *stats, uint32_t split, uint32_t head, uint32_t n_heads,
                      uint32_t warp, uint32_t lane) {
    for (uint32_t h = warp; h < n_heads; h += ATTENTION_WARPS) {
        float max = -GPU_INFINITY, sum = 0, scale[ATTENTION_WARPS];
#pragma unroll
        for (uint32_t w = 0; w < ATTENTION_WARPS; w++)
            max = max_f32(max, stats[(w * ATTENTION_HEADS + h) * 2]);
#pragma unroll
        for (uint32_t w = 0; w < ATTENTION_WARPS; w++) {
            scale[w] = exp2_fast(stats[(w * ATTENTION_HEADS + h) * 2] - max);
            sum = fma_f32(scale[w], stats[(w * ATTENTION_HEADS + h) * 2 + 1], sum);
        }
        if (r.n_splits == 1) sum += sink_weight(p, block_x() * p.group + head + h, max);
        size_t at = partials_begin(p) + (size_t)split * p.group + head + h;
        if (r.n_splits > 1 && lane == 0)
            store8(p.partial_sums + at * 2, {f32_to_bits(max), f32_to_bits(sum)});
        for (uint32_t d = lane * 4; d < p.head_dim; d += 32 * 4) {
            float v[4] = {0, 0, 0, 0};
#pragma unroll
            for (uint32_t w = 0; w < ATTENTION_WARPS; w++)
                add_scaled(v, scale[w], load16(sums + (w * ATTENTION_HEADS + h) * (D + 8) + d));
            if (r.n_splits == 1)
                write_out(p, r.row, block_x() * p.group + head + h, d, v, 1.0f / sum);
            else
                store16(p.partials + at * p.head_dim + d, {f32_to_bits(v[0]), f32_to_bits(v[1]),
                                                           f32_to_bits(v[2]), f32_to_bits(v[3])});
        }
    }
}

// In the last block: add all partials of the (row, kv head), in the order of the splits.
GPU_FN void add_splits(const attention_params &p, const decode_row &r, uint32_t warp,
                       uint32_t lane) {
    constexpr uint32_t per_lane = ATTENTION_SPLITS_MAX / 32, ahead = 8;
    for (uint32_t h = warp; h < p.group; h += ATTENTION_WARPS) {
        size_t begin = partials_begin(p) + h;
        float scale[per_lane], part[per_lane], max = -GPU_INFINITY, sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < per_lane; i++) {
            uint32_t split = i * 32 + lane;
            const float *at = p.partial_sums + (begin + (size_t)split * p.group) * 2;
            scale[i] = split < r.n_splits ? load_fresh(at) : -GPU_INFINITY;
            part[i] = split < r.n_splits ? load_fresh(at + 1) : 0.0f;
            max = max_f32(max, scale[i]);
        }
        max = warp_max(max);
#pragma unroll
        for (uint32_t i = 0; i < per_lane; i++) {
            scale[i] = exp2_fast(scale[i] - max);
            sum = fma_f32(scale[i], part[i], sum);
        }
        sum = warp_sum(sum) + sink_weight(p, block_x() * p.group + h, max);
        for (uint32_t d0 = 0; d0 < p.head_dim; d0 += 32 * 4) {
            uint32_t d = d0 + lane * 4;
            bool mine = d < p.head_dim;
            float v[4] = {0, 0, 0, 0};
#pragma unroll 1
            for (uint32_t s0 = 0; s0 < r.n_splits; s0 += ahead) {
                word4 w[ahead];
#pragma unroll
                for (uint32_t i = 0; i < ahead; i++)
                    if (mine && s0 + i < r.n_splits)
                        w[i] = load_fresh16(p.partials +
                                            (begin + (size_t)(s0 + i) * p.group) * p.head_dim + d);
#pragma unroll
                for (uint32_t i = 0; i < ahead; i++) {
                    float f = shfl(s0 < 32 ? scale[0] : scale[1], (s0 + i) % 32);
                    if (mine && s0 + i < r.n_splits) add_scaled(v, f, w[i]);
                }
            }
            if (mine) write_out(p, r.row, block_x() * p.group + h, d, v, 1.0f / sum);
        }
    }
}

template <class T, uint32_t D> GPU_FN void decode(const attention_params &p) {
    constexpr uint32_t ring_bytes = attention_ring_bytes(D);
    constexpr uint32_t heads_bytes = attention_rows_bytes(ATTENTION_HEADS, D);
    constexpr uint32_t sums_bytes = ATTENTION_WARPS * ATTENTION_HEADS * (D + 8) * 4;
    static_assert(sums_bytes <= ring_bytes + heads_bytes,
                  "sums take the place of ring and queries");
    static_assert(ATTENTION_SPLITS_MAX == 64, "two splits per lane in add_splits");
    unsigned char *base = shared<unsigned char>();
    uint32_t warp = warp_idx(), lane = lane_idx();
    word4 *ring = reinterpret_cast<word4 *>(base + warp * (ring_bytes / ATTENTION_WARPS));
    word4 *q = reinterpret_cast<word4 *>(base + ring_bytes);
    float *sums = reinterpret_cast<float *>(base);
    float *stats = reinterpret_cast<float *>(base + ring_bytes + heads_bytes);

    uint32_t idx = p.decode_begin + block_z(), n_passes = div_up(p.group, ATTENTION_HEADS);
    uint32_t n_items = 0; // (split, pass)
    decode_row r = {};
    chunk_feed f = {};
    if (idx < p.view.header->n_decode) {
        r = find_row(p, p.view.decode_rows[idx]);
        n_items = r.n_splits * n_passes;
        if (block_y() < n_items) f = feed_of(p, r, block_y() / n_passes, warp, lane);
    }
    wait_predecessor();
    release_dependents();
    if (block_y() >= n_items) return;

    for (uint32_t item = block_y(); item < n_items; item += grid_y()) {
        uint32_t split = item / n_passes, head = item % n_passes * ATTENTION_HEADS;
        uint32_t n_heads = smaller(p.group - head, ATTENTION_HEADS);
        if (item != block_y()) f = feed_of(p, r, split, warp, lane);
#pragma unroll
        for (uint32_t n = 0; n < attention_stages(D); n++) {
            ask_keys<D>(ring, f, p, r, n, lane);
            ask_values<D>(ring, f, p, r, n, lane);
        }
        fetch_heads<T, D>(q, p, r.row, block_x() * p.group + head, n_heads);
        sync_threads();
        softmax_rows<D> acc;
        clear(acc);
        attend_chunks<T, D>(acc, ring, f, p, r, q, lane);
        sync_threads(); // all have read ring and queries
        share_sums(acc, p.score_scale, sums, stats, n_heads, warp, lane);
        sync_threads();
        add_warps<D>(p, r, sums, stats, split, head, n_heads, warp, lane);
        sync_threads(); // before the next split overwrites the sums
    }
    if (r.n_splits == 1) return;

    fence(); // the partials, before this block is counted
    sync_threads();
    uint32_t *counter = p.counters + (size_t)block_z() * p.n_kv_heads + block_x();
    uint32_t *is_last = reinterpret_cast<uint32_t *>(stats);
    if (thread_idx() == 0) *is_last = atomic_add(counter, 1u) + 1 == smaller(n_items, grid_y());
    sync_threads();
    if (*is_last == 0) return;
    fence();
    add_splits(p, r, warp, lane);
    if (thread_idx() == 0) *counter = 0;
}

#endif
