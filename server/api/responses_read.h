/* responses_read.h - what responses_read.c and responses_items.c share: a body in progress.
 * Thread: worker. */
#ifndef INFERD_RESPONSES_READ_H
#define INFERD_RESPONSES_READ_H

#include "responses.h"

typedef struct responses_reader {
    responses_form *f;
    json_t *body, *chat, *messages, *tools; // messages and tools: owned by chat
    json_t *shown;                          // the tools of the body that are not left out; owned
    unknown_fields *unknown;
    api_error *err;
    const char *role; // of the turn in progress: "system", "user", "assistant"; NULL: none
    bool system_over; // a turn of another role has begun
    bool has_text;
    buf text, reasoning; // of it
    json_t *calls;       // of it; owned; NULL: none
    size_t item_idx;
    bool no_memory;
} responses_reader;

/* The items of `input` become messages. */
bool responses_read_input(responses_reader *r);
/* `what` of this type has no effect: "tools.web_search". */
void responses_leave_out(responses_reader *r, const char *what, const char *type);
void responses_add_json(buf *out, const json_t *v);
/* The name of the chat's function, a new reference; space NULL: without a namespace. */
json_t *responses_function_name(json_t *name, json_t *space);

static inline json_t *given(json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static inline bool is(json_t *v, const char *word) {
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}

static inline bytes string_of(json_t *v) {
    return (bytes){json_string_value(v), json_string_length(v)};
}

static inline void put(responses_reader *r, json_t *object, const char *name,
                       json_t *value) { // takes the value
    if (json_object_set_new(object, name, value) != 0) r->no_memory = true;
}

static inline void append(responses_reader *r, json_t *array, json_t *value) { // takes the value
    if (json_array_append_new(array, value) != 0) r->no_memory = true;
}

#endif
