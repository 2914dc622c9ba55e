/* kv_disk_file.c - see kv_disk_file.h. */
#include "kv_disk_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "prefix.h"

enum { NAME_DIGITS = 32, ALIGN_BYTES = 64 };
_Static_assert(KV_FILE_NAME_BYTES == NAME_DIGITS + sizeof ".tmp", "a name has so many digits");

static const char magic[8] = {'i', 'n', 'f', 'e', 'r', 'd', 'k', 'v'};

/* As stored in the file, in the machine's byte order: with another order `order` differs. */
typedef struct file_header {
    char magic[8];
    uint32_t version, order;
    uint64_t name[2], model[2], scope[2];
    uint32_t depth, block_tokens;
    uint32_t kv_type, n_groups;
    uint32_t n_layers, n_kv_heads;
    uint32_t head_dim, group_layers;
    uint64_t slot_bytes, n_bytes; // n_bytes: of the file
    uint64_t sum[2];              // of all other bytes of the file, with the folder's key
} file_header;
_Static_assert(sizeof(file_header) == KV_DISK_HEADER_BYTES, "the header's size is the format's");

/* ---- its bytes ---- */

static size_t token_bytes(const kv_layout *l) {
    size_t n = l->block_tokens * sizeof(tok_id);
    return (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

size_t kv_disk_file_bytes(const kv_layout *l) {
    size_t n = sizeof(file_header) + token_bytes(l) + l->n_groups * l->slot_bytes;
    return (n + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

unsigned char *kv_disk_slots(const kv_layout *l, unsigned char *file) {
    return file + sizeof(file_header) + token_bytes(l);
}

static prefix_name sum_of(const uint64_t key[2], const unsigned char *file, size_t n_bytes) {
    enum { WORDS = 512 }; // a piece at a time: the file need not be aligned to words
    uint64_t words[WORDS], sums[4] = {0};
    for (size_t at = 0; at < n_bytes;) {
        size_t n = size_min(n_bytes - at, sizeof words);
        memcpy(words, file + at, n);
        if (at == 0)
            memset((unsigned char *)words + offsetof(file_header, sum), 0, 2 * sizeof *words);
        prefix_name piece = prefix_hash(key, words, n / sizeof *words);
        memcpy(sums + 2, piece.h, sizeof piece.h);
        prefix_name all = prefix_hash(key, sums, 4);
        memcpy(sums, all.h, sizeof all.h);
        at += n;
    }
    return (prefix_name){{sums[0], sums[1]}};
}

static file_header header_of(const kv_disk_block *b) {
    const kv_layout *l = b->layout;
    file_header h = {.version = KV_DISK_VERSION,
                     .order = 0x01020304,
                     .depth = b->depth,
                     .block_tokens = l->block_tokens,
                     .kv_type = (uint32_t)l->type,
                     .n_groups = l->n_groups,
                     .n_layers = l->n_layers,
                     .n_kv_heads = l->n_kv_heads,
                     .head_dim = l->head_dim,
                     .group_layers = l->group_layers,
                     .slot_bytes = l->slot_bytes,
                     .n_bytes = kv_disk_file_bytes(l)};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.name, b->name, sizeof h.name);
    memcpy(h.model, b->model, sizeof h.model);
    memcpy(h.scope, b->scope, sizeof h.scope);
    return h;
}

void kv_disk_fill(const kv_disk_block *b, unsigned char *file) {
    const kv_layout *l = b->layout;
    size_t n_bytes = kv_disk_file_bytes(l), n_tokens = l->block_tokens * sizeof(tok_id);
    file_header h = header_of(b);
    unsigned char *slots = kv_disk_slots(l, file), *end = slots + l->n_groups * l->slot_bytes;
    memcpy(file, &h, sizeof h);
    memcpy(file + sizeof h, b->tokens, n_tokens);
    memset(file + sizeof h + n_tokens, 0, token_bytes(l) - n_tokens);
    memset(end, 0, (size_t)(file + n_bytes - end));
}

void kv_disk_put_sum(const uint64_t key[2], unsigned char *file, size_t n_bytes) {
    prefix_name sum = sum_of(key, file, n_bytes);
    memcpy(file + offsetof(file_header, sum), sum.h, sizeof sum.h);
}

bool kv_disk_is_whole(const uint64_t key[2], const kv_disk_block *b, const unsigned char *file,
                      size_t n_bytes) {
    file_header h, wanted = header_of(b);
    if (n_bytes != kv_disk_file_bytes(b->layout)) return false;
    memcpy(&h, file, sizeof h);
    memcpy(wanted.sum, h.sum, sizeof wanted.sum);
    if (memcmp(&h, &wanted, sizeof h) != 0 ||
        memcmp(file + sizeof h, b->tokens, b->layout->block_tokens * sizeof(tok_id)) != 0)
        return false;
    prefix_name sum = sum_of(key, file, n_bytes);
    return memcmp(sum.h, h.sum, sizeof h.sum) == 0;
}

/* ---- its name ---- */

void kv_file_print_name(const uint64_t name[2], const char *end, char out[KV_FILE_NAME_BYTES]) {
    snprintf(out, KV_FILE_NAME_BYTES, "%016llx%016llx%s", (unsigned long long)name[0],
             (unsigned long long)name[1], end);
}

bool kv_file_read_name(const char *text, const char *end, uint64_t out[2]) {
    for (size_t i = 0; i < NAME_DIGITS; i++) {
        char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false; // rejects a NUL, too
        uint64_t digit = (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        out[i / 16] = out[i / 16] << 4 | digit;
    }
    return strcmp(text + NAME_DIGITS, end) == 0;
}

/* ---- in a folder ---- */

/* The next process finds the order of use by the mtime; the system's own is not exact enough. */
static void note_use(int fd) {
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    futimens(fd, times);
}

static kv_file_answer why_not_opened(void) {
    if (errno == ENOENT) return KV_FILE_MISSING;
    return errno == ELOOP ? KV_FILE_BAD : KV_FILE_NOT_NOW; // ELOOP: a symbolic link
}

static kv_file_answer read_all(int fd, unsigned char *file, size_t n_bytes,
                               kv_file_read_fn *read_some) {
    for (size_t at = 0; at < n_bytes;) {
        ssize_t n = read_some(fd, file + at, n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return KV_FILE_NOT_NOW;
        if (n == 0) return KV_FILE_BAD; // it became shorter
        at += (size_t)n;
    }
    return KV_FILE_WHOLE;
}

/* Reads an open file; *file is the caller's, whatever the answer. */
static kv_file_answer read_open(int fd, const uint64_t key[2], const kv_disk_block *b,
                                kv_file_read_fn *read_some, unsigned char **file) {
    struct stat st;
    size_t n_bytes = kv_disk_file_bytes(b->layout);
    if (fstat(fd, &st) != 0) return KV_FILE_NOT_NOW;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != n_bytes) return KV_FILE_BAD;
    *file = aligned_alloc(ALIGN_BYTES, n_bytes);
    if (*file == NULL) return KV_FILE_NOT_NOW;
    kv_file_answer a = read_all(fd, *file, n_bytes, read_some);
    if (a == KV_FILE_WHOLE && !kv_disk_is_whole(key, b, *file, n_bytes)) a = KV_FILE_BAD;
    return a;
}

kv_file_answer kv_file_read(int dir_fd, const uint64_t key[2], const kv_disk_block *b,
                            kv_file_read_fn *read_some, unsigned char **file) {
    char text[KV_FILE_NAME_BYTES];
    *file = NULL;
    kv_file_print_name(b->name, ".kv", text);
    int fd = openat(dir_fd, text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return why_not_opened();
    kv_file_answer a = read_open(fd, key, b, read_some, file);
    int problem = errno;
    if (a == KV_FILE_WHOLE) {
        note_use(fd);
    } else {
        free(*file);
        *file = NULL;
    }
    close(fd);
    errno = problem;
    return a;
}

static int write_all(int fd, const unsigned char *p, size_t n, kv_file_write_fn *write_some) {
    for (size_t at = 0; at < n;) {
        ssize_t done = write_some(fd, p + at, n - at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        if (done == 0) return ENOSPC;
        at += (size_t)done;
    }
    return 0;
}

int kv_file_write(int dir_fd, const uint64_t name[2], const unsigned char *file, size_t n_bytes,
                  kv_file_write_fn *write_some) {
    char text[KV_FILE_NAME_BYTES], partial[KV_FILE_NAME_BYTES];
    kv_file_print_name(name, ".kv", text);
    kv_file_print_name(name, ".tmp", partial);
    int fd = openat(dir_fd, partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int problem = write_all(fd, file, n_bytes, write_some);
    note_use(fd);
    if (close(fd) != 0 && problem == 0) problem = errno;
    if (problem == 0 && renameat(dir_fd, partial, dir_fd, text) != 0) problem = errno;
    if (problem != 0) unlinkat(dir_fd, partial, 0);
    return problem;
}

void kv_file_remove(int dir_fd, const uint64_t name[2]) {
    char text[KV_FILE_NAME_BYTES];
    kv_file_print_name(name, ".kv", text);
    unlinkat(dir_fd, text, 0);
}
