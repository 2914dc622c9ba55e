/* chat.h - rendering a conversation as text, by the model's own chat template.
 *
 * Templates are Jinja, as Hugging Face transformers runs it (ImmutableSandboxedEnvironment,
 * trim_blocks, lstrip_blocks, loopcontrols).  They come from untrusted files and are fed by
 * untrusted requests, so the interpreter has no objects but data, no I/O, and limits on source,
 * steps, depth, output and memory.  Each byte of the output is known to come from the template or
 * from the request; tok_encode matches special tokens only in the former.  Of a byte from the
 * request it is also known which message it is from.
 *
 * Thread: any, read-only after chat_template_open; a render owns its own memory. */
#ifndef INFERD_CHAT_H
#define INFERD_CHAT_H

#include <time.h>

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/status.h"
#include "models/tokenizer.h"

typedef struct chat_template chat_template;

typedef struct chat_limits {
    size_t source_bytes_max; // of a template                       default 256 KiB
    size_t steps_max;        // nodes executed in one render        default 5,000,000
    size_t depth_max;        // nesting of calls and macros         default 64
    size_t output_bytes_max; // of one render                       default 8 MiB
    size_t memory_bytes_max; // live bytes of one render            default 64 MiB
} chat_limits;
extern const chat_limits chat_limits_default;

#define CHAT_NO_MESSAGE UINT32_MAX
enum { CHAT_MESSAGES_EXACT = 254 };

/* The text of a span is from the template, from one message of the request, or from the rest of the
 * request (tools, kwargs).  `messages` has the index of that message, CHAT_NO_MESSAGE for the rest
 * and the template.  JSON punctuation belongs to the message of its data; where the template built
 * the object around the data, it is CHAT_NO_MESSAGE.
 *
 * Indices are exact in conversations of up to CHAT_MESSAGES_EXACT messages.  In longer ones the
 * render knows an index modulo CHAT_MESSAGES_EXACT, and takes the one nearest to the index before
 * it in the text (at the first: to 0).  That is exact where an index is at most 127 above or 126
 * below the one before it: for templates that show messages in order, also when they leave some out
 * or repeat the last ones. */
typedef struct chat_text {
    char *text; // [n] and a NUL; owned
    size_t n;
    tok_span *spans;    // [n_spans] cover the text; owned
    uint32_t *messages; // [n_spans] the message a span came from, or CHAT_NO_MESSAGE; owned
    size_t n_spans;
} chat_text;
void chat_text_deinit(chat_text *t);

/* The message that a byte belongs to.  Text of the template, such as "<|im_start|>user", belongs to
 * the next message in the text.  CHAT_NO_MESSAGE: the rest of the request, the end of the template
 * behind the last message (with the generation prompt), or no byte of the text.  Reads `specials`,
 * so they must be those of the render. */
uint32_t chat_text_message_at(const chat_text *t, size_t byte);

/* A syntax error is an INFERD_EFORMAT that names the line. */
inferd_status chat_template_open(bytes source, const chat_limits *limits, chat_template **out,
                                 inferd_err *err);
void chat_template_close(chat_template *t); // accepts NULL

/* The lowest call: variables are two JSON objects, `trusted` (special tokens: their text counts as
 * template text; may be NULL) and `vars` (from the request, takes precedence; may be NULL).  An
 * array `messages` in `vars` is the conversation that chat_text.messages counts.  `now` feeds
 * strftime_now, in local time.  Undefined values are errors where jinja2 raises, else empty
 * text.  raise_exception in the template is an INFERD_EINVAL with its message (an error of the
 * template itself, such as an undefined attribute, likewise); a limit is INFERD_ETOOLONG and starts
 * with "template_limit". */
inferd_status chat_template_render(const chat_template *t, json_t *trusted, json_t *vars,
                                   const struct tm *now, chat_text *out, inferd_err *err);

/* On both sides of a part of a message's text that is the server's and counts as the template's:
 * its special tokens are tokens.  Never in UTF-8, so no text of a request has it. */
#define CHAT_TRUSTED '\xff'

/* The input of a chat request, checked by the caller. */
typedef struct chat_input {
    json_t *messages;            // array, as in the request; borrowed
    json_t *tools;               // array or NULL; borrowed
    json_t *kwargs;              // object or NULL: chat_template_kwargs; borrowed
    bool add_generation_prompt;  // open the assistant's turn
    bool continue_final_message; // leave the last message open; excludes the former
} chat_input;

/* Messages to prompt text.  Content given as a list of text parts is joined to one string (unless
 * the template iterates it); function.arguments given as a JSON string is passed as an object, or
 * as the string when the template needs that; a null content is passed as "" when the template
 * would write the word "None" or "null" for it. */
inferd_status chat_render(const chat_template *t, const tokenizer *tok, const chat_input *input,
                          const struct tm *now, chat_text *out, inferd_err *err);

/* Are the arguments of a call, a text, an object for the template?  False: no memory. */
bool chat_opens_arguments(json_t *arguments, bool *opens);

#endif
