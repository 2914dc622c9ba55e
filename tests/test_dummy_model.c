/* test_dummy_model.c - made-up models: the shapes are the real ones', every type computes, the CPU
 * and the CUDA backend (emulated, or on a GPU when INFERD_CUDA_MODULE names an inferd_cuda.so) have
 * the same weights, and a wrong path is refused with the words that exist. */
#include <unistd.h>

#include "cuda_emul/fake_api.h"
#include "dummy_model.h"
#include "kernels/backend.h"
#include "models/model.h"
#include "models/sampler.h"
#include "test.h"

const struct cuda_module *emul_module(void);

enum { ROWS = 24, VOCAB_TINY = 512, PAGES_MAX = 64 };

static bool on_gpu(void) {
    const char *path = getenv("INFERD_CUDA_MODULE");
    return path != NULL && path[0] != 0;
}

static model *open_dummy(const char *path) {
    model *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(model_open(&(model_options){.path = path, .allow_dummy = true}, &m, &err), INFERD_OK);
    if (m == NULL) printf("%s\n", err.text);
    return m;
}

/* ---- shapes ---- */

/* Published sizes, in billions. */
static void shapes_have_the_parameters_of_the_real_models(void) {
    static const struct {
        const char *name;
        double billions;
        uint32_t context;
    } all[] = {
        {"llama-3.1-8b", 8.030, 131072},      {"llama-3.2-1b", 1.236, 131072},
        {"qwen3-8b", 8.191, 40960},           {"qwen3-0.6b", 0.596, 40960},
        {"mistral-nemo-12b", 12.248, 131072}, {"mistral-7b", 7.248, 32768},
        {"gemma-3-4b", 3.880, 131072},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        char path[64];
        snprintf(path, sizeof path, "dummy:%s", all[i].name);
        model *m = open_dummy(path);
        if (m == NULL) continue;
        const model_info *info = model_about(m);
        EXPECT_NEAR((double)info->n_params / 1e9, all[i].billions, 0.0005);
        EXPECT_EQ(info->context, all[i].context);
        EXPECT_EQ(tok_n_vocab(model_tokenizer(m)), info->n_vocab);
        EXPECT_STR(info->path, path);
        EXPECT(model_chat_template(m) != NULL);
        EXPECT(info->file_bytes > 2 * info->n_params); // bf16
        model_close(m);
    }
}

static void options_change_the_shape(void) {
    model *m = open_dummy("dummy:llama-3.2-1b?layers=3&context=1000&vocab=300&dtype=q8_0&seed=5");
    if (m == NULL) return;
    const model_info *info = model_about(m);
    EXPECT_EQ(info->n_layers, 3);
    EXPECT_EQ(info->context, 1000);
    EXPECT_EQ(info->n_vocab, 300);
    EXPECT_EQ(info->n_heads, 32);
    EXPECT_NEAR((double)info->file_bytes / (double)info->n_params, 34.0 / 32, 0.01);
    model_close(m);
}

static uint32_t count_type(const gguf *g, dtype type, const char *part) {
    uint32_t n = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        n += t->type == type && strstr(t->name, part) != NULL;
    }
    return n;
}

static void q4_k_m_is_precise_where_it_matters(void) {
    inferd_err err = {0};
    gguf *g;
    uint64_t seed;
    EXPECT_EQ(dummy_model_open("dummy:llama-3.1-8b?dtype=q4_k_m", &g, &seed, &err), INFERD_OK);
    EXPECT_EQ(count_type(g, DTYPE_Q6_K, "attn_v"), 16);
    EXPECT_EQ(count_type(g, DTYPE_Q6_K, "ffn_down"), 16);
    EXPECT_EQ(count_type(g, DTYPE_Q6_K, ""), 33); // and the head
    EXPECT_EQ(gguf_find_tensor(g, "output.weight")->type, DTYPE_Q6_K);
    EXPECT_EQ(gguf_find_tensor(g, "token_embd.weight")->type, DTYPE_Q4_K);
    // 4.58 GiB is what this recipe weighs at this shape
    EXPECT_NEAR((double)gguf_file_bytes(g) / (1u << 30), 4.58, 0.01);
    gguf_close(g);
    EXPECT_EQ(dummy_model_open("dummy:qwen3-0.6b?dtype=q4_k_m", &g, &seed, &err), INFERD_OK);
    EXPECT_EQ(gguf_find_tensor(g, "token_embd.weight")->type, DTYPE_Q6_K); // it is the head
    gguf_close(g);
}

/* Llama 3's published frequencies: waves under 2,048 positions stay, those over 8,192 are slowed.
 */
