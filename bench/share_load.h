/* share_load.h - background streams of a row of `share`: each is a thread that sends a request,
 * reads the answer to the end and repeats, until share_load_stop.
 *
 *     share_load_start    streams send requests
 *     share_load_stop     streams have ended; their records may be read
 *     share_load_free
 *
 * The records of a stream belong to its thread until share_load_stop has returned, after that to
 * the caller.  Each list has a bound; a full list ends its stream with an error instead of dropping
 * later records. */
#ifndef BENCH_SHARE_LOAD_H
#define BENCH_SHARE_LOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "share_client.h"
#include "share_table.h"

enum { SHARE_STREAMS_MAX = 64, SHARE_TOKENS_MAX = 1 << 17, SHARE_ANSWERS_MAX = 1 << 14 };

/* `n` streams that are alike. */
typedef struct share_stream_kind {
    const char *model, *key, *tier; // key, tier NULL: none
    uint32_t n, n_prompt, n_output;
} share_stream_kind;

typedef struct share_token {
    uint64_t at_ns;
    uint32_t answer_idx;
} share_token;

struct share_load;
typedef struct share_stream {
    struct share_load *load;
    pthread_t thread;
    uint32_t idx, kind;
    share_client client;
    share_token *tokens;   // [n_tokens] owned; when chunks with text were read
    share_answer *answers; // [n_answers] owned; the last one may have been cut
    uint32_t n_tokens, n_answers;
    bool is_full;
    inferd_err err;
} share_stream;

typedef struct share_load {
    share_server to;                // with the key of each kind
    const share_stream_kind *kinds; // [n_kinds]; borrowed
    uint32_t n_kinds, n_streams;
    uint64_t seed;
    atomic_bool stops;
    share_stream *streams; // [n_streams] owned
} share_load;

/* `kinds` and the strings stay borrowed until share_load_free. */
inferd_status share_load_start(share_load *l, share_server to, const share_stream_kind *kinds,
                               uint32_t n_kinds, uint64_t seed, inferd_err *err);
/* Cuts the requests in flight, within a second or two, and waits for the threads; returns the first
 * failure of a stream.  May be called again. */
inferd_status share_load_stop(share_load *l, inferd_err *err);
void share_load_free(share_load *l); // stops; accepts a zeroed load

/* Adds the milliseconds between the tokens of each answer.  After share_load_stop. */
void share_load_gaps(const share_load *l, samples *out);

#endif
