/* test_cuda_real.c - what inferd_cuda.so asks of NVIDIA's libraries, and what it makes of their
 * answers.
 *
 * kernels/cuda/real is linked with stand-ins (cuda_real/stand_in.h) that note each call; nothing
 * here says that a GPU would do it.  Much happens once per process, so each test runs in a child.
 */
#include "test.h"

#include <dlfcn.h>

#include "child.h"
#include "cuda/real/real.h"
#include "cuda_real/stand_in.h"
#include "kernels/dtype.h"

static const cu_api *const api = &real_api;

static void begin(void) {
    said = (stand_in){.driver_version = 13000,
                      .n_devices = 1,
                      .device_name = "NVIDIA H200",
                      .uuid = 0x11,
                      .uuid_parent = 0x11,
                      .shared_allowed = 48 << 10};
    unsetenv("CUDA_VISIBLE_DEVICES");
}
static void expect_text(const char *part) {
    if (strstr(api->text(), part) == NULL)
        printf("\"%s\" does not say \"%s\"\n", api->text(), part);
    EXPECT(strstr(api->text(), part) != NULL);
}

/* ---- what failures mean ---- */

static cu_result result_of(cudaError_t e) {
    said.fail_call = "cudaMemcpyAsync";
    said.error = e;
    return api->copy_to_host(&said, &said, 4, NULL);
}

static void classify(void) {
    /* "leaves the process in an inconsistent state", and kin */
    static const cudaError_t lost[] = {
        cudaErrorIllegalAddress,     cudaErrorLaunchTimeout,       cudaErrorHardwareStackError,
        cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,   cudaErrorInvalidAddressSpace,
        cudaErrorInvalidPc,          cudaErrorLaunchFailure,       cudaErrorAssert,
        cudaErrorECCUncorrectable,   cudaErrorNvlinkUncorrectable, cudaErrorContained,
        cudaErrorExternalDevice,     cudaErrorTensorMemoryLeak,    cudaErrorMpsClientTerminated,
        cudaErrorContextIsDestroyed,
    };
    static const cudaError_t gone[] = {cudaErrorDevicesUnavailable, cudaErrorNoDevice};
    static const struct {
        cudaError_t e;
        cu_result result;
    } others[] = {
        {cudaSuccess, CU_OK},
        {cudaErrorNotReady, CU_NOT_READY},
        {cudaErrorMemoryAllocation, CU_ENOMEM},
        {cudaErrorInvalidValue, CU_EINVAL},
        {cudaErrorStreamCaptureUnsupported, CU_EINVAL},
        {cudaErrorStreamCaptureInvalidated, CU_EINVAL},
        {cudaErrorNoKernelImageForDevice, CU_EUNSUPPORTED},
        {cudaErrorNotSupported, CU_EUNSUPPORTED},
        {cudaErrorInsufficientDriver, CU_EDRIVER},
        {cudaErrorUnsupportedPtxVersion, CU_EDRIVER},
        {cudaErrorGraphExecUpdateFailure, CU_EFAILED},
        {(cudaError_t)4711, CU_EFAILED},
    };
    begin();
    for (size_t i = 0; i < sizeof lost / sizeof lost[0]; i++)
        EXPECT_EQ(result_of(lost[i]), CU_ELOST);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        EXPECT_EQ(result_of(others[i].e), others[i].result);
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        EXPECT_EQ(result_of(gone[i]), CU_ENODEVICE);
    EXPECT_EQ(result_of(cudaErrorUnknown), CU_EFAILED);
    begin();
    EXPECT_EQ(api->device_use(0), CU_OK); // from now on what is gone has been lost
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
        EXPECT_EQ(result_of(gone[i]), CU_ELOST);
    EXPECT_EQ(result_of(cudaErrorUnknown), CU_ELOST);
    said.fail_call = "cudaSetDevice"; // but not a second device that somebody else has to himself
    said.error = cudaErrorDevicesUnavailable;
    EXPECT_EQ(api->device_use(1), CU_ENODEVICE);
}
static void a_lost_context_is_told_from_a_failed_call(void) {
    in_child(classify);
}

