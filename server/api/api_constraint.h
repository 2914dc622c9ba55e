/* api_constraint.h - the fields that ask for structured output, and the grammar they ask for.
 *
 *   response_format, structured_outputs, guided_*, grammar, json_schema ...
 *     > api_constraint_read_*     checks the form, keeps the source: api_params.constraint
 *     > api_constraint_compile    on the same worker, when the prompt is known: a grammar_machine
 *
 * A request has one constraint at most.  What the source says is judged by the compiler, which
 * refuses what it cannot enforce and names the keyword and its path.
 * Thread: any. */
#ifndef INFERD_API_CONSTRAINT_H
#define INFERD_API_CONSTRAINT_H

#include "api_params.h"

/* Readers of rows, and the schemas of what they accept (api_schema.h). */
bool api_constraint_read_format(const api_reader *r, json_t *v);
bool api_constraint_read_outputs(const api_reader *r, json_t *v);
bool api_constraint_read_guided_json(const api_reader *r, json_t *v);
bool api_constraint_read_guided_regex(const api_reader *r, json_t *v);
bool api_constraint_read_guided_choice(const api_reader *r, json_t *v);
bool api_constraint_read_guided_grammar(const api_reader *r, json_t *v);
bool api_constraint_read_json_schema(const api_reader *r, json_t *v);
bool api_constraint_read_grammar(const api_reader *r, json_t *v);
bool api_constraint_read_regex(const api_reader *r, json_t *v);
bool api_constraint_read_ebnf(const api_reader *r, json_t *v);
bool api_constraint_read_tags(const api_reader *r, json_t *v);
extern const char api_format_schema[], api_outputs_schema[];
extern const char *const api_format_members[], *const api_outputs_members[];

/* Fields that could cut a constrained answer, or leave none. */
bool api_constraint_check(const api_params *p, api_error *err);

/* How the model writes an answer. */
typedef struct api_answer_form {
    const call_format *format; // NULL: no chat template
    reasoning before;          // the answer
    call_around around;        // content, where no tools may be called
    buf *weakened;             // what the schemas of tools do not enforce is appended
} api_answer_form;

/* The machine of p->constraint and of the tools, on the model's vocabulary; the caller owns a
 * count; NULL: the answer is free.  False: *err has the answer. */
bool api_constraint_compile(const api_params *p, const json_limits *limits, grammars *kept,
                            const model *m, const api_answer_form *given, grammar_machine **out,
                            api_error *err);

#endif
