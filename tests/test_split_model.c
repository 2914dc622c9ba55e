/* test_split_model.c - a model in several files is the model of one file: the same logits, whatever
 * part is named and wherever its bytes are, one packed file, one fingerprint; and a part that is
 * changed, replaced or removed is noticed as one file is. */
#include <sys/uio.h>

#include "bound_rig.h"
#include "family_file.h"
#include "gguf/gguf_file.h"
#include "packed.h"
#include "split_gguf.h"

enum { ALL = 1000000, PARTS = 4 };

static const tiny_model_options large = {
    .n_layers = 6, .dim = 256, .ffn_dim = 1024, .n_heads = 8}; // longer than all buffers of a stage

static char whole_path[80], prefix[80], small_prefix[80];

static void make_files(void) {
    if (whole_path[0] != 0) return;
    snprintf(whole_path, sizeof whole_path, "/tmp/test_split_model.%d.gguf", (int)getpid());
    snprintf(prefix, sizeof prefix, "/tmp/test_split_model.%d", (int)getpid());
    snprintf(small_prefix, sizeof small_prefix, "/tmp/test_split_model.%d.small", (int)getpid());
    tiny_model_write(whole_path, 4, &large);
    tiny_split_model_write(prefix, PARTS, 4, &large);
    tiny_split_model_write(small_prefix, 3, 7, NULL);
}

static void remove_files(void) {
    unlink(whole_path);
    tiny_split_remove(prefix, PARTS);
    tiny_split_remove(small_prefix, 3);
}

/* A copy of the small set under another name. */
static void copy_small(const char *to) {
    for (uint32_t i = 0; i < 3; i++) {
        static char part[1 << 20];
        FILE *in = fopen(tiny_part_path(small_prefix, i, 3), "rb");
        INFERD_CHECK(in != NULL);
        size_t n = fread(part, 1, sizeof part, in);
        INFERD_CHECK(n > 0 && n < sizeof part);
        fclose(in);
        tiny_file_write(tiny_part_path(to, i, 3), part, n);
    }
}

static bool stage_in(rig *r, inferd_err *err) {
    bell b = {0};
    bound_progress at = {0};
    inferd_status st;
    sem_init(&b.woken, 0, 0);
    st = rig_stage_begin(r, &b, err);
    if (st == INFERD_OK) rig_pieces(r, &b, ALL, &at, &st, err);
    sem_destroy(&b.woken);
    return st == INFERD_OK;
}

/* Its logits, staged in pieces; `note` is that of the stage. */
static void score(const char *path, uint32_t n_threads, told *out,
                  char note[INFERD_ERR_TEXT_BYTES]) {
    rig r;
    inferd_err err = {0};
    bound_progress at = {0};
    out->n = 0;
    note[0] = 0;
    if (rig_open(&r, on_cpu(n_threads), path)) {
        if (!stage_in(&r, &err)) fine(err.status, &err);
        snprintf(note, INFERD_ERR_TEXT_BYTES, "%s", bound_stage_note(r.p));
        if (bound_state_of(r.p) == BOUND_WARM) {
            fine(bound_load_begin(r.p, r.pages, r.n_pages, &err), &err);
            while (!at.finished && fine(bound_load_step(r.p, 0, &at, &err), &err)) {
            }
            rig_score(&r, out);
        }
    }
    rig_close(&r);
}

/* The file leaves the page cache; false: this kernel or file system keeps it. */
static bool forget(const char *path) {
    unsigned char byte;
    struct stat st;
    int fd = open(path, O_RDONLY);
    INFERD_CHECK(fd >= 0 && fstat(fd, &st) == 0);
    bool gone = fdatasync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
    gone = gone && preadv2(fd, &(struct iovec){&byte, 1}, 1, st.st_size / 2, RWF_NOWAIT) != 1;
    close(fd);
    return gone;
}

/* ---- the same model ---- */

/* Everything is in the page cache, or one part is not, or none is. */
static void parts_are_as_good_as_one_file(void) {
    static told wanted, got;
    char note[INFERD_ERR_TEXT_BYTES];
    uint32_t n_gone = 0;
    make_files();
    told_by(whole_path, on_cpu(1), &wanted);
    for (uint32_t named = 0; named < PARTS; named++) {
        told_by(tiny_part_path(prefix, named, PARTS), on_cpu(1), &got);
        EXPECT(same(&wanted, &got));
    }
    for (uint32_t cold = 0; cold <= PARTS + 1; cold++) {
        for (uint32_t i = 0; i < PARTS && cold > 0; i++)
            if (i + 1 == cold || cold > PARTS) n_gone += forget(tiny_part_path(prefix, i, PARTS));
        score(tiny_part_path(prefix, cold % PARTS, PARTS), 1 + cold % 2, &got, note);
        EXPECT(same(&wanted, &got));
        EXPECT_STR(note, "");
    }
    if (n_gone < 2 * PARTS) SKIP("nothing can be taken out of the page cache here");
}

