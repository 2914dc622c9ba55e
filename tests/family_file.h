/* family_file.h - the GGUF file of a small model of some family, from its header and a seed.
 *
 * tests/families/NAME.head is the beginning of a file that the public converter made of a small
 * checkpoint: metadata, tokenizer, names and shapes of tensors.  The values are not in it: element
 * i of a tensor is a function of the seed, the tensor's name and i, so that a few kilobytes give
 * the same file on every machine.  tests/families/make.py puts the same values into the checkpoint
 * and asks the reference for the logits.
 *
 *     head     | magic, counts, metadata, tensor list, padding | data of rope_f* tensors |
 *     file     | the same                                      | data of all tensors     |
 *
 * Tensors that are derived from the configuration (rope_freqs, rope_factors_*) are no parameters:
 * their data is the converter's and stands behind the header, in the order of the list.
 *
 * Values are uniform in center +- width.  The width is a multiple of 2^-10 and the position in it
 * one of 2^-23, so each value is computed exactly in double and rounded once, to float. */
#ifndef INFERD_FAMILY_FILE_H
#define INFERD_FAMILY_FILE_H

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inferd/base.h"

enum { FAMILY_DIMS_MAX = 4, FAMILY_NAME_BYTES = 64, FAMILY_ALIGNMENT = 32 };

/* Types of GGUF tensors that the families use. */
enum { FAMILY_F32 = 0, FAMILY_MXFP4 = 39 };

typedef struct family_tensor {
    char name[FAMILY_NAME_BYTES];
    uint32_t n_dims, type;
    uint64_t dims[FAMILY_DIMS_MAX];
    uint64_t offset; // from the start of the data
} family_tensor;

static inline size_t family_elements(const family_tensor *t) {
    size_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) n *= (size_t)t->dims[i];
    return n;
}

static inline size_t family_tensor_bytes(const family_tensor *t) {
    size_t n = family_elements(t);
    return t->type == FAMILY_MXFP4 ? n / 32 * 17 : n * sizeof(float);
}

/* ---- reading the header; a wrong one ends the test ---- */

typedef struct family_reader {
    const unsigned char *p;
    size_t n, at;
} family_reader;

static inline const unsigned char *family_take(family_reader *r, size_t n) {
    INFERD_CHECK(n <= r->n - r->at);
    r->at += n;
    return r->p + r->at - n;
}

