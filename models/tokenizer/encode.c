/* encode.c - tok_encode: a text into ids.
 *
 *     text     [ trusted ][ request ][ trusted ]                 spans
 *              <|user|>\n Hello wor ld<|end|>                    special tokens are matched ...
 *     raw      ........[ \n  Hello  world ]......                ... text between them is joined
 *     words            \n| Hello| world                          pretok.h, or spaces
 *     ids      2       198 19556  905       7                    one lookup, or merge.h
 *
 * Words may extend over spans, so a template's space and the first word of a message form one word,
 * as in training.
 *
 * Thread: any; only the encoder of the call and word_states (vocab.h) change. */
#include "tokenizer/nfc.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocab.h"

enum { CANCEL_BYTES = 64 * 1024 }; // of text between two checks of `cancel`

typedef struct encoder {
    const tokenizer *t;
    const tok_encode_options *options;
    tok_ids *out;
    size_t n_before;   // ids in `out` before this call
    size_t n_unlooked; // bytes of text since the last check of `cancel`
    buf text;          // a stretch of text as it is split: normalised, or with its first space
    tok_id *symbols;   // [symbols_capacity] of a long word; owned
    size_t symbols_capacity;
    merge_work work;
    inferd_status status;
    inferd_err *err;
} encoder;

/* Neighbouring spans of the same trust. */
typedef struct region {
    const tok_span *spans; // [n_spans] those behind `end`
    size_t n_spans;
    size_t end; // byte offset
    bool trusted;
} region;

void tok_ids_deinit(tok_ids *ids) {
    free(ids->ids);
    *ids = (tok_ids){0};
}

bool tok_ids_push(tok_ids *ids, tok_id id) {
    if (ids->n == ids->capacity) {
        size_t n_bytes, capacity = ids->capacity == 0 ? 64 : ids->capacity;
        if (!size_mul(capacity, 2 * sizeof *ids->ids, &n_bytes)) return false;
        tok_id *p = realloc(ids->ids, n_bytes);
        if (p == NULL) return false;
        ids->ids = p;
        ids->capacity = 2 * capacity;
    }
    ids->ids[ids->n++] = id;
    return true;
}

static bool fail(encoder *e, inferd_status status, const char *what) {
    e->status = inferd_fail(e->err, status, "%s", what);
    return false;
}

static bool emit(encoder *e, tok_id id) {
    size_t ids_max = e->options->ids_max;
    if (ids_max != 0 && e->out->n - e->n_before >= ids_max) {
        e->status =
            inferd_fail(e->err, INFERD_ETOOLONG, "the text has more than %zu tokens", ids_max);
        return false;
    }
    return tok_ids_push(e->out, id) || fail(e, INFERD_ENOMEM, "no memory for the ids of a text");
}

static bool look_at_cancel(encoder *e, size_t n_bytes) {
    e->n_unlooked += n_bytes;
    if (e->n_unlooked < CANCEL_BYTES) return true;
    e->n_unlooked = 0;
    if (e->options->cancel == NULL || !atomic_load(e->options->cancel)) return true;
    return fail(e, INFERD_ECANCELED, "canceled");
}

/* ---- one word ---- */

static tok_id *reserve_symbols(encoder *e, size_t n) {
    if (n <= e->symbols_capacity) return e->symbols;
    size_t n_bytes;
    if (!size_mul(n, sizeof *e->symbols, &n_bytes)) return NULL;
    free(e->symbols);
    e->symbols = malloc(n_bytes);
    e->symbols_capacity = e->symbols == NULL ? 0 : n;
    return e->symbols;
}

/* A symbol after merging: a token, or a SentencePiece character without one, written as bytes. */
static bool emit_symbol(encoder *e, tok_id symbol) {
    const tokenizer *t = e->t;
    if ((size_t)symbol < t->n_vocab) return emit(e, symbol);
    unsigned char p[UTF8_BYTES_MAX];
    unsigned n = utf8_encode((uint32_t)((size_t)symbol - t->n_vocab), p);
    for (unsigned i = 0; i < n; i++)
        if (!emit(e, t->byte_ids[p[i]])) return false;
    return true;
}

