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

static uint64_t mix(uint64_t lane, uint64_t word) {
    uint64_t x = (lane ^ word) * SUM_FACTOR;
    return x << 29 | x >> 35;
}

void packed_sum_init(packed_sum *s) {
    *s = (packed_sum){{1, 2, 3, 4}, 0};
}

void packed_sum_add(packed_sum *s, const void *p, size_t n) {
    const unsigned char *at = p;
    uint64_t a = s->lanes[0], b = s->lanes[1], c = s->lanes[2], d = s->lanes[3], word[4];
    INFERD_CHECK(n % sizeof word == 0);
    for (size_t i = 0; i < n; i += sizeof word) {
        memcpy(word, at + i, sizeof word);
        a = mix(a, word[0]);
        b = mix(b, word[1]);
        c = mix(c, word[2]);
        d = mix(d, word[3]);
    }
    *s = (packed_sum){{a, b, c, d}, s->n_bytes + n};
}

uint64_t packed_sum_end(const packed_sum *s) {
    uint64_t sum = mix(0, s->n_bytes);
    for (int i = 0; i < 4; i++) sum = mix(sum, s->lanes[i]);
    return sum;
}

uint64_t packed_sum_of(const void *p, size_t n) {
    packed_sum s;
    unsigned char last[32] = {0};
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
        uint64_t words[8] = {e->offset,
                             e->unit,
                             e->rows,
                             e->cols,
                             e->tensor->type,
                             e->matrix != NULL,
                             e->tensor->file_offset,
                             e->tensor->n_bytes};
        packed_sum_add(&s, words, sizeof words);
    }
    return packed_sum_end(&s);
}

static uint32_t count_units(const weight_plan *plan) {
    uint32_t n = 0;
    for (size_t i = 0; i < plan->n; n++) weights_unit_end(plan, &i);
    return n;
}

/* All but the sum. */
static packed_header describe(const model *m, const backend *be, const weight_plan *plan) {
    gguf_identity id = gguf_identify(m->file);
    packed_header h;
    memset(&h, 0, sizeof h); // padding too
    memcpy(h.magic, magic, sizeof magic);
    h.version = PACKED_VERSION;
    h.n_units = count_units(plan);
    snprintf(h.layout, sizeof h.layout, "%s", be_weight_layout(be));
    h.window_bytes = plan->n_bytes;
    h.plan_sum = plan_sum(plan);
    h.source_bytes = id.n_bytes;
    h.source_mtime_ns = id.mtime_ns;
    h.source_header_sum = packed_sum_of(id.header.p, id.header.n);
    return h;
}

static uint64_t header_sum(const packed_header *h, const packed_unit *units) {
    packed_header plain = *h;
    plain.sum = 0;
    return packed_sum_of(&plain, sizeof plain) ^ packed_sum_of(units, h->n_units * sizeof *units);
}

static uint64_t data_bytes(const weight_plan *plan) {
    return (plan->n_bytes + PACKED_ALIGN - 1) / PACKED_ALIGN * (uint64_t)PACKED_ALIGN;
}

char *packed_path(const model *m, const backend *be) {
    size_t n = strlen(m->path) + strlen(be_weight_layout(be)) + sizeof ".inferd-";
    char *path = malloc(n);
    if (path != NULL) snprintf(path, n, "%s.inferd-%s", m->path, be_weight_layout(be));
    return path;
}

/* ---- reading ---- */

