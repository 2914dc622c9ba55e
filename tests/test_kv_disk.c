/* test_kv_disk.c - blocks in files: what comes back, what never does, and how much there is. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inferd/clock.h"
#include "kv_disk_file.h"
#include "test.h"

enum { T = 4, GROUPS = 2, SLOT_BYTES = 192, PATIENCE_US = 5000000 };

static const kv_layout layout = {.n_layers = GROUPS,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .block_tokens = T,
                                 .group_layers = 1,
                                 .n_groups = GROUPS,
                                 .slots_per_page = 6,
                                 .layer_bytes = SLOT_BYTES,
                                 .slot_bytes = SLOT_BYTES};

static const kv_layout *used = &layout;

/* ---- a folder ---- */

static char folder[64], path[96];

static void open_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/kv_disk_XXXXXX");
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/kv", folder);
}

/* Files of the folder whose name ends like this. */
static uint32_t n_files(const char *end) {
    uint32_t n = 0;
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        size_t len = strlen(e->d_name), want = strlen(end);
        n += len >= want && strcmp(e->d_name + len - want, end) == 0 && e->d_name[0] != '.';
    }
    if (dir != NULL) closedir(dir);
    return n;
}

static void remove_folder(void) {
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') unlinkat(dirfd(dir), e->d_name, 0);
    if (dir != NULL) closedir(dir);
    rmdir(path);
    EXPECT_EQ(rmdir(folder), 0);
}

static kv_disk *open_with(uint64_t max_bytes, ssize_t (*f)(int, const void *, size_t)) {
    kv_disk_options o = {.path = path, .max_bytes = max_bytes, .off_ms = 50, .write = f};
    kv_disk *d = NULL;
    inferd_err err = {0};
    if (kv_disk_open(&o, &d, &err) != INFERD_OK) printf("%s\n", err.text);
    EXPECT(d != NULL);
    return d;
}

static kv_disk *open_disk(void) {
    return open_with(1 << 20, NULL);
}

/* ---- blocks ---- */

typedef struct sample {
    kv_disk_block b;
    tok_id tokens[T];
    unsigned char slots[GROUPS * SLOT_BYTES];
} sample;

static sample make(uint32_t i) {
    sample s = {.b = {.name = {i * 77777777u + 5, i}, .model = {3, 4}, .scope = {5, 6}}};
    s.b.depth = i;
    s.b.layout = used;
    for (uint32_t k = 0; k < T; k++) s.tokens[k] = (tok_id)(i * 10 + k);
    for (size_t k = 0; k < sizeof s.slots; k++) s.slots[k] = (unsigned char)(i * 31 + k * 7);
    return s;
}

static bool put(kv_disk *d, uint32_t i) {
    sample s = make(i);
    s.b.tokens = s.tokens;
    unsigned char *to;
    void *begun = kv_disk_files.put_begin(d, &s.b, &to);
    if (begun == NULL) return false;
    memset(to, 0, used->n_groups * used->slot_bytes);
    memcpy(to, s.slots, sizeof s.slots);
    kv_disk_files.put_end(d, begun);
    return true;
}

static kv_disk_stats stats_of(kv_disk *d) {
    kv_disk_stats s;
    kv_disk_get_stats(d, &s);
    return s;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

/* The folder has been looked through, and nothing waits to be written. */
static void wait_written(kv_disk *d) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    while (stats_of(d).n_queued > 0 && clock_now_us() < until_us) nap();
    EXPECT_EQ(stats_of(d).n_queued, 0);
}

static void wait_scanned(kv_disk *d, uint32_t n) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    while (stats_of(d).n_files != n && clock_now_us() < until_us) nap();
    EXPECT_EQ(stats_of(d).n_files, n);
}

/* Blocks are refused until the folder was looked through. */
static void put_surely(kv_disk *d, uint32_t i) {
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    while (!put(d, i) && clock_now_us() < until_us) nap();
    wait_written(d);
}

