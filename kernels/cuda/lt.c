/* lt.c - the book of cuBLASLt's algorithms, and its file.
 *
 * The book is a hash table, open addressing, at most half full.  An entry is a measured choice (us
 * > 0), a guess for a bucket (us == 0), or a guess for one exact number of rows, if the bucket's
 * choice was refused; or it says that the library has no algorithm for that number of rows.
 *
 * The file is text, one line per choice:
 *
 *     inferd tune 1
 *     device cc 9.0 sms 132 lt 130200 NVIDIA H200
 *     m 128 n 4096 k 4096 in bf16 out f32 add 1 ws 33554432 us 31.250 algo <8 words> sum <crc>
 *
 * The words are hexadecimal.  The sum covers its line and the device line, because a wrong word
 * would be passed to the library as an algorithm.  The driver's version is not part of the key: the
 * library alone defines the meaning of the words.  A file is written under another name and
 * renamed, so a reader sees a whole file.
 *
 * Thread: engine. */
#include "cuda/lt.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cuda/parts.h"

const uint32_t lt_buckets[] = {1,  2,   4,   8,   16,  24,  32,   48,   64,
                               96, 128, 192, 256, 384, 512, 1024, 2048, 4096};
const uint32_t lt_n_buckets = INFERD_COUNT(lt_buckets);

enum { REPEATS = 3, LINE_MAX_BYTES = 512, DEVICE_BYTES = CU_NAME_BYTES + 80, PATH_BYTES = 4096 };
static const char first_line[] = "inferd tune 1";
static const char *const type_names[] = {[LT_BF16] = "bf16", [LT_F16] = "f16", [LT_F32] = "f32"};

typedef struct entry {
    uint32_t m, n, k; // m 0: free
    uint8_t in, out;  // lt_type
    bool accumulate;
    bool exact; // for this m alone, not for a bucket
    bool none;  // no algorithm for these strides with a workspace of algo.workspace_bytes
    uint32_t x_stride, w_stride, out_stride;
    double us; // 0: guessed
    lt_algo algo;
} entry;

struct lt_book {
    const cu_api *api;
    entry *entries; // [capacity] a power of two
    uint32_t capacity, n_entries;
    void *workspace;
    size_t workspace_bytes;
    char *path;
    char device[DEVICE_BYTES]; // the device line
    bool dirty;                // something measured is not in the file
    lt_book_stats stats;
};

uint32_t lt_bucket_idx(uint32_t m) {
    uint32_t i = 0;
    while (i + 1 < lt_n_buckets && lt_buckets[i] < m) i++;
    return i;
}

/* ---- the table ---- */

static entry key_of(const lt_shape *s, bool exact) {
    return (entry){.m = exact ? s->m : lt_buckets[lt_bucket_idx(s->m)],
                   .n = s->n,
                   .k = s->k,
                   .in = (uint8_t)s->in,
                   .out = (uint8_t)s->out,
                   .accumulate = s->accumulate,
                   .exact = exact};
}

static bool same_key(const entry *a, const entry *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->in == b->in && a->out == b->out &&
           a->accumulate == b->accumulate && a->exact == b->exact;
}

static uint32_t hash_of(const entry *e) {
    uint64_t h = e->m;
    h = h * 0x9e3779b97f4a7c15u ^ e->n;
    h = h * 0x9e3779b97f4a7c15u ^ e->k;
    h = h * 0x9e3779b97f4a7c15u ^ ((uint64_t)e->in << 3 | (uint64_t)e->out << 1 | e->accumulate);
    h = h * 0x9e3779b97f4a7c15u ^ e->exact;
    h *= 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

/* The entry of that key, or the free entry where it belongs. */
static entry *place_of(entry *entries, uint32_t capacity, const entry *key) {
    uint32_t i = hash_of(key) & (capacity - 1);
    while (entries[i].m != 0 && !same_key(&entries[i], key)) i = (i + 1) & (capacity - 1);
    return &entries[i];
}

static entry *find(const lt_book *b, const entry *key) {
    if (b->capacity == 0) return NULL;
    entry *e = place_of(b->entries, b->capacity, key);
    return e->m != 0 ? e : NULL;
}

static bool grow(lt_book *b) {
    uint32_t capacity = b->capacity == 0 ? 64 : b->capacity * 2;
    entry *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL) return false;
    for (uint32_t i = 0; i < b->capacity; i++)
        if (b->entries[i].m != 0) *place_of(entries, capacity, &b->entries[i]) = b->entries[i];
    free(b->entries);
    b->entries = entries;
    b->capacity = capacity;
    return true;
}

