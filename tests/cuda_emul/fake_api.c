/* fake_api.c - the fake's state, the way into and out of a call, failures on demand, devices.
 *
 * Every call passes fk_enter(), in this order: it is counted; a lost context answers; a failure
 * that a test asked for happens; rules about init and captures are kept; then some queued work may
 * run, so that "done by now" depends on chance and not on who looks.  Calls that give things back
 * run nothing: what is queued then is what the caller did not wait for.
 *
 * Thread: any; one lock. */
#include "fake_inner.h"

#include <stdarg.h>
#include <string.h>
#include <strings.h>

fake_state fk = {.lock = PTHREAD_MUTEX_INITIALIZER};
_Thread_local fake_thread fk_me;

static const char *const call_names[CALL_COUNT] = {
#define CALL_NAME(name, flags) #name,
    FAKE_CALLS(CALL_NAME)
#undef CALL_NAME
};
static const uint8_t call_flags[CALL_COUNT] = {
#define CALL_FLAGS(name, flags) flags,
    FAKE_CALLS(CALL_FLAGS)
#undef CALL_FLAGS
};

/* ---- saying ---- */

cu_result fk_say(cu_result r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fk_me.text, sizeof fk_me.text, format, args);
    va_end(args);
    return r;
}

void fk_violate(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fk.violation, sizeof fk.violation, format, args);
    va_end(args);
    fk.n_violations++;
    if (!fk.opt.quiet) printf("fake: rule broken: %s\n", fk.violation);
}

bool fk_is_lost(int32_t device) {
    return fk.lost || (device >= 0 && fk.lost_on[device]);
}

void fk_lose(const char *format, ...) {
    int32_t device = fk.running_on >= 0 ? fk.running_on : fk_me.device;
    if (fk_is_lost(device)) return; // the first reason is the reason
    va_list args;
    va_start(args, format);
    vsnprintf(fk.lost_why, sizeof fk.lost_why, format, args);
    va_end(args);
    if (fk.opt.lost_alone && device >= 0)
        fk.lost_on[device] = true;
    else
        fk.lost = true;
}

cu_result fk_break_capture(fake_capture *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fk_me.text, sizeof fk_me.text, format, args);
    va_end(args);
    if (c->broken[0] == 0) memcpy(c->broken, fk_me.text, sizeof c->broken);
    return CU_EINVAL;
}

uint32_t fk_draw(uint32_t n) {
    uint64_t z = fk.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 33) % n;
}

