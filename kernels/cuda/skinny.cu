// skinny.cu - out[row, n] = x[row, k] . w[n, k] for 1 to 64 rows, on tensor cores.
//
// Weights are the A operand of mma (16 of their rows at a time), rows of x are its columns (8 at a
// time), so no tensor work is spent on missing rows: out^T = w . x^T.
//
//     grid    x: blocks of weight rows, of all matrices of the launch, one after the other
//             y: ranges of columns (splits)
//     block   4 warps.  With N tiles of 8 rows of x:
//                 N 1: 1 x 4 warps, 32 weight rows, 256 columns a stage
//                 N 2: 2 x 2        64             128
//                 N 4, 8: 4 x 1    128              64
//             a warp has two tiles of 16 weight rows x 64 columns a stage (f32: one), so each
//             fragment of x that it reads from shared memory is used twice
//     ring    4 stages (5 for small codes) of x and weights, filled by cp.async of 16 bytes.
//             The 8 tiles of a stage are 16 KiB when dense, 4.5 to 7 KiB with 4 to 6 bits, 8.5 KiB
//             with 8; x is 4 KiB (N 1, 4 when dense) to 8 KiB
//     busy    registers leave room for 4 blocks of a multiprocessor (at most 128 each), N 8: 3 (at
//             most 168).  Shared memory, of 228 KiB: 2 dense blocks (80 to 96 KiB each), 3 to 5
//             others (45 to 75 KiB); of 100 KiB: 1 or 2
//     bytes   weights once; x once per block (from L2); out once; partial sums of splits twice
//
// Shared memory.  x: [64 columns][row of x] in 128-byte rows with 16-byte chunks permuted by
// the row (chunk ^ row % 8), so ldmatrix has no bank conflicts.  Dense weights likewise (float:
// 256-byte rows, chunk ^ 2 * (row % 8)).  Quantised weights keep their layout: each lane
// reads back its own bytes (unpack.cuh), half a tile at a time.
//
// Exactness.  Codes less their offset are exact in 16 bits and so are products with x in float. The
// products of a group of columns (32; Q6: 16) are summed from zero by mma, then
//     sum += scale * products
// in float.  Formats with minima multiply 2^bits + code instead, and one tf32 product per tile
// (unpack.cuh) adds, for both of its groups,
//     sum += (min - 2^bits scale) * (sum of x over the group)
// with scale and min exact and the sum of x in two parts, 22 bits or more of it.  Nothing is
// rounded to 16 bits on the way, so against exact arithmetic the error is at most about (group +
// groups + splits) * 2^-23 of the sum of the terms' magnitudes, 2^bits among them.  The sums of x
// come from mma too, with ones for weights, once per block: in each stage, the warps that share
// columns share the work, one stage ahead.  Dense weights of `inner` are exact as well; weights of
// another type (float, the other 16-bit type) are rounded to inner when read.  Values beyond f16's
// range become infinite there, and so does the output: a visible error, not a hidden one.
//
// Splits.  Each writes its sums for a block of weight rows, then counts itself; the last one adds
// all of them in order 0, 1, ... and leaves the counter at zero.
//
// Dependent launch: weights of the first stages are requested before the predecessor has ended; x,
// partials and counters are touched after wait_predecessor only.
#include "cuda/gpu.cuh"
#include "cuda/unpack.cuh"

extern "C" {
#include "cuda/skinny.h"
}

// Three kinds of tiles of 16 x 64 weights, by their layout and fragments.
enum { KIND_QUANT, KIND_DENSE16, KIND_DENSE32 };
template <uint32_t F> struct format {
    static constexpr uint32_t KIND = skinny_is_quant(F) ? KIND_QUANT
                                     : F == CU_FMT_F32  ? KIND_DENSE32
                                                        : KIND_DENSE16;
    static constexpr bool MINIMA = skinny_has_minima(F);
};

// ---- fetching a stage ----
// The source of a lane's next weights; values common to all stages are computed once.
template <uint32_t F, uint32_t KIND = format<F>::KIND> struct weight_cursor;

