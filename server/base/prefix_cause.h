/* prefix_cause.h - why a prompt has no more tokens in common with an earlier one (transcripts.h).
 *
 * Thread: any. */
#ifndef INFERD_PREFIX_CAUSE_H
#define INFERD_PREFIX_CAUSE_H

typedef enum prefix_cause {
    PREFIX_FIRST,       // nothing was computed before: of this model and scope
    PREFIX_GROWN,       // the earlier one ends there: nothing was lost
    PREFIX_REASONING,   // reasoning of an earlier turn is not in it any more
    PREFIX_ANSWER,      // an answer came back with another text
    PREFIX_RETOKENISED, // the text is the same, the tokens are not
    PREFIX_CHANGED,     // other text
    PREFIX_EVICTED,     // keys and values were computed, and are not cached
    PREFIX_NOT_KEPT,    // more is cached than any earlier one that is known
    PREFIX_CAUSES
} prefix_cause;

static inline const char *prefix_cause_name(prefix_cause cause) {
    static const char *const names[PREFIX_CAUSES] = {
        "first",       "grown",   "reasoning_dropped", "answer_changed",
        "retokenised", "changed", "evicted",           "not_kept"};
    return names[cause];
}

#endif
