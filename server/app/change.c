/* change.c - see change.h. */
#include "change.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "config_options.h"
#include "json_in.h"
#include "log.h"
#include "scheduler/pulse.h"

enum {
    PROBLEMS_BYTES_MAX = 1 << 20,
    PATCH_BYTES_MAX = 64 * 1024 // of one kept patch
};

/* A patch that is not in the file. */
typedef struct patch {
    edit_section section;
    char *name, *text; // owned
} patch;

typedef struct job {
    uv_work_t work;
    changer *ch;
    change_request rq;
    char *name;     // owned; NULL: none
    buf given;      // of rq.text
    patch *patches; // [n_patches] owned copies: the kept ones, then this one
    uint32_t n_patches;
    buf was, text, to_file,
        masked;            // the file; the text to run; the text to write; for changer_text
    inferd_config *wanted; // owned until it is applied
    registry_plan plan;    // zeroed before registry_plan_init
    app_config *running;   // retained: keeps what it names alive
    buf problems, restart, warning;
    buf notes; // of `wanted`
    inferd_status status;
    bool written, was_missing; // was the file written; was there none before
} job;

struct changer {
    changer_options o;
    job *job;       // the running job, or NULL
    bool again;     // a reload was requested during the job
    bool closed;    // no job is applied any more
    patch *patches; // [n_patches] owned
    uint32_t n_patches;
    buf masked;
    buf notes; // of the running configuration
    int64_t loaded_unix_s;
    change_count reloads, changes;
};

/* ---- text ---- */

static void wipe(buf *b) {
    if (b->p != NULL) explicit_bzero(b->p, b->capacity);
    buf_deinit(b);
}

static void free_patches(patch *patches, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        free(patches[i].name);
        free(patches[i].text);
    }
    free(patches);
}

static inferd_status parse(const buf *text, const char *what, json_t **out, inferd_err *err) {
    json_limits limits = json_limits_default;
    limits.structural_max = CONFIG_FILE_BYTES_MAX;
    limits.memory_max = 64ull * CONFIG_FILE_BYTES_MAX; // a list of keys is larger than its text
    inferd_status s = json_in_parse((bytes){text->p, text->n}, &limits, out, err);
    if (s != INFERD_OK) inferd_context(err, "%s", what);
    if (s != INFERD_OK || json_is_object(*out)) return s;
    json_decref(*out);
    *out = NULL;
    return inferd_fail(err, INFERD_EINVAL, "%s: expected an object", what);
}

static inferd_status merge_text(json_t *root, const patch *p, inferd_err *err) {
    buf text = {.p = p->text, .n = strlen(p->text)};
    json_t *change = NULL;
    inferd_status s = parse(&text, "the body", &change, err);
    if (s == INFERD_OK) s = edit_merge(root, p->section, p->name, change, err);
    json_decref(change);
    return s;
}

/* ---- worker: the text ---- */

/* Applies a patch after the file and earlier ones; those of absent elements are skipped. */
static inferd_status text_of_patch(job *j, inferd_err *err) {
    json_t *root = NULL;
    inferd_status s = parse(&j->was, j->ch->o.path, &root, err);
    const patch *newest = &j->patches[j->n_patches - 1];
    for (uint32_t i = 0; s == INFERD_OK && i < j->n_patches; i++) {
        s = merge_text(root, &j->patches[i], err);
        if (s == INFERD_ENOTFOUND && &j->patches[i] != newest) s = INFERD_OK;
    }
    if (s == INFERD_OK) s = edit_write(root, &j->text, err);
    json_decref(root);
    root = NULL;
    if (s != INFERD_OK || !j->rq.persist) return s;
    s = parse(&j->was, j->ch->o.path, &root, err);
    if (s == INFERD_OK) s = merge_text(root, newest, err);
    if (s == INFERD_OK) s = edit_write(root, &j->to_file, err);
    json_decref(root);
    return s;
}

