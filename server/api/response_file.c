/* response_file.c - see response_file.h. */
#include "response_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "form_body.h"
#include "inferd/siphash.h"

/* A fixed key: the checksum finds damage, not forgery. */
static const unsigned char check_key[16] = "inferd responses";

bool response_is_id(const char *s, size_t n) {
    if (n != RESPONSE_ID_BYTES - 1 || memcmp(s, "resp_", 5) != 0) return false;
    for (size_t i = 5; i < n; i++)
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'f')) return false;
    return true;
}

uint64_t response_hash(const char *tenant) {
    return siphash(check_key, tenant, strlen(tenant));
}

static void spell_head(char out[RESPONSE_HEAD_BYTES + 1], uint64_t tenant, bytes body) {
    snprintf(out, RESPONSE_HEAD_BYTES + 1, RESPONSE_HEAD " %016llx %016llx %016llx\n",
             (unsigned long long)tenant, (unsigned long long)siphash(check_key, body.p, body.n),
             (unsigned long long)body.n);
}

static bytes body_of(const buf *text) {
    return (bytes){text->p + RESPONSE_HEAD_BYTES, text->n - RESPONSE_HEAD_BYTES};
}

bool response_compose(buf *out, const char *tenant, bytes items, bytes output, bytes response) {
    char head[RESPONSE_HEAD_BYTES + 1];
    buf_init(out, RESPONSE_BYTES_MAX);
    if (!buf_reserve(out, RESPONSE_HEAD_BYTES)) return false;
    out->n = RESPONSE_HEAD_BYTES; // its first line, which comes at last
    form_add_cstr(out, "{\"tenant\":", tenant);
    buf_add_str(out, ",\"items\":[");
    buf_add(out, items.p, items.n);
    if (items.n > 0 && output.n > 0) buf_add_char(out, ',');
    buf_add(out, output.p, output.n);
    buf_add_str(out, "],\"response\":");
    buf_add(out, response.p, response.n);
    buf_add_char(out, '}');
    if (out->failed) return false;
    spell_head(head, response_hash(tenant), body_of(out));
    memcpy(out->p, head, RESPONSE_HEAD_BYTES);
    return true;
}

bool response_head_read(const char *head, size_t n_file, uint64_t *tenant) {
    char line[RESPONSE_HEAD_BYTES + 1] = "";
    unsigned long long numbers[3];
    if (n_file < RESPONSE_HEAD_BYTES || head[RESPONSE_HEAD_BYTES - 1] != '\n') return false;
    memcpy(line, head, RESPONSE_HEAD_BYTES);
    if (sscanf(line, RESPONSE_HEAD " %16llx %16llx %16llx", &numbers[0], &numbers[1],
               &numbers[2]) != 3)
        return false;
    *tenant = numbers[0];
    return numbers[2] == n_file - RESPONSE_HEAD_BYTES;
}

bool response_is_whole(const buf *text, uint64_t *tenant) {
    char head[RESPONSE_HEAD_BYTES + 1];
    if (!response_head_read(text->p, text->n, tenant)) return false;
    spell_head(head, *tenant, body_of(text));
    return memcmp(head, text->p, RESPONSE_HEAD_BYTES) == 0;
}

/* The position behind the array or object at `i`, or text.n. */
static size_t skip_group(bytes text, size_t i) {
    uint32_t depth = 0;
    for (bool quoted = false; i < text.n; i++) {
        char c = text.p[i];
        if (c == '"') quoted = !quoted;
        if (c == '\\') i++; // only in strings
        if (quoted) continue;
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && --depth == 0) return i + 1;
    }
    return text.n;
}

static bool skip(bytes *text, const char *word, size_t n) {
    if (text->n < n || memcmp(text->p, word, n) != 0) return false;
    *text = (bytes){text->p + n, text->n - n};
    return true;
}

response_reading response_divide(const buf *text, const char *tenant, const char *id,
                                 response_parts *out) {
    static const char response[] = ",\"response\":", begin[] = "{\"id\":\"";
    bytes rest = body_of(text);
    buf front = {0};
    form_add_cstr(&front, "{\"tenant\":", tenant);
    buf_add_str(&front, ",\"items\":");
    bool no_memory = front.failed;
    bool ok = !no_memory && skip(&rest, front.p, front.n) && rest.n > 0 && rest.p[0] == '[';
    buf_deinit(&front);
    if (!ok) return no_memory ? RESPONSE_NO_MEMORY : RESPONSE_DAMAGED;
    out->items = (bytes){rest.p, skip_group(rest, 0)};
    rest = (bytes){rest.p + out->items.n, rest.n - out->items.n};
    if (!skip(&rest, response, sizeof response - 1) || rest.n == 0) return RESPONSE_DAMAGED;
    out->response = (bytes){rest.p, rest.n - 1}; // the last byte ends the whole
    ok = skip(&rest, begin, sizeof begin - 1) && skip(&rest, id, strlen(id)) && rest.n > 0 &&
         rest.p[0] == '"';
    return ok ? RESPONSE_READ : RESPONSE_DAMAGED;
}

void response_file_name(char out[RESPONSE_NAME_BYTES], const char *id) {
    snprintf(out, RESPONSE_NAME_BYTES, "%s" RESPONSE_NAME_TAIL, id);
}

bool response_file_delete(int folder, const char *id) {
    char name[RESPONSE_NAME_BYTES];
    response_file_name(name, id);
    return unlinkat(folder, name, 0) == 0 || errno == ENOENT;
}

static bool write_all(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno != EINTR) return false;
        if (done <= 0) continue;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

bool response_file_write(int folder, const char *id, const buf *text) {
    char name[RESPONSE_NAME_BYTES];
    response_file_name(name, id);
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(folder, RESPONSE_NEW_NAME, flags, 0600);
    if (fd < 0) return false;
    bool ok = write_all(fd, text->p, text->n);
    int e = errno;
    if (close(fd) != 0 && ok) ok = false, e = errno;
    if (ok && renameat(folder, RESPONSE_NEW_NAME, folder, name) != 0) ok = false, e = errno;
    if (!ok) unlinkat(folder, RESPONSE_NEW_NAME, 0); // it would keep a full disk full
    errno = e;
    return ok;
}

/* RESPONSE_READ: it has all n bytes. */
static response_reading read_all(int fd, size_t n, buf *out) {
    size_t end = out->n + n;
    if (!buf_reserve(out, n)) return RESPONSE_NO_MEMORY;
    while (out->n < end) {
        ssize_t got = read(fd, out->p + out->n, end - out->n);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0) errno = EIO; // something cuts it off: the next look finds out
        if (got <= 0) return RESPONSE_UNREAD;
        out->n += (size_t)got;
    }
    return RESPONSE_READ;
}

response_reading response_file_read(int folder, const char *name, size_t n_max, buf *out,
                                    struct stat *st) {
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return RESPONSE_GONE;
    if (fd < 0) return errno == ELOOP ? RESPONSE_DAMAGED : RESPONSE_UNREAD; // a link is not ours
    response_reading r = RESPONSE_UNREAD;
    if (fstat(fd, st) == 0)
        r = !S_ISREG(st->st_mode) || st->st_size > RESPONSE_BYTES_MAX
                ? RESPONSE_DAMAGED
                : read_all(fd, size_min((size_t)st->st_size, n_max), out);
    int reason = errno;
    close(fd);
    errno = reason;
    return r;
}
