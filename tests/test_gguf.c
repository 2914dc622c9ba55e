/* test_gguf.c - the GGUF reader: what it reads, and one file for each thing it refuses.
 *
 * Files are built by tiny_gguf.h and put in memory (memfd), where /proc/self/fd names them, so that
 * thousands of them cost nothing.  A refusal is checked for its status and for the words that tell
 * a person what is wrong. */
#include "tiny_gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "test.h"

/* ---- allocations that fail ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#if !defined(OWN_MALLOC) && defined(__GLIBC__)
#define OWN_MALLOC 1
#endif

#if OWN_MALLOC
/* The sanitizers bring a malloc of their own; without them this one counts. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

static long long n_live, n_until_failure = -1; // -1: never

static bool fails_now(void) {
    return n_until_failure >= 0 && n_until_failure-- == 0;
}
void *malloc(size_t n) {
    void *p = fails_now() ? NULL : __libc_malloc(n);
    n_live += p != NULL;
    return p;
}
void *calloc(size_t n, size_t size) {
    void *p = fails_now() ? NULL : __libc_calloc(n, size);
    n_live += p != NULL;
    return p;
}
void *realloc(void *old, size_t n) {
    void *p = fails_now() ? NULL : __libc_realloc(old, n);
    n_live += p != NULL && old == NULL;
    return p;
}
void free(void *p) {
    n_live -= p != NULL;
    __libc_free(p);
}
#endif

/* ---- helpers ---- */

static int image_fd = -1;
static char image_path[64];

/* The one image file now has these bytes, and zeros up to `n_bytes`. */
static void put_image(const void *p, size_t n, size_t n_bytes) {
    if (image_fd < 0) {
        image_fd = memfd_create("image", MFD_CLOEXEC);
        INFERD_CHECK(image_fd >= 0);
        snprintf(image_path, sizeof image_path, "/proc/self/fd/%d", image_fd);
    }
    INFERD_CHECK(ftruncate(image_fd, 0) == 0 && ftruncate(image_fd, (off_t)n_bytes) == 0);
    INFERD_CHECK(n <= n_bytes && pwrite(image_fd, p, n, 0) == (ssize_t)n);
}

static inferd_status open_image(const buf *image, gguf **out, inferd_err *err) {
    put_image(image->p, image->n, image->n);
    *err = (inferd_err){0};
    return gguf_open(image_path, out, err);
}

static gguf *open_good(const tiny_gguf *t) {
    gguf *g = NULL;
    inferd_err err;
    buf image = {0};
    tiny_gguf_bytes(t, &image);
    EXPECT_EQ(open_image(&image, &g, &err), INFERD_OK);
    if (g == NULL) {
        printf("could not open: %s\n", err.text);
        exit(1);
    }
    buf_deinit(&image);
    return g;
}

static void expect_words(const inferd_err *err, const char *words) {
    if (strstr(err->text, words) != NULL) return;
    printf("error is \"%s\", expected \"... %s ...\"\n", err->text, words);
    test_failures++;
}

static void expect_failed(inferd_status s, inferd_status expected, const inferd_err *err,
                          const char *words) {
    EXPECT_EQ(s, expected);
    EXPECT_EQ(err->status, expected);
    EXPECT(strchr(err->text, '\n') == NULL);
    expect_words(err, words);
    if (s != expected) printf("  with \"%s\" for \"%s\"\n", err->text, words);
}

static void image_is_refused(const buf *image, inferd_status expected, const char *words) {
    gguf *g = (gguf *)image; // must become NULL
    inferd_err err;
    inferd_status s = open_image(image, &g, &err);
    expect_failed(s, expected, &err, words);
    expect_words(&err, image_path);
    EXPECT(g == NULL);
}

/* Ends the life of `t`: a refused file is used once. */
static void is_refused(tiny_gguf *t, inferd_status expected, const char *words) {
    buf image = {0};
    tiny_gguf_bytes(t, &image);
    image_is_refused(&image, expected, words);
    buf_deinit(&image);
    tiny_gguf_deinit(t);
}

