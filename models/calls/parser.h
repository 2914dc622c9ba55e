/* parser.h - inside of a call_parser.
 *
 * The parser keeps the text that it cannot judge yet (`held`), and takes steps until it needs more:
 *
 *   TEXT --mark of calls--> NAME --> (the call begins) --> JSON, LOOSE, TAG ... --> CLOSE --> AFTER
 *     ^                       |                                                                 |
 *     +---- it is no call ----+------------------------- no further call ----------------------+
 *
 * Until a call begins, what was read of it stays in `held`: if it turns out to be none, its first
 * byte is text and the rest is looked at again.  A step never depends on where the text was cut:
 * if what is there could go on in two ways, it waits.
 *
 * The work is linear in the text, whatever it is: a step that waits has read at most a mark with
 * bounded placeholders, a name, or white space, and more white space behind that takes no step;
 * values and objects go on from where they were. */
#ifndef INFERD_CALLS_PARSER_H
#define INFERD_CALLS_PARSER_H

#include "calls/format.h"
#include "calls/value.h"

typedef enum parser_state {
    PARSER_TEXT,
    PARSER_NAME,   // styles with the name between marks
    PARSER_OBJECT, // CALL_OBJECT, CALL_KEYED: the call as a JSON object
    PARSER_JSON,   // arguments: JSON
    PARSER_LOOSE,  // arguments: CALL_PYTHON, CALL_BRACES
    PARSER_TAG,    // before a key, or the end of the call
    PARSER_KEY,
    PARSER_VALUE,
    PARSER_TREE,  // a value that may be a list or an object of tags
    PARSER_CLOSE, // behind the arguments
    PARSER_AFTER  // behind a call
} parser_state;

typedef enum object_state {
    OBJECT_OPEN,
    OBJECT_KEY,
    OBJECT_COLON,
    OBJECT_VALUE,
    OBJECT_NEXT
} object_state;

enum { PARSER_MARKS = 12, PARSER_KEY_BYTES_MAX = 1024 };

typedef enum mark_kind {
    MARK_CALLS,       // calls begin
    MARK_OTHER_CALLS, // the same, written in the second way
    MARK_REASONING,   // reasoning begins
    MARK_ANSWER,      // reasoning ends
    MARK_CONTENT,     // content begins
    MARK_TURN,        // the turn begins anew
    MARK_LAYOUT       // is left out
} mark_kind;

typedef struct parser_mark {
    mark_kind kind;
    bytes whole, anchor;
} parser_mark;

struct call_parser {
    const call_format *f;
    const json_t *tools;
    bool no_calls, in_reasoning, failed;
    bool said;     // content that is more than white space
    bool headed;   // behind the header of this part of the turn: its content has begun
    bool cut;      // the text ends before the call has begun
    bool called;   // a call ended
    bool trim;     // white space at the start of the next text is left out
    bool in_token; // inside of the name of a control token
    bool pushed;   // some text came
    bool final;    // no more text comes
    parser_state state;
    buf store;           // its end is `held`
    bytes held;          // read and not judged yet
    bool asked, in_call; // call_parser_in_call of white space behind `held`: the answer is known
    int64_t n_taken; // bytes of the text before `held`; those of prompt_end are before its first
    call_reasoning reasoning;
    size_t at;     // held[0, at): read of a call that has not begun
    size_t n_seen; // of a key or a value: searched for its end
    size_t depth;  // of a tree: tags that are open at n_seen
    buf open;      // section_open call_open
    call_sink on;
    void *ctx;

    /* the call */
    bool other; // written in the second way
    bool begun; // its event was sent
    bool whole; // its arguments are a complete object
    value_reader value;
    bool has_value; // `value` is in use
    buf name, id, key, out;
    buf close; // the mark behind this value of a tree
    size_t n_keys;
    unsigned types; // of the value, as bits of call_type
    bool is_text, wrapped;
    bool in_value; // it is known whether the value is wrapped
    object_state object;
    bool keeps; // the arguments came before the name: they are in `kept`
    buf kept;
    bool passing; // the arguments are passed on as they come: they are no text
    int of_key;   // in an object: 0 other, 1 the name, 2 the arguments, 3 the id
};

typedef enum step_result { STEP_ON, STEP_WAITS, STEP_NO_CALL } step_result;

/* Events. */
void parser_emit(call_parser *p, call_event_kind kind, bytes text);
void parser_begin_call(call_parser *p); // with `name` and `id`
void parser_end_call(call_parser *p);
void parser_flush(call_parser *p); // `out` as arguments

/* The next byte at or behind `at` that is not white space, or held.n. */
size_t parser_skip(const call_parser *p, size_t at);
bytes parser_rest(const call_parser *p, size_t at);
/* held[0, n) was read; `at` is 0 after it. */
void parser_take(call_parser *p, size_t n);

/* The schema of a value that a schema leads to, or NULL (parser_tree.c). */
const json_t *parser_arguments_schema(const call_parser *p); // of the call
/* A value between tags as JSON: `types` as bits, of which a text may be one. */
void parser_add_value(buf *out, bytes text, unsigned types);

/* Steps for names and arguments (parser_name.c, parser_tags.c, parser_tree.c, parser_object.c). */
step_result parser_name(call_parser *p);
step_result parser_tag(call_parser *p);
step_result parser_key(call_parser *p);
step_result parser_value(call_parser *p);
step_result parser_tree(call_parser *p);
step_result parser_object(call_parser *p);
/* The text ends, or breaks off: half a key, or half a text that holds JSON, is no argument. */
void parser_drop_member(call_parser *p);

#endif
