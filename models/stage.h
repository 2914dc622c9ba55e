/* stage.h - a model's tensors from the file into prepared weights, piece by piece.
 *
 *     reader   file -> [ buffer | buffer | buffer | buffer ]      pread, in the order of the file
 *     engine                                 -> rows -> be_weight_prepare on the compute threads
 *
 *     page cache                             -> rows -> be_weight_prepare
 *
 * The engine takes the rows that are ready, as many at a time as take one piece by the measured
 * time of earlier pieces of that type, and computes steps between two calls.  The compute threads
 * themselves read data that is in the page cache, a few hundred kilobytes each, and prepare it
 * before it has left their caches: copying is then a part of the piece and takes no CPU from steps.
 * Reads that would wait are refused (RWF_NOWAIT); from the first refusal on a thread of the stage,
 * the reader, reads the rest: only it waits for the disk.
 *
 * With one memory the engine also moves pages into the window just before weights are prepared
 * there; the reading thread touches pages that were not touched before.
 *
 * When prepared weights were packed into a file (packed.h), its bytes are read into the window and
 * checked: by the compute threads while they are in the page cache, else by the reader, and the
 * engine only moves pages.  When a packed file turns out to be damaged, the model's own file is
 * read instead, with a note.
 *
 * On their way through host memory to a device (`in_order`), tensors are read and prepared in the
 * order of the window, so that what lies before stage_prepared can be sent on and freed.
 *
 * Weights that are made up need no reader: their rows are made in such pieces too.
 *
 * The parts of a split model are read one after the other, each in its own order.
 *
 * As in any load, the file is the opened one before the first and after the last read (the path
 * must exist, but may name another file when the stage begins), short reads are errors, and so is
 * any value, scale or minimum that is not a finite number.  That holds for every part.
 *
 * Thread: engine; it shares with the reader the fields that `lock` guards. */
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
    bool in_order;  // of the window, and by the reader: stage_prepared grows from piece to piece
    bound_wake *wake;
    void *wake_ctx;
} stage_source;

/* Starts reading. */
inferd_status stage_open(const stage_source *from, stage **out, inferd_err *err);
/* finished: everything is prepared and the reader has ended.  After a failure only stage_close. */
inferd_status stage_step(stage *s, uint64_t budget_us, bound_progress *out, inferd_err *err);
/* in_order: bytes [0, this) of the window are prepared. */
size_t stage_prepared(const stage *s);
/* How the weights were read, or why a faster way failed; or "".  When it has finished. */
const char *stage_note(const stage *s);
void stage_close(stage *s); // complete or not; waits for the reader's last read; accepts NULL

#endif
