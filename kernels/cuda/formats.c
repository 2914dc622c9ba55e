/* formats.c - converting weights from file blocks to the tiles of layout.h.
 *
 * A tile is 16 rows x 64 columns, and every supported block covers a whole part of 64 columns: two
 * blocks of 32, or a quarter of a block of 256.  So one small function per file type reads 64
 * columns of one row into a `piece` (a byte per code, a half per scale and min), one function puts
 * a piece into the tile's words, and the tile is copied to its planes:
 *
 *     file row > piece (64 codes, scales) > tile on the stack > low, high and scale planes
 *
 * Codes are unchanged, or become codes of a wider format with the same value (pieces.h), so nothing
 * is rounded except the scales and minima of K-quants and of IQ4_XS, products of a half and 6 or 8
 * bits that are rounded to a half again.  (Never below the half's last place: the product is a
 * whole multiple of d's.)  Scales of MXFP4 are powers of two; halves have those from 104 to 143,
 * below that the block is zero: its weights are at most 12 * 2^-25.  A scale that is not finite as
 * a half would turn its weights, or zeros times them, into NaN, so it is an error.
 *
 * Q2_K has minima and scales for 16 columns, which no tile has.  Its weights are rounded to halves
 * and lie in rows.
 *
 * Thread: any. */
#include "cuda/formats.h"

#include <string.h>

#include "cuda/pieces.h"

enum { STEP_COLS = 16 };

/* The layout of the planes, in bytes from the base. */
typedef struct planes {
    uint32_t bits;   // of a code
    uint32_t groups; // of scales in 64 columns
    bool minima;
    size_t low_tile, high_tile, scale_tile; // bytes per tile
    size_t high, scales, end;               // offsets of planes; low is at 0
} planes;

static bool quantised(uint32_t format) {
    return format >= CU_FMT_Q4;
}

static size_t aligned(size_t n) {
    return (n + PLANE_ALIGN - 1) / PLANE_ALIGN * PLANE_ALIGN;
}

static planes planes_of(const cu_matrix *m) {
    planes p = {0};
    p.bits = m->format <= CU_FMT_Q4M   ? 4
             : m->format <= CU_FMT_Q5M ? 5
             : m->format == CU_FMT_Q6  ? 6
                                       : 8;
    p.groups = m->format == CU_FMT_Q6 ? 4 : 2;
    p.minima = m->format == CU_FMT_Q4M || m->format == CU_FMT_Q5M;
    p.low_tile = p.bits == 8 ? 1024 : 512;
    p.high_tile = p.bits == 5 ? 128 : p.bits == 6 ? 256 : 0;
    p.scale_tile = TILE_ROWS * p.groups * sizeof(uint16_t) * (p.minima ? 2 : 1);
    size_t n_tiles = (size_t)m->n_row_tiles * m->n_col_tiles;
    p.high = aligned(n_tiles * p.low_tile);
    p.scales = p.high + aligned(n_tiles * p.high_tile);
    p.end = p.scales + aligned(n_tiles * p.scale_tile);
    return p;
}

static size_t dense_elem_bytes(uint32_t format) {
    return format == CU_FMT_F32 ? 4 : 2;
}

