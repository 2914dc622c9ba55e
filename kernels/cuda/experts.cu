// experts.cu - the kernels of a mixture of experts; experts.h has the plan.
//
// kernel      grid                              threads  bytes moved
// route       rows                              256      logits, x in; x in the order of lanes
// sort        experts                           1024     the choices, twice, by each block
// product     blocks of features x experts      256      the weights of experts with rows, once per
//                                                        8, 32 or 64 rows; x of their rows per
//                                                        block, from L2; out
// sum         rows x chunks of 256              256      parts of the row; out
//
// Product.  A block has two slots: tiles of 16 features of gate and up, or two neighbours of down.
// Four warps of a slot share its columns, in runs that follow from the matrix alone; their sums are
// joined in shared memory, in order.  A warp's tile, 16 features x 64 columns, is the A side of
// four mma.m16n8k16, as in gemv.cu: weights reach the tensor cores exactly, scales are applied to
// float sums of each group, and only x, float sums and the output are rounded.  Weights that are
// not exact in the activations' type (float, or the other 16-bit type) are rounded to it.  The B
// side is 8 rows of x; N times 8 rows (N 1, 2, 4, 8) are multiplied by the same registers of
// weights.  B is read from global memory, hence L1 and L2: the order of lanes (below) makes it one
// load of 16 bytes per lane for 32 columns, and the four warps of the other slot find the same
// lines in L1.
//
// Minima.  sum += min * (sum of x over the group); the sum of x comes from mma with ones as A side.
// Its result lies where the sums of the rows lie, so lanes exchange nothing.
//
// The order of lanes.  Quantised tiles fix the columns of a lane (unpack.cuh), so x for them is
// copied by `route` such that lane t's 16 bytes of 32 columns are 16s + 2t + {0, 1, 8, 9}, s = 0,
// 1; `hidden` is written so at once.  Dense weights are read in natural order: 8 neighbours per
// lane.
//
// Rows of an expert that do not fill the last 8 repeat its last row; their sums are not used.
//
// Compiles for sm_90 and passes emulation; not yet run on a GPU.
#include "cuda/gate.cuh"
#include "cuda/unpack.cuh"

extern "C" {
#include "cuda/experts_params.h"
}

namespace {

typedef float f32;

GPU_FN uint32_t valid_rows(const uint32_t *n_valid, uint32_t rows) {
    return n_valid != nullptr ? *n_valid : rows;
}

// ---- route ----

// The word of 32 columns that pair `i` (columns 2i, 2i + 1) becomes in the order of lanes.
GPU_FN uint32_t lane_word(uint32_t i) {
    return i % 4 * 4 + i / 8 * 2 + i / 4 % 2;
}

// Of the row's experts those before which fewer than n_used have a larger logit, or the same and a
// lower number; a bit of `mask` each.  Not a number is smaller than any number.
GPU_FN void choose(const experts_route_params &p, const float *logits, float *keys,
                   uint32_t *mask) {
    uint32_t n = p.n_experts, padded = div_up(n, 32) * 32;
    for (uint32_t e = thread_idx(); e < padded; e += EXPERTS_ROUTE_THREADS) {
        float v = e < n ? logits[e] : -GPU_INFINITY;
        keys[e] = v == v ? v : -GPU_INFINITY;
    }
    sync_threads();
    for (uint32_t begin = 0; begin < padded; begin += EXPERTS_ROUTE_THREADS) {
        uint32_t e = begin + thread_idx(), rank = 0;
        float mine = e < n ? keys[e] : 0;
        for (uint32_t i = 0; e < n && i < padded; i += 4) {
            word4 w = load16(keys + i);
            const float others[4] = {bits_to_f32(w.x), bits_to_f32(w.y), bits_to_f32(w.z),
                                     bits_to_f32(w.w)};
            for (uint32_t j = 0; j < 4; j++)
                rank += others[j] > mine || (others[j] == mine && i + j < e);
        }
        uint32_t bits = ballot(e < n && rank < p.n_used);
        if (lane_idx() == 0 && e < padded) mask[e / 32] = bits;
    }
    sync_threads();
}

// Softmax over the chosen logits, in their order.
GPU_FN float weight_of(const float *chosen, uint32_t n, uint32_t i) {
    float max = -GPU_INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) max = max_f32(max, chosen[j]);
    for (uint32_t j = 0; j < n; j++) sum += exp_f32(chosen[j] - max);
    return exp_f32(chosen[i] - max) / sum;
}

