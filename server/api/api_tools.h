/* api_tools.h - the fields of tool calls: tools, tool_choice; functions and function_call of 2023,
 * which become these.
 * Thread: worker. */
#ifndef INFERD_API_TOOLS_H
#define INFERD_API_TOOLS_H

#include "api_params.h"

enum {
    API_TOOLS_MAX = 512,
    API_TOOL_NAME_BYTES_MAX = 128 // letters, digits and _ - . /
};

bool api_tools_read(const api_reader *r, json_t *v);
bool api_tools_read_choice(const api_reader *r, json_t *v);
bool api_tools_read_functions(const api_reader *r, json_t *v);
bool api_tools_read_function_call(const api_reader *r, json_t *v);
/* Rules between the fields; sets p->tools to those that are shown, p->called to those that may be
 * called. */
bool api_tools_check(api_params *p, api_error *err);

/* In the form of api_schema.h. */
extern const char api_tools_schema[], api_tool_choice_schema[], api_functions_schema[],
    api_function_call_schema[];

#endif
