/* request_trace.c - see request_trace.h. */
#include "request_trace.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "inferd/clock.h"
#include "otlp.h"
#include "tracer.h"

enum { ATTRIBUTES_MAX = 24, TRACE_BYTES_MAX = 1 << 20, NS_PER_US = 1000, DEVICE_BYTES = 65 };

typedef struct seq_times {
    char device[DEVICE_BYTES];
    bool ended; // `done` is valid
    gen_event done;
} seq_times;

struct request_trace {
    tracer *tracer;  // borrowed, like all strings
    uint32_t n_refs; // the generation, and each sequence that has not ended
    trace_context context;
    bool has_parent;
    unsigned char id[SPAN_ID_BYTES];
    char rq_id[sizeof((http_request *)0)->id];
    const char *method, *route, *operation, *tenant, *model;
    gen_class prio;
    uint64_t arrival_us, admitted_us, end_us; // admitted 0: it was refused
    uint32_t n_all;                           // sequences of the request
    seq_times *seqs;                          // [n_seqs] owned
    uint32_t n_seqs;
    request_trace_end end;
};

/* ---- the request ---- */

/* A second traceparent makes both invalid; lines of tracestate are one list. */
static bool take_context(const app *a, request_trace *t, http_request *rq) {
    double ratio = a->config->c->tracing.sample_ratio;
    bytes parent, states[TRACE_STATE_MEMBERS];
    t->has_parent =
        http_headers(rq, "traceparent", &parent, 1) == 1 && trace_context_read(parent, &t->context);
    if (t->has_parent) {
        uint32_t n = http_headers(rq, "tracestate", states, TRACE_STATE_MEMBERS);
        if (n <= TRACE_STATE_MEMBERS) trace_context_read_states(states, n, &t->context);
        return (t->context.flags & TRACE_SAMPLED) != 0;
    }
    t->context = (trace_context){.flags = TRACE_SAMPLED};
    return trace_id_make(t->context.trace_id, TRACE_ID_BYTES) &&
           trace_id_is_sampled(t->context.trace_id, isnan(ratio) ? 1.0 : ratio);
}

request_trace *request_trace_begin(const app *a, http_request *rq, const char *operation) {
    request_trace *t = a->tracer != NULL ? calloc(1, sizeof *t) : NULL;
    if (t == NULL) return NULL;
    if (!take_context(a, t, rq) || !trace_id_make(t->id, SPAN_ID_BYTES)) {
        free(t);
        return NULL;
    }
    t->tracer = a->tracer;
    t->n_refs = 1;
    memcpy(t->rq_id, rq->id, sizeof t->rq_id);
    t->method = "POST"; // of every route of generations
    t->route = rq->route->path;
    t->operation = operation;
    t->tenant = rq->tenant >= 0 ? a->tenants[rq->tenant] : NULL;
    t->arrival_us = rq->arrival_us;
    t->prio = GEN_CLASSES;
    return t;
}

void request_trace_admit(request_trace *t, const char *name, gen_class prio, uint32_t n_seqs) {
    if (t == NULL) return;
    t->admitted_us = clock_now_us();
    t->model = name;
    t->prio = prio;
    t->n_all = n_seqs;
    t->seqs = calloc(u32_min(n_seqs, REQUEST_TRACE_SEQS_MAX), sizeof *t->seqs);
    if (t->seqs != NULL) t->n_seqs = u32_min(n_seqs, REQUEST_TRACE_SEQS_MAX);
}

void request_trace_send(request_trace *t, uint32_t seq_idx, const char *device) {
    if (t == NULL) return;
    t->n_refs++;
    if (seq_idx < t->n_seqs) // devices close before the last traces do
        snprintf(t->seqs[seq_idx].device, DEVICE_BYTES, "%s", device);
}

/* ---- spans ---- */

typedef struct writer {
    const request_trace *t;
    buf out;
    uint32_t n;         // spans
    uint64_t offset_ns; // from our clock to 1970
    otlp_attribute attributes[ATTRIBUTES_MAX];
    uint32_t n_attributes;
} writer;

static void add_text(writer *w, const char *key, const char *text) {
    INFERD_CHECK(w->n_attributes < ATTRIBUTES_MAX);
    if (text != NULL)
        w->attributes[w->n_attributes++] =
            (otlp_attribute){.key = key, .type = OTLP_TEXT, .text = text};
}

