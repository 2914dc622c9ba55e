/* vocab_keys.c - the tokenizer.* keys that a file may have; see gguf/known.h.
 *
 * A key that would change the ids of a text, and is not honoured, is refused by its name. */
#include "gguf/known.h"
#include "tokenizer/vocab.h"

static const known_key keys[] = {
    {"ggml.model", KNOWN_READ, 0},
    {"ggml.pre", KNOWN_READ, 0},
    {"ggml.tokens", KNOWN_READ, 0},
    {"ggml.scores", KNOWN_READ, 0},
    {"ggml.token_type", KNOWN_READ, 0},
    {"ggml.merges", KNOWN_READ, 0},
    {"ggml.bos_token_id", KNOWN_READ, 0},
    {"ggml.bos_token_ids", KNOWN_READ, 0},
    {"ggml.eos_token_id", KNOWN_READ, 0},
    {"ggml.eos_token_ids", KNOWN_READ, 0},
    {"ggml.eot_token_id", KNOWN_READ, 0},
    {"ggml.eom_token_id", KNOWN_READ, 0},
    {"ggml.add_bos_token", KNOWN_READ, 0},
    {"ggml.add_eos_token", KNOWN_READ, 0},
    {"ggml.add_space_prefix", KNOWN_READ, 0},
    {"chat_template", KNOWN_READ, 0},

    {"ggml.*_token_id", KNOWN_HARMLESS, 0}, // padding, unknown, fill in the middle ...: a name
    {"ggml.padding_token_ids", KNOWN_HARMLESS, 0},
    {"ggml.unknown_token_ids", KNOWN_HARMLESS, 0},
    {"ggml.seperator_token_ids", KNOWN_HARMLESS, 0}, // the spelling of Ollama's converter
    {"ggml.cls_token_ids", KNOWN_HARMLESS, 0},
    {"ggml.mask_token_ids", KNOWN_HARMLESS, 0},
    {"ggml.add_sep_token", KNOWN_HARMLESS, 0}, // between two texts, of which there is one
    {"ggml.add_seperator_token", KNOWN_HARMLESS, 0},
    {"ggml.add_padding_token", KNOWN_HARMLESS, 0}, // behind short texts of a batch
    {"ggml.add_unknown_token", KNOWN_HARMLESS, 0},
    {"ggml.token_type_count", KNOWN_HARMLESS, 0}, // kinds of segments; no family here has them
    {"huggingface.json", KNOWN_HARMLESS, 0},      // the same vocabulary in another form
    {"chat_template.*", KNOWN_HARMLESS, 0},       // more templates, by name
    {"chat_templates", KNOWN_HARMLESS, 0},        // their names

    {"ggml.add_cls_token", KNOWN_IS, 0},
    {"ggml.add_mask_token", KNOWN_IS, 0},
    {"ggml.remove_extra_whitespaces", KNOWN_IS, 0},
    {"ggml.normalizer.lowercase", KNOWN_IS, 0},
    {"ggml.normalizer.strip_accents", KNOWN_IS, 0},
    {"ggml.precompiled_charsmap", KNOWN_EMPTY, 0},
    {"ggml.suppress_tokens", KNOWN_EMPTY, 0},
};

inferd_status vocab_keys_check(const gguf *g, inferd_err *err) {
    return known_check(g, "tokenizer.", &(known_table){keys, INFERD_COUNT(keys)}, 1, err);
}