/* False: the book is full, or there is no memory. */
static bool note(lt_book *b, const entry *e) {
    entry *old = find(b, e);
    if (old != NULL) {
        *old = *e;
        return true;
    }
    if (b->n_entries == LT_ENTRIES_MAX) return false;
    if ((b->n_entries + 1) * 2 > b->capacity && !grow(b)) return false;
    *place_of(b->entries, b->capacity, e) = *e;
    b->n_entries++;
    return true;
}

/* ---- the file ---- */

static uint32_t fnv(uint32_t h, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)p[i]) * 16777619u;
    return h;
}

static uint32_t sum_of(const char *device, const char *line, size_t n) {
    return fnv(fnv(2166136261u, device, strlen(device)), line, n);
}

static bool type_of(const char *name, uint8_t *out) {
    for (uint8_t i = 0; i < INFERD_COUNT(type_names); i++)
        if (strcmp(name, type_names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

/* Cut the sum off the line; false: the line does not belong to `device`. */
static bool check_sum(const char *device, char *line) {
    char *at = strstr(line, " sum "), *end = NULL;
    if (at == NULL) return false;
    unsigned long sum = strtoul(at + 5, &end, 16);
    if (end != at + 5 + 8 || *end != 0 || sum != sum_of(device, line, (size_t)(at - line)))
        return false;
    *at = 0;
    return true;
}

static bool read_entry(const char *line, entry *e) {
    char in[8], out[8];
    unsigned add = 0;
    int used = 0;
    uint64_t *a = e->algo.opaque;
    *e = (entry){0};
    int n = sscanf(line,
                   "m %" SCNu32 " n %" SCNu32 " k %" SCNu32
                   " in %7s out %7s add %u ws %zu us %lf algo %" SCNx64 " %" SCNx64 " %" SCNx64
                   " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 "%n",
                   &e->m, &e->n, &e->k, in, out, &add, &e->algo.workspace_bytes, &e->us, &a[0],
                   &a[1], &a[2], &a[3], &a[4], &a[5], &a[6], &a[7], &used);
    if (n != 16 || line[used] != 0 || add > 1) return false;
    e->accumulate = add == 1;
    if (!type_of(in, &e->in) || !type_of(out, &e->out)) return false;
    if (e->in == LT_F32 || (e->out != LT_F32 && e->out != e->in)) return false;
    return e->n > 0 && e->k > 0 && lt_buckets[lt_bucket_idx(e->m)] == e->m && isfinite(e->us) &&
           e->us > 0;
}

static void print_entry(FILE *f, const char *device, const entry *e) {
    char line[LINE_MAX_BYTES];
    const uint64_t *a = e->algo.opaque;
    int n =
        snprintf(line, sizeof line,
                 "m %u n %u k %u in %s out %s add %d ws %zu us %.3f algo %" PRIx64 " %" PRIx64
                 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64 " %" PRIx64,
                 e->m, e->n, e->k, type_names[e->in], type_names[e->out], e->accumulate,
                 e->algo.workspace_bytes, e->us, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    INFERD_CHECK(n > 0 && (size_t)n < sizeof line);
    fprintf(f, "%s sum %08x\n", line, sum_of(device, line, (size_t)n));
}

/* Whole file, NUL-terminated; NULL: not there, too long, or no memory. */
static char *read_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "re");
    if (f == NULL) return NULL;
    char *text = malloc(LT_FILE_BYTES_MAX + 1);
    *n = text == NULL ? 0 : fread(text, 1, LT_FILE_BYTES_MAX + 1, f);
    bool good = text != NULL && !ferror(f) && *n <= LT_FILE_BYTES_MAX;
    fclose(f);
    if (!good) {
        free(text);
        return NULL;
    }
    text[*n] = 0;
    return text;
}

/* Walks the lines of `text`: f gets each line below a device line, with that device line.
 * Returns the number of lines without a device line. */
static uint32_t each_line(char *text, size_t n,
                          void (*f)(void *ctx, const char *device, char *line), void *ctx) {
    const char *device = NULL;
    char *end = text + n;
    uint32_t n_stray = 0, line_idx = 0;
    for (char *line = text; line < end; line_idx++) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        if (next == NULL) next = end; // cut off: its sum is missing or wrong
        *next = 0;
        size_t len = strlen(line);
        if (len != (size_t)(next - line)) // a zero byte
            n_stray++;
        else if (line_idx == 0) {
            if (strcmp(line, first_line) != 0) return 1; // another file, or another version
        } else if (strncmp(line, "device ", 7) == 0 && len < DEVICE_BYTES)
            device = line;
        else if (device != NULL && len < LINE_MAX_BYTES)
            f(ctx, device, line);
        else
            n_stray++;
        line = next + 1;
    }
    return n_stray;
}

static void take_line(void *ctx, const char *device, char *line) {
    lt_book *b = ctx;
    entry e;
    bool mine = strcmp(device, b->device) == 0;
    if (!check_sum(device, line) || !read_entry(line, &e))
        b->stats.n_ignored++;
    else if (mine && note(b, &e))
        b->stats.n_read++;
}

static void read_book(lt_book *b) {
    size_t n;
    char *text = read_file(b->path, &n);
    if (text == NULL) {
        if (access(b->path, F_OK) == 0) b->stats.n_ignored = 1; // it exists, but is not readable
        return;
    }
    b->stats.n_ignored += each_line(text, n, take_line, b);
    free(text);
}

typedef struct keep {
    const lt_book *b;
    FILE *f;
    const char *device; // the device line that was written last
} keep;

/* Copy lines of other devices unchanged. */
static void keep_line(void *ctx, const char *device, char *line) {
    keep *k = ctx;
    entry e;
    char copy[LINE_MAX_BYTES];
    if (strcmp(device, k->b->device) == 0) return;
    snprintf(copy, sizeof copy, "%s", line);
    if (!check_sum(device, copy) || !read_entry(copy, &e)) return;
    if (device != k->device) fprintf(k->f, "%s\n", device);
    k->device = device;
    fprintf(k->f, "%s\n", line);
}

static bool write_book(const lt_book *b, FILE *f) {
    fprintf(f, "%s\n", first_line);
    size_t n;
    char *text = read_file(b->path, &n);
    keep k = {.b = b, .f = f};
    if (text != NULL) each_line(text, n, keep_line, &k);
    free(text);
    fprintf(f, "%s\n", b->device);
    for (uint32_t i = 0; i < b->capacity; i++)
        if (b->entries[i].m != 0 && b->entries[i].us > 0) print_entry(f, b->device, &b->entries[i]);
    return fflush(f) == 0 && fsync(fileno(f)) == 0 && !ferror(f);
}

inferd_status lt_book_save(lt_book *b, inferd_err *err) {
    if (b->path == NULL || !b->dirty) return INFERD_OK;
    char temporary[PATH_BYTES];
    int n = snprintf(temporary, sizeof temporary, "%s.%ld.new", b->path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temporary)
        return inferd_fail(err, INFERD_EINVAL,
                           "the tune file's path has %zu bytes, at most %d are allowed",
                           strlen(b->path), PATH_BYTES - 32);
    FILE *f = fopen(temporary, "we");
    bool good = f != NULL && write_book(b, f);
    int e = errno;
    if (f != NULL && fclose(f) != 0) good = false, e = errno;
    if (good && rename(temporary, b->path) != 0) good = false, e = errno;
    if (!good) {
        if (f != NULL) unlink(temporary);
        return inferd_fail(err, INFERD_EIO, "writing measured choices to %s: %s", b->path,
                           strerror(e));
    }
    b->dirty = false;
    return INFERD_OK;
}

/* ---- opening ---- */

inferd_status lt_book_open(const cu_api *api, const cu_device *d, const char *path, lt_book **out,
                           inferd_err *err) {
    lt_book *b = calloc(1, sizeof *b);
    if (b != NULL && path != NULL) b->path = strdup(path);
    if (b == NULL || (path != NULL && b->path == NULL)) {
        lt_book_close(b);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the choices of cuBLASLt");
    }
    b->api = api;
    snprintf(b->device, sizeof b->device, "device cc %u.%u sms %u lt %" PRIu64 " %s", d->cc_major,
             d->cc_minor, d->n_sms, api->lt_version(), d->name);
    inferd_blank_controls(b->device);
    if (b->path != NULL) read_book(b);
    *out = b;
    return INFERD_OK;
}

void lt_book_close(lt_book *b) {
    if (b == NULL) return;
    free(b->entries);
    free(b->path);
    free(b);
}

void lt_book_set_workspace(lt_book *b, void *p, size_t n) {
    b->workspace = p;
    b->workspace_bytes = p == NULL ? 0 : n;
}

void lt_book_get_stats(const lt_book *b, lt_book_stats *out) {
    *out = b->stats;
}

/* ---- products ---- */

/* The library's results for an algorithm that does not fit the product; nothing was launched. */
static bool is_refusal(cu_result r) {
    return r == CU_EUNSUPPORTED || r == CU_EINVAL || r == CU_EFAILED;
}

static cu_result multiply(lt_book *b, launcher *l, const lt_shape *s, const lt_algo *algo,
                          const void *x, const void *w, void *out) {
    if (algo->workspace_bytes > b->workspace_bytes) return CU_EUNSUPPORTED;
    cu_result r =
        b->api->lt_matmul(s, algo, x, w, out, b->workspace, b->workspace_bytes, l->stream);
    if (r == CU_OK) l->n_launches++;
    return r;
}

/* The book's choice for the shape; NULL: none. */
static entry *choice_of(lt_book *b, const lt_shape *s) {
    entry key = key_of(s, true), *e = find(b, &key);
    if (e != NULL) return e;
    key.m = lt_buckets[lt_bucket_idx(s->m)], key.exact = false;
    e = find(b, &key);
    if (e != NULL && e->us > 0) return e;
    /* Whether it adds to the output makes little difference to the fastest choice. */
    key.accumulate = !key.accumulate;
    entry *other = find(b, &key);
    return other != NULL && other->us > 0 ? other : e;
}

/* Launch one of the library's guesses for `asked` on the true shape, and store it. */
static cu_result multiply_guess(lt_book *b, launcher *l, const lt_shape *s, bool exact,
                                const void *x, const void *w, void *out) {
    lt_algo guesses[LT_CANDIDATES_MAX];
    uint32_t n = 0;
    lt_shape asked = *s;
    entry e = key_of(s, exact);
    asked.m = e.m;
    b->stats.n_guessed++;
    cu_result r = b->api->lt_candidates(&asked, b->workspace_bytes, LT_CANDIDATES_MAX, guesses, &n);
    if (r == CU_OK)
        r = CU_EUNSUPPORTED;
    else
        n = 0;
    for (uint32_t i = 0; i < n && is_refusal(r); i++) {
        r = multiply(b, l, s, &guesses[i], x, w, out);
        if (r != CU_OK) continue;
        e.algo = guesses[i];
        note(b, &e); // if that fails, the guess is made again
    }
    /* Other refusals may be temporary: a capture is open, a launch failed. */
    if (exact && r == CU_EUNSUPPORTED) {
        e.none = true, e.algo.workspace_bytes = b->workspace_bytes;
        e.x_stride = s->x_stride, e.w_stride = s->w_stride, e.out_stride = s->out_stride;
        note(b, &e);
    }
    return r;
}

/* The same product, not one of the same shape with other strides or more workspace. */
static bool was_refused(const lt_book *b, const entry *e, const lt_shape *s) {
    return e->algo.workspace_bytes == b->workspace_bytes && e->x_stride == s->x_stride &&
           e->w_stride == s->w_stride && e->out_stride == s->out_stride;
}

bool lt_book_product(lt_book *b, launcher *l, const lt_shape *s, const void *x, const void *w,
                     void *out) {
    if (l->status != CU_OK) return true;
    entry *e = choice_of(b, s);
    bool none = e != NULL && e->none;
    if (none && was_refused(b, e, s)) return false;
    cu_result r;
    if (e == NULL || none)
        r = multiply_guess(b, l, s, none, x, w, out);
    else
        r = multiply(b, l, s, &e->algo, x, w, out);
    if (is_refusal(r) && !none) {
        b->stats.n_refused++;
        r = multiply_guess(b, l, s, true, x, w, out);
    }
    if (is_refusal(r)) return false;
    if (r != CU_OK) launch_failed(l, r, "cuBLASLt");
    return true;
}

/* ---- measuring ---- */

bool lt_book_is_tuned(const lt_book *b, const lt_shape *s) {
    entry key = key_of(s, false), *e = find(b, &key);
    return e != NULL && e->us > 0;
}

typedef struct clocks {
    cu_event begin, warm, end;
} clocks;

static void clocks_deinit(const cu_api *api, clocks *c) {
    if (c->begin != NULL) api->event_destroy(c->begin);
    if (c->warm != NULL) api->event_destroy(c->warm);
    if (c->end != NULL) api->event_destroy(c->end);
}

static cu_result clocks_init(const cu_api *api, clocks *c) {
    *c = (clocks){0};
    cu_result r = api->event_create(CU_EVENT_TIMED, &c->begin);
    if (r == CU_OK) r = api->event_create(CU_EVENT_TIMED, &c->warm);
    if (r == CU_OK) r = api->event_create(CU_EVENT_TIMED, &c->end);
    if (r != CU_OK) clocks_deinit(api, c);
    return r;
}

/* Run once to load the code, then REPEATS times.  `next_w` is the index of the next weight. */
static cu_result measure(lt_book *b, launcher *l, const clocks *c, const lt_trial *t,
                         const lt_algo *algo, uint32_t *next_w, double *us, uint64_t *used_us) {
    const cu_api *api = b->api;
    uint64_t all = 0, timed = 0;
    cu_result r = api->event_record(c->begin, l->stream);
    for (uint32_t i = 0; r == CU_OK && i <= REPEATS; i++) {
        r = multiply(b, l, &t->shape, algo, t->x, t->w[(*next_w)++ % t->n_w], t->out);
        if (r == CU_OK && i == 0) r = api->event_record(c->warm, l->stream);
    }
    if (r == CU_OK) r = api->event_record(c->end, l->stream);
    if (r == CU_OK) r = api->event_sync(c->end);
    if (r == CU_OK) r = api->event_elapsed_us(c->begin, c->end, &all);
    if (r == CU_OK) r = api->event_elapsed_us(c->warm, c->end, &timed);
    *used_us = all > 0 ? all : 1;
    *us = timed > 0 ? (double)timed / REPEATS : 0.5 / REPEATS; // finer than the clock
    return r;
}

inferd_status lt_book_tune(lt_book *b, launcher *l, const lt_trial *t, uint64_t *budget_us,
                           inferd_err *err) {
    lt_algo candidates[LT_CANDIDATES_MAX];
    uint32_t n = 0, next_w = 0;
    clocks c;
    INFERD_CHECK(t->n_w > 0 && lt_buckets[lt_bucket_idx(t->shape.m)] == t->shape.m);
    cu_result r =
        b->api->lt_candidates(&t->shape, b->workspace_bytes, LT_CANDIDATES_MAX, candidates, &n);
    if (is_refusal(r)) return INFERD_OK; // lt_book_product handles it
    if (r == CU_OK) r = clocks_init(b->api, &c);
    if (r != CU_OK) return cu_fail(b->api, r, err, "timing cuBLASLt");
    entry best = key_of(&t->shape, false);
    for (uint32_t i = 0; i<n && * budget_us> 0; i++) {
        double us = 0;
        uint64_t used = 0;
        r = measure(b, l, &c, t, &candidates[i], &next_w, &us, &used);
        if (is_refusal(r)) {
            r = b->api->stream_sync(l->stream); // for the launches that did run
            if (r == CU_OK) continue;
        }
        if (r != CU_OK) break;
        *budget_us -= used < *budget_us ? used : *budget_us;
        if (best.us > 0 && us >= best.us) continue;
        best.us = us;
        best.algo = candidates[i];
    }
    inferd_status s = r == CU_OK ? INFERD_OK : cu_fail(b->api, r, err, "timing cuBLASLt");
    clocks_deinit(b->api, &c);
    if (s == INFERD_OK && best.us > 0 && note(b, &best)) {
        b->dirty = true;
        b->stats.n_tuned++;
    }
    return s;
}

/* ---- warming ---- */

/* Nothing is stored: there may be no workspace yet. */
static cu_result warm_one(lt_book *b, launcher *l, const lt_shape *s, void *x, void *w, void *out) {
    lt_algo guesses[LT_CANDIDATES_MAX];
    uint32_t n = 0;
    cu_result r = b->api->lt_candidates(s, b->workspace_bytes, LT_CANDIDATES_MAX, guesses, &n);
    if (r == CU_OK)
        r = CU_EUNSUPPORTED;
    else
        n = 0;
    for (uint32_t i = 0; i < n && is_refusal(r); i++) r = multiply(b, l, s, &guesses[i], x, w, out);
    if (!is_refusal(r)) return r;
    parts_degrade(l->parts, PART_LT, b->api->text());
    return CU_OK; // products that it does not take use another path
}

inferd_status lt_book_warm(lt_book *b, launcher *l, lt_type in, inferd_err *err) {
    enum {
        M = 128,
        N = 256,
        K = 256,
        X_BYTES = M * K * 2,
        W_BYTES = N * K * 2,
        OUT_BYTES = M * N * 4
    };
    void *base = NULL;
    cu_result r = b->api->alloc(X_BYTES + W_BYTES + OUT_BYTES, &base);
    if (r == CU_OK) r = b->api->fill(base, 0, X_BYTES + W_BYTES + OUT_BYTES, l->stream);
    for (uint32_t i = 0; i < 2 && r == CU_OK; i++) {
        lt_shape s = {
            .m = M, .n = N, .k = K, .x_stride = K, .w_stride = K, .out_stride = N, .in = in};
        s.out = i == 0 ? in : LT_F32, s.accumulate = i == 1;
        unsigned char *x = base, *w = x + X_BYTES, *out = w + W_BYTES;
        r = warm_one(b, l, &s, x, w, out);
    }
    if (r == CU_OK) r = b->api->stream_sync(l->stream);
    inferd_status status = r == CU_OK ? INFERD_OK : cu_fail(b->api, r, err, "warming cuBLASLt");
    if (base == NULL) return status;
    if (r != CU_OK) b->api->stream_sync(l->stream); // something may still run
    r = b->api->free(base);
    if (status == INFERD_OK && r != CU_OK) status = cu_fail(b->api, r, err, "warming cuBLASLt");
    return status;
}
