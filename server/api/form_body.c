/* form_body.c - see form_body.h. */
#include "form_body.h"

#include "api_tools.h"
#include "json_in.h"
#include "media.h"
#include "nearest.h"

enum { LOOKED_BYTES_MAX = 64 << 20 }; // of the body's text, for values with all their digits

/* ---- the whole ---- */

void form_read_begin(form_reader *r) {
    r->chat = json_object();
    r->turns.messages = json_array();
    r->tools = json_array();
    r->tool_places = json_object();
    r->form->places = json_array();
    r->turns.places = r->form->message_places = json_array();
    r->turns.at = r->at;
    put(r, r->chat, "messages", r->turns.messages);
    put(r, r->chat, "tools", r->tools);
    if (r->form->places == NULL || r->form->message_places == NULL) r->no_memory = true;
}

bool form_read_end(form_reader *r, bool ok, json_t **chat) {
    bool no_memory = r->no_memory || r->turns.no_memory;
    turns_deinit(&r->turns);
    json_decref(r->tool_places);
    *chat = ok && !no_memory ? r->chat : NULL;
    if (*chat != NULL) return true;
    json_decref(r->chat);
    if (!no_memory) return false;
    *r->err = (api_error){0}; // what is refused may be what there was no memory for
    return api_fail(r->err, API_INTERNAL, NULL, "the server is short of memory");
}

/* ---- fields ---- */

/* The part of a path before its first dot. */
static size_t head_bytes(const char *path) {
    return strcspn(path, ".");
}

/* ok NULL: a parent that is no object is no failure. */
static json_t *find_value(form_reader *r, const char *path, bool *ok) {
    char parent[API_PARAM_BYTES];
    size_t n = head_bytes(path);
    if (path[n] == 0) return given(r->body, path);
    snprintf(parent, sizeof parent, "%.*s", (int)n, path);
    json_t *v = given(r->body, parent);
    if (v == NULL || json_is_object(v)) return given(v, path + n + 1);
    if (ok != NULL) *ok = form_bad(r, parent, v, "must be an object");
    return NULL;
}

/* Is it in the list?  Notes names that it may mean. */
static bool is_listed(const char *const *names, const char *key, nearest *near) {
    for (; *names != NULL; names++) {
        if (strcmp(*names, key) == 0) return true;
        nearest_try(near, key, *names);
    }
    return false;
}

static bool is_row(const form_fields *fields, const char *key, nearest *near) {
    for (size_t i = 0; i < fields->n; i++) {
        const char *name = fields->rows[i].name;
        size_t n = head_bytes(name);
        if (strncmp(key, name, n) == 0 && key[n] == 0) return true;
        if (name[n] == 0) nearest_try(near, key, name);
    }
    return false;
}

/* The next word from *at on, of some with blanks or commas between them; n 0: there are no more. */
static bytes next_word(const char **at) {
    const char *from = *at + strspn(*at, " ,");
    size_t n = strcspn(from, " ,");
    *at = from + n;
    return (bytes){from, n};
}

static bool has_word(const char *words, const char *word) {
    for (bytes w; (w = next_word(&words)).n > 0;)
        if (strncmp(w.p, word, w.n) == 0 && word[w.n] == 0) return true;
    return false;
}

static void find_unknown_members(form_reader *r, const form_object *o) {
    const char *key;
    json_t *object = find_value(r, o->path, NULL), *v;
    json_object_foreach(object, key, v) if (!has_word(o->members, key))
        form_leave_out(r, o->path, key);
}

static void find_unknown(form_reader *r, const form_fields *fields) {
    const char *key;
    json_t *v;
    json_object_foreach(r->body, key, v) {
        nearest near = {0};
        if (is_row(fields, key, &near) || is_listed(fields->same, key, &near) ||
            is_listed(fields->ignored, key, &near))
            continue;
        unknown_field *f = unknown_add(r->unknown, key);
        if (f != NULL) f->meant = nearest_word(&near);
    }
    for (size_t i = 0; i < fields->n_objects; i++) find_unknown_members(r, &fields->objects[i]);
}

static bool is_of_kind(const json_t *v, form_kind kind) {
    return kind == FORM_BOOL     ? json_is_boolean(v)
           : kind == FORM_STRING ? json_is_string(v)
           : kind == FORM_ARRAY  ? json_is_array(v)
           : kind == FORM_EACH   ? json_is_array(v)
           : kind == FORM_OBJECT ? json_is_object(v)
                                 : true;
}

