/* test_stage.c - weights come in piece by piece: the same bytes as all at once, whatever happens
 * between the pieces; and whenever a stage ends, nothing of it is left.
 *
 * The large file is longer than all buffers of a stage, so its reader stands still in the middle
 * until pieces are taken: what a test does to the file then happens while it is read. */
#include <pthread.h>
#include <sys/uio.h>

#include "packed.h"
#include "bound_rig.h"

enum { ALL = 1000000, FIRST_PIECES = 20 }; // after so many something is there

static char tiny_path[64], large_path[64], other_path[64];

static void make_files(void) {
    if (tiny_path[0] != 0) return;
    snprintf(tiny_path, sizeof tiny_path, "/tmp/test_stage.%d.tiny", (int)getpid());
    snprintf(large_path, sizeof large_path, "/tmp/test_stage.%d.large", (int)getpid());
    snprintf(other_path, sizeof other_path, "/tmp/test_stage.%d.other", (int)getpid());
    tiny_model_write(tiny_path, 3, &(tiny_model_options){.n_layers = 2});
    tiny_model_write(
        large_path, 4,
        &(tiny_model_options){.n_layers = 6, .dim = 256, .ffn_dim = 1024, .n_heads = 8});
    tiny_model_write(other_path, 5,
                     &(tiny_model_options){.type = DTYPE_F16,
                                           .n_layers = 3,
                                           .dim = 96,
                                           .n_heads = 3,
                                           .n_kv_heads = 1,
                                           .ffn_dim = 352,
                                           .tied = true});
}

static void remove_files(void) {
    unlink(tiny_path);
    unlink(large_path);
    unlink(other_path);
}

/* Staged, in pieces; WARM. */
static uint32_t stage_all(rig *r) {
    inferd_err err = {0};
    inferd_status st;
    bound_progress at = {0};
    bell b = {0};
    sem_init(&b.woken, 0, 0);
    uint32_t n = 0;
    if (fine(rig_stage_begin(r, &b, &err), &err)) {
        EXPECT_EQ(bound_state_of(r->p), BOUND_STAGING);
        n = rig_pieces(r, &b, FIRST_PIECES, &at, &st, &err);
        uint64_t early = at.done;
        if (st == INFERD_OK) n += rig_pieces(r, &b, ALL, &at, &st, &err);
        fine(st, &err);
        EXPECT(at.finished);
        bool is_packed = bound_stage_note(r->p)[0] != 0; // whole chunks count; none if damaged
        EXPECT(early > 0 || is_packed);
        EXPECT_EQ(at.done, at.total);
        EXPECT_EQ(at.total, bound_stage_bytes(r->p));
        EXPECT_EQ(bound_state_of(r->p), BOUND_WARM);
    }
    sem_destroy(&b.woken);
    return n;
}

static void load_all(rig *r) {
    inferd_err err = {0};
    bound_progress at = {0};
    fine(bound_load_begin(r->p, r->pages, r->n_pages, &err), &err);
    while (!at.finished && fine(bound_load_step(r->p, 0, &at, &err), &err)) {
    }
    EXPECT_EQ(bound_state_of(r->p), BOUND_HOT);
}

/* ---- the same bytes ---- */

static void pieces_are_as_good_as_whole_tensors(void) {
    static const struct {
        uint32_t type;
        bool tied;
    } kinds[] = {{DTYPE_F32, false}, {DTYPE_F16, true},   {DTYPE_BF16, false},
                 {DTYPE_Q8_0, true}, {DTYPE_Q4_0, false}, {DTYPE_Q4_1, false}};
    static told wanted, got;
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_stage.%d.kind", (int)getpid());
    for (size_t i = 0; i < INFERD_COUNT(kinds); i++) {
        tiny_model_write(path, 7 + i,
                         &(tiny_model_options){.type = kinds[i].type,
                                               .tied = kinds[i].tied,
                                               .dim = 160,
                                               .n_heads = 5,
                                               .n_kv_heads = 5,
                                               .ffn_dim = 416});
        rig r;
        told_by(path, on_cpu(1), &wanted);
        if (rig_open(&r, on_cpu(2), path)) {
            EXPECT(stage_all(&r) >= 2); // one for the tensors, one for the end
            load_all(&r);
            rig_score(&r, &got);
            EXPECT(same(&wanted, &got));
        }
        rig_close(&r);
    }
    unlink(path);
}

static void a_large_model_comes_in_many_pieces(void) {
    static told wanted, got;
    rig r;
    make_files();
    told_by(large_path, on_cpu(1), &wanted);
    if (rig_open(&r, on_cpu(1), large_path)) {
        uint32_t n_threads = n_threads_now();
        EXPECT(bound_stage_bytes(r.p) > 20u << 20);
        uint32_t n = stage_all(&r);
        EXPECT(n > 5); // a fast machine prepares some megabytes in the shortest piece
        EXPECT(n_threads_now() <= n_threads);
        load_all(&r);
        rig_score(&r, &got);
        EXPECT(same(&wanted, &got));
        bound_unload(r.p);
        EXPECT_EQ(bound_state_of(r.p), BOUND_WARM);
        load_all(&r); // nothing to read
        rig_score(&r, &got);
        EXPECT(same(&wanted, &got));
    }
    rig_close(&r);
}

