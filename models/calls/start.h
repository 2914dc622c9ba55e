/* start.h - calls without a mark before them (at_start): which messages are such calls.
 *
 *     {"name": "f", "parameters": ...      {"type": "function", "name": "f", ...      [f(a=1), ...
 *
 * A message begins so, behind white space and reasoning, or it is text, whatever else it looks
 * like: a JSON object of another form, a list, a link.  The parser asks call_start_match; the
 * grammar has the texts that do not begin so beside the calls, which it writes itself.  So each
 * call that the parser finds is one that the grammar wrote, of a tool of the request and with its
 * arguments. White space counts in neither, as in other marks. */
#ifndef INFERD_CALLS_START_H
#define INFERD_CALLS_START_H

#include "calls/tags.h"

/* Does the text begin as a call?  Of objects only with the name of one of the tools (NULL: any),
 * since content that follows a schema may be {"name": "Ann"}.  MATCH_PART: the text is too short.
 */
match_result call_start_match(const call_format *f, const json_t *tools, bytes text);

/* The texts that do not begin as a call of any name.  NULL: no memory. */
json_t *call_start_others(const call_format *f);
/* Content that follows a JSON Schema, without objects that begin as a call of one of the tools: a
 * new reference.  NULL: no memory. */
json_t *call_start_content(const call_format *f, const json_t *tools, const json_t *content);

/* Are calls objects of a name and arguments, as far as the template tells?  Then they are written
 * with white space anywhere between their words, and with {"type": "function"} or not. */
bool call_start_is_usual(const call_format *f);
void call_start_add_object(tag_writer *w, const call_format *f, bytes name,
                           const json_t *parameters);

#endif