static void say(void) {
    begin();
    EXPECT_EQ(result_of(cudaErrorIllegalAddress), CU_ELOST);
    EXPECT_STR(api->text(), "cudaMemcpyAsync: an illegal memory access was encountered (700)");
    EXPECT_EQ(result_of(cudaErrorNotReady), CU_NOT_READY); // no failure: the text stays
    expect_text("(700)");
}
static void a_failure_names_the_call_and_the_number(void) {
    in_child(say);
}

static void refuse_to_begin(void) {
    begin();
    EXPECT_EQ(api->init(), CU_OK);
    said.driver_version = 0;
    EXPECT_EQ(api->init(), CU_ENODEVICE);
    expect_text("no NVIDIA driver: libcuda.so.1 was not found or cannot be loaded");
    said.driver_version = 12040;
    EXPECT_EQ(api->init(), CU_EDRIVER);
    EXPECT_STR(
        api->text(),
        "the NVIDIA driver supports CUDA 12.4, this build needs 13.0: install driver 580 or newer");
    begin();
    said.n_devices = 0;
    EXPECT_EQ(api->init(), CU_ENODEVICE);
    expect_text("reports no device");
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    said.fail_call = "cudaGetDeviceCount";
    said.error = cudaErrorNoDevice;
    EXPECT_EQ(api->init(), CU_ENODEVICE);
    expect_text("no NVIDIA device is visible with CUDA_VISIBLE_DEVICES=\"7\"");
    said.error = cudaErrorSystemDriverMismatch;
    EXPECT_EQ(api->init(), CU_EDRIVER);
    said.error = cudaErrorSystemNotReady; // HGX after a boot: it was taken for an old driver
    EXPECT_EQ(api->init(), CU_ESTARTING);
    expect_text("(802): NVIDIA's fabric manager has not started yet");
    said.error = cudaErrorMpsServerNotReady;
    EXPECT_EQ(api->init(), CU_ESTARTING);
    expect_text("MPS server is not ready");
    begin();
    EXPECT_EQ(api->init(), CU_OK); // the next try finds it
}
static void what_is_missing_is_said_at_the_beginning(void) {
    in_child(refuse_to_begin);
}

/* ---- devices ---- */

static void look_at_devices(void) {
    cu_device d;
    begin();
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT_STR(d.name, "NVIDIA H200");
    EXPECT_STR(d.uuid, "GPU-11111111-1111-1111-1111-111111111111");
    EXPECT(!d.mig && d.vmm);
    EXPECT_EQ(d.cc_major, 9);
    EXPECT_EQ(d.n_sms, 132);
    EXPECT_EQ(d.shared_bytes_max, 232448);
    EXPECT_EQ(d.shared_bytes_sm, 233472);
    EXPECT_EQ(d.registers_sm, 65536);
    EXPECT_EQ(d.threads_sm_max, 2048);
    EXPECT_EQ(d.l2_bytes, 60 << 20);
    EXPECT_EQ(d.memory_bytes, 141ll << 30);
    EXPECT_EQ(d.driver_version, 13000);
    EXPECT(!d.mps);
    said.mps = true;
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT(d.mps);
    said.fail_call = "cudaDeviceGetAttribute"; // an older driver
    said.error = cudaErrorInvalidValue;
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT(!d.mps);
    said.fail_call = NULL;
    said.uuid = 0x22; // an instance has another UUID than its GPU
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT(d.mig);
    EXPECT_STR(d.uuid, "MIG-22222222-2222-2222-2222-222222222222");
    said.uuid = 0x11; // or is only named so
    said.device_name = "NVIDIA H200 MIG 1g.18gb";
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT(d.mig);
    EXPECT_STR(d.uuid, "MIG-11111111-1111-1111-1111-111111111111");
}
static void an_instance_of_a_gpu_is_known_by_name_or_uuid(void) {
    in_child(look_at_devices);
}

