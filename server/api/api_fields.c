/* api_fields.c - the table of api_params.h, and readers of fields that are more than one number. */
#include <string.h>

#include "api_constraint.h"
#include "api_tools.h"

/* ---- readers ---- */

static bool read_model(const api_reader *r, json_t *v) {
    if (!json_is_string(v))
        return api_fail(r->err, API_BAD_VALUE, "model", "\"model\" must be a string");
    r->p->model = json_string_value(v);
    return true;
}

static bool read_messages(const api_reader *r, json_t *v) {
    r->p->messages = v;
    return api_messages_check(v, r->err);
}

static bool bad_id(api_error *err, const char *name, size_t i) {
    char param[API_PARAM_BYTES];
    snprintf(param, sizeof param, "%s[%zu]", name, i);
    return api_fail(err, API_BAD_VALUE, param,
                    "a token id must be an integer that is not negative");
}

static bool check_ids(const api_reader *r, const char *name, json_t *v) {
    for (size_t i = 0; i < json_array_size(v); i++) {
        int64_t id;
        if (!api_json_int(json_array_get(v, i), &id) || id < 0 || id > INT32_MAX)
            return bad_id(r->err, name, i);
    }
    return true;
}

static bool empty_prompt(const api_reader *r, const char *param) {
    return api_fail(r->err, API_BAD_VALUE, param, "a prompt must not be empty");
}

/* [string] or [[int]]: one prompt each. */
static bool check_prompt_list(const api_reader *r, json_t *v) {
    size_t n = json_array_size(v);
    if (n > API_PROMPTS_MAX)
        return api_fail(r->err, API_BAD_VALUE, "prompt", "%zu prompts are more than the limit %d",
                        n, API_PROMPTS_MAX);
    bool strings = json_is_string(json_array_get(v, 0));
    for (size_t i = 0; i < n; i++) {
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "prompt[%zu]", i);
        json_t *one = json_array_get(v, i);
        if (strings ? !json_is_string(one) : !json_is_array(one))
            return api_fail(r->err, API_BAD_VALUE, param,
                            "all prompts of a list must be of one kind");
        if ((strings ? json_string_length(one) : json_array_size(one)) == 0)
            return empty_prompt(r, param);
        if (!strings && !check_ids(r, param, one)) return false;
    }
    return true;
}

static bool read_prompt(const api_reader *r, json_t *v) {
    r->p->prompt = v;
    if (json_is_string(v)) {
        bool usable = json_string_length(v) > 0 || r->p->route == API_TOKENIZE;
        return usable || empty_prompt(r, "prompt");
    }
    if (!json_is_array(v) || r->p->route == API_TOKENIZE)
        return api_fail(r->err, API_BAD_VALUE, "prompt",
                        r->p->route == API_TOKENIZE
                            ? "\"prompt\" must be a string"
                            : "\"prompt\" must be a string, an array of strings, of token ids, "
                              "or of arrays of token ids");
    json_t *first = json_array_get(v, 0);
    if (first == NULL) return empty_prompt(r, "prompt");
    if (json_is_string(first) || json_is_array(first)) return check_prompt_list(r, v);
    return check_ids(r, "prompt", v);
}

static bool read_tokens(const api_reader *r, json_t *v) {
    r->p->tokens = v;
    if (!json_is_array(v))
        return api_fail(r->err, API_BAD_VALUE, "tokens", "\"tokens\" must be an array of ids");
    return check_ids(r, "tokens", v);
}

static bool check_stop(const api_reader *r, json_t *s, const char *param) {
    if (!json_is_string(s) || json_string_length(s) == 0)
        return api_fail(r->err, API_BAD_VALUE, param,
                        "a stop string must be a string that is not empty");
    if (json_string_length(s) > API_STOP_BYTES_MAX)
        return api_fail(r->err, API_BAD_VALUE, param, "a stop string has at most %d bytes",
                        API_STOP_BYTES_MAX);
    return true;
}

