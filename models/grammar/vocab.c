/* vocab.c - see vocab.h. */
#include "vocab.h"

#include <string.h>

/* ---- plain tokens ---- */

/* Without U+0085, A0, 1680, 180E, 2000 to 207F (quotes and dashes, too), 3000, FEFF. */
const plain_form plain_forms[PLAIN_FORMS] = {
    {1, {0x20}, {0x21}},
    {1, {0x23}, {0x5b}},
    {1, {0x5d}, {0x7e}},
    {2, {0xc2, 0xa1}, {0xc2, 0xbf}},
    {2, {0xc3, 0x80}, {0xdf, 0xbf}},
    {3, {0xe0, 0xa0, 0x80}, {0xe0, 0xbf, 0xbf}},
    {3, {0xe1, 0x80, 0x80}, {0xe1, 0x99, 0xbf}},
    {3, {0xe1, 0x9b, 0x80}, {0xe1, 0x9f, 0xbf}},
    {3, {0xe1, 0xa1, 0x80}, {0xe1, 0xbf, 0xbf}},
    {3, {0xe2, 0x82, 0x80}, {0xe2, 0xbf, 0xbf}},
    {3, {0xe3, 0x80, 0x81}, {0xe3, 0x80, 0xbf}},
    {3, {0xe3, 0x81, 0x80}, {0xe3, 0xbf, 0xbf}},
    {3, {0xe4, 0x80, 0x80}, {0xec, 0xbf, 0xbf}},
    {3, {0xed, 0x80, 0x80}, {0xed, 0x9f, 0xbf}},
    {3, {0xee, 0x80, 0x80}, {0xee, 0xbf, 0xbf}},
    {3, {0xef, 0x80, 0x80}, {0xef, 0xba, 0xbf}},
    {3, {0xef, 0xbb, 0x80}, {0xef, 0xbb, 0xbe}},
    {3, {0xef, 0xbc, 0x80}, {0xef, 0xbf, 0xbf}},
    {4, {0xf0, 0x90, 0x80, 0x80}, {0xf0, 0xbf, 0xbf, 0xbf}},
    {4, {0xf1, 0x80, 0x80, 0x80}, {0xf3, 0xbf, 0xbf, 0xbf}},
    {4, {0xf4, 0x80, 0x80, 0x80}, {0xf4, 0x8f, 0xbf, 0xbf}},
};

/* Bytes of the plain code point at p; 0: there is none. */
static size_t plain_bytes(const unsigned char *p, size_t n) {
    for (size_t f = 0; f < PLAIN_FORMS; f++) {
        const plain_form *form = &plain_forms[f];
        size_t i = 0;
        while (i < form->n && i < n && p[i] >= form->low[i] && p[i] <= form->high[i]) i++;
        if (i > 0 && i == form->n) return i;
    }
    return 0;
}

/* Code points of a plain text; 0: it is none, or too long. */
static uint32_t plain_length(bytes text) {
    const unsigned char *p = (const unsigned char *)text.p;
    uint32_t n = 0;
    for (size_t at = 0; at < text.n; n++) {
        size_t bytes_here = plain_bytes(p + at, text.n - at);
        if (bytes_here == 0) return 0;
        at += bytes_here;
    }
    return n <= VOCAB_PLAIN_MAX ? n : 0;
}

/* ---- the trie ---- */

bytes grammar_vocab_piece(const grammar_vocab *v, tok_id id) {
    if ((uint32_t)id >= v->n_vocab) return (bytes){NULL, 0};
    return (bytes){v->piece_bytes + v->piece_at[id], v->piece_at[id + 1] - v->piece_at[id]};
}

typedef struct named {
    bytes piece;
    uint32_t id;
} named;

static int compare_named(const void *a, const void *b) {
    const named *x = a, *y = b;
    int order = memcmp(x->piece.p, y->piece.p, size_min(x->piece.n, y->piece.n));
    if (order != 0) return order;
    if (x->piece.n != y->piece.n) return x->piece.n > y->piece.n ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Ids of the tokens with usable pieces, in the order of their bytes.  NULL: no memory. */
static uint32_t *sort_tokens(const grammar_vocab *v, uint32_t *n_out) {
    named *all = malloc(size_max(v->n_vocab, 1) * sizeof *all);
    uint32_t *tokens = malloc(size_max(v->n_vocab, 1) * sizeof *tokens), n = 0;
    if (all == NULL || tokens == NULL) {
        free(all);
        free(tokens);
        return NULL;
    }
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        bytes piece = grammar_vocab_piece(v, (tok_id)id);
        if (piece.n > 0 && piece.n <= VOCAB_PIECE_BYTES_MAX) all[n++] = (named){piece, id};
    }
    qsort(all, n, sizeof *all, compare_named);
    for (uint32_t i = 0; i < n; i++) tokens[i] = all[i].id;
    free(all);
    *n_out = n;
    return tokens;
}

static size_t common_prefix(bytes a, bytes b) {
    size_t n = size_min(a.n, b.n), i = 0;
    while (i < n && a.p[i] == b.p[i]) i++;
    return i;
}

