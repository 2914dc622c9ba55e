/* cli_top.c - see cli_top.h. */
#include "cli_top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ctl_show.h"
#include "inferd/clock.h"
#include "json_in.h"
#include "top_link.h"
#include "top_screen.h"
#include "top_state.h"
#include "top_stream.h"
#include "top_text.h"
#include "top_ui.h"

enum { EXIT_DONE, EXIT_REFUSED, EXIT_UNREACHABLE = 3, PIECE_BYTES = 64 * 1024 };
#define US_PER_S 1000000u

typedef struct top {
    const ctl_target *target;
    top_state state;
    top_ui ui;
    bool open;  // the screen is drawn
    bool dirty; // something changed since
    uint64_t drawn_us;
    int status; // at the end
    bool ended;

    top_link watch;
    top_stream stream;
    uint64_t heard_us; // last bytes
    uint64_t due_us;   // when to open it again; 0: it is open
    uint32_t n_tries;
    time_t lost_at;  // 0: it is not lost
    inferd_err lost; // why

    top_link asks;
    buf answer;
    uint64_t asked_us;
} top;

/* ---- signals ---- */

static volatile sig_atomic_t asked_to_end;

static void on_end(int sig) {
    (void)sig;
    asked_to_end = 1;
}

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};

/* What a process does with them otherwise. */
typedef struct signals {
    struct sigaction actions[INFERD_COUNT(ends)];
    sigset_t mask;
} signals;

/* They are blocked but for the wait in the loop, so that none is missed. */
static void take_signals(signals *before) {
    struct sigaction action = {.sa_handler = on_end};
    sigset_t ours;
    sigemptyset(&ours);
    for (size_t i = 0; i < INFERD_COUNT(ends); i++) {
        sigaction(ends[i], &action, &before->actions[i]);
        sigaddset(&ours, ends[i]);
    }
    sigprocmask(SIG_BLOCK, &ours, &before->mask);
}

static void give_signals_back(const signals *before) {
    for (size_t i = 0; i < INFERD_COUNT(ends); i++) sigaction(ends[i], &before->actions[i], NULL);
    sigprocmask(SIG_SETMASK, &before->mask, NULL);
}

/* ---- the stream ---- */

static void end(top *t, int status) {
    t->ended = true;
    t->status = status;
}

/* Before the first event a failure is the end; later the stream is opened again. */
static void lose(top *t, const inferd_err *why, int status) {
    static const uint32_t retry_s[] = {1, 2, 4, 5};
    top_link_close(&t->watch);
    t->dirty = true;
    if (!t->state.known) {
        fprintf(stderr, "inferd: %s\n", why->text);
        end(t, status);
        return;
    }
    if (t->lost_at == 0) t->lost_at = time(NULL);
    t->lost = *why;
    t->due_us = clock_now_us() + retry_s[u32_min(t->n_tries++, 3)] * (uint64_t)US_PER_S;
}

static json_t *parse(bytes text) {
    json_limits limits = json_limits_default;
    json_t *v = NULL;
    inferd_err err;
    limits.structural_max = TOP_EVENT_BYTES_MAX;
    limits.memory_max = 32ull * TOP_EVENT_BYTES_MAX;
    return json_in_parse(text, &limits, &v, &err) == INFERD_OK ? v : NULL;
}

static void on_event(void *user, const char *name, bytes data) {
    top *t = user;
    json_t *v = parse(data);
    if (v != NULL && top_state_take(&t->state, name, v, clock_now_us())) {
        t->n_tries = 0;
        t->lost_at = 0;
        t->dirty = true;
    }
    json_decref(v);
}

static void open_watch(top *t) {
    inferd_err err = {0};
    t->due_us = 0;
    t->heard_us = clock_now_us();
    top_stream_deinit(&t->stream);
    top_stream_init(&t->stream, on_event, t);
    inferd_status st = top_link_open(&t->watch, t->target, "GET", "/admin/watch", (bytes){0}, &err);
    if (st == INFERD_EINVAL) {
        fprintf(stderr, "inferd: %s\n", err.text);
        end(t, 2);
    } else if (st != INFERD_OK) {
        lose(t, &err, EXIT_UNREACHABLE);
    }
}

