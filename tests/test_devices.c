/* test_devices.c - which device a configuration means, with the fake in the place of a GPU's
 * software. */
#include "config.h"
#include "cuda_emul/fake_api.h"
#include "devices.h"
#include "test.h"

const struct cuda_module *emul_module(void);

static backend_options found;
static inferd_err note, err;

static inferd_status resolve(const config_device *d) {
    memset(&err, 0, sizeof err);
    found = (backend_options){.module = emul_module()};
    return devices_resolve(d, 0, &found, &note, &err);
}

static bool has(const char *text, const char *part) {
    bool ok = strstr(text, part) != NULL;
    if (!ok) printf("\"%s\" lacks \"%s\"\n", text, part);
    return ok;
}

static void begin(uint32_t n_devices) {
    fake_reset();
    fake_set_devices(n_devices);
}

static void end(void) {
    EXPECT_EQ(fake_leaks(), 0);
    EXPECT_EQ(fake_violations(), 0);
    fake_reset();
}

static void auto_takes_the_gpu_that_is_there(void) {
    config_device d = {.kind = "auto", .memory_bytes = 5, .threads = 3};
    begin(1);
    setenv(CUBLASLT_ENV, "lt", 1);
    setenv(CUDA_TUNE_ENV, "tune", 1);
    EXPECT_EQ(resolve(&d), INFERD_OK);
    unsetenv(CUBLASLT_ENV);
    setenv(CUDA_TUNE_ENV, "", 1); // as if it was not set
    EXPECT_STR(found.kind, "cuda");
    EXPECT_STR(note.text, "");
    EXPECT_EQ(found.memory_bytes, 5);
    EXPECT_EQ(found.n_threads, 3);
    EXPECT_STR(found.cublaslt_path, "lt");
    EXPECT_STR(found.tune_path, "tune");
    EXPECT_EQ(resolve(&(config_device){0}), INFERD_OK); // nothing said is auto
    EXPECT_STR(found.kind, "cuda");
    EXPECT_EQ(found.memory_bytes, 0); // what is free
    EXPECT(found.cublaslt_path == NULL && found.tune_path == NULL);
    unsetenv(CUDA_TUNE_ENV);
    end();
}

static void auto_takes_the_cpu_and_says_why(void) {
    begin(1);
    fake_options()->driver = FAKE_DRIVER_NONE;
    EXPECT_EQ(resolve(&(config_device){.kind = "auto"}), INFERD_OK);
    EXPECT_STR(found.kind, "cpu");
    EXPECT_EQ(found.memory_bytes, CPU_MEMORY_BYTES);
    EXPECT(has(note.text, "no NVIDIA driver"));
    fake_options()->driver = FAKE_DRIVER_OLD;
    EXPECT_EQ(resolve(&(config_device){.kind = "auto", .memory_bytes = 9}), INFERD_OK);
    EXPECT_STR(found.kind, "cpu");
    EXPECT_EQ(found.memory_bytes, 9);
    EXPECT(has(note.text, "too old"));
    end();
    begin(0);
    EXPECT_EQ(resolve(&(config_device){.kind = "auto"}), INFERD_OK);
    EXPECT_STR(found.kind, "cpu");
    EXPECT(has(note.text, "no device"));
    end();
}

static void cpu_never_looks_for_a_gpu(void) {
    begin(1);
    EXPECT_EQ(resolve(&(config_device){.kind = "cpu", .gpu.index = 7}), INFERD_OK);
    EXPECT_STR(found.kind, "cpu");
    EXPECT_STR(note.text, "");
    EXPECT_EQ(fake_calls(NULL), 0);
    end();
}

static void cuda_that_is_not_there_is_an_error(void) {
    begin(1);
    fake_options()->driver = FAKE_DRIVER_NONE;
    EXPECT(resolve(&(config_device){.kind = "cuda"}) != INFERD_OK);
    EXPECT(has(err.text, "no NVIDIA driver"));
    end();
}

