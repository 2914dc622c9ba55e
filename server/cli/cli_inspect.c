/* cli_inspect.c - `inferd inspect FILE`: what a model's file has, and why it cannot be served. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "inspect_text.h"
#include "models/inspect.h"

static const char usage[] =
    "usage: inferd inspect MODEL.gguf [options]\n"
    "\n"
    "Tells what a model's file (any part of a split one) has: shapes, types, memory, tokenizer,\n"
    "chat template, sampling; and every reason why it cannot be served.  Weights are not read.\n"
    "Exit status: 0 it can be served, 1 it cannot, 2 it cannot be read.\n"
    "\n"
    "  --json         one JSON object (docs/inspect.md)\n"
    "  --tensors      with a list of all tensors\n"
    "  --context N    for a service of so many tokens (default: all it was trained for)\n"
    "  --allow-dummy  a file may be dummy:SHAPE\n"
    "  --help\n";

typedef struct inspect_cli {
    inspect_options o;
    bool json;
} inspect_cli;

/* -1: continue; else the exit status. */
static int read_options(int argc, char **argv, inspect_cli *c) {
    static const struct option longs[] = {
        {"help", no_argument, NULL, 'h'},        {"json", no_argument, NULL, 'j'},
        {"tensors", no_argument, NULL, 't'},     {"context", required_argument, NULL, 'c'},
        {"allow-dummy", no_argument, NULL, 'a'}, {0}};
    double x = 0;
    *c = (inspect_cli){0};
    for (int option; (option = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        switch (option) {
        case 'h':
            return fputs(usage, stdout) < 0;
        case 'j':
            c->json = true;
            break;
        case 't':
            c->o.tensors = true;
            break;
        case 'c':
            if (!cli_number("--context", optarg, 1, 1 << 24, &x)) return CLI_WRONG;
            c->o.model.context_max = (uint32_t)x;
            break;
        case 'a':
            c->o.model.allow_dummy = true;
            break;
        default:
            return fputs(usage, stderr), CLI_WRONG;
        }
    }
    if (argc - optind != 1) return fputs(usage, stderr), CLI_WRONG;
    c->o.model.path = argv[optind];
    return -1;
}

static bool print(const inspect_cli *c, const json_t *told) {
    if (c->json) {
        int failed = json_dumpf(told, stdout, JSON_INDENT(2));
        return failed == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
    }
    buf text;
    buf_init(&text, 0);
    inspect_text(told, &text);
    bool fine = !text.failed && fwrite(text.p, 1, text.n, stdout) == text.n && fflush(stdout) == 0;
    buf_deinit(&text);
    return fine;
}

int cli_inspect(int argc, char **argv) {
    enum { MEMORY_BYTES = 2 << 20 }; // of an arena that nothing is put into: a page
    inspect_cli c;
    int status = read_options(argc, argv, &c);
    if (status >= 0) return status;
    backend *be = NULL;
    json_t *told = NULL;
    inferd_err err = {0};
    backend_options cpu = {.kind = "cpu", .n_threads = 1, .memory_bytes = MEMORY_BYTES};
    if (backend_open(&cpu, &be, &err) != INFERD_OK) // all but the memory can be told
        fprintf(stderr, "inferd: no cpu device: %s\n", err.text);
    c.o.be = be;
    if (model_inspect(&c.o, &told, &err) != INFERD_OK) {
        fprintf(stderr, "inferd: %s\n", err.text);
        status = CLI_WRONG;
    } else if (!print(&c, told)) {
        fprintf(stderr, "inferd: cannot write the answer\n");
        status = CLI_WRONG;
    } else {
        status = json_is_true(json_object_get(told, "servable")) ? 0 : CLI_FAILED;
    }
    json_decref(told);
    backend_close(be);
    return status;
}
