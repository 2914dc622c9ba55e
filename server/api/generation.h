/* generation.h - an open generation: a request of a client, and its sequences in the engine.
 *
 *   generation_launch     all sequences are submitted, or none
 *   generation_on_event   an event of one of them; its output is sent by generation_flush
 *   generation_flush      begins the stream, writes, or ends: an answer, an error, [DONE]
 *   (client leaves)       every sequence is cancelled, the generation is freed
 *
 * A stream begins with its first bytes, not before: a request that fails in the queue still gets an
 * HTTP status of its own.  After heartbeat_ms without output it begins with a comment line, so that
 * clients and proxies see that it is alive; a later failure is then sent as an event.
 * Thread: front. */
#ifndef INFERD_GENERATION_H
#define INFERD_GENERATION_H

#include "api.h"
#include "app.h"
#include "admission.h"

struct generation {
    list_node link;  // in app.generations
    list_node dirty; // in app.dirty, or in none
    app *app;
    http_request *rq;
    char rq_id[40];
    stream *stream;               // owned
    uint64_t *ids;                // [n_choices] sequences; 0 = ended
    uint64_t *first_us, *last_us; // [n_choices] time of the first and of the last token; 0 = none
    uint32_t *devices;            // [n_choices] of the fleet
    uint32_t n_choices, model_idx;
    uint32_t n_sent; // submitted choices: later ones never had a device
    bool begun;      // the stream's headers were sent
    buf out;         // written and not handed to the transport yet
    uint64_t arrival_us, deadline_us, first_token_us;
    uint64_t queue_us;                       // of its first sequence
    int tenant;                              // -1: none
    uint64_t ttft_target_us, tpot_target_us; // 0: none
    uint64_t heartbeat_us;                   // after arrival
    explanation explanation;
    transcript *transcript; // of its prompt; owned; NULL: it is not kept
    request_trace *trace;   // NULL: none
    tok_ids *drawn;         // [n_choices] ids so far; owned; NULL without a transcript
};

/* The end of a job that prepared a generation: submits it, or answers why not.  Frees the job. */
void generation_launch(void *ctx, bool rq_gone);
void generation_on_event(generation *f, uint32_t choice_idx, const gen_event *ev);
void generation_flush(generation *f); // f may be freed
/* Ends it with this error; a no-op if it has failed already. */
void generation_fail(generation *f, api_fault fault, const char *message);

/* -- all generations -- */
/* Events are available: passes them to their generations, writes, flushes. */
void app_on_engine_wake(app *a);
/* The generation of a sequence (gen_request.id); NULL: it has ended, or its client left. */
const generation *generation_of(const app *a, uint64_t id);
/* Call every 100 ms or so.  `late_us`: how much later than planned it was called. */
void app_tick(app *a, uint64_t late_us);
/* The drain time is over: running generations end with an error. */
void app_cut(app *a);

#endif
