/* test_bound.c - a model on backends: activations of many in one scratch, weights of one file for
 * two slots of a device, CPUs and host memory that a backend is given, and files that are replaced
 * or the same. */
#include <pthread.h>
#include <sched.h>

#include "cpu/cpu.h"
#include "device.h"
#include "bound_rig.h"

static char paths[2][64];

/* Two models that have nothing in common but being small. */
static void make_files(void) {
    if (paths[0][0] != 0) return;
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "/tmp/test_placed.%d.%d", (int)getpid(), i);
    tiny_model_write(paths[0], 3, &(tiny_model_options){.n_layers = 2});
    tiny_model_write(paths[1], 5,
                     &(tiny_model_options){.type = DTYPE_F16,
                                           .n_layers = 3,
                                           .dim = 96,
                                           .n_heads = 3,
                                           .n_kv_heads = 1,
                                           .ffn_dim = 352,
                                           .tied = true});
}

static void bring_up(rig *r) {
    inferd_err err = {0};
    fine(bound_bring_up(r->p, r->pages, r->n_pages, &err), &err);
}

/* ---- one scratch ---- */

static void models_of_different_shape_share_their_activations(void) {
    static told wanted[3], got;
    const char *all[3] = {paths[0], paths[1], "dummy:tiny-gemma3?dtype=q8_0"};
    rig r[3];
    make_files();
    for (int i = 0; i < 3; i++) told_by(all[i], on_cpu(1), &wanted[i]);
    if (!rig_open(&r[0], on_cpu(2), all[0])) return;
    bring_up(&r[0]);
    for (int i = 1; i < 3; i++) { // each larger than those before
        r[i] = (rig){.be = r[0].be};
        if (!rig_bind(&r[i], all[i], r[i - 1].kv_page + RIG_KV_PAGES)) return;
        bring_up(&r[i]);
        rig_score(&r[0], &got); // where its activations were
        EXPECT(same(&wanted[0], &got));
    }
    for (int n = 0; n < 9; n++) {
        rig_score(&r[n * 2 % 3], &got);
        EXPECT(same(&wanted[n * 2 % 3], &got));
    }
    for (int i = 1; i < 3; i++) { // one leaves, the others stay
        r[i].be = NULL;
        rig_close(&r[i]);
        rig_score(&r[0], &got);
        EXPECT(same(&wanted[0], &got));
    }
    rig_close(&r[0]);
}

