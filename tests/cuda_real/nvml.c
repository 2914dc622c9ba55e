/* nvml.c - libnvidia-ml.so.1 of test_cuda_real: one GPU with an instance in it.  Signatures and
 * numbers are those of NVML's documentation, written here a second time.
 *
 * It has symbols of its own.  stand_in_nvml: 0, or what the search for a device returns;
 * stand_in_nvml_power: the same of a question to a device that was found. */
#include <stddef.h>
#include <string.h>

typedef struct device {
    const char *uuid;
    int is_instance;
} device;
static device gpu = {"GPU-11111111-1111-1111-1111-111111111111", 0};
static device instance = {"MIG-22222222-2222-2222-2222-222222222222", 1};
enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };

extern int stand_in_nvml;
extern int stand_in_nvml_power;
int stand_in_nvml_power;
int stand_in_nvml;

int nvmlInit_v2(void);
int nvmlInit_v2(void) {
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device **out);
int nvmlDeviceGetHandleByUUID(const char *uuid, device **out) {
    if (stand_in_nvml != 0) return stand_in_nvml;
    *out = strcmp(uuid, gpu.uuid) == 0 ? &gpu : strcmp(uuid, instance.uuid) == 0 ? &instance : NULL;
    return *out == NULL ? NOT_FOUND : OK;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **out);
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device *d, device **out) {
    *out = &gpu;
    return d->is_instance ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out);
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *out) {
    *out = 63;
    return d->is_instance ? NOT_SUPPORTED : sensor == 0 ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetPowerUsage(device *d, unsigned *out);
int nvmlDeviceGetPowerUsage(device *d, unsigned *out) {
    *out = 512900; // milliwatts
    if (stand_in_nvml_power != 0) return stand_in_nvml_power;
    return d->is_instance ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned out[2]);
int nvmlDeviceGetUtilizationRates(device *d, unsigned out[2]) {
    out[0] = 87;
    out[1] = 12;
    return d->is_instance ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, void *out);
int nvmlDeviceGetMemoryInfo_v2(device *d, void *out) {
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } m;
    memcpy(&m, out, sizeof m);
    if (m.version != (sizeof m | 2u << 24)) return VERSION_MISMATCH;
    m.total = 1000;
    m.reserved = 100;
    m.free = 500;
    m.used = d->is_instance ? 40 : 400;
    memcpy(out, &m, sizeof m);
    return OK;
}
int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *out);
int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, unsigned long long *out) {
    *out = kind == 1 && counter == 0 ? 3 : 99; // uncorrected, volatile
    return d->is_instance ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed);
int nvmlDeviceGetRemappedRows(device *d, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    *corrected = 7;
    *uncorrected = 2;
    *pending = 1;
    *failed = 0;
    return d->is_instance ? NOT_SUPPORTED : OK;
}
/* No nvmlDeviceGetCurrentClocksThrottleReasons: this driver has only the newer name. */
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *out);
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *out) {
    *out = 0x4 | 0x40; // power cap, hardware thermal slowdown
    return d->is_instance ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetCount_v2(unsigned *out) {
    *out = 1;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    *out = &gpu;
    return index == 0 ? OK : INVALID_ARGUMENT;
}
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out);
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out) {
    *out = 7;
    return d->is_instance ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out);
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **out) {
    *out = &instance;
    return d->is_instance ? INVALID_ARGUMENT : index == 3 ? OK : NOT_FOUND; // one of seven places
}
int nvmlDeviceGetUUID(device *d, char *out, unsigned n);
int nvmlDeviceGetUUID(device *d, char *out, unsigned n) {
    if (strlen(d->uuid) >= n) return INVALID_ARGUMENT;
    strcpy(out, d->uuid);
    return OK;
}
int nvmlDeviceGetName(device *d, char *out, unsigned n);
int nvmlDeviceGetName(device *d, char *out, unsigned n) {
    const char *name = d->is_instance ? "NVIDIA H200 MIG 1g.18gb" : "NVIDIA H200";
    if (strlen(name) >= n) return INVALID_ARGUMENT;
    strcpy(out, name);
    return OK;
}
