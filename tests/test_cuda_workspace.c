/* test_cuda_workspace.c - what models set aside of a device's workspace when they are opened, and
 * that no step needs more: sizes, two models and a third, a workspace that is short, and how many
 * graphs a mixed load captures.
 *
 * Models are made up.  Where only places and counts matter kernels do not run (`nothing`). */
#include "cuda/cuda.h"
#include "cuda_emul/fake_api.h"
#include "model_private.h"
#include "models/model.h"
#include "scheduler/engine.h"
#include "test.h"

const struct cuda_module *emul_module(void);

enum { ROWS = 256, BLOCKS = 8192, FEW_BLOCKS = 64, KV_PAGES = 6, VOCAB = 512 };

static bool nothing(const void *fn, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes,
                    const void *params, uint32_t params_bytes, uint32_t threads_max, char *why,
                    size_t why_bytes) {
    (void)fn, (void)grid, (void)threads, (void)shared_bytes, (void)params, (void)params_bytes;
    (void)threads_max, (void)why, (void)why_bytes;
    return true;
}

static bool on_gpu(void) {
    const char *module = getenv("INFERD_CUDA_MODULE");
    return module != NULL && module[0] != 0;
}

/* ---- a device, and models on it ---- */

static bool without_lt; // its products are computed, also where kernels are not

