/* unknown.c - see unknown.h. */
#include "unknown.h"

#include <stdlib.h>
#include <string.h>

#include "inferd/hash.h"

unknown_field *unknown_add(unknown_fields *u, const char *name) {
    if (u->n++ >= UNKNOWN_NAMED_MAX) return NULL;
    unknown_field *f = &u->named[u->n - 1];
    f->meant = NULL;
    api_quote(f->name, name, strlen(name));
    return f;
}

static bool is_plain(unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* Needs room for three times the name.  The empty name is written %, which is unique. */
static size_t escape(char *out, const char *name) {
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)name; *p != 0; p++)
        if (is_plain(*p))
            out[n++] = (char)*p;
        else
            n += (size_t)sprintf(out + n, "%%%02X", *p);
    if (n == 0) out[n++] = '%';
    out[n] = 0;
    return n;
}

void unknown_line(const unknown_fields *u, char out[UNKNOWN_LINE_BYTES]) {
    enum { COUNT_BYTES = 16 }; // ", +4294967295"
    _Static_assert(sizeof UNKNOWN_HEADER + UNKNOWN_VALUE_BYTES + 4 <= UNKNOWN_LINE_BYTES,
                   "the line has room for the value");
    char value[UNKNOWN_VALUE_BYTES + 1], one[3 * API_QUOTE_BYTES + 1];
    size_t n = 0;
    uint32_t n_written = 0;
    out[0] = 0;
    if (u->n == 0) return;
    for (uint32_t i = 0; i < u->n && i < UNKNOWN_NAMED_MAX; i++) {
        size_t length = escape(one, u->named[i].name);
        if (n + 2 + length + COUNT_BYTES > UNKNOWN_VALUE_BYTES) continue;
        n += (size_t)sprintf(value + n, "%s%s", n == 0 ? "" : ", ", one);
        n_written++;
    }
    if (n_written < u->n) sprintf(value + n, "%s+%u", n == 0 ? "" : ", ", u->n - n_written);
    snprintf(out, UNKNOWN_LINE_BYTES, UNKNOWN_HEADER ": %s\n", value);
}

/* ---- logged names ---- */

enum { ENTRIES = 2 * UNKNOWN_TOLD_MAX }; // at most half full, so that a search ends

struct unknown_names {
    char names[ENTRIES][API_QUOTE_BYTES]; // hash table; used[] marks entries in use
    bool used[ENTRIES], full_told;
    uint32_t n;
};

unknown_names *unknown_names_create(void) {
    return calloc(1, sizeof(unknown_names));
}

void unknown_names_destroy(unknown_names *names) {
    free(names);
}

unknown_news unknown_names_add(unknown_names *u, const char *name) {
    size_t at = hash_fold(hash_bytes(HASH_BEGIN, name, strlen(name))) % ENTRIES;
    for (; u->used[at]; at = (at + 1) % ENTRIES)
        if (strcmp(u->names[at], name) == 0) return UNKNOWN_TOLD;
    if (u->n == UNKNOWN_TOLD_MAX) {
        bool told = u->full_told;
        u->full_told = true;
        return told ? UNKNOWN_TOLD : UNKNOWN_FULL;
    }
    u->used[at] = true;
    u->n++;
    snprintf(u->names[at], sizeof u->names[at], "%s", name);
    return UNKNOWN_NEW;
}
