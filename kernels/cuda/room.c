/* room.c - the workspace of steps, beside activations; see room.h.
 *
 *     area   [ step block | draw plan | drawn, results, changed | draw scratch |
 *              counters of attention | experts | partials of attention ]
 *
 * The area is one piece, so it fits into any free range of its size.  An area that could not become
 * larger is made again as it was: its old range is still free.  When the workspace is short the
 * partials of attention become smaller, and attention runs in more launches.
 *
 * When each part of the workspace is taken, and what happens when it is short:
 *
 *     cuBLASLt, split sums, expansion   the backend opens     it does not open
 *     activations (scratch, padded)     a model opens         the model fails, the others go on
 *     rotary tables                     a model opens         likewise
 *     the area                          a model opens         likewise; partials become fewer
 *     lists of a draw plan              a step with long      they are read from pinned memory
 *                                       lists
 *
 * Without be_reserve (tests, benches) all of it is taken by the first step that needs it, and that
 * step fails when it is short.
 *
 * Thread: engine. */
#include "cuda/room.h"

#include <string.h>

#include "cuda/cuda.h"

enum { AREA_ALIGN = 256, TABLES_MIN = 4096, ROPES_UNUSED_MAX = 4 };

struct be_reservation {
    be_reservation *next; // in cuda_backend.reservations
    cuda_room room;
    const cuda_rope_table *ropes[BE_NEEDS_ROPES]; // counted
    uint32_t n_ropes;
};

size_t cuda_draw_bytes(uint32_t n_rows, uint32_t n_vocab) {
    return draw_plan_bytes(n_rows) + CUDA_DRAW_LIST_BYTES + n_rows * draw_mask_bytes(n_vocab);
}

/* ---- the area ---- */

/* Where the parts begin, in bytes. */
typedef struct area_map {
    size_t list, drawn, drawn_before, results, changed, scratch, counters, experts, partials, bytes;
} area_map;

static size_t put(size_t *at, size_t n) {
    size_t begin = *at;
    *at += (n + AREA_ALIGN - 1) / AREA_ALIGN * AREA_ALIGN;
    return begin;
}

/* `bytes` are those before the partials. */
static area_map map_of(const cuda_room *r) {
    area_map m;
    size_t at = 0;
    put(&at, step_block_of(r->rows, r->tables).bytes);
    m.list = put(&at, r->list_bytes);
    m.drawn = put(&at, r->draws * sizeof(int32_t));
    m.drawn_before = put(&at, r->draws * sizeof(int32_t));
    m.results = put(&at, r->draws * sizeof(sample_result));
    m.changed = put(&at, (size_t)r->draws * r->stride * sizeof(float));
    m.scratch = put(&at, draw_workspace_bytes(r->draws, r->vocab));
    m.counters = put(&at, r->counters * sizeof(uint32_t));
    m.experts = put(&at, experts_workspace_bytes(r->expert_slots));
    m.partials = m.bytes = at;
    return m;
}

static cuda_room larger(const cuda_room *a, const cuda_room *b) {
    return (cuda_room){.rows = u32_max(a->rows, b->rows),
                       .tables = u32_max(a->tables, b->tables),
                       .draws = u32_max(a->draws, b->draws),
                       .stride = u32_max(a->stride, b->stride),
                       .vocab = u32_max(a->vocab, b->vocab),
                       .list_bytes = size_max(a->list_bytes, b->list_bytes),
                       .counters = u32_max(a->counters, b->counters),
                       .expert_slots = u32_max(a->expert_slots, b->expert_slots),
                       .partials_least = size_max(a->partials_least, b->partials_least),
                       .partials = size_max(a->partials, b->partials)};
}

static bool covers(const cuda_room *a, const cuda_room *b) {
    return a->rows >= b->rows && a->tables >= b->tables && a->draws >= b->draws &&
           a->stride >= b->stride && a->vocab >= b->vocab && a->list_bytes >= b->list_bytes &&
           a->counters >= b->counters && a->expert_slots >= b->expert_slots &&
           a->partials_least >= b->partials_least && a->partials >= b->partials;
}

