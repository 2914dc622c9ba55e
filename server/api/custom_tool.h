/* custom_tool.h - a custom tool of OpenAI: its input is one text, which follows no schema.
 *
 * Models and their templates know functions, so it is shown to them as a function with one
 * argument, and a call becomes a text again before a client gets it:
 *
 *     {"name": "run", "format": ...}     a function with the parameters {"input": string}
 *     {"input": "ls -l\n"}               the arguments of a call; the client gets: ls -l
 *
 * A grammar of the input in the syntax `regex` is the string's pattern, so it is enforced as the
 * pattern of any schema is.  Another one (`lark`) is only shown to the model.
 * Thread: any. */
#ifndef INFERD_CUSTOM_TOOL_H
#define INFERD_CUSTOM_TOOL_H

#include <jansson.h>

#include "inferd/buf.h"

typedef enum custom_grammar {
    CUSTOM_FREE,     // the input is any text
    CUSTOM_ENFORCED, // it follows the pattern
    CUSTOM_SHOWN,    // the model is asked to follow a grammar
    CUSTOM_NO_MEMORY
} custom_grammar;

/* Sets `parameters` of the function, and adds the grammar to its `description`.  `grammar`: an
 * object with the strings `syntax` and `definition`; anything else: none. */
custom_grammar custom_tool_describe(json_t *function, json_t *grammar);
/* The arguments of a call with this input, as JSON text.  NULL: no memory, or not a string. */
json_t *custom_tool_arguments(json_t *input);
/* Arguments become the input: of what a limit cut off, what there is of it.  Arguments of another
 * form stay as they are.  False: no memory. */
bool custom_tool_unwrap(buf *arguments);

#endif
