/* inspect.c - see models/inspect.h. */
#include <string.h>

#include "inspect_report.h"

enum { REASONS_MAX = 10000 }; // a file can have so many tensors that are wrong

/* ---- building ---- */

void report_put(report *r, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) r->no_memory = true;
}

void report_add(report *r, json_t *array, json_t *value) {
    if (json_array_append_new(array, value) != 0) r->no_memory = true;
}

json_t *report_text(bytes text) {
    if (text.p == NULL) return json_null();
    json_t *whole = json_stringn(text.p, text.n);
    if (whole != NULL) return whole;
    char *shown = malloc(text.n + 1);
    if (shown == NULL) return NULL;
    for (size_t i = 0; i < text.n; i++)
        shown[i] = text.p[i] >= ' ' && text.p[i] <= '~' ? text.p[i] : '?';
    whole = json_stringn(shown, text.n);
    free(shown);
    return whole;
}

static json_t *text_of(const char *s) {
    return report_text((bytes){s, s == NULL ? 0 : strlen(s)});
}

static json_t *integer(uint64_t n) { // no size of a file is larger
    return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

json_t *report_number(uint64_t n) {
    return n == 0 ? json_null() : integer(n);
}

static void add_reason(report *r, const char *text) {
    size_t n = json_array_size(r->reasons);
    const char *last = n == 0 ? NULL : json_string_value(json_array_get(r->reasons, n - 1));
    if (n >= REASONS_MAX || (last != NULL && strcmp(last, text) == 0)) return;
    report_add(r, r->reasons, text_of(text));
}

/* ---- reasons ---- */

/* Tensors of one type that nothing computes are one reason. */
static void take_problem(void *ctx, const gguf_tensor *t, const char *text) {
    report *r = ctx;
    if (t != NULL && !dtype_about(t->type).supported)
        r->wrong_types |= (uint64_t)1 << t->type;
    else
        add_reason(r, text);
}

/* Without a spec it is not known which tensors are needed. */
static bool is_needed(const report *r, const gguf_tensor *t) {
    return r->described ? !decoder_tensor_is_harmless(&r->m->spec, t->name)
                        : model_media_of(t->name) == MODEL_TEXT;
}

static void tell_type(report *r, dtype type) {
    enum { NAMES_BYTES = 200 };
    char names[NAMES_BYTES], types[DTYPE_LIST_BYTES];
    inferd_err text = {0};
    size_t at = 0, n = 0, n_named = 0;
    for (size_t i = 0; i < gguf_n_tensors(r->m->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(r->m->file, i);
        if (t->type != type || !is_needed(r, t)) continue;
        n++;
        if (at + strlen(t->name) + 3 > sizeof names) continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", n == 1 ? "" : ", ", t->name);
        n_named = n;
    }
    if (n == 0) return;
    inferd_fail(&text, INFERD_EUNSUPPORTED,
                "%s: %zu tensor%s of type %s, which cannot be computed with: %s%s; types that can: "
                "%s",
                gguf_label(r->m->file), n, n == 1 ? "" : "s", dtype_about(type).name, names,
                n_named < n ? ", ..." : "", dtype_list_supported(types));
    add_reason(r, text.text);
}

static void tell_types(report *r) {
    for (size_t i = 0; !r->described && i < gguf_n_tensors(r->m->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(r->m->file, i);
        if (!dtype_about(t->type).supported && is_needed(r, t))
            r->wrong_types |= (uint64_t)1 << t->type;
    }
    for (uint32_t i = 0; i < DTYPE_LIMIT; i++)
        if (r->wrong_types >> i & 1) tell_type(r, (dtype)i);
}

/* *weights is owned by the caller. */
static inferd_status plan_weights(report *r, decoder_weights *weights, inferd_err *err) {
    size_t n_before = json_array_size(r->reasons);
    if (!r->described) return INFERD_OK;
    inferd_status st =
        weights_examine(r->m->file, NULL, &r->m->spec, take_problem, r, weights, &r->plan, err);
    r->planned = st == INFERD_OK;
    r->is_whole = r->planned && r->wrong_types == 0 && json_array_size(r->reasons) == n_before;
    return st;
}

/* ---- the file ---- */

static void put_files(report *r) {
    const gguf *g = r->m->file;
    json_t *files = json_array();
    for (uint32_t i = 0; i < gguf_n_parts(g); i++) {
        uint64_t n_bytes;
        const char *path = gguf_part_at(g, i, &n_bytes);
        json_t *file = json_object();
        report_put(r, file, "path", text_of(path));
        report_put(r, file, "bytes", integer(n_bytes));
        report_add(r, files, file);
    }
    report_put(r, r->root, "path", text_of(r->m->path));
    report_put(r, r->root, "made_up", json_boolean(r->m->dummy));
    report_put(r, r->root, "file_bytes", integer(gguf_file_bytes(g)));
    report_put(r, r->root, "files", files);
}

static void put_types(report *r) {
    const gguf *g = r->m->file;
    struct {
        uint64_t n, n_bytes;
    } types[DTYPE_LIMIT] = {0};
    json_t *list = json_array();
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        types[t->type].n++;
        types[t->type].n_bytes += t->n_bytes;
    }
    for (;;) { // the largest first
        uint32_t best = 0;
        for (uint32_t i = 1; i < DTYPE_LIMIT; i++)
            if (types[i].n_bytes > types[best].n_bytes) best = i;
        if (types[best].n == 0) break;
        json_t *type = json_object();
        report_put(r, type, "type", text_of(dtype_about(best).name));
        report_put(r, type, "tensors", integer(types[best].n));
        report_put(r, type, "bytes", integer(types[best].n_bytes));
        report_put(r, type, "supported", json_boolean(dtype_about(best).supported));
        report_add(r, list, type);
        types[best].n = types[best].n_bytes = 0;
    }
    report_put(r, r->root, "types", list);
}

static void put_tensors(report *r) {
    const gguf *g = r->m->file;
    json_t *list = json_array();
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        json_t *one = json_object(), *shape = json_array();
        for (uint32_t k = t->n_dims; k > 0; k--) report_add(r, shape, integer(t->dims[k - 1]));
        report_put(r, one, "name", text_of(t->name));
        report_put(r, one, "type", text_of(dtype_about(t->type).name));
        report_put(r, one, "shape", shape);
        report_put(r, one, "bytes", integer(t->n_bytes));
        report_put(r, one, "part", integer(t->part));
        report_put(r, one, "offset", integer(t->file_offset));
        report_add(r, list, one);
    }
    report_put(r, r->root, "tensors", list);
}

/* ---- shapes ---- */

/* "ARCHITECTURE.key" of a file that was not understood; 0: there is none, or no number. */
static uint64_t raw_number(const report *r, bytes architecture, const char *key) {
    char full[128];
    uint64_t n = 0;
    inferd_err ignored;
    if (architecture.p == NULL || architecture.n > 64) return 0;
    snprintf(full, sizeof full, "%.*s.%s", (int)architecture.n, architecture.p, key);
    return gguf_u64_or(r->m->file, full, 0, INT64_MAX, 0, &n, &ignored) == INFERD_OK ? n : 0;
}

static void put_raw_shape(report *r, bytes architecture) {
    static const struct {
        const char *member, *key;
    } numbers[] = {
        {"layers", "block_count"},
        {"dim", "embedding_length"},
        {"heads", "attention.head_count"},
        {"kv_heads", "attention.head_count_kv"},
        {"head_dim", "attention.key_length"},
        {"ffn_dim", "feed_forward_length"},
        {"experts", "expert_count"},
        {"experts_used", "expert_used_count"},
        {"context_trained", "context_length"},
        {"mtp_layers", "nextn_predict_layers"},
    };
    for (size_t i = 0; i < INFERD_COUNT(numbers); i++)
        report_put(r, r->root, numbers[i].member,
                   report_number(raw_number(r, architecture, numbers[i].key)));
    report_put(r, r->root, "rotary", json_null());
    report_put(r, r->root, "windows", json_null());
}

static const char *scaling_name(rope_scaling s) {
    static const char *const names[] = {[ROPE_PLAIN] = "none",
                                        [ROPE_LINEAR] = "linear",
                                        [ROPE_YARN] = "yarn",
                                        [ROPE_LONG] = "longrope"};
    return names[s];
}

/* A real number of the file by its key, or null. */
static json_t *raw_real(const report *r, const char *key) {
    char full[128];
    double v = 0;
    inferd_err ignored;
    snprintf(full, sizeof full, "%s.%s", r->m->spec.architecture, key);
    bool fine = gguf_has(r->m->file, full) &&
                gguf_f64(r->m->file, full, -1e30, 1e30, &v, &ignored) == INFERD_OK;
    return fine ? json_real(v) : json_null();
}

/* Which tensor divides the frequencies for a service of `context` positions. */
static const char *divisors_of(const report *r, uint32_t context) {
    const decoder_spec *s = &r->m->spec;
    if (s->rope_scaling == ROPE_LONG)
        return context > s->rope_original ? "rope_factors_long.weight"
                                          : "rope_factors_short.weight";
    return gguf_find_tensor(r->m->file, "rope_freqs.weight") != NULL ? "rope_freqs.weight" : NULL;
}

static uint32_t count_layers(const decoder_spec *s, bool (*is)(const attn_kind *)) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_layers; i++) n += is(decoder_kind_of(s, i));
    return n;
}
static bool has_window(const attn_kind *k) {
    return k->attn.window != 0;
}
static bool is_not_rotated(const attn_kind *k) {
    return k->rope.n_pairs == 0;
}