static void made_up_weights_come_in_pieces_too(void) {
    static const char *const all[] = {"dummy:tiny?dtype=q4_k_m&seed=5",
                                      "dummy:tiny-qwen3?dtype=f16", "dummy:tiny-gemma3?dtype=q8_0"};
    static told wanted, got;
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        rig r;
        told_by(all[i], on_cpu(1), &wanted);
        if (rig_open(&r, on_cpu(2), all[i])) {
            EXPECT(stage_all(&r) > 20);
            load_all(&r);
            rig_score(&r, &got);
            EXPECT(same(&wanted, &got));
        }
        rig_close(&r);
    }
}

/* ---- time ---- */

/* What this thread computed: a wait for a processor is not the step's. */
static uint64_t computed_us(void) {
    struct timespec now;
    INFERD_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void a_step_ends_soon_after_its_budget(void) {
    enum { BUDGET_US = 2000, LATE_US = 15000, LATE_MAX = 3 };
    rig r;
    bell b = {0};
    bound_progress at = {0};
    inferd_err err = {0};
    uint32_t n_late = 0, n_steps = 0;
    uint64_t told_us = 0, passed_us = 0, spent_us = 0;
    make_files();
    sem_init(&b.woken, 0, 0);
    if (rig_open(&r, on_cpu(1), large_path) && fine(rig_stage_begin(&r, &b, &err), &err)) {
        while (!at.finished) {
            uint64_t began_us = clock_now_us(), before_us = computed_us();
            if (!fine(bound_stage_step(r.p, BUDGET_US, &at, &err), &err)) break;
            uint64_t step_us = computed_us() - before_us;
            n_late += step_us > BUDGET_US + LATE_US;
            spent_us += step_us;
            n_steps++;
            passed_us += clock_now_us() - began_us;
            told_us += at.device_us;
            if (at.waiting && !bell_wait(&b)) break;
        }
        EXPECT(n_steps >= 2 && n_late <= LATE_MAX);
        EXPECT(told_us <= passed_us && told_us * 10 >= spent_us * 5);
    }
    rig_close(&r);
    sem_destroy(&b.woken);
}

/* ---- ending early ---- */

/* After each number of pieces; then the same pages serve again, so all of them were home. */
static void a_stage_can_be_given_up_at_every_piece(void) {
    static told wanted, got;
    const char *paths[] = {tiny_path, "dummy:tiny?layers=1"};
    make_files();
    for (size_t k = 0; k < INFERD_COUNT(paths); k++) {
        rig r;
        inferd_err err = {0};
        inferd_status st;
        told_by(paths[k], on_cpu(1), &wanted);
        if (rig_open(&r, on_cpu(2), paths[k])) {
            uint32_t n_pieces = stage_all(&r), n_threads = n_threads_now();
            bound_unstage(r.p);
            for (uint32_t n = 0; n <= n_pieces; n++) {
                bell b = {0};
                bound_progress at = {0};
                sem_init(&b.woken, 0, 0);
                if (!fine(rig_stage_begin(&r, &b, &err), &err)) break;
                rig_pieces(&r, &b, n, &at, &st, &err);
                if (!fine(st, &err)) break;
                bound_unstage(r.p);
                EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
                EXPECT(n_threads_now() <= n_threads); // the one that touches pages may end
                sem_destroy(&b.woken);
            }
            fine(bound_bring_up(r.p, r.pages, r.n_pages, &err), &err);
            rig_score(&r, &got);
            EXPECT(same(&wanted, &got));
            bound_unstage(r.p); // from HOT
            EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
        }
        rig_close(&r);
    }
}

static void closing_gives_a_stage_up(void) {
    rig r;
    bell b = {0};
    inferd_err err = {0};
    make_files();
    sem_init(&b.woken, 0, 0);
    if (rig_open(&r, on_cpu(1), large_path)) fine(rig_stage_begin(&r, &b, &err), &err);
    rig_close(&r);
    sem_destroy(&b.woken);
}

/* ---- the file changes ---- */

static void copy_file(const char *from, const char *to) {
    static char part[1 << 20];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    INFERD_CHECK(in != NULL && out != NULL);
    for (size_t n; (n = fread(part, 1, sizeof part, in)) > 0;)
        INFERD_CHECK(fwrite(part, 1, n, out) == n);
    fclose(in);
    INFERD_CHECK(fclose(out) == 0);
}

typedef enum harm { CUT, TOUCHED, REPLACED, TAKEN_AWAY, HARMS } harm;

static void do_harm(harm h, const char *path, uint32_t n) {
    struct stat now;
    char moved[80];
    snprintf(moved, sizeof moved, "%s.aside", path);
    INFERD_CHECK(stat(path, &now) == 0);
    switch (h) {
    case CUT:
        INFERD_CHECK(truncate(path, now.st_size / (off_t)(n % 7 + 2)) == 0);
        break;
    case TOUCHED:
        INFERD_CHECK(utimensat(AT_FDCWD, path, (struct timespec[2]){{1, 0}, {1, 0}}, 0) == 0);
        break;
    case REPLACED:
        copy_file(path, moved);
        INFERD_CHECK(rename(moved, path) == 0);
        break;
    default:
        INFERD_CHECK(unlink(path) == 0);
    }
}

/* After n pieces; the reader is not through by then, so the stage must fail, say why, and leave
 * nothing.  Another file that is there before the reader has looked at all is another model's. */
static void a_file_that_changes_ends_its_stage(void) {
    static const char *const words[HARMS] = {"", "was written to", "was replaced", "was removed"};
    static told wanted, got;
    char path[80];
    make_files();
    snprintf(path, sizeof path, "/tmp/test_stage.%d.harm", (int)getpid());
    told_by(tiny_path, on_cpu(1), &wanted);
    for (uint32_t h = 0; h < HARMS; h++) {
        for (uint32_t n = h == REPLACED ? 3 : 0; n <= 6; n += 3) {
            rig r;
            bell b = {0};
            bound_progress at = {0};
            inferd_err err = {0};
            inferd_status st;
            sem_init(&b.woken, 0, 0);
            copy_file(large_path, path);
            if (rig_open(&r, on_cpu(1), path) && fine(rig_stage_begin(&r, &b, &err), &err)) {
                rig_pieces(&r, &b, n, &at, &st, &err);
                do_harm((harm)h, path, n);
                if (st == INFERD_OK) rig_pieces(&r, &b, ALL, &at, &st, &err);
                EXPECT_EQ(st, INFERD_EIO);
                EXPECT(strstr(err.text, path) != NULL && strstr(err.text, words[h]) != NULL);
                EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
                /* Another model on the same pages. */
                rig other = {.be = r.be};
                if (rig_bind(&other, tiny_path, 0)) {
                    fine(bound_bring_up(other.p, other.pages, other.n_pages, &err), &err);
                    rig_score(&other, &got);
                    EXPECT(same(&wanted, &got));
                }
                other.be = NULL;
                rig_close(&other);
            }
            rig_close(&r);
            unlink(path);
            sem_destroy(&b.woken);
        }
    }
}

static void a_file_that_changed_before_is_not_read(void) {
    char path[80];
    make_files();
    snprintf(path, sizeof path, "/tmp/test_stage.%d.before", (int)getpid());
    for (uint32_t h = 0; h < HARMS; h++) {
        rig r;
        inferd_err err = {0};
        copy_file(tiny_path, path);
        if (rig_open(&r, on_cpu(1), path)) {
            bool whole = h == REPLACED; // and another file is another model's
            do_harm((harm)h, path, 0);
            EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err),
                      whole ? INFERD_OK : INFERD_EIO);
            EXPECT_EQ(bound_state_of(r.p), whole ? BOUND_HOT : BOUND_COLD);
        }
        rig_close(&r);
        unlink(path);
    }
}

