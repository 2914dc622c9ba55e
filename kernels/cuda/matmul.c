/* matmul.c - the choice of a path for a product, the large path, and its tuning.
 *
 * Large.  cuBLASLt multiplies 16-bit weights of the activations' type in place.  Of other
 * formats as many rows as fit in scratch (a multiple of 128, so that outputs stay aligned) are
 * expanded to 16 bits and multiplied, then the next ones; the stream keeps the order.  A bias is
 * added after the library (rows.h): its own epilogue would need another choice of algorithm.
 *
 * Products without the library, or that it refuses, go through skinny in groups of 64 rows; for an
 * expanded matrix, the rows from the refused block on.
 *
 * Thread: engine. */
#include "cuda/matmul.h"

#include "cuda/expand.h"
#include "cuda/gemv.h"
#include "cuda/lt.h"
#include "cuda/parts.h"
#include "cuda/skinny.h"

enum {
    LT_ALIGN = 256,          // of the addresses that cuBLASLt is asked about and given
    LT_ROW_BYTES = 16,       // rows begin at multiples of it
    EXPAND_ROWS_ALIGN = 128, // of a block's first row: 256 bytes of 16-bit output
    TRIAL_BYTE = 0x3c        // in x of trials: 0.0115 in bf16, 1.06 in f16
};
_Static_assert((int)GEMV_ROWS_MAX <= (int)GEMV_ROWS_LIMIT, "what gemv can take");

struct matmul {
    cu_type inner;
    gemv *gemv;
    bool gemv8; // it may take up to 8 rows
    bool skinny128;
    skinny *skinny;
    expand *expand;
    lt_book *book; // NULL: without cuBLASLt
    matmul_workspace work;
    matmul_paths paths;
};

