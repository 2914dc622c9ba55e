/* api_constraint.c - see api_constraint.h. */
#include "api_constraint.h"

#include <string.h>

#include "api_tool_schemas.h"

/* Where a source stands: the field of the request, and the path of the source in it.  Static. */
typedef struct place {
    const char *field, *param;
} place;

static json_t *given(json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return v == NULL || json_is_null(v) ? NULL : v;
}

static bool keep(const api_reader *r, place at, grammar_source source) {
    api_params *p = r->p;
    if (p->constraint.kind != GRAMMAR_NONE)
        return api_fail(r->err, API_BAD_VALUE, at.param,
                        "\"%s\" and \"%s\" both constrain the output; a request can have one of "
                        "them",
                        p->constraint_param, at.param);
    p->constraint = source;
    p->constraint_field = at.field;
    p->constraint_param = at.param;
    return true;
}

/* ---- one source ---- */

static bool keep_text(const api_reader *r, json_t *v, place at, grammar_kind kind) {
    bytes text = {json_string_value(v), json_string_length(v)};
    if (text.n > 0) return keep(r, at, (grammar_source){.kind = kind, .text = text});
    return api_fail(r->err, API_BAD_VALUE, at.param, "\"%s\" must be a string that is not empty",
                    at.param);
}

/* An object, or its JSON text, which api_constraint_compile parses. */
static bool keep_json(const api_reader *r, json_t *v, place at, grammar_kind kind) {
    bytes text = {json_string_value(v), json_string_length(v)};
    if (json_is_object(v)) return keep(r, at, (grammar_source){.kind = kind, .json = v});
    if (text.n > 0) return keep(r, at, (grammar_source){.kind = kind, .text = text});
    return api_fail(r->err, API_BAD_VALUE, at.param, "\"%s\" must be an object, or the text of one",
                    at.param);
}

static bool keep_choices(const api_reader *r, json_t *v, place at) {
    size_t n = json_array_size(v);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(v, i))) n = 0;
    if (n > 0) return keep(r, at, (grammar_source){.kind = GRAMMAR_CHOICE, .json = v});
    return api_fail(r->err, API_BAD_VALUE, at.param,
                    "\"%s\" must be an array of strings that is not empty", at.param);
}

bool api_constraint_read_guided_json(const api_reader *r, json_t *v) {
    return keep_json(r, v, (place){"guided_json", "guided_json"}, GRAMMAR_SCHEMA);
}
bool api_constraint_read_guided_regex(const api_reader *r, json_t *v) {
    return keep_text(r, v, (place){"guided_regex", "guided_regex"}, GRAMMAR_REGEX);
}
bool api_constraint_read_guided_choice(const api_reader *r, json_t *v) {
    return keep_choices(r, v, (place){"guided_choice", "guided_choice"});
}
bool api_constraint_read_guided_grammar(const api_reader *r, json_t *v) {
    return keep_text(r, v, (place){"guided_grammar", "guided_grammar"}, GRAMMAR_GBNF);
}
bool api_constraint_read_json_schema(const api_reader *r, json_t *v) {
    return keep_json(r, v, (place){"json_schema", "json_schema"}, GRAMMAR_SCHEMA);
}
bool api_constraint_read_regex(const api_reader *r, json_t *v) {
    return keep_text(r, v, (place){"regex", "regex"}, GRAMMAR_REGEX);
}
bool api_constraint_read_ebnf(const api_reader *r, json_t *v) {
    return keep_text(r, v, (place){"ebnf", "ebnf"}, GRAMMAR_GBNF);
}
bool api_constraint_read_tags(const api_reader *r, json_t *v) {
    return keep_json(r, v, (place){"structural_tag", "structural_tag"}, GRAMMAR_TAGS);
}

/* llama-server's clients send "" for none. */
bool api_constraint_read_grammar(const api_reader *r, json_t *v) {
    if (json_is_string(v) && json_string_length(v) == 0) return true;
    return keep_text(r, v, (place){"grammar", "grammar"}, GRAMMAR_GBNF);
}

/* ---- response_format ---- */

typedef enum format_type { OF_TEXT, OF_OBJECT, OF_SCHEMA, OF_TAGS, FORMAT_TYPES } format_type;
static const char *const format_types[FORMAT_TYPES] = {"text", "json_object", "json_schema",
                                                       "structural_tag"};

