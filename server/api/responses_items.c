/* responses_items.c - see responses.h: input items become messages.
 *
 * Texts of one turn are separated by an empty line.  Instructions, and developer items before the
 * first turn, are the system message.  Items of other types than are known are left out and named:
 * clients send ever new ones. */
#include "custom_tool.h"
#include "json_in.h"
#include "response_store.h"
#include "responses.h"

/* ---- texts ---- */

static const form_part parts[] = {{"input_text", "text"},     {"output_text", "text"},
                                  {"text", "text"},           {"refusal", "refusal"},
                                  {"reasoning_text", "text"}, {"summary_text", "text"}};
static const form_parts of_messages = {parts, INFERD_COUNT(parts), NULL};
static const form_parts of_others = {parts, INFERD_COUNT(parts), "input.content"};

static bool read_message(form_reader *r, json_t *item) {
    turn_role role = form_read_role(r, item, "user, assistant, system, developer");
    return role != TURN_NONE && form_read_text(r, given(item, "content"), "content", &of_messages,
                                               turns_text(&r->turns, role));
}

/* Reasoning belongs to the text and the calls behind it. */
static bool read_reasoning(form_reader *r, json_t *item) {
    enum { MARK_BYTES = sizeof RESPONSES_REASONING_MARK - 1 };
    json_t *content = given(item, "content"), *summary = given(item, "summary");
    bytes kept = string_of(given(item, "encrypted_content"));
    bool ours = kept.n > MARK_BYTES && memcmp(kept.p, RESPONSES_REASONING_MARK, MARK_BYTES) == 0;
    if (json_array_size(content) > 0)
        return form_read_text(r, content, "content", &of_others, turns_reasoning(&r->turns));
    if (ours) buf_add(turns_reasoning(&r->turns), kept.p + MARK_BYTES, kept.n - MARK_BYTES);
    if (ours || json_array_size(summary) == 0) return true;
    return form_read_text(r, summary, "summary", &of_others, turns_reasoning(&r->turns));
}

/* ---- calls and their results ---- */

static bool read_call(form_reader *r, json_t *item) {
    bool custom = is(given(item, "type"), "custom_tool_call");
    const char *member = custom ? "input" : "arguments";
    if (!form_need_string(r, item, "name") || !form_need_string(r, item, member) ||
        !form_need_string(r, item, "call_id"))
        return false;
    json_t *said = given(item, member);
    json_t *arguments = custom ? custom_tool_arguments(said) : json_incref(said);
    r->no_memory |= arguments == NULL;
    json_t *name = responses_function_name(r, given(item, "name"), given(item, "namespace"));
    turns_add_call(&r->turns, json_string_value(given(item, "call_id")), name, arguments);
    json_decref(name);
    return true;
}

static bool read_output(form_reader *r, json_t *item) {
    buf text = {0};
    bool ok = form_need_string(r, item, "call_id") &&
              form_read_text(r, given(item, "output"), "output", &of_others, &text) &&
              form_add_result(r, "call_id", json_string_value(given(item, "call_id")),
                              blocks_bytes(&text));
    r->no_memory |= text.failed;
    buf_deinit(&text);
    return ok;
}

/* ---- items ---- */

static const struct {
    const char *type;
    bool (*read)(form_reader *r, json_t *item);
} items[] = {{"message", read_message},
             {"reasoning", read_reasoning},
             {"function_call", read_call},
             {"custom_tool_call", read_call},
             {"function_call_output", read_output},
             {"custom_tool_call_output", read_output},
             {"item_reference", NULL}};

static bool read_item(form_reader *r, json_t *item) {
    json_t *type = given(item, "type"), *id = given(item, "call_id");
    if (type == NULL && given(item, "role") != NULL) return read_message(r, item);
    if (!form_need_string(r, item, "type")) return false;
    for (size_t i = 0; i < INFERD_COUNT(items); i++)
        if (is(type, items[i].type))
            return items[i].read != NULL ? items[i].read(r, item)
                                         : form_unsupported(r, "type", "send the item itself");
    form_leave_out(r, "input", json_string_value(type));
    if (json_is_string(id)) turns_leave_out_call(&r->turns, json_string_value(id));
    return true;
}

/* The item is kept for the next response of the conversation. */
static bool read_and_keep(form_reader *r, json_t *item) {
    if (!response_draft_add(responses_form_of(r)->draft, item)) r->no_memory = true;
    return read_item(r, item);
}

/* ---- fields ---- */

bool responses_read_instructions(form_reader *r, json_t *v) {
    buf_add(turns_text(&r->turns, TURN_SYSTEM), json_string_value(v), json_string_length(v));
    return true;
}

bool responses_read_previous(form_reader *r, json_t *v) {
    json_t *list = NULL;
    bool ok =
        response_store_previous(responses_form_of(r)->host, json_string_value(v), &list, r->err) &&
        form_each(r, list, "previous_response_id", read_and_keep);
    json_decref(list);
    return ok;
}

bool responses_read_input(form_reader *r, json_t *v) {
    json_t *list =
        json_is_string(v) ? json_pack("[{s:s,s:O}]", "role", "user", "content", v) : json_incref(v);
    if (list == NULL) r->no_memory = true;
    bool ok = json_array_size(list) > 0
                  ? form_each(r, list, "input", read_and_keep)
                  : form_bad(r, "", v, "must be a string, or an array of items that is not empty");
    json_decref(list);
    turns_end(&r->turns);
    if (!ok || json_array_size(r->turns.messages) > 0) return ok;
    return api_fail(r->err, API_BAD_VALUE, "input", "\"input\" has no message");
}
