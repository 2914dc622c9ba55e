/* cuda_step.c - one step on the device.
 *
 *     begin      the batch is written into pinned memory: tokens, positions, block tables
 *     ...        operations are recorded
 *     end        upload > graph, or launches > ids (or logits) to pinned memory; two events
 *     draw       of a batch with draws_later: what end leaves out then, from the ids on
 *     finish     wait for the event at the end of the oldest step
 *
 * The data that a step reads on the device has addresses that never change, so one graph serves
 * every step of its kind: (list of operations, bucket of rows, bucket of context), 95 kinds
 * for a model with batches and contexts of every size.  A kind of step is launched operation by
 * operation the first time and captured the second time.  A step with prefill in it, or of a
 * model with weights in flight, is neither captured nor replayed: each of its operations waits for
 * its own weights.
 *
 * Buffers are large enough for every step of a model that reserved them (room.h).  Without a
 * reservation a buffer that is too small grows between steps: the stream is drained and graphs with
 * the old address are dropped.  That is counted (n_growths).
 *
 * Thread: engine. */
#include <string.h>

#include "cuda/cuda.h"

bool cuda_failed(cuda_backend *c, cu_result r, const char *what) {
    inferd_err err = {0};
    if (r == CU_OK) return false;
    cu_fail(c->api, r, &err, what);
    backend_fail(&c->be, err.status, "%s", err.text);
    return true;
}

void cuda_check_launches(cuda_backend *c) {
    inferd_err err = {0};
    if (c->launch.status == CU_OK) return;
    cu_fail(c->api, c->launch.status, &err, "launching");
    backend_fail(&c->be, err.status, "%s", c->launch.text);
    c->launch.status = CU_OK;
}

/* ---- buffers ---- */

static bool replace_pinned(cuda_backend *c, void **p, size_t n) {
    if (*p != NULL) c->api->host_free(*p);
    *p = NULL;
    return !cuda_failed(c, c->api->host_alloc(size_max(n, 1), p), "pinning memory for steps");
}

static size_t place(size_t *at, size_t n) {
    size_t begin = *at;
    *at += (n + 15) / 16 * 16;
    return begin;
}

step_block step_block_of(uint32_t rows, uint32_t tables) {
    step_block b = {.rows_max = rows, .tables_max = tables};
    size_t at = 0;
    place(&at, sizeof(step_header));
    b.tokens = place(&at, rows * sizeof(int32_t));
    b.pending = place(&at, rows * sizeof(uint32_t));
    b.positions = place(&at, rows * sizeof(uint32_t));
    b.row_seq = place(&at, rows * sizeof(uint32_t));
    b.seqs = place(&at, rows * sizeof(step_seq));
    b.logit_rows = place(&at, rows * sizeof(uint32_t));
    b.decode_rows = place(&at, rows * sizeof(uint32_t));
    b.tiles = place(&at, rows * sizeof(step_tile));
    b.tables = place(&at, tables * sizeof(int32_t)); // last: only the used part is copied
    b.bytes = at;
    return b;
}

static bool hold_block(cuda_backend *c, uint32_t rows, uint32_t tables) {
    /* Models reserve their rows.  Without them all that activations hold, which may be more: those
     * of experts have a row for each expert of a row. */
    uint32_t most = c->reservations != NULL ? 0 : c->act_rows_max;
    return cuda_room_hold(c, &(cuda_room){.rows = u32_max(rows, most), .tables = tables});
}

/* Partials for all rows, if there is room; with less, attention runs in more launches. */
static bool hold_attention(cuda_backend *c, uint32_t rows) {
    cuda_room want = {0};
    for (uint32_t i = 0; i < c->program.n; i++) {
        const step_op *o = &c->program.ops[i];
        if (o->kind != OP_ATTENTION) continue;
        const attn_spec *a = &o->attn;
        size_t least = attention_partials_bytes(u32_min(rows, 1), a->n_heads, a->head_dim);
        size_t all = attention_partials_bytes(rows, a->n_heads, a->head_dim);
        want.partials_least = size_max(want.partials_least, least);
        want.partials = size_max(want.partials, all);
        want.counters = u32_max(want.counters, attention_counters(rows, a->n_kv_heads));
    }
    return cuda_room_hold(c, &want);
}

