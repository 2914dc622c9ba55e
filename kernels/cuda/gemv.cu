// gemv.cu - out = x . transpose(w) for 1 to 8 rows of x; norm before and residual or gate after.
//
// Bytes.  The weights are read once, in 16-byte loads that bypass L1; they are nearly all bytes
// moved.  Each block reads its columns of x (and, with norm, all of x once more) from L2.
//
// Math.  A warp's tile is 16 weight rows x 64 columns, the A side of four mma.m16n8k16; the rows of
// x are the B side's 8 columns, so 1 to 8 of them cost the same.  Weights reach the tensor cores as
// exact 16-bit numbers: 16-bit weights of the activations' type unchanged; quantised ones as
// code minus offset (unpack.cuh), with the scale applied to the float sums of each group; with
// minima as 2^bits + code, and one tf32 product per tile corrects that and adds the minima.
// Weights that are not exact in the activations' type (float, or the other 16-bit type) are
// multiplied as floats instead.  So only x (to inner, when it is normed here), float sums and the
// output are rounded.
//
// The assignment of k to lanes is free as long as A and B agree.  x lies in shared memory in the
// lanes' order, two 16-byte reads per tile: [row][tile][half h][t][8]; the eight are columns
//     dense       64 tile + 32h + 8t + 0 ... 7, those of a lane's 16 bytes of a weight row
//     quantised   64 tile + 16s + 2t + {0, 1, 8, 9} for s = 2h, 2h + 1
// Lanes g >= rows read the last row of x again; their products land in unused sums.
//
// Flow.  A warp walks through its tiles of its block's units with BATCH tiles of weights in
// registers; each is loaded again right after its use, for the next batch, also across units, so
// that loads are in flight all the time.  The first batch is requested before the kernel waits for
// the predecessor's results.  Per unit the warps' sums are joined in shared memory, which has
// room for two units, so that one barrier per unit is enough.
//
// Order of sums.  In a warp column tiles in order; then warps in order; then slices in order.  The
// norm: each thread its chunks of 8 columns in order, threads of a warp by butterfly, warps in
// order.
//
// Two formats.  Files of K quants keep attn_v in a finer format than attn_q and attn_k.  A block
// has one format from its beginning to its end, so that its loads never pause: the grid is divided
// by bytes (gemv.c).
//
// grid (blocks, splits) x 256 threads; units block_x, block_x + grid_x, ...; see gemv.h.
#include "cuda/gate.cuh"
#include "cuda/unpack.cuh"

extern "C" {
#include "cuda/gemv.h"
}

