/* backend.h - the math and the memory of one device: the interface of all backends.
 *
 * Operations enqueue work and return.  A backend remembers its first failure; the operations after
 * it do nothing, and be_sync reports it.  So a forward pass reads as math, with one check at its
 * end.  kernels/cpu defines each operation; other backends are compared with it.
 *
 * Memory is one arena of pages (page numbers are the scheduler's currency).  Keys and values are
 * addressed inside the arena by slot number (kv_layout.h) and never cost a driver or system call.
 * Weights live in pages too, seen through a *window*: a stable range of addresses per model, into
 * which pages are moved (CPU: mremap; CUDA: aliases) and from which they go home.
 *
 * Activations (act), weights and vectors are opaque: only the backend knows their element type and
 * layout.  Shapes were checked when the model was opened; operations trust them.
 *
 * Thread: engine, one backend per engine; functions that say so, any. */
#ifndef INFERD_BACKEND_H
#define INFERD_BACKEND_H

#include "inferd/base.h"
#include "inferd/batch.h"
#include "inferd/kv_layout.h"
#include "inferd/sample.h"
#include "inferd/status.h"
#include "kernels/act_fn.h"
#include "kernels/dtype.h"

typedef struct backend backend;
typedef struct be_window be_window;
typedef struct act act; // [rows_max, dim] activations in device memory

/* The use of an activation; the backend chooses the element type by it. */
typedef enum act_kind {
    ACT_STREAM, // the residual stream: many sums end here
    ACT_INNER,  // between two operations of a block
    ACT_LOGITS  // read by the sampler
} act_kind;

/* A weight matrix [rows, cols] as prepared for this backend; `data` lies in a window. */
typedef struct weight {
    dtype type; // as in the file
    uint32_t rows, cols;
    void *data;      // device memory, borrowed from the window
    uint32_t layout; // the backend's own
} weight;

/* A small vector of floats (norm weight, bias); `data` lies in a window. NULL data: absent. */
typedef struct vec {
    float *data; // [n] device memory, borrowed from the window
    uint32_t n;
} vec;

/* Rotary embedding of the first 2 * n_pairs dimensions of each head: angle = position *
 * inv_freq[i]. interleaved: pairs are (2i, 2i+1), as GGUF `llama` files have them; else (i, i +
 * n_pairs).  n_pairs 0: none.
 *
 * growth (Ministral 3): then q is multiplied by 1 + growth * ln(1 + floor(position /
 * growth_length)), so that attention stays sharp at positions beyond the length of training; 0:
 * it is not. */
typedef struct rope_spec {
    const float *inv_freq; // [n_pairs] host memory, borrowed from the model
    uint32_t n_pairs;
    float scale; // cos and sin are multiplied by it (YaRN); 1 otherwise
    bool interleaved;
    float growth;
    uint32_t growth_length;
} rope_spec;

typedef struct attn_spec {
    uint32_t n_heads, n_kv_heads, head_dim;
    float scale;     // of q.k, usually head_dim^-1/2
    float softcap;   // scores become cap * tanh(score / cap); 0 = off
    uint32_t window; // attend to the last `window` positions; 0 = all
} attn_spec;

/* A mixture of experts: each row goes through n_used of n_experts feed-forward networks, those with
 * the largest logits (of equal ones the one with the lower number), and their results are weighted:
 *
 *     p = softmax of the logits of the chosen ones      = softmax of all, divided by its sum over
 *                                                         the chosen ones
 *
 * Matrices of one role have one type and shape and lie at equal distances in one window. */
typedef struct expert_weights {
    uint32_t n_experts, n_used;
    act_fn fn;
    const weight *gate, *up; // [n_experts] each [ffn, dim]
    const weight *down;      // [n_experts] each [dim, ffn]
    vec gate_bias, up_bias;  // [n_experts * ffn]; data NULL: absent
    vec down_bias;           // [n_experts * dim]
} expert_weights;
enum { BE_EXPERTS_MAX = 1024, BE_EXPERTS_USED_MAX = 32 };

#define BE_NO_HOST_BYTES UINT64_C(1)

