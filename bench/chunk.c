/* chunk.c - see chunk.h. */
#include "chunk.h"

#include <jansson.h>
#include <string.h>

static bool has_text(json_t *value) {
    return json_string_length(value) > 0;
}

static void copy_text(char *out, size_t out_bytes, json_t *value) {
    const char *text = json_string_value(value);
    if (text != NULL) snprintf(out, out_bytes, "%s", text);
}

static void text_read(buf *text, json_t *value) {
    if (json_is_string(value)) buf_add(text, json_string_value(value), json_string_length(value));
}

static void choice_read(chunk *out, json_t *choice, buf *text) {
    static const char *const DELTAS[] = {"content", "reasoning_content", "reasoning", "refusal"};
    if (has_text(json_object_get(choice, "text"))) out->has_text = true;
    json_t *delta = json_object_get(choice, "delta");
    if (text != NULL) text_read(text, json_object_get(choice, "text"));
    if (text != NULL) text_read(text, json_object_get(delta, "content"));
    for (size_t i = 0; i < INFERD_COUNT(DELTAS); i++)
        if (has_text(json_object_get(delta, DELTAS[i]))) out->has_text = true;
    if (json_array_size(json_object_get(delta, "tool_calls")) > 0) out->has_text = true;
    copy_text(out->finish, sizeof out->finish, json_object_get(choice, "finish_reason"));
}

static void usage_read(chunk *out, json_t *usage) {
    json_t *n_prompt = json_object_get(usage, "prompt_tokens");
    json_t *n_output = json_object_get(usage, "completion_tokens");
    if (!json_is_integer(n_prompt) || !json_is_integer(n_output)) return;
    json_t *cached =
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    out->has_usage = true;
    out->n_prompt = json_integer_value(n_prompt);
    out->n_output = json_integer_value(n_output);
    out->n_cached = json_is_integer(cached) ? json_integer_value(cached) : -1;
    json_t *details = json_object_get(usage, "inferd");
    json_t *queued = json_object_get(details, "queued_ms");
    if (json_is_integer(queued)) out->queued_ms = json_integer_value(queued);
    json_t *steps = json_object_get(details, "queued_steps");
    if (json_is_integer(steps)) out->queued_steps = json_integer_value(steps);
}

/* Servers use different shapes: an object, a string, or the members at the top level. */
static void error_read(chunk *out, json_t *error) {
    out->is_error = true;
    snprintf(out->error_code, sizeof out->error_code, "unnamed");
    if (json_is_string(error)) {
        copy_text(out->error_text, sizeof out->error_text, error);
        return;
    }
    copy_text(out->error_text, sizeof out->error_text, json_object_get(error, "message"));
    copy_text(out->error_code, sizeof out->error_code, json_object_get(error, "type"));
    json_t *code = json_object_get(error, "code");
    copy_text(out->error_code, sizeof out->error_code, code);
    if (json_is_integer(code))
        snprintf(out->error_code, sizeof out->error_code, "%lld",
                 (long long)json_integer_value(code));
}

inferd_status chunk_parse(chunk *out, const char *data, size_t n, inferd_err *err) {
    return chunk_parse_text(out, data, n, NULL, err);
}

inferd_status chunk_parse_text(chunk *out, const char *data, size_t n, buf *text, inferd_err *err) {
    *out = (chunk){.n_cached = -1, .queued_ms = -1, .queued_steps = -1};
    json_error_t at; // (a text may hold the byte 0)
    json_t *root = json_loadb(data, n, JSON_ALLOW_NUL, &at);
    if (!json_is_object(root)) {
        json_decref(root);
        return inferd_fail(err, INFERD_EFORMAT, "event \"%.60s\" is no JSON object", data);
    }
    json_t *error = json_object_get(root, "error");
    if (error != NULL && !json_is_null(error)) error_read(out, error);
    json_t *choices = json_object_get(root, "choices");
    for (size_t i = 0; i < json_array_size(choices); i++)
        choice_read(out, json_array_get(choices, i), text);
    usage_read(out, json_object_get(root, "usage"));
    json_decref(root);
    return INFERD_OK;
}

void chunk_parse_error(chunk *out, const char *body, size_t n) {
    *out = (chunk){.n_cached = -1, .queued_ms = -1, .queued_steps = -1};
    json_t *root = json_loadb(body, n, 0, NULL);
    json_t *error = json_object_get(root, "error");
    if (error != NULL)
        error_read(out, error);
    else if (json_object_get(root, "message") != NULL)
        error_read(out, root);
    else
        snprintf(out->error_text, sizeof out->error_text, "%.*s", (int)size_min(n, 120), body);
    json_decref(root);
}
