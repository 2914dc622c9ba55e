/* packed.c - see packed.h.  A file is written under another name first, so one with the right name
 * is complete. */
#include "packed.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUM_FACTOR 0x9fb21c651e98df25u
static const char magic[8] = {'I', 'N', 'F', 'P', 'A', 'C', 'K', '\n'};

/* ---- the checksum ---- */

static uint64_t rotated_product(uint64_t x) {
    x *= SUM_FACTOR;
    return x << 29 | x >> 35;
}

/* With the next two words. */
static uint64_t mix(uint64_t lane, const unsigned char *at) {
    uint64_t first, second;
    memcpy(&first, at, sizeof first);
    memcpy(&second, at + sizeof first, sizeof second);
    return rotated_product(lane ^ first) + second;
}

void packed_sum_init(packed_sum *s) {
    *s = (packed_sum){{1, 2, 3, 4, 5, 6, 7, 8}, 0};
}

void packed_sum_add(packed_sum *s, const void *p, size_t n) {
    const unsigned char *at = p;
    packed_sum x = *s;
    INFERD_CHECK(n % PACKED_SUM_BYTES == 0);
    for (size_t i = 0; i < n; i += PACKED_SUM_BYTES, at += PACKED_SUM_BYTES) {
        x.lanes[0] = mix(x.lanes[0], at); // written out: then the lanes stay in registers
        x.lanes[1] = mix(x.lanes[1], at + 16);
        x.lanes[2] = mix(x.lanes[2], at + 32);
        x.lanes[3] = mix(x.lanes[3], at + 48);
        x.lanes[4] = mix(x.lanes[4], at + 64);
        x.lanes[5] = mix(x.lanes[5], at + 80);
        x.lanes[6] = mix(x.lanes[6], at + 96);
        x.lanes[7] = mix(x.lanes[7], at + 112);
    }
    x.n_bytes += n;
    *s = x;
}

uint64_t packed_sum_end(const packed_sum *s) {
    uint64_t sum = rotated_product(s->n_bytes);
    for (int i = 0; i < PACKED_LANES; i++) sum = rotated_product(sum ^ s->lanes[i]);
    return sum;
}

uint64_t packed_sum_of(const void *p, size_t n) {
    packed_sum s;
    unsigned char last[PACKED_SUM_BYTES] = {0};
    size_t whole = n / sizeof last * sizeof last;
    packed_sum_init(&s);
    packed_sum_add(&s, p, whole); // then zeros behind the rest
    if (n > whole) memcpy(last, (const unsigned char *)p + whole, n - whole);
    packed_sum_add(&s, last, sizeof last);
    s.n_bytes = n;
    return packed_sum_end(&s);
}

/* ---- headers ---- */

static uint64_t plan_sum(const weight_plan *plan) {
    packed_sum s;
    packed_sum_init(&s);
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        uint64_t words[PACKED_SUM_BYTES / 8] = {e->offset,
                                                e->unit,
                                                e->rows,
                                                e->cols,
                                                e->tensor->type,
                                                e->matrix != NULL,
                                                weight_entry_file_offset(e),
                                                e->tensor->n_bytes,
                                                e->tensor->part};
        packed_sum_add(&s, words, sizeof words);
    }
    return packed_sum_end(&s);
}

static uint32_t count_chunks(const weight_plan *plan) {
    return (uint32_t)((plan->n_bytes + PACKED_CHUNK_BYTES - 1) / PACKED_CHUNK_BYTES);
}

/* All but the sum. */
static packed_header describe(const model *m, const backend *be, const weight_plan *plan) {
    gguf_identity id = gguf_identify(m->file);
    packed_header h;
    memset(&h, 0, sizeof h); // padding too
    memcpy(h.magic, magic, sizeof magic);
    h.version = PACKED_VERSION;
    h.n_chunks = count_chunks(plan);
    snprintf(h.layout, sizeof h.layout, "%s", be_weight_layout(be));
    h.window_bytes = plan->n_bytes;
    h.plan_sum = plan_sum(plan);
    h.source_bytes = id.n_bytes;
    h.source_mtime_ns = id.mtime_ns;
    h.source_header_sum = packed_sum_of(id.header.p, id.header.n);
    return h;
}

static uint64_t header_sum(const packed_header *h, const uint64_t *sums) {
    packed_header plain = *h;
    plain.sum = 0;
    return packed_sum_of(&plain, sizeof plain) ^ packed_sum_of(sums, h->n_chunks * sizeof *sums);
}

