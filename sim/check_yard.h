/* check_yard.h - shared by the files of the explorer: a world under test (the yard), and its trace.
 *
 *     check.c             the life of a world, from its seed to its last page
 *     check_world.c       drawn from the seed: pages, limits, models, policies
 *     check_input.c       its events
 *     check_device.c      the device: tests/fake_device.h with weights that can be told apart,
 *                         layouts that differ, and injected faults
 *     check_disk.c        KV blocks on a disk that is slow and loses some
 *     check_invariants.c  the output, and the invariants after every event
 *
 * The fake device has globals, one of each per file that includes it: all code that depends on them
 * (fake_next, fake_compute) is in check_device.c.  Thread: one at a time in a process. */
#ifndef SIM_CHECK_YARD_H
#define SIM_CHECK_YARD_H

#include "../bench/rng.h"
#include "check.h"
#include "core.h"
#include "fake_device.h"
#include "sched_state.h"

typedef unsigned long long ull; // for printing

enum {
    MODELS_MAX = 10,
    REQUESTS_MAX = 400,
    TOKENS_MAX = 130, // prompt and output of one request
    PAGE_CELLS = 24,  // tokens in a page, whatever the layout
    CONTEXT = 160,
    PAGE_BYTES = PAGE_CELLS * sizeof(tok_id), // few, so that a slot's bytes are its cells
    TENANTS = 3,
    DISK_FILES = 48,

    MOVE_US = 20, // one copy of slots to host memory or back

    EVENTS_MIN = 500,
    EVENTS_MORE = 700,
    ITERATIONS_MAX = 300000, // iterations of a world; more: no progress
    DRAIN_US_MAX = 60 * 1000 * 1000,

    STARVATION_US = 20000,
    RETRY_US = 30000,
    RETRY_US_MAX = 120000,

    /* Longest waits without a violation, about twice those of a few thousand correct worlds. */
    FLOOD_STEPS_MAX = 150,
    SLICE_WAIT_US_MAX = 4500000,
    URGENT_US_MAX = 60000,
    GUARANTEED_US_MAX = 260000
};

/* The subject of a world. */
typedef enum theme {
    THEME_STORM,      // everything
    THEME_FLOOD,      // one model's urgent requests never stop; another model's wait
    THEME_SLICES,     // endless work for models that do not fit together
    THEME_URGENT,     // one model is always busy; another wakes, of a higher class
    THEME_GUARANTEED, // the same, with a guarantee, and all of one class
    THEME_IDLE, // few requests for many models: which are evicted, which come back; in half of the
                // worlds beside batch work of one model
    THEMES
} theme;

extern const char *const yard_state_names[MODEL_STATES];

typedef struct slot {
    bool used, removed;
    model_policy policy;
    kv_layout kv;
    uint32_t weight_pages;
    tok_id stamp; // value of the cells of its weights
    uint32_t same_as;
    bool is_stamped;

    uint32_t n_pieces, fail_piece, wait_piece; // of the stage under way; 0: none
    bool has_waited;
    uint64_t wake_us; // 0: no stage waits
    uint32_t n_load_pieces;
    bool fail_load, loading;
    const uint32_t *pages;

    uint64_t n_stages, n_loads; // successful ones
    uint64_t failed_us;         // when it was FAILED last
    bool is_asked_for;          // by a command, since it failed

    /* Before the newest iteration. */
    resident before;
    bool had_steps;
    uint32_t held;                 // pages, at the last look
    uint32_t n_lower[GEN_CLASSES]; // pages of sequences of a lower class, where all are
    uint64_t unload_plan;          // number of the newest plan when it left the device
} slot;

/* A block on the disk, and one that was asked for. */
typedef struct yard_file {
    uint64_t name[2], model[2], scope[2];
    uint32_t depth;
    bool lost; // its reader gets GONE
    unsigned char slots[PAGE_BYTES];
} yard_file;

typedef struct yard_ticket {
    bool used;
    uint64_t ready_us, asked_us;
    yard_file file; // copy from the time of asking
} yard_ticket;

struct kv_disk {
    struct yard *y;
    yard_file files[DISK_FILES];
    uint32_t n_files, n_begun;
    yard_file begun; // between put_begin and put_end
    yard_ticket tickets[KV_DISK_READS_MAX];
};

typedef struct request {
    gen_request *copy; // owned
    tok_id *expected;  // owned
    uint32_t n_expected, n_tokens, n_scored, n_drawn;
    gen_finish finish;
    tok_id stop_id;
    bool is_alive, is_paused, is_cancelled, has_failed_step, is_private, has_run;
    bool may_be_refused;              // the queue is full, or its target may exceed what fits
    uint64_t submitted_us, served_us; // last row
    uint64_t steps_then;              // n_steps when it was served last, or could not be served
    uint64_t newest_launch;
    uint32_t fewest, fewest_allowed; // fewest tokens that memory, and ceilings, have left it so far
} request;

