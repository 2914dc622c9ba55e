/* admission.h - admission: everything that can refuse a request before it is in a queue.
 *
 *   admission_ask       admitted, or an error with its reason; admission.c has the order of checks
 *   admission_hold      one of its sequences was sent to a device, under this number
 *   admission_drop      some of them never were
 *   admission_on_done   that sequence has ended: its queue slot is free; the last one settles all
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
 * The use of days and months is in a file (quota_file.h), written by a thread: a disk may be slow.
 *
 *   front    admission_tick > snapshot > writer.text ... admission_tick > collected
 *   writer                          quota_file_write
 *
 * Tenants are the app's numbers; a request without a tenant has no limits.
 * Thread: front. */
#ifndef INFERD_ADMISSION_H
#define INFERD_ADMISSION_H

#include "api_error.h"
#include "config.h"
#include "fleet.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "scheduler/gen.h"
#include "scheduler/queue_slots.h"

enum { ADMISSION_LINES_BYTES = 512 };      // all x-ratelimit-* headers
#define ADMISSION_QUOTA_FILE "quotas.json" // in state_dir

typedef struct admission admission;
typedef struct admission_ticket admission_ticket;
struct limits; // tenant_limits.h, like the next
struct limits_spec;

/* n_slots: sequences that may be in the engine; n_names: upper bound of name_idx.  The queue has no
 * slots before admission_queue_slots was set up.
 * state_dir: folder of the quota file, created if missing; NULL: in memory only.  INFERD_EIO,
 * INFERD_EFORMAT: the file exists and cannot be used; the text names it. */
inferd_status admission_create(const char *state_dir, uint32_t n_slots, uint32_t n_names,
                               admission **out, inferd_err *err);
/* Writes unsaved use to disk; running requests count with their reserved tokens.  Accepts NULL. */
void admission_destroy(admission *g);

/* Sets the limits of `c` for the tenants of these names; the index of a name is its number.
 * Tenants that are no longer in `c` keep their limits.  False: nothing changed.  Accepts NULL. */
bool admission_update(admission *g, char *const *names, uint32_t n_names, const inferd_config *c,
                      inferd_err *problem);
/* Call every 100 ms or so: writes the file when it is due.  Accepts NULL. */
void admission_tick(admission *g, uint64_t now_us);

/* A request that asks. */
typedef struct admission_request {
    api_fault closed; // API_DRAINING, API_DEVICE_LOST: the daemon takes nothing new; or API_OK
    const fleet *fleet;
    int tenant;                   // -1: none
    const char *input;            // the field of the prompt: "messages", "prompt"
    uint32_t name_idx;            // of its model
    uint32_t context;             // of its model
    bool again;                   // the client says that it is a retry
    gen_request *const *requests; // [n_requests] choices, those of one prompt together
    uint32_t n_requests, n_per_prompt;
    uint64_t arrival_us;
} admission_request;

/* An admitted request: admission_hold or admission_drop must take each choice of it once. */
typedef struct admission_grant {
    queue_slot qslot;         // of every choice
    admission_ticket *ticket; // NULL: no tenant
} admission_grant;

/* True: it may be submitted.  devices [prompts]: where each prompt fits, for fleet_send.  False:
 * *error has the reason, and nothing was taken. */
bool admission_ask(admission *g, const admission_request *ask, uint64_t now_us, int64_t unix_s,
                   admission_grant *out, uint64_t *devices, api_error *error);
/* The part of it that is about the limits of a tenant, which must be one. */
bool admission_ask_limits(admission *g, const admission_request *ask, uint64_t now_us,
                          int64_t unix_s, admission_ticket **out, api_error *error);
void admission_hold(admission *g, const admission_grant *grant, uint32_t slot, uint32_t choice_idx);
/* n of its choices were never sent to a device. */
void admission_drop(admission *g, const admission_grant *grant, uint32_t n, uint64_t now_us,
                    int64_t unix_s);
/* The GEN_EV_DONE of a slot; without a sequence there it is ignored. */
void admission_on_done(admission *g, uint32_t slot, const gen_event *ev, uint64_t now_us,
                       int64_t unix_s);

/* -- queue slots -- */
/* Its owner may grow it and keep slots for shares. */
queue_slots *admission_queue_slots(admission *g);
/* The request was admitted, but the engine's queue was full: its Retry-After. */
unsigned admission_refuse(admission *g, uint32_t n, uint64_t now_us);
/* Not 0: a request of this tenant (-1: none) that asks for `best` or less is refused whatever it
 * holds, and the line is longer than a minute: its body need not be read.  Its Retry-After. */
unsigned admission_is_overloaded(const admission *g, int tenant, gen_class best, uint64_t now_us);

/* Records an output of this model that ended by itself. */
void admission_note_output(admission *g, uint32_t name_idx, uint32_t n_tokens);

/* The x-ratelimit-* headers of a tenant as "Name: value\n" lines; "": no such limits. */
void admission_write_headers(admission *g, uint32_t tenant, uint64_t now_us,
                             char out[ADMISSION_LINES_BYTES]);
/* For metrics and administration; only limits_set_tenant may change it. */
struct limits *admission_limits(admission *g);

/* Tokens that a request reserves under these limits.  A max_tokens of the request counts in full;
 * an estimate is cut to the smallest limit, because an estimate alone must not make a request too
 * large. */
uint64_t admission_count_tokens(const struct limits_spec *spec, uint64_t prompt_tokens,
                                uint64_t output_tokens, uint32_t n_outputs, bool estimated);
#endif
