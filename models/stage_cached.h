/* stage_cached.h - what is in the page cache, read by the compute threads.
 *
 *     cached_open   a descriptor of its own for reads that are refused where they would wait
 *     cached_fill   what is missing is asked for
 *     cached_touch  pages of the window that no thread has written to yet
 *     cached_read   bytes of the file -> a buffer
 *     cached_rows   rows of several matrices -> the window: whoever reads a few prepares them,
 * while his nearest cache has them
 *
 * A page cache loses single pages at any time.  For those a thread waits, and says how long that
 * was: who finds that it adds up reads in another way.  Nothing is kept here.
 * Thread: cached_open and cached_fill any; the others the engine's, between two steps. */
#ifndef INFERD_STAGE_CACHED_H
#define INFERD_STAGE_CACHED_H

#include "gguf/gguf.h"
#include "kernels/backend.h"
#include "weights.h"

typedef enum cached_share { CACHED_LITTLE, CACHED_MOST, CACHED_ALL } cached_share;

/* A descriptor that the caller closes, or -1: nobody can say what of this file is in the page
 * cache.  *share: how much of bytes [from, end) is, by a sample. */
int cached_open(const gguf *g, uint64_t from, uint64_t end, cached_share *share);
/* The system reads what is missing of these bytes; returns before it is there. */
void cached_fill(int fd, uint64_t from, uint64_t end);
/* n bytes of the file from `from`; false: they cannot be had, and `out` has some of them.  Adds to
 * *waited_us what those that were not in the page cache took. */
bool cached_read(int fd, uint64_t from, unsigned char *out, size_t n, uint64_t *waited_us);

/* Rows [row_begin, row_begin + n_rows) of a matrix, the first a multiple of BE_PREPARE_ROWS. */
typedef struct cached_part {
    const weight_entry *entry;
    uint32_t row_begin, n_rows;
} cached_part;

/* Each of `part_bytes` at most; all threads share them, and after until_us (of clock_now_us) none
 * takes another.  *n_done: so many of the first are prepared.  *there: false: some cannot be had.
 * Adds to *waited_us, of all threads. */
inferd_status cached_rows(backend *be, int fd, const cached_part *parts, uint32_t n,
                          unsigned char *buffer, size_t buffer_bytes, size_t part_bytes,
                          uint64_t until_us, uint32_t *n_done, bool *there, uint64_t *waited_us,
                          inferd_err *err);
/* The first `end` of these pages are touched, of which *n_touched were; false: that took until_us
 * (of clock_now_us) and is not done. */
bool cached_touch(backend *be, const uint32_t *pages, uint32_t end, uint32_t *n_touched,
                  uint64_t until_us);

#endif
