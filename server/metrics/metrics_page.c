/* metrics_page.c - see metrics_page.h. */
#include "metrics_page.h"

bool page_has_name(const page *p, int64_t name_idx) {
    const metrics_now *now = p->now;
    return now->view == NULL ||
           (name_idx >= 0 && name_idx < now->n_names && now->view->names[name_idx]);
}

bool page_has_tenant(const page *p, int64_t tenant) {
    return p->now->view == NULL || tenant == p->now->view->tenant;
}

uint64_t page_field(const void *of, size_t offset, bool wide) {
    uint64_t value = 0;
    uint32_t narrow;
    memcpy(&value, (const char *)of + offset, wide ? sizeof value : 0);
    memcpy(&narrow, (const char *)of + offset, sizeof narrow);
    return wide ? value : narrow;
}

void page_family(page *p, const char *name, const char *type, const char *help) {
    buf_add_format(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void page_label_text(buf *out, const char *s) {
    for (; *s != 0; s++) {
        if (*s == '\n') {
            buf_add_str(out, "\\n");
            continue;
        }
        if (*s == '\\' || *s == '"') buf_add_char(out, '\\');
        buf_add_char(out, *s);
    }
}

/* The name with its labels, and a space. */
static void begin(page *p, const char *name, const char *labels) {
    buf_add_str(p->out, name);
    if (labels[0] != 0) buf_add_format(p->out, "{%s}", labels);
    buf_add_char(p->out, ' ');
}

void page_u64(page *p, const char *name, const char *labels, uint64_t v) {
    begin(p, name, labels);
    buf_add_format(p->out, "%llu\n", (unsigned long long)v);
}

void page_real(page *p, const char *name, const char *labels, double v) {
    begin(p, name, labels);
    json_add_real(p->out, v);
    buf_add_char(p->out, '\n');
}

void page_bytes(page *p, uint64_t n) {
    if (n == UINT64_MAX)
        buf_add_str(p->out, "+Inf\n");
    else
        buf_add_format(p->out, "%llu\n", (unsigned long long)n);
}

void page_scalar(page *p, const char *name, const char *type, const char *help, uint64_t v) {
    page_family(p, name, type, help);
    page_u64(p, name, "", v);
}

static void bucket(page *p, const char *name, const char *labels, double upper, bool last,
                   uint64_t total) {
    buf_add_format(p->out, "%s_bucket{%s%sle=\"", name, labels, labels[0] == 0 ? "" : ",");
    if (last)
        buf_add_str(p->out, "+Inf");
    else
        json_add_real(p->out, upper);
    buf_add_format(p->out, "\"} %llu\n", (unsigned long long)total);
}

static void sum_and_count(page *p, const char *name, const char *labels, double sum,
                          uint64_t total) {
    char of[128];
    snprintf(of, sizeof of, "%s_sum", name);
    page_real(p, of, labels, sum);
    snprintf(of, sizeof of, "%s_count", name);
    page_u64(p, of, labels, total);
}

void page_histogram(page *p, const char *name, const char *labels, const bounds *b,
                    const histogram *h) {
    uint64_t total = 0;
    for (uint32_t i = 0; i <= b->n; i++) {
        total += h->counts[i];
        bucket(p, name, labels, i < b->n ? b->upper[i] : 0, i == b->n, total);
    }
    sum_and_count(p, name, labels, h->sum, total);
}

void page_histogram_us(page *p, const char *name, const char *labels, const uint32_t *upper_us,
                       uint32_t n_bounds, const uint64_t *counts, uint64_t sum_us) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n_bounds; i++) {
        total += counts[i];
        bucket(p, name, labels, upper_us[i] / 1e6, i + 1 == n_bounds, total);
    }
    sum_and_count(p, name, labels, (double)sum_us / 1e6, total);
}

/* ---- labels ---- */

static const char *label(page *p) {
    if (p->label.failed) p->out->failed = true;
    return buf_cstr(&p->label);
}

const char *page_model_label(page *p, uint32_t name_idx, bool vllm) {
    buf_clear(&p->label);
    buf_add_str(&p->label, vllm ? "model_name=\"" : "model=\"");
    page_label_text(&p->label, p->now->names[name_idx]);
    buf_add_str(&p->label, vllm ? "\",engine=\"0\"" : "\"");
    return label(p);
}

const char *page_engine_label(page *p) {
    bool one = p->now->n_names == 1 && page_has_name(p, 0);
    return one ? page_model_label(p, 0, true) : "engine=\"0\"";
}

const char *page_device_label(page *p, const metrics_device *d, const char *more) {
    buf_clear(&p->label);
    buf_add_str(&p->label, "device=\"");
    page_label_text(&p->label, d->name);
    buf_add_format(&p->label, "\"%s", more);
    return label(p);
}

const char *page_flow_label(page *p, int64_t tenant, int64_t name_idx, const char *more) {
    const metrics_now *now = p->now;
    buf_clear(&p->label);
    buf_add_str(&p->label, "tenant=\"");
    page_label_text(&p->label,
                    tenant >= 0 && tenant < now->n_tenants ? now->tenants[tenant] : "none");
    buf_add_str(&p->label, "\",model=\"");
    page_label_text(&p->label,
                    name_idx >= 0 && name_idx < now->n_names ? now->names[name_idx] : "none");
    buf_add_format(&p->label, "\"%s", more);
    return label(p);
}
