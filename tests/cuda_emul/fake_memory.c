/* fake_memory.c - cudaMalloc and pinned host memory.
 *
 *     an allocation   256 x 0xC5 | the n bytes | 0xC5, at least 64, to the end of the page
 *
 * Addresses are handed out once: a stale pointer hits nothing.  Allocations are neighbours, so that
 * opening several is one system call.
 *
 * Thread: under the fake's lock. */
#include "fake_inner.h"

#include <string.h>
#include <sys/mman.h>

#if FAKE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { PAGE = 4096, ALIGN = 256 };

/* ---- what lies where ---- */

bool fk_memory_is_known(const void *p, size_t n) {
    fake_span s = span_of(p, n);
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next)
        if (a->kind == ALLOC_DEVICE && span_inside(s, a->at)) return true;
    for (const fake_range *r = fk.mem.ranges; r != NULL; r = r->next)
        if (span_inside(s, r->at)) return true;
    return false;
}

fake_pinned fk_memory_pinned(const void *p, size_t n) {
    fake_span s = span_of(p, n);
    fake_pinned found = PINNED_NONE;
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next) {
        if (a->kind == ALLOC_DEVICE) continue;
        if (span_inside(s, a->at)) return PINNED_WHOLE;
        if (span_meets(s, a->at)) found = PINNED_PART;
    }
    return found;
}

/* ---- cudaMalloc ---- */

uintptr_t fk_memory_take_addresses(size_t n, size_t align) { // 0: none left
    uintptr_t p = span_up(fk.mem.next, align);
    if (p > fk.mem.end || n > fk.mem.end - p) return 0;
    fk.mem.next = p + n;
    return p;
}

