/* cuda.c - opening the CUDA backend, its pages and its windows; see cuda.h.
 *
 * The order of opening matters.  Kernels are loaded and the library has run once before the pool is
 * sized, because both take device memory at their first use; the pool then gets the rest, less a
 * reserve.
 *
 * Thread: engine; another one may close it when the engine's has ended. */
#include "cuda/cuda.h"

#include <stdatomic.h>
#include <string.h>

#include "cuda/formats.h"
#include "cuda/open.h"
#include "cuda/rows.h"
#include "cpu/threads.h"

/* ---- the device ---- */

static void cuda_close(backend *be) {
    cuda_backend *c = cuda_of(be);
    if (c->stream != NULL) {
        c->api->device_use(c->device_index); // another thread may close it
        c->api->stream_sync(c->stream);
    }
    cuda_moves_close(c);
    cuda_steps_close(c);
    if (c->memory != NULL) {
        void *taken[] = {c->mm_workspace.partials, c->mm_workspace.counters, c->mm_workspace.lt,
                         c->mm_workspace.expand};
        for (size_t i = 0; i < INFERD_COUNT(taken); i++) memory_workspace_give(c->memory, taken[i]);
    }
    for (uint32_t i = 0; i < BE_EVENTS; i++)
        if (c->marks[i] != NULL) c->api->event_destroy(c->marks[i]);
    matmul_destroy(c->mm);
    memory_close(c->memory);
    if (c->stream != NULL) c->api->stream_destroy(c->stream);
    tpool_close(c->threads);
    free(c->launch.n_by_kernel);
    free(c);
}

static const char *cuda_name(const backend *be) {
    return cuda_of_const(be)->name;
}
static const char *cuda_warning(const backend *be) {
    return cuda_of_const(be)->lt_missing;
}
static uint32_t cuda_depth(const backend *be) {
    (void)be;
    return CUDA_DEPTH;
}
/* Steps of 2,048 rows spread the reading of weights over four times as many rows as steps of 512.
 * Their activations lie in the workspace: 94 KB a row of an 8B model, 185 KB of one of 70B, and
 * half of it is left to other things. */
static uint32_t cuda_rows_default(const backend *be) {
    enum { ROW_BYTES = 512 << 10, ROWS_MIN = 512, ROWS_MAX = 2048, ROWS_MULTIPLE = 64 };
    cuda_memory_stats memory;
    memory_get_stats(cuda_of_const(be)->memory, &memory);
    uint64_t rows = memory.workspace_bytes / ROW_BYTES / ROWS_MULTIPLE * ROWS_MULTIPLE;
    return rows < ROWS_MIN ? ROWS_MIN : rows > ROWS_MAX ? ROWS_MAX : (uint32_t)rows;
}
static uint32_t cuda_n_threads(const backend *be) {
    return tpool_n_threads(cuda_of_const(be)->threads);
}

static void cuda_get_stats(const backend *be, backend_stats *out) {
    const cuda_backend *c = cuda_of_const(be);
    matmul_paths paths;
    cuda_memory_stats memory;
    matmul_count_paths(c->mm, &paths);
    memory_get_stats(c->memory, &memory);
    *out = (backend_stats){.n_kv_driver_calls = c->n_kv_driver_calls,
                           .n_pages_touched = memory_n_ready(c->memory),
                           .n_launches = c->launch.n_launches,
                           .n_graphs = c->n_graphs_captured,
                           .n_graphs_refused = c->n_graphs_refused,
                           .n_graph_launches = c->n_graph_launches,
                           .n_matmul_gemv = paths.gemv,
                           .n_matmul_skinny = paths.skinny,
                           .n_matmul_lt = paths.lt,
                           .n_matmul_expanded = paths.expanded,
                           .n_matmul_skinny_large = paths.skinny_large,
                           .load_bytes = memory.load_bytes,
                           .load_us = memory.load_us,
                           .bus_bytes_per_s = memory.bus_bytes_per_s,
                           .pinned_bytes = memory.pinned_bytes,
                           .n_parts = CUDA_PARTS};
    memcpy(out->parts, c->parts.part, sizeof c->parts.part);
}