static backend *open_device(uint64_t memory_mib, uint64_t workspace, uint64_t least,
                            bool computes) {
    inferd_err err = {0};
    backend *be = NULL;
    fake_reset();
    fake_options()->poison = false;
    if (!computes) fake_options()->execute = nothing;
    fake_options()->lt = !without_lt;
    backend_options o = {.kind = "cuda",
                         .n_threads = 1,
                         .memory_bytes = memory_mib << 20,
                         .workspace_bytes = workspace,
                         .workspace_least = least,
                         .activations = "f16",
                         .module = emul_module()};
    if (backend_open(&o, &be, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT(be != NULL);
    return be;
}

static void close_device(backend *be) {
    backend_close(be);
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

typedef struct bound {
    model *m;
    bound_model *p;
    uint32_t first_page, n_pages;
    inferd_err err; // of opening
} bound;

static model_limits limits_of(uint32_t rows, uint32_t logits) {
    return (model_limits){.rows_max = rows, .logits_max = logits, .kv = KV_F16};
}

/* False: it was refused, see err. */
static bool bind(backend *be, bound *p, const char *path, model_limits limits,
                 uint32_t first_page) {
    *p = (bound){.first_page = first_page};
    model_options o = {.path = path, .allow_dummy = true};
    EXPECT_EQ(model_open(&o, &p->m, &p->err), INFERD_OK);
    if (p->m == NULL || bound_open(p->m, be, &limits, &p->p, &p->err) != INFERD_OK) {
        model_close(p->m);
        p->m = NULL;
        return false;
    }
    uint32_t pages[64];
    p->n_pages = bound_weight_pages(p->p);
    INFERD_CHECK(p->n_pages <= INFERD_COUNT(pages));
    uint32_t n = first_page + p->n_pages + KV_PAGES;
    for (int i = 0; i < 100000 && be_n_pages_ready(be) < n; i++)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    for (uint32_t i = 0; i < p->n_pages; i++) pages[i] = first_page + i;
    EXPECT_EQ(bound_bring_up(p->p, pages, p->n_pages, &p->err), INFERD_OK);
    return true;
}

static void remove_model(bound *p) {
    bound_close(p->p);
    model_close(p->m);
    *p = (bound){0};
}

/* ---- steps of one row per sequence ---- */

typedef struct rows {
    tok_id tokens[ROWS];
    uint32_t pending[ROWS], positions[ROWS], row_seq[ROWS], logit_rows[ROWS];
    batch_seq seqs[ROWS];
    sample_row draws[ROWS];
    batch b;
} rows;

static const sample_params greedy = {.top_p = 1, .repetition_penalty = 1};

/* n sequences at their first position, the first of them at position context - 1, where most of its
 * blocks are the same few. */
static void make_rows(const bound *p, rows *r, uint32_t n, uint32_t context) {
    static int32_t slots[BLOCKS], own[ROWS];
    const kv_layout *kv = bound_kv(p->p);
    INFERD_CHECK(kv->n_groups == 1 && kv_blocks_of(kv, context) <= BLOCKS);
    INFERD_CHECK(FEW_BLOCKS + ROWS <= KV_PAGES * kv->slots_per_page);
    uint32_t slot = (p->first_page + p->n_pages) * kv->slots_per_page;
    for (uint32_t i = 0; i < BLOCKS; i++) slots[i] = (int32_t)(slot + i % FEW_BLOCKS);
    for (uint32_t i = 0; i < ROWS; i++) own[i] = (int32_t)(slot + FEW_BLOCKS + i);
    memset(r, 0, sizeof *r);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pos = i == 0 ? context - 1 : 0;
        r->tokens[i] = (tok_id)(i % 100);
        r->positions[i] = pos;
        r->row_seq[i] = r->logit_rows[i] = i;
        r->seqs[i] = (batch_seq){i, 1, pos, kv_blocks_of(kv, pos + 1), i == 0 ? slots : &own[i]};
        r->draws[i] = (sample_row){.params = &greedy,
                                   .tokens = &r->tokens[i],
                                   .n_tokens = 1,
                                   .n_prompt = 1,
                                   .forced = -1,
                                   .n_top = 0};
    }
    r->b =
        (batch){n, n, n, r->tokens, r->pending, r->positions, r->row_seq, r->seqs, r->logit_rows};
}

static inferd_status step(backend *be, const bound *p, const rows *r, sample_result *out,
                          inferd_err *err) {
    be_step_result result;
    bound_launch(p->p, &r->b, r->draws, model_about(p->m)->n_vocab);
    inferd_status s = be_step_finish(be, &result, err);
    if (s == INFERD_OK && out != NULL) memcpy(out, result.draws, r->b.n_logits * sizeof *out);
    return s;
}

static bool runs(backend *be, const bound *p, uint32_t n, uint32_t context) {
    static rows r;
    inferd_err err = {0};
    make_rows(p, &r, n, context);
    if (step(be, p, &r, NULL, &err) == INFERD_OK) return true;
    printf("%u rows, context %u: %s\n", n, context, err.text);
    return false;
}

/* ---- sizes ---- */

static const char longest[] = "dummy:tiny?context=131072&layers=1", tiny[] = "dummy:tiny?layers=1";

/* The number that a refusal names. */
static uint64_t needed(const inferd_err *err) {
    const char *at = strstr(err->text, "must have ");
    EXPECT(strncmp(err->text, "workspace has ", 14) == 0 && at != NULL);
    return at != NULL ? strtoull(at + 10, NULL, 10) : 0;
}

/* Limits whose steps do not fit are refused when the model is opened, with the number that is
 * enough; it used to open, and the first full batch failed. */
static void a_model_that_opens_has_room_for_its_largest_step(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    backend *be = open_device(256, 60u << 20, 0, false);
    bound p;
    EXPECT(!bind(be, &p, longest, limits_of(2048, ROWS), 0));
    EXPECT_EQ(p.err.status, INFERD_ENOMEM);
    EXPECT(strstr(p.err.text, "steps of 2048 rows, logits of 256 rows and 512 tokens") != NULL);
    uint64_t n = needed(&p.err);
    close_device(be);
    be = open_device(256, n, 0, false);
    if (bind(be, &p, longest, limits_of(2048, ROWS), 0)) {
        uint64_t n_growths = cuda_of(be)->n_growths;
        EXPECT(runs(be, &p, 1, 1));
        EXPECT(runs(be, &p, ROWS, 100));
        EXPECT(runs(be, &p, ROWS, 16000));
        EXPECT_EQ(cuda_of(be)->n_growths, n_growths); // nothing was left to take
        remove_model(&p);
    } else {
        printf("%s\n", p.err.text);
        EXPECT(!"it opens with the workspace that was named");
    }
    close_device(be);
}

/* The scratch of experts has a row for each expert of a row; steps have no more rows for that. */
static void a_mixture_has_room_for_its_largest_step(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    backend *be = open_device(256, 100u << 20, 0, false);
    cuda_backend *c = cuda_of(be);
    bound p;
    if (bind(be, &p, "dummy:tiny-qwen3moe?layers=1", limits_of(ROWS, ROWS), 0)) {
        uint64_t n_growths = c->n_growths;
        uint32_t n_used = p.m->spec.n_experts_used;
        EXPECT(n_used > 1);
        EXPECT_EQ(c->room.rows, ROWS);
        EXPECT_EQ(c->room.expert_slots, ROWS * n_used);
        EXPECT(runs(be, &p, 1, 1));
        EXPECT(runs(be, &p, ROWS, 100));
        EXPECT_EQ(c->n_growths, n_growths);
        EXPECT_EQ(c->room.rows, ROWS);
        remove_model(&p);
    } else {
        printf("%s\n", p.err.text);
        EXPECT(!"it opens");
    }
    close_device(be);
}

/* Without a number of its own the workspace is as large as the models that will come need, and
 * attention has all the partials it would use. */
static void the_workspace_follows_from_the_models(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    inferd_err err = {0};
    model *m = NULL;
    uint64_t least = 0;
    model_limits limits = limits_of(2048, ROWS);
    backend_options o = {.kind = "cuda", .memory_bytes = 256u << 20}, cpu = {.kind = "cpu"};
    EXPECT_EQ(model_open(&(model_options){.path = tiny, .allow_dummy = true}, &m, &err), INFERD_OK);
    const model *all[] = {m};
    EXPECT_EQ(models_workspace_bytes(all, 1, &cpu, &limits, &least, &err), INFERD_OK);
    EXPECT_EQ(least, 0);
    EXPECT_EQ(models_workspace_bytes(all, 0, &o, &limits, &least, &err), INFERD_OK);
    EXPECT_EQ(least, 0);
    EXPECT_EQ(models_workspace_bytes(all, 1, &o, &limits, &least, &err), INFERD_OK);
    EXPECT(least > 64u << 20 && least < 128u << 20); // of 128 MiB at most
    backend *be = open_device(256, 0, least, false);
    bound p;
    if (bind(be, &p, tiny, limits, 0)) {
        const cuda_backend *c = cuda_of(be);
        EXPECT(c->attn_workspace.partials_bytes >= attention_partials_bytes(ROWS, 4, 64));
        EXPECT(runs(be, &p, ROWS, 2000));
        remove_model(&p);
    }
    close_device(be);
    model_close(m);
}

/* Where no limit is set a small device has steps of 512 rows, and its workspace is for these. */
static void a_small_device_is_expected_to_take_small_steps(void) {
    inferd_err err = {0};
    model *m = NULL;
    EXPECT_EQ(model_open(&(model_options){.path = tiny, .allow_dummy = true}, &m, &err), INFERD_OK);
    const model *all[] = {m};
    uint64_t least[3];
    for (int i = 0; i < 3; i++) {
        engine_options o = {.device = {.kind = "cuda", .memory_bytes = 256ull << 20},
                            .limits = {.step_tokens_max = i == 1 ? 512 : 0}};
        if (i == 2) o.device.memory_bytes = 80ull << 30;
        EXPECT_EQ(engine_expect_models(&o, all, 1, &err), INFERD_OK);
        least[i] = o.device.workspace_least;
    }
    EXPECT_EQ(least[0], least[1]);
    EXPECT(least[2] > least[1]); // 2048 rows
    model_close(m);
}

/* ---- models that come and go ---- */

/* A second model takes from the partials of the first; a third, with a large vocabulary, is
 * refused, and what it left free is all there. */
static void models_come_and_go_beside_each_other(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    static rows r;
    static sample_result before[4], after[4];
    inferd_err err = {0};
    backend *be = open_device(200, 70u << 20, 0, true);
    cuda_backend *c = cuda_of(be);
    bound a, b, large;
    bool fine = bind(be, &a, tiny, limits_of(ROWS, ROWS), 0);
    EXPECT(fine);
    if (!fine) {
        close_device(be);
        return;
    }
    make_rows(&a, &r, 4, 30);
    EXPECT_EQ(step(be, &a, &r, before, &err), INFERD_OK);
    size_t partials = c->attn_workspace.partials_bytes;
    for (int again = 0; again < 2; again++) { // reloaded
        EXPECT(bind(be, &b, "dummy:tiny?layers=1&vocab=3000&seed=5", limits_of(ROWS, ROWS), 20));
        EXPECT(c->attn_workspace.partials_bytes < partials);
        EXPECT(runs(be, &b, 3, 16));
        EXPECT(!bind(be, &large, "dummy:tiny?layers=1&vocab=60000", limits_of(ROWS, ROWS), 40));
        EXPECT(needed(&large.err) > 70u << 20);
        make_rows(&a, &r, 4, 30);
        EXPECT_EQ(step(be, &a, &r, after, &err), INFERD_OK);
        for (int i = 0; i < 4; i++)
            EXPECT(before[i].id == after[i].id && before[i].logprob == after[i].logprob);
        EXPECT(runs(be, &b, 3, 16));
        remove_model(&b);
    }
    cuda_memory_stats first, last;
    for (int again = 0; again < 2; again++) { // tables of other frequencies, given back
        EXPECT(bind(be, &b, "dummy:tiny-qwen3?layers=1", limits_of(32, 8), 20));
        EXPECT_EQ(c->n_ropes, 2);
        EXPECT(runs(be, &b, 3, 16));
        EXPECT(runs(be, &a, 3, 16));
        remove_model(&b);
        EXPECT_EQ(c->n_ropes, 1);
        memory_get_stats(c->memory, again == 0 ? &first : &last);
    }
    EXPECT_EQ(first.workspace_used, last.workspace_used);
    remove_model(&a);
    EXPECT_EQ(c->n_ropes, 0);
    close_device(be);
}

/* Each call that opening a model makes fails once: a sentence, and the model that is there goes on.
 */
static void a_model_that_fails_to_open_leaves_the_others(void) {
    if (on_gpu()) SKIP("a real device does not fail on demand");
    model_limits small = limits_of(32, 8), big = limits_of(ROWS, ROWS);
    backend *be = open_device(200, 80u << 20, 0, false);
    bound a;
    if (bind(be, &a, tiny, small, 0)) {
        bool reached = true;
        for (uint32_t n = 1; reached; n++) {
            inferd_err err = {0};
            bound_model *p = NULL;
            model *m = NULL;
            model_options o = {.path = "dummy:tiny-qwen3?layers=1", .allow_dummy = true};
            EXPECT_EQ(model_open(&o, &m, &err), INFERD_OK);
            fake_fail_at(n, CU_EFAILED);
            inferd_status st = bound_open(m, be, &big, &p, &err);
            reached = fake_failed();
            fake_fail_at(0, CU_OK);
            EXPECT(!reached || (st != INFERD_OK && err.text[0] != 0));
            be_check(be, NULL); // an activation that was not cleared is told twice
            bound_close(p);
            EXPECT(runs(be, &a, 3, 20));
            EXPECT_EQ(cuda_of(be)->n_ropes, 1);
            model_close(m);
            EXPECT(n < 200);
        }
        remove_model(&a);
    }
    close_device(be);
}

/* The tokens that a step drew are promised to the next one; a model that is opened between them
 * moves the place where they lie. */
static void drawn_tokens_outlive_a_reservation(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    static rows r;
    static sample_result drawn[2], next[2][2];
    inferd_err err = {0};
    be_step_result result;
    for (int moved = 0; moved < 2; moved++) {
        backend *be = open_device(200, 90u << 20, 0, true);
        bound a, b = {0};
        if (bind(be, &a, tiny, limits_of(64, 8), 0)) {
            make_rows(&a, &r, 2, 5);
            bound_launch(a.p, &r.b, r.draws, VOCAB);
            if (moved)
                EXPECT(bind(be, &b, "dummy:tiny?layers=1&vocab=3000", limits_of(64, 600), 20));
            EXPECT_EQ(be_step_finish(be, &result, &err), INFERD_OK);
            memcpy(drawn, result.draws, sizeof drawn);
            for (int i = 0; i < 2; i++) r.tokens[i] = TOK_PENDING, r.pending[i] = (uint32_t)i;
            EXPECT_EQ(step(be, &a, &r, next[moved], &err), INFERD_OK);
            if (err.text[0] != 0) printf("%s\n", err.text);
            EXPECT(drawn[0].id >= 0);
            if (b.p != NULL) remove_model(&b);
            remove_model(&a);
        }
        close_device(be);
    }
    for (int i = 0; i < 2; i++)
        EXPECT(next[0][i].id == next[1][i].id && next[0][i].logprob == next[1][i].logprob);
}

/* ---- a workspace that is short ---- */

/* As small as the model allows, attention has partials for a row or two: more launches, the same
 * bits.  A step used to fail where they found no room. */
static void short_of_partials_attention_takes_more_launches(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    static rows r;
    static sample_result got[2][6];
    inferd_err err = {0};
    backend *be = open_device(200, 58u << 20, 0, false);
    bound p;
    uint64_t n_launches[2] = {0};
    EXPECT(!bind(be, &p, tiny, limits_of(2048, ROWS), 0));
    uint64_t least = needed(&p.err);
    close_device(be);
    for (int large = 0; large < 2; large++) {
        be = open_device(200, large ? 110u << 20 : least, 0, true);
        cuda_backend *c = cuda_of(be);
        if (bind(be, &p, tiny, limits_of(2048, ROWS), 0)) {
            size_t row = attention_partials_bytes(1, 4, 64);
            EXPECT_EQ(c->attn_workspace.partials_bytes < 40 * row, !large);
            make_rows(&p, &r, 6, 700);
            n_launches[large] = c->launch.n_launches;
            EXPECT_EQ(step(be, &p, &r, got[large], &err), INFERD_OK);
            n_launches[large] = c->launch.n_launches - n_launches[large];
            remove_model(&p);
        } else {
            printf("%s\n", p.err.text);
            EXPECT(!"it opens");
        }
        close_device(be);
    }
    for (int i = 0; i < 6; i++)
        EXPECT(got[0][i].id == got[1][i].id && got[0][i].logprob == got[1][i].logprob);
    EXPECT(n_launches[0] >= n_launches[1]);
}

/* Lists of biases that find no room on the device are read where the host wrote them. */
static void a_long_draw_plan_stays_on_the_host(void) {
    if (on_gpu()) SKIP("what fits is the fake's");
    enum { N_BIAS = 30000, N_ROWS = 8 };
    static rows r;
    static logit_bias bias[N_BIAS];
    static sample_result got[2][ROWS];
    inferd_err err = {0};
    sample_params biased = greedy;
    for (uint32_t i = 0; i < N_BIAS; i++)
        bias[i] = (logit_bias){(tok_id)(i % 500 + 3), i % 7 == 0 ? 1.0f : -0.5f};
    biased.bias = bias;
    biased.n_bias = N_BIAS;
    for (int large = 0; large < 2; large++) {
        uint64_t least = 58u << 20;
        bound p;
        backend *be = open_device(200, least, 0, true);
        EXPECT(!bind(be, &p, tiny, limits_of(2048, ROWS), 0));
        least = needed(&p.err);
        close_device(be);
        be = open_device(200, large ? 110u << 20 : least, 0, true);
        cuda_backend *c = cuda_of(be);
        if (bind(be, &p, tiny, limits_of(2048, ROWS), 0)) {
            make_rows(&p, &r, N_ROWS, 10);
            for (uint32_t i = 0; i < N_ROWS; i++) r.draws[i].params = &biased;
            for (int again = large; again < 2; again++) {
                uint64_t n_growths = c->n_growths;
                EXPECT_EQ(step(be, &p, &r, got[large], &err), INFERD_OK);
                EXPECT_EQ(c->draw_at == c->draw_dev, large);
                if (again > large) EXPECT_EQ(c->n_growths, n_growths); // it is not tried again
            }
            if (err.text[0] != 0) printf("%s\n", err.text);
            EXPECT(runs(be, &p, 3, 10)); // short lists again
            remove_model(&p);
        }
        close_device(be);
    }
    for (int i = 0; i < N_ROWS; i++)
        EXPECT(got[0][i].id == got[1][i].id && got[0][i].logprob == got[1][i].logprob);
}

/* ---- graphs ---- */

/* Every number of rows and contexts to 128k, in an order that mixes them: after each kind was seen
 * and captured nothing is captured again. */
static void a_mixed_load_captures_each_kind_once(void) {
    if (on_gpu()) SKIP("kernels do not run");
    without_lt = true;
    backend *be = open_device(256, 128u << 20, 0, false);
    without_lt = false;
    cuda_backend *c = cuda_of(be);
    bound p;
    if (bind(be, &p, longest, limits_of(ROWS, ROWS), 0)) {
        uint64_t n_captured = 0, n_kinds = c->n_graphs;
        for (int pass = 0; pass < 3; pass++) {
            for (uint32_t i = 0; i < ROWS * 9; i++) {
                uint32_t n = 1 + i * 37 % ROWS, context = 500u << i / ROWS;
                if (!runs(be, &p, n, context)) break;
            }
            if (pass == 1) n_captured = c->n_graphs_captured, n_kinds = c->n_graphs;
        }
        EXPECT_EQ(n_kinds, 95); // 19 of rows, 5 of contexts
        EXPECT_EQ(n_captured, n_kinds);
        EXPECT_EQ(c->n_graphs_captured, n_captured);
        EXPECT_EQ(c->n_graphs_refused, 0);
        remove_model(&p);
    } else {
        printf("%s\n", p.err.text);
        EXPECT(!"it opens");
    }
    close_device(be);
}

static const test_case cases[] = {
    TEST(a_model_that_opens_has_room_for_its_largest_step),
    TEST(a_mixture_has_room_for_its_largest_step),
    TEST(the_workspace_follows_from_the_models),
    TEST(a_small_device_is_expected_to_take_small_steps),
    TEST(models_come_and_go_beside_each_other),
    TEST(a_model_that_fails_to_open_leaves_the_others),
    TEST(drawn_tokens_outlive_a_reservation),
    TEST(short_of_partials_attention_takes_more_launches),
    TEST(a_long_draw_plan_stays_on_the_host),
    TEST(a_mixed_load_captures_each_kind_once),
};

int main(int argc, char **argv) {
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