inferd_status matmul_create(const cuda_module *m, const cu_device *d, cu_type inner, bool lt,
                            const char *tune_path, matmul **out, inferd_err *err) {
    matmul *mm = calloc(1, sizeof *mm);
    if (mm == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for matrix products");
    mm->inner = inner;
    mm->gemv8 = mm->skinny128 = true;
    inferd_status s = gemv_create(m, d, inner, &mm->gemv, err);
    if (s == INFERD_OK) s = skinny_create(m, d, inner, &mm->skinny, err);
    if (s == INFERD_OK) s = expand_create(m, d, inner, &mm->expand, err);
    if (s == INFERD_OK && lt) s = lt_book_open(m->api, d, tune_path, &mm->book, err);
    if (s != INFERD_OK) {
        matmul_destroy(mm);
        return s;
    }
    *out = mm;
    return INFERD_OK;
}

void matmul_destroy(matmul *mm) {
    if (mm == NULL) return;
    gemv_destroy(mm->gemv);
    skinny_destroy(mm->skinny);
    expand_destroy(mm->expand);
    lt_book_close(mm->book);
    free(mm);
}

void matmul_allow(matmul *mm, bool mixed, bool gemv8, bool skinny128) {
    gemv_allow_mixed(mm->gemv, mixed);
    mm->gemv8 = gemv8;
    mm->skinny128 = skinny128;
}

void matmul_set_workspace(matmul *mm, const matmul_workspace *w) {
    mm->work = *w;
    if (mm->book != NULL) lt_book_set_workspace(mm->book, w->lt, w->lt_bytes);
}

void matmul_count_paths(const matmul *mm, matmul_paths *out) {
    *out = mm->paths;
}

static lt_type lt_type_of(cu_type type) {
    return type == CU_F32 ? LT_F32 : type == CU_BF16 ? LT_BF16 : LT_F16;
}

inferd_status matmul_warm(matmul *mm, launcher *l, inferd_err *err) {
    if (mm->book == NULL) return INFERD_OK;
    return lt_book_warm(mm->book, l, lt_type_of(mm->inner), err);
}

/* ---- choosing a path ---- */

static bool is_inner(const matmul *mm, uint32_t format) {
    return format == (mm->inner == CU_BF16 ? CU_FMT_BF16 : CU_FMT_F16);
}

static bool all_inner(const matmul *mm, const matmul_args *a) {
    for (uint32_t i = 0; i < a->n_out; i++)
        if (!is_inner(mm, a->out[i].w.format)) return false;
    return true;
}

/* Weights of the inner type are bound by reading them, and on an H100 skinny reads 2.2 to 3.1 TB/s
 * of them where gemv reads 1.9 to 2.4 (bench_cuda matmul): more than a norm or a gate in one launch
 * saves. */
static bool by_gemv(const matmul *mm, const matmul_args *a) {
    if (all_inner(mm, a)) return false;
    if (a->rows <= GEMV_ROWS_MAX) return true;
    return mm->gemv8 && a->rows <= GEMV_ROWS_LIMIT && gemv_can_fuse(mm->gemv, a) &&
           gemv_pays(mm->gemv, &mm->work, a);
}

/* In groups of skinny?  Then the weights' bytes are read for each group of 64 rows, instead of once
 * with 16 bits written and read for each weight after that. */
static bool by_groups(const matmul *mm, const matmul_args *a) {
    matmul_args group = *a;
    group.rows = SKINNY_ROWS_MAX;
    if (!mm->skinny128 || a->rows <= SKINNY_ROWS_MAX || a->rows > SKINNY_GROUPS_ROWS_MAX)
        return false;
    for (uint32_t i = 0; i < a->n_out; i++)
        if (is_inner(mm, a->out[i].w.format)) return false;
    return skinny_can_fuse(mm->skinny, &group);
}

bool matmul_can_fuse(const matmul *mm, const matmul_args *a) {
    bool few = a->norm != NULL || a->gather != NULL || a->glu;
    if (by_gemv(mm, a)) return gemv_can_fuse(mm->gemv, a);
    if (a->rows <= SKINNY_ROWS_MAX) return skinny_can_fuse(mm->skinny, a);
    return (!few && a->n_out == 1) || by_groups(mm, a);
}

/* Matrix i alone. */
static matmul_args only(const matmul_args *a, uint32_t i) {
    matmul_args one = *a;
    one.out[0] = a->out[i];
    one.n_out = 1;
    return one;
}

static size_t bytes_of(cu_type type) {
    return type == CU_F32 ? 4 : 2;
}

static void *past(void *p, size_t n, cu_type type) { // element n
    return (unsigned char *)p + n * bytes_of(type);
}

/* One launch of skinny for each group of 64 rows; returns how many. */
static uint32_t launch_groups(launcher *l, matmul *mm, const matmul_args *a) {
    matmul_args group = *a;
    uint32_t n = 0;
    for (uint32_t row = 0; row < a->rows; row += SKINNY_ROWS_MAX, n++) {
        group.rows = u32_min(a->rows - row, SKINNY_ROWS_MAX);
        group.x = (const uint16_t *)a->x + (size_t)row * a->x_stride;
        for (uint32_t i = 0; i < a->n_out; i++)
            group.out[i].out =
                past(a->out[i].out, (size_t)row * a->out[i].out_stride, a->out[i].out_type);
        skinny_launch(l, mm->skinny, &mm->work, &group);
    }
    return n;
}

void launch_matmul(launcher *l, matmul *mm, const matmul_args *a) {
    if (a->rows == 0) return;
    if (by_gemv(mm, a))
        launch_gemv(l, mm, a);
    else if (a->rows <= SKINNY_ROWS_MAX)
        launch_skinny(l, mm, a);
    else if (by_groups(mm, a))
        mm->paths.skinny += launch_groups(l, mm, a);
    else if (a->n_out > 1 && a->rows <= SKINNY_GROUPS_ROWS_MAX)
        for (uint32_t i = 0; i < a->n_out; i++) {
            matmul_args one = only(a, i);
            launch_matmul(l, mm, &one);
        }
    else
        launch_large(l, mm, a);
}

static bool is_plain(const matmul_args *a) {
    return a->norm == NULL && a->gather == NULL && !a->glu;
}

void launch_gemv(launcher *l, matmul *mm, const matmul_args *a) {
    if (gemv_can_fuse(mm->gemv, a)) {
        gemv_launch(l, mm->gemv, &mm->work, a);
        mm->paths.gemv++;
        return;
    }
    INFERD_CHECK(!a->glu && a->n_out > 1);
    for (uint32_t i = 0; i < a->n_out; i++) {
        matmul_args one = only(a, i);
        launch_gemv(l, mm, &one);
    }
}

void launch_skinny(launcher *l, matmul *mm, const matmul_args *a) {
    if (skinny_can_fuse(mm->skinny, a)) {
        skinny_launch(l, mm->skinny, &mm->work, a);
        mm->paths.skinny++;
        return;
    }
    INFERD_CHECK(is_plain(a) && a->n_out > 1);
    for (uint32_t i = 0; i < a->n_out; i++) {
        matmul_args one = only(a, i);
        launch_skinny(l, mm, &one);
    }
}

void launch_expand(launcher *l, matmul *mm, const cu_matrix *w, uint32_t row_begin, uint32_t n_rows,
                   void *out, uint32_t stride, cu_type inner) {
    INFERD_CHECK(inner == mm->inner);
    expand_launch(l, mm->expand, w, row_begin, n_rows, out, stride);
}

/* ---- large ---- */

static uint32_t round8(uint32_t n) {
    return (n + 7) / 8 * 8;
}

static const void *plane_past(const void *p, size_t n_bytes) {
    return p == NULL ? NULL : (const unsigned char *)p + n_bytes;
}

/* Rows from `row` (a multiple of 16) on. */
static cu_matrix rows_from(const cu_matrix *w, uint32_t row) {
    static const struct {
        uint16_t element, low, high, scales; // bytes of an element; of a tile in each plane
    } sizes[CU_FORMATS] = {
        [CU_FMT_F32] = {4, 0, 0, 0},       [CU_FMT_BF16] = {2, 0, 0, 0},
        [CU_FMT_F16] = {2, 0, 0, 0},       [CU_FMT_Q4] = {0, 512, 0, 64},
        [CU_FMT_Q4M] = {0, 512, 0, 128},   [CU_FMT_Q5] = {0, 512, 128, 64},
        [CU_FMT_Q5M] = {0, 512, 128, 128}, [CU_FMT_Q6] = {0, 512, 256, 128},
        [CU_FMT_Q8] = {0, 1024, 0, 64},
    };
    INFERD_CHECK(row % TILE_ROWS == 0 && row <= w->rows);
    cu_matrix m = *w;
    size_t tiles = (size_t)(row / TILE_ROWS) * w->n_col_tiles;
    m.rows -= row;
    m.data = plane_past(w->data, (size_t)row * w->stride * sizes[w->format].element);
    m.low = plane_past(w->low, tiles * sizes[w->format].low);
    m.high = plane_past(w->high, tiles * sizes[w->format].high);
    m.scales = plane_past(w->scales, tiles * sizes[w->format].scales);
    if (w->n_row_tiles > 0) m.n_row_tiles -= row / TILE_ROWS;
    return m;
}

/* How many rows of a matrix are expanded at once; 0: scratch is too small. */
static uint32_t block_rows(const matmul *mm, const cu_matrix *w) {
    size_t row_bytes = (size_t)round8(w->cols) * 2;
    size_t rows = row_bytes == 0 ? 0 : mm->work.expand_bytes / row_bytes;
    return (uint32_t)size_min(rows, 1u << 30) / EXPAND_ROWS_ALIGN * EXPAND_ROWS_ALIGN;
}

/* One matrix, or rows of one: `a` holds nothing else. */
static void through_skinny(launcher *l, matmul *mm, const matmul_args *a) {
    launch_groups(l, mm, a);
    mm->paths.skinny_large++;
}

/* n rows of the weight at `w`, which gives columns [begin, begin + n) of the output.  False: the
 * library does not take it. */
static bool through_lt(launcher *l, matmul *mm, const matmul_args *a, const void *w,
                       uint32_t w_stride, uint32_t begin, uint32_t n) {
    cu_type type = a->out[0].out_type;
    void *out = past(a->out[0].out, begin, type);
    uint32_t stride = a->out[0].out_stride;
    lt_shape s = {.m = a->rows,
                  .n = n,
                  .k = a->out[0].w.cols,
                  .x_stride = a->x_stride,
                  .w_stride = w_stride,
                  .out_stride = stride,
                  .in = lt_type_of(mm->inner),
                  .out = lt_type_of(type),
                  .accumulate = a->add};
    uintptr_t addresses = (uintptr_t)a->x | (uintptr_t)w | (uintptr_t)out;
    size_t rows = (size_t)a->x_stride * 2 | (size_t)w_stride * 2 | stride * bytes_of(type);
    if (addresses % LT_ALIGN != 0 || rows % LT_ROW_BYTES != 0) return false;
    if (!lt_book_product(mm->book, l, &s, a->x, w, out)) {
        char why[CU_TEXT_BYTES];
        snprintf(why, sizeof why, "a product of %u x %u x %u was refused: %s", s.m, s.n, s.k,
                 l->api->text());
        parts_degrade(l->parts, PART_LT, why);
        return false;
    }
    if (a->out[0].bias != NULL)
        launch_bias(l, &(bias_args){.x = out,
                                    .type = type,
                                    .bias = a->out[0].bias + begin,
                                    .rows = a->rows,
                                    .dim = n,
                                    .stride = stride});
    return true;
}

/* The rest of the matrix from `row` on. */
static void rest_through_skinny(launcher *l, matmul *mm, const matmul_args *a, uint32_t row) {
    matmul_args rest = *a;
    rest.out[0].w = rows_from(&a->out[0].w, row);
    rest.out[0].out = past(a->out[0].out, row, a->out[0].out_type);
    if (a->out[0].bias != NULL) rest.out[0].bias += row;
    through_skinny(l, mm, &rest);
}

static void expand_and_multiply(launcher *l, matmul *mm, const matmul_args *a) {
    const cu_matrix *w = &a->out[0].w;
    uint32_t block = block_rows(mm, w), stride = round8(w->cols), row = 0;
    while (row < w->rows) {
        uint32_t n = u32_min(block, w->rows - row);
        if (n == 0) break;
        expand_launch(l, mm->expand, w, row, n, mm->work.expand, stride);
        if (!through_lt(l, mm, a, mm->work.expand, stride, row, n)) break;
        row += n;
    }
    if (row > 0) mm->paths.expanded++;
    if (row < w->rows) rest_through_skinny(l, mm, a, row);
}

void launch_large(launcher *l, matmul *mm, const matmul_args *a) {
    INFERD_CHECK(is_plain(a) && a->x_type == mm->inner && a->inner == mm->inner);
    INFERD_CHECK(!a->add || (a->n_out == 1 && a->out[0].out_type == CU_F32));
    for (uint32_t i = 0; i < a->n_out && a->rows > 0; i++) {
        matmul_args one = only(a, i);
        const cu_matrix *w = &one.out[0].w;
        if (mm->book == NULL) {
            through_skinny(l, mm, &one);
        } else if (!is_inner(mm, w->format)) {
            expand_and_multiply(l, mm, &one);
        } else if (through_lt(l, mm, &one, w->data, w->stride, 0, w->rows)) {
            mm->paths.lt++;
        } else {
            through_skinny(l, mm, &one);
        }
    }
}

/* ---- tuning ---- */

/* A product that the matrices will be used for. */
typedef struct product {
    const cu_matrix *first;
    uint32_t row_begin, n, k, w_stride;
    bool expand; // only `first` then: it comes from scratch in use, too
} product;

static bool same_product(const product *a, const product *b) {
    return a->n == b->n && a->k == b->k && a->w_stride == b->w_stride && a->expand == b->expand;
}

static uint32_t add_product(product *list, uint32_t n, const product *p) {
    for (uint32_t i = 0; i < n; i++)
        if (same_product(&list[i], p)) return n;
    list[n] = *p;
    return n + 1;
}

static uint32_t products_of(const matmul *mm, const cu_matrix *w, product *list, uint32_t n) {
    product p = {.first = w, .n = w->rows, .k = w->cols, .w_stride = w->stride};
    if (w->rows == 0 || w->cols == 0) return n;
    if (is_inner(mm, w->format)) return add_product(list, n, &p);
    uint32_t block = block_rows(mm, w);
    p.expand = true;
    p.w_stride = round8(w->cols);
    p.n = u32_min(block, w->rows);
    if (p.n > 0) n = add_product(list, n, &p);
    if (block > 0 && w->rows > block && w->rows % block > 0) {
        p.n = w->rows % block;
        p.row_begin = w->rows - p.n;
        n = add_product(list, n, &p);
    }
    return n;
}

/* The weights that the product may be timed with. */
static uint32_t weights_of(const matmul *mm, const product *p, const cu_matrix *weights, uint32_t n,
                           const void **out) {
    uint32_t n_out = 0;
    if (p->expand) out[n_out++] = mm->work.expand;
    for (uint32_t i = 0; i < n && !p->expand; i++)
        if (is_inner(mm, weights[i].format) && weights[i].rows == p->n && weights[i].cols == p->k &&
            weights[i].stride == p->w_stride)
            out[n_out++] = weights[i].data;
    return n_out;
}

static size_t round_up(size_t n) {
    return (n + LT_ALIGN - 1) / LT_ALIGN * LT_ALIGN;
}

/* Time one bucket of one product; or run it once, if it was timed or the budget is used up. */
static inferd_status try_one(matmul *mm, launcher *l, const product *p, const void *const *w,
                             uint32_t n_w, uint32_t bucket_idx, bool add, uint64_t *budget_us,
                             inferd_err *err) {
    lt_shape s = {.m = lt_buckets[bucket_idx],
                  .n = p->n,
                  .k = p->k,
                  .x_stride = round8(p->k),
                  .w_stride = p->w_stride,
                  .out_stride = round8(p->n),
                  .in = lt_type_of(mm->inner),
                  .out = add ? LT_F32 : lt_type_of(mm->inner),
                  .accumulate = add};
    bool tune = *budget_us > 0 && !lt_book_is_tuned(mm->book, &s);
    if (!tune) s.m = bucket_idx == 0 ? 1 : lt_buckets[bucket_idx - 1] + 1;
    size_t w_bytes = p->expand ? round_up((size_t)p->n * p->w_stride * 2) : 0;
    size_t x_bytes = round_up((size_t)s.m * s.x_stride * 2);
    size_t out_bytes = (size_t)s.m * s.out_stride * (add ? 4 : 2);
    if (w_bytes + x_bytes + out_bytes > mm->work.expand_bytes) return INFERD_OK;
    unsigned char *x = (unsigned char *)mm->work.expand + w_bytes, *out = x + x_bytes;
    cu_result r = l->api->fill(x, TRIAL_BYTE, x_bytes + out_bytes, l->stream);
    if (r != CU_OK) return cu_fail(l->api, r, err, "tuning cuBLASLt");
    if (tune)
        return lt_book_tune(mm->book, l,
                            &(lt_trial){.shape = s, .x = x, .w = w, .n_w = n_w, .out = out},
                            budget_us, err);
    lt_book_product(mm->book, l, &s, x, w[0], out);
    return INFERD_OK;
}

/* All products, the most important buckets first. */
static inferd_status try_all(matmul *mm, launcher *l, const product *list, uint32_t n_list,
                             const cu_matrix *weights, uint32_t n, const void **w,
                             uint64_t budget_us, inferd_err *err) {
    static const uint32_t order[] = {2048, 512, 1024, 256, 128, 4096, 384, 192, 96};
    for (uint32_t i = 0; i < INFERD_COUNT(order); i++)
        for (uint32_t j = 0; j < n_list; j++) {
            const product *p = &list[j];
            uint32_t n_w = weights_of(mm, p, weights, n, w);
            if (p->expand)
                expand_launch(l, mm->expand, p->first, p->row_begin, p->n, mm->work.expand,
                              p->w_stride);
            for (uint32_t add = 0; add < 2; add++) {
                inferd_status s =
                    try_one(mm, l, p, w, n_w, lt_bucket_idx(order[i]), add == 1, &budget_us, err);
                if (s == INFERD_OK && l->status != CU_OK)
                    s = cu_fail(l->api, l->status, err, "tuning cuBLASLt");
                if (s != INFERD_OK) return s;
            }
        }
    cu_result r = l->api->stream_sync(l->stream);
    return r == CU_OK ? INFERD_OK : cu_fail(l->api, r, err, "tuning cuBLASLt");
}

inferd_status matmul_tune(matmul *mm, launcher *l, const cu_matrix *weights, uint32_t n,
                          uint64_t budget_us, inferd_err *err) {
    if (mm->book == NULL || mm->work.expand == NULL || n == 0) return INFERD_OK;
    product *list = malloc((size_t)n * 2 * sizeof *list);
    const void **w = malloc((size_t)n * sizeof *w);
    inferd_status s = INFERD_OK;
    if (list == NULL || w == NULL) {
        s = inferd_fail(err, INFERD_ENOMEM, "no memory to tune %u matrices", n);
    } else {
        uint32_t n_list = 0;
        for (uint32_t i = 0; i < n; i++) n_list = products_of(mm, &weights[i], list, n_list);
        s = try_all(mm, l, list, n_list, weights, n, w, budget_us, err);
    }
    free(list);
    free(w);
    return s == INFERD_OK ? lt_book_save(mm->book, err) : s;
}
