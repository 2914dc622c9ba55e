/* change.h - another configuration for a daemon that runs, one at a time.
 *
 *     changer_reload   SIGHUP: what the file holds now
 *     changer_begin    a patch of one model or tenant; a whole text; or only a question
 *
 *     front    begin          one under way: refused (a reload waits, and comes after it)
 *     worker   load_text      the file, the changes so far, this one; read and checked as a whole
 *     front    open_models    which models are new
 *     worker   open_models    their files are opened; then the configuration's file is replaced
 *     front    apply          everything or nothing, between two requests
 *     worker   put_back       only if that failed: the file as it was
 *     front    done           the answer
 *
 * Patches that were not written to the file are kept as text and merged again whenever the file is
 * read for another patch; a reload and a whole text forget them.  Text with keys lives only while a
 * change is made, and is zeroed; what is kept for changer_text has masks in place of keys.
 *
 * Always: at most one job.
 * Thread: front. */
#ifndef INFERD_CHANGE_H
#define INFERD_CHANGE_H

#include "admin_edit.h"
#include "app.h"

typedef struct changer changer;

enum { CHANGE_PATCHES_MAX = 10000 }; // kept; the same model's or tenant's are merged into one

typedef struct changer_options {
    app *app;         // borrowed, outlives it
    void *loop;       // a uv_loop_t
    const char *path; // of the configuration's file, borrowed; NULL: there is none
    bool allow_dummy;
    /* What the command line says wins over the file.  Any thread; false: it said why. */
    bool (*adjust)(void *ctx, inferd_config *c);
    void *ctx;
} changer_options;

typedef enum change_kind {
    CHANGE_RELOAD, // the file
    CHANGE_PATCH,  // text is a merge patch of the element `name`
    CHANGE_WHOLE,  // text is a configuration
    CHANGE_ASK     // text is an element; nothing is applied
} change_kind;

typedef struct change_result {
    bool applied; // CHANGE_ASK: it could be
    inferd_status status;
    const char *problems; // lines; "" when there are none
    const char *restart;  // settings that need one, "a, b", or ""
    const char *warning;  // or ""
    /* CHANGE_ASK: the configuration it would be, and its models that were opened.  NULL when it
     * could not be read. */
    const inferd_config *wanted;
    const registry_plan *plan;
} change_result;

typedef struct change_request {
    change_kind kind;
    admin_section section;
    const char *name;                                     // copied
    bytes text;                                           // copied
    bool persist;                                         // CHANGE_PATCH: into the file, too
    void (*done)(void *ctx, const change_result *result); // may be NULL
    void *ctx;
} change_request;

inferd_status changer_create(const changer_options *o, changer **out, inferd_err *err);
/* Accepts NULL.  Waits for the job, of which nothing is applied; its done is called. */
void changer_destroy(changer *ch);

/* EBUSY: another change is under way; EUNSUPPORTED: there is no file.  Then done is not called. */
inferd_status changer_begin(changer *ch, const change_request *rq, inferd_err *err);
void changer_reload(changer *ch);

/* The running configuration as JSON, with masks for keys; "" when it was not read from a file. */
bytes changer_text(const changer *ch);

typedef struct changer_about {
    const char *path;      // NULL: none
    int64_t loaded_unix_s; // when the running configuration came
    uint64_t n_applied, n_refused;
    uint32_t n_patches; // in memory only
    bool busy;
} changer_about;
void changer_get_about(const changer *ch, changer_about *out);

#endif
