/* split_gguf.h - split models for tests: the tensors of a tiny_gguf in several files.
 *
 *     tiny_split s;
 *     tiny_split_make(&s, &whole, 3, NULL);
 *     s.parts[1].tensors[0].offset = 7;      // from here on wrong, as a test wants it
 *     tiny_split_write(&s, "/tmp/m");        // /tmp/m-00001-of-00003.gguf, ...
 *     tiny_split_remove("/tmp/m", 3);
 *     tiny_split_deinit(&s);
 *
 * The first part has the metadata of the whole; every part has the keys split.*. */
#ifndef INFERD_SPLIT_GGUF_H
#define INFERD_SPLIT_GGUF_H

#include <unistd.h>

#include "tiny_gguf.h"

enum { TINY_PARTS_MAX = 8, TINY_PATH_BYTES = 400 };

typedef struct tiny_split {
    tiny_gguf *parts; // [n]
    uint32_t n;
} tiny_split;

/* The path of part i (of n), static: the last four results stay. */
static inline const char *tiny_part_path(const char *prefix, uint32_t i, uint32_t n) {
    static char paths[4][TINY_PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, TINY_PATH_BYTES, "%s-%05u-of-%05u.gguf", prefix, i + 1, n);
    return path;
}

static inline void tiny_split_keys(tiny_gguf *part, uint32_t no, uint32_t n, uint32_t n_tensors) {
    tiny_kv_bits(part, "split.no", GGUF_U16, no, 2);
    tiny_kv_bits(part, "split.count", GGUF_U16, n, 2);
    tiny_kv_bits(part, "split.tensors.count", GGUF_I32, n_tensors, 4);
}

/* Parts without keys: tensor k of the whole goes to part k * n / n_tensors.  first_empty: the first
 * part has none, and the others those of n - 1 parts.  alignments: [n], NULL: that of the whole. */
static inline void tiny_split_deal(tiny_split *s, const tiny_gguf *whole, uint32_t n,
                                   bool first_empty, const uint32_t *alignments) {
    INFERD_CHECK(n > 0 && n <= TINY_PARTS_MAX);
    s->n = n;
    s->parts = calloc(n, sizeof *s->parts);
    INFERD_CHECK(s->parts != NULL);
    for (uint32_t i = 0; i < n; i++) {
        tiny_gguf_init(&s->parts[i]);
        s->parts[i].alignment = alignments != NULL ? alignments[i] : whole->alignment;
        if (i == 0) {
            buf_add(&s->parts[0].metadata, whole->metadata.p, whole->metadata.n);
            s->parts[0].n_entries_said = whole->n_entries_said;
        }
        if (alignments != NULL) tiny_kv_u32(&s->parts[i], "general.alignment", alignments[i]);
    }
    uint32_t skipped = first_empty ? 1 : 0;
    for (size_t k = 0; k < whole->n_tensors; k++) {
        const tiny_tensor *t = &whole->tensors[k];
        size_t part = skipped + k * (n - skipped) / whole->n_tensors;
        tiny_tensor_add(&s->parts[part], t->name, t->type, t->n_dims, t->dims, t->data.p,
                        t->data.n);
    }
}

static inline void tiny_split_make(tiny_split *s, const tiny_gguf *whole, uint32_t n,
                                   const uint32_t *alignments) {
    tiny_split_deal(s, whole, n, false, alignments);
    for (uint32_t i = 0; i < n; i++)
        tiny_split_keys(&s->parts[i], i, n, (uint32_t)whole->n_tensors);
}

static inline void tiny_split_write(const tiny_split *s, const char *prefix) {
    for (uint32_t i = 0; i < s->n; i++)
        tiny_gguf_write(&s->parts[i], tiny_part_path(prefix, i, s->n));
}

static inline void tiny_split_deinit(tiny_split *s) {
    for (uint32_t i = 0; i < s->n; i++) tiny_gguf_deinit(&s->parts[i]);
    free(s->parts);
    *s = (tiny_split){0};
}

static inline void tiny_split_remove(const char *prefix, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) unlink(tiny_part_path(prefix, i, n));
}

/* tiny_model_write in n parts. */
static inline void tiny_split_model_write(const char *prefix, uint32_t n, uint64_t seed,
                                          const tiny_model_options *options) {
    tiny_gguf *whole = malloc(sizeof *whole);
    tiny_split s;
    INFERD_CHECK(whole != NULL);
    tiny_gguf_init(whole);
    tiny_model_fill(whole, seed, options);
    tiny_split_make(&s, whole, n, NULL);
    tiny_split_write(&s, prefix);
    tiny_split_deinit(&s);
    tiny_gguf_deinit(whole);
    free(whole);
}

#endif
