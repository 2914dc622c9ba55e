/* image.c - host copies of windows, and the thread that pins them; see memory.h.
 *
 *     image   [ piece 0 pinned | piece 1 pinned | piece 2 ... not yet ]
 *
 * An image is anonymous memory: only addresses until it is about to be filled (never, for a model
 * made up from a seed).  From then on it counts as used and the pinner walks through it, in
 * order, in pieces short enough to stop between them.  Copies from pinned pieces run at bus
 * speed without the CPU; copies from the rest are slower, through the driver's buffers.  A piece
 * that cannot be pinned ends the pinning of its image.
 *
 * The machine's memory bounds the used images (image_check_room, before the first byte of a load),
 * and not those that are only addresses: so a load is refused with a sentence before the kernel's
 * out-of-memory killer ends the daemon.  Pinned memory, which the system cannot reclaim, stays
 * below a part of it.
 *
 * Thread: engine; the pinner meets it in what `lock` guards. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/memory_private.h"

#define PIN_PIECE_BYTES ((size_t)64 << 20)
#define PASS_PIN_BYTES  ((size_t)512 << 20) // of an image that passes, ahead of what was let go
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

enum { PINNED_PERCENT_MAX = 75 }; // of the machine's memory

typedef unsigned long long ull; // for printing

/* ---- one image ---- */

inferd_status image_check_room(const cuda_memory *m, const image *im, inferd_err *err) {
    const images *all = &m->images;
    if (im->used || all->host_bytes == 0 || all->used_bytes + im->n_bytes <= all->host_bytes)
        return INFERD_OK;
    if (im->n_bytes > all->machine_bytes)
        return inferd_fail(err, INFERD_ENOMEM,
                           "the host copy of a window needs %zu MiB; this machine has %llu MiB for "
                           "this process",
                           im->n_bytes >> 20, (ull)(all->machine_bytes >> 20));
    return inferd_fail(
        err, INFERD_ENOMEM,
        "the host copy of a window needs %zu MiB; there are %llu MiB for them, of which copies of "
        "other windows hold %llu MiB",
        im->n_bytes >> 20, (ull)(all->host_bytes >> 20), (ull)(all->used_bytes >> 20));
}

/* Addresses only: a window without a host copy may be larger than the machine's memory. */
inferd_status image_open(image *im, size_t n_bytes, inferd_err *err) {
    im->n_bytes = round_up_size(n_bytes, (size_t)sysconf(_SC_PAGESIZE));
    size_t mapped_bytes = im->n_bytes + HUGE_PAGE_BYTES;
    void *p = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return inferd_fail(err, INFERD_ENOMEM,
                           "cannot reserve %zu MiB of host memory for the copy of a window: %s",
                           mapped_bytes >> 20, strerror(errno));
    im->mapped = p;
    im->mapped_bytes = mapped_bytes;
    im->p = (unsigned char *)round_up_size((size_t)p, HUGE_PAGE_BYTES);
    madvise(im->p, im->n_bytes, MADV_HUGEPAGE); // a failure costs speed only
    madvise(im->p, im->n_bytes, MADV_DONTDUMP);
    return INFERD_OK;
}

/* Under the lock. */
static void pin_later(images *all, image *im) {
    if (all->last != NULL)
        all->last->next_to_pin = im;
    else
        all->first = im;
    all->last = im;
    pthread_cond_broadcast(&all->changed);
}

void image_use(cuda_memory *m, image *im) {
    if (im->used) return;
    images *all = &m->images;
    im->used = true;
    all->used_bytes += im->n_bytes;
    pthread_mutex_lock(&all->lock);
    pin_later(all, im);
    pthread_mutex_unlock(&all->lock);
}

/* Under the lock: remove it from the list, if it is in it. */
static void take_out(images *all, image *im) {
    image *before = NULL;
    for (image *at = all->first; at != NULL; before = at, at = at->next_to_pin) {
        if (at != im) continue;
        if (before != NULL)
            before->next_to_pin = im->next_to_pin;
        else
            all->first = im->next_to_pin;
        if (all->last == im) all->last = before;
        im->next_to_pin = NULL;
        return;
    }
}

static void unpin(cuda_memory *m, image *im, size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += PIN_PIECE_BYTES)
        COUNTED(m->n_calls, m->api->host_unpin(im->p + at));
}

