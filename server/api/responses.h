/* responses.h - POST /v1/responses, OpenAI's second protocol, as a form of a chat (form.h).
 *
 *   responses_read.c    fields, tools and text.format become those of a chat
 *   responses_items.c   input items become messages
 *   responses.c         parts of the message become items; items become events, or one body
 *
 * Where the daemon keeps responses (response_store.h), one with `store` is kept with the items of
 * its whole conversation, and previous_response_id goes on from there.
 *
 * Tools of a namespace become functions named NAMESPACE__NAME, a custom tool becomes a function
 * with the one argument `input`; `names` maps a call of the model back to the tool of the client.
 * Thread: as form.h. */
#ifndef INFERD_RESPONSES_H
#define INFERD_RESPONSES_H

#include "form.h"
#include "form_blocks.h"
#include "form_body.h"
#include "response_draft.h"

enum {
    /* What the answer repeats of a request is in three events, so longer tools are left out there.
     */
    RESPONSES_TOOLS_BYTES_MAX = 32 * 1024,
    RESPONSES_METADATA_MAX = 16, // pairs of a name and a value, in characters:
    RESPONSES_METADATA_KEY_MAX = 64,
    RESPONSES_METADATA_VALUE_MAX = 512
};

/* Marks encrypted_content that this server wrote; behind it is the text of the reasoning. */
#define RESPONSES_REASONING_MARK "inferd:"

typedef struct responses_form {
    answer_form base;
    /* Of the request. */
    buf echo;      // what the answer repeats of it: a JSON object
    json_t *names; // function name: {"type", "name", "namespace"} of the client's tool; owned
    bool wants_encrypted;  // reasoning also as encrypted_content
    const form_host *host; // while it is read
    json_t *space;         // the name of the namespace that is read; NULL: none
    json_t *shown;         // tools as the answer repeats them; owned
    json_t *shown_in; // the list for the tool that is read: `shown`, or a namespace's; borrowed
    response_draft *draft; // the conversation, if the response is kept; owned; NULL: it is not
    /* Of the answer. */
    const answer_head *head;
    uint64_t n_events;
    form_blocks blocks; // items
} responses_form;

extern const answer_form_type responses_form_type;

static inline responses_form *responses_form_of(const form_reader *r) {
    return (responses_form *)r->form;
}

/* -- responses_read.c: members of answer_form_type -- */
bool responses_read(json_t *body, const form_host *host, json_t **chat, answer_form **out,
                    unknown_fields *unknown, api_error *err);
extern const form_fields responses_fields;
/* The name of the chat's function, a new reference; space NULL: without a namespace. */
json_t *responses_function_name(form_reader *r, json_t *name, json_t *space);

/* -- responses_items.c: members of form_field -- */
bool responses_read_instructions(form_reader *r, json_t *v);
bool responses_read_previous(form_reader *r, json_t *v);
bool responses_read_input(form_reader *r, json_t *v);

#endif
