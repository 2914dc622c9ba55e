/* cu_api.h - every call inferd makes to a GPU's software, as one struct.
 *
 * The CUDA runtime and driver, cuBLASLt and NVML are called only through this table,
 * so the host code around the kernels is plain C that needs no CUDA headers and runs anywhere: in
 * the product the table is filled by inferd_cuda.so (real/api.c), in tests by a fake that keeps
 * the rules of the real libraries and can fail on demand (tests/cuda_emul/fake_api.h).
 *
 * Device memory is a `void *` that the host must never dereference.  Sizes are bytes.  Calls
 * return a cu_result; text() is the library's message for the calling thread's newest failure.
 *
 * CU_ELOST is sticky: the context is gone (illegal address, ECC, launch failure ...), every later
 * call fails the same way, and only a new process can use the device.
 *
 * Thread: any, as the libraries allow; capture is thread-local (cudaStreamCaptureModeThreadLocal).
 */
#ifndef INFERD_CU_API_H
#define INFERD_CU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cu_result {
    CU_OK = 0,
    CU_NOT_READY,    // an event or stream still works; not a failure
    CU_ENOMEM,       // device or pinned host memory is short
    CU_EINVAL,       // an argument, or a call that is not allowed now (while capturing)
    CU_EUNSUPPORTED, // this device, driver or library cannot do it
    CU_ENODEVICE,    // no driver, no device
    CU_ESTARTING,    // the machine's GPU services are still starting: the same call works later
    CU_EDRIVER,      // the driver is too old for this build
    CU_EFAILED,      // a launch or call failed; the context lives on
    CU_ELOST         // the context is gone
} cu_result;

typedef struct cu_stream_t *cu_stream;
typedef struct cu_event_t *cu_event;
typedef struct cu_graph_t *cu_graph; // instantiated
typedef uint64_t cu_handle;          // physical memory

typedef enum cu_event_flags {
    CU_EVENT_TIMED = 1,
    CU_EVENT_BLOCKING = 2 // event_sync sleeps; without it a CPU is busy
} cu_event_flags;

enum { CU_NAME_BYTES = 128, CU_UUID_BYTES = 48, CU_TEXT_BYTES = 256 };

typedef struct cu_device {
    char name[CU_NAME_BYTES]; // "NVIDIA H200"
    char uuid[CU_UUID_BYTES]; // "GPU-8f6a...", "MIG-..." for an instance
    uint32_t cc_major, cc_minor;
    uint32_t n_sms;
    uint32_t shared_bytes_max; // per block, after opting in
    uint32_t shared_bytes_sm;  // per multiprocessor
    uint32_t registers_sm;     // 32-bit registers per multiprocessor
    uint32_t threads_sm_max;   // resident threads per multiprocessor
    uint64_t l2_bytes, memory_bytes;
    bool mig;                                // an instance of a partitioned GPU
    bool vmm;                                // it has virtual memory management
    bool mps;                                // this process is a client of an MPS server
    int32_t driver_version, runtime_version; // 13000 = 13.0
} cu_device;

/* Values from NVML; unknown ones are negative, or all of them are (`known` is false). */
typedef struct cu_health {
    bool known; // NVML is installed and reports the device
    int32_t temperature_c, power_w, utilization_pct;
    int64_t memory_used_bytes; // by all processes
    int64_t ecc_uncorrected;   // volatile, since the driver was loaded
    int64_t remapped_rows;     // uncorrectable
    int32_t remap_pending;     // 1: a reset is needed to finish a row remapping
    int32_t throttle_thermal;  // 1: clocks are lowered because of heat
} cu_health;

/* A MIG instance of the machine. */
typedef struct cu_instance {
    char name[CU_NAME_BYTES]; // "NVIDIA H200 MIG 1g.18gb"
    char uuid[CU_UUID_BYTES]; // "MIG-..."
} cu_instance;

/* A launch.  `fn` is cu_kernel.fn of the module; `params` is the kernel's one struct argument. */
typedef struct cu_launch {
    const void *fn;
    uint32_t grid[3];
    uint32_t threads;      // per block, one dimension
    uint32_t shared_bytes; // dynamic
    const void *params;    // copied before launch returns
    uint32_t params_bytes;
    bool dependent; // programmatic dependent launch: may start before its predecessor has ended
                    // (cc 9.0)
} cu_launch;

typedef struct cu_function_info {
    uint32_t registers, local_bytes, static_shared_bytes, threads_max;
    uint32_t blocks_per_sm; // resident, for the given threads and shared bytes
} cu_function_info;

/* -- cuBLASLt: D = A * transpose(B), row-major --
 *
 *     out[m, n] = x[m, k] . w[n, k] (+ out, when accumulate)
 *
 * x and w have one 16-bit type; out is the same type or float; sums are float. */
typedef enum lt_type { LT_BF16, LT_F16, LT_F32 } lt_type;

typedef struct lt_shape {
    uint32_t m, n, k;
    uint32_t x_stride, w_stride, out_stride; // elements from one row to the next
    lt_type in, out;
    bool accumulate;
} lt_shape;

