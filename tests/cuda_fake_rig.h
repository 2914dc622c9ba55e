/* cuda_fake_rig.h - what the tests of the fake itself share: kernels that are C functions, which
 * options.execute calls, so that no emulator is needed, and short words for the usual calls. */
#ifndef INFERD_CUDA_FAKE_RIG_H
#define INFERD_CUDA_FAKE_RIG_H

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_rig.h"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifndef WITH_ASAN
#define WITH_ASAN 0
#endif

enum { GRAIN = 64 << 10 }; // granularity of VMM here

/* ---- kernels ---- */

typedef struct add_params {
    uint32_t *x;
    uint32_t n, v;
} add_params;
static inline void add(const void *params) { // x[i] += v
    const add_params *p = params;
    for (uint32_t i = 0; i < p->n; i++) p->x[i] += p->v;
}

typedef struct push_params { // appends v to a list in device memory: [count, v, v, ...]
    uint32_t *list;
    uint32_t v, pad;
} push_params;
static inline void push(const void *params) {
    const push_params *p = params;
    p->list[1 + p->list[0]++] = p->v;
}

typedef struct store_params {
    unsigned char *p;
    uint32_t v, pad;
} store_params;
static inline void store_byte(const void *params) {
    const store_params *p = params;
    *p->p = (unsigned char)p->v;
}

static inline void fails(const void *params) {
    (void)params;
}

enum { ADD, PUSH, STORE, FAILS, NEW_ONLY, N_KERNELS };
static const cu_kernel kernels[N_KERNELS] = {
    {"add", (const void *)add, sizeof(add_params), 256, 80},
    {"push", (const void *)push, sizeof(push_params), 1024, 80},
    {"store", (const void *)store_byte, sizeof(store_params), 32, 80},
    {"fails", (const void *)fails, 8, 32, 80},
    {"new_only", (const void *)&kernels[NEW_ONLY], 8, 32, 90},
};

static inline bool run_c(const void *fn, const uint32_t grid[3], uint32_t threads,
                         uint32_t shared_bytes, const void *params, uint32_t params_bytes,
                         uint32_t threads_max, char *why, size_t why_bytes) {
    (void)grid, (void)threads, (void)shared_bytes, (void)params_bytes, (void)threads_max;
    if (fn == (const void *)fails) {
        snprintf(why, why_bytes, "a rule of the emulator");
        return false;
    }
    void (*run)(const void *);
    memcpy(&run, &fn, sizeof run);
    run(params);
    return true;
}

/* ---- a device in use ---- */

static const cu_api *api;

static inline fake_opts *begin(void) {
    static bool added;
    api = fake_api();
    if (!added) fake_add_kernels(kernels, N_KERNELS);
    added = true;
    fake_reset();
    fake_opts *o = fake_options();
    o->execute = run_c;
    o->quiet = true;
    o->granularity = GRAIN;
    EXPECT_EQ(api->init(), CU_OK);
    EXPECT_EQ(api->device_use(0), CU_OK);
    return o;
}

static inline void end(void) {
    EXPECT_EQ(fake_violations(), 0);
    if (fake_violations() > 0) printf("  %s\n", fake_last_violation());
    EXPECT_EQ(fake_leaks(), 0);
    EXPECT_EQ(fake_reset(), 0);
}

/* The rule was broken once, and said so. */
static inline void expect_violation(const char *part) {
    EXPECT_EQ(fake_violations(), 1);
    if (strstr(fake_last_violation(), part) == NULL) {
        printf("the violation is \"%s\", expected \"%s\" in it\n", fake_last_violation(), part);
        test_failures++;
    }
    fake_take_violations();
}

static inline void expect_text(const char *part) {
    if (strstr(api->text(), part) != NULL) return;
    printf("the text is \"%s\", expected \"%s\" in it\n", api->text(), part);
    test_failures++;
}

static inline cu_stream stream(void) {
    cu_stream s = NULL;
    EXPECT_EQ(api->stream_create(false, &s), CU_OK);
    return s;
}
static inline cu_event event(bool timed) {
    cu_event e = NULL;
    EXPECT_EQ(api->event_create(timed, &e), CU_OK);
    return e;
}
static inline void *device_bytes(size_t n) {
    void *p = NULL;
    EXPECT_EQ(api->alloc(n, &p), CU_OK);
    return p;
}
static inline uint32_t *device_words(uint32_t n) { // zeros
    uint32_t *p = device_bytes(n * 4), zero = 0;
    for (uint32_t i = 0; i < n; i++) fake_poke(&p[i], &zero, 4);
    return p;
}
static inline uint32_t word_at(const uint32_t *p) {
    uint32_t v = 0xdeadbeef;
    EXPECT(fake_peek(p, &v, 4));
    return v;
}
static inline void *reserved(size_t n) {
    void *p = NULL;
    EXPECT_EQ(api->vmm_reserve(n, 0, &p), CU_OK);
    return p;
}
static inline cu_handle created(size_t n) {
    cu_handle h = 0;
    EXPECT_EQ(api->vmm_create(n, &h), CU_OK);
    return h;
}
static inline cu_result launch_fn(int which, const void *params, cu_stream s) {
    cu_launch l = {.fn = kernels[which].fn,
                   .grid = {1, 1, 1},
                   .threads = 32,
                   .params = params,
                   .params_bytes = kernels[which].params_bytes};
    return api->launch(&l, s);
}
static inline void push_word(uint32_t *list, uint32_t v, cu_stream s) {
    push_params p = {list, v, 0};
    EXPECT_EQ(launch_fn(PUSH, &p, s), CU_OK);
}
static inline cu_result store_at(void *p, uint8_t v, cu_stream s) {
    store_params params = {p, v, 0};
    return launch_fn(STORE, &params, s);
}

static inline bool dies(void (*f)(void *), void *arg) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(0);
        f(arg);
        _exit(0);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status != 0;
}

#endif