static void look_with_new_driver(void) {
    cu_device d;
    begin();
    said.no_parent_uuid = true;
    EXPECT_EQ(api->device_about(0, &d), CU_OK);
    EXPECT(!d.mig);
}
static void a_driver_without_the_old_uuid_call_will_do(void) {
    in_child(look_with_new_driver);
}

static void set_nvml(const char *name, int result) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int *knob = library != NULL ? dlsym(library, name) : NULL;
    EXPECT(knob != NULL); // else this is the real one
    if (knob != NULL) *knob = result;
}
static void ask_health(void) {
    cu_health h;
    begin();
    set_nvml("stand_in_nvml", 0);
    EXPECT_EQ(api->device_health(0, &h), CU_OK);
    EXPECT(h.known);
    EXPECT_EQ(h.temperature_c, 63);
    EXPECT_EQ(h.power_w, 512);
    EXPECT_EQ(h.utilization_pct, 87);
    EXPECT_EQ(h.memory_used_bytes, 400);
    EXPECT_EQ(h.ecc_uncorrected, 3);
    EXPECT_EQ(h.remapped_rows, 2);
    EXPECT_EQ(h.remap_pending, 1);
    EXPECT_EQ(h.throttle_thermal, 1);
    said.uuid = 0x22; // an instance knows its memory, its GPU the rest; nobody its utilization
    EXPECT_EQ(api->device_health(0, &h), CU_OK);
    EXPECT(h.known);
    EXPECT_EQ(h.memory_used_bytes, 40);
    EXPECT_EQ(h.utilization_pct, -1);
    EXPECT_EQ(h.temperature_c, 63);
    EXPECT_EQ(h.ecc_uncorrected, 3);
    said.uuid = 0x33; // NVML does not know it, as in some containers
    EXPECT_EQ(api->device_health(0, &h), CU_OK);
    EXPECT(!h.known);
    EXPECT_EQ(h.temperature_c, -1);
    EXPECT_EQ(h.memory_used_bytes, -1);
    EXPECT_EQ(h.remap_pending, -1);
    set_nvml("stand_in_nvml", 15);
    EXPECT_EQ(api->device_health(0, &h), CU_ELOST);
    expect_text("is lost");
    begin(); // one that was found in NVML's list may say it later
    set_nvml("stand_in_nvml", 0);
    set_nvml("stand_in_nvml_power", 3); // not supported
    EXPECT_EQ(api->device_health(0, &h), CU_OK);
    EXPECT(h.power_w == -1 && h.temperature_c == 63);
    set_nvml("stand_in_nvml_power", 15);
    EXPECT_EQ(api->device_health(0, &h), CU_ELOST);
    EXPECT_STR(api->text(), "NVML: the GPU GPU-11111111-1111-1111-1111-111111111111 is lost (15)");
}
static void health_is_what_nvml_tells(void) {
    in_child(ask_health);
}

static void list_them(void) {
    cu_instance all[4];
    begin();
    EXPECT_EQ(api->instances(4, all), 1);
    EXPECT_STR(all[0].uuid, "MIG-22222222-2222-2222-2222-222222222222");
    EXPECT_STR(all[0].name, "NVIDIA H200 MIG 1g.18gb");
    EXPECT_EQ(api->instances(0, all), 0);
    EXPECT_STR(said.calls, ""); // CUDA is not asked: it must not begin yet
}
static void instances_are_those_that_nvml_lists(void) {
    in_child(list_them);
}

/* ---- memory, streams ---- */

