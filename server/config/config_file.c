/* config_file.c - the configuration's file: read as a whole, replaced as a whole.
 *
 * It is replaced by a temporary file in the same folder (config_write_file):
 *
 *   create 0600, lock > text > fsync > same owner and mode > rename > fsync of the folder
 *
 * A failure before the rename removes the temporary file; the old one is untouched.  A process that
 * is killed leaves it behind, readable by its owner only, because it holds keys.  The lock ends
 * with the process, so a file of this name that is not locked is such a leftover (config_sweep). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_options.h"

/* -- reading -- */

inferd_status config_read_file(const char *path, buf *out, inferd_err *err) {
    struct stat st;
    inferd_status s = INFERD_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // do not block on a FIFO
    if (fd < 0)
        return inferd_fail(err, errno == ENOENT ? INFERD_ENOTFOUND : INFERD_EIO, "%s: %s", path,
                           strerror(errno));
    if (fstat(fd, &st) != 0)
        s = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = inferd_fail(err, INFERD_EIO, "%s: not a file", path);
    else if (st.st_mode & S_IWOTH)
        s = inferd_fail(err, INFERD_EINVAL, "%s: writable by all users, which exposes the keys",
                        path);
    else if (st.st_size > CONFIG_FILE_BYTES_MAX)
        s = inferd_fail(err, INFERD_ETOOLONG, "%s: has %lld bytes, at most %d are read", path,
                        (long long)st.st_size, CONFIG_FILE_BYTES_MAX);
    /* Reserved at once: growing would leave copies of keys behind. */
    else if (!buf_reserve(out, (size_t)st.st_size + 1))
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for %s", path);
    while (s == INFERD_OK && out->n <= (size_t)st.st_size) {
        ssize_t n = read(fd, out->p + out->n, (size_t)st.st_size + 1 - out->n);
        if (n == 0) break;
        if (n > 0)
            out->n += (size_t)n;
        else if (errno != EINTR)
            s = inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    }
    if (s == INFERD_OK && out->n > (size_t)st.st_size)
        s = inferd_fail(err, INFERD_EIO, "%s: grew while it was read", path);
    close(fd);
    return s;
}

inferd_status config_load(const char *path, inferd_config **out, buf *problems, inferd_err *err) {
    inferd_err unread; // err may be NULL, and its text is used
    buf text;
    if (err == NULL) err = &unread;
    buf_init(&text, 0);
    inferd_status s = config_read_file(path, &text, err);
    if (s == INFERD_OK) {
        s = config_load_text(path, text.p, text.n, out, problems, err);
    } else if (s != INFERD_ENOMEM) {
        buf_add_format(problems, "%s\n", err->text);
        s = err->status = INFERD_EINVAL;
    }
    if (text.p != NULL) explicit_bzero(text.p, text.capacity); // it held keys
    buf_deinit(&text);
    return s;
}

/* -- replacing -- */

/* A replacement in progress.  Names are relative to the folder, kept open in case it is moved. */
typedef struct replacing {
    char *path;       // of the file itself, links resolved; owned
    const char *name; // its last part
    struct stat was;
    bool is_new; // there was no file
    int folder;  // -1: not open
    int fd;      // of the temporary file; -1: not open
    char temporary[NAME_MAX + 1];
} replacing;

static inferd_status io_fail(const replacing *w, const char *doing, inferd_err *err) {
    bool denied = errno == EACCES || errno == EPERM || errno == EROFS;
    return inferd_fail(
        err, INFERD_EIO, "%s: %s: %s%s", w->path, doing, strerror(errno),
        denied ? ": the daemon may not write there; docs/install.md says how to allow it" : "");
}

/* The path of a new file; NULL: see errno.  A dangling link is neither followed nor replaced. */
static char *path_of_new(const char *path) {
    struct stat link;
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    if (lstat(path, &link) == 0) errno = ENOENT;
    if (lstat(path, &link) == 0 || *name == 0) return NULL;
    size_t n_folder = (size_t)(name - path);
    char *folder = n_folder > 0 ? strndup(path, n_folder) : strdup("."), *all = NULL;
    char *real = folder != NULL ? realpath(folder, NULL) : NULL;
    size_t n = real != NULL ? strlen(real) + strlen(name) + 2 : 0; // the slash and the terminator
    if (real != NULL) all = malloc(n);
    if (all != NULL) snprintf(all, n, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name);
    free(folder);
    free(real);
    return all;
}

