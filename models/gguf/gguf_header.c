/* gguf_header.c - the header of a GGUF file, from untrusted bytes to checked tables.
 *
 *     "GGUF" version:u32 n_tensors:u64 n_keys:u64
 *     n_keys    x  key:string kind:u32 value
 *     n_tensors x  name:string n_dims:u32 dims:u64[n_dims] type:u32 offset:u64
 *     padding to the alignment, then the data; offsets count from there
 *
 *     string: n:u64 bytes[n]        array: kind:u32 n:u64 elements
 *
 * Only one cursor reads bytes: before each read it compares the requested length with the rest of
 * the file (never position + length, which can wrap), and it reads ahead in doubling steps so that
 * the data behind the header stays on the disk.  Counts are checked against the least size of so
 * many records before a table is allocated.
 *
 * Writers put tensors one after the other, each padded to the alignment.  That is required here,
 * so no two overlap and nothing hides between them. */
#include "gguf/gguf_file.h"

#include <inttypes.h>

enum {
    FIRST_READ_BYTES = 64 << 10,
    FIXED_BYTES = 24,      // magic, version, two counts
    ENTRY_BYTES_MIN = 14,  // length and one byte of key, kind, one byte of value
    TENSOR_BYTES_MIN = 33, // length and one byte of name, n_dims, one dim, type, offset
    KEY_BYTES_SHOWN = 120  // of a long key in an error
};

typedef struct cursor {
    gguf *g; // of one part; header grows, and header_bytes of it are read
    gguf_limits limits;
    size_t at;       // next byte; at <= header_bytes
    size_t capacity; // of g->header
    inferd_err *err;
} cursor;

/* ---- the cursor ---- */

/* Make sure that bytes [0, at + n) of the file are in memory, or return the reason why not. */
static inferd_status need(cursor *c, uint64_t n, const char *what) {
    gguf *g = c->g;
    uint64_t file_bytes = gguf_file_bytes(g);
    if (n > file_bytes - c->at)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "%s at byte %zu takes %" PRIu64 " bytes, but the file has only %" PRIu64
                           " more",
                           what, c->at, n, file_bytes - c->at);
    size_t bytes_max = c->limits.header_bytes;
    if (c->at > bytes_max || n > bytes_max - c->at)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "%s at byte %zu takes %" PRIu64
                           " bytes, but a header may have at most %zu in all",
                           what, c->at, n, bytes_max);
    size_t wanted = c->at + (size_t)n;
    if (wanted <= g->header_bytes) return INFERD_OK;

    size_t capacity = size_max(wanted, size_max(FIRST_READ_BYTES, 2 * c->capacity));
    capacity = size_min(capacity, bytes_max);
    if (capacity > file_bytes) capacity = (size_t)file_bytes;
    unsigned char *header = realloc(g->header, capacity);
    if (header == NULL)
        return inferd_fail(c->err, INFERD_ENOMEM, "no memory for a header of %zu bytes", capacity);
    g->header = header;
    c->capacity = capacity;
    inferd_status s = gguf_pread(g->parts, g->header_bytes, header + g->header_bytes,
                                 capacity - g->header_bytes, c->err);
    if (s == INFERD_OK) g->header_bytes = capacity;
    return s;
}

static inferd_status take_int(cursor *c, size_t n_bytes, uint64_t *out, const char *what) {
    inferd_status s = need(c, n_bytes, what);
    if (s != INFERD_OK) return s;
    *out = gguf_load(c->g->header + c->at, n_bytes);
    c->at += n_bytes;
    return INFERD_OK;
}

/* A length and that many bytes; `at` is where the bytes lie. */
static inferd_status take_string(cursor *c, uint64_t bytes_max, size_t *at, size_t *n,
                                 const char *what) {
    uint64_t length;
    inferd_status s = take_int(c, 8, &length, what);
    if (s != INFERD_OK) return s;
    if (length > bytes_max)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "%s at byte %zu has %" PRIu64 " bytes, at most %" PRIu64 " are allowed",
                           what, c->at - 8, length, bytes_max);
    s = need(c, length, what);
    if (s != INFERD_OK) return s;
    *at = c->at;
    *n = (size_t)length;
    c->at += (size_t)length;
    return INFERD_OK;
}

