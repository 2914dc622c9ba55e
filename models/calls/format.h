/* format.h - what a call_format is made of; see models/calls.h.
 *
 * Marks are text that the template writes around names and arguments.  White space in them and
 * around them is layout: a reader skips it, a writer (tags_message.c) writes it.  Four bytes stand
 * for what differs from call to call: CALL_ID the id of the call, CALL_INDEX its number, CALL_NAME
 * its name once more, CALL_KEY the key of the argument before it.  A part of a mark between two
 * bytes CALL_MAYBE may be left out; such marks are of name_close, other_name_close and
 * headers only. */
#ifndef INFERD_CALLS_FORMAT_H
#define INFERD_CALLS_FORMAT_H

#include "models/calls.h"

enum {
    CALL_STORE_BYTES = 8192,   // of all marks of a format
    CALL_MARK_BYTES = 128,     // of a mark of reasoning
    CALL_NAME_BYTES_MAX = 256, // and of what stands for a placeholder
    CALL_ID_BYTES_MAX = 64
};

#define CALL_ID    '\x01'
#define CALL_INDEX '\x02'
#define CALL_NAME  '\x03'
#define CALL_KEY   '\x04'
#define CALL_MAYBE '\x05'
#define CALL_TOKEN CHAT_TRUSTED // on both sides of the name of a control token; never in UTF-8

/* Types of argument values, where marks depend on them. */
typedef enum call_type {
    CALL_TYPE_STRING,
    CALL_TYPE_NUMBER,
    CALL_TYPE_BOOL,
    CALL_TYPE_NULL,
    CALL_TYPE_ARRAY,
    CALL_TYPE_OBJECT,
    CALL_TYPES
} call_type;

enum { CALL_HEADERS = 3 };

struct call_format {
    const char *name; // static
    call_style style;
    bool python_words;   // CALL_TAGS: constants are True, False, None
    bool raw_text;       // CALL_PYTHON: strings have no escapes
    bool tree;           // CALL_TAGS: values in lists and objects are between tags, too
    bool literals;       // lists and objects are written as Python's
    bool single;         // one call per message
    bool at_start;       // calls are the whole message: their mark is no mark elsewhere
    bool index_from_one; // CALL_INDEX counts from 1
    bytes reasoning_open, reasoning_close;
    bytes content_open, content_close;
    bytes preamble_open; // of content before calls, where content_open does not open it; or empty
    bytes headers[CALL_HEADERS]; // other forms of content_open, which are read; or empty
    bytes turn_close;            // behind all marks, before the token that ends the turn; or empty
    bytes section_open, call_open, name_close, call_close, separator, section_close;
    /* A second way to write what comes before the name, and behind it; usually none. */
    bytes other_open, other_name_close;
    bytes name_key, arguments_key; // CALL_OBJECT
    bytes quote;                   // CALL_BRACES: around strings
    /* CALL_TAGS: a value stands between key_close and value_close of its type. */
    bytes key_open, key_close[CALL_TYPES], value_close[CALL_TYPES];
    bytes item;                  // of a tree: the key of what is in a list
    bytes wrap_open, wrap_close; // around a string that has letters of marks in it; or empty
    bytes prompt_end;            // marks that the prompt ends with: the text goes on behind them
    /* CALL_OBJECT as the template writes it: before the name, between, behind the arguments. */
    bytes object_head, object_middle, object_tail;
    bool spaced, compact;         // how it writes JSON: see grammar_schema_kind
    bool prompted;                // the template shows no tools: they are described in a message
    bool prompted_in_user;        // of the user; else the system message
    bool loses_calls;             // the template writes no calls of earlier turns: they become text
    bool loses_calls_beside_text; // it writes them only in messages without a content
    bool loses_later_calls;       // of a message with several it writes the first
    const char
        *reasoning_name; // under which the template reads reasoning; static; NULL: it does not
    bool reasoning_is_content; // beside calls it refuses reasoning and content together
    bool closes_first;         // a message without reasoning begins with reasoning_close
    bool closes_turn; // reasoning_close begins the turn anew: a prompt ends with it in any case
    /* The marks of reasoning without white space around, as the template writes them and as symbols
     * of a grammar; "": none. */
    char plain_open[CALL_MARK_BYTES], plain_close[CALL_MARK_BYTES];
    char symbol_open[CALL_MARK_BYTES], symbol_close[CALL_MARK_BYTES];
    /* The marks around content, as symbols, with white space: content_open without what the prompt
     * ends with (closes_first: or reasoning_close), content_close, turn_close. */
    char content_symbols[3][CALL_MARK_BYTES];
    char why[160];
    char store[CALL_STORE_BYTES]; // the bytes of all of these
    size_t n_store;
};

/* Sets style and marks of a known format.  False: none has this name, or no room. */
bool call_format_set_known(call_format *f, const char *name);
/* The known format that a template mentions but does not write; NULL: none. */
const char *call_format_mentioned(bytes source);
/* The name of a known format with these marks; NULL: none. */
const char *call_format_like(const call_format *f);
/* Control tokens in marks are marked as such (CALL_TOKEN on both sides), and what stands behind a
 * token that ends the turn is cut off.  False: no room. */
bool call_format_bind(call_format *f, const tokenizer *tok);

/* Stores a copy of `text` as a mark.  False: no room. */
bool call_format_set(call_format *f, bytes *mark, bytes text);

/* ---- texts ---- */

static inline bytes bytes_of(const char *s) {
    return (bytes){s, __builtin_strlen(s)};
}
static inline bytes bytes_from(bytes s, size_t at) {
    return s.p == NULL ? s : (bytes){s.p + at, s.n - at};
}
static inline bool bytes_start(bytes s, bytes with) {
    return s.n >= with.n && (with.n == 0 || __builtin_memcmp(s.p, with.p, with.n) == 0);
}
static inline bool bytes_equal(bytes a, bytes b) {
    return a.n == b.n && bytes_start(a, b);
}
static inline bool call_is_white(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}
bytes bytes_trim(bytes s);                           // white space at both ends
size_t bytes_find(bytes s, bytes what, size_t from); // SIZE_MAX: it is not there

/* ---- matching ---- */

typedef enum match_result { MATCH_NO, MATCH_PART, MATCH_YES } match_result;

typedef struct match {
    match_result result;
    size_t n; // bytes of the text that were matched; white space behind them is not among them
    bytes id, name; // of a CALL_ID and a CALL_NAME in the mark
} match;

/* The mark at the start of the text, where white space counts in neither.  MATCH_PART: the text
 * ends before the mark does. */
match call_match(bytes mark, bytes text);
/* The part of a mark between the CALL_MAYBE at mark.p[k] and the next one. */
bytes call_maybe_part(bytes mark, size_t k);
/* Appends the mark with its CALL_KEY filled in. */
void call_fill_key(bytes mark, bytes key, buf *out);
/* The part of a mark that a reader looks for: up to its first white space or placeholder. */
bytes call_anchor(bytes mark);

#endif
