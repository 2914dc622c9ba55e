/* test_gguf_split.c - models in several GGUF files: any part may be named and all are one model;
 * what is missing, wrong or of another model is refused with the name of its file. */
#include <fcntl.h>
#include <sys/stat.h>

#include "models/model.h"
#include "failing_memory.h"
#include "gguf_image.h"
#include "split_gguf.h"

static char folder[256];

/* The beginning of the paths of a set, static. */
static const char *prefix_of(const char *name) {
    static char prefix[300];
    snprintf(prefix, sizeof prefix, "%s/%s", folder, name);
    return prefix;
}

static bool folder_make(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_split.XXXXXX", base != NULL ? base : P_tmpdir);
    return mkdtemp(folder) != NULL;
}

/* The sample in n parts, with its architecture. */
static void make_sample(tiny_split *s, uint32_t n) {
    tiny_gguf whole;
    fill_sample(&whole);
    tiny_kv_str(&whole, "general.architecture", "llama");
    tiny_split_make(s, &whole, n, NULL);
    tiny_gguf_deinit(&whole);
}

static gguf *open_part(const char *prefix, uint32_t i, uint32_t n) {
    gguf *g = NULL;
    inferd_err err = {0};
    EXPECT_EQ(gguf_open(tiny_part_path(prefix, i, n), &g, &err), INFERD_OK);
    if (g == NULL) {
        printf("could not open part %u: %s\n", i + 1, err.text);
        exit(1);
    }
    return g;
}

/* Whatever part is named, the message has `words`. */
static void set_is_refused(const char *prefix, uint32_t n, inferd_status expected,
                           const char *words) {
    for (uint32_t i = 0; i < n; i++) {
        gguf *g = NULL;
        inferd_err err = {0};
        if (access(tiny_part_path(prefix, i, n), F_OK) != 0) continue;
        expect_failed(gguf_open(tiny_part_path(prefix, i, n), &g, &err), expected, &err, words);
        EXPECT(g == NULL);
        gguf_close(g);
    }
}

/* Writes `s`, which is wrong now, and ends its life. */
static void is_refused_as_set(tiny_split *s, const char *words) {
    const char *prefix = prefix_of("bad");
    uint32_t n = s->n;
    tiny_split_write(s, prefix);
    set_is_refused(prefix, n, INFERD_EFORMAT, words);
    tiny_split_remove(prefix, n);
    tiny_split_deinit(s);
}

/* The n paths of a set are links to files in memory, which the caller closes. */
static void link_to_memory(const char *prefix, uint32_t n, int *fds) {
    for (uint32_t i = 0; i < n; i++) {
        char target[64];
        fds[i] = memfd_create("part", MFD_CLOEXEC);
        INFERD_CHECK(fds[i] >= 0);
        snprintf(target, sizeof target, "/proc/self/fd/%d", fds[i]);
        INFERD_CHECK(symlink(target, tiny_part_path(prefix, i, n)) == 0);
    }
}

static void fill_memory(int fd, const buf *image) {
    INFERD_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, image->p, image->n, 0) == (ssize_t)image->n);
}

/* ---- what is read ---- */

static void any_part_may_be_named(void) {
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    for (uint32_t n = 2; n <= 3; n++) {
        tiny_split s;
        make_sample(&s, n);
        tiny_split_write(&s, prefix);
        for (uint32_t i = 0; i < n; i++) {
            gguf *g = open_part(prefix, i, n);
            struct stat st;
            uint64_t n_bytes = 0;
            for (uint32_t k = 0; k < n; k++) {
                EXPECT_EQ(stat(tiny_part_path(prefix, k, n), &st), 0);
                n_bytes += (uint64_t)st.st_size;
            }
            expect_sample(g); // names, shapes, bytes
            EXPECT_EQ(gguf_n_parts(g), n);
            EXPECT_EQ(gguf_file_bytes(g), n_bytes);
            EXPECT_STR(gguf_path(g), tiny_part_path(prefix, 0, n));
            for (size_t k = 0; k < gguf_n_tensors(g); k++) {
                const gguf_tensor *t = gguf_tensor_at(g, k);
                EXPECT_EQ(t->part, k * n / 3);
                EXPECT_STR(gguf_path_of(g, t), tiny_part_path(prefix, t->part, n));
            }
            EXPECT(gguf_has(g, "text") && gguf_has(g, "array.text")); // only in the first part
            gguf_array_view a;
            EXPECT_EQ(gguf_array_opt(g, "array.text", GGUF_STRING, &a, NULL), INFERD_OK);
            EXPECT(a.n == 3 && a.strings[2].n == 3 && memcmp(a.strings[2].p, "b\0c", 3) == 0);
            EXPECT_EQ(gguf_check_unchanged(g, NULL), INFERD_OK);
            walk(g);
            gguf_close(g);
        }
        tiny_split_deinit(&s);
        tiny_split_remove(prefix, n);
    }
    rmdir(folder);
}

