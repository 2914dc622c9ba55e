/* api_tool_schemas.c - see api_tool_schemas.h. */
#include "api_tool_schemas.h"

#include <string.h>

#include "inferd/clock.h"
#include "inferd/hash.h"

/* The path of the schema of a called tool in the request, of which p->called is a part only. */
static void find_place(const api_params *p, const json_t *function, char out[API_PARAM_BYTES]) {
    const char *name = json_string_value(json_object_get(function, "name"));
    size_t i = (size_t)json_integer_value(json_object_get(p->tool_idx, name));
    snprintf(out, API_PARAM_BYTES,
             p->function_calls ? "functions[%zu].parameters" : "tools[%zu].function.parameters", i);
}

static bool no_memory(api_error *err) {
    return api_fail(err, API_INTERNAL, NULL, "the server is short of memory");
}

/* ---- characters ---- */

/* Parts of a dump are whole characters. */
static int find_mark(const char *text, size_t n, void *found) {
    bool *has = found;
    *has = *has || memmem(text, n, GRAMMAR_TOKEN_OPEN, strlen(GRAMMAR_TOKEN_OPEN)) != NULL ||
           memmem(text, n, GRAMMAR_TOKEN_CLOSE, strlen(GRAMMAR_TOKEN_CLOSE)) != NULL;
    return 0;
}

/* In a notation with tags, names and values of a schema become texts of the grammar, where these
 * characters would name a control token. */
static bool check_characters(const json_t *schema, const char *param, api_error *err) {
    bool has = false;
    if (!json_is_object(schema)) return true;
    if (json_dump_callback(schema, find_mark, &has, JSON_COMPACT) != 0) return no_memory(err);
    if (!has) return true;
    return api_fail(err, API_UNSUPPORTED_SCHEMA, param,
                    "\"%s\" has the character U+FDD0 or U+FDD1, which the schema of a tool cannot "
                    "have",
                    param);
}

/* ---- strict schemas ---- */

typedef struct strict_check {
    grammar_limits limits;
    uint64_t end_us;  // of the time for all of them; clock_thread_us
    json_t *compiled; // by the hash of its text, one schema; owned
} strict_check;

static int hash_text(const char *text, size_t n, void *hash) {
    uint64_t *h = hash;
    *h = hash_bytes(*h, text, n);
    return 0;
}

/* Is an equal one among them?  If not, this one is from here on. */
static bool add_compiled(strict_check *c, json_t *schema, bool *known) {
    uint64_t hash = HASH_BEGIN;
    char key[17];
    if (json_dump_callback(schema, hash_text, &hash, JSON_COMPACT) != 0) return false;
    snprintf(key, sizeof key, "%016llx", (unsigned long long)hash);
    const json_t *other = json_object_get(c->compiled, key);
    *known = other != NULL && json_equal(other, schema);
    return *known || json_object_set(c->compiled, key, schema) == 0;
}

static bool fail_late(const char *param, api_error *err) {
    return api_fail(err, API_UNSUPPORTED_SCHEMA, param,
                    "up to this one, the schemas of strict tools take longer to compile than "
                    "compile_ms_max, %u ms of a CPU",
                    grammar_limits_default.compile_ms_max);
}

static bool check_strict(strict_check *c, json_t *schema, const char *param, api_error *err) {
    bool known;
    if (!add_compiled(c, schema, &known)) return no_memory(err);
    uint64_t now_us = clock_thread_us();
    if (known) return true;
    if (now_us >= c->end_us) return fail_late(param, err);
    c->limits.compile_ms_max = (uint32_t)((c->end_us - now_us + 999) / 1000);
    grammar_schema_kind kind = {.strict = true};
    grammar_options options = {.limits = &c->limits};
    grammar *g = NULL;
    inferd_err why = {0};
    inferd_status s = grammar_of_schema(schema, &kind, &options, &g, &why);
    grammar_release(g);
    if (s == INFERD_OK) return true;
    if (s == INFERD_ENOMEM) return no_memory(err);
    if (s == INFERD_ETOOLONG && clock_thread_us() >= c->end_us) return fail_late(param, err);
    return api_fail(err, s == INFERD_EINVAL ? API_BAD_SCHEMA : API_UNSUPPORTED_SCHEMA, param, "%s",
                    why.text);
}

bool api_tool_schemas_check(const api_params *p, api_error *err) {
    strict_check c = {.limits = grammar_limits_default, .compiled = json_object()};
    size_t i;
    json_t *tool;
    bool ok = true;
    c.end_us = clock_thread_us() + (uint64_t)c.limits.compile_ms_max * 1000;
    json_array_foreach(p->called, i, tool) {
        char param[API_PARAM_BYTES];
        json_t *function = json_object_get(tool, "function");
        json_t *schema = json_object_get(function, "parameters");
        bool strict = json_is_true(json_object_get(function, "strict")) && json_is_object(schema);
        find_place(p, function, param);
        ok = check_characters(schema, param, err) &&
             (!strict || check_strict(&c, schema, param, err));
        if (!ok) break;
    }
    json_decref(c.compiled);
    return ok;
}

/* ---- what is not enforced ---- */

/* Is a place of this tool among what is not enforced ("NAME#/properties/a NAME#...")?  It is given.
 */
static bool is_weakened(const buf *weakened, const char *name, bytes *at_place) {
    size_t n = strlen(name), at = 0;
    while (at < weakened->n) {
        const char *p = weakened->p + at;
        const char *space = memchr(p, ' ', weakened->n - at);
        size_t length = space == NULL ? weakened->n - at : (size_t)(space - p);
        *at_place = (bytes){p + n, length - n};
        if (length > n && memcmp(p, name, n) == 0 && p[n] == '#') return true;
        at += length + 1;
    }
    return false;
}

bool api_tool_schemas_check_enforced(const api_params *p, const buf *weakened, api_error *err) {
    size_t i;
    json_t *tool;
    bytes at_place;
    json_array_foreach(p->called, i, tool) {
        json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (name == NULL || !json_is_true(json_object_get(function, "strict")) ||
            !is_weakened(weakened, name, &at_place))
            continue;
        char param[API_PARAM_BYTES];
        find_place(p, function, param);
        return api_fail(err, API_UNSUPPORTED_SCHEMA, param,
                        "\"%.*s\" is not enforced in the form in which this model writes calls; "
                        "leave out \"strict\"",
                        (int)size_min(at_place.n, API_QUOTE_BYTES), at_place.p);
    }
    return true;
}
