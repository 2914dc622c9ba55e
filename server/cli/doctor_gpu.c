/* doctor_gpu.c - checks of NVIDIA GPUs; see doctor.h.
 *
 * Files of the driver first: they answer without the module, and when the driver is broken.  Then
 * what the module lists, as `inferd devices` does, and two settings that only NVML knows. */
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "devices.h"
#include "doctor.h"

enum { DRIVER_MIN = 580 }; // first driver branch of CUDA 13

/* A GPU is a must: it is configured as "cuda". */
static bool is_must(const doctor *d) {
    for (uint32_t i = 0; d->config != NULL && i < d->config->n_devices; i++)
        if (d->config->devices[i].kind != NULL && strcmp(d->config->devices[i].kind, "cuda") == 0)
            return true;
    return false;
}

static doctor_level bad(const doctor *d) {
    return is_must(d) ? DOCTOR_PROBLEM : DOCTOR_WARNING;
}

/* The first number with a dot: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...". */
static bool find_version(const char *text, char out[32]) {
    for (const char *p = text; *p != 0; p++) {
        size_t n = strspn(p, "0123456789"), all = strspn(p, "0123456789.");
        if (n >= 3 && all > n && (p == text || p[-1] == ' ')) {
            snprintf(out, 32, "%.*s", (int)all, p);
            return true;
        }
    }
    return false;
}

/* True: the driver is loaded. */
static bool check_driver(doctor *d) {
    char text[512], version[32];
    bool loaded = doctor_read(d, "/proc/driver/nvidia/version", text, sizeof text) &&
                  find_version(text, version);
    if (!loaded && doctor_read(d, "/sys/module/nvidia/version", text, sizeof text)) {
        snprintf(version, sizeof version, "%.31s", text);
        loaded = true;
    }
    if (doctor_exists(d, "/dev/dxg") && !loaded) {
        doctor_add(d, DOCTOR_OK, "gpu.driver", "that of Windows, through WSL");
        return true;
    }
    if (!loaded) {
        doctor_add(d, bad(d), "gpu.driver", "there is a GPU of NVIDIA, and no driver is loaded");
        doctor_advise(d,
                      "install NVIDIA's driver %d or newer, then modprobe nvidia; in a "
                      "container: docker --gpus all",
                      DRIVER_MIN);
        return false;
    }
    bool old = atoi(version) < DRIVER_MIN;
    doctor_add(d, old ? bad(d) : DOCTOR_OK, "gpu.driver", "%s", version);
    if (old)
        doctor_advise(d, "the module is built for CUDA 13: install driver %d or newer", DRIVER_MIN);
    return true;
}

static void check_nodes(doctor *d) {
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    char pattern[PATH_MAX], path[PATH_MAX], missing[128] = "", closed[128] = "";
    glob_t found = {0};
    if (doctor_exists(d, "/dev/dxg")) return;
    snprintf(pattern, sizeof pattern, "%s/dev/nvidia[0-9]*", d->root);
    bool any = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 0;
    if (!any) snprintf(missing, sizeof missing, "/dev/nvidia0");
    for (size_t i = 0; any && i < found.gl_pathc; i++)
        if (!d->facts.can(found.gl_pathv[i], R_OK | W_OK))
            snprintf(closed, sizeof closed, "%s", found.gl_pathv[i] + strlen(d->root));
    for (size_t i = 0; i < INFERD_COUNT(nodes); i++) {
        snprintf(path, sizeof path, "%s%s", d->root, nodes[i]);
        if (access(path, F_OK) != 0)
            snprintf(missing, sizeof missing, "%s", nodes[i]);
        else if (!d->facts.can(path, R_OK | W_OK))
            snprintf(closed, sizeof closed, "%s", nodes[i]);
    }
    size_t n = any ? found.gl_pathc : 0;
    globfree(&found);
    bool fine = missing[0] == 0 && closed[0] == 0;
    if (fine)
        doctor_add(d, DOCTOR_OK, "gpu.nodes", "%zu of /dev/nvidia*, open to this user", n);
    else if (missing[0] != 0)
        doctor_add(d, bad(d), "gpu.nodes", "%s is not there", missing);
    else
        doctor_add(d, bad(d), "gpu.nodes", "%s may not be opened by this user", closed);
    if (!fine)
        doctor_advise(d, missing[0] != 0
                             ? "nvidia-modprobe -u -c 0, or start nvidia-persistenced; in a "
                               "container: docker --gpus all"
                             : "add the user of inferd to the group of the node (ls -l "
                               "/dev/nvidia*); in a service: DevicePolicy=auto");
}

/* Instances that the driver shows as folders; MIG mode without one serves nothing. */
static void check_mig(doctor *d) {
    char pattern[PATH_MAX];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s/proc/driver/nvidia/capabilities/gpu*/mig/gi*", d->root);
    size_t n = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    if (n > 0)
        doctor_add(d, DOCTOR_OK, "gpu.mig",
                   "%zu instances: a process sees one, which devices[].gpu names by its UUID", n);
    else
        doctor_add(d, DOCTOR_OK, "gpu.mig", "no instances");
}

static void check_mps(doctor *d) {
    char path[PATH_MAX];
    const char *folder = d->facts.mps_folder != NULL ? d->facts.mps_folder : "/tmp/nvidia-mps";
    snprintf(path, sizeof path, "%s/control", folder);
    if (!doctor_exists(d, path)) {
        doctor_add(d, DOCTOR_OK, "gpu.mps", "no server");
        return;
    }
    doctor_add(d, DOCTOR_WARNING, "gpu.mps", "a server in %.200s", folder);
    doctor_advise(d, "a fault of another client ends inferd (status 70), and other clients take "
                     "time that shares do not know: stop it (echo quit | nvidia-cuda-mps-control) "
                     "unless it is meant");
}

