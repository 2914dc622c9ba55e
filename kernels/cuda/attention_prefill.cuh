// attention_prefill.cuh - up to 128 query rows of one sequence: keys are read once for all of them.
//
//     grid     (heads, tiles of the plan); heads of a group are neighbours and find keys in L2
//     block    4 warps of 32 rows, or of 16 when head_dim > 128: then a tile of the plan is two
//              blocks.  A tile of 64 keys (32) and its values is shared by all warps.  Each warp
//              holds whole rows, so maxima and sums are reduced over four lanes
//     bytes    from L2, 4 * head_dim per key and block.  128 rows use each loaded key, 32 rows
//              each fragment read from shared memory: per warp and tile, 40 KiB of shared memory
//              for 256 mma at 128, which takes less time than the mma
//     shared   queries, one tile of keys, one of values: 68 KiB at 128, so two blocks fit even in
//              164 KiB
//     time     values load during q.K, the next keys during weights.V; two barriers per tile, and
//              the other block works while one waits
//
// Masks only where a tile crosses the warp's diagonal or the window's edge; the warp skips tiles
// beyond either.  Tiles of keys begin at multiples of their size for any query rows, and a tile
// that a row does not see leaves its numbers unchanged, so any cut of the prompt gives the same
// bits.
//
// Slots are looked up by all 128 threads at once, one chunk each, which is enough for 2048 tokens.
#ifndef INFERD_ATTENTION_PREFILL_CUH
#define INFERD_ATTENTION_PREFILL_CUH

#include "cuda/attention_rows.cuh"

// Rows [row, row + n) of a sequence, the first at position pos; they see positions [first, end).
struct prefill_rows {
    uint32_t row, n, pos, table, first, end;
};

template <uint32_t D> GPU_FN prefill_rows find_rows(const attention_params &p) {
    constexpr uint32_t rows = attention_block_rows(D), parts = ATTENTION_TILE_ROWS / rows;
    prefill_rows r = {};
    uint32_t tile_idx = block_y() / parts, skip = block_y() % parts * rows;
    if (tile_idx >= p.view.header->n_tiles) return r;
    step_tile tile = p.view.tiles[tile_idx];
    if (skip >= tile.n_rows) return r;
    const step_seq &seq = p.view.seqs[tile.seq];
    r.row = tile.row_begin + skip;
    r.n = smaller(tile.n_rows - skip, rows);
    r.pos = seq.pos_begin + (r.row - seq.row_begin);
    r.table = seq.table_begin;
    r.end = r.pos + r.n;
    r.first = p.window != 0 && r.pos + 1 > p.window ? r.pos + 1 - p.window : 0;
    return r;
}

template <class T, uint32_t D>
GPU_FN void fetch_queries(word4 *to, const attention_params &p, const prefill_rows &r,
                          uint32_t head) {
    constexpr uint32_t units = D / 8;
#pragma unroll 4
    for (uint32_t u = thread_idx(); u < attention_block_rows(D) * units; u += ATTENTION_THREADS) {
        uint32_t row = u / units, unit = u % units;
        word4 v = {0, 0, 0, 0};
        if (row < r.n && unit * 8 < p.head_dim)
            v = load_q<T>(p, (size_t)(r.row + row) * p.q_stride + head * p.head_dim + unit * 8);
        store16(to + place<D>(row, unit), v);
    }
}

// Look up the offsets of chunks from `token` on, as many as there is room for and rows see.
GPU_FN void find_chunks(uint64_t *offsets, const attention_params &p, const prefill_rows &r,
                        uint32_t token, uint32_t kv_head) {
    uint32_t mine = token + thread_idx() * ATTENTION_CHUNK;
    bool seen = mine < r.end && mine + ATTENTION_CHUNK > r.first;
    offsets[thread_idx()] = seen ? chunk_offset(p, r.table, mine, kv_head) : 0;
}

