/* sim_device.c - see sim_device.h. */
#include "sim_device.h"

#include <string.h>

enum {
    STAGE_PARTS = 16,   // looks per stage while it waits
    LOAD_POLL_US = 500, // between two looks at a load, with nothing to compute
    PAGE_USED_PERCENT = 95
};

#define MIB ((uint64_t)1 << 20)
#define GB  ((uint64_t)1000 * 1000 * 1000)

/* Where the constants come from:
 *
 *   memory, bandwidth   data sheet (80 GB at 3.35 TB/s); a step that reads weights is assumed to
 *                       reach 80 % of it
 *   flops               400 TFLOP/s of bf16, half of the peak, assumed for long prompts; not
 *                       measured
 *   bus                 52 GB/s from pinned host memory over PCIe 5 x16
 *   disk                6 GB/s, one NVMe drive
 *   extent              32 pages of 2 MiB are mapped at once
 *   overhead, host      assumed: 0.15 ms of a captured graph, 30 us to plan and launch
 *   load_fix            assumed: 5 ms to map and to compute for the first time
 */
const sim_preset sim_h100 = {
    .name = "h100-80",
    .memory_bytes = 80 * GB,
    .reserve_bytes = 2 * GB,
    .host_bytes = 1024 * GB,
    .page_bytes = 2 * MIB,
    .extent_pages = 32,
    .depth = 2,
    .rows_default = 2048,
    .mem_bytes_per_s = 0.8 * 3.35e12,
    .flops = 400e12,
    .bus_bytes_per_s = 52e9,
    .disk_bytes_per_s = 6e9,
    .overhead_us = 150,
    .host_us = 30,
    .load_fix_us = 5000,
};

/* Shapes as published: models of 1 to 14 billion parameters in bf16, among them Llama 3.2 1B and
 * Llama 3.1 8B. */
const sim_shape sim_shapes[SIM_SHAPES] = {
    {"8b", 16060522496, 8030261248, 32, 32, 8, 128, 4096, 128256, 131072, 2},
    {"3b", 6425499648, 3212749824, 28, 24, 8, 128, 3072, 128256, 131072, 2},
    {"14b", 29540067328, 14770033664, 48, 40, 8, 128, 5120, 152064, 32768, 2},
    {"1b", 2471645608, 1235814400, 16, 32, 8, 64, 2048, 128256, 131072, 2},
};

/* ---- costs of a model ---- */

sim_cost sim_cost_of(const sim_preset *p, const sim_shape *s) {
    double kv_bytes = 2.0 * s->n_layers * s->n_kv_heads * s->head_dim * s->kv_number_bytes;
    /* Multiply-add, for queries with keys and for weights with values. */
    double attention = 4.0 * s->n_layers * s->n_heads * s->head_dim;
    return (sim_cost){
        .fixed_ns =
            (uint64_t)(p->overhead_us * 1e3 + (double)s->weight_bytes / p->mem_bytes_per_s * 1e9),
        .row_ns = (uint64_t)(2.0 * (double)s->n_params / p->flops * 1e9),
        .draw_ns = (uint64_t)(2.0 * s->n_vocab * s->dim / p->flops * 1e9),
        .kept_ps = (uint64_t)(kv_bytes / p->mem_bytes_per_s * 1e12),
        .attended_ps = (uint64_t)(attention / p->flops * 1e12),
    };
}

/* Puts as many layers in a slot as fill a page. */
static kv_layout choose_layout(const sim_preset *p, const sim_shape *s) {
    size_t layer_bytes =
        (size_t)2 * s->n_kv_heads * s->head_dim * s->kv_number_bytes * SIM_BLOCK_TOKENS;
    for (uint32_t group = s->n_layers; group >= 1; group--) {
        uint32_t slots = (uint32_t)(p->page_bytes / (group * layer_bytes));
        uint64_t used = slots * group * layer_bytes;
        if (s->n_layers % group == 0 && used * 100 >= p->page_bytes * PAGE_USED_PERCENT)
            return (kv_layout){.type = KV_F16,
                               .n_layers = s->n_layers,
                               .n_kv_heads = s->n_kv_heads,
                               .head_dim = s->head_dim,
                               .block_tokens = SIM_BLOCK_TOKENS,
                               .group_layers = group,
                               .n_groups = s->n_layers / group,
                               .slots_per_page = slots,
                               .layer_bytes = layer_bytes,
                               .slot_bytes = group * layer_bytes};
    }
    INFERD_CHECK(!"a shape of the table that fills no page");
    return (kv_layout){0};
}