/* EINTR and short reads are completed. */
static inferd_status read_all(const packed *p, uint64_t at, void *out, size_t n, inferd_err *err) {
    unsigned char *to = out;
    while (n > 0) {
        ssize_t got = pread(p->fd, to, n, (off_t)at);
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
        {"number of units", got->n_units, now->n_units},
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

/* Units end where those of the plan do, so reads stay inside the window. */
static bool same_units(const packed *p, const weight_plan *plan) {
    uint32_t n = 0;
    for (size_t i = 0; i < plan->n; n++)
        if (p->units[n].end != weights_unit_end(plan, &i)) return false;
    return true;
}

static inferd_status read_header(packed *p, const packed_header *now, const weight_plan *plan,
                                 inferd_err *err) {
    struct stat info;
    packed_header h;
    if (fstat(p->fd, &info) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: %s", p->path, strerror(errno));
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != PACKED_ALIGN + data_bytes(plan))
        return inferd_fail(err, INFERD_EFORMAT, "%s has %lld bytes, expected %llu", p->path,
                           (long long)info.st_size,
                           (unsigned long long)(PACKED_ALIGN + data_bytes(plan)));
    inferd_status st = read_all(p, 0, &h, sizeof h, err);
    if (st == INFERD_OK) st = compare(p, &h, now, err);
    if (st != INFERD_OK) return st;
    p->n_units = h.n_units;
    p->units = malloc(size_max(h.n_units, 1) * sizeof *p->units);
    if (p->units == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "%s: no memory for %u units", p->path, h.n_units);
    st = read_all(p, sizeof h, p->units, h.n_units * sizeof *p->units, err);
    if (st == INFERD_OK && header_sum(&h, p->units) != h.sum)
        st = inferd_fail(err, INFERD_EFORMAT, "%s: the checksum of its header is wrong", p->path);
    if (st == INFERD_OK && !same_units(p, plan))
        st = inferd_fail(err, INFERD_EFORMAT, "%s: its units are not the model's", p->path);
    return st;
}

inferd_status packed_open(const model *m, const backend *be, const weight_plan *plan, packed *out,
                          inferd_err *err) {
    *out = (packed){.fd = -1, .path = packed_path(m, be)};
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
    int direct = open(out->path, O_RDONLY | O_CLOEXEC | O_DIRECT); // not every file system has it
    struct stat a, b;
    if (direct >= 0 && fstat(direct, &a) == 0 && fstat(out->fd, &b) == 0 && a.st_ino == b.st_ino &&
        a.st_dev == b.st_dev) {
        close(out->fd);
        out->fd = direct;
        out->direct = true;
    } else if (direct >= 0) {
        close(direct);
    }
    return INFERD_OK;
}

void packed_close(packed *p) {
    if (p->fd >= 0) close(p->fd);
    free(p->path);
    free(p->units);
    *p = (packed){.fd = -1};
}

inferd_status packed_read(packed *p, uint64_t at, void *out, size_t n, inferd_err *err) {
    INFERD_CHECK(at % PACKED_READ_ALIGN == 0 && n % PACKED_READ_ALIGN == 0 &&
                 (uintptr_t)out % PACKED_READ_ALIGN == 0);
    return read_all(p, PACKED_ALIGN + at, out, n, err);
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
    packed_unit *units = calloc(size_max(h.n_units, 1), sizeof *units);
    if (units == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "%s: no memory for %u units", path, h.n_units);
    uint64_t begin = 0;
    uint32_t n = 0;
    for (size_t i = 0; i < plan->n; n++) {
        packed_sum s;
        units[n].end = weights_unit_end(plan, &i);
        packed_sum_init(&s);
        packed_sum_add(&s, window + begin, units[n].end - begin);
        units[n].sum = packed_sum_end(&s);
        begin = units[n].end;
    }
    h.sum = header_sum(&h, units);
    inferd_status st;
    if (ftruncate(fd, (off_t)(PACKED_ALIGN + data_bytes(plan))) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    else
        st = write_all(fd, path, &h, sizeof h, 0, err);
    if (st == INFERD_OK) st = write_all(fd, path, units, h.n_units * sizeof *units, sizeof h, err);
    if (st == INFERD_OK) st = write_all(fd, path, window, plan->n_bytes, PACKED_ALIGN, err);
    if (st == INFERD_OK && fsync(fd) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    free(units);
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
    if (h.n_units > PACKED_UNITS_MAX)
        return inferd_fail(err, INFERD_EUNSUPPORTED, "%s: %u units, at most %d can be packed",
                           m->path, h.n_units, PACKED_UNITS_MAX);
    char *usual = path == NULL ? packed_path(m, be) : NULL;
    if (path == NULL) path = usual;
    if (path == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a path");
    clear_gaps(be, plan, window);
    inferd_status st = write_partial(&h, plan, window, path, err);
    free(usual);
    return st;
}
