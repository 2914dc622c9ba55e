/* api_completions.c - POST /v1/completions: text as it is, no template.
 *
 * The worker reads (api_prepare), the front starts (flight_launch), events do the rest. */
#include "api.h"
#include "flight.h"

void api_completions(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_COMPLETION, api_prepare, flight_launch);
}
