/* form_turns.c - see form_turns.h. */
#include "form_turns.h"

void turns_deinit(form_turns *t) {
    buf_deinit(&t->text);
    buf_deinit(&t->reasoning);
    json_decref(t->calls);
    json_decref(t->results);
    json_decref(t->known);
    json_decref(t->place);
    t->calls = t->results = t->known = t->place = NULL;
}

static void set(form_turns *t, json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, value) != 0) t->no_memory = true;
}

static json_t *string_json(const buf *b) {
    return b->failed ? NULL : json_stringn(b->n > 0 ? b->p : "", b->n);
}

/* ---- the end of a turn ---- */

static json_t *add_message(form_turns *t, const char *role, json_t *content) {
    json_t *m = json_object();
    set(t, m, "role", json_string(role));
    set(t, m, "content", content);
    if (json_array_append_new(t->messages, m) != 0 ||
        (t->places != NULL && json_array_append(t->places, t->place) != 0)) {
        t->no_memory = true;
        return NULL;
    }
    return m;
}

static void end_assistant(form_turns *t) {
    bool silent = t->calls != NULL && !t->has_text;
    json_t *m = add_message(t, "assistant", silent ? json_null() : string_json(&t->text));
    if (t->reasoning.n > 0 || t->reasoning.failed)
        set(t, m, "reasoning_content", string_json(&t->reasoning));
    if (t->calls != NULL) set(t, m, "tool_calls", json_incref(t->calls));
    t->last_calls = json_object_get(m, "tool_calls"); // NULL without memory, too
}

static void end_result(form_turns *t, const char *id) {
    json_t *text = json_object_get(t->results, id);
    if (text == NULL) return;
    json_t *m = add_message(t, "tool", json_incref(text));
    set(t, m, "tool_call_id", json_string(id));
}

static void end_user(form_turns *t) {
    json_t *call, *text;
    const char *id;
    size_t i;
    bool any = json_object_size(t->results) > 0;
    json_array_foreach(t->last_calls, i, call) {
        id = json_string_value(json_object_get(call, "id"));
        if (id == NULL) continue;
        end_result(t, id);
        json_object_del(t->results, id);
    }
    json_object_foreach(t->results, id, text) end_result(t, id); // of earlier turns
    if (!any || t->text.n > 0 || t->text.failed) add_message(t, "user", string_json(&t->text));
}

void turns_end(form_turns *t) {
    if (t->role == TURN_ASSISTANT) end_assistant(t);
    if (t->role == TURN_USER) end_user(t);
    if (t->role == TURN_SYSTEM && (t->text.n > 0 || t->text.failed))
        add_message(t, "system", string_json(&t->text));
    json_decref(t->calls);
    json_decref(t->results);
    json_decref(t->place);
    t->calls = t->results = t->place = NULL;
    t->role = TURN_NONE;
    t->has_text = false;
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
}

/* ---- what goes into a turn ---- */

void turns_open(form_turns *t, turn_role role) {
    if (role == TURN_SYSTEM && t->system_over) role = TURN_USER;
    if (role == t->role) return;
    turns_end(t);
    t->role = role;
    if (t->places != NULL && (t->place = json_string(t->at)) == NULL) t->no_memory = true;
    t->system_over = t->system_over || role != TURN_SYSTEM;
}

buf *turns_text(form_turns *t, turn_role role) {
    turns_open(t, role);
    if (t->has_text) buf_add_str(&t->text, t->between[t->role]);
    t->has_text = true;
    return &t->text;
}

buf *turns_reasoning(form_turns *t) {
    turns_open(t, TURN_ASSISTANT);
    if (t->reasoning.n > 0) buf_add_str(&t->reasoning, t->between_thoughts);
    return &t->reasoning;
}

static void note_call(form_turns *t, const char *id, json_t *shown) {
    if (t->known == NULL) t->known = json_object();
    set(t, t->known, id, shown);
}

void turns_add_call(form_turns *t, const char *id, json_t *name, json_t *arguments) {
    json_t *function = json_object(), *call = json_object();
    turns_open(t, TURN_ASSISTANT);
    note_call(t, id, json_true());
    set(t, function, "name", json_incref(name));
    set(t, function, "arguments", arguments);
    set(t, call, "id", json_string(id));
    set(t, call, "type", json_string("function"));
    set(t, call, "function", function);
    if (t->calls == NULL) t->calls = json_array();
    if (json_array_append_new(t->calls, call) != 0) t->no_memory = true;
}

void turns_leave_out_call(form_turns *t, const char *id) {
    if (json_object_get(t->known, id) == NULL) note_call(t, id, json_false());
}

turn_result turns_add_result(form_turns *t, const char *id, bytes text) {
    json_t *shown = json_object_get(t->known, id);
    if (t->no_memory) return RESULT_LEFT_OUT; // the calls may be incomplete
    if (shown == NULL) return RESULT_UNKNOWN;
    if (json_is_false(shown)) return RESULT_LEFT_OUT;
    turns_open(t, TURN_USER);
    if (json_object_get(t->results, id) != NULL) return RESULT_AGAIN;
    if (t->results == NULL) t->results = json_object();
    set(t, t->results, id, json_stringn(text.n > 0 ? text.p : "", text.n));
    return RESULT_ADDED;
}