/* ---- pages and windows ---- */

static uint32_t cuda_n_pages(const backend *be) {
    return memory_n_pages(cuda_of_const(be)->memory);
}
static size_t cuda_page_bytes(const backend *be) {
    return memory_page_bytes(cuda_of_const(be)->memory);
}
static uint32_t cuda_n_pages_ready(const backend *be) {
    return memory_n_ready(cuda_of_const(be)->memory);
}
static uint32_t cuda_extent_pages(const backend *be) {
    return memory_extent_pages(cuda_of_const(be)->memory);
}

/* Behind the steps on the stream, ahead of those that follow. */
static void cuda_page_zero(backend *be, uint32_t page, size_t begin, size_t n_bytes) {
    cuda_backend *c = cuda_of(be);
    size_t page_bytes = memory_page_bytes(c->memory);
    INFERD_CHECK(begin <= page_bytes && n_bytes <= page_bytes - begin);
    unsigned char *p = (unsigned char *)memory_base(c->memory) + page * page_bytes + begin;
    cuda_moves_await(c); // the old contents may still be copied to the host
    c->moves.zeroed = true;
    cuda_failed(c, c->api->fill(p, 0, n_bytes, c->stream), "zeroing keys and values");
}

static inferd_status cuda_window_open(backend *be, size_t n_bytes, be_window **out,
                                      inferd_err *err) {
    *out = NULL;
    be_window *w = calloc(1, sizeof *w);
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a window");
    w->ops = be->ops;
    w->owner = cuda_of(be);
    inferd_status s = window_open_cuda(w->owner->memory, n_bytes, &w->w, err);
    if (s == INFERD_OK)
        *out = w;
    else
        free(w);
    return s;
}

/* Graphs use its addresses, and steps may still read there. */
static void cuda_window_close(backend *be, be_window *w) {
    cuda_backend *c = cuda_of(be);
    cuda_forget_graphs(c);
    c->api->stream_sync(c->stream);
    window_close_cuda(c->memory, w->w);
    free(w);
}

static void *cuda_window_base(const be_window *w) {
    return window_base_cuda(w->w);
}

static inferd_status cuda_window_map(backend *be, be_window *w, const uint32_t *pages,
                                     uint32_t n_pages, inferd_err *err) {
    cuda_moves_sync(cuda_of(be)); // of the old contents of these pages
    return window_map_cuda(cuda_of(be)->memory, w->w, pages, n_pages, err);
}

static inferd_status cuda_window_unmap(backend *be, be_window *w, inferd_err *err) {
    cuda_backend *c = cuda_of(be);
    cu_result r = c->api->stream_sync(c->stream); // the last step that read it has ended
    inferd_status s = window_unmap_cuda(c->memory, w->w, err);
    if (s == INFERD_OK && r != CU_OK) s = cu_fail(c->api, r, err, "waiting for the device");
    /* A driver that does not take memory back is unusable, whatever error it returns. */
    if (s != INFERD_OK && err != NULL) err->status = INFERD_ELOST;
    return s == INFERD_OK ? INFERD_OK : INFERD_ELOST;
}

static void cuda_window_upload(backend *be, be_window *w, size_t begin, size_t end) {
    inferd_err err = {0};
    if (window_upload_cuda(cuda_of(be)->memory, w->w, begin, end, &err) != INFERD_OK)
        backend_fail(be, err.status, "%s", err.text);
}

static void cuda_window_download(backend *be, be_window *w, size_t begin, size_t end) {
    inferd_err err = {0};
    if (window_download_cuda(cuda_of(be)->memory, w->w, begin, end, &err) != INFERD_OK)
        backend_fail(be, err.status, "%s", err.text);
}