static bool read_row(form_reader *r, const form_field *row) {
    static const char *const must[] = {[FORM_BOOL] = "must be true or false",
                                       [FORM_STRING] = "must be a string",
                                       [FORM_ARRAY] = "must be an array",
                                       [FORM_EACH] = "must be an array",
                                       [FORM_OBJECT] = "must be an object"};
    bool ok = true;
    r->at[0] = 0;
    if (row->kind == FORM_PART) return true;
    json_t *v = find_value(r, row->name, &ok);
    if (v == NULL && ok && row->required) return form_bad(r, row->name, NULL, "is required");
    if (v == NULL) return ok;
    snprintf(r->at, sizeof r->at, "%s", row->name);
    if (row->kind == FORM_REFUSED)
        return json_is_false(v) ? true : form_unsupported(r, "", row->why);
    if (!is_of_kind(v, row->kind)) return form_bad(r, "", v, must[row->kind]);
    if (row->kind == FORM_EACH) return form_each(r, v, row->name, row->read);
    if (row->read != NULL) return row->read(r, v);
    if (row->chat != NULL) put(r, r->chat, row->chat, json_incref(v));
    return true;
}

bool form_read_fields(form_reader *r) {
    const form_fields *fields = r->form->type->fields;
    find_unknown(r, fields);
    for (const char *const *name = fields->same; *name != NULL; name++)
        put_given(r, r->chat, *name, given(r->body, *name));
    for (size_t i = 0; i < fields->n; i++)
        if (!read_row(r, &fields->rows[i])) return false;
    return true;
}

/* Is the path at the start of this text `at`, or one below it?  "tools[3].function.name" is below
 * "tools[3].function".  In a message it ends with a quote. */
static bool is_below(const char *text, const char *at) {
    size_t n = strlen(at);
    return strncmp(text, at, n) == 0 && (text[n] == 0 || strchr("\".[", text[n]) != NULL);
}

static bool rename_param(api_error *err, const char *theirs, const char *ours) {
    char param[API_PARAM_BYTES], message[API_MESSAGE_BYTES];
    size_t n = strlen(theirs);
    if (!is_below(err->param, theirs)) return false;
    snprintf(param, sizeof param, "%s%s", ours, err->param + n);
    if (err->message[0] == '"' && is_below(err->message + 1, theirs)) {
        snprintf(message, sizeof message, "\"%s%s", ours, err->message + n + 1);
        memcpy(err->message, message, sizeof message);
    }
    memcpy(err->param, param, sizeof param);
    return true;
}

/* The other field of the chat that the message names. */
static void rename_other(api_error *err, const char *theirs, const char *ours) {
    char quoted[API_PARAM_BYTES], message[API_MESSAGE_BYTES];
    if (err->other == NULL || strcmp(err->other, theirs) != 0) return;
    snprintf(quoted, sizeof quoted, "\"%s\"", theirs);
    const char *at = strstr(err->message, quoted);
    if (at == NULL) return;
    snprintf(message, sizeof message, "%.*s\"%s\"%s", (int)(at - err->message), err->message, ours,
             at + strlen(quoted));
    memcpy(err->message, message, sizeof message);
    err->other = NULL;
}

const char *form_place(const answer_form *f, size_t message_idx, spot at) {
    return turns_place(f->message_places, message_idx, at);
}

void form_locate(const answer_form *f, api_error *err) {
    unsigned idx;
    char theirs[API_PARAM_BYTES], ours[2 * API_PARAM_BYTES];
    if (f == NULL) return;
    const form_fields *fields = f->type->fields;
    for (size_t i = 0; i < fields->n; i++)
        if (fields->rows[i].chat != NULL)
            rename_other(err, fields->rows[i].chat, fields->rows[i].name);
    if (sscanf(err->param, "messages[%u]", &idx) == 1) {
        const char *at = form_place(f, idx, (spot){.part = SPOT_CONTENT});
        snprintf(theirs, sizeof theirs, "messages[%u]", idx);
        if (at != NULL && rename_param(err, theirs, at)) return;
    }
    for (size_t i = 0; i < fields->n; i++) {
        const form_field *row = &fields->rows[i];
        if (row->chat != NULL && rename_param(err, row->chat, row->name)) return;
    }
    if (sscanf(err->param, "tools[%u]", &idx) != 1) return;
    const char *place = json_string_value(json_array_get(f->places, idx));
    if (place == NULL) return;
    snprintf(theirs, sizeof theirs, "tools[%u].function.parameters", idx);
    snprintf(ours, sizeof ours, "%s.%s", place, f->schema);
    if (rename_param(err, theirs, ours)) return;
    snprintf(theirs, sizeof theirs, "tools[%u].function", idx);
    rename_param(err, theirs, place);
}

/* ---- values ---- */

json_t *form_pick(form_reader *r, const json_t *object, const char *members) {
    json_t *picked = json_object();
    char name[API_QUOTE_BYTES];
    for (bytes w; (w = next_word(&members)).n > 0;) {
        snprintf(name, sizeof name, "%.*s", (int)w.n, w.p);
        put_given(r, picked, name, given(object, name));
    }
    if (picked == NULL) r->no_memory = true;
    return picked;
}