template <uint32_t F> struct weight_cursor<F, KIND_QUANT> {
    using q = quant<F>;
    static constexpr uint32_t HIGH = q::HIGH_BYTES / 16, SCALES = q::SCALE_BYTES / 16;
    static_assert(HIGH + SCALES <= 32, "high plane and scales of a tile in one load per lane");
    const unsigned char *low, *rest; // 16 bytes of the low plane; of high plane or scales
    uint32_t rest_bytes;             // of a tile there
    uint32_t low_below, rest_below;  // bytes from one tile of this warp to the next

    GPU_FN void begin(const skinny_mat &m, uint32_t row_tile, uint32_t col_tile, uint32_t n_tiles,
                      uint32_t cols, uint32_t lane) {
        (void)cols;
        size_t tile = (size_t)row_tile * m.n_col_tiles + col_tile;
        low = (const unsigned char *)m.data + tile * q::LOW_BYTES + lane * 16;
        bool in_high = false;
        if constexpr (HIGH > 0) in_high = lane < HIGH;
        const unsigned char *plane = (const unsigned char *)(in_high ? m.high : m.scales);
        rest_bytes = in_high ? q::HIGH_BYTES : q::SCALE_BYTES;
        rest = plane + tile * rest_bytes + (in_high ? lane : lane - HIGH) * 16;
        uint32_t below = n_tiles > 1 ? m.n_col_tiles : 0; // none: the first again, not used
        low_below = kept_if<q::BITS == 4>(below * q::LOW_BYTES);
        rest_below = kept_if<q::BITS == 4>(below * rest_bytes);
        low = kept_if<q::BITS == 4>(low), rest = kept_if<q::BITS == 4>(rest);
    }
    // to: the lane's place, lane * 16 behind the tile's.
    GPU_FN void fetch(unsigned char *to, uint32_t i, uint32_t lane) const {
        const unsigned char *l = low + (i == 0 ? 0 : low_below);
        cp_async16(to, l);
        if constexpr (q::LOW_BYTES == 1024) cp_async16(to + 512, l + 512);
        if (lane < HIGH + SCALES) cp_async16(to + q::LOW_BYTES, rest + (i == 0 ? 0 : rest_below));
    }
    GPU_FN void right(uint32_t n_tiles) {
        low += n_tiles * q::LOW_BYTES;
        rest += n_tiles * rest_bytes;
    }
};

// BYTES per element.  Columns up to a multiple of 8 exist (zeros), none beyond.
template <uint32_t F, uint32_t BYTES> struct dense_cursor {
    static constexpr uint32_t CHUNKS = TILE_COLS * BYTES / 16, PER_CHUNK = 16 / BYTES; // of a row
    static constexpr uint32_t ROWS = 32 / CHUNKS; // that 32 lanes read at once
    const unsigned char *from;
    uint32_t row_bytes, below; // below: from one tile of this warp to the next
    uint32_t cols_left;

    GPU_FN void begin(const skinny_mat &m, uint32_t row_tile, uint32_t col_tile, uint32_t n_tiles,
                      uint32_t cols, uint32_t lane) {
        uint32_t col = col_tile * TILE_COLS + lane % CHUNKS * PER_CHUNK;
        from = (const unsigned char *)m.data +
               ((size_t)(row_tile * TILE_ROWS + lane / CHUNKS) * m.stride + col) * BYTES;
        row_bytes = m.stride * BYTES;
        below = n_tiles > 1 ? TILE_ROWS * row_bytes : 0;
        cols_left = cols > col ? cols - col : 0;
    }
    // to: lane * 16 behind the tile's place, as for quantised tiles.
    GPU_FN void fetch(unsigned char *to, uint32_t i, uint32_t lane) const {
        to -= lane * 16;
#pragma unroll
        for (uint32_t r = 0; r < TILE_ROWS; r += ROWS) {
            uint32_t row = r + lane / CHUNKS, chunk = (lane % CHUNKS) ^ (row % 8 * (BYTES / 2));
            cp_async16_or_zero(to + row * (TILE_COLS * BYTES) + chunk * 16,
                               from + (size_t)i * below + (size_t)r * row_bytes, cols_left > 0);
        }
    }
    GPU_FN void right(uint32_t n_tiles) {
        uint32_t n = n_tiles * TILE_COLS;
        from += n * BYTES;
        cols_left = cols_left > n ? cols_left - n : 0;
    }
};
template <uint32_t F> struct weight_cursor<F, KIND_DENSE16> : dense_cursor<F, 2> {};
template <uint32_t F> struct weight_cursor<F, KIND_DENSE32> : dense_cursor<F, 4> {};

// x of a stage, [part of 64 columns][row of x][64] with zeros beyond its rows and columns.  Thread
// i fetches chunk i % 8 of rows i / 8, + 16, ...
//
// When the last columns are not a whole chunk, the memory after them may hold anything; blank_x
// sets it to zero once it has arrived.
template <uint32_t N, uint32_t PARTS> struct x_cursor {
    static constexpr int ALL_COLS = 1 << 30;
    const uint16_t *from;
    uint32_t place, rows_left; // rows_left: from this thread's first row on
    int cols_left; // from its first chunk on, in the last stage; ALL_COLS: as many as there can be

    // Stages [stage_idx, end).
    GPU_FN void begin(const skinny_params &p, uint32_t stage_idx, uint32_t end, uint32_t thread) {
        uint32_t part = thread / (N * 64), row = thread / 8 % (N * 8), chunk = thread % 8;
        uint32_t col = (stage_idx * PARTS + part) * TILE_COLS + chunk * 8;
        from = (const uint16_t *)p.x + (size_t)row * p.x_stride + col;
        place = kept((part * (N * 8) + row) * 128 + (chunk ^ (row % 8)) * 16);
        rows_left = kept(row < p.rows ? p.rows - row : 0);
        cols_left = end < p.n_stages
                        ? ALL_COLS
                        : (int)(p.cols - (col + (end - 1 - stage_idx) * PARTS * TILE_COLS));
    }
    // is_last: of the stages from begin to end.
    GPU_FN void fetch(const skinny_params &p, unsigned char *to, bool is_last) {
        to += place;
#pragma unroll
        for (uint32_t i = 0; i < N * PARTS / 2; i++) {
            // 16 rows further on, or as many in the next parts
            uint32_t down = i * 16 % (N * 8), right = i * 16 / (N * 8) * TILE_COLS;
            bool valid = down < rows_left && (!is_last || (int)right < cols_left);
            cp_async16_or_zero(to + i * 2048, from + (size_t)down * p.x_stride + right, valid);
        }
        from += PARTS * TILE_COLS;
    }
};