static void take_memory(void) {
    void *p;
    uint64_t free_bytes, total;
    begin();
    EXPECT_EQ(api->memory_info(&free_bytes, &total), CU_OK);
    EXPECT(free_bytes == 1000 && total == 3000);
    EXPECT_EQ(api->host_alloc(64, &p), CU_OK);
    EXPECT_EQ(said.flags, cudaHostAllocPortable);
    EXPECT_EQ(api->host_pin(&said, 64), CU_OK);
    EXPECT_EQ(said.flags, cudaHostRegisterPortable);
    said.fail_call = "cudaMalloc";
    said.error = cudaErrorMemoryAllocation;
    EXPECT_EQ(api->alloc(64, &p), CU_ENOMEM);
    EXPECT(p == NULL);
    begin();
    EXPECT_EQ(api->copy_to_device(&said, &said, 5, NULL), CU_OK);
    EXPECT_EQ(said.copy_kind, cudaMemcpyHostToDevice);
    EXPECT_EQ(api->copy_to_host(&said, &said, 5, NULL), CU_OK);
    EXPECT_EQ(said.copy_kind, cudaMemcpyDeviceToHost);
    EXPECT_EQ(api->copy_on_device(&said, &said, 5, NULL), CU_OK);
    EXPECT_EQ(said.copy_kind, cudaMemcpyDeviceToDevice);
    EXPECT_EQ(api->fill(&said, 0xAB, 7, NULL), CU_OK);
    EXPECT(said.flags == 0xAB && said.n_bytes == 7);
    said.calls[0] = 0;
    EXPECT_EQ(api->copy_to_host(NULL, NULL, 0, NULL), CU_OK); // nothing is nothing
    EXPECT_STR(said.calls, "");
}
static void memory_calls_say_what_they_mean(void) {
    in_child(take_memory);
}

static void take_virtual_memory(void) {
    size_t granularity;
    void *p;
    cu_handle h;
    begin();
    EXPECT_EQ(api->device_use(3), CU_OK);
    EXPECT_EQ(api->vmm_granularity(&granularity), CU_OK);
    EXPECT_EQ(granularity, 2 << 20);
    EXPECT_EQ(said.location, 3);
    EXPECT_EQ(api->vmm_reserve(1 << 22, 0x1000, &p), CU_OK);
    EXPECT(p == (void *)0x700000001000);
    said.location = -7;
    EXPECT_EQ(api->vmm_create(1 << 21, &h), CU_OK);
    EXPECT(h == 77 && said.location == 3 && said.n_bytes == 1 << 21);
    EXPECT_EQ(api->vmm_map(p, 1 << 21, h), CU_OK);
    EXPECT(said.handle == 77 && said.n_bytes == 1 << 21);
    said.location = -7;
    EXPECT_EQ(api->vmm_access(p, 1 << 21), CU_OK);
    EXPECT(said.location == 3 && said.access_flags == 3); // read and write
    EXPECT_EQ(api->vmm_unmap(p, 1 << 21), CU_OK);
    EXPECT_EQ(api->vmm_release(h), CU_OK);
    EXPECT_EQ(api->vmm_unreserve(p, 1 << 22), CU_OK);
    EXPECT_EQ(said.n_bytes, 1 << 22);
    said.fail_call = "cuMemCreate";
    said.error = cudaErrorMemoryAllocation; // the driver's number is the same
    EXPECT_EQ(api->vmm_create(1 << 21, &h), CU_ENOMEM);
    EXPECT(h == 0);
    expect_text("cuMemCreate: ");
}
static void virtual_memory_belongs_to_the_device_in_use(void) {
    in_child(take_virtual_memory);
}

static void take_old_driver(void) {
    void *p;
    begin();
    said.fail_call = "cuMemMap"; // its look-up
    said.error = cudaErrorInsufficientDriver;
    EXPECT_EQ(api->vmm_reserve(1 << 22, 0, &p), CU_EDRIVER);
    EXPECT(p == NULL);
    expect_text("cuMemMap: ");
    said.fail_call = NULL; // looked up anew, not half
    EXPECT_EQ(api->vmm_reserve(1 << 22, 0, &p), CU_OK);
}
static void a_driver_entry_that_is_missing_is_named(void) {
    in_child(take_old_driver);
}