/* Error 802 on HGX: "auto" must not serve from the CPU because the machine has just booted. */
static void a_gpu_that_is_not_ready_yet_is_waited_for(void) {
    static const char *const kinds[] = {"cuda", "auto"};
    for (size_t i = 0; i < INFERD_COUNT(kinds); i++) {
        config_device d = {.kind = (char *)(uintptr_t)kinds[i]};
        begin(1);
        fake_options()->starting = 1;
        EXPECT_EQ(resolve(&d), INFERD_EBUSY);
        EXPECT(has(err.text, "802"));
        EXPECT_EQ(resolve(&d), INFERD_OK);
        EXPECT_STR(found.kind, "cuda");
        end();
    }
}

static void another_index_or_uuid_is_told_with_what_there_is(void) {
    static const char *const kinds[] = {"cuda", "auto"};
    for (size_t i = 0; i < INFERD_COUNT(kinds); i++) {
        config_device d = {.kind = (char *)(uintptr_t)kinds[i], .gpu.index = 2};
        begin(2);
        EXPECT_EQ(resolve(&d), INFERD_ENOTFOUND);
        EXPECT(has(err.text,
                   "devices[0].gpu is 2; this machine has 2 GPUs: 0 Fake H200 GPU-8f6a0000-"));
        EXPECT(has(err.text, ", 1 Fake H200 GPU-8f6a0001-"));
        d.gpu.uuid = "GPU-9";
        EXPECT_EQ(resolve(&d), INFERD_ENOTFOUND);
        EXPECT(has(err.text, "devices[0].gpu is \"GPU-9\"; this machine has 2 GPUs: "));
        d.gpu.uuid = "gpu-8F6A0001"; // the beginning is enough, and it wins over the index
        EXPECT_EQ(resolve(&d), INFERD_OK);
        EXPECT_STR(found.kind, "cuda");
        d.gpu.uuid = NULL;
        d.gpu.index = 1;
        EXPECT_EQ(resolve(&d), INFERD_OK);
        EXPECT_EQ(found.index, 1);
        end();
    }
}

static void a_look_finds_the_device_that_was_opened(void) {
    backend_device_about about = {0};
    begin(2);
    fake_options()->health[1].temperature_c = 77;
    EXPECT_EQ(resolve(&(config_device){.kind = "cuda", .gpu.index = 1}), INFERD_OK);
    EXPECT(backend_look(&found, false, &about, &err) == INFERD_OK);
    EXPECT_EQ(about.index, 1);
    EXPECT(about.health.known);
    EXPECT_EQ(about.health.temperature_c, 77);
    fake_options()->health[1].known = false;
    EXPECT(backend_look(&found, false, &about, &err) == INFERD_OK);
    EXPECT(!about.health.known);
    found.index = 3;
    EXPECT_EQ(backend_look(&found, false, &about, &err), INFERD_ENOTFOUND);
    end();
}

static void a_device_that_fails_matters_only_to_those_that_name_it(void) {
    config_device d = {.kind = "auto", .gpu.index = 1};
    begin(3);
    fake_fail_call("device_about", 3, CU_EFAILED); // of device 2, which is not ours
    EXPECT_EQ(resolve(&d), INFERD_OK);
    EXPECT_STR(found.kind, "cuda");
    fake_fail_call("device_about", 2, CU_EFAILED);
    EXPECT_EQ(resolve(&d), INFERD_EDEVICE);
    EXPECT(has(err.text, "devices[0].gpu is 1: device 1: CUDA: device_about failed"));
    fake_fail_call("device_health", 2, CU_ELOST);
    EXPECT_EQ(resolve(&d), INFERD_ELOST);
    EXPECT(has(err.text, "devices[0].gpu is 1: device 1 Fake H200: CUDA: device_health"));
    end();
    begin(3);
    d.gpu.uuid = "GPU-8f6a0002";
    fake_fail_call("device_about", 3, CU_EFAILED);
    EXPECT_EQ(resolve(&d), INFERD_ENOTFOUND);
    EXPECT(has(err.text, "devices[0].gpu is \"GPU-8f6a0002\"; this machine has 3 GPUs: 0 Fake"));
    EXPECT(has(err.text, ", (device 2: CUDA: device_about failed"));
    end();
}

