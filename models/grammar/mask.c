/* mask.c - the mask of a state: a walk of the vocabulary's trie and of the machine together.
 *
 *     ready masks     where any plain text may follow, all plain tokens at once (vocab.h)
 *     the walk        nodes in depth-first order; a byte that no config takes skips a subtree
 *     the cache       a mask for each state, as many as mask_bytes_max allows
 *
 * A count of characters that is further from its bounds than the longest token is long does not
 * change the mask: such states share one (find_alike), or each character of a long string would
 * need a walk of its own. */
#include <string.h>

#include "machine.h"
#include "mask.h"

enum { WALK_GROWTH = 8 };

/* ---- masks ---- */

static grammar_mask *new_mask(grammar_machine *m) {
    static atomic_ullong n_made;
    size_t n_bytes = sizeof(grammar_mask) + ((size_t)m->v->n_words + 1) * sizeof(uint64_t);
    grammar_mask *mask = malloc(n_bytes);
    if (mask == NULL) {
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for a mask of %u tokens", m->v->n_vocab);
        return NULL;
    }
    mask->n_refs = 1;
    mask->n_words = m->v->n_words;
    mask->n_serial = atomic_fetch_add_explicit(&n_made, 1, memory_order_relaxed) + 1;
    return mask;
}

static grammar_mask *hold_mask(grammar_mask *mask) {
    __atomic_fetch_add(&mask->n_refs, 1, __ATOMIC_RELAXED);
    return mask;
}

void grammar_mask_release(grammar_mask *mask) {
    if (mask != NULL && __atomic_sub_fetch(&mask->n_refs, 1, __ATOMIC_ACQ_REL) == 0) free(mask);
}

/* ---- states that have the same mask ---- */

/* The least count that allows and forbids the same tokens as `count`, none longer than `longest`.
 */
static uint32_t same_count(uint32_t count, uint32_t min, uint32_t max, uint32_t longest) {
    if (count < min) return min - count > longest && min > longest ? 0 : count;
    if (max == IR_NO_MAX) return count;
    return max - count > longest && max - min > longest ? min : count;
}

static uint32_t find_alike(grammar_machine *m, uint32_t s) {
    uint32_t first = m->states[s].configs, n = m->states[s].n_configs;
    bool accepts = m->states[s].accepts, changed = false;
    if (!machine_hold(m, (void **)&m->made, &m->made_capacity, size_max(n, 1), sizeof *m->made))
        return s;
    for (uint32_t i = 0; i < n; i++) {
        config c = m->configs[first + i];
        frame f = m->frames[c.frame];
        const graph_node *k = &m->g->nodes[f.node];
        if (c.frame != 0 && k->kind == NODE_CHARS) {
            uint32_t count = same_count(f.count, k->c, k->d, m->v->all.depth);
            if (count != f.count) {
                f.count = count;
                c.frame = machine_frame(m, &f);
                if (c.frame == FRAME_NONE) return s;
                changed = true;
            }
        }
        m->made[i] = c;
    }
    if (!changed) return s;
    machine_sort(m->made, &n);
    uint32_t alike = machine_intern(m, m->made, n, accepts);
    return alike != STATE_DEAD ? alike : s;
}

/* ---- filling one ---- */

/* A walk may need many states, but not without bound. */
static bool has_room(grammar_machine *m) {
    size_t most = m->n_bytes_kept + m->g->limits.machine_bytes_max * WALK_GROWTH;
    if (machine_bytes(m) <= most) return true;
    inferd_fail(&m->failure, INFERD_ETOOLONG,
                "a mask needs more states than %d times machine_bytes_max", WALK_GROWTH);
    return false;
}

/* What a state does with bytes. */
typedef struct walk_row {
    const uint8_t *groups; // [256] of its map, which stays where it is
    uint32_t succ, state;
} walk_row;

static inline walk_row row_of(const grammar_machine *m, uint32_t s) {
    const state *q = &m->states[s];
    return (walk_row){m->maps[q->map]->of, q->succ, s};
}

/* The nodes [begin, end) of the trie, a subtree below a node that is read in state s.  One branch
 * for each node, which mostly goes the same way: nodes without a token set a bit behind the mask.
 */
static bool walk(grammar_machine *m, const vocab_node *nodes, uint32_t begin, uint32_t end,
                 uint32_t s, uint64_t *bits) {
    walk_row rows[VOCAB_PIECE_BYTES_MAX + 1]; // by depth
    const uint32_t *succ = m->succ;           // moves when states are made
    rows[0] = row_of(m, s);
    for (uint32_t i = begin; i < end;) {
        const vocab_node k = nodes[i];
        const walk_row *row = &rows[k.depth - 1];
        uint32_t group = row->groups[k.byte], to = succ[row->succ + group];
        if (to == STATE_UNKNOWN) {
            to = machine_move(m, row->state, group);
            succ = m->succ;
            if (m->failure.status != INFERD_OK || !has_room(m)) return false;
        }
        if (to == STATE_DEAD) {
            i = k.next;
            continue;
        }
        bits[k.token / 64] |= UINT64_C(1) << (k.token % 64);
        rows[k.depth] = to == row->state ? *row : row_of(m, to); // often it leads back
        i++;
    }
    return true;
}

