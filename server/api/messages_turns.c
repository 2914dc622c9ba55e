/* messages_turns.c - the messages of a body of /v1/messages as those of a chat; see messages.h.
 *
 * Neighbours of one side are one turn, as Anthropic's server takes them (form_turns.h).  Texts are
 * joined by newlines, as chats join parts, so that a string and a list of one block are the same.
 */
#include <strings.h>

#include "media.h"
#include "messages.h"

static const form_part parts[] = {{"text", "text"},
                                  {"image"},
                                  {"document"},
                                  /* a tool that the client found for the model */
                                  {"tool_reference", "tool_name", "Tool ", " is available."}};
static const form_parts texts = {parts, INFERD_COUNT(parts), "messages.content"};

/* ---- blocks ---- */

static bool read_text(form_reader *r, json_t *block) {
    if (!form_need_string(r, block, "text")) return false;
    bytes text = string_of(given(block, "text"));
    buf_add(turns_text(&r->turns, ((messages_form *)r->form)->role), text.p, text.n);
    return true;
}

static bool read_thinking(form_reader *r, json_t *block) {
    if (!form_need_string(r, block, "thinking")) return false;
    bytes text = string_of(given(block, "thinking"));
    buf_add(turns_reasoning(&r->turns), text.p, text.n);
    return true;
}

static bool skip(form_reader *r, json_t *block) { // encrypted, or nothing
    (void)r, (void)block;
    return true;
}

/* The id as the chat has it. */
static const char *id_of(const json_t *block, const char *member) {
    const char *id = json_string_value(given(block, member));
    size_t n = strlen(MESSAGES_CALL_PREFIX);
    return id != NULL && strncmp(id, MESSAGES_CALL_PREFIX, n) == 0 ? id + n : id;
}

static bool read_call(form_reader *r, json_t *block) {
    json_t *input = given(block, "input");
    if (!form_need_string(r, block, "id") || !form_need_string(r, block, "name")) return false;
    if (!json_is_object(input)) return form_bad(r, "input", input, "must be an object");
    turns_add_call(&r->turns, id_of(block, "id"), given(block, "name"),
                   form_json_string(r, "input", input));
    return true;
}

/* The model sees no flag of an error, so the text says it. */
static void tell_error(buf *text) {
    buf told = {0};
    if (strncasecmp(buf_cstr(text), "error", strlen("error")) == 0) return;
    buf_add_str(&told, text->n > 0 ? "Error: " : "Error");
    buf_add(&told, text->p, text->n);
    told.failed = told.failed || text->failed;
    buf_deinit(text);
    *text = told;
}

static bool read_result(form_reader *r, json_t *block) {
    json_t *content = given(block, "content");
    buf text = {0};
    bool ok = form_need_string(r, block, "tool_use_id") &&
              (content == NULL || form_read_text(r, content, "content", &texts, &text));
    if (ok && json_is_true(given(block, "is_error"))) tell_error(&text);
    ok = ok && form_add_result(r, "tool_use_id", id_of(block, "tool_use_id"), blocks_bytes(&text));
    r->no_memory |= text.failed;
    buf_deinit(&text);
    return ok;
}

static bool read_block(form_reader *r, json_t *block) {
    enum { USER = 1 << TURN_USER, ASSISTANT = 1 << TURN_ASSISTANT };
    static const struct {
        const char *type;
        unsigned roles;
        bool (*read)(form_reader *r, json_t *block);
    } rows[] = {{"text", USER | ASSISTANT, read_text},  {"tool_use", ASSISTANT, read_call},
                {"tool_result", USER, read_result},     {"thinking", ASSISTANT, read_thinking},
                {"redacted_thinking", ASSISTANT, skip}, {"image", USER | ASSISTANT, NULL},
                {"document", USER | ASSISTANT, NULL}};
    json_t *type = given(block, "type");
    if (!form_need_string(r, block, "type")) return false;
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        if (!is(type, rows[i].type)) continue;
        if ((rows[i].roles >> ((messages_form *)r->form)->role & 1) == 0)
            return form_bad(r, "type", type, "is not a block of this role");
        if (rows[i].read != NULL) return rows[i].read(r, block);
        r->err->media = media_of_part(rows[i].type);
        return form_unsupported(r, "type", "the model reads only text, no image and no document");
    }
    form_leave_out(r, "messages.content", json_string_value(type));
    return true;
}

/* ---- messages ---- */

static bool read_message(form_reader *r, json_t *m) {
    json_t *content = given(m, "content");
    turn_role *reads = &((messages_form *)r->form)->role;
    *reads = form_read_role(r, m, "user, assistant, system");
    if (*reads == TURN_NONE) return false;
    if (*reads == TURN_SYSTEM || !json_is_array(content))
        return form_read_text(r, content, "content", &texts, turns_text(&r->turns, *reads));
    char path[API_PARAM_BYTES];
    snprintf(path, sizeof path, "%.64s.content", r->at);
    turns_open(&r->turns, *reads);
    return form_each(r, content, path, read_block);
}

bool messages_read_turns(form_reader *r, json_t *v) {
    if (json_array_size(v) == 0) return form_bad(r, "", v, "must not be empty");
    bool ok = form_each(r, v, "messages", read_message);
    turns_end(&r->turns);
    return ok;
}

/* A block of accounting, different in each conversation, is left out: the prefix of the prompt
 * would be different, too, and never be found in the cache. */
bool messages_read_system(form_reader *r, json_t *v) {
    static const char billing[] = "x-anthropic-billing-header:";
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        json_t *block = json_is_array(v) ? json_array_get(v, i) : v;
        bytes text = string_of(json_is_object(block) ? given(block, "text") : block);
        if (text.p == NULL)
            return form_bad(r, "", v, "must be a string or an array of blocks with a text");
        if (strncmp(text.p, billing, sizeof billing - 1) == 0) continue;
        buf_add(turns_text(&r->turns, TURN_SYSTEM), text.p, text.n);
    }
    return true;
}
