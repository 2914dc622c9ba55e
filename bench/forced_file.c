/* forced_file.c - reference files; see forced.h.
 *
 *     "inferdfr"  version  bytes after this line  checksum of them
 *     model  made_by  identity  n_vocab n_prompt n_decode n_rows  TOP SAMPLES
 *     prompt  contexts  next  positions  decode rows  prompt rows
 *
 * Numbers have 32 bits (version, counts, ids, floats) or 64 (bytes, checksum, identity), in the
 * machine's byte order; texts are FORCED_NAME_BYTES long, padded with zeros.  A row is stored as in
 * memory: the struct has no padding. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dummy.h"
#include "forced.h"
#include "inferd/buf.h"

static const char magic[8] = {'i', 'n', 'f', 'e', 'r', 'd', 'f', 'r'};
enum { VERSION = 1, FILE_BYTES_MAX = 8 << 20 };

typedef struct opening {
    char magic[8];
    uint32_t version, unused;
    uint64_t n_bytes, checksum;
} opening;

_Static_assert(sizeof(opening) == 32, "no holes");
_Static_assert(sizeof(forced_row) == 4 + 8 * (FORCED_TOP + FORCED_SAMPLES), "no holes");

/* ---- identity ---- */

static uint64_t hash_text(uint64_t h, const char *text) {
    return hash_bytes(h, text, strlen(text));
}

/* Hashes a few rows of each type: a different method of making up weights is a different model. */
static uint64_t identity_of_dummy(const char *path) {
    static const dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q8_0,
                                  DTYPE_Q4_0, DTYPE_Q4_1,   DTYPE_Q5_0,   DTYPE_Q5_1,
                                  DTYPE_Q4_K, DTYPE_Q5_K,   DTYPE_Q6_K,   DTYPE_Q2_K,
                                  DTYPE_Q3_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    enum { COLS = 512, ROWS = 3 };
    static unsigned char rows[ROWS * COLS * 4];
    uint64_t h = hash_text(HASH_BEGIN, path);
    for (size_t i = 0; i < INFERD_COUNT(types); i++) {
        dtype_info about = dtype_about((uint32_t)types[i]);
        size_t n = (size_t)ROWS * COLS / about.block_elems * about.block_bytes;
        dummy_file_rows(types[i], COLS, dummy_seed("blk.0.attn_q.weight", 1), 0.02f, 5, ROWS, rows);
        h = hash_bytes(h, rows, n);
    }
    return h;
}

static inferd_status identity_of_file(const char *path, uint64_t *out, inferd_err *err) {
    enum { PIECE = 1 << 20 };
    static unsigned char piece[PIECE];
    FILE *f = fopen(path, "rbe");
    if (f == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    uint64_t h = HASH_BEGIN;
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, f)) > 0) h = hash_bytes(h, piece, n);
    bool failed = ferror(f) != 0;
    fclose(f);
    *out = h;
    if (failed) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    return INFERD_OK;
}

inferd_status forced_identity(const char *path, uint64_t *out, inferd_err *err) {
    if (!model_path_is_dummy(path)) return identity_of_file(path, out, err);
    *out = identity_of_dummy(path);
    return INFERD_OK;
}

/* ---- saving ---- */

static void add_u32(buf *b, uint32_t v) {
    buf_add(b, &v, sizeof v);
}

static void add_body(buf *b, const forced_reference *ref) {
    buf_add(b, ref->model, sizeof ref->model);
    buf_add(b, ref->made_by, sizeof ref->made_by);
    buf_add(b, &ref->identity, sizeof ref->identity);
    add_u32(b, ref->n_vocab);
    add_u32(b, ref->n_prompt);
    add_u32(b, ref->n_decode);
    add_u32(b, ref->n_rows);
    add_u32(b, FORCED_TOP);
    add_u32(b, FORCED_SAMPLES);
    buf_add(b, ref->prompt, ref->n_prompt * sizeof *ref->prompt);
    buf_add(b, ref->contexts, ref->n_decode * sizeof *ref->contexts);
    buf_add(b, ref->next, ref->n_decode * sizeof *ref->next);
    buf_add(b, ref->positions, ref->n_rows * sizeof *ref->positions);
    buf_add(b, ref->decode, ref->n_decode * sizeof *ref->decode);
    buf_add(b, ref->rows, ref->n_rows * sizeof *ref->rows);
}

inferd_status forced_save(const forced_reference *ref, const char *path, inferd_err *err) {
    buf body = {0};
    add_body(&body, ref);
    if (body.failed) {
        buf_deinit(&body);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a reference");
    }
    opening o = {
        .version = VERSION, .n_bytes = body.n, .checksum = hash_bytes(HASH_BEGIN, body.p, body.n)};
    memcpy(o.magic, magic, sizeof magic);
    FILE *f = fopen(path, "wbe");
    bool ok =
        f != NULL && fwrite(&o, sizeof o, 1, f) == 1 && fwrite(body.p, 1, body.n, f) == body.n;
    if (f != NULL && fclose(f) != 0) ok = false;
    buf_deinit(&body);
    return ok ? INFERD_OK : inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
}

/* ---- loading ---- */

