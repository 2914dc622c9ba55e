/* journal.h - the newest events of the daemon as sentences, for people: models that came and left,
 * refusals, changes, lost devices.
 *
 * The log has the same in machine form and keeps it; the journal holds JOURNAL_EVENTS in memory, so
 * that a page shows what happened before it was opened.  An event that repeats within
 * JOURNAL_REPEAT_MS is counted instead of written again.  Clients can cause refusals and failures
 * at any rate: of each there are at most JOURNAL_CAUSED, so the other events stay.
 * Thread: front. */
#ifndef INFERD_JOURNAL_H
#define INFERD_JOURNAL_H

#include "inferd/base.h"

enum {
    JOURNAL_EVENTS = 256,
    JOURNAL_CAUSED = 64,
    JOURNAL_TEXT_BYTES = 256,
    JOURNAL_REPEAT_MS = 10000
};

typedef enum journal_kind {
    JOURNAL_EVICT,
    JOURNAL_LOAD,
    JOURNAL_FAIL,
    JOURNAL_PREEMPT,
    JOURNAL_REFUSE,
    JOURNAL_CONFIG,
    JOURNAL_DEVICE,
    JOURNAL_DRAIN,
    JOURNAL_ADMIN,
    JOURNAL_KINDS
} journal_kind;

typedef struct journal_event {
    uint64_t id;     // grows by one for each event
    uint64_t change; // journal_n_changes when it was written, or counted the last time
    int64_t at_ms;   // Unix time, the last time
    uint32_t n;      // how often
    journal_kind kind;
    uint64_t group;                // of journal_add_in; 0: none
    char text[JOURNAL_TEXT_BYTES]; // UTF-8, may hold names from the configuration
} journal_event;

typedef struct journal journal;

journal *journal_create(void);                    // NULL: no memory
void journal_destroy(journal *j);                 // accepts NULL
const char *journal_kind_name(journal_kind kind); // "evict"
/* n: how often it happened. */
__attribute__((format(printf, 5, 6))) void journal_add(journal *j, journal_kind kind, uint32_t n,
                                                       int64_t at_ms, const char *format, ...);
/* Events of a group are one event: `text`, or `several` once their texts differ.  group: not 0. */
void journal_add_in(journal *j, uint64_t group, journal_kind kind, int64_t at_ms, const char *text,
                    const char *several);
uint32_t journal_n(const journal *j);                          // at most JOURNAL_EVENTS
const journal_event *journal_at(const journal *j, uint32_t i); // 0: the oldest; until the next add
uint64_t journal_n_changes(const journal *j);

#endif
