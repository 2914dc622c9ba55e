/* gguf.h - a model in GGUF (version 2 or 3, little-endian), checked and open for reading: one file,
 * or all parts of a split model.
 *
 * A split model lies in the files PREFIX-00001-of-00003.gguf, PREFIX-00002-of-00003.gguf, ... of
 * one folder.  Any of them may be named.  The metadata is that of the first part; a tensor says in
 * which part it lies.  Names of the other parts are made from the named path alone.
 *
 * Files are read with pread, never mapped: a file that is cut or replaced while we read is an
 * error and not a signal.  Everything the header claims (counts, lengths, offsets, alignment) is
 * checked against the file size before memory is allocated; every error names the file and the
 * key or tensor, with the numbers.  Format: ggml docs/gguf.md.
 *
 * Always: each tensor's bytes lie inside its file and its element count did not overflow.
 * Thread: any, read-only after gguf_open (gguf_read uses pread). */
#ifndef INFERD_GGUF_H
#define INFERD_GGUF_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "kernels/dtype.h"

enum { GGUF_DIMS_MAX = 4, GGUF_NAME_BYTES_MAX = 63 };

/* Limits of a model, far above those of any.  A header (metadata and tensor list) is read whole, so
 * its limit also bounds the memory that bad files can take.  Bytes of headers, keys and tensors: of
 * all parts together; each part is an open file. */
enum {
    GGUF_PARTS_MAX = 512,
    GGUF_HEADER_BYTES_MAX = 64 << 20,
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_KEY_BYTES_MAX = 1024,
    GGUF_STRING_BYTES_MAX = 16 << 20,
    GGUF_ALIGNMENT_MIN = 8,
    GGUF_ALIGNMENT_DEFAULT = 32,
    GGUF_ALIGNMENT_MAX = 1 << 20
};

typedef struct gguf gguf;

typedef enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_kind;

typedef struct gguf_tensor {
    char name[GGUF_NAME_BYTES_MAX + 1];
    uint32_t n_dims;
    uint64_t dims[GGUF_DIMS_MAX]; // dims[0] is contiguous; 1 beyond n_dims
    dtype type;           // a type of files; dtype_about(type).supported: it can be computed
    uint32_t part;        // its file
    uint64_t file_offset; // of the first byte, from the start of that file
    uint64_t n_bytes;
} gguf_tensor;

/* An array value: `n` elements of `kind`.  Numbers: little-endian at `data`, unaligned.  Strings:
 * `strings[i]`.  Borrowed from the gguf. */
typedef struct gguf_array_view {
    gguf_kind kind;
    size_t n;
    const unsigned char *data;
    const bytes *strings;
} gguf_array_view;

/* ENOTFOUND: no such file, or a part is missing.  EIO: the system refuses.  EFORMAT: not a regular
 * file, its bytes are wrong, or the parts do not belong together.  EUNSUPPORTED: a GGUF that this
 * build does not read (version 1, big-endian). */
inferd_status gguf_open(const char *path, gguf **out, inferd_err *err);
/* The same for an open file without a path (a memfd), which is a whole model; `name` is its name in
 * errors.  The gguf owns fd, also when this fails. */
inferd_status gguf_open_fd(int fd, const char *name, gguf **out, inferd_err *err);
void gguf_close(gguf *g); // accepts NULL

/* Each file has the size and modification time it had at gguf_open, and its path, if it has one,
 * still names it; call after the last read. */
inferd_status gguf_check_unchanged(const gguf *g, inferd_err *err);

/* The same for the open files alone, whatever their paths name now. */
inferd_status gguf_check_open(const gguf *g, inferd_err *err);

uint32_t gguf_n_parts(const gguf *g); // 1: the model is one file
/* Another descriptor of an open file, whatever its path names now; the caller closes it.  -1: it
 * was changed, or the system does not give one (no /proc). */
int gguf_reopen(const gguf *g, uint32_t part);

/* The file that the path names now; of a split model, all of them: the sum of the sizes, and
 * hashes of the other numbers.  ENOTFOUND: one is missing; EIO: the system does not say. */
