/* dummy.h - rows of made-up weights in file form, as dummy_math.h defines them.
 *
 * The CPU backend and the tests get their dummy weights here; the CUDA backend makes the same
 * weights on the device, in its own layout.
 *
 * Thread: any. */
#ifndef INFERD_KERNELS_DUMMY_H
#define INFERD_KERNELS_DUMMY_H

#include "inferd/dummy_math.h"
#include "kernels/dtype.h"

/* false: the type is not supported. */
bool dummy_form_of(dtype type, float scale, dummy_form *out);

/* Rows [row_begin, row_begin + n_rows) of a matrix of `cols` columns (a multiple of the type's
 * block) into `out`, one after the other as in a file. */
void dummy_file_rows(dtype type, uint32_t cols, uint64_t seed, float scale, uint32_t row_begin,
                     uint32_t n_rows, void *out);

#endif
