/* test_cuda_bound.c - models on the CUDA backend (on emulation, or on a GPU when
 * INFERD_CUDA_MODULE names an inferd_cuda.so): warm without pages of the device, loaded unit by
 * unit, loaded again without reading, and gone from the host when unstaged. */
#include "cuda/cuda.h"
#include "cuda_emul/fake_api.h"
#include "bound_rig.h"

const struct cuda_module *emul_module(void);

enum { ALL = 1000000 };

static char path[64], other_path[64];

static bool on_gpu(void) {
    const char *module = getenv("INFERD_CUDA_MODULE");
    return module != NULL && module[0] != 0;
}

static void make_files(void) {
    if (path[0] != 0) return;
    snprintf(path, sizeof path, "/tmp/test_cuda_placed.%d.gguf", (int)getpid());
    snprintf(other_path, sizeof other_path, "/tmp/test_cuda_placed.%d.other", (int)getpid());
    tiny_model_write(path, 11, &(tiny_model_options){.type = DTYPE_Q8_0, .n_layers = 3});
    /* Its vocabulary and its dim are the same, the rest is not. */
    tiny_model_write(other_path, 12,
                     &(tiny_model_options){.type = DTYPE_F16,
                                           .n_layers = 2,
                                           .dim = 96,
                                           .n_heads = 3,
                                           .n_kv_heads = 1,
                                           .ffn_dim = 352});
}

static backend_options on_cuda(void) {
    backend_options o = {.kind = "cuda",
                         .n_threads = 1,
                         .memory_bytes = 112u << 20,
                         .workspace_bytes = 64u << 20,
                         .activations = "f16"};
    if (!on_gpu()) o.module = emul_module();
    return o;
}

static bool cuda_open_rig(rig *r, const char *file) {
    backend_options o = on_cuda();
    make_files();
    fake_reset();
    return rig_open(r, &o, file);
}

static void cuda_close_rig(rig *r) {
    rig_close(r);
    if (on_gpu()) return;
    EXPECT_EQ(fake_take_violations(), 0);
    EXPECT_EQ(fake_leaks(), 0);
}

/* Logits of the last layer's rows; the device draws, so they are asked for here. */
static bool score(rig *r, told *out) {
    text t;
    static const sample_params params = {.top_p = 1, .repetition_penalty = 1};
    static sample_row draws[RIG_ROWS];
    be_step_result result;
    inferd_err err = {0};
    text_make(&t, bound_kv(r->p), r->kv_page);
    for (uint32_t i = 0; i < RIG_ROWS; i++)
        draws[i] = (sample_row){.params = &params, .forced = (tok_id)(7 + i * 31)};
    bound_launch(r->p, &t.b, draws, model_about(r->m)->n_vocab);
    if (!fine(be_step_finish(r->be, &result, &err), &err)) return false;
    for (uint32_t i = 0; i < RIG_ROWS; i++) out->logits[i] = result.draws[i].logprob;
    out->n = RIG_ROWS;
    return true;
}

static void stage_all(rig *r) {
    inferd_err err = {0};
    inferd_status st;
    bound_progress at = {0};
    bell b = {0};
    sem_init(&b.woken, 0, 0);
    if (fine(rig_stage_begin(r, &b, &err), &err)) {
        rig_pieces(r, &b, ALL, &at, &st, &err);
        fine(st, &err);
    }
    EXPECT_EQ(bound_state_of(r->p), BOUND_WARM);
    sem_destroy(&b.woken);
}

static uint32_t load_all(rig *r) {
    inferd_err err = {0};
    bound_progress at = {0};
    uint32_t n = 0;
    if (!fine(bound_load_begin(r->p, r->pages, r->n_pages, &err), &err)) return 0;
    for (; !at.finished && n < ALL; n++) {
        uint64_t before = at.done;
        if (!fine(bound_load_step(r->p, 0, &at, &err), &err)) return 0;
        EXPECT(at.done >= before && at.done <= at.total);
    }
    EXPECT_EQ(at.done, at.total);
    EXPECT_EQ(bound_state_of(r->p), BOUND_HOT);
    return n;
}

