/* devices.c - see devices.h. */
#include "devices.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_kind(const config_device *d, const char *kind) {
    return strcmp(d->kind != NULL ? d->kind : "auto", kind) == 0;
}

static bool is_wanted(const backend_device_about *a, const char *uuid, uint32_t index) {
    return uuid != NULL ? strncasecmp(a->uuid, uuid, strlen(uuid)) == 0 : a->index == index;
}

/* The one that was asked for is among those found; else what was asked for, and what there is. */
static inferd_status check_there(const config_device *d, const backend_device_about *found,
                                 uint32_t n, inferd_err *err) {
    char text[INFERD_ERR_TEXT_BYTES];
    int used;
    for (uint32_t i = 0; i < n; i++)
        if (is_wanted(&found[i], d->uuid, d->index)) return INFERD_OK;
    if (d->uuid != NULL)
        used = snprintf(text, sizeof text, "devices[0].uuid is \"%.47s\"", d->uuid);
    else
        used = snprintf(text, sizeof text, "devices[0].index is %u", d->index);
    used += snprintf(text + used, sizeof text - (size_t)used, "; this machine has %u GPU%s:", n,
                     n == 1 ? "" : "s");
    for (uint32_t i = 0; i < n && (size_t)used < sizeof text; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s %u %s %s", i > 0 ? "," : "",
                         found[i].index, found[i].name, found[i].uuid);
    return inferd_fail(err, INFERD_ENOTFOUND, "%s", text);
}

inferd_status devices_resolve(const config_device *d, backend_options *out, inferd_err *note,
                              inferd_err *err) {
    backend_device_about found[BE_DEVICES_MAX];
    uint32_t n = 0;
    *note = (inferd_err){0};
    *out = (backend_options){.kind = "cuda",
                             .n_threads = d->threads,
                             .memory_bytes = d->memory_bytes,
                             .exact_math = d->cpu_math != NULL && strcmp(d->cpu_math, "exact") == 0,
                             .uuid = d->uuid,
                             .index = d->index,
                             .cores = d->cores,
                             .reserve_bytes = d->reserve_bytes,
                             .workspace_bytes = d->workspace_bytes,
                             .activations = d->activations,
                             .module_path = d->module,
                             .module = out->module,
                             .cublaslt_path = d->cublaslt,
                             .tune_path = d->tune_cache};
    if (!is_kind(d, "cpu")) {
        inferd_status s = backend_list_devices(out, found, &n, note);
        if (s == INFERD_OK) return check_there(d, found, n, err);
        if (is_kind(d, "cuda")) {
            *err = *note;
            return s;
        }
    }
    out->kind = "cpu";
    if (out->memory_bytes == 0) out->memory_bytes = CPU_MEMORY_BYTES;
    return INFERD_OK;
}

static bool replace_text(char **slot, const char *text) {
    char *copy = text != NULL ? strdup(text) : NULL;
    if (text != NULL && copy == NULL) return false;
    free(*slot);
    *slot = copy;
    return true;
}

bool devices_parse(const char *text, config_device *d) {
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    char *end;
    bool plain = colon == NULL && (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0 ||
                                   strcmp(text, "auto") == 0);
    if (plain) return replace_text(&d->kind, text) && replace_text(&d->uuid, NULL);
    if (n == 4 && strncmp(text, "cuda", 4) == 0 && colon[1] >= '0' && colon[1] <= '9') {
        unsigned long index = strtoul(colon + 1, &end, 10);
        if (*end == 0 && index < BE_DEVICES_MAX) {
            d->index = (uint32_t)index;
            return replace_text(&d->kind, "cuda") && replace_text(&d->uuid, NULL);
        }
    }
    if (strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0)
        return replace_text(&d->kind, "cuda") && replace_text(&d->uuid, text);
    fprintf(stderr,
            "inferd: --device is \"%s\"; expected cpu, cuda, cuda:INDEX, auto or a UUID (GPU-..., "
            "MIG-...)\n",
            text);
    return false;
}

bool devices_look(const backend_options *o, backend_device_about *out) {
    backend_device_about found[BE_DEVICES_MAX];
    uint32_t n = 0;
    inferd_err err = {0};
    if (backend_list_devices(o, found, &n, &err) != INFERD_OK) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_wanted(&found[i], o->uuid, o->index)) continue;
        *out = found[i];
        return true;
    }
    return false;
}
