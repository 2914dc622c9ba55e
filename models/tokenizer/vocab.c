/* vocab.c - tok_open: the tokens of a GGUF file, their kinds, and the ids with a meaning. */
#include "tokenizer/vocab.h"

#include "tokenizer/utf8.h"

const char *vocab_show(bytes foreign, char out[VOCAB_SHOWN_BYTES]) {
    size_t n = size_min(foreign.n, VOCAB_SHOWN_BYTES - 1);
    for (size_t i = 0; i < n; i++)
        out[i] = foreign.p[i] >= ' ' && foreign.p[i] <= '~' ? foreign.p[i] : '?';
    out[n] = 0;
    return out;
}

static bool is_text(bytes s, const char *text) {
    return s.p != NULL && s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

/* Gemma 4 merges as byte-level vocabularies do, by a list, and has pieces as SentencePiece; files
 * of its relatives say so by the name of the pre-tokenizer. */
static inferd_status read_family(tokenizer *t, const gguf *g, inferd_err *err) {
    bytes model, pre;
    inferd_status s = gguf_str(g, "tokenizer.ggml.model", &model, err);
    if (s != INFERD_OK) return s;
    s = gguf_str_opt(g, "tokenizer.ggml.pre", &pre, err);
    if (s != INFERD_OK) return s;
    bool gpt2 = is_text(model, "gpt2");
    if (is_text(model, "gemma4") || (gpt2 && is_text(pre, "gemma4"))) {
        t->family = VOCAB_SPM;
        t->listed_merges = true;
        return INFERD_OK;
    }
    if (gpt2 || is_text(model, "llama")) {
        t->family = gpt2 ? VOCAB_BPE : VOCAB_SPM;
        t->listed_merges = gpt2;
        return INFERD_OK;
    }
    char shown[VOCAB_SHOWN_BYTES];
    return inferd_fail(err, INFERD_EUNSUPPORTED,
                       "tokenizer.ggml.model is \"%s\"; known are gpt2 (byte-level BPE), llama "
                       "(SentencePiece BPE) and gemma4 (the same with merges)",
                       vocab_show(model, shown));
}

/* SentencePiece writes a space as U+2581.  Converters undo that in user-defined tokens, among them
 * the runs of spaces that some vocabularies have: these are words of the vocabulary and not texts
 * that are matched first, so they get their marks back. */
static bool is_run_of_spaces(const tokenizer *t, bytes name) {
    if (t->family != VOCAB_SPM || name.n == 0) return false;
    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] != ' ') return false;
    return true;
}

static size_t copy_name(const tokenizer *t, bytes name, char *out) {
    static const char mark[3] = "\xE2\x96\x81";
    if (!is_run_of_spaces(t, name)) {
        if (name.n > 0) memcpy(out, name.p, name.n);
        return name.n;
    }
    for (size_t i = 0; i < name.n; i++) memcpy(out + i * sizeof mark, mark, sizeof mark);
    return name.n * sizeof mark;
}

/* Copy all names into one block of memory with as much room again for the pieces. */
static inferd_status copy_names(tokenizer *t, const gguf_array_view *tokens, char **room,
                                inferd_err *err) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < tokens->n; i++) {
        if (tokens->strings[i].n > VOCAB_TOKEN_BYTES_MAX)
            return inferd_fail(err, INFERD_EFORMAT,
                               "tokenizer.ggml.tokens: token %zu is %zu bytes long, more than %d",
                               i, tokens->strings[i].n, VOCAB_TOKEN_BYTES_MAX);
        // At most 3 * VOCAB_TOKENS_MAX * VOCAB_TOKEN_BYTES_MAX.
        n_bytes += tokens->strings[i].n * (is_run_of_spaces(t, tokens->strings[i]) ? 3 : 1);
    }
    t->text = malloc(2 * n_bytes + 1);
    t->names = calloc(tokens->n, sizeof *t->names);
    t->pieces = calloc(tokens->n, sizeof *t->pieces);
    t->kinds = calloc(tokens->n, sizeof *t->kinds);
    t->ends = calloc(tokens->n, sizeof *t->ends);
    t->word_states = calloc(tokens->n, sizeof *t->word_states);
    if (t->text == NULL || t->names == NULL || t->pieces == NULL || t->kinds == NULL ||
        t->ends == NULL || t->word_states == NULL ||
        !word_table_init(&t->by_name, t->names, tokens->n))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a vocabulary of %zu tokens",
                           tokens->n);
    char *at = t->text;
    for (size_t i = 0; i < tokens->n; i++) {
        t->names[i] = (bytes){at, copy_name(t, tokens->strings[i], at)};
        at += t->names[i].n;
        word_add(&t->by_name, (tok_id)i);
    }
    *room = at;
    return INFERD_OK;
}

