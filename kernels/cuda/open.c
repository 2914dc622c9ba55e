/* open.c - finding inferd_cuda.so, and the devices it supports.
 *
 * A module that is configured, or that exists in a searched place, must also open: a broken module
 * is an error, and the search ends.  A module is loaded only when no user except root and that of
 * this process can have written it: any user may make "../lib/inferd" beside a program in a shared
 * folder.
 *
 * Thread: any; one lock guards the open module. */
#include "cuda/open.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const cuda_module *open_module; // NULL until one was opened
static char open_path[PATH_MAX];       // of the file it came from

/* ---- the module ---- */

/* The file a module was loaded from, by the loader. */
static bool file_of(cuda_module_fn *get, char out[PATH_MAX]) {
    Dl_info info;
    void *address;
    memcpy(&address, &get, sizeof address);
    return dladdr(address, &info) != 0 && info.dli_fname != NULL &&
           realpath(info.dli_fname, out) != NULL;
}

/* Refuses a path that another user can have written.  `above`: a folder above that of the module;
 * other users may own it, but may not rename its entries (the sticky bit, as of /tmp, prevents
 * that). */
static inferd_status check_one(const char *file, const char *path, bool above, inferd_err *err) {
    struct stat st;
    if (stat(path, &st) != 0)
        return inferd_fail(err, INFERD_EIO, "the CUDA module %s: %s: %s", file, path,
                           strerror(errno));
    if (!above && st.st_uid != 0 && st.st_uid != geteuid())
        return inferd_fail(err, INFERD_EIO,
                           "the CUDA module %s is not loaded: %s belongs to user %u, expected root "
                           "or user %u",
                           file, path, (unsigned)st.st_uid, (unsigned)geteuid());
    bool sticky = (st.st_mode & S_ISVTX) != 0;
    bool open =
        above ? (st.st_mode & S_IWOTH) != 0 && !sticky : (st.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    if (!open) return INFERD_OK;
    return inferd_fail(err, INFERD_EIO,
                       "the CUDA module %s is not loaded: %s may be written by %s (mode %04o), "
                       "expected by its owner only (chmod go-w)",
                       file, path, (st.st_mode & S_IWOTH) != 0 ? "every user" : "its group",
                       (unsigned)st.st_mode & 07777);
}

/* The file, its folder, and the folders above.  The loader finds a name without a slash. */
static inferd_status check_owners(const char *file, inferd_err *err) {
    char path[PATH_MAX];
    if (strchr(file, '/') == NULL) return INFERD_OK;
    if (realpath(file, path) == NULL)
        return inferd_fail(err, INFERD_EIO, "the CUDA module %s: %s", file, strerror(errno));
    inferd_status s = check_one(file, path, false, err);
    for (int depth = 0; s == INFERD_OK && strcmp(path, "/") != 0; depth++) {
        char *slash = strrchr(path, '/');
        slash[slash == path] = 0; // the root keeps its slash
        s = check_one(file, path, depth > 0, err);
    }
    return s;
}

/* Lock held. */
static inferd_status open_file(const char *file, const cuda_module **out, inferd_err *err) {
    inferd_status checked = check_owners(file, err);
    if (checked != INFERD_OK) return checked;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *why = dlerror(); // begins with the file's name
        return inferd_fail(err, INFERD_EIO, "the CUDA module cannot be loaded: %s", why);
    }
    cuda_module_fn *get = NULL;
    void *symbol = dlsym(library, CUDA_MODULE_SYMBOL);
    memcpy(&get, &symbol, sizeof get);
    const cuda_module *m = get == NULL ? NULL : get();
    if (m == NULL || m->version != CUDA_MODULE_VERSION) {
        inferd_status s =
            m == NULL
                ? inferd_fail(err, INFERD_EUNSUPPORTED,
                              "%s is not a CUDA module of inferd: it has no %s", file,
                              CUDA_MODULE_SYMBOL)
                : inferd_fail(err, INFERD_EUNSUPPORTED,
                              "the CUDA module %s is version %u, this inferd needs version %d: "
                              "install both from one build",
                              file, m->version, CUDA_MODULE_VERSION);
        dlclose(library);
        return s;
    }
    if (!file_of(get, open_path)) snprintf(open_path, sizeof open_path, "%s", file);
    open_module = *out = m;
    return INFERD_OK;
}

/* `rest` relative to the folder of the running program. */
static bool near_program(const char *rest, char out[PATH_MAX]) {
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return false;
    program[n] = 0;
    char *slash = strrchr(program, '/');
    if (slash == NULL) return false;
    *slash = 0;
    n = snprintf(out, PATH_MAX, "%s/%s", program, rest);
    return n > 0 && n < PATH_MAX;
}

