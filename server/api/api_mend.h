/* api_mend.h - conversations that a chat template refuses, in the form that it accepts.
 *
 * The servers of OpenAI and Anthropic accept conversations that templates refuse by an exception:
 * a tool without a description, a user's text behind a tool's result, parallel calls.  When
 * rendering fails, mends are applied one after the other, each only if it changes something, with
 * a rendering after each.  What was not needed is taken back, so that a conversation that grows
 * keeps its beginning.  If no mend helps, the first error stands; if a limit is met on the way,
 * that.
 *
 * A mend only depends on the conversation: the next turn is mended in the same way, and its prompt
 * begins with the one before.  It copies what it changes; the request stays as it is.
 * Thread: any. */
#ifndef INFERD_API_MEND_H
#define INFERD_API_MEND_H

#include "models/chat.h"

typedef struct mended {
    chat_text text; // to be freed by the caller, as `origin`
    /* Per message of the template the index of the client's message that its text begins with; a
     * negative one: of none.  Where it has one of several calls: [index, number of the call]. NULL:
     * they are the same. */
    json_t *origin;
    bool without_effort; // the template got no reasoning_effort
} mended;

/* Renders a conversation; `origin` of `out` belongs to in->messages, and is replaced if they are
 * mended.  On failure there is no text. */
inferd_status api_mend_render(const chat_template *t, const tokenizer *tok, const chat_input *in,
                              const struct tm *now, mended *out, inferd_err *err);
/* A message for each call, its result behind it: for a template that leaves out later calls without
 * an exception.  A new reference; *origin is replaced.  NULL: no memory. */
json_t *api_mend_calls(json_t *messages, json_t **origin);
void mended_deinit(mended *m);

#endif
