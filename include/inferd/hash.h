/* hash.h - FNV-1a in 64 bits: hash tables, seeds, fingerprints.
 *
 *   h = hash_bytes(HASH_BEGIN, name, n)       or hash_step for each number
 *
 * A step moves bits only upwards, so the last input is mostly in the low bits: fold a hash before
 * taking some of its bits.  Chosen inputs can collide, so a hash must not identify anything that
 * must not be forged.
 *
 * Thread: any. */
#ifndef INFERD_HASH_H
#define INFERD_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HASH_FN __host__ __device__ static inline
#else
#define HASH_FN static inline
#endif

#define HASH_BEGIN  UINT64_C(0xcbf29ce484222325)
#define HASH_FACTOR UINT64_C(0x100000001b3)

HASH_FN uint64_t hash_step(uint64_t h, uint64_t x) {
    return (h ^ x) * HASH_FACTOR;
}
HASH_FN uint64_t hash_bytes(uint64_t h, const void *p, size_t n) {
    const unsigned char *at = (const unsigned char *)p;
    for (size_t i = 0; i < n; i++) h = hash_step(h, at[i]);
    return h;
}
HASH_FN uint64_t hash_fold(uint64_t h) {
    return h ^ h >> 32;
}

#endif
