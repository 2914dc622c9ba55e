/* share_client.c - see share_client.h. */
#include "share_client.h"

#include <string.h>

#include "chunk.h"
#include "result.h"
#include "rng.h"

enum { ANSWER_BYTES_MAX = 16 << 20, ANSWER_S_MAX = 120, BODY_BYTES_MAX = 1 << 20 };

/* One answer while it is being read. */
typedef struct reader {
    share_client *c;
    const share_ask *ask;
    share_answer *out;
    uint64_t now_ns;
    bool is_stream, is_done;
    inferd_err err;
} reader;

inferd_status share_client_init(share_client *c, share_server to, inferd_err *err) {
    char bearer[600];
    *c = (share_client){.id_lo = to.id_lo, .id_hi = to.id_hi};
    buf_init(&c->body, BODY_BYTES_MAX);
    buf_init(&c->answer, ANSWER_BYTES_MAX);
    sse_init(&c->sse);
    size_t n = strlen(to.url);
    while (n > 0 && to.url[n - 1] == '/') n--;
    if (n >= sizeof c->url)
        return inferd_fail(err, INFERD_ETOOLONG, "the URL has %zu bytes, expected at most %zu", n,
                           sizeof c->url - 1);
    memcpy(c->url, to.url, n);
    c->easy = curl_easy_init();
    c->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (c->headers != NULL) {
        struct curl_slist *more = curl_slist_append(c->headers, "Expect:");
        if (more != NULL && to.key != NULL) {
            snprintf(bearer, sizeof bearer, "Authorization: Bearer %s", to.key);
            more = curl_slist_append(more, bearer);
        }
        if (more == NULL) curl_slist_free_all(c->headers);
        c->headers = more;
    }
    if (c->easy != NULL && c->headers != NULL) return INFERD_OK;
    share_client_deinit(c);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for a connection");
}

void share_client_deinit(share_client *c) {
    if (c->easy != NULL) curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    sse_deinit(&c->sse);
    buf_deinit(&c->body);
    buf_deinit(&c->answer);
    *c = (share_client){0};
}

static void set_up(share_client *c, const char *url, const char *method, const char *body) {
    curl_easy_reset(c->easy);
    curl_easy_setopt(c->easy, CURLOPT_URL, url);
    curl_easy_setopt(c->easy, CURLOPT_PROXY, "");
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT, (long)ANSWER_S_MAX);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->easy, CURLOPT_CUSTOMREQUEST, method);
    if (body != NULL) curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, body);
}

/* ---- JSON ---- */

static size_t on_bytes(char *in, size_t one, size_t n, void *ctx) {
    (void)one;
    buf *answer = ctx;
    buf_add(answer, in, n);
    return answer->failed ? 0 : n;
}

inferd_status share_client_json(share_client *c, const char *method, const char *path,
                                const char *body, json_t **out, inferd_err *err) {
    char url[1024];
    long status = 0;
    if (out != NULL) *out = NULL;
    snprintf(url, sizeof url, "%s%s", c->url, path);
    set_up(c, url, method, body);
    buf_clear(&c->answer);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, &c->answer);
    CURLcode code = curl_easy_perform(c->easy);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK)
        return inferd_fail(err, INFERD_EIO, "%s %s: %s", method, path, curl_easy_strerror(code));
    if (status < 200 || status >= 300) {
        chunk why;
        chunk_parse_error(&why, buf_cstr(&c->answer), c->answer.n);
        return inferd_fail(err, status == 409 ? INFERD_EBUSY : INFERD_EIO,
                           "%s %s: status %ld, %s: %s", method, path, status, why.error_code,
                           why.error_text);
    }
    if (out == NULL) return INFERD_OK;
    *out = json_loadb(buf_cstr(&c->answer), c->answer.n, 0, NULL);
    return *out != NULL ? INFERD_OK
                        : inferd_fail(err, INFERD_EFORMAT, "%s %s answered no JSON", method, path);
}

