/* attn_plan.c - cutting the attention of a batch into units.
 *
 * In three passes.  First *tiles*: rows that read the same keys, and their range of chunks;
 * prefixes that sequences share become tiles of their own, and the sequences' own tiles begin after
 * them.  Then, with the cost of all tiles known, those that cost more than a third of a thread's
 * part are cut along their chunks, and each piece becomes a unit per kv head.  Last the units are
 * sorted.
 *
 * Thread: engine. */
#include "cpu/attn_plan.h"

#include <string.h>

enum {
    UNITS_PER_THREAD = 3, // so that the last thread to finish is late by little
    POSITION_COST = 8,    // reading K and V of a position takes as long as this many queries
    SHARED_ROWS_MAX = 8,  // a sequence with more new rows reads its prefix for all of them anyway
    COST_CLASSES = 64     // units are sorted by this many sizes
};
#define PARTIAL_BYTES_MAX ((size_t)64 << 20)

typedef struct tile {
    uint32_t rows_at, n_rows, chunk_begin, chunk_end;
    uint64_t cost; // of the part of one kv head
    bool whole;
} tile;

/* A unit before they are sorted. */
typedef struct costed_unit {
    attn_unit unit;
    uint64_t cost;
} costed_unit;

typedef struct plan_work {
    tile *tiles;
    uint32_t n_tiles;
    costed_unit *costed; // [n_units]
    uint32_t *seq_words;
    uint32_t *order;     // [n_shareable] sequences, those with equal tables side by side
    uint32_t *common;    // [n_shareable] chunks that order[i] and order[i + 1] have in common
    uint32_t *own_chunk; // [n_seqs] the first chunk that the sequence attends to alone
    size_t tiles_max, costed_max, units_max, rows_listed_max, row_words_max, seq_words_max,
        partial_floats_max;
} plan_work;

/* The input of a plan. */
typedef struct input {
    attn_plan *p;
    plan_work *w;
    const batch *b;
    const kv_layout *kv;
    const attn_spec *spec;
    uint32_t group;        // query heads per kv head
    uint32_t unit_heads;   // of those, in one unit
    uint32_t tile_rows;    // rows of a tile
    uint32_t n_pieces;     // least number of pieces of the whole work; 0: cut nothing
    uint32_t cut_rows_max; // tiles of more rows are not cut
    bool share;
} input;

/* ---- memory ---- */

attn_plan *attn_plan_open(void) {
    attn_plan *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->work = calloc(1, sizeof *p->work);
    if (p->work != NULL) return p;
    free(p);
    return NULL;
}

void attn_plan_close(attn_plan *p) {
    if (p == NULL) return;
    plan_work *w = p->work;
    void *const all[] = {p->units, p->rows,   p->row_words, p->partials,
                         w->tiles, w->costed, w->seq_words, w};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) free(all[i]);
    free(p);
}

/* Grow the array that `pointer` points to, to n elements or more (so that it grows seldom), keep
 * its contents and write every page of it.  false: no memory. */
static bool reserve(void *pointer, size_t n, size_t *max, size_t bytes_each) {
    void *array;
    size_t more = n + n / 2 + 64, n_bytes;
    if (n <= *max) return true;
    if (!size_mul(more, bytes_each, &n_bytes)) return false;
    memcpy(&array, pointer, sizeof array);
    unsigned char *fresh = realloc(array, n_bytes);
    if (fresh == NULL) return false;
    memset(fresh + *max * bytes_each, 0, n_bytes - *max * bytes_each);
    array = fresh;
    memcpy(pointer, &array, sizeof array);
    *max = more;
    return true;
}

/* ---- tiles ---- */

/* Rows [rows_at, rows_at + n) of the list, at ascending positions, against chunks [begin, end). */
static bool add_tile(input *in, uint32_t rows_at, uint32_t n_rows, uint32_t begin, uint32_t end,
                     bool whole) {
    plan_work *w = in->w;
    const uint32_t *rows = in->p->rows + rows_at;
    if (!reserve(&w->tiles, w->n_tiles + 1, &w->tiles_max, sizeof *w->tiles)) return false;
    uint32_t last = in->b->positions[rows[n_rows - 1]];
    uint32_t from = u32_max(attn_begin(in->spec, in->b->positions[rows[0]]), begin * ATTN_CHUNK);
    uint32_t to = u32_min(last + 1, end * ATTN_CHUNK);
    uint64_t cost = (uint64_t)(to - from) * (POSITION_COST + n_rows * in->unit_heads);
    w->tiles[w->n_tiles++] = (tile){rows_at, n_rows, begin, end, cost, whole};
    return true;
}

