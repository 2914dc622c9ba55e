/* stage.c - see stage.h.
 *
 *     buffer    | segment | segment | segment      |     one or more rows of one tensor each
 *
 *     empty -> filled    the reader has filled it          n_filled
 *     filled -> empty    the engine prepared its last row  n_emptied
 *
 * Both counters only grow; the i-th that is filled is buffer i % BUFFERS.
 *
 * The source of the engine's rows:
 *
 *     MADE_UP     no file: never changes
 *     BUFFERED    the reader's buffers, perhaps empty        also while a packed file is read
 *     CACHED      the page cache, into the first buffer      while the reading is FROM_CACHE
 *     CHUNKS      a packed file in the page cache            while the reading is FROM_PACKED
 *
 * The thread that reads:
 *
 *     UNDECIDED                                    also while the reader reads a packed file
 *     UNDECIDED -> FROM_PACKED   offer_packed      the engine reads a packed file in the page cache
 *     FROM_PACKED -> UNDECIDED   end_chunks        complete, damaged, or too much was not cached
 *     UNDECIDED -> FROM_CACHE    offer_cached      the engine reads data that needs no disk
 *     UNDECIDED -> FROM_READER   offer_cached      the contents of the page cache are unknown
 *     FROM_CACHE -> FROM_READER  ask_reader        too much was not cached: the reader goes on
 *     FROM_CACHE -> ALL_READ     ask_reader        only the final check of the file is left */
#include "stage.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "dummy_model.h"
#include "inferd/clock.h"
#include "inferd/dummy_math.h"
#include "packed.h"
#include "stage_cached.h"

enum {
    BUFFERS = 4,
    BUFFER_BYTES = 4 << 20,      // of each of the four buffers, or
    BUFFER_GROUPS = 2,           // so many groups of rows for each thread, if that is more,
    BUFFER_BYTES_MAX = 64 << 20, // up to this; but always a whole group
    READ_BYTES = 1 << 20,        // by one call: cancelling a stage waits for one call
    SEGMENTS_MAX = 64,           // of a buffer
    SEGMENT_ALIGN = 64,
    PACKED_BYTES = 4 << 20, // of a packed file by one call
    AHEAD_PAGES = 32        // touched before they are read into
};
enum {
    PIECE_US = 1000,            // length of a piece,
    CACHED_US = 4000,           // CACHED, CHUNKS: the threads look at the clock themselves,
    PIECE_US_MIN = 100,         // less if the budget is less, but at least this
    PIECE_BYTES = 256000,       // of a piece before anything was measured
    CACHED_BYTES = 96 << 10,    // of a file at once by one thread: its nearest cache holds them
    CACHED_PARTS_MAX = 256,     // of so many bytes in one piece
    CACHED_LATE_US = 1000,      // after the planned time the rest is left for another piece
    CACHED_WAIT_US_MAX = 10000, // of all threads for data not in the page cache: then the reader
    MOVED_PAGES = 32            // into the window by one piece: 7 us each
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

/* A position: row `row` of the at-th entry, in the order of the walk. */
typedef struct position {
    uint32_t at, row;
} position;

typedef enum source { BUFFERED, CACHED, CHUNKS, MADE_UP } source;
typedef enum reading { UNDECIDED, FROM_PACKED, FROM_CACHE, FROM_READER, ALL_READ } reading;

/* The part of the file that one piece reads from the page cache. */
typedef struct cached_piece {
    uint32_t n_parts, n_vectors;
    size_t n_bytes, largest; // of the file: all, of the largest part
    size_t end;              // in the window
    position after;          // its end, or the position reached in time
} cached_piece;

struct stage {
    stage_source from;
    size_t page_bytes;
    const weight_entry **order; // [plan->n] by place in the files, MADE_UP: as planned; owned
    uint32_t group_rows_min;    // so that all threads have a group of rows

    pthread_t reader;
    bool has_reader, has_lock;
    atomic_bool cancelled;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_filled, n_emptied; // under lock
    bool ended;                   // under lock: the reader has ended, with success or not
    bool wanted;                  // under lock: the engine waits for a wake
    reading reading;              // under lock
    position first;               // under lock: FROM_READER begins here, in `order`
    cached_range *files;          // [gguf_n_parts] reader's until FROM_CACHE; owned
    uint32_t n_to_move, n_ready;  // under lock: pages to move, and pages moved, for a packed file
    uint64_t packed_done;         // under lock: bytes of the window read from a packed file
    packed packed;                // reader's; of the engine while FROM_PACKED
    uint32_t chunk;               // the next one; as `packed`
    inferd_err chunk_fail;        // of a chunk; as `packed`
    char note[INFERD_ERR_TEXT_BYTES]; // reader's until it has ended
    bool renamed;                     // reader's: the path named another file when it began
    inferd_err failure;               // under lock: of the reader