template <uint32_t N, uint32_t PARTS>
GPU_FN void blank_x(unsigned char *x, uint32_t cols, uint32_t thread) {
    uint32_t part = cols / TILE_COLS % PARTS, chunk = cols % TILE_COLS / 8;
    if (thread >= N * 8) return;
    uint16_t *at = (uint16_t *)(x + (part * (N * 8) + thread) * 128 + (chunk ^ (thread % 8)) * 16);
    for (uint32_t i = cols % 8; i < 8; i++) at[i] = 0;
}

// ---- fragments ----
// Of x: columns 32 * half .. + 31 of 8 rows, b[0..1] the first 16 of them.
GPU_FN void x_fragments(uint32_t b[4], const unsigned char *x, uint32_t tile, uint32_t half,
                        uint32_t lane) {
    uint32_t row = lane % 8, chunk = half * 4 + lane / 8;
    ldmatrix4(b, x + (tile * 8 + row) * 128 + (chunk ^ row) * 16);
}

// Other 16-bit type to T, rounded.
template <class T, class From> GPU_FN uint32_t convert2(uint32_t v) {
    float low, high;
    unpack2<From>(v, &low, &high);
    return pack2<T>(low, high);
}
template <uint32_t F, class T> struct same_type { static constexpr bool value = false; };
template <> struct same_type<CU_FMT_BF16, bf16> { static constexpr bool value = true; };
template <> struct same_type<CU_FMT_F16, f16> { static constexpr bool value = true; };

// A fragment of columns 16 * step .. + 15 of a dense tile.
template <uint32_t F, class T>
GPU_FN void dense_fragment(uint32_t a[4], const unsigned char *tile, uint32_t step, uint32_t lane) {
    if constexpr (format<F>::KIND == KIND_DENSE16) {
        uint32_t row = lane % 16, chunk = step * 2 + lane / 16;
        ldmatrix4(a, tile + row * 128 + (chunk ^ (row % 8)) * 16);
        if constexpr (!same_type<F, T>::value)
            for (uint32_t i = 0; i < 4; i++)
                a[i] = F == CU_FMT_BF16 ? convert2<T, bf16>(a[i]) : convert2<T, f16>(a[i]);
    } else {
        uint32_t g = lane / 4, t = lane % 4;
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = g + i % 2 * 8, chunk = step * 4 + i / 2 * 2 + t / 2;
            word2 v = load8(tile + row * 256 + (chunk ^ (g * 2)) * 16 + t % 2 * 8);
            a[i] = pack2<T>(bits_to_f32(v.x), bits_to_f32(v.y));
        }
    }
}

// Columns 32 * half .. + 31 of a quantised tile, placed so that steps 0 and 1 of `w` are steps 2 *
// half and 2 * half + 1 of the tile.  Half a tile at a time, so that N 8 keeps its sums in
// registers.
template <uint32_t F>
GPU_FN void read_half(tile_words<F> &w, const unsigned char *tile, uint32_t half, uint32_t lane) {
    using q = quant<F>;
    words2(w.low, load8(tile + lane * 16 + half * 8));
    if constexpr (q::LOW_WORDS == 8) words2(w.low + 4, load8(tile + 512 + lane * 16 + half * 8));
    const unsigned char *high = tile + q::LOW_BYTES,
                        *scales = high + q::HIGH_BYTES + lane / 4 * (q::SCALE_WORDS * 4);
    if constexpr (q::HIGH_WORDS == 1)
        w.high[0] = *(const uint32_t *)(high + lane * 4) >> (half * 8);
    if constexpr (q::HIGH_WORDS == 2) w.high[0] = *(const uint32_t *)(high + lane * 8 + half * 4);
    for (uint32_t r = 0; r < 2; r++)
        if constexpr (q::SCALE_WORDS == 4)
            w.scales[r * 2] = *(const uint32_t *)(scales + r * 8 + half * 4);
        else
            w.scales[r] = *(const uint32_t *)(scales + r * 4) >> (half * 16);
}

