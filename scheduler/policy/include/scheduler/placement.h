/* placement.h - placement: which model goes on which device, which replicas have to move for it,
 * and which replica serves a request.
 *
 * Pure functions over a snapshot: the planner fills in the structs, asks, and carries out the
 * answer.  The same snapshot gives the same answer everywhere: scores are integers or compared as
 * exact fractions, and ties are broken by the order of the devices.
 *
 * A replica may go on a device when (placement_check; the first that fails is the reason)
 *     the device is not drained, and the model runs on its kind
 *     no other replica of it is there, where they have to be on distinct devices
 *     C / its share                    <=  T
 *     weights + least keys and values  <=  pages that a new model could have
 *     guarantees, its own included     <=  capacity
 *     shares, its own included         <=  100 percent, where it has one
 *     sum C/T + max C / min T          <=  1        (feasible.h)
 *
 * Of the devices where it may go, placement_choose takes the one with the smallest KV pressure
 * ratio afterwards, sum(token rate * bytes per token / TPOT) / free KV bytes.  This also keeps the
 * largest ratio of all devices as small as possible: the other devices do not change.
 *
 * A share of 100 percent of a device leaves no room for another *guaranteed* share there.  It does
 * not imply the device's memory: models without a share may still be there and use the rest of the
 * time.  A model that needs the memory too gets it as `min`.
 * Thread: any; no state is kept. */
#ifndef INFERD_PLACEMENT_H
#define INFERD_PLACEMENT_H

#include "scheduler/feasible.h"
#include "inferd/status.h"
#include "scheduler/policy.h"

enum {
    PLACEMENT_DEVICES_MAX = 64,
    PLACEMENT_KINDS_MAX = 4,         // of devices, each with its own page size and speed
    PLACEMENT_COPIES_MAX = 1024,     // replicas on all devices together
    PLACEMENT_REPLICAS_MAX = 64,     // of one model
    PLACEMENT_MOVES_MAX = 12,        // of one plan
    PLACEMENT_TRIES_MAX = 200000,    // replicas tried for a plan that no request waits for
    PLACEMENT_PACK_PERCENT = 50,     // of the target: fills a replica before the next
    PLACEMENT_CALM_TPOT_US = 1000000 // of a model without a target, for its KV pressure
};

#define PLACEMENT_NOWHERE    UINT32_MAX
#define PLACEMENT_NO_WEIGHTS UINT32_MAX // weight_pages: the model does not run on this kind

typedef struct placement_device {
    uint32_t kind; // below PLACEMENT_KINDS_MAX
    bool drained;  // takes no new replica
    uint64_t page_bytes;
    uint32_t capacity_pages;
    uint32_t free_pages;       // unused, or lent and reclaimable
    uint32_t guaranteed_pages; // sum of min
    uint32_t share_percent;    // sum of guaranteed shares
    feasible_load load;        // steps and targets of the models there
    uint64_t pressure;         // sum of placement_pressure of the models there
} placement_device;

/* What one replica needs on a device of one kind. */
typedef struct placement_need {
    uint32_t weight_pages;
    uint32_t kv_pages;  // the least for keys and values that is useful
    uint32_t min_pages; // its guarantee; may include weights, as the operator says
    uint32_t cost_us;   // C: a decode step
} placement_need;

typedef struct placement_wanted {
    placement_need need[PLACEMENT_KINDS_MAX];
    uint32_t share_percent;              // of each device; 0 = no guarantee
    uint32_t period_us;                  // T: target per token; 0 = none
    uint64_t pressure;                   // placement_pressure of one replica
    uint32_t n_replicas;                 // in all, including those already on devices
    bool distinct;                       // each on a device of its own
    bool all;                            // all or nothing
    uint8_t here[PLACEMENT_DEVICES_MAX]; // replicas on devices already, which stay
} placement_wanted;

typedef enum placement_reason {
    PLACEMENT_OK,
    PLACEMENT_DRAINED,
    PLACEMENT_KIND,
    PLACEMENT_TAKEN, // a replica of the same model is there already
    PLACEMENT_SLOW,  // C / share > T
    PLACEMENT_MEMORY,
    PLACEMENT_GUARANTEE,
    PLACEMENT_SHARE,
    PLACEMENT_DEADLINES // the admission inequality
} placement_reason;

/* Why not; the unit of `need` and `have` (pages, percent or ppm) depends on the reason. */
typedef struct placement_why {
    placement_reason reason;
    uint64_t need, have;
    uint64_t page_bytes;
    feasible_share share; // PLACEMENT_SLOW
    uint64_t sum_ppm;     // PLACEMENT_DEADLINES: sum C/T of `need`
} placement_why;

