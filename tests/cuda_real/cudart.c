/* cudart.c - the CUDA runtime and driver of test_cuda_real (stand_in.h). */
#include "stand_in.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

#undef cuDeviceGetUuid

stand_in said;

/* Note the call; the failure that the test wants for it. */
static cudaError_t asked(const char *call) {
    size_t n = strlen(said.calls);
    snprintf(said.calls + n, sizeof said.calls - n, "%s ", call);
    return said.fail_call != NULL && strcmp(said.fail_call, call) == 0 ? said.error : cudaSuccess;
}

/* What a call gives out when it works: any address that is not NULL. */
static void *thing(void) {
    static char things[64];
    return things;
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                            : "an error";
}

/* ---- devices ---- */

cudaError_t cudaDriverGetVersion(int *out) {
    *out = said.driver_version;
    return asked("cudaDriverGetVersion");
}
cudaError_t cudaRuntimeGetVersion(int *out) {
    *out = 13000;
    return asked("cudaRuntimeGetVersion");
}
cudaError_t cudaGetDeviceCount(int *out) {
    *out = said.n_devices;
    return asked("cudaGetDeviceCount");
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", said.device_name);
    out->major = 9;
    out->multiProcessorCount = 132 + device;
    out->sharedMemPerBlockOptin = 232448;
    out->sharedMemPerMultiprocessor = 233472;
    out->regsPerMultiprocessor = 65536;
    out->maxThreadsPerMultiProcessor = 2048;
    out->l2CacheSize = 60 << 20;
    out->totalGlobalMem = 141ull << 30;
    return asked("cudaGetDeviceProperties");
}
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr what, int device) {
    (void)device;
    *out = what == 133 && said.mps; // cudaDevAttrMpsEnabled
    return asked("cudaDeviceGetAttribute");
}
cudaError_t cudaSetDevice(int device) {
    said.device = device;
    return asked("cudaSetDevice");
}
cudaError_t cudaGetDevice(int *out) {
    *out = said.device;
    return asked("cudaGetDevice");
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
    said.flags = flags;
    return asked("cudaSetDeviceFlags");
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = 1000;
    *total_bytes = 3000;
    return asked("cudaMemGetInfo");
}

/* ---- memory ---- */

static cudaError_t give(const char *call, void **out) {
    cudaError_t e = asked(call);
    if (e == cudaSuccess) *out = thing();
    return e;
}
cudaError_t cudaMalloc(void **out, size_t n) {
    said.n_bytes = n;
    return give("cudaMalloc", out);
}
cudaError_t cudaFree(void *p) {
    (void)p;
    return asked("cudaFree");
}
cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags) {
    said.n_bytes = n;
    said.flags = flags;
    return give("cudaHostAlloc", out);
}
cudaError_t cudaFreeHost(void *p) {
    (void)p;
    return asked("cudaFreeHost");
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned flags) {
    (void)p;
    said.n_bytes = n;
    said.flags = flags;
    return asked("cudaHostRegister");
}
cudaError_t cudaHostUnregister(void *p) {
    (void)p;
    return asked("cudaHostUnregister");
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    (void)dst, (void)src, (void)s;
    said.n_bytes = n;
    said.copy_kind = (int)kind;
    return asked("cudaMemcpyAsync");
}
cudaError_t cudaMemsetAsync(void *p, int byte, size_t n, cudaStream_t s) {
    (void)p, (void)s;
    said.n_bytes = n;
    said.flags = (unsigned)byte;
    return asked("cudaMemsetAsync");
}

