/* stage.h - a model's tensors from the file into prepared weights, piece by piece.
 *
 *     reader   file -> [ buffer | buffer | buffer | buffer ]      pread, in the order of the file
 *     engine                                 -> rows -> be_weight_prepare on the compute threads
 *
 *     page cache                             -> rows -> be_weight_prepare
 *
 * The engine takes what is there, as many rows at a time as will take PIECE_US by what the last
 * pieces of that type took, and computes steps between two calls.  What is in the page cache the
 * compute threads read themselves, a few hundred kilobytes each, which are prepared before they
 * have left the caches: copying is then a part of the piece and takes no CPU from steps.  Reads
 * that would wait are refused (RWF_NOWAIT); from the first one on the rest is the reader's, a
 * thread of the stage: it alone waits for the disk.
 *
 * Where there is one memory the engine also moves pages into the window just before something is
 * prepared there; they are touched by then, by whoever reads if nobody did before.
 *
 * Where prepared weights were packed into a file (packed.h), the reader puts their bytes where they
 * belong and checks them; the engine only moves pages.  A packed file that turns out to be damaged
 * is left, with a note, for the model's own.
 *
 * Weights that are made up need no reader: rows are made in such pieces too.
 *
 * What is true of a load stays true: the file is what was opened before the first and after the
 * last read (the path may be another file's when the stage begins, and none's never), short reads
 * are errors, and so is any value, scale or minimum that is not a finite number.
 *
 * Thread: engine; the reader meets it in what `lock` guards. */
#ifndef INFERD_STAGE_H
#define INFERD_STAGE_H

#include "model_private.h"
#include "weights.h"

typedef struct stage stage;

/* Everything is borrowed until stage_close; the plan's matrices are bound to be_window_host. */
typedef struct stage_source {
    const model *m;
    backend *be;
    const weight_plan *plan;
    be_window *window;
    const uint32_t *pages; // [n_pages] to move into the window; one memory only
    uint32_t n_pages;
    bool no_packed; // read the model itself
    placed_wake *wake;
    void *wake_ctx;
} stage_source;

/* Begins to read. */
inferd_status stage_open(const stage_source *from, stage **out, inferd_err *err);
/* finished: everything is prepared and the reader has ended.  After a failure only stage_close. */
inferd_status stage_step(stage *s, uint64_t budget_us, placed_progress *out, inferd_err *err);
/* How the weights came in, or why not faster; "": nothing to say.  When it has finished. */
const char *stage_note(const stage *s);
void stage_close(stage *s); // complete or not; waits for the reader's last read; accepts NULL

#endif
