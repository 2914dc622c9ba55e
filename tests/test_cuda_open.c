/* test_cuda_open.c - finding inferd_cuda.so, and the devices it knows.
 *
 * A process opens one module and keeps it, so each test of opening runs in a child. */
#include "test.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "cuda/open.h"
#include "cuda_emul/fake_api.h"

#define GOOD     CUDA_MODULES_DIR "/good.so"
#define GOOD_TOO CUDA_MODULES_DIR "/good_too.so"
#define OLD      CUDA_MODULES_DIR "/old.so"
#define EMPTY    CUDA_MODULES_DIR "/empty.so"

static void expect_refused(const char *path, inferd_status status, const char *part) {
    const cuda_module *m = (const cuda_module *)(uintptr_t)1;
    inferd_err err = {0};
    EXPECT_EQ(cuda_module_open(path, &m, &err), status);
    EXPECT(m == NULL);
    if (strstr(err.text, part) == NULL) printf("\"%s\" does not say \"%s\"\n", err.text, part);
    EXPECT(strstr(err.text, part) != NULL);
}

static void expect_opened(const char *path) {
    const cuda_module *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(cuda_module_open(path, &m, &err), INFERD_OK);
    if (err.text[0] != 0) printf("%s\n", err.text);
    EXPECT(m != NULL && m->version == CUDA_MODULE_VERSION);
}

/* ---- opening ---- */

static void open_twice(void) {
    const cuda_module *first = NULL, *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(cuda_module_open(GOOD, &first, &err), INFERD_OK);
    EXPECT_EQ(cuda_module_open(GOOD, &m, &err), INFERD_OK);
    EXPECT(m == first);
    EXPECT_EQ(cuda_module_open(CUDA_MODULES_DIR "/../cuda_modules/good.so", &m, &err), INFERD_OK);
    EXPECT(m == first);
    EXPECT_EQ(cuda_module_open(NULL, &m, &err), INFERD_OK);
    EXPECT(m == first);
    expect_refused(GOOD_TOO, INFERD_EINVAL,
                   "good_too.so cannot be opened: this process already uses");
    expect_refused(CUDA_MODULES_DIR "/none.so", INFERD_ENOTFOUND, "none.so: no such file");
    expect_opened(GOOD);
}
static void a_process_opens_one_module_once(void) {
    in_child(open_twice);
}

static void open_wrong_ones(void) {
    char version[64];
    snprintf(version, sizeof version, "is version %d, this inferd needs version %d",
             CUDA_MODULE_VERSION + 41, CUDA_MODULE_VERSION);
    expect_refused(OLD, INFERD_EUNSUPPORTED, version);
    expect_refused(EMPTY, INFERD_EUNSUPPORTED, "it has no inferd_cuda_module");
    expect_refused(CUDA_MODULES_DIR "/none.so", INFERD_ENOTFOUND, "none.so: no such file");
    expect_refused("/proc/self/cmdline", INFERD_EIO, "cannot be loaded: /proc/self/cmdline");
    expect_opened(GOOD); // what was refused is not in the way
}
static void a_wrong_module_is_refused_with_the_reason(void) {
    in_child(open_wrong_ones);
}

static void open_by_environment(void) {
    setenv(CUDA_MODULE_ENV, OLD, 1);
    expect_refused(NULL, INFERD_EUNSUPPORTED, "old.so");
    expect_refused("", INFERD_EUNSUPPORTED, "old.so");
    expect_opened(GOOD);
}
static void a_configured_path_comes_before_the_environment(void) {
    in_child(open_by_environment);
}