/* Rows of its launch: of the batch or a graph's bucket, or the number that it was given. */
static uint32_t rows_of_op(const cuda_backend *c, const step_op *o, uint32_t rows) {
    uint32_t n = o->extent == ROWS_BATCH    ? c->batch->n_rows
                 : o->extent == ROWS_LOGITS ? c->batch->n_logits
                                            : o->n;
    return u32_max(rows, n);
}

static bool hold_experts(cuda_backend *c, uint32_t rows) {
    cuda_room want = {0};
    for (uint32_t i = 0; i < c->program.n; i++) {
        const step_op *o = &c->program.ops[i];
        if (o->kind != OP_EXPERTS) continue;
        size_t n_slots = (size_t)rows_of_op(c, o, rows) * o->experts.n_used;
        want.expert_slots = u32_max(want.expert_slots, (uint32_t)size_min(n_slots, UINT32_MAX));
    }
    return cuda_room_hold(c, &want);
}

static bool hold_draws(cuda_backend *c) {
    uint32_t rows = c->draw_logits->rows_max;
    return cuda_room_hold(c, &(cuda_room){.draws = rows,
                                          .stride = c->draw_logits->stride,
                                          .vocab = c->draw_vocab,
                                          .list_bytes = cuda_draw_bytes(rows, c->draw_vocab)});
}

/* ---- the batch ---- */

/* The slots that this step touches lie in pages that exist. */
static bool slots_fit(cuda_backend *c, const batch_seq *s, const kv_layout *kv) {
    uint32_t n_ready = memory_n_ready(c->memory);
    uint64_t n_slots = (uint64_t)n_ready * kv->slots_per_page;
    uint32_t n_used = kv_blocks_of(kv, s->pos_begin + s->n_rows);
    if (s->n_rows == 0) return true;
    if (n_used > s->n_blocks) {
        backend_fail(&c->be, INFERD_EINVAL, "position %u has no slots: the sequence has %u blocks",
                     s->pos_begin + s->n_rows - 1, s->n_blocks);
        return false;
    }
    uint32_t n = n_used * kv->n_groups, worst = 0; // a batch has tens of thousands: no branches
    for (uint32_t i = 0; i < n; i++) worst = u32_max(worst, (uint32_t)s->slots[i]);
    if (n == 0 || (worst <= INT32_MAX && worst < n_slots)) return true;
    backend_fail(&c->be, INFERD_EDEVICE, "slot %d is not in the %u pages of the device",
                 (int32_t)worst, n_ready);
    return false;
}

static uint32_t count_tables(const batch *b, const kv_layout *kv) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        n += kv_blocks_of(kv, b->seqs[i].pos_begin + b->seqs[i].n_rows) * kv->n_groups;
    return n;
}

static void write_seqs(cuda_backend *c, unsigned char *p, const batch *b, const kv_layout *kv) {
    step_seq *seqs = (void *)(p + c->block.seqs);
    int32_t *tables = (void *)(p + c->block.tables);
    uint32_t at = 0;
    c->context_max = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const batch_seq *s = &b->seqs[i];
        uint32_t n_blocks = kv_blocks_of(kv, s->pos_begin + s->n_rows);
        seqs[i] = (step_seq){.row_begin = s->row_begin,
                             .n_rows = s->n_rows,
                             .pos_begin = s->pos_begin,
                             .n_blocks = n_blocks,
                             .table_begin = at};
        memcpy(tables + at, s->slots, (size_t)n_blocks * kv->n_groups * sizeof *tables);
        at += n_blocks * kv->n_groups;
        c->context_max = u32_max(c->context_max, s->pos_begin + s->n_rows);
    }
}

static void write_block(cuda_backend *c, const batch *b, const kv_layout *kv) {
    unsigned char *p = c->flights[(c->flight_first + c->n_flights) % CUDA_DEPTH].upload;
    step_header *h = (void *)p;
    *h = (step_header){.n_rows = b->n_rows, .n_seqs = b->n_seqs, .n_logits = b->n_logits};
    memcpy(p + c->block.tokens, b->tokens, b->n_rows * sizeof *b->tokens);
    memcpy(p + c->block.pending, b->pending, b->n_rows * sizeof *b->pending);
    memcpy(p + c->block.positions, b->positions, b->n_rows * sizeof *b->positions);
    memcpy(p + c->block.row_seq, b->row_seq, b->n_rows * sizeof *b->row_seq);
    memcpy(p + c->block.logit_rows, b->logit_rows, b->n_logits * sizeof *b->logit_rows);
    write_seqs(c, p, b, kv);
    attention_plan(h, (void *)(p + c->block.seqs), (void *)(p + c->block.decode_rows),
                   (void *)(p + c->block.tiles));
    c->n_decode = h->n_decode;
    c->n_tiles = h->n_tiles;
}