sim_model sim_model_of(const sim_preset *p, const sim_shape *s) {
    return (sim_model){.weight_bytes = s->weight_bytes,
                       .cost = sim_cost_of(p, s),
                       .kv = choose_layout(p, s),
                       .context = s->context};
}

uint64_t sim_step_us(const sim_cost *c, const step *st) {
    uint64_t kept = 0;
    for (uint32_t i = 0; i < st->b.n_seqs; i++)
        kept += st->b.seqs[i].pos_begin + st->b.seqs[i].n_rows;
    uint64_t ns = c->fixed_ns + c->row_ns * st->b.n_rows + c->draw_ns * st->b.n_logits +
                  (c->kept_ps * kept + c->attended_ps * st->n_attended) / 1000;
    return (ns + 999) / 1000;
}

static uint64_t transfer_us(uint64_t n_bytes, double bytes_per_s) {
    return (uint64_t)((double)n_bytes / bytes_per_s * 1e6);
}

uint64_t sim_load_us(const sim_preset *p, uint64_t weight_bytes) {
    return p->load_fix_us + transfer_us(weight_bytes, p->bus_bytes_per_s);
}

uint32_t sim_weight_pages(const sim_preset *p, uint64_t weight_bytes) {
    uint64_t extent_bytes = p->page_bytes * p->extent_pages;
    return (uint32_t)((weight_bytes + extent_bytes - 1) / extent_bytes * p->extent_pages);
}

/* ---- life ---- */

sim_device *sim_device_create(const sim_preset *p, const sim_model *models, uint32_t n_models) {
    sim_device *d = calloc(1, sizeof *d);
    if (d == NULL) return NULL;
    *d = (sim_device){.preset = *p, .models = models, .waiting = UINT32_MAX};
    d->slots = calloc(size_max(n_models, 1), sizeof *d->slots);
    if (d->slots != NULL) return d;
    free(d);
    return NULL;
}

static inferd_status sim_open(void *self, device_about *out, inferd_err *err) {
    sim_device *d = self;
    const sim_preset *p = &d->preset;
    uint32_t n_pages = (uint32_t)((p->memory_bytes - p->reserve_bytes) / p->page_bytes);
    (void)err;
    *out = (device_about){.n_pages = n_pages,
                          .n_ready = n_pages,
                          .n_host_pages = (uint32_t)(p->host_bytes / p->page_bytes),
                          .page_bytes = p->page_bytes,
                          .extent_pages = p->extent_pages,
                          .depth = p->depth,
                          .rows_default = p->rows_default};
    snprintf(out->name, sizeof out->name, "simulated %s", p->name);
    return INFERD_OK;
}

static void sim_close(void *self) {
    sim_device *d = self;
    free(d->slots);
    free(d);
}

static inferd_status sim_attach(void *self, uint32_t idx, struct model *m, uint32_t same_as,
                                const device_limits *limits, device_model *out, inferd_err *err) {
    sim_device *d = self;
    (void)m, (void)limits, (void)err;
    const sim_model *model = &d->models[idx];
    uint32_t pages = same_as == DEVICE_OWN ? sim_weight_pages(&d->preset, model->weight_bytes) : 0;
    *out =
        (device_model){.spec = {.kv = model->kv, .context = model->context, .n_vocab = SIM_VOCAB},
                       .weight_pages = pages,
                       .weight_bytes = same_as == DEVICE_OWN ? model->weight_bytes : 0,
                       .host_pages = pages,
                       .stage_bytes = model->weight_bytes};
    snprintf(out->math, sizeof out->math, "simulated");
    return INFERD_OK;
}

static void sim_unstage(void *self, uint32_t idx) {
    sim_device *d = self;
    if (d->waiting == idx) d->waiting = UINT32_MAX;
    d->slots[idx] = (sim_slot){0};
}