static void open_nothing(void) {
    char folder[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    EXPECT(n > 0);
    folder[n > 0 ? n : 0] = 0;
    *strrchr(folder, '/') = 0;
    char wanted[3 * PATH_MAX];
    snprintf(wanted, sizeof wanted,
             "looked for %s/inferd_cuda.so, %s/../lib/inferd/inferd_cuda.so and ", folder, folder);
    if (strlen(wanted) < 400) // else the sentence is cut
        expect_refused(NULL, INFERD_ENOTFOUND, wanted);
    expect_refused(NULL, INFERD_ENOTFOUND, "no CUDA module: looked for ");
}
static void a_missing_module_says_where_it_was_looked_for(void) {
    in_child(open_nothing);
}

static void *open_in_thread(void *out) {
    inferd_err err = {0};
    if (cuda_module_open(GOOD, (const cuda_module **)out, &err) != INFERD_OK)
        printf("%s\n", err.text);
    return NULL;
}
static void open_in_threads(void) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    const cuda_module *modules[THREADS] = {0};
    for (int i = 0; i < THREADS; i++)
        EXPECT_EQ(pthread_create(&threads[i], NULL, open_in_thread, (void *)&modules[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) EXPECT(modules[i] != NULL && modules[i] == modules[0]);
}
static void threads_get_the_same_module(void) {
    in_child(open_in_threads);
}

/* This program, in a folder where a module is. */
static const char *mode; // what the copy is to do
static void copy_file(const char *from, const char *to) {
    unsigned char piece[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    EXPECT(in != NULL && out != NULL);
    for (size_t n; in != NULL && out != NULL && (n = fread(piece, 1, sizeof piece, in)) > 0;)
        EXPECT_EQ(fwrite(piece, 1, n, out), n);
    if (in != NULL) fclose(in);
    if (out != NULL) fclose(out);
    EXPECT_EQ(chmod(to, 0700), 0);
}
static void run_copy(const char *root, const char *program, const char *module,
                     const char *content) {
    char exe[PATH_MAX], file[PATH_MAX];
    snprintf(exe, sizeof exe, "%s/%s", root, program);
    snprintf(file, sizeof file, "%s/%s", root, module);
    copy_file("/proc/self/exe", exe);
    copy_file(content, file);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsetenv(CUDA_MODULE_ENV);
        setenv("INFERD_TEST_COPY", mode, 1);
        execl(exe, exe, "a_module_near_the_program_is_found", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    unlink(exe);
    unlink(file);
}
static void a_module_near_the_program_is_found(void) {
    const char *copy = getenv("INFERD_TEST_COPY");
    if (copy != NULL && strcmp(copy, "good") == 0) {
        expect_opened(NULL);
        return;
    }
    if (copy != NULL) {
        expect_refused(NULL, INFERD_EIO, "inferd_cuda.so: ");
        return;
    }
    char root[] = "/tmp/inferd_cuda_open_XXXXXX", folder[PATH_MAX];
    static const char *const folders[] = {"bin", "lib", "lib/inferd"};
    EXPECT(mkdtemp(root) != NULL);
    for (size_t i = 0; i < INFERD_COUNT(folders); i++) {
        snprintf(folder, sizeof folder, "%s/%s", root, folders[i]);
        EXPECT_EQ(mkdir(folder, 0700), 0);
    }
    mode = "good";
    run_copy(root, "bin/program", "bin/inferd_cuda.so", GOOD);
    run_copy(root, "bin/program", "lib/inferd/inferd_cuda.so", GOOD);
    mode = "broken"; // is not passed over
    run_copy(root, "bin/program", "bin/inferd_cuda.so", "/proc/self/cmdline");
    for (size_t i = INFERD_COUNT(folders); i-- > 0;) {
        snprintf(folder, sizeof folder, "%s/%s", root, folders[i]);
        EXPECT_EQ(rmdir(folder), 0);
    }
    EXPECT_EQ(rmdir(root), 0);
}

/* "../lib/inferd" of a program in a shared folder is a name that any user may make: code of theirs
 * ran in the daemon. */
static char trusted_root[] = "/tmp/inferd_cuda_trust_XXXXXX";
static void open_what_others_may_write(void) {
    char above[64], folder[80], file[112], said[256];
    snprintf(above, sizeof above, "%s/above", trusted_root);
    snprintf(folder, sizeof folder, "%s/lib", above);
    snprintf(file, sizeof file, "%s/inferd_cuda.so", folder);
    EXPECT(mkdir(above, 0755) == 0 && mkdir(folder, 0755) == 0);
    copy_file(GOOD, file);
    static const struct {
        int which; // 0 file, 1 folder, 2 above
        mode_t mode;
        const char *by;
    } rows[] = {{0, 0777, "every user"}, {0, 0775, "its group"},   {1, 0777, "every user"},
                {1, 0770, "its group"},  {1, 01777, "every user"}, {2, 0777, "every user"}};
    const char *const paths[] = {file, folder, above};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        const char *path = paths[rows[i].which];
        EXPECT_EQ(chmod(path, rows[i].mode), 0);
        snprintf(said, sizeof said, "%s may be written by %s (mode %04o)", path, rows[i].by,
                 (unsigned)rows[i].mode);
        expect_refused(file, INFERD_EIO, said);
        EXPECT_EQ(chmod(path, 0755), 0);
    }
    if (geteuid() == 0) { // another user's
        for (int which = 0; which < 2; which++) {
            EXPECT_EQ(chown(paths[which], 12345, (gid_t)-1), 0);
            snprintf(said, sizeof said, "%s belongs to user 12345, expected root or user 0",
                     paths[which]);
            expect_refused(file, INFERD_EIO, said);
            EXPECT_EQ(chown(paths[which], 0, (gid_t)-1), 0);
        }
    }
    EXPECT_EQ(chmod(above, 01777), 0); // as /tmp
    expect_opened(file);
    EXPECT(unlink(file) == 0 && rmdir(folder) == 0 && rmdir(above) == 0);
}
static void a_module_that_others_may_write_is_not_loaded(void) {
    EXPECT(mkdtemp(trusted_root) != NULL);
    in_child(open_what_others_may_write);
    EXPECT_EQ(rmdir(trusted_root), 0);
}

/* ---- devices ---- */

static cuda_module fake_with(uint32_t n_devices) {
    fake_reset();
    fake_set_devices(n_devices);
    return (cuda_module){.version = CUDA_MODULE_VERSION, .about = "fake", .api = fake_api()};
}
static void name_device(uint32_t i, const char *name, const char *uuid) {
    cu_device *d = &fake_options()->device[i];
    snprintf(d->name, sizeof d->name, "%s", name);
    snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
}

static void devices_are_listed_with_their_health(void) {
    cuda_module m = fake_with(2);
    fake_opts *o = fake_options();
    name_device(1, "Fake MIG 1g.18gb", "MIG-22");
    o->device[1].mig = true;
    o->device[1].n_sms = 16;
    o->device[1].memory_bytes = 100 << 20;
    o->health[1] = (cu_health){.known = true,
                               .temperature_c = 41,
                               .power_w = -1,
                               .utilization_pct = 3,
                               .memory_used_bytes = 30 << 20,
                               .ecc_uncorrected = 5,
                               .remapped_rows = 6,
                               .remap_pending = 1,
                               .throttle_thermal = 0};
    backend_device_about all[BE_DEVICES_MAX];
    uint32_t n = 0;
    inferd_err err = {0};
    EXPECT_EQ(cuda_list(&m, NULL, all, &n, &err), INFERD_OK);
    EXPECT_EQ(n, 2);
    EXPECT_STR(all[0].kind, "cuda");
    EXPECT_STR(all[0].name, o->device[0].name);
    EXPECT(!all[0].mig && all[1].mig);
    EXPECT_STR(all[1].name, "Fake MIG 1g.18gb");
    EXPECT_STR(all[1].uuid, "MIG-22");
    EXPECT_EQ(all[1].index, 1);
    EXPECT_EQ(all[1].n_units, 16);
    EXPECT_EQ(all[1].cc_major, o->device[1].cc_major);
    EXPECT_EQ(all[1].memory_bytes, 100 << 20);
    EXPECT_EQ(all[1].free_bytes, 70 << 20);
    EXPECT(all[1].health.known);
    EXPECT_EQ(all[1].health.temperature_c, 41);
    EXPECT_EQ(all[1].health.power_w, -1);
    EXPECT_EQ(all[1].health.utilization_pct, 3);
    EXPECT_EQ(all[1].health.memory_used_bytes, 30 << 20);
    EXPECT_EQ(all[1].health.ecc_uncorrected, 5);
    EXPECT_EQ(all[1].health.remapped_rows, 6);
    EXPECT_EQ(all[1].health.remap_pending, 1);
    EXPECT_EQ(all[1].health.throttle_thermal, 0);
    EXPECT_EQ(fake_calls("device_use"), 0); // no context is made for a look
    fake_reset();
}

/* Each look made a context of some 500 MiB on every GPU of the machine. */
static void without_nvml_only_the_own_device_is_asked_what_is_free(void) {
    cuda_module m = fake_with(3);
    fake_opts *o = fake_options();
    for (int i = 0; i < 3; i++) {
        o->device[i].memory_bytes = 100 << 20;
        o->others_bytes[i] = 25 << 20;
        o->health[i] = (cu_health){.memory_used_bytes = -1, .temperature_c = -1};
    }
    backend_device_about all[BE_DEVICES_MAX], one;
    uint32_t n = 0;
    inferd_err err = {0};
    EXPECT_EQ(cuda_list(&m, NULL, all, &n, &err), INFERD_OK);
    EXPECT_EQ(n, 3);
    for (int i = 0; i < 3; i++) EXPECT(!all[i].health.known && !all[i].free_known);
    EXPECT_EQ(cuda_look(&m, NULL, 1, false, &one, &err), INFERD_OK);
    EXPECT(one.index == 1 && !one.free_known && one.free_bytes == 0);
    EXPECT_EQ(fake_calls("device_use"), 0);
    EXPECT_EQ(cuda_look(&m, NULL, 1, true, &one, &err), INFERD_OK);
    EXPECT(one.free_known);
    EXPECT_EQ(one.free_bytes, 75 << 20);
    EXPECT(fake_uses(0) == 0 && fake_uses(1) == 1 && fake_uses(2) == 0);
    fake_reset();
}

static void a_device_that_fails_does_not_hide_the_others(void) {
    cuda_module m = fake_with(3);
    name_device(0, "A", "GPU-aa");
    name_device(2, "C", "GPU-cc");
    backend_device_about all[BE_DEVICES_MAX], one;
    uint32_t n = 0, chosen;
    cu_device d;
    inferd_err err = {0};
    fake_fail_call("device_about", 2, CU_EFAILED);
    EXPECT_EQ(cuda_list(&m, NULL, all, &n, &err), INFERD_OK);
    EXPECT_EQ(n, 3);
    EXPECT(all[0].problem.status == INFERD_OK && all[2].problem.status == INFERD_OK);
    EXPECT_EQ(all[1].problem.status, INFERD_EDEVICE);
    EXPECT_STR(all[1].problem.text, "device 1: CUDA: device_about failed because the test said so");
    EXPECT(all[1].index == 1 && all[1].uuid[0] == 0);
    fake_fail_call("device_about", 2, CU_EFAILED);
    EXPECT_EQ(cuda_pick(&m, "GPU-cc", 0, &chosen, &d, &err), INFERD_OK);
    EXPECT_EQ(chosen, 2);
    fake_fail_call("device_about", 1, CU_EFAILED);
    EXPECT_EQ(cuda_look(&m, NULL, 0, false, &one, &err), INFERD_EDEVICE);
    fake_fail_call("device_about", 5, CU_EFAILED); // when those that are there are told
    EXPECT_EQ(cuda_pick(&m, "GPU-xx", 0, &chosen, &d, &err), INFERD_ENOTFOUND);
    EXPECT(strstr(err.text, "0 A GPU-aa, (device 1: CUDA: device_about failed") != NULL);
    EXPECT(strstr(err.text, "2 C GPU-cc") != NULL);
    m = fake_with(2);
    fake_fail_call("device_health", 2, CU_ELOST); // NVML: the GPU is lost
    EXPECT_EQ(cuda_list(&m, NULL, all, &n, &err), INFERD_OK);
    EXPECT(n == 2 && all[0].problem.status == INFERD_OK);
    EXPECT_EQ(all[1].problem.status, INFERD_ELOST);
    EXPECT_STR(all[1].uuid, fake_options()->device[1].uuid);
    fake_reset();
}

static void expect_picked(const cuda_module *m, const char *uuid, uint32_t index, uint32_t wanted) {
    uint32_t chosen = UINT32_MAX;
    cu_device d = {0};
    inferd_err err = {0};
    EXPECT_EQ(cuda_pick(m, uuid, index, &chosen, &d, &err), INFERD_OK);
    EXPECT_EQ(chosen, wanted);
    EXPECT_STR(d.uuid, fake_options()->device[wanted].uuid);
}
static void expect_not_picked(const cuda_module *m, const char *uuid, uint32_t index,
                              inferd_status status, const char *text) {
    uint32_t chosen;
    cu_device d;
    inferd_err err = {0};
    EXPECT_EQ(cuda_pick(m, uuid, index, &chosen, &d, &err), status);
    EXPECT_STR(err.text, text);
}

static void a_device_is_picked_by_index_or_uuid(void) {
    cuda_module m = fake_with(3);
    name_device(0, "A", "GPU-aa11");
    name_device(1, "B", "GPU-aa22");
    name_device(2, "C", "MIG-aa11");
    expect_picked(&m, NULL, 0, 0);
    expect_picked(&m, "", 2, 2);
    expect_picked(&m, "GPU-aa22", 0, 1); // the UUID counts, the index does not
    expect_picked(&m, "gpu-AA2", 0, 1);
    expect_picked(&m, "M", 0, 2);
    name_device(1, "B", "GPU-aa11-more");
    expect_not_picked(
        &m, "GPU-aa", 0, INFERD_EINVAL,
        "device uuid \"GPU-aa\" begins those of two devices: GPU-aa11 and GPU-aa11-more");
    fake_reset();
}

static void a_device_that_is_not_there_names_those_that_are(void) {
    cuda_module m = fake_with(1);
    name_device(0, "NVIDIA H200", "GPU-77");
    expect_not_picked(&m, NULL, 3, INFERD_ENOTFOUND,
                      "device index 3: this machine has 1 device: 0 NVIDIA H200 GPU-77");
    m = fake_with(2);
    name_device(0, "NVIDIA H200", "GPU-77");
    name_device(1, "NVIDIA A30 MIG 1g.6gb", "MIG-1");
    expect_not_picked(&m, "GPU-78", 0, INFERD_ENOTFOUND,
                      "device uuid \"GPU-78\": this machine has 2 devices: 0 NVIDIA H200 GPU-77, 1 "
                      "NVIDIA A30 MIG 1g.6gb MIG-1");
    expect_not_picked(&m, "GPU-77-and-more", 0, INFERD_ENOTFOUND,
                      "device uuid \"GPU-77-and-more\": this machine has 2 devices: 0 NVIDIA H200 "
                      "GPU-77, 1 NVIDIA A30 MIG 1g.6gb MIG-1");
    fake_reset();
}

/* CUDA shows a process the first instance only; a second one was "not there". */
static void begin_with_instances(cuda_module *m, const char *visible) {
    *m = fake_with(3);
    fake_options()->cuda_visible = true;
    name_device(0, "Fake H200 MIG 1g.18gb", "MIG-aa11");
    name_device(1, "Fake H200 MIG 1g.18gb", "MIG-aa22");
    name_device(2, "Fake H200 MIG 1g.18gb", "MIG-bb33");
    for (int i = 0; i < 3; i++) fake_options()->device[i].mig = true;
    if (visible != NULL)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
}
static void an_instance_that_is_named_is_shown(void) {
    static const struct {
        const char *before, *uuid, *after; // after NULL: it is not there, and nothing was changed
    } rows[] = {
        {NULL, "MIG-bb33", "MIG-bb33"},
        {NULL, "mig-AA2", "MIG-aa22"}, // NVML knows the rest
        {NULL, "MIG-aa", "MIG-aa"},    // two begin so: CUDA's to decide
        {NULL, "MIG-cc", NULL},
        {"MIG-bb33", "MIG-bb33", "MIG-bb33"},
        {"MIG-aa11,MIG-bb33", "MIG-bb", "MIG-bb33"}, // within what the environment allows
        {"MIG-aa11", "MIG-bb33", NULL},              // another's decision
        {"1", "MIG-aa22", "1"},
        {"1", "MIG-bb33", NULL},
    };
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        cuda_module m;
        uint32_t chosen = 9;
        cu_device d;
        inferd_err err = {0};
        begin_with_instances(&m, rows[i].before);
        inferd_status s = cuda_pick(&m, rows[i].uuid, 0, &chosen, &d, &err);
        const char *now = getenv("CUDA_VISIBLE_DEVICES");
        if (rows[i].after == NULL) {
            EXPECT_EQ(s, INFERD_ENOTFOUND);
            EXPECT_STR(now == NULL ? "" : now, rows[i].before == NULL ? "" : rows[i].before);
            EXPECT(strstr(err.text, "this machine has 1 device: 0 Fake H200 MIG") != NULL);
            continue;
        }
        EXPECT_EQ(s, INFERD_OK);
        EXPECT_EQ(chosen, 0); // the only one
        EXPECT(strncasecmp(d.uuid, rows[i].uuid, strlen(rows[i].uuid)) == 0);
        EXPECT_STR(now == NULL ? "" : now, rows[i].after);
    }
    cuda_module m;
    uint32_t n, chosen;
    cu_device d;
    backend_device_about all[BE_DEVICES_MAX];
    inferd_err err = {0};
    begin_with_instances(&m, NULL); // nothing is named
    EXPECT_EQ(cuda_list(&m, NULL, all, &n, &err), INFERD_OK);
    EXPECT(n == 1 && getenv("CUDA_VISIBLE_DEVICES") == NULL);
    EXPECT_STR(all[0].uuid, "MIG-aa11");
    begin_with_instances(&m, NULL);
    fake_options()->device[0].mig = false; // a whole GPU beside
    EXPECT_EQ(cuda_pick(&m, "GPU-", 0, &chosen, &d, &err), INFERD_ENOTFOUND);
    EXPECT(getenv("CUDA_VISIBLE_DEVICES") == NULL);
    backend_options options = {.kind = "cuda", .module = &m};
    backend_instance instances[4];
    EXPECT_EQ(backend_list_instances(&options, 4, instances), 2);
    EXPECT_STR(instances[1].uuid, "MIG-bb33");
    unsetenv("CUDA_VISIBLE_DEVICES");
    fake_reset();
}

static void what_is_missing_is_said_in_one_line(void) {
    backend_device_about all[BE_DEVICES_MAX];
    uint32_t n = 9;
    inferd_err err = {0};
    cuda_module m = fake_with(1);
    backend_options options = {.kind = "cuda", .module = &m};
    fake_options()->driver = FAKE_DRIVER_NONE;
    EXPECT_EQ(cuda_list_devices(&options, all, &n, &err), INFERD_ENOTFOUND);
    EXPECT_EQ(n, 0);
    EXPECT(strncmp(err.text, "CUDA: ", 6) == 0 && strlen(err.text) > 12);
    m = fake_with(1);
    fake_options()->driver = FAKE_DRIVER_OLD;
    EXPECT_EQ(cuda_list_devices(&options, all, &n, &err), INFERD_ENOTFOUND);
    m = fake_with(1);
    fake_options()->n_devices = 0;
    EXPECT_EQ(cuda_list_devices(&options, all, &n, &err), INFERD_ENOTFOUND);
    fake_reset();
}

/* ---- the module that was built ---- */

#ifdef CUDA_MODULE_BUILT
static void use_built_module(void) {
    const cuda_module *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(cuda_module_open(CUDA_MODULE_BUILT, &m, &err), INFERD_OK);
    if (m == NULL) {
        printf("%s\n", err.text);
        return;
    }
    printf("%s, %u kernels\n", m->about, m->n_kernels);
    EXPECT_STR(m->api->name, "cuda");
    EXPECT(m->n_kernels > 0);
    for (uint32_t i = 0; i < m->n_kernels; i++) {
        const cu_kernel *k = &m->kernels[i];
        EXPECT(k->name != NULL && k->fn != NULL && k->params_bytes > 0 && k->threads_max > 0);
        EXPECT(k->cc_min == 80 || k->cc_min == 90);
        for (uint32_t j = 0; j < i; j++) EXPECT(strcmp(k->name, m->kernels[j].name) != 0);
    }
    void *const *calls = (void *const *)(const void *)&m->api->text; // every call is there
    size_t n_calls = (sizeof *m->api - offsetof(cu_api, text)) / sizeof *calls;
    for (size_t i = 0; i < n_calls; i++) EXPECT(calls[i] != NULL);

    backend_device_about all[BE_DEVICES_MAX];
    uint32_t n = 0;
    inferd_status s = cuda_list(m, NULL, all, &n, &err);
    if (s == INFERD_OK) {
        EXPECT(n > 0 && all[0].memory_bytes > 0 && strlen(all[0].uuid) > 8);
        return;
    }
    printf("%s\n", err.text);
    EXPECT_EQ(s, INFERD_ENOTFOUND);
    EXPECT(strchr(err.text, '\n') == NULL);
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) == NULL) {
        EXPECT_EQ(m->api->init(), CU_ENODEVICE);
        EXPECT(strstr(err.text, "no NVIDIA driver: libcuda.so.1") != NULL);
    }
}
static void the_built_module_opens_without_a_driver(void) {
    in_child(use_built_module);
}

