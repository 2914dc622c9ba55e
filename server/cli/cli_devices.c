/* cli_devices.c - `inferd devices`: lists the devices of this machine.
 *
 * One line per device on stdout, one object with --json; problems of GPUs go to stderr. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "devices.h"
#include "inferd/buf.h"
#include "json_out.h"

static const char usage[] =
    "usage: inferd devices [--json] [--module FILE] [--self-test [--device DEVICE]]\n"
    "\n"
    "  --json           one JSON object per line\n"
    "  --module FILE    inferd_cuda.so, when it is not beside the program\n"
    "  --self-test      launch every kernel on every GPU and compare with formulas: status 1 and\n"
    "                   the kernel's name when a result is wrong, 3 when there is no GPU\n"
    "  --device DEVICE  only this GPU: cuda:INDEX or a UUID (GPU-..., MIG-...)\n";

enum { EXIT_USAGE = 2 };

static double gib(uint64_t n) {
    return (double)n / 1073741824.0;
}

static void print_health(const backend_device_about *d) {
    if (!d->health.known) return;
    if (d->health.temperature_c >= 0) printf(", %d C", d->health.temperature_c);
    if (d->health.power_w >= 0) printf(", %d W", d->health.power_w);
    if (d->health.utilization_pct >= 0) printf(", %d %% busy", d->health.utilization_pct);
    if (d->health.ecc_uncorrected > 0)
        printf(", %lld uncorrected ECC errors", (long long)d->health.ecc_uncorrected);
    if (d->health.remapped_rows > 0)
        printf(", %lld rows remapped", (long long)d->health.remapped_rows);
    if (d->health.remap_pending == 1) printf(", row remapping pending: reset the GPU");
    if (d->health.throttle_thermal == 1) printf(", slowed by heat");
}

/* Prints the parts that are not used there, with the reason. */
static void print_parts(const backend_options *o, const backend_device_about *d) {
    be_device_part parts[BE_DEVICE_PARTS_MAX];
    uint32_t n = 0;
    inferd_err err = {0};
    if (backend_list_parts(o, d->index, parts, &n, &err) != INFERD_OK) {
        printf("         parts: %s\n", err.text);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (parts[i].state != BE_PART_ON)
            printf("         %s is %s: %s\n", parts[i].name, be_part_state_name(parts[i].state),
                   parts[i].why);
}

static void print_text(const backend_device_about *d) {
    if (strcmp(d->kind, "cpu") == 0) {
        printf("cpu      %s, %u threads, %.1f GiB\n", d->name + 4, d->n_units,
               gib(d->memory_bytes));
        return;
    }
    if (d->problem.status != INFERD_OK) {
        printf("%s:%u   cannot be used: %s\n", d->kind, d->index, d->problem.text);
        return;
    }
    printf("%s:%u   %s %s, sm_%u%u, %u SMs, ", d->kind, d->index, d->name, d->uuid, d->cc_major,
           d->cc_minor, d->n_units);
    if (d->free_known)
        printf("%.1f of %.1f GiB free", gib(d->free_bytes), gib(d->memory_bytes));
    else
        printf("%.1f GiB (without NVML it is not known how much is free)", gib(d->memory_bytes));
    if (d->mig) fputs(", a MIG instance", stdout);
    if (d->mps) fputs(", shared by MPS (a fault of another client ends inferd, status 70)", stdout);
    if (d->mps_threads > 0) printf(", %u %% of its threads", d->mps_threads);
    print_health(d);
    putchar('\n');
}

static void add_text(buf *out, const char *name, const char *value) {
    buf_add_format(out, ",\"%s\":", name);
    json_add_string(out, value, strlen(value));
}

static void add_known(buf *out, const char *name, int64_t value) {
    if (value >= 0) buf_add_format(out, ",\"%s\":%lld", name, (long long)value);
}

static void add_parts(buf *out, const backend_options *o, const backend_device_about *d) {
    be_device_part parts[BE_DEVICE_PARTS_MAX];
    uint32_t n = 0;
    inferd_err err = {0};
    if (backend_list_parts(o, d->index, parts, &n, &err) != INFERD_OK || n == 0) return;
    buf_add_str(out, ",\"parts\":{");
    for (uint32_t i = 0; i < n; i++) {
        buf_add_format(out, "%s\"%s\":{\"state\":\"%s\"", i > 0 ? "," : "", parts[i].name,
                       be_part_state_name(parts[i].state));
        if (parts[i].why[0] != 0) add_text(out, "why", parts[i].why);
        buf_add_char(out, '}');
    }
    buf_add_char(out, '}');
}

static void print_json(const backend_options *o, const backend_device_about *d) {
    buf out = {0};
    buf_add_format(&out, "{\"kind\":\"%s\"", d->kind);
    add_text(&out, "name", d->name);
    buf_add_format(&out, ",\"memory_bytes\":%llu", (unsigned long long)d->memory_bytes);
    if (strcmp(d->kind, "cpu") == 0) {
        buf_add_format(&out, ",\"threads\":%u", d->n_units);
    } else {
        add_text(&out, "uuid", d->uuid);
        buf_add_format(&out, ",\"index\":%u,\"sms\":%u,\"compute_capability\":\"%u.%u\",\"mig\":%s",
                       d->index, d->n_units, d->cc_major, d->cc_minor, d->mig ? "true" : "false");
        if (d->free_known)
            buf_add_format(&out, ",\"free_bytes\":%llu", (unsigned long long)d->free_bytes);
        if (d->mps) buf_add_str(&out, ",\"mps\":true");
        if (d->mps_threads > 0)
            buf_add_format(&out, ",\"mps_thread_percentage\":%u", d->mps_threads);
        if (d->problem.status != INFERD_OK) add_text(&out, "error", d->problem.text);
    }
    if (d->health.known) {
        add_known(&out, "temperature_c", d->health.temperature_c);
        add_known(&out, "power_w", d->health.power_w);
        add_known(&out, "utilization_pct", d->health.utilization_pct);
        add_known(&out, "ecc_uncorrected", d->health.ecc_uncorrected);
        add_known(&out, "remapped_rows", d->health.remapped_rows);
        add_known(&out, "remap_pending", d->health.remap_pending);
        add_known(&out, "throttle_thermal", d->health.throttle_thermal);
    }
    if (d->problem.status == INFERD_OK) add_parts(&out, o, d);
    buf_add_char(&out, '}');
    puts(buf_cstr(&out));
    buf_deinit(&out);
}

/* Prints the MIG instances that CUDA does not show to this process. */
static void print_instances(const backend_options *o, const backend_device_about *found,
                            uint32_t n_found, bool json) {
    static backend_instance all[BE_DEVICES_MAX];
    uint32_t n = backend_list_instances(o, BE_DEVICES_MAX, all);
    for (uint32_t i = 0; i < n; i++) {
        bool shown = false;
        for (uint32_t k = 0; k < n_found; k++)
            shown = shown || strcmp(found[k].uuid, all[i].uuid) == 0;
        if (shown) continue;
        if (!json) {
            printf("mig      %s %s, for another process: --device %s\n", all[i].name, all[i].uuid,
                   all[i].uuid);
            continue;
        }
        buf out = {0};
        buf_add_str(&out, "{\"kind\":\"mig\"");
        add_text(&out, "name", all[i].name);
        add_text(&out, "uuid", all[i].uuid);
        buf_add_char(&out, '}');
        puts(buf_cstr(&out));
        buf_deinit(&out);
    }
}

/* False: there is no device of that kind, and `why` has the reason. */
static bool print_kind(const char *kind, const char *module, bool json, inferd_err *why) {
    static backend_device_about found[BE_DEVICES_MAX];
    uint32_t n = 0;
    backend_options o = {.kind = kind, .module_path = module};
    if (backend_list_devices(&o, found, &n, why) != INFERD_OK) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (json) {
            print_json(&o, &found[i]);
            continue;
        }
        print_text(&found[i]);
        if (found[i].problem.status == INFERD_OK) print_parts(&o, &found[i]);
    }
    print_instances(&o, found, n, json);
    return true;
}