static bool copy_text(buf *to, const buf *from) {
    if (!buf_reserve(to, from->n)) return false;
    buf_add(to, from->p, from->n);
    return true;
}

/* The body unchanged, with its order and spaces, unless masks have to be replaced. */
static inferd_status text_of_whole(job *j, inferd_err *err) {
    json_t *root = NULL, *file = NULL;
    inferd_err unread;
    uint32_t n_masks = 0;
    inferd_status s = parse(&j->given, "the body", &root, err);
    if (s == INFERD_OK) {
        if (parse(&j->was, j->ch->o.path, &file, &unread) != INFERD_OK) file = NULL;
        s = edit_unmask(root, file, &n_masks, err);
    }
    if (s == INFERD_OK && n_masks > 0)
        s = edit_write(root, &j->text, err);
    else if (s == INFERD_OK && !copy_text(&j->text, &j->given))
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for the configuration");
    if (s == INFERD_OK && !copy_text(&j->to_file, &j->text))
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for the configuration");
    json_decref(root);
    json_decref(file);
    return s;
}

/* A tenant that is only planned needs no key, but the rules require one. */
static inferd_status give_key(json_t *tenant, inferd_err *err) {
    static const char key[] = "inferd-admin-plan-only";
    if (json_object_get(tenant, "keys") != NULL || json_object_get(tenant, "key") != NULL ||
        json_object_get(tenant, "key_file") != NULL || json_object_get(tenant, "key_env") != NULL)
        return INFERD_OK;
    json_t *keys = json_array();
    if (keys != NULL && json_array_append_new(keys, json_string(key)) == 0 &&
        json_object_set_new(tenant, "keys", keys) == 0)
        return INFERD_OK;
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the configuration");
}

static inferd_status text_of_question(job *j, inferd_err *err) {
    json_t *root = NULL, *element = NULL;
    inferd_status s = parse(&j->was, j->ch->o.path, &root, err);
    for (uint32_t i = 0; s == INFERD_OK && i < j->n_patches; i++) {
        s = merge_text(root, &j->patches[i], err);
        if (s == INFERD_ENOTFOUND) s = INFERD_OK;
    }
    if (s == INFERD_OK) s = parse(&j->given, "the body", &element, err);
    if (s == INFERD_OK && j->rq.section == EDIT_TENANTS) s = give_key(element, err);
    if (s == INFERD_OK) s = edit_put(root, j->rq.section, element, err);
    if (s == INFERD_OK) s = edit_write(root, &j->text, err);
    json_decref(element);
    json_decref(root);
    return s;
}

/* NULL: j->problems has the reason. */
static inferd_config *config_of(job *j, const buf *text) {
    const changer_options *o = &j->ch->o;
    inferd_config *c = NULL;
    inferd_err err = {0};
    if (config_load_text(o->path, text->p, text->n, &c, &j->problems, &err) == INFERD_OK &&
        o->adjust(o->ctx, c, &j->problems) && config_check(c, &j->problems))
        return c;
    if (j->problems.n == 0) buf_add_format(&j->problems, "inferd: %s\n", err.text);
    config_destroy(c);
    return NULL;
}

static inferd_status mask_text(const buf *text, buf *out, inferd_err *err) {
    json_t *root = NULL;
    inferd_status s = parse(text, "the configuration", &root, err);
    if (s == INFERD_OK) s = edit_mask(root, err);
    if (s == INFERD_OK) s = edit_write(root, out, err);
    json_decref(root);
    return s;
}

