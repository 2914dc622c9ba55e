/* responses.c - see responses.h: the answer.
 *
 * A part of another kind than the item in progress closes that item and opens the next one:
 *
 *   open_item   output_item.added (content_part.added)
 *   part        a delta
 *   close_item  the whole text again (content_part.done), output_item.done; kept in `items`
 *
 * The input of a custom tool is a JSON string inside the arguments, so it is sent in one delta when
 * the call is complete. */
#include "responses.h"

#include <time.h>

#include "json_in.h"
#include "json_out.h"

static const char *const id_prefixes[ITEM_KINDS] = {
    [ITEM_REASONING] = "rs", [ITEM_MESSAGE] = "msg", [ITEM_FUNCTION] = "fc", [ITEM_CUSTOM] = "ctc"};

static void add(buf *out, const char *before, bytes text) {
    buf_add_str(out, before);
    json_add_string(out, text.p == NULL ? "" : text.p, text.n);
}

static void add_cstr(buf *out, const char *before, const char *text) {
    add(out, before, (bytes){text, strlen(text)});
}

static bytes text_of(const buf *b) {
    return (bytes){b->p == NULL ? "" : b->p, b->n};
}

/* ---- items ---- */

static void add_item_id(const responses_form *f, buf *out, const char *before) {
    char id[160];
    const char *of = strchr(f->head->id, '_');
    snprintf(id, sizeof id, "%s_%s_%u", id_prefixes[f->open], of == NULL ? f->head->id : of + 1,
             f->n_items);
    add_cstr(out, before, id);
}

/* Name and namespace of the client's tool. */
static void add_tool(const responses_form *f, buf *out) {
    json_t *tool = json_object_getn(f->names, text_of(&f->name).p, f->name.n);
    json_t *name = json_object_get(tool, "name"), *space = json_object_get(tool, "namespace");
    bytes plain = {json_string_value(name), json_string_length(name)};
    add(out, ",\"name\":", name == NULL ? text_of(&f->name) : plain);
    if (space == NULL) return;
    add(out, ",\"namespace\":", (bytes){json_string_value(space), json_string_length(space)});
}

static void add_content(const char *type, bytes text, buf *out) {
    add_cstr(out, "{\"type\":", type);
    add(out, ",\"text\":", text);
    if (strcmp(type, "output_text") == 0) buf_add_str(out, ",\"annotations\":[],\"logprobs\":[]");
    buf_add_char(out, '}');
}

static void add_encrypted(bytes text, buf *out) {
    buf marked = {0};
    buf_add_str(&marked, RESPONSES_REASONING_MARK);
    buf_add(&marked, text.p, text.n);
    add(out, ",\"encrypted_content\":", text_of(&marked));
    out->failed |= marked.failed;
    buf_deinit(&marked);
}

