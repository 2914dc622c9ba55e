/* stream.c - see stream.h. */
#include "stream.h"

#include "chunk.h"

/* Server text goes to reports and terminals: it is made plain ASCII, also where it was cut. */
static void make_plain(char *text) {
    for (; *text != 0; text++)
        if (*text < 0x20 || *text > 0x7e) *text = *text == '\n' || *text == '\r' ? ' ' : '?';
}

__attribute__((format(printf, 3, 4))) static void fail_with(result *r, const char *code,
                                                            const char *format, ...) {
    if (r->error_code[0] != 0) return; // the first failure is the cause
    snprintf(r->error_code, sizeof r->error_code, "%s", code);
    va_list args;
    va_start(args, format);
    vsnprintf(r->error_text, sizeof r->error_text, format, args);
    va_end(args);
    make_plain(r->error_code);
    make_plain(r->error_text);
}

static void take_text(stream *s) {
    result *r = &s->r;
    if (r->first_ns == 0) {
        r->first_ns = s->now_ns;
    } else {
        uint64_t gap_ns = s->now_ns - r->last_ns;
        if (gap_ns > r->gap_max_ns) r->gap_max_ns = gap_ns;
        gap_list_add(&r->gaps, since_ns(r->sched_ns, r->last_ns), gap_ns);
        if (r->is_counted) stats_gap(s->figures, s->groups, s->now_ns, gap_ns);
    }
    r->last_ns = s->now_ns;
    r->n_chunks++;
    if (s->figures != NULL) stats_chunk(s->figures, s->groups, s->now_ns);
    if (s->figures != NULL && s->now_ns >= s->figures->steady_from_ns &&
        s->now_ns < s->figures->steady_until_ns)
        r->n_chunks_steady++;
}

static bool on_event(void *ctx, const char *name, const char *data, size_t n) {
    stream *s = ctx;
    result *r = &s->r;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        s->is_done = true;
        r->end_ns = s->now_ns;
        return true;
    }
    chunk c;
    inferd_err err;
    buf *text = s->talk != NULL ? &s->answer : NULL;
    if (chunk_parse_text(&c, data, n, text, &err) != INFERD_OK) {
        fail_with(r, "bad_event", "%s", err.text);
        return false;
    }
    if (c.is_error || strcmp(name, "error") == 0) {
        char code[48];
        snprintf(code, sizeof code, "stream_%s", c.is_error ? c.error_code : "unnamed");
        fail_with(r, code, "%s", c.error_text);
        return false;
    }
    if (c.has_text) take_text(s);
    if (c.finish[0] != 0) {
        memcpy(r->finish, c.finish, sizeof r->finish);
        make_plain(r->finish);
        s->finish_ns = s->now_ns;
    }
    if (c.has_usage) { // servers that send it with each chunk send running counts: the last counts
        r->has_usage = true;
        r->n_prompt = c.n_prompt;
        r->n_output = c.n_output;
        r->n_cached = c.n_cached;
    }
    return true;
}

static bool is_event_stream(CURL *easy) {
    const char *type = NULL;
    curl_easy_getinfo(easy, CURLINFO_CONTENT_TYPE, &type);
    return type != NULL && strncasecmp(type, "text/event-stream", 17) == 0;
}

static size_t on_bytes(char *in, size_t one, size_t n, void *ctx) {
    stream *s = ctx;
    (void)one; // always 1
    s->now_ns = bench_now_ns();
    if (!s->is_answered) {
        s->is_answered = true;
        curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->r.http_status);
        if (s->r.http_status == 200 && !is_event_stream(s->easy)) {
            fail_with(&s->r, "not_sse", "the answer is no event stream");
            return 0;
        }
    }
    if (s->r.http_status != 200) {
        buf_add(&s->error_body, in, size_min(n, ERROR_BODY_BYTES_MAX - s->error_body.n));
        return n;
    }
    inferd_status status = sse_feed(&s->sse, in, n, on_event, s);
    if (status == INFERD_ETOOLONG)
        fail_with(&s->r, "bad_event", "an event is longer than %d bytes", SSE_EVENT_BYTES_MAX);
    return status == INFERD_OK ? n : 0;
}

