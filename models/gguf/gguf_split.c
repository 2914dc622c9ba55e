/* gguf_split.c - the parts of a split model become one gguf.
 *
 *     PREFIX-00002-of-00003.gguf      part 2 of 3: split.no 1, split.count 3
 *
 * The part that was named is read first: its split.count says how many there are, and its name,
 * which must agree with split.no and split.count, gives the names of the others.  Nothing else in a
 * file becomes part of a path.  Each part is a GGUF file of its own, with a header, an alignment
 * and offsets, and is checked as one before the next is opened; all headers together have the
 * limits of one.
 *
 * The first part has the metadata.  A key of another part must have the same value there, because
 * it would be ignored; split.* and general.alignment are about the file itself.
 *
 * The tables are joined when all parts are checked; until then each part is a gguf of its own. */
#include "gguf/gguf_file.h"
#include "models/model.h"

enum {
    NUMBER_DIGITS = 5, // of part numbers in names
    SUFFIX_BYTES = 20, // "-00001-of-00003.gguf"
    EXTENSION_BYTES = 5,
    KEY_BYTES_SHOWN = 64 // of a long key in an error
};

/* ---- names ---- */

static bool are_digits(const char *p) {
    for (int i = 0; i < NUMBER_DIGITS; i++)
        if (p[i] < '0' || p[i] > '9') return false;
    return true;
}

static bool is_part_suffix(const char *p) {
    const char *count = p + 1 + NUMBER_DIGITS + 4;
    return p[0] == '-' && are_digits(p + 1) && memcmp(p + 1 + NUMBER_DIGITS, "-of-", 4) == 0 &&
           are_digits(count) && strcmp(count + NUMBER_DIGITS, ".gguf") == 0;
}

size_t gguf_stem_bytes(const char *path) {
    const char *slash = strrchr(path, '/');
    size_t n = strlen(path), begin = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    if (n > begin + SUFFIX_BYTES && is_part_suffix(path + n - SUFFIX_BYTES))
        return n - SUFFIX_BYTES;
    if (n > begin + EXTENSION_BYTES && strcmp(path + n - EXTENSION_BYTES, ".gguf") == 0)
        return n - EXTENSION_BYTES;
    return n;
}

static void write_suffix(uint32_t no, uint32_t n_parts, char out[SUFFIX_BYTES + 1]) {
    snprintf(out, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (no + 1) % 100000, n_parts % 100000);
}

void model_name_part(char *path, uint32_t i, uint32_t n) {
    write_suffix(i, n, path + strlen(path) - SUFFIX_BYTES);
}

/* The others are found by the name of this one. */
static inferd_status check_name(const gguf_part *f, uint32_t no, uint32_t n_parts,
                                inferd_err *err) {
    char suffix[SUFFIX_BYTES + 1];
    size_t n = strlen(f->path);
    write_suffix(no, n_parts, suffix);
    if (f->unnamed)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: is part %u of %u of a split model, but has no folder in which the "
                           "others could be",
                           f->label, no + 1, n_parts);
    if (n >= SUFFIX_BYTES && strcmp(f->path + n - SUFFIX_BYTES, suffix) == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EFORMAT,
                       "%s: is part %u of %u of a split model (split.no, split.count); its name "
                       "must end in %s, because the others are found by it",
                       f->label, no + 1, n_parts, suffix);
}

/* ---- the keys of a set ---- */

typedef struct split_keys {
    uint32_t no, n_parts; // n_parts 1: not split
    bool has_tensors;
    uint64_t n_tensors; // of all parts
} split_keys;

static inferd_status read_keys(const gguf *g, split_keys *out, inferd_err *err) {
    uint64_t no = 0, n_parts = 1;
    *out = (split_keys){.n_parts = 1};
    inferd_status s = gguf_u64_or(g, "split.count", 0, GGUF_PARTS_MAX, 1, &n_parts, err);
    if (s != INFERD_OK || n_parts <= 1) return s; // 0: merged again
    s = gguf_u64(g, "split.no", 0, n_parts - 1, &no, err);
    if (s != INFERD_OK) return s;
    *out = (split_keys){.no = (uint32_t)no, .n_parts = (uint32_t)n_parts};
    out->has_tensors = gguf_has(g, "split.tensors.count");
    return gguf_u64_or(g, "split.tensors.count", 0, UINT32_MAX, 0, &out->n_tensors, err);
}