typedef struct gguf_named {
    uint64_t device, inode, n_bytes, mtime_ns;
    bool is_open; // the files that are open, unchanged
} gguf_named;
inferd_status gguf_look(const gguf *g, gguf_named *out, inferd_err *err);
/* Properties that distinguish it from other models without reading all of it. */
typedef struct gguf_identity {
    uint64_t n_bytes, mtime_ns; // of a split model: the sum, and a hash of all sizes and times
    bytes header;               // the first bytes of each file, as far as they were read; borrowed
} gguf_identity;
gguf_identity gguf_identify(const gguf *g);
/* The same metadata and the same tensors at the same offsets, in as many parts. */
bool gguf_same_header(const gguf *a, const gguf *b);
/* The same bytes in each part; the cheapest comparisons come first. */
inferd_status gguf_same_bytes(const gguf *a, const gguf *b, bool *same, inferd_err *err);
/* Advises the system that the tensors are read next, in the order of the files. */
void gguf_will_read(const gguf *g);

/* A path without ".gguf", and without "-00001-of-00003" before it: begins of names beside the
 * file, the same for all parts of a split model. */
size_t gguf_stem_bytes(const char *path);

const char *gguf_path(const gguf *g);  // of the first part
const char *gguf_label(const gguf *g); // the same at the start of errors: printable, shortened
const char *gguf_path_of(const gguf *g, const gguf_tensor *t); // of the file that it lies in
uint64_t gguf_file_bytes(const gguf *g);                       // of all parts
/* The path of a part, and its size. */
const char *gguf_part_at(const gguf *g, uint32_t part, uint64_t *n_bytes);

/* Metadata.  Required forms fail when the key is absent, of another kind or outside [min, max];
 * `_or` forms give `fallback` when it is absent and still fail when it is wrong.  Any integer kind
 * is accepted for integers, any number for reals, bool or 0/1 for bools.  Strings are borrowed. */
bool gguf_has(const gguf *g, const char *key);
/* All keys, in the order of the file. */
size_t gguf_n_keys(const gguf *g);
bytes gguf_key_at(const gguf *g, size_t i);
/* The value of key i for an error message, printable: 0.5, true, "text", an array of 26 bools. */
enum { GGUF_SHOWN_BYTES = 80 };
const char *gguf_show_value(const gguf *g, size_t i, char out[GGUF_SHOWN_BYTES]);
/* A number, or a bool as 0 or 1; false: it is neither. */
bool gguf_number_at(const gguf *g, size_t i, double *out);
/* An array of numbers or bools that are all 0, or an array or a string without elements. */
bool gguf_is_empty_at(const gguf *g, size_t i);
bool gguf_is_array(const gguf *g, const char *key); // false: it is not, or is not there
inferd_status gguf_u64(const gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
                       inferd_err *err);
inferd_status gguf_u64_or(const gguf *g, const char *key, uint64_t min, uint64_t max,
                          uint64_t fallback, uint64_t *out, inferd_err *err);
inferd_status gguf_f64(const gguf *g, const char *key, double min, double max, double *out,
                       inferd_err *err);
inferd_status gguf_f64_or(const gguf *g, const char *key, double min, double max, double fallback,
                          double *out, inferd_err *err);
inferd_status gguf_bool_or(const gguf *g, const char *key, bool fallback, bool *out,
                           inferd_err *err);
inferd_status gguf_str(const gguf *g, const char *key, bytes *out, inferd_err *err);
/* Absent: INFERD_OK and out->p == NULL. */
inferd_status gguf_str_opt(const gguf *g, const char *key, bytes *out, inferd_err *err);
/* An array of exactly `kind` (GGUF_I32, GGUF_U32: any integer).  Absent: n = 0 and INFERD_OK. */
inferd_status gguf_array_opt(const gguf *g, const char *key, gguf_kind kind, gguf_array_view *out,
                             inferd_err *err);
/* Element i of a numeric array view. */
int64_t gguf_array_int(const gguf_array_view *a, size_t i);
double gguf_array_real(const gguf_array_view *a, size_t i);

/* Tensors. */
size_t gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);
const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name); // NULL: not there
/* Read `n_bytes` of the tensor from byte `offset` into `out`; short reads are completed. */
inferd_status gguf_read(const gguf *g, const gguf_tensor *t, uint64_t offset, void *out,
                        size_t n_bytes, inferd_err *err);

#endif