static void count_wake(void *ctx) {
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

/* Ask and wait.  NONE: no ticket. */
typedef enum reading { NONE, GONE, RIGHT, WRONG } reading;

static reading read_as(kv_disk *d, const sample *s) {
    atomic_uint n_wakes = 0;
    kv_disk_block b = s->b;
    b.tokens = s->tokens;
    uint32_t t = kv_disk_files.ask(d, &b, count_wake, &n_wakes);
    if (t == KV_DISK_NO_TICKET) return NONE;
    const unsigned char *from;
    uint64_t us, until_us = clock_now_us() + PATIENCE_US;
    kv_disk_answer a;
    while ((a = kv_disk_files.look(d, t, &from, &us)) == KV_DISK_WAIT && clock_now_us() < until_us)
        nap();
    EXPECT(a != KV_DISK_WAIT);
    EXPECT_EQ(atomic_load(&n_wakes), 1);
    reading r = a == KV_DISK_GONE                              ? GONE
                : memcmp(from, s->slots, sizeof s->slots) == 0 ? RIGHT
                                                               : WRONG;
    kv_disk_files.give_back(d, t);
    return r;
}

static reading read_back(kv_disk *d, uint32_t i) {
    sample s = make(i);
    return read_as(d, &s);
}

/* ---- tests ---- */

static void what_was_written_is_read(void) {
    open_folder();
    kv_disk *d = open_disk();
    EXPECT_EQ(read_back(d, 1), NONE);
    for (uint32_t i = 1; i <= 20; i++) put_surely(d, i);
    for (uint32_t i = 1; i <= 20; i++) EXPECT_EQ(read_back(d, i), RIGHT);
    EXPECT(!put(d, 7)); // it is there
    kv_disk_stats s = stats_of(d);
    EXPECT(s.n_files == 20 && s.n_written == 20 && s.n_read == 20 && s.n_bad + s.n_failed == 0);
    EXPECT_EQ(s.n_bytes, 20 * kv_disk_file_bytes(&layout));
    kv_disk_close(d);
    remove_folder();
}

static void it_is_there_after_a_restart(void) {
    unsigned char before[16], after[16], other[16];
    uint64_t key[2], key_after[2], of[2] = {1, 2};
    open_folder();
    kv_disk *d = open_disk();
    kv_disk_secret(d, "scope", before);
    kv_disk_secret(d, "other", other);
    kv_disk_files.key(d, of, key);
    for (uint32_t i = 1; i <= 300; i++) put_surely(d, i); // the index grows
    EXPECT(put(d, 301));
    kv_disk_close(d); // what waited is written
    d = open_disk();
    wait_scanned(d, 301);
    for (uint32_t i = 1; i <= 301; i++) EXPECT_EQ(read_back(d, i), RIGHT);
    kv_disk_secret(d, "scope", after);
    kv_disk_files.key(d, of, key_after);
    EXPECT(memcmp(before, after, sizeof before) == 0 && memcmp(before, other, sizeof before) != 0);
    EXPECT(key[0] == key_after[0] && key[1] == key_after[1]);
    kv_disk_close(d);
    remove_folder();
}

static void only_the_owner_can_look_at_it(void) {
    struct stat st;
    char file[256];
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    EXPECT(stat(path, &st) == 0 && (st.st_mode & 0777) == 0700);
    snprintf(file, sizeof file, "%s/key", path);
    EXPECT(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    sample s = make(1);
    snprintf(file, sizeof file, "%s/%016llx%016llx.kv", path, (unsigned long long)s.b.name[0],
             (unsigned long long)s.b.name[1]);
    EXPECT(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    kv_disk_close(d);
    EXPECT_EQ(chmod(path, 0750), 0);
    kv_disk_options o = {.path = path, .max_bytes = 1 << 20};
    inferd_err err = {0};
    EXPECT_EQ(kv_disk_open(&o, &d, &err), INFERD_EIO);
    EXPECT(d == NULL && strstr(err.text, "750") != NULL && strstr(err.text, "700") != NULL);
    EXPECT_EQ(chmod(path, 0700), 0);
    remove_folder();
}

static void two_do_not_share_a_folder(void) {
    open_folder();
    kv_disk *d = open_disk(), *other = NULL;
    kv_disk_options o = {.path = path, .max_bytes = 1 << 20};
    inferd_err err = {0};
    EXPECT_EQ(kv_disk_open(&o, &other, &err), INFERD_EIO);
    EXPECT(other == NULL && strstr(err.text, "in use") != NULL);
    kv_disk_close(d);
    remove_folder();
}

static void file_of(uint32_t i, char out[256]) {
    sample s = make(i);
    snprintf(out, 256, "%s/%016llx%016llx.kv", path, (unsigned long long)s.b.name[0],
             (unsigned long long)s.b.name[1]);
}

static void flip(const char *file, off_t at) {
    unsigned char c = 0;
    int fd = open(file, O_RDWR);
    EXPECT(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c ^= 0x10;
    EXPECT(pwrite(fd, &c, 1, at) == 1 && close(fd) == 0);
}

/* Every byte of a file counts; so does its length. */
static void a_damaged_file_is_counted_removed_and_never_used(void) {
    char file[256];
    struct stat st;
    size_t n = kv_disk_file_bytes(&layout);
    uint64_t n_bad = 0;
    open_folder();
    kv_disk *d = open_disk();
    for (size_t at = 0; at < n + 3; at += at < KV_DISK_HEADER_BYTES ? 1 : 13) {
        put_surely(d, 1);
        file_of(1, file);
        if (at < n)
            flip(file, (off_t)at);
        else
            EXPECT_EQ(truncate(file, (off_t)(at == n ? n - 1 : at == n + 1 ? n + 64 : 0)), 0);
        EXPECT_EQ(read_back(d, 1), GONE);
        EXPECT_EQ(stats_of(d).n_bad, ++n_bad);
        EXPECT(stat(file, &st) != 0 && errno == ENOENT);
        EXPECT_EQ(stats_of(d).n_files, 0);
        EXPECT_EQ(read_back(d, 1), NONE);
    }
    EXPECT(n_bad > 150 && stats_of(d).problem[0] != 0);
    kv_disk_close(d);
    remove_folder();
}

static void another_block_under_the_same_name_is_not_used(void) {
    static kv_layout other;
    open_folder();
    kv_disk *d = open_disk();
    for (int what = 0; what < 6; what++) {
        put_surely(d, 1);
        sample s = make(1);
        other = layout;
        if (what == 0) s.b.model[1]++;
        if (what == 1) s.b.scope[0]++;
        if (what == 2) s.b.depth++;
        if (what == 3) s.tokens[T - 1]++;
        if (what == 4) other.type = KV_BF16, s.b.layout = &other;
        if (what == 5) other.n_kv_heads++, s.b.layout = &other;
        EXPECT_EQ(read_as(d, &s), GONE);
    }
    EXPECT_EQ(stats_of(d).n_bad, 6);
    kv_disk_close(d);
    remove_folder();
}

static void a_file_that_is_gone_is_missed(void) {
    char file[256];
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    file_of(1, file);
    EXPECT_EQ(unlink(file), 0);
    EXPECT_EQ(read_back(d, 1), GONE);
    EXPECT(stats_of(d).n_missing == 1 && stats_of(d).n_bad == 0 && stats_of(d).n_files == 0);
    kv_disk_close(d);
    remove_folder();
}

static void a_link_is_not_followed(void) {
    char file[256], moved[300];
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    file_of(1, file);
    snprintf(moved, sizeof moved, "%s.aside", file);
    EXPECT(rename(file, moved) == 0 && symlink(moved, file) == 0);
    EXPECT_EQ(read_back(d, 1), GONE);
    EXPECT_EQ(n_files(".aside"), 1);
    EXPECT_EQ(stats_of(d).n_bad, 1);
    kv_disk_close(d);
    remove_folder();
}

static void another_key_finds_nothing(void) {
    char key[128];
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    kv_disk_close(d);
    snprintf(key, sizeof key, "%s/key", path);
    EXPECT_EQ(truncate(key, 5), 0); // half of it
    d = open_disk();
    wait_scanned(d, 1);
    EXPECT_EQ(read_back(d, 1), GONE); // of another key, and with another name in earnest
    EXPECT_EQ(stats_of(d).n_bad, 1);
    kv_disk_close(d);
    remove_folder();
}

static void the_oldest_go_first(void) {
    size_t n = kv_disk_file_bytes(&layout);
    open_folder();
    kv_disk *d = open_with(10 * n, NULL);
    for (uint32_t i = 1; i <= 10; i++) put_surely(d, i);
    EXPECT_EQ(read_back(d, 1), RIGHT); // used: it is the newest now
    for (uint32_t i = 11; i <= 14; i++) put_surely(d, i);
    EXPECT_EQ(stats_of(d).n_evicted, 4);
    EXPECT_EQ(n_files(".kv"), 10);
    EXPECT_EQ(read_back(d, 1), RIGHT);
    for (uint32_t i = 2; i <= 5; i++) EXPECT_EQ(read_back(d, i), NONE);
    for (uint32_t i = 6; i <= 14; i++) EXPECT_EQ(read_back(d, i), RIGHT);
    kv_disk_close(d);
    d = open_with(4 * n, NULL); // less than there is
    wait_scanned(d, 4);
    EXPECT_EQ(n_files(".kv"), 4);
    for (uint32_t i = 11; i <= 14; i++) EXPECT_EQ(read_back(d, i), RIGHT);
    kv_disk_close(d);
    remove_folder();
}

static atomic_int write_errno; // 0: it works
static atomic_bool write_half;

static ssize_t write_or_not(int fd, const void *p, size_t n) {
    if (atomic_load(&write_errno) == 0) return write(fd, p, n);
    if (atomic_exchange(&write_half, false)) return write(fd, p, n / 2);
    errno = atomic_load(&write_errno);
    return -1;
}

static void a_full_disk_turns_writing_off_for_a_while(void) {
    open_folder();
    kv_disk *d = open_with(1 << 20, write_or_not);
    put_surely(d, 1);
    atomic_store(&write_errno, ENOSPC);
    atomic_store(&write_half, true);
    EXPECT(put(d, 2));
    wait_written(d);
    kv_disk_stats s = stats_of(d);
    EXPECT(s.off && s.n_failed == 1 && strstr(s.problem, "space") != NULL);
    EXPECT_EQ(n_files(".tmp"), 0);
    EXPECT(!put(d, 3));
    EXPECT_EQ(stats_of(d).n_refused, 1);
    EXPECT_EQ(read_back(d, 1), RIGHT); // reading goes on
    EXPECT_EQ(read_back(d, 2), NONE);
    atomic_store(&write_errno, 0);
    put_surely(d, 3); // 50 ms later
    EXPECT(!stats_of(d).off);
    put_surely(d, 2);
    for (uint32_t i = 1; i <= 3; i++) EXPECT_EQ(read_back(d, i), RIGHT);
    kv_disk_close(d);
    remove_folder();
}

static atomic_bool write_waits;

static ssize_t write_later(int fd, const void *p, size_t n) {
    while (atomic_load(&write_waits)) nap();
    return write(fd, p, n);
}

/* A disk that stands still: the queue is bounded, and nobody waits for it but at the end. */
static void a_queue_that_is_full_takes_no_more(void) {
    kv_layout large = layout;
    large.slot_bytes = 256 << 10;
    used = &large;
    open_folder();
    kv_disk *d = open_with(1u << 30, write_later);
    put_surely(d, 1);
    atomic_store(&write_waits, true);
    uint32_t n = 0;
    while (n < 100000 && put(d, 2 + n)) n++;
    EXPECT(n > 50 && n < 100);
    EXPECT(stats_of(d).n_queued == n && stats_of(d).n_refused == 1);
    uint64_t from_us = clock_now_us();
    EXPECT(n * kv_disk_file_bytes(&large) <= KV_DISK_QUEUE_BYTES);
    EXPECT(!kv_disk_files.has(d, make(2).b.name)); // not yet
    kv_disk_files.wait_room(d, &large, from_us + 2000);
    EXPECT(clock_now_us() < from_us + 1000000);
    atomic_store(&write_waits, false);
    wait_written(d);
    EXPECT_EQ(stats_of(d).n_files, n + 1);
    used = &layout;
    kv_disk_close(d);
    remove_folder();
}

static void tickets_are_bounded_and_may_be_given_back_at_any_time(void) {
    sample s = make(1);
    uint32_t tickets[KV_DISK_READS_MAX];
    atomic_uint n_wakes = 0;
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    s.b.tokens = s.tokens;
    for (int round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) {
            tickets[i] = kv_disk_files.ask(d, &s.b, count_wake, &n_wakes);
            EXPECT(tickets[i] != KV_DISK_NO_TICKET);
        }
        EXPECT_EQ(kv_disk_files.ask(d, &s.b, count_wake, &n_wakes), KV_DISK_NO_TICKET);
        if (round % 2 == 0) nap();
        for (uint32_t i = 0; i < KV_DISK_READS_MAX; i++) kv_disk_files.give_back(d, tickets[i]);
        uint32_t n = atomic_load(&n_wakes);
        nap();
        EXPECT_EQ(atomic_load(&n_wakes), n);    // nobody is woken after that
        while (read_back(d, 1) != RIGHT) nap(); // one may still be on its way
    }
    kv_disk_close(d);
    remove_folder();
}

static void other_files_stay_as_they_are(void) {
    char file[256];
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    kv_disk_close(d);
    static const char *const names[] = {"notes.txt", "0123.kv",
                                        "0123456789abcdef0123456789abcdeF.kv",
                                        "0123456789abcdef0123456789abcdef.kv.old"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        int fd = open(file, O_WRONLY | O_CREAT, 0600);
        EXPECT(fd >= 0 && close(fd) == 0);
    }
    snprintf(file, sizeof file, "%s/0123456789abcdef0123456789abcdef.tmp", path); // half-written
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    EXPECT(fd >= 0 && close(fd) == 0);
    d = open_disk();
    wait_scanned(d, 1);
    kv_disk_close(d);
    EXPECT_EQ(n_files(".tmp"), 0);
    EXPECT_EQ(n_files(".txt") + n_files(".old"), 2);
    EXPECT_EQ(n_files(".kv"), 3);
    remove_folder();
}

static uint64_t folder_bytes(void) {
    uint64_t n = 0;
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        struct stat st;
        if (strstr(e->d_name, ".kv") != NULL && fstatat(dirfd(dir), e->d_name, &st, 0) == 0)
            n += (uint64_t)st.st_size;
    }
    if (dir != NULL) closedir(dir);
    return n;
}

/* One large block makes most small ones go.  Some are asked for meanwhile, go too, and are put
 * again before their turn to be read.  True: that was seen. */
static bool ask_while_they_go(void) {
    enum { SMALL = 220, GOING = 200, ASKED_FROM = 150, ASKED_TO = 160 };
    kv_layout large = layout;
    size_t n_bytes = kv_disk_file_bytes(&layout);
    large.slot_bytes = GOING * n_bytes / GROUPS;
    uint32_t tickets[ASKED_TO];
    atomic_uint n_wakes = 0;
    const unsigned char *from;
    uint64_t us, until_us = clock_now_us() + PATIENCE_US;
    open_folder();
    kv_disk *d = open_with(SMALL * n_bytes + n_bytes / 2, NULL);
    put_surely(d, 1);
    for (uint32_t i = 2; i <= SMALL; i++) EXPECT(put(d, i));
    wait_written(d);
    used = &large;
    EXPECT(put(d, 1000));
    used = &layout;
    while (stats_of(d).n_evicted == 0 && clock_now_us() < until_us) {
    }
    for (uint32_t i = ASKED_FROM; i < ASKED_TO; i++) {
        sample s = make(i);
        s.b.tokens = s.tokens;
        tickets[i] = kv_disk_files.ask(d, &s.b, count_wake, &n_wakes);
    }
    while (stats_of(d).n_queued > 0 && clock_now_us() < until_us)
        for (uint32_t i = ASKED_FROM; i < ASKED_TO; i++) put(d, i);
    for (uint32_t i = ASKED_FROM; i < ASKED_TO; i++) {
        if (tickets[i] == KV_DISK_NO_TICKET) continue;
        while (kv_disk_files.look(d, tickets[i], &from, &us) == KV_DISK_WAIT &&
               clock_now_us() < until_us)
            nap();
        kv_disk_files.give_back(d, tickets[i]);
    }
    wait_written(d);
    kv_disk_stats s = stats_of(d);
    EXPECT_EQ(s.n_files, n_files(".kv"));
    EXPECT_EQ(s.n_bytes, folder_bytes());
    kv_disk_close(d);
    remove_folder();
    return s.n_missing > 0;
}

static void what_goes_while_it_is_asked_for_may_come_again(void) {
    enum { ROUNDS = 20, SEEN = 5 };
    for (int round = 0, n = 0; round < ROUNDS && n < SEEN; round++) n += ask_while_they_go();
}

/* ---- what the machine cannot do at the moment ---- */

static rlim_t files_before;

/* So many more files can be opened. */
static void leave_files(rlim_t n) {
    struct rlimit l;
    int next = dup(0);
    EXPECT(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &l) == 0);
    files_before = l.rlim_cur;
    l.rlim_cur = (rlim_t)next + n;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &l), 0);
}