GPU_FN void route_row(const experts_route_params &p) {
    wait_predecessor();
    release_dependents();
    float *keys = shared<float>(), *chosen = keys + EXPERTS_MAX;
    uint32_t *mask = (uint32_t *)(chosen + EXPERTS_USED_MAX);
    size_t row = block_x();
    if (row >= valid_rows(p.n_valid, grid_x())) return;
    const float *logits = p.logits + row * p.logits_stride;
    choose(p, logits, keys, mask);
    for (uint32_t e = thread_idx(); e < p.n_experts; e += EXPERTS_ROUTE_THREADS) {
        uint32_t bit = 1u << e % 32, at = popcount(mask[e / 32] & (bit - 1));
        if ((mask[e / 32] & bit) == 0) continue;
        for (uint32_t i = 0; i < e / 32; i++) at += popcount(mask[i]);
        p.chosen[row * p.n_used + at] = e;
        chosen[at] = logits[e];
    }
    sync_threads();
    if (thread_idx() < p.n_used)
        p.p[row * p.n_used + thread_idx()] = weight_of(chosen, p.n_used, thread_idx());
    if (p.x == nullptr) return;
    const uint32_t *from = (const uint32_t *)((const uint16_t *)p.x + row * p.x_stride);
    uint32_t *to = (uint32_t *)((uint16_t *)p.x_lanes + row * p.cols);
    for (uint32_t i = thread_idx(); i < p.cols / 2; i += EXPERTS_ROUTE_THREADS)
        to[i / 16 * 16 + lane_word(i % 16)] = from[i];
}

// ---- sort ----

// Block e finds the slots of expert e: first as many as there are choices of lower experts, then
// its own by row.  Warps have equal runs of the choices and go through them twice: to count, to
// place.
GPU_FN void sort_expert(const experts_sort_params &p) {
    wait_predecessor();
    release_dependents();
    constexpr uint32_t WARPS = EXPERTS_SORT_THREADS / 32, NONE = EXPERTS_MAX;
    uint32_t *own = shared<uint32_t>(), *lower = own + WARPS, *used = lower + WARPS;
    uint32_t e = block_x(), lane = lane_idx(), warp = warp_idx();
    uint32_t n = valid_rows(p.n_valid, p.rows) * p.n_used;
    uint32_t run = div_up(div_up(n, WARPS), 32) * 32, begin = warp * run;
    uint32_t end = begin + run < n ? begin + run : n;

    uint32_t n_own = 0, n_lower = 0;
    for (uint32_t i = begin; i < end; i += 32) {
        uint32_t expert = i + lane < end ? p.chosen[i + lane] : NONE;
        n_own += popcount(ballot(expert == e));
        n_lower += popcount(ballot(expert < e));
    }
    if (lane == 0) {
        own[warp] = n_own;
        lower[warp] = n_lower;
    }
    sync_threads();
    uint32_t first = 0, total = 0, before = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        first += lower[w];
        if (w < warp) before += own[w];
        total += own[w];
    }
    uint32_t slot = first + before;
    for (uint32_t i = begin; i < end && total > 0; i += 32) {
        uint32_t expert = i + lane < end ? p.chosen[i + lane] : NONE;
        uint32_t bits = ballot(expert == e);
        if (expert == e) {
            uint32_t mine = slot + popcount(bits & ((1u << lane) - 1));
            p.slot_of[i + lane] = mine;
            p.row_of[mine] = (i + lane) / p.n_used;
        }
        slot += popcount(bits);
    }

    experts_state *s = p.state;
    if (thread_idx() == 0) {
        s->counts[e] = total;
        s->firsts[e] = first;
        fence();
    }
    bool last = thread_idx() == 0 && atomic_add(&s->arrived, 1u) == grid_x() - 1;
    if (!sync_threads_or(last)) return;
    fence();

    // The last block lists the experts with rows, one thread for each expert.
    e = thread_idx();
    n = e < grid_x() ? load_fresh(&s->counts[e]) : 0;
    uint32_t bits = ballot(n > 0);
    if (lane == 0) used[warp] = popcount(bits);
    sync_threads();
    uint32_t at = popcount(bits & ((1u << lane) - 1)), n_runs = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w < warp) at += used[w];
        n_runs += used[w];
    }
    if (n > 0) store16(&s->runs[at], {e, load_fresh(&s->firsts[e]), n, 0});
    if (e < grid_x()) s->step_rows[e] = (p.begin_step ? 0 : s->step_rows[e]) + n;
    if (e == 0) {
        s->n_runs = n_runs;
        s->n_reads = (p.begin_step ? 0 : s->n_reads) + n_runs;
        s->arrived = 0;
    }
}

