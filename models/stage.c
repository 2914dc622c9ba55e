/* stage.c - see stage.h.
 *
 *     buffer    | segment | segment | segment      |     one or more rows of one tensor each
 *
 *     empty -> filled    the reader hands it over        n_filled
 *     filled -> empty    the engine prepared the last    n_emptied
 *
 * Both counters only grow; buffer i % BUFFERS is the i-th.
 *
 * Who reads:
 *
 *     UNDECIDED                                    also while a packed file is read
 *     UNDECIDED -> FROM_CACHE    offer_cached      the engine reads what needs no disk
 *     UNDECIDED -> FROM_READER   offer_cached      nobody could say what is in the page cache
 *     FROM_CACHE -> FROM_READER  ask_reader        a row was not there: the reader goes on with it
 *     FROM_CACHE -> ALL_READ     ask_reader        nothing is left but to look at the file again */
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dummy_model.h"
#include "inferd/clock.h"
#include "inferd/dummy_math.h"
#include "packed.h"

enum {
    BUFFERS = 4,
    BUFFER_BYTES = 4 << 20,      // so much is read ahead four times, or
    BUFFER_GROUPS = 2,           // so many groups of rows for each thread, where that is more,
    BUFFER_BYTES_MAX = 64 << 20, // up to this; but always a whole group
    READ_BYTES = 1 << 20,        // by one call: so long a cancelled stage is waited for
    SEGMENTS_MAX = 64,           // of a buffer
    SEGMENT_ALIGN = 64,
    PACKED_BYTES = 4 << 20, // of a packed file by one call
    AHEAD_PAGES = 32        // touched before they are read into
};
enum {
    PIECE_US = 1000,          // a piece takes so long,
    PIECE_US_MIN = 100,       // less where the budget is, but not below this
    PIECE_BYTES = 256000,     // where nothing was measured yet
    CACHED_BYTES = 384 << 10, // of a piece for each thread, read by it: its nearer caches hold it
    CACHED_PART = 64 << 10,   // by one call
    MOVED_PAGES = 32          // into the window by one piece: 7 us each
};

/* Rows of one tensor in a buffer. */
typedef struct segment {
    const weight_entry *entry;
    uint32_t row_begin, n_rows; // of a vector: 0, 1
    size_t at;                  // in the buffer
} segment;

typedef struct buffer {
    unsigned char *p; // owned
    size_t used;
    segment segments[SEGMENTS_MAX];
    uint32_t n_segments;
} buffer;

typedef enum reading { UNDECIDED, FROM_CACHE, FROM_READER, ALL_READ } reading;

struct stage {
    stage_source from;
    size_t page_bytes;
    const weight_entry **order; // [plan->n] by place in the file; owned
    uint32_t group_rows_min;    // for all threads to have a group of rows

    pthread_t reader;
    bool has_reader, has_lock;
    atomic_bool cancelled;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_filled, n_emptied; // under lock
    bool ended;                   // under lock: the reader is through, well or not
    bool wanted;                  // under lock: the engine waits to be woken
    reading reading;              // under lock
    uint32_t first_row;           // under lock: FROM_READER begins here, of order[first]
    size_t first;
    int cached_fd;               // the file once more, for reads that may not wait; -1: none
    uint32_t n_to_move, n_ready; // under lock: pages to move, and those that are, for a packed file
    uint64_t packed_done;        // under lock: bytes of the window that came from one
    char note[INFERD_ERR_TEXT_BYTES]; // reader's until it has ended
    inferd_err failure;               // under lock: of the reader

    buffer buffers[BUFFERS];
    size_t buffer_bytes;
    uint32_t n_touched; // reader's: pages of `from`