static void a_model_is_warm_without_pages_and_loads_unit_by_unit(void) {
    static told first, again, cold;
    rig r;
    if (cuda_open_rig(&r, path)) {
        backend_stats stats;
        EXPECT(bound_host_pages(r.p) > 0 && bound_host_pages(r.p) <= r.n_pages);
        EXPECT(!be_one_memory(r.be));
        stage_all(&r);
        be_get_stats(r.be, &stats);
        EXPECT_EQ(stats.load_bytes, 0);
        EXPECT(load_all(&r) >= 4); // the ends and three layers
        score(&r, &first);
        bound_unload(r.p);
        EXPECT_EQ(bound_state_of(r.p), BOUND_WARM);
        for (uint32_t i = 0; i < r.n_pages; i++)
            r.pages[i] += r.n_pages + RIG_KV_PAGES; // elsewhere
        for (int i = 0; i < 100000 && be_n_pages_ready(r.be) <= r.pages[r.n_pages - 1]; i++) nap();
        load_all(&r);
        score(&r, &again);
        EXPECT(same(&first, &again));
        bound_unstage(r.p);
        stage_all(&r);
        load_all(&r);
        score(&r, &cold);
        EXPECT(same(&first, &cold));
    }
    cuda_close_rig(&r);
}

/* From the file to pages of the device; a host copy is made of what is there, and dropped. */
static void a_model_passes_through_host_memory(void) {
    static told first, through, back;
    rig r;
    if (cuda_open_rig(&r, path)) {
        inferd_err err = {0};
        bound_progress at = {0};
        inferd_status st;
        bell b = {0};
        sem_init(&b.woken, 0, 0);
        stage_all(&r);
        load_all(&r);
        score(&r, &first);
        bound_unstage(r.p);
        fine(bound_stage_begin(r.p, r.pages, r.n_pages, bell_ring, &b, &err), &err);
        rig_pieces(&r, &b, ALL, &at, &st, &err);
        fine(st, &err);
        load_all(&r);
        score(&r, &through);
        EXPECT(same(&first, &through));
        fine(bound_save_begin(r.p, &err), &err);
        for (at.finished = false; !at.finished;)
            if (!fine(bound_save_step(r.p, 0, &at, &err), &err)) break;
        bound_unload(r.p);
        EXPECT_EQ(bound_state_of(r.p), BOUND_WARM);
        load_all(&r);
        score(&r, &back);
        EXPECT(same(&first, &back));
        bound_drop_copy(r.p);
        bound_unstage(r.p);
        EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
        sem_destroy(&b.woken);
    }
    cuda_close_rig(&r);
}

/* Before anything was queued but the first unit: what the step reads is queued then. */
static void a_step_may_be_launched_while_its_weights_are_on_their_way(void) {
    static told wanted, got;
    rig r;
    inferd_err err = {0};
    bound_progress at = {0};
    if (cuda_open_rig(&r, path)) {
        stage_all(&r);
        load_all(&r);
        score(&r, &wanted);
        for (int n = 0; n < 3; n++) {
            bound_unload(r.p);
            fine(bound_load_begin(r.p, r.pages, r.n_pages, &err), &err);
            for (int i = 0; i < n; i++) bound_load_step(r.p, 0, &at, &err);
            score(&r, &got);
            EXPECT(same(&wanted, &got));
            for (int i = 0; i < ALL && bound_state_of(r.p) == BOUND_LOADING; i++)
                if (!fine(bound_load_step(r.p, 0, &at, &err), &err)) break;
            EXPECT_EQ(bound_state_of(r.p), BOUND_HOT);
        }
    }
    cuda_close_rig(&r);
}

