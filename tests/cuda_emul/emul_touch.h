// emul_touch.h - may this thread touch these bytes?  A part of emul.cc.
//
// An address is the thread's own stack, shared memory, another thread's stack, the params, or else
// global memory; each has its rules.  Words come with a place in the source, plain accesses with
// the address of the instruction.
//
// Thread: the launching host thread, under emul.cc's mutex.
#ifndef INFERD_EMUL_TOUCH_H
#define INFERD_EMUL_TOUCH_H

#include "emul_fiber.h"

namespace {

enum touch_flags : uint32_t {
    TOUCH_GLOBAL = 4,
    TOUCH_SHARED = 8,
    TOUCH_STREAM = 16,
    TOUCH_PLAIN = 32
};

// Parts of the program that nobody can write: a kernel may read its constant tables there.
bool in_constants(uintptr_t p, size_t n) {
    struct segment {
        uintptr_t begin, end;
    };
    static std::vector<segment> segments;
    if (segments.empty()) {
        dl_iterate_phdr(
            [](struct dl_phdr_info *info, size_t, void *) {
                for (int i = 0; i < info->dlpi_phnum; i++) {
                    const ElfW(Phdr) *h = &info->dlpi_phdr[i];
                    bool constant =
                        (h->p_type == PT_LOAD && !(h->p_flags & PF_W)) || h->p_type == PT_GNU_RELRO;
                    uintptr_t begin = info->dlpi_addr + h->p_vaddr;
                    if (constant) segments.push_back({begin, begin + h->p_memsz});
                }
                return 0;
            },
            nullptr);
    }
    for (const segment &s : segments)
        if (p >= s.begin && p + n <= s.end) return true;
    return false;
}

struct touched { // what access is looked at, for the sentence
    fiber *by;
    const void *p;
    uint32_t n, flags;
    const void *pc; // TOUCH_PLAIN
};

[[noreturn]] __attribute__((format(printf, 2, 3))) void fail_touch(const touched *t,
                                                                   const char *format, ...) {
    char text[400], where[200] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *does = !(t->flags & watch::WRITE)                    ? "reads"
                       : (t->flags & watch::ATOMIC) == watch::ATOMIC ? "changes (atomically)"
                                                                     : "writes";
    if (t->flags & TOUCH_PLAIN) { // no line: tell what finds it
        Dl_info info;
        char after[100] = "before any word";
        if (t->by->at.file != nullptr)
            snprintf(after, sizeof after, "after %s:%u", base_name(t->by->at.file), t->by->at.line);
        if (dladdr(t->pc, &info) != 0)
            snprintf(where, sizeof where, " (%s; addr2line -ie %s %#zx)", after,
                     base_name(info.dli_fname), (size_t)t->pc - 1 - (size_t)info.dli_fbase);
    }
    fail(t->by, t->flags & TOUCH_PLAIN ? nullptr : &t->by->at, "%s %u bytes at %p%s: %s", does,
         t->n, t->p, where, text);
}

void fail_conflict(const touched *t, const watch::conflict *c, const char *memory) {
    if (c->same_block)
        fail_touch(t, "race in %s memory, byte %#zx: thread %u%s %s it and no barrier is between",
                   memory, (size_t)c->at, c->thread, c->many ? " and others of its warp" : "",
                   c->other_wrote ? "wrote" : "read");
    if (c->block == UINT32_MAX)
        fail_touch(t, "conflict in %s memory, byte %#zx: other blocks read it", memory,
                   (size_t)c->at);
    uint32_t x = c->block % run.grid[0], y = c->block / run.grid[0] % run.grid[1],
             z = c->block / run.grid[0] / run.grid[1];
    fail_touch(t,
               "conflict in %s memory, byte %#zx: block (%u, %u, %u) %s it, without fence() and an "
               "atomic operation between",
               memory, (size_t)c->at, x, y, z, c->other_wrote ? "wrote" : "read");
}

void touch_shared(const touched *t) {
    uintptr_t p = (uintptr_t)t->p, base = (uintptr_t)run.shared;
    if (p < base || p + t->n > base + run.shared_bytes)
        fail_touch(t, "outside of shared memory, which has %u bytes (offset %lld)",
                   run.shared_bytes, (long long)(p - base));
    uint32_t offset = (uint32_t)(p - base);
    for (uint32_t i = offset / 16; i <= (offset + t->n - 1) / 16; i++)
        if (watch::arena.copying[i] != 0)
            fail_touch(t,
                       "shared offset %u is the destination of an asynchronous copy that thread %u "
                       "has not waited for",
                       i * 16, watch::arena.copying[i] - 1u);
    watch::conflict c =
        watch::shared_access(offset, t->n, (watch::access)(t->flags & 3), t->by->thread);
    if (c.found) fail_conflict(t, &c, "shared");
}

void touch_global(const touched *t) {
    uintptr_t p = (uintptr_t)t->p;
    bool write = (t->flags & watch::WRITE) != 0;
    for (uint32_t done = 0; done < t->n;) {
        uint32_t at = (uint32_t)((p + done) % watch::PAGE);
        uint32_t n = std::min(t->n - done, watch::PAGE - at);
        watch::page *g = watch::page_of(p + done);
        if (setting.check != nullptr && !(write ? g->write_ok : g->read_ok)) {
            void *ctx = setting.check_ctx;
            if (setting.check((const void *)(g->number * watch::PAGE), watch::PAGE, write, ctx))
                (write ? g->write_ok : g->read_ok) = true;
            else if (!setting.check((const void *)(p + done), n, write, ctx) &&
                     (write || !in_constants(p + done, n)))
                fail_touch(t, "not memory of the device that it may %s", write ? "write" : "read");
        }
        if ((t->flags & TOUCH_STREAM) && watch::written_now(g, at, n))
            fail_touch(t, "load_stream of memory that this launch has written");
        if (!t->by->waited) {
            if (write) t->by->wrote_early = t->p;
            if (!write && watch::written_before(g, at, n)) t->by->read_early = t->p;
        }
        watch::conflict c =
            watch::global_access(g, at, n, (watch::access)(t->flags & 3), t->by->thread);
        if (c.found) fail_conflict(t, &c, "global");
        done += n;
    }
}

// One access of a thread: which memory is it, and may it be?
void touch(fiber *by, const void *p, uint32_t n, uint32_t flags, const void *pc) {
    uintptr_t a = (uintptr_t)p;
    touched t = {by, p, n, flags, pc};
    if (a - (uintptr_t)by->ctx.stack < STACK_BYTES) {
        if (flags & (TOUCH_GLOBAL | TOUCH_SHARED))
            fail_touch(&t, "a local variable, expected %s memory",
                       flags & TOUCH_GLOBAL ? "global" : "shared");
        return;
    }
    if (a - (uintptr_t)run.shared + NEIGHBOURHOOD < run.shared_bytes + 2 * NEIGHBOURHOOD) {
        if (flags & TOUCH_GLOBAL) fail_touch(&t, "shared memory, expected global memory");
        touch_shared(&t);
        return;
    }
    if (a - (uintptr_t)stacks < STRIDE_BYTES * EMUL_THREADS_MAX)
        fail_touch(&t, "a local variable of thread %u",
                   (uint32_t)((a - (uintptr_t)stacks) / STRIDE_BYTES));
    if (flags & TOUCH_SHARED) fail_touch(&t, "not in shared memory");
    if (a - (uintptr_t)run.params < EMUL_PARAMS_MAX) {
        if (flags & watch::WRITE) fail_touch(&t, "the kernel's params");
        if (a - (uintptr_t)run.params + n > run.params_bytes)
            fail_touch(&t, "behind the kernel's params, which have %u bytes", run.params_bytes);
        return;
    }
    touch_global(&t);
}

// The same for a word, whose addresses must be aligned to their size.
void touch_word(fiber *by, const void *p, uint32_t n, uint32_t flags) {
    touched t = {by, p, n, flags, nullptr};
    if ((uintptr_t)p % n != 0) fail_touch(&t, "not aligned to %u bytes", n);
    touch(by, p, n, flags, nullptr);
}

void land(fiber *me, const copy *c) {
    uint32_t offset = (uint32_t)(c->to - run.shared);
    watch::arena.copying[offset / 16] = 0;
    if (c->from == nullptr) {
        memset(c->to, 0, 16);
    } else if (c->was_read) {
        memcpy(c->to, c->bytes, 16);
    } else {
        touch(me, c->from, 16, TOUCH_GLOBAL, nullptr);
        memcpy(c->to, c->from, 16);
    }
    touch(me, c->to, 16, watch::WRITE | TOUCH_SHARED, nullptr);
}

} // namespace

#endif