/* Members, and the types that they belong to, as bits. */
static const struct {
    const char *name;
    unsigned types;
} format_rows[] = {{"json_schema", 1 << OF_SCHEMA}, {"schema", 1 << OF_OBJECT | 1 << OF_SCHEMA},
                   {"name", 1 << OF_SCHEMA},        {"description", 1 << OF_SCHEMA},
                   {"strict", 1 << OF_SCHEMA},      {"structures", 1 << OF_TAGS},
                   {"triggers", 1 << OF_TAGS},      {"format", 1 << OF_TAGS}};

const char *const api_format_members[] = {
    "response_format.type",        "response_format.json_schema",
    "response_format.schema",      "response_format.name",
    "response_format.description", "response_format.strict",
    "response_format.structures",  "response_format.triggers",
    "response_format.format",      NULL};

static bool fail_member(const api_reader *r, const char *path, const char *name, const char *must) {
    char param[API_PARAM_BYTES];
    snprintf(param, sizeof param, "%s.%s", path, name);
    return api_fail(r->err, API_BAD_VALUE, param, "\"%s\" must be %s", name, must);
}

/* The members of a schema's description, at `path` ("response_format.json_schema"). */
static bool read_described(const api_reader *r, json_t *v, const char *path, place at) {
    static const char *const texts[] = {"name", "description"};
    json_t *schema = given(v, "schema"), *strict = given(v, "strict");
    for (size_t i = 0; i < INFERD_COUNT(texts); i++) {
        json_t *text = given(v, texts[i]);
        if (text != NULL && !json_is_string(text))
            return fail_member(r, path, texts[i], "a string");
    }
    if (strict != NULL && !json_is_boolean(strict))
        return fail_member(r, path, "strict", "true or false");
    if (schema == NULL)
        return api_fail(r->err, API_MISSING, at.param, "\"%s\" is required: the JSON Schema",
                        at.param);
    if (!json_is_object(schema)) return fail_member(r, path, "schema", "an object");
    return keep(
        r, at,
        (grammar_source){.kind = GRAMMAR_SCHEMA, .json = schema, .strict = json_is_true(strict)});
}

/* Members of json_schema that are not known are reported, as those of response_format are. */
static void note_unknown(const api_reader *r, json_t *described) {
    static const char *const known[] = {"name", "description", "schema", "strict"};
    const char *key;
    json_t *value;
    json_object_foreach(described, key, value) {
        char path[2 * API_QUOTE_BYTES];
        bool is_known = false;
        for (size_t i = 0; i < INFERD_COUNT(known); i++) is_known |= strcmp(key, known[i]) == 0;
        snprintf(path, sizeof path, "response_format.json_schema.%s", key);
        if (!is_known) unknown_add(&r->p->unknown, path);
    }
}

/* OpenAI nests the schema in `json_schema`; llama-server, and OpenAI's /v1/responses, do not. */
static bool read_schema_format(const api_reader *r, json_t *v) {
    json_t *nested = given(v, "json_schema");
    place at = {"response_format", "response_format.json_schema.schema"};
    if (nested == NULL && given(v, "schema") == NULL)
        return api_fail(r->err, API_MISSING, "response_format.json_schema",
                        "\"response_format.json_schema\" is required for this type");
    if (nested == NULL)
        return read_described(r, v, "response_format",
                              (place){"response_format", "response_format.schema"});
    static const char *const flat[] = {"schema", "name", "description", "strict"};
    for (size_t i = 0; i < INFERD_COUNT(flat); i++)
        if (given(v, flat[i]) != NULL)
            return fail_member(r, "response_format", flat[i], "inside of \"json_schema\"");
    if (!json_is_object(nested))
        return fail_member(r, "response_format", "json_schema", "an object");
    note_unknown(r, nested);
    return read_described(r, nested, "response_format.json_schema", at);
}

static bool read_object_format(const api_reader *r, json_t *v) {
    if (given(v, "schema") != NULL)
        return read_described(r, v, "response_format",
                              (place){"response_format", "response_format.schema"});
    return keep(r, (place){"response_format", "response_format"},
                (grammar_source){.kind = GRAMMAR_OBJECT});
}

/* Tags that are triggered, or xgrammar's `format`; the compiler reads what is in them. */
static bool read_tags_format(const api_reader *r, json_t *v) {
    static const char *const lists[] = {"structures", "triggers"};
    json_t *format = given(v, "format");
    for (size_t i = 0; i < INFERD_COUNT(lists); i++) {
        json_t *list = given(v, lists[i]);
        if (format != NULL && list != NULL)
            return fail_member(r, "response_format", lists[i], "left out beside \"format\"");
        if (format == NULL && json_array_size(list) == 0)
            return fail_member(r, "response_format", lists[i], "an array that is not empty");
    }
    if (format != NULL && !json_is_object(format))
        return fail_member(r, "response_format", "format", "an object");
    return keep(r, (place){"response_format", "response_format"},
                (grammar_source){.kind = GRAMMAR_TAGS, .json = v});
}