/* Into memory that is there: see json_whole.h. */
void form_add_json(buf *out, const json_t *v, bool spaces) {
    size_t flags = JSON_ENCODE_ANY | (spaces ? 0 : JSON_COMPACT);
    size_t n = json_dumpb(v, NULL, 0, flags);
    if (!buf_reserve(out, n)) return;
    out->failed = n == 0 || json_dumpb(v, out->p + out->n, n, flags) != n;
    out->n += n;
}

static void join_path(const form_reader *r, const char *member, char out[API_PARAM_BYTES]) {
    bool dot = r->at[0] != 0 && member[0] != 0 && member[0] != '[';
    int n = snprintf(out, API_PARAM_BYTES, "%s%s%s", r->at, dot ? "." : "", member);
    if (n < 0) out[0] = 0; // a longer one is cut off
}

static json_t *string_of_text(form_reader *r, const char *p, size_t n) {
    json_t *string = json_stringn(p, n);
    if (string == NULL) r->no_memory = true;
    return string;
}

json_t *form_json_string(form_reader *r, const char *member, const json_t *v) {
    char path[API_PARAM_BYTES];
    buf text = {0};
    form_add_json(&text, v, true);
    json_t *string = text.failed ? NULL : string_of_text(r, text.p, text.n);
    if (string == NULL) r->no_memory = true;
    buf_deinit(&text);
    if (string == NULL || !json_in_has_wide(string_of(string))) return string;
    r->n_looked += r->text.n;
    if (r->n_looked > LOOKED_BYTES_MAX) return string;
    join_path(r, member, path);
    bytes own = json_in_value(r->text, path);
    if (own.n == 0) return string;
    json_decref(string);
    return string_of_text(r, own.p, own.n);
}

bool form_bad(const form_reader *r, const char *member, const json_t *v, const char *must) {
    char param[API_PARAM_BYTES];
    join_path(r, member, param);
    return api_fail(r->err, v == NULL ? API_MISSING : API_BAD_VALUE, param, "\"%s\" %s", param,
                    must);
}

bool form_unsupported(const form_reader *r, const char *member, const char *why) {
    char param[API_PARAM_BYTES];
    join_path(r, member, param);
    return api_fail(r->err, API_UNSUPPORTED, param, "\"%s\" is not supported: %s", param, why);
}

bool form_check_length(const form_reader *r, const char *member, const json_t *list) {
    char must[64];
    snprintf(must, sizeof must, "has %zu entries, more than the limit %d", json_array_size(list),
             API_TOOLS_MAX);
    return json_array_size(list) <= API_TOOLS_MAX ? true : form_bad(r, member, list, must);
}

bool form_need_string(const form_reader *r, const json_t *object, const char *member) {
    const json_t *v = given(object, member);
    return json_is_string(v) ? true : form_bad(r, member, v, "must be a string");
}

turn_role form_read_role(form_reader *r, const json_t *message, const char *words) {
    static const char *const names[] = {"user", "assistant", "system", "developer"};
    static const turn_role roles[] = {TURN_USER, TURN_ASSISTANT, TURN_SYSTEM, TURN_SYSTEM};
    const json_t *role = given(message, "role");
    char must[API_QUOTE_BYTES];
    for (size_t i = 0; i < INFERD_COUNT(names); i++)
        if (is(role, names[i]) && has_word(words, names[i])) return roles[i];
    snprintf(must, sizeof must, "must be one of %s", words);
    form_bad(r, "role", role, must);
    return TURN_NONE;
}

bool form_add_result(form_reader *r, const char *member, const char *id, bytes text) {
    switch (turns_add_result(&r->turns, id, text)) {
    case RESULT_AGAIN:
        return form_bad(r, member, json_true(), "has a result already");
    case RESULT_UNKNOWN:
        return form_bad(r, member, json_true(), "must be the id of a call before it");
    default:
        return true;
    }
}

void form_leave_out(form_reader *r, const char *where, const char *type) {
    char name[2 * API_QUOTE_BYTES];
    snprintf(name, sizeof name, "%s.%s", where, type);
    unknown_add(r->unknown, name);
}

bool form_each(form_reader *r, json_t *list, const char *path,
               bool (*read)(form_reader *r, json_t *one)) {
    char here[API_PARAM_BYTES];
    json_t *one;
    size_t i;
    snprintf(here, sizeof here, "%s", path); // it may be r->at
    json_array_foreach(list, i, one) {
        snprintf(r->at, sizeof r->at, "%.*s[%zu]", API_PARAM_BYTES - 24, here, i);
        if (!json_is_object(one)) return form_bad(r, "", one, "must be an object");
        if (!read(r, one)) return false;
    }
    return true;
}

/* ---- reasoning ---- */

