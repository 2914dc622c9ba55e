/* journal.c - see journal.h. */
#include "journal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_BACK = 16 }; // events that a repeated one may be equal to

struct journal {
    journal_event events[JOURNAL_EVENTS]; // a ring: event id is at (id - 1) % JOURNAL_EVENTS
    uint64_t n_ids, n_changes;
};

static const char *const names[JOURNAL_KINDS] = {
    [JOURNAL_EVICT] = "evict",     [JOURNAL_LOAD] = "load",     [JOURNAL_FAIL] = "fail",
    [JOURNAL_PREEMPT] = "preempt", [JOURNAL_REFUSE] = "refuse", [JOURNAL_CONFIG] = "config",
    [JOURNAL_DEVICE] = "device",   [JOURNAL_DRAIN] = "drain",   [JOURNAL_ADMIN] = "admin"};

journal *journal_create(void) {
    return calloc(1, sizeof(journal));
}

void journal_destroy(journal *j) {
    free(j);
}

const char *journal_kind_name(journal_kind kind) {
    return names[kind];
}

static journal_event *event_of(journal *j, uint64_t id) {
    return &j->events[(id - 1) % JOURNAL_EVENTS];
}

void journal_add(journal *j, journal_kind kind, uint32_t n, int64_t at_ms, const char *format,
                 ...) {
    char text[JOURNAL_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (uint64_t id = j->n_ids; id > 0 && id + LOOK_BACK > j->n_ids; id--) {
        journal_event *e = event_of(j, id);
        if (e->kind != kind || at_ms - e->at_ms > JOURNAL_REPEAT_MS || strcmp(e->text, text) != 0)
            continue;
        e->n += n;
        e->at_ms = at_ms;
        e->change = ++j->n_changes;
        return;
    }
    journal_event *e = event_of(j, ++j->n_ids);
    *e = (journal_event){
        .id = j->n_ids, .change = ++j->n_changes, .at_ms = at_ms, .n = n, .kind = kind};
    memcpy(e->text, text, sizeof text);
}

uint32_t journal_n(const journal *j) {
    return j->n_ids < JOURNAL_EVENTS ? (uint32_t)j->n_ids : JOURNAL_EVENTS;
}

const journal_event *journal_at(const journal *j, uint32_t i) {
    uint64_t first = j->n_ids < JOURNAL_EVENTS ? 1 : j->n_ids - JOURNAL_EVENTS + 1;
    return &j->events[(first + i - 1) % JOURNAL_EVENTS];
}

uint64_t journal_n_changes(const journal *j) {
    return j->n_changes;
}
