/* stream.h - one answer in progress: events of the engine become text, and text becomes bytes.
 *
 * A request has n_prompts * n choices; choice i belongs to prompt i / n.  For each:
 *
 *   event -> tok_stream -> text -> stop strings -> chunk, or one body at the end
 *
 *   text  |--- sent ---|---- safe ----|- held -|     held: may become a stop string
 *
 * Text is sent when it is certain; a token's log-probability is sent with its text.
 * Text that a stop string cut off is never reported, neither as text nor as log-probabilities.
 *
 * This file does not depend on sockets or the engine: the caller passes events in, takes bytes out,
 * and cancels the sequences that stream_on_event names.  So all of it is tested with fake events.
 *
 * Always: after stream_on_event `out` ends between two events; a choice finishes exactly once.
 * Thread: created on a worker, then front. */
#ifndef INFERD_STREAM_H
#define INFERD_STREAM_H

#include "api_error.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "form.h"
#include "models/calls.h"
#include "models/tokenizer.h"
#include "scheduler/gen.h"
#include "sse.h"
#include "stop.h"

typedef struct stream stream;

typedef struct stream_prompt {
    tok_ids ids; // owned
    char *text;  // [n_text] the text for echo; NULL: the ids as text; owned
    size_t n_text;
    bool bos_added; // ids[0] is not part of the text
} stream_prompt;

typedef struct stream_options {
    bool chat;
    bool streaming;        // chunks; otherwise one body
    bool include_usage;    // a chunk with the usage at the end
    bool continuous_usage; // the usage so far in every chunk
    bool echo;             // the text begins with the prompt
    bool show_ids;         // return_token_ids
    bool tokens_as_ids;    // return_tokens_as_token_ids
    bool usage_details;    // details of the scheduling in the usage
    bool include_stop;     // the stop string and the stop token stay in the text
    bool skip_specials;    // control tokens give no text
    bool ignore_eos;
    /* Static: the field with the grammar that the text follows; NULL: none.  Then the text is
     * exactly the bytes of the tokens, also a first space. */
    const char *constraint;
    uint32_t n;             // choices per prompt
    uint32_t min_tokens;    // stop strings are matched after that many tokens
    int32_t n_logprobs;     // -1: none
    stream_prompt *prompts; // [n_prompts]
    uint32_t n_prompts;
    stop_set *stops;  // NULL: none
    tok_id *stop_ids; // [n_stop_ids]
    uint32_t n_stop_ids;
    const tokenizer *tok; // borrowed
    /* For a chat with a text that is taken apart into reasoning, content and tool calls; NULL: it
     * is all content. */
    const call_format *format; // borrowed: of the model
    json_t *tools;             // of the request; owned; NULL: none
    json_t *custom;            // names of custom tools among them, as keys; owned; NULL: none
    bool function_calls;       // a call is written as function_call
    bool in_reasoning, no_calls, hides_reasoning;
    answer_form *form;        // writes the answer of another protocol; owned; NULL: this one's
    unsigned char secret[16]; // of the ids of calls
    char id[64];              // of the answer
    char request_id[40];
    const char *model, *tier; // borrowed
    char fingerprint[24];
    const char *prio; // static
    int64_t created;
} stream_options;

void stream_options_deinit(stream_options *o);

/* Takes the options, also on failure; NULL: no memory. */
stream *stream_create(stream_options *options);
void stream_destroy(stream *s); // accepts NULL
const stream_options *stream_about(const stream *s);

/* Handles one event of a choice; appends chunks to `out`.  True: the choice has ended before its
 * sequence did, so the caller should cancel the sequence. */
bool stream_on_event(stream *s, uint32_t choice_idx, const gen_event *ev, buf *out);

/* The last event of a stream that began and failed. */
void stream_write_error(stream *s, const api_error *e, buf *out);
/* The reason of a failure; fault API_OK: none.  After a failure events are ignored. */
const api_error *stream_error(const stream *s);
void stream_fail(stream *s, api_fault fault, const char *message);
/* All sequences have ended. */
bool stream_is_done(const stream *s);
/* When done and not failed: appends the last chunks, or the whole body.  False: no memory. */
bool stream_finish(stream *s, buf *out);

answer_usage stream_usage(const stream *s);
/* "stop", "length", for the log: of the first choice; "" before it has ended. */
const char *stream_finish_reason(const stream *s);

#endif