uint32_t model_n_files(const char *path) {
    size_t n = strlen(path), stem = gguf_stem_bytes(path);
    if (n - stem != SUFFIX_BYTES) return 1;
    unsigned long n_parts = strtoul(path + n - EXTENSION_BYTES - NUMBER_DIGITS, NULL, 10);
    uint32_t of_name = n_parts >= 1 && n_parts <= GGUF_PARTS_MAX ? (uint32_t)n_parts : 1;
    gguf *g = NULL;
    split_keys keys;
    inferd_err err;
    bool told = gguf_open_part(path, -1, GGUF_LIMITS, &g, &err) == INFERD_OK &&
                read_keys(g, &keys, &err) == INFERD_OK;
    gguf_close(g);
    return told && keys.n_parts == 1 ? 1 : of_name; // merged again
}

static bool is_about_the_file(bytes key) {
    static const char *const names[] = {"split.no", "split.count", "split.tensors.count",
                                        "general.alignment"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++)
        if (key.n == strlen(names[i]) && memcmp(key.p, names[i], key.n) == 0) return true;
    return false;
}

static bool same_value(const gguf *a, const gguf_entry *x, const gguf *b, const gguf_entry *y) {
    size_t n = x->end - x->at;
    return x->kind == y->kind && x->element == y->element && x->n == y->n && n == y->end - y->at &&
           memcmp(a->header + x->at, b->header + y->at, n) == 0;
}

/* The metadata of `first` holds for part `g`, too. */
static inferd_status check_metadata(const gguf *first, const gguf *g, inferd_err *err) {
    for (size_t i = 0; i < g->n_entries; i++) {
        char name[GGUF_KEY_BYTES_MAX + 1], here[GGUF_SHOWN_BYTES], there[GGUF_SHOWN_BYTES];
        bytes key = gguf_key_at(g, i);
        if (is_about_the_file(key)) continue;
        memcpy(name, key.p, key.n); // printable, and no longer: the header's reader checked that
        name[key.n] = 0;
        const gguf_entry *e = gguf_find_entry(first, name);
        if (e == NULL)
            return inferd_fail(err, INFERD_EFORMAT,
                               "%s: key %.*s is not in the first part, which has the metadata",
                               gguf_label(g), KEY_BYTES_SHOWN, name);
        if (!same_value(first, e, g, &g->entries[i]))
            return inferd_fail(err, INFERD_EFORMAT,
                               "%s: key %.*s is %s, but %s in the first part: they belong to "
                               "different models",
                               gguf_label(g), KEY_BYTES_SHOWN, name, gguf_show_value(g, i, here),
                               gguf_show_value(first, (size_t)(e - first->entries), there));
    }
    return INFERD_OK;
}

/* Part `no` of the set `all`, the keys of its first part. */
static inferd_status check_keys(const gguf *g, uint32_t no, const split_keys *all,
                                inferd_err *err) {
    split_keys k;
    inferd_status s = read_keys(g, &k, err);
    if (s != INFERD_OK) return s;
    if (k.n_parts != all->n_parts)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: split.count is %u, expected %u as in the other parts",
                           gguf_label(g), k.n_parts, all->n_parts);
    if (k.no != no)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: split.no is %u, expected %u in a file of this name", gguf_label(g),
                           k.no, no);
    if (k.has_tensors && all->has_tensors && k.n_tensors != all->n_tensors)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: split.tensors.count is %llu, expected %llu as in the other parts",
                           gguf_label(g), (unsigned long long)k.n_tensors,
                           (unsigned long long)all->n_tensors);
    return INFERD_OK;
}

/* ---- the set ---- */