/* Walk everything a caller can reach. */
static size_t walk(const gguf *g) {
    size_t seen = 0;
    unsigned char data[64];
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        EXPECT(gguf_find_tensor(g, t->name) == t);
        EXPECT(t->file_offset + t->n_bytes <= gguf_file_bytes(g));
        size_t n = (size_t)(t->n_bytes < sizeof data ? t->n_bytes : sizeof data);
        EXPECT_EQ(gguf_read(g, t, t->n_bytes - n, data, n, NULL), INFERD_OK);
        seen += n;
    }
    return seen;
}

/* Keys of every kind and three tensors: [2, 3] of F32, 64 of Q8_0, 5 of F16. */
static void fill_sample(tiny_gguf *t) {
    tiny_gguf_init(t);
    tiny_kv_bits(t, "u8", GGUF_U8, 200, 1);
    tiny_kv_bits(t, "i8", GGUF_I8, (uint64_t)-100, 1);
    tiny_kv_bits(t, "u16", GGUF_U16, 60000, 2);
    tiny_kv_bits(t, "i16", GGUF_I16, (uint64_t)-30000, 2);
    tiny_kv_u32(t, "u32", 4000000000u);
    tiny_kv_bits(t, "i32", GGUF_I32, (uint64_t)-2000000000, 4);
    tiny_kv_f32(t, "f32", 1.5f);
    tiny_kv_bool(t, "true", true);
    tiny_kv_bool(t, "false", false);
    tiny_kv_str(t, "text", "three words here");
    tiny_kv_str(t, "empty", "");
    tiny_kv_bits(t, "u64", GGUF_U64, UINT64_MAX, 8);
    tiny_kv_bits(t, "i64", GGUF_I64, (uint64_t)INT64_MIN, 8);
    tiny_kv_f64(t, "f64", -0.1);
    tiny_kv_i32s(t, "array.i32", (int32_t[]){1, -2, 3}, 3);
    tiny_kv_strs(t, "array.text", (bytes[]){{"a", 1}, {"", 0}, {"b\0c", 3}}, 3);
    tiny_kv_strs(t, "array.more", (bytes[]){{"last", 4}}, 1);
    tiny_kv_array(t, "array.none", GGUF_F32, 0);
    tiny_kv_array(t, "array.bool", GGUF_BOOL, 2);
    tiny_put(&t->metadata, 0x0100, 2);

    unsigned char data[68];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + 1);
    tiny_tensor_add(t, "plain", DTYPE_F32, 2, (uint64_t[]){2, 3}, data, 24);
    tiny_tensor_add(t, "quant", DTYPE_Q8_0, 1, (uint64_t[]){64}, data, 68);
    tiny_tensor_add(t, "halves", DTYPE_F16, 3, (uint64_t[]){5, 1, 1}, data, 10);
}

/* ---- what it reads ---- */

static void expect_sample(const gguf *g) {
    static const struct {
        const char *name;
        uint64_t dims[4], n_bytes;
        uint32_t n_dims, type;
    } tensors[] = {{"plain", {2, 3, 1, 1}, 24, 2, DTYPE_F32},
                   {"quant", {64, 1, 1, 1}, 68, 1, DTYPE_Q8_0},
                   {"halves", {5, 1, 1, 1}, 10, 3, DTYPE_F16}};
    EXPECT_EQ(gguf_n_tensors(g), 3);
    for (size_t i = 0; i < 3; i++) {
        const gguf_tensor *t = gguf_find_tensor(g, tensors[i].name);
        EXPECT(t == gguf_tensor_at(g, i));
        if (t == NULL) continue;
        EXPECT_EQ(t->n_dims, tensors[i].n_dims);
        EXPECT(memcmp(t->dims, tensors[i].dims, sizeof t->dims) == 0);
        EXPECT_EQ(t->type, tensors[i].type);
        EXPECT_EQ(t->n_bytes, tensors[i].n_bytes);
        unsigned char data[68] = {0};
        EXPECT_EQ(gguf_read(g, t, 3, data, 5, NULL), INFERD_OK);
        for (size_t k = 0; k < 5; k++) EXPECT_EQ(data[k], (k + 3) * 7 + 1);
        EXPECT_EQ(gguf_read(g, t, 0, data, t->n_bytes, NULL), INFERD_OK);
        EXPECT_EQ(data[t->n_bytes - 1], (unsigned char)((t->n_bytes - 1) * 7 + 1));
        EXPECT_EQ(gguf_read(g, t, t->n_bytes, data, 0, NULL), INFERD_OK);
    }
    EXPECT(gguf_find_tensor(g, "") == NULL);
    EXPECT(gguf_find_tensor(g, "plai") == NULL);
    EXPECT(gguf_find_tensor(g, "plainer") == NULL);
    EXPECT_EQ(gguf_check_unchanged(g, NULL), INFERD_OK);
}

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
    tiny_tensor_add(&t, "two bits", 10, 1, (uint64_t[]){512}, NULL, 168); // Q2_K
    gguf *g = open_good(&t);
    EXPECT_EQ(gguf_tensor_at(g, 0)->n_bytes, 168);
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
    t.n_tensors = 0;
    t.n_tensors_said = 0;
    is_refused(&t, INFERD_EFORMAT, "key 4711 is there twice");
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
    expect_failed(gguf_f64_or(g, "f32", 0, 1, 2.5, &v, &err), INFERD_EFORMAT, &err, "expected 0 to 1");
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

