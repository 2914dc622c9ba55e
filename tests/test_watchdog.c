/* test_watchdog.c - a loop that hangs is found, named and ended; one that waits, works for long in
 * many pieces, or was stopped with its process is not. */
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>

#include "child.h"
#include "http_client.h"
#include "log.h"
#include "scheduler/pulse.h"
#include "watchdog.h"

enum { SECOND_US = 1000000 };
static const pulse_limits limits = {.work_us = 30 * SECOND_US, .device_us = 65ull * SECOND_US};

/* Looks of a tenth of a second; after how many the watch finds something. */
static int look_for(pulses *w, uint32_t n, uint32_t *n_looks) {
    int over = WATCHDOG_NONE;
    for (*n_looks = 0; *n_looks < n && over == WATCHDOG_NONE; ++*n_looks)
        over = pulses_look(w, &limits, WATCHDOG_LOOK_US);
    return over;
}

static void silence_is_found_after_the_limit(void) {
    pulses w = {0};
    pulse p = {0};
    uint32_t n;
    pulses_add(&w, &p, "front", "");
    EXPECT_EQ(look_for(&w, 1000, &n), WATCHDOG_NONE); // it has not begun
    pulse_join(&p);
    pulse_at(PULSE_WORK, "tick");
    EXPECT_EQ(look_for(&w, 1000, &n), 0);
    EXPECT_EQ(n, 301); // the first look sees the beat
    EXPECT_EQ(w.loops[0].silent_us, 30 * SECOND_US);
    pulse_at(PULSE_WORK, "tick");
    EXPECT_EQ(look_for(&w, 300, &n), WATCHDOG_NONE);
    pulse_at(PULSE_WORK, "tick"); // at the last moment
    EXPECT_EQ(look_for(&w, 300, &n), WATCHDOG_NONE);
    pulse_join(NULL);
    pulse_at(PULSE_WORK, "of no loop");
    EXPECT_STR(atomic_load(&p.where), "tick");
    EXPECT_EQ(look_for(&w, 1, &n), 0);
}

static void waiting_for_work_is_no_silence(void) {
    pulses w = {0};
    pulse p = {0};
    uint32_t n;
    pulses_add(&w, &p, "engine", "cpu");
    pulse_join(&p);
    pulse_at(PULSE_REST, "park");
    EXPECT_EQ(look_for(&w, 10000, &n), WATCHDOG_NONE);
    pulse_at(PULSE_WORK, "sched_plan");
    EXPECT_EQ(look_for(&w, 1000, &n), 0);
    EXPECT_EQ(n, 301); // counted from the beat, not from before
    pulse_join(NULL);
}

static void a_step_has_its_own_limit(void) {
    pulses w = {0};
    pulse p = {0};
    uint32_t n;
    pulses_add(&w, &p, "engine", "cpu");
    pulse_join(&p);
    pulse_at_model(PULSE_DEVICE, "model_forward", 3);
    EXPECT_EQ(look_for(&w, 1000, &n), 0);
    EXPECT_EQ(n, 651);
    EXPECT_EQ(atomic_load(&p.model_idx), 3);
    pulse_join(NULL);
}

/* SIGSTOP, a debugger, a frozen container: the clock goes on, the loops do not. */
static void a_stopped_process_does_not_hang(void) {
    pulses w = {0};
    pulse p = {0};
    pulses_add(&w, &p, "front", "");
    pulse_join(&p);
    pulse_at(PULSE_WORK, "tick");
    pulses_look(&w, &limits, WATCHDOG_LOOK_US);
    EXPECT_EQ(pulses_look(&w, &limits, 3600ull * SECOND_US), WATCHDOG_NONE);
    EXPECT_EQ(w.loops[0].silent_us, WATCHDOG_LOOK_US_MAX);
    pulse_join(NULL);
}

/* The front waits for an engine that hangs: the engine is named. */
static void an_engine_is_blamed_before_the_front(void) {
    pulses w = {0};
    pulse front = {0}, engine = {0};
    uint32_t n;
    pulses_add(&w, &front, "front", "");
    pulses_add(&w, &engine, "engine", "cpu");
    pulse_join(&front);
    pulse_at(PULSE_WORK, "tick");
    pulse_join(&engine);
    pulse_at(PULSE_WORK, "sched_plan");
    pulse_join(NULL);
    EXPECT_EQ(look_for(&w, 1000, &n), 1);
}

static void no_limit_is_never_over(void) {
    static const pulse_limits none = {UINT64_MAX, UINT64_MAX};
    pulses w = {0};
    pulse p = {0};
    pulses_add(&w, &p, "front", "");
    pulse_join(&p);
    pulse_at(PULSE_WORK, "tick");
    pulse_join(NULL);
    for (int i = 0; i < 100000; i++)
        EXPECT_EQ(pulses_look(&w, &none, WATCHDOG_LOOK_US_MAX), WATCHDOG_NONE);
}

/* -- a process that hangs -- */

static const char *name_of(void *ctx, uint32_t idx) {
    EXPECT_EQ(idx, 3);
    return ctx;
}

static void watch_this(pulse *p, const char *kind, const char *name) {
    static const watchdog_options o = {.model_name = name_of, .ctx = "chat"};
    inferd_err err = {0};
    watchdog *w;
    INFERD_CHECK(watchdog_create(&o, &w, &err) == INFERD_OK);
    watchdog_add(w, p, kind, name);
    watchdog_set_limits(w, 1, 0);
    INFERD_CHECK(watchdog_start(w, &err) == INFERD_OK);
}

