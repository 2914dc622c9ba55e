/* fake_inner.h - what the files of the fake share.  Only fake_*.c include this.
 *
 *     fake_api.c      the state, entering and leaving a call, failures, devices, the table
 *     fake_look.c     what tests call: options, breaking, counting (fake_api.h)
 *     fake_memory.c   allocations, pinned host memory
 *     fake_open.c     what may be touched, opening and closing it
 *     fake_vmm.c      reserved ranges, handles, mappings
 *     fake_queue.c    operations: queueing, order, time, running
 *     fake_stream.c   the calls about streams, events and copies
 *     fake_graph.c    kernels, captures and graphs
 *     fake_lt.c       cuBLASLt
 *     fake_wrong.c    results that are made wrong
 *     fake_script.c   breaking it by a line of text
 *
 * A call of the table is
 *     cu_result r = fk_enter(CALL_x);
 *     if (r == CU_OK) r = do_it();
 *     return fk_leave(r);
 * and everything between holds the lock.
 *
 * Thread: fk is guarded by its lock, fk_me is the thread's own. */
#ifndef INFERD_FAKE_INNER_H
#define INFERD_FAKE_INNER_H

#include <pthread.h>

#include "fake_api.h"
#include "inferd/base.h"

/* ---- calls ---- */

enum {
    NEEDS_DEVICE = 1, // of a thread that called device_use
    NO_CAPTURE = 2,   // not while the thread captures
    GIVES_BACK = 4,   // takes nothing; still counts when the context is lost
    BEFORE_INIT = 8,  // works without init
    SURVIVES = 16     // works with a lost context (NVML; what the libraries know without asking it)
};