/* ---- streams and events ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return asked("cudaDeviceGetStreamPriorityRange");
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    said.flags = flags;
    said.priority = priority;
    return give("cudaStreamCreateWithPriority", (void **)out);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    (void)s;
    return asked("cudaStreamDestroy");
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    return asked("cudaStreamSynchronize");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    (void)s, (void)e;
    said.flags = flags;
    return asked("cudaStreamWaitEvent");
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    said.flags = flags;
    return give("cudaEventCreateWithFlags", (void **)out);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    (void)e;
    return asked("cudaEventDestroy");
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)e, (void)s;
    return asked("cudaEventRecord");
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    (void)e;
    return asked("cudaEventQuery");
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    return asked("cudaEventSynchronize");
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    (void)begin, (void)end;
    *ms = said.elapsed_ms;
    return asked("cudaEventElapsedTime");
}

/* ---- kernels and graphs ---- */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *fn) {
    memset(out, 0, sizeof *out);
    out->numRegs = 72;
    out->localSizeBytes = 8;
    out->sharedSizeBytes = 16;
    out->maxThreadsPerBlock = 256;
    out->maxDynamicSharedSizeBytes = said.shared_allowed;
    said.fn = fn;
    return asked("cudaFuncGetAttributes");
}
cudaError_t cudaFuncSetAttribute(const void *fn, enum cudaFuncAttribute what, int value) {
    (void)fn;
    if (what == cudaFuncAttributePreferredSharedMemoryCarveout)
        said.carveout = value;
    else
        said.shared_wanted = what == cudaFuncAttributeMaxDynamicSharedMemorySize ? value : -1;
    return asked("cudaFuncSetAttribute");
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *fn, int threads,
                                                          size_t shared_bytes) {
    (void)fn;
    *out = threads == 128 && shared_bytes == 4096 ? 5 : 1;
    return asked("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *fn, void **args) {
    said.config = *config;
    if (config->numAttrs > 0) said.attribute = config->attrs[0];
    said.fn = fn;
    memcpy(&said.first_param, args[0], sizeof said.first_param);
    return asked("cudaLaunchKernelExC");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode capture_mode) {
    (void)s;
    said.capture_mode = (int)capture_mode;
    return asked("cudaStreamBeginCapture");
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
    (void)s;
    cudaError_t e = give("cudaStreamEndCapture", (void **)out);
    said.n_graphs += e == cudaSuccess;
    return e;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph,
                                 unsigned long long flags) {
    (void)graph, (void)flags;
    cudaError_t e = give("cudaGraphInstantiate", (void **)out);
    said.n_execs += e == cudaSuccess;
    return e;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    (void)graph;
    said.n_graphs--;
    return asked("cudaGraphDestroy");
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    (void)exec;
    said.n_execs--;
    return asked("cudaGraphExecDestroy");
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) {
    (void)exec, (void)s;
    return asked("cudaGraphUpload");
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    (void)exec, (void)s;
    return asked("cudaGraphLaunch");
}

/* ---- the driver ---- */

static CUresult result(const char *call) {
    return (CUresult)asked(call);
}
static CUresult device_get(CUdevice *out, int index) {
    *out = index;
    return result("cuDeviceGet");
}
static CUresult device_get_name(char *out, int n, CUdevice device) {
    (void)device;
    snprintf(out, (size_t)n, "%s", said.device_name);
    return result("cuDeviceGetName");
}
static CUresult device_get_attribute(int *out, CUdevice_attribute what, CUdevice device) {
    (void)device;
    *out = what == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return result("cuDeviceGetAttribute");
}
static CUresult get_uuid(CUuuid *out, CUdevice device) {
    memset(out, said.uuid + device, sizeof *out);
    return result("cuDeviceGetUuid");
}
static CUresult get_uuid_parent(CUuuid *out, CUdevice device) {
    memset(out, said.uuid_parent + device, sizeof *out);
    return CUDA_SUCCESS;
}
static CUresult get_granularity(size_t *out, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags flags) {
    *out = 2 << 20;
    said.location = prop->location.id;
    said.granularity_flags = flags;
    return result("cuMemGetAllocationGranularity");
}
static CUresult address_reserve(CUdeviceptr *out, size_t n, size_t align, CUdeviceptr at,
                                unsigned long long flags) {
    *out = 0x700000000000 + align + at + flags;
    said.n_bytes = n;
    return result("cuMemAddressReserve");
}
static CUresult address_free(CUdeviceptr p, size_t n) {
    (void)p;
    said.n_bytes = n;
    return result("cuMemAddressFree");
}
static CUresult create(CUmemGenericAllocationHandle *out, size_t n, const CUmemAllocationProp *prop,
                       unsigned long long flags) {
    *out = 77;
    said.n_bytes = n;
    said.location = prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                            prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && flags == 0
                        ? prop->location.id
                        : -1;
    return result("cuMemCreate");
}
static CUresult release(CUmemGenericAllocationHandle h) {
    said.handle = h;
    return result("cuMemRelease");
}
static CUresult map(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h,
                    unsigned long long flags) {
    (void)p;
    said.n_bytes = n + offset + flags; // the last two are 0
    said.handle = h;
    return result("cuMemMap");
}
static CUresult unmap(CUdeviceptr p, size_t n) {
    (void)p;
    said.n_bytes = n;
    return result("cuMemUnmap");
}
static CUresult set_access(CUdeviceptr p, size_t n, const CUmemAccessDesc *access,
                           size_t n_access) {
    (void)p;
    said.n_bytes = n;
    said.location = n_access == 1 ? access->location.id : -1;
    said.access_flags = (int)access->flags;
    return result("cuMemSetAccess");
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    static const struct {
        const char *name;
        unsigned version; // the lowest for which the name means this function
        void (*fn)(void);
    } functions[] = {
        {"cuDeviceGet", 2000, (void (*)(void))device_get},
        {"cuDeviceGetName", 2000, (void (*)(void))device_get_name},
        {"cuDeviceGetAttribute", 2000, (void (*)(void))device_get_attribute},
        {"cuDeviceGetUuid", 11040, (void (*)(void))get_uuid},
        {"cuDeviceGetUuid", 9020, (void (*)(void))get_uuid_parent},
        {"cuMemGetAllocationGranularity", 10020, (void (*)(void))get_granularity},
        {"cuMemAddressReserve", 10020, (void (*)(void))address_reserve},
        {"cuMemAddressFree", 10020, (void (*)(void))address_free},
        {"cuMemCreate", 10020, (void (*)(void))create},
        {"cuMemRelease", 10020, (void (*)(void))release},
        {"cuMemMap", 10020, (void (*)(void))map},
        {"cuMemUnmap", 10020, (void (*)(void))unmap},
        {"cuMemSetAccess", 10020, (void (*)(void))set_access},
    };
    (void)flags;
    *out = NULL;
    *found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t e = asked(name);
    if (e != cudaSuccess) return e;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) != 0 || version < functions[i].version) continue;
        if (version < 11040 && strcmp(name, "cuDeviceGetUuid") == 0 && said.no_parent_uuid) break;
        memcpy(out, &functions[i].fn, sizeof *out);
        *found = cudaDriverEntryPointSuccess;
        break;
    }
    return cudaSuccess;
}