/* Names go into errors and logs, so they are printable ASCII. */
static inferd_status take_name(cursor *c, uint64_t bytes_max, size_t *at, size_t *n,
                               const char *what) {
    inferd_status s = take_string(c, bytes_max, at, n, what);
    if (s != INFERD_OK) return s;
    if (*n == 0)
        return inferd_fail(c->err, INFERD_EFORMAT, "%s at byte %zu is empty", what, *at - 8);
    for (size_t i = 0; i < *n; i++) {
        unsigned char ch = c->g->header[*at + i];
        if (ch < 0x20 || ch > 0x7e)
            return inferd_fail(c->err, INFERD_EFORMAT,
                               "%s at byte %zu has the byte 0x%02x, expected printable ASCII", what,
                               *at - 8, ch);
    }
    return INFERD_OK;
}

/* ---- begin ---- */

static inferd_status check_version(uint32_t version, inferd_err *err) {
    if (version == 2 || version == 3) return INFERD_OK;
    if (version == 1)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "is GGUF version 1, which had 32-bit lengths; convert it to version 3");
    if (version == 0x02000000 || version == 0x03000000)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "is a big-endian GGUF (version bytes are swapped); convert it to "
                           "little-endian");
    return inferd_fail(err, INFERD_EUNSUPPORTED, "is GGUF version %u, expected 2 or 3", version);
}

static inferd_status check_count(cursor *c, uint64_t n, uint64_t max, uint64_t bytes_min,
                                 const char *what) {
    if (n > max)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "has %" PRIu64 " %s, at most %" PRIu64 " are allowed", n, what, max);
    uint64_t left = gguf_file_bytes(c->g) - c->at;
    if (n * bytes_min > left)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "has %" PRIu64 " %s, which take %" PRIu64
                           " bytes or more, but the file has only %" PRIu64 " more",
                           n, what, n * bytes_min, left);
    return INFERD_OK;
}

/* Formats that models also come in, by bytes of the beginning. */
static inferd_status refuse_format(const unsigned char *p, inferd_err *err) {
    static const struct {
        size_t at, n;
        const char *magic, *name;
    } formats[] = {
        {5, 4, "\0\0\0{", "a safetensors file"}, // JSON behind its length, 64 bits
        {0, 4, "PK\3\4", "a zip archive, as PyTorch writes checkpoints"},
        {0, 2, "\x80\2", "a pickle, as PyTorch wrote checkpoints"},
    };
    for (size_t i = 0; i < INFERD_COUNT(formats); i++)
        if (memcmp(p + formats[i].at, formats[i].magic, formats[i].n) == 0)
            return inferd_fail(err, INFERD_EFORMAT, "is %s, expected a GGUF file", formats[i].name);
    return inferd_fail(err, INFERD_EFORMAT,
                       "is not a GGUF file: begins with bytes %02x %02x %02x %02x, expected "
                       "47 47 55 46",
                       p[0], p[1], p[2], p[3]);
}

static inferd_status read_begin(cursor *c) {
    gguf *g = c->g;
    if (gguf_file_bytes(g) < FIXED_BYTES)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "has %" PRIu64 " bytes, a GGUF file has %d or more", gguf_file_bytes(g),
                           FIXED_BYTES);
    inferd_status s = need(c, FIXED_BYTES, "the header");
    if (s != INFERD_OK) return s;
    const unsigned char *p = g->header;
    if (memcmp(p, "GGUF", 4) != 0) return refuse_format(p, c->err);
    s = check_version((uint32_t)gguf_load(p + 4, 4), c->err);
    if (s != INFERD_OK) return s;

    uint64_t n_tensors = gguf_load(p + 8, 8), n_entries = gguf_load(p + 16, 8);
    c->at = FIXED_BYTES;
    s = check_count(c, n_entries, c->limits.n_keys, ENTRY_BYTES_MIN, "metadata keys");
    if (s != INFERD_OK) return s;
    s = check_count(c, n_tensors, c->limits.n_tensors, TENSOR_BYTES_MIN, "tensors");
    if (s != INFERD_OK) return s;

    /* One more of each, so that an empty table is not NULL. */
    g->entries = calloc(n_entries + 1, sizeof *g->entries);
    g->entry_idx = calloc(n_entries + 1, sizeof *g->entry_idx);
    g->tensors = calloc(n_tensors + 1, sizeof *g->tensors);
    g->tensor_idx = calloc(n_tensors + 1, sizeof *g->tensor_idx);
    if (!g->entries || !g->entry_idx || !g->tensors || !g->tensor_idx)
        return inferd_fail(c->err, INFERD_ENOMEM,
                           "no memory for %" PRIu64 " keys and %" PRIu64 " tensors", n_entries,
                           n_tensors);
    g->n_entries = (size_t)n_entries;
    g->n_tensors = (size_t)n_tensors;
    return INFERD_OK;
}

/* ---- metadata ---- */