static bool list_rows(input *in, uint32_t begin, uint32_t n) {
    attn_plan *p = in->p;
    size_t all = (size_t)p->n_rows_listed + n;
    if (!reserve(&p->rows, all, &in->w->rows_listed_max, sizeof *p->rows)) return false;
    for (uint32_t i = 0; i < n; i++) p->rows[p->n_rows_listed++] = begin + i;
    return true;
}

/* ---- shared prefixes ---- */

/* Chunks of a sequence that others may share: those that all of its rows see to the end. */
static uint32_t shareable_chunks(const input *in, const batch_seq *s) {
    if (s->n_rows == 0 || s->n_rows > SHARED_ROWS_MAX) return 0;
    if (attn_chunk_begin(in->spec, s->pos_begin + s->n_rows - 1) > 0) return 0;
    return s->pos_begin / ATTN_CHUNK;
}

static size_t slots_of_chunks(const input *in, uint32_t n) {
    return (size_t)n * (ATTN_CHUNK / in->kv->block_tokens) * in->kv->n_groups;
}

/* An order in which tables with a common beginning are neighbours. */
static int compare_tables(const input *in, uint32_t a, uint32_t b) {
    const batch_seq *x = &in->b->seqs[a], *y = &in->b->seqs[b];
    uint32_t nx = shareable_chunks(in, x), ny = shareable_chunks(in, y);
    int order = memcmp(x->slots, y->slots, slots_of_chunks(in, u32_min(nx, ny)) * sizeof *x->slots);
    return order != 0 ? order : (nx > ny) - (nx < ny);
}

static uint32_t common_chunks(const input *in, uint32_t a, uint32_t b) {
    const batch_seq *x = &in->b->seqs[a], *y = &in->b->seqs[b];
    uint32_t n = u32_min(shareable_chunks(in, x), shareable_chunks(in, y)), c = 0;
    size_t each = slots_of_chunks(in, 1);
    while (c < n && memcmp(x->slots + c * each, y->slots + c * each, each * sizeof *x->slots) == 0)
        c++;
    return c;
}

/* Sifting down a heap; the library's sort may allocate. */
static void sift(const input *in, uint32_t *heap, uint32_t at, uint32_t n) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && compare_tables(in, heap[child], heap[child + 1]) < 0) child++;
        if (compare_tables(in, heap[at], heap[child]) >= 0) return;
        uint32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
        at = child;
    }
}

static void sort_by_table(const input *in, uint32_t *seqs, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;) sift(in, seqs, i, n);
    for (uint32_t i = n; i-- > 1;) {
        uint32_t t = seqs[0];
        seqs[0] = seqs[i];
        seqs[i] = t;
        sift(in, seqs, 0, i);
    }
}

/* Chunks [begin, end) for the rows of sequences order[first, last]. */
static bool share_chunks(input *in, uint32_t first, uint32_t last, uint32_t begin, uint32_t end) {
    const plan_work *w = in->w;
    uint32_t at = in->p->n_rows_listed;
    for (uint32_t i = first; i <= last; i++) {
        const batch_seq *s = &in->b->seqs[w->order[i]];
        if (!list_rows(in, s->row_begin, s->n_rows)) return false;
        w->own_chunk[w->order[i]] = end;
    }
    for (; at < in->p->n_rows_listed; at += in->tile_rows) {
        uint32_t n = u32_min(in->tile_rows, in->p->n_rows_listed - at);
        if (!add_tile(in, at, n, begin, end, false)) return false;
    }
    return true;
}

/* Sequences order[first, last] have chunks [0, begin) in common: add the chunks that they share
 * beyond those, and then the ones that parts of the run share. */
static bool share_run(input *in, uint32_t first, uint32_t last, uint32_t begin) {
    const uint32_t *common = in->w->common;
    while (first < last) {
        uint32_t least = UINT32_MAX, at = first;
        for (uint32_t i = first; i < last; i++)
            if (common[i] < least) least = common[at = i];
        if (least >= begin + ATTN_SHARED_CHUNKS_MIN) {
            if (!share_chunks(in, first, last, begin, least)) return false;
            begin = least;
        }
        /* The run splits after `at`.  The shorter part goes first: the depth is log2. */
        if (at - first < last - at - 1) {
            if (!share_run(in, first, at, begin)) return false;
            first = at + 1;
        } else {
            if (!share_run(in, at + 1, last, begin)) return false;
            last = at;
        }
    }
    return true;
}