/* Pieces that have arrived are unpinned and freed, and the pinner goes on ahead of the others. */
void image_pass(cuda_memory *m, image *im, size_t end) {
    images *all = &m->images;
    bool first = !im->used;
    size_t begin = im->passed_bytes, whole = end / PIN_PIECE_BYTES * PIN_PIECE_BYTES;
    if (!first && whole == begin) return;
    im->used = im->passes = true;
    pthread_mutex_lock(&all->lock);
    take_out(all, im);
    while (all->pinning == im) pthread_cond_wait(&all->changed, &all->lock);
    size_t pinned = size_min(im->pinned_bytes, whole);
    if (pinned > begin) all->pinned_bytes -= pinned - begin;
    im->passed_bytes = whole;
    im->pinned_bytes = size_max(im->pinned_bytes, whole);
    if (im->pinned_bytes < im->n_bytes) pin_later(all, im);
    pthread_mutex_unlock(&all->lock);
    unpin(m, im, begin, pinned);
    madvise(im->p + begin, whole - begin, MADV_DONTNEED);
}

/* End the pinning of it, and unpin its pieces. */
static void unuse(cuda_memory *m, image *im) {
    images *all = &m->images;
    if (!im->used) return;
    pthread_mutex_lock(&all->lock);
    take_out(all, im);
    while (all->pinning == im) pthread_cond_wait(&all->changed, &all->lock);
    all->pinned_bytes -= im->pinned_bytes - im->passed_bytes;
    pthread_mutex_unlock(&all->lock);
    unpin(m, im, im->passed_bytes, im->pinned_bytes);
    if (!im->passes) all->used_bytes -= im->n_bytes;
    im->pinned_bytes = im->passed_bytes = 0;
    im->used = im->passes = false;
}

void image_empty(cuda_memory *m, image *im) {
    if (!im->used) return;
    unuse(m, im);
    madvise(im->p, im->n_bytes, MADV_DONTNEED);
}

void image_close(cuda_memory *m, image *im) {
    unuse(m, im);
    if (im->mapped != NULL) munmap(im->mapped, im->mapped_bytes);
    *im = (image){0};
}

/* ---- the pinner ---- */

static bool may_pin(const images *all, const image *im, size_t n) {
    if (im->passes) return im->pinned_bytes < im->passed_bytes + PASS_PIN_BYTES;
    return all->host_bytes == 0 ||
           all->pinned_bytes + n <= all->host_bytes / 100 * PINNED_PERCENT_MAX;
}

/* Under the lock, which is released during the driver's call. */
static void pin_next_piece(cuda_memory *m) {
    images *all = &m->images;
    image *im = all->first;
    size_t begin = im->pinned_bytes, n = size_min(PIN_PIECE_BYTES, im->n_bytes - begin);
    cu_result r = CU_ENOMEM;
    bool asked = may_pin(all, im, n);
    if (asked) {
        all->pinning = im;
        pthread_mutex_unlock(&all->lock);
        r = COUNTED(m->n_background_calls, m->api->host_pin(im->p + begin, n));
        pthread_mutex_lock(&all->lock);
        all->pinning = NULL;
    }
    if (r == CU_OK) {
        im->pinned_bytes += n;
        all->pinned_bytes += n;
    } else if (asked && all->refused[0] == 0) {
        snprintf(all->refused, sizeof all->refused, "%s", m->api->text());
    }
    if (r != CU_OK || im->pinned_bytes == im->n_bytes) take_out(all, im);
    pthread_cond_broadcast(&all->changed);
}

static void *pin_all(void *arg) {
    cuda_memory *m = arg;
    images *all = &m->images;
    bool can = all->pins && m->api->device_use(m->device_index) == CU_OK;
    pthread_mutex_lock(&all->lock);
    while (can && !all->closing) {
        if (all->first != NULL)
            pin_next_piece(m);
        else
            pthread_cond_wait(&all->changed, &all->lock);
    }
    pthread_mutex_unlock(&all->lock);
    return NULL;
}

inferd_status images_open(cuda_memory *m, inferd_err *err) {
    images *all = &m->images;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    all->has_lock = true;
    all->pins = m->parts == NULL || parts_is_on(m->parts, PART_PINNED);
    int e = pthread_create(&all->pinner, NULL, pin_all, m);
    if (e != 0)
        return inferd_fail(err, INFERD_ENOMEM, "cannot start the thread that pins host memory: %s",
                           strerror(e));
    all->has_pinner = true;
    return INFERD_OK;
}

void images_close(cuda_memory *m) {
    images *all = &m->images;
    if (!all->has_lock) return;
    pthread_mutex_lock(&all->lock);
    all->closing = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->lock);
    if (all->has_pinner) pthread_join(all->pinner, NULL);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
}

void images_tell_refusal(cuda_memory *m) {
    pthread_mutex_lock(&m->images.lock);
    if (m->images.refused[0] != 0) parts_degrade(m->parts, PART_PINNED, m->images.refused);
    pthread_mutex_unlock(&m->images.lock);
}

uint64_t images_pinned_bytes(cuda_memory *m) {
    pthread_mutex_lock(&m->images.lock);
    uint64_t n = m->images.pinned_bytes;
    pthread_mutex_unlock(&m->images.lock);
    return n;
}
