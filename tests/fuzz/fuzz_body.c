/* fuzz_body.c - any bytes as the body of any route: accepted, or refused with a complete error.
 *
 * The first byte chooses the route.  What is accepted must hold the promises that the rest of the
 * server relies on; INFERD_CHECK makes a broken one a finding. */
#include <math.h>

#include "api_params.h"
#include "inferd/buf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const json_limits limits = {
    .depth_max = 64, .structural_max = 200000, .memory_max = 32u << 20};

static void check_refusal(const api_error *e) {
    INFERD_CHECK(e->fault != API_OK && e->status >= 400 && e->type != NULL);
    INFERD_CHECK(e->message[0] != 0 && memchr(e->message, 0, sizeof e->message) != NULL);
}

static void check_numbers(const api_params *p) {
    for (sampling_param i = 0; i < SAMPLING_PARAMS; i++) {
        const sampling_range *r = sampling_about(i);
        double v = p->sampling[i]; // NaN: not given
        INFERD_CHECK(isnan(v) || (v >= r->min && v <= r->max && !(r->above_min && v == r->min)));
    }
    INFERD_CHECK(p->n >= 1 && p->n <= API_N_MAX);
    INFERD_CHECK(p->n_logprobs >= -1 && p->n_logprobs <= API_TOP_MAX && p->min_tokens >= 0);
    INFERD_CHECK(p->max_tokens == API_UNSET ||
                 (p->max_tokens >= p->min_tokens && p->max_tokens <= INT32_MAX));
}

static void check_takes(const api_params *p) {
    api_error e = {0};
    size_t n;
    if (!api_params_check(p, 512, &e)) {
        check_refusal(&e);
        return;
    }
    stop_set *stops = api_take_stops(p);
    INFERD_CHECK(stop_set_n(stops) <= API_STOP_MAX);
    stop_set_destroy(stops);
    logit_bias *bias = api_take_bias(p, &n);
    for (size_t i = 0; bias != NULL && i < n; i++)
        INFERD_CHECK(bias[i].id >= 0 && bias[i].id < 512);
    free(bias);
    tok_id *ids = api_take_ids(p->stop_ids, &n);
    for (size_t i = 0; ids != NULL && i < n; i++) INFERD_CHECK(ids[i] < 512);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static bool ready;
    if (!ready) json_in_init();
    ready = true;
    if (n == 0) return 0;
    api_route route = (api_route)(1u << (data[0] & 3));
    api_params p;
    api_error e = {0};
    if (api_params_read(route, &limits, (bytes){(const char *)data + 1, n - 1}, &p, &e)) {
        INFERD_CHECK(e.fault == API_OK);
        if (route == API_CHAT || route == API_COMPLETION) check_numbers(&p);
        INFERD_CHECK(route != API_CHAT || json_array_size(p.messages) > 0);
        check_takes(&p);
    } else {
        check_refusal(&e);
    }
    buf body = {0};
    if (e.fault != API_OK) api_error_add(&body, &e);
    buf_deinit(&body);
    api_params_deinit(&p);
    return 0;
}
