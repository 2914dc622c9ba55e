/* tags.h - writing structural tags: the parts that tags_*.c share. */
#ifndef INFERD_CALLS_TAGS_H
#define INFERD_CALLS_TAGS_H

#include "calls/format.h"

/* A sequence of formats in the making.  Texts that follow each other become one. */
typedef struct tag_writer {
    json_t *elements; // owned
    buf text;
    bool failed;
} tag_writer;

/* What of the schemas of tools is enforced. */
typedef struct tag_scope {
    size_t slots_left; // of values in the notations of formats, for all tools
    json_t *weakened;  // appended to: places that are not enforced; borrowed; NULL: not told
    bool any;          // arguments of any names and values, whatever the schema says
    bool last;         // nothing else follows a call
    bool unfit;        // a schema that the notation cannot express, or that takes too many slots
    bool failed;       // no memory
} tag_scope;
enum {
    TAG_PARTS_MAX = 1024,  // of one format
    TAG_MEMBERS_MAX = 500, // properties of an object: each that may come next is a way to read on,
                           // and grammar_limits.configs_max bounds those
};

/* "NAME#/word/key" of a place "NAME" or "NAME#/..."; word and key may be NULL.  The caller owns it;
 * NULL: no memory. */
char *tag_place(const char *at, const char *word, const char *key);
void tag_not_enforced(tag_scope *s, const char *place, const char *word); // word may be NULL
/* Keywords that count in JSON only, of a value of these types (call_type, as bits). */
void tag_check_keywords(tag_scope *s, const json_t *schema, unsigned types, const char *place);

void tag_begin(tag_writer *w);
void tag_text(tag_writer *w, bytes text);
void tag_mark(tag_writer *w, bytes mark, bytes name); // with placeholders
void tag_add(tag_writer *w, json_t *format);          // takes it; NULL: no memory
/* The sequence: {"type": "tag"} with its first and last text as begin and end.  NULL: no memory. */
json_t *tag_end(tag_writer *w);
/* The same as a sequence, or its only element. */
json_t *tag_end_sequence(tag_writer *w);

json_t *tag_of_text(bytes text); // {"type": "const_string"}
json_t *tag_of_any(void);        // {"type": "any_text"}
/* The text of a string up to the end of the tag; schema NULL or without keywords of texts: any. */
json_t *tag_of_string(const json_t *schema, const char *place);
json_t *tag_of_pattern(const char *pattern);
/* schema NULL: any object.  `name`: what it is of, as its "$comment". */
json_t *tag_of_schema(const json_t *schema, const char *name);
json_t *tag_or(json_t *formats); // takes an array
/* {"type": "tags_with_separator"} of these; takes the array. */
json_t *tag_separated(json_t *tags, bytes separator, bool some, bool one);
json_t *tag_of(json_t *format); // takes it: a tag without begin and end
json_t *tag_maybe(json_t *tag); // takes a tag: once, or not at all
json_t *tag_list(json_t *one);  // takes it: an array of it
/* {"type": type, key: value}; takes the value. */
json_t *tag_format(const char *type, const char *key, json_t *value);
json_t *tag_string_of_mark(bytes mark); // a mark without parts that differ; NULL: no memory

/* JSON by the schema of an argument, with the definitions that `root` has; NULL: any. */
json_t *tag_of_argument(const json_t *root, const json_t *schema, const char *place);
bool tag_is_required(const json_t *schema, const char *key);
/* A value in the notation of the format, not JSON (tags_nested.c); and all arguments of a call.
 * NULL, or w->failed: no memory, or scope->unfit. */
json_t *tag_of_nested(const call_format *f, const json_t *root, const json_t *schema,
                      const char *place, tag_scope *scope);
void tag_members(tag_writer *w, const call_format *f, const json_t *parameters, const char *place,
                 tag_scope *scope);

/* The arguments of a call of this tool, between the marks of the name and of the end.  parameters
 * NULL: none.  w->failed: no memory, or scope->unfit. */
void tag_arguments(tag_writer *w, const call_format *f, const char *tool, const json_t *parameters,
                   tag_scope *scope);

#endif