static size_t used_bytes(const cuda_backend *c, uint32_t n_tables) {
    return c->block.tables + n_tables * sizeof(int32_t);
}

void cuda_step_begin(backend *be, const batch *b, const kv_layout *kv) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(c->later == NULL);
    program_clear(&c->program);
    c->batch = b;
    c->step++;
    c->n_calls_at_begin = memory_n_calls(c->memory);
    c->draw_rows = NULL;
    c->wanted = c->draw_logits = NULL;
    c->n_draws = c->n_wanted = 0;
    c->draw_at = NULL;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (!slots_fit(c, &b->seqs[i], kv)) return;
    c->n_tables = count_tables(b, kv);
    uint32_t rows = u32_max(b->n_rows, b->n_logits);
    if (!hold_block(c, rows, c->n_tables)) return;
    cuda_block_for(c, rows);
    c->kv = (kv_view){.arena = memory_base(c->memory),
                      .page_bytes = memory_page_bytes(c->memory),
                      .slots_per_page = kv->slots_per_page,
                      .slot_bytes = (uint32_t)kv->slot_bytes,
                      .layer_bytes = (uint32_t)kv->layer_bytes,
                      .group_layers = kv->group_layers,
                      .n_groups = kv->n_groups,
                      .block_tokens = kv->block_tokens,
                      .n_kv_heads = kv->n_kv_heads,
                      .head_dim = kv->head_dim,
                      .type = kv->type == KV_BF16 ? CU_BF16 : CU_F16,
                      .n_saturated = c->n_saturated};
    write_block(c, b, kv);
    c->in_step = true;
}

/* ---- drawing ---- */

/* Is a token that is still being drawn part of a history that changes logits? */
static bool needs_drawn_before(const cuda_backend *c) {
    for (uint32_t i = 0; i < c->n_draws; i++) {
        const sample_params *p = c->draw_rows[i].params;
        if (c->batch->tokens[c->batch->logit_rows[i]] == TOK_PENDING &&
            (p->repetition_penalty != 1.0f || p->presence_penalty != 0 ||
             p->frequency_penalty != 0))
            return true;
    }
    return false;
}

/* Choose where kernels read the plan: on the device, if it fits (the area may grow), else in pinned
 * memory. */
static void place_plan(cuda_backend *c, draw_plan *plan) {
    cuda_flight *f = &c->flights[(c->flight_first + c->n_flights) % CUDA_DEPTH];
    bool fits = cuda_room_lists(c, plan->bytes);
    plan->host = f->draws; // it moves when others grow
    c->draw_at = fits ? c->draw_dev : f->draws;
}

static bool plan_draws(cuda_backend *c, draw_plan *plan) {
    inferd_err err = {0};
    if (!hold_draws(c)) return false;
    for (;;) {
        cuda_flight *f = &c->flights[(c->flight_first + c->n_flights) % CUDA_DEPTH];
        *plan = (draw_plan){.host = f->draws, .bytes_max = f->draws_bytes};
        inferd_status s =
            draw_plan_build(plan, c->draw_rows, c->batch, c->draw_vocab, c->draw_scratch, &err);
        if (s == INFERD_OK) {
            place_plan(c, plan);
            return c->be.failure.status == INFERD_OK;
        }
        if (s != INFERD_ETOOLONG) {
            backend_fail(&c->be, s, "%s", err.text);
            return false;
        }
        size_t n = 2 * f->draws_bytes; // no unfinished step reads this one's buffer
        f->draws_bytes = 0;
        if (!replace_pinned(c, &f->draws, n)) return false;
        f->draws_bytes = n;
    }
}

/* ---- graphs ---- */

static void drop_graph(cuda_backend *c, cuda_graph *g) {
    if (g->graph != NULL) c->api->graph_destroy(g->graph);
    free(g->ops);
    *g = (cuda_graph){0};
}

