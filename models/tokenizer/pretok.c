/* pretok.c - the steps of each pre-tokenizer, and the engine that runs them.
 *
 * Steps nest instead of making lists: each match and each gap goes to the next step at once, and
 * the output of the last one is a word.  The depth is the number of steps, and each step reads the
 * text once. */
#include "tokenizer/pretok.h"

#include "tokenizer/pretok_step.h"

enum { STEPS_MAX = 7 }; // the last is empty

#define WORD(f)                                                                                    \
    { .word = (f) }
#define FIND(f)                                                                                    \
    { .find = (f) }
#define SPLIT(f)                                                                                   \
    { .split = (f) }

static const pretok_step steps_of_kind[PRETOK_KINDS][STEPS_MAX] = {
    [PRETOK_GPT2] = {WORD(pretok_gpt2_word)},
    [PRETOK_SMOLLM] = {FIND(pretok_find_number), WORD(pretok_gpt2_word)},
    [PRETOK_LLAMA3] = {WORD(pretok_llama3_word)},
    [PRETOK_QWEN2] = {WORD(pretok_qwen2_word)},
    [PRETOK_QWEN35] = {WORD(pretok_qwen35_word)},
    [PRETOK_SEED_CODER] = {WORD(pretok_seed_coder_word)},
    [PRETOK_UFAKZEKA] = {WORD(pretok_plain_qwen2_word)},
    [PRETOK_MINICPM5] = {FIND(pretok_find_three_numbers), WORD(pretok_any_digits_word)},
    [PRETOK_LAGUNA] = {FIND(pretok_find_newlines), WORD(pretok_qwen2_word)},
    [PRETOK_JAIS2] = {WORD(pretok_llama3_word), SPLIT(pretok_split_space_runs)},
    [PRETOK_EXAONE_MOE] = {WORD(pretok_exaone_moe_word)},
    [PRETOK_TEKKEN] = {WORD(pretok_tekken_word)},
    [PRETOK_O200K] = {WORD(pretok_o200k_word)},
    [PRETOK_TINY_AYA] = {SPLIT(pretok_split_whole_numbers), WORD(pretok_o200k_word)},
    [PRETOK_YOUTU] = {FIND(pretok_find_youtu_runs), WORD(pretok_o200k_digit_word)},
    [PRETOK_KIMI_K2] = {WORD(pretok_kimi_word)},
    [PRETOK_DEEPSEEK_LLM] = {FIND(pretok_find_newline), FIND(pretok_find_cased_letters),
                             FIND(pretok_find_listed_punctuation), FIND(pretok_find_last_spaces),
                             FIND(pretok_find_east_asian), FIND(pretok_find_number)},
    [PRETOK_DEEPSEEK_CODER] = {FIND(pretok_find_newline), FIND(pretok_find_letters),
                               FIND(pretok_find_punctuation), FIND(pretok_find_east_asian),
                               FIND(pretok_find_number)},
    [PRETOK_DEEPSEEK_V3] = {FIND(pretok_find_three_numbers), FIND(pretok_find_han_or_kana),
                            WORD(pretok_deepseek_v3_word)},
    [PRETOK_SPARK] = {FIND(pretok_find_number), FIND(pretok_find_han_or_kana),
                      WORD(pretok_spark_word)},
    [PRETOK_FALCON] = {FIND(pretok_find_falcon_signs), WORD(pretok_gpt2_word),
                       FIND(pretok_find_three_ascii_digits)},
    [PRETOK_DEFAULT] = {FIND(pretok_find_default_signs), WORD(pretok_gpt2_word),
                        FIND(pretok_find_numbers), FIND(pretok_find_three_ascii_digits)},
    [PRETOK_SUPERBPE] = {FIND(pretok_find_numbers), SPLIT(pretok_split_thousands)},
    [PRETOK_BLOOM] = {FIND(pretok_find_bloom_words)},
    [PRETOK_VIKING] = {FIND(pretok_find_bloom_words), FIND(pretok_find_number)},
};

static bool is_last(const pretok_step *step) {
    return step->word == NULL && step->find == NULL && step->split == NULL;
}

static bool run_words(const pretok_step *step, cursor p, cursor end, pretok_sink out) {
    bool last = is_last(step + 1);
    while (p < end) {
        cursor to = step->word(p, end);
        bool ok = last ? out.word(out.ctx, p, (size_t)(to - p)) : pretok_run(step + 1, p, to, out);
        if (!ok) return false;
        p = to;
    }
    return true;
}

/* [p, from) and [from, to) are the first gap and the first match. */
static bool run_matches(const pretok_step *step, cursor p, cursor from, cursor to, cursor end,
                        pretok_sink out) {
    for (;;) {
        if (p < from && !pretok_run(step + 1, p, from, out)) return false;
        if (!pretok_run(step + 1, from, to, out)) return false;
        p = to;
        if (p == end) return true;
        from = step->find(p, end, &to);
        if (from == NULL) return pretok_run(step + 1, p, end, out);
    }
}

bool pretok_run(const pretok_step *step, cursor p, cursor end, pretok_sink out) {
    if (p == end) return true;
    for (; step->find != NULL; step++) { // a piece without a match goes on as it is
        cursor to, from = step->find(p, end, &to);
        if (from != NULL) return run_matches(step, p, from, to, end, out);
    }
    if (step->word != NULL) return run_words(step, p, end, out);
    if (step->split != NULL) return step->split(step + 1, p, end, out);
    return out.word(out.ctx, p, (size_t)(end - p));
}

bool pretok_split(pretok_kind kind, const unsigned char *p, size_t n, pretok_word_fn word,
                  void *ctx) {
    return pretok_run(steps_of_kind[kind], p, p + n, (pretok_sink){word, ctx});
}