static void unstaging_gives_the_hosts_memory_back(void) {
    rig r;
    inferd_err err = {0};
    bound_progress at = {0};
    inferd_status st;
    bell b = {0};
    sem_init(&b.woken, 0, 0);
    if (cuda_open_rig(&r, path)) {
        const cuda_memory *m = cuda_of(r.be)->memory;
        cuda_memory_stats stats;
        memory_swap_trim((cuda_memory *)m); // made for keys and values when it was opened
        for (uint32_t n = 0; n < 6; n++) {  // given up after so many pieces
            if (!fine(rig_stage_begin(&r, &b, &err), &err)) break;
            memory_get_stats((cuda_memory *)m, &stats);
            EXPECT(stats.image_bytes > 0);
            rig_pieces(&r, &b, n * 4, &at, &st, &err);
            at = (bound_progress){0};
            bound_unstage(r.p);
            memory_get_stats((cuda_memory *)m, &stats);
            EXPECT_EQ(stats.image_bytes, 0);
            EXPECT_EQ(stats.pinned_bytes, 0);
        }
        stage_all(&r);
        load_all(&r);
        bound_unstage(r.p); // from HOT
        memory_get_stats((cuda_memory *)m, &stats);
        EXPECT_EQ(stats.image_bytes + stats.pinned_bytes, 0);
        EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
    }
    cuda_close_rig(&r);
    sem_destroy(&b.woken);
}

static void host_bytes_bound_what_is_warm(void) {
    rig r;
    inferd_err err = {0};
    backend_options o = on_cuda();
    make_files();
    fake_reset();
    o.host_bytes = 64 << 10;
    if (rig_open(&r, &o, "dummy:tiny")) { // takes nothing of the host
        EXPECT_EQ(bound_host_pages(r.p), 0);
        EXPECT_EQ(bound_stage_bytes(r.p), 0);
        EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err), INFERD_OK);
        bound_close(r.p);
        model_close(r.m);
        model_limits limits = {.rows_max = 4, .logits_max = 4, .kv = KV_F16};
        r.p = NULL;
        r.m = open_model(path);
        fine(bound_open(r.m, r.be, &limits, &r.p, &err), &err);
        EXPECT_EQ(bound_stage_begin(r.p, NULL, 0, NULL, NULL, &err), INFERD_ENOMEM);
        EXPECT(strstr(err.text, "host copy") != NULL);
        EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
        EXPECT_EQ(be_n_host_pages(r.be), 0);
    }
    cuda_close_rig(&r);
}

/* Both on one stream and in one scratch, two steps on their way. */
static void activations_lie_over_each_other(void) {
    static told wanted[2], got;
    rig r[2];
    const char *files[2] = {path, other_path};
    make_files();
    for (int i = 0; i < 2; i++) {
        inferd_err err = {0};
        if (cuda_open_rig(&r[0], files[i])) {
            fine(bound_bring_up(r[0].p, r[0].pages, r[0].n_pages, &err), &err);
            score(&r[0], &wanted[i]);
        }
        cuda_close_rig(&r[0]);
    }
    if (cuda_open_rig(&r[0], files[0])) {
        inferd_err err = {0};
        size_t one = memory_scratch_held(cuda_of(r[0].be)->memory);
        r[1] = (rig){.be = r[0].be};
        if (rig_bind(&r[1], files[1], r[0].kv_page + RIG_KV_PAGES)) {
            size_t two = memory_scratch_held(cuda_of(r[0].be)->memory);
            EXPECT(one > 0 && two < one + (64 << 10)); // most of it was there
            for (int i = 0; i < 2; i++)
                fine(bound_bring_up(r[i].p, r[i].pages, r[i].n_pages, &err), &err);
            for (int n = 0; n < 6; n++) {
                score(&r[n % 2], &got);
                EXPECT(same(&wanted[n % 2], &got));
            }
            static text t[2];
            static const sample_params params = {.top_p = 1, .repetition_penalty = 1};
            static sample_row draws[RIG_ROWS];
            be_step_result result;
            for (uint32_t i = 0; i < RIG_ROWS; i++)
                draws[i] = (sample_row){.params = &params, .forced = (tok_id)(7 + i * 31)};
            for (int i = 0; i < 2; i++) {
                text_make(&t[i], bound_kv(r[i].p), r[i].kv_page);
                bound_launch(r[i].p, &t[i].b, draws, model_about(r[i].m)->n_vocab);
            }
            for (int i = 0; i < 2; i++) {
                if (!fine(be_step_finish(r[0].be, &result, &err), &err)) break;
                for (uint32_t k = 0; k < RIG_ROWS; k++)
                    EXPECT(result.draws[k].logprob == wanted[i].logits[k]);
            }
        }
        r[1].be = NULL;
        rig_close(&r[1]);
    }
    cuda_close_rig(&r[0]);
}