namespace {

constexpr uint32_t THREADS = GEMV_THREADS;
constexpr uint32_t HALF_WORDS = 16; // of x: 32 columns in shared memory

// ---- loading and multiplying each format ----
//
// A format has
//     words, cursor, sums   a lane's part of a tile, its read position, its accumulators
//     seek                  the cursor to a row tile and column tile
//     load                  the i-th tile from the cursor on
//     skip                  the cursor past n tiles
//     multiply              one tile
//     WHOLE                 full batches have code of their own (registers allow it)
//     finish                sums in the layout of mma: rows g, g + 8 times columns 2t, 2t + 1

struct x_view {                // a lane's view of x in shared memory, at a warp's first tile
    const unsigned char *mine; // its row, its part of a tile
    const float *groups;       // sums of groups, at its row and its part of a tile
    uint32_t row_bytes;
};

struct mma_sums {
    float d[4];
};

// Quantised tiles.
template <uint32_t F, class T> struct quant_tiles {
    typedef T type;
    typedef tile_words<F> words;
    typedef mma_sums sums;
    using q = quant<F>;
    static constexpr uint32_t BATCH = gemv_budget_of(F, false).batch;
    static constexpr bool PERMUTED = true, MINIMA = q::MINIMA;
    // 8-bit tiles leave registers for the work of one tile at a time only.
    static constexpr bool WHOLE = F != CU_FMT_Q8;

    struct cursor {
        const unsigned char *low, *high, *scales;
    };
    static GPU_FN void seek(cursor &c, const gemv_params &p, const gemv_mat &m, uint32_t row_tile,
                            uint32_t col_tile) {
        size_t tile = (size_t)row_tile * p.n_col_tiles + col_tile;
        c.low = tile_low<F>(m.low, tile, lane_idx());
        c.high = tile_high<F>(m.high, tile, lane_idx());
        c.scales = tile_scales<F>(m.scales, tile, lane_idx());
    }
    static GPU_FN void load(words &w, const cursor &c, const gemv_params &, uint32_t i) {
        tile_stream_lane<F>(w, c.low, c.high, c.scales, i);
    }
    static GPU_FN void skip(cursor &c, uint32_t n) {
        c.low += n * q::LOW_BYTES;
        c.high += n * q::HIGH_BYTES;
        c.scales += n * q::SCALE_BYTES;
    }
    static GPU_FN void multiply(sums &out, const words &w, const x_view &x, uint32_t tile,
                                uint32_t) {
        for (uint32_t h = 0; h < 2; h++) {
            word4 v = load16(x.mine + tile * 128 + h * 64);
            const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
            float d[4] = {0, 0, 0, 0};
            for (uint32_t i = 0; i < 2; i++) {
                uint32_t s = 2 * h + i, a[4];
                if constexpr (MINIMA)
                    tile_raw_fragment<F, T>(w, s, a);
                else
                    tile_fragment<F, T>(w, s, a);
                mma_16816<T>(d, a, b[i]);
                if (i + 1 < q::STEPS) continue; // the group goes on
                for (uint32_t j = 0; j < 4; j++)
                    out.d[j] = fma_f32(tile_scale<F>(w, j / 2, s), d[j], out.d[j]);
                for (uint32_t j = 0; j < 4; j++) d[j] = 0;
            }
        }
        if constexpr (MINIMA) {
            float a[4], b[2];
            tile_rest_fragment<F>(w, lane_idx() % 4, a);
            rest_sums<F>(x.groups[tile * 4], b);
            mma_1688_tf32(out.d, a, b);
        }
    }
    static GPU_FN void finish(const sums &s, float d[4], uint32_t, uint32_t) {
        for (uint32_t j = 0; j < 4; j++) d[j] = s.d[j];
    }
};

// Row-major weights of E: a lane holds columns 32h + 8t + 0 ... 7 of rows g and g + 8, h = 0, 1.
template <class E> struct dense_cursor {
    const unsigned char *row, *row8; // at the lane's first column of the tile
    uint32_t col;                    // that column
};
template <class E> struct dense_load {
    static constexpr uint32_t N = sizeof(E) / 2; // loads of 16 bytes for 8 columns
    struct words {
        uint32_t w[2][2][4 * N]; // [half][row g, g + 8]
    };
    static GPU_FN void seek(dense_cursor<E> &c, const gemv_params &p, const gemv_mat &m,
                            uint32_t row_tile, uint32_t col_tile) {
        uint32_t lane = lane_idx();
        c.col = col_tile * TILE_COLS + lane % 4 * 8;
        c.row = (const unsigned char *)m.low +
                ((size_t)(row_tile * TILE_ROWS + lane / 4) * p.w_stride + c.col) * sizeof(E);
        c.row8 = c.row + (size_t)8 * p.w_stride * sizeof(E);
    }
    static GPU_FN void load(words &v, const dense_cursor<E> &c, const gemv_params &p, uint32_t i) {
        for (uint32_t h = 0; h < 2; h++)
            for (uint32_t n = 0; n < N; n++) {
                uint32_t col = i * TILE_COLS + h * 32, at = col * sizeof(E) + n * 16;
                word4 none = {0, 0, 0, 0};
                bool there = c.col + col < p.w_stride; // the stride is a multiple of 8
                words4(v.w[h][0] + 4 * n, there ? load_stream16(c.row + at) : none);
                words4(v.w[h][1] + 4 * n, there ? load_stream16(c.row8 + at) : none);
            }
    }
    static GPU_FN void skip(dense_cursor<E> &c, uint32_t n) {
        c.row += n * TILE_COLS * sizeof(E);
        c.row8 += n * TILE_COLS * sizeof(E);
        c.col += n * TILE_COLS;
    }
};

// 16-bit weights of the activations' type: a lane's words are fragments without conversion.
template <class T> struct same_tiles : dense_load<T> {
    typedef T type;
    typedef typename dense_load<T>::words words;
    typedef dense_cursor<T> cursor;
    typedef mma_sums sums;
    static constexpr uint32_t BATCH = gemv_budget_of(CU_FMT_BF16, true).batch;
    static constexpr bool PERMUTED = false, MINIMA = false, WHOLE = true;

    static GPU_FN void multiply(sums &out, const words &w, const x_view &x, uint32_t tile,
                                uint32_t) {
        for (uint32_t h = 0; h < 2; h++) {
            word4 v = load16(x.mine + tile * 128 + h * 64);
            const uint32_t b[2][2] = {{v.x, v.y}, {v.z, v.w}};
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t a[4] = {w.w[h][0][2 * i], w.w[h][1][2 * i], w.w[h][0][2 * i + 1],
                                       w.w[h][1][2 * i + 1]};
                mma_16816<T>(out.d, a, b[i]);
            }
        }
    }
    static GPU_FN void finish(const sums &s, float d[4], uint32_t, uint32_t) {
        for (uint32_t j = 0; j < 4; j++) d[j] = s.d[j];
    }
};