typedef struct backend_options {
    const char *kind;      // "cpu", "cuda"
    uint32_t n_threads;    // 0 = CPUs allowed (affinity mask and cgroup quota)
    uint64_t memory_bytes; // of the arena; cuda: 0 = the free memory, less reserve_bytes
    uint64_t host_bytes;   // for weights that are warm.  cpu: the arena is larger by this;
                           // cuda: host copies of windows take at most this, 0 = all there
                           // is, BE_NO_HOST_BYTES = none
    const char *cores;     // cpu: "0-3,8": its threads run only there; n_threads 0 means one for
                           // each of them.  NULL or "": on all CPUs of the process
    bool exact_math;       // cpu: matrices take float activations; else 16-bit integers where
                           // weights are quantised and bf16 where they are bf16 (docs/cpu.md)

    bool profile; // cpu: measure the parts of steps, see be_get_profile

    /* cuda only; see docs/configuration.md.  Strings may be NULL. */
    const char *uuid; // the device by its UUID (or a prefix of it), else by index
    uint32_t index;
    uint64_t reserve_bytes;   // left to driver, libraries, other processes; 0 = max(1 GiB, 2 %)
    uint64_t workspace_bytes; // of memory_bytes: activations and scratch; 0 = 1/16, 64 MiB to 2 GiB
    uint64_t workspace_least; // but at least this, if it is not more than half of the memory:
                              // backend_workspace_bytes of the models that will be opened
    const char *activations;  // "bf16" (default), "f16"
    const char *module_path;  // inferd_cuda.so; NULL: beside the program, its ../lib/inferd, the
                              // loader's path
    const char *cublaslt_path;        // file or folder; NULL: see cu_api.h
    const char *tune_path;            // file for measured choices; NULL: none
    const char *off;                  // parts that are not used, "vmm,graphs"; NULL: none
    const struct cuda_module *module; // for tests: this module instead of inferd_cuda.so
} backend_options;

/* A part of a backend that can be switched off, or that fell back by itself (docs/gpu.md). */
enum { BE_DEVICE_PARTS_MAX = 16 };
typedef enum be_part_state {
    BE_PART_ON,
    BE_PART_OFF,     // by a setting
    BE_PART_ABSENT,  // the machine has nothing to use
    BE_PART_DEGRADED // it was refused, and the fallback is used
} be_part_state;
typedef struct be_device_part {
    char name[12];
    be_part_state state;
    char why[116]; // a sentence, "" when it is on
} be_device_part;
const char *be_part_state_name(be_part_state state); // "on", "off", "absent", "degraded"

typedef struct backend_stats {
    uint64_t n_kv_driver_calls; // system or driver calls made on the KV path: stays 0
    uint64_t n_kv_page_faults;  // page faults taken by compute threads inside a step after warm-up
    uint64_t n_pages_touched;   // of the arena, by the background thread

    /* cuda only */
    uint64_t n_launches, n_graphs, n_graph_launches; // kernels outside graphs; captured; replayed
    uint64_t n_graphs_refused;                       // captures that the device refused
    uint64_t n_matmul_gemv, n_matmul_skinny, n_matmul_lt, n_matmul_expanded, n_matmul_skinny_large;
    uint64_t load_bytes, load_us; // copied from the host arena to windows, and the time it took
    uint64_t bus_bytes_per_s;     // measured at start: pinned host memory to device
    uint64_t pinned_bytes;        // of the host arena
    uint32_t n_parts;
    be_device_part parts[BE_DEVICE_PARTS_MAX]; // [n_parts]
} backend_stats;

/* Times of the parts of all steps so far; only with options->profile, which costs 1 or 2 %. */
enum { BE_PARTS_MAX = 16 };
typedef struct be_part {
    const char *name;
    uint64_t ns;
} be_part;

/* A device that could be opened, for `inferd devices` and /metrics. */
enum { BE_DEVICES_MAX = 64 };
typedef struct backend_device_about {
    char kind[8], name[128], uuid[48];
    uint32_t index, n_units; // SMs; CPU: threads
    uint32_t cc_major, cc_minor;
    uint64_t memory_bytes, free_bytes;
    bool free_known; // else free_bytes is 0
    bool mig;
    bool mps;             // shared by an MPS server: a fault of another client loses the device
    uint32_t mps_threads; // percent of the SMs that it grants this process; 0: not set
    inferd_err problem;   // INFERD_OK, or the device failed the query; the rest may be empty
    struct {              // from NVML; unknown fields are negative
        bool known;
        int32_t temperature_c, power_w, utilization_pct;
        int64_t memory_used_bytes, ecc_uncorrected, remapped_rows;
        int32_t remap_pending, throttle_thermal;
    } health;
} backend_device_about;
/* The devices of options->kind; none is opened, and one that fails is listed with its problem.
 * INFERD_ENOTFOUND with one line that says what is missing (no module, no driver, no device, too
 * old a driver), INFERD_EBUSY: the machine's services for them are still starting. */
