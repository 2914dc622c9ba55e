/* dataset.h - prompts and conversations from a file.
 *
 *     FILE.json, sharegpt:FILE   [{"conversations": [{"from": "human", "value": "..."},
 *                                                    {"from": "gpt", "value": "..."}, ...]}, ...]
 *     any other, text:FILE       one prompt a line; empty lines are skipped
 *                                (a byte order mark at the start of either is left out)
 *
 * "from" is human or user; gpt, assistant, chatgpt, bing or bard; or system.  Conversations without
 * a human turn are skipped and counted.  Other members are ignored.
 *
 * The file is read entry by entry, so memory holds its texts once and never the file: at most
 * DATASET_TEXT_MAX bytes of text, DATASET_ENTRIES_MAX entries of DATASET_ENTRY_BYTES_MAX each.
 *
 * Thread: any after reading, nothing changes. */
#ifndef BENCH_DATASET_H
#define BENCH_DATASET_H

#include "inferd/buf.h"
#include "inferd/status.h"

enum {
    DATASET_ENTRIES_MAX = 2000000,
    DATASET_TURNS_MAX = 20000000,
    DATASET_ENTRY_BYTES_MAX = 16 << 20,
    DATASET_TEXT_MAX = 1 << 30
};

/* Offsets into `text`; offset 0 is an empty text. */
typedef struct dataset_turn {
    uint32_t user, answer; // answer 0: there is none
} dataset_turn;

typedef struct dataset_entry {
    uint32_t system;
    uint32_t first_turn, n_turns; // n_turns > 0
} dataset_entry;

typedef struct dataset {
    buf text;               // texts, each with a NUL at its end
    dataset_turn *turns;    // [n_turns]; owned
    dataset_entry *entries; // [n]; owned; n > 0 after reading, 0: no data set
    size_t n, n_turns, entries_capacity, turns_capacity;
    size_t n_skipped;
    bool is_text; // each entry has one turn, and no answer
} dataset;

/* `spec` is a path, with or without a format in front.  An error names the index of the entry (from
 * 0) or the line (from 1). */
inferd_status dataset_read(dataset *d, const char *spec, inferd_err *err);
/* The same from an open file; for the fuzz target. */
inferd_status dataset_read_file(dataset *d, FILE *file, bool is_sharegpt, inferd_err *err);
void dataset_deinit(dataset *d); // accepts a zeroed one

static inline const char *dataset_text(const dataset *d, uint32_t at) {
    return d->text.p + at;
}

/* Entry `idx` of the order that the seed chooses: a permutation of all entries, and again from the
 * first.  deck.h hands them out. */
size_t dataset_draw(const dataset *d, uint64_t seed, uint64_t idx);

#endif
