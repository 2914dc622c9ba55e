/* response_store.c - see response_store.h.
 *
 *   keep -> queued -> (writer) on disk -> deleted, or displaced by a newer one
 *
 * An entry is in the index from `keep` on; a queued one has its text.  Entries are known by their
 * id, not by their address, wherever the mutex was released in between: a response may be deleted
 * while it is written, and then the writer deletes the file. */
#include "response_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inferd/list.h"
#include "log.h"
#include "response_file.h"

/* The text of a file; counted, because it is read beside its entry. */
typedef struct kept_text {
    uint32_t n_refs;
    buf text;
} kept_text;

/* What a tenant has. */
typedef struct holder {
    uint64_t tenant, bytes;
    uint32_t n;
} holder;

typedef struct entry {
    list_node link; // in store.all
    char id[RESPONSE_ID_BYTES];
    uint32_t holder_idx;
    uint64_t bytes;
    kept_text *queued; // one reference; NULL: it is on disk
} entry;

struct response_store {
    uint32_t n_max;
    uint64_t bytes_max;
    int folder;
    pthread_t writer;
    bool started;
    pthread_mutex_t mutex; // of everything below
    pthread_cond_t changed;
    list_node all;   // oldest first
    holder *holders; // [n_holders] owned
    uint32_t n_holders, n;
    uint64_t bytes, queued_bytes;
    bool stops, writing;
    uint64_t n_lost; // since the last one that was written
};

void response_store_complain(const char *id, const char *problem) {
    log_line line;
    log_begin(&line, LOG_LEVEL_ERROR, "response_not_kept");
    log_str(&line, "response", id);
    log_str(&line, "problem", problem);
    log_end(&line);
}

/* ---- the index; the mutex is held ---- */

static void drop_text(kept_text *t) {
    if (t == NULL || --t->n_refs > 0) return;
    buf_deinit(&t->text);
    free(t);
}

static entry *find(const response_store *s, const char *id) {
    LIST_EACH(node, &s->all) {
        entry *e = LIST_ENTRY(node, entry, link);
        if (strcmp(e->id, id) == 0) return e;
    }
    return NULL;
}

/* NULL: this tenant has no such response. */
static entry *find_of(const response_store *s, const char *tenant, const char *id) {
    entry *e = response_is_id(id, strlen(id)) ? find(s, id) : NULL;
    return e != NULL && s->holders[e->holder_idx].tenant == response_hash(tenant) ? e : NULL;
}

/* UINT32_MAX: no memory. */
static uint32_t holder_of(response_store *s, uint64_t tenant) {
    uint32_t i = 0;
    while (i < s->n_holders && s->holders[i].tenant != tenant) i++;
    if (i < s->n_holders) return i;
    holder *more = realloc(s->holders, ((size_t)i + 1) * sizeof *more);
    if (more == NULL) return UINT32_MAX;
    s->holders = more;
    s->holders[s->n_holders++] = (holder){.tenant = tenant};
    return i;
}

/* Takes the reference to `queued`, if it succeeds. */
static bool add_entry(response_store *s, const char *id, uint64_t tenant, uint64_t n_bytes,
                      kept_text *queued) {
    entry *e = calloc(1, sizeof *e);
    uint32_t holder_idx = holder_of(s, tenant);
    if (e == NULL || holder_idx == UINT32_MAX) {
        free(e);
        return false;
    }
    *e = (entry){.holder_idx = holder_idx, .bytes = n_bytes, .queued = queued};
    snprintf(e->id, sizeof e->id, "%s", id);
    list_push_back(&s->all, &e->link);
    s->n++;
    s->bytes += n_bytes;
    if (queued != NULL) s->queued_bytes += n_bytes;
    s->holders[holder_idx].n++;
    s->holders[holder_idx].bytes += n_bytes;
    return true;
}

static void remove_entry(response_store *s, entry *e) {
    list_remove(&e->link);
    s->n--;
    s->bytes -= e->bytes;
    if (e->queued != NULL) s->queued_bytes -= e->bytes;
    s->holders[e->holder_idx].n--;
    s->holders[e->holder_idx].bytes -= e->bytes;
    drop_text(e->queued);
    free(e);
}

/* The oldest response of the tenant with the most of what is short. */
static entry *choose_victim(const response_store *s, bool by_bytes) {
    uint32_t most = 0;
    for (uint32_t i = 1; i < s->n_holders; i++) {
        const holder *a = &s->holders[i], *b = &s->holders[most];
        if (by_bytes ? a->bytes > b->bytes : a->n > b->n) most = i;
    }
    LIST_EACH(node, &s->all) {
        entry *e = LIST_ENTRY(node, entry, link);
        if (e->holder_idx == most) return e;
    }
    return NULL;
}

