/* response_store.c - see response_store.h.
 *
 *   keep -> queued -> (writer) on disk -> deleted, or displaced by a newer one
 *
 * An entry is in the index from `keep` on; a queued one has its text.  Entries are known by their
 * id, not by their address, wherever the mutex was released in between: a response may be deleted
 * while it is written, and then the writer deletes the file.
 *
 * A file is deleted for damage only if it was read and does not match its first line.  One that
 * cannot be opened or read may be there again in a moment (files of the process, a network disk):
 * it stays, and its readers are told to come back. */
#include "response_store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "response_index.h"
#include "response_scan.h"

struct response_store {
    uint32_t n_max;
    uint64_t bytes_max;
    int folder;
    pthread_t writer;
    bool started;
    pthread_mutex_t mutex; // of everything below
    pthread_cond_t changed;
    response_index index;
    bool stops, writing;
    uint64_t n_lost; // since the last one that was written
    uint64_t n_not_kept;
};

static bool is_over(const response_store *s) {
    return s->index.n > s->n_max || s->index.n_bytes > s->bytes_max;
}

/* NULL: this tenant has no such response; an unread one may be of any. */
static response_entry *find_of(const response_store *s, const char *tenant, const char *id) {
    response_entry *e = response_is_id(id, strlen(id)) ? response_index_find(&s->index, id) : NULL;
    return e != NULL && (e->unread || e->holder->tenant == response_hash(tenant)) ? e : NULL;
}

/* ---- writing ---- */

/* The mutex is held, and released while a file is deleted. */
static void keep_bounds(response_store *s) {
    while (is_over(s)) {
        char id[RESPONSE_ID_BYTES];
        response_bound by =
            s->index.n_bytes > s->bytes_max ? RESPONSE_BY_BYTES : RESPONSE_BY_NUMBER;
        response_entry *victim = response_index_victim(&s->index, by);
        memcpy(id, victim->id, sizeof id);
        response_index_remove(&s->index, victim);
        pthread_mutex_unlock(&s->mutex);
        response_file_delete(s->folder, id);
        pthread_mutex_lock(&s->mutex);
    }
}

static void note_written(response_store *s, const char *id, bool ok, int reason) {
    s->n_not_kept += !ok;
    if (!ok && s->n_lost++ == 0) response_complain(id, strerror(reason));
    if (!ok || s->n_lost == 0) return;
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "responses_kept_again");
    log_u64(&line, "lost", s->n_lost);
    log_end(&line);
    s->n_lost = 0;
}

/* The mutex is held, and released meanwhile. */
static void write_entry(response_store *s, response_entry *e) {
    char id[RESPONSE_ID_BYTES];
    response_text *t = e->queued;
    memcpy(id, e->id, sizeof id);
    t->n_refs++;
    pthread_mutex_unlock(&s->mutex);
    bool ok = response_file_write(s->folder, id, &t->text);
    int reason = errno;
    pthread_mutex_lock(&s->mutex);
    response_text_drop(t);
    e = response_index_find(&s->index, id);
    note_written(s, id, ok, reason);
    if (e != NULL && !ok) response_index_remove(&s->index, e);
    if (e != NULL && ok) response_index_note_written(&s->index, e);
    if (e != NULL || !ok) return;
    pthread_mutex_unlock(&s->mutex); // it was deleted meanwhile
    response_file_delete(s->folder, id);
    pthread_mutex_lock(&s->mutex);
}

