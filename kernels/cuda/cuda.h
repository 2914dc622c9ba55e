/* cuda.h - the CUDA backend's own struct.
 *
 *     cuda.c         opening: module, device, kernels, library, then the pool from the rest
 *     cuda_ops.c     operations are recorded (program.h); weights, activations
 *     cuda_step.c    a step: one upload, one graph or its launches, one download; two unfinished
 *     cuda_wait.c    the host waits for a step, spinning or asleep
 *     cuda_kv.c      keys and values to host memory and back
 *     room.c         the workspace of steps
 *     program.c      neighbouring operations become one launch
 *
 * Everything is on one stream, in order; weights arrive on the memory's copy stream, and keys and
 * values move on one of their own.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_CUDA_H
#define INFERD_CUDA_CUDA_H

#include "backend_ops.h"
#include "cuda/attention.h"
#include "cuda/draw.h"
#include "cuda/experts.h"
#include "cuda/matmul.h"
#include "cuda/memory.h"
#include "cuda/parts.h"
#include "cuda/program.h"
#include "cuda/room.h"

enum {
    CUDA_DEPTH = 2,
    CUDA_GRAPHS_MAX = 192,     // kept: all kinds of two models; the least recently used is dropped
    CUDA_GRAPH_ROWS_MAX = 256, // operations of larger steps are launched one by one
    CUDA_REFUSALS_MAX = 4,     // of captures in a row: then no more are tried
    CUDA_ROPE_POSITIONS = 2048 // of a table are filled at first; doubles as needed
};

struct be_window {
    const backend_ops *ops; // first, see be_window_base
    struct cuda_backend *owner;
    cuda_window *w;
};

/* The kind of step that a graph was captured for. */
typedef struct cuda_graph {
    cu_graph graph; // NULL: seen once, or refused
    step_op *ops;   // [n_ops] owned
    uint32_t n_ops;
    uint32_t rows, context; // buckets
    kv_view kv;
    uint64_t used; // step number
    bool refused;  // capture failed: its operations are launched one by one from then on
} cuda_graph;

typedef enum cuda_wait { CUDA_WAIT_BY_STEP, CUDA_WAIT_ASLEEP, CUDA_WAIT_SPINNING } cuda_wait;
typedef enum cuda_end { CUDA_END_SPINNING, CUDA_END_ASLEEP, CUDA_ENDS } cuda_end;

/* A launched step, until it is finished. */
typedef struct cuda_flight {
    cu_event begin, ends[CUDA_ENDS];
    cuda_end end;           // which of `ends` it records
    unsigned char *upload;  // [upload_bytes] pinned
    void *draws;            // [draws_bytes] pinned, draw_plan
    sample_result *results; // [results_bytes] pinned
    size_t upload_bytes, draws_bytes, results_bytes, experts_bytes;
    float *logits; // [logits_bytes] pinned; NULL until needed
    size_t logits_bytes;
    uint32_t *experts; // [EXPERTS_MAX + 1] pinned, experts_tally; NULL until needed
    uint32_t n_draws;  // of this step
    uint32_t n_experts;
    const act *wanted;
} cuda_flight;

typedef struct cuda_backend {
    backend be; // first: a cuda_backend is a backend
    const cuda_module *module;
    const cu_api *api;
    uint32_t device_index;
    cu_device device;
    char name[160];
    cu_type inner;
    const char *tune_path;          // borrowed from the options
    char lt_missing[CU_TEXT_BYTES]; // why there is no cuBLASLt
    struct tpool *threads;          // for work on the host: weights are prepared there

    cuda_parts parts;
    cuda_memory *memory;
    cu_stream stream;
    launcher launch;
    struct { // of keys and values, see cuda_kv.c
        cu_stream stream;
        cu_event stepped, moved;
        bool zeroed;  // the step stream wrote to pages since `stepped` was recorded
        bool waited;  // the step stream waits for all that were queued
        bool pending; // some that were queued may not have arrived
    } moves;
    matmul *mm;
    matmul_workspace mm_workspace;
    bool lt;

    /* The step that is being recorded. */
    program program;
    const batch *batch; // borrowed until its end
    bool in_step;
    kv_view kv;
    uint32_t n_decode, n_tiles, context_max, n_tables;
    const batch *later;          // of the step before, which waits for cuda_step_draw; or NULL
    const sample_row *draw_rows; // borrowed
    uint32_t n_draws, draw_vocab;
    const act *draw_logits, *wanted;
    uint32_t n_wanted;

    /* On the device, at addresses that graphs use: one piece of the workspace, see room.h. */
    unsigned char *area; // [area_bytes]
    size_t area_bytes;
    cuda_room room;
    step_block block;
    uint32_t block_rows; // of the step that `block` is laid out for
    unsigned char *block_dev;
    step_view view;
    void *draw_dev;                // [room.list_bytes] copy of a draw plan
    const void *draw_at;           // the step's plan: draw_dev, or pinned memory if it is longer
    int32_t *drawn, *drawn_before; // [room.draws]
    sample_result *results_dev;    // [room.draws]
    float *changed;                // [room.draws, room.stride] logits with bias and penalties
    void *draw_scratch_dev;
    attention_workspace attn_workspace;
    experts_workspace experts_workspace;

    cuda_room reserved;           // the largest of all reservations
    be_reservation *reservations; // owned by models
    size_t lists_refused;         // a draw plan of so many bytes does not fit; 0: not known
    cuda_rope_table **ropes;      // [n_ropes] owned
    uint32_t n_ropes;
    void *draw_scratch; // host, draw_scratch_bytes(draw_scratch_vocab)
    uint32_t draw_scratch_vocab;
    uint32_t n_drawn; // draws of the newest step: tokens that may be pending
    bool capturing;   // no allocation, wait or query is allowed now
    uint32_t act_rows_max;
    bool scratch_open;   // between begin and end
    size_t scratch_used; // of the activations since begin, from the end of the workspace down

    cuda_flight flights[CUDA_DEPTH];
    uint32_t flight_first, n_flights;
    uint32_t *n_saturated;     // pinned; kernels add to it (kv_view)
    uint32_t n_saturated_told; // of them, reported in results of steps
    uint64_t step;
    cuda_wait wait;
    uint64_t step_us; // device time of the newest finished step

    cuda_graph graphs[CUDA_GRAPHS_MAX];
    uint32_t n_graphs;

    cu_event marks[BE_EVENTS];
    uint64_t n_graphs_captured, n_graphs_refused, n_graph_launches;
    uint32_t n_refused_in_a_row; // captures; see CUDA_REFUSALS_MAX
    uint64_t n_growths;          // times that a step's own buffers grew
    uint64_t n_kv_driver_calls;  // memory calls between a step's begin and end
    uint64_t n_calls_at_begin;
} cuda_backend;

