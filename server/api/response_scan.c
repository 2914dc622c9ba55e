/* response_scan.c - see response_scan.h. */
#include "response_scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

typedef struct found {
    char id[RESPONSE_ID_BYTES];
    bool unread;
    uint64_t tenant, n_bytes;
    struct timespec at;
} found;

typedef struct scan {
    int folder;
    found *all; // [capacity] owned
    size_t n, capacity;
    size_t n_unread;
    int reason; // of the first one that is unread
} scan;

void response_complain(const char *id, const char *problem) {
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "response_not_kept");
    log_str(&line, "response", id);
    log_str(&line, "problem", problem);
    log_end(&line);
}

static int compare_found(const void *a, const void *b) {
    const struct timespec *x = &((const found *)a)->at, *y = &((const found *)b)->at;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* It could not be opened or read: what its folder says about it has to do. */
static void leave_unread(scan *s, const char *name, struct stat *st) {
    if (s->n_unread++ == 0) s->reason = errno;
    *st = (struct stat){0};
    if (fstatat(s->folder, name, st, AT_SYMLINK_NOFOLLOW) != 0) *st = (struct stat){0};
}

/* False: it is no file of the store, or a damaged one, which is deleted. */
static bool look_at(scan *s, const char *name, found *out) {
    size_t n = strlen(name), tail = sizeof RESPONSE_NAME_TAIL - 1;
    struct stat st;
    buf head = {0};
    if (n < tail || strcmp(name + n - tail, RESPONSE_NAME_TAIL) != 0 ||
        !response_is_id(name, n - tail))
        return false;
    *out = (found){0};
    snprintf(out->id, sizeof out->id, "%.*s", (int)(n - tail), name);
    response_reading r = response_file_read(s->folder, name, RESPONSE_HEAD_BYTES, &head, &st);
    if (r == RESPONSE_READ && !response_head_read(head.p, (size_t)st.st_size, &out->tenant))
        r = RESPONSE_DAMAGED;
    buf_deinit(&head);
    if (r == RESPONSE_DAMAGED) {
        response_file_delete(s->folder, out->id);
        response_complain(out->id, "its file is damaged");
    }
    if (r == RESPONSE_DAMAGED || r == RESPONSE_GONE) return false;
    if (r == RESPONSE_NO_MEMORY) errno = ENOMEM;
    out->unread = r != RESPONSE_READ;
    if (out->unread) leave_unread(s, name, &st);
    out->n_bytes = (uint64_t)st.st_size;
    out->at = st.st_mtim;
    return true;
}

static bool reserve_one(scan *s) {
    if (s->n < s->capacity) return true;
    size_t wanted = s->capacity == 0 ? 64 : 2 * s->capacity;
    found *more = realloc(s->all, wanted * sizeof *more);
    if (more == NULL) return false;
    s->all = more;
    s->capacity = wanted;
    return true;
}

static inferd_status read_folder(scan *s, const char *path, inferd_err *err) {
    inferd_status status = INFERD_OK;
    DIR *d = opendir(path);
    if (d == NULL) return inferd_fail(err, INFERD_EIO, "the folder %s: %s", path, strerror(errno));
    const struct dirent *one;
    while (status == INFERD_OK && (errno = 0, one = readdir(d)) != NULL)
        if (reserve_one(s))
            s->n += look_at(s, one->d_name, &s->all[s->n]);
        else
            status = inferd_fail(err, INFERD_ENOMEM, "no memory for the responses in %s", path);
    if (status == INFERD_OK && errno != 0)
        status = inferd_fail(err, INFERD_EIO, "reading the folder %s: %s", path, strerror(errno));
    closedir(d);
    return status;
}

static void log_unread(const scan *s) {
    log_line line;
    if (s->n_unread == 0) return;
    log_begin(&line, LOG_LEVEL_ERROR, "responses_unread");
    log_u64(&line, "files", s->n_unread);
    log_str(&line, "problem", strerror(s->reason));
    log_end(&line);
}

inferd_status response_scan(int folder, const char *path, response_index *out, inferd_err *err) {
    scan s = {.folder = folder};
    unlinkat(folder, RESPONSE_NEW_NAME, 0); // of a killed process
    inferd_status status = read_folder(&s, path, err);
    log_unread(&s);
    if (status == INFERD_OK && s.n > 0) qsort(s.all, s.n, sizeof *s.all, compare_found);
    for (size_t i = 0; status == INFERD_OK && i < s.n; i++) {
        const found *f = &s.all[i];
        if (response_index_find(out, f->id) != NULL) continue; // a folder may list a name twice
        response_entry *e = response_index_add(out, f->id, f->tenant, f->n_bytes, NULL);
        if (e == NULL)
            status = inferd_fail(err, INFERD_ENOMEM, "no memory for %zu responses", s.n);
        else
            e->unread = f->unread;
    }
    free(s.all);
    return status;
}
