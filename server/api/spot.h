/* spot.h - where in a message of a chat a byte of its prompt lies.
 *
 *     <|im_start|>assistant\n<think>  thoughts  </think>  text  <tool_call> call 0 ... call 1
 *                                     `-------'           `--'              `----'     `----'
 *                                     SPOT_REASONING, at  SPOT_CONTENT, at  SPOT_CALL, its number
 *
 * Templates write a message in this order, its texts as they are, and the name of a call before its
 * arguments: so the parts are found by their text, which is not the template's.  What a template
 * writes before a part belongs to the part.  A part that is not found is passed over, so the answer
 * is the part before it. Thread: any. */
#ifndef INFERD_SPOT_H
#define INFERD_SPOT_H

#include <jansson.h>

#include "models/chat.h"

typedef enum spot_part { SPOT_REASONING, SPOT_CONTENT, SPOT_CALL } spot_part;

typedef struct spot {
    spot_part part;
    size_t at; // byte of the text, or number of the call
} spot;

/* `message` is the one with the index `idx` of the prompt. */
spot spot_find(const chat_text *prompt, uint32_t idx, const json_t *message, size_t byte);

/* Messages [from, end) of `messages` became the one with the index `idx` of the prompt: which one
 * the byte lies in, by their contents. */
size_t spot_find_message(const chat_text *prompt, uint32_t idx, const json_t *messages, size_t from,
                         size_t end, size_t byte);

#endif
