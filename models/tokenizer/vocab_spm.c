/* vocab_spm.c - SentencePiece BPE: pieces, byte tokens, and scores to pairs of ids.  Gemma 4 lists
 * its merges instead of scores (vocab_merges.c); all else is the same.
 *
 * SentencePiece merges the two neighbours that together are the token of the highest score.  The
 * texts are known beforehand, so they are looked up here once: every way to cut a token into two
 * symbols becomes a pair in the merge table, ranked by the score of the token.  A symbol is a token
 * or, for a character that is not a token, n_vocab + the character. */
#include "tokenizer/vocab.h"

#include <math.h>

#include "tokenizer/utf8.h"

static const unsigned char space_mark[3] = {0xE2, 0x96, 0x81}; // U+2581, a space in names
enum { SPACE_MARK = 0x2581 };

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of a name like "<0x0A>"; -1: not such a name. */
static int byte_of_name(bytes name) {
    if (name.n != 6 || memcmp(name.p, "<0x", 3) != 0 || name.p[5] != '>') return -1;
    int high = hex_digit(name.p[3]), low = hex_digit(name.p[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static bool is_space_mark(const unsigned char *p, size_t n) {
    return n >= sizeof space_mark && memcmp(p, space_mark, sizeof space_mark) == 0;
}

static size_t copy_with_spaces(bytes name, char *out) {
    size_t n = 0;
    for (size_t at = 0; at < name.n;) {
        if (is_space_mark((const unsigned char *)name.p + at, name.n - at)) {
            out[n++] = ' ';
            at += sizeof space_mark;
        } else {
            out[n++] = name.p[at++];
        }
    }
    return n;
}

/* Text tokens with their spaces, byte tokens as their byte, control tokens unchanged. */
static inferd_status make_pieces(tokenizer *t, char *room, inferd_err *err) {
    for (unsigned byte = 0; byte < 256; byte++) t->byte_ids[byte] = -1;
    for (size_t i = 0; i < t->n_vocab; i++) {
        size_t n = 1;
        if (t->kinds[i] == TOKEN_BYTE) {
            int byte = byte_of_name(t->names[i]);
            char shown[VOCAB_SHOWN_BYTES];
            if (byte < 0)
                return inferd_fail(err, INFERD_EFORMAT,
                                   "tokenizer.ggml.tokens: byte token %zu is \"%s\", expected "
                                   "<0x00> to <0xFF>",
                                   i, vocab_show(t->names[i], shown));
            room[0] = (char)byte;
            if (t->byte_ids[byte] < 0) t->byte_ids[byte] = (tok_id)i;
        } else if (vocab_is_text(t, (tok_id)i)) {
            n = copy_with_spaces(t->names[i], room);
        } else {
            t->pieces[i] = t->names[i];
            continue;
        }
        t->pieces[i] = (bytes){room, n};
        room += n;
    }
    for (unsigned byte = 0; byte < 256; byte++)
        if (t->byte_ids[byte] < 0)
            return inferd_fail(err, INFERD_EFORMAT,
                               "tokenizer.ggml.tokens has no byte token <0x%02X>", byte);
    return INFERD_OK;
}

typedef struct scored {
    float score;
    tok_id id;
} scored;

static int by_score(const void *a, const void *b) {
    float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return (x < y) - (x > y); // highest first
}

/* User-defined tokens come before all others, whatever their score (converters write -1000); those
 * that merging makes are the runs of spaces. */
static float score_of(const tokenizer *t, const gguf_array_view *scores, size_t i) {
    float score = (float)gguf_array_real(scores, i);
    return t->kinds[i] == TOKEN_USER_DEFINED && score == score ? INFINITY : score;
}

/* ranks[id]: 0 for the tokens of the highest score; equal scores have equal ranks. */
static inferd_status rank_scores(const tokenizer *t, const gguf_array_view *scores, uint32_t *ranks,
                                 inferd_err *err) {
    scored *sorted = malloc(t->n_vocab * sizeof *sorted);
    if (sorted == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu scores", scores->n);
    for (size_t i = 0; i < t->n_vocab; i++) {
        sorted[i] = (scored){score_of(t, scores, i), (tok_id)i};
        if (sorted[i].score != sorted[i].score) {
            free(sorted);
            return inferd_fail(err, INFERD_EFORMAT, "tokenizer.ggml.scores: token %zu has NaN", i);
        }
    }
    qsort(sorted, t->n_vocab, sizeof *sorted, by_score);
    uint32_t rank = 0;
    for (size_t i = 0; i < t->n_vocab; i++) {
        if (i > 0 && sorted[i].score != sorted[i - 1].score) rank++;
        ranks[sorted[i].id] = rank;
    }
    free(sorted);
    return INFERD_OK;
}

tok_id vocab_char_symbol(const tokenizer *t, const unsigned char *p, size_t n, uint32_t c) {
    if (c == ' ') {
        p = space_mark;
        n = sizeof space_mark;
        c = SPACE_MARK;
    }
    tok_id id = word_find(&t->by_name, p, n);
    return id >= 0 && vocab_is_text(t, id) ? id : (tok_id)(t->n_vocab + c);
}

size_t vocab_spm_symbols(const tokenizer *t, const unsigned char *p, size_t n, tok_id *symbols) {
    size_t n_symbols = 0;
    unsigned length;
    for (size_t at = 0; at < n; at += length) {
        uint32_t c = utf8_decode(p + at, &length);
        symbols[n_symbols++] = vocab_char_symbol(t, p + at, length, c);
    }
    return n_symbols;
}

/* The symbol with the text `p`: a token or a single character; -1: there is none. */
static tok_id find_symbol(const tokenizer *t, const unsigned char *p, size_t n) {
    unsigned length;
    uint32_t c = utf8_decode(p, &length);
    if (length == n) return vocab_char_symbol(t, p, n, c);
    tok_id id = word_find(&t->by_name, p, n);
    return id >= 0 && vocab_is_text(t, id) ? id : -1;
}

/* Merging can produce only the first of equal names, only names in UTF-8, and none with a plain
 * space, because every space is U+2581 in merging. */
static bool is_mergeable(const tokenizer *t, tok_id id) {
    bytes name = t->names[id];
    return name.n > 0 && vocab_is_text(t, id) && memchr(name.p, ' ', name.n) == NULL &&
           tok_find(t, name) == id &&
           utf8_valid_bytes((const unsigned char *)name.p, name.n) == name.n;
}

static inferd_status make_merges(tokenizer *t, const uint32_t *ranks, inferd_err *err) {
    bool ok = merge_table_init(&t->merges, 2 * t->n_vocab);
    for (size_t i = 0; ok && i < t->n_vocab; i++) {
        const unsigned char *p = (const unsigned char *)t->names[i].p;
        size_t n = t->names[i].n;
        unsigned length;
        if (!is_mergeable(t, (tok_id)i)) continue;
        utf8_decode(p, &length);
        for (size_t at = length; ok && at < n; at += length) {
            tok_id left = find_symbol(t, p, at);
            tok_id right = left < 0 ? -1 : find_symbol(t, p + at, n - at);
            if (right >= 0) ok = merge_add(&t->merges, left, right, ranks[i], (tok_id)i);
            utf8_decode(p + at, &length);
        }
    }
    return ok ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory for the merges");
}

static inferd_status add_words(tokenizer *t, inferd_err *err) {
    if (!word_table_init(&t->words, t->pieces, t->n_vocab))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu words", t->n_vocab);
    for (size_t i = 0; i < t->n_vocab; i++)
        if (is_mergeable(t, (tok_id)i) && t->pieces[i].n <= MERGE_SMALL_MAX)
            word_add(&t->words, (tok_id)i);
    return INFERD_OK;
}

static int by_char(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Characters before a space inside a token.  At least one token contains the character and the
 * space, so merging may cross from one into the other; after any other character it never does. */
static inferd_status find_before_space(tokenizer *t, inferd_err *err) {
    size_t n = 0, capacity = 0;
    for (size_t i = 0; i < t->n_vocab; i++) {
        const unsigned char *p = (const unsigned char *)t->names[i].p;
        uint32_t last = 0;
        unsigned length;
        if (!is_mergeable(t, (tok_id)i)) continue;
        for (size_t at = 0; at < t->names[i].n; at += length) {
            uint32_t c = utf8_decode(p + at, &length);
            if (c == SPACE_MARK && at > 0) {
                if (n == capacity) {
                    capacity = capacity == 0 ? 64 : 2 * capacity;
                    uint32_t *more = realloc(t->before_space, capacity * sizeof *more);
                    if (more == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory");
                    t->before_space = more;
                }
                t->before_space[n++] = last;
            }
            last = c;
        }
    }
    if (n > 0) qsort(t->before_space, n, sizeof *t->before_space, by_char);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || t->before_space[i] != t->before_space[i - 1])
            t->before_space[t->n_before_space++] = t->before_space[i];
    return INFERD_OK;
}

static inferd_status read_scores(tokenizer *t, const gguf *g, inferd_err *err) {
    gguf_array_view scores;
    inferd_status s = gguf_array_opt(g, "tokenizer.ggml.scores", GGUF_F32, &scores, err);
    if (s != INFERD_OK) return s;
    if (scores.n != t->n_vocab)
        return inferd_fail(err, INFERD_EFORMAT,
                           "tokenizer.ggml.scores has %zu entries for %zu tokens", scores.n,
                           t->n_vocab);
    uint32_t *ranks = malloc(t->n_vocab * sizeof *ranks);
    if (ranks == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu scores", scores.n);
    s = rank_scores(t, &scores, ranks, err);
    if (s == INFERD_OK) s = make_merges(t, ranks, err);
    free(ranks);
    return s;
}

inferd_status vocab_spm_load(tokenizer *t, const gguf *g, char *room, inferd_err *err) {
    bool prefix = !t->listed_merges; // unless the file says otherwise
    inferd_status s =
        gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", prefix, &t->add_space_prefix, err);
    if (s != INFERD_OK) return s;
    s = make_pieces(t, room, err);
    if (s != INFERD_OK) return s;
    s = t->listed_merges ? vocab_merges_read(t, g, err) : read_scores(t, g, err);
    if (s != INFERD_OK) return s;
    s = find_before_space(t, err);
    if (s != INFERD_OK) return s;
    return add_words(t, err);
}
