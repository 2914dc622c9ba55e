/* lt_descriptors.c - what lt.c tells cuBLASLt, read back from the real library.
 *
 *     lt_descriptors [FILE OR FOLDER]    exit status 77: the library is not here
 *
 * The stand-in of test_cuda_real takes whatever the header allows; only the library itself says
 * that it understood.  Descriptors need no device.  The CUDA runtime is the stand-in: nothing here
 * multiplies. */
#include <dlfcn.h>
#include <stdio.h>

#include "cuda/real/lt_problem.h"
#include "cuda_real/stand_in.h"
#include "inferd/base.h"
#include "test.h"

static struct { // of the library that lt_open opened
    cublasStatus_t (*desc)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, void *, size_t,
                           size_t *);
    cublasStatus_t (*layout)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, void *,
                             size_t, size_t *);
    cublasStatus_t (*preference)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                 void *, size_t, size_t *);
} get;

static const lt_shape shapes[] = {
    /* m, n, k, strides of x, w, out */
    {1, 1, 8, 8, 8, 8, LT_BF16, LT_BF16, false},
    {65, 4096, 4096, 4096, 4096, 4096, LT_BF16, LT_BF16, false},
    {256, 14336, 4096, 4096, 4096, 14336, LT_BF16, LT_BF16, false},
    {2048, 4096, 14336, 14336, 14336, 4096, LT_BF16, LT_F32, true},
    {2048, 128256, 4096, 4096, 4096, 128256, LT_BF16, LT_F32, false},
    {96, 1024, 4096, 4104, 4096, 6144, LT_F16, LT_F16, false}, // rows further apart than long
    {4096, 576, 1536, 1536, 1536, 576, LT_F16, LT_F32, true},
};

static bool find_symbols(void) {
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD); // by its own name
    if (library == NULL) return false;
    void *found[3] = {dlsym(library, "cublasLtMatmulDescGetAttribute"),
                      dlsym(library, "cublasLtMatrixLayoutGetAttribute"),
                      dlsym(library, "cublasLtMatmulPreferenceGetAttribute")};
    memcpy(&get, found, sizeof get);
    return get.desc != NULL && get.layout != NULL && get.preference != NULL;
}

static void expect_attribute(const char *what, cublasStatus_t status, size_t n, size_t n_written,
                             int64_t got, int64_t want) {
    if (status == CUBLAS_STATUS_SUCCESS && n == n_written && got == want) return;
    printf("%s: status %d, %zu bytes (expected %zu), value %lld (expected %lld)\n", what,
           (int)status, n_written, n, (long long)got, (long long)want);
    test_failures++;
}

/* Attributes are signed or not; all of ours are far below the sign. */
static void expect_desc(lt_problem *p, cublasLtMatmulDescAttributes_t attribute, const char *what,
                        int32_t want) {
    int32_t got = -1;
    size_t n = 0;
    cublasStatus_t s = get.desc(&p->desc, attribute, &got, sizeof got, &n);
    expect_attribute(what, s, sizeof got, n, got, want);
}

static void expect_layout(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t attribute,
                          const char *what, size_t n, int64_t want) {
    int64_t got = 0; // little-endian: 4 or 8 bytes of it
    size_t n_written = 0;
    cublasStatus_t s = get.layout(l, attribute, &got, n, &n_written);
    expect_attribute(what, s, n, n_written, got, want);
}

static void expect_matrix(cublasLtMatrixLayout_t l, cudaDataType type, uint64_t rows, uint64_t cols,
                          int64_t ld) {
    expect_layout(l, CUBLASLT_MATRIX_LAYOUT_TYPE, "type", 4, (int64_t)type);
    expect_layout(l, CUBLASLT_MATRIX_LAYOUT_ORDER, "order", 4, CUBLASLT_ORDER_COL);
    expect_layout(l, CUBLASLT_MATRIX_LAYOUT_ROWS, "rows", 8, (int64_t)rows);
    expect_layout(l, CUBLASLT_MATRIX_LAYOUT_COLS, "columns", 8, (int64_t)cols);
    expect_layout(l, CUBLASLT_MATRIX_LAYOUT_LD, "leading dimension", 8, ld);
    expect_layout(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, "batch", 4, 1);
}

