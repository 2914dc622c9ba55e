/* api_completions.c - POST /v1/completions: the text as it is, without a template.
 *
 * The worker reads (api_prepare), the front submits (generation_launch), events do the rest. */
#include "api.h"
#include "generation.h"

void api_completions(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_COMPLETION, api_prepare, generation_launch);
}
