/* api_params.h - the fields of a request, read by a table.
 *
 * Every field that clients of this interface send is one row: its name, its routes, its allowed
 * values, and its effect.  It is used, or accepted without effect because it cannot change the
 * output, or refused by name.  A field that is not in the table is accepted and reported
 * (unknown.h). docs/api.md lists the same rows (a test compares them).
 *
 * Rules for all rows: null is the same as absent; an integral real (5.0) is an integer; nothing
 * else is converted.  The first problem in the order of the table is reported.
 * Thread: any; an api_params belongs to its reader, with the JSON tree it points into. */
#ifndef INFERD_API_PARAMS_H
#define INFERD_API_PARAMS_H

#include <jansson.h>

#include "api_error.h"
#include "config.h"
#include "grammars.h"
#include "inferd/base.h"
#include "models/sampler.h"
#include "scheduler/gen.h"
#include "stop.h"
#include "unknown.h"

typedef enum api_route {
    API_CHAT = 1,
    API_COMPLETION = 2,
    API_TOKENIZE = 4,
    API_DETOKENIZE = 8,
    /* Their bodies become that of a chat (form.h). */
    API_RESPONSES = 16,
    API_MESSAGES = 32,
    API_COUNT_TOKENS = 64
} api_route;

enum {
    API_N_MAX = 128,
    API_TOP_MAX = SAMPLE_TOP_MAX,
    API_STOP_IDS_MAX = 256,
    API_CHOICES_MAX = 128, // prompts times n
    API_PROMPTS_MAX = 128,
    API_STOP_MAX = 16,
    API_STOP_BYTES_MAX = 1024, // of one stop string
    API_LOGIT_BIAS_MAX = 1024, // entries
    API_SALT_BYTES_MAX = 1024,
    API_TARGET_MS_MAX = 24 * 3600 * 1000, // of a target in a header
};
#define API_UNSET INT64_MIN // an integer field that was not given

/* Whether tools may, must or cannot be called. */
typedef enum tool_choice { TOOLS_UNSET, TOOLS_NONE, TOOLS_AUTO, TOOLS_REQUIRED } tool_choice;

typedef struct api_params {
    api_route route;
    json_t *root; // owned; the json_t below are borrowed from it
    unknown_fields unknown;

    const char *model; // NULL: not given, allowed where the key may use one model only
    json_t *messages;  // array, checked
    json_t *prompt;    // string or array, checked
    json_t *tokens;    // array of ids, checked
    json_t *kwargs;    // chat_template_kwargs: object or NULL
    const char *reasoning_effort, *verbosity; // NULL = not given
    json_t *thinking;                         // enable_thinking; NULL: not given
    json_t *tools;                            // shown to the model; NULL: none
    json_t *tool_idx;                         // where they stand in the request, by name; owned
    json_t *called;                           // those of them that may be called; owned
    json_t *allowed;                          // tool_choice.allowed_tools.tools
    const char *called_name, *called_param;   // of a choice, and where it stands (static)
    tool_choice choice;                       // TOOLS_NONE without tools
    bool parallel_calls;                      // more than one in an answer
    json_t *custom;        // the names of custom tools, as keys; owned; NULL: there are none
    bool function_calls;   // the tools are "functions": a call is answered as function_call
    bool shows_reasoning;  // as a field of its own; else it is left out
    int64_t reasoning_max; // tokens; API_UNSET

    double sampling[SAMPLING_PARAMS]; // NaN: not given, the model's default holds
    int64_t n, best_of;
    int64_t max_tokens;            // API_UNSET; both spellings are merged
    int64_t max_completion_tokens; // as given
    int64_t min_tokens;
    int64_t seed;
    bool has_seed;
    int64_t n_logprobs; // -1 = none, both forms of `logprobs` are merged
    int64_t top_logprobs;
    bool logprobs_on; // of a chat
    bool stream, include_usage, continuous_usage;
    bool echo, ignore_eos, include_stop, skip_specials, show_ids, tokens_as_ids, use_cache;
    bool add_special; // adds a BOS if the model's vocabulary says so
    bool add_generation_prompt, continue_final_message, show_token_strs;
    /* What the output must follow; borrowed.  JSON that was given as text is in `text`. */
    grammar_source constraint;
    const char *constraint_field; // static: "response_format"
    const char *constraint_param; // static: where it stands, "response_format.json_schema.schema"
    json_t *stop;                 // string, or array of strings, checked
    json_t *stop_ids;             // array, checked
    json_t *bias;                 // object, checked
    int tier_class;               // of "service_tier", not capped; -1 = none
    int named_class;              // of a name in "priority", not capped; -1 = none
    int64_t priority;             // a number in "priority"
    const char *cache_salt;       // NULL = none
    bool has_keep_alive;
    uint64_t keep_alive_us; // POLICY_NEVER is one of its values
    bool usage_details;
} api_params;

