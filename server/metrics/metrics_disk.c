/* metrics_disk.c - the disk cache of keys and values: content, traffic, errors.
 *
 * The disk serves all devices and all tenants, so its figures have no label of either. */
#include "metrics_page.h"
#include "scheduler/kv_disk.h"

/* One sample of a family with one label. */
typedef struct disk_row {
    const char *label;
    uint64_t v;
} disk_row;

static void rows_of(page *p, const char *name, const char *help, const disk_row *rows, size_t n) {
    page_family(p, name, "counter", help);
    for (size_t i = 0; i < n; i++) page_u64(p, name, rows[i].label, rows[i].v);
}

void metrics_write_disk(page *p) {
    const kv_disk_stats *d = p->now->disk;
    if (d == NULL) return;
    page_scalar(p, "inferd_kv_disk_files", "gauge", "Files of keys and values.", d->n_files);
    page_scalar(p, "inferd_kv_disk_bytes", "gauge", "Bytes of files of keys and values.",
                d->n_bytes);
    page_scalar(p, "inferd_kv_disk_queued_blocks", "gauge", "Blocks that wait to be written.",
                d->n_queued);
    page_scalar(p, "inferd_kv_disk_writing", "gauge", "0 for a while after a failed write.",
                !d->off);
    const disk_row blocks[] = {{"op=\"written\"", d->n_written}, {"op=\"read\"", d->n_read}};
    rows_of(p, "inferd_kv_disk_blocks_total", "Blocks written and read.", blocks,
            INFERD_COUNT(blocks));
    const disk_row dropped[] = {{"why=\"refused\"", d->n_refused},
                                {"why=\"evicted\"", d->n_evicted}};
    rows_of(p, "inferd_kv_disk_dropped_total",
            "Blocks that were not written, and files deleted for newer ones.", dropped,
            INFERD_COUNT(dropped));
    const disk_row problems[] = {{"what=\"write_failed\"", d->n_failed},
                                 {"what=\"bad\"", d->n_bad},
                                 {"what=\"missing\"", d->n_missing},
                                 {"what=\"unread\"", d->n_unread}};
    rows_of(p, "inferd_kv_disk_problems_total",
            "Failed writes, and files that were corrupt, missing or unreadable.", problems,
            INFERD_COUNT(problems));
}