static void types_and_alignments_do_not_matter(void) {
    static const uint32_t types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
    static const uint32_t alignments[] = {4096, 8, 64};
    static told wanted, got;
    char one[90], many[90], note[INFERD_ERR_TEXT_BYTES];
    make_files();
    snprintf(one, sizeof one, "%s.type", prefix);
    snprintf(many, sizeof many, "%s.types", prefix);
    for (size_t k = 0; k < INFERD_COUNT(types); k++) {
        tiny_model_options o = {.type = types[k], .tied = k % 2 == 0};
        tiny_gguf *g = malloc(sizeof *g);
        tiny_split s;
        INFERD_CHECK(g != NULL);
        tiny_gguf_init(g);
        tiny_model_fill(g, 20 + k, &o);
        tiny_gguf_write(g, one);
        tiny_split_make(&s, g, 3, alignments);
        tiny_split_write(&s, many);
        told_by(one, on_cpu(1), &wanted);
        score(tiny_part_path(many, (uint32_t)k % 3, 3), 2, &got, note);
        EXPECT(same(&wanted, &got));
        tiny_split_deinit(&s);
        tiny_gguf_deinit(g);
        free(g);
    }
    unlink(one);
    tiny_split_remove(many, 3);
}

/* The tensors of a file in n parts; the metadata is copied as it is. */
static void split_family(const family_file *f, const char *to, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        size_t begin = f->n_tensors * i / n, end = f->n_tensors * (i + 1) / n;
        tiny_gguf keys;
        buf out = {0}, data = {0};
        tiny_gguf_init(&keys);
        if (i == 0) buf_add(&keys.metadata, f->p + 24, f->keys_end - 24);
        if (i == 0) keys.n_entries_said = gguf_load(f->p + 16, 8);
        tiny_split_keys(&keys, i, n, (uint32_t)f->n_tensors);
        keys.n_tensors_said = end - begin;
        buf_add(&out, "GGUF", 4);
        tiny_put(&out, 3, 4);
        tiny_put(&out, keys.n_tensors_said, 8);
        tiny_put(&out, keys.n_entries_said, 8);
        buf_add(&out, keys.metadata.p, keys.metadata.n);
        for (size_t k = begin; k < end; k++) {
            const family_tensor *t = &f->tensors[k];
            tiny_put_string(&out, t->name, strlen(t->name));
            tiny_put(&out, t->n_dims, 4);
            for (uint32_t d = 0; d < t->n_dims; d++) tiny_put(&out, t->dims[d], 8);
            tiny_put(&out, t->type, 4);
            tiny_put(&out, data.n, 8);
            buf_add(&data, family_tensor_at(f, k), family_tensor_bytes(t));
            tiny_pad(&data, FAMILY_ALIGNMENT);
        }
        tiny_pad(&out, FAMILY_ALIGNMENT);
        buf_add(&out, data.p, data.n);
        INFERD_CHECK(!out.failed && !data.failed && !keys.metadata.failed);
        tiny_file_write(tiny_part_path(to, i, n), out.p, out.n);
        buf_deinit(&data);
        buf_deinit(&out);
        tiny_gguf_deinit(&keys);
    }
}

/* Stacks of experts and fused tensors: several matrices of one tensor, in any part. */
static void tensors_of_several_matrices_lie_in_parts(void) {
    static const char *const families[] = {"qwen3moe", "mixtral", "gpt-oss-mxfp4", "phi3"};
    static told wanted, got;
    char head[300], one[90], many[90], note[INFERD_ERR_TEXT_BYTES];
    make_files();
    snprintf(one, sizeof one, "%s.family", prefix);
    snprintf(many, sizeof many, "%s.families", prefix);
    for (size_t k = 0; k < INFERD_COUNT(families); k++) {
        family_file f;
        size_t n;
        snprintf(head, sizeof head, "%s/tests/families/%s.head", INFERD_SOURCE_DIR, families[k]);
        unsigned char *p = family_read(head, &n);
        family_make(p, n, 1, &f);
        family_write(one, f.p, f.n);
        split_family(&f, many, 3);
        score(one, 1, &wanted, note);
        for (uint32_t i = 0; i < 3; i++) {
            if (i == 1) forget(tiny_part_path(many, i, 3)); // by the reader, too
            score(tiny_part_path(many, i, 3), 1 + i % 2, &got, note);
            EXPECT(same(&wanted, &got));
        }
        tiny_split_remove(many, 3);
        family_file_deinit(&f);
        free(p);
    }
    unlink(one);
}