static uint64_t aligned(uint64_t n_bytes) {
    return (n_bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
}
static uint64_t data_at(const weight_plan *plan) {
    return aligned(sizeof(packed_header) + count_chunks(plan) * sizeof(uint64_t));
}
static uint64_t file_bytes(const weight_plan *plan) {
    return data_at(plan) + aligned(plan->n_bytes);
}

char *packed_path(const model *m, const backend *be) {
    const char *of_model = gguf_path(m->file); // the same for all parts of a split model
    size_t n = strlen(of_model) + strlen(be_weight_layout(be)) + sizeof ".inferd-";
    char *path = malloc(n);
    if (path != NULL) snprintf(path, n, "%s.inferd-%s", of_model, be_weight_layout(be));
    return path;
}

/* ---- reading ---- */

/* EINTR and short reads are completed. */
static inferd_status read_all(const packed *p, int fd, uint64_t at, void *out, size_t n,
                              inferd_err *err) {
    unsigned char *to = out;
    while (n > 0) {
        ssize_t got = pread(fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return inferd_fail(err, INFERD_EIO, "%s: %s", p->path, strerror(errno));
        if (got == 0)
            return inferd_fail(err, INFERD_EIO, "%s ends at byte %llu", p->path,
                               (unsigned long long)at);
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return INFERD_OK;
}

/* The error names the first difference. */
static inferd_status compare(const packed *p, const packed_header *got, const packed_header *now,
                             inferd_err *err) {
    const struct {
        const char *what;
        uint64_t got, now;
    } all[] = {
        {"version", got->version, now->version},
        {"number of chunks", got->n_chunks, now->n_chunks},
        {"size of the window", got->window_bytes, now->window_bytes},
        {"size of the model", got->source_bytes, now->source_bytes},
        {"time of the model", got->source_mtime_ns, now->source_mtime_ns},
        {"header of the model", got->source_header_sum, now->source_header_sum},
        {"plan of the window", got->plan_sum, now->plan_sum},
    };
    if (memcmp(got->magic, now->magic, sizeof now->magic) != 0)
        return inferd_fail(err, INFERD_EFORMAT, "%s is no packed model", p->path);
    if (memcmp(got->layout, now->layout, sizeof now->layout) != 0)
        return inferd_fail(err, INFERD_EFORMAT, "%s is for another device than %s", p->path,
                           now->layout);
    for (size_t i = 0; i < INFERD_COUNT(all); i++)
        if (all[i].got != all[i].now)
            return inferd_fail(err, INFERD_EFORMAT, "%s: the %s is %llu, expected %llu", p->path,
                               all[i].what, (unsigned long long)all[i].got,
                               (unsigned long long)all[i].now);
    return INFERD_OK;
}

static inferd_status read_header(packed *p, const packed_header *now, const weight_plan *plan,
                                 inferd_err *err) {
    struct stat info;
    packed_header h;
    if (fstat(p->fd, &info) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: %s", p->path, strerror(errno));
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != file_bytes(plan))
        return inferd_fail(err, INFERD_EFORMAT, "%s has %lld bytes, expected %llu", p->path,
                           (long long)info.st_size, (unsigned long long)file_bytes(plan));
    inferd_status st = read_all(p, p->fd, 0, &h, sizeof h, err);
    if (st == INFERD_OK) st = compare(p, &h, now, err);
    if (st != INFERD_OK) return st;
    p->n_chunks = h.n_chunks;
    p->sums = malloc(size_max(h.n_chunks, 1) * sizeof *p->sums);
    if (p->sums == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "%s: no memory for %u sums", p->path, h.n_chunks);
    st = read_all(p, p->fd, sizeof h, p->sums, h.n_chunks * sizeof *p->sums, err);
    if (st == INFERD_OK && header_sum(&h, p->sums) != h.sum)
        st = inferd_fail(err, INFERD_EFORMAT, "%s: the checksum of its header is wrong", p->path);
    return st;
}

inferd_status packed_open(const model *m, const backend *be, const weight_plan *plan, packed *out,
                          inferd_err *err) {
    *out = PACKED_NONE;
    out->path = packed_path(m, be);
    out->data_at = data_at(plan);
    out->window_bytes = plan->n_bytes;
    if (out->path == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
    out->fd = open(out->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (out->fd < 0) {
        inferd_status why = errno == ENOENT ? INFERD_ENOTFOUND : INFERD_EIO;
        inferd_fail(err, why, "%s: %s", out->path, strerror(errno));
        packed_close(out);
        return why;
    }
    packed_header now = describe(m, be, plan);
    inferd_status st = read_header(out, &now, plan, err);
    if (st != INFERD_OK) {
        packed_close(out);
        return st;
    }
    int direct = open(out->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    struct stat a, b;
    if (direct >= 0 && fstat(direct, &a) == 0 && fstat(out->fd, &b) == 0 && a.st_ino == b.st_ino &&
        a.st_dev == b.st_dev)
        out->direct_fd = direct;
    else if (direct >= 0)
        close(direct);
    return INFERD_OK;
}

void packed_close(packed *p) {
    if (p->fd >= 0) close(p->fd);
    if (p->direct_fd >= 0) close(p->direct_fd);
    free(p->path);
    free(p->sums);
    *p = PACKED_NONE;
}

inferd_status packed_read(packed *p, uint64_t at, void *out, size_t n, inferd_err *err) {
    INFERD_CHECK(at % PACKED_READ_ALIGN == 0 && n % PACKED_READ_ALIGN == 0 &&
                 (uintptr_t)out % PACKED_READ_ALIGN == 0);
    return read_all(p, p->direct_fd >= 0 ? p->direct_fd : p->fd, p->data_at + at, out, n, err);
}

size_t packed_chunk_end(const packed *p, uint32_t i) {
    return size_min((size_t)(i + 1) * PACKED_CHUNK_BYTES, p->window_bytes);
}

inferd_status packed_check(const packed *p, uint32_t i, const packed_sum *sum, inferd_err *err) {
    if (packed_sum_end(sum) == p->sums[i]) return INFERD_OK;
    return inferd_fail(err, INFERD_EFORMAT, "%s: chunk %u of %u has a wrong checksum", p->path, i,
                       p->n_chunks);
}

/* ---- writing ---- */

static inferd_status write_all(int fd, const char *path, const void *p, size_t n, uint64_t at,
                               inferd_err *err) {
    const unsigned char *from = p;
    while (n > 0) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
        from += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return INFERD_OK;
}

/* Bytes between tensors are unused; zero them, so that a file holds nothing else. */
static void clear_gaps(const backend *be, const weight_plan *plan, unsigned char *window) {
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        size_t n = e->matrix != NULL ? be_weight_bytes(be, e->tensor->type, e->rows, e->cols)
                                     : e->cols * sizeof(float);
        size_t next = i + 1 < plan->n ? plan->entries[i + 1].offset : plan->n_bytes;
        memset(window + e->offset + n, 0, next - e->offset - n);
    }
}

static inferd_status write_file(int fd, const char *path, const packed_header *about,
                                const weight_plan *plan, const unsigned char *window,
                                inferd_err *err) {
    packed_header h = *about;
    uint64_t *sums = calloc(size_max(h.n_chunks, 1), sizeof *sums);
    if (sums == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "%s: no memory for %u sums", path, h.n_chunks);
    for (uint32_t i = 0; i < h.n_chunks; i++) {
        packed_sum s;
        size_t at = (size_t)i * PACKED_CHUNK_BYTES;
        packed_sum_init(&s);
        packed_sum_add(&s, window + at, size_min(PACKED_CHUNK_BYTES, plan->n_bytes - at));
        sums[i] = packed_sum_end(&s);
    }
    h.sum = header_sum(&h, sums);
    inferd_status st;
    if (ftruncate(fd, (off_t)file_bytes(plan)) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    else
        st = write_all(fd, path, &h, sizeof h, 0, err);
    if (st == INFERD_OK) st = write_all(fd, path, sums, h.n_chunks * sizeof *sums, sizeof h, err);
    if (st == INFERD_OK) st = write_all(fd, path, window, plan->n_bytes, data_at(plan), err);
    if (st == INFERD_OK && fsync(fd) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    free(sums);
    return st;
}

static inferd_status write_partial(const packed_header *h, const weight_plan *plan,
                                   const unsigned char *window, const char *path, inferd_err *err) {
    size_t n = strlen(path) + sizeof ".partial";
    char *partial = malloc(n);
    if (partial == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
    snprintf(partial, n, "%s.partial", path);
    inferd_status st = INFERD_OK;
    int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) {
        st = inferd_fail(err, INFERD_EIO, "%s: %s", partial, strerror(errno));
    } else {
        st = write_file(fd, partial, h, plan, window, err);
        close(fd);
        if (st == INFERD_OK && rename(partial, path) != 0)
            st = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
        if (st != INFERD_OK) unlink(partial);
    }
    free(partial);
    return st;
}

inferd_status packed_write(const model *m, const backend *be, const weight_plan *plan,
                           unsigned char *window, const char *path, inferd_err *err) {
    packed_header h = describe(m, be, plan);
    char *usual = path == NULL ? packed_path(m, be) : NULL;
    if (path == NULL) path = usual;
    if (path == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
    clear_gaps(be, plan, window);
    inferd_status st = write_partial(&h, plan, window, path, err);
    free(usual);
    return st;
}
