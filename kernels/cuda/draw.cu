// draw.cu - logits become ids, the same ids and log-probabilities as those of models/sampler.c.
//
// The vocabulary is cut into slices of DRAW_SLICE tokens; grid (slice, row), 256 threads.  Each
// kernel reads a row once, 4 V bytes:
//
//     draw_scan   applies mask, bias, bans and penalties to the slice's tokens (rows that have any
//     get
//                 a copy), and finds the slice's largest logit before and after.
//     draw_pick   gets the row's largest logit from the scans.  Plain sampling: the slice's best
//                 logit/temperature + Gumbel noise.  top_k, top_p: adds the slice to the row's
//                 histogram.  Log-probabilities: the slice's mass and its largest logits.
//                 The last block of the row to arrive combines the slices.
//
// Cutting needs no sorted row.  Candidates are ordered by (logit, lower id first).  z = (logit -
// largest) / temperature does not fall when the logit rises, so bins of z are pieces of that order,
// and the histogram shows the bin in which the kept candidates end.  The last block reads the row
// again, but only slices with a largest logit that reaches that bin: tokens of nearer bins are
// drawn at once, those of the bin are put on a list, and the last kept one among them is found by
// digits of (logit, id), one histogram each.  If the list is too short (nearly equal logits, very
// high temperatures) each digit reads the slices again.  Masses are integers, so any order of
// adding gives the same cut.
//
// Noise costs two logarithms.  Its upper bound is cheap, and the token with the largest logit is
// always a candidate: a token that cannot beat that one's value even with the largest noise is
// skipped without computing its noise.
//
// All arithmetic is that of sample_math.h.  A surplus row of the launch returns at once; so does a
// slice that a greedy row does not need.  Counters and histograms are zero again at the end.
#include "gpu.cuh"

extern "C" {
#include "cuda/draw_params.h"
#include "inferd/sample_math.h"
}

constexpr float TEMPERATURE_MIN = 1e-30f; // as in sampler.c
constexpr uint32_t WARPS = DRAW_THREADS / 32, COUNT_MAX = 65535;
constexpr uint32_t PER_THREAD = DRAW_SLICE / DRAW_THREADS;
// Bins of z; masses end at z = -27.7, the last bin begins at -31.875.
constexpr float BINS_PER_UNIT = 8.0f;
constexpr float NOISE_MAX = 23.6f; // above sample_gumbel_bound of every word

// Masses are added in two words of 32 bits, and these sums must not overflow: a mass has 41 bits,
// the lower 20 go to `low`.  The warps alternate between two copies, so a copy gets half a slice.
constexpr uint32_t COPIES = 2, LOW_BITS = 20;
static_assert(DRAW_SLICE / COPIES <= 2048 && DRAW_LIST / COPIES <= 2048, "2^11 * 2^20 < 2^32");
static_assert(DRAW_BINS == DRAW_THREADS && DRAW_LIST % DRAW_THREADS == 0 && PER_THREAD == 16, "");

// A position in a histogram.
struct place {
    uint32_t at;    // its bin
    uint32_t count; // of that bin
    uint32_t above; // count of the bins before
    uint64_t mass;  // likewise
    uint64_t mass_above;
};

struct work {
    float value[WARPS]; // draw_scan has room for these few only
    int32_t id[WARPS];
    uint64_t part[WARPS];
    uint32_t word;   // from one thread to the others
    uint32_t n_list; // draw_scan uses the fields up to this one
    place found;
    uint32_t count[COPIES][DRAW_BINS], low[COPIES][DRAW_BINS],
        high[COPIES][DRAW_BINS]; // zero when unused
    uint32_t list[DRAW_LIST];
};
static_assert(sizeof(work) <= DRAW_SHARED_BYTES, "DRAW_SHARED_BYTES");
static_assert(offsetof(work, found) <= DRAW_SCAN_SHARED_BYTES, "DRAW_SCAN_SHARED_BYTES");

GPU_FN bool comes_first(float a, int32_t id_a, float b, int32_t id_b) {
    return id_b < 0 || (id_a >= 0 && (a > b || (a == b && id_a < id_b)));
}

// ---- all threads of the block together ----

// The first of all (value, id) in order; every thread gets it.
GPU_FN draw_candidate block_first(work *w, float value, int32_t id) {
    for (uint32_t m = 16; m > 0; m >>= 1) {
        float v = shfl_xor(value, m);
        int32_t i = shfl_xor(id, m);
        if (i >= 0 && comes_first(v, i, value, id)) {
            value = v;
            id = i;
        }
    }
    sync_threads();
    if (lane_idx() == 0) {
        w->value[warp_idx()] = value;
        w->id[warp_idx()] = id;
    }
    sync_threads();
    draw_candidate out = {w->value[0], w->id[0]};
    for (uint32_t i = 1; i < WARPS; i++)
        if (w->id[i] >= 0 && comes_first(w->value[i], w->id[i], out.value, out.id))
            out = {w->value[i], w->id[i]};
    return out;
}