static void leave_all_files(void) {
    struct rlimit l;
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = files_before;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &l), 0);
}

/* It was taken for a bad one, and removed, when the process had no file numbers left. */
static void a_file_that_cannot_be_opened_now_stays(void) {
    open_folder();
    kv_disk *d = open_disk();
    put_surely(d, 1);
    leave_files(0);
    EXPECT_EQ(read_back(d, 1), GONE);
    leave_all_files();
    kv_disk_stats s = stats_of(d);
    EXPECT(s.n_unread == 1 && s.n_bad + s.n_missing == 0 && s.n_files == 1 && s.n_problems == 1);
    EXPECT(strstr(s.problem, "files") != NULL);
    EXPECT_EQ(read_back(d, 1), RIGHT);
    kv_disk_close(d);
    remove_folder();
}

static atomic_int read_errno; // 0: it works

static ssize_t read_or_not(int fd, void *p, size_t n) {
    if (atomic_load(&read_errno) == 0) return read(fd, p, n > 100 ? 100 : n);
    errno = atomic_load(&read_errno);
    return -1;
}

static void a_file_that_cannot_be_read_now_stays(void) {
    open_folder();
    kv_disk_options o = {.path = path, .max_bytes = 1 << 20, .off_ms = 50, .read = read_or_not};
    kv_disk *d = NULL;
    inferd_err err = {0};
    EXPECT_EQ(kv_disk_open(&o, &d, &err), INFERD_OK);
    put_surely(d, 1);
    atomic_store(&read_errno, EIO);
    EXPECT_EQ(read_back(d, 1), GONE);
    atomic_store(&read_errno, 0);
    EXPECT(stats_of(d).n_unread == 1 && stats_of(d).n_bad == 0);
    EXPECT(strstr(stats_of(d).problem, strerror(EIO)) != NULL);
    EXPECT_EQ(read_back(d, 1), RIGHT);
    kv_disk_close(d);
    remove_folder();
}