    buffer *now;                 // being prepared; NULL: none
    uint32_t at;                 // segment of it, or, made up or FROM_CACHE, entry
    uint32_t row;                // of the segment, or of the entry
    bool reads_cached;           // FROM_CACHE, and all was there so far
    uint32_t n_moved;            // pages that are in the window
    uint64_t done, packed_share; // bytes of the model; what came from a packed file may be in vain
    uint64_t ns_per_kib[DTYPE_LIMIT]; // of the last pieces; 0: none yet
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Where rows [0, end) of an entry end in the window. */
static size_t window_end(const stage *s, const weight_entry *e, uint32_t end) {
    if (e->matrix == NULL) return e->offset + e->cols * sizeof(float);
    return e->offset + be_weight_bytes(s->from.be, e->tensor->type, end, e->cols);
}

/* Pages that hold the first n bytes of the window. */
static uint32_t pages_of(const stage *s, size_t n) {
    return u32_min((uint32_t)((n + s->page_bytes - 1) / s->page_bytes), s->from.n_pages);
}

/* ---- the reader ---- */

static void call_wake(const stage *s) {
    if (s->from.wake != NULL) s->from.wake(s->from.wake_ctx);
}

/* An empty buffer, or NULL: cancelled. */
static buffer *take_empty(stage *s) {
    pthread_mutex_lock(&s->lock);
    while (s->n_filled - s->n_emptied == BUFFERS && !atomic_load(&s->cancelled))
        pthread_cond_wait(&s->changed, &s->lock);
    uint32_t i = s->n_filled % BUFFERS;
    pthread_mutex_unlock(&s->lock);
    if (atomic_load(&s->cancelled)) return NULL;
    s->buffers[i].used = s->buffers[i].n_segments = 0;
    return &s->buffers[i];
}

static void hand_over(stage *s) {
    pthread_mutex_lock(&s->lock);
    s->n_filled++;
    bool wanted = s->wanted;
    s->wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted) call_wake(s);
}

static void end_reading(stage *s, const inferd_err *failure) {
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    s->failure = *failure;
    bool wanted = s->wanted;
    s->wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted) call_wake(s);
}

/* What is prepared from this segment needs these pages; first touches are not the engine's. */
static void touch_pages(stage *s, const segment *g) {
    uint32_t end = pages_of(s, window_end(s, g->entry, g->row_begin + g->n_rows));
    while (s->n_touched < end && !atomic_load(&s->cancelled))
        be_page_touch(s->from.be, s->from.pages[s->n_touched++]);
}

static inferd_status read_segment(stage *s, const segment *g, unsigned char *out, inferd_err *err) {
    size_t row = weight_entry_row_bytes(g->entry), n_bytes = g->n_rows * row;
    uint64_t from = (uint64_t)g->row_begin * row;
    for (size_t at = 0; at < n_bytes; at += READ_BYTES) {
        if (atomic_load(&s->cancelled))
            return inferd_fail(err, INFERD_ECANCELED, "nobody waits for the model any more");
        inferd_status st = gguf_read(s->from.m->file, g->entry->tensor, from + at, out + at,
                                     size_min(READ_BYTES, n_bytes - at), err);
        if (st != INFERD_OK) return st;
    }
    return INFERD_OK;
}

/* How many of the rows left go into this buffer now; 0: it is full enough. */
static uint32_t rows_that_fit(const stage *s, const buffer *b, const weight_entry *e,
                              uint32_t n_left) {
    size_t used = round_up(b->used, SEGMENT_ALIGN);
    if (b->n_segments == SEGMENTS_MAX || used >= s->buffer_bytes) return 0;
    size_t rows = (s->buffer_bytes - used) / weight_entry_row_bytes(e);
    if (rows >= n_left) return n_left;
    uint32_t whole = (uint32_t)(rows / BE_PREPARE_ROWS * BE_PREPARE_ROWS);
    return b->n_segments == 0 || whole >= s->group_rows_min ? whole : 0;
}

/* Rows from `begin` on.  *b: the buffer that is being filled, NULL while there is none. */
static inferd_status read_entry(stage *s, const weight_entry *e, uint32_t begin, buffer **b,
                                inferd_err *err) {
    while (begin < e->rows) {
        if (*b == NULL) *b = take_empty(s);
        if (*b == NULL)
            return inferd_fail(err, INFERD_ECANCELED, "nobody waits for the model any more");
        uint32_t n = rows_that_fit(s, *b, e, e->rows - begin);
        if (n == 0) {
            hand_over(s);
            *b = NULL;
            continue;
        }
        segment *g = &(*b)->segments[(*b)->n_segments];
        *g = (segment){e, begin, n, round_up((*b)->used, SEGMENT_ALIGN)};
        inferd_status st = read_segment(s, g, (*b)->p + g->at, err);
        if (st != INFERD_OK) return st;
        touch_pages(s, g);
        (*b)->used = g->at + n * weight_entry_row_bytes(e);
        (*b)->n_segments++;
        begin += n;
    }
    return INFERD_OK;
}

/* Pages that hold [0, end) of the window are in it; false: cancelled.  Some more are touched, and
 * moved, by the time they are needed. */
