/* fake_open.c - which device memory may be touched, and opening it while work runs.
 *
 * All device memory lies in one reserved piece of the address space, of which nothing is readable:
 * a host that follows a device pointer crashes where it does so.  While work runs, the first touch
 * of each chunk of 1 MiB faults, and the handler opens what is allowed of it; copies, whose
 * addresses are known, open theirs before.  What was opened is closed before the call returns, so
 * that the cost is that of the memory touched, not of the memory there is.
 *
 * Bytes near an allocation: emulated kernels ask before each access (emul_run.h), builds with
 * AddressSanitizer stop at it, and in any build what a kernel wrote there is seen when it has
 * ended.  Farther away the handler finds nothing allowed: it lets the work go on with a page of its
 * own, and the context is lost when it ends, as on a GPU.
 *
 * Thread: under the fake's lock; the handler runs on the thread that works. */
#include "fake_inner.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, CHUNK_SHIFT = 20 };
static const size_t ADDRESS_BYTES = (size_t)FAKE_CHUNKS << CHUNK_SHIFT;

/* emul_run.h, when the emulator is linked. */
void emul_set_memory_check(bool (*ok)(const void *p, size_t n, bool write, void *ctx), void *ctx)
    __attribute__((weak));

/* ---- what may be touched ---- */

static int by_address(const void *a, const void *b) {
    uintptr_t x = ((const fake_span *)a)->begin, y = ((const fake_span *)b)->begin;
    return (x > y) - (x < y);
}

static uint32_t sort_and_join(fake_span *spans, uint32_t n) {
    uint32_t n_out = 0;
    if (n > 0) qsort(spans, n, sizeof *spans, by_address);
    for (uint32_t i = 0; i < n; i++) {
        if (n_out > 0 && spans[n_out - 1].end == spans[i].begin)
            spans[n_out - 1].end = spans[i].end;
        else
            spans[n_out++] = spans[i];
    }
    return n_out;
}

static void list_open(void) {
    fake_memory *m = &fk.mem;
    if (!m->open_stale) return;
    uint32_t n = 0;
    for (const fake_alloc *a = m->allocs; a != NULL; a = a->next) n += a->kind == ALLOC_DEVICE;
    for (const fake_mapping *p = m->mappings; p != NULL; p = p->next) n += p->access;
    if (n > m->open_max) {
        m->open_max = n * 2;
        free(m->open);
        free(m->open_pages);
        m->open = malloc(m->open_max * sizeof *m->open);
        m->open_pages = malloc(m->open_max * sizeof *m->open_pages);
        INFERD_CHECK(m->open != NULL && m->open_pages != NULL);
    }
    n = 0;
    for (const fake_alloc *a = m->allocs; a != NULL; a = a->next)
        if (a->kind == ALLOC_DEVICE) {
            m->open[n] = a->at;
            m->open_pages[n++] = a->pages;
        }
    for (const fake_mapping *p = m->mappings; p != NULL; p = p->next)
        if (p->access) m->open[n] = m->open_pages[n] = p->at, n++;
    m->n_open = sort_and_join(m->open, n);
    m->n_open_pages = sort_and_join(m->open_pages, n);
    m->last_open = 0;
    m->open_stale = false;
}

/* The last of the sorted spans that begins at or before p; -1: none. */
static int64_t find_span(const fake_span *spans, uint32_t n, uintptr_t p) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (spans[mid].begin <= p)
            low = mid + 1;
        else
            high = mid;
    }
    return (int64_t)low - 1;
}

bool fk_memory_may_touch(uintptr_t p, size_t n) {
    fake_memory *m = &fk.mem;
    list_open();
    if (m->n_open == 0) return n == 0;
    fake_span last = m->open[m->last_open];
    if (p >= last.begin && p <= last.end && n <= last.end - p) return true;
    int64_t i = find_span(m->open, m->n_open, p);
    if (i < 0 || p > m->open[i].end || n > m->open[i].end - p) return false;
    m->last_open = (uint32_t)i;
    return true;
}

bool fk_memory_is_device_address(const void *p) {
    return (uintptr_t)p >= fk.mem.base && (uintptr_t)p < fk.mem.end;
}

