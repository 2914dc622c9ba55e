/* fake_lt.c - cuBLASLt: out[m, n] = x[m, k] . w[n, k] (+ out), with a choice of algorithms.
 *
 *     0  needs nothing                          takes 3 times as long as the best: the library's
 *                                               first choice is not the fastest
 *     1  needs 1 MiB of workspace               the best
 *     2  needs nothing                          fails when it is run
 *     3  needs 64 KiB of workspace              takes twice as long
 *
 * A product runs when its stream comes to it.  It scribbles over the workspace that its algorithm
 * needs, as the real ones do, so a workspace shared with something else is noticed.
 *
 * Thread: under the fake's lock. */
#include "fake_inner.h"

#include <string.h>

#include "kernels/dtype.h"

enum { N_ALGOS = 4, LT_ALIGN = 16, SCRIBBLE = 0xA5 };
static const uint64_t MAGIC = 0x66616b65206c7421; // in opaque[0]

static const struct {
    size_t workspace_bytes;
    uint32_t slowness;
    bool fails;
} algos[N_ALGOS] = {{0, 3, false}, {1 << 20, 1, false}, {0, 1, true}, {64 << 10, 2, false}};

static cu_result api_lt_open(const char *path) {
    cu_result r = fk_enter(CALL_lt_open);
    if (r == CU_OK && !fk.opt.lt)
        r = fk_say(
            CU_EUNSUPPORTED,
            "libcublasLt.so.13 was not found (%s%s): install the package cuda-libraries-13-0",
            path != NULL ? "looked in " : "no path given", path != NULL ? path : "");
    if (r == CU_OK) fk.lt_opened = true;
    return fk_leave(r);
}

static uint64_t api_lt_version(void) {
    pthread_mutex_lock(&fk.lock);
    uint64_t version = fk.lt_opened ? fk.opt.lt_version : 0;
    pthread_mutex_unlock(&fk.lock);
    return version;
}

/* ---- what is allowed ---- */

static size_t bytes_of(lt_type type) {
    return type == LT_F32 ? 4 : 2;
}

static cu_result check_shape(const lt_shape *s) {
    if (!fk.lt_opened) return fk_say(CU_EUNSUPPORTED, "cuBLASLt is not open");
    if (s->m == 0 || s->n == 0 || s->k == 0)
        return fk_say(CU_EINVAL, "a product of m %u, n %u, k %u", s->m, s->n, s->k);
    if (s->in == LT_F32 || (s->out != LT_F32 && s->out != s->in))
        return fk_say(CU_EUNSUPPORTED, "no product of types %d into %d", (int)s->in, (int)s->out);
    if (s->x_stride < s->k || s->w_stride < s->k || s->out_stride < s->n)
        return fk_say(CU_EINVAL, "strides %u, %u, %u are less than k %u, k or n %u", s->x_stride,
                      s->w_stride, s->out_stride, s->k, s->n);
    if (s->x_stride * bytes_of(s->in) % LT_ALIGN != 0 ||
        s->w_stride * bytes_of(s->in) % LT_ALIGN != 0 ||
        s->out_stride * bytes_of(s->out) % LT_ALIGN != 0)
        return fk_say(CU_EUNSUPPORTED, "strides %u, %u, %u are no multiples of 16 bytes",
                      s->x_stride, s->w_stride, s->out_stride);
    return CU_OK;
}

static cu_result find_candidates(const lt_shape *s, size_t workspace_bytes, uint32_t n_max,
                                 lt_algo *out, uint32_t *n) {
    *n = 0;
    cu_result r = check_shape(s);
    for (uint32_t i = 0; r == CU_OK && i < N_ALGOS && *n < n_max; i++)
        if (algos[i].workspace_bytes <= workspace_bytes)
            out[(*n)++] = (lt_algo){.opaque = {MAGIC, i, (uint64_t)s->in << 8 | (uint64_t)s->out},
                                    .workspace_bytes = algos[i].workspace_bytes};
    return r;
}

static cu_result api_lt_candidates(const lt_shape *s, size_t workspace_bytes, uint32_t n_max,
                                   lt_algo *out, uint32_t *n) {
    cu_result r = fk_enter(CALL_lt_candidates);
    if (r == CU_OK) r = find_candidates(s, workspace_bytes, n_max, out, n);
    return fk_leave(r);
}

