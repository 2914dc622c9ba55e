/* gguf_file.h - declarations shared by the three files of the GGUF reader.
 *
 *     gguf.c         opens and reads the file, and detects changes; finds tensors
 *     gguf_header.c  bytes of the header -> the tables below, everything checked
 *     gguf_meta.c    metadata by key and kind
 *
 * The header is kept unchanged and never moves; an entry points into it by offset.  Both
 * tables have an index sorted by name: names are found by binary search and duplicates are
 * neighbours, for any names of a hostile file.
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
    size_t n, at;
    size_t string_idx;
} gguf_entry;

struct gguf {
    char *path;      // as given; owned
    char label[168]; // the path in errors: printable, its end when it is long
    int fd;          // -1: none
    bool unnamed;    // path is only a name for errors
    struct stat stat_at_open;

    unsigned char *header; // [header_bytes] the file's first bytes; owned
    size_t header_bytes;
    gguf_entry *entries; // [n_entries] in file order; owned
    uint32_t *entry_idx; // [n_entries] sorted by key; owned
    size_t n_entries;
    bytes *strings; // [n_strings] elements of all string arrays; owned
    size_t n_strings;

    gguf_tensor *tensors; // [n_tensors] in file order; owned
    uint32_t *tensor_idx; // [n_tensors] sorted by name; owned
    size_t n_tensors;
};

/* Read exactly n bytes at `offset`. */
inferd_status gguf_pread(const gguf *g, uint64_t offset, void *out, size_t n, inferd_err *err);
/* Fill header, entries, strings, tensors and the indices of a gguf with fd and stat_at_open. */
inferd_status gguf_read_header(gguf *g, inferd_err *err);

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
