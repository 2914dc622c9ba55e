/* masks.c - see masks.h. */
#include "masks.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "inferd/clock.h"

enum { SLOW_US = 5000 }; // an answer that took longer: the next one may take as long

typedef enum queue_kind { QUICK, SLOW, QUEUES } queue_kind;

struct masks {
    masks_options options;
    pthread_t threads[MASKS_THREADS_MAX];
    uint32_t n_threads; // running; the engine's, which changes it under the lock
    bool started, halted;

    atomic_uint n_open; // questions without an answer
    pthread_mutex_t mutex;
    pthread_cond_t to_workers, to_engine;
    list_node queues[QUEUES]; // constraints by `queued`
    uint32_t n_begun;         // threads
    uint32_t n_closing;       // closed, and not freed yet
    bool tells;               // the engine waited in vain
    bool stop;
};

inferd_status masks_create(const masks_options *options, masks **out, inferd_err *err) {
    masks *m = calloc(1, sizeof *m);
    if (m == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for threads of masks");
    m->options = *options;
    for (int i = 0; i < QUEUES; i++) list_node_init(&m->queues[i]);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->to_workers, NULL);
    pthread_cond_init(&m->to_engine, NULL);
    *out = m;
    return INFERD_OK;
}

/* ---- workers ---- */

/* A first mask may take seconds, and to free a grammar may wait for its machine, which makes a mask
 * for another sequence.  The lock is held, or the constraint is the engine's. */
static queue_kind kind_of(const constraint *c) {
    return c->closing || c->pos == 0 || c->took_us > SLOW_US ? SLOW : QUICK;
}

/* The lock is held. */
static void enqueue(masks *m, constraint *c, queue_kind kind) {
    list_push_back(&m->queues[kind], &c->queued);
    pthread_cond_broadcast(&m->to_workers); // not every worker takes every kind
}

/* Takes the next one; NULL: the thread ends.  The first worker, if there are others, leaves slow
 * ones to them: quick ones wait for no slow one.  The lock is held. */
static constraint *take_next(masks *m, bool first) {
    while (!m->stop) {
        for (int i = 0; i < (first && m->n_threads > 1 ? SLOW : QUEUES); i++) {
            if (list_empty(&m->queues[i])) continue;
            constraint *c = LIST_ENTRY(m->queues[i].next, constraint, queued);
            list_remove(&c->queued);
            c->running = true;
            return c;
        }
        pthread_cond_wait(&m->to_workers, &m->mutex);
    }
    return NULL;
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
    bool first = m->n_begun++ == 0;
    for (constraint *c; (c = take_next(m, first)) != NULL;)
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
    return u32_min(u32_max(n, MASKS_THREADS_MIN), MASKS_THREADS_MAX);
}

static void start_threads(masks *m) {
    m->started = true;
    for (uint32_t i = 0; i < threads_wanted(m); i++) {
        if (pthread_create(&m->threads[i], NULL, work, m) != 0) return;
        pthread_setname_np(m->threads[i], "inferd-masks");
        pthread_mutex_lock(&m->mutex);
        m->n_threads++;
        pthread_mutex_unlock(&m->mutex);
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
    enqueue(m, c, kind_of(c));
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
    if (!c->running) {
        list_remove(&c->queued); // its question, if it waits for a quick answer
        enqueue(m, c, kind_of(c));
    }
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
    for (int i = 0; i < QUEUES; i++)
        LIST_EACH_SAFE(node, next, &m->queues[i]) {
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
