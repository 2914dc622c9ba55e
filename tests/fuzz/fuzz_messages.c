/* fuzz_messages.c - any bytes as the body of /v1/messages: accepted, or refused with a complete
 * error, and never a crash of what checks the chat that it becomes.
 *
 * The first byte says whether tokens are only counted. */
#include "api_params.h"
#include "messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const json_limits limits = {
    .depth_max = 64, .structural_max = 200000, .memory_max = 32u << 20};

static void check_refusal(const api_error *e) {
    INFERD_CHECK(e->fault != API_OK && e->status >= 400 && e->message[0] != 0);
    buf body = {0};
    http_error h = {.status = e->status, .type = e->type, .message = e->message};
    INFERD_CHECK(messages_write_error(&body, &h) >= 400 && !body.failed);
    buf_deinit(&body);
}

/* A tool message without an id, or a chat without messages, cannot be rendered. */
static void check_chat(const api_params *p) {
    size_t i;
    json_t *m;
    INFERD_CHECK(json_array_size(p->messages) > 0);
    json_array_foreach(p->messages, i, m) {
        const char *role = json_string_value(json_object_get(m, "role"));
        bool tool = strcmp(role, "tool") == 0, assistant = strcmp(role, "assistant") == 0;
        INFERD_CHECK(!tool || json_is_string(json_object_get(m, "tool_call_id")));
        INFERD_CHECK(assistant || json_is_string(json_object_get(m, "content")));
        INFERD_CHECK(strcmp(role, "system") != 0 || i == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static bool ready;
    if (!ready) json_in_init();
    ready = true;
    if (n == 0) return 0;
    json_t *body = NULL, *chat = NULL;
    answer_form *f = NULL;
    unknown_fields unknown = {0};
    api_params p = {0};
    api_error e = {0};
    bytes text = {(const char *)data + 1, n - 1};
    if (api_params_parse(&limits, text, &body, &e) &&
        messages_read(body, text, data[0] & 1, &chat, &f, &unknown, &e) &&
        api_params_take(API_CHAT, chat, &p, &e)) {
        INFERD_CHECK(e.fault == API_OK);
        check_chat(&p);
    } else {
        form_locate(f, &e);
        check_refusal(&e);
    }
    answer_form_destroy(f);
    json_decref(body);
    api_params_deinit(&p);
    return 0;
}
