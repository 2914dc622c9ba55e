/* kv_disk.c - see kv_disk.h.
 *
 *     put_begin   -> QUEUED -> THERE    the thread wrote it
 *     the folder  -> THERE              found at the start
 *     THERE       -> gone               oldest when room is wanted; bad or missing when read
 *
 *     ask         -> ASKED -> READING -> READY or GONE    give_back ends it anywhere
 *
 * The index is a hash table of small records that link by number; the records form a list by last
 * use, the oldest first.  It is allocated for the most that max_bytes can ever need: parts never
 * touched take no physical memory, and no caller waits for it to grow.  Files are read and written
 * by the thread alone, outside the lock (kv_disk_file.h). */
#include "kv_disk_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "prefix.h"

enum {
    KEY_BYTES = 16,
    FILE_BYTES_MIN = 4096, // least space of a file: limits their number under max_bytes
    QUEUED_BLOCKS_MAX = 1024,
    FOUND_AT_ONCE = 256, // files that enter the index before the lock is released once
    FIRST_FOUND = 256
};
#define NONE 0u // no record: numbers begin with 1, so zeroed memory links to none

typedef struct record {
    uint64_t name[2];
    uint64_t n_bytes;
    uint32_t next;         // in its bucket; of an unused record the next unused one
    uint32_t older, newer; // by use
    bool there;            // false: it is being written
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
    kv_file_read_fn *read;
    kv_file_write_fn *write;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; // for everything below
    pthread_cond_t work, room;
    bool closing, scanned;
    uint64_t off_until_us;
    uint64_t look_at_us; // time of the next scan of the folder; UINT64_MAX: all of it is known
    record *records;     // [n_records + 1] owned
    uint32_t n_records, n_touched, unused;
    uint32_t *buckets; // [n_records] owned
    uint32_t oldest, newest;
    put *first_put, *last_put; // owned
    size_t queued_bytes;       // of puts begun and not yet written
    ticket tickets[KV_DISK_READS_MAX];
    uint64_t next_no;
    uint32_t n_asked;
    kv_disk_stats stats;
};

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

static bool init_index(kv_disk *d) {
    uint64_t wanted = d->max_bytes / FILE_BYTES_MIN + QUEUED_BLOCKS_MAX + 1;
    uint32_t n = 1;
    while (n < wanted && n < KV_DISK_FILES_MAX) n *= 2;
    d->records = calloc(n + 1, sizeof *d->records);
    d->buckets = calloc(n, sizeof *d->buckets);
    d->n_records = n;
    return d->records != NULL && d->buckets != NULL;
}

static uint32_t take_record(kv_disk *d) {
    uint32_t i = d->unused;
    if (i != NONE)
        d->unused = d->records[i].next;
    else if (d->n_touched < d->n_records)
        i = ++d->n_touched;
    return i;
}

