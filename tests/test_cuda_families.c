/* test_cuda_families.c - the small models of test_families on the CUDA backend: on emulation, or on
 * a GPU when INFERD_CUDA_MODULE names an inferd_cuda.so.
 *
 * Activations, keys and values have 16 bits there, so the logits are as near to the reference as
 * these allow, and a forgotten property of a family is still hundreds of times farther away. */
#include "cuda_emul/fake_api.h"
#include "family_rig.h"
#include "family_cases.h"

const struct cuda_module *emul_module(void);

static const double NMSE_MAX = 1e-4;
enum { EMULATED_TOKENS = 17 }; // a longer prompt takes minutes there

static bool on_gpu(void) {
    const char *module = getenv("INFERD_CUDA_MODULE");
    return module != NULL && module[0] != 0;
}

static backend *open_cuda(void) {
    backend_options o = {.kind = "cuda",
                         .n_threads = 1,
                         .memory_bytes = 112u << 20,
                         .workspace_bytes = 64u << 20,
                         .activations = "f16"};
    if (!on_gpu()) o.module = emul_module();
    fake_reset();
    return rig_backend_open(&o);
}

static void expect_near(rig *r, const char *name, const golden *g, const golden_prompt *p) {
    static float whole[RIG_VOCAB_MAX], pieces[RIG_VOCAB_MAX];
    static rig_seq s;
    s = (rig_seq){0};
    rig_forget(r);
    rig_prefill(r, &s, g->tokens, p->n_tokens, RIG_ROWS, whole);
    s = (rig_seq){0};
    rig_forget(r);
    rig_prefill(r, &s, g->tokens, p->n_tokens, 5, pieces);
    double off = rig_nmse(whole, p->logits, g->n_vocab);
    double off_pieces = rig_nmse(pieces, p->logits, g->n_vocab);
    if (getenv("INFERD_TEST_SHOW") != NULL)
        printf("%s %u: %.3g, in chunks of 5 %.3g\n", name, p->n_tokens, off, off_pieces);
    if (off <= NMSE_MAX && off_pieces <= NMSE_MAX) return;
    printf("%s: the logits after %u tokens are off by %.3g, in chunks of 5 by %.3g\n", name,
           p->n_tokens, off, off_pieces);
    test_failures++;
}

static void the_reference_is_near(void) {
    static golden g;
    backend *be = open_cuda();
    for (size_t i = 0; i < INFERD_COUNT(family_cases); i++) {
        const family_case *c = &family_cases[i];
        const char *only = getenv("INFERD_TEST_FAMILY");
        family_file file;
        inferd_err err;
        rig r;
        if (c->pending || (only != NULL && strcmp(only, c->name) != 0)) continue;
        golden_read(c->name, &g);
        golden_file(&g, &file);
        if (rig_open(&r, be, &file, &(rig_options){.kv = KV_F16, .context = g.context}, &err)) {
            for (size_t k = 0; k < g.n_prompts; k++)
                if (on_gpu() || g.prompts[k].n_tokens <= EMULATED_TOKENS)
                    expect_near(&r, c->name, &g, &g.prompts[k]);
        } else {
            printf("%s: %s\n", c->name, err.text);
            test_failures++;
        }
        rig_close(&r);
        family_file_deinit(&file);
        golden_deinit(&g);
    }
    backend_close(be);
    if (on_gpu()) return;
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

static const test_case cases[] = {TEST(the_reference_is_near)};

TEST_MAIN(cases)