static uint64_t resident_bytes(void) {
    unsigned long long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    INFERD_CHECK(f != NULL && fscanf(f, "%llu %llu", &pages, &resident) == 2);
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Twelve models with room for 1,024 rows have the memory of one. */
static void many_models_take_the_scratch_of_one(void) {
    enum { N = 12, ROWS = 1024 };
    backend *be;
    model *m = open_model("dummy:tiny?vocab=4096");
    bound_model *p[N] = {NULL};
    model_limits limits = {.rows_max = ROWS, .logits_max = ROWS, .kv = KV_F16};
    inferd_err err = {0};
    uint64_t first = 0;
    if (m == NULL || !fine(backend_open(on_cpu(1), &be, &err), &err)) return;
    while (be_n_pages_warm(be) < be_n_pages(be)) nap(); // they are not counted below
    uint64_t before = resident_bytes();
    for (int i = 0; i < N; i++) {
        fine(bound_open(m, be, &limits, &p[i], &err), &err);
        if (i == 0) first = resident_bytes() - before;
    }
    uint64_t all = resident_bytes() - before;
    EXPECT(first >= (uint64_t)ROWS * 4096 * sizeof(float)); // logits alone
    EXPECT(all < first + first / 4);
    for (int i = 0; i < N; i++) bound_close(p[i]);
    backend_close(be);
    model_close(m);
}

/* ---- what a backend is given ---- */

static void host_bytes_are_pages_of_the_arena(void) {
    backend_options o = *on_cpu(1);
    backend *be;
    inferd_err err = {0};
    o.memory_bytes = 10u << 20;
    o.host_bytes = 7u << 20; // three pages and a half
    if (!fine(backend_open(&o, &be, &err), &err)) return;
    EXPECT(be_one_memory(be));
    EXPECT_EQ(be_n_host_pages(be), 3);
    EXPECT_EQ(be_n_pages(be), 8);
    backend_close(be);
}

static void a_window_that_cannot_grow_keeps_what_it_has(void) {
    enum { PAGE = 2 << 20 };
    backend *be;
    be_window *w;
    inferd_err err = {0};
    if (!fine(backend_open(on_cpu(1), &be, &err), &err)) return;
    fine(be_window_open(be, 3 * (size_t)PAGE, &w, &err), &err);
    fine(be_window_map(be, w, (uint32_t[]){5}, 1, &err), &err);
    unsigned char *base = be_window_base(w);
    base[7] = 42;
    arena_fail_move_at(cpu_of(be)->pages, 2); // page 6 has moved by then
    EXPECT_EQ(be_window_grow(be, w, (uint32_t[]){6, 7}, 2, &err), INFERD_EDEVICE);
    EXPECT_EQ(base[7], 42);
    EXPECT_EQ(be_window_grow(be, w, (uint32_t[]){8, 9, 10}, 3, &err), INFERD_EINVAL); // no room
    EXPECT_EQ(be_window_grow(be, w, (uint32_t[]){5}, 1, &err), INFERD_EINVAL);        // its own
    EXPECT_EQ(be_window_grow(be, w, (uint32_t[]){6, 7}, 2, &err), INFERD_OK);
    base[2 * (size_t)PAGE] = base[PAGE] = 1;
    fine(be_window_unmap(be, w, &err), &err);
    fine(be_window_map(be, w, (uint32_t[]){5}, 1, &err), &err);
    EXPECT_EQ(base[7], 42); // it went home with what was in it
    be_window_close(be, w);
    backend_close(be);
}

typedef struct where {
    cpu_set_t seen[2];
} where;

static void look_where(void *ctx, uint32_t i) {
    where *w = ctx;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    CPU_OR(&w->seen[i % 2], &w->seen[i % 2], &set);
}

typedef struct bound {
    char cores[16];
    char path[64];
    told got;
    where w;
    uint32_t n_threads;
    cpu_set_t after;
} bound;

static void *run_bound(void *ctx) {
    bound *b = ctx;
    backend_options o = *on_cpu(0);
    rig r;
    o.cores = b->cores;
    if (rig_open(&r, &o, b->path)) {
        bring_up(&r);
        b->n_threads = be_n_threads(r.be);
        for (int i = 0; i < 20; i++) rig_score(&r, &b->got);
        be_parallel(r.be, 64, look_where, &b->w);
    }
    rig_close(&r);
    sched_getaffinity(0, sizeof b->after, &b->after);
    return NULL;
}

/* One CPU each, at the same time; afterwards their callers may run everywhere again. */
static void two_backends_stay_on_their_own_cpus(void) {
    static told wanted;
    static bound b[2];
    cpu_set_t all, seen;
    pthread_t threads[2];
    int cpus[2], n = 0;
    make_files();
    sched_getaffinity(0, sizeof all, &all);
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &all)) cpus[n++] = i;
    if (n < 2) SKIP("there is one CPU");
    told_by(paths[0], on_cpu(1), &wanted);
    for (int i = 0; i < 2; i++) {
        snprintf(b[i].cores, sizeof b[i].cores, "%d", cpus[i]);
        snprintf(b[i].path, sizeof b[i].path, "%s", paths[0]);
        INFERD_CHECK(pthread_create(&threads[i], NULL, run_bound, &b[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(same(&wanted, &b[i].got));
        EXPECT_EQ(b[i].n_threads, 1);
        CPU_OR(&seen, &b[i].w.seen[0], &b[i].w.seen[1]);
        EXPECT_EQ(CPU_COUNT(&seen), 1);
        EXPECT(CPU_ISSET(cpus[i], &seen));
        EXPECT(CPU_EQUAL(&b[i].after, &all));
    }
}

static void wrong_lists_of_cpus_are_refused(void) {
    static const struct {
        const char *cores, *words;
        uint32_t n_threads;
    } all[] = {
        {"x", "cores is \"x\", expected CPUs and ranges", 0},
        {"0,", "expected CPUs and ranges", 0},
        {",0", "expected CPUs and ranges", 0},
        {"1-0", "expected CPUs and ranges", 0},
        {"0-", "expected CPUs and ranges", 0},
        {"0 1", "expected CPUs and ranges", 0},
        {"-1", "expected CPUs and ranges", 0},
        {"99999999999", "expected CPUs and ranges", 0},
        {"0,1023", "CPU 1023 does not exist", 0},
        {"0", "2 compute threads, and cores \"0\" names 1", 2},
    };
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    if (!CPU_ISSET(0, &mine) || CPU_ISSET(1023, &mine)) SKIP("other CPUs than the test thinks");
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        backend_options o = *on_cpu(all[i].n_threads);
        backend *be = NULL;
        inferd_err err = {0};
        o.cores = all[i].cores;
        EXPECT_EQ(backend_open(&o, &be, &err), INFERD_EINVAL);
        EXPECT(strstr(err.text, all[i].words) != NULL);
        if (strstr(err.text, all[i].words) == NULL) printf("%s\n", err.text);
    }
    cpu_set_t after;
    sched_getaffinity(0, sizeof after, &after);
    EXPECT(CPU_EQUAL(&mine, &after));
}

/* ---- files ---- */

static void copy_file(const char *from, const char *to) {
    static char part[1 << 20];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    INFERD_CHECK(in != NULL && out != NULL);
    for (size_t n; (n = fread(part, 1, sizeof part, in)) > 0;)
        INFERD_CHECK(fwrite(part, 1, n, out) == n);
    fclose(in);
    INFERD_CHECK(fclose(out) == 0);
}

static void set_byte(const char *path, off_t at, int c) {
    char byte = (char)c;
    int fd = open(path, O_RDWR);
    INFERD_CHECK(fd >= 0 && pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* Weights that two names share: the file of one is gone, and that of the other is read. */
static void weights_are_read_from_another_file_of_the_same_content(void) {
    char path[80];
    inferd_err err = {0};
    rig r;
    make_files();
    snprintf(path, sizeof path, "%s.first", paths[0]);
    copy_file(paths[0], path);
    if (rig_open(&r, on_cpu(1), path)) {
        model *other = open_model(paths[0]);
        EXPECT_EQ(unlink(path), 0);
        EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err), INFERD_EIO);
        bound_read_from(r.p, other);
        model_close(r.m); // nothing of it is used any more
        r.m = other;
        EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err), INFERD_OK);
        EXPECT_EQ(bound_state_of(r.p), BOUND_HOT);
    }
    rig_close(&r);
}

