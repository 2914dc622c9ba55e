/* fake_stream.c - the calls about streams, events and copies.
 *
 * Host memory of copies.  Pinned: read or written when the copy runs, which may be late.  Not
 * pinned: read before copy_to_device returns; copy_to_host returns when it is written.
 *
 * Thread: under the fake's lock. */
#include "fake_inner.h"

#include <string.h>
#include <time.h>

/* ---- what a caller may name ---- */

cu_result fk_stream_check(cu_stream stream) {
    for (cu_stream s = fk.streams; s != NULL; s = s->next) {
        if (s != stream || s->destroyed) continue;
        if ((int32_t)s->device != fk_me.device)
            return fk_say(CU_EINVAL, "the stream belongs to device %u, the thread uses %d",
                          s->device, fk_me.device);
        if (s->capture != NULL && s->capture->thread != fk_me.id)
            return fk_break_capture(s->capture, "another thread used the stream that is captured");
        return CU_OK;
    }
    return fk_say(CU_EINVAL, "there is no stream %p", (void *)stream);
}

static cu_result check_event(cu_event event) {
    for (cu_event e = fk.events; e != NULL; e = e->next)
        if (e == event) return CU_OK;
    return fk_say(CU_EINVAL, "there is no event %p", (void *)event);
}

/* For those who want to know whether it is done. */
static cu_result check_event_outside(cu_event e) {
    cu_result r = check_event(e);
    if (r != CU_OK || !e->captured) return r;
    if (e->capture != NULL)
        return fk_break_capture(e->capture, "an event of a capture was asked for");
    return fk_say(CU_EINVAL, "the event was last recorded in a capture: it says nothing");
}

/* ---- waiting on the host ---- */

static void see(uint64_t ns) {
    if (ns > fk.host_ns) fk.host_ns = ns;
}

/* Run until the stream is empty, or the mark is done. */
static cu_result wait_for(cu_stream s, fake_mark *m, const char *what) {
    bool came = m != NULL && m->done;
    if (m != NULL) m->refs++;
    if (!came) came = fk_run_until(m != NULL ? m->home : s, m);
    if (came) see(m != NULL ? m->time_ns : s->clock_ns);
    fk_mark_release(m);
    if (fk_is_lost(fk_me.device)) return fk_say(CU_ELOST, "%s", fk.lost_why);
    if (came) return CU_OK;
    uint32_t ms = fk.opt.stuck_ms;
    fk_violate("%s waits for an event that never completes; gave up after %u ms", what, ms);
    fk_memory_close_all();
    pthread_mutex_unlock(&fk.lock);
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
    pthread_mutex_lock(&fk.lock);
    return fk_say(CU_EFAILED, "%s: the device does not answer", what);
}

/* ---- streams ---- */

static cu_result api_stream_create(bool urgent, cu_stream *out) {
    cu_result r = fk_enter(CALL_stream_create);
    if (r != CU_OK) return fk_leave(r);
    cu_stream s = calloc(1, sizeof *s);
    if (s == NULL) return fk_leave(fk_say(CU_ENOMEM, "no host memory for a stream"));
    *s = (struct cu_stream_t){.serial = ++fk.serial,
                              .device = (uint32_t)fk_me.device,
                              .urgent = urgent,
                              .clock_ns = fk.host_ns,
                              .next = fk.streams};
    s->tail = &s->head;
    fk.streams = s;
    *out = s;
    return fk_leave(CU_OK);
}

static cu_result destroy_stream(cu_stream stream) {
    cu_result r = fk_stream_check(stream);
    if (r != CU_OK) {
        fk_violate("stream_destroy: %s", fk_me.text);
        return r;
    }
    if (stream->capture != NULL)
        return fk_break_capture(stream->capture, "the stream was destroyed");
    stream->destroyed = true; // its work goes on
    if (stream->head != NULL) return CU_OK;
    cu_stream *at = &fk.streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    free(stream);
    return CU_OK;
}

static cu_result api_stream_destroy(cu_stream s) {
    cu_result r = fk_enter(CALL_stream_destroy);
    if (gives_back(r)) r = fk_lost_or(r, destroy_stream(s));
    return fk_leave(r);
}

