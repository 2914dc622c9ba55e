/* sampler.c - see sampler.h for the order of operations.
 *
 * A mask that allows many tokens is written into a copy of the row, as -inf.  One that allows few
 * becomes a list of ids, and drawing looks at these only.  Both give the same token.
 *
 * A row of V logits costs one pass for the maximum (and to find NaN), and, when it is not greedy,
 * one pass that draws noise for four tokens at a time; the two logarithms of a Gumbel number are
 * computed only if a cheap upper bound could still win, a few dozen times per row.
 *
 * top_k and top_p pop a heap of candidates in order of (logit, lower id first), only as many as
 * needed; nothing else is sorted. */
#include "models/sampler.h"

#include <math.h>
#include <string.h>

#include "inferd/sample_math.h"

/* Below this only the largest logit could be drawn, and so small a divisor may count as zero if
 * denormals do. */
#define TEMPERATURE_MIN 1e-30f

/* A mask that allows at most one token in so many is read as a list. */
enum { LIST_PART = 8 };

struct sampler {
    uint32_t n_vocab;
    float *logits;      // [n_vocab] masked, biased and penalised copy
    uint32_t *heap;     // [n_vocab] candidate ids
    uint16_t *n_seen;   // [n_vocab] counts of a row's history; all zero between rows
    uint8_t *in_prompt; // [n_vocab] likewise
};

sampler *sampler_create(uint32_t n_vocab) {
    sampler *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->n_vocab = n_vocab;
    s->logits = calloc(n_vocab, sizeof *s->logits); // of a list only listed ids are written first
    s->heap = malloc((size_t)n_vocab * sizeof *s->heap);
    s->n_seen = calloc(n_vocab, sizeof *s->n_seen);
    s->in_prompt = calloc(n_vocab, sizeof *s->in_prompt);
    if (s->logits == NULL || s->heap == NULL || s->n_seen == NULL || s->in_prompt == NULL) {
        sampler_destroy(s);
        return NULL;
    }
    return s;
}

void sampler_destroy(sampler *s) {
    if (s == NULL) return;
    free(s->logits);
    free(s->heap);
    free(s->n_seen);
    free(s->in_prompt);
    free(s);
}

/* What a row draws from: all ids, or those listed in sampler.heap. */
typedef struct candidates {
    const float *logits; // [n_vocab] of the row, or the changed copy
    uint32_t n;
    bool listed; // heap[0 ... n), ascending
} candidates;

/* The largest logit and its id, the lowest on a tie.  SAMPLE_BROKEN: one is NaN or +inf;
 * SAMPLE_NONE_ALLOWED: none is finite. */
static tok_id find_largest(const float *logits, uint32_t n, float *largest) {
    float best = -INFINITY;
    tok_id id = SAMPLE_NONE_ALLOWED;
    bool broken = false;
    for (uint32_t i = 0; i < n; i++) {
        broken |= !(logits[i] < INFINITY);
        if (logits[i] > best) {
            best = logits[i];
            id = (tok_id)i;
        }
    }
    *largest = best;
    return broken ? SAMPLE_BROKEN : id;
}

static tok_id find_largest_listed(const sampler *s, const candidates *c, float *largest) {
    float best = -INFINITY;
    tok_id id = SAMPLE_NONE_ALLOWED;
    bool broken = false;
    for (uint32_t i = 0; i < c->n; i++) {
        float l = c->logits[s->heap[i]];
        broken |= !(l < INFINITY);
        if (l > best) {
            best = l;
            id = (tok_id)s->heap[i];
        }
    }
    *largest = best;
    return broken ? SAMPLE_BROKEN : id;
}

/* log(sum(exp(logits - largest))), in fixed point. */
static float log_sum(const float *logits, uint32_t n, float largest) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += sample_fixed(sample_exp(logits[i] - largest));
    return sample_log_fixed(sum);
}

/* The n_top largest raw logits, best first. */
static void report_top(const float *logits, uint32_t n, uint32_t n_top, float norm,
                       sample_result *out) {
    uint32_t held = 0;
    n_top = u32_min(n_top, n);
    for (uint32_t i = 0; i < n && n_top > 0; i++) {
        float l = logits[i];
        if (held == n_top && !(l > out->top[held - 1].logprob)) continue;
        uint32_t at = held < n_top ? held++ : held - 1;
        for (; at > 0 && l > out->top[at - 1].logprob; at--) out->top[at] = out->top[at - 1];
        out->top[at] = (tok_logprob){(tok_id)i, l};
    }
    for (uint32_t i = 0; i < held; i++) out->top[i].logprob -= norm;
    out->n_top = held;
}

static bool wants_change(const sample_row *row) {
    const sample_params *p = row->params;
    return p->n_bias > 0 || row->n_banned > 0 || p->repetition_penalty != 1.0f ||
           p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
}