void doctor_check_gpu(doctor *d) {
    if (!doctor_has_gpu(d)) {
        doctor_add(d, is_must(d) ? DOCTOR_PROBLEM : DOCTOR_OK, "gpu.device", "no GPU of NVIDIA");
        if (is_must(d))
            doctor_advise(d, "devices[].kind is \"cuda\": use \"cpu\" or \"auto\", or give the "
                             "machine a GPU (in a container: docker --gpus all)");
        return;
    }
    if (!doctor_uses_gpu(d)) {
        doctor_add(d, DOCTOR_OK, "gpu.device", "the configuration uses none");
        return;
    }
    if (!check_driver(d)) return;
    check_nodes(d);
    check_mig(d);
    check_mps(d);
}

/* ---- what the module says ---- */

static void tell_device(doctor *d, const backend_device_about *a) {
    if (a->problem.status != INFERD_OK) {
        doctor_add(d, bad(d), "gpu.device", "%u: %s", a->index, a->problem.text);
        doctor_advise(d, "`inferd devices` and docs/gpu.md say more");
        return;
    }
    bool hurt = a->health.known && (a->health.ecc_uncorrected > 0 || a->health.remap_pending == 1);
    bool hot = a->health.known && a->health.throttle_thermal == 1;
    doctor_add(d, hurt || hot ? DOCTOR_WARNING : DOCTOR_OK, "gpu.device",
               "%u: %s, sm_%u%u, %.1f of %.1f GiB free%s%s", a->index, a->name, a->cc_major,
               a->cc_minor, (double)a->free_bytes / 1073741824.0,
               (double)a->memory_bytes / 1073741824.0, a->mig ? ", a MIG instance" : "",
               hurt  ? ", with ECC errors or a pending row remapping"
               : hot ? ", slowed by heat"
                     : "");
    if (hurt) doctor_advise(d, "reset the GPU (nvidia-smi -r), and look at `nvidia-smi -q -d ECC`");
    if (hot && !hurt) doctor_advise(d, "look at cooling: `nvidia-smi -q -d PERFORMANCE`");
}

/* NVML's own settings, looked up by name: inferd is not linked with it. */
static void check_modes(doctor *d) {
    typedef int no_args(void);
    typedef int get_handle(unsigned, void **);
    typedef int get_mode(void *, int *);
    static const char *const names[] = {"nvmlInit_v2", "nvmlShutdown",
                                        "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetComputeMode",
                                        "nvmlDeviceGetPersistenceMode"};
    enum { INIT, END, HANDLE, COMPUTE, PERSISTENCE, CALLS, EXCLUSIVE = 3, PROHIBITED = 2 };
    void *calls[CALLS], *gpu = NULL, *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    bool all = nvml != NULL;
    for (int i = 0; i < CALLS && all; i++) all = (calls[i] = dlsym(nvml, names[i])) != NULL;
    no_args *init, *end;
    get_handle *handle;
    get_mode *mode;
    if (all) {
        memcpy(&init, &calls[INIT], sizeof init);
        memcpy(&end, &calls[END], sizeof end);
        memcpy(&handle, &calls[HANDLE], sizeof handle);
        int compute = 0, persistence = -1;
        if (init() == 0) {
            if (handle(0, &gpu) == 0) {
                memcpy(&mode, &calls[COMPUTE], sizeof mode);
                mode(gpu, &compute);
                memcpy(&mode, &calls[PERSISTENCE], sizeof mode);
                if (mode(gpu, &persistence) != 0) persistence = -1;
            }
            end();
        }
        bool never = compute == PROHIBITED;
        doctor_add(d, never ? bad(d) : DOCTOR_OK, "gpu.compute_mode", "%s",
                   never                  ? "prohibited"
                   : compute == EXCLUSIVE ? "exclusive: inferd must be the only process"
                                          : "default");
        if (never) doctor_advise(d, "nvidia-smi -c DEFAULT");
        doctor_add(d, persistence == 0 ? DOCTOR_WARNING : DOCTOR_OK, "gpu.persistence", "%s",
                   persistence == 0   ? "off"
                   : persistence == 1 ? "on"
                                      : "not told");
        if (persistence == 0)
            doctor_advise(d, "each start waits some seconds for the driver: start "
                             "nvidia-persistenced, or nvidia-smi -pm 1");
    }
    if (nvml != NULL) dlclose(nvml);
}

void doctor_check_gpu_module(doctor *d) {
    static backend_device_about found[BE_DEVICES_MAX];
    uint32_t n = 0;
    inferd_err err = {0};
    backend_options o = {.kind = "cuda", .module_path = d->module};
    bool there = doctor_uses_gpu(d) && doctor_has_gpu(d);
    if (!there && !is_must(d) && d->module == NULL) return;
    if (backend_list_devices(&o, found, &n, &err) != INFERD_OK) {
        doctor_add(d, bad(d), "gpu.module", "%s", err.text);
        doctor_advise(d, err.status == INFERD_EBUSY
                             ? "wait for the machine's GPU services (nvidia-fabricmanager)"
                             : "install the package inferd-cuda, or build with "
                               "-DINFERD_CUDA=ON; docs/gpu.md says where the module is looked for");
        return;
    }
    doctor_add(d, DOCTOR_OK, "gpu.module", "found, %u GPU%s", n, n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n; i++) tell_device(d, &found[i]);
    check_modes(d);
}