static cu_result api_stream_sync(cu_stream s) {
    cu_result r = fk_enter(CALL_stream_sync);
    if (r == CU_OK) r = fk_stream_check(s);
    if (r == CU_OK) r = wait_for(s, NULL, "stream_sync");
    return fk_leave(r);
}

static cu_result queue_wait(cu_stream s, cu_event e) {
    cu_result r = fk_stream_check(s);
    if (r == CU_OK) r = check_event(e);
    if (r != CU_OK) return r;
    if (s->capture != NULL) {
        if (e->capture == s->capture) return CU_OK; // everything captured is in one order
        return fk_break_capture(s->capture,
                                "stream_wait for an event recorded outside the capture");
    }
    if (e->capture != NULL)
        return fk_break_capture(e->capture, "the capture forked to another stream");
    if (e->captured) return fk_say(CU_EINVAL, "the event was last recorded in a capture");
    if (e->mark == NULL) return CU_OK; // never recorded: nothing to wait for
    fake_op *op = fk_op_create(OP_WAIT, 0);
    if (op == NULL) return CU_ENOMEM;
    op->mark = e->mark;
    e->mark->refs++;
    return fk_op_submit(s, op);
}

static cu_result api_stream_wait(cu_stream s, cu_event e) {
    cu_result r = fk_enter(CALL_stream_wait);
    if (r == CU_OK) r = queue_wait(s, e);
    return fk_leave(r);
}

/* ---- events ---- */

static cu_result api_event_create(uint32_t flags, cu_event *out) {
    cu_result r = fk_enter(CALL_event_create);
    if (r != CU_OK) return fk_leave(r);
    cu_event e = calloc(1, sizeof *e);
    if (e == NULL) return fk_leave(fk_say(CU_ENOMEM, "no host memory for an event"));
    *e = (struct cu_event_t){.serial = ++fk.serial,
                             .device = (uint32_t)fk_me.device,
                             .timed = (flags & CU_EVENT_TIMED) != 0,
                             .blocking = (flags & CU_EVENT_BLOCKING) != 0,
                             .next = fk.events};
    fk.events = e;
    *out = e;
    return fk_leave(CU_OK);
}

static cu_result destroy_event(cu_event event) {
    cu_result r = check_event(event);
    if (r != CU_OK) {
        fk_violate("event_destroy: %s", fk_me.text);
        return r;
    }
    cu_event *at = &fk.events;
    while (*at != event) at = &(*at)->next;
    *at = event->next;
    fk_mark_release(event->mark);
    free(event);
    return CU_OK;
}

static cu_result api_event_destroy(cu_event e) {
    cu_result r = fk_enter(CALL_event_destroy);
    if (gives_back(r)) r = fk_lost_or(r, destroy_event(e));
    return fk_leave(r);
}

static cu_result record(cu_event e, cu_stream s) {
    cu_result r = fk_stream_check(s);
    if (r == CU_OK) r = check_event(e);
    if (r != CU_OK) return r;
    if (e->device != s->device)
        return fk_say(CU_EINVAL, "the event belongs to device %u, the stream to %u", e->device,
                      s->device);
    if (s->capture != NULL) {
        e->captured = true;
        e->capture = s->capture;
        return CU_OK;
    }
    fake_op *op = fk_op_create(OP_RECORD, 0);
    fake_mark *m = op != NULL ? fk_mark_create() : NULL;
    if (m == NULL) {
        fk_op_destroy(op);
        return fk_say(CU_ENOMEM, "no host memory for a record");
    }
    if (fk.lose_event_in > 0 && --fk.lose_event_in == 0) m->lost = true;
    m->home = s;
    m->refs = 2; // the operation's and the event's
    op->mark = m;
    fk_mark_release(e->mark);
    e->mark = m;
    e->captured = false;
    e->capture = NULL;
    return fk_op_submit(s, op);
}

static cu_result api_event_record(cu_event e, cu_stream s) {
    cu_result r = fk_enter(CALL_event_record);
    if (r == CU_OK) r = record(e, s);
    return fk_leave(r);
}