/* What lies at an address that may not be touched. */
static void describe(uintptr_t p, char *out, size_t n_bytes) {
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next) {
        if (a->kind != ALLOC_DEVICE) continue;
        size_t size = a->at.end - a->at.begin;
        if (p >= a->at.end && p < a->pages.end) {
            snprintf(out, n_bytes, "%zu bytes past the end of allocation %llu of %zu bytes",
                     (size_t)(p - a->at.end), (unsigned long long)a->serial, size);
            return;
        }
        if (p < a->at.begin && p >= a->pages.begin) {
            snprintf(out, n_bytes, "%zu bytes before allocation %llu of %zu bytes",
                     (size_t)(a->at.begin - p), (unsigned long long)a->serial, size);
            return;
        }
    }
    for (const fake_mapping *m = fk.mem.mappings; m != NULL; m = m->next)
        if (p >= m->at.begin && p < m->at.end) {
            snprintf(out, n_bytes, "mapped, but without access");
            return;
        }
    for (const fake_range *r = fk.mem.ranges; r != NULL; r = r->next)
        if (p >= r->at.begin && p < r->at.end) {
            snprintf(out, n_bytes, "reserved, but nothing is mapped at byte %zu of the range",
                     (size_t)(p - r->at.begin));
            return;
        }
    snprintf(out, n_bytes, "%s",
             p < fk.mem.next && p >= fk.mem.base ? "device memory that was given back"
                                                 : "no device memory");
}

/* emul_run.h asks before a kernel's access to what is not its shared memory, for whole pages first:
 * a refusal may mean nothing. */
static bool check_access(const void *p, size_t n, bool write, void *ctx) {
    (void)write, (void)ctx;
    bool may = fk_memory_may_touch((uintptr_t)p, n);
    for (const fake_alloc *a = fk.mem.allocs; a != NULL && !may; a = a->next)
        may = a->kind == ALLOC_HOST && span_inside(span_of(p, n), a->at); // one address space
    fk.refused = may ? 0 : (uintptr_t)p;
    return may;
}

void fk_memory_describe_refused(char *out, size_t n_bytes) {
    out[0] = 0;
    if (fk_memory_is_device_address((const void *)fk.refused)) describe(fk.refused, out, n_bytes);
    fk.refused = 0;
}

/* ---- opening and closing ---- */

/* In the fault handler too: no locks, no allocation, and the lists stand still while work runs. */
static void open_chunk(uint32_t chunk) {
    fake_memory *m = &fk.mem;
    fake_span s = {m->base + ((uintptr_t)chunk << CHUNK_SHIFT), 0};
    s.end = s.begin + ((uintptr_t)1 << CHUNK_SHIFT);
    int64_t i = find_span(m->open_pages, m->n_open_pages, s.begin);
    for (uint32_t j = i < 0 ? 0 : (uint32_t)i; j < m->n_open_pages; j++) {
        fake_span p = m->open_pages[j];
        if (p.begin >= s.end) break;
        if (p.begin < s.begin) p.begin = s.begin;
        if (p.end > s.end) p.end = s.end;
        if (p.begin < p.end) mprotect((void *)p.begin, p.end - p.begin, PROT_READ | PROT_WRITE);
    }
    m->chunk_open[chunk] = true;
    if (m->n_chunks < INFERD_COUNT(m->chunks)) m->chunks[m->n_chunks] = chunk;
    m->n_chunks++; // beyond the list: all are closed
}

static uint32_t chunk_of(uintptr_t p) {
    return (uint32_t)((p - fk.mem.base) >> CHUNK_SHIFT);
}

void fk_memory_begin_work(void) {
    list_open();
    fk_me.executing = true;
}

void fk_memory_open(const void *p, size_t n) {
    fake_span s = span_of(p, n);
    if (!fk.opt.protect || n == 0) return;
    list_open();
    for (uint32_t c = chunk_of(s.begin); c <= chunk_of(s.end - 1); c++)
        if (!fk.mem.chunk_open[c]) open_chunk(c);
}

