/* calls.h - reasoning, content and tool calls in the text of a model.
 *
 * Each family of models writes them in its own way: <tool_call>{"name": ...}</tool_call>,
 * [TOOL_CALLS]name[ARGS]{...}, [f(a=1)], and many more.  The chat template of the model knows the
 * way, because it writes the calls of earlier turns.  So a call_format is learned from the
 * template: some conversations are rendered that differ in one point, and the texts between the
 * known words are the marks of the format (learn.c).  A format is used only if it reads back what
 * the template writes.  Templates that mention calls but do not write them have known formats
 * (known.c), which are also used by their name.
 *
 *     chat_template --call_format_open--> call_format --+--> call_parser: text to events
 *                                                        +--> call_tags: what the text may be
 *
 * A text of a message is
 *
 *     [reasoning_open reasoning reasoning_close] ( [content_open] content [content_close] | calls
 * )* calls:  section_open  call (separator call)*  section_close call:   call_open name name_close
 * arguments call_close
 *
 * and the notation of the arguments is one of call_style.  Where reasoning_close begins the turn
 * anew ("<|end|><|start|>assistant"), it stands between all parts, and any of them may be
 * reasoning.
 *
 * Thread: a call_format is immutable; a parser belongs to its owner. */
#ifndef INFERD_CALLS_H
#define INFERD_CALLS_H

#include <jansson.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"
#include "models/chat.h"
#include "models/reasoning.h"

typedef enum call_style {
    CALL_NONE,   // no tool calls; the format has marks of reasoning only, or none
    CALL_OBJECT, // {"name": "f", "arguments": {...}}
    CALL_KEYED,  // {"f": {...}}
    CALL_JSON,   // the name between marks, then the arguments as JSON
    CALL_TAGS,   // the name, then a key and a value between marks for each argument
    CALL_PYTHON, // f(a=1, b='x')
    CALL_BRACES, // f{a:1,b:<mark>x<mark>}
    CALL_STYLES
} call_style;

typedef struct call_format call_format;

/* The format of a template, or the one of this name ("hermes", "mistral", ...; NULL: the
 * template's), with the marks of reasoning and content of the template.  A template without tool
 * calls has style CALL_NONE, and so has one that writes calls in a way that cannot be read back:
 * call_format_why tells.  `tok` (may be NULL): marks that are control tokens of the vocabulary are
 * matched as tokens only, never as text.
 * Errors: INFERD_ENOMEM; INFERD_EINVAL: no format has this name. */
inferd_status call_format_open(const chat_template *t, bytes source, const tokenizer *tok,
                               const char *name, call_format **out, inferd_err *err);
void call_format_close(call_format *f);  // accepts NULL
const char *call_format_named(size_t i); // the name of the i-th known format; NULL: there are fewer

const char *call_format_name(const call_format *f); // "none" without tool calls
call_style call_format_style(const call_format *f);
bool call_format_is_single(const call_format *f); // a message has one call at most
bool call_format_reasons(const call_format *f);
/* The marks around reasoning without white space, as text; "": none. */
const char *call_format_reasoning_open(const call_format *f);
const char *call_format_reasoning_close(const call_format *f);
/* How the template writes the JSON of arguments, as grammar_schema_kind has it; neither: in another
 * way. */
bool call_format_is_spaced(const call_format *f);
bool call_format_is_compact(const call_format *f);
/* Why a template's calls cannot be read; "" otherwise. */
const char *call_format_why(const call_format *f);

/* Does the template show no tools, or leave calls out?  Then a conversation that has them is
 * rendered from call_format_messages: a copy in which these calls are text in the notation of the
 * format, and, if it shows no tools, tools and results are text, too.  The control tokens of the
 * notation are between bytes CHAT_TRUSTED.  *origins: of each message of the copy the index of the
 * message that it is, of the first one where results are joined, -1 of one that was put in front; a
 * new reference.  NULL: no memory, *origins is NULL, too. */
bool call_format_is_prompted(const call_format *f);
bool call_format_loses_calls(const call_format *f);
json_t *call_format_messages(const call_format *f, const json_t *messages, const json_t *tools,
                             json_t **origins);
/* Of a message with several calls the template writes the first, and says nothing of the others. */
bool call_format_loses_later_calls(const call_format *f);

