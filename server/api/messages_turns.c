/* messages_turns.c - the messages of a body of /v1/messages as those of a chat; see messages.h.
 *
 * Neighbours of one side are one turn, as Anthropic's server takes them, and a turn becomes
 *
 *     assistant   one message: text, tool_calls, reasoning_content
 *     user        a tool message for each result, in the order of the calls, since templates pair
 *                 them by position; then one user message with the text
 *
 * A system message behind the first user message is text of the user's turn that it stands in.
 * Many templates accept a system message only as the first one, and it cannot move there: the start
 * of the prompt would change in the middle of a conversation, and the cached prefix with it.  Where
 * it stands, it renders alike in each later request.  Texts are joined by newlines, as chat.c joins
 * parts, so that a string and a list of one block are the same. */
#include <string.h>

#include "messages.h"

enum { SIDE_USER = 1, SIDE_ASSISTANT = 2 };

typedef struct turn {
    json_t *chat;  // the messages so far
    json_t *last;  // borrowed from it: the last turn of the assistant
    unsigned side; // of the present turn; 0: none has begun
    buf system;    // the text of the system message
    buf text, thinking;
    bool has_text;
    json_t *calls, *results; // of the present turn; the results by the id of their call
    unknown_fields *unknown;
    api_error *err;
    char at[64]; // the path of what is read: "messages[3]"
} turn;

static bool no_memory(const turn *t) {
    return api_fail(t->err, API_INTERNAL, NULL, "the server is short of memory");
}

static bool bad(const turn *t, const char *member, const char *must) {
    char param[API_PARAM_BYTES];
    snprintf(param, sizeof param, "%s%s", t->at, member);
    return api_fail(t->err, API_BAD_VALUE, param, "\"%s\" %s", param, must);
}

static bool add_text(turn *t, buf *to, bool *has, const json_t *v, const char *member) {
    if (!json_is_string(v)) return bad(t, member, "must be a string");
    if (*has) buf_add_char(to, '\n');
    *has = true;
    buf_add(to, json_string_value(v), json_string_length(v));
    return true;
}

static const char *type_of(const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    return type == NULL ? "" : type;
}

/* What is not text and cannot be left out. */
static bool is_medium(const char *type) {
    return strcmp(type, "image") == 0 || strcmp(type, "document") == 0;
}

static bool refuse_medium(const turn *t, const char *type) {
    return api_fail(t->err, API_UNSUPPORTED, t->at,
                    "content blocks of type \"%s\" are not supported: the model reads only text",
                    type);
}

static void leave_out(turn *t, const char *type) {
    char name[API_QUOTE_BYTES];
    snprintf(name, sizeof name, "messages.content.%s", type);
    unknown_add(t->unknown, name);
}

/* A string, or blocks of which the texts count. */
static bool read_texts(turn *t, const json_t *content, buf *to, bool *has) {
    size_t i;
    json_t *block;
    if (!json_is_array(content)) return add_text(t, to, has, content, ".content");
    json_array_foreach(content, i, block) {
        const char *type = type_of(block);
        if (is_medium(type)) return refuse_medium(t, type);
        if (strcmp(type, "text") != 0)
            leave_out(t, type);
        else if (!add_text(t, to, has, json_object_get(block, "text"), ".content.text"))
            return false;
    }
    return true;
}

/* ---- the end of a turn ---- */

static json_t *take_text(buf *text) {
    json_t *v = text->failed ? NULL : json_stringn_nocheck(text->n > 0 ? text->p : "", text->n);
    buf_clear(text);
    return v;
}

/* The last message gets text and calls, or there is a new one. */
static bool end_assistant(turn *t) {
    json_t *m = json_object();
    bool ok = json_object_set_new(m, "role", json_string("assistant")) == 0;
    json_t *content =
        t->has_text || json_array_size(t->calls) == 0 ? take_text(&t->text) : json_null();
    ok = json_object_set_new(m, "content", content) == 0 && ok;
    if (t->thinking.n > 0 || t->thinking.failed)
        ok = json_object_set_new(m, "reasoning_content", take_text(&t->thinking)) == 0 && ok;
    if (t->calls != NULL) ok = json_object_set(m, "tool_calls", t->calls) == 0 && ok;
    t->last = m;
    return json_array_append_new(t->chat, m) == 0 && ok;
}

