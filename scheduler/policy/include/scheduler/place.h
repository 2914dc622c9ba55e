/* place.h - placement: which model goes on which device, which replicas have to move for it, and
 * which replica serves a request.
 *
 * Pure functions over a snapshot: the planner fills in the structs, asks, and carries out the
 * answer.  The same snapshot gives the same answer everywhere: scores are integers or compared as
 * exact fractions, and ties are broken by the order of the devices.
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
 *               bytes, of that device afterwards.  This also keeps the largest ratio of all devices
 *               as small as possible: the other devices do not change.
 *
 * A share of 100 percent of a device leaves no room for another *guaranteed* share there.  It does
 * not imply the device's memory: models without a share may still be there and use the rest of the
 * time.  A model that needs the memory too gets it as `min`.
 *
 * Thread: any; no state is kept. */
#ifndef INFERD_PLACE_H
#define INFERD_PLACE_H

#include "scheduler/feasible.h"
#include "inferd/status.h"
#include "scheduler/policy.h"

enum {
    PLACE_DEVICES_MAX = 64,
    PLACE_KINDS_MAX = 4,     // of devices, each with its own page size and speed
    PLACE_COPIES_MAX = 1024, // replicas on all devices together
    PLACE_REPLICAS_MAX = 64, // of one model
    PLACE_MOVES_MAX = 12,    // of one plan
    PLACE_TRIES_MAX =
        200000, // replicas tried on devices per plan, when no request waits for the plan
    PLACE_SHARE_PERCENT = 20, // part of the shares in the score, the rest is memory
    PLACE_PACK_PERCENT =
        50, // of the target: up to this a replica is filled before the next one is used
    PLACE_CALM_TPOT_US = 1000000 // of a model without a target, for its KV pressure
};

#define PLACE_NOWHERE    UINT32_MAX
#define PLACE_NO_WEIGHTS UINT32_MAX // weight_pages: the model does not run on this kind

typedef struct place_device {
    uint32_t kind; // below PLACE_KINDS_MAX
    bool drained;  // takes no new replica
    uint64_t page_bytes;
    uint32_t capacity_pages, reserve_pages; // the reserve is never guaranteed
    uint32_t free_pages;                    // unused, or lent and reclaimable
    uint32_t guaranteed_pages;              // sum of min
    uint32_t share_percent;                 // sum of guaranteed shares
    feasible_load load;                     // steps and targets of the models there
    uint64_t pressure;                      // sum of place_pressure of the models there
} place_device;

/* What one replica needs on a device of one kind. */
typedef struct place_need {
    uint32_t weight_pages;
    uint32_t kv_pages;  // the least for keys and values that is useful
    uint32_t min_pages; // its guarantee; may include weights, as the operator says
    uint32_t cost_us;   // C: a decode step
} place_need;

typedef struct place_wanted {
    place_need need[PLACE_KINDS_MAX];
    uint32_t share_percent;          // of each device; 0 = no guarantee
    uint32_t period_us;              // T: target per token; 0 = none
    uint64_t pressure;               // place_pressure of one replica
    uint32_t n_replicas;             // in all, including those already on devices
    bool distinct;                   // each on a device of its own
    bool all;                        // all or nothing
    uint8_t here[PLACE_DEVICES_MAX]; // replicas on devices already, which stay
} place_wanted;

typedef enum place_reason {
    PLACE_OK,
    PLACE_DRAINED,
    PLACE_KIND,
    PLACE_TAKEN, // a replica of the same model is there already
    PLACE_SLOW,  // C / share > T
    PLACE_MEMORY,
    PLACE_GUARANTEE,
    PLACE_SHARE,
    PLACE_DEADLINES // the admission inequality
} place_reason;

/* Why not; the unit of `need` and `have` (pages, percent or ppm) depends on the reason. */
typedef struct place_why {
    place_reason reason;
    uint64_t need, have;
    uint64_t page_bytes;
    feasible_share share; // PLACE_SLOW
    uint64_t sum_ppm;     // PLACE_DEADLINES: sum C/T of `need`
} place_why;

/* Check one more replica on this device, which has n_here of the same model.  `why` may be NULL. */
bool place_check(const place_device *d, const place_wanted *w, uint32_t n_here, place_why *why);
/* "shares: 110 % including its own > 100 %" */
void place_say(const place_why *why, char *text, size_t text_bytes);
/* Add one more replica to the snapshot, where place_check allowed it. */
void place_add(place_device *d, const place_wanted *w);