static void rotary_divisors_are_those_of_llama_3(void) {
    inferd_err err = {0};
    gguf *g;
    uint64_t seed;
    float d[64];
    EXPECT_EQ(dummy_model_open("dummy:llama-3.1-8b?layers=1", &g, &seed, &err), INFERD_OK);
    const gguf_tensor *t = gguf_find_tensor(g, "rope_freqs.weight");
    EXPECT(t != NULL && t->dims[0] == 64);
    EXPECT_EQ(gguf_read(g, t, 0, d, sizeof d, &err), INFERD_OK);
    for (int i = 0; i < 64; i++) {
        double wave = 2 * M_PI * pow(500000, i / 64.0), smooth = (8192 / wave - 1) / 3;
        double wanted = wave < 2048 ? 1 : wave > 8192 ? 8 : 1 / ((1 - smooth) / 8 + smooth);
        EXPECT_NEAR(d[i], wanted, 1e-5 * wanted);
    }
    EXPECT(d[0] == 1 && d[63] == 8);
    gguf_close(g);
}

static void residual_outputs_are_smaller(void) {
    EXPECT_NEAR(dummy_scale("blk.3.attn_q.weight", 32), 0.02, 1e-9);
    EXPECT_NEAR(dummy_scale("blk.3.attn_output.weight", 32), 0.0025, 1e-9);
    EXPECT_NEAR(dummy_scale("blk.3.ffn_down.weight", 8), 0.005, 1e-9);
    EXPECT_NEAR(dummy_scale("output.weight", 32), 0.02, 1e-9);
}

/* ---- what it computes ---- */

typedef struct rig {
    backend *be;
    model *m;
    bound_model *p;
    uint32_t pages[PAGES_MAX], n_pages;
    uint32_t n_loads; // each on pages of its own; keys and values lie behind them
} rig;

static void rig_close(rig *r) {
    bound_close(r->p);
    model_close(r->m);
    backend_close(r->be);
}