/* NONE: the index is full. */
static uint32_t add(kv_disk *d, const uint64_t name[2], uint64_t n_bytes, bool there) {
    uint32_t i = take_record(d), *bucket = bucket_of(d, name);
    if (i == NONE) return NONE;
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

/* ---- the thread: scanning the folder ---- */

/* Called with the lock held. */
static void say(kv_disk *d, const char *what, const char *why) {
    snprintf(d->stats.problem, sizeof d->stats.problem, "%s: %s", what, why);
    d->stats.n_problems++;
}

typedef struct found {
    uint64_t name[2];
    uint64_t n_bytes, used_ns;
} found;

static int by_use(const void *a, const void *b) {
    const found *x = a, *y = b;
    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

static bool is_ours(const kv_disk *d, const char *text, found *f) {
    struct stat st;
    if (!kv_file_read_name(text, ".kv", f->name) ||
        fstatat(d->dir_fd, text, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return false;
    f->n_bytes = (uint64_t)st.st_size;
    f->used_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    return true;
}

typedef struct folder {
    found *all; // [n] by last use, the oldest first; owned
    size_t n, room;
    const char *problem; // why the list is incomplete; NULL: it is complete
} folder;

static bool keep(folder *f, const found *one) {
    if (f->n == f->room) {
        f->room = f->room > 0 ? 2 * f->room : FIRST_FOUND;
        found *more = realloc(f->all, f->room * sizeof *f->all);
        if (more == NULL) return false;
        f->all = more;
    }
    f->all[f->n++] = *one;
    return true;
}

/* Lists our files in the folder, as many as fit the index, and removes half-written ones. */
static folder list_folder(const kv_disk *d) {
    folder f = {0};
    const struct dirent *e;
    int fd = openat(d->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        f.problem = strerror(errno);
        if (fd >= 0) close(fd);
        return f;
    }
    while ((errno = 0, e = readdir(dir)) != NULL && f.problem == NULL) {
        found one = {0};
        if (kv_file_read_name(e->d_name, ".tmp", one.name)) unlinkat(d->dir_fd, e->d_name, 0);
        if (!is_ours(d, e->d_name, &one)) continue;
        if (f.n == d->n_records)
            f.problem = "it holds more files than max_bytes allows";
        else if (!keep(&f, &one))
            f.problem = strerror(ENOMEM);
    }
    if (e == NULL && errno != 0) f.problem = strerror(errno);
    closedir(dir);
    if (f.all != NULL) qsort(f.all, f.n, sizeof *f.all, by_use);
    return f;
}

/* Called with the lock held, which file removal releases.  Drops the oldest until n_bytes fit. */
static void make_room(kv_disk *d, uint64_t n_bytes) {
    while (d->stats.n_files > 0 && (d->stats.n_bytes + n_bytes > d->max_bytes ||
                                    d->stats.n_files + QUEUED_BLOCKS_MAX > d->n_records)) {
        uint32_t i = d->oldest;
        while (i != NONE && !d->records[i].there) i = d->records[i].newer;
        if (i == NONE) return;
        uint64_t name[2] = {d->records[i].name[0], d->records[i].name[1]};
        forget(d, name);
        pthread_mutex_unlock(&d->lock);
        kv_file_remove(d->dir_fd, name);
        pthread_mutex_lock(&d->lock);
        d->stats.n_evicted++;
    }
}

/* Gives other threads a chance to take the lock. */
static void let_others(kv_disk *d) {
    pthread_mutex_unlock(&d->lock);
    sched_yield();
    pthread_mutex_lock(&d->lock);
}

/* Called with the lock held.  If the scan is incomplete, it is repeated later: until then the
 * missing files are not found, and count for nothing. */
static void look_through(kv_disk *d) {
    pthread_mutex_unlock(&d->lock);
    folder f = list_folder(d);
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < f.n; i++) {
        const found *one = &f.all[i];
        if (find(d, one->name) == NONE && add(d, one->name, one->n_bytes, true) == NONE)
            f.problem = "it holds more files than max_bytes allows";
        if (i % FOUND_AT_ONCE == FOUND_AT_ONCE - 1) let_others(d);
    }
    free(f.all);
    d->look_at_us = UINT64_MAX;
    if (f.problem != NULL) {
        say(d, "scanning the folder", f.problem);
        d->look_at_us = clock_now_us() + d->off_us;
    }
    make_room(d, 0);
    d->scanned = true;
}

/* ---- the thread: reading ---- */

static void free_ticket(ticket *t) {
    free(t->tokens);
    free(t->file);
    *t = (ticket){.state = TICKET_FREE};
}

static ticket *next_asked(kv_disk *d) {
    ticket *first = NULL;
    for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) {
        ticket *t = &d->tickets[i];
        if (t->state == TICKET_ASKED && (first == NULL || t->asked_no < first->asked_no)) first = t;
    }
    return first;
}

/* Called with the lock held: records the result of reading this block. */
static void note_answer(kv_disk *d, const uint64_t name[2], kv_file_answer answer, int problem) {
    uint32_t i = find(d, name);
    switch (answer) {
    case KV_FILE_WHOLE:
        d->stats.n_read++;
        if (i == NONE) return;
        unlist(d, i);
        list_newest(d, i);
        return;
    case KV_FILE_NOT_NOW:
        d->stats.n_unread++;
        say(d, "reading keys and values", strerror(problem));
        return;
    default:
        /* Not if it was dropped after the request and is being written again. */
        if (i != NONE && d->records[i].there) forget(d, name);
        *(answer == KV_FILE_MISSING ? &d->stats.n_missing : &d->stats.n_bad) += 1;
        say(d, answer == KV_FILE_MISSING ? "a file is missing" : "a file has unexpected contents",
            "it is not used");
    }
}

static void read_one(kv_disk *d) {
    ticket *t = next_asked(d);
    unsigned char *file;
    t->state = TICKET_READING;
    d->n_asked--;
    pthread_mutex_unlock(&d->lock);
    uint64_t began_us = clock_now_us();
    kv_file_answer answer = kv_file_read(d->dir_fd, d->key, &t->block, d->read, &file);
    int problem = errno;
    if (answer == KV_FILE_BAD) kv_file_remove(d->dir_fd, t->block.name);
    uint64_t read_us = clock_now_us() - began_us;
    pthread_mutex_lock(&d->lock);
    note_answer(d, t->block.name, answer, problem);
    t->file = file;
    t->read_us = read_us;
    t->state = TICKET_DONE;
    if (t->given_back)
        free_ticket(t);
    else // under the lock: no wake after give_back
        t->wake(t->wake_ctx);
}

/* ---- the thread: writing ---- */

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
        kv_disk_put_sum(d->key, p->file, p->n_bytes);
        problem = kv_file_write(d->dir_fd, p->name, p->file, p->n_bytes, d->write);
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

static int wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_us) {
    struct timespec ts = {.tv_sec = (time_t)(until_us / 1000000),
                          .tv_nsec = (long)(until_us % 1000000) * 1000};
    return pthread_cond_timedwait(cond, lock, &ts);
}

static void *disk_main(void *arg) {
    kv_disk *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        bool look = clock_now_us() >= d->look_at_us;
        if (look && (!d->scanned || !d->closing))
            look_through(d);
        else if (d->n_asked > 0)
            read_one(d);
        else if (d->first_put != NULL)
            write_one(d);
        else if (d->closing)
            break;
        else if (d->look_at_us == UINT64_MAX)
            pthread_cond_wait(&d->work, &d->lock);
        else
            wait_until(&d->work, &d->lock, d->look_at_us);
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
                           "%u and 700: it will hold clients' prompts",
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

/* With a new key no existing file is ever found again: those files go as they become the oldest. */
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
    pthread_cond_init(&d->work, &attr);
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
    d->read = options->read != NULL ? options->read : read;
    d->write = options->write != NULL ? options->write : write;
    init_conditions(d);
    inferd_status s = open_folder(d, options->path, err);
    if (s == INFERD_OK) s = open_key(d, options->path, err);
    if (s == INFERD_OK && !init_index(d))
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

static void block_key(const kv_disk *d, const uint64_t model[2], uint64_t out[2]) {
    uint64_t words[3] = {model[0], model[1], KV_DISK_VERSION};
    prefix_name key = prefix_hash(d->key, words, 3);
    memcpy(out, key.h, sizeof key.h);
}

/* ---- blocks ---- */

static bool has(kv_disk *d, const uint64_t name[2]) {
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

/* Room in the index and in the queue; false: the block is there, or there is no room. */
static bool take_room(kv_disk *d, const kv_disk_block *b, size_t n_bytes) {
    pthread_mutex_lock(&d->lock);
    bool known = !d->scanned || find(d, b->name) != NONE;
    bool room = has_room(d, n_bytes) && !is_off(d) && n_bytes <= d->max_bytes;
    bool taken = !known && room && add(d, b->name, n_bytes, false) != NONE;
    d->queued_bytes += taken ? n_bytes : 0;
    d->stats.n_queued += taken;
    d->stats.n_refused += !known && !taken;
    pthread_mutex_unlock(&d->lock);
    return taken;
}

static void give_room_back(kv_disk *d, const kv_disk_block *b, size_t n_bytes) {
    pthread_mutex_lock(&d->lock);
    forget(d, b->name);
    d->queued_bytes -= n_bytes;
    d->stats.n_queued--;
    d->stats.n_refused++;
    pthread_mutex_unlock(&d->lock);
}

static void *put_begin(kv_disk *d, const kv_disk_block *b, unsigned char **slots) {
    size_t n_bytes = kv_disk_file_bytes(b->layout);
    if (!take_room(d, b, n_bytes)) return NULL;
    put *p = malloc(sizeof *p + n_bytes);
    if (p == NULL) {
        give_room_back(d, b, n_bytes);
        return NULL;
    }
    *p = (put){.name = {b->name[0], b->name[1]}, .n_bytes = n_bytes};
    kv_disk_fill(b, p->file); // the thread computes the checksum
    *slots = kv_disk_slots(b->layout, p->file);
    return p;
}

static void put_end(kv_disk *d, void *begun) {
    put *p = begun;
    pthread_mutex_lock(&d->lock);
    *(d->last_put != NULL ? &d->last_put->next : &d->first_put) = p;
    d->last_put = p;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

static bool wait_room(kv_disk *d, const kv_layout *l, uint64_t until_us) {
    size_t n_bytes = kv_disk_file_bytes(l);
    int rc = 0;
    pthread_mutex_lock(&d->lock);
    while (rc == 0 && !is_off(d) && d->stats.n_queued > 0 && !has_room(d, n_bytes))
        rc = wait_until(&d->room, &d->lock, until_us);
    bool ok = !is_off(d) && has_room(d, n_bytes) && clock_now_us() < until_us;
    pthread_mutex_unlock(&d->lock);
    return ok;
}

static uint32_t ask(kv_disk *d, const kv_disk_block *b, void (*wake)(void *ctx), void *wake_ctx) {
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

static kv_disk_answer look(kv_disk *d, uint32_t idx, const unsigned char **slots,
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

static void give_back(kv_disk *d, uint32_t idx) {
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

const kv_disk_ops kv_disk_files = {.key = block_key,
                                   .has = has,
                                   .put_begin = put_begin,
                                   .put_end = put_end,
                                   .wait_room = wait_room,
                                   .ask = ask,
                                   .look = look,
                                   .give_back = give_back};
