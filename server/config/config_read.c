/* config_read.c - from text to an inferd_config, with every problem on the way.
 *
 * The reader does not stop at a problem: it notes it and continues, so that all of them can be
 * fixed at once.  Invalid values are left as if absent; an object without problems is settled,
 * which fills in what depends on other members and checks them against each other.
 * The text holds keys, so JSON trees are zeroed when freed. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "config_options.h"

/* A configuration is trusted, but a file with a hundred thousand tenants is large. */
static const json_limits file_limits = {
    .depth_max = 16, .structural_max = 8000000, .memory_max = 4ull * 1024 * 1024 * 1024};

/* -- problems -- */

static void spell(buf *out, const config_location *location) {
    if (location == NULL || (location->name == NULL && location->parent == NULL)) return;
    spell(out, location->parent);
    if (location->name == NULL)
        buf_add_format(out, "[%zu]", location->index);
    else
        buf_add_format(out, "%s%s", out->n > 0 ? "." : "", location->name);
}

/* The line of a position, or of the nearest enclosing position that exists. */
static uint32_t line_of(const config_report *r, char *path) {
    if (r->lines == NULL) return 0;
    for (;;) {
        uint32_t line = json_lines_find(r->lines, path);
        if (line != 0 || path[0] == 0) return line;
        char *cut = strrchr(path, '.'), *bracket = strrchr(path, '[');
        if (cut == NULL || (bracket != NULL && bracket > cut)) cut = bracket;
        *(cut == NULL ? path : cut) = 0;
    }
}

/* Messages contain names from the file: a line must stay one line, and harmless on a terminal. */
static void make_printable(char *text) {
    for (; *text != 0; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

void config_problem(config_report *r, const config_location *location, const char *format, ...) {
    char sentence[512];
    buf path;
    va_list args;
    if (++r->n > CONFIG_PROBLEMS_MAX) return;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    make_printable(sentence);
    buf_init(&path, 4096);
    spell(&path, location);
    make_printable((char *)(uintptr_t)buf_cstr(&path));
    if (r->source != NULL) buf_add_format(r->problems, "%s:", r->source);
    char *walk = strdup(buf_cstr(&path));
    uint32_t line = walk == NULL ? 0 : line_of(r, walk);
    free(walk);
    if (line > 0) buf_add_format(r->problems, "%u:", line);
    if (r->source != NULL) buf_add_char(r->problems, ' ');
    if (r->warnings) buf_add_str(r->problems, "warning: ");
    if (path.n > 0) buf_add_format(r->problems, "%s: ", buf_cstr(&path));
    buf_add_format(r->problems, "%s\n", sentence);
    if (r->n == CONFIG_PROBLEMS_MAX)
        buf_add_format(r->problems, "further %s are not shown\n",
                       r->warnings ? "warnings" : "problems");
    buf_deinit(&path);
}

/* -- values -- */

typedef struct reader {
    config_report *report;
    const char *folder; // of the file, with a slash; "" = the working directory
    bool no_memory;
} reader;

static const char *kind_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL: // also an integer beyond 64 bits
        return fabs(json_real_value(v)) < 0x1p63 ? "a fraction" : "a number that is too large";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    default:
        return "null";
    }
}

static void wrong_kind(reader *r, const config_location *p, const char *wanted, const json_t *v) {
    config_problem(r->report, p, "expected %s, found %s", wanted, kind_of(v));
}

static char *take_text(reader *r, const char *text) {
    char *copy = strdup(text);
    if (copy == NULL) r->no_memory = true;
    return copy;
}

static void out_of_range(reader *r, const config_location *p, const option *o) {
    config_problem(r->report, p, "must be between %llu and %llu", (unsigned long long)o->min,
                   (unsigned long long)o->max);
}

/* Any invalid text or number gets the same message. */
static void read_duration(reader *r, const config_location *p, const json_t *v, uint64_t *out) {
    if (!json_is_string(v) && !json_is_number(v))
        wrong_kind(r, p, "a duration such as \"5m\"", v);
    else if (!config_json_duration(v, out))
        config_problem(r->report, p,
                       "is not a duration: write seconds, a text such as \"30s\", \"1h30m\" or "
                       "\"250ms\" of at most %d days, or \"never\"",
                       CONFIG_DURATION_DAYS_MAX);
}

