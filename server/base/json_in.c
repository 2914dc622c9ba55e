/* json_in.c - see json_in.h.
 *
 * jansson amplifies: "[{},{},...]" costs seventy times its length.  So the scan bounds what can be
 * counted, and the allocator bounds the rest.
 *
 * The allocator must not return NULL, though: when an allocation fails inside jansson's lexer, the
 * current character is silently lost, and an assertion, or a copy past the end of a buffer,
 * follows.  A parse over its budget is therefore abandoned as a whole, by a long jump out of
 * jansson, and its allocations are freed from a list that was kept during the parse.  The jump is
 * sound because jansson holds no locks and keeps no state outside its arguments while it parses.
 * After a successful parse the list is dropped: the blocks are plain malloc blocks. */
#include "json_in.h"

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

enum { KEY_BYTES_MAX = 4096, LIVE_SLOTS_MIN = 256 };
enum { INT64_DIGITS = 19, DOUBLE_BYTES_MAX = 32 };

/* -- blocks of the running parse: a set of pointers, open addressing -- */

typedef struct live_set {
    void **slots; // [mask + 1], NULL = free; at most half are used
    size_t mask, n;
} live_set;

static size_t live_home(const live_set *l, const void *p) {
    return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 20) & l->mask;
}

static void live_put(live_set *l, void *p) {
    size_t i = live_home(l, p);
    while (l->slots[i] != NULL) i = (i + 1) & l->mask;
    l->slots[i] = p;
    l->n++;
}

static bool live_grow(live_set *l) {
    live_set grown = {.mask = l->slots == NULL ? LIVE_SLOTS_MIN - 1 : 2 * l->mask + 1};
    grown.slots = calloc(grown.mask + 1, sizeof grown.slots[0]);
    if (grown.slots == NULL) return false;
    for (size_t i = 0; l->slots != NULL && i <= l->mask; i++)
        if (l->slots[i] != NULL) live_put(&grown, l->slots[i]);
    free(l->slots);
    *l = grown;
    return true;
}

static bool live_add(live_set *l, void *p) {
    if ((l->slots == NULL || 2 * (l->n + 1) > l->mask + 1) && !live_grow(l)) return false;
    live_put(l, p);
    return true;
}

/* Entries behind the gap move up unless at their home slot, so that no search ends early. */
static void live_remove(live_set *l, const void *p) {
    size_t gap = live_home(l, p);
    while (l->slots[gap] != p) gap = (gap + 1) & l->mask; // it is present: it was added
    for (size_t i = (gap + 1) & l->mask; l->slots[i] != NULL; i = (i + 1) & l->mask) {
        size_t home = live_home(l, l->slots[i]);
        if (((i - home) & l->mask) < ((i - gap) & l->mask)) continue;
        l->slots[gap] = l->slots[i];
        gap = i;
    }
    l->slots[gap] = NULL;
    l->n--;
}

/* -- allocator -- */

static _Thread_local struct {
    bool parsing;  // a parse is running on this thread; else only `wipe` is valid
    bool over;     // the budget was exceeded; false: the heap is exhausted
    uint64_t left; // of the budget
    live_set live;
    jmp_buf give_up; // in run_parse
    bool wipe;
} parse;

/* The cost of a block: its usable size and the heap's own header. */
static uint64_t cost_of(void *p) {
    return malloc_usable_size(p) + sizeof(size_t);
}

static void release(void *p) {
    if (parse.wipe) explicit_bzero(p, malloc_usable_size(p));
    free(p);
}

_Noreturn static void give_up(bool over) {
    parse.over = over;
    longjmp(parse.give_up, 1);
}

static void *counted_malloc(size_t n) {
    if (!parse.parsing) return malloc(n);
    if (n > parse.left) give_up(true);
    void *p = malloc(n);
    if (p == NULL) give_up(false);
    uint64_t cost = cost_of(p);
    if (cost > parse.left || !live_add(&parse.live, p)) {
        free(p);
        give_up(cost > parse.left);
    }
    parse.left -= cost;
    return p;
}