static bool share_prefixes(input *in) {
    plan_work *w = in->w;
    uint32_t n = 0;
    for (uint32_t i = 0; i < in->b->n_seqs; i++)
        if (shareable_chunks(in, &in->b->seqs[i]) >= ATTN_SHARED_CHUNKS_MIN) w->order[n++] = i;
    if (n < 2) return true;
    sort_by_table(in, w->order, n);
    for (uint32_t i = 0; i + 1 < n; i++)
        w->common[i] = common_chunks(in, w->order[i], w->order[i + 1]);
    return share_run(in, 0, n - 1, 0);
}

/* ---- each sequence's own ---- */

static bool add_own_tiles(input *in, uint32_t seq) {
    const batch_seq *s = &in->b->seqs[seq];
    uint32_t at = in->p->n_rows_listed, shared = in->w->own_chunk[seq];
    if (!list_rows(in, s->row_begin, s->n_rows)) return false;
    for (uint32_t i = 0; i < s->n_rows; i += in->tile_rows) {
        uint32_t n = u32_min(in->tile_rows, s->n_rows - i);
        uint32_t begin = attn_chunk_begin(in->spec, s->pos_begin + i);
        uint32_t end = attn_chunk_end(s->pos_begin + i + n - 1);
        if (!add_tile(in, at + i, n, u32_max(begin, shared), end, shared == 0)) return false;
    }
    return true;
}

/* ---- units ---- */

static bool add_unit(input *in, attn_unit unit, uint64_t cost) {
    plan_work *w = in->w;
    attn_plan *p = in->p;
    size_t n = (size_t)p->n_units + 1;
    if (!reserve(&p->units, n, &w->units_max, sizeof *p->units) ||
        !reserve(&w->costed, n, &w->costed_max, sizeof *w->costed))
        return false;
    w->costed[p->n_units++] = (costed_unit){unit, cost};
    return true;
}

/* The partials of a row that has none yet. */
static void give_partials(input *in, uint32_t row) {
    attn_plan *p = in->p;
    if (p->partial_at[row] != UINT32_MAX) return;
    uint32_t pos = in->b->positions[row];
    p->partial_at[row] = (uint32_t)p->n_partials;
    p->merge_rows[p->n_merge_rows++] = row;
    p->n_partials +=
        (size_t)(attn_chunk_end(pos) - attn_chunk_begin(in->spec, pos)) * in->spec->n_heads;
}

/* Add the tile as units: at most n pieces along its chunks, each for every kv head. */
static bool add_units(input *in, const tile *t, uint64_t n_pieces) {
    uint32_t n_chunks = t->chunk_end - t->chunk_begin;
    uint32_t pieces = n_pieces < n_chunks ? (uint32_t)n_pieces : n_chunks;
    uint32_t each = (n_chunks + pieces - 1) / pieces;
    bool whole = t->whole && each == n_chunks;
    if (!whole)
        for (uint32_t i = 0; i < t->n_rows; i++) give_partials(in, in->p->rows[t->rows_at + i]);
    for (uint32_t begin = t->chunk_begin; begin < t->chunk_end; begin += each) {
        uint32_t end = u32_min(begin + each, t->chunk_end);
        for (uint32_t head = 0; head < in->spec->n_heads;) {
            uint32_t left = in->group - head % in->group, n = u32_min(left, in->unit_heads);
            attn_unit unit = {t->rows_at, t->n_rows, head, n, begin, end, whole};
            if (!add_unit(in, unit, t->cost * (end - begin) / n_chunks)) return false;
            head += n;
        }
    }
    return true;
}

static uint32_t class_of(uint64_t cost, uint64_t most) {
    return (uint32_t)((most - cost) * (COST_CLASSES - 1) / most);
}

