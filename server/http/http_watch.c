/* http_watch.c - events that the library cannot see: clients that leave while their connection is
 * suspended, deadlines, and refused senders with bytes left to drain.
 *
 * One epoll set holds every connection with EPOLLRDHUP | EPOLLONESHOT: the end of a client's stream
 * is final, so one report per connection is enough and nothing is ever re-armed.  An event names
 * its connection by slot and its count of uses, never by pointer: the slot may have a new owner by
 * then.
 *
 *   event.data.u64   [63] lingering  [62..32] slot_use  [31..0] slot
 *
 * A half-closed client counts as gone once its exchange has to wait: on TCP it looks the same as a
 * client that left, and the device should work for clients that stay.  It gets an answer that says
 * so; an answer that is ready at once is still sent. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "http_internal.h"
#include "log.h"

enum {
    EVENTS_MAX = 128,
    LINGER_BYTES_MAX = 8 * 1024 * 1024, // above this the connection may be reset
    LINGER_READS_MAX = 8                // of one sender per event, so that others are not delayed
};
#define WATCH_LINGER (1ull << 63)

static uint64_t watch_name(uint32_t slot, uint32_t slot_use) {
    return (uint64_t)(slot_use & 0x7fffffff) << 32 | slot;
}

bool watch_add(conn *c) {
    http_server *s = c->s;
    INFERD_CHECK(s->first_free < s->n_slots); // listen_some accepts no more than there are slots
    c->slot = s->first_free;
    s->first_free = s->slots[c->slot].next_free;
    c->slot_use = ++s->slots[c->slot].slot_use;
    s->slots[c->slot].c = c;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT,
                                .data.u64 = watch_name(c->slot, c->slot_use)};
    return epoll_ctl(s->fd_watch, EPOLL_CTL_ADD, c->fd, &event) == 0;
}

void watch_remove(conn *c) {
    http_server *s = c->s;
    epoll_ctl(s->fd_watch, EPOLL_CTL_DEL, c->fd, NULL);
    s->slots[c->slot].c = NULL;
    s->slots[c->slot].next_free = s->first_free;
    s->first_free = c->slot;
}

void watch_cut(conn *c) {
    if (c->cut) return;
    c->cut = true;
    c->s->n_cut++;
    deadline_disarm(&c->due);
    shutdown(c->fd, SHUT_RDWR);
    if (c->x != NULL) {
        c->x->gone = true;
        exchange_resume(c->x);
    }
    server_must_run(c->s);
}

bool watch_evict(http_server *s) {
    static const deadline_kind kinds[] = {DEADLINE_IDLE, DEADLINE_HEADER};
    for (size_t i = 0; i < INFERD_COUNT(kinds); i++) {
        deadline *d = deadline_oldest(&s->due, kinds[i]);
        if (d == NULL) continue;
        watch_cut(LIST_ENTRY(d, conn, due));
        return true;
    }
    return false;
}

static void on_left(conn *c) {
    exchange *x = c->x;
    c->left = true;
    if (x == NULL || x->phase < EXCHANGE_HANDLING) {
        /* The library may have seen the end, or have stopped reading just before it; it may need a
         * few more iterations for the bytes in the socket. */
        watch_conn(c, DEADLINE_IDLE);
        return;
    }
    if (x->answered) return; // a complete answer is being sent: a half-closed client reads it
    exchange_gone(x);
    if (!x->streaming) reply_raw(x, &reply_half_closed);
    watch_cut(c);
}

/* -- lingering senders -- */

void linger_begin(conn *c) {
    http_server *s = c->s;
    if (s->n_lingers == HTTP_LINGER_MAX) // end the oldest: it has had the most time
        linger_end(LIST_ENTRY(deadline_oldest(&s->due, DEADLINE_LINGER), sender, due));
    int fd = dup(c->fd); // the library closes the connection's own descriptor soon
    if (fd < 0) return;
    sender *l = calloc(1, sizeof *l);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP,
                                .data.u64 = WATCH_LINGER | s->n_lingers};
    if (l == NULL || epoll_ctl(s->fd_watch, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(l);
        close(fd);
        return;
    }
    l->s = s;
    l->fd = fd;
    l->slot = s->n_lingers;
    deadline_init(&l->due);
    watch_arm(s, &l->due, DEADLINE_LINGER);
    s->lingers[s->n_lingers++] = l;
}

