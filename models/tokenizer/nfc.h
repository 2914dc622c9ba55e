/* nfc.h - canonical composition (NFC) of a text, by Unicode 9.0.
 *
 * Almost all text is composed already, and one pass detects that; only stretches between two safe
 * starters (characters that nothing before or after can change) are decomposed and composed again.
 * Linear in the text: a run of combining marks is sorted by counting, however long.
 *
 * Thread: any. */
#ifndef INFERD_TOKENIZER_NFC_H
#define INFERD_TOKENIZER_NFC_H

#include "inferd/buf.h"

/* True: `p` is NFC for sure.  False: nfc_append may or may not change it. */
bool nfc_is_normal(const unsigned char *p, size_t n);

/* Append the NFC of well-formed UTF-8 to `out`.  False: no memory. */
bool nfc_append(const unsigned char *p, size_t n, buf *out);

#endif
