/* swap.c - host memory for swapped-out keys and values; see memory.h.
 *
 *     host pages   | 0 .. 7 | 8 .. 15 | 16 .. 23 | ...      one reserved range of addresses
 *                    piece 0  piece 1   piece 2
 *
 *     ABSENT -> TAKEN   memory_swap_page: its first page is used
 *     TAKEN  -> SPARE   memory_swap_give: it is empty, its memory stays for the next use
 *     SPARE  -> TAKEN   memory_swap_page
 *     SPARE  -> ABSENT  memory_swap_trim: its memory is freed
 *
 * A piece is an image (image.c): it counts as used host memory and is pinned by the pinner.  Until
 * then copies work too, but the caller waits for them.  So the first piece, and the one
 * after each that was ABSENT, are made ahead as spare ones, and pinned before they are needed.
 *
 * The scheduler counts pieces that are TAKEN (pool_set_host), so that these and images of windows
 * fit together.  Spare pieces are not counted: they are freed when a window needs their memory.
 *
 * Thread: engine. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/memory_private.h"

enum {
    PIECE_PAGES = 8, // pinned in one call
    SPARE_MAX = 4    // pieces that are kept for the next use
};

inferd_status swap_open(cuda_memory *m, inferd_err *err) {
    swap_memory *k = &m->swap;
    size_t piece_bytes = PIECE_PAGES * m->page_bytes;
    uint64_t n_pages = (uint64_t)(m->n_blocks_planned - m->workspace_blocks) * m->block_pages;
    uint64_t host_bytes = m->images.host_bytes;
    /* As many pages as the device has: the tables of more would be too large. */
    k->n_pieces = (uint32_t)((n_pages + PIECE_PAGES - 1) / PIECE_PAGES);
    if (host_bytes != 0) k->n_pieces = (uint32_t)size_min(k->n_pieces, host_bytes / piece_bytes);
    if (k->n_pieces == 0) return INFERD_OK;
    k->pieces = calloc(k->n_pieces, sizeof *k->pieces);
    if (k->pieces == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the state of %u pieces", k->n_pieces);
    k->mapped_bytes = k->n_pieces * piece_bytes + piece_bytes;
    void *p = mmap(NULL, k->mapped_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return inferd_fail(
            err, INFERD_ENOMEM,
            "cannot reserve %zu MiB of host memory for swapped-out keys and values: %s",
            k->mapped_bytes >> 20, strerror(errno));
    k->mapped = p;
    k->base = (unsigned char *)round_up_size((size_t)p, piece_bytes);
    size_t n = k->n_pieces * piece_bytes;
    madvise(k->base, n, MADV_HUGEPAGE); // a failure costs speed only
    madvise(k->base, n, MADV_DONTDUMP);
    for (uint32_t i = 0; i < k->n_pieces; i++)
        k->pieces[i].image = (image){.p = k->base + i * piece_bytes, .n_bytes = piece_bytes};
    return INFERD_OK;
}

void swap_close(cuda_memory *m) {
    swap_memory *k = &m->swap;
    for (uint32_t i = 0; k->mapped != NULL && i < k->n_pieces; i++)
        image_close(m, &k->pieces[i].image);
    if (k->mapped != NULL) munmap(k->mapped, k->mapped_bytes);
    free(k->pieces);
    *k = (swap_memory){0};
}

uint32_t memory_n_swap_pages(const cuda_memory *m) {
    return m->swap.n_pieces * PIECE_PAGES;
}

uint32_t memory_swap_extent_pages(const cuda_memory *m) {
    (void)m;
    return PIECE_PAGES;
}

/* Make the piece ahead of use, if that takes no memory from others. */
static void prepare(cuda_memory *m, uint32_t i) {
    swap_memory *k = &m->swap;
    if (i >= k->n_pieces || k->n_spare >= SPARE_MAX) return;
    swap_piece *at = &k->pieces[i];
    if (at->image.used || image_check_room(m, &at->image, NULL) != INFERD_OK) return;
    image_use(m, &at->image);
    k->n_spare++;
}

void memory_swap_prepare(cuda_memory *m) {
    prepare(m, 0);
}

bool memory_swap_is_short(const cuda_memory *m, uint32_t page) {
    const swap_memory *k = &m->swap;
    INFERD_CHECK(page / PIECE_PAGES < k->n_pieces);
    const image *im = &k->pieces[page / PIECE_PAGES].image;
    return k->n_spare > 0 && image_check_room(m, im, NULL) != INFERD_OK;
}

unsigned char *memory_swap_page(cuda_memory *m, uint32_t page) {
    swap_memory *k = &m->swap;
    uint32_t i = page / PIECE_PAGES;
    INFERD_CHECK(i < k->n_pieces);
    swap_piece *at = &k->pieces[i];
    if (!at->taken) {
        bool spare = at->image.used;
        at->taken = true;
        if (spare) k->n_spare--;
        image_use(m, &at->image);
        prepare(m, i + 1);
    }
    return k->base + page * m->page_bytes;
}

bool memory_swap_give(cuda_memory *m, uint32_t first_page) {
    swap_memory *k = &m->swap;
    uint32_t i = first_page / PIECE_PAGES;
    INFERD_CHECK(i < k->n_pieces && first_page % PIECE_PAGES == 0);
    if (k->pieces[i].taken) k->n_spare++; // else nothing was ever moved there
    k->pieces[i].taken = false;
    return k->n_spare > SPARE_MAX;
}

void memory_swap_trim(cuda_memory *m) {
    swap_memory *k = &m->swap;
    for (uint32_t i = 0; i < k->n_pieces && k->n_spare > 0; i++) {
        swap_piece *at = &k->pieces[i];
        if (at->taken || !at->image.used) continue;
        image_empty(m, &at->image);
        k->n_spare--;
    }
}
