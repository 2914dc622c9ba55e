/* messages_answer.c - answers of /v1/messages; see messages.h.
 *
 * A stream has an event for each step of a block (form_blocks.h); a whole answer has the blocks. An
 * empty answer has none. */
#include "messages.h"

/* ---- blocks ---- */

/* Of each kind: its start with an empty text, its delta, and the members with the text. */
static const struct {
    const char *begin, *delta, *delta_member, *member;
} kinds[BLOCK_KINDS] = {
    [BLOCK_TEXT] = {"{\"type\":\"text\"", "text_delta", "text", ",\"text\":"},
    [BLOCK_REASONING] = {"{\"type\":\"thinking\",\"signature\":\"\"", "thinking_delta", "thinking",
                         ",\"thinking\":"},
    [BLOCK_CALL] = {"{\"type\":\"tool_use\"", "input_json_delta", "partial_json", ",\"input\":"}};

/* Up to its text, or its input. */
static void begin_block(const form_blocks *b, buf *out) {
    buf_add_str(out, kinds[b->open].begin);
    if (b->open == BLOCK_CALL) {
        form_add_marked(out, ",\"id\":", MESSAGES_CALL_PREFIX, blocks_bytes(&b->id));
        form_add(out, ",\"name\":", blocks_bytes(&b->name));
    }
    buf_add_str(out, kinds[b->open].member);
}

static void open_event(messages_form *f, const char *type, buf *out) {
    form_event_open(out, type);
    buf_add_format(out, ",\"index\":%u", f->blocks.idx);
}

static void add_delta(messages_form *f, const char *type, const char *member, bytes text,
                      buf *out) {
    open_event(f, "content_block_delta", out);
    buf_add_format(out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, member);
    form_add(out, "", text);
    buf_add_char(out, '}');
    form_event_close(out);
}

static void opened(void *form, buf *out) {
    messages_form *f = form;
    open_event(f, "content_block_start", out);
    buf_add_str(out, ",\"content_block\":");
    begin_block(&f->blocks, out);
    buf_add_str(out, f->blocks.open == BLOCK_CALL ? "{}}" : "\"\"}");
    form_event_close(out);
}

static void more(void *form, bytes text, buf *out) {
    messages_form *f = form;
    add_delta(f, kinds[f->blocks.open].delta, kinds[f->blocks.open].delta_member, text, out);
}

static void closing(void *form, buf *out) {
    messages_form *f = form;
    if (out != NULL && f->blocks.open == BLOCK_REASONING) // clients keep it, and send it back
        add_delta(f, "signature_delta", "signature", (bytes){"", 0}, out);
}

/* The arguments of a call that was cut off are no object: it has no input then. */
static void add(void *form, buf *out) {
    messages_form *f = form;
    bytes text = blocks_bytes(&f->blocks.text);
    begin_block(&f->blocks, out);
    if (f->blocks.open != BLOCK_CALL)
        form_add(out, "", text);
    else if (f->blocks.cut || text.n == 0)
        buf_add_str(out, "{}");
    else
        buf_add(out, text.p, text.n);
    buf_add_char(out, '}');
}

static void closed(void *form, bytes block, buf *out) {
    (void)block;
    open_event(form, "content_block_stop", out);
    form_event_close(out);
}

static const block_writer writer = {opened, more, closing, add, closed};

static void on_part(answer_form *form, const message_part *p, buf *out) {
    messages_form *f = (messages_form *)form;
    f->blocks.discards = form->streaming;
    blocks_part(&f->blocks, &writer, f, p, out);
}

/* ---- the whole ---- */

static void add_usage(buf *out, const answer_usage *u) {
    uint64_t n_cached = u->n_cached < u->n_prompt ? u->n_cached : u->n_prompt;
    buf_add_format(out,
                   ",\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                   "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu,"
                   "\"output_tokens_details\":{\"thinking_tokens\":%llu}}",
                   (unsigned long long)(u->n_prompt - n_cached), (unsigned long long)n_cached,
                   (unsigned long long)u->n_output, (unsigned long long)u->n_reasoning);
}

static void add_stop(buf *out, const answer_end *e) {
    const char *reason = e == NULL                              ? NULL
                         : e->stop_string.p != NULL             ? "stop_sequence"
                         : strcmp(e->finish, "tool_calls") == 0 ? "tool_use"
                         : strcmp(e->finish, "length") == 0     ? "max_tokens"
                                                                : "end_turn";
    if (reason == NULL)
        buf_add_str(out, "\"stop_reason\":null");
    else
        buf_add_format(out, "\"stop_reason\":\"%s\"", reason);
    if (e != NULL && e->stop_string.p != NULL)
        form_add(out, ",\"stop_sequence\":", e->stop_string);
    else
        buf_add_str(out, ",\"stop_sequence\":null");
}

