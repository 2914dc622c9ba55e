/* fleet_move.c - replicas that move to another device; the target joins before the source leaves.
 *
 *   begin    a second replica with the same part joins on the target; the source serves on
 *   arrives  the target is HOT: it serves, the source gets no more requests and leaves when its
 *            work has ended
 *   fails    the target was not HOT within FLEET_JOIN_US, or a device was lost: the target is
 *            removed, and the source serves on
 *
 * One move at a time, searched every MOVE_LOOK_US by what was measured since.  Reasons, in order:
 *
 *   room      a replica is wanted and fits on no device, though all devices together have room
 *             (placement.h plans the moves; each search carries out the first one of a new plan);
 *             one model per search, round robin, since a plan takes time
 *   switches  the weights on a device exceed its memory, models there waited for each other, and
 *             another device has room for one of them, if need be after other moves
 *   load      a device is busy and another one is less so
 *
 * The last two must gain more than they cost.  The gain is the time that requests waited for a
 * model, or the time by which the busier device becomes less busy, as measured and extrapolated to
 * MOVE_HORIZON_US.  The cost is bringing the weights up once more.  A model that moved stays for
 * MOVE_REST_US, so that it does not move back and forth.
 *
 * Pinned models never move, nor do those that share weights with another one. */
#include <stdlib.h>
#include <string.h>

#include "fleet_private.h"

enum {
    MOVE_LOOK_US = 10000000,
    MOVE_CALM_US = 120000000, // after a move that failed
    MOVE_HORIZON_US = 60000000,
    MOVE_REST_US = 120000000,
    MOVE_BUSY_PPM = 700000, // a device busy for more than this part of the time gives a model away
    MOVE_GAIN_PPM = 100000, // the busier of the two must become less busy by this
    MOVE_COPIES_MAX = 128,  // with more replicas there is no plan of several moves
    MOVE_TRIES_MAX = 10000  // of such a plan, which blocks the front: some milliseconds
};
#define PPM UINT64_C(1000000)

const char *fleet_move_why_name(fleet_move_why why) {
    static const char *const names[] = {"room", "switches", "load"};
    return names[why];
}

const char *fleet_move_state_name(fleet_move_state state) {
    static const char *const names[] = {"none", "begun", "done", "failed"};
    return names[state];
}

void fleet_get_moves(const fleet *f, fleet_moves *out) {
    *out = f->moves;
}

/* ---- what was measured ---- */

/* What each replica did since the last search; false: a device is not open yet. */
static bool measure(fleet *f, uint64_t *busy_us) {
    bool open = true;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        engine_stats s;
        engine_get_stats(f->engines[d], &s);
        open = open && (s.pages_device != 0 || engine_is_lost(f->engines[d]));
        busy_us[d] = 0;
        for (uint32_t i = 0; i < f->n_used; i++) {
            replica *r = &f->models[i].at[d];
            engine_model_info info;
            if (!f->models[i].used || !replica_is_here(r)) continue;
            engine_model_get(f->engines[d], i, &info);
            uint64_t switch_us = info.sum.reclaim_us + info.sum.stage_us + info.sum.load_us;
            r->busy_us = u64_less(info.device_us, r->seen_device_us);
            r->switch_us = u64_less(switch_us, r->seen_switch_us);
            r->seen_device_us = info.device_us;
            r->seen_switch_us = switch_us;
            busy_us[d] += r->busy_us;
        }
    }
    return open;
}

static bool is_quiet(const fleet *f) {
    for (uint32_t i = 0; i < f->n_used; i++)
        for (uint32_t d = 0; d < f->n_devices; d++) {
            fleet_replica_state s = f->models[i].at[d].state;
            if (f->models[i].used && (s == FLEET_JOINING || s == FLEET_LEAVING)) return false;
        }
    return true;
}

/* ---- what may move ---- */

/* Once per search: otherwise each question would walk all models. */
static void see_twins(fleet *f) {
    memset(f->twins, 0, f->n_slots * sizeof *f->twins);
    for (uint32_t i = 0; i < f->n_used; i++) {
        const fleet_model *m = &f->models[i];
        if (!m->used || m->about.same_as >= f->n_slots) continue;
        f->twins[m->about.same_as] |= fleet_model_devices(f, i);
    }
}

