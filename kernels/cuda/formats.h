/* formats.h - converting a weight matrix from its file form to the device's layout, on the host.
 *
 * Thread: any; ranges of rows do not overlap. */
#ifndef INFERD_CUDA_FORMATS_H
#define INFERD_CUDA_FORMATS_H

#include "cuda/layout.h"
#include "inferd/status.h"
#include "kernels/dtype.h"

bool format_of(dtype type, cu_format *out); // false: not supported
/* Bytes of the prepared matrix, a multiple of 256. */
size_t format_bytes(dtype type, uint32_t rows, uint32_t cols);
/* The matrix with its planes at `base` (device or host address, 256-byte aligned). */
cu_matrix format_matrix(dtype type, uint32_t rows, uint32_t cols, void *base);

/* Rows [row_begin, row_begin + n_rows) from file form into `image`, the host copy of the planes;
 * row_begin a multiple of 16, and n_rows too unless these are the last.  The last call (row_begin +
 * n_rows == rows) zeroes the padding.
 * INFERD_EFORMAT when a value is not a finite number, or a scale not finite in half precision; the
 * error names row, column and value. */
inferd_status format_prepare(const cu_matrix *m, dtype type, void *image, const void *file_rows,
                             uint32_t row_begin, uint32_t n_rows, inferd_err *err);

/* The prepared values as floats, out[n_rows, cols]: the definition of the layout, for tests and for
 * the fake cuBLASLt.  The planes of `m` are host memory. */
void format_to_f32(const cu_matrix *m, uint32_t row_begin, uint32_t n_rows, float *out);

#endif