bool api_constraint_read_format(const api_reader *r, json_t *v) {
    const char *name = json_string_value(json_object_get(v, "type"));
    char quoted[API_QUOTE_BYTES];
    int type = 0;
    if (name == NULL)
        return api_fail(r->err, API_BAD_VALUE, "response_format",
                        "\"response_format\" must be an object with a string \"type\"");
    while (type < FORMAT_TYPES && strcmp(name, format_types[type]) != 0) type++;
    if (type == FORMAT_TYPES)
        return api_fail(r->err, API_UNSUPPORTED, "response_format.type",
                        "a response_format is of type text, json_object, json_schema or "
                        "structural_tag, not \"%s\"",
                        api_quote(quoted, name, strlen(name)));
    for (size_t i = 0; i < INFERD_COUNT(format_rows); i++) {
        char must[64];
        if ((format_rows[i].types & 1u << type) != 0 || given(v, format_rows[i].name) == NULL)
            continue;
        snprintf(must, sizeof must, "left out for the type \"%s\"", name);
        return fail_member(r, "response_format", format_rows[i].name, must);
    }
    switch ((format_type)type) {
    case OF_OBJECT:
        return read_object_format(r, v);
    case OF_SCHEMA:
        return read_schema_format(r, v);
    case OF_TAGS:
        return read_tags_format(r, v);
    default:
        return true;
    }
}

/* clang-format off */
#define NO(name)     "'" name "':{'type':'null'}"
#define NO_FLAT      NO("schema") "," NO("name") "," NO("description") "," NO("strict")
#define NO_TAGS      NO("structures") "," NO("triggers") "," NO("format")
#define OF(type)     "{'type':'object','required':['type'],'properties':{'type':{'const':'" type "'},"
#define WITH(type, member) "{'type':'object','required':['type','" member "'],'properties':{'type':{'const':'" type "'},"
#define MAYBE(type)  "{'type':['" type "','null']}"
#define DESCRIBED    "'name':" MAYBE("string") ",'description':" MAYBE("string") ",'strict':" MAYBE("boolean") ",'schema':{'type':'object'}"
#define LIST         "{'type':'array','minItems':1}"

const char api_format_schema[] =
    "{'anyOf':["
    OF("text") NO("json_schema") "," NO_FLAT "," NO_TAGS "}},"
    OF("json_object") "'schema':" MAYBE("object") "," NO("json_schema") "," NO("name") "," NO("description") "," NO("strict") "," NO_TAGS "}},"
    WITH("json_schema", "json_schema") "'json_schema':{'type':'object','required':['schema'],'properties':{" DESCRIBED "}}," NO_FLAT "," NO_TAGS "}},"
    WITH("json_schema", "schema") DESCRIBED "," NO("json_schema") "," NO_TAGS "}},"
    "{'type':'object','required':['type','structures','triggers'],'properties':{'type':{'const':'structural_tag'},'structures':" LIST ",'triggers':" LIST "," NO("format") "," NO("json_schema") "," NO_FLAT "}},"
    WITH("structural_tag", "format") "'format':{'type':'object'}," NO("structures") "," NO("triggers") "," NO("json_schema") "," NO_FLAT "}}"
    "]}";
/* clang-format on */

/* ---- structured_outputs ---- */

static bool read_option(const api_reader *r, json_t *outputs, const char *name, bool *on) {
    json_t *v = given(outputs, name);
    if (v != NULL && !json_is_boolean(v))
        return fail_member(r, "structured_outputs", name, "true or false");
    *on = json_is_true(v);
    return true;
}

/* Options that would change the language. */
static bool refuse_options(const api_reader *r, json_t *v) {
    json_t *closed = given(v, "disable_additional_properties");
    if (given(v, "whitespace_pattern") != NULL)
        return api_fail(r->err, API_UNSUPPORTED, "structured_outputs.whitespace_pattern",
                        "\"whitespace_pattern\" is not supported; see "
                        "\"disable_any_whitespace\"");
    if (closed != NULL && !json_is_false(closed))
        return api_fail(r->err, API_UNSUPPORTED, "structured_outputs.disable_additional_properties",
                        "\"disable_additional_properties\" is not supported; write "
                        "\"additionalProperties\": false in the schema");
    return true;
}

