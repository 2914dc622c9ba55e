/* selftest_check.c - memory, launch and comparison of one check; see selftest_check.h.
 *
 * A kernel that never ends would block every call that waits, so the end is detected by polling an
 * event.  After such a kernel, or a lost context, nothing is given back: the process ends.
 *
 * Thread: one. */
#include "cuda/selftest_check.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "cuda/formats.h"

/* ---- a check ---- */

inferd_status check_open(check *c, const cuda_module *m, uint32_t index, const cu_device *device,
                         const char *off, self_test_tell *tell, void *ctx, inferd_err *err) {
    *c = (check){.api = m->api, .device = *device, .tell = tell, .ctx = ctx};
    c->row.index = index;
    c->l = (launcher){.module = m, .api = m->api, .device = &c->device, .parts = &c->parts};
    inferd_status s = parts_init(&c->parts, off, err);
    if (s != INFERD_OK) return s;
    parts_look(&c->parts, device);
    c->l.n_by_kernel = calloc(size_max(m->n_kernels, 1), sizeof *c->l.n_by_kernel);
    c->n_before = calloc(size_max(m->n_kernels, 1), sizeof *c->n_before);
    if (c->l.n_by_kernel == NULL || c->n_before == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u counters", m->n_kernels);
    cu_result r = m->api->device_use(index);
    if (r == CU_OK) r = m->api->stream_create(false, &c->l.stream);
    if (r == CU_OK) r = m->api->event_create(false, &c->ended);
    return r == CU_OK ? INFERD_OK : cu_fail(m->api, r, err, "opening the device");
}

static void give_back(check *c) {
    if (c->lost || c->hung) return;
    while (c->n_allocs > 0) c->api->free(c->allocs[--c->n_allocs]);
}

void check_close(check *c) {
    give_back(c);
    if (!c->lost && !c->hung) {
        if (c->ended != NULL) c->api->event_destroy(c->ended);
        if (c->l.stream != NULL) c->api->stream_destroy(c->l.stream);
    }
    free(c->l.n_by_kernel);
    free(c->n_before);
}

bool check_begin(check *c, const char *format, ...) {
    if (c->lost || c->hung) return false;
    give_back(c);
    va_list args;
    va_start(args, format);
    vsnprintf(c->name, sizeof c->name, format, args);
    va_end(args);
    memcpy(c->n_before, c->l.n_by_kernel, c->l.module->n_kernels * sizeof *c->n_before);
    c->row = (self_test_row){.index = c->row.index, .name = c->name, .kernel = ""};
    c->told = false;
    return true;
}

static void tell(check *c) {
    if (c->told) return; // the first failure of a check is the cause
    c->told = true;
    c->n_right += c->row.result == SELF_TEST_OK;
    c->tell(&c->row, c->ctx);
}

static void fail(check *c, cu_result r, const char *text) {
    c->row.result = SELF_TEST_FAILED;
    snprintf(c->row.text, sizeof c->row.text, "%s", text);
    if (r == CU_ELOST && !c->lost) {
        c->lost = true;
        inferd_fail(&c->why, INFERD_ELOST, "%s (%s): %.300s", c->row.name, c->row.kernel, text);
    }
    tell(c);
}

static bool good(check *c, cu_result r, const char *what) {
    if (r == CU_OK) return true;
    inferd_err err = {0};
    cu_fail(c->api, r, &err, what);
    fail(c, r, err.text);
    return false;
}

void check_about(check *c, const char *kernel) {
    c->row.kernel = kernel;
}

void check_skip(check *c, const char *kernel, const char *why) {
    c->row.kernel = kernel;
    c->row.result = SELF_TEST_SKIPPED;
    snprintf(c->row.text, sizeof c->row.text, "%s", why);
    tell(c);
}

void check_fail(check *c, const char *kernel, const char *why) {
    c->row.kernel = kernel;
    fail(c, CU_EFAILED, why);
}

void check_end(check *c) {
    tell(c);
}

/* ---- memory ---- */

void *check_room(check *c, size_t n) {
    void *p = NULL;
    n = size_max(n, 16);
    INFERD_CHECK(c->n_allocs < CHECK_ALLOCS_MAX);
    if (c->told || !good(c, c->api->alloc(n, &p), "taking memory")) return NULL;
    c->allocs[c->n_allocs++] = p;
    good(c, c->api->fill(p, 0xff, n, c->l.stream), "filling memory");
    return p;
}

void *check_zeros(check *c, size_t n) {
    void *p = check_room(c, n);
    if (p != NULL) good(c, c->api->fill(p, 0, size_max(n, 16), c->l.stream), "filling memory");
    return p;
}

void *check_put(check *c, const void *host, size_t n) {
    void *p = check_room(c, n);
    if (p != NULL) good(c, c->api->copy_to_device(p, host, n, c->l.stream), "copying");
    return p;
}

/* ---- running ---- */

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Wait for the end of the launches; false: a failure was reported. */
static bool wait_end(check *c) {
    if (!good(c, c->api->event_record(c->ended, c->l.stream), "waiting")) return false;
    uint64_t begin = now_ms();
    cu_result r;
    while ((r = c->api->event_query(c->ended)) == CU_NOT_READY) {
        if (now_ms() - begin > CHECK_END_MS) {
            char text[96];
            c->hung = true;
            snprintf(text, sizeof text, "it did not end within %d s", CHECK_END_MS / 1000);
            inferd_fail(&c->why, INFERD_ELOST, "%s (%s): %s", c->row.name, c->row.kernel, text);
            fail(c, CU_EFAILED, text);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return good(c, r, "running");
}

bool check_ready(check *c) {
    return !c->told && wait_end(c);
}

/* The kernel that this check launched, if it did not name one.  A refused launch is not counted;
 * the launcher's text begins with its name. */
static void name_kernel(check *c) {
    const cuda_module *m = c->l.module;
    size_t n = c->l.status != CU_OK ? strcspn(c->l.text, ":") : 0;
    for (uint32_t i = 0; i < m->n_kernels && c->row.kernel[0] == 0; i++) {
        const char *name = m->kernels[i].name;
        bool refused = n > 0 && strlen(name) == n && strncmp(name, c->l.text, n) == 0;
        if (refused || c->l.n_by_kernel[i] > c->n_before[i]) c->row.kernel = name;
    }
}

bool check_run(check *c) {
    name_kernel(c);
    if (c->l.status != CU_OK) {
        cu_result r = c->l.status;
        c->l.status = CU_OK;
        fail(c, r, c->l.text);
        return false;
    }
    return !c->told && wait_end(c);
}

void check_get(check *c, void *host, const void *device, size_t n) {
    memset(host, 0xff, n);
    if (c->told) return;
    cu_result r = c->api->copy_to_host(host, device, n, c->l.stream);
    if (r == CU_OK) r = c->api->stream_sync(c->l.stream);
    good(c, r, "reading the result");
}

/* ---- comparing ---- */

static void keep_wrong(check *c, const char *what, size_t i, uint32_t width, double got,
                       double want, double bound) {
    self_test_row *r = &c->row;
    r->result = SELF_TEST_WRONG;
    r->got = got;
    r->expected = want;
    r->bound = bound;
    if (width == 0)
        snprintf(r->where, sizeof r->where, "%s[%zu]", what, i);
    else
        snprintf(r->where, sizeof r->where, "%s[%zu, %zu]", what, i / width, i % width);
}

void check_words(check *c, const char *what, const uint32_t *got, const uint32_t *want, size_t n,
                 uint32_t width) {
    for (size_t i = 0; i < n && c->row.result == SELF_TEST_OK; i++)
        if (got[i] != want[i]) keep_wrong(c, what, i, width, got[i], want[i], 0);
}

void check_halves(check *c, const char *what, const uint16_t *got, const uint16_t *want, size_t n,
                  uint32_t width) {
    for (size_t i = 0; i < n && c->row.result == SELF_TEST_OK; i++)
        if (got[i] != want[i]) keep_wrong(c, what, i, width, got[i], want[i], 0);
}

void check_values(check *c, const char *what, const double *got, const double *want, size_t n,
                  uint32_t width, double relative, double absolute) {
    for (size_t i = 0; i < n && c->row.result == SELF_TEST_OK; i++) {
        double bound = relative * fabs(want[i]) + absolute;
        if (got[i] == want[i] || fabs(got[i] - want[i]) <= bound) continue;
        keep_wrong(c, what, i, width, got[i], want[i], bound);
    }
}

/* ---- numbers ---- */

size_t type_bytes(cu_type type) {
    return type == CU_F32 ? 4 : 2;
}

const char *type_name(cu_type type) {
    return type == CU_F32 ? "f32" : type == CU_BF16 ? "bf16" : "f16";
}

typedef struct form {
    int mantissa, bias, bits;
} form;

static form form_of(cu_type type) {
    static const form forms[] = {
        [CU_F32] = {23, 127, 32}, [CU_BF16] = {7, 127, 16}, [CU_F16] = {10, 15, 16}};
    return forms[type];
}

/* A number is units * 2^(e - mantissa), with 2^mantissa <= units < 2^(mantissa + 1) but below the
 * smallest exponent.  Units that round up to the next power carry into the exponent by themselves.
 */
uint32_t type_encode(cu_type type, double v) {
    form f = form_of(type);
    uint32_t sign = signbit(v) ? 1u << (f.bits - 1) : 0;
    uint32_t infinite = ((2u * (uint32_t)f.bias) + 1u) << f.mantissa;
    if (isnan(v)) return infinite | 1u << (f.mantissa - 1);
    if (isinf(v)) return sign | infinite;
    if (v == 0) return sign;
    int e;
    frexp(v, &e);
    e -= 1;
    if (e > f.bias + 1) return sign | infinite;
    if (e < 1 - f.bias) e = 1 - f.bias;
    uint32_t units = (uint32_t)nearbyint(ldexp(fabs(v), f.mantissa - e));
    uint32_t bits = ((uint32_t)(e + f.bias - 1) << f.mantissa) + units;
    return sign | u32_min(bits, infinite);
}

double type_decode(cu_type type, uint32_t bits) {
    form f = form_of(type);
    uint32_t units = bits & ((1u << f.mantissa) - 1u);
    uint32_t e = bits >> f.mantissa & (2u * (uint32_t)f.bias + 1u);
    double sign = bits >> (f.bits - 1) & 1u ? -1 : 1;
    if (e == 2u * (uint32_t)f.bias + 1u) return units != 0 ? NAN : sign * INFINITY;
    if (e > 0)
        units |= 1u << f.mantissa;
    else
        e = 1;
    return sign * ldexp(units, (int)e - f.bias - f.mantissa);
}

double type_round(cu_type type, double v) {
    return type_decode(type, type_encode(type, v));
}

double type_rounding(cu_type type) {
    return ldexp(1, -form_of(type).mantissa - 1);
}

void *check_put_values(check *c, cu_type type, const double *v, size_t n) {
    unsigned char *host = malloc(n * type_bytes(type));
    INFERD_CHECK(host != NULL);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = type_encode(type, v[i]);
        memcpy(host + i * type_bytes(type), &bits, type_bytes(type)); // little-endian
    }
    void *p = check_put(c, host, n * type_bytes(type));
    free(host);
    return p;
}

void check_get_values(check *c, cu_type type, double *out, const void *device, size_t n) {
    unsigned char *host = malloc(n * type_bytes(type));
    INFERD_CHECK(host != NULL);
    check_get(c, host, device, n * type_bytes(type));
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        memcpy(&bits, host + i * type_bytes(type), type_bytes(type));
        out[i] = type_decode(type, bits);
    }
    free(host);
}

/* ---- matrices ---- */

const dtype check_types[CU_FORMATS] = {
    [CU_FMT_F32] = DTYPE_F32,  [CU_FMT_BF16] = DTYPE_BF16, [CU_FMT_F16] = DTYPE_F16,
    [CU_FMT_Q4] = DTYPE_Q4_0,  [CU_FMT_Q4M] = DTYPE_Q4_1,  [CU_FMT_Q5] = DTYPE_Q5_0,
    [CU_FMT_Q5M] = DTYPE_Q5_1, [CU_FMT_Q6] = DTYPE_Q6_K,   [CU_FMT_Q8] = DTYPE_Q8_0,
};
const char *const check_format_names[CU_FORMATS] = {
    [CU_FMT_F32] = "f32", [CU_FMT_BF16] = "bf16", [CU_FMT_F16] = "f16",
    [CU_FMT_Q4] = "q4",   [CU_FMT_Q4M] = "q4m",   [CU_FMT_Q5] = "q5",
    [CU_FMT_Q5M] = "q5m", [CU_FMT_Q6] = "q6",     [CU_FMT_Q8] = "q8",
};

static uint32_t mixed(uint32_t v) {
    v = (v ^ v >> 16) * 0x7feb352du;
    v = (v ^ v >> 15) * 0x846ca68bu;
    return v ^ v >> 16;
}

/* Block number i of the matrix in the file's form. */
static void make_block(dtype type, uint32_t n_bytes, uint32_t seed, uint32_t i,
                       unsigned char *block) {
    enum { Q6_SCALES = 192, Q6_GROUPS = 16, Q6_D = 208 };
    uint32_t at = mixed(seed * 0x10001u + i);
    double dense = ((int)(at % 15) - 7) / 8.0;
    uint16_t d = (uint16_t)type_encode(CU_F16, ldexp(at & 1 ? -1 : 1, -3 - (int)(at >> 1 & 1)));
    uint16_t m = (uint16_t)type_encode(CU_F16, at & 1 ? 0.5 : -0.25);
    for (uint32_t j = 0; j < n_bytes; j++) block[j] = (unsigned char)mixed(at + j);
    if (type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16) {
        cu_type t = type == DTYPE_F32 ? CU_F32 : type == DTYPE_BF16 ? CU_BF16 : CU_F16;
        uint32_t bits = type_encode(t, dense);
        memcpy(block, &bits, n_bytes);
    } else if (type == DTYPE_Q6_K) {
        d = (uint16_t)type_encode(CU_F16, ldexp(1, -10));
        memcpy(block + Q6_D, &d, sizeof d);
        for (uint32_t j = 0; j < Q6_GROUPS; j++)
            block[Q6_SCALES + j] = (unsigned char)(int8_t)((int)(mixed(at + j) % 31) - 15);
    } else {
        if (type == DTYPE_Q8_0) d = (uint16_t)type_encode(CU_F16, ldexp(1, -7));
        memcpy(block, &d, sizeof d);
        if (type == DTYPE_Q4_1 || type == DTYPE_Q5_1) memcpy(block + 2, &m, sizeof m);
    }
}

cu_matrix check_matrix(check *c, dtype type, uint32_t rows, uint32_t cols, uint32_t seed,
                       double *values) {
    dtype_info about = dtype_about((uint32_t)type);
    size_t n = (size_t)rows * cols, n_blocks = n / about.block_elems;
    size_t n_image = format_bytes(type, rows, cols);
    unsigned char *file = malloc(n_blocks * about.block_bytes);
    unsigned char *image = aligned_alloc(PLANE_ALIGN, n_image);
    float *floats = malloc(n * sizeof *floats);
    INFERD_CHECK(file != NULL && image != NULL && floats != NULL && cols % about.block_elems == 0);
    for (size_t i = 0; i < n_blocks; i++)
        make_block(type, about.block_bytes, seed, (uint32_t)i, file + i * about.block_bytes);
    dtype_to_f32(type, file, floats, n);
    for (size_t i = 0; i < n; i++) values[i] = (double)floats[i];
    inferd_err err = {0};
    cu_matrix host = format_matrix(type, rows, cols, image);
    INFERD_CHECK(format_prepare(&host, type, image, file, 0, rows, &err) == INFERD_OK);
    cu_matrix m = format_matrix(type, rows, cols, check_put(c, image, n_image));
    free(file);
    free(image);
    free(floats);
    return m;
}
