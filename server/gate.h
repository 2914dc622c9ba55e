/* gate.h - who is let in: limits and quotas of tenants, at the door of the engine.
 *
 *     gate_admit     before anything is submitted: the request takes all it may need, or is refused
 *     gate_hold      one of its sequences is with the engine, in this slot
 *     gate_on_done   that sequence has ended; with the last one the request is settled
 *
 * What counts: a request as many as it has choices (prompts times n).  Tokens are those of each
 * prompt once, whatever n is, and those of all outputs.  Before, an output is counted with
 * max_tokens, or else with what outputs of its model usually become (output_estimate.h), but no
 * more than is left of the day and the month; afterwards with what was computed.  A prompt is
 * computed when the first step with it was planned: then it counts whole, also when its client
 * leaves in the middle, and also what the prefix cache had of it. A request that ends before that
 * costs no tokens.
 *
 * The last sequence of a request whose client left ends some steps later.  Until then it still
 * runs, and counts as running: so a client that asks and leaves gains nothing.
 *
 * Use of days and months is kept in a file (quota_file.h), written by a thread of its own, because
 * a disk may take its time.
 *
 *     front   gate_tick > snapshot > writer.text ... gate_tick > collected
 *     writer                         quota_file_write
 *
 * Tenants are the app's numbers; requests without a tenant do not come here.
 * Thread: front. */
#ifndef INFERD_GATE_H
#define INFERD_GATE_H

#include "api_error.h"
#include "config.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "scheduler/gen.h"

enum {
    GATE_PROMISES_MAX = 4096, // retries that are known by their body
    GATE_LINES_BYTES = 512    // all x-ratelimit-* headers
};
#define GATE_QUOTA_FILE "quotas.json" // in state_dir

typedef struct gate gate;
typedef struct gate_ticket gate_ticket;
struct limits; // tenant_limits.h, like the next
struct limits_spec;

/* n_slots: sequences that may be with the engine; n_names: models are counted below it.
 * state_dir: where quotas are kept, made if it is not there; NULL: in memory only.  INFERD_EIO,
 * INFERD_EFORMAT: the file is there and cannot be used; the sentence names it.  Answers of servers
 * with this server_ctx get the headers of their tenants; NULL: no server's do. */
inferd_status gate_create(const char *state_dir, uint32_t n_slots, uint32_t n_names,
                          const void *server_ctx, gate **out, inferd_err *err);
/* Writes what is not yet on disk.  Requests that still run count with what they reserved.  Accepts
 * NULL. */
void gate_destroy(gate *g);

/* The limits of `c` for the tenants of these names, which are their numbers.  Tenants that `c` has
 * no more keep what they had.  False: nothing changed.  Accepts NULL. */
bool gate_update(gate *g, char *const *names, uint32_t n_names, const inferd_config *c,
                 inferd_err *problem);
/* Every 100 ms or so: keep the file near the truth.  Accepts NULL. */
void gate_tick(gate *g, uint64_t now_us);

/* A request at the door. */
typedef struct gate_ask {
    uint32_t tenant;
    uint32_t name_idx;            // of its model
    uint32_t context;             // of its model
    uint64_t mark;                // gate_mark; 0: unknown
    bool first_try;               // its client says that it is no retry
    gen_request *const *requests; // [n_requests] choices, those of one prompt together
    uint32_t n_requests, n_per_prompt;
    uint64_t arrival_us;
} gate_ask;

/* True: *out is owed to gate_hold or gate_drop once for each choice.  False: *error says why. */
bool gate_admit(gate *g, const gate_ask *ask, uint64_t now_us, int64_t unix_s, gate_ticket **out,
                api_error *error);
void gate_hold(gate *g, gate_ticket *t, uint32_t slot, uint32_t choice_idx);
/* n of its choices never reached the engine. */
void gate_drop(gate *g, gate_ticket *t, uint32_t n, uint64_t now_us, int64_t unix_s);
/* The GEN_EV_DONE of a slot; one that is not held is ignored. */
void gate_on_done(gate *g, uint32_t slot, const gen_event *ev, uint64_t now_us, int64_t unix_s);
/* -- a full queue: drain.h; also for requests without a tenant -- */
/* May n more sequences come, n_max being all places, and n_spare those for promises only?  False:
 * come back in *after_s. */
bool gate_enter(gate *g, uint64_t mark, bool first_try, uint32_t n, uint32_t n_max,
                uint32_t n_spare, uint64_t now_us, unsigned *after_s);
/* It got a place that was kept for it: what was promised to it before is for nobody. */
void gate_forget(gate *g, uint64_t mark);
/* It was let in, and then the engine's queue was full: when to come back, with a promise. */
unsigned gate_send_away(gate *g, uint64_t mark, uint32_t n, uint32_t n_max, uint64_t now_us);
/* More wait to come back than can be known again. */
bool gate_is_flooded(const gate *g);
/* So many places are in use now, and so many came free just now. */
void gate_note_places(gate *g, uint32_t n_used, uint32_t n_ended, uint64_t now_us);

/* An output of this model that ended by itself. */
void gate_note_output(gate *g, uint32_t name_idx, uint32_t n_tokens);

/* The x-ratelimit-* headers of a tenant as "Name: value\n" lines; "": it has no such limits. */
void gate_write_headers(gate *g, uint32_t tenant, uint64_t now_us, char out[GATE_LINES_BYTES]);
/* For metrics and administration; may be changed by limits_set_tenant only. */
struct limits *gate_limits(gate *g);

/* Tokens that a request reserves under these limits.  What it wrote as max_tokens counts in full;
 * an estimate is cut to what the smallest window holds, because it alone makes nothing too large.
 */
uint64_t gate_count_tokens(const struct limits_spec *spec, uint64_t prompt_tokens,
                           uint64_t output_tokens, uint32_t n_outputs, bool estimated);
/* What a request and its retries have in common: key is secret, so nobody can choose the mark of
 * another client.  Never 0.  Any thread. */
uint64_t gate_mark(const unsigned char key[16], uint32_t tenant, bytes address, bytes body);
/* SipHash-2-4: nobody who does not know the key can choose texts that collide.  Any thread. */
uint64_t gate_hash(const unsigned char key[16], const char *p, size_t n);

#endif
