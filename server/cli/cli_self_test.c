/* cli_self_test.c - `inferd devices --self-test`: checks each kernel on each GPU against formulas.
 *
 * One line per check, or with --json one object, and one line per GPU at its end.  A wrong result
 * is reported with its kernel and the first wrong element.  Then the GPU is opened as for serving,
 * and each part that is not on is reported (docs/gpu.md).  The exit status is the worst one: 3 no
 * GPU to test, 1 a wrong result, a failed launch or a GPU that cannot be opened.
 *
 * After a lost context no other GPU is tested: CUDA keeps such an error for the whole process.  A
 * kernel that does not end would also block a normal exit, so the process then uses _exit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cli.h"
#include "devices.h"
#include "inferd/buf.h"
#include "kernels/self_test.h"
#include "json_out.h"

typedef struct tally {
    bool json;
    uint32_t n[SELF_TEST_SKIPPED + 1]; // by result
} tally;

/* Ten digits for the bits of a word; twelve distinguish any two floats. */
#define NUMBER "%.12g"

static void tell_text(const self_test_row *r) {
    buf out = {0};
    buf_add_format(&out, "cuda:%u   %-44s %-28s ", r->index, r->name, r->kernel);
    if (r->result == SELF_TEST_OK) buf_add_format(&out, "ok");
    if (r->result == SELF_TEST_SKIPPED) buf_add_format(&out, "skipped: %s", r->text);
    if (r->result == SELF_TEST_FAILED) buf_add_format(&out, "FAILED: %s", r->text);
    if (r->result == SELF_TEST_WRONG) {
        buf_add_format(&out, "WRONG: %s is " NUMBER ", expected " NUMBER, r->where, r->got,
                       r->expected);
        if (r->bound > 0) buf_add_format(&out, " within %.3g", r->bound);
    }
    puts(buf_cstr(&out));
    buf_deinit(&out);
}

static void add_text(buf *out, const char *name, const char *value) {
    buf_add_format(out, ",\"%s\":", name);
    json_add_string(out, value, strlen(value));
}

/* A value that is not finite is null. */
static void add_real(buf *out, const char *name, double v) {
    if (isfinite(v))
        buf_add_format(out, ",\"%s\":" NUMBER, name, v);
    else
        buf_add_format(out, ",\"%s\":null", name);
}

static void tell_json(const self_test_row *r) {
    buf out = {0};
    buf_add_format(&out, "{\"self_test\":");
    json_add_string(&out, r->name, strlen(r->name));
    add_text(&out, "kernel", r->kernel);
    buf_add_format(&out, ",\"device\":%u,\"ok\":%s", r->index,
                   r->result == SELF_TEST_OK        ? "true"
                   : r->result == SELF_TEST_SKIPPED ? "null"
                                                    : "false");
    if (r->result == SELF_TEST_SKIPPED) add_text(&out, "skipped", r->text);
    if (r->result == SELF_TEST_FAILED) add_text(&out, "error", r->text);
    if (r->result == SELF_TEST_WRONG) {
        add_text(&out, "element", r->where);
        add_real(&out, "got", r->got);
        add_real(&out, "expected", r->expected);
        add_real(&out, "bound", r->bound);
    }
    buf_add_char(&out, '}');
    puts(buf_cstr(&out));
    buf_deinit(&out);
}

/* Each line is flushed at once: the last one shows where a killed test was. */
static void tell(const self_test_row *r, void *ctx) {
    tally *t = ctx;
    t->n[r->result]++;
    if (t->json)
        tell_json(r);
    else
        tell_text(r);
    fflush(stdout);
}

static void tell_all(const tally *t, const backend_device_about *d, bool whole) {
    uint32_t n_bad = t->n[SELF_TEST_WRONG] + t->n[SELF_TEST_FAILED];
    uint32_t n = n_bad + t->n[SELF_TEST_OK] + t->n[SELF_TEST_SKIPPED];
    if (!t->json) {
        printf("cuda:%u   %s: %u checks, %u wrong, %u failed, %u skipped%s\n", d->index, d->name, n,
               t->n[SELF_TEST_WRONG], t->n[SELF_TEST_FAILED], t->n[SELF_TEST_SKIPPED],
               whole ? "" : ", and stopped");
    } else {
        buf out = {0};
        buf_add_format(&out, "{\"self_test\":\"all\",\"device\":%u", d->index);
        add_text(&out, "name", d->name);
        add_text(&out, "uuid", d->uuid);
        buf_add_format(&out,
                       ",\"ok\":%s,\"checks\":%u,\"wrong\":%u,\"failed\":%u,\"skipped\":%u,"
                       "\"stopped\":%s}",
                       n_bad == 0 && whole ? "true" : "false", n, t->n[SELF_TEST_WRONG],
                       t->n[SELF_TEST_FAILED], t->n[SELF_TEST_SKIPPED], whole ? "false" : "true");
        puts(buf_cstr(&out));
        buf_deinit(&out);
    }
    fflush(stdout);
}

