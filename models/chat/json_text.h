/* json_text.h - parsing a JSON text inside a request or a template.
 *
 * Arguments of tool calls and the filter from_json read texts that were not checked before.
 * jansson's data functions survive a failing allocation, its lexer does not (it drops the present
 * character, and an assertion may fail), so the text is parsed here and only the data is jansson's.
 *
 * RFC 8259; of equal keys the last one counts; texts may hold U+0000, keys may not;
 * numbers beyond a double, lone surrogates and nesting deeper than
 * JVALUE_DEPTH_MAX are errors.  Integers beyond 64 bits are reals.
 *
 * Thread: any. */
#ifndef INFERD_CHAT_JSON_TEXT_H
#define INFERD_CHAT_JSON_TEXT_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/status.h"

/* `*out` is a new reference.  INFERD_EFORMAT names position and error; INFERD_ENOMEM. */
inferd_status json_text_read(bytes text, json_t **out, inferd_err *err);

/* For data that becomes values of a template: integers beyond 64 bits keep their digits.  jansson
 * has no such numbers, so they are strings that no JSON text can hold: byte 0xff, and the digits.
 */
inferd_status json_text_read_wide(bytes text, json_t **out, inferd_err *err);
const char *json_text_wide(const json_t *value); // the digits of such a string; else NULL

#endif