static bool read_stop(const api_reader *r, json_t *v) {
    r->p->stop = v;
    if (json_is_string(v)) return check_stop(r, v, "stop");
    if (!json_is_array(v))
        return api_fail(r->err, API_BAD_VALUE, "stop",
                        "\"stop\" must be a string or an array of strings");
    if (json_array_size(v) > API_STOP_MAX)
        return api_fail(r->err, API_BAD_VALUE, "stop", "\"stop\" has at most %d strings",
                        API_STOP_MAX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char param[API_PARAM_BYTES];
        snprintf(param, sizeof param, "stop[%zu]", i);
        if (!check_stop(r, json_array_get(v, i), param)) return false;
    }
    return true;
}

static bool read_stop_ids(const api_reader *r, json_t *v) {
    r->p->stop_ids = v;
    if (!json_is_array(v) || json_array_size(v) > API_STOP_IDS_MAX)
        return api_fail(r->err, API_BAD_VALUE, "stop_token_ids",
                        "\"stop_token_ids\" must be an array of at most %d ids", API_STOP_IDS_MAX);
    return check_ids(r, "stop_token_ids", v);
}

/* A key of logit_bias: decimal digits and nothing else, so that no id can be written twice. */
static bool parse_id(const char *s, tok_id *out) {
    int64_t v = 0;
    if (s[0] == 0 || (s[0] == '0' && s[1] != 0)) return false;
    for (; *s != 0; s++) {
        if (*s < '0' || *s > '9') return false;
        v = v * 10 + (*s - '0');
        if (v > INT32_MAX) return false;
    }
    *out = (tok_id)v;
    return true;
}

static bool read_bias(const api_reader *r, json_t *v) {
    r->p->bias = v;
    if (!json_is_object(v) || json_object_size(v) > API_LOGIT_BIAS_MAX)
        return api_fail(r->err, API_BAD_VALUE, "logit_bias",
                        "\"logit_bias\" must be an object of at most %d entries",
                        API_LOGIT_BIAS_MAX);
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value) {
        char quoted[API_QUOTE_BYTES];
        tok_id id;
        double bias = json_number_value(value);
        if (!parse_id(key, &id))
            return api_fail(r->err, API_BAD_VALUE, "logit_bias",
                            "the keys of \"logit_bias\" must be token ids, not \"%s\"",
                            api_quote(quoted, key, strlen(key)));
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return api_fail(r->err, API_BAD_VALUE, "logit_bias",
                            "the values of \"logit_bias\" must be numbers from -100 to 100");
    }
    return true;
}

/* chat: a bool; completions: the number of alternatives. */
static bool read_chat_logprobs(const api_reader *r, json_t *v) {
    if (!json_is_boolean(v))
        return api_fail(r->err, API_BAD_VALUE, "logprobs", "\"logprobs\" must be true or false");
    r->p->logprobs_on = json_is_true(v);
    return true;
}

static bool read_seed(const api_reader *r, json_t *v) {
    r->p->has_seed = json_is_integer(v) || api_json_int(v, &r->p->seed);
    if (json_is_integer(v)) r->p->seed = json_integer_value(v);
    if (r->p->has_seed) return true;
    return api_fail(r->err, API_BAD_VALUE, "seed", "\"seed\" must be a 64-bit integer");
}

static bool read_top_k(const api_reader *r, json_t *v) {
    int64_t k;
    if (!api_json_int(v, &k) || k < -1 || k > INT32_MAX)
        return api_fail(r->err, API_BAD_VALUE, "top_k",
                        "\"top_k\" must be an integer from -1 to %d; -1 and 0 turn it off",
                        INT32_MAX);
    r->p->sampling[SAMPLING_TOP_K] = (double)k;
    return true;
}

static bool read_option(const api_reader *r, json_t *options, const char *name, bool *out) {
    json_t *v = json_object_get(options, name);
    if (v == NULL || json_is_null(v)) return true;
    char param[API_PARAM_BYTES];
    snprintf(param, sizeof param, "stream_options.%s", name);
    if (!json_is_boolean(v))
        return api_fail(r->err, API_BAD_VALUE, param, "\"%s\" must be true or false", name);
    *out = json_is_true(v);
    return true;
}