static bool weights_are_shared(const fleet *f, uint32_t slot, uint32_t d) {
    return fleet_shares_weights(f, &f->models[slot], d) || (f->twins[slot] >> d & 1) != 0;
}

static bool may_move(const fleet *f, uint32_t slot, uint32_t d) {
    const fleet_model *m = &f->models[slot];
    return m->used && !m->removed && !m->held && m->at[d].state == FLEET_SERVING &&
           m->about.policy.pin == PIN_NONE && !engine_is_lost(f->engines[d]) &&
           !weights_are_shared(f, slot, d);
}

static bool has_rested(const fleet *f, uint32_t slot, uint64_t now_us) {
    uint64_t moved_us = f->models[slot].moved_us;
    return moved_us == 0 || now_us >= moved_us + MOVE_REST_US;
}

static bool may_go(const fleet *f, uint32_t slot, uint32_t from, uint32_t to, bool lent) {
    const fleet_model *m = &f->models[slot];
    placement_device device;
    fleet_see_device(f, to, lent, &device);
    placement_wanted w = fleet_wanted_of(f, m, m->at[from].part, device.page_bytes);
    return placement_check(&device, &w, w.here[to], NULL);
}

/* The time to bring it up once more. */
static uint64_t cost_us(const fleet *f, uint32_t slot, uint32_t from) {
    engine_model_info info;
    engine_model_get(f->engines[from], slot, &info);
    uint64_t us = info.last.stage_us + info.last.load_us;
    return us != 0 ? us : fleet_stage_us(f->models[slot].about.weight_bytes);
}

typedef struct choice {
    bool found;
    bool anew; // no move: the replica on `from` is removed, and placed again where there is room
    uint32_t slot, from, to;
    fleet_move_why why;
    uint64_t gain_us; // minus the cost
} choice;

static void take_better(choice *best, uint64_t gain, uint64_t cost, choice c) {
    if (gain <= cost || (best->found && gain - cost <= best->gain_us)) return;
    *best = c;
    best->found = true;
    best->gain_us = gain - cost;
}

/* ---- plans of several moves ---- */

typedef struct sketch {
    placement_device empty[FLEET_DEVICES_MAX];
    placement_wanted *models; // [n_used] owned
    placement_copy copies[MOVE_COPIES_MAX];
    uint32_t n_copies;
} sketch;

/* All devices and replicas, except the one of `slot` on `but`.  `lent`: as in find_device, weights
 * of other models can be evicted.  False: too many replicas, or no memory. */
static bool draw(const fleet *f, uint32_t slot, uint32_t but, bool lent, sketch *s) {
    s->n_copies = 0;
    s->models = calloc(size_max(f->n_used, 1), sizeof *s->models);
    if (s->models == NULL) return false;
    for (uint32_t d = 0; d < f->n_devices; d++) fleet_see_empty(f, d, &s->empty[d]);
    for (uint32_t i = 0; i < f->n_used; i++) {
        const fleet_model *m = &f->models[i];
        if (!m->used) continue;
        s->models[i] = fleet_wanted_of(f, m, 0, s->empty[0].page_bytes);
        if (lent && i != slot && m->about.policy.pin != PIN_HOT) {
            placement_need *n = &s->models[i].need[0];
            n->kv_pages = u32_max(n->min_pages, 1);
            n->weight_pages = 0;
        }
        for (uint32_t d = 0; d < f->n_devices; d++) {
            if (!replica_is_here(&m->at[d]) || (i == slot && d == but)) continue;
            if (s->n_copies == MOVE_COPIES_MAX) return false;
            s->copies[s->n_copies++] = (placement_copy){
                .model_idx = i, .device_idx = d, .pinned = i == slot || !may_move(f, i, d)};
        }
    }
    return true;
}

/* The first of the moves after which a replica of `slot` fits on a device, or `anew` for it itself;
 * `but`: its present device, which is not counted.  The cost is that of the whole plan. */