static void add_int(writer *w, const char *key, int64_t n) {
    INFERD_CHECK(w->n_attributes < ATTRIBUTES_MAX);
    w->attributes[w->n_attributes++] = (otlp_attribute){.key = key, .type = OTLP_INT, .n = n};
}

/* Every span lies within the request: a client that left ends it before its sequences. */
static uint64_t ns_of(const writer *w, uint64_t us) {
    us = u64_min(us > w->t->arrival_us ? us : w->t->arrival_us, w->t->end_us);
    return w->offset_ns + us * NS_PER_US;
}

static void begin_span(otlp_span *s, const writer *w, const char *name,
                       const unsigned char *parent_id) {
    *s = (otlp_span){
        .context = &w->t->context, .name = name, .kind = OTLP_INTERNAL, .parent_id = parent_id};
    if (!trace_id_make(s->id, SPAN_ID_BYTES)) s->id[0] = 1; // it begins no trace
}

/* Its attributes are those added since the last span. */
static void end_span(otlp_span *s, writer *w, uint64_t from_us, uint64_t until_us) {
    s->start_ns = ns_of(w, from_us);
    s->end_ns = ns_of(w, until_us > from_us ? until_us : from_us);
    s->attributes = w->attributes;
    s->n_attributes = w->n_attributes;
    otlp_add_span(&w->out, s);
    w->n_attributes = 0;
    w->n++;
}

static void add_request(writer *w) {
    const request_trace *t = w->t;
    const request_trace_end *e = &t->end;
    char name[128];
    snprintf(name, sizeof name, "%s %s", t->method, t->route);
    otlp_span s = {.context = &t->context,
                   .name = name,
                   .kind = OTLP_SERVER,
                   .parent_id = t->has_parent ? t->context.parent_id : NULL,
                   .remote_parent = t->has_parent,
                   .status = e->failed ? OTLP_ERROR : OTLP_UNSET,
                   .message = e->failed ? e->code : NULL};
    memcpy(s.id, t->id, sizeof s.id);
    add_text(w, "http.request.method", t->method);
    add_text(w, "http.route", t->route);
    if (e->status != 0) add_int(w, "http.response.status_code", e->status);
    add_text(w, "error.type", e->code);
    add_text(w, "gen_ai.operation.name", t->operation);
    add_text(w, "gen_ai.provider.name", "inferd");
    add_text(w, "gen_ai.request.model", t->model);
    add_text(w, "gen_ai.response.model", t->model);
    if (t->n_all > 1) add_int(w, "gen_ai.request.choice.count", t->n_all);
    if (t->admitted_us != 0) {
        add_int(w, "gen_ai.usage.input_tokens", e->n_prompt);
        add_int(w, "gen_ai.usage.cache_read.input_tokens", e->n_cached);
        add_int(w, "gen_ai.usage.output_tokens", e->n_output);
    }
    add_text(w, "inferd.request.id", t->rq_id);
    add_text(w, "inferd.tenant", t->tenant);
    if (t->prio < GEN_CLASSES) add_text(w, "inferd.class", gen_class_name(t->prio));
    if (e->finish != NULL)
        w->attributes[w->n_attributes++] = (otlp_attribute){
            .key = "gen_ai.response.finish_reasons", .type = OTLP_TEXTS, .text = e->finish};
    end_span(&s, w, t->arrival_us, t->end_us);
}

static void add_admission(writer *w) {
    otlp_span s;
    begin_span(&s, w, "admission", w->t->id);
    if (w->t->admitted_us == 0) add_text(w, "error.type", w->t->end.code);
    end_span(&s, w, w->t->arrival_us, w->t->admitted_us != 0 ? w->t->admitted_us : w->t->end_us);
}

static void add_choice(writer *w, uint32_t i) {
    if (w->t->n_all > 1) add_int(w, "inferd.choice", i);
    add_text(w, "inferd.device", w->t->seqs[i].device);
}

/* Those that began within [from_us, until_us). */
static void add_preemptions(writer *w, const gen_event *ev, const unsigned char *parent_id,
                            uint64_t from_us, uint64_t until_us) {
    for (uint32_t k = 0; k < ev->done.n_aways; k++) {
        const gen_away *a = &ev->done.aways[k];
        otlp_span s;
        if (a->since_us < from_us || a->since_us >= until_us) continue;
        begin_span(&s, w, "preemption", parent_id);
        add_text(w, "inferd.preemption.kind", gen_preempt_name(a->kind));
        end_span(&s, w, a->since_us, u64_min(a->since_us + a->us, until_us));
    }
}

