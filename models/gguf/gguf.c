/* gguf.c - a model's GGUF files: open, read, detect changes.
 *
 * All reading is pread on one descriptor for each file.  When a file is replaced by renaming, the
 * old one stays open and complete; when it is rewritten or cut in place, its size or time changes.
 * Either way gguf_check_unchanged reports it, because the path no longer names the loaded file. */
#include "gguf/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "inferd/hash.h"

/* ---- one file ---- */

/* Keeps the end of a long path, which says more; an error must have room for the reason. */
static void set_label(gguf_part *f) {
    size_t n = strlen(f->path), room = sizeof f->label - 1, at = 0;
    if (n > room) {
        memcpy(f->label, "...", 3);
        at = 3;
    }
    size_t kept = size_min(n, room - at);
    for (size_t i = 0; i < kept; i++) {
        char c = f->path[n - kept + i];
        f->label[at + i] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
    }
    f->label[at + kept] = 0;
}

static const char *file_kind(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a directory";
    case S_IFCHR:
    case S_IFBLK:
        return "a device";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "not a regular file";
    }
}

static inferd_status look_at_fd(gguf_part *f, inferd_err *err) {
    struct stat *st = &f->stat_at_open;
    if (fstat(f->fd, st) != 0)
        return inferd_fail(err, INFERD_EIO, "cannot stat it: %s", strerror(errno));
    if (!S_ISREG(st->st_mode))
        return inferd_fail(err, INFERD_EFORMAT, "it is %s, expected a GGUF file",
                           file_kind(st->st_mode));
    return INFERD_OK;
}

static inferd_status open_regular(gguf_part *f, inferd_err *err) {
    /* Checked before it is opened, because opening a device can act on it; and again after,
     * because the path may name another file by then.  O_NONBLOCK: opening a pipe put there in
     * between would block until a writer comes. */
    struct stat *st = &f->stat_at_open;
    if (stat(f->path, st) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return inferd_fail(err, INFERD_ENOTFOUND, "no such file");
        return inferd_fail(err, INFERD_EIO, "cannot stat it: %s", strerror(errno));
    }
    if (!S_ISREG(st->st_mode))
        return inferd_fail(err, INFERD_EFORMAT, "it is %s, expected a GGUF file",
                           file_kind(st->st_mode));
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f->fd < 0) {
        inferd_status s = errno == ENOENT ? INFERD_ENOTFOUND : INFERD_EIO;
        return inferd_fail(err, s, "cannot open it: %s", strerror(errno));
    }
    return look_at_fd(f, err);
}

inferd_status gguf_pread(const gguf_part *f, uint64_t offset, void *out, size_t n,
                         inferd_err *err) {
    unsigned char *p = out;
    while (n > 0) {
        ssize_t n_read = pread(f->fd, p, n, (off_t)offset);
        if (n_read < 0 && errno == EINTR) continue;
        if (n_read < 0)
            return inferd_fail(err, INFERD_EIO, "reading %zu bytes at byte %llu: %s", n,
                               (unsigned long long)offset, strerror(errno));
        if (n_read == 0)
            return inferd_fail(
                err, INFERD_EIO,
                "ends at byte %llu but had %llu bytes when it was opened: it was truncated",
                (unsigned long long)offset, (unsigned long long)gguf_part_bytes(f));
        p += n_read;
        offset += (uint64_t)n_read;
        n -= (size_t)n_read;
    }
    return INFERD_OK;
}

inferd_status gguf_open_part(const char *path, int fd, gguf_limits limits, gguf **out,
                             inferd_err *err) {
    *out = NULL;
    gguf *g = calloc(1, sizeof *g);
    gguf_part *f = calloc(1, sizeof *f);
    char *own_path = strdup(path);
    if (g == NULL || f == NULL || own_path == NULL) {
        free(g);
        free(f);
        free(own_path);
        if (fd >= 0) close(fd);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to open %s", path);
    }
    *f = (gguf_part){.path = own_path, .fd = fd, .unnamed = fd >= 0};
    set_label(f);
    g->parts = f;
    g->n_parts = 1;

    inferd_status s = fd >= 0 ? look_at_fd(f, err) : open_regular(f, err);
    if (s == INFERD_OK) s = gguf_read_header(g, limits, err);
    if (s != INFERD_OK) {
        inferd_context(err, "%s", f->label);
        gguf_close(g);
        return s;
    }
    *out = g;
    return INFERD_OK;
}

/* ---- the model ---- */

