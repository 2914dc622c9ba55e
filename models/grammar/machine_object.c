/* machine_object.c - objects of the machine: which names may be written next, in the order of the
 * schema or in any, and what follows each part.
 *
 *     {  OPEN    _ "  QUOTE    name"  KEY    _ : _  COLON    value  VALUE    _ }  CLOSE
 *
 * A name is read twice at once: down the trie of declared names, and through the automaton of other
 * names; a name that is declared never counts as another. */
#include "closure.h"

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
           closure_has_room(m, f->depth, m->g->name_nests[m->g->first_state[o->others]]);
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
    if (is_behind(o, f, p) || !closure_fits(m, f->depth, o->values[p])) return false;
    if (!o->any_order && p > o->next_required[f->pos]) return false;
    uint64_t n = (uint64_t)f->count + 1, missing = n_missing(o, f) - o->required[p];
    if (o->max != IR_NO_MAX && n + missing > o->max) return false;
    if (n >= o->min || others_fit(m, o, f)) return true;
    for (uint32_t k = o->any_order ? 0 : p + 1; k < o->n_properties && n < o->min; k++)
        n += k != p && !is_behind(o, f, k) && closure_fits(m, f->depth, o->values[k]);
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
    if (may_close(o, f)) closure_begin_term(m, in_phase(m, f, OBJECT_CLOSE), TERM_OBJECT_CLOSE);
    if (may_write_some(m, o, f)) closure_begin_term(m, in_phase(m, f, OBJECT_QUOTE), term);
}

void object_advance(grammar_machine *m, const frame *f) {
    const object *o = object_of(m, f);
    switch ((object_phase)(f->aux & 7)) {
    case OBJECT_OPEN:
        next_property(m, f, TERM_KEY_FIRST);
        break;
    case OBJECT_QUOTE: {
        uint32_t d = may_write_other(m, o, f) ? m->g->first_state[o->others] : OTHERS_OFF;
        closure_add_config(m, in_phase(m, f, OBJECT_KEY), d, 1);
        break;
    }
    case OBJECT_KEY: // leaves by its own byte: move_key
        break;
    case OBJECT_COLON:
        closure_add_todo(m, f->aux >> 3, in_phase(m, f, OBJECT_VALUE));
        break;
    case OBJECT_VALUE:
        next_property(m, f, TERM_KEY_NEXT);
        break;
    case OBJECT_CLOSE:
        closure_add_todo(m, IR_NEVER, f->parent);
        break;
    }
}

/* The name of property p has ended, or of another (p = n_properties): its value comes. */
static void end_key(grammar_machine *m, const frame *f, const object *o, uint32_t p,
                    ir_node value) {
    if (!closure_fits(m, f->depth, value)) return;
    frame next = *f;
    next.count = closure_count_on(f->count, o->min, o->max);
    if (!o->any_order) {
        next.pos = u32_min(p + 1, o->n_properties);
    } else if (p < o->n_properties) {
        uint64_t set = set_of(f) | UINT64_C(1) << p;
        next.pos = (uint32_t)set;
        next.high = (uint32_t)(set >> 32);
    }
    closure_begin_term(m, in_phase(m, &next, OBJECT_COLON | value << 3), TERM_COLON);
}

static const key_node *find_child(const object *o, const key_node *k, unsigned char byte) {
    for (uint32_t i = k->children; i < k->children + k->n_children; i++)
        if (o->key_nodes[i].byte == byte) return &o->key_nodes[i];
    return NULL;
}

/* A byte inside a name: down the trie, and through the automaton of other names. */
void object_move_key(grammar_machine *m, const config *c, unsigned char byte) {
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
        if (to != OTHERS_OFF && !closure_has_room(m, f.depth, g->name_nests[to])) to = OTHERS_OFF;
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
    closure_add_config(m, c->frame, to, k == NULL ? KEY_OFF : (uint32_t)(k - o->key_nodes) + 1);
}