// The addresses at which a lane reads its first tile of a stage.
struct lane_view {
    const unsigned char *low, *scales, *minima; // minima: with their scales, for rest_fragment
};

// The addresses at which a lane reads the low plane and x.  With it the other half needs no new
// address computation, but registers, which only tiles of 4 bits leave between the halves.
template <uint32_t F> struct half_view {
    static constexpr bool FITS = quant<F>::BITS == 4;
    const unsigned char *low, *scales, *x;
    uint32_t x_place; // the lane's in x

    GPU_FN half_view(const lane_view &v, const unsigned char *x_of_stage, uint32_t lane) {
        low = v.low, scales = v.scales, x = x_of_stage;
        x_place = (lane % 8) * 128 + (lane / 8 ^ lane % 8) * 16;
    }
    GPU_FN void read(tile_words<F> &w, uint32_t i, uint32_t half) const {
        const uint32_t tile = i * (quant<F>::LOW_BYTES + quant<F>::SCALE_BYTES);
        words2(w.low, load8(low + tile));
        for (uint32_t r = 0; r < 2; r++)
            if constexpr (quant<F>::MINIMA)
                w.scales[r * 2] = *(const uint32_t *)(scales + tile + r * 8 + half * 4);
            else
                w.scales[r] = *(const uint32_t *)(scales + tile + r * 4) >> (half * 16);
    }
    GPU_FN void x_fragments(uint32_t b[4], uint32_t j) const {
        ldmatrix4(b, x + x_place + j * 1024);
    }
    GPU_FN void move() {
        low += 8;
        x_place ^= 64;
    }
};

