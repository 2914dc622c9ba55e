// rows.cu - operations on one row at a time; dummy weights.
//
// A chunk is 8 neighbouring columns: 16 bytes of a 16-bit type, 32 of float.  A thread works on
// whole chunks.  Of the last chunk of a row only the columns below dim count: columns behind them
// are read (rows are `stride` apart, a multiple of 8) but never used, and zeros are written there.
//
// kernel    grid                        threads         moved per row (inner 2 bytes, float 4)
// norm      rows                        chunks, to 512  x, add in; x out when add; out
// gather    rows x chunks of 256        256             x in, out
// embed     rows                        256             a row of the table's planes; out
// rope      rows x 128 lanes of heads   128             q, k in and out; v in; k, v to the slot
// glu       rows x chunks of 256        256             gate, up in; out
// add bias  rows x chunks of 256        256             x in and out; y
// softcap   rows x chunks of 256        256             x in and out
// scale     rows x chunks of 256        256             x in and out
// dummy     chunks or tiles of matrix   256             the matrix, once
//
// Always: a row's result depends on that row alone, and not on the number of rows; blocks of a grid
// do not communicate.  Every thread waits for the predecessor before it lets the dependents start,
// even if it has nothing to do: so the end of a kernel means the end of all before it, and data
// that a dependent reads before its own wait (weights) was written at least two kernels earlier.
#include <type_traits>

#include "cuda/gate.cuh"
#include "cuda/gpu.cuh"
#include "cuda/unpack.cuh"

extern "C" {
#include "cuda/rows_params.h"
}