static bool rig_load(rig *r) {
    inferd_err err = {0};
    r->n_pages = bound_weight_pages(r->p);
    uint32_t first = r->n_loads++ * r->n_pages, wanted = first + r->n_pages + 2;
    INFERD_CHECK(r->n_pages <= PAGES_MAX && wanted <= be_n_pages(r->be));
    for (int i = 0; i < 100000 && be_n_pages_ready(r->be) < wanted; i++) usleep(100);
    for (uint32_t i = 0; i < r->n_pages; i++) r->pages[i] = first + i;
    EXPECT_EQ(bound_bring_up(r->p, r->pages, r->n_pages, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("%s\n", err.text);
    return err.status == INFERD_OK;
}

static bool rig_open(rig *r, const char *kind, const char *path) {
    inferd_err err = {0};
    backend_options o = {.exact_math = true,
                         .kind = kind,
                         .n_threads = 1,
                         .memory_bytes = 192u << 20,
                         .workspace_bytes = 64u << 20,
                         .activations = "f16"};
    if (!on_gpu()) o.module = emul_module();
    *r = (rig){0};
    model_limits limits = {.rows_max = ROWS, .logits_max = ROWS, .kv = KV_F16};
    if (backend_open(&o, &r->be, &err) != INFERD_OK || (r->m = open_dummy(path)) == NULL ||
        bound_open(r->m, r->be, &limits, &r->p, &err) != INFERD_OK) {
        printf("%s on %s: %s\n", path, kind, err.text);
        test_failures++;
        return false;
    }
    return rig_load(r);
}

/* The host draws where the device does not; every logit is looked at then. */
static void read_results(const be_step_result *from, sample_row draws[ROWS], float out[ROWS]) {
    sampler *host = from->draws == NULL ? sampler_create(VOCAB_TINY) : NULL;
    for (uint32_t i = 0; i < ROWS; i++) {
        sample_result r;
        if (host != NULL) {
            draws[i].logits = from->logits + i * from->logits_stride;
            for (uint32_t j = 0; j < VOCAB_TINY; j++) EXPECT(isfinite(draws[i].logits[j]));
            sampler_draw(host, &draws[i], &r);
        } else {
            r = from->draws[i];
        }
        EXPECT_EQ(r.id, draws[i].forced);
        EXPECT(isfinite(r.logprob));
        out[i] = r.logprob;
    }
    sampler_destroy(host);
}

/* Log-probability of each token of a text, given those before it. */
static void rig_score(rig *r, float out[ROWS]) {
    static const sample_params params = {.top_p = 1, .repetition_penalty = 1};
    const kv_layout *kv = bound_kv(r->p);
    uint32_t n_slots = kv_blocks_of(kv, ROWS) * kv->n_groups;
    int32_t slots[64];
    INFERD_CHECK(n_slots <= INFERD_COUNT(slots) && n_slots <= 2 * kv->slots_per_page);
    for (uint32_t i = 0; i < n_slots; i++) // behind the weights
        slots[i] = (int32_t)(r->n_loads * r->n_pages * kv->slots_per_page + i);
    tok_id tokens[ROWS];
    uint32_t pending[ROWS] = {0}, positions[ROWS], row_seq[ROWS] = {0};
    sample_row draws[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        tokens[i] = (tok_id)(3 + i * 37 % 500);
        positions[i] = i;
        draws[i] = (sample_row){.params = &params, .forced = (tok_id)((i * 53 + 7) % VOCAB_TINY)};
    }
    batch_seq seq = {0, ROWS, 0, kv_blocks_of(kv, ROWS), slots};
    batch b = {ROWS, 1, ROWS, tokens, pending, positions, row_seq, &seq, positions};
    be_step_result result;
    inferd_err err = {0};
    bound_launch(r->p, &b, draws, VOCAB_TINY);
    EXPECT_EQ(be_step_finish(r->be, &result, &err), INFERD_OK);
    if (err.status == INFERD_OK)
        read_results(&result, draws, out);
    else
        printf("%s\n", err.text);
}

static double largest_difference(const float a[ROWS], const float b[ROWS]) {
    double largest = 0;
    for (uint32_t i = 0; i < ROWS; i++) largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
    return largest;
}

static void no_violations(void) {
    if (on_gpu()) return;
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

static bool score_on(const char *kind, const char *path, float out[ROWS]) {
    rig r;
    bool fine = rig_open(&r, kind, path);
    if (fine) rig_score(&r, out);
    rig_close(&r);
    return fine;
}

/* One layer has every kind of matrix; of q4_k_m and gemma3 layers differ. */
static void every_type_computes_the_same_on_both_backends(void) {
    static const char *const all[] = {
        "tiny?layers=1&dtype=f32",    "tiny?layers=1&dtype=f16",
        "tiny?layers=1&dtype=bf16",   "tiny?layers=1&dtype=q8_0",
        "tiny?layers=1&dtype=q4_0",   "tiny?layers=1&dtype=q4_1",
        "tiny?layers=1&dtype=q5_0",   "tiny?layers=1&dtype=q5_1",
        "tiny?layers=1&dtype=q4_k",   "tiny?layers=1&dtype=q5_k",
        "tiny?layers=1&dtype=q6_k",   "tiny?dtype=q4_k_m",
        "tiny?layers=1&dtype=q2_k",   "tiny?layers=1&dtype=q3_k",
        "tiny?layers=1&dtype=iq4_nl", "tiny?layers=1&dtype=iq4_xs",
        "tiny?layers=1&dtype=mxfp4",  "tiny-qwen3?layers=1&dtype=f16",
        "tiny-qwen3?dtype=q4_k_m",    "tiny-gemma3?layers=1&dtype=bf16",
        "tiny-gemma3?dtype=q8_0",
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        char path[64];
        float cpu[ROWS] = {0}, gpu[ROWS] = {0}, other[ROWS] = {0};
        snprintf(path, sizeof path, "dummy:%s", all[i]);
        fake_reset();
        if (!score_on("cpu", path, cpu) || !score_on("cuda", path, gpu)) continue;
        double d = largest_difference(cpu, gpu);
        EXPECT(d <= 0.05);
        if (!(d <= 0.05)) printf("%s: %g\n", path, d);
        no_violations();
        snprintf(path, sizeof path, "dummy:%s&seed=2", all[i]); // another model
        if (score_on("cpu", path, other)) EXPECT(largest_difference(cpu, other) > 0.2);
    }
}

/* On other pages; and nothing of it is kept on the host or copied from there. */
static void a_reloaded_model_is_the_same(void) {
    static const char *const kinds[] = {"cpu", "cuda"};
    for (size_t k = 0; k < INFERD_COUNT(kinds); k++) {
        rig r;
        float before[ROWS] = {0}, after[ROWS] = {0};
        fake_reset();
        if (rig_open(&r, kinds[k], "dummy:tiny?dtype=q4_k_m&seed=9")) {
            rig_score(&r, before);
            backend_stats stats;
            be_get_stats(r.be, &stats);
            /* The first piece for parked keys and values is made at once. */
            EXPECT(stats.pinned_bytes <=
                   be_swap_extent_pages(r.be) * (uint64_t)be_page_bytes(r.be));
            bound_unstage(r.p);
            EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
            if (rig_load(&r)) {
                rig_score(&r, after);
                EXPECT(memcmp(before, after, sizeof before) == 0);
            }
            be_get_stats(r.be, &stats);
            EXPECT_EQ(stats.load_bytes, 0);
        }
        rig_close(&r);
        no_violations();
    }
}

/* Each call that makes weights fails once: a sentence, every page home, and the next load is fine.
 */
static void a_load_that_fails_can_be_repeated(void) {
    if (on_gpu()) SKIP("a real device does not fail on demand");
    static const char *const calls[] = {"launch", "copy_to_device", "stream_sync"};
    for (size_t i = 0; i < INFERD_COUNT(calls); i++) {
        rig r;
        float before[ROWS] = {0}, after[ROWS] = {0};
        inferd_err err = {0};
        fake_reset();
        if (rig_open(&r, "cuda", "dummy:tiny")) {
            rig_score(&r, before);
            bound_unstage(r.p);
            fake_fail_call(calls[i], 3, CU_EFAILED);
            EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err), INFERD_EDEVICE);
            EXPECT(err.text[0] != 0 && bound_state_of(r.p) == BOUND_COLD);
            if (rig_load(&r)) rig_score(&r, after);
            EXPECT(memcmp(before, after, sizeof before) == 0);
        }
        rig_close(&r);
        no_violations();
    }
}

/* ---- refusals ---- */

static void wrong_paths_are_refused_with_what_exists(void) {
    static const struct {
        const char *path, *words;
        inferd_status status;
    } all[] = {
        {"dummy:llama-9", "no shape is called \"llama-9\"; there are llama-3.1-8b, ",
         INFERD_EINVAL},
        {"dummy:", "no shape is called \"\"; there are ", INFERD_EINVAL},
        {"dummy:tiny?", "no option is called \"\"; there are dtype, layers, context, vocab, seed",
         INFERD_EINVAL},
        {"dummy:tiny?width=3", "no option is called \"width\"; there are dtype, ", INFERD_EINVAL},
        {"dummy:tiny?dtype=iq2_s", "dtype is \"iq2_s\", expected one of f32, f16, ", INFERD_EINVAL},
        {"dummy:tiny?dtype", "dtype is \"\", expected one of ", INFERD_EINVAL},
        {"dummy:tiny?layers=0", "layers is \"0\", expected a whole number from 1 to 512",
         INFERD_EINVAL},
        {"dummy:tiny?layers=99999999999", "expected a whole number from 1 to 512", INFERD_EINVAL},
        {"dummy:tiny?layers=2x", "layers is \"2x\"", INFERD_EINVAL},
        {"dummy:tiny?seed=-1", "seed is \"-1\"", INFERD_EINVAL},
        {"dummy:tiny?vocab=258", "vocab is \"258\", expected a whole number from 259",
         INFERD_EINVAL},
        {"dummy:tiny?layers=2&layers=2", "layers is given twice", INFERD_EINVAL},
        {"dummy:tiny?layers=2&&seed=1", "no option is called \"\"", INFERD_EINVAL},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        model *m = NULL;
        inferd_err err = {0};
        model_options o = {.path = all[i].path, .allow_dummy = true};
        EXPECT_EQ(model_open(&o, &m, &err), all[i].status);
        bool says = strstr(err.text, all[i].words) != NULL &&
                    strncmp(err.text, all[i].path, strlen(all[i].path)) == 0;
        EXPECT(says);
        if (!says) printf("\"%s\", expected \"%s\"\n", err.text, all[i].words);
    }
}

static void without_permission_there_are_no_dummies(void) {
    model *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(model_open(&(model_options){.path = "dummy:tiny"}, &m, &err), INFERD_EINVAL);
    EXPECT(strstr(err.text, "--allow-dummy") != NULL);
}

/* Sentences name the model as it was asked for, not the file in memory. */
static void errors_name_the_path_that_was_given(void) {
    model *m = NULL;
    inferd_err err = {0};
    model_options o = {.path = "dummy:tiny?context=100", .context_max = 200, .allow_dummy = true};
    EXPECT_EQ(model_open(&o, &m, &err), INFERD_EINVAL);
    EXPECT(strstr(err.text, "dummy:tiny?context=100: max_context is 200") != NULL);
}

static const test_case cases[] = {
    TEST(shapes_have_the_parameters_of_the_real_models),
    TEST(options_change_the_shape),
    TEST(q4_k_m_is_precise_where_it_matters),
    TEST(rotary_divisors_are_those_of_llama_3),
    TEST(residual_outputs_are_smaller),
    TEST(every_type_computes_the_same_on_both_backends),
    TEST(a_reloaded_model_is_the_same),
    TEST(a_load_that_fails_can_be_repeated),
    TEST(wrong_paths_are_refused_with_what_exists),
    TEST(without_permission_there_are_no_dummies),
    TEST(errors_name_the_path_that_was_given),
};
TEST_MAIN(cases)