static void make_streams(void) {
    cu_stream s;
    cu_event e;
    uint64_t us;
    begin();
    EXPECT_EQ(api->stream_create(true, &s), CU_OK);
    EXPECT(said.flags == cudaStreamNonBlocking && said.priority == -5);
    EXPECT_EQ(api->stream_create(false, &s), CU_OK);
    EXPECT(said.flags == cudaStreamNonBlocking && said.priority == 0);
    EXPECT_EQ(api->event_create(false, &e), CU_OK);
    EXPECT_EQ(said.flags, cudaEventDisableTiming);
    EXPECT_EQ(api->event_create(true, &e), CU_OK);
    EXPECT_EQ(said.flags, cudaEventDefault);
    EXPECT_EQ(api->event_create(CU_EVENT_TIMED | CU_EVENT_BLOCKING, &e), CU_OK);
    EXPECT_EQ(said.flags, cudaEventBlockingSync);
    EXPECT_EQ(api->event_create(CU_EVENT_BLOCKING, &e), CU_OK);
    EXPECT_EQ(said.flags, cudaEventBlockingSync | cudaEventDisableTiming);
    EXPECT_EQ(api->device_blocking(), CU_OK);
    EXPECT_EQ(said.flags, cudaDeviceScheduleBlockingSync);
    said.elapsed_ms = 1.2345f;
    EXPECT_EQ(api->event_elapsed_us(e, e, &us), CU_OK);
    EXPECT_EQ(us, 1235);
    said.fail_call = "cudaEventQuery";
    said.error = cudaErrorNotReady;
    EXPECT_EQ(api->event_query(e), CU_NOT_READY);
}
static void streams_and_events_have_their_flags(void) {
    in_child(make_streams);
}

/* ---- kernels and graphs ---- */

static void load_kernels(void) {
    cu_function_info info;
    begin();
    EXPECT_EQ(api->kernel_load(&said, 128, 4096, &info), CU_OK);
    EXPECT(said.fn == &said && said.shared_wanted == 0); // allowed already
    EXPECT(info.registers == 72 && info.local_bytes == 8 && info.static_shared_bytes == 16);
    EXPECT(info.threads_max == 256 && info.blocks_per_sm == 5);
    EXPECT_EQ(api->kernel_load(&said, 128, 100 << 10, &info), CU_OK);
    EXPECT_EQ(said.shared_wanted, 100 << 10);
    EXPECT_EQ(said.carveout, 100); // all of it, in percent
    said.carveout = 0;
    EXPECT_EQ(api->kernel_carve_out(&said), CU_OK);
    EXPECT_EQ(said.carveout, 100);
    said.shared_wanted = 0;
    said.shared_allowed = 100 << 10; // as the device now says
    EXPECT_EQ(api->kernel_load(&said, 128, 60 << 10, &info), CU_OK);
    EXPECT_EQ(said.shared_wanted, 0); // never lowered
    EXPECT_EQ(api->kernel_load(&said, 257, 0, &info), CU_EINVAL);
    expect_text("257 threads per block, the kernel was compiled for 256");
    said.fail_call = "cudaFuncSetAttribute";
    said.error = cudaErrorInvalidValue;
    EXPECT_EQ(api->kernel_load(&said, 128, 300 << 10, &info), CU_EUNSUPPORTED);
    expect_text("307200 bytes of dynamic shared memory");
    EXPECT_EQ(api->kernel_load(&said, 128, UINT32_MAX, &info), CU_EUNSUPPORTED);
}
static void loading_a_kernel_only_raises_its_allowance(void) {
    in_child(load_kernels);
}

static void launch_kernels(void) {
    unsigned params[4] = {0xABCD};
    cu_launch l = {.fn = &said,
                   .grid = {7, 5, 3},
                   .threads = 96,
                   .shared_bytes = 1234,
                   .params = params,
                   .params_bytes = sizeof params};
    cu_stream s = (cu_stream)(void *)&l;
    begin();
    EXPECT_EQ(api->launch(&l, s), CU_OK);
    EXPECT(said.config.gridDim.x == 7 && said.config.gridDim.y == 5 && said.config.gridDim.z == 3);
    EXPECT(said.config.blockDim.x == 96 && said.config.blockDim.y == 1 &&
           said.config.blockDim.z == 1);
    EXPECT(said.config.dynamicSmemBytes == 1234 && said.config.stream == (cudaStream_t)s);
    EXPECT(said.config.numAttrs == 0 && said.fn == &said && said.first_param == 0xABCD);
    l.dependent = true;
    EXPECT_EQ(api->launch(&l, s), CU_OK);
    EXPECT_EQ(said.config.numAttrs, 1);
    EXPECT_EQ(said.attribute.id, cudaLaunchAttributeProgrammaticStreamSerialization);
    EXPECT_EQ(said.attribute.val.programmaticStreamSerializationAllowed, 1);
    l.params_bytes = 4097;
    said.calls[0] = 0;
    EXPECT_EQ(api->launch(&l, s), CU_EINVAL);
    EXPECT_STR(said.calls, "");
}
static void a_launch_carries_grid_parameters_and_dependence(void) {
    in_child(launch_kernels);
}