static void rest_for_ever(void) {
    for (;;) pause();
}

static void engine_hangs(void) {
    static pulse p;
    watch_this(&p, "engine", "gpu0");
    pulse_join(&p);
    pulse_at_model(PULSE_WORK, "model_forward", 3);
    rest_for_ever();
}

/* /metrics shows it while no limit ends the process. */
static void a_silent_loop_can_be_asked_for(void) {
    static const watchdog_options o = {.model_name = name_of};
    inferd_err err = {0};
    pulse front = {0}, engine = {0};
    watchdog *w;
    watchdog_loop l;
    EXPECT_EQ(watchdog_create(&o, &w, &err), INFERD_OK);
    watchdog_add(w, &front, "front", "");
    watchdog_add(w, &engine, "engine", "gpu0");
    watchdog_set_limits(w, 0, 0);
    pulse_join(&front);
    pulse_at(PULSE_REST, "park");
    pulse_join(&engine);
    pulse_at(PULSE_WORK, "sched_plan");
    pulse_join(NULL);
    EXPECT_EQ(watchdog_start(w, &err), INFERD_OK);
    do EXPECT(watchdog_get(w, 1, &l));
    while (l.silent_us == 0); // two looks of the watchdog's thread
    EXPECT_STR(l.kind, "engine");
    EXPECT_STR(l.name, "gpu0");
    EXPECT(watchdog_get(w, 0, &l) && l.silent_us == 0);
    EXPECT(!watchdog_get(w, 2, &l));
    watchdog_forget_engines(w);
    EXPECT(watchdog_get(w, 0, &l) && !watchdog_get(w, 1, &l));
    watchdog_stop(w);
}

static void handle_stuck(void *ctx, http_request *rq) {
    (void)ctx, (void)rq;
    rest_for_ever();
}

static void front_hangs(void) {
    static const http_route routes[] = {
        {"/v1/stuck", HTTP_GET, HTTP_OPEN, false, false, handle_stuck}};
    static pulse p;
    http_options o = toy_options();
    o.routes = routes;
    o.n_routes = 1;
    start(&o);
    watch_this(&p, "front", "");
    pulse_join(&p);
    client_with("GET /v1/stuck HTTP/1.1\r\nHost: x\r\n\r\n");
    for (;;) iterate();
}

static void engine_rests(void) {
    static pulse p;
    watch_this(&p, "engine", "gpu0");
    pulse_join(&p);
    pulse_at(PULSE_REST, "park");
    sleep(3);
    _exit(5);
}

/* What the child says on standard error, and how it ends. */
static int run_child(void (*hang)(void), char *text, size_t text_bytes) {
    int ends[2], status = -1;
    size_t n = 0;
    EXPECT(pipe(ends) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        hang();
        _exit(1);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], text + n, text_bytes - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static bool is_one_line(const char *text) {
    return *text != 0 && strchr(text, '\n') == text + strlen(text) - 1;
}

static void an_engine_that_hangs_ends_the_process(void) {
    char text[4096];
    EXPECT_EQ(run_child(engine_hangs, text, sizeof text), WATCHDOG_EXIT);
    EXPECT(is_one_line(text));
    EXPECT(strstr(text, " level=error event=watchdog loop=\"engine gpu0\" "
                        "where=\"model_forward chat\" silent_ms=1") != NULL);
}

static void a_handler_that_hangs_ends_the_process(void) {
    char text[4096];
    EXPECT_EQ(run_child(front_hangs, text, sizeof text), WATCHDOG_EXIT);
    EXPECT(is_one_line(text));
    EXPECT(strstr(text, " event=watchdog loop=front where=\"request handler /v1/stuck\"") != NULL);
}

static void an_engine_without_work_does_not(void) {
    char text[4096];
    EXPECT_EQ(run_child(engine_rests, text, sizeof text), 5);
    EXPECT_STR(text, "");
}

/* -- the log's lock -- */

static volatile sig_atomic_t n_alone;

static void write_alone(int sig) {
    (void)sig;
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "alone");
    log_end_alone(&line);
    n_alone++;
}

/* A signal in the middle of a line stands for a loop that hangs there: a lock would never be free.
 */
static void the_last_line_waits_for_no_lock(void) {
    const struct itimerval often = {{0, 50}, {0, 50}}, never = {0};
    inferd_err err = {0};
    EXPECT_EQ(log_open("/dev/null", false, LOG_LEVEL_INFO, &err), INFERD_OK);
    signal(SIGALRM, write_alone);
    alarm(0);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; n_alone < 2000; i++) log_text(LOG_LEVEL_INFO, "event", "name", "value");
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL);
    log_close();
    EXPECT(n_alone >= 2000);
}

static void locks(void) {
    the_last_line_waits_for_no_lock();
}

static void a_line_is_written_while_another_is(void) {
    in_child(locks); // its signals are its own
}

static const test_case cases[] = {
    TEST(silence_is_found_after_the_limit),
    TEST(waiting_for_work_is_no_silence),
    TEST(a_step_has_its_own_limit),
    TEST(a_stopped_process_does_not_hang),
    TEST(an_engine_is_blamed_before_the_front),
    TEST(no_limit_is_never_over),
    TEST(a_silent_loop_can_be_asked_for),
    TEST(an_engine_that_hangs_ends_the_process),
    TEST(a_handler_that_hangs_ends_the_process),
    TEST(an_engine_without_work_does_not),
    TEST(a_line_is_written_while_another_is),
};
TEST_MAIN(cases)
