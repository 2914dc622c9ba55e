/* share_load.c - see share_load.h. */
#include "share_load.h"

#include <string.h>

static bool on_token(void *ctx, uint64_t now_ns) {
    share_stream *s = ctx;
    if (atomic_load_explicit(&s->load->stops, memory_order_relaxed)) return false;
    if (s->n_tokens == SHARE_TOKENS_MAX) {
        s->is_full = true;
        return false;
    }
    s->tokens[s->n_tokens++] = (share_token){now_ns, s->n_answers};
    return true;
}

static bool is_stopping(void *ctx) {
    const share_stream *s = ctx;
    return atomic_load_explicit(&s->load->stops, memory_order_relaxed);
}

static void *stream_main(void *ctx) {
    share_stream *s = ctx;
    share_load *l = s->load;
    const share_stream_kind *k = &l->kinds[s->kind];
    while (!atomic_load_explicit(&l->stops, memory_order_relaxed) && s->err.status == INFERD_OK) {
        if (s->is_full || s->n_answers == SHARE_ANSWERS_MAX) {
            inferd_fail(&s->err, INFERD_ETOOLONG,
                        "a stream of %s recorded %u tokens and %u answers, which fills its memory",
                        k->model, s->n_tokens, s->n_answers);
            break;
        }
        share_ask ask = {.model = k->model,
                         .tier = k->tier,
                         .n_prompt = k->n_prompt,
                         .n_output = k->n_output,
                         .seed = l->seed + ((uint64_t)s->idx << 32) + s->n_answers,
                         .on_token = on_token,
                         .stops = is_stopping,
                         .ctx = s};
        if (share_client_ask(&s->client, &ask, &s->answers[s->n_answers], &s->err) == INFERD_OK)
            s->n_answers++;
    }
    return NULL;
}

static inferd_status stream_start(share_load *l, uint32_t kind, inferd_err *err) {
    share_stream *s = &l->streams[l->n_streams];
    *s = (share_stream){.load = l, .idx = l->n_streams, .kind = kind};
    s->tokens = malloc(SHARE_TOKENS_MAX * sizeof *s->tokens);
    s->answers = malloc(SHARE_ANSWERS_MAX * sizeof *s->answers);
    inferd_status status = INFERD_OK;
    if (s->tokens == NULL || s->answers == NULL)
        status = inferd_fail(err, INFERD_ENOMEM, "no memory for a stream");
    share_server to = l->to;
    to.key = l->kinds[kind].key;
    if (status == INFERD_OK) status = share_client_init(&s->client, to, err);
    if (status == INFERD_OK && pthread_create(&s->thread, NULL, stream_main, s) != 0)
        status = inferd_fail(err, INFERD_ENOMEM, "no thread for a stream");
    if (status == INFERD_OK) {
        l->n_streams++;
        return INFERD_OK;
    }
    share_client_deinit(&s->client);
    free(s->tokens);
    free(s->answers);
    return status;
}

inferd_status share_load_start(share_load *l, share_server to, const share_stream_kind *kinds,
                               uint32_t n_kinds, uint64_t seed, inferd_err *err) {
    *l = (share_load){.to = to, .kinds = kinds, .n_kinds = n_kinds, .seed = seed};
    l->streams = calloc(SHARE_STREAMS_MAX, sizeof *l->streams);
    if (l->streams == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for streams");
    for (uint32_t k = 0; k < n_kinds; k++)
        for (uint32_t i = 0; i < kinds[k].n; i++) {
            INFERD_CHECK(l->n_streams < SHARE_STREAMS_MAX);
            inferd_status s = stream_start(l, k, err);
            if (s == INFERD_OK) continue;
            share_load_free(l);
            return s;
        }
    return INFERD_OK;
}

inferd_status share_load_stop(share_load *l, inferd_err *err) {
    bool was_running = !atomic_exchange(&l->stops, true);
    inferd_status s = INFERD_OK;
    for (uint32_t i = 0; i < l->n_streams; i++) {
        share_stream *stream = &l->streams[i];
        if (was_running) pthread_join(stream->thread, NULL);
        if (stream->err.status != INFERD_OK && s == INFERD_OK)
            s = inferd_fail(err, stream->err.status, "%s", stream->err.text);
    }
    return s;
}

void share_load_free(share_load *l) {
    inferd_err ignored;
    share_load_stop(l, &ignored);
    for (uint32_t i = 0; i < l->n_streams; i++) {
        share_client_deinit(&l->streams[i].client);
        free(l->streams[i].tokens);
        free(l->streams[i].answers);
    }
    free(l->streams);
    *l = (share_load){0};
}

void share_load_gaps(const share_load *l, samples *out) {
    for (uint32_t i = 0; i < l->n_streams; i++)
        for (uint32_t k = 1; k < l->streams[i].n_tokens; k++) {
            const share_token *a = &l->streams[i].tokens[k - 1], *b = a + 1;
            if (a->answer_idx == b->answer_idx)
                samples_add(out, (double)(b->at_ns - a->at_ns) / 1e6);
        }
}
