/* cli.h - the commands of the program `inferd`; each one is a main of its own.
 *
 * Exit status: 0 fine, 1 it went wrong while running, 2 bad usage or a bad configuration.
 * Thread: main. */
#ifndef INFERD_CLI_H
#define INFERD_CLI_H

#include <stdint.h>
#include <time.h>

#include "inferd/status.h"

#ifndef INFERD_VERSION
#define INFERD_VERSION "0.1.0"
#endif

int cli_serve(int argc, char **argv);
int cli_devices(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_pack(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_render(int argc, char **argv);
int cli_ctl(int argc, char **argv); // 1: refused, 3: cannot connect

/* Numbers in options: false when `text` is not one whole number in [min, max]; the sentence goes to
 * stderr and names the option. */
int cli_number(const char *option, const char *text, double min, double max, double *out);
int cli_size(const char *option, const char *text, uint64_t *out); // "2GiB"

/* A bar on a terminal for what takes over a second: call as often as you like. */
typedef struct cli_progress {
    const char *what;
    uint64_t started_us, drawn_us;
    int shown;
} cli_progress;
void cli_progress_init(cli_progress *p, const char *what);
void cli_progress_draw(cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_end(cli_progress *p); // wipes the bar

#endif