// ---- one stage ----
template <uint32_t F, class T, uint32_t N> struct stage {
    static constexpr skinny_cut C = skinny_cut_of(F, N);
    static constexpr uint32_t M = C.warp_tiles;
    static constexpr uint32_t TILE_BYTES = C.tile_bytes;

    // Dense: acc += tiles . x
    static GPU_FN void dense(float acc[M][N][4], const unsigned char *tiles, const unsigned char *x,
                             uint32_t lane) {
#pragma unroll(N >= 4 ? 1 : 2)
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t a[M][2][4];
#pragma unroll
            for (uint32_t i = 0; i < M; i++)
                for (uint32_t s = 0; s < 2; s++)
                    dense_fragment<F, T>(a[i][s], tiles + i * TILE_BYTES, half * 2 + s, lane);
#pragma unroll
            for (uint32_t j = 0; j < N; j++) {
                uint32_t b[4];
                x_fragments(b, x, j, half, lane);
                for (uint32_t i = 0; i < M; i++) {
                    mma_16816<T>(acc[i][j], a[i][0], b);
                    mma_16816<T>(acc[i][j], a[i][1], b + 2);
                }
            }
        }
    }

    // Formats with minima: one tf32 product per tile adds them and subtracts the excess of raw
    // codes (unpack.cuh).
    static GPU_FN void add_minima(float acc[M][N][4], const lane_view &at,
                                  const unsigned char *sums, uint32_t lane) {
        float rest[M][4];
#pragma unroll
        for (uint32_t i = 0; i < M; i++) {
            const uint32_t words[2] = {*(const uint32_t *)(at.minima + i * TILE_BYTES),
                                       *(const uint32_t *)(at.minima + i * TILE_BYTES + 8)};
            rest_fragment(words, rest[i]);
        }
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            word2 v = load8(sums + j * SKINNY_SUMS_BYTES + lane * 8);
            const float b[2] = {bits_to_f32(v.x), bits_to_f32(v.y)};
#pragma unroll
            for (uint32_t i = 0; i < M; i++) mma_1688_tf32(acc[i][j], rest[i], b);
        }
    }

    // Quantised: products of a group of columns from zero, then scaled into acc.
    // sums: of x over the groups, for formats with minima.
    static GPU_FN void quantised(float acc[M][N][4], const unsigned char *tiles,
                                 const lane_view &view, const unsigned char *x,
                                 const unsigned char *sums, uint32_t lane) {
        using q = quant<F>;
        constexpr uint32_t groups = 2 / q::STEPS; // in a half
        // With many sums per lane the compiler would load and multiply far ahead and run out of
        // registers; a sync_warp after every PAUSE tiles of x keeps it in order.  4 or 6 chains of
        // mma stay in flight.
        constexpr uint32_t PAUSE = groups == 2 ? 1 : q::MINIMA ? 2 : 3;
        constexpr bool MOVES = half_view<F>::FITS && N >= 4; // the halves are a loop
        if constexpr (q::MINIMA) add_minima(acc, view, sums, lane);
        half_view<F> at(view, x, lane);
#pragma unroll(N >= 4 ? 1 : 2)
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t a[M][2][4];
            float scale[M][groups][2];
#pragma unroll
            for (uint32_t i = 0; i < M; i++) {
                tile_words<F> w;
                if constexpr (MOVES)
                    at.read(w, i, half);
                else
                    read_half<F>(w, tiles + i * TILE_BYTES, half, lane);
#pragma unroll
                for (uint32_t s = 0; s < 2; s++)
                    if constexpr (q::MINIMA)
                        tile_raw_fragment<F, T>(w, s, a[i][s]);
                    else
                        tile_fragment<F, T>(w, s, a[i][s]);
#pragma unroll
                for (uint32_t r = 0; r < 2; r++)
                    for (uint32_t k = 0; k < groups; k++)
                        scale[i][k][r] = tile_scale<F>(w, r, k * q::STEPS);
            }
#pragma unroll
            for (uint32_t j = 0; j < N; j++) {
                uint32_t b[4];
                if constexpr (MOVES)
                    at.x_fragments(b, j);
                else
                    x_fragments(b, x, j, half, lane);
#pragma unroll
                for (uint32_t i = 0; i < M; i++)
#pragma unroll
                    for (uint32_t k = 0; k < groups; k++) {
                        float d[4] = {0, 0, 0, 0};
#pragma unroll
                        for (uint32_t s = 0; s < q::STEPS; s++)
                            mma_16816<T>(d, a[i][k * q::STEPS + s], b + 2 * (k * q::STEPS + s));
#pragma unroll
                        for (uint32_t e = 0; e < 4; e++)
                            acc[i][j][e] = fma_f32(scale[i][k][e / 2], d[e], acc[i][j][e]);
                    }
                if (N * groups >= 8 && j % PAUSE == PAUSE - 1) sync_warp();
            }
            at.move();
        }
    }

    // Sums of x of one stage, for formats with minima: this warp's part of the tiles of x.  Row g
    // of `weights` has 1 (even g) or -2^bits (odd g) for the columns of group g / 4 and zeros for
    // the others, so that a product is the sum and its multiple by -2^bits.
    // weights: the lane's 16 bytes of them for one half, 128 bytes further for the other.
    static GPU_FN void sum_x(unsigned char *sums, const unsigned char *x,
                             const unsigned char *weights, uint32_t row_warp, uint32_t lane) {
        constexpr uint32_t MINE = N / C.row_warps; // tiles of x
        uint32_t place = (lane % 8) * 128 + (lane / 8 ^ lane % 8) * 16 + row_warp * 1024;
        sums += row_warp * SKINNY_SUMS_BYTES + lane % 4 * 64 + lane / 4 * 4;
        uint32_t a[2][4];
        for (uint32_t half = 0; half < 2; half++) words4(a[half], load16(weights + half * 128));
        float d[MINE][4] = {};
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const unsigned char *at = x + (place ^ half * 64);
            uint32_t b[MINE][4];
#pragma unroll
            for (uint32_t j = 0; j < MINE; j++) ldmatrix4(b[j], at + j * C.row_warps * 1024);
#pragma unroll
            for (uint32_t s = 0; s < 2; s++)
#pragma unroll
                for (uint32_t j = 0; j < MINE; j++) mma_16816<T>(d[j], a[half], b[j] + 2 * s);
        }
#pragma unroll
        for (uint32_t j = 0; j < MINE; j++)
            for (uint32_t n = 0; n < 2; n++)
                *(float *)(sums + j * C.row_warps * SKINNY_SUMS_BYTES + n * 32) =
                    rest_part(d[j][n], lane / 8 % 2);
    }
};

// ---- results ----
// Four neighbours of out[row], beginning at column n (a multiple of 4), up to the matrix's end.
template <class T>
GPU_FN void put(const skinny_params &p, const skinny_mat &m, uint32_t row, uint32_t n, float v[4]) {
    uint32_t n_valid = m.rows - n < 4 ? m.rows - n : 4;
    size_t at = (size_t)row * m.out_stride + n;
    if (m.bias != nullptr)
        for (uint32_t i = 0; i < 4; i++)
            if (i < n_valid) v[i] += m.bias[n + i];
    if (m.out_float) {
        float *out = (float *)m.out + at;
        if (m.out_wide && n_valid == 4) {
            if (p.add) {
                word4 old = load16(out);
                v[0] += bits_to_f32(old.x), v[1] += bits_to_f32(old.y);
                v[2] += bits_to_f32(old.z), v[3] += bits_to_f32(old.w);
            }
            store16(out,
                    {f32_to_bits(v[0]), f32_to_bits(v[1]), f32_to_bits(v[2]), f32_to_bits(v[3])});
            return;
        }
        for (uint32_t i = 0; i < 4; i++)
            if (i < n_valid) out[i] = p.add ? out[i] + v[i] : v[i];
        return;
    }
    T *out = (T *)m.out + at;
    if (m.out_wide && n_valid == 4) {
        store8(out, {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3])});
        return;
    }
    for (uint32_t i = 0; i < 4; i++)
        if (i < n_valid) out[i] = from_f32<T>(v[i]);
}

