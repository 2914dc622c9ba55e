/* log.c - see log.h.
 *
 * A regular file has no non-blocking mode, but a write to it waits only for memory.  A pipe, a
 * terminal or a socket is made non-blocking: through a file description of its own where that is
 * possible, because O_NONBLOCK belongs to the description, and the parent process shares that of
 * standard error.  Where it is not possible, poll() is called first; a line is shorter than
 * PIPE_BUF, so a writable pipe takes all of it. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "inferd/clock.h"

_Static_assert(LOG_LINE_BYTES <= PIPE_BUF, "a line must be written whole or not at all");

enum { TAIL_BYTES = 16 }; // reserved for `cut=true`, a brace and a newline

static struct {
    pthread_mutex_t lock; // protects everything below except level
    int fd;
    char *path; // owned; NULL = standard error
    bool json;
    bool may_wait; // the descriptor may block: poll first
    bool torn;     // the last line was written in part: end it before the next
    int level;
    uint64_t n_dropped, n_dropped_told;
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = STDERR_FILENO, .may_wait = true, .level = 1};

static const char *const level_names[] = {"error", "info", "debug"};

static inferd_status open_path(const char *path, int *out, inferd_err *err) {
    struct stat st;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);
    if (fd < 0)
        return inferd_fail(err, INFERD_EIO, "log file %s: %s", path,
                           errno == ENXIO ? "a FIFO without a reader" : strerror(errno));
    if (fstat(fd, &st) != 0 || S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode)) {
        close(fd);
        return inferd_fail(err, INFERD_EIO, "log file %s: not a file, pipe or terminal", path);
    }
    *out = fd;
    return INFERD_OK;
}

static void replace_fd(int fd, bool may_wait) {
    if (sink.fd != STDERR_FILENO) close(sink.fd);
    __atomic_store_n(&sink.fd, fd, __ATOMIC_RELAXED); // log_end_alone takes no lock
    sink.may_wait = may_wait;
    sink.torn = false;
}

inferd_status log_open(const char *path, bool json, log_level level, inferd_err *err) {
    int fd = STDERR_FILENO;
    char *copy = NULL;
    if (path != NULL) {
        inferd_status s = open_path(path, &fd, err);
        if (s != INFERD_OK) return s;
        copy = strdup(path);
        if (copy == NULL) {
            close(fd);
            return inferd_fail(err, INFERD_ENOMEM, "no memory for the name of the log file");
        }
    }
    pthread_mutex_lock(&sink.lock);
    replace_fd(fd, path == NULL);
    free(sink.path);
    sink.path = copy;
    sink.json = json;
    __atomic_store_n(&sink.level, (int)level, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sink.lock);
    return INFERD_OK;
}

inferd_status log_reopen(inferd_err *err) {
    int fd;
    if (sink.path == NULL) return INFERD_OK;
    inferd_status s = open_path(sink.path, &fd, err);
    if (s != INFERD_OK) return s;
    pthread_mutex_lock(&sink.lock);
    replace_fd(fd, false);
    pthread_mutex_unlock(&sink.lock);
    return INFERD_OK;
}

void log_close(void) {
    pthread_mutex_lock(&sink.lock);
    replace_fd(STDERR_FILENO, true);
    free(sink.path);
    sink.path = NULL;
    sink.json = false;
    pthread_mutex_unlock(&sink.lock);
}

bool log_wants(log_level level) {
    return (int)level <= __atomic_load_n(&sink.level, __ATOMIC_RELAXED);
}

uint64_t log_n_dropped(void) {
    pthread_mutex_lock(&sink.lock);
    uint64_t n = sink.n_dropped;
    pthread_mutex_unlock(&sink.lock);
    return n;
}

/* -- building a line -- */

/* A field is appended whole or not at all: on failure the line ends before it. */
static void put(log_line *line, const char *p, size_t n, bool *fits) {
    if (line->n + n > LOG_LINE_BYTES - TAIL_BYTES) *fits = false;
    if (!*fits) return;
    memcpy(line->text + line->n, p, n);
    line->n += n;
}
static void put_str(log_line *line, const char *s, bool *fits) {
    put(line, s, strlen(s), fits);
}