/* The item in progress; `begins`: without its content. */
static void add_item(const responses_form *f, bool begins, const char *status, buf *out) {
    bytes text = begins ? (bytes){"", 0} : text_of(&f->text);
    add_item_id(f, out, "{\"id\":");
    switch (f->open) {
    case ITEM_REASONING:
        buf_add_str(out, ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (!begins) add_content("reasoning_text", text, out);
        buf_add_char(out, ']');
        if (!begins && f->wants_encrypted) add_encrypted(text, out);
        break;
    case ITEM_MESSAGE:
        buf_add_str(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        if (!begins) add_content("output_text", text, out);
        buf_add_char(out, ']');
        break;
    case ITEM_FUNCTION:
    case ITEM_CUSTOM:
        add(out, ",\"call_id\":", text_of(&f->call_id));
        add_tool(f, out);
        bool custom = f->open == ITEM_CUSTOM;
        add_cstr(out, ",\"type\":", custom ? "custom_tool_call" : "function_call");
        add(out, custom ? ",\"input\":" : ",\"arguments\":", text);
        break;
    default:
        break;
    }
    if (f->open != ITEM_CUSTOM) add_cstr(out, ",\"status\":", status);
    buf_add_char(out, '}');
}

/* ---- events; out NULL: the answer is not streamed ---- */

static void begin_event(responses_form *f, const char *type, buf *out) {
    buf_add_format(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":", type, type);
    json_add_uint(out, f->n_events++);
}

static void end_event(buf *out) {
    buf_add_str(out, "}\n\n");
}

/* An event about the item in progress, up to its own members. */
static void begin_item_event(responses_form *f, const char *type, buf *out) {
    begin_event(f, type, out);
    if (f->open == ITEM_MESSAGE || f->open == ITEM_REASONING)
        buf_add_str(out, ",\"content_index\":0");
    add_item_id(f, out, ",\"item_id\":");
    buf_add_str(out, ",\"output_index\":");
    json_add_uint(out, f->n_items);
}

static void write_delta(responses_form *f, bytes text, buf *out) {
    static const char *const types[ITEM_KINDS] = {
        [ITEM_REASONING] = "response.reasoning_text.delta",
        [ITEM_MESSAGE] = "response.output_text.delta",
        [ITEM_FUNCTION] = "response.function_call_arguments.delta",
        [ITEM_CUSTOM] = "response.custom_tool_call_input.delta"};
    begin_item_event(f, types[f->open], out);
    add(out, ",\"delta\":", text);
    if (f->open == ITEM_MESSAGE) buf_add_str(out, ",\"logprobs\":[]");
    end_event(out);
}

static void write_part_event(responses_form *f, const char *type, bytes text, buf *out) {
    begin_item_event(f, type, out);
    buf_add_str(out, ",\"part\":");
    add_content("output_text", text, out);
    end_event(out);
}

/* The whole text of the item, behind its deltas. */
static void write_done(responses_form *f, buf *out) {
    static const struct {
        const char *type, *member;
    } rows[ITEM_KINDS] = {
        [ITEM_REASONING] = {"response.reasoning_text.done", ",\"text\":"},
        [ITEM_MESSAGE] = {"response.output_text.done", ",\"text\":"},
        [ITEM_FUNCTION] = {"response.function_call_arguments.done", ",\"arguments\":"},
        [ITEM_CUSTOM] = {"response.custom_tool_call_input.done", ",\"input\":"}};
    begin_item_event(f, rows[f->open].type, out);
    add(out, rows[f->open].member, text_of(&f->text));
    if (f->open == ITEM_MESSAGE) buf_add_str(out, ",\"logprobs\":[]");
    if (f->open == ITEM_FUNCTION) add(out, ",\"name\":", text_of(&f->name));
    end_event(out);
    if (f->open == ITEM_MESSAGE)
        write_part_event(f, "response.content_part.done", text_of(&f->text), out);
}

static void write_item_event(responses_form *f, const char *type, bytes item, buf *out) {
    begin_event(f, type, out);
    buf_add_str(out, ",\"output_index\":");
    json_add_uint(out, f->n_items);
    buf_add_str(out, ",\"item\":");
    buf_add(out, item.p, item.n);
    end_event(out);
}

/* ---- the item in progress ---- */

static void open_item(responses_form *f, item_kind kind, buf *out) {
    f->open = kind;
    buf_clear(&f->text);
    if (out == NULL) return;
    buf item = {0};
    add_item(f, true, "in_progress", &item);
    write_item_event(f, "response.output_item.added", text_of(&item), out);
    out->failed |= item.failed;
    buf_deinit(&item);
    if (kind == ITEM_MESSAGE)
        write_part_event(f, "response.content_part.added", (bytes){"", 0}, out);
}

/* NULL: the text is not JSON, because a limit cut it off. */
static json_t *arguments_of(responses_form *f) {
    json_t *v = NULL;
    if (json_in_parse(text_of(&f->text), &json_limits_default, &v, NULL) == INFERD_ENOMEM)
        f->text.failed = true;
    return v;
}

/* {"input": "..."} becomes the string; what a limit cut off stays as it is. */
static void unwrap_input(responses_form *f) {
    json_t *arguments = arguments_of(f), *input = json_object_get(arguments, "input");
    if (json_is_string(input)) {
        buf_clear(&f->text);
        buf_add(&f->text, json_string_value(input), json_string_length(input));
    }
    json_decref(arguments);
}

/* A call that a limit cut off ends, too. */
static bool is_whole(responses_form *f) {
    json_t *arguments = arguments_of(f);
    json_decref(arguments);
    return arguments != NULL || f->text.n == 0;
}

static void close_item(responses_form *f, const char *status, buf *out) {
    if (f->open == ITEM_NONE) return;
    if (f->open == ITEM_CUSTOM) unwrap_input(f);
    if (f->open == ITEM_CUSTOM && out != NULL) write_delta(f, text_of(&f->text), out);
    if (out != NULL) write_done(f, out);
    if (f->items.n > 0) buf_add_char(&f->items, ',');
    size_t from = f->items.n;
    add_item(f, false, status, &f->items);
    f->items.failed |= f->text.failed || f->call_id.failed || f->name.failed;
    bytes item = {text_of(&f->items).p + from, f->items.n - from};
    if (out != NULL) write_item_event(f, "response.output_item.done", item, out);
    if (out != NULL) out->failed |= f->items.failed;
    f->open = ITEM_NONE;
    f->n_items++;
}

static void open_call(responses_form *f, const message_part *p, buf *out) {
    buf_clear(&f->call_id);
    buf_add(&f->call_id, p->id.p, p->id.n);
    buf_clear(&f->name);
    buf_add(&f->name, p->name.p, p->name.n);
    json_t *tool = json_object_getn(f->names, text_of(&f->name).p, f->name.n);
    const char *type = json_string_value(json_object_get(tool, "type"));
    bool custom = type != NULL && strcmp(type, "custom") == 0;
    open_item(f, custom ? ITEM_CUSTOM : ITEM_FUNCTION, out);
}

static void part(answer_form *form, const message_part *p, buf *out) {
    responses_form *f = (responses_form *)form;
    item_kind kind = p->kind == PART_REASONING ? ITEM_REASONING : ITEM_MESSAGE;
    switch (p->kind) {
    case PART_CALL:
        close_item(f, "completed", out);
        open_call(f, p, out);
        return;
    case PART_CALL_END:
        close_item(f, is_whole(f) ? "completed" : "incomplete", out);
        return;
    case PART_ARGUMENTS:
        kind = f->open;
        break;
    default:
        if (f->open == kind) break;
        close_item(f, "completed", out);
        open_item(f, kind, out);
    }
    if (kind == ITEM_NONE || p->text.n == 0) return;
    buf_add(&f->text, p->text.p, p->text.n);
    if (out == NULL) return;
    if (kind != ITEM_CUSTOM) write_delta(f, p->text, out);
    out->failed |= f->text.failed;
}

/* ---- the response ---- */

static void add_usage(buf *out, const answer_usage *u) {
    buf_add_str(out, ",\"usage\":");
    if (u == NULL) {
        buf_add_str(out, "null");
        return;
    }
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
    const char *code = e->fault == API_TOO_LONG ? e->code
                       : e->status == 429       ? "rate_limit_exceeded"
                       : e->status < 500        ? "invalid_prompt"
                                                : "server_error";
    add_cstr(out, ",\"error\":{\"code\":", code);
    add_cstr(out, ",\"message\":", e->message);
    buf_add_char(out, '}');
}

static void add_response(const responses_form *f, const char *status, const answer_usage *u,
                         const api_error *e, buf *out) {
    bool cut = strcmp(status, "incomplete") == 0, completed = strcmp(status, "completed") == 0;
    add_cstr(out, "{\"id\":", f->head->id);
    buf_add_str(out, ",\"object\":\"response\",\"created_at\":");
    json_add_uint(out, (uint64_t)f->head->created);
    add_cstr(out, ",\"status\":", status);
    if (completed) buf_add_format(out, ",\"completed_at\":%lld", (long long)time(NULL));
    if (e != NULL)
        add_error(out, e);
    else
        buf_add_str(out, ",\"error\":null");
    buf_add_str(out, cut ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                         : ",\"incomplete_details\":null");
    add_cstr(out, ",\"model\":", f->head->model);
    add_cstr(out, ",\"service_tier\":", f->head->tier);
    buf_add_str(out, ",\"output\":[");
    if (!f->items.failed) buf_add(out, f->items.p, f->items.n);
    buf_add_str(out, "],\"background\":false,\"store\":false,\"previous_response_id\":null,"
                     "\"truncation\":\"disabled\"");
    add_usage(out, u);
    buf_add(out, f->echo.p, f->echo.n);
    buf_add_char(out, '}');
}

static void write_response(responses_form *f, const char *type, const char *status,
                           const answer_usage *u, const api_error *e, buf *out) {
    begin_event(f, type, out);
    buf_add_str(out, ",\"response\":");
    add_response(f, status, u, e, out);
    end_event(out);
}

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
    const char *status = cut ? "incomplete" : "completed";
    buf *events = form->streaming ? out : NULL;
    if (f->open == ITEM_NONE && f->n_items == 0) open_item(f, ITEM_MESSAGE, events);
    close_item(f, status, events);
    if (events == NULL)
        add_response(f, status, &e->usage, NULL, out);
    else
        write_response(f, cut ? "response.incomplete" : "response.completed", status, &e->usage,
                       NULL, out);
    out->failed |= f->items.failed;
}

static void fail(answer_form *form, const api_error *e, buf *out) {
    write_response((responses_form *)form, "response.failed", "failed", NULL, e, out);
}

static void destroy(answer_form *form) {
    responses_form *f = (responses_form *)form;
    buf_deinit(&f->echo);
    buf_deinit(&f->items);
    buf_deinit(&f->text);
    buf_deinit(&f->call_id);
    buf_deinit(&f->name);
    json_decref(f->names);
    json_decref(f->places);
    free(f);
}

const answer_form_type responses_form_type = {.id_prefix = "resp_",
                                              .read = responses_read,
                                              .locate = responses_locate,
                                              .begin = begin,
                                              .part = part,
                                              .end = end,
                                              .fail = fail,
                                              .destroy = destroy};
