/* pulse.h - the sign of life of a loop: a count of beats, and where the loop is.
 *
 * A loop's thread joins its pulse once and then calls pulse_at where it begins another kind of
 * work; nothing has to be passed down for that, and on threads without a pulse (the simulator,
 * tests) the call does nothing.  A watchdog (server/base/watchdog.h) reads pulses from outside.
 *
 *     PULSE_REST    waits for work, opens its device, or has ended: silence means nothing
 *     PULSE_WORK    works, and is about to beat again
 *     PULSE_DEVICE  is in a step or in a piece of a load, which may take step_hang_ms
 *
 * All members are atomic and there is no lock, so a loop that hangs can still be asked where.
 * Thread: pulse_at the loop's; the members any. */
#ifndef INFERD_PULSE_H
#define INFERD_PULSE_H

#include <stdatomic.h>
#include <stdint.h>

typedef enum pulse_kind { PULSE_REST, PULSE_WORK, PULSE_DEVICE } pulse_kind;

enum { PULSE_NO_MODEL = UINT32_MAX };

typedef struct pulse {
    atomic_uint n_beats;          // wraps
    atomic_int kind;              // pulse_kind
    _Atomic(const char *) where;  // static text
    _Atomic(const char *) object; // of its work there, static text; NULL: none
    atomic_uint model_idx;        // likewise, or PULSE_NO_MODEL
} pulse;

/* The calling thread is the loop of `p` from now on; `p` outlives it.  NULL: it is no loop. */
void pulse_join(pulse *p);
/* The calling thread's loop beats, and is now at `where` (static text). */
void pulse_at(pulse_kind kind, const char *where);
void pulse_at_object(pulse_kind kind, const char *where, const char *object); // static text, too
void pulse_at_model(pulse_kind kind, const char *where, uint32_t model_idx);

#endif