static inferd_status take_kind(cursor *c, gguf_kind *out, const char *what) {
    uint64_t kind;
    inferd_status s = take_int(c, 4, &kind, what);
    if (s != INFERD_OK) return s;
    if (kind > GGUF_F64)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "%s at byte %zu is %" PRIu64 ", expected 0 to %d", what, c->at - 4, kind,
                           GGUF_F64);
    *out = (gguf_kind)kind;
    return INFERD_OK;
}

static inferd_status take_numbers(cursor *c, gguf_kind kind, uint64_t n, gguf_entry *e) {
    uint64_t n_bytes;
    if (__builtin_mul_overflow(n, (uint64_t)gguf_kind_bytes(kind), &n_bytes)) n_bytes = UINT64_MAX;
    inferd_status s = need(c, n_bytes, "its value");
    if (s != INFERD_OK) return s;
    e->at = c->at;
    e->n = (size_t)n;
    for (size_t i = 0; kind == GGUF_BOOL && i < e->n; i++)
        if (c->g->header[e->at + i] > 1)
            return inferd_fail(c->err, INFERD_EFORMAT, "a bool at byte %zu is %u, expected 0 or 1",
                               e->at + i, c->g->header[e->at + i]);
    c->at += (size_t)n_bytes;
    return INFERD_OK;
}

static inferd_status take_array(cursor *c, gguf_entry *e) {
    uint64_t n;
    inferd_status s = take_kind(c, &e->element, "the kind of its elements");
    if (s != INFERD_OK) return s;
    if (e->element == GGUF_ARRAY)
        return inferd_fail(c->err, INFERD_EFORMAT, "is an array of arrays, which no model uses");
    s = take_int(c, 8, &n, "the length of its array");
    if (s != INFERD_OK) return s;
    if (e->element != GGUF_STRING) return take_numbers(c, e->element, n, e);

    uint64_t left = gguf_file_bytes(c->g) - c->at;
    if (n > left / 8)
        return inferd_fail(c->err, INFERD_EFORMAT,
                           "has %" PRIu64
                           " strings of 8 bytes or more, but the file has only %" PRIu64
                           " bytes more",
                           n, left);
    e->at = c->at;
    e->n = (size_t)n;
    e->string_idx = c->g->n_strings;
    for (uint64_t i = 0; i < n; i++) {
        size_t at, length;
        s = take_string(c, GGUF_STRING_BYTES_MAX, &at, &length, "a string");
        if (s != INFERD_OK) {
            inferd_context(c->err, "element %" PRIu64 " of %" PRIu64, i, n);
            return s;
        }
    }
    c->g->n_strings += e->n;
    return INFERD_OK;
}

static inferd_status take_entry(cursor *c, gguf_entry *e) {
    size_t key_bytes;
    inferd_status s = take_name(c, GGUF_KEY_BYTES_MAX, &e->key_at, &key_bytes, "the key");
    if (s != INFERD_OK) return s;
    e->key_bytes = (uint32_t)key_bytes;

    s = take_kind(c, &e->kind, "the kind of its value");
    if (s == INFERD_OK) {
        if (e->kind == GGUF_ARRAY)
            s = take_array(c, e);
        else if (e->kind == GGUF_STRING)
            s = take_string(c, GGUF_STRING_BYTES_MAX, &e->at, &e->n, "its string");
        else
            s = take_numbers(c, e->kind, 1, e);
        e->end = c->at;
    }
    if (s != INFERD_OK)
        inferd_context(c->err, "key %.*s", (int)size_min(key_bytes, KEY_BYTES_SHOWN),
                       gguf_entry_key(c->g, e).p);
    return s;
}

static int compare_entries(const void *a, const void *b, void *context) {
    const gguf *g = context;
    bytes x = gguf_entry_key(g, &g->entries[*(const uint32_t *)a]);
    bytes y = gguf_entry_key(g, &g->entries[*(const uint32_t *)b]);
    int order = memcmp(x.p, y.p, size_min(x.n, y.n));
    return order != 0 ? order : (x.n > y.n) - (x.n < y.n);
}

static inferd_status index_entries(gguf *g, inferd_err *err) {
    for (size_t i = 0; i < g->n_entries; i++) g->entry_idx[i] = (uint32_t)i;
    qsort_r(g->entry_idx, g->n_entries, sizeof *g->entry_idx, compare_entries, g);
    for (size_t i = 1; i < g->n_entries; i++) {
        if (compare_entries(&g->entry_idx[i - 1], &g->entry_idx[i], g) != 0) continue;
        bytes key = gguf_entry_key(g, &g->entries[g->entry_idx[i]]);
        return inferd_fail(err, INFERD_EFORMAT, "key %.*s occurs twice",
                           (int)size_min(key.n, KEY_BYTES_SHOWN), key.p);
    }
    return INFERD_OK;
}