inferd_status share_client_object(share_client *c, const char *method, const char *kind,
                                  const char *name, const char *command, const char *body,
                                  inferd_err *err) {
    char path[600];
    char *escaped = curl_easy_escape(c->easy, name, 0);
    if (escaped == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a name");
    snprintf(path, sizeof path, "/admin/%s/%s%s%s", kind, escaped, *command == 0 ? "" : "/",
             command);
    curl_free(escaped);
    return share_client_json(c, method, path, body, NULL, err);
}

/* ---- a stream ---- */

static bool on_event(void *ctx, const char *name, const char *data, size_t n) {
    (void)name;
    reader *r = ctx;
    share_answer *a = r->out;
    chunk said;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->is_done = true;
        return true;
    }
    if (chunk_parse(&said, data, n, &r->err) != INFERD_OK) return false;
    if (said.is_error) {
        inferd_fail(&r->err, INFERD_EIO, "%s: %s", said.error_code, said.error_text);
        return false;
    }
    if (said.has_usage) {
        a->n_output = said.n_output;
        a->queued_ms = said.queued_ms;
        a->queued_steps = said.queued_steps;
    }
    bool is_first = a->first_ns == 0 && (said.has_text || said.finish[0] != 0);
    if (is_first) a->first_ns = r->now_ns; // a token without text is seen only at the end
    if (!said.has_text) return true;
    a->last_ns = r->now_ns;
    a->n_chunks++;
    if (r->ask->on_token == NULL || r->ask->on_token(r->ask->ctx, r->now_ns)) return true;
    a->was_cut = true;
    return false;
}

static size_t on_stream(char *in, size_t one, size_t n, void *ctx) {
    (void)one;
    reader *r = ctx;
    r->now_ns = bench_now_ns();
    if (!r->is_stream) { // most likely a refusal; kept for the error text
        char *kind = NULL;
        curl_easy_getinfo(r->c->easy, CURLINFO_CONTENT_TYPE, &kind);
        r->is_stream = kind != NULL && strncmp(kind, "text/event-stream", 17) == 0;
    }
    if (!r->is_stream) return on_bytes(in, one, n, &r->c->answer);
    return sse_feed(&r->c->sse, in, n, on_event, r) == INFERD_OK ? n : 0;
}

static int on_progress(void *ctx, curl_off_t dl_all, curl_off_t dl, curl_off_t ul_all,
                       curl_off_t ul) {
    (void)dl_all, (void)dl, (void)ul_all, (void)ul;
    reader *r = ctx;
    if (!r->ask->stops(r->ask->ctx)) return 0;
    r->out->was_cut = true;
    return 1;
}

static bool ask_body(const share_client *c, const share_ask *ask, buf *out) {
    rng random = rng_make(ask->seed, ask->n_prompt, ask->n_output);
    json_t *model = json_string(ask->model);
    char *name = model == NULL ? NULL : json_dumps(model, JSON_ENCODE_ANY);
    json_decref(model);
    if (name == NULL) return false;
    buf_clear(out);
    buf_add_format(out, "{\"model\":%s,\"max_tokens\":%u,\"prompt\":[", name, ask->n_output);
    free(name);
    for (uint32_t i = 0; i < ask->n_prompt; i++)
        buf_add_format(
            out, "%s%llu", i == 0 ? "" : ",",
            (unsigned long long)(c->id_lo + rng_below(&random, (uint64_t)c->id_hi - c->id_lo + 1)));
    buf_add_str(out, "],\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                     "\"stream_options\":{\"include_usage\":true},\"usage_details\":true");
    if (ask->tier != NULL) buf_add_format(out, ",\"service_tier\":\"%s\"", ask->tier);
    buf_add_char(out, '}');
    return !out->failed;
}

inferd_status share_client_ask(share_client *c, const share_ask *ask, share_answer *out,
                               inferd_err *err) {
    char url[1024];
    long status = 0;
    *out = (share_answer){.n_output = -1, .queued_ms = -1, .queued_steps = -1};
    if (!ask_body(c, ask, &c->body))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a request");
    snprintf(url, sizeof url, "%s/v1/completions", c->url);
    set_up(c, url, "POST", buf_cstr(&c->body));
    sse_reset(&c->sse);
    buf_clear(&c->answer);
    reader r = {.c = c, .ask = ask, .out = out};
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_stream);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, &r);
    if (ask->stops != NULL) {
        curl_easy_setopt(c->easy, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(c->easy, CURLOPT_XFERINFODATA, &r);
        curl_easy_setopt(c->easy, CURLOPT_NOPROGRESS, 0L);
    }
    out->sent_ns = bench_now_ns();
    CURLcode code = curl_easy_perform(c->easy);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (out->was_cut) return INFERD_OK;
    if (r.err.status != INFERD_OK)
        return inferd_fail(err, r.err.status, "asking %s: %s", ask->model, r.err.text);
    if (code == CURLE_OK && status == 200 && r.is_done && out->first_ns != 0) return INFERD_OK;
    if (code != CURLE_OK)
        return inferd_fail(err, INFERD_EIO, "asking %s: %s", ask->model, curl_easy_strerror(code));
    chunk why;
    chunk_parse_error(&why, buf_cstr(&c->answer), c->answer.n);
    return inferd_fail(err, INFERD_EIO, "asking %s: status %ld, %s", ask->model, status,
                       status == 200 ? "and the stream was cut" : why.error_text);
}