/* From sorted tokens of different bytes: each adds the nodes behind what it shares with the one
 * before it; a node's subtree ends where a token leaves it. */
static bool build_trie(const grammar_vocab *v, const uint32_t *tokens, uint32_t n,
                       vocab_trie *out) {
    size_t n_nodes = 0;
    bytes before = {NULL, 0};
    for (uint32_t i = 0; i < n; i++) {
        bytes piece = grammar_vocab_piece(v, (tok_id)tokens[i]);
        n_nodes += piece.n - common_prefix(before, piece);
        if (piece.p[0] != GRAMMAR_TOKEN_MARK) out->depth = u32_max(out->depth, (uint32_t)piece.n);
        before = piece;
    }
    if (n_nodes > VOCAB_NODES_MAX) return false;
    out->nodes = malloc(size_max(n_nodes, 1) * sizeof *out->nodes);
    if (out->nodes == NULL) return false;
    uint32_t open[VOCAB_PIECE_BYTES_MAX]; // nodes of the token before
    size_t n_open = 0;
    before = (bytes){NULL, 0};
    for (uint32_t i = 0; i <= n; i++) {
        bytes piece = i < n ? grammar_vocab_piece(v, (tok_id)tokens[i]) : (bytes){NULL, 0};
        size_t shared = common_prefix(before, piece);
        for (; n_open > shared; n_open--)
            out->nodes[open[n_open - 1]].next = out->n_nodes & 0xffffff;
        for (; n_open < piece.n; n_open++) {
            open[n_open] = out->n_nodes;
            out->nodes[out->n_nodes++] = (vocab_node){.token = (v->n_words * 64) & 0xffffff,
                                                      .byte = (unsigned char)piece.p[n_open],
                                                      .depth = (uint8_t)(n_open + 1)};
        }
        if (i < n) out->nodes[open[piece.n - 1]].token = tokens[i] & 0xffffff;
        before = piece;
    }
    for (uint32_t b = 0; b < 256; b++) out->of_byte[b] = out->n_nodes;
    for (uint32_t at = 0; at < out->n_nodes; at = out->nodes[at].next)
        out->of_byte[out->nodes[at].byte] = at;
    return true;
}

static void set_bit(uint64_t *mask, uint32_t id) {
    mask[id / 64] |= UINT64_C(1) << (id % 64);
}

/* Sorts the tokens, notes those of the same bytes, and builds both tries and the plain masks. */
static bool build(grammar_vocab *v) {
    uint32_t n = 0, n_different = 0, n_others = 0;
    uint32_t *tokens = sort_tokens(v, &n);
    if (tokens == NULL) return false;
    for (uint32_t i = 0; i < n; i++) {
        bytes piece = grammar_vocab_piece(v, (tok_id)tokens[i]);
        uint32_t length = plain_length(piece);
        for (uint32_t k = length; length > 0 && k <= VOCAB_PLAIN_MAX; k++)
            set_bit(v->plain[k], tokens[i]);
        uint32_t last = n_different > 0 ? tokens[n_different - 1] : 0;
        bytes other = grammar_vocab_piece(v, (tok_id)last);
        if (n_different > 0 && other.n == piece.n && memcmp(other.p, piece.p, piece.n) == 0) {
            v->doubles[2 * v->n_doubles] = last;
            v->doubles[2 * v->n_doubles++ + 1] = tokens[i];
        } else {
            tokens[n_different++] = tokens[i];
        }
    }
    bool ok = build_trie(v, tokens, n_different, &v->all);
    for (uint32_t i = 0; i < n_different; i++)
        if (plain_length(grammar_vocab_piece(v, (tok_id)tokens[i])) == 0)
            tokens[n_others++] = tokens[i];
    ok = ok && build_trie(v, tokens, n_others, &v->others);
    free(tokens);
    return ok;
}

/* ---- making one ---- */

uint32_t grammar_vocab_words(const grammar_vocab *v) {
    return v->n_words;
}

void grammar_vocab_hold(grammar_vocab *v) {
    atomic_fetch_add_explicit(&v->n_refs, 1, memory_order_relaxed);
}

void grammar_vocab_release(grammar_vocab *v) {
    if (v == NULL || atomic_fetch_sub_explicit(&v->n_refs, 1, memory_order_acq_rel) != 1) return;
    for (uint32_t i = 0; i <= VOCAB_PLAIN_MAX; i++) free(v->plain[i]);
    free(v->piece_at);
    free(v->piece_bytes);
    free(v->doubles);
    free(v->end_mask);
    free(v->all.nodes);
    free(v->others.nodes);
    free(v);
}

static inferd_status no_memory(grammar_vocab *v, inferd_err *err) {
    uint32_t n_vocab = v != NULL ? v->n_vocab : 0;
    grammar_vocab_release(v);
    return inferd_fail(err, INFERD_ENOMEM, "no memory for a trie of %u tokens", n_vocab);
}