inferd_status gguf_point_strings(gguf *g, inferd_err *err) {
    g->strings = calloc(g->n_strings + 1, sizeof *g->strings);
    if (g->strings == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu strings", g->n_strings);
    for (size_t i = 0; i < g->n_entries; i++) {
        const gguf_entry *e = &g->entries[i];
        if (e->kind != GGUF_ARRAY || e->element != GGUF_STRING) continue;
        size_t at = e->at;
        for (size_t k = 0; k < e->n; k++) {
            size_t n = (size_t)gguf_load(g->header + at, 8);
            g->strings[e->string_idx + k] = (bytes){(const char *)g->header + at + 8, n};
            at += 8 + n;
        }
    }
    return INFERD_OK;
}

/* ---- tensors ---- */

/* Elements and bytes, from dims and type. */
static inferd_status size_tensor(gguf_tensor *t, uint32_t type, inferd_err *err) {
    dtype_info about = dtype_about(type);
    char types[DTYPE_LIST_BYTES];
    if (about.name == NULL)
        return inferd_fail(err, INFERD_EFORMAT,
                           "has the element type %u, which does not exist here; supported are %s",
                           type, dtype_list_supported(types));
    if (about.block_bytes == 0)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "has the element type %s (%u), which was removed from the format; "
                           "supported are %s",
                           about.name, type, dtype_list_supported(types));
    if (type == 9 || type == 15)
        return inferd_fail(err, INFERD_EFORMAT,
                           "has the element type %s (%u), which is for activations, not for files; "
                           "supported are %s",
                           about.name, type, dtype_list_supported(types));
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0) return inferd_fail(err, INFERD_EFORMAT, "dimension %u is 0", i);
        if (__builtin_mul_overflow(n, t->dims[i], &n))
            return inferd_fail(err, INFERD_EFORMAT,
                               "has 2^64 elements or more: dimension %u is %" PRIu64, i,
                               t->dims[i]);
    }
    if (t->dims[0] % about.block_elems != 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "dimension 0 is %" PRIu64 ", but %s comes in blocks of %u", t->dims[0],
                           about.name, about.block_elems);
    if (__builtin_mul_overflow(n / about.block_elems, (uint64_t)about.block_bytes, &t->n_bytes))
        return inferd_fail(err, INFERD_EFORMAT,
                           "has %" PRIu64 " elements of %s: 2^64 bytes or more", n, about.name);
    t->type = (dtype)type;
    return INFERD_OK;
}

static inferd_status take_tensor_body(cursor *c, gguf_tensor *t) {
    uint64_t n_dims, type;
    inferd_status s = take_int(c, 4, &n_dims, "its number of dimensions");
    if (s != INFERD_OK) return s;
    if (n_dims < 1 || n_dims > GGUF_DIMS_MAX)
        return inferd_fail(c->err, INFERD_EFORMAT, "has %" PRIu64 " dimensions, expected 1 to %d",
                           n_dims, GGUF_DIMS_MAX);
    t->n_dims = (uint32_t)n_dims;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++) {
        t->dims[i] = 1;
        if (i >= t->n_dims) continue;
        s = take_int(c, 8, &t->dims[i], "a dimension");
        if (s != INFERD_OK) return s;
    }
    s = take_int(c, 4, &type, "its element type");
    if (s != INFERD_OK) return s;
    s = size_tensor(t, (uint32_t)type, c->err);
    if (s != INFERD_OK) return s;
    /* From the start of the data for now; place_tensors makes it a position in the file. */
    return take_int(c, 8, &t->file_offset, "its offset");
}

static inferd_status take_tensor(cursor *c, gguf_tensor *t) {
    size_t at, n;
    inferd_status s = take_name(c, GGUF_NAME_BYTES_MAX, &at, &n, "its name");
    if (s != INFERD_OK) {
        inferd_context(c->err, "tensor %zu of %zu", (size_t)(t - c->g->tensors), c->g->n_tensors);
        return s;
    }
    memcpy(t->name, c->g->header + at, n);
    t->name[n] = 0;
    s = take_tensor_body(c, t);
    if (s != INFERD_OK) inferd_context(c->err, "tensor %s", t->name);
    return s;
}

static int compare_tensors(const void *a, const void *b, void *context) {
    const gguf *g = context;
    return strcmp(g->tensors[*(const uint32_t *)a].name, g->tensors[*(const uint32_t *)b].name);
}