void cuda_forget_graphs(cuda_backend *c) {
    for (uint32_t i = 0; i < c->n_graphs; i++) drop_graph(c, &c->graphs[i]);
    c->n_graphs = 0;
}

/* 1, 2, 4, then multiples of 8 up to 64, then four to each doubling: 19 up to 256.  A graph of a
 * bucket computes at most 7 rows too many, and of more than 32 rows less than a quarter. */
static uint32_t bucket_of(uint32_t n) {
    uint32_t each = 8;
    while (n > 8 * each) each *= 2;
    return n <= 2 ? n : n <= 4 ? 4 : (n + each - 1) / each * each;
}

/* A graph waits for nothing, so all that it reads must have arrived when it is launched.  Windows
 * of other models may be in flight meanwhile. */
static bool weights_arrived(const cuda_backend *c) {
    if (memory_all_arrived(c->memory)) return true;
    if (!parts_is_on(&c->parts, PART_WINDOWS)) return false;
    for (uint32_t i = 0; i < c->program.n; i++) {
        const step_op *o = &c->program.ops[i];
        if (!memory_window_arrived(c->memory, o->w.data) ||
            !memory_window_arrived(c->memory, o->v.data))
            return false;
        if (o->kind == OP_EXPERTS && !memory_window_arrived(c->memory, o->experts.gate.data))
            return false;
    }
    return true;
}

/* Rows to launch a graph for; 0: this step cannot be a graph. */
static uint32_t graph_rows(const cuda_backend *c) {
    const batch *b = c->batch;
    if (!parts_is_tried(&c->parts, PART_GRAPHS) || c->n_refused_in_a_row >= CUDA_REFUSALS_MAX)
        return 0;
    if (b->n_logits != b->n_rows || b->n_seqs != b->n_rows || b->n_rows > CUDA_GRAPH_ROWS_MAX ||
        c->n_decode != b->n_rows || !weights_arrived(c))
        return 0;
    uint32_t rows = u32_min(bucket_of(b->n_rows), c->block.rows_max);
    for (uint32_t i = 0; i < c->program.n; i++) {
        const step_op *o = &c->program.ops[i];
        if (o->extent == ROWS_FIXED) return 0;
        if (o->out != NULL) rows = u32_min(rows, o->out->rows_max);
    }
    return rows;
}

static cuda_graph *find_graph(cuda_backend *c, uint32_t rows, uint32_t context) {
    for (uint32_t i = 0; i < c->n_graphs; i++) {
        cuda_graph *g = &c->graphs[i];
        if (g->rows == rows && g->context == context && memcmp(&g->kv, &c->kv, sizeof g->kv) == 0 &&
            program_equal(g->ops, g->n_ops, c->program.ops, c->program.n))
            return g;
    }
    return NULL;
}

/* Remember this kind of step; NULL: no memory, then it is not captured. */
static cuda_graph *add_graph(cuda_backend *c, uint32_t rows, uint32_t context) {
    step_op *ops = malloc(size_max(c->program.n, 1) * sizeof *ops);
    if (ops == NULL) return NULL;
    cuda_graph *g = &c->graphs[0];
    if (c->n_graphs < CUDA_GRAPHS_MAX)
        g = &c->graphs[c->n_graphs++];
    else
        for (uint32_t i = 1; i < c->n_graphs; i++)
            if (c->graphs[i].used < g->used) g = &c->graphs[i];
    drop_graph(c, g);
    memcpy(ops, c->program.ops, c->program.n * sizeof *ops);
    *g = (cuda_graph){
        .ops = ops, .n_ops = c->program.n, .rows = rows, .context = context, .kv = c->kv};
    return g;
}

/* Record the launches.  `why`: the library's message when they were refused. */
static cu_result record(cuda_backend *c, cuda_graph *g, char why[CU_TEXT_BYTES]) {
    cu_result r = c->api->capture_begin(c->stream);
    snprintf(why, CU_TEXT_BYTES, "%s", r == CU_OK ? "" : c->api->text());
    if (r != CU_OK) return r;
    c->capturing = true;
    program_launch(c, &c->program, g->rows, g->rows, false);
    c->capturing = false;
    cu_result launched = c->launch.status;
    if (launched != CU_OK) snprintf(why, CU_TEXT_BYTES, "%s", c->launch.text);
    c->launch.status = CU_OK;
    r = c->api->capture_end(c->stream, &g->graph);
    if (r != CU_OK && launched == CU_OK) snprintf(why, CU_TEXT_BYTES, "%s", c->api->text());
    if (launched != CU_OK) r = launched;
    if (r != CU_OK && g->graph != NULL) c->api->graph_destroy(g->graph);
    if (r != CU_OK) g->graph = NULL;
    return r;
}