const char *const api_outputs_members[] = {"structured_outputs.json",
                                           "structured_outputs.regex",
                                           "structured_outputs.choice",
                                           "structured_outputs.grammar",
                                           "structured_outputs.json_object",
                                           "structured_outputs.structural_tag",
                                           "structured_outputs.disable_any_whitespace",
                                           "structured_outputs.any_order",
                                           "structured_outputs.disable_fallback",
                                           "structured_outputs.disable_additional_properties",
                                           "structured_outputs.whitespace_pattern",
                                           NULL};

static bool read_sources(const api_reader *r, json_t *v, bool any_object) {
    static const char field[] = "structured_outputs";
    json_t *json = given(v, "json"), *regex = given(v, "regex"), *choice = given(v, "choice"),
           *gbnf = given(v, "grammar"), *tags = given(v, "structural_tag");
    return (json == NULL ||
            keep_json(r, json, (place){field, "structured_outputs.json"}, GRAMMAR_SCHEMA)) &&
           (regex == NULL ||
            keep_text(r, regex, (place){field, "structured_outputs.regex"}, GRAMMAR_REGEX)) &&
           (choice == NULL ||
            keep_choices(r, choice, (place){field, "structured_outputs.choice"})) &&
           (gbnf == NULL ||
            keep_text(r, gbnf, (place){field, "structured_outputs.grammar"}, GRAMMAR_GBNF)) &&
           (!any_object || keep(r, (place){field, "structured_outputs.json_object"},
                                (grammar_source){.kind = GRAMMAR_OBJECT})) &&
           (tags == NULL ||
            keep_json(r, tags, (place){field, "structured_outputs.structural_tag"}, GRAMMAR_TAGS));
}

bool api_constraint_read_outputs(const api_reader *r, json_t *v) {
    bool any_object = false, compact = false, any_order = false;
    bool fallback; // there is one engine: none
    if (!json_is_object(v))
        return api_fail(r->err, API_BAD_VALUE, "structured_outputs",
                        "\"structured_outputs\" must be an object");
    if (!read_option(r, v, "json_object", &any_object) ||
        !read_option(r, v, "disable_any_whitespace", &compact) ||
        !read_option(r, v, "any_order", &any_order) ||
        !read_option(r, v, "disable_fallback", &fallback) || !refuse_options(r, v) ||
        !read_sources(r, v, any_object))
        return false;
    if (r->p->constraint_field == NULL || strcmp(r->p->constraint_field, "structured_outputs") != 0)
        return api_fail(r->err, API_BAD_VALUE, "structured_outputs",
                        "\"structured_outputs\" must have one of json, regex, choice, grammar, "
                        "json_object, structural_tag");
    r->p->constraint.compact = compact;
    r->p->constraint.any_order = any_order;
    return true;
}

/* clang-format off */
#define OPTIONS     "'disable_any_whitespace':" MAYBE("boolean") ",'any_order':" MAYBE("boolean") ",'disable_fallback':" MAYBE("boolean") ",'disable_additional_properties':{'enum':[false,null]}," NO("whitespace_pattern")
#define NO_OBJECT   "'json_object':{'enum':[false,null]}"
#define ONE(name, of) "{'type':'object','required':['" name "'],'properties':{'" name "':" of "," OPTIONS ","
#define TEXT        "{'type':'string','minLength':1}"
#define JSON        "{'anyOf':[{'type':'object'}," TEXT "]}"

const char api_outputs_schema[] =
    "{'anyOf':["
    ONE("json", JSON) NO("regex") "," NO("choice") "," NO("grammar") "," NO_OBJECT "," NO("structural_tag") "}},"
    ONE("regex", TEXT) NO("json") "," NO("choice") "," NO("grammar") "," NO_OBJECT "," NO("structural_tag") "}},"
    ONE("choice", "{'type':'array','minItems':1,'items':{'type':'string'}}") NO("json") "," NO("regex") "," NO("grammar") "," NO_OBJECT "," NO("structural_tag") "}},"
    ONE("grammar", TEXT) NO("json") "," NO("regex") "," NO("choice") "," NO_OBJECT "," NO("structural_tag") "}},"
    ONE("json_object", "{'const':true}") NO("json") "," NO("regex") "," NO("choice") "," NO("grammar") "," NO("structural_tag") "}},"
    ONE("structural_tag", JSON) NO("json") "," NO("regex") "," NO("choice") "," NO("grammar") "," NO_OBJECT "}}"
    "]}";
