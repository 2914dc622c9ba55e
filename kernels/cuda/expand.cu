// expand.cu - weights of any format, rounded to the activations' 16-bit type, as rows.
//
// Bytes moved: the weights in once, two bytes for each out, both in 16-byte accesses.
//
// Dense: a thread takes 8 columns of a row.  Quantised: a warp takes a tile; its lanes hold pairs
// of columns (unpack.cuh), so a tile is assembled in shared memory and written as rows of 128
// bytes.  Values are scale * code (+ min) in float, rounded once.
//
// grid: as many blocks of 256 threads as the work needs; the last may have idle threads.
#include "cuda/unpack.cuh"

extern "C" {
#include "cuda/expand.h"
}

namespace {

constexpr uint32_t THREADS = EXPAND_THREADS;

template <class E> GPU_FN void read_eight(const E *from, float v[8]) {
    uint32_t w[4];
    words4(w, load_stream16(from));
    for (uint32_t i = 0; i < 4; i++) unpack2<E>(w[i], &v[2 * i], &v[2 * i + 1]);
}
template <> GPU_FN void read_eight<float>(const float *from, float v[8]) {
    uint32_t w[8];
    words4(w, load_stream16(from));
    words4(w + 4, load_stream16(from + 4));
    for (uint32_t i = 0; i < 8; i++) v[i] = bits_to_f32(w[i]);
}

template <class E, class T> GPU_FN void expand_dense(const expand_params &p) {
    uint32_t chunks = div_up(p.w.cols, 8);
    uint64_t i = (uint64_t)block_x() * THREADS + thread_idx();
    uint64_t row = i / chunks, chunk = i % chunks;
    bool here = row < p.n_rows;
    float v[8]; // columns behind the last are zero in the weights
    if (here) read_eight<E>((const E *)p.w.data + (p.row_begin + row) * p.w.stride + chunk * 8, v);
    wait_predecessor();
    release_dependents();
    if (!here) return;
    store16((T *)p.out + row * p.stride + chunk * 8, {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]),
                                                      pack2<T>(v[4], v[5]), pack2<T>(v[6], v[7])});
}

template <uint32_t F, class T> GPU_FN void expand_tile(const expand_params &p) {
    uint32_t lane = lane_idx(), first = p.row_begin / TILE_ROWS;
    uint32_t n_row_tiles = (p.row_begin + p.n_rows - 1) / TILE_ROWS + 1 - first;
    size_t i = (size_t)block_x() * EXPAND_WARPS + warp_idx();
    bool here = i < (size_t)n_row_tiles * p.w.n_col_tiles;
    tile_words<F> w;
    if (here)
        tile_stream<F>(w, p.w.low, p.w.high, p.w.scales, (size_t)first * p.w.n_col_tiles + i, lane);
    wait_predecessor();
    release_dependents();
    if (!here) return; // a whole warp

    unsigned char *tile = shared<unsigned char>() + warp_idx() * TILE_ROWS * EXPAND_ROW_BYTES;
    uint32_t g = lane / 4, t = lane % 4;
    for (uint32_t s = 0; s < 4; s++) {
        float v[8];
        tile_values<F>(w, s, v);
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t *to = (uint32_t *)(tile + (g + 8 * r) * EXPAND_ROW_BYTES) + 8 * s + t;
            to[0] = pack2<T>(v[4 * r], v[4 * r + 1]);
            to[4] = pack2<T>(v[4 * r + 2], v[4 * r + 3]);
        }
    }
    sync_warp();
    uint32_t row_tile = first + (uint32_t)(i / p.w.n_col_tiles);
    uint32_t col = (uint32_t)(i % p.w.n_col_tiles) * TILE_COLS + lane % 8 * 8;
    for (uint32_t r = lane / 8; r < TILE_ROWS; r += 4) {
        uint32_t row = row_tile * TILE_ROWS + r - p.row_begin; // before row_begin: very large
        if (row < p.n_rows && col < p.w.cols)
            store16((T *)p.out + (size_t)row * p.stride + col,
                    load16(tile + r * EXPAND_ROW_BYTES + lane % 8 * 16));
    }
}

} // namespace

#define EXPAND_DENSE(name, type)                                                                   \
    GPU_KERNEL(name##_bf16, expand_params, THREADS, 4) {                                           \
        expand_dense<type, bf16>(p);                                                               \
    }                                                                                              \
    GPU_KERNEL(name##_f16, expand_params, THREADS, 4) {                                            \
        expand_dense<type, f16>(p);                                                                \
    }
#define EXPAND_QUANT(name, format)                                                                 \
    GPU_KERNEL(name##_bf16, expand_params, THREADS, 4) {                                           \
        expand_tile<format, bf16>(p);                                                              \
    }                                                                                              \
    GPU_KERNEL(name##_f16, expand_params, THREADS, 4) {                                            \
        expand_tile<format, f16>(p);                                                               \
    }

EXPAND_DENSE(expand_f32, float)
EXPAND_DENSE(expand_bf16, bf16)
EXPAND_DENSE(expand_f16, f16)
EXPAND_QUANT(expand_q4, CU_FMT_Q4)
EXPAND_QUANT(expand_q4m, CU_FMT_Q4M)
EXPAND_QUANT(expand_q5, CU_FMT_Q5)
EXPAND_QUANT(expand_q5m, CU_FMT_Q5M)
EXPAND_QUANT(expand_q6, CU_FMT_Q6)
EXPAND_QUANT(expand_q8, CU_FMT_Q8)

// clang-format off
#define EXPAND_LINES(name)                                                                         \
    GPU_ENTRY(name##_bf16, expand_params, THREADS, 80),                                     \
    GPU_ENTRY(name##_f16, expand_params, THREADS, 80),
GPU_TABLE(expand) {
    EXPAND_LINES(expand_f32)
    EXPAND_LINES(expand_bf16)
    EXPAND_LINES(expand_f16)
    EXPAND_LINES(expand_q4)
    EXPAND_LINES(expand_q4m)
    EXPAND_LINES(expand_q5)
    EXPAND_LINES(expand_q5m)
    EXPAND_LINES(expand_q6)
    EXPAND_LINES(expand_q8)
} GPU_TABLE_END(expand)
    // clang-format on
