/* peer.c - the logits of llama.cpp for a file: float keys and values, no flash attention.
 *
 *     peer FILE.gguf CONTEXT < prompts > logits
 *
 * A prompt is a line of token ids; its answer is the logits of its last position, as floats.
 * Built by make.py against llama.cpp's header and library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

enum { TOKENS_MAX = 1 << 16, BATCH = 512 };

static void quiet(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

static int fail(const char *what) {
    fprintf(stderr, "llama.cpp does not %s\n", what);
    return 1;
}

/* The ids of a line; how many. */
static int read_prompt(char *line, llama_token *out) {
    int n = 0;
    for (char *word = strtok(line, " \n"); word != NULL && n < TOKENS_MAX;
         word = strtok(NULL, " \n"))
        out[n++] = atoi(word);
    return n;
}

static int answer(struct llama_model *model, unsigned context, llama_token *tokens, int n) {
    struct llama_context_params o = llama_context_default_params();
    o.n_ctx = context;
    o.n_batch = o.n_ubatch = context < BATCH ? context : BATCH;
    o.type_k = o.type_v = GGML_TYPE_F32;
    o.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    o.n_threads = o.n_threads_batch = 2;
    o.swa_full = true;
    struct llama_context *ctx = llama_init_from_model(model, o);
    if (ctx == NULL) return fail("open a context");
    for (int at = 0; at < n; at += (int)o.n_batch) {
        int rows = n - at < (int)o.n_batch ? n - at : (int)o.n_batch;
        if (llama_decode(ctx, llama_batch_get_one(tokens + at, rows)) != 0) return fail("decode");
    }
    size_t n_vocab = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    fwrite(llama_get_logits_ith(ctx, -1), sizeof(float), n_vocab, stdout);
    llama_free(ctx);
    return 0;
}

int main(int argc, char **argv) {
    static llama_token tokens[TOKENS_MAX];
    char *line = NULL;
    size_t room = 0;
    int status = 0;
    if (argc != 3) return 2;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model_params o = llama_model_default_params();
    o.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], o);
    if (model == NULL) return fail("load the file");
    while (status == 0 && getline(&line, &room, stdin) > 0)
        status = answer(model, (unsigned)atoi(argv[2]), tokens, read_prompt(line, tokens));
    free(line);
    llama_model_free(model);
    return status;
}