template <class E> GPU_FN void eight(const uint32_t *w, float v[8]) { // 16-bit E
    for (uint32_t i = 0; i < 4; i++) unpack2<E>(w[i], &v[2 * i], &v[2 * i + 1]);
}
template <> GPU_FN void eight<float>(const uint32_t *w, float v[8]) {
    for (uint32_t i = 0; i < 8; i++) v[i] = bits_to_f32(w[i]);
}

// Other weights, in float.  A lane adds up its columns for every row of x; lanes of a row are added
// last.
template <class E, class T> struct wide_tiles : dense_load<E> {
    typedef T type;
    typedef typename dense_load<E>::words words;
    typedef dense_cursor<E> cursor;
    struct sums {
        float d[2][GEMV_ROWS_LIMIT];
    };
    static constexpr uint32_t BATCH = gemv_budget_of(CU_FMT_F32, false).batch;
    static constexpr bool PERMUTED = false, MINIMA = false, WHOLE = false;

    static GPU_FN void multiply(sums &out, const words &w, const x_view &x, uint32_t tile,
                                uint32_t rows) {
        for (uint32_t h = 0; h < 2; h++) {
            float a[8], a8[8], b[8];
            eight<E>(w.w[h][0], a);
            eight<E>(w.w[h][1], a8);
            for (uint32_t m = 0; m < GEMV_ROWS_LIMIT; m++) {
                if (m >= rows) break;
                word4 v = load16(x.mine + m * x.row_bytes + tile * 128 + h * 64);
                uint32_t pairs[4];
                words4(pairs, v);
                eight<T>(pairs, b);
                for (uint32_t i = 0; i < 8; i++) {
                    out.d[0][m] = fma_f32(a[i], b[i], out.d[0][m]);
                    out.d[1][m] = fma_f32(a8[i], b[i], out.d[1][m]);
                }
            }
        }
    }
    static GPU_FN void finish(const sums &s, float d[4], uint32_t lane, uint32_t rows) {
        for (uint32_t j = 0; j < 4; j++) d[j] = 0;
        for (uint32_t m = 0; m < GEMV_ROWS_LIMIT; m++) {
            if (m >= rows) break;
            for (uint32_t r = 0; r < 2; r++) {
                float v = s.d[r][m];
                v += shfl_xor(v, 1);
                v += shfl_xor(v, 2);
                if (lane % 4 == m / 2) d[2 * r + m % 2] = v;
            }
        }
    }
};

// ---- x ----

struct columns { // of this block: tiles [begin, end)
    uint32_t begin, end;
};