/* A folder that could not be looked through was taken for an empty one until the next start. */
static void a_folder_that_cannot_be_looked_through_is_tried_again(void) {
    open_folder();
    kv_disk *d = open_disk();
    for (uint32_t i = 1; i <= 3; i++) put_surely(d, i);
    kv_disk_close(d);
    leave_files(2); // the folder and its key
    d = open_disk();
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    while (stats_of(d).n_problems == 0 && clock_now_us() < until_us) nap();
    leave_all_files();
    EXPECT(strstr(stats_of(d).problem, "folder") != NULL);
    wait_scanned(d, 3); // 50 ms later
    for (uint32_t i = 1; i <= 3; i++) EXPECT_EQ(read_back(d, i), RIGHT);
    kv_disk_close(d);
    remove_folder();
}

/* Those outside the index were never removed. */
static void a_folder_with_more_files_than_the_index_becomes_smaller(void) {
    enum { FILES = 2300, KEPT = 1024 }; // the index: 2048, of which 1024 are for what is queued
    char file[256];
    open_folder();
    kv_disk_close(open_with(1 << 12, NULL));
    for (uint32_t i = 1; i <= FILES; i++) {
        file_of(i, file);
        int fd = open(file, O_WRONLY | O_CREAT, 0600);
        EXPECT(fd >= 0 && close(fd) == 0);
    }
    kv_disk *d = open_with(1 << 12, NULL);
    uint64_t until_us = clock_now_us() + PATIENCE_US;
    while (stats_of(d).n_evicted < FILES - KEPT && clock_now_us() < until_us) nap();
    EXPECT(stats_of(d).n_problems == 1 && strstr(stats_of(d).problem, "more files") != NULL);
    wait_scanned(d, KEPT);
    EXPECT_EQ(n_files(".kv"), KEPT);
    kv_disk_close(d);
    remove_folder();
}

