/* api.h - the handlers of the route table, and the job that reads a request on a worker.
 *
 * The worker does the work that grows with the body (JSON, template, tokenizer) and returns data.
 * Thread: handlers and *_done: front; *_work: worker. */
#ifndef INFERD_API_H
#define INFERD_API_H

#include "api_error.h"
#include "api_params.h"
#include "app.h"
#include "admission.h"
#include "explain.h"
#include "request_trace.h"
#include "models/reasoning.h"
#include "stream.h"

typedef struct api_job {
    app *app;
    http_request *rq;
    api_route route;
    app_config *config; // one reference
    int tenant;         // in that configuration, or APP_NO_TENANT
    api_hints hints;    // values of headers

    api_error error; // fault API_OK: the results below are valid
    unknown_fields unknown;
    int model_idx;     // -1: not known
    const char *input; // the field of its prompt: "messages", "prompt"
    uint32_t context;  // of the model
    bool has_keep_alive;
    uint64_t keep_alive_us;
    uint32_t n_per_prompt;  // n
    gen_request **requests; // [n_requests] owned, ids not set
    uint32_t n_requests;
    uint64_t *devices; // [prompts] bits, of admission_ask; owned
    stream *stream;    // owned
    explanation explanation;
    transcript *transcript; // of the prompt of a chat; owned; NULL: it is not kept
    request_trace *trace;   // owned until it is closed; NULL: none
    char *weakened;         // of its tools, for a header of the answer; owned; NULL: nothing
    buf answer;             // of tokenize and detokenize
} api_job;

/* Creates a job; `work` fills it, and `done` ends it with api_job_destroy.  If it cannot begin,
 * api_start sends the answer. */
void api_start(app *a, http_request *rq, api_route route, void (*work)(void *job),
               void (*done)(void *job, bool rq_gone));
void api_job_destroy(api_job *job); // accepts NULL
void api_answer_error(http_request *rq, const api_error *e);
void api_answer_json(http_request *rq, int status, buf *body);
/* Before the answer: counts unknown fields, logs each name once, names them in a header of it; and
 * what is not enforced of the schemas of tools, in another. */
void api_tell_unknown(api_job *job);
/* Refuses a job: counts, logs, and answers unless rq_gone. */
void api_refuse(api_job *job, bool rq_gone);

/* Conversations: rendered by the chat template, answered in parts. */
static inline bool api_is_chat(api_route route) {
    return (route & (API_CHAT | API_RESPONSES | API_MESSAGES | API_COUNT_TOKENS)) != 0;
}

/* In the configuration of the job; "" without keys.  Worker, too. */
static inline const char *api_tenant_name(const api_job *job) {
    return job->tenant < 0 ? "" : job->config->c->tenants[job->tenant].name;
}

/* -- api_prepare.c -- */
void api_prepare(void *ctx);
/* The model a request names.  False: job->error is set. */
bool api_pick_model(api_job *job, api_params *p, const config_model **about);
/* Renders a conversation and tokenizes it; `before`: how the answer begins.  `form`: of the body's
 * protocol, NULL: a chat's.  What the template did not take is added to p->unknown. */
bool api_encode_chat(api_job *job, api_params *p, const answer_form *form,
                     const config_model *about, tok_ids *out, reasoning *before);
bool api_encode_text(api_job *job, const api_params *p, bytes text, const char *param,
                     tok_ids *out);

/* -- handlers -- */
void api_chat(void *ctx, http_request *rq);
void api_completions(void *ctx, http_request *rq);
void api_responses(void *ctx, http_request *rq);
void api_response_one(void *ctx, http_request *rq); // kept: GET, DELETE
void api_models_list(void *ctx, http_request *rq);
void api_models_one(void *ctx, http_request *rq);
void api_tokenize(void *ctx, http_request *rq);
void api_detokenize(void *ctx, http_request *rq);
void api_messages(void *ctx, http_request *rq);
void api_count_tokens(void *ctx, http_request *rq);
void api_health(void *ctx, http_request *rq);
void api_ready(void *ctx, http_request *rq);
void api_metrics(void *ctx, http_request *rq);
void api_version(void *ctx, http_request *rq);
void api_root(void *ctx, http_request *rq);
void api_openapi(void *ctx, http_request *rq);
void api_audit(void *ctx, http_request *rq);

#endif
