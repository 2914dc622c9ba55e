/* responses.c - see responses.h: the answer.
 *
 * A block of the answer (form_blocks.h) is an item:
 *
 *   opened   output_item.added (content_part.added)
 *   more     a delta
 *   closed   the whole text again (content_part.done), output_item.done
 *
 * The input of a custom tool is a JSON string inside the arguments, so it is sent in one delta when
 * the call is complete. */
#include "responses.h"

#include <time.h>

#include "custom_tool.h"

static const struct item_about {
    const char *prefix, *type, *delta, *done;
    const char *member; // with the text
} reasoning_item = {"rs", "reasoning", "response.reasoning_text.delta",
                    "response.reasoning_text.done", ",\"text\":"},
  message_item = {"msg", "message", "response.output_text.delta", "response.output_text.done",
                  ",\"text\":"},
  function_item = {"fc", "function_call", "response.function_call_arguments.delta",
                   "response.function_call_arguments.done", ",\"arguments\":"},
  custom_item = {"ctc", "custom_tool_call", "response.custom_tool_call_input.delta",
                 "response.custom_tool_call_input.done", ",\"input\":"};

/* ---- items ---- */

/* The client's tool that the open call names; NULL: it is none of the request. */
static json_t *tool_of(const responses_form *f) {
    bytes name = blocks_bytes(&f->blocks.name);
    return json_object_getn(f->names, name.p, name.n);
}

static const struct item_about *about(const responses_form *f) {
    if (f->blocks.open == BLOCK_REASONING) return &reasoning_item;
    if (f->blocks.open == BLOCK_TEXT) return &message_item;
    return is(json_object_get(tool_of(f), "type"), "custom") ? &custom_item : &function_item;
}

static void add_item_id(const responses_form *f, buf *out, const char *before) {
    char id[160];
    const char *of = strchr(f->head->id, '_');
    snprintf(id, sizeof id, "%s_%s_%u", about(f)->prefix, of == NULL ? f->head->id : of + 1,
             f->blocks.idx);
    form_add_cstr(out, before, id);
}

static void add_content(const char *type, bytes text, buf *out) {
    form_add_cstr(out, "{\"type\":", type);
    form_add(out, ",\"text\":", text);
    if (strcmp(type, "output_text") == 0) buf_add_str(out, ",\"annotations\":[],\"logprobs\":[]");
    buf_add_char(out, '}');
}

static void add_name(const responses_form *f, buf *out) {
    bytes name = string_of(json_object_get(tool_of(f), "name"));
    form_add(out, ",\"name\":", name.p == NULL ? blocks_bytes(&f->blocks.name) : name);
}

/* Name and namespace of the client's tool. */
static void add_call(const responses_form *f, bytes text, buf *out) {
    json_t *space = json_object_get(tool_of(f), "namespace");
    form_add(out, ",\"call_id\":", blocks_bytes(&f->blocks.id));
    add_name(f, out);
    if (space != NULL) form_add(out, ",\"namespace\":", string_of(space));
    form_add(out, about(f)->member, text);
}

/* The open item; while it begins, without its content. */
static void add_item(void *form, buf *out) {
    const responses_form *f = form;
    bool begins = f->blocks.begins;
    bytes text = blocks_bytes(&f->blocks.text);
    bool reasons = f->blocks.open == BLOCK_REASONING, calls = f->blocks.open == BLOCK_CALL;
    add_item_id(f, out, "{\"id\":");
    form_add_cstr(out, ",\"type\":", about(f)->type);
    if (calls) {
        add_call(f, text, out);
    } else {
        buf_add_str(out, reasons ? ",\"summary\":[],\"content\":["
                                 : ",\"role\":\"assistant\",\"content\":[");
        if (!begins) add_content(reasons ? "reasoning_text" : "output_text", text, out);
        buf_add_char(out, ']');
    }
    if (reasons && !begins && f->wants_encrypted)
        form_add_marked(out, ",\"encrypted_content\":", RESPONSES_REASONING_MARK, text);
    if (about(f) != &custom_item) // has none
        form_add_cstr(out, ",\"status\":",
                      begins          ? "in_progress"
                      : f->blocks.cut ? "incomplete"
                                      : "completed");
    buf_add_char(out, '}');
}