namespace {

typedef float f32;
struct none {}; // no second operand

// ---- chunks ----

GPU_FN void load_chunk(const f32 *p, float v[8]) {
    word4 a = load16(p), b = load16(p + 4);
    v[0] = bits_to_f32(a.x);
    v[1] = bits_to_f32(a.y);
    v[2] = bits_to_f32(a.z);
    v[3] = bits_to_f32(a.w);
    v[4] = bits_to_f32(b.x);
    v[5] = bits_to_f32(b.y);
    v[6] = bits_to_f32(b.z);
    v[7] = bits_to_f32(b.w);
}
template <class T> GPU_FN void load_chunk(const T *p, float v[8]) {
    word4 a = load16(p);
    unpack2<T>(a.x, &v[0], &v[1]);
    unpack2<T>(a.y, &v[2], &v[3]);
    unpack2<T>(a.z, &v[4], &v[5]);
    unpack2<T>(a.w, &v[6], &v[7]);
}

GPU_FN void store_chunk(f32 *p, const float v[8]) {
    store16(p, {f32_to_bits(v[0]), f32_to_bits(v[1]), f32_to_bits(v[2]), f32_to_bits(v[3])});
    store16(p + 4, {f32_to_bits(v[4]), f32_to_bits(v[5]), f32_to_bits(v[6]), f32_to_bits(v[7])});
}
template <class T> GPU_FN void store_chunk(T *p, const float v[8]) {
    store16(p, {pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                pack2<T>(v[6], v[7])});
}

// Columns of the chunk at `at` that exist: 0 ... 8.
GPU_FN uint32_t live(uint32_t at, uint32_t dim) {
    return at >= dim ? 0 : dim - at < 8 ? dim - at : 8;
}

// The rest of the chunk becomes zeros (it may hold NaN).
GPU_FN void clear_behind(float v[8], uint32_t n) {
    for (uint32_t i = 0; i < 8; i++) v[i] = i < n ? v[i] : 0.0f;
}

// A vector ends at dim, so its last chunk is read number by number.
GPU_FN void load_vector(const float *p, uint32_t at, uint32_t n, float v[8]) {
    if (n == 8) {
        load_chunk(p + at, v);
        return;
    }
    for (uint32_t i = 0; i < 8; i++) v[i] = i < n ? p[at + i] : 0.0f;
}

// ---- norm ----

// The sum over all threads, in a fixed order; every thread gets it.
GPU_FN float block_sum(float v) {
    float *of_warp = shared<float>();
    v = warp_sum(v);
    if (lane_idx() == 0) of_warp[warp_idx()] = v;
    sync_threads();
    return warp_sum(lane_idx() < n_threads() / 32 ? of_warp[lane_idx()] : 0.0f);
}

// x (+ add) of the chunk at `at`, of which n columns exist.  If none do, the thread's `first`
// chunk is read instead, so that no branch separates the loads of several chunks.
template <class X, class A>
GPU_FN void norm_fetch(const X *x, const A *add, uint32_t first, uint32_t at, uint32_t n,
                       float v[8]) {
    uint32_t from = n > 0 ? at : first;
    load_chunk(x + from, v);
    if constexpr (!std::is_same<A, none>::value) {
        float other[8];
        load_chunk(add + from, other);
        for (uint32_t i = 0; i < 8; i++) v[i] += other[i];
    }
    clear_behind(v, n);
}

GPU_FN float squares(const float v[8]) {
    float sum = 0;
    for (uint32_t i = 0; i < 8; i++) sum = fma_f32(v[i], v[i], sum);
    return sum;
}

GPU_FN void scale_chunk(float v[8], float scale, const float w[8]) {
    for (uint32_t i = 0; i < 8; i++) v[i] = v[i] * scale * w[i];
}

// Up to KEPT chunks per thread stay in registers between the passes; the rest of a longer row is
// read twice.
template <class X, class A, class Y> GPU_FN void norm_row(const norm_args &p) {
    constexpr uint32_t KEPT = 2;
    uint32_t first = thread_idx() * 8, step = n_threads() * 8;
    float w[KEPT][8], x[KEPT][8];
    for (uint32_t c = 0; c < KEPT; c++)
        load_vector(p.w, first + c * step, live(first + c * step, p.dim), w[c]);
    wait_predecessor();
    release_dependents();

    size_t row = block_x(), from = p.gather != nullptr ? p.gather[row] : row;
    X *in = static_cast<X *>(p.x) + from * p.x_stride;
    const A *add = nullptr;
    if constexpr (!std::is_same<A, none>::value)
        add = static_cast<const A *>(p.add) + row * p.add_stride;
    Y *out = static_cast<Y *>(p.out) + row * p.out_stride;

    float sum = 0;
    if (first < p.dim) {
        for (uint32_t c = 0; c < KEPT; c++) {
            uint32_t at = first + c * step;
            norm_fetch<X, A>(in, add, first, at, live(at, p.dim), x[c]);
            sum += squares(x[c]);
        }
        if constexpr (!std::is_same<A, none>::value) { // the sum goes back
            for (uint32_t c = 0; c < KEPT; c++)
                if (first + c * step < p.dim) store_chunk(in + first + c * step, x[c]);
        }
    }
    for (uint32_t at = first + KEPT * step; at < p.dim; at += step) {
        float v[8];
        norm_fetch<X, A>(in, add, at, at, live(at, p.dim), v);
        sum += squares(v);
        if constexpr (!std::is_same<A, none>::value) store_chunk(in + at, v);
    }

    float scale = rsqrt_f32(block_sum(sum) / (float)p.dim + p.eps);
    for (uint32_t c = 0; c < KEPT; c++) {
        if (first + c * step >= p.dim) continue;
        scale_chunk(x[c], scale, w[c]);
        store_chunk(out + first + c * step, x[c]);
    }
    for (uint32_t at = first + KEPT * step; at < p.dim; at += step) {
        float v[8], more[8];
        uint32_t n = live(at, p.dim);
        load_chunk((const X *)in + at, v);
        clear_behind(v, n);
        load_vector(p.w, at, n, more);
        scale_chunk(v, scale, more);
        store_chunk(out + at, v);
    }
}

// ---- elementwise ----

GPU_FN uint32_t flat_chunk() {
    return (block_y() * n_threads() + thread_idx()) * 8;
}

// Clears the halves (16-bit columns, or halves of floats) behind dim.
GPU_FN uint32_t clear_halves(uint32_t word, uint32_t at, uint32_t end) {
    if (at >= end) return 0;
    return at + 1 < end ? word : word & 0xffffu;
}

// Bits are copied; `halves` of a row, 16 bytes each time.
GPU_FN void gather_row(const gather_args &p) {
    wait_predecessor();
    release_dependents();
    uint32_t per = p.type == CU_F32 ? 2 : 1; // halves of an element
    uint32_t at = flat_chunk(), end = p.dim * per;
    if (at >= (p.dim + 7) / 8 * 8 * per) return;
    size_t row = block_x(), from = p.gather[row];
    word4 v = load16(static_cast<const uint16_t *>(p.x) + from * p.x_stride * per + at);
    v.x = clear_halves(v.x, at, end);
    v.y = clear_halves(v.y, at + 2, end);
    v.z = clear_halves(v.z, at + 4, end);
    v.w = clear_halves(v.w, at + 6, end);
    store16(static_cast<uint16_t *>(p.out) + row * p.out_stride * per + at, v);
}

template <class T> GPU_FN void glu_row(const glu_args &p) {
    wait_predecessor();
    release_dependents();
    uint32_t at = flat_chunk(), n = live(at, p.dim);
    if (n == 0) return;
    size_t begin = (size_t)block_x() * p.stride + at;
    float gate[8], up[8];
    load_chunk(static_cast<const T *>(p.gate) + begin, gate);
    load_chunk(static_cast<const T *>(p.up) + begin, up);
    for (uint32_t i = 0; i < 8; i++) gate[i] = gate_of(p.kind, gate[i], up[i]);
    clear_behind(gate, n);
    store_chunk(static_cast<T *>(p.out) + begin, gate);
}

template <class X, class Y> GPU_FN void add_row(const add_args &p) {
    wait_predecessor();
    release_dependents();
    uint32_t at = flat_chunk(), n = live(at, p.dim);
    if (n == 0) return;
    size_t row = block_x();
    X *x = static_cast<X *>(p.x) + row * p.x_stride + at;
    float v[8], y[8];
    load_chunk((const X *)x, v);
    load_chunk(static_cast<const Y *>(p.y) + row * p.y_stride + at, y);
    for (uint32_t i = 0; i < 8; i++) v[i] += y[i];
    clear_behind(v, n);
    store_chunk(x, v);
}

template <class X> GPU_FN void bias_row(const bias_args &p) {
    uint32_t at = flat_chunk(), n = live(at, p.dim);
    float v[8], bias[8];
    load_vector(p.bias, at, n, bias); // a weight: before the wait
    wait_predecessor();
    release_dependents();
    if (n == 0) return;
    X *x = static_cast<X *>(p.x) + (size_t)block_x() * p.stride + at;
    load_chunk((const X *)x, v);
    for (uint32_t i = 0; i < 8; i++) v[i] += bias[i];
    clear_behind(v, n);
    store_chunk(x, v);
}

GPU_FN void softcap_row(const softcap_args &p) {
    wait_predecessor();
    release_dependents();
    uint32_t at = flat_chunk(), n = live(at, p.dim);
    if (n == 0) return;
    float *x = p.x + (size_t)block_x() * p.stride + at, v[8];
    load_chunk((const float *)x, v);
    for (uint32_t i = 0; i < 8; i++) v[i] = p.cap * tanh_f32(v[i] / p.cap);
    clear_behind(v, n);
    store_chunk(x, v);
}

template <class X, class Out> GPU_FN void scale_row(const scale_args &p) {
    wait_predecessor();
    release_dependents();
    uint32_t at = flat_chunk(), n = live(at, p.dim);
    if (n == 0) return;
    const size_t row = block_x();
    float v[8];
    load_chunk(static_cast<const X *>(p.x) + row * p.x_stride + at, v);
    for (uint32_t i = 0; i < 8; i++) v[i] *= p.factor;
    clear_behind(v, n);
    store_chunk(static_cast<Out *>(p.out) + row * p.out_stride + at, v);
}

// ---- embedding ----

template <class T, class Y> GPU_FN void embed_dense(const embed_params &p, uint32_t token, Y *out) {
    const T *in = static_cast<const T *>(p.table.data) + (size_t)token * p.table.stride;
    for (uint32_t at = thread_idx() * 8; at < p.table.cols; at += n_threads() * 8) {
        float v[8];
        load_chunk(in + at, v);
        for (uint32_t i = 0; i < 8; i++) v[i] *= p.scale;
        clear_behind(v, live(at, p.table.cols));
        store_chunk(out + at, v);
    }
}

GPU_FN void store_pair(f32 *p, float a, float b) {
    store8(p, {f32_to_bits(a), f32_to_bits(b)});
}
template <class T> GPU_FN void store_pair(T *p, float a, float b) {
    *reinterpret_cast<uint32_t *>(p) = pack2<T>(a, b);
}

// Four lanes of a tile hold a row of it (and the row 8 further, not used here): lane 4g + t has
// columns 2t, 2t + 1, 2t + 8, 2t + 9 of each step.  So a warp reads eight tiles at a time.
template <uint32_t F, class Y>
GPU_FN void embed_tiles(const embed_params &p, uint32_t token, Y *out) {
    const cu_matrix &m = p.table;
    uint32_t t = thread_idx() % 4, lane = token % 8 * 4 + t;
    bool below = token % 16 >= 8;
    size_t first = (size_t)(token / TILE_ROWS) * m.n_col_tiles;
    for (uint32_t j = thread_idx() / 4; j < m.n_col_tiles; j += n_threads() / 4) {
        tile_words<F> w;
        tile_stream<F>(w, m.low, m.high, m.scales, first + j, lane);
        for (uint32_t s = 0; s < 4; s++) {
            uint32_t col = j * TILE_COLS + 16 * s;
            if (col >= m.cols) continue; // columns come in 32s
            float v[8];
            tile_values<F>(w, s, v);
            float e0 = below ? v[4] : v[0], e1 = below ? v[5] : v[1];
            float e2 = below ? v[6] : v[2], e3 = below ? v[7] : v[3];
            store_pair(out + col + 2 * t, e0 * p.scale, e1 * p.scale);
            store_pair(out + col + 8 + 2 * t, e2 * p.scale, e3 * p.scale);
        }
    }
}

// A token of -1 (drawn from a row without a finite logit) is a row of zeros.
template <class Y> GPU_FN void embed_row(const embed_params &p) {
    wait_predecessor();
    release_dependents();
    size_t row = block_x();
    int32_t token = p.view.tokens[row];
    if (token == -1) token = p.view.drawn[p.view.pending[row]];
    Y *out = static_cast<Y *>(p.out) + row * p.out_stride;
    if (token < 0 || (uint32_t)token >= p.table.rows) {
        const float zeros[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t at = thread_idx() * 8; at < p.table.cols; at += n_threads() * 8)
            store_chunk(out + at, zeros);
        return;
    }
    uint32_t id = (uint32_t)token;
    switch (p.table.format) {
    case CU_FMT_F32:
        return embed_dense<f32>(p, id, out);
    case CU_FMT_BF16:
        return embed_dense<bf16>(p, id, out);
    case CU_FMT_F16:
        return embed_dense<f16>(p, id, out);
    case CU_FMT_Q4:
        return embed_tiles<CU_FMT_Q4>(p, id, out);
    case CU_FMT_Q4M:
        return embed_tiles<CU_FMT_Q4M>(p, id, out);
    case CU_FMT_Q5:
        return embed_tiles<CU_FMT_Q5>(p, id, out);
    case CU_FMT_Q5M:
        return embed_tiles<CU_FMT_Q5M>(p, id, out);
    case CU_FMT_Q6:
        return embed_tiles<CU_FMT_Q6>(p, id, out);
    default:
        return embed_tiles<CU_FMT_Q8>(p, id, out);
    }
}

// ---- rope, head norm, store of keys and values ----
//
// Items of a row: q heads, then k heads, then v heads; head_lanes lanes each, one chunk per lane,
// one item per lane and launch.  head_lanes is a power of two, so a head never leaves its warp: the
// norm is a butterfly, and since every lane reads its partner's numbers from memory before
// sync_warp() and writes after it, rotation in place is safe.
//
//     item      0 ... n_heads            ... n_heads + n_kv_heads   ... n_heads + 2 n_kv_heads
//               q: norm, rotate, write   k: norm, rotate, store     v: store

// The address of the chunk at d of a kv head: K (0) or V (1) of the row's position.
GPU_FN uint16_t *kv_chunk(const rope_params &p, uint32_t row, uint32_t which, uint32_t head,
                          uint32_t d) {
    const kv_view &kv = p.kv;
    const step_seq &seq = p.view.seqs[p.view.row_seq[row]];
    uint32_t pos = p.view.positions[row], group = p.layer_idx / kv.group_layers;
    uint32_t entry = seq.table_begin + pos / kv.block_tokens * kv.n_groups + group;
    uint32_t slot = (uint32_t)p.view.tables[entry];
    unsigned char *base = kv.arena + (size_t)(slot / kv.slots_per_page) * kv.page_bytes +
                          (size_t)(slot % kv.slots_per_page) * kv.slot_bytes +
                          (size_t)(p.layer_idx % kv.group_layers) * kv.layer_bytes +
                          (size_t)which * (kv.layer_bytes / 2);
    size_t token = (size_t)head * kv.block_tokens + pos % kv.block_tokens;
    return reinterpret_cast<uint16_t *>(base) + token * kv.head_dim + d;
}

// The chunk at d of a head becomes own * cosine + other * sine, `other` being each number's partner
// times its norm weight, if there is a norm (sines carry the sign).  Numbers without rotation have
// cosine 1 and sine 0.
struct turn_terms {
    float other[8], cosine[8], sine[8];
};

// Half-split pairs (i, i + n_pairs), chunks wholly on one side; table rows are 16-byte aligned.
template <class T>
GPU_FN void terms_split(const rope_params &p, const T *head, const float *w, const float *table,
                        uint32_t d, turn_terms &t) {
    uint32_t n = p.n_pairs, i = d < n ? d : d - n, partner = d < n ? d + n : d - n;
    load_chunk(head + partner, t.other);
    load_chunk(table + i, t.cosine);
    load_chunk(table + n + i, t.sine);
    for (uint32_t e = 0; e < 8; e++) t.sine[e] = d < n ? -t.sine[e] : t.sine[e];
    if (w == nullptr) return;
    float of_other[8];
    load_chunk(w + partner, of_other);
    for (uint32_t e = 0; e < 8; e++) t.other[e] *= of_other[e];
}

// Pairs (2i, 2i + 1): four of them in a chunk.
GPU_FN void terms_interleaved(const rope_params &p, const float own[8], const float *w,
                              const float *table, uint32_t d, turn_terms &t) {
    word4 c = load16(table + d / 2), s = load16(table + p.n_pairs + d / 2);
    float cosine[4] = {bits_to_f32(c.x), bits_to_f32(c.y), bits_to_f32(c.z), bits_to_f32(c.w)};
    float sine[4] = {bits_to_f32(s.x), bits_to_f32(s.y), bits_to_f32(s.z), bits_to_f32(s.w)};
    for (uint32_t e = 0; e < 8; e++) {
        t.other[e] = own[e ^ 1];
        t.cosine[e] = cosine[e / 2];
        t.sine[e] = e % 2 == 0 ? -sine[e / 2] : sine[e / 2];
    }
    if (w == nullptr) return;
    float of_own[8];
    load_chunk(w + d, of_own);
    for (uint32_t e = 0; e < 8; e++) t.other[e] *= of_own[e ^ 1];
}

// Any number of pairs: number by number.
template <class T>
GPU_FN void terms_any(const rope_params &p, const T *head, const float *w, const float *table,
                      uint32_t d, turn_terms &t) {
    uint32_t n = p.n_pairs;
    for (uint32_t e = 0; e < 8; e++) {
        uint32_t at = d + e;
        bool turned = at < 2 * n, first = p.interleaved ? at % 2 == 0 : at < n;
        uint32_t i = p.interleaved ? at / 2 : first ? at : at - n;
        uint32_t partner = p.interleaved ? at ^ 1u : first ? at + n : at - n;
        t.other[e] = turned ? to_f32(head[partner]) * (w != nullptr ? w[partner] : 1.0f) : 0.0f;
        t.cosine[e] = turned ? table[i] : 1.0f;
        t.sine[e] = !turned ? 0.0f : first ? -table[n + i] : table[n + i];
    }
}

template <class T>
GPU_FN void rope_terms(const rope_params &p, const T *head, const float own[8], const float *w,
                       size_t row, uint32_t d, turn_terms &t) {
    const float *table =
        p.table != nullptr ? p.table + (size_t)p.view.positions[row] * p.table_stride : nullptr;
    if (table == nullptr || d >= 2 * p.n_pairs) {
        for (uint32_t e = 0; e < 8; e++) {
            t.other[e] = t.sine[e] = 0;
            t.cosine[e] = 1;
        }
    } else if (p.interleaved && p.n_pairs % 4 == 0)
        terms_interleaved(p, own, w, table, d, t);
    else if (!p.interleaved && p.n_pairs % 8 == 0)
        terms_split(p, head, w, table, d, t);
    else
        terms_any(p, head, w, table, d, t);
}

// Values beyond the range of f16 are stored as its largest number: infinite keys would make answers
// NaN.  Values that are infinite in the input stay infinite: that is a fault elsewhere.
GPU_FN void saturate(const rope_params &p, const float v[8], float kept[8]) {
    uint32_t n = 0;
    for (uint32_t e = 0; e < 8; e++) {
        kept[e] = within_f16(v[e]);
        n += kept[e] < v[e] || kept[e] > v[e];
    }
    if (n > 0 && p.kv.n_saturated != nullptr) atomic_add(p.kv.n_saturated, n);
}

GPU_FN void store_kv(const rope_params &p, uint16_t *to, const float v[8]) {
    if (p.kv.type == CU_BF16) {
        store_chunk(reinterpret_cast<bf16 *>(to), v);
    } else {
        float kept[8];
        saturate(p, v, kept);
        store_chunk(reinterpret_cast<f16 *>(to), kept);
    }
}

template <class T> GPU_FN void rope_row(const rope_params &p) {
    wait_predecessor();
    release_dependents();
    uint32_t item = (block_y() * n_threads() + thread_idx()) / p.head_lanes;
    uint32_t d = thread_idx() % p.head_lanes * 8;
    size_t row = block_x();
    bool is_q = item < p.n_heads, is_k = !is_q && item < p.n_heads + p.n_kv_heads;
    bool is_v = !is_q && !is_k && p.v != nullptr && item < p.n_heads + 2 * p.n_kv_heads;
    bool in = d < p.head_dim && (is_q || is_k || is_v);
    uint32_t head = is_q ? item : is_k ? item - p.n_heads : item - p.n_heads - p.n_kv_heads;

    uint16_t *slot = nullptr; // where this chunk is stored; its loads start first
    if (in && !is_q && p.v != nullptr && row < p.view.header->n_rows)
        slot = kv_chunk(p, (uint32_t)row, is_v, head, d);

    T *at = is_q   ? static_cast<T *>(p.q) + row * p.q_stride
            : is_k ? static_cast<T *>(p.k) + row * p.k_stride
                   : static_cast<T *>(const_cast<void *>(p.v)) + row * p.v_stride;
    at += (size_t)head * p.head_dim;

    const float *w = is_q ? p.q_norm : is_k ? p.k_norm : nullptr;
    float own[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    turn_terms t;
    if (in) load_chunk((const T *)at + d, own);
    if (in && !is_v) rope_terms<T>(p, at, own, w, row, d, t);

    if (p.q_norm != nullptr || p.k_norm != nullptr) {
        float sum = squares(own);
        for (uint32_t m = p.head_lanes / 2; m > 0; m >>= 1) sum += shfl_xor(sum, m);
        if (in && w != nullptr) {
            float scale = rsqrt_f32(sum / (float)p.head_dim + p.norm_eps), of_own[8];
            load_chunk(w + d, of_own);
            scale_chunk(own, scale, of_own);
            for (uint32_t e = 0; e < 8; e++) t.other[e] *= scale;
        }
    }
    sync_warp(); // partners have been read; now they may change
    if (!in) return;
    if (!is_v) {
        for (uint32_t e = 0; e < 8; e++)
            own[e] = fma_f32(t.other[e], t.sine[e], own[e] * t.cosine[e]);
        if (is_q && p.grows) {
            size_t begin = (size_t)p.view.positions[row] * p.table_stride;
            float growth = p.table[begin + 2 * p.n_pairs];
            for (uint32_t e = 0; e < 8; e++) own[e] *= growth;
        }
        if (is_q || p.write_k) store_chunk(at + d, own);
    }
    if (slot != nullptr) store_kv(p, slot, own);
}

// ---- dummy weights ----

// An element of Q2_K, as dtype.c has it.
GPU_FN float dummy_two_bits(const dummy_params &p, uint32_t row, uint32_t col) {
    uint64_t hash = dummy_hash(p.seed, row, col / 8);
    float code = (float)dummy_code(hash, col, p.form.bits, true);
    uint32_t of_d = dummy_factor(p.seed, row, DUMMY_BLOCK + col / DUMMY_BLOCK_COLS);
    float factor = (float)(dummy_factor(p.seed, row, DUMMY_GROUP + col / p.form.group) >> 1);
    float d = to_f32(from_f32<f16>(sm_mul(p.form.unit, (float)of_d)));
    float dmin = to_f32(from_f32<f16>(sm_mul(dummy_middle(p.form.bits), d)));
    return sm_add(sm_mul(sm_mul(d, factor), code), -sm_mul(dmin, factor));
}

// Dense: a thread makes a chunk of the padded matrix.
template <class T> GPU_FN void dummy_dense(const dummy_params &p) {
    uint32_t per_row = p.m.stride / 8;
    size_t i = (size_t)block_x() * n_threads() + thread_idx();
    size_t n = (size_t)div_up(p.m.rows, TILE_ROWS) * TILE_ROWS * per_row;
    if (i >= n) return;
    uint32_t row = (uint32_t)(i / per_row), at = (uint32_t)(i % per_row) * 8;
    float v[8];
    for (uint32_t e = 0; e < 8; e++) {
        bool here = row < p.m.rows && at + e < p.m.cols;
        v[e] = !here              ? 0.0f
               : p.form.bits != 0 ? dummy_two_bits(p, row, at + e)
                                  : dummy_value(p.form.unit, p.seed, row, at + e);
    }
    store_chunk(static_cast<T *>(p.data) + (size_t)row * p.m.stride + at, v);
}

// A code of the file type as one of the format.
GPU_FN uint32_t dummy_mapped(const dummy_params &p, uint64_t hash, uint32_t col) {
    uint32_t code = dummy_code(hash, col, p.form.bits, p.form.minima || p.form.book);
    return p.form.book ? p.book[code / 4] >> (8 * (code % 4)) & 255u : code + p.lift;
}

// Two neighbouring codes, the first in the low half; padding means 0.
template <uint32_t F>
GPU_FN uint32_t dummy_codes(const dummy_params &p, uint32_t row, uint32_t col) {
    using q = quant<F>;
    if (row >= p.m.rows || col >= p.m.cols) return q::OFFSET * 0x10001u;
    uint64_t hash = dummy_hash(p.seed, row, col / 8);
    return dummy_mapped(p, hash, col) | dummy_mapped(p, hash, col + 1) << 16;
}

// Step (and min, in the high half) of a group of columns, in half precision, rounded in the same
// order as in a file: d and dmin first, then times the group's factor.
template <uint32_t F>
GPU_FN uint32_t dummy_scale(const dummy_params &p, uint32_t row, uint32_t group) {
    using q = quant<F>;
    uint32_t col = group * q::GROUP;
    if (row >= p.m.rows || col >= p.m.cols) return 0;
    if (p.form.exponent != 0) { // MXFP4
        uint32_t exponent = dummy_exponent(&p.form, p.seed, row, DUMMY_GROUP + group);
        return from_f32<f16>(bits_to_f32((exponent - 1) << 23)).bits;
    }
    uint32_t factor = dummy_factor(p.seed, row, DUMMY_GROUP + group), of_d = factor;
    if (p.form.blocks) of_d = dummy_factor(p.seed, row, DUMMY_BLOCK + col / DUMMY_BLOCK_COLS);
    f16 step = from_f32<f16>(sm_mul(p.form.unit, (float)of_d));
    f16 min = from_f32<f16>(-sm_mul(dummy_middle(q::BITS), to_f32(step)));
    if (p.form.blocks) {
        step = from_f32<f16>(sm_mul(to_f32(step), (float)factor));
        min = from_f32<f16>(sm_mul(to_f32(min), (float)factor));
    }
    return q::MINIMA ? step.bits | (uint32_t)min.bits << 16 : step.bits;
}

// Word t of the scales of rows g and g + 8 of a tile (layout.h); two words have no t 2 and 3.
template <uint32_t F>
GPU_FN uint32_t dummy_scale_word(const dummy_params &p, uint32_t row, uint32_t tile_col,
                                 uint32_t t) {
    using q = quant<F>;
    uint32_t group = tile_col * (TILE_COLS / q::GROUP);
    if constexpr (q::MINIMA) return dummy_scale<F>(p, row + t / 2 * 8, group + t % 2);
    uint32_t r = q::SCALE_WORDS == 4 ? t / 2 : t;
    if constexpr (q::SCALE_WORDS == 4) group += t % 2 * 2;
    return dummy_scale<F>(p, row + r * 8, group) | dummy_scale<F>(p, row + r * 8, group + 1) << 16;
}

// Quantised: a warp makes a tile, each lane the words that it reads in products.
template <uint32_t F> GPU_FN void dummy_tile(const dummy_params &p) {
    using q = quant<F>;
    size_t tile = (size_t)block_x() * (n_threads() / 32) + warp_idx();
    if (tile >= (size_t)p.m.n_row_tiles * p.m.n_col_tiles) return;
    uint32_t i = (uint32_t)(tile / p.m.n_col_tiles), j = (uint32_t)(tile % p.m.n_col_tiles);
    uint32_t lane = lane_idx(), g = lane / 4, t = lane % 4, row = i * TILE_ROWS + g;
    uint32_t low[4] = {0, 0, 0, 0}, more[4] = {0, 0, 0, 0}; // more: bits above the fourth
    for (uint32_t s = 0; s < 4; s++) {
        for (uint32_t m = 0; m < 4; m++) {
            uint32_t col = j * TILE_COLS + 16 * s + m / 2 * 8 + 2 * t;
            uint32_t codes = dummy_codes<F>(p, row + m % 2 * 8, col);
            uint32_t above = codes >> 4 & 0x000f000fu;
            low[s] |= (codes & 0x000f000fu) << (4 * m);
            if constexpr (q::BITS == 5) more[0] |= above << (4 * s + m);
            if constexpr (q::BITS == 6) more[s / 2] |= above << (8 * (s % 2) + 2 * m);
            if constexpr (q::BITS == 8) more[s] |= above << (4 * m);
        }
    }
    unsigned char *to = static_cast<unsigned char *>(p.low) + tile * q::LOW_BYTES + lane * 16;
    store16(to, {low[0], low[1], low[2], low[3]});
    if constexpr (q::BITS == 8) store16(to + 512, {more[0], more[1], more[2], more[3]});
    uint32_t *high = static_cast<uint32_t *>(p.high) + (tile * 32 + lane) * q::HIGH_WORDS;
    if constexpr (q::BITS == 5) high[0] = more[0];
    if constexpr (q::BITS == 6) store8(high, {more[0], more[1]});
    uint32_t *scales = static_cast<uint32_t *>(p.scales) + (tile * 8 + g) * q::SCALE_WORDS;
    if (t < q::SCALE_WORDS) scales[t] = dummy_scale_word<F>(p, row, j, t);
}

GPU_FN void dummy_matrix(const dummy_params &p) {
    wait_predecessor(); // earlier kernels may still use this memory
    release_dependents();
    switch (p.m.format) {
    case CU_FMT_F32:
        return dummy_dense<f32>(p);
    case CU_FMT_BF16:
        return dummy_dense<bf16>(p);
    case CU_FMT_F16:
        return dummy_dense<f16>(p);
    case CU_FMT_Q4:
        return dummy_tile<CU_FMT_Q4>(p);
    case CU_FMT_Q4M:
        return dummy_tile<CU_FMT_Q4M>(p);
    case CU_FMT_Q5:
        return dummy_tile<CU_FMT_Q5>(p);
    case CU_FMT_Q5M:
        return dummy_tile<CU_FMT_Q5M>(p);
    case CU_FMT_Q6:
        return dummy_tile<CU_FMT_Q6>(p);
    default:
        return dummy_tile<CU_FMT_Q8>(p);
    }
}

} // namespace

// ---- kernels ----
// clang-format off

// norm_<x>_<add>_<out>
#define NORMS(K)                                                                                   \
    K(f32, none, f32) K(f32, none, bf16) K(f32, none, f16)                                         \
    K(f32, f32, f32) K(f32, f32, bf16) K(f32, f32, f16)                                            \
    K(f32, bf16, f32) K(f32, bf16, bf16) K(f32, f16, f32) K(f32, f16, f16)                         \
    K(bf16, none, f32) K(bf16, none, bf16) K(f16, none, f32) K(f16, none, f16)
// add_<x>_<y>
#define ADDS(K)                                                                                    \
    K(f32, f32) K(f32, bf16) K(f32, f16) K(bf16, f32) K(bf16, bf16) K(f16, f32) K(f16, f16)

// scale_<x>_<out>
#define SCALES(K) K(f32, f32) K(f32, bf16) K(f32, f16) K(bf16, bf16) K(f16, f16)

#define NORM(x, a, out)                                                                            \
    GPU_KERNEL(norm_##x##_##a##_##out, norm_args, NORM_THREADS, 2) { norm_row<x, a, out>(p); }
#define ADD(x, y)                                                                                  \
    GPU_KERNEL(add_##x##_##y, add_args, FLAT_THREADS, 4) { add_row<x, y>(p); }
#define SCALE(x, out)                                                                              \
    GPU_KERNEL(scale_##x##_##out, scale_args, FLAT_THREADS, 4) { scale_row<x, out>(p); }
NORMS(NORM)
ADDS(ADD)
SCALES(SCALE)
GPU_KERNEL(gather, gather_args, FLAT_THREADS, 4) { gather_row(p); }
GPU_KERNEL(embed_f32, embed_params, EMBED_THREADS, 2) { embed_row<f32>(p); }
GPU_KERNEL(embed_bf16, embed_params, EMBED_THREADS, 2) { embed_row<bf16>(p); }
GPU_KERNEL(embed_f16, embed_params, EMBED_THREADS, 2) { embed_row<f16>(p); }
GPU_KERNEL(rope_bf16, rope_params, ROPE_THREADS, 8) { rope_row<bf16>(p); }
GPU_KERNEL(rope_f16, rope_params, ROPE_THREADS, 8) { rope_row<f16>(p); }
GPU_KERNEL(glu_bf16, glu_args, FLAT_THREADS, 4) { glu_row<bf16>(p); }
GPU_KERNEL(glu_f16, glu_args, FLAT_THREADS, 4) { glu_row<f16>(p); }
GPU_KERNEL(bias_f32, bias_args, FLAT_THREADS, 4) { bias_row<f32>(p); }
GPU_KERNEL(bias_bf16, bias_args, FLAT_THREADS, 4) { bias_row<bf16>(p); }
GPU_KERNEL(bias_f16, bias_args, FLAT_THREADS, 4) { bias_row<f16>(p); }
GPU_KERNEL(softcap, softcap_args, FLAT_THREADS, 4) { softcap_row(p); }
GPU_KERNEL(dummy, dummy_params, DUMMY_THREADS, 2) { dummy_matrix(p); }

#define NORM_LINE(x, a, out) GPU_ENTRY(norm_##x##_##a##_##out, norm_args, NORM_THREADS, 80),
#define ADD_LINE(x, y) GPU_ENTRY(add_##x##_##y, add_args, FLAT_THREADS, 80),
#define SCALE_LINE(x, out) GPU_ENTRY(scale_##x##_##out, scale_args, FLAT_THREADS, 80),
GPU_TABLE(rows) {
    NORMS(NORM_LINE)
    ADDS(ADD_LINE)
    SCALES(SCALE_LINE)
    GPU_ENTRY(gather, gather_args, FLAT_THREADS, 80),
    GPU_ENTRY(embed_f32, embed_params, EMBED_THREADS, 80),
    GPU_ENTRY(embed_bf16, embed_params, EMBED_THREADS, 80),
    GPU_ENTRY(embed_f16, embed_params, EMBED_THREADS, 80),
    GPU_ENTRY(rope_bf16, rope_params, ROPE_THREADS, 80),
    GPU_ENTRY(rope_f16, rope_params, ROPE_THREADS, 80),
    GPU_ENTRY(glu_bf16, glu_args, FLAT_THREADS, 80),
    GPU_ENTRY(glu_f16, glu_args, FLAT_THREADS, 80),
    GPU_ENTRY(bias_f32, bias_args, FLAT_THREADS, 80),
    GPU_ENTRY(bias_bf16, bias_args, FLAT_THREADS, 80),
    GPU_ENTRY(bias_f16, bias_args, FLAT_THREADS, 80),
    GPU_ENTRY(softcap, softcap_args, FLAT_THREADS, 80),
    GPU_ENTRY(dummy, dummy_params, DUMMY_THREADS, 80),
} GPU_TABLE_END(rows)
