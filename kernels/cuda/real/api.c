/* api.c - cu_api on the CUDA runtime: devices, memory, streams, kernels, graphs.
 *
 * One short function per call.  The classification of failures needs care:
 *
 *     the arguments or the moment are wrong      CU_EINVAL       the caller has a bug
 *     this machine cannot                        CU_EUNSUPPORTED, CU_ENODEVICE, CU_EDRIVER
 *     this machine cannot yet                    CU_ESTARTING    its services are still starting
 *     the work failed, the context lives on      CU_EFAILED, CU_ENOMEM
 *     the context is gone                        CU_ELOST        a new process is needed
 *
 * The runtime's documentation says of each error whether the process can go on ("leaves the process
 * in an inconsistent state").  Devices that vanish after one was used are lost too, with any error
 * number.
 *
 * Thread: any. */
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/real/real.h"

enum {
    DRIVER_MIN = 580,       // first driver branch of CUDA 13
    PARAMS_BYTES_MAX = 4096 // of a kernel, on every compute capability
};

static _Thread_local char text[CU_TEXT_BYTES];
static atomic_bool used; // a device was in use: from then on a missing device is a lost one

const char *real_text(void) {
    return text;
}

cu_result real_fail(cu_result result, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return result;
}

/* `midway`: a device was in use, so a missing device has been lost. */
static cu_result class_of(cudaError_t e, bool midway) {
    switch ((int)e) {
    case cudaSuccess:
        return CU_OK;
    case cudaErrorNotReady:
        return CU_NOT_READY;
    case cudaErrorMemoryAllocation:
        return CU_ENOMEM;

    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidSymbol:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidDevice:
    case cudaErrorDeviceUninitialized: // this thread has not selected a device
    case cudaErrorAlreadyMapped:
    case cudaErrorNotMapped:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorIllegalState:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
        return CU_EINVAL;

    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorSymbolNotFound:
    case cudaErrorNotPermitted:
    case cudaErrorNotSupported:
        return CU_EUNSUPPORTED;

    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
        return CU_EDRIVER;

    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorDeviceNotLicensed:
    case cudaErrorStartupFailure:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
        return midway ? CU_ELOST : CU_ENODEVICE;

    case cudaErrorSystemNotReady:    // boards with NVSwitch, while the fabric manager starts
    case cudaErrorMpsServerNotReady: // the server recovers from a fault of one of its clients
        return midway ? CU_ELOST : CU_ESTARTING;

    case cudaErrorUnknown: // with work on the device nothing can be trusted any more
        return midway ? CU_ELOST : CU_EFAILED;

    case cudaErrorCudartUnloading:
    case cudaErrorPriorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
        return CU_ELOST;

    default:
        return CU_EFAILED;
    }
}

static cu_result result_of(const char *call, cudaError_t e, bool midway) {
    cu_result result = class_of(e, midway);
    if (result == CU_OK || result == CU_NOT_READY) return result;
    cudaGetLastError(); // clears the error, so that the next launch does not return it again
    return real_fail(result, "%s: %s (%d)", call, cudaGetErrorString(e), (int)e);
}

cu_result real_result(const char *call, cudaError_t e) {
    return result_of(call, e, atomic_load(&used));
}

/* The result of a call that queries or opens a device: this device is not in use yet. */
static cu_result opening(const char *call, cudaError_t e) {
    return result_of(call, e, false);
}

/* ---- devices ---- */

static cu_result driver_too_old(int driver, int runtime) {
    return real_fail(
        CU_EDRIVER,
        "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d: install driver %d "
        "or newer",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, DRIVER_MIN);
}

static cu_result not_yet(cudaError_t e) {
    cudaGetLastError();
    return real_fail(CU_ESTARTING, "cudaGetDeviceCount: %s (%d): %s", cudaGetErrorString(e), (int)e,
                     e == cudaErrorSystemNotReady
                         ? "NVIDIA's fabric manager has not started yet (systemctl status "
                           "nvidia-fabricmanager)"
                         : "the MPS server is not ready for another client");
}

