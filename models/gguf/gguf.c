/* gguf.c - a GGUF file: open, read, detect changes.
 *
 * All reading is pread on one descriptor.  When a model is replaced by renaming, the old file stays
 * open and complete; when it is rewritten or cut in place, its size or time changes.  Either way
 * gguf_check_unchanged reports it, because the path no longer names the loaded file. */
#include "gguf/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- the file ---- */

/* Keeps the end of a long path, which says more; an error must have room for the reason. */
static void set_label(gguf *g) {
    size_t n = strlen(g->path), room = sizeof g->label - 1, at = 0;
    if (n > room) {
        memcpy(g->label, "...", 3);
        at = 3;
    }
    size_t kept = size_min(n, room - at);
    for (size_t i = 0; i < kept; i++) {
        char c = g->path[n - kept + i];
        g->label[at + i] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
    }
    g->label[at + kept] = 0;
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

static inferd_status look_at_fd(gguf *g, inferd_err *err) {
    struct stat *st = &g->stat_at_open;
    if (fstat(g->fd, st) != 0)
        return inferd_fail(err, INFERD_EIO, "cannot stat it: %s", strerror(errno));
    if (!S_ISREG(st->st_mode))
        return inferd_fail(err, INFERD_EFORMAT, "it is %s, expected a file",
                           file_kind(st->st_mode));
    return INFERD_OK;
}

static inferd_status open_regular(gguf *g, inferd_err *err) {
    /* Checked before it is opened, because opening a device can act on it; and again after,
     * because the path may name another file by then.  O_NONBLOCK: opening a pipe put there in
     * between would block until a writer comes. */
    struct stat *st = &g->stat_at_open;
    if (stat(g->path, st) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return inferd_fail(err, INFERD_ENOTFOUND, "no such file");
        return inferd_fail(err, INFERD_EIO, "cannot stat it: %s", strerror(errno));
    }
    if (!S_ISREG(st->st_mode))
        return inferd_fail(err, INFERD_EFORMAT, "it is %s, expected a file",
                           file_kind(st->st_mode));
    g->fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (g->fd < 0) {
        inferd_status s = errno == ENOENT ? INFERD_ENOTFOUND : INFERD_EIO;
        return inferd_fail(err, s, "cannot open it: %s", strerror(errno));
    }
    return look_at_fd(g, err);
}

inferd_status gguf_pread(const gguf *g, uint64_t offset, void *out, size_t n, inferd_err *err) {
    unsigned char *p = out;
    while (n > 0) {
        ssize_t n_read = pread(g->fd, p, n, (off_t)offset);
        if (n_read < 0 && errno == EINTR) continue;
        if (n_read < 0)
            return inferd_fail(err, INFERD_EIO, "reading %zu bytes at byte %llu: %s", n,
                               (unsigned long long)offset, strerror(errno));
        if (n_read == 0)
            return inferd_fail(
                err, INFERD_EIO,
                "ends at byte %llu but had %llu bytes when it was opened: it was truncated",
                (unsigned long long)offset, (unsigned long long)gguf_file_bytes(g));
        p += n_read;
        offset += (uint64_t)n_read;
        n -= (size_t)n_read;
    }
    return INFERD_OK;
}

/* fd -1: the file that `path` names. */
static inferd_status open_file(const char *path, int fd, gguf **out, inferd_err *err) {
    *out = NULL;
    gguf *g = calloc(1, sizeof *g);
    if (g != NULL) g->path = strdup(path);
    if (g == NULL || g->path == NULL) {
        free(g);
        if (fd >= 0) close(fd);
        return inferd_fail(err, INFERD_ENOMEM, "no memory to open %s", path);
    }
    g->fd = fd;
    g->unnamed = fd >= 0;
    set_label(g);

    inferd_status s = fd >= 0 ? look_at_fd(g, err) : open_regular(g, err);
    if (s == INFERD_OK) s = gguf_read_header(g, err);
    if (s != INFERD_OK) {
        inferd_context(err, "%s", g->label);
        goto fail;
    }
    s = gguf_check_unchanged(g, err);
    if (s != INFERD_OK) goto fail;
    *out = g;
    return INFERD_OK;

fail:
    gguf_close(g);
    return s;
}

inferd_status gguf_open(const char *path, gguf **out, inferd_err *err) {
    return open_file(path, -1, out, err);
}

inferd_status gguf_open_fd(int fd, const char *name, gguf **out, inferd_err *err) {
    INFERD_CHECK(fd >= 0);
    return open_file(name, fd, out, err);
}

void gguf_close(gguf *g) {
    if (g == NULL) return;
    if (g->fd >= 0) close(g->fd);
    free(g->tensor_idx);
    free(g->tensors);
    free(g->strings);
    free(g->entry_idx);
    free(g->entries);
    free(g->header);
    free(g->path);
    free(g);
}

inferd_status gguf_check_open(const gguf *g, inferd_err *err) {
    const struct stat *old = &g->stat_at_open;
    struct stat now;
    if (fstat(g->fd, &now) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: cannot stat it: %s", g->label, strerror(errno));
    if (now.st_size != old->st_size)
        return inferd_fail(err, INFERD_EIO, "%s: changed while it was read: %lld bytes, then %lld",
                           g->label, (long long)old->st_size, (long long)now.st_size);
    if (now.st_mtim.tv_sec != old->st_mtim.tv_sec || now.st_mtim.tv_nsec != old->st_mtim.tv_nsec)
        return inferd_fail(err, INFERD_EIO, "%s: was written to while it was read", g->label);
    return INFERD_OK;
}

inferd_status gguf_check_unchanged(const gguf *g, inferd_err *err) {
    const struct stat *old = &g->stat_at_open;
    struct stat named;
    inferd_status s = gguf_check_open(g, err);
    if (s != INFERD_OK) return s;
    if (g->unnamed) return INFERD_OK;
    if (stat(g->path, &named) != 0)
        return inferd_fail(err, INFERD_EIO, "%s: was removed while it was read: %s", g->label,
                           strerror(errno));
    if (named.st_dev != old->st_dev || named.st_ino != old->st_ino)
        return inferd_fail(err, INFERD_EIO, "%s: was replaced by another file while it was read",
                           g->label);
    return INFERD_OK;
}

static bool same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           same_time(&a->st_mtim, &b->st_mtim);
}

int gguf_reopen(const gguf *g) {
    char link[32];
    struct stat now;
    snprintf(link, sizeof link, "/proc/self/fd/%d", g->fd);
    int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || (fstat(fd, &now) == 0 && same_file(&now, &g->stat_at_open))) return fd;
    close(fd);
    return -1;
}

