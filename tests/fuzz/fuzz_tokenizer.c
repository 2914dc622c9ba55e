/* fuzz_tokenizer.c - any bytes as a request's text, under several vocabularies.
 *
 * The first byte chooses the vocabulary, the second how the text is cut into spans.  Whatever
 * comes: text that is not UTF-8 is refused, ids are tokens, no control token comes out of text that
 * is not trusted, and the ids spell the text (NFC aside). */
#include "tok_tiny.h"
#include "tokenizer/pretok.h"
#include "tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const merges[] = {"t h",   "h e",   "th e", "i n", "a n",   "Ġ a",
                                     "Ġ t",   "Ġt he", "e r",  "Ġ Ġ", "ĠĠ ĠĠ", "a a",
                                     "aa aa", "Ċ Ċ",   "1 2",  "' s", "Ã ©",   NULL};
/* Behind the pre-tokenizers, each once: Gemma 4, SentencePiece without a prefix and with one. */
enum { GEMMA = PRETOK_KINDS, SPM, SPM_PREFIX, VOCABULARIES };

static const pretok_name *name_of_kind(size_t kind) {
    for (size_t i = 0; i < pretok_n_names(); i++)
        if (pretok_name_at(i)->kind == kind) return pretok_name_at(i);
    INFERD_CHECK(!"a name for each kind");
    return NULL;
}

static tokenizer *open_bpe(const char *pre) {
    tiny_words w;
    words_bpe(&w, pre, merges);
    words_add(&w, "<s>", WORD_CONTROL);
    words_add(&w, "<s>>", WORD_CONTROL);
    words_add(&w, "<u>", WORD_USER_DEFINED);
    return words_open(&w);
}

static tokenizer *open_spm(bool prefix, const char *const *listed) {
    static const char *const pieces[] = {"▁",  "a",  "t",  "h",  "e",   "s",  ">",
                                         "<",  "é",  "▁▁", "th", "he",  "▁t", "▁the",
                                         "s>", "<s", "aa", "a▁", "e▁a", "ée", "▁▁▁▁"};
    tiny_words w;
    words_spm(&w);
    for (size_t i = 0; i < INFERD_COUNT(pieces); i++)
        words_add_scored(&w, pieces[i], WORD_NORMAL, (float)(i * 7 % 13));
    words_add(&w, "<u>", WORD_USER_DEFINED);
    tiny_kv_bool(&w.g, "tokenizer.ggml.add_space_prefix", prefix);
    if (listed != NULL) {
        w.model = "gemma4";
        w.pre = NULL;
        w.merges = listed;
    }
    return words_open(&w);
}

static const tokenizer *tokenizer_of(size_t i) {
    static const char *const listed[] = {"▁ t", "h e",   "t h",  "▁t he", "▁ ▁", "▁▁ ▁▁",
                                         "a a", "a ▁",   "s >",  "é e",   "e ▁", "x y",
                                         "< s", "▁ the", "<s >", NULL};
    static tokenizer *opened[VOCABULARIES];
    if (opened[i] == NULL)
        opened[i] = i < PRETOK_KINDS ? open_bpe(name_of_kind(i)->name)
                                     : open_spm(i == SPM_PREFIX, i == GEMMA ? listed : NULL);
    return opened[i];
}

/* The ids as text, through a stream. */
static buf text_of(const tokenizer *t, const tok_ids *ids) {
    tok_stream s;
    buf out = {0};
    tok_stream_init(&s, t, false);
    for (size_t i = 0; i < ids->n; i++) tok_stream_push(&s, ids->ids[i], &out);
    tok_stream_finish(&s, &out);
    INFERD_CHECK(!out.failed);
    INFERD_CHECK(utf8_valid_bytes((unsigned char *)out.p, out.n) == out.n);
    return out;
}

/* U+2581 is a space to SentencePiece: fold both texts before they are compared. */
static void fold_marks(buf *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        bool mark = b->n - i >= 3 && memcmp(b->p + i, "▁", 3) == 0;
        b->p[n++] = mark ? ' ' : b->p[i];
        if (mark) i += 2;
    }
    b->n = n;
}

static void check_untrusted(const tokenizer *t, bytes text, bool comes_back) {
    tok_ids ids = {0};
    INFERD_CHECK(tok_encode(t, text, NULL, 0, NULL, &ids, NULL) == INFERD_OK);
    for (size_t i = 0; i < ids.n; i++)
        INFERD_CHECK(ids.ids[i] >= 0 && (size_t)ids.ids[i] < tok_n_vocab(t) &&
                     !tok_is_control(t, ids.ids[i]));
    buf out = text_of(t, &ids), expected = {0};
    buf_add(&expected, text.p, text.n);
    fold_marks(&out);
    fold_marks(&expected);
    if (comes_back)
        INFERD_CHECK(out.n == expected.n && (out.n == 0 || memcmp(out.p, expected.p, out.n) == 0));
    buf_deinit(&out);
    buf_deinit(&expected);
    tok_ids_deinit(&ids);
}

/* Spans do not change what a text says, only which of its tokens are special. */
static void check_spans(const tokenizer *t, bytes text, size_t step) {
    tok_span spans[64];
    size_t n_spans = 0, at = 0;
    for (; n_spans < INFERD_COUNT(spans) - 1 && at < text.n; at += spans[n_spans++].n)
        spans[n_spans] = (tok_span){size_min(step, text.n - at), n_spans % 2 == 0};
    spans[n_spans++] = (tok_span){text.n - at, true};
    tok_ids ids = {0}, few = {0};
    INFERD_CHECK(tok_encode(t, text, spans, n_spans, NULL, &ids, NULL) == INFERD_OK);
    if (ids.n > 1) {
        tok_encode_options options = {.ids_max = ids.n - 1};
        INFERD_CHECK(tok_encode(t, text, spans, n_spans, &options, &few, NULL) == INFERD_ETOOLONG);
        INFERD_CHECK(few.n == 0);
        options.ids_max = ids.n;
        INFERD_CHECK(tok_encode(t, text, spans, n_spans, &options, &few, NULL) == INFERD_OK);
        INFERD_CHECK(few.n == ids.n && memcmp(few.ids, ids.ids, ids.n * sizeof *ids.ids) == 0);
    }
    buf out = text_of(t, &ids);
    buf_deinit(&out);
    tok_ids_deinit(&few);
    tok_ids_deinit(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    size_t which = data[0] % VOCABULARIES;
    const tokenizer *t = tokenizer_of(which);
    bytes text = {(const char *)data + 2, size - 2};
    if (utf8_valid_bytes(data + 2, text.n) != text.n) {
        tok_ids ids = {0};
        INFERD_CHECK(tok_encode(t, text, NULL, 0, NULL, &ids, NULL) == INFERD_EINVAL && ids.n == 0);
        return 0;
    }
    bool is_nfc = which < PRETOK_KINDS && name_of_kind(which)->nfc;
    // With a prefix, each special token in the text is followed by a space that was not there.
    bool has_prefix = which == SPM_PREFIX;
    check_untrusted(t, text, !is_nfc && !(has_prefix && memmem(text.p, text.n, "<u>", 3) != NULL));
    check_spans(t, text, 1 + data[1] % 32);
    return 0;
}
