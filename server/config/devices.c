/* devices.c - see devices.h. */
#include "devices.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool is_kind(const config_device *d, const char *kind) {
    return strcmp(d->kind != NULL ? d->kind : "auto", kind) == 0;
}

static bool is_wanted(const backend_device_about *a, const char *uuid, uint32_t index) {
    if (uuid != NULL && a->uuid[0] == 0) return false; // its UUID is not known
    return uuid != NULL ? strncasecmp(a->uuid, uuid, strlen(uuid)) == 0 : a->index == index;
}

/* "devices[1].gpu is "GPU-8f"", "devices[0].gpu is 3" */
static int say_wanted(const config_device *d, uint32_t device_idx, char *text, size_t n) {
    const config_gpu *g = &d->gpu;
    return g->uuid != NULL ? snprintf(text, n, "devices[%u].gpu is \"%.47s\"", device_idx, g->uuid)
                           : snprintf(text, n, "devices[%u].gpu is %u", device_idx, g->index);
}

/* Why a MIG instance is not found: "; MIG instances: MIG-1, MIG-2; CUDA_VISIBLE_DEVICES is ..." */
static void say_instances(const backend_options *o, char *text, size_t n_bytes) {
    backend_instance all[BE_DEVICES_MAX];
    uint32_t n = backend_list_instances(o, BE_DEVICES_MAX, all);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int used = 0;
    for (uint32_t i = 0; i < n && (size_t)used < n_bytes; i++)
        used += snprintf(text + used, n_bytes - (size_t)used, "%s %s",
                         i == 0 ? "; MIG instances:" : ",", all[i].uuid);
    if (visible != NULL && (size_t)used < n_bytes)
        snprintf(text + used, n_bytes - (size_t)used, "; CUDA_VISIBLE_DEVICES is \"%.100s\"",
                 visible);
}

/* Checks that the wanted device was found without a problem; else the error names the wanted one
 * and those found.  Problems of other devices do not matter. */
static inferd_status check_there(const backend_options *o, const config_device *d,
                                 uint32_t device_idx, const backend_device_about *found, uint32_t n,
                                 const backend_device_about **it, inferd_err *err) {
    char text[INFERD_ERR_TEXT_BYTES];
    int used;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_wanted(&found[i], d->gpu.uuid, d->gpu.index)) continue;
        *it = &found[i];
        if (found[i].problem.status == INFERD_OK) return INFERD_OK;
        *err = found[i].problem;
        say_wanted(d, device_idx, text, sizeof text);
        inferd_context(err, "%s", text);
        return err->status;
    }
    used = say_wanted(d, device_idx, text, sizeof text);
    used += snprintf(text + used, sizeof text - (size_t)used, "; this machine has %u GPU%s:", n,
                     n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && (size_t)used < sizeof text; i++)
        used += found[i].uuid[0] != 0
                    ? snprintf(text + used, sizeof text - (size_t)used, "%s %u %s %s",
                               i > 0 ? "," : "", found[i].index, found[i].name, found[i].uuid)
                    : snprintf(text + used, sizeof text - (size_t)used, "%s (%s)", i > 0 ? "," : "",
                               found[i].problem.text);
    if (used < (int)sizeof text && d->gpu.uuid != NULL && strncasecmp(d->gpu.uuid, "MIG-", 4) == 0)
        say_instances(o, text + used, sizeof text - (size_t)used);
    return inferd_fail(err, INFERD_ENOTFOUND, "%s", text);
}

static inferd_status resolve_cpu(backend_options *out) {
    out->kind = "cpu";
    if (out->memory_bytes == 0) out->memory_bytes = CPU_MEMORY_BYTES;
    return INFERD_OK;
}

static const char *of_environment(const char *name) {
    const char *value = getenv(name);
    return value != NULL && value[0] != 0 ? value : NULL;
}

/* The same, plus the known facts about a GPU. */
static inferd_status resolve(const config_device *d, uint32_t device_idx, backend_options *out,
                             backend_device_about *about, inferd_err *note, inferd_err *err) {
    backend_device_about found[BE_DEVICES_MAX];
    const backend_device_about *it = NULL;
    uint32_t n = 0;
    *note = (inferd_err){0};
    *about = (backend_device_about){0};
    *out = (backend_options){.kind = "cuda",
                             .n_threads = d->threads,
                             .memory_bytes = d->memory_bytes,
                             .exact_math = d->cpu_math != NULL && strcmp(d->cpu_math, "exact") == 0,
                             .uuid = d->gpu.uuid,
                             .index = d->gpu.index,
                             .cores = d->cores,
                             .module = out->module,
                             .cublaslt_path = of_environment(CUBLASLT_ENV),
                             .tune_path = of_environment(CUDA_TUNE_ENV)};
    if (is_kind(d, "cpu")) return resolve_cpu(out);
    inferd_status s = backend_list_devices(out, found, &n, note);
    if (s == INFERD_OK) {
        s = check_there(out, d, device_idx, found, n, &it, err);
        if (s == INFERD_OK) *about = *it;
        return s;
    }
    bool there = s == INFERD_EBUSY; // a GPU that is not ready yet is no reason to take the CPU
    if (!is_kind(d, "cuda") && !there) return resolve_cpu(out);
    *err = *note;
    return s;
}

