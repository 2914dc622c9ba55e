/* transcript_order.h - the computed parts behind a part, in the order of their bytes.
 *
 * Of all texts in order the one that begins most like another text is a neighbour of its place.  So
 * it is found among any number of siblings with about 2 log2(n) comparisons, that together read the
 * other text little more than once: what both neighbours so far begin with is not compared again.
 *
 * A treap: in order from left to right, and each part's rank is at least that of the parts below
 * it.  Ranks come of the hash with its secret key, so clients cannot choose texts that make it
 * deep.  The links are in the parts.  Thread: under the lock of transcripts.c. */
#ifndef INFERD_TRANSCRIPT_ORDER_H
#define INFERD_TRANSCRIPT_ORDER_H

#include "transcript_tree.h"

void transcript_order_add(transcript_part *parent, transcript_part *p);
void transcript_order_remove(transcript_part *parent, transcript_part *p); // one that is there
bool transcript_order_has(const transcript_part *parent, const transcript_part *p);
/* One that begins most like `text`, of those the one that is longer than what both begin with;
 * *n_common: bytes that both begin with.  NULL: there is none. */
transcript_part *transcript_order_nearest(const transcript_part *parent, bytes text,
                                          size_t *n_common);

#endif