static bool encode_word(void *ctx, const unsigned char *p, size_t n) {
    encoder *e = ctx;
    const tokenizer *t = e->t;
    if (!look_at_cancel(e, n)) return false;
    tok_id id = word_find(&t->words, p, n);
    atomic_uchar *state = id >= 0 ? &t->word_states[id] : NULL;
    if (state != NULL && atomic_load_explicit(state, memory_order_relaxed) == WORD_WHOLE)
        return emit(e, id);

    tok_id few[MERGE_SMALL_MAX], *symbols = few;
    if (n > MERGE_SMALL_MAX) symbols = reserve_symbols(e, n);
    if (symbols == NULL) return fail(e, INFERD_ENOMEM, "no memory for a long word");
    size_t n_symbols = t->family == VOCAB_BPE ? vocab_bpe_symbols(t, p, n, symbols)
                                              : vocab_spm_symbols(t, p, n, symbols);
    e->status = merge_run(&t->merges, &e->work, symbols, &n_symbols, e->options->cancel, e->err);
    if (e->status != INFERD_OK) return false;
    if (state != NULL) {
        bool whole = n_symbols == 1 && symbols[0] == id;
        atomic_store_explicit(state, whole ? WORD_WHOLE : WORD_SPLIT, memory_order_relaxed);
    }
    for (size_t i = 0; i < n_symbols; i++)
        if (!emit_symbol(e, symbols[i])) return false;
    return true;
}

/* ---- a stretch of text without special tokens ---- */

static bool encode_bpe(encoder *e, const unsigned char *p, size_t n) {
    if (e->t->pretok->nfc && !nfc_is_normal(p, n)) {
        buf_clear(&e->text);
        if (!nfc_append(p, n, &e->text))
            return fail(e, INFERD_ENOMEM, "no memory to normalise a text");
        p = (const unsigned char *)e->text.p;
        n = e->text.n;
    }
    return pretok_split(e->t->pretok->kind, p, n, encode_word, e);
}