static cu_result check_algo(const lt_shape *s, const lt_algo *a) {
    if (a->opaque[0] != MAGIC || a->opaque[1] >= N_ALGOS)
        return fk_say(CU_EINVAL, "the algorithm is none of this library's");
    if (a->opaque[2] != ((uint64_t)s->in << 8 | (uint64_t)s->out))
        return fk_say(CU_EUNSUPPORTED, "the algorithm is for other types");
    if (algos[a->opaque[1]].fails) return fk_say(CU_EFAILED, "the algorithm failed to run");
    return CU_OK;
}

/* The bytes that rows of a matrix span. */
static size_t span_bytes(uint32_t rows, uint32_t stride, uint32_t cols, lt_type type) {
    return ((size_t)(rows - 1) * stride + cols) * bytes_of(type);
}

static cu_result check_operand(const char *name, const void *p, size_t n) {
    if ((uintptr_t)p % LT_ALIGN != 0)
        return fk_say(CU_EUNSUPPORTED, "%s at %p is not aligned to 16 bytes", name, p);
    if (!fk_memory_is_known(p, n))
        return fk_say(CU_EINVAL, "%s: %zu bytes at %p are not in one piece of device memory", name,
                      n, p);
    return CU_OK;
}

static cu_result check_product(const lt_shape *s, const lt_algo *a, const void *x, const void *w,
                               const void *out, const void *workspace, size_t workspace_bytes) {
    cu_result r = check_shape(s);
    if (r == CU_OK) r = check_algo(s, a);
    if (r != CU_OK) return r;
    size_t needs = algos[a->opaque[1]].workspace_bytes;
    if (workspace_bytes < needs)
        return fk_say(CU_EINVAL, "the algorithm needs %zu bytes of workspace, got %zu", needs,
                      workspace_bytes);
    r = check_operand("x", x, span_bytes(s->m, s->x_stride, s->k, s->in));
    if (r == CU_OK) r = check_operand("w", w, span_bytes(s->n, s->w_stride, s->k, s->in));
    if (r == CU_OK) r = check_operand("out", out, span_bytes(s->m, s->out_stride, s->n, s->out));
    if (r == CU_OK && workspace_bytes > 0)
        r = check_operand("workspace", workspace, workspace_bytes);
    return r;
}

static cu_result submit(const lt_shape *s, const lt_algo *a, const void *x, const void *w,
                        void *out, void *workspace, size_t workspace_bytes, cu_stream stream) {
    cu_result r = fk_stream_check(stream);
    if (r == CU_OK) r = check_product(s, a, x, w, out, workspace, workspace_bytes);
    if (r != CU_OK) return r;
    fake_op *op = fk_op_create(OP_LT, 0);
    if (op == NULL) return CU_ENOMEM;
    op->shape = *s;
    op->lt_algo = (uint32_t)a->opaque[1];
    op->src = x, op->w = w, op->dst = out, op->workspace = workspace;
    op->n = algos[op->lt_algo].workspace_bytes;
    return fk_op_submit(stream, op);
}

static cu_result api_lt_matmul(const lt_shape *s, const lt_algo *a, const void *x, const void *w,
                               void *out, void *workspace, size_t workspace_bytes,
                               cu_stream stream) {
    cu_result r = fk_enter(CALL_lt_matmul);
    if (r == CU_OK) r = submit(s, a, x, w, out, workspace, workspace_bytes, stream);
    return fk_leave(r);
}

/* ---- doing it ---- */

static void row_to_f32(lt_type type, const uint16_t *row, uint32_t k, float *out) {
    for (uint32_t i = 0; i < k; i++)
        out[i] = type == LT_BF16 ? bf16_to_f32(row[i]) : f16_to_f32(row[i]);
}

/* Rows of x that are multiplied by one row of w at a time: the sums of one alone wait for each
 * other. */
enum { ROWS_AT_ONCE = 4, LANES = 8 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));

/* By address: as an argument such a vector has another form without AVX. */
static inline __attribute__((always_inline)) float
sum_of(const lanes *sums, const float *x, const float *w, uint32_t from, uint32_t k) {
    lanes a = *sums;
    for (uint32_t i = from; i < k; i++) a[0] += x[i] * w[i];
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}