static cudaDataType data_type(lt_type t) {
    static const cudaDataType types[] = {
        [LT_BF16] = CUDA_R_16BF, [LT_F16] = CUDA_R_16F, [LT_F32] = CUDA_R_32F};
    return types[t];
}

/* out' (n x m) = transpose(w' (k x n)) * x' (k x m), column-major, sums and scale in float. */
static void products_are_described_as_meant(void) {
    for (size_t i = 0; i < INFERD_COUNT(shapes); i++) {
        const lt_shape *s = &shapes[i];
        lt_problem p;
        EXPECT_EQ(lt_describe(s, &p), CU_OK);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, "compute type", CUBLAS_COMPUTE_32F);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_SCALE_TYPE, "scale type", CUDA_R_32F);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_TRANSA, "operation of w", CUBLAS_OP_T);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_TRANSB, "operation of x", CUBLAS_OP_N);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_TRANSC, "operation of out", CUBLAS_OP_N);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_POINTER_MODE, "where alpha and beta are",
                    CUBLASLT_POINTER_MODE_HOST);
        expect_desc(&p, CUBLASLT_MATMUL_DESC_EPILOGUE, "epilogue", CUBLASLT_EPILOGUE_DEFAULT);
        expect_matrix(&p.w, data_type(s->in), s->k, s->n, s->w_stride);
        expect_matrix(&p.x, data_type(s->in), s->k, s->m, s->x_stride);
        expect_matrix(&p.out, data_type(s->out), s->n, s->m, s->out_stride);
    }
}

static void expect_preference(cublasLtMatmulPreferenceOpaque_t *p,
                              cublasLtMatmulPreferenceAttributes_t attribute, const char *what,
                              size_t n, int64_t want) {
    int64_t got = 0;
    size_t n_written = 0;
    cublasStatus_t s = get.preference(p, attribute, &got, n, &n_written);
    expect_attribute(what, s, n, n_written, got, want);
}

static void wishes_are_understood(void) {
    static const size_t workspaces[] = {0, 1 << 20, 32 << 20, (size_t)5 << 30};
    for (size_t i = 0; i < INFERD_COUNT(workspaces); i++) {
        cublasLtMatmulPreferenceOpaque_t p;
        EXPECT_EQ(lt_prefer(workspaces[i], &p), CU_OK);
        expect_preference(&p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, "workspace", 8,
                          (int64_t)workspaces[i]);
        expect_preference(&p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, "reduction", 4,
                          CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
        expect_preference(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, "alignment of w", 4,
                          LT_ALIGN);
        expect_preference(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, "alignment of x", 4,
                          LT_ALIGN);
        expect_preference(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, "alignment of out", 4,
                          LT_ALIGN);
        expect_preference(&p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, "alignment of out", 4,
                          LT_ALIGN);
    }
}

static void what_is_no_product_is_refused_before_the_library(void) {
    static const lt_shape bad[] = {
        {0, 8, 8, 8, 8, 8, LT_BF16, LT_BF16, false}, {8, 8, 16, 8, 16, 8, LT_BF16, LT_BF16, false},
        {8, 8, 8, 8, 8, 4, LT_BF16, LT_BF16, false}, {8, 8, 8, 8, 8, 8, LT_F32, LT_F32, false},
        {8, 8, 8, 8, 8, 8, LT_BF16, LT_F16, false},
    };
    lt_problem p;
    for (size_t i = 0; i < INFERD_COUNT(bad); i++) EXPECT_EQ(lt_describe(&bad[i], &p), CU_EINVAL);
}

static const test_case cases[] = {
    TEST(products_are_described_as_meant),
    TEST(wishes_are_understood),
    TEST(what_is_no_product_is_refused_before_the_library),
};

int main(int argc, char **argv) {
    enum { SKIPPED = 77 };
    said = (stand_in){.driver_version = 13000, .n_devices = 1};
    if (lt_open(argc > 1 ? argv[1] : NULL) != CU_OK) {
        printf("skipped: %s\n", real_text());
        return SKIPPED;
    }
    if (!find_symbols()) return printf("cuBLASLt has no calls that read descriptors back\n"), 1;
    printf("cuBLASLt %llu\n", (unsigned long long)lt_version());
    return test_run(cases, INFERD_COUNT(cases), 1, argv);
}
