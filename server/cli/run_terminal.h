/* run_terminal.h - lines from a terminal, with editing and a history: libedit.
 *
 * The history is a file of the user with one line for each entry, the newest last:
 * $XDG_STATE_HOME/inferd/history, or ~/.local/state/inferd/history, mode 0600.  Each line is
 * appended when it is entered; the file is shortened when it is opened.  Without a home, or when
 * the file cannot be used, there is a history of this run only.
 *
 * Characters are UTF-8.  While a line is read, SIGWINCH, SIGTSTP and SIGCONT are handled here;
 * SIGINT is the caller's, with a handler that does not restart system calls and counts.
 * Thread: one, the one that opened it. */
#ifndef INFERD_RUN_TERMINAL_H
#define INFERD_RUN_TERMINAL_H

#include <signal.h>
#include <stdbool.h>

#include "inferd/buf.h"
#include "inferd/status.h"

/* Of the file; longer lines are kept for this run only. */
enum {
    RUN_HISTORY_LINES_MAX = 1000,
    RUN_HISTORY_LINE_BYTES_MAX = 4096,
    RUN_HISTORY_BYTES_MAX = 1 << 20 // read at most; the newest ones
};

typedef struct run_terminal run_terminal;

typedef enum run_read {
    RUN_READ_LINE,
    RUN_READ_INTERRUPT, // `interrupts` grew; what was typed is dropped
    RUN_READ_END        // end of file, or the terminal is gone
} run_read;

/* `history`: use the file; *note says why it cannot be used, or has status OK.  NULL: no memory, or
 * no terminal.  `interrupts` is borrowed. */
run_terminal *run_terminal_open(bool history, const volatile sig_atomic_t *interrupts,
                                inferd_err *note);
void run_terminal_close(run_terminal *t); // accepts NULL; the terminal is as it was
/* Replaces `line`, without its newline.  `prompt` is borrowed until it returns. */
run_read run_terminal_read(run_terminal *t, const char *prompt, buf *line);
void run_terminal_remember(run_terminal *t, const char *line); // adds it to the history

/* The file's path; false: there is no home, or the path is too long. */
bool run_history_path(const char *xdg_state_home, const char *home, char *out, size_t n_out);

#endif