static bool plan(const fleet *f, uint32_t slot, uint32_t but, bool lent, choice *first,
                 uint64_t *plan_us) {
    sketch s;
    placement_plan p;
    bool found = draw(f, slot, but, lent, &s) &&
                 placement_plan_moves(s.empty, f->n_devices, s.models, s.copies, s.n_copies, slot,
                                      MOVE_TRIES_MAX, &p);
    free(s.models);
    if (!found) return false;
    *plan_us = fleet_stage_us(p.moved_bytes);
    *first = (choice){.found = true, .anew = true, .slot = slot, .from = but, .to = p.device_idx};
    if (p.n_moves == 0) return but != FLEET_NOWHERE;
    const placement_copy *c = &s.copies[p.moves[0].copy_idx];
    *first =
        (choice){.found = true, .slot = c->model_idx, .from = p.moves[0].from, .to = p.moves[0].to};
    return may_go(f, first->slot, first->from, first->to, lent);
}

/* ---- the three reasons ---- */

/* The device of a replica that was added although no device had room; FLEET_NOWHERE: none. */
static uint32_t misplaced(const fleet *f, uint32_t slot) {
    const fleet_model *m = &f->models[slot];
    for (uint32_t d = 0; d < f->n_devices && m->problem[0] != 0; d++)
        if (m->at[d].state == FLEET_SERVING &&
            engine_model_state(f->engines[d], slot) == MODEL_FAILED)
            return d;
    return FLEET_NOWHERE;
}

/* The next model that needs room gets one plan; others follow in later searches. */
static choice find_for_room(fleet *f) {
    for (uint32_t k = 0; k < f->n_used; k++) {
        uint32_t i = (f->next_room + k) % f->n_used;
        const fleet_model *m = &f->models[i];
        uint64_t ignored_us;
        choice c;
        if (!m->used || m->removed || m->held || m->problem[0] == 0) continue;
        uint32_t but = misplaced(f, i);
        if (but == FLEET_NOWHERE && !m->lacks) continue;
        f->next_room = (i + 1) % f->n_used;
        for (int lent = 0; lent <= 1; lent++) {
            if (!plan(f, i, but, lent == 1, &c, &ignored_us)) continue;
            c.why = FLEET_MOVE_ROOM;
            return c;
        }
        break;
    }
    return (choice){0};
}

/* The weights and guarantees of its models do not fit all at once. */
static bool is_crowded(const fleet *f, uint32_t d) {
    placement_device device;
    fleet_see_device(f, d, false, &device);
    return device.free_pages == 0;
}

static choice find_for_switches(const fleet *f, uint64_t now_us, uint64_t window_us) {
    choice best = {0};
    uint32_t slot = 0, from = FLEET_NOWHERE; // the model that waited longest
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (!is_crowded(f, d)) continue;
        for (uint32_t i = 0; i < f->n_used; i++) {
            const replica *r = &f->models[i].at[d];
            if (r->switch_us == 0 || !may_move(f, i, d) || !has_rested(f, i, now_us)) continue;
            if (from == FLEET_NOWHERE || r->switch_us > f->models[slot].at[from].switch_us)
                slot = i, from = d;
            uint64_t gain = r->switch_us * MOVE_HORIZON_US / window_us, cost = cost_us(f, i, d);
            for (uint32_t to = 0; to < f->n_devices && gain > cost; to++)
                if (to != d && may_go(f, i, d, to, false))
                    take_better(&best, gain, cost, (choice){.slot = i, .from = d, .to = to});
        }
    }
    if (!best.found && from != FLEET_NOWHERE) {
        uint64_t gain = f->models[slot].at[from].switch_us * MOVE_HORIZON_US / window_us, plan_us;
        choice c;
        if (plan(f, slot, from, false, &c, &plan_us) && !c.anew)
            take_better(&best, gain, plan_us + cost_us(f, slot, from), c);
    }
    best.why = FLEET_MOVE_SWITCHES;
    return best;
}

