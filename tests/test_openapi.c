/* test_openapi.c - the document of GET /openapi.json and the table of routes. */
#include "test.h"

#include <jansson.h>

#include "openapi.h"
#include "routes.h"

static json_t *document(bool keyed, bool admin) {
    openapi_input in = {.version = "1.2.3", .keyed = keyed, .admin = admin};
    in.routes = routes_all(&in.n_routes);
    buf text = {0};
    json_error_t why;
    openapi_write(&in, &text);
    json_t *d = json_loadb(text.p, text.n, JSON_REJECT_DUPLICATES, &why);
    if (d == NULL) printf("%s at %d\n", why.text, why.position);
    EXPECT(d != NULL);
    buf_deinit(&text);
    return d;
}

/* A route without a row would be missing in the document, a row without a route would invent one.
 */
static void each_route_has_a_row_and_each_row_a_route(void) {
    size_t n, n_methods = 0;
    const http_route *routes = routes_all(&n);
    for (size_t i = 0; i < n; i++)
        for (unsigned m = HTTP_GET; m <= HTTP_PATCH; m <<= 1) {
            if ((routes[i].methods & m) == 0) continue;
            n_methods++;
            if (!openapi_has(routes[i].path, (http_method)m)) {
                printf("openapi.c lacks %s\n", routes[i].path);
                test_failures++;
            }
        }
    EXPECT_EQ(openapi_n_rows(), n_methods);
}

/* "#/components/schemas/ChatRequest/properties/seed" */
static bool names_something(json_t *root, const char *pointer) {
    json_t *at = pointer[0] == '#' ? root : NULL;
    for (const char *p = strchr(pointer, '/'); p != NULL && at != NULL; p = strchr(p + 1, '/'))
        at = json_object_getn(at, p + 1, strcspn(p + 1, "/"));
    return at != NULL && at != root;
}

static void check_references(json_t *root, json_t *v) {
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach(v, i, one) check_references(root, one);
    json_object_foreach(v, key, one) {
        check_references(root, one);
        if (strcmp(key, "$ref") != 0) continue;
        bool found = names_something(root, json_string_value(one));
        if (!found) printf("%s names nothing\n", json_string_value(one));
        EXPECT(found);
    }
}

static json_t *operation_of(json_t *d, const char *path, const char *method) {
    return json_object_get(json_object_get(json_object_get(d, "paths"), path), method);
}

static void references_and_operation_ids_are_right(void) {
    json_t *d = document(true, true), *path, *o, *seen = json_object();
    const char *key, *method;
    check_references(d, d);
    json_object_foreach(json_object_get(d, "paths"), key, path) {
        json_object_foreach(path, method, o) {
            const char *id = json_string_value(json_object_get(o, "operationId"));
            EXPECT(json_object_get(seen, id) == NULL);
            json_object_set_new(seen, id, json_true());
        }
    }
    EXPECT_EQ(json_object_size(seen), openapi_n_rows());
    EXPECT_STR(json_string_value(json_object_get(json_object_get(d, "info"), "version")), "1.2.3");
    json_decref(seen);
    json_decref(d);
}

static void routes_of_administrators_are_listed_where_they_can_be_used(void) {
    json_t *d = document(true, false);
    EXPECT(operation_of(d, "/admin/state", "get") == NULL);
    EXPECT(operation_of(d, "/unload", "post") == NULL);
    EXPECT(operation_of(d, "/v1/models/{model}", "get") != NULL);
    json_decref(d);
    d = document(true, true);
    EXPECT(operation_of(d, "/admin/state", "get") != NULL);
    EXPECT(operation_of(d, "/admin/tenants/{tenant}", "patch") != NULL);
    EXPECT(operation_of(d, "/api/models/unload/{model}", "post") != NULL);
    json_decref(d);
}

static void keys_are_asked_for_where_they_are_needed(void) {
    for (int keyed = 0; keyed <= 1; keyed++) {
        json_t *d = document(keyed, false), *chat = operation_of(d, "/v1/chat/completions", "post");
        json_t *health = operation_of(d, "/health", "get");
        EXPECT_EQ(json_array_size(json_object_get(chat, "security")), keyed ? 2 : 0); // two headers
        EXPECT_EQ(json_object_get(json_object_get(chat, "responses"), "401") != NULL, keyed);
        EXPECT_EQ(json_array_size(json_object_get(health, "security")), 0);
        EXPECT(json_object_get(json_object_get(health, "responses"), "401") == NULL);
        json_decref(d);
    }
}

/* A stream is announced beside the answer in one piece. */
static void both_forms_of_an_answer_are_there(void) {
    json_t *d = document(false, false);
    json_t *ok = json_object_get(
        json_object_get(operation_of(d, "/v1/completions", "post"), "responses"), "200");
    json_t *content = json_object_get(ok, "content");
    EXPECT(json_object_get(content, "application/json") != NULL);
    EXPECT(json_object_get(content, "text/event-stream") != NULL);
    EXPECT_EQ(json_object_size(content), 2);
    json_decref(d);
}

static const test_case cases[] = {
    TEST(each_route_has_a_row_and_each_row_a_route), TEST(references_and_operation_ids_are_right),
    TEST(routes_of_administrators_are_listed_where_they_can_be_used),
    TEST(keys_are_asked_for_where_they_are_needed), TEST(both_forms_of_an_answer_are_there)};
TEST_MAIN(cases)