static void a_number_that_is_not_finite_is_named_with_its_part(void) {
    char bad[90];
    make_files();
    snprintf(bad, sizeof bad, "%s.nan", prefix);
    model *m = open_model(tiny_part_path(small_prefix, 0, 3));
    INFERD_CHECK(m != NULL);
    for (size_t i = 0; i < gguf_n_tensors(m->file); i += 3) {
        const gguf_tensor *t = gguf_tensor_at(m->file, i);
        uint32_t nan_bits = 0x7fc00000u;
        char path[TINY_PATH_BYTES];
        copy_small(bad);
        snprintf(path, sizeof path, "%s", tiny_part_path(bad, t->part, 3));
        int fd = open(path, O_WRONLY);
        INFERD_CHECK(fd >= 0 && pwrite(fd, &nan_bits, 4, (off_t)t->file_offset) == 4);
        close(fd);
        if (i % 2 == 0) forget(path); // then the reader's
        rig r;
        inferd_err err = {0};
        if (rig_open(&r, on_cpu(1), tiny_part_path(bad, 0, 3))) {
            EXPECT(!stage_in(&r, &err) && err.status == INFERD_EFORMAT);
            bool named = strstr(err.text, path) == err.text && strstr(err.text, t->name) != NULL;
            if (!named) printf("%s: \"%s\"\n", path, err.text);
            EXPECT(named);
        }
        rig_close(&r);
        tiny_split_remove(bad, 3);
    }
    model_close(m);
}

/* ---- packed ---- */

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