typedef struct yard {
    fake_device fake;
    tok_id *host_memory;    // [n_host_pages, PAGE_CELLS] owned
    unsigned char *writers; // [pages of the pool, PAGE_CELLS] tenant + 1 of keys and values; owned
    kv_disk disk;
    core core;
    rng r;       // of the input
    rng trouble; // for faults of the device
    theme theme;
    bool calm; // no more faults
    uint64_t jumped_us;
    uint32_t room; // for events
    uint32_t extent_pages;
    slot slots[MODELS_MAX];
    uint32_t n_models;
    uint64_t plan_before;                // number of the newest plan before the newest iteration
    uint64_t preempted_before;           // of all sequences
    uint64_t tenant_used_bytes[TENANTS]; // at the last look
    tok_id next_stamp;
    request requests[REQUESTS_MAX + 1]; // by id
    uint32_t n_requests, n_alive, requests_max;
    uint64_t n_launches, n_steps;
    uint32_t trouble_percent, step_trouble_permille;
    bool may_lose, is_lost;
    bool ranks;
    uint64_t iteration_began_us;
    uint64_t n_drafted, n_right_min, n_right_max, n_done;
    core_usage usage;
    sched_counters counters;
    uint64_t next_urgent_us;

    bool trace;
    check_result *out;
} yard;

static inline uint64_t now(const yard *y) {
    return y->fake.clock_us + y->jumped_us;
}
static inline bool is_sound(const yard *y) {
    return y->out->failed == CHECK_NONE;
}
static inline uint32_t below(yard *y, uint32_t n) {
    return n > 0 ? (uint32_t)rng_below(&y->r, n) : 0;
}
static inline bool chance(yard *y, uint32_t percent) {
    return below(y, 100) < percent;
}
static inline bool is_trouble(yard *y, uint32_t percent) {
    return !y->calm && rng_below(&y->trouble, 100) < percent;
}
static inline model_state state_of(const yard *y, uint32_t idx) {
    return residency_state(&y->core.models, idx);
}

/* -- check.c -- */
__attribute__((format(printf, 2, 3))) void yard_say(yard *y, const char *format, ...);
/* A violation if `broken`, which it returns.  Only the first one counts. */
__attribute__((format(printf, 4, 5))) bool yard_fail_if(yard *y, bool broken, check_invariant what,
                                                        const char *format, ...);

/* -- check_world.c -- */
bool yard_make(yard *y); // false: opening failed, and is in the result
void yard_add_model(yard *y, uint32_t idx, const model_policy *policy, uint32_t same_as);
void yard_set_policy(yard *y, uint32_t idx, const model_policy *policy);
void yard_draw_shape(yard *y, slot *s, uint32_t pages_max);
model_policy yard_draw_policy(yard *y, uint32_t idx);
bool yard_is_shared(const yard *y, uint32_t idx); // it shares its weights with another slot

/* -- check_input.c -- */
void yard_next_event(yard *y);
uint32_t yard_n_alive_of(const yard *y, uint32_t idx); // requests of the model

/* -- check_device.c -- */
device yard_device(yard *y, bool moves);
void yard_look_for_faults(yard *y, const char *where);
/* A drawn token depends on the last `memory` tokens (0: on all), and is one of `words` values. */
void yard_set_texts(uint32_t memory, uint32_t words);
/* Computes the output of the request as if it were alone in the world. */
void yard_expect(request *q);

/* -- check_disk.c -- */
extern const kv_disk_ops yard_disk_ops;
void yard_disk_look(yard *y);              // at the end: everything was given back
uint64_t yard_disk_next_us(const yard *y); // when the next read is done; UINT64_MAX: none

/* -- check_invariants.c -- */
void yard_on_event(void *ctx, const gen_event *e);
void yard_on_step(void *ctx, const step *st, uint64_t device_us, uint64_t wall_us);
/* Lowers `fewest` and `fewest_allowed` of the request to what limits leave it now. */
void yard_note_limits(yard *y, request *q);
void yard_note_models(yard *y);  // before an iteration: the state that residency_decide will find
void yard_check_models(yard *y); // after it
/* -- check_room.c -- */
void yard_note_room(yard *y);
void yard_check_room(yard *y, uint32_t v);
/* Was v evicted for keys and values of a lower class than that of w, which spare w? */
bool yard_is_spared(const yard *y, uint32_t w, uint32_t v);

/* After an event; `planned`: after an iteration. */
void yard_look(yard *y, bool planned);

#endif