static cu_result init(void) {
    int driver = 0, runtime = 0, n = 0;
    cudaError_t e = cudaDriverGetVersion(&driver); // 0: there is no driver
    if (e == cudaSuccess) e = cudaRuntimeGetVersion(&runtime);
    if (e != cudaSuccess) return opening("cudaDriverGetVersion", e);
    if (driver == 0)
        return real_fail(
            CU_ENODEVICE,
            "no NVIDIA driver: libcuda.so.1 was not found or cannot be loaded; install "
            "driver %d or newer",
            DRIVER_MIN);
    if (driver / 1000 < runtime / 1000) return driver_too_old(driver, runtime);
    e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver) return driver_too_old(driver, runtime);
    if (e == cudaErrorSystemNotReady || e == cudaErrorMpsServerNotReady) return not_yet(e);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0)) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        cudaGetLastError();
        return visible == NULL
                   ? real_fail(CU_ENODEVICE, "the NVIDIA driver is loaded and reports no device")
                   : real_fail(CU_ENODEVICE,
                               "no NVIDIA device is visible with CUDA_VISIBLE_DEVICES=\"%s\"",
                               visible);
    }
    return opening("cudaGetDeviceCount", e);
}

static cu_result device_count(uint32_t *out) {
    int n = 0;
    cu_result result = opening("cudaGetDeviceCount", cudaGetDeviceCount(&n));
    *out = result == CU_OK ? (uint32_t)n : 0;
    return result;
}

/* A fault of another client of the MPS server ends this process's context as well. */
static bool is_mps_client(uint32_t index) {
    int on = 0;
    cudaError_t e = cudaDeviceGetAttribute(&on, cudaDevAttrMpsEnabled, (int)index);
    if (e != cudaSuccess) cudaGetLastError(); // a driver that does not support the query
    return e == cudaSuccess && on != 0;
}

