/* test_arch_experts.c - matrices that share a tensor: where each begins, to the byte and up to the
 * largest numbers that a file may have; and stacks of experts, fused tensors and their numbers that
 * do not fit the description, each refused with its name.
 *
 * Files are sparse: only their headers have bytes. */
#include "decoder.h"
#include "gguf_image.h"
#include "weights.h"

enum {
    DIM = 8,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 4,
    FFN = 12,
    EXPERTS = 5,
    USED = 2,
    VOCAB = 32
};

typedef struct numbers {
    const char *family;
    uint32_t ffn, n_experts, n_used;
} numbers;

static const numbers qwen = {"qwen3moe", FFN, EXPERTS, USED};
static const numbers mixtral = {"llama", FFN, EXPERTS, USED};
static const numbers gpt_oss = {"gpt-oss", FFN, EXPERTS, USED};
static const numbers phi = {"phi3", FFN, 0, 0};

static uint64_t data_bytes; // of the file that is being made

static void put_u32(tiny_gguf *g, const char *family, const char *name, uint32_t v) {
    char key[96];
    snprintf(key, sizeof key, "%s.%s", family, name);
    tiny_kv_u32(g, key, v);
}

static void begin(tiny_gguf *g, const numbers *n) {
    char key[96];
    tiny_gguf_init(g);
    data_bytes = 0;
    tiny_kv_str(g, "general.architecture", n->family);
    put_u32(g, n->family, "block_count", 1);
    put_u32(g, n->family, "context_length", 64);
    put_u32(g, n->family, "embedding_length", DIM);
    put_u32(g, n->family, "feed_forward_length", n->ffn);
    put_u32(g, n->family, "attention.head_count", HEADS);
    put_u32(g, n->family, "attention.head_count_kv", KV_HEADS);
    put_u32(g, n->family, "attention.key_length", HEAD_DIM);
    put_u32(g, n->family, "attention.value_length", HEAD_DIM);
    if (n == &gpt_oss) put_u32(g, n->family, "attention.sliding_window", 16);
    if (n->n_experts > 0) put_u32(g, n->family, "expert_count", n->n_experts);
    if (n->n_used > 0) put_u32(g, n->family, "expert_used_count", n->n_used);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", n->family);
    tiny_kv_f32(g, key, 1e-6f);
}

/* Up to four dimensions, the first 0 behind the last. */
typedef struct tensor {
    const char *name;
    uint32_t type;
    uint64_t dims[4];
} tensor;

static void add(tiny_gguf *g, const tensor *t) {
    dtype_info about = dtype_about(t->type);
    uint64_t n = 1;
    uint32_t n_dims = 0;
    while (n_dims < 4 && t->dims[n_dims] != 0) n *= t->dims[n_dims++];
    tiny_tensor *out = tiny_tensor_add(g, t->name, t->type, n_dims, t->dims, NULL, 0);
    out->offset = data_bytes;
    data_bytes += (n / about.block_elems * about.block_bytes + 31) / 32 * 32;
}

/* `other` takes the place of the tensor of its name; without dimensions: there is none. */
static void add_all(tiny_gguf *g, const tensor *all, size_t n, const tensor *other) {
    for (size_t i = 0; i < n; i++) {
        bool is_other = other != NULL && strcmp(other->name, all[i].name) == 0;
        if (!is_other || other->dims[0] != 0) add(g, is_other ? other : &all[i]);
    }
}

/* Ends the life of `g`. */
static gguf *open_sparse(tiny_gguf *g) {
    gguf *file = NULL;
    inferd_err err = {0};
    buf image = {0};
    size_t data_at = tiny_gguf_bytes(g, &image);
    put_image(image.p, data_at, data_at + data_bytes);
    if (gguf_open(image_path, &file, &err) != INFERD_OK) printf("could not open: %s\n", err.text);
    INFERD_CHECK(file != NULL);
    buf_deinit(&image);
    tiny_gguf_deinit(g);
    return file;
}