/* ---- what it refuses: the beginning ---- */

static void no_beginning_of_a_file_is_a_file(void) {
    tiny_gguf t;
    fill_sample(&t);
    buf image = {0};
    tiny_gguf_bytes(&t, &image);
    size_t n_least = image.n - 22; // the last tensor has 10 of 32 bytes; its padding may be missing
    put_image(image.p, image.n, image.n);
    for (size_t n = image.n; n-- > 0;) {
        gguf *g = NULL;
        inferd_err err = {0};
        INFERD_CHECK(ftruncate(image_fd, (off_t)n) == 0);
        inferd_status s = gguf_open(image_path, &g, &err);
        EXPECT_EQ(s, n >= n_least ? INFERD_OK : INFERD_EFORMAT);
        EXPECT((g != NULL) == (s == INFERD_OK));
        if (n == n_least - 1) expect_words(&err, "tensor halves: has 10 bytes at byte");
        if (n < 24) expect_words(&err, "a GGUF file has 24 or more");
        gguf_close(g);
    }
    buf_deinit(&image);
    tiny_gguf_deinit(&t);
}

static void other_files_are_refused(void) {
    tiny_gguf t;
    fill_sample(&t);
    memcpy(t.magic, "PK\3\4", 4);
    is_refused(&t, INFERD_EFORMAT, "not a GGUF file: begins with bytes 50 4b 03 04");
    fill_sample(&t);
    memcpy(t.magic, "FUGG", 4);
    is_refused(&t, INFERD_EFORMAT, "not a GGUF file");
}

static void other_versions_are_refused(void) {
    static const struct {
        uint32_t version;
        const char *words;
    } rows[] = {{0, "version 0, expected 2 or 3"},
                {1, "version 1, which had 32-bit lengths"},
                {4, "version 4, expected 2 or 3"},
                {UINT32_MAX, "version 4294967295"},
                {0x02000000, "big-endian"},
                {0x03000000, "big-endian"},
                {0x01000000, "version 16777216"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        tiny_gguf t;
        fill_sample(&t);
        t.version = rows[i].version;
        is_refused(&t, INFERD_EUNSUPPORTED, rows[i].words);
    }
}

static void counts_beyond_the_limits_are_refused(void) {
    static const uint64_t counts[] = {65537, 1u << 31, 1ull << 61, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < INFERD_COUNT(counts); i++) {
        tiny_gguf t;
        char words[80];
        fill_sample(&t);
        t.n_tensors_said = counts[i];
        snprintf(words, sizeof words, "has %" PRIu64 " tensors, at most 65536", counts[i]);
        is_refused(&t, INFERD_EFORMAT, words);
        fill_sample(&t);
        t.n_entries_said = counts[i];
        snprintf(words, sizeof words, "has %" PRIu64 " metadata keys, at most 65536", counts[i]);
        is_refused(&t, INFERD_EFORMAT, words);
    }
}

static void counts_beyond_the_file_are_refused(void) {
    tiny_gguf t;
    fill_sample(&t);
    t.n_tensors_said = 65536;
    is_refused(&t, INFERD_EFORMAT, "has 65536 tensors, which take 2162688 bytes or more");
    fill_sample(&t);
    t.n_entries_said = 65536;
    is_refused(&t, INFERD_EFORMAT, "has 65536 metadata keys, which take 917504 bytes or more");
    fill_sample(&t);
    t.n_entries_said++; // the first tensor is taken for a key and its dimensions for a kind
    is_refused(&t, INFERD_EFORMAT, "metadata 19 of 20: key plain: ");
    fill_sample(&t);
    t.n_entries_said--;
    is_refused(&t, INFERD_EFORMAT, "tensor ");
}

/* ---- what it refuses: metadata ---- */

/* A file with one key, written byte by byte. */
static void key_is_refused(const void *key, size_t n, uint64_t n_said, const char *words) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_kv_u32(&t, "first", 1);
    tiny_put(&t.metadata, n_said, 8);
    buf_add(&t.metadata, key, n);
    tiny_put(&t.metadata, GGUF_U8, 4);
    tiny_put(&t.metadata, 1, 1);
    t.n_entries_said++;
    is_refused(&t, INFERD_EFORMAT, words);
}