// The matrix that this block multiplies.
GPU_FN const skinny_mat &mat_of_block(const skinny_params &p) {
    uint32_t i = 0;
    while (i + 1 < p.n_mats && block_x() >= p.mats[i + 1].block_begin) i++;
    return p.mats[i];
}

// The block's sums to out, or to the partials of its range of columns; the last range adds them up.
template <uint32_t F, class T, uint32_t N>
GPU_FN void write_sums(const skinny_params &p, const float acc[stage<F, T, N>::M][N][4]) {
    constexpr skinny_cut C = stage<F, T, N>::C;
    constexpr uint32_t M = C.warp_tiles, LINE = C.rows + 4; // floats of a row of sums, banks apart
    static_assert(C.col_warps * N * 8 * LINE * 4 <= C.stages * C.stage_bytes,
                  "sums fit in the ring");
    uint32_t lane = lane_idx(), warp = warp_idx(), thread = thread_idx();
    uint32_t row_warp = warp / C.col_warps, col_warp = warp % C.col_warps;
    const skinny_mat &m = mat_of_block(p);
    uint32_t row_begin = (block_x() - m.block_begin) * C.rows; // of the weights
    unsigned char *ring = shared<unsigned char>();

    // Fragments to rows: lines[col_warp][row of x][row of the weights]
    float *lines = (float *)ring;
    uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < M; i++)
#pragma unroll
        for (uint32_t j = 0; j < N; j++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                lines[(col_warp * (N * 8) + j * 8 + t * 2 + e % 2) * LINE +
                      (row_warp * M + i) * TILE_ROWS + g + e / 2 * 8] = acc[i][j][e];
    sync_threads();

    constexpr uint32_t per_line = C.rows / 4;
    size_t part_floats = (size_t)p.rows * C.rows; // of one range
    float *part = p.partials + ((size_t)block_x() * p.splits + block_y()) * part_floats;
    for (uint32_t e = thread; e < p.rows * per_line; e += SKINNY_THREADS) {
        uint32_t row = e / per_line, at = e % per_line * 4;
        if (row_begin + at >= m.rows) continue;
        float v[4] = {0, 0, 0, 0};
        for (uint32_t c = 0; c < C.col_warps; c++) {
            word4 w = load16(lines + (c * (N * 8) + row) * LINE + at);
            v[0] += bits_to_f32(w.x), v[1] += bits_to_f32(w.y);
            v[2] += bits_to_f32(w.z), v[3] += bits_to_f32(w.w);
        }
        if (p.splits == 1)
            put<T>(p, m, row, row_begin + at, v);
        else
            store16(part + (size_t)row * C.rows + at,
                    {f32_to_bits(v[0]), f32_to_bits(v[1]), f32_to_bits(v[2]), f32_to_bits(v[3])});
    }
    if (p.splits == 1) return;

    fence();
    sync_threads();
    bool is_last = thread == 0 && atomic_add(&p.counters[block_x()], 1u) == p.splits - 1;
    if (!sync_threads_or(is_last)) return;
    fence();
    part = p.partials + (size_t)block_x() * p.splits * part_floats;
    for (uint32_t e = thread; e < p.rows * per_line; e += SKINNY_THREADS) {
        uint32_t row = e / per_line, at = e % per_line * 4;
        if (row_begin + at >= m.rows) continue;
        float v[4] = {0, 0, 0, 0};
#pragma unroll 4
        for (uint32_t s = 0; s < p.splits; s++) {
            word4 w = load_fresh16(part + s * part_floats + (size_t)row * C.rows + at);
            v[0] += bits_to_f32(w.x), v[1] += bits_to_f32(w.y);
            v[2] += bits_to_f32(w.z), v[3] += bits_to_f32(w.w);
        }
        put<T>(p, m, row, row_begin + at, v);
    }
    if (thread == 0) p.counters[block_x()] = 0;
}