static void put_name(log_line *line, const char *name, bool *fits) {
    if (line->json) {
        put_str(line, line->n == 1 ? "\"" : ",\"", fits);
        put_str(line, name, fits);
        put_str(line, "\":", fits);
    } else {
        if (line->n > 0) put_str(line, " ", fits);
        put_str(line, name, fits);
        put_str(line, "=", fits);
    }
}

static void end_field(log_line *line, size_t at, bool fits) {
    if (fits) return;
    line->n = at;
    line->cut = true;
}

/* Bytes that are neither printable ASCII nor part of valid UTF-8 are written \xNN (\u00NN in JSON,
 * the byte's Latin-1 character), because logs are read in terminals. */
static size_t utf8_length(const unsigned char *p, size_t n) {
    static const struct {
        unsigned char mask, lead;
        uint32_t min;
    } forms[] = {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t f = 0; f < INFERD_COUNT(forms); f++) {
        if ((p[0] & forms[f].mask) != forms[f].lead) continue;
        uint32_t c = p[0] & (unsigned char)~forms[f].mask;
        size_t length = f + 2;
        if (length > n) return 0;
        for (size_t i = 1; i < length; i++) {
            if ((p[i] & 0xc0) != 0x80) return 0;
            c = c << 6 | (p[i] & 0x3f);
        }
        if (c < forms[f].min || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
        if (c < 0xa0) return 0; // C1 controls
        /* Marks that reorder or hide text. */
        if ((c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
            (c >= 0x2060 && c <= 0x2069) || c == 0xfeff)
            return 0;
        return length;
    }
    return 0;
}

static void put_quoted(log_line *line, bytes v, bool *fits) {
    static const char digits[] = "0123456789abcdef";
    put_str(line, "\"", fits);
    for (size_t i = 0; i < v.n && *fits;) {
        unsigned char c = (unsigned char)v.p[i];
        size_t length = c < 0x80 ? 1 : utf8_length((const unsigned char *)v.p + i, v.n - i);
        if (c == '"' || c == '\\') {
            char escaped[2] = {'\\', (char)c};
            put(line, escaped, 2, fits);
            i++;
        } else if (c < 0x20 || c == 0x7f || length == 0) {
            char hex[2] = {digits[c >> 4], digits[c & 15]};
            put_str(line, line->json ? "\\u00" : "\\x", fits);
            put(line, hex, 2, fits);
            i++;
        } else {
            put(line, v.p + i, length, fits);
            i += length;
        }
    }
    put_str(line, "\"", fits);
}

/* May key=value show it without quotes? */
static bool is_plain(bytes v) {
    if (v.n == 0) return false;
    for (size_t i = 0; i < v.n; i++) {
        char c = v.p[i];
        bool alnum = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!alnum && (c == 0 || strchr("-_.:/+@%", c) == NULL)) return false;
    }
    return true;
}

static void put_field(log_line *line, const char *name, const char *raw) {
    bool fits = true;
    size_t at = line->n;
    if (!line->wanted) return;
    put_name(line, name, &fits);
    put_str(line, raw, &fits);
    end_field(line, at, fits);
}

void log_bytes(log_line *line, const char *name, bytes value) {
    bool fits = true;
    size_t at = line->n;
    if (!line->wanted) return;
    put_name(line, name, &fits);
    if (!line->json && is_plain(value))
        put(line, value.p, value.n, &fits);
    else
        put_quoted(line, value, &fits);
    end_field(line, at, fits);
}

void log_str(log_line *line, const char *name, const char *value) {
    log_bytes(line, name, (bytes){value, value == NULL ? 0 : strlen(value)});
}

void log_u64(log_line *line, const char *name, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    put_field(line, name, text);
}

void log_i64(log_line *line, const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    put_field(line, name, text);
}

void log_bool(log_line *line, const char *name, bool value) {
    put_field(line, name, value ? "true" : "false");
}

static bool is_leap(int year) {
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

/* Without gmtime_r: it takes a lock of the C library, which a hanging thread may hold. */
void log_stamp(char out[LOG_STAMP_BYTES], const struct timespec *at) {
    enum { DAY_S = 86400, FEBRUARY = 1 };
    static const int days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t s = at->tv_sec > 0 ? at->tv_sec : 0, day = s / DAY_S;
    int of_day = (int)(s % DAY_S), year = 1970, month = 0;
    for (; day >= 365 + is_leap(year); year++) day -= 365 + is_leap(year);
    for (; day >= days[month] + (month == FEBRUARY && is_leap(year)); month++)
        day -= days[month] + (month == FEBRUARY && is_leap(year));
    snprintf(out, LOG_STAMP_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", year, month + 1,
             (int)day + 1, of_day / 3600, of_day / 60 % 60, of_day % 60,
             (int)(at->tv_nsec / 1000000));
}

static void begin(log_line *line, bool json, log_level level, const char *event) {
    struct timespec now;
    char stamp[LOG_STAMP_BYTES];
    line->json = json;
    line->cut = false;
    line->n = 0;
    if (json) line->text[line->n++] = '{';
    clock_gettime(CLOCK_REALTIME, &now);
    log_stamp(stamp, &now);
    log_str(line, "ts", stamp);
    log_u64(line, "mono_us", clock_now_us());
    log_str(line, "level", level_names[level]);
    log_str(line, "event", event);
}

void log_begin(log_line *line, log_level level, const char *event) {
    line->wanted = log_wants(level);
    if (line->wanted) begin(line, sink.json, level, event);
}

static void finish(log_line *line) {
    static const char *const tails[2][2] = {{"\n", " cut=true\n"}, {"}\n", ",\"cut\":true}\n"}};
    const char *tail = tails[line->json][line->cut];
    memcpy(line->text + line->n, tail, strlen(tail));
    line->n += strlen(tail);
}

/* -- writing a line -- */

static ssize_t write_some(const char *p, size_t n) {
    ssize_t done;
    do done = write(sink.fd, p, n);
    while (done < 0 && errno == EINTR);
    return done;
}

/* False: it would block, or was not written completely (a full disk). */
static bool write_now(const char *p, size_t n) {
    if (sink.may_wait) {
        struct pollfd pfd = {.fd = sink.fd, .events = POLLOUT};
        if (poll(&pfd, 1, 0) != 1 || (pfd.revents & POLLOUT) == 0) return false;
    }
    if (sink.torn && write_some("\n", 1) != 1) return false;
    ssize_t done = write_some(p, n);
    sink.torn = done > 0 && done < (ssize_t)n;
    return done == (ssize_t)n;
}

static void tell_dropped(void) {
    log_line line;
    line.wanted = true;
    begin(&line, sink.json, LOG_LEVEL_ERROR, "log_dropped");
    log_u64(&line, "lines", sink.n_dropped - sink.n_dropped_told);
    finish(&line);
    if (write_now(line.text, line.n)) sink.n_dropped_told = sink.n_dropped;
}

void log_end(log_line *line) {
    if (!line->wanted) return;
    finish(line);
    pthread_mutex_lock(&sink.lock);
    if (sink.n_dropped != sink.n_dropped_told) tell_dropped();
    if (sink.n_dropped != sink.n_dropped_told || !write_now(line->text, line->n)) sink.n_dropped++;
    pthread_mutex_unlock(&sink.lock);
}

void log_end_alone(log_line *line) {
    enum { WAIT_MS = 1000 };
    struct pollfd pfd = {.fd = __atomic_load_n(&sink.fd, __ATOMIC_RELAXED), .events = POLLOUT};
    if (!line->wanted) return;
    finish(line);
    if (poll(&pfd, 1, WAIT_MS) != 1 || (pfd.revents & POLLOUT) == 0) return;
    while (write(pfd.fd, line->text, line->n) < 0 && errno == EINTR) {
    }
}

void log_text(log_level level, const char *event, const char *name, const char *value) {
    log_line line;
    log_begin(&line, level, event);
    log_str(&line, name, value);
    log_end(&line);
}
