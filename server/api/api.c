/* api.c - see api.h: jobs, and how handlers answer. */
#include "api.h"

#include "app_tell.h"
#include "log.h"

void api_answer_error(http_request *rq, const api_error *e) {
    http_answer_error(rq, e->status, e->type, e->code, e->param[0] == 0 ? NULL : e->param,
                      e->message, e->retry_after_s);
}

void api_answer_json(http_request *rq, int status, buf *body) {
    http_answer(rq, status, "application/json", body, NULL);
}

static bytes header_of(void *rq, const char *name) {
    return http_header(rq, name);
}

/* Data that the transport gives only inside a handler. */
static void note_client(api_job *job) {
    if (!api_is_chat(job->route) && job->route != API_COMPLETION) return;
    api_hints_read(header_of, job->rq, &job->hints, &job->error);
    job->explanation.wanted = job->hints.explain;
    if (job->app->tracer != NULL && job->route != API_COUNT_TOKENS)
        job->trace = request_trace_begin(job->app, job->rq,
                                         job->route == API_COMPLETION ? "text_completion" : "chat");
}

void api_start(app *a, http_request *rq, api_route route, void (*work)(void *job),
               void (*done)(void *job, bool rq_gone)) {
    int tenant = app_tenant(a->config, rq->tenant);
    if (tenant == APP_TENANT_GONE) { // its key was valid when the request began
        http_answer_error(rq, 401, "authentication_error", "invalid_api_key", NULL,
                          "the key is not valid any more", 0);
        return;
    }
    api_job *job = calloc(1, sizeof *job);
    if (job != NULL) {
        job->app = a;
        job->rq = rq;
        job->route = route;
        job->tenant = tenant;
        job->model_idx = -1;
        job->config = app_config_take(a);
        note_client(job);
        if (http_work(rq, work, done, job)) return;
    }
    api_error e = {0};
    api_fail(&e, API_OVERLOADED, NULL, "the server is short of memory");
    if (job != NULL) {
        request_trace_close(job->trace, &(request_trace_end){.status = e.status, .code = e.code});
        job->trace = NULL;
    }
    api_job_destroy(job);
    api_answer_error(rq, &e);
}

void api_job_destroy(api_job *job) {
    if (job == NULL) return;
    for (uint32_t i = 0; i < job->n_requests && job->requests != NULL; i++)
        gen_request_destroy(job->requests[i]);
    free(job->requests);
    free(job->devices);
    stream_destroy(job->stream);
    transcript_release(job->transcript);
    /* Its client left before it began. */
    request_trace_close(job->trace, &(request_trace_end){.code = "client_left"});
    free(job->weakened);
    buf_deinit(&job->answer);
    app_config_drop(job->config);
    free(job);
}

static void log_unknown(const api_job *job, const unknown_field *f) {
    unknown_news news = unknown_names_add(job->app->unknown_names, f->name);
    if (news == UNKNOWN_TOLD) return;
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO,
              news == UNKNOWN_NEW ? "unknown_field" : "unknown_fields_no_longer_told");
    log_str(&line, "id", job->rq->id);
    if (job->rq->tenant >= 0) log_str(&line, "tenant", job->app->tenants[job->rq->tenant]);
    if (news == UNKNOWN_NEW) {
        log_str(&line, "route", job->rq->route->path);
        log_str(&line, "field", f->name);
        if (f->meant != NULL) log_str(&line, "did_you_mean", f->meant);
    } else {
        log_u64(&line, "told", UNKNOWN_TOLD_MAX);
    }
    log_end(&line);
}

enum { WEAKENED_BYTES_MAX = HTTP_HEADER_LINE_BYTES - 64 }; // the rest is for its name and "+12"

/* Appends the header that names what the schemas of tools do not enforce: as many as fit a line,
 * and the number of the others.  They have no characters that a header cannot have. */
static void add_weakened(buf *out, const char *names) {
    uint32_t n = 0, n_left = 0;
    buf_add_str(out, "x-inferd-weakened: ");
    size_t from = out->n;
    for (const char *p = names; *p != 0; p += strspn(p, " ")) {
        size_t length = strcspn(p, " "), before = out->n;
        if (n > 0) buf_add_str(out, ", ");
        if (length <= WEAKENED_BYTES_MAX) buf_add(out, p, length);
        if (length <= WEAKENED_BYTES_MAX && out->n - from <= WEAKENED_BYTES_MAX) {
            n++;
        } else {
            out->n = before;
            n_left++;
        }
        p += length;
    }
    if (n_left > 0) buf_add_format(out, "%s+%u", n > 0 ? ", " : "", n_left);
    buf_add_char(out, '\n');
}

void api_tell_unknown(api_job *job) {
    const unknown_fields *u = &job->unknown;
    char text[UNKNOWN_LINE_BYTES];
    buf lines = {0};
    if (u->n > 0) {
        metrics_unknown_fields(job->app->metrics, u->n);
        for (uint32_t i = 0; i < u->n && i < UNKNOWN_NAMED_MAX; i++) log_unknown(job, &u->named[i]);
        unknown_line(u, text);
        buf_add_str(&lines, text);
    }
    if (job->weakened != NULL) add_weakened(&lines, job->weakened);
    bool written = lines.n > 0 && buf_cstr(&lines) == lines.p && !lines.failed;
    if (written)
        job->rq->headers = lines.p;
    else
        buf_deinit(&lines); // no memory: the log still has it
}

void api_refuse(api_job *job, bool rq_gone) {
    const api_error *e = &job->error;
    request_trace_close(job->trace,
                        &(request_trace_end){.status = rq_gone ? 0 : e->status,
                                             .code = e->code != NULL ? e->code : e->type,
                                             .failed = e->status >= 500});
    job->trace = NULL;
    if (job->model_idx >= 0)
        metrics_request(job->app->metrics, app_model(job->app, (uint32_t)job->model_idx)->name_idx,
                        OUTCOME_REFUSED);
    int64_t name_idx = -1;
    if (job->model_idx >= 0) name_idx = app_model(job->app, (uint32_t)job->model_idx)->name_idx;
    metrics_refused(job->app->metrics, job->rq->tenant, name_idx, e->fault);
    app_tell_refusal(job->app, job->rq->tenant, name_idx, e);
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "refused");
    log_str(&line, "id", job->rq->id);
    if (job->rq->tenant >= 0) log_str(&line, "tenant", job->app->tenants[job->rq->tenant]);
    if (job->model_idx >= 0)
        log_str(&line, "model", app_model(job->app, (uint32_t)job->model_idx)->name);
    log_i64(&line, "status", e->status);
    log_str(&line, "code", e->code == NULL ? "" : e->code);
    log_str(&line, "param", e->param);
    log_end(&line);
    if (!rq_gone) api_answer_error(job->rq, e);
}
