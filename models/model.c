/* model.c - a model's life, from file to forward pass; see model.h.
 *
 *     model_open    header, spec, tokenizer, template       COLD
 *     model_attach  KV layout, plan of the window, scratch  COLD, on a backend
 *     model_load    pages -> window, weights prepared       HOT
 *     model_unload  pages home                              COLD, still attached
 */
#include "models/model.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "decoder.h"
#include "dummy_model.h"
#include "gguf/gguf.h"
#include "weights.h"

struct model {
    gguf *file; // owned; stays open, so that a reload reads the file that was checked
    decoder_spec spec;
    tokenizer *tok;      // owned
    chat_template *chat; // owned; NULL: none
    char *path, *name;   // owned
    model_info info;
    bool dummy; // the file has no weights: they are made up from the seed
    uint64_t dummy_seed;

    backend *be; // borrowed while attached
    model_limits limits;
    kv_layout kv;
    weight_plan plan;
    decoder_weights weights;
    decoder_scratch scratch;
    be_window *window; // owned while attached
    bool loaded;
};

static inferd_status copy_bytes(bytes b, char **out, inferd_err *err) {
    *out = malloc(b.n + 1);
    if (*out == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu bytes", b.n);
    if (b.n > 0) memcpy(*out, b.p, b.n);
    (*out)[b.n] = 0;
    return INFERD_OK;
}

/* LoRA adapters, projectors and importance matrices are GGUF files too. */
static inferd_status check_is_model(const gguf *g, inferd_err *err) {
    bytes kind;
    inferd_status st = gguf_str_opt(g, "general.type", &kind, err);
    if (st != INFERD_OK || kind.p == NULL || (kind.n == 5 && memcmp(kind.p, "model", 5) == 0))
        return st;
    return inferd_fail(err, INFERD_EUNSUPPORTED, "%s: general.type is \"%.*s\", not a model",
                       gguf_path(g), (int)size_min(kind.n, 32), kind.p);
}

/* A whole small regular file. */
static inferd_status read_file(const char *path, size_t bytes_max, char **out, size_t *n,
                               inferd_err *err) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return inferd_fail(err, INFERD_EIO, "%s: %m", path);
    *out = NULL;
    inferd_status st = INFERD_OK;
    if (fstat(fd, &info) != 0)
        st = inferd_fail(err, INFERD_EIO, "%s: %m", path);
    else if (!S_ISREG(info.st_mode))
        st = inferd_fail(err, INFERD_EIO, "%s is not a regular file", path);
    else if ((uint64_t)info.st_size > bytes_max)
        st = inferd_fail(err, INFERD_ETOOLONG, "%s has %lld bytes; at most %zu are read", path,
                         (long long)info.st_size, bytes_max);
    else if ((*out = malloc((size_t)info.st_size + 1)) == NULL)
        st = inferd_fail(err, INFERD_ENOMEM, "%s: no memory for %lld bytes", path,
                         (long long)info.st_size);
    *n = 0;
    while (st == INFERD_OK && *n < (size_t)info.st_size) {
        ssize_t got = read(fd, *out + *n, (size_t)info.st_size - *n);
        if (got < 0)
            st = inferd_fail(err, INFERD_EIO, "%s: %m", path);
        else if (got == 0)
            break;
        else
            *n += (size_t)got;
    }
    close(fd);
    if (st != INFERD_OK) {
        free(*out);
        *out = NULL;
    }
    return st;
}

static inferd_status open_template(model *m, const model_options *options, inferd_err *err) {
    bytes source;
    char *text = NULL;
    inferd_status st;
    if (options->template_path != NULL) {
        st = read_file(options->template_path, chat_limits_default.source_bytes_max, &text,
                       &source.n, err);
        source.p = text;
    } else {
        st = gguf_str_opt(m->file, "tokenizer.chat_template", &source, err);
    }
    if (st != INFERD_OK || source.p == NULL) return st;
    st = chat_template_open(source, &chat_limits_default, &m->chat, err);
    if (st != INFERD_OK)
        inferd_context(err, "chat template of %s",
                       options->template_path != NULL ? options->template_path : m->path);
    free(text);
    return st;
}

static inferd_status set_context(model *m, uint32_t context_max, inferd_err *err) {
    if (context_max > m->spec.context_trained)
        return inferd_fail(err, INFERD_EINVAL,
                           "%s: max_context is %u, the model was trained for %u positions", m->path,
                           context_max, m->spec.context_trained);
    m->info.context = context_max != 0 ? context_max : m->spec.context_trained;
    return INFERD_OK;
}

static uint64_t count_params(const gguf *g) {
    uint64_t total = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        dtype_info info = dtype_about(t->type);
        total += t->n_bytes / info.block_bytes * info.block_elems;
    }
    return total;
}

