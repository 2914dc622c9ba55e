/* compare_file.c - results as they are read for `compare`; see compare.h.
 *
 *     {"tool": "inferd-bench", "format": 1, "load": {...},
 *      "timeline": {"bin_s", "steady_from_s", "steady_until_s", "tokens": {"all": [...], ...}},
 *      "samples": {"n", "of", "class": [...], "ttft_ms": [...], ...}} */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "compare.h"
#include "spec.h"
#include "timeline.h"
#include "trail.h"

static const char *const COLUMNS[COMPARE_COLUMNS] = {"ttft_ms", "tpot_ms", "e2e_ms",
                                                     "longest_gap_ms", "met"};
static const double VALUE_MAX = 1e12;

static bool is_value(const json_t *value) {
    double x = json_number_value(value);
    return json_is_number(value) && isfinite(x) && x >= 0 && x <= VALUE_MAX;
}

/* ---- checks ---- */

static inferd_status column_check(const json_t *samples, const char *name, size_t n,
                                  inferd_err *err) {
    const json_t *list = json_object_get(samples, name);
    if (!json_is_array(list) || json_array_size(list) != n)
        return inferd_fail(err, INFERD_EFORMAT, "samples.%s is no array of %zu values", name, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_null(value) && !is_value(value))
            return inferd_fail(err, INFERD_EFORMAT,
                               "samples.%s[%zu] is neither null nor between 0 and %g", name, i,
                               VALUE_MAX);
    }
    return INFERD_OK;
}

static inferd_status samples_check(const json_t *root, size_t n_classes, inferd_err *err) {
    const json_t *samples = json_object_get(root, "samples"), *n = json_object_get(samples, "n");
    if (samples == NULL)
        return inferd_fail(err, INFERD_EFORMAT,
                           "it has no \"samples\": it was written by an older inferd-bench");
    if (!json_is_integer(n) || json_integer_value(n) < 0 || json_integer_value(n) > TRAIL_MAX)
        return inferd_fail(err, INFERD_EFORMAT, "samples.n is not between 0 and %d", TRAIL_MAX);
    size_t n_rows = (size_t)json_integer_value(n);
    inferd_status s = column_check(samples, "class", n_rows, err);
    for (size_t i = 0; s == INFERD_OK && i < COMPARE_COLUMNS; i++)
        s = column_check(samples, COLUMNS[i], n_rows, err);
    const json_t *classes = json_object_get(samples, "class");
    for (size_t i = 0; s == INFERD_OK && i < n_rows; i++) {
        const json_t *idx = json_array_get(classes, i);
        if (!json_is_integer(idx) || (size_t)json_integer_value(idx) >= n_classes)
            s = inferd_fail(err, INFERD_EFORMAT, "samples.class[%zu] is no class of the load", i);
    }
    return s;
}

static inferd_status load_check(const json_t *root, size_t *n_classes, inferd_err *err) {
    const json_t *classes = json_object_get(json_object_get(root, "load"), "classes");
    *n_classes = json_array_size(classes);
    if (*n_classes == 0 || *n_classes > CLASSES_MAX)
        return inferd_fail(err, INFERD_EFORMAT, "load.classes is no array of 1 to %d classes",
                           CLASSES_MAX);
    for (size_t i = 0; i < *n_classes; i++) {
        const json_t *one = json_array_get(classes, i);
        if (!json_is_string(json_object_get(one, "name")) ||
            !json_is_object(json_object_get(one, "models")) ||
            !json_is_object(json_object_get(one, "settings")))
            return inferd_fail(err, INFERD_EFORMAT,
                               "load.classes[%zu] has no name, models and settings", i);
    }
    return INFERD_OK;
}

static inferd_status timeline_check(const json_t *root, inferd_err *err) {
    static const char *const TIMES[] = {"bin_s", "steady_from_s", "steady_until_s"};
    const json_t *line = json_object_get(root, "timeline"),
                 *tokens = json_object_get(line, "tokens");
    for (size_t i = 0; i < INFERD_COUNT(TIMES); i++)
        if (!is_value(json_object_get(line, TIMES[i])))
            return inferd_fail(err, INFERD_EFORMAT, "timeline.%s is no time", TIMES[i]);
    if (!(json_number_value(json_object_get(line, "bin_s")) >= 1e-3))
        return inferd_fail(err, INFERD_EFORMAT, "timeline.bin_s is less than 0.001");
    if (!json_is_object(tokens) || json_object_size(tokens) > CLASSES_MAX + 1)
        return inferd_fail(err, INFERD_EFORMAT, "timeline.tokens is no object of groups");
    const char *name;
    json_t *list;
    json_object_foreach((json_t *)(uintptr_t)tokens, name, list) {
        bool good = json_is_array(list) && json_array_size(list) <= TIMELINE_BINS;
        for (size_t i = 0; good && i < json_array_size(list); i++)
            good = is_value(json_array_get(list, i));
        if (!good)
            return inferd_fail(err, INFERD_EFORMAT,
                               "timeline.tokens.%.60s is no array of at most %d rates", name,
                               TIMELINE_BINS);
    }
    return INFERD_OK;
}