/* Opens part `no` beside the one that was named. */
static inferd_status open_beside(const gguf *named, uint32_t no, uint32_t n_parts,
                                 gguf_limits limits, gguf **out, inferd_err *err) {
    const char *path = named->parts->path;
    size_t n = strlen(path);
    char *other = malloc(n + 1);
    if (other == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
    memcpy(other, path, n + 1);
    model_name_part(other, no, n_parts);
    inferd_status s = gguf_open_part(other, -1, limits, out, err);
    free(other);
    return s;
}

static void take_from(gguf_limits *left, const gguf *part) {
    left->header_bytes -= part->header_bytes;
    left->n_keys -= part->n_entries;
    left->n_tensors -= part->n_tensors;
}

/* Every part but the one that is there already, in order; each is checked against the first. */
static inferd_status open_others(gguf **parts, const split_keys *named, inferd_err *err) {
    gguf_limits left = GGUF_LIMITS;
    take_from(&left, parts[named->no]);
    split_keys all = *named;
    all.has_tensors = false; // that of the first part counts
    inferd_status s = INFERD_OK;
    for (uint32_t i = 0; i < named->n_parts && s == INFERD_OK; i++) {
        if (parts[i] == NULL) {
            s = open_beside(parts[named->no], i, named->n_parts, left, &parts[i], err);
            if (s == INFERD_OK) take_from(&left, parts[i]);
        }
        if (s == INFERD_OK) s = check_keys(parts[i], i, &all, err);
        if (s == INFERD_OK && i == 0) s = read_keys(parts[0], &all, err);
        if (s == INFERD_OK && i > 0) s = check_metadata(parts[0], parts[i], err);
        if (s != INFERD_OK)
            inferd_context(err, "part %u of %u of a split model", i + 1, named->n_parts);
    }
    return s;
}

static inferd_status check_sums(gguf *const *parts, uint32_t n_parts, inferd_err *err) {
    uint64_t wanted, n_bytes = 0, n_tensors = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        n_tensors += parts[i]->n_tensors;
        n_bytes += gguf_part_bytes(parts[i]->parts); // each below 2^63, as is the sum so far
        if (n_bytes > INT64_MAX)
            return inferd_fail(err, INFERD_EFORMAT, "%s: the %u parts have 2^63 bytes or more",
                               gguf_label(parts[0]), n_parts);
    }
    inferd_status s = gguf_u64(parts[0], "split.tensors.count", 0, GGUF_TENSORS_MAX, &wanted, err);
    if (s != INFERD_OK || n_tensors == wanted) return s;
    return inferd_fail(
        err, INFERD_EFORMAT, "%s: split.tensors.count is %llu, but the %u parts have %llu tensors",
        gguf_label(parts[0]), (unsigned long long)wanted, n_parts, (unsigned long long)n_tensors);
}

/* The tables of all parts into those of the first; the others are closed when that succeeds. */
static inferd_status join(gguf **parts, uint32_t n_parts, inferd_err *err) {
    size_t header_bytes = 0, n_tensors = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        header_bytes += parts[i]->header_bytes;
        n_tensors += parts[i]->n_tensors;
    }
    gguf_part *files = calloc(n_parts, sizeof *files);
    unsigned char *header = malloc(header_bytes);
    gguf_tensor *tensors = calloc(n_tensors + 1, sizeof *tensors);
    uint32_t *idx = calloc(n_tensors + 1, sizeof *idx);
    if (files == NULL || header == NULL || tensors == NULL || idx == NULL) {
        free(files);
        free(header);
        free(tensors);
        free(idx);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u parts with %zu tensors", n_parts,
                           n_tensors);
    }
    gguf *g = parts[0];
    size_t at = 0, first = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        gguf *p = parts[i];
        memcpy(header + at, p->header, p->header_bytes);
        at += p->header_bytes;
        for (size_t k = 0; k < p->n_tensors; k++) {
            tensors[first] = p->tensors[k];
            tensors[first++].part = i;
        }
        files[i] = p->parts[0]; // with its descriptor and path
        p->n_parts = 0;
        if (i > 0) gguf_close(p);
        parts[i] = NULL;
    }
    free(g->parts);
    free(g->header);
    free(g->tensors);
    free(g->tensor_idx);
    g->parts = files;
    g->n_parts = n_parts;
    g->header = header;
    g->header_bytes = header_bytes;
    g->tensors = tensors;
    g->tensor_idx = idx;
    g->n_tensors = n_tensors;
    parts[0] = g;
    return INFERD_OK;
}

inferd_status gguf_join_parts(gguf **g, inferd_err *err) {
    split_keys named;
    inferd_status s = read_keys(*g, &named, err);
    if (s != INFERD_OK || named.n_parts == 1) return s;
    s = check_name((*g)->parts, named.no, named.n_parts, err);
    if (s != INFERD_OK) return s;
    gguf **parts = calloc(named.n_parts, sizeof(*parts));
    if (parts == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %u parts", named.n_parts);
    parts[named.no] = *g;
    *g = NULL;
    s = open_others(parts, &named, err);
    if (s == INFERD_OK) s = check_sums(parts, named.n_parts, err);
    if (s == INFERD_OK) s = join(parts, named.n_parts, err);
    if (s == INFERD_OK) {
        *g = parts[0];
        parts[0] = NULL;
        s = gguf_index_tensors(*g, err);
        if (s != INFERD_OK) inferd_context(err, "%s", gguf_label(*g));
    }
    for (uint32_t i = 0; i < named.n_parts; i++) gguf_close(parts[i]);
    free(parts);
    return s;
}