static bool read_stream_options(const api_reader *r, json_t *v) {
    bool obfuscation; // padding against traffic analysis; none is added, which is allowed
    if (!json_is_object(v))
        return api_fail(r->err, API_BAD_VALUE, "stream_options",
                        "\"stream_options\" must be an object");
    return read_option(r, v, "include_usage", &r->p->include_usage) &&
           read_option(r, v, "include_obfuscation", &obfuscation) &&
           read_option(r, v, "continuous_usage_stats", &r->p->continuous_usage);
}

static bool read_modalities(const api_reader *r, json_t *v) {
    if (!json_is_array(v) || json_array_size(v) == 0)
        return api_fail(r->err, API_BAD_VALUE, "modalities",
                        "\"modalities\" must be an array of strings");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *s = json_string_value(json_array_get(v, i));
        if (s == NULL || strcmp(s, "text") != 0)
            return api_fail(r->err, API_UNSUPPORTED, "modalities",
                            "only the modality \"text\" is supported");
    }
    return true;
}

/* One of a list of words, or -1. */
static int word_of(json_t *v, const char *const *words, size_t n) {
    for (size_t i = 0; json_is_string(v) && i < n; i++)
        if (strcmp(json_string_value(v), words[i]) == 0) return (int)i;
    return -1;
}

static bool read_tier(const api_reader *r, json_t *v) {
    static const char *const words[] = {"auto", "default", "flex", "priority", "scale", "fast"};
    static const int classes[] = {-1, GEN_NORMAL, GEN_BATCH, GEN_HIGH, GEN_HIGH, GEN_HIGH};
    int i = word_of(v, words, INFERD_COUNT(words));
    if (i < 0)
        return api_fail(r->err, API_BAD_VALUE, "service_tier",
                        "\"service_tier\" must be one of auto, default, flex, priority, scale, "
                        "fast");
    r->p->tier_class = classes[i];
    return true;
}

/* The name of a class, or vLLM's number: the order inside the class. */
static bool read_priority(const api_reader *r, json_t *v) {
    if (json_is_string(v))
        r->p->named_class = api_class_of(json_string_value(v), json_string_length(v));
    if (r->p->named_class >= 0) return true;
    if (api_json_int(v, &r->p->priority) && r->p->priority >= INT32_MIN &&
        r->p->priority <= INT32_MAX)
        return true;
    return api_fail(r->err, API_BAD_VALUE, "priority",
                    "\"priority\" must be system, high, normal, batch, or an integer from %d to "
                    "%d",
                    INT32_MIN, INT32_MAX);
}

static bool read_keep_alive(const api_reader *r, json_t *v) {
    r->p->has_keep_alive = config_json_duration(v, &r->p->keep_alive_us);
    if (r->p->has_keep_alive) return true;
    return api_fail(r->err, API_BAD_VALUE, "keep_alive",
                    "\"keep_alive\" must be a number of seconds, or a text like \"30\", \"250ms\", "
                    "\"1h30m\" or \"never\", of at most %d days",
                    CONFIG_DURATION_DAYS_MAX);
}

static bool read_effort(const api_reader *r, json_t *v) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    int i = word_of(v, words, INFERD_COUNT(words));
    if (i < 0)
        return api_fail(r->err, API_BAD_VALUE, "reasoning_effort",
                        "\"reasoning_effort\" must be one of none, minimal, low, medium, high, "
                        "xhigh, max");
    r->p->reasoning_effort = words[i];
    return true;
}

static bool read_thinking(const api_reader *r, json_t *v) {
    r->p->thinking = v;
    if (json_is_boolean(v)) return true;
    return api_fail(r->err, API_BAD_VALUE, "enable_thinking",
                    "\"enable_thinking\" must be true or false");
}

static bool read_verbosity(const api_reader *r, json_t *v) {
    static const char *const words[] = {"low", "medium", "high"};
    int i = word_of(v, words, INFERD_COUNT(words));
    if (i < 0)
        return api_fail(r->err, API_BAD_VALUE, "verbosity",
                        "\"verbosity\" must be one of low, medium, high");
    r->p->verbosity = words[i];
    return true;
}

