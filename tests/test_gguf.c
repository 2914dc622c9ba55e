/* test_gguf.c - the GGUF reader: files it reads, metadata by kind, files that change.
 *
 * What it refuses is in test_gguf_refused.c. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "gguf_image.h"

/* ---- what it reads ---- */

static void versions_2_and_3_are_read(void) {
    for (uint32_t version = 2; version <= 3; version++) {
        tiny_gguf t;
        fill_sample(&t);
        t.version = version;
        gguf *g = open_good(&t);
        expect_sample(g);
        EXPECT_STR(gguf_path(g), image_path);
        gguf_close(g);
        tiny_gguf_deinit(&t);
    }
    gguf_close(NULL);
}

static void alignments_are_followed(void) {
    static const uint32_t alignments[] = {8, 16, 64, 4096, 1 << 20};
    for (size_t i = 0; i < INFERD_COUNT(alignments); i++) {
        tiny_gguf t;
        tiny_gguf_init(&t);
        t.alignment = alignments[i];
        tiny_kv_u32(&t, "general.alignment", t.alignment);
        for (unsigned k = 0; k < 3; k++) {
            char name[2] = {(char)('a' + k), 0};
            unsigned char data[9] = {0, 0, 0, 0, 0, 0, 0, 0, (unsigned char)k};
            tiny_tensor_add(&t, name, 24, 1, (uint64_t[]){9}, data, 9); // I8
        }
        gguf *g = open_good(&t);
        for (unsigned k = 0; k < 3; k++) {
            const gguf_tensor *tensor = gguf_tensor_at(g, k);
            unsigned char last;
            EXPECT_EQ(tensor->file_offset % t.alignment, 0);
            EXPECT_EQ(gguf_read(g, tensor, 8, &last, 1, NULL), INFERD_OK);
            EXPECT_EQ(last, k);
        }
        gguf_close(g);
        tiny_gguf_deinit(&t);
    }
}

static void a_file_without_keys_or_tensors_is_one(void) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    gguf *g = open_good(&t);
    EXPECT_EQ(gguf_n_tensors(g), 0);
    EXPECT(!gguf_has(g, "general.architecture"));
    gguf_close(g);
    tiny_gguf_deinit(&t);

    put_image("GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, 24); // not even padded
    EXPECT_EQ(gguf_open(image_path, &g, NULL), INFERD_OK);
    gguf_close(g);
}

static void types_we_cannot_compute_are_still_listed(void) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_tensor_add(&t, "two bits", 22, 1, (uint64_t[]){512}, NULL, 164); // IQ2_S
    gguf *g = open_good(&t);
    EXPECT_EQ(gguf_tensor_at(g, 0)->n_bytes, 164);
    EXPECT(!dtype_about(gguf_tensor_at(g, 0)->type).supported);
    gguf_close(g);
    tiny_gguf_deinit(&t);
}

static void many_keys_and_tensors_are_found(void) {
    enum { N = 5000 };
    tiny_gguf t;
    tiny_gguf_init(&t);
    char key[32];
    for (uint32_t i = 0; i < N; i++) {
        snprintf(key, sizeof key, "%u", i * 7919 % N); // no order; 1 is the start of 10
        tiny_kv_u32(&t, key, i);
    }
    for (uint32_t i = 0; i < TINY_TENSORS_MAX; i++) {
        snprintf(key, sizeof key, "%u", i * 29 % TINY_TENSORS_MAX);
        tiny_tensor_add(&t, key, DTYPE_F32, 1, (uint64_t[]){1}, &(float){0}, 4);
    }
    gguf *g = open_good(&t);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t v;
        snprintf(key, sizeof key, "%u", i * 7919 % N);
        EXPECT_EQ(gguf_u64(g, key, i, i, &v, NULL), INFERD_OK);
    }
    EXPECT(!gguf_has(g, "5000") && !gguf_has(g, "") && !gguf_has(g, "00"));
    walk(g);
    gguf_close(g);
    tiny_kv_u32(&t, "4711", 0);
    is_refused(&t, INFERD_EFORMAT, "key 4711 occurs twice");
}

