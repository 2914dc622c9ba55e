/* run_commands.h - what the user typed in a chat of `inferd run`: a message, or a command.
 *
 *   /word        a command of the table below; an unknown one never reaches the model
 *   //text       the message "/text"
 *   a line that ends with a backslash goes on in the next line
 * Thread: any; values. */
#ifndef INFERD_RUN_COMMANDS_H
#define INFERD_RUN_COMMANDS_H

#include <stdbool.h>

#include "inferd/buf.h"

typedef enum run_command {
    RUN_EMPTY,   // only blanks
    RUN_MESSAGE, // for the model
    RUN_HELP,
    RUN_CLEAR,
    RUN_STATS,
    RUN_QUIT,
    RUN_REFUSED // no such command; *out is a sentence for the user
} run_command;

extern const char run_commands_help[]; // what /help prints

/* *out: the message (a part of `typed`), or the sentence, which is kept in `refusal`. */
enum { RUN_REFUSAL_BYTES = 256 };
run_command run_command_read(const char *typed, char refusal[RUN_REFUSAL_BYTES], const char **out);

/* Adds a line, without its newline, to what was typed so far.  True: the next line belongs to it.
 */
bool run_line_add(buf *typed, const char *line);

#endif