static inline cuda_backend *cuda_of(backend *be) {
    return (cuda_backend *)(void *)be;
}
static inline const cuda_backend *cuda_of_const(const backend *be) {
    return (const cuda_backend *)(const void *)be;
}

/* Floats from one row of an activation to the next. */
static inline uint32_t cuda_act_stride(uint32_t dim) {
    return (dim + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}
/* The part of a workspace of n bytes for expanding matrices; and the smallest workspace that
 * has `want` bytes beside that part. */
size_t cuda_expand_bytes(uint64_t n);
uint64_t cuda_workspace_of(uint64_t want);

/* Record the failure of a call; false. */
bool cuda_failed(cuda_backend *c, cu_result r, const char *what);
/* The launcher's failure becomes the backend's; the launcher may go on. */
void cuda_check_launches(cuda_backend *c);

/* cuda_step.c */
void cuda_step_begin(backend *be, const batch *b, const kv_layout *kv);
void cuda_step_end(backend *be, bool failed);
void cuda_step_finish(backend *be, be_step_result *out);
void cuda_flush(cuda_backend *c); // launch the recorded operations; all results may be read after
void cuda_forget_graphs(cuda_backend *c);
void cuda_steps_close(cuda_backend *c);
const float *cuda_rope(cuda_backend *c,
                       const rope_spec *r); // table for the step's positions; NULL: failed

/* cuda_wait.c */
cuda_wait cuda_wait_choose(bool has_quota, uint32_t n_cpus, uint32_t n_devices);
inferd_status cuda_wait_open(cuda_backend *c, inferd_err *err); // of the device in use
const char *cuda_wait_name(const cuda_backend *c);              // part of the device's name
cuda_end cuda_wait_for_next(const cuda_backend *c);             // for the step that is launched now

/* cuda_kv.c */
inferd_status cuda_moves_open(cuda_backend *c, inferd_err *err);
void cuda_moves_close(cuda_backend *c);
/* Work queued on the step stream from now on comes after the moves so far. */
void cuda_moves_await(cuda_backend *c);
/* Wait until all moves have arrived.  A failure becomes the backend's. */
void cuda_moves_sync(cuda_backend *c);
void cuda_kv_move(backend *be, const kv_layout *kv, uint32_t n, const int32_t *from,
                  const int32_t *to, bool to_host);
unsigned char *cuda_kv_slot(backend *be, const kv_layout *kv, int32_t slot);
uint32_t cuda_n_swap_pages(const backend *be);
uint32_t cuda_swap_extent_pages(const backend *be);
void cuda_swap_empty(backend *be, uint32_t first_page);

/* cuda_ops.c */
void cuda_scratch_begin(backend *be);
void cuda_scratch_end(backend *be);
act *cuda_act_open(backend *be, act_kind kind, uint32_t rows_max, uint32_t dim);
void cuda_act_close(backend *be, act *a);
const float *cuda_act_host(backend *be, const act *a);
const char *cuda_weight_layout(const backend *be);
bool cuda_weight_supported(const backend *be, dtype type);
size_t cuda_weight_bytes(const backend *be, dtype type, uint32_t rows, uint32_t cols);
void cuda_weight_init(backend *be, weight *w, dtype type, uint32_t rows, uint32_t cols, void *dst);
inferd_status cuda_weight_prepare_part(const backend *be, const weight *w, const void *rows,
                                       uint32_t row_begin, uint32_t n_rows, inferd_err *err);
void cuda_weight_prepare(backend *be, weight *w, const void *rows, uint32_t row_begin,
                         uint32_t n_rows);
void cuda_weight_dummy(backend *be, weight *w, uint64_t seed, float scale);
void cuda_vec_init(backend *be, vec *v, uint32_t n, void *dst);
void cuda_vec_load(backend *be, vec *v, const float *host);
void cuda_vec_fill(backend *be, vec *v, float value);
void cuda_embed(backend *be, act *out, const weight *table, float scale);
void cuda_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps);
void cuda_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n);
void cuda_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                    uint32_t head_dim, float eps);
void cuda_rope_op(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
                  uint32_t n_kv_heads, uint32_t head_dim);
void cuda_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                    uint32_t layer_idx, const attn_spec *spec, const vec *sinks);
void cuda_experts(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                  act *hidden, act *parts, uint32_t n);
void cuda_scale(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor);
void cuda_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
              uint32_t dim);
void cuda_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim);
void cuda_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim);
void cuda_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap);
void cuda_step_draw(backend *be, const sample_row *rows);
void cuda_draw(backend *be, const act *logits, const sample_row *rows, uint32_t n,
               uint32_t n_vocab);
void cuda_want_logits(backend *be, const act *logits, uint32_t n);

#endif
