/* fake_api.h - a GPU's software without a GPU: cu_api with the rules of the real thing.
 *
 * What the real libraries leave undefined, the fake finds and counts (fake_violations); what they
 * refuse, it refuses; what they may do late or in another order, it does late and in another order.
 *
 *     memory    each allocation has exact bounds and is filled with 0xFF; VMM handles are pieces of
 *               one file in memory, so aliases are aliases.  Addresses are never used twice.  The
 *               host cannot follow a device pointer: memory is closed except while work runs.
 *     streams   queues; their work runs in calls to the API, on the caller's thread: whatever a
 *               sync needs, and at any other call, by chance, a few steps of some streams.
 *     time      virtual: an operation costs what the options say, each stream has its clock.
 *     kernels   run on emul_launch (emul_run.h), or on options.execute.
 *
 *     loss      by default a lost context ends the process's work on all devices; with lost_alone
 * on its own device only.  CUDA's documentation promises the first and drivers often do the second.
 *
 * A test begins with fake_reset, changes *fake_options() before it opens anything, and ends with
 * fake_leaks() and fake_violations() being 0 (cuda_rig.h does that).  Work that still waits when
 * the fake is reset never runs.
 *
 * Thread: any, one lock; options are changed while no other thread calls. */
#ifndef INFERD_FAKE_API_H
#define INFERD_FAKE_API_H

#include "cuda/cu_api.h"
#include "cuda/module.h"

enum { FAKE_DEVICES_MAX = 4, FAKE_KERNELS_MAX = 1024 };

typedef enum fake_driver { FAKE_DRIVER_OK, FAKE_DRIVER_NONE, FAKE_DRIVER_OLD } fake_driver;

/* Runs one kernel to its end, as emul_launch does. */
typedef bool fake_execute_fn(const void *fn, const uint32_t grid[3], uint32_t threads,
                             uint32_t shared_bytes, const void *params, uint32_t params_bytes,
                             uint32_t threads_max, char *why, size_t why_bytes);

typedef struct fake_opts {
    /* Devices.  device[i].memory_bytes is what may be allocated (default 256 MiB). */
    uint32_t n_devices;
    cu_device device[FAKE_DEVICES_MAX];
    cu_health health[FAKE_DEVICES_MAX];
    bool bad[FAKE_DEVICES_MAX];  // fails whatever it is asked
    bool gone[FAKE_DEVICES_MAX]; // NVML says that the GPU is lost
    bool lost_alone;             // a lost context is that of one device; false: of the process
    uint64_t others_bytes[FAKE_DEVICES_MAX]; // of memory_bytes, taken by other processes
    fake_driver driver;
    size_t granularity;       // of VMM; default 2 MiB, a power of two and at least 4 KiB
    bool poison;              // new device memory is 0xFF; true
    bool broken_alias;        // a second mapping of a handle does not show its bytes; false
    bool no_dependent;        // launches with that attribute are refused; false
    bool no_dependent_graphs; // and captures that hold some; false
    bool cuda_visible;        // as CUDA: one MIG instance, and CUDA_VISIBLE_DEVICES counts; false
    uint32_t starting;        // so many calls of init say that the machine's services still start

    /* When work runs. */
    uint64_t seed;        // of the order; 1
    uint32_t advance_pct; // chance that a call runs some steps; 30.  0: only when it must
    uint32_t advance_max; // at most so many steps then; 3
    uint32_t stuck_ms;    // real time after which a sync of work that never ends gives up; 200

    /* What work costs, in virtual time. */
    uint32_t launch_us;    // per kernel; 2
    uint32_t copy_us;      // per copy or fill, and
    uint32_t bytes_per_us; // 50000 = 50 GB/s
    uint64_t lt_flops_us;  // per microsecond of cuBLASLt's fastest algorithm; 1e6

    /* Kernels. */
    fake_execute_fn *execute;      // NULL: emul_launch
    uint32_t registers_per_thread; // what kernel_load reports; 64
    bool strict_loading;           // a launch of a kernel that was not loaded is a violation; false
    bool protect;                  // close device memory to the host; true

    /* cuBLASLt. */
    bool lt; // lt_open finds it; true
    uint64_t lt_version;

    bool quiet; // do not print violations (tests of the fake itself)

    /* A wrong result: the first word that a kernel of this name changes is changed once more.  A
     * pattern of fnmatch; "lt_matmul" is cuBLASLt; "": no kernel.  Seen are the first 4 KiB behind
     * each pointer of the kernel's parameters. */
    char wrong[64];
} fake_opts;

