/* json_cut.h - a JSON object that was cut off, closed where it ends.
 *
 * A string that was cut ends there; a key, a number or a word of which a part is missing is left
 * out, and with it what it would have belonged to:
 *
 *     {"a": "b", "c": ["d", {"e": "f     {"a": "b", "c": ["d", {"e": "f"}]}
 *     {"a": 1, "b": tr                   {"a": 1}
 *
 * It reads brackets, quotes and commas, and does not check anything else: the result must be read
 * before it counts as JSON.
 * Thread: any. */
#ifndef INFERD_API_JSON_CUT_H
#define INFERD_API_JSON_CUT_H

#include "inferd/buf.h"

/* Appends it.  False: the text is no object that was cut off, and `out` is as before; or no memory,
 * then out->failed. */
bool json_cut_close(bytes text, buf *out);

#endif
