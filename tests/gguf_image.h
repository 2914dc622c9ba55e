/* gguf_image.h - GGUF files in memory for the tests of the reader.
 *
 * Files are built by tiny_gguf.h and put in a memfd, where /proc/self/fd names them, so that
 * thousands of them cost nothing.  A refusal is checked for its status and for the words that tell
 * a person what is wrong. */
#ifndef INFERD_GGUF_IMAGE_H
#define INFERD_GGUF_IMAGE_H

#include <sys/mman.h>
#include <unistd.h>

#include "test.h"
#include "tiny_gguf.h"

static int image_fd = -1;
static char image_path[64];

/* The one image file now has these bytes, and zeros up to `n_bytes`. */
static inline void put_image(const void *p, size_t n, size_t n_bytes) {
    if (image_fd < 0) {
        image_fd = memfd_create("image", MFD_CLOEXEC);
        INFERD_CHECK(image_fd >= 0);
        snprintf(image_path, sizeof image_path, "/proc/self/fd/%d", image_fd);
    }
    INFERD_CHECK(ftruncate(image_fd, 0) == 0 && ftruncate(image_fd, (off_t)n_bytes) == 0);
    INFERD_CHECK(n <= n_bytes && pwrite(image_fd, p, n, 0) == (ssize_t)n);
}

static inline inferd_status open_image(const buf *image, gguf **out, inferd_err *err) {
    put_image(image->p, image->n, image->n);
    *err = (inferd_err){0};
    return gguf_open(image_path, out, err);
}

static inline gguf *open_good(const tiny_gguf *t) {
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

static inline void expect_words(const inferd_err *err, const char *words) {
    if (strstr(err->text, words) != NULL) return;
    printf("error is \"%s\", expected \"... %s ...\"\n", err->text, words);
    test_failures++;
}

static inline void expect_failed(inferd_status s, inferd_status expected, const inferd_err *err,
                                 const char *words) {
    EXPECT_EQ(s, expected);
    EXPECT_EQ(err->status, expected);
    EXPECT(strchr(err->text, '\n') == NULL);
    expect_words(err, words);
    if (s != expected) printf("  with \"%s\" for \"%s\"\n", err->text, words);
}

static inline void image_is_refused(const buf *image, inferd_status expected, const char *words) {
    gguf *g = (gguf *)image; // must become NULL
    inferd_err err;
    inferd_status s = open_image(image, &g, &err);
    expect_failed(s, expected, &err, words);
    expect_words(&err, image_path);
    EXPECT(g == NULL);
}

/* Ends the life of `t`: a refused file is used once. */
static inline void is_refused(tiny_gguf *t, inferd_status expected, const char *words) {
    buf image = {0};
    tiny_gguf_bytes(t, &image);
    image_is_refused(&image, expected, words);
    buf_deinit(&image);
    tiny_gguf_deinit(t);
}

/* Walk everything a caller can reach. */
static inline size_t walk(const gguf *g) {
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
static inline void fill_sample(tiny_gguf *t) {
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

static inline void expect_sample(const gguf *g) {
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

#endif
