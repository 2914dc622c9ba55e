/* fake_vmm.c - virtual memory management: reserved ranges, physical handles, mappings with access.
 *
 * A handle is a piece of one memfd.  vmm_map maps it shared, so that what is written through one
 * alias is read through all others; until vmm_access nothing may touch it.  Handles that were
 * created one after the other lie one after the other in the file, so that the kernel joins their
 * mappings and opening a large arena is cheap.
 *
 * Thread: under the fake's lock. */
#include "fake_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- ranges ---- */

static cu_result check_vmm(void) {
    if (fk.opt.device[fk_me.device].vmm) return CU_OK;
    return fk_say(CU_EUNSUPPORTED, "this device has no virtual memory management");
}

static cu_result check_size(const char *call, size_t n) {
    if (n > 0 && n % fk.opt.granularity == 0) return CU_OK;
    return fk_say(CU_EINVAL, "%s of %zu bytes, which is no multiple of the granularity %zu", call,
                  n, fk.opt.granularity);
}

static cu_result api_vmm_granularity(size_t *out) {
    cu_result r = fk_enter(CALL_vmm_granularity);
    if (r == CU_OK) r = check_vmm();
    if (r == CU_OK) *out = fk.opt.granularity;
    return fk_leave(r);
}

static cu_result reserve(size_t n, size_t align, void **out) {
    cu_result r = check_vmm();
    if (r == CU_OK) r = check_size("vmm_reserve", n);
    if (r != CU_OK) return r;
    if (align != 0 && (align & (align - 1)) != 0)
        return fk_say(CU_EINVAL, "vmm_reserve aligned to %zu, which is no power of two", align);
    fake_range *range = calloc(1, sizeof *range);
    uintptr_t p =
        range != NULL ? fk_memory_take_addresses(n, size_max(align, fk.opt.granularity)) : 0;
    if (p == 0) {
        free(range);
        return fk_say(CU_ENOMEM, "no %zu bytes of device addresses", n);
    }
    fk_memory_take_addresses(fk.opt.granularity, fk.opt.granularity); // neighbours do not touch
    *range = (fake_range){fk.mem.ranges, {p, p + n}, ++fk.serial};
    fk.mem.ranges = range;
    *out = (void *)p;
    return CU_OK;
}

static cu_result api_vmm_reserve(size_t n, size_t align, void **out) {
    cu_result r = fk_enter(CALL_vmm_reserve);
    if (r == CU_OK) r = reserve(n, align, out);
    return fk_leave(r);
}

static cu_result unreserve(void *p, size_t n) {
    fake_range **at = &fk.mem.ranges;
    fake_span s = span_of(p, n);
    while (*at != NULL && ((*at)->at.begin != s.begin || (*at)->at.end != s.end)) at = &(*at)->next;
    if (*at == NULL) {
        fk_violate("vmm_unreserve of %zu bytes at %p, which were not reserved so", n, p);
        return fk_say(CU_EINVAL, "vmm_unreserve of %zu bytes at %p, which were not reserved so", n,
                      p);
    }
    for (const fake_mapping *m = fk.mem.mappings; m != NULL; m = m->next)
        if (span_meets(m->at, s))
            return fk_say(CU_EINVAL,
                          "vmm_unreserve of %zu bytes at %p, where handle %llu is mapped", n, p,
                          (unsigned long long)m->handle->id);
    fake_range *range = *at;
    *at = range->next;
    free(range);
    return CU_OK;
}

static cu_result api_vmm_unreserve(void *p, size_t n) {
    cu_result r = fk_enter(CALL_vmm_unreserve);
    if (gives_back(r)) r = fk_lost_or(r, unreserve(p, n));
    return fk_leave(r);
}

/* ---- handles ---- */

/* New memory is full of 0xFF; holes of the file are given back when a handle goes. */
static bool fill_handle(const fake_handle *h) {
    size_t end = h->offset + h->n_bytes;
    if (end > fk.mem.file_size) {
        if (ftruncate(fk.mem.file, (off_t)end) != 0) return false;
        fk.mem.file_size = end;
    }
    if (!fk.opt.poison) return true;
    void *p =
        mmap(NULL, h->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fk.mem.file, (off_t)h->offset);
    if (p == MAP_FAILED) return false;
    memset(p, 0xFF, h->n_bytes);
    munmap(p, h->n_bytes);
    return true;
}

