/* test_api_schema.c - schemas and readers agree: what a schema allows is read, what it forbids is
 * refused with the name of its field.  Values are made from the schemas themselves: each bound and
 * what is just outside of it, each word, each member. */
#include "test.h"

#include <regex.h>

#include "api_schema.h"

static const json_limits limits = {
    .depth_max = 64, .structural_max = 1000000, .memory_max = 128u << 20};

/* ---- the part of JSON Schema that the table uses ---- */

static bool fits(json_t *schema, json_t *v);

static bool is_of(const char *type, const json_t *v) {
    int64_t i;
    if (strcmp(type, "integer") == 0) return json_is_number(v) && api_json_int(v, &i);
    return (strcmp(type, "null") == 0 && json_is_null(v)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(v)) ||
           (strcmp(type, "number") == 0 && json_is_number(v)) ||
           (strcmp(type, "string") == 0 && json_is_string(v)) ||
           (strcmp(type, "array") == 0 && json_is_array(v)) ||
           (strcmp(type, "object") == 0 && json_is_object(v));
}

static bool equal(json_t *a, json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool matches(const char *pattern, const char *s) {
    regex_t r;
    EXPECT_EQ(regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB), 0);
    bool yes = regexec(&r, s, 0, NULL, 0) == 0;
    regfree(&r);
    return yes;
}

static bool any_of(json_t *list, json_t *v, bool (*test)(json_t *, json_t *)) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (test(json_array_get(list, i), v)) return true;
    return false;
}

static bool is_type(json_t *type, json_t *v) {
    return is_of(json_string_value(type), v);
}

static bool members_fit(json_t *schema, json_t *v) {
    json_t *properties = json_object_get(schema, "properties"), *one;
    json_t *others = json_object_get(schema, "additionalProperties");
    const char *pattern =
        json_string_value(json_object_get(json_object_get(schema, "propertyNames"), "pattern"));
    const char *key;
    json_object_foreach(v, key, one) {
        json_t *s = json_object_get(properties, key);
        if (s == NULL) s = others;
        if ((s != NULL && !fits(s, one)) || (pattern != NULL && !matches(pattern, key)))
            return false;
    }
    return true;
}

/* Keywords apply to values of their type only. */
static bool keyword_fits(json_t *schema, const char *key, json_t *arg, json_t *v) {
    double d = json_number_value(v), bound = json_number_value(arg);
    if (strcmp(key, "type") == 0)
        return json_is_string(arg) ? is_type(arg, v) : any_of(arg, v, is_type);
    if (strcmp(key, "enum") == 0) return any_of(arg, v, equal);
    if (strcmp(key, "const") == 0) return equal(arg, v);
    if (strcmp(key, "anyOf") == 0) return any_of(arg, v, fits);
    if (strcmp(key, "minimum") == 0) return !json_is_number(v) || d >= bound;
    if (strcmp(key, "exclusiveMinimum") == 0) return !json_is_number(v) || d > bound;
    if (strcmp(key, "maximum") == 0) return !json_is_number(v) || d <= bound;
    if (strcmp(key, "minLength") == 0)
        return !json_is_string(v) || (double)json_string_length(v) >= bound;
    if (strcmp(key, "maxLength") == 0)
        return !json_is_string(v) || (double)json_string_length(v) <= bound;
    if (strcmp(key, "pattern") == 0)
        return !json_is_string(v) || matches(json_string_value(arg), json_string_value(v));
    if (strcmp(key, "minItems") == 0)
        return !json_is_array(v) || (double)json_array_size(v) >= bound;
    if (strcmp(key, "maxItems") == 0)
        return !json_is_array(v) || (double)json_array_size(v) <= bound;
    if (strcmp(key, "maxProperties") == 0)
        return !json_is_object(v) || (double)json_object_size(v) <= bound;
    if (strcmp(key, "items") == 0) {
        for (size_t i = 0; i < json_array_size(v); i++)
            if (!fits(arg, json_array_get(v, i))) return false;
        return true;
    }
    if (strcmp(key, "required") == 0) {
        for (size_t i = 0; json_is_object(v) && i < json_array_size(arg); i++)
            if (json_object_get(v, json_string_value(json_array_get(arg, i))) == NULL) return false;
        return true;
    }
    if (strcmp(key, "properties") == 0) return members_fit(schema, v);
    if (strcmp(key, "additionalProperties") == 0) return members_fit(schema, v);
    static const char *const without_effect[] = {"description", "title", "deprecated",
                                                 "propertyNames"};
    bool known = false;
    for (size_t i = 0; i < INFERD_COUNT(without_effect); i++)
        known |= strcmp(key, without_effect[i]) == 0;
    if (!known) printf("the test does not know the keyword %s\n", key);
    EXPECT(known);
    return true;
}