static void capture_graphs(void) {
    cu_graph g;
    begin();
    EXPECT_EQ(api->capture_begin(NULL), CU_OK);
    EXPECT_EQ(said.capture_mode, cudaStreamCaptureModeThreadLocal);
    said.calls[0] = 0;
    EXPECT_EQ(api->capture_end(NULL, &g), CU_OK);
    EXPECT(g != NULL && said.n_graphs == 0 && said.n_execs == 1);
    EXPECT_STR(said.calls,
               "cudaStreamEndCapture cudaGraphInstantiate cudaGraphDestroy cudaGraphUpload ");
    EXPECT_EQ(api->graph_launch(g, NULL), CU_OK);
    EXPECT_EQ(api->graph_destroy(g), CU_OK);
    EXPECT_EQ(said.n_execs, 0);
    static const struct {
        const char *call;
        cudaError_t e;
        cu_result result;
    } failures[] = {{"cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated, CU_EINVAL},
                    {"cudaGraphInstantiate", cudaErrorMemoryAllocation, CU_ENOMEM},
                    {"cudaGraphUpload", cudaErrorMemoryAllocation, CU_ENOMEM}};
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++) {
        said.fail_call = failures[i].call;
        said.error = failures[i].e;
        EXPECT_EQ(api->capture_end(NULL, &g), failures[i].result);
        EXPECT(g == NULL && said.n_graphs == 0 && said.n_execs == 0);
        expect_text(failures[i].call);
    }
}
static void a_failed_capture_leaves_nothing_behind(void) {
    in_child(capture_graphs);
}

/* ---- cuBLASLt ---- */

enum { M = 5, N = 7, K = 11, X_STRIDE = 16, W_STRIDE = 13, OUT_STRIDE = 9 };

static float value(uint32_t i) { // exact in both 16-bit types, and so are all sums here
    return (float)((int)(i * 2654435761u >> 28) - 8) / 4;
}
static uint16_t to_16(lt_type type, float v) {
    return type == LT_F16 ? f32_to_f16(v) : f32_to_bf16(v);
}
static void multiply(lt_type in, lt_type out_type, bool accumulate) {
    static _Alignas(256) uint16_t x[M * X_STRIDE], w[N * W_STRIDE], out16[M * OUT_STRIDE];
    static _Alignas(256) float out32[M * OUT_STRIDE];
    lt_shape shape = {M, N, K, X_STRIDE, W_STRIDE, OUT_STRIDE, in, out_type, accumulate};
    for (uint32_t i = 0; i < M * X_STRIDE; i++) x[i] = to_16(in, value(i));
    for (uint32_t i = 0; i < N * W_STRIDE; i++) w[i] = to_16(in, value(i + 1000));
    for (uint32_t i = 0; i < M * OUT_STRIDE; i++) {
        out32[i] = value(i + 2000);
        out16[i] = to_16(in, out32[i]);
    }
    lt_algo algos[8];
    uint32_t n = 0;
    EXPECT_EQ(api->lt_candidates(&shape, 1 << 20, 8, algos, &n), CU_OK);
    void *out = out_type == LT_F32 ? (void *)out32 : (void *)out16;
    EXPECT_EQ(api->lt_matmul(&shape, &algos[0], x, w, out, NULL, 0, NULL), CU_OK);
    for (uint32_t row = 0; row < M; row++)
        for (uint32_t col = 0; col < OUT_STRIDE; col++) {
            double wanted = value(row * OUT_STRIDE + col + 2000); // what was there before
            if (col < N) {
                if (!accumulate) wanted = 0;
                for (uint32_t i = 0; i < K; i++)
                    wanted += (double)value(row * X_STRIDE + i) * value(col * W_STRIDE + i + 1000);
            }
            uint32_t at = row * OUT_STRIDE + col;
            double got = out_type == LT_F32   ? out32[at]
                         : out_type == LT_F16 ? f16_to_f32(out16[at])
                                              : bf16_to_f32(out16[at]);
            EXPECT_NEAR(got, wanted, out_type == LT_F32 ? 0 : fabs(wanted) / 256);
        }
}
static void multiply_all(void) {
    begin();
    EXPECT_EQ(api->lt_open(STAND_IN_DIR), CU_OK);
    EXPECT_EQ(api->lt_version(), 130100);
    static const lt_type types[] = {LT_BF16, LT_F16};
    for (int i = 0; i < 2; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            multiply(types[i], types[i], accumulate);
            multiply(types[i], LT_F32, accumulate);
        }
}
static void rows_times_rows_are_columns_times_columns(void) {
    in_child(multiply_all);
}