inferd_status gguf_look(const gguf *g, gguf_named *out, inferd_err *err) {
    struct stat named;
    *out = (gguf_named){0};
    if (stat(g->path, &named) != 0) {
        bool gone = errno == ENOENT || errno == ENOTDIR;
        return inferd_fail(err, gone ? INFERD_ENOTFOUND : INFERD_EIO, "%s: %s", g->label,
                           strerror(errno));
    }
    *out = (gguf_named){.device = (uint64_t)named.st_dev,
                        .inode = (uint64_t)named.st_ino,
                        .n_bytes = (uint64_t)named.st_size,
                        .mtime_ns = (uint64_t)named.st_mtim.tv_sec * 1000000000u +
                                    (uint64_t)named.st_mtim.tv_nsec,
                        .is_open = same_file(&named, &g->stat_at_open)};
    return INFERD_OK;
}

/* ---- comparing ---- */

gguf_identity gguf_identify(const gguf *g) {
    const struct timespec *t = &g->stat_at_open.st_mtim;
    return (gguf_identity){gguf_file_bytes(g),
                           (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec,
                           {(const char *)g->header, g->header_bytes}};
}

bool gguf_same_header(const gguf *a, const gguf *b) {
    return a->header_bytes == b->header_bytes && memcmp(a->header, b->header, a->header_bytes) == 0;
}

enum { COMPARE_BYTES = 1 << 20 };

static inferd_status compare_from(const gguf *a, const gguf *b, uint64_t at, unsigned char *p,
                                  bool *same, inferd_err *err) {
    uint64_t end = gguf_file_bytes(a);
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
    if (gguf_file_bytes(a) != gguf_file_bytes(b) || !gguf_same_header(a, b)) return INFERD_OK;
    if (same_file(&a->stat_at_open, &b->stat_at_open)) {
        *same = true;
        return INFERD_OK;
    }
    unsigned char *p = malloc(2 * (size_t)COMPARE_BYTES);
    if (p == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory to compare %s with %s", a->label,
                           b->label);
    inferd_status s = compare_from(a, b, a->header_bytes, p, same, err);
    free(p);
    if (s == INFERD_OK) s = gguf_check_open(a, err);
    if (s == INFERD_OK) s = gguf_check_open(b, err);
    return s;
}

void gguf_will_read(const gguf *g) {
    posix_fadvise(g->fd, 0, 0, POSIX_FADV_SEQUENTIAL); // may be ignored
}

const char *gguf_path(const gguf *g) {
    return g->path;
}
const char *gguf_label(const gguf *g) {
    return g->label;
}

uint64_t gguf_file_bytes(const gguf *g) {
    return (uint64_t)g->stat_at_open.st_size;
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
    inferd_status s = gguf_pread(g, t->file_offset + offset, out, n_bytes, err);
    if (s != INFERD_OK) inferd_context(err, "%s: tensor %s", g->label, t->name);
    return s;
}
