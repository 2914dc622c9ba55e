/* position.c - positions of a machine: what grammar.h promises, under the machine's lock.
 *
 * A position is an index of a table of states, so that a flush can renumber the states. */
#include <string.h>

#include "inferd/hash.h"
#include "machine.h"
#include "mask.h"

/* ---- the machine ---- */

/* The map of states with many automata: every byte is a group. */
static bool make_first_map(grammar_machine *m) {
    byte_map *map = machine_new_map(m);
    if (map == NULL) return false;
    map->n_groups = 256;
    for (uint32_t b = 0; b < 256; b++) map->of[b] = map->reps[b] = (uint8_t)b;
    return true;
}

static bool init(grammar_machine *m) {
    size_t mask_bytes = sizeof(grammar_mask) + (size_t)m->v->n_words * sizeof(uint64_t);
    m->masks_max = (uint32_t)size_max(m->g->limits.mask_bytes_max / mask_bytes, 4);
    m->masks = calloc(m->masks_max, sizeof *m->masks);
    if (m->masks == NULL || !make_first_map(m) ||
        !machine_hold(m, (void **)&m->frames, &m->frames_capacity, 1, sizeof *m->frames) ||
        !machine_hold(m, (void **)&m->states, &m->states_capacity, 1, sizeof *m->states) ||
        !machine_hold(m, (void **)&m->positions, &m->positions_capacity, 1, sizeof *m->positions))
        return false;
    m->frames[0] = (frame){0};
    m->states[0] = (state){0};
    m->positions[0] = 0;
    m->n_frames = m->n_states = m->n_positions = 1;
    return true;
}

inferd_status grammar_machine_create(grammar *g, grammar_vocab *v, grammar_machine **out,
                                     inferd_err *err) {
    *out = NULL;
    if (g->limits.stack_max > STACK_MAX)
        return inferd_fail(err, INFERD_EINVAL, "stack_max is %u, at most %d is possible",
                           g->limits.stack_max, STACK_MAX);
    grammar_machine *m = calloc(1, sizeof *m);
    if (m == NULL || pthread_mutex_init(&m->lock, NULL) != 0) {
        free(m);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the machine of a grammar");
    }
    m->n_refs = 1;
    m->g = g;
    m->v = v;
    grammar_hold(g);
    grammar_vocab_hold(v);
    inferd_status status = INFERD_OK;
    if (!init(m) || machine_start(m) == STATE_DEAD) { // a limit, met at once: refused now
        status = m->failure.status != INFERD_OK ? m->failure.status : INFERD_ENOMEM;
        inferd_fail(err, status, "%s",
                    m->failure.status != INFERD_OK ? m->failure.text
                                                   : "no memory for the machine of a grammar");
        grammar_machine_release(m);
        return status;
    }
    *out = m;
    return INFERD_OK;
}

void grammar_machine_hold(grammar_machine *m) {
    __atomic_fetch_add(&m->n_refs, 1, __ATOMIC_RELAXED);
}

void grammar_machine_release(grammar_machine *m) {
    if (m == NULL || __atomic_sub_fetch(&m->n_refs, 1, __ATOMIC_ACQ_REL) != 0) return;
    for (uint32_t i = 0; i < m->n_masks; i++) grammar_mask_release(m->masks[i].mask);
    free(m->masks);
    free(m->frames);
    free(m->frame_table);
    free(m->configs);
    free(m->states);
    free(m->state_table);
    free(m->succ);
    for (uint32_t i = 0; i < m->n_maps; i++) free(m->maps[i]);
    free(m->maps);
    free(m->map_sources);
    free(m->positions);
    free(m->made);
    free(m->todos);
    free(m->entered);
    pthread_mutex_destroy(&m->lock);
    grammar_release(m->g);
    grammar_vocab_release(m->v);
    free(m);
}

static void lock(grammar_machine *m) {
    pthread_mutex_lock(&m->lock);
    m->failure = (inferd_err){0};
    m->n_steps = 0;
}

static void unlock(grammar_machine *m) {
    pthread_mutex_unlock(&m->lock);
}