static inferd_status make_text(job *j, inferd_err *err) {
    inferd_status s = config_read_file(j->ch->o.path, &j->was, err);
    /* A whole text does not need an existing file. */
    j->was_missing = s == INFERD_ENOTFOUND && j->rq.kind == CHANGE_WHOLE;
    if (s != INFERD_OK && !j->was_missing) return s;
    *err = (inferd_err){0};
    switch (j->rq.kind) {
    case CHANGE_PATCH:
        return text_of_patch(j, err);
    case CHANGE_WHOLE:
        return text_of_whole(j, err);
    case CHANGE_ASK:
        return text_of_question(j, err);
    case CHANGE_RELOAD:
        break;
    }
    if (copy_text(&j->text, &j->was)) return INFERD_OK;
    return inferd_fail(err, INFERD_ENOMEM, "no memory for the configuration");
}

/* The text to write must be a valid configuration by itself, too. */
static bool check_file_text(job *j) {
    if (j->rq.kind != CHANGE_PATCH || !j->rq.persist) return true;
    inferd_config *c = config_of(j, &j->to_file);
    config_destroy(c);
    return c != NULL;
}

static void load_text(uv_work_t *work) {
    job *j = work->data;
    inferd_err err = {0};
    json_in_wipe(true);
    j->status = make_text(j, &err);
    if (j->status == INFERD_OK) {
        j->wanted = config_of(j, &j->text);
        if (j->wanted == NULL || !check_file_text(j)) j->status = INFERD_EINVAL;
        if (j->wanted != NULL) config_write_notes(j->wanted, &j->notes);
    }
    if (j->status == INFERD_OK && j->rq.kind != CHANGE_ASK)
        j->status = mask_text(&j->text, &j->masked, &err);
    if (j->status != INFERD_OK && err.status != INFERD_OK)
        buf_add_format(&j->problems, "%s\n", err.text);
    json_in_wipe(false);
}

/* ---- worker: models and the file ---- */

static void open_models(uv_work_t *work) {
    job *j = work->data;
    inferd_err err = {0};
    if (!registry_plan_open(&j->plan, j->ch->o.allow_dummy, &j->problems)) {
        j->status = INFERD_EINVAL;
        return;
    }
    if (j->to_file.n == 0) return;
    inferd_status s = config_write_file(j->ch->o.path, j->to_file.p, j->to_file.n, &err);
    j->written = s == INFERD_OK || strstr(err.text, "is replaced") != NULL;
    if (j->written) {
        buf_add_str(&j->warning, err.text);
    } else {
        j->status = s;
        buf_add_format(&j->problems, "%s\n", err.text);
    }
}

static void put_back(uv_work_t *work) {
    job *j = work->data;
    inferd_err err = {0};
    if (j->was_missing && unlink(j->ch->o.path) != 0)
        buf_add_format(&j->problems, "the new configuration file could not be removed: %s\n",
                       strerror(errno));
    else if (!j->was_missing &&
             config_write_file(j->ch->o.path, j->was.p, j->was.n, &err) != INFERD_OK)
        buf_add_format(&j->problems, "the old content of the file could not be restored: %s\n",
                       err.text);
}

/* ---- front ---- */

static void free_job(job *j) {
    registry_plan_deinit(&j->plan);
    app_config_drop(j->running);
    config_destroy(j->wanted);
    wipe(&j->given);
    wipe(&j->was);
    wipe(&j->text);
    wipe(&j->to_file);
    buf_deinit(&j->masked);
    buf_deinit(&j->problems);
    buf_deinit(&j->restart);
    buf_deinit(&j->warning);
    buf_deinit(&j->notes);
    free_patches(j->patches, j->n_patches);
    free(j->name);
    free(j);
}

static void log_lines(log_level level, const char *event, const char *name, const char *text) {
    while (*text != 0) {
        log_line line;
        size_t n = strcspn(text, "\n");
        log_begin(&line, level, event);
        log_bytes(&line, name, (bytes){text, n});
        log_end(&line);
        text += n + (text[n] == '\n');
    }
}

static bool has_line(const char *text, bytes line) {
    for (; *text != 0; text += strcspn(text, "\n"), text += *text == '\n')
        if (strcspn(text, "\n") == line.n && memcmp(text, line.p, line.n) == 0) return true;
    return false;
}

