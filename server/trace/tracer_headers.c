/* tracer_headers.c - what the configuration says of a collector, checked: its URL, and a file of
 * headers. */
#include "tracer_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the URL ---- */

/* scheme://authority/path; libcurl reads it in full. */
bool tracer_check_endpoint(const char *url, inferd_err *err) {
    const char *problem = NULL;
    size_t n_scheme = strncasecmp(url, "http://", 7) == 0    ? 7
                      : strncasecmp(url, "https://", 8) == 0 ? 8
                                                             : 0;
    const char *authority = url + n_scheme, *path = authority + strcspn(authority, "/?#");
    for (const char *p = url; *p != 0; p++)
        if (*p <= ' ' || *p > '~') n_scheme = 0;
    if (n_scheme == 0 || path == authority)
        problem = "expected a URL such as \"http://127.0.0.1:4318/v1/traces\"";
    else if (memchr(authority, '@', (size_t)(path - authority)) != NULL)
        problem = "a user or password in the URL would be logged: use headers_file";
    else if (path[0] != '/' || path[1] == 0)
        problem = "has no path; that of a collector is usually \"/v1/traces\"";
    if (problem != NULL) inferd_fail(err, INFERD_EINVAL, "%s", problem);
    return problem == NULL;
}

/* ---- headers ---- */

void trace_headers_wipe(trace_headers *h) {
    for (uint32_t i = 0; i < h->n; i++) {
        explicit_bzero(h->lines[i], strlen(h->lines[i]));
        free(h->lines[i]);
    }
    *h = (trace_headers){0};
}

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Those that libcurl or the tracer sets. */
static bool is_ours(const char *line, size_t n_name) {
    static const char *const names[] = {"content-type",      "content-length", "content-encoding",
                                        "transfer-encoding", "host",           "expect"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++)
        if (strlen(names[i]) == n_name && strncasecmp(names[i], line, n_name) == 0) return true;
    return false;
}

/* Why the line is no header; NULL: it is one.  Its text is never shown: it may be a secret. */
static const char *problem_of(const char *line) {
    size_t n_name = 0;
    while (is_name_char(line[n_name])) n_name++;
    if (n_name == 0 || line[n_name] != ':') return "expected \"Name: value\"";
    if (is_ours(line, n_name)) return "this header is set by the sender";
    const char *value = line + n_name + 1;
    if (value[strspn(value, " \t")] == 0) return "the header has no value";
    for (; *value != 0; value++)
        if ((*value < ' ' && *value != '\t') || *value > '~')
            return "the value has a character that is not printable ASCII";
    return NULL;
}

static inferd_status add_line(const char *path, uint32_t number, const char *line,
                              trace_headers *out, inferd_err *err) {
    if (line[strspn(line, " \t")] == 0 || line[0] == '#') return INFERD_OK;
    const char *problem = problem_of(line);
    if (problem == NULL && out->n == TRACER_HEADERS_MAX) problem = "there are more than 16 headers";
    if (problem != NULL) return inferd_fail(err, INFERD_EINVAL, "%s:%u: %s", path, number, problem);
    char *copy = strdup(line);
    if (copy == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for headers");
    out->lines[out->n++] = copy;
    return INFERD_OK;
}

static inferd_status read_file(const char *path, char text[TRACER_HEADERS_BYTES_MAX + 1],
                               inferd_err *err) {
    struct stat st;
    size_t n = 0;
    ssize_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return inferd_fail(err, INFERD_EINVAL, "%s: %s", path, strerror(errno));
    const char *problem = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        problem = "is not a regular file";
    else if (st.st_mode & S_IWOTH)
        problem = "all users may write it";
    else if (st.st_size > TRACER_HEADERS_BYTES_MAX)
        problem = "is longer than 16384 bytes";
    while (problem == NULL && n < TRACER_HEADERS_BYTES_MAX &&
           (got = read(fd, text + n, TRACER_HEADERS_BYTES_MAX - n)) > 0)
        n += (size_t)got;
    if (problem == NULL && got < 0) problem = strerror(errno);
    close(fd);
    text[n] = 0;
    if (problem == NULL && memchr(text, 0, n) != NULL) problem = "has a zero byte";
    return problem == NULL ? INFERD_OK : inferd_fail(err, INFERD_EINVAL, "%s: %s", path, problem);
}

inferd_status trace_headers_read(const char *path, trace_headers *out, inferd_err *err) {
    char text[TRACER_HEADERS_BYTES_MAX + 1];
    uint32_t number = 0;
    *out = (trace_headers){0};
    inferd_status st = read_file(path, text, err);
    for (char *line = text, *end; st == INFERD_OK && line != NULL; line = end) {
        end = strchr(line, '\n');
        if (end != NULL) *end++ = 0;
        line[strcspn(line, "\r")] = 0;
        st = add_line(path, ++number, line, out, err);
    }
    explicit_bzero(text, sizeof text);
    if (st != INFERD_OK) trace_headers_wipe(out);
    return st;
}

bool tracer_check_headers(const char *path, inferd_err *err) {
    trace_headers h;
    inferd_status st = trace_headers_read(path, &h, err);
    trace_headers_wipe(&h);
    return st == INFERD_OK;
}