static cu_result device_about(uint32_t index, cu_device *out) {
    memset(out, 0, sizeof *out);
    struct cudaDeviceProp p;
    cu_result result = opening("cudaGetDeviceProperties", cudaGetDeviceProperties(&p, (int)index));
    if (result != CU_OK) return result;
    real_identity id;
    result = real_identify(index, &id);
    if (result != CU_OK) return result;
    int driver = 0, runtime = 0;
    result = real_result("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
    if (result != CU_OK) return result;
    result = real_result("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
    if (result != CU_OK) return result;
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, p.name);
    memcpy(out->uuid, id.uuid, sizeof out->uuid);
    out->cc_major = (uint32_t)p.major;
    out->cc_minor = (uint32_t)p.minor;
    out->n_sms = (uint32_t)p.multiProcessorCount;
    out->shared_bytes_max = (uint32_t)p.sharedMemPerBlockOptin;
    out->shared_bytes_sm = (uint32_t)p.sharedMemPerMultiprocessor;
    out->registers_sm = (uint32_t)p.regsPerMultiprocessor;
    out->threads_sm_max = (uint32_t)p.maxThreadsPerMultiProcessor;
    out->l2_bytes = (uint64_t)p.l2CacheSize;
    out->memory_bytes = p.totalGlobalMem;
    out->mig = id.mig;
    out->vmm = id.vmm;
    out->mps = is_mps_client(index);
    out->driver_version = driver;
    out->runtime_version = runtime;
    return CU_OK;
}

static cu_result device_use(uint32_t index) {
    cu_result result = opening("cudaSetDevice", cudaSetDevice((int)index));
    if (result == CU_OK) atomic_store(&used, true);
    return result;
}

static cu_result device_blocking(void) {
    return real_result("cudaSetDeviceFlags", cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
}

static cu_result memory_info(uint64_t *free_bytes, uint64_t *total_bytes) {
    size_t free_now = 0, total = 0;
    cu_result result = real_result("cudaMemGetInfo", cudaMemGetInfo(&free_now, &total));
    *free_bytes = free_now;
    *total_bytes = total;
    return result;
}

/* ---- memory ---- */

static cu_result alloc(size_t n, void **out) {
    *out = NULL;
    return real_result("cudaMalloc", cudaMalloc(out, n));
}
static cu_result free_device(void *p) {
    return real_result("cudaFree", cudaFree(p));
}
/* Portable: one host arena serves the devices of all engines. */
static cu_result host_alloc(size_t n, void **out) {
    *out = NULL;
    return real_result("cudaHostAlloc", cudaHostAlloc(out, n, cudaHostAllocPortable));
}
static cu_result host_free(void *p) {
    return real_result("cudaFreeHost", cudaFreeHost(p));
}
static cu_result host_pin(void *p, size_t n) {
    return real_result("cudaHostRegister", cudaHostRegister(p, n, cudaHostRegisterPortable));
}
static cu_result host_unpin(void *p) {
    return real_result("cudaHostUnregister", cudaHostUnregister(p));
}

/* ---- streams and events ---- */

static cu_result stream_create(bool urgent, cu_stream *out) {
    *out = NULL;
    int least = 0, greatest = 0;
    cu_result result = real_result("cudaDeviceGetStreamPriorityRange",
                                   cudaDeviceGetStreamPriorityRange(&least, &greatest));
    if (result != CU_OK) return result;
    return real_result("cudaStreamCreateWithPriority",
                       cudaStreamCreateWithPriority((cudaStream_t *)out, cudaStreamNonBlocking,
                                                    urgent ? greatest : least));
}
static cu_result stream_destroy(cu_stream s) {
    return real_result("cudaStreamDestroy", cudaStreamDestroy((cudaStream_t)s));
}
static cu_result stream_sync(cu_stream s) {
    return real_result("cudaStreamSynchronize", cudaStreamSynchronize((cudaStream_t)s));
}
static cu_result stream_wait(cu_stream s, cu_event e) {
    return real_result("cudaStreamWaitEvent",
                       cudaStreamWaitEvent((cudaStream_t)s, (cudaEvent_t)e, 0));
}
static cu_result event_create(uint32_t flags, cu_event *out) {
    *out = NULL;
    unsigned wanted = (flags & CU_EVENT_TIMED) != 0 ? cudaEventDefault : cudaEventDisableTiming;
    if ((flags & CU_EVENT_BLOCKING) != 0) wanted |= cudaEventBlockingSync;
    return real_result("cudaEventCreateWithFlags",
                       cudaEventCreateWithFlags((cudaEvent_t *)out, wanted));
}
static cu_result event_destroy(cu_event e) {
    return real_result("cudaEventDestroy", cudaEventDestroy((cudaEvent_t)e));
}
static cu_result event_record(cu_event e, cu_stream s) {
    return real_result("cudaEventRecord", cudaEventRecord((cudaEvent_t)e, (cudaStream_t)s));
}
static cu_result event_query(cu_event e) {
    return real_result("cudaEventQuery", cudaEventQuery((cudaEvent_t)e));
}
static cu_result event_sync(cu_event e) {
    return real_result("cudaEventSynchronize", cudaEventSynchronize((cudaEvent_t)e));
}
static cu_result event_elapsed_us(cu_event begin, cu_event end, uint64_t *out) {
    float ms = 0;
    *out = 0;
    cu_result result = real_result("cudaEventElapsedTime",
                                   cudaEventElapsedTime(&ms, (cudaEvent_t)begin, (cudaEvent_t)end));
    if (result == CU_OK && ms > 0) *out = (uint64_t)llround((double)ms * 1000);
    return result;
}

static cu_result copy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cu_stream s) {
    if (n == 0) return CU_OK;
    return real_result("cudaMemcpyAsync", cudaMemcpyAsync(dst, src, n, kind, (cudaStream_t)s));
}
static cu_result copy_to_device(void *dst, const void *src, size_t n, cu_stream s) {
    return copy(dst, src, n, cudaMemcpyHostToDevice, s);
}
static cu_result copy_to_host(void *dst, const void *src, size_t n, cu_stream s) {
    return copy(dst, src, n, cudaMemcpyDeviceToHost, s);
}
static cu_result copy_on_device(void *dst, const void *src, size_t n, cu_stream s) {
    return copy(dst, src, n, cudaMemcpyDeviceToDevice, s);
}
static cu_result fill(void *dst, uint8_t byte, size_t n, cu_stream s) {
    if (n == 0) return CU_OK;
    return real_result("cudaMemsetAsync", cudaMemsetAsync(dst, byte, n, (cudaStream_t)s));
}

/* ---- kernels and graphs ---- */

static cu_result kernel_carve_out(const void *fn) {
    return real_result("cudaFuncSetAttribute",
                       cudaFuncSetAttribute(fn, cudaFuncAttributePreferredSharedMemoryCarveout,
                                            cudaSharedmemCarveoutMaxShared));
}

/* Querying the attributes loads the code, so that later launches need not, also while a capture is
 * open.  The allowed size only grows, because one kernel may be launched with several sizes. */
static cu_result kernel_load(const void *fn, uint32_t threads, uint32_t shared_bytes,
                             cu_function_info *out) {
    memset(out, 0, sizeof *out);
    struct cudaFuncAttributes a;
    cu_result result = real_result("cudaFuncGetAttributes", cudaFuncGetAttributes(&a, fn));
    if (result != CU_OK) return result;
    out->registers = (uint32_t)a.numRegs;
    out->local_bytes = (uint32_t)a.localSizeBytes;
    out->static_shared_bytes = (uint32_t)a.sharedSizeBytes;
    out->threads_max = (uint32_t)a.maxThreadsPerBlock;
    if (threads > out->threads_max)
        return real_fail(CU_EINVAL, "%u threads per block, the kernel was compiled for %u", threads,
                         out->threads_max);
    if ((size_t)shared_bytes > (size_t)a.maxDynamicSharedSizeBytes) {
        int bytes = shared_bytes > INT32_MAX ? INT32_MAX : (int)shared_bytes;
        result = real_result(
            "cudaFuncSetAttribute",
            cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        if (result == CU_EINVAL)
            return real_fail(
                CU_EUNSUPPORTED,
                "%u bytes of dynamic shared memory per block are more than this device "
                "allows",
                shared_bytes);
        /* Blocks this large share a multiprocessor only with the largest split of its memory. */
        if (result == CU_OK) result = kernel_carve_out(fn);
        if (result != CU_OK) return result;
    }
    int blocks = 0;
    result = real_result(
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fn, (int)threads, shared_bytes));
    out->blocks_per_sm = (uint32_t)blocks;
    return result;
}

static cu_result launch_kernel(const cu_launch *l, cu_stream s) {
    if (l->fn == NULL || l->params_bytes > PARAMS_BYTES_MAX)
        return real_fail(CU_EINVAL, "launch: kernel %p with %u bytes of parameters, at most %d",
                         l->fn, l->params_bytes, PARAMS_BYTES_MAX);
    cudaLaunchAttribute dependent = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                     .val = {.programmaticStreamSerializationAllowed = 1}};
    cudaLaunchConfig_t config = {
        .gridDim = {l->grid[0], l->grid[1], l->grid[2]},
        .blockDim = {l->threads, 1, 1},
        .dynamicSmemBytes = l->shared_bytes,
        .stream = (cudaStream_t)s,
        .attrs = l->dependent ? &dependent : NULL,
        .numAttrs = l->dependent ? 1 : 0,
    };
    void *args[1] = {(void *)(uintptr_t)l->params}; // the runtime copies, and writes nothing
    return real_result("cudaLaunchKernelExC", cudaLaunchKernelExC(&config, l->fn, args));
}