/* What is open is whole when the path is another's; what was changed in place is not. */
static void a_held_file_is_read_wherever_its_name_is(void) {
    static told wanted, got;
    char path[80];
    make_files();
    snprintf(path, sizeof path, "/tmp/test_stage.%d.held", (int)getpid());
    told_by(tiny_path, on_cpu(1), &wanted);
    for (uint32_t h = 0; h < HARMS; h++) {
        rig r;
        inferd_err err = {0};
        bool whole = h == REPLACED || h == TAKEN_AWAY;
        copy_file(tiny_path, path);
        if (rig_open(&r, on_cpu(1), path)) {
            model_hold_file(r.m, true);
            do_harm((harm)h, path, 0);
            EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err),
                      whole ? INFERD_OK : INFERD_EIO);
            if (whole) rig_score(&r, &got);
            EXPECT(!whole || same(&wanted, &got));
            bound_unstage(r.p);
            model_hold_file(r.m, false);
            EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err),
                      h == REPLACED ? INFERD_OK : INFERD_EIO);
        }
        rig_close(&r);
        unlink(path);
    }
}

static bool same_inode(int fd, const struct stat *wanted) {
    struct stat got;
    return fd >= 0 && fstat(fd, &got) == 0 && got.st_ino == wanted->st_ino &&
           got.st_dev == wanted->st_dev;
}

/* The path may name another file of the same size and time; what was opened is opened again. */
static void a_file_is_opened_again_wherever_its_name_is(void) {
    char path[80], moved[90];
    struct stat first;
    inferd_err err = {0};
    gguf *g = NULL;
    make_files();
    snprintf(path, sizeof path, "/tmp/test_stage.%d.again", (int)getpid());
    snprintf(moved, sizeof moved, "%s.aside", path);
    copy_file(tiny_path, path);
    copy_file(tiny_path, moved);
    INFERD_CHECK(stat(path, &first) == 0);
    INFERD_CHECK(
        utimensat(AT_FDCWD, moved, (struct timespec[2]){first.st_atim, first.st_mtim}, 0) == 0);
    if (fine(gguf_open(path, &g, &err), &err)) {
        int again[3];
        again[0] = gguf_reopen(g, 0);
        INFERD_CHECK(rename(moved, path) == 0);
        again[1] = gguf_reopen(g, 0);
        INFERD_CHECK(unlink(path) == 0);
        again[2] = gguf_reopen(g, 0);
        for (int i = 0; i < 3; i++) {
            EXPECT(same_inode(again[i], &first));
            close(again[i]);
        }
    }
    gguf_close(g);
    /* One without a name, called as a file that exists. */
    copy_file(tiny_path, path);
    int fd = open(path, O_RDWR);
    INFERD_CHECK(fd >= 0 && fstat(fd, &first) == 0 && unlink(path) == 0);
    g = NULL;
    if (fine(gguf_open_fd(dup(fd), large_path, &g, &err), &err)) {
        int again = gguf_reopen(g, 0);
        EXPECT(same_inode(again, &first));
        close(again);
        INFERD_CHECK(ftruncate(fd, first.st_size - 1) == 0);
        EXPECT_EQ(gguf_reopen(g, 0), -1); // not what it was
    }
    gguf_close(g);
    close(fd);
}