static const tensor ends[] = {
    {"token_embd.weight", DTYPE_F16, {DIM, VOCAB}},
    {"output_norm.weight", DTYPE_F32, {DIM}},
};
static const tensor attention[] = {
    {"blk.0.attn_norm.weight", DTYPE_F32, {DIM}},
    {"blk.0.attn_q.weight", DTYPE_F16, {DIM, HEADS *HEAD_DIM}},
    {"blk.0.attn_k.weight", DTYPE_F16, {DIM, KV_HEADS *HEAD_DIM}},
    {"blk.0.attn_v.weight", DTYPE_F16, {DIM, KV_HEADS *HEAD_DIM}},
    {"blk.0.attn_output.weight", DTYPE_F16, {HEADS * HEAD_DIM, DIM}},
    {"blk.0.ffn_norm.weight", DTYPE_F32, {DIM}},
};
static const tensor head_norms[] = {
    {"blk.0.attn_q_norm.weight", DTYPE_F32, {HEAD_DIM}},
    {"blk.0.attn_k_norm.weight", DTYPE_F32, {HEAD_DIM}},
};
static const tensor stacks[] = {
    {"blk.0.ffn_gate_inp.weight", DTYPE_F32, {DIM, EXPERTS}},
    {"blk.0.ffn_gate_exps.weight", DTYPE_F16, {DIM, FFN, EXPERTS}},
    {"blk.0.ffn_up_exps.weight", DTYPE_F16, {DIM, FFN, EXPERTS}},
    {"blk.0.ffn_down_exps.weight", DTYPE_F16, {FFN, DIM, EXPERTS}},
};

typedef struct planned {
    gguf *file;
    decoder_spec spec;
    decoder_weights weights;
    weight_plan plan;
} planned;

/* Ends the life of `g`; INFERD_OK: close_plan. */
static inferd_status make_plan(tiny_gguf *g, planned *p, inferd_err *err) {
    *p = (planned){.file = open_sparse(g)};
    *err = (inferd_err){0};
    inferd_status st = decoder_spec_read(p->file, 0, &p->spec, err);
    p->spec.n_vocab = VOCAB;
    p->spec.tied = true;
    if (st == INFERD_OK) st = weights_plan(p->file, NULL, &p->spec, &p->weights, &p->plan, err);
    return st;
}

static void close_plan(planned *p) {
    weights_deinit(&p->weights, &p->plan);
    decoder_spec_deinit(&p->spec);
    gguf_close(p->file);
}

static void is_refused_as(tiny_gguf *g, inferd_status expected, const char *words) {
    planned p;
    inferd_err err;
    expect_failed(make_plan(g, &p, &err), expected, &err, words);
    expect_words(&err, image_path);
    close_plan(&p);
}

/* The k-th matrix of a tensor has `rows` rows and begins at row `first`; every entry is inside. */
static void expect_entry(const planned *p, const char *name, uint32_t k, uint64_t first,
                         uint32_t rows) {
    for (size_t i = 0; i < p->plan.n; i++) {
        const weight_entry *e = &p->plan.entries[i];
        uint64_t row = weight_entry_row_bytes(e);
        EXPECT(e->tensor_at <= e->tensor->n_bytes);
        EXPECT(row * e->rows <= e->tensor->n_bytes - e->tensor_at);
        EXPECT_EQ(weight_entry_file_offset(e), e->tensor->file_offset + e->tensor_at);
        if (strcmp(e->tensor->name, name) != 0 || k-- > 0) continue;
        EXPECT_EQ(e->tensor_at, first * row);
        EXPECT_EQ(e->rows, rows);
        return;
    }
    printf("%s: no such entry\n", name);
    test_failures++;
}

/* ---- where each matrix begins ---- */