/* ---- metadata by kind ---- */

static gguf *open_sample(void) {
    tiny_gguf t;
    fill_sample(&t);
    gguf *g = open_good(&t);
    tiny_gguf_deinit(&t);
    return g;
}

static void integers_of_any_width_are_integers(void) {
    gguf *g = open_sample();
    inferd_err err = {0};
    uint64_t v = 7;
    EXPECT_EQ(gguf_u64(g, "u8", 200, 200, &v, NULL), INFERD_OK);
    EXPECT_EQ(v, 200);
    EXPECT_EQ(gguf_u64(g, "u16", 0, 60000, &v, NULL), INFERD_OK);
    EXPECT_EQ(v, 60000);
    EXPECT_EQ(gguf_u64(g, "u32", 0, UINT64_MAX, &v, NULL), INFERD_OK);
    EXPECT_EQ(v, 4000000000u);
    EXPECT_EQ(gguf_u64(g, "u64", 0, UINT64_MAX, &v, NULL), INFERD_OK);
    EXPECT(v == UINT64_MAX);
    EXPECT_EQ(gguf_u64_or(g, "u8", 0, 255, 9, &v, NULL), INFERD_OK);
    EXPECT_EQ(v, 200);
    EXPECT_EQ(gguf_u64_or(g, "nothing", 0, 1, 9, &v, NULL), INFERD_OK);
    EXPECT_EQ(v, 9);

    expect_failed(gguf_u64(g, "u8", 201, 300, &v, &err), INFERD_EFORMAT, &err,
                  "key u8 is 200, expected 201 to 300");
    expect_failed(gguf_u64(g, "u8", 0, 199, &v, &err), INFERD_EFORMAT, &err,
                  "key u8 is 200, expected 0 to 199");
    expect_failed(gguf_u64_or(g, "i8", 0, 500, 9, &v, &err), INFERD_EFORMAT, &err,
                  "key i8 is -100, expected 0 to 500");
    expect_failed(gguf_u64(g, "i16", 0, 500, &v, &err), INFERD_EFORMAT, &err, "-30000");
    expect_failed(gguf_u64(g, "i32", 0, 500, &v, &err), INFERD_EFORMAT, &err, "-2000000000");
    expect_failed(gguf_u64(g, "i64", 0, 500, &v, &err), INFERD_EFORMAT, &err,
                  "-9223372036854775808");
    expect_failed(gguf_u64(g, "nothing", 0, 500, &v, &err), INFERD_EFORMAT, &err,
                  "key nothing is missing");
    expect_failed(gguf_u64(g, "f32", 0, 500, &v, &err), INFERD_EFORMAT, &err,
                  "key f32 is f32, expected an integer");
    expect_failed(gguf_u64(g, "text", 0, 500, &v, &err), INFERD_EFORMAT, &err,
                  "key text is a string, expected an integer");
    expect_failed(gguf_u64_or(g, "true", 0, 1, 9, &v, &err), INFERD_EFORMAT, &err,
                  "key true is a bool, expected an integer");
    expect_failed(gguf_u64(g, "array.text", 0, 1, &v, &err), INFERD_EFORMAT, &err,
                  "key array.text is an array of a string, expected an integer");
    EXPECT_EQ(v, 9); // a failure leaves it
    expect_words(&err, image_path);
    gguf_close(g);
}