/* The messages with the reasoning of earlier turns, which clients send as reasoning_content,
 * reasoning or thinking, under the name that the template reads; a new reference, to `messages`
 * itself if nothing is to be changed.  NULL: no memory. */
json_t *call_format_reasoned(const call_format *f, json_t *messages);

/* How the answer to a prompt begins, which was rendered from `input`: texts of the format, in the
 * form that grammars have (models/grammar.h). */
reasoning call_format_before(const call_format *f, const chat_input *input,
                             const chat_text *prompt);
/* The marks of reasoning that the text may have in front of its content, once and again, whatever
 * the prompt ends with; end NULL: none, or also behind content. */
reasoning call_format_reasoning(const call_format *f);

/* Marks around content, each of which a model may write or not: before it, behind it, and at the
 * end of the turn; "": none.  Texts of the format, in the form that grammars have. */
typedef struct call_around {
    const char *marks[3];
} call_around;
call_around call_format_around(const call_format *f);
bool call_format_marks_content(const call_format *f); // before it

/* ---- reading ---- */

typedef enum call_event_kind {
    CALL_EVENT_REASONING, // text: more of the reasoning
    CALL_EVENT_CONTENT,   // text: more of the content
    CALL_EVENT_BEGIN,     // a call: name; id, or empty where the model writes none
    CALL_EVENT_ARGUMENTS, // text: more of its arguments, as JSON
    CALL_EVENT_END        // of the call
} call_event_kind;

typedef struct call_event {
    call_event_kind kind;
    bytes text, name, id; // borrowed for the call
    bool complete;        // CALL_EVENT_END: the arguments are a whole object
} call_event;

typedef void (*call_sink)(void *ctx, const call_event *ev);

typedef struct call_parser call_parser;

typedef struct call_parser_options {
    const json_t *tools; // of the request, borrowed; tells values that are text from others
    bool in_reasoning;   // the prompt opened the reasoning
    bool no_calls;       // marks of calls are text
} call_parser_options;

/* Holds the format; NULL: no memory.  Promises: however the text is cut into pieces, the events add
 * up to the same message; all text arrives, but for marks and white space around calls. */
call_parser *call_parser_create(const call_format *f, const call_parser_options *o);
void call_parser_destroy(call_parser *p); // accepts NULL
/* The next piece, whole code points.  False: no memory. */
bool call_parser_push(call_parser *p, bytes text, call_sink on, void *ctx);
/* The text is at its end: half a mark is text, but not behind a call.  An open call ends, with the
 * beginning of its arguments: they are no complete JSON, unless they were read to their end. */
bool call_parser_finish(call_parser *p, call_sink on, void *ctx);
/* The newest reasoning between its marks, as bytes [from, to) of the text that was pushed; to
 * INT64_MAX: it goes on; both 0: there was none.  It is not known yet what the text from `known` on
 * is. */
typedef struct call_reasoning {
    int64_t from, to, known;
} call_reasoning;
call_reasoning call_parser_reasoning(const call_parser *p);
/* Is this next text, which is not pushed, inside of a call or of its marks, as far as is known? */
bool call_parser_in_call(call_parser *p, bytes next);

/* ---- writing ---- */

typedef enum call_choice {
    CALL_AUTO,    // calls, text, or both
    CALL_REQUIRED // one call or more, and no text
} call_choice;

typedef struct call_tags_options {
    const json_t *tools;   // those that may be called, in OpenAI's form; borrowed; NULL: none
    const json_t *content; // a format (of structural tags) that content follows; NULL: it is free
    call_choice choice;
    bool parallel; // more than one call
    /* Tools that are not strict may have any arguments, in the notation of the format. */
    bool any_arguments;
    /* Appended to: places of schemas that are not enforced, "NAME#/properties/a/uniqueItems".
     * "NAME#": the tool may have any arguments, because the notation cannot express its schema, or
     * the schemas before it take so many values.  NULL: not told. */
    json_t *weakened;
} call_tags_options;

/* Values in the schemas of all tools, in notations that are not JSON. */
enum { CALL_TAGS_VALUES_MAX = 8192 };

/* What the text of a message may be behind its reasoning, as a structural tag
 * (models/grammar/tags.c, with control tokens): each call is one of the tools, its arguments follow
 * the tool's schema.  NULL: no memory. */
json_t *call_tags(const call_format *f, const call_tags_options *o);

#endif