// ---- products: loading and multiplying each format ----
//
// A format has
//     words, cursor    a lane's part of a tile, its read position
//     seek             the cursor to a row tile and column tile of an expert
//     load             the i-th tile from the cursor on
//     multiply         one tile by N times 8 rows of x
// x: the lane's place in 8N rows, in units of 16 bytes from x.

template <uint32_t N> struct x_rows {
    const unsigned char *x;
    uint32_t at[N];
};
// Columns [col, col + 32) of LOADED tiles of rows from j on.  With many rows the addresses are
// `kept`, so that the compiler does not load all of x ahead of the products, into registers that
// there are not.
template <uint32_t N> constexpr uint32_t LOADED = N < 4 ? N : N == 4 ? 2 : 4;
template <uint32_t N>
GPU_FN void load_x(word4 v[LOADED<N>], const x_rows<N> &x, uint32_t j, uint32_t col, bool there) {
    const word4 none = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < LOADED<N>; i++) {
        uint32_t at = kept_if<(N >= 4)>(x.at[j + i]);
        v[i] = there ? load16(x.x + (size_t)at * 16 + col * 2) : none;
    }
}

// Eight columns from `col` on: behind the last one may stand anything, and 0 * NaN is NaN.
GPU_FN word4 without_rest(word4 v, uint32_t col, uint32_t cols) {
    if (cols % 8 == 0 || col + 8 <= cols) return v;
    uint32_t n = col < cols ? cols - col : 0, *w[4] = {&v.x, &v.y, &v.z, &v.w};
    for (uint32_t i = 0; i < 4; i++)
        *w[i] = 2 * i >= n ? 0 : 2 * i + 1 >= n ? *w[i] & 0xffffu : *w[i];
    return v;
}

GPU_FN const unsigned char *of_expert(const void *p, const experts_mat &m, uint32_t expert) {
    return (const unsigned char *)p + expert * m.step;
}

template <uint32_t F, class T> struct quant_tiles {
    typedef T type;
    typedef tile_words<F> words;
    using q = quant<F>;
    static constexpr uint32_t BATCH = q::BITS == 4 ? 4 : 3;

    struct cursor {
        const unsigned char *low, *high, *scales;
    };
    static GPU_FN void seek(cursor &c, const experts_product_params &p, const experts_mat &m,
                            uint32_t expert, uint32_t row_tile, uint32_t col_tile) {
        size_t tile = (size_t)row_tile * p.n_col_tiles + col_tile;
        c.low = tile_low<F>(of_expert(m.low, m, expert), tile, lane_idx());
        c.high = q::HIGH_WORDS > 0 ? tile_high<F>(of_expert(m.high, m, expert), tile, lane_idx())
                                   : nullptr;
        c.scales = tile_scales<F>(of_expert(m.scales, m, expert), tile, lane_idx());
    }
    static GPU_FN void load(words &w, const cursor &c, const experts_product_params &, uint32_t i) {
        tile_stream_lane<F>(w, c.low, c.high, c.scales, i);
    }
    template <uint32_t N>
    static GPU_FN void multiply(float acc[N][4], const words &w, const x_rows<N> &x,
                                const experts_product_params &p, uint32_t col) {
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            if (col + 32 * h >= p.cols) break; // columns come in 32s
            uint32_t a[2][4];
            tile_fragment<F, T>(w, 2 * h, a[0]);
            tile_fragment<F, T>(w, 2 * h + 1, a[1]);
            word4 v[LOADED<N>];
#pragma unroll
            for (uint32_t j = 0; j < N; j++) {
                if (j % LOADED<N> == 0) load_x(v, x, j, col + 32 * h, true);
                add_products(acc[j], w, a, v[j % LOADED<N>], h);
            }
        }
    }
    // Columns 32h .. 32h + 31 of 8 rows of x.
    static GPU_FN void add_products(float acc[4], const words &w, const uint32_t a[2][4], word4 v,
                                    uint32_t h) {
        const uint32_t one = pack2<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
        const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
        float d[4] = {0, 0, 0, 0}, sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            mma_16816<T>(d, a[i], b[i]);
            if constexpr (q::MINIMA) mma_16816<T>(sum, ones, b[i]);
            if (i + 1 < q::STEPS) continue; // the group goes on
            for (uint32_t e = 0; e < 4; e++) {
                acc[e] = fma_f32(tile_scale<F>(w, e / 2, 2 * h + i), d[e], acc[e]);
                d[e] = 0;
            }
        }
        if constexpr (q::MINIMA)
            for (uint32_t e = 0; e < 4; e++)
                acc[e] = fma_f32(tile_min<F>(w, e / 2, 2 * h), sum[e % 2], acc[e]);
    }
};

