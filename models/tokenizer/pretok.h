/* pretok.h - splitting text into words, which byte-level BPE then merges one by one.
 *
 * Published tokenizers describe this by regular expressions.  Here they are scanners that try the
 * same alternatives in the same order, without backtracking: each character is read a bounded
 * number of times, so the cost is linear in any text.
 *
 * Thread: any. */
#ifndef INFERD_TOKENIZER_PRETOK_H
#define INFERD_TOKENIZER_PRETOK_H

#include "inferd/base.h"

typedef enum pretok_kind {
    PRETOK_GPT2,
    PRETOK_SMOLLM, // every number alone, then gpt-2; also starcoder
    PRETOK_LLAMA3, // numbers in groups of three
    PRETOK_QWEN2,  // llama 3 with every number alone
    PRETOK_TEKKEN, // Mistral Nemo: words end where capitals begin
    PRETOK_DEEPSEEK_LLM,
    PRETOK_DEEPSEEK_CODER
} pretok_kind;

/* Gets the words in order; together they are the text.  False: stop. */
typedef bool (*pretok_word_fn)(void *ctx, const unsigned char *word, size_t n);

/* Well-formed UTF-8.  False: `word` returned false. */
bool pretok_split(pretok_kind kind, const unsigned char *p, size_t n, pretok_word_fn word,
                  void *ctx);

#endif