/* Repetition over prompt and output, presence and frequency over the output, each token once. */
static void penalise(sampler *s, const sample_row *row) {
    const sample_params *p = row->params;
    if (p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f &&
        p->frequency_penalty == 0.0f)
        return;
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        uint32_t id = (uint32_t)row->tokens[i];
        if (id >= s->n_vocab) continue;
        if (i < row->n_prompt)
            s->in_prompt[id] = 1;
        else if (s->n_seen[id] < UINT16_MAX)
            s->n_seen[id]++;
    }
    for (uint32_t i = 0; i < row->n_tokens; i++) {
        uint32_t id = (uint32_t)row->tokens[i];
        if (id >= s->n_vocab || (s->n_seen[id] == 0 && !s->in_prompt[id])) continue;
        float l = s->logits[id];
        l = l > 0.0f ? l / p->repetition_penalty : l * p->repetition_penalty;
        if (s->n_seen[id] > 0) {
            l -= p->presence_penalty;
            l -= p->frequency_penalty * (float)s->n_seen[id];
        }
        s->logits[id] = l;
        s->n_seen[id] = 0;
        s->in_prompt[id] = 0;
    }
}

/* ---- masks ---- */

/* Word w of the mask, without ids behind the vocabulary. */
static uint64_t mask_word(const sampler *s, const uint64_t *mask, uint32_t w) {
    uint32_t n = s->n_vocab - 64 * w;
    return n >= 64 ? mask[w] : mask[w] & ((UINT64_C(1) << n) - 1);
}

static uint32_t mask_words(const sampler *s) {
    return s->n_vocab / 64 + (s->n_vocab % 64 != 0);
}

static uint32_t count_allowed(const sampler *s, const uint64_t *mask) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < mask_words(s); w++)
        n += (uint32_t)__builtin_popcountll(mask_word(s, mask, w));
    return n;
}

/* Writes the ids of the mask into the heap, ascending. */
static void list_allowed(sampler *s, const uint64_t *mask) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < mask_words(s); w++)
        for (uint64_t left = mask_word(s, mask, w); left != 0; left &= left - 1)
            s->heap[n++] = 64 * w + (uint32_t)__builtin_ctzll(left);
}

static void copy_allowed(sampler *s, const sample_row *row) {
    memcpy(s->logits, row->logits, (size_t)s->n_vocab * sizeof *s->logits);
    for (uint32_t w = 0; w < mask_words(s); w++) {
        uint32_t n = u32_min(64, s->n_vocab - 64 * w);
        uint64_t left = ~row->mask[w];
        if (n < 64) left &= (UINT64_C(1) << n) - 1;
        for (; left != 0; left &= left - 1)
            s->logits[64 * w + (uint32_t)__builtin_ctzll(left)] = -INFINITY;
    }
}

/* What the row may draw, after mask, bias, bans and penalties; a copy when anything changes. */
static candidates candidates_of(sampler *s, const sample_row *row) {
    const sample_params *p = row->params;
    candidates c = {row->logits, s->n_vocab, false};
    bool changes = wants_change(row);
    if (row->mask != NULL) {
        uint32_t n = count_allowed(s, row->mask);
        c.listed = n <= s->n_vocab / LIST_PART;
        if (c.listed) {
            c.n = n;
            list_allowed(s, row->mask);
            if (!changes) return c;
            for (uint32_t i = 0; i < n; i++) s->logits[s->heap[i]] = row->logits[s->heap[i]];
        } else {
            copy_allowed(s, row);
        }
    } else if (!changes) {
        return c;
    } else {
        memcpy(s->logits, row->logits, (size_t)s->n_vocab * sizeof *s->logits);
    }
    c.logits = s->logits;
    for (uint32_t i = 0; i < p->n_bias; i++)
        if ((uint32_t)p->bias[i].id < s->n_vocab) s->logits[p->bias[i].id] += p->bias[i].bias;
    for (uint32_t i = 0; i < row->n_banned; i++)
        if ((uint32_t)row->banned[i] < s->n_vocab) s->logits[row->banned[i]] = -INFINITY;
    penalise(s, row);
    return c;
}

/* -- candidates in order: a heap of ids, the largest logit (then the lowest id) on top -- */

