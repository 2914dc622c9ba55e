/* config_removed.c - settings of earlier versions: refused, each with what replaces it.
 *
 * A place is written as in the description, "devices[].uuid": an index counts for nothing.  Each
 * setting here once had a row in config_tables.c; CHANGELOG.md lists the same names (test_config
 * compares them).
 * Thread: any. */
#include <string.h>

#include "config_options.h"

#define USE_CLIENT_TIMEOUT "use limits.client_timeout_ms, the time for headers, bodies and readers"
#define USE_TPOT           "use policy.tpot_ms"

static const config_removed all[] = {
    {"devices[].activations", "0.1.0", "values between operations are bf16"},
    {"devices[].cublaslt", "0.1.0", "use the environment variable INFERD_CUBLASLT"},
    {"devices[].index", "0.1.0", "use \"gpu\": NUMBER"},
    {"devices[].module", "0.1.0", "use the environment variable INFERD_CUDA_MODULE"},
    {"devices[].off", "0.1.0", "use the environment variable INFERD_CUDA_OFF"},
    {"devices[].reserve", "0.1.0", "use \"memory\", less what must stay unused"},
    {"devices[].tune_cache", "0.1.0", "use the environment variable INFERD_CUDA_TUNE"},
    {"devices[].uuid", "0.1.0", "use \"gpu\": \"GPU-...\""},
    {"devices[].workspace", "0.1.0", "it follows from memory and the models' steps"},
    {"kv_disk.max", "0.1.0", "use \"kv_disk\": SIZE"},
    {"kv_disk.path", "0.1.0", "the folder is kv in state_dir, and \"kv_disk\" is a size"},
    {"limits.bodies_bytes_max", "0.1.0", "it is 256MiB, or twice body_bytes_max if that is more"},
    {"limits.body_timeout_ms", "0.1.0", USE_CLIENT_TIMEOUT},
    {"limits.choices_max", "0.1.0", "it is 128"},
    {"limits.decode_step_ms", "0.1.0", USE_TPOT},
    {"limits.device_wait_s", "0.1.0", "it is 60, or the environment variable INFERD_DEVICE_WAIT_S"},
    {"limits.file_look_ms", "0.1.0", "it is 2000"},
    {"limits.header_bytes_max", "0.1.0", "it is 16KiB"},
    {"limits.header_timeout_ms", "0.1.0", USE_CLIENT_TIMEOUT},
    {"limits.heartbeat_ms", "0.1.0", "it is half of limits.client_timeout_ms"},
    {"limits.idle_timeout_s", "0.1.0", "it is 75"},
    {"limits.json_depth_max", "0.1.0", "it is 64"},
    {"limits.json_memory_max", "0.1.0", "it is 32 times body_bytes_max, and at least 128MiB"},
    {"limits.json_structural_max", "0.1.0", "it is a quarter of body_bytes_max, at least 1048576"},
    {"limits.logit_bias_max", "0.1.0", "it is 1024"},
    {"limits.no_prefix_cache", "0.1.0",
     "blocks are always kept; a request with a cache_salt of its own uses none of them"},
    {"limits.prompts_max", "0.1.0", "it is 128"},
    {"limits.send_stall_ms", "0.1.0", USE_CLIENT_TIMEOUT},
    {"limits.starvation_ms", "0.1.0", "it is 2000"},
    {"limits.step_hang_ms", "0.1.0", "it is twice limits.watchdog_s, and 60000 if that is 0"},
    {"limits.step_max_ms", "0.1.0", USE_TPOT},
    {"limits.stop_bytes_max", "0.1.0", "it is 1024"},
    {"limits.stop_max", "0.1.0", "it is 16"},
    {"limits.stream_hard_bytes", "0.1.0", "it is 256KiB"},
    {"limits.stream_soft_bytes", "0.1.0", "it is 64KiB"},
    {"policy.background_copies", "0.1.0", "blocks of low classes are always copied ahead"},
    {"policy.cost_per_device_hour", "0.1.0",
     "multiply inferd_device_seconds_total in the query (docs/metrics.md)"},
    {"policy.min_residency_ms", "0.1.0", "it is 0"},
    {"policy.objective", "0.1.0", USE_TPOT ": 40, 10 for the former latency, 100 for throughput"},
    {"policy.placement", "0.1.0", "it is \"balanced\""},
    {"policy.starvation_percent", "0.1.0", "it is 2"},
};

size_t config_n_removed(void) {
    return INFERD_COUNT(all);
}

const config_removed *config_removed_at(size_t i) {
    return &all[i];
}

static void spell(buf *out, const config_location *l) {
    if (l == NULL || (l->name == NULL && l->parent == NULL)) return;
    spell(out, l->parent);
    if (l->name == NULL)
        buf_add_str(out, "[]");
    else
        buf_add_format(out, "%s%s", out->n > 0 ? "." : "", l->name);
}

const config_removed *config_find_removed(const config_location *location) {
    enum { PATH_MAX_BYTES = 1024 }; // longer ones are cut, and not in the table
    const config_removed *found = NULL;
    buf path;
    buf_init(&path, PATH_MAX_BYTES);
    spell(&path, location);
    for (size_t i = 0; i < INFERD_COUNT(all) && found == NULL; i++)
        if (strcmp(all[i].path, buf_cstr(&path)) == 0) found = &all[i];
    buf_deinit(&path);
    return found;
}