/* clang-format on */

/* ---- with the rest of the request ---- */

bool api_constraint_check(const api_params *p, api_error *err) {
    if (p->constraint.kind == GRAMMAR_NONE) return true;
    bool stops = json_is_string(p->stop) || json_array_size(p->stop) > 0;
    err->other = p->constraint_field;
    if (stops || json_array_size(p->stop_ids) > 0)
        return api_fail(err, API_BAD_VALUE, stops ? "stop" : "stop_token_ids",
                        "\"%s\" could cut an answer that \"%s\" wants whole; leave one of them out",
                        stops ? "stop" : "stop_token_ids", p->constraint_field);
    if (p->max_tokens == 0)
        return api_fail(err, API_BAD_VALUE, "max_tokens",
                        "\"max_tokens\": 0 leaves no answer for \"%s\"", p->constraint_field);
    err->other = NULL;
    return true;
}

/* The compiler's words, under a code of their own: the client's schema is wrong, not its request.
 */
static bool fail_compile(const char *param, const inferd_err *why, api_error *err) {
    switch (why->status) {
    case INFERD_EINVAL:
        return api_fail(err, API_BAD_SCHEMA, param, "%s", why->text);
    case INFERD_EUNSUPPORTED:
    case INFERD_ETOOLONG:
    case INFERD_ETIMEOUT:
        return api_fail(err, API_UNSUPPORTED_SCHEMA, param, "%s", why->text);
    case INFERD_EBUSY: // requests end all the time
        api_fail_status(err, why, param);
        api_retry_after(err, 1000);
        return false;
    default:
        return api_fail_status(err, why, param);
    }
}

/* A source given as the text of JSON: its value, a new reference in *parsed. */
static void parse_source(const api_params *p, const json_limits *limits, grammar_source *source,
                         json_t **parsed, inferd_err *why) {
    bool as_text = source->kind == GRAMMAR_SCHEMA || source->kind == GRAMMAR_TAGS;
    if (!as_text || source->json != NULL) return;
    inferd_status s = json_in_parse(source->text, limits, parsed, why);
    if (s == INFERD_OK && !json_is_object(*parsed))
        inferd_fail(why, INFERD_EINVAL, "the text is JSON, but not of an object");
    if (why->status == INFERD_EINVAL || why->status == INFERD_ETOOLONG)
        inferd_context(why, "%s", p->constraint_param);
    source->json = *parsed;
}

/* ---- tools ---- */

static bool fail_memory(api_error *err) {
    return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
}

static bool check_format(const call_format *f, api_error *err) {
    if (f != NULL && call_format_style(f) != CALL_NONE) return true;
    const char *why = f == NULL ? "it has no chat template" : call_format_why(f);
    return api_fail(err, API_UNSUPPORTED, "tools",
                    "the model cannot call tools: %s; an operator can set its \"tool_format\"",
                    why[0] != 0 ? why : "its chat template has no tool calls");
}

/* The content beside tools, where its form is constrained, too: a format of structural tags. */
static bool content_format(const api_params *p, const grammar_source *source, json_t **out,
                           api_error *err) {
    *out = NULL;
    if (source->kind == GRAMMAR_NONE || p->choice == TOOLS_REQUIRED) return true;
    if (source->kind != GRAMMAR_SCHEMA && source->kind != GRAMMAR_OBJECT)
        return api_fail(err, API_UNSUPPORTED, p->constraint_param,
                        "\"%s\" beside \"tools\" must be a JSON Schema or json_object",
                        p->constraint_param);
    json_t *schema = source->kind == GRAMMAR_SCHEMA ? json_incref(source->json)
                                                    : json_pack("{s:s}", "type", "object");
    *out = json_pack("{s:s,s:o}", "type", "json_schema", "json_schema", schema);
    return *out != NULL || fail_memory(err);
}

/* What tools make of the source: structural tags, a new reference in *tags; the places of schemas
 * that they do not enforce are in *places, a new reference. */
