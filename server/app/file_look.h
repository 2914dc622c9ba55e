/* file_look.h - a check, every FILE_LOOK_US, of the files of the served models.
 *
 *   front    begin   the slots to check
 *   worker   see     the files that their paths name now
 *   front    choose  files that are different, and that no longer change
 *   worker   open    opens them, and compares them with the served models
 *   front    take    a different model gets a slot of its own (registry_replace)
 *
 *   same      the file that was opened
 *   replaced  another file, or a changed one.  It is opened once two checks see it unchanged.  If
 *             that fails (it is still being copied, or is no model), the model serves on with its
 *             present weights, also from the old file, which is still open; opening is retried
 *             after each change of the file, and at intervals.  Equal bytes change nothing.
 *   missing   the model serves on from memory; its weights cannot be read again until it is back
 *
 * If the configuration changes during a check, the check is dropped and repeated.
 *
 * Always: at most one check at a time.
 * Thread: front. */
#ifndef INFERD_FILE_LOOK_H
#define INFERD_FILE_LOOK_H

#include "app.h"

typedef struct file_look file_look;

enum {
    FILE_LOOK_US = 2000000,
    FILE_LOOK_STILL_PERCENT = 50, // of that time: delay of the next check after a change
    FILE_LOOKS_AGAIN = 15         // checks until an unchanged file that failed to open is retried
};

/* app and loop (a uv_loop_t) are borrowed and outlive it.  NULL: no memory. */
file_look *file_look_create(app *a, void *loop, bool allow_dummy);
/* Accepts NULL.  Waits for a running check and drops its result. */
void file_look_destroy(file_look *f);

void file_look_tick(file_look *f, uint64_t now_us);
/* The next tick begins a check. */
void file_look_soon(file_look *f);

#endif