/* ---- events ---- */

static void begin_event(responses_form *f, const char *type, buf *out) {
    form_event_open(out, type);
    buf_add_format(out, ",\"sequence_number\":%llu", (unsigned long long)f->n_events++);
}

/* An event about the open item, up to its own members. */
static void begin_item_event(responses_form *f, const char *type, buf *out) {
    begin_event(f, type, out);
    if (f->blocks.open != BLOCK_CALL) buf_add_str(out, ",\"content_index\":0");
    add_item_id(f, out, ",\"item_id\":");
    buf_add_format(out, ",\"output_index\":%u", f->blocks.idx);
}

static void write_text(responses_form *f, const char *type, const char *member, bytes text,
                       buf *out) {
    begin_item_event(f, type, out);
    form_add(out, member, text);
    if (f->blocks.open == BLOCK_TEXT) buf_add_str(out, ",\"logprobs\":[]");
    if (type == function_item.done) add_name(f, out);
    form_event_close(out);
}

static void write_part(responses_form *f, const char *type, bytes text, buf *out) {
    if (f->blocks.open != BLOCK_TEXT) return;
    begin_item_event(f, type, out);
    buf_add_str(out, ",\"part\":");
    add_content("output_text", text, out);
    form_event_close(out);
}

/* item.p NULL: the open one, which begins. */
static void write_item(responses_form *f, const char *type, bytes item, buf *out) {
    begin_event(f, type, out);
    buf_add_format(out, ",\"output_index\":%u,\"item\":", f->blocks.idx);
    buf_add(out, item.p, item.n);
    if (item.p == NULL) add_item(f, out);
    form_event_close(out);
}

/* ---- steps of a block ---- */

static void opened(void *form, buf *out) {
    write_item(form, "response.output_item.added", (bytes){0}, out);
    write_part(form, "response.content_part.added", (bytes){"", 0}, out);
}

static void more(void *form, bytes text, buf *out) {
    const struct item_about *a = about(form);
    if (a != &custom_item) write_text(form, a->delta, ",\"delta\":", text, out);
}

static void closing(void *form, buf *out) {
    responses_form *f = form;
    const struct item_about *a = about(f);
    buf *text = &f->blocks.text;
    if (a == &custom_item) {
        custom_tool_unwrap(text); // text->failed has the failure
        if (out != NULL) write_text(f, a->delta, ",\"delta\":", blocks_bytes(text), out);
    }
    if (out == NULL) return;
    write_text(f, a->done, a->member, blocks_bytes(text), out);
    write_part(f, "response.content_part.done", blocks_bytes(text), out);
}

static void closed(void *form, bytes item, buf *out) {
    write_item(form, "response.output_item.done", item, out);
}

static const block_writer writer = {opened, more, closing, add_item, closed};

static void part(answer_form *form, const message_part *p, buf *out) {
    blocks_part(&((responses_form *)form)->blocks, &writer, form, p, out);
}

/* ---- the response ---- */

static void add_usage(buf *out, const answer_usage *u) {
    buf_add_str(out, u == NULL ? ",\"usage\":null" : ",\"usage\":");
    if (u == NULL) return;
    buf_add_format(out,
                   "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu,"
                   "\"cache_write_tokens\":0},\"output_tokens\":%llu,\"output_tokens_details\":{"
                   "\"reasoning_tokens\":%llu},\"total_tokens\":%llu}",
                   (unsigned long long)u->n_prompt, (unsigned long long)u->n_cached,
                   (unsigned long long)u->n_output, (unsigned long long)u->n_reasoning,
                   (unsigned long long)(u->n_prompt + u->n_output));
}

