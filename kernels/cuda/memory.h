/* memory.h - the device memory of one GPU: pages, windows, workspace, and uploads of weights.
 *
 *     arena     reserved range; page i at base + i * page_bytes, mapped once, never moved
 *                 [0, n_ready) usable; the rest is created by a background thread
 *     window    reserved range per model; mapped to whole handles of the arena (aliases) while hot
 *     image     host copy of a window, in device layout; pinned in pieces in the background, from
 *               window_image_take (or the first time that memory_image_of gives an address of it)
 *               to window_image_give or the end of the window
 *     swap      host memory in pages of the same size, for swapped-out keys and values; pinned like
 *               images, in pieces that are allocated and freed
 *     workspace taken from the same handles before pages are counted: split sums, cuBLASLt, ...
 *     scratch   the end of the workspace: activations of all models, in the same memory
 *
 * VMM: a handle is extent_pages pages (2, 4 ... 64 MiB; chosen by a probe at open: the smallest
 * with a mapping cost of at most 5 % of the bus time of its bytes).  Without VMM the arena
 * is one allocation, extent_pages is 0 and a window is a run of neighbouring pages.
 *
 * Uploads go image -> device on the copy stream, in units; each unit ends with an event, and
 * memory_wait makes a stream wait for the unit that holds an address.
 *
 * Fences: the scheduler gives out a page only when the steps that used it are finished.  For copies
 * this module is responsible: unmapping waits for the copy stream.
 *
 * After any failure everything taken is given back, and the error names the call and the amount.
 *
 * Thread: engine, except for the two background threads inside. */
#ifndef INFERD_CUDA_MEMORY_H
#define INFERD_CUDA_MEMORY_H

#include "cuda/cu_api.h"
#include "cuda/module.h"
#include "cuda/parts.h"

typedef struct cuda_memory cuda_memory;
typedef struct cuda_window cuda_window;

typedef struct cuda_memory_options {
    uint64_t memory_bytes;    // pages and workspace together; 0 = free - reserve
    uint64_t reserve_bytes;   // 0 = max(1 GiB, 2 % of the device)
    uint64_t workspace_bytes; // 0 = memory / 16, at least 64 MiB, at most 2 GiB, but at least
    uint64_t workspace_least; // this, if it is not more than half of the memory
    uint64_t host_bytes;      // that images may take; 0 = all memory of the machine
    uint32_t ready_pages_min; // pages to make before open returns; 0 = 64 MiB worth
    size_t page_bytes;        // 0 = 2 MiB (tests use smaller ones if the granularity allows)
    cuda_parts *parts; // the parts that may be used; fallbacks are recorded there; NULL: all parts
} cuda_memory_options;

inferd_status memory_open(const cu_api *api, uint32_t device_index, const cu_device *device,
                          const cuda_memory_options *options, cuda_memory **out, inferd_err *err);
void memory_close(cuda_memory *m); // accepts NULL; windows are closed

void *memory_base(const cuda_memory *m);
uint32_t memory_n_pages(const cuda_memory *m); // may shrink while the background thread works
uint32_t memory_n_ready(const cuda_memory *m);
size_t memory_page_bytes(const cuda_memory *m);
uint32_t memory_extent_pages(const cuda_memory *m);
/* Driver calls of the engine's thread that take, give or map memory.  Only opening, closing, and
 * windows that open, close, map or unmap increase it: no upload, no step. */
uint64_t memory_n_calls(const cuda_memory *m);

/* 256-byte aligned device memory; NULL and a sentence when the workspace is used up. */
void *memory_workspace_take(cuda_memory *m, size_t n, inferd_err *err);
void memory_workspace_give(cuda_memory *m, void *address); // accepts NULL
/* The last n bytes of the workspace, which grow downwards and are never given back: their contents
 * keep their address.  Returns their end; NULL and a sentence when other pieces are in the way. */
unsigned char *memory_scratch_hold(cuda_memory *m, size_t n, inferd_err *err);
size_t memory_scratch_held(const cuda_memory *m);
/* The largest free piece, and the free bytes that the scratch could grow by: often the same. */
void memory_workspace_look(const cuda_memory *m, size_t *largest, size_t *before_scratch);
uint64_t memory_host_bytes(const cuda_memory *m); // that images may take; 0: unknown

