/* fuzz_gguf.c - any bytes as a GGUF file, or as the parts of a split model: opened or refused,
 * everything reachable walked, and read as the description of a model.
 *
 *     "GGUF" ...                                       one file
 *     "PART" n named { length:u32 bytes }              n files (2 to 4; the last takes the rest)
 *
 * The files lie in memfds that live as long as the program; links give them the names of parts.
 * Seeds: tests/fuzz/gguf. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "decoder.h"
#include "gguf/gguf_file.h"
#include "weights.h"

enum { FUZZ_PARTS_MAX = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The reader's promises, as a caller relies on them. */
static void walk_tensors(const gguf *g) {
    unsigned char bytes_read[256];
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        INFERD_CHECK(gguf_find_tensor(g, t->name) == t);
        INFERD_CHECK(t->n_dims >= 1 && t->n_dims <= GGUF_DIMS_MAX);
        INFERD_CHECK(dtype_about(t->type).block_bytes != 0);
        INFERD_CHECK(t->part < gguf_n_parts(g));
        uint64_t file_bytes = gguf_part_bytes(&g->parts[t->part]);
        INFERD_CHECK(t->n_bytes <= file_bytes && t->file_offset <= file_bytes - t->n_bytes);
        uint64_t n_elems = 1;
        for (int k = 0; k < GGUF_DIMS_MAX; k++) n_elems *= t->dims[k];
        dtype_info about = dtype_about(t->type);
        INFERD_CHECK(n_elems / about.block_elems * about.block_bytes == t->n_bytes);
        size_t n = (size_t)(t->n_bytes < sizeof bytes_read ? t->n_bytes : sizeof bytes_read);
        INFERD_CHECK(gguf_read(g, t, t->n_bytes - n, bytes_read, n, NULL) == INFERD_OK);
    }
}

/* Ask for `key` as every kind there is. */
static void ask(const gguf *g, const char *key, volatile uint64_t *sink) {
    inferd_err err;
    uint64_t u;
    double f;
    bool b;
    bytes s;
    gguf_array_view a;
    if (gguf_u64(g, key, 1, 1 << 20, &u, &err) == INFERD_OK) *sink += u;
    if (gguf_f64(g, key, -1, 1, &f, &err) == INFERD_OK) *sink += f > 0;
    if (gguf_bool_or(g, key, true, &b, &err) == INFERD_OK) *sink += b;
    if (gguf_str(g, key, &s, &err) == INFERD_OK)
        for (size_t i = 0; i < s.n; i++) *sink += (unsigned char)s.p[i];
    for (gguf_kind kind = GGUF_U8; kind <= GGUF_F64; kind++) {
        if (gguf_array_opt(g, key, kind, &a, &err) != INFERD_OK) continue;
        for (size_t i = 0; i < a.n && i < 1000; i++) {
            if (a.kind == GGUF_STRING)
                *sink += a.strings[i].n != 0 ? a.strings[i].p[0] : 0;
            else if (a.kind == GGUF_F32 || a.kind == GGUF_F64)
                *sink += gguf_array_real(&a, i) > 0;
            else
                *sink += (uint64_t)gguf_array_int(&a, i);
        }
    }
}

static void walk_keys(const gguf *g, volatile uint64_t *sink) {
    char shown[GGUF_SHOWN_BYTES];
    for (size_t i = 0; i < gguf_n_keys(g); i++) {
        double number = 0;
        *sink += gguf_key_at(g, i).n + strlen(gguf_show_value(g, i, shown));
        *sink += gguf_number_at(g, i, &number) && number > 0;
        *sink += gguf_is_empty_at(g, i);
    }
}

/* Every row of the plan, of an expert as of a whole matrix, lies inside its tensor. */
static void walk_plan(const weight_plan *plan) {
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        uint64_t row = weight_entry_row_bytes(e), n_bytes;
        INFERD_CHECK(row > 0 && !__builtin_mul_overflow(row, (uint64_t)e->rows, &n_bytes));
        INFERD_CHECK(e->tensor_at <= e->tensor->n_bytes);
        INFERD_CHECK(n_bytes <= e->tensor->n_bytes - e->tensor_at);
    }
}