// Eight floats of row m of x from column `col` on; those behind the last column are 0.
template <class T> GPU_FN void read_x(const gemv_params &p, size_t row, uint32_t col, float v[8]) {
    for (uint32_t i = 0; i < 8; i++) v[i] = 0;
    if (col >= p.cols) return;
    uint32_t w[8];
    if (p.x_float) {
        const float *from = (const float *)p.x + row * p.x_stride + col;
        words4(w, load16(from));
        words4(w + 4, load16(from + 4));
        eight<float>(w, v);
    } else {
        words4(w, load16((const T *)p.x + row * p.x_stride + col));
        eight<T>(w, v);
    }
    for (uint32_t i = 0; i < 8; i++) v[i] = col + i < p.cols ? v[i] : 0.0f;
}

// A vector ends at its last column: the last chunk is read number by number.
GPU_FN void read_norm(const gemv_params &p, uint32_t col, float v[8]) {
    if (col + 8 > p.cols) {
        for (uint32_t i = 0; i < 8; i++) v[i] = col + i < p.cols ? p.norm[col + i] : 0.0f;
        return;
    }
    uint32_t w[8];
    words4(w, load16(p.norm + col));
    words4(w + 4, load16(p.norm + col + 4));
    eight<float>(w, v);
}

GPU_FN size_t x_row(const gemv_params &p, uint32_t m) {
    return p.gather != nullptr ? p.gather[m] : m;
}

// (mean(x^2) + eps)^-1/2 of each row to `inv`; `of_warps` is scratch.
template <class T> GPU_FN void norm_rows(const gemv_params &p, float *of_warps, float *inv) {
    for (uint32_t m = 0; m < p.rows; m++) {
        size_t row = x_row(p, m);
        float sum = 0, v[8];
        for (uint32_t col = thread_idx() * 8; col < p.cols; col += THREADS * 8) {
            read_x<T>(p, row, col, v);
            for (uint32_t i = 0; i < 8; i++) sum = fma_f32(v[i], v[i], sum);
        }
        sum = warp_sum(sum);
        if (lane_idx() == 0) of_warps[warp_idx() * GEMV_ROWS_LIMIT + m] = sum;
    }
    sync_threads();
    if (thread_idx() < p.rows) {
        float sum = 0;
        for (uint32_t w = 0; w < GEMV_WARPS; w++)
            sum += of_warps[w * GEMV_ROWS_LIMIT + thread_idx()];
        inv[thread_idx()] = rsqrt_f32(sum / (float)p.cols + p.norm_eps);
    }
    sync_threads();
}

// The block's columns of x, normed or not, to shared memory in the lanes' order.
template <class W>
GPU_FN void stage_x(const gemv_params &p, const columns &c, const gemv_shared &at,
                    unsigned char *base) {
    typedef typename W::type T;
    float *squares = (float *)(base + at.squares), *inv = squares + GEMV_WARPS * GEMV_ROWS_LIMIT;
    if (p.norm != nullptr) norm_rows<T>(p, squares, inv);
    uint32_t chunks = (c.end - c.begin) * 8; // of 8 columns
    for (uint32_t i = thread_idx(); i < chunks * p.rows; i += THREADS) {
        uint32_t m = i / chunks, chunk = i % chunks, col = c.begin * TILE_COLS + chunk * 8;
        float v[8], norm[8];
        read_x<T>(p, x_row(p, m), col, v);
        if (p.norm != nullptr) {
            read_norm(p, col, norm);
            for (uint32_t j = 0; j < 8; j++) v[j] = v[j] * inv[m] * norm[j];
        }
        uint32_t w[4];
        for (uint32_t j = 0; j < 4; j++) w[j] = pack2<T>(v[2 * j], v[2 * j + 1]);
        uint32_t *out = (uint32_t *)(base + m * at.x_row);
        if constexpr (W::PERMUTED) { // of 32 columns, 16s + 8b + 2t, + 1 are word 2s + b of t
            out += chunk / 4 * HALF_WORDS + chunk % 4;
            for (uint32_t t = 0; t < 4; t++) out[4 * t] = w[t];
        } else {
            store16(out + chunk * 4, {w[0], w[1], w[2], w[3]});
        }
    }
    sync_threads();
}