static void close_chunk(uint32_t chunk) {
    void *p = (void *)(fk.mem.base + ((uintptr_t)chunk << CHUNK_SHIFT));
    INFERD_CHECK(mprotect(p, (size_t)1 << CHUNK_SHIFT, PROT_NONE) == 0);
    fk.mem.chunk_open[chunk] = false;
}

void fk_memory_close_all(void) {
    fake_memory *m = &fk.mem;
    fk_me.executing = false;
    if (m->n_chunks > INFERD_COUNT(m->chunks)) {
        for (uint32_t c = 0; c < FAKE_CHUNKS; c++)
            if (m->chunk_open[c]) close_chunk(c);
    } else {
        for (uint32_t i = 0; i < m->n_chunks; i++) close_chunk(m->chunks[i]);
    }
    m->n_chunks = 0;
}

void fk_memory_change(void) {
    fk_memory_close_all();
    fk.mem.open_stale = true;
}

static struct sigaction old_action;

static void on_fault(int signal, siginfo_t *info, void *context) {
    uintptr_t p = (uintptr_t)info->si_addr;
    if (fk_me.executing && p >= fk.mem.base && p < fk.mem.end) {
        if (fk.opt.protect && !fk.mem.chunk_open[chunk_of(p)]) {
            open_chunk(chunk_of(p));
            return; // when that was not enough, it faults again
        }
        if (fk.fault == 0) fk.fault = p;
        mprotect((void *)(p & ~(uintptr_t)(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
        return;
    }
    if ((old_action.sa_flags & SA_SIGINFO) != 0)
        old_action.sa_sigaction(signal, info, context);
    else
        sigaction(signal, &old_action, NULL); // the same access again, without us
}

void fk_memory_look_for_faults(void) {
    uintptr_t p = fk.fault;
    if (p == 0) return;
    fk.fault = 0;
    char where[160];
    describe(p, where, sizeof where);
    fk_violate("%s touched %#zx: %s", fk.running, (size_t)p, where);
    fk_lose("an illegal memory access was encountered: %s", fk.violation);
}

/* ---- the edges of allocations ---- */

static bool is_edge(uintptr_t begin) {
    const unsigned char *p = (const unsigned char *)begin;
    for (uint32_t i = 0; i < FAKE_EDGE_BYTES; i++)
        if (p[i] != FAKE_EDGE) return false;
    return true;
}

/* What is still closed was not written to.  A violation is found once: the edge is made good. */
static void check_edge(const fake_alloc *a, uintptr_t begin, const char *where) {
    if (fk.opt.protect && !fk.mem.chunk_open[chunk_of(begin)] &&
        !fk.mem.chunk_open[chunk_of(begin + FAKE_EDGE_BYTES - 1)])
        return;
    fk_memory_open((void *)begin, FAKE_EDGE_BYTES);
    if (is_edge(begin)) return;
    fk_violate("%s wrote %s allocation %llu of %zu bytes", fk.running, where,
               (unsigned long long)a->serial, (size_t)(a->at.end - a->at.begin));
    memset((void *)begin, FAKE_EDGE, FAKE_EDGE_BYTES);
}

void fk_memory_check_edges(void) {
    if (FAKE_ASAN) return; // it stops at the access itself
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next) {
        if (a->kind != ALLOC_DEVICE) continue;
        check_edge(a, a->at.begin - FAKE_EDGE_BYTES, "before");
        check_edge(a, a->at.end, "past the end of");
    }
}

/* ---- the beginning ---- */

void fk_memory_begin(void) {
    fake_memory *m = &fk.mem;
    free(m->open);
    free(m->open_pages);
    m->open = m->open_pages = NULL;
    m->n_open = m->n_open_pages = m->open_max = 0;
    if (m->base != 0) return;
    void *p =
        mmap(NULL, ADDRESS_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    INFERD_CHECK(p != MAP_FAILED);
    m->base = m->next = (uintptr_t)p;
    m->end = m->base + ADDRESS_BYTES;
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER};
    action.sa_sigaction = on_fault;
    INFERD_CHECK(sigaction(SIGSEGV, &action, &old_action) == 0);
    if (emul_set_memory_check != NULL) emul_set_memory_check(check_access, NULL);
}
