/* attn_plan.h - the attention of one step: the work of a batch, cut into units.
 *
 * Made once per step and kind of layer, from the batch alone.  A unit is a list of rows that read
 * the same keys, some query heads of one kv head, and a range of chunks (attn.h):
 *
 *     prompt    neighbouring rows of one sequence: keys and values are read once for all of them
 *     decode    the row of one sequence with all query heads of a kv head that a unit has room for
 *     shared    rows of several sequences with the same slots at the beginning of their block
 *               tables, and the chunks in those slots: read once for all of them
 *
 * A unit that has all chunks of its rows writes their result.  When a row's chunks belong to
 * several units (they are shared, or the unit was cut because there were too few for the threads),
 * each unit writes a *partial* per row, head and chunk, and a merge joins them in ascending order
 * afterwards:
 *
 *     partial   max of the scores, sum of the weights, weighted sum of values [width]
 *
 * Units are sorted, the longest first, because a free thread takes the next one.
 *
 * Memory grows with the largest batch so far, and is touched when it is allocated.
 * Partials are bounded by PARTIAL_BYTES_MAX: beyond it long prompts are not cut, then nothing is
 * shared, then nothing is cut.
 *
 * Thread: made by the engine; read by all. */
#ifndef INFERD_CPU_ATTN_PLAN_H
#define INFERD_CPU_ATTN_PLAN_H

#include "cpu/attn.h"

enum {
    ATTN_QUERIES = 48,         // most query heads times rows of a unit
    ATTN_QUERY_FLOATS = 4096,  // most floats of their weighted sums: they lie on a stack
    ATTN_SHARED_CHUNKS_MIN = 1 // shorter common prefixes are not searched
};

typedef struct attn_unit {
    uint32_t rows_at, n_rows;     // in plan.rows
    uint32_t head_begin, n_heads; // query heads, all of one kv head
    uint32_t chunk_begin, chunk_end;
    bool whole; // these are all chunks of the rows
} attn_unit;

typedef struct attn_plan {
    attn_unit *units; // [n_units]
    uint32_t *rows;   // [n_rows_listed] rows of the batch
    uint32_t n_units, n_rows_listed;
    uint32_t *row_words; // the memory of the next two; owned, like all others here

    /* Rows with partials: those of row r are at partial_at[r] + (chunk - its first) * n_heads +
     * head; UINT32_MAX: none. */
    uint32_t *partial_at; // [n_rows of the batch]
    uint32_t *merge_rows; // [n_merge_rows]
    uint32_t n_merge_rows, n_kv_heads;
    float *partials; // [n_partials, partial_floats]
    size_t n_partials, partial_floats;

    struct plan_work *work; // scratch for making the plan; owned
} attn_plan;

attn_plan *attn_plan_open(void);    // NULL: no memory
void attn_plan_close(attn_plan *p); // accepts NULL

/* The plan of this batch for layers with this spec.  false: no memory, and the plan is empty. */
bool attn_plan_make(attn_plan *p, const batch *b, const kv_layout *kv, const attn_spec *spec,
                    uint32_t n_threads);

static inline uint32_t attn_plan_n_units(const attn_plan *p) {
    return p->n_units;
}
static inline uint32_t attn_plan_n_merges(const attn_plan *p) {
    return p->n_merge_rows * p->n_kv_heads;
}

/* Chunks [begin, end) that row `pos` attends to. */
static inline uint32_t attn_chunk_begin(const attn_spec *spec, uint32_t pos) {
    return attn_begin(spec, pos) / ATTN_CHUNK;
}
static inline uint32_t attn_chunk_end(uint32_t pos) {
    return pos / ATTN_CHUNK + 1;
}

/* A partial is [width] floats, then the maximum, then the sum. */
static inline float *attn_partial(const attn_plan *p, const attn_job *j, uint32_t row,
                                  uint32_t head, uint32_t chunk) {
    uint32_t first = attn_chunk_begin(j->spec, j->b->positions[row]);
    size_t at = p->partial_at[row] + (size_t)(chunk - first) * j->spec->n_heads + head;
    return p->partials + at * p->partial_floats;
}

#endif