/* Half of the queue was taken for room, however large the block. */
static void room_is_waited_for_until_the_block_fits(void) {
    kv_layout half = layout, most = layout, more = layout;
    half.slot_bytes = 6 << 20;
    most.slot_bytes = 15 << 20;
    more.slot_bytes = 17 << 20; // never
    open_folder();
    kv_disk *d = open_with(1u << 30, write_later);
    put_surely(d, 1);
    atomic_store(&write_waits, true);
    used = &half;
    EXPECT(put(d, 2));
    used = &most;
    EXPECT(kv_disk_files.wait_room(d, &half, clock_now_us() + PATIENCE_US));
    EXPECT(!kv_disk_files.wait_room(d, &most, clock_now_us() + 2000));
    EXPECT(!put(d, 3));
    atomic_store(&write_waits, false);
    EXPECT(kv_disk_files.wait_room(d, &most, clock_now_us() + PATIENCE_US));
    EXPECT(put(d, 3));
    EXPECT(!kv_disk_files.wait_room(d, &more, clock_now_us() + PATIENCE_US));
    wait_written(d);
    used = &layout;
    kv_disk_close(d);
    remove_folder();
}

static const test_case cases[] = {
    TEST(what_was_written_is_read),
    TEST(it_is_there_after_a_restart),
    TEST(only_the_owner_can_look_at_it),
    TEST(two_do_not_share_a_folder),
    TEST(a_damaged_file_is_counted_removed_and_never_used),
    TEST(another_block_under_the_same_name_is_not_used),
    TEST(a_file_that_is_gone_is_missed),
    TEST(a_link_is_not_followed),
    TEST(another_key_finds_nothing),
    TEST(the_oldest_go_first),
    TEST(a_full_disk_turns_writing_off_for_a_while),
    TEST(a_queue_that_is_full_takes_no_more),
    TEST(tickets_are_bounded_and_may_be_given_back_at_any_time),
    TEST(other_files_stay_as_they_are),
    TEST(what_goes_while_it_is_asked_for_may_come_again),
    TEST(a_file_that_cannot_be_opened_now_stays),
    TEST(a_file_that_cannot_be_read_now_stays),
    TEST(a_folder_that_cannot_be_looked_through_is_tried_again),
    TEST(a_folder_with_more_files_than_the_index_becomes_smaller),
    TEST(room_is_waited_for_until_the_block_fits),
};
TEST_MAIN(cases)
