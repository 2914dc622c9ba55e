/* vocab.h - the data of a tokenizer after tok_open.  Private to models/tokenizer.
 *
 * A token has a name (its form in the file), a piece (its bytes) and a kind.  `by_name` finds by
 * name.  `words` finds whole words by piece: a token that merging the same bytes would give takes
 * one lookup there and no merging; most words of a text are such tokens.  Whether a token is one is
 * determined at its first use (word_states): running the merge engine over the whole vocabulary
 * took longer than all the rest of opening it.
 *
 * vocab.c reads the common parts of both families, vocab_bpe.c and vocab_spm.c the rest;
 * vocab_merges.c the merges of files that list them.
 *
 * Thread: any; after tok_open only word_states change, and all threads write the same values. */
#ifndef INFERD_TOKENIZER_VOCAB_H
#define INFERD_TOKENIZER_VOCAB_H

#include "gguf/gguf.h"
#include "models/tokenizer.h"
#include "tokenizer/merge.h"
#include "tokenizer/pretok.h"
#include "tokenizer/specials.h"
#include "tokenizer/words.h"

enum {
    VOCAB_TOKENS_MAX = 1 << 20,
    VOCAB_TOKEN_BYTES_MAX = 2048, // the longest in published vocabularies are a few hundred
    VOCAB_SHOWN_BYTES = 65        // of a file's string in an error, with the NUL
};

typedef enum vocab_family { VOCAB_BPE, VOCAB_SPM } vocab_family;

/* token_type of a GGUF file. */
typedef enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
} token_kind;

/* Does merging the bytes of a token in `words` give that token? */
typedef enum word_state { WORD_UNSURE, WORD_WHOLE, WORD_SPLIT } word_state;

struct tokenizer {
    vocab_family family;
    size_t n_vocab;
    char *text;      // all names and pieces, end to end; owned
    bytes *names;    // [n_vocab] into text; owned
    bytes *pieces;   // [n_vocab] into text; owned
    uint8_t *kinds;  // [n_vocab] token_kind; owned
    bool *ends;      // [n_vocab] ends a generation; owned
    tok_id bos, eos; // -1: none
    bool add_bos, add_eos;

    word_table by_name;
    word_table words;
    atomic_uchar *word_states; // [n_vocab] word_state; owned
    merge_table merges;
    special_trie specials;
    bool strips_behind;   // most special tokens take the white space behind them (vocab_strips)
    tok_id byte_ids[256]; // the token of one byte; -1: none

    const pretok_name *pretok; // byte-level BPE; NULL: SentencePiece
    size_t n_merges_dropped;

    bool listed_merges; // ranks by tokenizer.ggml.merges; else by scores

    // SentencePiece.  A character without a token of its own is the symbol n_vocab + character.
    bool add_space_prefix;
    uint32_t *before_space; // [n_before_space] sorted; owned: characters that precede a space
    size_t n_before_space;  //   inside some token; after all others a space begins a new word
};

/* May merging, and the text of a request, give this token?  Control and unknown tokens are not
 * text, and <0x0A> is a name for a byte. */
static inline bool vocab_is_text(const tokenizer *t, tok_id id) {
    return t->kinds[id] != TOKEN_CONTROL && t->kinds[id] != TOKEN_UNKNOWN &&
           t->kinds[id] != TOKEN_BYTE;
}

/* Does this special token take the white space behind it? */
bool vocab_strips(const tokenizer *t, tok_id id);

/* The symbol of one character of SentencePiece text, where ' ' and U+2581 are the same. */
tok_id vocab_char_symbol(const tokenizer *t, const unsigned char *p, size_t n, uint32_t c);

/* Fill `symbols` [n] with the first symbols of a word, before merging; returns how many. */
size_t vocab_bpe_symbols(const tokenizer *t, const unsigned char *p, size_t n, tok_id *symbols);
size_t vocab_spm_symbols(const tokenizer *t, const unsigned char *p, size_t n, tok_id *symbols);

/* The start of a string from a file, in a form for an error message. */
const char *vocab_show(bytes foreign, char out[VOCAB_SHOWN_BYTES]);

/* Every tokenizer.* key is honoured or changes nothing; others are INFERD_EUNSUPPORTED. */
inferd_status vocab_keys_check(const gguf *g, inferd_err *err);

/* Fills t->merges and n_merges_dropped from tokenizer.ggml.merges, which must be there. */
inferd_status vocab_merges_read(tokenizer *t, const gguf *g, inferd_err *err);

/* The second half of tok_open.  Pieces are still empty: these functions make them, appending to
 * t->text at `room`, which has as many bytes as all names together. */
inferd_status vocab_bpe_load(tokenizer *t, const gguf *g, char *room, inferd_err *err);
inferd_status vocab_spm_load(tokenizer *t, const gguf *g, char *room, inferd_err *err);

#endif