// Keys (half 0) or values (half layer_bytes / 2) of a tile from `token` on.
template <uint32_t D>
GPU_FN void fetch_tile(word4 *to, const attention_params &p, const prefill_rows &r,
                       const uint64_t *offsets, uint32_t half, uint32_t token) {
    constexpr uint32_t units = D / 8, n = attention_tile_keys(D) * units / ATTENTION_THREADS;
    const unsigned char *base = p.kv.arena + half;
    offsets += token / ATTENTION_CHUNK % ATTENTION_OFFSETS;
    if (token >= r.first && token + attention_tile_keys(D) <= r.end && p.head_dim == D) {
#pragma unroll
        for (uint32_t i = 0; i < n; i++) {
            uint32_t u = thread_idx() + ATTENTION_THREADS * i, row = u / units;
            cp_async16(to + place<D>(row, u % units),
                       base + offsets[row / ATTENTION_CHUNK] + u % (ATTENTION_CHUNK * units) * 16);
        }
    } else { // not unrolled: values prepared for each i would push sums out of registers
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            uint32_t u = thread_idx() + ATTENTION_THREADS * i, row = u / units, unit = u % units;
            bool valid = token + row >= r.first && token + row < r.end && unit * 8 < p.head_dim;
            uint32_t at = (row % ATTENTION_CHUNK * p.head_dim + unit * 8) * 2;
            cp_async16_or_zero(to + place<D>(row, unit), base + offsets[row / ATTENTION_CHUNK] + at,
                               valid);
        }
    }
    cp_async_commit();
}

// -infinity for keys that a row must not see; the rows' positions are pos + 8h + g, up to last.
template <uint32_t N>
GPU_FN void mask(float (&s)[N][4], uint32_t key, uint32_t pos, uint32_t last, uint32_t window,
                 uint32_t lane) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t at = smaller(pos + 8 * h + lane / 4, last); // last: rows that fill up the tile
        uint32_t oldest = window != 0 && at + 1 > window ? at + 1 - window : 0;
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t e = 0; e < 2; e++) {
                uint32_t k = key + n * 8 + lane % 4 * 2 + e;
                if (k > at || k < oldest) s[n][2 * h + e] = -GPU_INFINITY;
            }
    }
}

// Sums to outputs, through the warp's own part of the queries' memory.
template <uint32_t D, uint32_t M>
GPU_FN void write_rows(const attention_params &p, const prefill_rows &r, softmax_rows<D> (&acc)[M],
                       word4 *stage, uint32_t first_row, uint32_t head, uint32_t lane) {
    constexpr uint32_t units = D / 8;
#pragma unroll
    for (uint32_t m = 0; m < M; m++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            float sum = acc[m].sum[h];
            sum += shfl_xor(sum, 1);
            sum += shfl_xor(sum, 2);
            sum += sink_weight(p, head, acc[m].max[h] * p.score_scale);
            float scale = 1.0f / sum;
            uint32_t row = first_row + m * 16 + h * 8 + lane / 4;
#pragma unroll
            for (uint32_t j = 0; j < D / 8; j++) {
                uint32_t *to = reinterpret_cast<uint32_t *>(stage + place<D>(row, j)) + lane % 4;
                *to = pack_inner(p, acc[m].o[j][2 * h] * scale, acc[m].o[j][2 * h + 1] * scale);
            }
        }
    sync_warp();
    for (uint32_t u = lane; u < 16 * M * units; u += 32) {
        uint32_t row = first_row + u / units, unit = u % units;
        if (row >= r.n || unit * 8 >= p.head_dim) continue;
        size_t at = (size_t)(r.row + row) * p.out_stride + head * p.head_dim + unit * 8;
        store16(static_cast<uint16_t *>(p.out) + at, load16(stage + place<D>(row, unit)));
    }
}

