/* cuda_rig.h - a device, real or not, with memory to put things in: for the tests of kernels.
 *
 * The same test program runs twice: with the fake of cu_api and kernels on emulated threads, and on
 * a GPU when INFERD_CUDA_MODULE names an inferd_cuda.so.  What the emulation can check and a GPU
 * cannot (bounds, leaks, order) is checked where it can be.
 *
 *     cuda_rig r;
 *     rig_open(&r);
 *     float *x = rig_put(&r, host_x, n_bytes);   // device memory
 *     launch_norm(&r.l, &args);
 *     if (rig_sync(&r)) rig_read(&r, host_out, out, n_bytes);
 *     rig_close(&r);                              // frees; expects that no rule was broken
 *
 * Memory is exactly as large as asked for and full of 0xFF: what a kernel forgets to write is not a
 * number, and what it touches past the end is a violation.
 *
 * Random numbers come from rig_seed; print the seed in messages of random tests. */
#ifndef INFERD_CUDA_RIG_H
#define INFERD_CUDA_RIG_H

#include <dlfcn.h>

#include "cuda/layout.h"
#include "cuda/module.h"
#include "cuda_emul/fake_api.h"
#include "gpu_calls.h"
#include "kernels/dtype.h"
#include "test.h"

const cuda_module *emul_module(void);

enum { RIG_ALLOCS_MAX = 4096, RIG_KERNELS_MAX = 1024 };

typedef struct cuda_rig {
    const cuda_module *module;
    const cu_api *api;
    cu_device device;
    launcher l;
    uint64_t n_by_kernel[RIG_KERNELS_MAX]; // launches by index in module->kernels
    void *allocs[RIG_ALLOCS_MAX];
    uint32_t n_allocs;
    void *library; // of the real module
    bool opened, lost;
} cuda_rig;

/* ---- opening ---- */

/* After a failed call: an EXPECT failure with the library's words. */
static inline bool rig_ok(cuda_rig *r, cu_result result, const char *what) {
    if (result == CU_OK) return true;
    if (result == CU_ELOST && r->lost) return false; // said once
    r->lost = result == CU_ELOST;
    test_failures++;
    printf("%s: result %d: %s\n", what, (int)result, r->api->text());
    return false;
}

static inline bool rig_is_real(const cuda_rig *r) {
    return r->library != NULL;
}

static inline void rig_find_module(cuda_rig *r) {
    const char *path = getenv("INFERD_CUDA_MODULE");
    if (path == NULL || path[0] == 0) {
        r->module = emul_module();
        return;
    }
    r->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cuda_module_fn *get = NULL;
    if (r->library != NULL) *(void **)&get = dlsym(r->library, CUDA_MODULE_SYMBOL);
    if (get == NULL) {
        printf("INFERD_CUDA_MODULE=%s: %s\n", path, dlerror());
        exit(1);
    }
    r->module = get();
    if (r->module->version != CUDA_MODULE_VERSION) {
        printf("%s is version %u, these tests were built for %d\n", path, r->module->version,
               CUDA_MODULE_VERSION);
        exit(1);
    }
}

/* With the options of the fake as they are: after fake_reset() and changes to fake_options(). */
static inline void rig_open_as_is(cuda_rig *r) {
    memset(r, 0, sizeof *r);
    rig_find_module(r);
    r->api = r->module->api;
    if (!rig_ok(r, r->api->init(), "init")) return;
    if (!rig_ok(r, r->api->device_about(0, &r->device), "device_about")) return;
    if (!rig_ok(r, r->api->device_use(0), "device_use")) return;
    r->l =
        (launcher){.module = r->module,
                   .api = r->api,
                   .device = &r->device,
                   .n_by_kernel = r->module->n_kernels <= RIG_KERNELS_MAX ? r->n_by_kernel : NULL};
    r->opened = rig_ok(r, r->api->stream_create(false, &r->l.stream), "stream_create");
}

static inline void rig_open(cuda_rig *r) {
    fake_reset();
    rig_open_as_is(r);
}

/* A device of that compute capability; on a GPU there is no choice: look at r->device. */
static inline void rig_open_cc(cuda_rig *r, uint32_t major, uint32_t minor) {
    fake_reset();
    fake_set_cc(major, minor);
    rig_open_as_is(r);
}

/* ---- memory ---- */

/* Everything queued is done; false (and an EXPECT failure) when a launch failed or a rule was
 * broken.  A failed launcher works again afterwards, unless the context is lost. */
static inline bool rig_sync(cuda_rig *r) {
    bool good = true;
    if (r->l.status != CU_OK) {
        printf("launch failed with %d: %s\n", (int)r->l.status, r->l.text);
        test_failures++;
        r->l.status = CU_OK;
        good = false;
    }
    good = rig_ok(r, r->api->stream_sync(r->l.stream), "stream_sync") && good;
    if (!rig_is_real(r) && fake_violations() > 0) {
        printf("%u rules broken, the last: %s\n", fake_violations(), fake_last_violation());
        fake_take_violations();
        test_failures++;
        good = false;
    }
    return good;
}