static cu_result api_event_query(cu_event e) {
    cu_result r = fk_enter(CALL_event_query);
    if (r == CU_OK) r = check_event_outside(e);
    if (r == CU_OK && e->mark != NULL) {
        if (e->mark->done)
            see(e->mark->time_ns);
        else
            r = fk_say(CU_NOT_READY, "the event is not reached yet");
    }
    return fk_leave(r);
}

static cu_result api_event_sync(cu_event e) {
    cu_result r = fk_enter(CALL_event_sync);
    if (r == CU_OK) r = check_event_outside(e);
    if (r == CU_OK && e->blocking) fk.counts.n_sleeps++;
    if (r == CU_OK && e->mark != NULL) r = wait_for(NULL, e->mark, "event_sync");
    return fk_leave(r);
}

static cu_result api_event_elapsed_us(cu_event begin, cu_event end, uint64_t *out) {
    cu_result r = fk_enter(CALL_event_elapsed_us);
    if (r == CU_OK) r = check_event_outside(begin);
    if (r == CU_OK) r = check_event_outside(end);
    if (r != CU_OK) return fk_leave(r);
    if (!begin->timed || !end->timed)
        return fk_leave(fk_say(CU_EINVAL, "event_elapsed_us of an event without a time"));
    if (begin->mark == NULL || end->mark == NULL)
        return fk_leave(fk_say(CU_EINVAL, "event_elapsed_us of an event that was never recorded"));
    if (!begin->mark->done || !end->mark->done)
        return fk_leave(fk_say(CU_NOT_READY, "an event is not reached yet"));
    uint64_t a = begin->mark->time_ns, b = end->mark->time_ns;
    *out = b > a ? (b - a + 500) / 1000 : 0;
    return fk_leave(CU_OK);
}

/* ---- copies ---- */

static cu_result check_device_side(const void *p, size_t n, const char *call) {
    if (fk_memory_is_known(p, n)) return CU_OK;
    return fk_say(CU_EINVAL, "%s: %zu bytes at %p are not in one piece of device memory", call, n,
                  p);
}

static cu_result check_host_side(const void *p, size_t n, const char *call, fake_pinned *pinned) {
    if (p == NULL || fk_memory_is_device_address(p))
        return fk_say(CU_EINVAL, "%s: %p is no host memory", call, p);
    *pinned = fk_memory_pinned(p, n);
    if (*pinned == PINNED_PART)
        return fk_say(CU_EINVAL, "%s: %zu bytes at %p are pinned in part, or in several pieces",
                      call, n, p);
    return CU_OK;
}

static cu_result check_capture_of_host(cu_stream s, fake_pinned pinned, const char *call) {
    if (s->capture == NULL || pinned == PINNED_WHOLE) return CU_OK;
    return fk_break_capture(s->capture, "%s of host memory that is not pinned, in a capture", call);
}

static cu_result stage(fake_op *op) {
    op->staged = malloc(op->n);
    if (op->staged == NULL) return fk_say(CU_ENOMEM, "no host memory to stage %zu bytes", op->n);
    memcpy(op->staged, op->src, op->n);
    return CU_OK;
}

static cu_result copy_to_device(void *dst, const void *src, size_t n, cu_stream s) {
    fake_pinned pinned = PINNED_NONE;
    cu_result r = fk_stream_check(s);
    if (r == CU_OK && n == 0) return CU_OK;
    if (r == CU_OK) r = check_device_side(dst, n, "copy_to_device");
    if (r == CU_OK) r = check_host_side(src, n, "copy_to_device", &pinned);
    if (r == CU_OK) r = check_capture_of_host(s, pinned, "copy_to_device");
    if (r != CU_OK) return r;
    fake_op *op = fk_op_create(OP_TO_DEVICE, 0);
    if (op == NULL) return CU_ENOMEM;
    op->dst = dst, op->src = src, op->n = n;
    if (pinned == PINNED_NONE) r = stage(op);
    if (r != CU_OK) {
        fk_op_destroy(op);
        return r;
    }
    return fk_op_submit(s, op);
}

static cu_result api_copy_to_device(void *dst, const void *src, size_t n, cu_stream s) {
    cu_result r = fk_enter(CALL_copy_to_device);
    if (r == CU_OK) r = copy_to_device(dst, src, n, s);
    return fk_leave(r);
}

