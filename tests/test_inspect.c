/* test_inspect.c - what `inferd inspect` tells of a file: of small models of all families, of split
 * ones, and of files with several things wrong at once, of which each is told. */
#include "family_rig.h"
#include "family_cases.h"
#include "inspect_text.h"
#include "models/inspect.h"
#include "split_gguf.h"

static char path[96];

static const char *make_path(void) {
    snprintf(path, sizeof path, "/tmp/test_inspect.%d.gguf", (int)getpid());
    return path;
}

static json_t *inspect(const char *of, const backend *be, uint32_t context) {
    inspect_options o = {.model = {.path = of, .context_max = context}, .be = be, .tensors = true};
    json_t *told = NULL;
    inferd_err err = {0};
    if (model_inspect(&o, &told, &err) != INFERD_OK) printf("%s\n", err.text);
    INFERD_CHECK(told != NULL);
    return told;
}

static const json_t *at(const json_t *o, const char *a, const char *b) {
    const json_t *v = json_object_get(o, a);
    return b == NULL ? v : json_object_get(v, b);
}
static json_int_t number(const json_t *o, const char *a, const char *b) {
    return json_integer_value(at(o, a, b));
}
static const char *text(const json_t *o, const char *a, const char *b) {
    const char *s = json_string_value(at(o, a, b));
    return s == NULL ? "(none)" : s;
}

/* One of the reasons has these words. */
static void expect_reason(const json_t *told, const char *words) {
    const json_t *list = json_object_get(told, "reasons");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strstr(json_string_value(json_array_get(list, i)), words) != NULL) return;
    printf("no reason is \"... %s ...\"; there are\n", words);
    for (size_t i = 0; i < json_array_size(list); i++)
        printf("  %s\n", json_string_value(json_array_get(list, i)));
    test_failures++;
}

/* The first reason is that of model_open; without one the model opens. */
static void expect_as_opened(const char *of, const json_t *told) {
    model *m = NULL;
    inferd_err err = {0};
    bool opens = model_open(&(model_options){.path = of}, &m, &err) == INFERD_OK;
    EXPECT_EQ(json_is_true(json_object_get(told, "servable")), opens);
    if (!opens && strstr(err.text, "cannot be computed with") == NULL)
        expect_reason(told, err.text);
    model_close(m);
}

/* ---- families ---- */

static backend *be;

static json_t *inspect_family(const char *name, uint32_t context) {
    static golden g;
    family_file file;
    golden_read(name, &g);
    golden_file(&g, &file);
    family_write(make_path(), file.p, file.n);
    family_file_deinit(&file);
    golden_deinit(&g);
    return inspect(path, be, context);
}

static void every_family_is_told_as_it_is_opened(void) {
    for (size_t i = 0; i < INFERD_COUNT(family_cases); i++) {
        json_t *told = inspect_family(family_cases[i].name, 0);
        buf out = {0};
        model *m = NULL;
        inferd_err err = {0};
        uint32_t n_pages;
        uint64_t n_bytes = 0;
        expect_as_opened(path, told);
        EXPECT_EQ(json_array_size(json_object_get(told, "reasons")), 0);
        if (model_open(&(model_options){.path = path}, &m, &err) == INFERD_OK) {
            const model_info *about = model_about(m);
            EXPECT_STR(text(told, "architecture", NULL), about->architecture);
            EXPECT_STR(text(told, "main_type", NULL), about->weights);
            EXPECT_EQ(number(told, "layers", NULL), about->n_layers);
            EXPECT_EQ(number(told, "experts", NULL), about->n_experts);
            EXPECT_EQ(number(told, "parameters", NULL), about->n_params);
            EXPECT_EQ(number(told, "file_bytes", NULL), about->file_bytes);
            EXPECT_EQ(number(told, "tokenizer", "rows"), about->n_vocab);
            EXPECT_EQ(model_weigh(m, be, &n_pages, &n_bytes, &err), INFERD_OK);
            EXPECT_EQ(number(told, "memory", "weights_bytes"), n_bytes);
            model_close(m);
        }
        inspect_text(told, &out);
        EXPECT(strstr(buf_cstr(&out), "can be served  yes\n") != NULL);
        buf_deinit(&out);
        json_decref(told);
    }
    unlink(path);
}

