/* messages.h - POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol as a form of a
 * chat (form.h).
 *
 *     messages.c         the fields of a body
 *     messages_turns.c   its messages and blocks
 *     messages_answer.c  blocks, events and errors of an answer
 *
 * Fields, blocks and tools that have no effect are accepted and named as unknown fields.  Ids of
 * calls are those of the chat behind "toolu_" on the way out and without it on the way in, because
 * a template may write the id into the prompt.
 * Thread: messages_read: any; the rest: that of form.h. */
#ifndef INFERD_MESSAGES_H
#define INFERD_MESSAGES_H

#include "form.h"
#include "http.h"

#define MESSAGES_CALL_PREFIX "toolu_"
#define MESSAGES_THREAD      "thread" // the field that is refused

extern const answer_form_type messages_form;

/* The body of a chat: a new reference in *chat.  counted: nothing is generated, so max_tokens may
 * be absent. */
bool messages_read(json_t *body, bool counted, json_t **chat, unknown_fields *unknown,
                   api_error *err);
/* -- messages_turns.c: `system` (may be NULL) and `messages` as messages of a chat, an array. */
json_t *messages_read_turns(json_t *system, json_t *messages, unknown_fields *unknown,
                            api_error *err);
/* -- messages_answer.c */
answer_form *messages_form_create(void); // NULL: no memory
/* {"type":"error",...}; returns the status: 529 for overload.  For http_route. */
int messages_write_error(buf *out, const http_error *e);

#endif