static bool read_number(reader *r, const config_location *p, const option *o, const json_t *v,
                        uint64_t *out) {
    bool size = o->kind == OPTION_BYTES32 || o->kind == OPTION_BYTES64;
    if (size && json_is_string(v)) {
        if (!config_read_size(json_string_value(v), out)) {
            config_problem(r->report, p, "%s", config_size_problem(json_string_value(v)));
            return false;
        }
    } else if (json_is_integer(v)) {
        if (json_integer_value(v) < 0) {
            out_of_range(r, p, o);
            return false;
        }
        *out = (uint64_t)json_integer_value(v);
    } else {
        wrong_kind(r, p,
                   size          ? "a size such as \"2GiB\""
                   : o->nullable ? "a whole number or null"
                                 : "a whole number",
                   v);
        return false;
    }
    if (*out >= o->min && *out <= o->max) return true;
    out_of_range(r, p, o);
    return false;
}

static void read_real(reader *r, const config_location *p, const option *o, const json_t *v,
                      double *out) {
    double d = json_number_value(v);
    if (!json_is_number(v))
        wrong_kind(r, p, "a number", v);
    else if (!(d >= o->real_min && d <= o->real_max) || (o->above_min && d == o->real_min))
        config_problem(r->report, p, "must be between %.10g and %.10g%s", o->real_min, o->real_max,
                       o->above_min ? ", the first excluded" : "");
    else if (o->whole && d != floor(d))
        config_problem(r->report, p, "must be a whole number");
    else
        *out = d;
}

static const char *read_text(reader *r, const config_location *p, const option *o,
                             const json_t *v) {
    if (!json_is_string(v)) {
        wrong_kind(r, p, "text", v);
        return NULL;
    }
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    if (n < o->min || n > o->max) {
        config_problem(r->report, p, "must have %llu to %llu bytes", (unsigned long long)o->min,
                       (unsigned long long)o->max);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] >= 0x20 && text[i] != 0x7f) continue;
        config_problem(r->report, p, "holds a control character");
        return NULL;
    }
    return text;
}

static void read_gpu(reader *r, const config_location *p, const option *o, const json_t *v,
                     config_gpu *out) {
    option as_text = *o;
    uint64_t number;
    if (json_is_integer(v)) {
        if (read_number(r, p, o, v, &number)) out->index = (uint32_t)number;
        return;
    }
    if (!json_is_string(v)) {
        wrong_kind(r, p, "a number or a UUID such as \"GPU-8f6a\"", v);
        return;
    }
    as_text.min = 1, as_text.max = GPU_UUID_BYTES_MAX;
    const char *text = read_text(r, p, &as_text, v);
    if (text == NULL) return;
    if (strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0)
        out->uuid = take_text(r, text);
    else
        config_problem(r->report, p, "\"%s\" is neither a number nor a UUID: GPU-... or MIG-...",
                       text);
}

/* Relative to the file, so that a configuration does not depend on the working directory. */
static char *take_path(reader *r, const char *text) {
    char *path = NULL;
    if (text[0] == '/' || model_path_is_dummy(text)) return take_text(r, text);
    if (asprintf(&path, "%s%s", r->folder, text) >= 0) return path;
    r->no_memory = true;
    return NULL;
}

static void list_choices(const option *o, char out[128]) {
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; o->choices[i] != NULL && n < 100; i++)
        n += (size_t)snprintf(out + n, 128 - n, "%s\"%s\"", i > 0 ? ", " : "", o->choices[i]);
    if (o->booleans != NULL && n < 100) snprintf(out + n, 128 - n, ", true, false");
}

/* The index in choices, or -1 with a problem. */
static int read_choice(reader *r, const config_location *p, const option *o, const json_t *v) {
    char all[128];
    const char *text = json_is_string(v) ? json_string_value(v) : "";
    if (o->booleans != NULL && json_is_boolean(v)) text = o->booleans[json_is_true(v)];
    for (int i = 0; o->choices[i] != NULL; i++)
        if (strcmp(text, o->choices[i]) == 0) return i;
    list_choices(o, all);
    config_problem(r->report, p, "expected one of %s", all);
    return -1;
}