static void mixtures_say_what_a_token_takes(void) {
    json_t *told = inspect_family("qwen3moe", 0);
    json_int_t all = number(told, "parameters", NULL);
    json_int_t active = number(told, "parameters_active", NULL), experts = 0;
    const json_t *list = json_object_get(told, "tensors");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i);
        if (strstr(text(t, "name", NULL), "_exps.") != NULL)
            experts += number(t, "bytes", NULL) / 4;
    }
    json_int_t n = number(told, "experts", NULL), used = number(told, "experts_used", NULL);
    EXPECT(n > used && used > 0);
    EXPECT_EQ(active, all - experts + experts / n * used);
    json_decref(told);
    told = inspect_family("llama", 0);
    EXPECT_EQ(number(told, "parameters_active", NULL), number(told, "parameters", NULL));
    json_decref(told);
    unlink(path);
}

static void windows_and_rotation_are_told(void) {
    json_t *told = inspect_family("gpt-oss", 0);
    EXPECT_STR(text(told, "rotary", "scaling"), "yarn");
    EXPECT(json_real_value(at(told, "rotary", "factor")) > 1);
    EXPECT(number(told, "rotary", "original_context") < number(told, "context_trained", NULL));
    EXPECT_EQ(number(told, "windows", "layers") * 2, number(told, "layers", NULL));
    EXPECT(number(told, "windows", "tokens") > 0);
    EXPECT_STR(text(told, "windows", "kv_kept"), "whole");
    json_decref(told);
    told = inspect_family("smollm3", 0);
    EXPECT(number(told, "rotary", "layers_without") > 0);
    EXPECT(json_is_null(at(told, "windows", NULL)));
    json_decref(told);
    told = inspect_family("llama3-rope", 0);
    EXPECT_STR(text(told, "rotary", "divisors"), "rope_freqs.weight");
    json_decref(told);
    unlink(path);
}

static void the_context_chooses_the_factors(void) {
    json_t *told = inspect_family("phi4-mini", 0);
    json_int_t original = number(told, "rotary", "original_context");
    EXPECT_STR(text(told, "rotary", "scaling"), "longrope");
    EXPECT_STR(text(told, "rotary", "divisors"), "rope_factors_long.weight");
    json_decref(told);
    told = inspect(path, be, (uint32_t)original);
    EXPECT_STR(text(told, "rotary", "divisors"), "rope_factors_short.weight");
    EXPECT_EQ(number(told, "context", NULL), original);
    json_decref(told);
    unlink(path);
}

/* Every position of all layers, windows or not, in blocks of 16 tokens. */
static void keys_and_values_are_counted_as_allocated(void) {
    json_t *told = inspect_family("gemma3", 0);
    const json_t *kv = at(told, "memory", "kv");
    bool found = false;
    EXPECT(number(told, "windows", "layers") > 0);
    for (size_t i = 0; i < json_array_size(kv); i++) {
        const json_t *one = json_array_get(kv, i);
        json_int_t token = number(one, "bytes_per_token", NULL);
        EXPECT(json_is_null(at(one, "why_not", NULL)));
        EXPECT(number(one, "bytes_per_1000_tokens", NULL) >= 1000 * token);
        EXPECT(number(one, "bytes_of_context", NULL) >= number(told, "context", NULL) * token);
        if (strcmp(text(one, "type", NULL), "f32") != 0) continue;
        found = true;
        EXPECT_EQ(token, number(told, "layers", NULL) * 2 * number(told, "kv_heads", NULL) *
                             number(told, "head_dim", NULL) * 4);
    }
    EXPECT(found);
    json_decref(told);
    unlink(path);
}

