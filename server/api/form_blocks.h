/* form_blocks.h - the parts of an answer as blocks, one behind the other: reasoning, text, a call.
 *
 *   a part of another kind than the open block's closes that block and opens the next one
 *   NONE -> open -> more ... -> closed -> NONE
 *
 * The protocol writes what each step is on its wire (block_writer); `out` is NULL for an answer
 * that is not streamed.  Empty parts are no steps.  A closed block is added to `done`. Thread:
 * front. */
#ifndef INFERD_FORM_BLOCKS_H
#define INFERD_FORM_BLOCKS_H

#include "inferd/buf.h"
#include "message.h"

typedef enum block_kind {
    BLOCK_NONE,
    BLOCK_REASONING,
    BLOCK_TEXT,
    BLOCK_CALL,
    BLOCK_KINDS
} block_kind;

typedef struct form_blocks {
    block_kind open;
    uint32_t idx;  // of the open block, or of the next one
    bool begins;   // the open block has no content yet
    bool cut;      // a limit cut it off; a call: its arguments are not complete
    buf text;      // of it so far; of a call: its arguments
    buf id, name;  // of a call
    buf done;      // closed blocks as JSON, with commas between them
    bool discards; // `done` is not needed
} form_blocks;

/* Steps of a protocol.  `form` has the blocks; the open one is as it is after the step. */
typedef struct block_writer {
    void (*opened)(void *form, buf *out);
    void (*more)(void *form, bytes text, buf *out);
    void (*closing)(void *form, buf *out); // before `add`; out may be NULL
    void (*add)(void *form, buf *out);     // the open block, closing, as JSON
    void (*closed)(void *form, bytes block, buf *out);
} block_writer;

void blocks_deinit(form_blocks *b);
void blocks_part(form_blocks *b, const block_writer *w, void *form, const message_part *p,
                 buf *out);
void blocks_open(form_blocks *b, const block_writer *w, void *form, block_kind kind, buf *out);
/* Closes the open block, if there is one; cut: a limit ended it. */
void blocks_close(form_blocks *b, const block_writer *w, void *form, bool cut, buf *out);
static inline bytes blocks_bytes(const buf *b) {
    return (bytes){b->p == NULL ? "" : b->p, b->n};
}

#endif
