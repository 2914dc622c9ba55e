/* content.c - a fingerprint of a model in 128 bits, different for models with different answers.
 *
 *     numbers    size and time of the file; of a made-up model its seed
 *     header     all of it: metadata and the list of tensors
 *     samples    a few kilobytes each from SAMPLES positions in the matrices
 *     rotation   frequencies and scale of each kind of layer: with longrope they depend on the
 *                served context, and keys of one set are wrong beside queries of the other
 *
 * Models that were made from one another often have the same header and size, and, unpacked from an
 * archive or an image, the same time too, so some of the weights are sampled.  They differ nearly
 * everywhere, or, when an adapter was merged, in one matrix of each layer.  Therefore samples are
 * distributed evenly over the matrices, and within a range of them the header's hash draws one, so
 * that no regular pattern of layers escapes the samples.  A file in which other bytes were changed
 * while its size and time stayed is taken for the old one.
 *
 * The halves are two different hashes of 64 bits over the same bytes. */
#include <string.h>

#include "inferd/hash.h"
#include "model_private.h"
#include "models/model.h"
#include "packed.h"

enum { SAMPLES = 48, SAMPLE_BYTES = 4096 };

typedef struct content {
    uint64_t fnv;
    uint64_t sums[2 + SAMPLES + 2 * DECODER_KINDS_MAX]; // [n] of each part
    size_t n;
} content;

static void add(content *c, const void *p, size_t n) {
    INFERD_CHECK(c->n < INFERD_COUNT(c->sums));
    c->fnv = hash_bytes(c->fnv, p, n);
    c->sums[c->n++] = packed_sum_of(p, n);
}

/* Tensors that are matrices, and the i-th of them. */
static uint64_t count_matrices(const gguf *g) {
    uint64_t n = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) n += gguf_tensor_at(g, i)->n_dims > 1;
    return n;
}

static const gguf_tensor *matrix_at(const gguf *g, uint64_t idx) {
    for (size_t i = 0;; i++) { // idx is below their number
        const gguf_tensor *t = gguf_tensor_at(g, i);
        if (t->n_dims > 1 && idx-- == 0) return t;
    }
}

static inferd_status add_sample(content *c, const gguf *g, uint64_t header, uint32_t i,
                                uint64_t n_matrices, inferd_err *err) {
    unsigned char piece[SAMPLE_BYTES];
    uint64_t drawn = hash_fold(hash_step(hash_fold(hash_step(header, i)), i));
    uint64_t begin = i * n_matrices / SAMPLES, end = (i + 1) * n_matrices / SAMPLES;
    if (end == begin) end++; // fewer matrices than samples: some have several
    const gguf_tensor *t = matrix_at(g, begin + drawn % (end - begin));
    size_t n = (size_t)(t->n_bytes < SAMPLE_BYTES ? t->n_bytes : SAMPLE_BYTES);
    uint64_t at = (drawn >> 16) % (t->n_bytes - n + 1);
    inferd_status st = gguf_read(g, t, at, piece, n, err);
    if (st == INFERD_OK) add(c, piece, n);
    return st;
}

static void add_rotation(content *c, const decoder_spec *s) {
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        const rope_spec *r = &s->kinds[i].rope;
        add(c, &r->scale, sizeof r->scale);
        if (r->n_pairs > 0) add(c, r->inv_freq, r->n_pairs * sizeof *r->inv_freq);
    }
}

static bool same_rotation(const decoder_spec *a, const decoder_spec *b) {
    bool same = a->n_kinds == b->n_kinds;
    for (uint32_t i = 0; i < a->n_kinds && same; i++) {
        const rope_spec *r = &a->kinds[i].rope, *o = &b->kinds[i].rope;
        same = r->n_pairs == o->n_pairs && memcmp(&r->scale, &o->scale, sizeof r->scale) == 0;
        if (same && r->n_pairs > 0)
            same = memcmp(r->inv_freq, o->inv_freq, r->n_pairs * sizeof *r->inv_freq) == 0;
    }
    return same;
}

inferd_status content_read(model *m, inferd_err *err) {
    gguf_identity id = gguf_identify(m->file);
    uint64_t numbers[4] = {id.n_bytes, m->dummy ? 0 : id.mtime_ns, m->dummy, m->dummy_seed};
    content c = {.fnv = HASH_BEGIN};
    inferd_status st = INFERD_OK;
    add(&c, numbers, sizeof numbers);
    add(&c, id.header.p, id.header.n);
    /* Of the header alone: the sampled positions are the same for all files with this header. */
    uint64_t header = hash_bytes(HASH_BEGIN, id.header.p, id.header.n);
    uint64_t n_matrices = m->dummy ? 0 : count_matrices(m->file);
    for (uint32_t i = 0; i < SAMPLES && n_matrices > 0 && st == INFERD_OK; i++)
        st = add_sample(&c, m->file, header, i, n_matrices, err);
    if (st == INFERD_OK) add_rotation(&c, &m->spec);
    m->content[0] = hash_fold(c.fnv);
    m->content[1] = packed_sum_of(c.sums, c.n * sizeof *c.sums);
    return st;
}

void model_content(const model *m, uint64_t out[2]) {
    memcpy(out, m->content, sizeof m->content);
}

inferd_status model_same_content(const model *a, const model *b, bool *same, inferd_err *err) {
    *same = false;
    if (a == b) {
        *same = true;
        return INFERD_OK;
    }
    if (a->dummy != b->dummy || (a->dummy && a->dummy_seed != b->dummy_seed)) return INFERD_OK;
    if (!same_rotation(&a->spec, &b->spec)) return INFERD_OK; // of other served contexts
    if (a->dummy) { // the parts that are not made up from the seed
        *same = gguf_same_header(a->file, b->file);
        return INFERD_OK;
    }
    return gguf_same_bytes(a->file, b->file, same, err);
}