/* ---- files that cannot be served ---- */

static tiny_gguf *whole; // static would be megabytes

static void begin(const tiny_model_options *options) {
    whole = malloc(sizeof *whole);
    INFERD_CHECK(whole != NULL);
    tiny_gguf_init(whole);
    tiny_model_fill(whole, 1, options);
}

static json_t *end(void) {
    tiny_gguf_write(whole, make_path());
    tiny_gguf_deinit(whole);
    free(whole);
    json_t *told = inspect(path, be, 0);
    expect_as_opened(path, told);
    unlink(path);
    return told;
}

static tiny_tensor *find_tensor(const char *name) {
    for (size_t i = 0; i < whole->n_tensors; i++)
        if (strcmp(whole->tensors[i].name, name) == 0) return &whole->tensors[i];
    INFERD_CHECK(false);
    return NULL;
}

static void rename_tensor(const char *from, const char *to) {
    tiny_tensor *t = find_tensor(from);
    snprintf(t->name, sizeof t->name, "%s", to);
    t->name_bytes = strlen(to);
}

static void add_wrong_keys(tiny_gguf *g) {
    tiny_kv_f32(g, "llama.attention.twist", 0.5f);
    tiny_kv_f32(g, "llama.logit_scale", 3);
    tiny_kv_bool(g, "llama.attention.causal", false);
    tiny_kv_f32(g, "general.sampling.temp", 7);
}

static void every_reason_is_told(void) {
    begin(&(tiny_model_options){.add_keys = add_wrong_keys});
    rename_tensor("blk.0.attn_q.weight", "blk.0.attn_w.weight");
    rename_tensor("blk.2.ffn_norm.weight", "blk.2.fnn_norm.weight");
    find_tensor("blk.1.attn_k.weight")->dims[1] = 16;
    find_tensor("blk.1.attn_k.weight")->dims[2] = 2;
    find_tensor("blk.1.attn_k.weight")->n_dims = 3;
    json_t *told = end();
    EXPECT(json_is_false(at(told, "servable", NULL)));
    expect_reason(told, "key llama.attention.twist (0.5) is not known");
    expect_reason(told, "key llama.logit_scale is 3, which is not supported");
    expect_reason(told, "key llama.attention.causal is false, which is not supported");
    expect_reason(told, "general.sampling.temp is 7; expected");
    expect_reason(told, "tensor blk.0.attn_q.weight is missing");
    expect_reason(told, "tensor blk.0.attn_w.weight is not known for architecture llama");
    expect_reason(told, "tensor blk.2.ffn_norm.weight is missing");
    expect_reason(told, "tensor blk.2.fnn_norm.weight is not known");
    expect_reason(told, "tensor blk.1.attn_k.weight is [2, 16, 64], expected [32, 64]");
    EXPECT_EQ(json_array_size(at(told, "reasons", NULL)), 9);
    EXPECT_EQ(number(told, "layers", NULL), 3); // and the rest is told, too
    EXPECT(json_is_null(at(told, "parameters_active", NULL)));
    EXPECT(json_is_null(at(told, "memory", "weights_bytes")));
    EXPECT(json_array_size(at(told, "memory", "kv")) > 0);
    json_decref(told);
}

static void tensors_of_one_type_are_one_reason(void) {
    enum { IQ2_S = 22, BLOCK = 82 }; // of 256
    begin(&(tiny_model_options){.dim = 256, .ffn_dim = 256});
    static const char *const names[] = {"blk.0.ffn_up.weight", "blk.1.ffn_down.weight"};
    for (size_t i = 0; i < INFERD_COUNT(names); i++) {
        tiny_tensor *t = find_tensor(names[i]);
        t->type = IQ2_S;
        buf_deinit(&t->data);
        for (int k = 0; k < 256 * BLOCK; k++) buf_add_char(&t->data, 0);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < whole->n_tensors; i++) {
        whole->tensors[i].offset = offset;
        offset += (whole->tensors[i].data.n + 31) / 32 * 32;
    }
    whole->data_bytes = offset;
    json_t *told = end();
    EXPECT_EQ(json_array_size(at(told, "reasons", NULL)), 1);
    expect_reason(told, "2 tensors of type IQ2_S, which cannot be computed with: "
                        "blk.0.ffn_up.weight, blk.1.ffn_down.weight; types that can: ");
    json_decref(told);
}