/* The embedding's rows are needed before weights are planned: ids are checked against them. */
static inferd_status read_vocabulary_size(model *m, inferd_err *err) {
    const gguf_tensor *t = gguf_find_tensor(m->file, "token_embd.weight");
    if (t == NULL)
        return inferd_fail(err, INFERD_EFORMAT, "%s: tensor token_embd.weight is missing", m->path);
    if (t->n_dims != 2 || t->dims[1] > DECODER_VOCAB_MAX)
        return inferd_fail(
            err, INFERD_EFORMAT,
            "%s: tensor token_embd.weight has %u dimensions and %llu rows; expected 2 and "
            "at most %d",
            m->path, t->n_dims, (unsigned long long)t->dims[1], DECODER_VOCAB_MAX);
    m->spec.n_vocab = (uint32_t)t->dims[1];
    if (tok_n_vocab(m->tok) > m->spec.n_vocab)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: %zu tokens in the vocabulary and %u rows in token_embd.weight",
                           m->path, tok_n_vocab(m->tok), m->spec.n_vocab);
    return INFERD_OK;
}

static void fill_info(model *m) {
    const decoder_spec *s = &m->spec;
    m->info.path = m->path;
    m->info.architecture = s->architecture;
    m->info.name = m->name;
    m->info.context_trained = s->context_trained;
    m->info.n_vocab = s->n_vocab;
    m->info.n_layers = s->n_layers;
    m->info.dim = s->dim;
    m->info.n_heads = s->n_heads;
    m->info.n_kv_heads = s->n_kv_heads;
    m->info.head_dim = s->head_dim;
    m->info.ffn_dim = s->ffn_dim;
    m->info.n_params = count_params(m->file);
    m->info.file_bytes = gguf_file_bytes(m->file);
}

bool model_path_is_dummy(const char *path) {
    return strncmp(path, MODEL_DUMMY_PREFIX, sizeof MODEL_DUMMY_PREFIX - 1) == 0;
}

static inferd_status open_file(model *m, const model_options *options, inferd_err *err) {
    m->dummy = model_path_is_dummy(options->path);
    if (!m->dummy) return gguf_open(options->path, &m->file, err);
    if (options->allow_dummy) return dummy_model_open(options->path, &m->file, &m->dummy_seed, err);
    return inferd_fail(
        err, INFERD_EINVAL,
        "%s: a model of made-up weights answers nonsense; only the commands serve, run "
        "and check take one, with --allow-dummy",
        options->path);
}