static inferd_status refuse_twice(const gguf *g, const gguf_tensor *a, const gguf_tensor *b,
                                  inferd_err *err) {
    if (a->part == b->part)
        return inferd_fail(err, INFERD_EFORMAT, "tensor %s occurs twice", a->name);
    return inferd_fail(err, INFERD_EFORMAT, "tensor %s occurs in part %u and in part %u of %u",
                       a->name, u32_min(a->part, b->part) + 1, u32_max(a->part, b->part) + 1,
                       g->n_parts);
}

inferd_status gguf_index_tensors(gguf *g, inferd_err *err) {
    for (size_t i = 0; i < g->n_tensors; i++) g->tensor_idx[i] = (uint32_t)i;
    qsort_r(g->tensor_idx, g->n_tensors, sizeof *g->tensor_idx, compare_tensors, g);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (compare_tensors(&g->tensor_idx[i - 1], &g->tensor_idx[i], g) == 0)
            return refuse_twice(g, &g->tensors[g->tensor_idx[i - 1]], &g->tensors[g->tensor_idx[i]],
                                err);
    return INFERD_OK;
}

static uint64_t round_up(uint64_t n, uint64_t alignment) {
    return (n + alignment - 1) & ~(alignment - 1);
}

/* Check that offsets have the required values and the bytes are in the file.  Nothing here can
 * wrap: each tensor's bytes were found inside the file, a signed 64-bit size, before the next
 * tensor. */
static inferd_status place_tensors(gguf *g, uint64_t data_at, uint64_t alignment, inferd_err *err) {
    uint64_t file_bytes = gguf_file_bytes(g), expected = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        uint64_t offset = t->file_offset;
        if (offset % alignment != 0)
            return inferd_fail(err, INFERD_EFORMAT,
                               "tensor %s: offset %" PRIu64
                               " is no multiple of the alignment %" PRIu64,
                               t->name, offset, alignment);
        if (offset != expected)
            return inferd_fail(err, INFERD_EFORMAT,
                               "tensor %s: offset is %" PRIu64 ", expected %" PRIu64
                               " after the tensors before it",
                               t->name, offset, expected);
        uint64_t at = data_at + offset;
        if (at > file_bytes || t->n_bytes > file_bytes - at)
            return inferd_fail(err, INFERD_EFORMAT,
                               "tensor %s: has %" PRIu64 " bytes at byte %" PRIu64
                               ", but the file has only %" PRIu64 " in all: it may be truncated",
                               t->name, t->n_bytes, at, file_bytes);
        t->file_offset = at;
        expected = round_up(offset + t->n_bytes, alignment);
    }
    return INFERD_OK;
}

/* ---- all of it ---- */

static inferd_status read_alignment(const gguf *g, uint64_t *out, inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, "general.alignment");
    *out = GGUF_ALIGNMENT_DEFAULT;
    if (e == NULL) return INFERD_OK;
    if (e->kind != GGUF_U32)
        return inferd_fail(err, INFERD_EFORMAT, "key general.alignment is %s, expected u32",
                           gguf_kind_name(e->kind));
    *out = gguf_load(g->header + e->at, 4);
    if (*out < GGUF_ALIGNMENT_MIN || *out > GGUF_ALIGNMENT_MAX || (*out & (*out - 1)) != 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "key general.alignment is %" PRIu64
                           ", expected a power of two from %d to %d",
                           *out, GGUF_ALIGNMENT_MIN, GGUF_ALIGNMENT_MAX);
    return INFERD_OK;
}

inferd_status gguf_read_header(gguf *g, gguf_limits limits, inferd_err *err) {
    cursor c = {.g = g, .limits = limits, .err = err};
    uint64_t alignment;
    inferd_status s = read_begin(&c);
    for (size_t i = 0; s == INFERD_OK && i < g->n_entries; i++) {
        s = take_entry(&c, &g->entries[i]);
        if (s != INFERD_OK) inferd_context(err, "metadata %zu of %zu", i, g->n_entries);
    }
    if (s == INFERD_OK) s = index_entries(g, err);
    if (s == INFERD_OK) s = read_alignment(g, &alignment, err);
    for (size_t i = 0; s == INFERD_OK && i < g->n_tensors; i++) s = take_tensor(&c, &g->tensors[i]);
    if (s == INFERD_OK) s = gguf_index_tensors(g, err);
    if (s == INFERD_OK) s = place_tensors(g, round_up(c.at, alignment), alignment, err);
    if (s != INFERD_OK) return s;

    unsigned char *trimmed = realloc(g->header, c.at); // drop bytes read ahead
    if (trimmed != NULL) g->header = trimmed;
    g->header_bytes = g->parts->header_bytes = c.at;
    return INFERD_OK;
}