/* May merging cross from the character that ends before `space` into the space? */
static bool joins_space(const tokenizer *t, const unsigned char *space,
                        const unsigned char *begin) {
    unsigned n;
    uint32_t c = utf8_decode(utf8_back(space, begin), &n);
    if (c == ' ') c = 0x2581;
    size_t low = 0, high = t->n_before_space;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (t->before_space[middle] == c) return true;
        if (t->before_space[middle] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* SentencePiece merges a whole stretch at once.  Cutting it at positions that no token spans gives
 * the same result, in short words that take one lookup each. */
static bool encode_spm(encoder *e, const unsigned char *p, size_t n) {
    if (e->t->add_space_prefix) {
        buf_clear(&e->text);
        buf_add_char(&e->text, ' ');
        buf_add(&e->text, p, n);
        if (e->text.failed) return fail(e, INFERD_ENOMEM, "no memory for a copy of a text");
        p = (const unsigned char *)e->text.p;
        n = e->text.n;
    }
    const unsigned char *end = p + n, *at = p + 1;
    while (p < end) {
        const unsigned char *space = at < end ? memchr(at, ' ', (size_t)(end - at)) : NULL;
        if (space != NULL) {
            at = space + 1;
            if (joins_space(e->t, space, p)) continue;
        }
        const unsigned char *to = space != NULL ? space : end;
        if (!encode_word(e, p, (size_t)(to - p))) return false;
        p = to;
    }
    return true;
}

static bool encode_stretch(encoder *e, const unsigned char *p, size_t n) {
    if (n == 0) return true;
    return e->t->family == VOCAB_BPE ? encode_bpe(e, p, n) : encode_spm(e, p, n);
}

/* ---- a text with spans ---- */

/* Bytes from `at` on that may contain control tokens. */
static size_t trusted_bytes(region *r, size_t at) {
    while (at >= r->end && r->n_spans > 0) {
        r->trusted = r->spans->specials;
        for (; r->n_spans > 0 && (r->spans->n == 0 || r->spans->specials == r->trusted);
             r->n_spans--)
            r->end += r->spans++->n;
    }
    return r->trusted && at < r->end ? r->end - at : 0;
}

static size_t spaces_at(bytes text, size_t at) {
    const unsigned char *p = (const unsigned char *)text.p;
    unsigned n;
    size_t to = at;
    for (; to < text.n && unicode_is_space(unicode_kind(utf8_decode(p + to, &n))); to += n) {
    }
    return to - at;
}

/* What the text has at `at`: a special token, or the stretch before the next one. */
static tok_part part_at(const tokenizer *t, bytes text, region *r, size_t at) {
    const special_trie *specials = &t->specials;
    const unsigned char *p = (const unsigned char *)text.p;
    for (size_t to = at; to < text.n; to++) {
        tok_id id = -1;
        size_t n = 0;
        if (specials->start[p[to]] != 0)
            n = specials_match(specials, p + to, text.n - to, trusted_bytes(r, to), &id);
        if (n == 0) continue;
        if (to > at) return (tok_part){.n = to - at, .special = -1};
        if (vocab_strips(t, id)) n += spaces_at(text, to + n);
        return (tok_part){.n = n, .special = id};
    }
    return (tok_part){.n = text.n - at, .special = -1};
}

static bool encode_text(encoder *e, bytes text, region r) {
    for (size_t at = 0; at < text.n;) {
        tok_part part = part_at(e->t, text, &r, at);
        const unsigned char *p = (const unsigned char *)text.p + at;
        bool ok = part.special < 0 ? encode_stretch(e, p, part.n)
                                   : look_at_cancel(e, part.n) && emit(e, part.special);
        if (!ok) return false;
        at += part.n;
    }
    return true;
}

static inferd_status check_input(bytes text, const tok_span *spans, size_t n_spans,
                                 inferd_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < n_spans; i++)
        if (!size_add(n, spans[i].n, &n) || n > text.n) break;
    if (n_spans > 0 && n != text.n)
        return inferd_fail(err, INFERD_EINVAL, "the spans do not cover a text of %zu bytes",
                           text.n);
    size_t n_valid = utf8_valid_bytes((const unsigned char *)text.p, text.n);
    if (n_valid != text.n)
        return inferd_fail(err, INFERD_EINVAL, "the text is not UTF-8 at byte %zu", n_valid);
    return INFERD_OK;
}

inferd_status tok_encode(const tokenizer *t, bytes text, const tok_span *spans, size_t n_spans,
                         const tok_encode_options *options, tok_ids *out, inferd_err *err) {
    static const tok_encode_options plain = {0};
    inferd_status s = check_input(text, spans, n_spans, err);
    if (s != INFERD_OK) return s;
    encoder e = {.t = t,
                 .options = options != NULL ? options : &plain,
                 .out = out,
                 .n_before = out->n,
                 .err = err};
    bool special = e.options->add_special;
    bool ok = (!special || !t->add_bos || emit(&e, t->bos)) &&
              encode_text(&e, text, (region){.spans = spans, .n_spans = n_spans}) &&
              (!special || !t->add_eos || emit(&e, t->eos));
    if (!ok) out->n = e.n_before;
    buf_deinit(&e.text);
    free(e.symbols);
    merge_work_deinit(&e.work);
    return e.status;
}

/* ---- the parts of a text ---- */

void tok_parts_deinit(tok_parts *p) {
    free(p->parts);
    *p = (tok_parts){0};
}

static bool push_part(tok_parts *p, tok_part part) {
    if (p->n == p->capacity) {
        size_t n_bytes, capacity = p->capacity == 0 ? 64 : p->capacity;
        if (!size_mul(capacity, 2 * sizeof *p->parts, &n_bytes)) return false;
        tok_part *grown = realloc(p->parts, n_bytes);
        if (grown == NULL) return false;
        p->parts = grown;
        p->capacity = 2 * capacity;
    }
    p->parts[p->n++] = part;
    return true;
}

inferd_status tok_split(const tokenizer *t, bytes text, const tok_span *spans, size_t n_spans,
                        tok_parts *out, inferd_err *err) {
    inferd_status s = check_input(text, spans, n_spans, err);
    if (s != INFERD_OK) return s;
    region r = {.spans = spans, .n_spans = n_spans};
    for (size_t at = 0; at < text.n;) {
        tok_part part = part_at(t, text, &r, at);
        if (!push_part(out, part))
            return inferd_fail(err, INFERD_ENOMEM, "no memory for the parts of a text");
        at += part.n;
    }
    return INFERD_OK;
}