/* Every call answers; none may crash because there is nothing behind it. */
static void call_without_driver(void) {
    const cuda_module *m = NULL;
    inferd_err err = {0};
    EXPECT_EQ(cuda_module_open(CUDA_MODULE_BUILT, &m, &err), INFERD_OK);
    if (m == NULL || m->api->init() == CU_OK) return;
    const cu_api *api = m->api;
    uint64_t a, b;
    uint32_t n;
    void *p = (void *)(uintptr_t)1;
    size_t granularity;
    cu_device d;
    cu_stream s = NULL;
    cu_event e = NULL;
    cu_handle h;
    cu_health health;
    cu_function_info info;
    lt_algo algo = {0};
    lt_shape shape = {.m = 1, .n = 8, .k = 8, .x_stride = 8, .w_stride = 8, .out_stride = 8};
    EXPECT(api->device_count(&n) != CU_OK && n == 0);
    EXPECT(api->device_about(0, &d) != CU_OK);
    EXPECT(api->device_use(0) != CU_OK);
    EXPECT(api->memory_info(&a, &b) != CU_OK);
    EXPECT(api->alloc(64, &p) != CU_OK && p == NULL);
    EXPECT(api->host_alloc(64, &p) != CU_OK && p == NULL);
    EXPECT(api->vmm_granularity(&granularity) != CU_OK);
    EXPECT(api->vmm_reserve(1 << 21, 0, &p) != CU_OK && p == NULL);
    EXPECT(api->vmm_create(1 << 21, &h) != CU_OK);
    EXPECT(api->stream_create(true, &s) != CU_OK && s == NULL);
    EXPECT(api->event_create(false, &e) != CU_OK && e == NULL);
    EXPECT(api->kernel_load(m->kernels[0].fn, 32, 0, &info) != CU_OK);
    EXPECT(strlen(api->text()) > 10);
    EXPECT_EQ(api->device_health(0, &health), CU_OK);
    EXPECT(!health.known && health.temperature_c == -1 && health.memory_used_bytes == -1);
    EXPECT_EQ(api->lt_version(), 0);
    EXPECT_EQ(api->lt_candidates(&shape, 0, 1, &algo, &n), CU_EUNSUPPORTED);
    EXPECT_EQ(api->lt_open("/proc/self/cmdline"), CU_EUNSUPPORTED);
    EXPECT(strstr(api->text(), "configured path: /proc/self/cmdline") != NULL);
    if (api->lt_open(NULL) == CU_OK) {
        EXPECT_EQ(api->lt_version() / 10000, 13);
        EXPECT(api->lt_candidates(&shape, 0, 1, &algo, &n) != CU_OK && n == 0);
    } else {
        EXPECT(strstr(api->text(), "nvidia-cublas") != NULL);
    }
}
static void every_call_fails_politely_without_a_driver(void) {
    in_child(call_without_driver);
}
#endif

static const test_case cases[] = {
    TEST(a_process_opens_one_module_once),
    TEST(a_wrong_module_is_refused_with_the_reason),
    TEST(a_configured_path_comes_before_the_environment),
    TEST(a_missing_module_says_where_it_was_looked_for),
    TEST(threads_get_the_same_module),
    TEST(a_module_near_the_program_is_found),
    TEST(a_module_that_others_may_write_is_not_loaded),
    TEST(devices_are_listed_with_their_health),
    TEST(without_nvml_only_the_own_device_is_asked_what_is_free),
    TEST(a_device_that_fails_does_not_hide_the_others),
    TEST(a_device_is_picked_by_index_or_uuid),
    TEST(a_device_that_is_not_there_names_those_that_are),
    TEST(an_instance_that_is_named_is_shown),
    TEST(what_is_missing_is_said_in_one_line),
#ifdef CUDA_MODULE_BUILT
    TEST(the_built_module_opens_without_a_driver),
    TEST(every_call_fails_politely_without_a_driver),
#endif
};
int main(int argc, char **argv) {
    unsetenv(CUDA_MODULE_ENV); // tests of kernels read it too
    return test_run(cases, INFERD_COUNT(cases), argc, argv);
}
