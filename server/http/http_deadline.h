/* http_deadline.h - absolute deadlines for ten thousand connections without a heap.
 *
 * All deadlines of one kind last equally long, so a list in the order of arming is sorted: arming
 * is a push at the back, the next to expire is at the front, both O(1).  The library's own timeout
 * restarts with every byte; these do not.
 *
 * Always: each list is ascending in at_us; a deadline is in the list of its kind or in none.
 * Thread: front. */
#ifndef INFERD_HTTP_DEADLINE_H
#define INFERD_HTTP_DEADLINE_H

#include "inferd/base.h"
#include "inferd/list.h"

typedef enum deadline_kind {
    DEADLINE_HEADER, // accepted or first line seen, until the last header
    DEADLINE_BODY,   // last header until the end of the body
    DEADLINE_IDLE,   // between two requests
    DEADLINE_LEFT,   // the client has closed: only the bytes that it sent are still read
    DEADLINE_STALL,  // bytes are unsent and the client reads none
    DEADLINE_BEAT,   // a stream that has been quiet
    DEADLINE_LINGER, // a refused sender that is still sending
    DEADLINE_ACCEPT, // accepting was stopped because descriptors ran out
    DEADLINE_KINDS
} deadline_kind;

typedef struct deadline {
    list_node link;
    uint64_t at_us;
    deadline_kind kind;
} deadline;

typedef struct deadlines {
    list_node lists[DEADLINE_KINDS];
    uint64_t lasts_us[DEADLINE_KINDS];
} deadlines;

static inline void deadlines_init(deadlines *all) {
    for (int k = 0; k < DEADLINE_KINDS; k++) list_node_init(&all->lists[k]);
}
static inline void deadline_init(deadline *d) {
    list_node_init(&d->link);
}
static inline void deadline_disarm(deadline *d) {
    list_remove(&d->link);
}
static inline void deadline_arm(deadlines *all, deadline *d, deadline_kind kind, uint64_t now_us) {
    list_remove(&d->link);
    d->kind = kind;
    d->at_us = now_us + all->lasts_us[kind];
    list_push_back(&all->lists[kind], &d->link);
}
static inline bool deadline_armed(const deadline *d) {
    return list_linked(&d->link);
}

/* The front of a kind: the deadline that was armed first; NULL: none. */
static inline deadline *deadline_oldest(deadlines *all, deadline_kind kind) {
    list_node *head = &all->lists[kind];
    return list_empty(head) ? NULL : LIST_ENTRY(head->next, deadline, link);
}

/* An expired one, disarmed; NULL: none.  *next_us is then the time of the next one, 0: none. */
static inline deadline *deadline_take_expired(deadlines *all, uint64_t now_us, uint64_t *next_us) {
    *next_us = 0;
    for (int k = 0; k < DEADLINE_KINDS; k++) {
        deadline *d = deadline_oldest(all, (deadline_kind)k);
        if (d == NULL) continue;
        if (d->at_us <= now_us) {
            deadline_disarm(d);
            return d;
        }
        if (*next_us == 0 || d->at_us < *next_us) *next_us = d->at_us;
    }
    return NULL;
}

#endif
