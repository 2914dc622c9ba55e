/* message.h - the parts of a chat message in progress: reasoning, content, tool calls.
 *
 * The text of a choice goes in as it becomes certain, and comes out as deltas:
 *
 *     text --call_parser--> reasoning | content | a call begins | more of its arguments | it ends
 *
 * Each delta is given to `on` at once (a stream), and added to what a whole answer has.
 * Thread: front. */
#ifndef INFERD_MESSAGE_H
#define INFERD_MESSAGE_H

#include "inferd/buf.h"
#include "models/calls.h"

enum { PARTS_ID_BYTES = 16 };

typedef enum part_kind {
    PART_REASONING,
    PART_CONTENT,
    PART_CALL,      // a call begins: idx, id, name
    PART_ARGUMENTS, // of the call that began last
    PART_CALL_END
} part_kind;

typedef struct message_part {
    part_kind kind;
    bytes text; // of PART_REASONING, PART_CONTENT, PART_ARGUMENTS
    uint32_t call_idx;
    bytes id, name; // of PART_CALL
    bool custom;    // PART_CALL, PART_ARGUMENTS: of a custom tool; its input is one part
    bool complete;  // PART_CALL_END: the arguments are a whole object
} message_part;

typedef struct message_parts {
    call_parser *parser;    // owned
    bool hides_reasoning;   // it is left out
    bool keeps;             // the whole answer is wanted
    bool function_calls;    // one call, as function_call; those behind it are left out
    const json_t *custom;   // names of custom tools, as keys; borrowed; NULL: none
    buf reasoning, content; // kept
    buf calls;              // kept: the elements of tool_calls, or function_call, as JSON
    uint32_t n_calls;
    bool is_cut;              // the arguments of the last one are not complete
    unsigned char secret[16]; // of ids
    uint64_t n_choice;        // of the choice, for ids
    void (*on)(void *ctx, const message_part *p);
    void *ctx;
    buf arguments;  // of the present call
    bool in_custom; // it is one of a custom tool
    bool failed;    // no memory
} message_parts;

/* Borrows the format and the tools.  False: no memory. */
bool message_init(message_parts *p, const call_format *f, const call_parser_options *o);
void message_deinit(message_parts *p);
/* More text; `on` is called for each delta.  False: no memory. */
bool message_push(message_parts *p, bytes text, void (*on)(void *ctx, const message_part *),
                  void *ctx);
bool message_finish(message_parts *p, void (*on)(void *ctx, const message_part *), void *ctx);

#endif
