/* vmm.c - virtual memory and identity of the device: the calls that only the driver has.
 *
 * The driver's library is never linked: the runtime returns its entry points by name and version,
 * so the module also opens on machines without a driver.  They are looked up once, at first use.
 *
 * Driver and runtime number their failures alike, so real_result classifies both.
 *
 * Thread: any. */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "cuda/real/real.h"

typedef CUresult device_get_fn(CUdevice *, int);
typedef CUresult device_get_attribute_fn(int *, CUdevice_attribute, CUdevice);
typedef CUresult device_get_name_fn(char *, int, CUdevice);
typedef CUresult device_get_uuid_fn(CUuuid *, CUdevice);
typedef CUresult get_granularity_fn(size_t *, const CUmemAllocationProp *,
                                    CUmemAllocationGranularity_flags);
typedef CUresult address_reserve_fn(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
typedef CUresult address_free_fn(CUdeviceptr, size_t);
typedef CUresult create_fn(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                           unsigned long long);
typedef CUresult release_fn(CUmemGenericAllocationHandle);
typedef CUresult map_fn(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                        unsigned long long);
typedef CUresult unmap_fn(CUdeviceptr, size_t);
typedef CUresult set_access_fn(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);

static struct {
    device_get_fn *device_get;
    device_get_attribute_fn *device_get_attribute;
    device_get_name_fn *name;
    device_get_uuid_fn *uuid;        // an instance of a partitioned GPU has its own
    device_get_uuid_fn *uuid_parent; // NULL if the driver no longer has the older call
    get_granularity_fn *granularity;
    address_reserve_fn *reserve;
    address_free_fn *unreserve;
    create_fn *create;
    release_fn *release;
    map_fn *map;
    unmap_fn *unmap;
    set_access_fn *access;
} driver;

typedef struct entry {
    const char *name;
    unsigned version; // of CUDA, in which the call got the form that is declared above
    void *slot;
    bool optional;
} entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool ready;

static cu_result look_up(void) {
    const entry entries[] = {
        {"cuDeviceGet", 2000, &driver.device_get, false},
        {"cuDeviceGetAttribute", 2000, &driver.device_get_attribute, false},
        {"cuDeviceGetName", 2000, &driver.name, false},
        {"cuDeviceGetUuid", 11040, &driver.uuid, false},
        {"cuDeviceGetUuid", 9020, &driver.uuid_parent, true},
        {"cuMemGetAllocationGranularity", 10020, &driver.granularity, false},
        {"cuMemAddressReserve", 10020, &driver.reserve, false},
        {"cuMemAddressFree", 10020, &driver.unreserve, false},
        {"cuMemCreate", 10020, &driver.create, false},
        {"cuMemRelease", 10020, &driver.release, false},
        {"cuMemMap", 10020, &driver.map, false},
        {"cuMemUnmap", 10020, &driver.unmap, false},
        {"cuMemSetAccess", 10020, &driver.access, false},
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        const entry *wanted = &entries[i];
        void *fn = NULL;
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        cudaError_t e = cudaGetDriverEntryPointByVersion(wanted->name, &fn, wanted->version,
                                                         cudaEnableDefault, &found);
        bool there = e == cudaSuccess && found == cudaDriverEntryPointSuccess && fn != NULL;
        if (!there && !wanted->optional)
            return e != cudaSuccess
                       ? real_result(wanted->name, e)
                       : real_fail(CU_EDRIVER, "the NVIDIA driver has no %s of CUDA %u.%u",
                                   wanted->name, wanted->version / 1000,
                                   wanted->version % 1000 / 10);
        if (!there) {
            cudaGetLastError();
            fn = NULL;
        }
        memcpy(wanted->slot, &fn, sizeof fn); // the slots are pointers to functions of many types
    }
    return CU_OK;
}

static cu_result need_driver(void) {
    if (atomic_load_explicit(&ready, memory_order_acquire)) return CU_OK;
    pthread_mutex_lock(&lock);
    cu_result result = atomic_load(&ready) ? CU_OK : look_up();
    if (result == CU_OK) atomic_store_explicit(&ready, true, memory_order_release);
    pthread_mutex_unlock(&lock);
    return result;
}

static cu_result result_of(const char *call, CUresult r) {
    return real_result(call, (cudaError_t)r);
}

/* ---- identity ---- */

cu_result real_identify(uint32_t index, real_identity *out) {
    memset(out, 0, sizeof *out);
    cu_result result = need_driver();
    if (result != CU_OK) return result;
    CUdevice device = 0;
    CUuuid id, parent;
    char name[CU_NAME_BYTES] = "";
    int vmm = 0;
    result = result_of("cuDeviceGet", driver.device_get(&device, (int)index));
    if (result == CU_OK)
        result = result_of("cuDeviceGetName", driver.name(name, sizeof name - 1, device));
    if (result == CU_OK) result = result_of("cuDeviceGetUuid", driver.uuid(&id, device));
    if (result == CU_OK)
        result =
            result_of("cuDeviceGetAttribute",
                      driver.device_get_attribute(
                          &vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    if (result != CU_OK) return result;
    // Instances are named "NVIDIA H200 MIG 1g.18gb", and the older call returns the whole
    // GPU's UUID; either identifies an instance.
    out->mig = strstr(name, " MIG ") != NULL ||
               (driver.uuid_parent != NULL && driver.uuid_parent(&parent, device) == CUDA_SUCCESS &&
                memcmp(&parent, &id, sizeof id) != 0);
    out->vmm = vmm != 0;
    const unsigned char *b = (const unsigned char *)id.bytes;
    snprintf(out->uuid, sizeof out->uuid,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             out->mig ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9],
             b[10], b[11], b[12], b[13], b[14], b[15]);
    return CU_OK;
}

/* ---- virtual memory, of the device that the calling thread uses ---- */

static cu_result properties(CUmemAllocationProp *out) {
    int device = 0;
    cu_result result = need_driver();
    if (result == CU_OK) result = real_result("cudaGetDevice", cudaGetDevice(&device));
    *out = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    return result;
}

cu_result vmm_granularity(size_t *out) {
    CUmemAllocationProp prop;
    *out = 0;
    cu_result result = properties(&prop);
    if (result != CU_OK) return result;
    return result_of("cuMemGetAllocationGranularity",
                     driver.granularity(out, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

cu_result vmm_reserve(size_t n, size_t align, void **out) {
    CUdeviceptr p = 0;
    *out = NULL;
    cu_result result = need_driver();
    if (result == CU_OK)
        result = result_of("cuMemAddressReserve", driver.reserve(&p, n, align, 0, 0));
    if (result == CU_OK) *out = (void *)(uintptr_t)p;
    return result;
}

cu_result vmm_unreserve(void *p, size_t n) {
    cu_result result = need_driver();
    if (result != CU_OK) return result;
    return result_of("cuMemAddressFree", driver.unreserve((CUdeviceptr)(uintptr_t)p, n));
}

cu_result vmm_create(size_t n, cu_handle *out) {
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle handle = 0;
    *out = 0;
    cu_result result = properties(&prop);
    if (result == CU_OK) result = result_of("cuMemCreate", driver.create(&handle, n, &prop, 0));
    if (result == CU_OK) *out = handle;
    return result;
}

cu_result vmm_release(cu_handle h) {
    cu_result result = need_driver();
    if (result != CU_OK) return result;
    return result_of("cuMemRelease", driver.release(h));
}

cu_result vmm_map(void *p, size_t n, cu_handle h) {
    cu_result result = need_driver();
    if (result != CU_OK) return result;
    return result_of("cuMemMap", driver.map((CUdeviceptr)(uintptr_t)p, n, 0, h, 0));
}

cu_result vmm_unmap(void *p, size_t n) {
    cu_result result = need_driver();
    if (result != CU_OK) return result;
    return result_of("cuMemUnmap", driver.unmap((CUdeviceptr)(uintptr_t)p, n));
}

cu_result vmm_access(void *p, size_t n) {
    CUmemAllocationProp prop;
    cu_result result = properties(&prop);
    if (result != CU_OK) return result;
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return result_of("cuMemSetAccess", driver.access((CUdeviceptr)(uintptr_t)p, n, &access, 1));
}
