/* place.h - which model goes on which device, what has to move for it, and which of its replicas
 * serves a request.
 *
 * Pure functions over a snapshot: the planner fills in the structs, asks, and carries out the
 * answer.  The same snapshot gives the same answer everywhere: scores are integers or compared as
 * exact fractions, and what is equal is decided by the order of the devices.
 *
 * A replica may go on a device when (place_check; the first that fails is the reason)
 *     the device is not drained, and the model runs on its kind
 *     no other replica of it is there, where they have to be on distinct devices
 *     C / its share                    <=  T
 *     weights + least keys and values  <=  pages that a newcomer could have
 *     guarantees, its own included     <=  capacity - reserve
 *     shares, its own included         <=  100 percent, where it has one
 *     sum C/T + max C / min T          <=  1        (feasible.h)
 *
 * Of the devices where it may go, place_choose takes by
 *     binpack   the largest  0.2 * shares + 0.8 * memory  in use afterwards, as parts of the device
 *     spread    the smallest of the same
 *     balanced  the smallest KV pressure ratio, sum(token rate * bytes per token / TPOT) / free KV
 *               bytes, of that device afterwards.  This also keeps the largest of all devices as
 *               small as it can be: the others stay as they are, and each is better off without it.
 *
 * A share of 100 percent of a device leaves no room for another *guaranteed* share there.  It does
 * not imply the device's memory: models without a share may still be there and use what is left
 * over.  Who wants the memory too asks for it as `min`.
 *
 * Thread: any; nothing is kept. */
#ifndef INFERD_PLACE_H
#define INFERD_PLACE_H

#include "scheduler/feasible.h"
#include "inferd/status.h"
#include "scheduler/policy.h"

enum {
    PLACE_DEVICES_MAX = 64,
    PLACE_KINDS_MAX = 4,         // of devices, each with its own page size and speed
    PLACE_COPIES_MAX = 1024,     // replicas on all devices together
    PLACE_REPLICAS_MAX = 64,     // of one model
    PLACE_MOVES_MAX = 12,        // of one plan
    PLACE_TRIES_MAX = 200000,    // replicas tried on devices for a plan nobody waits for
    PLACE_SHARE_PERCENT = 20,    // part of the shares in the score, the rest is memory
    PLACE_PACK_PERCENT = 50,     // of the target: so full is a replica before the next one is used
    PLACE_CALM_TPOT_US = 1000000 // of a model without a target, for its KV pressure
};

#define PLACE_NOWHERE    UINT32_MAX
#define PLACE_NO_WEIGHTS UINT32_MAX // weight_pages: the model does not run on this kind

typedef struct place_device {
    uint32_t kind; // below PLACE_KINDS_MAX
    bool drained;  // takes nothing new
    uint64_t page_bytes;
    uint32_t capacity_pages, reserve_pages; // the reserve is never guaranteed to anybody
    uint32_t free_pages;                    // nobody's, or lent and could be taken back
    uint32_t guaranteed_pages;              // sum of min
    uint32_t share_percent;                 // sum of guaranteed shares
    feasible_load load;                     // steps and targets of the models there
    uint64_t pressure;                      // sum of place_pressure of the models there
} place_device;

/* What one replica needs on a device of one kind. */
typedef struct place_need {
    uint32_t weight_pages;
    uint32_t kv_pages;  // least of keys and values that makes sense
    uint32_t min_pages; // guaranteed to it; may include weights, as the operator says
    uint32_t cost_us;   // C: a decode step
} place_need;

typedef struct place_wanted {
    place_need need[PLACE_KINDS_MAX];
    uint32_t share_percent;          // of each device; 0 = no guarantee
    uint32_t period_us;              // T: target per token; 0 = none
    uint64_t pressure;               // place_pressure of one replica
    uint32_t n_replicas;             // in all, those placed already included
    bool distinct;                   // each on a device of its own
    bool all;                        // all or nothing
    uint8_t here[PLACE_DEVICES_MAX]; // replicas placed already, which stay
} place_wanted;

typedef enum place_reason {
    PLACE_OK,
    PLACE_DRAINED,
    PLACE_KIND,
    PLACE_TAKEN, // a replica of it is there already
    PLACE_SLOW,  // C / share > T
    PLACE_MEMORY,
    PLACE_GUARANTEE,
    PLACE_SHARE,
    PLACE_DEADLINES // the admission inequality
} place_reason;

/* Why not; `need` and `have` are pages, percent or ppm, as the reason says. */
typedef struct place_why {
    place_reason reason;
    uint64_t need, have;
    uint64_t page_bytes;
    feasible_share share; // PLACE_SLOW
    uint64_t sum_ppm;     // PLACE_DEADLINES: sum C/T of `need`
} place_why;

