/* registry.h - the models that are served: what was opened, in which slot of the fleet, under
 * which name.
 *
 * A slot is one opened file with what it was opened with (name, path, template, context).  A
 * configuration names slots; a reload keeps those that fit, and brings others for what is new or
 * whose file was replaced.  A slot that no configuration names any more is taken from the fleet,
 * ends what it still computes, and is closed when nothing of it is left: so what runs goes on with
 * the weights it began with.
 *
 *     empty -> served   registry_apply        fleet_model_add
 *     empty -> served   registry_replace      the file of another slot was replaced
 *     served -> leaving registry_drop         no configuration names it: fleet_model_remove
 *     leaving -> empty  registry_sweep        the fleet let go, and no answer is being written
 *
 * One that the fleet had no memory to take is served by no device until registry_sweep has told the
 * fleet after all; when it is dropped before, nothing has to let it go.
 *
 * Names have numbers of their own, which are never used for another name: metrics count by them.
 *
 * Thread: front; m, name and name_idx of a slot may be read by whoever holds a configuration that
 * names it. */
#ifndef INFERD_REGISTRY_H
#define INFERD_REGISTRY_H

#include "config.h"
#include "fleet.h"
#include "models/model.h"

enum {
    REGISTRY_SLOTS = 2 * CONFIG_MODELS_MAX, // some leave while others come
    REGISTRY_NAMES_MAX = 4096,              // different names of models since the start
    REGISTRY_NONE = -1
};

typedef struct registry_slot {
    model *m;   // NULL: empty; owned
    char *name; // owned, like the next two
    char *path, *chat_template;
    uint32_t max_context;
    uint32_t name_idx;
    uint32_t n_configs; // that name it
    uint32_t n_flights; // answers that are being written
    bool leaving;
    bool untold;                    // there was no memory to give it to the fleet
    bool stale;                     // its file was replaced: not for another configuration
    bool held;                      // when it came: what it follows was drained by hand
    model_file file;                // as file_look.h saw it last
    uint32_t departures;            // of the fleet's slot when it was added
    model_policy policy;            // as the fleet has it
    model_policy told;              // as the configuration said last
    bool heed_pin, heed_keep_alive; // registry_heed
    int32_t same_as;                // slot with the same content, or REGISTRY_NONE
} registry_slot;

typedef struct registry {
    registry_slot *slots; // [REGISTRY_SLOTS] owned
    uint32_t n_used;      // slots from there on never had a model
    fleet *fleet;         // borrowed; NULL before registry_start
    char **names;         // [n_names] owned
    uint32_t n_names;
} registry;

/* A model of a configuration that has to be opened, and was. */
typedef struct registry_opened {
    bool wanted;      // no slot serves it yet
    bool counted;     // for the plan: slot
    int32_t slot;     // that serves it, or REGISTRY_NONE
    model *m;         // owned until registry_apply took it; NULL: not wanted, or not opened
    int32_t same_as;  // slot with the same content, or REGISTRY_NONE
    int32_t same_new; // the same among those opened with it, an index below its own, or
                      // REGISTRY_NONE
} registry_opened;

/* What one configuration needs beyond the slots there are. */
typedef struct registry_plan {
    const inferd_config *c;  // borrowed
    registry *r;             // borrowed
    registry_opened *opened; // [c->n_models] owned
    const model **known;     // [n_known] that are served; borrowed, like their slots; owned array
    int *known_slots;        // [n_known] owned
    uint32_t n_known;
} registry_plan;

inferd_status registry_init(registry *r, inferd_err *err);
void registry_deinit(registry *r); // after fleet_stop; accepts a zeroed one

/* The slot that serves exactly this, or REGISTRY_NONE. */
int registry_match(const registry *r, const config_model *m);
/* Front: what has to be opened.  `slots` ([n_slots], of the running configuration) are looked at
 * for the same content: they stay while that is counted.  Slots that serve a model already, those
 * of an older configuration, too, stay until the plan ends. */
bool registry_plan_init(registry_plan *p, registry *r, const inferd_config *c, const int *slots,
                        uint32_t n_slots);   // false: no memory
void registry_plan_deinit(registry_plan *p); // front; closes the models that were not taken
/* Any thread: open it.  Problems are lines.  False: at least one; nothing is open. */
bool registry_plan_open(registry_plan *p, bool allow_dummy, buf *problems);
/* Could the devices that run keep what this configuration promises, as far as its models are served
 * already?  False: `problem` says what they could not. */
bool registry_check(const registry *r, const inferd_config *c, inferd_err *problem);
/* Take what was opened, and give slots[c->n_models], each counted once more.  False: `problem` says
 * why, and nothing changed. */
bool registry_apply(registry *r, registry_plan *p, int *slots, inferd_err *problem);
/* The model of a configuration, as it is opened for a slot. */
inferd_status registry_open_model(const config_model *m, bool allow_dummy, model **out,
                                  inferd_err *err);
bool registry_same_content(const model *a, const model *b); // false also when it cannot be read
/* The file of slot `old` was replaced, and `m` (taken on success) is what it is now: another slot,
 * the same in all else, that no configuration names yet.  `same_as` as registry_opened has it.
 * The old one is stale, and guaranteed nothing any more.  REGISTRY_NONE: the problem says why. */
int registry_replace(registry *r, int old, model *m, int same_as, inferd_err *problem);
/* The next configuration says what its pin or keep_alive is, whatever was set by hand. */
void registry_heed(registry *r, const char *name, bool pin, bool keep_alive);
/* Its file is back: a model that failed is tried at once. */
void registry_try_again(registry *r, int slot);
/* One configuration more names them. */
void registry_count(registry *r, const int *slots, uint32_t n);
/* One configuration less names them. */
void registry_drop(registry *r, const int *slots, uint32_t n);
/* Close what has left, and tell the fleet what it could not be told. */
void registry_sweep(registry *r);

/* Everything that is served so far goes to this fleet, and what is served later. */
bool registry_start(registry *r, fleet *f);

#endif