static cu_result create(size_t n, cu_handle *out) {
    cu_result r = check_vmm();
    if (r == CU_OK) r = check_size("vmm_create", n);
    if (r == CU_OK) r = fk_memory_take(n);
    if (r != CU_OK) return r;
    fake_handle *h = calloc(1, sizeof *h);
    if (h != NULL)
        *h = (fake_handle){.n_bytes = n,
                           .offset = fk.mem.file_next,
                           .device = (uint32_t)fk_me.device,
                           .id = ++fk.serial};
    if (h == NULL || !fill_handle(h)) {
        free(h);
        fk.mem.held[fk_me.device] -= n;
        return fk_say(CU_ENOMEM, "no host memory for %zu bytes of the fake", n);
    }
    fk.mem.file_next += n;
    h->next = fk.mem.handles;
    fk.mem.handles = h;
    *out = h->id;
    return CU_OK;
}

static cu_result api_vmm_create(size_t n, cu_handle *out) {
    cu_result r = fk_enter(CALL_vmm_create);
    if (r == CU_OK) r = create(n, out);
    return fk_leave(r);
}

static fake_handle *find_handle(cu_handle id) {
    for (fake_handle *h = fk.mem.handles; h != NULL; h = h->next)
        if (h->id == id && !h->released) return h;
    return NULL;
}

/* The memory goes when nothing names it any more. */
static void drop_handle(fake_handle *h) {
    if (!h->released || h->n_mapped > 0) return;
    fake_handle **at = &fk.mem.handles;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    fk.mem.held[h->device] -= h->n_bytes;
    fallocate(fk.mem.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)h->offset,
              (off_t)h->n_bytes); // when it cannot, the memory stays until the reset
    free(h);
}

static cu_result release(cu_handle id) {
    fake_handle *h = find_handle(id);
    if (h == NULL) {
        fk_violate("vmm_release of handle %llu, which is not held", (unsigned long long)id);
        return fk_say(CU_EINVAL, "vmm_release of handle %llu, which is not held",
                      (unsigned long long)id);
    }
    h->released = true;
    drop_handle(h);
    return CU_OK;
}

static cu_result api_vmm_release(cu_handle h) {
    cu_result r = fk_enter(CALL_vmm_release);
    if (gives_back(r)) r = fk_lost_or(r, release(h));
    return fk_leave(r);
}

/* ---- mappings ---- */

static cu_result map(void *p, size_t n, cu_handle id) {
    cu_result r = check_vmm();
    if (r != CU_OK) return r;
    fake_handle *h = find_handle(id);
    fake_span s = span_of(p, n);
    if (h == NULL)
        return fk_say(CU_EINVAL, "vmm_map of handle %llu, which is not held",
                      (unsigned long long)id);
    if (n != h->n_bytes)
        return fk_say(CU_EINVAL, "vmm_map of %zu bytes of handle %llu, which has %zu", n,
                      (unsigned long long)id, h->n_bytes);
    if (s.begin % fk.opt.granularity != 0)
        return fk_say(CU_EINVAL, "vmm_map at %p, which is no multiple of the granularity %zu", p,
                      fk.opt.granularity);
    bool reserved = false;
    for (const fake_range *range = fk.mem.ranges; range != NULL; range = range->next)
        reserved = reserved || span_inside(s, range->at);
    if (!reserved) return fk_say(CU_EINVAL, "vmm_map of %zu bytes at %p, not in one range", n, p);
    fake_mapping **at = &fk.mem.mappings;
    while (*at != NULL && (*at)->at.end <= s.begin) at = &(*at)->next;
    if (*at != NULL && span_meets((*at)->at, s))
        return fk_say(CU_EINVAL, "vmm_map of %zu bytes at %p, where handle %llu is mapped", n, p,
                      (unsigned long long)(*at)->handle->id);
    fake_mapping *m = calloc(1, sizeof *m);
    if (m == NULL) return fk_say(CU_ENOMEM, "no host memory");
    fk_memory_change();
    int how = fk.opt.protect ? PROT_NONE : PROT_READ | PROT_WRITE;
    int shared = fk.opt.broken_alias && h->n_mapped > 0 ? MAP_PRIVATE : MAP_SHARED;
    if (mmap(p, n, how, shared | MAP_FIXED, fk.mem.file, (off_t)h->offset) == MAP_FAILED) {
        free(m);
        return fk_say(CU_ENOMEM, "mapping %zu bytes: %s", n, strerror(errno));
    }
    *m = (fake_mapping){.next = *at, .at = s, .handle = h};
    *at = m;
    h->n_mapped++;
    return CU_OK;
}

static cu_result api_vmm_map(void *p, size_t n, cu_handle h) {
    cu_result r = fk_enter(CALL_vmm_map);
    if (r == CU_OK) r = map(p, n, h);
    return fk_leave(r);
}