static void an_unknown_architecture_shows_what_can_be_read(void) {
    tiny_gguf g;
    tiny_gguf_init(&g);
    tiny_kv_str(&g, "general.architecture", "zebra");
    tiny_kv_str(&g, "general.name", "Ze\033[31mbra");
    tiny_kv_u32(&g, "zebra.block_count", 12);
    tiny_kv_u32(&g, "zebra.context_length", 4096);
    tiny_kv_str(&g, "tokenizer.ggml.model", "gpt2");
    tiny_kv_str(&g, "tokenizer.ggml.pre", "stripes");
    tiny_gguf_write(&g, make_path());
    tiny_gguf_deinit(&g);
    json_t *told = inspect(path, be, 0);
    buf out = {0};
    expect_as_opened(path, told);
    EXPECT_EQ(number(told, "layers", NULL), 12);
    EXPECT_EQ(number(told, "context_trained", NULL), 4096);
    EXPECT(json_is_null(at(told, "dim", NULL)) && json_is_null(at(told, "memory", NULL)));
    EXPECT_STR(text(told, "tokenizer", "pre"), "stripes");
    expect_reason(told, "general.architecture is \"zebra\"; known architectures: ");
    EXPECT_EQ(json_array_size(at(told, "reasons", NULL)), 2); // and that of the tokenizer
    inspect_text(told, &out);
    EXPECT(strchr(buf_cstr(&out), '\033') == NULL);
    EXPECT(strstr(buf_cstr(&out), "Ze?[31mbra") != NULL);
    EXPECT(strstr(buf_cstr(&out), "\nshape          12 layers\n") != NULL); // no zeros
    buf_deinit(&out);
    json_decref(told);
    unlink(path);
}

/* The value of the first wrong number, and all keys that no table has. */
static void add_wrong_numbers(tiny_gguf *g) {
    tiny_kv_f32(g, "llama.rope.scaling.factor", -1);
    tiny_kv_u32(g, "llama.new_one", 1);
    tiny_kv_u32(g, "llama.new_other", 2);
    tiny_kv_f32(g, "llama.logit_scale", 3); // its rule may depend on what was not read
}

static void keys_are_told_without_the_values(void) {
    begin(&(tiny_model_options){.add_keys = add_wrong_numbers});
    json_t *told = end();
    expect_reason(told, "llama.rope.scaling.factor is -1");
    expect_reason(told, "key llama.new_one (1) is not known");
    expect_reason(told, "key llama.new_other (2) is not known");
    EXPECT_EQ(json_array_size(at(told, "reasons", NULL)), 3);
    EXPECT_EQ(number(told, "layers", NULL), 3);
    json_decref(told);
}

enum { BARE_DIM = 32 };

