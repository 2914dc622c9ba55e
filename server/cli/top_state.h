/* top_state.h - the state of a daemon, as far as its stream told it (server/admin/viewers.h).
 *
 * `all` replaces everything; `delta` replaces whole rows, which are known by their id.  Rows stay
 * JSON: a member that is missing, or has another type, reads as nothing.
 * Thread: main. */
#ifndef INFERD_TOP_STATE_H
#define INFERD_TOP_STATE_H

#include <jansson.h>

#include "inferd/base.h"

enum {
    TOP_ROWS_MAX = 4096,         // of devices, of models, of tenants; more are not shown
    TOP_EVENTS_MAX = 256,        // the newest ones
    TOP_EVENTS_OF_KIND_MAX = 64, // of refusals, and of failures
    TOP_HISTORY_ROWS = 10,       // seconds
    TOP_HISTORY_VALUES = 11
};

typedef struct top_rows {
    json_t **rows; // [n] in the order in which they came; owned
    uint32_t n, capacity;
} top_rows;

/* Values of a second, in the order of view_add_history_row. */
typedef enum top_history {
    TOP_AT,
    TOP_TTFT_P50,
    TOP_TTFT_P95,
    TOP_ITL_P50,
    TOP_ITL_P95,
    TOP_TOKENS_IN,
    TOP_TOKENS_OUT
} top_history;

typedef struct top_state {
    bool known;             // `all` came
    json_t *daemon, *queue; // NULL: none came; owned
    top_rows devices, models, tenants;
    top_rows events;                                      // oldest first
    double history[TOP_HISTORY_ROWS][TOP_HISTORY_VALUES]; // oldest first; NAN: none
    uint32_t n_history;
    int64_t now_ms;    // the daemon's clock when the newest event was sent
    uint64_t heard_us; // and ours
} top_state;

void top_state_deinit(top_state *s);
/* False: no memory, or the data is no object; the state is as it was, or has a part of it. */
bool top_state_take(top_state *s, const char *event, const json_t *data, uint64_t now_us);

/* The row with this id, or NULL. */
const json_t *top_rows_find(const top_rows *r, uint64_t id);
/* The daemon's clock now, Unix time in milliseconds. */
int64_t top_state_now_ms(const top_state *s, uint64_t now_us);
/* The mean of a value over the seconds of the history, 0 without any; and the newest one, NAN
 * without any. */
double top_history_mean(const top_state *s, top_history what);
double top_history_newest(const top_state *s, top_history what);

#endif
