/* watch.h - what an engine shows to people: which page has which use, the step that runs, and notes
 * of models that came and left.
 *
 * Pages and steps are written only while they are asked for, so that they cost nothing while no
 * page or terminal shows them.  Notes are always kept, the newest ENGINE_NOTES_MAX of them, because
 * a viewer wants to read what happened before it came.
 *
 * Nothing here blocks: the engine answers between two steps, and the front takes the answer when it
 * looks the next time.
 * Thread: front, all of it. */
#ifndef INFERD_WATCH_H
#define INFERD_WATCH_H

#include "scheduler/engine.h"

/* ---- pages ---- */

typedef enum page_use {
    PAGE_USE_FREE,
    PAGE_USE_WEIGHT,
    PAGE_USE_KV,
    PAGE_USE_CACHED, // keys and values that only the prefix cache uses
    PAGE_USE_WARM,   // weights in host memory
    PAGE_USE_SWAPPED,
    PAGE_USE_QUARANTINE,
    PAGE_USE_ABSENT, // not made yet
    PAGE_USES
} page_use;

/* A page in one number: its use, and where it has an owner also the owner's model slot. */
enum { PAGE_CODE_USES = 16 };
static inline uint32_t page_code(page_use use, uint32_t owner) {
    return (uint32_t)use + (owner == UINT32_MAX ? 0 : PAGE_CODE_USES * (owner + 1));
}

/* Asks for the codes of all pages; the engine writes them before its next step. */
void engine_pages_ask(engine *e);
/* The newest codes, [n] in the order of the pool; owned by the caller until it gives them back with
 * the next call.  The first call has *codes NULL and *n 0.  False: nothing new since then. */
bool engine_pages_take(engine *e, uint32_t **codes, uint32_t *n);

/* ---- the running step ---- */

enum { ENGINE_STEP_SEQS_MAX = 32 };

typedef struct engine_step_seq {
    uint64_t id; // of gen_request
    uint32_t n_rows;
    bool prefill;
} engine_step_seq;

typedef struct engine_step_view {
    uint64_t began_us; // 0: none was launched while steps were watched
    uint64_t ended_us; // 0: it runs
    uint32_t model_idx;
    uint32_t n_prefill_rows, n_decode_rows;
    uint32_t n_seqs; // all of them; seqs has the first ENGINE_STEP_SEQS_MAX
    engine_step_seq seqs[ENGINE_STEP_SEQS_MAX];
    uint64_t last_us; // the time that the newest finished step took
} engine_step_view;

/* Steps are shown until then; clock_now_us of the caller. */
void engine_watch_steps(engine *e, uint64_t until_us);
/* The newest step that was launched.  A device may have finished it a moment ago: a viewer that
 * looks between two steps still wants to see one. */
void engine_step_get(const engine *e, engine_step_view *out);

/* ---- notes ---- */

typedef enum engine_note_kind {
    ENGINE_NOTE_EVICTED, // a model left the device
    ENGINE_NOTE_LOADED,  // a model became HOT
    ENGINE_NOTE_FAILED   // a model could not be brought up; engine_model_error says why
} engine_note_kind;

#define ENGINE_NOTE_NO_MODEL UINT32_MAX
enum { ENGINE_NOTES_MAX = 256 };

typedef struct engine_note {
    engine_note_kind kind;
    uint64_t at_us;
    uint32_t model_idx;
    uint32_t for_idx;         // EVICTED: the model that needs the pages, or ENGINE_NOTE_NO_MODEL
    engine_evict_cause cause; // EVICTED
    bool from_file;           // LOADED: its file was read; else it was in host memory
    uint64_t n_bytes;         // EVICTED: pages of weights and KV; LOADED: weights
    uint64_t wait_us;         // how long requests have waited for it (EVICTED: for for_idx)
    uint64_t bring_us;        // LOADED: reading, preparing and copying
} engine_note;

/* Moves the oldest notes out; returns how many, and adds those that were lost to *n_lost. */
uint32_t engine_notes_take(engine *e, engine_note *out, uint32_t n_max, uint64_t *n_lost);

#endif
