/* packed.h - prepared weights in a file beside the model, so that staging is only reading.
 *
 *     0           header (packed_header), then a sum for each chunk     little-endian
 *     n * 2 MiB   the window's bytes, in order, zeros up to a multiple of 2 MiB
 *
 * The file is called MODEL.inferd-LAYOUT, where MODEL is the model's file, or the first part of a
 * split model, and LAYOUT is be_weight_layout; it is in the same folder.  It is used when
 * everything in its header equals the present values: layout, plan of the window, and the model's
 * size, time and header. Each chunk of the window's bytes has a checksum (packed_sum): threads read
 * and check chunks independently of each other.  A file that does not match or is damaged is not
 * used, and the reason is a sentence for the log.  Packed weights come from a stage, which checked
 * that they are finite numbers, so those in a file with the right checksums are finite, too.
 *
 * packed_sum: pairs of words of 8 bytes go round-robin to eight lanes,
 * lane = rotl((lane ^ first) * M, 29) + second; at the end the lanes go into one word the same way,
 * without a second, after the number of bytes.  Each step is invertible, so any change of one word
 * changes the sum.  It detects damage, not forgery.
 *
 * Thread: any. */
#ifndef INFERD_PACKED_H
#define INFERD_PACKED_H

#include "model_private.h"
#include "weights.h"

enum {
    PACKED_VERSION = 3,             // 1: some numbers may not be finite; 2: a sum for each layer
    PACKED_ALIGN = 2 << 20,         // of the data
    PACKED_CHUNK_BYTES = 512 << 10, // the last one may be shorter
    PACKED_READ_ALIGN = 4096,       // of every read: a disk's own blocks
    PACKED_LANES = 8,
    PACKED_SUM_BYTES = 16 * PACKED_LANES,
    PACKED_LAYOUT_BYTES = 32
};

typedef struct packed_sum {
    uint64_t lanes[PACKED_LANES];
    uint64_t n_bytes;
} packed_sum;
void packed_sum_init(packed_sum *s);
void packed_sum_add(packed_sum *s, const void *p, size_t n); // n: of PACKED_SUM_BYTES
uint64_t packed_sum_end(const packed_sum *s);
uint64_t packed_sum_of(const void *p, size_t n); // of any number of bytes

typedef struct packed_header {
    char magic[8];
    uint32_t version, n_chunks;
    char layout[PACKED_LAYOUT_BYTES]; // zeros behind the name
    uint64_t window_bytes;
    uint64_t plan_sum; // of every tensor's position and form
    uint64_t source_bytes, source_mtime_ns, source_header_sum;
    uint64_t sum; // of this with sum = 0, and the table
} packed_header;

/* A packed file that is open for reading. */
typedef struct packed {
    int fd;         // through the page cache
    int direct_fd;  // past it; -1: not every file system has that
    char *path;     // owned
    uint64_t *sums; // [n_chunks] owned
    uint32_t n_chunks;
    uint64_t data_at; // in the file
    size_t window_bytes;
} packed;

/* INFERD_ENOTFOUND: there is no packed file.  Other errors: why it is not used. */
inferd_status packed_open(const model *m, const backend *be, const weight_plan *plan, packed *out,
                          inferd_err *err);
void packed_close(packed *p); // accepts PACKED_NONE
#define PACKED_NONE ((packed){.fd = -1, .direct_fd = -1})
/* n bytes of the window from `at`, both multiples of PACKED_READ_ALIGN, as is `out`; past the page
 * cache if that is possible. */
inferd_status packed_read(packed *p, uint64_t at, void *out, size_t n, inferd_err *err);
/* The chunk's end in the window; it begins at i * PACKED_CHUNK_BYTES. */
size_t packed_chunk_end(const packed *p, uint32_t i);
/* `sum` is of the chunk's bytes: INFERD_EFORMAT if it is not the one in the table. */
inferd_status packed_check(const packed *p, uint32_t i, const packed_sum *sum, inferd_err *err);

/* Write the window's bytes at `window`; an older file at the path is replaced when the new one is
 * complete.  path NULL: packed_path. */
inferd_status packed_write(const model *m, const backend *be, const weight_plan *plan,
                           unsigned char *window, const char *path, inferd_err *err);
/* The path that packed_open opens; the caller owns it, NULL: no memory. */
char *packed_path(const model *m, const backend *be);

#endif