inferd_status backend_list_devices(const backend_options *options, backend_device_about *out,
                                   uint32_t *n, inferd_err *err);
/* All MIG instances of the machine, though CUDA shows a process only one of them; at most n_max;
 * 0: none, or NVML is missing. */
typedef struct backend_instance {
    char name[128], uuid[48];
} backend_instance;
uint32_t backend_list_instances(const backend_options *options, uint32_t n_max,
                                backend_instance *out);
/* Only the device that `options` opens.  `inside`: a GPU is queried in this process's context,
 * which is made if it does not exist (some 500 MiB of device memory): then free_bytes is known, and
 * a lost context is reported.  INFERD_ELOST: the device is gone. */
inferd_status backend_look(const backend_options *options, bool inside, backend_device_about *out,
                           inferd_err *err);

/* The parts of a GPU as they would be used, before it is opened: on, off or absent.  Other kinds
 * have none. */
inferd_status backend_list_parts(const backend_options *options, uint32_t index,
                                 be_device_part out[BE_DEVICE_PARTS_MAX], uint32_t *n,
                                 inferd_err *err);

/* -- the device -- */
inferd_status backend_open(const backend_options *options, backend **out, inferd_err *err);
void backend_close(backend *be);           // accepts NULL
const char *be_name(const backend *be);    // "cpu", with the instruction set: "cpu avx512"
const char *be_warning(const backend *be); // a limitation, for the operator: one sentence, or ""
uint32_t be_depth(const backend *be);      // steps planned ahead: CPU 1
uint32_t be_n_threads(const backend *be);
/* Prepared weights lie where the device computes with them: warm weights need no copy. */
bool be_one_memory(const backend *be);
uint32_t be_rows_best(const backend *be); // larger steps are no faster per row; 0: the larger the
                                          // better
uint32_t be_rows_default(const backend *be); // of a step for which no limit was set; 0: none
void be_get_stats(const backend *be, backend_stats *out);
uint32_t be_get_profile(const backend *be, be_part out[BE_PARTS_MAX]); // how many; 0: none is made

/* -- pages -- */
uint32_t be_n_pages(const backend *be);
size_t be_page_bytes(const backend *be);
/* Pages [0, ready) may be used; the rest is being made in the background, and be_n_pages may shrink
 * when memory runs out.  Constant on the CPU. */
uint32_t be_n_pages_ready(const backend *be);
/* Pages [0, warm) cost nothing at their first use; a page after them may cost milliseconds, so
 * pages that were used before are taken first. */
uint32_t be_n_pages_warm(const backend *be);
/* Pages for a window come in whole extents: groups of extent_pages, beginning at a multiple of it,
 * in order inside the group.  1 on the CPU.  0: the pages of a window must follow each other. */
uint32_t be_extent_pages(const backend *be);
/* Pages' worth of host memory for warm weights; one memory: be_n_pages counts them too. */
uint32_t be_n_host_pages(const backend *be);
/* Make sure that mapping the page costs no first touch.  Any thread, until it is mapped. */
void be_page_touch(backend *be, uint32_t page);

inferd_status be_window_open(backend *be, size_t n_bytes, be_window **out, inferd_err *err);
void be_window_close(backend *be, be_window *w); // unmaps first; accepts NULL
void *be_window_base(const be_window *w);
/* Move the pages into the window, in order / all pages of the window back home.  On failure
 * everything that was moved is home again. */
inferd_status be_window_map(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                            inferd_err *err);
/* One memory only: map more pages behind those of the window, which stay on failure. */
inferd_status be_window_grow(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                             inferd_err *err);
inferd_status be_window_unmap(backend *be, be_window *w, inferd_err *err);
/* The memory in which the host prepares the window's bytes, whether or not pages are mapped:
 * weights that are initialised with addresses in it can be prepared, and nothing else.  With one
 * memory it is the window itself; else a host copy, from be_window_host_take (INFERD_ENOMEM:
 * host_bytes are used up) until be_window_host_give. */
