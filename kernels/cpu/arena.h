/* arena.h - the pages of the CPU backend, and the windows they move into.
 *
 *     arena   [ p0 | p1 | p2 | p3 | p4 | ... ]      n_pages x 2 MiB of reserved addresses
 *                    \________  \___
 *     window           [ p3 | p1 | -- ]             reserved too; pages in the order given
 *
 * A page is physical memory.  Moving one into a window moves its page-table entries (mremap), not
 * its bytes; the hole it leaves stays reserved and inaccessible, so no other mapping can
 * appear in it and a stray access stops the program instead of reading zeros.
 *
 * First touches are slow (the kernel zeroes 2 MiB: a tenth of a millisecond, several when a
 * hypervisor has to find the memory first) and must not happen inside a step; but memory that is
 * touched is lost to other processes.  So a background thread touches pages in ascending order, as
 * the pool hands them out, and stays a little ahead of the pages in use:
 *
 *     [ windows' and sequences' pages | ARENA_AHEAD_PAGES | not touched yet ... ]
 *     and at least ARENA_FIRST_PAGES beside those in windows: a daemon that just started can take
 *     many requests at once
 *
 * It works between steps.  While steps are computed every page it touches keeps a CPU from them, so
 * after a page that took t microseconds it then rests for t * t / 2: 50 pages a second when a page
 * costs 0.2 ms, two a minute when it costs 7 ms.  The pool uses the touched pages as long as some
 * of them are only cached (pool_next_is_cold).
 *
 * A caller that takes a page beyond those touches it first, with arena_touch.  An arena of one
 * page, which a command opens that computes nothing, has no such thread: it is of idle priority,
 * and on a busy machine its end would be waited for.
 *
 *     UNTOUCHED -> TOUCHING   claimed by the background thread or by arena_touch
 *     TOUCHING  -> HOME       touched
 *     HOME      -> AWAY       window_map, window_grow
 *     AWAY      -> HOME       window_unmap, or one of those that failed
 *
 * Thread: engine; the background thread meets it only in the page states, in how far to go, and in
 * when steps were computed. */
#ifndef INFERD_CPU_ARENA_H
#define INFERD_CPU_ARENA_H

#include "inferd/base.h"
#include "inferd/status.h"

/* A power of two and a multiple of 4096.  Small ones make a large pool of little memory, to try
 * what shows or counts pages: cmake -DINFERD_ARENA_PAGE_BYTES=32768. */
#ifndef INFERD_ARENA_PAGE_BYTES
#define INFERD_ARENA_PAGE_BYTES (2 << 20)
#endif

enum {
    ARENA_PAGE_BYTES = INFERD_ARENA_PAGE_BYTES,
    ARENA_AHEAD_PAGES = 8,
    ARENA_FIRST_PAGES = 64,
};

typedef struct arena arena;
typedef struct window window;

inferd_status arena_open(uint64_t memory_bytes, arena **out, inferd_err *err);
void arena_close(arena *a); // accepts NULL; all windows must be closed
uint32_t arena_n_pages(const arena *a);
unsigned char *arena_base(const arena *a);
uint64_t arena_n_touched(const arena *a);
uint32_t arena_n_warm(const arena *a); // the background thread is done with pages [0, n)

bool arena_is_home(const arena *a, uint32_t page); // touched, and not in a window
bool arena_is_away(const arena *a, uint32_t page); // in a window
/* Make sure that an access to the page (home, or not touched yet) costs no fault.  Any thread.
 * True: it had not been touched. */
bool arena_touch(arena *a, uint32_t page);
/* The page is in use: the background thread touches those after it, from the end of the step on. */
void arena_use(arena *a, uint32_t page);
/* A step begins, and ends: then the background thread is woken if there is something to touch. */
void arena_step_begin(arena *a);
void arena_step_end(arena *a, uint64_t now_us);

inferd_status window_open(arena *a, size_t n_bytes, window **out, inferd_err *err);
void window_close(arena *a, window *w); // unmaps first; accepts NULL
void *window_base(const window *w);
inferd_status window_map(arena *a, window *w, const uint32_t *pages, uint32_t n_pages,
                         inferd_err *err);
/* The same behind the pages that are in it already; on failure those stay. */
inferd_status window_grow(arena *a, window *w, const uint32_t *pages, uint32_t n_pages,
                          inferd_err *err);
inferd_status window_unmap(arena *a, window *w, inferd_err *err);

/* For tests: the n-th move from now fails (1 = the next), once. */
void arena_fail_move_at(arena *a, uint32_t n_moves);

#endif