static void experts_lie_one_behind_the_other(void) {
    tiny_gguf g;
    planned p;
    inferd_err err;
    begin(&g, &qwen);
    add_all(&g, ends, INFERD_COUNT(ends), NULL);
    add_all(&g, attention, INFERD_COUNT(attention), NULL);
    add_all(&g, head_norms, INFERD_COUNT(head_norms), NULL);
    add_all(&g, stacks, INFERD_COUNT(stacks), NULL);
    EXPECT_EQ(make_plan(&g, &p, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        expect_entry(&p, "blk.0.ffn_gate_exps.weight", e, (uint64_t)e * FFN, FFN);
        expect_entry(&p, "blk.0.ffn_up_exps.weight", e, (uint64_t)e * FFN, FFN);
        expect_entry(&p, "blk.0.ffn_down_exps.weight", e, (uint64_t)e * DIM, DIM);
    }
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < gguf_n_tensors(p.file); i++)
        n_bytes += gguf_tensor_at(p.file, i)->n_bytes;
    EXPECT_EQ(p.plan.file_bytes, n_bytes); // each byte once
    close_plan(&p);
}

static void gate_and_up_of_an_expert_are_neighbours(void) {
    static const tensor both = {
        "blk.0.ffn_gate_up_exps.weight", DTYPE_F16, {DIM, 2 * FFN, EXPERTS}};
    static const tensor less = {"blk.0.ffn_gate_up_exps.weight", DTYPE_F16, {DIM, FFN, EXPERTS}};
    for (int wrong = 0; wrong < 2; wrong++) {
        tiny_gguf g;
        planned p;
        inferd_err err;
        begin(&g, &mixtral);
        add_all(&g, ends, INFERD_COUNT(ends), NULL);
        add_all(&g, attention, INFERD_COUNT(attention), NULL);
        add(&g, &stacks[0]);
        add(&g, wrong ? &less : &both);
        add(&g, &stacks[3]);
        if (wrong) {
            is_refused_as(
                &g, INFERD_EFORMAT,
                "tensor blk.0.ffn_gate_up_exps.weight is [5, 12, 8], expected [5, 24, 8]");
            continue;
        }
        EXPECT_EQ(make_plan(&g, &p, &err), INFERD_OK);
        if (err.status != INFERD_OK) printf("  %s\n", err.text);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            expect_entry(&p, both.name, e, (uint64_t)e * 2 * FFN, FFN);                 // gate
            expect_entry(&p, both.name, EXPERTS + e, (uint64_t)e * 2 * FFN + FFN, FFN); // up
        }
        close_plan(&p);
    }
}

