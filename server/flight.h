/* flight.h - a request in flight: its client on one side, its sequences in the engine on the other.
 *
 *     flight_launch     all sequences are submitted, or none
 *     flight_on_event   an event of one of them; what comes of it waits for flight_flush
 *     flight_flush      begin the stream, write, or end: an answer, an error, [DONE]
 *     (client leaves)   every sequence is cancelled, the flight is gone
 *
 * A stream is begun with its first bytes, not before: a request that fails in the queue still gets
 * a status of its own.  One that has waited heartbeat_ms without any is begun with a comment line,
 * so that clients and proxies see that it lives; what fails then is told as an event.
 *
 * Thread: front. */
#ifndef INFERD_FLIGHT_H
#define INFERD_FLIGHT_H

#include "api.h"
#include "app.h"
#include "gate.h"

struct flight {
    list_node link;  // in app.flights
    list_node dirty; // in app.dirty, or in none
    app *app;
    http_request *rq;
    char rq_id[40];
    stream *stream;               // owned
    uint64_t *ids;                // [n_choices] sequences; 0 = ended
    uint64_t *first_us, *last_us; // [n_choices] time of the first, of the newest token; 0 = none
    uint32_t *devices;            // [n_choices] of the fleet
    uint32_t n_choices, model_idx;
    uint32_t n_sent; // of the choices: those behind never had a device
    bool begun;      // the stream's headers are on their way
    buf out;         // written and not yet handed over
    uint64_t arrival_us, deadline_us, first_token_us;
    uint64_t queue_us;                       // of its first sequence
    uint64_t mark;                           // of its body; 0: unknown
    int tenant;                              // -1: none
    uint64_t ttft_target_us, tpot_target_us; // 0: none
    uint64_t heartbeat_us;                   // after arrival
};

/* The end of a job that prepared a generation: submit it, or answer why not.  Frees the job. */
void flight_launch(void *job, bool rq_gone);
void flight_on_event(flight *f, uint32_t choice_idx, const gen_event *ev);
void flight_flush(flight *f); // f may be freed
/* End it with this error; a no-op when it failed already. */
void flight_fail(flight *f, api_fault fault, const char *message);

#endif
