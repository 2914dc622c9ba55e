/* machine_flush.c - the memory of a machine: what no position uses is dropped when it is too much.
 *
 * Frames and states refer to one another by number, so a flush moves what positions use into new
 * arrays, from the bottom of each stack up. */
#include <string.h>

#include "machine.h"

size_t machine_bytes(const grammar_machine *m) {
    return (size_t)m->n_frames * sizeof *m->frames + (size_t)m->n_configs * sizeof *m->configs +
           (size_t)m->n_states * sizeof *m->states + (size_t)m->n_succ * sizeof *m->succ +
           ((size_t)m->frame_table_size + m->state_table_size) * sizeof(uint32_t) +
           (size_t)m->n_maps * sizeof **m->maps;
}

static void drop_masks(grammar_machine *m) {
    for (uint32_t i = 0; i < m->n_masks; i++) grammar_mask_release(m->masks[i].mask);
    m->n_masks = m->masks_hand = 0;
}

/* A frame of the old arrays in the new ones: its stack is copied from the bottom up. */
static uint32_t move_frame(grammar_machine *m, const frame *old, uint32_t *moved, uint32_t f) {
    uint32_t stack[STACK_MAX + 2], n = 0;
    for (; moved[f] == FRAME_NONE; f = old[f].parent) stack[n++] = f;
    uint32_t to = moved[f];
    while (n > 0 && to != FRAME_NONE) {
        frame one = old[stack[--n]];
        one.parent = to;
        to = moved[stack[n]] = machine_frame(m, &one);
    }
    return to;
}

typedef struct old_arrays {
    frame *frames;
    config *configs;
    state *states;
    uint32_t n_frames, *moved;
} old_arrays;

static bool move_positions(grammar_machine *m, const old_arrays *old) {
    for (uint32_t p = 1; p < m->n_positions; p++) {
        if (m->positions[p] == UINT32_MAX || m->positions[p] == STATE_DEAD) continue;
        const state *q = &old->states[m->positions[p]];
        uint32_t n = q->n_configs;
        if (!machine_hold(m, (void **)&m->made, &m->made_capacity, n, sizeof *m->made))
            return false;
        for (uint32_t i = 0; i < n; i++) {
            m->made[i] = old->configs[q->configs + i];
            m->made[i].frame = move_frame(m, old->frames, old->moved, m->made[i].frame);
            if (m->made[i].frame == FRAME_NONE) return false;
        }
        machine_sort(m->made, &n); // frames have new numbers
        m->positions[p] = machine_intern(m, m->made, n, q->accepts);
        if (m->positions[p] == STATE_DEAD) return false;
    }
    return true;
}

/* Empty arrays, but for frame and state 0.  False: no memory, and all is as before. */
static bool renew_arrays(grammar_machine *m) {
    frame *frames = calloc(1, sizeof *frames);
    state *states = calloc(1, sizeof *states);
    if (frames == NULL || states == NULL) {
        free(frames);
        free(states);
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    free(m->frame_table);
    free(m->state_table);
    m->frame_table = m->state_table = NULL;
    m->frame_table_size = m->state_table_size = 0;
    m->frames = frames;
    m->states = states;
    m->configs = NULL;
    m->n_frames = m->n_states = m->frames_capacity = m->states_capacity = 1;
    m->n_configs = m->n_succ = m->configs_capacity = 0;
    return true;
}

/* New arrays with what positions use.  When memory ends on the way, every position is dead. */
static bool flush(grammar_machine *m) {
    old_arrays old = {m->frames, m->configs, m->states, m->n_frames, NULL};
    old.moved = malloc((size_t)m->n_frames * sizeof *old.moved);
    if (old.moved == NULL) {
        inferd_fail(&m->failure, INFERD_ENOMEM, "no memory for the states of a grammar");
        return false;
    }
    memset(old.moved, 0xff, (size_t)m->n_frames * sizeof *old.moved);
    old.moved[0] = 0;
    if (!renew_arrays(m)) {
        free(old.moved);
        return false;
    }
    drop_masks(m);
    m->stats.n_flushes++;
    bool ok = move_positions(m, &old);
    for (uint32_t p = 1; p < m->n_positions && !ok; p++)
        if (m->positions[p] != UINT32_MAX) m->positions[p] = STATE_DEAD;
    free(old.frames);
    free(old.configs);
    free(old.states);
    free(old.moved);
    m->n_bytes_kept = machine_bytes(m);
    return ok;
}

/* Where positions alone need more than half of it, the next flush waits for twice that: each drops
 * the masks. */
bool machine_keep_small(grammar_machine *m) {
    size_t most = size_max(m->g->limits.machine_bytes_max, 2 * m->n_bytes_kept);
    return machine_bytes(m) <= most || flush(m);
}
