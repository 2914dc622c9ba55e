/* backend_ops.h - what a device implements: one function per operation.
 *
 * backend.c holds the common part: the sticky first failure, and the calls into the table.
 * A device embeds `backend` as the first member of its own struct and fills `ops`; kernels/cpu is
 * one such table.  Functions of the step are called only while nothing has failed; they report a
 * failure with backend_fail.
 *
 * Thread: engine. */
#ifndef INFERD_BACKEND_OPS_H
#define INFERD_BACKEND_OPS_H

#include "kernels/backend.h"

typedef struct backend_ops {
    void (*close)(backend *be);
    const char *(*name)(const backend *be);
    const char *(*warning)(const backend *be); // NULL: none
    uint32_t (*depth)(const backend *be);
    uint32_t (*n_threads)(const backend *be);
    uint32_t (*rows_best)(const backend *be);    // NULL: 0
    uint32_t (*rows_default)(const backend *be); // NULL: 0
    void (*get_stats)(const backend *be, backend_stats *out);
    uint32_t (*get_profile)(const backend *be, be_part out[BE_PARTS_MAX]); // NULL: none is made

    uint32_t (*n_pages)(const backend *be);
    size_t (*page_bytes)(const backend *be);
    uint32_t (*n_pages_ready)(const backend *be);   // NULL: all
    uint32_t (*n_pages_warm)(const backend *be);    // NULL: all that are ready
    uint32_t (*extent_pages)(const backend *be);    // NULL: 1
    uint32_t (*n_host_pages)(const backend *be);    // NULL: 0
    void (*page_touch)(backend *be, uint32_t page); // NULL: nothing to do
    inferd_status (*window_open)(backend *be, size_t n_bytes, be_window **out, inferd_err *err);
    void (*window_close)(backend *be, be_window *w);
    void *(*window_base)(const be_window *w);
    inferd_status (*window_map)(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                                inferd_err *err);
    inferd_status (*window_unmap)(backend *be, be_window *w, inferd_err *err);
    /* NULL says whether host and device have one memory or two. */
    inferd_status (*window_grow)(backend *be, be_window *w, const uint32_t *pages, uint32_t n_pages,
                                 inferd_err *err);                                 // NULL: two
    inferd_status (*window_host_take)(backend *be, be_window *w, inferd_err *err); // NULL: one ...
    void (*window_host_give)(backend *be, be_window *w);
    void *(*window_host)(const be_window *w);
    void (*window_upload)(backend *be, be_window *w, size_t begin, size_t end);
    void (*window_download)(backend *be, be_window *w, size_t begin, size_t end);
    void (*window_host_pass)(backend *be, be_window *w, size_t end);
    size_t (*window_n_pending)(backend *be, const be_window *w);
    kv_type (*kv_preferred)(const backend *be); // NULL: f16
    void (*kv_move)(backend *be, const kv_layout *kv, uint32_t n, const int32_t *from,
                    const int32_t *to, bool to_host);
    unsigned char *(*kv_slot)(backend *be, const kv_layout *kv, int32_t slot);
    uint32_t (*n_swap_pages)(const backend *be);          // NULL: one memory, likewise the next
    uint32_t (*swap_extent_pages)(const backend *be);     //
    void (*swap_empty)(backend *be, uint32_t first_page); //
    void (*page_zero)(backend *be, uint32_t page, size_t begin, size_t n_bytes);
    size_t (*kv_layer_bytes)(const backend *be, kv_type type, uint32_t n_kv_heads,
                             uint32_t head_dim, uint32_t block_tokens);

    bool (*weight_supported)(const backend *be, dtype type);
    const char *(*weight_math)(const backend *be, dtype type); // NULL: ""
    size_t (*weight_bytes)(const backend *be, dtype type, uint32_t rows, uint32_t cols);
    void (*weight_init)(backend *be, weight *w, dtype type, uint32_t rows, uint32_t cols,
                        void *dst);
    void (*weight_prepare)(backend *be, weight *w, const void *rows, uint32_t row_begin,
                           uint32_t n_rows);
    inferd_status (*weight_prepare_part)(const backend *be, const weight *w, const void *rows,
                                         uint32_t row_begin, uint32_t n_rows, inferd_err *err);
    void (*weight_dummy)(backend *be, weight *w, uint64_t seed, float scale);
    void (*weight_dummy_rows)(backend *be, weight *w, uint64_t seed, float scale,
                              uint32_t row_begin, uint32_t n_rows); // NULL: two memories
    const char *(*weight_layout)(const backend *be);
    void (*tune)(backend *be, const weight *const *weights, uint32_t n); // NULL: nothing to do
    void (*vec_init)(backend *be, vec *v, uint32_t n, void *dst);
    void (*vec_load)(backend *be, vec *v, const float *host);
    void (*vec_fill)(backend *be, vec *v, float value);
    inferd_status (*reserve)(backend *be, const be_needs *n, be_reservation **out,
                             inferd_err *err); // NULL: nothing to do
    void (*release)(backend *be, be_reservation *r);
    void (*scratch_begin)(backend *be);
    void (*scratch_end)(backend *be);
    act *(*act_open)(backend *be, act_kind kind, uint32_t rows_max, uint32_t dim);
    void (*act_close)(backend *be, act *a);

    void (*step_begin)(backend *be, const batch *b, const kv_layout *kv);
    void (*step_end)(backend *be, bool failed); // failed: discard it, nothing is launched
    /* Wait for the oldest ended step that did not fail; failures go to backend_fail. */
    void (*step_finish)(backend *be, be_step_result *out);
    void (*embed)(backend *be, act *out, const weight *table, float scale);
    void (*rmsnorm)(backend *be, act *out, const act *x, const vec *w, uint32_t n, float eps);
    void (*matmul)(backend *be, act *out, const act *x, const weight *w, const vec *bias,
                   uint32_t n);
    void (*rope)(backend *be, act *q, act *k, const rope_spec *r, uint32_t n_heads,
                 uint32_t n_kv_heads, uint32_t head_dim);
    void (*attention)(backend *be, act *out, const act *q, const act *k, const act *v,
                      uint32_t layer_idx, const attn_spec *spec, const vec *sinks);
    void (*head_norm)(backend *be, act *x, const vec *w, uint32_t n, uint32_t n_heads,
                      uint32_t head_dim, float eps);
    void (*glu)(backend *be, act_fn fn, act *out, const act *gate, const act *up, uint32_t n,
                uint32_t dim);
    void (*experts)(backend *be, act *out, const act *x, const act *logits, const expert_weights *w,
                    act *hidden, act *parts, uint32_t n);
    void (*scale)(backend *be, act *out, const act *x, uint32_t n, uint32_t dim, float factor);
    void (*add)(backend *be, act *x, const act *y, uint32_t n, uint32_t dim);
    void (*take_logit_rows)(backend *be, act *out, const act *x, uint32_t dim);
    void (*softcap)(backend *be, act *x, uint32_t n, uint32_t dim, float cap);
    void (*draw)(backend *be, const act *logits, const sample_row *rows, uint32_t n,
                 uint32_t n_vocab);                         // NULL: the host draws
    void (*step_draw)(backend *be, const sample_row *rows); // NULL: draws are known at launch
    void (*want_logits)(backend *be, const act *logits, uint32_t n);

    void (*sync)(backend *be); // waits; failures found now go to backend_fail
    const float *(*act_host)(backend *be, const act *a);
    void (*event_record)(backend *be, uint32_t event);
    uint64_t (*event_elapsed_us)(const backend *be, uint32_t begin, uint32_t end);
    void (*parallel)(backend *be, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx);
    void (*thread_beside)(const backend *be); // NULL: nothing to do
} backend_ops;