inferd_status be_window_host_take(backend *be, be_window *w, inferd_err *err);
void be_window_host_give(backend *be, be_window *w); // accepts one that was not taken
void *be_window_host(const be_window *w);
/* Two memories: without be_window_host_take, bytes that are prepared there in order are only on
 * their way to the device and count for no budget.  [0, end) have arrived: their memory is free. */
void be_window_host_pass(backend *be, be_window *w, size_t end);
/* Bytes [begin, end) of the window are prepared and go to the device; they are one unit (the ends,
 * or one layer): operations that use a weight of it wait for it, and for nothing else.  Returns
 * before they have arrived.  CPU: nothing to do. */
void be_window_upload(backend *be, be_window *w, size_t begin, size_t end);
/* The way back: bytes of the window that no step changes, into the host copy. */
void be_window_download(backend *be, be_window *w, size_t begin, size_t end);
/* Of the bytes that were given to either of them since the window was mapped, how many are still
 * in flight; be_check reports a failure. */
size_t be_window_n_pending(backend *be, const be_window *w);

/* -- keys and values -- */
/* The default type: the fastest; its error for a real model is in docs/cpu.md. */
kv_type be_kv_preferred(const backend *be);
/* Copy n slots to others, between steps: one memory, from anywhere to anywhere; else from pages of
 * the device to those of the host (`to_host`) or back, and may return before they have arrived.
 * In order with steps, except that a copy back may overtake launched steps: none of them uses its
 * target slot.  A failure is INFERD_ELOST of the next step, because it is unknown which keys and
 * values are complete. */
void be_kv_move(backend *be, const kv_layout *kv, uint32_t n, const int32_t *from,
                const int32_t *to, bool to_host);
/* The address at which the host reads and writes the bytes of a slot (one memory: any slot, else
 * one of the host's pages), between steps: earlier results and copies are complete. */
unsigned char *be_kv_slot(backend *be, const kv_layout *kv, int32_t slot);
/* Two memories: the number of host pages for keys and values, each of be_page_bytes, and the number
 * that is allocated and freed together.  They take host memory from their first move or be_kv_slot
 * on, beside that of be_window_host_take; be_swap_empty: the memory of an extent may be freed.
 * 0: none. */
uint32_t be_n_swap_pages(const backend *be);
uint32_t be_swap_extent_pages(const backend *be);
void be_swap_empty(backend *be, uint32_t first_page);
/* Zero n bytes of a page from `begin` on: after steps begun before, ahead of later ones. */
void be_page_zero(backend *be, uint32_t page, size_t begin, size_t n_bytes);
/* Bytes that K and V of `block_tokens` tokens of one layer take; a multiple of 64. */
size_t be_kv_layer_bytes(const backend *be, kv_type type, uint32_t n_kv_heads, uint32_t head_dim,
                         uint32_t block_tokens); // 0: the backend cannot store that type

/* -- weights: preparation -- */
bool be_weight_supported(const backend *be, dtype type);
/* How matrices of this type are multiplied, for the log: "i16", "bf16" or "f32" activations; "" on
 * devices that have one way for all. */
const char *be_weight_math(const backend *be, dtype type);
size_t be_weight_bytes(const backend *be, dtype type, uint32_t rows,
                       uint32_t cols); // multiple of 64
/* Fill in `w`; its bytes will lie at dst (256-byte aligned). */
void be_weight_init(backend *be, weight *w, dtype type, uint32_t rows, uint32_t cols, void *dst);
/* Rows [row_begin, row_begin + n_rows) as they are in the file; row_begin is a multiple of
 * BE_PREPARE_ROWS.  Runs on all threads and is done when it returns.  INFERD_EFORMAT (be_check):
 * one of their values, scales or minima is not a finite number; row and column are named. */
enum { BE_PREPARE_ROWS = 64 };
void be_weight_prepare(backend *be, weight *w, const void *rows, uint32_t row_begin,
                       uint32_t n_rows);
/* The same by the calling thread alone, also from within be_parallel; n_rows is a multiple of
 * BE_PREPARE_ROWS, too, or ends the matrix.  INFERD_EFORMAT: as there. */