static void one_packed_file_is_for_all_parts(void) {
    static told wanted, got;
    char copy[90], note[INFERD_ERR_TEXT_BYTES], expected[TINY_PATH_BYTES];
    make_files();
    snprintf(copy, sizeof copy, "%s.packed", prefix);
    copy_small(copy);
    told_by(tiny_part_path(small_prefix, 0, 3), on_cpu(1), &wanted);
    char *packed_at = pack(tiny_part_path(copy, 1, 3));
    INFERD_CHECK(packed_at != NULL);
    snprintf(expected, sizeof expected, "%s.inferd-cpu-panels-1", tiny_part_path(copy, 0, 3));
    EXPECT_STR(packed_at, expected);
    for (uint32_t i = 0; i < 3; i++) {
        score(tiny_part_path(copy, i, 3), 1, &got, note);
        EXPECT(same(&wanted, &got));
        EXPECT(strstr(note, "read from") != NULL && strstr(note, packed_at) != NULL);
    }
    /* Not when the time of one part is another. */
    for (uint32_t i = 0; i < 3; i++) {
        struct stat st;
        char path[TINY_PATH_BYTES];
        snprintf(path, sizeof path, "%s", tiny_part_path(copy, i, 3));
        INFERD_CHECK(stat(path, &st) == 0);
        struct timespec old[2] = {st.st_atim, st.st_mtim}, now[2] = {{1, 0}, {1, 0}};
        EXPECT_EQ(utimensat(AT_FDCWD, path, now, 0), 0);
        score(path, 1, &got, note);
        EXPECT(same(&wanted, &got) && strstr(note, "time of the model") != NULL);
        EXPECT_EQ(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    score(tiny_part_path(copy, 2, 3), 1, &got, note);
    EXPECT(strstr(note, "read from") != NULL);
    unlink(packed_at);
    free(packed_at);
    tiny_split_remove(copy, 3);
}

/* ---- files that change ---- */

typedef enum harm { CUT, TOUCHED, REPLACED, TAKEN_AWAY, HARMS } harm;

static void do_harm(harm h, const char *set, uint32_t part) {
    struct stat now;
    char moved[90], path[TINY_PATH_BYTES];
    snprintf(path, sizeof path, "%s", tiny_part_path(set, part, 3));
    INFERD_CHECK(stat(path, &now) == 0);
    switch (h) {
    case CUT:
        INFERD_CHECK(truncate(path, now.st_size / 2) == 0);
        break;
    case TOUCHED:
        INFERD_CHECK(utimensat(AT_FDCWD, path, (struct timespec[2]){{1, 0}, {1, 0}}, 0) == 0);
        break;
    case REPLACED:
        snprintf(moved, sizeof moved, "%s.aside", set);
        copy_small(moved);
        INFERD_CHECK(rename(tiny_part_path(moved, part, 3), path) == 0);
        tiny_split_remove(moved, 3);
        break;
    default:
        INFERD_CHECK(unlink(path) == 0);
    }
}

/* As with one file: what is open is whole when a path is another's, and what was changed in place
 * is not; each part counts. */
static void a_part_that_changed_before_is_not_read(void) {
    static told wanted, got;
    char copy[90];
    make_files();
    snprintf(copy, sizeof copy, "%s.harm", prefix);
    told_by(tiny_part_path(small_prefix, 0, 3), on_cpu(1), &wanted);
    for (uint32_t h = 0; h < HARMS; h++)
        for (uint32_t part = 0; part < 3; part++) {
            rig r;
            inferd_err err = {0};
            model_file_id before, after;
            copy_small(copy);
            if (rig_open(&r, on_cpu(1), tiny_part_path(copy, (part + 1) % 3, 3))) {
                bool whole = h == REPLACED || h == TAKEN_AWAY;
                const char *path = tiny_part_path(copy, part, 3);
                EXPECT_EQ(model_look_at_file(r.m, &before, &err), MODEL_FILE_SAME);
                do_harm((harm)h, copy, part);
                EXPECT_EQ(model_look_at_file(r.m, &after, &err),
                          h == TAKEN_AWAY ? MODEL_FILE_MISSING : MODEL_FILE_REPLACED);
                EXPECT(memcmp(&before, &after, sizeof before) != 0);
                EXPECT(h != TAKEN_AWAY || strstr(err.text, tiny_part_path(copy, part, 3)) != NULL);
                inferd_status st = bound_bring_up(r.p, r.pages, r.n_pages, &err);
                EXPECT_EQ(st, h == REPLACED ? INFERD_OK : INFERD_EIO);
                path = tiny_part_path(copy, part, 3);
                EXPECT(st == INFERD_OK || strstr(err.text, path) != NULL);
                bound_unstage(r.p);
                model_hold_file(r.m, true);
                st = bound_bring_up(r.p, r.pages, r.n_pages, &err);
                EXPECT_EQ(st, whole ? INFERD_OK : INFERD_EIO);
                if (whole) rig_score(&r, &got);
                EXPECT(!whole || same(&wanted, &got));
            }
            rig_close(&r);
            tiny_split_remove(copy, 3);
        }
}

/* The stage of a set that is longer than its buffers stands still until pieces are taken. */
static void a_part_that_changes_ends_the_stage(void) {
    static const char *const words[HARMS] = {"", "was written to", "was replaced", "was removed"};
    char copy[90];
    make_files();
    snprintf(copy, sizeof copy, "%s.late", prefix);
    for (uint32_t h = 0; h < HARMS; h++)
        for (uint32_t part = h % 2; part < 3; part += 2) { // each part, and each kind of harm
            rig r;
            bell b = {0};
            bound_progress at = {0};
            inferd_err err = {0};
            inferd_status st;
            sem_init(&b.woken, 0, 0);
            tiny_split_model_write(copy, 3, 4, &large);
            if (rig_open(&r, on_cpu(1), tiny_part_path(copy, 0, 3)) &&
                fine(rig_stage_begin(&r, &b, &err), &err)) {
                rig_pieces(&r, &b, 3, &at, &st, &err);
                do_harm((harm)h, copy, part);
                if (st == INFERD_OK) rig_pieces(&r, &b, ALL, &at, &st, &err);
                EXPECT_EQ(st, INFERD_EIO);
                const char *path = tiny_part_path(copy, part, 3);
                bool named = strstr(err.text, path) != NULL && strstr(err.text, words[h]) != NULL;
                if (!named) printf("%s: \"%s\"\n", path, err.text);
                EXPECT(named);
                EXPECT_EQ(bound_state_of(r.p), BOUND_COLD);
            }
            rig_close(&r);
            tiny_split_remove(copy, 3);
            sem_destroy(&b.woken);
        }
}

/* ---- names ---- */

static void content_is_of_all_parts(void) {
    char copy[90];
    uint64_t first[2], now[2];
    bool is_same = false;
    inferd_err err = {0};
    make_files();
    snprintf(copy, sizeof copy, "%s.content", prefix);
    copy_small(copy);
    model *m = open_model(tiny_part_path(copy, 0, 3));
    INFERD_CHECK(m != NULL);
    model_content(m, first);
    EXPECT_EQ(model_about(m)->file_bytes, gguf_file_bytes(m->file));
    for (uint32_t i = 1; i < 3; i++) {
        model *other = open_model(tiny_part_path(copy, i, 3));
        INFERD_CHECK(other != NULL);
        model_content(other, now);
        EXPECT(memcmp(first, now, sizeof first) == 0);
        fine(model_same_content(m, other, &is_same, &err), &err);
        EXPECT(is_same);
        model_close(other);
    }
    /* A set with other weights, of the same sizes and times. */
    for (uint32_t i = 0; i < 3; i++) {
        struct stat st;
        char path[TINY_PATH_BYTES];
        snprintf(path, sizeof path, "%s", tiny_part_path(copy, i, 3));
        INFERD_CHECK(stat(path, &st) == 0);
        int fd = open(path, O_WRONLY);
        INFERD_CHECK(fd >= 0);
        for (size_t k = 0; k < gguf_n_tensors(m->file); k++) {
            const gguf_tensor *t = gguf_tensor_at(m->file, k);
            for (uint64_t at = 0; t->part == i && at < t->n_bytes; at += 4) {
                const float half = 0.5f;
                INFERD_CHECK(pwrite(fd, &half, 4, (off_t)(t->file_offset + at)) == 4);
            }
        }
        INFERD_CHECK(futimens(fd, (struct timespec[2]){st.st_atim, st.st_mtim}) == 0);
        close(fd);
        model *other = open_model(tiny_part_path(copy, i, 3)), *good;
        INFERD_CHECK(other != NULL);
        model_content(other, now);
        EXPECT(first[0] != now[0] && first[1] != now[1]);
        good = open_model(tiny_part_path(small_prefix, i, 3));
        fine(model_same_content(other, good, &is_same, &err), &err);
        EXPECT(!is_same);
        model_close(good);
        model_close(other);
        copy_small(copy);
    }
    model_close(m);
    tiny_split_remove(copy, 3);
}

/* Beside the first part, or named as all of them. */
static void sampling_of_a_set_has_its_name(void) {
    char path[120];
    make_files();
    snprintf(path, sizeof path, "%s.generation_config.json", small_prefix);
    tiny_file_write(path, "{\"temperature\": 0.25}", 21);
    for (uint32_t i = 0; i < 3; i++) {
        model *m = open_model(tiny_part_path(small_prefix, i, 3));
        INFERD_CHECK(m != NULL);
        EXPECT(model_about(m)->sampling.values[SAMPLING_TEMPERATURE] == 0.25);
        model_close(m);
    }
    unlink(path);
}

static void names_leave_out_the_part(void) {
    static const char *const rows[][2] = {{"/x/m-00001-of-00003.gguf", "m"},
                                          {"m-00003-of-00003.gguf", "m"},
                                          {"m.gguf", "m"},
                                          {"a.gguf/m", "m"},
                                          {"dummy:tiny?seed=1", "tiny"},
                                          {"dummy:tiny", "tiny"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        bytes name = model_path_name(rows[i][0]);
        EXPECT(name.n == strlen(rows[i][1]) && memcmp(name.p, rows[i][1], name.n) == 0);
    }
}

static const test_case cases[] = {
    TEST(parts_are_as_good_as_one_file),
    TEST(types_and_alignments_do_not_matter),
    TEST(tensors_of_several_matrices_lie_in_parts),
    TEST(a_number_that_is_not_finite_is_named_with_its_part),
    TEST(one_packed_file_is_for_all_parts),
    TEST(a_part_that_changed_before_is_not_read),
    TEST(a_part_that_changes_ends_the_stage),
    TEST(content_is_of_all_parts),
    TEST(sampling_of_a_set_has_its_name),
    TEST(names_leave_out_the_part),
};

int main(int argc, char **argv) {
    int rc = test_run(cases, INFERD_COUNT(cases), argc, argv);
    remove_files();
    return rc;
}
