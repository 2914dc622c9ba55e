/* test_content.c - what names a model's keys and values on disk: the same file has the same name
 * after a restart, and one with other weights another, whatever its header, size and time are. */
#include "bound_rig.h"
#include "family_file.h"

typedef struct name {
    uint64_t h[2];
} name;

static char path[64];

static void make_file(uint64_t seed, const tiny_model_options *o, int64_t mtime_s) {
    snprintf(path, sizeof path, "/tmp/test_content.%d", (int)getpid());
    tiny_model_write(path, seed, o);
    struct timespec times[2] = {{mtime_s, 0}, {mtime_s, 0}};
    INFERD_CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
}

static name name_of(const char *what) {
    name n = {{0}};
    model *m = open_model(what);
    if (m != NULL) model_content(m, n.h);
    EXPECT(n.h[0] != 0 && n.h[1] != 0 && n.h[0] != n.h[1]);
    model_close(m);
    return n;
}

/* Both halves say so. */
static bool are_unlike(name a, name b) {
    return a.h[0] != b.h[0] && a.h[1] != b.h[1];
}

static bool are_equal(name a, name b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static void a_file_keeps_its_name(void) {
    make_file(1, NULL, 1000);
    name first = name_of(path);
    EXPECT(are_equal(first, name_of(path)));
    make_file(1, NULL, 1000); // another inode, the same bytes
    EXPECT(are_equal(first, name_of(path)));
    make_file(1, NULL, 1001);
    EXPECT(are_unlike(first, name_of(path)));
    make_file(1, &(tiny_model_options){.name = "tinz"}, 1000);
    EXPECT(are_unlike(first, name_of(path)));
    unlink(path);
}

/* Two that were tuned from the same, out of an archive: header, size and time are equal. */
static void other_weights_are_another_name(void) {
    enum { SEEDS = 20 };
    name names[SEEDS];
    for (uint32_t i = 0; i < SEEDS; i++) {
        make_file(1 + i, &(tiny_model_options){.type = DTYPE_Q8_0, .n_layers = 2}, 1000);
        names[i] = name_of(path);
        for (uint32_t k = 0; k < i; k++) EXPECT(are_unlike(names[i], names[k]));
    }
    unlink(path);
}

/* Fills the tensors whose name has `part` in it with another byte. */
static uint32_t spoil(const char *part) {
    uint32_t n = 0;
    inferd_err err = {0};
    gguf *g = NULL;
    struct stat before;
    INFERD_CHECK(gguf_open(path, &g, &err) == INFERD_OK && stat(path, &before) == 0);
    int fd = open(path, O_WRONLY);
    INFERD_CHECK(fd >= 0);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (strstr(t->name, part) == NULL) continue;
        unsigned char *same = malloc(t->n_bytes);
        INFERD_CHECK(same != NULL);
        memset(same, 0x31, t->n_bytes);
        INFERD_CHECK(pwrite(fd, same, t->n_bytes, (off_t)t->file_offset) == (ssize_t)t->n_bytes);
        free(same);
        n++;
    }
    INFERD_CHECK(futimens(fd, (struct timespec[2]){before.st_atim, before.st_mtim}) == 0);
    close(fd);
    gguf_close(g);
    return n;
}

/* One matrix of each layer, as a merged adapter has it; or any one layer. */
static void one_kind_of_matrix_or_one_layer_is_enough(void) {
    static const char *const parts[] = {"attn_q.",       "attn_k.",   "attn_v.",   "attn_output.",
                                        "ffn_up.",       "ffn_gate.", "ffn_down.", "token_embd",
                                        "output.weight", "blk.0.",    "blk.2.",    "blk.5."};
    tiny_model_options o = {.n_layers = 6, .dim = 96, .n_heads = 3, .n_kv_heads = 1};
    make_file(3, &o, 1000);
    name first = name_of(path);
    for (size_t i = 0; i < INFERD_COUNT(parts); i++) {
        make_file(3, &o, 1000);
        EXPECT(spoil(parts[i]) > 0);
        bool noticed = are_unlike(first, name_of(path));
        if (!noticed) printf("%s: not noticed\n", parts[i]);
        EXPECT(noticed);
    }
    unlink(path);
}