static bool map_private(fake_span pages) {
    return mmap((void *)pages.begin, pages.end - pages.begin, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

void fk_memory_unmap(fake_span pages) {
    void *p = mmap((void *)pages.begin, pages.end - pages.begin, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    INFERD_CHECK(p != MAP_FAILED);
}

static fake_alloc *add_alloc(fake_alloc_kind kind) {
    fake_alloc *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->kind = kind;
    a->serial = ++fk.serial;
    a->device = (uint32_t)fk_me.device;
    a->next = fk.mem.allocs;
    fk.mem.allocs = a;
    return a;
}

cu_result fk_memory_take(size_t n) {
    const cu_device *d = &fk.opt.device[fk_me.device];
    uint64_t used = fk.mem.held[fk_me.device] + fk.opt.others_bytes[fk_me.device];
    if (n > d->memory_bytes || used > d->memory_bytes - n)
        return fk_say(CU_ENOMEM, "out of memory: %zu bytes asked, %llu of %llu are used", n,
                      (unsigned long long)used, (unsigned long long)d->memory_bytes);
    fk.mem.held[fk_me.device] += n;
    return CU_OK;
}

static cu_result alloc_device(size_t n, void **out) {
    if (n == 0 || n > fk.mem.end - fk.mem.base)
        return fk_say(CU_EINVAL, "an allocation of %zu bytes", n);
    size_t charged = span_up(n, ALIGN), body = span_up(ALIGN + n + FAKE_EDGE_BYTES, PAGE);
    cu_result r = fk_memory_take(charged);
    if (r != CU_OK) return r;
    fk_memory_change(); // first: it closes what lies open, fresh pages too
    uintptr_t p = fk_memory_take_addresses(body, PAGE);
    fake_span pages = {p, p + body};
    fake_alloc *a = p != 0 && map_private(pages) ? add_alloc(ALLOC_DEVICE) : NULL;
    if (a == NULL) {
        if (p != 0) fk_memory_unmap(pages);
        fk.mem.held[fk_me.device] -= charged;
        return fk_say(CU_ENOMEM, "no addresses or host memory for %zu bytes of the fake", n);
    }
    a->pages = pages;
    a->at = (fake_span){p + ALIGN, p + ALIGN + n};
    memset((void *)pages.begin, FAKE_EDGE, body);
    memset((void *)a->at.begin, fk.opt.poison ? 0xFF : 0, n);
    ASAN_POISON_MEMORY_REGION((void *)pages.begin, a->at.begin - pages.begin);
    ASAN_POISON_MEMORY_REGION((void *)a->at.end, pages.end - a->at.end);
    if (fk.opt.protect) INFERD_CHECK(mprotect((void *)p, body, PROT_NONE) == 0);
    *out = (void *)a->at.begin;
    return CU_OK;
}

static fake_alloc **find_alloc(const void *p, fake_alloc_kind kind) {
    fake_alloc **at = &fk.mem.allocs;
    while (*at != NULL && ((*at)->kind != kind || (*at)->at.begin != (uintptr_t)p))
        at = &(*at)->next;
    return at;
}

/* Of any kind; the link to it, and it goes. */
static void drop_alloc(fake_alloc **at) {
    fake_alloc *a = *at;
    fk_memory_change();
    if (a->kind == ALLOC_DEVICE) {
        ASAN_UNPOISON_MEMORY_REGION((void *)a->pages.begin, a->pages.end - a->pages.begin);
        fk_memory_unmap(a->pages);
        fk.mem.held[a->device] -= span_up(a->at.end - a->at.begin, ALIGN);
    } else if (a->kind == ALLOC_HOST) {
        free((void *)a->at.begin);
    }
    *at = a->next;
    free(a);
}

static cu_result free_alloc(void *p, fake_alloc_kind kind, const char *call) {
    if (p == NULL) return CU_OK;
    fake_alloc **at = find_alloc(p, kind);
    if (*at == NULL) {
        fk_violate("%s of %p, which is not held", call, p);
        return fk_say(CU_EINVAL, "%s of %p, which is not held", call, p);
    }
    fk_queue_must_not_touch(p, (*at)->at.end - (*at)->at.begin, call);
    drop_alloc(at);
    return CU_OK;
}

static cu_result api_alloc(size_t n, void **out) {
    cu_result r = fk_enter(CALL_alloc);
    if (r == CU_OK) r = alloc_device(n, out);
    return fk_leave(r);
}

static cu_result api_free(void *p) {
    cu_result r = fk_enter(CALL_free);
    if (gives_back(r)) r = fk_lost_or(r, free_alloc(p, ALLOC_DEVICE, "free"));
    return fk_leave(r);
}

/* ---- pinned host memory ---- */

static cu_result alloc_host(size_t n, void **out) {
    if (n == 0) return fk_say(CU_EINVAL, "a host allocation of 0 bytes");
    void *p = NULL;
    if (posix_memalign(&p, PAGE, n) != 0)
        return fk_say(CU_ENOMEM, "no %zu bytes of host memory to pin", n);
    fake_alloc *a = add_alloc(ALLOC_HOST);
    if (a == NULL) {
        free(p);
        return fk_say(CU_ENOMEM, "no host memory");
    }
    memset(p, 0xFF, n);
    a->at = a->pages = span_of(p, n);
    *out = p;
    return CU_OK;
}

static cu_result api_host_alloc(size_t n, void **out) {
    cu_result r = fk_enter(CALL_host_alloc);
    if (r == CU_OK) r = alloc_host(n, out);
    return fk_leave(r);
}

static cu_result api_host_free(void *p) {
    cu_result r = fk_enter(CALL_host_free);
    if (gives_back(r)) r = fk_lost_or(r, free_alloc(p, ALLOC_HOST, "host_free"));
    return fk_leave(r);
}

static cu_result pin(void *p, size_t n) {
    fake_span s = span_of(p, n), pages = {s.begin, span_up(s.end, PAGE)};
    if (p == NULL || n == 0 || s.begin % PAGE != 0)
        return fk_say(CU_EINVAL, "host_pin of %zu bytes at %p, which is not page-aligned", n, p);
    if (fk_memory_is_device_address(p)) return fk_say(CU_EINVAL, "host_pin of device memory %p", p);
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next)
        if (a->kind != ALLOC_DEVICE && span_meets(pages, a->pages))
            return fk_say(CU_EINVAL, "host_pin of %zu bytes at %p, part of which is pinned", n, p);
    if (msync(p, pages.end - pages.begin, MS_ASYNC) != 0)
        return fk_say(CU_EINVAL, "host_pin of %zu bytes at %p, where nothing is mapped", n, p);
    fake_alloc *a = add_alloc(ALLOC_PINNED);
    if (a == NULL) return fk_say(CU_ENOMEM, "no host memory");
    a->at = s;
    a->pages = pages;
    return CU_OK;
}

static cu_result api_host_pin(void *p, size_t n) {
    cu_result r = fk_enter(CALL_host_pin);
    if (r == CU_OK) r = pin(p, n);
    return fk_leave(r);
}

static cu_result api_host_unpin(void *p) {
    cu_result r = fk_enter(CALL_host_unpin);
    if (gives_back(r))
        r = fk_lost_or(r, p == NULL ? fk_say(CU_EINVAL, "host_unpin of NULL")
                                    : free_alloc(p, ALLOC_PINNED, "host_unpin"));
    return fk_leave(r);
}

/* ---- the beginning and the end ---- */

uint32_t fk_memory_leaks(void) {
    static const char *const kinds[] = {"alloc", "host_alloc", "host_pin"};
    uint32_t n = 0;
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next, n++)
        fk_leaked("%s of %zu bytes at %#zx (number %llu)", kinds[a->kind],
                  (size_t)(a->at.end - a->at.begin), (size_t)a->at.begin,
                  (unsigned long long)a->serial);
    return n;
}

void fk_memory_reset(void) {
    fake_memory *m = &fk.mem;
    fk_memory_close_all();
    fk_memory_begin();
    while (m->allocs != NULL) drop_alloc(&m->allocs);
    m->next = m->base;
    memset(m->held, 0, sizeof m->held);
    m->open_stale = true;
}

void fk_memory_api(cu_api *api) {
    api->alloc = api_alloc;
    api->free = api_free;
    api->host_alloc = api_host_alloc;
    api->host_free = api_host_free;
    api->host_pin = api_host_pin;
    api->host_unpin = api_host_unpin;
}