/* The codes of OpenAI for a response that failed are few. */
static void add_error(buf *out, const api_error *e) {
    if (e == NULL) buf_add_str(out, ",\"error\":null");
    if (e == NULL) return;
    const char *code = e->fault == API_TOO_LONG ? e->code
                       : e->status == 429       ? "rate_limit_exceeded"
                       : e->status < 500        ? "invalid_prompt"
                                                : "server_error";
    form_add_cstr(out, ",\"error\":{\"code\":", code);
    form_add_cstr(out, ",\"message\":", e->message);
    buf_add_char(out, '}');
}

static void add_response(const responses_form *f, const char *status, const answer_usage *u,
                         const api_error *e, buf *out) {
    bool cut = strcmp(status, "incomplete") == 0, completed = strcmp(status, "completed") == 0;
    form_add_cstr(out, "{\"id\":", f->head->id);
    buf_add_format(out, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\"",
                   (long long)f->head->created, status);
    if (completed) buf_add_format(out, ",\"completed_at\":%lld", (long long)time(NULL));
    add_error(out, e);
    buf_add_str(out, cut ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                         : ",\"incomplete_details\":null");
    form_add_cstr(out, ",\"model\":", f->head->model);
    form_add_cstr(out, ",\"service_tier\":", f->head->tier);
    buf_add_str(out, ",\"output\":[");
    if (e == NULL) // else they were sent, and may be long
        buf_add(out, f->blocks.done.p, f->blocks.done.n);
    buf_add_str(out, "],\"background\":false,\"truncation\":\"disabled\"");
    add_usage(out, u);
    buf_add_char(out, ',');
    buf_add(out, f->echo.p + 1, f->echo.n - 1); // its members and the brace at its end
}

/* The text of the response in it. */
static bytes write_response(responses_form *f, const char *type, const char *status,
                            const answer_usage *u, const api_error *e, buf *out) {
    if (type != NULL) {
        begin_event(f, type, out);
        buf_add_str(out, ",\"response\":");
    }
    size_t from = out->n;
    add_response(f, status, u, e, out);
    size_t n = out->n - from;
    if (type != NULL) form_event_close(out);
    return (bytes){blocks_bytes(out).p + from, n};
}

/* ---- the form ---- */

static void begin(answer_form *form, const answer_head *head, const answer_usage *now, buf *out) {
    responses_form *f = (responses_form *)form;
    (void)now;
    f->head = head;
    if (out == NULL) return;
    write_response(f, "response.created", "in_progress", NULL, NULL, out);
    write_response(f, "response.in_progress", "in_progress", NULL, NULL, out);
}

static void end(answer_form *form, const answer_end *e, buf *out) {
    responses_form *f = (responses_form *)form;
    bool cut = strcmp(e->finish, "length") == 0;
    const char *type = cut ? "response.incomplete" : "response.completed";
    buf *events = form->streaming ? out : NULL;
    if (f->blocks.open == BLOCK_NONE && f->blocks.idx == 0)
        blocks_open(&f->blocks, &writer, f, BLOCK_TEXT, events);
    blocks_close(&f->blocks, &writer, f, cut, events);
    bytes response = write_response(f, events == NULL ? NULL : type,
                                    cut ? "incomplete" : "completed", &e->usage, NULL, out);
    out->failed |= f->blocks.done.failed;
    if (!out->failed)
        response_draft_keep(f->draft, f->head->id, blocks_bytes(&f->blocks.done), response);
}

static void fail(answer_form *form, const api_error *e, buf *out) {
    write_response((responses_form *)form, "response.failed", "failed", NULL, e, out);
}

static void destroy(answer_form *form) {
    responses_form *f = (responses_form *)form;
    blocks_deinit(&f->blocks);
    buf_deinit(&f->echo);
    response_draft_destroy(f->draft);
    json_decref(f->names);
    json_decref(f->shown);
    free(f);
}

const answer_form_type responses_form_type = {.id_prefix = "resp_",
                                              .read = responses_read,
                                              .fields = &responses_fields,
                                              .begin = begin,
                                              .part = part,
                                              .end = end,
                                              .fail = fail,
                                              .destroy = destroy};