/* If this is inside a name: whatever it becomes, its value has room on the stack. */
static bool all_names(const grammar_machine *m, const config *c) {
    const frame *f = &m->frames[c->frame];
    if (c->t == 0) return true;
    uint32_t most = m->g->objects[m->g->nodes[f->node].a].others_nest;
    return most <= m->g->limits.stack_max && f->depth <= m->g->limits.stack_max - most;
}

/* Of plain tokens, those of at most so many code points are allowed; *all: that is all that is to
 * say about plain tokens, and only others need a walk. */
static uint32_t plain_allowed(const grammar_machine *m, uint32_t s, bool *all) {
    const grammar *g = m->g;
    uint32_t most = 0;
    bool some_take_plain = false;
    *all = false;
    for (uint32_t i = 0; i < m->states[s].n_configs; i++) {
        const config *c = &m->configs[m->states[s].configs + i];
        const graph_node *k = &g->nodes[m->frames[c->frame].node];
        if (c->d != OTHERS_OFF && (g->follow[c->d] & GRAMMAR_PLAIN) != 0 && all_names(m, c)) {
            *all = true;
            return VOCAB_PLAIN_MAX;
        }
        if (c->t == 0 && c->frame != 0 && k->kind == NODE_CHARS &&
            c->d == g->first_state[TERM_CHAR]) {
            uint32_t left = k->d == IR_NO_MAX ? IR_NO_MAX : k->d - m->frames[c->frame].count;
            most = u32_max(most, u32_min(left, VOCAB_PLAIN_MAX));
        } else {
            some_take_plain |= c->t != 0 || (g->follow[c->d] & GRAMMAR_TAKES_PLAIN) != 0;
        }
    }
    /* Inside quotes nothing but the string itself reads plain text. */
    *all = most > 0 && !some_take_plain;
    return most;
}

static bool fill(grammar_machine *m, uint32_t s, grammar_mask *mask) {
    const grammar_vocab *v = m->v;
    size_t n_bytes = (size_t)v->n_words * sizeof(uint64_t);
    bool all;
    uint32_t most = plain_allowed(m, s, &all);
    if (most > 0)
        memcpy(mask->bits, v->plain[most], n_bytes);
    else
        memset(mask->bits, 0, n_bytes);
    const vocab_trie *trie = all ? &v->others : &v->all;
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t at = trie->of_byte[b];
        if (at == trie->n_nodes || machine_next(m, s, (unsigned char)b) == STATE_DEAD) {
            if (m->failure.status != INFERD_OK) return false;
            continue;
        }
        if (!walk(m, trie->nodes, at, trie->nodes[at].next, s, mask->bits)) return false;
    }
    for (uint32_t i = 0; i < v->n_doubles; i++)
        if (grammar_mask_has(mask, (tok_id)v->doubles[2 * i]))
            mask->bits[v->doubles[2 * i + 1] / 64] |= UINT64_C(1) << (v->doubles[2 * i + 1] % 64);
    if (m->states[s].accepts)
        for (uint32_t w = 0; w < v->n_words; w++) mask->bits[w] |= v->end_mask[w];
    return true;
}

/* ---- the cache ---- */

/* A place in the cache: a new one, or that of a mask not used since the hand passed it. */
static cached_mask *take_place(grammar_machine *m) {
    if (m->n_masks < m->masks_max) return &m->masks[m->n_masks++];
    for (;; m->masks_hand = (m->masks_hand + 1) % m->masks_max) {
        cached_mask *c = &m->masks[m->masks_hand];
        if (c->used) {
            c->used = false;
            continue;
        }
        m->states[c->state].mask = 0;
        grammar_mask_release(c->mask);
        m->masks_hand = (m->masks_hand + 1) % m->masks_max;
        return c;
    }
}

grammar_mask *machine_mask(grammar_machine *m, uint32_t s) {
    s = find_alike(m, s);
    if (m->states[s].mask != 0) {
        cached_mask *c = &m->masks[m->states[s].mask - 1];
        c->used = true;
        m->stats.n_masks_cached++;
        return hold_mask(c->mask);
    }
    grammar_mask *mask = new_mask(m);
    if (mask == NULL) return NULL;
    if (!fill(m, s, mask)) {
        grammar_mask_release(mask);
        return NULL;
    }
    m->stats.n_masks_made++;
    cached_mask *c = take_place(m);
    *c = (cached_mask){mask, s, true};
    m->states[s].mask = (uint32_t)(c - m->masks) + 1;
    return hold_mask(mask);
}
