/* cli.c - shared by the commands. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "inferd/clock.h"

int cli_number(const char *option, const char *text, double min, double max, double *out) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= min && value <= max)) {
        fprintf(stderr, "inferd: %s is \"%s\"; expected a number from %g to %g\n", option, text,
                min, max);
        return 0;
    }
    *out = value;
    return 1;
}

int cli_size(const char *option, const char *text, uint64_t *out) {
    if (config_read_size(text, out)) return 1;
    fprintf(stderr, "inferd: %s: \"%s\" %s\n", option, text, config_size_problem(text));
    return 0;
}

bool cli_hangs(cli_hang *h, uint32_t device, uint64_t stuck_us, uint32_t tick_ms,
               uint64_t limit_ms) {
    bool other = stuck_us == 0 || stuck_us < h->stuck_us || device != h->device;
    h->n_ticks = other ? 0 : h->n_ticks + 1;
    h->stuck_us = stuck_us;
    h->device = device;
    return h->n_ticks >= limit_ms / tick_ms && stuck_us >= limit_ms * 1000;
}

enum { BAR_CELLS = 30, DRAW_EVERY_US = 100000, SHOW_AFTER_US = 1000000 };

void cli_progress_init(cli_progress *p, const char *what) {
    *p = (cli_progress){.what = what, .started_us = clock_now_us()};
}

void cli_progress_draw(cli_progress *p, uint64_t done, uint64_t total) {
    uint64_t now = clock_now_us();
    if (total == 0 || now - p->started_us < SHOW_AFTER_US || now - p->drawn_us < DRAW_EVERY_US ||
        !isatty(STDERR_FILENO))
        return;
    double part = (double)done / (double)total;
    int cells = (int)(part * BAR_CELLS);
    char bar[BAR_CELLS + 1];
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', (size_t)(cells > BAR_CELLS ? BAR_CELLS : cells));
    bar[BAR_CELLS] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f %%", p->what, bar, part * 100.0);
    fflush(stderr);
    p->drawn_us = now;
    p->shown = 1;
}

void cli_progress_end(cli_progress *p) {
    if (p->shown) fprintf(stderr, "\r\033[K");
    p->shown = 0;
}
