/* api_chat.c - POST /v1/chat/completions: a conversation, rendered by the model's template.
 *
 * The worker reads (api_prepare), the front submits (generation_launch), events do the rest. */
#include "api.h"
#include "generation.h"

void api_chat(void *ctx, http_request *rq) {
    api_start(ctx, rq, API_CHAT, api_prepare, generation_launch);
}
