/* tracer.c - see tracer.h. */
#include "tracer.h"

#include <pthread.h>
#include <string.h>

#include "curl_api.h"
#include "inferd/clock.h"
#include "inferd/list.h"
#include "log.h"
#include "otlp.h"
#include "otlp_answer.h"
#include "tracer_parts.h"

enum { US_PER_MS = 1000, US_PER_S = 1000000, POLL_MS_MAX = 1000 };

/* Encoded spans of one request. */
typedef struct parcel {
    list_node link;
    buf spans; // owned
    uint32_t n;
} parcel;

struct tracer {
    char *endpoint, *name, *service_name, *instance_id, *version; // owned
    uint32_t queue_spans_max, timeout_ms;
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex; // of what follows
    pthread_cond_t changed;
    list_node queue;   // parcels, the oldest first
    uint32_t n_queued; // spans in it, and of the batch under way
    uint32_t n_taken;  // of these: the batch
    uint64_t first_us; // when the oldest came into the empty queue
    bool stop;
    uint64_t end_us; // with `stop`: nothing is sent after this time
    tracer_stats stats;

    /* of the thread */
    const curl_api *curl;
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    buf answer;             // body of the answer under way
    size_t n_answer;        // its bytes
    uint32_t n_refused;     // spans of the newest batch that its collector refused, with status 2xx
    uint64_t not_before_us; // the collector asked for no try before this time
    char problem[200];      // why the last spans that the collector did not take were lost
    bool fails;             // the newest answer, or its lack, is `problem`
    uint64_t told[TRACER_DROPS], told_us;
};

const char *tracer_drop_name(tracer_drop why) {
    static const char *const names[TRACER_DROPS] = {"queue_full", "failed", "refused", "ended",
                                                    "no_memory"};
    return (unsigned)why < TRACER_DROPS ? names[why] : "unknown";
}

/* ---- the queue ---- */

bool tracer_put(tracer *t, buf *spans, uint32_t n) {
    parcel *p = spans->failed || spans->n == 0 ? NULL : malloc(sizeof *p);
    pthread_mutex_lock(&t->mutex);
    bool full = n > t->queue_spans_max - u32_min(t->n_queued, t->queue_spans_max);
    if (p == NULL || full || t->stop) {
        t->stats.n_dropped[t->stop     ? TRACER_ENDED
                           : p == NULL ? TRACER_NO_MEMORY
                                       : TRACER_QUEUE_FULL] += n;
        pthread_mutex_unlock(&t->mutex);
        free(p);
        buf_deinit(spans);
        return false;
    }
    *p = (parcel){.spans = *spans, .n = n};
    *spans = (buf){0};
    bool was_empty = list_empty(&t->queue);
    if (was_empty) t->first_us = clock_now_us();
    list_push_back(&t->queue, &p->link);
    t->n_queued += n;
    if (was_empty || t->n_queued - t->n_taken >= TRACER_BATCH_SPANS)
        pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    return true;
}

static void free_parcel(parcel *p) {
    list_remove(&p->link);
    buf_deinit(&p->spans);
    free(p);
}

void tracer_get_stats(const tracer *t, tracer_stats *out) {
    tracer *mine = (tracer *)(uintptr_t)t; // the lock changes
    pthread_mutex_lock(&mine->mutex);
    *out = t->stats;
    out->n_queued = t->n_queued;
    pthread_mutex_unlock(&mine->mutex);
}

/* ---- the thread: a batch ---- */

static void wait_until(tracer *t, uint64_t us) {
    struct timespec ts = {.tv_sec = (time_t)(us / US_PER_S),
                          .tv_nsec = (long)(us % US_PER_S) * 1000};
    pthread_cond_timedwait(&t->changed, &t->mutex, &ts);
}

/* Moves parcels into `spans`; returns the number of spans.  Under the lock. */
static uint32_t take(tracer *t, buf *spans) {
    uint32_t n = 0;
    while (!list_empty(&t->queue)) {
        parcel *p = LIST_ENTRY(t->queue.next, parcel, link);
        if (n > 0 && n + p->n > TRACER_BATCH_SPANS) break;
        buf_add(spans, p->spans.p, p->spans.n);
        n += p->n;
        free_parcel(p);
    }
    t->n_taken = n;
    t->first_us = clock_now_us(); // of those that are left
    return n;
}