// Sums of x over groups of 32 columns, as rounded, in two parts: [row][tile]{group 0, 1}[part].
template <class W>
GPU_FN void stage_groups(const gemv_params &p, const columns &c, const gemv_shared &at,
                         unsigned char *base) {
    typedef typename W::type T;
    uint32_t groups = (c.end - c.begin) * 2;
    for (uint32_t i = thread_idx(); i < groups * p.rows; i += THREADS) {
        uint32_t m = i / groups, group = i % groups;
        float sum = 0, v[8];
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t w[4];
            words4(w, load16(base + m * at.x_row + group * 64 + j * 16));
            eight<T>(w, v);
            for (uint32_t k = 0; k < 8; k++) sum += v[k];
        }
        store8(base + at.groups + m * at.groups_row + group * 8,
               {f32_to_bits(rest_part(sum, 0)), f32_to_bits(rest_part(sum, 1))});
    }
    sync_threads();
}

// ---- out ----

GPU_FN const gemv_mat &mat_of(const gemv_params &p, uint32_t list_tile, uint32_t *row_tile) {
    uint32_t j = 0;
    if (p.glu) {
        *row_tile = list_tile / 2;
        return p.mats[list_tile % 2];
    }
    for (uint32_t i = 1; i < p.n_mats; i++)
        if (list_tile >= p.mats[i].first_tile) j = i;
    *row_tile = list_tile - p.mats[j].first_tile;
    return p.mats[j];
}

// The parts of the sums of a unit: [slot][row of x][16 weight rows], over warps or over slices.
struct unit_sums {
    const float *sums; // of warps
    uint32_t warp_sums, slot_warps;
    const float *partials; // of slices, or NULL
    uint32_t splits, n;    // floats of one slice
    uint32_t rows;

    GPU_FN float of_warps(uint32_t slot, uint32_t m, uint32_t r) const {
        float v = 0;
        for (uint32_t w = 0; w < slot_warps; w++)
            v += sums[(slot * slot_warps + w) * warp_sums + m * 20 + r];
        return v;
    }
    GPU_FN float total(uint32_t slot, uint32_t m, uint32_t r) const {
        if (partials == nullptr) return of_warps(slot, m, r);
        float v = 0;
        const float *from = partials + (slot * rows + m) * TILE_ROWS + r;
        for (uint32_t i = 0; i < splits; i++) v += load_fresh(from + (size_t)i * n);
        return v;
    }
};

template <class T>
GPU_FN void write_unit(const gemv_params &p, const unit_sums &s, uint32_t first_tile,
                       uint32_t end_tile, uint32_t slots) {
    uint32_t per_out = p.glu ? 2 : 1, n = slots / per_out * p.rows * TILE_ROWS;
    for (uint32_t i = thread_idx(); i < n; i += THREADS) {
        uint32_t r = i % TILE_ROWS, m = i / TILE_ROWS % p.rows;
        uint32_t slot = i / TILE_ROWS / p.rows * per_out, row_tile;
        if (first_tile + slot >= end_tile) continue;
        const gemv_mat &to = mat_of(p, first_tile + slot, &row_tile);
        uint32_t row = row_tile * TILE_ROWS + r;
        if (row >= to.rows) continue;
        float v = s.total(slot, m, r);
        if (to.bias != nullptr) v += to.bias[row];
        if (p.glu) {
            const float *bias = p.mats[1].bias;
            float up = s.total(slot + 1, m, r) + (bias != nullptr ? bias[row] : 0.0f);
            v = gate_of(p.act, v, up);
        }
        size_t at = (size_t)m * to.out_stride + row;
        if (!to.out_float)
            ((T *)to.out)[at] = from_f32<T>(v);
        else if (p.add)
            ((float *)to.out)[at] += v;
        else
            ((float *)to.out)[at] = v;
    }
}