static void counted_free(void *p) {
    if (p == NULL) return;
    if (parse.parsing) {
        parse.left += cost_of(p);
        live_remove(&parse.live, p);
    }
    release(p);
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
    parse.wipe = on;
}

typedef enum parse_end { PARSE_TREE, PARSE_INVALID, PARSE_OVER, PARSE_NO_HEAP } parse_end;

static parse_end run_parse(bytes text, uint64_t memory_max, json_t **out, json_error_t *error) {
    parse.left = memory_max;
    parse.live = (live_set){0};
    if (setjmp(parse.give_up) != 0) {
        parse.parsing = false;
        for (size_t i = 0; parse.live.slots != NULL && i <= parse.live.mask; i++)
            if (parse.live.slots[i] != NULL) release(parse.live.slots[i]);
        free(parse.live.slots);
        return parse.over ? PARSE_OVER : PARSE_NO_HEAP;
    }
    parse.parsing = true;
    *out = json_loadb(text.p == NULL ? "" : text.p, text.n, JSON_REJECT_DUPLICATES, error);
    parse.parsing = false;
    free(parse.live.slots);
    return *out == NULL ? PARSE_INVALID : PARSE_TREE;
}

/* -- scan -- */

static inferd_status fail_at(bytes text, size_t at, inferd_status status, const char *what,
                             inferd_err *err) {
    size_t line = 1, line_begin = 0;
    for (size_t i = 0; i < at && i < text.n; i++)
        if (text.p[i] == '\n') line++, line_begin = i + 1;
    return inferd_fail(err, status, "line %zu, column %zu: %s", line, at - line_begin + 1, what);
}

/* The index of the closing quote of the string that begins at `i`, or n. */
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

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t digits_end(bytes text, size_t i) {
    while (i < text.n && is_digit(text.p[i])) i++;
    return i;
}

/* The number that may begin at `i`: the position after it, or `i`. */
static size_t number_end(bytes text, size_t i) {
    size_t at = digits_end(text, i + (text.p[i] == '-'));
    if (at == i) return i;
    if (at < text.n && text.p[at] == '.') at = digits_end(text, at + 1);
    if (at == text.n || (text.p[at] != 'e' && text.p[at] != 'E')) return at;
    if (++at < text.n && (text.p[at] == '-' || text.p[at] == '+')) at++;
    return digits_end(text, at);
}

/* An integer that 64 bits do not hold, which jansson refuses. */
static bool is_wide(bytes number) {
    bool negative = number.n > 0 && *number.p == '-';
    const char *digits = number.p + negative;
    size_t n = number.n - negative;
    if (n < INT64_DIGITS || digits[0] == '0') return false;
    for (size_t i = 0; i < n; i++)
        if (!is_digit(digits[i])) return false;
    const char *most = negative ? "9223372036854775808" : "9223372036854775807";
    return n > INT64_DIGITS || memcmp(digits, most, n) > 0;
}

/* Checks limits only; jansson validates.  Both agree on where strings are, so jansson sees no
 * structure that was not counted here. */
static inferd_status scan(bytes text, const json_limits *limits, bool *has_wide, inferd_err *err) {
    uint32_t depth = 0, n_structural = 0;
    size_t number;                          // where it ends
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
            number = number_end(text, i);
            if (number == i) continue;
            *has_wide |= is_wide((bytes){text.p + i, number - i});
            i = number - 1;
            continue;
        }
        if (++n_structural > limits->structural_max)
            return fail_at(text, i, INFERD_ETOOLONG, "too many values", err);
    }
    return INFERD_OK;
}

/* Writes the double that is nearest to the number in its place: "18446744073709552e3", with a blank
 * behind it, so what follows keeps its position.  One that is no double stays, and is refused. */
static void write_double(char *number, size_t n) {
    char text[DOUBLE_BYTES_MAX];
    double d = strtod(number, NULL); // ends with its digits
    if (isinf(d)) return;
    snprintf(text, sizeof text, "%.16e", d); // "-1.8446744073709552e+19"
    char *exponent = strchr(text, 'e'), *point = strchr(text, '.');
    int power = atoi(exponent + 1) - (int)(exponent - point - 1);
    memmove(point, point + 1, (size_t)(exponent - point - 1));
    size_t used = (size_t)(exponent - 1 - text);
    used += (size_t)snprintf(text + used, sizeof text - used, "e%d", power);
    INFERD_CHECK(used <= n); // 17 digits and "e2" for 19 digits, "e100" for 117
    memset(number, ' ', n);
    memcpy(number, text, used);
}