/* Waits for spans, and for more of them; 0: the tracer ends, and none is left. */
static uint32_t next_batch(tracer *t, buf *spans) {
    pthread_mutex_lock(&t->mutex);
    while (!t->stop && list_empty(&t->queue)) pthread_cond_wait(&t->changed, &t->mutex);
    uint64_t until_us = t->first_us + (uint64_t)TRACER_DELAY_MS * US_PER_MS;
    while (!t->stop && t->n_queued < TRACER_BATCH_SPANS && clock_now_us() < until_us)
        wait_until(t, until_us);
    uint32_t n = take(t, spans);
    pthread_mutex_unlock(&t->mutex);
    return n;
}

/* Time that a try may take; 0: the end has come. */
static uint64_t time_left_us(tracer *t) {
    uint64_t now_us = clock_now_us(), left_us = UINT64_MAX;
    pthread_mutex_lock(&t->mutex);
    if (t->stop) left_us = t->end_us > now_us ? t->end_us - now_us : 0;
    pthread_mutex_unlock(&t->mutex);
    return left_us;
}

/* Before a try; the end cuts it short. */
static void pause_until(tracer *t, uint64_t until_us) {
    pthread_mutex_lock(&t->mutex);
    while (!t->stop && clock_now_us() < until_us) wait_until(t, until_us);
    pthread_mutex_unlock(&t->mutex);
}

/* ---- the thread: one request ---- */

/* 0 cuts the connection.  Without memory the body is not read. */
static size_t on_answer(char *p, size_t size, size_t n, void *ctx) {
    tracer *t = ctx;
    t->n_answer += size * n;
    if (t->n_answer > TRACER_ANSWER_BYTES_MAX) return 0;
    buf_add(&t->answer, p, size * n);
    return size * n;
}

static void set_problem(tracer *t, const char *text) {
    snprintf(t->problem, sizeof t->problem, "%s", text);
    t->fails = true;
}

/* Runs the transfer until it is over, or the end has come: CURLE_ABORTED_BY_CALLBACK. */
static CURLcode transfer(tracer *t) {
    CURLcode code = CURLE_ABORTED_BY_CALLBACK;
    int n_running = 1, n_left;
    if (t->curl->multi_add_handle_(t->multi, t->easy) != CURLM_OK) return CURLE_OUT_OF_MEMORY;
    for (uint64_t left_us; (left_us = time_left_us(t)) > 0;) {
        if (t->curl->multi_perform_(t->multi, &n_running) != CURLM_OK) break;
        CURLMsg *message = t->curl->multi_info_read_(t->multi, &n_left);
        if (message != NULL && message->msg == CURLMSG_DONE) {
            code = message->data.result;
            break;
        }
        uint64_t wait_ms = u64_min(left_us / US_PER_MS + 1, POLL_MS_MAX);
        t->curl->multi_poll_(t->multi, NULL, 0, (int)wait_ms, NULL);
    }
    t->curl->multi_remove_handle_(t->multi, t->easy);
    return code;
}

typedef enum result { SENT, AGAIN, REFUSED } result;

/* Of status 2xx.  A body that is too long, or is no answer of a collector, refuses nothing. */
static void read_answer(tracer *t, uint32_t n_spans) {
    char text[sizeof t->problem];
    otlp_answer a;
    if (t->answer.failed || t->n_answer > TRACER_ANSWER_BYTES_MAX ||
        !otlp_answer_read((bytes){t->answer.p, t->answer.n}, &a) || a.n_rejected == 0)
        return;
    t->n_refused = (uint32_t)u64_min(a.n_rejected, n_spans);
    snprintf(text, sizeof text, "the collector rejected %u of %u spans%s%s", t->n_refused, n_spans,
             a.message[0] != 0 ? ": " : "", a.message);
    set_problem(t, text);
}

/* Retry-After, in seconds or as a date, of an answer that asks for another try. */
static void read_retry_after(tracer *t) {
    curl_off_t s = 0; // stays 0 without the header
    t->curl->easy_getinfo_(t->easy, CURLINFO_RETRY_AFTER, &s);
    if (s > 0)
        t->not_before_us =
            clock_now_us() + u64_min((uint64_t)s, TRACER_RETRY_AFTER_S_MAX) * US_PER_S;
}

