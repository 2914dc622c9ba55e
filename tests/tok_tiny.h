/* tok_tiny.h - vocabularies small enough to follow by hand, as GGUF files in memory.
 *
 *     tiny_words w;
 *     words_bpe(&w, "smollm", (const char *[]){"h e", "l l", "he ll", NULL});
 *     words_add(&w, "<|end|>", WORD_CONTROL);
 *     tokenizer *t = words_open(&w);       // ends the life of w
 *
 * Byte-level: token b is byte b, then one token per merge.  SentencePiece: <unk>, <s>, </s>, the
 * 256 byte tokens, then what is added, with its score. */
#ifndef INFERD_TOK_TINY_H
#define INFERD_TOK_TINY_H

#include "gguf_image.h"
#include "models/tokenizer.h"

enum { WORD_NORMAL = 1, WORD_UNKNOWN, WORD_CONTROL, WORD_USER_DEFINED, WORD_UNUSED, WORD_BYTE };
enum { WORDS_MAX = 512, BPE_FIRST = 256, SPM_BYTE_0 = 3, SPM_FIRST = SPM_BYTE_0 + 256 };

/* Knobs, like those of tiny_gguf: what is wrong here is wrong in the file. */
typedef struct tiny_words {
    const char *model, *pre; // NULL: no such key
    buf names[WORDS_MAX];
    int32_t kinds[WORDS_MAX];
    float scores[WORDS_MAX];
    size_t n, n_kinds, n_scores; // of names; of the other arrays when not as many
    const char *const *merges;   // NULL-terminated
    bool no_merges;              // leave the key out
    tiny_gguf g;                 // more keys
} tiny_words;

static inline tok_id words_add_scored(tiny_words *w, const char *name, int32_t kind, float score) {
    INFERD_CHECK(w->n < WORDS_MAX);
    buf_add_str(&w->names[w->n], name);
    w->kinds[w->n] = kind;
    w->scores[w->n] = score;
    return (tok_id)w->n++;
}
static inline tok_id words_add(tiny_words *w, const char *name, int32_t kind) {
    return words_add_scored(w, name, kind, 0);
}

static inline void words_bpe(tiny_words *w, const char *pre, const char *const *merges) {
    memset(w, 0, sizeof *w);
    tiny_gguf_init(&w->g);
    w->model = "gpt2";
    w->pre = pre;
    w->merges = merges;
    for (; w->n < BPE_FIRST; w->n++) {
        tiny_byte_name((unsigned)w->n, &w->names[w->n]);
        w->kinds[w->n] = WORD_NORMAL;
    }
    for (; *merges != NULL; merges++) {
        const char *space = strchr(*merges, ' ');
        buf_add(&w->names[w->n], *merges, (size_t)(space - *merges));
        words_add(w, space + 1, WORD_NORMAL);
    }
}

static inline void words_spm(tiny_words *w) {
    memset(w, 0, sizeof *w);
    tiny_gguf_init(&w->g);
    w->model = "llama";
    w->pre = "default";
    words_add(w, "<unk>", WORD_UNKNOWN);
    words_add(w, "<s>", WORD_CONTROL);
    words_add(w, "</s>", WORD_CONTROL);
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        words_add(w, name, WORD_BYTE);
    }
    tiny_kv_u32(&w->g, "tokenizer.ggml.bos_token_id", 1);
    tiny_kv_u32(&w->g, "tokenizer.ggml.eos_token_id", 2);
}

/* Also the end of `w`. */
static inline gguf *words_gguf(tiny_words *w) {
    bytes names[WORDS_MAX];
    size_t n_merges = 0;
    if (w->model != NULL) tiny_kv_str(&w->g, "tokenizer.ggml.model", w->model);
    if (w->pre != NULL) tiny_kv_str(&w->g, "tokenizer.ggml.pre", w->pre);
    for (size_t i = 0; i < w->n; i++) names[i] = (bytes){w->names[i].p, w->names[i].n};
    if (w->n > 0) tiny_kv_strs(&w->g, "tokenizer.ggml.tokens", names, w->n);
    tiny_kv_i32s(&w->g, "tokenizer.ggml.token_type", w->kinds, w->n_kinds != 0 ? w->n_kinds : w->n);
    if (w->merges == NULL) {
        size_t n_scores = w->n_scores != 0 ? w->n_scores : w->n;
        tiny_kv_array(&w->g, "tokenizer.ggml.scores", GGUF_F32, n_scores);
        buf_add(&w->g.metadata, w->scores,
                n_scores * sizeof *w->scores); // little-endian, as we are
    } else if (!w->no_merges) {
        while (w->merges[n_merges] != NULL) n_merges++;
        tiny_kv_array(&w->g, "tokenizer.ggml.merges", GGUF_STRING, n_merges);
        for (size_t i = 0; i < n_merges; i++)
            tiny_put_string(&w->g.metadata, w->merges[i], strlen(w->merges[i]));
    }
    gguf *g = open_good(&w->g);
    tiny_gguf_deinit(&w->g);
    for (size_t i = 0; i < WORDS_MAX; i++) buf_deinit(&w->names[i]);
    return g;
}

static inline tokenizer *words_open(tiny_words *w) {
    gguf *g = words_gguf(w);
    tokenizer *t = NULL;
    inferd_err err = {0};
    if (tok_open(g, &t, &err) != INFERD_OK) {
        printf("could not open the vocabulary: %s\n", err.text);
        exit(1);
    }
    gguf_close(g); // the tokenizer keeps nothing of it
    return t;
}

/* The file must be refused with these words. */
static inline void words_refused(tiny_words *w, inferd_status expected, const char *words) {
    gguf *g = words_gguf(w);
    tokenizer *t = (tokenizer *)w; // must become NULL
    inferd_err err = {0};
    inferd_status s = tok_open(g, &t, &err);
    expect_failed(s, expected, &err, words);
    EXPECT(t == NULL);
    gguf_close(g);
}

/* Ids as text, "7 1 300". */
static inline void ids_print(const tok_ids *ids, char *out, size_t n) {
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < ids->n && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%d", i == 0 ? "" : " ", ids->ids[i]);
}

/* What `text` gives; `specials` for all of it. */
static inline void expect_ids(const tokenizer *t, const char *text, bool specials,
                              const char *expected) {
    tok_ids ids = {0};
    inferd_err err = {0};
    char printed[1024];
    size_t n = strlen(text);
    tok_span all = {n, specials};
    EXPECT_EQ(tok_encode(t, (bytes){text, n}, &all, 1, NULL, &ids, &err), INFERD_OK);
    ids_print(&ids, printed, sizeof printed);
    EXPECT_STR(printed, expected);
    tok_ids_deinit(&ids);
}

#endif