/* e NULL: it begins. */
static void add_message(const messages_form *f, const answer_end *e, const answer_usage *u,
                        buf *out) {
    form_add_cstr(out, "{\"id\":", f->head->id);
    form_add_cstr(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":", f->head->model);
    buf_add_str(out, ",\"content\":[");
    if (e != NULL) buf_add(out, f->blocks.done.p, f->blocks.done.n);
    buf_add_str(out, "],");
    add_stop(out, e);
    add_usage(out, u);
    buf_add_char(out, '}');
}

static void on_begin(answer_form *form, const answer_head *head, const answer_usage *now,
                     buf *out) {
    messages_form *f = (messages_form *)form;
    f->head = head;
    if (out == NULL) return;
    form_event_open(out, "message_start");
    buf_add_str(out, ",\"message\":");
    add_message(f, NULL, now, out);
    form_event_close(out);
}

static void on_end(answer_form *form, const answer_end *e, buf *out) {
    messages_form *f = (messages_form *)form;
    bool cut = strcmp(e->finish, "length") == 0;
    blocks_close(&f->blocks, &writer, f, cut, form->streaming ? out : NULL);
    if (form->streaming) {
        form_event_open(out, "message_delta");
        buf_add_str(out, ",\"delta\":{");
        add_stop(out, e);
        buf_add_char(out, '}');
        add_usage(out, &e->usage);
        form_event_close(out);
        form_event_open(out, "message_stop");
        form_event_close(out);
    } else {
        add_message(f, e, &e->usage, out);
    }
    out->failed = out->failed || f->blocks.done.failed;
}

/* ---- errors ---- */

static const char *error_type(const http_error *e) {
    static const struct {
        int status;
        const char *type;
    } rows[] = {{401, "authentication_error"}, {403, "permission_error"},
                {404, "not_found_error"},      {408, "timeout_error"},
                {504, "timeout_error"},        {413, "request_too_large"},
                {429, "rate_limit_error"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        if (rows[i].status == e->status) return rows[i].type;
    /* A model or device that cannot serve now is no overload. */
    if (e->status == 503 && strcmp(e->type, "overloaded_error") == 0) return e->type;
    return e->status < 500 || e->status == 505 ? "invalid_request_error" : "api_error";
}

int messages_write_error(buf *out, const http_error *e) {
    const char *type = error_type(e);
    char message[API_PARAM_BYTES + API_MESSAGE_BYTES]; // the path has no member of its own
    bool named = e->param == NULL || strstr(e->message, e->param) != NULL;
    snprintf(message, sizeof message, "%s%s%s", named ? "" : e->param, named ? "" : ": ",
             e->message);
    form_add_cstr(out, "{\"type\":\"error\",\"error\":{\"type\":", type);
    form_add_cstr(out, ",\"message\":", message);
    if (e->param != NULL && strcmp(e->param, MESSAGES_THREAD) == 0)
        buf_add_str(out, ",\"details\":{\"error_code\":\"thread_unsupported_request\","
                         "\"unsupported\":[\"thread\"]}");
    if (e->request_id != NULL)
        form_add_cstr(out, "},\"request_id\":", e->request_id);
    else
        buf_add_str(out, "},\"request_id\":null");
    buf_add_char(out, '}');
    return strcmp(type, "overloaded_error") == 0 ? 529 : e->status;
}

static void on_fail(answer_form *form, const api_error *e, buf *out) {
    http_error error = {.status = e->status,
                        .type = e->type,
                        .param = e->param[0] != 0 ? e->param : NULL,
                        .message = e->message,
                        .request_id = ((messages_form *)form)->head->request_id};
    buf_add_str(out, "event: error\ndata: ");
    messages_write_error(out, &error);
    buf_add_str(out, "\n\n");
}

/* ---- the form ---- */

static void destroy(answer_form *form) {
    blocks_deinit(&((messages_form *)form)->blocks);
    free(form);
}

static bool read(json_t *body, const form_host *host, json_t **chat, answer_form **out,
                 unknown_fields *unknown, api_error *err) {
    return messages_read(body, host->text, false, chat, out, unknown, err);
}

const answer_form_type messages_form_type = {.id_prefix = "msg_",
                                             .read = read,
                                             .fields = &messages_fields,
                                             .begin = on_begin,
                                             .part = on_part,
                                             .end = on_end,
                                             .fail = on_fail,
                                             .destroy = destroy};
