/* phases.h - a step as a list of operations, and how it becomes phases.
 *
 * The CPU backend computes nothing when an operation is called: it records it.  At the end of
 * the step (or when a result is read) the list becomes phases for the thread pool (threads.h): one
 * fork and one join for the whole step, a barrier after each phase.  Neighbouring operations are
 * fused:
 *
 *     rmsnorm, matmul q, k, v         the norm writes integers (qact.h); one phase for the three
 *     rmsnorm, matmul gate, up, glu   the same, and the gate is applied before anything is stored
 *     head_norm q, k, rope, attention     norm + rotate + store in one phase, then attend (, merge)
 *     matmul, add                     the product is added to the residual stream as it is made
 *
 * An intermediate is left out only when nothing reads it before it is written again.  At the end of
 * a step only the activation that be_want_logits named is still read; at a sync everything may be.
 * Fused or not, the bits are the same.
 *
 * A list that would grow beyond OPS_MAX is run first, and the step goes on with an empty one.
 *
 * Thread: engine. */
#ifndef INFERD_CPU_PHASES_H
#define INFERD_CPU_PHASES_H

#include "cpu/attn_plan.h"
#include "cpu/experts.h"
#include "cpu/level.h"
#include "cpu/threads.h"

struct act {
    float *data; // [rows_max, dim]; owned, or in the scratch
    uint32_t rows_max, dim;
    size_t n_bytes;
    bool in_scratch;
};

typedef enum op_kind {
    OP_EMBED,
    OP_NORM,
    OP_MATMUL,
    OP_HEAD_NORM,
    OP_ANGLES,
    OP_ROPE,
    OP_ATTENTION,
    OP_GLU,
    OP_EXPERTS,
    OP_SCALE,
    OP_ADD,
    OP_TAKE,
    OP_SOFTCAP
} op_kind;

typedef struct op {
    op_kind kind;
    uint32_t n; // rows
    act *out;
    const act *a, *b, *c; // read: x / q, k, v / gate, up / x, logits of experts
    act *d, *e;           // EXPERTS: hidden, parts; only it reads them
    weight w;             // EMBED, MATMUL
    vec v;                // NORM, HEAD_NORM: weights; MATMUL: bias
    float f;              // eps, scale of the embedding, cap, factor
    uint32_t dim;         // of rows, for ADD, GLU, SCALE, TAKE, SOFTCAP; of a head for HEAD_NORM
    uint32_t n_heads, n_kv_heads;
    act_fn fn;
    const rope_spec *rope;         // ANGLES: borrowed until the step is run
    float *table;                  // ANGLES writes, ROPE reads: [n, 2, n_pairs], then [n] of growth
    bool grows;                    // ROPE: with growth
    uint32_t n_pairs;              // ROPE
    bool interleaved;              // ROPE
    uint32_t layer_idx;            // ATTENTION
    attn_spec attn;                // ATTENTION; v: its sinks
    const expert_weights *experts; // EXPERTS: borrowed until the step is run
    const attn_plan *plan;         // ATTENTION
} op;

/* Which part of a step a phase belongs to, for profiles. */
typedef enum step_part {
    PART_EMBED,
    PART_NORM, // and rounding to integers
    PART_MATMUL,
    PART_GATE_UP,
    PART_EXPERTS,
    PART_HEAD, // the output matrix, a row per token of the vocabulary: for rows with logits only
    PART_STORE,
    PART_ATTEND,
    PART_OTHER,
    N_STEP_PARTS
} step_part;

/* What a step runs on; all borrowed. */
typedef struct phases_env {
    tpool *threads;
    const cpu_level *level;
    bool exact; // float activations everywhere
    const batch *b;
    const kv_layout *kv;
    unsigned char *arena;
    size_t page_bytes;
    uint64_t *n_saturated; // attn.h: keys and values that were too large are added here
    experts *experts;      // experts.h: of the steps' mixtures
    uint64_t *part_ns; // [N_STEP_PARTS] the time of each part is added here; NULL: do not measure
} phases_env;

typedef struct phases phases;

phases *phases_open(void);    // NULL: no memory
void phases_close(phases *p); // accepts NULL
/* A new operation, zeroed but for its kind.  When the list is full it is run first. */
op *phases_add(phases *p, const phases_env *env, op_kind kind);
/* Space for the integers that a matmul reads: allocated when the first one of a shape is described,
 * for as many rows as its input can have.  False: no memory. */
bool phases_reserve(phases *p, const act *x);
void phases_clear(phases *p);
/* Run all operations and clear the list.  keep: every result may be read afterwards; else only
 * `wanted` (may be NULL). */
void phases_run(phases *p, const phases_env *env, bool keep, const act *wanted);

#endif
