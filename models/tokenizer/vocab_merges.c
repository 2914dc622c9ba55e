/* vocab_merges.c - the merges of a file, "left right", to pairs of ids.
 *
 * Byte-level vocabularies and those of Gemma 4 list them, the earliest first.  A merge that has no
 * token for a side, or for the whole, can never happen: it is left out and counted. */
#include "tokenizer/vocab.h"

/* The three tokens of the merge "left right"; false when one of them is missing. */
static bool find_merge(const tokenizer *t, bytes merge, tok_id *left, tok_id *right, tok_id *both) {
    unsigned char joined[2 * VOCAB_TOKEN_BYTES_MAX];
    const unsigned char *p = (const unsigned char *)merge.p;
    const unsigned char *space = merge.n < 3 ? NULL : memchr(p + 1, ' ', merge.n - 2);
    if (space == NULL || merge.n > sizeof joined) return false;
    size_t n_left = (size_t)(space - p), n_right = merge.n - n_left - 1;
    memcpy(joined, p, n_left);
    memcpy(joined + n_left, space + 1, n_right);
    *left = word_find(&t->by_name, p, n_left);
    *right = word_find(&t->by_name, space + 1, n_right);
    *both = word_find(&t->by_name, joined, n_left + n_right);
    return *left >= 0 && *right >= 0 && *both >= 0 && vocab_is_text(t, *left) &&
           vocab_is_text(t, *right) && vocab_is_text(t, *both);
}

inferd_status vocab_merges_read(tokenizer *t, const gguf *g, inferd_err *err) {
    gguf_array_view merges;
    inferd_status s = gguf_array_opt(g, "tokenizer.ggml.merges", GGUF_STRING, &merges, err);
    if (s != INFERD_OK) return s;
    if (!gguf_has(g, "tokenizer.ggml.merges"))
        return inferd_fail(err, INFERD_EFORMAT, "tokenizer.ggml.merges is absent");
    if (merges.n >= UINT32_MAX)
        return inferd_fail(err, INFERD_EFORMAT, "tokenizer.ggml.merges has %zu entries", merges.n);
    bool ok = merge_table_init(&t->merges, merges.n);
    for (size_t i = 0; ok && i < merges.n; i++) {
        tok_id left, right, both;
        if (!find_merge(t, merges.strings[i], &left, &right, &both))
            t->n_merges_dropped++;
        else
            ok = merge_add(&t->merges, left, right, (uint32_t)i, both);
    }
    return ok ? INFERD_OK : inferd_fail(err, INFERD_ENOMEM, "no memory for %zu merges", merges.n);
}
