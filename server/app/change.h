/* change.h - changes of the running daemon's configuration, one at a time.
 *
 *   changer_reload   SIGHUP: the present content of the file
 *   changer_begin    a patch of one model or tenant; a whole text; or only a question
 *
 *   front    begin        another change is running: refused (a reload waits, and runs after it)
 *   worker   load_text    the file, the changes so far, this one; read and checked as a whole
 *   front    open_models  finds the new models
 *   worker   open_models  opens their files; then the configuration's file is replaced
 *   front    apply        everything or nothing, between two requests
 *   worker   put_back     only if that failed: restores the file
 *   front    done         the answer
 *
 * Patches that were not written to the file are kept as text and merged again when the file is read
 * for another patch; a reload and a whole text drop them.  Text with keys exists only during a
 * change, and is zeroed; the text kept for changer_text has masks in place of keys.
 *
 * Always: at most one job.
 * Thread: front. */
#ifndef INFERD_CHANGE_H
#define INFERD_CHANGE_H

#include "config_edit.h"
#include "app.h"

typedef struct changer changer;

enum { CHANGE_PATCHES_MAX = 10000 }; // kept; those of one model or tenant are merged into one

typedef struct changer_options {
    app *app;         // borrowed, outlives it
    void *loop;       // a uv_loop_t
    const char *path; // of the configuration's file, borrowed; NULL: no file
    bool allow_dummy;
    /* Applies the command line's options, which override the file.  Any thread; false: `problems`
     * has the reasons. */
    bool (*adjust)(void *ctx, inferd_config *c, buf *problems);
    void *ctx;
} changer_options;

typedef enum change_kind {
    CHANGE_RELOAD, // the file
    CHANGE_PATCH,  // text is a merge patch of the element `name`
    CHANGE_WHOLE,  // text is a configuration
    CHANGE_ASK     // text is an element; checked but not applied
} change_kind;

typedef struct change_result {
    bool applied; // CHANGE_ASK: it could be applied
    inferd_status status;
    const char *problems; // lines; "" when there are none
    const char *restart;  // settings that need a restart, "a, b", or ""
    const char *warning;  // or ""
    /* CHANGE_ASK: the configuration that would apply, and its opened models.  NULL: unreadable. */
    const inferd_config *wanted;
    const registry_plan *plan;
} change_result;

typedef struct change_request {
    change_kind kind;
    edit_section section;
    const char *name; // copied
    bytes text;       // copied
    bool persist;     // CHANGE_PATCH: writes it to the file, too
    void (*done)(void *ctx, const change_result *result); // may be NULL
    void *ctx;
} change_request;

inferd_status changer_create(const changer_options *o, changer **out, inferd_err *err);
/* Accepts NULL.  Waits for the job, which applies nothing any more; its done is called. */
void changer_destroy(changer *ch);

/* EBUSY: another change is running; EUNSUPPORTED: there is no file.  Then done is not called. */
inferd_status changer_begin(changer *ch, const change_request *rq, inferd_err *err);
void changer_reload(changer *ch);

/* The running configuration as JSON, with masks for keys; "" when it was not read from a file. */
bytes changer_text(const changer *ch);

typedef struct change_count {
    uint64_t n_applied, n_refused;
} change_count;

typedef struct changer_about {
    const char *path;              // NULL: none
    int64_t loaded_unix_s;         // when the running configuration was applied
    change_count reloads, changes; // of the file; over the admin API
    uint32_t n_patches;            // in memory only
    bool busy;
} changer_about;
void changer_get_about(const changer *ch, changer_about *out);

#endif