/* The stream is refused: the daemon's sentence, and what shows the state without it. */
static void refuse(top *t) {
    inferd_err err = {0};
    buf text = {0}, safe = {0};
    json_t *v = parse((bytes){t->stream.body.p, t->stream.body.n});
    if (v != NULL) show_error(&text, v);
    if (text.n > 0 && text.p[text.n - 1] == '\n') text.n--;
    const char *p = buf_cstr(&text);
    p += strncmp(p, "inferd: ", 8) == 0 ? 8 : 0;
    top_add_text(&safe, p, INFERD_ERR_TEXT_BYTES);
    inferd_fail(&err, INFERD_EIO, "GET /admin/watch has status %d: %s", t->stream.status,
                buf_cstr(&safe));
    buf_deinit(&text);
    buf_deinit(&safe);
    json_decref(v);
    bool first = !t->state.known, may_read = t->stream.status != 401 && t->stream.status != 403;
    lose(t, &err, EXIT_REFUSED);
    if (first && may_read)
        fputs("inferd: `inferd ctl top --every 1` shows the state without the stream\n", stderr);
}

static void work_watch(top *t) {
    static char piece[PIECE_BYTES];
    inferd_err err = {0};
    size_t n = 0;
    bool ended = false;
    inferd_status st = top_link_work(&t->watch, piece, sizeof piece, &n, &ended, &err);
    if (n > 0) t->heard_us = clock_now_us();
    if (st == INFERD_OK) st = top_stream_push(&t->stream, (bytes){piece, n}, &err);
    if (st != INFERD_OK) {
        lose(t, &err, EXIT_UNREACHABLE);
        return;
    }
    ended |= t->stream.part == TOP_AT_END;
    if (!ended) return;
    inferd_fail(&err, INFERD_EIO, "the daemon ended the stream");
    if (t->stream.status != 0 && !t->stream.events)
        refuse(t);
    else
        lose(t, &err, EXIT_UNREACHABLE);
}

/* ---- requests ---- */

static void begin_request(top *t, const top_request *rq) {
    inferd_err err = {0};
    buf_init(&t->answer, CTL_ANSWER_BYTES_MAX);
    t->asked_us = clock_now_us();
    if (rq->path.failed || rq->body.failed) {
        top_ui_answer(&t->ui, 0, NULL, "no memory");
        return;
    }
    buf path = rq->path;
    if (top_link_open(&t->asks, t->target, "POST", buf_cstr(&path), (bytes){rq->body.p, rq->body.n},
                      &err) != INFERD_OK)
        top_ui_answer(&t->ui, 0, NULL, err.text);
}

static void end_request(top *t, const char *why) {
    ctl_answer answer = {0};
    inferd_err err = {0};
    json_t *v = NULL;
    top_link_close(&t->asks);
    if (why == NULL) {
        buf_cstr(&t->answer);
        if (ctl_read_answer((bytes){t->answer.p, t->answer.n}, &answer, &err) == INFERD_OK)
            v = parse((bytes){answer.body.p, answer.body.n});
        else
            why = err.text;
    }
    top_ui_answer(&t->ui, answer.status, v, why);
    json_decref(v);
    buf_deinit(&answer.body);
    buf_deinit(&t->answer);
    t->dirty = true;
}

static void work_request(top *t) {
    static char piece[PIECE_BYTES];
    inferd_err err = {0};
    size_t n = 0;
    bool ended = false;
    inferd_status st = top_link_work(&t->asks, piece, sizeof piece, &n, &ended, &err);
    buf_add(&t->answer, piece, n);
    if (st != INFERD_OK)
        end_request(t, err.text);
    else if (t->answer.failed)
        end_request(t, "the answer is too long");
    else if (ended)
        end_request(t, NULL);
}

/* ---- the screen ---- */