/* Each norm in turn has one value that is no number. */
static void a_vector_that_is_not_finite_is_named(void) {
    char path[80];
    uint32_t n_vectors = 0;
    make_files();
    snprintf(path, sizeof path, "/tmp/test_stage.%d.nan", (int)getpid());
    model *m = open_model(tiny_path);
    for (size_t i = 0; m != NULL && i < gguf_n_tensors(m->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(m->file, i);
        if (t->n_dims != 1) continue;
        n_vectors++;
        copy_file(tiny_path, path);
        int fd = open(path, O_WRONLY);
        uint32_t nan_bits = i % 2 ? 0x7fc00000u : 0xff800000u; // or minus infinity
        uint64_t last = t->dims[0] - 1;
        INFERD_CHECK(pwrite(fd, &nan_bits, 4, (off_t)(t->file_offset + 4 * last)) == 4);
        close(fd);
        rig r;
        inferd_err err = {0};
        if (rig_open(&r, on_cpu(1), path)) {
            EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err), INFERD_EFORMAT);
            EXPECT(strstr(err.text, t->name) != NULL && strstr(err.text, "finite") != NULL);
            EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
        }
        rig_close(&r);
        unlink(path);
    }
    EXPECT(n_vectors >= 5);
    model_close(m);
}

/* ---- what the page cache has ---- */

/* Bytes [begin, end) leave the page cache; false: this kernel or file system keeps them. */
static bool forget(const char *path, off_t begin, off_t end) {
    unsigned char byte;
    int fd = open(path, O_RDONLY);
    INFERD_CHECK(fd >= 0);
    bool gone =
        fdatasync(fd) == 0 && posix_fadvise(fd, begin, end - begin, POSIX_FADV_DONTNEED) == 0;
    gone = gone && preadv2(fd, &(struct iovec){&byte, 1}, 1, (begin + end) / 2, RWF_NOWAIT) != 1;
    close(fd);
    return gone;
}

/* Everything is there, nothing, the first part, or all but a hole: then the compute threads begin
 * and the reader goes on, in the middle of a tensor or between two. */
static void it_does_not_matter_what_the_page_cache_has(void) {
    enum { PARTS = 8, HOLE = 2 << 20 };
    static told wanted, got;
    struct stat info;
    uint32_t n_gone = 0;
    make_files();
    told_by(large_path, on_cpu(1), &wanted);
    INFERD_CHECK(stat(large_path, &info) == 0);
    for (int i = 0; i <= PARTS; i++) {
        off_t at = info.st_size / PARTS * i, end = i % 2 ? at + HOLE : info.st_size;
        n_gone += i < PARTS && forget(large_path, at, end); // a hole may stay: pages are large
        rig r;
        if (rig_open(&r, on_cpu(1 + (uint32_t)i % 2), large_path)) {
            EXPECT(stage_all(&r) > 2);
            load_all(&r);
            rig_score(&r, &got);
            EXPECT(same(&wanted, &got));
        }
        rig_close(&r);
        FILE *f = fopen(large_path, "rb"); // all of it is there again
        static char part[1 << 20];
        while (f != NULL && fread(part, 1, sizeof part, f) > 0) {
        }
        if (f != NULL) fclose(f);
    }
    if (n_gone < PARTS / 2) SKIP("nothing can be taken out of the page cache here");
}

/* Bits of an infinity, or of what is no number, over a value or over what scales a block. */
static void spoil(const char *path, const gguf_tensor *t, uint64_t row, uint64_t block,
                  bool minimum, bool infinite) {
    dtype_info info = dtype_about(t->type);
    bool brain = t->type == DTYPE_F32 || t->type == DTYPE_BF16;
    uint16_t half = infinite ? brain ? 0xff80 : 0xfc00 : brain ? 0x7fc0 : 0x7e00;
    uint64_t n_blocks = t->dims[0] / info.block_elems;
    uint64_t at = (row * n_blocks + block) * info.block_bytes + (minimum ? 2 : 0);
    if (t->type == DTYPE_F32) at += 2; // its upper half
    int fd = open(path, O_WRONLY);
    INFERD_CHECK(fd >= 0 && pwrite(fd, &half, 2, (off_t)(t->file_offset + at)) == 2);
    close(fd);
}

/* Each matrix in turn has one number that is none, whoever reads it.  Such a model was brought up,
 * and every request to it failed. */
