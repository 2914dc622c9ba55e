/* model.c - opening a model: header, description, tokenizer, template; see model.h. */
#include "model_private.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dummy_model.h"
#include "weights.h"

static inferd_status copy_bytes(bytes b, char **out, inferd_err *err) {
    *out = malloc(b.n + 1);
    if (*out == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for %zu bytes", b.n);
    if (b.n > 0) memcpy(*out, b.p, b.n);
    (*out)[b.n] = 0;
    return INFERD_OK;
}

static bool equals(bytes b, const char *text) {
    return b.p != NULL && b.n == strlen(text) && memcmp(b.p, text, b.n) == 0;
}

/* Adapters, encoders and importance matrices are GGUF files too. */
static inferd_status check_is_model(const gguf *g, inferd_err *err) {
    static const struct {
        const char *key, *value, *what;
    } others[] = {
        {"general.type", "adapter", "a LoRA adapter"},
        {"general.type", "mmproj", "an encoder of images or sounds"},
        {"general.type", "imatrix", "an importance matrix"},
        {"general.architecture", "clip", "an encoder of images or sounds"}, // older: of type model
    };
    bytes kind;
    inferd_status st;
    for (size_t i = 0; i < INFERD_COUNT(others); i++) {
        if ((st = gguf_str_opt(g, others[i].key, &kind, err)) != INFERD_OK) return st;
        if (equals(kind, others[i].value))
            return inferd_fail(
                err, INFERD_EUNSUPPORTED,
                "%s: %s is \"%s\": %s, which is not served; expected a language model",
                gguf_path(g), others[i].key, others[i].value, others[i].what);
    }
    if ((st = gguf_str_opt(g, "general.type", &kind, err)) != INFERD_OK) return st;
    if (kind.p == NULL || equals(kind, "model")) return INFERD_OK;
    return inferd_fail(err, INFERD_EUNSUPPORTED, "%s: general.type is \"%.*s\", expected \"model\"",
                       gguf_path(g), (int)size_min(kind.n, 32), kind.p);
}

inferd_status model_read_file(const char *path, size_t bytes_max, char **out, size_t *n,
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
    if (*out != NULL) (*out)[*n] = 0;
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
        st = model_read_file(options->template_path, chat_limits_default.source_bytes_max, &text,
                             &source.n, err);
        source.p = text;
    } else {
        st = gguf_str_opt(m->file, "tokenizer.chat_template", &source, err);
    }
    if (st != INFERD_OK || source.p == NULL) return st;
    st = chat_template_open(source, &chat_limits_default, &m->chat, err);
    if (st == INFERD_OK)
        st = call_format_open(m->chat, source, m->tok, options->tool_format, &m->calls, err);
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

/* The type with the most bytes; of equal ones the first.  Static. */
static const char *name_main_type(const gguf *g) {
    uint64_t n_bytes[DTYPE_LIMIT] = {0};
    uint32_t best = DTYPE_F32;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const gguf_tensor *t = gguf_tensor_at(g, i);
        n_bytes[t->type] += t->n_bytes;
    }
    for (uint32_t i = 0; i < DTYPE_LIMIT; i++)
        if (n_bytes[i] > n_bytes[best]) best = i;
    return dtype_about(best).name;
}

/* Properties from tensors: the embedding's rows, the bound of all ids, and whether the embedding is
 * the head too. */
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
    m->spec.tied = gguf_find_tensor(m->file, "output.weight") == NULL;
    if (m->tok != NULL && tok_n_vocab(m->tok) > m->spec.n_vocab)
        return inferd_fail(err, INFERD_EFORMAT,
                           "%s: %zu tokens in the vocabulary and %u rows in token_embd.weight",
                           m->path, tok_n_vocab(m->tok), m->spec.n_vocab);
    return INFERD_OK;
}

/* As converters name them: a. and mm.a. of sounds, v. and mm. of images. */
model_media model_media_of(const char *tensor) {
    if (strncmp(tensor, "a.", 2) == 0 || strncmp(tensor, "mm.a.", 5) == 0) return MODEL_AUDIO;
    if (strncmp(tensor, "v.", 2) == 0 || strncmp(tensor, "mm.", 3) == 0) return MODEL_IMAGE;
    return MODEL_TEXT;
}