/* A capture that is refused with dependent launches is tried without them; if that works, dependent
 * launches were refused.  A device that is short of memory may refuse, too; then the operations are
 * launched one by one.  A lost device is a failure. */
static void capture(cuda_backend *c, cuda_graph *g) {
    char why[CU_TEXT_BYTES], why_plain[CU_TEXT_BYTES];
    bool dependent = c->launch.dependent;
    cu_result r = record(c, g, why);
    if (r != CU_OK && r != CU_ELOST && dependent) {
        c->launch.dependent = false;
        r = record(c, g, why_plain);
        c->launch.dependent = r != CU_OK && parts_is_on(&c->parts, PART_PDL);
        if (r == CU_OK) parts_degrade(&c->parts, PART_PDL, why);
    }
    if (r == CU_ELOST) cuda_failed(c, r, "capturing a step");
    g->refused = r != CU_OK;
    if (r == CU_OK) {
        c->n_graphs_captured++;
        c->n_refused_in_a_row = 0;
    } else {
        c->n_graphs_refused++;
        c->n_refused_in_a_row++;
        parts_degrade(&c->parts, PART_GRAPHS, why);
    }
}

/* False: the launch was refused, nothing of it runs, and the graph is not used again. */
static bool launch_graph(cuda_backend *c, cuda_graph *g) {
    cu_result r = c->api->graph_launch(g->graph, c->stream);
    if (r == CU_EINVAL || r == CU_EUNSUPPORTED) {
        parts_degrade(&c->parts, PART_GRAPHS, c->api->text());
        c->api->graph_destroy(g->graph);
        g->graph = NULL;
        g->refused = true;
        c->n_graphs_refused++;
        c->n_refused_in_a_row++;
        return false;
    }
    if (!cuda_failed(c, r, "launching a graph")) c->n_graph_launches++;
    return true;
}

/* `rows`: of its graph, 0: of none. */
static void launch_program(cuda_backend *c, uint32_t rows) {
    uint32_t context = attention_context_bucket(c->context_max);
    if (rows > 0) {
        cuda_graph *g = find_graph(c, rows, context);
        uint32_t n_decode = c->n_decode, context_max = c->context_max;
        bool known = g != NULL;
        c->n_decode = rows;
        c->context_max = context;
        if (!known) g = add_graph(c, rows, context);
        if (g != NULL) g->used = c->step;
        if (known && g->graph == NULL && !g->refused) capture(c, g);
        c->n_decode = n_decode;
        c->context_max = context_max;
        if (known && g->graph != NULL && launch_graph(c, g)) return;
        if (c->be.failure.status != INFERD_OK) return;
    }
    program_launch(c, &c->program, c->batch->n_rows, c->batch->n_logits, false);
    cuda_check_launches(c);
}

/* ---- end and finish ---- */

static void upload(cuda_backend *c, const cuda_flight *f) {
    uint32_t n = c->batch->n_rows;
    uint32_t pad = n > CUDA_GRAPH_ROWS_MAX ? n : u32_min(bucket_of(n), c->block.rows_max);
    for (uint32_t i = c->batch->n_rows; i < pad; i++) { // rows of a graph beyond the batch
        ((int32_t *)(void *)(f->upload + c->block.tokens))[i] = 0;
        ((uint32_t *)(void *)(f->upload + c->block.positions))[i] = 0;
        ((uint32_t *)(void *)(f->upload + c->block.row_seq))[i] = 0;
        ((uint32_t *)(void *)(f->upload + c->block.logit_rows))[i] = 0;
    }
    cuda_failed(
        c, c->api->copy_to_device(c->block_dev, f->upload, used_bytes(c, c->n_tables), c->stream),
        "uploading a step");
}