// Publish this slice's sums; true for the last block to arrive, which sees all of them.
GPU_FN bool meet_slices(const gemv_params &p, const unit_sums &s, float *partials, uint32_t unit) {
    float *mine = partials + (size_t)block_y() * s.n;
    for (uint32_t i = thread_idx(); i < s.n; i += THREADS)
        mine[i] = s.of_warps(i / TILE_ROWS / p.rows, i / TILE_ROWS % p.rows, i % TILE_ROWS);
    fence();
    sync_threads();
    bool last = false;
    if (thread_idx() == 0) last = atomic_add(&p.counters[unit], 1u) == p.splits - 1;
    last = sync_threads_or(last);
    if (!last) return false;
    fence();
    if (thread_idx() == 0) p.counters[unit] = 0; // no other block reads it again
    return true;
}

// ---- all of it ----

// Units of one format, and the blocks that take them round-robin: all, or those of the first or
// second format of two.  Computed at each use, since they come from parameters.
enum { WHOLE_LIST, FIRST_PIECE, SECOND_PIECE };
template <uint32_t WHICH> struct piece {
    static constexpr bool SECOND = WHICH == SECOND_PIECE, FIRST = WHICH == FIRST_PIECE;
    static GPU_FN uint32_t tile(const gemv_params &p) { // of the list of row tiles
        return SECOND ? p.second_tile : 0;
    }
    static GPU_FN uint32_t end_tile(const gemv_params &p) {
        return FIRST ? p.second_tile : p.n_row_tiles;
    }
    static GPU_FN uint32_t unit(const gemv_params &p) { return SECOND ? p.second_unit : 0; }
    static GPU_FN uint32_t end_unit(const gemv_params &p) {
        return FIRST ? p.second_unit : p.n_units;
    }
    static GPU_FN uint32_t block(const gemv_params &p) {
        return block_x() - (SECOND ? p.second_block : 0);
    }
    static GPU_FN uint32_t n_blocks(const gemv_params &p) {
        return FIRST ? p.second_block : grid_x() - (SECOND ? p.second_block : 0);
    }
};

struct share {         // the part of a warp in every unit of its block
    columns block;     // of the block
    uint32_t slots;    // row tiles of a unit
    uint32_t slot;     // its own
    uint32_t begin, n; // its column tiles
};

GPU_FN share share_of(const gemv_params &p) {
    share s;
    uint32_t warp = warp_idx(), end = (block_y() + 1) * p.slice_tiles;
    s.block.begin = block_y() * p.slice_tiles;
    s.block.end = end < p.n_col_tiles ? end : p.n_col_tiles;
    s.slots = GEMV_WARPS / p.slot_warps;
    s.slot = warp / p.slot_warps;
    s.begin = s.block.begin + warp % p.slot_warps * p.warp_tiles;
    uint32_t left = s.begin < s.block.end ? s.block.end - s.begin : 0;
    s.n = left < p.warp_tiles ? left : p.warp_tiles;
    return s;
}

template <class W>
GPU_FN x_view view_of_x(const gemv_params &p, const share &s, const gemv_shared &in,
                        unsigned char *base) {
    // Formats with other sums read every row of x themselves.
    constexpr bool ALL_ROWS = sizeof(typename W::sums) != sizeof(mma_sums);
    uint32_t g = lane_idx() / 4, t = lane_idx() % 4, tile = s.begin - s.block.begin;
    uint32_t row = ALL_ROWS ? 0 : g < p.rows ? g : p.rows - 1;
    x_view x;
    x.mine = base + (size_t)row * in.x_row + (size_t)tile * 128 + t * 16;
    x.groups = (const float *)(base + in.groups + row * in.groups_row) + tile * 4 + t;
    x.row_bytes = in.x_row;
    return x;
}

template <class W>
GPU_FN void seek_list(typename W::cursor &at, const gemv_params &p, const share &s,
                      uint32_t list_tile) {
    uint32_t row_tile;
    const gemv_mat &m = mat_of(p, list_tile, &row_tile);
    W::seek(at, p, m, row_tile, s.begin);
}