/* fd -1: the file that `path` names. */
static inferd_status open_model(const char *path, int fd, gguf **out, inferd_err *err) {
    gguf *g = NULL;
    *out = NULL;
    inferd_status s = gguf_open_part(path, fd, GGUF_LIMITS, &g, err);
    if (s == INFERD_OK) s = gguf_join_parts(&g, err);
    if (s == INFERD_OK && (s = gguf_point_strings(g, err)) != INFERD_OK)
        inferd_context(err, "%s", gguf_label(g));
    if (s == INFERD_OK) s = gguf_check_unchanged(g, err);
    if (s != INFERD_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return INFERD_OK;
}

inferd_status gguf_open(const char *path, gguf **out, inferd_err *err) {
    return open_model(path, -1, out, err);
}

inferd_status gguf_open_fd(int fd, const char *name, gguf **out, inferd_err *err) {
    INFERD_CHECK(fd >= 0);
    return open_model(name, fd, out, err);
}

void gguf_close(gguf *g) {
    if (g == NULL) return;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        if (g->parts[i].fd >= 0) close(g->parts[i].fd);
        free(g->parts[i].path);
    }
    free(g->parts);
    free(g->tensor_idx);
    free(g->tensors);
    free(g->strings);
    free(g->entry_idx);
    free(g->entries);
    free(g->header);
    free(g);
}

/* ---- changes ---- */

static inferd_status check_open(const gguf_part *f, inferd_err *err) {
    const struct stat *old = &f->stat_at_open;
    struct stat now;
    if (fstat(f->fd, &now) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: cannot stat it: %s", f->label, strerror(errno));
    if (now.st_size != old->st_size)
        return inferd_fail(err, INFERD_EIO, "%s: changed while it was read: %lld bytes, then %lld",
                           f->label, (long long)old->st_size, (long long)now.st_size);
    if (now.st_mtim.tv_sec != old->st_mtim.tv_sec || now.st_mtim.tv_nsec != old->st_mtim.tv_nsec)
        return inferd_fail(err, INFERD_EIO, "%s: was written to while it was read", f->label);
    return INFERD_OK;
}

static inferd_status check_unchanged(const gguf_part *f, inferd_err *err) {
    const struct stat *old = &f->stat_at_open;
    struct stat named;
    inferd_status s = check_open(f, err);
    if (s != INFERD_OK) return s;
    if (f->unnamed) return INFERD_OK;
    if (stat(f->path, &named) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: was removed while it was read: %s", f->label,
                           strerror(errno));
    if (named.st_dev != old->st_dev || named.st_ino != old->st_ino)
        return inferd_fail(err, INFERD_EIO, "%s: was replaced by another file while it was read",
                           f->label);
    return INFERD_OK;
}

inferd_status gguf_check_open(const gguf *g, inferd_err *err) {
    inferd_status s = INFERD_OK;
    for (uint32_t i = 0; i < g->n_parts && s == INFERD_OK; i++) s = check_open(&g->parts[i], err);
    return s;
}

inferd_status gguf_check_unchanged(const gguf *g, inferd_err *err) {
    inferd_status s = INFERD_OK;
    for (uint32_t i = 0; i < g->n_parts && s == INFERD_OK; i++)
        s = check_unchanged(&g->parts[i], err);
    return s;
}

static bool same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           same_time(&a->st_mtim, &b->st_mtim);
}

int gguf_reopen(const gguf *g, uint32_t part) {
    char link[32];
    struct stat now;
    INFERD_CHECK(part < g->n_parts);
    snprintf(link, sizeof link, "/proc/self/fd/%d", g->parts[part].fd);
    int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || (fstat(fd, &now) == 0 && same_file(&now, &g->parts[part].stat_at_open)))
        return fd;
    close(fd);
    return -1;
}

static uint64_t mtime_ns(const struct stat *st) {
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

static uint64_t fold_in(uint64_t h, uint64_t x) {
    return hash_fold(hash_step(h, x));
}

/* The numbers of several files in one; one file keeps its own. */
static void add_named(gguf_named *all, const struct stat *st, bool is_first) {
    gguf_named one = {(uint64_t)st->st_dev, (uint64_t)st->st_ino, (uint64_t)st->st_size,
                      mtime_ns(st), all->is_open};
    if (is_first) {
        *all = one;
        return;
    }
    all->device = fold_in(all->device, one.device);
    all->inode = fold_in(all->inode, one.inode);
    all->n_bytes += one.n_bytes;
    all->mtime_ns = fold_in(fold_in(all->mtime_ns, one.n_bytes), one.mtime_ns);
}

inferd_status gguf_look(const gguf *g, gguf_named *out, inferd_err *err) {
    gguf_named all = {.is_open = true};
    *out = (gguf_named){0};
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const gguf_part *f = &g->parts[i];
        struct stat named;
        if (stat(f->path, &named) != 0) {
            bool gone = errno == ENOENT || errno == ENOTDIR;
            return inferd_fail(err, gone ? INFERD_ENOTFOUND : INFERD_EIO, "%s: %s", f->label,
                               strerror(errno));
        }
        all.is_open = all.is_open && same_file(&named, &f->stat_at_open);
        add_named(&all, &named, i == 0);
    }
    *out = all;
    return INFERD_OK;
}

/* ---- comparing ---- */

gguf_identity gguf_identify(const gguf *g) {
    gguf_named all = {0};
    for (uint32_t i = 0; i < g->n_parts; i++) add_named(&all, &g->parts[i].stat_at_open, i == 0);
    return (gguf_identity){all.n_bytes, all.mtime_ns, {(const char *)g->header, g->header_bytes}};
}