void linger_end(sender *l) {
    http_server *s = l->s;
    sender *last = s->lingers[--s->n_lingers];
    if (last != l) { // the last one moves into the gap; its event must name the new index
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP,
                                    .data.u64 = WATCH_LINGER | l->slot};
        last->slot = l->slot;
        s->lingers[l->slot] = last;
        epoll_ctl(s->fd_watch, EPOLL_CTL_MOD, last->fd, &event);
    }
    deadline_disarm(&l->due);
    epoll_ctl(s->fd_watch, EPOLL_CTL_DEL, l->fd, NULL);
    close(l->fd);
    free(l);
}

/* A stale event at worst reads some bytes of another sender, which are dropped as well. */
static void linger_read(sender *l) {
    char dropped[16 * 1024];
    for (int i = 0; i < LINGER_READS_MAX; i++) {
        ssize_t n = recv(l->fd, dropped, sizeof dropped, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n > 0) l->n_read += (uint64_t)n;
        if (n <= 0 || l->n_read > LINGER_BYTES_MAX) {
            linger_end(l);
            return;
        }
    }
}

void watch_events(http_server *s) {
    struct epoll_event events[EVENTS_MAX];
    int n = epoll_wait(s->fd_watch, events, EVENTS_MAX, 0);
    for (int i = 0; i < n; i++) {
        uint64_t name = events[i].data.u64;
        uint32_t slot = (uint32_t)name;
        if (name & WATCH_LINGER) {
            if (slot < s->n_lingers) linger_read(s->lingers[slot]);
            continue;
        }
        conn *c = slot < s->n_slots ? s->slots[slot].c : NULL;
        if (c != NULL && watch_name(slot, c->slot_use) == name) on_left(c);
    }
}

/* -- deadlines -- */

static void on_timer_due(uv_timer_t *timer) {
    watch_due(timer->data);
}

static void start_timer(http_server *s, uint64_t now_us, uint64_t at_us) {
    if (s->closing) return;
    s->timer_due_at_us = at_us;
    uint64_t wait_us = at_us > now_us ? at_us - now_us : 0;
    /* libuv counts whole milliseconds from its last look at the clock. */
    uv_update_time(s->loop);
    uv_timer_start(&s->timer_due, on_timer_due, wait_us / 1000 + 1, 0);
}

void watch_arm(http_server *s, deadline *d, deadline_kind kind) {
    uint64_t now_us = server_now_us(s);
    deadline_arm(&s->due, d, kind, now_us);
    if (s->timer_due_at_us == 0 || d->at_us < s->timer_due_at_us) start_timer(s, now_us, d->at_us);
}

void watch_conn(conn *c, deadline_kind kind) {
    bool receives = kind == DEADLINE_HEADER || kind == DEADLINE_BODY || kind == DEADLINE_IDLE;
    watch_arm(c->s, &c->due, c->left && receives ? DEADLINE_LEFT : kind);
}

/* A quiet stream: a comment line, which clients skip, shows proxies and peers a sign of life. */
static void beat(exchange *x) {
    static const char ping[] = ": ping\n\n";
    watch_arm(x->s, &x->beat, DEADLINE_BEAT);
    if (x->out.n == 0) http_stream_write(&x->rq, ping, sizeof ping - 1);
}

static void on_conn_due(conn *c, deadline_kind kind) {
    if (kind == DEADLINE_HEADER || kind == DEADLINE_BODY) {
        inlet_too_late(c);
        return;
    }
    if (c->x != NULL) exchange_gone(c->x);
    watch_cut(c);
}

static void on_due(http_server *s, deadline *d) {
    switch (d->kind) {
    case DEADLINE_HEADER:
    case DEADLINE_BODY:
    case DEADLINE_IDLE:
    case DEADLINE_LEFT:
    case DEADLINE_STALL:
        on_conn_due(LIST_ENTRY(d, conn, due), d->kind);
        break;
    case DEADLINE_BEAT:
        beat(LIST_ENTRY(d, exchange, beat));
        break;
    case DEADLINE_LINGER:
        linger_end(LIST_ENTRY(d, sender, due));
        break;
    case DEADLINE_ACCEPT:
        listen_resume(s);
        break;
    case DEADLINE_KINDS:
        INFERD_CHECK(false);
    }
}

void watch_due(http_server *s) {
    uint64_t now_us = server_now_us(s), next_us;
    deadline *d;
    /* 1 while deadlines expire, so that watch_arm starts no timer in between. */
    s->timer_due_at_us = 1;
    while ((d = deadline_take_expired(&s->due, now_us, &next_us)) != NULL) on_due(s, d);
    s->timer_due_at_us = 0;
    if (next_us != 0) start_timer(s, now_us, next_us);
}