static inferd_status read_kinds(tokenizer *t, const gguf *g, inferd_err *err) {
    gguf_array_view kinds;
    inferd_status s = gguf_array_opt(g, "tokenizer.ggml.token_type", GGUF_I32, &kinds, err);
    if (s != INFERD_OK) return s;
    if (kinds.n != t->n_vocab)
        return inferd_fail(err, INFERD_EFORMAT,
                           "tokenizer.ggml.token_type has %zu entries for %zu tokens", kinds.n,
                           t->n_vocab);
    for (size_t i = 0; i < t->n_vocab; i++) {
        int64_t kind = gguf_array_int(&kinds, i);
        if (kind < TOKEN_NORMAL || kind > TOKEN_BYTE)
            return inferd_fail(err, INFERD_EFORMAT,
                               "tokenizer.ggml.token_type: token %zu has type %lld, outside 1 to 6",
                               i, (long long)kind);
        t->kinds[i] = (uint8_t)kind;
    }
    return INFERD_OK;
}

static inferd_status read_tokens(tokenizer *t, const gguf *g, char **room, inferd_err *err) {
    gguf_array_view tokens;
    inferd_status s = gguf_array_opt(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, err);
    if (s != INFERD_OK) return s;
    if (tokens.n == 0)
        return inferd_fail(err, INFERD_EFORMAT, "tokenizer.ggml.tokens is absent or empty");
    if (tokens.n > VOCAB_TOKENS_MAX)
        return inferd_fail(err, INFERD_EFORMAT,
                           "tokenizer.ggml.tokens has %zu tokens, more than %d", tokens.n,
                           VOCAB_TOKENS_MAX);
    t->n_vocab = tokens.n;
    s = copy_names(t, &tokens, room, err);
    if (s != INFERD_OK) return s;
    return read_kinds(t, g, err);
}

/* A token id of the metadata; -1 when the file has none. */
static inferd_status read_id(const tokenizer *t, const gguf *g, const char *key, tok_id *out,
                             inferd_err *err) {
    uint64_t id = 0;
    *out = -1;
    if (!gguf_has(g, key)) return INFERD_OK;
    inferd_status s = gguf_u64(g, key, 0, t->n_vocab - 1, &id, err);
    if (s != INFERD_OK) return s;
    *out = (tok_id)id;
    return INFERD_OK;
}

/* Some converters write all tokens of a role, besides the single one that others write. */
static inferd_status read_id_list(const tokenizer *t, const gguf *g, const char *key,
                                  gguf_array_view *ids, inferd_err *err) {
    inferd_status s = gguf_array_opt(g, key, GGUF_I32, ids, err);
    for (size_t i = 0; s == INFERD_OK && i < ids->n; i++) {
        int64_t id = gguf_array_int(ids, i);
        if (id < 0 || (uint64_t)id >= t->n_vocab)
            return inferd_fail(err, INFERD_EFORMAT, "%s[%zu] is %lld, and there are %zu tokens",
                               key, i, (long long)id, t->n_vocab);
    }
    return s;
}

static inferd_status read_more_ends(tokenizer *t, const gguf *g, inferd_err *err) {
    gguf_array_view ids;
    inferd_status s = read_id_list(t, g, "tokenizer.ggml.eos_token_ids", &ids, err);
    for (size_t i = 0; s == INFERD_OK && i < ids.n; i++) t->ends[gguf_array_int(&ids, i)] = true;
    return s;
}

/* A text begins with one BOS.  A list changes nothing if it has that one. */
static inferd_status check_more_bos(const tokenizer *t, const gguf *g, inferd_err *err) {
    gguf_array_view ids;
    inferd_status s = read_id_list(t, g, "tokenizer.ggml.bos_token_ids", &ids, err);
    if (s != INFERD_OK || ids.n == 0) return s;
    for (size_t i = 0; i < ids.n; i++)
        if (gguf_array_int(&ids, i) == t->bos) return INFERD_OK;
    if (t->bos < 0)
        return inferd_fail(err, INFERD_EFORMAT,
                           "tokenizer.ggml.bos_token_ids is present without "
                           "tokenizer.ggml.bos_token_id, which is the token that is added");
    return inferd_fail(
        err, INFERD_EFORMAT,
        "tokenizer.ggml.bos_token_id is %d, and tokenizer.ggml.bos_token_ids does not contain it",
        t->bos);
}

