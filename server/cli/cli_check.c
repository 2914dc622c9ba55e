/* cli_check.c - `inferd check FILE.json`: reports every problem of a configuration before use. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "config.h"

static const char usage[] =
    "usage: inferd check FILE.json [--allow-dummy]     (or --config FILE.json)\n"
    "       inferd check --describe\n"
    "\n"
    "Reads the configuration and the headers of the models it names and prints one line per\n"
    "problem, or per setting that has less effect than it seems to have (\"warning:\").\n"
    "\n"
    "  --describe      every setting with its range and default, as Markdown tables\n"
    "  --allow-dummy   a model may be dummy:SHAPE\n"
    "\n"
    "exit status: 0 fine, also with warnings, 2 problems\n";

static int describe(void) {
    buf text;
    buf_init(&text, 0);
    config_describe(&text);
    bool fine = !text.failed && fputs(buf_cstr(&text), stdout) >= 0;
    buf_deinit(&text);
    return fine ? 0 : 1;
}

/* The file of each model is readable and supported.  file_bytes: [n_models] their sizes. */
static bool check_models(const inferd_config *c, bool allow_dummy, uint64_t *file_bytes,
                         buf *problems) {
    bool fine = true;
    for (uint32_t i = 0; i < c->n_models; i++) {
        inferd_err err = {0};
        model *m;
        model_options options = {.path = c->models[i].path,
                                 .template_path = c->models[i].chat_template,
                                 .tool_format = c->models[i].tool_format,
                                 .context_max = c->models[i].max_context,
                                 .allow_dummy = allow_dummy};
        if (model_open(&options, &m, &err) == INFERD_OK) {
            file_bytes[i] = model_about(m)->file_bytes;
            model_close(m);
            continue;
        }
        buf_add_format(problems, "%s: models[%u]: %s\n", c->source, i, err.text);
        fine = false;
    }
    return fine;
}

/* Says that it is fine, and what to look at all the same. */
static void tell_fine(const inferd_config *c, const char *path, const uint64_t *file_bytes) {
    buf warnings, shares;
    buf_init(&warnings, 1 << 20);
    buf_init(&shares, 1 << 20);
    uint32_t n = config_write_warnings(c, file_bytes, &warnings);
    printf("%s: %u model%s, %u tenant%s: fine", path, c->n_models, c->n_models == 1 ? "" : "s",
           c->n_tenants, c->n_tenants == 1 ? "" : "s");
    if (n > 0) printf(", %u warning%s", n, n == 1 ? "" : "s");
    config_write_shares(c, &shares);
    printf("\n%s%s", buf_cstr(&warnings), buf_cstr(&shares));
    buf_deinit(&warnings);
    buf_deinit(&shares);
}

int cli_check(int argc, char **argv) {
    static const struct option longs[] = {{"help", no_argument, NULL, 'h'},
                                          {"config", required_argument, NULL, 'c'},
                                          {"describe", no_argument, NULL, 'd'},
                                          {"allow-dummy", no_argument, NULL, 'a'},
                                          {0}};
    const char *path = NULL;
    bool allow_dummy = false;
    int c;
    while ((c = getopt_long(argc, argv, "hc:", longs, NULL)) != -1) {
        if (c == 'h') return fputs(usage, stdout) < 0;
        if (c == 'd') return describe();
        if (c != 'c' && c != 'a') return fputs(usage, stderr), 2;
        if (c == 'a')
            allow_dummy = true;
        else
            path = optarg;
    }
    if (path == NULL && optind < argc) path = argv[optind++];
    if (path == NULL || optind != argc) return fputs(usage, stderr), 2;

    inferd_config *config = NULL;
    inferd_err err = {0};
    buf problems;
    buf_init(&problems, 1 << 20);
    json_in_init();
    bool fine = config_load(path, &config, &problems, &err) == INFERD_OK;
    uint64_t *file_bytes = fine ? calloc((size_t)config->n_models + 1, sizeof *file_bytes) : NULL;
    if (fine && file_bytes == NULL) inferd_fail(&err, INFERD_ENOMEM, "no memory for %s", path);
    fine = fine && file_bytes != NULL && config_check(config, &problems) &&
           check_models(config, allow_dummy, file_bytes, &problems);
    if (!fine) {
        fputs(problems.n > 0 ? buf_cstr(&problems) : err.text, stderr);
        if (problems.n == 0) fputc('\n', stderr);
    } else {
        tell_fine(config, path, file_bytes);
    }
    free(file_bytes);
    buf_deinit(&problems);
    config_destroy(config);
    return fine ? 0 : 2;
}
