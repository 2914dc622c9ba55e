/* json_whole.h - copies and texts of JSON values that are whole, or not there.
 *
 * jansson's json_copy and json_deep_copy leave out members, and json_dumps characters, for which
 * there is no memory, and say nothing.  In a prompt, an answer or a configuration that would be
 * another value.
 * Thread: any; a value belongs to one thread at a time. */
#ifndef INFERD_JSON_WHOLE_H
#define INFERD_JSON_WHOLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>

static inline json_t *json_if_whole(json_t *copy, bool whole) {
    if (whole) return copy;
    json_decref(copy);
    return NULL;
}

/* The same members, not copied themselves; NULL: no memory. */
static inline json_t *json_copy_whole(json_t *v) {
    json_t *copy = json_copy(v);
    return json_if_whole(copy, json_object_size(copy) == json_object_size(v) &&
                                   json_array_size(copy) == json_array_size(v));
}

static inline json_t *json_deep_copy_whole(const json_t *v) {
    json_t *copy = json_deep_copy(v);
    return json_if_whole(copy, copy != NULL && json_equal(copy, v));
}

/* Its text, freed by the caller; NULL: no memory.  Written into memory that is there. */
static inline char *json_dumps_whole(const json_t *v, size_t flags) {
    size_t n = json_dumpb(v, NULL, 0, flags);
    char *text = n == 0 ? NULL : malloc(n + 1);
    if (text == NULL) return NULL;
    text[n] = 0;
    if (json_dumpb(v, text, n, flags) == n) return text;
    free(text);
    return NULL;
}

#endif