/* Lock held. */
static inferd_status find_and_open(const cuda_module **out, inferd_err *err) {
    static const char *const places[] = {CUDA_MODULE_FILE, "../lib/inferd/" CUDA_MODULE_FILE};
    char tried[INFERD_COUNT(places)][PATH_MAX];
    for (size_t i = 0; i < INFERD_COUNT(places); i++) {
        if (!near_program(places[i], tried[i]))
            snprintf(tried[i], sizeof tried[i], "%s", places[i]);
        else if (access(tried[i], F_OK) == 0)
            return open_file(tried[i], out, err);
    }
    void *library = dlopen(CUDA_MODULE_FILE, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return inferd_fail(err, INFERD_ENOTFOUND,
                           "no CUDA module: looked for %s, %s and %s on the loader's path",
                           tried[0], tried[1], CUDA_MODULE_FILE);
    inferd_status s = open_file(CUDA_MODULE_FILE, out, err);
    dlclose(library); // open_file holds its own count
    return s;
}

/* Lock held: another file than the one that is open? */
static inferd_status check_same(const char *path, inferd_err *err) {
    char wanted[PATH_MAX];
    if (path == NULL || strchr(path, '/') == NULL) return INFERD_OK; // the file the loader found
    if (realpath(path, wanted) == NULL)
        return inferd_fail(err, INFERD_ENOTFOUND, "the CUDA module %s: no such file", path);
    if (strcmp(wanted, open_path) == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL,
                       "the CUDA module %s cannot be opened: this process already uses %s", path,
                       open_path);
}

inferd_status cuda_module_open(const char *path, const cuda_module **out, inferd_err *err) {
    const char *named = path, *env = getenv(CUDA_MODULE_ENV);
    if ((named == NULL || named[0] == 0) && env != NULL && env[0] != 0) named = env;
    if (named != NULL && named[0] == 0) named = NULL;
    *out = NULL;
    pthread_mutex_lock(&lock);
    inferd_status s;
    if (open_module != NULL) {
        s = check_same(named, err);
        if (s == INFERD_OK) *out = open_module;
    } else if (named == NULL) {
        s = find_and_open(out, err);
    } else if (strchr(named, '/') != NULL && access(named, F_OK) != 0) {
        s = inferd_fail(err, INFERD_ENOTFOUND, "the CUDA module %s: no such file", named);
    } else {
        s = open_file(named, out, err);
    }
    pthread_mutex_unlock(&lock);
    return s;
}

/* ---- devices ---- */

static bool begins(const char *text, const char *with, size_t n) {
    return strncasecmp(text, with, n) == 0;
}

/* The instance's whole UUID, if NVML has exactly one that begins with it; else `uuid` itself.
 * NULL: NVML has instances, and none of them matches. */
static const char *whole_uuid(const cuda_module *m, const char *uuid, cu_instance *space) {
    static _Thread_local cu_instance all[BE_DEVICES_MAX];
    uint32_t n_found = 0, n = m->api->instances(BE_DEVICES_MAX, all);
    for (uint32_t i = 0; i < n; i++)
        if (begins(all[i].uuid, uuid, strlen(uuid)) && n_found++ == 0) *space = all[i];
    if (n > 0 && n_found == 0) return NULL;
    return n_found == 1 ? space->uuid : uuid;
}

/* CUDA shows a process one MIG instance: the first that CUDA_VISIBLE_DEVICES names, or the first of
 * the machine.  So the variable is set before CUDA begins, when the wanted instance is known.  A
 * value that the environment already has stays, except a list that has the instance.
 *
 * Only the first query of the devices changes the environment, before other threads run. */
static void show_instance(const cuda_module *m, const char *uuid) {
    const char *visible = getenv(CUDA_VISIBLE_ENV);
    cu_instance space;
    if (uuid == NULL || !begins(uuid, "MIG-", 4)) return;
    const char *whole = whole_uuid(m, uuid, &space);
    if (whole == NULL) return; // the error then lists the devices that CUDA shows
    if (visible == NULL) {
        setenv(CUDA_VISIBLE_ENV, whole, 1);
        return;
    }
    if (strchr(visible, ',') == NULL) return;
    for (const char *at = visible; *at != 0; at += strcspn(at, ","), at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n < 5 || !begins(at, whole, size_min(n, strlen(whole)))) continue;
        setenv(CUDA_VISIBLE_ENV, whole, 1);
        return;
    }
}

/* `uuid`: of the wanted device, or NULL. */
static inferd_status count(const cuda_module *m, const char *uuid, uint32_t *n, inferd_err *err) {
    show_instance(m, uuid);
    cu_result r = m->api->init();
    if (r == CU_OK) r = m->api->device_count(n);
    if (r != CU_OK) return cu_fail(m->api, r, err, "CUDA");
    if (*n == 0) return inferd_fail(err, INFERD_ENOTFOUND, "CUDA: this machine has no device");
    *n = u32_min(*n, BE_DEVICES_MAX);
    return INFERD_OK;
}