static void draw(top *t) {
    char since[16], trouble[INFERD_ERR_TEXT_BYTES + 64];
    struct tm when;
    buf lines = {0};
    top_screen_size(&t->ui.view.width, &t->ui.view.height);
    if (t->lost_at != 0) {
        localtime_r(&t->lost_at, &when);
        strftime(since, sizeof since, "%H:%M:%S", &when);
        snprintf(trouble, sizeof trouble, "no answer since %s: %s", since, t->lost.text);
    }
    top_foot foot = top_ui_foot(&t->ui, &t->state, t->lost_at != 0 ? trouble : NULL);
    top_view_draw(&t->ui.view, &t->state, &foot, clock_now_us(), &lines);
    if (!lines.failed) top_screen_draw(&lines);
    buf_deinit(&lines);
    t->drawn_us = clock_now_us();
    t->dirty = false;
}

static void take_keys(top *t) {
    int key;
    while (!t->ended && (key = top_screen_key()) != TOP_KEY_NONE) {
        top_request rq = {0};
        t->dirty = true;
        t->drawn_us = 0; // at once
        if (key == TOP_KEY_GONE) end(t, EXIT_DONE);
        if (key < 0) continue;
        top_ui_key(&t->ui, &t->state, key, &rq);
        if (t->ui.gives_up) {
            top_link_close(&t->asks);
            buf_deinit(&t->answer);
            t->ui.gives_up = false;
        }
        if (rq.path.n > 0) begin_request(t, &rq);
        top_request_deinit(&rq);
        if (t->ui.quit) end(t, EXIT_DONE);
    }
}

/* ---- the loop ---- */

/* What the time alone changes. */
static void take_time(top *t, uint64_t now_us) {
    inferd_err err = {0};
    if (t->due_us != 0 && now_us >= t->due_us) open_watch(t);
    if (t->due_us == 0 && !t->ended && now_us > t->heard_us + TOP_SILENCE_S * (uint64_t)US_PER_S) {
        inferd_fail(&err, INFERD_ETIMEOUT, "no answer in time");
        lose(t, &err, EXIT_UNREACHABLE);
    }
    if (t->asks.fd >= 0 && now_us > t->asked_us + TOP_ANSWER_S * (uint64_t)US_PER_S)
        end_request(t, "no answer in time");
    if (t->state.known && !t->open && !t->ended) {
        t->open = top_screen_open();
        if (!t->open) end(t, CLI_TOP_NO_SCREEN);
    }
    if (t->open && now_us > t->drawn_us + US_PER_S) t->dirty = true; // ages
    if (t->open && t->dirty && now_us >= t->drawn_us + TOP_DRAW_MS * (uint64_t)1000) draw(t);
}

static void wait(top *t, const sigset_t *mask) {
    struct pollfd fds[3] = {{.fd = t->open ? STDIN_FILENO : -1, .events = POLLIN},
                            {.fd = t->watch.fd, .events = top_link_wants(&t->watch)},
                            {.fd = t->asks.fd, .events = top_link_wants(&t->asks)}};
    struct timespec patience = {.tv_nsec = (t->dirty ? TOP_DRAW_MS : 500) * 1000000L};
    int n = asked_to_end ? 0 : ppoll(fds, 3, &patience, mask);
    if (asked_to_end) end(t, EXIT_DONE);
    if (t->ended) return;
    if (n > 0 && fds[1].revents != 0) work_watch(t);
    if (n > 0 && fds[2].revents != 0 && t->asks.fd >= 0) work_request(t);
    if (t->open && !t->ended) take_keys(t); // after a signal, too: it may be a new size
}

bool cli_top_can(void) {
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && top_screen_named();
}

int cli_top(const ctl_target *target) {
    static top t;
    signals before;
    t = (top){.target = target, .watch = TOP_LINK_NONE, .asks = TOP_LINK_NONE};
    top_use_utf8();
    top_ui_init(&t.ui);
    take_signals(&before);
    open_watch(&t);
    while (!t.ended) {
        wait(&t, &before.mask);
        if (!t.ended) take_time(&t, clock_now_us());
    }
    top_screen_close();
    give_signals_back(&before);
    top_link_close(&t.watch);
    top_link_close(&t.asks);
    buf_deinit(&t.answer);
    top_stream_deinit(&t.stream);
    top_state_deinit(&t.state);
    top_ui_deinit(&t.ui);
    return t.status;
}
