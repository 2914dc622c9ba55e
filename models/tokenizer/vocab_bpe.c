/* vocab_bpe.c - byte-level BPE: names back to bytes, and words that are tokens.
 *
 * Byte-level vocabularies write each byte as one printable character: a byte that is a printable
 * character of Latin-1 as that character, the other 68 as U+0100 and up, in order.  A space is
 * U+0120, so no name contains one. */
#include "tokenizer/vocab.h"

#include "tokenizer/utf8.h"

enum { NAME_CHARS = 0x144, NO_BYTE = -1 }; // names use characters below this one

static bool is_written_as_itself(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

static void make_byte_map(int16_t byte_of_char[NAME_CHARS]) {
    unsigned next = 0x100;
    for (unsigned c = 0; c < NAME_CHARS; c++) byte_of_char[c] = NO_BYTE;
    for (unsigned byte = 0; byte < 256; byte++)
        byte_of_char[is_written_as_itself(byte) ? byte : next++] = (int16_t)byte;
}

/* The bytes of `name`, into `out`; false when some character stands for no byte. */
static bool decode_name(const int16_t byte_of_char[NAME_CHARS], bytes name, char *out, size_t *n) {
    const unsigned char *p = (const unsigned char *)name.p;
    *n = 0;
    for (size_t at = 0; at < name.n;) {
        unsigned length = utf8_char_bytes(p + at, name.n - at);
        if (length == 0) return false;
        uint32_t c = utf8_decode(p + at, &length);
        if (c >= NAME_CHARS || byte_of_char[c] == NO_BYTE) return false;
        out[(*n)++] = (char)byte_of_char[c];
        at += length;
    }
    return true;
}

/* Special tokens are written unchanged; so is a name that is no spelling of bytes. */
static void make_pieces(tokenizer *t, const int16_t byte_of_char[NAME_CHARS], char *room) {
    for (size_t i = 0; i < t->n_vocab; i++) {
        size_t n;
        bool special = !vocab_is_text(t, (tok_id)i) || t->kinds[i] == TOKEN_USER_DEFINED;
        if (special || !decode_name(byte_of_char, t->names[i], room, &n)) {
            t->pieces[i] = t->names[i];
            continue;
        }
        t->pieces[i] = (bytes){room, n};
        room += n;
    }
}

static inferd_status find_byte_tokens(tokenizer *t, const int16_t byte_of_char[NAME_CHARS],
                                      inferd_err *err) {
    bool any = false;
    for (unsigned byte = 0; byte < 256; byte++) t->byte_ids[byte] = -1;
    for (uint32_t c = 0; c < NAME_CHARS; c++) {
        if (byte_of_char[c] == NO_BYTE) continue;
        unsigned char name[UTF8_BYTES_MAX];
        unsigned n = utf8_encode(c, name);
        tok_id id = word_find(&t->by_name, name, n);
        if (id < 0 || !vocab_is_text(t, id)) continue;
        // A user-defined token with the same spelling is that text and not the byte.
        if (t->pieces[id].n != 1 || (unsigned char)t->pieces[id].p[0] != byte_of_char[c]) continue;
        t->byte_ids[byte_of_char[c]] = id;
        any = true;
    }
    return any ? INFERD_OK
               : inferd_fail(err, INFERD_EFORMAT, "tokenizer.ggml.tokens has no token of one byte");
}

size_t vocab_bpe_symbols(const tokenizer *t, const unsigned char *p, size_t n, tok_id *symbols) {
    size_t n_symbols = 0;
    for (size_t i = 0; i < n; i++) {
        tok_id id = t->byte_ids[p[i]];
        symbols[n_symbols] = id;
        n_symbols += id >= 0; // without it, its neighbours become neighbours of each other
    }
    return n_symbols;
}

/* Words too long for the engine's short path are not added, unless nothing need be merged. */
static inferd_status add_words(tokenizer *t, inferd_err *err) {
    if (!word_table_init(&t->words, t->pieces, t->n_vocab))
        return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu words", t->n_vocab);
    for (size_t i = 0; i < t->n_vocab; i++) {
        tok_id id = (tok_id)i;
        size_t n = t->pieces[i].n;
        if (n == 0 || !vocab_is_text(t, id) || (n > MERGE_SMALL_MAX && !t->pretok->ignore_merges))
            continue;
        word_add(&t->words, id);
        if (t->pretok->ignore_merges) t->word_states[i] = WORD_WHOLE;
    }
    return INFERD_OK;
}

static inferd_status read_pretok(tokenizer *t, const gguf *g, inferd_err *err) {
    bytes pre;
    char shown[VOCAB_SHOWN_BYTES], known[256];
    inferd_status s = gguf_str_opt(g, "tokenizer.ggml.pre", &pre, err);
    if (s != INFERD_OK) return s;
    t->pretok = pre.p == NULL ? NULL : pretok_find(pre);
    if (t->pretok != NULL) return INFERD_OK;
    pretok_list(known, sizeof known);
    if (pre.p == NULL)
        return inferd_fail(
            err, INFERD_EUNSUPPORTED,
            "tokenizer.ggml.pre is absent, so how text splits into words is unknown; "
            "known are %s",
            known);
    return inferd_fail(err, INFERD_EUNSUPPORTED, "tokenizer.ggml.pre is \"%s\"; known are %s",
                       vocab_show(pre, shown), known);
}

inferd_status vocab_bpe_load(tokenizer *t, const gguf *g, char *room, inferd_err *err) {
    int16_t byte_of_char[NAME_CHARS];
    bool prefix;
    inferd_status s = read_pretok(t, g, err);
    if (s != INFERD_OK) return s;
    s = gguf_bool_or(g, "tokenizer.ggml.add_space_prefix", false, &prefix, err);
    if (s != INFERD_OK) return s;
    if (prefix)
        return inferd_fail(err, INFERD_EUNSUPPORTED,
                           "tokenizer.ggml.add_space_prefix is true in a byte-level vocabulary");
    make_byte_map(byte_of_char);
    make_pieces(t, byte_of_char, room);
    s = find_byte_tokens(t, byte_of_char, err);
    if (s != INFERD_OK) return s;
    s = vocab_merges_read(t, g, err);
    if (s != INFERD_OK) return s;
    return add_words(t, err);
}