static void put_rotary(report *r, uint32_t context) {
    const decoder_spec *s = &r->m->spec;
    json_t *rope = json_object(), *factor = raw_real(r, "rope.scaling.factor");
    double no_scaling = 1;
    bool linear = s->rope_scaling == ROPE_LINEAR || s->rope_scaling == ROPE_YARN;
    if (json_is_null(factor)) factor = raw_real(r, "rope.scale_linear");
    double f =
        json_is_real(factor) && json_real_value(factor) != 0 ? json_real_value(factor) : no_scaling;
    json_decref(factor);
    const char *name =
        s->rope_scaling == ROPE_LINEAR && f == no_scaling ? "none" : scaling_name(s->rope_scaling);
    report_put(r, rope, "scaling", text_of(name));
    report_put(r, rope, "factor", linear ? json_real(f) : json_null());
    report_put(r, rope, "original_context", integer(s->rope_original));
    report_put(r, rope, "base", raw_real(r, "rope.freq_base"));
    report_put(r, rope, "dims", integer(s->kinds[0].rope.n_pairs * 2));
    report_put(r, rope, "divisors", text_of(divisors_of(r, context)));
    report_put(r, rope, "layers_without", integer(count_layers(s, is_not_rotated)));
    report_put(r, r->root, "rotary", rope);
}

