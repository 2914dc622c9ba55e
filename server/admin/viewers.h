/* viewers.h - GET /admin/watch: the state of the daemon as a stream, for the page (docs/page.md).
 *
 *   every VIEWERS_EVERY_MS   rows of the state, page codes, history, events
 *                            > compared with what was sent last > one delta for all viewers
 *   a new viewer             gets everything first: `event: all`
 *
 * All viewers see the same, so the comparison is made once, whatever their number; without viewers
 * nothing is made and no memory is held.  A viewer that reads too slowly is left out until it has
 * read what it was sent, and then gets everything again.  A delta has room for VIEWERS_DELTA_BYTES;
 * other changes come with the next ones.  After a change of the configuration, viewers that came
 * with a key have to come again with it.
 * Thread: front. */
#ifndef INFERD_VIEWERS_H
#define INFERD_VIEWERS_H

#include "app.h"
#include "change.h"

enum {
    VIEWERS_MAX = 16,
    VIEWERS_EVERY_MS = 500,
    VIEWERS_ROWS_MAX = 256,         // of one kind that are looked at each time
    VIEWERS_BEHIND_MAX = 4,         // deltas that wait for a reader before it gets everything again
    VIEWERS_TENANTS_MAX = 512,      // of the configuration, the first ones
    VIEWERS_EVENTS_MAX = 24,        // of one delta
    VIEWERS_DELTA_BYTES = 44 * 1024 // of one delta, but for the last row: 88 KB/s
};

typedef struct viewers viewers;

viewers *viewers_create(app *a, changer *ch); // both borrowed; NULL: no memory
void viewers_destroy(viewers *v);             // accepts NULL; after http_close
/* Regularly; sends what is due. */
void viewers_tick(viewers *v, uint64_t now_us);
/* Ends all streams: the daemon ends. */
void viewers_end(viewers *v);
void viewers_add(viewers *v, http_request *rq); // a new viewer, or an error answer

#endif
