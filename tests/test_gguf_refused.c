/* test_gguf_refused.c - one file for each thing the GGUF reader refuses, files with random bits
 * flipped, and memory that runs out. */
#include "gguf_image.h"

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
/* The sanitizers bring a malloc of their own; without them this one counts and can fail. */
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
    static const struct {
        const char *magic, *words;
    } rows[] = {{"FUGG", "is not a GGUF file: begins with bytes 46 55 47 47"},
                {"PK\3\4", "is a zip archive, as PyTorch writes checkpoints, expected a GGUF file"},
                {"\x80\2}q", "is a pickle, as PyTorch wrote checkpoints, expected a GGUF file"}};
    tiny_gguf t;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        fill_sample(&t);
        memcpy(t.magic, rows[i].magic, 4);
        is_refused(&t, INFERD_EFORMAT, rows[i].words);
    }
    fill_sample(&t);
    memcpy(t.magic, "\x48\1\0\0", 4);
    t.version = 0;
    t.n_tensors_said = '{';
    is_refused(&t, INFERD_EFORMAT, "is a safetensors file, expected a GGUF file");
}

static void other_versions_are_refused(void) {
    static const struct {
        uint32_t version;
        const char *words;
    } rows[] = {{0, "version 0, expected 2 or 3"}, {1, "version 1, which had 32-bit lengths"},
                {4, "version 4, expected 2 or 3"}, {UINT32_MAX, "version 4294967295"},
                {0x02000000, "big-endian"},        {0x03000000, "big-endian"},
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
    t.n_entries_said++; // the first tensor is taken for a key; what follows is no tensor then
    is_refused(&t, INFERD_EFORMAT, "tensor 0 of 3: its name at byte");
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
    key_is_refused("a\x1f!", 3, 3, "has the byte 0x1f");
    key_is_refused("a\x7f"
                   "b",
                   3, 3, "has the byte 0x7f");
    key_is_refused("k\xc3\xa9y", 4, 4, "has the byte 0xc3");
    key_is_refused("first", 5, 5, "key first occurs twice");
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
    value_is_refused(GGUF_ARRAY, "\7\0\0\0\3\0\0\0\0\0\0\0\0\1\xff", 15,
                     "a bool at byte 74 is 255");
    array_is_refused(13, 1, "the kind of its elements at byte 60 is 13");
    array_is_refused(GGUF_ARRAY, 1, "key bad: is an array of arrays");
    array_is_refused(GGUF_U32, 1ull << 61, "its value at byte 72 takes 9223372036854775808 bytes");
    array_is_refused(GGUF_U32, 1ull << 62,
                     "takes 18446744073709551615 bytes"); // 2^64: cannot be said
    array_is_refused(GGUF_U64, UINT64_MAX, "takes 18446744073709551615 bytes");
    array_is_refused(GGUF_U8, 200, "takes 200 bytes, but the file has only");
    array_is_refused(GGUF_STRING, 1ull << 61, "has 2305843009213693952 strings of 8 bytes");
    array_is_refused(GGUF_STRING, UINT64_MAX, "has 18446744073709551615 strings");
    value_is_refused(GGUF_ARRAY, "\10\0\0\0\3\0\0\0\0\0\0\0\x4b\0\0\0\0\0\0\0", 20,
                     "element 1 of 3: a string at byte 155 takes 8 bytes, but the file has only 5");
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
    expect_failed(
        gguf_open(image_path, &g, &err), INFERD_EFORMAT, &err,
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

/* Whole sets are in test_gguf_split.c. */
static void parts_of_split_models_need_their_names(void) {
    tiny_gguf t;
    fill_sample(&t);
    tiny_kv_bits(&t, "split.count", GGUF_U16, 3, 2);
    is_refused(&t, INFERD_EFORMAT, "key split.no is missing");
    fill_sample(&t);
    tiny_kv_bits(&t, "split.count", GGUF_U16, 3, 2);
    tiny_kv_bits(&t, "split.no", GGUF_U16, 1, 2);
    is_refused(&t, INFERD_EFORMAT,
               "is part 2 of 3 of a split model (split.no, split.count); its name must end in "
               "-00002-of-00003.gguf");
    fill_sample(&t);
    tiny_kv_str(&t, "split.count", "3");
    is_refused(&t, INFERD_EFORMAT, "split.count is a string, expected an integer");
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
        {"plain", 5, "tensor plain occurs twice"},
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
        {DTYPE_F32,
         2,
         {1ull << 32, 1ull << 32},
         "2^64 elements or more: dimension 1 is 4294967296"},
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

#if OWN_MALLOC
static void memory_that_runs_out_is_an_error(void) {
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
}
#endif

static const test_case cases[] = {
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
    TEST(parts_of_split_models_need_their_names),
    TEST(names_of_tensors_are_checked),
    TEST(shapes_of_tensors_are_checked),
    TEST(places_of_tensors_are_checked),
    TEST(flipped_bits_never_crash),
#if OWN_MALLOC
    TEST(memory_that_runs_out_is_an_error),
#endif
};
TEST_MAIN(cases)
