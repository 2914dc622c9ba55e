/* form.h - a protocol beside chat completions: its body becomes that of a chat, and its answer is
 * written from the parts of the chat's message.
 *
 *     body --read--> body of a chat --> the same request, the same engine, the same stream
 *     parts of the message --begin, part ..., end--> events, or one body
 *
 * Protocols share
 *
 *     form_body.h     a table of fields, texts in parts, tools
 *     form_turns.h    items and blocks become messages
 *     form_blocks.h   parts of the answer become blocks, one open at a time
 *
 * so that a protocol has only its names.  An answer has one choice.  A form keeps what its events
 * and its body repeat (items, blocks).
 * Thread: read: worker; the rest: front. */
#ifndef INFERD_FORM_H
#define INFERD_FORM_H

#include <jansson.h>

#include "api_error.h"
#include "json_out.h"
#include "message.h"
#include "sse.h"
#include "unknown.h"

typedef struct answer_end {
    const char *finish; // "stop", "length", "tool_calls"
    bytes stop_string;  // that ended it; p NULL: none
    answer_usage usage;
} answer_end;

typedef struct answer_form answer_form;

/* What a protocol may use of the daemon.  All borrowed. */
typedef struct form_host {
    struct response_store *store; // response_store.h; NULL: nothing is kept after an answer
    const char *tenant;           // its name; "" without keys
    const struct json_limits *limits;
    bytes text; // of the body
} form_host;

typedef struct answer_form_type {
    const char *id_prefix; // "resp_"
    /* The body (an object) as that of a chat: a new reference in *chat; *out is owned by the
     * caller, also on failure (then it may be NULL).  Fields without effect that a client should
     * hear of are added to `unknown`.  False: *err has the answer. */
    bool (*read)(json_t *body, const form_host *host, json_t **chat, answer_form **out,
                 unknown_fields *unknown, api_error *err);
    const struct form_fields *fields; // of the body: form_body.h
    /* Before the first part.  out NULL: the answer is not streamed.  `head` stays valid. */
    void (*begin)(answer_form *f, const answer_head *head, const answer_usage *now, buf *out);
    void (*part)(answer_form *f, const message_part *p, buf *out); // out NULL: not streamed
    /* The last events; or the whole body, if it is not streamed. */
    void (*end)(answer_form *f, const answer_end *end, buf *out);
    /* The last event of a stream that cannot go on; behind begin. */
    void (*fail)(answer_form *f, const api_error *e, buf *out);
    void (*destroy)(answer_form *f);
} answer_form_type;

/* The first member of each form. */
struct answer_form {
    const answer_form_type *type;
    bool streaming;     // set by the stream
    const char *schema; // the member of a tool in the body that has its schema; static
    json_t *places;     // per function of the chat its path in the body: "tools[2].tools[0]"; owned
    json_t *message_places; // per message of the chat where it is from (form_turns.h); owned
};

static inline void answer_form_destroy(answer_form *f) { // accepts NULL
    if (f == NULL) return;
    json_decref(f->places);
    json_decref(f->message_places);
    f->type->destroy(f);
}

/* Gives fields of the chat's body that the error names as those of the client's.  f NULL: they are
 * the client's.  (form_body.c) */
void form_locate(const answer_form *f, api_error *err);

/* ---- events ---- */

/* "event: TYPE", and the data up to behind its member "type". */
static inline void form_event_open(buf *out, const char *type) {
    buf_add_format(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static inline void form_event_close(buf *out) {
    buf_add_str(out, "}\n\n");
}

/* `before`, which may end with a name, and then a JSON string. */
static inline void form_add(buf *out, const char *before, bytes text) {
    buf_add_str(out, before);
    json_add_string(out, text.p == NULL ? "" : text.p, text.n);
}

/* A string that begins with a mark, which needs no escapes. */
static inline void form_add_marked(buf *out, const char *before, const char *mark, bytes text) {
    buf_add_str(out, before);
    buf_add_char(out, '"');
    buf_add_str(out, mark);
    size_t at = out->n;
    form_add(out, "", text);
    if (!out->failed) memmove(out->p + at, out->p + at + 1, --out->n - at); // its opening quote
}

static inline void form_add_cstr(buf *out, const char *before, const char *text) {
    form_add(out, before, (bytes){text, strlen(text)});
}

#endif