static bool fits(json_t *schema, json_t *v) {
    const char *key;
    json_t *arg;
    json_object_foreach(schema, key, arg) {
        if (!keyword_fits(schema, key, arg, v)) return false;
    }
    return true;
}

/* ---- values ---- */

static const char *const pool[] = {
    "null",        "true",      "false",     "0",         "5",          "5.0",
    "-5",          "1.5",       "1e300",     "\"\"",      "\"text\"",   "\"never\"",
    "\"1h30m\"",   "\"9x\"",    "\"-1\"",    "\"1.5h\"",  "[]",         "[1]",
    "[\"a\"]",     "[\"a\",2]", "[1,\"a\"]", "[null]",    "[[]]",       "[[1]]",
    "[[1],\"a\"]", "{}",        "{\"a\":1}", "{\"7\":1}", "{\"07\":1}", "{\"type\":\"text\"}"};

static void add(json_t *out, json_t *v) {
    EXPECT_EQ(json_array_append_new(out, v), 0);
}

static json_t *letters(size_t n) {
    char s[2048];
    memset(s, 'a', n);
    return json_stringn(s, n);
}

static json_t *copies(json_t *v, size_t n) {
    json_t *list = json_array();
    while (n-- > 0) json_array_append(list, v);
    return list;
}

static json_t *values_of(json_t *schema);

/* The first of its values that fits; NULL: none. */
static json_t *example(json_t *schema) {
    json_t *all = values_of(schema), *found = NULL;
    for (size_t i = 0; i < json_array_size(all) && found == NULL; i++)
        if (!json_is_null(json_array_get(all, i)) && fits(schema, json_array_get(all, i)))
            found = json_incref(json_array_get(all, i));
    json_decref(all);
    return found;
}

static void add_numbers(json_t *schema, json_t *out) {
    static const char *const bounds[] = {"minimum", "maximum", "exclusiveMinimum"};
    for (size_t i = 0; i < INFERD_COUNT(bounds); i++) {
        json_t *b = json_object_get(schema, bounds[i]);
        if (b == NULL) continue;
        json_array_append(out, b);
        if (json_is_real(b)) {
            add(out, json_real(json_real_value(b) * (i == 1 ? 1.001 : 0.999)));
            continue;
        }
        json_int_t v = json_integer_value(b);
        if (v > INT64_MIN)
            add(out, json_integer(v - 1)); // JSON has them; our reader's integers have 64 bits
        if (v < INT64_MAX) add(out, json_integer(v + 1));
    }
}

static void add_lists(json_t *schema, json_t *out) {
    json_t *items = json_object_get(schema, "items"), *all = values_of(items),
           *good = example(items);
    size_t n_max = (size_t)json_integer_value(json_object_get(schema, "maxItems"));
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *v = json_array_get(all, i), *pair = json_array();
        add(out, copies(v, 1));
        json_array_append(pair, good);
        json_array_append(pair, v);
        add(out, pair);
    }
    for (size_t n = n_max; n_max > 0 && n <= n_max + 1; n++) add(out, copies(good, n));
    json_decref(all);
    json_decref(good);
}