static void bad_keys_are_refused(void) {
    char many[GGUF_KEY_BYTES_MAX + 1];
    memset(many, 'k', sizeof many);
    key_is_refused("", 0, 0, "metadata 1 of 2: the key at byte 45 is empty");
    key_is_refused(many, sizeof many, sizeof many, "has 1025 bytes, at most 1024");
    key_is_refused("key", 3, UINT64_MAX, "has 18446744073709551615 bytes, at most 1024");
    key_is_refused("key", 3, 1000, "takes 1000 bytes, but the file has only");
    key_is_refused("a\0b", 3, 3, "has the byte 0x00, expected printable ASCII");
    key_is_refused("a\nb", 3, 3, "has the byte 0x0a");
    key_is_refused("a\x7f"
                   "b",
                   3, 3, "has the byte 0x7f");
    key_is_refused("k\xc3\xa9y", 4, 4, "has the byte 0xc3");
    key_is_refused("first", 5, 5, "key first is there twice");
}

static void the_longest_key_is_read(void) {
    char many[GGUF_KEY_BYTES_MAX + 1];
    memset(many, 'k', sizeof many);
    many[GGUF_KEY_BYTES_MAX] = 0;
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_kv_u32(&t, many, 5);
    gguf *g = open_good(&t);
    EXPECT(gguf_has(g, many));
    gguf_close(g);
    tiny_kv(&t, "bad", 99);
    is_refused(&t, INFERD_EFORMAT, "key bad: the kind of its value");
}

/* A file whose second key has this kind and value, 64 zeros behind it. */
static void value_is_refused(uint32_t kind, const void *value, size_t n, const char *words) {
    tiny_gguf t;
    tiny_gguf_init(&t);
    tiny_kv_u32(&t, "first", 1);
    tiny_kv(&t, "bad", kind);
    buf_add(&t.metadata, value, n);
    for (int i = 0; i < 64; i++) buf_add_char(&t.metadata, 0);
    is_refused(&t, INFERD_EFORMAT, words);
}

/* Kind of the elements and their number. */
static void array_is_refused(uint32_t element, uint64_t n, const char *words) {
    buf b = {0};
    tiny_put(&b, element, 4);
    tiny_put(&b, n, 8);
    value_is_refused(GGUF_ARRAY, b.p, b.n, words);
    buf_deinit(&b);
}

static void bad_values_are_refused(void) {
    value_is_refused(13, "", 0, "metadata 1 of 2: key bad: the kind of its value at byte 56 is 13");
    value_is_refused(UINT32_MAX, "", 0, "is 4294967295, expected 0 to 12");
    value_is_refused(GGUF_BOOL, "\2", 1, "key bad: a bool at byte 60 is 2, expected 0 or 1");
    value_is_refused(GGUF_ARRAY, "\7\0\0\0\3\0\0\0\0\0\0\0\0\1\xff", 15, "a bool at byte 74 is 255");
    array_is_refused(13, 1, "the kind of its elements at byte 60 is 13");
    array_is_refused(GGUF_ARRAY, 1, "key bad: is an array of arrays");
    array_is_refused(GGUF_U32, 1ull << 61, "its value at byte 72 takes 9223372036854775808 bytes");
    array_is_refused(GGUF_U32, 1ull << 62, "takes 18446744073709551615 bytes"); // 2^64: cannot be said
    array_is_refused(GGUF_U64, UINT64_MAX, "takes 18446744073709551615 bytes");
    array_is_refused(GGUF_U8, 200, "takes 200 bytes, but the file has only");
    array_is_refused(GGUF_STRING, 1ull << 61, "has 2305843009213693952 strings of 8 bytes");
    array_is_refused(GGUF_STRING, UINT64_MAX, "has 18446744073709551615 strings");
    array_is_refused(GGUF_STRING, 9, "element 8 of 9: a string at byte ");
}

