/* gguf_meta.c - metadata of a GGUF file by key, as the kind the caller needs.
 *
 * Writers disagree about widths: the same count is u32 in one file, i32 or u64 in the next, so any
 * integer in the requested range is accepted.  A wrong kind or value is an error that names the key
 * and both sides; only an absent key can have a fallback. */
#include "gguf/gguf_file.h"

#include <inttypes.h>

static const struct {
    const char *name;
    uint8_t n_bytes;
} kinds[] = {
    [GGUF_U8] = {"u8", 1},          [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},        [GGUF_U32] = {"u32", 4},     [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},        [GGUF_BOOL] = {"a bool", 1}, [GGUF_STRING] = {"a string", 0},
    [GGUF_ARRAY] = {"an array", 0}, [GGUF_U64] = {"u64", 8},     [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_kind_name(gguf_kind kind) {
    return kinds[kind].name;
}

size_t gguf_kind_bytes(gguf_kind kind) {
    return kinds[kind].n_bytes;
}

static bool is_int(gguf_kind kind) {
    return kinds[kind].n_bytes != 0 && kind != GGUF_F32 && kind != GGUF_F64 && kind != GGUF_BOOL;
}

static bool is_signed(gguf_kind kind) {
    return kind == GGUF_I8 || kind == GGUF_I16 || kind == GGUF_I32 || kind == GGUF_I64;
}

/* ---- one number ---- */

static uint64_t load_unsigned(gguf_kind kind, const unsigned char *p) {
    return gguf_load(p, kinds[kind].n_bytes);
}

/* Of a signed kind. */
static int64_t load_signed(gguf_kind kind, const unsigned char *p) {
    unsigned shift = 64 - 8u * kinds[kind].n_bytes;
    return (int64_t)(load_unsigned(kind, p) << shift) >> shift; // gcc and clang shift the sign in
}

static double load_real(gguf_kind kind, const unsigned char *p) {
    uint64_t u = load_unsigned(kind, p);
    if (kind == GGUF_F32) {
        uint32_t low = (uint32_t)u;
        float f;
        memcpy(&f, &low, sizeof f);
        return (double)f;
    }
    if (kind == GGUF_F64) {
        double f;
        memcpy(&f, &u, sizeof f);
        return f;
    }
    return is_signed(kind) ? (double)load_signed(kind, p) : (double)u;
}

/* ---- keys ---- */

const gguf_entry *gguf_find_entry(const gguf *g, const char *key) {
    size_t n = strlen(key), low = 0, high = g->n_entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const gguf_entry *e = &g->entries[g->entry_idx[middle]];
        bytes k = gguf_entry_key(g, e);
        int order = memcmp(key, k.p, size_min(n, k.n));
        if (order == 0) order = (n > k.n) - (n < k.n);
        if (order == 0) return e;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool gguf_has(const gguf *g, const char *key) {
    return gguf_find_entry(g, key) != NULL;
}

bool gguf_is_array(const gguf *g, const char *key) {
    const gguf_entry *e = gguf_find_entry(g, key);
    return e != NULL && e->kind == GGUF_ARRAY;
}

/* ---- all keys ---- */

size_t gguf_n_keys(const gguf *g) {
    return g->n_entries;
}

bytes gguf_key_at(const gguf *g, size_t i) {
    INFERD_CHECK(i < g->n_entries);
    return gguf_entry_key(g, &g->entries[i]);
}

bool gguf_number_at(const gguf *g, size_t i, double *out) {
    INFERD_CHECK(i < g->n_entries);
    const gguf_entry *e = &g->entries[i];
    if (kinds[e->kind].n_bytes == 0) return false;
    *out = load_real(e->kind, g->header + e->at);
    return true;
}

bool gguf_is_empty_at(const gguf *g, size_t i) {
    INFERD_CHECK(i < g->n_entries);
    const gguf_entry *e = &g->entries[i];
    if (e->kind == GGUF_STRING) return e->n == 0;
    if (e->kind != GGUF_ARRAY) return false;
    size_t n_bytes = kinds[e->element].n_bytes;
    if (n_bytes == 0 && e->n > 0) return false; // of strings
    for (size_t k = 0; k < e->n; k++)
        if (load_real(e->element, g->header + e->at + k * n_bytes) != 0) return false;
    return true;
}

static bool is_printable(unsigned char c) {
    return c >= ' ' && c <= '~';
}

const char *gguf_show_value(const gguf *g, size_t i, char out[GGUF_SHOWN_BYTES]) {
    enum { TEXT_MAX = 48 };
    INFERD_CHECK(i < g->n_entries);
    const gguf_entry *e = &g->entries[i];
    const unsigned char *p = g->header + e->at;
    char text[TEXT_MAX + 1];
    if (e->kind == GGUF_ARRAY) {
        const char *element = gguf_kind_name(e->element);
        if (strncmp(element, "a ", 2) == 0) element += 2;
        snprintf(out, GGUF_SHOWN_BYTES, "an array of %zu %s%s", e->n, element,
                 e->n == 1 ? "" : "s");
    } else if (e->kind == GGUF_STRING) {
        size_t n = size_min(e->n, TEXT_MAX);
        for (size_t k = 0; k < n; k++) text[k] = is_printable(p[k]) ? (char)p[k] : '?';
        text[n] = 0;
        snprintf(out, GGUF_SHOWN_BYTES, "\"%s\"%s", text, e->n > n ? "..." : "");
    } else if (e->kind == GGUF_BOOL) {
        snprintf(out, GGUF_SHOWN_BYTES, "%s", *p != 0 ? "true" : "false");
    } else {
        snprintf(out, GGUF_SHOWN_BYTES, "%.7g", load_real(e->kind, p));
    }
    return out;
}

static inferd_status missing(const gguf *g, const char *key, inferd_err *err) {
    return inferd_fail(err, INFERD_EFORMAT, "%s: key %s is missing", gguf_label(g), key);
}

static inferd_status wrong_kind(const gguf *g, const char *key, const gguf_entry *e,
                                const char *expected, inferd_err *err) {
    bool array = e->kind == GGUF_ARRAY;
    return inferd_fail(err, INFERD_EFORMAT, "%s: key %s is %s%s%s, expected %s", gguf_label(g), key,
                       gguf_kind_name(e->kind), array ? " of " : "",
                       array ? gguf_kind_name(e->element) : "", expected);
}

/* ---- integers, reals, bools ---- */

static inferd_status read_u64(const gguf *g, const char *key, const gguf_entry *e, uint64_t min,
                              uint64_t max, uint64_t *out, inferd_err *err) {
    if (!is_int(e->kind)) return wrong_kind(g, key, e, "an integer", err);
    const unsigned char *p = g->header + e->at;
    if (is_signed(e->kind) && load_signed(e->kind, p) < 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: key %s is %" PRId64 ", expected %" PRIu64 " to %" PRIu64,
                           gguf_label(g), key, load_signed(e->kind, p), min, max);
    uint64_t v = load_unsigned(e->kind, p);
    if (v < min || v > max)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: key %s is %" PRIu64 ", expected %" PRIu64 " to %" PRIu64,
                           gguf_label(g), key, v, min, max);
    *out = v;
    return INFERD_OK;
}

inferd_status gguf_u64(const gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
                       inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    if (e == NULL) return missing(g, key, err);
    return read_u64(g, key, e, min, max, out, err);
}

inferd_status gguf_u64_or(const gguf *g, const char *key, uint64_t min, uint64_t max,
                          uint64_t fallback, uint64_t *out, inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    if (e != NULL) return read_u64(g, key, e, min, max, out, err);
    *out = fallback;
    return INFERD_OK;
}

static inferd_status read_f64(const gguf *g, const char *key, const gguf_entry *e, double min,
                              double max, double *out, inferd_err *err) {
    if (!is_int(e->kind) && e->kind != GGUF_F32 && e->kind != GGUF_F64)
        return wrong_kind(g, key, e, "a number", err);
    double v = load_real(e->kind, g->header + e->at);
    if (!(v >= min && v <= max)) // so that NaN is outside too
        return inferd_fail(err, INFERD_EFORMAT, "%s: key %s is %g, expected %g to %g",
                           gguf_label(g), key, v, min, max);
    *out = v;
    return INFERD_OK;
}

inferd_status gguf_f64(const gguf *g, const char *key, double min, double max, double *out,
                       inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    if (e == NULL) return missing(g, key, err);
    return read_f64(g, key, e, min, max, out, err);
}

inferd_status gguf_f64_or(const gguf *g, const char *key, double min, double max, double fallback,
                          double *out, inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    if (e != NULL) return read_f64(g, key, e, min, max, out, err);
    *out = fallback;
    return INFERD_OK;
}

inferd_status gguf_bool_or(const gguf *g, const char *key, bool fallback, bool *out,
                           inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    uint64_t v = fallback;
    if (e != NULL && e->kind == GGUF_BOOL) {
        v = g->header[e->at]; // 0 or 1, checked when it was read
    } else if (e != NULL) {
        if (!is_int(e->kind)) return wrong_kind(g, key, e, "a bool", err);
        inferd_status s = read_u64(g, key, e, 0, 1, &v, err);
        if (s != INFERD_OK) return s;
    }
    *out = v != 0;
    return INFERD_OK;
}

/* ---- strings, arrays ---- */

inferd_status gguf_str_opt(const gguf *g, const char *key, bytes *out, inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    *out = (bytes){0};
    if (e == NULL) return INFERD_OK;
    if (e->kind != GGUF_STRING) return wrong_kind(g, key, e, "a string", err);
    *out = (bytes){(const char *)g->header + e->at, e->n};
    return INFERD_OK;
}

inferd_status gguf_str(const gguf *g, const char *key, bytes *out, inferd_err *err) {
    if (!gguf_has(g, key)) {
        *out = (bytes){0};
        return missing(g, key, err);
    }
    return gguf_str_opt(g, key, out, err);
}

inferd_status gguf_array_opt(const gguf *g, const char *key, gguf_kind kind, gguf_array_view *out,
                             inferd_err *err) {
    const gguf_entry *e = gguf_find_entry(g, key);
    *out = (gguf_array_view){.kind = kind};
    if (e == NULL) return INFERD_OK;
    bool any_int = kind == GGUF_I32 || kind == GGUF_U32;
    if (e->kind != GGUF_ARRAY || !(e->element == kind || (any_int && is_int(e->element)))) {
        char expected[48];
        snprintf(expected, sizeof expected, "an array of %s",
                 any_int ? "integers" : gguf_kind_name(kind));
        return wrong_kind(g, key, e, expected, err);
    }
    out->kind = e->element;
    out->n = e->n;
    if (e->element == GGUF_STRING)
        out->strings = g->strings + e->string_idx;
    else
        out->data = g->header + e->at;
    return INFERD_OK;
}

int64_t gguf_array_int(const gguf_array_view *a, size_t i) {
    INFERD_CHECK(i < a->n && (is_int(a->kind) || a->kind == GGUF_BOOL));
    const unsigned char *p = a->data + i * kinds[a->kind].n_bytes;
    if (is_signed(a->kind)) return load_signed(a->kind, p);
    uint64_t v = load_unsigned(a->kind, p);
    return v > INT64_MAX ? INT64_MAX : (int64_t)v; // outside every requested range
}

double gguf_array_real(const gguf_array_view *a, size_t i) {
    INFERD_CHECK(i < a->n && kinds[a->kind].n_bytes != 0);
    return load_real(a->kind, a->data + i * kinds[a->kind].n_bytes);
}
