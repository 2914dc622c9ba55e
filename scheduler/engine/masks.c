/* masks.c - see masks.h. */
#include "masks.h"

#include <pthread.h>
#include <unistd.h>

struct masks {
    masks_options options;
    pthread_t threads[MASKS_THREADS_MAX];
    uint32_t n_threads; // running; engine's
    bool started, halted;

    pthread_mutex_t mutex;
    pthread_cond_t to_workers, to_engine;
    list_node queue;    // constraints by `queued`
    uint32_t n_closing; // closed ones that a worker has
    bool stop;
};

inferd_status masks_create(const masks_options *options, masks **out, inferd_err *err) {
    masks *m = calloc(1, sizeof *m);
    if (m == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for threads of masks");
    m->options = *options;
    list_node_init(&m->queue);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->to_workers, NULL);
    pthread_cond_init(&m->to_engine, NULL);
    *out = m;
    return INFERD_OK;
}

/* ---- workers ---- */

/* Takes the next question; NULL: the thread ends.  The lock is held. */
static constraint *next_question(masks *m) {
    while (list_empty(&m->queue) && !m->stop) pthread_cond_wait(&m->to_workers, &m->mutex);
    if (m->stop) return NULL;
    constraint *c = LIST_ENTRY(m->queue.next, constraint, queued);
    list_remove(&c->queued);
    c->running = true;
    return c;
}

/* Gives it back, or frees it when it was closed meanwhile.  The lock is held. */
static void give_back(masks *m, constraint *c) {
    c->running = false;
    if (!c->closing) {
        atomic_store_explicit(&c->state, CONSTRAINT_DONE, memory_order_release);
        return;
    }
    pthread_mutex_unlock(&m->mutex);
    constraint_destroy(c);
    pthread_mutex_lock(&m->mutex);
    m->n_closing--;
    pthread_cond_broadcast(&m->to_engine);
}

static void *work(void *arg) {
    masks *m = arg;
    if (m->options.begin != NULL) m->options.begin(m->options.ctx);
    pthread_mutex_lock(&m->mutex);
    for (constraint *c; (c = next_question(m)) != NULL;) {
        pthread_mutex_unlock(&m->mutex);
        constraint_work(c);
        pthread_mutex_lock(&m->mutex);
        give_back(m, c);
        if (m->options.answered == NULL) continue;
        pthread_mutex_unlock(&m->mutex);
        m->options.answered(m->options.ctx);
        pthread_mutex_lock(&m->mutex);
    }
    pthread_mutex_unlock(&m->mutex);
    return NULL;
}

static uint32_t threads_wanted(const masks *m) {
    if (m->options.n_threads > 0) return u32_min(m->options.n_threads, MASKS_THREADS_MAX);
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = n_cpus > 0 ? (uint32_t)n_cpus / MASKS_CPUS_EACH : 1;
    return u32_min(u32_max(n, 1), MASKS_THREADS_MAX);
}

static void start_threads(masks *m) {
    m->started = true;
    for (uint32_t i = 0; i < threads_wanted(m); i++) {
        if (pthread_create(&m->threads[i], NULL, work, m) != 0) return;
        pthread_setname_np(m->threads[i], "inferd-masks");
        m->n_threads++;
    }
}

/* ---- the engine's side ---- */

static void answer_now(constraint *c) {
    constraint_work(c);
    atomic_store_explicit(&c->state, CONSTRAINT_DONE, memory_order_release);
}

static void ask(void *ctx, constraint *c) {
    masks *m = ctx;
    if (!m->started) start_threads(m);
    if (m->n_threads == 0 || m->halted) {
        answer_now(c);
        return;
    }
    pthread_mutex_lock(&m->mutex);
    list_push_back(&m->queue, &c->queued);
    pthread_cond_signal(&m->to_workers);
    pthread_mutex_unlock(&m->mutex);
}

static void close_one(void *ctx, constraint *c) {
    masks *m = ctx;
    pthread_mutex_lock(&m->mutex);
    list_remove(&c->queued);
    bool theirs = c->running;
    c->closing = theirs;
    m->n_closing += theirs;
    pthread_mutex_unlock(&m->mutex);
    if (!theirs) constraint_destroy(c);
}

static void settle(void *ctx) {
    masks *m = ctx;
    pthread_mutex_lock(&m->mutex);
    while (m->n_closing > 0) pthread_cond_wait(&m->to_engine, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

void masks_halt(masks *m) {
    if (m == NULL || m->halted) return;
    pthread_mutex_lock(&m->mutex);
    m->stop = true;
    pthread_cond_broadcast(&m->to_workers);
    pthread_mutex_unlock(&m->mutex);
    for (uint32_t i = 0; i < m->n_threads; i++) pthread_join(m->threads[i], NULL);
    m->halted = true;
}

void masks_destroy(masks *m) {
    if (m == NULL) return;
    masks_halt(m);
    pthread_mutex_destroy(&m->mutex);
    pthread_cond_destroy(&m->to_workers);
    pthread_cond_destroy(&m->to_engine);
    free(m);
}

const constraint_ops masks_ops = {.ask = ask, .close = close_one, .settle = settle};
