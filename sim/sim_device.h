/* sim_device.h - a device that only takes time.
 *
 * It has no weights and no tokens: every draw is token SIM_TOKEN.  Its clock is that of its core's
 * thread, which runs the iterations, waits for steps, and sleeps.
 *
 *     step     overhead + weights / mem_bytes_per_s
 *              + rows * 2 * params / flops
 *              + positions kept by its sequences * kv_bytes / mem_bytes_per_s
 *              + positions attended by its rows * attention flops / flops
 *              + draws * head flops / flops
 *
 * A GPU, with memory of its own: a stage reads at the disk's bandwidth and costs the device
 * nothing; a load goes over the bus on one copy engine, beside steps, and is finished when the
 * clock has passed its end.  Steps are computed one behind the other; launch returns at once.
 *
 * Everything is integers: nanoseconds and picoseconds are derived once, from constants in doubles.
 * Thread: that of the world. */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "device.h"

enum {
    SIM_TOKEN = 1,
    SIM_VOCAB = 1 << 15,
    SIM_BLOCK_TOKENS = 16,
    SIM_LAUNCHED_MAX = 2,
    SIM_SHAPES = 4
};

/* A kind of device. */
typedef struct sim_preset {
    const char *name;
    uint64_t memory_bytes, reserve_bytes, host_bytes; // host: for warm weights
    uint64_t page_bytes;
    uint32_t extent_pages, depth, rows_default;
    double mem_bytes_per_s, flops; // as reached by a step
    double bus_bytes_per_s, disk_bytes_per_s;
    uint32_t overhead_us; // of each step on the device
    uint32_t host_us;     // of the thread, to plan and launch a step
    uint32_t load_fix_us; // constant part of each load
} sim_preset;

/* A model as numbers. */
typedef struct sim_shape {
    const char *name;
    uint64_t weight_bytes, n_params;
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, dim, n_vocab, context;
    uint32_t kv_number_bytes;
} sim_shape;

/* The constants and their sources are in sim_device.c. */
extern const sim_preset sim_h100;
extern const sim_shape sim_shapes[SIM_SHAPES]; // the first is that of most experiments

/* The cost of a step of one model on one device. */
typedef struct sim_cost {
    uint64_t fixed_ns, row_ns, draw_ns;
    uint64_t kept_ps, attended_ps;
} sim_cost;

typedef struct sim_model {
    uint64_t weight_bytes;
    sim_cost cost;
    kv_layout kv;
    uint32_t context;
} sim_model;

typedef struct sim_slot {
    bool staging, warm, loading, hot;
    bool copy;                   // in host memory
    uint64_t begun_us, total_us; // of the stage, load or save under way
} sim_slot;

typedef struct sim_device {
    sim_preset preset;
    const sim_model *models; // [n_models] by slot; borrowed
    sim_slot *slots;         // [n_models] owned
    uint64_t fail_step_at;   // an injected fault, counted from 1; 0: none

    uint64_t clock_us; // of the thread
    uint64_t free_us;  // end of everything launched so far
    uint64_t copy_us;  // the copy engine is free from then on
    const step *launched[SIM_LAUNCHED_MAX];
    uint64_t end_us[SIM_LAUNCHED_MAX], cost_us[SIM_LAUNCHED_MAX];
    uint32_t n_launched;
    uint32_t waiting; // the slot with a waiting stage; UINT32_MAX: none
    uint64_t look_us; // time to wake it
    void (*wake)(void *ctx);
    void *wake_ctx;

    uint64_t n_steps, step_us, copied_us; // counters
    uint64_t n_rows;
    /* A step was launched: it is computed in [begin_us, end_us).  NULL: no callback. */
    void (*on_step)(void *ctx, const step *st, uint64_t begin_us, uint64_t end_us);
    void *on_step_ctx;
} sim_device;

sim_cost sim_cost_of(const sim_preset *p, const sim_shape *s);
sim_model sim_model_of(const sim_preset *p, const sim_shape *s); // its costs and sizes there
uint64_t sim_step_us(const sim_cost *c, const step *st);
/* Time of one load with nothing else on the bus. */
uint64_t sim_load_us(const sim_preset *p, uint64_t weight_bytes);
uint32_t sim_weight_pages(const sim_preset *p, uint64_t weight_bytes);

/* On the heap; close frees it.  NULL: no memory. */
sim_device *sim_device_create(const sim_preset *p, const sim_model *models, uint32_t n_models);
device sim_as_device(sim_device *d);
/* The clock advanced: wakes a stage that waited for the disk. */
void sim_device_look(sim_device *d);
/* The next time at which sim_device_look would wake a stage; UINT64_MAX: none. */
uint64_t sim_device_next_us(const sim_device *d);

#endif
