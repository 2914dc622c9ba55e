/* memory_private.h - declarations shared by the files of the device memory; see memory.h.
 *
 *     memory.c     sizes, opening, closing, numbers
 *     handles.c    the size of a handle, making handles, the thread that makes the rest
 *     window.c     windows: ranges that show blocks of the arena
 *     image.c      host copies of windows, the thread that pins them
 *     upload.c     units on the copy stream, and waits for them
 *     swap.c       host pages for swapped-out keys and values
 *     workspace.c  pieces of the workspace
 *
 *     arena   [ workspace | page 0 | page 1 | ...               ]
 *             [ handle 0  | handle 1      | handle 2      | ... ]   VMM
 *
 * Windows consist of *blocks*: a block is a handle (an extent of pages), without VMM a page.
 *
 * Thread: engine, except where noted. */
#ifndef INFERD_CUDA_MEMORY_PRIVATE_H
#define INFERD_CUDA_MEMORY_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/memory.h"

enum { WAITING_STREAMS_MAX = 8 };

/* A range of a window in flight to the device; lives in `pending`, then in `spare`. */
typedef struct unit {
    struct unit *next;
    cu_event event;                   // at its end; timed
    cuda_window *window;              // NULL: forgotten
    const unsigned char *begin, *end; // device addresses
    uint64_t seq;                     // 1, 2, ... in the order of the copy stream
} unit;

/* The copy stream is in order, so units land in order, and a stream that waited for a unit has
 * waited for those before it. */
typedef struct uploads {
    cu_stream stream;
    cu_event begin, end; // timed; `begin`: the bus was idle before.  `end` only while opening
    unit *first, *last;  // pending, oldest first; owned
    uint32_t n_pending;
    unit *spare; // owned, with their events
    uint64_t seq;
    struct {
        cu_stream stream;
        uint64_t seq; // of the newest unit it waited for
    } waited[WAITING_STREAMS_MAX];
    uint32_t n_waited, next_waited;
    uint64_t load_bytes, load_us;
    uint64_t load_us_before; // load_us when the bus was idle last
} uploads;

/* The host copy of a window. */
typedef struct image {
    unsigned char *p; // [n_bytes], huge-page aligned
    size_t n_bytes;   // whole small pages
    void *mapped;     // for munmap
    size_t mapped_bytes;
    bool used;                 // engine: its address was given out, so it holds host memory
    bool passes;               // engine: image_pass
    size_t passed_bytes;       // under images.lock: of those, [0, passed_bytes) were let go
    size_t pinned_bytes;       // under images.lock: [0, pinned_bytes) is pinned, in pieces
    struct image *next_to_pin; // under images.lock
} image;

typedef struct images {
    uint64_t machine_bytes; // 0: unknown
    uint64_t host_bytes;    // of those, for images; 0: unknown
    uint64_t used_bytes;
    pthread_t pinner;
    bool has_pinner, has_lock;
    bool pins; // the part is on
    pthread_mutex_t lock;
    pthread_cond_t changed;
    image *first, *last;         // under lock: to pin, in order
    image *pinning;              // under lock: the pinner works on it
    bool closing;                // under lock
    uint64_t pinned_bytes;       // under lock
    char refused[CU_TEXT_BYTES]; // under lock: the driver's message when it refused to pin; or ""
} images;

/* Host memory of some pages of keys and values: see swap.c. */
typedef struct swap_piece {
    image image; // with addresses of the swap range
    bool taken;
} swap_piece;

typedef struct swap_memory {
    unsigned char *base; // of page 0
    void *mapped;        // for munmap
    size_t mapped_bytes;
    swap_piece *pieces; // [n_pieces] owned
    uint32_t n_pieces, n_spare;
} swap_memory;

typedef struct piece {
    size_t begin, n_bytes;
    bool taken;
} piece;

/* The pieces lie side by side and cover the whole workspace; no two free ones are neighbours. */
typedef struct workspace {
    unsigned char *base;
    size_t n_bytes, used_bytes;
    piece *pieces; // [n_pieces] by address; owned
    uint32_t n_pieces, n_room;
    bool has_scratch; // then it is the last piece
} workspace;