/* The numbers of a small model, and an embedding that is too wide. */
static void begin_bare(tiny_gguf *g, const char *family, uint32_t n_experts) {
    const struct {
        const char *name;
        uint32_t n;
    } keys[] = {{"block_count", 2},
                {"context_length", 64},
                {"embedding_length", BARE_DIM},
                {"feed_forward_length", BARE_DIM},
                {"attention.head_count", 1},
                {"expert_count", n_experts},
                {"expert_used_count", n_experts}};
    char key[96];
    tiny_gguf_init(g);
    tiny_kv_str(g, "general.architecture", family);
    for (size_t i = 0; i < INFERD_COUNT(keys); i++) {
        snprintf(key, sizeof key, "%s.%s", family, keys[i].name);
        tiny_kv_u32(g, key, keys[i].n);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", family);
    tiny_kv_f32(g, key, 1e-5f);
    tiny_tensor_add(g, "token_embd.weight", DTYPE_F16, 2, (uint64_t[]){2 * BARE_DIM, BARE_DIM},
                    NULL, sizeof(uint16_t) * 2 * BARE_DIM * BARE_DIM);
}

static json_t *end_bare(tiny_gguf *g) {
    tiny_gguf_write(g, make_path());
    tiny_gguf_deinit(g);
    json_t *told = inspect(path, be, 0);
    unlink(path);
    return told;
}

/* A tensor for each expert, and before them not one matrix that fits: inspect looked at the entry
 * before the first. */
static void the_first_matrix_that_fits_may_be_an_experts(void) {
    tiny_gguf g;
    begin_bare(&g, "llama", 2);
    tiny_tensor_add(&g, "blk.0.ffn_gate.0.weight", DTYPE_F16, 2, (uint64_t[]){BARE_DIM, BARE_DIM},
                    NULL, sizeof(uint16_t) * BARE_DIM * BARE_DIM);
    json_t *told = end_bare(&g);
    expect_reason(told, "tensor token_embd.weight is [32, 64], expected [32, 32]");
    expect_reason(told, "tensor blk.0.ffn_gate.1.weight is missing");
    json_decref(told);
}

/* A problem with the last tensor of the ends or of a layer (down, behind fused gate and up) ended
 * the plan: tensors of further layers were told as not known. */
static void layers_behind_a_problem_are_planned(void) {
    tiny_gguf g;
    begin_bare(&g, "phi3", 0);
    tiny_tensor_add(&g, "blk.1.attn_norm.weight", DTYPE_F32, 1, (uint64_t[]){BARE_DIM}, NULL,
                    sizeof(float) * BARE_DIM);
    json_t *told = end_bare(&g);
    expect_reason(told, "tensor output_norm.weight is missing");
    expect_reason(told, "tensor blk.0.ffn_down.weight is missing");
    expect_reason(told, "tensor blk.1.ffn_down.weight is missing");
    const json_t *list = at(told, "reasons", NULL);
    for (size_t i = 0; i < json_array_size(list); i++)
        EXPECT(strstr(json_string_value(json_array_get(list, i)), "is not known") == NULL);
    json_decref(told);
}

static void what_is_no_gguf_is_a_failure(void) {
    json_t *told = NULL;
    inferd_err err = {0};
    inspect_options o = {.model = {.path = make_path()}};
    tiny_file_write(path, "no model at all, by no means", 28);
    EXPECT_EQ(model_inspect(&o, &told, &err), INFERD_EFORMAT);
    EXPECT(told == NULL && strstr(err.text, "is not a GGUF file") != NULL);
    unlink(path);
    EXPECT_EQ(model_inspect(&o, &told, &err), INFERD_ENOTFOUND);
    o.model.path = "dummy:tiny";
    EXPECT_EQ(model_inspect(&o, &told, &err), INFERD_EINVAL);
    o.model.allow_dummy = true;
    EXPECT_EQ(model_inspect(&o, &told, &err), INFERD_OK);
    EXPECT(json_is_true(at(told, "made_up", NULL)) && json_is_true(at(told, "servable", NULL)));
    json_decref(told);
}

/* ---- parts that are not served ---- */

static const json_t *part_of(const json_t *told, const char *name) {
    const json_t *list = at(told, "not_served", NULL);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(text(json_array_get(list, i), "part", NULL), name) == 0)
            return json_array_get(list, i);
    return NULL;
}

static void add_mtp(tiny_gguf *g) {
    tiny_kv_u32(g, "llama.nextn_predict_layers", 1);
}

