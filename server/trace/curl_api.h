/* curl_api.h - the functions of libcurl that traces use, loaded when traces are on.
 *
 * libcurl brings about thirty other libraries.  A daemon without traces does not load them: it
 * starts and is mapped as before, and runs where libcurl is not installed.
 * Thread: curl_api_get any; the functions as libcurl's manual says. */
#ifndef INFERD_CURL_API_H
#define INFERD_CURL_API_H

#include <curl/curl.h>

#include "inferd/status.h"

/* (result, name, parameters) of each function curl_NAME. */
#define CURL_FUNCTIONS(X)                                                                          \
    X(CURLcode, global_init, (long))                                                               \
    X(void, global_cleanup, (void))                                                                \
    X(CURL *, easy_init, (void))                                                                   \
    X(CURLcode, easy_setopt, (CURL *, CURLoption, ...))                                            \
    X(CURLcode, easy_getinfo, (CURL *, CURLINFO, ...))                                             \
    X(const char *, easy_strerror, (CURLcode))                                                     \
    X(void, easy_cleanup, (CURL *))                                                                \
    X(CURLM *, multi_init, (void))                                                                 \
    X(CURLMcode, multi_add_handle, (CURLM *, CURL *))                                              \
    X(CURLMcode, multi_remove_handle, (CURLM *, CURL *))                                           \
    X(CURLMcode, multi_perform, (CURLM *, int *))                                                  \
    X(CURLMcode, multi_poll, (CURLM *, struct curl_waitfd *, unsigned, int, int *))                \
    X(CURLMcode, multi_wakeup, (CURLM *))                                                          \
    X(CURLMsg *, multi_info_read, (CURLM *, int *))                                                \
    X(CURLMcode, multi_cleanup, (CURLM *))                                                         \
    X(struct curl_slist *, slist_append, (struct curl_slist *, const char *))                      \
    X(void, slist_free_all, (struct curl_slist *))                                                 \
    X(CURLU *, url, (void))                                                                        \
    X(CURLUcode, url_set, (CURLU *, CURLUPart, const char *, unsigned))                            \
    X(CURLUcode, url_get, (const CURLU *, CURLUPart, char **, unsigned))                           \
    X(void, url_cleanup, (CURLU *))                                                                \
    X(void, free, (void *))

/* Behind the name a macro of curl.h could stand: each member has an underscore. */
#define CURL_MEMBER(result, name, parameters) result(*name##_) parameters;
typedef struct curl_api {
    CURL_FUNCTIONS(CURL_MEMBER)
} curl_api;

/* Loads libcurl once, for good.  NULL: it is not installed, or too old; err says which. */
const curl_api *curl_api_get(inferd_err *err);

#endif
