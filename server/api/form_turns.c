/* form_turns.c - see form_turns.h. */
#include "form_turns.h"

#include <string.h>

void turns_deinit(form_turns *t) {
    buf_deinit(&t->text);
    buf_deinit(&t->reasoning);
    json_decref(t->calls);
    json_decref(t->results);
    json_decref(t->known);
    json_decref(t->place);
    json_decref(t->pieces);
    json_decref(t->result_places);
    t->calls = t->results = t->known = t->place = t->pieces = t->result_places = NULL;
}

static void set(form_turns *t, json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, value) != 0) t->no_memory = true;
}

static json_t *string_json(const buf *b) {
    return b->failed ? NULL : json_stringn(b->n > 0 ? b->p : "", b->n);
}

/* ---- where messages are from ---- */

/* The path of what is read, up to its first index: an item, a message, or a field. */
static json_t *place_now(const form_turns *t) {
    const char *end = strchr(t->at, ']');
    return json_stringn(t->at, end == NULL ? strlen(t->at) : (size_t)(end - t->at) + 1);
}

static json_t *make_piece(spot_part part, size_t at, json_t *place) {
    return json_pack("{s:i,s:I,s:O}", "part", (int)part, "at", (json_int_t)at, "place", place);
}

/* A piece of the turn begins here. */
static void add_piece(form_turns *t, spot_part part, size_t at) {
    if (t->places == NULL) return;
    json_t *place = place_now(t);
    const json_t *last = json_array_get(t->pieces, json_array_size(t->pieces) - 1);
    bool goes_on = json_integer_value(json_object_get(last, "part")) == (json_int_t)part &&
                   json_equal(json_object_get(last, "place"), place);
    if (t->pieces == NULL) t->pieces = json_array();
    if (!goes_on && json_array_append_new(t->pieces, make_piece(part, at, place)) != 0)
        t->no_memory = true;
    json_decref(place);
}

const char *turns_place(const json_t *places, size_t message_idx, spot at) {
    const json_t *pieces = json_array_get(places, message_idx), *found = NULL;
    json_t *piece;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)pieces, i, piece) {
        json_int_t part = json_integer_value(json_object_get(piece, "part"));
        json_int_t begin = json_integer_value(json_object_get(piece, "at"));
        bool before = part == (json_int_t)at.part && begin <= (json_int_t)at.at;
        if (found == NULL || before) found = piece;
    }
    return json_string_value(json_object_get(found, "place"));
}

/* ---- the end of a turn ---- */

/* `pieces`: where it is from; NULL, or none: where its turn began. */
static json_t *add_message(form_turns *t, const char *role, json_t *content, json_t *pieces) {
    json_t *m = json_object();
    bool known = json_array_size(pieces) > 0;
    set(t, m, "role", json_string(role));
    set(t, m, "content", content);
    bool ok = json_array_append_new(t->messages, m) == 0;
    if (ok && t->places != NULL) {
        json_t *places =
            known ? json_incref(pieces) : json_pack("[o]", make_piece(SPOT_CONTENT, 0, t->place));
        ok = json_array_append_new(t->places, places) == 0;
    }
    if (!ok) {
        t->no_memory = true;
        return NULL;
    }
    return m;
}

static void end_assistant(form_turns *t) {
    bool silent = t->calls != NULL && !t->has_text;
    json_t *m =
        add_message(t, "assistant", silent ? json_null() : string_json(&t->text), t->pieces);
    if (t->reasoning.n > 0 || t->reasoning.failed)
        set(t, m, "reasoning_content", string_json(&t->reasoning));
    if (t->calls != NULL) set(t, m, "tool_calls", json_incref(t->calls));
    t->last_calls = json_object_get(m, "tool_calls"); // NULL without memory, too
}

static void end_result(form_turns *t, const char *id) {
    json_t *text = json_object_get(t->results, id);
    if (text == NULL) return;
    json_t *place = json_object_get(t->result_places, id), *pieces = NULL;
    if (place != NULL) pieces = json_pack("[o]", make_piece(SPOT_CONTENT, 0, place));
    json_t *m = add_message(t, "tool", json_incref(text), pieces);
    json_decref(pieces);
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
    if (!any || t->text.n > 0 || t->text.failed)
        add_message(t, "user", string_json(&t->text), t->pieces);
}

void turns_end(form_turns *t) {
    if (t->role == TURN_ASSISTANT) end_assistant(t);
    if (t->role == TURN_USER) end_user(t);
    if (t->role == TURN_SYSTEM && (t->text.n > 0 || t->text.failed))
        add_message(t, "system", string_json(&t->text), t->pieces);
    json_decref(t->calls);
    json_decref(t->results);
    json_decref(t->place);
    json_decref(t->pieces);
    json_decref(t->result_places);
    t->calls = t->results = t->place = t->pieces = t->result_places = NULL;
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
    if (t->places != NULL && (t->place = place_now(t)) == NULL) t->no_memory = true;
    t->system_over = t->system_over || role != TURN_SYSTEM;
}

buf *turns_text(form_turns *t, turn_role role) {
    turns_open(t, role);
    add_piece(t, SPOT_CONTENT, t->text.n);
    if (t->has_text) buf_add_str(&t->text, t->between[t->role]);
    t->has_text = true;
    return &t->text;
}

buf *turns_reasoning(form_turns *t) {
    turns_open(t, TURN_ASSISTANT);
    add_piece(t, SPOT_REASONING, t->reasoning.n);
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
    add_piece(t, SPOT_CALL, json_array_size(t->calls));
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
    if (t->result_places == NULL) t->result_places = json_object();
    if (t->places != NULL) set(t, t->result_places, id, place_now(t));
    return RESULT_ADDED;
}