GPU_FN uint64_t block_sum(work *w, uint64_t v) {
    v = warp_sum(v);
    sync_threads();
    if (lane_idx() == 0) w->part[warp_idx()] = v;
    sync_threads();
    v = 0;
    for (uint32_t i = 0; i < WARPS; i++) v += w->part[i];
    return v;
}

// The sum of the v of this thread and all before it.
GPU_FN uint64_t block_scan(work *w, uint64_t v) {
    for (uint32_t n = 1; n < 32; n *= 2) {
        uint64_t before = shfl_up(v, n);
        if (lane_idx() >= n) v += before;
    }
    sync_threads();
    if (lane_idx() == 31) w->part[warp_idx()] = v;
    sync_threads();
    for (uint32_t i = 0; i < warp_idx(); i++) v += w->part[i];
    return v;
}

// ---- the upload ----

GPU_FN const draw_header *header_of(const draw_params &p) {
    return reinterpret_cast<const draw_header *>(p.plan);
}
GPU_FN const draw_row *row_of(const draw_params &p, uint32_t row) {
    return reinterpret_cast<const draw_row *>(p.plan + sizeof(draw_header)) + row;
}
// Bits of the tokens that the row may draw; null: all.
GPU_FN const uint32_t *mask_of(const draw_params &p, const draw_row *r) {
    const draw_header *h = header_of(p);
    if (r->mask == 0) return nullptr;
    return reinterpret_cast<const uint32_t *>(p.plan + h->masks_at) +
           (size_t)(r->mask - 1) * h->mask_words;
}
GPU_FN bool is_greedy(const draw_row *r) {
    return !(r->temperature >= TEMPERATURE_MIN) || r->top_k == 1;
}
GPU_FN bool cuts_by_count(const draw_params &p, const draw_row *r) {
    return r->top_k != 0 && r->top_k < p.n_vocab;
}
GPU_FN bool narrows(const draw_params &p, const draw_row *r) {
    return cuts_by_count(p, r) || r->top_p < 1.0f;
}
// Do the row's logits differ from those of the model?
GPU_FN bool is_changed(const draw_row *r) {
    return (r->flags & DRAW_PLAIN) == 0;
}
GPU_FN const float *logits_of(const draw_params &p, const draw_row *r, uint32_t row) {
    return (is_changed(r) ? p.changed : p.logits) + (size_t)row * p.stride;
}

// ---- masks, bias, bans, penalties ----

// Logits i..i+3, and how many of them are before `end`; i is a multiple of 4.
struct four {
    float logit[4];
    uint32_t n;
};
GPU_FN four load_four(const float *logits, uint32_t i, uint32_t end) {
    if (i + 4 <= end) {
        word4 v = load16(logits + i);
        return {{bits_to_f32(v.x), bits_to_f32(v.y), bits_to_f32(v.z), bits_to_f32(v.w)}, 4};
    }
    four f = {{0, 0, 0, 0}, i < end ? end - i : 0};
#pragma unroll
    for (uint32_t j = 0; j < 3; j++)
        if (j < f.n) f.logit[j] = logits[i + j];
    return f;
}

GPU_FN float penalised(const draw_row *r, float l, uint32_t n_output) {
    l = l > 0.0f ? sm_div(l, r->repetition_penalty) : sm_mul(l, r->repetition_penalty);
    if (n_output > 0) {
        l = sm_add(l, -r->presence_penalty);
        l = sm_add(l, -sm_mul(r->frequency_penalty, (float)n_output));
    }
    return l;
}

// One thread adds all biases of a token, in the list's order.
GPU_FN void add_biases(const draw_bias *bias, uint32_t n, float *to, uint32_t begin, uint32_t end) {
    for (uint32_t i = thread_idx(); i < n; i += DRAW_THREADS) {
        int32_t id = bias[i].id;
        uint32_t left = bias[i].n_named;
        if (left == 0 || (uint32_t)id - begin >= end - begin) continue;
        float l = to[id];
        for (uint32_t j = i; left > 0; j++)
            if (bias[j].id == id) {
                l = sm_add(l, bias[j].bias);
                left--;
            }
        to[id] = l;
    }
}