static bool comes_before(const float *logits, uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t i) {
    uint32_t id = heap[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && comes_before(logits, heap[child + 1], heap[child])) child++;
        if (!comes_before(logits, heap[child], id)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

/* Pop the top to the end of the heap's array: popped ids lie at heap[n - 1], heap[n - 2], ... */
static void pop_to_end(const float *logits, uint32_t *heap, uint32_t *n) {
    uint32_t top = heap[0];
    heap[0] = heap[--*n];
    sift_down(logits, heap, *n, 0);
    heap[*n] = top;
}

static float scaled(float logit, float largest, float temperature) {
    return (logit - largest) / temperature;
}

/* Narrow the n candidates in the heap by top_k and top_p.  The kept ids are heap[*begin ... n). */
static void narrow(sampler *s, const sample_params *p, const float *logits, uint32_t n,
                   float largest, uint32_t *begin) {
    uint32_t left = n;
    for (uint32_t i = n / 2; i-- > 0;) sift_down(logits, s->heap, n, i);

    uint32_t k = p->top_k == 0 ? n : u32_min(p->top_k, n);
    uint64_t total = 0;
    if (k < n) {
        for (uint32_t i = 0; i < k; i++) {
            pop_to_end(logits, s->heap, &left);
            total +=
                sample_fixed(sample_exp(scaled(logits[s->heap[left]], largest, p->temperature)));
        }
    } else if (p->top_p < 1.0f) {
        for (uint32_t i = 0; i < n; i++)
            total += sample_fixed(sample_exp(scaled(logits[s->heap[i]], largest, p->temperature)));
    }
    if (!(p->top_p < 1.0f)) {
        *begin = k < n ? left : 0; // only top_k
        return;
    }
    /* top_p over the candidates of top_k: the fewest that reach top_p of the total, at least one */
    uint64_t wanted = (uint64_t)((double)total * (double)p->top_p), sum = 0;
    uint32_t kept = 0;
    while (kept < k) {
        if (k == n) pop_to_end(logits, s->heap, &left);
        uint32_t id = s->heap[n - 1 - kept];
        sum += sample_fixed(sample_exp(scaled(logits[id], largest, p->temperature)));
        kept++;
        if (sum >= wanted) break;
    }
    *begin = n - kept;
}

typedef struct draw {
    float best;
    tok_id id;
} draw;

/* One candidate against the best so far. */
static void consider(draw *d, float z, uint32_t word, tok_id id) {
    if (z + sample_gumbel_bound(word) < d->best) return;
    float value = z + sample_gumbel(word);
    if (value > d->best || (value == d->best && id < d->id)) *d = (draw){value, id};
}

/* Of heap[begin ... end). */
static tok_id draw_listed(const sampler *s, const sample_row *row, const float *logits,
                          float largest, uint32_t begin, uint32_t end) {
    const sample_params *p = row->params;
    draw d = {-INFINITY, -1};
    sample_noise noise = {{0}};
    uint32_t group = UINT32_MAX; // that of the noise
    for (uint32_t i = begin; i < end; i++) {
        uint32_t id = s->heap[i];
        float z = scaled(logits[id], largest, p->temperature);
        if (z == -INFINITY || (p->min_p > 0.0f && sample_exp(z) < p->min_p)) continue;
        if (id / 4 != group) noise = sample_philox(p->seed, id / 4, row->n_tokens, p->choice_idx);
        group = id / 4;
        consider(&d, z, noise.word[id % 4], (tok_id)id);
    }
    return d.id;
}

static tok_id draw_token(sampler *s, const sample_row *row, const candidates *c, float largest) {
    const sample_params *p = row->params;
    const float *logits = c->logits;
    uint32_t position = row->n_tokens, begin = 0;
    bool narrows = p->top_k != 0 || p->top_p < 1.0f;
    for (uint32_t i = 0; narrows && !c->listed && i < c->n; i++) s->heap[i] = i;
    if (narrows) narrow(s, p, logits, c->n, largest, &begin);
    if (narrows || c->listed) return draw_listed(s, row, logits, largest, begin, c->n);
    draw d = {-INFINITY, -1};
    for (uint32_t group = 0; group * 4 < s->n_vocab; group++) {
        sample_noise noise = sample_philox(p->seed, group, position, p->choice_idx);
        uint32_t end = u32_min(4, s->n_vocab - group * 4);
        for (uint32_t j = 0; j < end; j++) {
            float z = scaled(logits[group * 4 + j], largest, p->temperature);
            if (z == -INFINITY || (p->min_p > 0.0f && sample_exp(z) < p->min_p)) continue;
            consider(&d, z, noise.word[j], (tok_id)(group * 4 + j));
        }
    }
    return d.id;
}

/* The token of a row with finite logits. */
static tok_id choose(sampler *s, const sample_row *row, tok_id raw_id, float raw_largest) {
    const sample_params *p = row->params;
    candidates c = candidates_of(s, row);
    float largest = raw_largest;
    tok_id id = raw_id;
    if (c.listed)
        id = find_largest_listed(s, &c, &largest);
    else if (c.logits != row->logits)
        id = find_largest(c.logits, s->n_vocab, &largest);
    if (id == SAMPLE_NONE_ALLOWED && row->mask == NULL) return SAMPLE_BROKEN;
    if (id < 0 || !(p->temperature >= TEMPERATURE_MIN) || p->top_k == 1) return id;
    return draw_token(s, row, &c, largest);
}

void sampler_draw(sampler *s, const sample_row *row, sample_result *out) {
    float raw_largest;
    memset(out, 0, sizeof *out);
    tok_id raw_id = find_largest(row->logits, s->n_vocab, &raw_largest);
    out->id = raw_id < 0 ? SAMPLE_BROKEN : row->forced;
    if (raw_id >= 0 && row->forced < 0) out->id = choose(s, row, raw_id, raw_largest);
    if (out->id < 0 || row->n_top < 0) return;
    float norm = raw_largest + log_sum(row->logits, s->n_vocab, raw_largest);
    out->logprob = row->logits[out->id] - norm;
    report_top(row->logits, s->n_vocab, (uint32_t)row->n_top, norm, out);
}
