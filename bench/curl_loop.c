/* curl_loop.c - see curl_loop.h. */
#include "curl_loop.h"

#include <stdlib.h>

/* One watched socket.  Freed by on_closed, which libuv calls one loop iteration after uv_close. */
typedef struct watch {
    uv_poll_t poll;
    curl_socket_t fd;
    curl_loop *loop;
} watch;

static void take_done(curl_loop *l) {
    CURLMsg *message;
    int n_left;
    while ((message = curl_multi_info_read(l->multi, &n_left)) != NULL) {
        if (message->msg != CURLMSG_DONE) continue;
        CURLcode code = message->data.result;
        l->on_done(l->ctx, message->easy_handle, code); // the message is gone after this
    }
    l->on_idle(l->ctx);
}

static void act(curl_loop *l, curl_socket_t fd, int events) {
    int n_running;
    CURLMcode code = curl_multi_socket_action(l->multi, fd, events, &n_running);
    if (code != CURLM_OK && l->err.status == INFERD_OK)
        inferd_fail(&l->err, INFERD_EIO, "libcurl: %s", curl_multi_strerror(code));
    take_done(l);
}

static void on_ready(uv_poll_t *poll, int status, int events) {
    watch *w = poll->data;
    int flags = 0;
    if (status < 0) flags = CURL_CSELECT_ERR;
    if (events & UV_READABLE) flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE) flags |= CURL_CSELECT_OUT;
    act(w->loop, w->fd, flags);
}

static void on_timer(uv_timer_t *timer) {
    act(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

static watch *watch_create(curl_loop *l, curl_socket_t fd) {
    watch *w = malloc(sizeof *w);
    if (w == NULL) return NULL;
    w->fd = fd;
    w->loop = l;
    w->poll.data = w;
    if (uv_poll_init_socket(l->uv, &w->poll, fd) == 0) return w;
    free(w);
    return NULL;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx) {
    (void)easy;
    curl_loop *l = ctx;
    watch *w = socket_ctx;
    if (what == CURL_POLL_REMOVE) {
        if (w == NULL) return 0;
        uv_poll_stop(&w->poll);
        uv_close((uv_handle_t *)&w->poll, on_closed);
        curl_multi_assign(l->multi, fd, NULL);
        return 0;
    }
    if (w == NULL) {
        w = watch_create(l, fd);
        if (w == NULL) {
            inferd_fail(&l->err, INFERD_ENOMEM, "cannot watch another socket");
            return -1;
        }
        curl_multi_assign(l->multi, fd, w);
    }
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    return uv_poll_start(&w->poll, events, on_ready) == 0 ? 0 : -1;
}

static int on_timeout(CURLM *multi, long timeout_ms, void *ctx) {
    (void)multi;
    curl_loop *l = ctx;
    if (timeout_ms < 0) {
        uv_timer_stop(&l->timer);
        return 0;
    }
    uv_update_time(l->uv); // the loop's time was set in its last iteration, maybe long ago
    uv_timer_start(&l->timer, on_timer, (uint64_t)timeout_ms, 0);
    return 0;
}

inferd_status curl_loop_init(curl_loop *l, uv_loop_t *uv, long n_connections_kept,
                             inferd_err *err) {
    l->uv = uv;
    l->err = (inferd_err){0};
    l->multi = curl_multi_init();
    if (l->multi == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for libcurl");
    uv_timer_init(uv, &l->timer);
    l->timer.data = l;
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, on_timeout);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, n_connections_kept);
    return INFERD_OK;
}

void curl_loop_deinit(curl_loop *l) {
    if (l->multi == NULL) return;
    uv_timer_stop(&l->timer);
    curl_multi_cleanup(l->multi); // calls on_socket and on_timeout for the sockets it closes
    l->multi = NULL;
    if (!uv_is_closing((uv_handle_t *)&l->timer)) uv_close((uv_handle_t *)&l->timer, NULL);
}