static void a_matrix_that_is_not_finite_is_named(void) {
    static const uint32_t types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                     DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
    char good[80], path[80];
    uint32_t n = 0;
    snprintf(good, sizeof good, "/tmp/test_stage.%d.good", (int)getpid());
    snprintf(path, sizeof path, "/tmp/test_stage.%d.nan", (int)getpid());
    for (size_t k = 0; k < INFERD_COUNT(types); k++) {
        tiny_model_write(good, 3, &(tiny_model_options){.type = types[k], .n_layers = 2});
        model *m = open_model(good);
        for (size_t i = 0; m != NULL && i < gguf_n_tensors(m->file); i++, n++) {
            const gguf_tensor *t = gguf_tensor_at(m->file, i);
            if (t->n_dims != 2) continue;
            uint32_t each = dtype_about(t->type).block_elems;
            uint64_t row = n % 3 == 0 ? 0 : n % 3 == 1 ? t->dims[1] - 1 : 70 % t->dims[1];
            uint64_t block = n % 2 == 0 ? t->dims[0] / each - 1 : 0;
            bool minimum = types[k] == DTYPE_Q4_1 && n % 2 == 0;
            copy_file(good, path);
            spoil(path, t, row, block, minimum, n % 4 < 2);
            if (n % 5 == 0) forget(path, 0, (off_t)gguf_file_bytes(m->file)); // then the reader's
            char words[64];
            rig r;
            inferd_err err = {0};
            snprintf(words, sizeof words, "row %llu, column %llu ", (unsigned long long)row,
                     (unsigned long long)(block * each));
            if (rig_open(&r, on_cpu(1 + n % 2), path)) {
                EXPECT_EQ(bound_bring_up(r.p, r.pages, r.n_pages, &err), INFERD_EFORMAT);
                bool named = strstr(err.text, t->name) != NULL && strstr(err.text, words) != NULL &&
                             strstr(err.text, path) == err.text &&
                             strstr(err.text, "finite") != NULL;
                if (!named) printf("%s, %s: \"%s\"\n", t->name, words, err.text);
                EXPECT(named);
                EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
                EXPECT_EQ(be_check(r.be, &err), INFERD_OK); // the device can go on
                char *packed_at = NULL;
                EXPECT_EQ(model_pack(r.m, r.be, NULL, &packed_at, &err), INFERD_EFORMAT);
                EXPECT(packed_at == NULL && strstr(err.text, t->name) != NULL);
            }
            rig_close(&r);
            unlink(path);
        }
        model_close(m);
    }
    unlink(good);
    EXPECT(n > 100);
}

/* A model that is wide for its number of threads: 64 norms, which a norm is never cut into, would
 * fill more than a buffer.  Once no row of such a norm fitted, and the stage went on for ever. */
static void a_vector_wider_than_a_row_of_matrices_comes_in(void) {
    enum { DIM = 16640, HEAD_DIM = 32, FFN_DIM = 32, PIECES = 2000 };
    static const struct {
        const char *name;
        uint32_t cols, rows; // rows 0: a norm
    } tensors[] = {
        {"token_embd", DIM, TINY_VOCAB},      {"output_norm", DIM, 0},
        {"blk.0.attn_norm", DIM, 0},          {"blk.0.attn_q", DIM, HEAD_DIM},
        {"blk.0.attn_k", DIM, HEAD_DIM},      {"blk.0.attn_v", DIM, HEAD_DIM},
        {"blk.0.attn_output", HEAD_DIM, DIM}, {"blk.0.ffn_norm", DIM, 0},
        {"blk.0.ffn_gate", DIM, FFN_DIM},     {"blk.0.ffn_up", DIM, FFN_DIM},
        {"blk.0.ffn_down", FFN_DIM, DIM},
    };
    static const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {
        {"vocab_size", TINY_VOCAB},
        {"context_length", 64},
        {"embedding_length", DIM},
        {"block_count", 1},
        {"feed_forward_length", FFN_DIM},
        {"attention.head_count", 1},
        {"attention.head_count_kv", 1},
        {"attention.key_length", HEAD_DIM},
        {"attention.value_length", HEAD_DIM},
        {"rope.dimension_count", HEAD_DIM},
    };
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_stage.%d.wide", (int)getpid());
    tiny_gguf *g = malloc(sizeof *g);
    INFERD_CHECK(g != NULL);
    tiny_gguf_init(g);
    tiny_kv_str(g, "general.architecture", "llama");
    tiny_kv_f32(g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < INFERD_COUNT(numbers); i++) {
        char key[64];
        snprintf(key, sizeof key, "llama.%s", numbers[i].key);
        tiny_kv_u32(g, key, numbers[i].value);
    }
    tiny_tokenizer_add(g);
    for (size_t i = 0; i < INFERD_COUNT(tensors); i++) {
        char name[64];
        uint64_t cols = tensors[i].cols, rows = tensors[i].rows;
        snprintf(name, sizeof name, "%s.weight", tensors[i].name);
        tiny_tensor_add(g, name, rows == 0 ? DTYPE_F32 : DTYPE_Q4_0, rows == 0 ? 1 : 2,
                        (uint64_t[]){cols, rows}, NULL,
                        (size_t)(rows == 0 ? cols * sizeof(float) : cols / 32 * 18 * rows));
    }
    tiny_gguf_write(g, path);
    tiny_gguf_deinit(g);
    free(g);
    rig r;
    bell b = {0};
    bound_progress at = {0};
    inferd_err err = {0};
    inferd_status st;
    sem_init(&b.woken, 0, 0);
    if (rig_open(&r, on_cpu(1), path) && fine(rig_stage_begin(&r, &b, &err), &err)) {
        rig_pieces(&r, &b, PIECES, &at, &st, &err);
        fine(st, &err);
        EXPECT(at.finished);
    }
    rig_close(&r);
    sem_destroy(&b.woken);
    unlink(path);
}