static inferd_status read_ids(tokenizer *t, const gguf *g, inferd_err *err) {
    static const char *const others[] = {"tokenizer.ggml.eot_token_id",
                                         "tokenizer.ggml.eom_token_id"};
    inferd_status s = read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err);
    if (s != INFERD_OK) return s;
    s = read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, err);
    if (s != INFERD_OK) return s;
    if (t->eos >= 0) t->ends[t->eos] = true;
    for (size_t i = 0; i < INFERD_COUNT(others); i++) {
        tok_id id;
        s = read_id(t, g, others[i], &id, err);
        if (s != INFERD_OK) return s;
        if (id >= 0) t->ends[id] = true;
    }
    s = check_more_bos(t, g, err);
    return s == INFERD_OK ? read_more_ends(t, g, err) : s;
}

/* An explicit setting for a token the file does not name is an error; a default one is not. */
static inferd_status read_add(const gguf *g, const char *key, bool fallback, tok_id id, bool *out,
                              inferd_err *err) {
    inferd_status s = gguf_bool_or(g, key, fallback, out, err);
    if (s != INFERD_OK) return s;
    if (*out && id < 0 && gguf_has(g, key))
        return inferd_fail(err, INFERD_EFORMAT, "%s is true but the file names no such token", key);
    *out = *out && id >= 0;
    return INFERD_OK;
}

/* Files name one end of sequence, models end on several: the well-known names count when the file
 * has them as special tokens. */
static void find_ends(tokenizer *t) {
    static const char *const names[] = {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "</s>",
        "<eos>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|end|>",
        "<|EOT|>",
        "<EOT>",
        "_<EOT>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "[EOT]",
        "[e~[",
        "<｜end▁of▁sentence｜>",
    };
    // With <|return|> and <|call|> it is the harmony vocabulary, with <|calls|> that of Solar Open:
    // <|end|> only ends a message, and more of the turn follow.
    bool parts =
        tok_find(t, (bytes){"<|calls|>", 9}) >= 0 ||
        (tok_find(t, (bytes){"<|return|>", 10}) >= 0 && tok_find(t, (bytes){"<|call|>", 8}) >= 0);
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        tok_id id = tok_find(t, (bytes){names[i], strlen(names[i])});
        if (id < 0 || (t->kinds[id] != TOKEN_CONTROL && t->kinds[id] != TOKEN_USER_DEFINED))
            continue;
        if (parts && strcmp(names[i], "<|end|>") == 0) continue;
        // a word of text, it is a tag of HTML: Gemma has <s> and </s> beside <u> and </u>
        if (t->kinds[id] == TOKEN_USER_DEFINED && strcmp(names[i], "</s>") == 0) continue;
        t->ends[id] = true;
    }
}

static bool has_control(const tokenizer *t, const char *name) {
    tok_id id = tok_find(t, (bytes){name, strlen(name)});
    return id >= 0 && t->kinds[id] == TOKEN_CONTROL;
}

/* The added tokens of Phi 3 have `rstrip`, for which a GGUF file has no field: its vocabulary is
 * recognised by their names. */
static bool is_phi3(const tokenizer *t) {
    return t->family == VOCAB_SPM && has_control(t, "<|placeholder1|>") &&
           has_control(t, "<|assistant|>") && has_control(t, "<|end|>");
}

bool vocab_strips(const tokenizer *t, tok_id id) {
    return t->strips_behind && !is_text(t->names[id], "<unk>") && !is_text(t->names[id], "<s>") &&
           !is_text(t->names[id], "<|endoftext|>");
}

/* Converters give a name to each row of the embeddings that has no token. */
static bool fills_a_row(bytes name, size_t id) {
    char filler[32];
    int n = snprintf(filler, sizeof filler, "[PAD%zu]", id);
    return name.n == (size_t)n && memcmp(name.p, filler, name.n) == 0;
}

/* The tokenizers that models were trained with match <unk> in text as they match control tokens.  A
 * special with a text that is not UTF-8 could match half a character; such a text cannot occur. */
