/* responses.h - POST /v1/responses, OpenAI's second protocol, as a form of a chat (form.h).
 *
 *   responses_read.c   input items, tools and text.format become messages, tools, response_format
 *   responses.c        parts of the message become items; items become events, or one body
 *
 * Nothing is kept after the answer: previous_response_id and conversation are refused.  Tools of a
 * namespace become functions named NAMESPACE__NAME, a custom tool becomes a function with the one
 * argument `input`; `names` maps a call of the model back to the tool of the client.
 * Thread: as form.h. */
#ifndef INFERD_RESPONSES_H
#define INFERD_RESPONSES_H

#include "form.h"

enum {
    /* Tools and instructions are repeated in three events.  A stream has a bounded buffer, so
     * longer ones are not repeated. */
    RESPONSES_ECHO_BYTES_MAX = 32 * 1024
};

/* Marks encrypted_content that this server wrote; behind it is the text of the reasoning. */
#define RESPONSES_REASONING_MARK "inferd:"

typedef enum item_kind {
    ITEM_NONE,
    ITEM_REASONING,
    ITEM_MESSAGE,
    ITEM_FUNCTION,
    ITEM_CUSTOM,
    ITEM_KINDS
} item_kind;

typedef struct responses_form {
    answer_form base;
    /* Of the request. */
    buf echo;       // members of the answer that repeat it, as JSON text
    json_t *names;  // function name: {"type", "name", "namespace"} of the client's tool; owned
    json_t *places; // per function its path in the body: "tools[2].tools[0]"; owned
    bool wants_encrypted; // reasoning also as encrypted_content
    /* Of the answer. */
    const answer_head *head;
    uint64_t n_events;
    buf items; // complete ones, as JSON, with commas between them
    uint32_t n_items;
    item_kind open;          // item in progress; ITEM_NONE: none
    buf text, call_id, name; // of it; name: of the function
} responses_form;

extern const answer_form_type responses_form_type;

/* -- responses_read.c: members of answer_form_type -- */
bool responses_read(json_t *body, json_t **chat, answer_form **out, unknown_fields *unknown,
                    api_error *err);
void responses_locate(const answer_form *f, api_error *err);

#endif
