/* pretok.h - splitting text into words, which byte-level BPE then merges one by one.
 *
 * Published tokenizers describe this by regular expressions.  Here they are scanners that try the
 * same alternatives in the same order, without backtracking: each character is read a bounded
 * number of times, so the cost is linear in any text.  Classes of characters are those of the
 * engine that these tokenizers were trained with (unicode.h).
 *
 * Files name their pre-tokenizer (tokenizer.ggml.pre).  pretok_names.c lists the names that are
 * known; docs/models.md says how each of them was checked.
 *
 * Thread: any. */
#ifndef INFERD_TOKENIZER_PRETOK_H
#define INFERD_TOKENIZER_PRETOK_H

#include "inferd/base.h"

typedef enum pretok_kind {
    PRETOK_GPT2,
    PRETOK_SMOLLM,     // every number alone, then gpt-2
    PRETOK_LLAMA3,     // numbers in groups of three
    PRETOK_QWEN2,      // llama 3 with every number alone
    PRETOK_QWEN35,     // qwen 2 with marks among the letters
    PRETOK_SEED_CODER, // qwen 2; signs leave the line breaks behind them
    PRETOK_UFAKZEKA,   // qwen 2 without contractions
    PRETOK_MINICPM5,   // three numbers alone, then llama 3
    PRETOK_LAGUNA,     // line feeds alone, then qwen 2
    PRETOK_JAIS2,      // llama 3; runs of spaces in powers of two
    PRETOK_EXAONE_MOE, // words with single spaces between them
    PRETOK_TEKKEN,     // words end where capitals begin
    PRETOK_O200K,      // tekken with contractions, and numbers in groups of three
    PRETOK_TINY_AYA,   // numbers in groups of three from the right, then o200k
    PRETOK_YOUTU,      // runs of East Asian scripts alone, then o200k with every number alone
    PRETOK_KIMI_K2,    // Han alone, else o200k
    PRETOK_DEEPSEEK_LLM,
    PRETOK_DEEPSEEK_CODER,
    PRETOK_DEEPSEEK_V3,
    PRETOK_SPARK,
    PRETOK_FALCON,
    PRETOK_DEFAULT,  // of llama.cpp, for files that say so
    PRETOK_SUPERBPE, // no words: only numbers are cut out
    PRETOK_BLOOM,    // words up to commas and full stops
    PRETOK_VIKING,   // bloom with every number alone
    PRETOK_KINDS
} pretok_kind;

/* What a name of a file means. */
typedef struct pretok_name {
    const char *name;
    pretok_kind kind;
    bool nfc;           // the text is composed first
    bool ignore_merges; // a word that is a token is that token
    bool add_bos;       // unless the file says otherwise
} pretok_name;

/* NULL: not a known name. */
const pretok_name *pretok_find(bytes name);
/* Known names with commas between them: as many as fit, and how many more there are. */
void pretok_list(char *out, size_t n);
size_t pretok_n_names(void);
const pretok_name *pretok_name_at(size_t i);

/* Gets the words in order; together they are the text.  False: stop. */
typedef bool (*pretok_word_fn)(void *ctx, const unsigned char *word, size_t n);

/* Well-formed UTF-8.  False: `word` returned false. */
bool pretok_split(pretok_kind kind, const unsigned char *p, size_t n, pretok_word_fn word,
                  void *ctx);

#endif