/* ---- file -> host memory ---- */

static inferd_status sim_stage_begin(void *self, uint32_t idx, const uint32_t *pages,
                                     void (*wake)(void *), void *wake_ctx, inferd_err *err) {
    sim_device *d = self;
    sim_slot *s = &d->slots[idx];
    (void)err;
    INFERD_CHECK(!s->staging && !s->warm && !s->hot);
    *s = (sim_slot){.staging = true,
                    .copy = pages == NULL, // else its pieces go on to the device
                    .begun_us = d->clock_us,
                    .total_us =
                        transfer_us(d->models[idx].weight_bytes, d->preset.disk_bytes_per_s)};
    d->wake = wake;
    d->wake_ctx = wake_ctx;
    return INFERD_OK;
}

/* A copy proceeds without the thread. */
static bool tell(const sim_device *d, uint32_t idx, device_progress *out) {
    const sim_slot *s = &d->slots[idx];
    uint64_t total = d->models[idx].weight_bytes;
    uint64_t done_us = u64_min(u64_less(d->clock_us, s->begun_us), s->total_us);
    bool finished = done_us == s->total_us;
    double part = finished ? 1 : (double)done_us / (double)s->total_us;
    *out = (device_progress){
        .done = (uint64_t)((double)total * part), .total = total, .finished = finished};
    return finished;
}

static inferd_status sim_stage_step(void *self, uint32_t idx, uint64_t budget_us,
                                    device_progress *out, inferd_err *err) {
    sim_device *d = self;
    sim_slot *s = &d->slots[idx];
    (void)budget_us, (void)err;
    INFERD_CHECK(s->staging);
    s->warm = tell(d, idx, out);
    s->staging = out->waiting = !s->warm;
    d->waiting = out->waiting ? idx : UINT32_MAX;
    d->look_us = u64_min(d->clock_us + s->total_us / STAGE_PARTS + 1, s->begun_us + s->total_us);
    return INFERD_OK;
}

/* ---- host memory -> device, and back, on one bus ---- */

static void begin_copy(sim_device *d, sim_slot *s, uint64_t us) {
    s->begun_us = u64_max(d->clock_us, d->copy_us);
    s->total_us = us;
    d->copy_us = s->begun_us + us;
    d->copied_us += us;
}

/* With nothing to compute, the thread polls. */
static bool step_copy(sim_device *d, uint32_t idx, uint64_t budget_us, device_progress *out) {
    uint64_t end_us = d->slots[idx].begun_us + d->slots[idx].total_us;
    if (d->n_launched == 0 && budget_us > 0 && d->clock_us < end_us)
        d->clock_us = u64_min(end_us, d->clock_us + LOAD_POLL_US);
    return tell(d, idx, out);
}

static inferd_status sim_load_begin(void *self, uint32_t idx, const uint32_t *pages,
                                    inferd_err *err) {
    sim_device *d = self;
    sim_slot *s = &d->slots[idx];
    (void)pages, (void)err;
    INFERD_CHECK(s->warm && !s->hot);
    s->loading = true;
    begin_copy(d, s,
               s->copy ? sim_load_us(&d->preset, d->models[idx].weight_bytes)
                       : d->preset.load_fix_us);
    return INFERD_OK;
}

static inferd_status sim_load_step(void *self, uint32_t idx, uint64_t budget_us,
                                   device_progress *out, inferd_err *err) {
    sim_device *d = self;
    (void)err;
    INFERD_CHECK(d->slots[idx].loading);
    d->slots[idx].hot = step_copy(d, idx, budget_us, out);
    d->slots[idx].loading = !d->slots[idx].hot;
    return INFERD_OK;
}

static void sim_unload(void *self, uint32_t idx) {
    sim_device *d = self;
    INFERD_CHECK((d->slots[idx].hot || d->slots[idx].loading) && d->slots[idx].copy);
    d->slots[idx].hot = d->slots[idx].loading = false;
}

