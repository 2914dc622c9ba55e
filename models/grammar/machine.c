/* machine.c - states: how they are made from one another, see machine.h; memory: machine_flush.c.
 */
#include "machine.h"

#include <string.h>

#include "inferd/hash.h"

bool machine_hold(grammar_machine *m, void **array, uint32_t *capacity, size_t n,
                  size_t bytes_each) {
    if (n <= *capacity) return true;
    size_t wanted = size_max(*capacity, 32), n_bytes;
    while (wanted < n) wanted *= 2;
    void *p = wanted < UINT32_MAX && size_mul(wanted, bytes_each, &n_bytes)
                  ? realloc(*array, n_bytes)
                  : NULL;
    if (p == NULL) {
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    *array = p;
    *capacity = (uint32_t)wanted;
    return true;
}

static bool grow_table(grammar_machine *m, uint32_t **table, uint32_t *size) {
    uint32_t wanted = *size == 0 ? 256 : *size * 2;
    uint32_t *p = malloc((size_t)wanted * sizeof *p);
    if (p == NULL) {
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    memset(p, 0xff, (size_t)wanted * sizeof *p);
    free(*table);
    *table = p;
    *size = wanted;
    return true;
}

/* ---- frames ---- */

static uint32_t hash_frame(const frame *f) {
    uint64_t h = hash_step(hash_step(HASH_BEGIN, f->node), f->pos);
    h = hash_step(hash_step(hash_step(hash_step(h, f->high), f->count), f->aux), f->parent);
    return (uint32_t)hash_fold(h);
}

static void index_frame(grammar_machine *m, uint32_t i) {
    uint32_t mask = m->frame_table_size - 1, at = hash_frame(&m->frames[i]) & mask;
    while (m->frame_table[at] != UINT32_MAX) at = (at + 1) & mask;
    m->frame_table[at] = i;
}

uint32_t machine_frame(grammar_machine *m, const frame *f) {
    uint32_t depth = m->frames[f->parent].depth + 1;
    if (depth > m->g->limits.stack_max) return FRAME_NONE;
    if (m->n_frames >= m->frame_table_size / 2) {
        if (!grow_table(m, &m->frame_table, &m->frame_table_size)) return FRAME_NONE;
        for (uint32_t i = 1; i < m->n_frames; i++) index_frame(m, i);
    }
    uint32_t mask = m->frame_table_size - 1, at = hash_frame(f) & mask;
    for (; m->frame_table[at] != UINT32_MAX; at = (at + 1) & mask) {
        const frame *o = &m->frames[m->frame_table[at]];
        if (o->node == f->node && o->pos == f->pos && o->high == f->high && o->count == f->count &&
            o->aux == f->aux && o->parent == f->parent)
            return m->frame_table[at];
    }
    if (!machine_hold(m, (void **)&m->frames, &m->frames_capacity, (size_t)m->n_frames + 1,
                      sizeof *m->frames))
        return FRAME_NONE;
    m->frames[m->n_frames] = *f;
    m->frames[m->n_frames].depth = depth;
    m->frame_table[at] = m->n_frames;
    return m->n_frames++;
}

/* ---- groups of bytes ---- */

/* Sources are numbered: terminals, then objects. */
static const uint8_t *classes_of(const grammar_machine *m, uint32_t source) {
    const grammar *g = m->g;
    return source < g->n_terms ? g->terms[source].classes : g->objects[source - g->n_terms].classes;
}

/* Splits each group by class: the class of its first byte keeps the number. */
static void split_groups(byte_map *map, const uint8_t *classes) {
    struct {
        uint8_t group, class;
        bool any;
    } first[256] = {0}, more[256];
    uint32_t n_groups = map->n_groups;
    for (uint32_t b = 0; b < 256; b++) {
        uint8_t group = map->of[b], class = classes[b];
        if (!first[group].any) {
            first[group].any = true;
            first[group].class = class;
        }
        if (first[group].class == class) continue;
        uint32_t to = map->n_groups;
        while (to < n_groups && (more[to].group != group || more[to].class != class)) to++;
        if (to == n_groups) {
            more[n_groups].group = group;
            more[n_groups++].class = class;
        }
        map->of[b] = (uint8_t)to;
    }
    map->n_groups = n_groups;
}

byte_map *machine_new_map(grammar_machine *m) {
    if (!machine_hold(m, (void **)&m->maps, &m->maps_capacity, (size_t)m->n_maps + 1,
                      sizeof *m->maps))
        return NULL;
    byte_map *map = calloc(1, sizeof *map);
    if (map == NULL)
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
    else
        m->maps[m->n_maps++] = map;
    return map;
}

/* The map that keeps apart what each of the sources does (ascending). */
static bool make_map(grammar_machine *m, const uint32_t *sources, uint32_t n) {
    if (!machine_hold(m, (void **)&m->map_sources, &m->map_sources_capacity,
                      (size_t)m->n_map_sources + n, sizeof *m->map_sources))
        return false;
    byte_map *map = machine_new_map(m);
    if (map == NULL) return false;
    *map = (byte_map){.n_groups = 1, .sources_at = m->n_map_sources, .n_sources = n};
    if (n > 0) memcpy(m->map_sources + m->n_map_sources, sources, n * sizeof *sources);
    for (uint32_t i = 0; i < n; i++) split_groups(map, classes_of(m, sources[i]));
    for (uint32_t b = 256; b-- > 0;) map->reps[map->of[b]] = (uint8_t)b;
    m->n_map_sources += n;
    return true;
}

/* The map of a state with these configs; UINT32_MAX: no memory. */
static uint32_t find_map(grammar_machine *m, const config *configs, uint32_t n) {
    enum { SOURCES_MAX = 64, MAPS_MAX = 1024 }; // more: every byte for itself
    uint32_t sources[SOURCES_MAX], n_sources = 0;
    bool all = false;
    for (uint32_t i = 0; i < n && !all; i++) {
        const config *c = &configs[i];
        uint32_t wanted[2], n_wanted = 0;
        if (c->d != OTHERS_OFF) wanted[n_wanted++] = m->g->term_of[c->d];
        if (c->t != 0) wanted[n_wanted++] = m->g->n_terms + m->g->nodes[m->frames[c->frame].node].a;
        for (uint32_t w = 0; w < n_wanted; w++) {
            uint32_t at = 0;
            while (at < n_sources && sources[at] < wanted[w]) at++;
            if (at < n_sources && sources[at] == wanted[w]) continue;
            all = n_sources == SOURCES_MAX;
            if (all) break;
            memmove(sources + at + 1, sources + at, (n_sources - at) * sizeof *sources);
            sources[at] = wanted[w];
            n_sources++;
        }
    }
    if (all) return 0; // map 0 keeps all bytes apart
    for (uint32_t i = 1; i < m->n_maps; i++)
        if (m->maps[i]->n_sources == n_sources && memcmp(m->map_sources + m->maps[i]->sources_at,
                                                         sources, n_sources * sizeof *sources) == 0)
            return i;
    if (m->n_maps >= MAPS_MAX) return 0; // maps outlive a flush, and the search is linear
    return make_map(m, sources, n_sources) ? m->n_maps - 1 : UINT32_MAX;
}

/* ---- states ---- */

static uint32_t hash_configs(const config *configs, uint32_t n, bool accepts) {
    uint64_t h = hash_step(HASH_BEGIN, accepts);
    for (uint32_t i = 0; i < n; i++)
        h = hash_step(hash_step(hash_step(h, configs[i].frame), configs[i].d), configs[i].t);
    return (uint32_t)hash_fold(h);
}

static bool index_states(grammar_machine *m) {
    if (m->n_states < m->state_table_size / 2) return true;
    if (!grow_table(m, &m->state_table, &m->state_table_size)) return false;
    for (uint32_t i = 1; i < m->n_states; i++) {
        uint32_t mask = m->state_table_size - 1, at = m->states[i].hash & mask;
        while (m->state_table[at] != UINT32_MAX) at = (at + 1) & mask;
        m->state_table[at] = i;
    }
    return true;
}

static bool add_state(grammar_machine *m, const config *configs, uint32_t n, bool accepts,
                      uint32_t hash) {
    uint32_t map = find_map(m, configs, n);
    if (map == UINT32_MAX) return false;
    uint32_t n_groups = m->maps[map]->n_groups;
    if (!machine_hold(m, (void **)&m->configs, &m->configs_capacity, (size_t)m->n_configs + n,
                      sizeof *m->configs) ||
        !machine_hold(m, (void **)&m->succ, &m->succ_capacity, (size_t)m->n_succ + n_groups,
                      sizeof *m->succ) ||
        !machine_hold(m, (void **)&m->states, &m->states_capacity, (size_t)m->n_states + 1,
                      sizeof *m->states))
        return false;
    if (n > 0) memcpy(m->configs + m->n_configs, configs, n * sizeof *configs);
    memset(m->succ + m->n_succ, 0xff, n_groups * sizeof *m->succ);
    m->states[m->n_states++] = (state){.configs = m->n_configs,
                                       .n_configs = n,
                                       .map = map,
                                       .succ = m->n_succ,
                                       .hash = hash,
                                       .accepts = accepts};
    m->n_configs += n;
    m->n_succ += n_groups;
    return true;
}

uint32_t machine_intern(grammar_machine *m, const config *configs, uint32_t n, bool accepts) {
    if (n == 0 && !accepts) return STATE_DEAD;
    if (!index_states(m)) return STATE_DEAD;
    uint32_t hash = hash_configs(configs, n, accepts), mask = m->state_table_size - 1;
    uint32_t at = hash & mask;
    for (; m->state_table[at] != UINT32_MAX; at = (at + 1) & mask) {
        const state *q = &m->states[m->state_table[at]];
        if (q->hash == hash && q->n_configs == n && q->accepts == accepts &&
            (n == 0 || memcmp(m->configs + q->configs, configs, n * sizeof *configs) == 0))
            return m->state_table[at];
    }
    if (!add_state(m, configs, n, accepts, hash)) return STATE_DEAD;
    m->state_table[at] = m->n_states - 1;
    return m->n_states - 1;
}

/* ---- closing a set of configs ---- */

static void add_todo(grammar_machine *m, ir_node node, uint32_t f) {
    if (f == FRAME_NONE || !machine_hold(m, (void **)&m->todos, &m->todos_capacity,
                                         (size_t)m->n_todos + 1, sizeof *m->todos))
        return;
    m->todos[m->n_todos++] = (todo){node, f};
}

static void add_config(grammar_machine *m, uint32_t f, uint32_t d, uint32_t t) {
    if (f == FRAME_NONE) return;
    if (m->n_made >= m->g->limits.configs_max) {
        inferd_fail(&m->failure, INFERD_ETOOLONG,
                    "the text can be read in more than configs_max = %u ways at once",
                    m->g->limits.configs_max);
        return;
    }
    if (machine_hold(m, (void **)&m->made, &m->made_capacity, (size_t)m->n_made + 1,
                     sizeof *m->made))
        m->made[m->n_made++] = (config){f, d, t};
}

/* A config of a terminal: kept if bytes may follow; complete ones go on behind it. */
static void add_state_of(grammar_machine *m, uint32_t f, uint32_t d) {
    const grammar *g = m->g;
    if (f == FRAME_NONE) return;
    uint32_t term = g->term_of[d], s = d - g->first_state[term];
    const dfa *a = &g->terms[term];
    if (a->tags[s] != 0) add_todo(m, IR_NEVER, f);
    if ((g->follow[d] & GRAMMAR_GOES_ON) != 0) add_config(m, f, d, 0);
}

static void begin_term(grammar_machine *m, uint32_t f, uint32_t term) {
    add_state_of(m, f, m->g->first_state[term]);
}

static uint32_t push(grammar_machine *m, ir_node node, uint32_t pos, uint32_t count, uint32_t aux,
                     uint32_t parent) {
    return machine_frame(
        m, &(frame){.node = node, .pos = pos, .count = count, .aux = aux, .parent = parent});
}

/* What needs these frames can be written on a stack of this depth. */
static bool has_room(const grammar_machine *m, uint32_t depth, uint32_t nests) {
    return nests <= m->g->limits.stack_max && depth <= m->g->limits.stack_max - nests;
}

/* The node has a text, and it does not nest too deeply: so no way that is begun ends for want of
 * frames. */
static bool fits(const grammar_machine *m, uint32_t depth, ir_node node) {
    return m->g->shortest[node] != GRAMMAR_NO_TEXT && has_room(m, depth, m->g->nests[node]);
}

/* One more, where only the way to min and max matters. */
static uint32_t count_on(uint32_t count, uint32_t min, uint32_t max) {
    return max == IR_NO_MAX ? u32_min(count + 1, min) : count + 1;
}

/* -- objects -- */

static const object *object_of(const grammar_machine *m, const frame *f) {
    return &m->g->objects[m->g->nodes[f->node].a];
}

static uint64_t set_of(const frame *f) {
    return f->pos | (uint64_t)f->high << 32;
}

/* Required properties that are still missing. */
static uint32_t n_missing(const object *o, const frame *f) {
    if (!o->any_order) return o->n_required[f->pos];
    return (uint32_t)__builtin_popcountll(o->must & ~set_of(f));
}

static bool may_close(const object *o, const frame *f) {
    return n_missing(o, f) == 0 && f->count >= o->min;
}

/* There is a name that is not declared, with a value. */
static bool others_fit(const grammar_machine *m, const object *o, const frame *f) {
    return o->others != UINT32_MAX &&
           has_room(m, f->depth, m->g->name_nests[m->g->first_state[o->others]]);
}

static bool may_write_other(const grammar_machine *m, const object *o, const frame *f) {
    if (o->others == UINT32_MAX || f->count >= o->max) return false;
    uint32_t missing = n_missing(o, f);
    if (o->any_order ? o->max != IR_NO_MAX && f->count + 1 + missing > o->max : missing > 0)
        return false;
    return others_fit(m, o, f);
}

/* Was property p written, or passed by? */
static bool is_behind(const object *o, const frame *f, uint32_t p) {
    return o->any_order ? (set_of(f) >> p & 1) != 0 : p < f->pos;
}

/* What is required beside property p still fits, and min can still be reached. */
static bool may_write(const grammar_machine *m, const object *o, const frame *f, uint32_t p) {
    if (is_behind(o, f, p) || !fits(m, f->depth, o->values[p])) return false;
    if (!o->any_order && p > o->next_required[f->pos]) return false;
    uint64_t n = (uint64_t)f->count + 1, missing = n_missing(o, f) - o->required[p];
    if (o->max != IR_NO_MAX && n + missing > o->max) return false;
    if (n >= o->min || others_fit(m, o, f)) return true;
    for (uint32_t k = o->any_order ? 0 : p + 1; k < o->n_properties && n < o->min; k++)
        n += k != p && !is_behind(o, f, k) && fits(m, f->depth, o->values[k]);
    return n >= o->min;
}

static bool may_write_some(const grammar_machine *m, const object *o, const frame *f) {
    if (may_write_other(m, o, f)) return true;
    uint32_t last = o->any_order ? o->n_properties : o->next_required[f->pos] + 1;
    for (uint32_t p = o->any_order ? 0 : f->pos; p < o->n_properties && p < last; p++)
        if (may_write(m, o, f, p)) return true;
    return false;
}

/* Some name below this node of the trie may be written. */
static bool leads_to_name(const grammar_machine *m, const object *o, const frame *f,
                          const key_node *k) {
    for (uint32_t n = k->begin; n < k->end; n++)
        if (may_write(m, o, f, o->by_name[n])) return true;
    return false;
}

/* The object's frame in another phase. */
static uint32_t in_phase(grammar_machine *m, const frame *f, uint32_t aux) {
    frame next = *f;
    next.aux = aux;
    return machine_frame(m, &next);
}

/* Behind `{`, or behind a value: another property, or the end. */
static void next_property(grammar_machine *m, const frame *f, uint32_t term) {
    const object *o = object_of(m, f);
    if (may_close(o, f)) begin_term(m, in_phase(m, f, OBJECT_CLOSE), TERM_OBJECT_CLOSE);
    if (may_write_some(m, o, f)) begin_term(m, in_phase(m, f, OBJECT_QUOTE), term);
}

static void advance_object(grammar_machine *m, const frame *f) {
    const object *o = object_of(m, f);
    switch ((object_phase)(f->aux & 7)) {
    case OBJECT_OPEN:
        next_property(m, f, TERM_KEY_FIRST);
        break;
    case OBJECT_QUOTE: {
        uint32_t d = may_write_other(m, o, f) ? m->g->first_state[o->others] : OTHERS_OFF;
        add_config(m, in_phase(m, f, OBJECT_KEY), d, 1);
        break;
    }
    case OBJECT_KEY: // leaves by its own byte: move_key
        break;
    case OBJECT_COLON:
        add_todo(m, f->aux >> 3, in_phase(m, f, OBJECT_VALUE));
        break;
    case OBJECT_VALUE:
        next_property(m, f, TERM_KEY_NEXT);
        break;
    case OBJECT_CLOSE:
        add_todo(m, IR_NEVER, f->parent);
        break;
    }
}

/* The name of property p has ended, or of another (p = n_properties): its value comes. */
static void end_key(grammar_machine *m, const frame *f, const object *o, uint32_t p,
                    ir_node value) {
    if (!fits(m, f->depth, value)) return;
    frame next = *f;
    next.count = count_on(f->count, o->min, o->max);
    if (!o->any_order) {
        next.pos = u32_min(p + 1, o->n_properties);
    } else if (p < o->n_properties) {
        uint64_t set = set_of(f) | UINT64_C(1) << p;
        next.pos = (uint32_t)set;
        next.high = (uint32_t)(set >> 32);
    }
    begin_term(m, in_phase(m, &next, OBJECT_COLON | value << 3), TERM_COLON);
}

static const key_node *find_child(const object *o, const key_node *k, unsigned char byte) {
    for (uint32_t i = k->children; i < k->children + k->n_children; i++)
        if (o->key_nodes[i].byte == byte) return &o->key_nodes[i];
    return NULL;
}

/* A byte inside a name: down the trie, and through the automaton of other names. */
static void move_key(grammar_machine *m, const config *c, unsigned char byte) {
    const grammar *g = m->g;
    const frame f = m->frames[c->frame];
    const object *o = object_of(m, &f);
    const key_node *k = c->t != KEY_OFF ? &o->key_nodes[c->t - 1] : NULL;
    uint32_t to = OTHERS_OFF, tag = 0;
    if (c->d != OTHERS_OFF) {
        const dfa *a = &g->terms[o->others];
        uint32_t s = c->d - g->first_state[o->others];
        to = dfa_step(a, s, byte);
        to = to == DFA_DEAD ? OTHERS_OFF : to + g->first_state[o->others];
        if (to != OTHERS_OFF && !has_room(m, f.depth, g->name_nests[to])) to = OTHERS_OFF;
        tag = a->tags[s];
    }
    if (byte == '"') {
        if (k != NULL && k->property != UINT32_MAX) {
            if (may_write(m, o, &f, k->property))
                end_key(m, &f, o, k->property, o->values[k->property]);
        } else if (tag != 0 && tag - 1 < o->n_other_values) {
            end_key(m, &f, o, o->n_properties, o->other_values[tag - 1]);
        }
    }
    k = k != NULL ? find_child(o, k, byte) : NULL;
    /* Below a node with no name to write, the trie only tells declared names from others. */
    if (k != NULL && to == OTHERS_OFF && !leads_to_name(m, o, &f, k)) k = NULL;
    if (k == NULL && to == OTHERS_OFF) return;
    add_config(m, c->frame, to, k == NULL ? KEY_OFF : (uint32_t)(k - o->key_nodes) + 1);
}

/* -- the rest -- */

static void advance_repeat(grammar_machine *m, uint32_t at) {
    const frame f = m->frames[at];
    const graph_node *n = &m->g->nodes[f.node];
    uint64_t done = (uint64_t)f.count + 1;
    if (done >= n->c) add_todo(m, IR_NEVER, f.parent);
    if (n->d != IR_NO_MAX && done >= n->d) return;
    uint32_t to = push(m, f.node, 0, count_on(f.count, n->c, n->d), 0, f.parent);
    if (n->kind == NODE_CHARS)
        begin_term(m, to, TERM_CHAR);
    else
        add_todo(m, n->b, to);
}

/* The child that this frame waits for is complete. */
static void advance(grammar_machine *m, uint32_t at) {
    const frame f = m->frames[at];
    if (at == 0) {
        m->made_accepts = true;
        return;
    }
    const graph_node *n = &m->g->nodes[f.node];
    if (n->kind == NODE_SEQ) {
        ir_node child = m->g->children[n->a + f.pos];
        bool last = f.pos + 1 == n->b; // its frame would do nothing: recursion at the end is flat
        add_todo(m, child, last ? f.parent : push(m, f.node, f.pos + 1, 0, 0, f.parent));
    } else if (n->kind == NODE_OBJECT) {
        advance_object(m, &f);
    } else {
        advance_repeat(m, at);
    }
}

static void enter(grammar_machine *m, ir_node id, uint32_t f) {
    const graph_node *n = &m->g->nodes[id];
    if (!fits(m, m->frames[f].depth, id)) return;
    switch (n->kind) {
    case NODE_NEVER:
        break;
    case NODE_EMPTY:
        add_todo(m, IR_NEVER, f);
        break;
    case NODE_TERM:
        begin_term(m, f, n->a);
        break;
    case NODE_SEQ:
        add_todo(m, m->g->children[n->a], push(m, id, 1, 0, 0, f));
        break;
    case NODE_ALT:
        for (uint32_t i = 0; i < n->b; i++) add_todo(m, m->g->children[n->a + i], f);
        break;
    case NODE_REPEAT:
        if (n->c == 0) add_todo(m, IR_NEVER, f);
        add_todo(m, n->a, push(m, id, 0, 0, 0, f));
        break;
    case NODE_CHARS:
        if (n->c == 0) add_todo(m, IR_NEVER, f);
        begin_term(m, push(m, id, 0, 0, 0, f), TERM_CHAR);
        break;
    case NODE_OBJECT:
        begin_term(m, push(m, id, 0, 0, OBJECT_OPEN, f), TERM_OBJECT_OPEN);
        break;
    case NODE_REF:
        add_todo(m, m->g->rules[n->a], f);
        break;
    }
}

/* Was this done before in this closure?  Notes it. */
static bool was_entered(grammar_machine *m, const todo *t) {
    if (m->n_entered >= m->entered_size / 2) {
        uint32_t size = m->entered_size == 0 ? 128 : m->entered_size * 2;
        entered *p = calloc(size, sizeof *p);
        if (p == NULL) {
            inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
            return true;
        }
        for (uint32_t i = 0; i < m->entered_size; i++) {
            if (m->entered[i].stamp != m->stamp) continue;
            uint32_t at = (uint32_t)hash_fold(hash_step(HASH_BEGIN, m->entered[i].what));
            while (p[at & (size - 1)].stamp != 0) at++;
            p[at & (size - 1)] = m->entered[i];
        }
        free(m->entered);
        m->entered = p;
        m->entered_size = size;
    }
    uint64_t what = (uint64_t)t->node << 32 | t->frame;
    uint32_t at = (uint32_t)hash_fold(hash_step(HASH_BEGIN, what)), mask = m->entered_size - 1;
    for (; m->entered[at & mask].stamp == m->stamp; at++)
        if (m->entered[at & mask].what == what) return true;
    m->entered[at & mask] = (entered){what, m->stamp};
    m->n_entered++;
    return false;
}

static int compare_configs(const void *a, const void *b) {
    const config *x = a, *y = b;
    if (x->frame != y->frame) return x->frame < y->frame ? -1 : 1;
    if (x->d != y->d) return x->d < y->d ? -1 : 1;
    return (x->t > y->t) - (x->t < y->t);
}

void machine_sort(config *c, uint32_t *n) {
    if (*n > 16) {
        qsort(c, *n, sizeof *c, compare_configs);
    } else {
        for (uint32_t i = 1; i < *n; i++) {
            config one = c[i];
            uint32_t k = i;
            for (; k > 0 && compare_configs(&c[k - 1], &one) > 0; k--) c[k] = c[k - 1];
            c[k] = one;
        }
    }
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (n_kept == 0 || compare_configs(&c[n_kept - 1], &c[i]) != 0) c[n_kept++] = c[i];
    *n = n_kept;
}

static void begin_closure(grammar_machine *m) {
    m->n_made = m->n_todos = m->n_entered = 0;
    m->made_accepts = false;
    if (++m->stamp == 0) { // stamps of long ago would count again
        if (m->entered != NULL) memset(m->entered, 0, m->entered_size * sizeof *m->entered);
        m->stamp = 1;
    }
}

/* False: the operation has done all it may. */
static bool count_steps(grammar_machine *m, uint32_t n) {
    m->n_steps += n;
    if (m->n_steps <= m->g->limits.steps_max) return true;
    inferd_fail(&m->failure, INFERD_ETOOLONG,
                "a mask or text needs more than steps_max = %u steps of the grammar",
                m->g->limits.steps_max);
    return false;
}

/* Does all that is to do, and gives the set its number. */
static uint32_t end_closure(grammar_machine *m) {
    while (m->n_todos > 0 && m->failure.status == INFERD_OK) {
        if (!count_steps(m, 1)) break;
        todo t = m->todos[--m->n_todos];
        if (was_entered(m, &t)) continue;
        if (t.node == IR_NEVER)
            advance(m, t.frame);
        else
            enter(m, t.node, t.frame);
    }
    if (m->failure.status != INFERD_OK) return STATE_DEAD;
    machine_sort(m->made, &m->n_made);
    return machine_intern(m, m->made, m->n_made, m->made_accepts);
}

uint32_t machine_start(grammar_machine *m) {
    begin_closure(m);
    add_todo(m, m->g->root, 0);
    return end_closure(m);
}

uint32_t machine_move(grammar_machine *m, uint32_t s, uint32_t group) {
    const grammar *g = m->g;
    unsigned char byte = m->maps[m->states[s].map]->reps[group];
    begin_closure(m);
    uint32_t n = m->states[s].n_configs, first = m->states[s].configs;
    if (!count_steps(m, n)) return STATE_DEAD;
    for (uint32_t i = 0; i < n; i++) {
        config c = m->configs[first + i];
        if (c.t != 0) {
            move_key(m, &c, byte);
            continue;
        }
        uint32_t term = g->term_of[c.d], base = g->first_state[term];
        const dfa *a = &g->terms[term];
        uint32_t to = dfa_step(a, c.d - base, byte);
        if (to != DFA_DEAD) add_state_of(m, c.frame, base + to);
    }
    uint32_t to = end_closure(m);
    if (m->failure.status == INFERD_OK) m->succ[m->states[s].succ + group] = to;
    return to;
}