static void fill_info(model *m) {
    const decoder_spec *s = &m->spec;
    m->info.path = m->path;
    m->info.architecture = s->architecture;
    m->info.name = m->name;
    m->info.weights = name_main_type(m->file);
    m->info.context_trained = s->context_trained;
    m->info.n_vocab = s->n_vocab;
    m->info.n_layers = s->n_layers;
    m->info.dim = s->dim;
    m->info.n_heads = s->n_heads;
    m->info.n_kv_heads = s->n_kv_heads;
    m->info.head_dim = s->head_dim;
    m->info.ffn_dim = s->ffn_dim;
    m->info.n_experts = s->n_experts;
    m->info.n_experts_used = s->n_experts_used;
    m->info.n_params = count_params(m->file);
    m->info.file_bytes = gguf_file_bytes(m->file);
    for (size_t i = 0; i < gguf_n_tensors(m->file); i++) {
        model_media part = model_media_of(gguf_tensor_at(m->file, i)->name);
        m->info.n_image_tensors += part == MODEL_IMAGE;
        m->info.n_audio_tensors += part == MODEL_AUDIO;
    }
}

bool model_path_is_dummy(const char *path) {
    return strncmp(path, MODEL_DUMMY_PREFIX, sizeof MODEL_DUMMY_PREFIX - 1) == 0;
}

bytes model_path_name(const char *path) {
    size_t prefix_n = sizeof MODEL_DUMMY_PREFIX - 1;
    if (model_path_is_dummy(path)) return (bytes){path + prefix_n, strcspn(path + prefix_n, "?")};
    const char *slash = strrchr(path, '/'), *begin = slash == NULL ? path : slash + 1;
    return (bytes){begin, gguf_stem_bytes(path) - (size_t)(begin - path)};
}

static inferd_status open_file(model *m, const model_options *options, inferd_err *err) {
    m->dummy = model_path_is_dummy(options->path);
    if (!m->dummy) return gguf_open(options->path, &m->file, err);
    if (options->allow_dummy) return dummy_model_open(options->path, &m->file, &m->dummy_seed, err);
    return inferd_fail(
        err, INFERD_EINVAL,
        "%s: a model of made-up weights answers nonsense; only the commands serve, run, "
        "check and inspect take one, with --allow-dummy",
        options->path);
}

static inferd_status open_counters(model *m, inferd_err *err) {
    if (m->spec.n_experts == 0) return INFERD_OK;
    m->expert_rows = calloc(m->spec.n_experts, sizeof *m->expert_rows);
    if (m->expert_rows == NULL)
        return inferd_fail(err, INFERD_ENOMEM, "no memory for counters of %u experts",
                           m->spec.n_experts);
    return INFERD_OK;
}