static bool hold_arrays(grammar_vocab *v, size_t n_bytes) {
    v->n_words = (v->n_vocab + 63) / 64;
    size_t words = size_max(v->n_words, 1);
    v->piece_at = calloc((size_t)v->n_vocab + 1, sizeof *v->piece_at);
    v->piece_bytes = malloc(size_max(n_bytes, 1));
    v->doubles = malloc(size_max(v->n_vocab, 1) * 2 * sizeof *v->doubles);
    v->end_mask = calloc(words, sizeof *v->end_mask);
    if (v->piece_at == NULL || v->piece_bytes == NULL || v->doubles == NULL || v->end_mask == NULL)
        return false;
    for (uint32_t i = 0; i <= VOCAB_PLAIN_MAX; i++) {
        v->plain[i] = calloc(words, sizeof *v->plain[i]);
        if (v->plain[i] == NULL) return false;
    }
    return true;
}

inferd_status grammar_vocab_of_pieces(const bytes *pieces, uint32_t n_vocab, const tok_id *end_ids,
                                      uint32_t n_end_ids, grammar_vocab **out, inferd_err *err) {
    size_t n_bytes = 0;
    *out = NULL;
    for (uint32_t id = 0; id < n_vocab; id++) n_bytes += pieces[id].n;
    if (n_vocab > VOCAB_TOKENS_MAX || n_bytes > UINT32_MAX)
        return inferd_fail(err, INFERD_ETOOLONG,
                           "a vocabulary of %u tokens and %zu bytes is too large for masks",
                           n_vocab, n_bytes);
    grammar_vocab *v = calloc(1, sizeof *v);
    if (v == NULL) return no_memory(v, err);
    atomic_init(&v->n_refs, 1);
    v->n_vocab = n_vocab;
    if (!hold_arrays(v, n_bytes)) return no_memory(v, err);
    uint32_t at = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if (pieces[id].n > 0) memcpy(v->piece_bytes + at, pieces[id].p, pieces[id].n);
        at += (uint32_t)pieces[id].n;
        v->piece_at[id + 1] = at;
    }
    for (uint32_t i = 0; i < n_end_ids; i++)
        if ((uint32_t)end_ids[i] < n_vocab) set_bit(v->end_mask, (uint32_t)end_ids[i]);
    if (!build(v)) return no_memory(v, err);
    *out = v;
    return INFERD_OK;
}

/* ---- of a tokenizer ---- */

static bool has_mark(bytes text) {
    return text.n > 0 && memchr(text.p, GRAMMAR_TOKEN_MARK, text.n) != NULL;
}

/* A control token, which is no end: its symbol, appended to `symbols`. */
static bytes piece_of_control(const tokenizer *t, tok_id id, buf *symbols) {
    bytes name = tok_name(t, id);
    size_t at = symbols->n;
    if (name.n == 0 || has_mark(name)) return (bytes){NULL, 0};
    grammar_add_token(symbols, name);
    return (bytes){symbols->p + at, symbols->n - at};
}

/* A byte of the mark in the text of another token would spell a symbol, or is no UTF-8. */
static bytes piece_of_text(const tokenizer *t, tok_id id) {
    bytes piece = tok_piece(t, id);
    return has_mark(piece) ? (bytes){NULL, 0} : piece;
}

/* So that symbols->p stays where it is. */
static bool hold_symbols(const tokenizer *t, uint32_t n, buf *symbols) {
    size_t n_bytes = 0;
    for (uint32_t id = 0; id < n; id++)
        if (tok_is_control(t, (tok_id)id) &&
            !size_add(n_bytes, tok_name(t, (tok_id)id).n, &n_bytes))
            return false;
    return size_add(n_bytes, 2 * (size_t)n, &n_bytes) && buf_reserve(symbols, n_bytes);
}

inferd_status grammar_vocab_create(const tokenizer *t, uint32_t n_vocab, grammar_vocab **out,
                                   inferd_err *err) {
    *out = NULL;
    uint32_t n_named = (uint32_t)size_min(tok_n_vocab(t), n_vocab); // the others have no text
    bytes *pieces = calloc(size_max(n_vocab, 1), sizeof *pieces);
    tok_id *end_ids = malloc(size_max(n_vocab, 1) * sizeof *end_ids);
    uint32_t n_end_ids = 0;
    buf symbols = {0};
    inferd_status status = INFERD_ENOMEM;
    if (pieces != NULL && end_ids != NULL && hold_symbols(t, n_named, &symbols)) {
        for (uint32_t id = 0; id < n_named; id++) {
            if (tok_is_end(t, (tok_id)id))
                end_ids[n_end_ids++] = (tok_id)id;
            else
                pieces[id] = tok_is_control(t, (tok_id)id)
                                 ? piece_of_control(t, (tok_id)id, &symbols)
                                 : piece_of_text(t, (tok_id)id);
        }
        status = grammar_vocab_of_pieces(pieces, n_vocab, end_ids, n_end_ids, out, err);
    } else {
        inferd_fail(err, status, "no memory for a trie of %u tokens", n_vocab);
    }
    buf_deinit(&symbols);
    free(pieces);
    free(end_ids);
    return status;
}