inferd_status be_weight_prepare_part(const backend *be, const weight *w, const void *rows,
                                     uint32_t row_begin, uint32_t n_rows, inferd_err *err);
/* The whole matrix made up from a seed instead (inferd/dummy_math.h); the same on every backend.
 * Nothing need be uploaded for it. */
void be_weight_dummy(backend *be, weight *w, uint64_t seed, float scale);
/* One memory only: rows [row_begin, row_begin + n_rows) of it, with the conditions of
 * be_weight_prepare. */
void be_weight_dummy_rows(backend *be, weight *w, uint64_t seed, float scale, uint32_t row_begin,
                          uint32_t n_rows);
/* The name of the layout of prepared weights and its version, "cpu-panels-1": with the same name
 * the bytes are the same.  For file names. */
const char *be_weight_layout(const backend *be);
/* The weights of a model are on the device: measure the fastest algorithms for them (cuBLASLt), for
 * at most a second.  Between steps. */
void be_tune(backend *be, const weight *const *weights, uint32_t n);
void be_vec_init(backend *be, vec *v, uint32_t n, void *dst); // dst: n floats, 256-byte aligned
void be_vec_load(backend *be, vec *v, const float *host);
/* All elements are `value`, as be_weight_dummy makes a matrix: nothing need be uploaded for it. */
void be_vec_fill(backend *be, vec *v, float value);

/* -- workspace of steps -- */
typedef struct be_act_shape {
    act_kind kind;
    uint32_t rows, dim;
} be_act_shape;

/* All that a step of one model may need on the device, beside weights, keys and values. */
enum { BE_NEEDS_ACTS = 16, BE_NEEDS_ROPES = 2 };
typedef struct be_needs {
    uint32_t rows_max, logits_max; // of a step; it has at most logits_max sequences, too
    uint32_t context;              // positions of a sequence
    uint32_t n_vocab;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t n_experts, n_experts_used; // 0: none
    kv_layout kv;
    be_act_shape acts[BE_NEEDS_ACTS]; // [n_acts] as they will be opened
    rope_spec ropes[BE_NEEDS_ROPES];  // [n_ropes]
    uint32_t n_acts, n_ropes;
} be_needs;

/* Before the model's activations are opened: so much is set aside until be_release, and no step of
 * this model or another finds less.  INFERD_ENOMEM says what must be larger and how large; earlier
 * reservations stay.  Unfinished steps are waited for.  *out may be NULL. */
typedef struct be_reservation be_reservation;
inferd_status be_reserve(backend *be, const be_needs *n, be_reservation **out, inferd_err *err);
void be_release(backend *be, be_reservation *r); // accepts NULL; its activations are closed
/* The workspace that these models together need on a device with these options; 0: none. */
uint64_t backend_workspace_bytes(const backend_options *options, const be_needs *needs, uint32_t n);

/* -- activations -- */
/* Activations opened between begin and end lie in the scratch of the backend, from its beginning:
 * the models share this memory.  A step uses the activations of one begin only, and reads only what
 * it wrote itself.  Addresses stay; closing them gives nothing back. */
void be_scratch_begin(backend *be);
void be_scratch_end(backend *be);
act *be_act_open(backend *be, act_kind kind, uint32_t rows_max, uint32_t dim); // NULL: no memory
void be_act_close(backend *be, act *a);                                        // accepts NULL

/* -- one step -- */
/* Steps are computed in order.  Between begin and end operations are only recorded; host data that
 * they read (the batch, the rows to draw) is borrowed until the end.  be_step_end launches the
 * step, be_step_finish waits for the oldest one; be_depth says how many may be unfinished.
 * A step that failed leaves nothing behind; the next begins anew. */
void be_step_begin(backend *be, const batch *b, const kv_layout *kv);
void be_step_end(backend *be);
typedef struct be_step_result {
    uint64_t device_us;         // from its first operation to its last, on the device
    const float *logits;        // of the activation given to be_want_logits; NULL: none asked for
    size_t logits_stride;       // floats from one row to the next
    const sample_result *draws; // [n] of be_draw; NULL: none
    uint64_t n_saturated;       // keys and values stored as the largest number of f16, because they
                                // are larger; with two unfinished steps it may be the other's
    const uint32_t *expert_rows; // [n_experts] rows that each expert computed, in all layers
    uint32_t n_experts;          // 0: the step had no experts
    uint32_t n_expert_reads;     // reads of the weights of an expert, in all layers
} be_step_result;                // host memory, valid until the next be_step_begin or _finish
inferd_status be_step_finish(backend *be, be_step_result *out, inferd_err *err);