// Many values that a lane uses in every stage are `kept`, because the compiler would compute them
// anew each time.  The selection was found by trials (nvcc 13.0, sm_90), for formats of four
// bits and for those of more, where the high planes take registers.
template <uint32_t F, class T, uint32_t N> GPU_FN void skinny_body(const skinny_params &p) {
    using S = stage<F, T, N>;
    constexpr skinny_cut C = S::C;
    constexpr bool MINIMA = format<F>::MINIMA;
    constexpr uint32_t M = C.warp_tiles;

    constexpr bool QUANT = format<F>::KIND == KIND_QUANT;
    constexpr bool FOUR = QUANT && quant<F>::BITS == 4, MORE = QUANT && !FOUR; // bits
    uint32_t lane = kept_if<QUANT>(lane_idx()), warp = kept_if<FOUR>(warp_idx());
    uint32_t thread = FOUR ? warp * 32 + lane : thread_idx();
    uint32_t row_warp = warp / C.col_warps, col_warp = warp % C.col_warps;
    const skinny_mat &m = mat_of_block(p);

    uint32_t row_begin = (block_x() - m.block_begin) * C.rows; // of the weights
    uint32_t first_tile = row_begin / TILE_ROWS + row_warp * M;
    uint32_t begin = (uint32_t)((uint64_t)p.n_stages * block_y() / p.splits);
    uint32_t end = (uint32_t)((uint64_t)p.n_stages * (block_y() + 1) / p.splits);

    // Tiles below or beside the matrix are neither fetched nor multiplied (the same for a whole
    // warp).
    uint32_t n_tiles = first_tile >= m.n_row_tiles       ? 0
                       : m.n_row_tiles - first_tile >= M ? M
                                                         : m.n_row_tiles - first_tile;
    uint32_t n_col_tiles = m.n_col_tiles;
    auto has_tiles = [&](uint32_t stage_idx) {
        return n_tiles > 0 &&
               (C.col_warps == 1 || stage_idx * C.col_warps + col_warp < n_col_tiles);
    };

    unsigned char *ring = shared<unsigned char>();
    constexpr uint32_t RING_BYTES = C.stages * C.stage_bytes, AHEAD = C.stages - 1;
    // In the first slot: this warp's tiles, the lane's parts of its first tile, and x.
    uint32_t tiles_at = C.x_bytes + warp * (M * C.tile_bytes);
    unsigned char *my_tiles = ring + tiles_at;
    uint32_t low_at = kept_if<MORE>(tiles_at + lane * 16), minima_at = 0;
    if constexpr (QUANT)
        minima_at = kept_if<MORE>(tiles_at + quant<F>::LOW_BYTES + quant<F>::HIGH_BYTES +
                                  lane / 4 * (quant<F>::SCALE_WORDS * 4) + lane % 4 / 2 * 4);
    unsigned char *my_x = ring + col_warp * (N * 8 * 128);
    // Sums of x: two alternating buffers, then the factors that produce them.
    constexpr uint32_t SUMS = C.col_warps * N * SKINNY_SUMS_BYTES;
    uint32_t sums_now = 0;
    unsigned char *my_sums = ring + RING_BYTES + col_warp * (N * SKINNY_SUMS_BYTES);
    unsigned char *sum_weights = ring + RING_BYTES + 2 * SUMS;

    weight_cursor<F> weights;
    weights.begin(m, n_tiles == 0 ? 0 : first_tile, begin * C.col_warps + col_warp, n_tiles, p.cols,
                  lane);
    // A warp without tiles fetches the first ones again, if that saves a check in each stage.
    auto fetch_weights = [&](uint32_t stage_idx, uint32_t slot) {
        if (C.col_warps == 1 || has_tiles(stage_idx))
#pragma unroll
            for (uint32_t i = 0; i < M; i++)
                weights.fetch(ring + low_at + slot + i * C.tile_bytes, i, lane);
        weights.right(C.col_warps);
    };
#pragma unroll 1
    for (uint32_t i = 0; i < AHEAD; i++)
        if (begin + i < end) fetch_weights(begin + i, i * C.stage_bytes);
    wait_predecessor();
    x_cursor<N, C.col_warps> x;
    x.begin(p, begin, end, thread);
#pragma unroll 1
    for (uint32_t i = 0; i < AHEAD; i++) {
        if (begin + i < end) x.fetch(p, ring + i * C.stage_bytes, begin + i + 1 == end);
        cp_async_commit(); // the first group holds all of the weights above as well
    }

    float acc[M][N][4];
    for (uint32_t i = 0; i < M; i++)
        for (uint32_t j = 0; j < N; j++)
            for (uint32_t e = 0; e < 4; e++) acc[i][j][e] = 0;

    if constexpr (MINIMA) {
        if (thread < 64) {
            uint32_t g = thread / 4 % 8, half = thread / 32;
            float f = g % 2 == 0 ? 1.0f : -(float)(1u << quant<F>::BITS);
            *(uint32_t *)(sum_weights + thread * 4) = g / 4 == half ? pack2<T>(f, f) : 0;
        }
        cp_async_wait<(int)C.stages - 2>();
        sync_threads();
        sum_weights += lane / 4 * 16;
        S::sum_x(my_sums, my_x, sum_weights, row_warp, lane);
    }
    uint32_t slot = 0, before = RING_BYTES - C.stage_bytes; // of the ring, in bytes: what is
    uint32_t stage_idx = begin;                             // multiplied, and the one before it
    for (uint32_t left = kept(end - begin); left > 0; left--) {
        // This stage has arrived (and the next one, to be summed), and no warp reads the previous
        // one any more: its slot is filled.
        cp_async_wait<(int)C.stages - (MINIMA ? 3 : 2)>();
        sync_threads();
        if (left > AHEAD) {
            fetch_weights(stage_idx + AHEAD, before);
            x.fetch(p, ring + before, left == AHEAD + 1);
        }
        cp_async_commit();
        if constexpr (!QUANT) // quantised columns come in groups of 32
            if (p.cols % 8 != 0 && stage_idx == p.n_stages - 1) {
                blank_x<N, C.col_warps>(ring + slot, p.cols, thread);
                sync_threads();
            }
        uint32_t next = slot + C.stage_bytes == RING_BYTES ? 0 : slot + C.stage_bytes;
        if constexpr (MINIMA) // after the last stage the sums are not used
            S::sum_x(my_sums + (SUMS - sums_now), my_x + next, sum_weights, row_warp, lane);
        if (has_tiles(stage_idx)) {
            if constexpr (QUANT) {
                const unsigned char *at = ring + slot;
                lane_view view = {at + low_at, at + (minima_at & ~7u), at + minima_at};
                S::quantised(acc, my_tiles + slot, view, my_x + slot, my_sums + sums_now, lane);
            } else
                S::dense(acc, my_tiles + slot, my_x + slot, lane);
        }
        before = slot;
        slot = next;
        sums_now = SUMS - sums_now;
        stage_idx++;
    }
    release_dependents();
    cp_async_wait<0>();
    sync_threads();
    write_sums<F, T, N>(p, acc);
}

