/* pretok_stages.h - pre-tokenizers that are a sequence of splits, each applied to all pieces of the
 * one before: to matches and to the gaps between them.  Private to pretok. */
#ifndef INFERD_TOKENIZER_PRETOK_STAGES_H
#define INFERD_TOKENIZER_PRETOK_STAGES_H

#include "tokenizer/pretok.h"

bool pretok_split_deepseek_llm(const unsigned char *p, size_t n, pretok_word_fn word, void *ctx);
bool pretok_split_deepseek_coder(const unsigned char *p, size_t n, pretok_word_fn word, void *ctx);

#endif
