/* curl_api.c - see curl_api.h. */
#include "curl_api.h"

#include <dlfcn.h>
#include <pthread.h>

#include "inferd/base.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static curl_api api;
static inferd_err problem;

static void load(void) {
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        inferd_fail(&problem, INFERD_ENOTFOUND, "libcurl is needed (Debian: libcurl4): %s",
                    dlerror());
        return;
    }
#define CURL_LOAD(result, name, parameters)                                                        \
    *(void **)&api.name##_ = dlsym(library, "curl_" #name);                                        \
    if (api.name##_ == NULL && problem.status == INFERD_OK)                                        \
        inferd_fail(&problem, INFERD_EUNSUPPORTED,                                                 \
                    "libcurl has no curl_" #name ": it is older than 7.87");
    CURL_FUNCTIONS(CURL_LOAD)
}

const curl_api *curl_api_get(inferd_err *err) {
    pthread_once(&once, load);
    if (problem.status == INFERD_OK) return &api;
    *err = problem;
    return NULL;
}