// out[n, cols] = table[token of the row] * scale
void be_embed(backend *be, act *out, const weight *table, float scale);
// out[n, dim] = x[n, dim] * (mean(x^2) + eps)^-1/2 * w[dim]
void be_rmsnorm(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps);
// out[n, w.rows] = x[n, w.cols] * transpose(w) + bias[w.rows] (bias may be NULL or absent)
void be_matmul(backend *be, act *out, const act *x, const weight *w, const vec *bias, uint32_t n);
// q[n, n_heads * head_dim], k[n, n_kv_heads * head_dim] rotated by their positions, in place
void be_rope(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads, uint32_t n_kv_heads,
             uint32_t head_dim);
// stores k and v of all rows in their slots of layer layer_idx, then attends:
// out[n, n_heads * head_dim], causal over the sequence's stored positions.  With sinks[n_heads] the
// softmax of a head has one more score, sinks[head], that belongs to no value (NULL or absent:
// none)
void be_attention(backend *be, act *out, const act *q, const act *k, const act *v,
                  uint32_t layer_idx, const attn_spec *spec, const vec *sinks);
// x[n, n_heads * head_dim]: each head normed by itself, in place (Qwen3, Gemma 3)
void be_head_norm(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                  uint32_t head_dim, float eps);
// out[n, dim] = fn(gate) * up
void be_glu(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
            uint32_t dim);
// out[n, dim] = sum over the chosen experts e of p_e (Wd_e fn(Wg_e x + bg_e, Wu_e x + bu_e) +
// bd_e), chosen by logits[n, n_experts], the sum in ascending order of experts.  hidden[n * n_used,
// ffn] and parts[n * n_used, dim] are scratch; nothing of them is read afterwards.
void be_experts(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                act *hidden, act *parts, uint32_t n);
// out[n, dim] = x[n, dim] * factor
void be_scale(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor);
// x[n, dim] += y
void be_add(backend *be, act *x, const act *y, uint32_t n, uint32_t dim);
// out[i, dim] = x[batch.logit_rows[i], dim]
void be_take_logit_rows(backend *be, act *out, const act *x, uint32_t dim);
// x[n, dim] = cap * tanh(x / cap)
void be_softcap(backend *be, act *x, uint32_t n, uint32_t dim, float cap);

/* Draw a token from each row of logits, on the device.  rows[i].logits is not used.  Only
 * if be_can_draw; else the step's logits come to the host and models/sampler.c draws. */
bool be_can_draw(const backend *be);
void be_draw(backend *be, const act *logits, const sample_row *rows, uint32_t n, uint32_t n_vocab);
/* Of a batch with draws_later, rows are not looked at before be_step_draw: it gives those of the
 * step that ended last, before the next step begins and before this one is finished.  They are
 * borrowed for the call; a failure is told by be_step_finish.  Only if be_can_draw_later. */
bool be_can_draw_later(const backend *be);
void be_step_draw(backend *be, const sample_row *rows);
/* The host will read the first n rows of this activation of the step. */
void be_want_logits(backend *be, const act *logits, uint32_t n);

/* Wait for everything; the first failure since the last be_sync or be_check. */
inferd_status be_sync(backend *be, inferd_err *err);
inferd_status be_check(backend *be, inferd_err *err); // the same without waiting
/* After be_sync: [rows, dim] floats in host memory, valid until the next operation. */
const float *be_act_host(backend *be, const act *a);

/* Device time: mark a point in the queue; after be_sync, microseconds between two marks. */
enum { BE_EVENTS = 4 };
void be_event_record(backend *be, uint32_t event);
uint64_t be_event_elapsed_us(const backend *be, uint32_t begin, uint32_t end);

/* Host work on the backend's own threads: f(ctx, i) for i in [0, n), in any order; waits.
 * Between steps only. */
void be_parallel(backend *be, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx);
/* For a thread that the engine's thread started: it may run on other CPUs than that of the compute
 * thread that it inherited.  Any thread. */
void be_thread_beside(const backend *be);

#endif
