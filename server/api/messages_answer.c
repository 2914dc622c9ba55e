/* messages_answer.c - answers of /v1/messages; see messages.h.
 *
 * Parts of the chat's message become blocks: a block is open until a part of another kind or a call
 * begins.  A stream has an event for each step; a whole answer collects the text of the open block
 * and adds the finished block to `content`.  An empty answer has no block. */
#include "json_in.h"
#include "json_out.h"
#include "messages.h"

typedef enum block_kind { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING, BLOCK_CALL } block_kind;

typedef struct form {
    answer_form base; // first
    const answer_head *head;
    block_kind open;
    uint32_t n_blocks;  // begun
    buf content, piece; // of a whole answer: blocks as JSON; text of the open one, behind `content`
} form;

static void add_bytes(buf *out, bytes s) {
    json_add_string(out, s.p == NULL ? "" : s.p, s.n);
}

static void add_text(buf *out, const char *s) {
    json_add_string(out, s, strlen(s));
}

static void add_usage(buf *out, const answer_usage *u) {
    uint64_t n_cached = u->n_cached < u->n_prompt ? u->n_cached : u->n_prompt;
    buf_add_format(out,
                   "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                   "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu,"
                   "\"output_tokens_details\":{\"thinking_tokens\":%llu}}",
                   (unsigned long long)(u->n_prompt - n_cached), (unsigned long long)n_cached,
                   (unsigned long long)u->n_output, (unsigned long long)u->n_reasoning);
}

