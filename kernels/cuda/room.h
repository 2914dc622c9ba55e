/* room.h - the workspace of steps: sizes of their buffers, one piece that holds them all (the
 * area), rotary tables, and the reservations of models that keep them large enough.
 *
 * A model reserves the workspace that its steps may need when it is opened (cuda_reserve).  So
 * nothing grows while serving, graphs keep their addresses, and no request fails for lack of
 * workspace.  The area is as large as the largest need of all models; partials of attention take
 * up to attention_partials_bytes of the memory that is free then.
 *
 * Always true: c->room, c->block, c->attn_workspace and the pointers into the area belong together;
 * without an area all are zero.
 *
 * Thread: engine. */
#ifndef INFERD_CUDA_ROOM_H
#define INFERD_CUDA_ROOM_H

#include "backend_ops.h"
#include "cuda/layout.h"

struct cuda_backend;

enum { CUDA_DRAW_LIST_BYTES = 64 << 10 }; // of lists, for all rows of a draw plan

/* Bytes of a draw plan of n_rows rows: lists, and a mask for each row. */
size_t cuda_draw_bytes(uint32_t n_rows, uint32_t n_vocab);

/* Sizes of the area's parts. */
typedef struct cuda_room {
    uint32_t rows, tables;           // of the step block
    uint32_t draws, stride, vocab;   // rows that are drawn, floats from one to the next
    size_t list_bytes;               // of a draw plan
    uint32_t counters;               // of attention
    uint32_t expert_slots;           // rows, times the experts of each
    size_t partials_least, partials; // bytes: the least that attention needs; the most it can use
} cuda_room;

/* The arrays of a step in one block: where each begins, in bytes, for some capacity. */
typedef struct step_block {
    uint32_t rows_max, tables_max; // capacity: rows (= sequences, logits), entries of block tables
    size_t tokens, pending, positions, row_seq, seqs, logit_rows, decode_rows, tiles, tables, bytes;
} step_block;
step_block step_block_of(uint32_t rows, uint32_t tables);

/* Cosines, sines and growths of positions, in the workspace. */
typedef struct cuda_rope_table {
    float *data;                    // device memory [n_positions, rope_table_stride]
    float *inv_freq;                // [n_pairs] its frequencies; owned
    rope_spec spec;                 // inv_freq is the copy above
    uint32_t n_positions, n_filled; // capacity; filled so far
    uint32_t n_users;               // reservations; 0: taken by the first step that needed it
} cuda_rope_table;

/* Set the layout of the step block for a step of so many rows, at most its capacity.  The arrays of
 * a step that may be a graph lie closer together, because all of the block before its tables is
 * copied: 18 KB, instead of 144 KB if steps of 2,048 rows are possible.  Each of the two layouts is
 * the same for all its steps. */
void cuda_block_for(struct cuda_backend *c, uint32_t rows);
/* Make the area at least this large.  False: failed, it is unchanged. */
bool cuda_room_hold(struct cuda_backend *c, const cuda_room *want);
/* Make room for a draw plan of n bytes on the device.  False: there is none; no failure. */
bool cuda_room_lists(struct cuda_backend *c, size_t n);
/* Reduce the partials to the least possible; false: they are, and nothing changed. */
bool cuda_room_shrink(struct cuda_backend *c);
void cuda_room_close(struct cuda_backend *c); // frees the area
/* An embedding that changes nothing needs no table. */
static inline bool rope_has_table(const rope_spec *r) {
    return r->n_pairs > 0 || r->growth != 0;
}
/* Extend the tables of the program's rotary embeddings to the step's positions. */
bool cuda_room_ropes(struct cuda_backend *c);
void cuda_ropes_close(struct cuda_backend *c);

inferd_status cuda_reserve(backend *be, const be_needs *n, be_reservation **out, inferd_err *err);
void cuda_release(backend *be, be_reservation *r);

#endif
