/* transcripts.h - conversations that were answered, as text and as tokens.
 *
 * Clients of a chat send the whole conversation with every request.  What was sent before is known
 * here, part by part (tok_split: special tokens, and the stretches of text between them), as a tree
 * for each model and scope:
 *
 *     root - <|im_start|> - "user\nHi" - <|im_end|> - ... - "assistant\nHello" - <|im_end|> - ...
 *                         \ "user\nWhy?" - ...                    an answer, with its own tokens
 *
 *   transcripts_encode    worker: the tokens of a prompt.  Those of known parts are copied.
 *   transcript_computed   front: the prompt's first token was drawn, so its blocks are cached
 *   transcript_answer     front: what was drawn.  It becomes parts as the next turn will have them
 *   transcript_release    front or worker: parts that were not computed are forgotten
 *
 * Three things come of it:
 *   - The work of tokenizing a conversation does not grow with it.
 *   - An answer that comes back with its text has the tokens that were drawn, also where its text
 *     alone would give others.  So its keys and values are found in the prefix cache.  A request
 *     that wants the tokens to depend on nothing but its body (`canonical`) has those of the text.
 *   - It is known where a prompt leaves the longest one that was computed, and why.
 *
 * Whether the keys and values are still cached is the engine's knowledge, not known here.
 *
 * Memory: bytes_max in all.  The part that was not used for the longest time goes first, later
 * parts before those they follow.  A prompt for which there is no room is not kept.
 * Lock: of the tree; nothing is tokenized under it.
 * Always: a part that was computed follows parts that were. */
#ifndef INFERD_TRANSCRIPTS_H
#define INFERD_TRANSCRIPTS_H

#include "inferd/base.h"
#include "inferd/status.h"
#include "models/model.h"
#include "prefix_cause.h"

typedef struct transcripts transcripts;
typedef struct transcript transcript; // a prompt that is kept, until it is released

typedef struct transcript_match {
    prefix_cause cause;
    size_t at;    // first byte of the prompt's text that the longest earlier one has not
    size_t n_ids; // tokens that both begin with
} transcript_match;

typedef struct transcript_options {
    const model *m;
    uint64_t scope[2]; // that of gen_request.cache_scope
    bool canonical;
    bool only_counts; // nothing is kept, and nothing counted: only the tokens are wanted
    uint32_t context; // tokens; a longer prompt will be refused, and is not kept
    const char *reasoning_open, *reasoning_close; // marks of the model; "": none
} transcript_options;

/* The memory that all conversations may take; 0: nothing is kept.  NULL: no memory. */
transcripts *transcripts_create(uint64_t bytes_max);
void transcripts_destroy(transcripts *ts); // accepts NULL
void transcripts_set_bytes_max(transcripts *ts, uint64_t bytes_max);
/* The model leaves; no worker and no request uses it any more. */
void transcripts_forget(transcripts *ts, const model *m);

/* As tok_encode with the model's tokenizer, errors too.  *out: the prompt as it is kept, or NULL;
 * *match: how it begins. */
inferd_status transcripts_encode(transcripts *ts, const transcript_options *o, bytes text,
                                 const tok_span *spans, size_t n_spans, tok_ids *ids,
                                 transcript **out, transcript_match *match, inferd_err *err);
void transcript_computed(transcript *t);
/* One of the prompt's answers; behind transcript_computed. */
void transcript_answer(transcript *t, const tok_id *ids, size_t n);
void transcript_release(transcript *t); // accepts NULL

typedef struct transcripts_stats {
    uint64_t n_parts, n_bytes;        // now
    uint64_t n_resent, n_retokenised; // answers that came back; with tokens not those of the text
    uint64_t n_copied, n_tokenized;   // tokens, since the start
} transcripts_stats;
void transcripts_get_stats(transcripts *ts, transcripts_stats *out);
inferd_status transcripts_verify(transcripts *ts, inferd_err *err); // looks at every part

#endif