/* Each member with each of its values, beside examples of the others that are required. */
static void add_objects(json_t *schema, json_t *out) {
    json_t *properties = json_object_get(schema, "properties"), *one, *base = json_object(), *name;
    const char *key;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, name) {
        json_t *s = json_object_get(properties, json_string_value(name));
        if (s != NULL) json_object_set_new(base, json_string_value(name), example(s));
    }
    json_array_append(out, base);
    json_object_foreach(properties, key, one) {
        json_t *all = values_of(one), *v;
        size_t k;
        json_array_foreach(all, k, v) {
            json_t *o = json_copy(base);
            json_object_set(o, key, v);
            add(out, o);
        }
        json_t *without = json_copy(base);
        json_object_del(without, key);
        add(out, without);
        json_decref(all);
    }
    json_decref(base);
}

static void add_maps(json_t *schema, json_t *out) {
    json_t *of = json_object_get(schema, "additionalProperties"), *all = values_of(of), *v;
    json_t *good = example(of);
    size_t k, n_max = (size_t)json_integer_value(json_object_get(schema, "maxProperties"));
    json_array_foreach(all, k, v) {
        add(out, json_pack("{s:O}", "7", v));
    }
    for (size_t n = n_max; n_max > 0 && n <= n_max + 1; n++) {
        json_t *o = json_object();
        for (size_t i = 0; i < n; i++) {
            char key[24];
            snprintf(key, sizeof key, "%zu", i);
            json_object_set(o, key, good);
        }
        add(out, o);
    }
    json_decref(all);
    json_decref(good);
}

/* Values on both sides of everything that the schema says, and the pool. */
static json_t *values_of(json_t *schema) {
    json_t *out = json_array(), *v;
    size_t i;
    json_array_foreach(json_object_get(schema, "enum"), i, v) json_array_append(out, v);
    if ((v = json_object_get(schema, "const")) != NULL) json_array_append(out, v);
    add_numbers(schema, out);
    static const char *const lengths[] = {"minLength", "maxLength"};
    for (i = 0; i < 2; i++) {
        v = json_object_get(schema, lengths[i]);
        if (v == NULL) continue;
        size_t n = (size_t)json_integer_value(v);
        add(out, letters(n));
        add(out, letters(i == 0 ? n - 1 : n + 1));
    }
    if (json_object_get(schema, "items") != NULL) add_lists(schema, out);
    if (json_object_get(schema, "properties") != NULL) add_objects(schema, out);
    if (json_is_object(json_object_get(schema, "additionalProperties"))) add_maps(schema, out);
    json_array_foreach(json_object_get(schema, "anyOf"), i, v) {
        json_t *more = values_of(v);
        json_array_extend(out, more);
        json_decref(more);
    }
    for (i = 0; i < INFERD_COUNT(pool); i++) add(out, json_loads(pool[i], JSON_DECODE_ANY, NULL));
    return out;
}

/* ---- rows ---- */

static json_t *schema_of(const api_field *f, api_route route) {
    buf text = {0};
    if (f != NULL)
        api_schema_add_field(&text, f, route);
    else
        api_schema_add_body(&text, route);
    json_error_t why;
    json_t *schema = json_loadb(text.p, text.n, 0, &why);
    if (schema == NULL)
        printf("%s: %s\n%s\n", f == NULL ? "body" : f->name, why.text, buf_cstr(&text));
    EXPECT(schema != NULL);
    buf_deinit(&text);
    return schema;
}

static bool is_input(const char *name) {
    return strcmp(name, "messages") == 0 || strcmp(name, "prompt") == 0 ||
           strcmp(name, "tokens") == 0;
}