static inferd_status result_check(const json_t *root, inferd_err *err) {
    const char *tool = json_string_value(json_object_get(root, "tool"));
    size_t n_classes = 0;
    if (tool == NULL || strcmp(tool, "inferd-bench") != 0)
        return inferd_fail(err, INFERD_EFORMAT, "it is no result of inferd-bench --json");
    if (json_integer_value(json_object_get(root, "format")) != 1)
        return inferd_fail(err, INFERD_EFORMAT, "\"format\" is not 1");
    inferd_status s = INFERD_OK;
    if (json_object_get(root, "load") != NULL)
        s = load_check(root, &n_classes, err);
    else
        s = inferd_fail(err, INFERD_EFORMAT,
                        "it has no \"load\": it was written by an older inferd-bench");
    if (s == INFERD_OK) s = samples_check(root, n_classes, err);
    return s == INFERD_OK ? timeline_check(root, err) : s;
}

inferd_status result_parse(json_t **out, const char *text, size_t n, inferd_err *err) {
    json_error_t at;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at);
    if (root == NULL) return inferd_fail(err, INFERD_EFORMAT, "line %d: %.200s", at.line, at.text);
    inferd_status s = result_check(root, err);
    if (s == INFERD_OK)
        *out = root;
    else
        json_decref(root);
    return s;
}

inferd_status result_read(json_t **out, const char *path, inferd_err *err) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    buf text;
    buf_init(&text, RESULT_BYTES_MAX);
    char block[1 << 16];
    size_t n;
    while ((n = fread(block, 1, sizeof block, file)) > 0 && !text.failed) buf_add(&text, block, n);
    inferd_status s = INFERD_OK;
    if (ferror(file))
        s = inferd_fail(err, INFERD_EIO, "%s", strerror(errno));
    else if (text.failed)
        s = inferd_fail(err, INFERD_ETOOLONG, "longer than %d bytes", RESULT_BYTES_MAX);
    else
        s = result_parse(out, buf_cstr(&text), text.n, err);
    fclose(file);
    buf_deinit(&text);
    if (s != INFERD_OK) inferd_context(err, "%s", path);
    return s;
}

/* ---- the load ---- */

static void dump(const json_t *value, char *out, size_t out_bytes) {
    char *text = value == NULL ? NULL : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    snprintf(out, out_bytes, "%.70s", text == NULL ? "not set" : text);
    free(text);
}

/* The first member that differs between two objects; members of `skip` are left out. */
static inferd_status members_same(const json_t *a, const json_t *b, const char *where,
                                  const char *skip, inferd_err *err) {
    const json_t *both[] = {a, b};
    for (int side = 0; side < 2; side++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)both[side], key, value) {
            char of_a[80], of_b[80];
            const json_t *in_a = json_object_get(a, key), *in_b = json_object_get(b, key);
            if (strcmp(key, skip) == 0 || json_equal(in_a, in_b)) continue;
            dump(in_a, of_a, sizeof of_a);
            dump(in_b, of_b, sizeof of_b);
            return inferd_fail(err, INFERD_EINVAL, "%s%.40s is %s in one and %s in the other",
                               where, key, of_a, of_b);
        }
    }
    return INFERD_OK;
}

inferd_status result_same_load(const json_t *a, const json_t *b, inferd_err *err) {
    const json_t *load_a = json_object_get(a, "load"), *load_b = json_object_get(b, "load");
    const json_t *in_a = json_object_get(load_a, "classes"),
                 *in_b = json_object_get(load_b, "classes");
    inferd_status s = members_same(load_a, load_b, "", "classes", err);
    if (s == INFERD_OK && json_array_size(in_a) != json_array_size(in_b))
        s = inferd_fail(err, INFERD_EINVAL, "one has %zu classes and the other %zu",
                        json_array_size(in_a), json_array_size(in_b));
    for (size_t i = 0; s == INFERD_OK && i < json_array_size(in_a); i++) {
        const json_t *x = json_array_get(in_a, i), *y = json_array_get(in_b, i);
        char where[80];
        snprintf(where, sizeof where,
                 "class %.60s: ", json_string_value(json_object_get(x, "name")));
        s = members_same(x, y, where, "settings", err);
        if (s == INFERD_OK)
            s = members_same(json_object_get(x, "settings"), json_object_get(y, "settings"), where,
                             "", err);
    }
    return s;
}

/* ---- values ---- */

size_t result_values(const json_t *root, compare_column column, int class_idx, double *out) {
    const json_t *samples = json_object_get(root, "samples");
    const json_t *list = json_object_get(samples, COLUMNS[column]);
    const json_t *classes = json_object_get(samples, "class");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        bool wanted = class_idx < 0 || json_integer_value(json_array_get(classes, i)) == class_idx;
        if (wanted && !json_is_null(value)) out[n++] = json_number_value(value);
    }
    return n;
}

size_t result_rates(const json_t *root, const char *group, double *out) {
    const json_t *line = json_object_get(root, "timeline");
    const json_t *list = json_object_get(json_object_get(line, "tokens"), group);
    double bin_s = json_number_value(json_object_get(line, "bin_s"));
    double from_s = json_number_value(json_object_get(line, "steady_from_s"));
    double until_s = json_number_value(json_object_get(line, "steady_until_s"));
    double first = ceil(from_s / bin_s - 1e-6), end = floor(until_s / bin_s + 1e-6);
    if (!(first < TIMELINE_BINS) || !(end - first >= SLICES_MIN)) return 0;
    size_t from = (size_t)first, n_bins = (size_t)fmin(end, TIMELINE_BINS) - from;
    size_t per_slice = (n_bins + SLICES_MAX - 1) / SLICES_MAX, n = n_bins / per_slice;
    for (size_t i = 0; i < n; i++) {
        double sum = 0; // bins behind the last event are empty
        for (size_t k = 0; k < per_slice; k++)
            sum += json_number_value(json_array_get(list, from + i * per_slice + k));
        out[i] = sum / (double)per_slice;
    }
    return n;
}
