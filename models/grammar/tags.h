/* tags.h - parts of the compiler of structural tags: what is being built, and the members of
 * formats (tags_members.c).  Failures are those of the graph (ir_fail), with the path of the
 * format. Thread: any; a builder belongs to one compilation. */
#ifndef INFERD_GRAMMAR_TAGS_H
#define INFERD_GRAMMAR_TAGS_H

#include <jansson.h>

#include "dfa.h"
#include "ir.h"
#include "models/grammar.h"
#include "tags_made.h"
#include "tags_text.h"

enum {
    TAGS_DEPTH_MAX = 32,   // of formats in formats
    TAGS_PARTS_MAX = 1024, // of one format
    TAGS_AUTOMATA_BYTES_MAX = 32 << 20
};

typedef enum format_kind {
    FORMAT_STRING,
    FORMAT_SCHEMA,
    FORMAT_REGEX,
    FORMAT_ANY,
    FORMAT_TEXT,
    FORMAT_REASONING,
    FORMAT_SEQUENCE,
    FORMAT_OR,
    FORMAT_TAG,
    FORMAT_TRIGGERED,
    FORMAT_SEPARATED,
    FORMAT_MEMBERS,
    FORMAT_STRUCTURES, // the object of vLLM's form
    FORMAT_STRUCTURE,  // one of its structures
    FORMAT_OUTER,      // the object around xgrammar's form
    FORMAT_KINDS
} format_kind;

/* Names on the wire, and the members that a format may have beside `type`. */
typedef struct tags_format {
    const char *name;
    const char *members[6];
} tags_format;
extern const tags_format tags_formats[FORMAT_KINDS];

typedef struct tags_frame {
    const json_t *v;
    format_kind kind;
    const json_t *parts; // array; NULL: the one part is `only`
    const json_t *only;
    size_t next; // part to be built
} tags_frame;

typedef struct tags_builder {
    ir *g;
    const grammar_schema_kind *kind;
    dfa_limits limits;
    uint64_t deadline_us; // of all of it
    size_t n_bytes;       // of the automata
    tags_frame frames[TAGS_DEPTH_MAX];
    size_t depth;
    ir_node *nodes; // [n_nodes] finished parts of all frames; owned
    size_t n_nodes, capacity;
    struct converted *texts; // owned
    tags_made made;
} tags_builder;

/* The JSON pointer of what is being built; cut where there is no room. */
const char *tags_path(const tags_builder *b, char *out, size_t n_out);
void tags_fail(tags_builder *b, inferd_status status, const char *what);
void tags_fail_err(tags_builder *b, const inferd_err *err);
void tags_fail_member(tags_builder *b, const char *name, const char *must);
bool tags_failed(const tags_builder *b);

/* A member; NULL: absent, or null. */
const json_t *tags_given(const json_t *v, const char *name);
/* A string with symbols in place of the names of control tokens; of the builder. */
bytes tags_text_of(tags_builder *b, const json_t *m);
bytes tags_text_member(tags_builder *b, const json_t *v, const char *name, bool may_be_empty);
bool tags_flag_member(tags_builder *b, const json_t *v, const char *name);
uint32_t tags_count_member(tags_builder *b, const json_t *v, const char *name, uint32_t absent);
const json_t *tags_list_member(tags_builder *b, const json_t *v, const char *name, size_t n_max);
/* A member that is not known could mean anything: it is refused. */
void tags_check_members(tags_builder *b, const json_t *v, format_kind kind);
void tags_texts_free(tags_builder *b);

#endif
