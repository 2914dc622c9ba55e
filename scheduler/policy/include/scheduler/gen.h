/* gen.h - one generation, as it crosses between front and engine: a request goes in, events come
 * out as values.  Nothing else is shared.
 *
 * Thread: a gen_request belongs to the front until engine_submit moves it; events are copies. */
#ifndef INFERD_GEN_H
#define INFERD_GEN_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "models/grammar.h"
#include "models/sampler.h"

/* Most urgent first. */
typedef enum gen_class { GEN_SYSTEM, GEN_HIGH, GEN_NORMAL, GEN_BATCH, GEN_CLASSES } gen_class;
const char *gen_class_name(gen_class prio); // "high"; GEN_CLASSES: "none"

typedef struct gen_request {
    uint64_t id; // unique for the life of the process; never 0
    uint32_t model_idx;
    uint32_t tenant_idx;
    gen_class prio;
    int32_t rank;        // inside the class, smaller first (vLLM's `priority`); then arrival
    tok_id *prompt;      // [n_prompt] owned
    uint32_t n_prompt;   // >= 1
    uint32_t max_tokens; // 0 = score the prompt only; GEN_NO_MAX = up to the context
    uint32_t min_tokens;
    bool ignore_eos;
    tok_id *stop_ids; // [n_stop_ids] owned
    uint32_t n_stop_ids;
    sample_params sampling;   // its bias array is owned
    grammar_machine *grammar; // the output follows it; counted, owned; NULL: the output is free
    bool bounds_reasoning;    // of a grammar with reasoning in front: at most so many tokens of it
    uint32_t reasoning_tokens_max; // are drawn, then its closing mark must come; 0: at once
    int32_t n_logprobs;            // -1 = none; alternatives per output token
    int32_t n_prompt_logprobs;     // -1 = none; alternatives per prompt token (scoring, echo)
    uint64_t cache_scope[2];       // prefix blocks are shared only within one scope (tenant, salt)
    bool no_cache;                 // neither use nor leave prefix blocks
    uint32_t fit_tokens; // it fits this many tokens of KV, by engine_admit; 0: not checked yet
    uint64_t arrival_us;
    uint64_t queue_deadline_us;              // still waiting then: ends with GEN_TIMEOUT; 0 = none
    uint64_t deadline_us;                    // not finished then: ends with GEN_TIMEOUT; 0 = none
    uint32_t ttft_target_ms, tpot_target_ms; // targets; 0 = the model's, or none
} gen_request;

#define GEN_NO_MAX UINT32_MAX

typedef enum gen_kind {
    GEN_EV_PROMPT, // log-probability of a prompt token, in order; the first: n_top 0, logprob 0
    GEN_EV_TOKEN,  // one generated token, the ending one too
    GEN_EV_DONE    // the last event of every request, exactly once
} gen_kind;

typedef enum gen_finish {
    GEN_STOP,      // an end token, or a stop id (then stop_id says which)
    GEN_LENGTH,    // max_tokens or the context
    GEN_CANCELLED, // engine_cancel
    GEN_TIMEOUT,   // a deadline passed
    GEN_ERROR      // status and text say what happened
} gen_finish;

enum { GEN_TEXT_BYTES = 160 };

/* Preemption kinds: what running work gave up for other work, the cheapest first.  The kind is
 * known when the sequence goes on, and is counted then. */
typedef enum gen_preempt {
    GEN_PREEMPT_PAUSE,     // a step, or its batch slot: all its keys and values stayed
    GEN_PREEMPT_SWAP,      // its pages: keys and values came back from host memory, or the disk
    GEN_PREEMPT_RECOMPUTE, // its pages: a block of them, or more, was computed again
    GEN_PREEMPT_MODEL_OUT, // its model left the device
    GEN_PREEMPTS
} gen_preempt;
const char *gen_preempt_name(gen_preempt preempt); // "pause", "park", "recompute", "model_out"

/* A time in which a preempted sequence computed nothing. */
typedef struct gen_away {
    uint64_t since_us; // monotonic
    uint32_t us;       // UINT32_MAX: as long, or longer
    gen_preempt kind;
} gen_away;
enum { GEN_AWAYS_MAX = 8 }; // reported of a sequence: the longest ones

typedef struct gen_event {
    uint64_t id;
    gen_kind kind;
    uint64_t at_us; // monotonic; the end of the step that made it
    union {
        struct {
            sample_result r;   // the token and its log-probabilities
            uint32_t n_cached; // as in `done`, so far
        } token;               // GEN_EV_PROMPT, GEN_EV_TOKEN
        struct {
            gen_finish finish;
            tok_id stop_id; // -1 = none
            inferd_status status;
            char text[GEN_TEXT_BYTES];
            uint32_t n_prompt, n_cached, n_output, n_preempted;
            /* The earliest useful retry.  0: unknown (INFERD_EMODEL), or never. */
            uint32_t retry_after_ms;
            uint64_t queued_us;    // from arrival to the first plan that had it
            uint32_t queued_steps; // steps in that time, with the one under way on arrival
            /* From the first plan to the first token, from there to the last one; what preemptions
             * took is in them.  Without output both are 0. */
            uint64_t prefill_us, decode_us;
            uint64_t device_us; // that it is charged with
            /* From arrival until its model was on the device; 0: it was there. */
            uint64_t load_us;
            uint32_t n_aways;
            gen_away aways[GEN_AWAYS_MAX]; // [n_aways] in order
            /* What preemptions took from it; no tenant is charged for that device time. */
            uint32_t n_preempts[GEN_PREEMPTS], n_recomputed; // times; tokens
            uint64_t away_us;                                // it computed nothing
            uint64_t waste_us, swap_in_us;                   // computing again; swapping in
        } done;
    };
} gen_event;

void gen_request_destroy(gen_request *r); // frees what it owns and itself; accepts NULL

#endif