static inferd_status add_specials(tokenizer *t, inferd_err *err) {
    bool ok = specials_init(&t->specials);
    for (size_t i = 0; ok && i < t->n_vocab; i++) {
        bytes name = t->names[i];
        bool control = t->kinds[i] == TOKEN_CONTROL || t->kinds[i] == TOKEN_UNKNOWN;
        if (!control && t->kinds[i] != TOKEN_USER_DEFINED) continue;
        if (utf8_valid_bytes((const unsigned char *)name.p, name.n) != name.n) continue;
        if (fills_a_row(name, i)) continue;
        ok = specials_add(&t->specials, name, (tok_id)i, control);
    }
    return ok ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory for the special tokens");
}

/* Errors name the file; errors of its reader do so already. */
static void name_file(const gguf *g, inferd_err *err) {
    const char *label = gguf_label(g);
    if (err != NULL && strncmp(err->text, label, strlen(label)) != 0)
        inferd_context(err, "%s", label);
}

inferd_status tok_open(const gguf *g, tokenizer **out, inferd_err *err) {
    tokenizer *t = calloc(1, sizeof *t);
    char *room = NULL;
    *out = NULL;
    if (t == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a tokenizer");
    inferd_status s = read_family(t, g, err);
    if (s != INFERD_OK) goto fail;
    s = vocab_keys_check(g, err);
    if (s != INFERD_OK) goto fail;
    s = read_tokens(t, g, &room, err);
    if (s != INFERD_OK) goto fail;
    s = read_ids(t, g, err);
    if (s != INFERD_OK) goto fail;
    s = t->family == VOCAB_BPE ? vocab_bpe_load(t, g, room, err) : vocab_spm_load(t, g, room, err);
    if (s != INFERD_OK) goto fail;
    bool bos = t->pretok == NULL || t->pretok->add_bos; // as in the models' training
    s = read_add(g, "tokenizer.ggml.add_bos_token", bos, t->bos, &t->add_bos, err);
    if (s != INFERD_OK) goto fail;
    s = read_add(g, "tokenizer.ggml.add_eos_token", false, t->eos, &t->add_eos, err);
    if (s != INFERD_OK) goto fail;
    s = add_specials(t, err);
    if (s != INFERD_OK) goto fail;
    t->strips_behind = is_phi3(t);
    find_ends(t);
    *out = t;
    return INFERD_OK;

fail:
    name_file(g, err);
    tok_close(t);
    return s;
}

void tok_close(tokenizer *t) {
    if (t == NULL) return;
    word_table_deinit(&t->by_name);
    word_table_deinit(&t->words);
    merge_table_deinit(&t->merges);
    specials_deinit(&t->specials);
    free(t->before_space);
    free(t->word_states);
    free(t->ends);
    free(t->kinds);
    free(t->pieces);
    free(t->names);
    free(t->text);
    free(t);
}

size_t tok_n_vocab(const tokenizer *t) {
    return t->n_vocab;
}
size_t tok_n_merges_dropped(const tokenizer *t) {
    return t->n_merges_dropped;
}
tok_id tok_bos(const tokenizer *t) {
    return t->bos;
}
tok_id tok_eos(const tokenizer *t) {
    return t->eos;
}

static bool is_token(const tokenizer *t, tok_id id) {
    return id >= 0 && (size_t)id < t->n_vocab;
}
bool tok_is_end(const tokenizer *t, tok_id id) {
    return is_token(t, id) && t->ends[id];
}
bool tok_is_control(const tokenizer *t, tok_id id) {
    return is_token(t, id) && (t->kinds[id] == TOKEN_CONTROL || t->kinds[id] == TOKEN_UNKNOWN);
}
bool tok_is_special(const tokenizer *t, tok_id id) {
    return tok_is_control(t, id) || (is_token(t, id) && t->kinds[id] == TOKEN_USER_DEFINED);
}
bytes tok_piece(const tokenizer *t, tok_id id) {
    return is_token(t, id) ? t->pieces[id] : (bytes){"", 0};
}
bytes tok_name(const tokenizer *t, tok_id id) {
    return is_token(t, id) ? t->names[id] : (bytes){"", 0};
}
tok_id tok_find(const tokenizer *t, bytes name) {
    return name.n == 0 ? -1 : word_find(&t->by_name, (const unsigned char *)name.p, name.n);
}