/* Logs the notes that the configuration before did not have, and adds them to the answer. */
static void tell_notes(job *j) {
    const char *told = buf_cstr(&j->ch->notes);
    buf fresh = {0};
    for (const char *p = buf_cstr(&j->notes); *p != 0;) {
        bytes line = {p, strcspn(p, "\n")};
        p += line.n + (p[line.n] == '\n');
        if (has_line(told, line)) continue;
        buf_add_format(&fresh, "%.*s\n", (int)line.n, line.p);
        buf_add_format(&j->warning, "%s%.*s", j->warning.n > 0 ? "; " : "", (int)line.n, line.p);
    }
    log_lines(LOG_LEVEL_INFO, "config_note", "note", buf_cstr(&fresh));
    buf_deinit(&fresh);
    buf_deinit(&j->ch->notes);
    j->ch->notes = j->notes;
    j->notes = (buf){0};
}

/* A refused change over the admin API says nothing about the file. */
static void count(changer *ch, bool reload, bool fine) {
    change_count *of = reload ? &ch->reloads : &ch->changes;
    *(fine ? &of->n_applied : &of->n_refused) += 1;
    app_note_change(ch->o.app, reload, fine);
}

/* Reports the result of the job. */
static void end_job(job *j) {
    changer *ch = j->ch;
    if (ch->closed && j->status == INFERD_OK) j->status = INFERD_ECANCELED;
    bool fine = j->status == INFERD_OK, real = j->rq.kind != CHANGE_ASK;
    ch->job = NULL;
    if (real && !ch->closed) {
        bool reload = j->rq.kind == CHANGE_RELOAD;
        count(ch, reload, fine);
        if (!fine)
            log_lines(LOG_LEVEL_ERROR, reload ? "reload_refused" : "change_refused", "problem",
                      buf_cstr(&j->problems));
        if (j->restart.n > 0)
            log_text(LOG_LEVEL_INFO, "reload_needs_restart", "settings", buf_cstr(&j->restart));
        if (fine) log_text(LOG_LEVEL_INFO, reload ? "reload" : "change", "result", "applied");
    }
    change_result result = {.applied = fine,
                            .status = j->status,
                            .problems = buf_cstr(&j->problems),
                            .restart = buf_cstr(&j->restart),
                            .warning = buf_cstr(&j->warning),
                            .wanted = real ? NULL : j->wanted,
                            .plan = j->plan.c != NULL ? &j->plan : NULL};
    if (j->rq.done != NULL) j->rq.done(j->rq.ctx, &result);
    free_job(j);
    if (ch->again && !ch->closed) {
        ch->again = false;
        changer_reload(ch);
    }
}

static void on_put_back(uv_work_t *work, int status) {
    (void)status;
    end_job(work->data);
}

/* Keeps the text that runs now; drops patches that are in the file or were replaced. */
static void keep_text(job *j) {
    changer *ch = j->ch;
    bool in_file = j->rq.kind != CHANGE_PATCH;
    if (j->rq.kind == CHANGE_PATCH && j->rq.persist) {
        patch *written = &j->patches[--j->n_patches];
        free(written->name);
        free(written->text);
    }
    buf_deinit(&ch->masked);
    ch->masked = j->masked;
    j->masked = (buf){0};
    ch->loaded_unix_s = (int64_t)time(NULL);
    free_patches(ch->patches, ch->n_patches);
    ch->patches = in_file ? NULL : j->patches;
    ch->n_patches = in_file ? 0 : j->n_patches;
    if (in_file) return;
    j->patches = NULL;
    j->n_patches = 0;
}