typedef struct reader {
    const unsigned char *p;
    size_t left;
    bool short_of;
} reader;

static void get(reader *r, void *out, size_t n) {
    if (n > r->left) r->short_of = true;
    if (r->short_of) return;
    memcpy(out, r->p, n);
    r->p += n;
    r->left -= n;
}
static uint32_t get_u32(reader *r) {
    uint32_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

static bool ids_fit(const forced_reference *ref) {
    bool ok = true;
    for (uint32_t i = 0; i < ref->n_prompt; i++)
        ok = ok && ref->prompt[i] >= 0 && (uint32_t)ref->prompt[i] < ref->n_vocab;
    for (uint32_t i = 0; i < ref->n_decode; i++)
        ok = ok && ref->next[i] >= 0 && (uint32_t)ref->next[i] < ref->n_vocab &&
             ref->contexts[i] < ref->n_prompt;
    for (uint32_t i = 0; i < ref->n_rows; i++)
        ok = ok && ref->positions[i] < ref->n_prompt &&
             (i == 0 || ref->positions[i - 1] < ref->positions[i]);
    for (uint32_t i = 0; i < ref->n_decode + ref->n_rows; i++) {
        const forced_row *row = i < ref->n_decode ? &ref->decode[i] : &ref->rows[i - ref->n_decode];
        for (uint32_t j = 0; j < FORCED_TOP; j++) ok = ok && row->top[j].id < ref->n_vocab;
        for (uint32_t j = 0; j < FORCED_SAMPLES; j++) ok = ok && row->samples[j].id < ref->n_vocab;
    }
    return ok;
}

static inferd_status read_body(reader *r, forced_reference *ref, inferd_err *err) {
    get(r, ref->model, sizeof ref->model);
    get(r, ref->made_by, sizeof ref->made_by);
    get(r, &ref->identity, sizeof ref->identity);
    ref->n_vocab = get_u32(r);
    ref->n_prompt = get_u32(r);
    ref->n_decode = get_u32(r);
    ref->n_rows = get_u32(r);
    uint32_t top = get_u32(r), samples = get_u32(r);
    if (r->short_of || top != FORCED_TOP || samples != FORCED_SAMPLES ||
        ref->n_vocab < FORCED_SAMPLES || ref->n_prompt == 0 || ref->n_prompt > FORCED_PROMPT_MAX ||
        ref->n_decode == 0 || ref->n_decode > FORCED_DECODE_MAX || ref->n_rows > FORCED_ROWS_MAX)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%u tokens of prompt, %u and %u rows of %u best and %u others: not what "
                           "this program compares",
                           ref->n_prompt, ref->n_decode, ref->n_rows, top, samples);
    get(r, ref->prompt, ref->n_prompt * sizeof *ref->prompt);
    get(r, ref->contexts, ref->n_decode * sizeof *ref->contexts);
    get(r, ref->next, ref->n_decode * sizeof *ref->next);
    get(r, ref->positions, ref->n_rows * sizeof *ref->positions);
    get(r, ref->decode, ref->n_decode * sizeof *ref->decode);
    get(r, ref->rows, ref->n_rows * sizeof *ref->rows);
    if (r->short_of || r->left > 0 || ref->model[FORCED_NAME_BYTES - 1] != 0 ||
        ref->made_by[FORCED_NAME_BYTES - 1] != 0 || !ids_fit(ref))
        return inferd_fail(err, INFERD_EFORMAT, "its parts do not fit together");
    return INFERD_OK;
}

static inferd_status read_whole(const unsigned char *p, size_t n, forced_reference *ref,
                                inferd_err *err) {
    opening o;
    if (n < sizeof o || memcmp(p, magic, sizeof magic) != 0)
        return inferd_fail(err, INFERD_EFORMAT, "no reference of bench_forced");
    memcpy(&o, p, sizeof o);
    if (o.version != VERSION)
        return inferd_fail(err, INFERD_EFORMAT, "version %u, expected %d: make it again", o.version,
                           VERSION);
    if (o.n_bytes != n - sizeof o)
        return inferd_fail(err, INFERD_EFORMAT, "%zu bytes, expected %llu: it was cut off", n,
                           (unsigned long long)o.n_bytes + sizeof o);
    if (hash_bytes(HASH_BEGIN, p + sizeof o, n - sizeof o) != o.checksum)
        return inferd_fail(err, INFERD_EFORMAT, "its checksum is wrong: it is damaged");
    reader r = {p + sizeof o, n - sizeof o, false};
    return read_body(&r, ref, err);
}

inferd_status forced_load(const char *path, forced_reference *out, inferd_err *err) {
    memset(out, 0, sizeof *out);
    unsigned char *p = malloc(FILE_BYTES_MAX);
    if (p == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %s", path);
    FILE *f = fopen(path, "rbe");
    inferd_status st = INFERD_OK;
    size_t n = f != NULL ? fread(p, 1, FILE_BYTES_MAX, f) : 0;
    if (f == NULL || ferror(f) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    else
        st = read_whole(p, n, out, err);
    if (st == INFERD_EFORMAT) inferd_context(err, "%s", path);
    if (f != NULL) fclose(f);
    free(p);
    return st;
}
