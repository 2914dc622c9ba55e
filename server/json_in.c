/* json_in.c - see json_in.h.
 *
 * jansson amplifies: "[{},{},...]" costs seventy times its length, and an allocation that fails
 * inside it is reported as a syntax error.  So the scan bounds what can be counted, the allocator
 * bounds what remains, and its own two flags (over budget, heap short) say what happened. */
#include "json_in.h"

#include <malloc.h>
#include <pthread.h>
#include <string.h>

enum { KEY_BYTES_MAX = 4096 };

const json_limits json_limits_default = {
    .depth_max = 64, .structural_max = 1048576, .memory_max = 128ull * 1024 * 1024};

/* -- allocator -- */

static _Thread_local struct {
    bool counting; // a parse is under way on this thread
    bool over;     // it wanted more than its budget
    bool no_heap;  // malloc failed
    bool wipe;
    uint64_t left;
} budget;

/* What a block costs: its usable size and the heap's own header. */
static uint64_t cost_of(void *p) {
    return malloc_usable_size(p) + sizeof(size_t);
}

static void *counted_malloc(size_t n) {
    if (budget.counting && n > budget.left) {
        budget.over = true;
        return NULL;
    }
    void *p = malloc(n);
    if (p == NULL) {
        budget.no_heap = true;
        return NULL;
    }
    if (!budget.counting) return p;
    uint64_t cost = cost_of(p);
    if (cost > budget.left) {
        free(p);
        budget.over = true;
        return NULL;
    }
    budget.left -= cost;
    return p;
}

static void counted_free(void *p) {
    if (p == NULL) return;
    if (budget.counting) budget.left += cost_of(p);
    if (budget.wipe) explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

static void init_once(void) {
    json_set_alloc_funcs(counted_malloc, counted_free);
    json_object_seed(0); // from the system's randomness
}

void json_in_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}

void json_in_wipe(bool on) {
    budget.wipe = on;
}

/* -- scan -- */

static inferd_status fail_at(bytes text, size_t at, inferd_status status, const char *what,
                             inferd_err *err) {
    size_t line = 1, line_begin = 0;
    for (size_t i = 0; i < at && i < text.n; i++)
        if (text.p[i] == '\n') line++, line_begin = i + 1;
    return inferd_fail(err, status, "line %zu, column %zu: %s", line, at - line_begin + 1, what);
}

/* The index of the quote that ends the string whose opening quote is at `i`, or n. */
static size_t string_end(bytes text, size_t i) {
    for (i++; i < text.n; i++) {
        if (text.p[i] == '\\')
            i++;
        else if (text.p[i] == '"')
            return i;
    }
    return text.n;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Limits only; whether it is JSON is jansson's to say.  Both agree on where strings are, so
 * nothing counted here can hide from there. */
static inferd_status scan(bytes text, const json_limits *limits, inferd_err *err) {
    uint32_t depth = 0, n_structural = 0;
    size_t string_at = 0, string_bytes = 0; // the last string
    for (size_t i = 0; i < text.n; i++) {
        switch (text.p[i]) {
        case '"':
            string_at = i;
            i = string_end(text, i);
            string_bytes = i - string_at;
            continue;
        case '{':
        case '[':
            if (++depth > limits->depth_max)
                return fail_at(text, i, INFERD_ETOOLONG, "nested too deeply", err);
            break;
        case '}':
        case ']':
            if (depth > 0) depth--;
            break;
        case ':':
            if (string_bytes > KEY_BYTES_MAX)
                return fail_at(text, string_at, INFERD_ETOOLONG, "a key is too long", err);
            break;
        case ',':
            break;
        default:
            continue;
        }
        if (++n_structural > limits->structural_max)
            return fail_at(text, i, INFERD_ETOOLONG, "too many values", err);
    }
    return INFERD_OK;
}

/* jansson's own sentences quote the document, so only its code and position are used. */
static const char *explain(enum json_error_code code) {
    switch (code) {
    case json_error_premature_end_of_input:
        return "the JSON ends too early";
    case json_error_end_of_input_expected:
        return "there is something after the end of the JSON";
    case json_error_invalid_utf8:
        return "the text is not valid UTF-8";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "a string holds a NUL character";
    case json_error_duplicate_key:
        return "a key appears twice in one object";
    case json_error_numeric_overflow:
        return "a number is too large";
    default:
        return "this is not valid JSON";
    }
}

inferd_status json_in_parse(bytes text, const json_limits *limits, json_t **out, inferd_err *err) {
    json_error_t error;
    json_in_init();
    inferd_status status = scan(text, limits, err);
    if (status != INFERD_OK) return status;
    budget.over = budget.no_heap = false;
    budget.left = limits->memory_max;
    budget.counting = true;
    json_t *tree = json_loadb(text.p == NULL ? "" : text.p, text.n, JSON_REJECT_DUPLICATES, &error);
    budget.counting = false;
    if (tree != NULL) {
        *out = tree;
        return INFERD_OK;
    }
    if (budget.no_heap)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a JSON document of %zu bytes",
                           text.n);
    if (budget.over)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "the JSON needs more than the %llu bytes of memory it may use",
                           (unsigned long long)limits->memory_max);
    return inferd_fail(err, INFERD_EINVAL, "line %d, column %d: %s",
                       error.line < 1 ? 1 : error.line, error.column < 0 ? 0 : error.column,
                       explain(json_error_code(&error)));
}

