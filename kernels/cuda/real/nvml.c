/* nvml.c - the device's health: temperature, power, memory of all processes, ECC, remapped rows.
 *
 * NVML comes with the driver and may be missing in a container, or know less inside one and on
 * instances of partitioned GPUs; each unknown number is negative and nothing fails.
 * Only "the GPU is lost" is a failure, from any call: while nothing is computed no other call would
 * notice.
 *
 * The few needed declarations are here, so that no NVML header is needed to build.
 * Devices are matched by UUID, because NVML counts them in another order than CUDA.
 *
 * Thread: any. */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "cuda/real/real.h"

typedef struct nvmlDevice_st *nvml_device;
typedef int nvml_return;
enum {
    NVML_OK = 0,
    NVML_GPU_IS_LOST = 15,
    NVML_TEMPERATURE_GPU = 0,
    NVML_ECC_UNCORRECTED = 1,
    NVML_ECC_VOLATILE = 0,
    /* reasons for lower clocks */
    NVML_SW_THERMAL = 0x20,
    NVML_HW_THERMAL = 0x40
};
typedef struct nvml_memory { // nvmlMemory_v2_t: `used` is without the driver's reserve
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory;
#define NVML_MEMORY_VERSION ((unsigned)(sizeof(nvml_memory) | (2u << 24)))
typedef struct nvml_memory_v1 {
    unsigned long long total, free, used;
} nvml_memory_v1;
typedef struct nvml_utilization {
    unsigned gpu, memory;
} nvml_utilization;

static struct {
    nvml_return (*init)(void);
    nvml_return (*by_uuid)(const char *, nvml_device *);
    nvml_return (*parent)(nvml_device, nvml_device *);
    nvml_return (*count)(unsigned *);
    nvml_return (*by_index)(unsigned, nvml_device *);
    nvml_return (*instances_max)(nvml_device, unsigned *);
    nvml_return (*instance)(nvml_device, unsigned, nvml_device *);
    nvml_return (*uuid)(nvml_device, char *, unsigned);
    nvml_return (*name)(nvml_device, char *, unsigned);
    nvml_return (*temperature)(nvml_device, int, unsigned *);
    nvml_return (*power)(nvml_device, unsigned *);
    nvml_return (*utilization)(nvml_device, nvml_utilization *);
    nvml_return (*memory)(nvml_device, nvml_memory *);
    nvml_return (*memory_v1)(nvml_device, nvml_memory_v1 *);
    nvml_return (*ecc)(nvml_device, int, int, unsigned long long *);
    nvml_return (*remapped)(nvml_device, unsigned *, unsigned *, unsigned *, unsigned *);
    nvml_return (*throttle)(nvml_device, unsigned long long *);
} nvml;
static bool there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
    static const struct {
        const char *name;
        void *slot;
    } symbols[] = {
        {"nvmlInit_v2", &nvml.init},
        {"nvmlDeviceGetHandleByUUID", &nvml.by_uuid},
        {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", &nvml.parent},
        {"nvmlDeviceGetCount_v2", &nvml.count},
        {"nvmlDeviceGetHandleByIndex_v2", &nvml.by_index},
        {"nvmlDeviceGetMaxMigDeviceCount", &nvml.instances_max},
        {"nvmlDeviceGetMigDeviceHandleByIndex", &nvml.instance},
        {"nvmlDeviceGetUUID", &nvml.uuid},
        {"nvmlDeviceGetName", &nvml.name},
        {"nvmlDeviceGetTemperature", &nvml.temperature},
        {"nvmlDeviceGetPowerUsage", &nvml.power},
        {"nvmlDeviceGetUtilizationRates", &nvml.utilization},
        {"nvmlDeviceGetMemoryInfo_v2", &nvml.memory},
        {"nvmlDeviceGetMemoryInfo", &nvml.memory_v1},
        {"nvmlDeviceGetTotalEccErrors", &nvml.ecc},
        {"nvmlDeviceGetRemappedRows", &nvml.remapped},
        {"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml.throttle},
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *fn = dlsym(library, symbols[i].name); // NULL: this driver lacks the call
        memcpy(symbols[i].slot, &fn, sizeof fn);
    }
    if (nvml.throttle == NULL) { // the newer name of the same call
        void *fn = dlsym(library, "nvmlDeviceGetCurrentClocksEventReasons");
        memcpy(&nvml.throttle, &fn, sizeof fn);
    }
    there = nvml.init != NULL && nvml.by_uuid != NULL && nvml.init() == NVML_OK;
}

/* The call succeeded; a lost GPU is recorded. */
static bool told(nvml_return r, bool *lost) {
    if (r == NVML_GPU_IS_LOST) *lost = true;
    return r == NVML_OK;
}

static int64_t memory_used(nvml_device d, bool *lost) {
    nvml_memory m = {.version = NVML_MEMORY_VERSION};
    if (nvml.memory != NULL && told(nvml.memory(d, &m), lost)) return (int64_t)m.used;
    nvml_memory_v1 old;
    if (nvml.memory_v1 != NULL && told(nvml.memory_v1(d, &old), lost)) return (int64_t)old.used;
    return -1;
}

/* Values that only the whole GPU has. */
static void read_gpu(nvml_device d, cu_health *out, bool *lost) {
    unsigned n = 0;
    unsigned long long big = 0;
    if (nvml.temperature != NULL && told(nvml.temperature(d, NVML_TEMPERATURE_GPU, &n), lost))
        out->temperature_c = (int32_t)n;
    if (nvml.power != NULL && told(nvml.power(d, &n), lost)) out->power_w = (int32_t)(n / 1000);
    if (nvml.ecc != NULL && told(nvml.ecc(d, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &big), lost))
        out->ecc_uncorrected = (int64_t)big;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (nvml.remapped != NULL &&
        told(nvml.remapped(d, &corrected, &uncorrected, &pending, &failed), lost)) {
        out->remapped_rows = uncorrected;
        out->remap_pending = pending != 0;
    }
    if (nvml.throttle != NULL && told(nvml.throttle(d, &big), lost))
        out->throttle_thermal = (big & (NVML_SW_THERMAL | NVML_HW_THERMAL)) != 0;
}

static cu_result gpu_lost(const real_identity *id) {
    return real_fail(CU_ELOST, "NVML: the GPU %s is lost (%d)", id->uuid, NVML_GPU_IS_LOST);
}

cu_result device_health(uint32_t index, cu_health *out) {
    *out = (cu_health){.temperature_c = -1,
                       .power_w = -1,
                       .utilization_pct = -1,
                       .memory_used_bytes = -1,
                       .ecc_uncorrected = -1,
                       .remapped_rows = -1,
                       .remap_pending = -1,
                       .throttle_thermal = -1};
    pthread_once(&once, open_library);
    if (!there) return CU_OK;
    real_identity id;
    cu_result result = real_identify(index, &id);
    if (result != CU_OK) return result;
    nvml_device d = NULL, gpu = NULL;
    bool lost = false;
    if (!told(nvml.by_uuid(id.uuid, &d), &lost)) return lost ? gpu_lost(&id) : CU_OK;
    out->known = true;
    out->memory_used_bytes = memory_used(d, &lost);
    nvml_utilization busy;
    if (nvml.utilization != NULL && told(nvml.utilization(d, &busy), &lost))
        out->utilization_pct = (int32_t)busy.gpu;
    bool instance = id.mig && nvml.parent != NULL && told(nvml.parent(d, &gpu), &lost);
    read_gpu(instance ? gpu : d, out, &lost);
    return lost ? gpu_lost(&id) : CU_OK;
}

/* ---- MIG instances ---- */

/* Add the instances of one GPU behind the first n; indices without an instance are skipped. */
static uint32_t add_instances(nvml_device gpu, uint32_t n_max, cu_instance *out, uint32_t n) {
    unsigned places = 0;
    if (nvml.instances_max(gpu, &places) != NVML_OK) return n; // this GPU has none
    for (unsigned i = 0; i < places && n < n_max; i++) {
        nvml_device d = NULL;
        out[n] = (cu_instance){0};
        if (nvml.instance(gpu, i, &d) != NVML_OK ||
            nvml.uuid(d, out[n].uuid, sizeof out[n].uuid) != NVML_OK)
            continue;
        if (nvml.name != NULL) nvml.name(d, out[n].name, sizeof out[n].name); // or without
        n++;
    }
    return n;
}

uint32_t list_instances(uint32_t n_max, cu_instance *out) {
    unsigned n_gpus = 0;
    uint32_t n = 0;
    pthread_once(&once, open_library);
    if (!there || nvml.count == NULL || nvml.by_index == NULL || nvml.instances_max == NULL ||
        nvml.instance == NULL || nvml.uuid == NULL || nvml.count(&n_gpus) != NVML_OK)
        return 0;
    for (unsigned i = 0; i < n_gpus; i++) {
        nvml_device gpu = NULL;
        if (nvml.by_index(i, &gpu) == NVML_OK) n = add_instances(gpu, n_max, out, n);
    }
    return n;
}
