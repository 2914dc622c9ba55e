/* api_tokenize.c - POST /tokenize and /detokenize, in vLLM's shapes, and
 * /v1/messages/count_tokens. */
#include "api.h"
#include "json_out.h"
#include "messages.h"

static void write_ids(api_job *job, const api_params *p, const tokenizer *tok, const tok_ids *ids) {
    buf *out = &job->answer;
    const model_info *info = model_about(app_model(job->app, (uint32_t)job->model_idx)->m);
    buf_add_format(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":", ids->n, info->context);
    json_add_ids(out, ids->ids, ids->n);
    buf_add_str(out, ",\"token_strs\":");
    if (!p->show_token_strs) {
        buf_add_str(out, "null}");
        return;
    }
    buf_add_char(out, '[');
    for (size_t i = 0; i < ids->n; i++) {
        bytes name = tok_name(tok, ids->ids[i]);
        if (i > 0) buf_add_char(out, ',');
        json_add_string(out, name.p, name.n);
    }
    buf_add_str(out, "]}");
}

static bool tokenize(api_job *job, api_params *p) {
    const config_model *about;
    if (!api_params_read(API_TOKENIZE, &job->config->c->limits.json, job->rq->body, p,
                         &job->error) ||
        !api_pick_model(job, p, &about))
        return false;
    tok_ids ids = {0};
    reasoning before;
    bytes text = {json_string_value(p->prompt), json_string_length(p->prompt)};
    bool ok = p->messages != NULL ? api_encode_chat(job, p, NULL, about, &ids, &before)
                                  : api_encode_text(job, p, text, "prompt", &ids);
    if (ok)
        write_ids(job, p, model_tokenizer(app_model(job->app, (uint32_t)job->model_idx)->m), &ids);
    tok_ids_deinit(&ids);
    return ok;
}

static bool detokenize(api_job *job, api_params *p) {
    const config_model *about;
    if (!api_params_read(API_DETOKENIZE, &job->config->c->limits.json, job->rq->body, p,
                         &job->error) ||
        !api_pick_model(job, p, &about))
        return false;
    const tokenizer *tok = model_tokenizer(app_model(job->app, (uint32_t)job->model_idx)->m);
    if (!api_params_check(p, (uint32_t)tok_n_vocab(tok), &job->error)) return false;
    size_t n = 0;
    tok_id *ids = api_take_ids(p->tokens, &n);
    buf text = {0};
    tok_stream words;
    tok_stream_init(&words, tok, false);
    for (size_t i = 0; ids != NULL && i < n; i++) tok_stream_push(&words, ids[i], &text);
    tok_stream_finish(&words, &text);
    if (ids == NULL || text.failed) job->answer.failed = true;
    buf_add_str(&job->answer, "{\"prompt\":");
    json_add_string(&job->answer, text.p == NULL ? "" : text.p, text.n);
    buf_add_char(&job->answer, '}');
    buf_deinit(&text);
    free(ids);
    return true;
}

/* Of a body of /v1/messages: the tokens of its prompt. */
static bool count(api_job *job, api_params *p) {
    const config_model *about;
    json_t *body = NULL, *chat = NULL;
    answer_form *form = NULL;
    tok_ids ids = {0};
    reasoning before;
    unknown_fields unknown = {0};
    if (job->error.fault != API_OK) return false; // from its headers
    bool ok = api_params_parse(&job->config->c->limits.json, job->rq->body, &body, &job->error) &&
              messages_read(body, job->rq->body, true, &chat, &form, &unknown, &job->error) &&
              api_params_take(API_CHAT, chat, p, &job->error);
    p->unknown = unknown; // those of the body that the client sent
    ok =
        ok && api_pick_model(job, p, &about) && api_encode_chat(job, p, form, about, &ids, &before);
    if (ok) buf_add_format(&job->answer, "{\"input_tokens\":%zu}", ids.n);
    if (!ok) form_locate(form, &job->error);
    answer_form_destroy(form);
    json_decref(body);
    tok_ids_deinit(&ids);
    return ok;
}

static void run(api_job *job, bool (*read)(api_job *job, api_params *p)) {
    api_params p = {0};
    read(job, &p);
    job->unknown = p.unknown;
    if (job->answer.failed)
        api_fail(&job->error, API_INTERNAL, NULL, "the server is short of memory");
    api_params_deinit(&p);
}

static void tokenize_work(void *job) {
    run(job, tokenize);
}
static void count_work(void *job) {
    run(job, count);
}
static void detokenize_work(void *job) {
    run(job, detokenize);
}

static void answer(void *ctx, bool rq_gone) {
    api_job *job = ctx;
    api_tell_unknown(job);
    if (job->error.fault != API_OK) {
        job->model_idx = -1; // not a generation
        api_refuse(job, rq_gone);
    } else if (!rq_gone) {
        api_answer_json(job->rq, 200, &job->answer);
    }
    api_job_destroy(job);
}

void api_tokenize(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_TOKENIZE, tokenize_work, answer);
}
void api_detokenize(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_DETOKENIZE, detokenize_work, answer);
}
void api_count_tokens(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_COUNT_TOKENS, count_work, answer);
}