int cli_devices(int argc, char **argv) {
    static const struct option longs[] = {
        {"json", no_argument, NULL, 'j'},      {"module", required_argument, NULL, 'm'},
        {"self-test", no_argument, NULL, 's'}, {"device", required_argument, NULL, 'd'},
        {"help", no_argument, NULL, 'h'},      {0}};
    bool json = false, test = false;
    const char *module = NULL;
    config_device wanted = {0};
    for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        if (c == 'h') return fputs(usage, stdout), 0;
        if (c == 'j')
            json = true;
        else if (c == 'm')
            module = optarg;
        else if (c == 's')
            test = true;
        else if (c == 'd' && !devices_parse(optarg, &wanted))
            return CLI_WRONG;
        else if (c == 'd')
            continue;
        else
            return fputs(usage, stderr), EXIT_USAGE;
    }
    if (optind != argc) return fputs(usage, stderr), EXIT_USAGE;
    if (wanted.kind != NULL && !test)
        return fputs("inferd: --device goes with --self-test\n", stderr), EXIT_USAGE;
    if (test) {
        int status = cli_self_test(module, &wanted, json);
        free(wanted.kind);
        free(wanted.gpu.uuid);
        return status;
    }
    inferd_err why = {0};
    bool cpu = print_kind("cpu", NULL, json, &why);
    if (!cpu) fprintf(stderr, "inferd: no cpu device: %s\n", why.text);
    if (!print_kind("cuda", module, json, &why)) fprintf(stderr, "inferd: no GPU: %s\n", why.text);
    return cpu ? 0 : 1;
}