static inline uint64_t family_number(family_reader *r, size_t n_bytes) {
    const unsigned char *p = family_take(r, n_bytes);
    uint64_t v = 0;
    for (size_t i = 0; i < n_bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* Bytes of a value of a fixed length, by its kind; 0: a string (8) or an array (9). */
static inline size_t family_value_bytes(uint64_t kind) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    INFERD_CHECK(kind < sizeof sizes);
    return sizes[kind];
}

static inline void family_skip_value(family_reader *r) {
    enum { STRING = 8, ARRAY = 9 };
    uint64_t kind = family_number(r, 4), n = 1;
    if (kind == ARRAY) {
        kind = family_number(r, 4);
        n = family_number(r, 8);
        INFERD_CHECK(kind != ARRAY && n <= r->n);
    }
    for (uint64_t i = 0; i < n; i++) {
        size_t n_bytes = kind == STRING ? (size_t)family_number(r, 8) : family_value_bytes(kind);
        family_take(r, n_bytes);
    }
}

static inline void family_read_tensor(family_reader *r, family_tensor *t) {
    uint64_t n = family_number(r, 8);
    INFERD_CHECK(n < sizeof t->name);
    *t = (family_tensor){0};
    memcpy(t->name, family_take(r, (size_t)n), (size_t)n);
    t->n_dims = (uint32_t)family_number(r, 4);
    INFERD_CHECK(t->n_dims >= 1 && t->n_dims <= FAMILY_DIMS_MAX);
    for (uint32_t i = 0; i < t->n_dims; i++) t->dims[i] = family_number(r, 8);
    t->type = (uint32_t)family_number(r, 4);
    t->offset = family_number(r, 8);
    INFERD_CHECK(t->type == FAMILY_F32 || t->type == FAMILY_MXFP4);
}

/* ---- values ---- */

/* splitmix64 of a counter */
static inline uint64_t family_mix(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint64_t family_random(uint64_t stream, uint64_t i) {
    return family_mix(stream + (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

/* Of the tensor: FNV-1a of its name, and the seed. */
static inline uint64_t family_stream(uint64_t seed, const char *name) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name != 0; name++) h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return family_mix(h ^ family_mix(seed));
}

static inline bool family_has(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

typedef struct family_range {
    double center, width;
} family_range;

/* `std` of a uniform distribution, as a width that is a multiple of 2^-10. */
static inline double family_width(double std) {
    return floor(std * sqrt(3.0) * 1024 + 0.5) / 1024;
}

/* So wide that attention and experts decide: queries and keys sharp, routers with clear winners,
 * and norms, biases and sinks far from what a missing one would be. */
static inline family_range family_range_of(const family_tensor *t) {
    const char *n = t->name;
    double unit = 1 / sqrt((double)t->dims[0]);
    if (family_has(n, "attn_q_norm") || family_has(n, "attn_k_norm"))
        return (family_range){1.25, 0.25};
    if (family_has(n, "norm")) return (family_range){1, 0.203125};
    if (family_has(n, "ffn_gate_exps.bias") || family_has(n, "ffn_up_exps.bias"))
        return (family_range){0, 6.5}; // some are cut at 7 (gpt-oss)
    if (family_has(n, ".bias")) return (family_range){0, 0.296875};
    if (family_has(n, "attn_sinks")) return (family_range){0.5, 1};
    if (family_has(n, "ffn_gate_inp")) return (family_range){0, family_width(2 * unit)};
    if (family_has(n, "attn_q") || family_has(n, "attn_k")) // and attn_qkv
        return (family_range){0, family_width(1.25 * unit)};
    return (family_range){0, family_width(unit)};
}

static inline void family_fill_f32(const family_tensor *t, uint64_t stream, unsigned char *out) {
    family_range range = family_range_of(t);
    size_t n = family_elements(t);
    for (size_t i = 0; i < n; i++) {
        int64_t u = (int64_t)(family_random(stream, i) >> 40) - (1 << 23); // of [-2^23, 2^23)
        float v = (float)(range.center + range.width * ((double)u / (1 << 23)));
        memcpy(out + i * sizeof v, &v, sizeof v);
    }
}

/* Blocks of 32: an exponent around that of 1/8/3.3, and 4-bit floats of any value. */
static inline void family_fill_mxfp4(const family_tensor *t, uint64_t stream, unsigned char *out) {
    size_t n = family_elements(t) / 32;
    for (size_t i = 0; i < n; i++) {
        out[i * 17] = (unsigned char)(121 + family_random(stream, i * 17) % 3);
        for (size_t k = 1; k < 17; k++)
            out[i * 17 + k] = (unsigned char)(family_random(stream, i * 17 + k) >> 56);
    }
}

/* ---- the file ---- */

static inline size_t family_align(size_t n) {
    return (n + FAMILY_ALIGNMENT - 1) / FAMILY_ALIGNMENT * FAMILY_ALIGNMENT;
}

static inline bool family_is_derived(const family_tensor *t) {
    return strncmp(t->name, "rope_f", 6) == 0;
}

enum { FAMILY_TENSORS_MAX = 1024, FAMILY_KEYS_MAX = 1024 };

typedef struct family_file {
    unsigned char *p; // [n] owned
    size_t n;
    size_t keys_end, data_at; // the metadata ends, the tensors begin
    family_tensor *tensors;   // [n_tensors] owned
    size_t n_tensors;
} family_file;

static inline void family_file_deinit(family_file *f) {
    free(f->p);
    free(f->tensors);
    *f = (family_file){0};
}

static inline unsigned char *family_tensor_at(const family_file *f, size_t i) {
    return f->p + f->data_at + f->tensors[i].offset;
}

/* The tensors of the list, and the size of their data. */
static inline size_t family_read_list(family_reader *r, family_file *f) {
    size_t data_bytes = 0;
    INFERD_CHECK(memcmp(family_take(r, 4), "GGUF", 4) == 0 && family_number(r, 4) == 3);
    f->n_tensors = (size_t)family_number(r, 8);
    uint64_t n_keys = family_number(r, 8);
    INFERD_CHECK(f->n_tensors <= FAMILY_TENSORS_MAX && n_keys <= FAMILY_KEYS_MAX);
    for (uint64_t i = 0; i < n_keys; i++) {
        family_take(r, (size_t)family_number(r, 8));
        family_skip_value(r);
    }
    f->keys_end = r->at;
    f->tensors = calloc(f->n_tensors, sizeof *f->tensors);
    INFERD_CHECK(f->tensors != NULL);
    for (size_t i = 0; i < f->n_tensors; i++) {
        family_read_tensor(r, &f->tensors[i]);
        INFERD_CHECK(f->tensors[i].offset == data_bytes);
        data_bytes = family_align(data_bytes + family_tensor_bytes(&f->tensors[i]));
    }
    return data_bytes;
}

/* The whole file of this header. */
static inline void family_make(const unsigned char *head, size_t head_bytes, uint64_t seed,
                               family_file *f) {
    family_reader r = {head, head_bytes, 0};
    *f = (family_file){0};
    size_t data_bytes = family_read_list(&r, f);
    f->data_at = family_align(r.at);
    f->n = f->data_at + data_bytes;
    f->p = calloc(1, f->n);
    INFERD_CHECK(f->p != NULL && f->data_at <= head_bytes);
    memcpy(f->p, head, f->data_at);
    r.at = f->data_at;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const family_tensor *t = &f->tensors[i];
        unsigned char *at = family_tensor_at(f, i);
        size_t n_here = family_tensor_bytes(t);
        if (family_is_derived(t))
            memcpy(at, family_take(&r, n_here), n_here);
        else if (t->type == FAMILY_MXFP4)
            family_fill_mxfp4(t, family_stream(seed, t->name), at);
        else
            family_fill_f32(t, family_stream(seed, t->name), at);
    }
    INFERD_CHECK(r.at == head_bytes);
}

/* FNV-1a of the bytes: the file is the one that the goldens were made with. */
static inline uint64_t family_hash(const unsigned char *p, size_t n) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* ---- small files ---- */

static inline unsigned char *family_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fprintf(stderr, "cannot open %s: %s\n", path, strerror(errno));
        exit(1);
    }
    INFERD_CHECK(fseek(f, 0, SEEK_END) == 0);
    long end = ftell(f);
    INFERD_CHECK(end > 0 && fseek(f, 0, SEEK_SET) == 0);
    unsigned char *p = malloc((size_t)end);
    INFERD_CHECK(p != NULL && fread(p, 1, (size_t)end, f) == (size_t)end);
    fclose(f);
    *n = (size_t)end;
    return p;
}

static inline void family_write(const char *path, const unsigned char *p, size_t n) {
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL && fwrite(p, 1, n, f) == n;
    if (f != NULL && fclose(f) != 0) ok = false;
    if (ok) return;
    fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
    exit(1);
}

#endif