static void ask_candidates(void) {
    lt_shape shape = {M, N, K, X_STRIDE, W_STRIDE, OUT_STRIDE, LT_BF16, LT_F32, false};
    lt_algo algos[8];
    uint32_t n = 0;
    begin();
    EXPECT_EQ(api->lt_candidates(&shape, 1 << 20, 8, algos, &n), CU_EUNSUPPORTED);
    expect_text("cuBLASLt is not open");
    EXPECT_EQ(api->lt_open(STAND_IN_DIR "/libcublasLt.so.13"), CU_OK);
    EXPECT_EQ(api->lt_candidates(&shape, 1 << 20, 8, algos, &n), CU_OK);
    EXPECT_EQ(n, 3); // of five: one does not work, one wants too much
    EXPECT_EQ(algos[0].opaque[0], 100);
    EXPECT_EQ(algos[2].opaque[0], 103);
    EXPECT_EQ(algos[2].workspace_bytes, 3 << 10);
    EXPECT_EQ(algos[0].opaque[1], 1 << 20);
    EXPECT_EQ(algos[0].opaque[2], 2); // partial sums in float, added in a second step
    EXPECT(algos[0].opaque[3] == 256 && algos[0].opaque[4] == 256);
    EXPECT_EQ(api->lt_candidates(&shape, 64 << 20, 8, algos, &n), CU_OK);
    EXPECT_EQ(n, 4);
    EXPECT_EQ(api->lt_candidates(&shape, 1 << 20, 1, algos, &n), CU_OK);
    EXPECT_EQ(n, 1);
    shape.x_stride = K - 1;
    EXPECT_EQ(api->lt_candidates(&shape, 1 << 20, 8, algos, &n), CU_EINVAL);
    EXPECT_EQ(n, 0);
    shape.x_stride = X_STRIDE;
    shape.out = LT_F16; // neither that of x nor float
    EXPECT_EQ(api->lt_candidates(&shape, 1 << 20, 8, algos, &n), CU_EINVAL);
}
static void candidates_work_and_fit_the_workspace(void) {
    in_child(ask_candidates);
}