static result try_once(tracer *t, const buf *body, uint32_t n_spans) {
    char text[128];
    long status = 0;
    t->n_answer = 0;
    buf_clear(&t->answer);
    t->curl->easy_setopt_(t->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->n);
    t->curl->easy_setopt_(t->easy, CURLOPT_POSTFIELDS, body->p);
    CURLcode code = transfer(t);
    if (code != CURLE_OK && t->n_answer <= TRACER_ANSWER_BYTES_MAX) {
        set_problem(t, code == CURLE_ABORTED_BY_CALLBACK ? "the process ended before an answer came"
                                                         : t->curl->easy_strerror_(code));
        return AGAIN;
    }
    t->curl->easy_getinfo_(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) {
        t->fails = false;
        read_answer(t, n_spans);
        return SENT;
    }
    snprintf(text, sizeof text, "the collector answered %ld", status);
    set_problem(t, text);
    if (status != 429 && status != 502 && status != 503 && status != 504) return REFUSED;
    read_retry_after(t);
    return AGAIN;
}

static result send_batch(tracer *t, const buf *body, uint32_t n_spans) {
    result r = AGAIN;
    t->n_refused = 0;
    uint64_t pause_us = (uint64_t)TRACER_RETRY_MS * US_PER_MS;
    for (int i = 0; i < TRACER_TRIES && r == AGAIN && time_left_us(t) > 0; i++) {
        uint64_t until_us = i > 0 ? clock_now_us() + (pause_us << (i - 1)) : 0;
        pause_until(t, u64_max(until_us, t->not_before_us));
        r = try_once(t, body, n_spans);
    }
    return r;
}

/* ---- the thread ---- */

/* Why the drops since the last line happened, those of the collector before those of the queue. */
static const char *why_dropped(const tracer *t, const tracer_stats *s) {
    bool by[TRACER_DROPS];
    for (int i = 0; i < TRACER_DROPS; i++) by[i] = s->n_dropped[i] > t->told[i];
    if (by[TRACER_REFUSED] || by[TRACER_FAILED] || t->fails) return t->problem;
    if (by[TRACER_ENDED]) return "the process ended first";
    if (by[TRACER_NO_MEMORY]) return "no memory";
    return "the collector is slower than spans come";
}

static void tell_drops(tracer *t) {
    tracer_stats s;
    uint64_t n_new = 0, now_us = clock_now_us();
    tracer_get_stats(t, &s);
    for (int i = 0; i < TRACER_DROPS; i++) n_new += s.n_dropped[i] - t->told[i];
    if (n_new == 0 ||
        (t->told_us != 0 && now_us < t->told_us + (uint64_t)TRACER_TOLD_EVERY_S * US_PER_S))
        return;
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "spans_dropped");
    log_str(&line, "endpoint", t->name);
    log_str(&line, "error", why_dropped(t, &s));
    for (int i = 0; i < TRACER_DROPS; i++)
        if (s.n_dropped[i] > 0) log_u64(&line, tracer_drop_name((tracer_drop)i), s.n_dropped[i]);
    log_u64(&line, "sent", s.n_sent);
    log_end(&line);
    memcpy(t->told, s.n_dropped, sizeof t->told);
    t->told_us = now_us;
}

static void note_batch(tracer *t, uint32_t n, bool no_memory, result r) {
    pthread_mutex_lock(&t->mutex);
    uint32_t n_sent = !no_memory && r == SENT ? n - t->n_refused : 0;
    t->stats.n_sent += n_sent;
    t->stats.n_dropped[no_memory    ? TRACER_NO_MEMORY
                       : r != AGAIN ? TRACER_REFUSED
                       : t->stop    ? TRACER_ENDED
                                    : TRACER_FAILED] += n - n_sent;
    t->n_queued -= n;
    t->n_taken = 0;
    pthread_mutex_unlock(&t->mutex);
}

static void *tracer_main(void *arg) {
    tracer *t = arg;
    const otlp_resource resource = {t->service_name, t->instance_id, t->version};
    buf spans = {0}, body = {0};
    for (uint32_t n; (n = next_batch(t, &spans)) > 0;) {
        otlp_add_request(&body, &resource, spans.p, spans.n);
        bool no_memory = spans.failed || body.failed;
        note_batch(t, n, no_memory, no_memory ? AGAIN : send_batch(t, &body, n));
        tell_drops(t);
        buf_clear(&spans);
        buf_clear(&body);
    }
    tell_drops(t);
    buf_deinit(&spans);
    buf_deinit(&body);
    return NULL;
}

/* ---- interface ---- */

static bool set_options(tracer *t) {
    static const char agent[] = "inferd-otlp";
    CURL *e = t->easy;
    return t->curl->easy_setopt_(e, CURLOPT_URL, t->endpoint) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_POST, 1L) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_HTTPHEADER, t->headers) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_USERAGENT, agent) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) ==
               CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_TIMEOUT_MS, (long)t->timeout_ms) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK && // waits for no resolver
           t->curl->easy_setopt_(e, CURLOPT_WRITEFUNCTION, on_answer) == CURLE_OK &&
           t->curl->easy_setopt_(e, CURLOPT_WRITEDATA, t) == CURLE_OK;
}