// Two neighbours of a dense weight as T.
template <class E, class T> struct dense_pair {
    static GPU_FN uint32_t of(const uint32_t *w, uint32_t i) {
        float low, high;
        unpack2<E>(w[i], &low, &high);
        return pack2<T>(low, high);
    }
};
template <class T> struct dense_pair<T, T> {
    static GPU_FN uint32_t of(const uint32_t *w, uint32_t i) { return w[i]; }
};
template <class T> struct dense_pair<f32, T> {
    static GPU_FN uint32_t of(const uint32_t *w, uint32_t i) {
        return pack2<T>(bits_to_f32(w[2 * i]), bits_to_f32(w[2 * i + 1]));
    }
};

// Row-major weights of E: a lane holds columns 32h + 8t + 0 ... 7 of rows g and g + 8, h = 0, 1.
template <class E, class T> struct dense_tiles {
    typedef T type;
    static constexpr uint32_t LOADS = sizeof(E) / 2; // of 16 bytes for 8 columns
    static constexpr uint32_t BATCH = LOADS == 1 ? 2 : 1;
    struct words {
        uint32_t w[2][2][4 * LOADS]; // [half][row g, g + 8]
    };
    struct cursor {
        const unsigned char *row, *row8; // at the lane's first column of the tile
        uint32_t col;                    // that column
    };
    static GPU_FN void seek(cursor &c, const experts_product_params &p, const experts_mat &m,
                            uint32_t expert, uint32_t row_tile, uint32_t col_tile) {
        uint32_t lane = lane_idx();
        c.col = col_tile * TILE_COLS + lane % 4 * 8;
        c.row = of_expert(m.low, m, expert) +
                ((size_t)(row_tile * TILE_ROWS + lane / 4) * p.w_stride + c.col) * sizeof(E);
        c.row8 = c.row + (size_t)8 * p.w_stride * sizeof(E);
    }
    static GPU_FN void load(words &v, const cursor &c, const experts_product_params &p,
                            uint32_t i) {
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t n = 0; n < LOADS; n++) {
                uint32_t col = i * TILE_COLS + h * 32, at = col * sizeof(E) + n * 16;
                word4 none = {0, 0, 0, 0};
                bool there = c.col + col < p.w_stride; // the stride is a multiple of 8
                words4(v.w[h][0] + 4 * n, there ? load_stream16(c.row + at) : none);
                words4(v.w[h][1] + 4 * n, there ? load_stream16(c.row8 + at) : none);
            }
    }
    template <uint32_t N>
    static GPU_FN void multiply(float acc[N][4], const words &w, const x_rows<N> &x,
                                const experts_product_params &p, uint32_t col) {
        uint32_t mine = col + lane_idx() % 4 * 8;
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t a[2][4];
            for (uint32_t i = 0; i < 2; i++)
                for (uint32_t k = 0; k < 4; k++)
                    a[i][k] = dense_pair<E, T>::of(w.w[h][k % 2], 2 * i + k / 2);
            word4 v[LOADED<N>];
#pragma unroll
            for (uint32_t j = 0; j < N; j++) {
                if (j % LOADED<N> == 0) load_x(v, x, j, col + 32 * h, mine + 32 * h < p.w_stride);
                const word4 of = without_rest(v[j % LOADED<N>], mine + 32 * h, p.cols);
                const uint32_t b[2][2] = {{of.x, of.y}, {of.z, of.w}};
                mma_16816<T>(acc[j], a[0], b[0]);
                mma_16816<T>(acc[j], a[1], b[1]);
            }
        }
    }
};

// ---- products: all of it ----

