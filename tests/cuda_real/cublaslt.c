/* cublaslt.c - libcublasLt.so.13 of test_cuda_real: descriptors as the header says, and products
 * done in the library's words: column-major, operations, leading dimensions.
 *
 * It has a symbol of its own, stand_in_lt, by which the test makes it fail. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

extern cublasStatus_t stand_in_lt;
cublasStatus_t stand_in_lt = CUBLAS_STATUS_SUCCESS; // what the product, and the search, return

typedef struct desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t a, b;
} desc;
typedef struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
} layout;
typedef struct preference {
    uint64_t workspace;
    uint32_t reduction, align[4];
} preference;
_Static_assert(sizeof(desc) <= sizeof(cublasLtMatmulDescOpaque_t), "desc");
_Static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "layout");
_Static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "preference");

size_t cublasLtGetVersion(void) {
    const char *version = getenv("STAND_IN_LT_VERSION");
    return version != NULL ? (size_t)atoi(version) : 130100;
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value" : "a failure";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    static int handle;
    *out = (cublasLtHandle_t)(void *)&handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t n,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    desc init = {.compute = compute, .scale = scale, .a = CUBLAS_OP_N, .b = CUBLAS_OP_N};
    memset(d, 0, n);
    memcpy(d, &init, sizeof init);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t n) {
    desc now;
    memcpy(&now, d, sizeof now);
    if (what == CUBLASLT_MATMUL_DESC_TRANSA)
        memcpy(&now.a, value, n);
    else if (what == CUBLASLT_MATMUL_DESC_TRANSB)
        memcpy(&now.b, value, n);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(d, &now, sizeof now);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t l, size_t n,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
    layout init = {.type = type, .rows = rows, .cols = cols, .ld = ld};
    memset(l, 0, n);
    memcpy(l, &init, sizeof init);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t n) {
    memset(p, 0, n);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t n) {
    preference now;
    memcpy(&now, p, sizeof now);
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        memcpy(&now.workspace, value, n);
    else if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&now.reduction, value, n);
    else if (what >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
             what <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
        memcpy(&now.align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, n);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(p, &now, sizeof now);
    return CUBLAS_STATUS_SUCCESS;
}

/* Five algorithms: the third does not work, the last needs 64 MiB.  Their bytes tell what was
 * asked. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t p, int n_asked,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *n_found) {
    (void)handle, (void)d, (void)a, (void)b, (void)c, (void)out;
    preference asked;
    memcpy(&asked, p, sizeof asked);
    *n_found = n_asked < 5 ? n_asked : 5;
    for (int i = 0; i < *n_found; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].algo.data[0] = (uint64_t)i + 100;
        results[i].algo.data[1] = asked.workspace;
        results[i].algo.data[2] = asked.reduction;
        results[i].algo.data[3] = asked.align[0];
        results[i].algo.data[4] = asked.align[1] & asked.align[2] & asked.align[3];
        results[i].workspaceSize = i == 4 ? (size_t)64 << 20 : (size_t)i << 10;
        results[i].state = i == 2 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return stand_in_lt;
}

static float get(const void *p, cudaDataType type, uint64_t i) {
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    uint16_t bits = ((const uint16_t *)p)[i];
    return type == CUDA_R_16F ? f16_to_f32(bits) : bf16_to_f32(bits);
}
static void put(void *p, cudaDataType type, uint64_t i, float v) {
    if (type == CUDA_R_32F)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = type == CUDA_R_16F ? f32_to_f16(v) : f32_to_bf16(v);
}
/* Element (row, col) of op(matrix). */
static float at(const void *p, const layout *l, cublasOperation_t op, uint64_t row, uint64_t col) {
    uint64_t r = op == CUBLAS_OP_N ? row : col, c = op == CUBLAS_OP_N ? col : row;
    return get(p, l->type, r + c * (uint64_t)l->ld);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t md, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t ma, const void *b,
                              cublasLtMatrixLayout_t mb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t mc, void *out, cublasLtMatrixLayout_t mo,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t s) {
    (void)handle, (void)workspace, (void)workspace_bytes, (void)s;
    if (stand_in_lt != CUBLAS_STATUS_SUCCESS) return stand_in_lt;
    desc d;
    layout la, lb, lc, lo;
    memcpy(&d, md, sizeof d);
    memcpy(&la, ma, sizeof la);
    memcpy(&lb, mb, sizeof lb);
    memcpy(&lc, mc, sizeof lc);
    memcpy(&lo, mo, sizeof lo);
    uint64_t m = d.a == CUBLAS_OP_N ? la.rows : la.cols, k = d.a == CUBLAS_OP_N ? la.cols : la.rows;
    uint64_t n = d.b == CUBLAS_OP_N ? lb.cols : lb.rows;
    if (algo->data[0] < 100 || d.compute != CUBLAS_COMPUTE_32F || d.scale != CUDA_R_32F ||
        m != lo.rows || n != lo.cols || k != (d.b == CUBLAS_OP_N ? lb.rows : lb.cols) ||
        lc.rows != lo.rows || lc.cols != lo.cols || lc.type != lo.type ||
        (uint64_t)la.ld < la.rows || (uint64_t)lb.ld < lb.rows || (uint64_t)lo.ld < lo.rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (uint64_t col = 0; col < n; col++)
        for (uint64_t row = 0; row < m; row++) {
            float sum = 0;
            for (uint64_t i = 0; i < k; i++)
                sum += at(a, &la, d.a, row, i) * at(b, &lb, d.b, i, col);
            sum *= *(const float *)alpha;
            if (*(const float *)beta != 0)
                sum += *(const float *)beta * at(c, &lc, CUBLAS_OP_N, row, col);
            put(out, lo.type, row + col * (uint64_t)lo.ld, sum);
        }
    return CUBLAS_STATUS_SUCCESS;
}
