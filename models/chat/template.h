/* template.h - a compiled template, for template.c (compile, render) and chat.c (conversations). */
#ifndef INFERD_CHAT_TEMPLATE_H
#define INFERD_CHAT_TEMPLATE_H

#include "chat/ast.h"
#include "models/chat.h"
#include "models/reasoning.h"

struct chat_template {
    jctx c; // owns the tree
    jast ast;
    chat_limits limits;
    bool reads_parts;         // iterates content given as a list of parts
    bool wants_argument_text; // prints function.arguments unchanged: it must be the string
    bool prints_null;         // a content that is null is output as a word: it must be ""
    bool wants_functions;     // does nothing without the texts `functions` and `datetime`
    reasoning reasoning;      // the marks in its source
};

inferd_status template_render(const chat_template *t, const chat_limits *limits, json_t *trusted,
                              json_t *vars, const struct tm *now, chat_text *out, inferd_err *err);
/* Find out how the template reads conversations, by rendering some (chat.c).  Only a lack of memory
 * is a failure. */
inferd_status chat_probe(chat_template *t, inferd_err *err);
/* chat_render of a small conversation that is not a request's, to see how the template writes it:
 * at a date of its own, within tight limits. */
inferd_status chat_try(const chat_template *t, const tokenizer *tok, const chat_input *input,
                       chat_text *out, inferd_err *err);

#endif