static void memory_is_guessed_from_what_is_free_on_the_own_device(void) {
    static devices_found f;
    config_device devices[2] = {{.kind = "cuda", .gpu.index = 2},
                                {.kind = "cuda", .gpu.index = 1, .memory_bytes = 9 << 20}};
    inferd_config c = {.devices = devices, .n_devices = 2};
    begin(3);
    for (int i = 0; i < 3; i++) {
        fake_options()->health[i].known = false;
        fake_options()->others_bytes[i] = 6 << 20;
    }
    EXPECT_EQ(devices_resolve_all(&c, emul_module(), &f, &err), INFERD_OK);
    EXPECT_EQ(f.devices[0].memory_bytes, 250 << 20);
    EXPECT_EQ(f.devices[1].memory_bytes, 9 << 20);
    EXPECT(fake_uses(0) == 0 && fake_uses(1) == 0 && fake_uses(2) == 1);
    fake_fail_call("device_use", 1, CU_ENODEVICE);
    EXPECT_EQ(devices_resolve_all(&c, emul_module(), &f, &err), INFERD_ENOTFOUND);
    EXPECT(has(err.text, "devices[0]: device 2 Fake H200: CUDA: device_use failed"));
    end();
}

static void the_word_after_device_is_read(void) {
    static const struct {
        const char *text, *kind, *uuid; // kind NULL: refused
        uint32_t index;
    } rows[] = {
        {"cpu", "cpu", NULL, 9},
        {"cuda", "cuda", NULL, 9},
        {"auto", "auto", NULL, 9},
        {"cuda:0", "cuda", NULL, 0},
        {"cuda:63", "cuda", NULL, 63},
        {"GPU-8f6a", "cuda", "GPU-8f6a", 9},
        {"gpu-8f6a", "cuda", "gpu-8f6a", 9},
        {"MIG-1", "cuda", "MIG-1", 9},
        {"cuda:64", NULL, NULL, 9},
        {"cuda:", NULL, NULL, 9},
        {"cuda:-1", NULL, NULL, 9},
        {"cuda:1x", NULL, NULL, 9},
        {"cuda: 1", NULL, NULL, 9},
        {"cpu:0", NULL, NULL, 9},
        {"auto:0", NULL, NULL, 9},
        {"CUDA", NULL, NULL, 9},
        {"cudb:0", NULL, NULL, 9},
        {"rocm", NULL, NULL, 9},
        {"", NULL, NULL, 9},
        {"cuda:99999999999999999999", NULL, NULL, 9},
    };
    FILE *told = freopen("/dev/null", "w", stderr); // what is refused says so there
    EXPECT(told != NULL);
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        config_device d = {.kind = strdup("auto"), .gpu = {9, strdup("GPU-old")}};
        bool ok = devices_parse(rows[i].text, &d);
        if (ok != (rows[i].kind != NULL)) printf("--device %s\n", rows[i].text);
        EXPECT_EQ(ok, rows[i].kind != NULL);
        if (ok && rows[i].kind != NULL) {
            EXPECT_STR(d.kind, rows[i].kind);
            EXPECT_STR(d.gpu.uuid == NULL ? "" : d.gpu.uuid,
                       rows[i].uuid == NULL ? "" : rows[i].uuid);
            EXPECT_EQ(d.gpu.index, rows[i].index);
        } else {
            EXPECT_STR(d.kind, "auto");
        }
        free(d.kind);
        free(d.gpu.uuid);
    }
}

static const test_case cases[] = {
    TEST(auto_takes_the_gpu_that_is_there),
    TEST(auto_takes_the_cpu_and_says_why),
    TEST(cpu_never_looks_for_a_gpu),
    TEST(cuda_that_is_not_there_is_an_error),
    TEST(a_gpu_that_is_not_ready_yet_is_waited_for),
    TEST(another_index_or_uuid_is_told_with_what_there_is),
    TEST(a_look_finds_the_device_that_was_opened),
    TEST(a_device_that_fails_matters_only_to_those_that_name_it),
    TEST(memory_is_guessed_from_what_is_free_on_the_own_device),
    TEST(the_word_after_device_is_read),
};
TEST_MAIN(cases)
