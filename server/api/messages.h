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
 * Thread: as form.h. */
#ifndef INFERD_MESSAGES_H
#define INFERD_MESSAGES_H

#include "form.h"
#include "form_blocks.h"
#include "form_body.h"
#include "http.h"

#define MESSAGES_CALL_PREFIX "toolu_"
#define MESSAGES_THREAD      "thread" // the field that is refused

typedef struct messages_form {
    answer_form base;
    turn_role role; // of the message that is read
    const answer_head *head;
    form_blocks blocks; // of a whole answer: all of its content
} messages_form;

extern const answer_form_type messages_form_type;

/* As answer_form_type.read.  counted: nothing is generated, so max_tokens may be absent. */
bool messages_read(json_t *body, bytes text, bool counted, json_t **chat, answer_form **out,
                   unknown_fields *unknown, api_error *err);
extern const form_fields messages_fields;
/* -- messages_turns.c: members of form_field */
bool messages_read_system(form_reader *r, json_t *v);
bool messages_read_turns(form_reader *r, json_t *v);
/* -- messages_answer.c: {"type":"error",...}; returns the status: 529 for overload.  For
 * http_route. */
int messages_write_error(buf *out, const http_error *e);

#endif
