/* pretok_names.c - the names of tokenizer.ggml.pre, as converters write them.
 *
 * A name stands here when the expression of its tokenizer is known.  Composition (NFC) and lookup
 * before merging (ignore_merges) are not in the expression but in the same published tokenizer;
 * what is not known of one is off. */
#include <stdio.h>
#include <string.h>

#include "tokenizer/pretok.h"

enum { NFC = 1, WHOLE = 2, BOS = 4 }; // pretok_name.nfc, .ignore_merges, .add_bos

#define NAME(name, kind, flags)                                                                    \
    { name, PRETOK_##kind, ((flags)&NFC) != 0, ((flags)&WHOLE) != 0, ((flags)&BOS) != 0 }

/* Those that most files have come first: an error lists as many as fit. */
static const pretok_name names[] = {
    NAME("llama-bpe", LLAMA3, WHOLE | BOS),
    NAME("qwen2", QWEN2, NFC),
    NAME("qwen35", QWEN35, NFC),
    NAME("gpt-4o", O200K, WHOLE),
    NAME("tekken", TEKKEN, WHOLE | BOS),
    NAME("gpt-2", GPT2, 0),
    NAME("smollm", SMOLLM, 0),
    NAME("deepseek-llm", DEEPSEEK_LLM, 0),
    NAME("deepseek-coder", DEEPSEEK_CODER, 0),
    NAME("deepseek-v3", DEEPSEEK_V3, 0),
    NAME("deepseek-r1-qwen", QWEN2, NFC),
    NAME("llama4", O200K, WHOLE),
    NAME("glm4", LLAMA3, WHOLE),
    NAME("glm5", LLAMA3, WHOLE),
    NAME("chatglm-bpe", LLAMA3, 0),
    NAME("dbrx", LLAMA3, 0),
    NAME("smaug-bpe", LLAMA3, 0),
    NAME("starcoder", SMOLLM, 0),
    NAME("refact", SMOLLM, 0),
    NAME("command-r", SMOLLM, NFC),
    NAME("falcon", FALCON, 0),
    NAME("falcon3", LLAMA3, WHOLE | BOS),
    NAME("falcon-h1", LLAMA3, WHOLE | BOS),
    NAME("pixtral", LLAMA3, WHOLE | BOS),
    NAME("lfm2", LLAMA3, WHOLE | BOS),
    NAME("hunyuan", QWEN2, NFC | WHOLE),
    NAME("hunyuan-dense", DEEPSEEK_V3, 0),
    NAME("hy_v4", DEEPSEEK_V3, 0),
    NAME("minimax-m2", O200K, 0),
    NAME("kimi-k2", KIMI_K2, WHOLE),
    NAME("bailingmoe", QWEN2, 0),
    NAME("bailingmoe2", QWEN2, 0),
    NAME("llada-moe", QWEN2, 0),
    NAME("seed-coder", SEED_CODER, 0),
    NAME("grok-2", QWEN2, 0),
    NAME("stablelm2", QWEN2, NFC),
    NAME("exaone", SMOLLM, 0),
    NAME("exaone4", GPT2, 0),
    NAME("exaone-moe", EXAONE_MOE, 0),
    NAME("solar-open", QWEN2, 0),
    NAME("mpt", GPT2, NFC),
    NAME("olmo", GPT2, NFC),
    NAME("llama3", LLAMA3, WHOLE | BOS),
    NAME("llama-v3", LLAMA3, WHOLE | BOS),
    NAME("phi-2", GPT2, 0),
    NAME("midm-2.0", LLAMA3, WHOLE | BOS),
    NAME("minicpm5", MINICPM5, WHOLE),
    NAME("jais", GPT2, 0),
    NAME("jais-2", JAIS2, 0),
    NAME("superbpe", SUPERBPE, 0),
    NAME("trillion", GPT2, 0),
    NAME("granite-docling", GPT2, 0),
    NAME("gigachat", GPT2, 0),
    NAME("a.x-4.0", GPT2, 0),
    NAME("mellum", GPT2, 0),
    NAME("mellum2", SMOLLM, 0),
    NAME("codeshell", SMOLLM, 0),
    NAME("minerva-7b", SMOLLM, 0),
    NAME("kormo", QWEN2, 0),
    NAME("megrez", QWEN2, 0),
    NAME("ufakzeka", UFAKZEKA, 0),
    NAME("laguna", LAGUNA, 0),
    NAME("kanana2", O200K, 0),
    NAME("talkie", O200K, 0),
    NAME("tiny_aya", TINY_AYA, 0),
    NAME("cohere2moe", TINY_AYA, 0),
    NAME("youtu", YOUTU, WHOLE),
    NAME("joyai-llm", DEEPSEEK_V3, 0),
    NAME("spark2_5", SPARK, 0),
    NAME("bloom", BLOOM, 0),
    NAME("poro-chat", BLOOM, 0),
    NAME("gpt3-finnish", BLOOM, 0),
    NAME("viking", VIKING, 0),
    NAME("default", DEFAULT, 0),
};

size_t pretok_n_names(void) {
    return INFERD_COUNT(names);
}
const pretok_name *pretok_name_at(size_t i) {
    return &names[i];
}

const pretok_name *pretok_find(bytes name) {
    for (size_t i = 0; i < INFERD_COUNT(names); i++)
        if (name.n == strlen(names[i].name) && memcmp(name.p, names[i].name, name.n) == 0)
            return &names[i];
    return NULL;
}

void pretok_list(char *out, size_t n) {
    enum { REST_BYTES = 32 }; // " and 99 more (docs/models.md)"
    size_t at = 0, i = 0;
    for (; i < INFERD_COUNT(names); i++) {
        bool last = i + 1 == INFERD_COUNT(names);
        if (at + strlen(names[i].name) + 2 + (last ? 0 : REST_BYTES) >= n) break;
        at += (size_t)snprintf(out + at, n - at, "%s%s", i == 0 ? "" : ", ", names[i].name);
    }
    if (i < INFERD_COUNT(names))
        snprintf(out + at, n - at, " and %zu more (docs/models.md)", INFERD_COUNT(names) - i);
}
