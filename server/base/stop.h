/* stop.h - finds stop strings in text that arrives in pieces.
 *
 * One automaton per string (Knuth, Morris and Pratt), so the work is linear in the text for all
 * strings and all ways to split it.  After each piece `stop_held` returns how many bytes at its end
 * might still become a stop string and must not be sent yet.
 *
 * The match that ends first wins; of those that end together, the one that begins first.
 *
 *   text   ....... s t o
 *                |-----|  stop_held: the longest end of the text that begins a stop string
 * Thread: a stop_set is read-only after stop_set_create and shared by the choices of a request; a
 * state belongs to its choice. */
#ifndef INFERD_STOP_H
#define INFERD_STOP_H

#include "inferd/base.h"

typedef struct stop_set stop_set;

/* Copies the strings; none may be empty, each at most UINT16_MAX bytes.  NULL: no memory. */
stop_set *stop_set_create(const bytes *strings, uint32_t n);
void stop_set_destroy(stop_set *set);     // accepts NULL
uint32_t stop_set_n(const stop_set *set); // 0 for NULL
bytes stop_set_at(const stop_set *set, uint32_t i);

/* A state is [stop_set_n] numbers, zero at the start: the matched length of each string. */
typedef struct stop_match {
    uint32_t string_idx; // which one
    size_t end;          // the position after it, as an offset in the given piece
    size_t n;            // its length; it begins n bytes before end, maybe in an earlier piece
} stop_match;

/* Reads a piece.  True: a string ended in it; bytes behind it were not read. */
bool stop_feed(const stop_set *set, uint16_t *state, const char *p, size_t n, stop_match *out);
size_t stop_held(const stop_set *set, const uint16_t *state);

#endif
