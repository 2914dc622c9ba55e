// attention.cu - softmax(q . K) . V, K and V in slots: a kernel for decode and one for prefill.
//
// Keys and values.  A slot holds, for one layer, [K, V][kv head][token][head_dim]: 16 tokens of one
// head are one run of 32 * head_dim bytes (4 KiB at 128), and the next 16 may be anywhere.  Such a
// run, a *chunk*, is the unit of look-ups in the block table.  cp.async copies it to shared memory
// in pieces of 16 bytes; ldmatrix reads keys as stored and values transposed (attention_rows.cuh).
//
// Positions that a block must not see (before the window, beyond its last row) are not read but
// replaced by zeros, for keys and values alike: the memory may hold anything, and 0 * NaN is NaN.
// Positions that a single row must not see are masked: their score becomes -infinity and their
// weight 0.
//
//     decode    a row that is alone in its sequence     bandwidth            attention_decode.cuh
//     prefill   up to 128 rows of one sequence          tensor cores         attention_prefill.cuh
//
// Each exists for the two types of keys and five head dimensions; a smaller head_dim runs on the
// next larger kernel, its rows filled up with zeros as they are copied.  The activations' type is
// tested where queries are read and outputs written, once per row, so it needs no further kernels.
//
// Types.  Queries are rounded to the type of keys and values, and so are weights (at most 1).  In
// f16 a finite query beyond 65504 becomes 65504, like keys and values (rows.cu).  Scores, sums and
// outputs are float; the output is rounded to the activations' type.  A NaN score makes its row
// NaN; values that are not finite reach every row of the block that reads them.
//
// Order.  Every sum is formed in an order that follows from positions alone: no float atomics, the
// same bits in every run, for a row alone and among others, and for a prompt in one piece and in
// several.
//
// Registers (ptxas 13.0, sm_80 to sm_90, no spills and no stack): decode is limited to the blocks
// that its shared memory allows on 228 KiB: 5 at 64 (96 registers), 3 up to 128 (168), 2 at 256
// (255); prefill uses up to 255, two blocks.
//
// Dependent launch: the step block (header, rows, tables) was complete before the first kernel of
// the step, so offsets are looked up before wait_predecessor; queries, keys, values and
// workspace are touched after it.
//
// Compiles for sm_80 to sm_90 and passes emulation; not yet run on a GPU.
#include "cuda/attention_decode.cuh"
#include "cuda/attention_prefill.cuh"

// ---- kernels ----
// Blocks per multiprocessor: limited by 228 KiB of shared memory (decode), registers (prefill).
#define DECODE_BLOCKS(D)  (D <= 64 ? 5 : D <= 128 ? 3 : 2)
#define PREFILL_BLOCKS(D) 2
#define THREADS           (+ATTENTION_THREADS)
#define KERNELS_OF(T, D)                                                                           \
    GPU_KERNEL(attention_decode_##T##_##D, attention_params, THREADS, DECODE_BLOCKS(D)) {          \
        decode<T, D>(p);                                                                           \
    }                                                                                              \
    GPU_KERNEL(attention_prefill_##T##_##D, attention_params, THREADS, PREFILL_BLOCKS(D)) {        \
        prefill<T, D>(p);                                                                          \
    }
#define KERNELS(D) KERNELS_OF(f16, D) KERNELS_OF(bf16, D)
ATTENTION_DIMS(KERNELS)

#define ENTRIES_OF(T, D)                                                                           \
    GPU_ENTRY(attention_decode_##T##_##D, attention_params, THREADS, 80),                          \
        GPU_ENTRY(attention_prefill_##T##_##D, attention_params, THREADS, 80),
#define ENTRIES(D) ENTRIES_OF(f16, D) ENTRIES_OF(bf16, D)
GPU_TABLE(attention){ATTENTION_DIMS(ENTRIES)} GPU_TABLE_END(attention)
