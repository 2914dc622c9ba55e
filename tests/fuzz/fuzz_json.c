/* fuzz_json.c - JSON from strangers.  The first byte picks limits; what is read must be read again
 * to the same text, and the walk for lines must stay inside the document whatever is asked. */
#include "inferd/buf.h"
#include "json_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_twice(bytes text, const json_limits *limits) {
    json_t *tree = NULL, *again = NULL;
    inferd_err err = {0};
    inferd_status s = json_in_parse(text, limits, &tree, &err);
    INFERD_CHECK((s == INFERD_OK) == (tree != NULL));
    if (s != INFERD_OK) {
        INFERD_CHECK(s == INFERD_EINVAL || s == INFERD_ETOOLONG);
        INFERD_CHECK(err.text[0] != 0);
        return;
    }
    char *dumped = json_dumps(tree, JSON_COMPACT);
    INFERD_CHECK(dumped != NULL);
    s = json_in_parse((bytes){dumped, strlen(dumped)}, &json_limits_default, &again, &err);
    INFERD_CHECK(s == INFERD_OK && json_equal(tree, again));
    free(dumped);
    json_decref(tree);
    json_decref(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    json_limits limits = json_limits_default;
    if (data[0] & 1) limits.memory_max = 256u * (data[0] >> 1);
    size_t path_n = data[1] % 32;
    data += 2, n -= 2;
    if (path_n > n) path_n = n;
    /* Exactly as long as they are, so that a step beyond is seen. */
    char *text = malloc(n - path_n + 1), *path = malloc(path_n + 1);
    memcpy(path, data, path_n);
    path[path_n] = 0;
    memcpy(text, data + path_n, n - path_n);
    text = realloc(text, n - path_n == 0 ? 1 : n - path_n);
    bytes whole = {text, n - path_n};
    read_twice(whole, &limits);
    json_lines *lines = json_lines_create(whole);
    json_lines_find(lines, path);
    json_lines_find(lines, "models[1].path");
    json_lines_destroy(lines);
    free(text);
    free(path);
    return 0;
}
