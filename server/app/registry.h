/* registry.h - the served models: opened files, their slots in the fleet, and their names.
 *
 * A slot is one opened file with its options (name, path, template, context).  A configuration
 * refers to slots; a reload keeps those that match, and adds others for new models and for replaced
 * files.  A slot without a configuration is removed from the fleet, finishes its work, and is
 * closed when nothing of it is left: so running requests continue with the weights they began with.
 *
 *   empty -> served     registry_apply      fleet_model_add
 *   empty -> served     registry_replace    the file of another slot was replaced
 *   served -> leaving   registry_drop       no configuration names it: fleet_model_remove
 *   leaving -> empty    registry_sweep      the fleet released it, and no generation is open
 *
 * If the fleet has no memory for a new slot, no device serves it until registry_sweep has added it;
 * if it is dropped before, the fleet has nothing to release.
 *
 * Names have numbers of their own, which are never used for another name: metrics count by them.
 * Thread: front; any thread with a configuration may read m, name and name_idx of its slots, and
 * use `grammars`. */
#ifndef INFERD_REGISTRY_H
#define INFERD_REGISTRY_H

#include "config.h"
#include "fleet.h"
#include "grammars.h"
#include "transcripts.h"
#include "models/model.h"

enum {
    REGISTRY_SLOTS = 2 * CONFIG_MODELS_MAX, // some leave while others are added
    REGISTRY_NAMES_MAX = 4096,              // different names of models since the start
    REGISTRY_NONE = -1
};

typedef struct registry_slot {
    model *m;   // NULL: empty; owned
    char *name; // owned, like the next two
    char *path, *chat_template, *tool_format;
    uint32_t max_context;
    uint32_t name_idx;
    uint32_t n_configs;     // configurations that refer to it
    uint32_t n_generations; // open generations
    bool leaving;
    bool untold;                    // not added to the fleet yet, for lack of memory
    bool stale;                     // its file was replaced: no other configuration may use it
    bool held;                      // when it was created: an operator held its predecessor
    model_file file;                // as last seen by file_look.h
    uint32_t departures;            // of the fleet's slot when it was added
    model_policy policy;            // as sent to the fleet
    model_policy told;              // as in the last configuration
    bool heed_pin, heed_keep_alive; // registry_heed
    int32_t same_as;                // slot with the same content, or REGISTRY_NONE
} registry_slot;

typedef struct registry {
    registry_slot *slots;     // [REGISTRY_SLOTS] owned
    uint32_t n_used;          // slots from n_used on never had a model
    fleet *fleet;             // borrowed; NULL before registry_start
    grammars *grammars;       // of the models, for structured output; owned; any thread
    transcripts *transcripts; // of the models, without memory at first; owned; any thread
    char **names;             // [n_names] owned
    uint32_t n_names;
} registry;

/* A model of a configuration that has to be opened. */
typedef struct registry_opened {
    bool wanted;     // no slot serves it yet
    bool counted;    // the plan has a reference to slot
    int32_t slot;    // that serves it, or REGISTRY_NONE
    model *m;        // owned until registry_apply takes it; NULL: not wanted, or not opened
    int32_t same_as; // slot with the same content, or REGISTRY_NONE
    /* The same among the models opened with it, an index below its own, or REGISTRY_NONE. */
    int32_t same_new;
} registry_opened;

/* The models that a configuration needs beyond the existing slots. */
typedef struct registry_plan {
    const inferd_config *c;  // borrowed
    registry *r;             // borrowed
    registry_opened *opened; // [c->n_models] owned
    const model **known;     // [n_known] served models; borrowed, like their slots; owned array
    int *known_slots;        // [n_known] owned
    uint32_t n_known;
} registry_plan;

inferd_status registry_init(registry *r, inferd_err *err);
void registry_deinit(registry *r); // after fleet_stop; accepts a zeroed one

/* The slot that serves exactly this model, or REGISTRY_NONE. */
int registry_match(const registry *r, const config_model *m);
/* Front: finds the models that have to be opened.  `slots` ([n_slots], of the running
 * configuration) are compared by content: the plan holds references to them.  Slots that serve a
 * model already, also of an older configuration, stay until the plan ends. */
bool registry_plan_init(registry_plan *p, registry *r, const inferd_config *c, const int *slots,
                        uint32_t n_slots);   // false: no memory
void registry_plan_deinit(registry_plan *p); // front; closes models that were not taken
/* Any thread: opens them.  Problems are lines.  False: at least one problem; nothing is open. */
bool registry_plan_open(registry_plan *p, bool allow_dummy, buf *problems);
/* Could the running devices keep the guarantees of this configuration, for the models that are
 * served already?  False: `problem` names those they could not keep. */
bool registry_check(const registry *r, const inferd_config *c, inferd_err *problem);
/* Takes the opened models, and sets slots[c->n_models] with one more reference each.  False:
 * `problem` has the reason, and nothing changed. */
bool registry_apply(registry *r, registry_plan *p, int *slots, inferd_err *problem);
/* Opens a model of a configuration as for a slot. */
inferd_status registry_open_model(const config_model *m, bool allow_dummy, model **out,
                                  inferd_err *err);
bool registry_same_content(const model *a, const model *b); // false also if a file cannot be read
/* The file of slot `old` was replaced, and `m` (taken on success) is the new file: adds another
 * slot, otherwise equal, that no configuration refers to yet.  `same_as` as in registry_opened.
 * The old slot is stale and loses its guarantees.  REGISTRY_NONE: `problem` has the reason. */
int registry_replace(registry *r, int old, model *m, int same_as, inferd_err *problem);
/* The next configuration sets its pin or keep_alive, whatever a command has set. */
void registry_heed(registry *r, const char *name, bool pin, bool keep_alive);
/* Its file is back: a failed model is retried at once. */
void registry_try_again(registry *r, int slot);
/* One more configuration refers to them. */
void registry_count(registry *r, const int *slots, uint32_t n);
/* One configuration less refers to them. */
void registry_drop(registry *r, const int *slots, uint32_t n);
/* Closes slots that have left, and adds slots to the fleet that it had no memory for. */
void registry_sweep(registry *r);

/* Adds all models served so far to this fleet, and later ones too. */
bool registry_start(registry *r, fleet *f);

#endif
