/* tokenizer.h - text to token ids and back, by the model's own vocabulary.
 *
 * Read from a GGUF file's metadata.  Byte-level BPE ("gpt2") with the pre-tokenizers that
 * docs/models.md lists, and SentencePiece BPE with byte fallback ("llama", and "gemma4" with listed
 * merges).  Anything else is an error, never a guess.
 *
 * Text comes with spans that say where special tokens may be matched: template text yes, text of a
 * request no, so that a request cannot forge messages of another role.
 *
 * Thread: any, read-only after tok_open; a tok_stream belongs to its stream. */
#ifndef INFERD_TOKENIZER_H
#define INFERD_TOKENIZER_H

#include <stdatomic.h>

#include "inferd/base.h"
#include "inferd/buf.h"
#include "inferd/status.h"

typedef struct gguf gguf;
typedef struct tokenizer tokenizer;

/* The next `n` bytes of a text.  `specials`: control tokens written in them are matched. */
typedef struct tok_span {
    size_t n;
    bool specials;
} tok_span;

typedef struct tok_ids {
    tok_id *ids; // [n] owned
    size_t n, capacity;
} tok_ids;

typedef struct tok_encode_options {
    bool add_special;          // BOS/EOS by the file's add_bos_token / add_eos_token
    size_t ids_max;            // more ids than this is INFERD_ETOOLONG; 0 = no bound
    const atomic_bool *cancel; // checked every 64 KiB of text; may be NULL
} tok_encode_options;

inferd_status tok_open(const gguf *g, tokenizer **out, inferd_err *err);
void tok_close(tokenizer *t); // accepts NULL

/* Append the ids of `text` to `out`.  `spans` cover the text in order; n_spans = 0 means one span
 * without specials; `options` may be NULL.  Invalid UTF-8 is an INFERD_EINVAL that names the byte
 * offset.  On failure `out` is unchanged.  A byte without a token in a byte-level vocabulary
 * gives no id, as in the tokenizer the model was trained with. */
inferd_status tok_encode(const tokenizer *t, bytes text, const tok_span *spans, size_t n_spans,
                         const tok_encode_options *options, tok_ids *out, inferd_err *err);
void tok_ids_deinit(tok_ids *ids);
bool tok_ids_push(tok_ids *ids, tok_id id); // false: no memory

/* A text is tokenized in parts: special tokens, some with the white space behind them, and the
 * stretches of text between them.  The ids of a stretch depend on nothing but its bytes. */
typedef struct tok_part {
    size_t n;       // bytes
    tok_id special; // -1: a stretch
} tok_part;

typedef struct tok_parts {
    tok_part *parts; // [n] in the order of the text, which they cover; owned
    size_t n, capacity;
} tok_parts;

/* Appends the parts of a text, as tok_encode finds them; errors as there.  On failure `out` has
 * some of them. */
inferd_status tok_split(const tokenizer *t, bytes text, const tok_span *spans, size_t n_spans,
                        tok_parts *out, inferd_err *err);
void tok_parts_deinit(tok_parts *p);

size_t tok_n_vocab(const tokenizer *t);
size_t tok_n_merges_dropped(const tokenizer *t);    // merges of the file that name no usable tokens
tok_id tok_bos(const tokenizer *t);                 // -1: none
tok_id tok_eos(const tokenizer *t);                 // -1: none
bool tok_is_end(const tokenizer *t, tok_id id);     // ends a generation (EOS, end of turn, ...)
bool tok_is_control(const tokenizer *t, tok_id id); // control or unknown: not shown by default
bool tok_is_special(const tokenizer *t, tok_id id); // a part of its own: control, or user-defined
/* The exact bytes of a token, without the first-space rule of SentencePiece; may be part of a code
 * point.  Borrowed. */
bytes tok_piece(const tokenizer *t, tok_id id);
/* The text of a token as the vocabulary file writes it ("Ġthe", "▁the", "<|im_end|>"). Borrowed. */
bytes tok_name(const tokenizer *t, tok_id id);
tok_id tok_find(const tokenizer *t, bytes name); // by tok_name; -1: none

/* Ids to text, one at a time: bytes are written as soon as their code point is complete, so no part
 * of a code point is written.  Bytes that can never become UTF-8 become U+FFFD (one per
 * maximal subpart); incomplete ones are kept until tok_stream_finish at the latest. */
typedef struct tok_stream {
    const tokenizer *tok;
    unsigned char pending[4]; // [n_pending] start of an unfinished code point
    uint8_t n_pending;
    bool at_start;      // SentencePiece: the first space of the text is dropped
    bool skip_specials; // control tokens give no text
} tok_stream;

void tok_stream_init(tok_stream *s, const tokenizer *t, bool skip_specials);
/* Returns how many of the bytes written now belong to earlier tokens: the U+FFFD of a code
 * point that they began and that this token does not continue.  The text of this token begins
 * behind them. */
size_t tok_stream_push(tok_stream *s, tok_id id, buf *out);
void tok_stream_finish(tok_stream *s, buf *out);

#endif