/* Rate in tokens per 1000 s, so that rare requests count; result in bytes/s per s of target. */
uint64_t place_pressure(uint64_t tokens_per_1000s, uint64_t token_bytes, uint32_t tpot_us);

/* Score of a device with one more replica, in millionths; larger is fuller. */
uint64_t place_score(const place_device *d, const place_wanted *w);

/* Chooses devices for the replicas still missing, at most PLACE_REPLICAS_MAX, in the order of
 * choice.  Returns how many were found: all, or fewer (0 with `all`), and then whys [n_devices],
 * when not NULL, says for each device why it does not take the next one. */
uint32_t place_choose(const place_device *devices, uint32_t n_devices, const place_wanted *w,
                      policy_placement policy, uint32_t *chosen, place_why *whys);

/* The k-th of n even parts of a guarantee over several devices.  The remainder of whole granules
 * goes one granule each to the first parts, and less than a granule to the first: the sum is exact,
 * and the first part is the largest. */
uint64_t place_part(uint64_t total, uint64_t granule, uint32_t n, uint32_t k);

/* ---- moves ---- */

/* One replica on one device. */
typedef struct place_copy {
    uint32_t model_idx, device_idx;
    bool pinned; // may not move
} place_copy;

typedef struct place_move {
    uint32_t copy_idx; // in copies
    uint32_t from, to; // devices
} place_move;

typedef struct place_plan {
    uint32_t device_idx; // where the new replica fits afterwards
    uint32_t n_moves;
    place_move moves[PLACE_MOVES_MAX]; // in this order
    uint64_t moved_bytes;              // of weights
    uint32_t n_tries;                  // replicas tried on devices
} place_plan;

/* Add the copies to `empty`, the devices without any of them (their other contents count).  In the
 * result, free_pages are those beyond the least that each copy needs. */
void place_fill(const place_device *empty, uint32_t n_devices, const place_wanted *models,
                const place_copy *copies, uint32_t n_copies, place_device *out);

/* Moves that make room for one more replica of model_idx.  Each move brings up its target first:
 * the copy is placed on `to` while the one on `from` is still there and both count, then the old
 * one leaves.  So every step of the plan is feasible, no request waits, and stopping after any move
 * is safe.
 *
 * The search is greedy: for each device, while the new replica does not fit, take the move off it,
 * or the pair of moves (one replica leaves another device, maybe to this one; one from here takes
 * its room), that leaves the least missing.  Of the plans for all devices the one that moves the
 * fewest bytes wins, then the order of devices.  False: no plan within PLACE_MOVES_MAX and about
 * n_tries_max; a better search might find one.
 *
 * Quality: with models of up to a fifth of a device and 80 % in use, it finds room for more than
 * nine tenths of all that is free anywhere; with models of half a device and 90 % in use it falls
 * below that at times. */
bool place_plan_moves(const place_device *empty, uint32_t n_devices, const place_wanted *models,
                      const place_copy *copies, uint32_t n_copies, uint32_t model_idx,
                      uint32_t n_tries_max, place_plan *plan);

/* ---- routing ---- */

typedef struct place_replica {
    uint32_t device_idx;
    uint32_t prefix_tokens; // of the prompt that are cached there
    uint64_t queue_us;      // predicted: until its first row is computed
    uint64_t prompt_us;     // predicted: for the rest of the prompt
    bool passes_admission;  // it has pages and time for the request
    bool draining;          // takes no new requests
} place_replica;

/* The replica that serves a request, or PLACE_NOWHERE: none takes it now.  Only replicas count that
 * are not draining and pass admission; the predicted TTFT is queue_us + prompt_us.
 *
 *   1. Of those with a TTFT within the target: the one with the longest cached prefix.
 *   2. With equally long ones: the fullest with a TTFT of at most half of the target.  So the last
 *      replica gets nothing while the others have room, becomes empty, and can be removed.  Half is
 *      well below the threshold for one more replica: filling one up never triggers that.
 *   3. Otherwise, or without a target (0): the least TTFT.
 * Ties go to the first device. */
uint32_t place_route(const place_replica *replicas, uint32_t n, uint64_t ttft_max_us);

#endif