// Four features of a slot that a thread writes side by side, and where in the row.
struct quad {
    uint32_t feature[4]; // of the tile
    uint32_t col;        // of the output
};
GPU_FN quad quad_of(const experts_product_params &p, uint32_t row_tile, uint32_t i) {
    quad q;
    for (uint32_t k = 0; k < 4; k++)
        q.feature[k] = p.out_lanes ? 2 * i + k % 2 + k / 2 * 8 : 4 * i + k;
    q.col =
        p.out_lanes ? row_tile / 2 * 32 + i * 8 + row_tile % 2 * 4 : row_tile * TILE_ROWS + 4 * i;
    return q;
}

// sums: of warps, [row][EXPERTS_SUMS_ROW], `rows` rows each.
GPU_FN float joined(const float *sums, uint32_t rows, uint32_t slot, uint32_t row,
                    uint32_t feature) {
    float v = 0;
    for (uint32_t k = 0; k < EXPERTS_K_WARPS; k++)
        v += sums[((slot * EXPERTS_K_WARPS + k) * rows + row) * EXPERTS_SUMS_ROW + feature];
    return v;
}

GPU_FN float biased(const experts_product_params &p, uint32_t mat, uint32_t expert, uint32_t row,
                    float v) {
    const float *bias = p.mats[mat].bias;
    return bias != nullptr && row < p.rows ? v + bias[(size_t)expert * p.rows + row] : v;
}

template <class T>
GPU_FN void write_quad(const experts_product_params &p, const expert_run &run, const float *sums,
                       uint32_t rows, uint32_t slot, uint32_t row_tile, uint32_t row,
                       size_t out_row, uint32_t i) {
    quad q = quad_of(p, row_tile, i);
    if (q.col >= p.out_cols) return;
    size_t at = out_row * p.out_stride + q.col;
    float v[4], gate[4] = {0, 0, 0, 0};
    if (p.mode == EXPERTS_GATE_BY) {
        word2 w = load8((const T *)p.out + at);
        unpack2<T>(w.x, &gate[0], &gate[1]);
        unpack2<T>(w.y, &gate[2], &gate[3]);
    }
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t of_matrix = row_tile * TILE_ROWS + q.feature[k];
        v[k] = biased(p, 0, run.expert, of_matrix, joined(sums, rows, slot, row, q.feature[k]));
        if (p.mode == EXPERTS_GATED) {
            float up = joined(sums, rows, 1, row, q.feature[k]);
            v[k] = gate_of(p.act, v[k], biased(p, 1, run.expert, of_matrix, up));
        }
        if (p.mode == EXPERTS_GATE_BY) v[k] = gate_of(p.act, gate[k], v[k]);
    }
    if (p.out_float)
        store16((float *)p.out + at,
                {f32_to_bits(v[0]), f32_to_bits(v[1]), f32_to_bits(v[2]), f32_to_bits(v[3])});
    else
        store8((T *)p.out + at, {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3])});
}

// The tiles of a warp: `n` from column tile `begin` on, at most MOST in flight.
template <class W, uint32_t N, uint32_t MOST>
GPU_FN void multiply_tiles(float acc[N][4], const experts_product_params &p, const x_rows<N> &x,
                           const typename W::cursor &at, uint32_t begin, uint32_t n) {
    constexpr uint32_t BATCH = W::BATCH < MOST ? W::BATCH : MOST;
    typename W::words w[BATCH];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++)
        if (i < n) W::load(w[i], at, p, i);
#pragma unroll 1
    for (uint32_t done = 0; done < n; done += BATCH)
#pragma unroll
        for (uint32_t i = 0; i < BATCH; i++) {
            if (done + i >= n) continue;
            W::template multiply<N>(acc, w[i], x, p, (begin + done + i) * TILE_COLS);
            if (done + i + BATCH < n) W::load(w[i], at, p, done + i + BATCH);
        }
}