stream *stream_create(const bench_spec *spec) {
    stream *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->easy = curl_easy_init();
    if (s->easy == NULL) {
        free(s);
        return NULL;
    }
    list_node_init(&s->link);
    buf_init(&s->body, 0);
    buf_init(&s->error_body, ERROR_BODY_BYTES_MAX);
    buf_init(&s->answer, ANSWER_BYTES_MAX);
    sse_init(&s->sse);
    CURL *easy = s->easy;
    curl_easy_setopt(easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, ""); // ignores the proxy of the environment
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(spec->timeout_s * 1000));
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, spec->forbid_reuse ? 1L : 0L);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, s);
    return s;
}

void stream_destroy(stream *s) {
    if (s == NULL) return;
    curl_easy_cleanup(s->easy);
    buf_deinit(&s->body);
    buf_deinit(&s->error_body);
    buf_deinit(&s->answer);
    sse_deinit(&s->sse);
    free(s);
}

bool stream_begin(stream *s, const bench_class *c, request_plan plan, talk *t, uint64_t sched_ns,
                  const char *url, struct curl_slist *headers, stats *figures) {
    s->r = (result){.plan = plan, .sched_ns = sched_ns, .n_cached = -1};
    s->figures = figures;
    s->talk = t;
    memset(s->groups, 0, sizeof s->groups);
    if (figures != NULL) {
        s->r.is_counted = sched_ns >= figures->start_ns;
        stats_groups(figures, &plan, s->groups);
    }
    s->finish_ns = 0;
    s->is_answered = s->is_done = false;
    buf_clear(&s->error_body);
    buf_clear(&s->answer);
    sse_reset(&s->sse);
    s->r.sent_ns = bench_now_ns();
    if (!plan_body(&plan, c, t == NULL ? NULL : &t->history, &s->body)) return false;
    return curl_easy_setopt(s->easy, CURLOPT_URL, url) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE, (long)s->body.n) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body.p) == CURLE_OK;
}

static void explain_refusal(stream *s) {
    char code[48];
    chunk c;
    chunk_parse_error(&c, s->error_body.p == NULL ? "" : s->error_body.p, s->error_body.n);
    snprintf(code, sizeof code, "http_%ld", s->r.http_status);
    fail_with(&s->r, code, "%s%s%s", c.error_code, c.error_code[0] != 0 ? ": " : "", c.error_text);
}

/* Sets the error of a request that failed: every request without a complete stream gets a code. */
static void explain(stream *s, CURLcode code) {
    result *r = &s->r;
    if (r->error_code[0] != 0) return; // stopped by our own callbacks
    if (code == CURLE_OPERATION_TIMEDOUT)
        fail_with(r, "timeout", "no end after %u chunks", r->n_chunks);
    else if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        fail_with(r, "connect", "%s", curl_easy_strerror(code));
    else if (r->http_status != 0 && r->http_status != 200)
        explain_refusal(s);
    else if (r->http_status == 200 && !s->is_done)
        fail_with(r, "cut", "the stream ended without [DONE] after %u chunks: %s", r->n_chunks,
                  curl_easy_strerror(code));
    else if (code != CURLE_OK && !s->is_done)
        fail_with(r, "transport", "%s", curl_easy_strerror(code));
}

void stream_end(stream *s, CURLcode code, bool is_cut) {
    result *r = &s->r;
    if (r->end_ns == 0) r->end_ns = bench_now_ns();
    if (is_cut) {
        r->outcome = OUTCOME_CUT;
        return;
    }
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &r->http_status);
    explain(s, code);
    r->outcome = r->error_code[0] == 0 ? OUTCOME_OK : OUTCOME_FAILED;
    if (r->outcome == OUTCOME_OK && r->first_ns == 0 && s->finish_ns != 0) {
        r->first_ns = r->last_ns = s->finish_ns;
        r->is_textless = true;
    }
}
