/* stream.h - one answer being made: events of the engine become text, and text becomes bytes.
 *
 * A request has n_prompts * n choices; choice i belongs to prompt i / n.  For each:
 *
 *     event -> tok_stream -> text -> stop strings -> chunk, or one body at the end
 *
 *     text    |--- sent ---|---- safe ----|- held -|   held: may become a stop string
 *
 * Text leaves when it is certain; a token's log-probability leaves with the text it is part of.
 * What a stop string cut off is never reported, neither text nor log-probabilities.
 *
 * Nothing here knows sockets or the engine: the caller hands events in, takes bytes out, and
 * cancels the sequences it is told to.  So all of it is tested with faked events.
 *
 * Always: after stream_on_event `out` ends between two events; a choice finishes exactly once.
 * Thread: made on a worker, then front. */
#ifndef INFERD_STREAM_H
#define INFERD_STREAM_H

#include "api_error.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "models/tokenizer.h"
#include "scheduler/gen.h"
#include "sse.h"
#include "stop.h"

typedef struct stream stream;

typedef struct stream_prompt {
    tok_ids ids; // owned
    char *text;  // [n_text] what echo gives back; NULL: the ids as text; owned
    size_t n_text;
    bool bos_added; // ids[0] is not part of the text
} stream_prompt;

typedef struct stream_options {
    bool chat;
    bool streaming;        // chunks; otherwise one body
    bool include_usage;    // a chunk with the usage at the end
    bool continuous_usage; // and the usage so far in every chunk
    bool echo;             // the prompt comes first
    bool show_ids;         // return_token_ids
    bool tokens_as_ids;    // return_tokens_as_token_ids
    bool usage_details;    // how it fared, in the usage
    bool include_stop;     // the stop string and the stop token stay in the text
    bool skip_specials;    // control tokens give no text
    bool ignore_eos;
    uint32_t n;             // choices per prompt
    uint32_t min_tokens;    // stop strings are looked for after that many
    int32_t n_logprobs;     // -1: none
    stream_prompt *prompts; // [n_prompts]
    uint32_t n_prompts;
    stop_set *stops;  // NULL: none
    tok_id *stop_ids; // [n_stop_ids]
    uint32_t n_stop_ids;
    const tokenizer *tok;     // borrowed
    char id[64];              // of the answer
    const char *model, *tier; // borrowed
    char fingerprint[24];
    const char *class; // static
    int64_t created;
} stream_options;

/* Frees what the options own. */
void stream_options_deinit(stream_options *o);

/* Takes the options, whatever comes out; NULL: no memory. */
stream *stream_create(stream_options *options);
void stream_destroy(stream *s); // accepts NULL
const stream_options *stream_about(const stream *s);
uint32_t stream_n_choices(const stream *s);

/* Take one event of a choice; chunks are appended to `out`.  True: the choice has ended before its
 * sequence did, so the sequence should be cancelled. */
bool stream_on_event(stream *s, uint32_t choice_idx, const gen_event *ev, buf *out);

/* Why the answer failed; fault API_OK when it did not.  After a failure events are ignored. */
const api_error *stream_error(const stream *s);
void stream_fail(stream *s, api_fault fault, const char *message);
/* Every sequence has ended. */
bool stream_is_done(const stream *s);
/* When done and not failed: the last chunks, or the whole body.  False: memory was short. */
bool stream_finish(stream *s, buf *out);

answer_usage stream_usage(const stream *s);
/* "stop", "length", for the log: of the first choice; "" before it has ended. */
const char *stream_finish_reason(const stream *s);

#endif