/* A pin or keep_alive in a patch overrides the value set by a command before. */
static void heed_patch(job *j, bool heed) {
    json_t *change = NULL;
    inferd_err err;
    if (j->rq.kind != CHANGE_PATCH || j->rq.section != EDIT_MODELS) return;
    const config_model *m = NULL;
    const inferd_config *c = j->ch->o.app->config->c;
    int idx = config_find_model(c, j->name, strlen(j->name));
    if (idx >= 0) m = &c->models[idx];
    if (m == NULL || parse(&j->given, "the body", &change, &err) != INFERD_OK) return;
    registry_heed(&j->ch->o.app->models, m->name, heed && json_object_get(change, "pin") != NULL,
                  heed && json_object_get(change, "keep_alive") != NULL);
    json_decref(change);
}

/* Warns about guarantees that were accepted but that the devices do not keep at present. */
static void warn_of_guarantees(job *j) {
    const app *a = j->ch->o.app;
    const app_config *c = a->config;
    for (uint32_t i = 0; i < c->c->n_models; i++) {
        char text[FEASIBLE_TEXT_BYTES];
        uint32_t slot = (uint32_t)c->slots[i];
        const char *problem = fleet_placement_problem(a->fleet, slot);
        const char *name = c->c->models[i].name, *gap = j->warning.n > 0 ? "; " : "";
        if (problem[0] != 0)
            buf_add_format(&j->warning, "%smodels[%u] (%s) cannot be placed: %s", gap, i, name,
                           problem);
        gap = j->warning.n > 0 ? "; " : "";
        if (fleet_is_too_slow(a->fleet, slot, &app_model(a, slot)->policy, text, sizeof text))
            buf_add_format(&j->warning, "%smodels[%u] (%s) misses slo.tpot_ms: %s", gap, i, name,
                           text);
    }
    if (j->warning.n > 0)
        log_text(LOG_LEVEL_INFO, "reload_warning", "warning", buf_cstr(&j->warning));
}

static void apply(uv_work_t *work, int status) {
    job *j = work->data;
    pulse_at(PULSE_WORK, "apply a configuration");
    app *a = j->ch->o.app;
    inferd_err err = {0};
    if (status != 0 && j->status == INFERD_OK) j->status = INFERD_ECANCELED;
    if (j->status != INFERD_OK || j->rq.kind == CHANGE_ASK || j->ch->closed) {
        end_job(j);
        return;
    }
    config_needs_restart(a->started, j->wanted, &j->restart);
    heed_patch(j, true);
    j->status = app_swap_config(a, j->wanted, &j->plan, &err) ? INFERD_OK : err.status;
    heed_patch(j, false);
    if (j->status == INFERD_OK) {
        j->wanted = NULL; // owned by the app now
        warn_of_guarantees(j);
        tell_notes(j);
        keep_text(j);
        end_job(j);
        return;
    }
    buf_clear(&j->restart);
    buf_add_format(&j->problems, "%s\n", err.text);
    if (j->written && uv_queue_work(j->ch->o.loop, &j->work, put_back, on_put_back) == 0) return;
    end_job(j);
}

static void on_text(uv_work_t *work, int status) {
    job *j = work->data;
    changer *ch = j->ch;
    if (status != 0 && j->status == INFERD_OK) j->status = INFERD_ECANCELED;
    if (j->status != INFERD_OK || ch->closed) {
        end_job(j);
        return;
    }
    j->running = app_config_take(ch->o.app);
    if (registry_plan_init(&j->plan, &ch->o.app->models, j->wanted, j->running->slots,
                           j->running->c->n_models) &&
        uv_queue_work(ch->o.loop, &j->work, open_models, apply) == 0)
        return;
    j->status = INFERD_ENOMEM;
    buf_add_str(&j->problems, "no memory to open the models\n");
    end_job(j);
}

/* ---- patches ---- */

/* Members of these objects: one patch can reset an object to its defaults and then set some. */
static const char *const objects[][6] = {{"share", "policy", "percent", "devices"},
                                         {"slo", "ttft_ms", "tpot_ms"},
                                         {"replicas", "min", "max"},
                                         {"limits", "requests_per_min", "tokens_per_min",
                                          "concurrent", "tokens_per_day", "tokens_per_month"}};

