/* gate.h - admission: limits and quotas of tenants, checked before a request enters the engine.
 *
 *   gate_admit     before any submission: the request takes all that it may need, or is refused
 *   gate_hold      one of its sequences is in the engine, in this slot
 *   gate_on_done   that sequence has ended; with the last one the request is settled
 *
 * How requests count: a request counts once per choice (prompts times n).  Its tokens are those of
 * each prompt once, whatever n is, and those of all outputs.  At admission an output counts with
 * max_tokens, or else with the usual output of its model (output_estimate.h), but no more than is
 * left of the day and the month; at the end it counts with the computed tokens.  A prompt counts as
 * computed when the first step with it was planned: then it counts in full, even if the client
 * leaves in the middle, and including tokens from the prefix cache.  A request that ends before
 * that costs no tokens.
 *
 * If its client leaves, the last sequence of a request ends some steps later.  Until then it runs
 * and counts as running, so that a client gains nothing by leaving and asking again.
 *
 * The use of days and months is stored in a file (quota_file.h), written by a thread of its own,
 * because a disk may be slow.
 *
 *   front    gate_tick > snapshot > writer.text ... gate_tick > collected
 *   writer                          quota_file_write
 *
 * Tenants are the app's numbers; requests without a tenant are not checked here.
 * Thread: front. */
#ifndef INFERD_GATE_H
#define INFERD_GATE_H

#include "api_error.h"
#include "config.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "scheduler/gen.h"

enum {
    GATE_PROMISES_MAX = 4096, // reservations that are found by the body of the retry
    GATE_LINES_BYTES = 512    // all x-ratelimit-* headers
};
#define GATE_QUOTA_FILE "quotas.json" // in state_dir

typedef struct gate gate;
typedef struct gate_ticket gate_ticket;
struct limits; // tenant_limits.h, like the next
struct limits_spec;

/* n_slots: sequences that may be in the engine; n_names: upper bound of name_idx.
 * state_dir: folder of the quota file, created if missing; NULL: in memory only.  INFERD_EIO,
 * INFERD_EFORMAT: the file exists and cannot be used; the text names it. */
inferd_status gate_create(const char *state_dir, uint32_t n_slots, uint32_t n_names, gate **out,
                          inferd_err *err);
/* Writes unsaved use to disk; running requests count with their reserved tokens.  Accepts NULL. */
void gate_destroy(gate *g);

/* Sets the limits of `c` for the tenants of these names; the index of a name is its number.
 * Tenants that are no longer in `c` keep their limits.  False: nothing changed.  Accepts NULL. */
bool gate_update(gate *g, char *const *names, uint32_t n_names, const inferd_config *c,
                 inferd_err *problem);
/* Call every 100 ms or so: writes the file when it is due.  Accepts NULL. */
void gate_tick(gate *g, uint64_t now_us);

/* A request at admission. */
typedef struct gate_ask {
    uint32_t tenant;
    uint32_t name_idx;            // of its model
    uint32_t context;             // of its model
    uint64_t mark;                // gate_mark; 0: unknown
    bool first_try;               // the client says that it is no retry
    gen_request *const *requests; // [n_requests] choices, those of one prompt together
    uint32_t n_requests, n_per_prompt;
    uint64_t arrival_us;
} gate_ask;

/* True: for each choice gate_hold or gate_drop must take *out once.  False: *error has the
 * reason. */
bool gate_admit(gate *g, const gate_ask *ask, uint64_t now_us, int64_t unix_s, gate_ticket **out,
                api_error *error);
void gate_hold(gate *g, gate_ticket *t, uint32_t slot, uint32_t choice_idx);
/* n of its choices were never submitted to the engine. */
void gate_drop(gate *g, gate_ticket *t, uint32_t n, uint64_t now_us, int64_t unix_s);
/* The GEN_EV_DONE of a slot; without a ticket there it is ignored. */
void gate_on_done(gate *g, uint32_t slot, const gen_event *ev, uint64_t now_us, int64_t unix_s);
/* -- queue slots and a full queue: drain.h; also for requests without a tenant -- */
/* May n more sequences enter a queue of n_max slots, of which n_spare are for reservations only?
 * False: the client should return in *after_s. */
bool gate_enter(gate *g, uint64_t mark, bool first_try, uint32_t n, uint32_t n_max,
                uint32_t n_spare, uint64_t now_us, unsigned *after_s);
/* The request got a queue slot that was kept for its share: drops its reservation. */
void gate_forget(gate *g, uint64_t mark);
/* The request was admitted, but the engine's queue was full: returns its delay, with a
 * reservation. */
unsigned gate_send_away(gate *g, uint64_t mark, uint32_t n, uint32_t n_max, uint64_t now_us);
/* All reservations are taken: further clients cannot be recognised when they return. */
bool gate_is_flooded(const gate *g);
/* Records the number of used queue slots, and how many became free just now. */
void gate_note_places(gate *g, uint32_t n_used, uint32_t n_ended, uint64_t now_us);

/* Records an output of this model that ended by itself. */
void gate_note_output(gate *g, uint32_t name_idx, uint32_t n_tokens);

/* The x-ratelimit-* headers of a tenant as "Name: value\n" lines; "": no such limits. */
void gate_write_headers(gate *g, uint32_t tenant, uint64_t now_us, char out[GATE_LINES_BYTES]);
/* For metrics and administration; only limits_set_tenant may change it. */
struct limits *gate_limits(gate *g);

/* Tokens that a request reserves under these limits.  A max_tokens of the request counts in full;
 * an estimate is cut to the smallest limit, because an estimate alone must not make a request too
 * large. */
uint64_t gate_count_tokens(const struct limits_spec *spec, uint64_t prompt_tokens,
                           uint64_t output_tokens, uint32_t n_outputs, bool estimated);
/* A hash that a request and its retries have in common.  The key is secret, so no client can choose
 * the mark of another.  Never 0.  Any thread. */
uint64_t gate_mark(const unsigned char key[16], uint32_t tenant, bytes address, bytes body);
/* SipHash-2-4: without the key it is not possible to choose texts that collide.  Any thread. */
uint64_t gate_hash(const unsigned char key[16], const char *p, size_t n);

#endif
