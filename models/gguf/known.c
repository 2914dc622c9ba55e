/* known.c - see known.h. */
#include "gguf/known.h"

#include <math.h>
#include <string.h>

/* Floats of a file are rounded to f32, and so are values computed from them. */
#define SAME_NUMBER 1e-6

static bool matches(const char *pattern, bytes name) {
    const char *star = strchr(pattern, '*');
    size_t n = strlen(pattern);
    if (star == NULL) return name.n == n && memcmp(name.p, pattern, n) == 0;
    size_t n_before = (size_t)(star - pattern), n_behind = n - n_before - 1;
    return name.n >= n_before + n_behind && memcmp(name.p, pattern, n_before) == 0 &&
           memcmp(name.p + name.n - n_behind, star + 1, n_behind) == 0;
}

static const known_key *find(const known_table *tables, size_t n_tables, bytes name) {
    for (size_t t = 0; t < n_tables; t++)
        for (size_t i = 0; i < tables[t].n; i++)
            if (matches(tables[t].keys[i].name, name)) return &tables[t].keys[i];
    return NULL;
}

static bool is_number(const gguf *g, size_t i, double wanted, bool or_0) {
    double v;
    if (!gguf_number_at(g, i, &v)) return false;
    return fabs(v - wanted) <= SAME_NUMBER * fabs(wanted) || (or_0 && v == 0);
}

/* The allowed values for the message about a value that is not, in the form of the message. */
static void show_allowed(const known_key *k, const char *value, char *out, size_t n) {
    bool is_bool = strcmp(value, "true") == 0 || strcmp(value, "false") == 0; // texts have quotes
    if (k->rule == KNOWN_EMPTY)
        snprintf(out, n, "an empty one, or one of zeros, is");
    else if (is_bool && k->rule == KNOWN_IS)
        snprintf(out, n, "%s is computed", k->value != 0 ? "true" : "false");
    else
        snprintf(out, n, "%.7g%s is computed", k->value,
                 k->rule == KNOWN_IS_OR_0 ? " (or 0, not set)" : "");
}

static inferd_status check_key(const gguf *g, size_t i, bytes key, const known_key *k,
                               inferd_err *err) {
    char value[GGUF_SHOWN_BYTES], allowed[64], name[128];
    size_t n = size_min(key.n, sizeof name - 1);
    memcpy(name, key.p, n); // printable: the header's reader checked that
    name[n] = 0;
    if (k == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "%s: key %s (%s) is not known, so it cannot be applied", gguf_path(g),
                           name, gguf_show_value(g, i, value));
    bool fine = true;
    switch (k->rule) {
    case KNOWN_READ:
    case KNOWN_HARMLESS:
        break;
    case KNOWN_IS:
    case KNOWN_IS_OR_0:
        fine = is_number(g, i, k->value, k->rule == KNOWN_IS_OR_0);
        break;
    case KNOWN_EMPTY:
        fine = gguf_is_empty_at(g, i);
        break;
    }
    if (fine) return INFERD_OK;
    show_allowed(k, gguf_show_value(g, i, value), allowed, sizeof allowed);
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "%s: key %s is %s, which is not supported; only %s", gguf_path(g), name,
                       value, allowed);
}

inferd_status known_check_next(const gguf *g, const char *prefix, const known_table *tables,
                               size_t n_tables, bool names_only, size_t *at, inferd_err *err) {
    size_t n_prefix = strlen(prefix);
    while (*at < gguf_n_keys(g)) {
        size_t i = (*at)++;
        bytes key = gguf_key_at(g, i);
        if (key.n < n_prefix || memcmp(key.p, prefix, n_prefix) != 0) continue;
        bytes name = {key.p + n_prefix, key.n - n_prefix};
        const known_key *k = find(tables, n_tables, name);
        if (names_only && k != NULL) continue;
        inferd_status s = check_key(g, i, key, k, err);
        if (s != INFERD_OK) return s;
    }
    return INFERD_OK;
}

inferd_status known_check(const gguf *g, const char *prefix, const known_table *tables,
                          size_t n_tables, inferd_err *err) {
    size_t at = 0;
    return known_check_next(g, prefix, tables, n_tables, false, &at, err);
}
