/* fuzz_gguf.c - any bytes as a GGUF file: opened or refused, everything reachable walked, and read
 * as the description of a model.
 *
 * The file lies in a memfd that lives as long as the program.  Seeds: tests/fuzz/gguf. */
#include <sys/mman.h>
#include <unistd.h>

#include "decoder.h"
#include "gguf/gguf.h"
#include "weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The reader's promises, as a caller relies on them. */
static void walk_tensors(const gguf *g) {
    unsigned char bytes_read[256];
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        INFERD_CHECK(gguf_find_tensor(g, t->name) == t);
        INFERD_CHECK(t->n_dims >= 1 && t->n_dims <= GGUF_DIMS_MAX);
        INFERD_CHECK(dtype_about(t->type).block_bytes != 0);
        INFERD_CHECK(t->n_bytes <= gguf_file_bytes(g) &&
                     t->file_offset <= gguf_file_bytes(g) - t->n_bytes);
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

/* What cannot be served is refused with a sentence. */
static void read_spec(const gguf *g) {
    decoder_spec s;
    inferd_err err = {0};
    inferd_status st = decoder_spec_read(g, 0, &s, &err);
    if (st == INFERD_OK) {
        s.n_vocab = 32;
        s.tied = gguf_find_tensor(g, "output.weight") == NULL;
        st = weights_check(g, &s, &err);
        decoder_spec_deinit(&s);
    }
    INFERD_CHECK(st == INFERD_OK || (err.status == st && err.text[0] != 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
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
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        INFERD_CHECK(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    INFERD_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);

    gguf *g = NULL;
    inferd_err err = {0};
    inferd_status s = gguf_open(path, &g, &err);
    INFERD_CHECK((s == INFERD_OK) == (g != NULL));
    INFERD_CHECK(s == INFERD_OK || (err.status == s && err.text[0] != 0));
    if (g == NULL) return 0;
    volatile uint64_t sink = 0;
    walk_tensors(g);
    walk_keys(g, &sink);
    read_spec(g);
    for (size_t i = 0; i < INFERD_COUNT(keys); i++) ask(g, keys[i], &sink);
    gguf_close(g);
    return 0;
}
