/* cli_pack.c - `inferd pack MODEL`: writes the prepared weights of a device to a file, which is
 * then read instead of the model (models/packed.h). */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "devices.h"
#include "inferd/clock.h"
#include "models/model.h"

static const char usage[] =
    "usage: inferd pack MODEL.gguf [options]\n"
    "\n"
    "Writes the prepared weights into a file, MODEL.gguf.inferd-LAYOUT, which is read instead of\n"
    "the model whenever it is brought up on such a device: one sequential read, and nothing to\n"
    "prepare.  It is as large as the model, and not used any more when the model changes.  For a\n"
    "folder that cannot be written to, name the model through a link in one that can.\n"
    "\n"
    "  --device DEVICE      cpu, cuda, cuda:INDEX, a GPU's UUID, or auto (default: auto)\n"
    "  --threads N          (default: CPUs allowed)\n"
    "  --help\n";

typedef struct pack_options {
    const char *path;
    config_device device;
} pack_options;

/* -1: continue; else the exit status. */
static int read_options(int argc, char **argv, pack_options *o) {
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"threads", required_argument, NULL, 't'},
                                          {0}};
    double x = 0;
    int c, fine = 1;
    *o = (pack_options){0};
    while (fine && (c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        switch (c) {
        case 'h':
            return fputs(usage, stdout) < 0;
        case 'd':
            fine = devices_parse(optarg, &o->device);
            break;
        case 't':
            fine = cli_number("--threads", optarg, 1, 1024, &x);
            o->device.threads = (uint32_t)x;
            break;
        default:
            fine = 0;
        }
    }
    if (!fine || argc - optind != 1) return fputs(usage, stderr), 2;
    o->path = argv[optind];
    return -1;
}

/* Room for the weights, and little more: no keys and values, one row. */
static void choose_memory(const model *m, backend_options *be) {
    const uint64_t more_bytes = 256u << 20, gpu_bytes = 512u << 20;
    bool cpu = be->kind == NULL || strcmp(be->kind, "cpu") == 0;
    uint64_t n_bytes = model_about(m)->file_bytes;
    be->memory_bytes = cpu ? n_bytes + n_bytes / 4 + more_bytes : gpu_bytes;
}

/* *exit_status: the status in case of a failure. */
static inferd_status pack(const pack_options *o, char **written, int *exit_status,
                          inferd_err *err) {
    model *m = NULL;
    backend *be = NULL;
    backend_options options = {0};
    inferd_err note = {0};
    *exit_status = CLI_WRONG;
    inferd_status st = model_open(&(model_options){.path = o->path}, &m, err);
    if (st == INFERD_OK) {
        st = devices_resolve(&o->device, 0, &options, &note, err);
        *exit_status = cli_device_status(err);
    }
    if (st == INFERD_OK) {
        *exit_status = CLI_FAILED;
        choose_memory(m, &options);
        st = backend_open(&options, &be, err);
    }
    if (st == INFERD_OK) st = model_pack(m, be, NULL, written, err);
    backend_close(be);
    model_close(m);
    return st;
}

int cli_pack(int argc, char **argv) {
    pack_options o;
    int status = read_options(argc, argv, &o);
    if (status < 0) {
        char *written = NULL;
        inferd_err err = {0};
        struct stat info;
        uint64_t began_us = clock_now_us();
        bool fine = pack(&o, &written, &status, &err) == INFERD_OK;
        double seconds = (double)(clock_now_us() - began_us) * 1e-6;
        if (!fine)
            fprintf(stderr, "inferd: %s\n", err.text);
        else
            printf("%s: %.1f MB in %.1f s\n", written,
                   stat(written, &info) == 0 ? (double)info.st_size * 1e-6 : 0.0, seconds);
        free(written);
        if (fine) status = 0;
    }
    free(o.device.kind);
    free(o.device.gpu.uuid);
    return status;
}
