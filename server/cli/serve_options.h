/* serve_options.h - the command line of `inferd serve`, and the configuration that it gives.
 *
 * Options override the file, also when it is read again.
 * Thread: any, one at a time; the strings are those of argv. */
#ifndef INFERD_SERVE_OPTIONS_H
#define INFERD_SERVE_OPTIONS_H

#include "config.h"
#include "inferd/buf.h"

enum { SERVE_PAGE_KEY_BYTES = 40 };

typedef struct serve_options {
    const char *config, *model, *name, *listen, *memory, *threads, *device;
    const char *key_file, *key_env;
    bool allow_dummy, allow_faults, page;
    char page_key[SERVE_PAGE_KEY_BYTES]; // of --page where the configuration has no admin key
} serve_options;

/* -1: go on; else the exit status, after help or a sentence on standard error. */
int serve_options_read(int argc, char **argv, serve_options *o);
/* NULL: `problems` has the reasons. */
inferd_config *serve_options_config(const serve_options *o, buf *problems);
/* changer_options.adjust; ctx: the options. */
bool serve_options_adjust(void *ctx, inferd_config *c, buf *problems);

#endif