static void read_texts(reader *r, const config_location *p, const option *o, const json_t *v,
                       void *base) {
    option each = *o;
    size_t n = json_array_size(v);
    each.max = 200;
    if (!json_is_array(v)) {
        wrong_kind(r, p, "a list of texts", v);
        return;
    }
    if (n > o->max) {
        config_problem(r->report, p, "has %zu elements, at most %llu are possible", n,
                       (unsigned long long)o->max);
        return;
    }
    char **texts = calloc(n + 1, sizeof *texts);
    if (texts == NULL) {
        r->no_memory = true;
        return;
    }
    uint32_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        config_location at = {.parent = p, .index = i};
        const char *text = read_text(r, &at, &each, json_array_get(v, i));
        if (text != NULL && (texts[kept] = take_text(r, text)) != NULL) kept++;
    }
    *(char ***)option_at(base, o->offset) = texts;
    *(uint32_t *)option_at(base, o->count_offset) = kept;
}

static void read_keys(reader *r, const config_location *p, const json_t *v, key_list list) {
    size_t n = json_array_size(v);
    if (json_is_string(v)) {
        keys_add(list, (bytes){json_string_value(v), json_string_length(v)}, r->report, p);
        return;
    }
    if (!json_is_array(v)) {
        wrong_kind(r, p, "a key or a list of keys", v);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        config_location at = {.parent = p, .index = i};
        const json_t *key = json_array_get(v, i);
        if (json_is_string(key))
            keys_add(list, (bytes){json_string_value(key), json_string_length(key)}, r->report,
                     &at);
        else
            wrong_kind(r, &at, "text", key);
    }
}

static key_list keys_at(const option *o, void *base) {
    return (key_list){option_at(base, o->offset), option_at(base, o->count_offset)};
}

/* -- objects -- */

/* A setting of an earlier version: the problem says what replaces it. */
static bool is_removed(reader *r, const config_location *p) {
    const config_removed *was = config_find_removed(p);
    if (was != NULL)
        config_problem(r->report, p, "was removed in %s: %s", was->since, was->sentence);
    return was != NULL;
}

/* An object of an earlier version, where a plain value is now. */
static bool is_removed_object(reader *r, const config_location *p, const option *o,
                              const json_t *v) {
    const char *name;
    json_t *member;
    bool any = false;
    if (o->table != NULL || !json_is_object(v)) return false;
    json_object_foreach((json_t *)(uintptr_t)v, name, member) {
        config_location at = {.parent = p, .name = name};
        any |= is_removed(r, &at);
    }
    return any;
}

static void unknown_option(reader *r, const config_location *p, const option_table *table) {
    if (is_removed(r, p)) return;
    bool spelt;
    const option *meant = config_option_meant(table, p->name, &spelt);
    if (meant == NULL)
        config_problem(r->report, p, "there is no such option");
    else if (spelt)
        config_problem(r->report, p, "there is no such option; did you mean \"%s\"?", meant->name);
    else
        config_problem(r->report, p, "there is no such option; did you mean \"%s\" (%s)?",
                       meant->name, meant->about);
}

static void read_object(reader *r, const config_location *p, const option_table *table,
                        const json_t *v, void *base);

static void read_list(reader *r, const config_location *p, const option *o, const json_t *v,
                      void *base) {
    size_t n = json_array_size(v);
    if (!json_is_array(v)) {
        wrong_kind(r, p, "a list of objects", v);
        return;
    }
    if (n > o->max) {
        config_problem(r->report, p, "has %zu elements, at most %llu are possible", n,
                       (unsigned long long)o->max);
        return;
    }
    char *elements = calloc(n + 1, o->table->struct_bytes);
    if (elements == NULL) {
        r->no_memory = true;
        return;
    }
    *(char **)option_at(base, o->offset) = elements;
    *(uint32_t *)option_at(base, o->count_offset) = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        config_location at = {.parent = p, .index = i};
        config_defaults(o->table, elements + i * o->table->struct_bytes);
        read_object(r, &at, o->table, json_array_get(v, i), elements + i * o->table->struct_bytes);
    }
}