static void put_windows(report *r) {
    const decoder_spec *s = &r->m->spec;
    uint32_t n = count_layers(s, has_window);
    json_t *windows = n == 0 ? json_null() : json_object();
    if (n > 0) {
        report_put(r, windows, "layers", integer(n));
        report_put(r, windows, "tokens",
                   integer(u32_max(s->kinds[0].attn.window,
                                   s->n_kinds > 1 ? s->kinds[1].attn.window : 0)));
        report_put(r, windows, "kv_kept", json_string("whole"));
    }
    report_put(r, r->root, "windows", windows);
}

static void put_shape(report *r, uint32_t context) {
    const decoder_spec *s = &r->m->spec;
    const struct {
        const char *member;
        uint32_t n;
    } numbers[] = {
        {"layers", s->n_layers},         {"dim", s->dim},
        {"heads", s->n_heads},           {"kv_heads", s->n_kv_heads},
        {"head_dim", s->head_dim},       {"ffn_dim", s->ffn_dim},
        {"experts", s->n_experts},       {"experts_used", s->n_experts_used},
        {"mtp_layers", s->n_mtp_layers}, {"context_trained", s->context_trained},
    };
    for (size_t i = 0; i < INFERD_COUNT(numbers); i++)
        report_put(r, r->root, numbers[i].member, integer(numbers[i].n));
    put_rotary(r, context);
    put_windows(r);
}

