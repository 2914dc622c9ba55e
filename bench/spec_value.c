/* spec_value.c - see spec_value.h. */
#include "spec_value.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

inferd_status value_text(char **out, const char *value, inferd_err *err) {
    char *copy = strdup(value);
    if (copy == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a word");
    free(*out);
    *out = copy;
    return INFERD_OK;
}

inferd_status value_bool(bool *out, const char *value, inferd_err *err) {
    *out = strcmp(value, "on") == 0;
    if (*out || strcmp(value, "off") == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "\"%s\" is neither on nor off", value);
}

inferd_status value_seconds(double *out, const char *value, inferd_err *err) {
    if (seconds_parse(value, out)) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "\"%s\" is no time such as 20, 20s, 500ms or 2m", value);
}

inferd_status value_number(double *out, const char *value, double min, double max,
                           inferd_err *err) {
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end != 0 || !isfinite(number))
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is no number", value);
    if (number < min || number > max)
        return inferd_fail(err, INFERD_EINVAL, "%g is not between %g and %g", number, min, max);
    *out = number;
    return INFERD_OK;
}

/* Digits only; moves `p` past them. */
static bool take_u64(const char **p, uint64_t *out) {
    if (**p < '0' || **p > '9') return false;
    char *end;
    errno = 0;
    *out = strtoull(*p, &end, 10);
    *p = end;
    return errno == 0;
}

inferd_status value_u64(uint64_t *out, const char *value, inferd_err *err) {
    const char *p = value;
    if (take_u64(&p, out) && *p == 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "\"%s\" is no whole number", value);
}

inferd_status value_u32(uint32_t *out, const char *value, uint32_t min, uint32_t max,
                        inferd_err *err) {
    uint64_t number = 0;
    inferd_status s = value_u64(&number, value, err);
    if (s != INFERD_OK) return s;
    if (number < min || number > max)
        return inferd_fail(err, INFERD_EINVAL, "%s is not between %u and %u", value, min, max);
    *out = (uint32_t)number;
    return INFERD_OK;
}

inferd_status value_range(length_spec *out, const char *value, uint32_t min, uint32_t max,
                          inferd_err *err) {
    const char *p = value;
    uint64_t lo, hi;
    bool good = take_u64(&p, &lo);
    hi = lo;
    if (good && *p == '-') {
        p++;
        good = take_u64(&p, &hi);
    }
    if (!good || *p != 0)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is neither N nor LO-HI", value);
    if (lo < min || hi > max || lo > hi)
        return inferd_fail(err, INFERD_EINVAL, "%s is not in order between %u and %u", value, min,
                           max);
    *out = (length_spec){.lo = (uint32_t)lo, .hi = (uint32_t)hi};
    return INFERD_OK;
}

inferd_status value_length(length_spec *out, const char *value, inferd_err *err) {
    if (strcmp(value, "trace") != 0) return value_range(out, value, 1, LENGTH_MAX, err);
    *out = (length_spec){.from_trace = true};
    return INFERD_OK;
}

inferd_status value_times(double *lo_s, double *hi_s, const char *value, inferd_err *err) {
    char first[32];
    const char *dash = strchr(value, '-');
    size_t n = dash == NULL ? strlen(value) : (size_t)(dash - value);
    snprintf(first, sizeof first, "%.*s", (int)size_min(n, sizeof first - 1), value);
    if (n >= sizeof first || !seconds_parse(first, lo_s) ||
        !seconds_parse(dash == NULL ? first : dash + 1, hi_s) || *hi_s < *lo_s)
        return inferd_fail(err, INFERD_EINVAL, "\"%s\" is neither a time nor two in order: 2s-8s",
                           value);
    return INFERD_OK;
}

void choices_deinit(choices *c) {
    for (size_t i = 0; i < c->n; i++) free(c->items[i].text);
    free(c->items);
    *c = (choices){0};
}

inferd_status value_choice_add(choices *out, const char *text, size_t n, double weight,
                               inferd_err *err) {
    if (n == 0) return inferd_fail(err, INFERD_EINVAL, "an empty word");
    if (out->n == CHOICES_MAX)
        return inferd_fail(err, INFERD_ETOOLONG, "more than %d words", CHOICES_MAX);
    choice *items = realloc(out->items, (out->n + 1) * sizeof *items);
    if (items == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for words");
    out->items = items;
    char *copy = strndup(text, n);
    if (copy == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for words");
    out->items[out->n++] = (choice){copy, weight};
    out->total += weight;
    return INFERD_OK;
}

static inferd_status add_weighted(choices *out, const char *text, size_t n, inferd_err *err) {
    double weight = 1;
    const char *equals = memrchr(text, '=', n);
    if (equals != NULL && equals + 1 < text + n) {
        char *end;
        double number = strtod(equals + 1, &end);
        bool is_number =
            end == text + n && isfinite(number) && equals[1] >= '0' && equals[1] <= '9';
        if (is_number) {
            weight = number;
            n = (size_t)(equals - text);
        }
    }
    return value_choice_add(out, text, n, weight, err);
}

static inferd_status check_total(const choices *c, inferd_err *err) {
    if (c->total > 0) return INFERD_OK;
    return inferd_fail(err, INFERD_EINVAL, "all weights are zero");
}

inferd_status value_choices(choices *out, const char *value, inferd_err *err) {
    choices_deinit(out);
    for (const char *p = value;;) {
        size_t n = strcspn(p, ",");
        inferd_status s = add_weighted(out, p, n, err);
        if (s != INFERD_OK) return s;
        if (p[n] == 0) return check_total(out, err);
        p += n + 1;
    }
}

static inferd_status add_lines(choices *out, const char *path, inferd_err *err) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return inferd_fail(err, INFERD_EIO, "%s: %s", path, strerror(errno));
    char line[4096];
    inferd_status s = INFERD_OK;
    while (s == INFERD_OK && fgets(line, sizeof line, file) != NULL) {
        size_t n = strcspn(line, "\r\n");
        if (n > 0) s = value_choice_add(out, line, n, 1, err);
    }
    if (s == INFERD_OK && ferror(file)) s = inferd_fail(err, INFERD_EIO, "%s", strerror(errno));
    fclose(file);
    return s;
}

inferd_status value_keys(choices *out, const char *value, inferd_err *err) {
    if (value[0] != '@') return value_choices(out, value, err);
    choices_deinit(out);
    inferd_status s = add_lines(out, value + 1, err);
    return s == INFERD_OK ? check_total(out, err) : s;
}

size_t choices_draw(const choices *c, rng *random) {
    double at = (1 - rng_unit(random)) * c->total; // [0, total)
    for (size_t i = 0; i < c->n; i++) {
        if (at < c->items[i].weight) return i;
        at -= c->items[i].weight;
    }
    // Rounding may leave a small remainder: it belongs to the last item that has a weight.
    size_t last = c->n - 1;
    while (last > 0 && c->items[last].weight == 0) last--;
    return last;
}

inferd_status value_members(char **out, const char *value, inferd_err *err) {
    json_error_t at;
    json_t *object = json_loads(value, JSON_REJECT_DUPLICATES, &at);
    if (object == NULL) return inferd_fail(err, INFERD_EINVAL, "bad JSON: %s", at.text);
    inferd_status s = INFERD_OK;
    if (!json_is_object(object) || json_object_size(object) == 0)
        s = inferd_fail(err, INFERD_EINVAL, "not an object with members");
    char *text = s == INFERD_OK ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (s != INFERD_OK) return s;
    if (text == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for JSON");
    text[strlen(text) - 1] = 0;
    s = value_text(out, text + 1, err);
    free(text);
    return s;
}
