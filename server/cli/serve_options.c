/* serve_options.c - see serve_options.h. */
#include "serve_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli.h"
#include "devices.h"

static const char usage[] =
    "usage: inferd serve FILE.gguf | FILE.json [options]\n"
    "\n"
    "  FILE.gguf         serve one model with defaults (or --model FILE)\n"
    "  FILE.json         everything from one JSON file, docs/configuration.md (or --config FILE)\n"
    "  --name NAME       the model's name in the API (default: the file's name)\n"
    "  --listen ADDRESS  PORT, ADDRESS:PORT or unix:PATH (default 127.0.0.1:8080)\n"
    "  --api-key-file F  clients need one of its keys, one per line; required to listen on other\n"
    "                    addresses than those of this machine\n"
    "  --api-key-env V   the same with one key, in the environment variable V\n"
    "  --page            the page /ui on this address, too; without an admin key in the\n"
    "                    configuration the start makes one and prints the page's address with it\n"
    "  --device DEVICE   cpu, cuda, cuda:INDEX, a GPU's UUID, or auto (default: auto)\n"
    "  --memory SIZE     of the device's page pool (default: 2GiB on the CPU, what is free on a "
    "GPU)\n"
    "  --threads N       compute threads (default: CPUs allowed)\n"
    "  --allow-dummy     a model may be dummy:SHAPE, with made-up weights (docs/configuration.md)\n"
    "  --allow-faults    inferd ctl lose and slow may break devices, for drills\n"
    "  --help\n";

/* -- the configuration -- */

static bool replace_text(char **slot, const char *text) {
    char *copy = strdup(text);
    if (copy == NULL) return false;
    free(*slot);
    *slot = copy;
    return true;
}

/* Options of the command line override the file. */
static bool apply_options(const serve_options *o, inferd_config *c, buf *problems) {
    double threads;
    if (o->listen != NULL && !replace_text(&c->listen, o->listen)) return false;
    if (o->name != NULL && !replace_text(&c->models[0].name, o->name)) return false;
    if (o->memory != NULL && !cli_size("--memory", o->memory, &c->devices[0].memory_bytes))
        return false;
    if (o->device != NULL && !devices_parse(o->device, &c->devices[0])) return false;
    if (o->threads != NULL) {
        if (!cli_number("--threads", o->threads, 1, 1024, &threads)) return false;
        c->devices[0].threads = (uint32_t)threads;
    }
    if (o->page && !config_add_page(c, o->page_key, problems)) return false;
    return (o->key_file == NULL && o->key_env == NULL) ||
           config_add_keys(c, o->key_file, o->key_env, problems);
}

inferd_config *serve_options_config(const serve_options *o, buf *problems) {
    inferd_config *c = NULL;
    inferd_err err = {0};
    inferd_status st = o->config != NULL ? config_load(o->config, &c, problems, &err)
                                         : config_for_model(o->model, &c, &err);
    if (st == INFERD_OK && apply_options(o, c, problems) && config_check(c, problems)) return c;
    if (problems->n == 0 && st != INFERD_OK) buf_add_format(problems, "inferd: %s\n", err.text);
    config_destroy(c);
    return NULL;
}

bool serve_options_adjust(void *ctx, inferd_config *c, buf *problems) {
    return apply_options(ctx, c, problems);
}

/* -- the command line -- */

static bool refuse_options(const char *sentence) {
    fprintf(stderr, "inferd: %s (inferd serve --help)\n", sentence);
    return false;
}

/* What is served: one file, by an option or by itself. */
static bool pick_source(serve_options *o, char **files, int n_files) {
    static const char json[] = ".json";
    const char *file = n_files > 0 ? files[0] : NULL;
    size_t n = file == NULL ? 0 : strlen(file);
    if (n_files + (o->config != NULL) + (o->model != NULL) > 1)
        return refuse_options("serve takes one file, of a model or of a configuration, which may "
                              "have many models");
    if (n >= sizeof json && strcmp(file + n - (sizeof json - 1), json) == 0)
        o->config = file;
    else if (file != NULL)
        o->model = file;
    if (o->config == NULL && o->model == NULL)
        return refuse_options("serve needs a model or a configuration: inferd serve FILE.gguf, or "
                              "inferd serve FILE.json");
    if (o->name != NULL && o->model == NULL)
        return refuse_options(
            "--name goes with a model; a configuration has the names of its models");
    return true;
}

/* 128 random bits. */
static bool draw_key(char out[SERVE_PAGE_KEY_BYTES]) {
    unsigned char bits[16];
    size_t n = (size_t)sprintf(out, "page-");
    if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
        perror("inferd: no random bits for --page");
        return false;
    }
    for (size_t i = 0; i < sizeof bits; i++) n += (size_t)sprintf(out + n, "%02x", bits[i]);
    return true;
}

int serve_options_read(int argc, char **argv, serve_options *o) {
    enum {
        NAME = 1,
        LISTEN,
        MEMORY,
        THREADS,
        DEVICE,
        ALLOW_DUMMY,
        ALLOW_FAULTS,
        KEY_FILE,
        KEY_ENV,
        PAGE
    };
    static const struct option longs[] = {{"config", required_argument, NULL, 'c'},
                                          {"model", required_argument, NULL, 'm'},
                                          {"name", required_argument, NULL, NAME},
                                          {"listen", required_argument, NULL, LISTEN},
                                          {"memory", required_argument, NULL, MEMORY},
                                          {"device", required_argument, NULL, DEVICE},
                                          {"threads", required_argument, NULL, THREADS},
                                          {"allow-dummy", no_argument, NULL, ALLOW_DUMMY},
                                          {"allow-faults", no_argument, NULL, ALLOW_FAULTS},
                                          {"api-key-file", required_argument, NULL, KEY_FILE},
                                          {"api-key-env", required_argument, NULL, KEY_ENV},
                                          {"page", no_argument, NULL, PAGE},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int c;
    *o = (serve_options){0};
    while ((c = getopt_long(argc, argv, "hc:m:", longs, NULL)) != -1) {
        switch (c) {
        case 'h':
            fputs(usage, stdout);
            return 0;
        case 'c':
            o->config = optarg;
            break;
        case 'm':
            o->model = optarg;
            break;
        case NAME:
            o->name = optarg;
            break;
        case LISTEN:
            o->listen = optarg;
            break;
        case MEMORY:
            o->memory = optarg;
            break;
        case THREADS:
            o->threads = optarg;
            break;
        case DEVICE:
            o->device = optarg;
            break;
        case ALLOW_DUMMY:
            o->allow_dummy = true;
            break;
        case ALLOW_FAULTS:
            o->allow_faults = true;
            break;
        case KEY_FILE:
            o->key_file = optarg;
            break;
        case KEY_ENV:
            o->key_env = optarg;
            break;
        case PAGE:
            o->page = draw_key(o->page_key);
            if (!o->page) return CLI_WRONG;
            break;
        default:
            fputs(usage, stderr);
            return CLI_WRONG;
        }
    }
    return pick_source(o, argv + optind, argc - optind) ? -1 : CLI_WRONG;
}