static void sim_drop_copy(void *self, uint32_t idx) {
    sim_device *d = self;
    INFERD_CHECK(d->slots[idx].hot && d->slots[idx].copy);
    d->slots[idx].copy = false;
}

static inferd_status sim_save_begin(void *self, uint32_t idx, inferd_err *err) {
    sim_device *d = self;
    (void)err;
    INFERD_CHECK(d->slots[idx].hot && !d->slots[idx].copy);
    begin_copy(d, &d->slots[idx],
               transfer_us(d->models[idx].weight_bytes, d->preset.bus_bytes_per_s));
    return INFERD_OK;
}

static inferd_status sim_save_step(void *self, uint32_t idx, uint64_t budget_us,
                                   device_progress *out, inferd_err *err) {
    sim_device *d = self;
    (void)err;
    d->slots[idx].copy = step_copy(d, idx, budget_us, out);
    return INFERD_OK;
}

/* In order with steps: copies of keys and values wait for them. */
static void sim_move_kv(void *self, uint32_t idx, uint32_t n, const int32_t *from,
                        const int32_t *to, bool to_host) {
    sim_device *d = self;
    (void)from, (void)to, (void)to_host;
    uint64_t n_bytes = (uint64_t)n * d->models[idx].kv.slot_bytes;
    uint64_t begin_us = u64_max(u64_max(d->clock_us, d->free_us), d->copy_us);
    d->free_us = d->copy_us = begin_us + transfer_us(n_bytes, d->preset.bus_bytes_per_s);
}

/* ---- steps ---- */

static void sim_launch(void *self, const step *st) {
    sim_device *d = self;
    INFERD_CHECK(d->n_launched < SIM_LAUNCHED_MAX);
    d->clock_us += d->preset.host_us;
    uint64_t us = sim_step_us(&d->models[st->model_idx].cost, st);
    uint64_t begin_us = u64_max(d->clock_us, d->free_us);
    d->launched[d->n_launched] = st;
    d->cost_us[d->n_launched] = us;
    d->end_us[d->n_launched++] = d->free_us = begin_us + us;
    if (d->on_step != NULL) d->on_step(d->on_step_ctx, st, begin_us, begin_us + us);
}

static inferd_status sim_finish(void *self, step *st, uint64_t *device_us, inferd_err *err) {
    sim_device *d = self;
    INFERD_CHECK(d->n_launched > 0 && d->launched[0] == st);
    if (d->clock_us < d->end_us[0]) d->clock_us = d->end_us[0];
    *device_us = d->cost_us[0];
    d->step_us += d->cost_us[0];
    d->n_rows += st->b.n_rows;
    for (uint32_t i = 0; i < st->b.n_logits; i++) {
        st->results[i].id = SIM_TOKEN;
        st->results[i].n_top = 0;
        st->results[i].logprob = 0;
    }
    d->n_launched--;
    d->launched[0] = d->launched[1];
    d->end_us[0] = d->end_us[1];
    d->cost_us[0] = d->cost_us[1];
    if (++d->n_steps == d->fail_step_at) return inferd_fail(err, INFERD_EDEVICE, "the step failed");
    return INFERD_OK;
}

device sim_as_device(sim_device *d) {
    static const device_ops OPS = {
        .open = sim_open,
        .close = sim_close,
        .attach = sim_attach,
        .detach = sim_unstage,
        .stage_begin = sim_stage_begin,
        .stage_step = sim_stage_step,
        .unstage = sim_unstage,
        .load_begin = sim_load_begin,
        .load_step = sim_load_step,
        .unload = sim_unload,
        .drop_copy = sim_drop_copy,
        .save_begin = sim_save_begin,
        .save_step = sim_save_step,
        .move_kv = sim_move_kv,
        .launch = sim_launch,
        .finish = sim_finish,
    };
    return (device){&OPS, d};
}

/* ---- time ---- */

void sim_device_look(sim_device *d) {
    if (d->waiting == UINT32_MAX || d->look_us > d->clock_us) return;
    d->waiting = UINT32_MAX;
    d->wake(d->wake_ctx);
}

uint64_t sim_device_next_us(const sim_device *d) {
    return d->waiting != UINT32_MAX ? d->look_us : UINT64_MAX;
}