static void *run_writer(void *ctx) {
    response_store *s = ctx;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        response_entry *e;
        s->writing = true;
        keep_bounds(s);
        while ((e = response_index_queued(&s->index)) != NULL) write_entry(s, e);
        keep_bounds(s);
        s->writing = false;
        pthread_cond_broadcast(&s->changed);
        if (response_index_queued(&s->index) != NULL) continue;
        if (s->stops) break;
        pthread_cond_wait(&s->changed, &s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

void response_store_lose(response_store *s, const char *id, const char *problem) {
    pthread_mutex_lock(&s->mutex);
    s->n_not_kept++;
    pthread_mutex_unlock(&s->mutex);
    response_complain(id, problem);
}

void response_store_keep(response_store *s, const char *tenant, const char *id, bytes items,
                         bytes output, bytes response) {
    const char *problem = NULL;
    response_text *t = calloc(1, sizeof *t);
    if (!response_is_id(id, strlen(id)))
        problem = "its id is not of this server";
    else if (t == NULL || !response_compose(&t->text, tenant, items, output, response))
        problem = "it is larger than a kept response can be, or memory is short";
    pthread_mutex_lock(&s->mutex);
    if (t != NULL) t->n_refs = 1;
    if (problem == NULL && t->text.n > s->bytes_max)
        problem = "it is larger than limits.responses_bytes_max";
    if (problem == NULL && s->index.n_queued_bytes + t->text.n > RESPONSE_QUEUE_BYTES_MAX)
        problem = "the disk is slower than the responses";
    if (problem == NULL &&
        response_index_add(&s->index, id, response_hash(tenant), t->text.n, t) == NULL)
        problem = "memory is short";
    if (problem != NULL)
        response_text_drop(t);
    else
        pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (problem != NULL) response_store_lose(s, id, problem);
}

/* ---- reading ---- */

static inferd_status not_found(inferd_err *err, const char *id) {
    return inferd_fail(err, INFERD_ENOTFOUND, "Response with id '%.64s' not found.", id);
}

/* Its file is gone, or damaged and deleted. */
static inferd_status give_up(response_store *s, const char *id, const char *problem, bool deletes,
                             inferd_err *err) {
    pthread_mutex_lock(&s->mutex);
    response_entry *e = response_index_find(&s->index, id);
    if (e != NULL) response_index_remove(&s->index, e);
    pthread_mutex_unlock(&s->mutex);
    if (e != NULL && deletes) response_file_delete(s->folder, id);
    if (e != NULL) response_complain(id, problem); // else it was deleted or displaced meanwhile
    return not_found(err, id);
}

static inferd_status come_back(const char *id, int reason, inferd_err *err) {
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "response_unread");
    log_str(&line, "response", id);
    log_str(&line, "problem", strerror(reason));
    log_end(&line);
    return inferd_fail(err, INFERD_EBUSY,
                       "Response with id '%.64s' cannot be read or deleted now; ask again later.",
                       id);
}

static inferd_status no_memory_for(const char *id, inferd_err *err) {
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the response %.64s", id);
}

/* The text of a file was read.  False: it is of another tenant. */
static bool learn_tenant(response_store *s, const char *id, uint64_t tenant, uint64_t asking) {
    pthread_mutex_lock(&s->mutex);
    response_entry *e = response_index_find(&s->index, id);
    /* Without memory for that, it stays unread. */
    if (e != NULL && e->unread) response_index_learn(&s->index, e, tenant);
    pthread_mutex_unlock(&s->mutex);
    return tenant == asking;
}

static inferd_status read_stored(response_store *s, const char *tenant, const char *id,
                                 response_text *out, response_parts *parts, inferd_err *err) {
    char name[RESPONSE_NAME_BYTES];
    struct stat st;
    uint64_t of = 0;
    response_file_name(name, id);
    response_reading r = response_file_read(s->folder, name, RESPONSE_BYTES_MAX, &out->text, &st);
    int reason = errno;
    if (r == RESPONSE_READ && !response_is_whole(&out->text, &of)) r = RESPONSE_DAMAGED;
    if (r == RESPONSE_READ && !learn_tenant(s, id, of, response_hash(tenant)))
        return not_found(err, id);
    if (r == RESPONSE_READ) r = response_divide(&out->text, tenant, id, parts);
    switch (r) {
    case RESPONSE_READ:
        return INFERD_OK;
    case RESPONSE_GONE:
        return give_up(s, id, "its file is gone", false, err);
    case RESPONSE_DAMAGED:
        return give_up(s, id, "its file is damaged", true, err);
    case RESPONSE_UNREAD:
        return come_back(id, reason, err);
    case RESPONSE_NO_MEMORY:
        break;
    }
    return no_memory_for(id, err);
}

static void drop_read(response_store *s, response_text *t) {
    pthread_mutex_lock(&s->mutex);
    response_text_drop(t);
    pthread_mutex_unlock(&s->mutex);
}

/* The caller drops *out with drop_read; *parts are inside it. */
static inferd_status take_text(response_store *s, const char *tenant, const char *id,
                               response_text **out, response_parts *parts, inferd_err *err) {
    pthread_mutex_lock(&s->mutex);
    response_entry *e = find_of(s, tenant, id);
    response_text *t = e != NULL ? e->queued : NULL;
    if (t != NULL) t->n_refs++;
    pthread_mutex_unlock(&s->mutex);
    if (e == NULL) return not_found(err, id);
    inferd_status status = INFERD_OK;
    if (t != NULL) {
        response_reading r = response_divide(&t->text, tenant, id, parts);
        if (r == RESPONSE_DAMAGED) status = not_found(err, id); // two tenants of one hash
        if (r == RESPONSE_NO_MEMORY) status = no_memory_for(id, err);
    } else if ((t = calloc(1, sizeof *t)) == NULL) {
        return no_memory_for(id, err);
    } else {
        t->n_refs = 1;
        status = read_stored(s, tenant, id, t, parts, err);
    }
    if (status == INFERD_OK) {
        *out = t;
        return status;
    }
    drop_read(s, t);
    return status;
}

inferd_status response_store_get(response_store *s, const char *tenant, const char *id, buf *out,
                                 inferd_err *err) {
    response_text *t;
    response_parts parts;
    inferd_status status = take_text(s, tenant, id, &t, &parts, err);
    if (status != INFERD_OK) return status;
    buf_add(out, parts.response.p, parts.response.n);
    drop_read(s, t);
    return out->failed ? no_memory_for(id, err) : INFERD_OK;
}

/* The items were JSON of requests, and each was within their limits.  Together they may have more
 * values, of which the length of the file is a bound; their memory is that of a request. */
inferd_status response_store_items(response_store *s, const char *tenant, const char *id,
                                   const json_limits *limits, json_t **out, inferd_err *err) {
    response_text *t;
    response_parts parts;
    inferd_status status = take_text(s, tenant, id, &t, &parts, err);
    if (status != INFERD_OK) return status;
    const json_limits own = {.depth_max = RESPONSE_DEPTH_MAX,
                             .structural_max = RESPONSE_BYTES_MAX,
                             .memory_max = limits->memory_max};
    inferd_err why = {0};
    status = json_in_parse(parts.items, &own, out, &why);
    drop_read(s, t);
    if (status == INFERD_EINVAL) // it is what the daemon wrote
        status = inferd_fail(&why, INFERD_EFORMAT, "the items of %.64s are no JSON", id);
    if (status != INFERD_OK && err != NULL) *err = why;
    return status;
}

bool response_store_previous(const form_host *host, const char *id, json_t **items,
                             api_error *err) {
    static const char field[] = "previous_response_id";
    char quoted[API_QUOTE_BYTES];
    inferd_err why = {0};
    if (host->store == NULL)
        return api_fail(err, API_UNSUPPORTED, field,
                        "\"%s\" is not supported: this server keeps no responses (\"state_dir\", "
                        "\"limits.responses_max\"); send the whole conversation as \"input\"",
                        field);
    inferd_status s =
        response_store_items(host->store, host->tenant, id, host->limits, items, &why);
    if (s == INFERD_ENOTFOUND)
        return api_fail(err, API_NO_PREVIOUS, field,
                        "Previous response with id '%s' not found: it was deleted, displaced by "
                        "newer ones, or not stored.",
                        api_quote(quoted, id, strlen(id)));
    if (s == INFERD_ETOOLONG)
        return api_fail(err, API_OVER_LIMIT, field,
                        "the conversation of \"%s\" needs more than the %llu bytes of memory that "
                        "the JSON of a request may use; begin another one",
                        field, (unsigned long long)host->limits->memory_max);
    return s == INFERD_OK ? true : api_fail_status(err, &why, field);
}

/* ---- deleting ---- */

/* Its file is there, and no writer has it. */
static inferd_status delete_stored(response_store *s, const char *id, inferd_err *err) {
    if (!response_file_delete(s->folder, id)) return come_back(id, errno, err);
    pthread_mutex_lock(&s->mutex);
    response_entry *e = response_index_find(&s->index, id);
    if (e != NULL) response_index_remove(&s->index, e);
    pthread_mutex_unlock(&s->mutex);
    return e != NULL ? INFERD_OK : not_found(err, id); // another one deleted it
}

inferd_status response_store_delete(response_store *s, const char *tenant, const char *id,
                                    inferd_err *err) {
    pthread_mutex_lock(&s->mutex);
    response_entry *e = find_of(s, tenant, id);
    bool unread = e != NULL && e->unread, queued = e != NULL && e->queued != NULL;
    if (queued) response_index_remove(&s->index, e); // if it is being written, the writer deletes
    pthread_mutex_unlock(&s->mutex);
    if (e == NULL) return not_found(err, id);
    if (queued) return INFERD_OK;
    if (unread) { // whose is it?
        response_text *t;
        response_parts parts;
        inferd_status status = take_text(s, tenant, id, &t, &parts, err);
        if (status != INFERD_OK) return status;
        drop_read(s, t);
    }
    return delete_stored(s, id, err);
}

/* ---- opening and closing ---- */

static inferd_status start_writer(response_store *s, inferd_err *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the front
    int rc = pthread_create(&s->writer, NULL, run_writer, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return inferd_fail(err, INFERD_EIO, "starting the thread that writes responses: %s",
                           strerror(rc));
    s->started = true;
    return INFERD_OK;
}

inferd_status response_store_open(const response_store_options *o, response_store **out,
                                  inferd_err *err) {
    response_store *s = calloc(1, sizeof *s);
    inferd_status st = INFERD_OK;
    if (s == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for kept responses");
    s->n_max = o->n_max;
    s->bytes_max = o->bytes_max;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (!response_index_init(&s->index, o->n_max))
        st = inferd_fail(err, INFERD_ENOMEM, "no memory for %u kept responses", o->n_max);
    if (st == INFERD_OK && mkdir(o->folder, 0700) != 0 && errno != EEXIST)
        st = inferd_fail(err, INFERD_EIO, "the folder %s cannot be created: %s", o->folder,
                         strerror(errno));
    s->folder = open(o->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (st == INFERD_OK && s->folder < 0)
        st = inferd_fail(err, INFERD_EIO, "the folder %s: %s", o->folder, strerror(errno));
    if (st == INFERD_OK) st = response_scan(s->folder, o->folder, &s->index, err);
    if (st == INFERD_OK) st = start_writer(s, err);
    if (st != INFERD_OK) {
        response_store_close(s);
        return st;
    }
    *out = s;
    return INFERD_OK;
}

void response_store_close(response_store *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->mutex);
    s->stops = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (s->started) pthread_join(s->writer, NULL);
    response_index_deinit(&s->index);
    if (s->folder >= 0) close(s->folder);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s);
}

void response_store_stats(response_store *s, metrics_responses *out) {
    pthread_mutex_lock(&s->mutex);
    *out = (metrics_responses){
        .n = s->index.n, .n_bytes = s->index.n_bytes, .n_not_kept = s->n_not_kept};
    pthread_mutex_unlock(&s->mutex);
}

void response_store_settle(response_store *s) {
    pthread_mutex_lock(&s->mutex);
    while (s->writing || response_index_queued(&s->index) != NULL || is_over(s))
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}
