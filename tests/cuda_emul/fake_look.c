/* fake_look.c - the test's side of the fake: its options, how to break it, what it counted.
 *
 * Thread: any; one lock. */
#include "fake_inner.h"

#include <string.h>

/* ---- setting ---- */

uint32_t fake_reset(void) {
    fk_look();
    uint32_t n = fk_leaks();
    fk_reset();
    fk_leave(CU_OK);
    return n;
}

fake_opts *fake_options(void) {
    fk_look();
    fk_leave(CU_OK);
    return &fk.opt;
}

void fake_hold_queues(void) {
    fk_look();
    fk.opt.advance_pct = 0;
    fk_leave(CU_OK);
}

void fake_set_devices(uint32_t n) {
    INFERD_CHECK(n <= FAKE_DEVICES_MAX);
    fake_options()->n_devices = n;
}

void fake_set_cc(uint32_t major, uint32_t minor) {
    fake_opts *o = fake_options();
    for (uint32_t i = 0; i < FAKE_DEVICES_MAX; i++) {
        cu_device *d = &o->device[i];
        uint32_t shared_kib = major >= 9 ? 228 : minor == 0 ? 164 : 100;
        d->cc_major = major;
        d->cc_minor = minor;
        d->n_sms = major >= 9 ? 132 : minor == 0 ? 108 : 84;
        d->shared_bytes_sm = shared_kib << 10;
        d->shared_bytes_max = (shared_kib - 1) << 10; // the system keeps 1 KiB per block
        d->threads_sm_max = major == 8 && minor > 0 ? 1536 : 2048;
        snprintf(d->name, sizeof d->name, "Fake %u.%u", major, minor);
        if (major == 9) snprintf(d->name, sizeof d->name, "Fake H200");
    }
}

void fake_strict_loading(bool on) {
    fake_options()->strict_loading = on;
}

void fake_add_kernels(const cu_kernel *table, uint32_t n) {
    fk_look();
    for (uint32_t i = 0; i < n; i++) {
        INFERD_CHECK(fk.n_kernels < FAKE_KERNELS_MAX);
        fk.kernels[fk.n_kernels++] = (fake_loaded){.kernel = &table[i]};
    }
    fk_leave(CU_OK);
}

/* ---- breaking it ---- */

static void set_rule(const char *call, uint32_t n, cu_result result, bool always) {
    fk_look();
    fake_rule *rule = call == NULL ? &fk.rule_any : &fk.rules[fk_call_of(call)];
    *rule = (fake_rule){.left = n, .always = always, .result = result};
    fk.failed = false;
    fk_leave(CU_OK);
}

void fake_fail_at(uint32_t n, cu_result result) {
    set_rule(NULL, n, result, false);
}
void fake_fail_own_at(uint32_t n, cu_result result) {
    fk_look();
    fk.rule_any = (fake_rule){.left = n, .result = result, .own = true, .thread = pthread_self()};
    fk.failed = false;
    fk_leave(CU_OK);
}
void fake_fail_call(const char *call, uint32_t n, cu_result result) {
    set_rule(call, n, result, false);
}
void fake_fail_call_always(const char *call, uint32_t n, cu_result result) {
    set_rule(call, n, result, true);
}

bool fake_failed(void) {
    fk_look();
    bool failed = fk.failed;
    fk_leave(CU_OK);
    return failed;
}

void fake_lose_event(void) {
    fake_lose_event_at(1);
}
void fake_lose_event_at(uint32_t n) {
    fk_look();
    fk.lose_event_in = n;
    fk_leave(CU_OK);
}

void fake_lose_context_at(uint32_t n) {
    fk_look();
    fk.lose_context_in = n;
    fk_leave(CU_OK);
}
void fake_lose_context(void) {
    fake_lose_device(0);
}
void fake_lose_device(uint32_t index) {
    fk_look();
    fk.running_on = (int32_t)index;
    fk_lose("the context was lost because the test said so");
    fk.running_on = -1;
    fk_leave(CU_OK);
}

/* ---- looking ---- */

uint64_t fake_calls(const char *call) {
    fk_look();
    uint64_t n = 0;
    if (call != NULL)
        n = fk.calls[fk_call_of(call)];
    else
        for (uint32_t i = 0; i < CALL_COUNT; i++) n += fk.calls[i];
    fk_leave(CU_OK);
    return n;
}

uint64_t fake_uses(uint32_t index) {
    fk_look();
    uint64_t n = fk.uses[index];
    fk_leave(CU_OK);
    return n;
}

void fake_get_counts(fake_counts *out) {
    fk_look();
    *out = fk.counts;
    out->virtual_us = fk.host_ns / 1000;
    fk_leave(CU_OK);
}

uint32_t fake_pending(void) {
    fk_look();
    uint32_t n = fk_queue_pending();
    fk_leave(CU_OK);
    return n;
}

void fake_run(uint32_t n_steps) {
    fk_look();
    fk_run_some(n_steps);
    fk_leave(CU_OK);
}

void fake_run_stream(cu_stream s) {
    fk_look();
    while (fk_run_step(s)) {
    }
    fk_leave(CU_OK);
}

uint64_t fake_held_bytes(void) {
    fk_look();
    uint64_t n = 0;
    for (uint32_t i = 0; i < FAKE_DEVICES_MAX; i++) n += fk.mem.held[i];
    fk_leave(CU_OK);
    return n;
}

uint64_t fake_held_host_bytes(void) {
    fk_look();
    uint64_t n = 0;
    for (const fake_alloc *a = fk.mem.allocs; a != NULL; a = a->next)
        if (a->kind != ALLOC_DEVICE) n += a->at.end - a->at.begin;
    fk_leave(CU_OK);
    return n;
}

uint32_t fake_leaks(void) {
    fk_look();
    uint32_t n = fk_leaks();
    fk_leave(CU_OK);
    return n;
}

uint32_t fake_violations(void) {
    fk_look();
    uint32_t n = fk.n_violations;
    fk_leave(CU_OK);
    return n;
}

const char *fake_last_violation(void) {
    return fk.violation;
}

uint32_t fake_take_violations(void) {
    fk_look();
    uint32_t n = fk.n_violations;
    fk.n_violations = 0;
    fk.violation[0] = 0;
    fk_leave(CU_OK);
    return n;
}

bool fake_is_lost(void) {
    fk_look();
    bool lost = fk.lost;
    for (uint32_t i = 0; i < FAKE_DEVICES_MAX; i++) lost |= fk.lost_on[i];
    fk_leave(CU_OK);
    return lost;
}

static bool peek_poke(void *device, void *host, size_t n, bool poke) {
    fk_look();
    bool good = fk_memory_may_touch((uintptr_t)device, n);
    if (good) {
        fk_memory_open(device, n);
        if (poke)
            memcpy(device, host, n);
        else
            memcpy(host, device, n);
    }
    fk_leave(CU_OK);
    return good;
}
bool fake_peek(const void *device, void *host, size_t n) {
    return peek_poke((void *)(uintptr_t)device, host, n, false);
}
bool fake_poke(void *device, const void *host, size_t n) {
    return peek_poke(device, (void *)(uintptr_t)host, n, true);
}

bool fake_may_touch(const void *p, size_t n) {
    fk_look();
    bool may = fk_memory_may_touch((uintptr_t)p, n);
    fk_leave(CU_OK);
    return may;
}
