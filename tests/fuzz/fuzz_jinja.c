/* Any bytes as a template and its variables: "source NUL json".  Whatever they are, opening and
 * rendering end soon, within their limits, and what comes out is covered by its spans, each of the
 * template, of a message, or of other variables. */
#include "models/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_spans(const chat_text *t, json_t *vars) {
    size_t n_messages = json_array_size(json_object_get(vars, "messages")), covered = 0;
    for (size_t i = 0; i < t->n_spans; i++) {
        uint32_t message = t->messages[i];
        INFERD_CHECK(message == CHAT_NO_MESSAGE || message < n_messages);
        INFERD_CHECK(message == CHAT_NO_MESSAGE || !t->spans[i].specials);
        INFERD_CHECK(t->spans[i].n > 0);
        covered += t->spans[i].n;
    }
    INFERD_CHECK(covered == t->n);
    uint32_t first = chat_text_message_at(t, 0);
    INFERD_CHECK(first == CHAT_NO_MESSAGE || first < n_messages);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const chat_limits limits = {
        .source_bytes_max = 1 << 16,
        .steps_max = 50000,
        .depth_max = 16,
        .output_bytes_max = 1 << 18,
        .memory_bytes_max = 4 << 20,
    };
    static const struct tm now = {.tm_mday = 15, .tm_year = 126, .tm_hour = 9};
    const uint8_t *nul = n == 0 ? NULL : memchr(data, 0, n);
    size_t n_source = nul == NULL ? n : (size_t)(nul - data);
    json_error_t error;
    json_t *vars =
        nul == NULL ? NULL : json_loadb((const char *)nul + 1, n - n_source - 1, 0, &error);
    chat_template *t;
    chat_text text;
    inferd_err err = {0};
    if (chat_template_open((bytes){(const char *)data, n_source}, &limits, &t, &err) == INFERD_OK) {
        if (chat_template_render(t, vars, vars, &now, &text, &err) == INFERD_OK) {
            check_spans(&text, vars);
            INFERD_CHECK(text.n <= limits.output_bytes_max);
            chat_text_deinit(&text);
        } else {
            INFERD_CHECK(err.status != INFERD_OK && err.text[0] != 0);
        }
        chat_template_close(t);
    }
    json_decref(vars);
    return 0;
}
