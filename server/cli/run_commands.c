/* run_commands.c - see run_commands.h. */
#include "run_commands.h"

#include <stdio.h>
#include <string.h>

#include "nearest.h"

static const struct {
    const char *word;
    run_command command;
} commands[] = {
    {"/help", RUN_HELP},
    {"/clear", RUN_CLEAR},
    {"/stats", RUN_STATS},
    {"/quit", RUN_QUIT},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

const char run_commands_help[] =
    "  /help     this list\n"
    "  /clear    start a new conversation (--system stays)\n"
    "  /stats    tokens and rates, of the last answer and in all; how full the context is\n"
    "  /quit     end, as Ctrl-D on an empty line does\n"
    "  //text    send a message that starts with a slash\n"
    "  text\\     the message goes on in the next line\n"
    "  Ctrl-C    stop an answer; at the prompt: drop the line\n"
    "  arrow keys: edit the line, earlier lines; Ctrl-R: search them\n";

static const char blanks[] = " \t\r\n";

/* The command with the first n bytes as its name; N_COMMANDS: none. */
static size_t find(const char *word, size_t n) {
    size_t i = 0;
    while (i < N_COMMANDS &&
           (strlen(commands[i].word) != n || strncmp(commands[i].word, word, n) != 0))
        i++;
    return i;
}

static void refuse(const char *typed, size_t n, char refusal[RUN_REFUSAL_BYTES]) {
    char word[NEAREST_BYTES_MAX + 1];
    nearest near = {0};
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word), typed);
    for (size_t i = 0; i < N_COMMANDS; i++) nearest_try(&near, word, commands[i].word);
    const char *best = nearest_word(&near);
    snprintf(refusal, RUN_REFUSAL_BYTES,
             "%s%s is not a command%s%s%s; /help lists them, and //text sends a message that "
             "starts with a slash",
             word, n < sizeof word ? "" : "...", best != NULL ? "; did you mean " : "",
             best != NULL ? best : "", best != NULL ? "?" : "");
}

run_command run_command_read(const char *typed, char refusal[RUN_REFUSAL_BYTES], const char **out) {
    size_t blank = strspn(typed, blanks);
    *out = typed;
    if (typed[blank] == 0) return RUN_EMPTY;
    if (typed[0] != '/') return RUN_MESSAGE;
    if (typed[1] == '/') {
        *out = typed + 1;
        return RUN_MESSAGE;
    }
    size_t n = strcspn(typed, blanks), i = find(typed, n);
    bool alone = typed[n + strspn(typed + n, blanks)] == 0;
    if (i < N_COMMANDS && alone) return commands[i].command;
    *out = refusal;
    if (i < N_COMMANDS)
        snprintf(refusal, RUN_REFUSAL_BYTES, "%s takes no text behind it", commands[i].word);
    else
        refuse(typed, n, refusal);
    return RUN_REFUSED;
}

bool run_line_add(buf *typed, const char *line) {
    size_t n = strlen(line);
    bool goes_on = n > 0 && line[n - 1] == '\\';
    buf_add(typed, line, goes_on ? n - 1 : n);
    if (goes_on) buf_add_char(typed, '\n');
    return goes_on;
}