/* What cannot be served is refused with a sentence. */
static void read_spec(const gguf *g) {
    decoder_spec s;
    decoder_weights weights;
    weight_plan plan;
    inferd_err err = {0};
    inferd_status st = decoder_spec_read(g, 0, &s, &err);
    if (st == INFERD_OK) {
        s.n_vocab = 32;
        s.tied = gguf_find_tensor(g, "output.weight") == NULL;
        st = weights_plan(g, NULL, &s, &weights, &plan, &err);
        if (st == INFERD_OK) {
            walk_plan(&plan);
            weights_deinit(&weights, &plan);
        }
        decoder_spec_deinit(&s);
    }
    INFERD_CHECK(st == INFERD_OK || (err.status == st && err.text[0] != 0));
}

static void walk(const gguf *g) {
    static const char *const keys[] = {"general.architecture",
                                       "general.alignment",
                                       "split.count",
                                       "u8",
                                       "i16",
                                       "u32",
                                       "f64",
                                       "flag",
                                       "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.scores",
                                       "tokenizer.ggml.merges",
                                       "k"};
    volatile uint64_t sink = 0;
    walk_tensors(g);
    walk_keys(g, &sink);
    read_spec(g);
    for (size_t i = 0; i < INFERD_COUNT(keys); i++) ask(g, keys[i], &sink);
}

/* ---- files ---- */

static int fds[FUZZ_PARTS_MAX];
static char one_path[64], folder[64];

/* The path of part i of n, static. */
static const char *part_path(uint32_t i, uint32_t n) {
    static char path[128];
    snprintf(path, sizeof path, "%s/f-%05u-of-%05u.gguf", folder, i + 1, n);
    return path;
}

static void remove_links(void) {
    for (uint32_t n = 2; n <= FUZZ_PARTS_MAX; n++)
        for (uint32_t i = 0; i < n; i++) unlink(part_path(i, n));
    rmdir(folder);
}

static void make_files(void) {
    snprintf(folder, sizeof folder, "/tmp/fuzz_gguf.XXXXXX");
    INFERD_CHECK(mkdtemp(folder) != NULL);
    for (uint32_t i = 0; i < FUZZ_PARTS_MAX; i++) {
        char target[64];
        fds[i] = memfd_create("fuzz", MFD_CLOEXEC);
        INFERD_CHECK(fds[i] >= 0);
        snprintf(target, sizeof target, "/proc/self/fd/%d", fds[i]);
        if (i == 0) snprintf(one_path, sizeof one_path, "%s", target);
        for (uint32_t n = 2; n <= FUZZ_PARTS_MAX; n++)
            INFERD_CHECK(i >= n || symlink(target, part_path(i, n)) == 0);
    }
    atexit(remove_links);
}

static void fill(uint32_t i, const uint8_t *p, size_t n) {
    INFERD_CHECK(ftruncate(fds[i], 0) == 0 && pwrite(fds[i], p, n, 0) == (ssize_t)n);
}

static gguf *open_any(const char *path) {
    gguf *g = NULL;
    inferd_err err = {0};
    inferd_status s = gguf_open(path, &g, &err);
    INFERD_CHECK((s == INFERD_OK) == (g != NULL));
    INFERD_CHECK(s == INFERD_OK || (err.status == s && err.text[0] != 0));
    return g;
}

/* A set that opens by one of its parts opens by each. */
static void open_set(uint32_t named, uint32_t n) {
    gguf *g = open_any(part_path(named, n));
    if (g == NULL) return;
    walk(g);
    for (uint32_t i = 0; i < n && gguf_n_parts(g) > 1; i++) {
        gguf *other = open_any(part_path(i, n));
        INFERD_CHECK(other != NULL && gguf_same_header(g, other));
        INFERD_CHECK(gguf_n_tensors(g) == gguf_n_tensors(other));
        gguf_close(other);
    }
    gguf_close(g);
}

static void take_parts(const uint8_t *data, size_t size) {
    if (size < 2) return;
    uint32_t n = 2 + data[0] % (FUZZ_PARTS_MAX - 1), named = data[1] % n;
    data += 2;
    size -= 2;
    for (uint32_t i = 0; i < n; i++) {
        size_t length = size;
        if (i + 1 < n) {
            uint64_t said = size < 4 ? 0 : gguf_load(data, 4);
            size_t head = size_min(size, 4);
            data += head;
            size -= head;
            length = size_min(said, size);
        }
        fill(i, data, length);
        data += length;
        size -= length;
    }
    open_set(named, n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (folder[0] == 0) make_files();
    if (size >= 4 && memcmp(data, "PART", 4) == 0) {
        take_parts(data + 4, size - 4);
        return 0;
    }
    fill(0, data, size);
    gguf *g = open_any(one_path);
    if (g != NULL) walk(g);
    gguf_close(g);
    return 0;
}