static void a_replaced_file_is_noticed(void) {
    char path[80], moved[90];
    make_files();
    snprintf(path, sizeof path, "%s.copy", paths[0]);
    snprintf(moved, sizeof moved, "%s.aside", path);
    for (int how = 0; how < 4; how++) {
        copy_file(paths[0], path);
        model *m = open_model(path);
        if (m == NULL) continue;
        model_file_id before, after;
        inferd_err err = {0};
        EXPECT_EQ(model_look_at_file(m, &before, &err), MODEL_FILE_SAME);
        if (how == 0) { // another one, the same bytes
            copy_file(path, moved);
            EXPECT_EQ(rename(moved, path), 0);
        } else if (how == 1) {
            EXPECT_EQ(truncate(path, 100), 0);
        } else if (how == 2) {
            struct timespec times[2] = {{1, 0}, {1, 0}};
            EXPECT_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
        } else {
            EXPECT_EQ(unlink(path), 0);
        }
        EXPECT_EQ(model_look_at_file(m, &after, &err),
                  how == 3 ? MODEL_FILE_MISSING : MODEL_FILE_REPLACED);
        EXPECT((how == 3) == (strstr(err.text, path) != NULL));
        EXPECT(before.inode != 0 && memcmp(&before, &after, sizeof before) != 0);
        EXPECT(how != 1 || (after.inode == before.inode && after.n_bytes == 100));
        model_close(m);
        unlink(path);
    }
    model *m = open_model("dummy:tiny");
    model_file_id id;
    inferd_err err = {0};
    EXPECT(m != NULL);
    EXPECT_EQ(model_look_at_file(m, &id, &err), MODEL_FILE_SAME);
    model_close(m);
}

static bool are_same(const char *a, const char *b) {
    model *x = open_model(a), *y = open_model(b);
    inferd_err err = {0};
    bool there = false, back = true;
    if (x != NULL && y != NULL) {
        fine(model_same_content(x, y, &there, &err), &err);
        fine(model_same_content(y, x, &back, &err), &err);
        EXPECT_EQ(there, back);
    }
    model_close(x);
    model_close(y);
    return there;
}

