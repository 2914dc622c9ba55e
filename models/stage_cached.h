/* stage_cached.h - file data in the page cache, read by the compute threads.
 *
 *     cached_look   how much of some files is in the page cache
 *     cached_fill   requests missing data from the system
 *     cached_touch  pages of the window that no thread has written to yet
 *     cached_read   bytes of the file -> a buffer
 *     cached_rows   rows of several matrices -> the window: a thread reads a few and prepares them,
 *                   while its nearest cache holds them
 *     cached_chunks chunks of a packed file -> the window: a thread reads one and checks it
 *
 * A page cache loses single pages at any time.  For those a thread waits, and reports the time: the
 * caller reads in another way when that adds up.  No state is kept here.
 * Thread: cached_look and cached_fill any; the others the engine's, between two steps. */
#ifndef INFERD_STAGE_CACHED_H
#define INFERD_STAGE_CACHED_H

#include "gguf/gguf.h"
#include "kernels/backend.h"
#include "packed.h"
#include "weights.h"

typedef enum cached_share { CACHED_LITTLE, CACHED_MOST, CACHED_ALL } cached_share;

/* Bytes [from, end) of a file.  Reads that are refused when they would wait need a descriptor of
 * their own; fd -1: it is unknown what of the file is in the page cache. */
typedef struct cached_range {
    int fd;
    uint64_t from, end;
} cached_range;

/* The cached share of all these bytes, by a sample. */
cached_share cached_look(const cached_range *ranges, uint32_t n);
/* Ask the system to read the missing ones of these bytes; returns before they have arrived. */
void cached_fill(const cached_range *ranges, uint32_t n);
/* n bytes of the file from `from`; false: not all can be read, and `out` has some of them.  Adds to
 * *waited_us the time for those that were not in the page cache. */
bool cached_read(int fd, uint64_t from, unsigned char *out, size_t n, uint64_t *waited_us);

/* Rows [row_begin, row_begin + n_rows) of a matrix, the first a multiple of BE_PREPARE_ROWS. */
typedef struct cached_part {
    const weight_entry *entry;
    uint32_t row_begin, n_rows;
} cached_part;

/* Parts of at most `part_bytes` each, shared by all threads, which take no further one after
 * until_us (of clock_now_us).  files[i]: part i of the model `g`.  *n_done: the number of prepared
 * parts, the first ones.  *there: false if some bytes cannot be read.  Adds to *waited_us, of all
 * threads. */
inferd_status cached_rows(backend *be, const gguf *g, const cached_range *files,
                          const cached_part *parts, uint32_t n, unsigned char *buffer,
                          size_t buffer_bytes, size_t part_bytes, uint64_t until_us,
                          uint32_t *n_done, bool *there, uint64_t *waited_us, inferd_err *err);
/* Chunks [begin, end) to their places in the window; the others as of cached_rows.  A failure: a
 * chunk has a wrong checksum. */
inferd_status cached_chunks(backend *be, const packed *p, unsigned char *window, uint32_t begin,
                            uint32_t end, uint64_t until_us, uint32_t *n_done, bool *there,
                            uint64_t *waited_us, inferd_err *err);
/* Touch the first `end` of these pages; *n_touched are touched so far.  False: until_us (of
 * clock_now_us) came before the end. */
bool cached_touch(backend *be, const uint32_t *pages, uint32_t end, uint32_t *n_touched,
                  uint64_t until_us);

#endif
