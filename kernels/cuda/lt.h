/* lt.h - products by cuBLASLt: its algorithms are measured once, and the choice is stored.
 *
 * The library has tens of algorithms for a product and a quick guess at the best; the guess is a
 * few percent off, and much more when few tiles run on many multiprocessors.  A book is a table
 * with one choice per
 *
 *     bucket of rows (m rounded up), n, k, types, accumulate
 *
 * so that a product is summed the same way for any batch.  A choice is the library's first guess
 * for the bucket until lt_book_tune has timed the candidates.  Measured choices are kept in a file,
 * for each kind of device and version of the library.  A choice that the library does not take for
 * the true number of rows is replaced, for that number, by its first guess that it takes.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_LT_H
#define INFERD_CUDA_LT_H

#include "cuda/module.h"

enum {
    LT_CANDIDATES_MAX = 12,     // timed per product
    LT_ENTRIES_MAX = 4096,      // in a book; beyond, guesses are made anew each time
    LT_FILE_BYTES_MAX = 1 << 20 // a longer file is no tune file
};

/* The buckets, ascending; larger m belong to the last. */
extern const uint32_t lt_buckets[];
extern const uint32_t lt_n_buckets;
uint32_t lt_bucket_idx(uint32_t m);

typedef struct lt_book lt_book;

/* `path` may be NULL or name no file yet.  A file that is not a tune file, and invalid lines, are
 * ignored and counted.  The library is open. */
inferd_status lt_book_open(const cu_api *api, const cu_device *d, const char *path, lt_book **out,
                           inferd_err *err);
void lt_book_close(lt_book *b); // accepts NULL
void lt_book_set_workspace(lt_book *b, void *p, size_t n);

/* Launch the product.  False: the library has no algorithm for it, and nothing was launched.  (True
 * as well when the launch failed or the launcher had failed before: see l->status.) */
bool lt_book_product(lt_book *b, launcher *l, const lt_shape *s, const void *x, const void *w,
                     void *out);

/* A product to time: shape.m is a bucket; the weights alternate, so that they come from memory. */
typedef struct lt_trial {
    lt_shape shape;
    const void *x;
    const void *const *w; // [n_w]
    uint32_t n_w;
    void *out;
} lt_trial;

bool lt_book_is_tuned(const lt_book *b, const lt_shape *s);
/* Time the candidates and store the fastest; those that fail are left out.  Stops when budget_us of
 * device time are used up; the used time is subtracted from it.  No capture may be open. */
inferd_status lt_book_tune(lt_book *b, launcher *l, const lt_trial *t, uint64_t *budget_us,
                           inferd_err *err);
/* Write the file, if there is a path and anything new.  Choices of other devices in it stay. */
inferd_status lt_book_save(lt_book *b, inferd_err *err);

/* One small product into each type: the library's handle and code are made and loaded now.  Takes
 * and gives back a little device memory. */
inferd_status lt_book_warm(lt_book *b, launcher *l, lt_type in, inferd_err *err);

typedef struct lt_book_stats {
    uint32_t n_read;    // choices taken from the file
    uint32_t n_ignored; // lines of the file, or 1 for a file that is no tune file
    uint32_t n_tuned;   // measured since
    uint32_t n_refused; // products with a choice that the library did not take
    uint32_t n_guessed; // calls for the library's first guess
} lt_book_stats;
void lt_book_get_stats(const lt_book *b, lt_book_stats *out);

#endif