/* NULL and an EXPECT failure when there is no memory. */
static inline void *rig_alloc(cuda_rig *r, size_t n) {
    void *p = NULL;
    if (r->n_allocs == RIG_ALLOCS_MAX) {
        printf("more than %d allocations in one rig\n", RIG_ALLOCS_MAX);
        test_failures++;
        return NULL;
    }
    if (!rig_ok(r, r->api->alloc(size_max(n, 1), &p), "alloc")) return NULL;
    r->allocs[r->n_allocs++] = p;
    if (rig_is_real(r)) rig_ok(r, r->api->fill(p, 0xFF, size_max(n, 1), r->l.stream), "fill");
    return p;
}

static inline void rig_free(cuda_rig *r, void *p) {
    for (uint32_t i = 0; i < r->n_allocs; i++)
        if (r->allocs[i] == p) {
            r->allocs[i] = r->allocs[--r->n_allocs];
            rig_sync(r);
            rig_ok(r, r->api->free(p), "free");
            return;
        }
    EXPECT(p == NULL);
}

/* Both wait for what was launched before, and are done when they return. */
static inline void rig_write(cuda_rig *r, void *dst, const void *src, size_t n) {
    if (n == 0) return;
    rig_ok(r, r->api->copy_to_device(dst, src, n, r->l.stream), "copy_to_device");
    rig_sync(r);
}
static inline void rig_read(cuda_rig *r, void *dst, const void *src, size_t n) {
    if (n == 0) return;
    rig_ok(r, r->api->copy_to_host(dst, src, n, r->l.stream), "copy_to_host");
    rig_sync(r);
}

static inline void *rig_put(cuda_rig *r, const void *src, size_t n) {
    void *p = rig_alloc(r, n);
    if (p != NULL) rig_write(r, p, src, n);
    return p;
}

static inline void rig_fill(cuda_rig *r, void *dst, uint8_t byte, size_t n) {
    if (n > 0) rig_ok(r, r->api->fill(dst, byte, n, r->l.stream), "fill");
}

/* Launches of the kernel of that name since rig_open. */
static inline uint64_t rig_launches(const cuda_rig *r, const char *kernel) {
    const cu_kernel *k = module_find(r->module, kernel);
    EXPECT(k != NULL);
    return k == NULL ? 0 : r->n_by_kernel[k - r->module->kernels];
}

/* Gives everything back and expects that nothing else is held and no rule was broken. */
static inline void rig_close(cuda_rig *r) {
    if (r->opened) {
        rig_sync(r);
        for (uint32_t i = 0; i < r->n_allocs; i++) rig_ok(r, r->api->free(r->allocs[i]), "free");
        rig_ok(r, r->api->stream_destroy(r->l.stream), "stream_destroy");
    }
    if (rig_is_real(r)) {
        gpu_calls_add(r->lost ? 0 : r->l.n_launches);
        memset(r, 0, sizeof *r); // the library stays: its context does, too
        return;
    }
    EXPECT_EQ(fake_leaks(), 0);
    EXPECT_EQ(fake_violations(), 0);
    fake_reset();
    memset(r, 0, sizeof *r);
}

/* ---- numbers ---- */