static void each_part_has_its_alignment(void) {
    static const uint32_t alignments[] = {64, 8, 4096};
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_gguf whole;
    tiny_split s;
    fill_sample(&whole);
    tiny_split_make(&s, &whole, 3, alignments);
    tiny_split_write(&s, prefix);
    for (uint32_t i = 0; i < 3; i++) {
        gguf *g = open_part(prefix, i, 3);
        expect_sample(g);
        for (uint32_t k = 0; k < 3; k++)
            EXPECT_EQ(gguf_tensor_at(g, k)->file_offset % alignments[k], 0);
        gguf_close(g);
    }
    tiny_split_deinit(&s);
    tiny_gguf_deinit(&whole);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

/* As gguf-split writes with --no-tensor-first-split; and a last part may be as empty. */
static void a_part_may_have_no_tensors(void) {
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_gguf whole;
    tiny_split s;
    fill_sample(&whole);
    tiny_split_deal(&s, &whole, 5, true, NULL); // 3 tensors in parts 2 to 5
    for (uint32_t i = 0; i < 5; i++) tiny_split_keys(&s.parts[i], i, 5, 3);
    tiny_split_write(&s, prefix);
    for (uint32_t i = 0; i < 5; i++) {
        gguf *g = open_part(prefix, i, 5);
        expect_sample(g);
        EXPECT_EQ(gguf_tensor_at(g, 0)->part, 1);
        gguf_close(g);
    }
    tiny_split_deinit(&s);
    tiny_gguf_deinit(&whole);
    tiny_split_remove(prefix, 5);
    rmdir(folder);
}

/* A file that says it is split into one, or was merged again, is a file of any name. */
static void one_part_is_a_whole_file(void) {
    for (uint32_t n = 0; n <= 1; n++) {
        tiny_gguf t;
        fill_sample(&t);
        tiny_kv_bits(&t, "split.count", GGUF_U16, n, 2);
        gguf *g = open_good(&t);
        EXPECT_EQ(gguf_n_parts(g), 1);
        gguf_close(g);
        tiny_gguf_deinit(&t);
    }
}

/* A cache of downloads has links with the right names to files with others. */
static void links_of_parts_are_followed(void) {
    EXPECT(folder_make());
    tiny_split s;
    char prefix[300];
    make_sample(&s, 3);
    snprintf(prefix, sizeof prefix, "%s", prefix_of("model"));
    for (uint32_t i = 0; i < 3; i++) {
        char blob[320];
        snprintf(blob, sizeof blob, "%s/blob%u", folder, i);
        tiny_gguf_write(&s.parts[i], blob);
        EXPECT(symlink(strrchr(blob, '/') + 1, tiny_part_path(prefix, i, 3)) == 0);
    }
    gguf *g = open_part(prefix, 1, 3);
    expect_sample(g);
    gguf_close(g);
    tiny_split_remove(prefix, 3);
    for (uint32_t i = 0; i < 3; i++) {
        char blob[320];
        snprintf(blob, sizeof blob, "%s/blob%u", folder, i);
        unlink(blob);
    }
    tiny_split_deinit(&s);
    rmdir(folder);
}

/* A key that repeats the first part's is no contradiction. */
static void metadata_may_be_repeated(void) {
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_split s;
    make_sample(&s, 2);
    tiny_kv_str(&s.parts[1], "general.architecture", "llama");
    tiny_kv_i32s(&s.parts[1], "array.i32", (int32_t[]){1, -2, 3}, 3);
    tiny_kv_strs(&s.parts[1], "array.text", (bytes[]){{"a", 1}, {"", 0}, {"b\0c", 3}}, 3);
    tiny_split_write(&s, prefix);
    gguf *g = open_part(prefix, 1, 2);
    expect_sample(g);
    gguf_close(g);
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 2);
    rmdir(folder);
}