#define FAKE_CALLS(X)                                                                              \
    X(init, BEFORE_INIT | SURVIVES)                                                                \
    X(device_count, SURVIVES)                                                                      \
    X(device_about, SURVIVES)                                                                      \
    X(device_health, SURVIVES)                                                                     \
    X(device_use, 0)                                                                               \
    X(device_blocking, NEEDS_DEVICE | NO_CAPTURE)                                                  \
    X(memory_info, NEEDS_DEVICE | NO_CAPTURE)                                                      \
    X(alloc, NEEDS_DEVICE | NO_CAPTURE)                                                            \
    X(free, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                                \
    X(host_alloc, NEEDS_DEVICE | NO_CAPTURE)                                                       \
    X(host_free, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                           \
    X(host_pin, NEEDS_DEVICE | NO_CAPTURE)                                                         \
    X(host_unpin, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                          \
    X(vmm_granularity, NEEDS_DEVICE | NO_CAPTURE)                                                  \
    X(vmm_reserve, NEEDS_DEVICE | NO_CAPTURE)                                                      \
    X(vmm_unreserve, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                       \
    X(vmm_create, NEEDS_DEVICE | NO_CAPTURE)                                                       \
    X(vmm_release, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                         \
    X(vmm_map, NEEDS_DEVICE | NO_CAPTURE)                                                          \
    X(vmm_unmap, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                           \
    X(vmm_access, NEEDS_DEVICE | NO_CAPTURE)                                                       \
    X(stream_create, NEEDS_DEVICE | NO_CAPTURE)                                                    \
    X(stream_destroy, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                      \
    X(stream_sync, NEEDS_DEVICE | NO_CAPTURE)                                                      \
    X(stream_wait, NEEDS_DEVICE)                                                                   \
    X(event_create, NEEDS_DEVICE)                                                                  \
    X(event_destroy, NEEDS_DEVICE | GIVES_BACK)                                                    \
    X(event_record, NEEDS_DEVICE)                                                                  \
    X(event_query, NEEDS_DEVICE | NO_CAPTURE)                                                      \
    X(event_sync, NEEDS_DEVICE | NO_CAPTURE)                                                       \
    X(event_elapsed_us, NEEDS_DEVICE | NO_CAPTURE)                                                 \
    X(copy_to_device, NEEDS_DEVICE)                                                                \
    X(copy_to_host, NEEDS_DEVICE)                                                                  \
    X(copy_on_device, NEEDS_DEVICE)                                                                \
    X(fill, NEEDS_DEVICE)                                                                          \
    X(kernel_load, NEEDS_DEVICE | NO_CAPTURE)                                                      \
    X(kernel_carve_out, NEEDS_DEVICE | NO_CAPTURE)                                                 \
    X(launch, NEEDS_DEVICE)                                                                        \
    X(capture_begin, NEEDS_DEVICE)                                                                 \
    X(capture_end, NEEDS_DEVICE)                                                                   \
    X(graph_launch, NEEDS_DEVICE | NO_CAPTURE)                                                     \
    X(graph_destroy, NEEDS_DEVICE | NO_CAPTURE | GIVES_BACK)                                       \
    X(lt_open, NO_CAPTURE)                                                                         \
    X(lt_candidates, NEEDS_DEVICE | NO_CAPTURE)                                                    \
    X(lt_matmul, NEEDS_DEVICE)

typedef enum fake_call {
#define CALL_NAME(name, flags) CALL_##name,
    FAKE_CALLS(CALL_NAME)
#undef CALL_NAME
        CALL_COUNT
} fake_call;

/* ---- memory ---- */

enum { FAKE_CHUNKS = 1 << 18 }; // of 1 MiB: all device addresses
enum { FAKE_EDGE = 0xC5, FAKE_EDGE_BYTES = 64 };

#if defined(__SANITIZE_ADDRESS__)
#define FAKE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FAKE_ASAN 1
#endif
#endif
#ifndef FAKE_ASAN
#define FAKE_ASAN 0
#endif

typedef struct fake_span { // [begin, end)
    uintptr_t begin, end;
} fake_span;

typedef enum fake_alloc_kind { ALLOC_DEVICE, ALLOC_HOST, ALLOC_PINNED } fake_alloc_kind;

typedef struct fake_alloc { // cudaMalloc, cudaMallocHost, cudaHostRegister
    struct fake_alloc *next;
    fake_alloc_kind kind;
    fake_span at;    // exact
    fake_span pages; // of device memory: whole pages; pinned: what the pages cover
    uint64_t serial;
    uint32_t device;
} fake_alloc;

typedef struct fake_handle {
    struct fake_handle *next;
    cu_handle id;
    size_t n_bytes, offset; // in the file
    uint32_t n_mapped, device;
    bool released;
} fake_handle;

typedef struct fake_mapping {
    struct fake_mapping *next;
    fake_span at;
    fake_handle *handle;
    bool access;
} fake_mapping;

typedef struct fake_range { // vmm_reserve
    struct fake_range *next;
    fake_span at;
    uint64_t serial;
} fake_range;

typedef struct fake_memory {
    uintptr_t base, end, next; // device addresses; [next, end) was never given out
    bool has_file;
    int file;                    // of handles
    size_t file_next, file_size; // [file_next, ) was never given out
    fake_alloc *allocs;
    fake_handle *handles;
    fake_mapping *mappings; // sorted by address
    fake_range *ranges;
    uint64_t held[FAKE_DEVICES_MAX];
    fake_span *open;       // sorted: what work may touch, exactly
    fake_span *open_pages; // the same in pages
    uint32_t n_open, n_open_pages, open_max, last_open;
    bool open_stale;                 // the lists are not what they should be
    bool chunk_open[FAKE_CHUNKS];    // to the work at hand
    uint32_t chunks[4096], n_chunks; // which; n_chunks may be more
} fake_memory;

/* ---- streams ---- */

/* One record of an event.  Waiting is for a mark, so recording the event again changes nothing for
 * those that wait already. */
typedef struct fake_mark {
    uint32_t refs;
    bool done, lost;
    uint64_t time_ns;
    struct cu_stream_t *home; // where it is queued; NULL once done
} fake_mark;

typedef enum fake_op_kind {
    OP_TO_DEVICE,
    OP_TO_HOST,
    OP_ON_DEVICE,
    OP_FILL,
    OP_LAUNCH,
    OP_LT,
    OP_RECORD,
    OP_WAIT,
    OP_GRAPH
} fake_op_kind;

typedef struct fake_op {
    struct fake_op *next;
    fake_op_kind kind;
    uint64_t issued_ns;
    void *dst;             // copies, fill; lt: out
    const void *src;       // copies; lt: x
    const void *w;         // lt
    void *workspace;       // lt
    size_t n;              // bytes; lt: of the workspace
    uint8_t byte;          // fill
    unsigned char *staged; // copy from memory that is not pinned: what it was at the call
    const cu_kernel *kernel;
    cu_launch launch;
    lt_shape shape;
    uint32_t lt_algo;
    fake_mark *mark;                     // record: of it; wait, graph: to wait for, may be NULL
    fake_mark *after;                    // graph: done at its end
    struct cu_graph_t *graph;            // held
    uint32_t node_idx;                   // graph: the next to run
    _Alignas(16) unsigned char params[]; // launch
} fake_op;

struct cu_stream_t {
    struct cu_stream_t *next;
    uint64_t serial;
    uint32_t device;
    bool urgent, destroyed; // destroyed: goes when its queue is empty
    uint64_t clock_ns;
    fake_op *head, **tail;
    struct fake_capture *capture;
};

struct cu_event_t {
    struct cu_event_t *next;
    uint64_t serial;
    uint32_t device;
    bool timed, blocking;
    bool captured;                // its newest record is in a capture
    struct fake_capture *capture; // which one, while that goes on
    fake_mark *mark;              // of its newest record; NULL: never recorded
};

struct cu_graph_t {
    struct cu_graph_t *next;
    uint64_t serial;
    uint32_t refs, device; // the owner's and one for each queued launch
    bool destroyed;
    fake_op **nodes;
    uint32_t n_nodes, nodes_max;
    fake_mark *newest; // of its newest launch: launches of one graph do not overlap
};

typedef struct fake_capture {
    struct cu_stream_t *stream;
    struct cu_graph_t *graph;
    uint64_t thread;
    char broken[CU_TEXT_BYTES]; // why capture_end will fail; "" when it will not
    bool dependent;             // it holds a dependent launch
} fake_capture;

typedef struct fake_loaded { // a kernel and what it was loaded with
    const cu_kernel *kernel;
    uint32_t threads, shared_bytes;
    uint64_t generation; // of the fake; otherwise it is not loaded
} fake_loaded;

/* ---- the state ---- */

typedef struct fake_rule { // a failure to come
    uint32_t left;         // calls until it happens; 0: none
    bool always;
    cu_result result;
    bool own; // only of calls by `thread`
    pthread_t thread;
} fake_rule;

typedef struct fake_state {
    pthread_mutex_t lock;
    fake_opts opt;
    uint64_t generation;           // goes up with every reset
    uint64_t random, seed, serial; // random began with seed
    bool initialized, failed, lt_opened;
    bool lost, lost_on[FAKE_DEVICES_MAX];          // the process; a device (opt.lost_alone)
    uint32_t visible[FAKE_DEVICES_MAX], n_visible; // of opt.device, since init
    int32_t running_on;                            // the device whose work runs; -1: none
    char lost_why[CU_TEXT_BYTES];
    uint64_t calls[CALL_COUNT], uses[FAKE_DEVICES_MAX];
    fake_rule rule_any, rules[CALL_COUNT];
    uint32_t lose_event_in, lose_context_in; // 0: never
    uint32_t n_violations;
    char violation[768];
    fake_counts counts;
    uint64_t host_ns;
    fake_memory mem;
    struct cu_stream_t *streams;
    struct cu_event_t *events;
    struct cu_graph_t *graphs;
    fake_loaded kernels[FAKE_KERNELS_MAX]; // never forgotten
    uint32_t n_kernels;
    const char *running;      // name of the kernel or operation at work
    uintptr_t refused;        // to the emulated kernel at work, just now; 0: allowed
    volatile uintptr_t fault; // the first address that the work at hand touched and might not
} fake_state;

typedef struct fake_thread {
    uint64_t id, generation; // of the fake when the rest was set
    int32_t device;          // -1: no device_use yet
    fake_capture *capture;   // that this thread began
    volatile bool executing;
    char text[CU_TEXT_BYTES];
} fake_thread;

extern fake_state fk;
extern _Thread_local fake_thread fk_me;

/* fake_api.c */
cu_result fk_enter(fake_call call);
cu_result fk_leave(cu_result r); // unlocks, returns r
__attribute__((format(printf, 2, 3))) cu_result fk_say(cu_result r, const char *format, ...);
__attribute__((format(printf, 1, 2))) void fk_violate(const char *format, ...);
/* Of the device whose work runs, else of the calling thread's. */
__attribute__((format(printf, 1, 2))) void fk_lose(const char *format, ...);
__attribute__((format(printf, 2, 3))) cu_result fk_break_capture(fake_capture *c,
                                                                 const char *format, ...);
bool fk_is_lost(int32_t device); // -1: no device, only the process counts
uint32_t fk_draw(uint32_t n);    // in [0, n)
__attribute__((format(printf, 1, 2))) void fk_leaked(const char *format, ...);
/* Calls that give something back do so in a lost context too, and still say that it is lost. */
static inline bool gives_back(cu_result entered) {
    return entered == CU_OK || entered == CU_ELOST;
}
cu_result fk_lost_or(cu_result entered, cu_result then);
void fk_look(void);  // what enter is for calls, for the functions of fake_api.h; leave ends it
void fk_reset(void); // locked
uint32_t fk_leaks(void);
bool fk_has_call(const char *name);
fake_call fk_call_of(const char *name); // ends the program when there is none

/* fake_memory.c */
static inline uintptr_t span_up(uintptr_t x, size_t to) { // a power of two
    return (x + to - 1) & ~(uintptr_t)(to - 1);
}
static inline bool span_inside(fake_span inner, fake_span outer) {
    return inner.begin >= outer.begin && inner.end <= outer.end;
}
static inline bool span_meets(fake_span a, fake_span b) {
    return a.begin < b.end && b.begin < a.end;
}
static inline fake_span span_of(const void *p, size_t n) {
    uintptr_t begin = (uintptr_t)p;
    return (fake_span){begin, begin + n < begin ? UINTPTR_MAX : begin + n};
}
cu_result fk_memory_take(size_t n);                         // of the capacity of the device in use
uintptr_t fk_memory_take_addresses(size_t n, size_t align); // 0: none left
void fk_memory_unmap(fake_span pages);
void fk_memory_reset(void);
uint32_t fk_memory_leaks(void);
bool fk_memory_is_known(const void *p, size_t n); // in one allocation or reserved range
typedef enum fake_pinned { PINNED_NONE, PINNED_WHOLE, PINNED_PART } fake_pinned;
fake_pinned fk_memory_pinned(const void *p, size_t n);
void fk_memory_api(cu_api *api);

/* fake_open.c */
void fk_memory_begin(void);
bool fk_memory_may_touch(uintptr_t p,
                         size_t n); // device memory that is mapped with access, exactly
bool fk_memory_is_device_address(const void *p);
void fk_memory_describe_refused(char *out,
                                size_t n_bytes); // the newest refusal to an emulated kernel
void fk_memory_begin_work(void);                 // from here on faults open memory,
void fk_memory_close_all(void);                  // and from here on not; leave calls it
void fk_memory_open(const void *p, size_t n);    // before work with known addresses
void fk_memory_look_for_faults(void); // of the work that has just run: the context is lost
void fk_memory_check_edges(void);     // the bytes around allocations are still what they were
void fk_memory_change(void);          // before anything is mapped, unmapped, allocated or freed

/* fake_vmm.c */
uint32_t fk_vmm_leaks(void);
void fk_vmm_reset(void);
void fk_vmm_api(cu_api *api);

/* fake_queue.c */
fake_op *fk_op_create(fake_op_kind kind, uint32_t params_bytes); // NULL: no host memory, said so
void fk_op_destroy(fake_op *op);
cu_result fk_op_submit(struct cu_stream_t *s, fake_op *op); // queues or captures; takes op
fake_mark *fk_mark_create(void);
void fk_mark_release(fake_mark *m);      // accepts NULL
bool fk_run_step(struct cu_stream_t *s); // false: empty or waiting
/* Run until the stream is empty (until NULL) or the mark is done; false: it never will be. */
bool fk_run_until(struct cu_stream_t *s, fake_mark *until);
void fk_run_some(uint32_t n_steps); // of streams drawn by chance
void fk_queue_must_not_touch(const void *p, size_t n, const char *what); // else it is a violation
void fk_queue_reset(void);
uint32_t fk_queue_pending(void);
void fk_graph_release(struct cu_graph_t *g);

/* fake_stream.c */
uint32_t fk_stream_leaks(void);
void fk_stream_reset(void);
void fk_stream_api(cu_api *api);
cu_result fk_stream_check(struct cu_stream_t *s); // a live stream of the device in use

/* fake_graph.c */
uint32_t fk_graph_leaks(void);
void fk_graph_reset(void);
void fk_graph_api(cu_api *api);
cu_result fk_kernel_run(const fake_op *op);
/* What ran so far has ended, for the rules of dependent launches. */
void fk_settle(void);

/* fake_wrong.c */
void fk_wrong_before(const fake_op *op); // a kernel that is about to run,
void fk_wrong_after(void);               // and that has run
void fk_wrong_product(const fake_op *op);

/* fake_lt.c */
void fk_lt_api(cu_api *api);
uint64_t fk_lt_run(const fake_op *op); // nanoseconds it took

#endif
