/* tenant_usage.c - see tenant_usage.h. */
#include "tenant_usage.h"

#include <string.h>

#define SECOND_US ((uint64_t)1000000)

/* An entry of a device's list, as last read. */
typedef struct seen {
    engine_flow last;
    uint32_t row;
} seen;

struct tenant_usage {
    tenant_usage_row *rows; // [n_rows] of n_rows_max; owned
    uint32_t n_rows, n_rows_max;
    seen *seen;        // [n_devices][ENGINE_FLOWS_MAX] owned
    engine_flow *list; // [ENGINE_FLOWS_MAX] owned
    uint32_t n_devices;
    uint64_t ticks_us[TENANT_USAGE_WINDOW_S + 1]; // when `then` of all rows was written; a ring
    uint32_t n_ticks;
};

tenant_usage *tenant_usage_create(uint32_t n_devices) {
    tenant_usage *l = calloc(1, sizeof *l);
    if (l == NULL) return NULL;
    l->n_devices = n_devices;
    l->seen = calloc((size_t)n_devices * ENGINE_FLOWS_MAX, sizeof *l->seen);
    l->list = calloc(ENGINE_FLOWS_MAX, sizeof *l->list);
    if (l->seen != NULL && l->list != NULL) return l;
    tenant_usage_destroy(l);
    return NULL;
}

void tenant_usage_destroy(tenant_usage *l) {
    if (l == NULL) return;
    free(l->rows);
    free(l->seen);
    free(l->list);
    free(l);
}

/* ---- rows ---- */

static bool grow(tenant_usage *l) {
    enum { ROWS_FIRST = 64 };
    uint32_t n = l->n_rows_max == 0 ? ROWS_FIRST : 2 * l->n_rows_max;
    tenant_usage_row *rows = realloc(l->rows, n * sizeof *rows);
    if (rows == NULL) return false;
    l->rows = rows;
    l->n_rows_max = n;
    return true;
}

/* Once the table is full, the last row counts the rest. */
static bool row_of(tenant_usage *l, uint32_t tenant, uint32_t name_idx, uint32_t *out) {
    if (name_idx == TENANT_USAGE_NONE) tenant = TENANT_USAGE_NONE;
    for (int full = 0; full <= 1; full++) {
        for (uint32_t i = 0; i < l->n_rows; i++)
            if (l->rows[i].tenant == tenant && l->rows[i].name_idx == name_idx) {
                *out = i;
                return true;
            }
        if (l->n_rows < TENANT_USAGE_ROWS_MAX) break;
        tenant = name_idx = TENANT_USAGE_NONE;
    }
    if (l->n_rows == l->n_rows_max && !grow(l)) return false;
    *out = l->n_rows++;
    l->rows[*out] = (tenant_usage_row){.tenant = tenant, .name_idx = name_idx};
    return true;
}

static void add(tenant_usage_row *row, const engine_flow *now, const engine_flow *last) {
    row->device_us += now->device_us - last->device_us;
    row->prompt_tokens += now->prompt_tokens - last->prompt_tokens;
    row->cached_tokens += now->cached_tokens - last->cached_tokens;
    row->output_tokens += now->output_tokens - last->output_tokens;
    for (int r = 0; r < GEN_PREEMPTS; r++)
        row->n_preempts[r] += now->n_preempts[r] - last->n_preempts[r];
    row->away_us += now->away_us - last->away_us;
}

engine_flow *tenant_usage_list(tenant_usage *l) {
    return l->list;
}

bool tenant_usage_read(tenant_usage *l, uint32_t device_idx, const engine_flow *list, uint32_t n,
                       const uint32_t *names, uint32_t n_slots) {
    INFERD_CHECK(device_idx < l->n_devices && n <= ENGINE_FLOWS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        const engine_flow *p = &list[i];
        seen *s = &l->seen[(size_t)device_idx * ENGINE_FLOWS_MAX + i];
        if (p->serial == 0) continue;
        if (p->serial != s->last.serial) { // another flow, which counts from zero
            uint32_t name_idx = p->model < n_slots ? names[p->model] : TENANT_USAGE_NONE;
            if (!row_of(l, p->tenant, name_idx, &s->row)) return false;
            s->last = (engine_flow){.serial = p->serial};
        }
        add(&l->rows[s->row], p, &s->last);
        s->last = *p;
    }
    return true;
}

uint32_t tenant_usage_n(const tenant_usage *l) {
    return l->n_rows;
}

const tenant_usage_row *tenant_usage_at(const tenant_usage *l, uint32_t i) {
    INFERD_CHECK(i < l->n_rows);
    return &l->rows[i];
}

/* ---- the window ---- */

static uint32_t ring_idx(uint32_t tick) {
    return tick % (TENANT_USAGE_WINDOW_S + 1);
}

bool tenant_usage_is_due(const tenant_usage *l, uint64_t now_us) {
    return l->n_ticks == 0 || now_us >= l->ticks_us[ring_idx(l->n_ticks - 1)] + SECOND_US;
}

static tenant_usage_amounts amounts_of(const tenant_usage_row *r) {
    return (tenant_usage_amounts){r->device_us, r->prompt_tokens, r->output_tokens};
}

void tenant_usage_tick(tenant_usage *l, uint64_t now_us) {
    if (!tenant_usage_is_due(l, now_us)) return;
    uint32_t at = ring_idx(l->n_ticks++);
    l->ticks_us[at] = now_us;
    for (uint32_t i = 0; i < l->n_rows; i++) l->rows[i].then[at] = amounts_of(&l->rows[i]);
}

/* The oldest tick that is kept. */
static uint32_t oldest(const tenant_usage *l) {
    return l->n_ticks > TENANT_USAGE_WINDOW_S ? ring_idx(l->n_ticks) : 0;
}

tenant_usage_amounts tenant_usage_recent(const tenant_usage *l, uint32_t i) {
    INFERD_CHECK(i < l->n_rows);
    if (l->n_ticks == 0) return (tenant_usage_amounts){0};
    const tenant_usage_amounts *then = &l->rows[i].then[oldest(l)];
    return (tenant_usage_amounts){l->rows[i].device_us - then->device_us,
                                  l->rows[i].prompt_tokens - then->prompt_tokens,
                                  l->rows[i].output_tokens - then->output_tokens};
}

static void add_amounts(tenant_usage_amounts *to, const tenant_usage_amounts *a) {
    to->device_us += a->device_us;
    to->prompt_tokens += a->prompt_tokens;
    to->output_tokens += a->output_tokens;
}

uint64_t tenant_usage_window_us(const tenant_usage *l, uint64_t now_us) {
    if (l->n_ticks == 0 || now_us < l->ticks_us[oldest(l)]) return 0;
    return now_us - l->ticks_us[oldest(l)];
}

void tenant_usage_sum_recent(const tenant_usage *l, tenant_usage_amounts *by_tenant,
                             uint32_t n_tenants, tenant_usage_amounts *by_name, uint32_t n_names) {
    for (uint32_t i = 0; i < l->n_rows; i++) {
        const tenant_usage_row *r = &l->rows[i];
        tenant_usage_amounts a = tenant_usage_recent(l, i);
        if (r->tenant < n_tenants) add_amounts(&by_tenant[r->tenant], &a);
        if (r->name_idx < n_names) add_amounts(&by_name[r->name_idx], &a);
    }
}
