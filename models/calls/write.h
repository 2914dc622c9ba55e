/* write.h - calls as the text of a message, in the notation of a format: for prompts of templates
 * that write none (prompted.c).
 *
 * Lists and objects among the arguments are JSON in each notation, with the constants of Python in
 * CALL_PYTHON.  Control tokens in marks have CALL_TOKEN on both sides.
 * Thread: any. */
#ifndef INFERD_CALLS_WRITE_H
#define INFERD_CALLS_WRITE_H

#include "calls/format.h"

/* Appends an array of calls in OpenAI's form; out->failed tells of memory. */
void call_write(const call_format *f, const json_t *calls, buf *out);
/* The text of a content: a string, or the texts of its parts, joined by newlines as chats join
 * them. */
void call_write_content(const json_t *content, buf *out);
void call_write_json(const json_t *v, buf *out); // any value, as JSON

#endif