static void the_same_bytes_are_the_same_model(void) {
    char path[80];
    struct stat info;
    make_files();
    snprintf(path, sizeof path, "%s.copy", paths[0]);
    copy_file(paths[0], path);
    INFERD_CHECK(stat(path, &info) == 0);
    EXPECT(are_same(paths[0], paths[0]));
    EXPECT(are_same(paths[0], path));
    EXPECT(!are_same(paths[0], paths[1]));
    FILE *f = fopen(path, "ab"); // longer
    INFERD_CHECK(f != NULL && fputc(0, f) == 0 && fclose(f) == 0);
    EXPECT(!are_same(paths[0], path));
    const off_t places[] = {info.st_size - 1, info.st_size / 2}; // of tensors
    for (size_t i = 0; i < INFERD_COUNT(places); i++) {
        copy_file(paths[0], path);
        int fd = open(path, O_RDONLY);
        unsigned char byte;
        INFERD_CHECK(pread(fd, &byte, 1, places[i]) == 1);
        close(fd);
        set_byte(path, places[i], byte ^ 1);
        EXPECT(!are_same(paths[0], path));
    }
    unlink(path);
    EXPECT(are_same("dummy:tiny?layers=1&seed=3", "dummy:tiny?seed=3&layers=1"));
    EXPECT(!are_same("dummy:tiny", "dummy:tiny?seed=1"));
    EXPECT(!are_same("dummy:tiny", "dummy:tiny?layers=1"));
    EXPECT(!are_same("dummy:tiny", "dummy:tiny-qwen3"));
    EXPECT(!are_same("dummy:tiny", paths[0]));
}

static void a_file_that_is_cut_cannot_be_compared(void) {
    char path[80];
    struct stat info;
    make_files();
    snprintf(path, sizeof path, "%s.copy", paths[0]);
    copy_file(paths[0], path);
    INFERD_CHECK(stat(path, &info) == 0);
    model *a = open_model(paths[0]), *b = open_model(path);
    inferd_err err = {0};
    bool is_same = true;
    EXPECT_EQ(truncate(path, info.st_size - 1000), 0);
    EXPECT_EQ(model_same_content(a, b, &is_same, &err), INFERD_EIO);
    EXPECT(!is_same && strstr(err.text, "truncated") != NULL);
    model_close(a);
    model_close(b);
    unlink(path);
}

/* ---- a device of slots ---- */

static void wake_none(void *ctx) {
    (void)ctx;
}

/* In pieces; false: it failed. */
static bool device_bring_up(device *d, uint32_t idx, const device_model *about, uint32_t first) {
    uint32_t pages[RIG_PAGES_MAX];
    inferd_err err = {0};
    device_progress at = {0};
    EXPECT_EQ(about->weight_pages, about->host_pages); // one memory
    for (uint32_t i = 0; i < about->host_pages; i++) pages[i] = first + i;
    if (!fine(d->ops->stage_begin(d->self, idx, pages, wake_none, NULL, &err), &err)) return false;
    while (!at.finished) {
        if (!fine(d->ops->stage_step(d->self, idx, 0, &at, &err), &err)) return false;
        if (at.waiting) nap();
    }
    EXPECT_EQ(at.done, about->stage_bytes);
    at.finished = false;
    fine(d->ops->load_begin(d->self, idx, pages, &err), &err);
    while (!at.finished)
        if (!fine(d->ops->load_step(d->self, idx, 0, &at, &err), &err)) return false;
    return true;
}

static bool device_draw(device *d, uint32_t idx, const kv_layout *kv, uint32_t kv_page,
                        sample_result out[RIG_ROWS]) {
    text t;
    static const sample_params params = {.top_p = 1, .repetition_penalty = 1};
    inferd_err err = {0};
    uint64_t us;
    step st;
    step_draw draws[RIG_ROWS];
    memset(&st, 0, sizeof st);
    text_make(&t, kv, kv_page);
    for (uint32_t i = 0; i < RIG_ROWS; i++)
        draws[i] = (step_draw){.row = {.params = &params, .forced = (tok_id)(7 + i * 31)}};
    st.model_idx = idx;
    st.b = t.b;
    st.draws = draws;
    st.results = out;
    d->ops->launch(d->self, &st);
    return fine(d->ops->finish(d->self, &st, &us, &err), &err);
}

