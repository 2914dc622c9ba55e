/* cli.h - the commands of the program `inferd`; each one is a main of its own.
 *
 * The exit statuses are those of the table in docs/admin.md, the same in every command.
 * Thread: main. */
#ifndef INFERD_CLI_H
#define INFERD_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "inferd/status.h"

#ifndef INFERD_VERSION
#define INFERD_VERSION "0.1.0"
#endif

enum {
    CLI_FAILED = 1,    // a failure at run time
    CLI_WRONG = 2,     // an error in the command line, the configuration, or a file named there
    CLI_NO_DEVICE = 3, // no such device
    CLI_LOST = 70,     // the device was lost, or hangs: a new process may get it back
    CLI_NOT_YET = 75, // the machine's GPU services are still starting: the same command works later
    CLI_INTERRUPTED = 130 // `run`: Ctrl-C before the work was done; as a shell reports it
};

/* The exit status for a configured device that was not found (devices_resolve). */
static inline int cli_device_status(const inferd_err *err) {
    return err->status == INFERD_ELOST   ? CLI_LOST
           : err->status == INFERD_EBUSY ? CLI_NOT_YET
                                         : CLI_NO_DEVICE;
}

/* Notices a device that finishes neither a step nor a piece of a load.  Called about every tick_ms;
 * counts the calls, too, because a process that was stopped for a while does not hang. */
typedef struct cli_hang {
    uint64_t stuck_us; // at the last call
    uint32_t n_ticks, device;
} cli_hang;
/* stuck_us: how long device number `device` has worked on its oldest one (engine_stuck_us). */
bool cli_hangs(cli_hang *h, uint32_t device, uint64_t stuck_us, uint32_t tick_ms,
               uint64_t limit_ms);

int cli_serve(int argc, char **argv);
int cli_devices(int argc, char **argv);
/* devices --self-test; `wanted` as set by devices_parse, kind NULL: every GPU. */
struct config_device;
int cli_self_test(const char *module, const struct config_device *wanted, bool json);
int cli_check(int argc, char **argv);
int cli_doctor(int argc, char **argv); // 1: a problem
int cli_pack(int argc, char **argv);
int cli_inspect(int argc, char **argv); // 1: the file cannot be served
int cli_run(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_render(int argc, char **argv);
int cli_ctl(int argc, char **argv); // 1: refused, 3: cannot connect to the daemon

/* A number in [min, max]; 0: `text` is none, and the message on stderr names the option. */
int cli_number(const char *option, const char *text, double min, double max, double *out);
int cli_size(const char *option, const char *text, uint64_t *out); // "2GiB"

/* A progress bar on a terminal for work of more than a second; it may be drawn at any rate. */
typedef struct cli_progress {
    const char *what;
    uint64_t started_us, drawn_us;
    int shown;
} cli_progress;
void cli_progress_init(cli_progress *p, const char *what);
void cli_progress_draw(cli_progress *p, uint64_t done, uint64_t total);
void cli_progress_end(cli_progress *p); // wipes the bar

#endif