static inline __attribute__((always_inline)) void products_of(const float *x, const float *w,
                                                              uint32_t k, float out[ROWS_AT_ONCE]) {
    const float *x1 = x + k, *x2 = x1 + k, *x3 = x2 + k;
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    uint32_t i = 0;
    for (; i + LANES <= k; i += LANES) {
        lanes wi = *(const lanes *)(w + i);
        a += *(const lanes *)(x + i) * wi;
        b += *(const lanes *)(x1 + i) * wi;
        c += *(const lanes *)(x2 + i) * wi;
        d += *(const lanes *)(x3 + i) * wi;
    }
    out[0] = sum_of(&a, x, w, i, k);
    out[1] = sum_of(&b, x1, w, i, k);
    out[2] = sum_of(&c, x2, w, i, k);
    out[3] = sum_of(&d, x3, w, i, k);
}

/* The same sums with and without AVX2: most of the time of the emulated device goes here. */
__attribute__((target("avx2"))) static void products_avx2(const float *x, const float *w,
                                                          uint32_t k, float out[ROWS_AT_ONCE]) {
    products_of(x, w, k, out);
}

static void products(const float *x, const float *w, uint32_t k, float out[ROWS_AT_ONCE]) {
    if (__builtin_cpu_supports("avx2"))
        products_avx2(x, w, k, out);
    else
        products_of(x, w, k, out);
}

static void store(const lt_shape *s, void *out, size_t at, float sum) {
    float *f32 = out;
    uint16_t *half = out;
    if (s->out == LT_F32)
        f32[at] = s->accumulate ? f32[at] + sum : sum;
    else if (s->out == LT_BF16)
        half[at] = f32_to_bf16(s->accumulate ? bf16_to_f32(half[at]) + sum : sum);
    else
        half[at] = f32_to_f16(s->accumulate ? f16_to_f32(half[at]) + sum : sum);
}

static bool touch(const char *name, const void *p, size_t n) {
    if (fk_memory_may_touch((uintptr_t)p, n)) {
        fk_memory_open(p, n);
        return true;
    }
    fk_violate("a matrix product: %s: %zu bytes at %p, where the device may not", name, n, p);
    fk_lose("an illegal memory access was encountered: %s", fk.violation);
    return false;
}

uint64_t fk_lt_run(const fake_op *op) {
    const lt_shape *s = &op->shape;
    double us =
        2.0 * s->m * s->n * s->k / (double)(fk.opt.lt_flops_us > 0 ? fk.opt.lt_flops_us : 1);
    uint64_t ns = fk.opt.launch_us * 1000ull + (uint64_t)(us * 1000 * algos[op->lt_algo].slowness);
    if (!touch("x", op->src, span_bytes(s->m, s->x_stride, s->k, s->in)) ||
        !touch("w", op->w, span_bytes(s->n, s->w_stride, s->k, s->in)) ||
        !touch("out", op->dst, span_bytes(s->m, s->out_stride, s->n, s->out)) ||
        (op->n > 0 && !touch("workspace", op->workspace, op->n)))
        return ns;
    size_t n_x = (size_t)(s->m + ROWS_AT_ONCE - 1) * s->k; // with zeros for whole groups of rows
    float *x = calloc(n_x + s->k, sizeof *x);
    INFERD_CHECK(x != NULL);
    float *w = x + n_x;
    for (uint32_t i = 0; i < s->m; i++)
        row_to_f32(s->in, (const uint16_t *)op->src + (size_t)i * s->x_stride, s->k,
                   x + (size_t)i * s->k);
    if (op->n > 0) memset(op->workspace, SCRIBBLE, op->n);
    for (uint32_t j = 0; j < s->n; j++) {
        row_to_f32(s->in, (const uint16_t *)op->w + (size_t)j * s->w_stride, s->k, w);
        for (uint32_t i = 0; i < s->m; i += ROWS_AT_ONCE) {
            float sums[ROWS_AT_ONCE];
            products(x + (size_t)i * s->k, w, s->k, sums);
            for (uint32_t r = 0; r < ROWS_AT_ONCE && i + r < s->m; r++)
                store(s, op->dst, (size_t)(i + r) * s->out_stride + j, sums[r]);
        }
    }
    free(x);
    fk_wrong_product(op);
    fk.counts.n_lt++;
    return ns;
}

void fk_lt_api(cu_api *api) {
    api->lt_open = api_lt_open;
    api->lt_version = api_lt_version;
    api->lt_candidates = api_lt_candidates;
    api->lt_matmul = api_lt_matmul;
}
