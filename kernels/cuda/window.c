/* window.c - ranges of addresses that show blocks of the arena; see memory.h.
 *
 *     arena    [ b0 | b1 | b2 | b3 | b4 | ... ]
 *                     \_________  \___
 *     window   [ b3 | b1 | -- ]             VMM: a second address of the same memory
 *                    [ b1 | b2 | b3 ]        else: the place where the run lies
 *
 *     CLOSED -> EMPTY   window_open_cuda       addresses, no memory
 *     EMPTY  -> MAPPED  window_map_cuda        or EMPTY again when a call fails
 *     MAPPED -> EMPTY   window_unmap_cuda      when its copies are finished
 *     EMPTY  -> CLOSED  window_close_cuda
 *
 * Handles are mapped one by one and made accessible in one call.  The scheduler chooses the pages;
 * the choice is checked, because a block in two windows would be two models' weights in the same
 * memory.
 *
 * Thread: engine. */
#include <string.h>

#include "cuda/memory_private.h"

inferd_status window_open_cuda(cuda_memory *m, size_t n_bytes, cuda_window **out, inferd_err *err) {
    *out = NULL;
    if (n_bytes == 0 || n_bytes > SIZE_MAX / 4)
        return inferd_fail(err, INFERD_EINVAL, "a window of %zu bytes", n_bytes);
    cuda_window *w = calloc(1, sizeof *w);
    if (w == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a window");
    w->n_bytes = n_bytes;
    w->range_bytes = round_up_size(n_bytes, m->block_bytes);
    w->next = m->windows;
    m->windows = w;

    size_t n_blocks = w->range_bytes / m->block_bytes;
    inferd_status s = image_open(&w->image, n_bytes, err);
    if (s != INFERD_OK) goto fail;
    w->blocks = calloc(n_blocks, sizeof *w->blocks);
    if (w->blocks == NULL) {
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for a window of %zu blocks", n_blocks);
        goto fail;
    }
    if (m->vmm) {
        void *base = NULL;
        cu_result r = handles_reserve(m, w->range_bytes, m->block_bytes, &base);
        if (r != CU_OK) {
            s = memory_fail(m, r, err, "reserving %zu MiB of device addresses for a window",
                            w->range_bytes >> 20);
            goto fail;
        }
        w->base = base;
    }
    *out = w;
    return INFERD_OK;

fail:
    window_close_cuda(m, w);
    return s;
}

/* Unmap the aliases; no work uses them.  A lost context is asked once. */
static cu_result unalias(cuda_memory *m, cuda_window *w) {
    if (w->alias_bytes == 0) return CU_OK;
    cu_result r = COUNTED(m->n_calls, m->api->vmm_unmap(w->base, w->alias_bytes));
    if (r == CU_OK || r == CU_ELOST) w->alias_bytes = 0;
    return r;
}

static void let_go(cuda_memory *m, cuda_window *w) {
    for (uint32_t i = 0; i < w->n_blocks; i++) m->held[w->blocks[i]] = 0;
    w->n_blocks = 0;
    if (!m->vmm) w->base = NULL;
}

void window_close_cuda(cuda_memory *m, cuda_window *w) {
    if (w == NULL) return;
    if (w->n_blocks > 0 && window_unmap_cuda(m, w, NULL) != INFERD_OK) {
        /* The context is gone, or the driver failed: give back as much as possible. */
        m->api->stream_sync(m->up.stream);
        uploads_forget(m, w);
        let_go(m, w);
    }
    if (m->vmm && w->base != NULL) {
        unalias(m, w);
        /* Addresses that are still mapped are never used again. */
        if (w->alias_bytes == 0)
            COUNTED(m->n_calls, m->api->vmm_unreserve(w->base, w->range_bytes));
    }
    image_close(m, &w->image);
    cuda_window **at = &m->windows;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    free(w->blocks);
    free(w);
}

void *window_base_cuda(const cuda_window *w) {
    return w->base;
}

/* Only a bug gives pages that are not whole blocks, not there yet, or in a window already. */
static void hold(cuda_memory *m, cuda_window *w, const uint32_t *pages, uint32_t n_pages) {
    uint32_t n_ready = memory_n_ready(m), each = m->block_pages;
    INFERD_CHECK(w->n_blocks == 0 && n_pages > 0 && n_pages % each == 0 &&
                 n_pages / each <= w->range_bytes / m->block_bytes);
    for (uint32_t i = 0; i < n_pages; i += each) {
        INFERD_CHECK(pages[i] % each == 0 && pages[i] < n_ready);
        for (uint32_t j = 1; j < each; j++) INFERD_CHECK(pages[i + j] == pages[i] + j);
        INFERD_CHECK(m->vmm || i == 0 || pages[i] == pages[i - 1] + 1);
        uint32_t block = pages[i] / each;
        INFERD_CHECK(!m->held[block]);
        m->held[block] = 1;
        w->blocks[w->n_blocks++] = block;
    }
}

static inferd_status alias(cuda_memory *m, cuda_window *w, inferd_err *err) {
    cu_result r = unalias(m, w); // an earlier attempt that could not be undone
    if (r != CU_OK) return memory_fail(m, r, err, "unmapping a window before it is mapped again");
    inferd_status s;
    for (uint32_t i = 0; i < w->n_blocks; i++) {
        r = COUNTED(m->n_calls,
                    m->api->vmm_map(w->base + (size_t)i * m->block_bytes, m->block_bytes,
                                    m->handles[m->workspace_blocks + w->blocks[i]]));
        if (r != CU_OK) {
            s = memory_fail(m, r, err, "mapping a handle of %zu KiB into a window (%u of %u)",
                            m->block_bytes >> 10, i + 1, w->n_blocks);
            goto undo;
        }
        w->alias_bytes += m->block_bytes;
    }
    r = COUNTED(m->n_calls, m->api->vmm_access(w->base, w->alias_bytes));
    if (r == CU_OK) return INFERD_OK;
    s = memory_fail(m, r, err, "allowing access to a window of %zu MiB", w->alias_bytes >> 20);

undo:
    unalias(m, w);
    return s;
}

inferd_status window_map_cuda(cuda_memory *m, cuda_window *w, const uint32_t *pages,
                              uint32_t n_pages, inferd_err *err) {
    inferd_status s;
    hold(m, w, pages, n_pages);
    if (!m->vmm)
        w->base = m->pages + (size_t)w->blocks[0] * m->block_bytes;
    else if ((s = alias(m, w, err)) != INFERD_OK) {
        let_go(m, w);
        return s;
    }
    m->n_maps++;
    return INFERD_OK;
}

inferd_status window_unmap_cuda(cuda_memory *m, cuda_window *w, inferd_err *err) {
    if (w->n_blocks == 0) return INFERD_OK;
    inferd_status s = uploads_finish(m, w, err);
    if (s != INFERD_OK) return s;
    cu_result r = unalias(m, w);
    if (r != CU_OK)
        return memory_fail(m, r, err, "unmapping a window of %zu MiB", w->alias_bytes >> 20);
    let_go(m, w);
    m->n_unmaps++;
    return INFERD_OK;
}

inferd_status window_image_take(cuda_memory *m, cuda_window *w, inferd_err *err) {
    inferd_status s = image_check_room(m, &w->image, err);
    if (s == INFERD_OK) image_use(m, &w->image);
    return s;
}

void window_image_give(cuda_memory *m, cuda_window *w) {
    image_empty(m, &w->image);
}

void window_image_pass(cuda_memory *m, cuda_window *w, size_t end) {
    image_pass(m, &w->image, end);
}

void *window_image_cuda(const cuda_window *w) {
    return w->image.p;
}

void *memory_image_of(cuda_memory *m, const void *p) {
    const unsigned char *at = p;
    for (cuda_window *w = m->windows; w != NULL; w = w->next) {
        if (w->base != NULL && at >= w->base && at < w->base + w->n_bytes)
            at = w->image.p + (at - w->base);
        else if (at < w->image.p || at >= w->image.p + w->n_bytes)
            continue;
        image_use(m, &w->image);
        return (void *)at;
    }
    return NULL;
}