/* The mappings of [p, p + n), which they must fill from end to end: the link to the first. */
static cu_result find_mappings(const char *call, fake_span s, fake_mapping ***first) {
    fake_mapping **at = &fk.mem.mappings;
    while (*at != NULL && (*at)->at.end <= s.begin) at = &(*at)->next;
    uintptr_t p = s.begin;
    for (const fake_mapping *m = *at; m != NULL && m->at.begin < s.end; m = m->next) {
        if (m->at.begin < s.begin || m->at.end > s.end)
            return fk_say(CU_EINVAL, "%s of a part of handle %llu's mapping", call,
                          (unsigned long long)m->handle->id);
        if (m->at.begin != p) break;
        p = m->at.end;
    }
    if (p != s.end || s.begin == s.end)
        return fk_say(CU_EINVAL, "%s of %zu bytes at %#zx, of which nothing is mapped at byte %zu",
                      call, (size_t)(s.end - s.begin), (size_t)s.begin, (size_t)(p - s.begin));
    *first = at;
    return CU_OK;
}

static cu_result unmap_range(void *p, size_t n) {
    fake_span s = span_of(p, n);
    fake_mapping **at;
    cu_result r = find_mappings("vmm_unmap", s, &at);
    if (r != CU_OK) {
        fk_violate("%s", fk_me.text);
        return r;
    }
    fk_queue_must_not_touch(p, n, "vmm_unmap");
    fk_memory_change();
    fk_memory_unmap(s);
    while (*at != NULL && (*at)->at.begin < s.end) {
        fake_mapping *m = *at;
        *at = m->next;
        m->handle->n_mapped--;
        drop_handle(m->handle);
        free(m);
    }
    return CU_OK;
}

static cu_result api_vmm_unmap(void *p, size_t n) {
    cu_result r = fk_enter(CALL_vmm_unmap);
    if (gives_back(r)) r = fk_lost_or(r, unmap_range(p, n));
    return fk_leave(r);
}

static cu_result api_vmm_access(void *p, size_t n) {
    cu_result r = fk_enter(CALL_vmm_access);
    fake_span s = span_of(p, n);
    fake_mapping **at = NULL;
    if (r == CU_OK) r = check_vmm();
    if (r == CU_OK) r = find_mappings("vmm_access", s, &at);
    if (r == CU_OK) {
        fk_memory_change();
        for (fake_mapping *m = *at; m != NULL && m->at.begin < s.end; m = m->next) m->access = true;
    }
    return fk_leave(r);
}

/* ---- the end ---- */

uint32_t fk_vmm_leaks(void) {
    uint32_t n = 0;
    for (const fake_handle *h = fk.mem.handles; h != NULL; h = h->next)
        if (!h->released)
            n++, fk_leaked("handle %llu of %zu bytes", (unsigned long long)h->id, h->n_bytes);
    for (const fake_mapping *m = fk.mem.mappings; m != NULL; m = m->next, n++)
        fk_leaked("mapping of handle %llu at %#zx", (unsigned long long)m->handle->id,
                  (size_t)m->at.begin);
    for (const fake_range *r = fk.mem.ranges; r != NULL; r = r->next, n++)
        fk_leaked("reservation of %zu bytes at %#zx (number %llu)",
                  (size_t)(r->at.end - r->at.begin), (size_t)r->at.begin,
                  (unsigned long long)r->serial);
    return n;
}

void fk_vmm_reset(void) {
    fake_memory *m = &fk.mem;
    while (m->mappings != NULL) {
        fake_mapping *gone = m->mappings;
        m->mappings = gone->next;
        fk_memory_unmap(gone->at);
        free(gone);
    }
    while (m->handles != NULL) {
        fake_handle *gone = m->handles;
        m->handles = gone->next;
        free(gone);
    }
    while (m->ranges != NULL) {
        fake_range *gone = m->ranges;
        m->ranges = gone->next;
        free(gone);
    }
    if (m->has_file && m->file_size == 0) return;
    if (m->has_file) close(m->file); // all of it goes at once
    m->file = memfd_create("fake device memory", MFD_CLOEXEC);
    m->has_file = true;
    INFERD_CHECK(m->file >= 0);
    m->file_next = m->file_size = 0;
}

void fk_vmm_api(cu_api *api) {
    api->vmm_granularity = api_vmm_granularity;
    api->vmm_reserve = api_vmm_reserve;
    api->vmm_unreserve = api_vmm_unreserve;
    api->vmm_create = api_vmm_create;
    api->vmm_release = api_vmm_release;
    api->vmm_map = api_vmm_map;
    api->vmm_unmap = api_vmm_unmap;
    api->vmm_access = api_vmm_access;
}