inferd_status window_open_cuda(cuda_memory *m, size_t n_bytes, cuda_window **out, inferd_err *err);
void window_close_cuda(cuda_memory *m, cuda_window *w); // accepts NULL
void *window_base_cuda(const cuda_window *w);           // without VMM: NULL while not mapped
/* Whole extents in order, below memory_n_ready, in no window; INFERD_CHECKed.  They may be fewer
 * than the window's bytes need. */
inferd_status window_map_cuda(cuda_memory *m, cuda_window *w, const uint32_t *pages,
                              uint32_t n_pages, inferd_err *err);
inferd_status window_unmap_cuda(cuda_memory *m, cuda_window *w, inferd_err *err);
/* Host address of the copy of device address p, which lies in an open window (without VMM: a
 * mapped one), or p itself when it lies in such a copy; NULL: in none.  The first call for a
 * window starts the pinning of its copy. */
void *memory_image_of(cuda_memory *m, const void *p);
/* Before the copy is filled; INFERD_ENOMEM: there is no memory for it.  / Frees its memory;
 * nothing of it is in flight to the device. */
inferd_status window_image_take(cuda_memory *m, cuda_window *w, inferd_err *err);
void window_image_give(cuda_memory *m, cuda_window *w); // accepts one that was not taken
void *window_image_cuda(const cuda_window *w);
/* Instead of window_image_take: what is written there is on its way to the device.  Its bytes
 * [0, end) have arrived, and whole pieces of them are free.  Counts for no host_bytes. */
void window_image_pass(cuda_memory *m, cuda_window *w, size_t end);
/* Queue bytes [begin, end) of the image, as one unit.  The window is mapped. */
inferd_status window_upload_cuda(cuda_memory *m, cuda_window *w, size_t begin, size_t end,
                                 inferd_err *err);
/* The same from the device to the image, which was taken. */
inferd_status window_download_cuda(cuda_memory *m, cuda_window *w, size_t begin, size_t end,
                                   inferd_err *err);
/* Bytes of the window that are still in flight. */
inferd_status window_pending_cuda(cuda_memory *m, const cuda_window *w, size_t *out,
                                  inferd_err *err);

/* Host pages for swapped-out keys and values: how many there may be, and how many are allocated and
 * freed together. */
uint32_t memory_n_swap_pages(const cuda_memory *m);
uint32_t memory_swap_extent_pages(const cuda_memory *m);
/* Allocate memory for the first extent, if there is room, so that it is pinned when it is used. */
void memory_swap_prepare(cuda_memory *m);
/* The page needs host memory that is only free after spare extents are trimmed. */
bool memory_swap_is_short(const cuda_memory *m, uint32_t page);
/* The address of the page; from now on its extent takes host memory. */
unsigned char *memory_swap_page(cuda_memory *m, uint32_t page);
/* The extent that begins at first_page is empty.  True: there is memory to trim.  / Free the memory
 * of such extents; no copy to or from them is in flight. */
bool memory_swap_give(cuda_memory *m, uint32_t first_page);
void memory_swap_trim(cuda_memory *m);

/* `s` waits until the bytes at p (in a window) have arrived.  Outside captures only.  Streams are
 * known by their value: a stream that has waited here must live until nothing is in flight. */
inferd_status memory_wait(cuda_memory *m, cu_stream s, const void *p, inferd_err *err);
/* Nothing is in flight: no wait is needed for any address.  False also when that cannot be known;
 * the next memory_wait for an address that may be missing has the error. */
bool memory_all_arrived(cuda_memory *m);
/* Nothing of the window that holds p was in flight at the last memory_all_arrived, which asks the
 * device; this does not.  True for an address in no window. */
bool memory_window_arrived(const cuda_memory *m, const void *p);
/* Wait on the host for the copy stream. */
inferd_status memory_sync(cuda_memory *m, inferd_err *err);

typedef struct cuda_memory_stats {
    uint64_t handle_bytes, n_handles;     // 0 without VMM
    uint64_t n_pages_planned;             // memory_n_pages is smaller when the device had less
    uint64_t n_maps, n_unmaps;            // of windows
    uint64_t n_calls, n_background_calls; // see memory_n_calls; those of the two threads
    uint64_t load_bytes, load_us;         // uploads that have arrived; time with any in flight
    uint64_t bus_bytes_per_s;             // measured at open with pinned memory
    uint64_t pinned_bytes, image_bytes;   // images in use
    uint64_t workspace_used, workspace_bytes;
} cuda_memory_stats;
void memory_get_stats(cuda_memory *m, cuda_memory_stats *out);

#endif
