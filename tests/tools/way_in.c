/* way_in.c - records which functions a request enters between its launch and the queue.
 *
 * Linked with the server and the scheduler compiled with -finstrument-functions.  Two stretches are
 * recorded, on the two threads that the request crosses, each as one line "> address" for an entry
 * and "<" for a return:
 *
 *     front    from the entry of WAY_IN_BEGIN until engine_submit has returned
 *     engine   from the entry of sched_submit until it has returned
 *
 * The file is named by INFERD_WAY_IN; without it nothing is recorded.  Only the first request
 * counts. Thread: any; a stretch is recorded by one thread at a time. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define QUIET __attribute__((no_instrument_function))

typedef struct stretch {
    void *begin, *end; // recorded from the entry of one to the return of the other
    atomic_int state;  // 0: to come, 1: under way, 2: over
} stretch;

void __cyg_profile_func_enter(void *fn, void *site) QUIET;
void __cyg_profile_func_exit(void *fn, void *site) QUIET;

static stretch stretches[2];
static atomic_bool ready;
static FILE *out;
static _Thread_local stretch *mine;

/* Functions of the program, by name: they are exported (-rdynamic). */
static void __attribute__((constructor)) QUIET open_file(void) {
    const char *path = getenv("INFERD_WAY_IN"), *begin = getenv("INFERD_WAY_IN_BEGIN");
    if (path == NULL || begin == NULL || (out = fopen(path, "we")) == NULL) return;
    stretches[0].begin = dlsym(RTLD_DEFAULT, begin);
    stretches[0].end = dlsym(RTLD_DEFAULT, "engine_submit");
    stretches[1].begin = stretches[1].end = dlsym(RTLD_DEFAULT, "sched_submit");
    for (int i = 0; i < 2; i++)
        if (stretches[i].begin == NULL || stretches[i].end == NULL) {
            fprintf(stderr, "way_in: a function that begins or ends stretch %d is not there\n", i);
            abort();
        }
    atomic_store(&ready, true);
}

void __cyg_profile_func_enter(void *fn, void *site) {
    (void)site;
    if (!atomic_load_explicit(&ready, memory_order_relaxed)) return;
    for (int i = 0; i < 2 && mine == NULL; i++) {
        int to_come = 0;
        if (fn == stretches[i].begin && (i == 0 || atomic_load(&stretches[i - 1].state) != 0) &&
            atomic_compare_exchange_strong(&stretches[i].state, &to_come, 1))
            mine = &stretches[i];
    }
    if (mine != NULL) fprintf(out, "%d > %p\n", (int)(mine - stretches), fn);
}

void __cyg_profile_func_exit(void *fn, void *site) {
    (void)site;
    if (mine == NULL) return;
    fprintf(out, "%d < %p\n", (int)(mine - stretches), fn);
    if (fn != mine->end) return;
    fflush(out);
    atomic_store(&mine->state, 2);
    mine = NULL;
}