/* Elements that the computation of one token takes: of the experts those that are used. */
static json_t *count_active(const report *r) {
    uint64_t n = 0, experts = 0;
    if (!r->is_whole) return json_null();
    for (size_t i = 0; i < r->plan.n; i++) {
        const weight_entry *e = &r->plan.entries[i];
        *(e->expert ? &experts : &n) += (uint64_t)e->rows * e->cols;
    }
    if (experts > 0) n += experts / r->m->spec.n_experts * r->m->spec.n_experts_used;
    return integer(n);
}

static void put_model(report *r, const inspect_options *o) {
    bytes architecture = {0};
    inferd_err ignored;
    if (gguf_str_opt(r->m->file, "general.architecture", &architecture, &ignored) != INFERD_OK)
        architecture = (bytes){0};
    uint32_t trained = r->described ? r->m->spec.context_trained : 0;
    uint32_t context = o->model.context_max != 0 ? o->model.context_max : trained;
    report_put(r, r->root, "name", text_of(r->m->name));
    report_put(r, r->root, "architecture", report_text(architecture));
    report_put(r, r->root, "parameters", integer(r->m->info.n_params));
    report_put(r, r->root, "parameters_active", count_active(r));
    report_put(r, r->root, "main_type", text_of(r->m->info.weights));
    report_put(r, r->root, "context", report_number(context));
    if (r->described)
        put_shape(r, context);
    else
        put_raw_shape(r, architecture);
}

/* ---- parts that are not served ---- */

static void add_part(report *r, json_t *list, const char *part, uint64_t n, uint64_t n_bytes) {
    json_t *one = json_object();
    report_put(r, one, "part", text_of(part));
    report_put(r, one, "tensors", integer(n));
    report_put(r, one, "bytes", integer(n_bytes));
    report_add(r, list, one);
}

/* Tensors behind the layers, "blk.N." with N from n_layers on. */
static bool is_of_mtp(const report *r, const char *name) {
    unsigned layer;
    return r->described && sscanf(name, "blk.%5u.", &layer) == 1 && layer >= r->m->spec.n_layers;
}

static void put_not_served(report *r) {
    static const char *const names[] = {"mtp", "image", "audio"};
    uint64_t n[INFERD_COUNT(names)] = {0}, n_bytes[INFERD_COUNT(names)] = {0};
    json_t *list = json_array();
    for (size_t i = 0; i < gguf_n_tensors(r->m->file); i++) {
        const gguf_tensor *t = gguf_tensor_at(r->m->file, i);
        model_media media = model_media_of(t->name);
        if (media == MODEL_TEXT && !is_of_mtp(r, t->name)) continue;
        n[media]++;
        n_bytes[media] += t->n_bytes;
    }
    for (size_t i = 0; i < INFERD_COUNT(names); i++)
        if (n[i] > 0) add_part(r, list, names[i], n[i], n_bytes[i]);
    report_put(r, r->root, "not_served", list);
}

/* ---- all of it ---- */

static void put_all(report *r, const inspect_options *o) {
    put_files(r);
    put_model(r, o);
    put_types(r);
    put_not_served(r);
    report_tokenizer(r);
    report_template(r);
    report_sampling(r);
    report_memory(r);
    if (o->tensors) put_tensors(r);
    report_put(r, r->root, "servable", json_boolean(json_array_size(r->reasons) == 0));
    report_put(r, r->root, "reasons", json_incref(r->reasons));
}

inferd_status model_inspect(const inspect_options *options, json_t **out, inferd_err *err) {
    report r = {.root = json_object(), .reasons = json_array(), .be = options->be};
    decoder_weights weights = {0};
    model *m = NULL;
    *out = NULL;
    inferd_status st = model_examine(&options->model, take_problem, &r, &m, &r.described, err);
    r.m = m;
    if (st == INFERD_OK) st = plan_weights(&r, &weights, err);
    if (st == INFERD_OK) {
        tell_types(&r);
        put_all(&r, options);
        if (r.no_memory)
            st =
                inferd_fail(err, INFERD_ENOMEM, "%s: no memory to tell of it", options->model.path);
    }
    weights_deinit(&weights, &r.plan);
    model_close(m);
    json_decref(r.reasons);
    if (st == INFERD_OK)
        *out = r.root;
    else
        json_decref(r.root);
    return st;
}