/* One replica more on this device, where n_here of the same model are.  `why` may be NULL. */
bool place_check(const place_device *d, const place_wanted *w, uint32_t n_here, place_why *why);
/* "shares: 110 % with its own > 100 %" */
void place_say(const place_why *why, char *text, size_t text_bytes);
/* The snapshot with one replica more, where place_check allowed it. */
void place_add(place_device *d, const place_wanted *w);

/* rate in tokens per 1000 s, so that rare requests count; bytes/s per s of target. */
uint64_t place_pressure(uint64_t tokens_per_1000s, uint64_t token_bytes, uint32_t tpot_us);

/* Score of a device with one replica more, in millionths; larger is fuller. */
uint64_t place_score(const place_device *d, const place_wanted *w);

/* Devices for the replicas that are still missing, at most PLACE_REPLICAS_MAX, in the order in
 * which they were chosen.  Returns how many were found: all, or fewer (0 with `all`), and then whys
 * [n_devices], when not NULL, says for each device why it does not take the next one. */
uint32_t place_choose(const place_device *devices, uint32_t n_devices, const place_wanted *w,
                      policy_placement policy, uint32_t *chosen, place_why *whys);

/* The k-th of n even parts of what is promised on several devices.  What does not divide into
 * granules goes one granule each to the first ones, and what is less than a granule to the first:
 * the sum is exact, and the first part is the largest. */
uint64_t place_part(uint64_t total, uint64_t granule, uint32_t n, uint32_t k);

/* ---- moves ---- */

/* One replica on one device. */
typedef struct place_copy {
    uint32_t model_idx, device_idx;
    bool pinned; // does not move
} place_copy;

typedef struct place_move {
    uint32_t copy_idx; // in copies
    uint32_t from, to; // devices
} place_move;

typedef struct place_plan {
    uint32_t device_idx; // where the newcomer fits afterwards
    uint32_t n_moves;
    place_move moves[PLACE_MOVES_MAX]; // in this order
    uint64_t moved_bytes;              // of weights
    uint32_t n_tries;                  // replicas tried on devices
} place_plan;

/* `empty` are the devices without any of these copies; whatever else is there counts.  Here they
 * are with them: free_pages are those beyond the least that each copy needs. */
void place_fill(const place_device *empty, uint32_t n_devices, const place_wanted *models,
                const place_copy *copies, uint32_t n_copies, place_device *out);

/* Moves that make room for one replica more of model_idx.  Each is made target first: the copy is
 * placed on `to` while the one on `from` is still there, both are counted, then that one leaves. So
 * every step of the plan is feasible, no request waits, and stopping after any move is safe.
 *
 * The search is greedy: for each device, while the newcomer does not fit, take the move off it, or
 * the pair of moves (one replica leaves another device, maybe to this one; one from here takes its
 * place), that leaves least missing.  Among devices the plan that moves the fewest bytes wins, then
 * the order of devices.  No plan within PLACE_MOVES_MAX and about n_tries_max: false; there may be
 * a cleverer one.
 *
 * How good that is: with models of up to a fifth of a device and 80 % in use, what it makes room
 * for is more than nine tenths of all that is free anywhere; with models of half a device and 90 %
 * in use it falls below that at times. */
bool place_plan_moves(const place_device *empty, uint32_t n_devices, const place_wanted *models,
                      const place_copy *copies, uint32_t n_copies, uint32_t model_idx,
                      uint32_t n_tries_max, place_plan *plan);

/* ---- routing ---- */

typedef struct place_replica {
    uint32_t device_idx;
    uint32_t prefix_tokens; // of the prompt that are cached there
    uint64_t queue_us;      // predicted: until its first row is computed
    uint64_t prompt_us;     // predicted: for the rest of the prompt
    bool passes_admission;  // it has pages and time for it
    bool draining;          // takes nothing new
} place_replica;

/* The replica that serves a request, or PLACE_NOWHERE: none takes it now.  Only those count that
 * are not draining and pass admission; the predicted TTFT is queue_us + prompt_us.
 *
 *   1. Of those whose TTFT meets the target: the one with the longest cached prefix.
 *   2. With equally long ones: the fullest whose TTFT is at most half of the target.  So the last
 *      replica gets nothing while the others do, becomes empty, and can be removed.  Half is well
 *      below where a replica would be added: filling one up never looks like a need for more.
 *   3. Otherwise, or without a target (0): the least TTFT.
 * What is equal goes to the first device. */
uint32_t place_route(const place_replica *replicas, uint32_t n, uint64_t ttft_max_us);

#endif
