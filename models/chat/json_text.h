/* json_text.h - a JSON text inside a request or a template, to data.
 *
 * Arguments of tool calls and the filter from_json meet texts that nobody scanned.  jansson's data
 * functions survive a failing allocation, its lexer does not (it drops the character at hand, and
 * an assertion may follow), so the text is read here and only the data is jansson's.
 *
 * RFC 8259; of equal keys the last one counts; texts may hold U+0000, keys may not;
 * integers beyond 64 bits, numbers beyond a double, lone surrogates and nesting deeper than
 * JVALUE_DEPTH_MAX are errors.
 *
 * Thread: any. */
#ifndef INFERD_CHAT_JSON_TEXT_H
#define INFERD_CHAT_JSON_TEXT_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/status.h"

/* `*out` is a new reference.  INFERD_EFORMAT says where and what; INFERD_ENOMEM. */
inferd_status json_text_read(bytes text, json_t **out, inferd_err *err);

#endif
