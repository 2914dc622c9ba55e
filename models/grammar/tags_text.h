/* tags_text.h - automata of the free text around structural tags.
 *
 * Free text is UTF-8 that ends, or is interrupted, by the first of some texts: the triggers of
 * tags, or the end of one tag.  A search for all of them at once (Aho and Corasick) is already a
 * deterministic automaton of about as many states as they have bytes; beside it runs a check of
 * UTF-8, which tells states apart only where no text has begun, because texts are whole characters.
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

#endif