bool form_read_effort(form_reader *r, json_t *v) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium",
                                          "high", "xhigh",   "max"};
    size_t i = 0;
    while (i < INFERD_COUNT(efforts) && !is(v, efforts[i])) i++;
    put(r, r->chat, "reasoning_effort",
        i < INFERD_COUNT(efforts) ? json_incref(v) : json_string("max"));
    return true;
}

/* ---- texts ---- */

static bool read_part(form_reader *r, json_t *part, const char *here, const form_parts *kinds,
                      buf *out, bool *any) {
    char why[API_MESSAGE_BYTES], quoted[API_QUOTE_BYTES];
    const json_t *type = given(part, "type");
    size_t i = 0;
    if (!json_is_string(type))
        return form_bad(r, here, json_is_object(part) ? type : part,
                        "must be an object with a string \"type\"");
    while (i < kinds->n && !is(type, kinds->rows[i].type)) i++;
    if (i == kinds->n && kinds->left_out != NULL) {
        form_leave_out(r, kinds->left_out, json_string_value(type));
        return true;
    }
    if (i == kinds->n || kinds->rows[i].member == NULL) {
        r->err->media = media_of_part(json_string_value(type));
        snprintf(why, sizeof why, "it is of type \"%s\", and the model reads only text",
                 api_quote(quoted, json_string_value(type), json_string_length(type)));
        return form_unsupported(r, here, why);
    }
    const form_part *kind = &kinds->rows[i];
    const json_t *text = given(part, kind->member);
    snprintf(why, sizeof why, "needs a string \"%s\"", kind->member);
    if (!json_is_string(text)) return form_bad(r, here, part, why);
    if (*any) buf_add_char(out, '\n');
    *any = true;
    if (kind->before != NULL) buf_add_str(out, kind->before);
    buf_add(out, json_string_value(text), json_string_length(text));
    if (kind->after != NULL) buf_add_str(out, kind->after);
    return true;
}

bool form_read_text(form_reader *r, json_t *content, const char *member, const form_parts *kinds,
                    buf *out) {
    char here[API_PARAM_BYTES];
    json_t *part;
    size_t i;
    bool any = false;
    if (json_is_string(content)) {
        buf_add(out, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return form_bad(r, member, content, "must be a string or an array of parts");
    json_array_foreach(content, i, part) {
        snprintf(here, sizeof here, "%s[%zu]", member, i);
        if (!read_part(r, part, here, kinds, out, &any)) return false;
    }
    return true;
}

/* ---- tools ---- */

/* The chat's check would tell of the other tool where it stands in the chat. */
static bool add_name(form_reader *r, const json_t *name) {
    const char *of = json_string_value(name);
    const json_t *other = json_object_get(r->tool_places, of);
    char must[2 * API_PARAM_BYTES];
    snprintf(must, sizeof must, "is the name of %s, too",
             other == NULL ? "" : json_string_value(other));
    if (other != NULL) return form_bad(r, "name", name, must);
    if (of != NULL) put(r, r->tool_places, of, json_string(r->at));
    return true;
}

/* Members of wrong types are found by the chat's check. */
json_t *form_add_function(form_reader *r, json_t *name, const json_t *tool, const char *schema) {
    const char *const members[][2] = {
        {"description", "description"}, {"strict", "strict"}, {schema, "parameters"}};
    bool full = json_array_size(r->tools) == API_TOOLS_MAX;
    if (full)
        api_fail(r->err, API_BAD_VALUE, "tools", "\"tools\" has more functions than the limit %d",
                 API_TOOLS_MAX);
    if (full || !add_name(r, name)) {
        json_decref(name);
        return NULL;
    }
    json_t *function = json_object(), *chat = json_object();
    if (name != NULL) put(r, function, "name", name);
    for (size_t i = 0; i < INFERD_COUNT(members); i++)
        put_given(r, function, members[i][1], given(tool, members[i][0]));
    put(r, chat, "type", json_string("function"));
    put(r, chat, "function", function);
    append(r, r->tools, chat);
    append(r, r->form->places, json_string(r->at));
    r->form->schema = schema;
    return r->no_memory ? NULL : function; // without memory it is gone
}

bool form_leaves_out_choice(form_reader *r, const json_t *type, const json_t *name) {
    json_t *asked = given(r->body, "tools"), *tool;
    size_t i;
    if (!json_is_string(type) || is(type, "auto") || is(type, "none")) return false;
    bool is_out = json_array_size(asked) > 0 && json_array_size(r->tools) == 0;
    if (json_is_string(name) && json_object_get(r->tool_places, json_string_value(name)) == NULL)
        json_array_foreach(asked, i, tool) is_out |= json_equal(given(tool, "name"), name);
    if (is_out) form_leave_out(r, "tool_choice", json_string_value(type));
    return is_out;
}

json_t *form_choice(const char *function) {
    return json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", function);
}