/* Releases the mutex while a file is deleted. */
static void keep_bounds(response_store *s) {
    while (s->n > s->n_max || s->bytes > s->bytes_max) {
        char id[RESPONSE_ID_BYTES];
        entry *victim = choose_victim(s, s->bytes > s->bytes_max);
        memcpy(id, victim->id, sizeof id);
        remove_entry(s, victim);
        pthread_mutex_unlock(&s->mutex);
        response_file_delete(s->folder, id);
        pthread_mutex_lock(&s->mutex);
    }
}

/* ---- writing ---- */

static void note_written(response_store *s, const char *id, bool ok, int reason) {
    if (!ok && s->n_lost++ == 0) response_store_complain(id, strerror(reason));
    if (!ok || s->n_lost == 0) return;
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "responses_kept_again");
    log_u64(&line, "lost", s->n_lost);
    log_end(&line);
    s->n_lost = 0;
}

/* The mutex is held, and released meanwhile. */
static void write_entry(response_store *s, entry *e) {
    char id[RESPONSE_ID_BYTES];
    kept_text *t = e->queued;
    memcpy(id, e->id, sizeof id);
    t->n_refs++;
    pthread_mutex_unlock(&s->mutex);
    bool ok = response_file_write(s->folder, id, &t->text);
    int reason = errno;
    pthread_mutex_lock(&s->mutex);
    drop_text(t);
    e = find(s, id);
    note_written(s, id, ok, reason);
    if (e != NULL && !ok) remove_entry(s, e);
    if (e != NULL && ok) {
        s->queued_bytes -= e->bytes;
        drop_text(e->queued);
        e->queued = NULL;
    }
    if (e != NULL || !ok) return;
    pthread_mutex_unlock(&s->mutex); // it was deleted meanwhile
    response_file_delete(s->folder, id);
    pthread_mutex_lock(&s->mutex);
}

static entry *next_queued(const response_store *s) {
    LIST_EACH(node, &s->all) {
        entry *e = LIST_ENTRY(node, entry, link);
        if (e->queued != NULL) return e;
    }
    return NULL;
}