// One row tile, with its first batch in `w`; leaves the first batch of row tile `next` of the list
// there, if there is one.  A full batch that loads a full one, the usual case, tests none of its
// tiles.
template <class W, class P>
GPU_FN void multiply_row_tile(typename W::sums &sums, typename W::words w[W::BATCH],
                              typename W::cursor &at, const gemv_params &p, const share &s,
                              x_view x, uint32_t next) {
    constexpr uint32_t BATCH = W::BATCH;
    const bool has_next = next < P::end_tile(p);
    for (uint32_t left = s.n; left > 0;) { // column tiles
        uint32_t n = left < BATCH ? left : BATCH, n_load = left - n;
        left = n_load;
        if (n_load > 0) {
            W::skip(at, BATCH);
        } else {
            if (has_next) seek_list<W>(at, p, s, next);
            n_load = has_next ? s.n : 0;
        }
        if (W::WHOLE && n == BATCH && n_load >= BATCH) {
            for (uint32_t i = 0; i < BATCH; i++) {
                W::multiply(sums, w[i], x, i, p.rows);
                W::load(w[i], at, p, i);
            }
        } else {
            for (uint32_t i = 0; i < BATCH; i++) {
                if (i < n) W::multiply(sums, w[i], x, i, p.rows);
                if (i < n_load) W::load(w[i], at, p, i);
            }
        }
        x.mine += BATCH * 128;
        x.groups += BATCH * 4;
    }
}

// The warp's sums as [row of x][16 weight rows], 20 floats from one to the next.
template <class W>
GPU_FN void keep_sums(const typename W::sums &sums, const gemv_params &p, float *out) {
    uint32_t lane = lane_idx(), g = lane / 4, t = lane % 4;
    float d[4];
    W::finish(sums, d, lane, p.rows);
    if (2 * t >= p.rows) return; // (there is room for an even number of rows)
    out += 2 * t * 20 + g;
    out[0] = d[0];
    out[20] = d[1];
    out[8] = d[2];
    out[28] = d[3];
}

template <class W, uint32_t WHICH = WHOLE_LIST> GPU_FN void gemv_block(const gemv_params &p) {
    typedef piece<WHICH> P;
    const share s = share_of(p);
    typename W::words w[W::BATCH];
    typename W::cursor at = {};
    const uint32_t list_tile = P::tile(p) + P::block(p) * s.slots + s.slot;
    if (list_tile < P::end_tile(p)) {
        seek_list<W>(at, p, s, list_tile);
        for (uint32_t i = 0; i < W::BATCH; i++)
            if (i < s.n) W::load(w[i], at, p, i);
    }
    wait_predecessor();
    release_dependents();

    unsigned char *base = shared<unsigned char>();
    const gemv_shared in = gemv_shared_of(p.rows, p.slice_tiles, W::MINIMA);
    stage_x<W>(p, s.block, in, base);
    if constexpr (W::MINIMA) stage_groups<W>(p, s.block, in, base);
    const x_view x = view_of_x<W>(p, s, in, base);

    uint32_t turn = 0;
    for (uint32_t unit = P::unit(p) + P::block(p); unit < P::end_unit(p);
         unit += P::n_blocks(p), turn ^= 1) {
        typename W::sums sums = {};
        const uint32_t tile = P::tile(p) + (unit - P::unit(p)) * s.slots;
        if (tile + s.slot < P::end_tile(p))
            multiply_row_tile<W, P>(sums, w, at, p, s, x, tile + P::n_blocks(p) * s.slots + s.slot);
        float *of_warps = (float *)(base + in.sums) + turn * GEMV_WARPS * in.warp_sums;
        keep_sums<W>(sums, p, of_warps + warp_idx() * in.warp_sums);
        sync_threads();

        unit_sums u = {of_warps, in.warp_sums, p.slot_warps,
                       nullptr,  p.splits,     s.slots * p.rows * TILE_ROWS,
                       p.rows};
        if (p.splits > 1) {
            float *partials = p.partials + (size_t)unit * p.splits * u.n;
            if (!meet_slices(p, u, partials, unit)) continue;
            u.partials = partials;
        }
        write_unit<typename W::type>(p, u, tile, P::end_tile(p), s.slots);
    }
}