// Rows [begin, begin + n) of the run, n <= 8N.
template <class W, uint32_t N, uint32_t TILES>
GPU_FN void multiply_rows(const experts_product_params &p, const expert_run &run, uint32_t begin,
                          uint32_t n) {
    typedef typename W::type T;
    float *sums = shared<float>();
    uint32_t lane = lane_idx(), g = lane / 4, t = lane % 4, warp = warp_idx();
    uint32_t slot = warp / EXPERTS_K_WARPS, first = warp % EXPERTS_K_WARPS * p.warp_tiles;
    bool gated = p.mode == EXPERTS_GATED;
    uint32_t row_tile = gated ? block_x() : block_x() * EXPERTS_SLOTS + slot;
    uint32_t left = first < p.n_col_tiles ? p.n_col_tiles - first : 0;

    x_rows<N> x = {(const unsigned char *)p.x, {}};
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        uint32_t i = 8 * j + g < n ? 8 * j + g : n - 1, row = run.first + begin + i;
        if (p.row_of != nullptr) row = p.row_of[row];
        x.at[j] = (uint32_t)((size_t)row * p.x_stride / 8) + t;
    }
    float acc[N][4] = {};
    if (row_tile < p.n_row_tiles && left > 0) {
        typename W::cursor at;
        W::seek(at, p, p.mats[gated ? slot : 0], run.expert, row_tile, first);
        multiply_tiles<W, N, TILES>(acc, p, x, at, first,
                                    left < p.warp_tiles ? left : p.warp_tiles);
    }
    float *mine = sums + warp * (8 * N * EXPERTS_SUMS_ROW) + 2 * t * EXPERTS_SUMS_ROW + g;
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        for (uint32_t e = 0; e < 4; e++)
            mine[(8 * j + e % 2) * EXPERTS_SUMS_ROW + e / 2 * 8] = acc[j][e];
    sync_threads();
    uint32_t per_slot = n * 4;
    for (uint32_t i = thread_idx(); i < per_slot * (gated ? 1u : (uint32_t)EXPERTS_SLOTS);
         i += EXPERTS_THREADS) {
        uint32_t of_slot = i / per_slot, row = i % per_slot / 4;
        uint32_t tile = gated ? block_x() : block_x() * EXPERTS_SLOTS + of_slot;
        write_quad<T>(p, run, sums, 8 * N, of_slot, tile, row, run.first + begin + row, i % 4);
    }
    sync_threads(); // before the next rows overwrite the sums
}

// MOST times 8 rows at once, or FEW if there are no more; TILES in flight.
template <class W, uint32_t FEW, uint32_t MOST, uint32_t TILES>
GPU_FN void multiply_run(const experts_product_params &p) {
    wait_predecessor();
    release_dependents();
    if (block_y() >= p.state->n_runs) return;
    word4 w = load16(&p.state->runs[block_y()]);
    const expert_run run = {w.x, w.y, w.z, w.w};
#pragma unroll 1
    for (uint32_t begin = 0; begin < run.n; begin += 8 * MOST) {
        uint32_t n = run.n - begin < 8 * MOST ? run.n - begin : 8 * MOST;
        if (n <= 8 * FEW)
            multiply_rows<W, FEW, TILES>(p, run, begin, n);
        else
            multiply_rows<W, MOST, TILES>(p, run, begin, n);
    }
}

// ---- sum ----

template <class T> GPU_FN void load8f(const void *p, bool is_float, size_t at, float v[8]) {
    if (is_float) {
        uint32_t w[8];
        words4(w, load16((const float *)p + at));
        words4(w + 4, load16((const float *)p + at + 4));
        for (uint32_t i = 0; i < 8; i++) v[i] = bits_to_f32(w[i]);
    } else {
        uint32_t w[4];
        words4(w, load16((const T *)p + at));
        for (uint32_t i = 0; i < 4; i++) unpack2<T>(w[i], &v[2 * i], &v[2 * i + 1]);
    }
}
template <class T> GPU_FN void store8f(void *p, bool is_float, size_t at, const float v[8]) {
    if (is_float) {
        float *to = (float *)p + at;
        store16(to, {f32_to_bits(v[0]), f32_to_bits(v[1]), f32_to_bits(v[2]), f32_to_bits(v[3])});
        store16(to + 4,
                {f32_to_bits(v[4]), f32_to_bits(v[5]), f32_to_bits(v[6]), f32_to_bits(v[7])});
    } else {
        store16((T *)p + at, {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                              pack2<T>(v[6], v[7])});
    }
}

template <class T> GPU_FN void sum_row(const experts_sum_params &p) {
    wait_predecessor();
    release_dependents();
    uint32_t at = (block_y() * n_threads() + thread_idx()) * 8;
    if (at >= p.dim) return;
    size_t row = block_x();
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row < valid_rows(p.n_valid, grid_x()))
        for (uint32_t i = 0; i < p.n_used; i++) {
            size_t choice = row * p.n_used + i;
            float v[8], weight = p.p[choice];
            load8f<T>(p.parts, p.parts_float, (size_t)p.slot_of[choice] * p.parts_stride + at, v);
            for (uint32_t k = 0; k < 8; k++) sum[k] = fma_f32(weight, v[k], sum[k]);
        }
    for (uint32_t k = 0; k < 8; k++) sum[k] = at + k < p.dim ? sum[k] : 0.0f;
    store8f<T>(p.out, p.out_float, row * p.out_stride + at, sum);
}

} // namespace