/* Fields that rules between fields demand, so that only the row itself decides. */
static void add_companions(json_t *body, const char *name, api_route route, json_t *v) {
    static const struct {
        const char *name, *needs, *value;
    } rows[] = {{"stream_options", "stream", "true"},
                {"top_logprobs", "logprobs", "true"},
                {"tool_choice", "tools", "[{\"function\":{\"name\":\"f\"}}]"},
                {"function_call", "functions", "[{\"name\":\"f\"}]"},
                {"min_tokens", "max_tokens", "2147483647"},
                {"max_tokens", "echo", "true"}};
    for (size_t i = 0; i < INFERD_COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            json_object_set_new(body, rows[i].needs,
                                json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
    int64_t n;
    if (strcmp(name, "best_of") == 0 && api_json_int(v, &n) && n >= 1 && n <= API_N_MAX)
        json_object_set(body, "n", v);
    if (is_input(name)) return;
    static const char *const inputs[] = {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                                         "{\"prompt\":\"x\"}", "{\"prompt\":\"x\"}",
                                         "{\"tokens\":[1]}"};
    json_t *input = json_loads(inputs[__builtin_ctz(route)], 0, NULL);
    json_object_update(body, input);
    json_decref(input);
}

typedef struct tally {
    int n_read, n_refused;
} tally;

/* Reader and schema judge the body with this value alike. */
static void compare(const api_field *f, api_route route, json_t *body_schema, json_t *v, tally *t) {
    json_t *body = json_object();
    json_object_set(body, f->name, v);
    add_companions(body, f->name, route, v);
    char *text = json_dumps(body, JSON_COMPACT);
    api_params p;
    api_error e = {0};
    bool allowed = fits(body_schema, body);
    bool read = api_params_read(route, &limits, (bytes){text, strlen(text)}, &p, &e);
    /* /tokenize without an input names the first of the two. */
    bool none = route == API_TOKENIZE && is_input(f->name) && json_is_null(v);
    /* Which tools there are is said elsewhere; that names differ no schema can say. */
    read = read || strncmp(e.message, "no tool has the name", 20) == 0 ||
           strstr(e.message, " is the name of ") != NULL;
    bool named = read || none || strncmp(e.param, f->name, strlen(f->name)) == 0;
    if (allowed != read || !named) {
        printf("%.300s: the schema says %s, the reader %s %s\n", text, allowed ? "yes" : "no",
               read ? "yes" : e.param, e.message);
        test_failures++;
    }
    *(allowed ? &t->n_read : &t->n_refused) += 1;
    api_params_deinit(&p);
    free(text);
    json_decref(body);
}

static void schema_and_reader_of_each_row_agree(void) {
    size_t n, k;
    const api_field *rows = api_fields(&n);
    for (unsigned route = API_CHAT; route <= API_DETOKENIZE; route <<= 1) {
        json_t *body_schema = schema_of(NULL, (api_route)route);
        for (size_t i = 0; i < n; i++) {
            if ((rows[i].routes & route) == 0) continue;
            tally t = {0};
            json_t *schema = schema_of(&rows[i], (api_route)route), *all = values_of(schema), *v;
            json_array_foreach(all, k, v) {
                compare(&rows[i], (api_route)route, body_schema, v, &t);
            }
            EXPECT(t.n_read >= 1);
            if (rows[i].kind != FIELD_IGNORED) EXPECT(t.n_refused >= 5);
            json_decref(all);
            json_decref(schema);
        }
        json_decref(body_schema);
    }
}

static void a_row_with_a_reader_has_a_schema(void) {
    size_t n;
    const api_field *rows = api_fields(&n);
    for (size_t i = 0; i < n; i++) EXPECT_EQ(rows[i].kind == FIELD_CUSTOM, rows[i].schema != NULL);
}

/* The bounds are those of api_params.h, with all their digits. */
static void a_schema_has_the_numbers_of_the_limits(void) {
    buf text = {0};
    api_schema_add_body(&text, API_COMPLETION);
    static const char *const parts[] = {
        "\"maxItems\":16",
        "\"maxLength\":1024",
        "\"maxProperties\":1024",
        "\"maxItems\":128",
        "\"type\":[\"integer\",\"null\"],\"minimum\":0,\"maximum\":2147483647",
        "\"type\":[\"number\",\"null\"],\"minimum\":0.01,\"maximum\":100",
        "\"required\":[\"prompt\"]"};
    for (size_t i = 0; i < INFERD_COUNT(parts); i++)
        if (strstr(buf_cstr(&text), parts[i]) == NULL) {
            printf("no %s\n", parts[i]);
            test_failures++;
        }
    buf_deinit(&text);
}

static const test_case cases[] = {TEST(a_row_with_a_reader_has_a_schema),
                                  TEST(a_schema_has_the_numbers_of_the_limits),
                                  TEST(schema_and_reader_of_each_row_agree)};
TEST_MAIN(cases)