static void array_nesting_is_refused_at_once(void) {
    buf b = {0};
    for (int i = 0; i < 100; i++) {
        tiny_put(&b, GGUF_ARRAY, 4);
        tiny_put(&b, 1, 8);
    }
    value_is_refused(GGUF_ARRAY, b.p, b.n, "is an array of arrays");
    buf_deinit(&b);
}

static void bad_strings_are_refused(void) {
    static const struct {
        uint64_t n;
        const char *words;
    } rows[] = {{GGUF_STRING_BYTES_MAX + 1ull, "has 16777217 bytes, at most 16777216"},
                {GGUF_STRING_BYTES_MAX, "takes 16777216 bytes, but the file has only"},
                {1ull << 63, "has 9223372036854775808 bytes, at most"},
                {UINT64_MAX, "has 18446744073709551615 bytes, at most"},
                {UINT64_MAX - 67, "at most"}}; // position + length would wrap to a small number
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        buf b = {0};
        tiny_put(&b, rows[i].n, 8);
        value_is_refused(GGUF_STRING, b.p, b.n, rows[i].words);
        buf_clear(&b);
        tiny_put(&b, GGUF_STRING, 4);
        tiny_put(&b, 1, 8);
        tiny_put(&b, rows[i].n, 8);
        value_is_refused(GGUF_ARRAY, b.p, b.n, rows[i].words);
        buf_deinit(&b);
    }
}

/* The file is large enough for what it says, the header would be too large for us. */
static void a_header_beyond_the_limit_is_refused(void) {
    tiny_gguf t;
    gguf *g = NULL;
    inferd_err err = {0};
    buf image = {0};
    tiny_gguf_init(&t);
    tiny_kv_array(&t, "huge", GGUF_U8, GGUF_HEADER_BYTES_MAX);
    tiny_gguf_bytes(&t, &image);
    put_image(image.p, image.n, (size_t)GGUF_HEADER_BYTES_MAX * 2);
    expect_failed(gguf_open(image_path, &g, &err), INFERD_EFORMAT, &err,
                  "key huge: its value at byte 52 takes 67108864 bytes, but a header may have at most "
                  "67108864 in all");
    INFERD_CHECK(ftruncate(image_fd, 0) == 0);
    buf_deinit(&image);
    tiny_gguf_deinit(&t);
}

static void bad_alignments_are_refused(void) {
    static const uint32_t alignments[] = {0, 1, 3, 4, 13, 24, 1u << 21, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < INFERD_COUNT(alignments); i++) {
        tiny_gguf t;
        char words[80];
        fill_sample(&t);
        tiny_kv_u32(&t, "general.alignment", alignments[i]);
        snprintf(words, sizeof words, "general.alignment is %u, expected a power of two from 8",
                 alignments[i]);
        is_refused(&t, INFERD_EFORMAT, words);
    }
    tiny_gguf t;
    fill_sample(&t);
    tiny_kv_bits(&t, "general.alignment", GGUF_U64, 32, 8);
    is_refused(&t, INFERD_EFORMAT, "general.alignment is u64, expected u32");
    fill_sample(&t);
    tiny_kv_str(&t, "general.alignment", "32");
    is_refused(&t, INFERD_EFORMAT, "general.alignment is a string, expected u32");
}

static void parts_of_split_models_are_refused(void) {
    tiny_gguf t;
    fill_sample(&t);
    tiny_kv_bits(&t, "split.count", GGUF_U16, 3, 2);
    is_refused(&t, INFERD_EUNSUPPORTED, "is one of 3 parts of a split model");
    fill_sample(&t);
    tiny_kv_str(&t, "split.count", "3");
    is_refused(&t, INFERD_EFORMAT, "split.count is a string, expected an integer");
    fill_sample(&t);
    tiny_kv_bits(&t, "split.count", GGUF_U16, 1, 2);
    gguf *g = open_good(&t); // a set of one is a file
    gguf_close(g);
    tiny_gguf_deinit(&t);
}

