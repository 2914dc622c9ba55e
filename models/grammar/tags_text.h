/* tags_text.h - automata of the free text around structural tags.
 *
 * Free text is UTF-8 that ends, or is interrupted, by the first of some texts: the triggers of
 * tags, or the end of one tag.  A search for all of them at once (Aho and Corasick) is already a
 * deterministic automaton of about as many states as they have bytes; beside it runs a check of
 * UTF-8, which tells states apart only where no text has begun, because texts are whole characters.
 *
 * The texts may have symbols of control tokens (grammar.h), also several with the same first
 * symbol.  Free text has none: a symbol is the begin of one of the texts, or inside of one that has
 * begun, and then that text, or another one that has the symbol there, must follow.
 * Thread: any. */
#ifndef INFERD_TAGS_TEXT_H
#define INFERD_TAGS_TEXT_H

#include "dfa.h"

enum {
    TAGS_TEXTS_MAX = 16,        // searched for at once
    TAGS_TEXTS_BYTES_MAX = 1024 // of these together
};

/* Text up to the end of the first occurrence of any of the texts (n <= TAGS_TEXTS_MAX, none empty),
 * where that is texts[which].  Empty: another one is always complete before it. */
inferd_status tags_until(const bytes *texts, size_t n, size_t which, dfa *out, inferd_err *err);
/* Text without any of them. */
inferd_status tags_without(const bytes *texts, size_t n, dfa *out, inferd_err *err);
/* Appends a text of JSON with its U+FDD0 name U+FDD1 as symbols.  False: one of these characters is
 * not where it must be, or a name is empty. */
bool tags_add_text(buf *out, bytes text);

#endif