/* A model with fewer matrices than places, and matrices smaller than a sample. */
static void small_models_have_names(void) {
    tiny_model_options o = {
        .n_layers = 1, .dim = 32, .n_heads = 1, .n_kv_heads = 1, .ffn_dim = 32, .tied = true};
    make_file(4, &o, 1000);
    name first = name_of(path);
    make_file(5, &o, 1000);
    EXPECT(are_unlike(first, name_of(path)));
    unlink(path);
}

static void made_up_models_are_named_by_shape_and_seed(void) {
    name first = name_of("dummy:tiny?seed=1");
    EXPECT(are_equal(first, name_of("dummy:tiny?seed=1")));
    EXPECT(are_unlike(first, name_of("dummy:tiny?seed=2")));
    EXPECT(are_unlike(first, name_of("dummy:tiny?seed=1&layers=1")));
    name shape = name_of("dummy:tiny?seed=1&context=1000"); // of the same size
    EXPECT(are_unlike(shape, name_of("dummy:tiny?seed=1&context=1001")));
}

/* What cannot be read is no model. */
static void a_file_that_is_cut_has_no_name(void) {
    model *m = NULL;
    inferd_err err = {0};
    struct stat info;
    make_file(6, NULL, 1000);
    INFERD_CHECK(stat(path, &info) == 0 && truncate(path, info.st_size / 2) == 0);
    EXPECT(model_open(&(model_options){.path = path}, &m, &err) != INFERD_OK && m == NULL);
    unlink(path);
}

/* A file of tests/families at `path`. */
static void make_family(const char *family) {
    size_t n;
    char head[256];
    family_file file;
    snprintf(head, sizeof head, "%s/tests/families/%s.head", INFERD_SOURCE_DIR, family);
    snprintf(path, sizeof path, "/tmp/test_content.%d", (int)getpid());
    unsigned char *p = family_read(head, &n);
    family_make(p, n, 1, &file);
    family_write(path, file.p, file.n);
    family_file_deinit(&file);
    free(p);
}

static model *open_at(uint32_t context) {
    model *m = NULL;
    inferd_err err = {0};
    fine(model_open(&(model_options){.path = path, .context_max = context}, &m, &err), &err);
    INFERD_CHECK(m != NULL);
    return m;
}

/* Served for these contexts, the file's keys and values are the same, in memory and on disk. */
static bool are_alike_at(uint32_t one, uint32_t other) {
    inferd_err err = {0};
    model *a = open_at(one), *b = open_at(other);
    name of_a, of_b;
    bool same;
    model_content(a, of_a.h);
    model_content(b, of_b.h);
    fine(model_same_content(a, b, &same, &err), &err);
    EXPECT(same ? are_equal(of_a, of_b) : are_unlike(of_a, of_b));
    model_close(a);
    model_close(b);
    return same;
}

/* With longrope the served context chooses the frequencies: a model of one set computed with the
 * other's, whose weights it shared, and found its keys on disk. */
static void rotary_frequencies_are_part_of_it(void) {
    make_family("phi4-mini"); // 256 positions at first, 4096 in all
    EXPECT(!are_alike_at(256, 257));
    EXPECT(!are_alike_at(0, 200));
    EXPECT(are_alike_at(100, 256));
    EXPECT(are_alike_at(300, 0));
    make_family("qwen2-yarn"); // always the same
    EXPECT(are_alike_at(32, 0));
    unlink(path);
}

static const test_case cases[] = {
    TEST(a_file_keeps_its_name),
    TEST(other_weights_are_another_name),
    TEST(one_kind_of_matrix_or_one_layer_is_enough),
    TEST(small_models_have_names),
    TEST(made_up_models_are_named_by_shape_and_seed),
    TEST(a_file_that_is_cut_has_no_name),
    TEST(rotary_frequencies_are_part_of_it),
};
TEST_MAIN(cases)
