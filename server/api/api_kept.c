/* api_kept.c - GET and DELETE /v1/responses/{id}: responses that were kept (response_store.h).  A
 * worker reads and deletes the file. */
#include "api.h"
#include "form_body.h"
#include "response_store.h"

static bool fail_missing(api_job *job) {
    char quoted[API_QUOTE_BYTES];
    return api_fail(&job->error, API_NO_RESPONSE, "response_id", "Response with id '%s' not found.",
                    api_quote(quoted, job->rq->tail, strlen(job->rq->tail)));
}

static void fail_status(api_job *job, inferd_status s, const inferd_err *err) {
    if (s == INFERD_ENOTFOUND)
        fail_missing(job);
    else
        api_fail_status(&job->error, err, NULL);
}

static void get_work(void *ctx) {
    api_job *job = ctx;
    inferd_err err = {0};
    inferd_status s = job->app->responses == NULL
                          ? INFERD_ENOTFOUND
                          : response_store_get(job->app->responses, api_tenant_name(job),
                                               job->rq->tail, &job->answer, &err);
    if (s != INFERD_OK) fail_status(job, s, &err);
}

static void delete_work(void *ctx) {
    api_job *job = ctx;
    const char *id = job->rq->tail;
    inferd_err err = {0};
    inferd_status s =
        job->app->responses == NULL
            ? INFERD_ENOTFOUND
            : response_store_delete(job->app->responses, api_tenant_name(job), id, &err);
    if (s != INFERD_OK) {
        fail_status(job, s, &err);
        return;
    }
    buf_add_format(&job->answer, "{\"id\":\"%s\",\"object\":\"response\",\"deleted\":true}", id);
    if (job->answer.failed)
        api_fail(&job->error, API_INTERNAL, NULL, "the server is short of memory");
}

static void answer(void *ctx, bool rq_gone) {
    api_job *job = ctx;
    if (job->error.fault != API_OK)
        api_refuse(job, rq_gone);
    else if (!rq_gone)
        api_answer_json(job->rq, 200, &job->answer);
    api_job_destroy(job);
}

void api_response_one(void *ctx, http_request *rq) {
    api_start(ctx, rq, (api_route)0, rq->method == HTTP_DELETE ? delete_work : get_work, answer);
}