static void tell_part(const be_device_part *part, const backend_device_about *d, bool json) {
    if (!json) {
        printf("cuda:%u   %s is %s: %s\n", d->index, part->name, be_part_state_name(part->state),
               part->why);
        return;
    }
    buf out = {0};
    buf_add_format(&out, "{\"bench\":\"part\",\"device\":%u,\"name\":\"%s\",\"state\":\"%s\"",
                   d->index, part->name, be_part_state_name(part->state));
    add_text(&out, "why", part->why);
    buf_add_char(&out, '}');
    puts(buf_cstr(&out));
    buf_deinit(&out);
}

/* Opened as for serving, with little memory: reports the parts that fall back on this GPU. */
static bool tell_parts(const backend_options *o, const backend_device_about *d, bool json) {
    enum { PARTS_MEMORY_MIB = 256 };
    backend_options small = *o;
    backend_stats stats;
    backend *be = NULL;
    inferd_err err = {0};
    small.memory_bytes = (uint64_t)PARTS_MEMORY_MIB << 20;
    if (backend_open(&small, &be, &err) != INFERD_OK) {
        fprintf(stderr, "inferd: cuda:%u cannot be opened for serving: %s\n", d->index, err.text);
        return false;
    }
    be_get_stats(be, &stats);
    for (uint32_t i = 0; i < stats.n_parts; i++)
        if (stats.parts[i].state != BE_PART_ON) tell_part(&stats.parts[i], d, json);
    fflush(stdout);
    backend_close(be);
    return true;
}

/* One GPU; false: this process must not test another one. */
static bool test_one(const backend_options *o, const backend_device_about *d, bool json,
                     int *status) {
    tally t = {.json = json};
    inferd_err err = {0};
    inferd_status s = self_test_cuda(o, tell, &t, &err);
    tell_all(&t, d, s == INFERD_OK);
    if (t.n[SELF_TEST_WRONG] + t.n[SELF_TEST_FAILED] > 0 || s != INFERD_OK) *status = CLI_FAILED;
    if (s != INFERD_OK) fprintf(stderr, "inferd: cuda:%u: %s\n", d->index, err.text);
    if (s == INFERD_OK && !tell_parts(o, d, json)) *status = CLI_FAILED;
    return s != INFERD_ELOST;
}

static bool is_wanted(const backend_device_about *d, const config_device *wanted) {
    if (wanted->kind == NULL || strcmp(wanted->kind, "auto") == 0) return true; // every GPU
    return wanted->gpu.uuid != NULL
               ? strncasecmp(d->uuid, wanted->gpu.uuid, strlen(wanted->gpu.uuid)) == 0
               : d->index == wanted->gpu.index;
}

int cli_self_test(const char *module, const struct config_device *wanted, bool json) {
    static backend_device_about found[BE_DEVICES_MAX];
    uint32_t n = 0, n_tested = 0;
    int status = 0;
    inferd_err why = {0};
    backend_options o = {.kind = "cuda", .module_path = module};
    if (wanted->kind != NULL && strcmp(wanted->kind, "cpu") == 0)
        return fputs("inferd: --self-test tests GPUs only, but --device is cpu\n", stderr),
               CLI_WRONG;
    if (backend_list_devices(&o, found, &n, &why) != INFERD_OK)
        return fprintf(stderr, "inferd: no GPU: %s\n", why.text), CLI_NO_DEVICE;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_wanted(&found[i], wanted)) continue;
        n_tested++;
        o.index = found[i].index;
        if (test_one(&o, &found[i], json, &status)) continue;
        if (i + 1 < n) fprintf(stderr, "inferd: the GPUs after cuda:%u were not tested\n", i);
        fflush(NULL);
        _exit(status); // the driver may wait for the kernel for ever
    }
    if (n_tested > 0) return status;
    fprintf(stderr, "inferd: --device matches none of the %u GPUs\n", n);
    return CLI_NO_DEVICE;
}
