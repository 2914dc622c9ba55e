/* probe.h - what a template writes for an assistant's message: the texts that learn.c compares.
 *
 * A probe is a conversation of a user's message and an assistant's, rendered.  What the template
 * writes for the user is cut off, so a text begins with the header of the assistant's turn.  All
 * words of the conversations are unlike anything in a template.
 * Thread: any. */
#ifndef INFERD_CALLS_PROBE_H
#define INFERD_CALLS_PROBE_H

#include "calls/format.h"

#define PROBE_ASKED   "inferd_asked"
#define PROBE_CONTENT "inferd_said"
#define PROBE_REASON  "inferd_thought"
#define PROBE_NAME_1  "inferd_alpha"
#define PROBE_NAME_2  "inferd_beta"
#define PROBE_KEY_1   "inferd_key"
#define PROBE_KEY_2   "inferd_kez"
#define PROBE_VALUE_1 "inferd_val"
#define PROBE_VALUE_2 "inferd_vam"
#define PROBE_ID_1    "abcdefgh1" // nine letters and digits, because templates of Mistral require them
#define PROBE_ID_2    "abcdefgh2"

typedef struct prober {
    const chat_template *t;
    const tokenizer *tok;
    json_t *tools; // owned
    buf base;      // the user's message alone
    bool no_memory;
} prober;

/* tools NULL: those that the calls are of.  False: no memory, or the template refuses even a single
 * message of a user. */
bool prober_init(prober *p, const chat_template *t, const tokenizer *tok, json_t *tools);
void prober_deinit(prober *p);

/* The header that the template writes for the next turn of the assistant. */
bool probe_prompt(prober *p, buf *out);
/* A conversation with this message before the user's (NULL: none), whole. */
bool probe_conversation(prober *p, json_t *first, buf *out);
/* A message of the assistant; takes the reference.  False: the template refuses it, or no memory.
 */
bool probe_message(prober *p, json_t *message, buf *out);

json_t *probe_said(const char *content, const char *field, const char *thought); // field NULL: none
/* Arguments as JSON text; name 2 NULL: one call. */
json_t *probe_calls(const char *name_1, const char *arguments_1, const char *name_2,
                    const char *arguments_2);

#endif