    buffer buffers[BUFFERS];
    size_t buffer_bytes;
    uint32_t n_touched; // pages of `from`; the engine's while CACHED or CHUNKS, else the reader's

    source source;
    position entry;                      // CACHED, MADE_UP: in `order`
    uint64_t waited_us;                  // CACHED: by all threads, for data not in the page cache
    uint64_t cached_ns_per_kib;          // CACHED: of the last pieces; 0: none yet
    uint64_t chunk_ns_per_kib;           // CHUNKS: the same
    cached_part parts[CACHED_PARTS_MAX]; // of one piece
    position begins[CACHED_PARTS_MAX];   // of these parts
    const weight_entry *vectors[CACHED_PARTS_MAX];
    buffer *now;                 // BUFFERED: being prepared; NULL: none
    position segment;            // of `now`
    uint32_t n_moved;            // pages that are in the window
    size_t prepared;             // of the window, by filled_piece: see stage_prepared
    uint64_t done, packed_share; // bytes of the model; of those from a packed file, which may fail
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

/* The end, in the window, of rows [0, end) of an entry. */
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

/* Touch the pages for the weights of this segment, so that the engine need not. */
static void touch_pages(stage *s, const segment *g) {
    uint32_t end = pages_of(s, window_end(s, g->entry, g->row_begin + g->n_rows));
    while (s->n_touched < end && !atomic_load(&s->cancelled))
        be_page_touch(s->from.be, s->from.pages[s->n_touched++]);
}

static inferd_status read_segment(stage *s, const segment *g, unsigned char *out, inferd_err *err) {
    size_t row = weight_entry_row_bytes(g->entry), n_bytes = g->n_rows * row;
    uint64_t from = g->entry->tensor_at + (uint64_t)g->row_begin * row;
    for (size_t at = 0; at < n_bytes; at += READ_BYTES) {
        if (atomic_load(&s->cancelled))
            return inferd_fail(err, INFERD_ECANCELED,
                               "the load was cancelled: the model is no longer needed");
        inferd_status st = gguf_read(s->from.m->file, g->entry->tensor, from + at, out + at,
                                     size_min(READ_BYTES, n_bytes - at), err);
        if (st != INFERD_OK) return st;
    }
    return INFERD_OK;
}

/* How many of the remaining rows go into this buffer now; 0: it is full enough. */
static uint32_t rows_that_fit(const stage *s, const buffer *b, const weight_entry *e,
                              uint32_t n_left) {
    size_t used = round_up(b->used, SEGMENT_ALIGN);
    if (b->n_segments == SEGMENTS_MAX || used >= s->buffer_bytes) return 0;
    size_t rows = (s->buffer_bytes - used) / weight_entry_row_bytes(e);
    if (rows >= n_left) return n_left;
    uint32_t whole = (uint32_t)(rows / BE_PREPARE_ROWS * BE_PREPARE_ROWS);
    return b->n_segments == 0 || whole >= s->group_rows_min ? whole : 0;
}

/* Read rows from `begin` on.  *b: the buffer that is being filled, NULL while there is none. */
static inferd_status read_entry(stage *s, const weight_entry *e, uint32_t begin, buffer **b,
                                inferd_err *err) {
    while (begin < e->rows) {
        if (*b == NULL) *b = take_empty(s);
        if (*b == NULL)
            return inferd_fail(err, INFERD_ECANCELED,
                               "the load was cancelled: the model is no longer needed");
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

/* Wait until the pages of [0, end) of the window are in it; false: cancelled.  Touches some more
 * pages, which are moved before they are needed. */
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

/* Read one chunk of the window; its first bytes up to *there were read before. */
static inferd_status read_chunk(stage *s, uint32_t i, size_t *there, inferd_err *err) {
    unsigned char *window = be_window_host(s->from.window);
    size_t end = packed_chunk_end(&s->packed, i), at = (size_t)i * PACKED_CHUNK_BYTES;
    packed_sum sum;
    if (at >= *there) {
        size_t n = round_up(size_min(PACKED_BYTES, s->from.plan->n_bytes - at), PACKED_READ_ALIGN);
        if (!wait_for_pages(s, at + n))
            return inferd_fail(err, INFERD_ECANCELED,
                               "the load was cancelled: the model is no longer needed");
        inferd_status st = packed_read(&s->packed, at, window + at, n, err);
        if (st != INFERD_OK) return st;
        *there = at + n;
    }
    packed_sum_init(&sum);
    packed_sum_add(&sum, window + at, end - at);
    inferd_status st = packed_check(&s->packed, i, &sum, err);
    if (st != INFERD_OK) return st;
    pthread_mutex_lock(&s->lock);
    s->packed_done = end;
    pthread_mutex_unlock(&s->lock);
    return INFERD_OK;
}

/* Let the engine read from the page cache until it gives the packed file back. */
static void offer_packed(stage *s) {
    uint64_t from = s->packed.data_at, end = from + s->packed.window_bytes;
    const cached_range all = {s->packed.fd, from, end};
    cached_share share = cached_look(&all, 1);
    if (share == CACHED_LITTLE) return;
    if (share == CACHED_MOST) cached_fill(&all, 1);
    pthread_mutex_lock(&s->lock);
    s->reading = FROM_PACKED;
    bool wanted = s->wanted;
    s->wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted) call_wake(s);
    pthread_mutex_lock(&s->lock);
    while (s->reading == FROM_PACKED && !atomic_load(&s->cancelled))
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* Read everything from the packed file; false: that failed, and the note may have the reason. */
static bool read_packed(stage *s) {
    inferd_err err = {0};
    inferd_status st = packed_open(s->from.m, s->from.be, s->from.plan, &s->packed, &err);
    if (st == INFERD_ENOTFOUND) return false;
    size_t there = 0;
    bool by_engine = false;
    if (st == INFERD_OK) {
        offer_packed(s);
        err = s->chunk_fail;
        st = err.status;
        by_engine = s->chunk == s->packed.n_chunks;
    }
    for (uint32_t i = s->chunk; i < s->packed.n_chunks && st == INFERD_OK; i++)
        st = read_chunk(s, i, &there, &err);
    if (st == INFERD_OK)
        snprintf(s->note, sizeof s->note, "read from %.400s%s", s->packed.path,
                 by_engine || s->packed.direct_fd < 0 ? ", through the page cache" : "");
    else
        snprintf(s->note, sizeof s->note, "the packed file is not used: %.420s", err.text);
    return st == INFERD_OK;
}

/* The file is still the one that was opened. */
static inferd_status check_file(const stage *s, inferd_err *err) {
    const model *m = s->from.m;
    return s->renamed || atomic_load(&m->held) ? gguf_check_open(m->file, err)
                                               : gguf_check_unchanged(m->file, err);
}

/* The read bytes of each file, with a descriptor of its own: not the model's, which the reader uses
 * with read-ahead. */
static void open_cached(stage *s) {
    const gguf *g = s->from.m->file;
    for (size_t i = 0; i < s->from.plan->n; i++) {
        const weight_entry *e = s->order[i]; // in the order of each file
        cached_range *r = &s->files[e->tensor->part];
        if (r->end == 0)
            *r = (cached_range){gguf_reopen(g, e->tensor->part), weight_entry_file_offset(e), 0};
        r->end = weight_entry_file_offset(e) + e->rows * (uint64_t)weight_entry_row_bytes(e);
    }
}

/* Let the engine read from the page cache until it asks the reader.  False: cancelled. */
static bool offer_cached(stage *s) {
    cached_share share = CACHED_LITTLE;
    uint32_t n_files = gguf_n_parts(s->from.m->file);
    if (s->from.plan->n > 0 && !s->from.in_order) {
        open_cached(s);
        share = cached_look(s->files, n_files);
    }
    pthread_mutex_lock(&s->lock);
    s->reading = share != CACHED_LITTLE ? FROM_CACHE : FROM_READER;
    bool wanted = s->wanted;
    s->wanted = false;
    pthread_mutex_unlock(&s->lock);
    if (wanted) call_wake(s);
    if (share == CACHED_MOST) cached_fill(s->files, n_files);
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
        return inferd_fail(err, INFERD_ECANCELED,
                           "the load was cancelled: the model is no longer needed");
    if (s->reading == ALL_READ) return INFERD_OK; // final, like `first`
    for (uint32_t i = s->first.at; i < s->from.plan->n && st == INFERD_OK; i++)
        st = read_entry(s, s->order[i], i == s->first.at ? s->first.row : 0, &b, err);
    if (st == INFERD_OK && b != NULL) hand_over(s);
    return st;
}

static void *read_all(void *arg) {
    stage *s = arg;
    const gguf *g = s->from.m->file;
    inferd_err err = {0};
    be_thread_beside(s->from.be);
    gguf_will_read(g);
    model_file_id unused;
    inferd_err ignored = {0};
    s->renamed = model_look_at_file(s->from.m, &unused, &ignored) == MODEL_FILE_REPLACED;
    inferd_status st = check_file(s, &err);
    bool was_packed = st == INFERD_OK && !s->from.no_packed && read_packed(s);
    if (st == INFERD_OK && !was_packed) st = read_rows(s, &err);
    if (st == INFERD_OK) st = check_file(s, &err);
    end_reading(s, &err);
    return NULL;
}

/* ---- opening and closing ---- */

static int by_position(const void *a, const void *b) {
    const weight_entry *x = *(const weight_entry *const *)a, *y = *(const weight_entry *const *)b;
    uint64_t x_at = weight_entry_file_offset(x), y_at = weight_entry_file_offset(y);
    if (x->tensor->part != y->tensor->part) return x->tensor->part < y->tensor->part ? -1 : 1;
    return x_at < y_at ? -1 : x_at > y_at;
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
    n = size_min(n, plan->file_bytes + plan->n * SEGMENT_ALIGN); // a small model fits as a whole
    return round_up(size_max(n, largest), READ_BYTES);
}

static inferd_status list_entries(stage *s, inferd_err *err) {
    const weight_plan *plan = s->from.plan;
    s->order = malloc(size_max(plan->n, 1) * sizeof(*s->order));
    if (s->order == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %zu tensors", plan->n);
    for (size_t i = 0; i < plan->n; i++) s->order[i] = &plan->entries[i];
    if (s->source != MADE_UP && !s->from.in_order)
        qsort(s->order, plan->n, sizeof(*s->order), by_position);
    return INFERD_OK;
}

static inferd_status open_reader(stage *s, inferd_err *err) {
    enum { ALIGN = 4096 };
    uint32_t n_files = gguf_n_parts(s->from.m->file);
    s->files = malloc(n_files * sizeof *s->files);
    if (s->files == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a list of %u files", n_files);
    for (uint32_t i = 0; i < n_files; i++) s->files[i] = (cached_range){.fd = -1};
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
    pthread_setname_np(s->reader, "inferd-reader");
    return INFERD_OK;
}

inferd_status stage_open(const stage_source *from, stage **out, inferd_err *err) {
    *out = NULL;
    stage *s = calloc(1, sizeof *s);
    if (s == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the stage of a model");
    s->from = *from;
    s->packed = PACKED_NONE;
    s->page_bytes = be_page_bytes(from->be);
    s->group_rows_min = be_n_threads(from->be) * BE_PREPARE_ROWS;
    s->source = from->m->dummy ? MADE_UP : BUFFERED;
    inferd_status st = list_entries(s, err);
    if (st == INFERD_OK && s->source != MADE_UP) st = open_reader(s, err);
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
    for (uint32_t i = 0; s->files != NULL && i < gguf_n_parts(s->from.m->file); i++)
        if (s->files[i].fd >= 0) close(s->files[i].fd);
    free(s->files);
    packed_close(&s->packed);
    for (int i = 0; i < BUFFERS; i++) free(s->buffers[i].p);
    free(s->order);
    free(s);
}

/* ---- pieces ---- */

/* Move pages up to `end` into the window; false: that was enough for one piece, or it failed. */
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

/* Rows of this type that take about `us`: whole groups, enough for all threads; at least one. */
static uint32_t rows_of_piece(const stage *s, const weight_entry *e, uint64_t us, uint32_t n_left) {
    uint64_t each = s->ns_per_kib[e->tensor->type];
    uint64_t n_bytes = each == 0 ? PIECE_BYTES : us * 1000 * 1024 / each;
    uint64_t rows = n_bytes / weight_entry_row_bytes(e) / BE_PREPARE_ROWS * BE_PREPARE_ROWS;
    if (rows < s->group_rows_min) rows = s->group_rows_min;
    return rows < n_left ? (uint32_t)rows : n_left;
}

/* Update the measured time per KiB: n_bytes were prepared since began_ns. */
static void learn(uint64_t *known, size_t n_bytes, uint64_t began_ns) {
    uint64_t each = (now_ns() - began_ns) * 1024 / size_max(n_bytes, 1);
    *known = *known == 0 ? each + 1 : (3 * *known + each) / 4 + 1;
}

static inferd_status prepare_vector(const stage *s, const weight_entry *e,
                                    const unsigned char *from, inferd_err *err) {
    float *values = malloc(e->cols * sizeof *values);
    if (values == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a vector of %u", e->cols);
    inferd_status st = INFERD_OK;
    uint64_t n_before = e->tensor_at / dtype_about(e->tensor->type).block_bytes;
    dtype_to_f32(e->tensor->type, from, values, e->cols);
    for (uint32_t i = 0; i < e->cols && st == INFERD_OK; i++)
        if (!isfinite(values[i]))
            st = inferd_fail(err, INFERD_EFORMAT, "%s: tensor %s[%llu] is not a finite number",
                             gguf_path_of(s->from.m->file, e->tensor), e->tensor->name,
                             (unsigned long long)n_before + i);
    if (st == INFERD_OK) be_vec_load(s->from.be, e->vector, values);
    free(values);
    return st;
}

/* Prepare rows from their bytes in the file. */
static inferd_status prepare(stage *s, const weight_entry *e, uint32_t begin, uint32_t n,
                             const unsigned char *from, inferd_err *err) {
    if (e->matrix == NULL) return prepare_vector(s, e, from, err);
    be_weight_prepare(s->from.be, e->matrix, from, begin, n);
    inferd_status st = be_check(s->from.be, err);
    if (st != INFERD_OK) weight_entry_name(s->from.m->file, e, err);
    return st;
}

static inferd_status make_up(stage *s, const weight_entry *e, uint32_t begin, uint32_t n,
                             inferd_err *err) {
    const model *m = s->from.m;
    if (e->matrix == NULL)
        be_vec_fill(s->from.be, e->vector, 1.0f);
    else
        be_weight_dummy_rows(s->from.be, e->matrix, weight_entry_seed(e, m->dummy_seed),
                             dummy_scale(e->tensor->name, m->spec.n_layers), begin, n);
    return be_check(s->from.be, err);
}

/* Count n prepared rows of an entry. */
static void count(stage *s, const weight_entry *e, uint32_t n, uint64_t began_ns) {
    size_t n_bytes = n * weight_entry_row_bytes(e);
    if (e->matrix != NULL) learn(&s->ns_per_kib[e->tensor->type], n_bytes, began_ns);
    s->done += n_bytes;
}

/* Advance by n rows in an entry or segment of n_rows. */
static void walk(position *p, uint32_t n, uint32_t n_rows) {
    p->row += n;
    if (p->row < n_rows) return;
    p->row = 0;
    p->at++;
}

typedef enum outcome { WORKED, WAITING, ALL_DONE } outcome;

/* ---- made up ---- */

static inferd_status made_up_piece(stage *s, uint64_t us, outcome *out, inferd_err *err) {
    inferd_status st = INFERD_OK;
    *out = s->entry.at < s->from.plan->n ? WORKED : ALL_DONE;
    if (*out == ALL_DONE) return st;
    const weight_entry *e = s->order[s->entry.at];
    uint32_t begin = s->entry.row, n = rows_of_piece(s, e, us, e->rows - begin);
    if (!move_pages(s, pages_of(s, window_end(s, e, begin + n)), &st, err)) return st;
    uint64_t began_ns = now_ns();
    st = make_up(s, e, begin, n, err);
    if (st != INFERD_OK) return st;
    count(s, e, n, began_ns);
    walk(&s->entry, n, e->rows);
    return st;
}

/* ---- from the page cache ---- */

/* Let the reader go on at the engine's position, or make only the final check of the file. */
static void ask_reader(stage *s) {
    pthread_mutex_lock(&s->lock);
    s->first = s->entry;
    s->reading = s->entry.at < s->from.plan->n ? FROM_READER : ALL_READ;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->source = BUFFERED;
}

/* The next rows of `e` that a thread reads and prepares at once. */
static uint32_t rows_of_part(const weight_entry *e, uint32_t row) {
    uint32_t groups = (uint32_t)(CACHED_BYTES / (weight_entry_row_bytes(e) * BE_PREPARE_ROWS));
    return u32_min(u32_max(groups, 1) * BE_PREPARE_ROWS, e->rows - row);
}

/* Choose parts that take about `us` together, and the vectors between them. */
static void deal_parts(stage *s, uint64_t us, cached_piece *out) {
    uint64_t each = s->cached_ns_per_kib;
    size_t n_bytes = each == 0 ? PIECE_BYTES : us * 1000 * 1024 / each;
    *out = (cached_piece){.after = s->entry};
    while (out->n_parts < CACHED_PARTS_MAX && out->n_vectors < CACHED_PARTS_MAX &&
           out->after.at < s->from.plan->n && (out->n_bytes == 0 || out->n_bytes < n_bytes)) {
        const weight_entry *e = s->order[out->after.at];
        uint32_t row = out->after.row, n = e->matrix != NULL ? rows_of_part(e, row) : 1;
        size_t part_bytes = n * weight_entry_row_bytes(e);
        if (e->matrix == NULL) {
            s->vectors[out->n_vectors++] = e;
        } else {
            s->begins[out->n_parts] = out->after;
            s->parts[out->n_parts++] = (cached_part){e, row, n};
            out->largest = size_max(out->largest, part_bytes);
        }
        out->end = size_max(out->end, window_end(s, e, row + n));
        out->n_bytes += part_bytes;
        walk(&out->after, n, e->rows);
    }
}

static inferd_status cached_vectors(stage *s, uint32_t n, bool *there, inferd_err *err) {
    inferd_status st = INFERD_OK;
    unsigned char *at = s->buffers[0].p;
    for (uint32_t i = 0; i < n && *there && st == INFERD_OK; i++) {
        const weight_entry *e = s->vectors[i];
        *there = cached_read(s->files[e->tensor->part].fd, weight_entry_file_offset(e), at,
                             weight_entry_row_bytes(e), &s->waited_us);
        if (*there) st = prepare_vector(s, e, at, err);
    }
    return st;
}

/* Bytes of the file from one position to another. */
static size_t bytes_between(const stage *s, position from, position to) {
    size_t n = 0;
    while (from.at < to.at) {
        const weight_entry *e = s->order[from.at];
        n += (e->rows - from.row) * weight_entry_row_bytes(e);
        from = (position){from.at + 1, 0};
    }
    if (to.row > from.row) n += (to.row - from.row) * weight_entry_row_bytes(s->order[to.at]);
    return n;
}

/* Read and prepare the parts; p->after becomes the position reached in time. */
static inferd_status cached_matrices(stage *s, uint64_t us, cached_piece *p, bool *there,
                                     inferd_err *err) {
    uint64_t began_ns = now_ns(), waited_us = 0;
    uint64_t until_us = clock_now_us() + us + size_min(us, CACHED_LATE_US);
    uint32_t n_done;
    if (p->n_parts == 0) return INFERD_OK;
    inferd_status st =
        cached_rows(s->from.be, s->from.m->file, s->files, s->parts, p->n_parts, s->buffers[0].p,
                    s->buffer_bytes, round_up(p->largest, SEGMENT_ALIGN), until_us, &n_done, there,
                    &waited_us, err);
    if (st != INFERD_OK || !*there) return st;
    if (n_done < p->n_parts) p->after = s->begins[n_done];
    if (waited_us == 0)
        learn(&s->cached_ns_per_kib, bytes_between(s, s->entry, p->after), began_ns);
    s->waited_us += waited_us;
    return st;
}

static inferd_status take_cached(stage *s, uint64_t us, inferd_err *err) {
    inferd_status st = INFERD_OK;
    bool there = true;
    cached_piece p;
    if (s->entry.at == s->from.plan->n) {
        ask_reader(s);
        return st;
    }
    deal_parts(s, us, &p);
    uint32_t n_pages = pages_of(s, p.end);
    /* Most pages were touched before (arena.h), and this costs nothing. */
    if (!cached_touch(s->from.be, s->from.pages, n_pages, &s->n_touched,
                      clock_now_us() + PIECE_US_MIN) ||
        !move_pages(s, n_pages, &st, err))
        return st;
    st = cached_vectors(s, p.n_vectors, &there, err);
    if (st == INFERD_OK && there) st = cached_matrices(s, us, &p, &there, err);
    if (st != INFERD_OK) return st;
    if (there) {
        s->done += bytes_between(s, s->entry, p.after);
        s->entry = p.after;
    }
    /* The reader finds and reports the reason for missing bytes. */
    if (!there || s->waited_us > CACHED_WAIT_US_MAX) ask_reader(s);
    return st;
}

/* ---- from a packed file in the page cache ---- */

/* The reader goes on: with the chunks that are left, or, after a failure, with the model itself. */
static void end_chunks(stage *s) {
    pthread_mutex_lock(&s->lock);
    s->reading = UNDECIDED;
    s->n_to_move = s->n_touched;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->waited_us = 0; // for the model's own file, if that is read
    s->source = BUFFERED;
}

static inferd_status take_chunks(stage *s, uint64_t us, inferd_err *err) {
    inferd_status st = INFERD_OK;
    const packed *p = &s->packed;
    uint64_t each = s->chunk_ns_per_kib, waited_us = 0;
    uint64_t n_bytes = each == 0 ? PIECE_BYTES : us * 1000 * 1024 / each;
    uint32_t n = u32_max((uint32_t)(n_bytes / PACKED_CHUNK_BYTES), be_n_threads(s->from.be));
    uint32_t end = s->chunk + u32_min(n, p->n_chunks - s->chunk), n_done = 0;
    bool there = true;
    if (end > s->chunk) {
        size_t n_before = (size_t)s->chunk * PACKED_CHUNK_BYTES;
        uint32_t n_pages = pages_of(s, packed_chunk_end(p, end - 1));
        if (!cached_touch(s->from.be, s->from.pages, n_pages, &s->n_touched,
                          clock_now_us() + PIECE_US_MIN) ||
            !move_pages(s, n_pages, &st, err))
            return st;
        uint64_t began_ns = now_ns();
        cached_chunks(s->from.be, p, be_window_host(s->from.window), s->chunk, end,
                      clock_now_us() + us + size_min(us, CACHED_LATE_US), &n_done, &there,
                      &waited_us, &s->chunk_fail);
        if (there && s->chunk_fail.status == INFERD_OK) {
            s->chunk += n_done;
            size_t n_now = packed_chunk_end(p, s->chunk - 1);
            if (waited_us == 0) learn(&s->chunk_ns_per_kib, n_now - n_before, began_ns);
            pthread_mutex_lock(&s->lock);
            s->packed_done = n_now;
            pthread_mutex_unlock(&s->lock);
        }
        s->waited_us += waited_us;
    }
    /* The reader finds and reports the reason for missing bytes. */
    if (!there || s->chunk_fail.status != INFERD_OK || s->chunk == p->n_chunks ||
        s->waited_us > CACHED_WAIT_US_MAX)
        end_chunks(s);
    return st;
}

/* ---- from the reader ---- */

/* The next work of the engine. */
typedef enum found {
    FOUND_ROWS,
    FOUND_PAGES,
    FOUND_CACHED,
    FOUND_CHUNKS,
    FOUND_NOTHING,
    FOUND_END
} found;

/* FOUND_ROWS: the next buffer is s->now.  FOUND_PAGES: *n_pages must be in the window first. */
static inferd_status look(stage *s, found *out, uint32_t *n_pages, inferd_err *err) {
    inferd_status st = INFERD_OK;
    *out = FOUND_NOTHING;
    pthread_mutex_lock(&s->lock);
    *n_pages = s->n_to_move;
    if (s->packed_done > 0) // in bytes of the model
        s->packed_share = (uint64_t)((double)s->packed_done / (double)s->from.plan->n_bytes *
                                     (double)s->from.plan->file_bytes);
    if (s->failure.status != INFERD_OK) {
        st = inferd_fail(err, s->failure.status, "%s", s->failure.text);
    } else if (s->n_filled != s->n_emptied) {
        *out = FOUND_ROWS;
        s->now = &s->buffers[s->n_emptied % BUFFERS];
        s->segment = (position){0};
    } else if (s->ended) {
        *out = FOUND_END;
    } else if (s->reading == FROM_CACHE) {
        *out = FOUND_CACHED;
    } else if (s->reading == FROM_PACKED) {
        *out = FOUND_CHUNKS;
    } else if (*n_pages > s->n_moved) {
        *out = FOUND_PAGES;
    }
    s->wanted = st == INFERD_OK && *out == FOUND_NOTHING;
    pthread_mutex_unlock(&s->lock);
    return st;
}

static void give_back(stage *s) {
    pthread_mutex_lock(&s->lock);
    s->n_emptied++;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    s->now = NULL;
}

/* Prepare rows of the present buffer. */
static inferd_status filled_piece(stage *s, uint64_t us, inferd_err *err) {
    inferd_status st = INFERD_OK;
    const segment *g = &s->now->segments[s->segment.at];
    const weight_entry *e = g->entry;
    uint32_t row = s->segment.row, begin = g->row_begin + row;
    uint32_t n = rows_of_piece(s, e, us, g->n_rows - row);
    if (!move_pages(s, pages_of(s, window_end(s, e, begin + n)), &st, err)) return st;
    uint64_t began_ns = now_ns();
    st = prepare(s, e, begin, n, s->now->p + g->at + row * weight_entry_row_bytes(e), err);
    if (st != INFERD_OK) return st;
    count(s, e, n, began_ns);
    if (begin + n == e->rows) s->prepared = window_end(s, e, e->rows);
    walk(&s->segment, n, g->n_rows);
    if (s->segment.at == s->now->n_segments) give_back(s);
    return st;
}

static inferd_status buffered_piece(stage *s, uint64_t us, outcome *out, inferd_err *err) {
    found what = FOUND_ROWS;
    uint32_t n_pages = 0;
    inferd_status st = s->now != NULL ? INFERD_OK : look(s, &what, &n_pages, err);
    *out = what == FOUND_END ? ALL_DONE : what == FOUND_NOTHING ? WAITING : WORKED;
    if (st != INFERD_OK) return st;
    if (what == FOUND_CACHED) s->source = CACHED; // from the next piece on
    if (what == FOUND_CHUNKS) s->source = CHUNKS;
    if (what == FOUND_PAGES) move_pages(s, n_pages, &st, err);
    return what == FOUND_ROWS ? filled_piece(s, us, err) : st;
}

static inferd_status take_piece(stage *s, uint64_t us, outcome *out, inferd_err *err) {
    *out = WORKED;
    switch (s->source) {
    case MADE_UP:
        return made_up_piece(s, us, out, err);
    case CACHED:
        return take_cached(s, us, err);
    case CHUNKS:
        return take_chunks(s, us, err);
    default:
        return buffered_piece(s, us, out, err);
    }
}

/* Move all pages into the window, also those behind the last byte. */
static inferd_status last_piece(stage *s, bool *finished, inferd_err *err) {
    inferd_status st = INFERD_OK;
    *finished = move_pages(s, s->from.n_pages, &st, err);
    if (!*finished) return st;
    join_reader(s);
    s->done = s->from.plan->file_bytes;
    return st;
}

/* The formats of a device may spread a row over its matrix: only whole tensors are prepared. */
size_t stage_prepared(const stage *s) {
    return s->prepared;
}

const char *stage_note(const stage *s) {
    return s->note;
}

inferd_status stage_step(stage *s, uint64_t budget_us, bound_progress *out, inferd_err *err) {
    uint64_t began_us = clock_now_us(), passed_us = 0;
    inferd_status st;
    *out = (bound_progress){.total = s->from.plan->file_bytes};
    do {
        uint64_t left_us = budget_us - passed_us;
        bool is_cached = s->source == CACHED || s->source == CHUNKS;
        uint64_t most_us = is_cached ? CACHED_US : PIECE_US;
        uint64_t us = size_max(size_min(left_us, most_us), PIECE_US_MIN);
        outcome now;
        st = take_piece(s, us, &now, err);
        if (st == INFERD_OK && now == ALL_DONE) st = last_piece(s, &out->finished, err);
        out->waiting = now == WAITING;
        passed_us = clock_now_us() - began_us;
    } while (st == INFERD_OK && !out->finished && !out->waiting && passed_us < budget_us);
    out->done = size_max(s->done, s->packed_share);
    out->device_us = passed_us;
    return st;
}