/* ---- the table ---- */

#define CH  API_CHAT
#define CO  API_COMPLETION
#define TK  API_TOKENIZE
#define DT  API_DETOKENIZE
#define GEN (CH | CO)

#define CUSTOM(name_, routes_, read_, schema_, form_, what_)                                       \
    {                                                                                              \
        .name = name_, .routes = routes_, .kind = FIELD_CUSTOM, .read = read_, .schema = schema_,  \
        .form = form_, .what = what_                                                               \
    }
/* The input of a route: the request must have it. */
#define INPUT(name_, routes_, read_, schema_, form_, what_)                                        \
    {                                                                                              \
        .name = name_, .routes = routes_, .required = (routes_) & ~TK, .kind = FIELD_CUSTOM,       \
        .read = read_, .schema = schema_, .form = form_, .what = what_                             \
    }
#define INT(name_, routes_, min_, max_, member, what_)                                             \
    {                                                                                              \
        .name = name_, .routes = routes_, .kind = FIELD_INT, .min = min_, .max = max_,             \
        .offset = offsetof(api_params, member), .what = what_                                      \
    }
#define REAL(name_, routes_, min_, max_, member, what_)                                            \
    {                                                                                              \
        .name = name_, .routes = routes_, .kind = FIELD_REAL, .min = min_, .max = max_,            \
        .offset = offsetof(api_params, member), .what = what_                                      \
    }
#define REAL_ABOVE(name_, routes_, min_, max_, member, what_)                                      \
    {                                                                                              \
        .name = name_, .routes = routes_, .kind = FIELD_REAL, .min = min_, .max = max_,            \
        .above_min = true, .offset = offsetof(api_params, member), .what = what_                   \
    }
#define BOOL(name_, routes_, member, what_)                                                        \
    {                                                                                              \
        .name = name_, .routes = routes_, .kind = FIELD_BOOL,                                      \
        .offset = offsetof(api_params, member), .what = what_                                      \
    }
#define IGNORED(name_, routes_, what_)                                                             \
    { .name = name_, .routes = routes_, .kind = FIELD_IGNORED, .what = what_ }
#define REFUSED(name_, routes_, neutral_, what_)                                                   \
    { .name = name_, .routes = routes_, .kind = FIELD_REFUSED, .neutral = neutral_, .what = what_ }

#define OBJECT(name_, routes_, read_, members_, schema_, form_, what_)                             \
    {                                                                                              \
        .name = name_, .routes = routes_, .kind = FIELD_CUSTOM, .read = read_,                     \
        .members = members_, .schema = schema_, .form = form_, .what = what_                       \
    }

/* Schemas of the rows below (api_schema.h). */
#define ID             "{'type':'integer','minimum':0,'maximum':2147483647}"
#define MANY(more, of) "{'type':'array'," more "'items':" of "}"
#define STOP           "{'type':'string','minLength':1,'maxLength':@stop_bytes_max}"
#define OPTION(name)   "'" name "':{'type':['boolean','null']}"
#define NOT_EMPTY      "{'type':'string','minLength':1}"
#define JSON_OR_TEXT   "{'anyOf':[{'type':'object'}," NOT_EMPTY "]}"

static const char *const stream_options_members[] = {"stream_options.include_usage",
                                                     "stream_options.continuous_usage_stats",
                                                     "stream_options.include_obfuscation", NULL};
