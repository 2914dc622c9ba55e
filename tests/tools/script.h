/* script.h - what models say in a test: a file of JSON lines, tried in order for each new sequence.
 *
 *     {"when": "list the files", "say": "<tool_call>...</tool_call>", "once": true}
 *     {"when": ["main.c", "tool_response"], "say": "There is one file.<|im_end|>"}
 *
 *     when   a text, or a list of texts: the end of the prompt must contain all of them
 *     say    a text; control tokens written in it are these tokens.  Or a list of texts and token
 *            ids: each text becomes tokens by itself, so a test chooses where tokens begin
 *     once   the line is used for one sequence only; default false
 *     tail   how many bytes of the prompt's end are looked at; default 4096
 *
 * The file may grow while it is in use: lines appended to it count from the next sequence on.  A
 * line without its newline is not read yet.
 *
 * Thread: one at a time. */
#ifndef INFERD_TESTS_SCRIPT_H
#define INFERD_TESTS_SCRIPT_H

#include <jansson.h>

#include "inferd/buf.h"
#include "inferd/status.h"
#include "models/tokenizer.h"

enum { SCRIPT_TAIL_BYTES = 4096, SCRIPT_LINES_MAX = 1 << 16 };

typedef struct script script;

typedef struct script_line {
    uint32_t no;        // from 1
    const json_t *when; // a text, or a list of texts
    const json_t *say;  // borrowed from the script
    size_t tail_bytes;
    bool once, used;
} script_line;

inferd_status script_open(const char *path, script **out, inferd_err *err);
void script_close(script *s); // accepts NULL

/* The first line that matches the prompt, without those that are used up; it counts as used.
 * INFERD_EFORMAT: a line that is wrong; INFERD_ENOTFOUND: none matches, with the prompt's end. */
inferd_status script_find(script *s, bytes prompt, script_line *out, inferd_err *err);

/* Appends the tokens of `say`.  Ids are below n_vocab. */
inferd_status script_encode(const json_t *say, const tokenizer *tok, uint32_t n_vocab, tok_ids *out,
                            inferd_err *err);

/* In quotes, with escapes instead of bytes that are not ASCII. */
void script_quote(bytes text, buf *out);

#endif