struct cuda_window {
    cuda_window *next;   // in cuda_memory.windows
    size_t n_bytes;      // as asked
    size_t range_bytes;  // whole blocks
    unsigned char *base; // without VMM NULL while nothing is mapped
    size_t alias_bytes;  // VMM: from base on, what is mapped there
    uint32_t *blocks;    // [range_bytes / block] the first n_blocks are in use; owned
    uint32_t n_blocks;   // 0: not mapped
    uint32_t n_pending;  // its units in flight
    bool loose;          // copies were queued that no unit's event covers
    image image;
};

struct cuda_memory {
    const cu_api *api;
    cuda_parts *parts; // may be NULL
    uint32_t device_index;
    bool vmm;
    size_t page_bytes, block_bytes;
    uint32_t block_pages; // a block's
    uint32_t workspace_blocks;
    uint32_t n_blocks_planned; // workspace included

    unsigned char *arena; // VMM: a reserved range; else one allocation
    size_t arena_bytes;
    unsigned char *pages; // page 0
    cu_handle *handles;   // [n_blocks_planned] VMM; the first n_made exist and are mapped; owned
    uint32_t n_made;      // of the thread that makes handles, while it runs
    uint8_t *held;        // [blocks of pages] 1: in a window; owned

    pthread_t grower;
    bool has_grower;
    atomic_bool closing;
    atomic_uint n_pages, n_ready; // written by the thread that makes handles
    atomic_ullong n_calls, n_background_calls;

    uint64_t bus_bytes_per_s;
    uint64_t n_maps, n_unmaps;
    cuda_window *windows;
    uploads up;
    images images;
    swap_memory swap;
    workspace work;
};

/* Calls that take or give memory, or change what an address shows, are counted: those of the engine
 * in n_calls, those of the two threads in n_background_calls. */
#define COUNTED(counter, call)                                                                     \
    (atomic_fetch_add_explicit(&(counter), 1, memory_order_relaxed), call)

static inline size_t round_up_size(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* The library's failure `r` in a sentence that begins with the formatted words. */
__attribute__((format(printf, 4, 5))) inferd_status
memory_fail(const cuda_memory *m, cu_result r, inferd_err *err, const char *format, ...);

/* -- handles.c -- */
/* Bus first, then the handle size: block_bytes and block_pages. */
inferd_status bus_measure(cuda_memory *m, uint64_t memory_bytes, inferd_err *err);
inferd_status handles_choose(cuda_memory *m, uint64_t memory_bytes, inferd_err *err);
/* n_blocks_planned handles, of which workspace_blocks + n_first now. */
inferd_status handles_open(cuda_memory *m, uint32_t n_first, inferd_err *err);
/* Device addresses; the driver chooses where when it does not align them. */
cu_result handles_reserve(cuda_memory *m, size_t n, size_t align, void **out);
void handles_stop(cuda_memory *m); // the thread
void handles_close(cuda_memory *m);

/* -- upload.c -- */
inferd_status uploads_open(cuda_memory *m, inferd_err *err);
void uploads_close(cuda_memory *m);
/* Wait on the host until nothing of the window is in flight. */
inferd_status uploads_finish(cuda_memory *m, cuda_window *w, inferd_err *err);
void uploads_forget(cuda_memory *m, cuda_window *w);

/* -- image.c -- */
inferd_status images_open(cuda_memory *m, inferd_err *err);
void images_close(cuda_memory *m);
inferd_status image_open(image *im, size_t n_bytes, inferd_err *err);
void image_close(cuda_memory *m, image *im);
/* Free its memory; its addresses stay. */
void image_empty(cuda_memory *m, image *im);
/* The machine has room for the copy, as far as we know. */
inferd_status image_check_room(const cuda_memory *m, const image *im, inferd_err *err);
/* Before it is filled: it counts as used, and the background thread pins it. */
void image_use(cuda_memory *m, image *im);
/* Use it, from now on, only for bytes on their way to the device; [0, end) have arrived. */
void image_pass(cuda_memory *m, image *im, size_t end);

uint64_t images_pinned_bytes(cuda_memory *m); // any thread
/* A refusal to pin becomes the part's state. */
void images_tell_refusal(cuda_memory *m);

/* -- swap.c -- */
inferd_status swap_open(cuda_memory *m, inferd_err *err);
void swap_close(cuda_memory *m);

/* -- workspace.c -- */
inferd_status workspace_open(workspace *ws, void *base, size_t n_bytes, inferd_err *err);
void workspace_close(workspace *ws);

#endif