static void upload_draws(cuda_backend *c, const draw_plan *plan) {
    if (c->draw_at == c->draw_dev)
        cuda_failed(c, c->api->copy_to_device(c->draw_dev, plan->host, plan->bytes, c->stream),
                    "uploading what to draw");
    if (needs_drawn_before(c) && c->n_drawn > 0)
        cuda_failed(c,
                    c->api->copy_on_device(c->drawn_before, c->drawn, c->n_drawn * sizeof *c->drawn,
                                           c->stream),
                    "keeping drawn tokens");
}

static bool reserve_logits(cuda_backend *c, cuda_flight *f) {
    size_t n = (size_t)c->n_wanted * c->wanted->stride * sizeof(float);
    if (n <= f->logits_bytes) return true;
    f->logits_bytes = 0;
    if (!replace_pinned(c, (void **)&f->logits, n)) return false;
    f->logits_bytes = n;
    return true;
}

static void download(cuda_backend *c, cuda_flight *f) {
    f->n_draws = c->n_draws;
    f->wanted = c->wanted;
    if (f->n_experts > 0)
        cuda_failed(c,
                    c->api->copy_to_host(f->experts, experts_tally(&c->experts_workspace),
                                         (f->n_experts + 1) * sizeof *f->experts, c->stream),
                    "downloading what experts computed");
    if (c->n_draws > 0)
        cuda_failed(c,
                    c->api->copy_to_host(f->results, c->results_dev,
                                         c->n_draws * sizeof *f->results, c->stream),
                    "downloading what was drawn");
    if (c->n_wanted > 0)
        cuda_failed(c,
                    c->api->copy_to_host(f->logits, c->wanted->data,
                                         (size_t)c->n_wanted * c->wanted->stride * sizeof(float),
                                         c->stream),
                    "downloading logits");
}

/* Make sure that a launch has the workspace it needs; `rows` as for launch_program. */
static bool reserve(cuda_backend *c, uint32_t rows) {
    return cuda_room_ropes(c) && hold_attention(c, u32_max(rows, c->n_decode)) &&
           hold_experts(c, rows);
}

static void end_flight(cuda_backend *c, cuda_flight *f) {
    f->end = cuda_wait_for_next(c);
    if (c->be.failure.status == INFERD_OK)
        cuda_failed(c, c->api->event_record(f->ends[f->end], c->stream), "ending a step");
}

static void launch_step(cuda_backend *c) {
    draw_plan plan = {0};
    uint32_t rows = graph_rows(c); // called once: weights may arrive at any time
    bool later = c->n_draws > 0 && c->batch->draws_later, draws = c->n_draws > 0 && !later;
    if (!reserve(c, rows) || (draws && !plan_draws(c, &plan)) || (later && !hold_draws(c))) return;
    if (draws && c->draw_at != c->draw_dev) rows = 0; // graphs use draw_dev only
    cuda_flight *f = &c->flights[(c->flight_first + c->n_flights) % CUDA_DEPTH];
    if (c->n_wanted > 0 && !reserve_logits(c, f)) return;
    f->n_experts = program_n_experts(&c->program);
    cuda_moves_await(c); // before its time begins: waiting is not computing
    if (c->be.failure.status != INFERD_OK) return;
    if (cuda_failed(c, c->api->event_record(f->begin, c->stream), "beginning a step")) return;
    upload(c, f);
    if (draws) upload_draws(c, &plan);
    if (c->be.failure.status == INFERD_OK) launch_program(c, rows);
    if (c->be.failure.status != INFERD_OK) return;
    if (later) {
        c->later = c->batch;
        return;
    }
    download(c, f);
    end_flight(c, f);
}

/* The rest of a step that was launched without its draws: two kernels, in no graph. */
static void launch_draws(cuda_backend *c) {
    draw_plan plan = {0};
    cuda_flight *f = &c->flights[(c->flight_first + c->n_flights) % CUDA_DEPTH];
    if (c->be.failure.status != INFERD_OK || !plan_draws(c, &plan)) return;
    step_op *o = program_add(&c->program, OP_DRAW);
    if (o == NULL) {
        backend_fail(&c->be, INFERD_ENOMEM, "no memory for the operations of a step");
        return;
    }
    o->extent = ROWS_LOGITS;
    o->a = c->draw_logits;
    o->n_vocab = c->draw_vocab;
    upload_draws(c, &plan);
    if (c->be.failure.status != INFERD_OK) return;
    program_launch(c, &c->program, c->batch->n_rows, c->batch->n_logits, false);
    cuda_check_launches(c);
    if (c->be.failure.status != INFERD_OK) return;
    download(c, f);
    end_flight(c, f);
}

