/* cpu.h - the CPU backend's own struct; cpu.c opens it, ops.c computes.
 *
 * Thread: engine. */
#ifndef INFERD_CPU_CPU_H
#define INFERD_CPU_CPU_H

#include "backend_ops.h"
#include "cpu/arena.h"
#include "cpu/phases.h"

struct be_window {
    const backend_ops *ops; // first, see be_window_base
    window *w;
};

/* Cosines and sines of the batch's positions, kept from layer to layer of one step. */
typedef struct rope_table {
    float *data; // [n_rows, 2, n_pairs]; owned
    size_t capacity;
    float *inv_freq; // [n_pairs] the frequencies of the table; owned
    uint32_t n_pairs, n_pairs_max;
    float scale, growth;
    uint32_t growth_length;
    uint64_t step; // that it was made for; 0 = none
} rope_table;

/* The attention plan of this step, for layers of one kind. */
typedef struct step_plan {
    attn_plan *plan; // owned
    attn_spec spec;  // that it was made for
    uint64_t step;   // that it was made for; 0 = none
} step_plan;

enum {
    ROPE_TABLES = 2, // models with two kinds of layers have two
    ATTN_PLANS = 2,
    WARM_UP_STEPS = 4 // steps without a count of page faults: tables are made then
};
#define CPU_SCRATCH_BYTES_MAX ((size_t)64 << 30) // addresses: far above any model's activations

/* Page faults, minor and major, that one rank has taken. */
typedef struct rank_faults {
    uint64_t step;    // the newest step that this rank began
    long n;           // page faults of the thread up to its beginning
    uint64_t in_step; // page faults in that step, once it is over
} rank_faults;

/* Activations of all models share this memory: a range of addresses that is used from its
 * beginning.  Memory that any model needed once is kept. */
typedef struct cpu_scratch {
    unsigned char *base; // aligned to pages of the arena; NULL: not reserved yet
    void *mapped;        // for munmap; owned
    size_t mapped_bytes;
    size_t n_bytes; // memory
    size_t used;    // of the activations since scratch_begin
    bool open;      // between begin and end
} cpu_scratch;

typedef struct cpu_backend {
    backend be; // first: a cpu_backend is a backend
    const cpu_level *level;
    bool exact; // float activations everywhere
    char name[32];
    tpool *threads;
    arena *pages;
    phases *phases;
    experts *experts;
    uint64_t *part_ns; // [N_STEP_PARTS] profile of the steps; NULL: off; owned

    const batch *batch; // of the current step, borrowed
    const kv_layout *kv;
    uint64_t step; // counts be_step_begin
    bool in_step;

    uint32_t rows_max; // of the largest activation ever opened
    uint32_t n_host_pages;
    cpu_scratch scratch;
    rope_table ropes[ROPE_TABLES];
    uint32_t next_rope; // the one to replace
    step_plan plans[ATTN_PLANS];
    uint32_t next_plan;

    uint64_t events_us[BE_EVENTS];
    uint64_t step_began_us, step_ended_us;
    const act *wanted;   // the activation that is read after the step; NULL: none
    rank_faults *faults; // [n_threads] owned
    uint64_t n_kv_page_faults;
    uint64_t n_saturated; // in this step
} cpu_backend;

static inline cpu_backend *cpu_of(backend *be) {
    return (cpu_backend *)(void *)be;
}
static inline const cpu_backend *cpu_of_const(const backend *be) {
    return (const cpu_backend *)(const void *)be;
}

/* Compute the recorded operations; keep: any activation may be read afterwards. */
void cpu_flush(cpu_backend *c, bool keep);

/* The operations of a step, ops.c. */
void cpu_embed(backend *be, act *out, const weight *table, float scale);
void cpu_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps);
void cpu_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n);
void cpu_rope(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
              uint32_t n_kv_heads, uint32_t head_dim);
void cpu_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                   uint32_t layer_idx, const attn_spec *spec, const vec *sinks);
void cpu_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                   uint32_t head_dim, float eps);
void cpu_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
             uint32_t dim);
void cpu_experts(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                 act *hidden, act *parts, uint32_t n);
void cpu_scale(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor);
void cpu_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim);
void cpu_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim);
void cpu_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap);

#endif
