/* cuda_kv.c - copies of keys and values to host memory and back.
 *
 *     step stream   [ step 1 ]--stepped     [ step 2 ]       .--> [ step 3 ]
 *                                |                          moved
 *     move stream                '--> [ out ][ out ]  [ back ]'
 *
 * Out: the slots may be written by steps that were launched, so the move stream waits for these.
 * Back: no step uses the slots until the next one, so the copy waits for nothing and runs beside
 * the step under way; unless the step stream has zeroed the page meanwhile.
 *
 * In either case the next step waits for the moves: it may write to the source of a copy, and it
 * reads the data that came back.  Zeroing, on the same stream, waits, too.  Weights come on a third
 * stream: the host waits for the moves when their window is mapped.  One stream for both directions
 * keeps the order of copies from and to the same slot, here and on the host.
 *
 * A copy that fails leaves a slot with unknown contents, to which names of the prefix cache point.
 * So the device counts as lost.
 *
 * Thread: engine. */
#include "cuda/cuda.h"

static bool moves_failed(cuda_backend *c, cu_result r, const char *what) {
    inferd_err err = {0};
    if (r == CU_OK) return false;
    cu_fail(c->api, r, &err, what);
    backend_fail(&c->be, INFERD_ELOST, "%s", err.text);
    return true;
}

inferd_status cuda_moves_open(cuda_backend *c, inferd_err *err) {
    c->moves.waited = true;
    cu_result r = c->api->stream_create(false, &c->moves.stream);
    if (r == CU_OK) r = c->api->event_create(0, &c->moves.stepped);
    if (r == CU_OK) r = c->api->event_create(0, &c->moves.moved);
    return r == CU_OK ? INFERD_OK : cu_fail(c->api, r, err, "creating the stream for KV swaps");
}

void cuda_moves_close(cuda_backend *c) {
    if (c->moves.stream != NULL) c->api->stream_sync(c->moves.stream);
    if (c->moves.stepped != NULL) c->api->event_destroy(c->moves.stepped);
    if (c->moves.moved != NULL) c->api->event_destroy(c->moves.moved);
    if (c->moves.stream != NULL) c->api->stream_destroy(c->moves.stream);
}

void cuda_moves_await(cuda_backend *c) {
    if (c->moves.waited) return;
    cu_result r = c->api->event_record(c->moves.moved, c->moves.stream);
    if (r == CU_OK) r = c->api->stream_wait(c->stream, c->moves.moved);
    if (!moves_failed(c, r, "making steps wait for keys and values")) c->moves.waited = true;
}

void cuda_moves_sync(cuda_backend *c) {
    if (!c->moves.pending) return;
    cu_result r = c->api->stream_sync(c->moves.stream);
    if (!moves_failed(c, r, "waiting for keys and values")) c->moves.pending = false;
}

/* Free host memory that holds no keys and values, when no copy uses it any more. */
static void trim(cuda_backend *c) {
    cuda_moves_sync(c);
    memory_swap_trim(c->memory);
}

static unsigned char *in_page(const kv_layout *kv, unsigned char *page, int32_t slot) {
    return page + (size_t)((uint32_t)slot % kv->slots_per_page) * kv->slot_bytes;
}

static unsigned char *on_device(const cuda_backend *c, const kv_layout *kv, int32_t slot) {
    uint32_t page = (uint32_t)slot / kv->slots_per_page;
    INFERD_CHECK(slot >= 0 && page < memory_n_ready(c->memory));
    unsigned char *base = memory_base(c->memory);
    return in_page(kv, base + page * memory_page_bytes(c->memory), slot);
}

static unsigned char *on_host(cuda_backend *c, const kv_layout *kv, int32_t slot) {
    INFERD_CHECK(slot >= 0);
    uint32_t page = (uint32_t)slot / kv->slots_per_page;
    if (memory_swap_is_short(c->memory, page)) trim(c);
    return in_page(kv, memory_swap_page(c->memory, page), slot);
}

/* Slots from the i-th on that lie side by side, each run in one page. */
static uint32_t run_length(const kv_layout *kv, const int32_t *slots, uint32_t n) {
    uint32_t length = 1;
    while (length < n && slots[length] == slots[0] + (int32_t)length &&
           (uint32_t)slots[length] % kv->slots_per_page != 0)
        length++;
    return length;
}

/* Work of the step stream so far comes before the moves that follow. */
static cu_result follow_steps(cuda_backend *c) {
    cu_result r = c->api->event_record(c->moves.stepped, c->stream);
    if (r == CU_OK) r = c->api->stream_wait(c->moves.stream, c->moves.stepped);
    if (r == CU_OK) c->moves.zeroed = false;
    return r;
}

void cuda_kv_move(backend *be, const kv_layout *kv, uint32_t n, const int32_t *from,
                  const int32_t *to, bool to_host) {
    cuda_backend *c = cuda_of(be);
    cu_result r = to_host || c->moves.zeroed ? follow_steps(c) : CU_OK;
    c->moves.waited = false;
    c->moves.pending = true;
    for (uint32_t i = 0, run; i < n && r == CU_OK; i += run) {
        run = u32_min(run_length(kv, from + i, n - i), run_length(kv, to + i, n - i));
        size_t n_bytes = run * kv->slot_bytes;
        if (to_host)
            r = c->api->copy_to_host(on_host(c, kv, to[i]), on_device(c, kv, from[i]), n_bytes,
                                     c->moves.stream);
        else
            r = c->api->copy_to_device(on_device(c, kv, to[i]), on_host(c, kv, from[i]), n_bytes,
                                       c->moves.stream);
    }
    moves_failed(c, r, to_host ? "swapping out keys and values" : "swapping in keys and values");
}

unsigned char *cuda_kv_slot(backend *be, const kv_layout *kv, int32_t slot) {
    cuda_backend *c = cuda_of(be);
    cuda_moves_sync(c);
    return on_host(c, kv, slot);
}

uint32_t cuda_n_swap_pages(const backend *be) {
    return memory_n_swap_pages(cuda_of_const(be)->memory);
}

uint32_t cuda_swap_extent_pages(const backend *be) {
    return memory_swap_extent_pages(cuda_of_const(be)->memory);
}

void cuda_swap_empty(backend *be, uint32_t first_page) {
    cuda_backend *c = cuda_of(be);
    if (memory_swap_give(c->memory, first_page)) trim(c);
}
