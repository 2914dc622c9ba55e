/* ring.h - a bounded queue of values between two threads.
 *
 * One thread pushes, one thread pops; elements are copied in and out.  `head` and `tail` are never
 * reset (they wrap with 32 bits), so full and empty differ: tail - head is the fill.
 *
 *   [head, tail)  pushed, not popped yet
 *
 * Always: 0 <= tail - head <= capacity, a power of two.
 * Thread: ring_push* producer, ring_pop consumer, ring_fill either. */
#ifndef INFERD_RING_H
#define INFERD_RING_H

#include <stdatomic.h>
#include <string.h>

#include "inferd/base.h"
#include "inferd/status.h"

typedef struct ring {
    unsigned char *slots; // [capacity * element_bytes]; owned
    size_t element_bytes;
    uint32_t capacity;             // a power of two
    _Alignas(64) atomic_uint head; // next to pop; written by the consumer
    _Alignas(64) atomic_uint tail; // next to push; written by the producer
} ring;

static inline inferd_status ring_init(ring *r, uint32_t capacity, size_t element_bytes,
                                      inferd_err *err) {
    INFERD_CHECK(capacity > 0 && (capacity & (capacity - 1)) == 0);
    r->slots = calloc(capacity, element_bytes);
    r->element_bytes = element_bytes;
    r->capacity = capacity;
    atomic_init(&r->head, 0);
    atomic_init(&r->tail, 0);
    if (r->slots == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a ring of %u x %zu bytes", capacity,
                           element_bytes);
    return INFERD_OK;
}

static inline void ring_deinit(ring *r) {
    free(r->slots);
    r->slots = NULL;
}

static inline uint32_t ring_fill(const ring *r) {
    uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    return tail - head;
}

/* False: full, nothing was copied. */
static inline bool ring_push(ring *r, const void *element) {
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    if (tail - head == r->capacity) return false;
    memcpy(r->slots + (size_t)(tail & (r->capacity - 1)) * r->element_bytes, element,
           r->element_bytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_release);
    return true;
}

/* False: empty, *element is unchanged. */
static inline bool ring_pop(ring *r, void *element) {
    uint32_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(&r->tail, memory_order_acquire);
    if (head == tail) return false;
    memcpy(element, r->slots + (size_t)(head & (r->capacity - 1)) * r->element_bytes,
           r->element_bytes);
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

#endif
