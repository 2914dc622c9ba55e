/* kv_disk.c - see kv_disk.h.
 *
 *     put_begin   -> QUEUED -> THERE    the thread wrote it
 *     the folder  -> THERE              found at the start
 *     THERE       -> gone               oldest when room is wanted; bad or missing when read
 *
 *     ask         -> ASKED -> READING -> READY or GONE    give_back ends it anywhere
 *
 * The index is a hash table of small records with numbers for links, so that it can grow; the
 * records form a list by use, the one used longest ago first.  A file is read and written by the
 * thread alone, outside the lock. */
#include "scheduler/kv_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "prefix.h"

enum {
    NAME_DIGITS = 32,
    FILE_NAME_BYTES = NAME_DIGITS + 5, // ".kv" or ".tmp", and the end
    KEY_BYTES = 16,
    FIRST_RECORDS = 256,
    ALIGN_BYTES = 64,
    QUEUED_BLOCKS_MAX = 4096
};
#define NONE UINT32_MAX

static const char magic[8] = {'i', 'n', 'f', 'e', 'r', 'd', 'k', 'v'};

/* As it lies in the file, in the machine's order of bytes: another one's differs in `order`. */
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

typedef struct record {
    uint64_t name[2];
    uint64_t n_bytes;
    uint32_t next;         // in its bucket; of unused ones the next unused
    uint32_t older, newer; // by use
    bool there;            // else it is being written
} record;

typedef struct put {
    struct put *next;
    uint64_t name[2];
    size_t n_bytes;
    unsigned char file[]; // [n_bytes]
} put;

typedef enum ticket_state { TICKET_FREE, TICKET_ASKED, TICKET_READING, TICKET_DONE } ticket_state;

typedef struct ticket {
    ticket_state state;
    bool given_back; // while the thread reads
    uint64_t asked_no;
    kv_disk_block block;
    kv_layout layout;
    tok_id *tokens;      // owned
    unsigned char *file; // owned; DONE: NULL means gone
    uint64_t read_us;
    void (*wake)(void *ctx);
    void *wake_ctx;
} ticket;

struct kv_disk {
    int dir_fd, key_fd;
    uint64_t key[2];
    uint64_t max_bytes, off_us;
    ssize_t (*write)(int fd, const void *p, size_t n);
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; // of everything below
    pthread_cond_t work, room;
    bool closing, scanned;
    uint64_t off_until_us;
    record *records; // [n_records] owned
    uint32_t n_records, unused;
    uint32_t *buckets; // [n_records] owned
    uint32_t oldest, newest;
    put *first_put, *last_put; // owned
    size_t queued_bytes;       // of puts begun and not written
    ticket tickets[KV_DISK_READS_MAX];
    uint64_t next_no;
    uint32_t n_asked;
    kv_disk_stats stats;
};

/* ---- the file, as bytes ---- */

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
    enum { WORDS = 512 }; // a piece at a time: the file need not lie on words
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

/* All but the slots' bytes and the checksum. */
static void fill(const kv_disk_block *b, unsigned char *file) {
    const kv_layout *l = b->layout;
    size_t n_bytes = kv_disk_file_bytes(l), n_tokens = l->block_tokens * sizeof(tok_id);
    file_header h = header_of(b);
    unsigned char *slots = kv_disk_slots(l, file), *end = slots + l->n_groups * l->slot_bytes;
    memcpy(file, &h, sizeof h);
    memcpy(file + sizeof h, b->tokens, n_tokens);
    memset(file + sizeof h + n_tokens, 0, token_bytes(l) - n_tokens);
    memset(end, 0, (size_t)(file + n_bytes - end));
}

static void put_sum(const uint64_t key[2], unsigned char *file, size_t n_bytes) {
    prefix_name sum = sum_of(key, file, n_bytes);
    memcpy(file + offsetof(file_header, sum), sum.h, sizeof sum.h);
}

