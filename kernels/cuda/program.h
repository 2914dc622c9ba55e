/* program.h - a step as a list of operations, and how it becomes launches.
 *
 * The CUDA backend computes nothing when an operation is called: it records it.  At the end of
 * the step neighbouring operations of the list that one kernel can do are launched as one:
 *
 *     rmsnorm, matmul q, k, v                 one gemv with the norm before     (few rows)
 *     rmsnorm, matmul gate, up, glu           one gemv with norm and gate       (few rows)
 *     matmul, add                             the matmul adds to the residual stream itself
 *     head_norm q, head_norm k, rope, attention   norm + rotate + store in one, then attention
 *     take_logit_rows, rmsnorm (, matmul)     norm with a gather (, in the gemv)
 *     add, rmsnorm                            one pass over the row
 *     experts                                 five or six launches (experts.h)
 *
 * An intermediate may be left out only when nothing reads it before it is written again; at the end
 * of a step nothing is read any more, at a sync everything may be.
 *
 * Two steps with equal lists do the same work on other rows, so a captured graph is found by
 * comparing lists (cuda_step.c): the layers above do not know about graphs, and a model that is
 * closed, changed or shared cannot be confused with another.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_PROGRAM_H
#define INFERD_CUDA_PROGRAM_H

#include "cuda/layout.h"
#include "cuda/rows.h"
#include "kernels/backend.h"

struct act {
    void *data;
    cu_type type;
    uint32_t rows_max, dim, stride; // elements
    bool in_scratch;
    float *host; // [rows_max, dim] for be_act_host; owned, NULL until needed
};

typedef enum op_kind {
    OP_EMBED,
    OP_NORM,
    OP_MATMUL,
    OP_HEAD_NORM,
    OP_ROPE,
    OP_ATTENTION,
    OP_GLU,
    OP_ADD,
    OP_TAKE,
    OP_SOFTCAP,
    OP_SCALE,
    OP_EXPERTS,
    OP_DRAW
} op_kind;

/* Rows of an operation: all of the batch, those with logits, or a number given by the caller. */
typedef enum op_extent { ROWS_BATCH, ROWS_LOGITS, ROWS_FIXED } op_extent;

/* Of EXPERTS: matrices by the first of each role and the bytes from one to the next, because lists
 * are compared by the addresses on the device. */
typedef struct op_experts {
    weight gate, up, down;
    uint64_t gate_step, up_step, down_step;
    const float *gate_bias, *up_bias, *down_bias; // NULL: absent
    act *hidden, *parts;
    uint32_t n_experts, n_used;
} op_experts;

/* One operation.  Written over zeros, so that equal operations have equal bytes. */
typedef struct step_op {
    op_kind kind;
    op_extent extent;
    uint32_t n; // ROWS_FIXED
    act *out;
    const act *a, *b, *c; // read: x / q, k, v / gate, up / x, logits
    weight w;             // MATMUL, EMBED
    vec v;                // MATMUL: bias; NORM, HEAD_NORM: weight; ATTENTION: sinks
    float f;              // eps, scale, cap
    uint32_t n_heads, n_kv_heads, head_dim, layer_idx;
    act_fn fn;        // GLU, EXPERTS
    uint32_t n_vocab; // DRAW
    union {
        rope_spec rope;     // ROPE
        attn_spec attn;     // ATTENTION
        op_experts experts; // EXPERTS
    };
} step_op;

typedef struct program {
    step_op *ops; // [n] owned
    uint32_t n, capacity;
    bool after_take; // the rows are those with logits now
} program;

void program_clear(program *p);
void program_deinit(program *p);
/* A zeroed operation at the end of the list; NULL: no memory. */
step_op *program_add(program *p, op_kind kind);
bool program_equal(const step_op *a, uint32_t n_a, const step_op *b, uint32_t n_b);

/* The most experts that a mixture of the list has; 0: there is none. */
uint32_t program_n_experts(const program *p);

struct cuda_backend;
/* Launch the list on the backend's stream, for `rows` and `logits` rows (of a graph's bucket, or of
 * the batch).  `keep`: intermediates may be read afterwards.  Failures are kept in the launcher. */
void program_launch(struct cuda_backend *c, const program *p, uint32_t rows, uint32_t logits,
                    bool keep);

#endif
