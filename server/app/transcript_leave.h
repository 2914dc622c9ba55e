/* transcript_leave.h - where a prompt leaves the longest earlier one that was computed, and why.
 *
 *   earlier  ...<|im_start|>assistant\n<think>\nWell ...</think>\n\n<tool_call>...
 *   prompt   ...<|im_start|>assistant\n<tool_call>...
 *                                      ^ both begin a mark here; the first other byte is behind it
 *
 * Thread: under the lock of transcripts.c. */
#ifndef INFERD_TRANSCRIPT_LEAVE_H
#define INFERD_TRANSCRIPT_LEAVE_H

#include "transcript_tree.h"
#include "transcripts.h"

/* Of siblings that begin with equally many bytes of a prompt, the one used last is looked for among
 * so many. */
enum { TRANSCRIPT_RECENT_MAX = 16 };

/* `last` is computed and the prompt's text before `from` leads to it.  Sets m->at and m->cause;
 * the part where the prompt has another, or NULL: none is computed there. */
transcript_part *transcript_leave(const transcript_part *last, const transcript_options *o,
                                  bytes text, size_t from, transcript_match *m);

#endif