static bool end_result(turn *t, const char *id) {
    json_t *text = json_object_get(t->results, id);
    if (text == NULL) return true;
    json_t *m = json_pack("{s:s,s:s,s:O}", "role", "tool", "tool_call_id", id, "content", text);
    return json_array_append_new(t->chat, m) == 0;
}

static bool end_user(turn *t) {
    json_t *call, *text;
    size_t i;
    const char *id;
    bool ok = true, any = json_object_size(t->results) > 0;
    json_array_foreach(json_object_get(t->last, "tool_calls"), i, call) {
        id = json_string_value(json_object_get(call, "id"));
        ok = ok && end_result(t, id);
        json_object_del(t->results, id);
    }
    json_object_foreach(t->results, id, text) ok = ok && end_result(t, id);
    if (any && t->text.n == 0 && !t->text.failed) return ok;
    json_t *m = json_pack("{s:s,s:o}", "role", "user", "content", take_text(&t->text));
    return json_array_append_new(t->chat, m) == 0 && ok;
}

static bool end_turn(turn *t) {
    bool ok = t->side == 0 || (t->side == SIDE_USER ? end_user(t) : end_assistant(t));
    json_decref(t->calls);
    json_decref(t->results);
    t->calls = t->results = NULL;
    t->has_text = false;
    return ok ? true : no_memory(t);
}

/* ---- blocks ---- */

static bool read_thinking(turn *t, const json_t *block) {
    bool joined = false; // the model's own text: nothing comes between its pieces
    return add_text(t, &t->thinking, &joined, json_object_get(block, "thinking"), ".thinking");
}

static bool skip(turn *t, const json_t *block) { // encrypted, or nothing
    (void)t, (void)block;
    return true;
}

/* The id as the chat has it. */
static const char *id_of(const json_t *block, const char *member) {
    const char *id = json_string_value(json_object_get(block, member));
    size_t n = strlen(MESSAGES_CALL_PREFIX);
    return id != NULL && strncmp(id, MESSAGES_CALL_PREFIX, n) == 0 ? id + n : id;
}

static bool read_call(turn *t, const json_t *block) {
    const char *id = id_of(block, "id");
    const char *name = json_string_value(json_object_get(block, "name"));
    json_t *input = json_object_get(block, "input");
    if (id == NULL) return bad(t, ".id", "must be a string");
    if (name == NULL) return bad(t, ".name", "must be a string");
    if (!json_is_object(input)) return bad(t, ".input", "must be an object");
    size_t n = json_dumpb(input, NULL, 0, 0);
    char *text = malloc(n + 1);
    if (text == NULL || json_dumpb(input, text, n, 0) != n) n = 0;
    json_t *arguments = n == 0 ? NULL : json_stringn_nocheck(text, n);
    free(text);
    if (t->calls == NULL) t->calls = json_array();
    json_t *call = json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return json_array_append_new(t->calls, call) == 0 ? true : no_memory(t);
}

/* The model sees no flag of an error, so the text says it. */
static bool read_result(turn *t, const json_t *block) {
    const char *id = id_of(block, "tool_use_id");
    json_t *content = json_object_get(block, "content");
    buf text = {0};
    bool has = false;
    if (id == NULL) return bad(t, ".tool_use_id", "must be a string");
    if (json_object_get(t->results, id) != NULL)
        return bad(t, ".tool_use_id", "has a result already");
    bool ok = content == NULL || json_is_null(content) || read_texts(t, content, &text, &has);
    if (ok && json_is_true(json_object_get(block, "is_error")) &&
        strncasecmp(buf_cstr(&text), "error", 5) != 0) {
        buf told = {0};
        buf_add_str(&told, has ? "Error: " : "Error");
        buf_add(&told, text.p, text.n);
        told.failed = told.failed || text.failed;
        buf_deinit(&text);
        text = told;
    }
    if (t->results == NULL) t->results = json_object();
    if (ok && json_object_set_new_nocheck(t->results, id, take_text(&text)) != 0) ok = no_memory(t);
    buf_deinit(&text);
    return ok;
}

/* Nothing comes between texts of the model. */
static bool add_turn_text(turn *t, const json_t *v, const char *member) {
    bool joined = t->has_text && t->side == SIDE_USER;
    t->has_text = true;
    return add_text(t, &t->text, &joined, v, member);
}

static bool read_text(turn *t, const json_t *block) {
    return add_turn_text(t, json_object_get(block, "text"), ".text");
}