// The changed logits of tokens [begin, end) of the row.
GPU_FN void change_slice(const draw_params &p, const draw_row *r, uint32_t row, uint32_t begin,
                         uint32_t end, work *w) {
    const draw_header *h = header_of(p);
    const int32_t *banned =
        reinterpret_cast<const int32_t *>(p.plan + h->banned_at) + r->banned_begin;
    const draw_seen *seen =
        reinterpret_cast<const draw_seen *>(p.plan + h->seen_at) + r->seen_begin;
    const float *from = p.logits + (size_t)row * p.stride;
    float *to = p.changed + (size_t)row * p.stride;
    const uint32_t *mask = mask_of(p, r);
    for (uint32_t i = begin + thread_idx(); i < end; i += DRAW_THREADS) {
        bool allowed = mask == nullptr || (mask[i / 32] >> i % 32 & 1u) != 0;
        to[i] = allowed ? from[i] : bits_to_f32(0xff800000u);
    }
    if (thread_idx() == 0) w->word = 0;
    sync_threads();
    add_biases(reinterpret_cast<const draw_bias *>(p.plan + h->bias_at) + r->bias_begin, r->n_bias,
               to, begin, end);
    sync_threads();
    for (uint32_t i = thread_idx(); i < r->n_banned; i += DRAW_THREADS)
        if ((uint32_t)banned[i] - begin < end - begin) to[banned[i]] = bits_to_f32(0xff800000u);
    sync_threads();
    bool penalises = r->repetition_penalty != 1.0f || r->presence_penalty != 0.0f ||
                     r->frequency_penalty != 0.0f;
    if (!penalises) return;
    int32_t late = r->flags & DRAW_PENDING ? p.drawn_before[r->pending] : -1;
    for (uint32_t i = thread_idx(); i < r->n_seen; i += DRAW_THREADS) {
        int32_t id = seen[i].id;
        if (id == late) w->word = 1;
        if ((uint32_t)id - begin >= end - begin) continue;
        uint32_t n = seen[i].n_output + (id == late && seen[i].n_output < COUNT_MAX);
        to[id] = penalised(r, to[id], n);
    }
    sync_threads();
    if (thread_idx() == 0 && late >= 0 && w->word == 0 && (uint32_t)late - begin < end - begin)
        to[late] = penalised(r, to[late], 1);
    sync_threads();
}

// The largest logit of the slice, the lowest id on a tie; broken: NaN or +inf is among them.
GPU_FN draw_candidate largest_of(work *w, const float *logits, uint32_t begin, uint32_t end,
                                 uint32_t *broken) {
    float best = bits_to_f32(0xff800000u);
    int32_t id = -1;
    bool bad = false;
#pragma unroll 4
    for (uint32_t i = begin + 4 * thread_idx(); i < end; i += 4 * DRAW_THREADS) {
        four f = load_four(logits, i, end);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (j >= f.n) break;
            bad |= !(f.logit[j] < GPU_INFINITY);
            if (f.logit[j] > best) {
                best = f.logit[j];
                id = (int32_t)(i + j);
            }
        }
    }
    *broken = sync_threads_or(bad);
    return block_first(w, best, id);
}

GPU_KERNEL(draw_scan, draw_params, DRAW_THREADS, 4) {
    work *w = shared<work>();
    uint32_t row = block_y(), slice = block_x();
    wait_predecessor();
    if (row >= header_of(p)->n_rows) return;
    const draw_row *r = row_of(p, row);
    uint32_t begin = slice * DRAW_SLICE, end = begin + DRAW_SLICE;
    if (end > p.n_vocab) end = p.n_vocab;
    uint32_t raw_broken, broken;
    draw_candidate raw = largest_of(w, p.logits + (size_t)row * p.stride, begin, end, &raw_broken);
    draw_candidate now = raw;
    broken = raw_broken;
    if (is_changed(r)) {
        change_slice(p, r, row, begin, end, w);
        now = largest_of(w, p.changed + (size_t)row * p.stride, begin, end, &broken);
    }
    if (thread_idx() == 0)
        p.scans[(size_t)row * p.n_slices + slice] = {raw.value, now.value,  raw.id,
                                                     now.id,    raw_broken, broken};
    release_dependents();
}

// ---- picking ----

struct row_max {
    float raw, now;     // the largest logits
    int32_t raw_id, id; // where; SAMPLE_BROKEN; of a masked row's id SAMPLE_NONE_ALLOWED
};

// The first of the warp's candidates, in every lane.
GPU_FN draw_candidate warp_first(draw_candidate c GPU_CALLER) {
    for (uint32_t m = 16; m > 0; m >>= 1) {
        draw_candidate other = {shfl_xor(c.value, m GPU_CALLER_IS),
                                shfl_xor(c.id, m GPU_CALLER_IS)};
        if (other.id >= 0 && comes_first(other.value, other.id, c.value, c.id)) c = other;
    }
    return c;
}