// ---- kernels ----
// For launches of up to 8 rows, and with up to 32 and 64 rows of an expert at once: the fewer sums,
// the more tiles in flight fit the registers of two blocks of a multiprocessor.  _64: one block.
#define EXPERTS_OF(name, tiles)                                                                    \
    GPU_KERNEL(experts_##name##_8, experts_product_params, EXPERTS_THREADS, 2) {                   \
        multiply_run<tiles, 1, 1, 4>(p);                                                           \
    }                                                                                              \
    GPU_KERNEL(experts_##name##_32, experts_product_params, EXPERTS_THREADS, 2) {                  \
        multiply_run<tiles, 1, 4, 2>(p);                                                           \
    }                                                                                              \
    GPU_KERNEL(experts_##name##_64, experts_product_params, EXPERTS_THREADS, 1) {                  \
        multiply_run<tiles, 2, 8, 2>(p);                                                           \
    }
#define TILES_OF(...) __VA_ARGS__
#define EXPERTS_QUANT(name, format)                                                                \
    EXPERTS_OF(name##_bf16, TILES_OF(quant_tiles<format, bf16>))                                   \
    EXPERTS_OF(name##_f16, TILES_OF(quant_tiles<format, f16>))
#define EXPERTS_DENSE(name)                                                                        \
    EXPERTS_OF(name##_bf16, TILES_OF(dense_tiles<name, bf16>))                                     \
    EXPERTS_OF(name##_f16, TILES_OF(dense_tiles<name, f16>))

EXPERTS_DENSE(f32)
EXPERTS_DENSE(bf16)
EXPERTS_DENSE(f16)
EXPERTS_QUANT(q4, CU_FMT_Q4)
EXPERTS_QUANT(q4m, CU_FMT_Q4M)
EXPERTS_QUANT(q5, CU_FMT_Q5)
EXPERTS_QUANT(q5m, CU_FMT_Q5M)
EXPERTS_QUANT(q6, CU_FMT_Q6)
EXPERTS_QUANT(q8, CU_FMT_Q8)
GPU_KERNEL(experts_route, experts_route_params, EXPERTS_ROUTE_THREADS, 4) {
    route_row(p);
}
GPU_KERNEL(experts_sort, experts_sort_params, EXPERTS_SORT_THREADS, 1) {
    sort_expert(p);
}
GPU_KERNEL(experts_sum_bf16, experts_sum_params, EXPERTS_SUM_THREADS, 4) {
    sum_row<bf16>(p);
}
GPU_KERNEL(experts_sum_f16, experts_sum_params, EXPERTS_SUM_THREADS, 4) {
    sum_row<f16>(p);
}

// clang-format off
#define EXPERTS_LINE(name) GPU_ENTRY(experts_##name, experts_product_params, EXPERTS_THREADS, 80),
#define EXPERTS_LINES(name)                                                                        \
    EXPERTS_LINE(name##_bf16_8) EXPERTS_LINE(name##_bf16_32) EXPERTS_LINE(name##_bf16_64)          \
    EXPERTS_LINE(name##_f16_8) EXPERTS_LINE(name##_f16_32) EXPERTS_LINE(name##_f16_64)
GPU_TABLE(experts) {
    EXPERTS_LINES(f32)
    EXPERTS_LINES(bf16)
    EXPERTS_LINES(f16)
    EXPERTS_LINES(q4)
    EXPERTS_LINES(q4m)
    EXPERTS_LINES(q5)
    EXPERTS_LINES(q5m)
    EXPERTS_LINES(q6)
    EXPERTS_LINES(q8)
    GPU_ENTRY(experts_route, experts_route_params, EXPERTS_ROUTE_THREADS, 80),
    GPU_ENTRY(experts_sort, experts_sort_params, EXPERTS_SORT_THREADS, 80),
    GPU_ENTRY(experts_sum_bf16, experts_sum_params, EXPERTS_SUM_THREADS, 80),
    GPU_ENTRY(experts_sum_f16, experts_sum_params, EXPERTS_SUM_THREADS, 80),
} GPU_TABLE_END(experts)
    // clang-format on
