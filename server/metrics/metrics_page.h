/* metrics_page.h - shared by the files of the page: the counters, and how samples are written.
 *
 *   metrics.c          counting, and the order of the page
 *   metrics_page.c     families, labels, samples
 *   metrics_front.c    requests and the transport
 *   metrics_models.c   models: their devices, their memory, the cost of moving them
 *   metrics_engine.c   devices: sequences, pages, steps, preemptions
 *   metrics_disk.c     the disk cache of keys and values
 *   metrics_usage.c    tenants: device time, tokens, cost, shares, refusals
 *
 * A family is HELP, TYPE and its samples, written together and once: strict parsers refuse a family
 * that is split.  So each vllm: alias is a family of its own, after the inferd_ family it repeats.
 * Thread: front. */
#ifndef INFERD_METRICS_PAGE_H
#define INFERD_METRICS_PAGE_H

#include "metrics.h"

#include <string.h>

#include "json_out.h"

enum { BUCKETS_MAX = 24 };

typedef struct bounds {
    uint32_t n;
    double upper[BUCKETS_MAX];
} bounds;

typedef struct histogram {
    uint64_t counts[BUCKETS_MAX + 1]; // the last is above every bound
    double sum;
} histogram;

typedef struct hist_row {
    const char *name, *alias, *help; // alias NULL: vLLM has none
    const bounds *bounds;
} hist_row;

/* HTTP statuses with a counter of their own; the last one counts all others. */
enum { METRICS_STATUSES = 24 };

typedef struct model_metrics {
    uint64_t n_requests[OUTCOMES];
    uint64_t n_prompt, n_cached, n_output;
    uint64_t n_targets[METRIC_TARGETS][2]; // missed, kept
    uint64_t n_prefixes[PREFIX_CAUSES];
    histogram hists[HISTS];
} model_metrics;

/* Size of the rows' hash index: a power of two, twice the rows, so that searches are short. */
enum { METRICS_REFUSAL_ENTRIES = 2 * METRICS_REFUSAL_ROWS_MAX };
_Static_assert((METRICS_REFUSAL_ENTRIES & (METRICS_REFUSAL_ENTRIES - 1)) == 0, "a mask finds it");

/* Refusals of a tenant's requests for a model, by reason. */
typedef struct refusal_row {
    int64_t tenant;   // -1: none
    int64_t name_idx; // -1: no model
    uint64_t n[API_FAULTS];
} refusal_row;

struct metrics {
    model_metrics *models; // [n_names_max] by number of the name
    uint32_t n_names_max, n_routes;
    const http_route *routes;           // [n_routes] borrowed
    uint64_t (*http)[METRICS_STATUSES]; // [n_routes + 1]; the last: no route
    uint64_t n_unknown_fields, n_reloads[2], n_changes[2];
    histogram lag;
    /* The first row counts requests without tenant and model, and those that found no free row. */
    refusal_row *refusals; // [METRICS_REFUSAL_ROWS_MAX] owned
    uint32_t n_refusals;
    uint32_t *refusal_entries;  // [METRICS_REFUSAL_ENTRIES] hash index: a row + 1; 0: none; owned
    tenant_usage *tenant_usage; // owned
};

extern const hist_row metrics_hist_rows[HISTS];
extern const bounds metrics_bounds_lag;
extern const char *const metrics_outcome_names[OUTCOMES];
extern const int metrics_statuses[METRICS_STATUSES]; // 0: any other

typedef struct page {
    const metrics *m;
    const metrics_now *now;
    buf *out;
    buf label; // scratch
} page;

/* Does the page show models of this name, or rows of this tenant? */
bool page_has_name(const page *p, int64_t name_idx);
bool page_has_tenant(const page *p, int64_t tenant);

/* The field at this offset of a struct: a uint64_t (wide) or a uint32_t. */
uint64_t page_field(const void *of, size_t offset, bool wide);

/* HELP and TYPE. */
void page_family(page *p, const char *name, const char *type, const char *help);
/* A label's value: backslash, quote and newline are escaped. */
void page_label_text(buf *out, const char *s);
void page_u64(page *p, const char *name, const char *labels, uint64_t v);
void page_real(page *p, const char *name, const char *labels, double v);
/* The value of a sample; UINT64_MAX: no limit. */
void page_bytes(page *p, uint64_t n);
/* A family of one sample without labels. */
void page_scalar(page *p, const char *name, const char *type, const char *help, uint64_t v);
/* name_bucket{labels,le="..."}; `labels` has no braces and may be empty. */
void page_histogram(page *p, const char *name, const char *labels, const bounds *b,
                    const histogram *h);
/* The same for counts of an engine with upper bounds in microseconds; the last is infinite. */
void page_histogram_us(page *p, const char *name, const char *labels, const uint32_t *upper_us,
                       uint32_t n_bounds, const uint64_t *counts, uint64_t sum_us);
/* model="x", or vLLM's form of it; valid until the next call of one of these functions. */
const char *page_model_label(page *p, uint32_t name_idx, bool vllm);
/* With one model, the engine's figures have that model's label; with several models, none. */
const char *page_engine_label(page *p);
/* device="gpu0" and `more`. */
const char *page_device_label(page *p, const metrics_device *d, const char *more);
/* tenant="t",model="m" and `more`; unused numbers: "none". */
const char *page_flow_label(page *p, int64_t tenant, int64_t name_idx, const char *more);

void metrics_write_front(page *p);
void metrics_write_models(page *p);
void metrics_write_engine(page *p);
void metrics_write_disk(page *p);
void metrics_write_usage(page *p);

#endif
