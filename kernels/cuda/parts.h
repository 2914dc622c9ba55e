/* parts.h - risky parts of the CUDA backend, and which of them are in use.
 *
 * A part is a way of doing something that can also be done without it: more slowly, with the same
 * results.  It can be switched off, by the environment (INFERD_CUDA_OFF=vmm,graphs) and by the
 * configuration (devices[].off); a part that either names is off.  A part falls back by itself
 * when its calls are refused, and says so: `degraded`, with the library's words.  A wrong result is
 * no reason to fall back: it is an error.
 *
 *     ON        in use
 *     OFF       switched off; `why` says by what
 *     ABSENT    this device, driver or machine has nothing to use; `why` says what is missing
 *     DEGRADED  it was in use and refused; the first refusal's words stay in `why`
 *
 *     ON -> DEGRADED   parts_degrade     when the way around it is taken
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
    PART_WINDOWS,   // graphs of a model while another one's weights are on their way
    PART_MIXED,     // matrices of two formats in one launch of gemv
    PART_GEMV8,     // norm or gate in the launch of a product of 5 to 8 rows
    PART_SKINNY128, // quantised weights times 65 to 128 rows without a 16-bit copy of them
    PART_BLOCKING,  // the host sleeps while it waits for a step, where CPUs are few
    CUDA_PARTS
} cuda_part;

#define CUDA_OFF_ENV "INFERD_CUDA_OFF"

typedef struct cuda_parts {
    be_device_part part[CUDA_PARTS];
} cuda_parts;

/* Every part is on but for those that `off` (a list with commas, may be NULL) or the environment
 * names.  INFERD_EINVAL: a name that no part has; the sentence lists those there are. */
inferd_status parts_init(cuda_parts *p, const char *off, inferd_err *err);
static inline bool parts_is_on(const cuda_parts *p, cuda_part part) {
    return p->part[part].state == BE_PART_ON;
}
/* Neither switched off nor missing: what falls back case by case goes on where it works. */
static inline bool parts_is_tried(const cuda_parts *p, cuda_part part) {
    return p->part[part].state == BE_PART_ON || p->part[part].state == BE_PART_DEGRADED;
}
/* `p` may be NULL: nothing is kept.  Only what is on can become absent or degraded. */
void parts_absent(cuda_parts *p, cuda_part part, const char *why);
void parts_degrade(cuda_parts *p, cuda_part part, const char *why);
/* What the device has nothing for becomes absent. */
void parts_look(cuda_parts *p, const cu_device *d);

#endif
