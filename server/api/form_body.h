/* form_body.h - reads the body of another protocol into that of a chat.
 *
 * A protocol has a table of its fields:
 *
 *     same       "temperature"                          those of a chat
 *     ignored    "user"                                 accepted, without effect
 *     rows       {"max_output_tokens", "max_tokens"}    a chat's under another name
 *                {"input", "messages", read_input}      a function makes the chat's
 *
 *     objects    {"reasoning", "effort summary"}        the members of a field that are known
 *
 * The table fills the chat's body, whose own table (api_params.h) checks the values.  Fields and
 * members that it does not name are reported (unknown.h).  Read in the other direction, it gives a
 * path in an error about the chat's body as the path in the client's.
 *
 * Tools become functions of the chat; `places` has for each its path in the body, `message_places`
 * for the pieces of each message.  Memory that runs out is noted in no_memory and told once, at the
 * end. Thread: worker. */
#ifndef INFERD_FORM_BODY_H
#define INFERD_FORM_BODY_H

#include "form.h"
#include "form_turns.h"
#include "inferd/json_whole.h"

typedef struct form_reader {
    answer_form *form;
    json_t *body;        // borrowed: an object
    bytes text;          // of it; borrowed
    size_t n_looked;     // bytes of the text that were looked through for values
    json_t *chat;        // owned
    json_t *tools;       // borrowed from the chat
    json_t *tool_places; // by name, in the body: {"f": "tools[2]"}; owned
    form_turns turns;
    unknown_fields *unknown;
    api_error *err;
    char at[API_PARAM_BYTES]; // the path of what is read: "input[3]"
    bool no_memory;
} form_reader;

typedef enum form_kind {
    FORM_ANY, // the chat's table, or `read`, checks it
    FORM_BOOL,
    FORM_STRING,
    FORM_ARRAY,
    FORM_OBJECT,
    FORM_EACH,   // an array of objects: `read` gets one after the other, r->at is its path
    FORM_PART,   // of a field with a row of its own: only for paths in errors
    FORM_REFUSED // except false
} form_kind;

typedef struct form_field {
    const char *name; // its path: "stream", "text.format"
    const char *chat; // the field that it becomes; NULL: none
    form_kind kind;
    bool (*read)(form_reader *r, json_t *v); // false: r->err is set; NULL: the value as it is
    bool required;
    const char *why; // FORM_REFUSED
} form_field;

/* An object in the body with members of its own. */
typedef struct form_object {
    const char *path;    // "text.format"
    const char *members; // "type name": the known ones
} form_object;

typedef struct form_fields {
    const char *const *same, *const *ignored; // names, behind the last one NULL
    const form_field *rows;                   // [n] read in this order, behind `same`
    size_t n;
    const form_object *objects; // [n_objects] their other members are reported, too
    size_t n_objects;
} form_fields;

/* Begins with an empty chat.  form_read_end is needed in each case. */
void form_read_begin(form_reader *r);
/* Absent fields, and null, are not read.  False: r->err is set.  For row->read, r->at is its name.
 */
bool form_read_fields(form_reader *r);
/* ok: all was read.  Then the chat is given away; false: r->err is set, *chat is NULL. */
bool form_read_end(form_reader *r, bool ok, json_t **chat);
/* Of a piece of a message, its path in the client's body: "input[3]".  NULL: it is of none. */
const char *form_place(const answer_form *f, size_t message_idx, spot at);

/* ---- values ---- */

/* null is the same as absent. */
static inline json_t *given(const json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static inline bool is(const json_t *v, const char *word) {
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}

static inline bytes string_of(const json_t *v) {
    return (bytes){json_string_value(v), json_string_length(v)};
}

static inline size_t count_characters(const char *p) { // of UTF-8
    size_t n = 0;
    for (; *p != 0; p++) n += ((unsigned char)*p & 0xc0) != 0x80;
    return n;
}

/* Both take the value. */
static inline void put(form_reader *r, json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, value) != 0) r->no_memory = true;
}

static inline void append(form_reader *r, json_t *array, json_t *value) {
    if (json_array_append_new(array, value) != 0) r->no_memory = true;
}

/* v NULL: nothing; else with a reference of its own. */
static inline void put_given(form_reader *r, json_t *object, const char *name, json_t *v) {
    if (v != NULL) put(r, object, name, json_incref(v));
}

/* A new object with those of the members that the object has ("type name"). */
json_t *form_pick(form_reader *r, const json_t *object, const char *members);
/* The value as JSON text: "key": "value", or without the spaces. */
void form_add_json(buf *out, const json_t *v, bool spaces);
/* The text of r->at.member as a string.  Where the value has an integer beyond 64 bits it is the
 * text of the body, with all digits, as long as looking for it is little work. */
json_t *form_json_string(form_reader *r, const char *member, const json_t *v);

/* ---- refusals; the path is `at` with the member behind it ---- */

/* "\"input[3].role\" must ...": missing if there is no value, else a wrong one. */
bool form_bad(const form_reader *r, const char *member, const json_t *v, const char *must);
/* For a part of the body that is not implemented. */
bool form_unsupported(const form_reader *r, const char *member, const char *why);
/* The side of a message, by its `role`, which must be one of these words ("user, assistant");
 * TURN_NONE: r->err is set. */
turn_role form_read_role(form_reader *r, const json_t *message, const char *words);
/* Is this list of tools, a member, not longer than API_TOOLS_MAX? */
bool form_check_length(const form_reader *r, const char *member, const json_t *list);
bool form_need_string(const form_reader *r, const json_t *object, const char *member);
/* The result of a call, which the member of this name names. */
bool form_add_result(form_reader *r, const char *member, const char *id, bytes text);
/* What has no effect is left out and named: "tools.web_search". */
void form_leave_out(form_reader *r, const char *where, const char *type);
/* Reads each element of the list, objects all, with r->at as its path.  list NULL: none. */
bool form_each(form_reader *r, json_t *list, const char *path,
               bool (*read)(form_reader *r, json_t *one));

/* ---- reasoning ---- */

/* A row's `read`, of FORM_STRING: the chat's reasoning_effort.  A word of a later version is a
 * degree above those of today: max. */
bool form_read_effort(form_reader *r, json_t *v);

/* ---- texts ---- */

typedef struct form_part {
    const char *type, *member;  // the member with the text; NULL: refused
    const char *before, *after; // written around it; NULL: nothing
} form_part;

typedef struct form_parts {
    const form_part *rows;
    size_t n;
    const char *left_out; // parts of other types are left out, named behind this; NULL: refused
} form_parts;

/* Appends a string, or the texts of an array of parts, joined by newlines as chats join them. */
bool form_read_text(form_reader *r, json_t *content, const char *member, const form_parts *kinds,
                    buf *out);

/* ---- tools ---- */

/* Adds the function of the tool at r->at, with its description, `strict`, and the schema that it
 * has under this name (static); borrowed, NULL: r->err is set, or there is no memory.  Takes
 * `name`, NULL: the tool has none. */
json_t *form_add_function(form_reader *r, json_t *name, const json_t *tool, const char *schema);
/* A choice that demands a call of a tool that was left out, or of any where all were left out, has
 * no effect, as these tools have none: true, and it is named.  `name`: of the tool; NULL: no tool
 * that was left out can be named. */
bool form_leaves_out_choice(form_reader *r, const json_t *type, const json_t *name);
json_t *form_choice(const char *function); // a tool_choice; NULL: no memory

#endif