enum { BE_STEPS_MAX = 4 }; // launched and not finished

struct backend {
    const backend_ops *ops;
    inferd_err failure; // the first since the last be_sync or be_step_end; status INFERD_OK: none
    uint32_t fail_at;   // for tests: the fail_at-th operation from now fails; 0 = none

    /* Failures, before the launch, of steps ended and not finished; the oldest at step_first. */
    inferd_err step_failure[BE_STEPS_MAX];
    uint32_t step_first, n_steps;
};

/* Remember the failure, unless there is one already. */
__attribute__((format(printf, 3, 4))) void backend_fail(backend *be, inferd_status status,
                                                        const char *format, ...);

/* For tests: the n-th operation of a step from now fails (1 = the next), once; 0 = none. */
void backend_fail_at(backend *be, uint32_t n_ops);

/* The devices. */
inferd_status cpu_open(const backend_options *options, backend **out, inferd_err *err);
inferd_status cpu_list_devices(const backend_options *options, backend_device_about *out,
                               uint32_t *n, inferd_err *err);
inferd_status cuda_open(const backend_options *options, backend **out, inferd_err *err);
/* Opens the module and cuBLASLt, and no device. */
inferd_status cuda_list_parts(const backend_options *options, uint32_t index,
                              be_device_part out[BE_DEVICE_PARTS_MAX], uint32_t *n,
                              inferd_err *err);
uint64_t cuda_workspace_bytes(const backend_options *options, const be_needs *needs, uint32_t n);
inferd_status cuda_list_devices(const backend_options *options, backend_device_about *out,
                                uint32_t *n, inferd_err *err);
inferd_status cuda_look_device(const backend_options *options, bool inside,
                               backend_device_about *out, inferd_err *err);

uint32_t cuda_list_instances(const backend_options *options, uint32_t n_max, backend_instance *out);

#endif
