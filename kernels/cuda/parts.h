/* parts.h - the optional parts of the CUDA backend, and their states.
 *
 * Without a part the results are the same, and computed more slowly.  A part can be switched off,
 * by the environment (INFERD_CUDA_OFF=vmm,graphs) and by the caller (backend_options.off); a part
 * that is named in either is off.  A part falls back by itself when its calls are refused, and
 * reports it: `degraded`, with the library's message.  A wrong result is an error, never a reason
 * to fall back.
 *
 *     ON        in use
 *     OFF       switched off; `why` says by what
 *     ABSENT    this device, driver or machine has nothing to use; `why` says what is missing
 *     DEGRADED  it was in use and refused; the message of the first refusal stays in `why`
 *
 *     ON -> DEGRADED   parts_degrade     when the fallback is taken
 *
 * Thread: engine, of one device. */
#ifndef INFERD_CUDA_PARTS_H
#define INFERD_CUDA_PARTS_H

#include "cuda/cu_api.h"
#include "kernels/backend.h"

typedef enum cuda_part {
    PART_VMM,       // handles that windows show; else one allocation, windows are runs of pages
    PART_GRAPHS,    // steps of decoding replayed; else launched one by one
    PART_LT,        // cuBLASLt; else large products go through the kernels for few rows
    PART_PDL,       // a kernel starts before the one before it has ended (cc 9.0)
    PART_CARVEOUT,  // all kernels ask for the same split of L1 and shared memory
    PART_PINNED,    // host copies of weights are pinned; else copies pass through the driver
    PART_WINDOWS,   // graphs of a model while another one's weights are in flight
    PART_MIXED,     // matrices of two formats in one launch of gemv
    PART_GEMV8,     // norm or gate in the launch of a product of 5 to 8 rows
    PART_SKINNY128, // quantised weights times 65 to 128 rows without a 16-bit copy of them
    PART_BLOCKING,  // the host sleeps while it waits for a step, if CPUs are few
    CUDA_PARTS
} cuda_part;

#define CUDA_OFF_ENV "INFERD_CUDA_OFF"

typedef struct cuda_parts {
    be_device_part part[CUDA_PARTS];
} cuda_parts;

/* Every part is on except those that `off` (a list with commas, may be NULL) or the environment
 * names.  INFERD_EINVAL: an unknown name; the sentence lists the parts. */
inferd_status parts_init(cuda_parts *p, const char *off, inferd_err *err);
static inline bool parts_is_on(const cuda_parts *p, cuda_part part) {
    return p->part[part].state == BE_PART_ON;
}
/* Neither switched off nor missing: a part that falls back case by case is used where it works. */
static inline bool parts_is_tried(const cuda_parts *p, cuda_part part) {
    return p->part[part].state == BE_PART_ON || p->part[part].state == BE_PART_DEGRADED;
}
/* `p` may be NULL: nothing is recorded.  Only a part that is on can become absent or degraded. */
void parts_absent(cuda_parts *p, cuda_part part, const char *why);
void parts_degrade(cuda_parts *p, cuda_part part, const char *why);
/* Parts that the device does not support become absent. */
void parts_look(cuda_parts *p, const cu_device *d);

#endif
