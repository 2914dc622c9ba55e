/* quota_file.c - see quota_file.h.
 *
 * Tenants in the table are written with the table's figures.  Others are written as they were read,
 * last seen first, so that the bound omits those unseen for longest; they stay in memory even when
 * too old for the file, because the clock may be wrong for a while. */
#include "quota_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json_out.h"
#include "json_in.h"

enum {
    VERSION = 1,
    DAY_S = 86400,
    DATE_BYTES = 11,  // "2026-01-02"
    LINE_BYTES = 192, // after a name: five members, two numbers of 20 digits
    PATH_BYTES = 4096,
    READ_BYTES = 64 * 1024,
    MEMBERS = 5, // of a tenant
    NAME_SHOWN_BYTES = 64
};

/* Depth is 3; a tenant has five members and costs jansson about 1 KiB. */
static const json_limits file_limits = {.depth_max = 4,
                                        .structural_max = QUOTA_FILE_TENANTS_MAX * 16,
                                        .memory_max = 2ull * 1024 * 1024 * 1024};

typedef struct entry {
    char *name; // owned
    limits_kept kept;
    int64_t seen_s; // midnight of the last day on which it was in the table
} entry;

struct quota_file {
    entry *entries;    // [n] by name
    uint32_t *by_seen; // [n] indices, seen last first
    uint32_t n;
    uint64_t begun_us;      // start of the last write
    uint64_t begun_changes; // limits_n_changes at that time
    uint64_t on_disk_changes;
    bool begun;   // there was a write
    bool writing; // a write is in progress
};

/* -- dates -- */

static void spell_date(char out[DATE_BYTES], int64_t unix_s) {
    limits_date d = limits_date_of(unix_s);
    unsigned y = (unsigned)d.year, m = (unsigned)d.month, day = (unsigned)d.day;
    snprintf(out, DATE_BYTES, "%04u-%02u-%02u", y % 10000, m % 100, day % 100);
}

static bool read_digits(const char **at, int n, int *out) {
    *out = 0;
    for (; n > 0; n--, (*at)++) {
        if (**at < '0' || **at > '9') return false;
        *out = 10 * *out + (**at - '0');
    }
    return true;
}

/* "2026-01-02", or "2026-01" for its first day. */
static bool read_date(const char *text, bool month_only, int64_t *out) {
    limits_date d = {0, 0, 1};
    if (!read_digits(&text, 4, &d.year) || *text++ != '-' || !read_digits(&text, 2, &d.month))
        return false;
    if (!month_only && (*text++ != '-' || !read_digits(&text, 2, &d.day))) return false;
    if (*text != 0 || !limits_date_valid(d)) return false;
    *out = limits_date_begins_s(d);
    return true;
}

/* -- reading -- */

static const char *kind_of(const json_t *v) {
    if (v == NULL) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "other text";
    case JSON_INTEGER:
        return json_integer_value(v) < 0 ? "a negative number" : "a number";
    case JSON_REAL: // also an integer beyond 64 bits
        return fabs(json_real_value(v)) < 0x1p63 ? "a fraction" : "a number that is too large";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    default:
        return "null";
    }
}

static inferd_status wrong_member(const char *tenant, const char *member, const char *wanted,
                                  const json_t *v, inferd_err *err) {
    return inferd_fail(err, INFERD_EFORMAT, "tenants.%.*s.%s: expected %s, found %s",
                       NAME_SHOWN_BYTES, tenant, member, wanted, kind_of(v));
}

