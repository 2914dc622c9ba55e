/* config_options.h - what the configuration's files share: options as data.
 *
 * An option is a name, a kind, a place in a struct, a range and a default.  Reading, freeing,
 * comparing and describing all walk the same tables (config.c), so an option is one line there.
 * Thread: front. */
#ifndef INFERD_CONFIG_OPTIONS_H
#define INFERD_CONFIG_OPTIONS_H

#include "config.h"

typedef enum option_kind {
    OPTION_TEXT,     // char *; min..max bytes
    OPTION_PATH,     // char *, relative to the file
    OPTION_TEXTS,    // char **, count at count_offset; max elements
    OPTION_U32,      // uint32_t
    OPTION_BYTES32,  // uint32_t, a size with a unit
    OPTION_BYTES64,  // uint64_t, a size with a unit
    OPTION_BOOL,     // bool
    OPTION_CHOICE,   // an enum of int's size: index in choices
    OPTION_THREADS,  // uint32_t, or "auto" for 0
    OPTION_KEYS,     // tenants only: digests into keys
    OPTION_KEY_FILE, // likewise, one key per line
    OPTION_KEY_ENV,  // likewise, the name of an environment variable
    OPTION_OBJECT,   // a struct in place, described by table
    OPTION_LIST      // an array of structs, count at count_offset
} option_kind;

typedef struct option_table option_table;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t offset, count_offset;
    uint64_t min, max, normal;  // range and default
    const char *const *choices; // NULL-terminated
    const option_table *table;
    bool required;
    bool live; // may change without a restart
    const char *about;
} option;

struct option_table {
    const char *title;
    const option *options;
    size_t n;
    size_t struct_bytes;
};

extern const option_table config_table; // of inferd_config

static inline void *option_at(const void *base, size_t offset) {
    return (char *)(uintptr_t)base + offset;
}

/* A place in the document: built on the stack while reading, spelled out only for a problem. */
typedef struct config_place {
    const struct config_place *parent;
    const char *name; // of a member; NULL: element `index`
    size_t index;
} config_place;

/* Where problems go. */
typedef struct config_report {
    buf *problems;
    const char *source;      // NULL: no file
    const json_lines *lines; // NULL: no lines
    uint32_t n;              // all of them; only the first PROBLEMS_MAX are written
} config_report;

enum { CONFIG_PROBLEMS_MAX = 100 };

__attribute__((format(printf, 3, 4))) void
config_problem(config_report *r, const config_place *place, const char *format, ...);

/* -- config.c -- */
void config_defaults(const option_table *table, void *base);
const option *config_option(const option_table *table, const char *name);
void config_table_deinit(const option_table *table, void *base);

/* -- config_read.c -- */
/* "2GiB", "1.5MiB", "4096"; false: not a whole number of bytes in a known unit. */
bool config_read_size(const char *text, uint64_t *out);

/* -- config_check.c -- */
void config_check_all(const inferd_config *c, config_report *r);

/* -- config_keys.c -- */
void keys_add(config_tenant *t, bytes key, config_report *r, const config_place *place);
void keys_add_file(config_tenant *t, const char *path, config_report *r, const config_place *place);
void keys_add_env(config_tenant *t, const char *name, config_report *r, const config_place *place);
/* Build c->index; a key of two tenants is a problem. */
void keys_index(inferd_config *c, config_report *r);
void keys_index_destroy(inferd_config *c);

#endif
