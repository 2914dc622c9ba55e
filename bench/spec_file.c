/* spec_file.c - settings from longer texts: a class on the command line, and a scenario file.
 *
 *     {"url": "http://127.0.0.1:8080", "duration": "60s", "ignore-eos": true,
 *      "classes": [{"name": "chat", "arrivals": "closed:4", "model": {"a": 3, "b": 1}},
 *                  {"name": "probe", "arrivals": "every:3s", "start": "2s", "output": 1}]}
 *
 * A value is a text, a number, true or false (switches), an object of weights (choices), or for
 * "extra" any object. */
#include <jansson.h>
#include <string.h>

#include "inferd/buf.h"
#include "spec.h"

enum { SCENARIO_BYTES_MAX = 1 << 20 };

inferd_status bench_spec_class_text(bench_spec *spec, const char *text, inferd_err *err) {
    int class_idx = bench_spec_class(spec);
    if (class_idx < 0)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d classes", CLASSES_MAX);
    char *copy = strdup(text), *rest = NULL;
    if (copy == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a class");
    inferd_status s = INFERD_OK;
    for (char *word = strtok_r(copy, " \t\n", &rest); s == INFERD_OK && word != NULL;
         word = strtok_r(NULL, " \t\n", &rest)) {
        char *equals = strchr(word, '=');
        const char *value = "on";
        if (equals != NULL) {
            *equals = 0;
            value = equals + 1;
        }
        bool is_switch;
        if (equals == NULL && bench_setting_known(word, &is_switch) && !is_switch)
            s = inferd_fail(err, INFERD_EINVAL, "\"%s\" needs a value: %s=...", word, word);
        if (s == INFERD_OK) s = bench_spec_set(spec, class_idx, word, value, err);
    }
    free(copy);
    if (s != INFERD_OK) inferd_context(err, "class \"%s\"", text);
    return s;
}

static void add_weights(buf *out, json_t *object) {
    const char *key;
    json_t *weight;
    json_object_foreach(object, key, weight) {
        if (out->n > 0) buf_add_char(out, ',');
        buf_add_format(out, "%s=%.17g", key, json_number_value(weight));
    }
}

static bool all_numbers(json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (!json_is_number(value)) return false;
    }
    return true;
}

/* The value as it would be written on the command line. */
static bool add_value(buf *out, const char *key, json_t *value) {
    if (json_is_string(value))
        buf_add_str(out, json_string_value(value));
    else if (json_is_boolean(value))
        buf_add_str(out, json_is_true(value) ? "on" : "off");
    else if (json_is_integer(value))
        buf_add_format(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        buf_add_format(out, "%.17g", json_real_value(value));
    else if (json_is_object(value) && strcmp(key, "extra") == 0) {
        char *text = json_dumps(value, JSON_COMPACT);
        if (text == NULL) return false;
        buf_add_str(out, text);
        free(text);
    } else if (json_is_object(value) && all_numbers(value))
        add_weights(out, value);
    else
        return false;
    return !out->failed;
}

static inferd_status members_set(bench_spec *spec, int class_idx, json_t *object, inferd_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (class_idx < 0 && strcmp(key, "classes") == 0) continue;
        buf text;
        buf_init(&text, SCENARIO_BYTES_MAX);
        inferd_status s;
        if (add_value(&text, key, value))
            s = bench_spec_set(spec, class_idx, key, buf_cstr(&text), err);
        else
            s = inferd_fail(err, INFERD_EFORMAT, "\"%s\" has a value of a wrong kind", key);
        buf_deinit(&text);
        if (s != INFERD_OK) return s;
    }
    return INFERD_OK;
}

static inferd_status classes_set(bench_spec *spec, json_t *classes, inferd_err *err) {
    if (classes == NULL) return INFERD_OK;
    if (!json_is_array(classes))
        return inferd_fail(err, INFERD_EFORMAT, "\"classes\" is not an array");
    for (size_t i = 0; i < json_array_size(classes); i++) {
        json_t *object = json_array_get(classes, i);
        if (!json_is_object(object))
            return inferd_fail(err, INFERD_EFORMAT, "classes[%zu] is not an object", i);
        int class_idx = bench_spec_class(spec);
        if (class_idx < 0)
            return inferd_fail(err, INFERD_ETOOLONG, "more than %d classes", CLASSES_MAX);
        inferd_status s = members_set(spec, class_idx, object, err);
        if (s == INFERD_OK) continue;
        inferd_context(err, "classes[%zu]", i);
        return s;
    }
    return INFERD_OK;
}

inferd_status bench_spec_read(bench_spec *spec, const char *path, inferd_err *err) {
    json_error_t at;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &at);
    if (root == NULL)
        return inferd_fail(err, INFERD_EFORMAT, "scenario %s: line %d: %s", path, at.line, at.text);
    inferd_status s;
    if (!json_is_object(root))
        s = inferd_fail(err, INFERD_EFORMAT, "not an object");
    else
        s = members_set(spec, -1, root, err);
    if (s == INFERD_OK) s = classes_set(spec, json_object_get(root, "classes"), err);
    json_decref(root);
    if (s != INFERD_OK) inferd_context(err, "scenario %s", path);
    return s;
}
