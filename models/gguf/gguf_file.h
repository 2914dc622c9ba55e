/* gguf_file.h - declarations shared by the files of the GGUF reader.
 *
 *     gguf.c         opens and reads the files, and detects changes; finds tensors
 *     gguf_header.c  bytes of one file's header -> the tables below, everything checked
 *     gguf_split.c   the parts of a split model: their names, the checks of the set, one table
 *     gguf_meta.c    metadata by key and kind
 *
 * The headers are kept unchanged and never move once the gguf is open; an entry points into them by
 * offset.  Both tables have an index sorted by name: names are found by binary search and
 * duplicates are neighbours, for any names of a hostile file.
 *
 * Thread: any, read-only after gguf_open. */
#ifndef INFERD_GGUF_FILE_H
#define INFERD_GGUF_FILE_H

#include <sys/stat.h>

#include "gguf/gguf.h"

/* One key.  The meaning of `n` and `at` depends on the kind:
 *     number, bool   n = 1, its bytes lie at header + at
 *     string         n bytes at header + at
 *     array          n elements of kind `element` at header + at; of strings, also
 *                    strings[string_idx, string_idx + n) */
typedef struct gguf_entry {
    size_t key_at;
    uint32_t key_bytes;
    gguf_kind kind, element;
    size_t n, at, end; // `end`: of the value, in the header
    size_t string_idx;
} gguf_entry;

/* One file. */
typedef struct gguf_part {
    char *path;      // as given, or made from that of another part; owned
    char label[168]; // the path in errors: printable, its end when it is long
    int fd;          // -1: none
    bool unnamed;    // path is only a name for errors
    struct stat stat_at_open;
    size_t header_bytes; // of this file; in `header` behind those of the parts before
} gguf_part;

struct gguf {
    gguf_part *parts; // [n_parts] in the order of the set; owned
    uint32_t n_parts; // 1: the model is one file

    unsigned char *header; // [header_bytes] the first bytes of each part; owned
    size_t header_bytes;
    gguf_entry *entries; // [n_entries] of the first part, in file order; owned
    uint32_t *entry_idx; // [n_entries] sorted by key; owned
    size_t n_entries;
    bytes *strings; // [n_strings] elements of all string arrays; owned
    size_t n_strings;

    gguf_tensor *tensors; // [n_tensors] part by part, each in file order; owned
    uint32_t *tensor_idx; // [n_tensors] sorted by name; owned
    size_t n_tensors;
};

/* How much the header of one file may take. */
typedef struct gguf_limits {
    size_t header_bytes, n_keys, n_tensors;
} gguf_limits;
#define GGUF_LIMITS ((gguf_limits){GGUF_HEADER_BYTES_MAX, GGUF_KEYS_MAX, GGUF_TENSORS_MAX})

static inline uint64_t gguf_part_bytes(const gguf_part *p) {
    return (uint64_t)p->stat_at_open.st_size;
}

/* Read exactly n bytes at `offset`. */
inferd_status gguf_pread(const gguf_part *f, uint64_t offset, void *out, size_t n, inferd_err *err);
/* Open the file that `path` names, or the open one `fd` (-1: none) of that name, and read its
 * header: a gguf with one part, and without its strings. */
inferd_status gguf_open_part(const char *path, int fd, gguf_limits limits, gguf **out,
                             inferd_err *err);
/* Fill header, entries, tensors and the indices of a gguf with one part that is open. */
inferd_status gguf_read_header(gguf *g, gguf_limits limits, inferd_err *err);
/* The header is complete and does not move any more: string arrays get their elements. */
inferd_status gguf_point_strings(gguf *g, inferd_err *err);
/* Sort the tensors by name; two of one name are an error. */
inferd_status gguf_index_tensors(gguf *g, inferd_err *err);
/* *g, one file, is a part of a split model: the others are opened and *g becomes the whole model.
 * A failure leaves a gguf to close. */
inferd_status gguf_join_parts(gguf **g, inferd_err *err);

const gguf_entry *gguf_find_entry(const gguf *g, const char *key); // NULL: not there
const char *gguf_kind_name(gguf_kind kind);
size_t gguf_kind_bytes(gguf_kind kind); // 0: strings and arrays

static inline bytes gguf_entry_key(const gguf *g, const gguf_entry *e) {
    return (bytes){(const char *)g->header + e->key_at, e->key_bytes};
}

static inline uint64_t gguf_load(const unsigned char *p, size_t n_bytes) {
    uint64_t v = 0;
    for (size_t i = 0; i < n_bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

#endif