// Each warp for itself, a slice per lane.
GPU_FN row_max put_scans_together(const draw_params &p, const draw_row *r, uint32_t row) {
    draw_candidate raw = {bits_to_f32(0xff800000u), -1}, now = raw;
    bool raw_broken = false, broken = false;
    for (uint32_t s = lane_idx(); s < p.n_slices; s += 32) {
        draw_scan x = p.scans[(size_t)row * p.n_slices + s];
        raw_broken |= x.raw_broken != 0;
        broken |= x.broken != 0;
        if (x.raw_id >= 0 && comes_first(x.raw_max, x.raw_id, raw.value, raw.id))
            raw = {x.raw_max, x.raw_id};
        if (x.id >= 0 && comes_first(x.max, x.id, now.value, now.id)) now = {x.max, x.id};
    }
    raw = warp_first(raw);
    now = warp_first(now);
    if (now.id < 0 && r->mask != 0) now.id = SAMPLE_NONE_ALLOWED;
    if (ballot(raw_broken) != 0) raw.id = SAMPLE_BROKEN;
    if (ballot(broken) != 0) now.id = SAMPLE_BROKEN;
    return {raw.value, now.value, raw.id, now.id};
}

// ---- candidates of a row ----

struct drawing { // of one row
    const draw_row *r;
    const float *logits;    // after changes
    const draw_scan *scans; // of its slices
    float largest;
    uint32_t n_vocab, n_slices;
};

GPU_FN float z_of(const drawing &d, float logit) {
    return sm_div(sm_add(logit, -d.largest), d.r->temperature);
}
GPU_FN uint64_t mass_of(float z) {
    return sample_fixed(sample_exp(z));
}
GPU_FN uint32_t bin_of(float z) {
    return z > -(float)(DRAW_BINS - 1) / BINS_PER_UNIT ? (uint32_t)(z * -BINS_PER_UNIT)
                                                       : DRAW_BINS - 1;
}
GPU_FN uint32_t slice_end(const drawing &d, uint32_t begin) {
    return begin + DRAW_SLICE < d.n_vocab ? begin + DRAW_SLICE : d.n_vocab;
}

GPU_FN void keep_first(draw_candidate *best, draw_candidate c) {
    if (c.id >= 0 && comes_first(c.value, c.id, best->value, best->id)) *best = c;
}

// The token with its noise, if it can be the first.
GPU_FN void consider(draw_candidate *best, const drawing &d, float z, uint32_t word, uint32_t id) {
    if (sm_add(z, sample_gumbel_bound(word)) < best->value) return;
    if (z == bits_to_f32(0xff800000u) || (d.r->min_p > 0.0f && sample_exp(z) < d.r->min_p)) return;
    keep_first(best, {sm_add(z, sample_gumbel(word)), (int32_t)id});
}
GPU_FN uint32_t pick_word(const sample_noise &noise, uint32_t i) {
    return i == 0 ? noise.word[0] : i == 1 ? noise.word[1] : i == 2 ? noise.word[2] : noise.word[3];
}
GPU_FN void consider_alone(draw_candidate *best, const drawing &d, uint32_t id) {
    float z = z_of(d, d.logits[id]);
    if (sm_add(z, NOISE_MAX) < best->value) return;
    sample_noise noise = sample_philox(d.r->seed, id / 4, d.r->position, d.r->choice_idx);
    consider(best, d, z, pick_word(noise, id % 4), id);
}

// The value that all others must beat: the token with the largest logit, which is never cut.
GPU_FN draw_candidate first_of_all(const drawing &d, int32_t id) {
    draw_candidate best = {bits_to_f32(0xff800000u), -1};
    consider_alone(&best, d, (uint32_t)id);
    return best;
}

// Removes the lowest bit and returns its index.
GPU_FN uint32_t next_bit(uint32_t *mask) {
    uint32_t bit = 31 - leading_zeros(*mask & (0u - *mask));
    *mask &= *mask - 1;
    return bit;
}