/* block_count includes the last layer, which predicts a further token. */
static void mtp_layers_are_no_layers(void) {
    begin(&(tiny_model_options){.add_keys = add_mtp});
    json_t *told = end();
    EXPECT(json_is_true(at(told, "servable", NULL)));
    EXPECT_EQ(number(told, "layers", NULL), 2);
    EXPECT_EQ(number(told, "mtp_layers", NULL), 1);
    const json_t *part = part_of(told, "mtp");
    EXPECT_EQ(number(part, "tensors", NULL), 9);
    EXPECT(number(told, "parameters_active", NULL) < number(told, "parameters", NULL));
    json_decref(told);
}

static void encoders_are_named(void) {
    float x[32] = {0};
    uint64_t dims[] = {32};
    begin(NULL);
    tiny_tensor_add(whole, "v.blk.0.ln1.weight", DTYPE_F32, 1, dims, x, sizeof x);
    tiny_tensor_add(whole, "mm.0.bias", DTYPE_F32, 1, dims, x, sizeof x);
    tiny_tensor_add(whole, "mm.a.0.bias", DTYPE_F32, 1, dims, x, sizeof x);
    json_t *told = end(); // llama has no encoder that is known
    EXPECT_EQ(number(part_of(told, "image"), "tensors", NULL), 2);
    EXPECT_EQ(number(part_of(told, "image"), "bytes", NULL), 256);
    EXPECT_EQ(number(part_of(told, "audio"), "tensors", NULL), 1);
    expect_reason(told, "tensor v.blk.0.ln1.weight is not known for architecture llama");
    json_decref(told);
}

/* ---- others ---- */

static void a_split_model_has_parts(void) {
    enum { N = 3 };
    char prefix[64];
    snprintf(prefix, sizeof prefix, "/tmp/test_inspect_split.%d", (int)getpid());
    tiny_split_model_write(prefix, N, 1, NULL);
    json_t *told = inspect(tiny_part_path(prefix, 1, N), be, 0);
    const json_t *files = at(told, "files", NULL), *list = at(told, "tensors", NULL);
    json_int_t sum = 0, last = -1;
    EXPECT_EQ(json_array_size(files), N);
    for (size_t i = 0; i < json_array_size(files); i++) {
        EXPECT_STR(text(json_array_get(files, i), "path", NULL),
                   tiny_part_path(prefix, (uint32_t)i, N));
        sum += number(json_array_get(files, i), "bytes", NULL);
    }
    EXPECT_EQ(sum, number(told, "file_bytes", NULL));
    EXPECT_EQ(json_array_size(list), 3 * 9 + 3);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t part = number(json_array_get(list, i), "part", NULL);
        EXPECT(part >= last && part < N);
        last = part;
    }
    EXPECT_EQ(last, N - 1);
    EXPECT(json_is_true(at(told, "servable", NULL)));
    json_decref(told);
    tiny_split_remove(prefix, N);
}

static void add_temperature(tiny_gguf *g) {
    tiny_kv_f32(g, "general.sampling.temp", 0.5f);
}

static const json_t *sampling_of(const json_t *told, const char *name) {
    const json_t *list = at(told, "sampling", NULL);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(text(json_array_get(list, i), "name", NULL), name) == 0)
            return json_array_get(list, i);
    return NULL;
}

static void sampling_says_where_it_is_from(void) {
    begin(&(tiny_model_options){.add_keys = add_temperature});
    char side[128];
    snprintf(side, sizeof side, "%.*s.generation_config.json", (int)(strlen(make_path()) - 5),
             path);
    static const char written[] = "{\"temperature\": 0.9, \"top_k\": 40}";
    tiny_file_write(side, written, sizeof written - 1);
    json_t *told = end();
    const json_t *t = sampling_of(told, "temperature"), *k = sampling_of(told, "top_k");
    EXPECT_STR(text(t, "source", NULL), "gguf");
    EXPECT_STR(text(t, "key", NULL), "general.sampling.temp");
    EXPECT_NEAR(json_number_value(at(t, "value", NULL)), 0.5, 1e-6);
    EXPECT_STR(text(k, "source", NULL), "generation_config.json");
    EXPECT_STR(text(k, "file", NULL), side);
    EXPECT(json_is_null(at(sampling_of(told, "min_p"), "file", NULL)));
    json_decref(told);
    unlink(side);
}