inferd_status model_open(const model_options *options, model **out, inferd_err *err) {
    inferd_status st;
    bytes name;
    model *m = calloc(1, sizeof *m);
    if (m == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a model");
    if ((st = copy_bytes((bytes){options->path, strlen(options->path)}, &m->path, err)) ||
        (st = open_file(m, options, err)) || (st = check_is_model(m->file, err)) ||
        (st = decoder_spec_read(m->file, options->context_max, &m->spec, err)) ||
        (st = tok_open(m->file, &m->tok, err)) || (st = read_vocabulary_size(m, err)) ||
        (st = weights_check(m->file, &m->spec, err)) || (st = open_template(m, options, err)) ||
        (st = set_context(m, options->context_max, err)) || (st = model_read_sampling(m, err)) ||
        (st = gguf_str_opt(m->file, "general.name", &name, err)) ||
        (st = copy_bytes(name, &m->name, err)) || (st = content_read(m, err)) ||
        (st = open_counters(m, err))) {
        model_close(m);
        return st;
    }
    fill_info(m);
    *out = m;
    return INFERD_OK;
}

/* ---- all that is wrong with a file ---- */

typedef struct examiner {
    model_problem *tell;
    void *ctx;
    inferd_err *err;
    bool no_memory;
} examiner;

static bool is_fine(examiner *x, inferd_status st) {
    if (st == INFERD_OK) return true;
    x->no_memory = x->no_memory || st == INFERD_ENOMEM;
    if (!x->no_memory) x->tell(x->ctx, NULL, x->err->text);
    return false;
}

static bool examine_spec(examiner *x, model *m, uint32_t context) {
    size_t at = 0;
    bool is_read = is_fine(x, decoder_spec_values(m->file, context, &m->spec, x->err));
    if (m->spec.architecture == NULL) return false;
    while (!x->no_memory && !is_fine(x, decoder_spec_keys(m->file, &m->spec, is_read, &at, x->err)))
        ;
    return is_read;
}

/* The steps of model_open but for the weights: each is tried, and none that need one that failed.
 */
static bool examine(examiner *x, model *m, const model_options *options) {
    bytes name = {0};
    is_fine(x, check_is_model(m->file, x->err));
    bool described = examine_spec(x, m, options->context_max);
    is_fine(x, tok_open(m->file, &m->tok, x->err));
    described = described && is_fine(x, read_vocabulary_size(m, x->err));
    is_fine(x, open_template(m, options, x->err));
    if (described) is_fine(x, set_context(m, options->context_max, x->err));
    is_fine(x, model_read_sampling(m, x->err));
    if (is_fine(x, gguf_str_opt(m->file, "general.name", &name, x->err)))
        is_fine(x, copy_bytes(name, &m->name, x->err));
    fill_info(m);
    return described;
}

inferd_status model_examine(const model_options *options, model_problem *tell, void *ctx,
                            model **out, bool *described, inferd_err *err) {
    examiner x = {tell, ctx, err, false};
    model *m = calloc(1, sizeof *m);
    if (m == NULL) return inferd_fail(err, INFERD_ENOMEM, "no memory for a model");
    inferd_status st = copy_bytes((bytes){options->path, strlen(options->path)}, &m->path, err);
    if (st == INFERD_OK) st = open_file(m, options, err);
    if (st == INFERD_OK) *described = examine(&x, m, options);
    if (x.no_memory) st = inferd_fail(err, INFERD_ENOMEM, "%s: no memory to open it", m->path);
    if (st != INFERD_OK) {
        model_close(m);
        return st;
    }
    *out = m;
    return INFERD_OK;
}

void model_close(model *m) {
    if (m == NULL) return;
    call_format_close(m->calls);
    chat_template_close(m->chat);
    tok_close(m->tok);
    decoder_spec_deinit(&m->spec);
    gguf_close(m->file);
    free(m->expert_rows);
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
const call_format *model_call_format(const model *m) {
    return m->calls;
}

/* ---- counters ---- */

void model_count_experts(const model *m, const uint32_t *rows, uint32_t n_experts,
                         uint32_t n_reads) {
    model *own = (model *)(uintptr_t)m; // counters are all that changes
    for (uint32_t i = 0; i < u32_min(n_experts, m->spec.n_experts); i++)
        if (rows[i] > 0)
            atomic_fetch_add_explicit(&own->expert_rows[i], rows[i], memory_order_relaxed);
    atomic_fetch_add_explicit(&own->n_expert_reads, n_reads, memory_order_relaxed);
}

uint64_t model_expert_counts(const model *m, uint64_t *rows) {
    for (uint32_t i = 0; rows != NULL && i < m->spec.n_experts; i++)
        rows[i] = atomic_load_explicit(&m->expert_rows[i], memory_order_relaxed);
    return atomic_load_explicit(&m->n_expert_reads, memory_order_relaxed);
}

/* ---- other files ---- */

model_file model_look_at_file(const model *m, model_file_id *out, inferd_err *missing) {
    gguf_named now;
    *out = (model_file_id){0};
    if (m->dummy) return MODEL_FILE_SAME;
    if (gguf_look(m->file, &now, missing) != INFERD_OK) return MODEL_FILE_MISSING;
    *out = (model_file_id){now.device, now.inode, now.n_bytes, now.mtime_ns};
    return now.is_open ? MODEL_FILE_SAME : MODEL_FILE_REPLACED;
}

const char *model_file_name(model_file f) {
    static const char *const names[] = {"same", "replaced", "missing"};
    return names[f];
}

void model_hold_file(model *m, bool held) {
    atomic_store(&m->held, held);
}