/* ---- what it refuses: tensors ---- */

static void names_of_tensors_are_checked(void) {
    static const struct {
        const char *name;
        size_t n;
        const char *words;
    } rows[] = {
        {"", 0, "tensor 1 of 3: its name at byte "},
        {"a\0b", 3, "has the byte 0x00"},
        {"a\x1b[2J", 5, "has the byte 0x1b"},
        {"plain", 5, "tensor plain is there twice"},
        {"123456789-123456789-123456789-123456789-123456789-123456789-1234", 64,
         "has 64 bytes, at most 63"},
    };
    tiny_gguf t;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        fill_sample(&t);
        memcpy(t.tensors[1].name, rows[i].name, rows[i].n);
        t.tensors[1].name_bytes = rows[i].n;
        is_refused(&t, INFERD_EFORMAT, rows[i].words);
    }
    fill_sample(&t);
    memset(t.tensors[1].name, 'n', 63);
    t.tensors[1].name_bytes = 63;
    gguf *g = open_good(&t);
    EXPECT_EQ(strlen(gguf_tensor_at(g, 1)->name), 63);
    walk(g);
    gguf_close(g);
    tiny_gguf_deinit(&t);
}

static void shape_is_refused(uint32_t type, uint32_t n_dims, const uint64_t *dims,
                             inferd_status expected, const char *words) {
    tiny_gguf t;
    fill_sample(&t);
    t.tensors[1].type = type;
    t.tensors[1].n_dims = n_dims;
    for (uint32_t i = 0; i < n_dims && i < TINY_DIMS_MAX; i++) t.tensors[1].dims[i] = dims[i];
    is_refused(&t, expected, words);
}

