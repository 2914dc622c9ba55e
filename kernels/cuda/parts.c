/* parts.c - see parts.h. */
#include "cuda/parts.h"

#include <stdlib.h>
#include <string.h>

#include "backend_ops.h"
#include "cuda/open.h"

static const char *const names[CUDA_PARTS] = {
    [PART_VMM] = "vmm",
    [PART_GRAPHS] = "graphs",
    [PART_LT] = "lt",
    [PART_PDL] = "pdl",
    [PART_CARVEOUT] = "carveout",
    [PART_PINNED] = "pinned",
    [PART_WINDOWS] = "windows",
    [PART_MIXED] = "mixed",
    [PART_GEMV8] = "gemv8",
    [PART_SKINNY128] = "skinny128",
    [PART_BLOCKING] = "blocking",
};
_Static_assert((int)CUDA_PARTS <= (int)BE_DEVICE_PARTS_MAX, "the report has room for each part");

/* "vmm, graphs ... or blocking" */
static void list_names(char *out, size_t out_bytes) {
    size_t used = 0;
    for (uint32_t i = 0; i < CUDA_PARTS && used < out_bytes; i++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s",
                                 i == 0                ? ""
                                 : i + 1 == CUDA_PARTS ? " or "
                                                       : ", ",
                                 names[i]);
}

/* `p` may be NULL: the list is only checked. */
static inferd_status switch_off(cuda_parts *p, const char *list, const char *by, inferd_err *err) {
    for (const char *at = list; at != NULL && *at != 0;) {
        size_t n = strcspn(at, ","), begin = strspn(at, " ");
        const char *word = at + (begin < n ? begin : n);
        size_t length = n - (size_t)(word - at);
        while (length > 0 && word[length - 1] == ' ') length--;
        at += n + (at[n] == ',');
        if (length == 0) continue;
        uint32_t i = 0;
        while (i < CUDA_PARTS &&
               (strlen(names[i]) != length || memcmp(names[i], word, length) != 0))
            i++;
        if (i == CUDA_PARTS) {
            char all[160];
            list_names(all, sizeof all);
            return inferd_fail(err, INFERD_EINVAL, "%s names \"%.*s\", expected %s", by,
                               (int)(length < 40 ? length : 40), word, all);
        }
        p->part[i].state = BE_PART_OFF;
        snprintf(p->part[i].why, sizeof p->part[i].why, "switched off by %s", by);
    }
    return INFERD_OK;
}

inferd_status parts_init(cuda_parts *p, const char *off, inferd_err *err) {
    *p = (cuda_parts){0};
    for (uint32_t i = 0; i < CUDA_PARTS; i++) {
        snprintf(p->part[i].name, sizeof p->part[i].name, "%s", names[i]);
        p->part[i].state = BE_PART_ON;
    }
    inferd_status s = switch_off(p, getenv(CUDA_OFF_ENV), CUDA_OFF_ENV, err);
    return s == INFERD_OK ? switch_off(p, off, "the options", err) : s;
}

static void change(cuda_parts *p, cuda_part part, be_part_state state, const char *why) {
    if (p == NULL || !parts_is_on(p, part)) return; // the first message is the cause
    p->part[part].state = state;
    snprintf(p->part[part].why, sizeof p->part[part].why, "%s", why);
    inferd_blank_controls(p->part[part].why);
}

void parts_absent(cuda_parts *p, cuda_part part, const char *why) {
    change(p, part, BE_PART_ABSENT, why);
}

void parts_degrade(cuda_parts *p, cuda_part part, const char *why) {
    change(p, part, BE_PART_DEGRADED, why);
}

void parts_look(cuda_parts *p, const cu_device *d) {
    if (!d->vmm) parts_absent(p, PART_VMM, "the device has no virtual memory management");
    if (d->cc_major < 9) parts_absent(p, PART_PDL, "it needs compute capability 9.0");
}

inferd_status cuda_list_parts(const backend_options *options, uint32_t index,
                              be_device_part out[BE_DEVICE_PARTS_MAX], uint32_t *n,
                              inferd_err *err) {
    const cuda_module *m = options->module;
    cuda_parts p;
    cu_device d;
    *n = 0;
    inferd_status s = parts_init(&p, options->off, err);
    if (s == INFERD_OK && m == NULL) s = cuda_module_open(options->module_path, &m, err);
    if (s != INFERD_OK) return s;
    cu_result r = m->api->init();
    if (r == CU_OK) r = m->api->device_about(index, &d);
    if (r != CU_OK) return cu_fail(m->api, r, err, "CUDA");
    parts_look(&p, &d);
    if (parts_is_on(&p, PART_LT) && m->api->lt_open(options->cublaslt_path) != CU_OK)
        parts_absent(&p, PART_LT, m->api->text());
    memcpy(out, p.part, sizeof p.part);
    *n = CUDA_PARTS;
    return INFERD_OK;
}