static void a_slot_computes_with_the_weights_of_another(void) {
    device d;
    device_about about;
    device_limits limits = {.rows_max = RIG_ROWS, .logits_max = RIG_ROWS, .kv = KV_F16};
    device_model own, other, same_one;
    inferd_err err = {0};
    sample_result a[RIG_ROWS], b[RIG_ROWS], c[RIG_ROWS];
    backend_options o = *on_cpu(1);
    make_files();
    o.host_bytes = 20u << 20;
    o.cores = "";
    model *m[3] = {open_model(paths[0]), open_model(paths[1]), open_model(paths[0])};
    if (!fine(device_backend_create(&o, 4, &d, &err), &err)) return;
    fine(d.ops->open(d.self, &about, &err), &err);
    EXPECT(about.one_memory);
    EXPECT_EQ(about.n_host_pages, 10);
    EXPECT_EQ(about.n_pages, 58);
    d.ops->detach(d.self, 3); // nobody is there
    fine(d.ops->attach(d.self, 1, m[0], DEVICE_OWN, &limits, &own, &err), &err);
    fine(d.ops->attach(d.self, 0, m[1], DEVICE_OWN, &limits, &other, &err), &err);
    fine(d.ops->attach(d.self, 3, m[2], 1, &limits, &same_one, &err), &err);
    EXPECT_EQ(same_one.weight_pages + same_one.host_pages, 0);
    EXPECT_EQ(same_one.stage_bytes, 0);
    EXPECT_EQ(same_one.spec.n_vocab, own.spec.n_vocab);
    EXPECT(same_one.spec.n_end_ids == own.spec.n_end_ids && own.spec.n_end_ids > 0);
    uint32_t first = own.weight_pages, kv_page = first + other.weight_pages;
    if (device_bring_up(&d, 1, &own, 0) && device_bring_up(&d, 0, &other, first)) {
        memset(a, 0, sizeof a), memset(b, 0, sizeof b), memset(c, 0, sizeof c);
        device_draw(&d, 1, &own.spec.kv, kv_page, a);
        device_draw(&d, 0, &other.spec.kv, kv_page + 2, b);
        device_draw(&d, 3, &same_one.spec.kv, kv_page + 4, c);
        for (uint32_t i = 0; i < RIG_ROWS; i++) {
            EXPECT(a[i].logprob == c[i].logprob && a[i].id == c[i].id);
            EXPECT(a[i].logprob != b[i].logprob && a[i].logprob < 0);
        }
        d.ops->unload(d.self, 1);
        d.ops->unstage(d.self, 1);
        if (device_bring_up(&d, 1, &own, kv_page + 6)) { // elsewhere
            device_draw(&d, 3, &same_one.spec.kv, kv_page + 4, c);
            for (uint32_t i = 0; i < RIG_ROWS; i++) EXPECT(a[i].logprob == c[i].logprob);
        }
        d.ops->hand_over(d.self, 1, 3); // its weights stay, and it may go
        device_draw(&d, 1, &own.spec.kv, kv_page, c);
        for (uint32_t i = 0; i < RIG_ROWS; i++) EXPECT(a[i].logprob == c[i].logprob);
        d.ops->detach(d.self, 1);
        device_draw(&d, 3, &same_one.spec.kv, kv_page + 4, c);
        for (uint32_t i = 0; i < RIG_ROWS; i++) EXPECT(a[i].logprob == c[i].logprob);
    }
    d.ops->detach(d.self, 3);
    fine(d.ops->attach(d.self, 1, m[2], DEVICE_OWN, &limits, &own, &err),
         &err); // a slot serves again
    if (device_bring_up(&d, 1, &own, 0)) {
        device_draw(&d, 1, &own.spec.kv, kv_page, c);
        for (uint32_t i = 0; i < RIG_ROWS; i++) EXPECT(a[i].logprob == c[i].logprob);
    }
    d.ops->close(d.self); // detaches
    for (int i = 0; i < 3; i++) model_close(m[i]);
}

static const test_case cases[] = {
    TEST(models_of_different_shape_share_their_activations),
    TEST(many_models_take_the_scratch_of_one),
    TEST(host_bytes_are_pages_of_the_arena),
    TEST(a_window_that_cannot_grow_keeps_what_it_has),
    TEST(two_backends_stay_on_their_own_cpus),
    TEST(wrong_lists_of_cpus_are_refused),
    TEST(weights_are_read_from_another_file_of_the_same_content),
    TEST(a_replaced_file_is_noticed),
    TEST(the_same_bytes_are_the_same_model),
    TEST(a_file_that_is_cut_cannot_be_compared),
    TEST(a_slot_computes_with_the_weights_of_another),
};

int main(int argc, char **argv) {
    int rc = test_run(cases, INFERD_COUNT(cases), argc, argv);
    for (int i = 0; i < 2; i++) unlink(paths[i]);
    return rc;
}
