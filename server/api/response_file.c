/* response_file.c - see response_file.h. */
#include "response_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

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

void response_head_spell(char out[RESPONSE_HEAD_BYTES + 1], uint64_t tenant, bytes body) {
    snprintf(out, RESPONSE_HEAD_BYTES + 1, RESPONSE_HEAD " %016llx %016llx %016llx\n",
             (unsigned long long)tenant, (unsigned long long)siphash(check_key, body.p, body.n),
             (unsigned long long)body.n);
}

bool response_head_read(const char *head, size_t n_file, uint64_t *tenant) {
    unsigned long long numbers[3];
    if (n_file < RESPONSE_HEAD_BYTES || head[RESPONSE_HEAD_BYTES - 1] != '\n' ||
        sscanf(head, RESPONSE_HEAD " %16llx %16llx %16llx", &numbers[0], &numbers[1],
               &numbers[2]) != 3)
        return false;
    *tenant = numbers[0];
    return numbers[2] == n_file - RESPONSE_HEAD_BYTES;
}

void response_file_name(char out[RESPONSE_NAME_BYTES], const char *id) {
    snprintf(out, RESPONSE_NAME_BYTES, "%s" RESPONSE_NAME_TAIL, id);
}

void response_file_delete(int folder, const char *id) {
    char name[RESPONSE_NAME_BYTES];
    response_file_name(name, id);
    unlinkat(folder, name, 0);
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

bool response_file_read(int folder, const char *name, size_t n_max, buf *out, struct stat *st) {
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_size <= RESPONSE_BYTES_MAX;
    size_t n = ok ? size_min((size_t)st->st_size, n_max) : 0;
    while (ok && out->n < n && buf_reserve(out, n - out->n)) {
        ssize_t got = read(fd, out->p + out->n, n - out->n);
        if (got > 0) out->n += (size_t)got;
        if (got == 0 || (got < 0 && errno != EINTR)) ok = false;
    }
    close(fd);
    return ok && !out->failed;
}