inferd_status devices_resolve(const config_device *d, uint32_t device_idx, backend_options *out,
                              inferd_err *note, inferd_err *err) {
    backend_device_about about;
    return resolve(d, device_idx, out, &about, note, err);
}

/* ---- all of a configuration ---- */

static bool is_taken(const inferd_config *c, const devices_found *f, uint32_t n, const char *name) {
    for (uint32_t i = 0; i < c->n_devices; i++)
        if (c->devices[i].name != NULL && strcmp(c->devices[i].name, name) == 0) return true;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(f->names[i], name) == 0) return true;
    return false;
}

static void name_device(const inferd_config *c, devices_found *f, uint32_t i) {
    const config_device *d = &c->devices[i];
    const backend_options *o = &f->devices[i].backend;
    bool gpu = strcmp(o->kind, "cuda") == 0;
    uint32_t number = gpu ? f->about[i].index : 0;
    if (d->name != NULL) {
        snprintf(f->names[i], sizeof f->names[i], "%s", d->name);
        return;
    }
    do {
        snprintf(f->names[i], sizeof f->names[i], "%s%u", gpu ? "gpu" : "cpu", number++);
    } while (is_taken(c, f, i, f->names[i]));
}

/* The configuration can name one GPU twice, by UUID and by index, without being invalid. */
static inferd_status check_once(const devices_found *f, uint32_t i, inferd_err *err) {
    for (uint32_t k = 0; k < i && f->about[i].uuid[0] != 0; k++)
        if (strcmp(f->about[k].uuid, f->about[i].uuid) == 0)
            return inferd_fail(err, INFERD_EINVAL,
                               "devices[%u] and devices[%u] are one GPU, %s: each is used once", k,
                               i, f->about[i].uuid);
    return INFERD_OK;
}

/* Memory for models before the device is open.  If only the device knows its free memory, it is
 * asked; this process will compute on it soon anyway. */
static inferd_status guess_memory(devices_found *f, uint32_t i, inferd_err *err) {
    fleet_device *d = &f->devices[i];
    const backend_options *o = &d->backend;
    bool cpu = strcmp(o->kind, "cpu") == 0;
    if (!cpu && o->memory_bytes == 0 && !f->about[i].free_known) {
        inferd_status s = backend_look(o, true, &f->about[i], err);
        if (s != INFERD_OK) return s;
    }
    d->memory_bytes = o->memory_bytes;
    if (d->memory_bytes == 0) d->memory_bytes = f->about[i].free_bytes;
    return INFERD_OK;
}

inferd_status devices_resolve_all(const inferd_config *c, const struct cuda_module *module,
                                  devices_found *out, inferd_err *err) {
    *out = (devices_found){0};
    for (uint32_t i = 0; i < c->n_devices; i++) {
        inferd_err note;
        fleet_device *d = &out->devices[i];
        d->backend.module = module;
        inferd_status s = resolve(&c->devices[i], i, &d->backend, &out->about[i], &note, err);
        if (s == INFERD_OK) s = check_once(out, i, err);
        if (s == INFERD_OK) s = guess_memory(out, i, err);
        if (s != INFERD_OK) {
            if (strncmp(err->text, "devices[", strlen("devices[")) != 0 && c->n_devices > 1)
                inferd_context(err, "devices[%u]", i);
            return s;
        }
        if (note.text[0] != 0) out->note = note;
        name_device(c, out, i);
        d->name = out->names[i];
        out->n++;
    }
    return INFERD_OK;
}

static bool replace_text(char **slot, const char *text) {
    char *copy = text != NULL ? strdup(text) : NULL;
    if (text != NULL && copy == NULL) return false;
    free(*slot);
    *slot = copy;
    return true;
}

/* PCI devices of the vendor, or the one of Windows' subsystem for Linux. */
bool devices_may_have_gpu(void) {
    glob_t found;
    bool any = access("/dev/dxg", F_OK) == 0 || access("/proc/driver/nvidia", F_OK) == 0;
    if (any || glob("/sys/bus/pci/devices/*/vendor", 0, NULL, &found) != 0) return any;
    for (size_t i = 0; i < found.gl_pathc && !any; i++) {
        char vendor[16] = "";
        FILE *f = fopen(found.gl_pathv[i], "r");
        any = f != NULL && fgets(vendor, sizeof vendor, f) != NULL &&
              strncmp(vendor, "0x10de", 6) == 0;
        if (f != NULL) fclose(f);
    }
    globfree(&found);
    return any;
}

bool devices_parse(const char *text, config_device *d) {
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    char *end;
    bool plain = colon == NULL && (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0 ||
                                   strcmp(text, "auto") == 0);
    if (plain) return replace_text(&d->kind, text) && replace_text(&d->gpu.uuid, NULL);
    if (n == 4 && strncmp(text, "cuda", 4) == 0 && colon[1] >= '0' && colon[1] <= '9') {
        unsigned long index = strtoul(colon + 1, &end, 10);
        if (*end == 0 && index < BE_DEVICES_MAX) {
            d->gpu.index = (uint32_t)index;
            return replace_text(&d->kind, "cuda") && replace_text(&d->gpu.uuid, NULL);
        }
    }
    if (strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0)
        return replace_text(&d->kind, "cuda") && replace_text(&d->gpu.uuid, text);
    fprintf(stderr,
            "inferd: --device is \"%s\"; expected cpu, cuda, cuda:INDEX, auto or a UUID (GPU-..., "
            "MIG-...)\n",
            text);
    return false;
}
