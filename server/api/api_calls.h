/* api_calls.h - calls of tools in the messages of a chat, and their results.
 *
 * Templates know one form of them: `tool_calls` of functions, answered by messages of the role
 * `tool`.  The other forms become this one:
 *
 *   function_call of an assistant    the forms of 2023: one call without an id, and its
 *   a message of the role function   result, which names the function
 *   tool_calls of the type custom    custom_tool.h
 * Thread: worker. */
#ifndef INFERD_API_CALLS_H
#define INFERD_API_CALLS_H

#include <jansson.h>

#include "api_error.h"

/* Checks the calls of message i, an object with a role. */
bool api_calls_check(json_t *message, size_t i, api_error *err);
/* Rewrites checked messages.  False: no memory. */
bool api_calls_renew(json_t *messages, api_error *err);

#endif
