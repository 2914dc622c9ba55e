/* spec.h - the specification of a run: its options and its request classes.
 *
 * Every setting is a key and a value, and one table (spec.c) lists them all.  The command line
 * (`--prompt 512`), a class on it (`--class "name=probe prompt=512"`) and a scenario file
 * (`{"prompt": "512", "classes": [...]}`) are three ways to write the same pairs, and --help prints
 * the table.  A class setting given outside a class is the default of all classes.
 *
 *     bench_spec_init -> bench_spec_set / bench_spec_class, in any order -> bench_spec_finish
 *
 * After finish nothing changes any more, and all other code borrows from here.
 * Thread: any after finish. */
#ifndef BENCH_SPEC_H
#define BENCH_SPEC_H

#include "arrivals.h"
#include "dataset.h"
#include "inferd/base.h"
#include "inferd/status.h"
#include "progress.h"
#include "rng.h"
#include "trace.h"

enum { CLASSES_MAX = 64, CHOICES_MAX = 1024, LENGTH_MAX = 10 * 1000 * 1000, TURNS_MAX = 1000 };

/* One of several words, by weight: "small=3,large=1". */
typedef struct choice {
    char *text; // owned
    double weight;
} choice;

typedef struct choices {
    choice *items; // [n]; owned
    size_t n;      // 0: not given
    double total;
} choices;

/* The index of an item; n > 0. */
size_t choices_draw(const choices *c, rng *random);

/* A number of tokens: [lo, hi], or taken from the trace row, or the length of the data set's
 * answer where it has one. */
typedef struct length_spec {
    uint32_t lo, hi;
    bool from_trace, from_dataset;
} length_spec;

typedef struct bench_class {
    char *name; // owned, as are the other strings
    arrivals_spec arrivals;
    double start_s;      // the class begins this long after the run
    uint64_t n_requests; // 0: no limit
    trace tr;            // n == 0: none
    double trace_speed;

    choices models, keys, priorities, tiers;
    length_spec prompt, output;
    uint32_t prompt_max, output_max; // upper limits of the drawn lengths
    uint32_t shared_prefix;          // tokens that all prompts of the class begin with
    bool prompt_is_ids;
    uint32_t id_lo, id_hi; // ids are drawn from [id_lo, id_hi]
    double tokens_per_word;

    dataset data;                  // n == 0: none
    length_spec turns;             // of a conversation; hi > 1: requests are conversations
    double think_lo_s, think_hi_s; // between the answer of a turn and the next message
    uint32_t system_tokens;        // of a system message that all requests of the class share

    bool is_chat, ignore_eos, ask_usage;
    bool has_temperature;
    double temperature;
    char *extra; // members of a JSON object without its braces; NULL: none

    double slo_ttft_ms, slo_tpot_ms; // 0: no target
} bench_class;

typedef struct setting {
    char *key, *value; // owned
} setting;

typedef struct setting_list {
    setting *items; // [n]; owned
    size_t n, capacity;
} setting_list;

typedef struct bench_spec {
    char *url; // without a slash or /v1 at the end; owned, as are the other strings
    char *json_path, *csv_path, *html_path;
    double gap_ms; // gaps from here on stand out in the picture; 0: chosen from the run
    uint64_t seed;
    double duration_s; // 0: no limit
    double timeout_s, drain_s, skip_s;
    bool has_drain;
    uint32_t n_warmup, n_skip, inflight_max;
    bool forbid_reuse, quiet;
    progress_choice progress;
    choices headers; // additional HTTP header lines; the weights are ignored

    bench_class *classes; // [n_classes]; owned
    size_t n_classes;

    setting_list defaults, class_settings[CLASSES_MAX]; // until finish
} bench_spec;

inferd_status bench_spec_init(bench_spec *spec, inferd_err *err);
void bench_spec_deinit(bench_spec *spec);

/* Sets one pair.  `class_idx` < 0: for the run, or the default of all classes; a later pair
 * replaces an earlier one. */
inferd_status bench_spec_set(bench_spec *spec, int class_idx, const char *key, const char *value,
                             inferd_err *err);
/* Begins another class; returns its index, or -1 when there are CLASSES_MAX. */
int bench_spec_class(bench_spec *spec);

/* "name=probe prompt=512 ignore-eos": begins a class with these pairs. */
inferd_status bench_spec_class_text(bench_spec *spec, const char *text, inferd_err *err);

/* A scenario file: pairs as members, and classes in "classes". */
inferd_status bench_spec_read(bench_spec *spec, const char *path, inferd_err *err);

/* Builds the classes (one called "all" when none was begun) and checks the specification. */
inferd_status bench_spec_finish(bench_spec *spec, inferd_err *err);

typedef struct json_t json_t; // of jansson
/* The load without secrets: {"duration_s": ..., "classes": [{"name", "models", "keys",
 * "settings"}]}; after finish, once the models are known.  NULL: no memory. */
json_t *bench_spec_json(const bench_spec *spec);

/* Whether the key exists, and whether it is a switch that needs no value. */
bool bench_setting_known(const char *key, bool *out_is_switch);
void bench_settings_print(FILE *to); // for --help

#endif