static inferd_status look(const cuda_module *m, uint32_t index, cu_device *out, inferd_err *err) {
    cu_result r = m->api->device_about(index, out);
    if (r == CU_OK) return INFERD_OK;
    inferd_status s = cu_fail(m->api, r, err, "CUDA");
    inferd_context(err, "device %u", index);
    return s;
}

static void tell_health(const cu_health *h, backend_device_about *out) {
    out->health.known = h->known;
    out->health.temperature_c = h->temperature_c;
    out->health.power_w = h->power_w;
    out->health.utilization_pct = h->utilization_pct;
    out->health.memory_used_bytes = h->memory_used_bytes;
    out->health.ecc_uncorrected = h->ecc_uncorrected;
    out->health.remapped_rows = h->remapped_rows;
    out->health.remap_pending = h->remap_pending;
    out->health.throttle_thermal = h->throttle_thermal;
}

/* NVML knows the use of all processes, and needs no context.  Without it free memory stays unknown:
 * that would need a context (some 500 MiB), and a query must not make one on every GPU. */
static void tell_memory(const cu_health *h, backend_device_about *out) {
    if (!h->known || h->memory_used_bytes < 0) return;
    uint64_t used = (uint64_t)h->memory_used_bytes;
    out->free_bytes = used < out->memory_bytes ? out->memory_bytes - used : 0;
    out->free_known = true;
}

/* "50", as the client's environment has it; the server may grant less. */
static uint32_t mps_threads(void) {
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double v = text != NULL ? strtod(text, NULL) : 0;
    return v > 0 && v <= 100 ? u32_max((uint32_t)v, 1) : 0;
}

/* Describe a device; one that fails is listed with its problem, and does not hide the others. */
static void tell(const cuda_module *m, uint32_t index, backend_device_about *out) {
    cu_device d;
    cu_health h;
    *out = (backend_device_about){.kind = "cuda", .index = index};
    if (look(m, index, &d, &out->problem) != INFERD_OK) return;
    out->n_units = d.n_sms;
    out->cc_major = d.cc_major;
    out->cc_minor = d.cc_minor;
    out->memory_bytes = d.memory_bytes;
    out->mig = d.mig;
    out->mps = d.mps;
    if (d.mps) out->mps_threads = mps_threads();
    snprintf(out->name, sizeof out->name, "%s", d.name);
    snprintf(out->uuid, sizeof out->uuid, "%s", d.uuid);
    cu_result r = m->api->device_health(index, &h);
    if (r != CU_OK) {
        cu_fail(m->api, r, &out->problem, "CUDA");
        inferd_context(&out->problem, "device %u %s", index, d.name);
        return;
    }
    tell_memory(&h, out);
    tell_health(&h, out);
}

inferd_status cuda_list(const cuda_module *m, const char *uuid, backend_device_about *out,
                        uint32_t *n, inferd_err *err) {
    uint32_t n_devices = 0;
    *n = 0;
    inferd_status s = count(m, uuid, &n_devices, err);
    if (s != INFERD_OK) return s;
    for (uint32_t i = 0; i < n_devices; i++) tell(m, i, &out[i]);
    *n = n_devices;
    return INFERD_OK;
}

/* Through the context: the free memory, and whether the context lives. */
static inferd_status look_inside(const cuda_module *m, backend_device_about *out, inferd_err *err) {
    uint64_t free_bytes = 0, total_bytes = 0;
    cu_result r = m->api->device_use(out->index);
    if (r == CU_OK) r = m->api->memory_info(&free_bytes, &total_bytes);
    if (r != CU_OK) {
        cu_fail(m->api, r, err, "CUDA");
        inferd_context(err, "device %u %s", out->index, out->name);
        return err->status;
    }
    if (!out->free_known) out->free_bytes = free_bytes;
    out->free_known = true;
    return INFERD_OK;
}

inferd_status cuda_look(const cuda_module *m, const char *uuid, uint32_t index, bool inside,
                        backend_device_about *out, inferd_err *err) {
    cu_device d;
    uint32_t chosen = 0;
    inferd_status s = cuda_pick(m, uuid, index, &chosen, &d, err);
    if (s != INFERD_OK) return s;
    tell(m, chosen, out);
    if (out->problem.status != INFERD_OK) {
        *err = out->problem;
        return err->status;
    }
    return inside ? look_inside(m, out, err) : INFERD_OK;
}