static cu_result capture_begin(cu_stream s) {
    return real_result("cudaStreamBeginCapture",
                       cudaStreamBeginCapture((cudaStream_t)s, cudaStreamCaptureModeThreadLocal));
}

static cu_result capture_end(cu_stream s, cu_graph *out) {
    *out = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cu_result result =
        real_result("cudaStreamEndCapture", cudaStreamEndCapture((cudaStream_t)s, &graph));
    if (result == CU_OK)
        result = real_result("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph, 0));
    if (graph != NULL) cudaGraphDestroy(graph);
    if (result == CU_OK)
        result = real_result("cudaGraphUpload", cudaGraphUpload(exec, (cudaStream_t)s));
    if (result == CU_OK)
        *out = (cu_graph)exec;
    else if (exec != NULL)
        cudaGraphExecDestroy(exec);
    return result;
}

static cu_result graph_launch(cu_graph g, cu_stream s) {
    return real_result("cudaGraphLaunch", cudaGraphLaunch((cudaGraphExec_t)g, (cudaStream_t)s));
}
static cu_result graph_destroy(cu_graph g) {
    return real_result("cudaGraphExecDestroy", cudaGraphExecDestroy((cudaGraphExec_t)g));
}

const cu_api real_api = {
    .name = "cuda",
    .text = real_text,
    .init = init,
    .instances = list_instances,
    .device_count = device_count,
    .device_about = device_about,
    .device_health = device_health,
    .device_use = device_use,
    .device_blocking = device_blocking,
    .memory_info = memory_info,
    .alloc = alloc,
    .free = free_device,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_pin = host_pin,
    .host_unpin = host_unpin,
    .vmm_granularity = vmm_granularity,
    .vmm_reserve = vmm_reserve,
    .vmm_unreserve = vmm_unreserve,
    .vmm_create = vmm_create,
    .vmm_release = vmm_release,
    .vmm_map = vmm_map,
    .vmm_unmap = vmm_unmap,
    .vmm_access = vmm_access,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_sync = event_sync,
    .event_elapsed_us = event_elapsed_us,
    .copy_to_device = copy_to_device,
    .copy_to_host = copy_to_host,
    .copy_on_device = copy_on_device,
    .fill = fill,
    .kernel_load = kernel_load,
    .kernel_carve_out = kernel_carve_out,
    .launch = launch_kernel,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
    .lt_open = lt_open,
    .lt_version = lt_version,
    .lt_candidates = lt_candidates,
    .lt_matmul = lt_matmul,
};