#define THINKS                                                                                     \
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"         \
    "{% endif %}<|im_start|>{{ m.role }}\n"                                                        \
    "{% if m.role == 'assistant' and '</think>' in m.content %}"                                   \
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"        \
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"                            \
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"      \
    "{% endif %}{% endif %}"

static void the_template_is_tried(void) {
    begin(NULL);
    buf_deinit(&whole->metadata);
    whole->n_entries_said = 0;
    tiny_hparams_add(whole, &(tiny_model_options){.n_layers = 3,
                                                  .dim = 64,
                                                  .n_heads = 4,
                                                  .n_kv_heads = 2,
                                                  .ffn_dim = 128,
                                                  .n_ctx = 2048,
                                                  .name = "thinks"});
    tiny_tokenizer_add(whole);
    static const char key[] = "tokenizer.chat_template", other[] = "tokenizer.chat_templatE";
    char *old = memmem(whole->metadata.p, whole->metadata.n, key, sizeof key - 1);
    INFERD_CHECK(old != NULL);
    memcpy(old, other, sizeof other - 1); // a key that nothing reads
    tiny_kv_str(whole, key, THINKS);
    tiny_kv_str(whole, "tokenizer.chat_template.rag", "{{ messages }}");
    json_t *told = end();
    const json_t *t = at(told, "template", NULL), *refuses = at(t, "refuses", NULL);
    EXPECT_STR(text(t, "source", NULL), key);
    EXPECT_EQ(number(t, "bytes", NULL), sizeof THINKS - 1);
    EXPECT_STR(text(t, "reasoning", "open"), "<think>");
    EXPECT_STR(text(t, "reasoning", "close"), "</think>");
    const json_t *switches = at(t, "reasoning", "switches");
    EXPECT_EQ(json_array_size(switches), 1);
    EXPECT_STR(json_string_value(json_array_get(switches, 0)), "enable_thinking");
    EXPECT_EQ(json_array_size(refuses), 2);
    EXPECT_STR(text(json_array_get(refuses, 0), "what", NULL), "a system message");
    EXPECT(strstr(text(json_array_get(refuses, 0), "why", NULL), "no system") != NULL);
    EXPECT_STR(json_string_value(json_array_get(at(t, "others", NULL), 0)), "rag");
    json_decref(told);
}

int main(int argc, char **argv) {
    static const test_case tests[] = {
        TEST(every_family_is_told_as_it_is_opened),
        TEST(mixtures_say_what_a_token_takes),
        TEST(windows_and_rotation_are_told),
        TEST(the_context_chooses_the_factors),
        TEST(keys_and_values_are_counted_as_allocated),
        TEST(every_reason_is_told),
        TEST(tensors_of_one_type_are_one_reason),
        TEST(an_unknown_architecture_shows_what_can_be_read),
        TEST(keys_are_told_without_the_values),
        TEST(the_first_matrix_that_fits_may_be_an_experts),
        TEST(layers_behind_a_problem_are_planned),
        TEST(what_is_no_gguf_is_a_failure),
        TEST(mtp_layers_are_no_layers),
        TEST(encoders_are_named),
        TEST(a_split_model_has_parts),
        TEST(sampling_says_where_it_is_from),
        TEST(the_template_is_tried),
    };
    inferd_err err = {0};
    backend_options o = {.kind = "cpu", .n_threads = 1, .memory_bytes = 16 << 20};
    INFERD_CHECK(backend_open(&o, &be, &err) == INFERD_OK);
    int failed = test_run(tests, INFERD_COUNT(tests), argc, argv);
    backend_close(be);
    return failed;
}