/* "this machine has 2 devices: 0 NVIDIA H200 GPU-..., 1 (CUDA: ...)" */
static inferd_status not_there(const cuda_module *m, const char *field, uint32_t n_devices,
                               inferd_err *err) {
    char text[INFERD_ERR_TEXT_BYTES];
    size_t used = (size_t)snprintf(text, sizeof text, "%s: this machine has %u device%s:", field,
                                   n_devices, n_devices == 1 ? "" : "s");
    for (uint32_t i = 0; i < n_devices && used < sizeof text; i++) {
        cu_device d;
        inferd_err why;
        bool known = look(m, i, &d, &why) == INFERD_OK;
        int added = known ? snprintf(text + used, sizeof text - used, "%s %u %s %s",
                                     i == 0 ? "" : ",", i, d.name, d.uuid)
                          : snprintf(text + used, sizeof text - used, "%s (%s)", i == 0 ? "" : ",",
                                     why.text);
        used += added > 0 ? (size_t)added : 0;
    }
    return inferd_fail(err, INFERD_ENOTFOUND, "%s", text);
}

static inferd_status pick_index(const cuda_module *m, uint32_t index, uint32_t n_devices,
                                uint32_t *chosen, cu_device *about, inferd_err *err) {
    if (index >= n_devices) {
        char field[64];
        snprintf(field, sizeof field, "device index %u", index);
        return not_there(m, field, n_devices, err);
    }
    *chosen = index;
    return look(m, index, about, err);
}

/* A whole UUID is a prefix of itself, and the only match.  An unknown UUID does not match. */
static inferd_status pick_uuid(const cuda_module *m, const char *uuid, uint32_t n_devices,
                               uint32_t *chosen, cu_device *about, inferd_err *err) {
    uint32_t n_found = 0;
    char first[CU_UUID_BYTES] = "";
    for (uint32_t i = 0; i < n_devices; i++) {
        cu_device d;
        inferd_err why;
        if (look(m, i, &d, &why) != INFERD_OK) continue;
        if (strncasecmp(uuid, d.uuid, strlen(uuid)) != 0) continue;
        if (n_found++ > 0)
            return inferd_fail(err, INFERD_EINVAL,
                               "device uuid \"%s\" begins those of two devices: %s and %s", uuid,
                               first, d.uuid);
        memcpy(first, d.uuid, sizeof first);
        *chosen = i;
        *about = d;
    }
    if (n_found == 1) return INFERD_OK;
    char field[2 * CU_UUID_BYTES];
    snprintf(field, sizeof field, "device uuid \"%.*s\"", CU_UUID_BYTES, uuid);
    return not_there(m, field, n_devices, err);
}

inferd_status cuda_pick(const cuda_module *m, const char *uuid, uint32_t index, uint32_t *chosen,
                        cu_device *about, inferd_err *err) {
    uint32_t n_devices = 0;
    inferd_status s = count(m, uuid, &n_devices, err);
    if (s != INFERD_OK) return s;
    return uuid != NULL && uuid[0] != 0 ? pick_uuid(m, uuid, n_devices, chosen, about, err)
                                        : pick_index(m, index, n_devices, chosen, about, err);
}

static inferd_status module_of(const backend_options *options, const cuda_module **out,
                               inferd_err *err) {
    *out = options->module;
    return *out != NULL ? INFERD_OK : cuda_module_open(options->module_path, out, err);
}

inferd_status cuda_list_devices(const backend_options *options, backend_device_about *out,
                                uint32_t *n, inferd_err *err) {
    const cuda_module *m;
    *n = 0;
    inferd_status s = module_of(options, &m, err);
    return s == INFERD_OK ? cuda_list(m, options->uuid, out, n, err) : s;
}

inferd_status cuda_look_device(const backend_options *options, bool inside,
                               backend_device_about *out, inferd_err *err) {
    const cuda_module *m;
    inferd_status s = module_of(options, &m, err);
    return s == INFERD_OK ? cuda_look(m, options->uuid, options->index, inside, out, err) : s;
}

uint32_t cuda_list_instances(const backend_options *options, uint32_t n_max,
                             backend_instance *out) {
    static _Thread_local cu_instance all[BE_DEVICES_MAX];
    const cuda_module *m;
    inferd_err unsaid;
    _Static_assert(sizeof all[0].name == sizeof out->name && sizeof all[0].uuid == sizeof out->uuid,
                   "they are copied whole");
    if (module_of(options, &m, &unsaid) != INFERD_OK) return 0;
    uint32_t n = m->api->instances(u32_min(n_max, BE_DEVICES_MAX), all);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (backend_instance){0};
        memcpy(out[i].name, all[i].name, sizeof out[i].name);
        memcpy(out[i].uuid, all[i].uuid, sizeof out[i].uuid);
    }
    return n;
}