/* ---- with others ---- */

static void steps_are_computed_between_the_pieces_of_another(void) {
    static told wanted[2], got;
    rig a, b;
    bell wake = {0};
    bound_progress at = {0};
    inferd_err err = {0};
    inferd_status st = INFERD_OK;
    uint32_t n_steps = 0;
    make_files();
    told_by(other_path, on_cpu(1), &wanted[0]);
    told_by(large_path, on_cpu(1), &wanted[1]);
    sem_init(&wake.woken, 0, 0);
    if (rig_open(&a, on_cpu(2), other_path)) {
        fine(bound_bring_up(a.p, a.pages, a.n_pages, &err), &err);
        b = (rig){.be = a.be};
        if (rig_bind(&b, large_path, a.kv_page + RIG_KV_PAGES) &&
            fine(rig_stage_begin(&b, &wake, &err), &err)) {
            while (!at.finished && st == INFERD_OK) {
                rig_pieces(&b, &wake, 3, &at, &st, &err);
                rig_score(&a, &got);
                EXPECT(same(&wanted[0], &got));
                n_steps++;
            }
            fine(st, &err);
            EXPECT(n_steps > 2);
            load_all(&b);
            rig_score(&b, &got);
            EXPECT(same(&wanted[1], &got));
        }
        b.be = NULL;
        rig_close(&b);
    }
    rig_close(&a);
    sem_destroy(&wake.woken);
}

typedef struct one_engine {
    model *m;
    told got;
} one_engine;

static void *bring_up_and_score(void *ctx) {
    one_engine *e = ctx;
    rig r = {.m = e->m};
    model_limits limits = {.rows_max = RIG_ROWS, .logits_max = RIG_ROWS, .kv = KV_F16};
    inferd_err err = {0};
    if (fine(backend_open(on_cpu(1), &r.be, &err), &err) &&
        fine(bound_open(r.m, r.be, &limits, &r.p, &err), &err)) {
        r.n_pages = r.kv_page = bound_weight_pages(r.p);
        for (uint32_t i = 0; i < r.n_pages; i++) r.pages[i] = i;
        for (int i = 0; i < 2; i++) {
            bound_unstage(r.p);
            fine(bound_bring_up(r.p, r.pages, r.n_pages, &err), &err);
        }
        text t;
        be_step_result result;
        text_make(&t, bound_kv(r.p), r.kv_page);
        bound_launch(r.p, &t.b, NULL, model_about(r.m)->n_vocab);
        if (fine(be_step_finish(r.be, &result, &err), &err))
            keep(&e->got, &result, model_about(r.m)->n_vocab);
    }
    r.m = NULL;
    rig_close(&r);
    return NULL;
}