static void q_k_and_v_are_neighbours(void) {
    enum { Q = HEADS * HEAD_DIM, KV = KV_HEADS * HEAD_DIM };
    static const tensor fused[] = {
        {"blk.0.attn_norm.weight", DTYPE_F32, {DIM}},
        {"blk.0.attn_qkv.weight", DTYPE_F16, {DIM, Q + 2 * KV}},
        {"blk.0.attn_output.weight", DTYPE_F16, {Q, DIM}},
        {"blk.0.ffn_norm.weight", DTYPE_F32, {DIM}},
        {"blk.0.ffn_up.weight", DTYPE_F16, {DIM, 2 * FFN}},
        {"blk.0.ffn_down.weight", DTYPE_F16, {FFN, DIM}},
    };
    static const tensor wrong[] = {
        {"blk.0.attn_qkv.weight", DTYPE_F16, {DIM, Q + 2 * KV - 1}},
        {"blk.0.attn_qkv.weight", DTYPE_F16, {DIM, 3 * Q}},
        {"blk.0.attn_qkv.weight", DTYPE_F16, {DIM, Q + KV, 2}},
        {"blk.0.attn_qkv.weight", DTYPE_F16, {0}},
        {"blk.0.ffn_up.weight", DTYPE_F16, {DIM, FFN}},
        {"blk.0.ffn_up.weight", DTYPE_F16, {DIM, 2 * FFN + 1}},
        {"blk.0.ffn_up.weight", DTYPE_F16, {DIM, FFN, 2}},
    };
    tiny_gguf g;
    planned p;
    inferd_err err;
    begin(&g, &phi);
    add_all(&g, ends, INFERD_COUNT(ends), NULL);
    add_all(&g, fused, INFERD_COUNT(fused), NULL);
    EXPECT_EQ(make_plan(&g, &p, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    expect_entry(&p, "blk.0.attn_qkv.weight", 0, 0, Q);
    expect_entry(&p, "blk.0.attn_qkv.weight", 1, Q, KV);
    expect_entry(&p, "blk.0.attn_qkv.weight", 2, Q + KV, KV);
    expect_entry(&p, "blk.0.ffn_up.weight", 0, 0, FFN);
    expect_entry(&p, "blk.0.ffn_up.weight", 1, FFN, FFN);
    close_plan(&p);
    for (size_t i = 0; i < INFERD_COUNT(wrong); i++) {
        begin(&g, &phi);
        add_all(&g, ends, INFERD_COUNT(ends), NULL);
        add_all(&g, fused, INFERD_COUNT(fused), &wrong[i]);
        is_refused_as(&g, INFERD_EFORMAT, wrong[i].dims[0] == 0 ? "blk.0.attn_q" : wrong[i].name);
    }
}

/* Products of these numbers do not fit 32 bits, and the file has 103 GB. */
static void the_largest_numbers_do_not_wrap(void) {
    static const numbers most = {"llama", DECODER_FFN_MAX, BE_EXPERTS_MAX, BE_EXPERTS_USED_MAX};
    static const tensor large[] = {
        {"blk.0.ffn_gate_inp.weight", DTYPE_F32, {DIM, BE_EXPERTS_MAX}},
        {"blk.0.ffn_gate_up_exps.weight",
         DTYPE_F32,
         {DIM, 2 * (uint64_t)DECODER_FFN_MAX, BE_EXPERTS_MAX}},
        {"blk.0.ffn_down_exps.weight", DTYPE_F32, {DECODER_FFN_MAX, DIM, BE_EXPERTS_MAX}},
    };
    tiny_gguf g;
    planned p;
    inferd_err err;
    begin(&g, &most);
    add_all(&g, ends, INFERD_COUNT(ends), NULL);
    add_all(&g, attention, INFERD_COUNT(attention), NULL);
    add_all(&g, large, INFERD_COUNT(large), NULL);
    EXPECT(data_bytes > (uint64_t)100000000000);
    EXPECT_EQ(make_plan(&g, &p, &err), INFERD_OK);
    if (err.status != INFERD_OK) printf("  %s\n", err.text);
    uint64_t last = BE_EXPERTS_MAX - 1, ffn = DECODER_FFN_MAX;
    expect_entry(&p, large[1].name, BE_EXPERTS_MAX - 1, last * 2 * ffn, DECODER_FFN_MAX);
    expect_entry(&p, large[1].name, 2 * BE_EXPERTS_MAX - 1, last * 2 * ffn + ffn, DECODER_FFN_MAX);
    expect_entry(&p, large[2].name, BE_EXPERTS_MAX - 1, last * DIM, DIM);
    close_plan(&p);
}

/* ---- what does not fit ---- */

static void another_shape_of_a_stack_is_refused(void) {
    for (size_t i = 0; i < INFERD_COUNT(stacks); i++) {
        const tensor *t = &stacks[i];
        uint32_t n = 0, n_dims = i == 0 ? 2 : 3;
        tensor others[10];
        for (uint32_t k = 0; k < n_dims; k++)
            for (int by = -1; by <= 1; by += 2) {
                others[n] = *t;
                others[n++].dims[k] += (uint64_t)by;
            }
        others[n] = *t; // one dimension less, one more, none
        others[n++].dims[n_dims - 1] = 0;
        others[n] = *t;
        others[n++].dims[n_dims] = 2;
        others[n] = *t;
        others[n++].dims[0] = 0;
        for (uint32_t k = 0; k < n; k++) {
            tiny_gguf g;
            char words[96];
            begin(&g, &qwen);
            add_all(&g, ends, INFERD_COUNT(ends), NULL);
            add_all(&g, attention, INFERD_COUNT(attention), NULL);
            add_all(&g, head_norms, INFERD_COUNT(head_norms), NULL);
            add_all(&g, stacks, INFERD_COUNT(stacks), &others[k]);
            snprintf(words, sizeof words, "tensor %s is %s", t->name,
                     others[k].dims[0] == 0 ? "missing" : "[");
            is_refused_as(&g, INFERD_EFORMAT, words);
        }
    }
}

static void tensors_of_single_experts_are_checked(void) {
    static const struct {
        const char *name;
        tensor other;
        inferd_status status;
        const char *words;
    } all[] = {
        {"blk.0.ffn_up.4.weight",
         {NULL, 0, {0}},
         INFERD_EFORMAT,
         "blk.0.ffn_up.4.weight is missing"},
        {"blk.0.ffn_down.0.weight",
         {"blk.0.ffn_down.0.weight", DTYPE_F16, {DIM, FFN}},
         INFERD_EFORMAT,
         "blk.0.ffn_down.0.weight is [12, 8], expected [8, 12]"},
        {"blk.0.ffn_gate.3.weight",
         {"blk.0.ffn_gate.3.weight", DTYPE_F32, {DIM, FFN}},
         INFERD_EUNSUPPORTED,
         "blk.0.ffn_gate.3.weight has type F32, and that of expert 2 F16"},
        {"blk.0.ffn_gate.5.weight", // one more than there are
         {"blk.0.ffn_gate.5.weight", DTYPE_F16, {DIM, FFN}},
         INFERD_EUNSUPPORTED,
         "blk.0.ffn_gate.5.weight is not known"},
        {NULL, {NULL, 0, {0}}, INFERD_OK, NULL},
    };
    static const char *const parts[] = {"gate", "up", "down"};
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        begin(&g, &mixtral);
        add_all(&g, ends, INFERD_COUNT(ends), NULL);
        add_all(&g, attention, INFERD_COUNT(attention), NULL);
        add(&g, &stacks[0]);
        for (uint32_t e = 0; e <= EXPERTS; e++)
            for (size_t k = 0; k < INFERD_COUNT(parts); k++) {
                char name[64];
                snprintf(name, sizeof name, "blk.0.ffn_%s.%u.weight", parts[k], e);
                tensor t = {name, DTYPE_F16, {k == 2 ? FFN : DIM, k == 2 ? DIM : FFN}};
                bool is_other = all[i].name != NULL && strcmp(all[i].name, name) == 0;
                if (is_other && all[i].other.name != NULL) add(&g, &all[i].other);
                if (!is_other && e < EXPERTS) add(&g, &t);
            }
        if (all[i].words != NULL) {
            is_refused_as(&g, all[i].status, all[i].words);
            continue;
        }
        planned p;
        inferd_err err;
        EXPECT_EQ(make_plan(&g, &p, &err), INFERD_OK);
        expect_entry(&p, "blk.0.ffn_down.4.weight", 0, 0, DIM);
        close_plan(&p);
    }
}

static void biases_of_experts_are_checked(void) {
    static const tensor rest[] = {
        {"blk.0.attn_norm.weight", DTYPE_F32, {DIM}},
        {"blk.0.attn_q.weight", DTYPE_F16, {DIM, HEADS * HEAD_DIM}},
        {"blk.0.attn_k.weight", DTYPE_F16, {DIM, KV_HEADS * HEAD_DIM}},
        {"blk.0.attn_v.weight", DTYPE_F16, {DIM, KV_HEADS * HEAD_DIM}},
        {"blk.0.attn_output.weight", DTYPE_F16, {HEADS * HEAD_DIM, DIM}},
        {"blk.0.post_attention_norm.weight", DTYPE_F32, {DIM}},
        {"blk.0.attn_q.bias", DTYPE_F32, {HEADS * HEAD_DIM}},
        {"blk.0.attn_k.bias", DTYPE_F32, {KV_HEADS * HEAD_DIM}},
        {"blk.0.attn_v.bias", DTYPE_F32, {KV_HEADS * HEAD_DIM}},
        {"blk.0.attn_output.bias", DTYPE_F32, {DIM}},
        {"blk.0.attn_sinks.weight", DTYPE_F32, {HEADS}},
        {"blk.0.ffn_gate_inp.bias", DTYPE_F32, {EXPERTS}},
        {"blk.0.ffn_gate_exps.bias", DTYPE_F32, {FFN, EXPERTS}},
        {"blk.0.ffn_up_exps.bias", DTYPE_F32, {FFN, EXPERTS}},
        {"blk.0.ffn_down_exps.bias", DTYPE_F32, {DIM, EXPERTS}},
    };
    static const tensor wrong[] = {
        {"blk.0.ffn_gate_exps.bias", DTYPE_F32, {EXPERTS, FFN}},
        {"blk.0.ffn_gate_exps.bias", DTYPE_F32, {FFN, EXPERTS - 1}},
        {"blk.0.ffn_up_exps.bias", DTYPE_F32, {FFN * EXPERTS}},
        {"blk.0.ffn_down_exps.bias", DTYPE_F32, {FFN, EXPERTS}},
        {"blk.0.ffn_down_exps.bias", DTYPE_F32, {0}},
        {"blk.0.ffn_gate_inp.bias", DTYPE_F32, {EXPERTS + 1}},
        {"blk.0.attn_sinks.weight", DTYPE_F32, {HEADS + 1}},
        {"blk.0.attn_sinks.weight", DTYPE_F32, {0}},
    };
    for (size_t i = 0; i <= INFERD_COUNT(wrong); i++) {
        tiny_gguf g;
        const tensor *other = i < INFERD_COUNT(wrong) ? &wrong[i] : NULL;
        begin(&g, &gpt_oss);
        add_all(&g, ends, INFERD_COUNT(ends), NULL);
        add_all(&g, rest, INFERD_COUNT(rest), other);
        add_all(&g, stacks, INFERD_COUNT(stacks), NULL);
        if (other != NULL) {
            is_refused_as(&g, INFERD_EFORMAT, other->name);
            continue;
        }
        planned p;
        inferd_err err;
        EXPECT_EQ(make_plan(&g, &p, &err), INFERD_OK);
        if (err.status != INFERD_OK) printf("  %s\n", err.text);
        close_plan(&p);
    }
}

static void numbers_of_experts_are_checked(void) {
    static const struct {
        uint32_t n_experts, n_used;
        int64_t ffn; // -1: no such key
        const char *words;
    } all[] = {
        {0, USED, -1, "qwen3moe.expert_count"}, // the family has experts
        {BE_EXPERTS_MAX + 1, USED, -1, "key qwen3moe.expert_count is 1025, expected 1 to 1024"},
        {EXPERTS, 0, -1, "key qwen3moe.expert_used_count is missing"},
        {EXPERTS, EXPERTS + 1, -1, "key qwen3moe.expert_used_count is 6, expected 1 to 5"},
        {BE_EXPERTS_MAX, BE_EXPERTS_USED_MAX + 1, -1,
         "key qwen3moe.expert_used_count is 33, expected 1 to 32"},
        {EXPERTS, USED, 0, "key qwen3moe.expert_feed_forward_length is 0"},
        {EXPERTS, USED, DECODER_FFN_MAX + 1, "key qwen3moe.expert_feed_forward_length is 1048577"},
    };
    for (size_t i = 0; i < INFERD_COUNT(all); i++) {
        tiny_gguf g;
        const numbers n = {"qwen3moe", FFN, all[i].n_experts, all[i].n_used};
        begin(&g, &n);
        if (all[i].ffn >= 0)
            put_u32(&g, "qwen3moe", "expert_feed_forward_length", (uint32_t)all[i].ffn);
        add_all(&g, ends, INFERD_COUNT(ends), NULL);
        is_refused_as(&g, INFERD_EFORMAT, all[i].words);
    }
}

static const test_case cases[] = {
    TEST(experts_lie_one_behind_the_other),
    TEST(gate_and_up_of_an_expert_are_neighbours),
    TEST(q_k_and_v_are_neighbours),
    TEST(the_largest_numbers_do_not_wrap),
    TEST(another_shape_of_a_stack_is_refused),
    TEST(tensors_of_single_experts_are_checked),
    TEST(biases_of_experts_are_checked),
    TEST(numbers_of_experts_are_checked),
};
TEST_MAIN(cases)