// s = q . K of a tile: 32 (16) rows from `row` on, 64 (32) keys.
template <class T, uint32_t D, uint32_t M, uint32_t N>
GPU_FN void multiply_keys(float (&s)[M][N][4], const word4 *q, uint32_t row, const word4 *keys,
                          uint32_t lane) {
#pragma unroll
    for (uint32_t m = 0; m < M; m++)
#pragma unroll
        for (uint32_t n = 0; n < N; n++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) s[m][n][e] = 0;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (uint32_t m = 0; m < M; m++) load_a<D>(a[m], q, row + m * 16, k, lane);
#pragma unroll
        for (uint32_t n = 0; n < N / 2; n++) {
            uint32_t b[4];
            load_keys<D>(b, keys, n * 16, k, lane);
#pragma unroll
            for (uint32_t m = 0; m < M; m++) {
                mma_16816<T>(s[m][2 * n], a[m], b);
                mma_16816<T>(s[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

// acc += weights . V of a tile.
template <class T, uint32_t D, uint32_t M, uint32_t N>
GPU_FN void multiply_values(softmax_rows<D> (&acc)[M], const uint32_t (&w)[M][N][4],
                            const word4 *values, uint32_t lane) {
#pragma unroll
    for (uint32_t n = 0; n < N; n++)
#pragma unroll
        for (uint32_t j = 0; j < D / 16; j++) {
            uint32_t b[4];
            load_values<D>(b, values, n * 16, j, lane);
#pragma unroll
            for (uint32_t m = 0; m < M; m++) {
                mma_16816<T>(acc[m].o[2 * j], w[m][n], b);
                mma_16816<T>(acc[m].o[2 * j + 1], w[m][n], b + 2);
            }
        }
}

template <class T, uint32_t D> GPU_FN void prefill(const attention_params &p) {
    constexpr uint32_t M = attention_block_rows(D) / (16 * ATTENTION_WARPS); // mma tiles of 16 rows
    constexpr uint32_t K = attention_tile_keys(D);
    constexpr uint32_t batch = ATTENTION_OFFSETS * ATTENTION_CHUNK; // tokens of a look-up
    static_assert(ATTENTION_OFFSETS == ATTENTION_THREADS, "each thread finds one chunk");
    word4 *q = shared<word4>();
    word4 *keys = q + attention_block_rows(D) * attention_row_units(D);
    word4 *values = keys + K * attention_row_units(D);
    uint64_t *offsets = reinterpret_cast<uint64_t *>(values + K * attention_row_units(D));
    uint32_t lane = lane_idx(), head = block_x(), kv_head = head / p.group;

    prefill_rows r = find_rows<D>(p);
    uint32_t key = r.first / K * K;
    if (r.n != 0) find_chunks(offsets, p, r, key / batch * batch, kv_head);
    wait_predecessor();
    release_dependents();
    if (r.n == 0) return;
    sync_threads();
    fetch_tile<D>(keys, p, r, offsets, 0, key);
    fetch_queries<T, D>(q, p, r, head);

    uint32_t first_row = warp_idx() * 16 * M, pos = r.pos + first_row; // of this warp
    uint32_t last = smaller(pos + 16 * M, r.end) - 1;
    softmax_rows<D> acc[M];
#pragma unroll
    for (uint32_t m = 0; m < M; m++) clear(acc[m]);
#pragma unroll 1
    for (; key < r.end; key += K) {
        bool busy =
            first_row < r.n && key <= last && (p.window == 0 || key + K - 1 + p.window > pos);
        uint32_t w[M][K / 16][4]; // weights as left operands
        cp_async_wait<0>();
        sync_threads(); // keys have arrived, and all are done with the previous values
        fetch_tile<D>(values, p, r, offsets, p.kv.layer_bytes / 2, key);
        if (busy) {
            float s[M][K / 8][4];
            multiply_keys<T, D>(s, q, first_row, keys, lane);
            bool edge = key + K - 1 > pos || (p.window != 0 && key + p.window <= last);
#pragma unroll
            for (uint32_t m = 0; m < M; m++) {
                cap_scores(p, s[m]);
                if (edge) mask(s[m], key, pos + m * 16, last, p.window, lane);
                meet(acc[m], s[m], p.score_scale);
#pragma unroll
                for (uint32_t n = 0; n < K / 16; n++)
                    pack_weights<T>(w[m][n], s[m][2 * n], s[m][2 * n + 1]);
            }
        }
        if ((key + K) % batch == 0) {
            sync_threads(); // all have requested these values, so their offsets are not needed
            find_chunks(offsets, p, r, key + K, kv_head);
        }
        cp_async_wait<0>();
        sync_threads(); // values have arrived, and all are done with the keys
        if (key + K < r.end) fetch_tile<D>(keys, p, r, offsets, 0, key + K);
        if (busy) multiply_values<T, D>(acc, w, values, lane);
    }
    if (first_row < r.n) write_rows(p, r, acc, q, first_row, head, lane);
}

#endif