/* Each call that a load makes fails once: a sentence, nothing left, and the next time it is fine.
 */
static void a_load_that_fails_leaves_nothing(void) {
    if (on_gpu()) SKIP("a real device does not fail on demand");
    static const char *const calls[] = {"vmm_map", "vmm_access", "copy_to_device", "event_record",
                                        "event_query"};
    static told wanted, got;
    for (size_t i = 0; i < INFERD_COUNT(calls); i++) {
        rig r;
        inferd_err err = {0};
        if (cuda_open_rig(&r, path)) {
            fine(bound_bring_up(r.p, r.pages, r.n_pages, &err), &err);
            score(&r, &wanted);
            bound_unstage(r.p);
            stage_all(&r);
            fake_fail_call(calls[i], 1, CU_EFAILED);
            bound_progress at = {0};
            inferd_status st = bound_load_begin(r.p, r.pages, r.n_pages, &err);
            bound_state left = st == INFERD_OK ? BOUND_COLD : BOUND_WARM;
            for (int n = 0; st == INFERD_OK && !at.finished && n < ALL; n++)
                st = bound_load_step(r.p, 0, &at, &err);
            EXPECT_EQ(st, INFERD_EDEVICE);
            EXPECT(err.text[0] != 0);
            EXPECT_EQ(bound_state_of(r.p), left);
            bound_unstage(r.p);
            err = (inferd_err){0};
            fine(bound_bring_up(r.p, r.pages, r.n_pages, &err), &err);
            score(&r, &got);
            EXPECT(same(&wanted, &got));
        }
        cuda_close_rig(&r);
    }
}

/* Without VMM a window is where its pages are: another place each time. */
static void without_vmm_weights_are_bound_where_they_are(void) {
    if (on_gpu()) SKIP("a real device has VMM");
    static told first, again;
    rig r;
    backend_options o = on_cuda();
    make_files();
    fake_reset();
    fake_options()->device[0].vmm = false;
    if (rig_open(&r, &o, path)) {
        EXPECT_EQ(be_extent_pages(r.be), 0);
        stage_all(&r);
        load_all(&r);
        score(&r, &first);
        bound_unload(r.p);
        for (uint32_t i = 0; i < r.n_pages; i++) r.pages[i] += r.n_pages + RIG_KV_PAGES;
        load_all(&r);
        score(&r, &again);
        EXPECT(same(&first, &again));
    }
    cuda_close_rig(&r);
}

/* ---- graphs ---- */

/* The log-probability of a token after the text, by a step of one row; false: it failed. */
static bool decode(rig *r, float *out) {
    text t;
    static const sample_params params = {.top_p = 1, .repetition_penalty = 1};
    static const sample_row draw = {.params = &params, .forced = 7};
    static uint32_t first_row = 0;
    be_step_result result;
    inferd_err err = {0};
    text_make(&t, bound_kv(r->p), r->kv_page);
    t.seq.n_rows = 1;
    t.seq.pos_begin = RIG_ROWS - 1;
    t.tokens[0] = t.tokens[RIG_ROWS - 1];
    t.positions[0] = RIG_ROWS - 1;
    t.b.n_rows = t.b.n_logits = 1;
    t.b.logit_rows = &first_row;
    bound_launch(r->p, &t.b, &draw, model_about(r->m)->n_vocab);
    if (!fine(be_step_finish(r->be, &result, &err), &err)) return false;
    *out = result.draws[0].logprob;
    return true;
}

/* `n` steps that give `wanted`; how many of them were graphs. */
static uint64_t decode_same(rig *r, uint32_t n, float wanted) {
    backend_stats before, after;
    be_get_stats(r->be, &before);
    for (uint32_t i = 0; i < n; i++) {
        float got = 0;
        if (decode(r, &got)) EXPECT(got == wanted);
    }
    be_get_stats(r->be, &after);
    return after.n_graph_launches - before.n_graph_launches;
}

/* One unit at a time, and a step of the other model after each: always a graph.  How many of them
 * were launched while something was on its way. */