static bool add_tools(const api_params *p, const api_answer_form *form, bool any_arguments,
                      grammar_source *source, json_t **tags, json_t **places, api_error *err) {
    json_t *content;
    if (!content_format(p, source, &content, err)) return false;
    *places = json_array();
    call_tags_options o = {.tools = p->called,
                           .content = content,
                           .choice = p->choice == TOOLS_REQUIRED ? CALL_REQUIRED : CALL_AUTO,
                           .parallel = p->parallel_calls,
                           .any_arguments = any_arguments,
                           .weakened = *places};
    *tags = *places == NULL ? NULL : call_tags(form->format, &o);
    json_decref(content);
    *source = (grammar_source){.kind = GRAMMAR_TAGS,
                               .json = *tags,
                               .tokens = true,
                               .any_order = true,
                               .spaced = call_format_is_spaced(form->format),
                               .compact = call_format_is_compact(form->format),
                               .weakened = form->weakened};
    return *tags != NULL || fail_memory(err);
}

/* Free text behind reasoning that has a budget: `before` has marks, so there is a format. */
static bool add_free(const api_answer_form *form, grammar_source *source, json_t **tags,
                     api_error *err) {
    *tags = call_tags(form->format, &(call_tags_options){0});
    *source = (grammar_source){.kind = GRAMMAR_TAGS, .json = *tags, .tokens = true};
    return *tags != NULL || fail_memory(err);
}

static bool has_loose_tool(const json_t *tools) {
    bool any = false;
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) any |=
        !json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
    return any;
}

/* A budget is one of all reasoning: it may come again, and also behind a prompt that closed it. */
static void bound_reasoning(const api_params *p, api_answer_form *form) {
    if (p->reasoning_max == API_UNSET || form->format == NULL) return;
    reasoning marks = call_format_reasoning(form->format);
    bool is_free = p->constraint.kind == GRAMMAR_NONE && p->choice != TOOLS_REQUIRED;
    if (form->before.end == NULL && is_free) form->before = marks;
    if (form->before.end != NULL) form->before.again = marks.begin;
}

/* Compiles what tools may be called with.  If that fails, tools that are not strict may have any
 * arguments: their requests are not refused because of what need not be enforced.  False: err is
 * set; else *out, or `why`. */
static bool compile_tools(const api_params *p, grammars *kept, const model *m,
                          const api_answer_form *form, const grammar_source *given_source,
                          grammar_machine **out, inferd_err *why, api_error *err) {
    size_t n_weakened = form->weakened->n, i;
    json_t *one;
    bool ok = true, again = true;
    if (!check_format(form->format, err) || !api_tool_schemas_check(p, err)) return false;
    for (int any = 0; any < 2 && ok && again; any++) {
        grammar_source source = *given_source;
        json_t *tags = NULL, *places = NULL;
        *why = (inferd_err){0};
        form->weakened->n = n_weakened;
        ok = add_tools(p, form, any, &source, &tags, &places, err);
        source.reasoning = form->before;
        if (ok) grammars_get(kept, m, &source, out, why);
        json_array_foreach(places, i, one)
            grammars_add_weakened(form->weakened, json_string_value(one), "");
        json_decref(tags);
        json_decref(places);
        again = *out == NULL && why->status != INFERD_ENOMEM && why->status != INFERD_EBUSY &&
                has_loose_tool(p->called);
    }
    if (!ok || *out == NULL || api_tool_schemas_check_enforced(p, form->weakened, err)) return ok;
    grammar_machine_release(*out);
    *out = NULL;
    return false;
}

bool api_constraint_compile(const api_params *p, const json_limits *limits, grammars *kept,
                            const model *m, const api_answer_form *given, grammar_machine **out,
                            api_error *err) {
    grammar_source source = p->constraint;
    api_answer_form copy = *given, *form = &copy;
    bound_reasoning(p, form);
    inferd_err why = {0};
    json_t *parsed = NULL, *tags = NULL;
    bool with_tools = p->choice == TOOLS_AUTO || p->choice == TOOLS_REQUIRED, ok = true;
    bool bounded = p->reasoning_max != API_UNSET && form->before.end != NULL;
    *out = NULL;
    if (source.kind == GRAMMAR_NONE && !with_tools && !bounded) return true;
    parse_source(p, limits, &source, &parsed, &why);
    if (why.status == INFERD_OK && with_tools) {
        ok = compile_tools(p, kept, m, form, &source, out, &why, err);
    } else if (why.status == INFERD_OK) {
        source.around = form->around;
        if (source.kind == GRAMMAR_NONE) ok = add_free(form, &source, &tags, err);
        source.reasoning = form->before;
        if (ok) grammars_get(kept, m, &source, out, &why);
    }
    json_decref(tags);
    json_decref(parsed);
    if (!ok || *out != NULL) return ok;
    return fail_compile(with_tools ? "tools" : p->constraint_param, &why, err);
}