/* `had` was null: all former members of the object are removed. */
static bool set_anew(json_t *into, const char *key, json_t *value) {
    json_t *object = json_object();
    bool fine = object != NULL;
    for (size_t i = 0; i < INFERD_COUNT(objects); i++) {
        if (strcmp(objects[i][0], key) != 0) continue;
        for (size_t k = 1; k < INFERD_COUNT(objects[i]) && objects[i][k] != NULL; k++)
            fine = fine && json_object_set_new(object, objects[i][k], json_null()) == 0;
    }
    fine = fine && json_object_update(object, value) == 0;
    return json_object_set_new(into, key, object) == 0 && fine;
}

/* Merges `later` into `sooner`: one patch with the effect of both in that order. */
static bool merge_patches(patch *sooner, const char *later) {
    buf a = {.p = sooner->text, .n = strlen(sooner->text)}, text;
    buf b = {.p = (char *)(uintptr_t)later, .n = strlen(later)};
    json_t *old = NULL, *change = NULL;
    inferd_err err;
    buf_init(&text, PATCH_BYTES_MAX);
    bool fine = parse(&a, "", &old, &err) == INFERD_OK && parse(&b, "", &change, &err) == INFERD_OK;
    fine = fine && edit_expand(sooner->section, old, &err) == INFERD_OK &&
           edit_expand(sooner->section, change, &err) == INFERD_OK;
    /* nulls have to stay, so this is not a merge patch itself */
    const char *key;
    json_t *value;
    json_object_foreach(change, key, value) {
        json_t *had = json_object_get(old, key);
        if (json_is_object(value) && json_is_object(had))
            fine = fine && json_object_update(had, value) == 0;
        else if (json_is_object(value) && json_is_null(had))
            fine = fine && set_anew(old, key, value);
        else
            fine = fine && json_object_set(old, key, value) == 0;
    }
    fine = fine && edit_write(old, &text, &err) == INFERD_OK;
    json_decref(old);
    json_decref(change);
    if (!fine) {
        buf_deinit(&text);
        return false;
    }
    buf_cstr(&text);
    free(sooner->text);
    sooner->text = text.p;
    return true;
}

static inferd_status copy_patch(patch *to, const patch *from) {
    *to = (patch){.section = from->section, .name = strdup(from->name), .text = strdup(from->text)};
    return to->name != NULL && to->text != NULL ? INFERD_OK : INFERD_ENOMEM;
}

