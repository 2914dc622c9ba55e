/* value.h - one value as a model writes it becomes JSON, byte by byte.
 *
 * Two notations are read:
 *
 *   VALUE_JSON    JSON; its text is passed on as it is
 *   VALUE_LOOSE   JSON, Python's literals and what is like them: 'text', True, None, (1, 2),
 *                 f-call arguments (a=1, b=[]), keys without quotes, and strings between marks of
 *                 the format's own (<|"|>text<|"|>)
 *
 * Some templates write quotes inside of loose text as they are, 'it's': a quote ends a loose text
 * if what follows may stand behind one.
 *
 * Text is never held back longer than one escape or mark, so the output can be streamed.  It is the
 * beginning of valid JSON, also where the text was cut or broke off.
 *
 * Thread: that of its owner. */
#ifndef INFERD_CALLS_VALUE_H
#define INFERD_CALLS_VALUE_H

#include "inferd/base.h"
#include "inferd/buf.h"

enum { VALUE_DEPTH_MAX = 128 }; // containers inside of each other

typedef enum value_notation { VALUE_JSON, VALUE_LOOSE } value_notation;

typedef enum value_step {
    VALUE_MORE,       // the byte belongs to the value, which goes on
    VALUE_ENDS,       // it is the last byte of the value
    VALUE_ENDED,      // the value ended before this byte, which does not belong to it
    VALUE_IS_NO_VALUE // it cannot stand here
} value_step;

typedef enum value_state {
    VALUE_WANTS_VALUE,
    VALUE_WANTS_FIRST, // a value, or the end of an empty array
    VALUE_WANTS_KEY,
    VALUE_WANTS_FIRST_KEY, // a key, or the end of an empty object
    VALUE_WANTS_COLON,
    VALUE_WANTS_COMMA, // or the end of the container
    VALUE_IN_STRING,
    VALUE_IN_WORD, // a number, true, a key without quotes
    VALUE_IS_OVER
} value_state;

typedef struct value_reader {
    value_notation notation;
    bytes mark; // opens and closes strings, beside quotes; borrowed; n 0: none
    value_state state;
    bool raw;         // strings that are arguments of a call have no escapes
    bool is_key;      // of the string or word
    bool in_mark;     // the string ends with the mark
    bool at_quote;    // a quote was read that may end the string
    char quote;       // the string ends with it
    uint8_t n_escape; // bytes of an escape that were read, in `escape`
    uint16_t n_mark;  // bytes of the mark that were read
    uint32_t depth;
    char open[VALUE_DEPTH_MAX]; // [depth] '{', '[', or '(' for arguments
    char escape[12];
    buf word;
} value_reader;

void value_init(value_reader *r, value_notation notation, bytes mark);
/* The arguments of a call, behind its parenthesis: they become an object. */
void value_init_arguments(value_reader *r, bytes mark, buf *out);
void value_deinit(value_reader *r);

/* The next byte.  Appends to `out`, whose `failed` tells of memory. */
value_step value_push(value_reader *r, char c, buf *out);
/* The text ends here.  False: the value was not complete. */
bool value_finish(value_reader *r, buf *out);

/* A whole text, which must be one value and nothing else but white space around it. */
bool value_read_all(value_notation notation, bytes mark, bytes text, buf *out);
/* Appends text as the inside of a JSON string, without quotes. */
void value_add_escaped(buf *out, bytes text);

#endif
