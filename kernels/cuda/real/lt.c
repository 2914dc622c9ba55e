/* lt.c - large matrices by cuBLASLt, which is opened at run time.
 *
 * The library is half a gigabyte and not part of inferd; it is searched in this order, and only
 * version 13 has the structs that this file was compiled with:
 *
 *     a configured file or folder                      nothing else is tried then
 *     the loader's path
 *     the toolkit     CUDA_HOME, CUDA_PATH, /usr/local/cuda, /usr/local/cuda-13*
 *     Python          nvidia/cu13/lib and nvidia/cublas/lib in the usual site-packages folders
 *
 * cuBLASLt is column-major.  A row-major matrix is the transpose of a column-major one, so
 *
 *     out[m, n] = x[m, k] . w[n, k]     row-major, is
 *     out' (n x m) = transpose(w' (k x n)) * x' (k x m)     column-major, the same bytes
 *
 * with A = w transposed, B = x, leading dimensions the strides.  Sums are float; split-K only with
 * partial sums in float that a second step adds, so the same algorithm gives the same bits each
 * time.
 *
 * Thread: any; the library's handle of a device is made under a lock and then only read. */
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda/real/lt_problem.h"

#define LT_FILE "libcublasLt.so.13"
enum { LT_MAJOR = 13, LT_CANDIDATES_MAX = 32, LT_DEVICES_MAX = 64, LT_PATH_BYTES = 4096 };
_Static_assert(CUBLAS_VER_MAJOR == LT_MAJOR, "compiled with the headers of another cuBLASLt");
_Static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof((lt_algo){0}.opaque), "lt_algo.opaque");

static struct {
    size_t (*version)(void);
    const char *(*status_string)(cublasStatus_t);
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                             cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                             const void *, const void *, cublasLtMatrixLayout_t, void *,
                             cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,
                             cudaStream_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                                cublasLtMatmulHeuristicResult_t[], int *);
    cublasStatus_t (*layout_init)(cublasLtMatrixLayout_t, size_t, cudaDataType, uint64_t, uint64_t,
                                  int64_t);
    cublasStatus_t (*desc_init)(cublasLtMatmulDesc_t, size_t, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *,
                               size_t);
    cublasStatus_t (*preference_init)(cublasLtMatmulPreference_t, size_t);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t,
                                     cublasLtMatmulPreferenceAttributes_t, const void *, size_t);
} lt;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool opened;
static _Atomic(cublasLtHandle_t) handles[LT_DEVICES_MAX]; // never destroyed

/* ---- finding the library ---- */

/* False: `file` is not the library, and `why` has the reason. */
static bool open_file(const char *file, char *why, size_t why_bytes) {
    static const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"cublasLtGetVersion", &lt.version},
        {"cublasLtGetStatusString", &lt.status_string},
        {"cublasLtCreate", &lt.create},
        {"cublasLtMatmul", &lt.matmul},
        {"cublasLtMatmulAlgoGetHeuristic", &lt.heuristic},
        {"cublasLtMatrixLayoutInit_internal", &lt.layout_init},
        {"cublasLtMatmulDescInit_internal", &lt.desc_init},
        {"cublasLtMatmulDescSetAttribute", &lt.desc_set},
        {"cublasLtMatmulPreferenceInit_internal", &lt.preference_init},
        {"cublasLtMatmulPreferenceSetAttribute", &lt.preference_set},
    };
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, why_bytes, "%s", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *fn = dlsym(library, symbols[i].name);
        if (fn == NULL) {
            snprintf(why, why_bytes, "%s has no %s", file, symbols[i].name);
            dlclose(library);
            return false;
        }
        memcpy(symbols[i].slot, &fn, sizeof fn);
    }
    size_t version = lt.version();
    if (version / 10000 == LT_MAJOR) return true;
    snprintf(why, why_bytes, "%s is version %zu.%zu, this build needs %d", file, version / 10000,
             version % 10000 / 100, LT_MAJOR);
    dlclose(library);
    return false;
}