static bool wait_for_pages(stage *s, size_t end) {
    uint32_t needed = pages_of(s, end), some = u32_min(needed + AHEAD_PAGES, s->from.n_pages);
    while (s->n_touched < some && !atomic_load(&s->cancelled))
        be_page_touch(s->from.be, s->from.pages[s->n_touched++]);
    pthread_mutex_lock(&s->lock);
    s->n_to_move = u32_max(s->n_to_move, s->n_touched);
    bool wanted = s->wanted && s->n_to_move > s->n_ready;
    if (wanted) s->wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted) call_wake(s);
    pthread_mutex_lock(&s->lock);
    while (s->n_ready < needed && !atomic_load(&s->cancelled))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return !atomic_load(&s->cancelled);
}

/* One unit of the window, [begin, end), whose first bytes up to *there have been read before. */
static inferd_status read_unit(stage *s, packed *p, uint32_t unit, size_t begin, size_t *there,
                               inferd_err *err) {
    unsigned char *window = be_window_host(s->from.window);
    size_t end = p->units[unit].end, at = begin;
    packed_sum sum;
    packed_sum_init(&sum);
    while (at < end) {
        if (at == *there) {
            size_t n =
                round_up(size_min(PACKED_BYTES, s->from.plan->n_bytes - at), PACKED_READ_ALIGN);
            if (!wait_for_pages(s, at + n))
                return inferd_fail(err, INFERD_ECANCELED, "nobody waits for the model any more");
            inferd_status st = packed_read(p, at, window + at, n, err);
            if (st != INFERD_OK) return st;
            *there = at + n;
        }
        size_t part = size_min(end, *there) - at;
        packed_sum_add(&sum, window + at, part);
        at += part;
    }
    if (packed_sum_end(&sum) != p->units[unit].sum)
        return inferd_fail(err, INFERD_EFORMAT, "%s: unit %u of %u has a wrong checksum", p->path,
                           unit, p->n_units);
    pthread_mutex_lock(&s->lock);
    s->packed_done = end;
    pthread_mutex_unlock(&s->lock);
    return INFERD_OK;
}

/* Everything came from the packed file; false: it did not, and the note says why if there is one.
 */
static bool read_packed(stage *s) {
    packed p;
    inferd_err err = {0};
    inferd_status st = packed_open(s->from.m, s->from.be, s->from.plan, &p, &err);
    if (st == INFERD_ENOTFOUND) return false;
    size_t begin = 0, there = 0;
    uint32_t n_units = st == INFERD_OK ? p.n_units : 0;
    for (uint32_t i = 0; i < n_units && st == INFERD_OK; i++) {
        st = read_unit(s, &p, i, begin, &there, &err);
        begin = p.units[i].end;
    }
    if (st == INFERD_OK)
        snprintf(s->note, sizeof s->note, "read from %.400s%s", p.path,
                 p.direct ? "" : ", through the page cache");
    else
        snprintf(s->note, sizeof s->note, "the packed file is not used: %.420s", err.text);
    packed_close(&p);
    return st == INFERD_OK;
}

/* What is read is what was opened. */
static inferd_status check_file(const stage *s, inferd_err *err) {
    const model *m = s->from.m;
    return atomic_load(&m->held) ? gguf_check_open(m->file, err)
                                 : gguf_check_unchanged(m->file, err);
}