void kv_disk_seal(const uint64_t key[2], const kv_disk_block *b, unsigned char *file) {
    fill(b, file);
    put_sum(key, file, kv_disk_file_bytes(b->layout));
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

/* ---- names ---- */

static void print_name(const uint64_t name[2], const char *end, char out[FILE_NAME_BYTES]) {
    snprintf(out, FILE_NAME_BYTES, "%016llx%016llx%s", (unsigned long long)name[0],
             (unsigned long long)name[1], end);
}

/* Ours has as many digits as it should, and this end. */
static bool read_name(const char *text, const char *end, uint64_t out[2]) {
    for (size_t i = 0; i < NAME_DIGITS; i++) {
        char c = text[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false; // and not its NUL
        uint64_t digit = (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        out[i / 16] = out[i / 16] << 4 | digit;
    }
    return strcmp(text + NAME_DIGITS, end) == 0;
}

/* ---- the index ---- */

static uint32_t *bucket_of(kv_disk *d, const uint64_t name[2]) {
    return &d->buckets[name[0] & (d->n_records - 1)];
}

static uint32_t find(kv_disk *d, const uint64_t name[2]) {
    for (uint32_t i = *bucket_of(d, name); i != NONE; i = d->records[i].next)
        if (d->records[i].name[0] == name[0] && d->records[i].name[1] == name[1]) return i;
    return NONE;
}

static void unlist(kv_disk *d, uint32_t i) {
    record *r = &d->records[i];
    *(r->older != NONE ? &d->records[r->older].newer : &d->oldest) = r->newer;
    *(r->newer != NONE ? &d->records[r->newer].older : &d->newest) = r->older;
}

static void list_newest(kv_disk *d, uint32_t i) {
    record *r = &d->records[i];
    r->older = d->newest;
    r->newer = NONE;
    *(d->newest != NONE ? &d->records[d->newest].newer : &d->oldest) = i;
    d->newest = i;
}

/* Twice as many records; false: no memory, or the bound. */
static bool grow(kv_disk *d) {
    uint32_t n_old = d->n_records, n = n_old > 0 ? 2 * n_old : FIRST_RECORDS;
    if (n > KV_DISK_FILES_MAX) return false;
    record *records = realloc(d->records, n * sizeof *records);
    if (records == NULL) return false;
    d->records = records;
    uint32_t *buckets = realloc(d->buckets, n * sizeof *buckets);
    if (buckets == NULL) return false;
    d->buckets = buckets;
    d->n_records = n;
    memset(buckets, 0xff, n * sizeof *buckets); // NONE
    for (uint32_t i = d->oldest; i != NONE; i = records[i].newer) {
        uint32_t *bucket = bucket_of(d, records[i].name);
        records[i].next = *bucket;
        *bucket = i;
    }
    for (uint32_t i = n; i-- > n_old;) {
        records[i] = (record){.next = d->unused};
        d->unused = i;
    }
    return true;
}

static uint32_t add(kv_disk *d, const uint64_t name[2], uint64_t n_bytes, bool there) {
    if (d->unused == NONE && !grow(d)) return NONE;
    uint32_t i = d->unused, *bucket = bucket_of(d, name);
    d->unused = d->records[i].next;
    d->records[i] = (record){{name[0], name[1]}, n_bytes, *bucket, NONE, NONE, there};
    *bucket = i;
    list_newest(d, i);
    d->stats.n_files += there;
    d->stats.n_bytes += there ? n_bytes : 0;
    return i;
}

static void forget(kv_disk *d, const uint64_t name[2]) {
    uint32_t i = find(d, name);
    if (i == NONE) return;
    record *r = &d->records[i];
    uint32_t *at = bucket_of(d, name);
    while (*at != i) at = &d->records[*at].next;
    *at = r->next;
    unlist(d, i);
    d->stats.n_files -= r->there;
    d->stats.n_bytes -= r->there ? r->n_bytes : 0;
    *r = (record){.next = d->unused};
    d->unused = i;
}

/* ---- the thread: what is in the folder ---- */

/* Called with the lock. */
static void say(kv_disk *d, const char *what, const char *why) {
    snprintf(d->stats.problem, sizeof d->stats.problem, "%s: %s", what, why);
}

typedef struct found {
    uint64_t name[2];
    uint64_t n_bytes, used_ns;
} found;

static int by_use(const void *a, const void *b) {
    const found *x = a, *y = b;
    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

/* What the folder holds of ours, at most as much as the index; half-written files go. */
static found *list_folder(const kv_disk *d, size_t *n) {
    found *all = NULL;
    size_t room = 0;
    int fd = openat(d->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    *n = 0;
    if (dir == NULL) {
        if (fd >= 0) close(fd);
        return NULL;
    }
    for (const struct dirent *e; (e = readdir(dir)) != NULL && *n < KV_DISK_FILES_MAX;) {
        found f = {0};
        struct stat st;
        if (read_name(e->d_name, ".tmp", f.name)) unlinkat(d->dir_fd, e->d_name, 0);
        if (!read_name(e->d_name, ".kv", f.name) ||
            fstatat(d->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (*n == room) {
            found *more = realloc(all, (room = room > 0 ? 2 * room : FIRST_RECORDS) * sizeof *all);
            if (more == NULL) break;
            all = more;
        }
        f.n_bytes = (uint64_t)st.st_size;
        f.used_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
        all[(*n)++] = f;
    }
    closedir(dir);
    if (all != NULL) qsort(all, *n, sizeof *all, by_use);
    return all;
}

static void remove_file(const kv_disk *d, const uint64_t name[2]) {
    char text[FILE_NAME_BYTES];
    print_name(name, ".kv", text);
    unlinkat(d->dir_fd, text, 0);
}

/* Called with the lock, which is open while a file goes.  The oldest go until n_bytes more fit. */
static void make_room(kv_disk *d, uint64_t n_bytes) {
    while (d->stats.n_files > 0 && (d->stats.n_bytes + n_bytes > d->max_bytes ||
                                    d->stats.n_files + QUEUED_BLOCKS_MAX > KV_DISK_FILES_MAX)) {
        uint32_t i = d->oldest;
        while (i != NONE && !d->records[i].there) i = d->records[i].newer;
        if (i == NONE) return;
        uint64_t name[2] = {d->records[i].name[0], d->records[i].name[1]};
        forget(d, name);
        d->stats.n_evicted++;
        pthread_mutex_unlock(&d->lock);
        remove_file(d, name);
        pthread_mutex_lock(&d->lock);
    }
}

static void scan(kv_disk *d) {
    size_t n;
    pthread_mutex_unlock(&d->lock);
    found *all = list_folder(d, &n);
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < n; i++)
        if (find(d, all[i].name) == NONE) add(d, all[i].name, all[i].n_bytes, true);
    free(all);
    make_room(d, 0);
    d->scanned = true;
}

/* ---- the thread: reading ---- */

/* For the next process, which finds the order of use by this.  By itself the machine is not exact
 * enough. */
static void note_use(int fd) {
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[1] = times[0];
    futimens(fd, times);
}

/* The bytes of the whole file; NULL: *missing, or it is not this block's. */
static unsigned char *read_file(const kv_disk *d, const ticket *t, bool *missing) {
    char text[FILE_NAME_BYTES];
    struct stat st;
    size_t n_bytes = kv_disk_file_bytes(&t->layout), at = 0;
    print_name(t->block.name, ".kv", text);
    int fd = openat(d->dir_fd, text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    *missing = fd < 0 && errno == ENOENT;
    if (fd < 0) return NULL;
    unsigned char *file = NULL;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == n_bytes)
        file = aligned_alloc(ALIGN_BYTES, n_bytes);
    while (file != NULL && at < n_bytes) {
        ssize_t n = read(fd, file + at, n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        at += (size_t)n;
    }
    if (file != NULL && !kv_disk_is_whole(d->key, &t->block, file, at)) {
        free(file);
        file = NULL;
    }
    if (file != NULL) note_use(fd);
    close(fd);
    return file;
}

static void free_ticket(ticket *t) {
    free(t->tokens);
    free(t->file);
    *t = (ticket){.state = TICKET_FREE};
}

/* The one asked first. */
static ticket *next_asked(kv_disk *d) {
    ticket *first = NULL;
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) {
        ticket *t = &d->tickets[i];
        if (t->state == TICKET_ASKED && (first == NULL || t->asked_no < first->asked_no)) first = t;
    }
    return first;
}

static void read_one(kv_disk *d) {
    ticket *t = next_asked(d);
    bool missing = false;
    t->state = TICKET_READING;
    d->n_asked--;
    pthread_mutex_unlock(&d->lock);
    uint64_t began_us = clock_now_us();
    unsigned char *file = read_file(d, t, &missing);
    if (file == NULL && !missing) remove_file(d, t->block.name);
    uint64_t read_us = clock_now_us() - began_us;
    pthread_mutex_lock(&d->lock);
    uint32_t i = find(d, t->block.name);
    if (file == NULL) {
        /* Not when it went since it was asked for, and is being written again. */
        if (i != NONE && d->records[i].there) forget(d, t->block.name);
        *(missing ? &d->stats.n_missing : &d->stats.n_bad) += 1;
        say(d, missing ? "a file is gone" : "a file is not what it should be", "it is not used");
    } else {
        d->stats.n_read++;
        if (i != NONE) {
            unlist(d, i);
            list_newest(d, i);
        }
    }
    t->file = file;
    t->read_us = read_us;
    t->state = TICKET_DONE;
    if (t->given_back)
        free_ticket(t);
    else // with the lock: after give_back nobody is woken
        t->wake(t->wake_ctx);
}

/* ---- the thread: writing ---- */

static int write_all(const kv_disk *d, int fd, const unsigned char *p, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t done = d->write(fd, p + at, n - at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return errno;
        if (done == 0) return ENOSPC;
        at += (size_t)done;
    }
    return 0;
}

/* Beside its name first: what has the name is complete, as far as the machine stays up.  0, or
 * errno. */
static int write_file(const kv_disk *d, const put *p) {
    char text[FILE_NAME_BYTES], aside[FILE_NAME_BYTES];
    print_name(p->name, ".kv", text);
    print_name(p->name, ".tmp", aside);
    int fd = openat(d->dir_fd, aside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int problem = write_all(d, fd, p->file, p->n_bytes);
    note_use(fd);
    if (close(fd) != 0 && problem == 0) problem = errno;
    if (problem == 0 && renameat(d->dir_fd, aside, d->dir_fd, text) != 0) problem = errno;
    if (problem != 0) unlinkat(d->dir_fd, aside, 0);
    return problem;
}

static bool is_off(const kv_disk *d) {
    return d->off_until_us != 0 && clock_now_us() < d->off_until_us;
}

static void write_one(kv_disk *d) {
    put *p = d->first_put;
    int problem = 0;
    d->first_put = p->next;
    if (d->first_put == NULL) d->last_put = NULL;
    bool skipped = is_off(d);
    if (!skipped) {
        make_room(d, p->n_bytes);
        pthread_mutex_unlock(&d->lock);
        put_sum(d->key, p->file, p->n_bytes);
        problem = write_file(d, p);
        pthread_mutex_lock(&d->lock);
    }
    uint32_t i = find(d, p->name);
    if (!skipped && problem == 0 && i != NONE) {
        d->records[i].there = true;
        d->stats.n_files++;
        d->stats.n_bytes += p->n_bytes;
        d->stats.n_written++;
        d->off_until_us = 0;
    } else {
        forget(d, p->name);
        d->stats.n_refused += skipped;
    }
    if (problem != 0) {
        d->stats.n_failed++;
        d->off_until_us = clock_now_us() + d->off_us;
        say(d, "writing keys and values", strerror(problem));
    }
    d->queued_bytes -= p->n_bytes;
    d->stats.n_queued--;
    free(p);
    pthread_cond_broadcast(&d->room);
}

static void *disk_main(void *arg) {
    kv_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    scan(d);
    for (;;) {
        if (d->n_asked > 0)
            read_one(d);
        else if (d->first_put != NULL)
            write_one(d);
        else if (d->closing)
            break;
        else
            pthread_cond_wait(&d->work, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- opening and closing ---- */

static inferd_status open_folder(kv_disk *d, const char *path, inferd_err *err) {
    struct stat st;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return inferd_fail(err, INFERD_EIO, "making the folder %s: %s", path, strerror(errno));
    d->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->dir_fd < 0 || fstat(d->dir_fd, &st) != 0)
        return inferd_fail(err, INFERD_EIO, "opening the folder %s: %s", path, strerror(errno));
    if (st.st_uid != geteuid() || (st.st_mode & 0777) != 0700)
        return inferd_fail(err, INFERD_EIO,
                           "the folder %s belongs to user %u with permissions %03o, expected user "
                           "%u and 700: it will hold what people asked",
                           path, (unsigned)st.st_uid, (unsigned)(st.st_mode & 0777),
                           (unsigned)geteuid());
    return INFERD_OK;
}

static inferd_status draw_key(kv_disk *d, const char *path, inferd_err *err) {
    if (getrandom(d->key, KEY_BYTES, 0) != KEY_BYTES)
        return inferd_fail(err, INFERD_EIO, "the system gives no random bytes");
    if (ftruncate(d->key_fd, 0) != 0 || pwrite(d->key_fd, d->key, KEY_BYTES, 0) != KEY_BYTES ||
        fsync(d->key_fd) != 0)
        return inferd_fail(err, INFERD_EIO, "writing %s/key: %s", path, strerror(errno));
    return INFERD_OK;
}

/* With another key no file is ever found again: what is there then goes, as the oldest does. */
static inferd_status open_key(kv_disk *d, const char *path, inferd_err *err) {
    d->key_fd = openat(d->dir_fd, "key", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (d->key_fd < 0)
        return inferd_fail(err, INFERD_EIO, "opening %s/key: %s", path, strerror(errno));
    if (flock(d->key_fd, LOCK_EX | LOCK_NB) != 0)
        return inferd_fail(err, INFERD_EIO, "the folder %s is in use by another process", path);
    unsigned char more;
    bool whole = pread(d->key_fd, d->key, KEY_BYTES, 0) == KEY_BYTES &&
                 pread(d->key_fd, &more, 1, KEY_BYTES) == 0;
    return whole ? INFERD_OK : draw_key(d, path, err);
}

static inferd_status start_thread(kv_disk *d, inferd_err *err) {
    d->has_thread = pthread_create(&d->thread, NULL, disk_main, d) == 0;
    if (!d->has_thread) return inferd_fail(err, INFERD_ENOMEM, "no thread for the disk");
    pthread_setname_np(d->thread, "inferd-kv-disk");
    return INFERD_OK;
}

static void init_conditions(kv_disk *d) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->room, &attr);
    pthread_condattr_destroy(&attr);
}

inferd_status kv_disk_open(const kv_disk_options *options, kv_disk **out, inferd_err *err) {
    *out = NULL;
    kv_disk *d = calloc(1, sizeof *d);
    if (d == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a disk cache");
    d->dir_fd = d->key_fd = -1;
    d->max_bytes = options->max_bytes;
    d->off_us = (uint64_t)(options->off_ms != 0 ? options->off_ms : KV_DISK_OFF_MS) * 1000;
    d->write = options->write != NULL ? options->write : write;
    d->unused = d->oldest = d->newest = NONE;
    init_conditions(d);
    inferd_status s = open_folder(d, options->path, err);
    if (s == INFERD_OK) s = open_key(d, options->path, err);
    if (s == INFERD_OK && !grow(d))
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for an index of files");
    if (s == INFERD_OK) s = start_thread(d, err);
    if (s != INFERD_OK) {
        kv_disk_close(d);
        return s;
    }
    *out = d;
    return INFERD_OK;
}

void kv_disk_close(kv_disk *d) {
    if (d == NULL) return;
    if (d->has_thread) {
        pthread_mutex_lock(&d->lock);
        d->closing = true;
        pthread_cond_signal(&d->work);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) free_ticket(&d->tickets[i]);
    pthread_cond_destroy(&d->room);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    if (d->key_fd >= 0) close(d->key_fd);
    if (d->dir_fd >= 0) close(d->dir_fd);
    free(d->records);
    free(d->buckets);
    free(d);
}

void kv_disk_get_stats(kv_disk *d, kv_disk_stats *out) {
    pthread_mutex_lock(&d->lock);
    *out = d->stats;
    out->off = is_off(d);
    pthread_mutex_unlock(&d->lock);
}

/* ---- keys ---- */

void kv_disk_secret(const kv_disk *d, const char *what, unsigned char out[16]) {
    uint64_t words[4] = {0};
    memcpy(words, what, size_min(strlen(what), sizeof words));
    prefix_name secret = prefix_hash(d->key, words, 4);
    memcpy(out, secret.h, sizeof secret.h);
}

void kv_disk_key(const kv_disk *d, const uint64_t model[2], uint64_t out[2]) {
    uint64_t words[3] = {model[0], model[1], KV_DISK_VERSION};
    prefix_name key = prefix_hash(d->key, words, 3);
    memcpy(out, key.h, sizeof key.h);
}

/* ---- blocks ---- */

bool kv_disk_has(kv_disk *d, const uint64_t name[2]) {
    pthread_mutex_lock(&d->lock);
    uint32_t i = find(d, name);
    bool there = i != NONE && d->records[i].there;
    pthread_mutex_unlock(&d->lock);
    return there;
}

static bool has_room(const kv_disk *d, size_t n_bytes) {
    return d->queued_bytes + n_bytes <= KV_DISK_QUEUE_BYTES &&
           d->stats.n_queued < QUEUED_BLOCKS_MAX;
}

void *kv_disk_put_begin(kv_disk *d, const kv_disk_block *b, unsigned char **slots) {
    size_t n_bytes = kv_disk_file_bytes(b->layout);
    pthread_mutex_lock(&d->lock);
    bool known = !d->scanned || find(d, b->name) != NONE;
    bool room = has_room(d, n_bytes) && !is_off(d) && n_bytes <= d->max_bytes;
    put *p = NULL;
    if (!known && room) p = malloc(sizeof *p + n_bytes);
    if (p != NULL && add(d, b->name, n_bytes, false) == NONE) {
        free(p);
        p = NULL;
    }
    if (p == NULL) {
        d->stats.n_refused += !known;
    } else {
        d->queued_bytes += n_bytes;
        d->stats.n_queued++;
    }
    pthread_mutex_unlock(&d->lock);
    if (p == NULL) return NULL;
    *p = (put){.name = {b->name[0], b->name[1]}, .n_bytes = n_bytes};
    fill(b, p->file); // the checksum is the thread's work
    *slots = kv_disk_slots(b->layout, p->file);
    return p;
}

void kv_disk_put_end(kv_disk *d, void *begun) {
    put *p = begun;
    pthread_mutex_lock(&d->lock);
    *(d->last_put != NULL ? &d->last_put->next : &d->first_put) = p;
    d->last_put = p;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

bool kv_disk_wait_room(kv_disk *d, uint64_t until_us) {
    struct timespec ts = {.tv_sec = (time_t)(until_us / 1000000),
                          .tv_nsec = (long)(until_us % 1000000) * 1000};
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    while (rc == 0 && !is_off(d) && d->stats.n_queued > 0 &&
           d->queued_bytes > KV_DISK_QUEUE_BYTES / 2)
        rc = pthread_cond_timedwait(&d->room, &d->lock, &ts);
    bool ok = rc == 0 && !is_off(d) && clock_now_us() < until_us;
    pthread_mutex_unlock(&d->lock);
    return ok;
}

uint32_t kv_disk_ask(kv_disk *d, const kv_disk_block *b, void (*wake)(void *ctx), void *wake_ctx) {
    size_t n = b->layout->block_tokens * sizeof(tok_id);
    tok_id *tokens = malloc(n);
    uint32_t idx = KV_DISK_NO_TICKET;
    if (tokens == NULL) return idx;
    memcpy(tokens, b->tokens, n);
    pthread_mutex_lock(&d->lock);
    uint32_t at = find(d, b->name);
    bool there = at != NONE && d->records[at].there;
    for (uint32_t i = 0; there && idx == KV_DISK_NO_TICKET && i < KV_DISK_READS_MAX; i++)
        if (d->tickets[i].state == TICKET_FREE) idx = i;
    if (idx != KV_DISK_NO_TICKET) {
        ticket *t = &d->tickets[idx];
        *t = (ticket){.state = TICKET_ASKED,
                      .asked_no = d->next_no++,
                      .block = *b,
                      .layout = *b->layout,
                      .tokens = tokens,
                      .wake = wake,
                      .wake_ctx = wake_ctx};
        t->block.tokens = tokens;
        t->block.layout = &t->layout;
        d->n_asked++;
        pthread_cond_signal(&d->work);
    } else {
        free(tokens);
    }
    pthread_mutex_unlock(&d->lock);
    return idx;
}

kv_disk_answer kv_disk_look(kv_disk *d, uint32_t idx, const unsigned char **slots,
                            uint64_t *read_us) {
    kv_disk_answer answer = KV_DISK_WAIT;
    pthread_mutex_lock(&d->lock);
    ticket *t = &d->tickets[idx];
    INFERD_CHECK(idx < KV_DISK_READS_MAX && t->state != TICKET_FREE && !t->given_back);
    if (t->state == TICKET_DONE) {
        answer = t->file != NULL ? KV_DISK_READY : KV_DISK_GONE;
        *slots = t->file != NULL ? kv_disk_slots(&t->layout, t->file) : NULL;
        *read_us = t->read_us;
    }
    pthread_mutex_unlock(&d->lock);
    return answer;
}

void kv_disk_give_back(kv_disk *d, uint32_t idx) {
    pthread_mutex_lock(&d->lock);
    ticket *t = &d->tickets[idx];
    INFERD_CHECK(idx < KV_DISK_READS_MAX && t->state != TICKET_FREE && !t->given_back);
    if (t->state == TICKET_READING) {
        t->given_back = true;
    } else {
        d->n_asked -= t->state == TICKET_ASKED;
        free_ticket(t);
    }
    pthread_mutex_unlock(&d->lock);
}

const kv_disk_ops kv_disk_files = {.key = kv_disk_key,
                                   .has = kv_disk_has,
                                   .put_begin = kv_disk_put_begin,
                                   .put_end = kv_disk_put_end,
                                   .wait_room = kv_disk_wait_room,
                                   .ask = kv_disk_ask,
                                   .look = kv_disk_look,
                                   .give_back = kv_disk_give_back};