static size_t dense_bytes(const cu_matrix *m) {
    size_t rows = ((size_t)m->rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    return rows * m->stride * dense_elem_bytes(m->format);
}

bool format_of(dtype type, cu_format *out) {
    static const struct {
        dtype type;
        cu_format format;
    } known[] = {
        {DTYPE_F32, CU_FMT_F32},  {DTYPE_BF16, CU_FMT_BF16}, {DTYPE_F16, CU_FMT_F16},
        {DTYPE_Q4_0, CU_FMT_Q4},  {DTYPE_Q4_1, CU_FMT_Q4M},  {DTYPE_Q4_K, CU_FMT_Q4M},
        {DTYPE_Q5_0, CU_FMT_Q5},  {DTYPE_Q5_1, CU_FMT_Q5M},  {DTYPE_Q5_K, CU_FMT_Q5M},
        {DTYPE_Q6_K, CU_FMT_Q6},  {DTYPE_Q8_0, CU_FMT_Q8},   {DTYPE_Q2_K, CU_FMT_F16},
        {DTYPE_Q3_K, CU_FMT_Q6},  {DTYPE_IQ4_NL, CU_FMT_Q8}, {DTYPE_IQ4_XS, CU_FMT_Q8},
        {DTYPE_MXFP4, CU_FMT_Q5},
    };
    for (size_t i = 0; i < INFERD_COUNT(known); i++)
        if (known[i].type == type) {
            *out = known[i].format;
            return true;
        }
    return false;
}

cu_matrix format_matrix(dtype type, uint32_t rows, uint32_t cols, void *base) {
    cu_format format = CU_FMT_F32;
    INFERD_CHECK(format_of(type, &format));
    cu_matrix m = {.rows = rows, .cols = cols, .format = format};
    unsigned char *at = base;
    if (!quantised(format)) {
        m.data = at;
        m.stride = (cols + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
        return m;
    }
    m.n_row_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    m.n_col_tiles = (cols + TILE_COLS - 1) / TILE_COLS;
    planes p = planes_of(&m);
    m.low = at;
    m.high = p.high_tile != 0 ? at + p.high : NULL;
    m.scales = at + p.scales;
    return m;
}

size_t format_bytes(dtype type, uint32_t rows, uint32_t cols) {
    unsigned char none[1];
    cu_matrix m = format_matrix(type, rows, cols, none);
    return quantised(m.format) ? planes_of(&m).end : aligned(dense_bytes(&m));
}

/* ---- pieces to tiles ---- */

typedef struct tile {
    uint32_t low[256], high[64];
    uint16_t scales[TILE_ROWS * PIECE_GROUPS_MAX];
} tile;

/* Bytes of a and b interleaved: a0 b0 a1 b1 a2 b2 a3 b3. */
static uint64_t in_turn(uint32_t a, uint32_t b) {
    uint64_t x = a, y = b;
    x = (x | x << 16) & 0x0000ffff0000ffffu;
    y = (y | y << 16) & 0x0000ffff0000ffffu;
    x = (x | x << 8) & 0x00ff00ff00ff00ffu;
    y = (y | y << 8) & 0x00ff00ff00ff00ffu;
    return x | y << 8;
}

/* One word for each lane of 4g..4g+3, from 16 bytes that are columns: bytes 2t, 2t + 8, 2t + 1, 2t
 * + 9. */
static void lane_words(uint32_t out[4], const uint32_t columns[4]) {
    uint64_t first = in_turn(columns[0], columns[2]), second = in_turn(columns[1], columns[3]);
    out[0] = (uint32_t)first;
    out[1] = (uint32_t)(first >> 32);
    out[2] = (uint32_t)second;
    out[3] = (uint32_t)(second >> 32);
}

/* Rows g and g + 8 of the tile, four codes of each for every lane and step: as bytes of a word they
 * are e0 e4 e1 e5 of row g and e2 e6 e3 e7 of row g + 8.  Row g + 8's nibbles above row g's are the
 * low plane's word; of the bits above the fourth each byte has those of one position. */
static void place_codes(tile *out, uint32_t g, const uint8_t *row, const uint8_t *row8,
                        uint32_t bits) {
    for (uint32_t s = 0; s < 4; s++) {
        uint32_t a[4], b[4], low[4], high[4], words[4];
        memcpy(a, row + STEP_COLS * s, sizeof a);
        memcpy(b, row8 + STEP_COLS * s, sizeof b);
        for (int i = 0; i < 4; i++) {
            low[i] = (a[i] & 0x0f0f0f0fu) | (b[i] & 0x0f0f0f0fu) << 4;
            high[i] = (a[i] >> 4 & 0x0f0f0f0fu) | (b[i] >> 4 & 0x0f0f0f0fu) << (bits - 4);
        }
        lane_words(words, low);
        for (uint32_t t = 0; t < 4; t++) out->low[16 * g + 4 * t + s] = words[t];
        if (bits == 4) continue;
        lane_words(words, high);
        for (uint32_t t = 0; t < 4; t++) {
            uint32_t w = words[t], lane = 4 * g + t;
            if (bits == 5)
                out->high[lane] |= ((w & 0x00030003u) | (w >> 6 & 0x000c000cu)) << 4 * s;
            else if (bits == 6)
                out->high[2 * lane + s / 2] |= ((w & 0x000f000fu) | (w >> 4 & 0x00f000f0u))
                                               << 8 * (s % 2);
            else
                out->low[128 + 4 * lane + s] = w;
        }
    }
}

/* False: a scale or minimum is not finite as a half, *bad is its group. */
static bool place_scales(tile *out, uint32_t r, const piece *in, const planes *p, uint32_t *bad) {
    uint32_t first = (r % 8 * 2 + r / 8) * p->groups;
    for (uint32_t i = 0; i < p->groups; i++) {
        uint16_t scale = f32_to_f16(in->scales[i]), min = f32_to_f16(in->minima[i]);
        if ((scale & 0x7c00u) == 0x7c00u || (min & 0x7c00u) == 0x7c00u) {
            *bad = i;
            return false;
        }
        if (p->minima) {
            out->scales[2 * (first + i)] = scale;
            out->scales[2 * (first + i) + 1] = min;
        } else {
            out->scales[first + i] = scale;
        }
    }
    return true;
}

typedef struct job { // of one format_prepare
    const cu_matrix *m;
    dtype type;
    planes p;
    piece_reader r;
    uint8_t zero_code;
    const unsigned char *file_rows;
    size_t row_bytes;
    uint32_t row_begin, n_rows;
} job;

static inferd_status tell_bad(const job *k, uint32_t row, uint32_t col_tile, uint32_t group,
                              const piece *in, inferd_err *err) {
    uint32_t col = col_tile * TILE_COLS + group * (TILE_COLS / k->p.groups);
    bool is_scale = (f32_to_f16(in->scales[group]) & 0x7c00u) == 0x7c00u;
    return inferd_fail(
        err, INFERD_EFORMAT,
        "row %u, column %u: the %s of a %s block is %g, not finite in half precision", row, col,
        is_scale ? "scale" : "minimum", dtype_about((uint32_t)k->type).name,
        (double)(is_scale ? in->scales[group] : in->minima[group]));
}

static inferd_status prepare_row(const job *k, tile *out, piece *in, uint32_t row,
                                 uint32_t col_tile, inferd_err *err) {
    uint32_t i = row - k->row_begin, bad;
    if (i < k->n_rows) {
        piece_read(in, &k->r, k->file_rows + i * k->row_bytes, col_tile, k->m->cols, k->zero_code);
    } else {
        memset(in, 0, sizeof *in);
        memset(in->codes, k->zero_code, sizeof in->codes);
    }
    if (place_scales(out, row % TILE_ROWS, in, &k->p, &bad)) return INFERD_OK;
    return tell_bad(k, row, col_tile, bad, in, err);
}

static inferd_status prepare_tile(const job *k, tile *out, uint32_t row_tile, uint32_t col_tile,
                                  inferd_err *err) {
    memset(out->high, 0, sizeof out->high); // the only part that is or-ed together
    for (uint32_t g = 0; g < 8; g++) {
        piece in, in8; // rows g and g + 8
        uint32_t row = row_tile * TILE_ROWS + g;
        inferd_status s = prepare_row(k, out, &in, row, col_tile, err);
        if (s == INFERD_OK) s = prepare_row(k, out, &in8, row + 8, col_tile, err);
        if (s != INFERD_OK) return s;
        place_codes(out, g, in.codes, in8.codes, k->p.bits);
    }
    return INFERD_OK;
}

static void clear_gaps(const cu_matrix *m, const planes *p, unsigned char *image) {
    size_t n_tiles = (size_t)m->n_row_tiles * m->n_col_tiles;
    size_t low_end = n_tiles * p->low_tile, high_end = p->high + n_tiles * p->high_tile;
    size_t scales_end = p->scales + n_tiles * p->scale_tile;
    memset(image + low_end, 0, p->high - low_end);
    memset(image + high_end, 0, p->scales - high_end);
    memset(image + scales_end, 0, p->end - scales_end);
}

static inferd_status prepare_quantised(const job *k, unsigned char *image, inferd_err *err) {
    const planes *p = &k->p;
    uint32_t first = k->row_begin / TILE_ROWS;
    uint32_t end = (k->row_begin + k->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    tile t;
    for (uint32_t i = first; i < end; i++)
        for (uint32_t j = 0; j < k->m->n_col_tiles; j++) {
            inferd_status s = prepare_tile(k, &t, i, j, err);
            if (s != INFERD_OK) return s;
            size_t at = (size_t)i * k->m->n_col_tiles + j;
            memcpy(image + at * p->low_tile, t.low, p->low_tile);
            if (p->high_tile != 0)
                memcpy(image + p->high + at * p->high_tile, t.high, p->high_tile);
            memcpy(image + p->scales + at * p->scale_tile, t.scales, p->scale_tile);
        }
    if (k->row_begin + k->n_rows == k->m->rows) clear_gaps(k->m, p, image);
    return INFERD_OK;
}

/* A row of Q2_K as halves; returns the first column that is not finite, or cols. */
static uint32_t expand_row(const job *k, const unsigned char *row, unsigned char *out,
                           float *value) {
    enum { COLS = 256 };
    float block[COLS];
    for (uint32_t col = 0; col < k->m->cols; col++) {
        if (col % COLS == 0)
            dtype_to_f32(k->type, row + (size_t)(col / COLS) * k->r.block_bytes, block, COLS);
        uint16_t half = f32_to_f16(block[col % COLS]);
        if ((half & 0x7c00u) == 0x7c00u) {
            *value = block[col % COLS];
            return col;
        }
        out[2 * (size_t)col] = (unsigned char)half;
        out[2 * (size_t)col + 1] = (unsigned char)(half >> 8);
    }
    return k->m->cols;
}

static inferd_status prepare_dense(const job *k, unsigned char *image, inferd_err *err) {
    size_t stride = k->m->stride * dense_elem_bytes(k->m->format);
    size_t used = k->m->cols * dense_elem_bytes(k->m->format);
    bool expand = k->type == DTYPE_Q2_K;
    unsigned char *at = image + k->row_begin * stride;
    for (uint32_t i = 0; i < k->n_rows; i++, at += stride) {
        const unsigned char *row = k->file_rows + i * k->row_bytes;
        float value = 0;
        uint32_t col = k->m->cols;
        if (expand) {
            col = expand_row(k, row, at, &value);
        } else {
            memcpy(at, row, used);
            if (!dtype_are_finite(k->type, at, k->m->cols))
                col = dtype_find_not_finite(k->type, at, k->m->cols, &value);
        }
        memset(at + used, 0, stride - used);
        if (col < k->m->cols)
            return inferd_fail(err, INFERD_EFORMAT, "row %u, column %u is %g, not %s",
                               k->row_begin + i, col, (double)value,
                               expand ? "finite in half precision" : "a finite number");
    }
    if (k->row_begin + k->n_rows == k->m->rows)
        memset(at, 0, aligned(dense_bytes(k->m)) - (size_t)(at - image));
    return INFERD_OK;
}

inferd_status format_prepare(const cu_matrix *m, dtype type, void *image, const void *file_rows,
                             uint32_t row_begin, uint32_t n_rows, inferd_err *err) {
    dtype_info about = dtype_about((uint32_t)type);
    bool last = row_begin + n_rows == m->rows;
    INFERD_CHECK(row_begin % TILE_ROWS == 0 && row_begin + n_rows <= m->rows);
    INFERD_CHECK(last || n_rows % TILE_ROWS == 0);
    INFERD_CHECK(m->cols % about.block_elems == 0);
    job k = {
        .m = m, .type = type, .file_rows = file_rows, .row_begin = row_begin, .n_rows = n_rows};
    k.row_bytes = (size_t)(m->cols / about.block_elems) * about.block_bytes;
    k.r.block_bytes = about.block_bytes;
    if (!quantised(m->format)) return prepare_dense(&k, image, err);
    k.p = planes_of(m);
    k.r = piece_reader_of(type);
    k.zero_code = k.p.minima ? 0 : (uint8_t)(1u << (k.p.bits - 1));
    return prepare_quantised(&k, image, err);
}

/* ---- and back ---- */

static float dense_value(const cu_matrix *m, size_t i) {
    uint16_t half;
    float f;
    if (m->format == CU_FMT_F32) {
        memcpy(&f, (const unsigned char *)m->data + 4 * i, 4);
        return f;
    }
    memcpy(&half, (const unsigned char *)m->data + 2 * i, 2);
    return m->format == CU_FMT_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

static uint32_t code_at(const cu_matrix *m, const planes *p, size_t tile_idx, uint32_t r,
                        uint32_t c) {
    uint32_t lane = 4 * (r % 8) + c % 8 / 2, s = c / STEP_COLS;
    uint32_t pair = r / 8 + c % STEP_COLS / 8 * 2, odd = 16 * (c % 2);
    const uint32_t *low = (const uint32_t *)m->low + tile_idx * p->low_tile / 4 + 4 * lane + s;
    const uint32_t *high = m->high;
    uint32_t code = low[0] >> (4 * pair + odd) & 15u;
    if (p->bits == 5) code |= (high[tile_idx * 32 + lane] >> (4 * s + pair + odd) & 1u) << 4;
    if (p->bits == 6) {
        uint32_t word = high[tile_idx * 64 + 2 * lane + s / 2];
        code |= (word >> (8 * (s % 2) + 2 * pair + odd) & 3u) << 4;
    }
    if (p->bits == 8) code |= (low[128] >> (4 * pair + odd) & 15u) << 4;
    return code;
}

void format_to_f32(const cu_matrix *m, uint32_t row_begin, uint32_t n_rows, float *out) {
    planes p = planes_of(m);
    for (uint32_t row = row_begin; row < row_begin + n_rows; row++)
        for (uint32_t col = 0; col < m->cols; col++, out++) {
            if (!quantised(m->format)) {
                *out = dense_value(m, (size_t)row * m->stride + col);
                continue;
            }
            uint32_t r = row % TILE_ROWS, c = col % TILE_COLS;
            size_t tile_idx = (size_t)(row / TILE_ROWS) * m->n_col_tiles + col / TILE_COLS;
            int code = (int)code_at(m, &p, tile_idx, r, c);
            const uint16_t *halves = (const uint16_t *)m->scales + tile_idx * p.scale_tile / 2;
            uint32_t group = (r % 8 * 2 + r / 8) * p.groups + c * p.groups / TILE_COLS;
            if (p.minima)
                *out =
                    f16_to_f32(halves[2 * group]) * (float)code + f16_to_f32(halves[2 * group + 1]);
            else
                *out = f16_to_f32(halves[group]) * (float)(code - (1 << (p.bits - 1)));
        }
}