void cuda_block_for(cuda_backend *c, uint32_t rows) {
    uint32_t small = u32_min(CUDA_GRAPH_ROWS_MAX, c->room.rows);
    step_block b = step_block_of(rows <= small ? small : c->room.rows, c->room.tables);
    unsigned char *p = c->area;
    c->block_rows = rows;
    c->block = b;
    c->view = (step_view){.header = (const void *)p,
                          .tokens = (const void *)(p + b.tokens),
                          .pending = (const void *)(p + b.pending),
                          .positions = (const void *)(p + b.positions),
                          .row_seq = (const void *)(p + b.row_seq),
                          .seqs = (const void *)(p + b.seqs),
                          .logit_rows = (const void *)(p + b.logit_rows),
                          .decode_rows = (const void *)(p + b.decode_rows),
                          .tiles = (const void *)(p + b.tiles),
                          .tables = (const void *)(p + b.tables),
                          .drawn = c->drawn};
}

static void point(cuda_backend *c, const cuda_room *r) {
    area_map m = map_of(r);
    unsigned char *p = c->area;
    c->block_dev = p;
    c->draw_dev = p + m.list;
    c->drawn = (void *)(p + m.drawn);
    c->drawn_before = (void *)(p + m.drawn_before);
    c->results_dev = (void *)(p + m.results);
    c->changed = (void *)(p + m.changed);
    c->draw_scratch_dev = p + m.scratch;
    c->attn_workspace = (attention_workspace){.partials = (void *)(p + m.partials),
                                              .partials_bytes = c->area_bytes - m.partials,
                                              .counters = (void *)(p + m.counters),
                                              .n_counters = r->counters};
    c->experts_workspace = (experts_workspace){.base = p + m.experts, .n_slots = r->expert_slots};
    c->room = *r;
    cuda_block_for(c, c->block_rows); // for the present step
}

/* Write the contents that launches expect: zeros, and the tokens that the step before drew. */
static inferd_status furnish(cuda_backend *c, const int32_t *drawn, inferd_err *err) {
    const cu_api *api = c->api;
    size_t zeros = draw_workspace_bytes(c->room.draws, c->room.vocab);
    size_t counters = c->room.counters * sizeof(uint32_t);
    cu_result r = CU_OK;
    if (zeros > 0) r = api->fill(c->draw_scratch_dev, 0, zeros, c->stream);
    if (r == CU_OK && counters > 0)
        r = api->fill(c->attn_workspace.counters, 0, counters, c->stream);
    size_t experts = experts_workspace_bytes(c->room.expert_slots);
    if (r == CU_OK && experts > 0) r = api->fill(c->experts_workspace.base, 0, experts, c->stream);
    if (r == CU_OK && drawn != NULL)
        r = api->copy_to_device(c->drawn, drawn, c->n_drawn * sizeof *drawn, c->stream);
    if (r == CU_OK) r = api->stream_sync(c->stream); // the caller owns `drawn`
    return r == CU_OK ? INFERD_OK : cu_fail(api, r, err, "clearing the workspace");
}