static inferd_status add_header(tracer *t, const char *line, inferd_err *err) {
    struct curl_slist *longer = t->curl->slist_append_(t->headers, line);
    if (longer == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for headers");
    t->headers = longer;
    return INFERD_OK;
}

/* No "Expect: 100-continue": it would cost a round trip for each batch. */
static inferd_status add_headers(tracer *t, const char *path, inferd_err *err) {
    trace_headers h = {0};
    inferd_status st = path == NULL ? INFERD_OK : trace_headers_read(path, &h, err);
    if (st == INFERD_OK) st = add_header(t, "Content-Type: application/x-protobuf", err);
    if (st == INFERD_OK) st = add_header(t, "Expect:", err);
    for (uint32_t i = 0; i < h.n && st == INFERD_OK; i++) st = add_header(t, h.lines[i], err);
    trace_headers_wipe(&h);
    return st;
}

static inferd_status open_curl(tracer *t, const char *headers_file, inferd_err *err) {
    t->multi = t->curl->multi_init_();
    t->easy = t->curl->easy_init_();
    if (t->multi == NULL || t->easy == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "libcurl: no memory");
    inferd_status st = add_headers(t, headers_file, err);
    if (st == INFERD_OK && !set_options(t))
        st = inferd_fail(err, INFERD_EUNSUPPORTED, "libcurl is older than 7.87, or takes no HTTP");
    return st;
}

static inferd_status open_thread(tracer *t, inferd_err *err) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
    t->started = pthread_create(&t->thread, NULL, tracer_main, t) == 0;
    if (!t->started) return inferd_fail(err, INFERD_ENOMEM, "no thread for traces");
    pthread_setname_np(t->thread, "inferd-traces");
    return INFERD_OK;
}

static bool copy_options(tracer *t, const tracer_options *o) {
    t->queue_spans_max = o->queue_spans_max;
    t->timeout_ms = o->timeout_ms;
    t->endpoint = strdup(o->endpoint);
    t->name = strndup(o->endpoint, strcspn(o->endpoint, "?")); // a query may hold a key
    t->service_name = strdup(o->service_name);
    t->instance_id = strdup(o->instance_id);
    t->version = strdup(o->version);
    return t->endpoint != NULL && t->name != NULL && t->service_name != NULL &&
           t->instance_id != NULL && t->version != NULL;
}

inferd_status tracer_open(const tracer_options *o, tracer **out, inferd_err *err) {
    const curl_api *curl = curl_api_get(err);
    *out = NULL;
    if (curl == NULL) return err->status;
    tracer *t = calloc(1, sizeof *t);
    if (t == NULL || curl->global_init_(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(t);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for traces");
    }
    t->curl = curl;
    list_node_init(&t->queue);
    buf_init(&t->answer, TRACER_ANSWER_BYTES_MAX);
    inferd_status st = copy_options(t, o) ? open_curl(t, o->headers_file, err)
                                          : inferd_fail(err, INFERD_ENOMEM, "no memory for traces");
    if (st == INFERD_OK) st = open_thread(t, err);
    if (st == INFERD_OK)
        *out = t;
    else
        tracer_close(t);
    return st;
}

static void stop_thread(tracer *t) {
    pthread_mutex_lock(&t->mutex);
    t->stop = true;
    t->end_us = clock_now_us() + (uint64_t)TRACER_FLUSH_MS * US_PER_MS;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    t->curl->multi_wakeup_(t->multi);
    pthread_join(t->thread, NULL);
    while (!list_empty(&t->queue)) free_parcel(LIST_ENTRY(t->queue.next, parcel, link));
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
}

void tracer_close(tracer *t) {
    if (t == NULL) return;
    if (t->started) stop_thread(t);
    t->curl->easy_cleanup_(t->easy);
    t->curl->multi_cleanup_(t->multi);
    for (struct curl_slist *h = t->headers; h != NULL; h = h->next)
        explicit_bzero(h->data, strlen(h->data)); // may be secrets
    t->curl->slist_free_all_(t->headers);
    t->curl->global_cleanup_();
    buf_deinit(&t->answer);
    free(t->endpoint);
    free(t->name);
    free(t->service_name);
    free(t->instance_id);
    free(t->version);
    free(t);
}