/* The lock is held. */
static size_t all_bytes(const grammar_machine *m) {
    return machine_bytes(m) + m->g->n_bytes +
           m->n_masks * (sizeof(grammar_mask) + m->v->n_words * sizeof(uint64_t));
}

void grammar_machine_stats(grammar_machine *m, grammar_stats *out) {
    lock(m);
    *out = m->stats;
    out->n_states = m->n_states;
    out->n_frames = m->n_frames;
    out->n_bytes = all_bytes(m);
    unlock(m);
}

bool grammar_machine_bytes(grammar_machine *m, size_t *out) {
    if (pthread_mutex_trylock(&m->lock) != 0) return false;
    *out = all_bytes(m);
    unlock(m);
    return true;
}

bool grammar_machine_is_shared(const grammar_machine *m) {
    return __atomic_load_n(&m->n_refs, __ATOMIC_ACQUIRE) > 1;
}

/* ---- positions ---- */

/* A new position in state s; 0: no memory. */
static grammar_pos place(grammar_machine *m, uint32_t s) {
    for (uint32_t p = 1; p < m->n_positions; p++)
        if (m->positions[p] == UINT32_MAX) {
            m->positions[p] = s;
            return p;
        }
    if (!machine_hold(m, (void **)&m->positions, &m->positions_capacity, (size_t)m->n_positions + 1,
                      sizeof *m->positions))
        return 0;
    m->positions[m->n_positions] = s;
    return m->n_positions++;
}

grammar_pos grammar_start(grammar_machine *m) {
    lock(m);
    uint32_t s = machine_keep_small(m) ? machine_start(m) : STATE_DEAD;
    grammar_pos p = s != STATE_DEAD ? place(m, s) : 0;
    unlock(m);
    return p;
}

grammar_pos grammar_copy(grammar_machine *m, grammar_pos p) {
    lock(m);
    bool is_one = p != 0 && p < m->n_positions && m->positions[p] != UINT32_MAX;
    grammar_pos copy = is_one ? place(m, m->positions[p]) : 0;
    unlock(m);
    return copy;
}

void grammar_drop(grammar_machine *m, grammar_pos p) {
    if (p == 0) return;
    lock(m);
    if (p < m->n_positions) m->positions[p] = UINT32_MAX;
    unlock(m);
}

/* The state after `text`; STATE_DEAD: not accepted, or a failure. */
static uint32_t read_text(grammar_machine *m, uint32_t s, bytes text) {
    for (size_t i = 0; i < text.n && s != STATE_DEAD; i++)
        s = machine_next(m, s, (unsigned char)text.p[i]);
    return s;
}

static bool tell(const grammar_machine *m, inferd_err *err, const char *what) {
    if (m->failure.status == INFERD_OK)
        inferd_fail(err, INFERD_EINVAL, "%s", what);
    else if (err != NULL)
        *err = m->failure;
    return false;
}

bool grammar_accept_bytes(grammar_machine *m, grammar_pos p, bytes text, inferd_err *err) {
    lock(m);
    bool ok = false;
    if (machine_keep_small(m)) {
        uint32_t s = read_text(m, m->positions[p], text);
        ok = s != STATE_DEAD && m->failure.status == INFERD_OK;
        if (ok) m->positions[p] = s;
    }
    bool lost = m->positions[p] == STATE_DEAD;
    if (!ok)
        tell(m, err,
             lost ? "the grammar has lost this position"
                  : "the grammar does not allow this text here");
    unlock(m);
    return ok;
}

bool grammar_accept(grammar_machine *m, grammar_pos p, tok_id id, inferd_err *err) {
    const grammar_vocab *v = m->v;
    if ((uint32_t)id < v->n_vocab && (v->end_mask[id / 64] >> (id % 64) & 1) != 0) {
        if (grammar_may_end(m, p)) return true;
        inferd_fail(err, INFERD_EINVAL, "the grammar does not allow the text to end here");
        return false;
    }
    bytes piece = grammar_vocab_piece(v, id);
    if (piece.n > 0 && piece.n <= VOCAB_PIECE_BYTES_MAX)
        return grammar_accept_bytes(m, p, piece, err);
    inferd_fail(err, INFERD_EINVAL, "token %d has no text that a grammar could allow", id);
    return false;
}