static choice find_for_load(const fleet *f, const uint64_t *busy_us, uint64_t now_us,
                            uint64_t window_us) {
    choice best = {0};
    for (uint32_t d = 0; d < f->n_devices; d++) {
        if (busy_us[d] * PPM / window_us < MOVE_BUSY_PPM) continue;
        for (uint32_t i = 0; i < f->n_used; i++) {
            if (!may_move(f, i, d) || !has_rested(f, i, now_us)) continue;
            uint64_t its_us = f->models[i].at[d].busy_us;
            for (uint32_t to = 0; to < f->n_devices; to++) {
                uint64_t left_us = u64_less(busy_us[d], its_us), there_us = busy_us[to] + its_us;
                uint64_t gain_us = u64_less(busy_us[d], left_us > there_us ? left_us : there_us);
                if (to == d || gain_us * PPM / window_us < MOVE_GAIN_PPM) continue;
                if (may_go(f, i, d, to, false))
                    take_better(&best, gain_us * MOVE_HORIZON_US / window_us, cost_us(f, i, d),
                                (choice){.slot = i, .from = d, .to = to});
            }
        }
    }
    best.why = FLEET_MOVE_LOAD;
    return best;
}

/* ---- a move ---- */

static void note(fleet *f, fleet_move_state state) {
    f->moves.last.state = state;
    f->moves.n_notes++;
}

static void end_move(fleet *f, fleet_move_state state, uint64_t now_us) {
    const fleet_move *v = &f->moves.last;
    if (state == FLEET_MOVE_DONE)
        f->moves.n_done[v->why]++;
    else
        f->moves.n_failed++;
    f->models[v->slot].moved_us = now_us;
    f->move_from_us = now_us + (state == FLEET_MOVE_DONE ? MOVE_LOOK_US : MOVE_CALM_US);
    note(f, state);
}

bool fleet_is_moving(const fleet *f, uint32_t slot) {
    return f->moves.last.state == FLEET_MOVE_BEGUN && f->moves.last.slot == slot;
}

bool fleet_move_lost(fleet *f, uint32_t slot, uint32_t d, uint64_t now_us) {
    const fleet_move v = f->moves.last;
    if (!fleet_is_moving(f, slot) || (d != v.from && d != v.to)) return false;
    fleet_remove_replica(f, slot, d);
    end_move(f, FLEET_MOVE_FAILED, now_us);
    return true;
}

/* Checks the move in progress, which may have ended. */
static void watch(fleet *f, uint64_t now_us) {
    const fleet_move v = f->moves.last;
    const fleet_model *m = &f->models[v.slot];
    bool has_source = m->used && replica_is_here(&m->at[v.from]);
    bool has_target = m->used && replica_is_here(&m->at[v.to]);
    if (!has_source || !has_target) {
        end_move(f, FLEET_MOVE_FAILED, now_us);
    } else if (m->at[v.to].state == FLEET_SERVING) {
        fleet_remove_replica(f, v.slot, v.from);
        end_move(f, FLEET_MOVE_DONE, now_us);
    } else if (m->held || now_us >= f->move_from_us + FLEET_JOIN_US) {
        fleet_remove_replica(f, v.slot, v.to);
        end_move(f, FLEET_MOVE_FAILED, now_us);
    }
}

void fleet_rebalance(fleet *f, uint64_t now_us) {
    uint64_t busy_us[FLEET_DEVICES_MAX], window_us = u64_less(now_us, f->measured_us);
    if (f->n_devices < 2) return;
    if (f->moves.last.state == FLEET_MOVE_BEGUN) {
        watch(f, now_us);
        return;
    }
    if (window_us < MOVE_LOOK_US || now_us < f->move_from_us) return;
    bool open = measure(f, busy_us), first = f->measured_us == 0;
    f->measured_us = now_us;
    if (!open || first || !is_quiet(f)) return;
    see_twins(f);
    choice c = find_for_room(f);
    if (!c.found) c = find_for_switches(f, now_us, window_us);
    if (!c.found) c = find_for_load(f, busy_us, now_us, window_us);
    if (c.anew) fleet_remove_replica(f, c.slot, c.from);
    if (!c.found || c.anew ||
        !fleet_add_replica(f, c.slot, c.to, f->models[c.slot].at[c.from].part, true))
        return;
    f->moves.last = (fleet_move){.slot = c.slot, .from = c.from, .to = c.to, .why = c.why};
    f->move_from_us = now_us;
    note(f, FLEET_MOVE_BEGUN);
}