static void any_number_is_a_real(void) {
    gguf *g = open_sample();
    inferd_err err = {0};
    double v = 7;
    EXPECT_EQ(gguf_f64(g, "f32", 1.5, 1.5, &v, NULL), INFERD_OK);
    EXPECT(v == 1.5);
    EXPECT_EQ(gguf_f64(g, "f64", -1, 0, &v, NULL), INFERD_OK);
    EXPECT(v == -0.1);
    EXPECT_EQ(gguf_f64(g, "i64", -INFINITY, 0, &v, NULL), INFERD_OK);
    EXPECT(v == -0x1p63);
    EXPECT_EQ(gguf_f64(g, "u64", 0, INFINITY, &v, NULL), INFERD_OK);
    EXPECT(v == 0x1p64);
    EXPECT_EQ(gguf_f64_or(g, "nothing", 0, 1, 2.5, &v, NULL), INFERD_OK);
    EXPECT(v == 2.5);
    expect_failed(gguf_f64(g, "f32", 2, 3, &v, &err), INFERD_EFORMAT, &err,
                  "key f32 is 1.5, expected 2 to 3");
    expect_failed(gguf_f64_or(g, "f32", 0, 1, 2.5, &v, &err), INFERD_EFORMAT, &err,
                  "expected 0 to 1");
    expect_failed(gguf_f64(g, "true", 0, 1, &v, &err), INFERD_EFORMAT, &err,
                  "key true is a bool, expected a number");
    expect_failed(gguf_f64(g, "nothing", 0, 1, &v, &err), INFERD_EFORMAT, &err, "is missing");
    EXPECT(v == 2.5);
    gguf_close(g);
}

static void not_a_number_is_in_no_range(void) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_kv_f32(&t, "nan", NAN);
    tiny_kv_f64(&t, "inf", INFINITY);
    gguf *g = open_good(&t);
    double v;
    EXPECT_EQ(gguf_f64(g, "nan", -INFINITY, INFINITY, &v, NULL), INFERD_EFORMAT);
    EXPECT_EQ(gguf_f64(g, "inf", 0, 1e300, &v, NULL), INFERD_EFORMAT);
    gguf_close(g);
    tiny_gguf_deinit(&t);
}

static void bools_may_be_integers(void) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_kv_bool(&t, "yes", true);
    tiny_kv_bits(&t, "u8 yes", GGUF_U8, 1, 1);
    tiny_kv_bits(&t, "i32 no", GGUF_I32, 0, 4);
    tiny_kv_u32(&t, "two", 2);
    tiny_kv_bits(&t, "minus", GGUF_I8, 0xff, 1);
    tiny_kv_f32(&t, "real", 1);
    gguf *g = open_good(&t);
    inferd_err err = {0};
    bool v = false;
    EXPECT(gguf_bool_or(g, "yes", false, &v, NULL) == INFERD_OK && v);
    EXPECT(gguf_bool_or(g, "i32 no", true, &v, NULL) == INFERD_OK && !v);
    EXPECT(gguf_bool_or(g, "u8 yes", false, &v, NULL) == INFERD_OK && v);
    EXPECT(gguf_bool_or(g, "nothing", false, &v, NULL) == INFERD_OK && !v);
    EXPECT(gguf_bool_or(g, "nothing", true, &v, NULL) == INFERD_OK && v);
    expect_failed(gguf_bool_or(g, "two", false, &v, &err), INFERD_EFORMAT, &err,
                  "key two is 2, expected 0 to 1");
    expect_failed(gguf_bool_or(g, "minus", false, &v, &err), INFERD_EFORMAT, &err, "is -1");
    expect_failed(gguf_bool_or(g, "real", false, &v, &err), INFERD_EFORMAT, &err,
                  "key real is f32, expected a bool");
    EXPECT(v);
    gguf_close(g);
    tiny_gguf_deinit(&t);
}

static void strings_are_bytes_of_the_file(void) {
    gguf *g = open_sample();
    inferd_err err = {0};
    bytes v;
    EXPECT_EQ(gguf_str(g, "text", &v, NULL), INFERD_OK);
    EXPECT(v.n == 16 && memcmp(v.p, "three words here", 16) == 0);
    EXPECT_EQ(gguf_str_opt(g, "empty", &v, NULL), INFERD_OK);
    EXPECT(v.n == 0 && v.p != NULL); // there, and empty
    EXPECT_EQ(gguf_str_opt(g, "nothing", &v, NULL), INFERD_OK);
    EXPECT(v.n == 0 && v.p == NULL);
    expect_failed(gguf_str(g, "nothing", &v, &err), INFERD_EFORMAT, &err, "key nothing is missing");
    expect_failed(gguf_str_opt(g, "u32", &v, &err), INFERD_EFORMAT, &err,
                  "key u32 is u32, expected a string");
    EXPECT(v.p == NULL);
    gguf_close(g);
}

