/* load_memory.c - what a load allocates before it starts; see load_state.h. */
#include <string.h>

#include "load_state.h"

static struct curl_slist *headers_build(const bench_spec *spec, const char *key) {
    struct curl_slist *list = NULL;
    const char *const FIXED[] = {"Content-Type: application/json", "Accept: text/event-stream",
                                 "Expect:", "User-Agent: inferd-bench"};
    bool good = true;
    for (size_t i = 0; i < INFERD_COUNT(FIXED) + spec->headers.n + 1 && good; i++) {
        char bearer[4200];
        const char *line;
        if (i < INFERD_COUNT(FIXED))
            line = FIXED[i];
        else if (i < INFERD_COUNT(FIXED) + spec->headers.n)
            line = spec->headers.items[i - INFERD_COUNT(FIXED)].text;
        else if (key == NULL)
            break;
        else {
            snprintf(bearer, sizeof bearer, "Authorization: Bearer %s", key);
            line = bearer;
        }
        struct curl_slist *longer = curl_slist_append(list, line);
        good = longer != NULL;
        if (good) list = longer;
    }
    if (good) return list;
    curl_slist_free_all(list);
    return NULL;
}

rng load_arrivals_rng(const bench_spec *spec, uint32_t class_idx) {
    return rng_make(spec->seed, class_idx, UINT64_MAX - 1);
}

static bool source_init(load *l, uint32_t class_idx) {
    const bench_class *c = &l->spec->classes[class_idx];
    source *src = &l->sources[class_idx];
    size_t n_lists = size_max(c->keys.n, 1);
    if (c->arrivals.kind != ARRIVALS_CLOSED)
        arrivals_init(&src->arrivals, &c->arrivals, &c->tr, c->trace_speed,
                      load_arrivals_rng(l->spec, class_idx));
    src->headers = calloc(n_lists, sizeof *src->headers);
    if (src->headers == NULL) return false;
    for (size_t k = 0; k < n_lists; k++) {
        src->headers[k] = headers_build(l->spec, c->keys.n == 0 ? NULL : c->keys.items[k].text);
        if (src->headers[k] == NULL) return false;
    }
    return true;
}

inferd_status load_memory_init(load *l, inferd_err *err) {
    const bench_spec *spec = l->spec;
    size_t n_dues = spec->n_classes;
    for (size_t i = 0; i < spec->n_classes; i++) n_dues += spec->classes[i].arrivals.n_streams;
    l->sources = calloc(spec->n_classes, sizeof *l->sources);
    l->backlog = malloc(BACKLOG_MAX * sizeof *l->backlog);
    bool good = l->sources != NULL && l->backlog != NULL && dues_init(&l->dues, n_dues);
    for (uint32_t i = 0; good && i < spec->n_classes; i++) good = source_init(l, i);
    good = good && asprintf(&l->urls[0], "%s/v1/completions", spec->url) > 0 &&
           asprintf(&l->urls[1], "%s/v1/chat/completions", spec->url) > 0;
    return good ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory for the load");
}

void load_memory_deinit(load *l) {
    for (size_t i = 0; i < l->dues.n; i++) talk_destroy(l->dues.items[i].talk);
    while (!list_empty(&l->idle)) {
        stream *s = LIST_ENTRY(l->idle.next, stream, link);
        list_remove(&s->link);
        stream_destroy(s);
    }
    for (size_t i = 0; l->sources != NULL && i < l->spec->n_classes; i++) {
        size_t n_lists = size_max(l->spec->classes[i].keys.n, 1);
        for (size_t k = 0; l->sources[i].headers != NULL && k < n_lists; k++)
            curl_slist_free_all(l->sources[i].headers[k]);
        free(l->sources[i].headers);
    }
    free(l->sources);
    free(l->backlog);
    free(l->urls[0]);
    free(l->urls[1]);
    dues_deinit(&l->dues);
}