/* Every file that the pattern names, in order. */
static bool open_matching(const char *pattern) {
    char why[CU_TEXT_BYTES];
    glob_t found;
    bool open = false;
    if (glob(pattern, GLOB_BRACE, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !open; i++)
            open = open_file(found.gl_pathv[i], why, sizeof why);
    globfree(&found);
    return open;
}

static bool open_below(const char *folder, const char *rest) {
    char pattern[LT_PATH_BYTES];
    if (folder == NULL || folder[0] != '/') return false; // unset, or a relative path
    int n = snprintf(pattern, sizeof pattern, "%s/%s", folder, rest);
    return n > 0 && (size_t)n < sizeof pattern && open_matching(pattern);
}

static bool open_toolkit(void) {
    return open_below(getenv("CUDA_HOME"), "lib64/" LT_FILE) ||
           open_below(getenv("CUDA_PATH"), "lib64/" LT_FILE) ||
           open_matching("/usr/local/cuda/lib64/" LT_FILE) ||
           open_matching("/usr/local/cuda-13*/lib64/" LT_FILE) ||
           open_matching("/opt/cuda/lib64/" LT_FILE) ||
           open_below(getenv("CONDA_PREFIX"), "lib/" LT_FILE);
}

static bool open_python(void) {
#define PACKAGES "{site,dist}-packages/nvidia/{cu13,cublas}/lib/" LT_FILE
    static const struct {
        const char *env, *rest; // env: the folder it names; NULL: rest is the whole path
    } places[] = {
        {"VIRTUAL_ENV", "lib/python3*/" PACKAGES},     {"CONDA_PREFIX", "lib/python3*/" PACKAGES},
        {"HOME", ".local/lib/python3*/" PACKAGES},     {NULL, "/usr/local/lib/python3*/" PACKAGES},
        {NULL, "/usr/lib/python3*/" PACKAGES},         {NULL, "/opt/*/lib/python3*/" PACKAGES},
        {NULL, "/opt/*/.venv/lib/python3*/" PACKAGES},
    };
#undef PACKAGES
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (places[i].env == NULL ? open_matching(places[i].rest)
                                  : open_below(getenv(places[i].env), places[i].rest))
            return true;
    return false;
}

static cu_result open_configured(const char *path) {
    char file[LT_PATH_BYTES], why[CU_TEXT_BYTES];
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int n = snprintf(file, sizeof file, "%s%s", path, folder ? "/" LT_FILE : "");
    if (n < 0 || (size_t)n >= sizeof file)
        return real_fail(CU_EUNSUPPORTED, "cuBLASLt: the configured path has more than %zu bytes",
                         sizeof file - 1);
    if (!open_file(file, why, sizeof why))
        return real_fail(CU_EUNSUPPORTED, "cuBLASLt from the configured path: %s", why);
    return CU_OK;
}

static cu_result open_anywhere(void) {
    char why[CU_TEXT_BYTES];
    if (open_file(LT_FILE, why, sizeof why) || open_toolkit() || open_python()) return CU_OK;
    return real_fail(
        CU_EUNSUPPORTED,
        "cuBLASLt %d (%s) is not on the loader's path, in a CUDA toolkit or in Python's "
        "nvidia packages: install libcublas-13-0 (apt) or nvidia-cublas (pip), or "
        "configure its path",
        LT_MAJOR, LT_FILE);
}

cu_result lt_open(const char *path) {
    pthread_mutex_lock(&lock);
    cu_result result = CU_OK;
    if (!atomic_load(&opened)) {
        result = path != NULL && path[0] != 0 ? open_configured(path) : open_anywhere();
        if (result == CU_OK) atomic_store(&opened, true);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

uint64_t lt_version(void) {
    return atomic_load(&opened) ? lt.version() : 0;
}

/* ---- multiplying ---- */

/* The library's own error may hide that the context is gone; any runtime call then returns it. */
static cu_result result_of(const char *call, cublasStatus_t status, const lt_shape *s) {
    if (status == CUBLAS_STATUS_SUCCESS) return CU_OK;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t e = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (e != cudaSuccess) {
        cu_result result = real_result(call, e);
        if (result == CU_ELOST) return result;
    }
    cu_result result = status == CUBLAS_STATUS_ALLOC_FAILED      ? CU_ENOMEM
                       : status == CUBLAS_STATUS_INVALID_VALUE   ? CU_EINVAL
                       : status == CUBLAS_STATUS_NOT_SUPPORTED   ? CU_EUNSUPPORTED
                       : status == CUBLAS_STATUS_ARCH_MISMATCH   ? CU_EUNSUPPORTED
                       : status == CUBLAS_STATUS_NOT_INITIALIZED ? CU_ENODEVICE
                                                                 : CU_EFAILED;
    if (s == NULL) return real_fail(result, "%s: %s (%d)", call, lt.status_string(status), status);
    return real_fail(result, "%s of [%u, %u] x [%u, %u]: %s (%d)", call, s->m, s->k, s->n, s->k,
                     lt.status_string(status), status);
}

static cu_result handle_of_device(cublasLtHandle_t *out) {
    int device = 0;
    *out = NULL;
    if (!atomic_load_explicit(&opened, memory_order_acquire))
        return real_fail(CU_EUNSUPPORTED, "cuBLASLt is not open");
    cu_result result = real_result("cudaGetDevice", cudaGetDevice(&device));
    if (result != CU_OK) return result;
    if (device < 0 || device >= LT_DEVICES_MAX)
        return real_fail(CU_EUNSUPPORTED, "cuBLASLt: device %d, at most %d are supported", device,
                         LT_DEVICES_MAX);
    *out = atomic_load_explicit(&handles[device], memory_order_acquire);
    if (*out != NULL) return CU_OK;
    pthread_mutex_lock(&lock);
    *out = atomic_load(&handles[device]);
    if (*out == NULL) {
        result = result_of("cublasLtCreate", lt.create(out), NULL);
        if (result == CU_OK) atomic_store_explicit(&handles[device], *out, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static cudaDataType data_type(lt_type type) {
    return type == LT_BF16 ? CUDA_R_16BF : type == LT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

cu_result lt_describe(const lt_shape *s, lt_problem *p) {
    cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    if (s->m == 0 || s->n == 0 || s->k == 0 || s->x_stride < s->k || s->w_stride < s->k ||
        s->out_stride < s->n || s->in == LT_F32 || (s->out != LT_F32 && s->out != s->in))
        return real_fail(CU_EINVAL,
                         "matmul of [%u, %u] x [%u, %u] with strides %u, %u, %u and types %d, %d",
                         s->m, s->k, s->n, s->k, s->x_stride, s->w_stride, s->out_stride,
                         (int)s->in, (int)s->out);
    cublasStatus_t e = lt.desc_init(&p->desc, sizeof p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.desc_set(&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.desc_set(&p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.layout_init(&p->w, sizeof p->w, data_type(s->in), s->k, s->n, s->w_stride);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.layout_init(&p->x, sizeof p->x, data_type(s->in), s->k, s->m, s->x_stride);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.layout_init(&p->out, sizeof p->out, data_type(s->out), s->n, s->m, s->out_stride);
    return result_of("cublasLt layout", e, s);
}

cu_result lt_prefer(size_t workspace_bytes, cublasLtMatmulPreferenceOpaque_t *out) {
    const uint64_t workspace = workspace_bytes;
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = LT_ALIGN;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    cublasStatus_t e = lt.preference_init(out, sizeof *out);
    for (size_t i = 0; e == CUBLAS_STATUS_SUCCESS && i < sizeof wishes / sizeof wishes[0]; i++)
        e = lt.preference_set(out, wishes[i].what, wishes[i].value, wishes[i].bytes);
    return result_of("cublasLtMatmulPreference", e, NULL);
}

cu_result lt_candidates(const lt_shape *shape, size_t workspace_bytes, uint32_t n_max, lt_algo *out,
                        uint32_t *n) {
    cublasLtHandle_t handle;
    lt_problem p;
    cublasLtMatmulPreferenceOpaque_t preference;
    *n = 0;
    cu_result result = handle_of_device(&handle);
    if (result == CU_OK) result = lt_describe(shape, &p);
    if (result == CU_OK) result = lt_prefer(workspace_bytes, &preference);
    if (result != CU_OK) return result;
    cublasLtMatmulHeuristicResult_t found[LT_CANDIDATES_MAX];
    int n_found = 0, n_asked = n_max < LT_CANDIDATES_MAX ? (int)n_max : LT_CANDIDATES_MAX;
    cublasStatus_t e = lt.heuristic(handle, &p.desc, &p.w, &p.x, &p.out, &p.out, &preference,
                                    n_asked, found, &n_found);
    if (e != CUBLAS_STATUS_SUCCESS) return result_of("cublasLtMatmulAlgoGetHeuristic", e, shape);
    for (int i = 0; i < n_found; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > workspace_bytes)
            continue;
        memcpy(out[*n].opaque, &found[i].algo, sizeof out[*n].opaque);
        out[*n].workspace_bytes = found[i].workspaceSize;
        ++*n;
    }
    return *n > 0 ? CU_OK
                  : result_of("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED, shape);
}

cu_result lt_matmul(const lt_shape *shape, const lt_algo *algo, const void *x, const void *w,
                    void *out, void *workspace, size_t workspace_bytes, cu_stream s) {
    cublasLtHandle_t handle;
    lt_problem p;
    cublasLtMatmulAlgo_t chosen;
    const float alpha = 1, beta = shape->accumulate ? 1 : 0;
    cu_result result = handle_of_device(&handle);
    if (result == CU_OK) result = lt_describe(shape, &p);
    if (result != CU_OK) return result;
    if (((uintptr_t)x | (uintptr_t)w | (uintptr_t)out) % LT_ALIGN != 0)
        return real_fail(CU_EINVAL, "cublasLtMatmul: x %p, w %p and out %p must be aligned to %d",
                         x, w, out, LT_ALIGN);
    if (algo->workspace_bytes > workspace_bytes)
        return real_fail(CU_EINVAL, "cublasLtMatmul: the algorithm needs %zu bytes, %zu are there",
                         algo->workspace_bytes, workspace_bytes);
    memcpy(&chosen, algo->opaque, sizeof chosen);
    return result_of("cublasLtMatmul",
                     lt.matmul(handle, &p.desc, &alpha, w, &p.w, x, &p.x, &beta, out, &p.out, out,
                               &p.out, &chosen, workspace, workspace_bytes, (cudaStream_t)s),
                     shape);
}
