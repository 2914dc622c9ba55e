/* config_options.h - shared by the configuration's files: options as data.
 *
 * An option is a name, a kind, an offset in a struct, a range and a default.  Reading, freeing,
 * comparing and describing all walk the same tables (config_tables.c): an option is one line there.
 *
 *   config_tables.c  names, kinds, ranges, defaults   config_keys.c   digests of keys
 *   config.c         walks over the tables            config_check.c  rules for the whole
 *   config_read.c    from JSON                        config_file.c   reading and replacing files
 *   config_values.c  sizes, durations, lists of CPUs  config_notes.c  warnings
 *   config_removed.c settings of earlier versions
 * Thread: any. */
#ifndef INFERD_CONFIG_OPTIONS_H
#define INFERD_CONFIG_OPTIONS_H

#include "config.h"

typedef enum option_kind {
    OPTION_TEXT,     // char *; min..max bytes
    OPTION_PATH,     // char *, relative to the file
    OPTION_TEXTS,    // char **, count at count_offset; max elements
    OPTION_U32,      // uint32_t
    OPTION_U64,      // uint64_t
    OPTION_BYTES32,  // uint32_t, a size with a unit
    OPTION_BYTES64,  // uint64_t, a size with a unit
    OPTION_DURATION, // uint64_t, microseconds or POLICY_NEVER
    OPTION_REAL,     // double, NaN if absent; range: real_min..real_max
    OPTION_BOOL,     // bool
    OPTION_CHOICE,   // an enum of int's size: index in choices
    OPTION_THREADS,  // uint32_t, or "auto" for 0
    OPTION_CORES,    // char *; a list of CPUs
    OPTION_GPU,      // uint32_t, and behind it a char *: a number, or a UUID or its beginning
    OPTION_KEYS,     // digests of one key or of a list; count at count_offset
    OPTION_KEY_FILE, // added to the same digests, one key per line
    OPTION_KEY_ENV,  // likewise, the name of an environment variable
    OPTION_OBJECT,   // an embedded struct, described by table
    OPTION_LIST      // an array of structs, count at count_offset
} option_kind;

typedef struct option_table option_table;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t offset, count_offset;
    uint64_t min, max, normal;  // range and default
    double real_min, real_max;  // of OPTION_REAL
    bool above_min;             // likewise: real_min itself is not allowed
    bool whole;                 // likewise: without a fraction
    const char *also;           // another spelling of the name, or NULL
    const char *const *choices; // NULL-terminated
    const option_table *table;
    const char *short_for;       // OPTION_OBJECT: a number stands for an object with this member
    const char *const *booleans; // OPTION_CHOICE: the choices that false and true stand for
    bool required;
    bool nullable; // null means absent, and the default is none
    bool live;     // may change without a restart
    const char *about;
} option;

static inline void *option_at(const void *base, size_t offset) {
    return (char *)(uintptr_t)base + offset;
}

/* A position in the document, on the stack while reading; written as text only for a problem. */
typedef struct config_location {
    const struct config_location *parent;
    const char *name; // of a member; NULL: element `index`
    size_t index;
} config_location;

/* The receiver of problems. */
typedef struct config_report {
    buf *problems;
    const char *source;      // NULL: no file
    const json_lines *lines; // NULL: no lines
    uint32_t n;              // number of problems; only the first CONFIG_PROBLEMS_MAX are written
    bool warnings;           // the problems are warnings
} config_report;

/* A setting of earlier versions. */
typedef struct config_removed {
    const char *path;     // "devices[].uuid"
    const char *since;    // the first version without it
    const char *sentence; // what replaces it, or what is true now
} config_removed;

/* A name that other programs have, or that another table has, for an option of this table. */
typedef struct option_meant {
    const char *name, *option;
} option_meant;

struct option_table {
    const char *title;
    const option *options;
    size_t n;
    size_t struct_bytes;
    /* Completes an object that was read without a problem, and checks its members against each
     * other: `v` has the given members.  NULL: nothing to do. */
    void (*settle)(void *base, const json_t *v, config_report *r, const config_location *location);
    const option_meant *meant; // [n_meant] refused with the name and the description of the option
    size_t n_meant;
    bool elsewhere; // another page describes its options
};

extern const option_table config_table; // of inferd_config

enum { GPU_INDEX_MAX = 63, GPU_UUID_BYTES_MAX = 47 };
enum { CONFIG_PROBLEMS_MAX = 100, CONFIG_FILE_BYTES_MAX = 64 * 1024 * 1024 };

__attribute__((format(printf, 3, 4))) void
config_problem(config_report *r, const config_location *location, const char *format, ...);

/* -- config.c -- */
void config_derive(config_limits *l);
void config_defaults(const option_table *table, void *base);
const option *config_option(const option_table *table, const char *name);
void config_table_deinit(const option_table *table, void *base);
/* The option that a name which the table does not have probably means; NULL: none.  `spelt`: it is
 * a misspelt name, not another word. */
const option *config_option_meant(const option_table *table, const char *name, bool *spelt);

/* -- config_removed.c -- */
size_t config_n_removed(void);
const config_removed *config_removed_at(size_t i);
/* NULL: there never was such a setting. */
const config_removed *config_find_removed(const config_location *location);

/* -- config_values.c -- */
/* 25769803776 as "24GiB": in the largest unit without a fraction; 24000000000 as "24GB". */
typedef struct config_size_text {
    char text[24];
} config_size_text;
config_size_text config_write_size(uint64_t n);

/* -- config_check.c -- */
void config_check_all(const inferd_config *c, config_report *r);
/* `settle` of the tables. */
void config_settle_model(void *base, const json_t *v, config_report *r,
                         const config_location *location);
void config_settle_tenant(void *base, const json_t *v, config_report *r,
                          const config_location *location);
void config_settle_share(void *base, const json_t *v, config_report *r,
                         const config_location *location);
void config_settle_replicas(void *base, const json_t *v, config_report *r,
                            const config_location *location);

/* -- config_file.c -- */
/* Reads the whole text, which may hold keys: the caller zeroes `out` before freeing it.  A file
 * that all users may write is refused; CONFIG_FILE_BYTES_MAX at most.  ENOTFOUND: no such file. */
inferd_status config_read_file(const char *path, buf *out, inferd_err *err);

/* -- config_keys.c -- */

enum { KEY_BYTES_MIN = 8, KEY_BYTES_MAX = 512 };

/* The receiver of keys: a tenant, or `admin`. */
typedef struct key_list {
    unsigned char (**keys)[32];
    uint32_t *n;
} key_list;
void keys_add(key_list list, bytes key, config_report *r, const config_location *location);
void keys_add_file(key_list list, const char *path, config_report *r,
                   const config_location *location);
void keys_add_env(key_list list, const char *name, config_report *r,
                  const config_location *location);
void keys_wipe(key_list list); // zeroes and frees
/* Builds c->index; a key with two owners is a problem. */
void keys_index(inferd_config *c, config_report *r);
void keys_index_destroy(inferd_config *c);

#endif
