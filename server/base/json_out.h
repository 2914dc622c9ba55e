/* json_out.h - JSON text of answers: strings, numbers and lists of token ids, appended.
 * Thread: any. */
#ifndef INFERD_JSON_OUT_H
#define INFERD_JSON_OUT_H

#include "inferd/base.h"
#include "inferd/buf.h"
#include "models/tokenizer.h"

/* Appends s as a JSON string with its quotes; invalid UTF-8 becomes U+FFFD. */
void json_add_string(buf *out, const char *s, size_t n);
bool json_is_utf8(const char *s, size_t n); // all of it is complete characters
/* A JSON number.  -inf and NaN become -9999 (JSON has none); a locale's comma becomes a point. */
void json_add_real(buf *out, double v);
void json_add_ids(buf *out, const tok_id *ids, size_t n);
void json_add_uint(buf *out, uint64_t v);

#endif