/* Another descriptor of the same file: the model's own says nothing of what would wait. */
static int open_again(const stage *s) {
    const gguf *g = s->from.m->file;
    gguf_identity id = gguf_identify(g);
    inferd_err err = {0};
    struct stat now;
    if (gguf_check_unchanged(g, &err) != INFERD_OK) return -1;
    int fd = open(gguf_path(g), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return -1;
    bool same =
        fstat(fd, &now) == 0 && (uint64_t)now.st_size == id.n_bytes &&
        (uint64_t)now.st_mtim.tv_sec * 1000000000u + (uint64_t)now.st_mtim.tv_nsec == id.mtime_ns;
    if (same && gguf_check_unchanged(g, &err) == INFERD_OK)
        return fd; // the path named it all along
    close(fd);
    return -1;
}

/* Some bytes from `at` on, if that needs no disk; 0: not now, or never. */
static size_t read_now(int fd, unsigned char *out, size_t n, uint64_t at) {
    ssize_t got;
    do {
        got = preadv2(fd, &(struct iovec){out, n}, 1, (off_t)at, RWF_NOWAIT);
    } while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

/* Let the engine read, until it asks.  False: cancelled. */
static bool offer_cached(stage *s) {
    unsigned char byte;
    int fd = s->from.plan->n > 0 ? open_again(s) : -1;
    bool can = fd >= 0 && read_now(fd, &byte, 1, s->order[0]->tensor->file_offset) == 1;
    pthread_mutex_lock(&s->lock);
    s->cached_fd = fd;
    s->reading = can ? FROM_CACHE : FROM_READER;
    bool wanted = s->wanted;
    s->wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted) call_wake(s);
    pthread_mutex_lock(&s->lock);
    while (s->reading == FROM_CACHE && !atomic_load(&s->cancelled))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return !atomic_load(&s->cancelled);
}

static inferd_status read_rows(stage *s, inferd_err *err) {
    buffer *b = NULL;
    inferd_status st = INFERD_OK;
    if (!offer_cached(s))
        return inferd_fail(err, INFERD_ECANCELED, "nobody waits for the model any more");
    if (s->reading == ALL_READ) return INFERD_OK; // it changes no more, as first and first_row
    for (size_t i = s->first; i < s->from.plan->n && st == INFERD_OK; i++)
        st = read_entry(s, s->order[i], i == s->first ? s->first_row : 0, &b, err);
    if (st == INFERD_OK && b != NULL) hand_over(s);
    return st;
}

static void *read_all(void *arg) {
    stage *s = arg;
    const gguf *g = s->from.m->file;
    inferd_err err = {0};
    be_thread_beside(s->from.be);
    gguf_will_read(g);
    inferd_status st = check_file(s, &err);
    bool was_packed = st == INFERD_OK && !s->from.no_packed && read_packed(s);
    if (st == INFERD_OK && !was_packed) st = read_rows(s, &err);
    if (st == INFERD_OK) st = check_file(s, &err);
    end_reading(s, &err);
    return NULL;
}

/* ---- opening and closing ---- */

static int by_place(const void *a, const void *b) {
    const weight_entry *x = *(const weight_entry *const *)a, *y = *(const weight_entry *const *)b;
    return x->tensor->file_offset < y->tensor->file_offset
               ? -1
               : x->tensor->file_offset > y->tensor->file_offset;
}

/* A buffer holds every vector, and a group of rows of every matrix. */
static size_t choose_buffer(const stage *s) {
    const weight_plan *plan = s->from.plan;
    size_t largest = 0;
    for (size_t i = 0; i < plan->n; i++) {
        const weight_entry *e = &plan->entries[i];
        size_t group = u32_min(e->rows, BE_PREPARE_ROWS) * weight_entry_row_bytes(e);
        largest = size_max(largest, group);
    }
    size_t for_all = (size_t)be_n_threads(s->from.be) * BUFFER_GROUPS * largest;
    size_t n = size_min(size_max(for_all, BUFFER_BYTES), BUFFER_BYTES_MAX);
    n = size_min(n, plan->file_bytes + plan->n * SEGMENT_ALIGN); // of a small model: everything
    return round_up(size_max(n, largest), READ_BYTES);
}

static inferd_status open_reader(stage *s, inferd_err *err) {
    enum { ALIGN = 4096 };
    const weight_plan *plan = s->from.plan;
    s->order = malloc(size_max(plan->n, 1) * sizeof(*s->order));
    if (s->order == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %zu tensors", plan->n);
    for (size_t i = 0; i < plan->n; i++) s->order[i] = &plan->entries[i];
    qsort(s->order, plan->n, sizeof(*s->order), by_place);
    s->buffer_bytes = choose_buffer(s);
    for (int i = 0; i < BUFFERS; i++) {
        s->buffers[i].p = aligned_alloc(ALIGN, s->buffer_bytes);
        if (s->buffers[i].p == NULL)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for %d read buffers of %zu bytes",
                               BUFFERS, s->buffer_bytes);
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->has_lock = true;
    int e = pthread_create(&s->reader, NULL, read_all, s);
    if (e != 0)
        return inferd_fail(err, INFERD_ENOMEM, "cannot start the thread that reads a model: %s",
                           strerror(e));
    s->has_reader = true;
    return INFERD_OK;
}

inferd_status stage_open(const stage_source *from, stage **out, inferd_err *err) {
    *out = NULL;
    stage *s = calloc(1, sizeof *s);
    if (s == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the stage of a model");
    s->from = *from;
    s->cached_fd = -1;
    s->page_bytes = be_page_bytes(from->be);
    s->group_rows_min = be_n_threads(from->be) * BE_PREPARE_ROWS;
    inferd_status st = from->m->dummy ? INFERD_OK : open_reader(s, err);
    if (st != INFERD_OK) {
        stage_close(s);
        return st;
    }
    *out = s;
    return INFERD_OK;
}

static void join_reader(stage *s) {
    if (!s->has_reader) return;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->cancelled, true);
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->reader, NULL);
    s->has_reader = false;
}

void stage_close(stage *s) {
    if (s == NULL) return;
    join_reader(s);
    if (s->has_lock) {
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
    }
    if (s->cached_fd >= 0) close(s->cached_fd);
    for (int i = 0; i < BUFFERS; i++) free(s->buffers[i].p);
    free(s->order);
    free(s);
}

/* ---- pieces ---- */

/* Pages up to `end` of the window are in it; false: that was enough for one piece, or it failed. */
static bool move_pages(stage *s, uint32_t end, inferd_status *st, inferd_err *err) {
    if (s->n_moved >= end) return true;
    uint32_t n = u32_min(end - s->n_moved, MOVED_PAGES);
    *st = be_window_grow(s->from.be, s->from.window, s->from.pages + s->n_moved, n, err);
    if (*st == INFERD_OK) s->n_moved += n;
    if (*st == INFERD_OK && s->has_lock) { // the reader of a packed file may wait for it
        pthread_mutex_lock(&s->lock);
        s->n_ready = s->n_moved;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    return *st == INFERD_OK && s->n_moved >= end;
}

/* Rows of this type that take about `us`. */
static uint32_t rows_of_piece(const stage *s, const weight_entry *e, uint64_t us, uint32_t n_left) {
    uint64_t each = s->ns_per_kib[e->tensor->type];
    uint64_t n_bytes = each == 0 ? PIECE_BYTES : us * 1000 * 1024 / each;
    if (s->reads_cached) {
        size_t near = (size_t)be_n_threads(s->from.be) * CACHED_BYTES;
        if (n_bytes > near) n_bytes = near;
    }
    uint64_t rows = n_bytes / weight_entry_row_bytes(e) / BE_PREPARE_ROWS * BE_PREPARE_ROWS;
    if (rows < s->group_rows_min) rows = s->group_rows_min; // the threads work side by side
    if (s->reads_cached && rows * weight_entry_row_bytes(e) > s->buffer_bytes) // but a group fits
        rows = s->buffer_bytes / weight_entry_row_bytes(e) / BE_PREPARE_ROWS * BE_PREPARE_ROWS;
    return rows < n_left ? (uint32_t)rows : n_left;
}

static void learn(stage *s, dtype type, size_t n_bytes, uint64_t ns) {
    uint64_t each = ns * 1024 / size_max(n_bytes, 1), *known = &s->ns_per_kib[type];
    *known = *known == 0 ? each + 1 : (3 * *known + each) / 4 + 1;
}

static inferd_status prepare_vector(const stage *s, const weight_entry *e,
                                    const unsigned char *from, inferd_err *err) {
    float *values = malloc(e->cols * sizeof *values);
    if (values == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a vector of %u", e->cols);
    inferd_status st = INFERD_OK;
    dtype_to_f32(e->tensor->type, from, values, e->cols);
    for (uint32_t i = 0; i < e->cols && st == INFERD_OK; i++)
        if (!isfinite(values[i]))
            st = inferd_fail(err, INFERD_EFORMAT, "%s: tensor %s[%u] is not a finite number",
                             gguf_path(s->from.m->file), e->tensor->name, i);
    if (st == INFERD_OK) be_vec_load(s->from.be, e->vector, values);
    free(values);
    return st;
}

/* ---- what the engine reads itself ---- */

typedef struct cached_read {
    stage *s;
    unsigned char *out;
    uint64_t from;
    size_t n_bytes;
    atomic_bool missed;
} cached_read;

static void read_part(void *ctx, uint32_t i) {
    cached_read *r = ctx;
    size_t at = (size_t)i * CACHED_PART, end = size_min(at + CACHED_PART, r->n_bytes);
    while (at < end && !atomic_load_explicit(&r->missed, memory_order_relaxed)) {
        size_t got = read_now(r->s->cached_fd, r->out + at, end - at, r->from + at);
        if (got == 0) atomic_store_explicit(&r->missed, true, memory_order_relaxed);
        at += got;
    }
}

/* Rows of the file into the first buffer; false: not all of them are in the page cache. */
static bool read_cached(stage *s, const weight_entry *e, uint32_t begin, uint32_t rows) {
    size_t row = weight_entry_row_bytes(e);
    cached_read r = {s, s->buffers[0].p, e->tensor->file_offset + begin * (uint64_t)row, rows * row,
                     false};
    uint32_t n_parts = (uint32_t)((r.n_bytes + CACHED_PART - 1) / CACHED_PART);
    if (n_parts == 1)
        read_part(&r, 0);
    else
        be_parallel(s->from.be, n_parts, read_part, &r);
    return !atomic_load(&r.missed);
}

/* The reader goes on with entry s->at, row s->row, or only looks at the file again. */
static void ask_reader(stage *s) {
    pthread_mutex_lock(&s->lock);
    s->first = s->at;
    s->first_row = s->row;
    s->reading = s->at < s->from.plan->n ? FROM_READER : ALL_READ;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->reads_cached = false;
}

static void touch_page(void *ctx, uint32_t i) {
    const stage *s = ctx;
    be_page_touch(s->from.be, s->from.pages[s->n_touched + i]);
}

/* Pages that hold `end` bytes of the window are touched; false: that was enough for one piece.
 * Mostly they were before (arena.h), and this costs nothing. */
static bool touch_now(stage *s, size_t end) {
    uint32_t n_pages = pages_of(s, end), n_threads = be_n_threads(s->from.be);
    uint64_t began_ns = now_ns();
    while (s->n_touched < n_pages) {
        uint32_t n = u32_min(n_pages - s->n_touched, n_threads);
        if (now_ns() - began_ns > PIECE_US_MIN * 1000u) return false;
        be_parallel(s->from.be, n, touch_page, s);
        s->n_touched += n;
    }
    return true;
}

/* Rows [begin, ...) of entry e, of which n_left may be prepared: `from` has them as in the file, or
 * is NULL and they are made up, or they are read from the page cache.  *n: how many were. */
static inferd_status prepare_rows(stage *s, const weight_entry *e, const unsigned char *from,
                                  uint32_t begin, uint32_t n_left, uint64_t us, uint32_t *n,
                                  inferd_err *err) {
    const model *m = s->from.m;
    inferd_status st = INFERD_OK;
    uint32_t rows = rows_of_piece(s, e, us, n_left);
    size_t end = window_end(s, e, begin + rows);
    *n = 0;
    if (s->reads_cached && !touch_now(s, end)) return st;
    if (!move_pages(s, pages_of(s, end), &st, err)) return st;
    uint64_t began_ns = now_ns();
    if (s->reads_cached) {
        from = s->buffers[0].p;
        if (!read_cached(s, e, begin, rows)) {
            ask_reader(s);
            return INFERD_OK;
        }
    }
    if (e->matrix == NULL && from == NULL)
        be_vec_fill(s->from.be, e->vector, 1.0f);
    else if (e->matrix == NULL)
        st = prepare_vector(s, e, from, err);
    else if (from == NULL)
        be_weight_dummy_rows(s->from.be, e->matrix, dummy_seed(e->tensor->name, m->dummy_seed),
                             dummy_scale(e->tensor->name, m->spec.n_layers), begin, rows);
    else
        be_weight_prepare(s->from.be, e->matrix, from, begin, rows);
    if (st == INFERD_OK) st = be_check(s->from.be, err);
    size_t n_bytes = rows * weight_entry_row_bytes(e);
    if (e->matrix != NULL) learn(s, e->tensor->type, n_bytes, now_ns() - began_ns);
    if (st == INFERD_OK) s->done += n_bytes;
    *n = rows;
    return st;
}

/* The buffer that is next; NULL: there is none now (or no more, *ended), or the reader failed.
 * *to_move: so many pages are wanted in the window first. */
static buffer *take_filled(stage *s, bool *ended, uint32_t *to_move, inferd_status *st,
                           inferd_err *err) {
    buffer *b = NULL;
    pthread_mutex_lock(&s->lock);
    *to_move = s->n_to_move;
    if (s->packed_done > 0) // in bytes of the model
        s->packed_share = (uint64_t)((double)s->packed_done / (double)s->from.plan->n_bytes *
                                     (double)s->from.plan->file_bytes);
    if (s->failure.status != INFERD_OK)
        *st = inferd_fail(err, s->failure.status, "%s", s->failure.text);
    else if (s->n_filled != s->n_emptied)
        b = &s->buffers[s->n_emptied % BUFFERS];
    else
        *ended = s->ended;
    s->reads_cached = b == NULL && *st == INFERD_OK && !*ended && s->reading == FROM_CACHE;
    s->wanted =
        b == NULL && *st == INFERD_OK && !*ended && !s->reads_cached && *to_move <= s->n_moved;
    pthread_mutex_unlock(&s->lock);
    return b;
}

static void give_back(stage *s) {
    pthread_mutex_lock(&s->lock);
    s->n_emptied++;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->now = NULL;
}

typedef enum outcome { WORKED, WAITING, ALL_DONE } outcome;

static inferd_status cached_piece(stage *s, uint64_t us, inferd_err *err) {
    if (s->at == s->from.plan->n) {
        ask_reader(s);
        return INFERD_OK;
    }
    const weight_entry *e = s->order[s->at];
    uint32_t n;
    inferd_status st = prepare_rows(s, e, NULL, s->row, e->rows - s->row, us, &n, err);
    s->row += n;
    if (s->row < e->rows) return st;
    s->row = 0;
    s->at++;
    return st;
}

static inferd_status read_piece(stage *s, uint64_t us, outcome *out, inferd_err *err) {
    inferd_status st = INFERD_OK;
    bool ended = false;
    uint32_t to_move = 0;
    *out = WORKED;
    if (s->reads_cached) return cached_piece(s, us, err);
    if (s->now == NULL) {
        s->now = take_filled(s, &ended, &to_move, &st, err);
        s->at = s->row = 0;
    }
    if (s->reads_cached) return INFERD_OK; // from the next piece on
    if (s->now == NULL && st == INFERD_OK && to_move > s->n_moved) {
        move_pages(s, to_move, &st, err);
        return st;
    }
    *out = ended ? ALL_DONE : s->now == NULL ? WAITING : WORKED;
    if (s->now == NULL) return st;
    const segment *g = &s->now->segments[s->at];
    uint32_t n;
    st = prepare_rows(s, g->entry, s->now->p + g->at + s->row * weight_entry_row_bytes(g->entry),
                      g->row_begin + s->row, g->n_rows - s->row, us, &n, err);
    s->row += n;
    if (s->row < g->n_rows) return st;
    s->row = 0;
    if (++s->at == s->now->n_segments) give_back(s);
    return st;
}

static inferd_status make_piece(stage *s, uint64_t us, outcome *out, inferd_err *err) {
    *out = s->at < s->from.plan->n ? WORKED : ALL_DONE;
    if (*out == ALL_DONE) return INFERD_OK;
    const weight_entry *e = &s->from.plan->entries[s->at];
    uint32_t n;
    inferd_status st = prepare_rows(s, e, NULL, s->row, e->rows - s->row, us, &n, err);
    s->row += n;
    if (s->row < e->rows) return st;
    s->row = 0;
    s->at++;
    return st;
}

/* The window has all its pages, also those behind the last byte. */
static inferd_status last_piece(stage *s, bool *finished, inferd_err *err) {
    inferd_status st = INFERD_OK;
    *finished = move_pages(s, s->from.n_pages, &st, err);
    if (!*finished) return st;
    join_reader(s);
    s->done = s->from.plan->file_bytes;
    return st;
}

const char *stage_note(const stage *s) {
    return s->note;
}

inferd_status stage_step(stage *s, uint64_t budget_us, placed_progress *out, inferd_err *err) {
    uint64_t began_us = clock_now_us(), passed_us = 0;
    inferd_status st;
    *out = (placed_progress){.total = s->from.plan->file_bytes};
    do {
        uint64_t left_us = budget_us - passed_us;
        uint64_t us = size_max(size_min(left_us, PIECE_US), PIECE_US_MIN);
        outcome now;
        st = s->from.m->dummy ? make_piece(s, us, &now, err) : read_piece(s, us, &now, err);
        if (st == INFERD_OK && now == ALL_DONE) st = last_piece(s, &out->finished, err);
        out->waiting = now == WAITING;
        passed_us = clock_now_us() - began_us;
    } while (st == INFERD_OK && !out->finished && !out->waiting && passed_us < budget_us);
    out->done = size_max(s->done, s->packed_share);
    out->device_us = passed_us;
    return st;
}