/* The tokens that were drawn last, on the host; *out NULL: none. */
static inferd_status keep_drawn(cuda_backend *c, int32_t **out, inferd_err *err) {
    size_t n = c->n_drawn * sizeof **out;
    *out = NULL;
    if (n == 0) return INFERD_OK;
    *out = malloc(n);
    if (*out == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %u tokens", c->n_drawn);
    cu_result r = c->api->copy_to_host(*out, c->drawn, n, c->stream);
    if (r == CU_OK) r = c->api->stream_sync(c->stream);
    if (r == CU_OK) return INFERD_OK;
    free(*out);
    *out = NULL;
    return cu_fail(c->api, r, err, "keeping drawn tokens");
}

void cuda_room_close(cuda_backend *c) {
    memory_workspace_give(c->memory, c->area);
    c->area = NULL;
    c->area_bytes = 0;
    c->room = (cuda_room){0};
    c->block = (step_block){0};
    c->attn_workspace = (attention_workspace){0};
    c->experts_workspace = (experts_workspace){0};
}

/* Take an area of this size; the old one is gone.  It is as large as its partials can use, or as
 * `leave` free bytes allow. */
static inferd_status take_area(cuda_backend *c, const cuda_room *r, size_t leave, inferd_err *err) {
    size_t fixed = map_of(r).bytes, free_bytes, before_scratch, n;
    memory_workspace_look(c->memory, &free_bytes, &before_scratch);
    free_bytes -= size_min(leave, free_bytes);
    n = fixed + size_max(size_min(r->partials, free_bytes - size_min(fixed, free_bytes)),
                         r->partials_least);
    n = n / AREA_ALIGN * AREA_ALIGN + (n % AREA_ALIGN != 0 ? AREA_ALIGN : 0);
    c->area = memory_workspace_take(c->memory, n, err);
    if (c->area == NULL) return INFERD_ENOMEM;
    c->area_bytes = n;
    point(c, r);
    return INFERD_OK;
}

/* Grow a buffer on the host, which no unfinished step reads any more. */
static inferd_status grow_pinned(cuda_backend *c, void **p, size_t *have, size_t want, size_t keep,
                                 inferd_err *err) {
    void *more = NULL;
    if (want <= *have && *p != NULL) return INFERD_OK;
    cu_result r = c->api->host_alloc(size_max(want, 1), &more);
    if (r != CU_OK) return cu_fail(c->api, r, err, "pinning memory for steps");
    if (*p != NULL && keep > 0) memcpy(more, *p, keep);
    if (*p != NULL) c->api->host_free(*p);
    *p = more;
    *have = want;
    return INFERD_OK;
}

static inferd_status grow_flights(cuda_backend *c, const cuda_room *r, inferd_err *err) {
    inferd_status s = INFERD_OK;
    for (uint32_t i = 0; i < CUDA_DEPTH && s == INFERD_OK; i++) {
        cuda_flight *f = &c->flights[i];
        size_t block = step_block_of(r->rows, r->tables).bytes;
        size_t results = r->draws * sizeof *f->results;
        s = grow_pinned(c, (void **)&f->upload, &f->upload_bytes, block, 0, err);
        if (s == INFERD_OK)
            s = grow_pinned(c, &f->draws, &f->draws_bytes, r->list_bytes, f->draws_bytes, err);
        /* The results of a computed step that be_step_finish has not read yet are still here. */
        if (s == INFERD_OK)
            s = grow_pinned(c, (void **)&f->results, &f->results_bytes, results, f->results_bytes,
                            err);
        if (s == INFERD_OK && r->expert_slots > 0)
            s = grow_pinned(c, (void **)&f->experts, &f->experts_bytes,
                            (EXPERTS_MAX + 1) * sizeof *f->experts, 0, err);
    }
    if (s != INFERD_OK || r->vocab <= c->draw_scratch_vocab) return s;
    void *scratch = calloc(1, draw_scratch_bytes(r->vocab));
    if (scratch == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for the history of %u tokens", r->vocab);
    free(c->draw_scratch);
    c->draw_scratch = scratch;
    c->draw_scratch_vocab = r->vocab;
    return INFERD_OK;
}

static inferd_status drain(cuda_backend *c, inferd_err *err) {
    c->n_growths++;
    cuda_forget_graphs(c);
    cu_result r = c->api->stream_sync(c->stream);
    return r == CU_OK ? INFERD_OK : cu_fail(c->api, r, err, "waiting for the device");
}

/* ---- while serving ---- */

/* Resize the area, or leave it unchanged.  Data that a step wrote into its upload stays there. */
static inferd_status resize(cuda_backend *c, const cuda_room *want, inferd_err *err) {
    int32_t *drawn;
    cuda_room before = c->room;
    bool had = c->area != NULL;
    inferd_status s = drain(c, err);
    if (s == INFERD_OK) s = grow_flights(c, want, err);
    if (s != INFERD_OK || (s = keep_drawn(c, &drawn, err)) != INFERD_OK) return s;
    cuda_room_close(c);
    s = take_area(c, want, 0, err);
    if (s != INFERD_OK && had) INFERD_CHECK(take_area(c, &before, 0, NULL) == INFERD_OK);
    inferd_status furnished = c->area != NULL ? furnish(c, drawn, s == INFERD_OK ? err : NULL) : s;
    if (furnished != INFERD_OK) cuda_room_close(c); // its contents are unknown
    free(drawn);
    return s != INFERD_OK ? s : furnished;
}

bool cuda_room_hold(cuda_backend *c, const cuda_room *want) {
    inferd_err err = {0};
    if (c->area != NULL && covers(&c->room, want)) return true;
    cuda_room room = larger(&c->room, &c->reserved);
    bool longer = want->tables > room.tables;
    room = larger(&room, want);
    if (longer) { // grows seldom
        uint32_t n = TABLES_MIN;
        while (n < room.tables) n *= 2;
        room.tables = n;
    }
    if (resize(c, &room, &err) == INFERD_OK) return true;
    backend_fail(&c->be, err.status, "%s", err.text);
    return false;
}

bool cuda_room_lists(cuda_backend *c, size_t n) {
    cuda_room room = c->room;
    if (n <= room.list_bytes) return true;
    if (c->lists_refused != 0 && n >= c->lists_refused) return false;
    while (room.list_bytes < n) room.list_bytes = size_max(2 * room.list_bytes, 1);
    /* Lists are rare: they must not take more than half of the partials of attention. */
    room.partials_least = size_max(room.partials_least, c->attn_workspace.partials_bytes / 2);
    cuda_room as_before = c->room;
    if (resize(c, &room, NULL) != INFERD_OK) {
        c->lists_refused = n;
        return false;
    }
    c->room.partials_least = as_before.partials_least;
    return true;
}

bool cuda_room_shrink(cuda_backend *c) {
    cuda_room room = c->room;
    if (c->area == NULL || c->attn_workspace.partials_bytes <= room.partials_least + AREA_ALIGN)
        return false;
    room.partials = room.partials_least;
    return resize(c, &room, NULL) == INFERD_OK;
}

/* ---- rotary tables ---- */

static size_t rope_bytes(const rope_spec *r, uint32_t n_positions) {
    return (size_t)n_positions * rope_table_stride(r->n_pairs, r->growth != 0) * sizeof(float);
}

/* Whether rows are interleaved does not matter to a table. */
static bool same_table(const rope_spec *a, const rope_spec *b) {
    return a->n_pairs == b->n_pairs && a->scale == b->scale && a->growth == b->growth &&
           a->growth_length == b->growth_length &&
           (a->n_pairs == 0 ||
            memcmp(a->inv_freq, b->inv_freq, a->n_pairs * sizeof *a->inv_freq) == 0);
}

static cuda_rope_table *find_rope(cuda_backend *c, const rope_spec *r) {
    for (uint32_t i = 0; i < c->n_ropes; i++) {
        cuda_rope_table *t = c->ropes[i];
        if (same_table(&t->spec, r)) return t;
    }
    return NULL;
}

static void close_rope(cuda_backend *c, uint32_t i) {
    cuda_rope_table *t = c->ropes[i];
    memory_workspace_give(c->memory, t->data);
    free(t->inv_freq);
    free(t);
    c->ropes[i] = c->ropes[--c->n_ropes];
}

/* A table without positions yet. */
static inferd_status add_rope(cuda_backend *c, const rope_spec *r, cuda_rope_table **out,
                              inferd_err *err) {
    cuda_rope_table **more = realloc(c->ropes, (c->n_ropes + 1) * sizeof(cuda_rope_table *));
    if (more != NULL) c->ropes = more;
    cuda_rope_table *t = more != NULL ? calloc(1, sizeof *t) : NULL;
    if (t != NULL) t->inv_freq = malloc(size_max(r->n_pairs, 1) * sizeof *t->inv_freq);
    if (t == NULL || t->inv_freq == NULL) {
        free(t);
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a rotary table");
    }
    if (r->n_pairs > 0) memcpy(t->inv_freq, r->inv_freq, r->n_pairs * sizeof *t->inv_freq);
    t->spec = *r;
    t->spec.inv_freq = t->inv_freq;
    c->ropes[c->n_ropes++] = *out = t;
    return INFERD_OK;
}

/* Fill positions up to n.  Positions filled before are read by unfinished steps, and stay. */
static inferd_status fill_rope(cuda_backend *c, cuda_rope_table *t, uint32_t n, inferd_err *err) {
    uint32_t begin = t->n_filled;
    if (n <= begin) return INFERD_OK;
    size_t n_bytes = rope_bytes(&t->spec, n - begin);
    float *host = malloc(n_bytes), *to = t->data + rope_bytes(&t->spec, begin) / sizeof *to;
    if (host == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for a rotary table of %u positions", n);
    rope_table_rows(&t->spec, begin, n, host);
    cu_result r = c->api->copy_to_device(to, host, n_bytes, c->stream);
    if (r == CU_OK) r = c->api->stream_sync(c->stream);
    free(host);
    if (r != CU_OK) return cu_fail(c->api, r, err, "uploading a rotary table");
    t->n_filled = n;
    return INFERD_OK;
}

/* Allocate n positions, none of them filled. */
static inferd_status room_rope(cuda_backend *c, cuda_rope_table *t, uint32_t n, inferd_err *err) {
    if (t->data != NULL) { // graphs use its address
        inferd_status s = drain(c, err);
        if (s != INFERD_OK) return s;
    }
    memory_workspace_give(c->memory, t->data);
    t->n_positions = t->n_filled = 0;
    size_t n_bytes = rope_bytes(&t->spec, n);
    t->data = memory_workspace_take(c->memory, n_bytes, err);
    if (t->data == NULL && cuda_room_shrink(c))
        t->data = memory_workspace_take(c->memory, n_bytes, err);
    if (t->data == NULL) return INFERD_ENOMEM;
    t->n_positions = n;
    return INFERD_OK;
}

/* At most ROPES_UNUSED_MAX tables that no model reserved are kept. */
static void drop_unused_rope(cuda_backend *c) {
    uint32_t n = 0, first = 0;
    for (uint32_t i = c->n_ropes; i-- > 0;)
        if (c->ropes[i]->n_users == 0) {
            n++;
            first = i;
        }
    if (n < ROPES_UNUSED_MAX || drain(c, NULL) != INFERD_OK) return;
    close_rope(c, first);
}

static inferd_status hold_rope(cuda_backend *c, const rope_spec *r, uint32_t context,
                               inferd_err *err) {
    cuda_rope_table *t = find_rope(c, r);
    inferd_status s = INFERD_OK;
    uint32_t n = CUDA_ROPE_POSITIONS;
    if (t != NULL && t->n_filled >= context) return INFERD_OK;
    if (t == NULL) drop_unused_rope(c);
    if (t == NULL) s = add_rope(c, r, &t, err);
    if (s != INFERD_OK) return s;
    while (n < context) n *= 2;
    if (t->n_positions < context) s = room_rope(c, t, n, err);
    return s == INFERD_OK ? fill_rope(c, t, u32_min(n, t->n_positions), err) : s;
}

bool cuda_room_ropes(cuda_backend *c) {
    inferd_err err = {0};
    for (uint32_t i = 0; i < c->program.n; i++) {
        const rope_spec *r = &c->program.ops[i].rope;
        if (c->program.ops[i].kind != OP_ROPE || !rope_has_table(r)) continue;
        if (hold_rope(c, r, c->context_max, &err) == INFERD_OK) continue;
        backend_fail(&c->be, err.status, "%s", err.text);
        return false;
    }
    return true;
}

const float *cuda_rope(cuda_backend *c, const rope_spec *r) {
    const cuda_rope_table *t = find_rope(c, r);
    INFERD_CHECK(t != NULL);
    return t->data;
}

void cuda_ropes_close(cuda_backend *c) {
    while (c->n_ropes > 0) close_rope(c, 0);
    free(c->ropes);
    c->ropes = NULL;
}

/* ---- reserving ---- */

/* Bytes of activations that share memory with those of other models, and of those that do not. */
typedef struct act_bytes {
    size_t scratch, padded;
} act_bytes;

static act_bytes sum_acts(const be_needs *n, cu_type inner) {
    act_bytes sum = {0};
    for (uint32_t i = 0; i < n->n_acts; i++) {
        const be_act_shape *a = &n->acts[i];
        size_t stride = cuda_act_stride(a->dim);
        size_t n_bytes =
            (size_t)a->rows * stride * (a->kind == ACT_INNER && inner != CU_F32 ? 2 : 4);
        put(stride == a->dim ? &sum.scratch : &sum.padded, size_max(n_bytes, 1));
    }
    return sum;
}

/* Positions of a sequence: as many as the model allows, or as all pages hold. */
static uint32_t context_of(const be_needs *n, uint64_t n_pages) {
    uint64_t n_blocks = n_pages * n->kv.slots_per_page / u32_max(n->kv.n_groups, 1);
    uint64_t n_tokens = n_blocks * n->kv.block_tokens;
    return n_tokens < n->context ? (uint32_t)n_tokens : n->context;
}

/* logits_max bounds the sequences of a step as well. */
static cuda_room room_of(const be_needs *n, uint32_t context) {
    uint32_t rows = u32_max(n->rows_max, n->logits_max), seqs = u32_min(n->logits_max, n->rows_max);
    uint32_t stride = 0;
    for (uint32_t i = 0; i < n->n_acts; i++)
        if (n->acts[i].kind == ACT_LOGITS)
            stride = u32_max(stride, cuda_act_stride(n->acts[i].dim));
    return (cuda_room){
        .rows = rows,
        .tables = (uint32_t)size_min((size_t)seqs * kv_blocks_of(&n->kv, context) * n->kv.n_groups,
                                     INT32_MAX),
        .draws = n->logits_max,
        .stride = stride,
        .vocab = n->n_vocab,
        .list_bytes = cuda_draw_bytes(n->logits_max, n->n_vocab),
        .counters = attention_counters(seqs, n->n_kv_heads),
        .expert_slots = (uint32_t)size_min((size_t)rows * n->n_experts_used, UINT32_MAX),
        .partials_least = attention_partials_bytes(1, n->n_heads, n->head_dim),
        .partials = attention_partials_bytes(seqs, n->n_heads, n->head_dim)};
}

/* Bytes of tables that do not exist yet, or are too short. */
static size_t new_rope_bytes(cuda_backend *c, const be_needs *n, uint32_t context) {
    size_t sum = 0;
    for (uint32_t i = 0; i < n->n_ropes; i++) {
        if (!rope_has_table(&n->ropes[i])) continue;
        const cuda_rope_table *t = c != NULL ? find_rope(c, &n->ropes[i]) : NULL;
        if (t == NULL || t->n_positions < context) put(&sum, rope_bytes(&n->ropes[i], context));
    }
    return sum;
}

/* The area is not taken.  Bytes that the workspace lacks for it, for `more` bytes of scratch and
 * for `extra` bytes anywhere; 0: all fit. */
static size_t missing_bytes(const cuda_backend *c, size_t area, size_t more, size_t extra) {
    size_t largest, before_scratch;
    memory_workspace_look(c->memory, &largest, &before_scratch);
    if (largest > before_scratch && largest >= area + extra)
        return more > before_scratch ? more - before_scratch : 0;
    size_t want = area + more + extra;
    return want > before_scratch ? want - before_scratch : 0;
}

static inferd_status tell_missing(const cuda_backend *c, const be_needs *n, uint32_t context,
                                  size_t missing, inferd_err *err) {
    cuda_memory_stats stats;
    memory_get_stats(c->memory, &stats);
    uint64_t has = stats.workspace_bytes;
    uint64_t needed = cuda_workspace_of(has - cuda_expand_bytes(has) + missing);
    return inferd_fail(
        err, INFERD_ENOMEM,
        "workspace has %llu bytes and must have %llu: steps of %u rows, logits of %u rows and %u "
        "tokens, %u heads of %u, a context of %u (more devices[].memory, or smaller limits)",
        (unsigned long long)has, (unsigned long long)needed, n->rows_max, n->logits_max, n->n_vocab,
        n->n_heads, n->head_dim, context);
}

/* Take tables and scratch for n; the area is not taken, and it is known that all fits. */
static inferd_status take_beside(cuda_backend *c, const be_needs *n, uint32_t context,
                                 size_t scratch, be_reservation *r, inferd_err *err) {
    if (scratch > 0 && memory_scratch_hold(c->memory, scratch, err) == NULL) return INFERD_ENOMEM;
    for (uint32_t i = 0; i < n->n_ropes; i++) {
        if (!rope_has_table(&n->ropes[i])) continue;
        cuda_rope_table *t = find_rope(c, &n->ropes[i]);
        inferd_status s = t == NULL ? add_rope(c, &n->ropes[i], &t, err) : INFERD_OK;
        if (s == INFERD_OK && t->n_positions < context) s = room_rope(c, t, context, err);
        if (s != INFERD_OK) return s;
        t->n_users++;
        r->ropes[r->n_ropes++] = t;
        s = fill_rope(c, t, u32_min(CUDA_ROPE_POSITIONS, context), err);
        if (s != INFERD_OK) return s;
    }
    return INFERD_OK;
}

/* Take everything for n; on failure only the addresses of earlier buffers may change. */
static inferd_status reserve(cuda_backend *c, const be_needs *n, be_reservation *r,
                             inferd_err *err) {
    uint32_t context = context_of(n, memory_n_pages(c->memory));
    act_bytes acts = sum_acts(n, c->inner);
    int32_t *drawn;
    r->room = room_of(n, context);
    cuda_room before = c->room, want = larger(&c->reserved, &r->room);
    bool had = c->area != NULL;
    inferd_status s = drain(c, err);
    if (s == INFERD_OK) s = grow_flights(c, &want, err);
    if (s != INFERD_OK || (s = keep_drawn(c, &drawn, err)) != INFERD_OK) return s;
    cuda_room_close(c);
    size_t held = memory_scratch_held(c->memory);
    size_t missing = missing_bytes(c, map_of(&want).bytes + want.partials_least + AREA_ALIGN,
                                   acts.scratch > held ? acts.scratch - held : 0,
                                   acts.padded + new_rope_bytes(c, n, context));
    s = missing > 0 ? tell_missing(c, n, context, missing, err)
                    : take_beside(c, n, context, acts.scratch, r, err);
    if (s == INFERD_OK) s = take_area(c, &want, acts.padded, err);
    /* Take the area again as before; a smaller one when a call failed and scratch has grown.  If
     * scratch took all of the partials, there is no area: the next step tries again. */
    if (s != INFERD_OK && had) take_area(c, &before, 0, NULL);
    inferd_status furnished = c->area != NULL ? furnish(c, drawn, s == INFERD_OK ? err : NULL) : s;
    if (furnished != INFERD_OK) cuda_room_close(c);
    free(drawn);
    return s != INFERD_OK ? s : furnished;
}

static void give_ropes(cuda_backend *c, be_reservation *r) {
    for (uint32_t i = 0; i < r->n_ropes; i++)
        for (uint32_t k = 0; k < c->n_ropes; k++)
            if (c->ropes[k] == r->ropes[i] && --c->ropes[k]->n_users == 0) {
                close_rope(c, k);
                break;
            }
    r->n_ropes = 0;
}

inferd_status cuda_reserve(backend *be, const be_needs *n, be_reservation **out, inferd_err *err) {
    cuda_backend *c = cuda_of(be);
    be_reservation *r = calloc(1, sizeof *r);
    *out = NULL;
    if (r == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a reservation");
    inferd_status s = reserve(c, n, r, err);
    if (s != INFERD_OK) {
        give_ropes(c, r);
        free(r);
        return s;
    }
    c->lists_refused = 0;
    c->reserved = larger(&c->reserved, &r->room);
    r->next = c->reservations;
    c->reservations = *out = r;
    return INFERD_OK;
}

/* The area stays as it is, for the next model. */
void cuda_release(backend *be, be_reservation *r) {
    cuda_backend *c = cuda_of(be);
    be_reservation **at = &c->reservations;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    c->reserved = (cuda_room){0};
    for (const be_reservation *i = c->reservations; i != NULL; i = i->next)
        c->reserved = larger(&c->reserved, &i->room);
    cuda_forget_graphs(c); // they use the tables
    c->api->stream_sync(c->stream);
    give_ropes(c, r);
    free(r);
}

/* Workspace that the backend itself takes when it opens. */
static size_t fixed_bytes(void) {
    return MATMUL_PARTIALS_BYTES + MATMUL_COUNTERS * sizeof(uint32_t) + MATMUL_LT_BYTES;
}

uint64_t cuda_workspace_bytes(const backend_options *o, const be_needs *needs, uint32_t n) {
    cu_type inner = CU_BF16; // f16 is as large
    cuda_room room = {0};
    size_t scratch = 0, extra = 0;
    uint64_t n_pages = o->memory_bytes != 0 ? o->memory_bytes / ((size_t)2 << 20) : UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t context = context_of(&needs[i], n_pages);
        cuda_room of = room_of(&needs[i], context);
        act_bytes acts = sum_acts(&needs[i], inner);
        room = larger(&room, &of);
        scratch = size_max(scratch, acts.scratch);
        extra += acts.padded + new_rope_bytes(NULL, &needs[i], context);
    }
    if (n == 0) return 0;
    return cuda_workspace_of(fixed_bytes() + map_of(&room).bytes + room.partials + AREA_ALIGN +
                             scratch + extra);
}
