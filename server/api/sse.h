/* sse.h - the bytes of answers: whole JSON bodies, and the chunks of a stream.
 *
 * Written directly into a buf, because a chunk is small, has a fixed shape and there is one per
 * token.  Every `data:` line is complete after each call, so a round of chunks can be passed to the
 * socket as one piece.  Which text, log-probabilities and ids go into a chunk is for stream.c.
 *
 *   answer_open   answer_choice_add ...   answer_close          one body
 *   sse_chunk ...   sse_usage   sse_done                        a stream
 * Thread: any. */
#ifndef INFERD_SSE_H
#define INFERD_SSE_H

#include "api_error.h"
#include "inferd/base.h"
#include "inferd/buf.h"
#include "models/sampler.h"
#include "models/tokenizer.h"
#include "scheduler/gen.h"

/* Values that are the same in every chunk of one answer.  All borrowed. */
typedef struct answer_head {
    bool chat; // chat.completion, or text_completion
    const char *id, *model, *fingerprint, *tier;
    const char *request_id;
    int64_t created; // unix seconds
    const tokenizer *tok;
    bool tokens_as_ids;  // log-probabilities name tokens "token_id:7"
    bool function_calls; // of a chat: its only call is written as function_call
    bool usage_asked;    // chunks carry "usage": null, or continuous_usage
} answer_head;

/* One token's log-probability. */
typedef struct answer_logprob {
    tok_id id;
    bool known; // false: the first token of a prompt has none
    float logprob;
    uint32_t text_offset; // code points before the token, in the text of the choice
    uint32_t n_top;
    const tok_logprob *top; // [n_top] best first
} answer_logprob;

typedef enum answer_stop { STOP_REASON_NONE, STOP_REASON_ID, STOP_REASON_STRING } answer_stop;

/* More of a tool call, in one chunk; its first one has id and name. */
typedef struct answer_call {
    uint32_t index;
    bytes id, name, arguments; // id.p NULL: not the first chunk
    bool custom;               // of a custom tool: the arguments are its input
} answer_call;

/* One choice, or the part of it in one chunk. */
typedef struct answer_choice {
    uint32_t index;
    bool opens; // the chunk with the role
    bytes text;
    bytes reasoning;         // of a chat; p NULL: none
    const answer_call *call; // of a chunk; NULL: none
    bytes calls; // of a whole chat answer: the elements of tool_calls, or function_call, as JSON
    const answer_logprob *logprobs; // [n_logprobs]; NULL with n_logprobs 0: writes "logprobs": null
    size_t n_logprobs;
    bool show_ids;
    const tok_id *ids; // [n_ids] output
    size_t n_ids;
    const tok_id *prompt_ids; // [n_prompt_ids]; NULL: not shown
    size_t n_prompt_ids;
    const char *finish; // "stop", "length"; NULL while it is not finished
    answer_stop stop_reason;
    tok_id stop_id;
    bytes stop_string;
} answer_choice;

typedef struct answer_usage {
    uint64_t n_prompt, n_cached, n_output, n_reasoning;
    bool running; // in the middle of a stream: the cached tokens of some choices are not known yet
    /* Details of the scheduling; written when class is not NULL. */
    uint64_t queued_us;    // until the last choice began
    uint32_t queued_steps; // in that time
    uint32_t n_preempted;  // of all choices, like the following; the sum of n_preempts
    uint32_t n_preempts[GEN_PREEMPTS];
    uint64_t n_recomputed, away_us, waste_us, swap_in_us, device_us;
    const char *prio; // static
} answer_usage;

void answer_open(buf *out, const answer_head *h);
void answer_choice_add(buf *out, const answer_head *h, const answer_choice *c);
void answer_close(buf *out, const answer_head *h, const answer_usage *u, const tok_id *prompt_ids,
                  size_t n_prompt_ids); // prompt_ids: NULL = not shown

/* `running`: the usage so far, or NULL. */
void sse_chunk(buf *out, const answer_head *h, const answer_choice *c, const answer_usage *running);
void sse_usage(buf *out, const answer_head *h, const answer_usage *u);
void sse_done(buf *out);
void sse_error(buf *out, const api_error *e);

#endif
