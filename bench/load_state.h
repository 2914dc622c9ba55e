/* load_state.h - the state of a running load, for the load_*.c files alone.  Thread: the load's. */
#ifndef BENCH_LOAD_STATE_H
#define BENCH_LOAD_STATE_H

#include "curl_loop.h"
#include "dues.h"
#include "load.h"
#include "stream.h"

/* The state of one class during the run. */
typedef struct source {
    arrivals arrivals;           // open loop only
    uint64_t n_started;          // also the index of the next request
    bool is_exhausted;           // starts no more requests
    struct curl_slist **headers; // one list per key, or one; owned
} source;

typedef struct waiting {
    uint64_t idx, sched_ns;
    uint32_t class_idx;
    deck_card card; // of a request of its own
    talk *talk;     // owned; NULL: a request of its own
} waiting;

typedef struct load {
    const bench_spec *spec;
    decks *decks; // borrowed
    stats *figures;
    FILE *csv;
    uv_loop_t uv;
    curl_loop curl;
    int alarm_fd;
    uv_poll_t alarm;
    uint64_t alarm_ns; // the time it is set to; 0: not set
    uv_signal_t signals[2];
    uv_timer_t drain, progress;
    struct progress shown;
    uint64_t told_ns, told_chunks; // at the last line of progress

    source *sources; // [spec->n_classes]; owned
    uint32_t n_exhausted;
    bool has_ended_starts; // all are exhausted, and so are conversations
    dues dues;
    waiting *backlog; // a ring of BACKLOG_MAX; its memory is touched only when used; owned
    uint32_t backlog_head, n_backlog;

    list_node active, idle;
    uint32_t n_active;
    uint32_t n_talks;  // conversations that go on
    size_t talk_bytes; // of their messages
    char *urls[2];     // completions, chat; owned

    bool is_warming, is_cut;
    uint32_t n_warm_started;
    uint64_t start_ns, stop_ns; // stop_ns: UINT64_MAX without a duration
    uint64_t n_due;             // requests of all classes that were due, warm-up not among them
    uint64_t n_ended;
    inferd_err *err;      // of load_run
    inferd_status status; // the first failure of the generator itself
} load;

/* Everything but the event loop.  After a failure, too, load_memory_deinit frees it. */
inferd_status load_memory_init(load *l, inferd_err *err);
void load_memory_deinit(load *l);

void load_on_progress(uv_timer_t *timer); // its data is the load

#endif