// Four tokens share one Philox block; begin is a multiple of 4.
GPU_FN draw_candidate draw_slice(work *w, const drawing &d, draw_candidate best, uint32_t begin) {
    uint32_t end = slice_end(d, begin);
    if (sm_add(z_of(d, d.scans[begin / DRAW_SLICE].max), NOISE_MAX) < best.value) return best;
    for (uint32_t i = begin + 4 * thread_idx(); i < end; i += 4 * DRAW_THREADS) {
        four f = load_four(d.logits, i, end);
        float z[4];
        uint32_t mask = 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            z[j] = j < f.n ? z_of(d, f.logit[j]) : bits_to_f32(0xff800000u);
            mask |= (uint32_t) !(sm_add(z[j], NOISE_MAX) < best.value) << j;
        }
        if (mask == 0) continue;
        sample_noise noise = sample_philox(d.r->seed, i / 4, d.r->position, d.r->choice_idx);
        mask = 0;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            mask |= (uint32_t) !(sm_add(z[j], sample_gumbel_bound(noise.word[j])) < best.value)
                    << j;
        while (mask != 0) {
            uint32_t j = next_bit(&mask);
            float its = j == 0 ? z[0] : j == 1 ? z[1] : j == 2 ? z[2] : z[3];
            consider(&best, d, its, pick_word(noise, j), i + j);
        }
    }
    return block_first(w, best.value, best.id);
}

// The largest raw logits of the slice, best first: out[n_top], id -1 when there are fewer.
GPU_FN void top_of_slice(work *w, const float *logits, uint32_t begin, uint32_t end, uint32_t n_top,
                         draw_candidate *out) {
    draw_candidate last = {0, -1};
    for (uint32_t k = 0; k < n_top; k++) {
        draw_candidate best = {0, -1};
        for (uint32_t i = begin + thread_idx(); i < end; i += DRAW_THREADS) {
            draw_candidate c = {logits[i], (int32_t)i};
            if (last.id < 0 || comes_first(last.value, last.id, c.value, c.id))
                if (c.id != last.id) keep_first(&best, c);
        }
        last = block_first(w, best.value, best.id);
        if (thread_idx() == 0) out[k] = last;
        if (last.id < 0) {
            if (thread_idx() == 0)
                for (uint32_t j = k + 1; j < n_top; j++) out[j] = last;
            return;
        }
    }
}

// ---- histograms ----

struct tally { // of the bin that this thread owns
    uint32_t count;
    uint64_t mass;
};

GPU_FN void clear_bins(work *w) {
#pragma unroll
    for (uint32_t c = 0; c < COPIES; c++)
        w->count[c][thread_idx()] = w->low[c][thread_idx()] = w->high[c][thread_idx()] = 0;
    sync_threads();
}

GPU_FN void add_to_bin(work *w, uint32_t bin, uint32_t count, uint64_t mass) {
    uint32_t copy = warp_idx() % COPIES;
    if (count != 0) atomic_add(&w->count[copy][bin], count);
    if (mass == 0) return;
    atomic_add(&w->low[copy][bin], (uint32_t)mass & ((1u << LOW_BITS) - 1));
    atomic_add(&w->high[copy][bin], (uint32_t)(mass >> LOW_BITS));
}

// Adds the contents of the bins, from a slice or a list, and clears them.
GPU_FN void collect(work *w, tally *t) {
    sync_threads();
#pragma unroll
    for (uint32_t c = 0; c < COPIES; c++) {
        t->count += w->count[c][thread_idx()];
        t->mass += w->low[c][thread_idx()] + ((uint64_t)w->high[c][thread_idx()] << LOW_BITS);
    }
    clear_bins(w);
}

// The bin in which the count, or the mass, reaches `wanted`, at least 1 and at most the total.
GPU_FN place find_place(work *w, const tally &t, bool by_mass, uint64_t wanted) {
    uint64_t counts = block_scan(w, t.count), masses = block_scan(w, t.mass);
    uint64_t sum = by_mass ? masses : counts, mine = by_mass ? t.mass : t.count;
    if (sum >= wanted && sum - mine < wanted)
        w->found = {thread_idx(), t.count, (uint32_t)(counts - t.count), t.mass, masses - t.mass};
    sync_threads();
    return w->found;
}

// The slice's part of the row's histogram.
GPU_FN void leave_bins(work *w, const drawing &d, draw_bins *bins, bool counts, bool masses,
                       uint32_t begin) {
    uint32_t end = slice_end(d, begin), bin = thread_idx();
    tally t = {0, 0};
    clear_bins(w);
    for (uint32_t i = begin + 4 * thread_idx(); i < end; i += 4 * DRAW_THREADS) {
        four f = load_four(d.logits, i, end);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (j >= f.n) break;
            float z = z_of(d, f.logit[j]);
            add_to_bin(w, bin_of(z), counts, masses ? mass_of(z) : 0);
        }
    }
    collect(w, &t);
    if (t.count != 0) atomic_add(&bins->count[bin], t.count);
    if (t.mass != 0) atomic_add(&bins->mass[bin], t.mass);
}