/* Up to the blocks. */
static void add_head(buf *out, const form *f) {
    buf_add_str(out, "\"id\":");
    add_text(out, f->head->id);
    buf_add_str(out, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    add_text(out, f->head->model);
    buf_add_str(out, ",\"content\":[");
}

static void open_event(buf *out, const char *name) {
    buf_add_format(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void close_event(buf *out) {
    buf_add_str(out, "}\n\n");
}

static void open_block_event(buf *out, const form *f, const char *name) {
    open_event(out, name);
    buf_add_format(out, ",\"index\":%u", f->n_blocks - 1);
}

static void add_delta(buf *out, const form *f, const char *type, const char *member, bytes text) {
    open_block_event(out, f, "content_block_delta");
    buf_add_format(out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, member);
    add_bytes(out, text);
    buf_add_char(out, '}');
    close_event(out);
}

/* ---- blocks ---- */

/* The arguments of a call that was cut off are no object: it has no input then. */
static void add_input(buf *out, const buf *text) {
    json_t *v = NULL;
    inferd_status s = json_in_parse((bytes){text->p, text->n}, &json_limits_default, &v, NULL);
    if (s == INFERD_ENOMEM) out->failed = true;
    if (json_is_object(v))
        buf_add(out, text->p, text->n);
    else
        buf_add_str(out, "{}");
    json_decref(v);
}

/* The end of a block of a whole answer. */
static void add_rest(form *f) {
    bytes text = {f->piece.p, f->piece.n};
    f->content.failed = f->content.failed || f->piece.failed;
    if (f->open == BLOCK_CALL)
        add_input(&f->content, &f->piece);
    else
        add_bytes(&f->content, text);
    buf_add_char(&f->content, '}');
    buf_clear(&f->piece);
}

static void close_block(form *f, buf *out) {
    if (f->open == BLOCK_NONE) return;
    if (out == NULL) {
        add_rest(f);
    } else {
        if (f->open == BLOCK_THINKING) // clients keep it, and send it back
            add_delta(out, f, "signature_delta", "signature", (bytes){"", 0});
        open_block_event(out, f, "content_block_stop");
        close_event(out);
    }
    f->open = BLOCK_NONE;
}

/* The start of a block: up to the text in a whole answer, with an empty one in an event. */
static void open_block(form *f, block_kind kind, const message_part *p, buf *out) {
    close_block(f, out);
    buf *to = out == NULL ? &f->content : out;
    f->open = kind;
    f->n_blocks++;
    if (out != NULL) {
        open_block_event(out, f, "content_block_start");
        buf_add_str(out, ",\"content_block\":");
    } else if (f->n_blocks > 1) {
        buf_add_char(to, ',');
    }
    if (kind == BLOCK_TEXT) {
        buf_add_str(to, "{\"type\":\"text\",\"text\":");
    } else if (kind == BLOCK_THINKING) {
        buf_add_str(to, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
    } else {
        buf_add_str(to, "{\"type\":\"tool_use\",\"id\":\"" MESSAGES_CALL_PREFIX);
        size_t at = to->n; // the string goes on: the id is written without its opening quote
        add_bytes(to, p->id);
        if (!to->failed) memmove(to->p + at, to->p + at + 1, --to->n - at);
        buf_add_str(to, ",\"name\":");
        add_bytes(to, p->name);
        buf_add_str(to, ",\"input\":");
    }
    if (out == NULL) return;
    buf_add_str(out, kind == BLOCK_CALL ? "{}}" : "\"\"}");
    close_event(out);
}

static void on_part(answer_form *base, const message_part *p, buf *out) {
    static const struct {
        block_kind kind;
        const char *delta, *member;
    } rows[] = {[PART_REASONING] = {BLOCK_THINKING, "thinking_delta", "thinking"},
                [PART_CONTENT] = {BLOCK_TEXT, "text_delta", "text"},
                [PART_ARGUMENTS] = {BLOCK_CALL, "input_json_delta", "partial_json"}};
    form *f = (form *)base;
    if (p->kind == PART_CALL) open_block(f, BLOCK_CALL, p, out);
    if (p->kind == PART_CALL_END) close_block(f, out);
    if (p->kind == PART_CALL || p->kind == PART_CALL_END || p->text.n == 0) return;
    if (f->open != rows[p->kind].kind) open_block(f, rows[p->kind].kind, p, out);
    if (out != NULL)
        add_delta(out, f, rows[p->kind].delta, rows[p->kind].member, p->text);
    else
        buf_add(&f->piece, p->text.p, p->text.n);
}

/* ---- the whole ---- */

static void on_begin(answer_form *base, const answer_head *head, const answer_usage *now,
                     buf *out) {
    form *f = (form *)base;
    f->head = head;
    if (out == NULL) return;
    open_event(out, "message_start");
    buf_add_str(out, ",\"message\":{");
    add_head(out, f);
    buf_add_str(out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    add_usage(out, now);
    buf_add_char(out, '}');
    close_event(out);
}

static void add_stop(buf *out, const answer_end *e) {
    const char *reason = e->stop_string.p != NULL               ? "stop_sequence"
                         : strcmp(e->finish, "tool_calls") == 0 ? "tool_use"
                         : strcmp(e->finish, "length") == 0     ? "max_tokens"
                                                                : "end_turn";
    buf_add_format(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (e->stop_string.p != NULL)
        add_bytes(out, e->stop_string);
    else
        buf_add_str(out, "null");
}

static void on_end(answer_form *base, const answer_end *e, buf *out) {
    form *f = (form *)base;
    close_block(f, base->streaming ? out : NULL);
    if (base->streaming) {
        open_event(out, "message_delta");
        buf_add_str(out, ",\"delta\":{");
        add_stop(out, e);
        buf_add_str(out, "},");
        add_usage(out, &e->usage);
        close_event(out);
        open_event(out, "message_stop");
        close_event(out);
        return;
    }
    buf_add_char(out, '{');
    add_head(out, f);
    buf_add(out, f->content.p, f->content.n);
    buf_add_str(out, "],");
    add_stop(out, e);
    buf_add_char(out, ',');
    add_usage(out, &e->usage);
    buf_add_char(out, '}');
    out->failed = out->failed || f->content.failed;
}

/* ---- errors ---- */

static const char *error_type(const http_error *e) {
    switch (e->status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 408:
    case 504:
        return "timeout_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503: // a model or device that cannot serve now is no overload
        return strcmp(e->type, "overloaded_error") == 0 ? "overloaded_error" : "api_error";
    default:
        return e->status < 500 ? "invalid_request_error" : "api_error";
    }
}

int messages_write_error(buf *out, const http_error *e) {
    const char *type = error_type(e);
    bool overloaded = strcmp(type, "overloaded_error") == 0;
    buf_add_str(out, "{\"type\":\"error\",\"error\":{\"type\":");
    add_text(out, type);
    buf_add_str(out, ",\"message\":");
    add_text(out, e->message);
    if (e->param != NULL && strcmp(e->param, MESSAGES_THREAD) == 0)
        buf_add_str(out, ",\"details\":{\"error_code\":\"thread_unsupported_request\","
                         "\"unsupported\":[\"thread\"]}");
    buf_add_str(out, "},\"request_id\":");
    if (e->request_id != NULL)
        add_text(out, e->request_id);
    else
        buf_add_str(out, "null");
    buf_add_char(out, '}');
    return overloaded ? 529 : e->status;
}

static void on_fail(answer_form *base, const api_error *e, buf *out) {
    (void)base;
    buf_add_str(out, "event: error\ndata: ");
    messages_write_error(
        out, &(http_error){.status = e->status, .type = e->type, .message = e->message});
    buf_add_str(out, "\n\n");
}

/* ---- the form ---- */

static void destroy(answer_form *base) {
    form *f = (form *)base;
    buf_deinit(&f->content);
    buf_deinit(&f->piece);
    free(f);
}

answer_form *messages_form_create(void) {
    form *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->base.type = &messages_form;
    return &f->base;
}

static bool read(json_t *body, json_t **chat, answer_form **out, unknown_fields *unknown,
                 api_error *err) {
    *out = messages_form_create();
    if (*out == NULL) return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
    return messages_read(body, false, chat, unknown, err);
}

const answer_form_type messages_form = {.id_prefix = "msg_",
                                        .read = read,
                                        .begin = on_begin,
                                        .part = on_part,
                                        .end = on_end,
                                        .fail = on_fail,
                                        .destroy = destroy};
