/* share_client.h - one connection that sends requests one after another and reports the time of
 * each token.
 *
 * Blocking, unlike the load of inferd-bench: the rows of `share` are sequences of steps (load a
 * model, wait, send a request), and the few dozen streams next to them are threads (share_load.h).
 *
 * Thread: one per client. */
#ifndef BENCH_SHARE_CLIENT_H
#define BENCH_SHARE_CLIENT_H

#include <curl/curl.h>
#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "sse.h"

typedef struct share_client {
    CURL *easy;                 // owned
    struct curl_slist *headers; // owned
    uint32_t id_lo, id_hi;      // prompts consist of token ids in [id_lo, id_hi]
    char url[512];              // without a slash at the end
    sse_parser sse;
    buf body, answer;
} share_client;

/* A request: a completion of random token ids, greedy, of exactly n_output tokens. */
typedef struct share_ask {
    const char *model, *tier; // tier NULL: none is sent
    uint32_t n_prompt, n_output;
    uint64_t seed; // a different one for a different prompt
    /* A token arrived (several at once count once); false ends the answer.  May be NULL. */
    bool (*on_token)(void *ctx, uint64_t now_ns);
    /* Called from time to time, also while nothing arrives; true ends the answer.  May be NULL. */
    bool (*stops)(void *ctx);
    void *ctx;
} share_ask;

typedef struct share_answer {
    uint64_t sent_ns, first_ns, last_ns; // first_ns 0: no token arrived
    uint32_t n_chunks;
    int64_t n_output, queued_ms, queued_steps; // from usage; -1 when not reported
    bool was_cut;                              // ended by on_token or stops
} share_answer;

/* A server and the parameters for requests to it; the strings stay borrowed. */
typedef struct share_server {
    const char *url, *key; // key NULL: none is sent
    uint32_t id_lo, id_hi;
} share_server;

inferd_status share_client_init(share_client *c, share_server to, inferd_err *err);
void share_client_deinit(share_client *c); // accepts a zeroed client

inferd_status share_client_ask(share_client *c, const share_ask *ask, share_answer *out,
                               inferd_err *err);

/* Calls a route that answers JSON with a status of 2xx; `body` NULL: none.  The caller owns *out;
 * `out` may be NULL to ignore the answer. */
inferd_status share_client_json(share_client *c, const char *method, const char *path,
                                const char *body, json_t **out, inferd_err *err);
/* The same for "/admin/KIND/NAME" and "/admin/KIND/NAME/COMMAND" (`command` ""); KIND is "models"
 * or "tenants". */
inferd_status share_client_object(share_client *c, const char *method, const char *kind,
                                  const char *name, const char *command, const char *body,
                                  inferd_err *err);

#endif
