/* upload.c - uploads of images to the device; see memory.h.
 *
 *     copy stream   [ unit 1: chunk chunk chunk | event ][ unit 2: chunk | event ][ ...
 *
 *     pending   unit 1 <- unit 2 <- unit 3          oldest first, by seq
 *     spare     units that have landed, with their events, for the next ones
 *
 *     QUEUED -> LANDED   land: its event has arrived (checked in the calls of this file)
 *
 * Copies are cut at multiples of CHUNK of the image, so that other work on the bus gets between
 * them and none of them spans two pinned pieces.  The stream works in order, so units land in
 * order, and a stream that waits for a unit has waited for all before it: one number per stream
 * shows whether a wait is needed.
 *
 * The time of a load is taken from the first unit after the bus was idle to the newest that has
 * landed.
 *
 * Thread: engine. */
#include <string.h>

#include "cuda/memory_private.h"

#define CHUNK_BYTES ((size_t)16 << 20)

enum { UNITS_MAX = 4096 }; // pending: all layers of a few dozen models

/* ---- units ---- */

static inferd_status take_unit(cuda_memory *m, unit **out, inferd_err *err) {
    unit *u = m->up.spare;
    *out = u;
    if (u != NULL) {
        m->up.spare = u->next;
        return INFERD_OK;
    }
    u = calloc(1, sizeof *u);
    if (u == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the state of an upload");
    bool sleeps = m->parts == NULL || parts_is_tried(m->parts, PART_BLOCKING);
    cu_result r =
        m->api->event_create(CU_EVENT_TIMED | (sleeps ? CU_EVENT_BLOCKING : 0), &u->event);
    if (r != CU_OK) {
        free(u);
        return memory_fail(m, r, err, "creating an event for an upload");
    }
    *out = u;
    return INFERD_OK;
}

static void keep_unit(uploads *up, unit *u) {
    u->window = NULL;
    u->next = up->spare;
    up->spare = u;
}

/* The oldest pending unit has arrived. */
static cu_result land(cuda_memory *m) {
    uploads *up = &m->up;
    unit *u = up->first;
    uint64_t us = 0;
    cu_result r = m->api->event_elapsed_us(up->begin, u->event, &us);
    if (r != CU_OK) return r;
    up->load_us = up->load_us_before + us;
    up->load_bytes += (uint64_t)(u->end - u->begin);
    up->first = u->next;
    if (up->first == NULL) {
        up->last = NULL;
        up->load_us_before = up->load_us;
    }
    up->n_pending--;
    if (u->window != NULL) u->window->n_pending--;
    keep_unit(up, u);
    return CU_OK;
}

/* Land all units that have arrived. */
static cu_result look(cuda_memory *m) {
    while (m->up.first != NULL) {
        cu_result r = m->api->event_query(m->up.first->event);
        if (r == CU_NOT_READY) return CU_OK;
        if (r == CU_OK) r = land(m);
        if (r != CU_OK) return r;
    }
    return CU_OK;
}

/* Wait on the host for the units up to and including seq. */
static cu_result finish(cuda_memory *m, const unit *until) {
    uint64_t seq = until->seq;
    cu_result r = m->api->event_sync(until->event);
    while (r == CU_OK && m->up.first != NULL && m->up.first->seq <= seq) r = land(m);
    return r;
}

/* ---- queueing ---- */

static cu_result copy_chunks(cuda_memory *m, cuda_window *w, size_t begin, size_t end,
                             bool to_host) {
    cu_result r = CU_OK;
    for (size_t at = begin; r == CU_OK && at < end;) {
        size_t chunk_end = size_min(end, (at / CHUNK_BYTES + 1) * CHUNK_BYTES);
        size_t n = chunk_end - at;
        r = to_host ? m->api->copy_to_host(w->image.p + at, w->base + at, n, m->up.stream)
                    : m->api->copy_to_device(w->base + at, w->image.p + at, n, m->up.stream);
        if (r == CU_OK) w->loose = true;
        at = chunk_end;
    }
    return r;
}

static inferd_status queue_copy(cuda_memory *m, cuda_window *w, size_t begin, size_t end,
                                bool to_host, inferd_err *err) {
    uploads *up = &m->up;
    INFERD_CHECK(begin <= end && end <= w->n_bytes && end <= w->n_blocks * m->block_bytes);
    if (begin == end) return INFERD_OK;
    image_use(m, &w->image);
    cu_result r = look(m);
    if (r == CU_OK && up->n_pending == UNITS_MAX) r = finish(m, up->first);
    if (r != CU_OK) return memory_fail(m, r, err, "querying earlier uploads");
    unit *u;
    inferd_status s = take_unit(m, &u, err);
    if (s != INFERD_OK) return s;

    if (up->first == NULL) r = m->api->event_record(up->begin, up->stream);
    if (r == CU_OK) r = copy_chunks(m, w, begin, end, to_host);
    if (r == CU_OK) r = m->api->event_record(u->event, up->stream);
    if (r != CU_OK) {
        keep_unit(up, u);
        return memory_fail(m, r, err, "%s bytes %zu to %zu of a window",
                           to_host ? "downloading" : "uploading", begin, end);
    }
    *u = (unit){NULL, u->event, w, w->base + begin, w->base + end, ++up->seq};
    if (up->last != NULL)
        up->last->next = u;
    else
        up->first = u;
    up->last = u;
    up->n_pending++;
    w->n_pending++;
    w->loose = false; // this event comes after all copies of the window so far
    return INFERD_OK;
}

inferd_status window_upload_cuda(cuda_memory *m, cuda_window *w, size_t begin, size_t end,
                                 inferd_err *err) {
    return queue_copy(m, w, begin, end, false, err);
}

inferd_status window_download_cuda(cuda_memory *m, cuda_window *w, size_t begin, size_t end,
                                   inferd_err *err) {
    return queue_copy(m, w, begin, end, true, err);
}

/* ---- waiting ---- */

inferd_status memory_wait(cuda_memory *m, cu_stream s, const void *p, inferd_err *err) {
    uploads *up = &m->up;
    if (memory_window_arrived(m, p)) return INFERD_OK;
    const unsigned char *at = p;
    const unit *newest = NULL;
    for (const unit *u = up->first; u != NULL; u = u->next)
        if (at >= u->begin && at < u->end) newest = u;
    if (newest == NULL) return INFERD_OK;
    uint32_t i = 0;
    while (i < up->n_waited && up->waited[i].stream != s) i++;
    uint64_t seq = newest->seq;
    if (i < up->n_waited && up->waited[i].seq >= seq) return INFERD_OK;
    cu_result r = look(m);
    if (r != CU_OK) return memory_fail(m, r, err, "querying the uploads");
    if (up->first == NULL || up->first->seq > seq) return INFERD_OK; // it has landed
    r = m->api->stream_wait(s, newest->event);
    if (r != CU_OK) return memory_fail(m, r, err, "making a stream wait for an upload");
    if (i == up->n_waited) { // a new stream; the table forgets another one if it must
        if (up->n_waited < WAITING_STREAMS_MAX)
            up->n_waited++;
        else
            i = up->next_waited++ % WAITING_STREAMS_MAX;
        up->waited[i].stream = s;
    }
    up->waited[i].seq = seq;
    return INFERD_OK;
}

inferd_status window_pending_cuda(cuda_memory *m, const cuda_window *w, size_t *out,
                                  inferd_err *err) {
    cu_result r = look(m);
    *out = 0;
    for (const unit *u = m->up.first; u != NULL; u = u->next)
        if (u->window == w) *out += (size_t)(u->end - u->begin);
    return r == CU_OK ? INFERD_OK : memory_fail(m, r, err, "querying the uploads");
}

bool memory_all_arrived(cuda_memory *m) {
    /* The next memory_wait or upload reports a failure; until then no arrival is known. */
    return look(m) == CU_OK && m->up.first == NULL;
}

bool memory_window_arrived(const cuda_memory *m, const void *p) {
    const unsigned char *at = p;
    if (m->up.first == NULL) return true;
    for (const cuda_window *w = m->windows; w != NULL; w = w->next)
        if (w->n_pending > 0 && at >= w->base && at < w->base + w->n_bytes) return false;
    return true;
}

inferd_status memory_sync(cuda_memory *m, inferd_err *err) {
    cu_result r = m->api->stream_sync(m->up.stream);
    if (r == CU_OK) r = look(m);
    return r == CU_OK ? INFERD_OK : memory_fail(m, r, err, "waiting for the uploads");
}

inferd_status uploads_finish(cuda_memory *m, cuda_window *w, inferd_err *err) {
    const unit *newest = NULL;
    for (const unit *u = m->up.first; u != NULL; u = u->next)
        if (u->window == w) newest = u;
    cu_result r = CU_OK;
    if (w->loose) r = m->api->stream_sync(m->up.stream);
    if (r == CU_OK && newest != NULL) r = finish(m, newest);
    if (r != CU_OK) return memory_fail(m, r, err, "waiting for the uploads of a window");
    w->loose = false;
    return INFERD_OK;
}

void uploads_forget(cuda_memory *m, cuda_window *w) {
    for (unit *u = m->up.first; u != NULL; u = u->next)
        if (u->window == w) {
            u->window = NULL;
            u->end = u->begin;
        }
    w->n_pending = 0;
}

/* ---- opening and closing ---- */

inferd_status uploads_open(cuda_memory *m, inferd_err *err) {
    cu_result r = m->api->stream_create(false, &m->up.stream);
    if (r == CU_OK) r = m->api->event_create(CU_EVENT_TIMED, &m->up.begin);
    if (r == CU_OK) r = m->api->event_create(CU_EVENT_TIMED, &m->up.end);
    return r == CU_OK ? INFERD_OK : memory_fail(m, r, err, "creating the stream for uploads");
}

static void destroy_units(cuda_memory *m, unit *u) {
    while (u != NULL) {
        unit *next = u->next;
        m->api->event_destroy(u->event);
        free(u);
        u = next;
    }
}

void uploads_close(cuda_memory *m) {
    uploads *up = &m->up;
    destroy_units(m, up->first);
    destroy_units(m, up->spare);
    if (up->begin != NULL) m->api->event_destroy(up->begin);
    if (up->end != NULL) m->api->event_destroy(up->end);
    if (up->stream != NULL) m->api->stream_destroy(up->stream);
    *up = (uploads){0};
}