static void shapes_of_tensors_are_checked(void) {
    static const struct {
        uint32_t type, n_dims;
        uint64_t dims[5];
        const char *words;
    } rows[] = {
        {DTYPE_F32, 0, {0}, "tensor quant: has 0 dimensions, expected 1 to 4"},
        {DTYPE_F32, 5, {1, 1, 1, 1, 1}, "has 5 dimensions"},
        {DTYPE_F32, UINT32_MAX, {1, 1, 1, 1, 1}, "has 4294967295 dimensions"},
        {DTYPE_F32, 2, {0, 3}, "tensor quant: dimension 0 is 0"},
        {DTYPE_F32, 4, {1, 1, 1, 0}, "dimension 3 is 0"},
        {DTYPE_F32, 1, {UINT64_MAX}, "2^64 bytes or more"},
        {DTYPE_F32, 1, {1ull << 62}, "has 4611686018427387904 elements of F32: 2^64 bytes or more"},
        {24, 1, {UINT64_MAX}, "has 18446744073709551615 bytes at byte"}, // I8
        {24, 1, {1ull << 63}, "has 9223372036854775808 bytes at byte"},
        {DTYPE_F32, 2, {1ull << 32, 1ull << 32}, "2^64 elements or more: dimension 1 is 4294967296"},
        {DTYPE_F32, 3, {1ull << 32, 1ull << 31, 34}, "2^64 elements or more: dimension 2 is 34"},
        {DTYPE_F32, 4, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}, "dimension 3 is 65536"},
        {DTYPE_Q8_0, 1, {1ull << 63}, "has 9799832789158199296 bytes at byte"},
        {DTYPE_Q8_0, 1, {33}, "dimension 0 is 33, but Q8_0 comes in blocks of 32"},
        {DTYPE_Q8_0, 2, {16, 4}, "dimension 0 is 16, but Q8_0 comes in blocks of 32"},
        {DTYPE_Q6_K, 1, {64}, "dimension 0 is 64, but Q6_K comes in blocks of 256"},
        {DTYPE_F32, 1, {100000}, "tensor quant: has 400000 bytes at byte"},
        {43, 1, {64}, "has the element type 43, which does not exist"},
        {64, 1, {64}, "has the element type 64, which does not exist"},
        {UINT32_MAX, 1, {64}, "has the element type 4294967295"},
        {9, 1, {64}, "has the element type Q8_1 (9), which is for activations"},
        {15, 1, {256}, "has the element type Q8_K (15), which is for activations"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        shape_is_refused(rows[i].type, rows[i].n_dims, rows[i].dims, INFERD_EFORMAT, rows[i].words);
    shape_is_refused(4, 1, (uint64_t[]){64}, INFERD_EUNSUPPORTED,
                     "tensor quant: has the element type Q4_2 (4), which was removed");
    shape_is_refused(31, 1, (uint64_t[]){64}, INFERD_EUNSUPPORTED, "Q4_0_4_4 (31)");
}

static void places_of_tensors_are_checked(void) {
    /* As it should be: plain at 0, quant at 32, halves at 128. */
    static const struct {
        int tensor;
        uint64_t offset;
        const char *words;
    } rows[] = {
        {0, 32, "tensor plain: offset is 32, expected 0"},
        {1, 33, "tensor quant: offset 33 is no multiple of the alignment 32"},
        {1, 0, "tensor quant: offset is 0, expected 32"},     // overlaps
        {1, 64, "tensor quant: offset is 64, expected 32"},   // leaves a hole
        {2, 96, "tensor halves: offset is 96, expected 128"}, // overlaps the end
        {2, 32, "tensor halves: offset is 32, expected 128"}, // goes back
        {2, 1ull << 40, "tensor halves: offset is 1099511627776"},
        {2, UINT64_MAX - 31, "tensor halves: offset is 18446744073709551584"},
        {2, UINT64_MAX, "no multiple of the alignment"},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        tiny_gguf t;
        fill_sample(&t);
        t.tensors[rows[i].tensor].offset = rows[i].offset;
        is_refused(&t, INFERD_EFORMAT, rows[i].words);
    }
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
    path_is_refused(folder, INFERD_EFORMAT, "it is a directory, expected a file");
    path_is_refused(in_folder("nothing"), INFERD_ENOTFOUND, "no such file");
    path_is_refused("", INFERD_ENOTFOUND, "no such file");
    path_is_refused("/dev/zero", INFERD_EFORMAT, "/dev/zero: it is a device, expected a file");
    path_is_refused("/proc/self/status", INFERD_EFORMAT, "has 0 bytes");

    const char *pipe_path = in_folder("pipe");
    EXPECT(mkfifo(pipe_path, 0600) == 0);
    path_is_refused(pipe_path, INFERD_EFORMAT, "it is a pipe"); // and does not wait for a writer
    unlink(pipe_path);

    const char *loop_path = in_folder("loop");
    EXPECT(symlink(loop_path, loop_path) == 0);
    path_is_refused(loop_path, INFERD_EIO, "cannot look at it");
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
    if (geteuid() == 0) SKIP("root may read everything");
    EXPECT(folder_make());
    const char *path = in_folder("secret");
    tiny_file_write(path, "GGUF", 4);
    EXPECT(chmod(path, 0) == 0);
    path_is_refused(path, INFERD_EIO, "Permission denied");
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

    g = open_in_folder("model"); // same size, other time
    EXPECT(utimensat(AT_FDCWD, path, (struct timespec[]){{1, 0}, {1, 5}}, 0) == 0);
    expect_changed(g, "was written to while it was read");

    g = open_in_folder("model");
    unlink(path);
    unsigned char byte = 0;
    EXPECT_EQ(gguf_read(g, gguf_tensor_at(g, 0), 0, &byte, 1, NULL), INFERD_OK);
    EXPECT_EQ(byte, 1); // we still hold it
    expect_changed(g, "was taken away while it was read");

    g = open_in_folder("model"); // a copy takes its place, equal in size and time
    gguf *copy = open_in_folder("copy");
    struct stat st;
    EXPECT(stat(path, &st) == 0);
    EXPECT(utimensat(AT_FDCWD, in_folder("copy"), (struct timespec[]){st.st_atim, st.st_mtim}, 0) == 0);
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
    expect_failed(gguf_read(g, t, 0, data, 68, &err), INFERD_EIO, &err, "tensor quant: ends at byte");
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

/* ---- bytes nobody meant ---- */

static void flipped_bits_never_crash(void) {
    tiny_gguf t;
    fill_sample(&t);
    buf image = {0};
    size_t data_at = tiny_gguf_bytes(&t, &image);
    buf work = {0};
    tiny_random r = {2026};
    static const int flips[] = {1, 10, 1000};
    int n_opened = 0;
    for (int round = 0; round < 6000; round++) {
        buf_clear(&work);
        buf_add(&work, image.p, image.n);
        for (int i = 0; i < flips[round % 3]; i++) {
            uint64_t u = tiny_random_next(&r);
            work.p[(u >> 8) % data_at] ^= (char)(1 << (u & 7));
        }
        gguf *g = NULL;
        inferd_err err;
        inferd_status s = open_image(&work, &g, &err);
        EXPECT((s == INFERD_OK) == (g != NULL));
        EXPECT(s == INFERD_OK || s == INFERD_EFORMAT || s == INFERD_EUNSUPPORTED);
        if (s == INFERD_OK) n_opened++, walk(g);
        gguf_close(g);
    }
    EXPECT(n_opened > 100); // values and names have many bits that may flip
    buf_deinit(&work);
    buf_deinit(&image);
    tiny_gguf_deinit(&t);
}

static void memory_that_runs_out_is_an_error(void) {
#if OWN_MALLOC
    tiny_gguf t;
    fill_sample(&t);
    buf image = {0};
    tiny_gguf_bytes(&t, &image);
    put_image(image.p, image.n, image.n);
    long long n_failed = 0, n_before = n_live;
    for (;; n_failed++) {
        gguf *g = NULL;
        inferd_err err = {0};
        n_until_failure = n_failed;
        inferd_status s = gguf_open(image_path, &g, &err);
        bool reached = n_until_failure == -1;
        n_until_failure = -1;
        EXPECT((s == INFERD_OK) == (g != NULL));
        EXPECT(s == INFERD_OK || s == INFERD_ENOMEM);
        if (s == INFERD_ENOMEM) expect_words(&err, "no memory");
        if (g != NULL) expect_sample(g); // giving memory back may fail too, and is no failure
        gguf_close(g);
        EXPECT_EQ(n_live, n_before);
        if (!reached) break;
    }
    EXPECT(n_failed >= 8);
    buf_deinit(&image);
    tiny_gguf_deinit(&t);
#else
    SKIP("a sanitizer's malloc cannot be made to fail");
#endif
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
    EXPECT(first == 0); // PIN
    printf("%llx\n", (unsigned long long)first);
    gguf_close(g);
    EXPECT(model_hash(1, NULL, &g) == first);
    gguf_close(g);
    EXPECT(model_hash(2, NULL, &g) != first);
    gguf_close(g);
}

static void the_small_model_has_what_it_was_asked_for(void) {
    static const dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
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
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + ' '].p, "\xc4\xa0", 2) == 0);  // U+0120
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + 'a'].p, "a", 1) == 0);
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0].p, "\xc4\x80", 2) == 0);        // U+0100
    EXPECT(memcmp(tokens.strings[TINY_BYTE_0 + 173].p, "\xc5\x83", 2) == 0);  // U+0143
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
    TEST(no_beginning_of_a_file_is_a_file),
    TEST(other_files_are_refused),
    TEST(other_versions_are_refused),
    TEST(counts_beyond_the_limits_are_refused),
    TEST(counts_beyond_the_file_are_refused),
    TEST(bad_keys_are_refused),
    TEST(the_longest_key_is_read),
    TEST(bad_values_are_refused),
    TEST(array_nesting_is_refused_at_once),
    TEST(bad_strings_are_refused),
    TEST(a_header_beyond_the_limit_is_refused),
    TEST(bad_alignments_are_refused),
    TEST(parts_of_split_models_are_refused),
    TEST(names_of_tensors_are_checked),
    TEST(shapes_of_tensors_are_checked),
    TEST(places_of_tensors_are_checked),
    TEST(only_regular_files_are_opened),
    TEST(a_file_we_may_not_read_is_refused),
    TEST(a_file_that_changes_is_noticed),
    TEST(a_file_cut_while_it_is_read_is_an_error),
    TEST(links_are_followed),
    TEST(long_paths_leave_room_for_the_reason),
    TEST(flipped_bits_never_crash),
    TEST(memory_that_runs_out_is_an_error),
    TEST(the_small_model_is_the_same_everywhere),
    TEST(the_small_model_has_what_it_was_asked_for),
    TEST(the_small_vocabulary_can_spell_its_merges),
};
TEST_MAIN(cases)