/* -- lines -- */

struct json_lines {
    bytes text; // borrowed
};

json_lines *json_lines_create(bytes text) {
    json_lines *l = malloc(sizeof *l);
    if (l != NULL) l->text = text;
    return l;
}

void json_lines_destroy(json_lines *l) {
    free(l);
}

static size_t skip_space(bytes text, size_t i) {
    while (i < text.n && is_space(text.p[i])) i++;
    return i;
}

/* Behind the value at `i`: its end is a bracket that closes it, or what may follow a scalar. */
static size_t skip_value(bytes text, size_t i) {
    size_t depth = 0;
    for (; i < text.n; i++) {
        char c = text.p[i];
        if (c == '"') {
            i = string_end(text, i);
            if (i == text.n) return i;
        } else if (c == '{' || c == '[') {
            depth++;
            continue;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return i; // the end of what holds a scalar
            depth--;
        } else if (c == ',' && depth == 0) {
            return i;
        }
        if (depth == 0 && (c == '"' || c == '}' || c == ']')) return i + 1;
    }
    return i;
}

/* The value of member `name` of the object at `i`, or n. */
static size_t find_member(bytes text, size_t i, const char *name, size_t name_n) {
    if (i >= text.n || text.p[i] != '{') return text.n;
    for (i = skip_space(text, i + 1); i < text.n && text.p[i] == '"';) {
        size_t key = i + 1, end = string_end(text, i);
        i = skip_space(text, end + 1);
        if (i >= text.n || text.p[i] != ':') return text.n;
        i = skip_space(text, i + 1);
        if (end - key == name_n && memcmp(text.p + key, name, name_n) == 0) return i;
        i = skip_space(text, skip_value(text, i));
        if (i >= text.n || text.p[i] != ',') return text.n;
        i = skip_space(text, i + 1);
    }
    return text.n;
}

static size_t find_element(bytes text, size_t i, size_t index) {
    if (i >= text.n || text.p[i] != '[') return text.n;
    i = skip_space(text, i + 1);
    for (; index > 0; index--) {
        i = skip_space(text, skip_value(text, i));
        if (i >= text.n || text.p[i] != ',') return text.n;
        i = skip_space(text, i + 1);
    }
    return i < text.n && text.p[i] != ']' ? i : text.n;
}

uint32_t json_lines_find(const json_lines *l, const char *path) {
    size_t at = skip_space(l->text, 0);
    while (*path != 0 && at < l->text.n) {
        if (*path == '[') {
            char *end;
            size_t index = strtoul(path + 1, &end, 10);
            if (end == path + 1 || *end != ']') return 0;
            at = find_element(l->text, at, index);
            path = end + 1;
        } else {
            if (*path == '.') path++;
            size_t n = strcspn(path, ".[");
            at = find_member(l->text, at, path, n);
            path += n;
        }
    }
    if (at >= l->text.n) return 0;
    uint32_t line = 1;
    for (size_t i = 0; i < at; i++) line += l->text.p[i] == '\n';
    return line;
}
