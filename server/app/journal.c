/* journal.c - see journal.h. */
#include "journal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct journal {
    journal_event events[JOURNAL_EVENTS]; // [n] the oldest first
    uint32_t n;
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

/* The event that another one of this group or text repeats, or NULL. */
static journal_event *find_repeated(journal *j, journal_kind kind, uint64_t group, int64_t at_ms,
                                    const char *text) {
    for (uint32_t i = j->n; i-- > 0;) {
        journal_event *e = &j->events[i];
        int64_t ago_ms = at_ms - e->at_ms; // negative: the clock was set back
        if (e->kind == kind && e->group == group && ago_ms >= 0 && ago_ms <= JOURNAL_REPEAT_MS &&
            (group != 0 || strcmp(e->text, text) == 0))
            return e;
    }
    return NULL;
}

/* Makes room for an event of a kind: the oldest one goes, or the oldest of its kind. */
static void make_room(journal *j, journal_kind kind) {
    uint32_t n_alike = 0, oldest_alike = 0;
    for (uint32_t i = j->n; i-- > 0;) {
        if (j->events[i].kind != kind) continue;
        n_alike++;
        oldest_alike = i;
    }
    bool caused = kind == JOURNAL_REFUSE || kind == JOURNAL_FAIL;
    bool many = caused && n_alike >= JOURNAL_CAUSED;
    if (!many && j->n < JOURNAL_EVENTS) return;
    uint32_t gone = many ? oldest_alike : 0;
    j->n--;
    memmove(&j->events[gone], &j->events[gone + 1], (j->n - gone) * sizeof j->events[0]);
}

static void add(journal *j, const journal_event *like) {
    make_room(j, like->kind);
    journal_event *e = &j->events[j->n++];
    *e = *like;
    e->id = ++j->n_ids;
    e->change = ++j->n_changes;
}

static void repeat(journal *j, journal_event *e, uint32_t n, int64_t at_ms) {
    e->n += n;
    e->at_ms = at_ms;
    e->change = ++j->n_changes;
}

void journal_add(journal *j, journal_kind kind, uint32_t n, int64_t at_ms, const char *format,
                 ...) {
    journal_event like = {.at_ms = at_ms, .n = n, .kind = kind};
    va_list args;
    va_start(args, format);
    vsnprintf(like.text, sizeof like.text, format, args);
    va_end(args);
    journal_event *e = find_repeated(j, kind, 0, at_ms, like.text);
    if (e != NULL)
        repeat(j, e, n, at_ms);
    else
        add(j, &like);
}

void journal_add_in(journal *j, uint64_t group, journal_kind kind, int64_t at_ms, const char *text,
                    const char *several) {
    journal_event like = {.at_ms = at_ms, .n = 1, .kind = kind, .group = group};
    snprintf(like.text, sizeof like.text, "%s", text);
    journal_event *e = find_repeated(j, kind, group, at_ms, text);
    if (e == NULL) {
        add(j, &like);
        return;
    }
    if (strcmp(e->text, like.text) != 0) snprintf(e->text, sizeof e->text, "%s", several);
    repeat(j, e, 1, at_ms);
}

uint32_t journal_n(const journal *j) {
    return j->n;
}

const journal_event *journal_at(const journal *j, uint32_t i) {
    return &j->events[i];
}

uint64_t journal_n_changes(const journal *j) {
    return j->n_changes;
}