/* A shorthand is read as the object that it stands for. */
static void read_member_object(reader *r, const config_location *p, const option *o,
                               const json_t *v, void *at) {
    if (o->short_for == NULL || json_is_object(v)) {
        read_object(r, p, o->table, v, at);
        return;
    }
    if (!json_is_number(v)) {
        wrong_kind(r, p, "an object or a whole number", v);
        return;
    }
    json_t *object = json_object();
    if (object != NULL && json_object_set(object, o->short_for, (json_t *)(uintptr_t)v) == 0)
        read_object(r, p, o->table, object, at);
    else
        r->no_memory = true;
    json_decref(object);
}

static void read_option(reader *r, const config_location *p, const option *o, const json_t *v,
                        void *base) {
    void *at = option_at(base, o->offset);
    uint64_t number, cores[CONFIG_CORES_MAX / 64];
    const char *text;
    int choice;
    if ((o->nullable && json_is_null(v)) || is_removed_object(r, p, o, v)) return;
    switch (o->kind) {
    case OPTION_TEXT:
        if (o->choices != NULL && read_choice(r, p, o, v) < 0) return;
        if ((text = read_text(r, p, o, v)) != NULL) *(char **)at = take_text(r, text);
        return;
    case OPTION_PATH:
        if ((text = read_text(r, p, o, v)) != NULL) *(char **)at = take_path(r, text);
        return;
    case OPTION_TEXTS:
        read_texts(r, p, o, v, base);
        return;
    case OPTION_THREADS:
        if (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0) return;
        if (!json_is_integer(v)) {
            wrong_kind(r, p, "a whole number or \"auto\"", v);
            return;
        } // fall through
    case OPTION_U32:
    case OPTION_BYTES32:
        if (read_number(r, p, o, v, &number)) *(uint32_t *)at = (uint32_t)number;
        return;
    case OPTION_U64:
    case OPTION_BYTES64:
        if (read_number(r, p, o, v, &number)) *(uint64_t *)at = number;
        return;
    case OPTION_DURATION:
        read_duration(r, p, v, at);
        return;
    case OPTION_GPU:
        read_gpu(r, p, o, v, at);
        return;
    case OPTION_CORES:
        if ((text = read_text(r, p, o, v)) == NULL) return;
        if (config_read_cores(text, cores))
            *(char **)at = take_text(r, text);
        else
            config_problem(r->report, p,
                           "is not a list of CPUs: ascending numbers and ranges below %d, such as "
                           "\"0-3,8\"",
                           CONFIG_CORES_MAX);
        return;
    case OPTION_REAL:
        read_real(r, p, o, v, at);
        return;
    case OPTION_BOOL:
        if (json_is_boolean(v))
            *(bool *)at = json_is_true(v);
        else
            wrong_kind(r, p, "true or false", v);
        return;
    case OPTION_CHOICE:
        if ((choice = read_choice(r, p, o, v)) >= 0) *(int *)at = choice;
        return;
    case OPTION_KEYS:
        read_keys(r, p, v, keys_at(o, base));
        return;
    case OPTION_KEY_FILE:
        if ((text = read_text(r, p, o, v)) != NULL) {
            char *path = take_path(r, text);
            if (path != NULL) keys_add_file(keys_at(o, base), path, r->report, p);
            free(path);
        }
        return;
    case OPTION_KEY_ENV:
        if ((text = read_text(r, p, o, v)) != NULL)
            keys_add_env(keys_at(o, base), text, r->report, p);
        return;
    case OPTION_OBJECT:
        read_member_object(r, p, o, v, at);
        return;
    case OPTION_LIST:
        read_list(r, p, o, v, base);
        return;
    }
}

/* Absent texts with choices get the first choice. */
static void fill_absent(reader *r, const config_location *p, const option_table *table,
                        const json_t *v, void *base) {
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        if (json_object_get(v, o->name) != NULL) continue;
        if (o->required) {
            config_location at = {.parent = p, .name = o->name};
            config_problem(r->report, &at, "is required");
        } else if (o->kind == OPTION_TEXT && o->choices != NULL) {
            *(char **)option_at(base, o->offset) = take_text(r, o->choices[0]);
        }
    }
}

