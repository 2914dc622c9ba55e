/* ctl_json.c - see ctl_json.h. */
#include "ctl_json.h"

#include <string.h>

const json_t *ctl_member(const json_t *v, const char *path) {
    char name[64];
    while (v != NULL && *path != 0) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        v = json_object_get(v, name);
        path += n + (path[n] == '.');
    }
    return v;
}

const char *ctl_text(const json_t *v, const char *path) {
    const char *text = json_string_value(ctl_member(v, path));
    return text == NULL ? "" : text;
}

double ctl_number(const json_t *v, const char *path) {
    return json_number_value(ctl_member(v, path));
}

uint64_t ctl_count(const json_t *v, const char *path) {
    double d = ctl_number(v, path);
    return d >= 1.8e19 ? UINT64_MAX : d > 0 ? (uint64_t)d : 0;
}

bool ctl_is(const json_t *v, const char *path) {
    return json_is_true(ctl_member(v, path));
}