static inferd_status open_old(replacing *w, const char *path, inferd_err *err) {
    w->path = realpath(path, NULL);
    if (w->path == NULL && errno == ENOENT) {
        w->path = path_of_new(path);
        w->is_new = true;
    }
    if (w->path == NULL && errno == ENOMEM)
        return inferd_fail(err, INFERD_ENOMEM, "no memory to write %s", path);
    if (w->path == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    char *slash = strrchr(w->path, '/'); // realpath gives an absolute path
    w->name = slash + 1;
    if (slash == w->path) {
        w->folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } else {
        *slash = 0;
        w->folder = open(w->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *slash = '/';
    }
    if (w->folder < 0) return io_fail(w, "opening its folder", err);
    if (w->is_new) return INFERD_OK;
    if (fstatat(w->folder, w->name, &w->was, AT_SYMLINK_NOFOLLOW) != 0)
        return io_fail(w, "reading its status", err);
    if (!S_ISREG(w->was.st_mode)) return inferd_fail(err, INFERD_EIO, "%s: not a file", w->path);
    return INFERD_OK;
}

/* ".inferd.json.inferd-" and then the process and a number; of a very long name the beginning. */
enum { NAME_KEPT_BYTES = 200 };
#define TEMPORARY_MARK ".inferd-"

/* A concurrent sweep may have opened the file before it was locked: then it is removed, or about to
 * be.  File systems without locks have no sweep. */
static bool lock_temporary(const replacing *w) {
    struct stat st;
    if (flock(w->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return fstat(w->fd, &st) == 0 && st.st_nlink > 0;
}

static inferd_status make_temporary(replacing *w, inferd_err *err) {
    enum { TRIES_MAX = 100 };
    for (int i = 0; i < TRIES_MAX; i++) {
        snprintf(w->temporary, sizeof w->temporary, ".%.*s" TEMPORARY_MARK "%d-%d", NAME_KEPT_BYTES,
                 w->name, (int)getpid(), i);
        w->fd = openat(w->folder, w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (w->fd >= 0 && lock_temporary(w)) return INFERD_OK;
        if (w->fd >= 0)
            close(w->fd);
        else if (errno != EEXIST)
            break;
        w->fd = -1;
        errno = EEXIST;
    }
    w->temporary[0] = 0; // that file is not ours
    return io_fail(w, "creating a temporary file", err);
}

/* The owner first: changing it clears bits of the mode. */
static inferd_status keep_rights(replacing *w, inferd_err *err) {
    struct stat is;
    if (w->is_new) return INFERD_OK;
    if (fstat(w->fd, &is) != 0) return io_fail(w, "reading the status of the new file", err);
    if ((is.st_uid != w->was.st_uid || is.st_gid != w->was.st_gid) &&
        fchown(w->fd, w->was.st_uid, w->was.st_gid) != 0)
        return io_fail(w, "setting the owner of the new file", err);
    if (fchmod(w->fd, w->was.st_mode & 07777) != 0)
        return io_fail(w, "setting the mode of the new file", err);
    return INFERD_OK;
}

static inferd_status fill(replacing *w, const char *text, size_t n, inferd_err *err) {
    for (size_t done = 0; done < n;) {
        ssize_t more = write(w->fd, text + done, n - done);
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return io_fail(w, "writing", err);
        done += (size_t)more;
    }
    return fsync(w->fd) == 0 ? INFERD_OK : io_fail(w, "writing to the disk", err);
}

static inferd_status take_name(replacing *w, inferd_err *err) {
    if (renameat(w->folder, w->temporary, w->folder, w->name) != 0)
        return io_fail(w, "renaming the new file", err);
    w->temporary[0] = 0;
    if (fsync(w->folder) != 0) return io_fail(w, "is replaced, but perhaps not on the disk", err);
    return INFERD_OK;
}

inferd_status config_write_file(const char *path, const char *text, size_t n, inferd_err *err) {
    replacing w = {.folder = -1, .fd = -1};
    inferd_status s = open_old(&w, path, err);
    if (s == INFERD_OK) s = make_temporary(&w, err);
    if (s == INFERD_OK) s = fill(&w, text, n, err);
    if (s == INFERD_OK) s = keep_rights(&w, err);
    if (s == INFERD_OK) s = take_name(&w, err);
    if (w.fd >= 0) close(w.fd);
    if (s != INFERD_OK && w.temporary[0] != 0) unlinkat(w.folder, w.temporary, 0);
    if (w.folder >= 0) close(w.folder);
    free(w.path);
    return s;
}

/* -- leftovers -- */

static bool is_number(const char **text) {
    size_t n = strspn(*text, "0123456789");
    *text += n;
    return n > 0;
}

static bool is_temporary(const char *name, const char *of) {
    size_t n = strnlen(of, NAME_KEPT_BYTES), n_mark = sizeof TEMPORARY_MARK - 1;
    if (name[0] != '.' || strncmp(name + 1, of, n) != 0) return false;
    name += 1 + n;
    if (strncmp(name, TEMPORARY_MARK, n_mark) != 0) return false;
    name += n_mark;
    return is_number(&name) && *name++ == '-' && is_number(&name) && *name == 0;
}

/* Removes it unless the process that writes it still runs, or it belongs to another user. */
static bool remove_leftover(const replacing *w, const char *name) {
    struct stat st;
    int fd = openat(w->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    bool ours = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                (st.st_uid == geteuid() || st.st_uid == w->was.st_uid);
    bool removed = ours && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(w->folder, name, 0) == 0;
    close(fd);
    return removed;
}

uint32_t config_sweep(const char *path) {
    replacing w = {.folder = -1, .fd = -1};
    inferd_err unread;
    const struct dirent *e;
    uint32_t n = 0;
    bool found = open_old(&w, path, &unread) == INFERD_OK && !w.is_new;
    int fd = found ? openat(w.folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL && fd >= 0) close(fd);
    while (dir != NULL && (e = readdir(dir)) != NULL)
        n += is_temporary(e->d_name, w.name) && remove_leftover(&w, e->d_name);
    if (dir != NULL) closedir(dir);
    if (w.folder >= 0) close(w.folder);
    free(w.path);
    return n;
}