static void read_object(reader *r, const config_location *p, const option_table *table,
                        const json_t *v, void *base) {
    const char *name;
    json_t *member;
    uint32_t n_problems = r->report->n;
    if (!json_is_object(v)) {
        wrong_kind(r, p, "an object", v);
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)v, name, member) {
        config_location at = {.parent = p, .name = name};
        const option *o = config_option(table, name);
        if (o == NULL)
            unknown_option(r, &at, table);
        else
            read_option(r, &at, o, member, base);
    }
    fill_absent(r, p, table, v, base);
    if (table->settle != NULL && r->report->n == n_problems) table->settle(base, v, r->report, p);
}

/* -- the whole -- */

/* The defaults of texts, as in fill_absent: "devices": [{}] changes nothing. */
static bool fill_texts(const option_table *table, void *base) {
    bool ok = true;
    for (size_t i = 0; i < table->n; i++) {
        const option *o = &table->options[i];
        if (o->kind != OPTION_TEXT || o->choices == NULL) continue;
        char **slot = option_at(base, o->offset);
        *slot = strdup(o->choices[0]);
        ok &= *slot != NULL;
    }
    return ok;
}

/* What follows from the settings: limits, and an absent "listen" and "devices".  If "devices" is
 * not a list, there are no devices, and checks of their capacity are skipped. */
static bool fill_defaults(inferd_config *c, const json_t *tree) {
    const option_table *device = config_option(&config_table, "devices")->table;
    if (c->listen == NULL) c->listen = strdup("127.0.0.1:8080");
    config_derive(&c->limits);
    if (json_object_get(tree, "devices") == NULL) {
        c->devices = calloc(1, sizeof c->devices[0]);
        if (c->devices == NULL) return false;
        c->n_devices = 1;
        config_defaults(device, c->devices);
        if (!fill_texts(device, c->devices)) return false;
    }
    return c->listen != NULL;
}

static inferd_status no_memory(inferd_config *c, inferd_err *err) {
    config_destroy(c);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the configuration");
}

static inferd_status read_tree(const json_t *tree, const char *path, config_report *report,
                               inferd_config **out, inferd_err *err) {
    const char *slash = strrchr(path, '/');
    char *folder = strndup(path, slash == NULL ? 0 : (size_t)(slash - path) + 1);
    inferd_config *c = calloc(1, sizeof *c);
    reader r = {.report = report, .folder = folder};
    config_location root = {0};
    if (folder == NULL || c == NULL || (c->source = strdup(path)) == NULL) {
        free(folder);
        return no_memory(c, err);
    }
    config_defaults(&config_table, c);
    read_object(&r, &root, &config_table, tree, c);
    free(folder);
    if (r.no_memory || !fill_defaults(c, tree)) return no_memory(c, err);
    keys_index(c, report);
    if (c->index == NULL) return no_memory(c, err);
    config_check_all(c, report);
    *out = c;
    return INFERD_OK;
}

/* "line 3, column 14: text" -> "file:3: column 14: text". */
static void tell_syntax(config_report *r, const char *sentence) {
    unsigned line;
    int used = 0;
    if (sscanf(sentence, "line %u, %n", &line, &used) == 1 && used > 0)
        buf_add_format(r->problems, "%s:%u: %s\n", r->source, line, sentence + used);
    else
        buf_add_format(r->problems, "%s: %s\n", r->source, sentence);
    r->n++;
}

static inferd_status read_json(const char *source, bytes text, config_report *report,
                               inferd_config **out, inferd_err *err) {
    json_t *tree = NULL;
    json_lines *lines = NULL;
    inferd_status s = json_in_parse(text, &file_limits, &tree, err);
    if (s == INFERD_ENOMEM) return s;
    if (s != INFERD_OK) {
        tell_syntax(report, err->text);
        return INFERD_OK; // the report has the problem
    }
    lines = json_lines_create(text);
    report->lines = lines;
    s = lines == NULL ? inferd_fail(err, INFERD_ENOMEM, "no memory for %s", source)
                      : read_tree(tree, source, report, out, err);
    report->lines = NULL;
    json_decref(tree);
    json_lines_destroy(lines);
    return s;
}