bool grammar_may_end(grammar_machine *m, grammar_pos p) {
    lock(m);
    bool may = m->states[m->positions[p]].accepts;
    unlock(m);
    return may;
}

bool grammar_must_end(grammar_machine *m, grammar_pos p) {
    lock(m);
    const state *q = &m->states[m->positions[p]];
    bool must = q->accepts && q->n_configs == 0;
    unlock(m);
    return must;
}

/* ---- reasoning ---- */

/* Is the config in reasoning, or in its closing mark? */
static bool reasons(const grammar *g, const config *c) {
    if (c->t != 0) return false;
    uint32_t term = g->term_of[c->d];
    return term == g->reasoning || term == g->closing;
}

static bool any_reasons(const grammar_machine *m, uint32_t s) {
    const state *q = &m->states[s];
    for (uint32_t i = 0; i < q->n_configs && m->g->reasoning != UINT32_MAX; i++)
        if (reasons(m->g, &m->configs[q->configs + i])) return true;
    return false;
}

bool grammar_in_reasoning(grammar_machine *m, grammar_pos p) {
    lock(m);
    bool in = any_reasons(m, m->positions[p]);
    unlock(m);
    return in;
}

/* The configs that reason, in the terminal of the closing; STATE_DEAD: a failure. */
static uint32_t close_reasoning(grammar_machine *m, uint32_t s) {
    const grammar *g = m->g;
    uint32_t first = m->states[s].configs, n_all = m->states[s].n_configs, n = 0;
    uint32_t from = g->first_state[g->reasoning], to = g->first_state[g->closing];
    if (!machine_hold(m, (void **)&m->made, &m->made_capacity, n_all, sizeof *m->made))
        return STATE_DEAD;
    for (uint32_t i = 0; i < n_all; i++) {
        config c = m->configs[first + i];
        if (!reasons(g, &c)) continue; // another reading of the text so far
        if (g->term_of[c.d] == g->reasoning) c.d = c.d - from + to;
        m->made[n++] = c;
    }
    machine_sort(m->made, &n);
    return machine_intern(m, m->made, n, false);
}

bool grammar_close_reasoning(grammar_machine *m, grammar_pos p, inferd_err *err) {
    lock(m);
    bool ok = machine_keep_small(m);
    if (ok && any_reasons(m, m->positions[p])) {
        uint32_t s = close_reasoning(m, m->positions[p]);
        ok = s != STATE_DEAD;
        if (ok) m->positions[p] = s;
    }
    if (!ok) tell(m, err, "the grammar has lost this position");
    unlock(m);
    return ok;
}

/* ---- what may follow ---- */

grammar_mask *grammar_mask_get(grammar_machine *m, grammar_pos p, inferd_err *err) {
    grammar_mask *mask = NULL;
    lock(m);
    if (machine_keep_small(m) && m->positions[p] != STATE_DEAD)
        mask = machine_mask(m, m->positions[p]);
    if (mask == NULL) tell(m, err, "the grammar has lost this position");
    unlock(m);
    return mask;
}

/* The only byte that may come next; -1: there are several, or none. */
static int only_byte(grammar_machine *m, uint32_t s) {
    int only = -1;
    if (m->states[s].accepts) return -1;
    for (int b = 0; b < 256; b++) {
        if (machine_next(m, s, (unsigned char)b) == STATE_DEAD) continue;
        if (only >= 0) return -1;
        only = b;
    }
    return m->failure.status == INFERD_OK ? only : -1;
}

void grammar_forced(grammar_machine *m, grammar_pos p, size_t n_max, buf *out) {
    lock(m);
    uint32_t s = machine_keep_small(m) ? m->positions[p] : STATE_DEAD;
    for (size_t n = 0; n < n_max && s != STATE_DEAD; n++) {
        int b = only_byte(m, s);
        if (b < 0) break;
        buf_add_char(out, (char)b);
        s = machine_next(m, s, (unsigned char)b);
    }
    unlock(m);
}