static void stems_are_the_same_for_all_parts(void) {
    static const struct {
        const char *path;
        size_t n;
    } rows[] = {{"", 0},
                {"model", 5},
                {"model.gguf", 5},
                {"/a.gguf/b", 9},
                {"a/model.gguf", 7},
                {".gguf", 5},
                {"a/.gguf", 7},
                {"model-00001-of-00003.gguf", 5},
                {"a/model-12345-of-99999.gguf", 7},
                {"-00001-of-00003.gguf", 15}, // no name is left
                {"a/-00001-of-00003.gguf", 17},
                {"model-0001-of-00003.gguf", 19},
                {"model-00001-of-000003.gguf", 21},
                {"model-0000a-of-00003.gguf", 20},
                {"model-00001-OF-00003.gguf", 20},
                {"model-00001-of-00003.bin", 24}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        EXPECT_EQ(gguf_stem_bytes(rows[i].path), rows[i].n);
}

/* ---- what is refused ---- */

static void a_missing_part_is_named(void) {
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_split s;
    make_sample(&s, 3);
    for (uint32_t missing = 0; missing < 3; missing++) {
        char words[500];
        tiny_split_write(&s, prefix);
        unlink(tiny_part_path(prefix, missing, 3));
        snprintf(words, sizeof words, "part %u of 3 of a split model: %s: no such file",
                 missing + 1, tiny_part_path(prefix, missing, 3));
        set_is_refused(prefix, 3, INFERD_ENOTFOUND, words);
        EXPECT(mkdir(tiny_part_path(prefix, missing, 3), 0700) == 0); // not even a file
        snprintf(words, sizeof words, "%s: it is a directory, expected a GGUF file",
                 tiny_part_path(prefix, missing, 3));
        set_is_refused(prefix, 3, INFERD_EFORMAT, words);
        rmdir(tiny_part_path(prefix, missing, 3));
    }
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

static void a_truncated_part_is_named(void) {
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_split s;
    make_sample(&s, 3);
    for (uint32_t cut = 0; cut < 3; cut++) {
        char words[500], path[320];
        struct stat st;
        snprintf(path, sizeof path, "%s", tiny_part_path(prefix, cut, 3));
        tiny_split_write(&s, prefix);
        EXPECT(stat(path, &st) == 0 && truncate(path, st.st_size - 32) == 0);
        snprintf(words, sizeof words, "%s: tensor %s: has ", path, s.parts[cut].tensors[0].name);
        set_is_refused(prefix, 3, INFERD_EFORMAT, words);
        set_is_refused(prefix, 3, INFERD_EFORMAT, "it may be truncated");
        EXPECT(truncate(path, 10) == 0);
        snprintf(words, sizeof words, "%s: has 10 bytes, a GGUF file has 24 or more", path);
        set_is_refused(prefix, 3, INFERD_EFORMAT, words);
    }
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

/* A set of n parts of one tensor each, without keys; the first has an architecture. */
static void make_plain(tiny_split *s, uint32_t n) {
    tiny_gguf whole;
    fill_sample(&whole);
    tiny_kv_str(&whole, "general.architecture", "llama");
    tiny_split_deal(s, &whole, n, false, NULL);
    tiny_gguf_deinit(&whole);
}

static void keys_that_do_not_agree_are_refused(void) {
    static const struct {
        uint32_t part, no, count, n_tensors;
        const char *words;
    } rows[] = {
        {1, 2, 3, 3, "split"}, // by its name, or by its neighbour's
        {0, 1, 3, 3, "split"},
        {2, 0, 3, 3, "split"},
        {1, 1, 2, 3, "split"},
        {1, 1, 4, 3, "split"},
        {1, 3, 3, 3, "key split.no is 3, expected 0 to 2"},
        {1, 1, 513, 3, "key split.count is 513, expected 0 to 512"},
        {1, 1, 1, 3, "split.count is 1, expected 3"},
        {1, 1, 0, 3, "split.count is 1, expected 3"},
        {1, 1, 3, 4, "split.tensors.count is 4, expected 3"},
    };
    EXPECT(folder_make());
    for (size_t r = 0; r < INFERD_COUNT(rows); r++) {
        tiny_split s;
        make_plain(&s, 3);
        for (uint32_t i = 0; i < 3; i++) {
            bool bad = i == rows[r].part;
            tiny_split_keys(&s.parts[i], bad ? rows[r].no : i, bad ? rows[r].count : 3,
                            bad ? rows[r].n_tensors : 3);
        }
        const char *prefix = prefix_of("bad");
        tiny_split_write(&s, prefix);
        for (uint32_t i = 0; i < 3; i++) {
            gguf *g = NULL;
            inferd_err err = {0};
            /* One that says it is whole is opened as what it says. */
            bool whole = i == rows[r].part && rows[r].count <= 1;
            inferd_status st = gguf_open(tiny_part_path(prefix, i, 3), &g, &err);
            EXPECT_EQ(st, whole ? INFERD_OK : INFERD_EFORMAT);
            EXPECT_EQ(model_n_files(tiny_part_path(prefix, i, 3)), whole ? 1 : 3);
            if (st != INFERD_OK) expect_words(&err, rows[r].words);
            if (st != INFERD_OK) expect_words(&err, tiny_part_path(prefix, rows[r].part, 3));
            gguf_close(g);
        }
        tiny_split_remove(prefix, 3);
        tiny_split_deinit(&s);
    }
    rmdir(folder);
}

static void sums_of_tensors_are_checked(void) {
    EXPECT(folder_make());
    for (int how = 0; how < 2; how++) {
        tiny_split s;
        make_plain(&s, 3);
        for (uint32_t i = 0; i < 3; i++) tiny_split_keys(&s.parts[i], i, 3, how == 0 ? 2 : 400);
        is_refused_as_set(&s, how == 0
                                  ? "split.tensors.count is 2, but the 3 parts have 3 tensors"
                                  : "split.tensors.count is 400, but the 3 parts have 3 tensors");
    }
    tiny_split s;
    make_plain(&s, 2);
    for (uint32_t i = 0; i < 2; i++) {
        tiny_kv_bits(&s.parts[i], "split.no", GGUF_U16, i, 2);
        tiny_kv_bits(&s.parts[i], "split.count", GGUF_U16, 2, 2);
    }
    is_refused_as_set(&s, "key split.tensors.count is missing");
    make_plain(&s, 2);
    for (uint32_t i = 0; i < 2; i++) tiny_kv_bits(&s.parts[i], "split.count", GGUF_U16, 2, 2);
    is_refused_as_set(&s, "key split.no is missing");
    make_plain(&s, 2);
    for (uint32_t i = 0; i < 2; i++) {
        tiny_kv_bits(&s.parts[i], "split.no", GGUF_U16, i, 2);
        tiny_kv_str(&s.parts[i], "split.count", "2");
    }
    is_refused_as_set(&s, "key split.count is a string, expected an integer");
    rmdir(folder);
}

static void a_tensor_may_be_in_one_part(void) {
    EXPECT(folder_make());
    tiny_split s;
    make_plain(&s, 3);
    for (uint32_t i = 0; i < 3; i++) tiny_split_keys(&s.parts[i], i, 3, 4);
    tiny_tensor_add(&s.parts[2], "plain", DTYPE_F32, 1, (uint64_t[]){1}, NULL, 4);
    is_refused_as_set(&s, "tensor plain occurs in part 1 and in part 3 of 3");
    make_plain(&s, 3);
    for (uint32_t i = 0; i < 3; i++) tiny_split_keys(&s.parts[i], i, 3, 4);
    tiny_tensor_add(&s.parts[1], "quant", DTYPE_F32, 1, (uint64_t[]){1}, NULL, 4);
    is_refused_as_set(&s, "tensor quant occurs twice");
    rmdir(folder);
}

static void metadata_of_another_model_is_refused(void) {
    EXPECT(folder_make());
    tiny_split s;
    make_sample(&s, 3);
    tiny_kv_str(&s.parts[1], "general.architecture", "qwen3");
    is_refused_as_set(&s, "part 2 of 3 of a split model: ");
    make_sample(&s, 3);
    tiny_kv_str(&s.parts[2], "general.architecture", "qwen3");
    is_refused_as_set(&s, "-00003-of-00003.gguf: key general.architecture is \"qwen3\", but "
                          "\"llama\" in the first part");
    make_sample(&s, 3);
    tiny_kv_str(&s.parts[2], "text", "three words herf");
    is_refused_as_set(&s, "key text is \"three words herf\"");
    make_sample(&s, 3);
    tiny_kv_bits(&s.parts[2], "u32", GGUF_I32, 4000000000u, 4); // the same bits
    is_refused_as_set(&s, "key u32 is -2.949673e+08, but 4e+09 in the first part");
    make_sample(&s, 3);
    tiny_kv_u32(&s.parts[1], "llama.rope.freq_base", 10000);
    is_refused_as_set(&s, "-00002-of-00003.gguf: key llama.rope.freq_base is not in the first "
                          "part, which has the metadata");
    rmdir(folder);
}

/* The name says which part it is, and where the others are. */
static void names_of_parts_are_checked(void) {
    static const char *const names[] = {"model.gguf",
                                        "model-00002-of-00003.gguf",
                                        "model-00001-of-00002.gguf",
                                        "model-00001-of-00003.bin",
                                        "model-00001-of-00003.gguf.gguf",
                                        "model-1-of-3.gguf"};
    EXPECT(folder_make());
    tiny_split s;
    make_sample(&s, 3);
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        char path[320];
        gguf *g = NULL;
        inferd_err err = {0};
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        tiny_gguf_write(&s.parts[0], path);
        expect_failed(gguf_open(path, &g, &err), INFERD_EFORMAT, &err,
                      "is part 1 of 3 of a split model (split.no, split.count); its name must end "
                      "in -00001-of-00003.gguf, because the others are found by it");
        expect_words(&err, path);
        unlink(path);
    }
    buf image = {0};
    gguf *g = NULL;
    inferd_err err = {0};
    tiny_gguf_bytes(&s.parts[1], &image);
    put_image(image.p, image.n, image.n);
    expect_failed(gguf_open_fd(dup(image_fd), "made/m-00002-of-00003.gguf", &g, &err),
                  INFERD_EFORMAT, &err,
                  "made/m-00002-of-00003.gguf: is part 2 of 3 of a split model, but has no folder");
    buf_deinit(&image);
    tiny_split_deinit(&s);
    rmdir(folder);
}

/* The limits of one file hold for all parts together. */
static void all_parts_have_the_limits_of_one(void) {
    enum { TWO_THIRDS = GGUF_HEADER_BYTES_MAX / 3 * 2 };
    EXPECT(folder_make());
    const char *prefix = prefix_of("large");
    for (uint32_t i = 0; i < 2; i++) {
        tiny_gguf t;
        buf image = {0};
        tiny_gguf_init(&t);
        tiny_split_keys(&t, i, 2, 0);
        tiny_kv_array(&t, "huge", GGUF_U8, TWO_THIRDS);
        tiny_gguf_bytes(&t, &image);
        tiny_file_write(tiny_part_path(prefix, i, 2), image.p, image.n);
        EXPECT(truncate(tiny_part_path(prefix, i, 2), TWO_THIRDS + 4096) == 0); // sparse
        buf_deinit(&image);
        tiny_gguf_deinit(&t);
    }
    set_is_refused(prefix, 2, INFERD_EFORMAT, "bytes, but a header may have at most");
    tiny_split_remove(prefix, 2);

    tiny_split s;
    make_sample(&s, 2);
    s.parts[1].n_tensors_said = GGUF_TENSORS_MAX;
    is_refused_as_set(&s, "tensors");
    rmdir(folder);
}

static void sizes_that_wrap_together_are_refused(void) {
    EXPECT(folder_make());
    tiny_split s;
    int fds[3];
    const char *prefix = prefix_of("wide");
    make_sample(&s, 3);
    link_to_memory(prefix, 3, fds);
    for (uint32_t i = 0; i < 3; i++) {
        buf image = {0};
        tiny_gguf_bytes(&s.parts[i], &image);
        fill_memory(fds[i], &image);
        EXPECT(ftruncate(fds[i], (off_t)1 << 62) == 0);
        buf_deinit(&image);
    }
    set_is_refused(prefix, 3, INFERD_EFORMAT, "the 3 parts have 2^63 bytes or more");
    EXPECT(ftruncate(fds[1], ((off_t)1 << 62) - 2000) == 0);
    EXPECT(ftruncate(fds[2], 1000) == 0);
    gguf *g = open_part(prefix, 1, 3);
    EXPECT_EQ(gguf_file_bytes(g), ((uint64_t)1 << 63) - 1000);
    gguf_close(g);
    for (uint32_t i = 0; i < 3; i++) close(fds[i]);
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

/* ---- files that change ---- */

static void a_part_that_changes_is_noticed(void) {
    static const char *const words[] = {"changed while it was read", "was written to",
                                        "was removed", "was replaced by another file"};
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_split s;
    make_sample(&s, 3);
    for (uint32_t part = 0; part < 3; part++)
        for (int how = 0; how < 4; how++) {
            tiny_split_write(&s, prefix);
            gguf *g = open_part(prefix, (part + 1) % 3, 3);
            gguf_named before, after;
            inferd_err err = {0};
            struct stat st;
            char path[320];
            snprintf(path, sizeof path, "%s", tiny_part_path(prefix, part, 3));
            EXPECT_EQ(gguf_look(g, &before, &err), INFERD_OK);
            EXPECT(before.is_open && stat(path, &st) == 0);
            if (how == 0) {
                EXPECT(truncate(path, st.st_size + 1) == 0);
            } else if (how == 1) {
                struct timespec times[2] = {{1, 0}, {1, 0}};
                EXPECT(utimensat(AT_FDCWD, path, times, 0) == 0);
            } else {
                unlink(path);
                if (how == 3) tiny_gguf_write(&s.parts[part], path);
            }
            expect_failed(gguf_check_unchanged(g, &err), INFERD_EIO, &err, words[how]);
            expect_words(&err, path);
            EXPECT_EQ(gguf_check_open(g, NULL), how < 2 ? INFERD_EIO : INFERD_OK);
            if (how == 2) {
                expect_failed(gguf_look(g, &after, &err), INFERD_ENOTFOUND, &err, path);
            } else {
                EXPECT_EQ(gguf_look(g, &after, &err), INFERD_OK);
                EXPECT(!after.is_open && memcmp(&before, &after, sizeof before) != 0);
            }
            gguf_close(g);
        }
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

static void identities_are_of_all_parts(void) {
    EXPECT(folder_make());
    char prefix[300];
    snprintf(prefix, sizeof prefix, "%s", prefix_of("model"));
    tiny_split s;
    make_sample(&s, 3);
    tiny_split_write(&s, prefix);
    gguf *g = open_part(prefix, 0, 3);
    gguf_identity first = gguf_identify(g);
    for (uint32_t part = 0; part < 3; part++) {
        char path[320];
        struct stat st;
        snprintf(path, sizeof path, "%s", tiny_part_path(prefix, part, 3));
        EXPECT(stat(path, &st) == 0);
        struct timespec times[2] = {{1000 + part, 0}, {1000 + part, 0}};
        EXPECT(utimensat(AT_FDCWD, path, times, 0) == 0);
        gguf *other = open_part(prefix, 2, 3);
        gguf_identity now = gguf_identify(other);
        bool same = false;
        EXPECT(now.mtime_ns != first.mtime_ns && now.n_bytes == first.n_bytes);
        EXPECT(gguf_same_header(g, other));
        gguf_close(other);
        EXPECT(utimensat(AT_FDCWD, path, (struct timespec[]){st.st_atim, st.st_mtim}, 0) == 0);
        other = open_part(prefix, 1, 3);
        EXPECT(gguf_identify(other).mtime_ns == first.mtime_ns);
        EXPECT_EQ(gguf_same_bytes(g, other, &same, NULL), INFERD_OK);
        EXPECT(same);
        gguf_close(other);
    }
    /* A copy has the same bytes; one with another byte in one part does not. */
    char copy[300];
    snprintf(copy, sizeof copy, "%s", prefix_of("copy"));
    for (uint32_t part = 0; part <= 3; part++) {
        tiny_split_write(&s, copy);
        if (part < 3) {
            const gguf_tensor *t = gguf_tensor_at(g, part);
            int fd = open(tiny_part_path(copy, part, 3), O_WRONLY);
            EXPECT(fd >= 0 && pwrite(fd, "x", 1, (off_t)t->file_offset) == 1);
            close(fd);
        }
        gguf *other = open_part(copy, 0, 3);
        bool same = part < 3;
        EXPECT_EQ(gguf_same_bytes(g, other, &same, NULL), INFERD_OK);
        EXPECT_EQ(same, part == 3);
        gguf_close(other);
    }
    gguf_close(g);
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    tiny_split_remove(copy, 3);
    rmdir(folder);
}

/* ---- bytes nobody meant ---- */

static void flipped_bits_in_any_part_never_crash(void) {
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_split s;
    make_sample(&s, 3);
    buf images[3] = {{0}}, work = {0};
    size_t data_at[3];
    int fds[3];
    tiny_random r = {2027};
    int n_opened = 0;
    link_to_memory(prefix, 3, fds);
    for (uint32_t i = 0; i < 3; i++) {
        data_at[i] = tiny_gguf_bytes(&s.parts[i], &images[i]);
        fill_memory(fds[i], &images[i]);
    }
    for (int round = 0; round < 3000; round++) {
        uint32_t part = (uint32_t)round % 3;
        buf_clear(&work);
        buf_add(&work, images[part].p, images[part].n);
        for (int i = 0; i < 1 + round % 2 * 9; i++) {
            uint64_t u = tiny_random_next(&r);
            work.p[(u >> 8) % data_at[part]] ^= (char)(1 << (u & 7));
        }
        fill_memory(fds[part], &work);
        gguf *g = NULL;
        inferd_err err = {0};
        inferd_status st = gguf_open(tiny_part_path(prefix, (uint32_t)round / 3 % 3, 3), &g, &err);
        EXPECT((st == INFERD_OK) == (g != NULL));
        EXPECT(st == INFERD_OK || st == INFERD_EFORMAT || st == INFERD_EUNSUPPORTED);
        if (st == INFERD_OK) n_opened++, walk(g);
        gguf_close(g);
        fill_memory(fds[part], &images[part]);
    }
    EXPECT(n_opened > 100);
    for (uint32_t i = 0; i < 3; i++) {
        buf_deinit(&images[i]);
        close(fds[i]);
    }
    buf_deinit(&work);
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

static int lowest_free_fd(void) {
    int fd = dup(0);
    close(fd);
    return fd;
}

static void memory_that_runs_out_leaves_no_part_open(void) {
    if (!OWN_ALLOCATOR) SKIP("the sanitizer has an allocator of its own");
    EXPECT(folder_make());
    const char *prefix = prefix_of("model");
    tiny_split s;
    make_sample(&s, 3);
    tiny_split_write(&s, prefix);
    int fd = lowest_free_fd();
    bool failed = true;
    long at = 0;
    for (; failed; at++) {
        gguf *g = NULL;
        inferd_err err = {0};
        long n_before = n_live;
        memory_fails_at(at);
        inferd_status st = gguf_open(tiny_part_path(prefix, 1, 3), &g, &err);
        failed = memory_holds();
        EXPECT((st == INFERD_OK) == (g != NULL));
        EXPECT(st == INFERD_OK || st == INFERD_ENOMEM);
        if (st == INFERD_ENOMEM) expect_words(&err, "no memory");
        if (g != NULL) expect_sample(g); // giving memory back may fail too, and is no failure
        gguf_close(g);
        EXPECT_EQ(n_live, n_before);
        EXPECT_EQ(lowest_free_fd(), fd);
    }
    EXPECT(at > 25);
    tiny_split_deinit(&s);
    tiny_split_remove(prefix, 3);
    rmdir(folder);
}

static const test_case cases[] = {
    TEST(any_part_may_be_named),
    TEST(each_part_has_its_alignment),
    TEST(a_part_may_have_no_tensors),
    TEST(one_part_is_a_whole_file),
    TEST(links_of_parts_are_followed),
    TEST(metadata_may_be_repeated),
    TEST(stems_are_the_same_for_all_parts),
    TEST(a_missing_part_is_named),
    TEST(a_truncated_part_is_named),
    TEST(keys_that_do_not_agree_are_refused),
    TEST(sums_of_tensors_are_checked),
    TEST(a_tensor_may_be_in_one_part),
    TEST(metadata_of_another_model_is_refused),
    TEST(names_of_parts_are_checked),
    TEST(all_parts_have_the_limits_of_one),
    TEST(sizes_that_wrap_together_are_refused),
    TEST(a_part_that_changes_is_noticed),
    TEST(identities_are_of_all_parts),
    TEST(flipped_bits_in_any_part_never_crash),
    TEST(memory_that_runs_out_leaves_no_part_open),
};
TEST_MAIN(cases)