inferd_status config_load_text(const char *source_path, const char *text, size_t n,
                               inferd_config **out, buf *problems, inferd_err *err) {
    inferd_err unread; // err may be NULL, and a syntax error is read from it
    config_report report = {.problems = problems, .source = source_path};
    inferd_config *c = NULL;
    inferd_status s = INFERD_OK;
    if (err == NULL) err = &unread;
    if (n > CONFIG_FILE_BYTES_MAX) {
        config_problem(&report, NULL, "has %zu bytes, at most %d are read", n,
                       CONFIG_FILE_BYTES_MAX);
    } else {
        json_in_init();
        json_in_wipe(true);
        s = read_json(source_path, (bytes){text, n}, &report, &c, err);
        json_in_wipe(false);
    }
    if (s != INFERD_OK) return s;
    if (report.n > 0) {
        config_destroy(c);
        return inferd_fail(err, INFERD_EINVAL, "%s: %u problem%s", source_path, report.n,
                           report.n == 1 ? "" : "s");
    }
    *out = c;
    return INFERD_OK;
}

/* "models/smollm2.gguf", "models/smollm2/" and "models/smollm2-00001-of-00003.gguf" are all named
 * smollm2. */
static char *name_of_file(const char *path) {
    char *trimmed = strdup(path);
    size_t n = trimmed == NULL ? 0 : strlen(trimmed);
    while (n > 1 && trimmed[n - 1] == '/') trimmed[--n] = 0;
    bytes name = trimmed == NULL ? (bytes){0} : model_path_name(trimmed);
    char *out = trimmed == NULL ? NULL : strndup(name.p, name.n);
    free(trimmed);
    return out;
}

inferd_status config_for_model(const char *model_path, inferd_config **out, inferd_err *err) {
    buf problems;
    config_report report = {.problems = &problems};
    inferd_config *c = calloc(1, sizeof *c);
    if (c == NULL) return no_memory(c, err);
    config_defaults(&config_table, c);
    c->models = calloc(1, sizeof c->models[0]);
    if (c->models == NULL) return no_memory(c, err);
    c->n_models = 1;
    config_defaults(config_option(&config_table, "models")->table, c->models);
    c->models[0].name = name_of_file(model_path);
    c->models[0].path = strdup(model_path);
    buf_init(&problems, 0);
    if (fill_defaults(c, NULL)) keys_index(c, &report); // no keys: an empty index
    buf_deinit(&problems);
    if (c->models[0].name == NULL || c->models[0].path == NULL || c->index == NULL)
        return no_memory(c, err);
    *out = c;
    return INFERD_OK;
}

bool config_add_keys(inferd_config *c, const char *key_file, const char *key_env, buf *problems) {
    config_report r = {.problems = problems};
    config_location file = {.name = "--api-key-file"}, env = {.name = "--api-key-env"};
    if (c->n_tenants > 0) {
        config_problem(&r, key_file != NULL ? &file : &env,
                       "the configuration has tenants, each with keys of its own");
        return false;
    }
    free(c->tenants);
    config_tenant *t = c->tenants = calloc(1, sizeof *t);
    if (t != NULL) config_defaults(config_option(&config_table, "tenants")->table, t);
    if (t == NULL || (t->name = strdup("default")) == NULL) {
        config_problem(&r, NULL, "no memory for a tenant");
        return false;
    }
    c->n_tenants = 1;
    t->max_class = t->policy.max_class = GEN_HIGH;
    t->max_class_given = true;
    key_list keys = {&t->keys, &t->n_keys};
    if (key_file != NULL) keys_add_file(keys, key_file, &r, &file);
    if (key_env != NULL) keys_add_env(keys, key_env, &r, &env);
    keys_index(c, &r);
    if (c->index == NULL) config_problem(&r, NULL, "no memory for keys");
    return r.n == 0;
}

bool config_add_page(inferd_config *c, const char *key, buf *problems) {
    config_report r = {.problems = problems};
    config_location page = {.name = "--page"};
    c->admin.page = true;
    if (c->admin.n_keys > 0) return true;
    keys_add((key_list){&c->admin.keys, &c->admin.n_keys}, (bytes){key, strlen(key)}, &r, &page);
    keys_index(c, &r);
    if (c->index == NULL) config_problem(&r, NULL, "no memory for keys");
    return r.n == 0;
}