/* The newest flight is as it should be, or is none. */
static void count_flight(cuda_backend *c) {
    if (c->be.failure.status == INFERD_OK) {
        if (c->later == NULL) c->n_drawn = c->n_draws;
        c->n_flights++;
    } else {
        /* Copies of it may be queued already; its buffers are free once these have ended. */
        c->api->stream_sync(c->stream);
        c->n_drawn = 0;
        c->later = NULL;
    }
    program_clear(&c->program);
    c->batch = NULL;
}

void cuda_step_end(backend *be, bool failed) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(c->n_flights < CUDA_DEPTH);
    if (!failed) launch_step(c);
    count_flight(c);
    c->n_kv_driver_calls += memory_n_calls(c->memory) - c->n_calls_at_begin;
    c->in_step = false;
}

void cuda_step_draw(backend *be, const sample_row *rows) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(c->later != NULL && c->n_flights > 0);
    c->batch = c->later;
    c->later = NULL;
    c->draw_rows = rows;
    c->n_flights--; // its buffers are those of the flight that is being launched
    launch_draws(c);
    count_flight(c);
}

void cuda_step_finish(backend *be, be_step_result *out) {
    cuda_backend *c = cuda_of(be);
    INFERD_CHECK(c->n_flights > (c->later != NULL));
    cuda_flight *f = &c->flights[c->flight_first];
    c->flight_first = (c->flight_first + 1) % CUDA_DEPTH;
    c->n_flights--;
    cu_event end = f->ends[f->end];
    if (cuda_failed(c, c->api->event_sync(end), "computing a step")) return;
    if (cuda_failed(c, c->api->event_elapsed_us(f->begin, end, &c->step_us), "timing a step"))
        return;
    out->device_us = c->step_us;
    uint32_t n_saturated = __atomic_load_n(c->n_saturated, __ATOMIC_RELAXED);
    out->n_saturated = n_saturated - c->n_saturated_told;
    c->n_saturated_told = n_saturated;
    if (f->n_draws > 0) out->draws = f->results;
    if (f->n_experts > 0) {
        out->n_expert_reads = f->experts[0];
        out->expert_rows = f->experts + 1;
        out->n_experts = f->n_experts;
    }
    if (f->wanted != NULL) {
        out->logits = f->logits;
        out->logits_stride = f->wanted->stride;
    }
}

/* In the middle of a step, for reading results: launch the operations recorded so far. */
void cuda_flush(cuda_backend *c) {
    if (c->program.n == 0 || c->be.failure.status != INFERD_OK) return;
    draw_plan plan = {0};
    if (c->batch != NULL) {
        if (!reserve(c, 0) || (c->n_draws > 0 && !plan_draws(c, &plan))) return;
        cuda_moves_await(c);
        upload(c, &c->flights[(c->flight_first + c->n_flights) % CUDA_DEPTH]);
        if (c->n_draws > 0) upload_draws(c, &plan);
    }
    program_launch(c, &c->program, c->batch != NULL ? c->batch->n_rows : 0,
                   c->batch != NULL ? c->batch->n_logits : 0, true);
    cuda_check_launches(c);
    c->program.n = 0;
}

void cuda_steps_close(cuda_backend *c) {
    cuda_forget_graphs(c);
    program_deinit(&c->program);
    for (uint32_t i = 0; i < CUDA_DEPTH; i++) {
        cuda_flight *f = &c->flights[i];
        void *pinned[] = {f->upload, f->draws, f->results, f->logits, f->experts};
        for (size_t j = 0; j < INFERD_COUNT(pinned); j++)
            if (pinned[j] != NULL) c->api->host_free(pinned[j]);
        if (f->begin != NULL) c->api->event_destroy(f->begin);
        for (uint32_t j = 0; j < CUDA_ENDS; j++)
            if (f->ends[j] != NULL) c->api->event_destroy(f->ends[j]);
    }
    if (c->n_saturated != NULL) c->api->host_free(c->n_saturated);
    free(c->draw_scratch);
    if (c->memory == NULL) return; // opening failed before anything was taken from it
    cuda_ropes_close(c);
    cuda_room_close(c);
}
