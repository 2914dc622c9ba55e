/* selftest.c - the self-test of one GPU: opens it, makes every check, and reports the end.
 *
 * Order: primitives first, because each family consists of them.
 *
 * Thread: one. */
#include "cuda/open.h"
#include "cuda/selftest_check.h"

inferd_status self_test_cuda(const backend_options *options, self_test_tell *tell, void *ctx,
                             inferd_err *err) {
    const cuda_module *m = options->module;
    uint32_t index;
    cu_device device;
    check c;
    inferd_status s = INFERD_OK;
    if (m == NULL) s = cuda_module_open(options->module_path, &m, err);
    if (s == INFERD_OK) s = cuda_pick(m, options->uuid, options->index, &index, &device, err);
    if (s != INFERD_OK) return s;
    s = check_open(&c, m, index, &device, options->off, tell, ctx, err);
    if (s == INFERD_OK) {
        selftest_words(&c);
        selftest_rows(&c);
        selftest_products(&c, options->cublaslt_path);
        selftest_experts(&c);
        selftest_attention(&c);
        selftest_draw(&c);
        if (c.lost || c.hung)
            s = inferd_fail(err, INFERD_ELOST,
                            "the self-test stopped at %s; %u checks before it were right",
                            c.why.text, c.n_right);
    }
    check_close(&c);
    return s;
}