// Reads the bins of all slices and zeroes the memory.
GPU_FN tally take_bins(draw_bins *bins) {
    uint32_t bin = thread_idx();
    const uint32_t *mass = reinterpret_cast<const uint32_t *>(&bins->mass[bin]);
    tally t = {load_fresh(&bins->count[bin]),
               (uint64_t)load_fresh(mass + 1) << 32 | load_fresh(mass)};
    bins->count[bin] = 0;
    bins->mass[bin] = 0;
    return t;
}

// ---- narrowing ----

// Numbers that rise in the order of candidates: the float's bits changed so that they fall when
// it rises (-0 like +0), then the id.
GPU_FN uint64_t rank_of(float logit, uint32_t id) {
    uint32_t bits = f32_to_bits(logit);
    if (bits == 0x80000000u) bits = 0;
    bits = bits & 0x80000000u ? bits : bits ^ 0x7fffffffu;
    return (uint64_t)bits << 32 | id;
}

// The tokens of one bin: on the list, or found by searching all slices.  A chunk is the work of the
// threads before bins are collected, at most 16 tokens each; a mask selects those of the thread.
struct edge {
    uint32_t bin;
    uint32_t n_chunks, n_list;
    bool listed;
};

GPU_FN uint32_t token_at(uint32_t begin, uint32_t bit) {
    return begin + 4 * (thread_idx() + DRAW_THREADS * (bit / 4)) + bit % 4;
}
// Masks of the thread's tokens of the slice that lie in the bin, and in nearer ones.
GPU_FN uint32_t mask_of_slice(const drawing &d, uint32_t slice, uint32_t bin, uint32_t *nearer) {
    uint32_t begin = slice * DRAW_SLICE, end = slice_end(d, begin), mask = 0;
    *nearer = 0;
    if (bin_of(z_of(d, d.scans[slice].max)) > bin) return 0;
    four f[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) f[k] = load_four(d.logits, token_at(begin, 4 * k), end);
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        if (i % 4 >= f[i / 4].n) continue;
        uint32_t b = bin_of(z_of(d, f[i / 4].logit[i % 4]));
        mask |= (uint32_t)(b == bin) << i;
        *nearer |= (uint32_t)(b < bin) << i;
    }
    return mask;
}

GPU_FN uint32_t mask_of_chunk(const drawing &d, const edge &e, uint32_t chunk) {
    uint32_t nearer;
    if (!e.listed) return mask_of_slice(d, chunk, e.bin, &nearer);
    uint32_t n = e.n_list > thread_idx() ? div_up(e.n_list - thread_idx(), DRAW_THREADS) : 0;
    return (1u << n) - 1;
}
GPU_FN uint32_t token_of_chunk(const work *w, const edge &e, uint32_t chunk, uint32_t bit) {
    return e.listed ? w->list[thread_idx() + DRAW_THREADS * bit]
                    : token_at(chunk * DRAW_SLICE, bit);
}

// Lists the tokens of the bin.  `draws`: draw the tokens of nearer bins, which any cut keeps.
GPU_FN edge list_edge(work *w, const drawing &d, uint32_t bin, bool draws, draw_candidate *best) {
    sync_threads();
    if (thread_idx() == 0) w->n_list = 0;
    sync_threads();
    for (uint32_t s = 0; s < d.n_slices; s++) {
        uint32_t nearer, mask = mask_of_slice(d, s, bin, &nearer);
        while (draws && nearer != 0)
            consider_alone(best, d, token_at(s * DRAW_SLICE, next_bit(&nearer)));
        while (mask != 0) {
            uint32_t id = token_at(s * DRAW_SLICE, next_bit(&mask)),
                     at = atomic_add(&w->n_list, 1u);
            if (at < DRAW_LIST) w->list[at] = id;
        }
    }
    sync_threads();
    uint32_t n = w->n_list;
    bool listed = n <= DRAW_LIST;
    return {bin, listed ? 1 : d.n_slices, n, listed};
}