static void arrays_have_their_elements(void) {
    gguf *g = open_sample();
    inferd_err err = {0};
    gguf_array_view a;
    EXPECT_EQ(gguf_array_opt(g, "array.i32", GGUF_U32, &a, NULL), INFERD_OK); // any integers
    EXPECT(a.kind == GGUF_I32 && a.n == 3 && a.strings == NULL);
    EXPECT(gguf_array_int(&a, 0) == 1 && gguf_array_int(&a, 1) == -2 && gguf_array_int(&a, 2) == 3);
    EXPECT(gguf_array_real(&a, 1) == -2.0);
    EXPECT_EQ(gguf_array_opt(g, "array.text", GGUF_STRING, &a, NULL), INFERD_OK);
    EXPECT(a.n == 3 && a.strings[0].n == 1 && a.strings[0].p[0] == 'a');
    EXPECT(a.strings[1].n == 0 && a.strings[2].n == 3 && memcmp(a.strings[2].p, "b\0c", 3) == 0);
    EXPECT_EQ(gguf_array_opt(g, "array.more", GGUF_STRING, &a, NULL), INFERD_OK);
    EXPECT(a.n == 1 && a.strings[0].n == 4 && memcmp(a.strings[0].p, "last", 4) == 0);
    EXPECT_EQ(gguf_array_opt(g, "array.bool", GGUF_BOOL, &a, NULL), INFERD_OK);
    EXPECT(a.n == 2 && gguf_array_int(&a, 0) == 0 && gguf_array_int(&a, 1) == 1);
    EXPECT_EQ(gguf_array_opt(g, "array.none", GGUF_F32, &a, NULL), INFERD_OK);
    EXPECT_EQ(a.n, 0);
    EXPECT_EQ(gguf_array_opt(g, "nothing", GGUF_F32, &a, NULL), INFERD_OK);
    EXPECT_EQ(a.n, 0);
    expect_failed(gguf_array_opt(g, "array.i32", GGUF_F32, &a, &err), INFERD_EFORMAT, &err,
                  "key array.i32 is an array of i32, expected an array of f32");
    expect_failed(gguf_array_opt(g, "array.i32", GGUF_I64, &a, &err), INFERD_EFORMAT, &err,
                  "expected an array of i64");
    expect_failed(gguf_array_opt(g, "array.bool", GGUF_I32, &a, &err), INFERD_EFORMAT, &err,
                  "expected an array of integers");
    expect_failed(gguf_array_opt(g, "text", GGUF_STRING, &a, &err), INFERD_EFORMAT, &err,
                  "key text is a string, expected an array of a string");
    EXPECT_EQ(a.n, 0);
    gguf_close(g);
}

static void numbers_of_arrays_keep_sign_and_size(void) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_kv_array(&t, "u64", GGUF_U64, 2);
    tiny_put(&t.metadata, 5, 8);
    tiny_put(&t.metadata, UINT64_MAX, 8);
    tiny_kv_array(&t, "i8", GGUF_I8, 2);
    tiny_put(&t.metadata, 0x80ff, 2);
    tiny_kv_array(&t, "f64", GGUF_F64, 1);
    tiny_put(&t.metadata, 0xbff8000000000000u, 8);
    gguf *g = open_good(&t);
    gguf_array_view a;
    EXPECT_EQ(gguf_array_opt(g, "u64", GGUF_I32, &a, NULL), INFERD_OK);
    EXPECT(gguf_array_int(&a, 0) == 5 && gguf_array_int(&a, 1) == INT64_MAX);
    EXPECT_EQ(gguf_array_opt(g, "i8", GGUF_I32, &a, NULL), INFERD_OK);
    EXPECT(gguf_array_int(&a, 0) == -1 && gguf_array_int(&a, 1) == -128);
    EXPECT_EQ(gguf_array_opt(g, "f64", GGUF_F64, &a, NULL), INFERD_OK);
    EXPECT(gguf_array_real(&a, 0) == -1.5);
    gguf_close(g);
    tiny_gguf_deinit(&t);
}