const cu_api *fake_api(void);
/* The kernels the fake knows: the table is borrowed; kept over fake_reset. */
void fake_add_kernels(const cu_kernel *table, uint32_t n);

/* Everything as at the start of the process, all memory gone.  Prints what was not given back and
 * returns how many things that were. */
uint32_t fake_reset(void);
fake_opts *fake_options(void); // change them right after fake_reset

/* advance_pct becomes 0, also while other threads make calls. */
void fake_hold_queues(void);

/* n copies of the default device. */
void fake_set_devices(uint32_t n);
void fake_set_cc(uint32_t major, uint32_t minor); // 8.0: 108 SMs, 163 KiB shared; 8.9; 9.0
void fake_strict_loading(bool on);

/* ---- breaking it ---- */

/* The n-th call from now (1: the next) fails with `result`, once.  Calls that only give back
 * (free, destroy ...) are not counted.  CU_ELOST loses the context. */
void fake_fail_at(uint32_t n, cu_result result);
/* The same of the calls of this thread: another one may still make memory. */
void fake_fail_own_at(uint32_t n, cu_result result);
/* The same for one call by the name it has in cu_api: "vmm_create"; any call may be named. */
void fake_fail_call(const char *call, uint32_t n, cu_result result);
/* From the n-th on, each time.  n = 0: never mind. */
void fake_fail_call_always(const char *call, uint32_t n, cu_result result);
bool fake_failed(
    void); // the failure of fake_fail_at or fake_fail_call* has happened since it was set
/* The next event_record (the n-th) never completes, nor does what follows it in its stream. */
void fake_lose_event(void);
void fake_lose_event_at(uint32_t n);
/* The context is lost when the n-th kernel from now runs. */
void fake_lose_context_at(uint32_t n);
void fake_lose_context(void); // now; of device 0
void fake_lose_device(uint32_t index);

/* All of it in a line of text, for a process that is broken from outside (emul_shared.c):
 *
 *     fail=CALL:N[:RESULT[:always]]   as fake_fail_call; RESULT is ENOMEM (default), EINVAL,
 *                                     EUNSUPPORTED, ENODEVICE, EDRIVER, EFAILED or ELOST
 *     hang=N                          as fake_lose_event_at, and nothing gives up waiting
 *     wrong=KERNEL                    options.wrong
 *     no=vmm, no=lt                   no device has VMM; cuBLASLt is not found
 *
 * with `;` between them.  False: `why` says what is not understood, and what stood before it is
 * done. */
bool fake_script(const char *text, char *why, size_t why_bytes);

/* ---- looking at it ---- */

uint64_t fake_calls(const char *call); // NULL: all
uint64_t fake_uses(uint32_t index);    // device_use of this device: contexts are made by it
typedef struct fake_counts {
    uint64_t n_launches, n_captured;     // kernels launched into streams; into captures
    uint64_t n_dependent;                // of both, with that attribute
    uint64_t n_graphs, n_graph_launches; // instantiated now and before
    uint64_t n_run;                      // kernels that have run, those of graphs too
    uint64_t n_copies, copied_bytes;     // that have run, both ways to and from the host
    uint64_t n_lt;                       // matrix products that have run
    uint64_t n_sleeps;                   // event_sync of events that let the host sleep
    uint64_t virtual_us;                 // what the host has seen pass
} fake_counts;
void fake_get_counts(fake_counts *out);
uint32_t fake_pending(void);     // operations that wait in queues
void fake_run(uint32_t n_steps); // as a call does that happens to run so many
/* Runs what can run, of this stream only. */
void fake_run_stream(cu_stream s);
uint64_t fake_held_bytes(void);      // device memory that is allocated or created, all devices
uint64_t fake_held_host_bytes(void); // pinned with host_alloc and host_pin
uint32_t fake_leaks(void);           // things not given back; prints each
uint32_t fake_violations(void); // rules that were broken since the reset; printed when they were
const char *fake_last_violation(void); // "" when none
uint32_t fake_take_violations(void); // how many, and begin again with 0: for tests that break rules
bool fake_is_lost(void);
/* Bytes of device memory, past all streams: for looking only. */
bool fake_peek(const void *device, void *host, size_t n);
bool fake_poke(void *device, const void *host, size_t n);
/* Whether work may touch all of [p, p + n): what emulated kernels are asked. */
bool fake_may_touch(const void *p, size_t n);

#endif
