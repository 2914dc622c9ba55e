/* machine.h - a grammar on a vocabulary: a pushdown automaton that makes its states as it meets
 * them.
 *
 * A way to read the text so far is a *config*: a state of an automaton, on top of a stack of frames
 * that say what comes behind it.  A machine's state is the set of all configs, mostly one to three.
 * Frames and states are hash-consed and never changed, so a stack is shared by all that grew from
 * it, equal states have equal numbers, and a copy of a position is a copy of a number.
 *
 *     config   d: state of a terminal      t: node of a key trie + 1, 0: not in a key
 *              frame: what follows when the terminal is complete
 *     frame    SEQ: pos = next child       REPEAT, CHARS: count = complete ones
 *              OBJECT: count = properties written, aux = phase and value; pos = next property, or
 *              in any order pos and high = the set of those written
 *
 * A state is closed: where the terminal of a config may be complete, the state has what may follow.
 * Bytes that its configs do not tell apart form a group (byte_map); `succ` keeps the state behind
 * each group once it was asked for.
 *
 * When frames and states take more than machine_bytes_max, all but those of live positions are
 * dropped (machine_keep_small).  A stack deeper than stack_max is a way that does not exist,
 * and what needs more frames than are left is not begun (grammar.nests).
 *
 * A closure is small, but a hostile grammar can have closures as large as its graph, with a
 * new one for each node of the vocabulary's trie: an operation ends after steps_max of their steps.
 *
 * Thread: any, under the machine's lock. */
#ifndef INFERD_GRAMMAR_MACHINE_H
#define INFERD_GRAMMAR_MACHINE_H

#include <pthread.h>

#include "grammar.h"
#include "vocab.h"

enum { STATE_DEAD = 0, STACK_MAX = 4096 }; // limits.stack_max is at most that
#define STATE_UNKNOWN UINT32_MAX
#define FRAME_NONE    UINT32_MAX // deeper than stack_max, or no memory
#define KEY_OFF       UINT32_MAX // config.t: the name is none of the declared ones
#define OTHERS_OFF    UINT32_MAX // config.d of a key: it can only be a declared one

/* The part of an object that is being written. */
typedef enum object_phase {
    OBJECT_OPEN,  // {
    OBJECT_QUOTE, // up to the quote of a name
    OBJECT_KEY,   // the name and its closing quote
    OBJECT_COLON, // aux >> 3: the value's node
    OBJECT_VALUE,
    OBJECT_CLOSE
} object_phase;

typedef struct frame {
    ir_node node;
    uint32_t pos, high, count, aux;
    uint32_t parent; // 0: the text ends
    uint32_t depth;
} frame;

typedef struct config {
    uint32_t frame, d, t;
} config;

/* Bytes by group; reps: a byte of each. */
typedef struct byte_map {
    uint8_t of[256], reps[256];
    uint32_t n_groups;
    uint32_t sources_at, n_sources; // automata and objects that it keeps apart, in map_sources
} byte_map;

typedef struct state {
    uint32_t configs, n_configs; // in machine.configs
    uint32_t map;
    uint32_t succ; // [n_groups] in machine.succ
    uint32_t hash;
    uint32_t mask; // index in machine.masks + 1
    bool accepts;
} state;

typedef struct cached_mask {
    grammar_mask *mask;
    uint32_t state;
    bool used; // since the hand of the clock passed
} cached_mask;

typedef struct todo {
    ir_node node; // to enter, or IR_NEVER: the frame's child is complete
    uint32_t frame;
} todo;

typedef struct entered {
    uint64_t what;
    uint32_t stamp;
} entered;

struct grammar_machine {
    unsigned n_refs; // atomic
    grammar *g;
    grammar_vocab *v;
    pthread_mutex_t lock;
    inferd_err failure; // of the current operation
    uint64_t n_steps;   // of it: what took part in closures

    frame *frames; // [n_frames] 0 is the bottom
    uint32_t n_frames, frames_capacity;
    uint32_t *frame_table, frame_table_size;
    config *configs;
    uint32_t n_configs, configs_capacity;
    state *states; // [n_states] 0 is DEAD
    uint32_t n_states, states_capacity;
    uint32_t *state_table, state_table_size;
    uint32_t *succ;
    uint32_t n_succ, succ_capacity;
    byte_map **maps; // [n_maps] owned: they stay where they are
    uint32_t n_maps, maps_capacity;
    uint32_t *map_sources;
    uint32_t n_map_sources, map_sources_capacity;

    uint32_t *positions; // [n_positions] states; UINT32_MAX: free.  0 is never used
    uint32_t n_positions, positions_capacity;

    size_t n_bytes_kept; // by the last flush

    cached_mask *masks; // [masks_max]
    uint32_t n_masks, masks_max, masks_hand;
    grammar_stats stats;

    /* Scratch of one operation. */
    config *made;
    uint32_t n_made, made_capacity;
    bool made_accepts;
    todo *todos;
    uint32_t n_todos, todos_capacity;
    entered *entered;
    uint32_t entered_size, n_entered, stamp;
};

/* All of these: 0 or false with m->failure set when memory or a limit is short. */

/* The state at the begin of a text. */
uint32_t machine_start(grammar_machine *m);
/* The state behind a group of bytes; STATE_DEAD: none, which is also returned after a failure. */
uint32_t machine_move(grammar_machine *m, uint32_t s, uint32_t group);
static inline uint32_t machine_next(grammar_machine *m, uint32_t s, unsigned char byte) {
    const state *q = &m->states[s];
    uint32_t group = m->maps[q->map]->of[byte], to = m->succ[q->succ + group];
    return to != STATE_UNKNOWN ? to : machine_move(m, s, group);
}
/* A state of these configs, which are closed already. */
uint32_t machine_intern(grammar_machine *m, const config *configs, uint32_t n, bool accepts);
/* In the order of states, without doubles. */
void machine_sort(config *c, uint32_t *n);
/* The frame; FRAME_NONE. */
uint32_t machine_frame(grammar_machine *m, const frame *f);
size_t machine_bytes(const grammar_machine *m);
/* Drops what no position uses, when it is time. */
bool machine_keep_small(grammar_machine *m);
/* A new map, for which maps has room; NULL: no memory. */
byte_map *machine_new_map(grammar_machine *m);
/* Room for `n` elements; false: no memory. */
bool machine_hold(grammar_machine *m, void **array, uint32_t *capacity, size_t n,
                  size_t bytes_each);

#endif