static void *run_writer(void *ctx) {
    response_store *s = ctx;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        entry *e;
        s->writing = true;
        keep_bounds(s);
        while ((e = next_queued(s)) != NULL) write_entry(s, e);
        keep_bounds(s);
        s->writing = false;
        pthread_cond_broadcast(&s->changed);
        if (next_queued(s) != NULL) continue;
        if (s->stops) break;
        pthread_cond_wait(&s->changed, &s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* The text of the file; false: it is too large, or there is no memory. */
static bool compose(buf *out, const char *tenant, bytes items, bytes output, bytes response) {
    char head[RESPONSE_HEAD_BYTES + 1];
    buf_init(out, RESPONSE_BYTES_MAX);
    if (!buf_reserve(out, RESPONSE_HEAD_BYTES)) return false;
    out->n = RESPONSE_HEAD_BYTES; // its first line, which comes at last
    form_add_cstr(out, "{\"tenant\":", tenant);
    buf_add_str(out, ",\"items\":[");
    buf_add(out, items.p, items.n);
    if (items.n > 0 && output.n > 0) buf_add_char(out, ',');
    buf_add(out, output.p, output.n);
    buf_add_str(out, "],\"response\":");
    buf_add(out, response.p, response.n);
    buf_add_char(out, '}');
    if (out->failed) return false;
    response_head_spell(head, response_hash(tenant),
                        (bytes){out->p + RESPONSE_HEAD_BYTES, out->n - RESPONSE_HEAD_BYTES});
    memcpy(out->p, head, RESPONSE_HEAD_BYTES);
    return true;
}

void response_store_keep(response_store *s, const char *tenant, const char *id, bytes items,
                         bytes output, bytes response) {
    const char *problem = NULL;
    kept_text *t = calloc(1, sizeof *t);
    if (!response_is_id(id, strlen(id)))
        problem = "its id is not of this server";
    else if (t == NULL || !compose(&t->text, tenant, items, output, response))
        problem = "it is larger than a kept response can be, or memory is short";
    pthread_mutex_lock(&s->mutex);
    if (t != NULL) t->n_refs = 1;
    if (problem == NULL && t->text.n > s->bytes_max)
        problem = "it is larger than limits.responses_bytes_max";
    if (problem == NULL && s->queued_bytes + t->text.n > RESPONSE_QUEUE_BYTES_MAX)
        problem = "the disk is slower than the responses";
    if (problem == NULL && !add_entry(s, id, response_hash(tenant), t->text.n, t))
        problem = "memory is short";
    if (problem != NULL)
        drop_text(t);
    else
        pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    if (problem != NULL) response_store_complain(id, problem);
}

/* ---- reading ---- */

static inferd_status not_found(inferd_err *err, const char *id) {
    return inferd_fail(err, INFERD_ENOTFOUND, "Response with id '%.64s' not found.", id);
}

/* Of a whole file.  INFERD_EFORMAT: it is damaged. */
static inferd_status parse(const buf *text, const char *tenant, const char *id,
                           const json_limits *limits, json_t **out, inferd_err *err) {
    char head[RESPONSE_HEAD_BYTES + 1];
    bytes body = {"", 0};
    bool has_head = text->n >= RESPONSE_HEAD_BYTES;
    if (has_head) body = (bytes){text->p + RESPONSE_HEAD_BYTES, text->n - RESPONSE_HEAD_BYTES};
    response_head_spell(head, response_hash(tenant), body);
    if (!has_head || memcmp(head, text->p, RESPONSE_HEAD_BYTES) != 0)
        return inferd_fail(err, INFERD_EFORMAT, "the file of %s is damaged", id);
    inferd_status s = json_in_parse(body, limits, out, err);
    if (s != INFERD_OK) return s;
    const char *of = json_string_value(json_object_get(*out, "tenant"));
    const char *is = json_string_value(json_object_get(json_object_get(*out, "response"), "id"));
    if (of != NULL && strcmp(of, tenant) == 0 && is != NULL && strcmp(is, id) == 0) return s;
    json_decref(*out);
    *out = NULL;
    return inferd_fail(err, INFERD_EFORMAT, "the file of %s has another response", id);
}

/* A file that cannot be used is deleted, with its entry. */
static void give_up(response_store *s, const char *id, const char *problem) {
    pthread_mutex_lock(&s->mutex);
    entry *e = find(s, id);
    if (e != NULL) remove_entry(s, e);
    pthread_mutex_unlock(&s->mutex);
    if (e == NULL) return; // it was deleted or displaced meanwhile
    response_file_delete(s->folder, id);
    response_store_complain(id, problem);
}

static inferd_status read_stored(response_store *s, const char *tenant, const char *id,
                                 const json_limits *limits, json_t **out, inferd_err *err) {
    char name[RESPONSE_NAME_BYTES];
    struct stat st;
    buf text = {0};
    inferd_err why = {0};
    response_file_name(name, id);
    inferd_status status = INFERD_EFORMAT;
    if (response_file_read(s->folder, name, RESPONSE_BYTES_MAX, &text, &st))
        status = parse(&text, tenant, id, limits, out, &why);
    else if (text.failed)
        status = inferd_fail(&why, INFERD_ENOMEM, "no memory for the response %s", id);
    else
        inferd_fail(&why, INFERD_EFORMAT, "its file cannot be read");
    buf_deinit(&text);
    if (status == INFERD_EFORMAT) {
        give_up(s, id, why.text);
        return not_found(err, id);
    }
    if (err != NULL) *err = why;
    return status;
}

inferd_status response_store_read(response_store *s, const char *tenant, const char *id,
                                  const json_limits *limits, json_t **out, inferd_err *err) {
    pthread_mutex_lock(&s->mutex);
    entry *e = find_of(s, tenant, id);
    kept_text *t = e != NULL ? e->queued : NULL;
    if (t != NULL) t->n_refs++;
    pthread_mutex_unlock(&s->mutex);
    if (e == NULL) return not_found(err, id);
    if (t == NULL) return read_stored(s, tenant, id, limits, out, err);
    inferd_status status = parse(&t->text, tenant, id, limits, out, err);
    pthread_mutex_lock(&s->mutex);
    drop_text(t);
    pthread_mutex_unlock(&s->mutex);
    return status;
}

bool response_store_previous(const form_host *host, const char *id, json_t **out, api_error *err) {
    static const char field[] = "previous_response_id";
    char quoted[API_QUOTE_BYTES];
    inferd_err why = {0};
    if (host->store == NULL)
        return api_fail(err, API_UNSUPPORTED, field,
                        "\"%s\" is not supported: this server keeps no responses (\"state_dir\", "
                        "\"limits.responses_max\"); send the whole conversation as \"input\"",
                        field);
    inferd_status s = response_store_read(host->store, host->tenant, id, host->limits, out, &why);
    if (s == INFERD_ENOTFOUND)
        return api_fail(err, API_BAD_VALUE, field,
                        "Previous response with id '%s' not found: it was deleted, displaced by "
                        "newer ones, or not stored.",
                        api_quote(quoted, id, strlen(id)));
    return s == INFERD_OK ? true : api_fail_status(err, &why, field);
}

bool response_store_delete(response_store *s, const char *tenant, const char *id) {
    pthread_mutex_lock(&s->mutex);
    entry *e = find_of(s, tenant, id);
    if (e != NULL) remove_entry(s, e);
    pthread_mutex_unlock(&s->mutex);
    if (e != NULL)
        response_file_delete(s->folder, id); // one that is being written: the writer does
    return e != NULL;
}

/* ---- opening and closing ---- */

typedef struct found {
    char id[RESPONSE_ID_BYTES];
    uint64_t tenant, bytes;
    struct timespec at;
} found;

static int compare_found(const void *a, const void *b) {
    const struct timespec *x = &((const found *)a)->at, *y = &((const found *)b)->at;
    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* False: it is no file of the store, or a damaged one, which is deleted. */
static bool look_at(const response_store *s, const char *name, found *out) {
    size_t n = strlen(name), tail = sizeof RESPONSE_NAME_TAIL - 1;
    struct stat st;
    buf head = {0};
    if (n < tail || strcmp(name + n - tail, RESPONSE_NAME_TAIL) != 0 ||
        !response_is_id(name, n - tail))
        return false;
    snprintf(out->id, sizeof out->id, "%.*s", (int)(n - tail), name);
    bool ok = response_file_read(s->folder, name, RESPONSE_HEAD_BYTES, &head, &st) &&
              buf_cstr(&head)[0] != 0 &&
              response_head_read(head.p, (size_t)st.st_size, &out->tenant);
    if (!ok && !head.failed) {
        response_file_delete(s->folder, out->id);
        response_store_complain(out->id, "its file is damaged");
    }
    if (ok) out->bytes = (uint64_t)st.st_size;
    if (ok) out->at = st.st_mtim;
    buf_deinit(&head);
    return ok;
}

static inferd_status add_found(response_store *s, found *all, size_t n, inferd_err *err) {
    qsort(all, n, sizeof *all, compare_found);
    for (size_t i = 0; i < n; i++)
        if (!add_entry(s, all[i].id, all[i].tenant, all[i].bytes, NULL))
            return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu responses", n);
    return INFERD_OK;
}

static inferd_status read_folder(response_store *s, const char *path, inferd_err *err) {
    found *all = NULL;
    size_t n = 0, capacity = 0;
    inferd_status st = INFERD_OK;
    DIR *d = opendir(path);
    if (d == NULL) return inferd_fail(err, INFERD_EIO, "the folder %s: %s", path, strerror(errno));
    unlinkat(s->folder, RESPONSE_NEW_NAME, 0);
    for (const struct dirent *one; st == INFERD_OK && (one = readdir(d)) != NULL;) {
        if (n == capacity) {
            size_t wanted = capacity == 0 ? 64 : 2 * capacity;
            found *more = realloc(all, wanted * sizeof *more);
            if (more == NULL) {
                st = inferd_fail(err, INFERD_ENOMEM, "no memory for the responses in %s", path);
                break;
            }
            all = more;
            capacity = wanted;
        }
        n += look_at(s, one->d_name, &all[n]);
    }
    closedir(d);
    if (st == INFERD_OK && n > 0) st = add_found(s, all, n, err);
    free(all);
    return st;
}

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
    list_node_init(&s->all);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (mkdir(o->folder, 0700) != 0 && errno != EEXIST)
        st = inferd_fail(err, INFERD_EIO, "the folder %s cannot be created: %s", o->folder,
                         strerror(errno));
    s->folder = open(o->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (st == INFERD_OK && s->folder < 0)
        st = inferd_fail(err, INFERD_EIO, "the folder %s: %s", o->folder, strerror(errno));
    if (st == INFERD_OK) st = read_folder(s, o->folder, err);
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
    LIST_EACH_SAFE(node, next, &s->all) remove_entry(s, LIST_ENTRY(node, entry, link));
    if (s->folder >= 0) close(s->folder);
    pthread_mutex_destroy(&s->mutex);
    pthread_cond_destroy(&s->changed);
    free(s->holders);
    free(s);
}

void response_store_settle(response_store *s) {
    pthread_mutex_lock(&s->mutex);
    while (s->writing || next_queued(s) != NULL || s->n > s->n_max || s->bytes > s->bytes_max)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}