// ---- kernels ----
// N of 1, 2, 4, 8; formats that few files use have 2 and 8 only, which halves their compile time.
#define SKINNY(name, format, type, n)                                                              \
    GPU_KERNEL(skinny_##name##_##type##_##n, skinny_params, SKINNY_THREADS,                        \
               skinny_cut_of(format, n).blocks) {                                                  \
        skinny_body<format, type, n>(p);                                                           \
    }
#define SKINNY_RARE(name, format, type)                                                            \
    SKINNY(name, format, type, 2)                                                                  \
    SKINNY(name, format, type, 8)
#define SKINNY_FULL(name, format, type)                                                            \
    SKINNY(name, format, type, 1)                                                                  \
    SKINNY(name, format, type, 4)                                                                  \
    SKINNY_RARE(name, format, type)

SKINNY_FULL(bf16, CU_FMT_BF16, bf16)
SKINNY_FULL(q4, CU_FMT_Q4, bf16)
SKINNY_FULL(q4m, CU_FMT_Q4M, bf16)
SKINNY_FULL(q5m, CU_FMT_Q5M, bf16)
SKINNY_FULL(q6, CU_FMT_Q6, bf16)
SKINNY_FULL(q8, CU_FMT_Q8, bf16)
SKINNY_RARE(f32, CU_FMT_F32, bf16)
SKINNY_RARE(f16, CU_FMT_F16, bf16)
SKINNY_RARE(q5, CU_FMT_Q5, bf16)

SKINNY_FULL(f16, CU_FMT_F16, f16)
SKINNY_FULL(q4, CU_FMT_Q4, f16)
SKINNY_FULL(q4m, CU_FMT_Q4M, f16)
SKINNY_FULL(q5m, CU_FMT_Q5M, f16)
SKINNY_FULL(q6, CU_FMT_Q6, f16)
SKINNY_FULL(q8, CU_FMT_Q8, f16)
SKINNY_RARE(f32, CU_FMT_F32, f16)
SKINNY_RARE(bf16, CU_FMT_BF16, f16)
SKINNY_RARE(q5, CU_FMT_Q5, f16)

#define LINE(name, type, n)                                                                        \
    GPU_ENTRY(skinny_##name##_##type##_##n, skinny_params, SKINNY_THREADS, 80)
#define LINES_RARE(name, type) LINE(name, type, 2), LINE(name, type, 8)
#define LINES_FULL(name, type) LINE(name, type, 1), LINE(name, type, 4), LINES_RARE(name, type)

// clang-format off
GPU_TABLE(skinny) {
    LINES_FULL(bf16, bf16), LINES_FULL(q4, bf16), LINES_FULL(q4m, bf16), LINES_FULL(q5m, bf16),
    LINES_FULL(q6, bf16), LINES_FULL(q8, bf16), LINES_RARE(f32, bf16), LINES_RARE(f16, bf16),
    LINES_RARE(q5, bf16),
    LINES_FULL(f16, f16), LINES_FULL(q4, f16), LINES_FULL(q4m, f16), LINES_FULL(q5m, f16),
    LINES_FULL(q6, f16), LINES_FULL(q8, f16), LINES_RARE(f32, f16), LINES_RARE(bf16, f16),
    LINES_RARE(q5, f16),
}
GPU_TABLE_END(skinny)
