/* experts.h - a mixture of experts on the CPU (be_experts), as phases.
 *
 * Only the logits of a step say which experts compute which rows, so these phases have a fixed
 * number of parts, and a part finds its work when it runs:
 *
 *     route     each row: its experts and their weights                 rows
 *     sort      slots, one for each row and expert of it: by expert,
 *               then by row; so the slots of an expert are its batch    one rank
 *     gather    x of each slot, as the products read it                 tiles of slots
 *     hidden    fn(gate x, up x) of each slot                           units of experts
 *     again     hidden as the next products read it                     tiles of slots
 *     down      parts = down hidden of each slot                        units of experts
 *     sum       out = weighted sum of the parts of each row             rows
 *
 * So each expert that has rows is read once by a step, and others are not read.  A row is computed
 * by the functions of all products (level.h), with bits that do not depend on the other rows, and
 * its parts are added in ascending order of its experts.
 *
 * Thread: engine; the phases any, ranges of one phase do not overlap. */
#ifndef INFERD_CPU_EXPERTS_H
#define INFERD_CPU_EXPERTS_H

#include "cpu/level.h"

typedef struct experts experts; // the memory that all mixtures of a backend share

experts *experts_open(void);    // NULL: no memory
void experts_close(experts *e); // accepts NULL
/* Of gate and up, which read the same x in one form: floats, if their types want two. */
static inline cpu_math experts_math(const cpu_level *level, const expert_weights *w, bool exact) {
    cpu_math math = level_math(level, w->gate->type, exact);
    return math == level_math(level, w->up->type, exact) ? math : MATH_F32;
}
/* Before a mixture of this shape is run with up to rows_max rows.  false: no memory. */
bool experts_reserve(experts *e, const expert_weights *w, uint32_t rows_max, cpu_math math,
                     cpu_math down_math);

typedef struct experts_job {
    experts *room;
    const cpu_level *level;
    const expert_weights *w;
    cpu_math math; // of gate and up
    cpu_math down_math;
    const float *x;        // [n, dim]
    const float *logits;   // [n, n_experts]
    float *hidden, *parts; // [n * n_used, ffn], [n * n_used, dim]
    float *out;            // [n, dim]
    uint32_t n, n_parts;   // n_parts: into which the work of a phase is cut
    bool fetches;          // ranks have neighbouring parts, and prefetch their first weights
} experts_job;

range_fn experts_route;          // range: rows
range_fn experts_sort;           // alone
range_fn experts_route_and_sort; // alone: both
range_fn experts_gather;         // range: parts, and so the next ones
range_fn experts_hidden;
range_fn experts_again;
range_fn experts_down;
range_fn experts_sum; // range: rows

/* The counts of a step begin at 0; rows that each expert got so far, [how many are returned], and
 * how many experts were read. */
void experts_begin_step(experts *e);
uint32_t experts_counts(const experts *e, const uint32_t **rows, uint32_t *n_reads);

#endif