static size_t cuda_window_n_pending(backend *be, const be_window *w) {
    inferd_err err = {0};
    size_t n;
    if (window_pending_cuda(cuda_of(be)->memory, w->w, &n, &err) != INFERD_OK)
        backend_fail(be, err.status, "%s", err.text);
    return n;
}

static inferd_status cuda_window_host_take(backend *be, be_window *w, inferd_err *err) {
    cuda_backend *c = cuda_of(be);
    if (window_image_take(c->memory, w->w, NULL) == INFERD_OK) return INFERD_OK;
    cuda_moves_sync(c);
    memory_swap_trim(c->memory); // spare memory is freed first
    return window_image_take(c->memory, w->w, err);
}
static void cuda_window_host_give(backend *be, be_window *w) {
    window_image_give(cuda_of(be)->memory, w->w);
}
static void cuda_window_host_pass(backend *be, be_window *w, size_t end) {
    window_image_pass(cuda_of(be)->memory, w->w, end);
}
static void *cuda_window_host(const be_window *w) {
    return window_image_cuda(w->w);
}

static uint32_t cuda_n_host_pages(const backend *be) {
    const cuda_memory *m = cuda_of_const(be)->memory;
    uint64_t n_bytes = memory_host_bytes(m);
    if (n_bytes == 0) return UINT32_MAX; // unknown: the kernel refuses when memory ends
    return (uint32_t)size_min(n_bytes / memory_page_bytes(m), UINT32_MAX);
}

/* K and V of one block and layer, side by side; 16 bits each. */
static size_t cuda_kv_layer_bytes(const backend *be, kv_type type, uint32_t n_kv_heads,
                                  uint32_t head_dim, uint32_t block_tokens) {
    (void)be;
    if (type != KV_F16 && type != KV_BF16) return 0;
    size_t n = (size_t)2 * n_kv_heads * head_dim * block_tokens * sizeof(uint16_t);
    return (n + 63) / 64 * 64;
}

/* ---- waiting ---- */

static void cuda_sync(backend *be) {
    cuda_backend *c = cuda_of(be);
    inferd_err err = {0};
    cuda_flush(c);
    cuda_failed(c, c->api->stream_sync(c->stream), "waiting for the device");
    cuda_moves_sync(c);
    if (memory_sync(c->memory, &err) != INFERD_OK) backend_fail(be, err.status, "%s", err.text);
}

static void cuda_event_record(backend *be, uint32_t event) {
    cuda_backend *c = cuda_of(be);
    cuda_flush(c);
    cuda_failed(c, c->api->event_record(c->marks[event], c->stream), "marking a time");
}

static uint64_t cuda_event_elapsed_us(const backend *be, uint32_t begin, uint32_t end) {
    const cuda_backend *c = cuda_of_const(be);
    uint64_t us = 0;
    if (c->api->event_elapsed_us(c->marks[begin], c->marks[end], &us) != CU_OK) return 0;
    return us;
}

static void cuda_parallel(backend *be, uint32_t n, void (*f)(void *ctx, uint32_t i), void *ctx) {
    tpool_each(cuda_of(be)->threads, n, f, ctx);
}

/* ---- tuning ---- */

static void cuda_tune(backend *be, const weight *const *weights, uint32_t n) {
    enum { TUNE_BUDGET_US = 1000000 };
    cuda_backend *c = cuda_of(be);
    inferd_err err = {0};
    if (!c->lt) return;
    /* Without a file for the results, each choice only runs once, so that nothing of the library is
     * loaded while serving. */
    uint64_t budget_us = c->tune_path != NULL ? TUNE_BUDGET_US : 0;
    cu_matrix *m = malloc(size_max(n, 1) * sizeof *m);
    if (m == NULL) return; // the library's first choices are used
    for (uint32_t i = 0; i < n; i++)
        m[i] =
            format_matrix(weights[i]->type, weights[i]->rows, weights[i]->cols, weights[i]->data);
    inferd_status s = memory_sync(c->memory, &err);
    if (s == INFERD_OK) s = matmul_tune(c->mm, &c->launch, m, n, budget_us, &err);
    if (s != INFERD_OK) backend_fail(be, s, "%s", err.text);
    free(m);
}