/* The first number at `i` or behind it, in no string; *end is behind it.  text.n: none. */
static size_t next_number(bytes text, size_t i, size_t *end) {
    for (; i < text.n; i++) {
        if (text.p[i] == '"') {
            i = string_end(text, i);
            continue;
        }
        *end = number_end(text, i);
        if (*end > i) return i;
    }
    return text.n;
}

/* A copy of the text in which integers beyond 64 bits are doubles, as most readers of JSON have
 * them; NULL: no memory. */
static char *without_wide(bytes text) {
    char *copy = malloc(text.n + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, text.p, text.n);
    copy[text.n] = 0;
    for (size_t end, i = 0; (i = next_number(text, i, &end)) < text.n; i = end)
        if (is_wide((bytes){text.p + i, end - i})) write_double(copy + i, end - i);
    return copy;
}

/* jansson's own messages quote the document, so only its code and position are used. */
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
        return "a number is too large: no double holds it";
    default:
        return "this is not valid JSON";
    }
}

static parse_end parse_narrow(bytes text, uint64_t memory_max, json_t **out, json_error_t *error) {
    char *copy = without_wide(text);
    if (copy == NULL) return PARSE_NO_HEAP;
    parse_end end = run_parse((bytes){copy, text.n}, memory_max, out, error);
    if (parse.wipe) explicit_bzero(copy, text.n);
    free(copy);
    return end;
}

inferd_status json_in_parse(bytes text, const json_limits *limits, json_t **out, inferd_err *err) {
    json_error_t error;
    bool has_wide = false;
    json_in_init();
    inferd_status status = scan(text, limits, &has_wide, err);
    if (status != INFERD_OK) return status;
    switch ((has_wide ? parse_narrow : run_parse)(text, limits->memory_max, out, &error)) {
    case PARSE_TREE:
        return INFERD_OK;
    case PARSE_NO_HEAP:
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a JSON document of %zu bytes",
                           text.n);
    case PARSE_OVER:
        return inferd_fail(err, INFERD_ETOOLONG,
                           "the JSON needs more than the %llu bytes of memory it may use",
                           (unsigned long long)limits->memory_max);
    case PARSE_INVALID:
        break;
    }
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

/* The position after the value at `i`: behind its closing bracket, or where a scalar ends. */
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
            if (depth == 0) return i; // the end of the object or array that contains a scalar
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

/* The value at the path, or n. */
static size_t find_value(bytes text, const char *path) {
    size_t at = skip_space(text, 0);
    while (*path != 0 && at < text.n) {
        if (*path == '[') {
            char *end;
            size_t index = strtoul(path + 1, &end, 10);
            if (end == path + 1 || *end != ']') return text.n;
            at = find_element(text, at, index);
            path = end + 1;
        } else {
            if (*path == '.') path++;
            size_t n = strcspn(path, ".[");
            at = find_member(text, at, path, n);
            path += n;
        }
    }
    return at;
}

uint32_t json_lines_find(const json_lines *l, const char *path) {
    size_t at = find_value(l->text, path);
    if (at >= l->text.n) return 0;
    uint32_t line = 1;
    for (size_t i = 0; i < at; i++) line += l->text.p[i] == '\n';
    return line;
}

/* -- wide integers -- */

bool json_in_has_wide(bytes text) {
    for (size_t end, i = 0; (i = next_number(text, i, &end)) < text.n; i = end)
        if (fabs(strtod(text.p + i, NULL)) >= 0x1p63) return true;
    return false;
}

bytes json_in_value(bytes text, const char *path) {
    size_t at = find_value(text, path);
    if (at >= text.n) return (bytes){"", 0};
    return (bytes){text.p + at, skip_value(text, at) - at};
}