static uint32_t load_beside(rig *r, rig *other, float wanted_of_other) {
    inferd_err err = {0};
    bound_progress at = {0};
    uint32_t n_beside = 0;
    if (!fine(bound_load_begin(r->p, r->pages, r->n_pages, &err), &err)) return 0;
    for (uint32_t n = 0; !at.finished && n < ALL; n++) {
        if (!fine(bound_load_step(r->p, 0, &at, &err), &err)) break;
        n_beside += !memory_all_arrived(cuda_of(r->be)->memory);
        EXPECT_EQ(decode_same(other, 1, wanted_of_other), 1);
    }
    return n_beside;
}

static void go_to(rig *r, uint32_t first_page) {
    bound_unload(r->p);
    for (uint32_t i = 0; i < r->n_pages; i++) r->pages[i] = first_page + i;
}

/* Two models, each loaded while the other decodes with graphs; then each is evicted and comes back
 * where the other one was.  Without VMM their weights have other addresses then, and what a graph
 * of the other model knows lies there. */
static void graphs_go_on_while_another_model_comes_and_goes(void) {
    if (on_gpu()) SKIP("a real device loads too fast");
    for (int vmm = 0; vmm < 2; vmm++) {
        rig r[2];
        backend_options o = on_cuda();
        const char *files[2] = {path, other_path};
        float wanted[2];
        uint32_t n_beside = 0;
        static told unused;
        make_files();
        fake_reset();
        fake_options()->device[0].vmm = vmm != 0;
        fake_options()->advance_pct = 2; // uploads take a few steps
        o.memory_bytes = 160u << 20;
        if (!rig_open(&r[0], &o, files[0])) continue;
        r[1] = (rig){.be = r[0].be};
        if (!rig_bind(&r[1], files[1], r[0].kv_page + RIG_KV_PAGES)) continue;
        uint32_t extent = u32_max(be_extent_pages(r[0].be), 1), most = 0, starts[2];
        for (int i = 0; i < 2; i++) most = u32_max(most, r[i].n_pages);
        most = (most + extent - 1) / extent * extent;
        starts[0] = (r[1].kv_page + RIG_KV_PAGES + extent - 1) / extent * extent;
        starts[1] = starts[0] + most;
        INFERD_CHECK(starts[1] + most <= be_n_pages(r[0].be));
        for (int i = 0; i < 100000 && be_n_pages_ready(r[0].be) < starts[1] + most; i++) nap();
        for (int i = 0; i < 2; i++) {
            go_to(&r[i], starts[i]);
            stage_all(&r[i]);
            load_all(&r[i]);
            score(&r[i], &unused); // keys and values of the text
            decode(&r[i], &wanted[i]);
            EXPECT(decode_same(&r[i], 3, wanted[i]) >= 2);
            bound_unload(r[i].p);
        }
        load_all(&r[0]);
        for (int round = 0; round < 3; round++) { // both come back in either place
            rig *a = &r[round % 2], *b = &r[1 - round % 2];
            float of_a = wanted[round % 2], of_b = wanted[1 - round % 2];
            decode_same(a, 3, of_a); // without VMM: captured again when it has moved
            n_beside += load_beside(b, a, of_a);
            decode_same(b, 3, of_b);
            go_to(a, starts[(round / 2 + round + 1) % 2]);
            go_to(b, starts[(round / 2 + round) % 2]);
            load_all(b);
        }
        EXPECT(n_beside > 4);
        r[1].be = NULL;
        rig_close(&r[1]);
        cuda_close_rig(&r[0]);
    }
}

static const test_case cases[] = {
    TEST(a_model_is_warm_without_pages_and_loads_unit_by_unit),
    TEST(a_step_may_be_launched_while_its_weights_are_on_their_way),
    TEST(unstaging_gives_the_hosts_memory_back),
    TEST(a_model_passes_through_host_memory),
    TEST(host_bytes_bound_what_is_warm),
    TEST(activations_lie_over_each_other),
    TEST(a_load_that_fails_leaves_nothing),
    TEST(without_vmm_weights_are_bound_where_they_are),
    TEST(graphs_go_on_while_another_model_comes_and_goes),
};

int main(int argc, char **argv) {
    int rc = test_run(cases, INFERD_COUNT(cases), argc, argv);
    unlink(path);
    unlink(other_path);
    return rc;
}
