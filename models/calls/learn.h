/* learn.h - parts of learning a format: reasoning and content (learn_reasoning.c), calls (learn.c,
 * learn_core.c), and whether it reads what the template writes (learn_check.c). */
#ifndef INFERD_CALLS_LEARN_H
#define INFERD_CALLS_LEARN_H

#include "calls/probe.h"

/* Where the marks of a text begin and end.  A cut in the middle of a mark, `<|tool|` or `call|>`,
 * is never meant. */
size_t learn_back(bytes s, size_t n);     // at most n: where the mark that is open at n begins
size_t learn_forward(bytes s, size_t at); // at least at: where the mark that is open at `at` ends
size_t learn_prefix(bytes a, bytes b);    // bytes that both begin with
size_t learn_suffix(bytes a, bytes b);    // bytes that both end with

/* reasoning_open, reasoning_close, content_open, content_close.  False: no memory. */
bool learn_reasoning(prober *p, bytes source, call_format *f);

/* reasoning_name, reasoning_is_content.  False: no memory. */
bool learn_reasoning_name(prober *p, bytes source, call_format *f);

/* The style, and all marks of calls.  False: no memory. */
bool learn_calls_of(prober *p, call_format *f);

/* Does the template show tools, write calls, and take a system message?  False: no memory. */
bool learn_prompted(prober *p, call_format *f);

/* One call in a text of the template. */
typedef struct call_core {
    call_style style;
    size_t at,
        end; // without the marks around: of the object, or from the name to the last argument
    size_t name_at, name_end;
    size_t args_at, args_end;             // CALL_OBJECT, CALL_KEYED, CALL_JSON: of the JSON
    bytes name_key, arguments_key, quote; // in the text, or static
} call_core;

/* The call of this name with this argument behind `from`.  False: the text has none. */
bool learn_core(bytes text, size_t from, bytes name, bytes key, bytes value, call_core *out);

/* Does the format give back calls that the template writes?  `header`: bytes of a message before
 * its calls; `end`: what ends the turn.  False: not, or no memory. */
bool learn_reads_back(prober *p, const call_format *f, size_t header, bytes end);

#endif