static bool read_block(turn *t, const json_t *block) {
    static const struct {
        const char *type;
        unsigned sides;
        bool (*read)(turn *t, const json_t *block);
    } rows[] = {{"text", SIDE_USER | SIDE_ASSISTANT, read_text},
                {"tool_use", SIDE_ASSISTANT, read_call},
                {"tool_result", SIDE_USER, read_result},
                {"thinking", SIDE_ASSISTANT, read_thinking},
                {"redacted_thinking", SIDE_ASSISTANT, skip}};
    const char *type = type_of(block);
    if (type[0] == 0) return bad(t, ".type", "is required: a string");
    if (is_medium(type)) return refuse_medium(t, type);
    for (size_t i = 0; i < INFERD_COUNT(rows); i++) {
        if (strcmp(rows[i].type, type) != 0) continue;
        if ((rows[i].sides & t->side) != 0) return rows[i].read(t, block);
        return bad(t, ".type", "is not a block of this role");
    }
    leave_out(t, type);
    return true;
}

/* ---- messages ---- */

static bool read_content(turn *t, const json_t *content, size_t at) {
    size_t i;
    json_t *block;
    if (json_is_string(content)) return add_turn_text(t, content, ".content");
    if (!json_is_array(content))
        return bad(t, ".content", "must be a string or an array of blocks");
    json_array_foreach(content, i, block) {
        snprintf(t->at, sizeof t->at, "messages[%zu].content[%zu]", at, i);
        if (!read_block(t, block)) return false;
    }
    return true;
}

static bool read_message(turn *t, const json_t *m, size_t at) {
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    snprintf(t->at, sizeof t->at, "messages[%zu]", at);
    unsigned side = role == NULL                     ? 0
                    : strcmp(role, "user") == 0      ? SIDE_USER
                    : strcmp(role, "assistant") == 0 ? SIDE_ASSISTANT
                    : strcmp(role, "system") == 0    ? SIDE_USER
                                                     : 0;
    if (side == 0) return bad(t, ".role", "must be user, assistant or system");
    if (t->side == 0 && role[0] == 's') {
        bool joined = t->system.n > 0;
        return read_texts(t, content, &t->system, &joined);
    }
    if (side != t->side && !end_turn(t)) return false;
    t->side = side;
    return read_content(t, content, at);
}

/* A block of accounting, different in each conversation, is left out: the prefix of the prompt
 * would be different, too, and never be found in the cache. */
static bool read_system(turn *t, json_t *system) {
    static const char billing[] = "x-anthropic-billing-header:";
    bool has = false;
    size_t i, n = json_is_array(system) ? json_array_size(system) : 1;
    snprintf(t->at, sizeof t->at, "system");
    for (i = 0; i < n && system != NULL && !json_is_null(system); i++) {
        json_t *block = json_is_array(system) ? json_array_get(system, i) : system;
        json_t *text = json_is_object(block) ? json_object_get(block, "text") : block;
        const char *s = json_string_value(text);
        if (s != NULL && strncmp(s, billing, sizeof billing - 1) == 0) continue;
        if (!add_text(t, &t->system, &has, text, "")) return false;
    }
    return true;
}

static bool read_all(turn *t, json_t *system, json_t *messages) {
    size_t i;
    json_t *m;
    if (t->chat == NULL) return no_memory(t);
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_fail(t->err, API_BAD_VALUE, "messages",
                        "\"messages\" must be an array that is not empty");
    if (!read_system(t, system)) return false;
    json_array_foreach(messages, i, m) {
        if (!read_message(t, m, i)) return false;
    }
    if (!end_turn(t)) return false;
    if (t->system.n == 0 && !t->system.failed) return true;
    m = json_pack("{s:s,s:o}", "role", "system", "content", take_text(&t->system));
    return json_array_insert_new(t->chat, 0, m) == 0 ? true : no_memory(t);
}

json_t *messages_read_turns(json_t *system, json_t *messages, unknown_fields *unknown,
                            api_error *err) {
    turn t = {.chat = json_array(), .unknown = unknown, .err = err};
    bool ok = read_all(&t, system, messages);
    buf_deinit(&t.system);
    buf_deinit(&t.text);
    buf_deinit(&t.thinking);
    json_decref(t.calls);
    json_decref(t.results);
    if (ok) return t.chat;
    json_decref(t.chat);
    return NULL;
}
