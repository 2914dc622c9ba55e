/* cli_top.h - `inferd ctl top` on a terminal.
 *
 *     stream    GET /admin/watch, opened again when it ends   -> top_state
 *     keyboard  top_ui                                         -> requests
 *     request   one at a time, on a connection of its own      -> top_ui
 *
 * One poll loop with all three; only resolving a host name waits.  Before the first event nothing
 * is drawn, so a daemon that is not there, or refuses, is an error like that of other commands.
 * Thread: main. */
#ifndef INFERD_CLI_TOP_H
#define INFERD_CLI_TOP_H

#include "ctl_client.h"

enum {
    CLI_TOP_NO_SCREEN = -1,
    TOP_SILENCE_S = 15, // of a stream that lives: the daemon sends a comment more often than that
    TOP_ANSWER_S = 60,  // of a request
    TOP_DRAW_MS = 100   // between two drawings because of the stream
};

/* Are standard input and output terminals, and of a type that has a name other than "dumb"? */
bool cli_top_can(void);
/* Returns when it is asked to end: 0 (q, SIGINT, SIGTERM, SIGHUP); 1: the daemon refused the
 * stream, 2: the URL is wrong, 3: no connection, each with a sentence on standard error;
 * CLI_TOP_NO_SCREEN: the type of the terminal is unknown, or cannot place its cursor. */
int cli_top(const ctl_target *target);

#endif
