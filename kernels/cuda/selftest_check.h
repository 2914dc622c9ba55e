/* selftest_check.h - one check of the self-test: memory for it, the launch, the comparison.
 *
 *     if (!check_begin(c, "add_%s", type)) return;       the device is lost: nothing more to do
 *     void *x = check_put(c, host_x, n), *out = check_room(c, n);
 *     if (!check_ready(c)) return;                       there was no memory: reported
 *     launch_add(&c->l, &args);
 *     if (!check_run(c)) return;                         it failed, or did not end: reported
 *     check_get(c, got, out, n);
 *     check_words(c, "out", got, want, n, width);        keeps the first wrong element
 *     check_end(c);                                      reported: right or wrong
 *
 * A check launches one kernel; its name follows from the launcher's counters.  A check that
 * launches more names its kernel with check_about.  Memory comes from the driver's plain
 * allocation, is full of 0xff, and is given back by the next check_begin.
 *
 * Expected values are formulas in double, rounded here to 16 bits by the definition of the formats:
 * no code is shared with the kernels.
 *
 * Thread: one; no other work runs on the device. */
#ifndef INFERD_CUDA_SELFTEST_CHECK_H
#define INFERD_CUDA_SELFTEST_CHECK_H

#include "cuda/layout.h"
#include "cuda/module.h"
#include "cuda/parts.h"
#include "kernels/dtype.h"
#include "kernels/self_test.h"

enum {
    CHECK_ALLOCS_MAX = 64,
    CHECK_NAME_BYTES = 96,
    CHECK_END_MS = 5000 // a kernel of microseconds that has not ended by then will not
};

typedef struct check {
    const cu_api *api;
    cu_device device;
    launcher l;
    cuda_parts parts; // as switched by the environment and `off`
    cu_event ended;
    uint64_t *n_before; // [module->n_kernels] launches before this check
    self_test_tell *tell;
    void *ctx;
    void *allocs[CHECK_ALLOCS_MAX];
    uint32_t n_allocs;
    char name[CHECK_NAME_BYTES];
    self_test_row row;
    bool told;        // this check's row was reported
    bool lost, hung;  // nothing can be launched any more
    uint32_t n_right; // rows so far
    inferd_err why;   // of lost and hung
} check;

/* `off` as in backend_options. */
inferd_status check_open(check *c, const cuda_module *m, uint32_t index, const cu_device *device,
                         const char *off, self_test_tell *tell, void *ctx, inferd_err *err);
void check_close(check *c);

__attribute__((format(printf, 2, 3))) bool check_begin(check *c, const char *format, ...);
void *check_put(check *c, const void *host, size_t n);
void *check_room(check *c, size_t n);
void *check_zeros(check *c, size_t n);
bool check_ready(check *c);
void check_about(check *c, const char *kernel);
bool check_run(check *c);
void check_get(check *c, void *host, const void *device, size_t n);
void check_end(check *c);
/* Report the row, instead of check_run and check_end. */
void check_skip(check *c, const char *kernel, const char *why);
void check_fail(check *c, const char *kernel, const char *why);

/* Elements are reported as [row, column] when width is not 0. */
void check_words(check *c, const char *what, const uint32_t *got, const uint32_t *want, size_t n,
                 uint32_t width);
void check_halves(check *c, const char *what, const uint16_t *got, const uint16_t *want, size_t n,
                  uint32_t width);
/* Within relative * |want| + absolute; NaN is wrong. */
void check_values(check *c, const char *what, const double *got, const double *want, size_t n,
                  uint32_t width, double relative, double absolute);

/* ---- numbers ---- */

size_t type_bytes(cu_type type);
const char *type_name(cu_type type); // as in kernels' names
/* The nearest number of the type, ties to even, as its bits; and the number of these bits. */
uint32_t type_encode(cu_type type, double v);
double type_decode(cu_type type, uint32_t bits);
double type_round(cu_type type, double v);
/* Half a step of the type, relative: the largest error of one rounding. */
double type_rounding(cu_type type);

/* n numbers to device memory in their type, and back. */
void *check_put_values(check *c, cu_type type, const double *v, size_t n);
void check_get_values(check *c, cu_type type, double *out, const void *device, size_t n);

/* A matrix of a file's type: codes by a formula, scales and minima powers of two, so that sums of
 * products with small numbers are exact.  values: [rows, cols] of the file.  cols is a multiple of
 * the type's block. */
cu_matrix check_matrix(check *c, dtype type, uint32_t rows, uint32_t cols, uint32_t seed,
                       double *values);
/* A type of each format of the kernels, [CU_FORMATS]. */
extern const dtype check_types[CU_FORMATS];
extern const char *const check_format_names[CU_FORMATS]; // "q4"

/* ---- the checks ---- */

void selftest_words(check *c);                         // selftest_words.c
void selftest_rows(check *c);                          // selftest_rows.c
void selftest_products(check *c, const char *lt_path); // selftest_products.c
void selftest_experts(check *c);                       // selftest_experts.c
void selftest_attention(check *c);                     // selftest_steps.c
void selftest_draw(check *c);                          // selftest_steps.c

#endif