static void one_model_is_staged_on_two_backends_at_once(void) {
    static told wanted;
    static one_engine engines[2];
    pthread_t threads[2];
    make_files();
    told_by(large_path, on_cpu(1), &wanted);
    model *m = open_model(large_path);
    if (m == NULL) return;
    for (int i = 0; i < 2; i++) {
        engines[i].m = m;
        INFERD_CHECK(pthread_create(&threads[i], NULL, bring_up_and_score, &engines[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(same(&wanted, &engines[i].got));
    }
    model_close(m);
}

/* ---- packed files ---- */

static char *pack(const char *path) {
    backend *be;
    char *packed_at = NULL;
    inferd_err err = {0};
    model *m = open_model(path);
    if (fine(backend_open(on_cpu(1), &be, &err), &err)) {
        fine(model_pack(m, be, NULL, &packed_at, &err), &err);
        backend_close(be);
    }
    model_close(m);
    return packed_at;
}

/* What a stage of the model says, and how it came in; false: it failed. */
static bool stage_and_score(const char *path, told *out, char note[INFERD_ERR_TEXT_BYTES]) {
    rig r;
    uint32_t n = 0;
    if (rig_open(&r, on_cpu(2), path)) {
        n = stage_all(&r);
        snprintf(note, INFERD_ERR_TEXT_BYTES, "%s", bound_stage_note(r.p));
        if (bound_state_of(r.p) == BOUND_WARM) {
            load_all(&r);
            rig_score(&r, out);
        }
    }
    rig_close(&r);
    return n > 0;
}

static void a_packed_file_is_as_good_as_the_model(void) {
    static told wanted, got;
    char note[INFERD_ERR_TEXT_BYTES];
    const char *all[] = {tiny_path, large_path, other_path};
    make_files();
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        told_by(all[i], on_cpu(1), &wanted);
        char *packed_at = pack(all[i]);
        EXPECT(packed_at != NULL && access(packed_at, R_OK) == 0);
        stage_and_score(all[i], &got, note);
        EXPECT(strstr(note, "read from") != NULL && strstr(note, packed_at) != NULL);
        EXPECT(same(&wanted, &got));
        /* Given up at every piece. */
        rig r;
        bell b = {0};
        sem_init(&b.woken, 0, 0);
        if (rig_open(&r, on_cpu(1), all[i])) {
            for (uint32_t n = 0; n < 5; n++) {
                bound_progress at = {0};
                inferd_err err = {0};
                inferd_status st;
                fine(rig_stage_begin(&r, &b, &err), &err);
                rig_pieces(&r, &b, n, &at, &st, &err);
                bound_unstage(r.p);
            }
        }
        rig_close(&r);
        sem_destroy(&b.woken);
        unlink(packed_at);
        free(packed_at);
        stage_and_score(all[i], &got, note);
        EXPECT_STR(note, "");
        EXPECT(same(&wanted, &got));
    }
}

/* One byte is another: of each field of the header, of the table, of the chunks. */
static void a_damaged_packed_file_is_not_used(void) {
    static told wanted, got;
    char note[INFERD_ERR_TEXT_BYTES];
    make_files();
    told_by(tiny_path, on_cpu(1), &wanted);
    char *packed_at = pack(tiny_path);
    struct stat info;
    INFERD_CHECK(packed_at != NULL && stat(packed_at, &info) == 0);
    off_t data = 2 << 20, window = 0;
    model *m = open_model(tiny_path);
    backend *be;
    decoder_weights weights;
    weight_plan plan;
    inferd_err err = {0};
    INFERD_CHECK(backend_open(on_cpu(1), &be, &err) == INFERD_OK);
    EXPECT_EQ(weights_plan(m->file, be, &m->spec, &weights, &plan, &err), INFERD_OK);
    window = (off_t)plan.n_bytes;
    off_t n_chunks = (window + PACKED_CHUNK_BYTES - 1) / PACKED_CHUNK_BYTES;
    off_t header = (off_t)(sizeof(packed_header) + (size_t)n_chunks * sizeof(uint64_t));
    weights_deinit(&weights, &plan);
    backend_close(be);
    model_close(m);
    uint32_t n_refused = 0;
    for (off_t at = 0; at < data + window;) {
        unsigned char byte, other;
        int fd = open(packed_at, O_RDWR);
        INFERD_CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
        other = byte ^ 0x10;
        INFERD_CHECK(pwrite(fd, &other, 1, at) == 1);
        stage_and_score(tiny_path, &got, note);
        EXPECT(same(&wanted, &got));
        bool refused = strstr(note, "is not used") != NULL;
        n_refused += refused;
        if (!refused) {
            printf("byte %lld: \"%s\"\n", (long long)at, note);
            test_failures++;
        }
        INFERD_CHECK(pwrite(fd, &byte, 1, at) == 1);
        close(fd);
        at = at + 5 < header ? at + 5 : at < data ? data : at + window / 9;
    }
    EXPECT(n_refused >= 30);
    stage_and_score(tiny_path, &got, note); // it was only these
    EXPECT(strstr(note, "read from") != NULL);
    const off_t sizes[] = {0, 10, 100, data, info.st_size - 4096, info.st_size + 4096};
    for (size_t i = 0; i < INFERD_COUNT(sizes); i++) {
        EXPECT_EQ(truncate(packed_at, sizes[i]), 0);
        stage_and_score(tiny_path, &got, note);
        EXPECT(same(&wanted, &got));
        EXPECT(strstr(note, "is not used") != NULL && strstr(note, "bytes, expected") != NULL);
    }
    unlink(packed_at);
    EXPECT_EQ(mkdir(packed_at, 0700), 0); // not even a file
    stage_and_score(tiny_path, &got, note);
    EXPECT(same(&wanted, &got) && strstr(note, "is not used") != NULL);
    EXPECT_EQ(rmdir(packed_at), 0);
    free(packed_at);
}

static void flip(const char *path, off_t at) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    INFERD_CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    INFERD_CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* As with a model's own file, above; each time once whole and once with a damaged chunk, which lies
 * where the compute threads read, or the reader. */
static void it_does_not_matter_where_a_packed_file_is(void) {
    enum { PARTS = 8, HOLE = 2 << 20, DATA = 2 << 20 };
    static told wanted, got;
    char note[INFERD_ERR_TEXT_BYTES];
    struct stat info;
    uint32_t n_gone = 0;
    make_files();
    told_by(large_path, on_cpu(1), &wanted);
    char *packed_at = pack(large_path);
    INFERD_CHECK(packed_at != NULL && stat(packed_at, &info) == 0);
    EXPECT(info.st_size > DATA + 20 * PACKED_CHUNK_BYTES);
    for (int i = 0; i < 2 * PARTS; i++) {
        bool damaged = i % 2;
        off_t part = info.st_size / PARTS, at = DATA + part * (i / 2);
        off_t end = i / 2 % 2 ? at + HOLE : info.st_size;
        off_t bad = DATA + (info.st_size - DATA) / (2 * PARTS) * i;
        if (damaged) flip(packed_at, bad);
        stage_and_score(large_path, &got, note); // all of it is in the page cache
        EXPECT(same(&wanted, &got));
        EXPECT(strstr(note, damaged ? "has a wrong checksum" : "through the page cache") != NULL);
        n_gone += at < info.st_size && forget(packed_at, at, end);
        stage_and_score(large_path, &got, note);
        EXPECT(same(&wanted, &got));
        EXPECT(strstr(note, damaged ? "has a wrong checksum" : "read from") != NULL);
        if (damaged) flip(packed_at, bad);
        FILE *f = fopen(packed_at, "rb"); // all of it is there again
        static char some[1 << 20];
        while (f != NULL && fread(some, 1, sizeof some, f) > 0) {
        }
        if (f != NULL) fclose(f);
    }
    unlink(packed_at);
    free(packed_at);
    if (n_gone < PARTS) SKIP("nothing can be taken out of the page cache here");
}

static void a_packed_file_of_another_model_is_not_used(void) {
    static told wanted, got;
    char note[INFERD_ERR_TEXT_BYTES], path[80];
    make_files();
    snprintf(path, sizeof path, "/tmp/test_stage.%d.packed", (int)getpid());
    copy_file(tiny_path, path);
    char *packed_at = pack(path);
    struct timespec times[2] = {{1, 0}, {1, 0}};
    EXPECT_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
    told_by(path, on_cpu(1), &wanted);
    stage_and_score(path, &got, note);
    EXPECT(same(&wanted, &got) && strstr(note, "time of the model") != NULL);
    copy_file(other_path, path);
    told_by(path, on_cpu(1), &wanted);
    stage_and_score(path, &got, note);
    EXPECT(same(&wanted, &got) && strstr(note, "is not used") != NULL);
    unlink(path);
    unlink(packed_at);
    free(packed_at);
}

/* Version 1 could hold weights that are no finite numbers. */
static void a_packed_file_of_an_earlier_version_is_not_used(void) {
    static told wanted, got;
    char note[INFERD_ERR_TEXT_BYTES];
    uint32_t earlier = 1;
    make_files();
    char *packed_at = pack(tiny_path);
    told_by(tiny_path, on_cpu(1), &wanted);
    int fd = packed_at != NULL ? open(packed_at, O_WRONLY) : -1;
    INFERD_CHECK(fd >= 0 && pwrite(fd, &earlier, sizeof earlier,
                                   offsetof(packed_header, version)) == sizeof earlier);
    close(fd);
    stage_and_score(tiny_path, &got, note);
    EXPECT(same(&wanted, &got) && strstr(note, "the version is 1, expected 3") != NULL);
    unlink(packed_at);
    free(packed_at);
}

static void a_packed_file_is_beside_the_model(void) {
    char folder[80], linked[96], path[160];
    backend *be;
    model *m = NULL;
    inferd_err err = {0};
    make_files();
    snprintf(folder, sizeof folder, "/tmp/test_stage.%d.folder", (int)getpid());
    EXPECT_EQ(mkdir(folder, 0700), 0);
    snprintf(linked, sizeof linked, "%s/model", folder); // as for a folder nobody may write to
    EXPECT_EQ(symlink(tiny_path, linked), 0);
    snprintf(path, sizeof path, "%s.inferd-cpu-panels-1", linked);
    model_options o = {.path = linked};
    fine(model_open(&o, &m, &err), &err);
    INFERD_CHECK(m != NULL && backend_open(on_cpu(1), &be, &err) == INFERD_OK);
    char *packed_at = NULL;
    fine(model_pack(m, be, NULL, &packed_at, &err), &err);
    EXPECT_STR(packed_at, path);
    EXPECT_EQ(access(path, R_OK), 0);
    free(packed_at);
    unlink(path);
    /* Where nothing can be written: a sentence, and nothing left. */
    EXPECT_EQ(model_pack(m, be, "/tmp/no/such/folder/x", NULL, &err), INFERD_EIO);
    EXPECT(strstr(err.text, "/tmp/no/such/folder/x") != NULL);
    EXPECT_EQ(mkdir(path, 0700), 0);
    EXPECT_EQ(model_pack(m, be, path, NULL, &err), INFERD_EIO);
    EXPECT_EQ(rmdir(path), 0);
    unlink(linked);
    EXPECT_EQ(rmdir(folder), 0);
    model_close(m);
    m = open_model("dummy:tiny");
    EXPECT_EQ(model_pack(m, be, NULL, NULL, &err), INFERD_EUNSUPPORTED);
    model_close(m);
    backend_close(be);
}

static const test_case cases[] = {
    TEST(pieces_are_as_good_as_whole_tensors),
    TEST(a_large_model_comes_in_many_pieces),
    TEST(made_up_weights_come_in_pieces_too),
    TEST(a_step_ends_soon_after_its_budget),
    TEST(a_stage_can_be_given_up_at_every_piece),
    TEST(closing_gives_a_stage_up),
    TEST(a_file_that_changes_ends_its_stage),
    TEST(a_file_that_changed_before_is_not_read),
    TEST(a_held_file_is_read_wherever_its_name_is),
    TEST(a_file_is_opened_again_wherever_its_name_is),
    TEST(a_vector_that_is_not_finite_is_named),
    TEST(it_does_not_matter_what_the_page_cache_has),
    TEST(a_matrix_that_is_not_finite_is_named),
    TEST(a_vector_wider_than_a_row_of_matrices_comes_in),
    TEST(steps_are_computed_between_the_pieces_of_another),
    TEST(one_model_is_staged_on_two_backends_at_once),
    TEST(a_packed_file_is_as_good_as_the_model),
    TEST(a_damaged_packed_file_is_not_used),
    TEST(it_does_not_matter_where_a_packed_file_is),
    TEST(a_packed_file_of_another_model_is_not_used),
    TEST(a_packed_file_of_an_earlier_version_is_not_used),
    TEST(a_packed_file_is_beside_the_model),
};

int main(int argc, char **argv) {
    int rc = test_run(cases, INFERD_COUNT(cases), argc, argv);
    remove_files();
    return rc;
}