static void fail_to_multiply(void) {
    static _Alignas(256) uint16_t x[M * X_STRIDE], w[N * W_STRIDE];
    static _Alignas(256) float out[M * OUT_STRIDE];
    lt_shape shape = {M, N, K, X_STRIDE, W_STRIDE, OUT_STRIDE, LT_BF16, LT_F32, false};
    lt_algo algo = {.opaque = {100}};
    begin();
    EXPECT_EQ(api->lt_open(STAND_IN_DIR), CU_OK);
    EXPECT_EQ(api->lt_matmul(&shape, &algo, x, w, out, NULL, 0, NULL), CU_OK);
    EXPECT_EQ(api->lt_matmul(&shape, &algo, x + 8, w, out, NULL, 0, NULL), CU_EINVAL);
    expect_text("must be aligned to 256");
    algo.workspace_bytes = 10;
    EXPECT_EQ(api->lt_matmul(&shape, &algo, x, w, out, NULL, 9, NULL), CU_EINVAL);
    expect_text("needs 10 bytes, 9 are there");
    algo.workspace_bytes = 0;
    void *library = dlopen(STAND_IN_DIR "/libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    int *status = library != NULL ? dlsym(library, "stand_in_lt") : NULL;
    EXPECT(status != NULL);
    if (status == NULL) return;
    *status = 7; // CUBLAS_STATUS_INVALID_VALUE
    EXPECT_EQ(api->lt_matmul(&shape, &algo, x, w, out, NULL, 0, NULL), CU_EINVAL);
    EXPECT_STR(api->text(), "cublasLtMatmul of [5, 11] x [7, 11]: an invalid value (7)");
    *status = 13; // CUBLAS_STATUS_EXECUTION_FAILED: is it the call, or the context?
    EXPECT_EQ(api->lt_matmul(&shape, &algo, x, w, out, NULL, 0, NULL), CU_EFAILED);
    said.fail_call = "cudaMemGetInfo";
    said.error = cudaErrorIllegalAddress;
    EXPECT_EQ(api->lt_matmul(&shape, &algo, x, w, out, NULL, 0, NULL), CU_ELOST);
    EXPECT_STR(api->text(), "cublasLtMatmul: an illegal memory access was encountered (700)");
}
static void a_failed_product_tells_whether_the_context_lives(void) {
    in_child(fail_to_multiply);
}

static void open_libraries(void) {
    begin();
    EXPECT_EQ(api->lt_open(STAND_IN_DIR "/none"), CU_EUNSUPPORTED);
    expect_text("cuBLASLt from the configured path: " STAND_IN_DIR "/none");
    EXPECT_EQ(api->lt_open(STAND_IN_DIR "/libnvidia-ml.so.1"), CU_EUNSUPPORTED);
    expect_text("has no cublasLtGetVersion");
    setenv("STAND_IN_LT_VERSION", "120402", 1);
    EXPECT_EQ(api->lt_open(STAND_IN_DIR), CU_EUNSUPPORTED);
    expect_text("is version 12.4, this build needs 13");
    EXPECT_EQ(api->lt_version(), 0);
    unsetenv("STAND_IN_LT_VERSION");
    EXPECT_EQ(api->lt_open(STAND_IN_DIR), CU_OK); // what failed is not in the way
    EXPECT_EQ(api->lt_open("/none"), CU_OK);      // open is open
}
static void another_library_than_cublaslt_13_is_refused(void) {
    in_child(open_libraries);
}

static const test_case cases[] = {
    TEST(a_lost_context_is_told_from_a_failed_call),
    TEST(a_failure_names_the_call_and_the_number),
    TEST(what_is_missing_is_said_at_the_beginning),
    TEST(an_instance_of_a_gpu_is_known_by_name_or_uuid),
    TEST(a_driver_without_the_old_uuid_call_will_do),
    TEST(health_is_what_nvml_tells),
    TEST(instances_are_those_that_nvml_lists),
    TEST(memory_calls_say_what_they_mean),
    TEST(virtual_memory_belongs_to_the_device_in_use),
    TEST(a_driver_entry_that_is_missing_is_named),
    TEST(streams_and_events_have_their_flags),
    TEST(loading_a_kernel_only_raises_its_allowance),
    TEST(a_launch_carries_grid_parameters_and_dependence),
    TEST(a_failed_capture_leaves_nothing_behind),
    TEST(rows_times_rows_are_columns_times_columns),
    TEST(candidates_work_and_fit_the_workspace),
    TEST(a_failed_product_tells_whether_the_context_lives),
    TEST(another_library_than_cublaslt_13_is_refused),
};
TEST_MAIN(cases)