// The rank of the last kept token of the bin, for a wanted count (or mass) of tokens.  Every token
// has a different rank, so the digits lead to one token, or to several that are kept together.
// `draws`: draw the kept ones at the end.
struct cut {
    uint64_t last;
    uint64_t mass; // of the bin's tokens up to the last
};
GPU_FN cut find_cut(work *w, const drawing &d, const edge &e, bool by_mass, bool masses,
                    uint64_t wanted, bool draws, draw_candidate *best) {
    cut c = {0, 0};
    uint64_t rest = ~(uint64_t)0; // bits not known yet
    uint32_t shift = 64;
    for (bool found = false; !found || draws;) {
        shift -= 8;
        tally t = {0, 0};
        for (uint32_t chunk = 0; chunk < e.n_chunks; chunk++) {
            uint32_t mask = mask_of_chunk(d, e, chunk);
            while (mask != 0) {
                uint32_t id = token_of_chunk(w, e, chunk, next_bit(&mask));
                float logit = d.logits[id];
                uint64_t rank = rank_of(logit, id);
                if (found && rank <= c.last) consider_alone(best, d, id);
                if (!found && (rank & ~rest) == c.last)
                    add_to_bin(w, (uint32_t)(rank >> shift) & 255u, 1,
                               masses ? mass_of(z_of(d, logit)) : 0);
            }
            if (!found) collect(w, &t);
        }
        if (found) break;
        place f = find_place(w, t, by_mass, wanted);
        c.last |= (uint64_t)f.at << shift;
        rest >>= 8;
        c.mass += f.mass_above;
        wanted -= by_mass ? f.mass_above : f.above;
        found = f.count == 1 || (!by_mass && f.count == wanted) || shift == 0;
        if (!found) continue;
        c.mass += f.mass;
        c.last |= rest;
    }
    return c;
}

GPU_FN draw_candidate draw_narrowed(work *w, const drawing &d, draw_bins *bins, draw_candidate best,
                                    bool by_count) {
    bool cuts_mass = d.r->top_p < 1.0f;
    tally t = take_bins(bins);
    clear_bins(w);
    uint64_t total = block_sum(w, t.mass); // of the tokens that may be drawn
    for (uint32_t by_mass = !by_count; by_mass <= (uint32_t)cuts_mass; by_mass++) {
        uint64_t wanted = d.r->top_k;
        if (by_mass) wanted = (uint64_t)((double)total * (double)d.r->top_p);
        if (wanted == 0) wanted = 1; // at least one candidate
        bool last = by_mass || !cuts_mass;
        place f = find_place(w, t, by_mass, wanted);
        edge e = list_edge(w, d, f.at, last, &best);
        cut c = find_cut(w, d, e, by_mass, cuts_mass, wanted - (by_mass ? f.mass_above : f.above),
                         last, &best);
        total = f.mass_above + c.mass;
    }
    return block_first(w, best.value, best.id);
}

// ---- the answer ----

GPU_FN void report_top(const draw_params &p, uint32_t row, uint32_t n_top, float norm,
                       sample_result *out, work *w) {
    const draw_part *parts = p.parts + (size_t)row * p.n_slices;
    uint32_t n = p.n_slices * n_top;
    draw_candidate last = {0, -1};
    for (uint32_t k = 0; k < n_top; k++) {
        draw_candidate best = {0, -1};
        for (uint32_t i = thread_idx(); i < n; i += DRAW_THREADS) {
            const draw_candidate *from = &parts[i / n_top].top[i % n_top];
            draw_candidate c = {load_fresh(&from->value),
                                (int32_t)load_fresh(reinterpret_cast<const uint32_t *>(&from->id))};
            if (c.id < 0 || c.id == last.id) continue;
            if (last.id < 0 || comes_first(last.value, last.id, c.value, c.id))
                keep_first(&best, c);
        }
        last = block_first(w, best.value, best.id);
        if (thread_idx() == 0) {
            out->top[k].id = last.id;
            out->top[k].logprob = sm_add(last.value, -norm);
        }
    }
    if (thread_idx() == 0) out->n_top = n_top;
}

GPU_FN drawing drawing_of(const draw_params &p, const draw_row *r, uint32_t row, const row_max &m) {
    return {r,         logits_of(p, r, row), p.scans + (size_t)row * p.n_slices, m.now, p.n_vocab,
            p.n_slices};
}
// Is there anything to draw?
GPU_FN bool draws(const draw_row *r, const row_max &m) {
    return m.raw_id >= 0 && m.id >= 0 && r->forced < 0 && !is_greedy(r);
}

// `first`: of first_of_all, where anything is drawn.
GPU_FN int32_t drawn_id(work *w, const draw_params &p, const draw_row *r, uint32_t row,
                        const row_max &m, draw_candidate first) {
    if (m.raw_id < 0) return SAMPLE_BROKEN;
    if (r->forced >= 0) return r->forced;
    if (!draws(r, m)) return m.id;
    const draw_part *parts = p.parts + (size_t)row * p.n_slices;
    if (narrows(p, r)) {
        drawing d = drawing_of(p, r, row, m);
        return draw_narrowed(w, d, &p.bins[row], first, cuts_by_count(p, r)).id;
    }
    draw_candidate best = {bits_to_f32(0xff800000u), -1};
    for (uint32_t s = thread_idx(); s < p.n_slices; s += DRAW_THREADS)
        keep_first(&best,
                   {load_fresh(&parts[s].best.value),
                    (int32_t)load_fresh(reinterpret_cast<const uint32_t *>(&parts[s].best.id))});
    return block_first(w, best.value, best.id).id;
}

