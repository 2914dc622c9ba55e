/* curl_loop.h - libcurl's transfers on a libuv loop.
 *
 * libcurl reports the sockets it waits for and the time of its next timeout; libuv watches both.
 * The cost per wake-up depends on the number of ready sockets, not on the total number, so one
 * thread can handle thousands of streams.
 *
 *     curl_loop_init -> curl_multi_add_handle(l->multi, ...) ... on_done ... -> curl_loop_deinit
 *
 * on_done is called outside of libcurl's own callbacks, so it may remove, reuse and add handles.
 * Thread: the loop's. */
#ifndef BENCH_CURL_LOOP_H
#define BENCH_CURL_LOOP_H

#include <curl/curl.h>
#include <uv.h>

#include "inferd/status.h"

typedef struct curl_loop {
    uv_loop_t *uv; // borrowed
    CURLM *multi;  // owned
    uv_timer_t timer;
    void (*on_done)(void *ctx, CURL *easy, CURLcode code);
    void (*on_idle)(void *ctx); // after each round of on_done calls
    void *ctx;
    inferd_err err; // the first failure; the loop is unusable after it
} curl_loop;

inferd_status curl_loop_init(curl_loop *l, uv_loop_t *uv, long n_connections_kept, inferd_err *err);
/* Closes connections and handles; the loop must run once more.  No transfer may be active. */
void curl_loop_deinit(curl_loop *l);

#endif