/* ---- opening ---- */

static const backend_ops cuda_ops = {
    .close = cuda_close,
    .name = cuda_name,
    .warning = cuda_warning,
    .depth = cuda_depth,
    .n_threads = cuda_n_threads,
    .rows_default = cuda_rows_default,
    .get_stats = cuda_get_stats,
    .n_pages = cuda_n_pages,
    .page_bytes = cuda_page_bytes,
    .page_zero = cuda_page_zero,
    .kv_move = cuda_kv_move,
    .kv_slot = cuda_kv_slot,
    .n_swap_pages = cuda_n_swap_pages,
    .swap_extent_pages = cuda_swap_extent_pages,
    .swap_empty = cuda_swap_empty,
    .n_pages_ready = cuda_n_pages_ready,
    .extent_pages = cuda_extent_pages,
    .n_host_pages = cuda_n_host_pages,
    .window_open = cuda_window_open,
    .window_close = cuda_window_close,
    .window_base = cuda_window_base,
    .window_map = cuda_window_map,
    .window_unmap = cuda_window_unmap,
    .window_upload = cuda_window_upload,
    .window_n_pending = cuda_window_n_pending,
    .window_download = cuda_window_download,
    .window_host_pass = cuda_window_host_pass,
    .window_host_take = cuda_window_host_take,
    .window_host_give = cuda_window_host_give,
    .window_host = cuda_window_host,
    .kv_layer_bytes = cuda_kv_layer_bytes,
    .weight_supported = cuda_weight_supported,
    .weight_bytes = cuda_weight_bytes,
    .weight_init = cuda_weight_init,
    .weight_prepare = cuda_weight_prepare,
    .weight_prepare_part = cuda_weight_prepare_part,
    .weight_dummy = cuda_weight_dummy,
    .weight_layout = cuda_weight_layout,
    .tune = cuda_tune,
    .vec_init = cuda_vec_init,
    .vec_load = cuda_vec_load,
    .vec_fill = cuda_vec_fill,
    .reserve = cuda_reserve,
    .release = cuda_release,
    .scratch_begin = cuda_scratch_begin,
    .scratch_end = cuda_scratch_end,
    .act_open = cuda_act_open,
    .act_close = cuda_act_close,
    .step_begin = cuda_step_begin,
    .step_end = cuda_step_end,
    .step_finish = cuda_step_finish,
    .embed = cuda_embed,
    .rmsnorm = cuda_rmsnorm,
    .matmul = cuda_matmul,
    .rope = cuda_rope_op,
    .attention = cuda_attention,
    .head_norm = cuda_head_norm,
    .glu = cuda_glu,
    .experts = cuda_experts,
    .scale = cuda_scale,
    .add = cuda_add,
    .take_logit_rows = cuda_take_logit_rows,
    .softcap = cuda_softcap,
    .draw = cuda_draw,
    .step_draw = cuda_step_draw,
    .want_logits = cuda_want_logits,
    .sync = cuda_sync,
    .act_host = cuda_act_host,
    .event_record = cuda_event_record,
    .event_elapsed_us = cuda_event_elapsed_us,
    .parallel = cuda_parallel,
};

static inferd_status choose_activations(cuda_backend *c, const char *wanted, inferd_err *err) {
    if (wanted == NULL || strcmp(wanted, "bf16") == 0)
        c->inner = CU_BF16;
    else if (strcmp(wanted, "f16") == 0)
        c->inner = CU_F16;
    else
        return inferd_fail(err, INFERD_EINVAL, "activations: \"%s\", expected \"bf16\" or \"f16\"",
                           wanted);
    return INFERD_OK;
}