/* clang-format off */
static const api_field fields[] = {
    /* input */
    CUSTOM("model", GEN | TK | DT, read_model, "{'type':'string'}", "string", "a served name or alias; may be left out when the key may use only one"),
    INPUT("messages", CH | TK, read_messages, api_messages_schema, "array, not empty", "the conversation; text only; `developer` is rendered as `system`"),
    INPUT("prompt", CO, read_prompt, "{'anyOf':[{'type':'string','minLength':1}," MANY("'minItems':1,'maxItems':@prompts_max,", "{'type':'string','minLength':1}") "," MANY("'minItems':1,", ID) "," MANY("'minItems':1,'maxItems':@prompts_max,", MANY("'minItems':1,", ID)) "]}", "string, [string], [int], [[int]]", "the text; one choice per prompt times `n`"),
    INPUT("prompt", TK, read_prompt, "{'type':'string'}", "string", "the text; this or `messages`"),
    INPUT("tokens", DT, read_tokens, MANY("", ID), "[int]", "the ids to turn into text"),
    {.name = "chat_template_kwargs", .routes = CH | TK, .kind = FIELD_OBJECT, .offset = offsetof(api_params, kwargs), .what = "variables for the chat template"},
    BOOL("add_generation_prompt", CH | TK, add_generation_prompt, "open the assistant's turn; default true, false with `continue_final_message`"),
    BOOL("continue_final_message", CH | TK, continue_final_message, "leave the last message open; not together with `add_generation_prompt`"),
    BOOL("add_special_tokens", GEN | TK, add_special, "add BOS and EOS as the model says; default true for text, false for chats: their template writes them"),
    BOOL("return_token_strs", TK, show_token_strs, "answer `token_strs`: the tokens as the vocabulary writes them"),
    CUSTOM("reasoning_effort", CH, read_effort, "{'enum':['none','minimal','low','medium','high','xhigh','max']}", "none, minimal, low, medium, high, xhigh, max", "given to the chat template as `reasoning_effort`"),
    CUSTOM("enable_thinking", CH | TK, read_thinking, "{'type':'boolean'}", "bool", "given to the chat template, unless `chat_template_kwargs` has it, too"),
    CUSTOM("tools", CH | TK, api_tools_read, api_tools_schema, "array of at most 512", "functions and custom tools that the model may call, as the chat template shows them; what of the schema of a tool that is not `strict` cannot be enforced is named in the header `x-inferd-weakened`"),
    CUSTOM("tool_choice", CH, api_tools_read_choice, api_tool_choice_schema, "none, auto, required, or an object that names a function, a custom tool, or `allowed_tools`", "default auto; none: the tools are not shown to the model"),
    CUSTOM("functions", CH, api_tools_read_functions, api_functions_schema, "array of at most 512", "`tools` of 2023: one call at most, which the answer has as `function_call`; not together with `tools`"),
    CUSTOM("function_call", CH, api_tools_read_function_call, api_function_call_schema, "none, auto, or an object with the name of a function", "`tool_choice` of `functions`"),
    BOOL("parallel_tool_calls", CH, parallel_calls, "default true; false: one call at most"),
    BOOL("include_reasoning", CH, shows_reasoning, "default true; false: reasoning is left out of the answer"),
    {.name = "thinking_token_budget", .routes = CH, .kind = FIELD_INT, .min = 0, .max = 2147483647, .offset = offsetof(api_params, reasoning_max), .what = "tokens of reasoning; then the model must close it"},
    CUSTOM("verbosity", CH, read_verbosity, "{'enum':['low','medium','high']}", "low, medium, high", "given to the chat template as `verbosity`"),
    /* sampling */
    REAL("temperature", GEN, 0, 2, sampling[SAMPLING_TEMPERATURE],
         "below 0.00001 is greedy; default: of the model (sampling), else 1"),
    REAL_ABOVE("top_p", GEN, 0, 1, sampling[SAMPLING_TOP_P], "default: of the model, else 1"),
    CUSTOM("top_k", GEN, read_top_k, "{'type':'integer','minimum':-1,'maximum':2147483647}", "integer, -1 and up", "-1 and 0 turn it off; default: of the model, else off"),
    REAL("min_p", GEN, 0, 1, sampling[SAMPLING_MIN_P], "default: of the model, else 0"),
    REAL("presence_penalty", GEN, -2, 2, sampling[SAMPLING_PRESENCE_PENALTY],
         "default: of the model, else 0"),
    REAL("frequency_penalty", GEN, -2, 2, sampling[SAMPLING_FREQUENCY_PENALTY],
         "default: of the model, else 0"),
    REAL("repetition_penalty", GEN, 0.01, 100, sampling[SAMPLING_REPETITION_PENALTY],
         "prompt and output; default: of the model, else 1"),
    CUSTOM("logit_bias", GEN, read_bias, "{'type':'object','maxProperties':@logit_bias_max,'propertyNames':{'pattern':'^(0|[1-9][0-9]{0,9})$'},'additionalProperties':{'type':'number','minimum':-100,'maximum':100}}", "object: token id to number, -100 to 100", "added to the logits; ids are checked against the model's vocabulary"),
    CUSTOM("seed", GEN, read_seed, "{'type':'integer','minimum':-9223372036854775808,'maximum':9223372036854775807}", "64-bit integer", "the same seed, request and model draw the same tokens; random when absent"),
    /* amount of output */
    INT("n", GEN, 1, API_N_MAX, n, "choices per prompt; default 1; prompts times n are at most 128"),
    INT("best_of", CO, 1, API_N_MAX, best_of, "must equal `n`: more candidates than choices are not supported"),
    INT("max_tokens", CH, 1, INT32_MAX, max_tokens, "default: up to the context"),
    INT("max_tokens", CO, 0, INT32_MAX, max_tokens, "default 16; 0 only with `echo`"),
    INT("max_completion_tokens", CH, 1, INT32_MAX, max_completion_tokens, "the same as `max_tokens`; when both are given they must agree"),
    INT("min_tokens", GEN, 0, INT32_MAX, min_tokens, "the answer has at least that many tokens; at most `max_tokens`"),
    /* stopping */
    CUSTOM("stop", GEN, read_stop, "{'anyOf':[" STOP "," MANY("'maxItems':@stop_max,", STOP) "]}", "string or array of strings", "matched in the text, across token boundaries; not returned; at most 16, of at most 1024 bytes each"),
    CUSTOM("stop_token_ids", GEN, read_stop_ids, MANY("'maxItems':256,", ID), "array of at most 256 ids", "further end tokens; their text is not returned"),
    BOOL("ignore_eos", GEN, ignore_eos, "the model's own end tokens do not end the answer"),
    BOOL("include_stop_str_in_output", GEN, include_stop, "keep the stop string, or stop token, in the text"),
    BOOL("skip_special_tokens", GEN, skip_specials, "default true: control tokens give no text"),
    /* structured output: at most one of them */
    OBJECT("response_format", GEN, api_constraint_read_format, api_format_members, api_format_schema, "{\"type\": \"text\"}, json_object, json_schema, structural_tag", "the form of the answer; json_schema: `json_schema.schema`, with `strict` of OpenAI's profile; `schema` may also stand beside `type`"),
    OBJECT("structured_outputs", GEN, api_constraint_read_outputs, api_outputs_members, api_outputs_schema, "object with one of json, regex, choice, grammar, json_object, structural_tag", "vLLM's; `disable_any_whitespace`: no white space between JSON tokens; `any_order`: of properties"),
    CUSTOM("guided_json", GEN, api_constraint_read_guided_json, JSON_OR_TEXT, "JSON Schema, or its text", "the answer is a value of the schema"),
    CUSTOM("guided_regex", GEN, api_constraint_read_guided_regex, NOT_EMPTY, "string", "the whole answer matches the pattern"),
    CUSTOM("guided_choice", GEN, api_constraint_read_guided_choice, MANY("'minItems':1,", "{'type':'string'}"), "array of strings", "the answer is one of them"),
    CUSTOM("guided_grammar", GEN, api_constraint_read_guided_grammar, NOT_EMPTY, "string", "the answer follows the grammar, in GBNF"),
    IGNORED("guided_decoding_backend", GEN, "there is one"),
    REFUSED("guided_whitespace_pattern", GEN, NULL, "see `structured_outputs.disable_any_whitespace`"),
    CUSTOM("json_schema", GEN, api_constraint_read_json_schema, JSON_OR_TEXT, "JSON Schema, or its text", "the answer is a value of the schema"),
    CUSTOM("grammar", GEN, api_constraint_read_grammar, "{'type':'string'}", "string", "the answer follows the grammar, in GBNF; `\"\"`: none"),
    REFUSED("grammar_lazy", GEN, "false", "use `structural_tag`"),
    REFUSED("grammar_triggers", GEN, "[]", "use `structural_tag`"),
    CUSTOM("regex", GEN, api_constraint_read_regex, NOT_EMPTY, "string", "as `guided_regex`"),
    CUSTOM("ebnf", GEN, api_constraint_read_ebnf, NOT_EMPTY, "string", "as `guided_grammar`"),
    CUSTOM("structural_tag", GEN, api_constraint_read_tags, JSON_OR_TEXT, "object, or its text", "free text with parts that follow schemas; as `response_format` of this type"),
    /* reported data */
    CUSTOM("logprobs", CH, read_chat_logprobs, "{'type':'boolean'}", "bool", "log-probabilities of the tokens of the text"),
    INT("logprobs", CO, 0, API_TOP_MAX, n_logprobs, "log-probabilities with that many alternatives"),
    INT("top_logprobs", CH, 0, API_TOP_MAX, top_logprobs, "alternatives per token; needs `logprobs`"),
    BOOL("echo", CO, echo, "the text begins with the prompt; with `logprobs` it is scored; not with `logprobs` and `stream`"),
    BOOL("return_token_ids", GEN, show_ids, "answer `token_ids` and `prompt_token_ids`"),
    BOOL("return_tokens_as_token_ids", GEN, tokens_as_ids, "log-probabilities name tokens by their ids, as `token_id:7`"),
    BOOL("stream", GEN, stream, "server-sent events"),
    OBJECT("stream_options", GEN, read_stream_options, stream_options_members, "{'type':'object','properties':{" OPTION("include_usage") "," OPTION("continuous_usage_stats") "," OPTION("include_obfuscation") "}}", "object of bools: include_usage, continuous_usage_stats, include_obfuscation", "only with `stream`; no obfuscation is added"),
    BOOL("usage_details", GEN, usage_details, "adds `usage.inferd`: time in the queue, preemptions and their cost, the class"),
    /* scheduling */
    CUSTOM("service_tier", GEN, read_tier, "{'enum':['auto','default','flex','priority','scale','fast']}", "auto, default, flex, priority, scale, fast", "flex: batch; default: normal; auto: the model's class; priority, scale, fast: high; capped by the tenant's `max_class`; the answer names the tier that was used"),
    CUSTOM("priority", GEN, read_priority, "{'anyOf':[{'enum':['system','high','normal','batch']},{'type':'integer','minimum':-2147483648,'maximum':2147483647}]}", "system, high, normal, batch, or integer, -2147483648 to 2147483647", "a name: the class (overrides `service_tier`), capped by the tenant's `max_class`; a number: the order inside the class, smaller first; below 0 only for tenants with `max_class` high"),
    {.name = "cache_salt", .routes = GEN, .kind = FIELD_STRING, .max = API_SALT_BYTES_MAX, .offset = offsetof(api_params, cache_salt), .what = "prefix blocks are shared only under the same salt of the same tenant; not empty"},
    BOOL("cache_prompt", GEN, use_cache, "default true; false: neither read nor store prefix blocks"),
    CUSTOM("keep_alive", GEN, read_keep_alive, "{'anyOf':[{'const':-1},{'type':'number','minimum':0,'maximum':3153600000},{'type':'string','pattern':'^(never|-1|[0-9]+([.][0-9]+)?|([0-9]+([.][0-9]+)?(h|m|s|ms|us))+)$'}]}", "seconds, or a text like \"30s\", \"1h30m\", \"never\"", "how long the model stays on the device without requests; applies to all clients, until a request or the configuration sets another value; 0: evicted as soon as it is idle"),
    /* accepted: cannot change the output here */
    IGNORED("user", GEN, "not used"),
    IGNORED("metadata", GEN, "not used"),
    IGNORED("safety_identifier", GEN, "not used"),
    IGNORED("prompt_cache_key", GEN, "the prefix cache finds equal prompts by itself"),
    IGNORED("prompt_cache_retention", GEN, "not used"),
    IGNORED("store", GEN, "nothing is stored"),
    IGNORED("prediction", CH, "would change the speed, not the text"),
    IGNORED("separate_reasoning", CH, "reasoning is always separated from the content"),
    IGNORED("request_id", GEN, "ids are the server's own; see `x-request-id`"),
    IGNORED("id_slot", GEN, "there are no slots"),
    IGNORED("spaces_between_special_tokens", GEN, "the vocabulary says how tokens are joined"),
    /* refused: would change the output */
    CUSTOM("modalities", CH, read_modalities, MANY("'minItems':1,", "{'const':'text'}"), "[\"text\"]", "audio is refused"),
    REFUSED("audio", CH, NULL, "audio output"),
    REFUSED("web_search_options", CH, NULL, "web search"),
    REFUSED("moderation", GEN, NULL, "moderation"),
    REFUSED("suffix", CO, "\"\"", "insertion"),
    REFUSED("prompt_logprobs", GEN, NULL, "use `echo` with `logprobs` on /v1/completions"),
    REFUSED("prompt_embeds", CO, NULL, "embeddings as input"),
    REFUSED("input_ids", GEN, NULL, "use `prompt` on /v1/completions"),
    REFUSED("truncate_prompt_tokens", GEN | TK, NULL, "truncation of the prompt"),
    REFUSED("use_beam_search", GEN, "false", "beam search"),
    REFUSED("length_penalty", GEN, "1", "beam search"),
    REFUSED("early_stopping", GEN, "false", "beam search"),
    REFUSED("allowed_token_ids", GEN, NULL, "allowed tokens"),
    REFUSED("bad_words", GEN, "[]", "banned words; see `logit_bias`"),
    REFUSED("logits_processors", GEN, "[]", "logits processors"),
    REFUSED("custom_logit_processor", GEN, NULL, "logits processors"),
    REFUSED("logprob_token_ids", GEN, NULL, "log-probabilities of chosen tokens"),
    REFUSED("stop_regex", GEN, NULL, "see `stop`"),
    REFUSED("typical_p", GEN, "1", "this sampler"),
    REFUSED("tfs_z", GEN, "1", "this sampler"),
    REFUSED("top_a", GEN, "0", "this sampler"),
    REFUSED("top_n_sigma", GEN, "-1", "this sampler"),
    REFUSED("mirostat", GEN, "0", "this sampler"),
    REFUSED("dynatemp_range", GEN, "0", "this sampler"),
    REFUSED("dry_multiplier", GEN, "0", "this sampler"),
    REFUSED("xtc_probability", GEN, "0", "this sampler"),
    REFUSED("samplers", GEN, NULL, "an order of samplers"),
    REFUSED("n_predict", GEN, "-1", "use `max_tokens`"),
    REFUSED("n_probs", GEN, "0", "use `logprobs`"),
    REFUSED("options", GEN, "{}", "write options as fields of the request"),
    REFUSED("chat_template", CH | TK, NULL, "only the operator sets the template"),
    REFUSED("documents", CH, "[]", "use `chat_template_kwargs`"),
    REFUSED("mm_processor_kwargs", GEN | TK, "{}", "images and audio"),
    REFUSED("thinking_token_budget", CO, NULL, "a budget for reasoning: of chats only"),
    REFUSED("repetition_detection", GEN, NULL, "repetition detection"),
    REFUSED("kv_transfer_params", GEN, "{}", "transfer of keys and values"),
    REFUSED("lora_path", GEN, NULL, "adapters"),
    REFUSED("session_params", GEN, "{}", "sessions"),
    REFUSED("vllm_xargs", GEN, "{}", "engine arguments"),
};
/* clang-format on */

const api_field *api_fields(size_t *n) {
    *n = INFERD_COUNT(fields);
    return fields;
}