/* The longest first; of equal class in the order they were made, so neighbours stay together. */
static void sort_units(attn_plan *p) {
    const plan_work *w = p->work;
    uint64_t most = 1;
    uint32_t begin[COST_CLASSES] = {0};
    for (uint32_t i = 0; i < p->n_units; i++)
        if (w->costed[i].cost > most) most = w->costed[i].cost;
    for (uint32_t i = 0; i < p->n_units; i++) begin[class_of(w->costed[i].cost, most)]++;
    for (uint32_t c = 0, sum = 0; c < COST_CLASSES; c++) {
        uint32_t n = begin[c];
        begin[c] = sum;
        sum += n;
    }
    for (uint32_t i = 0; i < p->n_units; i++)
        p->units[begin[class_of(w->costed[i].cost, most)]++] = w->costed[i].unit;
}

/* ---- the plan ---- */

static void clear(attn_plan *p) {
    p->n_units = p->n_rows_listed = p->n_merge_rows = 0;
    p->n_partials = 0;
    p->work->n_tiles = 0;
}

static bool make_units(input *in) {
    plan_work *w = in->w;
    attn_plan *p = in->p;
    clear(p);
    for (uint32_t i = 0; i < in->b->n_rows; i++) p->partial_at[i] = UINT32_MAX;
    for (uint32_t i = 0; i < in->b->n_seqs; i++) w->own_chunk[i] = 0;
    if (in->share && !share_prefixes(in)) return false;
    for (uint32_t i = 0; i < in->b->n_seqs; i++)
        if (!add_own_tiles(in, i)) return false;
    uint64_t total = 0;
    for (uint32_t i = 0; i < w->n_tiles; i++) total += w->tiles[i].cost * in->spec->n_kv_heads;
    for (uint32_t i = 0; i < w->n_tiles; i++) {
        const tile *t = &w->tiles[i];
        bool cut = in->n_pieces > 0 && t->n_rows <= in->cut_rows_max;
        uint64_t n = cut ? (t->cost * in->n_pieces + total - 1) / total : 1;
        if (!add_units(in, t, n)) return false;
    }
    sort_units(p);
    return true;
}

bool attn_plan_make(attn_plan *p, const batch *b, const kv_layout *kv, const attn_spec *spec,
                    uint32_t n_threads) {
    INFERD_CHECK(kv->block_tokens % KV_TILE == 0 && ATTN_CHUNK % kv->block_tokens == 0 &&
                 spec->head_dim <= HEAD_DIM_MAX);
    plan_work *w = p->work;
    size_t width = kv_padded(spec->head_dim);
    uint32_t queries = u32_min(ATTN_QUERIES, (uint32_t)(ATTN_QUERY_FLOATS / width));
    input in = {.p = p,
                .w = w,
                .b = b,
                .kv = kv,
                .spec = spec,
                .group = spec->n_heads / spec->n_kv_heads,
                .n_pieces = n_threads > 1 ? n_threads * UNITS_PER_THREAD : 0};
    in.unit_heads = u32_min(in.group, queries);
    in.tile_rows = queries / in.unit_heads;
    p->n_kv_heads = spec->n_kv_heads;
    p->partial_floats = width + KV_TILE;
    size_t partials_max = PARTIAL_BYTES_MAX / (p->partial_floats * sizeof *p->partials);
    if (!reserve(&p->row_words, (size_t)2 * b->n_rows, &w->row_words_max, sizeof(uint32_t)) ||
        !reserve(&w->seq_words, (size_t)3 * b->n_seqs, &w->seq_words_max, sizeof(uint32_t)))
        goto fail;
    p->partial_at = p->row_words;
    p->merge_rows = p->row_words + b->n_rows;
    w->order = w->seq_words;
    w->common = w->order + b->n_seqs;
    w->own_chunk = w->common + b->n_seqs;
    /* Tiles of long prompts are many units anyway, so their partials are dropped first. */
    static const struct {
        bool share;
        uint32_t cut_rows_max; // tiles of more rows are not cut
    } ways[] = {{true, UINT32_MAX}, {true, SHARED_ROWS_MAX}, {false, SHARED_ROWS_MAX}, {false, 0}};
    for (size_t i = 0; i < INFERD_COUNT(ways); i++) {
        in.share = ways[i].share;
        in.cut_rows_max = ways[i].cut_rows_max;
        if (!make_units(&in)) goto fail;
        if (p->n_partials <= partials_max) break;
    }
    if (!reserve(&p->partials, p->n_partials * p->partial_floats, &w->partial_floats_max,
                 sizeof *p->partials))
        goto fail;
    return true;

fail:
    clear(p);
    return false;
}