static inferd_status open_device(cuda_backend *c, const backend_options *o, inferd_err *err) {
    inferd_status s;
    c->module = o->module;
    if (c->module == NULL && (s = cuda_module_open(o->module_path, &c->module, err)) != INFERD_OK)
        return s;
    c->api = c->module->api;
    if ((s = cuda_pick(c->module, o->uuid, o->index, &c->device_index, &c->device, err)) !=
        INFERD_OK)
        return s;
    cu_result r = c->api->device_use(c->device_index);
    if (r == CU_OK) r = c->api->stream_create(true, &c->stream);
    for (uint32_t i = 0; i < BE_EVENTS && r == CU_OK; i++)
        r = c->api->event_create(CU_EVENT_TIMED, &c->marks[i]);
    for (uint32_t i = 0; i < CUDA_DEPTH && r == CU_OK; i++) {
        cuda_flight *f = &c->flights[i];
        r = c->api->event_create(CU_EVENT_TIMED, &f->begin);
        if (r == CU_OK) r = c->api->event_create(CU_EVENT_TIMED, &f->ends[CUDA_END_SPINNING]);
        if (r == CU_OK)
            r = c->api->event_create(CU_EVENT_TIMED | CU_EVENT_BLOCKING, &f->ends[CUDA_END_ASLEEP]);
    }
    if (r == CU_OK) r = c->api->host_alloc(sizeof *c->n_saturated, (void **)&c->n_saturated);
    if (r == CU_OK) *c->n_saturated = 0;
    if (r != CU_OK) return cu_fail(c->api, r, err, "opening the device");
    if ((s = cuda_wait_open(c, err)) != INFERD_OK || (s = cuda_moves_open(c, err)) != INFERD_OK)
        return s;
    c->launch = (launcher){.module = c->module,
                           .api = c->api,
                           .device = &c->device,
                           .stream = c->stream,
                           .parts = &c->parts};
    parts_look(&c->parts, &c->device);
    c->launch.dependent = parts_is_on(&c->parts, PART_PDL);
    c->launch.n_by_kernel = calloc(size_max(c->module->n_kernels, 1), sizeof(uint64_t));
    if (c->launch.n_by_kernel == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %u counters", c->module->n_kernels);
    return INFERD_OK;
}

/* cuBLASLt is optional: matmul.h says how large matrices are multiplied without it. */
static void open_library(cuda_backend *c, const char *path) {
    if (!parts_is_on(&c->parts, PART_LT)) return;
    c->lt = c->api->lt_open(path) == CU_OK;
    if (c->lt) return;
    snprintf(c->lt_missing, sizeof c->lt_missing, "%s", c->api->text());
    parts_absent(&c->parts, PART_LT, c->lt_missing);
}

/* One split of shared memory for all kernels; a kernel that needs another one only costs time. */
static inferd_status carve_out(cuda_backend *c, inferd_err *err) {
    for (uint32_t i = 0; i < c->module->n_kernels; i++) {
        const cu_kernel *k = &c->module->kernels[i];
        if (!parts_is_on(&c->parts, PART_CARVEOUT)) return INFERD_OK;
        if (k->cc_min > c->device.cc_major * 10 + c->device.cc_minor) continue;
        cu_result r = c->api->kernel_carve_out(k->fn);
        if (r == CU_ELOST) return cu_fail(c->api, r, err, k->name);
        if (r != CU_OK) parts_degrade(&c->parts, PART_CARVEOUT, c->api->text());
    }
    return INFERD_OK;
}

static inferd_status load_kernels(cuda_backend *c, const backend_options *o, inferd_err *err) {
    inferd_status s;
    open_library(c, o->cublaslt_path);
    bool missing = c->parts.part[PART_LT].state == BE_PART_ABSENT;
    if (missing && o->cublaslt_path != NULL) // a library that is configured must open
        return inferd_fail(err, INFERD_ENOTFOUND, "cublaslt: %s", c->lt_missing);
    if ((s = rows_init(c->module, &c->device, err)) ||
        (s = attention_init(c->module, &c->device, err)) ||
        (s = draw_init(c->module, &c->device, err)) ||
        (s = experts_init(c->module, &c->device, err)) ||
        (s = matmul_create(c->module, &c->device, c->inner, c->lt, c->tune_path, &c->mm, err)))
        return s;
    matmul_allow(c->mm, parts_is_on(&c->parts, PART_MIXED), parts_is_on(&c->parts, PART_GEMV8),
                 parts_is_on(&c->parts, PART_SKINNY128));
    s = carve_out(c, err);
    return s == INFERD_OK ? matmul_warm(c->mm, &c->launch, err) : s;
}

size_t cuda_expand_bytes(uint64_t n) {
    const uint64_t least = 4 << 20, most = 256 << 20;
    return n / 8 < least ? least : n / 8 > most ? most : n / 8;
}

uint64_t cuda_workspace_of(uint64_t want) {
    uint64_t n = want;
    while (n < want + cuda_expand_bytes(n)) n = want + cuda_expand_bytes(n);
    return n;
}

static inferd_status take_workspace(cuda_backend *c, inferd_err *err) {
    cuda_memory_stats stats;
    memory_get_stats(c->memory, &stats);
    matmul_workspace *w = &c->mm_workspace;
    *w = (matmul_workspace){.partials_bytes = MATMUL_PARTIALS_BYTES,
                            .n_counters = MATMUL_COUNTERS,
                            .lt_bytes = c->lt ? MATMUL_LT_BYTES : 0,
                            .expand_bytes = cuda_expand_bytes(stats.workspace_bytes)};
    struct {
        void **p;
        size_t n;
    } wanted[] = {{&w->partials, w->partials_bytes},
                  {(void **)&w->counters, w->n_counters * sizeof *w->counters},
                  {&w->lt, w->lt_bytes},
                  {&w->expand, w->expand_bytes}};
    for (size_t i = 0; i < INFERD_COUNT(wanted); i++) {
        if (wanted[i].n == 0) continue;
        *wanted[i].p = memory_workspace_take(c->memory, wanted[i].n, err);
        if (*wanted[i].p == NULL) return INFERD_ENOMEM;
    }
    cu_result r = c->api->fill(w->counters, 0, w->n_counters * sizeof *w->counters, c->stream);
    if (r != CU_OK) return cu_fail(c->api, r, err, "clearing counters");
    matmul_set_workspace(c->mm, w);
    return INFERD_OK;
}

inferd_status cuda_open(const backend_options *options, backend **out, inferd_err *err) {
    *out = NULL;
    inferd_status s;
    cuda_backend *c = calloc(1, sizeof *c);
    if (c == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the backend");
    c->be.ops = &cuda_ops;
    c->tune_path = options->tune_path;
    cuda_memory_options memory = {.memory_bytes = options->memory_bytes,
                                  .reserve_bytes = options->reserve_bytes,
                                  .workspace_bytes = options->workspace_bytes,
                                  .workspace_least = options->workspace_least,
                                  .host_bytes = options->host_bytes,
                                  .parts = &c->parts};
    if ((s = parts_init(&c->parts, options->off, err)) ||
        (s = choose_activations(c, options->activations, err)) ||
        (s = tpool_open(options->n_threads, &c->threads, err)) ||
        (s = open_device(c, options, err)) || (s = load_kernels(c, options, err)) ||
        (s = memory_open(c->api, c->device_index, &c->device, &memory, &c->memory, err)) ||
        (s = take_workspace(c, err))) {
        cuda_close(&c->be);
        return s;
    }
    memory_swap_prepare(c->memory);
    snprintf(c->name, sizeof c->name, "cuda %u %s %s%s%s", c->device_index, c->device.name,
             c->inner == CU_BF16 ? "bf16" : "f16", c->lt ? "" : " without cuBLASLt",
             cuda_wait_name(c));
    *out = &c->be;
    return INFERD_OK;
}
