/* masks.c - see masks.h. */
#include "masks.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "inferd/clock.h"

struct masks {
    masks_options options;
    pthread_t threads[MASKS_THREADS_MAX];
    uint32_t n_threads; // running; engine's
    bool started, halted;

    atomic_uint n_open; // questions without an answer
    pthread_mutex_t mutex;
    pthread_cond_t to_workers, to_engine;
    list_node queue;    // constraints by `queued`
    uint32_t n_closing; // closed, and not freed yet
    bool tells;         // the engine waited in vain
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

/* Takes the next one of the queue; NULL: the thread ends.  The lock is held. */
static constraint *next_of_queue(masks *m) {
    while (list_empty(&m->queue) && !m->stop) pthread_cond_wait(&m->to_workers, &m->mutex);
    if (m->stop) return NULL;
    constraint *c = LIST_ENTRY(m->queue.next, constraint, queued);
    list_remove(&c->queued);
    c->running = true;
    return c;
}

/* The lock is held. */
static void free_closed(masks *m, constraint *c) {
    if (atomic_load_explicit(&c->state, memory_order_relaxed) == CONSTRAINT_ASKED)
        atomic_fetch_sub_explicit(&m->n_open, 1, memory_order_release);
    pthread_mutex_unlock(&m->mutex);
    constraint_destroy(c);
    pthread_mutex_lock(&m->mutex);
    m->n_closing--;
    pthread_cond_broadcast(&m->to_engine);
}

/* The lock is held, but not while this answers. */
static void answer(masks *m, constraint *c) {
    pthread_mutex_unlock(&m->mutex);
    constraint_work(c);
    pthread_mutex_lock(&m->mutex);
    c->running = false;
    if (c->closing) {
        free_closed(m, c);
        return;
    }
    atomic_store_explicit(&c->state, CONSTRAINT_DONE, memory_order_release);
    atomic_fetch_sub_explicit(&m->n_open, 1, memory_order_release);
    if (!m->tells || m->options.answered == NULL) return;
    pthread_mutex_unlock(&m->mutex);
    m->options.answered(m->options.ctx);
    pthread_mutex_lock(&m->mutex);
}

static void *work(void *arg) {
    masks *m = arg;
    if (m->options.begin != NULL) m->options.begin(m->options.ctx);
    pthread_mutex_lock(&m->mutex);
    for (constraint *c; (c = next_of_queue(m)) != NULL;)
        if (c->closing)
            free_closed(m, c);
        else
            answer(m, c);
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
    atomic_fetch_add_explicit(&m->n_open, 1, memory_order_relaxed);
    pthread_mutex_lock(&m->mutex);
    list_push_back(&m->queue, &c->queued);
    pthread_cond_signal(&m->to_workers);
    pthread_mutex_unlock(&m->mutex);
}

/* By a worker: the machine may be locked for the mask of another sequence. */
static void close_one(void *ctx, constraint *c) {
    masks *m = ctx;
    if (m->n_threads == 0 || m->halted) {
        list_remove(&c->queued);
        constraint_destroy(c);
        return;
    }
    pthread_mutex_lock(&m->mutex);
    c->closing = true;
    m->n_closing++;
    if (!c->running && !list_linked(&c->queued)) list_push_back(&m->queue, &c->queued);
    pthread_cond_signal(&m->to_workers);
    pthread_mutex_unlock(&m->mutex);
}

static void settle(void *ctx) {
    masks *m = ctx;
    pthread_mutex_lock(&m->mutex);
    while (m->n_closing > 0) pthread_cond_wait(&m->to_engine, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

/* The engine's thread has nothing else to do meanwhile, and to be woken takes longer than most
 * answers. */
bool masks_await(masks *m, uint64_t most_us) {
    if (atomic_load_explicit(&m->n_open, memory_order_acquire) == 0) return true;
    uint64_t until_us = clock_now_us() + most_us;
    bool all = false;
    while (!all && clock_now_us() < until_us) {
        sched_yield();
        all = atomic_load_explicit(&m->n_open, memory_order_acquire) == 0;
    }
    pthread_mutex_lock(&m->mutex); // under which answers are counted
    all = atomic_load_explicit(&m->n_open, memory_order_relaxed) == 0;
    m->tells = !all;
    pthread_mutex_unlock(&m->mutex);
    return all;
}

void masks_halt(masks *m) {
    if (m == NULL || m->halted) return;
    pthread_mutex_lock(&m->mutex);
    m->stop = true;
    pthread_cond_broadcast(&m->to_workers);
    pthread_mutex_unlock(&m->mutex);
    for (uint32_t i = 0; i < m->n_threads; i++) pthread_join(m->threads[i], NULL);
    m->halted = true;
    LIST_EACH_SAFE(node, next, &m->queue) {
        constraint *c = LIST_ENTRY(node, constraint, queued);
        list_remove(&c->queued);
        if (c->closing) constraint_destroy(c); // the others will be closed
    }
    m->n_closing = 0;
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