typedef struct lt_algo {
    uint64_t opaque[8]; // cublasLtMatmulAlgo_t
    size_t workspace_bytes;
} lt_algo;

typedef struct cu_api {
    const char *name; // "cuda", "fake"
    const char *(*text)(void);

    /* -- devices -- */
    /* CU_ENODEVICE or CU_EDRIVER with a text that says what to install, CU_ESTARTING with one that
     * names the awaited service; may be called again. */
    cu_result (*init)(void);
    /* All instances that NVML lists, also those that CUDA does not show to this process; at most
     * n_max, 0 if NVML cannot list them.  May be called before init. */
    uint32_t (*instances)(uint32_t n_max, cu_instance *out);
    cu_result (*device_count)(uint32_t *out);
    cu_result (*device_about)(uint32_t index, cu_device *out);
    cu_result (*device_health)(uint32_t index, cu_health *out);
    cu_result (*device_use)(uint32_t index); // of the calling thread; creates the context
    cu_result (*device_blocking)(void);      // stream_sync of the device in use sleeps from now on
    cu_result (*memory_info)(uint64_t *free_bytes, uint64_t *total_bytes);

    /* -- memory -- */
    cu_result (*alloc)(size_t n, void **out); // cudaMalloc
    cu_result (*free)(void *p);
    cu_result (*host_alloc)(size_t n, void **out); // pinned
    cu_result (*host_free)(void *p);
    cu_result (*host_pin)(void *p, size_t n); // cudaHostRegister of page-aligned memory
    cu_result (*host_unpin)(void *p);

    /* VMM.  Ranges and sizes are multiples of the granularity; a handle is mapped whole, at 0. */
    cu_result (*vmm_granularity)(size_t *out);
    cu_result (*vmm_reserve)(size_t n, size_t align, void **out);
    cu_result (*vmm_unreserve)(void *p, size_t n); // nothing may be mapped in it
    cu_result (*vmm_create)(size_t n, cu_handle *out);
    cu_result (*vmm_release)(cu_handle h); // the memory lives on while it is mapped
    cu_result (*vmm_map)(void *p, size_t n, cu_handle h);
    cu_result (*vmm_unmap)(void *p, size_t n);  // a range that holds whole mappings
    cu_result (*vmm_access)(void *p, size_t n); // read and write, for the device in use

    /* -- streams and events -- */
    cu_result (*stream_create)(bool urgent,
                               cu_stream *out); // non-blocking; urgent: highest priority
    cu_result (*stream_destroy)(cu_stream s);
    cu_result (*stream_sync)(cu_stream s);
    cu_result (*stream_wait)(cu_stream s, cu_event e);
    cu_result (*event_create)(uint32_t flags, cu_event *out); // cu_event_flags
    cu_result (*event_destroy)(cu_event e);
    cu_result (*event_record)(cu_event e, cu_stream s);
    cu_result (*event_query)(cu_event e); // CU_OK or CU_NOT_READY
    cu_result (*event_sync)(cu_event e);
    cu_result (*event_elapsed_us)(cu_event begin, cu_event end, uint64_t *out);
    cu_result (*copy_to_device)(void *dst, const void *src, size_t n, cu_stream s);
    cu_result (*copy_to_host)(void *dst, const void *src, size_t n, cu_stream s);
    cu_result (*copy_on_device)(void *dst, const void *src, size_t n, cu_stream s);
    cu_result (*fill)(void *dst, uint8_t byte, size_t n, cu_stream s);

    /* -- kernels and graphs -- */
    /* Load the kernel's code and allow `shared_bytes` of dynamic shared memory, now. */
    cu_result (*kernel_load)(const void *fn, uint32_t threads, uint32_t shared_bytes,
                             cu_function_info *out);
    /* Request the split with the most shared memory for this kernel: kernels with different splits
     * do not run at the same time. */
    cu_result (*kernel_carve_out)(const void *fn);
    cu_result (*launch)(const cu_launch *l, cu_stream s);
    cu_result (*capture_begin)(cu_stream s);
    cu_result (*capture_end)(cu_stream s, cu_graph *out); // instantiated and uploaded
    cu_result (*graph_launch)(cu_graph g, cu_stream s);
    cu_result (*graph_destroy)(cu_graph g);

    /* -- cuBLASLt -- */
    /* Opens the library: `path` (file or folder, may be NULL), the loader's path, the toolkit,
     * Python's nvidia packages.  CU_EUNSUPPORTED with a text that names the package to install. */
    cu_result (*lt_open)(const char *path);
    uint64_t (*lt_version)(void); // 0: not open
    cu_result (*lt_candidates)(const lt_shape *shape, size_t workspace_bytes, uint32_t n_max,
                               lt_algo *out, uint32_t *n);
    cu_result (*lt_matmul)(const lt_shape *shape, const lt_algo *algo, const void *x, const void *w,
                           void *out, void *workspace, size_t workspace_bytes, cu_stream s);
} cu_api;

#endif