void fk_leaked(const char *format, ...) {
    if (fk.opt.quiet) return;
    char text[CU_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("fake: leaked: %s\n", text);
}

cu_result fk_lost_or(cu_result entered, cu_result then) {
    if (entered == CU_ELOST) return fk_say(CU_ELOST, "%s", fk.lost_why);
    return then;
}

bool fk_has_call(const char *name) {
    for (uint32_t i = 0; i < CALL_COUNT; i++)
        if (strcmp(call_names[i], name) == 0) return true;
    return false;
}

fake_call fk_call_of(const char *name) {
    for (uint32_t i = 0; i < CALL_COUNT; i++)
        if (strcmp(call_names[i], name) == 0) return (fake_call)i;
    printf("the fake has no call \"%s\"\n", name);
    abort();
}

/* ---- in and out ---- */

static void know_thread(void) {
    static uint64_t n_threads;
    if (fk_me.generation == fk.generation) return;
    fk_me.generation = fk.generation;
    if (fk_me.id == 0) fk_me.id = ++n_threads;
    fk_me.device = -1;
    fk_me.capture = NULL;
    fk_me.text[0] = 0;
}

/* A default device and the rest, when nobody has reset the fake yet. */
static void begin_once(void);

static cu_result rule_result(fake_rule *rule) {
    if (rule->left == 0 || (rule->own && !pthread_equal(rule->thread, pthread_self())))
        return CU_OK;
    if (rule->left > 1) {
        rule->left--;
        return CU_OK;
    }
    if (!rule->always) rule->left = 0;
    fk.failed = true;
    return rule->result;
}

/* The failure that a test asked for. */
static cu_result failure_of(fake_call call) {
    cu_result r = rule_result(&fk.rules[call]);
    if (r == CU_OK && (call_flags[call] & GIVES_BACK) == 0) r = rule_result(&fk.rule_any);
    if (r == CU_OK) return CU_OK;
    if (r == CU_ELOST) fk_lose("%s lost the context because the test said so", call_names[call]);
    if (fk_me.capture != NULL && (call_flags[call] & NO_CAPTURE) == 0)
        fk_break_capture(fk_me.capture, "%s failed while capturing", call_names[call]);
    return fk_say(r, "%s failed because the test said so", call_names[call]);
}

cu_result fk_enter(fake_call call) {
    pthread_mutex_lock(&fk.lock);
    begin_once();
    know_thread();
    uint8_t flags = call_flags[call];
    int32_t device = (flags & NEEDS_DEVICE) != 0 ? fk_me.device : -1;
    fk.calls[call]++;
    if (fk_is_lost(device) && (flags & SURVIVES) == 0) return fk_say(CU_ELOST, "%s", fk.lost_why);
    cu_result r = failure_of(call);
    if (r != CU_OK) return r;
    if (!fk.initialized && (flags & BEFORE_INIT) == 0)
        return fk_say(CU_EINVAL, "%s was called before init", call_names[call]);
    if (fk_me.capture != NULL && (flags & NO_CAPTURE) != 0)
        return fk_break_capture(
            fk_me.capture, "%s is not allowed while the calling thread captures", call_names[call]);
    if (fk_me.device < 0 && (flags & NEEDS_DEVICE) != 0) {
        fk_violate("%s on a thread that never called device_use", call_names[call]);
        fk_me.device = 0;
    }
    if ((flags & (GIVES_BACK | BEFORE_INIT)) == 0 && fk.opt.advance_pct > 0 &&
        fk_draw(100) < fk.opt.advance_pct)
        fk_run_some(1 + fk_draw(fk.opt.advance_max > 0 ? fk.opt.advance_max : 1));
    if (fk_is_lost(device) && (flags & SURVIVES) == 0) return fk_say(CU_ELOST, "%s", fk.lost_why);
    return CU_OK;
}

cu_result fk_leave(cu_result r) {
    fk_memory_close_all();
    pthread_mutex_unlock(&fk.lock);
    return r;
}

void fk_look(void) {
    pthread_mutex_lock(&fk.lock);
    begin_once();
    know_thread();
}

static const char *api_text(void) {
    return fk_me.text;
}

/* ---- devices ---- */

static void make_device(uint32_t index, cu_device *d, cu_health *h) {
    *d = (cu_device){
        .name = "Fake H200",
        .cc_major = 9,
        .n_sms = 132,
        .shared_bytes_max = 232448,
        .shared_bytes_sm = 233472,
        .registers_sm = 65536,
        .threads_sm_max = 2048,
        .l2_bytes = 50 << 20,
        .memory_bytes = 256 << 20,
        .vmm = true,
        .driver_version = 13000,
        .runtime_version = 13000,
    };
    snprintf(d->uuid, sizeof d->uuid, "GPU-%08x-fake-4a3e-9c00-%012x", 0x8f6a0000u + index, index);
    *h = (cu_health){.known = true,
                     .temperature_c = 41,
                     .power_w = 120,
                     .utilization_pct = 7,
                     .memory_used_bytes = 64 << 20};
}

static void show(uint32_t index) {
    if (fk.n_visible < FAKE_DEVICES_MAX) fk.visible[fk.n_visible++] = index;
}

/* Devices of the environment's list until one that is not there; an instance stands alone.  Without
 * a list whole GPUs, or where all are partitioned the first instance. */
static void find_visible(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    fk.n_visible = 0;
    for (uint32_t i = 0; i < fk.opt.n_devices; i++)
        if (!fk.opt.cuda_visible || (list == NULL && !fk.opt.device[i].mig)) show(i);
    if (!fk.opt.cuda_visible) return;
    if (list == NULL && fk.n_visible == 0 && fk.opt.n_devices > 0) show(0);
    for (const char *at = list; at != NULL && *at != 0;) {
        size_t n = strcspn(at, ",");
        uint32_t i = 0;
        while (i < fk.opt.n_devices && strncasecmp(fk.opt.device[i].uuid, at, n) != 0) i++;
        if (n == 1 && at[0] >= '0' && at[0] <= '9') i = (uint32_t)(at[0] - '0');
        if (n == 0 || i >= fk.opt.n_devices) return;
        if (fk.opt.device[i].mig) fk.n_visible = 0;
        show(i);
        if (fk.opt.device[i].mig) return;
        at += n + (at[n] == ',');
    }
}

static uint32_t api_instances(uint32_t n_max, cu_instance *out) {
    uint32_t n = 0;
    fk_look();
    for (uint32_t i = 0; i < fk.opt.n_devices; i++) {
        if (!fk.opt.cuda_visible || !fk.opt.device[i].mig || n == n_max) continue;
        memcpy(out[n].name, fk.opt.device[i].name, sizeof out[n].name);
        memcpy(out[n++].uuid, fk.opt.device[i].uuid, sizeof out[n].uuid);
    }
    fk_leave(CU_OK);
    return n;
}

static cu_result api_init(void) {
    cu_result r = fk_enter(CALL_init);
    if (r == CU_OK) {
        if (fk.opt.driver == FAKE_DRIVER_NONE)
            r = fk_say(CU_ENODEVICE, "no NVIDIA driver is installed (libcuda.so.1 was not found)");
        else if (fk.opt.driver == FAKE_DRIVER_OLD)
            r = fk_say(CU_EDRIVER, "the NVIDIA driver is too old for CUDA 13.0: it is 12.2, "
                                   "install driver 580 or newer");
        else if (fk.opt.starting > 0 && fk.opt.starting-- > 0)
            r = fk_say(CU_ESTARTING, "the fabric manager has not started yet (802)");
        else if (fk.opt.n_devices == 0)
            r = fk_say(CU_ENODEVICE, "the NVIDIA driver sees no device");
        else {
            if (!fk.initialized || !fk.opt.cuda_visible) find_visible();
            fk.initialized = true;
        }
    }
    return fk_leave(r);
}

/* *index becomes that in opt.device. */
static cu_result check_index(uint32_t *given) {
    uint32_t index = *given;
    if (!fk.opt.cuda_visible) find_visible(); // tests change their number at any time
    if (index < fk.n_visible) {
        *given = index = fk.visible[index];
        return fk.opt.bad[index] ? fk_say(CU_EFAILED, "device %u does not answer", index) : CU_OK;
    }
    return fk_say(CU_EINVAL, "there is no device %u, there are %u", index, fk.opt.n_devices);
}

static cu_result api_device_count(uint32_t *out) {
    cu_result r = fk_enter(CALL_device_count);
    if (r == CU_OK) *out = fk.opt.cuda_visible ? fk.n_visible : fk.opt.n_devices;
    return fk_leave(r);
}

static cu_result api_device_about(uint32_t index, cu_device *out) {
    cu_result r = fk_enter(CALL_device_about);
    if (r == CU_OK) r = check_index(&index);
    if (r == CU_OK) *out = fk.opt.device[index];
    return fk_leave(r);
}

static cu_result api_device_health(uint32_t index, cu_health *out) {
    cu_result r = fk_enter(CALL_device_health);
    if (r == CU_OK) r = check_index(&index);
    if (r == CU_OK && fk.opt.gone[index]) r = fk_say(CU_ELOST, "NVML: the GPU is lost (15)");
    if (r == CU_OK) *out = fk.opt.health[index];
    return fk_leave(r);
}

static cu_result api_device_use(uint32_t index) {
    cu_result r = fk_enter(CALL_device_use);
    if (r == CU_OK) r = check_index(&index);
    if (r == CU_OK) {
        fk_me.device = (int32_t)index;
        fk.uses[index]++;
        if (fk.lost_on[index]) r = fk_say(CU_ELOST, "%s", fk.lost_why);
    }
    return fk_leave(r);
}

static cu_result api_device_blocking(void) {
    return fk_leave(fk_enter(CALL_device_blocking));
}

static cu_result api_memory_info(uint64_t *free_bytes, uint64_t *total_bytes) {
    cu_result r = fk_enter(CALL_memory_info);
    if (r == CU_OK) {
        uint64_t total = fk.opt.device[fk_me.device].memory_bytes;
        uint64_t used = fk.mem.held[fk_me.device] + fk.opt.others_bytes[fk_me.device];
        *free_bytes = total > used ? total - used : 0;
        *total_bytes = total;
    }
    return fk_leave(r);
}

/* ---- resetting ---- */

uint32_t fk_leaks(void) {
    return fk_memory_leaks() + fk_vmm_leaks() + fk_stream_leaks() + fk_graph_leaks();
}

void fk_reset(void) {
    fk_queue_reset();
    fk_graph_reset();
    fk_stream_reset();
    fk_memory_reset();
    fk_vmm_reset();
    fk.generation++;
    fk.opt = (fake_opts){
        .granularity = 2 << 20,
        .poison = true,
        .seed = 1,
        .advance_pct = 30,
        .advance_max = 3,
        .stuck_ms = 200,
        .launch_us = 2,
        .copy_us = 2,
        .bytes_per_us = 50000,
        .lt_flops_us = 1000000,
        .registers_per_thread = 64,
        .protect = true,
        .lt = true,
        .lt_version = 130000,
        .n_devices = 1,
    };
    for (uint32_t i = 0; i < FAKE_DEVICES_MAX; i++)
        make_device(i, &fk.opt.device[i], &fk.opt.health[i]);
    fk.serial = fk.random = 0; // begin_once draws from opt.seed
    fk.initialized = fk.lost = fk.failed = fk.lt_opened = false;
    memset(fk.lost_on, 0, sizeof fk.lost_on);
    fk.running_on = -1;
    memset(fk.calls, 0, sizeof fk.calls);
    memset(fk.uses, 0, sizeof fk.uses);
    memset(fk.rules, 0, sizeof fk.rules);
    fk.rule_any = (fake_rule){0};
    fk.lose_event_in = fk.lose_context_in = 0;
    fk.n_violations = 0;
    fk.violation[0] = fk.lost_why[0] = 0;
    fk.counts = (fake_counts){0};
    fk.host_ns = 0;
}

static void begin_once(void) {
    if (fk.generation == 0) fk_reset();
    if (fk.random == 0 || fk.seed != fk.opt.seed) fk.random = fk.opt.seed * 0x2545f4914f6cdd1du | 1;
    fk.seed = fk.opt.seed;
}

/* ---- the table ---- */

static cu_api api;

static void make_api(void) {
    api = (cu_api){
        .name = "fake",
        .text = api_text,
        .init = api_init,
        .instances = api_instances,
        .device_count = api_device_count,
        .device_about = api_device_about,
        .device_health = api_device_health,
        .device_use = api_device_use,
        .device_blocking = api_device_blocking,
        .memory_info = api_memory_info,
    };
    fk_memory_api(&api);
    fk_vmm_api(&api);
    fk_stream_api(&api);
    fk_graph_api(&api);
    fk_lt_api(&api);
}

const cu_api *fake_api(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_api);
    return &api;
}
