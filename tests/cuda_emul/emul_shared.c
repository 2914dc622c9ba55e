/* emul_shared.c - the emulation as a shared object in place of inferd_cuda.so, so that the whole
 * daemon runs on it:
 *
 *     INFERD_CUDA_MODULE=.../inferd_cuda_emul.so inferd serve --device cuda --model tiny.gguf
 *
 * The process under test is steered from outside, by its environment when the module is opened
 *
 *     INFERD_FAKE_DEVICES     how many there are, 0 to 4
 *     INFERD_FAKE_MIG         1: they are MIG instances, of which CUDA shows one to a process
 *     INFERD_FAKE_MPS         1: an MPS server shares them
 *     INFERD_FAKE_MEMORY      MiB of each
 *     INFERD_FAKE_BAD         the device of this index fails whatever it is asked
 *     INFERD_FAKE_NO_DRIVER   1: no driver; old: one that is too old
 *     INFERD_FAKE_STARTING    so many tries say that the fabric manager has not started yet
 *     INFERD_FAKE_NO_NVML     1: nothing is known of their health
 *     INFERD_FAKE_NO_LT       1: no cuBLASLt
 *     INFERD_FAKE_LOSE_CALL   the first call of this name in cu_api loses the context
 *     INFERD_FAKE             what breaks, in the words of fake_script (fake_api.h)
 *     INFERD_FAKE_ORDERS      a named pipe
 *     INFERD_FAKE_LOSS        device: a lost context is that of one device; else of the process
 *
 * and while it runs by lines written to that pipe: "lose 1" ends the context of device 1, "gone 1"
 * lets NVML say that it is lost, "hang" lets the next event never come, and nothing gives up
 * waiting for it.
 *
 * A broken rule ends in "fake: rule broken" on standard output; at exit so does what was not given
 * back (unless the context was lost, or the process left by _exit).
 *
 * Thread: any; a thread of its own reads the pipe. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/module.h"

#include "fake_api.h"

enum { FOREVER_MS = 3600 * 1000 };

const cuda_module *emul_module(void);
cuda_module_fn inferd_cuda_module;

/* The number in a variable of the environment; `absent` without it.  Anything else ends the test.
 */
static uint32_t number(const char *name, uint32_t absent) {
    const char *text = getenv(name);
    char *end;
    if (text == NULL) return absent;
    unsigned long v = strtoul(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == 0 && v <= UINT32_MAX) return (uint32_t)v;
    fprintf(stderr, "%s=%s is not a number\n", name, text);
    abort();
}

static bool is(const char *name, const char *value) {
    const char *text = getenv(name);
    return text != NULL && strcmp(text, value) == 0;
}

static void hang(void) {
    fake_opts *o = fake_options();
    o->stuck_ms = FOREVER_MS;
    o->quiet = true; // that somebody waits for such an event is meant here
    fake_lose_event();
}

/* "lose 1": the word, and the index of a device. */
static bool is_order(const char *line, const char *word, uint32_t *index) {
    size_t n = strlen(word);
    if (strncmp(line, word, n) != 0 || line[n] != ' ') return false;
    *index = (uint32_t)strtoul(line + n, NULL, 10);
    return *index < FAKE_DEVICES_MAX;
}

static void *read_orders(void *path) {
    uint32_t index;
    char line[64];
    int fd = open(path, O_RDWR | O_CLOEXEC); // also a writer: it never ends
    FILE *in = fd >= 0 ? fdopen(fd, "r") : NULL;
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        if (is_order(line, "lose", &index))
            fake_lose_device(index);
        else if (is_order(line, "gone", &index))
            fake_options()->gone[index] = true;
        else if (strcmp(line, "hang\n") == 0)
            hang();
        else
            fprintf(stderr, "INFERD_FAKE_ORDERS: what is %s", line);
    }
    return NULL;
}

static void make_instance(cu_device *d) {
    memcpy(d->uuid, "MIG", 3);
    snprintf(d->name, sizeof d->name, "Fake H200 MIG 1g.18gb");
    d->mig = true;
}

static void steer(void) {
    fake_opts *o = fake_options();
    uint32_t n = number("INFERD_FAKE_DEVICES", 1), mib = number("INFERD_FAKE_MEMORY", 256);
    fake_set_devices(n);
    o->cuda_visible = is("INFERD_FAKE_MIG", "1");
    for (uint32_t i = 0; i < FAKE_DEVICES_MAX; i++) {
        o->device[i].memory_bytes = (uint64_t)mib << 20;
        o->device[i].mps = is("INFERD_FAKE_MPS", "1");
        if (is("INFERD_FAKE_MIG", "1")) make_instance(&o->device[i]);
        if (is("INFERD_FAKE_NO_NVML", "1")) {
            o->health[i].known = false;
            o->health[i].memory_used_bytes = -1;
        }
    }
    uint32_t bad = number("INFERD_FAKE_BAD", FAKE_DEVICES_MAX);
    if (bad < FAKE_DEVICES_MAX) o->bad[bad] = true;
    if (is("INFERD_FAKE_NO_DRIVER", "1")) o->driver = FAKE_DRIVER_NONE;
    if (is("INFERD_FAKE_NO_DRIVER", "old")) o->driver = FAKE_DRIVER_OLD;
    if (is("INFERD_FAKE_NO_LT", "1")) o->lt = false;
    o->starting = number("INFERD_FAKE_STARTING", 0);
    if (getenv("INFERD_FAKE_LOSE_CALL") != NULL)
        fake_fail_call(getenv("INFERD_FAKE_LOSE_CALL"), 1, CU_ELOST);
    const char *script = getenv("INFERD_FAKE");
    char why[CU_TEXT_BYTES];
    if (script != NULL && !fake_script(script, why, sizeof why)) {
        fprintf(stderr, "INFERD_FAKE: %s\n", why);
        abort();
    }
    o->lost_alone = is("INFERD_FAKE_LOSS", "device");
    char *orders = getenv("INFERD_FAKE_ORDERS");
    pthread_t thread;
    if (orders != NULL && pthread_create(&thread, NULL, read_orders, orders) == 0)
        pthread_detach(thread);
}

static void tell_leaks(void) {
    if (!fake_is_lost()) fake_leaks();
}

static void begin(void) {
    emul_module();
    fake_reset();
    steer();
    atexit(tell_leaks);
}

const cuda_module *inferd_cuda_module(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    return emul_module();
}