/* Check one more replica on this device, which has n_here of the same model.  `why` may be NULL. */
bool placement_check(const placement_device *d, const placement_wanted *w, uint32_t n_here,
                     placement_why *why);
/* "shares: 110 % including its own > 100 %" */
void placement_say(const placement_why *why, char *text, size_t text_bytes);
/* Add one more replica to the snapshot, where placement_check allowed it. */
void placement_add(placement_device *d, const placement_wanted *w);

/* Rate in tokens per 1000 s, so that rare requests count; result in bytes/s per s of target. */
uint64_t placement_pressure(uint64_t tokens_per_1000s, uint64_t token_bytes, uint32_t tpot_us);

/* Chooses devices for the replicas still missing, at most PLACEMENT_REPLICAS_MAX, in the order of
 * choice.  Returns how many were found: all, or fewer (0 with `all`), and then whys [n_devices],
 * when not NULL, says for each device why it does not take the next one. */
uint32_t placement_choose(const placement_device *devices, uint32_t n_devices,
                          const placement_wanted *w, uint32_t *chosen, placement_why *whys);

/* The k-th of n even parts of a guarantee over several devices, exact in sum.  Remaining granules
 * go to the first parts, one each, and less than a granule to the first, which is the largest. */
uint64_t placement_part(uint64_t total, uint64_t granule, uint32_t n, uint32_t k);

/* ---- moves ---- */

/* One replica on one device. */
typedef struct placement_copy {
    uint32_t model_idx, device_idx;
    bool pinned; // may not move
} placement_copy;

typedef struct placement_move {
    uint32_t copy_idx; // in copies
    uint32_t from, to; // devices
} placement_move;

typedef struct placement_plan {
    uint32_t device_idx; // where the new replica fits afterwards
    uint32_t n_moves;
    placement_move moves[PLACEMENT_MOVES_MAX]; // in this order
    uint64_t moved_bytes;                      // of weights
    uint32_t n_tries;                          // replicas tried on devices
} placement_plan;

/* Add the copies to `empty`, the devices without any of them (their other contents count).  In the
 * result, free_pages are those beyond the least that each copy needs. */
void placement_fill(const placement_device *empty, uint32_t n_devices,
                    const placement_wanted *models, const placement_copy *copies, uint32_t n_copies,
                    placement_device *out);

/* Moves that make room for one more replica of model_idx.  Each move brings up its target first:
 * the copy is placed on `to` while the one on `from` is still there and both count, then the old
 * one leaves.  So every step of the plan is feasible, no request waits, and stopping after any move
 * is safe.
 *
 * The search is greedy: for each device, while the new replica does not fit, take the move off it,
 * or the pair of moves (one replica leaves another device, maybe to this one; one from here takes
 * its room), that leaves the least missing.  Of the plans for all devices the one that moves the
 * fewest bytes wins, then the order of devices.  False: no plan within PLACEMENT_MOVES_MAX and
 * about n_tries_max; a better search might find one.
 *
 * Quality: with models of up to a fifth of a device and 80 % in use, it finds room for more than
 * nine tenths of all that is free anywhere; with models of half a device and 90 % in use it falls
 * below that at times. */
bool placement_plan_moves(const placement_device *empty, uint32_t n_devices,
                          const placement_wanted *models, const placement_copy *copies,
                          uint32_t n_copies, uint32_t model_idx, uint32_t n_tries_max,
                          placement_plan *plan);

/* ---- routing ---- */

typedef struct placement_replica {
    uint32_t device_idx;
    uint32_t prefix_tokens; // of the prompt that are cached there
    uint64_t queue_us;      // predicted: until its first row is computed
    uint64_t prompt_us;     // predicted: for the rest of the prompt
    bool passes_admission;  // it has pages and time for the request
    bool draining;          // takes no new requests
} placement_replica;

/* The replica that serves a request, or PLACEMENT_NOWHERE: none takes it now.  Only replicas count
 * that are not draining and pass admission; the predicted TTFT is queue_us + prompt_us.
 *
 *   1. Of those with a TTFT within the target: the one with the longest cached prefix.
 *   2. With equally long ones: the fullest with a TTFT of at most half of the target.  So the last
 *      replica gets nothing while the others have room, becomes empty, and can be removed.  Half is
 *      well below the threshold for one more replica: filling one up never triggers that.
 *   3. Otherwise, or without a target (0): the least TTFT.
 * Ties go to the first device. */
uint32_t placement_route(const placement_replica *replicas, uint32_t n, uint64_t ttft_max_us);

#endif