// Two formats in one kernel leave registers for one tile less.
template <uint32_t F, class T> struct mixed_tiles : quant_tiles<F, T> {
    static constexpr uint32_t BATCH = gemv_mixed_batch(F);
};

// Matrices of two formats: the first blocks take those of A, the others those of B.
template <class A, class B> GPU_FN void gemv_mixed(const gemv_params &p) {
    if (block_x() < p.second_block)
        gemv_block<A, FIRST_PIECE>(p);
    else
        gemv_block<B, SECOND_PIECE>(p);
}

} // namespace

// Blocks per multiprocessor as in gemv_budget_of: wide tiles 2, others 3.
#define GEMV_WIDE(name, ...)                                                                       \
    GPU_KERNEL(name, gemv_params, THREADS, 2) {                                                    \
        gemv_block<wide_tiles<__VA_ARGS__>>(p);                                                    \
    }
#define GEMV_SAME(name, type)                                                                      \
    GPU_KERNEL(name, gemv_params, THREADS, 3) {                                                    \
        gemv_block<same_tiles<type>>(p);                                                           \
    }
#define GEMV_QUANT(name, format)                                                                   \
    GPU_KERNEL(name##_bf16, gemv_params, THREADS, 3) {                                             \
        gemv_block<quant_tiles<format, bf16>>(p);                                                  \
    }                                                                                              \
    GPU_KERNEL(name##_f16, gemv_params, THREADS, 3) {                                              \
        gemv_block<quant_tiles<format, f16>>(p);                                                   \
    }
#define GEMV_MIXED(name, first, second)                                                            \
    GPU_KERNEL(name##_bf16, gemv_params, THREADS, 3) {                                             \
        gemv_mixed<mixed_tiles<first, bf16>, mixed_tiles<second, bf16>>(p);                        \
    }                                                                                              \
    GPU_KERNEL(name##_f16, gemv_params, THREADS, 3) {                                              \
        gemv_mixed<mixed_tiles<first, f16>, mixed_tiles<second, f16>>(p);                          \
    }

GEMV_WIDE(gemv_f32_bf16, float, bf16)
GEMV_WIDE(gemv_f32_f16, float, f16)
GEMV_SAME(gemv_bf16_bf16, bf16)
GEMV_WIDE(gemv_bf16_f16, bf16, f16)
GEMV_WIDE(gemv_f16_bf16, f16, bf16)
GEMV_SAME(gemv_f16_f16, f16)
GEMV_QUANT(gemv_q4, CU_FMT_Q4)
GEMV_QUANT(gemv_q4m, CU_FMT_Q4M)
GEMV_QUANT(gemv_q5, CU_FMT_Q5)
GEMV_QUANT(gemv_q5m, CU_FMT_Q5M)
GEMV_QUANT(gemv_q6, CU_FMT_Q6)
GEMV_QUANT(gemv_q8, CU_FMT_Q8)
GEMV_MIXED(gemv_q4m_q6, CU_FMT_Q4M, CU_FMT_Q6)
GEMV_MIXED(gemv_q5m_q6, CU_FMT_Q5M, CU_FMT_Q6)
GEMV_MIXED(gemv_q4m_q5m, CU_FMT_Q4M, CU_FMT_Q5M)

// clang-format off
#define GEMV_LINES(name)                                                                           \
    GPU_ENTRY(name##_bf16, gemv_params, THREADS, 80),                                         \
    GPU_ENTRY(name##_f16, gemv_params, THREADS, 80),
GPU_TABLE(gemv) {
    GEMV_LINES(gemv_f32)
    GEMV_LINES(gemv_bf16)
    GEMV_LINES(gemv_f16)
    GEMV_LINES(gemv_q4)
    GEMV_LINES(gemv_q4m)
    GEMV_LINES(gemv_q5)
    GEMV_LINES(gemv_q5m)
    GEMV_LINES(gemv_q6)
    GEMV_LINES(gemv_q8)
    GEMV_LINES(gemv_q4m_q6)
    GEMV_LINES(gemv_q5m_q6)
    GEMV_LINES(gemv_q4m_q5m)
} GPU_TABLE_END(gemv)
    // clang-format on