static inferd_status read_entry(const char *name, const json_t *v, entry *out, inferd_err *err) {
    if (!json_is_object(v))
        return inferd_fail(err, INFERD_EFORMAT, "tenants.%.*s: expected an object, found %s",
                           NAME_SHOWN_BYTES, name, kind_of(v));
    const struct {
        const char *name;
        bool month_only;
        int64_t *to;
    } dates[] = {{"day", false, &out->kept.day_begins_s},
                 {"month", true, &out->kept.month_begins_s},
                 {"seen", false, &out->seen_s}};
    const struct {
        const char *name;
        uint64_t *to;
    } counts[] = {{"day_tokens", &out->kept.day_tokens}, {"month_tokens", &out->kept.month_tokens}};
    for (size_t i = 0; i < INFERD_COUNT(dates); i++) {
        const json_t *member = json_object_get(v, dates[i].name);
        if (!json_is_string(member) ||
            !read_date(json_string_value(member), dates[i].month_only, dates[i].to))
            return wrong_member(name, dates[i].name,
                                dates[i].month_only ? "a month such as \"2026-01\""
                                                    : "a date such as \"2026-01-02\"",
                                member, err);
    }
    for (size_t i = 0; i < INFERD_COUNT(counts); i++) {
        const json_t *member = json_object_get(v, counts[i].name);
        if (!json_is_integer(member) || json_integer_value(member) < 0)
            return wrong_member(name, counts[i].name, "a whole number from 0", member, err);
        *counts[i].to = (uint64_t)json_integer_value(member);
    }
    if (json_object_size(v) != MEMBERS)
        return inferd_fail(err, INFERD_EFORMAT, "tenants.%.*s: has %zu members, expected %d",
                           NAME_SHOWN_BYTES, name, json_object_size(v), MEMBERS);
    out->name = strdup(name);
    return out->name != NULL ? INFERD_OK
                             : inferd_fail(err, INFERD_ENOMEM, "no memory for a tenant's usage");
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static int compare_seen(const void *a, const void *b, void *entries) {
    const entry *x = (const entry *)entries + *(const uint32_t *)a;
    const entry *y = (const entry *)entries + *(const uint32_t *)b;
    return (x->seen_s < y->seen_s) - (x->seen_s > y->seen_s);
}

static inferd_status read_tenants(quota_file *q, const json_t *tenants, inferd_err *err) {
    const char *name;
    json_t *v;
    size_t n = json_object_size(tenants);
    if (n > QUOTA_FILE_TENANTS_MAX)
        return inferd_fail(err, INFERD_EFORMAT, "has %zu tenants, at most %d are possible", n,
                           QUOTA_FILE_TENANTS_MAX);
    q->entries = calloc(n + 1, sizeof *q->entries);
    q->by_seen = calloc(n + 1, sizeof *q->by_seen);
    if (q->entries == NULL || q->by_seen == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the usage of %zu tenants", n);
    json_object_foreach((json_t *)(uintptr_t)tenants, name, v) {
        if (strlen(name) > LIMITS_NAME_BYTES_MAX)
            return inferd_fail(err, INFERD_EFORMAT,
                               "a tenant's name has %zu bytes, at most %d are possible",
                               strlen(name), LIMITS_NAME_BYTES_MAX);
        inferd_status s = read_entry(name, v, &q->entries[q->n], err);
        if (s != INFERD_OK) return s;
        q->n++;
    }
    qsort(q->entries, q->n, sizeof *q->entries, compare_names);
    for (uint32_t i = 0; i < q->n; i++) q->by_seen[i] = i;
    qsort_r(q->by_seen, q->n, sizeof *q->by_seen, compare_seen, q->entries);
    return INFERD_OK;
}

static inferd_status read_root(quota_file *q, const json_t *root, inferd_err *err) {
    const json_t *version = json_object_get(root, "version");
    const json_t *tenants = json_object_get(root, "tenants");
    if (!json_is_object(root))
        return inferd_fail(err, INFERD_EFORMAT, "expected an object, found %s", kind_of(root));
    if (!json_is_integer(version))
        return inferd_fail(err, INFERD_EFORMAT, "version: expected %d, found %s", VERSION,
                           kind_of(version));
    if (json_integer_value(version) != VERSION)
        return inferd_fail(err, INFERD_EFORMAT, "version: expected %d, found %lld", VERSION,
                           (long long)json_integer_value(version));
    if (!json_is_object(tenants))
        return inferd_fail(err, INFERD_EFORMAT, "tenants: expected an object, found %s",
                           kind_of(tenants));
    if (json_object_size(root) != 2)
        return inferd_fail(err, INFERD_EFORMAT,
                           "has %zu members, expected \"version\" and \"tenants\"",
                           json_object_size(root));
    return read_tenants(q, tenants, err);
}

/* INFERD_ENOTFOUND: no such file. */
static inferd_status load_text(const char *path, buf *text, inferd_err *err) {
    struct stat st;
    /* Non-blocking: otherwise a FIFO without a writer would block the start for ever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return INFERD_ENOTFOUND;
    if (fd < 0) return inferd_fail(err, INFERD_EIO, "cannot be opened: %s", strerror(errno));
    inferd_status s = INFERD_OK;
    if (fstat(fd, &st) != 0)
        s = inferd_fail(err, INFERD_EIO, "its status cannot be read: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = inferd_fail(err, INFERD_EIO, "is not a regular file");
    else if (st.st_size > QUOTA_FILE_BYTES_MAX)
        s = inferd_fail(err, INFERD_EFORMAT, "has %lld bytes, at most %d are possible",
                        (long long)st.st_size, QUOTA_FILE_BYTES_MAX);
    while (s == INFERD_OK) {
        if (!buf_reserve(text, READ_BYTES)) {
            s = inferd_fail(err, INFERD_ENOMEM, "no memory for its %lld bytes",
                            (long long)st.st_size);
            break;
        }
        ssize_t n = read(fd, text->p + text->n, READ_BYTES);
        if (n == 0) break;
        if (n > 0)
            text->n += (size_t)n;
        else if (errno != EINTR)
            s = inferd_fail(err, INFERD_EIO, "cannot be read: %s", strerror(errno));
    }
    close(fd);
    return s;
}

static inferd_status read_text(quota_file *q, const buf *text, inferd_err *err) {
    json_t *root = NULL;
    inferd_status s = json_in_parse((bytes){text->p, text->n}, &file_limits, &root, err);
    if (s == INFERD_EINVAL || s == INFERD_ETOOLONG) s = INFERD_EFORMAT;
    if (s == INFERD_OK) s = read_root(q, root, err);
    json_decref(root);
    if (err != NULL) err->status = s; // the scan's text with our status
    return s;
}

inferd_status quota_file_read(const char *path, quota_file **out, inferd_err *err) {
    buf text;
    buf_init(&text, QUOTA_FILE_BYTES_MAX + READ_BYTES);
    quota_file *q = calloc(1, sizeof *q);
    if (q == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the quota file %s", path);
    inferd_status s = load_text(path, &text, err);
    if (s == INFERD_ENOTFOUND)
        s = INFERD_OK;
    else if (s == INFERD_OK)
        s = read_text(q, &text, err);
    buf_deinit(&text);
    if (s != INFERD_OK) {
        inferd_context(err, "the quota file %s", path);
        quota_file_destroy(q);
        return s;
    }
    *out = q;
    return INFERD_OK;
}

void quota_file_destroy(quota_file *q) {
    if (q == NULL) return;
    for (uint32_t i = 0; q->entries != NULL && i < q->n; i++) free(q->entries[i].name);
    free(q->entries);
    free(q->by_seen);
    free(q);
}

uint32_t quota_file_n_tenants(const quota_file *q) {
    return q->n;
}

static entry *find(const quota_file *q, const char *name) {
    entry key = {.name = (char *)(uintptr_t)name}; // only for comparison
    if (q->n == 0) return NULL;
    return bsearch(&key, q->entries, q->n, sizeof key, compare_names);
}

bool quota_file_restore(const quota_file *q, limits *l, uint32_t number) {
    limits_usage usage;
    limits_get_usage(l, number, 0, &usage);
    const entry *e = find(q, usage.name);
    if (e != NULL) limits_restore(l, number, &e->kept);
    return e != NULL;
}

/* -- writing -- */

bool quota_file_due(const quota_file *q, const limits *l, uint64_t now_us) {
    if (q->writing || limits_n_changes(l) == q->on_disk_changes) return false;
    return !q->begun || now_us >= q->begun_us + QUOTA_FILE_PERIOD_US;
}

static void add_line(buf *out, uint32_t *n_lines, const char *name, const limits_kept *kept,
                     int64_t seen_s) {
    char day[DATE_BYTES], month[DATE_BYTES], seen[DATE_BYTES];
    spell_date(day, kept->day_begins_s);
    spell_date(month, kept->month_begins_s);
    spell_date(seen, seen_s);
    if ((*n_lines)++ > 0) buf_add_str(out, ",\n");
    json_add_string(out, name, strlen(name));
    char rest[LINE_BYTES]; // formatted by one call: there may be a hundred thousand lines
    int n =
        snprintf(rest, sizeof rest,
                 ":{\"day\":\"%s\",\"day_tokens\":%llu,\"month\":\"%.7s\",\"month_tokens\":%llu,"
                 "\"seen\":\"%s\"}",
                 day, (unsigned long long)kept->day_tokens, month,
                 (unsigned long long)kept->month_tokens, seen);
    INFERD_CHECK(n > 0 && n < LINE_BYTES);
    buf_add(out, rest, (size_t)n);
}

/* Sets `in_table` for the entries of the file that are tenants of the table. */
static void add_table(const quota_file *q, const limits *l, int64_t unix_s, buf *out,
                      bool *in_table, uint32_t *n_lines) {
    for (uint32_t i = 0; i < limits_n_tenants(l); i++) {
        limits_usage usage;
        limits_kept kept;
        limits_get_usage(l, i, unix_s, &usage);
        const entry *e = find(q, usage.name);
        if (e != NULL) in_table[e - q->entries] = true;
        if (limits_keep(l, i, unix_s, &kept)) add_line(out, n_lines, usage.name, &kept, unix_s);
    }
}

static void add_others(const quota_file *q, int64_t unix_s, buf *out, const bool *in_table,
                       uint32_t *n_lines) {
    for (uint32_t i = 0; i < q->n && *n_lines < QUOTA_FILE_TENANTS_MAX; i++) {
        const entry *e = &q->entries[q->by_seen[i]];
        if (in_table[q->by_seen[i]]) continue;
        if (unix_s - e->seen_s >= (int64_t)(QUOTA_FILE_KEEP_DAYS + 1) * DAY_S) break;
        add_line(out, n_lines, e->name, &e->kept, e->seen_s);
    }
}

inferd_status quota_file_snapshot(quota_file *q, const limits *l, uint64_t now_us, int64_t unix_s,
                                  buf *out, inferd_err *err) {
    uint32_t n_lines = 0;
    bool *in_table = calloc((size_t)q->n + 1, sizeof *in_table);
    q->begun = true;
    q->begun_us = now_us;
    q->begun_changes = limits_n_changes(l);
    if (in_table != NULL) {
        buf_add_format(out, "{\"version\":%d,\"tenants\":{\n", VERSION);
        add_table(q, l, unix_s, out, in_table, &n_lines);
        add_others(q, unix_s, out, in_table, &n_lines);
        buf_add_str(out, "\n}}\n");
    }
    bool good = in_table != NULL && !out->failed;
    free(in_table);
    if (!good)
        return inferd_fail(err, INFERD_ENOMEM, "no memory to write the usage of %u tenants",
                           n_lines);
    q->writing = true;
    return INFERD_OK;
}

void quota_file_written(quota_file *q, bool ok) {
    q->writing = false;
    if (ok) q->on_disk_changes = q->begun_changes;
}

static bool write_all(int fd, const char *text, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, text, n);
        if (done < 0 && errno != EINTR) return false;
        if (done <= 0) continue;
        text += done;
        n -= (size_t)done;
    }
    return true;
}

/* The rename itself must survive a loss of power. */
static bool sync_folder(const char *path) {
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        strcpy(folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    bool good = fsync(fd) == 0;
    int e = errno;
    close(fd);
    errno = e;
    return good;
}

static inferd_status failed(const char *path, const char *doing, inferd_err *err) {
    return inferd_fail(err, INFERD_EIO, "the quota file %s: %s: %s", path, doing, strerror(errno));
}

inferd_status quota_file_write(const char *path, const char *text, size_t n, inferd_err *err) {
    char fresh[PATH_BYTES];
    int length = snprintf(fresh, sizeof fresh, "%s.new", path);
    if (length < 0 || (size_t)length >= sizeof fresh)
        return inferd_fail(err, INFERD_EINVAL,
                           "the path of the quota file has %zu bytes, at most %d are possible",
                           strlen(path), PATH_BYTES - 5);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) return failed(path, "opening the new file", err);
    bool good = write_all(fd, text, n) && fsync(fd) == 0;
    int e = errno;
    if (close(fd) != 0 && good) good = false, e = errno;
    if (!good) {
        unlink(fresh); // a partial file would keep a full disk full
        errno = e;
        return failed(path, "writing the new file", err);
    }
    if (rename(fresh, path) != 0) {
        e = errno;
        unlink(fresh);
        errno = e;
        return failed(path, "renaming the new file", err);
    }
    if (!sync_folder(path)) return failed(path, "syncing its folder", err);
    return INFERD_OK;
}
