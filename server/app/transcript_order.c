/* transcript_order.c - see transcript_order.h. */
#include "transcript_order.h"

#include <string.h>

/* Texts may be megabytes: most of them in pieces. */
static size_t common_bytes(bytes a, bytes b) {
    enum { PIECE = 256 };
    size_t n = 0, n_max = size_min(a.n, b.n);
    while (n_max - n >= PIECE && memcmp(a.p + n, b.p + n, PIECE) == 0) n += PIECE;
    while (n < n_max && a.p[n] == b.p[n]) n++;
    return n;
}

/* The hash of a control token is not random in all of its bits. */
static uint64_t rank_of(const transcript_part *p) {
    uint64_t x = (p->hash ^ p->hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
    return x ^ x >> 33;
}

/* By text, and the same text by its control token. */
static int compare(const transcript_part *a, const transcript_part *b) {
    int texts = memcmp(a->text, b->text, size_min(a->n_bytes, b->n_bytes));
    if (texts != 0) return texts;
    if (a->n_bytes != b->n_bytes) return a->n_bytes < b->n_bytes ? -1 : 1;
    return (a->special > b->special) - (a->special < b->special);
}

void transcript_order_add(transcript_part *parent, transcript_part *p) {
    transcript_part **at = &parent->top, **left = &p->below[0], **right = &p->below[1], *rest;
    while (*at != NULL && rank_of(*at) >= rank_of(p)) at = &(*at)->below[compare(*at, p) < 0];
    rest = *at;
    *at = p;
    while (rest != NULL) // what was there is split at p
        if (compare(rest, p) < 0) {
            *left = rest;
            left = &rest->below[1];
            rest = rest->below[1];
        } else {
            *right = rest;
            right = &rest->below[0];
            rest = rest->below[0];
        }
    *left = *right = NULL;
}

void transcript_order_remove(transcript_part *parent, transcript_part *p) {
    transcript_part **at = &parent->top, *left = p->below[0], *right = p->below[1];
    while (*at != p) at = &(*at)->below[compare(*at, p) < 0];
    while (left != NULL && right != NULL) // both sides become one
        if (rank_of(left) >= rank_of(right)) {
            *at = left;
            at = &left->below[1];
            left = left->below[1];
        } else {
            *at = right;
            at = &right->below[0];
            right = right->below[0];
        }
    *at = left != NULL ? left : right;
    p->below[0] = p->below[1] = NULL;
}

bool transcript_order_has(const transcript_part *parent, const transcript_part *p) {
    const transcript_part *at = parent->top;
    while (at != NULL && at != p) at = at->below[compare(at, p) < 0];
    return at != NULL;
}

transcript_part *transcript_order_nearest(const transcript_part *parent, bytes text,
                                          size_t *n_common) {
    transcript_part *before = NULL, *after = NULL, *at = parent->top;
    size_t n_before = 0, n_after = 0; // bytes in common with each
    while (at != NULL) {
        size_t n = size_min(n_before, n_after); // all between them begin so
        n += common_bytes((bytes){at->text + n, at->n_bytes - n}, (bytes){text.p + n, text.n - n});
        bool less = n == at->n_bytes ||
                    (n < text.n && (unsigned char)at->text[n] < (unsigned char)text.p[n]);
        if (less) {
            before = at;
            n_before = n;
            at = at->below[1];
        } else {
            after = at;
            n_after = n;
            at = at->below[0];
        }
    }
    bool is_after = after != NULL && (before == NULL || n_after >= n_before);
    *n_common = is_after ? n_after : n_before;
    return is_after ? after : before;
}
