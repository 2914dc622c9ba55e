/* progress.c - see progress.h. */
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char CLEAR[] = "\r\x1b[K";

progress progress_make(progress_choice choice, bool is_quiet, bool is_terminal) {
    progress p = {.is_rewritten = is_terminal};
    if (choice == PROGRESS_OFF || (choice == PROGRESS_AUTO && is_quiet)) return p;
    p.every_s = choice == PROGRESS_ON || is_terminal ? 1 : PROGRESS_SELDOM_S;
    return p;
}

progress progress_of_stderr(progress_choice choice, bool is_quiet) {
    const char *term = getenv("TERM");
    bool is_dumb = term == NULL || strcmp(term, "dumb") == 0;
    return progress_make(choice, is_quiet, isatty(STDERR_FILENO) && !is_dumb);
}

double progress_left_s(const progress_facts *f) {
    double by_time = f->total_s > 0 ? fmax(f->total_s - f->elapsed_s, 0) : INFINITY;
    double by_count = INFINITY;
    if (f->n_total > 0 && f->n_ended > 0 && f->n_ended <= f->n_total)
        by_count = f->elapsed_s * (double)(f->n_total - f->n_ended) / (double)f->n_ended;
    double left = fmin(by_time, by_count);
    return isfinite(left) ? left : -1;
}

/* Appends to a text of PROGRESS_BYTES; cut at its end. */
__attribute__((format(printf, 2, 3))) static void add(char *out, const char *format, ...) {
    size_t n = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + n, PROGRESS_BYTES - n, format, args);
    va_end(args);
}

void progress_text(const progress_facts *f, char out[PROGRESS_BYTES]) {
    double left_s = progress_left_s(f);
    out[0] = 0;
    add(out, "%.0f s", f->elapsed_s);
    if (left_s >= 0) add(out, ", about %.0f s left", left_s);
    add(out, ": %llu in flight", (unsigned long long)f->n_in_flight);
    if (f->n_waiting > 0) add(out, ", %llu waiting", (unsigned long long)f->n_waiting);
    add(out, ", %llu", (unsigned long long)f->n_ok);
    if (f->n_total > 0) add(out, " of %llu", (unsigned long long)f->n_total);
    add(out, " ok, %llu failed, %.0f tokens/s", (unsigned long long)f->n_failed, f->tokens_per_s);
    if (f->ttft_ms >= 0) add(out, ", ttft p50 %.0f ms", f->ttft_ms);
}

static int terminal_columns(void) {
    struct winsize size;
    bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return is_known ? size.ws_col : 80;
}

void progress_print(progress *p, const char *text) {
    if (!p->is_rewritten) {
        fprintf(stderr, "%s\n", text);
        return;
    }
    fprintf(stderr, "%s%.*s", CLEAR, terminal_columns() - 1, text); // a wrapped line stays behind
    fflush(stderr);
    p->has_line = true;
}

void progress_clear(progress *p) {
    if (!p->has_line) return;
    fputs(CLEAR, stderr);
    fflush(stderr);
    p->has_line = false;
}
