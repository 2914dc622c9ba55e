/* file_look.h - a look, every limits.file_look_ms, at the files of the models that are served.
 *
 *     front    begin     which slots
 *     worker   see       what their paths name now
 *     front    choose    files that are other ones, and that stand still
 *     worker   open      they are opened, and compared with what is served
 *     front    take      what is another model gets a slot of its own (registry_replace)
 *
 *     same      the file that was opened
 *     replaced  another one, or the same one changed.  Seen twice alike it is opened.  While that
 *               fails (it is still being copied, or is no model) the model serves on with what it
 *               has, also from the file that is still open, and it is tried again whenever it
 *               changes, and now and then.  One with the same bytes changes nothing.
 *     missing   the model serves on from memory; when its weights have to be read again, that fails
 *               until the file is back
 *
 * A configuration that changes meanwhile wins: the look is forgotten and made again.
 *
 * Always: at most one look at a time.
 * Thread: front. */
#ifndef INFERD_FILE_LOOK_H
#define INFERD_FILE_LOOK_H

#include "app.h"

typedef struct file_look file_look;

enum {
    FILE_LOOK_STILL_PERCENT = 50, // of that time: one that changed is looked at again, then
    FILE_LOOKS_AGAIN = 15 // one that could not be opened, and has not changed since, is tried
};

/* app and loop (a uv_loop_t) are borrowed and outlive it.  NULL: no memory. */
file_look *file_look_create(app *a, void *loop, bool allow_dummy);
void file_look_destroy(file_look *f); // accepts NULL; waits for the look, of which nothing is taken

void file_look_tick(file_look *f, uint64_t now_us);
/* At the next tick, whenever the last one was. */
void file_look_soon(file_look *f);

#endif