inferd_status model_open(const model_options *options, model **out, inferd_err *err) {
    inferd_status st;
    bytes name;
    model *m = calloc(1, sizeof *m);
    if (m == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a model");
    if ((st = copy_bytes((bytes){options->path, strlen(options->path)}, &m->path, err)) ||
        (st = open_file(m, options, err)) || (st = check_is_model(m->file, err)) ||
        (st = decoder_spec_read(m->file, &m->spec, err)) ||
        (st = tok_open(m->file, &m->tok, err)) || (st = read_vocabulary_size(m, err)) ||
        (st = open_template(m, options, err)) || (st = set_context(m, options->context_max, err)) ||
        (st = gguf_str_opt(m->file, "general.name", &name, err)) ||
        (st = copy_bytes(name, &m->name, err))) {
        model_close(m);
        return st;
    }
    fill_info(m);
    *out = m;
    return INFERD_OK;
}

void model_close(model *m) {
    if (m == NULL) return;
    INFERD_CHECK(m->be == NULL);
    chat_template_close(m->chat);
    tok_close(m->tok);
    decoder_spec_deinit(&m->spec);
    gguf_close(m->file);
    free(m->name);
    free(m->path);
    free(m);
}

const model_info *model_about(const model *m) {
    return &m->info;
}
const tokenizer *model_tokenizer(const model *m) {
    return m->tok;
}
const chat_template *model_chat_template(const model *m) {
    return m->chat;
}

inferd_status model_attach(model *m, backend *be, const model_limits *limits, inferd_err *err) {
    INFERD_CHECK(m->be == NULL);
    inferd_status st;
    m->be = be;
    m->limits = *limits;
    if ((st = kv_layout_choose(be, &m->spec, limits->kv, &m->kv, err)) ||
        (st = weights_plan(m->file, be, &m->spec, &m->weights, &m->plan, err)) ||
        (st = be_window_open(be, m->plan.n_bytes, &m->window, err)) ||
        (st = decoder_scratch_open(be, &m->spec, limits->rows_max, limits->logits_max, &m->scratch,
                                   err)))
        model_detach(m);
    return st;
}

void model_detach(model *m) {
    if (m->be == NULL) return;
    model_unload(m);
    decoder_scratch_close(m->be, &m->scratch);
    be_window_close(m->be, m->window);
    m->window = NULL;
    weights_deinit(&m->weights, &m->plan);
    m->be = NULL;
}

uint32_t model_weight_pages(const model *m) {
    size_t extent = be_page_bytes(m->be) * u32_max(be_extent_pages(m->be), 1);
    size_t n_extents = (m->plan.n_bytes + extent - 1) / extent;
    return (uint32_t)(n_extents * (extent / be_page_bytes(m->be)));
}

const kv_layout *model_kv(const model *m) {
    return &m->kv;
}

static inferd_status fill_window(model *m, model_progress *progress, void *ctx, inferd_err *err) {
    if (m->dummy)
        return weights_make_up(m->be, &m->spec, &m->weights, &m->plan, m->window, m->dummy_seed,
                               progress, ctx, err);
    return weights_load(m->file, m->be, &m->spec, &m->weights, &m->plan, m->window, progress, ctx,
                        err);
}

inferd_status model_load(model *m, const uint32_t *pages, uint32_t n_pages,
                         model_progress *progress, void *ctx, inferd_err *err) {
    INFERD_CHECK(m->be != NULL && !m->loaded && n_pages == model_weight_pages(m));
    inferd_status st = be_window_map(m->be, m->window, pages, n_pages, err);
    if (st != INFERD_OK) return st;
    if ((st = gguf_check_unchanged(m->file, err)) == INFERD_OK &&
        (st = fill_window(m, progress, ctx, err)) == INFERD_OK &&
        (st = gguf_check_unchanged(m->file, err)) == INFERD_OK) {
        m->loaded = true;
        return INFERD_OK;
    }
    inferd_err unmap_err = {0};
    be_window_unmap(m->be, m->window, &unmap_err);
    return st;
}

void model_unload(model *m) {
    if (!m->loaded) return;
    inferd_err err = {0};
    m->loaded = false;
    inferd_status s = be_window_unmap(m->be, m->window, &err);
    INFERD_CHECK(s == INFERD_OK || s == INFERD_ELOST); // of a lost device nothing is used any more
}

bool model_is_loaded(const model *m) {
    return m->loaded;
}

uint32_t model_n_unused_tensors(const model *m) {
    return m->plan.n_unused;
}

uint64_t model_step_bytes(const model *m) {
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < m->plan.n; i++) {
        const weight_entry *e = &m->plan.entries[i];
        if (e->matrix == NULL || (e->matrix == &m->weights.embed && !m->spec.tied)) continue;
        n_bytes += be_weight_bytes(m->be, e->tensor->type, e->rows, e->cols);
    }
    return n_bytes;
}

void model_describe_math(const model *m, char *text, size_t text_bytes) {
    size_t n_bytes[DTYPE_LIMIT] = {0}, used = 0;
    text[0] = 0;
    for (size_t i = 0; i < m->plan.n; i++) {
        const weight_entry *e = &m->plan.entries[i];
        if (e->matrix == NULL) continue;
        n_bytes[e->tensor->type] += be_weight_bytes(m->be, e->tensor->type, e->rows, e->cols);
    }
    for (uint32_t first = 0; first < DTYPE_LIMIT; first++) { // of its way: the others follow it
        if (n_bytes[first] == 0) continue;
        const char *way = be_weight_math(m->be, (dtype)first);
        for (uint32_t type = first; type < DTYPE_LIMIT && used < text_bytes; type++) {
            if (n_bytes[type] == 0 || strcmp(be_weight_math(m->be, (dtype)type), way) != 0)
                continue;
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s%s %s %.1f MB",
                                     type == first && used > 0 ? "; " : "",
                                     type == first ? way : "", type == first ? ":" : ",",
                                     dtype_about((dtype)type).name, (double)n_bytes[type] * 1e-6);
            n_bytes[type] = 0;
        }
    }
}

void model_launch(model *m, const batch *b, const sample_row *draws, uint32_t n_vocab) {
    INFERD_CHECK(m->loaded && b->n_rows > 0 && b->n_rows <= m->limits.rows_max &&
                 b->n_logits <= m->limits.logits_max);
    be_step_begin(m->be, b, &m->kv);
    decoder_forward(m->be, &m->spec, &m->weights, &m->scratch, b);
    if (b->n_logits > 0 && be_can_draw(m->be))
        be_draw(m->be, m->scratch.logits, draws, b->n_logits, n_vocab);
    else if (b->n_logits > 0)
        be_want_logits(m->be, m->scratch.logits, b->n_logits);
    be_step_end(m->be);
}