static cu_result copy_to_host(void *dst, const void *src, size_t n, cu_stream s) {
    fake_pinned pinned = PINNED_NONE;
    cu_result r = fk_stream_check(s);
    if (r == CU_OK && n == 0) return CU_OK;
    if (r == CU_OK) r = check_device_side(src, n, "copy_to_host");
    if (r == CU_OK) r = check_host_side(dst, n, "copy_to_host", &pinned);
    if (r == CU_OK) r = check_capture_of_host(s, pinned, "copy_to_host");
    if (r != CU_OK) return r;
    fake_op *op = fk_op_create(OP_TO_HOST, 0);
    if (op == NULL) return CU_ENOMEM;
    op->dst = dst, op->src = src, op->n = n;
    op->byte = pinned == PINNED_NONE; // the caller waits, below
    r = fk_op_submit(s, op);
    if (r == CU_OK && pinned == PINNED_NONE) r = wait_for(s, NULL, "copy_to_host");
    return r;
}

static cu_result api_copy_to_host(void *dst, const void *src, size_t n, cu_stream s) {
    cu_result r = fk_enter(CALL_copy_to_host);
    if (r == CU_OK) r = copy_to_host(dst, src, n, s);
    return fk_leave(r);
}

static cu_result submit_on_device(fake_op_kind kind, void *dst, const void *src, uint8_t byte,
                                  size_t n, cu_stream s) {
    const char *call = kind == OP_FILL ? "fill" : "copy_on_device";
    cu_result r = fk_stream_check(s);
    if (r == CU_OK && n == 0) return CU_OK;
    if (r == CU_OK) r = check_device_side(dst, n, call);
    if (r == CU_OK && kind != OP_FILL) r = check_device_side(src, n, call);
    if (r != CU_OK) return r;
    fake_op *op = fk_op_create(kind, 0);
    if (op == NULL) return CU_ENOMEM;
    op->dst = dst, op->src = src, op->byte = byte, op->n = n;
    return fk_op_submit(s, op);
}

static cu_result api_copy_on_device(void *dst, const void *src, size_t n, cu_stream s) {
    cu_result r = fk_enter(CALL_copy_on_device);
    if (r == CU_OK) r = submit_on_device(OP_ON_DEVICE, dst, src, 0, n, s);
    return fk_leave(r);
}

static cu_result api_fill(void *dst, uint8_t byte, size_t n, cu_stream s) {
    cu_result r = fk_enter(CALL_fill);
    if (r == CU_OK) r = submit_on_device(OP_FILL, dst, NULL, byte, n, s);
    return fk_leave(r);
}

/* ---- the end ---- */

uint32_t fk_stream_leaks(void) {
    uint32_t n = 0;
    for (cu_stream s = fk.streams; s != NULL; s = s->next) {
        if (s->destroyed) continue;
        fk_leaked("stream (number %llu)%s", (unsigned long long)s->serial,
                  s->capture != NULL ? ", capturing" : "");
        n++;
    }
    for (cu_event e = fk.events; e != NULL; e = e->next, n++)
        fk_leaked("event (number %llu)", (unsigned long long)e->serial);
    return n;
}

/* After queue_reset. */
void fk_stream_reset(void) {
    while (fk.streams != NULL) {
        cu_stream s = fk.streams;
        fk.streams = s->next;
        if (s->capture != NULL) {
            fk_graph_release(s->capture->graph);
            free(s->capture);
        }
        free(s);
    }
    while (fk.events != NULL) {
        cu_event e = fk.events;
        fk.events = e->next;
        fk_mark_release(e->mark);
        free(e);
    }
}

void fk_stream_api(cu_api *api) {
    api->stream_create = api_stream_create;
    api->stream_destroy = api_stream_destroy;
    api->stream_sync = api_stream_sync;
    api->stream_wait = api_stream_wait;
    api->event_create = api_event_create;
    api->event_destroy = api_event_destroy;
    api->event_record = api_event_record;
    api->event_query = api_event_query;
    api->event_sync = api_event_sync;
    api->event_elapsed_us = api_event_elapsed_us;
    api->copy_to_device = api_copy_to_device;
    api->copy_to_host = api_copy_to_host;
    api->copy_on_device = api_copy_on_device;
    api->fill = api_fill;
}
