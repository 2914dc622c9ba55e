/* api_tool_schemas.h - the schemas of the tools that may be called, checked where an error can
 * still name the tool.
 *
 * A tool with `strict` is enforced, or refused.  All strict schemas together may take the time that
 * one schema may (grammar_limits.compile_ms_max), because all of them are compiled again as parts
 * of one grammar, which has that time, too.  Equal ones are compiled once.
 *
 * No schema has the characters that name control tokens in the texts of a grammar
 * (models/grammar.h). Thread: worker. */
#ifndef INFERD_API_TOOL_SCHEMAS_H
#define INFERD_API_TOOL_SCHEMAS_H

#include "api_params.h"

/* Before the grammar of p->called is compiled. */
bool api_tool_schemas_check(const api_params *p, api_error *err);
/* And behind it: what JSON can enforce the model's own notation of calls may not; a strict tool is
 * refused then.  weakened: grammar_source.weakened. */
bool api_tool_schemas_check_enforced(const api_params *p, const buf *weakened, api_error *err);

#endif