// One block per row gets here, with the results of the others.
GPU_FN void finish_row(work *w, const draw_params &p, const draw_row *r, uint32_t row,
                       const row_max &m, draw_candidate first) {
    sample_result *out = &p.results[row];
    const draw_part *parts = p.parts + (size_t)row * p.n_slices;
    int32_t id = drawn_id(w, p, r, row, m, first);
    if (thread_idx() == 0) {
        out->id = id;
        out->logprob = 0;
        out->n_top = 0;
        p.drawn[row] = id >= 0 ? id : 0; // the next step reads a token in any case
    }
    if (id < 0 || r->n_top < 0) return;
    uint64_t sum = 0;
    for (uint32_t s = thread_idx(); s < p.n_slices; s += DRAW_THREADS) {
        const uint32_t *words = reinterpret_cast<const uint32_t *>(&parts[s].sum);
        sum += (uint64_t)load_fresh(words + 1) << 32 | load_fresh(words);
    }
    float norm = sm_add(m.raw, sample_log_fixed(block_sum(w, sum)));
    if (thread_idx() == 0)
        out->logprob = sm_add(p.logits[(size_t)row * p.stride + (uint32_t)id], -norm);
    uint32_t n_top = (uint32_t)r->n_top < p.n_vocab ? (uint32_t)r->n_top : p.n_vocab;
    report_top(p, row, n_top, norm, out, w);
}

// Writes this slice's results for the block that finishes the row.
GPU_FN void leave_part(work *w, const draw_params &p, const draw_row *r, uint32_t row,
                       const row_max &m, draw_candidate first) {
    uint32_t begin = block_x() * DRAW_SLICE, end = begin + DRAW_SLICE;
    if (end > p.n_vocab) end = p.n_vocab;
    draw_part *part = &p.parts[(size_t)row * p.n_slices + block_x()];
    const float *raw = p.logits + (size_t)row * p.stride;
    if (r->n_top >= 0) {
        uint64_t mine = 0;
        for (uint32_t i = begin + thread_idx(); i < end; i += DRAW_THREADS)
            mine += mass_of(sm_add(raw[i], -m.raw));
        mine = block_sum(w, mine);
        if (thread_idx() == 0) part->sum = mine;
        uint32_t n_top = (uint32_t)r->n_top < p.n_vocab ? (uint32_t)r->n_top : p.n_vocab;
        top_of_slice(w, raw, begin, end, n_top, part->top);
    }
    if (!draws(r, m)) return;
    drawing d = drawing_of(p, r, row, m);
    if (narrows(p, r)) {
        leave_bins(w, d, &p.bins[row], cuts_by_count(p, r), r->top_p < 1.0f, begin);
        return;
    }
    draw_candidate best = draw_slice(w, d, first, begin);
    if (thread_idx() == 0) part->best = best;
}

GPU_KERNEL(draw_pick, draw_params, DRAW_THREADS, 3) {
    work *w = shared<work>();
    uint32_t row = block_y();
    wait_predecessor();
    if (row >= header_of(p)->n_rows) return;
    const draw_row *r = row_of(p, row);
    row_max m = put_scans_together(p, r, row);
    bool simple = r->n_top < 0 && !draws(r, m);
    bool alone = simple || p.n_slices == 1; // nothing to wait for
    if (alone && block_x() != 0) return;
    draw_candidate first = {bits_to_f32(0xff800000u), -1};
    if (draws(r, m)) first = first_of_all(drawing_of(p, r, row, m), m.id);
    if (!simple && m.raw_id >= 0) leave_part(w, p, r, row, m, first);
    fence();
    sync_threads();
    if (!alone) {
        if (thread_idx() == 0) w->word = atomic_add(&p.counters[row], 1u);
        sync_threads();
        if (w->word + 1 != p.n_slices) return;
        fence();
    }
    finish_row(w, p, r, row, m, first);
    if (thread_idx() == 0 && !alone) p.counters[row] = 0;
}

GPU_TABLE(draw){
    GPU_ENTRY(draw_scan, draw_params, DRAW_THREADS, 80),
    GPU_ENTRY(draw_pick, draw_params, DRAW_THREADS, 80),
} GPU_TABLE_END(draw)
