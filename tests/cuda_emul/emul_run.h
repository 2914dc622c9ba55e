/* emul_run.h - runs a kernel on emulated threads; what tests and the fake API call.
 *
 * A launch runs its blocks one after another, each block's threads as fibers on the calling host
 * thread.  It ends when the last block has ended, or at the first broken rule (README.md lists
 * them): then `why` says which kernel rule, block and thread.  Memory that a failed kernel wrote
 * stays written.
 *
 * Thread: any; launches take turns. */
#ifndef INFERD_EMUL_RUN_H
#define INFERD_EMUL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMUL_WHY_BYTES = 1024,
    EMUL_THREADS_MAX = 1024,   // per block
    EMUL_GRID_YZ_MAX = 65535,  // x: 2^31 - 1
    EMUL_BLOCKS_MAX = 1000000, // of one launch: what emulation can still do, not a device's limit
    EMUL_PARAMS_MAX = 4096,    // bytes of the one struct
    EMUL_SHARED_MAX = 227 * 1024, // bytes of one block on cc 9.0, the default limit
};

typedef struct emul_options {
    uint64_t seed; // of the order below, and of when asynchronous copies read their source
    bool shuffle;  // blocks in random order; whenever threads can run, a random one does
    uint32_t shared_bytes_max; // per block; 0 = EMUL_SHARED_MAX
} emul_options;

/* For launches that begin later.  Default: seed 1, no shuffle: threads and blocks in their order.
 */
void emul_set_options(const emul_options *options);

/* Run the grid to its end.  `fn` is the fn of a GPU_ENTRY compiled for emulation, threads_max that
 * of the entry.  Grid dimensions of 0, too many threads ... are failures too. */
bool emul_launch(const void *fn, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes,
                 const void *params, uint32_t params_bytes, uint32_t threads_max, char *why,
                 size_t why_bytes);

/* `ok` is asked whether [p, p + n) of global memory may be read or written.  It runs inside
 * launches (of any host thread, one at a time), at most once per access, and per 4 KiB page and
 * launch when the whole page is allowed.  NULL: everything is. */
typedef bool emul_memory_check(const void *p, size_t n, bool write, void *ctx);
void emul_set_memory_check(emul_memory_check *ok, void *ctx);

/* Are plain accesses of kernels seen?  False in sanitizer builds (EMUL_NO_HOOKS). */
bool emul_has_hooks(void);

/* About the newest launch, for the rules of programmatic dependent launch: every block called
 * wait_predecessor() / some block called release_dependents(). */
bool emul_waited(void);
bool emul_released(void);
/* What was launched so far has ended for good (a stream was synchronized, or the next launch is no
 * dependent one): the next kernel may read all of it before its wait_predecessor(). */
void emul_settle(void);
/* What the newest launch did: for tests that hold a kernel to the bytes it says it moves. */
typedef struct emul_counts {
    uint64_t n_blocks, n_barriers; // of whole blocks
    uint64_t n_mma;                // of warps
    uint64_t n_ldmatrix;           // 8x8 matrices read
    uint64_t n_ldmatrix_conflicts; // further passes over the banks that they needed
    uint64_t n_atomics;
    uint64_t stream_bytes; // load_stream*
    uint64_t copy_bytes;   // asynchronous copies that read their source
} emul_counts;
void emul_get_counts(emul_counts *out);

#ifdef __cplusplus
}
#endif

#endif
