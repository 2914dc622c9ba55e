/* reasoning.h - where a model reasons before it answers.
 *
 * Such models write their reasoning between two marks, then the answer.  The chat template tells
 * which marks: it takes reasoning out of earlier turns, or opens or closes it for the next turn.
 *
 *     prompt ends with      "<think>\n"                 reasoning has begun: {NULL, "</think>"}
 *                           "<think>\n\n</think>\n\n"   the answer begins: {NULL, NULL}
 *                           "assistant\n"               the model may begin: {"<think>",
 * "</think>"}
 *
 * A mark may be a control token of the vocabulary, which a grammar writes as a symbol
 * (models/grammar.h).  A model whose mark is a token of the end has no reasoning here: its
 * generation ends with it.
 * Thread: any. */
#ifndef INFERD_REASONING_H
#define INFERD_REASONING_H

#include "models/chat.h"

/* Static texts.  end NULL: the answer begins at once.  begin NULL: reasoning has begun.  again:
 * more reasoning behind it may begin so; NULL: that is not looked for. */
typedef struct reasoning {
    const char *begin, *end, *again;
    bool begin_is_token, end_is_token; // a control token of this name; else text
} reasoning;

/* The marks that a template's source has; {NULL, NULL}: none. */
reasoning reasoning_of_source(bytes source);
/* Which of two marks come next behind a prompt; begin "": the model never writes it. */
reasoning reasoning_in_prompt(reasoning marks, const chat_input *input, const chat_text *prompt);
/* What comes next behind a prompt that was rendered from `input`.  The spans are those of
 * chat_render: only text of the template counts, or of a last message that is continued.  tok NULL:
 * no mark is a token. */
reasoning reasoning_of_prompt(const chat_template *t, const tokenizer *tok, const chat_input *input,
                              const chat_text *prompt);

#endif
