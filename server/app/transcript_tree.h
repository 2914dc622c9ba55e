/* transcript_tree.h - the parts of transcripts.h: finding, adding, forgetting.
 *
 * A part is found by its parent and its content; the hash has a secret key, so clients cannot
 * choose texts that collide.
 *
 * Only a part that nothing follows can go.  These ends are in a list, the most recently used first;
 * a part whose last child goes is the next to go.  Ends that are pinned move to the front when a
 * victim is looked for. Thread: under the lock of transcripts.c; text, ids and parent of a pinned
 * part never change and may be read without. */
#ifndef INFERD_TRANSCRIPT_TREE_H
#define INFERD_TRANSCRIPT_TREE_H

#include "inferd/base.h"
#include "inferd/list.h"
#include "inferd/status.h"
#include "models/model.h"

typedef struct transcript_part {
    list_node used;                   // in transcript_tree.ends, while nothing follows it
    list_node sibling;                // in its parent's children
    list_node children;               // most recently used first
    struct transcript_part *parent;   // NULL: a root
    struct transcript_part *next;     // in its bucket
    struct transcript_part *top;      // of the order of the computed children (transcript_order.h)
    struct transcript_part *below[2]; // in the order of its computed siblings
    const model *m;                   // borrowed
    uint64_t hash;
    char *text;  // [n_bytes] a root: the scope; owned
    tok_id *ids; // [n_ids] owned
    size_t n_bytes, n_ids;
    tok_id special; // -1: a stretch of text
    uint32_t n_pins;
    bool computed; // a sequence has its keys and values, or had
    bool drawn;    // of an answer
    bool compared; // its ids with those of its text; counted then
    bool differs;  // they are not those
} transcript_part;

typedef struct transcript_tree {
    unsigned char secret[16];
    list_node ends;
    transcript_part **buckets; // [n_buckets, a power of two] owned
    size_t n_buckets, n_parts;
    uint64_t n_bytes, bytes_max;
} transcript_tree;

bool transcript_tree_init(transcript_tree *t, uint64_t bytes_max); // false: no memory
void transcript_tree_deinit(transcript_tree *t);
/* The part with this content behind `parent`; NULL: there is none.  A root: parent NULL, of `m`. */
transcript_part *transcript_tree_find(const transcript_tree *t, const transcript_part *parent,
                                      const model *m, bytes text, tok_id special);
/* One that is not there yet; copies text and ids.  NULL: no room, no memory. */
transcript_part *transcript_tree_add(transcript_tree *t, transcript_part *parent, const model *m,
                                     bytes text, tok_id special, const tok_id *ids, size_t n_ids);
void transcript_tree_compute(transcript_part *p); // its parent is computed, or will be at once
/* The path from `end` to its root was used: it is the first among its siblings. */
void transcript_tree_touch(transcript_tree *t, transcript_part *end);
void transcript_tree_drop(transcript_tree *t, transcript_part *p); // without children and pins
/* Drops all parts of the model; none is pinned.  NULL: of all models. */
void transcript_tree_forget(transcript_tree *t, const model *m);
/* Drops `end` and what it follows, up to a part that is computed, pinned or has other children. */
void transcript_tree_trim(transcript_tree *t, transcript_part *end);
/* Drops what was not used for the longest time until n_bytes fit.  False: they do not. */
bool transcript_tree_make_room(transcript_tree *t, uint64_t n_bytes);
inferd_status transcript_tree_verify(const transcript_tree *t, inferd_err *err);

#endif