/* Hints that gateways send in headers. */
typedef struct api_hints {
    int named_class;                         // x-inferd-class; -1 = none
    uint32_t ttft_target_ms, tpot_target_ms; // 0 = none
    bool again;                              // x-stainless-retry-count is not 0
    bool explain;                            // x-inferd-explain: 1
} api_hints;

typedef enum api_field_kind {
    FIELD_BOOL,
    FIELD_INT,
    FIELD_REAL,
    FIELD_STRING,
    FIELD_OBJECT,
    FIELD_CUSTOM,  // read by a function of its own
    FIELD_IGNORED, // of any JSON type, no effect
    FIELD_REFUSED  // unsupported_parameter, except for its neutral value
} api_field_kind;

typedef struct api_reader {
    api_params *p;
    api_error *err;
} api_reader;

typedef struct api_field {
    const char *name;
    unsigned routes;   // of api_route
    unsigned required; // of them, those that cannot do without it
    api_field_kind kind;
    double min, max;     // FIELD_INT, FIELD_REAL; FIELD_STRING: max bytes
    bool above_min;      // min itself is not allowed
    size_t offset;       // of the member it sets
    const char *neutral; // FIELD_REFUSED: the JSON value without effect, which is accepted; or NULL
    bool (*read)(const api_reader *r, json_t *v); // FIELD_CUSTOM
    /* For an object with known members only: their paths ("stream_options.include_usage"), then
     * NULL.  NULL: not an object, or one with members of any name. */
    const char *const *members;
    const char *schema; // FIELD_CUSTOM: the values that `read` accepts, in the form of api_schema.h
    const char *form;   // documentation: type and range of a custom field; NULL = from the above
    const char *what;   // documentation: its effect, or why it has none
} api_field;

const api_field *api_fields(size_t *n);

/* Parses and checks a body.  False: *err has the answer.  Checks everything that needs no model;
 * api_params_check checks the rest.  `p` needs deinit in both cases. */
bool api_params_read(api_route route, const json_limits *limits, bytes body, api_params *p,
                     api_error *err);
/* The two halves of it: a new reference to the object; its check, which takes the reference. */
bool api_params_parse(const json_limits *limits, bytes body, json_t **root, api_error *err);
bool api_params_take(api_route route, json_t *root, api_params *p, api_error *err);
/* The checks that need the model: every id is below n_vocab. */
bool api_params_check(const api_params *p, uint32_t n_vocab, api_error *err);
void api_params_deinit(api_params *p);

/* Reads headers by name; p NULL: absent.  False: *err names the invalid one. */
bool api_hints_read(bytes (*header)(void *ctx, const char *name), void *ctx, api_hints *out,
                    api_error *err);

/* From checked fields.  NULL: no memory (or *n = 0 if there are none). */
stop_set *api_take_stops(const api_params *p);
tok_id *api_take_ids(json_t *array, size_t *n);
logit_bias *api_take_bias(const api_params *p, size_t *n);

/* Checks the messages of a chat: roles, contents and parts.  `developer` becomes `system`. */
bool api_messages_check(json_t *messages, api_error *err);
extern const char api_messages_schema[]; // of them, in the form of api_schema.h

/* "system", "high", "normal", "batch". */
const char *api_class_name(gen_class prio);
int api_class_of(const char *name, size_t n); // -1: none of them

/* An integer, or a real with an integral value.  False: not an integer, or beyond 2^53. */
bool api_json_int(const json_t *v, int64_t *out);

#endif