bool gguf_same_header(const gguf *a, const gguf *b) {
    if (a->n_parts != b->n_parts || a->header_bytes != b->header_bytes) return false;
    for (uint32_t i = 0; i < a->n_parts; i++)
        if (a->parts[i].header_bytes != b->parts[i].header_bytes) return false;
    return memcmp(a->header, b->header, a->header_bytes) == 0;
}

enum { COMPARE_BYTES = 1 << 20 };

/* The bytes behind the headers of two files of one size. */
static inferd_status compare_part(const gguf_part *a, const gguf_part *b, unsigned char *p,
                                  bool *same, inferd_err *err) {
    uint64_t at = a->header_bytes, end = gguf_part_bytes(a);
    *same = same_file(&a->stat_at_open, &b->stat_at_open);
    if (*same) return INFERD_OK;
    while (at < end) {
        size_t n = (size_t)(end - at < COMPARE_BYTES ? end - at : COMPARE_BYTES);
        inferd_status s = gguf_pread(a, at, p, n, err);
        if (s != INFERD_OK) {
            inferd_context(err, "%s", a->label);
            return s;
        }
        s = gguf_pread(b, at, p + COMPARE_BYTES, n, err);
        if (s != INFERD_OK) {
            inferd_context(err, "%s", b->label);
            return s;
        }
        if (memcmp(p, p + COMPARE_BYTES, n) != 0) return INFERD_OK;
        at += n;
    }
    *same = true;
    return INFERD_OK;
}

inferd_status gguf_same_bytes(const gguf *a, const gguf *b, bool *same, inferd_err *err) {
    *same = false;
    if (!gguf_same_header(a, b)) return INFERD_OK;
    bool all_same = true;
    for (uint32_t i = 0; i < a->n_parts; i++) {
        const gguf_part *x = &a->parts[i], *y = &b->parts[i];
        if (gguf_part_bytes(x) != gguf_part_bytes(y)) return INFERD_OK;
        all_same = all_same && same_file(&x->stat_at_open, &y->stat_at_open);
    }
    *same = all_same;
    if (all_same) return INFERD_OK;
    unsigned char *p = malloc(2 * (size_t)COMPARE_BYTES);
    if (p == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory to compare %s with %s", gguf_label(a),
                           gguf_label(b));
    inferd_status s = INFERD_OK;
    bool equal = true;
    for (uint32_t i = 0; i < a->n_parts && s == INFERD_OK && equal; i++)
        s = compare_part(&a->parts[i], &b->parts[i], p, &equal, err);
    free(p);
    *same = s == INFERD_OK && equal;
    if (s == INFERD_OK) s = gguf_check_open(a, err);
    if (s == INFERD_OK) s = gguf_check_open(b, err);
    return s;
}

void gguf_will_read(const gguf *g) {
    for (uint32_t i = 0; i < g->n_parts; i++)
        posix_fadvise(g->parts[i].fd, 0, 0, POSIX_FADV_SEQUENTIAL); // may be ignored
}

uint32_t gguf_n_parts(const gguf *g) {
    return g->n_parts;
}
const char *gguf_path(const gguf *g) {
    return g->parts->path;
}
const char *gguf_label(const gguf *g) {
    return g->parts->label;
}
const char *gguf_path_of(const gguf *g, const gguf_tensor *t) {
    INFERD_CHECK(t->part < g->n_parts);
    return g->parts[t->part].path;
}

const char *gguf_part_at(const gguf *g, uint32_t part, uint64_t *n_bytes) {
    INFERD_CHECK(part < g->n_parts);
    *n_bytes = gguf_part_bytes(&g->parts[part]);
    return g->parts[part].path;
}

uint64_t gguf_file_bytes(const gguf *g) {
    uint64_t n = 0; // below 2^63: gguf_split.c
    for (uint32_t i = 0; i < g->n_parts; i++) n += gguf_part_bytes(&g->parts[i]);
    return n;
}

/* ---- tensors ---- */

size_t gguf_n_tensors(const gguf *g) {
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i) {
    INFERD_CHECK(i < g->n_tensors);
    return &g->tensors[i];
}

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name) {
    size_t low = 0, high = g->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const gguf_tensor *t = &g->tensors[g->tensor_idx[middle]];
        int order = strcmp(name, t->name);
        if (order == 0) return t;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

inferd_status gguf_read(const gguf *g, const gguf_tensor *t, uint64_t offset, void *out,
                        size_t n_bytes, inferd_err *err) {
    INFERD_CHECK(offset <= t->n_bytes && n_bytes <= t->n_bytes - offset);
    const gguf_part *f = &g->parts[t->part];
    inferd_status s = gguf_pread(f, t->file_offset + offset, out, n_bytes, err);
    if (s != INFERD_OK) inferd_context(err, "%s: tensor %s", f->label, t->name);
    return s;
}