/* The end of decoding: the last token, or of a preemption after it, which no token followed. */
static uint64_t end_of_decode(const gen_event *ev, uint64_t token_us) {
    uint64_t end_us = token_us + ev->done.decode_us;
    for (uint32_t k = 0; k < ev->done.n_aways; k++) {
        const gen_away *a = &ev->done.aways[k];
        if (a->since_us >= token_us && a->since_us + a->us > end_us) end_us = a->since_us + a->us;
    }
    return end_us;
}

static uint32_t n_preemptions(const gen_event *ev) {
    uint32_t n = 0;
    for (int k = 0; k < GEN_PREEMPTS; k++) n += ev->done.n_preempts[k];
    return n;
}

static void add_queue(writer *w, uint32_t i, const gen_event *ev, uint64_t until_us) {
    const request_trace *t = w->t;
    otlp_span s, load;
    begin_span(&s, w, "queue", t->id);
    add_choice(w, i);
    add_int(w, "inferd.queue.steps", ev->done.queued_steps);
    end_span(&s, w, t->admitted_us, until_us);
    if (ev->done.load_us == 0 || t->arrival_us + ev->done.load_us <= t->admitted_us) return;
    begin_span(&load, w, "load", s.id);
    add_text(w, "gen_ai.request.model", t->model);
    add_text(w, "inferd.device", t->seqs[i].device);
    end_span(&load, w, t->admitted_us, u64_min(t->arrival_us + ev->done.load_us, until_us));
}

/* Without output it was cancelled in its prompt, or its prompt was only scored. */
static void add_sequence(writer *w, uint32_t i) {
    const gen_event *ev = &w->t->seqs[i].done;
    uint64_t first_us = w->t->arrival_us + ev->done.queued_us;
    bool has_output = ev->done.n_output > 0;
    uint64_t token_us = has_output ? first_us + ev->done.prefill_us : ev->at_us;
    otlp_span s;
    add_queue(w, i, ev, first_us);
    if (!has_output && ev->at_us <= first_us) return; // it had no step
    begin_span(&s, w, "prefill", w->t->id);
    add_choice(w, i);
    add_int(w, "inferd.prompt_tokens", ev->done.n_prompt);
    add_int(w, "inferd.cached_tokens", ev->done.n_cached);
    end_span(&s, w, first_us, token_us);
    add_preemptions(w, ev, s.id, first_us, token_us);
    if (!has_output) return;
    uint64_t last_us = end_of_decode(ev, token_us);
    begin_span(&s, w, "decode", w->t->id);
    add_choice(w, i);
    add_int(w, "inferd.output_tokens", ev->done.n_output);
    add_int(w, "inferd.preemptions", n_preemptions(ev));
    add_int(w, "inferd.preempted_us", (int64_t)ev->done.away_us);
    add_int(w, "inferd.device_us", (int64_t)ev->done.device_us);
    end_span(&s, w, token_us, last_us);
    add_preemptions(w, ev, s.id, token_us, last_us);
}

static void send(const request_trace *t) {
    struct timespec now;
    writer w = {.t = t};
    clock_gettime(CLOCK_REALTIME, &now);
    w.offset_ns =
        (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - clock_now_us() * NS_PER_US;
    buf_init(&w.out, TRACE_BYTES_MAX);
    add_request(&w);
    add_admission(&w);
    for (uint32_t i = 0; i < t->n_seqs; i++)
        if (t->seqs[i].ended) add_sequence(&w, i);
    tracer_put(t->tracer, &w.out, w.n);
}

/* ---- the end ---- */

static void drop(request_trace *t) {
    if (--t->n_refs > 0) return;
    send(t);
    free(t->seqs);
    free(t);
}

void request_trace_done(request_trace *t, uint32_t seq_idx, const gen_event *ev) {
    if (t == NULL) return;
    if (seq_idx < t->n_seqs) {
        t->seqs[seq_idx].done = *ev;
        t->seqs[seq_idx].ended = true;
    }
    drop(t);
}

void request_trace_close(request_trace *t, const request_trace_end *end) {
    if (t == NULL) return;
    t->end = *end;
    t->end_us = clock_now_us();
    drop(t);
}

void request_trace_forget(request_trace *t) {
    if (t != NULL) drop(t);
}