static uint64_t rig_random_state = 1;
static inline void rig_seed(uint64_t seed) {
    rig_random_state = seed * 0x9e3779b97f4a7c15u + 1;
}
static inline uint32_t rig_u32(void) { // splitmix64, its upper half
    uint64_t z = rig_random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 32);
}
static inline uint32_t rig_below(uint32_t n) { // in [0, n)
    return (uint32_t)((uint64_t)rig_u32() * n >> 32);
}
static inline float rig_uniform(float low, float high) {
    return low + (high - low) * ((float)(rig_u32() >> 8) * 0x1p-24f);
}
/* Mean 0, variance 1 (Box-Muller). */
static inline float rig_normal(void) {
    double u = ((double)rig_u32() + 1.0) * 0x1p-32, v = (double)rig_u32() * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
/* n of them times scale; the caller frees. */
static inline float *rig_normals(size_t n, float scale) {
    float *p = malloc((n + 1) * sizeof *p);
    INFERD_CHECK(p != NULL);
    for (size_t i = 0; i < n; i++) p[i] = scale * rig_normal();
    return p;
}

static inline size_t rig_type_bytes(cu_type type) {
    return type == CU_F32 ? 4 : 2;
}
static inline const char *rig_type_name(cu_type type) {
    return type == CU_F32 ? "f32" : type == CU_BF16 ? "bf16" : "f16";
}
static inline float rig_round(cu_type type, float x) { // to the type and back
    return type == CU_F32    ? x
           : type == CU_BF16 ? bf16_to_f32(f32_to_bf16(x))
                             : f16_to_f32(f32_to_f16(x));
}
static inline void rig_round_all(cu_type type, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = rig_round(type, x[i]);
}
static inline void rig_from_f32(cu_type type, void *out, const float *x, size_t n) {
    uint16_t *half = out;
    if (type == CU_F32)
        memcpy(out, x, n * sizeof *x);
    else
        for (size_t i = 0; i < n; i++)
            half[i] = type == CU_BF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
}
static inline void rig_to_f32(cu_type type, float *out, const void *x, size_t n) {
    const uint16_t *half = x;
    if (type == CU_F32)
        memcpy(out, x, n * sizeof *out);
    else
        for (size_t i = 0; i < n; i++)
            out[i] = type == CU_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
}

/* Floats as elements of `type` in device memory, and back. */
static inline void *rig_put_f32(cuda_rig *r, cu_type type, const float *x, size_t n) {
    void *host = malloc(n * rig_type_bytes(type) + 1);
    INFERD_CHECK(host != NULL);
    rig_from_f32(type, host, x, n);
    void *p = rig_put(r, host, n * rig_type_bytes(type));
    free(host);
    return p;
}
static inline void rig_get_f32(cuda_rig *r, cu_type type, float *out, const void *src, size_t n) {
    void *host = malloc(n * rig_type_bytes(type) + 1);
    INFERD_CHECK(host != NULL);
    memset(host, 0xFF, n * rig_type_bytes(type));
    rig_read(r, host, src, n * rig_type_bytes(type));
    rig_to_f32(type, out, host, n);
    free(host);
}

/* ||got - want|| / ||want||; of the difference alone when want is 0; infinite when anything is not
 * finite. */
static inline double rig_error(const float *got, const double *want, size_t n) {
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)got[i] - want[i];
        d += x * x;
        w += want[i] * want[i];
    }
    double e = w > 0 ? sqrt(d / w) : sqrt(d);
    return isfinite(e) ? e : INFINITY;
}
static inline double rig_error_f32(const float *got, const float *want, size_t n) {
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)got[i] - (double)want[i];
        d += x * x;
        w += (double)want[i] * (double)want[i];
    }
    double e = w > 0 ? sqrt(d / w) : sqrt(d);
    return isfinite(e) ? e : INFINITY;
}
/* The largest |got - want|. */
static inline double rig_error_max(const float *got, const double *want, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double x = fabs((double)got[i] - want[i]);
        if (!(x <= worst)) worst = isfinite(x) ? x : INFINITY;
    }
    return worst;
}

/* How large rig_error may be, by operation and the type of its output.  The reference is a formula
 * in double on inputs that are exact in their type, so what is left is the rounding of the output
 * (evenly spread over half a step: relative 2^-9 / sqrt(3) = 1.1e-3 for bf16, 1.4e-4 for f16; the
 * table allows two and a half times that) and of whatever the kernel rounds in between. */
static const struct {
    const char *op;
    double f32, bf16, f16;
} rig_tolerances[] = {
    {"copy", 0, 0, 0},                      // gathers, stores: the same bits
    {"embed", 1e-6, 3e-3, 4e-4},            // value * scale
    {"norm", 2e-6, 3e-3, 4e-4},             //
    {"rope", 1e-6, 3e-3, 4e-4},             //
    {"glu", 2e-6, 3e-3, 4e-4},              //
    {"add", 1e-7, 3e-3, 4e-4},              //
    {"softcap", 2e-6, 3e-3, 4e-4},          //
    {"expand", 1e-7, 3e-3, 4e-4},           // a dequantised weight
    {"matmul", 2e-5, 3e-3, 5e-4},           // 16-bit weights: products are exact, sums are float
    {"matmul quantised", 3e-3, 5e-3, 2e-3}, // codes become the activations' type: bf16 rounds them
    {"attention", 5e-3, 8e-3, 1.5e-3},      // probabilities are rounded to the inner type
};

static inline double rig_tolerance(const char *op, cu_type type) {
    for (size_t i = 0; i < INFERD_COUNT(rig_tolerances); i++)
        if (strcmp(rig_tolerances[i].op, op) == 0)
            return type == CU_F32    ? rig_tolerances[i].f32
                   : type == CU_BF16 ? rig_tolerances[i].bf16
                                     : rig_tolerances[i].f16;
    printf("no tolerance for %s\n", op);
    test_failures++;
    return 0;
}

/* got is within the operation's tolerance of want; says how far and which seed. */
static inline bool rig_near(const char *op, cu_type type, const float *got, const double *want,
                            size_t n, const char *what) {
    double e = rig_error(got, want, n), t = rig_tolerance(op, type);
    if (e <= t) return true;
    printf("%s (%s, %s): relative error %.3g, allowed %.3g", what, op, rig_type_name(type), e, t);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= 4 * t * (fabs(want[i]) + 1e-3))) {
            printf("; first far element [%zu] is %.9g, expected %.9g", i, (double)got[i], want[i]);
            break;
        }
    printf("\n");
    test_failures++;
    return false;
}

#endif