/* ---- files that are none, or change ---- */

static char folder[256];

static const char *in_folder(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static bool folder_make(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/test_gguf.XXXXXX", base != NULL ? base : P_tmpdir);
    return mkdtemp(folder) != NULL;
}

static void path_is_refused(const char *path, inferd_status expected, const char *words) {
    gguf *g = NULL;
    inferd_err err = {0};
    expect_failed(gguf_open(path, &g, &err), expected, &err, words);
    EXPECT(g == NULL);
    gguf_close(g);
}

static void only_regular_files_are_opened(void) {
    EXPECT(folder_make());
    path_is_refused(folder, INFERD_EFORMAT, "it is a directory, expected a GGUF file");
    path_is_refused(in_folder("nothing"), INFERD_ENOTFOUND, "no such file");
    path_is_refused("", INFERD_ENOTFOUND, "no such file");
    path_is_refused("/dev/zero", INFERD_EFORMAT, "/dev/zero: it is a device, expected a GGUF file");
    path_is_refused("/proc/self/status", INFERD_EFORMAT, "has 0 bytes");

    const char *pipe_path = in_folder("pipe");
    EXPECT(mkfifo(pipe_path, 0600) == 0);
    path_is_refused(pipe_path, INFERD_EFORMAT, "it is a pipe"); // and does not wait for a writer
    unlink(pipe_path);

    const char *loop_path = in_folder("loop");
    EXPECT(symlink(loop_path, loop_path) == 0);
    path_is_refused(loop_path, INFERD_EIO, "cannot stat it");
    unlink(loop_path);

    const char *socket_path = in_folder("socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(socket_path) < sizeof address.sun_path) {
        memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        EXPECT(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
        path_is_refused(socket_path, INFERD_EFORMAT, "it is a socket");
        close(fd);
        unlink(socket_path);
    }
    rmdir(folder);
}

static void a_file_we_may_not_read_is_refused(void) {
    bool root = geteuid() == 0; // who may read everything, so be somebody else for a moment
    EXPECT(folder_make());
    const char *path = in_folder("secret");
    tiny_file_write(path, "GGUF", 4);
    EXPECT(chmod(path, 0) == 0 && chmod(folder, 0755) == 0);
    if (root && seteuid(65534) != 0) {
        unlink(path);
        rmdir(folder);
        SKIP("this root may not become another user");
    }
    path_is_refused(path, INFERD_EIO, "Permission denied");
    if (root) INFERD_CHECK(seteuid(0) == 0);
    unlink(path);
    rmdir(folder);
}

static gguf *open_in_folder(const char *name) {
    gguf *g = NULL;
    tiny_gguf t;
    fill_sample(&t);
    tiny_gguf_write(&t, in_folder(name));
    tiny_gguf_deinit(&t);
    EXPECT_EQ(gguf_open(in_folder(name), &g, NULL), INFERD_OK);
    INFERD_CHECK(g != NULL);
    EXPECT_EQ(gguf_check_unchanged(g, NULL), INFERD_OK);
    return g;
}

static void expect_changed(gguf *g, const char *words) {
    inferd_err err = {0};
    expect_failed(gguf_check_unchanged(g, &err), INFERD_EIO, &err, words);
    gguf_close(g);
}

static void a_file_that_changes_is_noticed(void) {
    EXPECT(folder_make());
    char path[300];
    snprintf(path, sizeof path, "%s", in_folder("model"));

    gguf *g = open_in_folder("model");
    EXPECT(truncate(path, (off_t)gguf_file_bytes(g) + 1) == 0);
    expect_changed(g, "changed while it was read: ");

    struct stat st;
    for (int seconds = 0; seconds < 2; seconds++) { // same size; the time differs in one part of it
        g = open_in_folder("model");
        EXPECT(stat(path, &st) == 0);
        struct timespec other = st.st_mtim;
        if (seconds)
            other.tv_sec--;
        else
            other.tv_nsec = (other.tv_nsec + 500000000) % 1000000000;
        EXPECT(utimensat(AT_FDCWD, path, (struct timespec[]){other, other}, 0) == 0);
        expect_changed(g, "was written to while it was read");
    }

    g = open_in_folder("model");
    unlink(path);
    unsigned char byte = 0;
    EXPECT_EQ(gguf_read(g, gguf_tensor_at(g, 0), 0, &byte, 1, NULL), INFERD_OK);
    EXPECT_EQ(byte, 1); // we still hold it
    expect_changed(g, "was removed while it was read");

    g = open_in_folder("model"); // a copy takes its place, equal in size and time
    gguf *copy = open_in_folder("copy");
    EXPECT(stat(path, &st) == 0);
    EXPECT(utimensat(AT_FDCWD, in_folder("copy"), (struct timespec[]){st.st_atim, st.st_mtim}, 0) ==
           0);
    EXPECT(rename(in_folder("copy"), path) == 0);
    gguf_close(copy);
    expect_changed(g, "was replaced by another file");

    unlink(path);
    rmdir(folder);
}

static void a_file_cut_while_it_is_read_is_an_error(void) {
    EXPECT(folder_make());
    gguf *g = open_in_folder("model");
    inferd_err err = {0};
    unsigned char data[68];
    const gguf_tensor *t = gguf_find_tensor(g, "quant");
    EXPECT(t != NULL && truncate(in_folder("model"), (off_t)t->file_offset + 20) == 0);
    EXPECT_EQ(gguf_read(g, t, 0, data, 20, &err), INFERD_OK);
    expect_failed(gguf_read(g, t, 0, data, 68, &err), INFERD_EIO, &err,
                  "tensor quant: ends at byte");
    gguf_close(g);
    unlink(in_folder("model"));
    rmdir(folder);
}

static void links_are_followed(void) {
    EXPECT(folder_make());
    gguf_close(open_in_folder("model"));
    char path[300];
    snprintf(path, sizeof path, "%s", in_folder("link"));
    EXPECT(symlink("model", path) == 0);
    gguf *g = NULL;
    EXPECT_EQ(gguf_open(path, &g, NULL), INFERD_OK);
    if (g != NULL) expect_sample(g);
    gguf_close(g);
    unlink(path);
    unlink(in_folder("model"));
    rmdir(folder);
}

/* A path can be longer than an error's text; the reason must still be there. */
static void long_paths_leave_room_for_the_reason(void) {
    char path[2000];
    memset(path, 'd', sizeof path);
    for (size_t i = 0; i < sizeof path; i += 100) path[i] = '/';
    memcpy(path + sizeof path - 12, "/mo\ndel.bin", 12);
    path_is_refused(path, INFERD_ENOTFOUND, "ddd/mo?del.bin: no such file");
}

/* ---- the small model of the other tests ---- */

static uint64_t hash_of(const buf *b) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < b->n; i++) h = (h ^ (unsigned char)b->p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t model_hash(uint64_t seed, const tiny_model_options *o, gguf **out) {
    tiny_gguf t;
    buf image = {0};
    inferd_err err;
    tiny_gguf_init(&t);
    tiny_model_fill(&t, seed, o);
    tiny_gguf_bytes(&t, &image);
    EXPECT_EQ(open_image(&image, out, &err), INFERD_OK);
    uint64_t hash = hash_of(&image);
    buf_deinit(&image);
    tiny_gguf_deinit(&t);
    return hash;
}

static void the_small_model_is_the_same_everywhere(void) {
    gguf *g = NULL;
    uint64_t first = model_hash(1, NULL, &g);
    EXPECT(first == 0x50f75e375a2abb6du);
    gguf_close(g);
    EXPECT(model_hash(1, NULL, &g) == first);
    gguf_close(g);
    EXPECT(model_hash(2, NULL, &g) != first);
    gguf_close(g);
}

static void the_small_model_has_what_it_was_asked_for(void) {
    static const dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                  DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        gguf *g = NULL;
        tiny_model_options o = {.type = types[i], .tied = i % 2 == 0, .n_layers = 2};
        model_hash(1, &o, &g);
        if (g == NULL) continue;
        EXPECT_EQ(gguf_n_tensors(g), 2 * 9 + 2 + (i % 2));
        EXPECT((gguf_find_tensor(g, "output.weight") == NULL) == o.tied);
        const gguf_tensor *q = gguf_find_tensor(g, "blk.1.attn_q.weight");
        const gguf_tensor *norm = gguf_find_tensor(g, "blk.1.attn_norm.weight");
        EXPECT(q != NULL && q->type == types[i] && norm != NULL && norm->type == DTYPE_F32);
        gguf_close(g);
    }
}

static void the_small_vocabulary_can_spell_its_merges(void) {
    gguf *g = NULL;
    gguf_array_view tokens, merges;
    model_hash(1, NULL, &g);
    EXPECT_EQ(gguf_array_opt(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, NULL), INFERD_OK);
    EXPECT_EQ(gguf_array_opt(g, "tokenizer.ggml.merges", GGUF_STRING, &merges, NULL), INFERD_OK);
    EXPECT_EQ(tokens.n, TINY_VOCAB);
    EXPECT_EQ(merges.n, TINY_MERGES);
    for (size_t i = 0; i < merges.n; i++) { // without its space, merge i is the name of its token
        const char *space = memchr(merges.strings[i].p, ' ', merges.strings[i].n);
        EXPECT(space != NULL);
        if (space == NULL) continue;
        size_t n_left = (size_t)(space - merges.strings[i].p);
        bytes whole = tokens.strings[TINY_MERGE_0 + i];
        EXPECT_EQ(whole.n, merges.strings[i].n - 1);
        EXPECT(memcmp(whole.p, merges.strings[i].p, n_left) == 0);
        EXPECT(memcmp(whole.p + n_left, space + 1, whole.n - n_left) == 0);
    }
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + ' '].p, "\xc4\xa0", 2) == 0); // U+0120
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + 'a'].p, "a", 1) == 0);
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0].p, "\xc4\x80", 2) == 0);       // U+0100
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + 173].p, "\xc5\x83", 2) == 0); // U+0143
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + 255].p, "\xc3\xbf", 2) == 0);
    gguf_close(g);
}

static const test_case cases[] = {
    TEST(versions_2_and_3_are_read),
    TEST(alignments_are_followed),
    TEST(a_file_without_keys_or_tensors_is_one),
    TEST(types_we_cannot_compute_are_still_listed),
    TEST(many_keys_and_tensors_are_found),
    TEST(integers_of_any_width_are_integers),
    TEST(any_number_is_a_real),
    TEST(not_a_number_is_in_no_range),
    TEST(bools_may_be_integers),
    TEST(strings_are_bytes_of_the_file),
    TEST(arrays_have_their_elements),
    TEST(numbers_of_arrays_keep_sign_and_size),
    TEST(only_regular_files_are_opened),
    TEST(a_file_we_may_not_read_is_refused),
    TEST(a_file_that_changes_is_noticed),
    TEST(a_file_cut_while_it_is_read_is_an_error),
    TEST(links_are_followed),
    TEST(long_paths_leave_room_for_the_reason),
    TEST(the_small_model_is_the_same_everywhere),
    TEST(the_small_model_has_what_it_was_asked_for),
    TEST(the_small_vocabulary_can_spell_its_merges),
};
TEST_MAIN(cases)