/* The kept patches, then the new one, which is merged over an earlier patch of the same element. */
static inferd_status collect_patches(job *j, const changer *ch, inferd_err *err) {
    bool own = j->rq.kind == CHANGE_PATCH;
    if (j->rq.kind != CHANGE_PATCH && j->rq.kind != CHANGE_ASK) return INFERD_OK;
    j->patches = calloc((size_t)ch->n_patches + 1, sizeof *j->patches);
    if (j->patches == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the change");
    patch fresh = {.section = j->rq.section, .name = j->name, .text = j->given.p};
    int same = -1;
    for (uint32_t i = 0; i < ch->n_patches; i++) {
        const patch *p = &ch->patches[i];
        if (own && p->section == fresh.section && strcmp(p->name, fresh.name) == 0) {
            same = (int)i;
            continue;
        }
        if (copy_patch(&j->patches[j->n_patches++], p) != INFERD_OK)
            return inferd_fail(err, INFERD_ENOMEM, "no memory for the change");
    }
    if (!own) return INFERD_OK;
    if (same < 0 && ch->n_patches >= CHANGE_PATCHES_MAX)
        return inferd_fail(err, INFERD_EBUSY,
                           "%d changes are in memory only: write them to the file, or reload",
                           CHANGE_PATCHES_MAX);
    patch *last = &j->patches[j->n_patches++];
    if (copy_patch(last, same < 0 ? &fresh : &ch->patches[same]) != INFERD_OK ||
        (same >= 0 && !merge_patches(last, fresh.text)))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the change");
    return INFERD_OK;
}

/* ---- interface ---- */

/* Copies of the configuration, with its keys, that a killed process left. */
static void sweep(const char *path) {
    uint32_t n = config_sweep(path);
    if (n == 0) return;
    log_line line;
    log_begin(&line, LOG_LEVEL_INFO, "config_leftovers");
    log_str(&line, "path", path);
    log_u64(&line, "removed", n);
    log_end(&line);
}

inferd_status changer_create(const changer_options *o, changer **out, inferd_err *err) {
    changer *ch = calloc(1, sizeof *ch);
    if (ch == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the front thread");
    ch->o = *o;
    ch->loaded_unix_s = (int64_t)time(NULL);
    *out = ch;
    if (o->path == NULL) return INFERD_OK;
    sweep(o->path);
    config_write_notes(o->app->config->c, &ch->notes);
    log_lines(LOG_LEVEL_INFO, "config_note", "note", buf_cstr(&ch->notes));
    buf text = {0};
    json_in_wipe(true);
    inferd_status s = config_read_file(o->path, &text, err);
    if (s == INFERD_OK) s = mask_text(&text, &ch->masked, err);
    json_in_wipe(false);
    wipe(&text);
    if (s == INFERD_OK) return INFERD_OK;
    changer_destroy(ch);
    *out = NULL;
    return s;
}

void changer_destroy(changer *ch) {
    if (ch == NULL) return;
    ch->closed = true;
    while (ch->job != NULL) uv_run(ch->o.loop, UV_RUN_ONCE);
    free_patches(ch->patches, ch->n_patches);
    buf_deinit(&ch->masked);
    buf_deinit(&ch->notes);
    free(ch);
}

inferd_status changer_begin(changer *ch, const change_request *rq, inferd_err *err) {
    if (ch->o.path == NULL)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "there is no configuration file to change: the daemon was started with "
                           "--model");
    if (ch->job != NULL) return inferd_fail(err, INFERD_EBUSY, "another change is under way");
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for the change");
    j->ch = ch;
    j->rq = *rq;
    j->work.data = j;
    buf_init(&j->problems, PROBLEMS_BYTES_MAX);
    bool fine = (rq->name == NULL || (j->name = strdup(rq->name)) != NULL) &&
                buf_reserve(&j->given, rq->text.n);
    buf_add(&j->given, rq->text.p, rq->text.n);
    buf_cstr(&j->given);
    inferd_status s = fine ? collect_patches(j, ch, err)
                           : inferd_fail(err, INFERD_ENOMEM, "no memory for the change");
    if (s == INFERD_OK && uv_queue_work(ch->o.loop, &j->work, load_text, on_text) != 0)
        s = inferd_fail(err, INFERD_ENOMEM, "no memory for the change");
    if (s == INFERD_OK)
        ch->job = j;
    else
        free_job(j);
    return s;
}

void changer_reload(changer *ch) {
    inferd_err err = {0};
    if (ch->o.path == NULL) return;
    if (ch->job != NULL) {
        ch->again = true;
        return;
    }
    change_request rq = {.kind = CHANGE_RELOAD};
    if (changer_begin(ch, &rq, &err) == INFERD_OK) return;
    log_text(LOG_LEVEL_ERROR, "reload_refused", "problem", err.text);
    count(ch, true, false);
}

bytes changer_text(const changer *ch) {
    return (bytes){ch->masked.p == NULL ? "" : ch->masked.p, ch->masked.n};
}

void changer_get_about(const changer *ch, changer_about *out) {
    *out = (changer_about){.path = ch->o.path,
                           .loaded_unix_s = ch->loaded_unix_s,
                           .reloads = ch->reloads,
                           .changes = ch->changes,
                           .n_patches = ch->n_patches,
                           .busy = ch->job != NULL};
}
