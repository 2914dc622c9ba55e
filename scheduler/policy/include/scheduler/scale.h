/* scale.h - how many replicas of a model there should be.
 *
 * Called once per model and control period, with measurements and predictions of that period:
 *
 *     one more   the predicted TTFT (p95) was over 80 % of its target for 2 periods; for a model
 *                without a target, more than 5 requests per replica waited
 *     one less   for 60 s neither of these, and the work of n replicas would fill n - 1 of them at
 *                most to 60 %
 *
 * with at most one action per 5 s, not while a replica is still being made, and never beyond
 * replicas_min and replicas_max; if the number is outside of these, it goes back without waiting
 * for evidence.  The last replica stays: an idle model leaves its device by its keep_alive, and a
 * request brings it back.
 *
 * Up is fast and down is slow, so it does not flap: each removal needs 60 s of calm of its own, and
 * bursts that come more often than that keep the replicas they needed.  If they come a little less
 * often, one replica is removed in each pause and missed in the next burst; so a removal that is
 * regretted within SCALE_REGRET_US doubles the calm for the next one, up to SCALE_DOWN_MAX_US, and
 * one that is not regretted halves it again.
 *
 * `desired` is for an operator or autoscaler that may add machines: the replicas that the load
 * needs, whether or not a device has room, and not limited by replicas_max, which is about this
 * daemon.  It rises when one more is needed.  It follows the prediction, because busy replicas
 * measure at most one device-us per us each, however many requests wait, while twice the replicas
 * halve the time in the queue.  It falls to the present number after 60 s in which that was enough,
 * and with each replica that is removed.
 * Thread: that of the planner; a scale_state belongs to one model. */
#ifndef INFERD_SCALE_H
#define INFERD_SCALE_H

#include "inferd/base.h"

enum {
    SCALE_PERIOD_US = 1000000, // control period; the caller keeps to it
    SCALE_UP_PERCENT = 80,     // of the TTFT target
    SCALE_UP_PERIODS = 2,
    SCALE_WAITING_MAX = 5,    // per replica, where there is no target
    SCALE_DOWN_PERCENT = 60,  // of the replicas that would be left
    SCALE_DOWN_US = 60000000, // for this long
    SCALE_DOWN_MAX_US = 480000000,
    SCALE_REGRET_US = 600000000,
    SCALE_ACTION_US = 5000000,
    SCALE_GROWTH_MAX = 4, // `desired` is at most that many times the replicas that serve
    SCALE_DESIRED_MAX = 1024
};

#define SCALE_ONE_PPM UINT64_C(1000000)

/* Zeroed: nothing was observed yet. */
typedef struct scale_state {
    uint32_t n_above;        // periods in a row in which one more was needed
    bool calm, below, acted; // whether these are valid:
    uint64_t calm_since_us;  // since then the present replicas are enough
    uint64_t below_since_us; // since then one replica fewer would be enough
    uint64_t acted_us;       // time of the last action
    bool removed;            // a removal that is neither regretted nor accepted yet ...
    uint64_t removed_us;     // ... was at this time
    uint32_t n_regrets;      // the calm is SCALE_DOWN_US, doubled that often
    uint32_t desired;
} scale_state;

typedef struct scale_input {
    uint64_t now_us;
    uint64_t ttft_p95_us, ttft_max_us;   // predicted; target, 0 = none
    uint32_t n_replicas;                 // that serve, and those being made
    uint32_t n_starting;                 // of those, the ones being made
    uint32_t n_waiting, n_running;       // requests
    uint64_t load_ppm;                   // device-us per us of all replicas together
    uint32_t replicas_min, replicas_max; // max 0 = no limit
    bool feasible;                       // a device would take one more
} scale_input;

typedef enum scale_why {
    SCALE_STEADY,
    SCALE_SLOW,    // +1: over the target, or too many wait
    SCALE_MIN,     // +1: fewer than replicas_min
    SCALE_IDLE,    // -1: fewer would do
    SCALE_MAX,     // -1: more than replicas_max
    SCALE_LIMIT,   // +1 is needed, but replicas_max are there
    SCALE_NO_ROOM, // +1 is needed, but no device takes it
    SCALE_SOON     // a step is due, but the last action is too recent or under way
} scale_why;

typedef struct scale_decision {
    int step; // -1, 0, +1
    scale_why why;
    uint32_t desired;
} scale_decision;

/* The caller carries the step out.  If it cannot, the next input asks for it again. */
scale_decision scale_decide(scale_state *s, const scale_input *in);

#endif
